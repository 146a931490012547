/* kernels/avx512.h - sixteen elements at a time, for the *_avx512.c files alone (CMakeLists.txt has their flags).
 *
 * It, avx2.h and neon.h define one vocabulary in their own instructions, for the *_vector.inc files: VEC_LANES, VEC_KERNEL(), vf,
 * vh and the vec_ functions.
 *
 * Casts to bf16 are integer arithmetic: VCVTNEPS2BF16 takes subnormals as zero. */
#ifndef KERNELS_AVX512_H
#define KERNELS_AVX512_H

#include "kernels/scalar.h"
#include "kernels/stream.h"
#include <immintrin.h>

#define VEC_LANES        16u
#define VEC_KERNEL(name) name##_avx512 /* as isa.h declares it */
#define SPLIT_VECS       1u            /* vectors that vec_store_split() takes */
#define SPLIT_ELEMS      (SPLIT_VECS * VEC_LANES)

typedef __m512 vf;  /* floats */
typedef __m256i vh; /* as many bf16, fp16 or 16-bit integers */

static inline vf vec_splat(float x)
{
    return _mm512_set1_ps(x);
}

static inline vf vec_load(const float *in)
{
    return _mm512_loadu_ps(in);
}

static inline void vec_store(float *out, vf x)
{
    _mm512_storeu_ps(out, x);
}

static inline vf vec_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

static inline vf vec_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

static inline vf vec_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

static inline vf vec_sqrt(vf x)
{
    return _mm512_sqrt_ps(x);
}

/** a b + c, rounded once. */
static inline vf vec_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/** a b - c, rounded once. */
static inline vf vec_fms(vf a, vf b, vf c)
{
    return _mm512_fmsub_ps(a, b, c);
}

/** x with every NaN as 0x7fc00000. */
static inline vf vec_canonical(vf x)
{
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32((int)ST_F32_NAN));

    return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan);
}

/** |x| with the sign of c; 0 where c is 0 of either sign, NaN where c is NaN. */
static inline vf vec_sign_of(vf x, vf c)
{
    const __m512 sign = _mm512_set1_ps(-0.0f);
    const __m512 signed_x = _mm512_or_ps(_mm512_andnot_ps(sign, x), _mm512_and_ps(sign, c));
    const __m512 nonzero = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(c, _mm512_setzero_ps(), _CMP_NEQ_UQ), signed_x);

    return _mm512_mask_mov_ps(nonzero, _mm512_cmp_ps_mask(c, c, _CMP_UNORD_Q), c);
}

/** Whether any magnitude is at least that with the bits `limit`; NaN is above all. */
static inline bool vec_any_from(vf x, uint32_t limit)
{
    const __m512i mag = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)ST_F32_MAG));

    return _mm512_cmpgt_epi32_mask(mag, _mm512_set1_epi32((int)(limit - 1u))) != 0;
}

/** One bit per element that is infinite or NaN. */
static inline unsigned vec_nonfinite_mask(vf x)
{
    const __m512i exponent = _mm512_set1_epi32((int)ST_F32_INF);

    return _mm512_cmpeq_epi32_mask(_mm512_and_si512(_mm512_castps_si512(x), exponent), exponent);
}

static inline vh vec_load_u16(const void *in)
{
    return _mm256_loadu_si256((const __m256i *)in);
}

static inline void vec_store_u16(void *out, vh x)
{
    _mm256_storeu_si256((__m256i *)out, x);
}

/** Sixteen bf16, widened exactly. */
static inline vf vec_widen_bf16(vh x)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

/** Sixteen bf16: nearest, ties to even; NaN: 0x7fc0. */
static inline vh vec_round_bf16(vf x)
{
    const __m512i bits = _mm512_castps_si512(vec_canonical(x)); /* the addition below leaves 0x7fc00000 a NaN */
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));

    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_add_epi32(bits, up), 16));
}

/** Sixteen fp16, widened exactly; NaN stays some NaN. */
static inline vf vec_widen_f16(vh x)
{
    return _mm512_cvtph_ps(x);
}

/** Sixteen fp16: nearest, ties to even; NaN: 0x7e00. */
static inline vh vec_round_f16(vf x)
{
    return _mm512_cvtps_ph(vec_canonical(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/** Masters of sixteen split elements. */
static inline vf vec_join(vh weight, vh residual)
{
    const __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(weight), 16);

    return _mm512_castsi512_ps(_mm512_add_epi32(high, _mm512_cvtepi16_epi32(residual)));
}

/** bf16 weights of masters that hold no NaN but 0x7fc00000: nearest, ties away from zero. */
static inline vh vec_split_weight(vf p)
{
    const __m512i up = _mm512_add_epi32(_mm512_castps_si512(p), _mm512_set1_epi32(0x8000));

    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
}

/** Split sixteen masters that hold no NaN but 0x7fc00000. */
static inline void vec_store_split(uint16_t *weight, int16_t *residual, const vf p[SPLIT_VECS])
{
    vec_store_u16(weight, vec_split_weight(p[0]));
    vec_store_u16(residual, _mm512_cvtepi32_epi16(_mm512_castps_si512(p[0])));
}

/** Eight sums in double: in lane j elements whose index is j mod 8. */
struct square_sums {
    __m512d lanes;
};

/** Squares of fp32 values are exact in double, so an fma and a multiplication with an addition round alike. */
static inline void vec_add_squares(struct square_sums *sums, vf x)
{
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x)), high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));

    sums->lanes = _mm512_fmadd_pd(high, high, _mm512_fmadd_pd(low, low, sums->lanes));
}

static inline void vec_store_sums(double out[8], const struct square_sums *sums)
{
    _mm512_storeu_pd(out, sums->lanes);
}

#endif

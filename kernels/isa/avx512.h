/* kernels/isa/avx512.h - sixteen elements at a time, only for the *_avx512.c files (CMakeLists.txt has their flags).
 *
 * This file, avx2.h and neon.h define the same names in their own instructions, for the *_vector.inc files: VEC_LANES,
 * VEC_KERNEL(), vf, vh and the vec_ functions.
 *
 * Casts to bf16 are integer arithmetic: VCVTNEPS2BF16 treats subnormals as zero. */
#ifndef KERNELS_ISA_AVX512_H
#define KERNELS_ISA_AVX512_H

#include "kernels/isa/scalar.h"
#include "kernels/isa/stream.h"
#include <immintrin.h>

#define VEC_LANES        16u
#define VEC_KERNEL(name) name##_avx512 /* as isa.h declares it */
#define STEP_VECS        1u            /* vectors that vec_store_split() takes */
#define STEP_ELEMS       (STEP_VECS * VEC_LANES)

typedef __m512 vf;  /* floats */
typedef __m256i vh; /* as many bf16, fp16 or 16-bit integers */
typedef __m512i vu; /* as many 32-bit integers */

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

/** Whether any magnitude is at least the float with the bits `limit`; NaN is above everything. */
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

/** Store past the caches; `out` aligned to 32 bytes.  Call vec_stream_end() before other threads read it. */
static inline void vec_stream_u16(void *out, vh x)
{
    _mm256_stream_si256((__m256i *)out, x);
}

static inline void vec_stream_end(void)
{
    _mm_sfence();
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
static inline vf vec_join(vh weight, vh low_half)
{
    const __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(weight), 16);

    return _mm512_castsi512_ps(_mm512_add_epi32(high, _mm512_cvtepi16_epi32(low_half)));
}

/** bf16 weights of masters that hold no NaN but 0x7fc00000: nearest, ties away from zero. */
static inline vh vec_split_weight(vf p)
{
    const __m512i up = _mm512_add_epi32(_mm512_castps_si512(p), _mm512_set1_epi32(0x8000));

    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
}

/** Split sixteen masters that hold no NaN but 0x7fc00000. */
static inline void vec_store_split(uint16_t *weight, int16_t *low_half, const vf p[STEP_VECS])
{
    vec_store_u16(weight, vec_split_weight(p[0]));
    vec_store_u16(low_half, _mm512_cvtepi32_epi16(_mm512_castps_si512(p[0])));
}

/* Stochastic rounding and 8-bit codes, as scalar.h defines them.  `which` and `squares` are constants at every call. */

static inline vu vec_splat_u32(uint32_t x)
{
    return _mm512_set1_epi32((int)x);
}

/** Each lane's index and `first`. */
static inline vu vec_count_from(uint32_t first)
{
    return _mm512_add_epi32(vec_splat_u32(first), _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
}

static inline vu vec_add_u32(vu a, uint32_t b)
{
    return _mm512_add_epi32(a, vec_splat_u32(b));
}

/** st_rounding_bits(), given position + the key's low half, and the key that is added between the multiplications. */
static inline vu vec_random(vu counter, vu key)
{
    vu x = _mm512_mullo_epi32(counter, vec_splat_u32(ST_MIX_1));

    x = _mm512_add_epi32(_mm512_xor_si512(x, _mm512_srli_epi32(x, 15)), key);
    x = _mm512_mullo_epi32(x, vec_splat_u32(ST_MIX_2));
    return _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
}

static inline vu vec_random_part(vu random, int which, int width)
{
    return which == 0 ? _mm512_and_si512(random, _mm512_set1_epi32((1 << width) - 1))
                      : _mm512_srli_epi32(random, (unsigned)(32 - width));
}

/** Sixteen bf16, rounded stochastically; the only NaN allowed is 0x7fc00000. */
static inline vh vec_round_random(vf x, vu random, int which)
{
    const __m512i sum = _mm512_add_epi32(_mm512_castps_si512(x), vec_random_part(random, which, 16));

    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16));
}

/** The larger of `most` and x's magnitudes, as bits; for squares, which are not negative, x's own bits. */
static inline vu vec_most(vu most, vf x, bool squares)
{
    const __m512i bits = _mm512_castps_si512(x);

    return _mm512_max_epi32(most, squares ? bits : _mm512_and_si512(bits, _mm512_set1_epi32((int)ST_F32_MAG)));
}

static inline uint32_t vec_most_of(vu most)
{
    return (uint32_t)_mm512_reduce_max_epi32(most);
}

/** Sixteen codes; zero: the base's float times the scale.  Codes are sign-extended, so that a shift moves the sign into place. */
static inline vf vec_decode(const uint8_t *codes, vf scale, vf zero, bool squares)
{
    const __m128i in = _mm_loadu_si128((const __m128i *)codes);
    const __m512i code = _mm512_slli_epi32(squares ? _mm512_cvtepu8_epi32(in) : _mm512_cvtepi8_epi32(in), ST_CODE_SHIFT);
    const __m512i base = _mm512_set1_epi32((int)st_code_base(squares)), sign = _mm512_set1_epi32((int)~ST_F32_MAG);
    const __m512i kept = _mm512_set1_epi32((int)(~ST_F32_MAG | 0x7fu << ST_CODE_SHIFT));

    if (squares)
        return _mm512_fmsub_ps(_mm512_castsi512_ps(_mm512_or_si512(code, base)), scale, zero);
    const __m512i mag = _mm512_ternarylogic_epi32(code, kept, base, 0xea); /* code & kept | base */
    const __m512i away = _mm512_ternarylogic_epi32(code, sign, _mm512_castps_si512(zero), 0xea);

    return _mm512_fmsub_ps(_mm512_castsi512_ps(mag), scale, _mm512_castsi512_ps(away));
}

/** Sixteen codes of a block whose inverse is not 0. */
static inline void vec_encode(uint8_t *codes, vf x, vf inverse, vu random, int which, bool squares)
{
    const __m512i base = _mm512_set1_epi32((int)st_code_base(squares)), bits = _mm512_castps_si512(x);
    const __m512i mag = squares ? bits : _mm512_and_si512(bits, _mm512_set1_epi32((int)ST_F32_MAG));
    const __m512 y = _mm512_fmadd_ps(_mm512_castsi512_ps(mag), inverse, _mm512_castsi512_ps(base));
    const __m512i sum = _mm512_add_epi32(_mm512_castps_si512(y), vec_random_part(random, which, ST_CODE_SHIFT));
    const __m512i code = _mm512_srli_epi32(sum, ST_CODE_SHIFT);
    const int zero = (int)(st_code_base(squares) >> ST_CODE_SHIFT);
    __m512i out; /* the base's bits above eight are cut off */

    if (squares)
        out = _mm512_max_epi32(code, _mm512_set1_epi32(zero + 1));
    else /* the base ends in 0x80 where the sign goes: code & 0x7f | sign & 0x80 */
        out = _mm512_ternarylogic_epi32(_mm512_set1_epi32(0x7f), code, _mm512_srli_epi32(bits, 24), 0xca);
    _mm_storeu_si128((__m128i *)codes, _mm512_cvtepi32_epi8(out));
}

/* NF4.  Indices are below 16. */

static inline void vec_store_u32(uint32_t *out, vu x)
{
    _mm512_storeu_si512(out, x);
}

/** table[index], of sixteen. */
static inline vf vec_pick(const float *table, vu index)
{
    return _mm512_permutexvar_ps(index, _mm512_loadu_ps(table));
}

/** code + step where x is not at most the bound. */
static inline vu vec_step_above(vu code, vf x, vf bound, uint32_t step)
{
    return _mm512_mask_add_epi32(code, _mm512_cmp_ps_mask(x, bound, _CMP_NLE_UQ), code, vec_splat_u32(step));
}

/** Sixteen indices of four bits, the high half of a byte first. */
static inline vu vec_nibbles(const uint8_t *in)
{
    int low, high;

    memcpy(&low, in, sizeof(low));
    memcpy(&high, in + 4, sizeof(high));
    const __m512i all = _mm512_inserti32x8(_mm512_set1_epi32(low), _mm256_set1_epi32(high), 1);
    const __m512i shift = _mm512_set_epi32(24, 28, 16, 20, 8, 12, 0, 4, 24, 28, 16, 20, 8, 12, 0, 4);

    return _mm512_and_si512(_mm512_srlv_epi32(all, shift), vec_splat_u32(15));
}

/** Eight sums in double: lane j has the elements whose index is j mod 8. */
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

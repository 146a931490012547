/* kernels/isa/avx2.h - eight elements at a time, only for the *_avx2.c files (they get -mavx2 -mfma -mf16c).
 *
 * This file, avx512.h and neon.h define the same names in their own instructions, for the *_vector.inc files: VEC_LANES,
 * VEC_KERNEL(), vf, vh and the vec_ functions. */
#ifndef KERNELS_ISA_AVX2_H
#define KERNELS_ISA_AVX2_H

#include "kernels/isa/scalar.h"
#include "kernels/isa/stream.h"
#include <immintrin.h>

#define VEC_LANES        8u
#define VEC_KERNEL(name) name##_avx2 /* as isa.h declares it */
#define STEP_VECS        2u          /* vectors that vec_store_split() takes */
#define STEP_ELEMS       (STEP_VECS * VEC_LANES)

typedef __m256 vf;  /* floats */
typedef __m128i vh; /* as many bf16, fp16 or 16-bit integers */
typedef __m256i vu; /* as many 32-bit integers */

static inline vf vec_splat(float x)
{
    return _mm256_set1_ps(x);
}

static inline vf vec_load(const float *in)
{
    return _mm256_loadu_ps(in);
}

static inline void vec_store(float *out, vf x)
{
    _mm256_storeu_ps(out, x);
}

static inline vf vec_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

static inline vf vec_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

static inline vf vec_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}

static inline vf vec_sqrt(vf x)
{
    return _mm256_sqrt_ps(x);
}

/** a b + c, rounded once. */
static inline vf vec_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

/** a b - c, rounded once. */
static inline vf vec_fms(vf a, vf b, vf c)
{
    return _mm256_fmsub_ps(a, b, c);
}

/** x with every NaN as 0x7fc00000. */
static inline vf vec_canonical(vf x)
{
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32((int)ST_F32_NAN));

    return _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

/** |x| with the sign of c; 0 where c is 0 of either sign, NaN where c is NaN. */
static inline vf vec_sign_of(vf x, vf c)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const __m256 signed_x = _mm256_or_ps(_mm256_andnot_ps(sign, x), _mm256_and_ps(sign, c));
    const __m256 nonzero = _mm256_and_ps(signed_x, _mm256_cmp_ps(c, _mm256_setzero_ps(), _CMP_NEQ_UQ));

    return _mm256_blendv_ps(nonzero, c, _mm256_cmp_ps(c, c, _CMP_UNORD_Q));
}

/** Whether any magnitude is at least the float with the bits `limit`; NaN is above everything. */
static inline bool vec_any_from(vf x, uint32_t limit)
{
    const __m256i mag = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32((int)ST_F32_MAG));

    return _mm256_movemask_epi8(_mm256_cmpgt_epi32(mag, _mm256_set1_epi32((int)(limit - 1u)))) != 0;
}

/** One bit per element that is infinite or NaN. */
static inline unsigned vec_nonfinite_mask(vf x)
{
    const __m256i exponent = _mm256_set1_epi32((int)ST_F32_INF);
    const __m256i masked = _mm256_and_si256(_mm256_castps_si256(x), exponent);

    return (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(masked, exponent)));
}

/** Eight 32-bit lanes that hold 0..65535, as 16-bit elements in order. */
static inline vh vec_narrow(__m256i x)
{
    return _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}

/** Eight bf16, widened exactly. */
static inline vf vec_widen_bf16(vh x)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}

/** Eight bf16: nearest, ties to even; NaN: 0x7fc0. */
static inline vh vec_round_bf16(vf x)
{
    const __m256i bits = _mm256_castps_si256(vec_canonical(x)); /* the addition below leaves 0x7fc00000 a NaN */
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));

    return vec_narrow(_mm256_srli_epi32(_mm256_add_epi32(bits, up), 16));
}

/** Eight fp16: nearest, ties to even; NaN: 0x7e00. */
static inline vh vec_round_f16(vf x)
{
    return _mm256_cvtps_ph(vec_canonical(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/** Eight fp16, widened exactly; NaN stays some NaN. */
static inline vf vec_widen_f16(vh x)
{
    return _mm256_cvtph_ps(x);
}

static inline vh vec_load_u16(const void *in)
{
    return _mm_loadu_si128((const __m128i *)in);
}

static inline void vec_store_u16(void *out, vh x)
{
    _mm_storeu_si128((__m128i *)out, x);
}

/** Store past the caches; `out` aligned to 16 bytes.  Call vec_stream_end() before other threads read it. */
static inline void vec_stream_u16(void *out, vh x)
{
    _mm_stream_si128((__m128i *)out, x);
}

static inline void vec_stream_end(void)
{
    _mm_sfence();
}

/** Masters of eight split elements. */
static inline vf vec_join(vh weight, vh low_half)
{
    const __m256i high = _mm256_slli_epi32(_mm256_cvtepu16_epi32(weight), 16);

    return _mm256_castsi256_ps(_mm256_add_epi32(high, _mm256_cvtepi16_epi32(low_half)));
}

/** bf16 weights of eight masters that hold no NaN but 0x7fc00000: nearest, ties away from zero. */
static inline vh vec_split_weight(vf p)
{
    const __m256i up = _mm256_add_epi32(_mm256_castps_si256(p), _mm256_set1_epi32(0x8000));

    return vec_narrow(_mm256_srli_epi32(up, 16));
}

/** Sixteen 32-bit lanes that hold 0..65535, low then high, as 16-bit elements in order. */
static inline void vec_store_narrow(void *out, __m256i low, __m256i high)
{
    _mm256_storeu_si256((__m256i *)out, _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8));
}

/** Split sixteen masters that hold no NaN but 0x7fc00000. */
static inline void vec_store_split(uint16_t *weight, int16_t *low_half, const vf p[STEP_VECS])
{
    const __m256i up = _mm256_set1_epi32(0x8000), rest = _mm256_set1_epi32(0xffff);
    const __m256i l = _mm256_castps_si256(p[0]), h = _mm256_castps_si256(p[1]);

    vec_store_narrow(weight, _mm256_srli_epi32(_mm256_add_epi32(l, up), 16), _mm256_srli_epi32(_mm256_add_epi32(h, up), 16));
    vec_store_narrow(low_half, _mm256_and_si256(l, rest), _mm256_and_si256(h, rest));
}

/* Stochastic rounding and 8-bit codes, as scalar.h defines them.  `which` and `squares` are constants at every call. */

static inline vu vec_splat_u32(uint32_t x)
{
    return _mm256_set1_epi32((int)x);
}

/** Each lane's index and `first`. */
static inline vu vec_count_from(uint32_t first)
{
    return _mm256_add_epi32(vec_splat_u32(first), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
}

static inline vu vec_add_u32(vu a, uint32_t b)
{
    return _mm256_add_epi32(a, vec_splat_u32(b));
}

/** st_rounding_bits(), given position + the key's low half, and the key that is added between the multiplications. */
static inline vu vec_random(vu counter, vu key)
{
    vu x = _mm256_mullo_epi32(counter, vec_splat_u32(ST_MIX_1));

    x = _mm256_add_epi32(_mm256_xor_si256(x, _mm256_srli_epi32(x, 15)), key);
    x = _mm256_mullo_epi32(x, vec_splat_u32(ST_MIX_2));
    return _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
}

static inline vu vec_random_part(vu random, int which, int width)
{
    return which == 0 ? _mm256_and_si256(random, _mm256_set1_epi32((1 << width) - 1)) : _mm256_srli_epi32(random, 32 - width);
}

/** Eight bf16, rounded stochastically; the only NaN allowed is 0x7fc00000. */
static inline vh vec_round_random(vf x, vu random, int which)
{
    const __m256i sum = _mm256_add_epi32(_mm256_castps_si256(x), vec_random_part(random, which, 16));

    return vec_narrow(_mm256_srli_epi32(sum, 16));
}

/** The larger of `most` and x's magnitudes, as bits; for squares, which are not negative, x's own bits. */
static inline vu vec_most(vu most, vf x, bool squares)
{
    const __m256i bits = _mm256_castps_si256(x);

    return _mm256_max_epi32(most, squares ? bits : _mm256_and_si256(bits, _mm256_set1_epi32((int)ST_F32_MAG)));
}

static inline uint32_t vec_most_of(vu most)
{
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));

    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(half);
}

/** Eight codes; zero: the base's float times the scale.  Codes are sign-extended, so that a shift moves the sign into place. */
static inline vf vec_decode(const uint8_t *codes, vf scale, vf zero, bool squares)
{
    const __m128i in = _mm_loadl_epi64((const __m128i *)codes);
    const __m256i code = _mm256_slli_epi32(squares ? _mm256_cvtepu8_epi32(in) : _mm256_cvtepi8_epi32(in), ST_CODE_SHIFT);
    const __m256i base = _mm256_set1_epi32((int)st_code_base(squares));
    const __m256i kept = _mm256_set1_epi32((int)(~ST_F32_MAG | 0x7fu << ST_CODE_SHIFT));

    if (squares)
        return _mm256_fmsub_ps(_mm256_castsi256_ps(_mm256_or_si256(code, base)), scale, zero);
    const __m256i mag = _mm256_or_si256(_mm256_and_si256(code, kept), base);
    const __m256 sign = _mm256_and_ps(_mm256_castsi256_ps(code), _mm256_set1_ps(-0.0f));

    return _mm256_fmsub_ps(_mm256_castsi256_ps(mag), scale, _mm256_or_ps(zero, sign));
}

/** Eight codes of a block whose inverse is not 0. */
static inline void vec_encode(uint8_t *codes, vf x, vf inverse, vu random, int which, bool squares)
{
    const __m256i base = _mm256_set1_epi32((int)st_code_base(squares)), bits = _mm256_castps_si256(x);
    const __m256i mag = squares ? bits : _mm256_and_si256(bits, _mm256_set1_epi32((int)ST_F32_MAG));
    const __m256 y = _mm256_fmadd_ps(_mm256_castsi256_ps(mag), inverse, _mm256_castsi256_ps(base));
    const __m256i sum = _mm256_add_epi32(_mm256_castps_si256(y), vec_random_part(random, which, ST_CODE_SHIFT));
    __m256i code =
        _mm256_sub_epi32(_mm256_srli_epi32(sum, ST_CODE_SHIFT), _mm256_set1_epi32((int)(st_code_base(squares) >> ST_CODE_SHIFT)));

    if (squares)
        code = _mm256_max_epi32(code, _mm256_set1_epi32(1));
    else
        code = _mm256_or_si256(code, _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80)));
    const __m128i narrow = vec_narrow(code);

    _mm_storel_epi64((__m128i *)codes, _mm_packus_epi16(narrow, narrow));
}

/* NF4.  Indices are below 16. */

static inline void vec_store_u32(uint32_t *out, vu x)
{
    _mm256_storeu_si256((__m256i *)out, x);
}

/** table[index], of sixteen. */
static inline vf vec_pick(const float *table, vu index)
{
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), index);
    const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), index);

    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}

/** code + step where x is not at most the bound. */
static inline vu vec_step_above(vu code, vf x, vf bound, uint32_t step)
{
    const __m256i above = _mm256_castps_si256(_mm256_cmp_ps(x, bound, _CMP_NLE_UQ));

    return _mm256_add_epi32(code, _mm256_and_si256(above, vec_splat_u32(step)));
}

/** Eight indices of four bits, the high half of a byte first. */
static inline vu vec_nibbles(const uint8_t *in)
{
    int all;

    memcpy(&all, in, sizeof(all));
    return _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(all), _mm256_set_epi32(24, 28, 16, 20, 8, 12, 0, 4)),
                            vec_splat_u32(15));
}

/** Eight sums in double: lane j has the elements whose index is j mod 8. */
struct square_sums {
    __m256d low, high;
};

/** Squares of fp32 values are exact in double, so an fma and a multiplication with an addition round alike. */
static inline void vec_add_squares(struct square_sums *sums, vf x)
{
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x)), high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));

    sums->low = _mm256_fmadd_pd(low, low, sums->low);
    sums->high = _mm256_fmadd_pd(high, high, sums->high);
}

static inline void vec_store_sums(double out[8], const struct square_sums *sums)
{
    _mm256_storeu_pd(out, sums->low);
    _mm256_storeu_pd(out + 4, sums->high);
}

#endif

/* kernels/avx2.h - eight elements at a time, for the *_avx2.c files alone (they get -mavx2 -mfma -mf16c). */
#ifndef KERNELS_AVX2_H
#define KERNELS_AVX2_H

#include "kernels/scalar.h"
#include "kernels/stream.h"
#include <immintrin.h>

/** x with every NaN as 0x7fc00000. */
static inline __m256 st_avx2_canonical(__m256 x)
{
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32((int)ST_F32_NAN));

    return _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

/** One bit per element that is infinite or NaN. */
static inline unsigned st_avx2_nonfinite_mask(__m256 x)
{
    const __m256i exponent = _mm256_set1_epi32((int)ST_F32_INF);
    const __m256i masked = _mm256_and_si256(_mm256_castps_si256(x), exponent);

    return (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(masked, exponent)));
}

/** Eight 32-bit lanes that hold 0..65535, as 16-bit elements in order. */
static inline __m128i st_avx2_narrow(__m256i x)
{
    return _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}

/** Eight bf16, widened exactly. */
static inline __m256 st_avx2_widen_bf16(__m128i x)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}

/** Eight bf16: nearest, ties to even; NaN: 0x7fc0. */
static inline __m128i st_avx2_round_bf16(__m256 x)
{
    const __m256i bits = _mm256_castps_si256(st_avx2_canonical(x)); /* the addition below leaves 0x7fc00000 a NaN */
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));

    return st_avx2_narrow(_mm256_srli_epi32(_mm256_add_epi32(bits, up), 16));
}

/** Eight fp16: nearest, ties to even; NaN: 0x7e00. */
static inline __m128i st_avx2_round_f16(__m256 x)
{
    return _mm256_cvtps_ph(st_avx2_canonical(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/** Eight fp16, widened exactly; NaN: 0x7fc00000. */
static inline __m256 st_avx2_widen_f16(__m128i x)
{
    return st_avx2_canonical(_mm256_cvtph_ps(x));
}

static inline __m128i st_avx2_load_u16(const void *in)
{
    return _mm_loadu_si128((const __m128i *)in);
}

static inline void st_avx2_store_u16(void *out, __m128i x)
{
    _mm_storeu_si128((__m128i *)out, x);
}

/** Masters of eight split elements. */
static inline __m256 st_avx2_join(__m128i weight, __m128i residual)
{
    const __m256i high = _mm256_slli_epi32(_mm256_cvtepu16_epi32(weight), 16);

    return _mm256_castsi256_ps(_mm256_add_epi32(high, _mm256_cvtepi16_epi32(residual)));
}

/** bf16 weights of eight masters that hold no NaN but 0x7fc00000: nearest, ties away from zero. */
static inline __m128i st_avx2_split_weight(__m256 p)
{
    const __m256i up = _mm256_add_epi32(_mm256_castps_si256(p), _mm256_set1_epi32(0x8000));

    return st_avx2_narrow(_mm256_srli_epi32(up, 16));
}

/** Sixteen 32-bit lanes that hold 0..65535, low then high, as 16-bit elements in order. */
static inline void st_avx2_store_narrow(void *out, __m256i low, __m256i high)
{
    _mm256_storeu_si256((__m256i *)out, _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8));
}

/** Split sixteen masters that hold no NaN but 0x7fc00000. */
static inline void st_avx2_store_split(uint16_t *weight, int16_t *residual, __m256 low, __m256 high)
{
    const __m256i up = _mm256_set1_epi32(0x8000), rest = _mm256_set1_epi32(0xffff);
    const __m256i l = _mm256_castps_si256(low), h = _mm256_castps_si256(high);

    st_avx2_store_narrow(weight, _mm256_srli_epi32(_mm256_add_epi32(l, up), 16), _mm256_srli_epi32(_mm256_add_epi32(h, up), 16));
    st_avx2_store_narrow(residual, _mm256_and_si256(l, rest), _mm256_and_si256(h, rest));
}

/** Eight elements from index i of an array of `dtype`, widened exactly. */
static inline __m256 st_avx2_load_f32(const void *in, strata_dtype dtype, size_t i)
{
    switch (dtype) {
    case STRATA_F32:
        return _mm256_loadu_ps((const float *)in + i);
    case STRATA_BF16:
        return st_avx2_widen_bf16(st_avx2_load_u16((const uint16_t *)in + i));
    case STRATA_F16:
        return _mm256_cvtph_ps(st_avx2_load_u16((const uint16_t *)in + i));
    case STRATA_DTYPE_INVALID:
        break;
    }
    assert(false && "dtype");
    return _mm256_setzero_ps();
}

#endif

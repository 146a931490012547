/* kernels/avx512.h - sixteen elements at a time, for the *_avx512.c files alone (CMakeLists.txt has their flags).
 *
 * Casts to bf16 are integer arithmetic: VCVTNEPS2BF16 takes subnormals as zero. */
#ifndef KERNELS_AVX512_H
#define KERNELS_AVX512_H

#include "kernels/scalar.h"
#include "kernels/stream.h"
#include <immintrin.h>

/** x with every NaN as 0x7fc00000. */
static inline __m512 st_avx512_canonical(__m512 x)
{
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32((int)ST_F32_NAN));

    return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan);
}

/** One bit per element that is infinite or NaN. */
static inline __mmask16 st_avx512_nonfinite_mask(__m512 x)
{
    const __m512i exponent = _mm512_set1_epi32((int)ST_F32_INF);

    return _mm512_cmpeq_epi32_mask(_mm512_and_si512(_mm512_castps_si512(x), exponent), exponent);
}

static inline __m256i st_avx512_load_u16(const void *in)
{
    return _mm256_loadu_si256((const __m256i *)in);
}

static inline void st_avx512_store_u16(void *out, __m256i x)
{
    _mm256_storeu_si256((__m256i *)out, x);
}

/** Sixteen bf16, widened exactly. */
static inline __m512 st_avx512_widen_bf16(__m256i x)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

/** Sixteen bf16: nearest, ties to even; NaN: 0x7fc0. */
static inline __m256i st_avx512_round_bf16(__m512 x)
{
    const __m512i bits = _mm512_castps_si512(st_avx512_canonical(x)); /* the addition below leaves 0x7fc00000 a NaN */
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));

    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_add_epi32(bits, up), 16));
}

/** Sixteen fp16, widened exactly; NaN: 0x7fc00000. */
static inline __m512 st_avx512_widen_f16(__m256i x)
{
    return st_avx512_canonical(_mm512_cvtph_ps(x));
}

/** Sixteen fp16: nearest, ties to even; NaN: 0x7e00. */
static inline __m256i st_avx512_round_f16(__m512 x)
{
    return _mm512_cvtps_ph(st_avx512_canonical(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/** Masters of sixteen split elements. */
static inline __m512 st_avx512_join(__m256i weight, __m256i residual)
{
    const __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(weight), 16);

    return _mm512_castsi512_ps(_mm512_add_epi32(high, _mm512_cvtepi16_epi32(residual)));
}

/** bf16 weights of masters that hold no NaN but 0x7fc00000: nearest, ties away from zero. */
static inline __m256i st_avx512_split_weight(__m512 p)
{
    const __m512i up = _mm512_add_epi32(_mm512_castps_si512(p), _mm512_set1_epi32(0x8000));

    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
}

/** What st_avx512_split_weight() left behind. */
static inline __m256i st_avx512_split_residual(__m512 p)
{
    return _mm512_cvtepi32_epi16(_mm512_castps_si512(p));
}

/** Sixteen elements from index i of an array of `dtype`, widened exactly. */
static inline __m512 st_avx512_load_f32(const void *in, strata_dtype dtype, size_t i)
{
    switch (dtype) {
    case STRATA_F32:
        return _mm512_loadu_ps((const float *)in + i);
    case STRATA_BF16:
        return st_avx512_widen_bf16(st_avx512_load_u16((const uint16_t *)in + i));
    case STRATA_F16:
        return _mm512_cvtph_ps(st_avx512_load_u16((const uint16_t *)in + i));
    case STRATA_DTYPE_INVALID:
        break;
    }
    assert(false && "dtype");
    return _mm512_setzero_ps();
}

#endif

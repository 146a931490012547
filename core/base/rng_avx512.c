/* core/base/rng_avx512.c - normal deviates on 64-byte vectors.  Only this file gets -mavx512f; picked by rng.c. */
#include <immintrin.h>

#define RNG_BYTES          64
#define RNG_NORMAL         st_rng_normal_avx512
#define rng_mul(a, b)      ((rng_u64)_mm512_mul_epu32((__m512i)(a), (__m512i)(b)))
#define rng_sqrt(x)        ((rng_f32)_mm512_sqrt_ps((__m512)(x)))
#define rng_store(o, a, b) store_pairs(o, (__m512)(a), (__m512)(b))

static inline void store_pairs(float *out, __m512 a, __m512 b)
{
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);

    _mm512_storeu_ps(out, _mm512_permutex2var_ps(a, low, b));
    _mm512_storeu_ps(out + 16, _mm512_permutex2var_ps(a, high, b));
}

#include "core/base/rng_vector.inc"

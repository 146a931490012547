/* core/base/rng_avx2.c - normal deviates on 32-byte vectors.  Only this file gets -mavx2; picked by rng.c. */
#include <immintrin.h>

#define RNG_BYTES          32
#define RNG_NORMAL         st_rng_normal_avx2
#define rng_mul(a, b)      ((rng_u64)_mm256_mul_epu32((__m256i)(a), (__m256i)(b)))
#define rng_sqrt(x)        ((rng_f32)_mm256_sqrt_ps((__m256)(x)))
#define rng_store(o, a, b) store_pairs(o, (__m256)(a), (__m256)(b))

static inline void store_pairs(float *out, __m256 a, __m256 b)
{
    const __m256 low = _mm256_unpacklo_ps(a, b), high = _mm256_unpackhi_ps(a, b);

    _mm256_storeu_ps(out, _mm256_permute2f128_ps(low, high, 0x20));
    _mm256_storeu_ps(out + 8, _mm256_permute2f128_ps(low, high, 0x31));
}

#include "core/base/rng_vector.inc"

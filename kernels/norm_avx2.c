/* kernels/norm_avx2.c - rounding of a finished gradient with its sums of squares; bits as in norm_scalar.c.
 *
 * Squares of fp32 values are exact in double, so an fma and a multiplication with an addition round alike. */
#include "kernels/avx2.h"
#include "kernels/isa.h"

struct lanes {
    __m256d low, high; /* lanes 0..3 and 4..7 */
};

static inline void add_squares(struct lanes *lanes, __m256 x)
{
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x)), high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));

    lanes->low = _mm256_fmadd_pd(low, low, lanes->low);
    lanes->high = _mm256_fmadd_pd(high, high, lanes->high);
}

/* Write eight elements as `dtype`; returns them as rounded. */
static inline __m256 finish8(void *out, strata_dtype dtype, const float *acc, size_t i)
{
    const __m256 x = _mm256_loadu_ps(acc + i);

    switch (dtype) {
    case STRATA_F32:
        _mm256_storeu_ps((float *)out + i, x);
        return x;
    case STRATA_BF16: {
        const __m128i rounded = st_avx2_round_bf16(x);

        st_avx2_store_u16((uint16_t *)out + i, rounded);
        return st_avx2_widen_bf16(rounded);
    }
    case STRATA_F16: {
        const __m128i rounded = st_avx2_round_f16(x);

        st_avx2_store_u16((uint16_t *)out + i, rounded);
        return _mm256_cvtph_ps(rounded);
    }
    case STRATA_DTYPE_INVALID:
        break;
    }
    assert(false && "dtype");
    return x;
}

/* One whole block. */
static inline __attribute__((always_inline)) uint64_t finish_block(void *out, strata_dtype dtype, const float *acc, size_t from,
                                                                   double *sum)
{
    const size_t out_bytes = strata_dtype_bytes(dtype);
    struct lanes lanes = {_mm256_setzero_pd(), _mm256_setzero_pd()};
    uint64_t nonfinite_count = 0;
    double lane[8];

    for (size_t i = from; i < from + ST_NORM_BLOCK; i += 8) {
        if (i % ST_STREAM_TURN == 0) {
            st_stream_prefetch(acc + i, sizeof(float));
            if (dtype != STRATA_F32) /* usually in place there */
                st_stream_prefetch(st_stream_at(out, out_bytes, i), out_bytes);
        }
        const __m256 x = finish8(out, dtype, acc, i);

        add_squares(&lanes, x);
        nonfinite_count += (unsigned)__builtin_popcount(st_avx2_nonfinite_mask(x));
    }
    _mm256_storeu_pd(lane, lanes.low);
    _mm256_storeu_pd(lane + 4, lanes.high);
    *sum = st_norm_tree(lane);
    return nonfinite_count;
}

uint64_t st_grad_finish_avx2(void *out, strata_dtype dtype, const float *acc, size_t elems, double *block_sums)
{
    const size_t end = elems - elems % ST_NORM_BLOCK;
    uint64_t nonfinite_count = 0;

    for (size_t from = 0; from < end; from += ST_NORM_BLOCK) {
        double *const sum = &block_sums[from / ST_NORM_BLOCK];

        if (dtype == STRATA_BF16)
            nonfinite_count += finish_block(out, STRATA_BF16, acc, from, sum);
        else if (dtype == STRATA_F32)
            nonfinite_count += finish_block(out, STRATA_F32, acc, from, sum);
        else
            nonfinite_count += finish_block(out, STRATA_F16, acc, from, sum);
    }
    void *const rest = (char *)out + strata_dtype_bytes(dtype) * end;

    return nonfinite_count + st_grad_finish_scalar(rest, dtype, acc + end, elems - end, block_sums + end / ST_NORM_BLOCK);
}

/* kernels/norm_avx512.c - rounding of a finished gradient with its sums of squares; bits as in norm_scalar.c.
 *
 * Squares of fp32 values are exact in double, so an fma and a multiplication with an addition round alike. */
#include "kernels/avx512.h"
#include "kernels/isa.h"

/* Lanes 0..7: elements i..i+7, then i+8..i+15. */
static inline __m512d add_squares(__m512d lanes, __m512 x)
{
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x)), high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));

    return _mm512_fmadd_pd(high, high, _mm512_fmadd_pd(low, low, lanes));
}

/* Write sixteen elements as `dtype`; returns them as rounded. */
static inline __m512 finish16(void *out, strata_dtype dtype, const float *acc, size_t i)
{
    const __m512 x = _mm512_loadu_ps(acc + i);

    switch (dtype) {
    case STRATA_F32:
        _mm512_storeu_ps((float *)out + i, x);
        return x;
    case STRATA_BF16: {
        const __m256i rounded = st_avx512_round_bf16(x);

        st_avx512_store_u16((uint16_t *)out + i, rounded);
        return st_avx512_widen_bf16(rounded);
    }
    case STRATA_F16: {
        const __m256i rounded = st_avx512_round_f16(x);

        st_avx512_store_u16((uint16_t *)out + i, rounded);
        return _mm512_cvtph_ps(rounded);
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
    __m512d lanes = _mm512_setzero_pd();
    uint64_t nonfinite_count = 0;
    double lane[8];

    for (size_t i = from; i < from + ST_NORM_BLOCK; i += 16) {
        if (i % ST_STREAM_TURN == 0) {
            st_stream_prefetch(acc + i, sizeof(float));
            if (dtype != STRATA_F32) /* usually in place there */
                st_stream_prefetch(st_stream_at(out, out_bytes, i), out_bytes);
        }
        const __m512 x = finish16(out, dtype, acc, i);

        lanes = add_squares(lanes, x);
        nonfinite_count += (unsigned)__builtin_popcount(st_avx512_nonfinite_mask(x));
    }
    _mm512_storeu_pd(lane, lanes);
    *sum = st_norm_tree(lane);
    return nonfinite_count;
}

uint64_t st_grad_finish_avx512(void *out, strata_dtype dtype, const float *acc, size_t elems, double *block_sums)
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

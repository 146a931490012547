/* kernels/norm_scalar.c - rounding of a finished gradient with its sums of squares, the definition. */
#include "kernels/isa.h"
#include "kernels/scalar.h"

/* Write element i of acc as `dtype`; returns it as rounded. */
static inline float finish_element(void *out, strata_dtype dtype, const float *acc, size_t i)
{
    switch (dtype) {
    case STRATA_F32:
        ((float *)out)[i] = acc[i];
        return acc[i];
    case STRATA_BF16:
        ((uint16_t *)out)[i] = st_f32_to_bf16(acc[i]);
        return st_bf16_to_f32(((const uint16_t *)out)[i]);
    case STRATA_F16:
        ((uint16_t *)out)[i] = st_f32_to_f16(acc[i]);
        return st_f16_to_f32(((const uint16_t *)out)[i]);
    case STRATA_DTYPE_INVALID:
        break;
    }
    assert(false && "dtype");
    return 0.0f;
}

/* Elements from..to of one block. */
static uint64_t finish_block(void *out, strata_dtype dtype, const float *acc, size_t from, size_t to, double *sum)
{
    double lane[8] = {0};
    uint64_t nonfinite_count = 0;

    for (size_t i = from; i < to; i++) {
        const float x = finish_element(out, dtype, acc, i);

        lane[i % 8] += (double)x * (double)x;
        nonfinite_count += !st_f32_bits_are_finite(st_f32_bits(x));
    }
    *sum = st_norm_tree(lane);
    return nonfinite_count;
}

uint64_t st_grad_finish_scalar(void *out, strata_dtype dtype, const float *acc, size_t elems, double *block_sums)
{
    uint64_t nonfinite_count = 0;

    for (size_t from = 0; from < elems; from += ST_NORM_BLOCK) {
        const size_t to = elems - from < ST_NORM_BLOCK ? elems : from + ST_NORM_BLOCK;

        nonfinite_count += finish_block(out, dtype, acc, from, to, &block_sums[from / ST_NORM_BLOCK]);
    }
    return nonfinite_count;
}

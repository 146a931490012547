/* kernels/finish/finish_scalar.c - rounding of a finished gradient with its sums of squares, the definition. */
#include "kernels/isa/isa.h"
#include "kernels/isa/scalar.h"

/* Elements from..to of one block. */
static uint64_t finish_block(void *out, strata_dtype dtype, const float *acc, size_t from, size_t to, double *sum)
{
    double lane[8] = {0};
    uint64_t nonfinite_count = 0;

    for (size_t i = from; i < to; i++) {
        const float x = st_finish_element(out, dtype, acc, i);

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

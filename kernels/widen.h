/* kernels/widen.h - the fp32 values of weights and gradients in any format. */
#ifndef KERNELS_WIDEN_H
#define KERNELS_WIDEN_H

#include "kernels/kernels.h"

#include <assert.h>
#include <string.h>

/** out [elems] = in, exactly.  Of NF4 `in` begins with a record. */
static inline void st_widen(const struct st_kernels *kernels, float *out, const void *in, strata_dtype format, size_t elems)
{
    if (format == STRATA_BF16) {
        kernels->bf16_to_f32(out, in, elems);
    } else if (format == STRATA_F16) {
        kernels->f16_to_f32(out, in, elems);
    } else if (format == STRATA_NF4) {
        kernels->nf4_widen(out, STRATA_F32, in, elems);
    } else {
        assert(format == STRATA_F32);
        memcpy(out, in, elems * sizeof(*out));
    }
}

/** sum [elems] += in, widened exactly. */
static inline void st_widen_add(const struct st_kernels *kernels, float *sum, const void *in, strata_dtype format, size_t elems)
{
    const unsigned char *from = in;
    float wide[1024];
    size_t count;

    if (format == STRATA_F32) {
        kernels->add_f32(sum, in, elems);
        return;
    }
    for (size_t i = 0; i < elems; i += count) {
        count = elems - i < 1024 ? elems - i : 1024;
        st_widen(kernels, wide, from + i * strata_dtype_bytes(format), format, count);
        kernels->add_f32(sum + i, wide, count);
    }
}

#endif

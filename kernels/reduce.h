/* kernels/reduce.h - fp32 sums of fp32 or bf16 addends, on devices whose memory is the host's. */
#ifndef KERNELS_REDUCE_H
#define KERNELS_REDUCE_H

#include "kernels/kernels.h"

#include <assert.h>
#include <stdint.h>

#define ST_REDUCE_RUN 1024u

/** sum += addend, which is F32, or BF16 and then widened, which rounds nothing. */
static inline void st_reduce(const struct st_kernels *kernels, float *sum, const void *addend, strata_dtype dt, uint64_t elems)
{
    const uint16_t *narrow = addend;
    float wide[ST_REDUCE_RUN];

    if (dt == STRATA_F32) {
        kernels->add_f32(sum, addend, elems);
        return;
    }
    assert(dt == STRATA_BF16);
    for (uint64_t at = 0, count; at < elems; at += count) {
        count = elems - at < ST_REDUCE_RUN ? elems - at : ST_REDUCE_RUN;
        kernels->bf16_to_f32(wide, narrow + at, count);
        kernels->add_f32(sum + at, wide, count);
    }
}

#endif

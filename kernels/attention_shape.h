/* kernels/attention_shape.h - the shape of an attention call, the same for every device and its kernels. */
#ifndef KERNELS_ATTENTION_SHAPE_H
#define KERNELS_ATTENTION_SHAPE_H

#include "strata/types.h"

/* Multi-head causal attention over packed q,k,v rows. */
struct st_attention {
    uint32_t batch, seq, heads, kv_heads, head_dim;
    uint32_t qkv_stride; /* elements between rows of qkv and of dqkv; q at 0, k at heads*d, v at (heads+kv_heads)*d */
    uint32_t out_stride; /* elements between rows of out and dout */
    strata_dtype dt;
};

#endif

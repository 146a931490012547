/* model/decoder/decoder_internal.h - one call, unpacked, and functions on it for blocks and head.  Private to model/decoder/.
 *
 * Values between ops have the model's dtype (the residual stream is rounded to it); gradients of parameters are summed in fp32.
 * Backward recomputes norms, activations or whole internals with the same ops on the same operands, so kept and recomputed
 * activations give the same bits.  Gradients pass through a frozen tensor, but it gets none of its own. */
#ifndef MODEL_DECODER_DECODER_INTERNAL_H
#define MODEL_DECODER_DECODER_INTERNAL_H

#include "model/layout.h"

struct st_frame {
    const struct st_model *m;
    const struct st_call *call;
    const struct st_tensor_ops *ops;
    struct st_device *dev;
    const struct st_page *page;      /* the call's page, */
    const struct st_tensor *tensors; /* and its tensors */
    uint32_t rows;                   /* of this call */
    uint32_t seq, first;             /* positions of row r: first + r % seq */
    strata_dtype dt;
};

const void *st_frame_weight(const struct st_frame *f, uint64_t offset);
/** The gradient of a tensor; NULL if it is frozen. */
float *st_frame_grad(const struct st_frame *f, uint64_t offset);

/** y = norm(x) with the page's tensors `weight` and, for LayerNorm, `weight + 1`; fills stats. */
strata_status st_frame_norm(const struct st_frame *f, void *y, float *stats, const void *x, uint32_t weight);
/** The RMSNorm of rows of the residual stream. */
struct st_rmsnorm st_frame_rmsnorm(const struct st_frame *f);
/** dx = backward of that norm applied to dy (dtype dy_dt), plus `residual`, which may be NULL or dx. */
strata_status st_frame_norm_backward(const struct st_frame *f, void *dx, const void *dy, strata_dtype dy_dt, const void *x,
                                     const float *stats, uint32_t weight, const void *residual);

strata_status st_block_forward(const struct st_frame *f);
strata_status st_block_backward(const struct st_frame *f);

strata_status st_head_norm(const struct st_frame *f);
strata_status st_head_stats(const struct st_frame *f);
strata_status st_head_loss(const struct st_frame *f);
strata_status st_head_grad(const struct st_frame *f);
strata_status st_head_backward(const struct st_frame *f);

#endif

/* model/decoder/decoder_internal.h - one call, unpacked, and functions on it for blocks and head.  Private to model/decoder/.
 *
 * Values between ops have the model's dtype (the residual stream is rounded to it); gradients of parameters are summed in fp32.
 * Backward recomputes norms, activations or whole internals with the same ops on the same operands, so kept and recomputed
 * activations give the same bits.  Gradients pass through a frozen tensor, but it gets none itself. */
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

/** y = norm(x) with the page's tensors `weight` and, for LayerNorm, `weight + 1`; fills stats.  If sum is not NULL, x is added to
 * it first, and y = norm(sum). */
strata_status st_frame_norm(const struct st_frame *f, void *y, float *stats, const void *x, void *sum, uint32_t weight);
/** The RMSNorm of rows of the residual stream. */
struct st_rmsnorm st_frame_rmsnorm(const struct st_frame *f);
/** dx = backward of that norm applied to dy (dtype dy_dt), plus `residual`, which may be NULL or dx. */
strata_status st_frame_norm_backward(const struct st_frame *f, void *dx, const void *dy, strata_dtype dy_dt, const void *x,
                                     const float *stats, uint32_t weight, const void *residual);

/* A block call with its buffers. */
struct st_block {
    const struct st_frame *f;
    const struct st_model *m;
    const uint32_t *roles; /* of the block */
    uint32_t ffn;          /* of the feed-forward; of a sparse block that of the shared expert */
    struct st_linear qkv_layer, proj_layer, fc_layer, down_layer;
    /* values: the internals in training, scratch in generation */
    float *stats[2], *post_stats[2], *qk_stats[2], *lse;
    unsigned char *qkv, *attention, *projected, *middle, *fc, *down;
    /* workspace */
    unsigned char *narrow, *wide, *half, *attention_scratch, *widened;
    unsigned char *normed; /* the second norm's output: `narrow`, or what a sparse block keeps of it */
    float *sums, *adapted_in, *adapted_out, *adapted_rank[2];
};

/* A product with the columns of one part of a linear layer: y = x W + bias, or backward dx = dy W^T. */
struct st_linear_product {
    const struct st_linear *layer;
    const struct st_linear_part *part;
    bool backward, accumulate;
    uint32_t rows, stride;     /* stride: elements between rows of the result */
    strata_dtype dt;           /* of the result */
    enum st_epilogue epilogue; /* with `fc` as its aux */
};
strata_status st_linear_multiply(const struct st_block *b, const struct st_linear_product *p, void *to, const void *from);

/** y[rows, out] = x[rows, in] W + bias */
strata_status st_linear_forward(const struct st_block *b, const struct st_linear *l, void *y, const void *x);
/** dW += x^T dy (a first call's dW is written, st_model_written()) and dbias += column sums of dy, of what is trained. */
strata_status st_linear_backward_weight(const struct st_block *b, const struct st_linear *l, const void *x, const void *dy);
/** dx[rows, in] = dy[rows, out] W^T */
strata_status st_linear_backward_input(const struct st_block *b, const struct st_linear *l, void *dx, const void *dy);
/** Both, which is faster beside adapters: they share s dy B.  dx may be x. */
strata_status st_linear_backward(const struct st_block *b, const struct st_linear *l, void *dx, const void *x, const void *dy);
/** Whether this call computes a gradient of the layer's weights, or of its adapters'. */
bool st_linear_trains(const struct st_frame *f, const struct st_linear *l);
/** The product of a part that has adapters: y = x W + bias + s B (A x), rounded once. */
strata_status st_adapted_forward(const struct st_block *b, const struct st_linear *l, const struct st_linear_part *part, void *y,
                                 const void *x);
/** dA and dB += of all adapters of a layer. */
strata_status st_adapted_backward_weight(const struct st_block *b, const struct st_linear *l, const void *x, const void *dy);
/** dx = dy W^T + s (dy B) A, rounded once; with x, which may be dx if st_adapted_backward_at_once() then, dA and dB, too. */
strata_status st_adapted_backward_input(const struct st_block *b, const struct st_linear *l, void *dx, const void *x,
                                        const void *dy);
bool st_adapted_backward_at_once(const struct st_block *b, const struct st_linear *l);
/** Column `first` of the first row. */
void *st_column(void *rows, uint32_t first, strata_dtype dt);
const void *st_const_column(const void *rows, uint32_t first, strata_dtype dt);

strata_status st_block_forward(const struct st_frame *f);
strata_status st_block_backward(const struct st_frame *f);
/* Parts of both, of which sparse blocks are made, too. */
struct st_block st_block_of(const struct st_frame *f);
/** The values up to `middle`, which has the block's input added; *x: the input of the feed-forward. */
strata_status st_block_middle(const struct st_block *b, const void **x);
/** `fc`, of that input, for the activation after it; then st_block_activate() gives *y. */
strata_status st_block_fc(const struct st_block *b, const void *x, enum st_epilogue gelu);
strata_status st_block_activate(const struct st_block *b, const void **y);
/** wide = gradient of `fc` from that of the gated feed-forward's output; that of the layer behind it. */
strata_status st_block_gated_backward(const struct st_block *b, const void *dy);
/** dact += gradient of `middle` from that in `narrow` of the feed-forward's input. */
strata_status st_block_normed_backward(const struct st_block *b);
/** dact: gradient of `middle` in, of the block's input out. */
strata_status st_block_middle_backward(const struct st_block *b);

/* The first of two layers of a slice's experts, gate and up, or the second. */
struct st_expert_layer {
    const struct st_frame *f;
    struct st_experts of;
    const int32_t *offsets;
    uint32_t in, out;
    uint64_t at, bias_at;                /* the first expert's; elements from the page's start */
    uint64_t weight_stride, bias_stride; /* from one expert to the next */
    bool turned;                         /* matrices are [in, out] */
    bool bias;
    const void *weights; /* of the first expert, in the model's dtype */
    struct st_linear_adapter adapters[ST_EXPERT_ADAPTERS];
    uint32_t adapter_count;
    uint64_t stride;                   /* of adapters */
    float *wide_in, *wide_out, *ranks; /* as st_slice_workspace has them */
};
/** to = from W^T + bias of each expert's rows, or backward from W. */
strata_status st_expert_multiply(const struct st_expert_layer *l, bool backward, void *to, strata_dtype dt, const void *from);
/** y = x W + s B (A x), rounded once, of each expert's rows. */
strata_status st_expert_adapted_forward(const struct st_expert_layer *l, void *y, const void *x);
/** dA and dB += (a first call's are written), and dx = dy W^T + s (dy B) A, rounded once.  dx may be x. */
strata_status st_expert_adapted_backward(const struct st_expert_layer *l, void *dx, const void *dy, const void *x);

/** Calls of a sparse block (ST_CALL_ROUTE_FORWARD and on). */
strata_status st_experts_run(const struct st_frame *f);
/** The auxiliary loss of what they have counted, if they count. */
strata_status st_experts_loss(const struct st_frame *f);

strata_status st_head_norm(const struct st_frame *f);
strata_status st_head_stats(const struct st_frame *f);
strata_status st_head_loss(const struct st_frame *f);
strata_status st_head_grad(const struct st_frame *f);
strata_status st_head_backward(const struct st_frame *f);

#endif

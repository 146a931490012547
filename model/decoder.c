/* model/decoder.c - GPT-2's layers as sequences of device ops.
 *
 * Pre-LayerNorm blocks: middle = x + proj(attention(ln_1 x)); y = middle + out(gelu(fc(ln_2 middle))).  Matrices are
 * stored [in, out].  Values between ops have the model's dtype (the residual stream is rounded to it); gradients of
 * parameters add up in fp32.  What backward makes again (norms, GELU, whole internals) comes from the same ops on the
 * same operands, so kept and recomputed activations give the same bits. */
#include "core/error.h"
#include "model/layout.h"
#include <assert.h>

/* One call, unpacked. */
struct frame {
    const struct st_model *m;
    const struct st_call *call;
    const struct st_device_ops *ops;
    struct st_device *dev;
    const struct st_tensor *tensors; /* of the call's page */
    unsigned char *internals, *workspace;
    uint32_t rows, hidden, ffn;
    strata_dtype dt;
};

static struct frame frame_of(const struct st_model *m, const struct st_call *call, uint32_t page)
{
    uint32_t first, count;

    st_model_page_tensors(m, page, &first, &count);
    return (struct frame){
        .m = m,
        .call = call,
        .ops = call->device->ops,
        .dev = call->device,
        .tensors = &m->tensors[first],
        .internals = call->internals,
        .workspace = call->workspace,
        .rows = m->batch.micro_batch * m->batch.seq,
        .hidden = m->config.hidden,
        .ffn = m->config.ffn,
        .dt = m->batch.dtype,
    };
}

static const void *weight_at(const struct frame *f, uint32_t tensor)
{
    return (const unsigned char *)f->call->weight + f->tensors[tensor].offset * strata_dtype_bytes(f->dt);
}

static float *grad_at(const struct frame *f, uint32_t tensor)
{
    return f->call->grad + f->tensors[tensor].offset;
}

/* y[rows, out] = x[rows, in] W[in, out] + bias */
static strata_status linear_forward(const struct frame *f, void *y, const void *x, uint32_t weight, uint32_t bias)
{
    const uint32_t in = (uint32_t)f->tensors[weight].shape[0], out = (uint32_t)f->tensors[weight].shape[1];
    const struct st_matmul mm = {
        .m = f->rows,
        .n = out,
        .k = in,
        .lda = in,
        .ldb = out,
        .ldc = out,
        .bias = true,
        .ab_dtype = f->dt,
        .c_dtype = f->dt,
    };

    return f->ops->matmul(f->dev, &mm, y, x, weight_at(f, weight), weight_at(f, bias));
}

/* dW += x^T dy; dbias += column sums of dy */
static strata_status linear_backward_weight(const struct frame *f, const void *x, const void *dy, uint32_t weight, uint32_t bias)
{
    const uint32_t in = (uint32_t)f->tensors[weight].shape[0], out = (uint32_t)f->tensors[weight].shape[1];
    const struct st_matmul mm = {
        .m = in,
        .n = out,
        .k = f->rows,
        .lda = in,
        .ldb = out,
        .ldc = out,
        .trans_a = true,
        .accumulate = true,
        .ab_dtype = f->dt,
        .c_dtype = STRATA_F32,
    };
    strata_status st;

    if ((st = f->ops->matmul(f->dev, &mm, grad_at(f, weight), x, dy, NULL)) != STRATA_OK)
        return st;
    return f->ops->bias_backward(f->dev, grad_at(f, bias), dy, f->rows, out, f->dt);
}

/* dx[rows, in] = dy[rows, out] W^T */
static strata_status linear_backward_input(const struct frame *f, void *dx, const void *dy, uint32_t weight)
{
    const uint32_t in = (uint32_t)f->tensors[weight].shape[0], out = (uint32_t)f->tensors[weight].shape[1];
    const struct st_matmul mm = {
        .m = f->rows,
        .n = in,
        .k = out,
        .lda = out,
        .ldb = out,
        .ldc = in,
        .trans_b = true,
        .ab_dtype = f->dt,
        .c_dtype = f->dt,
    };

    return f->ops->matmul(f->dev, &mm, dx, dy, weight_at(f, weight), NULL);
}

static strata_status norm_forward(const struct frame *f, void *y, uint64_t stats, const void *x, uint32_t weight, uint32_t bias)
{
    return f->ops->layernorm_forward(f->dev, y, (float *)(f->internals + stats), x, weight_at(f, weight), weight_at(f, bias),
                                     f->rows, f->hidden, f->m->config.norm_eps, f->dt);
}

/* dact = residual gradient dact + backward of the norm applied to dy */
static strata_status norm_backward(const struct frame *f, const void *dy, const void *x, uint64_t stats, uint32_t weight,
                                   uint32_t bias)
{
    return f->ops->layernorm_backward(f->dev, f->call->dact, grad_at(f, weight), grad_at(f, bias), dy, f->dt, x,
                                      (const float *)(f->internals + stats), weight_at(f, weight), f->call->dact, f->rows,
                                      f->hidden, f->dt);
}

/* Fill the internals from the block's input: everything up to the value before the GELU. */
static strata_status block_fill(const struct frame *f)
{
    const struct st_block_internals in = st_block_internals_layout(f->m);
    const struct st_block_workspace ws = st_block_workspace_layout(f->m);
    unsigned char *narrow = f->workspace + ws.narrow, *middle = f->internals + in.middle;
    const uint64_t elems = (uint64_t)f->rows * f->hidden;
    strata_status st;

    if ((st = norm_forward(f, narrow, in.stats1, f->call->act, ST_BLOCK_LN1_WEIGHT, ST_BLOCK_LN1_BIAS)) != STRATA_OK ||
        (st = linear_forward(f, f->internals + in.qkv, narrow, ST_BLOCK_QKV_WEIGHT, ST_BLOCK_QKV_BIAS)) != STRATA_OK ||
        (st = f->ops->attention_forward(f->dev, &f->m->attention, f->internals + in.attention, (float *)(f->internals + in.lse),
                                        f->internals + in.qkv, f->workspace + ws.attention)) != STRATA_OK ||
        (st = linear_forward(f, middle, f->internals + in.attention, ST_BLOCK_PROJ_WEIGHT, ST_BLOCK_PROJ_BIAS)) != STRATA_OK ||
        (st = f->ops->add(f->dev, middle, f->call->act, middle, elems, f->dt)) != STRATA_OK ||
        (st = norm_forward(f, narrow, in.stats2, middle, ST_BLOCK_LN2_WEIGHT, ST_BLOCK_LN2_BIAS)) != STRATA_OK)
        return st;
    return linear_forward(f, f->internals + in.fc, narrow, ST_BLOCK_FC_WEIGHT, ST_BLOCK_FC_BIAS);
}

static strata_status block_forward(const struct frame *f)
{
    const struct st_block_internals in = st_block_internals_layout(f->m);
    unsigned char *wide = f->workspace + st_block_workspace_layout(f->m).wide;
    void *out = f->call->act_out;
    strata_status st;

    if ((st = block_fill(f)) != STRATA_OK ||
        (st = f->ops->gelu_forward(f->dev, wide, f->internals + in.fc, (uint64_t)f->rows * f->ffn, f->dt)) != STRATA_OK ||
        (st = linear_forward(f, out, wide, ST_BLOCK_OUT_WEIGHT, ST_BLOCK_OUT_BIAS)) != STRATA_OK)
        return st;
    return f->ops->add(f->dev, out, f->internals + in.middle, out, (uint64_t)f->rows * f->hidden, f->dt);
}

/* dact: gradient of the block's output in, of `middle` out. */
static strata_status mlp_backward(const struct frame *f)
{
    const struct st_block_internals in = st_block_internals_layout(f->m);
    const struct st_block_workspace ws = st_block_workspace_layout(f->m);
    unsigned char *narrow = f->workspace + ws.narrow, *wide = f->workspace + ws.wide;
    unsigned char *fc = f->internals + in.fc, *middle = f->internals + in.middle;
    const uint64_t elems = (uint64_t)f->rows * f->ffn;
    void *dact = f->call->dact;
    strata_status st;

    if ((st = f->ops->gelu_forward(f->dev, wide, fc, elems, f->dt)) != STRATA_OK ||
        (st = linear_backward_weight(f, wide, dact, ST_BLOCK_OUT_WEIGHT, ST_BLOCK_OUT_BIAS)) != STRATA_OK ||
        (st = linear_backward_input(f, wide, dact, ST_BLOCK_OUT_WEIGHT)) != STRATA_OK ||
        (st = f->ops->gelu_backward(f->dev, wide, wide, fc, elems, f->dt)) != STRATA_OK ||
        (st = norm_forward(f, narrow, in.stats2, middle, ST_BLOCK_LN2_WEIGHT, ST_BLOCK_LN2_BIAS)) != STRATA_OK ||
        (st = linear_backward_weight(f, narrow, wide, ST_BLOCK_FC_WEIGHT, ST_BLOCK_FC_BIAS)) != STRATA_OK ||
        (st = linear_backward_input(f, narrow, wide, ST_BLOCK_FC_WEIGHT)) != STRATA_OK)
        return st;
    return norm_backward(f, narrow, middle, in.stats2, ST_BLOCK_LN2_WEIGHT, ST_BLOCK_LN2_BIAS);
}

/* dact: gradient of `middle` in, of the block's input out. */
static strata_status attention_backward(const struct frame *f)
{
    const struct st_block_internals in = st_block_internals_layout(f->m);
    const struct st_block_workspace ws = st_block_workspace_layout(f->m);
    unsigned char *narrow = f->workspace + ws.narrow, *dqkv = f->workspace + ws.wide;
    unsigned char *attention = f->internals + in.attention;
    void *dact = f->call->dact;
    strata_status st;

    if ((st = linear_backward_weight(f, attention, dact, ST_BLOCK_PROJ_WEIGHT, ST_BLOCK_PROJ_BIAS)) != STRATA_OK ||
        (st = linear_backward_input(f, narrow, dact, ST_BLOCK_PROJ_WEIGHT)) != STRATA_OK ||
        (st =
             f->ops->attention_backward(f->dev, &f->m->attention, dqkv, narrow, attention, (const float *)(f->internals + in.lse),
                                        f->internals + in.qkv, f->workspace + ws.attention)) != STRATA_OK ||
        (st = norm_forward(f, narrow, in.stats1, f->call->act, ST_BLOCK_LN1_WEIGHT, ST_BLOCK_LN1_BIAS)) != STRATA_OK ||
        (st = linear_backward_weight(f, narrow, dqkv, ST_BLOCK_QKV_WEIGHT, ST_BLOCK_QKV_BIAS)) != STRATA_OK ||
        (st = linear_backward_input(f, narrow, dqkv, ST_BLOCK_QKV_WEIGHT)) != STRATA_OK)
        return st;
    return norm_backward(f, narrow, f->call->act, in.stats1, ST_BLOCK_LN1_WEIGHT, ST_BLOCK_LN1_BIAS);
}

static strata_status block_backward(const struct frame *f)
{
    strata_status st;

    if (f->call->recompute && (st = block_fill(f)) != STRATA_OK)
        return st;
    if ((st = mlp_backward(f)) != STRATA_OK)
        return st;
    return attention_backward(f);
}

static strata_status head_norm(const struct frame *f)
{
    const struct st_head_internals in = st_head_internals_layout(f->m);
    strata_status st;

    if ((st = norm_forward(f, f->internals + in.normalised, in.stats, f->call->act, 0, 1)) != STRATA_OK)
        return st;
    return f->ops->zero(f->dev, f->internals + in.gradient, (uint64_t)f->rows * f->hidden * sizeof(float));
}

static strata_status head_backward(const struct frame *f)
{
    const struct st_head_internals in = st_head_internals_layout(f->m);

    return f->ops->layernorm_backward(f->dev, f->call->dact, grad_at(f, 0), grad_at(f, 1), f->internals + in.gradient, STRATA_F32,
                                      f->call->act, (const float *)(f->internals + in.stats), weight_at(f, 0), NULL, f->rows,
                                      f->hidden, f->dt);
}

/* A run of rows against one tile of the vocabulary. */
struct head_part {
    uint32_t row, rows;          /* of the micro-batch */
    uint32_t vocab_first, vocab; /* of the table */
    unsigned char *normalised;   /* [rows, hidden] */
    float *gradient;             /* [rows, hidden] */
    float *xent;                 /* [rows][3] */
    float *logits;               /* [rows, vocab] */
    unsigned char *dlogits;      /* [rows, vocab] */
};

static struct head_part head_part_at(const struct frame *f, uint32_t row)
{
    const struct st_head_internals in = st_head_internals_layout(f->m);
    const struct st_head_workspace ws = st_head_workspace_layout(f->m);
    const struct st_page *page = &f->m->workload.pages[f->m->workload.head_first + f->call->tile];
    const uint64_t elem = (uint64_t)row * f->hidden;

    return (struct head_part){
        .row = row,
        .rows = f->rows - row < ST_HEAD_ROWS ? f->rows - row : ST_HEAD_ROWS,
        .vocab_first = page->row_first,
        .vocab = page->row_count,
        .normalised = f->internals + in.normalised + elem * strata_dtype_bytes(f->dt),
        .gradient = (float *)(f->internals + in.gradient) + elem,
        .xent = (float *)(f->internals + in.xent) + (uint64_t)row * 3,
        .logits = (float *)(f->workspace + ws.logits),
        .dlogits = f->workspace + ws.dlogits,
    };
}

/* logits = normalised tile^T, fp32 */
static strata_status head_logits(const struct frame *f, const struct head_part *p)
{
    const struct st_matmul mm = {
        .m = p->rows,
        .n = p->vocab,
        .k = f->hidden,
        .lda = f->hidden,
        .ldb = f->hidden,
        .ldc = p->vocab,
        .trans_b = true,
        .ab_dtype = f->dt,
        .c_dtype = STRATA_F32,
    };

    return f->ops->matmul(f->dev, &mm, p->logits, p->normalised, f->call->weight, NULL);
}

/* gradient += dlogits tile; grad of the tile += dlogits^T normalised */
static strata_status head_products(const struct frame *f, const struct head_part *p)
{
    const struct st_matmul input = {
        .m = p->rows,
        .n = f->hidden,
        .k = p->vocab,
        .lda = p->vocab,
        .ldb = f->hidden,
        .ldc = f->hidden,
        .accumulate = true,
        .ab_dtype = f->dt,
        .c_dtype = STRATA_F32,
    };
    const struct st_matmul weight = {
        .m = p->vocab,
        .n = f->hidden,
        .k = p->rows,
        .lda = p->vocab,
        .ldb = f->hidden,
        .ldc = f->hidden,
        .trans_a = true,
        .accumulate = true,
        .ab_dtype = f->dt,
        .c_dtype = STRATA_F32,
    };
    strata_status st;

    if ((st = f->ops->matmul(f->dev, &input, p->gradient, p->dlogits, f->call->weight, NULL)) != STRATA_OK)
        return st;
    return f->ops->matmul(f->dev, &weight, f->call->grad, p->dlogits, p->normalised, NULL);
}

static strata_status head_stats(const struct frame *f)
{
    strata_status st = STRATA_OK;

    for (uint32_t row = 0; row < f->rows && st == STRATA_OK; row += ST_HEAD_ROWS) {
        const struct head_part p = head_part_at(f, row);

        if ((st = head_logits(f, &p)) == STRATA_OK)
            st = f->ops->xent_stats(f->dev, p.xent, p.logits, f->call->targets + row, p.rows, p.vocab, p.vocab_first);
    }
    return st;
}

static strata_status head_grad(const struct frame *f)
{
    strata_status st = STRATA_OK;

    for (uint32_t row = 0; row < f->rows && st == STRATA_OK; row += ST_HEAD_ROWS) {
        const struct head_part p = head_part_at(f, row);

        if ((st = head_logits(f, &p)) == STRATA_OK &&
            (st = f->ops->xent_grad(f->dev, p.dlogits, p.logits, p.xent, f->call->targets + row, p.rows, p.vocab, p.vocab_first,
                                    f->call->loss_gradient, f->dt)) == STRATA_OK)
            st = head_products(f, &p);
    }
    return st;
}

static strata_status head_loss(const struct frame *f)
{
    const struct st_head_internals in = st_head_internals_layout(f->m);

    return f->ops->xent_loss(f->dev, f->call->loss_sum, (const float *)(f->internals + in.xent), f->call->targets, f->rows);
}

static strata_status embed_forward(const struct frame *f)
{
    void *act = (void *)(uintptr_t)f->call->act; /* in and out for this call */

    return f->ops->embed_add_position(f->dev, act, f->call->weight, f->rows, f->m->batch.seq, f->hidden, f->dt);
}

static strata_status embed_backward(const struct frame *f)
{
    return f->ops->embed_position_backward(f->dev, f->call->grad, f->call->dact, f->rows, f->m->batch.seq, f->hidden, f->dt);
}

static uint32_t page_of(const struct st_model *m, const struct st_call *call)
{
    const struct st_workload *w = &m->workload;

    switch (call->kind) {
    case ST_CALL_EMBED_FORWARD:
    case ST_CALL_EMBED_BACKWARD:
        return w->position_page;
    case ST_CALL_BLOCK_FORWARD:
    case ST_CALL_BLOCK_BACKWARD:
        assert(call->block < w->block_count);
        return w->block_first + call->block;
    case ST_CALL_HEAD_STATS:
    case ST_CALL_HEAD_GRAD:
        assert(call->tile < w->head_count);
        return w->head_first + call->tile;
    case ST_CALL_HEAD_NORM:
    case ST_CALL_HEAD_LOSS:
    case ST_CALL_HEAD_BACKWARD:
        break;
    }
    return w->norm_page;
}

strata_status st_decoder_run(void *model, const struct st_call *call)
{
    const struct st_model *m = model;
    const struct frame f = frame_of(m, call, page_of(m, call));

    switch (call->kind) {
    case ST_CALL_EMBED_FORWARD:
        return embed_forward(&f);
    case ST_CALL_EMBED_BACKWARD:
        return embed_backward(&f);
    case ST_CALL_BLOCK_FORWARD:
        return block_forward(&f);
    case ST_CALL_BLOCK_BACKWARD:
        return block_backward(&f);
    case ST_CALL_HEAD_NORM:
        return head_norm(&f);
    case ST_CALL_HEAD_STATS:
        return head_stats(&f);
    case ST_CALL_HEAD_LOSS:
        return head_loss(&f);
    case ST_CALL_HEAD_GRAD:
        return head_grad(&f);
    case ST_CALL_HEAD_BACKWARD:
        return head_backward(&f);
    }
    return st_error(STRATA_E_INTERNAL, "decoder: no such call (%d)", (int)call->kind);
}

/* model/decoder/decoder_block.c - a transformer block, forward and backward.
 *
 * middle = x + proj(attention(norm_1 x)); y = middle + down(activation(fc(norm_2 middle))).  GPT-2: LayerNorm, GELU,
 * biases, matrices [in, out].  Llama: RMSNorm, rotated queries and keys, SwiGLU over gate and up, matrices [out, in].
 *
 * GELU is an epilogue of the matmul before it, and its backward is an epilogue of the backward matmul before that.  The output of
 * a fused GELU may differ from what backward recomputes from `fc`, so backward always recomputes it: kept and recomputed values
 * then give the same bits. */
#include "model/decoder/decoder_internal.h"

/* A block call with its buffers. */
struct block {
    const struct st_frame *f;
    const struct st_model *m;
    struct st_linear qkv_layer, proj_layer, fc_layer, down_layer;
    /* values: the internals in training, scratch in generation */
    float *stats[2], *lse;
    unsigned char *qkv, *attention, *middle, *fc;
    /* workspace */
    unsigned char *narrow, *wide, *half, *attention_scratch;
    float *sums;
};

static struct block block_of(const struct st_frame *f)
{
    const struct st_model *m = f->m;
    const struct st_block_values in = st_block_values_layout(m);
    const struct st_block_workspace ws = st_block_workspace_layout(m);
    unsigned char *workspace = f->call->workspace;
    unsigned char *values = m->batch.generate ? workspace + ws.values : f->call->internals;

    return (struct block){
        .f = f,
        .m = m,
        .qkv_layer = st_block_linear(m, f->call->block, ST_LINEAR_QKV),
        .proj_layer = st_block_linear(m, f->call->block, ST_LINEAR_PROJ),
        .fc_layer = st_block_linear(m, f->call->block, ST_LINEAR_FC),
        .down_layer = st_block_linear(m, f->call->block, ST_LINEAR_DOWN),
        .stats = {(float *)(values + in.stats[0]), (float *)(values + in.stats[1])},
        .lse = (float *)(values + in.lse),
        .qkv = values + in.qkv,
        .attention = values + in.attention,
        .middle = values + in.middle,
        .fc = values + in.fc,
        .narrow = workspace + ws.narrow,
        .wide = workspace + ws.wide,
        .half = workspace + ws.half,
        .attention_scratch = workspace + ws.attention,
        .sums = (float *)(workspace + ws.sums),
    };
}

/* --- linear layers --- */

static void *column(void *rows, uint32_t first, strata_dtype dt)
{
    return (unsigned char *)rows + first * strata_dtype_bytes(dt);
}

static const void *const_column(const void *rows, uint32_t first, strata_dtype dt)
{
    return (const unsigned char *)rows + first * strata_dtype_bytes(dt);
}

/* y = x W + bias, or dx = dy W^T, with the columns of one part; `fc` is the epilogue's aux. */
static strata_status part_multiply(const struct block *b, const struct st_linear *l, const struct st_linear_part *part,
                                   bool backward, void *to, const void *from, enum st_epilogue epilogue)
{
    const struct st_frame *f = b->f;
    const bool out_in = b->m->config.out_in, bias = l->bias && !backward;
    const struct st_matmul mm = {
        .m = f->rows,
        .n = backward ? l->in : part->count,
        .k = backward ? part->count : l->in,
        .lda = backward ? l->out : l->in,
        .ldb = out_in ? l->in : l->out,
        .ldc = backward ? l->in : l->out,
        .trans_b = out_in != backward,
        .bias = bias,
        .ab_dtype = f->dt,
        .c_dtype = f->dt,
        .epilogue = epilogue,
        .aux = epilogue != ST_EPILOGUE_NONE ? b->fc : NULL,
    };

    return f->ops->matmul(f->dev, &mm, to, from, st_frame_weight(f, part->weight), bias ? st_frame_weight(f, part->bias) : NULL);
}

/* y[rows, out] = x[rows, in] W + bias, part by part */
static strata_status linear_forward(const struct block *b, const struct st_linear *l, void *y, const void *x)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < l->part_count && st == STRATA_OK; i++)
        st = part_multiply(b, l, &l->parts[i], false, column(y, l->parts[i].first, b->f->dt), x, ST_EPILOGUE_NONE);
    return st;
}

/* dW += x^T dy, or its transpose where matrices are [out, in]; only for what is trained: the whole part or, if it has several
 * such matrices, the first rows */
static strata_status part_backward_weight(const struct block *b, const struct st_linear *l, const struct st_linear_part *part,
                                          const void *x, const void *dy)
{
    const struct st_frame *f = b->f;
    const bool out_in = b->m->config.out_in;
    const void *dy_part = const_column(dy, part->first, f->dt);
    const struct st_matmul mm = {
        .m = out_in ? part->trained : l->in,
        .n = out_in ? l->in : part->trained,
        .k = f->rows,
        .lda = out_in ? l->out : l->in,
        .ldb = out_in ? l->in : l->out,
        .ldc = out_in ? l->in : l->out,
        .trans_a = true,
        .accumulate = true,
        .ab_dtype = f->dt,
        .c_dtype = STRATA_F32,
    };

    if (part->trained == 0)
        return STRATA_OK;
    return f->ops->matmul(f->dev, &mm, st_frame_grad(f, part->weight), out_in ? dy_part : x, out_in ? x : dy_part, NULL);
}

/* dbias += column sums of dy; parts go through `sums`. */
static strata_status linear_backward_bias(const struct block *b, const struct st_linear *l, const void *dy)
{
    const struct st_frame *f = b->f;
    uint32_t trained = 0;
    strata_status st;

    for (uint32_t i = 0; i < l->part_count; i++)
        trained += l->parts[i].trained_biases;
    if (trained == 0)
        return STRATA_OK;
    if (l->part_count == 1 && trained == l->out)
        return f->ops->bias_backward(f->dev, st_frame_grad(f, l->parts[0].bias), dy, f->rows, l->out, f->dt);
    if ((st = f->ops->zero(f->dev, b->sums, l->out * sizeof(float))) != STRATA_OK ||
        (st = f->ops->bias_backward(f->dev, b->sums, dy, f->rows, l->out, f->dt)) != STRATA_OK)
        return st;
    for (uint32_t i = 0; i < l->part_count && st == STRATA_OK; i++) {
        const struct st_linear_part *part = &l->parts[i];
        float *grad = st_frame_grad(f, part->bias);

        if (part->trained_biases > 0)
            st = f->ops->add(f->dev, grad, grad, b->sums + part->first, part->trained_biases, STRATA_F32);
    }
    return st;
}

static strata_status linear_backward_weight(const struct block *b, const struct st_linear *l, const void *x, const void *dy)
{
    strata_status st = STRATA_OK;

    if (b->f->call->grad == NULL)
        return STRATA_OK;
    for (uint32_t i = 0; i < l->part_count && st == STRATA_OK; i++)
        st = part_backward_weight(b, l, &l->parts[i], x, dy);
    return st == STRATA_OK && l->bias ? linear_backward_bias(b, l, dy) : st;
}

/* dx[rows, in] = dy[rows, out] W^T; parts after the first are computed in `half` and added. */
static strata_status linear_backward_input(const struct block *b, const struct st_linear *l, void *dx, const void *dy)
{
    const struct st_frame *f = b->f;
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < l->part_count && st == STRATA_OK; i++) {
        st = part_multiply(b, l, &l->parts[i], true, i == 0 ? dx : b->half, const_column(dy, l->parts[i].first, f->dt),
                           ST_EPILOGUE_NONE);
        if (st == STRATA_OK && i > 0)
            st = f->ops->add(f->dev, dx, dx, b->half, (uint64_t)f->rows * l->in, f->dt);
    }
    return st;
}

static bool trains(const struct st_frame *f, const struct st_linear *l)
{
    bool trained = false;

    for (uint32_t i = 0; i < l->part_count; i++)
        trained = trained || l->parts[i].trained > 0;
    return trained && f->call->grad != NULL;
}

/* --- the other steps --- */

static strata_status norm_forward(const struct block *b, uint32_t which, const void *x)
{
    const uint32_t weight = b->m->role[which == 0 ? ST_ROLE_NORM1_WEIGHT : ST_ROLE_NORM2_WEIGHT];

    return st_frame_norm(b->f, b->narrow, b->stats[which], x, weight);
}

/* dact += backward of the norm applied to `narrow` */
static strata_status norm_backward(const struct block *b, uint32_t which, const void *x)
{
    const uint32_t weight = b->m->role[which == 0 ? ST_ROLE_NORM1_WEIGHT : ST_ROLE_NORM2_WEIGHT];

    return st_frame_norm_backward(b->f, b->narrow, b->f->dt, x, b->stats[which], weight, b->f->call->dact);
}

/* Queries and keys come first in a packed row. */
static strata_status rotate(const struct block *b, void *qkv, bool inverse)
{
    const struct st_model_config *c = &b->m->config;
    const struct st_frame *f = b->f;

    const struct st_rope rope = {
        .rows = f->rows,
        .stride = b->m->width.qkv,
        .heads = c->heads + c->kv_heads,
        .head_dim = c->head_dim,
        .rotary_dim = c->head_dim,
        .seq = f->seq,
        .first = f->first,
        .table = f->call->constants,
        .inverse = inverse,
        .dt = f->dt,
    };

    return c->positions == ST_POSITION_ROTARY ? f->ops->rope(f->dev, &rope, qkv) : STRATA_OK;
}

static strata_status attend(const struct block *b)
{
    const struct st_frame *f = b->f;
    const struct st_attention *at = &b->m->attention;
    const struct st_block_cache cache = st_block_cache_layout(b->m);
    unsigned char *internals = f->call->internals;

    if (!b->m->batch.generate)
        return f->ops->attention_forward(f->dev, at, b->attention, b->lse, b->qkv, b->attention_scratch);
    return f->ops->attention_cached(f->dev, at, b->attention, internals + cache.keys, internals + cache.values, b->qkv, f->first,
                                    f->rows, b->attention_scratch);
}

/* The buffer of the activation's output and later of its gradient: with SwiGLU, `wide` is taken by the gradients of its two
 * inputs. */
static unsigned char *activated(const struct block *b)
{
    return b->m->config.activation == ST_ACTIVATION_SWIGLU ? b->half : b->wide;
}

static strata_status activate(const struct block *b)
{
    const struct st_frame *f = b->f;
    const uint32_t ffn = b->m->config.ffn;

    if (b->m->config.activation == ST_ACTIVATION_SWIGLU)
        return f->ops->gated_forward(f->dev, ST_SILU, activated(b), b->fc, f->rows, ffn, f->dt);
    return f->ops->activation_forward(f->dev, ST_GELU_TANH, activated(b), b->fc, (uint64_t)f->rows * ffn, f->dt);
}

/* fc = the value before the activation, computed from the norm in `narrow`; `gelu`: the epilogue, if the activation is GELU. */
static strata_status fc_forward(const struct block *b, enum st_epilogue gelu)
{
    if (b->m->config.activation == ST_ACTIVATION_SWIGLU)
        return linear_forward(b, &b->fc_layer, b->fc, b->narrow);
    return part_multiply(b, &b->fc_layer, &b->fc_layer.parts[0], false, activated(b), b->narrow, gelu);
}

/* wide = gradient of `fc`, computed from the gradient of the MLP's output */
static strata_status fc_gradient(const struct block *b, const void *dy)
{
    const struct st_frame *f = b->f;
    strata_status st;

    if (b->m->config.activation != ST_ACTIVATION_SWIGLU)
        return part_multiply(b, &b->down_layer, &b->down_layer.parts[0], true, b->wide, dy, ST_EPILOGUE_GELU_BACKWARD);
    st = linear_backward_input(b, &b->down_layer, activated(b), dy);
    if (st != STRATA_OK)
        return st;
    return f->ops->gated_backward(f->dev, ST_SILU, b->wide, activated(b), b->fc, f->rows, b->m->config.ffn, f->dt);
}

/* --- the block --- */

/* Computes the values from the block's input: everything up to the value before the activation, and whatever `gelu` adds. */
static strata_status block_fill(const struct block *b, enum st_epilogue gelu)
{
    const struct st_frame *f = b->f;
    const uint64_t elems = (uint64_t)f->rows * b->m->config.hidden;
    strata_status st;

    if ((st = norm_forward(b, 0, f->call->act)) != STRATA_OK ||
        (st = linear_forward(b, &b->qkv_layer, b->qkv, b->narrow)) != STRATA_OK || (st = rotate(b, b->qkv, false)) != STRATA_OK ||
        (st = attend(b)) != STRATA_OK || (st = linear_forward(b, &b->proj_layer, b->middle, b->attention)) != STRATA_OK ||
        (st = f->ops->add(f->dev, b->middle, f->call->act, b->middle, elems, f->dt)) != STRATA_OK ||
        (st = norm_forward(b, 1, b->middle)) != STRATA_OK)
        return st;
    return fc_forward(b, gelu);
}

strata_status st_block_forward(const struct st_frame *f)
{
    const struct block b = block_of(f);
    const bool swiglu = b.m->config.activation == ST_ACTIVATION_SWIGLU;
    void *out = f->call->act_out;
    strata_status st;

    if ((st = block_fill(&b, ST_EPILOGUE_GELU)) != STRATA_OK || (swiglu && (st = activate(&b)) != STRATA_OK) ||
        (st = linear_forward(&b, &b.down_layer, out, activated(&b))) != STRATA_OK)
        return st;
    return f->ops->add(f->dev, out, b.middle, out, (uint64_t)f->rows * b.m->config.hidden, f->dt);
}

/* dact: gradient of the block's output in, of `middle` out.  Values that only weight gradients need are not computed if those
 * weights are frozen. */
static strata_status mlp_backward(const struct block *b)
{
    void *dact = b->f->call->dact;
    strata_status st;

    if ((trains(b->f, &b->down_layer) && (st = activate(b)) != STRATA_OK) ||
        (st = linear_backward_weight(b, &b->down_layer, activated(b), dact)) != STRATA_OK ||
        (st = fc_gradient(b, dact)) != STRATA_OK ||
        (trains(b->f, &b->fc_layer) && (st = norm_forward(b, 1, b->middle)) != STRATA_OK) ||
        (st = linear_backward_weight(b, &b->fc_layer, b->narrow, b->wide)) != STRATA_OK ||
        (st = linear_backward_input(b, &b->fc_layer, b->narrow, b->wide)) != STRATA_OK)
        return st;
    return norm_backward(b, 1, b->middle);
}

/* dact: gradient of `middle` in, of the block's input out. */
static strata_status attention_backward(const struct block *b)
{
    const struct st_frame *f = b->f;
    void *dact = f->call->dact;
    strata_status st;

    if ((st = linear_backward_weight(b, &b->proj_layer, b->attention, dact)) != STRATA_OK ||
        (st = linear_backward_input(b, &b->proj_layer, b->narrow, dact)) != STRATA_OK ||
        (st = f->ops->attention_backward(f->dev, &b->m->attention, b->wide, b->narrow, b->attention, b->lse, b->qkv,
                                         b->attention_scratch)) != STRATA_OK ||
        (st = rotate(b, b->wide, true)) != STRATA_OK ||
        (trains(f, &b->qkv_layer) && (st = norm_forward(b, 0, f->call->act)) != STRATA_OK) ||
        (st = linear_backward_weight(b, &b->qkv_layer, b->narrow, b->wide)) != STRATA_OK ||
        (st = linear_backward_input(b, &b->qkv_layer, b->narrow, b->wide)) != STRATA_OK)
        return st;
    return norm_backward(b, 0, f->call->act);
}

strata_status st_block_backward(const struct st_frame *f)
{
    const struct block b = block_of(f);
    strata_status st;

    if (f->call->recompute && (st = block_fill(&b, ST_EPILOGUE_GELU_INPUT)) != STRATA_OK)
        return st;
    if ((st = mlp_backward(&b)) != STRATA_OK)
        return st;
    return attention_backward(&b);
}

/* model/decoder/decoder_block.c - a transformer block, forward and backward.
 *
 * middle = x + proj(attention(norm_1 x)); y = middle + down(activation(fc(norm_2 middle))).  GPT-2: LayerNorm, GELU,
 * biases, matrices [in, out].  Llama: RMSNorm, rotated queries and keys, SwiGLU over gate and up, matrices [out, in].  Other
 * families have norms of what is added to the residual stream (post norms), behind those of the input or instead of them, and
 * norms of queries and keys.
 *
 * GELU is an epilogue of the matmul before it, and its backward is an epilogue of the backward matmul before that, unless that
 * layer has an adapter.  The output of a fused GELU may differ from what backward recomputes from `fc`, so backward always
 * recomputes it: kept and recomputed values then give the same bits. */
#include "model/decoder/decoder_internal.h"

struct st_block st_block_of(const struct st_frame *f)
{
    const struct st_model *m = f->m;
    const bool sparse = st_model_is_sparse(m, f->call->layer - 1);
    const struct st_block_values in = st_block_values_layout(m, sparse);
    const struct st_block_workspace ws = st_block_workspace_layout(m);
    unsigned char *workspace = f->call->workspace;
    unsigned char *values = m->batch.generate ? workspace + ws.values : f->call->internals;

    return (struct st_block){
        .f = f,
        .m = m,
        .roles = st_model_roles(m, f->call->layer - 1),
        .ffn = sparse ? m->config.shared_ffn : m->config.ffn,
        .qkv_layer = st_block_linear(m, f->call->layer - 1, ST_LINEAR_QKV),
        .proj_layer = st_block_linear(m, f->call->layer - 1, ST_LINEAR_PROJ),
        .fc_layer = st_block_linear(m, f->call->layer - 1, ST_LINEAR_FC),
        .down_layer = st_block_linear(m, f->call->layer - 1, ST_LINEAR_DOWN),
        .stats = {(float *)(values + in.stats[0]), (float *)(values + in.stats[1])},
        .post_stats = {(float *)(values + in.post_stats[0]), (float *)(values + in.post_stats[1])},
        .qk_stats = {(float *)(values + in.qk_stats[0]), (float *)(values + in.qk_stats[1])},
        .lse = (float *)(values + in.lse),
        .qkv = values + in.qkv,
        .attention = values + in.attention,
        .projected = values + in.projected,
        .middle = values + in.middle,
        .fc = values + in.fc,
        .down = values + in.down,
        .narrow = workspace + ws.narrow,
        .normed = workspace + ws.narrow,
        .wide = workspace + ws.wide,
        .half = workspace + ws.half,
        .attention_scratch = workspace + ws.attention,
        .widened = workspace + ws.widened,
        .sums = (float *)(workspace + ws.sums),
        .adapted_in = (float *)(workspace + ws.adapted_in),
        .adapted_out = (float *)(workspace + ws.adapted_out),
        .adapted_rank = {(float *)(workspace + ws.adapted_rank[0]), (float *)(workspace + ws.adapted_rank[1])},
    };
}

static bool has(const struct st_block *b, enum st_block_role role)
{
    return b->roles[role] != ST_NO_TENSOR;
}

/* --- the other steps --- */

/* *x: the block's input.  That of the first block is multiplied by the factor of the embedding, in `half`, whenever it is
 * used. */
static strata_status block_input(const struct st_block *b, const void **x)
{
    const struct st_frame *f = b->f;
    const bool scaled = f->call->layer == 1 && b->m->embed_factor != 1.0f;

    *x = scaled ? b->half : f->call->act;
    if (!scaled)
        return STRATA_OK;
    return f->ops->scale(f->dev, b->half, f->call->act, b->m->embed_factor, (uint64_t)f->rows * b->m->config.hidden, f->dt);
}

/* The norm of an input; *out: where the input of the next layer is: in `narrow` or `normed`, or x if the block has no such norm.
 */
static strata_status norm_forward(const struct st_block *b, uint32_t which, const void *x, const void **out)
{
    const enum st_block_role role = which == 0 ? ST_ROLE_NORM1_WEIGHT : ST_ROLE_NORM2_WEIGHT;

    unsigned char *normed = which == 0 ? b->narrow : b->normed;

    *out = has(b, role) ? normed : x;
    return has(b, role) ? st_frame_norm(b->f, normed, b->stats[which], x, NULL, b->roles[role]) : STRATA_OK;
}

/* Adds x to what attention's half left in `middle`, and takes the norm as above.  Bits are those of a sum and a norm after it. */
static strata_status middle_forward(const struct st_block *b, const void *x, const void **out)
{
    const struct st_frame *f = b->f;
    const bool normed = has(b, ST_ROLE_NORM2_WEIGHT);

    *out = normed ? b->normed : b->middle;
    if (normed)
        return st_frame_norm(f, b->normed, b->stats[1], x, b->middle, b->roles[ST_ROLE_NORM2_WEIGHT]);
    return f->ops->add(f->dev, b->middle, x, b->middle, (uint64_t)f->rows * b->m->config.hidden, f->dt);
}

/* dact += gradient of the input, computed from that in `narrow` of the next layer's input. */
static strata_status norm_backward(const struct st_block *b, uint32_t which, const void *x)
{
    const enum st_block_role role = which == 0 ? ST_ROLE_NORM1_WEIGHT : ST_ROLE_NORM2_WEIGHT;
    const struct st_frame *f = b->f;
    void *dact = f->call->dact;

    if (!has(b, role))
        return f->ops->add(f->dev, dact, dact, b->narrow, (uint64_t)f->rows * b->m->config.hidden, f->dt);
    return st_frame_norm_backward(f, dact, b->narrow, f->dt, x, b->stats[which], b->roles[role], dact);
}

/* The post norm of what a half computed, if the block has one. */
static strata_status post_norm(const struct st_block *b, uint32_t which, void *y, const void *x)
{
    const enum st_block_role role = which == 0 ? ST_ROLE_POST1_WEIGHT : ST_ROLE_POST2_WEIGHT;

    return has(b, role) ? st_frame_norm(b->f, y, b->post_stats[which], x, NULL, b->roles[role]) : STRATA_OK;
}

/* *dy = gradient of what the half computed: in `buffer` if it has a post norm, else dact. */
static strata_status half_gradient(const struct st_block *b, uint32_t which, const void *value, void *buffer, const void **dy)
{
    const enum st_block_role role = which == 0 ? ST_ROLE_POST1_WEIGHT : ST_ROLE_POST2_WEIGHT;
    const void *dact = b->f->call->dact;

    *dy = has(b, role) ? buffer : dact;
    if (!has(b, role))
        return STRATA_OK;
    return st_frame_norm_backward(b->f, buffer, dact, b->f->dt, value, b->post_stats[which], b->roles[role], NULL);
}

/* Queries (0) or keys (1) of packed rows: their norm, and the columns of the first one. */
static struct st_rmsnorm qk_norm_of(const struct st_block *b, uint32_t which, uint32_t *first)
{
    const struct st_model_config *c = &b->m->config;
    const uint32_t heads = which == 0 ? c->heads : c->kv_heads;
    struct st_rmsnorm norm = st_frame_rmsnorm(b->f);

    *first = which == 0 ? 0 : b->m->width.attention;
    norm.stride = b->m->width.packed;
    norm.heads = c->qk_norm == ST_QK_NORM_HEAD ? heads : 1;
    norm.cols = heads * c->head_dim / norm.heads;
    return norm;
}

/* Queries and keys as they are before their norm lie behind the values. */
static strata_status qk_norm_forward(const struct st_block *b)
{
    static const enum st_block_role roles[] = {ST_ROLE_Q_NORM, ST_ROLE_K_NORM};
    const struct st_frame *f = b->f;
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < 2 && st == STRATA_OK; i++) {
        uint32_t first;
        const struct st_rmsnorm norm = qk_norm_of(b, i, &first);

        st = f->ops->rmsnorm_forward(f->dev, &norm, st_column(b->qkv, first, f->dt), b->qk_stats[i],
                                     st_column(b->qkv, b->m->width.qkv + first, f->dt),
                                     st_frame_weight(f, f->tensors[b->roles[roles[i]]].offset), NULL, NULL);
    }
    return st;
}

/* Queries, keys and values within the model's limit. */
static strata_status clip_forward(const struct st_block *b)
{
    const struct st_frame *f = b->f;
    const float limit = b->m->config.qkv_clip;

    if (limit == 0.0f)
        return STRATA_OK;
    return f->ops->clip(f->dev, b->qkv, limit, f->rows, b->m->width.qkv, b->m->width.packed, f->dt);
}

/* Queries and keys are rotated since, so their norms are taken again, to the columns of dqkv behind the gradients. */
static strata_status clip_backward(const struct st_block *b, void *dqkv)
{
    static const enum st_block_role roles[] = {ST_ROLE_Q_NORM, ST_ROLE_K_NORM};
    const struct st_model_widths *w = &b->m->width;
    const struct st_frame *f = b->f;
    const float limit = b->m->config.qkv_clip;
    const uint32_t values = w->attention + w->kv;
    strata_status st = STRATA_OK;

    if (limit == 0.0f)
        return STRATA_OK;
    for (uint32_t i = 0; i < 2 && st == STRATA_OK; i++) {
        uint32_t first;
        const struct st_rmsnorm norm = qk_norm_of(b, i, &first);
        void *x = st_column(dqkv, w->qkv + first, f->dt);

        if ((st = f->ops->rmsnorm_forward(f->dev, &norm, x, b->qk_stats[i], st_column(b->qkv, w->qkv + first, f->dt),
                                          st_frame_weight(f, f->tensors[b->roles[roles[i]]].offset), NULL, NULL)) == STRATA_OK)
            st = f->ops->clip_backward(f->dev, st_column(dqkv, first, f->dt), x, limit, f->rows, norm.heads * norm.cols,
                                       w->packed, f->dt);
    }
    if (st != STRATA_OK)
        return st;
    return f->ops->clip_backward(f->dev, st_column(dqkv, values, f->dt), st_column(b->qkv, values, f->dt), limit, f->rows, w->kv,
                                 w->packed, f->dt);
}

/* In place, in the packed rows of gradients. */
static strata_status qk_norm_backward(const struct st_block *b, void *dqkv)
{
    static const enum st_block_role roles[] = {ST_ROLE_Q_NORM, ST_ROLE_K_NORM};
    const struct st_frame *f = b->f;
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < 2 && st == STRATA_OK && b->m->config.qk_norm != ST_QK_NORM_NONE; i++) {
        uint32_t first;
        const struct st_rmsnorm norm = qk_norm_of(b, i, &first);
        const uint64_t at = f->tensors[b->roles[roles[i]]].offset;
        void *dx = st_column(dqkv, first, f->dt);

        st = f->ops->rmsnorm_backward(f->dev, &norm, dx, st_frame_grad(f, at), dx, f->dt,
                                      st_column(b->qkv, b->m->width.qkv + first, f->dt), b->qk_stats[i], st_frame_weight(f, at),
                                      NULL);
    }
    return st;
}

/* Packed rows of queries, keys and values. */
static strata_status qkv_forward(const struct st_block *b, const void *x)
{
    const struct st_model_widths *w = &b->m->width;
    const struct st_linear qk = st_block_linear(b->m, b->f->call->layer - 1, ST_LINEAR_QK);
    const struct st_linear v = st_block_linear(b->m, b->f->call->layer - 1, ST_LINEAR_V);
    strata_status st;

    if (b->m->config.qk_norm == ST_QK_NORM_NONE)
        return st_linear_forward(b, &b->qkv_layer, b->qkv, x);
    if ((st = st_linear_forward(b, &qk, st_column(b->qkv, w->qkv, b->f->dt), x)) != STRATA_OK ||
        (st = st_linear_forward(b, &v, st_column(b->qkv, w->attention + w->kv, b->f->dt), x)) != STRATA_OK)
        return st;
    if ((st = qk_norm_forward(b)) != STRATA_OK)
        return st;
    return clip_forward(b);
}

/* Queries and keys come first in a packed row. */
static strata_status rotate(const struct st_block *b, void *qkv, bool inverse)
{
    const struct st_model_config *c = &b->m->config;
    const struct st_frame *f = b->f;
    const uint32_t block = f->call->layer - 1;
    const bool local = c->rope_local_base > 0.0f && st_layer_bit(c->sliding, block);
    const float *tables = f->call->constants;
    const struct st_rope rope = {
        .rows = f->rows,
        .stride = b->m->width.packed,
        .heads = c->heads + c->kv_heads,
        .head_dim = c->head_dim,
        .rotary_dim = c->rotary_dim,
        .seq = f->seq,
        .first = f->first,
        .positions = f->call->positions,
        .table = local ? tables + b->m->rotary_elems : tables,
        .inverse = inverse,
        .dt = f->dt,
    };

    if (c->positions != ST_POSITION_ROTARY || st_layer_bit(c->unrotated, block))
        return STRATA_OK;
    return f->ops->rope(f->dev, &rope, qkv);
}

/* Documents of this micro-batch do not see each other. */
static struct st_attention attention_of(const struct st_block *b)
{
    struct st_attention at = st_block_attention(b->m, b->f->call->layer - 1);

    at.positions = b->f->call->positions;
    if (has(b, ST_ROLE_SINKS))
        at.sinks = st_frame_weight(b->f, b->f->tensors[b->roles[ST_ROLE_SINKS]].offset);
    return at;
}

static strata_status attend(const struct st_block *b)
{
    const struct st_frame *f = b->f;
    const struct st_attention at = attention_of(b);
    const struct st_block_cache cache = st_block_cache_layout(b->m);
    unsigned char *internals = f->call->internals;

    if (!b->m->batch.generate)
        return f->ops->attention_forward(f->dev, &at, b->attention, b->lse, b->qkv, b->attention_scratch);
    return f->ops->attention_cached(f->dev, &at, b->attention, internals + cache.keys, internals + cache.values, b->qkv, f->first,
                                    f->rows, b->attention_scratch);
}

/* The buffer of the activation's output and of its gradient.  If it is gated, `wide` has the gradients of its two inputs. */
static unsigned char *activated(const struct st_block *b)
{
    return st_model_is_gated(&b->m->config) ? b->half : b->wide;
}

static strata_status activate(const struct st_block *b)
{
    const struct st_frame *f = b->f;
    const struct st_model_config *c = &b->m->config;
    const enum st_activation activation = st_model_activation(c);

    if (st_model_is_gated(c))
        return f->ops->gated_forward(f->dev, activation, activated(b), b->fc, f->rows, b->ffn, f->dt);
    return f->ops->activation_forward(f->dev, activation, activated(b), b->fc, (uint64_t)f->rows * b->ffn, f->dt);
}

/* fc = the value before the activation; `gelu`: the epilogue, if the activation is not gated.  An adapter adds to `fc` before the
 * activation, which is a separate pass then, and for GELU_INPUT none. */
strata_status st_block_fc(const struct st_block *b, const void *x, enum st_epilogue gelu)
{
    const struct st_linear *l = &b->fc_layer;
    const struct st_linear_product p = {
        .layer = l, .part = &l->parts[0], .rows = b->f->rows, .stride = l->stride, .dt = b->f->dt, .epilogue = gelu};
    strata_status st;

    if (!st_model_is_gated(&b->m->config) && l->adapter_count == 0)
        return st_linear_multiply(b, &p, activated(b), x);
    st = st_linear_forward(b, l, b->fc, x);
    return st == STRATA_OK && !st_model_is_gated(&b->m->config) && gelu == ST_EPILOGUE_GELU ? activate(b) : st;
}

/* wide = gradient of `fc`, computed from that of the MLP's output; and the gradients of the layer between, which need the
 * activation's output: of a gated one the pass that computes `wide` leaves it in `half`, in place of its gradient. */
strata_status st_block_gated_backward(const struct st_block *b, const void *dy)
{
    const struct st_frame *f = b->f;
    const struct st_model_config *c = &b->m->config;
    void *y = st_linear_trains(f, &b->down_layer) ? b->half : NULL;
    strata_status st;

    if ((st = st_linear_backward_input(b, &b->down_layer, b->half, dy)) != STRATA_OK ||
        (st = f->ops->gated_backward(f->dev, st_model_activation(c), b->wide, y, b->half, b->fc, f->rows, b->ffn, f->dt)) !=
            STRATA_OK)
        return st;
    return st_linear_backward_weight(b, &b->down_layer, b->half, dy);
}

/* Not gated: the same.  `wide` holds the activation's output first, then the gradient. */
static strata_status plain_down_backward(const struct st_block *b, const void *dy)
{
    const struct st_model_config *c = &b->m->config;
    const struct st_linear *l = &b->down_layer;
    const struct st_frame *f = b->f;
    const struct st_linear_product p = {.layer = l,
                                        .part = &l->parts[0],
                                        .backward = true,
                                        .rows = f->rows,
                                        .stride = l->in,
                                        .dt = f->dt,
                                        .epilogue = ST_EPILOGUE_GELU_BACKWARD};
    strata_status st;

    if ((st_linear_trains(f, l) && (st = activate(b)) != STRATA_OK) ||
        (st = st_linear_backward_weight(b, l, b->wide, dy)) != STRATA_OK)
        return st;
    if (l->adapter_count == 0)
        return st_linear_multiply(b, &p, b->wide, dy);
    if ((st = st_linear_backward_input(b, l, b->wide, dy)) != STRATA_OK)
        return st;
    return f->ops->activation_backward(f->dev, st_model_activation(c), b->wide, b->wide, b->fc, (uint64_t)f->rows * b->ffn,
                                       f->dt);
}

/* --- the block --- */

strata_status st_block_middle(const struct st_block *b, const void **x)
{
    const void *act;
    strata_status st;

    if ((st = block_input(b, &act)) != STRATA_OK || (st = norm_forward(b, 0, act, x)) != STRATA_OK ||
        (st = qkv_forward(b, *x)) != STRATA_OK || (st = rotate(b, b->qkv, false)) != STRATA_OK || (st = attend(b)) != STRATA_OK ||
        (st = st_linear_forward(b, &b->proj_layer, has(b, ST_ROLE_POST1_WEIGHT) ? b->projected : b->middle, b->attention)) !=
            STRATA_OK ||
        (st = post_norm(b, 0, b->middle, b->projected)) != STRATA_OK)
        return st;
    return middle_forward(b, act, x);
}

/* Computes the values from the block's input: everything up to the value before the activation, and whatever `gelu` adds.  With a
 * post norm everything up to that norm, whose output is in `narrow` then. */
static strata_status block_fill(const struct st_block *b, enum st_epilogue gelu)
{
    const void *x;
    strata_status st;

    if ((st = st_block_middle(b, &x)) != STRATA_OK || (st = st_block_fc(b, x, gelu)) != STRATA_OK)
        return st;
    if (!has(b, ST_ROLE_POST2_WEIGHT))
        return STRATA_OK;
    if ((st = activate(b)) != STRATA_OK || (st = st_linear_forward(b, &b->down_layer, b->down, activated(b))) != STRATA_OK)
        return st;
    return post_norm(b, 1, b->narrow, b->down);
}

strata_status st_block_forward(const struct st_frame *f)
{
    const struct st_block b = st_block_of(f);
    const bool post = has(&b, ST_ROLE_POST2_WEIGHT);
    void *out = f->call->act_out;
    strata_status st = block_fill(&b, ST_EPILOGUE_GELU);

    if (st == STRATA_OK && !post && st_model_is_gated(&b.m->config))
        st = activate(&b);
    if (st == STRATA_OK && !post)
        st = st_linear_forward(&b, &b.down_layer, out, activated(&b));
    return st == STRATA_OK
               ? f->ops->add(f->dev, out, b.middle, post ? b.narrow : out, (uint64_t)f->rows * b.m->config.hidden, f->dt)
               : st;
}

/* dact: gradient of the block's output in, of `middle` out.  Values that only weight gradients need are not computed if those
 * weights are frozen. */
static strata_status mlp_backward(const struct st_block *b)
{
    const void *dy, *x = has(b, ST_ROLE_NORM2_WEIGHT) ? b->narrow : b->middle;
    strata_status st;

    if ((st = half_gradient(b, 1, b->down, b->narrow, &dy)) != STRATA_OK ||
        (st = st_model_is_gated(&b->m->config) ? st_block_gated_backward(b, dy) : plain_down_backward(b, dy)) != STRATA_OK ||
        (st_linear_trains(b->f, &b->fc_layer) && (st = norm_forward(b, 1, b->middle, &x)) != STRATA_OK) ||
        (st = st_linear_backward(b, &b->fc_layer, b->narrow, x, b->wide)) != STRATA_OK)
        return st;
    return norm_backward(b, 1, b->middle);
}

strata_status st_block_activate(const struct st_block *b, const void **y)
{
    *y = activated(b);
    return activate(b);
}

strata_status st_block_normed_backward(const struct st_block *b)
{
    return norm_backward(b, 1, b->middle);
}

/* The gradient of the sinks from that of attention's output, `narrow`. */
static strata_status sinks_backward(const struct st_block *b, const struct st_attention *at)
{
    const struct st_frame *f = b->f;
    float *grad = has(b, ST_ROLE_SINKS) ? st_frame_grad(f, f->tensors[b->roles[ST_ROLE_SINKS]].offset) : NULL;

    if (grad == NULL)
        return STRATA_OK;
    return f->ops->attention_sinks_backward(f->dev, at, grad, b->narrow, b->attention, b->lse);
}

/* `half` may be used between two uses of the input. */
static strata_status attention_backward(const struct st_block *b)
{
    const struct st_frame *f = b->f;
    const struct st_attention at = attention_of(b);
    const void *act, *dy, *x;
    strata_status st;

    if ((st = half_gradient(b, 0, b->projected, b->half, &dy)) != STRATA_OK ||
        (st = st_linear_backward(b, &b->proj_layer, b->narrow, b->attention, dy)) != STRATA_OK ||
        (st = sinks_backward(b, &at)) != STRATA_OK ||
        (st = f->ops->attention_backward(f->dev, &at, b->wide, b->narrow, b->attention, b->lse, b->qkv, b->attention_scratch)) !=
            STRATA_OK ||
        (st = rotate(b, b->wide, true)) != STRATA_OK || (st = clip_backward(b, b->wide)) != STRATA_OK ||
        (st = qk_norm_backward(b, b->wide)) != STRATA_OK || (st = block_input(b, &act)) != STRATA_OK)
        return st;
    x = has(b, ST_ROLE_NORM1_WEIGHT) ? b->narrow : act;
    if ((st_linear_trains(f, &b->qkv_layer) && (st = norm_forward(b, 0, act, &x)) != STRATA_OK) ||
        (st = st_linear_backward(b, &b->qkv_layer, b->narrow, x, b->wide)) != STRATA_OK ||
        (st = block_input(b, &act)) != STRATA_OK)
        return st;
    return norm_backward(b, 0, act);
}

strata_status st_block_middle_backward(const struct st_block *b)
{
    const struct st_frame *f = b->f;
    void *dact = f->call->dact;
    const strata_status st = attention_backward(b);

    if (st != STRATA_OK || f->call->layer != 1 || b->m->embed_factor == 1.0f)
        return st;
    return f->ops->scale(f->dev, dact, dact, b->m->embed_factor, (uint64_t)f->rows * b->m->config.hidden, f->dt);
}

strata_status st_block_backward(const struct st_frame *f)
{
    const struct st_block b = st_block_of(f);
    strata_status st;

    if (f->call->recompute && (st = block_fill(&b, ST_EPILOGUE_GELU_INPUT)) != STRATA_OK)
        return st;
    if ((st = mlp_backward(&b)) != STRATA_OK)
        return st;
    return st_block_middle_backward(&b);
}

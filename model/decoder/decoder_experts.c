/* model/decoder/decoder_experts.c - a sparse block: experts in place of the feed-forward, of which each token goes through some.
 *
 * y = middle + sum of weight_e expert_e(x) over a token's experts + sigmoid(gate x) shared(x), with x = norm_2 middle.  The block
 * is computed in parts.  The first one chooses experts and opens the sum; then come slices, whose experts add to it in ascending
 * order, in fp32; the end rounds it once.  Backward goes the other way round: slices make what is inside an expert again, and add
 * to the gradient of x, which takes the sum's place. */
#include "model/decoder/decoder_internal.h"

/* What the calls leave each other. */
struct route {
    unsigned char *input;
    float *probs, *weights, *sum, *dweights;
    int32_t *ids, *order, *places, *offsets;
    unsigned char *shared, *shared_gate;
};

static struct route route_of(const struct st_frame *f)
{
    const struct st_model *m = f->m;
    const struct st_route_values at = st_route_values_layout(m);
    unsigned char *values = f->call->internals;

    values += st_block_internal_bytes(m, true) - at.bytes;
    return (struct route){
        .input = values + at.input,
        .probs = (float *)(values + at.probs),
        .weights = (float *)(values + at.weights),
        .sum = (float *)(values + at.sum),
        .dweights = (float *)(values + at.dweights),
        .ids = (int32_t *)(values + at.ids),
        .order = (int32_t *)(values + at.order),
        .places = (int32_t *)(values + at.places),
        .offsets = (int32_t *)(values + at.offsets),
        .shared = values + at.shared,
        .shared_gate = values + at.shared_gate,
    };
}

static struct st_route choice_of(const struct st_frame *f)
{
    const struct st_model_config *c = &f->m->config;
    const struct st_family *family = st_family_of(c->family);

    return (struct st_route){.rows = f->rows,
                             .experts = c->experts,
                             .k = c->experts_chosen,
                             .divided = c->experts_divided,
                             .after = family->weights_after,
                             .round = !family->exact_weights,
                             .dt = f->dt,
                             .targets = f->call->targets};
}

/* What the micro-batch's layers have counted for the auxiliary loss; NULL: there is none. */
static int64_t *counts_of(const struct st_frame *f)
{
    unsigned char *routes = f->call->routes;

    return routes != NULL ? (int64_t *)(void *)(routes + st_routes_layout(f->m).counts) : NULL;
}

static double *sums_of(const struct st_frame *f)
{
    return (double *)(void *)((unsigned char *)f->call->routes + st_routes_layout(f->m).sums);
}

static uint64_t elems_of(const struct st_frame *f)
{
    return (uint64_t)f->rows * f->m->config.hidden;
}

static unsigned char *logits_of(const struct st_frame *f)
{
    return (unsigned char *)f->call->workspace + st_block_workspace_layout(f->m).logits;
}

static struct st_linear linear_of(const struct st_block *b, enum st_linear_kind kind)
{
    return st_block_linear(b->m, b->f->call->layer - 1, kind);
}

static bool has_shared(const struct st_block *b)
{
    return b->m->config.shared_ffn > 0;
}

/* --- the first part --- */

static strata_status shared_forward(const struct st_block *b, const struct route *r)
{
    const struct st_linear gate = linear_of(b, ST_LINEAR_SHARED_GATE);
    const void *y;
    strata_status st;

    if (!has_shared(b))
        return STRATA_OK;
    if ((st = st_block_fc(b, r->input, ST_EPILOGUE_NONE)) != STRATA_OK || (st = st_block_activate(b, &y)) != STRATA_OK ||
        (st = st_linear_forward(b, &b->down_layer, r->shared, y)) != STRATA_OK)
        return st;
    return st_linear_forward(b, &gate, r->shared_gate, r->input);
}

static strata_status choose(const struct st_block *b, const struct route *r)
{
    const struct st_frame *f = b->f;
    const struct st_linear router = linear_of(b, ST_LINEAR_ROUTER);
    const struct st_route choice = choice_of(f);
    strata_status st;

    if ((st = st_linear_forward(b, &router, logits_of(f), r->input)) != STRATA_OK ||
        (st = f->ops->route_choose(f->dev, &choice, r->ids, r->weights, r->probs, logits_of(f))) != STRATA_OK)
        return st;
    return f->ops->route_sort(f->dev, &choice, r->order, r->places, r->offsets, r->ids);
}

/* All but the experts. */
static strata_status fill(const struct st_block *b, const struct route *r)
{
    const void *x;
    strata_status st;

    if ((st = st_block_middle(b, &x)) != STRATA_OK || (st = shared_forward(b, r)) != STRATA_OK)
        return st;
    return choose(b, r);
}

static strata_status open_sum(const struct st_frame *f, const struct route *r)
{
    return f->ops->zero(f->dev, r->sum, elems_of(f) * sizeof(*r->sum));
}

static struct st_block block_of(const struct st_frame *f, const struct route *r)
{
    struct st_block b = st_block_of(f);

    b.normed = r->input;
    return b;
}

static strata_status count_choices(const struct st_frame *f, const struct route *r)
{
    const struct st_route choice = choice_of(f);
    strata_status st = STRATA_OK;

    if (f->call->routes != NULL && f->call->opens_routes)
        st = f->ops->zero(f->dev, f->call->routes, st_routes_layout(f->m).bytes);
    if (st != STRATA_OK || f->call->routes == NULL)
        return st;
    return f->ops->route_totals(f->dev, &choice, counts_of(f), sums_of(f), r->ids, r->probs);
}

strata_status st_experts_loss(const struct st_frame *f)
{
    const struct st_route choice = choice_of(f);

    if (f->call->routes == NULL)
        return STRATA_OK;
    return f->ops->route_loss(f->dev, &choice, f->call->aux_loss, counts_of(f), sums_of(f));
}

static strata_status route_forward(const struct st_frame *f)
{
    const struct route r = route_of(f);
    const struct st_block b = block_of(f, &r);
    strata_status st = fill(&b, &r);

    if (st == STRATA_OK)
        st = count_choices(f, &r);
    if (st != STRATA_OK || !has_shared(&b))
        return st != STRATA_OK ? st : open_sum(f, &r);
    return f->ops->shared_forward(f->dev, r.sum, r.shared, r.shared_gate, f->rows, f->m->config.hidden, f->dt);
}

static strata_status route_again(const struct st_frame *f)
{
    const struct route r = route_of(f);
    const struct st_block b = block_of(f, &r);
    const strata_status st = f->call->recompute ? fill(&b, &r) : STRATA_OK;

    return st == STRATA_OK ? open_sum(f, &r) : st;
}

static strata_status route_end(const struct st_frame *f)
{
    const struct route r = route_of(f);
    const struct st_block b = block_of(f, &r);
    const uint32_t hidden = f->m->config.hidden;
    const struct st_cast cast = {
        .rows = f->rows, .cols = hidden, .to_stride = hidden, .from_stride = hidden, .to = f->dt, .from = STRATA_F32};
    const strata_status st = f->ops->cast(f->dev, &cast, f->call->act_out, r.sum);

    return st == STRATA_OK ? f->ops->add(f->dev, f->call->act_out, b.middle, f->call->act_out, elems_of(f), f->dt) : st;
}

/* --- slices --- */

/* A slice, and rows of its experts in the workspace. */
struct slice {
    const struct st_frame *f;
    struct route r;
    struct st_experts of;
    struct st_gate gate;
    uint32_t hidden, ffn;
    uint64_t stride, bias_stride; /* elements from one expert to the next */
    struct st_expert_layer up, down;
    bool quantised;
    unsigned char *input, *output, *fc, *gated, *widened;
};

/* A tensor of the slice's expert number `expert`; NULL: experts have none, or the slice fewer. */
static const struct st_tensor *part_of(const struct st_frame *f, uint32_t expert, enum st_expert_part part)
{
    const char *const *names = st_family_of(f->m->config.family)->expert_tensors;
    uint32_t at = 0, parts = 0, first, count;

    st_model_slice(f->m, f->call->slice, &first, &count);
    for (enum st_expert_part p = 0; p < ST_EXPERT_PARTS; p++) {
        at += names[p] != NULL && p < part ? 1 : 0;
        parts += names[p] != NULL ? 1 : 0;
    }
    return names[part] != NULL && expert < count ? &f->tensors[expert * parts + at] : NULL;
}

/* Elements between those of two experts that follow each other; of one alone `elems`. */
static uint64_t stride_of(const struct st_frame *f, enum st_expert_part part, uint64_t elems)
{
    const struct st_tensor *first = part_of(f, 0, part), *next = part_of(f, 1, part);

    return next != NULL ? next->offset - first->offset : elems;
}

static struct st_expert_layer layer_of(const struct slice *s, enum st_expert_part part, enum st_expert_part bias)
{
    const struct st_frame *f = s->f;
    const struct st_slice_workspace ws = st_slice_workspace_layout(f->m);
    const struct st_tensor *own = part_of(f, 0, part), *own_bias = part_of(f, 0, bias);
    const uint64_t from = part_of(f, 0, ST_EXPERT_GATE)->offset;
    unsigned char *workspace = s->input - ws.input;
    struct st_expert_layer l = {.f = f,
                                .of = s->of,
                                .offsets = s->r.offsets,
                                .in = part == ST_EXPERT_DOWN ? s->ffn : s->hidden,
                                .out = part == ST_EXPERT_DOWN ? s->hidden : 2 * s->ffn,
                                .at = own->offset,
                                .bias_at = own_bias != NULL ? own_bias->offset : 0,
                                .weight_stride = s->stride,
                                .bias_stride = s->bias_stride,
                                .turned = st_family_is_fused(st_family_of(f->m->config.family)),
                                .bias = own_bias != NULL,
                                .weights = s->quantised ? s->widened + (own->offset - from) * f->m->value_bytes
                                                        : st_frame_weight(f, own->offset),
                                .wide_in = (float *)(void *)(workspace + ws.wide_in),
                                .wide_out = (float *)(void *)(workspace + ws.wide_out),
                                .ranks = (float *)(void *)(workspace + ws.ranks)};

    l.adapter_count = st_expert_adapters(f->m, f->tensors, part == ST_EXPERT_DOWN, l.adapters, &l.stride);
    return l;
}

static struct slice slice_of(const struct st_frame *f)
{
    const struct st_model *m = f->m;
    const struct st_slice_workspace ws = st_slice_workspace_layout(m);
    unsigned char *workspace = (unsigned char *)f->call->workspace + st_block_workspace_layout(m).slice;
    struct slice s = {
        .f = f,
        .r = route_of(f),
        .of = {.rows = f->rows, .experts = m->config.experts, .k = m->config.experts_chosen},
        .hidden = m->config.hidden,
        .ffn = m->config.expert_ffn,
        .gate = {.activation = st_model_activation(&m->config), .alpha = m->config.gate_alpha, .limit = m->config.gate_limit},
        .stride = stride_of(f, ST_EXPERT_GATE, st_model_expert_elems(&m->config)),
        .bias_stride = stride_of(f, ST_EXPERT_GATE_BIAS, 0),
        .input = workspace + ws.input,
        .output = workspace + ws.output,
        .fc = workspace + ws.fc,
        .gated = workspace + ws.gated,
        .widened = workspace + ws.widened,
        .quantised = part_of(f, 0, ST_EXPERT_GATE)->format == STRATA_NF4};

    st_model_slice(m, f->call->slice, &s.of.first, &s.of.count);
    s.up = layer_of(&s, ST_EXPERT_GATE, ST_EXPERT_GATE_BIAS);
    s.down = layer_of(&s, ST_EXPERT_DOWN, ST_EXPERT_DOWN_BIAS);
    return s;
}

strata_status st_expert_multiply(const struct st_expert_layer *l, bool backward, void *to, strata_dtype dt, const void *from)
{
    const struct st_frame *f = l->f;
    const uint32_t n = backward ? l->in : l->out, k = backward ? l->out : l->in;
    const struct st_expert_matmul mm = {
        .of = l->of,
        .n = n,
        .k = k,
        .lda = k,
        .ldb = l->turned ? l->out : l->in,
        .ldc = n,
        .trans_b = backward == l->turned,
        .bias = l->bias && !backward,
        .stride = l->weight_stride,
        .bias_stride = l->bias_stride,
        .ab_dtype = f->dt,
        .c_dtype = dt,
    };

    return f->ops->experts_matmul(f->dev, &mm, to, from, l->weights, mm.bias ? st_frame_weight(f, l->bias_at) : NULL, l->offsets);
}

/* The gradients of each expert's W and bias from that of its output and its input. */
static strata_status backward_weight(const struct st_expert_layer *l, const void *dy, const void *x)
{
    const struct st_frame *f = l->f;
    const uint32_t rows = l->turned ? l->in : l->out, cols = l->turned ? l->out : l->in;
    const struct st_expert_matmul mm = {
        .of = l->of,
        .m = rows,
        .n = cols,
        .lda = rows,
        .ldb = cols,
        .ldc = cols,
        .accumulate = !f->call->first,
        .stride = l->weight_stride,
        .ab_dtype = f->dt,
        .c_dtype = STRATA_F32,
    };
    float *grad = st_frame_grad(f, l->at), *dbias = l->bias ? st_frame_grad(f, l->bias_at) : NULL;
    strata_status st = STRATA_OK;

    if (grad != NULL)
        st = f->ops->experts_matmul(f->dev, &mm, grad, l->turned ? x : dy, l->turned ? dy : x, NULL, l->offsets);
    if (st != STRATA_OK || dbias == NULL)
        return st;
    return f->ops->experts_bias_backward(f->dev, &l->of, dbias, l->bias_stride, dy, l->offsets, l->out, f->dt);
}

/* y = x W^T + bias, and what adapters add. */
static strata_status forward(const struct st_expert_layer *l, void *y, const void *x)
{
    return l->adapter_count > 0 ? st_expert_adapted_forward(l, y, x) : st_expert_multiply(l, false, y, l->f->dt, x);
}

/* The gradients of what is trained of the layer, and of its input: dx may be x. */
static strata_status backward(const struct st_expert_layer *l, void *dx, const void *dy, const void *x)
{
    strata_status st;

    if (l->adapter_count > 0)
        return st_expert_adapted_backward(l, dx, dy, x);
    st = backward_weight(l, dy, x);
    return st == STRATA_OK ? st_expert_multiply(l, true, dx, l->f->dt, dy) : st;
}

/* Rows of the experts' inputs, what is inside them, and their outputs. */
static strata_status experts_fill(const struct slice *s)
{
    const struct st_frame *f = s->f;
    strata_status st;

    if (s->quantised &&
        (st = f->ops->nf4_widen(f->dev, s->widened, st_frame_weight(f, s->up.at), s->of.count * s->stride, f->dt)) != STRATA_OK)
        return st;
    if ((st = f->ops->experts_gather(f->dev, &s->of, s->input, s->r.input, s->r.order, s->r.offsets, s->hidden, f->dt)) !=
            STRATA_OK ||
        (st = forward(&s->up, s->fc, s->input)) != STRATA_OK ||
        (st = f->ops->experts_gated_forward(f->dev, &s->of, &s->gate, s->gated, s->fc, s->r.offsets, s->ffn, f->dt)) != STRATA_OK)
        return st;
    return forward(&s->down, s->output, s->gated);
}

static strata_status experts_forward(const struct st_frame *f)
{
    const struct slice s = slice_of(f);
    const strata_status st = experts_fill(&s);

    if (st != STRATA_OK)
        return st;
    return f->ops->experts_add(f->dev, &s.of, s.r.sum, s.output, s.r.weights, s.r.order, s.r.places, s.r.offsets, s.hidden,
                               f->dt);
}

/* Gradients take the places of values that nothing needs any more. */
static strata_status experts_backward(const struct st_frame *f)
{
    const struct slice s = slice_of(f);
    strata_status st;

    if ((st = experts_fill(&s)) != STRATA_OK ||
        (st = f->ops->experts_add_backward(f->dev, &s.of, s.output, s.r.dweights, f->call->dact, s.output, s.r.weights, s.r.order,
                                           s.r.offsets, s.hidden, f->dt)) != STRATA_OK ||
        (st = backward(&s.down, s.gated, s.output, s.gated)) != STRATA_OK ||
        (st = f->ops->experts_gated_backward(f->dev, &s.of, &s.gate, s.fc, NULL, s.gated, s.fc, s.r.offsets, s.ffn, f->dt)) !=
            STRATA_OK ||
        (st = backward(&s.up, s.output, s.fc, s.input)) != STRATA_OK)
        return st;
    return f->ops->experts_add(f->dev, &s.of, s.r.sum, s.output, NULL, s.r.order, s.r.places, s.r.offsets, s.hidden, f->dt);
}

/* --- the first part's backward --- */

/* Adds what the router gives to the gradient of the experts' input. */
static strata_status router_backward(const struct st_block *b, const struct route *r)
{
    const struct st_frame *f = b->f;
    const struct st_linear router = linear_of(b, ST_LINEAR_ROUTER);
    const struct st_route choice = choice_of(f);
    const struct st_linear_product p = {.layer = &router,
                                        .part = &router.parts[0],
                                        .backward = true,
                                        .accumulate = true,
                                        .rows = f->rows,
                                        .stride = router.in,
                                        .dt = STRATA_F32};
    void *dlogits = logits_of(f);
    strata_status st;

    if ((st = f->ops->route_backward(f->dev, &choice, dlogits, r->dweights, r->probs, r->ids, r->weights, counts_of(f),
                                     f->call->aux_gradient)) != STRATA_OK ||
        (st = st_linear_backward_weight(b, &router, r->input, dlogits)) != STRATA_OK)
        return st;
    return st_linear_multiply(b, &p, r->sum, dlogits);
}

/* narrow = what the shared expert and its gate give to it. */
static strata_status shared_backward(const struct st_block *b, const struct route *r)
{
    const struct st_frame *f = b->f;
    const struct st_linear gate = linear_of(b, ST_LINEAR_SHARED_GATE);
    void *dgate = logits_of(f);
    strata_status st;

    if ((st = f->ops->shared_backward(f->dev, b->narrow, dgate, f->call->dact, r->shared, r->shared_gate, f->rows,
                                      f->m->config.hidden, f->dt)) != STRATA_OK ||
        (st = st_block_gated_backward(b, b->narrow)) != STRATA_OK ||
        (st = st_linear_backward(b, &b->fc_layer, b->narrow, r->input, b->wide)) != STRATA_OK ||
        (st = st_linear_backward(b, &gate, b->half, r->input, dgate)) != STRATA_OK)
        return st;
    return f->ops->add(f->dev, b->narrow, b->narrow, b->half, elems_of(f), f->dt);
}

static strata_status route_backward(const struct st_frame *f)
{
    const struct route r = route_of(f);
    const struct st_block b = block_of(f, &r);
    const uint32_t hidden = f->m->config.hidden;
    const struct st_cast cast = {
        .rows = f->rows, .cols = hidden, .to_stride = hidden, .from_stride = hidden, .to = f->dt, .from = STRATA_F32};
    strata_status st;

    if ((st = router_backward(&b, &r)) != STRATA_OK || (has_shared(&b) && (st = shared_backward(&b, &r)) != STRATA_OK) ||
        (st = f->ops->cast(f->dev, &cast, has_shared(&b) ? b.half : b.narrow, r.sum)) != STRATA_OK ||
        (has_shared(&b) && (st = f->ops->add(f->dev, b.narrow, b.narrow, b.half, elems_of(f), f->dt)) != STRATA_OK) ||
        (st = st_block_normed_backward(&b)) != STRATA_OK)
        return st;
    return st_block_middle_backward(&b);
}

strata_status st_experts_run(const struct st_frame *f)
{
    switch (f->call->kind) {
    case ST_CALL_ROUTE_FORWARD:
        return route_forward(f);
    case ST_CALL_EXPERTS_FORWARD:
        return experts_forward(f);
    case ST_CALL_ROUTE_END:
        return route_end(f);
    case ST_CALL_ROUTE_AGAIN:
        return route_again(f);
    case ST_CALL_EXPERTS_BACKWARD:
        return experts_backward(f);
    default:
        return route_backward(f);
    }
}

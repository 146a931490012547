/* tests/model/decoder_rig.c - see decoder_rig.h. */
#include "decoder_rig.h"
#include "layout_gaps.h"
#include "tests/common/shape.h"
#include "text/data/tokens.h"
#include <math.h>
#include <stdio.h>

#define GUARD_BYTES 256u
#define GUARD_BYTE  0xa5

static uint64_t arena_bytes(const struct st_workload *w)
{
    uint64_t bytes = w->workspace_bytes + shape_of(w).head_internal_bytes;

    for (uint32_t i = 0; i < w->page_count; i++)
        bytes += w->pages[i].elems * 4 + w->pages[i].bytes;
    bytes += (shape_of(w).block_count + 2) * shape_of(w).activation_bytes;
    for (uint32_t b = 0; b < shape_of(w).block_count; b++)
        bytes += w->layers[b + 1].internal_bytes;
    return bytes + w->constants_bytes + w->routes_bytes + 12 * (uint64_t)w->micro_batch * w->seq +
           2048 * (uint64_t)(w->page_count + shape_of(w).block_count + 10);
}

/* From the arena, with a guard behind. */
static void *place(struct rig *r, uint64_t bytes)
{
    unsigned char *at = r->dev->ops->arena(r->dev) + r->used, *guard;

    bytes = (bytes + 255) / 256 * 256;
    r->used += bytes + GUARD_BYTES;
    assert_true(r->used <= r->arena_bytes);
    guard = at + bytes;
    memset(guard, GUARD_BYTE, GUARD_BYTES); /* the cpu device's arena is addressable */
    r->guards = realloc(r->guards, (r->guard_count + 1) * sizeof(*r->guards));
    assert_non_null(r->guards);
    r->guards[r->guard_count++] = guard;
    return at;
}

static void check_guards(const struct rig *r)
{
    unsigned char want[GUARD_BYTES];

    memset(want, GUARD_BYTE, sizeof(want));
    for (uint32_t i = 0; i < r->guard_count; i++)
        assert_memory_equal(r->guards[i], want, GUARD_BYTES);
}

static void place_all(struct rig *r)
{
    const struct st_workload *w = r->w;
    const uint64_t rows = (uint64_t)w->micro_batch * w->seq;

    r->weights = calloc(w->page_count, sizeof(*r->weights));
    r->grads = calloc(w->page_count, sizeof(*r->grads));
    r->acts = calloc(shape_of(w).block_count + 1, sizeof(*r->acts));
    r->internals = calloc(shape_of(w).block_count, sizeof(*r->internals));
    for (uint32_t i = 0; i < w->page_count; i++) {
        r->weights[i] = place(r, w->pages[i].bytes);
        if (w->pages[i].trained_elems == 0)
            continue;
        r->grads[i] = place(r, w->pages[i].trained_elems * 4);
        assert_ok(r->dev->ops->zero(r->dev, r->grads[i], w->pages[i].trained_elems * 4));
    }
    for (uint32_t i = 0; i <= shape_of(w).block_count; i++)
        r->acts[i] = place(r, shape_of(w).activation_bytes);
    for (uint32_t i = 0; i < shape_of(w).block_count; i++)
        r->internals[i] = place(r, w->layers[i + 1].internal_bytes);
    r->head_internals = place(r, shape_of(w).head_internal_bytes);
    r->workspace = place(r, w->workspace_bytes);
    r->dact = place(r, shape_of(w).activation_bytes);
    r->tokens = place(r, 4 * rows);
    r->targets = place(r, 4 * rows);
    if (w->documents)
        r->positions = place(r, 4 * rows);
    r->loss_sum = place(r, sizeof(double));
    if (w->routes_bytes > 0) {
        r->routes = place(r, w->routes_bytes);
        r->aux_loss = place(r, sizeof(double));
        memset(r->routes, 0xff, w->routes_bytes);
    }
    if (w->constants_bytes > 0)
        r->constants = place(r, w->constants_bytes);
}

static void upload(struct rig *r, void *to, const void *from, uint64_t bytes)
{
    assert_ok(r->dev->ops->upload(r->dev, to, from, bytes));
    assert_ok(r->dev->ops->finish(r->dev, ST_QUEUE_UPLOAD));
}

void rig_open(struct rig *r, const struct st_model_config *config, const struct st_model_batch *batch,
              const struct st_kernels *kernels)
{
    struct st_device_opts opts;

    memset(r, 0, sizeof(*r));
    assert_ok(st_model_create(&r->m, config, batch));
    r->w = st_model_workload(r->m);
    r->compute = st_model_compute(r->m);
    r->rows = r->w->micro_batch * r->w->seq;
    r->arena_bytes = arena_bytes(r->w);
    assert_ok(st_workers_create(&r->workers, batch->workers > 0 ? batch->workers : 1, NULL));
    opts = (struct st_device_opts){.arena_bytes = r->arena_bytes, .workers = r->workers, .kernels = kernels};
    assert_ok(st_device_cpu_ops.open(&r->dev, &opts));
    r->ops = r->dev->ops->tensors;
    place_all(r);
    if (r->constants != NULL)
        upload(r, r->constants, r->compute.constants, r->w->constants_bytes);
}

void rig_close(struct rig *r)
{
    check_guards(r);
    r->dev->ops->close(r->dev);
    st_workers_destroy(r->workers);
    st_model_destroy(r->m);
    free(r->weights);
    free(r->grads);
    free(r->acts);
    free(r->internals);
    free(r->guards);
}

/* As the engine's load rounds what has no low half. */
static void narrow(void *out, strata_dtype format, const float *values, uint64_t elems)
{
    const struct st_kernels *kernels = st_kernels_pick("scalar");

    if (format == STRATA_NF4)
        kernels->nf4_quantise(out, values, elems);
    else if (format == STRATA_BF16)
        kernels->f32_to_bf16(out, values, elems);
    else if (format == STRATA_F16)
        kernels->f32_to_f16(out, values, elems);
    else
        memcpy(out, values, elems * sizeof(*values));
}

void rig_load(struct rig *r, struct st_weight_source source)
{
    for (uint32_t i = 0; i < r->w->page_count; i++) {
        const struct st_page *p = &r->w->pages[i];
        float *values = malloc(p->elems * sizeof(*values));
        unsigned char *page = calloc(1, p->bytes);

        assert_true(values != NULL && page != NULL);
        assert_ok(source.read(source.ctx, i, 0, p->elems, values));
        for (const struct st_group *g = p->groups; g < p->groups + p->group_count; g++)
            narrow(page + g->at, g->format, values + g->offset, g->elems);
        upload(r, r->weights[i], page, p->bytes);
        free(values);
        free(page);
    }
}

void rig_load_dir(struct rig *r, const char *dir)
{
    struct st_hf_reader *reader;

    assert_ok(st_hf_reader_open(&reader, r->m, dir));
    rig_load(r, st_hf_reader_source(reader));
    st_hf_reader_close(reader);
}

void rig_check_near(const float *got, const float *want, uint64_t elems)
{
    double difference2 = 0.0, norm2 = 0.0;

    for (uint64_t e = 0; e < elems; e++) {
        difference2 += pow((double)got[e] - (double)want[e], 2.0);
        norm2 += (double)want[e] * (double)want[e];
    }
    assert_true(norm2 > 0.0 && difference2 <= 1e-10 * norm2);
}

void rig_load_seed(struct rig *r, uint64_t seed)
{
    struct st_model_init init = {.model = r->m, .seed = seed};

    rig_load(r, st_model_init_source(&init));
}

static bool is_backward(enum st_call_kind kind)
{
    return kind == ST_CALL_HEAD_GRAD || kind == ST_CALL_HEAD_BACKWARD || kind == ST_CALL_BLOCK_BACKWARD ||
           kind == ST_CALL_EMBED_BACKWARD || kind == ST_CALL_EXPERTS_BACKWARD || kind == ST_CALL_ROUTE_BACKWARD;
}

struct st_call rig_call(struct rig *r, enum st_call_kind kind, uint32_t page)
{
    return (struct st_call){
        .kind = kind,
        .layer = r->w->pages[page].layer,
        .page = page,
        .ops = r->ops,
        .device = r->dev,
        .weight = r->weights[page],
        .grad = r->grads[page],
        .grad_elems = r->w->pages[page].trained_elems,
        .first = r->begins && r->grads[page] != NULL && is_backward(kind),
        .dact = r->dact,
        .workspace = r->workspace,
        .tokens = r->tokens,
        .targets = r->targets,
        .positions = r->positions,
        .loss_sum = r->loss_sum,
        .routes = r->routes,
        .aux_loss = r->aux_loss,
        .aux_gradient = (float)r->w->aux_loss_coef,
        .constants = r->constants,
        .rows = r->rows,
        .position = r->position,
        .loss_gradient = 1.0f / (float)(r->target_count > 0 ? r->target_count : r->rows),
        .trains = true,
    };
}

void rig_run(struct rig *r, const struct st_call *call)
{
    layout_gaps_fill(r->m, call);
    assert_ok(r->compute.run(r->compute.model, call));
    assert_ok(r->dev->ops->finish(r->dev, ST_QUEUE_COMPUTE));
    layout_gaps_check(r->m, call);
}

static void embed(struct rig *r)
{
    struct st_call call;

    for (uint32_t i = 0; i < shape_of(r->w).table_count; i++) {
        const struct st_page *p = &r->w->pages[i];

        assert_ok(r->dev->ops->embed_gather(r->dev, r->acts[0], r->weights[i], r->tokens, r->rows, r->w->hidden, p->row_first,
                                            p->row_count, r->w->dtype));
    }
    if (shape_of(r->w).position_page == ST_NO_PAGE)
        return;
    call = rig_call(r, ST_CALL_EMBED_FORWARD, shape_of(r->w).position_page);
    call.act = r->acts[0];
    rig_run(r, &call);
}

/* A call of block b on its page number `use`. */
static void block_part(struct rig *r, enum st_call_kind kind, uint32_t b, uint32_t use, bool recompute)
{
    struct st_call call = rig_call(r, kind, st_layer_page(r->w, b + 1, use));

    call.layer = b + 1;
    call.slice = use > 0 ? use - 1 : 0;
    call.act = r->acts[b];
    call.act_out = r->acts[b + 1];
    call.internals = r->internals[b];
    call.recompute = recompute;
    call.opens_routes = kind == ST_CALL_ROUTE_FORWARD;
    for (uint32_t below = 0; below < b; below++)
        call.opens_routes = call.opens_routes && r->w->layers[below + 1].kind != ST_LAYER_EXPERTS;
    rig_run(r, &call);
}

static void block_backward(struct rig *r, uint32_t b, bool recompute)
{
    const struct st_layer *layer = &r->w->layers[b + 1];

    if (recompute)
        memset(r->internals[b], 0xff, layer->internal_bytes);
    if (layer->kind == r->spoilt_kind)
        memset(r->internals[b] + r->spoilt_first, r->spoilt_to_zero ? 0 : 0xff, r->spoilt_bytes);
    if (layer->kind != ST_LAYER_EXPERTS) {
        block_part(r, ST_CALL_BLOCK_BACKWARD, b, 0, recompute);
        return;
    }
    block_part(r, ST_CALL_ROUTE_AGAIN, b, 0, recompute);
    for (uint32_t i = 1; i < layer->use_count; i++)
        block_part(r, ST_CALL_EXPERTS_BACKWARD, b, i, false);
    block_part(r, ST_CALL_ROUTE_BACKWARD, b, 0, false);
}

static void forward(struct rig *r)
{
    embed(r);
    for (uint32_t b = 0; b < shape_of(r->w).block_count; b++) {
        if (r->w->layers[b + 1].kind != ST_LAYER_EXPERTS) {
            block_part(r, ST_CALL_BLOCK_FORWARD, b, 0, false);
            continue;
        }
        block_part(r, ST_CALL_ROUTE_FORWARD, b, 0, false);
        for (uint32_t i = 1; i < r->w->layers[b + 1].use_count; i++)
            block_part(r, ST_CALL_EXPERTS_FORWARD, b, i, false);
        block_part(r, ST_CALL_ROUTE_END, b, 0, false);
    }
}

static void head_slices(struct rig *r, enum st_call_kind kind)
{
    for (uint32_t i = 0; i < shape_of(r->w).head_count; i++) {
        struct st_call call = rig_call(r, kind, shape_of(r->w).head_first + i);

        call.slice = i;
        call.internals = r->head_internals;
        rig_run(r, &call);
    }
}

static void head(struct rig *r, enum st_call_kind kind)
{
    struct st_call call = rig_call(r, kind, shape_of(r->w).norm_page);

    call.act = r->acts[shape_of(r->w).block_count];
    call.internals = r->head_internals;
    rig_run(r, &call);
}

static void backward(struct rig *r, bool recompute)
{
    struct st_call call;

    head(r, ST_CALL_HEAD_BACKWARD);
    for (uint32_t b = shape_of(r->w).block_count; b-- > 0;)
        block_backward(r, b, recompute);
    if (shape_of(r->w).position_page != ST_NO_PAGE) {
        call = rig_call(r, ST_CALL_EMBED_BACKWARD, shape_of(r->w).position_page);
        rig_run(r, &call);
    }
    for (uint32_t i = 0; i < shape_of(r->w).table_count; i++) {
        const struct st_page *p = &r->w->pages[i];

        if (r->grads[i] == NULL)
            continue;
        if (r->begins && !shape_of(r->w).tied)
            assert_ok(r->dev->ops->zero(r->dev, r->grads[i], p->trained_elems * sizeof(float)));
        assert_ok(r->dev->ops->embed_scatter(r->dev, r->grads[i], r->dact, r->tokens, r->rows, r->w->hidden, p->row_first,
                                             p->row_count, r->w->dtype));
    }
}

void rig_forward(struct rig *r, const int32_t *tokens, const int32_t *targets)
{
    upload(r, r->tokens, tokens, 4 * r->rows);
    upload(r, r->targets, targets, 4 * r->rows);
    forward(r);
    head(r, ST_CALL_HEAD_NORM);
    head_slices(r, ST_CALL_HEAD_STATS);
}

double rig_step(struct rig *r, const int32_t *tokens, const int32_t *targets, bool recompute)
{
    double loss_sum;

    rig_forward(r, tokens, targets);
    head(r, ST_CALL_HEAD_LOSS);
    head_slices(r, ST_CALL_HEAD_GRAD);
    backward(r, recompute);
    assert_ok(r->dev->ops->finish(r->dev, ST_QUEUE_COMPUTE));
    assert_ok(r->dev->ops->download(r->dev, &loss_sum, r->loss_sum, sizeof(loss_sum)));
    assert_ok(r->dev->ops->finish(r->dev, ST_QUEUE_DOWNLOAD));
    return loss_sum / (r->target_count > 0 ? r->target_count : r->rows);
}

void golden_open(struct rig *r, const char *dir, const struct st_model_batch *batch, const struct st_kernels *kernels)
{
    struct st_model_batch own = *batch;
    struct st_model_config config;

    own.micro_batch = 2;
    own.seq = 32;
    own.grad_accum = 1;
    assert_ok(st_model_config_read(&config, dir));
    rig_open(r, &config, &own, kernels);
    rig_load_dir(r, dir);
}

void golden_rows(const struct rig *r, const char *dir, int32_t *tokens, int32_t *targets)
{
    struct st_token_set *set;
    char path[256];

    snprintf(path, sizeof(path), "%s/tokens.bin", dir);
    assert_ok(st_token_set_open(&set, &(const char *){path}, 1, r->w->vocab, 32));
    for (uint32_t i = 0; i < 2; i++)
        assert_ok(st_token_set_window(set, i, 0, false, tokens + 32 * i, targets + 32 * i, NULL));
    st_token_set_close(set);
}

double golden_loss(struct rig *r, const char *dir, bool recompute)
{
    int32_t tokens[64], targets[64];

    golden_rows(r, dir, tokens, targets);
    return rig_step(r, tokens, targets, recompute);
}

st_json *golden_json_of(const char *dir, const char *name)
{
    char path[256];
    st_json *root;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    assert_ok(st_json_parse_file(&root, path, 1 << 20));
    return root;
}

st_json *golden_json(const char *dir)
{
    return golden_json_of(dir, "golden.json");
}

static float grad_value(const struct rig *r, const struct st_tensor *t, uint64_t elem)
{
    uint32_t page = t->page;

    while (page + 1 < t->page + t->page_count && elem >= (uint64_t)r->w->pages[page].row_count * r->w->hidden)
        elem -= (uint64_t)r->w->pages[page++].row_count * r->w->hidden;
    return r->grads[page][t->offset + elem];
}

double golden_norm(const struct rig *r, const struct st_tensor *t)
{
    double norm2 = 0.0;

    for (uint64_t i = 0; i < t->elems; i++)
        norm2 += pow((double)grad_value(r, t, i), 2.0);
    return sqrt(norm2);
}

void golden_gradient(const struct rig *r, const struct st_tensor *t, const st_json *want)
{
    const double norm = st_json_number(st_json_get(want, "norm")), typical = norm / sqrt((double)t->elems);
    const double got_norm = golden_norm(r, t);
    uint64_t stride, elem = 0;

    if (fabs(got_norm - norm) > 1e-5 * norm)
        fail_msg("%s: norm %.9g, PyTorch %.9g", t->name, got_norm, norm);
    assert_true(st_json_u64(st_json_get(want, "stride"), &stride));
    for (const st_json *n = st_json_first(st_json_get(want, "samples")); n != NULL; n = st_json_next(n), elem += stride) {
        const double value = st_json_number(n), got = (double)grad_value(r, t, elem);

        if (fabs(got - value) > 1e-4 * fmax(fabs(value), typical))
            fail_msg("%s[%llu]: %.9g, PyTorch %.9g", t->name, (unsigned long long)elem, got, value);
    }
    assert_true(elem > 0);
}

/* tests/layers/outside.c - see outside.h. */
#include "tests/layers/outside.h"

#include "core/base/error.h"
#include "core/system/workers.h"
#include "model/model.h"
#include "offload/compute.h"
#include "offload/device/device.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGES_MOST   64u
#define TENSORS_MOST 64u /* of a page */
#define MICROS_MOST  8u

struct outside {
    struct strata_config *config;
    struct strata_model *model;
    struct strata_plan *plan;
    struct strata_engine *engine;

    struct st_model *decoder;
    struct st_workload w; /* of the decoder: where its pages are used */
    struct st_compute compute;
    struct st_workers *workers;
    const struct st_device_ops *ops;
    struct st_device *device;
    void *stream;
    uint32_t ranks, leaf_micros; /* micro-batches of this rank that are added one after the other */
    double target_count;         /* of the step, of all ranks */
    float loss_gradient;

    struct { /* a tensor, or one page's part of it, by its index at the engine */
        uint32_t page;
        uint64_t offset;
    } places[PAGES_MOST * TENSORS_MOST];

    /* The caller's own memory on the device, from `arena` on: activations of one micro-batch, and gradients at the table of all.
     */
    unsigned char *arena, *act[PAGES_MOST], *internals, *head, *workspace, *dact[MICROS_MOST], *constants;
    uint64_t used;
    int32_t *tokens, *targets; /* [grad_accum][rows] */
    double *loss_sums, losses[MICROS_MOST];
};

/* --- the model as layers --- */

struct described {
    struct strata_layer layers[PAGES_MOST];
    struct strata_layer_tensor tensors[PAGES_MOST][TENSORS_MOST];
    char names[PAGES_MOST][TENSORS_MOST][STRATA_LAYER_NAME_BYTES], layer_names[PAGES_MOST][24];
};

static bool is_resident(const struct st_workload *w, uint32_t page)
{
    return w->layers[0].kind == ST_LAYER_LOOKUP && st_layer_has(w, 0, page);
}

static void describe_tensor(struct outside *o, struct described *d, const struct st_tensor *t, uint32_t part)
{
    const struct st_page *page = &o->w.pages[t->page + part];
    const uint32_t p = t->page + part, i = d->layers[p].tensor_count++;
    struct strata_layer_tensor *to = &d->tensors[p][i];

    assert(i < TENSORS_MOST);
    snprintf(d->names[p][i], sizeof(d->names[p][i]), t->page_count > 1 ? "%s[%u]" : "%s", t->name, part);
    *to = (struct strata_layer_tensor){.name = d->names[p][i], .rank = t->rank, .dtype = t->format};
    memcpy(to->shape, t->shape, sizeof(t->shape[0]) * t->rank);
    if (t->page_count > 1)
        to->shape[0] = page->row_count;
    to->group = t->frozen ? STRATA_FROZEN : st_page_group(page, t->offset)->kind == ST_GROUP_DECAY ? 0 : 1;
}

static void describe(struct outside *o, struct described *d)
{
    uint32_t listed = 0;

    for (uint32_t t = 0; t < st_model_tensor_count(o->decoder); t++)
        for (uint32_t part = 0; part < st_model_tensor(o->decoder, t)->page_count; part++) {
            const struct st_tensor *tensor = st_model_tensor(o->decoder, t);

            describe_tensor(o, d, tensor, part);
            o->places[listed].page = tensor->page + part;
            o->places[listed++].offset = tensor->offset;
        }
    for (uint32_t p = 0; p < o->w.page_count; p++) {
        snprintf(d->layer_names[p], sizeof(d->layer_names[p]), "page.%u", p);
        d->layers[p].name = d->layer_names[p];
        d->layers[p].tensors = d->tensors[p];
        d->layers[p].resident = is_resident(&o->w, p);
        d->layers[p].boundary_bytes = d->layers[p].resident ? 0 : st_workload_boundary_most(&o->w);
    }
}

static strata_status open_layers(struct outside *o, const struct outside_opts *opts)
{
    static const struct strata_param_group groups[] = {{.name = "decay"}, {.name = "no_decay", .own_weight_decay = true}};
    struct strata_layers_opts l = STRATA_LAYERS_OPTS_INIT;
    struct described *d = calloc(1, sizeof(*d));
    strata_status st;

    if (d == NULL)
        return st_nomem(sizeof(*d));
    describe(o, d);
    l.name = "outside";
    l.layers = d->layers;
    l.layer_count = o->w.page_count;
    l.groups = groups;
    l.group_count = 2;
    l.caller_threads = 1;
    l.comm = opts->comm;
    st = strata_layers_open(&o->model, o->config, &l);
    free(d);
    return st;
}

/* --- memory of the caller's own --- */

/* Its place on the device; before there is any: NULL, and counted. */
static void *take(struct outside *o, uint64_t bytes)
{
    unsigned char *at = o->arena != NULL ? o->arena + o->used : NULL;

    o->used += (bytes + 4095) / 4096 * 4096;
    return at;
}

static void take_memory(struct outside *o)
{
    const uint64_t boundary = st_workload_boundary_most(&o->w), rows = outside_rows(o);
    uint64_t internals = 0;

    for (uint32_t l = 0; l + 1 < o->w.layer_count; l++)
        internals = o->w.layers[l].internal_bytes > internals ? o->w.layers[l].internal_bytes : internals;
    o->used = 0;
    for (uint32_t i = 0; i < o->w.layer_count; i++)
        o->act[i] = take(o, boundary);
    for (uint32_t m = 0; m < o->w.grad_accum; m++)
        o->dact[m] = take(o, boundary);
    o->internals = take(o, internals);
    o->head = take(o, o->w.layers[o->w.layer_count - 1].internal_bytes);
    o->workspace = take(o, o->w.workspace_bytes);
    o->constants = take(o, o->w.constants_bytes);
    o->tokens = take(o, rows * sizeof(*o->tokens));
    o->targets = take(o, rows * sizeof(*o->targets));
    o->loss_sums = take(o, sizeof(o->losses));
}

static strata_status put(struct outside *o, void *to, const void *from, uint64_t bytes)
{
    const strata_status st = o->ops->upload(o->device, to, from, bytes);

    return st == STRATA_OK ? o->ops->finish(o->device, ST_QUEUE_UPLOAD) : st;
}

/* --- opening --- */

static strata_status open_decoder(struct outside *o, const struct outside_opts *opts, const struct strata_model_info *is)
{
    const struct st_device_ops *ops = st_device_find(opts->device != NULL ? opts->device : "cpu");
    const struct st_model_batch batch = {.micro_batch = is->micro_batch,
                                         .seq = OUTSIDE_SEQ,
                                         .grad_accum = is->grad_accum,
                                         .dtype = is->dtype,
                                         .decay_all = true,
                                         .workers = 2,
                                         .ops = ops->tensors};
    struct st_device_opts device = {.kernels = st_kernels_pick("auto")};
    struct st_model_config config;
    strata_status st;

    if ((st = st_model_preset(&config, opts->preset)) != STRATA_OK ||
        (st = st_model_create(&o->decoder, &config, &batch)) != STRATA_OK ||
        (st = st_workers_create(&o->workers, 2, NULL)) != STRATA_OK)
        return st;
    device.workers = o->workers;
    o->w = *st_model_workload(o->decoder);
    o->compute = st_model_compute(o->decoder);
    take_memory(o);
    device.arena_bytes = o->used;
    o->ops = ops;
    if ((st = ops->open(&o->device, &device)) != STRATA_OK)
        return st;
    o->arena = ops->arena(o->device);
    take_memory(o);
    o->stream = opts->stream_of != NULL ? opts->stream_of(o->device) : NULL;
    return o->compute.constants != NULL ? put(o, o->constants, o->compute.constants, o->w.constants_bytes) : STRATA_OK;
}

/* What st_model_init_source() gives, tensor by tensor. */
struct filling {
    const struct outside *o;
    struct st_weight_source source;
};

static strata_status fill(void *ctx, uint32_t tensor, uint64_t first, uint64_t elems, float *values)
{
    const struct filling *f = ctx;

    return f->source.read(f->source.ctx, f->o->places[tensor].page, f->o->places[tensor].offset + first, elems, values);
}

/* The engine's pages are the decoder's. */
static strata_status check_places(const struct outside *o)
{
    for (uint32_t i = 0; i < strata_engine_tensor_count(o->engine); i++) {
        struct strata_tensor_info info = STRATA_TENSOR_INFO_INIT;
        const struct st_page *page = &o->w.pages[o->places[i].page];
        const strata_status st = strata_engine_get_tensor(o->engine, i, &info);

        if (st != STRATA_OK)
            return st;
        if (info.layer_index != o->places[i].page || info.weight_at != st_page_at(page, o->places[i].offset) ||
            (info.group != STRATA_FROZEN && info.sum_at != o->places[i].offset))
            return st_error(STRATA_E_INTERNAL, "%s is elsewhere than in the decoder", info.name);
    }
    return STRATA_OK;
}

static strata_status start(struct outside *o, const struct outside_opts *opts)
{
    struct st_model_init init = {.model = o->decoder, .seed = 0};
    struct filling f = {.o = o, .source = st_model_init_source(&init)};
    struct strata_load_opts load = STRATA_LOAD_OPTS_INIT;
    struct strata_machine_opts m = STRATA_MACHINE_OPTS_INIT;
    struct strata_machine *machine = NULL;
    strata_status st;

    m.comm = opts->comm;
    m.device = opts->device;
    load.fill = fill;
    load.fill_ctx = &f;
    if ((st = strata_machine_open(&machine, &m)) != STRATA_OK)
        return st;
    st = strata_plan_make(&o->plan, o->model, machine);
    strata_machine_close(machine);
    if (st != STRATA_OK || (st = strata_engine_create(&o->engine, o->plan, NULL)) != STRATA_OK ||
        (st = check_places(o)) != STRATA_OK)
        return st;
    return strata_engine_load_layers(o->engine, &load);
}

/* Sizes and precision, as a model of strata's own has them. */
static strata_status ask_sizes(struct strata_model_info *is, const struct outside *o, const struct outside_opts *opts)
{
    struct strata_model_opts m = STRATA_MODEL_OPTS_INIT;
    struct strata_model *model = NULL;
    strata_status st;

    m.model = opts->preset;
    m.seq_len = OUTSIDE_SEQ;
    m.use = STRATA_USE_PLAN;
    if ((st = strata_model_open(&model, o->config, &m)) == STRATA_OK)
        st = strata_model_get_info(model, is);
    strata_model_close(model);
    return st;
}

strata_status outside_open(struct outside **out, const struct outside_opts *opts)
{
    struct strata_config_opts c = STRATA_CONFIG_OPTS_INIT;
    struct strata_model_info is = STRATA_MODEL_INFO_INIT;
    struct outside *o = calloc(1, sizeof(*o));
    strata_status st;

    if (o == NULL)
        return st_nomem(sizeof(*o));
    *out = o;
    o->ranks = opts->ranks > 0 ? opts->ranks : 1;
    c.text = opts->text;
    c.overrides = opts->overrides;
    c.override_count = opts->override_count;
    c.ranks = o->ranks;
    if ((st = strata_config_open(&o->config, &c)) != STRATA_OK || (st = ask_sizes(&is, o, opts)) != STRATA_OK ||
        (st = open_decoder(o, opts, &is)) != STRATA_OK || (st = open_layers(o, opts)) != STRATA_OK ||
        (st = start(o, opts)) != STRATA_OK)
        return st;
    o->leaf_micros = o->w.grad_accum;
    if (opts->leaves) /* as many as micro-batches of all ranks */
        o->leaf_micros = 1;
    return STRATA_OK;
}

void outside_close(struct outside *o)
{
    if (o == NULL)
        return;
    strata_engine_destroy(o->engine);
    strata_plan_destroy(o->plan);
    strata_model_close(o->model);
    strata_config_close(o->config);
    if (o->device != NULL)
        o->ops->close(o->device);
    st_workers_destroy(o->workers);
    st_model_destroy(o->decoder);
    free(o);
}

struct strata_engine *outside_engine(struct outside *o)
{
    return o->engine;
}

uint32_t outside_rows(const struct outside *o)
{
    return o->w.micro_batch * OUTSIDE_SEQ * o->w.grad_accum;
}

/* --- a micro-batch --- */

struct micro {
    struct outside *o;
    uint32_t index;
    bool first, last;                /* of those that are added one after the other */
    const int32_t *tokens, *targets; /* device */
};

static strata_status copy(const struct micro *m, void *to, const void *from, uint64_t bytes)
{
    return m->o->ops->copy(m->o->device, to, from, bytes);
}

/* A call of the decoder. */
static strata_status run(const struct micro *m, struct st_call call)
{
    call.micro = m->index;
    call.ops = m->o->ops->tensors;
    call.device = m->o->device;
    call.workspace = m->o->workspace;
    call.tokens = m->tokens;
    call.targets = m->targets;
    call.loss_gradient = m->o->loss_gradient;
    call.trains = true;
    call.constants = m->o->constants;
    call.first = call.first && m->first && call.grad != NULL;
    if (call.grad != NULL)
        call.grad_elems = m->o->w.pages[call.page].trained_elems;
    return m->o->compute.run(m->o->compute.model, &call);
}

static strata_status look(const struct micro *m, enum strata_pass pass, uint32_t page, struct strata_layer_view *view)
{
    *view = (struct strata_layer_view)STRATA_LAYER_VIEW_INIT;
    return is_resident(&m->o->w, page) ? strata_engine_use(m->o->engine, pass, page, view)
                                       : strata_engine_enter(m->o->engine, pass, page, view);
}

/* The lookup's pages: gathered ones, and maybe one that is added. */
static bool has_positions(const struct st_workload *w)
{
    return w->layers[0].use_count > w->gathered_count;
}

static strata_status embed(const struct micro *m)
{
    const struct st_workload *w = &m->o->w;
    struct strata_layer_view view;
    strata_status st = STRATA_OK;

    for (uint32_t p = 0; p < w->gathered_count && st == STRATA_OK; p++)
        if ((st = look(m, STRATA_FORWARD, p, &view)) == STRATA_OK)
            st = m->o->ops->embed_gather(m->o->device, m->o->act[0], view.weights, m->tokens, w->micro_batch * w->seq, w->hidden,
                                         w->pages[p].row_first, w->pages[p].row_count, w->dtype);
    if (st != STRATA_OK || !has_positions(w) || (st = look(m, STRATA_FORWARD, w->gathered_count, &view)) != STRATA_OK)
        return st;
    return run(m, (struct st_call){
                      .kind = ST_CALL_EMBED_FORWARD, .page = w->gathered_count, .weight = view.weights, .act = m->o->act[0]});
}

static strata_status blocks_forward(const struct micro *m)
{
    const struct st_workload *w = &m->o->w;
    strata_status st = STRATA_OK;

    for (uint32_t l = st_block_first(w), i = 0; l < st_block_end(w) && st == STRATA_OK; l++, i++) {
        const uint32_t page = st_layer_page(w, l, 0);
        struct strata_layer_view view;

        if ((st = look(m, STRATA_FORWARD, page, &view)) != STRATA_OK)
            return st;
        if ((st = copy(m, view.boundary, m->o->act[i], view.boundary_bytes)) != STRATA_OK)
            return st;
        st = run(m, (struct st_call){.kind = ST_CALL_BLOCK_FORWARD,
                                     .layer = l,
                                     .page = page,
                                     .weight = view.weights,
                                     .act = m->o->act[i],
                                     .act_out = m->o->act[i + 1],
                                     .internals = m->o->internals});
        if (st == STRATA_OK)
            st = strata_engine_leave(m->o->engine);
    }
    return st;
}

/* One of the head's calls per slice, or one of the norm's page. */
static strata_status head_call(const struct micro *m, enum st_call_kind kind, uint32_t slice,
                               const struct strata_layer_view *view, void *act)
{
    const struct st_workload *w = &m->o->w;
    const uint32_t l = w->layer_count - 1;
    const bool sliced = kind == ST_CALL_HEAD_STATS || kind == ST_CALL_HEAD_GRAD;

    return run(m, (struct st_call){.kind = kind,
                                   .layer = l,
                                   .page = st_layer_page(w, l, sliced ? 1 + slice : 0),
                                   .slice = slice,
                                   .recompute = true,
                                   .weight = view->weights,
                                   .grad = view->sum,
                                   .first = true,
                                   .act = act,
                                   .dact = m->o->dact[m->index],
                                   .internals = m->o->head,
                                   .loss_sum = &m->o->loss_sums[m->index]});
}

static strata_status head_forward(const struct micro *m)
{
    const struct st_workload *w = &m->o->w;
    const uint32_t norm = st_layer_page(w, w->layer_count - 1, 0);
    void *act = m->o->act[st_block_count(w)];
    struct strata_layer_view view, slice;
    strata_status st = look(m, STRATA_FORWARD, norm, &view);

    if (st == STRATA_OK)
        st = copy(m, view.boundary, act, view.boundary_bytes);
    if (st == STRATA_OK)
        st = head_call(m, ST_CALL_HEAD_NORM, 0, &view, act);
    for (uint32_t i = 0; i < st_slice_count(w) && st == STRATA_OK; i++)
        if ((st = look(m, STRATA_FORWARD, st_layer_page(w, w->layer_count - 1, 1 + i), &slice)) == STRATA_OK)
            st = head_call(m, ST_CALL_HEAD_STATS, i, &slice, act);
    if (st == STRATA_OK)
        st = head_call(m, ST_CALL_HEAD_LOSS, 0, &view, act);
    return st == STRATA_OK ? strata_engine_leave(m->o->engine) : st;
}

static strata_status head_backward(const struct micro *m)
{
    const struct st_workload *w = &m->o->w;
    struct strata_layer_view view, slice;
    strata_status st = look(m, STRATA_BACKWARD, st_layer_page(w, w->layer_count - 1, 0), &view);

    for (uint32_t i = 0; i < st_slice_count(w) && st == STRATA_OK; i++)
        if ((st = look(m, STRATA_BACKWARD, st_layer_page(w, w->layer_count - 1, 1 + i), &slice)) == STRATA_OK)
            st = head_call(m, ST_CALL_HEAD_GRAD, i, &slice, view.boundary);
    if (st == STRATA_OK)
        st = head_call(m, ST_CALL_HEAD_BACKWARD, 0, &view, view.boundary);
    return st == STRATA_OK ? strata_engine_leave(m->o->engine) : st;
}

static strata_status blocks_backward(const struct micro *m)
{
    const struct st_workload *w = &m->o->w;
    strata_status st = STRATA_OK;

    for (uint32_t l = st_block_end(w); l-- > st_block_first(w) && st == STRATA_OK;) {
        const uint32_t page = st_layer_page(w, l, 0);
        struct strata_layer_view view;

        if ((st = look(m, STRATA_BACKWARD, page, &view)) != STRATA_OK)
            return st;
        st = run(m, (struct st_call){.kind = ST_CALL_BLOCK_BACKWARD,
                                     .layer = l,
                                     .page = page,
                                     .recompute = true,
                                     .weight = view.weights,
                                     .grad = view.sum,
                                     .first = true,
                                     .act = view.boundary,
                                     .dact = m->o->dact[m->index],
                                     .internals = m->o->internals});
        if (st == STRATA_OK)
            st = strata_engine_leave(m->o->engine);
    }
    return st;
}

/* Gradients of the table's rows are added after all others, micro-batch by micro-batch, row by row. */
static strata_status scatter(const struct micro *m)
{
    const struct st_workload *w = &m->o->w;
    const uint32_t rows = w->micro_batch * w->seq;
    strata_status st = STRATA_OK;

    for (uint32_t p = 0; p < w->gathered_count && st == STRATA_OK; p++) {
        struct strata_layer_view view;

        st = look(m, STRATA_BACKWARD, p, &view);
        for (uint32_t i = m->index + 1 - m->o->leaf_micros; i <= m->index && st == STRATA_OK; i++)
            st = m->o->ops->embed_scatter(m->o->device, view.sum, m->o->dact[i], m->o->tokens + i * rows, rows, w->hidden,
                                          w->pages[p].row_first, w->pages[p].row_count, w->dtype);
    }
    return st;
}

static strata_status embed_backward(const struct micro *m)
{
    const struct st_workload *w = &m->o->w;
    struct strata_layer_view view;
    strata_status st = STRATA_OK;

    if (has_positions(w) && (st = look(m, STRATA_BACKWARD, w->gathered_count, &view)) == STRATA_OK)
        st = run(m, (struct st_call){.kind = ST_CALL_EMBED_BACKWARD,
                                     .page = w->gathered_count,
                                     .grad = view.sum,
                                     .first = true,
                                     .dact = m->o->dact[m->index]});
    return st == STRATA_OK && m->last ? scatter(m) : st;
}

/* --- a step --- */

static strata_status one_micro(const struct micro *m)
{
    strata_status st;

    if ((st = embed(m)) != STRATA_OK || (st = blocks_forward(m)) != STRATA_OK || (st = head_forward(m)) != STRATA_OK ||
        (st = head_backward(m)) != STRATA_OK || (st = blocks_backward(m)) != STRATA_OK || (st = embed_backward(m)) != STRATA_OK)
        return st;
    return strata_engine_micro_end(m->o->engine);
}

strata_status outside_step(struct outside *o, const int32_t *tokens, const int32_t *targets, struct strata_step *result)
{
    const uint32_t rows = o->w.micro_batch * OUTSIDE_SEQ;
    struct strata_layers_step step = STRATA_LAYERS_STEP_INIT;
    struct strata_layers_end end = STRATA_LAYERS_END_INIT;
    double scale = 1;
    strata_status st;

    step.stream = o->stream;
    if ((st = put(o, o->tokens, tokens, outside_rows(o) * sizeof(*tokens))) == STRATA_OK &&
        (st = put(o, o->targets, targets, outside_rows(o) * sizeof(*targets))) == STRATA_OK)
        st = strata_engine_begin(o->engine, &step, &scale);

    o->target_count = (double)rows * o->w.grad_accum * o->ranks;
    o->loss_gradient = (float)(scale / o->target_count);
    for (uint32_t i = 0; i < o->w.grad_accum && st == STRATA_OK; i++) {
        const struct micro m = {.o = o,
                                .index = i,
                                .first = i % o->leaf_micros == 0,
                                .last = (i + 1) % o->leaf_micros == 0,
                                .tokens = o->tokens + i * rows,
                                .targets = o->targets + i * rows};

        st = one_micro(&m);
    }
    if (st == STRATA_OK && (st = o->ops->finish(o->device, ST_QUEUE_COMPUTE)) == STRATA_OK &&
        (st = o->ops->download(o->device, o->losses, o->loss_sums, sizeof(o->losses))) == STRATA_OK)
        st = o->ops->finish(o->device, ST_QUEUE_DOWNLOAD);
    for (uint32_t i = 0; i < o->w.grad_accum; i++)
        o->losses[i] /= o->target_count;
    end.losses = o->losses;
    end.divisor = 1.0 / o->ranks; /* the loss's gradient has been divided already */
    return st == STRATA_OK ? strata_engine_end(o->engine, &end, result) : st;
}

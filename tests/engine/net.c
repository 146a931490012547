/* net.c - see net.h. */
#include "net.h"
#include "tests/common/test.h"

#include "core/base/error.h"
#include "core/base/rng.h"
#include "offload/comm/comm.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH  96u
#define INNER  96u
#define VOCAB  40u
#define ROWS   3u
#define AMPLE  (UINT64_C(1) << 40)
#define TAG    0x5eedu
#define EMBED  0u /* pages */
#define GAIN   1u
#define LAYER0 2u

#define MATRIX ((uint64_t)WIDTH * INNER)

/* What a layer keeps for its backward. */
struct boundary {
    float h[ROWS * WIDTH];
    uint32_t layer, micro, tag;
};

/* --- workload and plan --- */

void net_workload(struct st_workload *w, const struct net_cell *cell)
{
    struct st_page *page;

    memset(w, 0, sizeof(*w));
    snprintf(w->name, sizeof(w->name), "net");
    w->dtype = cell->dtype;
    w->micro_batch = w->seq = 1;
    w->grad_accum = NET_MICROS / (cell->ranks > 0 ? cell->ranks : 1);
    w->workers = 2;
    w->scales = cell->scales;
    assert_true(st_workload_add_layer(w, ST_LAYER_RESIDENT));
    assert_non_null(page = st_workload_add_page(w, 0));
    st_page_add_to(page, 1, ST_GROUP_DECAY, cell->dtype, VOCAB * WIDTH);
    assert_non_null(page = st_workload_add_page(w, 0));
    st_page_add_to(page, 1, ST_GROUP_NO_DECAY, cell->dtype, WIDTH);
    for (uint32_t l = 0; l < NET_LAYERS; l++) {
        const bool frozen = cell->frozen == l + 1;

        if (!cell->all_stay) {
            w->layers[w->layer_count - 1].boundary_bytes = sizeof(struct boundary);
            assert_true(st_workload_add_layer(w, ST_LAYER_BLOCK));
        }
        assert_non_null(page = st_workload_add_page(w, 0));
        st_page_add_to(page, 0, frozen ? ST_GROUP_FROZEN : ST_GROUP_DECAY, cell->dtype, 2 * MATRIX);
        st_page_add_to(page, l % 2, frozen ? ST_GROUP_FROZEN : ST_GROUP_NO_DECAY, cell->dtype, INNER);
    }
    for (uint32_t p = 0; p < w->page_count; p++)
        for (uint32_t g = 0; g < w->pages[p].group_count; g++)
            w->params += w->pages[p].groups[g].kind == ST_GROUP_FROZEN ? 0 : w->pages[p].groups[g].elems;
    if (st_workload_check(w) != STRATA_OK)
        fail_msg("%s", strata_last_error());
}

struct st_plan *net_plan(const struct st_workload *w, const struct net_cell *cell, uint32_t rank)
{
    struct st_capacity capacity = {.bytes = {AMPLE, AMPLE, AMPLE}, .workers = 2, .device_is_host = cell->launch == NULL};
    const struct st_policy policy = {.ranks = cell->ranks,
                                     .rank = rank,
                                     .stage = cell->stage,
                                     .param_tier = cell->param,
                                     .optimizer_tier = cell->optimizer,
                                     .activation_tier = cell->acts,
                                     .update = cell->update,
                                     .accumulation = ST_ACCUMULATE_AUTO,
                                     .leaves = cell->leaves / (cell->ranks > 0 ? cell->ranks : 1),
                                     .needs_norm = cell->update != ST_UPDATE_IN_BACKWARD,
                                     .cache = cell->cache,
                                     .moments = 2,
                                     .sets = cell->sets,
                                     .chunk_elems = ST_TILE_ELEMS};
    struct st_plan *plan = NULL;
    char text[NET_TEXT];

    for (int t = STRATA_TIER_DEVICE; t <= STRATA_TIER_HOST; t++) {
        if (!(t == STRATA_TIER_DEVICE ? cell->device_least : cell->host_least))
            continue;
        capacity.bytes[t] = 0;
        assert_int_equal(st_plan_make(&plan, w, &capacity, &policy), STRATA_E_NOFIT);
        capacity.bytes[t] = plan->minimum[t];
        st_plan_destroy(plan);
    }
    if (st_plan_make(&plan, w, &capacity, &policy) != STRATA_OK || st_plan_verify(plan) != STRATA_OK)
        fail_msg("%s: %s", net_text(text, cell), strata_last_error());
    return plan;
}

/* --- what the net computes --- */

static float draw(uint64_t seed, uint64_t at)
{
    float value;

    st_rng_normal(&value, 1, seed, 0, at, 1.0f);
    return value;
}

static float widen(const void *weights, strata_dtype dtype, uint64_t i)
{
    uint32_t bits;
    float value;

    if (dtype == STRATA_F32)
        return ((const float *)weights)[i];
    assert(dtype == STRATA_BF16);
    bits = (uint32_t)((const uint16_t *)weights)[i] << 16;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* A micro-batch on its way. */
struct pass {
    float h[ROWS * WIDTH], dh[ROWS * WIDTH];
    float d_embed[VOCAB * WIDTH], d_gain[WIDTH];
    uint32_t token[ROWS];
    double loss;
    struct boundary kept[NET_LAYERS]; /* of layers that stay on the device */
};

static void embed(struct pass *p, const struct net *net, const void *table, uint64_t seed)
{
    for (uint32_t r = 0; r < ROWS; r++) {
        p->token[r] = (uint32_t)(fabsf(draw(seed, r)) * 1000) % VOCAB;
        for (uint32_t k = 0; k < WIDTH; k++)
            p->h[r * WIDTH + k] = widen(table, net->cell->dtype, (uint64_t)p->token[r] * WIDTH + k);
    }
}

/* One row of a layer: what is inside, before and after; adds to h. */
static void inside(float *z, const float *h, const unsigned char *weight, strata_dtype dt)
{
    const unsigned char *bias = weight + 2 * MATRIX * strata_dtype_bytes(dt);

    for (uint32_t j = 0; j < INNER; j++) {
        z[j] = widen(bias, dt, j);
        for (uint32_t k = 0; k < WIDTH; k++)
            z[j] += widen(weight, dt, (uint64_t)j * WIDTH + k) * h[k];
    }
}

static void layer_forward(struct pass *p, const struct net *net, const unsigned char *weight)
{
    const strata_dtype dt = net->cell->dtype;
    float z[INNER];

    for (uint32_t r = 0; r < ROWS; r++) {
        inside(z, p->h + r * WIDTH, weight, dt);
        for (uint32_t k = 0; k < WIDTH; k++)
            for (uint32_t j = 0; j < INNER; j++)
                p->h[r * WIDTH + k] += z[j] > 0 ? widen(weight, dt, MATRIX + (uint64_t)k * INNER + j) * z[j] : 0;
    }
}

/* grad: [2 * MATRIX] and then [INNER]. */
static void layer_backward(struct pass *p, const struct net *net, const unsigned char *weight, const struct boundary *b,
                           float *grad)
{
    const strata_dtype dt = net->cell->dtype;
    float z[INNER], dz[INNER];

    memset(grad, 0, (2 * MATRIX + INNER) * sizeof(*grad));
    for (uint32_t r = 0; r < ROWS; r++) {
        float *dh = p->dh + r * WIDTH;
        const float *h = b->h + r * WIDTH;

        inside(z, h, weight, dt);
        for (uint32_t j = 0; j < INNER; j++) {
            dz[j] = 0;
            for (uint32_t k = 0; k < WIDTH && z[j] > 0; k++) {
                grad[MATRIX + (uint64_t)k * INNER + j] += dh[k] * z[j];
                dz[j] += widen(weight, dt, MATRIX + (uint64_t)k * INNER + j) * dh[k];
            }
            grad[2 * MATRIX + j] += dz[j];
        }
        for (uint32_t j = 0; j < INNER; j++)
            for (uint32_t k = 0; k < WIDTH && z[j] > 0; k++) {
                grad[(uint64_t)j * WIDTH + k] += dz[j] * h[k];
                dh[k] += dz[j] * widen(weight, dt, (uint64_t)j * WIDTH + k);
            }
    }
}

static void head(struct pass *p, const struct net *net, const void *table, const void *gain, uint64_t seed, double scale)
{
    const strata_dtype dt = net->cell->dtype;

    memset(p->dh, 0, sizeof(p->dh));
    memset(p->d_embed, 0, sizeof(p->d_embed));
    memset(p->d_gain, 0, sizeof(p->d_gain));
    p->loss = 0;
    for (uint32_t i = 0; i < ROWS * VOCAB; i++) {
        const uint32_t r = i / VOCAB, v = i % VOCAB;
        float y = -draw(seed, 1000 + i), dy;

        for (uint32_t k = 0; k < WIDTH; k++)
            y += widen(gain, dt, k) * p->h[r * WIDTH + k] * widen(table, dt, (uint64_t)v * WIDTH + k);
        p->loss += 0.5 * (double)y * (double)y;
        dy = (float)(scale * (double)y);
        for (uint32_t k = 0; k < WIDTH; k++) {
            const float g = widen(gain, dt, k), h = p->h[r * WIDTH + k], e = widen(table, dt, (uint64_t)v * WIDTH + k);

            p->d_embed[v * WIDTH + k] += dy * g * h;
            p->d_gain[k] += dy * h * e;
            p->dh[r * WIDTH + k] += dy * g * e;
        }
    }
}

/* --- where it is computed --- */

struct net_kept {
    _Alignas(max_align_t) struct net_kept *next;
};

/* Memory until the step has ended, for what may still be enqueued. */
static void *keep(struct net *net, size_t bytes)
{
    struct net_kept *k = malloc(sizeof(*k) + bytes);

    assert_non_null(k);
    k->next = net->kept;
    net->kept = k;
    return k + 1;
}

static void drop_kept(struct net *net)
{
    for (struct net_kept *k = net->kept, *next; k != NULL; k = next) {
        next = k->next;
        free(k);
    }
    net->kept = NULL;
}

/* A piece of it: what it needs of these. */
struct work {
    void (*run)(const struct work *w);
    struct net *net;
    struct pass *pass;
    const void *weight, *gain;
    struct boundary *boundary;
    float *grad;
    uint16_t *rounded;
    double *loss, scale;
    uint64_t seed, elems;
    uint32_t layer, micro;
};

static void run_work(void *data)
{
    const struct work *w = data;

    w->run(w);
}

static void launch(struct net *net, struct work w)
{
    struct work *later;

    w.net = net;
    if (net->cell->launch == NULL) {
        w.run(&w);
        return;
    }
    later = keep(net, sizeof(*later));
    *later = w;
    net->cell->launch(net->cell->stream, run_work, later);
}

static void run_embed(const struct work *w)
{
    embed(w->pass, w->net, w->weight, w->seed);
}

static void run_forward(const struct work *w)
{
    struct boundary *b = w->boundary;

    if (b != NULL) {
        memcpy(b->h, w->pass->h, sizeof(b->h));
        b->layer = w->layer;
        b->micro = w->micro;
        b->tag = TAG + w->net->step;
    }
    layer_forward(w->pass, w->net, w->weight);
}

static void run_head(const struct work *w)
{
    head(w->pass, w->net, w->weight, w->gain, w->seed, w->scale);
    *w->loss = w->pass->loss;
}

static void run_backward(const struct work *w)
{
    const struct boundary *b = w->boundary;

    if (b->layer != w->layer || b->micro != w->micro || b->tag != TAG + w->net->step)
        w->net->wrong = true;
    layer_backward(w->pass, w->net, w->weight, b, w->grad);
}

/* The gradients of looked up rows, beside those of the head. */
static void run_rows(const struct work *w)
{
    memset(w->grad, 0, VOCAB * WIDTH * sizeof(*w->grad));
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t k = 0; k < WIDTH; k++)
            w->grad[w->pass->token[r] * WIDTH + k] += w->pass->dh[r * WIDTH + k];
}

static void run_round(const struct work *w)
{
    for (uint64_t i = 0; i < w->elems; i++) {
        const float value = w->net->cell->poison_at == w->net->step && i == w->elems / 2 ? INFINITY : w->grad[i];
        uint32_t bits;

        memcpy(&bits, &value, sizeof(bits));
        w->rounded[i] = (uint16_t)(bits >> 16); /* bf16, cut off */
    }
}

/* --- calls --- */

/* One call of the engine, which a thread of its own may make. */
struct call {
    struct net *net;
    enum { BEGIN, ENTER, LEAVE, USE, ADD, MICRO_END, END, DROP } what;
    const struct st_caller_step *step;
    enum st_pass pass;
    uint32_t index; /* layer or page */
    uint64_t first, elems;
    strata_dtype dtype;
    const void *grad;
    const double *losses;
    double divisor, *scale;
    const void **weight;
    struct st_caller_view *view;
    struct st_step_result *result;
    strata_status status;
    char said[512];
};

static void *make(void *arg)
{
    struct call *c = arg;
    struct st_engine *eng = c->net->engine;

    switch (c->what) {
    case BEGIN:
        c->status = st_engine_caller_begin(eng, c->step, c->scale);
        break;
    case ENTER:
        c->status = st_engine_caller_enter(eng, c->pass, c->index, c->view);
        break;
    case LEAVE:
        c->status = st_engine_caller_leave(eng);
        break;
    case USE:
        c->status = st_engine_caller_use(eng, c->index, c->weight);
        break;
    case ADD:
        c->status = st_engine_caller_add(eng, c->index, c->first, c->dtype, c->elems, c->grad);
        break;
    case MICRO_END:
        c->status = st_engine_caller_micro_end(eng);
        break;
    case END:
        c->status = st_engine_caller_end(eng, c->losses, c->divisor, c->result);
        break;
    case DROP:
        c->status = st_engine_caller_drop(eng, c->result);
        break;
    }
    if (c->status != STRATA_OK)
        snprintf(c->said, sizeof(c->said), "%s", strata_last_error());
    return NULL;
}

/* STRATA_E_CANCELLED: the step is to be dropped now. */
static strata_status call(struct net *net, struct call c)
{
    const struct net_cell *cell = net->cell;
    pthread_t thread;

    c.net = net;
    if (c.what != DROP && cell->drop_at == net->step && cell->drop_rank == net->rank && net->calls == cell->drop_call) {
        net->stops = true;
        return STRATA_E_CANCELLED;
    }
    net->calls++;
    if (cell->foreign) {
        assert_int_equal(pthread_create(&thread, NULL, make, &c), 0);
        pthread_join(thread, NULL);
        return c.status == STRATA_OK ? STRATA_OK : st_error(c.status, "%s", c.said);
    }
    (void)make(&c);
    return c.status;
}

static strata_status use(struct net *net, uint32_t page, const void **weight)
{
    return call(net, (struct call){.what = USE, .index = page, .weight = weight});
}

/* In two parts, in the format of what the cell reports. */
static strata_status report(struct net *net, uint32_t page, uint64_t first, float *grad, uint64_t elems)
{
    const strata_dtype dt = net->cell->grads;
    const uint64_t parts[] = {0, elems / 3, elems};
    uint16_t *rounded = keep(net, elems * sizeof(*rounded));
    strata_status st = STRATA_OK;

    launch(net, (struct work){.run = run_round, .grad = grad, .rounded = rounded, .elems = elems});
    for (uint32_t i = 0; i < 2 && st == STRATA_OK; i++) {
        const struct call c = {.what = ADD,
                               .index = page,
                               .first = first + parts[i],
                               .elems = parts[i + 1] - parts[i],
                               .dtype = dt,
                               .grad = dt == STRATA_F32 && net->cell->poison_at != net->step
                                           ? (const void *)(grad + parts[i])
                                           : (const void *)(rounded + parts[i])};
        struct call bf16 = c;

        if (net->cell->poison_at == net->step)
            bf16.dtype = STRATA_BF16;
        st = call(net, bf16);
    }
    return st;
}

/* --- one step --- */

static strata_status forward(struct net *net, struct pass *p, bool evaluates)
{
    strata_status st = STRATA_OK;

    for (uint32_t l = 0; l < NET_LAYERS && st == STRATA_OK; l++) {
        struct st_caller_view view;
        const void *weight;

        if (net->cell->all_stay) {
            if ((st = use(net, LAYER0 + l, &weight)) == STRATA_OK)
                launch(net, (struct work){.run = run_forward, .pass = p, .weight = weight, .boundary = &p->kept[l], .layer = l});
            continue;
        }
        if ((st = call(net, (struct call){.what = ENTER, .pass = ST_PASS_FORWARD, .index = l, .view = &view})) != STRATA_OK)
            return st;
        if ((view.boundary == NULL) != evaluates || view.page != LAYER0 + l || view.sum != NULL)
            return st_error(STRATA_E_INTERNAL, "a view of layer %u", l);
        launch(net, (struct work){.run = run_forward,
                                  .pass = p,
                                  .weight = view.weight,
                                  .boundary = view.boundary,
                                  .layer = l,
                                  .micro = view.micro});
        st = call(net, (struct call){.what = LEAVE});
    }
    return st;
}

/* The backward of a layer that stays on the device. */
static strata_status staying_backward(struct net *net, struct pass *p, uint32_t l, float *grad)
{
    const void *weight;
    strata_status st = use(net, LAYER0 + l, &weight);

    if (st != STRATA_OK)
        return st;
    launch(net,
           (struct work){.run = run_backward, .pass = p, .weight = weight, .boundary = &p->kept[l], .grad = grad, .layer = l});
    if (net->cell->frozen == l + 1)
        return STRATA_OK;
    st = report(net, LAYER0 + l, 0, grad, 2 * MATRIX);
    return st == STRATA_OK ? report(net, LAYER0 + l, 2 * MATRIX, grad + 2 * MATRIX, INNER) : st;
}

static strata_status backward(struct net *net, struct pass *p, uint32_t micro)
{
    strata_status st = STRATA_OK;

    for (uint32_t l = NET_LAYERS; l-- > 0 && st == STRATA_OK;) {
        float *grad = keep(net, (2 * MATRIX + INNER) * sizeof(*grad));
        struct st_caller_view view;

        if (net->cell->frozen == l + 1 && l == 0)
            continue; /* autograd would leave it out */
        if (net->cell->all_stay) {
            st = staying_backward(net, p, l, grad);
            continue;
        }
        st = call(net, (struct call){.what = ENTER, .pass = ST_PASS_BACKWARD, .index = l, .view = &view});
        if (st != STRATA_OK)
            break;
        if (view.boundary == NULL || view.micro != micro)
            return st_error(STRATA_E_INTERNAL, "a view of layer %u", l);
        launch(net, (struct work){.run = run_backward,
                                  .pass = p,
                                  .weight = view.weight,
                                  .boundary = view.boundary,
                                  .grad = grad,
                                  .layer = l,
                                  .micro = micro});
        if (net->cell->frozen != l + 1) {
            st = report(net, view.page, 0, grad, 2 * MATRIX);
            if (st == STRATA_OK)
                st = report(net, view.page, 2 * MATRIX, grad + 2 * MATRIX, INNER);
        }
        if (st == STRATA_OK)
            st = call(net, (struct call){.what = LEAVE});
    }
    return st;
}

static strata_status end_backward(struct net *net, struct pass *p)
{
    float *rows = keep(net, VOCAB * WIDTH * sizeof(*rows));

    launch(net, (struct work){.run = run_rows, .pass = p, .grad = rows});
    return report(net, EMBED, 0, rows, VOCAB * WIDTH);
}

static strata_status micro(struct net *net, uint32_t m, uint32_t global, bool evaluates, double scale, double *loss)
{
    struct pass *p = keep(net, sizeof(*p));
    const uint64_t seed = 100 * net->step + global;
    const void *table, *gain;
    strata_status st;

    if ((st = use(net, EMBED, &table)) != STRATA_OK)
        return st;
    launch(net, (struct work){.run = run_embed, .pass = p, .weight = table, .seed = seed});
    if ((st = forward(net, p, evaluates)) != STRATA_OK || (st = use(net, GAIN, &gain)) != STRATA_OK ||
        (st = use(net, EMBED, &table)) != STRATA_OK)
        return st;
    launch(net,
           (struct work){.run = run_head, .pass = p, .weight = table, .gain = gain, .seed = seed, .scale = scale, .loss = loss});
    if (!evaluates && ((st = report(net, EMBED, 0, p->d_embed, VOCAB * WIDTH)) != STRATA_OK ||
                       (st = report(net, GAIN, 0, p->d_gain, WIDTH)) != STRATA_OK || (st = backward(net, p, m)) != STRATA_OK ||
                       (st = end_backward(net, p)) != STRATA_OK))
        return st;
    return call(net, (struct call){.what = MICRO_END});
}

static strata_status compute(struct net *net, bool evaluates, struct st_step_result *result)
{
    const struct net_cell *cell = net->cell;
    const double lr[] = {1e-3, 2e-3}, decay[] = {0.1, 0.01};
    const uint32_t all = net->plan->program.workload.grad_accum, ranks = cell->ranks > 0 ? cell->ranks : 1;
    const uint32_t micros = all - (!evaluates && cell->fewer_at == net->step ? 1 : 0);
    const bool early = cell->update == ST_UPDATE_IN_BACKWARD && !evaluates;
    const struct st_caller_step step = {.evaluates = evaluates,
                                        .micros = micros,
                                        .sets = 2,
                                        .lr = lr,
                                        .weight_decay = decay,
                                        .divisor = early ? (double)(micros * ranks * ROWS * VOCAB) : 0,
                                        .stream = cell->stream};
    double *losses = keep(net, NET_MICROS * sizeof(*losses)), scale;
    strata_status st = st_engine_caller_begin(net->engine, &step, &scale);

    for (uint32_t m = 0; m < micros && st == STRATA_OK; m++)
        st = micro(net, m, net->rank * all + m, evaluates, scale, &losses[m]);
    if (st == STRATA_OK)
        st = call(net, (struct call){.what = END, .losses = losses, .divisor = micros * ROWS * VOCAB, .result = result});
    return st;
}

static strata_status start(struct net *net, uint32_t step, bool evaluates, struct st_step_result *result)
{
    net->step = evaluates ? 100 + step : step;
    net->calls = 0;
    net->stops = false;
    drop_kept(net);
    return compute(net, evaluates, result);
}

strata_status net_begin(struct net *net, uint32_t step, struct st_step_result *result)
{
    return start(net, step, false, result);
}

strata_status net_step(struct net *net, uint32_t step, bool evaluates, struct st_step_result *result)
{
    strata_status st = start(net, step, evaluates, result);

    if (net->wrong)
        return st_error(STRATA_E_INTERNAL, "a boundary of step %u", step);
    if (net->stops)
        return call(net, (struct call){.what = DROP, .result = result});
    if (st != STRATA_OK && st_engine_caller_inside(net->engine)) {
        struct st_sentence said;

        st_error_keep(&said);
        (void)st_engine_caller_drop(net->engine, NULL);
        return st_error_again(st, &said);
    }
    return st;
}

/* --- whole runs --- */

static strata_status fill(void *ctx, uint32_t page, uint64_t first, uint64_t count, float *out)
{
    (void)ctx;
    for (uint64_t i = 0; i < count; i++)
        out[i] = 0.05f * draw(7000 + page, first + i) + (page == GAIN ? 1.0f : 0.0f);
    return STRATA_OK;
}

strata_status net_open(struct net *net, const struct st_plan *plan, const struct net_cell *cell, uint32_t rank,
                       struct st_comm *comm, const char *dir)
{
    struct st_engine_opts opts = {.program = &plan->program,
                                  .training = {.optimizer = {.type = STRATA_ADAMW,
                                                             .lr = 1e-3,
                                                             .weight_decay = 0.1,
                                                             .beta1 = 0.9,
                                                             .beta2 = 0.95,
                                                             .eps = 1e-8,
                                                             .bias_correction = true},
                                               .scaling = {.initial_power = 10, .window = 2, .hysteresis = 1, .min_scale = 1},
                                               .clip_norm = cell->update == ST_UPDATE_IN_BACKWARD ? 0 : cell->clip,
                                               .skip_overflow = cell->update != ST_UPDATE_IN_BACKWARD},
                                  .threads = cell->threads,
                                  .device = cell->launch != NULL ? "cuda"
                                            : cell->paced        ? "paced"
                                                                 : NULL,
                                  .device_deadline_ns = cell->deadline_ns,
                                  .pace = &net->pace,
                                  .nvme = {.dir_count = 1,
                                           .dirs = {dir},
                                           .method = cell->io,
                                           .block_bytes = 65536,
                                           .queue_depth = 8,
                                           .fake_seed = 5,
                                           .fake_latency_us = 50},
                                  .comm = comm,
                                  .device_comm = comm};
    strata_status st;

    *net = (struct net){.cell = cell, .plan = plan, .rank = rank};
    if (comm != NULL && cell->open_device_comm != NULL) {
        if ((st = cell->open_device_comm(&net->device_comm, comm)) != STRATA_OK)
            return st;
        opts.device_comm = net->device_comm;
    }
    net->pace = (struct st_machine){.name = "net", .rates = {.upload = 1e10, .download = 1e10, .memory = 1e11, .launch = 1e-6}};
    st = st_engine_create(&net->engine, &opts);
    return st == STRATA_OK ? st_engine_load(net->engine, fill, NULL) : st;
}

void net_close(struct net *net)
{
    st_engine_destroy(net->engine);
    st_comm_close(net->device_comm);
    net->engine = NULL;
    net->device_comm = NULL;
    drop_kept(net);
}

static void add_planned(struct st_traffic *sum, const struct st_program *program, enum st_phase phase)
{
    const struct st_traffic t = st_program_traffic(program, phase);

    sum->upload += t.upload;
    sum->download += t.download;
    sum->write += t.write;
}

static strata_status train(struct net_result *out, struct net *net, uint32_t steps)
{
    const struct net_cell *cell = net->cell;
    const struct st_program *program = &net->plan->program;
    bool pending = !st_program_gated(program);
    struct st_engine_info info;
    strata_status st = STRATA_OK;

    for (uint32_t s = 1; s <= steps && st == STRATA_OK; s++) {
        struct st_step_result r = {0};

        if ((st = net_step(net, s, false, &r)) != STRATA_OK)
            return st;
        add_planned(&out->planned, program, pending ? ST_PHASE_BODY : ST_PHASE_PROLOGUE);
        pending = true;
        out->losses[s - 1] = r.loss;
        out->norms[s - 1] = r.grad_norm;
        out->scales[s - 1] = r.loss_scale;
        out->dropped[s - 1] = r.dropped;
        out->skipped[s - 1] = r.skipped;
        out->calls[s - 1] = net->calls;
        if (cell->evaluate_at == s) {
            if ((st = net_step(net, s, true, &r)) != STRATA_OK)
                return st;
            if (st_program_gated(program))
                add_planned(&out->planned, program, ST_PHASE_EPILOGUE);
            add_planned(&out->planned, program, ST_PHASE_EVAL);
            pending = !st_program_gated(program);
            out->evaluated = r.loss;
        }
        if (cell->flush_at == s) {
            if (st_program_gated(program) && pending)
                add_planned(&out->planned, program, ST_PHASE_EPILOGUE);
            pending = !st_program_gated(program);
            st = st_engine_flush(net->engine, NULL);
        }
    }
    if (st == STRATA_OK && st_program_gated(program) && pending)
        add_planned(&out->planned, program, ST_PHASE_EPILOGUE);
    if (st == STRATA_OK)
        st = st_engine_digest(net->engine, out->weights, out->state);
    if (st != STRATA_OK)
        return st;
    st_engine_info(net->engine, &info);
    out->steps_done = info.steps_done;
    out->steps_skipped = info.skipped_steps;
    out->moved = info.moved;
    return STRATA_OK;
}

static strata_status run_rank(struct net_result *out, const struct st_plan *plan, const struct net_cell *cell, uint32_t rank,
                              struct st_comm *comm, uint32_t steps, const char *dir)
{
    struct net net = {0};
    strata_status st = net_open(&net, plan, cell, rank, comm, dir);

    memset(out, 0, sizeof(*out));
    if (st == STRATA_OK)
        st = train(out, &net, steps);
    net_close(&net);
    return st;
}

strata_status net_train(struct net_result *out, const struct st_plan *plan, const struct net_cell *cell, uint32_t steps,
                        const char *dir)
{
    return run_rank(out, plan, cell, 0, NULL, steps, dir);
}

struct rank {
    pthread_t thread;
    const struct net_cell *cell;
    struct st_plan *plan;
    struct st_comm *comm;
    struct net_result result;
    const char *dir;
    uint32_t rank, steps;
    strata_status status;
    char said[512];
};

static void *rank_main(void *arg)
{
    struct rank *r = arg;

    r->status = run_rank(&r->result, r->plan, r->cell, r->rank, r->comm, r->steps, r->dir);
    if (r->status != STRATA_OK)
        snprintf(r->said, sizeof(r->said), "%s", strata_last_error());
    return NULL;
}

void net_run(struct net_result *out, const struct net_cell *cell, uint32_t steps, const char *dir)
{
    static struct rank ranks[NET_RANKS_MAX];
    const uint32_t count = cell->ranks > 1 ? cell->ranks : 1;
    struct st_comm *comms[NET_RANKS_MAX] = {NULL};
    struct st_workload w;
    char text[NET_TEXT];

    if (count > 1)
        assert_int_equal(st_comm_threads_open(comms, count, ST_COMM_DEADLINE_NS), STRATA_OK);
    net_workload(&w, cell);
    for (uint32_t r = 0; r < count; r++) {
        ranks[r] = (struct rank){.cell = cell, .comm = comms[r], .dir = dir, .rank = r, .steps = steps};
        ranks[r].plan = net_plan(&w, cell, r);
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < count; r++)
        pthread_join(ranks[r].thread, NULL);
    for (uint32_t r = 0; r < count; r++) {
        const struct net_result *got = &ranks[r].result;

        if (count > 1)
            st_comm_close(comms[r]);
        if (ranks[r].status != STRATA_OK)
            fail_msg("%s: rank %u: %s", net_text(text, cell), r, ranks[r].said);
        st_plan_destroy(ranks[r].plan);
        if (strcmp(got->weights, ranks[0].result.weights) != 0 ||
            memcmp(got->losses, ranks[0].result.losses, sizeof(got->losses)) != 0)
            fail_msg("%s: rank %u has other bits", net_text(text, cell), r);
        if (got->moved.upload != got->planned.upload || got->moved.download != got->planned.download ||
            got->moved.write != got->planned.write)
            fail_msg("%s: rank %u moved %llu up, %llu down, wrote %llu; planned %llu, %llu, %llu", net_text(text, cell), r,
                     (unsigned long long)got->moved.upload, (unsigned long long)got->moved.download,
                     (unsigned long long)got->moved.write, (unsigned long long)got->planned.upload,
                     (unsigned long long)got->planned.download, (unsigned long long)got->planned.write);
    }
    *out = ranks[0].result;
    st_workload_fini(&w);
}

const char *net_text(char text[NET_TEXT], const struct net_cell *c)
{
    static const char *const tiers[] = {"device", "host", "nvme", "auto"}, *const updates[] = {"auto", "serial", "gated",
                                                                                               "in_backward"};

    snprintf(text, NET_TEXT,
             "%s, grads %s, optimizer %s%s, param %s%s, acts %s, %s, %u threads, %u leaves, %u ranks at stage %u%s%s",
             strata_dtype_name(c->dtype), strata_dtype_name(c->grads), tiers[c->optimizer], c->host_least ? " least" : "",
             tiers[c->param], c->device_least ? " least" : "", tiers[c->acts], updates[c->update], c->threads, c->leaves,
             c->ranks, c->stage, c->paced ? ", paced" : "", c->foreign ? ", threads of their own" : "");
    return text;
}

/* paced_compute.c - takes the place of a model on the paced device: waits, and leaves seeded values behind.
 *
 * A value follows from the bytes that a call is given on the device (weights, tokens, its activation and gradient) and from the
 * page's index.  It never depends on addresses, placement, the order of micro-batches, or what was kept.  Of an activation only
 * the first and last ST_SAMPLE elements count.  Gradients are blocks of a few patterns made at open, so that a call causes no
 * more memory traffic than the sum of its gradient. */
#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/rng.h"
#include "offload/device/paced/paced_internal.h"

#include <assert.h>
#include <string.h>

#define ST_SAMPLE  64u
#define FILL_SEED  0x66696c6cu
#define FILL_STD   0.02f
#define LOSS_LEAST 1.0 /* per token */
#define LOSS_RANGE 9.0

/* What the head keeps of a micro-batch, at the start of its internals. */
struct head_state {
    uint64_t input;  /* hash of its input and the norm's weights */
    uint64_t slices; /* sum over the slices, in any order, of hashes of their weights */
    uint64_t grads;  /* the same of the seeds of their gradients */
};

/* What a layer of experts keeps of a micro-batch between its parts, at the start of its internals. */
struct route_state {
    uint64_t input; /* hash of its input and the first page's weights */
    uint64_t sum;   /* hash of the slices' weights, in order */
    uint64_t grads; /* the same of the seeds of their gradients */
};

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t z = (a ^ b >> 32 ^ b << 32) + 0x9e3779b97f4a7c15u; /* what follows is the finish of splitmix64 */

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) + b * 0xd1342543de82ef95u;
}

static uint32_t page_of(const struct st_workload *w, const struct st_call *call)
{
    return call->page != ST_NO_PAGE ? call->page : st_layer_page(w, call->layer, 0);
}

/* --- what a call is given --- */

struct scene {
    struct paced_device *dev;
    const struct st_workload *w;
    const struct st_call *call;
    const struct st_page *page;
    uint64_t rows, elems; /* of the micro-batch; of an activation */
    uint64_t given;       /* hash of page index, tokens and weights */
};

static uint64_t tokens_hash(const struct scene *s)
{
    return st_checksum64(s->call->tokens, s->rows * sizeof(int32_t));
}

/* Hashes the bytes of the groups only, since the gaps between them are undefined. */
static uint64_t weights_hash(const struct scene *s)
{
    uint64_t hash = 0;

    for (uint32_t i = 0; s->call->weight != NULL && i < s->page->group_count; i++) {
        const struct st_group *group = &s->page->groups[i];

        hash = mix(hash, st_checksum64((const unsigned char *)s->call->weight + group->at, group->bytes));
    }
    return hash;
}

static uint64_t sample_elems(const struct scene *s)
{
    return s->elems < ST_SAMPLE ? s->elems : ST_SAMPLE;
}

static unsigned char *last_sample(const struct scene *s, const void *act)
{
    return (unsigned char *)(uintptr_t)act + (s->elems - sample_elems(s)) * strata_dtype_bytes(s->w->dtype);
}

static uint64_t sample_hash(const struct scene *s, const void *act)
{
    const uint64_t bytes = sample_elems(s) * strata_dtype_bytes(s->w->dtype);

    return mix(st_checksum64(act, bytes), st_checksum64(last_sample(s, act), bytes));
}

/* --- what a call leaves behind --- */

/* Finite values around +-1e-3 that follow from the seed. */
static void sample_write(const struct scene *s, void *act, uint64_t seed)
{
    const uint64_t width = strata_dtype_bytes(s->w->dtype), bytes = sample_elems(s) * width;
    const uint64_t pick = seed % (ST_NORM_BLOCK / ST_SAMPLE) * ST_SAMPLE * width;
    const uint64_t next = mix(seed, 1) % (ST_NORM_BLOCK / ST_SAMPLE) * ST_SAMPLE * width;

    memcpy(last_sample(s, act), (const unsigned char *)st_paced_pattern(s->dev, seed >> 32, s->w->dtype) + pick, bytes);
    memcpy(act, (const unsigned char *)st_paced_pattern(s->dev, mix(seed, 2), s->w->dtype) + next, bytes);
}

static void dact_fill(const struct scene *s, uint64_t seed)
{
    const uint64_t width = strata_dtype_bytes(s->w->dtype);

    for (uint64_t first = 0; first < s->elems; first += ST_NORM_BLOCK) {
        const uint64_t left = s->elems - first, count = left < ST_NORM_BLOCK ? left : ST_NORM_BLOCK;

        memcpy((unsigned char *)s->call->dact + first * width,
               st_paced_pattern(s->dev, mix(seed, first / ST_NORM_BLOCK), s->w->dtype), count * width);
    }
}

static void grad_group(const struct scene *s, const struct st_group *group, uint64_t seed)
{
    float *grad = s->call->grad + group->offset;

    for (uint64_t first = 0; first < group->elems; first += ST_NORM_BLOCK) {
        const uint64_t left = group->elems - first, count = left < ST_NORM_BLOCK ? left : ST_NORM_BLOCK;
        const float *pattern = st_paced_pattern(s->dev, mix(seed, first / ST_NORM_BLOCK), STRATA_F32);

        if (s->call->first)
            memcpy(grad + first, pattern, count * sizeof(float));
        else
            s->dev->kernels->add_f32(grad + first, pattern, count);
    }
}

/* Writes every trained group; the first micro-batch also clears the gaps between them. */
static void grad_page(const struct scene *s, uint64_t seed)
{
    const struct st_call *call = s->call;
    uint64_t clean = 0; /* elements from the page's start that have been written */

    if (call->grad == NULL)
        return;
    for (uint32_t i = 0; i < s->page->group_count; i++) {
        const struct st_group *group = &s->page->groups[i];

        if (group->kind == ST_GROUP_FROZEN)
            continue;
        if (call->first)
            memset(call->grad + clean, 0, (group->offset - clean) * sizeof(float));
        grad_group(s, group, mix(seed, i));
        clean = group->offset + group->elems;
    }
    if (call->first)
        memset(call->grad + clean, 0, (call->grad_elems - clean) * sizeof(float));
}

/* A slice of the head: its gradient is one block; the scatter adds the table's rows. */
static void grad_slice(const struct scene *s, uint64_t seed)
{
    const struct st_call *call = s->call;
    const struct st_group *group = &s->page->groups[0];

    if (call->grad == NULL)
        return;
    if (call->first)
        memset(call->grad, 0, call->grad_elems * sizeof(float));
    while (group->kind == ST_GROUP_FROZEN)
        group++;
    s->dev->kernels->add_f32(call->grad + group->offset, st_paced_pattern(s->dev, seed, STRATA_F32),
                             group->elems < ST_NORM_BLOCK ? group->elems : ST_NORM_BLOCK);
}

/* --- calls --- */

static struct head_state head_load(const struct scene *s)
{
    struct head_state head;

    memcpy(&head, s->call->internals, sizeof(head));
    return head;
}

static void head_store(const struct scene *s, const struct head_state *head)
{
    memcpy(s->call->internals, head, sizeof(*head));
}

static void block_backward(const struct scene *s)
{
    const uint64_t seed = mix(mix(s->given, sample_hash(s, s->call->act)), sample_hash(s, s->call->dact));

    grad_page(s, seed);
    sample_write(s, s->call->dact, seed);
}

static void head_loss(const struct scene *s)
{
    const struct head_state head = head_load(s);
    uint64_t bits = mix(mix(s->given, head.input), head.slices), counted = 0, routes;

    if (s->call->routes != NULL) {
        memcpy(&routes, s->call->routes, sizeof(routes));
        bits = mix(bits, routes);
    }
    for (uint64_t r = 0; r < s->rows; r++)
        counted += s->call->targets[r] >= 0;
    *s->call->loss_sum = (double)counted * (LOSS_LEAST + LOSS_RANGE * (double)(bits >> 11) * 0x1p-53);
    if (s->call->aux_loss != NULL)
        *s->call->aux_loss = 1.0 + (double)(mix(bits, 1) >> 11) * 0x1p-53;
}

static void head_slice(const struct scene *s)
{
    struct head_state head = head_load(s);
    uint64_t seed;

    if (s->call->kind == ST_CALL_HEAD_STATS) {
        head.slices += s->given;
    } else {
        seed = mix(mix(s->given, head.input), head.slices);
        grad_slice(s, seed);
        head.grads += seed;
    }
    head_store(s, &head);
}

static void head_backward(const struct scene *s)
{
    const struct head_state head = head_load(s);
    const uint64_t seed = mix(mix(mix(s->given, sample_hash(s, s->call->act)), head.slices), head.grads);

    grad_page(s, seed);
    dact_fill(s, seed);
}

/* Parts of a layer of experts. */
static void run_part(const struct scene *s)
{
    const struct st_call *call = s->call;
    struct route_state r;
    uint64_t seed, routes = 0;

    memcpy(&r, call->internals, sizeof(r));
    if (call->routes != NULL && !call->opens_routes)
        memcpy(&routes, call->routes, sizeof(routes));
    switch (call->kind) {
    case ST_CALL_ROUTE_FORWARD:
        r = (struct route_state){.input = mix(s->given, sample_hash(s, call->act))};
        routes += r.input;
        if (call->routes != NULL)
            memcpy(call->routes, &routes, sizeof(routes));
        break;
    case ST_CALL_EXPERTS_FORWARD:
        r.sum = mix(r.sum, s->given);
        break;
    case ST_CALL_ROUTE_END:
        sample_write(s, call->act_out, mix(r.input, r.sum));
        break;
    case ST_CALL_ROUTE_AGAIN:
        r.input = call->recompute ? mix(s->given, sample_hash(s, call->act)) : r.input;
        r.grads = 0;
        break;
    case ST_CALL_EXPERTS_BACKWARD:
        seed = mix(mix(s->given, r.input), sample_hash(s, call->dact));
        grad_page(s, seed);
        r.grads = mix(r.grads, seed);
        break;
    default:
        seed = mix(mix(mix(s->given, sample_hash(s, call->act)), sample_hash(s, call->dact)), mix(r.grads, routes));
        grad_page(s, seed);
        sample_write(s, call->dact, seed);
    }
    memcpy(call->internals, &r, sizeof(r));
}

static void run_scene(const struct scene *s)
{
    const struct st_call *call = s->call;

    switch (call->kind) {
    case ST_CALL_EMBED_FORWARD:
    case ST_CALL_BLOCK_FORWARD:
        sample_write(s, call->act_out, mix(s->given, sample_hash(s, call->act)));
        break;
    case ST_CALL_EMBED_BACKWARD:
        grad_page(s, mix(s->given, sample_hash(s, call->dact)));
        break;
    case ST_CALL_BLOCK_BACKWARD:
        block_backward(s);
        break;
    case ST_CALL_HEAD_NORM:
        head_store(s, &(struct head_state){.input = mix(s->given, sample_hash(s, call->act))});
        break;
    case ST_CALL_HEAD_STATS:
    case ST_CALL_HEAD_GRAD:
        head_slice(s);
        break;
    case ST_CALL_HEAD_LOSS:
        head_loss(s);
        break;
    case ST_CALL_HEAD_BACKWARD:
        head_backward(s);
        break;
    default:
        run_part(s);
    }
}

static void run_call(struct paced_device *dev, const struct paced_task *task, uint64_t index)
{
    const struct st_workload *w = task->of.call.model->workload;
    const struct st_call *call = &task->of.call.call;
    const uint32_t page = page_of(w, call);
    struct scene s = {.dev = dev, .w = w, .call = call, .page = &w->pages[page]};

    (void)index;
    s.rows = (uint64_t)w->micro_batch * w->seq;
    s.elems = s.rows * w->hidden;
    s.given = mix(mix(page + 1, tokens_hash(&s)), weights_hash(&s));
    run_scene(&s);
}

/* A call's FLOPs or passes, and the zeroing of what it is the first to add to. */
static double call_seconds(const struct st_paced_model *model, const struct st_call *call)
{
    const struct st_rates *rates = &model->machine.rates;
    const struct st_page *page = &model->workload->pages[page_of(model->workload, call)];
    const double zeroed = call->first && call->grad != NULL ? (double)st_page_zeroed_bytes(page) : 0;

    return st_call_seconds(&model->workload->layers[call->layer], rates, call->kind, call->recompute) +
           st_seconds_at(st_call_bytes(model->workload, call->kind) + zeroed, rates->memory);
}

static strata_status run(void *context, const struct st_call *call)
{
    const struct st_paced_model *model = context;
    const struct st_workload *w = model->workload;

    if (call->device->ops != &st_device_paced_ops)
        return st_error(STRATA_E_INVAL, "the paced model runs only on the paced device, not on %s", call->device->ops->name);
    if (w->generate)
        return st_error(STRATA_E_NOSYS, "the paced device does not generate: it has no logits");
    assert(page_of(w, call) < w->page_count && w->layers[w->layer_count - 1].internal_bytes >= sizeof(struct head_state));
    st_paced_queue_add(
        &paced_of(call->device)->queues[ST_QUEUE_COMPUTE],
        &(struct paced_task){.work = run_call, .pieces = 1, .seconds = call_seconds(model, call), .of.call = {model, *call}});
    return STRATA_OK;
}

struct st_compute st_paced_compute(struct st_paced_model *model)
{
    return (struct st_compute){.model = model, .run = run};
}

strata_status st_paced_fill(void *ctx, uint32_t page, uint64_t first, uint64_t count, float *out)
{
    (void)ctx;
    st_rng_normal(out, count, FILL_SEED, page, first, FILL_STD);
    return STRATA_OK;
}

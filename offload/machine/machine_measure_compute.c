/* offload/machine/machine_measure_compute.c - measures how fast a device multiplies matrices, and how fast it runs parts of the
 * model: a block and a slice of the head.
 *
 * Time decides the shapes: they start small and double in every dimension until they have the requested size or until the next
 * size would take too long.  So a GPU is measured at shapes that fill it, and an emulated GPU does not make the run wait. */
#include "core/base/error.h"
#include "core/system/clock.h"
#include "offload/device/tensor_ops.h"
#include "offload/machine/machine_measure_internal.h"

#define CALL_SECONDS_MOST  1.0  /* of one round of products, as estimated from the smaller shape */
#define FLOPS_FIRST        16e6 /* minimum for the smallest shape */
#define DIMENSION_LEAST    64u  /* dimensions that are smaller than requested are multiples of it */
#define GROWTH             8.0  /* factor in FLOPs from one shape to the next */
#define CEILING_TURNS      3u   /* the number of largest shapes to try, since the largest is not always the fastest */
#define CEILING_SECONDS    0.15 /* for each of them */
#define CEILING_HOST       2048u
#define CEILING_DEVICE     16384u
#define LAYER_HOST_BYTES   (UINT64_C(1) << 30)
#define LAYER_DEVICE_BYTES (UINT64_C(4) << 30)
#define LAYER_SECONDS_MOST 5.0
#define LAYER_ALIGN        4096u

static uint64_t align64(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static uint32_t least(uint64_t a, uint32_t b)
{
    return a < b ? (uint32_t)a : b;
}

static bool has_memory(const struct st_prober *m)
{
    return m->ops->memory != NULL;
}

/* --- matmul: forward alone, or with the gradients of input and weight, of one wide layer --- */

struct matmul_probe {
    bool with_gradients;
    uint32_t rows_most, hidden_most, wide_most; /* the requested size */
    uint32_t rows, hidden, wide;
    unsigned char *x, *weight, *y, *dx; /* device; [rows, hidden], [hidden, wide], [rows, wide], [rows, hidden] */
    float *dweight;                     /* device; [hidden, wide] f32 */
};

/* Halves a dimension `shift` times, but not below the least size that is worth measuring. */
static uint32_t halved(uint32_t most, uint32_t shift)
{
    const uint32_t value = (most >> shift) / DIMENSION_LEAST * DIMENSION_LEAST;

    return shift == 0 || most < DIMENSION_LEAST ? most : value < DIMENSION_LEAST ? DIMENSION_LEAST : value;
}

static double flops_of(const struct matmul_probe *p)
{
    return (p->with_gradients ? 6.0 : 2.0) * p->rows * p->hidden * p->wide;
}

/* Sets the dimensions and returns the bytes of all operands; with a base, it also sets their addresses. */
static uint64_t matmul_carve(struct matmul_probe *p, uint32_t shift, strata_dtype dtype, unsigned char *base)
{
    const uint64_t elem = strata_dtype_bytes(dtype);
    uint64_t x, weight, y, dweight;

    p->rows = halved(p->rows_most, shift);
    p->hidden = halved(p->hidden_most, shift);
    p->wide = halved(p->wide_most, shift);
    x = align64((uint64_t)p->rows * p->hidden * elem);
    weight = align64((uint64_t)p->hidden * p->wide * elem);
    y = align64((uint64_t)p->rows * p->wide * elem);
    dweight = align64((uint64_t)p->hidden * p->wide * sizeof(float));
    if (base != NULL) {
        p->x = base;
        p->weight = base + x;
        p->y = p->weight + weight;
        p->dx = p->y + y;
        p->dweight = (float *)(void *)(p->dx + x);
    }
    return x + weight + y + (p->with_gradients ? x + dweight : 0);
}

/* Halves all dimensions together until the operands fit. */
static void fit_memory(struct matmul_probe *p, const struct st_prober *m)
{
    while (matmul_carve(p, 0, m->dtype, NULL) > m->device_most &&
           (p->rows_most > DIMENSION_LEAST || p->hidden_most > DIMENSION_LEAST || p->wide_most > DIMENSION_LEAST)) {
        p->rows_most = halved(p->rows_most, 1);
        p->hidden_most = halved(p->hidden_most, 1);
        p->wide_most = halved(p->wide_most, 1);
    }
}

static strata_status products(struct st_prober *m, const struct matmul_probe *p)
{
    const struct st_tensor_ops *ops = m->ops->tensors;
    const strata_dtype dt = m->dtype;
    const uint32_t rows = p->rows, hidden = p->hidden, wide = p->wide;
    const struct st_matmul forward = {
        .m = rows, .n = wide, .k = hidden, .lda = hidden, .ldb = wide, .ldc = wide, .ab_dtype = dt, .c_dtype = dt};
    const struct st_matmul input = {.m = rows,
                                    .n = hidden,
                                    .k = wide,
                                    .lda = wide,
                                    .ldb = wide,
                                    .ldc = hidden,
                                    .trans_b = true,
                                    .ab_dtype = dt,
                                    .c_dtype = dt};
    const struct st_matmul weight = {.m = hidden,
                                     .n = wide,
                                     .k = rows,
                                     .lda = hidden,
                                     .ldb = wide,
                                     .ldc = wide,
                                     .trans_a = true,
                                     .accumulate = true,
                                     .ab_dtype = dt,
                                     .c_dtype = STRATA_F32};
    strata_status st = ops->matmul(m->device, &forward, p->y, p->x, p->weight, NULL);

    if (st == STRATA_OK && p->with_gradients)
        st = ops->matmul(m->device, &input, p->dx, p->y, p->weight, NULL);
    if (st == STRATA_OK && p->with_gradients)
        st = ops->matmul(m->device, &weight, p->dweight, p->x, p->y, NULL);
    return st;
}

static strata_status matmul_run(struct st_prober *m, void *ctx, uint32_t count)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = products(m, ctx);
    return st == STRATA_OK ? m->ops->finish(m->device, ST_QUEUE_COMPUTE) : st;
}

/* *shift: of the largest shape that does not take too long; its operands are in place on return. */
static strata_status grow(struct st_prober *m, struct matmul_probe *p, uint32_t *shift)
{
    unsigned char *const arena = m->ops->arena(m->device);
    uint32_t at = 0;

    for (matmul_carve(p, 0, m->dtype, arena); at < 31 && flops_of(p) > GROWTH * FLOPS_FIRST;)
        matmul_carve(p, ++at, m->dtype, arena);
    for (;; at--) {
        uint64_t begin_ns;
        strata_status st;

        matmul_carve(p, at, m->dtype, arena);
        st = matmul_run(m, p, 1); /* the first call with a shape chooses an algorithm */
        begin_ns = st_clock_ns();
        if (st == STRATA_OK)
            st = matmul_run(m, p, 1);
        if (st != STRATA_OK)
            return st;
        if (at == 0 || (double)(st_clock_ns() - begin_ns) * 1e-9 * GROWTH > st_measure_patience(CALL_SECONDS_MOST))
            break;
    }
    *shift = at;
    return STRATA_OK;
}

static void shape_of(struct matmul_probe *p, const struct st_prober *m, const struct st_workload *w)
{
    const bool own = has_memory(m);
    const uint64_t rows = (uint64_t)w->micro_batch * w->seq;

    *p = (struct matmul_probe){.with_gradients = true,
                               .rows_most = least(rows, own ? 8192 : 1024),
                               .hidden_most = least(w->hidden, own ? 8192 : 2048),
                               .wide_most = least(4 * (uint64_t)w->hidden, own ? 32768 : 3072)};
    fit_memory(p, m);
}

uint64_t st_measure_matmul_bytes(const struct st_prober *m, const struct st_workload *w)
{
    struct matmul_probe probe;

    shape_of(&probe, m, w);
    return matmul_carve(&probe, 0, m->dtype, NULL);
}

strata_status st_measure_matmul(struct st_prober *m, const struct st_workload *w, double *flops)
{
    struct matmul_probe probe;
    double seconds = 0;
    uint32_t shift = 0;
    strata_status st = st_measure_fill(m, st_measure_matmul_bytes(m, w));

    shape_of(&probe, m, w);
    if (st == STRATA_OK)
        st = grow(m, &probe, &shift);
    if (st == STRATA_OK)
        st = st_measure_best(m, matmul_run, &probe, st_measure_limit(m), &seconds);
    if (st == STRATA_OK)
        *flops = flops_of(&probe) / seconds;
    return st;
}

/* --- the ceiling: square products, the best of the largest --- */

static strata_status measure_ceiling(struct st_prober *m, struct matmul_probe *p, struct st_matmul_ceiling *out)
{
    unsigned char *const arena = m->ops->arena(m->device);
    uint32_t shift = 0;
    strata_status st = st_measure_fill(m, matmul_carve(p, 0, m->dtype, NULL));

    if (st == STRATA_OK)
        st = grow(m, p, &shift);
    for (uint32_t turn = 0; turn < CEILING_TURNS && st == STRATA_OK; turn++, shift++) {
        double seconds = 0;

        matmul_carve(p, shift, m->dtype, arena);
        st = st_measure_best(m, matmul_run, p, CEILING_SECONDS, &seconds);
        if (st == STRATA_OK && flops_of(p) / seconds > out->flops)
            *out = (struct st_matmul_ceiling){.flops = flops_of(p) / seconds, .size = p->rows};
    }
    return st;
}

strata_status st_machine_matmul_ceiling(struct st_matmul_ceiling *out, strata_dtype dtype, const struct st_machine_opts *opts)
{
    struct st_matmul_ceiling found = {0};
    struct matmul_probe probe;
    struct st_prober m;
    strata_status st = st_measure_open(&m, dtype, opts, ST_MEASURE_COPY_BYTES_MIN);

    if (st == STRATA_OK) {
        const uint32_t size = has_memory(&m) ? CEILING_DEVICE : CEILING_HOST;

        probe = (struct matmul_probe){.rows_most = size, .hidden_most = size, .wide_most = size};
        fit_memory(&probe, &m);
        st = st_measure_open_device(&m, matmul_carve(&probe, 0, dtype, NULL));
    }
    if (st == STRATA_OK)
        st = measure_ceiling(&m, &probe, &found);
    st_measure_close(&m);
    if (st == STRATA_OK)
        *out = found;
    return st;
}

/* --- layers of the model: a block, forward and backward, and a slice of the head --- */

/* Device addresses; NULL for those that a layer does not need. */
struct layer_probe {
    const struct st_workload *workload;
    const struct st_compute *compute;
    uint32_t layer;
    bool slices;                                               /* it is those that are measured */
    void (*carve)(struct layer_probe *p, unsigned char *base); /* without a base it only counts bytes */
    strata_status (*once)(struct st_prober *m, const struct layer_probe *p);
    double flops;   /* of one once() */
    uint64_t bytes; /* of all buffers */
    unsigned char *act, *act_out, *dact, *weight, *first_weight, *internals, *workspace, *constants, *routes;
    int32_t *targets;
    float *grad; /* NULL: the page has nothing trained */
};

static unsigned char *carve(struct layer_probe *p, unsigned char *base, uint64_t bytes)
{
    unsigned char *at = base != NULL ? base + p->bytes : NULL;

    p->bytes += (bytes + LAYER_ALIGN - 1) / LAYER_ALIGN * LAYER_ALIGN;
    return at;
}

/* The page of its call with products: a block's, or the first slice. */
static const struct st_page *page_of(const struct layer_probe *p)
{
    return &p->workload->pages[st_layer_page(p->workload, p->layer, p->slices ? 1 : 0)];
}

/* Weights of a page, and its gradient sums if it has any. */
static void carve_page(struct layer_probe *p, unsigned char *base, const struct st_page *page)
{
    p->weight = carve(p, base, page->bytes);
    p->grad = page->trained_elems > 0 ? (float *)(void *)carve(p, base, page->trained_elems * sizeof(float)) : NULL;
}

static void carve_block(struct layer_probe *p, unsigned char *base)
{
    const struct st_workload *w = p->workload;
    const struct st_layer *l = &w->layers[p->layer];

    p->bytes = 0;
    p->act = carve(p, base, l->boundary_bytes);
    p->act_out = carve(p, base, l->boundary_bytes);
    p->dact = carve(p, base, l->boundary_bytes);
    p->internals = carve(p, base, l->internal_bytes);
    p->workspace = carve(p, base, w->workspace_bytes);
    p->constants = w->constants_bytes > 0 ? carve(p, base, w->constants_bytes) : NULL;
    p->routes = w->routes_bytes > 0 ? carve(p, base, w->routes_bytes) : NULL;
    if (p->slices)
        p->first_weight = carve(p, base, w->pages[st_layer_page(w, p->layer, 0)].bytes);
    carve_page(p, base, page_of(p));
}

static void carve_head(struct layer_probe *p, unsigned char *base)
{
    const struct st_workload *w = p->workload;

    p->bytes = 0;
    p->act = carve(p, base, w->layers[p->layer - 1].boundary_bytes);
    p->first_weight = carve(p, base, w->pages[st_layer_page(w, p->layer, 0)].bytes);
    p->internals = carve(p, base, w->layers[p->layer].internal_bytes);
    p->workspace = carve(p, base, w->workspace_bytes);
    p->targets = (int32_t *)(void *)carve(p, base, (uint64_t)w->micro_batch * w->seq * sizeof(int32_t));
    carve_page(p, base, page_of(p));
}

/* The backward pass overwrites its gradient, so it is made again; that is little time beside the block. */
static strata_status block_once(struct st_prober *m, const struct layer_probe *p)
{
    const struct st_workload *w = p->workload;
    struct st_call call = {.kind = ST_CALL_BLOCK_FORWARD,
                           .layer = p->layer,
                           .page = st_layer_page(w, p->layer, 0),
                           .ops = m->ops->tensors,
                           .device = m->device,
                           .weight = p->weight,
                           .act = p->act,
                           .act_out = p->act_out,
                           .internals = p->internals,
                           .workspace = p->workspace,
                           .trains = true,
                           .constants = p->constants};
    strata_status st = p->compute->run(p->compute->model, &call);

    if (st == STRATA_OK)
        st = m->ops->copy(m->device, p->dact, p->act_out, w->layers[p->layer].boundary_bytes);
    call.kind = ST_CALL_BLOCK_BACKWARD;
    call.dact = p->dact;
    call.grad = p->grad;
    call.grad_elems = page_of(p)->trained_elems;
    return st == STRATA_OK ? p->compute->run(p->compute->model, &call) : st;
}

/* One call of a layer of experts: of its first page, or of slice i. */
static strata_status part_once(struct st_prober *m, const struct layer_probe *p, enum st_call_kind kind, uint32_t i)
{
    const struct st_workload *w = p->workload;
    const bool slice = kind == ST_CALL_EXPERTS_FORWARD || kind == ST_CALL_EXPERTS_BACKWARD;
    const uint32_t page = st_layer_page(w, p->layer, slice ? 1 + i : 0);
    const bool backward = (kind == ST_CALL_EXPERTS_BACKWARD || kind == ST_CALL_ROUTE_BACKWARD) && p->grad != NULL &&
                          w->pages[page].trained_elems > 0;
    const struct st_call call = {.kind = kind,
                                 .layer = p->layer,
                                 .page = page,
                                 .slice = i,
                                 .ops = m->ops->tensors,
                                 .device = m->device,
                                 .weight = p->slices && !slice ? p->first_weight : p->weight,
                                 .grad = backward ? p->grad : NULL,
                                 .grad_elems = backward ? w->pages[page].trained_elems : 0,
                                 .act = p->act,
                                 .act_out = p->act_out,
                                 .dact = p->dact,
                                 .internals = p->internals,
                                 .routes = p->routes,
                                 .opens_routes = kind == ST_CALL_ROUTE_FORWARD,
                                 .workspace = p->workspace,
                                 .trains = true,
                                 .constants = p->constants};

    return p->compute->run(p->compute->model, &call);
}

static strata_status route_once(struct st_prober *m, const struct layer_probe *p)
{
    static const enum st_call_kind kinds[] = {ST_CALL_ROUTE_FORWARD, ST_CALL_ROUTE_END, ST_CALL_ROUTE_AGAIN,
                                              ST_CALL_ROUTE_BACKWARD};
    strata_status st = STRATA_OK;

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]) && st == STRATA_OK; i++)
        st = part_once(m, p, kinds[i], 0);
    return st;
}

/* All slices, on the first one's weights: however the rows are divided among them, it is the layer's work. */
static strata_status experts_once(struct st_prober *m, const struct layer_probe *p)
{
    const uint32_t count = st_layer_slices(&p->workload->layers[p->layer]);
    strata_status st = part_once(m, p, ST_CALL_ROUTE_FORWARD, 0);

    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = part_once(m, p, ST_CALL_EXPERTS_FORWARD, i);
    if (st == STRATA_OK)
        st = part_once(m, p, ST_CALL_ROUTE_AGAIN, 0);
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = part_once(m, p, ST_CALL_EXPERTS_BACKWARD, i);
    return st;
}

/* On a device that is the host, the norm represents the work of the head beside its slices; on others that is counted by its
 * bytes (offload/simulate/cost.h). */
static strata_status head_once(struct st_prober *m, const struct layer_probe *p)
{
    const struct st_workload *w = p->workload;
    struct st_call call = {.kind = ST_CALL_HEAD_NORM,
                           .layer = p->layer,
                           .page = st_layer_page(w, p->layer, 0),
                           .ops = m->ops->tensors,
                           .device = m->device,
                           .weight = p->first_weight,
                           .act = p->act,
                           .internals = p->internals,
                           .workspace = p->workspace,
                           .targets = p->targets};
    strata_status st = has_memory(m) ? STRATA_OK : p->compute->run(p->compute->model, &call);

    call.kind = ST_CALL_HEAD_STATS;
    call.page = st_layer_page(w, p->layer, 1);
    call.weight = p->weight;
    if (st == STRATA_OK)
        st = p->compute->run(p->compute->model, &call);
    call.kind = ST_CALL_HEAD_GRAD;
    call.recompute = true;
    call.grad = p->grad;
    call.grad_elems = page_of(p)->trained_elems;
    call.loss_gradient = 1.0f / ((float)w->micro_batch * (float)w->seq);
    return st == STRATA_OK ? p->compute->run(p->compute->model, &call) : st;
}

static strata_status layer_run(struct st_prober *m, void *ctx, uint32_t count)
{
    const struct layer_probe *p = ctx;
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = p->once(m, p);
    return st == STRATA_OK ? m->ops->finish(m->device, ST_QUEUE_COMPUTE) : st;
}

/* Every target is token 0, which is in the slice. */
static strata_status fill_layer(struct st_prober *m, const struct layer_probe *p)
{
    const struct st_workload *w = p->workload;
    strata_status st = st_measure_fill(m, p->bytes);

    if (st == STRATA_OK && p->constants != NULL)
        st = m->ops->upload(m->device, p->constants, p->compute->constants, w->constants_bytes);
    if (st == STRATA_OK)
        st = m->ops->finish(m->device, ST_QUEUE_UPLOAD);
    if (st == STRATA_OK && p->targets != NULL)
        st = m->ops->zero(m->device, p->targets, (uint64_t)w->micro_batch * w->seq * sizeof(int32_t));
    return st;
}

static bool is_too_large(const struct st_prober *m, const struct st_machine *machine, const struct layer_probe *p)
{
    const uint64_t most = has_memory(m) ? LAYER_DEVICE_BYTES : LAYER_HOST_BYTES;

    return p->bytes > most || p->bytes > machine->capacity.bytes[STRATA_TIER_DEVICE] / 4 || p->bytes > m->device_most ||
           p->flops > LAYER_SECONDS_MOST * machine->rates.matmul_flops;
}

/* Zeroing the sums of a page is accounted for separately (offload/simulate/cost.h). */
static strata_status measure_layer(struct st_prober *m, struct layer_probe *p, const struct st_machine *machine, double *rate)
{
    const struct st_workload *w = p->workload;
    double seconds = 0;
    strata_status st;

    if (p->compute == NULL || w->generate || w->workers < st_workers_count(m->workers))
        return STRATA_OK;
    p->carve(p, NULL);
    if (is_too_large(m, machine, p))
        return STRATA_OK;
    st = st_measure_open_device(m, p->bytes);
    if (st != STRATA_OK)
        return st;
    p->carve(p, m->ops->arena(m->device));
    st = fill_layer(m, p);
    if (st == STRATA_OK)
        st = st_measure_best(m, layer_run, p, st_measure_limit(m), &seconds);
    if (st == STRATA_OK)
        *rate = p->flops / seconds;
    return st;
}

/* The first block of its kind with one page or, of experts, slices; UINT32_MAX: none. */
static uint32_t layer_of(const struct st_workload *w, enum st_layer_kind kind)
{
    for (uint32_t l = st_block_first(w); l < st_block_end(w) && l + 1 < w->layer_count; l++)
        if (w->layers[l].kind == kind && (kind == ST_LAYER_EXPERTS || w->layers[l].use_count == 1))
            return l;
    return UINT32_MAX;
}

strata_status st_measure_block(struct st_prober *m, const struct st_workload *w, const struct st_compute *compute,
                               struct st_machine *machine)
{
    struct layer_probe probe = {.workload = w, .compute = compute, .carve = carve_block, .once = block_once};

    if (w->layer_count == 0)
        return STRATA_OK;
    probe.layer = layer_of(w, ST_LAYER_BLOCK);
    if (probe.layer == UINT32_MAX) {
        probe.layer = layer_of(w, ST_LAYER_EXPERTS);
        probe.once = route_once;
    }
    if (probe.layer == UINT32_MAX)
        return STRATA_OK;
    probe.flops = w->layers[probe.layer].forward_flops + w->layers[probe.layer].backward_flops;
    return measure_layer(m, &probe, machine, &machine->rates.block_flops);
}

/* What a call of the first page takes at the rate of blocks is not the experts'. */
strata_status st_measure_experts(struct st_prober *m, const struct st_workload *w, const struct st_compute *compute,
                                 struct st_machine *machine)
{
    struct layer_probe probe = {.workload = w, .compute = compute, .carve = carve_block, .once = experts_once, .slices = true};
    const uint32_t layer = w->layer_count > 0 ? layer_of(w, ST_LAYER_EXPERTS) : UINT32_MAX;
    double all = 0, route, experts;
    strata_status st;

    if (layer == UINT32_MAX)
        return STRATA_OK;
    probe.layer = layer;
    experts = w->layers[layer].experts_forward_flops + w->layers[layer].experts_backward_flops;
    probe.flops = w->layers[layer].forward_flops + experts;
    st = measure_layer(m, &probe, machine, &all);
    if (st != STRATA_OK || all <= 0)
        return st;
    route = st_call_seconds(&w->layers[layer], &machine->rates, ST_CALL_ROUTE_FORWARD, false);
    if (probe.flops / all > route)
        machine->rates.experts_flops = experts / (probe.flops / all - route);
    return STRATA_OK;
}

strata_status st_measure_head(struct st_prober *m, const struct st_workload *w, const struct st_compute *compute,
                              struct st_machine *machine)
{
    struct layer_probe probe = {.workload = w, .compute = compute, .carve = carve_head, .once = head_once, .slices = true};

    if (w->layer_count == 0 || st_slice_count(w) == 0)
        return STRATA_OK;
    probe.layer = w->layer_count - 1;
    probe.flops = w->layers[probe.layer].forward_flops + w->layers[probe.layer].backward_flops;
    probe.flops *= (double)page_of(&probe)->row_count / w->vocab;
    return measure_layer(m, &probe, machine, &machine->rates.head_flops);
}

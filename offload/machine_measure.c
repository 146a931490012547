/* offload/machine_measure.c - what this machine does per second, measured on the very code a step runs.
 *
 * Six probes, each at most half a second but for a block that takes longer: matmuls and copies through the device table,
 * checksums and the optimizer kernel on the workers, a block of the model, the disk (machine_measure_disk.c).  A rate feeds lower
 * bounds, so it is the best of the repeats, not their mean.  One probe's buffers are gone before the next begins, and no
 * larger than the workload's own pages and state. */
#include "offload/machine_measure.h"
#include "core/arena.h"
#include "core/checksum.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "core/rng.h"
#include "core/workers.h"
#include "offload/device.h"
#include "offload/optimizer.h"

#include <string.h>

#define PROBE_SECONDS     0.35 /* of repeats, after one that warms up */
#define COPY_BYTES_MIN    (UINT64_C(4) << 20)
#define COPY_BYTES_MAX    (UINT64_C(64) << 20)
#define UPDATE_ELEMS_MIN  (UINT64_C(1) << 20)
#define UPDATE_ELEMS_MAX  (UINT64_C(8) << 20)
#define MATMUL_ROWS_MAX   1024u
#define MATMUL_HIDDEN_MAX 2048u
#define MATMUL_WIDE_MAX   3072u
#define CHECKSUM_BYTES    (ST_TILE_ELEMS * sizeof(float)) /* of a tile, each worker's own */
#define CHECKSUM_ROUNDS   64u                             /* tiles per worker and repeat */
#define BLOCK_BYTES_MAX   (UINT64_C(1) << 30)
#define BLOCK_ALIGN       4096u
#define BLOCK_SEED        0x626c6f63u
#define BLOCK_STD         0.02f /* of weights and activations */
#define FILL_BYTE         0x3c  /* 0x3c3c3c3c and 0x3c3c are about 0.0115 in f32 and bf16 */

struct bench {
    const struct st_workload *workload;
    struct st_workers *workers;
    const struct st_kernels *kernels;
    const struct st_device_ops *ops;
    uint32_t index;
    struct st_device *device;
    struct st_arena host; /* bytes: the copy's, FILL_BYTE all over */
};

typedef strata_status bench_fn(struct bench *b, void *ctx);

static uint64_t clamp(uint64_t value, uint64_t least, uint64_t most)
{
    return value < least ? least : value > most ? most : value;
}

static uint64_t align64(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Shortest of the repeats, seconds. */
static strata_status best_time(struct bench *b, bench_fn *fn, void *ctx, double *seconds)
{
    const uint64_t limit_ns = (uint64_t)(PROBE_SECONDS * 1e9);
    uint64_t best_ns = UINT64_MAX, total_ns = 0;
    strata_status st = fn(b, ctx);

    while (st == STRATA_OK && total_ns < limit_ns) {
        const uint64_t start_ns = st_clock_ns();
        uint64_t spent_ns;

        st = fn(b, ctx);
        spent_ns = st_clock_ns() - start_ns;
        spent_ns += spent_ns == 0;
        best_ns = spent_ns < best_ns ? spent_ns : best_ns;
        total_ns += spent_ns;
    }
    *seconds = (double)best_ns * 1e-9;
    return st;
}

/* --- matmul: forward, gradient of the input, gradient of the weight of one wide layer --- */

struct matmul_probe {
    uint32_t rows, hidden, wide;
    unsigned char *x, *weight, *y, *dx; /* device; [rows, hidden], [hidden, wide], [rows, wide], [rows, hidden] */
    float *dweight;                     /* device; [hidden, wide] f32 */
};

static void matmul_shape(struct matmul_probe *p, const struct st_workload *w)
{
    const uint64_t rows = (uint64_t)w->micro_batch * w->seq;

    p->rows = (uint32_t)clamp(rows, 1, MATMUL_ROWS_MAX);
    p->hidden = w->hidden < MATMUL_HIDDEN_MAX ? w->hidden : MATMUL_HIDDEN_MAX;
    p->wide = (uint32_t)clamp(4 * (uint64_t)w->hidden, 1, MATMUL_WIDE_MAX);
}

/* Bytes of all operands; with a base, their places. */
static uint64_t matmul_carve(struct matmul_probe *p, strata_dtype dtype, unsigned char *base)
{
    const uint64_t elem = strata_dtype_bytes(dtype);
    const uint64_t x = align64((uint64_t)p->rows * p->hidden * elem), weight = align64((uint64_t)p->hidden * p->wide * elem);
    const uint64_t y = align64((uint64_t)p->rows * p->wide * elem),
                   dweight = align64((uint64_t)p->hidden * p->wide * sizeof(float));

    if (base != NULL) {
        p->x = base;
        p->dx = base + x;
        p->y = p->dx + x;
        p->weight = p->y + y;
        p->dweight = (float *)(void *)(p->weight + weight);
    }
    return 2 * x + y + weight + dweight;
}

static strata_status matmul_once(struct bench *b, void *ctx)
{
    const struct matmul_probe *p = ctx;
    const struct st_device_ops *ops = b->device->ops;
    const strata_dtype dt = b->workload->dtype;
    const struct st_matmul forward = {.m = p->rows,
                                      .n = p->wide,
                                      .k = p->hidden,
                                      .lda = p->hidden,
                                      .ldb = p->wide,
                                      .ldc = p->wide,
                                      .ab_dtype = dt,
                                      .c_dtype = dt};
    const struct st_matmul input = {.m = p->rows,
                                    .n = p->hidden,
                                    .k = p->wide,
                                    .lda = p->wide,
                                    .ldb = p->wide,
                                    .ldc = p->hidden,
                                    .trans_b = true,
                                    .ab_dtype = dt,
                                    .c_dtype = dt};
    const struct st_matmul weight = {.m = p->hidden,
                                     .n = p->wide,
                                     .k = p->rows,
                                     .lda = p->hidden,
                                     .ldb = p->wide,
                                     .ldc = p->wide,
                                     .trans_a = true,
                                     .accumulate = true,
                                     .ab_dtype = dt,
                                     .c_dtype = STRATA_F32};
    strata_status st = ops->matmul(b->device, &forward, p->y, p->x, p->weight, NULL);

    if (st == STRATA_OK)
        st = ops->matmul(b->device, &input, p->dx, p->y, p->weight, NULL);
    if (st == STRATA_OK)
        st = ops->matmul(b->device, &weight, p->dweight, p->x, p->y, NULL);
    return st == STRATA_OK ? ops->finish(b->device, ST_QUEUE_COMPUTE) : st;
}

/* The arena may be larger than the host buffer: fill it piece by piece. */
static strata_status device_fill(struct bench *b, uint64_t bytes)
{
    unsigned char *base = b->device->ops->arena(b->device);
    strata_status st = STRATA_OK;

    for (uint64_t at = 0; at < bytes && st == STRATA_OK; at += b->host.bytes) {
        const uint64_t piece = bytes - at < b->host.bytes ? bytes - at : b->host.bytes;

        st = b->device->ops->upload(b->device, base + at, b->host.base, piece);
    }
    return st == STRATA_OK ? b->device->ops->finish(b->device, ST_QUEUE_UPLOAD) : st;
}

static strata_status measure_matmul(struct bench *b, struct st_machine *m)
{
    struct matmul_probe probe;
    double seconds = 0;
    uint64_t bytes;
    strata_status st;

    matmul_shape(&probe, b->workload);
    bytes = matmul_carve(&probe, b->workload->dtype, b->device->ops->arena(b->device));
    st = device_fill(b, bytes);
    if (st == STRATA_OK)
        st = best_time(b, matmul_once, &probe, &seconds);
    if (st == STRATA_OK)
        m->matmul_flops = 6.0 * probe.rows * probe.hidden * probe.wide / seconds;
    return st;
}

/* --- copies --- */

static strata_status upload_once(struct bench *b, void *ctx)
{
    const strata_status st = b->device->ops->upload(b->device, b->device->ops->arena(b->device), b->host.base, b->host.bytes);

    (void)ctx;
    return st == STRATA_OK ? b->device->ops->finish(b->device, ST_QUEUE_UPLOAD) : st;
}

static strata_status download_once(struct bench *b, void *ctx)
{
    const strata_status st = b->device->ops->download(b->device, b->host.base, b->device->ops->arena(b->device), b->host.bytes);

    (void)ctx;
    return st == STRATA_OK ? b->device->ops->finish(b->device, ST_QUEUE_DOWNLOAD) : st;
}

static strata_status measure_upload(struct bench *b, struct st_machine *m)
{
    double seconds = 0;
    const strata_status st = best_time(b, upload_once, NULL, &seconds);

    if (st == STRATA_OK)
        m->upload = (double)b->host.bytes / seconds;
    return st;
}

static strata_status measure_download(struct bench *b, struct st_machine *m)
{
    double seconds = 0;
    const strata_status st = best_time(b, download_once, NULL, &seconds);

    if (st == STRATA_OK)
        m->download = (double)b->host.bytes / seconds;
    return st;
}

/* --- checksums --- */

struct checksum_probe {
    const unsigned char *tiles;
    uint32_t tile_count; /* workers, or as many as there is room for */
};

static void checksum_tile(void *ctx, uint64_t index, uint32_t worker)
{
    const struct checksum_probe *p = ctx;

    (void)index;
    (void)st_checksum64(p->tiles + (worker % p->tile_count) * CHECKSUM_BYTES, CHECKSUM_BYTES);
}

static strata_status checksum_once(struct bench *b, void *ctx)
{
    st_workers_run(b->workers, checksum_tile, ctx, (uint64_t)CHECKSUM_ROUNDS * st_workers_count(b->workers));
    return STRATA_OK;
}

static strata_status measure_checksum(struct bench *b, struct st_machine *m)
{
    const uint32_t workers = st_workers_count(b->workers);
    struct checksum_probe probe = {.tiles = b->host.base,
                                   .tile_count = (uint32_t)clamp(b->host.bytes / CHECKSUM_BYTES, 1, workers)};
    double seconds = 0;
    const strata_status st = best_time(b, checksum_once, &probe, &seconds);

    if (st == STRATA_OK)
        m->checksum = (double)CHECKSUM_BYTES * CHECKSUM_ROUNDS * workers / seconds;
    return st;
}

/* --- a block, forward and backward --- */

/* Device addresses. */
struct block_probe {
    const struct st_compute *compute;
    uint64_t bytes; /* of all of them */
    unsigned char *act, *act_out, *dact, *weight, *internals, *workspace, *constants;
    float *grad; /* NULL: nothing of the page is trained */
};

static unsigned char *carve(struct block_probe *p, unsigned char *base, uint64_t bytes)
{
    unsigned char *at = base != NULL ? base + p->bytes : NULL;

    p->bytes += (bytes + BLOCK_ALIGN - 1) / BLOCK_ALIGN * BLOCK_ALIGN;
    return at;
}

/* The bytes alone without a base. */
static void block_carve(struct block_probe *p, const struct st_workload *w, unsigned char *base)
{
    const struct st_page *page = &w->pages[w->block_first];
    bool trained = false;

    for (uint32_t i = 0; i < page->group_count; i++)
        trained = trained || page->groups[i].kind != ST_GROUP_FROZEN;
    p->bytes = 0;
    p->act = carve(p, base, w->activation_bytes);
    p->act_out = carve(p, base, w->activation_bytes);
    p->dact = carve(p, base, w->activation_bytes);
    p->weight = carve(p, base, page->elems * strata_dtype_bytes(w->dtype));
    p->internals = carve(p, base, w->block_internal_bytes);
    p->workspace = carve(p, base, w->block_workspace_bytes);
    p->grad = trained ? (float *)(void *)carve(p, base, page->elems * sizeof(float)) : NULL;
    p->constants = w->constants_bytes > 0 ? carve(p, base, w->constants_bytes) : NULL;
}

/* The backward pass overwrites its gradient: it is made anew, which is little beside the block. */
static strata_status block_once(struct bench *b, void *ctx)
{
    const struct block_probe *p = ctx;
    const struct st_workload *w = b->workload;
    struct st_call call = {.kind = ST_CALL_BLOCK_FORWARD,
                           .device = b->device,
                           .weight = p->weight,
                           .act = p->act,
                           .act_out = p->act_out,
                           .internals = p->internals,
                           .workspace = p->workspace,
                           .constants = p->constants};
    strata_status st = p->compute->run(p->compute->model, &call);

    if (st == STRATA_OK)
        st = b->device->ops->copy(b->device, p->dact, p->act_out, w->activation_bytes);
    call.kind = ST_CALL_BLOCK_BACKWARD;
    call.dact = p->dact;
    call.grad = p->grad;
    call.grad_elems = w->pages[w->block_first].elems;
    call.first = p->grad != NULL;
    if (st == STRATA_OK)
        st = p->compute->run(p->compute->model, &call);
    return st == STRATA_OK ? b->device->ops->finish(b->device, ST_QUEUE_COMPUTE) : st;
}

static void fill_normal(struct bench *b, const struct st_arena *arena)
{
    const strata_dtype dt = b->workload->dtype;
    const uint64_t elems = arena->bytes / strata_dtype_bytes(dt);
    float wide[512];

    for (uint64_t first = 0; first < elems; first += 512) {
        const uint64_t count = elems - first < 512 ? elems - first : 512;

        st_rng_normal(wide, count, BLOCK_SEED, 0, first, BLOCK_STD);
        if (dt == STRATA_F32)
            memcpy((float *)(void *)arena->base + first, wide, count * sizeof(float));
        else
            (dt == STRATA_BF16 ? b->kernels->f32_to_bf16 : b->kernels->f32_to_f16)((uint16_t *)(void *)arena->base + first, wide,
                                                                                   count);
    }
}

static strata_status block_fill(struct bench *b, const struct block_probe *p)
{
    strata_status st = st_arena_create(&b->host, "block probe", COPY_BYTES_MIN, b->workers);

    if (st != STRATA_OK)
        return st;
    fill_normal(b, &b->host);
    st = device_fill(b, p->bytes);
    if (st == STRATA_OK && p->constants != NULL)
        st = b->device->ops->upload(b->device, p->constants, p->compute->constants, b->workload->constants_bytes);
    return st == STRATA_OK ? b->device->ops->finish(b->device, ST_QUEUE_UPLOAD) : st;
}

/* A block that is too large for a probe is not measured: block_flops stays 0, and matmul_flops stands for it. */
static strata_status measure_block(struct bench *b, struct st_machine *m, const struct st_compute *compute)
{
    const struct st_workload *w = b->workload;
    struct block_probe probe = {.compute = compute};
    struct st_device_opts opts = {.index = b->index, .workers = b->workers, .kernels = b->kernels};
    double seconds = 0;
    strata_status st;

    if (compute == NULL || w->generate || w->workers < st_workers_count(b->workers))
        return STRATA_OK;
    block_carve(&probe, w, NULL);
    if (probe.bytes > BLOCK_BYTES_MAX || probe.bytes > m->capacity[STRATA_TIER_DEVICE] / 4)
        return STRATA_OK;
    opts.arena_bytes = probe.bytes;
    st = b->ops->open(&b->device, &opts);
    if (st != STRATA_OK)
        return st;
    block_carve(&probe, w, b->device->ops->arena(b->device));
    st = block_fill(b, &probe);
    if (st == STRATA_OK)
        st = best_time(b, block_once, &probe, &seconds);
    if (st == STRATA_OK)
        m->block_flops = (w->block_forward_flops + w->block_backward_flops) / seconds;
    return st;
}

/* --- update --- */

struct update_probe {
    uint64_t elems; /* a multiple of ST_TILE_ELEMS */
    const struct st_kernels *kernels;
    strata_dtype dtype;
    struct st_update_coef coef;
    struct st_moments moments;
    void *weight, *grad; /* [elems] dtype; f32: the master */
    int16_t *residual;   /* [elems]; bf16 only */
};

static void update_tile(void *ctx, uint64_t index, uint32_t worker)
{
    const struct update_probe *p = ctx;
    const uint64_t first = index * ST_TILE_ELEMS;
    const struct st_moments moments = st_moments_at(&p->moments, first);

    (void)worker;
    if (p->dtype == STRATA_F32)
        p->kernels->update_master((float *)p->weight + first, NULL, STRATA_DTYPE_INVALID, &moments, (float *)p->grad + first,
                                  STRATA_F32, ST_TILE_ELEMS, &p->coef);
    else
        p->kernels->update_split((uint16_t *)p->weight + first, p->residual + first, &moments, (uint16_t *)p->grad + first,
                                 STRATA_BF16, ST_TILE_ELEMS, &p->coef);
}

static strata_status update_once(struct bench *b, void *ctx)
{
    struct update_probe *p = ctx;

    st_workers_run(b->workers, update_tile, p, p->elems / ST_TILE_ELEMS);
    return STRATA_OK;
}

/* Bytes of the planes, which are moments, weight, gradient and residual. */
static uint64_t update_bytes(const struct update_probe *p)
{
    const uint64_t per_elem = 2 * strata_dtype_bytes(p->dtype) + (p->dtype == STRATA_F32 ? 0 : 2);

    return st_rule_moments(p->coef.rule) * st_moment_bytes(p->moments.format, p->elems) + p->elems * per_elem;
}

static void update_carve(struct update_probe *p, unsigned char *base)
{
    const uint64_t plane = p->elems * strata_dtype_bytes(p->dtype), moment = st_moment_bytes(p->moments.format, p->elems);
    const uint32_t moments = st_rule_moments(p->coef.rule);

    p->moments.moment1 = base;
    p->moments.moment2 = moments > 1 ? base + moment : NULL;
    p->weight = base + moments * moment;
    p->grad = (unsigned char *)p->weight + plane;
    p->residual = (int16_t *)(void *)((unsigned char *)p->grad + plane);
}

static strata_status measure_update(struct bench *b, struct st_machine *m, const struct st_config *config)
{
    struct update_probe probe = {
        .elems = clamp(b->workload->params, UPDATE_ELEMS_MIN, UPDATE_ELEMS_MAX) / ST_TILE_ELEMS * ST_TILE_ELEMS,
        .kernels = b->kernels,
        .dtype = b->workload->dtype,
        .moments = {.format = st_moment_format_of(config)},
        .coef = {.rule = st_rule_of(config),
                 .grad_scale = 1,
                 .beta1 = 0.9f,
                 .one_minus_beta1 = 0.1f,
                 .beta2 = 0.999f,
                 .one_minus_beta2 = 0.001f,
                 .eps = 1e-8f,
                 .step_size = 1e-4f,
                 .vhat_scale = 1,
                 .decay = 1},
    };
    const uint64_t bytes = update_bytes(&probe);
    struct st_arena arena = {0};
    double seconds = 0;
    strata_status st = st_arena_create(&arena, "update probe", bytes, b->workers);

    if (st != STRATA_OK)
        return st;
    memset(arena.base, FILL_BYTE, bytes);
    update_carve(&probe, arena.base);
    st = best_time(b, update_once, &probe, &seconds);
    if (st == STRATA_OK)
        m->update = (double)probe.elems / seconds;
    st_arena_destroy(&arena);
    return st;
}

/* --- all of them --- */

static void note_failure(strata_status st, const char *what)
{
    if (st != STRATA_OK)
        st_log(ST_LOG_WARN, "%s could not be measured, its rate is unknown: %s", what, strata_last_error());
}

static uint64_t copy_bytes(const struct st_workload *w)
{
    uint64_t largest = 0;

    for (uint32_t i = 0; i < w->page_count; i++)
        largest = w->pages[i].elems > largest ? w->pages[i].elems : largest;
    return clamp(largest * strata_dtype_bytes(w->dtype), COPY_BYTES_MIN, COPY_BYTES_MAX);
}

/* Copies are measured as a run makes them: from and to memory that the device has pinned, where it does that. */
static strata_status bench_open_device(struct bench *b, const struct st_device_opts *opts)
{
    const strata_status st = b->ops->open(&b->device, opts);

    if (st != STRATA_OK || b->ops->pin == NULL)
        return st;
    return b->ops->pin(b->device, b->host.base, b->host.bytes);
}

static strata_status bench_open(struct bench *b, const struct st_workload *w, const struct st_config *config,
                                const struct st_topology *topo, const char *device)
{
    struct st_device_opts opts = {0};
    struct matmul_probe probe;
    strata_status st;

    *b = (struct bench){
        .workload = w, .kernels = st_kernels_pick(config->isa), .ops = st_device_find(device), .index = st_device_index(device)};
    if (b->ops == NULL)
        return st_error(STRATA_E_INVAL, "unknown device \"%s\"", device);
    if (b->kernels == NULL)
        return st_error(STRATA_E_INVAL, "strata.isa %s is unknown or cannot run on this processor", config->isa);
    st = st_workers_create(&b->workers, config->threads, topo);
    if (st == STRATA_OK)
        st = st_arena_create(&b->host, "copy probe", copy_bytes(w), b->workers);
    if (st != STRATA_OK)
        return st;
    memset(b->host.base, FILL_BYTE, b->host.bytes);
    matmul_shape(&probe, w);
    opts.arena_bytes = matmul_carve(&probe, w->dtype, NULL);
    opts.arena_bytes = opts.arena_bytes > b->host.bytes ? opts.arena_bytes : b->host.bytes;
    opts.index = b->index;
    opts.workers = b->workers;
    opts.kernels = b->kernels;
    return bench_open_device(b, &opts);
}

static void bench_close_device(struct bench *b)
{
    if (b->device != NULL)
        b->device->ops->close(b->device);
    b->device = NULL;
    st_arena_destroy(&b->host);
    b->host = (struct st_arena){0};
}

strata_status st_machine_measure(struct st_machine *machine, const struct st_workload *workload, const struct st_compute *compute,
                                 const struct st_config *config, const struct st_topology *topo, unsigned what)
{
    return st_machine_measure_on(machine, workload, compute, config, topo, what, "cpu");
}

strata_status st_machine_measure_on(struct st_machine *machine, const struct st_workload *workload,
                                    const struct st_compute *compute, const struct st_config *config,
                                    const struct st_topology *topo, unsigned what, const char *device)
{
    struct bench b;
    strata_status st = bench_open(&b, workload, config, topo, device);

    if (st == STRATA_OK) {
        if ((what & ST_MEASURE_COMPUTE) != 0)
            note_failure(measure_matmul(&b, machine), "matmul");
        if ((what & ST_MEASURE_LINKS) != 0) {
            note_failure(measure_upload(&b, machine), "the upload link");
            note_failure(measure_download(&b, machine), "the download link");
        }
        if ((what & ST_MEASURE_UPDATE) != 0)
            note_failure(measure_checksum(&b, machine), "the checksum");
        bench_close_device(&b);
        if ((what & ST_MEASURE_COMPUTE) != 0)
            note_failure(measure_block(&b, machine, compute), "a block");
        bench_close_device(&b);
        if ((what & ST_MEASURE_UPDATE) != 0)
            note_failure(measure_update(&b, machine, config), "the optimizer update");
        if ((what & ST_MEASURE_DISK) != 0 && strcmp(config->io_method, "fake") != 0)
            note_failure(st_machine_measure_disk(machine, config), "the disk");
        st_error_clear();
    }
    bench_close_device(&b);
    st_workers_destroy(b.workers);
    return st;
}

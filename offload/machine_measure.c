/* offload/machine_measure.c - what this machine does per second, measured on the very code a step runs.
 *
 * Four probes, each at most half a second: matmuls and copies through the device table, the optimizer kernel on the
 * workers, the disk by nvme/probe.c.  A rate feeds lower bounds, so it is the best of the repeats, not their mean.  One
 * probe's buffers are gone before the next begins, and no larger than the workload's own pages and state. */
#include "core/arena.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "core/workers.h"
#include "nvme/swap.h"
#include "offload/device.h"
#include "offload/machine.h"

#include <string.h>

#define PROBE_SECONDS      0.35 /* of repeats, after one that warms up */
#define PROBE_DISK_SECONDS 0.9
#define PROBE_FILE_BYTES   (UINT64_C(128) << 20)
#define COPY_BYTES_MIN     (UINT64_C(4) << 20)
#define COPY_BYTES_MAX     (UINT64_C(64) << 20)
#define UPDATE_ELEMS_MIN   (UINT64_C(1) << 20)
#define UPDATE_ELEMS_MAX   (UINT64_C(8) << 20)
#define MATMUL_ROWS_MAX    1024u
#define MATMUL_HIDDEN_MAX  2048u
#define MATMUL_WIDE_MAX    3072u
#define FILL_BYTE          0x3c /* 0x3c3c3c3c and 0x3c3c are about 0.0115 in f32 and bf16 */

struct bench {
    const struct st_workload *workload;
    struct st_workers *workers;
    const struct st_kernels *kernels;
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

/* --- update --- */

struct update_probe {
    uint64_t elems; /* a multiple of ST_TILE_ELEMS */
    const struct st_kernels *kernels;
    strata_dtype dtype;
    struct st_adam_coef coef;
    float *moment1, *moment2; /* [elems] */
    void *weight, *grad;      /* [elems] dtype; f32: the master */
    int16_t *residual;        /* [elems]; bf16 only */
};

static void update_tile(void *ctx, uint64_t index, uint32_t worker)
{
    const struct update_probe *p = ctx;
    const uint64_t first = index * ST_TILE_ELEMS;

    (void)worker;
    if (p->dtype == STRATA_F32)
        p->kernels->adam_master((float *)p->weight + first, NULL, STRATA_DTYPE_INVALID, p->moment1 + first, p->moment2 + first,
                                (float *)p->grad + first, STRATA_F32, ST_TILE_ELEMS, &p->coef);
    else
        p->kernels->adam_split((uint16_t *)p->weight + first, p->residual + first, p->moment1 + first, p->moment2 + first,
                               (uint16_t *)p->grad + first, STRATA_BF16, ST_TILE_ELEMS, &p->coef);
}

static strata_status update_once(struct bench *b, void *ctx)
{
    struct update_probe *p = ctx;

    st_workers_run(b->workers, update_tile, p, p->elems / ST_TILE_ELEMS);
    return STRATA_OK;
}

static void update_carve(struct update_probe *p, unsigned char *base)
{
    const uint64_t elem = strata_dtype_bytes(p->dtype);

    p->moment1 = (float *)(void *)base;
    p->moment2 = p->moment1 + p->elems;
    p->weight = p->moment2 + p->elems;
    p->grad = (unsigned char *)p->weight + p->elems * elem;
    p->residual = (int16_t *)(void *)((unsigned char *)p->grad + p->elems * elem);
}

static strata_status measure_update(struct bench *b, struct st_machine *m)
{
    struct update_probe probe = {
        .elems = clamp(b->workload->params, UPDATE_ELEMS_MIN, UPDATE_ELEMS_MAX) / ST_TILE_ELEMS * ST_TILE_ELEMS,
        .kernels = b->kernels,
        .dtype = b->workload->dtype,
        .coef = {.grad_scale = 1,
                 .beta1 = 0.9f,
                 .one_minus_beta1 = 0.1f,
                 .beta2 = 0.999f,
                 .one_minus_beta2 = 0.001f,
                 .eps = 1e-8f,
                 .step_size = 1e-4f,
                 .vhat_scale = 1,
                 .decay = 1},
    };
    const uint64_t per_elem = 8 + 2 * strata_dtype_bytes(probe.dtype) + (probe.dtype == STRATA_F32 ? 0 : 2);
    struct st_arena arena = {0};
    double seconds = 0;
    strata_status st = st_arena_create(&arena, "update probe", probe.elems * per_elem, b->workers);

    if (st != STRATA_OK)
        return st;
    memset(arena.base, FILL_BYTE, probe.elems * per_elem);
    update_carve(&probe, arena.base);
    st = best_time(b, update_once, &probe, &seconds);
    if (st == STRATA_OK)
        m->update = (double)probe.elems / seconds;
    st_arena_destroy(&arena);
    return st;
}

/* --- disk --- */

static strata_status measure_disk(struct st_machine *m, const struct st_config *config)
{
    const uint64_t room = m->capacity[STRATA_TIER_NVME] / 4 / ST_SWAP_ALIGN * ST_SWAP_ALIGN;
    struct st_probe_rates rates;
    strata_status st;

    if (room == 0)
        return st_error(STRATA_E_NOSPC, "%s: no space to measure with", config->nvme_dirs[0]);
    st = st_probe_rates(config->nvme_dirs[0], config->io_method, clamp(PROBE_FILE_BYTES, ST_SWAP_ALIGN, room), PROBE_DISK_SECONDS,
                        &rates);
    if (st != STRATA_OK)
        return st;
    m->read = rates.read;
    m->write = rates.write;
    m->mixed = rates.mixed;
    return STRATA_OK;
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

static strata_status bench_open(struct bench *b, const struct st_workload *w, const struct st_config *config,
                                const struct st_topology *topo)
{
    struct st_device_opts opts = {0};
    struct matmul_probe probe;
    strata_status st;

    *b = (struct bench){.workload = w, .kernels = st_kernels_pick(config->isa)};
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
    opts.workers = b->workers;
    opts.kernels = b->kernels;
    return st_device_cpu_ops.open(&b->device, &opts);
}

static void bench_close_device(struct bench *b)
{
    if (b->device != NULL)
        b->device->ops->close(b->device);
    b->device = NULL;
    st_arena_destroy(&b->host);
    b->host = (struct st_arena){0};
}

strata_status st_machine_measure(struct st_machine *machine, const struct st_workload *workload, const struct st_config *config,
                                 const struct st_topology *topo, bool disk)
{
    struct bench b;
    strata_status st = bench_open(&b, workload, config, topo);

    if (st == STRATA_OK) {
        note_failure(measure_matmul(&b, machine), "matmul");
        note_failure(measure_upload(&b, machine), "the upload link");
        note_failure(measure_download(&b, machine), "the download link");
        bench_close_device(&b);
        note_failure(measure_update(&b, machine), "the optimizer update");
        if (disk && strcmp(config->io_method, "fake") != 0)
            note_failure(measure_disk(machine, config), "the disk");
        st_error_clear();
    }
    bench_close_device(&b);
    st_workers_destroy(b.workers);
    return st;
}

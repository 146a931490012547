/* offload/machine/machine_measure.c - measures what this machine does per second, on the same code that a step runs.
 *
 * There are nine probes: matmuls, a block and the head of the model (machine_measure_compute.c), copies through the device
 * table, over the link and within memory of its own, checksums and the optimizer kernel on the workers, hand-overs between
 * threads or by a device's queue (machine_measure_handover.c), and the disk (machine_measure_disk.c).  Time, not bytes, limits
 * how much each one does: at most half a second, unless a block or a head takes longer; 0.15 seconds on a device with queues,
 * which gets batches that take some milliseconds.  A rate feeds lower bounds, so it is the best of the repeats, not their mean.
 *
 * The buffers of one probe are freed before the next begins.  They are no larger than the workload's own pages and state and, on
 * a device with memory of its own, no larger than half of its free memory. */
#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/base/rng.h"
#include "core/base/size.h"
#include "core/system/clock.h"
#include "offload/machine/machine_measure_internal.h"
#include "offload/optim/optimizer.h"

#include <math.h>
#include <string.h>

#define HOST_SECONDS     0.35 /* of the repeats, which follow one warm-up run */
#define QUEUED_SECONDS   0.15
#define BURST_NS         UINT64_C(5000000) /* minimum for one repeat on a device with queues */
#define BURST_MOST       64u
#define COPY_BYTES_MAX   (UINT64_C(64) << 20)
#define MEMORY_BYTES     (UINT64_C(256) << 20) /* read and written at once: several times the caches of a device */
#define UPDATE_ELEMS_MIN (UINT64_C(1) << 20)
#define UPDATE_ELEMS_MAX (UINT64_C(8) << 20)
#define CHECKSUM_BYTES   (ST_TILE_ELEMS * sizeof(float)) /* of a tile; each worker has its own */
#define CHECKSUM_ROUNDS  256u                            /* tiles per worker and repeat */
#define DEVICE_BESIDE    (UINT64_C(64) << 20) /* of a device's free memory: the workspace of its matmuls and loaded kernels */
#define FILL_SEED        0x626c6f63u
#define FILL_STD         0.02f
#define FILL_BYTE        0x3c /* 0x3c3c3c3c and 0x3c3c are about 0.0115 in f32 and bf16 */

static uint64_t clamp(uint64_t value, uint64_t least, uint64_t most)
{
    return value < least ? least : value > most ? most : value;
}

/* --- repeats --- */

static bool has_queues(const struct st_prober *m)
{
    return m->device != NULL && m->ops->notify != NULL;
}

double st_measure_limit(const struct st_prober *m)
{
    return has_queues(m) ? QUEUED_SECONDS : HOST_SECONDS;
}

double st_measure_patience(double seconds)
{
    return st_fault("machine.patience", 1) > 0 ? seconds : 0;
}

strata_status st_measure_best(struct st_prober *m, st_measure_fn *fn, void *ctx, double limit, double *seconds)
{
    const uint64_t limit_ns = (uint64_t)(st_measure_patience(limit) * 1e9);
    uint64_t total_ns = 0;
    double best_ns = INFINITY;
    uint32_t count = 1;
    strata_status st = fn(m, ctx, 1);

    if (st != STRATA_OK)
        return st;
    do {
        const uint64_t start_ns = st_clock_ns();
        uint64_t spent_ns;
        double each_ns;

        st = fn(m, ctx, count);
        spent_ns = st_clock_ns() - start_ns;
        spent_ns += spent_ns == 0;
        each_ns = (double)spent_ns / count;
        best_ns = each_ns < best_ns ? each_ns : best_ns;
        total_ns += spent_ns;
        if (has_queues(m))
            count = (uint32_t)clamp((uint64_t)((double)BURST_NS / each_ns) + 1, 1, BURST_MOST);
    } while (st == STRATA_OK && total_ns < limit_ns);
    *seconds = best_ns * 1e-9;
    return st;
}

/* --- what probes use --- */

/* Draws some normal values and repeats them, because drawing them all takes longer than a probe. */
static void fill_normal(const struct st_prober *m)
{
    const uint64_t elem = strata_dtype_bytes(m->dtype), elems = clamp(m->host.bytes, 1, ST_MEASURE_COPY_BYTES_MIN) / elem;
    unsigned char *base = m->host.base;
    float wide[512];

    for (uint64_t first = 0; first < elems; first += 512) {
        const uint64_t count = elems - first < 512 ? elems - first : 512;

        st_rng_normal(wide, count, FILL_SEED, 0, first, FILL_STD);
        if (m->dtype == STRATA_F32)
            memcpy((float *)(void *)base + first, wide, count * sizeof(float));
        else
            (m->dtype == STRATA_BF16 ? m->kernels->f32_to_bf16 : m->kernels->f32_to_f16)((uint16_t *)(void *)base + first, wide,
                                                                                         count);
    }
    for (uint64_t at = elems * elem; at < m->host.bytes; at += elems * elem)
        memcpy(base + at, base, m->host.bytes - at < elems * elem ? m->host.bytes - at : elems * elem);
}

static strata_status find_device_most(struct st_prober *m)
{
    struct st_device_memory memory;
    char free_bytes[24];
    strata_status st;

    m->device_most = UINT64_MAX;
    if (m->ops->memory == NULL)
        return STRATA_OK;
    st = m->ops->memory(m->index, &memory);
    if (st != STRATA_OK)
        return st;
    m->device_most = memory.free / 2 > DEVICE_BESIDE ? memory.free / 2 - DEVICE_BESIDE : 0;
    if (m->device_most < ST_MEASURE_COPY_BYTES_MIN)
        return st_error(STRATA_E_NOFIT, "%s: %s of its memory are free: too little to measure anything", m->ops->name,
                        st_size_text(free_bytes, memory.free));
    return STRATA_OK;
}

strata_status st_measure_open(struct st_prober *m, strata_dtype dtype, const struct st_machine_opts *opts, uint64_t bytes)
{
    const char *device = opts->device != NULL ? opts->device : "cpu";
    strata_status st;

    *m = (struct st_prober){.dtype = dtype,
                            .kernels = st_kernels_pick(opts->isa),
                            .ops = st_device_find(device),
                            .index = st_device_index(device),
                            .deadline_ns = opts->device_deadline_ns};
    if (m->ops == NULL)
        return st_error(STRATA_E_INVAL, "unknown device \"%s\"", device);
    if (m->kernels == NULL)
        return st_error(STRATA_E_INVAL, "strata.isa %s is unknown or cannot run on this processor", opts->isa);
    st = find_device_most(m);
    if (st == STRATA_OK)
        st = st_workers_create(&m->workers, st_machine_workers(opts->topology, device, opts->threads), opts->topology);
    if (st == STRATA_OK)
        st = st_arena_create(&m->host, "copy probe", bytes < m->device_most ? bytes : m->device_most, m->workers);
    if (st == STRATA_OK)
        fill_normal(m);
    return st;
}

void st_measure_close(struct st_prober *m)
{
    st_measure_close_device(m);
    st_arena_destroy(&m->host);
    st_workers_destroy(m->workers);
    *m = (struct st_prober){0};
}

/* Copies are measured as a run makes them: from and to memory that the device has pinned, if it pins memory.  If it could not,
 * the probes that come after those of the copies do not try again. */
strata_status st_measure_open_device(struct st_prober *m, uint64_t arena_bytes)
{
    const struct st_device_opts opts = {.arena_bytes = arena_bytes,
                                        .index = m->index,
                                        .workers = m->workers,
                                        .kernels = m->kernels,
                                        .deadline_ns = m->deadline_ns};
    const strata_status st = m->ops->open(&m->device, &opts);

    if (st != STRATA_OK || m->ops->pin == NULL || m->staged.bytes > 0)
        return st;
    return m->ops->pin(m->device, m->host.base, m->host.bytes, &m->staged);
}

void st_measure_close_device(struct st_prober *m)
{
    if (m->device != NULL)
        m->ops->close(m->device);
    m->device = NULL;
}

strata_status st_measure_fill(struct st_prober *m, uint64_t bytes)
{
    unsigned char *base = m->ops->arena(m->device);
    strata_status st = STRATA_OK;

    for (uint64_t at = 0; at < bytes && st == STRATA_OK; at += m->host.bytes) {
        const uint64_t piece = bytes - at < m->host.bytes ? bytes - at : m->host.bytes;

        st = m->ops->upload(m->device, base + at, m->host.base, piece);
    }
    return st == STRATA_OK ? m->ops->finish(m->device, ST_QUEUE_UPLOAD) : st;
}

/* --- copies --- */

static strata_status upload_run(struct st_prober *m, void *ctx, uint32_t count)
{
    strata_status st = STRATA_OK;

    (void)ctx;
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = m->ops->upload(m->device, m->ops->arena(m->device), m->host.base, m->host.bytes);
    return st == STRATA_OK ? m->ops->finish(m->device, ST_QUEUE_UPLOAD) : st;
}

static strata_status download_run(struct st_prober *m, void *ctx, uint32_t count)
{
    strata_status st = STRATA_OK;

    (void)ctx;
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = m->ops->download(m->device, m->host.base, m->ops->arena(m->device), m->host.bytes);
    return st == STRATA_OK ? m->ops->finish(m->device, ST_QUEUE_DOWNLOAD) : st;
}

static strata_status measure_link(struct st_prober *m, st_measure_fn *fn, double *rate)
{
    double seconds = 0;
    const strata_status st = st_measure_best(m, fn, NULL, st_measure_limit(m), &seconds);

    if (st == STRATA_OK)
        *rate = (double)m->host.bytes / seconds;
    return st;
}

/* --- a device's own memory --- */

static uint64_t memory_bytes(const struct st_prober *m)
{
    return m->ops->memory == NULL ? 0 : m->device_most < MEMORY_BYTES ? m->device_most : MEMORY_BYTES;
}

/* Copies the first half of the probe's memory to the second. */
static strata_status memory_run(struct st_prober *m, void *ctx, uint32_t count)
{
    unsigned char *const base = m->ops->arena(m->device);
    const uint64_t half = memory_bytes(m) / 2;
    strata_status st = STRATA_OK;

    (void)ctx;
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = m->ops->copy(m->device, base + half, base, half);
    return st == STRATA_OK ? m->ops->finish(m->device, ST_QUEUE_COMPUTE) : st;
}

static strata_status measure_memory(struct st_prober *m, double *rate)
{
    double seconds = 0;
    const strata_status st = st_measure_best(m, memory_run, NULL, st_measure_limit(m), &seconds);

    if (st == STRATA_OK)
        *rate = (double)memory_bytes(m) / seconds;
    return st;
}

/* --- checksums --- */

struct checksum_probe {
    const unsigned char *tiles;
    uint32_t tile_count; /* as many as there are workers, or as fit into memory */
};

static void checksum_tile(void *ctx, uint64_t index, uint32_t worker)
{
    const struct checksum_probe *p = ctx;

    (void)index;
    (void)st_checksum64(p->tiles + (worker % p->tile_count) * CHECKSUM_BYTES, CHECKSUM_BYTES);
}

static strata_status checksum_run(struct st_prober *m, void *ctx, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        st_workers_run(m->workers, checksum_tile, ctx, (uint64_t)CHECKSUM_ROUNDS * st_workers_count(m->workers));
    return STRATA_OK;
}

static strata_status measure_checksum(struct st_prober *m, double *rate)
{
    const uint32_t workers = st_workers_count(m->workers);
    struct checksum_probe probe = {.tiles = m->host.base,
                                   .tile_count = (uint32_t)clamp(m->host.bytes / CHECKSUM_BYTES, 1, workers)};
    double seconds = 0;
    const strata_status st = st_measure_best(m, checksum_run, &probe, HOST_SECONDS, &seconds);

    if (st == STRATA_OK)
        *rate = (double)CHECKSUM_BYTES * CHECKSUM_ROUNDS * workers / seconds;
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
    int16_t *low_half;   /* [elems]; bf16 only */
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
        p->kernels->update_split((uint16_t *)p->weight + first, p->low_half + first, &moments, (uint16_t *)p->grad + first,
                                 STRATA_BF16, ST_TILE_ELEMS, &p->coef);
}

static strata_status update_run(struct st_prober *m, void *ctx, uint32_t count)
{
    struct update_probe *p = ctx;

    for (uint32_t i = 0; i < count; i++)
        st_workers_run(m->workers, update_tile, p, p->elems / ST_TILE_ELEMS);
    return STRATA_OK;
}

#define UPDATE_PLANES 5u

/* Bytes of the planes: moments, weight, gradient and low half, staggered as those of a chunk are. */
static uint64_t update_bytes(const struct update_probe *p)
{
    const uint64_t per_elem = 2 * strata_dtype_bytes(p->dtype) + (p->dtype == STRATA_F32 ? 0 : 2);

    return st_rule_moments(p->coef.rule) * st_moment_bytes(p->moments.format, p->elems) + p->elems * per_elem +
           UPDATE_PLANES * ST_PLANE_SKEW;
}

static void update_carve(struct update_probe *p, unsigned char *base)
{
    const uint64_t plane = p->elems * strata_dtype_bytes(p->dtype) + ST_PLANE_SKEW;
    const uint64_t moment = st_moment_bytes(p->moments.format, p->elems) + ST_PLANE_SKEW;
    const uint32_t moments = st_rule_moments(p->coef.rule);

    p->moments.moment1 = base;
    p->moments.moment2 = moments > 1 ? base + moment : NULL;
    p->weight = base + moments * moment;
    p->grad = (unsigned char *)p->weight + plane;
    p->low_half = (int16_t *)(void *)((unsigned char *)p->grad + plane);
}

/* The rate of the faster way to fetch, or of the one that is asked for. */
static strata_status measure_fetches(struct st_prober *m, struct update_probe *p, enum st_fetch asked, struct st_rates *rates)
{
    strata_status st = STRATA_OK;

    for (int fetch = ST_FETCH_BURSTS; fetch <= ST_FETCH_EVEN && st == STRATA_OK; fetch++) {
        double seconds = 0;

        if (asked != ST_FETCH_AUTO && asked != (enum st_fetch)fetch)
            continue;
        p->coef.fetch_even = fetch == ST_FETCH_EVEN;
        st = st_measure_best(m, update_run, p, HOST_SECONDS / 2, &seconds);
        if (st == STRATA_OK && (double)p->elems / seconds > rates->update) {
            rates->update = (double)p->elems / seconds;
            rates->update_even = fetch == ST_FETCH_EVEN;
        }
    }
    return st;
}

static strata_status measure_update(struct st_prober *m, const struct st_workload *w, const struct st_machine_opts *opts,
                                    struct st_rates *rates)
{
    struct update_probe probe = {
        .elems = clamp(w->params, UPDATE_ELEMS_MIN, UPDATE_ELEMS_MAX) / ST_TILE_ELEMS * ST_TILE_ELEMS,
        .kernels = m->kernels,
        .dtype = w->dtype,
        .moments = {.format = opts->moments},
        .coef = {.rule = opts->rule,
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
    strata_status st = st_arena_create(&arena, "update probe", bytes, m->workers);

    if (st != STRATA_OK)
        return st;
    memset(arena.base, FILL_BYTE, bytes);
    update_carve(&probe, arena.base);
    rates->update = 0;
    st = measure_fetches(m, &probe, opts->fetch, rates);
    st_arena_destroy(&arena);
    return st;
}

/* --- all probes --- */

static void note_failure(strata_status st, const char *what)
{
    if (st != STRATA_OK)
        st_log(ST_LOG_WARN, "%s could not be measured, its rate is unknown: %s", what, strata_last_error());
}

/* Once the device is lost every probe of it fails: the first one's sentence is the call's, and there are no more probes. */
static strata_status unless_lost(strata_status st, const char *what)
{
    if (st == STRATA_E_IO)
        return st;
    note_failure(st, what);
    return STRATA_OK;
}

static uint64_t copy_bytes(const struct st_workload *w)
{
    uint64_t largest = 0;

    for (uint32_t i = 0; i < w->page_count; i++)
        largest = w->pages[i].elems > largest ? w->pages[i].elems : largest;
    return clamp(largest * strata_dtype_bytes(w->dtype), ST_MEASURE_COPY_BYTES_MIN, COPY_BYTES_MAX);
}

static strata_status measure_copies(struct st_prober *m, struct st_machine *machine)
{
    strata_status st = unless_lost(measure_link(m, upload_run, &machine->rates.upload), "the upload link");

    if (st == STRATA_OK)
        st = unless_lost(measure_link(m, download_run, &machine->rates.download), "the download link");
    if (st == STRATA_OK && memory_bytes(m) > 0)
        st = unless_lost(measure_memory(m, &machine->rates.memory), "the device's memory");
    if (st == STRATA_OK && has_queues(m))
        st = unless_lost(st_measure_queue(m, &machine->rates.handover, &machine->rates.launch), "a hand-over");
    machine->rates.staged = m->staged.bytes > 0;
    return st;
}

/* The probes that need the device; it is open while they run. */
static strata_status measure_device(struct st_prober *m, struct st_machine *machine, const struct st_workload *w, unsigned what)
{
    const uint64_t matmul = st_measure_matmul_bytes(m, w), memory = memory_bytes(m);
    const uint64_t most = matmul > memory ? matmul : memory;
    strata_status st = st_measure_open_device(m, most > m->host.bytes ? most : m->host.bytes);

    if (st == STRATA_OK && (what & ST_MEASURE_COMPUTE) != 0)
        st = unless_lost(st_measure_matmul(m, w, &machine->rates.matmul_flops), "matmul");
    if (st == STRATA_OK && (what & ST_MEASURE_LINKS) != 0)
        st = measure_copies(m, machine);
    st_measure_close_device(m);
    return st;
}

static strata_status measure_model(struct st_prober *m, const struct st_workload *w, const struct st_compute *compute,
                                   struct st_machine *machine)
{
    strata_status st = unless_lost(st_measure_block(m, w, compute, machine), "a block");

    st_measure_close_device(m);
    if (st == STRATA_OK)
        st = unless_lost(st_measure_experts(m, w, compute, machine), "experts");
    st_measure_close_device(m);
    if (st == STRATA_OK)
        st = unless_lost(st_measure_head(m, w, compute, machine), "the head");
    st_measure_close_device(m);
    return st;
}

static void measure_host(struct st_prober *m, const struct st_workload *w, const struct st_machine_opts *opts,
                         struct st_machine *machine, unsigned what)
{
    if ((what & ST_MEASURE_UPDATE) != 0) {
        note_failure(measure_checksum(m, &machine->rates.checksum), "the checksum");
        note_failure(measure_update(m, w, opts, &machine->rates), "the optimizer update");
        if (m->ops->notify == NULL)
            note_failure(st_measure_handover(m, &machine->rates.handover), "a hand-over");
    }
    if ((what & ST_MEASURE_DISK) != 0 && strcmp(opts->nvme.method, "fake") != 0)
        note_failure(st_machine_measure_disk(machine, &opts->nvme), "the disk");
    st_error_clear();
}

strata_status st_machine_measure(struct st_machine *machine, const struct st_workload *workload, const struct st_compute *compute,
                                 const struct st_machine_opts *opts, unsigned what)
{
    struct st_prober m;
    strata_status st;

    if (machine->capacity.lacks_bf16 && workload->dtype == STRATA_BF16)
        return st_machine_no_bf16();
    st = st_measure_open(&m, workload->dtype, opts, copy_bytes(workload));
    if (st == STRATA_OK && (what & (ST_MEASURE_COMPUTE | ST_MEASURE_LINKS)) != 0)
        st = measure_device(&m, machine, workload, what);
    if (st == STRATA_OK && (what & ST_MEASURE_COMPUTE) != 0)
        st = measure_model(&m, workload, compute, machine);
    if (st == STRATA_OK)
        measure_host(&m, workload, opts, machine, what);
    st_measure_close(&m);
    return st;
}

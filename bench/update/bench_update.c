/* bench/update/bench_update.c - how close does the update of a whole state come to the slowest of disk, memory and compute?
 *
 * An engine with an empty forward and backward (bench/null_model.h) makes an update pending and flushes it, repeatedly.  Between
 * backward and flush it measures the roofs of the resources that the flush will need; by then the data that backward read ahead
 * has arrived, and the flush counts only the bytes that it moves itself.
 *   memory   26 bytes per parameter, plus the bytes read from and written to disk, at the rate of a stream
 *   (bench/update/planes.h)
 *   compute  only the kernel over as many parameters in memory
 *   read, write, mixed  the bytes of the flush at the rates of st_probe_run() on the same directory, block and depth
 * The faster of the two probes before and after an update counts.  The bound is the largest of the medians over the updates: the
 * time of a perfect schedule.  The update's time includes checksums of the data read from disk; the bound does not.  After each
 * update, the schemes of other systems that the options name (bench/update/scheme.h) run over as many parameters. */
#include "bench/null_model.h"
#include "bench/update/planes.h"
#include "bench/update/scheme.h"
#include "core/base/error.h"
#include "core/system/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PARAMS_DEFAULT  (UINT64_C(32) << 20)
#define PROBE_PARAMS    (UINT64_C(16) << 20) /* most parameters of kernel and stream: their rates stay the same beyond */
#define REPEATS_DEFAULT 5u
#define SECONDS_MAX     60.0
#define PROBE_FILE      (UINT64_C(256) << 20)
#define PROBE_SECONDS   3.0
#define WARM_UPS        1u

enum { READ, WRITE, MIXED, MEMORY, COMPUTE, ROOFS };
static const char *const roof_names[ROOFS] = {"read", "write", "mixed", "memory", "compute"};

struct update {
    struct bench_setup setup;
    struct bench_null_model model;
    struct bench_planes planes;
    struct bench_pass stream, stream_prefetch, kernel;
    bool nvme;
    struct st_traffic moved;           /* of one update */
    double seconds[BENCH_REPEATS_MAX]; /* of updates */
    double roof[ROOFS]
               [BENCH_REPEATS_MAX + 1]; /* before each update and after the last: seconds of its work there; disk: per byte */
    struct other {
        struct bench_scheme *scheme; /* NULL: not requested */
        uint64_t bytes_read, bytes_written;
        double seconds[BENCH_REPEATS_MAX];
    } others[BENCH_SCHEME_COUNT];
    uint32_t done; /* repeats */
    struct bench_printer printer;
};

/* --- roofs --- */

static strata_status probe_disk(struct update *u, uint32_t r)
{
    const struct st_config *const c = &u->model.config;
    const uint64_t state = u->model.plan->program.needed[STRATA_TIER_NVME];
    const struct st_probe_opts opts = {.dir = c->nvme_dirs[0],
                                       .method = c->io_method,
                                       .bytes = state < PROBE_FILE ? state : PROBE_FILE,
                                       .seconds_max = PROBE_SECONDS,
                                       .block_bytes = c->block_bytes,
                                       .queue_depth = c->queue_depth};
    struct st_probe_rates rates;
    const strata_status st = st_probe_run(&opts, &rates);

    if (st != STRATA_OK)
        return st;
    u->roof[READ][r] = 1 / rates.read;
    u->roof[WRITE][r] = 1 / rates.write;
    u->roof[MIXED][r] = 1 / rates.mixed;
    return STRATA_OK;
}

static strata_status probe(struct update *u, uint32_t r)
{
    const double fraction = (double)u->model.workload.params / (double)u->planes.params;
    const double plain = bench_planes_run(&u->planes, &u->stream), ahead = bench_planes_run(&u->planes, &u->stream_prefetch);

    u->roof[MEMORY][r] = (plain < ahead ? plain : ahead) * fraction;
    u->roof[COMPUTE][r] = bench_planes_run(&u->planes, &u->kernel) * fraction;
    return u->nvme ? probe_disk(u, r) : STRATA_OK;
}

/* Bytes that the memory bus carries for one update. */
static uint64_t state_bytes(const struct update *u)
{
    const struct bench_traffic traffic = bench_layout_traffic(BENCH_SPLIT, u->model.workload.params);

    return traffic.read + traffic.written;
}

/* Interference only ever slows a probe, so the faster of the two around an update counts. */
static double roof_median(const struct update *u, int roof)
{
    double beside[BENCH_REPEATS_MAX];

    for (uint32_t r = 0; r < u->done; r++)
        beside[r] = fmin(u->roof[roof][r], u->roof[roof][r + 1]);
    return bench_median(beside, u->done);
}

/* Seconds that the bytes of one update take at this roof; 0: the update does not use it. */
static double roof_seconds(const struct update *u, int roof)
{
    const double bytes[] = {(double)u->moved.read, (double)u->moved.write, (double)(u->moved.read + u->moved.write)};
    const double median = roof_median(u, roof);
    const double state = (double)state_bytes(u);

    if (roof == MEMORY)
        return median * (1 + bytes[MIXED] / state);
    if (roof == COMPUTE)
        return median;
    return u->nvme ? median * bytes[roof] : 0;
}

/* --- rows --- */

static const char *const extra_names[] = {"read_bytes", "written_bytes", "bound_seconds", "seconds_least",
                                          "params",     "repeats",       "threads"};

/* Prints the other schemes; ratio: our time to theirs. */
static void print_others(struct update *u)
{
    const double ours = bench_median(u->seconds, u->done);

    for (int i = 0; i < BENCH_SCHEME_COUNT; i++) {
        const struct other *o = &u->others[i];
        const double extra[] = {(double)o->bytes_read,
                                (double)o->bytes_written,
                                NAN,
                                bench_least(o->seconds, u->done),
                                (double)u->model.workload.params,
                                u->done,
                                u->setup.threads};

        if (o->scheme == NULL)
            continue;
        bench_print(&u->printer, &(struct bench_row){.name = "like",
                                                     .variant = bench_scheme_names[i],
                                                     .bytes = o->bytes_read + o->bytes_written,
                                                     .seconds = bench_median(o->seconds, u->done),
                                                     .roof_gb_per_s = NAN,
                                                     .ratio = ours / bench_median(o->seconds, u->done),
                                                     .extra_names = extra_names,
                                                     .extra = extra,
                                                     .extra_count = sizeof(extra) / sizeof(extra[0])});
    }
}

static void print_rows(struct update *u)
{
    const struct st_traffic *const moved = &u->moved;
    const uint64_t params = u->model.workload.params;
    const uint64_t bytes = u->nvme ? moved->read + moved->write : state_bytes(u);
    double bound = 0, seconds = bench_median(u->seconds, u->done), roof[ROOFS];
    int binds = MEMORY;

    for (int i = 0; i < ROOFS; i++) {
        roof[i] = roof_seconds(u, i);
        if (roof[i] > bound) {
            bound = roof[i];
            binds = i;
        }
    }
    const double extra[] = {
        (double)moved->read, (double)moved->write, bound, bench_least(u->seconds, u->done), (double)params, u->done,
        u->setup.threads};
    struct bench_row row = {.name = "update",
                            .variant = u->nvme ? "nvme" : "memory",
                            .bytes = bytes,
                            .seconds = seconds,
                            .roof_gb_per_s = (double)bytes / bound * 1e-9,
                            .ratio = bound / seconds,
                            .extra_names = extra_names,
                            .extra = extra,
                            .extra_count = sizeof(extra_names) / sizeof(extra_names[0]),
                            .bound_by = roof_names[binds]};

    bench_print(&u->printer, &row);
    print_others(u);
    /* One row per roof: the same bytes in the roof's own time. */
    row.name = "roof";
    row.roof_gb_per_s = row.ratio = NAN;
    row.extra_count = 0;
    row.bound_by = NULL;
    for (int i = 0; i < ROOFS; i++) {
        if (roof[i] == 0)
            continue;
        row.variant = roof_names[i];
        row.seconds = roof[i];
        row.bytes = i == READ ? moved->read : i == WRITE ? moved->write : bytes;
        bench_print(&u->printer, &row);
    }
}

/* --- repeats --- */

static strata_status update_others(struct update *u, uint32_t r)
{
    strata_status st = STRATA_OK;

    for (int i = 0; i < BENCH_SCHEME_COUNT && st == STRATA_OK; i++) {
        struct other *o = &u->others[i];

        if (o->scheme != NULL)
            st = bench_scheme_update(o->scheme, &o->seconds[r], &o->bytes_read, &o->bytes_written);
    }
    return st;
}

static strata_status repeat(struct update *u, uint32_t r)
{
    strata_status st = bench_null_model_step(&u->model);

    if (st == STRATA_OK)
        st = probe(u, r);
    if (st == STRATA_OK)
        st = bench_null_model_update(&u->model, &u->seconds[r], &u->moved);
    return st == STRATA_OK ? update_others(u, r) : st;
}

/* The first update has moments of 0 and a cold disk, so it is not measured. */
static strata_status warm_up(struct update *u)
{
    strata_status st = STRATA_OK;
    double unused;

    bench_progress(&u->setup, "warm-up", 0);
    for (uint32_t i = 0; i < WARM_UPS && st == STRATA_OK; i++) {
        st = bench_null_model_step(&u->model);
        if (st == STRATA_OK)
            st = bench_null_model_update(&u->model, &unused, &u->moved);
    }
    return st;
}

static strata_status run_repeats(struct update *u)
{
    const double most = u->setup.opts->seconds_max > 0 ? u->setup.opts->seconds_max : SECONDS_MAX;
    const uint64_t begin_ns = st_clock_ns();
    strata_status st = warm_up(u);

    while (st == STRATA_OK && u->done < u->setup.repeats) {
        if (u->done > 0 && (double)(st_clock_ns() - begin_ns) * 1e-9 > most)
            break;
        bench_progress(&u->setup, "update", u->done + 1);
        st = repeat(u, u->done);
        u->done += st == STRATA_OK;
    }
    if (st == STRATA_OK)
        st = probe(u, u->done);
    bench_progress(&u->setup, NULL, 0);
    return st;
}

/* --- begin and end --- */

static strata_status open_other(struct update *u, const char *name)
{
    for (int i = 0; i < BENCH_SCHEME_COUNT; i++) {
        const struct bench_scheme_opts opts = {
            .kind = (enum bench_scheme_kind)i, .params = u->model.workload.params, .kernels = u->kernel.kernels};

        if (strcmp(name, bench_scheme_names[i]) != 0)
            continue;
        bench_progress(&u->setup, name, 0);
        return u->others[i].scheme != NULL ? STRATA_OK : bench_scheme_open(&u->others[i].scheme, &u->setup, &opts);
    }
    return st_error(STRATA_E_INVAL, "--like \"%s\" is unknown: zero-infinity or mlp-offload", name);
}

static strata_status open_others(struct update *u)
{
    const struct bench_opts *opts = u->setup.opts;
    strata_status st = STRATA_OK;

    if (opts->like_count > 0 && !u->nvme)
        return st_error(STRATA_E_INVAL, "--like compares what moves through storage: name a directory with --nvme");
    for (uint32_t i = 0; i < opts->like_count && st == STRATA_OK; i++)
        st = open_other(u, opts->likes[i]);
    return st;
}

static strata_status open_all(struct update *u, const struct bench_opts *opts)
{
    const uint64_t params = opts->params != 0 ? opts->params : PARAMS_DEFAULT;
    const uint64_t probe_params = params < PROBE_PARAMS ? params : PROBE_PARAMS;
    strata_status st = bench_setup_open(&u->setup, opts, REPEATS_DEFAULT);

    u->kernel = (struct bench_pass){.name = "kernel", .kernels = st_kernels_pick(opts->isa)};
    if (st == STRATA_OK && u->kernel.kernels == NULL)
        st = st_error(STRATA_E_INVAL, "--isa \"%s\" is unknown or cannot run on this processor: strata info lists what can",
                      opts->isa);
    if (st == STRATA_OK)
        st = bench_planes_create(&u->planes, &u->setup, probe_params);
    if (st == STRATA_OK) {
        bench_progress(&u->setup, "loading the state", 0);
        bench_planes_fill(&u->planes, BENCH_SPLIT, probe_params);
        bench_planes_choose_fetch(&u->planes, &u->kernel);
        st = bench_null_model_open(&u->model, &u->setup, params, u->kernel.fetch);
    }
    return st == STRATA_OK ? open_others(u) : st;
}

strata_status bench_update(const struct bench_opts *opts, FILE *out)
{
    struct update *u = calloc(1, sizeof(*u));
    strata_status st;

    if (u == NULL)
        return st_nomem(sizeof(*u));
    u->printer = (struct bench_printer){.file = out, .json = opts->json};
    u->nvme = opts->dir_count > 0;
    u->stream = (struct bench_pass){.name = "stream"};
    u->stream_prefetch = (struct bench_pass){.name = "stream_prefetch", .prefetch = true};
    st = open_all(u, opts);
    if (st == STRATA_OK)
        st = run_repeats(u);
    if (st == STRATA_OK)
        print_rows(u);
    for (int i = 0; i < BENCH_SCHEME_COUNT; i++)
        bench_scheme_close(u->others[i].scheme);
    bench_planes_destroy(&u->planes);
    bench_null_model_close(&u->model);
    bench_setup_close(&u->setup);
    free(u);
    return st;
}

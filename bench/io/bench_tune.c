/* bench/io/bench_tune.c - `strata tune`: runs the search of nvme/measure/tune.h on real drives, with the update's pattern. */
#include "bench/bench_setup.h"
#include "bench/io/io_load.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/print.h"
#include "core/base/size.h"
#include "nvme/measure/tune.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SECONDS_DEFAULT 0.5
#define BYTES_DEFAULT   (UINT64_C(512) << 20) /* of all directories together */
#define IN_FLIGHT_MAX   (UINT64_C(128) << 20) /* of each directory */
#define TOLERANCE       0.03
#define ROUNDS          3u
#define VARIES          1.5 /* largest by smallest of one point's last samples; from this ratio on the drive counts as unsteady */
#define METHODS_MAX     4u
#define FIRST_BLOCK     3u /* 1 MiB */

static const uint32_t blocks[] = {128u << 10, 256u << 10, 512u << 10, 1u << 20, 2u << 20, 4u << 20, 8u << 20};
static const uint32_t depths[] = {1, 2, 4, 8, 16, 32, 64, 128};
#define COUNT(list) ((uint32_t)(sizeof(list) / sizeof((list)[0])))

static const char *const stage_names[] = {
    [ST_TUNE_DEPTH] = "depth", [ST_TUNE_BLOCK] = "block", [ST_TUNE_NEAR] = "neighbour", [ST_TUNE_METHOD] = "method"};

struct tune {
    const struct bench_tune_opts *opts;
    struct bench_opts common; /* only the hooks, for setup */
    struct bench_setup setup;
    const struct st_io_ops *methods[METHODS_MAX];
    uint32_t method_count;
    bool first_is_auto;
    uint64_t file_bytes, in_flight_max; /* of each directory */
    struct io_files files;
    struct st_arena buffers;
    struct st_tune_result result;
};

static strata_status measure(void *ctx, uint32_t method, uint32_t block_bytes, uint32_t queue_depth, double *rate)
{
    struct tune *t = ctx;
    const struct io_case c = {
        .pattern = IO_OPTIMIZER, .method = t->methods[method], .block_bytes = block_bytes, .queue_depth = queue_depth};
    struct io_sample sample = {0};
    char text[96], size[24];
    strata_status st;

    snprintf(text, sizeof(text), "%s x %u by %s", st_size_text(size, block_bytes), queue_depth, c.method->name);
    bench_progress(&t->setup, text, 0);
    st = io_run(&sample, NULL, &t->files, &c, &t->buffers, t->opts->seconds > 0 ? t->opts->seconds : SECONDS_DEFAULT);
    if (st == STRATA_OK)
        *rate = (double)(sample.bytes_read + sample.bytes_written) / sample.seconds;
    if (st != STRATA_E_NOSYS)
        return st;
    bench_progress(&t->setup, NULL, 0);
    st_log(ST_LOG_WARN, "%s is left out: %s", text, strata_last_error());
    return st;
}

/* --- begin --- */

static bool opens(const struct st_io_ops *ops)
{
    struct st_io *io = NULL;

    if (strcmp(ops->name, "fake") == 0 || ops->open(&io, &(struct st_io_opts){.queue_depth = 1}) != STRATA_OK)
        return false;
    ops->close(io);
    return true;
}

static strata_status choose_methods(struct tune *t)
{
    const struct st_io_ops *const automatic = st_io_find("auto", NULL);
    const char *const wanted = t->opts->method;

    if (wanted != NULL && strcmp(wanted, "auto") != 0) {
        t->methods[0] = strcmp(wanted, "fake") == 0 ? NULL : st_io_find(wanted, NULL);
        if (t->methods[0] == NULL)
            return st_error(STRATA_E_INVAL, "--io-method \"%s\" is unknown: auto, uring, aio, threads", wanted);
        t->method_count = 1;
        t->first_is_auto = t->methods[0] == automatic;
        return STRATA_OK;
    }
    t->methods[t->method_count++] = automatic;
    t->first_is_auto = true;
    for (uint32_t i = 0; st_io_methods[i] != NULL && t->method_count < METHODS_MAX; i++)
        if (st_io_methods[i] != automatic && opens(st_io_methods[i]))
            t->methods[t->method_count++] = st_io_methods[i];
    return STRATA_OK;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Limits the bytes in flight to what a small file can hold. */
static strata_status prepare(struct tune *t)
{
    const struct bench_tune_opts *o = t->opts;
    strata_status st;

    if (o->dir_count == 0 || o->dir_count > IO_DIRS_MAX)
        return st_error(STRATA_E_INVAL, "tune takes 1 to %u directories", IO_DIRS_MAX);
    t->file_bytes = (o->bytes > 0 ? o->bytes : BYTES_DEFAULT / o->dir_count) / IO_ALIGN * IO_ALIGN;
    t->in_flight_max = least(IN_FLIGHT_MAX, t->file_bytes / 2);
    if (t->in_flight_max < blocks[FIRST_BLOCK])
        return st_error(STRATA_E_INVAL, "--size: at least 2 MiB are needed in each directory");
    st = choose_methods(t);
    if (st == STRATA_OK)
        st = st_topology_load(&t->setup.topology, NULL);
    if (st == STRATA_OK)
        st = bench_check_memory(&t->setup, t->in_flight_max * o->dir_count, "name fewer directories");
    if (st == STRATA_OK)
        st = st_arena_create(&t->buffers, "tune", t->in_flight_max * o->dir_count, NULL);
    if (st != STRATA_OK)
        return st;
    io_fill(t->buffers.base, t->buffers.bytes);
    bench_progress(&t->setup, "writing the files", 0);
    return io_files_open(&t->files, o->dirs, o->dir_count, t->file_bytes);
}

/* --- the report --- */

static void report_points(const struct tune *t, FILE *file)
{
    const struct st_tune_result *r = &t->result;
    char block[24], flight[24];

    st_print(file, "%-10s %-9s %10s %6s %10s %8s %8s %8s\n", "why", "method", "block", "depth", "in flight", "GB/s", "at last",
             "of best");
    for (uint32_t i = 0; i < r->point_count; i++) {
        const struct st_tune_point *p = &r->points[i];

        st_print(file, "%-10s %-9s %10s %6u %10s %8.3f", stage_names[p->stage], t->methods[p->method]->name,
                 st_size_text(block, p->block_bytes), p->queue_depth,
                 st_size_text(flight, (uint64_t)p->block_bytes * p->queue_depth), p->rate * 1e-9);
        if (p->sample_count > 0)
            st_print(file, " %8.3f %8.3f%s", p->final_rate * 1e-9, p->final_rate / r->points[r->fastest].final_rate,
                     i == r->knee ? "  <-" : "");
        st_print(file, "\n");
    }
}

static double spread_of(const struct st_tune_point *p)
{
    double least = p->samples[0], most = p->samples[0];

    for (uint32_t i = 1; i < p->sample_count; i++) {
        least = p->samples[i] < least ? p->samples[i] : least;
        most = p->samples[i] > most ? p->samples[i] : most;
    }
    return most / least;
}

static void report(const struct tune *t, FILE *file)
{
    const struct st_tune_result *r = &t->result;
    const struct st_tune_point *knee = &r->points[r->knee], *best = &r->points[r->fastest];
    char block[24], fast[24];

    report_points(t, file);
    st_print(file,
             "taken: %s x %u by %s, the fewest bytes in flight within %.0f %% of the best (%s x %u by %s, %.3f GB/s).\n"
             "The pattern is the optimizer's, reads and writes in turn; \"at last\" is the median of %u more samples of what "
             "might win.\n",
             st_size_text(block, knee->block_bytes), knee->queue_depth, t->methods[knee->method]->name, TOLERANCE * 100,
             st_size_text(fast, best->block_bytes), best->queue_depth, t->methods[best->method]->name, best->final_rate * 1e-9,
             ROUNDS);
    if (spread_of(knee) > VARIES)
        st_print(file,
                 "The drive is unsteady: samples of this very point differ by a factor of %.1f.  Try again when it is idle.\n",
                 spread_of(knee));
}

strata_status bench_tune(struct bench_tuned *out, const struct bench_tune_opts *opts, FILE *report_file)
{
    struct tune *t = calloc(1, sizeof(*t));
    strata_status st;

    if (t == NULL)
        return st_nomem(sizeof(*t));
    t->opts = opts;
    t->common.hooks = opts->hooks;
    t->setup.opts = &t->common;
    st = prepare(t);
    if (st == STRATA_OK)
        st = st_tune_search(&t->result, &(struct st_tune_opts){.blocks = blocks,
                                                               .block_count = COUNT(blocks),
                                                               .depths = depths,
                                                               .depth_count = COUNT(depths),
                                                               .method_count = t->method_count,
                                                               .first_block = FIRST_BLOCK,
                                                               .bytes_in_flight = t->in_flight_max,
                                                               .tolerance = TOLERANCE,
                                                               .rounds = ROUNDS,
                                                               .measure = measure,
                                                               .ctx = t});
    bench_progress(&t->setup, NULL, 0);
    if (st == STRATA_OK) {
        const struct st_tune_point *knee = &t->result.points[t->result.knee];

        report(t, report_file);
        *out = (struct bench_tuned){.block_bytes = knee->block_bytes,
                                    .queue_depth = knee->queue_depth,
                                    .method = t->methods[knee->method]->name,
                                    .method_is_auto = knee->method == 0 && t->first_is_auto};
    }
    io_files_close(&t->files);
    st_arena_destroy(&t->buffers);
    bench_setup_close(&t->setup);
    free(t);
    return st;
}

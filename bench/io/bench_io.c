/* bench/io/bench_io.c - how fast are a directory's drives, by which method, and how much processor time does it take?
 *
 * The calling thread issues the requests directly through the table of nvme/method/io.h; with --fio the same job runs under fio
 * over the same blocks.  All rows of a pattern, size and depth run one after the other, in reverse order every other round, so
 * that a drive that slows down slows all of them.  The roof of a row is the fastest row of its pattern in this run. */
#include "bench/bench_setup.h"
#include "bench/io/io_case.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/size.h"

#include <errno.h>
#include <string.h>

#define SECONDS_DEFAULT 1.0

struct bench {
    const struct bench_io_opts *opts;
    struct bench_opts common; /* only the hooks, for setup */
    struct bench_setup setup;
    struct io_rows rows;
    struct io_files files;
    struct st_arena buffers;
    struct st_latency latency;
};

static double seconds_of(const struct bench *b)
{
    return b->opts->seconds > 0 ? b->opts->seconds : SECONDS_DEFAULT;
}

/* --- one row, one repeat --- */

static strata_status run_ours(struct bench *b, struct io_row *row, struct io_measure *out)
{
    struct io_sample sample = {0};
    strata_status st;

    memset(&b->latency, 0, sizeof(b->latency));
    st = io_run(&sample, &b->latency, &b->files, &row->c, &b->buffers, seconds_of(b));
    if (st != STRATA_OK)
        return st;
    row->registered = sample.registered;
    *out = (struct io_measure){.bytes = (double)(sample.bytes_read + sample.bytes_written),
                               .ops = (double)sample.ops,
                               .seconds = sample.seconds,
                               .user_seconds = sample.user_seconds,
                               .sys_seconds = sample.sys_seconds,
                               .p50_ns = st_latency_percentile(&b->latency, 0.5),
                               .p99_ns = st_latency_percentile(&b->latency, 0.99),
                               .mean_ns = st_latency_mean(&b->latency),
                               .max_ns = (double)b->latency.max_ns};
    return STRATA_OK;
}

/* If this machine refuses a method or an engine, only its rows are dropped. */
static strata_status run_row(struct bench *b, uint32_t index, uint32_t repeat)
{
    struct io_row *row = &b->rows.row[index];
    char text[160], size[24];
    strata_status st;

    if (row->dropped)
        return STRATA_OK;
    snprintf(text, sizeof(text), "row %u of %u: %s by %s, %s x %u", index + 1, b->rows.count, io_pattern_names[row->c.pattern],
             io_row_variant(row), st_size_text(size, row->c.block_bytes), row->c.queue_depth);
    bench_progress(&b->setup, text, repeat + 1);
    if (row->is_fio)
        st = io_fio_run(&row->repeats[repeat], &b->files, &row->c, row->engine, seconds_of(b), &b->opts->hooks);
    else
        st = run_ours(b, row, &row->repeats[repeat]);
    if (st != STRATA_E_NOSYS)
        return st;
    row->dropped = true;
    bench_progress(&b->setup, NULL, 0);
    st_log(ST_LOG_WARN, "%s is left out: %s", io_row_variant(row), strata_last_error());
    return STRATA_OK;
}

static strata_status run_rows(struct bench *b)
{
    strata_status st = STRATA_OK;
    uint32_t left = 0;

    for (uint32_t r = 0; r < b->rows.repeats; r++)
        for (uint32_t i = 0; i < b->rows.count && st == STRATA_OK; i++)
            st = run_row(b, r % 2 == 0 ? i : b->rows.count - 1 - i, r);
    for (uint32_t i = 0; i < b->rows.count; i++)
        left += !b->rows.row[i].dropped;
    if (st == STRATA_OK && left == 0)
        return st_error(STRATA_E_NOSYS, "none of these methods works here: strata info says why");
    return st;
}

/* --- begin and end --- */

static uint64_t buffer_bytes(const struct bench *b)
{
    uint64_t most = 0;

    for (uint32_t i = 0; i < b->rows.count; i++) {
        const struct io_case *c = &b->rows.row[i].c;
        const uint64_t bytes = (uint64_t)c->block_bytes * c->queue_depth * b->rows.dirs;

        most = bytes > most ? bytes : most;
    }
    return most;
}

static strata_status prepare(struct bench *b)
{
    const struct bench_io_opts *o = b->opts;
    strata_status st = o->fio ? io_fio_find(&o->hooks) : STRATA_OK;

    if (st == STRATA_OK)
        st = st_topology_load(&b->setup.topology, NULL);
    if (st == STRATA_OK)
        st = bench_check_memory(&b->setup, buffer_bytes(b), "lower --block or --depth");
    if (st == STRATA_OK)
        st = st_arena_create(&b->buffers, "bench io", buffer_bytes(b), NULL);
    if (st != STRATA_OK)
        return st;
    io_fill(b->buffers.base, b->buffers.bytes);
    bench_progress(&b->setup, "writing the files", 0);
    st = io_files_open(&b->files, o->dirs, o->dir_count, b->rows.bytes);
    b->rows.direct = b->files.direct;
    return st;
}

static strata_status open_bench(struct bench *b, const struct bench_io_opts *opts)
{
    *b = (struct bench){.opts = opts, .common = {.hooks = opts->hooks}};
    b->setup = (struct bench_setup){.opts = &b->common};
    return io_rows_create(&b->rows, opts);
}

strata_status bench_io(const struct bench_io_opts *opts, FILE *out)
{
    static struct bench b; /* its histogram is too large for a stack */
    strata_status st = open_bench(&b, opts);

    b.setup.repeats = b.rows.repeats;
    if (st == STRATA_OK)
        st = prepare(&b);
    if (st == STRATA_OK)
        st = run_rows(&b);
    bench_progress(&b.setup, NULL, 0);
    if (st == STRATA_OK) {
        io_rows_conclude(&b.rows);
        io_rows_print(&b.rows, opts->json, out);
    }
    io_files_close(&b.files);
    st_arena_destroy(&b.buffers);
    bench_setup_close(&b.setup);
    io_rows_destroy(&b.rows);
    return st;
}

/* --- a job file for people --- */

/* The list of files in fio's syntax: colons inside names are escaped. */
static strata_status job_names(char *text, size_t size, const struct bench_io_opts *opts)
{
    FILE *list = fmemopen(text, size, "w");
    bool whole;

    if (list == NULL)
        return st_error_errno(errno, "names for fio");
    for (uint32_t i = 0; i < opts->dir_count; i++) {
        fputs(i == 0 ? "" : ":", list);
        for (const char *at = opts->dirs[i]; *at != '\0'; at++)
            fprintf(list, "%s%c", *at == ':' ? "\\" : "", *at);
        fputs("/strata-bench-io", list);
    }
    whole = ftell(list) < (long)size - 1;
    fclose(list);
    return whole ? STRATA_OK : st_error(STRATA_E_INVAL, "the directories' names are longer than %zu bytes together", size);
}

strata_status bench_io_fio_job(const struct bench_io_opts *opts, FILE *out)
{
    struct bench_io_opts with_fio = *opts;
    struct io_rows rows = {0};
    char names[4096] = "", title[96];
    strata_status st;

    with_fio.fio = true;
    st = io_rows_create(&rows, &with_fio);
    if (st == STRATA_OK)
        st = job_names(names, sizeof(names), opts);
    if (st == STRATA_OK)
        fprintf(out, "; run it with: fio FILE; it leaves strata-bench-io in each directory\n");
    for (uint32_t i = 0; i < rows.count && st == STRATA_OK; i++) {
        const struct io_row *row = &rows.row[i];

        if (!row->is_fio)
            continue;
        snprintf(title, sizeof(title), "%s-%s-%u-%u", io_pattern_names[row->c.pattern], io_fio_engine_names[row->engine],
                 row->c.block_bytes, row->c.queue_depth);
        io_fio_write_job(out, title, names, rows.dirs, rows.bytes, true, &row->c, row->engine,
                         opts->seconds > 0 ? opts->seconds : SECONDS_DEFAULT);
    }
    io_rows_destroy(&rows);
    return st;
}

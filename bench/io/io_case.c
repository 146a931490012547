/* bench/io/io_case.c - turns options into rows; computes medians and picks the rows to compare. */
#include "bench/io/io_case.h"
#include "bench/bench_setup.h"
#include "core/base/error.h"
#include "nvme/method/io_method.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define METHODS_MAX     4u
#define REPEATS_DEFAULT 3u
#define BYTES_DEFAULT   (UINT64_C(1) << 30)
#define NAME_MAX_BYTES  32u

static const uint64_t block_default[] = {1u << 20}, depth_default[] = {32};

/* The lists that the options name, resolved. */
struct lists {
    enum io_pattern patterns[IO_PATTERNS];
    uint32_t pattern_count;
    const struct st_io_ops *methods[METHODS_MAX];
    uint32_t method_count;
    const uint64_t *blocks, *depths;
    uint32_t block_count, depth_count;
};

/* --- names --- */

static strata_status add_pattern(struct lists *l, const char *name, size_t length)
{
    for (uint32_t i = 0; i < IO_PATTERNS; i++) {
        if (strlen(io_pattern_names[i]) != length || strncmp(io_pattern_names[i], name, length) != 0)
            continue;
        for (uint32_t k = 0; k < l->pattern_count; k++)
            if (l->patterns[k] == (enum io_pattern)i)
                return STRATA_OK;
        l->patterns[l->pattern_count++] = (enum io_pattern)i;
        return STRATA_OK;
    }
    return st_error(STRATA_E_INVAL, "--pattern \"%.*s\" is unknown: read, write, rw, randread, randwrite, randrw, optimizer",
                    (int)length, name);
}

static strata_status add_method(struct lists *l, const char *text, size_t length)
{
    char name[NAME_MAX_BYTES];
    const struct st_io_ops *ops;

    snprintf(name, sizeof(name), "%.*s", (int)length, text);
    ops = strcmp(name, "fake") == 0 ? NULL : st_io_find(name, NULL);
    if (ops == NULL)
        return st_error(STRATA_E_INVAL, "--io-method \"%s\" is unknown: auto, uring, aio, threads", name);
    for (uint32_t k = 0; k < l->method_count; k++)
        if (l->methods[k] == ops)
            return STRATA_OK;
    if (l->method_count < METHODS_MAX)
        l->methods[l->method_count++] = ops;
    return STRATA_OK;
}

static strata_status each_word(struct lists *l, const char *const *items, uint32_t count,
                               strata_status (*add)(struct lists *, const char *, size_t))
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < count; i++)
        for (const char *at = items[i]; st == STRATA_OK;) {
            const size_t length = strcspn(at, ",");

            st = add(l, at, length);
            if (at[length] == '\0')
                break;
            at += length + 1;
        }
    return st;
}

/* --- sizes --- */

static strata_status check_sizes(const struct lists *l)
{
    for (uint32_t i = 0; i < l->block_count; i++)
        if (l->blocks[i] % IO_ALIGN != 0 || l->blocks[i] > BENCH_IO_BLOCK_MAX)
            return st_error(STRATA_E_INVAL, "--block: %" PRIu64 " bytes are no multiple of 4096 up to 64 MiB", l->blocks[i]);
    for (uint32_t i = 0; i < l->depth_count; i++)
        if (l->depths[i] < 1 || l->depths[i] > BENCH_IO_DEPTH_MAX)
            return st_error(STRATA_E_INVAL, "--depth: %" PRIu64 " is outside 1..%u", l->depths[i], BENCH_IO_DEPTH_MAX);
    return STRATA_OK;
}

static strata_status resolve(struct lists *l, const struct bench_io_opts *opts)
{
    static const char *const automatic[] = {"auto"};
    strata_status st;

    *l = (struct lists){.blocks = opts->block_count > 0 ? opts->blocks : block_default,
                        .block_count = opts->block_count > 0 ? opts->block_count : 1,
                        .depths = opts->depth_count > 0 ? opts->depths : depth_default,
                        .depth_count = opts->depth_count > 0 ? opts->depth_count : 1};
    if (opts->pattern_count > 0)
        st = each_word(l, opts->patterns, opts->pattern_count, add_pattern);
    else
        st = each_word(l, io_pattern_names, IO_PATTERNS, add_pattern);
    if (st == STRATA_OK)
        st = each_word(l, opts->method_count > 0 ? opts->methods : automatic, opts->method_count > 0 ? opts->method_count : 1,
                       add_method);
    return st == STRATA_OK ? check_sizes(l) : st;
}

/* One queue holds the requests of all directories. */
static strata_status check_queue(uint64_t depth, uint32_t dirs)
{
    const uint64_t most = ST_IO_DEPTH_MAX / dirs;

    return depth <= most ? STRATA_OK
                         : st_error(STRATA_E_INVAL,
                                    "--depth: %" PRIu64 " on each of %u directories is %" PRIu64
                                    " requests, of at most %u: give %" PRIu64 " or fewer",
                                    depth, dirs, depth * dirs, ST_IO_DEPTH_MAX, most);
}

static uint64_t largest(const uint64_t *values, uint32_t count)
{
    uint64_t most = 0;

    for (uint32_t i = 0; i < count; i++)
        most = values[i] > most ? values[i] : most;
    return most;
}

/* --- rows --- */

static void add_rows(struct io_rows *rows, const struct lists *l, const struct io_case *like, bool fio)
{
    struct io_case c = *like;

    for (uint32_t m = 0; m < l->method_count; m++) {
        c.method = l->methods[m];
        rows->row[rows->count++] = (struct io_row){.c = c};
    }
    for (uint32_t e = 0; fio && io_fio_knows(c.pattern) && e < IO_FIO_ENGINES; e++)
        rows->row[rows->count++] = (struct io_row){.c = c, .is_fio = true, .engine = (enum io_fio_engine)e};
}

static void fill_rows(struct io_rows *rows, const struct lists *l, const struct bench_io_opts *opts)
{
    for (uint32_t p = 0; p < l->pattern_count; p++)
        for (uint32_t b = 0; b < l->block_count; b++)
            for (uint32_t d = 0; d < l->depth_count; d++)
                add_rows(rows, l,
                         &(struct io_case){.pattern = l->patterns[p],
                                           .block_bytes = (uint32_t)l->blocks[b],
                                           .queue_depth = (uint32_t)l->depths[d],
                                           .unregistered = opts->unregistered,
                                           .poll_device = opts->poll_device,
                                           .poll_kernel = opts->poll_kernel},
                         opts->fio);
}

strata_status io_rows_create(struct io_rows *rows, const struct bench_io_opts *opts)
{
    struct lists l;
    uint32_t most;
    strata_status st = resolve(&l, opts);
    uint64_t block;

    *rows = (struct io_rows){.dirs = opts->dir_count, .repeats = opts->repeats > 0 ? opts->repeats : REPEATS_DEFAULT};
    if (st != STRATA_OK)
        return st;
    if (opts->dir_count == 0 || opts->dir_count > IO_DIRS_MAX)
        return st_error(STRATA_E_INVAL, "bench io takes 1 to %u directories", IO_DIRS_MAX);
    if ((st = check_queue(largest(l.depths, l.depth_count), opts->dir_count)) != STRATA_OK)
        return st;
    block = largest(l.blocks, l.block_count);
    rows->bytes = (opts->bytes > 0 ? opts->bytes : BYTES_DEFAULT) / IO_ALIGN * IO_ALIGN;
    if (rows->bytes < 2 * block)
        return st_error(STRATA_E_INVAL, "--size must hold at least two requests of the largest --block");
    most = l.pattern_count * l.block_count * l.depth_count * (l.method_count + (opts->fio ? (uint32_t)IO_FIO_ENGINES : 0));
    if (most > IO_ROWS_MAX)
        return st_error(STRATA_E_INVAL, "%u rows are more than %u: name fewer patterns, blocks or depths", most, IO_ROWS_MAX);
    rows->row = calloc(most, sizeof(*rows->row));
    rows->measures = calloc((size_t)most * rows->repeats, sizeof(*rows->measures));
    if (rows->row == NULL || rows->measures == NULL)
        return st_nomem(0);
    fill_rows(rows, &l, opts);
    for (uint32_t i = 0; i < rows->count; i++)
        rows->row[i].repeats = rows->measures + (size_t)i * rows->repeats;
    return STRATA_OK;
}

void io_rows_destroy(struct io_rows *rows)
{
    free(rows->row);
    free(rows->measures);
    *rows = (struct io_rows){0};
}

const char *io_row_variant(const struct io_row *row)
{
    static const char *const names[IO_FIO_ENGINES] = {[IO_FIO_URING] = "fio_io_uring", [IO_FIO_LIBAIO] = "fio_libaio"};

    return row->is_fio ? names[row->engine] : row->c.method->name;
}

/* --- figures --- */

double io_rate(const struct io_measure *m)
{
    return m->bytes / m->seconds;
}

double io_cpu_per_gb(const struct io_measure *m)
{
    return (m->user_seconds + m->sys_seconds) / (m->bytes * 1e-9);
}

static double median_of(const struct io_row *row, uint32_t repeats, size_t offset)
{
    double values[BENCH_REPEATS_MAX] = {0};

    for (uint32_t i = 0; i < repeats; i++)
        values[i] = *(const double *)(const void *)((const char *)&row->repeats[i] + offset);
    return bench_median(values, repeats);
}

/* Rate and processor time per byte are separate medians; bytes, operations and seconds are set to agree with them. */
static void conclude_row(struct io_row *row, uint32_t repeats)
{
    double rates[BENCH_REPEATS_MAX] = {0}, cpu[BENCH_REPEATS_MAX] = {0};
    struct io_measure *m = &row->median;
    double scale;

    for (uint32_t i = 0; i < repeats; i++) {
        rates[i] = io_rate(&row->repeats[i]);
        cpu[i] = io_cpu_per_gb(&row->repeats[i]);
        m->max_ns = row->repeats[i].max_ns > m->max_ns ? row->repeats[i].max_ns : m->max_ns;
    }
    m->seconds = median_of(row, repeats, offsetof(struct io_measure, seconds));
    m->bytes = bench_median(rates, repeats) * m->seconds;
    m->ops = m->bytes / row->c.block_bytes;
    m->user_seconds = median_of(row, repeats, offsetof(struct io_measure, user_seconds));
    m->sys_seconds = median_of(row, repeats, offsetof(struct io_measure, sys_seconds));
    scale = m->user_seconds + m->sys_seconds > 0 ? bench_median(cpu, repeats) / io_cpu_per_gb(m) : 1;
    m->user_seconds *= scale;
    m->sys_seconds *= scale;
    m->p50_ns = median_of(row, repeats, offsetof(struct io_measure, p50_ns));
    m->p99_ns = median_of(row, repeats, offsetof(struct io_measure, p99_ns));
    m->mean_ns = median_of(row, repeats, offsetof(struct io_measure, mean_ns));
}

void io_rows_conclude(struct io_rows *rows)
{
    for (uint32_t i = 0; i < rows->count; i++)
        if (!rows->row[i].dropped)
            conclude_row(&rows->row[i], rows->repeats);
}

const struct io_row *io_rows_best(const struct io_rows *rows, const struct io_row *like)
{
    const struct io_row *best = like;

    for (uint32_t i = 0; i < rows->count; i++) {
        const struct io_row *row = &rows->row[i];

        if (!row->dropped && row->c.pattern == like->c.pattern && io_rate(&row->median) > io_rate(&best->median))
            best = row;
    }
    return best;
}

const struct io_row *io_rows_fio(const struct io_rows *rows, const struct io_row *like, enum io_fio_engine engine)
{
    for (uint32_t i = 0; i < rows->count; i++) {
        const struct io_row *row = &rows->row[i];

        if (row->is_fio && !row->dropped && row->engine == engine && row->c.pattern == like->c.pattern &&
            row->c.block_bytes == like->c.block_bytes && row->c.queue_depth == like->c.queue_depth)
            return row;
    }
    return NULL;
}

const struct io_row *io_rows_fio_best(const struct io_rows *rows, const struct io_row *like)
{
    const struct io_row *best = NULL;

    for (uint32_t e = 0; e < IO_FIO_ENGINES; e++) {
        const struct io_row *row = io_rows_fio(rows, like, (enum io_fio_engine)e);

        if (row != NULL && (best == NULL || io_rate(&row->median) > io_rate(&best->median)))
            best = row;
    }
    return best;
}

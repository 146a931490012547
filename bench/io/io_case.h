/* bench/io/io_case.h - the rows of `strata bench io`: every pattern, size, depth and method that the options name. */
#ifndef BENCH_IO_IO_CASE_H
#define BENCH_IO_IO_CASE_H

#include "bench/io/io_fio.h"

#define IO_ROWS_MAX 512u

struct io_row {
    struct io_case c;
    bool is_fio;
    enum io_fio_engine engine;
    bool registered;            /* strata's own rows: whether buffers were registered in the last repeat */
    bool dropped;               /* it cannot run here, and a log line said why */
    struct io_measure *repeats; /* [repeats]; owned by the table */
    struct io_measure median;   /* median of each figure; max_ns: the largest */
};

struct io_rows {
    struct io_row *row; /* [count] */
    uint32_t count, repeats;
    uint32_t dirs;
    uint64_t bytes; /* of the file in each directory, rounded */
    bool direct;
    struct io_measure *measures; /* [count * repeats] */
};

/** Rows in the order of patterns, sizes, depths, methods, then fio's engines.  E_INVAL: an unknown name, a bad size. */
strata_status io_rows_create(struct io_rows *rows, const struct bench_io_opts *opts);
void io_rows_destroy(struct io_rows *rows); /* zeroed is fine */

/** Bytes per second, and processor seconds per 10^9 bytes, of a measure. */
double io_rate(const struct io_measure *m);
double io_cpu_per_gb(const struct io_measure *m);

/** Medians of all repeats. */
void io_rows_conclude(struct io_rows *rows);
/** The fastest row with the same pattern. */
const struct io_row *io_rows_best(const struct io_rows *rows, const struct io_row *like);
/** fio's row for the same pattern, size and depth: the fastest one, or that of one engine.  NULL: there is none. */
const struct io_row *io_rows_fio_best(const struct io_rows *rows, const struct io_row *like);
const struct io_row *io_rows_fio(const struct io_rows *rows, const struct io_row *like, enum io_fio_engine engine);

/** Name of the row's method, such as "uring" or "fio_libaio". */
const char *io_row_variant(const struct io_row *row);

/** The table, or a JSON object per row. */
void io_rows_print(const struct io_rows *rows, bool json, FILE *out);

#endif

/* bench/io/io_fio.h - the same load under fio: job files, a run, and what its JSON says. */
#ifndef BENCH_IO_IO_FIO_H
#define BENCH_IO_IO_FIO_H

#include "bench/io/io_load.h"

enum io_fio_engine { IO_FIO_URING = 0, IO_FIO_LIBAIO, IO_FIO_ENGINES };
extern const char *const io_fio_engine_names[IO_FIO_ENGINES];

/* One run, ours or fio's. */
struct io_measure {
    double bytes, ops, seconds, user_seconds, sys_seconds;
    double p50_ns, p99_ns, mean_ns, max_ns; /* of a request's latency */
};

/** False: fio has no such pattern. */
bool io_fio_knows(enum io_pattern pattern);

/** One section of a job file.
 *  @param name      of the section
 *  @param filenames fio's list, colons between; colons inside names escaped
 *  @param files     how many, of `bytes` each */
void io_fio_write_job(FILE *out, const char *name, const char *filenames, uint32_t files, uint64_t bytes, bool direct,
                      const struct io_case *c, enum io_fio_engine engine, double seconds);

/** E_INVAL, with the package to install, if fio cannot be started. */
strata_status io_fio_find(const struct bench_hooks *hooks);

/** Run fio over the same open files.  E_NOSYS: fio said that it cannot; E_IO: what it printed is not understood. */
strata_status io_fio_run(struct io_measure *out, const struct io_files *files, const struct io_case *c, enum io_fio_engine engine,
                         double seconds, const struct bench_hooks *hooks);

#endif

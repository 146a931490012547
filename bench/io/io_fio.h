/* bench/io/io_fio.h - the same load under fio: job files, running fio, and reading its JSON. */
#ifndef BENCH_IO_IO_FIO_H
#define BENCH_IO_IO_FIO_H

#include "bench/io/io_load.h"

enum io_fio_engine { IO_FIO_URING = 0, IO_FIO_LIBAIO, IO_FIO_ENGINES };
extern const char *const io_fio_engine_names[IO_FIO_ENGINES];

/* Figures of one run, ours or fio's. */
struct io_measure {
    double bytes, ops, seconds, user_seconds, sys_seconds;
    double p50_ns, p99_ns, mean_ns, max_ns; /* of a request's latency */
};

/** Whether fio has this pattern. */
bool io_fio_knows(enum io_pattern pattern);

/** One section of a job file.
 *  @param name      of the section
 *  @param filenames fio's list, separated by colons; colons inside names are escaped
 *  @param files     how many, of `bytes` each */
void io_fio_write_job(FILE *out, const char *name, const char *filenames, uint32_t files, uint64_t bytes, bool direct,
                      const struct io_case *c, enum io_fio_engine engine, double seconds);

/** E_INVAL, naming the package to install, if fio cannot be started. */
strata_status io_fio_find(const struct bench_hooks *hooks);

/** Run fio over the same open files.  E_NOSYS: fio reported that it cannot run the job; E_IO: its output is not understood. */
strata_status io_fio_run(struct io_measure *out, const struct io_files *files, const struct io_case *c, enum io_fio_engine engine,
                         double seconds, const struct bench_hooks *hooks);

#endif

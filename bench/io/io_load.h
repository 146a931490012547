/* bench/io/io_load.h - a load of reads and writes over files of one or more directories, driven by the calling thread.
 *
 * The files have no name, so nothing is left however the process ends.  One thread makes every call. */
#ifndef BENCH_IO_IO_LOAD_H
#define BENCH_IO_IO_LOAD_H

#include "bench/bench.h"
#include "core/system/arena.h"
#include "nvme/measure/latency.h"
#include "nvme/method/io.h"

#define IO_DIRS_MAX 8u
#define IO_ALIGN    4096u

/* fio's names, and a pattern for the update. */
enum io_pattern { IO_READ = 0, IO_WRITE, IO_RW, IO_RANDREAD, IO_RANDWRITE, IO_RANDRW, IO_OPTIMIZER, IO_PATTERNS };
extern const char *const io_pattern_names[IO_PATTERNS];

struct io_files {
    int fds[IO_DIRS_MAX];
    uint32_t count;
    uint64_t bytes; /* of each */
    bool direct;    /* true if all files are */
};

struct io_case {
    enum io_pattern pattern;
    const struct st_io_ops *method;
    uint32_t block_bytes, queue_depth; /* depth: of each directory */
    bool unregistered, poll_device, poll_kernel;
};

/* Bytes moved and time taken by one run. */
struct io_sample {
    uint64_t bytes_read, bytes_written, ops;
    double seconds;                   /* until the last request has ended */
    double user_seconds, sys_seconds; /* of the whole process */
    bool registered;                  /* buffers were registered with the kernel */
};

/** Create, reserve and write `bytes` (a multiple of IO_ALIGN) in each directory, with random contents; O_DIRECT if all of them
 *  allow it; otherwise none has it, and a log line says which does not.  E_INVAL (no directory), E_NOSPC, E_NOMEM, I/O errors,
 * E_CANCELLED. */
strata_status io_files_open(struct io_files *f, const char *const *dirs, uint32_t count, uint64_t bytes);
void io_files_close(struct io_files *f); /* zeroed is fine */

/** Fill memory with incompressible bytes. */
void io_fill(void *base, uint64_t bytes);

/**
 * Keep queue_depth requests per directory in flight for `seconds`; then wait for the rest.
 *
 * @param buffers  huge-page memory of at least queue_depth * directories * block_bytes
 * @param latency  samples are added; may be NULL
 *
 * E_NOSYS: this machine lacks the method, or memory for so many requests of it; E_NOMEM; I/O errors; E_CANCELLED.
 */
strata_status io_run(struct io_sample *out, struct st_latency *latency, const struct io_files *files, const struct io_case *c,
                     const struct st_arena *buffers, double seconds);

#endif

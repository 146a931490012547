/* nvme/mover/mover.h - the I/O thread: moves extents between files and memory.
 *
 * Any thread may call submit.  A transfer is cut into requests of block_bytes, at most queue_depth of them in flight per file;
 * every transfer completes exactly once, with its own status. */
#ifndef NVME_MOVER_MOVER_H
#define NVME_MOVER_MOVER_H

#include "nvme/method/io.h"
#include "nvme/mover/stripe.h"
#include "nvme/mover/users.h"
#include "strata/status.h"
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#define ST_MOVER_ALIGN    4096u           /* of offsets, sizes and buffers */
#define ST_MOVER_PATH_MAX (PATH_MAX + 16) /* of a file in a run directory */

/* Caller-owned; untouchable between submit and done. */
struct st_transfer {
    enum st_io_op op;
    uint64_t offset, bytes;                                /* multiples of ST_MOVER_ALIGN */
    void *buf;                                             /* aligned to ST_MOVER_ALIGN */
    void (*done)(struct st_transfer *t, strata_status st); /* on the I/O thread; keep it short; may submit */
    void *owner;                                           /* the caller's */
    /* internal */
    struct st_transfer *next;
    uint64_t bytes_issued, bytes_finished;
    uint64_t start_ns;                    /* when submitted */
    strata_status status;                 /* first failure */
    uint32_t in_flight;                   /* requests */
    uint64_t failed_offset, failed_bytes; /* of the request that failed, in its file */
    uint32_t failed_file;
    int64_t failed_result;
};

/* Bytes of requests that succeeded; busy: time with at least one such request in flight. */
struct st_mover_counters {
    uint64_t bytes_read, bytes_written, busy_read_ns, busy_write_ns;
};

struct st_mover;

struct st_mover_file {
    char path[ST_MOVER_PATH_MAX]; /* for error sentences */
    int fd;                       /* borrowed until stop; -1 with fake */
    uint64_t bytes;
    const struct st_users *users; /* borrowed until stop; NULL: alone */
};

struct st_mover_opts {
    const struct st_io_ops *ops;
    struct st_io_opts io;              /* queue_depth: per file; 0: adapts to the device */
    const struct st_mover_file *files; /* [stripe->dir_count], copied */
    const struct st_stripe *stripe;    /* copied */
    uint32_t block_bytes;
    void *region; /* borrowed until stop; may be NULL */
    uint64_t region_bytes;
};

/** Start the thread; it opens and owns the io method.  *registered: the region is registered with the kernel. */
strata_status st_mover_start(struct st_mover **out, const struct st_mover_opts *opts, bool *registered);
/** Finish everything submitted, then end the thread.  NULL is fine. */
void st_mover_stop(struct st_mover *mover);
void st_mover_submit(struct st_mover *mover, struct st_transfer *t);
void st_mover_counters(struct st_mover *mover, struct st_mover_counters *out);
/** One file's. */
void st_mover_file_counters(struct st_mover *mover, uint32_t file, struct st_mover_counters *out);
/** Requests that may be in flight now, and live swaps that share the directory. */
void st_mover_file_depth(struct st_mover *mover, uint32_t file, uint32_t *queue_depth, uint32_t *holders);

#endif

/* nvme/io.h - the I/O contract: asynchronous reads and writes of files by one of several methods.
 *
 * A method is a table of functions; every method passes the same suite (tests/nvme/test_io_contract.c).
 * One thread owns an st_io and makes every call on it except wake().  The hot path allocates nothing. */
#ifndef NVME_IO_H
#define NVME_IO_H

#include "strata/status.h"
#include <stdbool.h>
#include <stdint.h>

struct st_io; /* each method's own */

enum st_io_op { ST_IO_INVALID = 0, ST_IO_READ, ST_IO_WRITE };

/* One transfer.  Caller-owned and embedded in the caller's own struct.  Untouchable from submit() until done(). */
struct st_io_req {
    enum st_io_op op;
    uint32_t file;        /* index from add_file() */
    uint32_t bytes;       /* multiple of the file's alignment; at most 1 GiB */
    uint32_t bytes_done;  /* progress across short transfers; owned by the method */
    uint32_t retry_count; /* owned by the method */
    int64_t result;       /* last completion: bytes, or a negative errno; owned by the method, readable in done() */
    uint64_t offset;      /* bytes from start of file; aligned */
    void *buf;            /* aligned */
    void (*done)(struct st_io_req *req, strata_status st); /* exactly once per taken request, on the owner's thread,
                           st's sentence in strata_last_error(); may submit(), never reap() */
    struct st_io_req *next;                                /* owned by the method while in flight */
};

struct st_io_opts {
    uint32_t queue_depth;           /* requests in flight, 1..4096 */
    uint64_t fake_seed;             /* fake: reordering and latency */
    uint32_t fake_latency_us;       /* fake: upper bound of a request's random latency; 0: none, order still shuffled */
    uint64_t fake_bytes_per_second; /* fake: rate limit; 0: none */
};

struct st_io_ops {
    const char *name; /* "uring", "threads", "fake" */
    /* E_NOSYS: not on this machine, the caller may try the next method.  Any other error is final.
     * The thread that opens owns the io: with `uring` the kernel refuses submits of any other. */
    strata_status (*open)(struct st_io **out, const struct st_io_opts *opts);
    void (*close)(struct st_io *io); /* with nothing in flight */
    /* Make an open descriptor (borrowed; must outlive the io) usable; at most 16.  Fake: fd ignored, `bytes` of memory stand for
     * it. */
    strata_status (*add_file)(struct st_io *io, int fd, uint64_t bytes, uint32_t *index);
    /* Takes all of reqs[] or, on error, none.  E_BUSY: more than queue_depth would be in flight: reap, then again.
     * A request that ends past the end of the file: read E_TRUNC; write grows the file, or E_NOSPC (fake). */
    strata_status (*submit)(struct st_io *io, struct st_io_req **reqs, uint32_t count);
    /* Runs done() for what has finished; blocks until at least min_count have, fewer are in flight, or wake() was called.
     * Short transfers are continued here, EAGAIN and EINTR repeated a bounded number of times. */
    strata_status (*reap)(struct st_io *io, uint32_t min_count);
    /* Any thread: makes a blocked or else the next reap() return early. */
    void (*wake)(struct st_io *io);
    /* Optional (NULL: not supported). Pins [base, base+bytes) for zero-copy; regions over 1 GiB are split inside.
     * Once per io: a second region is E_BUSY.  Failure leaves the io usable without registration. */
    strata_status (*register_region)(struct st_io *io, void *base, uint64_t bytes);
};

/* Best first; "fake" is never automatic and is found by name. */
extern const struct st_io_ops *const st_io_methods[];

/** By name; "auto" and NULL: the first whose open() works.  NULL if unknown.  `why` (may be NULL, static text) says why better
 * ones were passed over. */
const struct st_io_ops *st_io_find(const char *name, const char **why);

#endif

/* nvme/method/io.h - the I/O contract: asynchronous reads and writes of files by one of several methods.
 *
 * A method is a table of functions; every method passes the same suite (tests/nvme/test_io_contract.c).
 * One thread owns an st_io and makes every call on it except wake().  The hot path allocates nothing. */
#ifndef NVME_METHOD_IO_H
#define NVME_METHOD_IO_H

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
    uint32_t bytes_least; /* a read whose file may end before all of it: so many are enough; 0: all */
    uint32_t bytes_done;  /* progress across short transfers, in done() all that was moved; owned by the method */
    uint32_t retry_count; /* owned by the method */
    uint32_t place;       /* owned by the method */
    bool cancelled;       /* cancel() was called; owned by the method */
    int64_t result;       /* last completion: bytes, or a negative errno; owned by the method, readable in done() */
    uint64_t offset;      /* bytes from start of file; aligned */
    void *buf;            /* aligned */
    void (*done)(struct st_io_req *req, strata_status st); /* exactly once per taken request, on the owner's thread,
                           st's sentence in strata_last_error(); may submit(), never reap() */
    struct st_io_req *next;                                /* owned by the method while in flight */
};

/* `unregistered` and the two polls matter to uring alone; where the kernel or the device refuses one of the polls, transfers go
 * on without it and one NOTICE line says so. */
struct st_io_opts {
    uint32_t queue_depth;           /* requests in flight, 1..4096 */
    bool start_in_reap;             /* submit() may leave the start to the next reap(): one system call less per batch */
    bool unregistered;              /* files and regions are not registered with the kernel */
    bool poll_device;               /* completions are polled for (IOPOLL): O_DIRECT files on a device with poll queues */
    bool poll_kernel;               /* a kernel thread takes the requests (SQPOLL): no system call per batch */
    uint32_t threads;               /* threads: how many, at most 64; 0: 8.  Never more than queue_depth */
    uint64_t fake_seed;             /* fake: reordering and latency */
    uint32_t fake_latency_us;       /* fake: upper bound of a request's random latency; 0: none, order still shuffled */
    uint64_t fake_bytes_per_second; /* fake: rate limit; 0: none */
};

struct st_io_ops {
    const char *name; /* "uring", "aio", "threads", "fake" */
    /* E_NOSYS: not on this machine, the caller may try the next method.  Any other error is final.
     * The thread that opens owns the io: with `uring` the kernel refuses submits of any other. */
    strata_status (*open)(struct st_io **out, const struct st_io_opts *opts);
    void (*close)(struct st_io *io); /* with nothing in flight */
    /* Make an open descriptor usable (borrowed until remove_file() or close()); at most 16 at a time.  Fake: fd ignored, `bytes`
     * of memory stand for it. */
    strata_status (*add_file)(struct st_io *io, int fd, uint64_t bytes, uint32_t *index);
    /* Gives the place back, with none of the file's requests in flight: the next add_file() may hand the index out again, and
     * the descriptor can be closed.  The kernel lets go of it now, or where threads of its own worked on the file an instant
     * later: at the latest when the queue is next used. */
    void (*remove_file)(struct st_io *io, uint32_t index);
    /* Takes all of reqs[] or, on error, none.  E_BUSY: more than queue_depth would be in flight: reap, then again.
     * A request that ends past the end of the file: read E_TRUNC, unless bytes_least are there; write grows the file, or
     * E_NOSPC (fake). */
    strata_status (*submit)(struct st_io *io, struct st_io_req **reqs, uint32_t count);
    /* Runs done() for what has finished; blocks until at least min_count have, fewer are in flight, or wake() was called.
     * Short transfers are continued here, EAGAIN and EINTR repeated a bounded number of times.  STRATA_OK always: where the
     * kernel takes no more calls, every request ends, once the kernel has let go of its memory, and submit() is refused from then
     * on. */
    strata_status (*reap)(struct st_io *io, uint32_t min_count);
    /* The same, and returns when st_clock_ns() reaches deadline_ns, with fewer ended or none; 0: no limit. */
    strata_status (*reap_until)(struct st_io *io, uint32_t min_count, uint64_t deadline_ns);
    /* Asks that a request in flight end soon; owner's thread, also from another request's done().  Best effort: it still ends
     * through done() in a later reap(): E_CANCELLED where it was stopped (bytes of it may have moved), else as if not asked.
     * What the device holds already is not stopped by any method. */
    void (*cancel)(struct st_io *io, struct st_io_req *req);
    /* Any thread: makes a blocked or else the next reap() return early. */
    void (*wake)(struct st_io *io);
    /* Optional (NULL: not supported). Pins [base, base+bytes) for zero-copy; regions over 1 GiB are split inside.
     * Once per io: a second region is E_BUSY; E_NOSYS with opts.unregistered.  Failure leaves the io usable without registration.
     */
    strata_status (*register_region)(struct st_io *io, void *base, uint64_t bytes);
    /* The options in effect: what was asked less what was refused so far; final once a request of every file has ended. */
    void (*effective)(const struct st_io *io, struct st_io_opts *out);
};

/* Best first; "fake" is never automatic and is found by name. */
extern const struct st_io_ops *const st_io_methods[];

/** The method that "auto" takes where this one cannot be set up; NULL: there is none. */
const struct st_io_ops *st_io_next(const struct st_io_ops *ops);

/** By name; "auto" and NULL: the first whose open() works.  NULL if unknown.  `why` (may be NULL, static text) says why better
 * ones were passed over. */
const struct st_io_ops *st_io_find(const char *name, const char **why);

#endif

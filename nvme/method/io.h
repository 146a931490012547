/* nvme/method/io.h - the I/O contract: asynchronous reads, writes and syncs of files by one of several methods.
 *
 * A method is a table of functions; every method passes the same suite (tests/nvme/test_io_contract.c).
 * One thread owns an st_io and makes every call on it except wake().  The hot path allocates nothing. */
#ifndef NVME_METHOD_IO_H
#define NVME_METHOD_IO_H

#include "strata/status.h"
#include <stdbool.h>
#include <stdint.h>

#define ST_IO_FILES_DEFAULT 256u   /* per io, at a time */
#define ST_IO_FILES_MAX     65536u /* the largest checkpoint has 16640: 1024 ranks, 8 directories, 2 spaces */

struct st_io; /* each method's own */

/* SYNC makes what is in the file survive a power cut: every write whose done() ran before submit() of the sync; of those in
 * flight meanwhile it may miss any.  It moves no bytes: bytes, bytes_least, offset and buf are 0.  Its first failure is final,
 * since a second fsync of the same file would report success over lost data: it is never repeated, not even after EINTR.  Whoever
 * sees it fail has to write the file again. */
enum st_io_op { ST_IO_INVALID = 0, ST_IO_READ, ST_IO_WRITE, ST_IO_SYNC };

/* One transfer, or a sync.  Caller-owned and embedded in the caller's own struct.  Untouchable from submit() until done(). */
struct st_io_req {
    enum st_io_op op;
    uint32_t file;        /* index from add_file() */
    uint32_t bytes;       /* multiple of the file's alignment; at most 1 GiB; 0 only for a sync */
    uint32_t bytes_least; /* of a read that may go past the end of the file: this many bytes are enough; 0: all are needed */
    uint32_t bytes_done;  /* progress across short transfers; in done() the total moved; owned by the method */
    uint32_t retry_count; /* owned by the method */
    uint32_t place;       /* owned by the method */
    bool cancelled;       /* cancel() was called; owned by the method */
    bool exact;           /* a write goes on at the very byte that it has come to; owned by the method */
    int64_t result;       /* last completion: bytes, or a negative errno; owned by the method, readable in done() */
    uint64_t offset;      /* bytes from start of file; aligned */
    void *buf;            /* aligned */
    void (*done)(struct st_io_req *req, strata_status st); /* exactly once per taken request, on the owner's thread,
                           st's sentence in strata_last_error(); may submit(), never reap() */
    struct st_io_req *next;                                /* owned by the method while in flight */
};

/* `unregistered` and the two polls only matter to uring.  If the kernel or the device refuses one of the polls, transfers
 * continue without it and one NOTICE line says so. */
struct st_io_opts {
    uint32_t queue_depth;           /* requests in flight, 1..4096 */
    bool start_in_reap;             /* submit() may leave the start to the next reap(): one system call less per batch */
    bool unregistered;              /* files and regions are not registered with the kernel */
    bool poll_device;               /* the method polls for completions (IOPOLL): O_DIRECT files on a device with poll queues */
    bool poll_kernel;               /* a kernel thread takes the requests (SQPOLL): no system call per batch */
    uint32_t files;                 /* that it takes at a time, at most ST_IO_FILES_MAX; 0: ST_IO_FILES_DEFAULT */
    uint32_t threads;               /* threads: how many, at most 64; 0: 8.  Never more than queue_depth */
    uint64_t fake_seed;             /* fake: reordering and latency */
    uint32_t fake_latency_us;       /* fake: upper bound of a request's random latency; 0: none, order still shuffled */
    uint64_t fake_bytes_per_second; /* fake: rate limit; 0: none */
};

struct st_io_ops {
    const char *name; /* "uring", "aio", "threads", "fake" */
    /* E_NOSYS: does not work on this machine; the caller may try the next method.  Any other error is final.  The thread that
     * opens owns the io: with `uring` the kernel refuses submits from any other thread. */
    strata_status (*open)(struct st_io **out, const struct st_io_opts *opts);
    void (*close)(struct st_io *io); /* call it with nothing in flight */
    /* Make an open descriptor usable (borrowed until remove_file() or close()); at most opts.files at a time: E_INVAL.  The
     * fake method ignores fd and uses `bytes` of memory instead, where a sync has nothing to do. */
    strata_status (*add_file)(struct st_io *io, int fd, uint64_t bytes, uint32_t *index);
    /* Gives the place back; none of the file's requests may be in flight.  The next add_file() may return the same index, and the
     * descriptor can be closed.  The kernel drops its reference now or, if threads of its own worked on the file, shortly after:
     * at the latest when the queue is next used. */
    void (*remove_file)(struct st_io *io, uint32_t index);
    /* Takes all of reqs[] or, on error, none.  E_BUSY: more than queue_depth would be in flight: reap, then try again.  If a
     * request ends past the end of the file, a read fails with E_TRUNC unless bytes_least are there, and a write grows the file
     * or fails with E_NOSPC (fake). */
    strata_status (*submit)(struct st_io *io, struct st_io_req **reqs, uint32_t count);
    /* Runs done() for finished requests; blocks until at least min_count have finished, fewer are in flight, or wake() was
     * called.  Continues short transfers, and repeats after EAGAIN and EINTR a bounded number of times.  Always STRATA_OK: if the
     * kernel accepts no more calls, every request ends once the kernel has released its memory, and submit() fails from then
     * on. */
    strata_status (*reap)(struct st_io *io, uint32_t min_count);
    /* The same, but returns when st_clock_ns() reaches deadline_ns, even if fewer or no requests have ended; 0: no limit. */
    strata_status (*reap_until)(struct st_io *io, uint32_t min_count, uint64_t deadline_ns);
    /* Asks that a request in flight end soon; owner's thread, also from another request's done().  Best effort: the request still
     * ends through done() in a later reap(), with E_CANCELLED if it was stopped (some of its bytes may have moved), otherwise as
     * if it had not been cancelled.  No method stops a transfer that the device already has. */
    void (*cancel)(struct st_io *io, struct st_io_req *req);
    /* Any thread: makes the blocked reap(), or the next one, return early. */
    void (*wake)(struct st_io *io);
    /* Optional (NULL: not supported).  Pins [base, base+bytes) for zero-copy; regions over 1 GiB are split internally.  Once per
     * io: a second region is E_BUSY; E_NOSYS with opts.unregistered.  After a failure the io works without registration. */
    strata_status (*register_region)(struct st_io *io, void *base, uint64_t bytes);
    /* The options in effect: the requested ones less those refused so far; final once a request of every file has ended. */
    void (*effective)(const struct st_io *io, struct st_io_opts *out);
};

/* Best first; "fake" is never chosen automatically, only by name. */
extern const struct st_io_ops *const st_io_methods[];

/** Whether a name leaves the choice to us: "auto" or NULL. */
bool st_io_is_auto(const char *name);

/** What "auto" tries after `ops` could not be set up with what was asked of it, which said `st`: st_io_find() opens a method with
 *  a depth of 1, and with the real one it may lack memory, say.  A notice says which, and why; NULL: nothing else may work. */
const struct st_io_ops *st_io_next(const struct st_io_ops *ops, strata_status st);

/** By name; "auto" and NULL: the first whose open() works.  NULL if unknown.  `why` (may be NULL, static text) says why better
 *  methods were passed over. */
const struct st_io_ops *st_io_find(const char *name, const char **why);

#endif

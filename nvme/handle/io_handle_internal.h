/* nvme/handle/io_handle_internal.h - what the files of the public handle (strata/io.h) share; not for others.
 *
 *     io_handle.c         the calls of any thread: start, wait, poll, cancel
 *     io_handle_file.c    opening and closing of files
 *     io_handle_buffer.c  buffers for transfers
 *     io_handle_thread.c  the I/O thread: takes requests, feeds the method, ends requests
 *     io_handle_cut.c     pieces of requests, and which requests wait for which
 *
 * A request goes from any thread into the inbox, from there into its file's queue, runs when nothing before it is in its way, is
 * cut into pieces of a block, and ends when no piece is left.  Members say whose they are: "lock" is the handle's lock. */
#ifndef NVME_HANDLE_IO_HANDLE_INTERNAL_H
#define NVME_HANDLE_IO_HANDLE_INTERNAL_H

#include "core/system/arena.h"
#include "nvme/method/io_method.h"
#include "strata/io.h"
#include <limits.h>
#include <sys/types.h>

#define ST_HANDLE_ERROR_BYTES 1024
#define ST_HANDLE_CHUNKS_MAX  24u /* chunk k of the request table has 256 << k records */
#define ST_HANDLE_CHUNK_FIRST 256u

/* A request.  In the table for good; in use between start and the taking of its status. */
struct st_hreq {
    uint32_t index;
    pthread_cond_t ended; /* monotonic clock */

    /* lock */
    uint32_t generation; /* new with each use; never 0 */
    bool used, going, cancel_asked, detached;
    uint32_t waiters;
    struct st_hreq *next;            /* free list, or inbox */
    struct st_hreq *next_cancel;     /* cancels */
    struct st_hreq *older, *younger; /* all that have not ended */
    struct strata_io_result result;
    char *sentence; /* of a failure; NULL: none, or no memory for it */

    /* set at start, then constant */
    struct strata_io_file *file;
    enum st_io_op op;
    char *buf;
    uint64_t offset, end; /* bytes [offset, end) of the file */
    uint64_t sequence, start_ns;

    /* the I/O thread's */
    struct st_hreq *before, *behind; /* in its file's list: waiting or running */
    bool running, stopped;           /* stopped: no further pieces */
    bool extends, pads;              /* write: moves the end; leaves a block behind the end that is cut off again */
    uint64_t claim_begin, claim_end; /* whole blocks; to UINT64_MAX where what lies behind has to wait as well */
    uint64_t at;                     /* cut so far */
    uint64_t bytes_at_start;         /* of the file */
    uint32_t pieces;                 /* cut and not ended */
    uint64_t bytes_moved;
    strata_status status; /* first failure */
};

struct st_hlist {
    struct st_hreq *first, *last;
};

struct strata_io_file {
    struct strata_io *io;
    char path[PATH_MAX];
    uint32_t flags;
    bool direct;
    uint32_t memory_align; /* of addresses, where it is direct */
    int fd;                /* -1: fake */

    /* lock */
    struct strata_io_file *next; /* the handle's files */
    struct strata_io_file *next_closing;
    uint64_t bytes; /* written by the I/O thread, which reads it without the lock */
    uint64_t outstanding;
    bool closed;
    strata_status close_status;
    char close_error[ST_HANDLE_ERROR_BYTES];

    /* the I/O thread's */
    int place;          /* index with the method; -1: none */
    uint32_t in_flight; /* pieces with the method */
    struct st_hlist waiting, running;
    struct st_hreq *cutting; /* the running one that has pieces to come */
    bool ready;              /* in the list of files that may have a piece */
    struct strata_io_file *next_ready;
};

/* One piece of a request: in flight, between its two transfers, or free. */
struct st_hslot {
    struct st_io_req req; /* first: done() gets it back by a cast */
    struct strata_io *io;
    struct st_hreq *request;
    struct st_hslot *next;
    char *bounce; /* [bounce_bytes] */
    char *user;   /* the caller's bytes of this piece: [user_bytes], from `into` on in the bounce buffer */
    uint32_t user_bytes, into;
    bool bounced, fetching; /* fetching: the first transfer of a block that is written in part */
    bool issued;
};

struct st_hbuffer {
    struct st_hbuffer *next; /* by address */
    char *base;
    uint64_t bytes;
    struct st_arena own; /* base NULL: of the handle's region */
};

struct strata_io {
    const struct st_io_ops *ops;
    struct st_io_opts opts;
    bool fake, registered; /* final once started */
    uint32_t block_bytes, bounce_bytes;
    pid_t pid;
    pthread_t thread;
    struct st_arena region;
    struct st_io *method; /* once started, until the thread ends */

    pthread_mutex_t lock; /* guards the block below, and what says so in requests and files */
    pthread_cond_t work;  /* something for the I/O thread, or stopping */
    pthread_cond_t ended; /* a request ended while somebody waits for several; a file was closed; started */
    uint32_t waiters;     /* on `ended` */
    struct st_hlist inbox;
    struct st_hreq *cancels;
    struct strata_io_file *closing;
    bool in_reap; /* the thread may block in reap(): wake it */
    bool stopping, started;
    strata_status start_status;
    char start_error[ST_HANDLE_ERROR_BYTES];
    struct strata_io_file *files;
    struct st_hreq *oldest, *youngest; /* that have not ended */
    struct st_hreq *chunks[ST_HANDLE_CHUNKS_MAX];
    uint32_t chunk_count;
    uint32_t record_count;
    struct st_hreq *free_records;
    uint64_t next_sequence;
    struct strata_io_counters counters;
    strata_status detached_status; /* first failure that nobody waits for */
    char detached_error[ST_HANDLE_ERROR_BYTES];
    struct st_hbuffer *buffers;

    /* the I/O thread's */
    uint32_t in_flight;                            /* with the method */
    uint32_t pieces;                               /* slots in use */
    struct strata_io_file *bound[ST_IO_FILES_MAX]; /* that the method has a descriptor of; NULL: a free place */
    uint32_t hand;                                 /* the place that was last given to another file */
    struct strata_io_file *ready_first, *ready_last;
    struct st_hslot *slots; /* [queue_depth] */
    struct st_hslot *free_slots, *again_first, *again_last;
    char *bounce; /* [queue_depth * bounce_bytes], mapped */
};

/** strata_io_open() with the fake method's latency and the like, which the public options do not show. */
strata_status st_handle_open(struct strata_io **out, const struct strata_io_opts *opts, const struct st_io_opts *fake);

/** E_INVAL in a forked child. */
strata_status st_handle_check(const struct strata_io *io);
/** Make the I/O thread look: lock held. */
void st_handle_nudge(struct strata_io *io);
/** Put a request's record back into the table: lock held. */
void st_handle_give_record(struct strata_io *io, struct st_hreq *req);
/** Waits on io->ended, lock held. */
void st_handle_wait_ended(struct strata_io *io);

/* io_handle_thread.c */
void *st_handle_main(void *arg);
/* I/O thread: the last piece of a request has ended, or it never gets one. */
void st_handle_end(struct strata_io *io, struct st_hreq *req);
/* I/O thread: the first failure counts; strata_last_error() has its sentence, without the path. */
void st_handle_fail(struct st_hreq *req, strata_status st, int system_error, uint64_t offset);

/* io_handle_cut.c: the I/O thread's. */
void st_handle_list_push(struct st_hlist *list, struct st_hreq *req);
void st_handle_list_remove(struct st_hlist *list, struct st_hreq *req);
/** Set what a request claims, from its file's size now. */
void st_handle_claim(struct st_hreq *req);
bool st_handle_conflict(const struct st_hreq *a, const struct st_hreq *b);
/** Cut the next piece of req into slot: what is transferred first, and from where to where. */
void st_handle_cut(struct st_hreq *req, struct st_hslot *slot, uint32_t block_bytes, uint32_t bounce_bytes);
/** After the first transfer of a block written in part: make it the write. */
void st_handle_merge(struct st_hslot *slot);

/* io_handle_file.c: the I/O thread's. */
/** A write has ended: cut off what it left behind the end.  *bytes: the file's size now; *err: errno of a failure. */
strata_status st_handle_file_settle(struct strata_io_file *file, const struct st_hreq *req, uint64_t *bytes, int *err);
/** The file's size as the system has it, or -errno; 0 of a file in memory. */
int64_t st_handle_file_look(const struct strata_io_file *file);
/** Close its descriptor and tell who waits. */
void st_handle_file_close(struct strata_io_file *file);

/* io_handle_buffer.c */
void st_handle_free_buffers(struct strata_io *io);

#endif

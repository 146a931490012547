/* nvme/handle/io_handle_internal.h - shared by the files of the public handle (strata/io.h); not for other code.
 *
 *     io_handle.c         the calls of any thread: start, wait, poll, cancel
 *     io_handle_file.c    opening and closing of files
 *     io_handle_buffer.c  buffers for transfers
 *     io_handle_thread.c  the I/O thread: takes requests, feeds the method, ends requests
 *     io_handle_cut.c     pieces of requests, and which requests wait for which
 *
 * Any thread puts a request into the inbox, and the I/O thread moves it into its file's queue.  It runs when no earlier request
 * conflicts with it, is cut into pieces of a block, and ends when no piece is left.  Comments on members say what guards them;
 * "lock" is the handle's lock. */
#ifndef NVME_HANDLE_IO_HANDLE_INTERNAL_H
#define NVME_HANDLE_IO_HANDLE_INTERNAL_H

#include "core/system/arena.h"
#include "nvme/method/io_method.h"
#include "nvme/method/io_thread.h"
#include "strata/io.h"
#include <limits.h>
#include <sys/types.h>

#define ST_HANDLE_ERROR_BYTES 1024
#define ST_HANDLE_CHUNKS_MAX  24u /* chunk k of the request table has 256 << k records */
#define ST_HANDLE_CHUNK_FIRST 256u

/* A request.  Records stay in the table forever; one is in use from its start until its status is taken. */
struct st_hreq {
    uint32_t index;
    pthread_cond_t ended; /* monotonic clock */

    /* lock */
    uint32_t generation; /* new with each use; never 0 */
    bool used, going, cancel_asked, detached;
    uint32_t waiters;
    struct st_hreq *next;            /* free list, or inbox */
    struct st_hreq *next_cancel;     /* cancels */
    struct st_hreq *older, *younger; /* list of the requests that have not ended */
    struct strata_io_result result;
    char *sentence; /* of a failure; NULL: none, or no memory for it */

    /* set at start, then constant */
    struct strata_io_file *file;
    enum st_io_op op;
    char *buf;
    uint64_t offset, end; /* bytes [offset, end) of the file */
    uint64_t sequence, start_ns;

    /* used by the I/O thread alone */
    struct st_hreq *before, *behind; /* neighbours in the file's list of waiting or of running requests */
    bool running, stopped;           /* stopped: no further pieces */
    bool extends, pads; /* of a write: moves the end of the file; leaves a padded block beyond the end, which is cut off again */
    uint64_t claim_begin, claim_end; /* whole blocks; the end is UINT64_MAX if everything beyond has to wait as well */
    uint64_t at;                     /* cut so far */
    uint64_t bytes_at_start;         /* of the file */
    uint32_t pieces;                 /* pieces cut and not ended */
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
    uint32_t memory_align; /* of buffer addresses, if the file is direct */
    int fd;                /* -1: fake */
    dev_t device;          /* with the inode: which file it is, whatever its path; not of a fake one */
    ino_t inode;

    /* lock */
    struct strata_io_file *next; /* list of the handle's files */
    bool ending;                 /* its last request has ended, and it is being closed */
    struct strata_io_file *next_closing;
    uint64_t bytes; /* only the I/O thread writes it, and reads it without the lock */
    uint64_t outstanding;
    bool closed;
    strata_status close_status;
    char close_error[ST_HANDLE_ERROR_BYTES];

    /* used by the I/O thread alone */
    int place;          /* the method's index of the file; -1: none */
    uint32_t in_flight; /* pieces that the method has */
    struct st_hlist waiting, running;
    struct st_hreq *cutting; /* the running request that has pieces left to cut */
    bool ready;              /* in the list of files that may have a piece to cut */
    struct strata_io_file *next_ready;
};

/* One piece of a request: in flight, between its two transfers, or free. */
struct st_hslot {
    struct st_io_req req; /* first member: done() casts it back */
    struct strata_io *io;
    struct st_hreq *request;
    struct st_hslot *next;
    char *bounce; /* [bounce_bytes] */
    char *user;   /* the caller's bytes of this piece: [user_bytes], starting at `into` in the bounce buffer */
    uint32_t user_bytes, into;
    bool bounced, fetching; /* fetching: reading a block that is written in part, before the write */
    bool issued;
};

struct st_hbuffer {
    struct st_hbuffer *next; /* by address */
    char *base;
    uint64_t bytes;
    struct st_arena own; /* base NULL: it is in the handle's region */
};

struct strata_io {
    struct st_io_thread thread;
    bool fake;
    uint32_t block_bytes, bounce_bytes;
    pid_t pid;
    struct st_arena region;

    pthread_mutex_t lock; /* guards the block below, and the members of requests and files that say so */
    pthread_cond_t ended; /* a request ended while a thread waits for several; a file was closed */
    uint32_t waiters;     /* on `ended` */
    struct st_hlist inbox;
    struct st_hreq *cancels;
    struct strata_io_file *closing;
    struct strata_io_file *files;
    struct st_hreq *oldest, *youngest; /* of the requests that have not ended */
    struct st_hreq *chunks[ST_HANDLE_CHUNKS_MAX];
    uint32_t chunk_count;
    uint32_t record_count;
    struct st_hreq *free_records;
    uint64_t next_sequence;
    struct strata_io_counters counters;
    strata_status detached_status; /* first failure of a request that no thread waits for */
    char detached_error[ST_HANDLE_ERROR_BYTES];
    struct st_hbuffer *buffers;

    /* used by the I/O thread alone */
    struct st_hreq *taken, *taken_cancels; /* of inbox, cancels, closing */
    struct strata_io_file *taken_closing;
    uint32_t in_flight;                                /* with the method */
    uint32_t pieces;                                   /* slots in use */
    struct strata_io_file *bound[ST_IO_FILES_DEFAULT]; /* files whose descriptor the method has; NULL: a free place */
    uint32_t hand;                                     /* the place that was reassigned last */
    struct strata_io_file *ready_first, *ready_last;
    struct st_hslot *slots; /* [queue_depth] */
    struct st_hslot *free_slots, *again_first, *again_last;
    char *bounce; /* [queue_depth * bounce_bytes], mapped */
};

/** strata_io_open() plus the fake method's latency and similar settings, which the public options do not have. */
strata_status st_handle_open(struct strata_io **out, const struct strata_io_opts *opts, const struct st_io_opts *fake);

/** False in a forked child, where a thread that is not there may hold the lock for ever. */
bool st_handle_is_own(const struct strata_io *io);
/** E_INVAL in a forked child. */
strata_status st_handle_check(const struct strata_io *io);
/** Put a request's record back into the table; lock held. */
void st_handle_give_record(struct strata_io *io, struct st_hreq *req);
/** Wait on io->ended; lock held. */
void st_handle_wait_ended(struct strata_io *io);

/* io_handle_thread.c */
void st_handle_take(void *io);
uint32_t st_handle_run(void *io);
void st_handle_piece_done(struct st_io_req *done, strata_status st);
/* I/O thread: end a request whose last piece has ended, or that never gets a piece. */
void st_handle_end(struct strata_io *io, struct st_hreq *req);
/* I/O thread: record a failure; the first one counts.  Its sentence, without the path, is in strata_last_error(). */
void st_handle_fail(struct st_hreq *req, strata_status st, int system_error, uint64_t offset);

/* io_handle_cut.c, for the I/O thread. */
void st_handle_list_push(struct st_hlist *list, struct st_hreq *req);
void st_handle_list_remove(struct st_hlist *list, struct st_hreq *req);
/** Set the range that a request claims, given its file's current size. */
void st_handle_claim(struct st_hreq *req);
bool st_handle_conflict(const struct st_hreq *a, const struct st_hreq *b);
/** Cut the next piece of req into slot and set up its first transfer. */
void st_handle_cut(struct st_hreq *req, struct st_hslot *slot, uint32_t block_bytes, uint32_t bounce_bytes);
/** After the read for a block that is written in part: merge the new bytes and make the slot the write. */
void st_handle_merge(struct st_hslot *slot);

/* io_handle_file.c, for the I/O thread. */
/** After a write has ended: cut off what it left beyond the end.  *bytes: the file's size now; *err: errno of a failure. */
strata_status st_handle_file_settle(struct strata_io_file *file, const struct st_hreq *req, uint64_t *bytes, int *err);
/** The file's size as the system reports it, or -errno; 0 for a file in memory. */
int64_t st_handle_file_look(const struct strata_io_file *file);
/** Close the descriptor and wake the threads that wait for it. */
void st_handle_file_close(struct strata_io_file *file);

/* io_handle_buffer.c */
void st_handle_free_buffers(struct strata_io *io);

#endif

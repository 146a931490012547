/* nvme/handle/io_handle_internal.h - shared by the files of the public handle (strata/io.h); not for other code.
 *
 *     io_handle.c         the calls of any thread: start, wait, poll, cancel
 *     io_handle_file.c    opening and closing of files
 *     io_handle_buffer.c  buffers for transfers
 *     io_handle_event.c   the descriptor that event loops wait for
 *     io_handle_thread.c  on the I/O thread: requests arrive, start in order, and end
 *     io_handle_cut.c     parts of requests, and which requests wait for which
 *
 * A file is a volume of the mover (nvme/mover/mover.h).  A request arrives on the I/O thread as a transfer without bytes, and
 * brings along all that were started while it was on its way.  Each waits in its file's queue until no earlier one conflicts with
 * it.  Whole blocks move in place, by two transfers in turns, so that the largest request does not keep another file waiting; the
 * rest goes through bounce buffers.  It ends when no part is left.  Comments on members say what guards them; "lock" is the
 * handle's lock, which is taken before the mover's. */
#ifndef NVME_HANDLE_IO_HANDLE_INTERNAL_H
#define NVME_HANDLE_IO_HANDLE_INTERNAL_H

#include "core/system/arena.h"
#include "nvme/method/io_method.h"
#include "nvme/mover/mover.h"
#include "strata/io.h"
#include <limits.h>
#include <pthread.h>
#include <sys/types.h>

/* A request.  Records stay in the table forever; one is in use from its start until its status is taken. */
struct st_hreq {
    uint32_t index;
    pthread_cond_t ended; /* monotonic clock */

    /* lock */
    uint32_t generation; /* new with each use; never 0 */
    bool used, going, cancel_asked, detached;
    uint32_t waiters;
    struct st_hreq *next;            /* free list */
    struct st_hreq *older, *younger; /* list of the requests that have not ended */
    struct strata_io_result result;  /* while it is going, the I/O thread's: the first failure, and bytes moved so far */
    char *sentence;                  /* of a failure; NULL: none, or no memory for it */

    /* set at start, then constant */
    struct strata_io_file *file;
    enum st_io_op op;
    char *buf;
    uint64_t offset, end; /* bytes [offset, end) of the file */
    uint64_t sequence, start_ns;

    /* used by the I/O thread alone */
    struct st_transfer in_place[2];  /* the first may be an arrival, too; without bytes: idle */
    struct st_transfer cancel;       /* the arrival of strata_io_cancel() */
    struct st_hreq *before, *behind; /* neighbours in the file's list */
    struct st_hreq *next_hungry;
    bool running, stopped;  /* stopped: no further parts */
    bool over, cancel_came; /* over: it has ended, but for a cancel that is still to arrive */
    bool extends, pads;     /* of a write: moves the end of the file; leaves a padded block beyond the end, to be cut off */
    uint64_t claim_begin, claim_end; /* whole blocks; the end is UINT64_MAX if everything beyond has to wait as well */
    uint64_t at;                     /* cut so far */
    uint64_t bytes_at_start;         /* of the file */
    uint32_t parts;                  /* cut and not ended */
};

struct strata_io_file {
    struct strata_io *io;
    char path[PATH_MAX];
    uint32_t flags;
    bool direct;
    uint32_t memory_align; /* of buffer addresses, if the file is direct */
    int fd;                /* -1: fake */
    uint32_t volume;
    dev_t device; /* with the inode: which file it is, whatever its path; not of a fake one */
    ino_t inode;

    /* lock */
    struct strata_io_file *next; /* list of the handle's files */
    uint64_t bytes;              /* only the I/O thread writes it, and reads it without the lock */
    uint64_t outstanding;

    /* used by the I/O thread alone */
    struct st_hreq *first, *last; /* requests in their order: those that run, then those that wait */
    struct st_hreq *waiting;      /* the first of these */
    uint32_t running;
};

/* A bounce buffer, with the part of a request that goes through it. */
struct st_hbounce {
    struct st_transfer transfer;
    struct st_hreq *request; /* NULL: free */
    struct st_hbounce *next; /* free list */
    char *memory;            /* [bounce_bytes] */
    char *user;              /* the caller's bytes of this part: [user_bytes], starting at `into` in the memory */
    uint32_t user_bytes, into;
    bool fetching; /* reading a block that is written in part, before the write */
};

struct st_hbuffer {
    struct st_hbuffer *next; /* by address */
    char *base;
    uint64_t bytes;
    struct st_arena own; /* base NULL: it is in the handle's region */
};

struct strata_io {
    struct st_mover *mover;
    const struct st_io_ops *ops;
    bool registered;
    uint32_t queue_depth, bounce_bytes;
    uint64_t turn_bytes; /* that move in place before another file has its turn */
    pid_t pid;
    struct st_arena region;

    pthread_mutex_t lock; /* guards the block below, and the members of requests and files that say so */
    pthread_cond_t ended; /* a request ended while a thread waits for several */
    uint32_t waiters;     /* on `ended` */
    int event_fd;         /* eventfd that counts the requests that have ended; -1: nobody has asked for it */
    struct strata_io_file *files;
    struct st_hreq *oldest, *youngest; /* of the requests that have not ended */
    bool arriving;                     /* a request is on its way to the I/O thread, and brings the younger ones along */
    struct st_hreq **records;          /* [record_count], of room for record_room */
    uint32_t record_count, record_room;
    struct st_hreq *free_records;
    uint64_t next_sequence;
    struct strata_io_counters counters;
    struct st_hreq *detached_failed; /* the first failure among requests that no thread waits for */
    struct st_hbuffer *buffers;

    /* used by the I/O thread alone */
    struct st_hbounce *bounces; /* [queue_depth] */
    struct st_hbounce *free_bounces;
    struct st_hreq *hungry;                /* running requests that wait for a bounce buffer */
    char *bounce_memory;                   /* [queue_depth * bounce_bytes], mapped */
    uint64_t bytes_bounced, blocks_merged; /* the counters get them when a request ends */
};

/** strata_io_open() plus the fake method's latency and similar settings, which the public options do not have. */
strata_status st_handle_open(struct strata_io **out, const struct strata_io_opts *opts, const struct st_io_opts *fake);

/** False in a forked child, where a thread that is not there may hold the lock for ever. */
bool st_handle_is_own(const struct strata_io *io);
/** E_INVAL in a forked child. */
strata_status st_handle_check(const struct strata_io *io);
/** Put a request's record back into the table; lock held. */
void st_handle_give_record(struct strata_io *io, struct st_hreq *req);
/** Wait on io->ended, until deadline_ns (0: no limit); lock held.  False: it has passed. */
bool st_handle_wait_ended(struct strata_io *io, uint64_t deadline_ns);
/** Start a transfer of a file's volume.  From other threads than the mover's with the lock held, so that requests arrive in the
 *  order of their numbers. */
void st_handle_submit(struct strata_io *io, struct st_transfer *transfer);

/* io_handle_thread.c: done() of a request's transfers and of a bounce buffer's. */
void st_handle_arrived(struct st_transfer *transfer, strata_status st);
void st_handle_cancel_arrived(struct st_transfer *transfer, strata_status st);
void st_handle_part_done(struct st_transfer *transfer, strata_status st);
void st_handle_bounce_done(struct st_transfer *transfer, strata_status st);

/* io_handle_cut.c, for the I/O thread. */
/** Set the range that a request claims, given its file's current size. */
void st_handle_claim(struct st_hreq *req);
bool st_handle_conflict(const struct st_hreq *a, const struct st_hreq *b);
/** Bytes at req->at that move in place; 0: what comes next needs a bounce buffer. */
uint64_t st_handle_in_place(const struct st_hreq *req);
/** Fill in the next part of req, from req->at on: in place, or through a bounce buffer. */
void st_handle_cut(struct st_hreq *req, struct st_transfer *transfer, uint64_t bytes);
void st_handle_cut_bounced(struct st_hreq *req, struct st_hbounce *bounce);
/** After the read for a block that is written in part: merge the new bytes and make the transfer the write. */
void st_handle_merge(struct st_hbounce *bounce);

/* io_handle_file.c, for the I/O thread. */
/** After a write has ended: cut off what it left beyond the end.  *bytes: the file's size now; *err: errno of a failure. */
strata_status st_handle_file_settle(struct strata_io_file *file, const struct st_hreq *req, uint64_t *bytes, int *err);
/** The file's size as the system reports it, or -errno; 0 for a file in memory. */
int64_t st_handle_file_look(const struct strata_io_file *file);

/* io_handle_event.c */
/** One more request has ended; lock held. */
void st_handle_tell_ended(const struct strata_io *io);

/* io_handle_buffer.c */
void st_handle_free_buffers(struct strata_io *io);

#endif

/* nvme/mover/mover_internal.h - shared by the files of the mover; not for users of nvme/mover/mover.h.
 *
 *   mover.c         the calls of any thread: start, stop, submit, volumes come and go
 *   mover_loop.c    the I/O thread's sleep and waking
 *   mover_thread.c  the I/O thread: cuts transfers into requests and keeps the queue of every drive full
 *   mover_patience.c  requests that do not end: warnings, and the deadline
 *   stripe.c        which file of a volume holds what
 *   depth.c         how many requests a drive wants
 *   users.c         how many swaps share a directory */
#ifndef NVME_MOVER_MOVER_INTERNAL_H
#define NVME_MOVER_MOVER_INTERNAL_H

#include "core/base/error.h"
#include "nvme/method/io_method.h"
#include "nvme/mover/depth.h"
#include "nvme/mover/mover.h"
#include <pthread.h>
#include <stdatomic.h>

enum { ST_MOVER_READ = 0, ST_MOVER_WRITE = 1, ST_MOVER_DIRECTIONS = 2, ST_MOVER_SYNC = 2, ST_MOVER_QUEUES = 3 };

struct st_mover_queue {
    struct st_transfer *first, *last;
};

/* Requests by direction, the bytes they moved, for how long at least one was in flight, and since when one is (0: none is). */
struct st_mover_tally {
    _Atomic uint64_t bytes[ST_MOVER_DIRECTIONS];                               /* stored by the thread */
    uint64_t busy_ns[ST_MOVER_DIRECTIONS], busy_since_ns[ST_MOVER_DIRECTIONS]; /* guarded by the mover's lock */
    uint32_t in_flight[ST_MOVER_DIRECTIONS];                                   /* the thread's */
};

struct st_mover_drive {
    const struct st_users *users; /* NULL: alone */
    struct st_mover_tally tally;
    struct st_depth depth;           /* the thread's */
    bool given_up;                   /* the thread's: it did not answer */
    _Atomic uint32_t limit, holders; /* requests allowed in flight; stored by the thread, read for info */
};

/* One file of a volume. */
struct st_volume_part {
    char *path;
    int fd;
    uint64_t bytes;
    struct st_mover_drive *drive;
    uint32_t place; /* the method's index of the file */
};

/* Constant while it is in the mover's table, but for the count. */
struct st_volume {
    struct st_stripe stripe;
    uint64_t bytes, space_bytes; /* of all spaces, of one */
    uint32_t file_count;
    bool read_only, loose;
    _Atomic uint32_t transfers;    /* submitted and not ended */
    struct st_volume_part parts[]; /* [file_count] */
};
/* Where a byte of a volume lies; .dir: index of its file. */
struct st_stripe_place st_volume_at(const struct st_volume *v, uint64_t offset);

/* Put `volume` (NULL: nothing) in the place of what the table has at `index` (ST_MOVER_NO_VOLUME: at any free place).  On the
 * stack of a thread that waits for `ended`. */
struct st_mover_change {
    uint32_t index;
    struct st_volume *volume; /* afterwards what was there before or, on failure, what was to be put there */
    strata_status status;
    struct st_sentence error;
    bool ended;
    struct st_mover_change *next;
};

/* One request in flight, or free. */
struct st_mover_slot {
    struct st_io_req req; /* first member: done() casts it back */
    struct st_mover *mover;
    struct st_transfer *transfer; /* NULL: free */
    struct st_volume_part *part;
    uint64_t since_ns;          /* of the mover's awake_ns */
    bool given_up;              /* not answered, and cancelled */
    bool taken;                 /* by the I/O method */
    struct st_mover_slot *next; /* free list */
};

struct st_mover {
    struct st_mover_opts opts;
    struct st_mover_drive *drives; /* [opts.drive_count] */
    uint64_t tick_ns;              /* while requests are in flight, the thread looks at the time so often; 0: never */

    pthread_mutex_t lock; /* guards the block below */
    pthread_cond_t ended; /* a change ended */
    pthread_cond_t work;  /* handed, or stopping */
    pthread_cond_t ready; /* started */
    bool handed, stopping;
    bool in_reap; /* the thread may block in reap(), no request has ended there yet: wake() it.  Only the thread changes it */
    bool started; /* the members below, up to self, are final; status: whether the io opened */
    bool registered;
    strata_status status;
    struct st_sentence error;
    pthread_t thread, self;
    struct st_mover_queue inbox;
    struct st_mover_change *changes;
    struct st_volume **volumes; /* [volume_count]; only the thread changes both, and reads them without the lock */
    uint32_t volume_count;
    struct st_mover_tally tally; /* of all drives */

    struct st_io *io;            /* the I/O thread's, like everything below */
    struct st_mover_queue taken; /* of the inbox */
    struct st_mover_change *taken_changes;
    struct st_mover_queue waiting[ST_MOVER_QUEUES]; /* transfers with requests still to issue; the head may be part issued */
    uint32_t in_flight;                             /* requests */
    uint64_t users_ns;                              /* when the holders were counted */
    uint64_t looked_ns, awake_ns;                   /* the last one, and the time that the thread has been seen to run */
    uint64_t warned_ns;                             /* of awake_ns; 0: all is well */
    const struct st_mover_drive *warned_of;         /* by the last warning */
    bool told;                                      /* hangs() was called */
    struct st_sentence refusal;                     /* of the I/O method: why it last took no requests */
    uint32_t slot_count;
    struct st_mover_slot *slots; /* [slot_count] */
    struct st_mover_slot *free_slots;
};

/** Start the thread, which opens the io; what opening it says. */
strata_status st_mover_loop_start(struct st_mover *m);
/** Once everything handed over has ended, close the io and end the thread. */
void st_mover_loop_stop(struct st_mover *m);
/** From another thread, lock held: something was handed over. */
void st_mover_nudge(struct st_mover *m);
bool st_mover_is_self(const struct st_mover *m);
/** On the I/O thread: do what was taken, and start requests.  How many are in flight. */
uint32_t st_mover_run(struct st_mover *m);
void st_mover_queue_push(struct st_mover_queue *queue, struct st_transfer *t);
/** On the I/O thread: queue a transfer, or end one without bytes. */
void st_mover_come(struct st_mover *m, struct st_transfer *t);
/** Set every drive's limit and count its users; before the thread runs, then the thread itself. */
void st_mover_look_at_users(struct st_mover *m);
void st_mover_slot_free(struct st_mover *m, struct st_mover_slot *slot);
void st_mover_request_done(struct st_io_req *req, strata_status st);
/** Fill in what opts.patience leaves out; before the thread runs. */
void st_mover_patience_init(struct st_mover *m);
/** Once a tick: warn of requests that do not end, and give up a drive whose deadline has passed. */
void st_mover_look_at_time(struct st_mover *m);
/** The sentence of a transfer whose request was given up; E_IO. */
strata_status st_mover_unanswered(const struct st_mover *m, const struct st_transfer *t, const char *path);

#endif

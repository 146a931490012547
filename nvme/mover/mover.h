/* nvme/mover/mover.h - the I/O thread: moves extents between volumes and memory, and makes volumes durable.
 *
 * A volume is a space of bytes over one or several files, dealt out in units (stripe.h): a run's swap, one set of it, a
 * checkpoint that is read.  Volumes come and go while transfers of others run.  Files on one drive share its queue: at most
 * queue_depth requests of all of them are in flight.
 *
 * Any thread may call anything here but open and close.  A transfer is cut into requests of block_bytes; it ends exactly once,
 * with its own status.  Syncs are not cut and not limited: one request per file of the volume. */
#ifndef NVME_MOVER_MOVER_H
#define NVME_MOVER_MOVER_H

#include "nvme/method/io.h"
#include "nvme/mover/stripe.h"
#include "nvme/mover/users.h"
#include "strata/status.h"
#include <stdbool.h>
#include <stdint.h>

#define ST_MOVER_ALIGN      4096u /* of offsets, sizes and buffers */
#define ST_MOVER_DRIVES_MAX ST_STRIPE_DIRS_MAX
#define ST_MOVER_NO_VOLUME  UINT32_MAX

/* Caller-owned; untouchable between submit and done. */
struct st_transfer {
    enum st_io_op op;
    uint32_t volume;
    uint64_t offset, bytes; /* in the volume; multiples of ST_MOVER_ALIGN; a sync has none, nor buf: it is of the whole volume.
                               Without bytes a read or write ends once the thread comes to it: done() is a call on the thread */
    void *buf;              /* aligned to ST_MOVER_ALIGN */
    void (*done)(struct st_transfer *t, strata_status st); /* on the I/O thread; keep it short; may submit */
    void *owner;                                           /* the caller's */
    const char *what; /* for sentences: what it is of, or the lane that waits for it; static; NULL: nothing to say */
    /* internal */
    struct st_transfer *next;
    uint64_t goal, issued;  /* bytes; of a sync files */
    uint64_t moved;         /* bytes; readable in done() */
    strata_status status;   /* first failure */
    uint32_t in_flight;     /* requests */
    uint32_t bytes_least;   /* the caller's: of a read of one request, loose; as in struct st_io_req */
    uint32_t failed_bytes;  /* of the request that failed */
    uint64_t failed_offset; /* in its file; readable in done(), like the result */
    int32_t failed_result;  /* as in struct st_io_req */
    uint32_t failed_file : 30;
    bool given_up : 1; /* that request, since it was not answered */
    bool refused : 1;  /* that request, which the I/O method did not take */
};

#define ST_PATIENCE_DEADLINE_NS UINT64_C(300000000000) /* where no setting says another */

/* What becomes of requests that the drive does not answer.  Warnings say what is outstanding.  After the deadline the drive is
 * given up: its requests are cancelled, and end with E_IO, as do all later ones.  What the kernel does not let go of keeps its
 * memory and its transfer; hangs() is called then, once, a tenth of the deadline or ten seconds later.  Time in which the process
 * was stopped does not count. */
struct st_patience {
    uint64_t report_ns, repeat_ns;                  /* before the first warning, between others; 0: 30 s, 60 s */
    uint64_t deadline_ns;                           /* 0: none; with report_ns UINT64_MAX, no warnings either */
    void (*hangs)(void *ctx, const char *sentence); /* on the I/O thread; may end the process; NULL: it waits on */
    void *ctx;
    uint64_t (*now_ns)(void); /* NULL: st_clock_ns(); tests have another clock */
};

struct st_volume_file {
    const char *path; /* for sentences; copied */
    int fd;           /* borrowed until the volume is removed; -1 with fake, which holds zeros in memory instead */
    uint32_t drive;   /* below the mover's drive_count */
};

struct st_volume_opts {
    const struct st_stripe *stripe;     /* copied */
    const struct st_volume_file *files; /* [spaces][stripe->dir_count], copied; file d of a space has st_stripe_file_bytes(stripe,
                                           d, bytes) */
    uint64_t bytes;                     /* of a space; multiple of ST_MOVER_ALIGN; may be 0 */
    uint32_t spaces;                    /* one behind the other, each dealt out over files of its own; 0: 1 */
    bool read_only;                     /* a write is E_INVAL */
    bool loose;                         /* of one file: transfers are aligned as the file demands, and may go beyond `bytes` */
};

/* Bytes of requests that succeeded; busy: time with at least one such request in flight. */
struct st_mover_counters {
    uint64_t bytes_read, bytes_written, busy_read_ns, busy_write_ns;
};

struct st_mover;

struct st_mover_opts {
    const struct st_io_ops *ops;
    struct st_io_opts io;                      /* queue_depth: per drive; 0: adapts to the drive */
    uint32_t drive_count;                      /* 1..ST_MOVER_DRIVES_MAX */
    const struct st_users *const *drive_users; /* [drive_count] borrowed until stop; NULL, or an entry NULL: alone */
    uint32_t block_bytes;
    void *region; /* borrowed until stop; may be NULL */
    uint64_t region_bytes;
    struct st_patience patience;
};

/** Start the thread, without volumes; it opens and owns the io method.  *registered: the region is registered with the kernel. */
strata_status st_mover_start(struct st_mover **out, const struct st_mover_opts *opts, bool *registered);
/** Finish everything submitted, then end the thread: by the deadline of opts->patience, unless the kernel lets nothing go.  NULL
 * is fine. */
void st_mover_stop(struct st_mover *mover);

/** Make a volume known, by the lowest number that is free; returns when it can be used.  Not from done().
 *  E_INVAL: too many files; E_NOMEM; E_IO: the method refuses a file.  On failure nothing has changed. */
strata_status st_mover_add(struct st_mover *mover, const struct st_volume_opts *opts, uint32_t *volume);
/** Put other files in a volume's place: it keeps its number.  None of its transfers may be in flight.  On failure, as
 *  st_mover_add()'s, it stays as it was; otherwise the old descriptors can be closed. */
strata_status st_mover_replace(struct st_mover *mover, uint32_t volume, const struct st_volume_opts *opts);
/** Forget a volume, none of whose transfers may be in flight; its descriptors can be closed.  Not from done(). */
void st_mover_remove(struct st_mover *mover, uint32_t volume);

/** Start a transfer.  OK: done() will be called exactly once, on the I/O thread, with the sentence of its first failure in
 *  strata_last_error(); after a failure no further requests of the transfer are issued.  Never blocks on I/O.  Reads start in the
 *  order of submission, and so do writes; while both wait, they share the queue.  A sync covers the volume's writes that had
 * ended when it was submitted; its failure is final (nvme/method/io.h). E_INVAL: no such volume, not aligned, outside the volume,
 * or a write to one that is read only; nothing was started. */
strata_status st_mover_submit(struct st_mover *mover, struct st_transfer *t);
/** Ask that a transfer end early, if it has begun and not ended; from done() of any transfer.  It ends with E_CANCELLED if a
 * request was stopped; else no further ones are issued, and `moved` says how far it came.  It may end during the call. */
void st_mover_cancel(struct st_mover *mover, struct st_transfer *t);

/** Counters of all volumes, also of those removed since. */
void st_mover_counters(struct st_mover *mover, struct st_mover_counters *out);
void st_mover_drive_counters(struct st_mover *mover, uint32_t drive, struct st_mover_counters *out);
/** Requests that may be in flight now, and live swaps that share the directory. */
void st_mover_drive_depth(struct st_mover *mover, uint32_t drive, uint32_t *queue_depth, uint32_t *holders);
/** The file that holds a byte of a volume, and the byte's offset there, for messages; borrowed until the volume is removed. */
const char *st_mover_place(struct st_mover *mover, uint32_t volume, uint64_t offset, uint64_t *file_offset);

#endif

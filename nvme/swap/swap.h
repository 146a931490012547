/* nvme/swap/swap.h - the swap space of one run: locked directories with preallocated files, and the thread that moves extents
 * between them and memory.
 *
 * An internal I/O thread does the work (nvme/mover/mover.h); any thread may call submit.  Layout on disk: DIR/strata-RUNID/ with
 * `lock` and, N being the directory's index, swap-N (scratch) and in a run that saves base-N and set-0-N, set-1-N, ...
 * (core/base/space.h).  Each of these spaces is a volume over the directories, in units of one block, in proportion to their
 * rates (nvme/mover/stripe.h).  All files are unlinked on close, and a later run sweeps those of a dead owner; a file that was
 * linked elsewhere, into a checkpoint, lives on there.  Several live runs may use one DIR, each with its own run directory.
 * Nothing that strata did not create is deleted.  Swaps of several processes in one directory divide its queue
 * (nvme/mover/users.h). */
#ifndef NVME_SWAP_SWAP_H
#define NVME_SWAP_SWAP_H

#include "core/base/space.h"
#include "nvme/mover/mover.h"
#include "strata/status.h"
#include <stdbool.h>
#include <stdint.h>

#define ST_SWAP_ALIGN    ST_MOVER_ALIGN
#define ST_SWAP_DIRS_MAX ST_STRIPE_DIRS_MAX
#define ST_SWAP_SETS_MAX 24u

struct st_swap;

struct st_swap_opts {
    const char *const *dirs; /* borrowed during the call */
    uint32_t dir_count;      /* 1..ST_SWAP_DIRS_MAX; "fake" only uses the number, which may be 0, and touches no disk; 0 with no
                                bytes at all: the swap takes no space and reads what is attached */
    const double *dir_rates; /* [dir_count] bytes/s, borrowed during the call; parts are in proportion; NULL: equal */
    uint64_t bytes[ST_SPACE_COUNT]; /* to reserve, of one set; multiples of ST_SWAP_ALIGN; a full disk shows here: E_NOSPC */
    uint32_t set_count;             /* at most ST_SWAP_SETS_MAX; 0: the run does not save, and there is only scratch */
    const char *method;             /* "auto", "uring", "aio", "threads", "fake" */
    uint32_t block_bytes;           /* request size, and unit of striping; 0: 1 MiB */
    uint32_t queue_depth;           /* requests in flight per directory; 0: starts at 32 and adapts to the device */
    bool unregistered;              /* as in st_io_opts, all three */
    bool poll_device;
    bool poll_kernel;
    struct st_patience patience;
    void *region; /* host arena to register, may be NULL */
    uint64_t region_bytes;
    uint64_t fake_seed;
    uint32_t fake_latency_us;
    uint64_t fake_bytes_per_second; /* reads and writes together; 0: no limit */
};

/* What the owner of a run says about its swap; the rest of st_swap_opts follows from the plan. */
struct st_nvme_opts {
    const char *dirs[ST_SWAP_DIRS_MAX]; /* borrowed, as are the other pointers */
    uint32_t dir_count;
    const double *dir_rates; /* from here on as in st_swap_opts */
    const char *method;
    uint32_t block_bytes, queue_depth;
    struct st_patience patience;
    uint64_t fake_seed;
    uint32_t fake_latency_us;
    uint64_t fake_bytes_per_second;
};

struct st_swap_info {
    char method[16];
    bool direct;     /* O_DIRECT is in use in all directories */
    bool registered; /* arena registered with the ring */
    uint32_t block_bytes;
    uint32_t queue_depth; /* the largest per-directory depth in use now */
    uint32_t dir_count;   /* number of files; with fake, files in memory */
};

/* One directory's part. */
struct st_swap_dir_info {
    const char *path;     /* of its scratch file; borrowed from the swap */
    uint64_t bytes;       /* of all its files */
    bool direct;          /* for all of them */
    uint32_t queue_depth; /* requests that may be in flight now: this swap's part of a shared queue */
    uint32_t holders;     /* live swaps that share the directory, this one included */
};

/** In each directory: sweep orphans, check free space, create and lock the run directory, reserve its part of all spaces and sets
 *  (posix_fallocate), open with O_DIRECT if statx or a trial read allows it; then start the I/O thread.  On failure nothing is
 *  left in any directory; the sentence names the directory at fault.
 *  E_INPUT: missing directory or not a directory; E_INVAL: an impossible size, rate or method; E_NOSPC; E_IO (read-only, ...);
 *  E_NOMEM; E_NOSYS (method). */
strata_status st_swap_open(struct st_swap **out, const struct st_swap_opts *opts);
/** Wait for everything submitted, stop the thread, and unlink the run directory.  NULL is fine. */
void st_swap_close(struct st_swap *swap);
/** As st_mover_submit(). */
strata_status st_swap_submit(struct st_swap *swap, struct st_transfer *t);
void st_swap_info(struct st_swap *swap, struct st_swap_info *out);
void st_swap_counters(struct st_swap *swap, struct st_mover_counters *out);
/** About one directory; index below st_swap_info's dir_count. */
void st_swap_dir_info(struct st_swap *swap, uint32_t index, struct st_swap_dir_info *out);
void st_swap_dir_counters(struct st_swap *swap, uint32_t index, struct st_mover_counters *out);
/** The file that holds a byte of a volume, and the byte's offset there, for messages; borrowed from the swap. */
const char *st_swap_place(struct st_swap *swap, uint32_t volume, uint64_t offset, uint64_t *file_offset);

/* Spaces and sets, for what saves and resumes: any thread.  Whoever calls sees to it that nobody else uses the set meanwhile. */

/** Number that transfers name a space by; `set` counts only for ST_SPACE_SET.  Scratch is 0; it never changes. */
uint32_t st_swap_volume(const struct st_swap *swap, enum st_space space, uint32_t set);
/** Which directory's file holds which unit of every space. */
const struct st_stripe *st_swap_stripe(const struct st_swap *swap);
/** Give a volume's file in directory `dir` another name.  *crossed: it cannot be linked there (another file system, one without
 *  links, too many links): copy it, from st_swap_fd().  E_NOSPC, E_IO: nothing was linked; E_NOSYS: fake. */
strata_status st_swap_link(struct st_swap *swap, uint32_t volume, uint32_t dir, int to_dir_fd, const char *name, bool *crossed);
/** Descriptor of that file, borrowed; opened for direct I/O where that works.  -1: fake. */
int st_swap_fd(const struct st_swap *swap, uint32_t volume, uint32_t dir);
/** Whether a set may be written: no checkpoint or other name shares its files, and nobody has locked them (flock) to read. */
bool st_swap_reusable(const struct st_swap *swap, uint32_t set);
/** Give a set new files, whose space is reserved; the volume keeps its number.  The old ones live on under the names that others
 *  gave them.  On failure the set holds what it held, is not reusable, and this can be tried again: E_NOSPC, E_IO, E_NOMEM. */
strata_status st_swap_renew(struct st_swap *swap, uint32_t set);
/** Make a checkpoint's files a volume that can only be read: one file per unit of opts->stripe, each open for reading; direct I/O
 *  is switched on where it works.  The drives of opts are not looked at.  E_NOSYS: fake; else as st_mover_add(). */
strata_status st_swap_attach(struct st_swap *swap, const struct st_volume_opts *opts, uint32_t *volume);
/** Forget it: its descriptors can be closed. */
void st_swap_detach(struct st_swap *swap, uint32_t volume);

/** Remove run directories of dead owners under `dir`; returns how many were removed. */
uint32_t st_swap_sweep(const char *dir);
/** Call `seen` with the path of each run directory under `dir`, and whether its owner lives. */
void st_swap_leftovers(const char *dir, void (*seen)(void *ctx, const char *path, bool live), void *ctx);
/** Bytes that this process may still use on the file system of dir; E_INPUT if it is not a directory. */
strata_status st_swap_free_bytes(const char *dir, uint64_t *out);
/** Largest swap that these directories can hold when divided as in st_swap_opts (block_bytes and rates); directories on one file
 *  system share its free bytes.  With one directory: st_swap_free_bytes().  E_INPUT: one is not a directory.
 *  @param tightest  out, if not NULL: index of the directory whose free bytes set the limit */
strata_status st_swap_room(const char *const *dirs, uint32_t dir_count, const double *dir_rates, uint32_t block_bytes,
                           uint64_t *out, uint32_t *tightest);

/* nvme/measure/probe.c: a short measurement on a temporary file of `bytes`, which is removed afterwards.  Rates in bytes/s. */
struct st_probe_rates {
    double read, write, mixed;
    double latency; /* seconds of a small read that has the drives to itself */
};
struct st_probe_opts {
    const char *dir, *method;          /* borrowed during the call; method NULL: "auto" */
    const char *const *dirs;           /* several directories at once instead of dir; borrowed */
    uint32_t dir_count;                /* of dirs; 0: dir */
    const double *dir_rates;           /* as in st_swap_opts */
    uint64_t bytes;                    /* of the file; rounded down to blocks, at least two */
    double seconds_max;                /* of all three phases together; each moves at least one block */
    uint32_t block_bytes, queue_depth; /* 0: as in st_swap_opts */
};
strata_status st_probe_run(const struct st_probe_opts *opts, struct st_probe_rates *out);
/** The same with the default block and depth. */
strata_status st_probe_rates(const char *dir, const char *method, uint64_t bytes, double seconds_max, struct st_probe_rates *out);

#endif

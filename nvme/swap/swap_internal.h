/* nvme/swap/swap_internal.h - the parts a swap is made of; not for users of nvme/swap/swap.h.
 *
 *   swap_dir.c     the locked run directory: create, remove, sweep
 *   swap_file.c    one file in it: preallocated, direct if the file system allows it
 *   swap_space.c   whether the directories have room
 *   swap_litter.c  remembers paths for a dying process
 *   swap_stripe.c  which directory holds what
 *   swap_users.c   how many swaps share a directory
 *   swap_depth.c   how many requests a device wants
 *   swap_mover.c   the I/O thread that cuts transfers into requests
 *   swap.c         puts them together */
#ifndef NVME_SWAP_SWAP_INTERNAL_H
#define NVME_SWAP_SWAP_INTERNAL_H

#include "nvme/method/io.h"
#include "nvme/swap/swap.h"
#include "nvme/swap/swap_stripe.h"
#include "nvme/swap/swap_users.h"
#include <limits.h>

#define ST_SWAP_LOCK_NAME "lock"
#define ST_SWAP_FILE_NAME "swap-" /* followed by the directory's index */

#define ST_SWAP_BLOCK_DEFAULT (1u << 20)
#define ST_SWAP_PATH_MAX      (PATH_MAX + 16) /* of a file in a run directory */

/* DIR/strata-RUNID, locked by flock for as long as the owner lives.  Removed through descriptors, since DIR may be renamed
 * meanwhile. */
struct st_run_dir {
    char path[PATH_MAX]; /* absolute, for sentences */
    char name[32];
    int parent_fd, dir_fd; /* -1: none */
    int lock_fd;           /* of its file `lock`; -1: none */
    bool made;
};
#define ST_RUN_DIR_NONE ((struct st_run_dir){.parent_fd = -1, .dir_fd = -1, .lock_fd = -1})

/** Create and lock a run directory under `dir`.  E_INPUT: missing, or not a directory; E_IO, E_NOSPC.
 *  On failure nothing is left behind; st_run_dir_remove() is fine on the result either way. */
strata_status st_run_dir_create(struct st_run_dir *run, const char *dir);
/** Unlink the known files, the lock file and the directory, but keep the locks. */
void st_run_dir_clear(struct st_run_dir *run);
/** Release the locks. */
void st_run_dir_close(struct st_run_dir *run);
/** Both. */
void st_run_dir_remove(struct st_run_dir *run);

/** Create swap-`index` in `run`, reserve `bytes` on the disk and choose direct or buffered I/O. */
strata_status st_swap_file_create(int *out_fd, bool *out_direct, const struct st_run_dir *run, uint32_t index, uint64_t bytes);

/** E_NOSPC, naming the directory, if one has no room for its part of `bytes`; checked before anything is created. */
strata_status st_swap_check_room(const char *const *dirs, const struct st_stripe *stripe, uint64_t bytes);

/** Remember a run directory for st_swap_unlink_all(); -1: no place left.  Both within st_ending_hold(). */
int st_litter_add(const struct st_run_dir *run, uint32_t index, const struct st_users *users);
void st_litter_remove(int index);

struct st_mover;

struct st_mover_file {
    char path[ST_SWAP_PATH_MAX]; /* for error sentences */
    int fd;                      /* borrowed until stop; -1 with fake */
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
void st_mover_counters(struct st_mover *mover, struct st_swap_counters *out);
/** One file's. */
void st_mover_file_counters(struct st_mover *mover, uint32_t file, struct st_swap_counters *out);
/** Requests that may be in flight now, and live swaps that share the directory. */
void st_mover_file_depth(struct st_mover *mover, uint32_t file, uint32_t *queue_depth, uint32_t *holders);

#endif

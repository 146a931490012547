/* nvme/swap/swap_internal.h - the parts a swap is made of; not for users of nvme/swap/swap.h.
 *
 *   swap_dir.c     the locked run directory: create, remove, sweep
 *   swap_file.c    one file in it: preallocated, direct if the file system allows it
 *   swap_space.c   whether the directories have room
 *   swap_litter.c  remembers paths for a dying process
 *   swap.c         puts them together */
#ifndef NVME_SWAP_SWAP_INTERNAL_H
#define NVME_SWAP_SWAP_INTERNAL_H

#include "nvme/mover/stripe.h"
#include "nvme/mover/users.h"
#include "nvme/swap/swap.h"
#include <limits.h>

#define ST_SWAP_LOCK_NAME "lock"
#define ST_SWAP_FILE_NAME "swap-" /* followed by the directory's index */

#define ST_SWAP_BLOCK_DEFAULT (1u << 20)

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

#endif

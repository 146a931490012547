/* nvme/swap_parts.h - the parts a swap is made of; not for users of nvme/swap.h.
 *
 *   swap_dir.c    the locked run directory: create, remove, sweep
 *   swap_file.c   one file in it: really allocated, direct where the file system allows
 *   swap_mover.c  the I/O thread that cuts transfers into requests
 *   swap.c        puts them together, and remembers paths for a dying process */
#ifndef NVME_SWAP_PARTS_H
#define NVME_SWAP_PARTS_H

#include "nvme/io.h"
#include "nvme/swap.h"
#include <limits.h>

#define ST_SWAP_LOCK_NAME "lock"
#define ST_SWAP_FILE_NAME "swap-" /* and the directory's index */

/* DIR/strata-RUNID, locked by flock on its file `lock` for as long as the owner lives. */
struct st_run_dir {
    char path[PATH_MAX]; /* absolute */
    int dir_fd;          /* -1: none */
    int lock_fd;         /* holds the lock; -1: none */
    bool made;
};

/** Create and lock a run directory under `dir`.  E_INVAL: missing, or not a directory; E_IO, E_NOSPC.
 *  On failure nothing is left behind; st_run_dir_remove() is fine on the result either way. */
strata_status st_run_dir_create(struct st_run_dir *run, const char *dir);
/** Unlink the files we know, the lock and the directory; release the lock. */
void st_run_dir_remove(struct st_run_dir *run);

/** Create swap-0 in `run`, reserve `bytes` on the disk and choose direct or buffered I/O. */
strata_status st_swap_file_create(int *out_fd, bool *out_direct, const struct st_run_dir *run, uint64_t bytes);

struct st_mover;

struct st_mover_opts {
    const struct st_io_ops *ops;
    struct st_io_opts io;
    const char *path; /* for error sentences; copied */
    int fd;           /* borrowed until stop; -1 with fake */
    uint64_t bytes;   /* of the file */
    uint32_t block_bytes;
    void *region; /* borrowed until stop; may be NULL */
    uint64_t region_bytes;
};

/** Start the thread; it opens the io method, which belongs to it.  *registered: the region is pinned. */
strata_status st_mover_start(struct st_mover **out, const struct st_mover_opts *opts, bool *registered);
/** Finish all that was submitted, then end the thread.  NULL is fine. */
void st_mover_stop(struct st_mover *mover);
void st_mover_submit(struct st_mover *mover, struct st_transfer *t);
void st_mover_counters(struct st_mover *mover, struct st_swap_counters *out);

#endif

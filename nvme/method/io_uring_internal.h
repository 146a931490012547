/* nvme/method/io_uring_internal.h - shared by the files of the io_uring method; the one home of liburing.h. */
#ifndef NVME_METHOD_IO_URING_INTERNAL_H
#define NVME_METHOD_IO_URING_INTERNAL_H

#include "nvme/method/io_method.h"

#include <liburing.h>
#include <stdatomic.h>

#define ST_URING_PIECES_MAX 1024u /* registered pieces of at most 1 GiB: UIO_MAXIOV */

struct st_io {
    struct io_uring ring;
    struct st_io_opts opts; /* in effect */
    bool ring_open;
    bool files_registered;
    bool reaping;         /* in reap(): requests that done() submits are started together, later */
    bool woken;           /* wake() seen, not yet reported by a reap() */
    bool wake_once;       /* the kernel has no multishot poll */
    int wake_fd;          /* eventfd; written by any thread */
    atomic_bool wake_due; /* set by wake(), which then writes wake_fd; cleared when that is seen */
    uint32_t busy;
    struct st_io_req **taken; /* [queue_depth] the requests taken and not done; each knows its place */
    uint32_t refusals;        /* of io_uring_enter, in a row */
    int broken;               /* errno of the permanent refusal; 0: none */
    int end_pipe[2];          /* the ring's table of files also holds the write end; -1: not created */
    bool unannounced;         /* SQEs were filled since the last call that was not refused */
    struct st_io_files files;
    char *region; /* registered memory, cut into pieces of ST_IO_BYTES_MAX; NULL: none */
    uint64_t region_bytes;
    struct st_io_req *parked; /* in no order */
    uint32_t parked_count;
    bool replacing;           /* staged requests are being parked */
    struct st_io_req *synced; /* syncs done by fsync(2), whose done() is due; in no order */
};

/** Make a ring for the current io->opts.  0, or -errno. */
int st_uring_ring_best(struct st_io *io, struct io_uring *ring);
/** Open io->ring; clears the poll options in io->opts that the kernel refuses.  E_NOSYS: no io_uring here; E_NOMEM. */
strata_status st_uring_ring_open(struct st_io *io);
void st_uring_ring_exit(struct io_uring *ring, bool files_registered, bool region_registered);
/** Register memory from base on, at most ST_URING_PIECES_MAX * ST_IO_BYTES_MAX.  0, or -errno. */
int st_uring_register_pieces(struct io_uring *ring, char *base, uint64_t bytes);
/** Register the table of files: the first ST_IO_FILES_DEFAULT of io->files and the write end of io->end_pipe.  E_NOSYS. */
strata_status st_uring_register_files(struct st_io *io);

/* The kernel allows no larger table than descriptors (ulimit -n): files beyond it are looked up with each request. */
static inline bool st_uring_is_registered(const struct st_io *io, uint32_t file)
{
    return io->files_registered && file < ST_IO_FILES_DEFAULT;
}

#endif

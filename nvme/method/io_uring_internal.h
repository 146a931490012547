/* nvme/method/io_uring_internal.h - what the files of the io_uring method share; the one home of liburing.h. */
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
    bool reaping;         /* in reap(): submits of done() are entered together, later */
    bool woken;           /* wake() seen, not yet reported by a reap() */
    bool wake_once;       /* the kernel has no multishot poll */
    int wake_fd;          /* eventfd; written by any thread */
    atomic_bool wake_due; /* set by wake(), which then writes wake_fd; cleared where that is seen */
    uint32_t busy;
    struct st_io_req **taken; /* [queue_depth] the busy ones; each knows its place */
    uint32_t refusals;        /* of io_uring_enter, in a row */
    int broken;               /* errno of the refusal that lasts; 0: none */
    int end_pipe[2];          /* the write end is in the ring's table, too; -1: not made */
    bool unannounced;         /* SQEs were filled since the last that was not refused */
    struct st_io_files files;
    char *region; /* registered memory, cut into pieces of ST_IO_BYTES_MAX; NULL: none */
    uint64_t region_bytes;
    struct st_io_req *parked; /* in no order */
    uint32_t parked_count;
    bool replacing; /* what is staged is parked */
};

/** A ring for io->opts as they are.  0, or -errno. */
int st_uring_ring_best(struct st_io *io, struct io_uring *ring);
/** io->ring; polls that the kernel refuses leave io->opts.  E_NOSYS: no io_uring here; E_NOMEM. */
strata_status st_uring_ring_open(struct st_io *io);
void st_uring_ring_exit(struct io_uring *ring, bool files_registered, bool region_registered);
/** Memory from base on, at most ST_URING_PIECES_MAX * ST_IO_BYTES_MAX.  0, or -errno. */
int st_uring_register_pieces(struct io_uring *ring, char *base, uint64_t bytes);
/** The table of io->files, which stand in it from then on, and the end of io->end_pipe.  E_NOSYS. */
strata_status st_uring_register_files(struct st_io *io);

#endif

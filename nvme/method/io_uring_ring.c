/* nvme/method/io_uring_ring.c - makes the ring that the kernel and the options allow, with its tables of memory and files. */
#include "nvme/method/io_uring_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define KERNEL_IDLE_MS 10u /* without requests, before the kernel's SQPOLL thread sleeps */

static int ring_init(struct st_io *io, struct io_uring *ring, unsigned flags)
{
    struct io_uring_params params = {.flags = flags | (io->opts.poll_device ? IORING_SETUP_IOPOLL : 0),
                                     .sq_thread_idle = KERNEL_IDLE_MS};
    const int rc = (int)st_fault("nvme.ring", 0);

    return rc < 0 ? rc : io_uring_queue_init_params(io->opts.queue_depth + 1, ring, &params);
}

/* Makes the best ring that this kernel has for the options: with the first set of flags that it knows. */
int st_uring_ring_best(struct st_io *io, struct io_uring *ring)
{
    static const unsigned own[] = {
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG, /* Linux 6.1 */
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,  /* 6.0 */
        0,
    };
    static const unsigned thread[] = {IORING_SETUP_SQPOLL | IORING_SETUP_SINGLE_ISSUER, IORING_SETUP_SQPOLL};
    const unsigned *flags = io->opts.poll_kernel ? thread : own;
    const size_t count = io->opts.poll_kernel ? sizeof(thread) / sizeof(thread[0]) : sizeof(own) / sizeof(own[0]);
    int rc = -EINVAL;

    for (size_t i = 0; i < count && rc == -EINVAL; i++)
        rc = ring_init(io, ring, flags[i]);
    if (rc < 0)
        return rc;
    (void)io_uring_register_ring_fd(ring); /* Linux 5.18; saves a look-up per call */
    return 0;
}

int st_uring_register_pieces(struct io_uring *ring, char *base, uint64_t bytes)
{
    const uint32_t count = (uint32_t)((bytes + ST_IO_BYTES_MAX - 1) / ST_IO_BYTES_MAX);
    struct iovec pieces[ST_URING_PIECES_MAX];
    const int rc = (int)st_fault("nvme.register", 0);

    for (uint32_t i = 0; i < count; i++) {
        const uint64_t at = (uint64_t)i * ST_IO_BYTES_MAX;

        pieces[i].iov_base = base + at;
        pieces[i].iov_len = bytes - at < ST_IO_BYTES_MAX ? bytes - at : ST_IO_BYTES_MAX;
    }
    return rc < 0 ? rc : io_uring_register_buffers(ring, pieces, count);
}

/* Without the table the kernel looks up a descriptor per request; nothing else changes. */
strata_status st_uring_register_files(struct st_io *io)
{
    int fds[ST_IO_FILES_DEFAULT + 1], rc;

    for (uint32_t i = 0; i < ST_IO_FILES_DEFAULT; i++)
        fds[i] = io->files.first[i].fd;
    fds[ST_IO_FILES_DEFAULT] = io->end_pipe[1];
    io->files_registered = !io->opts.unregistered && st_fault("nvme.files", 0) >= 0 &&
                           io_uring_register_files(&io->ring, fds, ST_IO_FILES_DEFAULT + 1) == 0;
    rc = io->files_registered ? 0 : io_uring_register_files(&io->ring, &io->end_pipe[1], 1);
    return rc == 0 ? STRATA_OK
                   : st_error(STRATA_E_NOSYS, "io_uring refuses to register files here: %s: use io method aio or threads",
                              strerror(-rc));
}

/* The kernel destroys a ring some time after it is closed.  Unregistering first releases files and memory right away. */
void st_uring_ring_exit(struct io_uring *ring, bool files_registered, bool region_registered)
{
    if (files_registered)
        (void)io_uring_unregister_files(ring);
    if (region_registered)
        (void)io_uring_unregister_buffers(ring);
    io_uring_queue_exit(ring);
}

static strata_status ring_error(const struct st_io *io, int rc)
{
    const uint32_t depth = io->opts.queue_depth;

    if (rc == -ENOSYS || rc == -EPERM || rc == -EACCES || rc == -EINVAL)
        return st_error(STRATA_E_NOSYS, "io_uring is not usable here: %s: use io method aio or threads", strerror(-rc));
    if (rc == -ENOMEM) /* newer kernels count the ring itself as locked memory */
        return st_error(STRATA_E_NOMEM, "io_uring with queue depth %" PRIu32 ": %s: ulimit -l, or io method aio or threads",
                        depth, strerror(ENOMEM));
    return st_error_errno(-rc, "io_uring with queue depth %" PRIu32, depth);
}

/* Drops the requested polls one after the other as the kernel refuses them. */
strata_status st_uring_ring_open(struct st_io *io)
{
    int rc = st_uring_ring_best(io, &io->ring);

    if (rc < 0 && io->opts.poll_kernel) {
        st_log(ST_LOG_NOTICE,
               "io_uring: the kernel refuses a thread that takes requests (SQPOLL): %s; transfers continue without it",
               strerror(-rc));
        io->opts.poll_kernel = false;
        rc = st_uring_ring_best(io, &io->ring);
    }
    if (rc < 0 && io->opts.poll_device) {
        st_log(ST_LOG_NOTICE, "io_uring: the kernel refuses a polled ring (IOPOLL): %s; transfers continue without polling",
               strerror(-rc));
        io->opts.poll_device = false;
        rc = st_uring_ring_best(io, &io->ring);
    }
    if (rc < 0)
        return ring_error(io, rc);
    io->ring_open = true;
    return STRATA_OK;
}

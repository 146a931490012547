/* nvme/io_uring.c - the I/O contract over io_uring; the one home of liburing.h.
 *
 * The ring belongs to the thread that opens it (SINGLE_ISSUER).  busy counts requests taken and not done; SQEs cannot run out
 * because the ring holds depth + 1 of them, the one more being the poll that wake() completes. */
#include "nvme/io_method.h"

#include "core/error.h"
#include "core/fault.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define REAP_BATCH   32u   /* CQEs looked at per peek */
#define PIECES_MAX   1024u /* registered pieces of at most 1 GiB: UIO_MAXIOV */
#define REFUSALS_MAX 2000u /* io_uring_enter refusals in a row, 1 ms apart, before the ring counts as broken */

struct st_io {
    struct io_uring ring;
    bool ring_open;
    bool files_registered;
    bool reaping; /* in reap(): submits of done() are entered together, later */
    bool woken;   /* wake() seen, not yet reported by a reap() */
    int wake_fd;  /* eventfd; written by any thread */
    uint32_t depth, busy;
    uint32_t refusals; /* of io_uring_enter, in a row */
    uint32_t file_count;
    int fds[ST_IO_FILES_MAX];
    char *region; /* registered memory, cut into pieces of ST_IO_BYTES_MAX; NULL: none */
    uint64_t region_bytes;
};

static void stage_wake(struct st_io *io)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&io->ring);

    assert(sqe != NULL);
    io_uring_prep_poll_add(sqe, io->wake_fd, POLLIN);
    io_uring_sqe_set_data(sqe, NULL);
}

/* Index of the registered piece that holds all of [buf, buf + bytes), or -1. */
static int piece_index(const struct st_io *io, const char *buf, uint32_t bytes)
{
    uint64_t at;

    if (io->region == NULL || buf < io->region || buf + bytes > io->region + io->region_bytes)
        return -1;
    at = (uint64_t)(buf - io->region);
    return at / ST_IO_BYTES_MAX == (at + bytes - 1) / ST_IO_BYTES_MAX ? (int)(at / ST_IO_BYTES_MAX) : -1;
}

static void stage(struct st_io *io, struct st_io_req *req)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&io->ring);
    const struct st_io_piece part = st_io_remaining(req);
    const int piece = piece_index(io, part.buf, part.bytes);
    const int fd = io->files_registered ? (int)req->file : io->fds[req->file];

    assert(sqe != NULL);
    if (req->op == ST_IO_READ && piece >= 0)
        io_uring_prep_read_fixed(sqe, fd, part.buf, part.bytes, part.offset, piece);
    else if (req->op == ST_IO_READ)
        io_uring_prep_read(sqe, fd, part.buf, part.bytes, part.offset);
    else if (piece >= 0)
        io_uring_prep_write_fixed(sqe, fd, part.buf, part.bytes, part.offset, piece);
    else
        io_uring_prep_write(sqe, fd, part.buf, part.bytes, part.offset);
    if (io->files_registered)
        io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data(sqe, req);
}

/* Offer staged SQEs to the kernel and wait for `wait` completions.  A refusal leaves them staged; no caller can act on a ring
 * that goes on refusing. */
static void enter(struct st_io *io, uint32_t wait)
{
    int rc = (int)st_fault("nvme.enter", 0);

    if (rc == 0)
        rc = io_uring_submit_and_wait(&io->ring, wait);
    if (rc >= 0) {
        io->refusals = 0;
        return;
    }
    if (rc == -EINTR)
        return;
    if (++io->refusals > REFUSALS_MAX)
        st_fatal("io_uring_enter: %s", strerror(-rc));
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void take_wake(struct st_io *io)
{
    uint64_t value;

    while (read(io->wake_fd, &value, sizeof(value)) < 0 && errno == EINTR)
        ;
    io->woken = true;
    stage_wake(io);
}

/* Returns 1 if the completion ended a request. */
static uint32_t complete(struct st_io *io, struct st_io_req *req, int32_t result)
{
    strata_status st;

    if (req == NULL) {
        take_wake(io);
        return 0;
    }
    if (!st_io_advance(req, result, &st)) {
        stage(io, req);
        return 0;
    }
    io->busy--;
    req->done(req, st);
    return 1;
}

/* Takes what the kernel has completed, without waiting.  Returns requests ended. */
static uint32_t drain(struct st_io *io)
{
    struct io_uring_cqe *cqes[REAP_BATCH];
    uint32_t count, ended = 0;

    do {
        count = io_uring_peek_batch_cqe(&io->ring, cqes, REAP_BATCH);
        for (uint32_t i = 0; i < count; i++) {
            struct st_io_req *req = io_uring_cqe_get_data(cqes[i]);
            const int32_t result = cqes[i]->res; /* read first: after cqe_seen the slot is reused */

            io_uring_cqe_seen(&io->ring, cqes[i]);
            ended += complete(io, req, result);
        }
    } while (count == REAP_BATCH);
    return ended;
}

static strata_status uring_reap(struct st_io *io, uint32_t min_count)
{
    uint32_t ended;

    io->reaping = true;
    ended = drain(io);
    while (ended < min_count && io->busy > 0 && !io->woken) {
        enter(io, 1);
        ended += drain(io);
    }
    io->woken = false;
    io->reaping = false;
    if (io_uring_sq_ready(&io->ring) > 0)
        enter(io, 0);
    return STRATA_OK;
}

static strata_status uring_submit(struct st_io *io, struct st_io_req **reqs, uint32_t count)
{
    const int64_t refused = st_fault("nvme.submit", 0);

    if (refused < 0)
        return st_error_errno((int)-refused, "io_uring submit of %" PRIu32 " requests", count);
    if (count > io->depth - io->busy)
        return STRATA_E_BUSY;
    for (uint32_t i = 0; i < count; i++) {
        st_io_begin(reqs[i], io->file_count);
        stage(io, reqs[i]);
    }
    io->busy += count;
    if (!io->reaping)
        enter(io, 0);
    return STRATA_OK;
}

static void uring_wake(struct st_io *io)
{
    const uint64_t one = 1;

    while (write(io->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

static strata_status uring_add_file(struct st_io *io, int fd, uint64_t bytes, uint32_t *index)
{
    const uint32_t at = io->file_count;

    (void)bytes;
    if (at == ST_IO_FILES_MAX)
        return st_error(STRATA_E_INVAL, "an io takes at most %u files", ST_IO_FILES_MAX);
    if (io->files_registered) {
        int rc = (int)st_fault("nvme.files", 0);

        if (rc == 0)
            rc = io_uring_register_files_update(&io->ring, at, &fd, 1);
        if (rc < 0)
            return st_error_errno(-rc, "descriptor %d could not be registered with io_uring", fd);
    }
    io->fds[at] = fd;
    io->file_count++;
    *index = at;
    return STRATA_OK;
}

static strata_status register_error(int err, uint64_t bytes)
{
    struct rlimit limit = {0};
    char reason[128];

    getrlimit(RLIMIT_MEMLOCK, &limit);
    return st_error(STRATA_E_NOMEM,
                    "%" PRIu64 " bytes could not be registered with io_uring: %s (RLIMIT_MEMLOCK is %" PRIu64
                    " bytes: ulimit -l unlimited)",
                    bytes, strerror_r(err, reason, sizeof(reason)), (uint64_t)limit.rlim_cur);
}

static strata_status uring_register_region(struct st_io *io, void *base, uint64_t bytes)
{
    const uint64_t used = bytes < (uint64_t)PIECES_MAX * ST_IO_BYTES_MAX ? bytes : (uint64_t)PIECES_MAX * ST_IO_BYTES_MAX;
    const uint32_t count = (uint32_t)((used + ST_IO_BYTES_MAX - 1) / ST_IO_BYTES_MAX);
    struct iovec pieces[PIECES_MAX];
    int rc;

    if (io->region != NULL)
        return st_error(STRATA_E_BUSY, "a region is registered already");
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t at = (uint64_t)i * ST_IO_BYTES_MAX;

        pieces[i].iov_base = (char *)base + at;
        pieces[i].iov_len = used - at < ST_IO_BYTES_MAX ? used - at : ST_IO_BYTES_MAX;
    }
    rc = (int)st_fault("nvme.register", 0);
    if (rc == 0)
        rc = io_uring_register_buffers(&io->ring, pieces, count);
    if (rc < 0)
        return register_error(-rc, bytes);
    io->region = base;
    io->region_bytes = used;
    return STRATA_OK;
}

static void uring_close(struct st_io *io)
{
    if (io == NULL)
        return;
    assert(io->busy == 0);
    if (io->ring_open)
        io_uring_queue_exit(&io->ring);
    if (io->wake_fd >= 0)
        close(io->wake_fd);
    free(io);
}

static int ring_init(struct st_io *io, unsigned flags)
{
    int rc = (int)st_fault("nvme.ring", 0);

    return rc < 0 ? rc : io_uring_queue_init(io->depth + 1, &io->ring, flags);
}

static strata_status open_ring(struct st_io *io)
{
    int rc = ring_init(io, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG);

    if (rc == -EINVAL) /* before Linux 6.1 */
        rc = ring_init(io, 0);
    if (rc == -ENOSYS || rc == -EPERM || rc == -EACCES || rc == -EINVAL)
        return st_error(STRATA_E_NOSYS, "io_uring is not usable here: %s: use io method threads", strerror(-rc));
    if (rc == -ENOMEM) /* newer kernels count the ring itself as locked memory */
        return st_error(STRATA_E_NOMEM, "io_uring with queue depth %" PRIu32 ": %s: ulimit -l, or io method threads", io->depth,
                        strerror(ENOMEM));
    if (rc < 0)
        return st_error_errno(-rc, "io_uring with queue depth %" PRIu32, io->depth);
    io->ring_open = true;
    return STRATA_OK;
}

static strata_status open_wake(struct st_io *io)
{
    const int refused = (int)st_fault("nvme.eventfd", 0);

    io->wake_fd = refused < 0 ? -1 : eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (io->wake_fd < 0)
        return st_error_errno(refused < 0 ? -refused : errno, "eventfd: see ulimit -n");
    stage_wake(io);
    return STRATA_OK;
}

/* Without it descriptors are looked up per request; nothing else changes. */
static void register_file_table(struct st_io *io)
{
    for (uint32_t i = 0; i < ST_IO_FILES_MAX; i++)
        io->fds[i] = -1;
    io->files_registered = st_fault("nvme.files", 0) >= 0 && io_uring_register_files(&io->ring, io->fds, ST_IO_FILES_MAX) == 0;
}

static strata_status uring_open(struct st_io **out, const struct st_io_opts *opts)
{
    struct st_io *io;
    strata_status st;

    if ((st = st_io_check_depth(opts->queue_depth)) != STRATA_OK)
        return st;
    if ((st = st_io_alloc((void **)&io, "io_uring", 1, sizeof(*io))) != STRATA_OK)
        return st;
    io->wake_fd = -1;
    io->depth = opts->queue_depth;
    if ((st = open_ring(io)) != STRATA_OK)
        goto fail;
    register_file_table(io);
    if ((st = open_wake(io)) != STRATA_OK)
        goto fail;
    *out = io;
    return STRATA_OK;

fail:
    uring_close(io);
    return st;
}

const struct st_io_ops st_io_uring_ops = {
    .name = "uring",
    .open = uring_open,
    .close = uring_close,
    .add_file = uring_add_file,
    .submit = uring_submit,
    .reap = uring_reap,
    .wake = uring_wake,
    .register_region = uring_register_region,
};

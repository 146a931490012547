/* nvme/method/io_uring.c - the I/O contract over io_uring; io_uring_ring.c makes the ring.
 *
 * The ring belongs to the thread that opens it (SINGLE_ISSUER).  `busy` counts requests taken and not done.  `parked` holds those
 * of them that are not in the ring, because it cannot poll their device and is about to be replaced by a ring that does not poll.
 * If the kernel refuses io_uring_enter permanently (`broken`), the ring is destroyed, and the requests end only after that, since
 * the kernel may write to their memory until its last request is over.  The kernel signals this by releasing a pipe's write end
 * that is in the ring's table of files. wake() writes an eventfd, which completes a poll request in the ring.  A ring with IOPOLL
 * takes only transfers, no poll requests and no syncs: there reap() never blocks in the kernel and checks wake_due, and the
 * owner's thread calls fsync(2). */
#include "nvme/method/io_uring_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/system/clock.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define REAP_BATCH    32u /* CQEs looked at per peek */
#define NS_PER_SECOND 1000000000u

/* user_data of SQEs that are not requests */
static char wake_tag, cancel_tag;

/* After a refusal the staged SQEs stay staged; a permanent refusal marks the ring broken, and reap() then ends it. */
static void entered(struct st_io *io, int rc)
{
    if (rc >= 0 || rc == -ETIME) {
        io->refusals = 0;
        io->unannounced =
            io_uring_sq_ready(&io->ring) > 0 && !io->opts.poll_kernel; /* with SQPOLL the kernel's thread takes them */
        return;
    }
    if (st_again(rc, &io->refusals))
        return;
    io->refusals++;
    if (st_io_refused_for_good(-rc, rc == -EINTR ? io->refusals - ST_EINTR_MAX : io->refusals)) {
        io->broken = -rc;
        return;
    }
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* Offer staged SQEs to the kernel and wait for `wait` completions. */
static void enter(struct st_io *io, uint32_t wait)
{
    const int rc = (int)st_fault("nvme.enter", 0);

    entered(io, rc < 0 ? rc : io_uring_submit_and_wait(&io->ring, wait));
}

static struct timespec time_left(uint64_t deadline_ns)
{
    const uint64_t now = st_clock_ns(), ns = deadline_ns > now ? deadline_ns - now : 0;

    return (struct timespec){.tv_sec = (time_t)(ns / NS_PER_SECOND), .tv_nsec = (long)(ns % NS_PER_SECOND)};
}

/* The ring has more entries than there are requests in flight, but cancels or a slow kernel thread can still use them up.  NULL:
 * the ring is broken. */
static struct io_uring_sqe *next_sqe(struct st_io *io)
{
    struct io_uring_sqe *sqe = NULL;

    while (io->broken == 0 && (sqe = io_uring_get_sqe(&io->ring)) == NULL) {
        enter(io, 0);
        if (io->opts.poll_kernel)
            (void)io_uring_sqring_wait(&io->ring);
    }
    io->unannounced = true;
    return sqe;
}

static void stage_wake(struct st_io *io)
{
    struct io_uring_sqe *sqe;

    if (io->opts.poll_device)
        return;
    if ((sqe = next_sqe(io)) == NULL)
        return;
    if (io->wake_once)
        io_uring_prep_poll_add(sqe, io->wake_fd, POLLIN);
    else
        io_uring_prep_poll_multishot(sqe, io->wake_fd, POLLIN);
    io_uring_sqe_set_data(sqe, &wake_tag);
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

static void park(struct st_io *io, struct st_io_req *req)
{
    req->next = io->parked;
    io->parked = req;
    io->parked_count++;
}

static void sync_here(struct st_io *io, struct st_io_req *req)
{
    req->result = st_result(fsync(st_io_file_fd(&io->files, req->file)));
    req->next = io->synced;
    io->synced = req;
}

static void prepare(const struct st_io *io, struct io_uring_sqe *sqe, const struct st_io_req *req)
{
    const struct st_io_piece part = st_io_remaining(req);
    const int piece = piece_index(io, part.buf, part.bytes);
    const bool registered = st_uring_is_registered(io, req->file);
    const int fd = registered ? (int)req->file : st_io_file_fd(&io->files, req->file);

    if (req->op == ST_IO_SYNC)
        io_uring_prep_fsync(sqe, fd, 0);
    else if (req->op == ST_IO_READ && piece >= 0)
        io_uring_prep_read_fixed(sqe, fd, part.buf, part.bytes, part.offset, piece);
    else if (req->op == ST_IO_READ)
        io_uring_prep_read(sqe, fd, part.buf, part.bytes, part.offset);
    else if (piece >= 0)
        io_uring_prep_write_fixed(sqe, fd, part.buf, part.bytes, part.offset, piece);
    else
        io_uring_prep_write(sqe, fd, part.buf, part.bytes, part.offset);
    if (registered)
        io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
}

static void stage(struct st_io *io, struct st_io_req *req)
{
    struct io_uring_sqe *sqe;

    if (io->replacing) {
        park(io, req);
    } else if (req->op == ST_IO_SYNC && io->opts.poll_device) {
        sync_here(io, req);
    } else if ((sqe = next_sqe(io)) != NULL) {
        prepare(io, sqe, req);
        io_uring_sqe_set_data(sqe, req);
    }
}

/* Clears the flag after the eventfd was read: a wake() between the two sees the flag set, writes nothing, and is reported by this
 * call. */
static void clear_wake(struct st_io *io, bool read_first)
{
    uint64_t value;

    while (read_first && read(io->wake_fd, &value, sizeof(value)) < 0 && errno == EINTR)
        ;
    atomic_store(&io->wake_due, false);
    io->woken = true;
}

/* A multishot poll reports each write by itself and needs no read; a poll that has ended is submitted again. */
static void take_wake(struct st_io *io, const struct io_uring_cqe *cqe)
{
    const bool goes_on = (cqe->flags & IORING_CQE_F_MORE) != 0;

    if (cqe->res == -EINVAL) /* before Linux 5.13 */
        io->wake_once = true;
    else
        clear_wake(io, !goes_on);
    if (!goes_on)
        stage_wake(io);
}

static void take(struct st_io *io, struct st_io_req *req)
{
    req->place = io->busy;
    io->taken[io->busy++] = req;
}

static void give_back(struct st_io *io, struct st_io_req *req)
{
    struct st_io_req *last = io->taken[--io->busy];

    last->place = req->place;
    io->taken[req->place] = last;
}

/* Handles one completion.  Returns 1 if it ended a request. */
static uint32_t complete(struct st_io *io, struct st_io_req *req, int64_t result)
{
    strata_status st;

    if (result == -EOPNOTSUPP && io->opts.poll_device && req->op != ST_IO_SYNC) {
        io->replacing = true;
        park(io, req);
        return 0;
    }
    if (!st_io_advance(req, result, &st)) {
        stage(io, req);
        return 0;
    }
    give_back(io, req);
    st_io_end(&io->files, req, st);
    return 1;
}

static uint32_t fail(struct st_io *io, struct st_io_req *req, int result)
{
    req->result = result;
    give_back(io, req);
    st_io_end(&io->files, req, st_io_request_error(req->op, req->offset, req->bytes, result));
    return 1;
}

/* Replaces the ring by one without polling, for a device that cannot poll, with the same files and memory.  Parked requests move
 * to the new ring or, if there is none, end.  Returns the number of requests ended. */
static uint32_t replace_ring(struct st_io *io)
{
    struct st_io_req *req = io->parked;
    struct io_uring old = io->ring;
    uint32_t ended = 0;
    int rc;

    io->opts.poll_device = false;
    io->parked = NULL;
    io->parked_count = 0;
    io->replacing = false;
    if ((rc = st_uring_ring_best(io, &io->ring)) < 0) {
        io->ring = old;
        io->opts.poll_device = true;
    } else {
        st_log(ST_LOG_NOTICE,
               "io_uring: a device cannot poll (poll queues and O_DIRECT are needed); transfers continue without polling");
        st_uring_ring_exit(&old, io->files_registered, io->region != NULL);
        (void)st_uring_register_files(io); /* the old ring accepted them, so only a lack of memory can fail here */
        if (io->region != NULL && st_uring_register_pieces(&io->ring, io->region, io->region_bytes) < 0)
            io->region = NULL;
        stage_wake(io);
    }
    while (req != NULL) {
        struct st_io_req *next = req->next;

        if (rc == 0 && !req->cancelled)
            stage(io, req);
        else
            ended += fail(io, req, rc < 0 ? rc : -ECANCELED);
        req = next;
    }
    return ended;
}

static uint32_t end_synced(struct st_io *io)
{
    struct st_io_req *req = io->synced;
    uint32_t ended = 0;

    io->synced = NULL;
    while (req != NULL) {
        struct st_io_req *next = req->next; /* done() may submit req again */

        ended += complete(io, req, req->result);
        req = next;
    }
    return ended;
}

/* Takes completions from the kernel without waiting.  Returns the number of requests ended. */
static uint32_t drain(struct st_io *io)
{
    struct io_uring_cqe *cqes[REAP_BATCH];
    uint32_t count, ended = end_synced(io);

    if (io->unannounced && io->opts.poll_device)
        enter(io, 0); /* this also polls the device */
    else if (io->opts.poll_device)
        (void)io_uring_get_events(&io->ring); /* after a refusal no completion is found, as if nothing had ended */
    do {
        count = io_uring_peek_batch_cqe(&io->ring, cqes, REAP_BATCH);
        for (uint32_t i = 0; i < count; i++) {
            const struct io_uring_cqe cqe = {.user_data = cqes[i]->user_data, .res = cqes[i]->res, .flags = cqes[i]->flags};
            void *data = io_uring_cqe_get_data(&cqe);

            io_uring_cqe_seen(&io->ring, cqes[i]); /* the slot is reused from here */
            if (data == &wake_tag)
                take_wake(io, &cqe);
            else if (data != &cancel_tag)
                ended += complete(io, data, cqe.res);
        }
    } while (count == REAP_BATCH);
    return ended;
}

/* Destroys a ring that the kernel no longer serves, waits until the kernel has finished with it, and ends its requests. */
static void end_all(struct st_io *io)
{
    struct pollfd ended = {.fd = io->end_pipe[0]};

    st_log(ST_LOG_WARN, "io_uring: the kernel accepts no more calls (%s): giving up everything in flight", strerror(io->broken));
    io->ring_open = false;
    io_uring_queue_exit(&io->ring);
    close(io->end_pipe[1]);
    io->end_pipe[1] = -1;
    io->synced = NULL; /* they are among the requests taken */
    while (poll(&ended, 1, -1) < 0 && errno == EINTR)
        ;
    while (io->busy > 0)
        (void)fail(io, io->taken[io->busy - 1], -io->broken);
}

/* A ring with IOPOLL has no poll request for the eventfd, and drain() finds its completions without blocking. */
static void look_for_wake(struct st_io *io)
{
    if (atomic_load(&io->wake_due))
        clear_wake(io, true);
}

/* Waits until the deadline, for a kernel whose own wait takes no timeout. */
static void sleep_on_ring(struct st_io *io, uint64_t deadline_ns)
{
    const struct timespec left = time_left(deadline_ns);

    (void)ppoll(&(struct pollfd){.fd = io->ring.ring_fd, .events = POLLIN}, 1, &left, NULL);
}

static void wait_until(struct st_io *io, uint64_t deadline_ns)
{
    const bool timed = (io->ring.features & IORING_FEAT_EXT_ARG) != 0 && st_fault("nvme.timeout", 0) == 0;
    const struct timespec left = time_left(deadline_ns);
    struct __kernel_timespec kernel_left = {.tv_sec = left.tv_sec, .tv_nsec = left.tv_nsec};
    struct io_uring_cqe *cqe;
    int rc;

    if (!timed) { /* before Linux 5.11 */
        enter(io, 0);
        sleep_on_ring(io, deadline_ns);
        return;
    }
    if ((rc = (int)st_fault("nvme.enter", 0)) == 0)
        rc = io_uring_submit_and_wait_timeout(&io->ring, &cqe, 1, &kernel_left, NULL);
    entered(io, rc);
}

static strata_status uring_reap_until(struct st_io *io, uint32_t min_count, uint64_t deadline_ns)
{
    bool started = false; /* requests staged before this call were started */
    uint32_t ended;

    if (!io->ring_open) { /* and all has ended */
        io->woken = false;
        return STRATA_OK;
    }
    io->reaping = true;
    ended = drain(io);
    while (ended < min_count && io->busy > 0 && !io->woken && io->broken == 0 &&
           (deadline_ns == 0 || st_clock_ns() < deadline_ns)) {
        if (io->replacing && io->parked_count == io->busy)
            ended += replace_ring(io);
        else if (io->opts.poll_device)
            look_for_wake(io);
        else if (deadline_ns > 0)
            wait_until(io, deadline_ns);
        else
            enter(io, 1);
        started = true;
        ended += drain(io);
    }
    if (io->replacing && io->parked_count == io->busy && io->broken == 0)
        (void)replace_ring(io);
    if (io->broken != 0)
        end_all(io);
    io->woken = false;
    io->reaping = false;
    if (io->ring_open && io->unannounced && !(io->opts.start_in_reap && started))
        enter(io, 0);
    return STRATA_OK;
}

static strata_status uring_reap(struct st_io *io, uint32_t min_count)
{
    return uring_reap_until(io, min_count, 0);
}

static strata_status uring_submit(struct st_io *io, struct st_io_req **reqs, uint32_t count)
{
    const int64_t refused = st_fault("nvme.submit", 0);

    if (refused < 0)
        return st_error_errno((int)-refused, "io_uring submit of %" PRIu32 " requests", count);
    if (io->broken != 0)
        return st_error(STRATA_E_IO, "io_uring: the kernel accepts no more calls: %s", strerror(io->broken));
    if (count > io->opts.queue_depth - io->busy)
        return STRATA_E_BUSY;
    for (uint32_t i = 0; i < count; i++) {
        st_io_begin(&io->files, reqs[i]);
        take(io, reqs[i]);
        stage(io, reqs[i]);
    }
    if (!io->reaping && !io->opts.start_in_reap)
        enter(io, 0);
    return STRATA_OK;
}

/* The kernel stops requests in its own queues (a pipe, a full device queue), not those that a device has. */
static void uring_cancel(struct st_io *io, struct st_io_req *req)
{
    struct io_uring_sqe *sqe;

    req->cancelled = true;
    if (io->opts.poll_device) /* such a ring takes only transfers */
        return;
    if ((sqe = next_sqe(io)) == NULL)
        return;
    io_uring_prep_cancel(sqe, req, 0);
    io_uring_sqe_set_data(sqe, &cancel_tag);
    if (!io->reaping && !io->opts.start_in_reap)
        enter(io, 0);
}

static void uring_wake(struct st_io *io)
{
    const uint64_t one = 1;

    if (atomic_exchange(&io->wake_due, true))
        return;
    while (write(io->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

/* fd -1: an empty place. */
static int register_file(struct st_io *io, uint32_t index, int fd)
{
    const int rc = (int)st_fault("nvme.files", 0);

    return rc < 0 ? rc : io_uring_register_files_update(&io->ring, index, &fd, 1);
}

static strata_status uring_add_file(struct st_io *io, int fd, uint64_t bytes, uint32_t *index)
{
    uint32_t at;
    strata_status st;
    int rc;

    (void)bytes;
    if ((st = st_io_files_find(&io->files, &at)) != STRATA_OK)
        return st;
    if (io->broken != 0)
        return st_error(STRATA_E_IO, "io_uring: the kernel accepts no more calls: %s", strerror(io->broken));
    if (st_uring_is_registered(io, at) && (rc = register_file(io, at, fd)) < 0)
        return st_error_errno(-rc, "descriptor %d could not be registered with io_uring", fd);
    st_io_files_put(&io->files, at, fd);
    *index = at;
    return STRATA_OK;
}

/* A place that the kernel does not release stays taken. */
static void uring_remove_file(struct st_io *io, uint32_t index)
{
    const int rc = st_uring_is_registered(io, index) && io->ring_open ? register_file(io, index, -1) : 0;

    if (io->ring_open)
        (void)io_uring_get_events(&io->ring); /* until this call, requests that kernel workers ended still hold the file */
    st_io_files_remove(&io->files, index);
    if (rc >= 0)
        return;
    st_log(ST_LOG_WARN, "io_uring keeps a closed file until the ring ends: %s", strerror(-rc));
    st_io_files_put(&io->files, index, -1);
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
    const uint64_t most = (uint64_t)ST_URING_PIECES_MAX * ST_IO_BYTES_MAX, used = bytes < most ? bytes : most;
    int rc;

    if (io->opts.unregistered)
        return st_error(STRATA_E_NOSYS, "registration is switched off");
    if (io->region != NULL)
        return st_error(STRATA_E_BUSY, "a region is registered already");
    if ((rc = st_uring_register_pieces(&io->ring, base, used)) < 0)
        return register_error(-rc, bytes);
    io->region = base;
    io->region_bytes = used;
    return STRATA_OK;
}

static void uring_effective(const struct st_io *io, struct st_io_opts *out)
{
    *out = io->opts;
}

static void uring_close(struct st_io *io)
{
    if (io == NULL)
        return;
    assert(io->busy == 0);
    if (io->ring_open)
        st_uring_ring_exit(&io->ring, io->files_registered, io->region != NULL);
    for (int i = 0; i < 2; i++)
        if (io->end_pipe[i] >= 0)
            close(io->end_pipe[i]);
    if (io->wake_fd >= 0)
        close(io->wake_fd);
    free(io->taken);
    st_io_files_fini(&io->files);
    free(io);
}

static strata_status open_wake(struct st_io *io)
{
    const int refused = (int)st_fault("nvme.eventfd", 0);

    io->wake_fd = refused < 0 ? -1 : eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (io->wake_fd < 0)
        return st_error_errno(refused < 0 ? -refused : errno, "eventfd");
    stage_wake(io);
    return STRATA_OK;
}

static strata_status open_end_pipe(struct st_io *io)
{
    const int refused = (int)st_fault("nvme.pipe", 0);

    if (refused == 0 && pipe2(io->end_pipe, O_CLOEXEC) == 0)
        return STRATA_OK;
    return st_error_errno(refused < 0 ? -refused : errno, "pipe");
}

static strata_status uring_open(struct st_io **out, const struct st_io_opts *opts)
{
    struct st_io *io;
    strata_status st;

    if ((st = st_io_check_depth(opts->queue_depth)) != STRATA_OK)
        return st;
    if ((st = st_io_alloc((void **)&io, 1, sizeof(*io))) != STRATA_OK)
        return st;
    io->wake_fd = io->end_pipe[0] = io->end_pipe[1] = -1;
    io->opts = *opts;
    st_io_files_init(&io->files, opts);
    if ((st = st_io_alloc((void **)&io->taken, opts->queue_depth, sizeof(*io->taken))) != STRATA_OK)
        goto fail;
    if ((st = st_uring_ring_open(io)) != STRATA_OK)
        goto fail;
    if ((st = open_end_pipe(io)) != STRATA_OK)
        goto fail;
    if ((st = st_uring_register_files(io)) != STRATA_OK)
        goto fail;
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
    .remove_file = uring_remove_file,
    .submit = uring_submit,
    .reap = uring_reap,
    .reap_until = uring_reap_until,
    .cancel = uring_cancel,
    .wake = uring_wake,
    .register_region = uring_register_region,
    .effective = uring_effective,
};

/* nvme/method/io_aio.c - the I/O contract over Linux AIO; the one home of libaio.h.
 *
 * Only the owner touches the context. wake() writes an eventfd that a poll request in the context waits for (Linux 4.18), so one
 * call waits for both.  A request is `waiting` until the kernel accepts it and then occupies a slot.  `busy` counts requests
 * taken and not done, `in_kernel` those of them that the kernel has. */
#include "nvme/method/io_method.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/system/clock.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <libaio.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define BATCH_MAX     64u /* requests per io_submit, events per io_getevents */
#define NS_PER_SECOND 1000000000u

struct slot {
    struct iocb cb; /* first member: the kernel hands back its address */
    struct st_io_req *req;
    struct slot *next; /* free list */
};

struct st_io {
    io_context_t context; /* NULL: not set up */
    bool start_in_reap;
    bool reaping;         /* in reap(): requests that done() submits are started together, later */
    bool woken;           /* wake() seen, not yet reported by a reap() */
    int wake_fd;          /* eventfd; written by any thread */
    atomic_bool wake_due; /* set by wake(), which then writes wake_fd; cleared after wake_fd was read */
    struct iocb wake_cb;
    uint32_t depth, busy, in_kernel;
    uint32_t refusals;                /* in a row */
    int broken;                       /* errno of the call that the kernel refuses permanently; 0: none */
    struct st_io_req *waiting, *last; /* requests to offer to the kernel, in order */
    bool cancelled_waiting;           /* one of the waiting may be cancelled */
    struct slot *slots, *free_slots;  /* [depth] */
    struct st_io_files files;
};

static void stage(struct st_io *io, struct st_io_req *req)
{
    req->next = NULL;
    if (io->waiting == NULL)
        io->waiting = req;
    else
        io->last->next = req;
    io->last = req;
}

static void slot_free(struct st_io *io, struct slot *slot)
{
    slot->req = NULL;
    slot->next = io->free_slots;
    io->free_slots = slot;
}

static struct iocb *slot_fill(struct st_io *io, struct st_io_req *req)
{
    const struct st_io_piece part = st_io_remaining(req);
    const int fd = st_io_file_fd(&io->files, req->file);
    struct slot *slot = io->free_slots;

    assert(slot != NULL);
    io->free_slots = slot->next;
    slot->req = req;
    if (req->op == ST_IO_SYNC)
        io_prep_fsync(&slot->cb, fd); /* Linux 4.18, as is the poll for wake(); EINVAL where fsync(2) fails, too */
    else if (req->op == ST_IO_READ)
        io_prep_pread(&slot->cb, fd, part.buf, part.bytes, (long long)part.offset);
    else
        io_prep_pwrite(&slot->cb, fd, part.buf, part.bytes, (long long)part.offset);
    return &slot->cb;
}

/* Handles one completion.  Returns 1 if it ended the request. */
static uint32_t complete(struct st_io *io, struct st_io_req *req, int64_t result)
{
    strata_status st;

    if (!st_io_advance(req, result, &st)) {
        stage(io, req);
        return 0;
    }
    io->busy--;
    st_io_end(&io->files, req, st);
    return 1;
}

/* Offers up to BATCH_MAX waiting requests.  Returns how many the kernel accepted, or the error for the first. */
static int offer_batch(struct st_io *io)
{
    struct iocb *batch[BATCH_MAX];
    struct st_io_req *req = io->waiting;
    uint32_t count = 0;
    int rc = (int)st_fault("nvme.enter", 0);

    for (; req != NULL && count < BATCH_MAX; req = req->next)
        batch[count++] = slot_fill(io, req);
    if (rc == 0)
        rc = io_submit(io->context, count, batch);
    for (uint32_t i = 0; i < count; i++) {
        if (rc > 0 && i < (uint32_t)rc)
            io->waiting = io->waiting->next;
        else
            slot_free(io, (struct slot *)batch[i]);
    }
    if (rc > 0)
        io->in_kernel += (uint32_t)rc;
    return rc;
}

/* Offers all waiting requests.  Returns 0, or why the first remaining one was not accepted. */
static int offer(struct st_io *io)
{
    while (io->waiting != NULL) {
        const int rc = offer_batch(io);

        if (rc <= 0)
            return rc == 0 ? -EAGAIN : rc;
        io->refusals = 0;
    }
    return 0;
}

static void pause_refused(struct st_io *io)
{
    io->refusals++;
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static uint32_t end_cancelled(struct st_io *io)
{
    struct st_io_req *req = io->waiting;
    uint32_t ended = 0;

    io->waiting = NULL;
    io->cancelled_waiting = false;
    while (req != NULL) {
        struct st_io_req *next = req->next;

        if (req->cancelled)
            ended += complete(io, req, -ECANCELED);
        else
            stage(io, req);
        req = next;
    }
    return ended;
}

/* Offers all waiting requests and ends those that the kernel rejects.  Those refused for lack of room are offered again by a
 * later call. */
static uint32_t start_waiting(struct st_io *io)
{
    uint32_t ended = io->cancelled_waiting ? end_cancelled(io) : 0;
    int rc;

    while ((rc = offer(io)) != 0) {
        struct st_io_req *req = io->waiting;

        if ((rc == -EAGAIN || rc == -EINTR) && !st_io_refused_for_good(EAGAIN, io->refusals)) {
            if (io->in_kernel == 0)
                pause_refused(io);
            break;
        }
        io->waiting = req->next;
        ended += complete(io, req, rc);
    }
    return ended;
}

static int arm_wake(struct st_io *io)
{
    struct iocb *cb = &io->wake_cb;
    int rc = (int)st_fault("nvme.wake", 0);

    io_prep_poll(cb, io->wake_fd, POLLIN);
    if (rc == 0)
        rc = io_submit(io->context, 1, &cb);
    return rc < 0 ? rc : 0;
}

/* Reads the eventfd before clearing the flag: a wake() between the two sees the flag set, writes nothing, and is reported by this
 * call. */
static void take_wake(struct st_io *io)
{
    uint64_t value;
    int rc;

    while (read(io->wake_fd, &value, sizeof(value)) < 0 && errno == EINTR)
        ;
    atomic_store(&io->wake_due, false);
    io->woken = true;
    while ((rc = arm_wake(io)) != 0 && !st_io_refused_for_good(-rc, io->refusals))
        pause_refused(io);
    io->refusals = 0;
    if (rc != 0)
        io->broken = -rc;
}

/* Up to BATCH_MAX events, at least `least` unless the deadline passes.  Returns their number. */
static uint32_t get_events(struct st_io *io, struct io_event *events, uint32_t least, uint64_t deadline_ns)
{
    struct timespec left = {0};
    int rc = (int)st_fault("nvme.getevents", 0);

    if (least > 0 && deadline_ns > 0) {
        const uint64_t now = st_clock_ns(), ns = deadline_ns > now ? deadline_ns - now : 0;

        left = (struct timespec){.tv_sec = (time_t)(ns / NS_PER_SECOND), .tv_nsec = (long)(ns % NS_PER_SECOND)};
    }
    if (rc == 0)
        rc = io_getevents(io->context, least, BATCH_MAX, events, least > 0 && deadline_ns == 0 ? NULL : &left);
    if (rc >= 0) {
        io->refusals = 0;
        return (uint32_t)rc;
    }
    if (st_again(rc, &io->refusals))
        return 0;
    if (st_io_refused_for_good(-rc, rc == -EINTR ? io->refusals - ST_EINTR_MAX : io->refusals))
        io->broken = -rc;
    else
        pause_refused(io);
    return 0;
}

/* Takes completions from the kernel, waiting for at least `least`.  Returns the number of requests ended. */
static uint32_t drain(struct st_io *io, uint32_t least, uint64_t deadline_ns)
{
    struct io_event events[BATCH_MAX];
    uint32_t count, ended = 0;

    do {
        count = get_events(io, events, least, deadline_ns);
        least = 0;
        for (uint32_t i = 0; i < count; i++) {
            struct slot *slot = (struct slot *)events[i].obj;
            struct st_io_req *req;

            if (events[i].obj == &io->wake_cb) {
                take_wake(io);
                continue;
            }
            req = slot->req;
            slot_free(io, slot);
            io->in_kernel--;
            ended += complete(io, req, (int64_t)(long)events[i].res);
        }
    } while (count == BATCH_MAX);
    return ended;
}

static uint32_t fail(struct st_io *io, struct st_io_req *req)
{
    req->result = -io->broken;
    io->busy--;
    st_io_end(&io->files, req, st_io_request_error(req->op, req->offset, req->bytes, req->result));
    return 1;
}

/* Destroying the context waits for everything that it has in flight, so no request ends while the kernel still uses its
 * memory. */
static uint32_t end_all(struct st_io *io)
{
    struct st_io_req *req = io->waiting;
    uint32_t ended = 0;
    int rc;

    st_log(ST_LOG_WARN, "aio: the kernel accepts no more calls (%s): giving up everything in flight", strerror(io->broken));
    while ((rc = io_destroy(io->context)) < 0 && rc != -EINVAL)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    io->context = NULL;
    io->waiting = NULL;
    io->in_kernel = 0;
    for (uint32_t i = 0; i < io->depth; i++) {
        struct st_io_req *in_slot = io->slots[i].req;

        if (in_slot == NULL)
            continue;
        slot_free(io, &io->slots[i]);
        ended += fail(io, in_slot);
    }
    while (req != NULL) {
        struct st_io_req *next = req->next;

        ended += fail(io, req);
        req = next;
    }
    return ended;
}

static strata_status aio_reap_until(struct st_io *io, uint32_t min_count, uint64_t deadline_ns)
{
    bool in_time;
    uint32_t ended = 0;

    if (io->broken != 0) { /* and every request has ended */
        io->woken = false;
        return STRATA_OK;
    }
    io->reaping = true;
    ended += start_waiting(io);
    /* One call both takes completions and waits; it only polls if there is nothing to wait for. */
    do {
        in_time = deadline_ns == 0 || st_clock_ns() < deadline_ns;
        ended += drain(io, ended < min_count && io->in_kernel > 0 && in_time ? 1 : 0, deadline_ns);
        ended += start_waiting(io);
    } while (ended < min_count && io->busy > 0 && !io->woken && in_time && io->broken == 0);
    if (io->broken != 0)
        (void)end_all(io);
    io->woken = false;
    io->reaping = false;
    if (!io->start_in_reap && io->broken == 0)
        (void)offer(io); /* the next reap() handles a refusal */
    return STRATA_OK;
}

static strata_status aio_reap(struct st_io *io, uint32_t min_count)
{
    return aio_reap_until(io, min_count, 0);
}

static strata_status aio_submit(struct st_io *io, struct st_io_req **reqs, uint32_t count)
{
    const int64_t refused = st_fault("nvme.submit", 0);

    if (refused < 0)
        return st_error_errno((int)-refused, "aio submit of %" PRIu32 " requests", count);
    if (io->broken != 0)
        return st_error(STRATA_E_IO, "aio: the kernel accepts no more calls: %s", strerror(io->broken));
    if (count > io->depth - io->busy)
        return STRATA_E_BUSY;
    for (uint32_t i = 0; i < count; i++) {
        st_io_begin(&io->files, reqs[i]);
        stage(io, reqs[i]);
    }
    io->busy += count;
    if (!io->reaping && !io->start_in_reap)
        (void)offer(io);
    return STRATA_OK;
}

/* The kernel cannot stop a file transfer.  The request ends here if the kernel has not accepted it, or at its next refusal. */
static void aio_cancel(struct st_io *io, struct st_io_req *req)
{
    struct io_event event;

    req->cancelled = true;
    io->cancelled_waiting = true;
    for (uint32_t i = 0; i < io->depth; i++)
        if (io->slots[i].req == req && io->broken == 0)
            (void)io_cancel(io->context, &io->slots[i].cb, &event);
}

static void aio_wake(struct st_io *io)
{
    const uint64_t one = 1;

    if (atomic_exchange(&io->wake_due, true))
        return;
    while (write(io->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

static strata_status aio_add_file(struct st_io *io, int fd, uint64_t bytes, uint32_t *index)
{
    const strata_status st = st_io_files_find(&io->files, index);

    (void)bytes;
    if (st == STRATA_OK)
        st_io_files_put(&io->files, *index, fd);
    return st;
}

static void aio_remove_file(struct st_io *io, uint32_t index)
{
    st_io_files_remove(&io->files, index);
}

static void aio_effective(const struct st_io *io, struct st_io_opts *out)
{
    *out = (struct st_io_opts){.queue_depth = io->depth, .unregistered = true, .start_in_reap = io->start_in_reap};
}

static void aio_close(struct st_io *io)
{
    if (io == NULL)
        return;
    assert(io->busy == 0);
    if (io->context != NULL)
        io_destroy(io->context);
    if (io->wake_fd >= 0)
        close(io->wake_fd);
    free(io->slots);
    st_io_files_fini(&io->files);
    free(io);
}

static strata_status open_context(struct st_io *io)
{
    int rc = (int)st_fault("nvme.context", 0);

    if (rc == 0)
        rc = io_setup((int)io->depth + 1, &io->context);
    if (rc == -ENOSYS || rc == -EPERM || rc == -EACCES)
        return st_error(STRATA_E_NOSYS, "aio is not usable here: %s: use io method threads", strerror(-rc));
    if (rc == -EAGAIN)
        return st_error(STRATA_E_NOMEM,
                        "aio with queue depth %" PRIu32 ": the machine's contexts are used up: sysctl fs.aio-max-nr", io->depth);
    return rc < 0 ? st_error_errno(-rc, "aio with queue depth %" PRIu32, io->depth) : STRATA_OK;
}

static strata_status open_wake(struct st_io *io)
{
    const int refused = (int)st_fault("nvme.eventfd", 0);
    int rc;

    io->wake_fd = refused < 0 ? -1 : eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (io->wake_fd < 0)
        return st_error_errno(refused < 0 ? -refused : errno, "eventfd");
    rc = arm_wake(io);
    if (rc == -EINVAL)
        return st_error(STRATA_E_NOSYS, "aio cannot poll before Linux 4.18: use io method threads");
    return rc < 0 ? st_error_errno(-rc, "aio poll") : STRATA_OK;
}

static strata_status open_slots(struct st_io *io)
{
    const strata_status st = st_io_alloc((void **)&io->slots, io->depth, sizeof(*io->slots));

    for (uint32_t i = 0; st == STRATA_OK && i < io->depth; i++)
        slot_free(io, &io->slots[i]);
    return st;
}

static strata_status aio_open(struct st_io **out, const struct st_io_opts *opts)
{
    struct st_io *io;
    strata_status st;

    if ((st = st_io_check_depth(opts->queue_depth)) != STRATA_OK)
        return st;
    if ((st = st_io_alloc((void **)&io, 1, sizeof(*io))) != STRATA_OK)
        return st;
    io->wake_fd = -1;
    st_io_files_init(&io->files, opts);
    io->depth = opts->queue_depth;
    io->start_in_reap = opts->start_in_reap;
    if ((st = open_slots(io)) != STRATA_OK)
        goto fail;
    if ((st = open_context(io)) != STRATA_OK)
        goto fail;
    if ((st = open_wake(io)) != STRATA_OK)
        goto fail;
    *out = io;
    return STRATA_OK;

fail:
    aio_close(io);
    return st;
}

const struct st_io_ops st_io_aio_ops = {
    .name = "aio",
    .open = aio_open,
    .close = aio_close,
    .add_file = aio_add_file,
    .remove_file = aio_remove_file,
    .submit = aio_submit,
    .reap = aio_reap,
    .reap_until = aio_reap_until,
    .cancel = aio_cancel,
    .wake = aio_wake,
    .effective = aio_effective,
};

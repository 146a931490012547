/* nvme/method/io_fake.c - the I/O contract over memory: completes in a seeded, shuffled order, with latency and a rate limit.
 *
 * Bytes move when a request completes, not when it is submitted, so that tests notice a missing wait.  No threads, no disk. */
#include "nvme/method/io_method.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/rng.h"
#include "core/system/clock.h"
#include "core/system/thread.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NS_PER_SECOND 1000000000u
#define RNG_STREAM    0x6f69u /* this file's own random numbers */

struct content {
    char *data;
    uint64_t bytes;
};

struct pending {
    struct st_io_req *req;
    uint64_t deadline_ns;
};

struct st_io {
    struct st_io_opts opts;
    struct st_io_files files;
    struct content contents[ST_IO_FILES_MAX];
    uint32_t busy;
    uint64_t random_index;   /* position in the seeded sequence */
    uint64_t link_free_ns;   /* rate limit: when the link will have moved everything submitted */
    struct pending *pending; /* [queue_depth], the first `busy` are used, in no order */
    pthread_mutex_t lock;    /* guards woken */
    pthread_cond_t wakeup;   /* monotonic clock */
    bool woken;
};

static uint64_t random_below(struct st_io *io, uint64_t limit)
{
    return st_rng_u64(io->opts.fake_seed, RNG_STREAM, io->random_index++) % limit;
}

static uint64_t deadline_of(struct st_io *io, uint32_t bytes)
{
    uint64_t now;

    if (io->opts.fake_latency_us == 0 && io->opts.fake_bytes_per_second == 0)
        return 0;
    now = st_clock_ns();
    if (io->opts.fake_bytes_per_second > 0) {
        if (io->link_free_ns < now)
            io->link_free_ns = now;
        io->link_free_ns += (uint64_t)((double)bytes * NS_PER_SECOND / (double)io->opts.fake_bytes_per_second);
        now = io->link_free_ns;
    }
    if (io->opts.fake_latency_us > 0)
        now += random_below(io, (uint64_t)io->opts.fake_latency_us * 1000 + 1);
    return now;
}

static void put(struct st_io *io, struct st_io_req *req)
{
    assert(io->busy < io->opts.queue_depth);
    io->pending[io->busy++] = (struct pending){req, deadline_of(io, st_io_remaining(req).bytes)};
}

/* Picks one of the requests that are due, at random; NULL: none is due yet. */
static struct st_io_req *take_ready(struct st_io *io)
{
    const uint64_t now = st_clock_ns();
    const uint32_t start = io->busy > 0 ? (uint32_t)random_below(io, io->busy) : 0;

    for (uint32_t i = 0; i < io->busy; i++) {
        const uint32_t at = (start + i) % io->busy;
        struct st_io_req *req = io->pending[at].req;

        if (io->pending[at].deadline_ns > now)
            continue;
        io->pending[at] = io->pending[--io->busy];
        return req;
    }
    return NULL;
}

static int64_t move_bytes(const struct st_io *io, const struct st_io_req *req)
{
    const struct content *file = &io->contents[req->file];
    const struct st_io_piece part = st_io_remaining(req);
    const uint64_t there = part.offset < file->bytes ? file->bytes - part.offset : 0;
    const uint64_t bytes = part.bytes < there ? part.bytes : there;

    if (req->cancelled)
        return -ECANCELED;
    if (req->op == ST_IO_SYNC)
        return 0;
    if (req->op == ST_IO_WRITE && bytes < part.bytes)
        return -ENOSPC;
    if (bytes == 0)
        return 0;
    if (req->op == ST_IO_READ)
        memcpy(part.buf, file->data + part.offset, bytes);
    else
        memcpy(file->data + part.offset, part.buf, bytes);
    return (int64_t)bytes;
}

static uint32_t complete(struct st_io *io, struct st_io_req *req)
{
    strata_status st;

    if (!st_io_advance(req, move_bytes(io, req), &st)) {
        put(io, req);
        return 0;
    }
    st_io_end(&io->files, req, st);
    return 1;
}

/* When the next request is due, but no later than the limit (0: none). */
static uint64_t earliest(const struct st_io *io, uint64_t limit_ns)
{
    uint64_t ns = limit_ns > 0 ? limit_ns : UINT64_MAX;

    for (uint32_t i = 0; i < io->busy; i++)
        if (io->pending[i].deadline_ns < ns)
            ns = io->pending[i].deadline_ns;
    return ns;
}

/* If `wait`, sleeps until a request is due or until the limit.  True if wake() was called since. */
static bool woken_or_due(struct st_io *io, bool wait, uint64_t limit_ns)
{
    const uint64_t due_ns = earliest(io, limit_ns);
    bool woken;

    pthread_mutex_lock(&io->lock);
    while (wait && due_ns > 0 && !io->woken)
        wait = st_cond_wait(&io->wakeup, &io->lock, due_ns);
    woken = io->woken;
    io->woken = false;
    pthread_mutex_unlock(&io->lock);
    return woken;
}

static strata_status fake_reap_until(struct st_io *io, uint32_t min_count, uint64_t deadline_ns)
{
    bool woken = woken_or_due(io, false, 0);
    uint32_t ended = 0;

    while (io->busy > 0) {
        struct st_io_req *req = take_ready(io);

        if (req != NULL)
            ended += complete(io, req);
        else if (ended < min_count && !woken && (deadline_ns == 0 || st_clock_ns() < deadline_ns))
            woken = woken_or_due(io, true, deadline_ns);
        else
            break;
        if (ended > 0 && ended >= min_count && random_below(io, 4) == 0)
            break; /* a request that is ready may also complete later */
    }
    return STRATA_OK;
}

static strata_status fake_reap(struct st_io *io, uint32_t min_count)
{
    return fake_reap_until(io, min_count, 0);
}

/* Makes the request due at once; it moves nothing. */
static void fake_cancel(struct st_io *io, struct st_io_req *req)
{
    req->cancelled = true;
    for (uint32_t i = 0; i < io->busy; i++)
        if (io->pending[i].req == req)
            io->pending[i].deadline_ns = 0;
}

static void fake_effective(const struct st_io *io, struct st_io_opts *out)
{
    *out = io->opts;
    out->unregistered = true;
    out->poll_device = out->poll_kernel = out->start_in_reap = false;
}

static strata_status fake_submit(struct st_io *io, struct st_io_req **reqs, uint32_t count)
{
    const int64_t refused = st_fault("nvme.submit", 0);

    if (refused < 0)
        return st_error_errno((int)-refused, "submit of %" PRIu32 " requests", count);
    if (count > io->opts.queue_depth - io->busy)
        return STRATA_E_BUSY;
    for (uint32_t i = 0; i < count; i++) {
        st_io_begin(&io->files, reqs[i]);
        put(io, reqs[i]);
    }
    return STRATA_OK;
}

static void fake_wake(struct st_io *io)
{
    pthread_mutex_lock(&io->lock);
    io->woken = true;
    pthread_cond_signal(&io->wakeup);
    pthread_mutex_unlock(&io->lock);
}

static strata_status fake_add_file(struct st_io *io, int fd, uint64_t bytes, uint32_t *index)
{
    strata_status st;
    uint32_t at;
    void *data;

    if ((st = st_io_files_find(&io->files, &at)) != STRATA_OK)
        return st;
    if ((st = st_io_alloc(&data, bytes > 0 ? bytes : 1, 1)) != STRATA_OK)
        return st;
    st_io_files_put(&io->files, at, fd);
    io->contents[at] = (struct content){data, bytes};
    *index = at;
    return STRATA_OK;
}

static void fake_remove_file(struct st_io *io, uint32_t index)
{
    st_io_files_remove(&io->files, index);
    free(io->contents[index].data);
    io->contents[index] = (struct content){NULL, 0};
}

static void fake_close(struct st_io *io)
{
    if (io == NULL)
        return;
    assert(io->busy == 0);
    for (uint32_t i = 0; i < io->files.limit; i++)
        free(io->contents[i].data);
    free(io->pending);
    pthread_cond_destroy(&io->wakeup);
    pthread_mutex_destroy(&io->lock);
    st_io_files_fini(&io->files);
    free(io);
}

static strata_status fake_open(struct st_io **out, const struct st_io_opts *opts)
{
    struct st_io *io;
    strata_status st;

    if ((st = st_io_check_depth(opts->queue_depth)) != STRATA_OK)
        return st;
    if ((st = st_io_alloc((void **)&io, 1, sizeof(*io))) != STRATA_OK)
        return st;
    io->opts = *opts;
    st_io_files_init(&io->files, opts);
    pthread_mutex_init(&io->lock, NULL);
    st_cond_init(&io->wakeup);
    if ((st = st_io_alloc((void **)&io->pending, opts->queue_depth, sizeof(*io->pending))) != STRATA_OK) {
        fake_close(io);
        return st;
    }
    *out = io;
    return STRATA_OK;
}

const struct st_io_ops st_io_fake_ops = {
    .name = "fake",
    .open = fake_open,
    .close = fake_close,
    .add_file = fake_add_file,
    .remove_file = fake_remove_file,
    .submit = fake_submit,
    .reap = fake_reap,
    .reap_until = fake_reap_until,
    .cancel = fake_cancel,
    .wake = fake_wake,
    .effective = fake_effective,
};

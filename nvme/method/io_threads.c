/* nvme/method/io_threads.c - the I/O contract by a pool of threads that call pread, pwrite and fsync: works
 * everywhere.
 *
 * Threads take requests from `queue` and put them into `finished`; only the owner runs done(), in reap(). */
#include "nvme/method/io_method.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/clock.h"
#include "core/system/thread.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#define POOL_DEFAULT 8u /* threads; a drive's rate is flat from a few requests of 1 MiB on */
#define POOL_MAX     ST_IO_THREADS_MAX

struct list {
    struct st_io_req *first, *last;
};

struct st_io {
    pthread_mutex_t lock;  /* guards queue, finished, woken, stopping */
    pthread_cond_t queued; /* queue is not empty, or stopping */
    pthread_cond_t ended;  /* finished is not empty, or woken */
    struct list queue, finished;
    bool woken, stopping;
    uint32_t depth, busy;     /* owner's */
    struct st_io_files files; /* owner's; a descriptor stays here while a request uses it */
    uint32_t thread_count;
    pthread_t threads[POOL_MAX];
};

static void list_push(struct list *list, struct st_io_req *req)
{
    req->next = NULL;
    if (list->first == NULL)
        list->first = req;
    else
        list->last->next = req;
    list->last = req;
}

static struct st_io_req *list_pop(struct list *list)
{
    struct st_io_req *req = list->first;

    if (req != NULL)
        list->first = req->next;
    return req;
}

static int64_t transfer(const struct st_io *io, const struct st_io_req *req)
{
    const struct st_io_piece part = st_io_remaining(req);
    const int fd = st_io_file_fd(&io->files, req->file);
    const ssize_t moved = req->op == ST_IO_SYNC   ? fsync(fd)
                          : req->op == ST_IO_READ ? pread(fd, part.buf, part.bytes, (off_t)part.offset)
                                                  : pwrite(fd, part.buf, part.bytes, (off_t)part.offset);

    return moved < 0 ? -errno : moved;
}

static void *pool_main(void *arg)
{
    struct st_io *io = arg;

    pthread_mutex_lock(&io->lock);
    for (;;) {
        struct st_io_req *req;

        while ((req = list_pop(&io->queue)) == NULL && !io->stopping)
            pthread_cond_wait(&io->queued, &io->lock);
        if (req == NULL)
            break;
        pthread_mutex_unlock(&io->lock);
        req->result = transfer(io, req);
        pthread_mutex_lock(&io->lock);
        if (io->finished.first == NULL) /* the owner takes all of them */
            pthread_cond_signal(&io->ended);
        list_push(&io->finished, req);
    }
    pthread_mutex_unlock(&io->lock);
    return NULL;
}

static void offer(struct st_io *io, struct st_io_req *req)
{
    pthread_mutex_lock(&io->lock);
    list_push(&io->queue, req);
    pthread_cond_signal(&io->queued);
    pthread_mutex_unlock(&io->lock);
}

static strata_status threads_submit(struct st_io *io, struct st_io_req **reqs, uint32_t count)
{
    const int64_t refused = st_fault("nvme.submit", 0);

    if (refused < 0)
        return st_error_errno((int)-refused, "submit of %" PRIu32 " requests", count);
    if (count > io->depth - io->busy)
        return STRATA_E_BUSY;
    io->busy += count;
    for (uint32_t i = 0; i < count; i++) {
        st_io_begin(&io->files, reqs[i]);
        offer(io, reqs[i]);
    }
    return STRATA_OK;
}

/* Takes all finished requests; with `wait`, waits for at least one, a wake() or the deadline.  *woken is set, never cleared. */
static struct st_io_req *take_finished(struct st_io *io, bool wait, uint64_t deadline_ns, bool *woken)
{
    struct st_io_req *req;

    pthread_mutex_lock(&io->lock);
    while (wait && io->finished.first == NULL && !io->woken)
        wait = st_cond_wait(&io->ended, &io->lock, deadline_ns);
    req = io->finished.first;
    io->finished.first = NULL;
    *woken = *woken || io->woken;
    io->woken = false;
    pthread_mutex_unlock(&io->lock);
    return req;
}

static uint32_t finish(struct st_io *io, struct st_io_req *req)
{
    uint32_t ended = 0;

    while (req != NULL) {
        struct st_io_req *next = req->next; /* done() may submit req again */
        strata_status st;

        if (st_io_advance(req, req->result, &st)) {
            io->busy--;
            ended++;
            st_io_end(&io->files, req, st);
        } else {
            offer(io, req);
        }
        req = next;
    }
    return ended;
}

static strata_status threads_reap_until(struct st_io *io, uint32_t min_count, uint64_t deadline_ns)
{
    bool woken = false;
    uint32_t ended = finish(io, take_finished(io, false, 0, &woken));

    while (ended < min_count && io->busy > 0 && !woken && (deadline_ns == 0 || st_clock_ns() < deadline_ns))
        ended += finish(io, take_finished(io, true, deadline_ns, &woken));
    return STRATA_OK;
}

static strata_status threads_reap(struct st_io *io, uint32_t min_count)
{
    return threads_reap_until(io, min_count, 0);
}

static bool list_remove(struct list *list, const struct st_io_req *req)
{
    struct st_io_req *before = NULL, *at = list->first;

    for (; at != NULL && at != req; at = at->next)
        before = at;
    if (at == NULL)
        return false;
    *(before == NULL ? &list->first : &before->next) = at->next;
    if (list->last == at)
        list->last = before;
    return true;
}

/* A thread inside pread() is not interrupted; a request that no thread has taken ends here. */
static void threads_cancel(struct st_io *io, struct st_io_req *req)
{
    req->cancelled = true;
    pthread_mutex_lock(&io->lock);
    if (list_remove(&io->queue, req)) {
        req->result = -ECANCELED;
        list_push(&io->finished, req);
    }
    pthread_mutex_unlock(&io->lock);
}

static void threads_effective(const struct st_io *io, struct st_io_opts *out)
{
    *out = (struct st_io_opts){.queue_depth = io->depth, .unregistered = true, .threads = io->thread_count};
}

static void threads_wake(struct st_io *io)
{
    pthread_mutex_lock(&io->lock);
    io->woken = true;
    pthread_cond_signal(&io->ended);
    pthread_mutex_unlock(&io->lock);
}

static strata_status threads_add_file(struct st_io *io, int fd, uint64_t bytes, uint32_t *index)
{
    const strata_status st = st_io_files_find(&io->files, index);

    (void)bytes;
    if (st == STRATA_OK)
        st_io_files_put(&io->files, *index, fd);
    return st;
}

static void threads_remove_file(struct st_io *io, uint32_t index)
{
    st_io_files_remove(&io->files, index);
}

static void threads_close(struct st_io *io)
{
    if (io == NULL)
        return;
    assert(io->busy == 0);
    pthread_mutex_lock(&io->lock);
    io->stopping = true;
    pthread_cond_broadcast(&io->queued);
    pthread_mutex_unlock(&io->lock);
    for (uint32_t i = 0; i < io->thread_count; i++)
        pthread_join(io->threads[i], NULL);
    pthread_cond_destroy(&io->ended);
    pthread_cond_destroy(&io->queued);
    pthread_mutex_destroy(&io->lock);
    st_io_files_fini(&io->files);
    free(io);
}

static strata_status threads_open(struct st_io **out, const struct st_io_opts *opts)
{
    const uint32_t asked = opts->threads > 0 ? opts->threads : POOL_DEFAULT;
    const uint32_t wanted = opts->queue_depth < asked ? opts->queue_depth : asked;
    struct st_io *io;
    strata_status st;

    if ((st = st_io_check_depth(opts->queue_depth)) != STRATA_OK || (st = st_io_check_threads(asked)) != STRATA_OK)
        return st;
    if ((st = st_io_alloc((void **)&io, 1, sizeof(*io))) != STRATA_OK)
        return st;
    io->depth = opts->queue_depth;
    st_io_files_init(&io->files, opts);
    pthread_mutex_init(&io->lock, NULL);
    pthread_cond_init(&io->queued, NULL);
    st_cond_init(&io->ended);
    for (; io->thread_count < wanted; io->thread_count++)
        if ((st = st_thread_start(&io->threads[io->thread_count], "strata-io-pool", pool_main, io)) != STRATA_OK)
            goto fail;
    *out = io;
    return STRATA_OK;

fail:
    threads_close(io);
    return st;
}

const struct st_io_ops st_io_threads_ops = {
    .name = "threads",
    .open = threads_open,
    .close = threads_close,
    .add_file = threads_add_file,
    .remove_file = threads_remove_file,
    .submit = threads_submit,
    .reap = threads_reap,
    .reap_until = threads_reap_until,
    .cancel = threads_cancel,
    .wake = threads_wake,
    .effective = threads_effective,
};

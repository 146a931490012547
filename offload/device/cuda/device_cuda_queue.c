/* device_cuda_queue.c - one queue of the cuda device: a stream, the marks on it and the watcher that reports them. */
#include "core/base/error.h"
#include "core/system/clock.h"
#include "core/system/thread.h"
#include "offload/device/cuda/device_cuda_internal.h"

#include <stdio.h>

#define EVENT_FLAGS (cudaEventBlockingSync | cudaEventDisableTiming)

/* --- the watcher --- */

/* The oldest mark; NULL: the queue stops and all marks have been reported. */
static struct cuda_mark *next_mark(struct cuda_queue *q)
{
    struct cuda_mark *mark = NULL;

    pthread_mutex_lock(&q->lock);
    while (q->taken == q->added && !q->stopping)
        pthread_cond_wait(&q->added_one, &q->lock);
    if (q->taken != q->added)
        mark = &q->marks[q->taken % ST_CUDA_MARKS];
    pthread_mutex_unlock(&q->lock);
    return mark;
}

bool st_cuda_queue_await(struct cuda_queue *q, cudaEvent_t event, cudaError_t *err)
{
    bool in_time;

    pthread_mutex_lock(&q->lock);
    q->waits_since_ns = st_clock_ns();
    pthread_mutex_unlock(&q->lock);
    *err = ST_CUDA_PASS("cuda.wait", cudaEventSynchronize(event));
    pthread_mutex_lock(&q->lock);
    in_time = !q->abandoned; /* from here on the guard no longer can */
    q->waits_since_ns = 0;
    pthread_mutex_unlock(&q->lock);
    return in_time;
}

/* False: the queue was abandoned. */
static bool copy(struct cuda_queue *q, const struct cuda_mark *mark)
{
    cudaError_t err = cudaSuccess;

    if (!st_cuda_host_copy(q, mark, &err))
        return false;
    if (err != cudaSuccess && q->failed[0] == '\0') {
        (void)st_cuda_status(err, "copy");
        snprintf(q->failed, sizeof(q->failed), "%s", strata_last_error());
    }
    return true;
}

static bool report(struct cuda_queue *q, const struct cuda_mark *mark)
{
    cudaError_t err;
    strata_status st;

    if (!st_cuda_queue_await(q, mark->event, &err))
        return false;
    st = q->failed[0] != '\0' ? st_error(STRATA_E_INTERNAL, "%s", q->failed) : st_cuda_status(err, "work on the device");
    q->failed[0] = '\0';
    mark->done(mark->ctx, st);
    return true;
}

static void *watch(void *arg)
{
    struct cuda_queue *q = arg;
    struct cuda_device *cuda = q->cuda;
    struct cuda_mark *mark;

    (void)cudaSetDevice(cuda->index);
    while ((mark = next_mark(q)) != NULL) {
        if (mark->done != NULL ? !report(q, mark) : !copy(q, mark))
            break;
        pthread_mutex_lock(&q->lock);
        q->taken++;
        pthread_cond_broadcast(&q->changed);
        pthread_mutex_unlock(&q->lock);
    }
    pthread_mutex_lock(&q->lock);
    q->ended = true;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    st_cuda_release(cuda);
    return NULL;
}

/* --- start and stop --- */

/* A GPU's priorities are numbers of which the least is the most urgent; one that knows a single priority gives it to all. */
static cudaError_t create_stream(cudaStream_t *stream, enum st_cuda_urgency urgency)
{
    int least = 0, greatest = 0;
    cudaError_t err = ST_CUDA_PASS("cuda.stream", cudaDeviceGetStreamPriorityRange(&least, &greatest));

    if (err == cudaSuccess)
        err = ST_CUDA_PASS("cuda.stream",
                           cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking,
                                                        greatest + (least - greatest) * (int)urgency / ST_CUDA_LAST));
    return err;
}

static strata_status create_handles(struct cuda_queue *q, enum st_cuda_urgency urgency)
{
    cudaError_t err = q->borrowed ? cudaSuccess : create_stream(&q->stream, urgency);

    if (err != cudaSuccess) {
        q->stream = NULL;
        return st_cuda_status(err, "cudaStreamCreateWithPriority");
    }
    for (uint32_t i = 0; i < ST_CUDA_MARKS && err == cudaSuccess; i++)
        err = ST_CUDA_PASS("cuda.event", cudaEventCreateWithFlags(&q->marks[i].event, EVENT_FLAGS));
    return st_cuda_status(err, "cudaEventCreateWithFlags");
}

static void destroy_handles(struct cuda_queue *q)
{
    for (uint32_t i = 0; i < ST_CUDA_MARKS; i++)
        if (q->marks[i].event != NULL)
            (void)cudaEventDestroy(q->marks[i].event);
    if (q->stream != NULL && !q->borrowed)
        (void)cudaStreamDestroy(q->stream);
}

static void destroy_locks(struct cuda_queue *q)
{
    pthread_cond_destroy(&q->added_one);
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->lock);
}

strata_status st_cuda_queue_start(struct cuda_queue *q, struct cuda_device *cuda, const char *name, enum st_cuda_urgency urgency)
{
    strata_status st;

    q->cuda = cuda;
    q->name = name;
    q->borrowed = urgency == ST_CUDA_BORROWED;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->added_one, NULL);
    pthread_cond_init(&q->changed, NULL);
    st = create_handles(q, urgency);
    atomic_fetch_add(&cuda->holders, 1); /* the watcher's */
    if (st == STRATA_OK)
        st = st_thread_start(&q->watcher, name, watch, q);
    q->runs = st == STRATA_OK;
    if (!q->runs) {
        st_cuda_release(cuda);
        destroy_handles(q);
        destroy_locks(q);
    }
    return st;
}

void st_cuda_queue_stop(struct cuda_queue *q)
{
    bool ended;

    if (!q->runs)
        return;
    if (q->cuda->guard.runs && !st_cuda_is_lost() && !q->borrowed) /* not opened: nothing is enqueued */
        (void)st_cuda_queue_finish(q);
    pthread_mutex_lock(&q->lock);
    q->stopping = true;
    pthread_cond_signal(&q->added_one);
    while (!q->ended && !q->abandoned) /* the guard runs, so one of them comes */
        pthread_cond_wait(&q->changed, &q->lock);
    ended = q->ended;
    pthread_mutex_unlock(&q->lock);
    if (ended)
        pthread_join(q->watcher, NULL);
    else
        pthread_detach(q->watcher);
}

/* The watcher of an abandoned queue may still come and look at it. */
void st_cuda_queue_fini(struct cuda_queue *q)
{
    if (!q->runs)
        return;
    if (!st_cuda_is_lost())
        destroy_handles(q);
    if (!q->abandoned)
        destroy_locks(q);
    q->runs = false;
}

/* --- marks --- */

/* Adds a mark; an event for it is recorded if it reports. */
static strata_status add(struct cuda_queue *q, const struct cuda_mark *what)
{
    strata_status st = st_cuda_lost();
    struct cuda_mark *mark;
    cudaEvent_t event;

    if (st != STRATA_OK)
        return st;
    pthread_mutex_lock(&q->lock);
    while (q->added - q->taken == ST_CUDA_MARKS) /* each ends by its deadline */
        pthread_cond_wait(&q->changed, &q->lock);
    mark = &q->marks[q->added % ST_CUDA_MARKS];
    pthread_mutex_unlock(&q->lock);
    event = mark->event;
    if (what->done != NULL)
        st = st_cuda_status(ST_CUDA_PASS("cuda.record", cudaEventRecord(event, q->stream)), "cudaEventRecord");
    if (st != STRATA_OK)
        return st;
    *mark = *what;
    mark->event = event;
    pthread_mutex_lock(&q->lock);
    if (q->abandoned)
        st = st_cuda_lost();
    else
        q->added++;
    pthread_cond_signal(&q->added_one);
    pthread_mutex_unlock(&q->lock);
    return st;
}

strata_status st_cuda_queue_notify(struct cuda_queue *q, void (*done)(void *ctx, strata_status st), void *ctx)
{
    return add(q, &(struct cuda_mark){.done = done, .ctx = ctx});
}

strata_status st_cuda_queue_copy(struct cuda_queue *q, void *dst, const void *src, uint64_t bytes)
{
    return add(q, &(struct cuda_mark){.dst = dst, .src = src, .bytes = bytes});
}

/* What a call of finish() waits for. */
struct drained {
    struct cuda_queue *queue; /* its lock guards the other members */
    bool over;
    strata_status status;
    struct st_sentence sentence;
};

static void note_drained(void *ctx, strata_status st)
{
    struct drained *d = ctx;

    pthread_mutex_lock(&d->queue->lock);
    d->status = st;
    if (st != STRATA_OK)
        st_error_keep(&d->sentence);
    d->over = true;
    pthread_cond_broadcast(&d->queue->changed);
    pthread_mutex_unlock(&d->queue->lock);
}

strata_status st_cuda_queue_finish(struct cuda_queue *q)
{
    struct drained d = {.queue = q};
    const strata_status st = st_cuda_queue_notify(q, note_drained, &d);

    if (st != STRATA_OK)
        return st;
    pthread_mutex_lock(&q->lock);
    while (!d.over)
        pthread_cond_wait(&q->changed, &q->lock);
    pthread_mutex_unlock(&q->lock);
    return d.status != STRATA_OK ? st_error_again(d.status, &d.sentence) : STRATA_OK;
}

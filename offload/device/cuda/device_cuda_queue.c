/* device_cuda_queue.c - one queue of the cuda device: a stream, the marks on it and the watcher that reports them. */
#include "core/base/error.h"
#include "core/system/thread.h"
#include "offload/device/cuda/device_cuda_internal.h"

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

static void *watch(void *arg)
{
    struct cuda_queue *q = arg;
    struct cuda_mark *mark;

    (void)cudaSetDevice(q->device);
    while ((mark = next_mark(q)) != NULL) {
        const strata_status st =
            st_cuda_status(ST_CUDA_PASS("cuda.wait", cudaEventSynchronize(mark->event)), "work on the device");

        mark->done(mark->ctx, st);
        pthread_mutex_lock(&q->lock);
        q->taken++;
        pthread_cond_signal(&q->taken_one);
        pthread_mutex_unlock(&q->lock);
    }
    return NULL;
}

/* --- start and stop --- */

static strata_status create_handles(struct cuda_queue *q)
{
    cudaError_t err = ST_CUDA_PASS("cuda.stream", cudaStreamCreateWithFlags(&q->stream, cudaStreamNonBlocking));

    if (err != cudaSuccess) {
        q->stream = NULL;
        return st_cuda_status(err, "cudaStreamCreateWithFlags");
    }
    err = ST_CUDA_PASS("cuda.event", cudaEventCreateWithFlags(&q->drained, EVENT_FLAGS));
    for (uint32_t i = 0; i < ST_CUDA_MARKS && err == cudaSuccess; i++)
        err = ST_CUDA_PASS("cuda.event", cudaEventCreateWithFlags(&q->marks[i].event, EVENT_FLAGS));
    return st_cuda_status(err, "cudaEventCreateWithFlags");
}

static void destroy_handles(struct cuda_queue *q)
{
    for (uint32_t i = 0; i < ST_CUDA_MARKS; i++)
        if (q->marks[i].event != NULL)
            (void)cudaEventDestroy(q->marks[i].event);
    if (q->drained != NULL)
        (void)cudaEventDestroy(q->drained);
    if (q->stream != NULL)
        (void)cudaStreamDestroy(q->stream);
}

static void destroy_locks(struct cuda_queue *q)
{
    pthread_cond_destroy(&q->added_one);
    pthread_cond_destroy(&q->taken_one);
    pthread_mutex_destroy(&q->lock);
}

strata_status st_cuda_queue_start(struct cuda_queue *q, int device, const char *name)
{
    strata_status st;

    q->device = device;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->added_one, NULL);
    pthread_cond_init(&q->taken_one, NULL);
    st = create_handles(q);
    if (st == STRATA_OK)
        st = st_thread_start(&q->watcher, name, watch, q);
    q->runs = st == STRATA_OK;
    if (!q->runs) {
        destroy_handles(q);
        destroy_locks(q);
    }
    return st;
}

void st_cuda_queue_stop(struct cuda_queue *q)
{
    if (!q->runs)
        return;
    pthread_mutex_lock(&q->lock);
    q->stopping = true;
    pthread_cond_signal(&q->added_one);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->watcher, NULL);
    (void)cudaStreamSynchronize(q->stream);
    destroy_handles(q);
    destroy_locks(q);
    q->runs = false;
}

/* --- marks --- */

strata_status st_cuda_queue_finish(struct cuda_queue *q)
{
    cudaError_t err = ST_CUDA_PASS("cuda.record", cudaEventRecord(q->drained, q->stream));

    if (err == cudaSuccess)
        err = ST_CUDA_PASS("cuda.wait", cudaEventSynchronize(q->drained));
    return st_cuda_status(err, "work on the device");
}

strata_status st_cuda_queue_notify(struct cuda_queue *q, void (*done)(void *ctx, strata_status st), void *ctx)
{
    struct cuda_mark *mark;
    cudaError_t err;

    pthread_mutex_lock(&q->lock);
    while (q->added - q->taken == ST_CUDA_MARKS)
        pthread_cond_wait(&q->taken_one, &q->lock);
    mark = &q->marks[q->added % ST_CUDA_MARKS];
    pthread_mutex_unlock(&q->lock);
    err = ST_CUDA_PASS("cuda.record", cudaEventRecord(mark->event, q->stream));
    if (err != cudaSuccess)
        return st_cuda_status(err, "cudaEventRecord");
    mark->done = done;
    mark->ctx = ctx;
    pthread_mutex_lock(&q->lock);
    q->added++;
    pthread_cond_signal(&q->added_one);
    pthread_mutex_unlock(&q->lock);
    return STRATA_OK;
}

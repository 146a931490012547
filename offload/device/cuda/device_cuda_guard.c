/* device_cuda_guard.c - the thread that keeps the cuda device's deadline; see device_cuda_internal.h, "Deadline".
 *
 * It wakes a few times per deadline and compares clocks, so it costs nothing, and a wait that ends in time is as quick as without
 * it. */
#include "core/base/error.h"
#include "core/base/size.h"
#include "core/system/clock.h"
#include "core/system/thread.h"
#include "offload/device/cuda/device_cuda_internal.h"

#include <stdio.h>
#include <time.h>

#define NS_PER_SECOND UINT64_C(1000000000)
#define LOOKS         8u /* per deadline: it is overrun by an eighth at most */

/* Of the process, as the context is. */
static atomic_bool lost; /* stored after the sentence */
static char sentence[ST_CUDA_SENTENCE];
static pthread_mutex_t losing = PTHREAD_MUTEX_INITIALIZER; /* held while the sentence is written */

/* Makes the device lost; only the first sentence is kept. */
static void lose(const struct cuda_device *cuda, const struct cuda_queue *q, uint64_t waited_ns)
{
    char waited[24];

    pthread_mutex_lock(&losing);
    if (!atomic_load(&lost))
        snprintf(
            sentence, sizeof(sentence),
            "cuda:%d: queue %s has made no progress for %s: the GPU is lost or a kernel never ends (nvidia-smi; Xid in dmesg); "
            "a slow GPU needs a longer strata.device_deadline",
            cuda->index, q->name, st_seconds_text(waited, (double)waited_ns * 1e-9));
    atomic_store(&lost, true);
    pthread_mutex_unlock(&losing);
}

bool st_cuda_is_lost(void)
{
    return atomic_load(&lost);
}

strata_status st_cuda_lost(void)
{
    return st_cuda_is_lost() ? st_error(STRATA_E_IO, "%s", sentence) : STRATA_OK;
}

void st_cuda_forget_loss(void)
{
    atomic_store(&lost, false);
}

/* Reports all marks of a queue in its watcher's place. */
static void abandon(struct cuda_device *cuda, struct cuda_queue *q, uint64_t waited_ns)
{
    lose(cuda, q, waited_ns);
    q->abandoned = true; /* from here on the marks are ours: nobody adds or takes any */
    while (q->taken != q->added) {
        const struct cuda_mark *mark = &q->marks[q->taken % ST_CUDA_MARKS];

        pthread_mutex_unlock(&q->lock);
        if (mark->done != NULL)
            mark->done(mark->ctx, st_cuda_lost());
        pthread_mutex_lock(&q->lock);
        q->taken++;
    }
    pthread_cond_broadcast(&q->changed);
}

static void look_at(struct cuda_device *cuda, struct cuda_queue *q)
{
    const uint64_t now = st_clock_ns();

    pthread_mutex_lock(&q->lock);
    if (!q->abandoned && q->waits_since_ns != 0 && now > q->waits_since_ns && now - q->waits_since_ns >= cuda->guard.deadline_ns)
        abandon(cuda, q, now - q->waits_since_ns);
    pthread_mutex_unlock(&q->lock);
}

/* False: stop. */
static bool sleep_until(struct cuda_guard *guard, uint64_t ns)
{
    const struct timespec until = {.tv_sec = (time_t)(ns / NS_PER_SECOND), .tv_nsec = (long)(ns % NS_PER_SECOND)};
    bool stopping;

    pthread_mutex_lock(&guard->lock);
    while (!guard->stopping && st_clock_ns() < ns)
        (void)pthread_cond_timedwait(&guard->stop, &guard->lock, &until);
    stopping = guard->stopping;
    pthread_mutex_unlock(&guard->lock);
    return !stopping;
}

static void *guard_main(void *arg)
{
    struct cuda_device *cuda = arg;
    const uint64_t step = cuda->guard.deadline_ns / LOOKS;
    const uint64_t pause = step < NS_PER_SECOND ? step + 1 : NS_PER_SECOND;

    while (sleep_until(&cuda->guard, st_clock_ns() + pause))
        for (uint32_t i = 0; i < cuda->queue_count; i++)
            look_at(cuda, &cuda->queues[i]);
    return NULL;
}

strata_status st_cuda_guard_start(struct cuda_device *cuda, uint64_t deadline_ns)
{
    struct cuda_guard *guard = &cuda->guard;
    pthread_condattr_t attr;
    strata_status st;

    guard->deadline_ns = deadline_ns != 0 ? deadline_ns : ST_DEVICE_DEADLINE_NS;
    pthread_mutex_init(&guard->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&guard->stop, &attr);
    pthread_condattr_destroy(&attr);
    st = st_thread_start(&guard->thread, "cuda-guard", guard_main, cuda);
    guard->runs = st == STRATA_OK;
    return st;
}

void st_cuda_guard_stop(struct cuda_device *cuda)
{
    struct cuda_guard *guard = &cuda->guard;

    if (!guard->runs)
        return;
    pthread_mutex_lock(&guard->lock);
    guard->stopping = true;
    pthread_cond_signal(&guard->stop);
    pthread_mutex_unlock(&guard->lock);
    pthread_join(guard->thread, NULL);
    guard->runs = false;
}

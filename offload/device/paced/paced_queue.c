/* paced_queue.c - see offload/device/paced/paced_queue.h.  One thread adds tasks, the queue's own thread takes them. */
#include "offload/device/paced/paced_queue.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/clock.h"
#include "core/system/thread.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#define TIMER_SLACK_NS 1000u /* the default, 50 us, is as long as a small layer takes */

/* The time of one piece, rounded up so that a copy is never faster than its link. */
static uint64_t piece_ns(const struct paced_task *task)
{
    return (uint64_t)ceil(task->seconds * 1e9 / (double)task->pieces);
}

void st_paced_processor_init(struct paced_processor *p)
{
    *p = (struct paced_processor){0};
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->turned, NULL);
}

void st_paced_processor_fini(struct paced_processor *p)
{
    pthread_cond_destroy(&p->turned);
    pthread_mutex_destroy(&p->lock);
}

/* Waits for the processor, in the order of asking; the clock and what runs on it are the caller's until give_turn(). */
static void take_turn(struct paced_processor *p)
{
    uint64_t mine;

    pthread_mutex_lock(&p->lock);
    mine = p->asked++;
    while (p->turn != mine)
        pthread_cond_wait(&p->turned, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

static void give_turn(struct paced_processor *p)
{
    pthread_mutex_lock(&p->lock);
    p->turn++;
    pthread_cond_broadcast(&p->turned);
    pthread_mutex_unlock(&p->lock);
}

static void run_piece(struct paced_queue *q, const struct paced_task *task, uint64_t index, uint64_t least_ns)
{
    struct paced_processor *const p = q->processor;
    const uint64_t start = st_clock_ns();
    uint64_t spent;

    if (p->clock_ns < task->arrived_ns)
        p->clock_ns = task->arrived_ns;
    task->work(q->device, task, index);
    spent = st_clock_ns() - start;
    p->clock_ns += spent > least_ns ? spent : least_ns;
    if (least_ns > 0)
        st_clock_sleep_until(p->clock_ns);
}

static void run_pieces(struct paced_queue *q, const struct paced_task *task)
{
    const uint64_t piece = task->pieces > 0 ? piece_ns(task) : 0;

    for (uint64_t i = 0; i < task->pieces; i++) {
        take_turn(q->processor);
        run_piece(q, task, i, piece);
        give_turn(q->processor);
    }
}

static void note_failure(struct paced_queue *q, int err)
{
    const strata_status st = st_error_errno(err, "paced device: a task failed");

    pthread_mutex_lock(&q->lock);
    if (q->status == STRATA_OK) {
        q->status = st;
        st_error_keep(&q->reason);
    }
    pthread_mutex_unlock(&q->lock);
}

/* Called with the lock held: moves the failure and its sentence to the calling thread. */
static strata_status report(struct paced_queue *q)
{
    const strata_status st = q->status;

    q->status = STRATA_OK;
    return st != STRATA_OK ? st_error_again(st, &q->reason) : st;
}

static void run_mark(struct paced_queue *q, const struct paced_mark *mark)
{
    strata_status st;

    pthread_mutex_lock(&q->lock);
    st = report(q);
    pthread_mutex_unlock(&q->lock);
    mark->done(mark->ctx, st);
}

static void run_task(struct paced_queue *q, const struct paced_task *task)
{
    int64_t refused;

    if (task->work == NULL)
        run_mark(q, &task->of.mark);
    else if ((refused = st_fault("paced.task", 0)) < 0)
        note_failure(q, (int)-refused);
    else
        run_pieces(q, task);
}

static void *queue_main(void *arg)
{
    struct paced_queue *q = arg;

    (void)prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0); /* if this is refused, the thread wakes later */
    pthread_mutex_lock(&q->lock);
    for (;;) {
        while (q->taken == q->added && !q->stopping)
            pthread_cond_wait(&q->waiting, &q->lock);
        if (q->taken == q->added)
            break;
        pthread_mutex_unlock(&q->lock);
        run_task(q, &q->ring[q->taken % ST_PACED_RING]);
        pthread_mutex_lock(&q->lock);
        q->taken++;
        pthread_cond_broadcast(&q->progress);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

static void destroy_locks(struct paced_queue *q)
{
    pthread_cond_destroy(&q->progress);
    pthread_cond_destroy(&q->waiting);
    pthread_mutex_destroy(&q->lock);
}

strata_status st_paced_queue_start(struct paced_queue *q, struct paced_device *device, struct paced_processor *processor,
                                   const char *name)
{
    strata_status st;

    q->device = device;
    q->processor = processor;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->waiting, NULL);
    pthread_cond_init(&q->progress, NULL);
    st = st_thread_start(&q->thread, name, queue_main, q);
    q->started = st == STRATA_OK;
    if (!q->started)
        destroy_locks(q);
    return st;
}

void st_paced_queue_stop(struct paced_queue *q)
{
    if (!q->started)
        return;
    pthread_mutex_lock(&q->lock);
    q->stopping = true;
    pthread_cond_signal(&q->waiting);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
    q->started = false;
    destroy_locks(q);
}

void st_paced_queue_add(struct paced_queue *q, const struct paced_task *task)
{
    struct paced_task *slot;

    pthread_mutex_lock(&q->lock);
    while (q->added - q->taken == ST_PACED_RING)
        pthread_cond_wait(&q->progress, &q->lock);
    slot = &q->ring[q->added % ST_PACED_RING];
    *slot = *task;
    slot->arrived_ns = st_clock_ns();
    q->added++;
    pthread_cond_signal(&q->waiting);
    pthread_mutex_unlock(&q->lock);
}

/* Without a deadline: its thread only copies, computes and sleeps for known times. */
strata_status st_paced_queue_finish(struct paced_queue *q)
{
    strata_status st;

    pthread_mutex_lock(&q->lock);
    while (q->taken != q->added)
        pthread_cond_wait(&q->progress, &q->lock);
    st = report(q);
    pthread_mutex_unlock(&q->lock);
    return st;
}

/* nvme/mover/mover_loop.c - the thread that owns the io: asleep while there is nothing to do, in reap() while requests are in
 * flight.
 *
 * Other threads hand work over in the mover's lists, under its lock, and nudge the thread, which hears it in either place.  All
 * calls of the io are made by the thread, but wake(). */
#include "nvme/mover/mover_internal.h"

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/system/clock.h"
#include "core/system/thread.h"

#include <assert.h>
#include <stdio.h>

static strata_status open_io(struct st_mover *m)
{
    const struct st_io_ops *ops = m->opts.ops;
    struct st_io_opts opts = m->opts.io;
    strata_status st;

    opts.queue_depth = m->slot_count;
    st = ops->open(&m->io, &opts);
    if (st != STRATA_OK || m->opts.region == NULL || m->opts.region_bytes == 0 || ops->register_region == NULL ||
        opts.unregistered)
        return st;
    m->registered = ops->register_region(m->io, m->opts.region, m->opts.region_bytes) == STRATA_OK;
    if (!m->registered)
        st_log(ST_LOG_NOTICE, "%s; transfers continue without registered memory", strata_last_error());
    return STRATA_OK;
}

static void report_start(struct st_mover *m, strata_status st)
{
    pthread_mutex_lock(&m->lock);
    m->status = st;
    st_error_keep(&m->error);
    m->self = pthread_self();
    m->started = true;
    pthread_cond_signal(&m->ready);
    pthread_mutex_unlock(&m->lock);
}

/* Sleeps while there is nothing to do.  False: stopping, and everything has ended. */
static bool take_work(struct st_mover *m, bool busy)
{
    bool go_on;

    pthread_mutex_lock(&m->lock);
    m->in_reap = false;
    while (!busy && !m->handed && !m->stopping)
        pthread_cond_wait(&m->work, &m->lock);
    go_on = busy || m->handed;
    m->taken_changes = m->changes;
    m->changes = NULL;
    m->taken = m->inbox;
    m->inbox.first = NULL;
    m->handed = false;
    pthread_mutex_unlock(&m->lock);
    return go_on;
}

/* Runs done() of requests that have ended; waits for the first, unless work was handed over meanwhile. */
static void reap(struct st_mover *m)
{
    strata_status st;

    pthread_mutex_lock(&m->lock);
    m->in_reap = !m->handed;
    pthread_mutex_unlock(&m->lock);
    st = m->opts.ops->reap_until(m->io, m->in_reap ? 1 : 0, m->tick_ns > 0 ? st_clock_ns() + m->tick_ns : 0);
    assert(st == STRATA_OK); /* a method that breaks ends its requests itself */
}

static void *thread_main(void *arg)
{
    struct st_mover *m = arg;
    const strata_status st = open_io(m);
    bool busy = false;

    report_start(m, st);
    while (st == STRATA_OK && take_work(m, busy)) {
        busy = st_mover_run(m) > 0;
        if (busy)
            reap(m);
    }
    m->opts.ops->close(m->io);
    return NULL;
}

static void join(struct st_mover *m)
{
    pthread_join(m->thread, NULL);
    pthread_cond_destroy(&m->ready);
    pthread_cond_destroy(&m->work);
}

strata_status st_mover_loop_start(struct st_mover *m)
{
    strata_status st;

    pthread_cond_init(&m->work, NULL);
    pthread_cond_init(&m->ready, NULL);
    if ((st = st_thread_start(&m->thread, "strata-io", thread_main, m)) != STRATA_OK) {
        pthread_cond_destroy(&m->ready);
        pthread_cond_destroy(&m->work);
        return st;
    }
    pthread_mutex_lock(&m->lock);
    while (!m->started)
        pthread_cond_wait(&m->ready, &m->lock);
    pthread_mutex_unlock(&m->lock);
    if (m->status == STRATA_OK)
        return STRATA_OK;
    join(m);
    return st_error_again(m->status, &m->error);
}

void st_mover_loop_stop(struct st_mover *m)
{
    pthread_mutex_lock(&m->lock);
    m->stopping = true;
    pthread_cond_signal(&m->work);
    pthread_mutex_unlock(&m->lock);
    join(m);
}

void st_mover_nudge(struct st_mover *m)
{
    const bool known = m->handed;

    m->handed = true;
    if (!m->in_reap)
        pthread_cond_signal(&m->work);
    else if (!known)
        m->opts.ops->wake(m->io);
}

bool st_mover_is_self(const struct st_mover *m)
{
    return pthread_equal(m->self, pthread_self()) != 0;
}

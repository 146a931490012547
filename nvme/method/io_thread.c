/* nvme/method/io_thread.c - see io_thread.h. */
#include "nvme/method/io_thread.h"

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/system/clock.h"
#include "core/system/thread.h"

#include <assert.h>
#include <stdio.h>

static strata_status open_io(struct st_io_thread *t)
{
    strata_status st = t->ops->open(&t->io, &t->opts);

    if (st != STRATA_OK || t->region_bytes == 0 || t->ops->register_region == NULL || t->opts.unregistered)
        return st;
    t->registered = t->ops->register_region(t->io, t->region, t->region_bytes) == STRATA_OK;
    if (!t->registered)
        st_log(ST_LOG_NOTICE, "%s; transfers continue without registered memory", strata_last_error());
    return STRATA_OK;
}

static void report_start(struct st_io_thread *t, strata_status st)
{
    pthread_mutex_lock(t->lock);
    t->status = st;
    snprintf(t->error, sizeof(t->error), "%s", strata_last_error());
    t->self = pthread_self();
    t->started = true;
    pthread_cond_signal(&t->ready);
    pthread_mutex_unlock(t->lock);
}

/* Sleeps while there is nothing to do.  False: stopping, and everything has ended. */
static bool take_work(struct st_io_thread *t, bool busy)
{
    bool go_on;

    pthread_mutex_lock(t->lock);
    t->in_reap = false;
    while (!busy && !t->handed && !t->stopping)
        pthread_cond_wait(&t->work, t->lock);
    go_on = busy || t->handed;
    if (t->handed)
        t->take(t->owner);
    t->handed = false;
    t->in_reap = true;
    pthread_mutex_unlock(t->lock);
    return go_on;
}

static void *thread_main(void *arg)
{
    struct st_io_thread *t = arg;
    const strata_status st = open_io(t);
    bool busy = false;

    report_start(t, st);
    while (st == STRATA_OK && take_work(t, busy)) {
        busy = t->run(t->owner) > 0;
        if (busy) {
            strata_status reaped;

            t->reaping = true;
            reaped = t->tick_ns > 0 ? t->ops->reap_until(t->io, 1, st_clock_ns() + t->tick_ns) : t->ops->reap(t->io, 1);
            t->reaping = false;
            assert(reaped == STRATA_OK); /* a method that breaks ends its requests itself */
        }
    }
    t->ops->close(t->io);
    return NULL;
}

static void join(struct st_io_thread *t)
{
    pthread_join(t->thread, NULL);
    pthread_cond_destroy(&t->ready);
    pthread_cond_destroy(&t->work);
    t->started = false;
}

strata_status st_io_thread_start(struct st_io_thread *t)
{
    strata_status st;

    pthread_cond_init(&t->work, NULL);
    pthread_cond_init(&t->ready, NULL);
    if ((st = st_thread_start(&t->thread, "strata-io", thread_main, t)) != STRATA_OK) {
        pthread_cond_destroy(&t->ready);
        pthread_cond_destroy(&t->work);
        return st;
    }
    pthread_mutex_lock(t->lock);
    while (!t->started)
        pthread_cond_wait(&t->ready, t->lock);
    pthread_mutex_unlock(t->lock);
    if (t->status == STRATA_OK)
        return STRATA_OK;
    join(t);
    return st_error(t->status, "%s", t->error);
}

void st_io_thread_stop(struct st_io_thread *t)
{
    pthread_mutex_lock(t->lock);
    t->stopping = true;
    pthread_cond_signal(&t->work);
    pthread_mutex_unlock(t->lock);
    join(t);
}

void st_io_thread_nudge(struct st_io_thread *t)
{
    const bool known = t->handed;

    t->handed = true;
    if (!t->in_reap)
        pthread_cond_signal(&t->work);
    else if (!known && !(st_io_thread_is_self(t) && t->reaping)) /* reap() returns after a done() */
        t->ops->wake(t->io);
}

bool st_io_thread_is_self(const struct st_io_thread *t)
{
    return pthread_equal(t->self, pthread_self()) != 0;
}

/* core/system/thread.c - see core/system/thread.h. */
#include "core/system/thread.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/floats.h"
#include "core/system/signals.h"

#include <errno.h>
#include <string.h>
#include <time.h>

strata_status st_thread_start(pthread_t *out, const char *name, void *(*main)(void *), void *arg)
{
    sigset_t before;
    fenv_t floats;
    int err = (int)-st_fault("thread.start", 0);

    if (err == 0) {
        st_signals_block(&before);
        st_floats_plain(&floats);
        err = pthread_create(out, NULL, main, arg); /* it begins with both */
        st_floats_restore(&floats);
        st_signals_restore(&before);
    }
    if (err != 0) {
        char reason[128];

        return st_error(STRATA_E_NOMEM, "thread %s could not be started: %s: see ulimit -u, and ulimit -v if it is set", name,
                        strerror_r(err, reason, sizeof(reason)));
    }
    (void)pthread_setname_np(*out, name); /* the name is only for display */
    return STRATA_OK;
}

void st_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

bool st_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns)
{
    const struct timespec until = {.tv_sec = (time_t)(deadline_ns / UINT64_C(1000000000)),
                                   .tv_nsec = (long)(deadline_ns % UINT64_C(1000000000))};

    if (deadline_ns == 0)
        return pthread_cond_wait(cond, lock) == 0;
    return pthread_cond_timedwait(cond, lock, &until) != ETIMEDOUT;
}

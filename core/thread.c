/* core/thread.c - see core/thread.h. */
#include "core/thread.h"

#include "core/error.h"
#include "core/fault.h"

#include <signal.h>
#include <string.h>

strata_status st_thread_start(pthread_t *out, const char *name, void *(*main)(void *), void *arg)
{
    sigset_t all, before;
    int err = (int)-st_fault("thread.start", 0);

    if (err == 0) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        err = pthread_create(out, NULL, main, arg);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    if (err != 0) {
        char reason[128];

        return st_error(STRATA_E_NOMEM, "thread %s could not be started: %s: see ulimit -u", name,
                        strerror_r(err, reason, sizeof(reason)));
    }
    (void)pthread_setname_np(*out, name); /* only a name */
    return STRATA_OK;
}

/* core/system/thread.c - see core/system/thread.h. */
#include "core/system/thread.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/signals.h"

#include <string.h>

strata_status st_thread_start(pthread_t *out, const char *name, void *(*main)(void *), void *arg)
{
    sigset_t before;
    int err = (int)-st_fault("thread.start", 0);

    if (err == 0) {
        st_signals_block(&before);
        err = pthread_create(out, NULL, main, arg);
        st_signals_restore(&before);
    }
    if (err != 0) {
        char reason[128];

        return st_error(STRATA_E_NOMEM, "thread %s could not be started: %s: see ulimit -u", name,
                        strerror_r(err, reason, sizeof(reason)));
    }
    (void)pthread_setname_np(*out, name); /* the name is only for display */
    return STRATA_OK;
}

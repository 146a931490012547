/* core/system/thread.h - threads that leave signals to the program's signal thread. */
#ifndef CORE_SYSTEM_THREAD_H
#define CORE_SYSTEM_THREAD_H

#include "strata/status.h"
#include <pthread.h>

/** Start a thread with every signal from outside blocked (core/system/signals.h).
 *  @param name  at most 15 characters, shown by ps -L and perf.
 *  E_NOMEM: the system refuses another thread. */
strata_status st_thread_start(pthread_t *out, const char *name, void *(*main)(void *), void *arg);

#endif

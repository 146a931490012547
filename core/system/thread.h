/* core/system/thread.h - threads that leave signals to the program's signal thread. */
#ifndef CORE_SYSTEM_THREAD_H
#define CORE_SYSTEM_THREAD_H

#include "strata/status.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/** Start a thread with every signal from outside blocked (core/system/signals.h), which computes as a C program does from its
 *  start (core/system/floats.h).
 *  @param name  at most 15 characters, shown by ps -L and perf.
 *  E_NOMEM: the system refuses another thread. */
strata_status st_thread_start(pthread_t *out, const char *name, void *(*main)(void *), void *arg);

/** A condition on the monotonic clock, as st_cond_wait() needs it. */
void st_cond_init(pthread_cond_t *cond);

/** Wait until signalled (spurious wake-ups happen) or until st_clock_ns() reaches deadline_ns (0: no limit); false at the
 *  deadline. */
bool st_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns);

#endif

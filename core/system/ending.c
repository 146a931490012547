/* core/system/ending.c - see core/system/ending.h. */
#include "core/system/ending.h"

#include <pthread.h>
#include <time.h>

#define WAIT_SECONDS 5

static pthread_mutex_t making = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP; /* guards names on disk that are not in a table yet */

void st_ending_hold(void)
{
    pthread_mutex_lock(&making);
}

void st_ending_release(void)
{
    pthread_mutex_unlock(&making);
}

void st_ending_begin(void)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_SECONDS;
    (void)pthread_mutex_timedlock(&making, &until); /* locked or timed out: either way the process ends */
}

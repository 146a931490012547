/* core/system/clock.c - monotonic time.  Any thread. */
#include "core/system/clock.h"

#include <errno.h>
#include <time.h>

#define NS_PER_SECOND 1000000000u

uint64_t st_clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_SECOND + (uint64_t)now.tv_nsec;
}

void st_clock_sleep_until(uint64_t ns)
{
    const struct timespec until = {.tv_sec = (time_t)(ns / NS_PER_SECOND), .tv_nsec = (long)(ns % NS_PER_SECOND)};

    while (st_clock_ns() < ns && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        continue;
}

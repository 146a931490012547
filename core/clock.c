/* core/clock.c - monotonic time.  Any thread. */
#include "core/clock.h"

#include <time.h>

uint64_t st_clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

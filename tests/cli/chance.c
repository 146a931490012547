/* chance.c - see chance.h. */
#include "tests/cli/chance.h"

#include <time.h>

static uint64_t state = 1;

void chance_seed(uint64_t seed)
{
    state = seed;
}

uint32_t chance_below(uint32_t limit)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 33) % limit;
}

void chance_sleep_us(uint32_t limit)
{
    const uint32_t us = chance_below(limit);
    const struct timespec pause = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000L};

    nanosleep(&pause, NULL);
}

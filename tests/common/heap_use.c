/* tests/common/heap_use.c - see heap_use.h. */
#include "tests/common/heap_use.h"

#include <malloc.h>

#define WARM_RUNS 4u

uint64_t heap_used(void)
{
    const struct mallinfo2 info = mallinfo2();

    return info.uordblks + info.hblkhd;
}

int64_t heap_growth(void (*once)(void *ctx), void *ctx, uint32_t times)
{
    uint64_t before;

    for (uint32_t i = 0; i < WARM_RUNS; i++)
        once(ctx);
    before = heap_used();
    for (uint32_t i = 0; i < times; i++)
        once(ctx);
    return (int64_t)(heap_used() - before);
}

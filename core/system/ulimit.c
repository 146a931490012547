/* core/system/ulimit.c - see ulimit.h. */
#include "core/system/ulimit.h"
#include "core/base/fault.h"

#include <malloc.h>
#include <stddef.h>
#include <sys/resource.h>

#define STACK_BYTES (8u << 20) /* for ulimit -s "unlimited"; glibc uses less */

/* A limit that cannot be read counts as none. */
static uint64_t limit_of(__rlimit_resource_t resource)
{
    struct rlimit limit;

    if (st_fault_refuses("ulimit.get") || getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    return limit.rlim_cur;
}

struct st_ulimit st_ulimit_memory(uint32_t threads)
{
    const uint64_t space = limit_of(RLIMIT_AS), data = limit_of(RLIMIT_DATA), stack = limit_of(RLIMIT_STACK);
    const uint64_t stacks = threads * (stack != UINT64_MAX ? stack : STACK_BYTES), bytes = space < data ? space : data;

    if (bytes == UINT64_MAX)
        return (struct st_ulimit){UINT64_MAX, NULL};
    return (struct st_ulimit){bytes > stacks ? bytes - stacks : 0, space < data ? "ulimit -v" : "ulimit -d"};
}

void st_ulimit_spare(void)
{
    if (limit_of(RLIMIT_AS) != UINT64_MAX)
        (void)mallopt(M_ARENA_MAX, 1);
}

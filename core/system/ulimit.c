/* core/system/ulimit.c - see ulimit.h. */
#include "core/system/ulimit.h"
#include "core/base/error.h"
#include "core/base/fault.h"

#include <inttypes.h>
#include <malloc.h>
#include <stddef.h>
#include <sys/resource.h>

#define STACK_BYTES (8u << 20) /* for ulimit -s "unlimited"; glibc uses less */
#define STACK_LEAST (256u << 10)

/* A limit that cannot be read counts as none. */
static uint64_t limit_of(__rlimit_resource_t resource)
{
    struct rlimit limit;

    if (st_fault_refuses("ulimit.get") || getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    return limit.rlim_cur;
}

uint64_t st_ulimit_descriptors(void)
{
    return limit_of(RLIMIT_NOFILE);
}

struct st_ulimit st_ulimit_memory(uint32_t threads)
{
    const uint64_t space = limit_of(RLIMIT_AS), data = limit_of(RLIMIT_DATA), stack = limit_of(RLIMIT_STACK);
    const uint64_t stacks = threads * (stack != UINT64_MAX ? stack : STACK_BYTES), bytes = space < data ? space : data;

    if (bytes == UINT64_MAX)
        return (struct st_ulimit){UINT64_MAX, NULL};
    return (struct st_ulimit){bytes > stacks ? bytes - stacks : 0, space < data ? "ulimit -v" : "ulimit -d"};
}

strata_status st_ulimit_check_stack(void)
{
    const uint64_t stack = limit_of(RLIMIT_STACK);

    if (stack >= STACK_LEAST)
        return STRATA_OK;
    return st_error(STRATA_E_NOFIT, "ulimit -s allows stacks of %" PRIu64 " KiB; %u KiB are needed: raise ulimit -s", stack >> 10,
                    STACK_LEAST >> 10);
}

void st_ulimit_spare(void)
{
    if (limit_of(RLIMIT_AS) != UINT64_MAX)
        (void)mallopt(M_ARENA_MAX, 1);
}

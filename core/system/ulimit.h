/* core/system/ulimit.h - limits that a shell or a batch system sets on the memory of a process: ulimit -v, -d and -s. */
#ifndef CORE_SYSTEM_ULIMIT_H
#define CORE_SYSTEM_ULIMIT_H

#include "strata/status.h"
#include <stdint.h>

struct st_ulimit {
    uint64_t bytes;   /* left after the stacks; UINT64_MAX: no limit */
    const char *name; /* "ulimit -v", "ulimit -d"; NULL: no limit */
};

/** Descriptors that a process may open, `ulimit -n`; UINT64_MAX: no limit. */
uint64_t st_ulimit_descriptors(void);
/** The tighter of RLIMIT_AS and RLIMIT_DATA, less the stacks of `threads` threads, which count whether they are touched or not.
 */
struct st_ulimit st_ulimit_memory(uint32_t threads);
/** If the address space is limited, keep malloc from reserving 64 MiB of it for every thread.  Call before the first thread
 *  starts. */
void st_ulimit_spare(void);
/** E_NOFIT: stacks are limited to less than what libraries and this program put on one; a thread would end in a fault without a
 *  sentence. */
strata_status st_ulimit_check_stack(void);

#endif

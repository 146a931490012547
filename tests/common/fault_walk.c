/* tests/common/fault_walk.c - see fault_walk.h. */
#include "tests/common/fault_walk.h"
#include "tests/common/test.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "tests/common/scratch.h"

#include <string.h>

static const char *site_of(const struct fault_walk *walk)
{
    return walk->site != NULL ? walk->site : "any site";
}

bool fault_walk_next(struct fault_walk *walk)
{
    const uint32_t descriptors = scratch_entries("/proc/self/fd", NULL);

    if (walk->runs == 0)
        walk->descriptors = descriptors;
    else if (descriptors != walk->descriptors)
        fail_msg("run %u of the walk over %s: %u descriptors are open, not %u", walk->runs, site_of(walk), descriptors,
                 walk->descriptors);
    if (walk->runs > 0 && !walk->fired)
        return false;
    walk->after += walk->runs++ > 0;
    st_error_clear();
    st_fault_arm(&(struct st_fault_spec){
        .site = walk->site, .after = walk->after, .count = walk->lasting ? 0 : 1, .result = walk->result});
    return true;
}

void fault_walk_end(struct fault_walk *walk, strata_status st)
{
    walk->fired = st_fault_disarm() > 0;
    walk->failed += st != STRATA_OK;
    if (!walk->fired && st != STRATA_OK)
        fail_msg("nothing failed, the run did with status %d: %s", st, strata_last_error());
    if (st != STRATA_OK && strata_last_error()[0] == '\0')
        fail_msg("passage %u of %s failed: status %d and no sentence", walk->after, site_of(walk), st);
    if (st == STRATA_E_NOMEM && strstr(strata_last_error(), "memory") == NULL && strstr(strata_last_error(), "ulimit") == NULL)
        fail_msg("passage %u of %s: \"%s\" does not say what is lacking", walk->after, site_of(walk), strata_last_error());
}

/* tests/common/fault_walk.h - the 1st, 2nd, 3rd ... passage of a fault site fails, each in a run of its own, until a run meets
 * none: every error path is taken once.
 *
 *     struct fault_walk walk = {.result = -EIO};
 *
 *     while (fault_walk_next(&walk)) {
 *         st = ...;
 *         fault_walk_end(&walk, st);
 *         ... nothing is left, and where st is OK the data is right
 *     }
 *
 * A run without a failure ends well, one with a failure ends well or has a sentence, and none leaves a descriptor open. */
#ifndef TESTS_COMMON_FAULT_WALK_H
#define TESTS_COMMON_FAULT_WALK_H

#include "strata/status.h"

#include <stdbool.h>
#include <stdint.h>

struct fault_walk {
    const char *site; /* NULL: any */
    int64_t result;   /* of the passage that fails */
    bool lasting;     /* it and all behind it */
    uint32_t after;   /* passages before it in this run; add to it to leave some out of the next one */
    bool fired;       /* in this run, once it has ended */
    uint32_t runs, failed;
    uint32_t descriptors; /* before the first run */
};

/** Arms the next run's failure; false: the last run met none. */
bool fault_walk_next(struct fault_walk *walk);
/** After a run: nothing fails any more. */
void fault_walk_end(struct fault_walk *walk, strata_status st);

#endif

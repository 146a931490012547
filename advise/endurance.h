/* advise/endurance.h - how much a planned run will write to its drives. */
#ifndef ADVISE_ENDURANCE_H
#define ADVISE_ENDURANCE_H

#include "advise/case.h"
#include "core/trace/written.h"

/** For a plan: so many steps at the predicted pace; 0: nobody knows how many. */
void st_endurance_planned(struct st_written *out, const struct st_case *of, uint64_t steps);

#endif

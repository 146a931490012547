/* advise/schedules.h - a plan's other schedules, side by side. */
#ifndef ADVISE_SCHEDULES_H
#define ADVISE_SCHEDULES_H

#include "advise/case.h"
#include "core/json/json.h"
#include <stdio.h>

/** The same run under every update policy (and, with several micro-batches, both orders of accumulation) that is possible for it.
 *  E_NOMEM. */
strata_status st_schedules_print(const struct st_case *of, FILE *file);
/** The same as "evaluated_by" and "schedules" of an object that is open. */
strata_status st_schedules_put(const struct st_case *of, struct st_json_writer *w);

#endif

/* advise/plan_parts.h - the whole report of a plan, part by part in their order. */
#ifndef ADVISE_PLAN_PARTS_H
#define ADVISE_PLAN_PARTS_H

#include "advise/case.h"
#include "core/json/json.h"
#include "strata/plan.h"

/** @param parts  of enum strata_plan_part
 *  @param steps  of the run; 0: nobody knows
 *
 *  E_NOMEM. */
strata_status st_plan_print_parts(const struct st_case *of, unsigned parts, uint64_t steps, FILE *to);
/** Keys of `strata plan --json` into an object that is open. */
strata_status st_plan_put_parts(const struct st_case *of, unsigned parts, uint64_t steps, struct st_json_writer *w);

#endif

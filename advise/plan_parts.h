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

/* The parts that are plans of their own, of a plan that fits.  E_NOMEM. */

/** Schedules side by side. */
strata_status st_schedules_print(const struct st_case *of, FILE *file);
/** "evaluated_by" and "schedules" of an object that is open. */
strata_status st_schedules_put(const struct st_case *of, struct st_json_writer *w);

/** What one more drive, a faster link, faster compute or updates, or more memory would change, fitted to the width of `to`;
 *  nothing if rates are unknown. */
strata_status st_one_more_print(const struct st_case *of, FILE *to);
/** "one_more" of an object that is open. */
strata_status st_one_more_put(const struct st_case *of, struct st_json_writer *w);

/** The same run on 1, 2, 4, ... 1024 ranks, also of a plan that does not fit: a table, or "scale" of an object that is open. */
strata_status st_ranks_print(const struct st_case *of, FILE *to);
strata_status st_ranks_put(const struct st_case *of, struct st_json_writer *w);

#endif

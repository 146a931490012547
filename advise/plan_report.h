/* advise/plan_report.h - a plan printed for people and for programs. */
#ifndef ADVISE_PLAN_REPORT_H
#define ADVISE_PLAN_REPORT_H

#include "advise/case.h"
#include "core/base/size.h"
#include "core/json/json.h"

/** Tiers, memory, traffic and decisions; `full` adds where everything is placed and the traffic of every phase. */
void st_plan_print(const struct st_case *of, bool full, FILE *file);
/** One or two lines: the shortest possible step. */
void st_bounds_print(const struct st_case *of, FILE *file);
/** Keys of `strata plan --json` into an object that is open. */
void st_plan_put(const struct st_case *of, struct st_json_writer *w);

/** One simulated step as a trace (docs/trace.md).  E_INPUT: the plan does not fit, or a rate that it needs is not known; E_NOMEM;
 *  E_INTERNAL: the program cannot proceed. */
strata_status st_plan_trace(const struct st_case *of, FILE *file);

const char *st_tier_name(strata_tier tier);

/** "serial", "gated" or "in_backward".  Static. */
const char *st_update_name(enum st_update_policy update);

/* What ZeRO needs and moves as its authors count it (arXiv:1910.02054), beside a plan's own bytes. */

/** Bytes that each rank receives in a step of ZeRO at the program's stage. */
double st_zero_comm_bytes(const struct st_program *program);

/** One line: a rank's model states as ZeRO counts them, and, of a plan that fits, its own.  Nothing of one that does not train.
 */
void st_zero_print_states(const struct st_plan *plan, FILE *file);
/** The same, as `model_states` of an object that is open. */
void st_zero_put_states(const struct st_plan *plan, struct st_json_writer *w);

#endif

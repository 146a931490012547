/* api/plan_machine.h - what a plan takes of its machine.  For the doors of plans. */
#ifndef API_PLAN_MACHINE_H
#define API_PLAN_MACHINE_H

#include "api/handles.h"

#define ST_HANDLE_MEASURING "measuring the rates of this machine" /* what progress is told */

/** Fill the plan's machine, node and rates_known: capacities of its machine within the configuration's budgets, and rates where a
 *  file or names give them.  E_CONFIG, E_INPUT, E_NOSYS: it cannot be one for this machine. */
strata_status st_handle_find_machine(struct strata_plan *p);
/** Take these rates, and whether any is known. */
void st_handle_take_rates(struct strata_plan *p, const struct st_rates *rates);
/** The rates that a run has kept, or new ones.  Ranks measure at the same time, and share what there is: theirs are not kept. */
strata_status st_handle_measure(struct strata_plan *p);

#endif

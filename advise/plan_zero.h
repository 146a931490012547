/* advise/plan_zero.h - what ZeRO needs and moves as its authors count it (arXiv:1910.02054), beside a plan's own bytes. */
#ifndef ADVISE_PLAN_ZERO_H
#define ADVISE_PLAN_ZERO_H

#include "core/json/json.h"
#include "offload/plan/plan.h"

#include <stdio.h>

/** Bytes that each rank receives in a step of ZeRO at the program's stage. */
double st_zero_comm_bytes(const struct st_program *program);

/** One line: a rank's model states as ZeRO counts them, and, of a plan that fits, its own.  Nothing of one that does not train.
 */
void st_zero_print_states(const struct st_plan *plan, FILE *file);
/** The same, as `model_states` of an object that is open. */
void st_zero_put_states(const struct st_plan *plan, struct st_json_writer *w);

#endif

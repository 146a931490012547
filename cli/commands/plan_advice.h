/* cli/commands/plan_advice.h - strata plan where nothing is chosen: which configuration to train with. */
#ifndef CLI_COMMANDS_PLAN_ADVICE_H
#define CLI_COMMANDS_PLAN_ADVICE_H

#include "cli/options/args.h"
#include "strata/plan.h"

/** Whether a command line asks: it says --tokens, --batch-tokens or --write, or it names a model and a machine alone. What says
 *  anything of a run (a configuration, --set, a micro-batch, data), or asks for one plan's program, gives that plan. */
bool cli_plan_asks(const struct cli_args *args);

/** Answer it, print the answer and write the file.  Returns the exit code: 3 if nothing fits. */
int cli_plan_advice(const struct cli_args *args);

/** Writes --trace, if it is given.  E_INPUT: no step can be simulated; E_NOMEM, E_IO, or what is wrong with the file's name. */
strata_status cli_plan_trace(const struct strata_plan *plan, const struct cli_args *args);

#endif

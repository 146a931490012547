/* cli/commands/plan_question.h - strata plan --tokens: which configuration to train with. */
#ifndef CLI_COMMANDS_PLAN_QUESTION_H
#define CLI_COMMANDS_PLAN_QUESTION_H

#include "cli/options/args.h"

/** Answer it, print the answer and write the file.  Returns the exit code: 3 if nothing fits. */
int cli_plan_question(const struct cli_args *args);

#endif

/* cli/commands/plan_picture.h - the picture that strata plan --svg writes. */
#ifndef CLI_COMMANDS_PLAN_PICTURE_H
#define CLI_COMMANDS_PLAN_PICTURE_H

#include "cli/options/args.h"

struct strata_plan;

/** Writes --svg, if it is given.  E_NOMEM, E_IO, or what is wrong with the file's name. */
strata_status cli_plan_picture(const struct strata_plan *plan, const struct cli_args *args);

#endif

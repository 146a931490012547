/* cli/commands/check_parts.h - strata check opens what a run reads, and looks at where it writes, as strata train would. */
#ifndef CLI_COMMANDS_CHECK_PARTS_H
#define CLI_COMMANDS_CHECK_PARTS_H

#include "cli/commands/check_report.h"
#include "cli/options/args.h"

/** Look at checkpoints, model, data and the places of results by the functions of strata train; what cannot be looked at is added
 *  to c->unseen, and what must be there for a run, and is not, to c->needed.  Nothing is written beside a temporary file, no
 * weight is read, and no device is asked.  Logs nothing.
 *  @param config_file  NULL: none, or as the trainer's file says
 *  @param config       as it was read from there
 *  @param ranks        of several, which open model and data together, neither is opened
 *  @return what strata train would end with, and its sentence */
strata_status cli_check_parts(struct cli_check *c, const struct cli_args *args, const char *config_file,
                              struct strata_config *config, uint32_t ranks);

#endif

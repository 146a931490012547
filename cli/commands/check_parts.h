/* cli/commands/check_parts.h - strata check opens what a trainer's file names, as strata train would. */
#ifndef CLI_COMMANDS_CHECK_PARTS_H
#define CLI_COMMANDS_CHECK_PARTS_H

#include "cli/commands/check_report.h"
#include "cli/options/args.h"

/** Open model and data where they are on this machine; what is not is added to c->unseen.  Nothing is written beside a temporary
 *  file, no weight is read, and no device is asked.  Logs nothing.
 *  @param config_file  NULL: none, or as the trainer's file says
 *  @return what strata train would end with, and its sentence */
strata_status cli_check_parts(struct cli_check *c, const struct cli_args *args, const char *config_file);

#endif

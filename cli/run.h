/* cli/run.h - from a command line to the options of a session. */
#ifndef CLI_RUN_H
#define CLI_RUN_H

#include "api/session.h"
#include "cli/options/args.h"
#include "cli/report/progress.h"

/** Everything is borrowed from `args` and `progress`, which shows work that takes its time (NULL: nobody watches) and ends it
 * once a signal has asked. */
struct st_session_opts cli_run_opts(const struct cli_args *args, struct cli_progress *progress);

#endif

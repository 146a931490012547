/* cli/commands/local_ranks.h - the ranks that `strata launch` starts: processes of this program, on this machine, from the first
 * to the end of the last one.
 *
 * They find torch's variables (RANK, WORLD_SIZE, ...), and STRATA_LAUNCHER, the number of this process: a rank gets SIGTERM when
 * this process is gone (cli/ranks.c).  A signal to this process goes to every rank.
 *
 * Once a rank has failed the others hear of it from each other and end by themselves; after two seconds they are sent SIGTERM,
 * which asks for the end that a failed run has anyway, and 30 seconds later SIGKILL.  Ranks that a signal asked to end take as
 * long as their step and its checkpoint take. */
#ifndef CLI_COMMANDS_LOCAL_RANKS_H
#define CLI_COMMANDS_LOCAL_RANKS_H

#include "strata/status.h"
#include <stdbool.h>
#include <stdint.h>

struct cli_local_ranks {
    uint32_t ranks;
    bool prefix;       /* each line that a rank prints begins with its number */
    char *const *argv; /* "strata", a command and its options, NULL; borrowed */
};

/** Start them, and wait.
 *
 *  @param code  out: 0, or the exit code of the first rank that failed, 128 + the signal that killed it.  4, which says that
 *               another rank has failed, gives way to that one's
 *
 *  @return E_IO, E_NOMEM: not all could be started, and those that were have ended */
strata_status cli_local_ranks_run(const struct cli_local_ranks *of, int *code);

#endif

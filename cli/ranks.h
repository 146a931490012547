/* cli/ranks.h - which of a run's processes this one is, and what it prints: rank 0 speaks for all, the others only of what is
 * wrong.
 *
 * Ranks come from options (--rank, --world-size ...) and launchers' variables: strata/comm.h. */
#ifndef CLI_RANKS_H
#define CLI_RANKS_H

#include "cli/options/args.h"
#include "strata/comm.h"
#include "strata/config.h"
#include <stdio.h>

#define CLI_RANKS_PATH_MAX 4096

struct cli_ranks {
    struct strata_comm_opts who;
    struct strata_comm *comm; /* NULL: they have not met */
    struct strata_comm_info info;
    struct cli_args own; /* of a rank above 0 */
    char trace[CLI_RANKS_PATH_MAX];
};

/** Find this process's rank; from here on what a rank above 0 says begins with "rank N: ", and of log lines only warnings and
 * errors are printed.  E_INVAL: sources disagree. */
strata_status cli_ranks_find(struct cli_ranks *r, const struct cli_args *args);
/** The options of this rank: rank 0 has all of them, the others print nothing, write no metrics, and trace to FILE.rankN.
 *  @return args, or a copy in r, which must not move */
const struct cli_args *cli_ranks_args(struct cli_ranks *r, const struct cli_args *args);
/** Meet the others, for as long as the configuration says.  As strata_comm_open(). */
strata_status cli_ranks_meet(struct cli_ranks *r, const struct strata_config *config);
/** What each rank's command line asks of all of them: how long the run is, and what else they do together.  E_CONFIG: it differs.
 */
strata_status cli_ranks_agree(const struct cli_ranks *r, const struct cli_args *args);
/** One line for people: "2 ranks (torchrun), 2 on this machine, by tcp".  Nothing of one rank. */
void cli_ranks_print(const struct cli_ranks *r, FILE *file);
/** A run has ended with this status: if it has failed, tell the others before the engine waits for them.  What launchers send to
 *  those that are left, SIGTERM and a second later SIGKILL, then ends this one at once, without swap files. */
void cli_ranks_leave(struct cli_ranks *r, strata_status st);
/** The signal (0: none) of the first rank that has one, on all ranks. */
strata_status cli_ranks_first(struct cli_ranks *r, int mine, int *number);
/** Rank 0's bytes on all ranks.
 *  @param what  for sentences */
strata_status cli_ranks_of_first(struct cli_ranks *r, void *data, size_t bytes, const char *what);
void cli_ranks_close(struct cli_ranks *r);

/** Say, of a run of one process that no launcher has started, what NPROC_PER_NODE asks for and what does it here. */
void cli_ranks_note_alone(const struct cli_ranks *r);

/** For commands of one process: E_INVAL if a launcher has started several. */
strata_status cli_ranks_alone(const struct cli_args *args, const char *command);

/** "rank 3: ", or "" of rank 0 and where there are no ranks.  Static. */
const char *cli_ranks_prefix(void);

#endif

/* cli/commands/resubmitted.h - a job that is submitted again although its run has ended: its model is there, and nothing is left
 * to do. */
#ifndef CLI_COMMANDS_RESUBMITTED_H
#define CLI_COMMANDS_RESUBMITTED_H

#include "cli/commands/checkpoints.h"
#include "cli/commands/unsaved.h"

struct cli_resubmitted {
    bool asked;                  /* --resume auto goes on from a checkpoint, or from what one that failed has left, and --out
                                  * holds a model that it may not replace */
    bool adapter;                /* --out holds that in place of a model */
    bool finished;               /* it is that of the checkpoint, which is of the last step */
    char weights[33], state[33]; /* digests, then */
    bool replaces;               /* it is this run's own, of a step before the last one, of which there is no checkpoint */
    struct cli_unsaved unsaved;  /* what an attempt has left whose last checkpoint failed */
};

/** Whether there may be nothing to do; reads next to nothing.  Only rank 0 asks, whose --out it is.
 *  @param adapter  the run trains one, which --out is */
void cli_resubmitted_ask(struct cli_resubmitted *f, const struct cli_checkpoints *s, bool adapter);
/** Where there may: compare the model with the checkpoint, all of both; every rank gets rank 0's answer.  E_INPUT: they differ,
 * or the run has steps left to do, and would come to a directory that is taken; E_CORRUPT, E_IO, E_NOMEM. */
strata_status cli_resubmitted_compare(struct cli_resubmitted *f, const struct cli_checkpoints *s, uint64_t steps);

#endif

/* cli/commands/checkpoints.h - checkpoints of a training run: what it resumes from, when it saves, and what is said of it.
 *
 * SIGUSR1 asks for a checkpoint after the step; the run goes on. */
#ifndef CLI_COMMANDS_CHECKPOINTS_H
#define CLI_COMMANDS_CHECKPOINTS_H

#include "cli/run.h"
#include "strata/train.h"

struct cli_checkpoints {
    const struct cli_args *args;    /* borrowed */
    struct cli_ranks *ranks;        /* the same */
    char dir[4096];                 /* --save; "": none */
    uint64_t every;                 /* steps; 0: at the end, and when asked */
    struct strata_checkpoint *from; /* --resume; NULL: the run begins */
    struct strata_checkpoint_info was;
};

/** Find what --resume names, of several ranks what rank 0 finds: before anything is allocated.
 *  @param ranks  have met
 *  @param dir    --save, "": none */
strata_status cli_checkpoints_find(struct cli_checkpoints *s, const struct cli_args *args, struct cli_ranks *ranks,
                                   const char *dir);
/** The same for a run that will save, and refuse --save if it has names that this run will want.
 *  @param every  --save-every */
strata_status cli_checkpoints_prepare(struct cli_checkpoints *s, const struct cli_args *args, struct cli_ranks *ranks,
                                      const char *dir, uint64_t every);
/** Where the run goes on, its steps have as many sequences and leaves as before, if the configuration leaves that open. */
strata_status cli_checkpoints_keep_step(const struct cli_checkpoints *s, struct cli_run *run);
/** Whether the run may take the names of checkpoints of later steps: with --overwrite, and with --resume auto, which has passed
 *  over those that do not open. */
bool cli_checkpoints_replace(const struct cli_checkpoints *s);
/** Whether --resume auto has found a checkpoint; or none, so that the run begins, perhaps not for the first time. */
bool cli_checkpoints_goes_on(const struct cli_checkpoints *s);
bool cli_checkpoints_begins(const struct cli_checkpoints *s);
/** Whether no line of --metrics is of --resume auto's run: what is there an attempt has left that saved nothing. */
bool cli_checkpoints_lacks_lines(const struct cli_checkpoints *s);
/** Checkpoints that the run has in --save already. */
uint32_t cli_checkpoints_kept(const struct cli_checkpoints *s);
/** Begin the run, or go on from the checkpoint.
 *  @param opts  all but what is said of checkpoints here */
strata_status cli_checkpoints_load(struct cli_checkpoints *s, struct cli_run *run, struct strata_training **training,
                                   struct strata_training_opts *opts);
/** Steps, skipped ones included, that the run has behind it when it begins. */
uint64_t cli_checkpoints_steps(const struct cli_checkpoints *s);

/** When all else of the run is done: E_IO if its last checkpoint could not be made. */
strata_status cli_checkpoints_status(const struct cli_checkpoints *s, const struct strata_training_info *run);
void cli_checkpoints_close(struct cli_checkpoints *s);

#endif

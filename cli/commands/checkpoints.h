/* cli/commands/checkpoints.h - checkpoints of a training run: what it resumes from, when it saves, and what is said of it.
 *
 * SIGUSR1 asks for a checkpoint after the step; the run goes on. */
#ifndef CLI_COMMANDS_CHECKPOINTS_H
#define CLI_COMMANDS_CHECKPOINTS_H

#include "cli/run.h"
#include "strata/checkpoint.h"

struct cli_checkpoints {
    const struct cli_args *args;    /* borrowed */
    struct cli_ranks *ranks;        /* the same */
    char dir[4096];                 /* --save; "": none */
    uint64_t every;                 /* steps; 0: at the end, and when asked */
    struct strata_checkpoint *from; /* --resume; NULL: the run begins */
    struct strata_checkpoint_info was;
    struct strata_save_opts opts;
    const struct cli_evals *evals; /* borrowed, what checkpoints say of them; NULL: nothing */
    char note[CLI_EVALS_NOTE_MAX];
    uint64_t saved_at;   /* steps done at the last save, or when the run resumed */
    bool under_way;      /* a save is not known to be done */
    bool failed;         /* the last one did */
    char sentence[1024]; /* of its failure */
    struct strata_saved last;
    char newest[4096]; /* path of the last checkpoint that is whole, made by this run or resumed from; "": there is none */
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
/** Load the weights, or go on from the checkpoint.
 *  @param order  enum strata_data_order of the data */
strata_status cli_checkpoints_load(struct cli_checkpoints *s, struct cli_run *run, const struct strata_data *data,
                                   uint32_t order);
/** Steps, skipped ones included, that the run has behind it when it begins. */
uint64_t cli_checkpoints_steps(const struct cli_checkpoints *s);

/** Tell the engine when to save, before the first of all steps. */
strata_status cli_checkpoints_schedule(const struct cli_checkpoints *s, struct cli_run *run, uint64_t steps);
/** After each step: save if the engine says that it is due, and say what became of the one before.  A failure is a warning.
 *  @param metrics_bytes  of whole lines in --metrics
 *  @param asked          a rank has got SIGUSR1 */
strata_status cli_checkpoints_step(struct cli_checkpoints *s, struct cli_run *run, uint64_t steps_done, uint64_t metrics_bytes,
                                   bool asked);
/** At the end: save what is not saved yet, and wait.  The status that ended the engine, if it has ended. */
strata_status cli_checkpoints_end(struct cli_checkpoints *s, struct cli_run *run, uint64_t steps_done, uint64_t metrics_bytes);
/** When all else of the run is done: E_IO if its last checkpoint could not be made. */
strata_status cli_checkpoints_status(const struct cli_checkpoints *s);
void cli_checkpoints_close(struct cli_checkpoints *s);

#endif

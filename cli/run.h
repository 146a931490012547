/* cli/run.h - from a command line to the library's handles: train, plan, eval, generate and the benches open them in this order.
 *
 * Each step needs the ones before it and may fail; cli_run_close accepts a run in any state. */
#ifndef CLI_RUN_H
#define CLI_RUN_H

#include "cli/options/args.h"
#include "cli/ranks.h"
#include "cli/report/progress.h"
#include "core/system/path.h"
#include "strata/engine.h"
#include "strata/machine.h"

struct cli_run {
    const struct cli_args *args;   /* borrowed */
    struct cli_progress *progress; /* borrowed; shows long work, and ends it once a signal has asked; NULL: no progress */
    struct cli_ranks ranks;        /* found before cli_run_configure, which lets them meet */
    uint32_t prompt_tokens;        /* generate: set before cli_run_model */
    const char *adapter;           /* eval: set before cli_run_model, like the next; NULL: as the arguments say */
    uint32_t cache_tokens;         /* the same, instead, for a conversation; 0: none */
    struct strata_config *config;
    struct strata_machine *machine;
    struct strata_model *model;
    struct strata_model_info shape;
    bool documents;              /* sequences of the data hold several */
    uint32_t saved_checkpoints;  /* train: set before cli_run_model, see strata_model_opts */
    bool replaces;               /* train: checkpoints that have the names that it uses */
    char cache_dir[ST_PATH_MAX]; /* see strata_machine_opts; filled in with them */
    const char *date;            /* train: what templates take for today, of the run that goes on; NULL: as the arguments say */
    struct strata_plan *plan;
    struct strata_engine *engine;
};

/** Open the configuration, after checking the device's name, and meet the other ranks. */
strata_status cli_run_configure(struct cli_run *r, const struct cli_args *args, struct cli_progress *progress);
/** Reopen the configuration for a resumed run: batch size and leaves are the checkpoint's where they are "auto". */
strata_status cli_run_configure_again(struct cli_run *r, uint32_t train_batch, uint32_t leaves);
/** Open the machine and the model. */
strata_status cli_run_model(struct cli_run *r);
/** The options that it opens them with; some are borrowed from the run. */
void cli_run_machine_opts(struct cli_run *r, struct strata_machine_opts *opts);
void cli_run_model_opts(struct cli_run *r, struct strata_model_opts *opts);
/** Print of its plan these parts (enum strata_plan_part). */
void cli_run_print_plan(const struct cli_run *r, unsigned parts, FILE *file);
/** Create the engine. */
strata_status cli_run_create(struct cli_run *r);
/** The same, and load its weights; closes the progress line. */
strata_status cli_run_start(struct cli_run *r);
/** Close what cli_run_model() opened and all after it, so that another model may be opened. */
void cli_run_end(struct cli_run *r);
void cli_run_close(struct cli_run *r);

/** Open --data: token files, or texts, rows and data sets, which become tokens first; not some of both.
 *  @param heldout  out: with --val-size, what is held out; may be NULL without it */
strata_status cli_run_data(const struct cli_run *r, struct strata_data **data, struct strata_data **heldout);
/** Whether --data PATH is a text or rows of texts, of which tokens must be made. */
bool cli_run_is_text(const char *path);
/** The part of it that names tell: kinds that are not read, texts beside token files, options without their data. */
strata_status cli_run_check_data(const struct cli_run *r);
/** Open --eval-data. */
strata_status cli_run_eval_data(const struct cli_run *r, struct strata_data **data);

/** Bytes of main memory that the plan allows; 0 without a plan. */
uint64_t cli_run_memory(const struct cli_run *r);

#endif

/* cli/commands/train_internal.h - the parts of `strata train`: what a run has, and its end (train_end.c). */
#ifndef CLI_COMMANDS_TRAIN_INTERNAL_H
#define CLI_COMMANDS_TRAIN_INTERNAL_H

#include "cli/commands/checkpoints.h"
#include "cli/commands/metrics_lines.h"
#include "cli/commands/monitor.h"
#include "cli/commands/resubmitted.h"
#include "cli/run.h"
#include "core/system/pressure.h"

struct cli_medians;
struct st_watchdog;

struct train {
    const struct cli_args *args; /* own */
    struct cli_args own;         /* this rank's, with parts of the run as steps */
    struct cli_run run;
    struct strata_config_info says;  /* what the configuration asks of the program */
    struct strata_plan_info planned; /* once the engine is there */
    struct strata_data *data, *eval_data;
    struct strata_training *training;
    struct strata_training_info at; /* how far it is; all 0 before it begins */
    struct cli_progress progress;
    struct cli_medians *medians;
    struct cli_checkpoints checkpoints; /* --save, --resume */
    struct cli_resubmitted resubmitted; /* a run that has ended before */
    struct cli_lines lines;             /* --metrics, --json */
    struct cli_monitor monitor;         /* "tensorboard", "csv_monitor" */
    struct st_new_file trace;           /* --trace */
    struct strata_export *out;          /* --out */
    struct st_watchdog *watchdog;       /* NULL: strata.watchdog is off */
    struct st_pressure *pressure;
    struct st_pressure_sample pressure_first; /* before the first step */
    uint64_t steps, epoch_steps;              /* of the run, which may end early; of an epoch, 0: steps do not end with epochs */
    uint64_t steps_done, start_ns;
    uint64_t steps_asked;      /* of the run, if it does not end early */
    bool no_rate_yet;          /* every step from the first on had lr 0 */
    int ended_by;              /* the signal, or CLI_SIGNAL_MEMORY, that ended the run, of any rank; 0: none */
    uint64_t tokens_rss_bytes; /* what making tokens took, where it is more than the run's plan; else 0 */
    struct cli_summary summary;
};

/* Rank 0 prints, and writes the results. */
static inline bool speaks(const struct train *t)
{
    return t->run.ranks.who.rank == 0;
}

static inline FILE *people(const struct cli_args *args)
{
    return args->json ? stderr : stdout;
}

/* The newest checkpoint that is whole; "": there is none. */
static inline const char *newest(const struct train *t)
{
    return t->at.newest != NULL ? t->at.newest : "";
}

/* Whether a signal ended the run before everything was done. */
static inline bool is_short(const struct train *t)
{
    return t->steps_done < t->steps || t->at.eval_cut;
}

/* train_before.c */

/** Once it is configured: whether there is something to evaluate, as often as is asked. */
strata_status train_check_evaluated(struct train *t);
/** The same, and: what it goes on from, when it evaluates, and where it saves.  Makes nothing. */
strata_status train_before_model(struct train *t);
/** Where its results go.  Without a model: as far as that can be said.  Makes nothing. */
strata_status train_before_plan(struct train *t);
/** The options of the trace: a resumed run writes another, beside those of its earlier parts. */
struct cli_args train_traces(const struct cli_args *args);
/** As Hugging Face's Trainer counts them: an epoch ends with a smaller step, and a part of an epoch is rounded up to whole
 *  steps. */
strata_status train_count_steps(struct train *t);

/* train_end.c */

/** After the last step: digests, the model.  E_CANCELLED: the run was ended early. */
strata_status train_finish(struct train *t);
/** Say that the run was finished before, and print its digests. */
strata_status train_say_finished(struct train *t);
/** Writes the summary; the run's status goes through, and its sentence. */
strata_status train_summarise(struct train *t, strata_status st);
strata_status train_write_trace(struct train *t, strata_status st);
/** All but the run, whose ranks may still be there. */
void train_close(struct train *t);
int train_exit_code(const struct train *t, strata_status st);

#endif

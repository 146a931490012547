/* cli/report/losses.h - what a run remembers of its losses: the mean of the last steps', and of evaluations the best and the
 * last, how many came since the best, and which were the lowest.
 *
 * What it knows of evaluations is a line of text, too (cli_evals_note), which a checkpoint keeps: a run that goes on decides as
 * one that never ended.  The mean begins anew. */
#ifndef CLI_REPORT_LOSSES_H
#define CLI_REPORT_LOSSES_H

#include "core/json/json.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define CLI_LOSSES_MEAN    20u
#define CLI_LOWEST_MAX     32u /* at least STRATA_KEEP_MAX */
#define CLI_EVALS_NOTE_MAX 1024u

struct cli_losses {
    double last[CLI_LOSSES_MEAN];
    uint64_t count; /* finite ones so far */
};
/** The mean with this one, of those of the last 20 steps that are finite; NaN: none is. */
double cli_losses_mean(struct cli_losses *l, double loss);

struct cli_evals {
    uint32_t keep;     /* --keep-best; 0: none */
    uint64_t patience; /* --early-stop; 0: none */
    uint64_t count;    /* of all evaluations of the run */
    uint64_t worse;    /* since the best, without a lower loss */
    uint64_t best_step, last_step;
    uint64_t targets;              /* of the last one; 0: there was none */
    double best, last;             /* NaN: none */
    double lowest[CLI_LOWEST_MAX]; /* [lowest_count] ascending */
    uint32_t lowest_count;
};
/** Begin, or go on from a note.  @param note  NULL or "": begin; one that is none: the same */
void cli_evals_begin(struct cli_evals *e, uint32_t keep, uint64_t patience, const char *note);
/** Before cli_evals_take(): over how many tokens it was.  False: those before were over another number, and so of other data. */
bool cli_evals_over(struct cli_evals *e, uint64_t targets);
/** After an evaluation; a second one of the same step counts once.  True: it is among the `keep` lowest. */
bool cli_evals_take(struct cli_evals *e, uint64_t step, double loss);
/** Whether the run ends: `patience` evaluations in a row had no lower loss. */
bool cli_evals_stop(const struct cli_evals *e);
/** Whether the weights after this step have a loss that is a number. */
bool cli_evals_has(const struct cli_evals *e, uint64_t step);
/** "": there was no evaluation. */
void cli_evals_note(const struct cli_evals *e, char note[CLI_EVALS_NOTE_MAX]);
/** What the summary says of them: a line, and members; nothing where there was none. */
void cli_evals_print(const struct cli_evals *e, FILE *file);
void cli_evals_put(const struct cli_evals *e, struct st_json_writer *w);

#endif

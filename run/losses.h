/* run/losses.h - what a run remembers of its losses: the mean of the last steps', and of evaluations the best and the
 * last, how many came since the best, and which were the lowest.
 *
 * What it knows of evaluations is a line of text, too (st_evals_note), which a checkpoint keeps: a run that goes on decides as
 * one that never ended.  The mean begins anew. */
#ifndef RUN_LOSSES_H
#define RUN_LOSSES_H

#include <stdbool.h>
#include <stdint.h>

#define ST_LOSSES_MEAN    20u
#define ST_LOWEST_MAX     32u /* at least STRATA_KEEP_MAX */
#define ST_EVALS_NOTE_MAX 1024u

struct st_losses {
    double last[ST_LOSSES_MEAN];
    uint64_t count; /* finite ones so far */
};
/** The mean with this one, of those of the last 20 steps that are finite; NaN: none is. */
double st_losses_mean(struct st_losses *l, double loss);

struct st_evals {
    uint32_t keep;     /* the lowest are kept; 0: none */
    uint64_t patience; /* evaluations without a lower loss; 0: any number */
    uint64_t count;    /* of all evaluations of the run */
    uint64_t worse;    /* since the best, without a lower loss */
    uint64_t best_step, last_step;
    uint64_t targets;             /* of the last one; 0: there was none */
    double best, last;            /* NaN: none */
    double lowest[ST_LOWEST_MAX]; /* [lowest_count] ascending */
    uint32_t lowest_count;
};
/** Begin, or go on from a note.  @param note  NULL or "": begin; one that is none: the same */
void st_evals_begin(struct st_evals *e, uint32_t keep, uint64_t patience, const char *note);
/** Before st_evals_take(): over how many tokens it was.  False: those before were over another number, and so of other data. */
bool st_evals_over(struct st_evals *e, uint64_t targets);
/** After an evaluation; a second one of the same step counts once.  True: it is among the `keep` lowest. */
bool st_evals_take(struct st_evals *e, uint64_t step, double loss);
/** Whether the run ends: `patience` evaluations in a row had no lower loss. */
bool st_evals_stop(const struct st_evals *e);
/** Whether the weights after this step have a loss that is a number. */
bool st_evals_has(const struct st_evals *e, uint64_t step);
/** "": there was no evaluation. */
void st_evals_note(const struct st_evals *e, char note[ST_EVALS_NOTE_MAX]);

#endif

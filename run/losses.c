/* run/losses.c - see losses.h. */
#include "run/losses.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

double st_losses_mean(struct st_losses *l, double loss)
{
    double sum = 0;
    uint64_t count;

    if (isfinite(loss))
        l->last[l->count++ % ST_LOSSES_MEAN] = loss;
    count = l->count < ST_LOSSES_MEAN ? l->count : ST_LOSSES_MEAN;
    for (uint64_t i = 0; i < count; i++)
        sum += l->last[i];
    return count > 0 ? sum / (double)count : (double)NAN;
}

/* --- evaluations --- */

static uint64_t bits_of(double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static double value_of(uint64_t bits)
{
    double value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

#define NOTE "evals 2 %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %016" PRIx64 " %" PRIu64 " %016" PRIx64 " %u"
#define READ "evals 2 %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %16" SCNx64 " %" SCNu64 " %16" SCNx64 " %u%n"

void st_evals_note(const struct st_evals *e, char note[ST_EVALS_NOTE_MAX])
{
    int fill;

    note[0] = '\0';
    if (e->count == 0)
        return;
    fill = snprintf(note, ST_EVALS_NOTE_MAX, NOTE, e->targets, e->count, e->worse, e->best_step, bits_of(e->best), e->last_step,
                    bits_of(e->last), e->lowest_count);
    for (uint32_t i = 0; i < e->lowest_count; i++)
        fill += snprintf(note + fill, ST_EVALS_NOTE_MAX - (size_t)fill, " %016" PRIx64, bits_of(e->lowest[i]));
}

static bool read_note(struct st_evals *e, const char *note)
{
    uint64_t best, last, bits;
    int used = 0, more = 0;

    if (sscanf(note, READ, &e->targets, &e->count, &e->worse, &e->best_step, &best, &e->last_step, &last, &e->lowest_count,
               &used) != 8 ||
        e->lowest_count > ST_LOWEST_MAX)
        return false;
    e->best = value_of(best);
    e->last = value_of(last);
    for (uint32_t i = 0; i < e->lowest_count; i++, used += more) {
        if (sscanf(note + used, " %16" SCNx64 "%n", &bits, &more) != 1)
            return false;
        e->lowest[i] = value_of(bits);
    }
    return true;
}

void st_evals_begin(struct st_evals *e, uint32_t keep, uint64_t patience, const char *note)
{
    const struct st_evals none = {.keep = keep, .patience = patience, .best = (double)NAN, .last = (double)NAN};

    *e = none;
    if (note != NULL && note[0] != '\0' && !read_note(e, note))
        *e = none;
}

/* Puts a loss in its place among the lowest.  False: it is none of them. */
static bool insert(struct st_evals *e, double loss)
{
    uint32_t at = e->lowest_count < e->keep ? e->lowest_count : e->keep;

    while (at > 0 && loss < e->lowest[at - 1])
        at--;
    if (at == e->keep)
        return false;
    if (e->lowest_count < e->keep)
        e->lowest_count++;
    memmove(&e->lowest[at + 1], &e->lowest[at], (e->lowest_count - 1 - at) * sizeof(e->lowest[0]));
    e->lowest[at] = loss;
    return true;
}

bool st_evals_over(struct st_evals *e, uint64_t targets)
{
    const bool same = e->targets == 0 || e->targets == targets;

    e->targets = targets;
    return same;
}

bool st_evals_take(struct st_evals *e, uint64_t step, double loss)
{
    const bool lower = isfinite(loss) && !(loss >= e->best);

    if (e->count > 0 && step == e->last_step)
        return false;
    e->count++;
    e->last = loss;
    e->last_step = step;
    e->worse = lower ? 0 : e->worse + 1;
    if (lower) {
        e->best = loss;
        e->best_step = step;
    }
    return isfinite(loss) && e->keep > 0 && insert(e, loss);
}

bool st_evals_stop(const struct st_evals *e)
{
    return e->patience > 0 && e->worse >= e->patience;
}

bool st_evals_has(const struct st_evals *e, uint64_t step)
{
    return e->count > 0 && e->last_step == step && isfinite(e->last);
}

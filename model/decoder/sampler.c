/* sampler.c - candidates in a heap, so that only the likely ones are ever sorted.  One user per sampler. */
#include "model/decoder/sampler.h"

#include "core/base/error.h"
#include "core/base/rng.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLE_STREAM UINT64_C(0x73616d706c65) /* distinct from the streams of the initial weights and of the data's order */

struct candidate {
    float logit;
    uint32_t token;
};

/* candidates[0 .. heap_count - 1] is a heap with the likeliest on top. Candidates taken off it are stored after it, the first one
 * at the end: number i in order is candidates[vocab - 1 - i]. */
struct st_sampler {
    struct st_sampler_opts opts;
    uint32_t vocab;
    uint32_t heap_count;
    double largest; /* logit */
    bool *seen;     /* [vocab] */
    float *logits;  /* [vocab] with the penalty applied */
    struct candidate candidates[];
};

strata_status st_sampler_create(struct st_sampler **out, uint32_t vocab, const struct st_sampler_opts *opts)
{
    struct st_sampler *s;

    if (vocab == 0 || vocab > INT32_MAX)
        return st_error(STRATA_E_INVAL, "sampler: a vocabulary of %u tokens", vocab);
    if (!(opts->temperature >= 0 && opts->temperature <= STRATA_TEMPERATURE_MOST))
        return st_error(STRATA_E_INVAL, "sampler: the temperature is %g: 0 to %g", opts->temperature, STRATA_TEMPERATURE_MOST);
    if (!(opts->top_p > 0 && opts->top_p <= 1))
        return st_error(STRATA_E_INVAL, "sampler: top-p is %g: more than 0, at most 1", opts->top_p);
    if (!(opts->repetition_penalty >= STRATA_REPETITION_LEAST && opts->repetition_penalty <= STRATA_REPETITION_MOST))
        return st_error(STRATA_E_INVAL, "sampler: the repetition penalty is %g: %g to %g", opts->repetition_penalty,
                        STRATA_REPETITION_LEAST, STRATA_REPETITION_MOST);
    s = calloc(1, sizeof(*s) + vocab * sizeof(s->candidates[0]));
    if (s == NULL || (s->seen = calloc(vocab, sizeof(*s->seen))) == NULL ||
        (s->logits = malloc(vocab * sizeof(*s->logits))) == NULL) {
        st_sampler_destroy(s);
        return st_nomem(0);
    }
    s->opts = *opts;
    s->vocab = vocab;
    *out = s;
    return STRATA_OK;
}

void st_sampler_destroy(struct st_sampler *s)
{
    if (s == NULL)
        return;
    free(s->seen);
    free(s->logits);
    free(s);
}

void st_sampler_forget(struct st_sampler *s)
{
    memset(s->seen, 0, s->vocab * sizeof(*s->seen));
}

void st_sampler_see(struct st_sampler *s, int32_t token)
{
    s->seen[token] = true;
}

/* --- the heap --- */

static bool likelier(const struct candidate *a, const struct candidate *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->token < b->token);
}

static void swap(struct candidate *a, struct candidate *b)
{
    const struct candidate keep = *a;

    *a = *b;
    *b = keep;
}

static void sink(struct st_sampler *s, uint32_t at)
{
    for (;;) {
        const uint64_t left = 2 * (uint64_t)at + 1;
        uint32_t best = at;

        for (uint64_t child = left; child < left + 2 && child < s->heap_count; child++)
            if (likelier(&s->candidates[child], &s->candidates[best]))
                best = (uint32_t)child;
        if (best == at)
            return;
        swap(&s->candidates[at], &s->candidates[best]);
        at = best;
    }
}

/* Weight of a token relative to the likeliest one. */
static double weight(const struct st_sampler *s, float logit)
{
    return exp(((double)logit - s->largest) / s->opts.temperature);
}

/* Candidate number `i` in order. */
static const struct candidate *in_order(struct st_sampler *s, uint32_t i)
{
    while (s->vocab - s->heap_count <= i) {
        s->heap_count--;
        swap(&s->candidates[0], &s->candidates[s->heap_count]);
        sink(s, 0);
    }
    return &s->candidates[s->vocab - 1 - i];
}

static void heap_make(struct st_sampler *s, const float *logits)
{
    for (uint32_t i = 0; i < s->vocab; i++)
        s->candidates[i] = (struct candidate){.logit = logits[i], .token = i};
    s->heap_count = s->vocab;
    for (uint32_t i = s->vocab / 2; i-- > 0;)
        sink(s, i);
}

/* --- picking --- */

/* Applies the penalty in fp32, as transformers does. */
static const float *penalised(struct st_sampler *s, const float *logits)
{
    const float penalty = (float)s->opts.repetition_penalty;

    if (penalty == 1.0f)
        return logits;
    for (uint32_t i = 0; i < s->vocab; i++)
        s->logits[i] = !s->seen[i] ? logits[i] : logits[i] > 0 ? logits[i] / penalty : logits[i] * penalty;
    return s->logits;
}

static strata_status likeliest(const struct st_sampler *s, const float *logits, uint32_t *best)
{
    *best = 0;
    for (uint32_t i = 0; i < s->vocab; i++) {
        if (isnan(logits[i]) || logits[i] == INFINITY)
            return st_error(STRATA_E_NUMERICS, "logit %u is %f: the weights are damaged or have diverged", i, (double)logits[i]);
        if (logits[i] > logits[*best])
            *best = i;
    }
    if (logits[*best] == -INFINITY)
        return st_error(STRATA_E_NUMERICS, "every logit is -inf: no token can come next");
    return STRATA_OK;
}

/* Candidates that top-k leaves: those as likely as the last of them stay, too, as in transformers. */
static uint32_t likeliest_k(struct st_sampler *s)
{
    uint32_t count = s->opts.top_k != 0 && s->opts.top_k < s->vocab ? s->opts.top_k : s->vocab;

    while (count < s->vocab && in_order(s, count)->logit == in_order(s, count - 1)->logit)
        count++;
    return count;
}

/* Sum of the weights that top-k leaves.  Over all tokens it is computed in the order of the vocabulary, which needs no
 * sorting. */
static double mass_of(struct st_sampler *s, const float *logits, uint32_t count)
{
    double mass = 0;

    for (uint32_t i = 0; count == s->vocab && i < count; i++)
        mass += weight(s, logits[i]);
    if (count == s->vocab)
        return mass;
    for (uint32_t i = 0; i < count; i++)
        mass += weight(s, in_order(s, i)->logit);
    return mass;
}

/* Candidates of the smallest set with a probability of top-p; *mass: theirs. */
static uint32_t nucleus(struct st_sampler *s, uint32_t count, double *mass)
{
    const double enough = s->opts.top_p * *mass;
    double sum = 0;

    for (uint32_t i = 0; i < count; i++) {
        sum += weight(s, in_order(s, i)->logit);
        if (sum >= enough) {
            *mass = sum;
            return i + 1;
        }
    }
    return count;
}

strata_status st_sampler_pick(struct st_sampler *s, const float *row, double uniform, int32_t *token)
{
    uint32_t best, count;
    const float *logits = penalised(s, row);
    const strata_status st = likeliest(s, logits, &best);
    double mass, sum = 0;

    if (st != STRATA_OK)
        return st;
    *token = (int32_t)best;
    if (s->opts.temperature == 0)
        return STRATA_OK;
    s->largest = (double)logits[best];
    heap_make(s, logits);
    count = likeliest_k(s);
    mass = mass_of(s, logits, count);
    if (s->opts.top_p < 1)
        count = nucleus(s, count, &mass);
    for (uint32_t i = 0; i < count; i++) {
        const struct candidate *c = in_order(s, i);

        sum += weight(s, c->logit);
        if (sum > uniform * mass) {
            *token = (int32_t)c->token;
            return STRATA_OK;
        }
    }
    return STRATA_OK; /* rounding went past the last candidate: keep the likeliest */
}

strata_status st_sampler_next(struct st_sampler *s, const float *logits, uint64_t index, int32_t *token)
{
    const double uniform = (double)(st_rng_u64(s->opts.seed, SAMPLE_STREAM, index) >> 11) * 0x1p-53;

    return st_sampler_pick(s, logits, uniform, token);
}

/* model/decoder/sampler.h - from a row of logits to the next token: repetition penalty, greedy or temperature, top-k, top-p, in
 * this order.
 *
 * A pure function of the logits, the options, the tokens seen and a counter, so the same seed gives the same text. Candidates are
 * ordered by decreasing logit, equal ones by increasing token id; weights and sums are fp64. */
#ifndef MODEL_DECODER_SAMPLER_H
#define MODEL_DECODER_SAMPLER_H

#include "strata/generate.h"
#include <stdint.h>

struct st_sampler_opts {
    double temperature;        /* logits are divided by it; 0: the largest logit wins; at most 1e6 */
    uint32_t top_k;            /* only the k likeliest, and those as likely as the last of them; 0: all */
    double top_p;              /* then only the smallest set with at least this fraction of what is left; (0, 1], 1: all */
    double repetition_penalty; /* divides the logits of tokens already seen if they are above 0, else multiplies them; 1e-6..1e6,
                                  1: none */
    uint64_t seed;
};

struct st_sampler;

/** @param vocab  1..2^31 - 1 tokens.  E_INVAL: an option out of its range, with a sentence that names it. */
strata_status st_sampler_create(struct st_sampler **out, uint32_t vocab, const struct st_sampler_opts *opts);
void st_sampler_destroy(struct st_sampler *s); /* NULL is fine */

/** Begin another text: no token is seen yet. */
void st_sampler_forget(struct st_sampler *s);
/** Record a token of the prompt or a generated one, which is now part of the text. */
void st_sampler_see(struct st_sampler *s, int32_t token);
/** Choose the token for `logits` [vocab] f32 at position `index` of the text (its random number depends only on seed and index).
 *  A token with a logit of -inf is never chosen.  E_NUMERICS: a NaN, +inf, or nothing but -inf. */
strata_status st_sampler_next(struct st_sampler *s, const float *logits, uint64_t index, int32_t *token);
/** The same for a given random number in [0, 1). */
strata_status st_sampler_pick(struct st_sampler *s, const float *logits, double uniform, int32_t *token);

#endif

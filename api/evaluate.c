/* api/evaluate.c - batches of token windows, and forward over all of them. */
#include "api/session.h"
#include "core/base/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

strata_status st_batch_create(struct st_batch *b, const struct st_session *s)
{
    const size_t sequences = (size_t)s->config.micro_batch * s->config.grad_accum;

    *b = (struct st_batch){.sequences = (uint32_t)sequences, .seq = s->seq};
    b->tokens = calloc(sequences * s->seq, sizeof(*b->tokens));
    b->targets = calloc(sequences * s->seq, sizeof(*b->targets));
    if (b->tokens != NULL && b->targets != NULL)
        return STRATA_OK;
    st_batch_destroy(b);
    return st_error(STRATA_E_NOMEM, "no memory for the tokens of %zu sequences", sequences);
}

void st_batch_destroy(struct st_batch *b)
{
    free(b->tokens);
    free(b->targets);
    *b = (struct st_batch){0};
}

double st_bits_per_byte(double loss, const struct st_token_set *set)
{
    const double bytes_per_token = st_token_set_bytes_per_token(set);

    return bytes_per_token > 0 ? loss / (bytes_per_token * M_LN2) : (double)NAN;
}

/* Windows first.. of the set; beyond its end, tokens 0 and targets -1. */
static strata_status batch_fill_in_order(struct st_batch *b, const struct st_token_set *set, uint64_t first)
{
    const uint64_t windows = st_token_set_windows(set);
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < b->sequences && st == STRATA_OK; i++) {
        int32_t *tokens = b->tokens + (size_t)i * b->seq, *targets = b->targets + (size_t)i * b->seq;

        if (first + i < windows) {
            st = st_token_set_window(set, first + i, 0, false, tokens, targets);
            continue;
        }
        memset(tokens, 0, b->seq * sizeof(*tokens));
        memset(targets, 0xff, b->seq * sizeof(*targets));
    }
    return st;
}

strata_status st_evaluate(struct st_session *s, const struct st_token_set *set, struct st_batch *batch,
                          struct st_eval_result *out)
{
    const uint64_t windows = st_token_set_windows(set);
    strata_status st = STRATA_OK;
    double loss_sum = 0;
    uint64_t targets = 0, first = 0;

    for (; first < windows; first += batch->sequences) {
        double batch_loss;
        uint64_t batch_targets;

        st = st_session_watch(s, "evaluating", first, windows);
        if (st == STRATA_OK)
            st = batch_fill_in_order(batch, set, first);
        if (st == STRATA_OK)
            st = st_engine_eval(s->engine, batch->tokens, batch->targets, &batch_loss, &batch_targets);
        if (st != STRATA_OK)
            break;
        loss_sum += batch_loss;
        targets += batch_targets;
    }
    out->windows = first < windows ? first : windows;
    out->targets = targets;
    out->loss = targets > 0 ? loss_sum / (double)targets : (double)NAN;
    out->perplexity = exp(out->loss);
    out->bits_per_byte = st_bits_per_byte(out->loss, set);
    return st;
}

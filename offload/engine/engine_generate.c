/* engine_generate.c - forward over the next tokens of one sequence: the key-value cache stays in the blocks' internals.
 *
 * Of a layer of experts only slices come that a row of the call has chosen an expert of.  The counts of the choice come to the
 * host; what follows is one flag for each slice's page.  With it the dispatcher takes all ops on that page for masked: reads,
 * copies, exchanges, products. */
#include "offload/engine/engine_internal.h"

#include "core/base/error.h"

#include <math.h>
#include <string.h>

/* Puts the rows of this call first into the host's tokens; those after them are not used. */
static void take_rows(struct st_engine *eng, const int32_t *tokens, uint32_t count, uint32_t position)
{
    const uint32_t seq = eng->program->workload.seq;
    int32_t *into =
        (int32_t *)(uintptr_t)st_engine_tokens(eng, st_engine_pointer(eng, eng->program->at.tokens_host), eng->program->rank);

    memset(into, 0, seq * sizeof(*into));
    memcpy(into, tokens, count * sizeof(*into));
    memset(into + seq, 0xff, seq * sizeof(*into)); /* no targets */
    eng->target_count = 0;
    eng->generate_rows = count;
    eng->generate_position = position;
}

int32_t *st_engine_choice(const struct st_engine *eng, uint32_t rank)
{
    const uint64_t bytes = st_workload_choice_bytes(&eng->program->workload);
    unsigned char *all = st_engine_pointer(eng, eng->program->at.choice);

    return (int32_t *)(void *)(all + (st_program_cuts(eng->program) > 1 ? rank : 0) * bytes);
}

strata_status st_engine_download_choice(struct st_engine *eng, const struct st_op *op)
{
    const unsigned char *internals = st_engine_operand(eng, op, ST_ROLE_INTERNALS);

    eng->result.bytes.download += op->bytes;
    return eng->device->ops->download(eng->device, st_engine_choice(eng, eng->program->rank),
                                      internals + eng->program->workload.choice_offset, op->bytes);
}

/* Whether a rank has rows for the experts of a slice.  Ranks whose processors differ may choose differently; all have what any
 * one wants, so that they exchange the same. */
static bool is_wanted(const struct st_engine *eng, uint32_t slice)
{
    const struct st_workload *w = &eng->program->workload;
    const uint32_t first = slice * w->slice_experts, left = w->experts - first;
    const uint32_t end = first + (left < w->slice_experts ? left : w->slice_experts);
    bool wanted = false;

    for (uint32_t r = 0; r < st_program_cuts(eng->program); r++) {
        const int32_t *before = st_engine_choice(eng, r);

        wanted |= before[end] != before[first];
    }
    return wanted;
}

strata_status st_engine_choose(struct st_engine *eng, const struct st_op *op)
{
    const struct st_workload *w = &eng->program->workload;

    for (uint32_t s = 0; s < st_layer_slices(&w->layers[op->layer]); s++)
        atomic_store_explicit(&eng->left_out[st_layer_page(w, op->layer, 1 + s)], !is_wanted(eng, s), memory_order_relaxed);
    return STRATA_OK;
}

static strata_status download_logits(struct st_engine *eng, float *logits)
{
    const struct st_workload *w = &eng->program->workload;
    const unsigned char *head = st_engine_pointer(eng, eng->program->at.head_internals);
    const uint64_t bytes = (uint64_t)w->vocab * sizeof(*logits);
    const strata_status st = st_engine_get(eng, logits, head + w->logits_offset, bytes);

    if (st == STRATA_OK)
        eng->moved.download += bytes;
    for (uint32_t v = 0; st == STRATA_OK && w->logit_cap > 0.0f && v < w->vocab; v++)
        logits[v] = w->logit_cap * tanhf(logits[v] / w->logit_cap);
    return st;
}

strata_status st_engine_forward(struct st_engine *eng, const int32_t *tokens, uint32_t count, uint32_t position, float *logits)
{
    const struct st_workload *w = &eng->program->workload;
    strata_status st;

    if (!w->generate || eng->program->kept_blocks != st_block_count(w))
        return st_error(STRATA_E_INVAL, "engine: the plan is not one for generation");
    if (count == 0 || count > w->seq)
        return st_error(STRATA_E_INVAL, "engine: %u tokens in one call, 1 to %u are planned for", count, w->seq);
    if ((st = st_engine_check_ids(eng, tokens, NULL, count)) != STRATA_OK || (st = st_engine_flush(eng, NULL)) != STRATA_OK)
        return st;
    memset(&eng->result, 0, sizeof(eng->result));
    take_rows(eng, tokens, count, position);
    st = st_engine_cycle(eng, ST_PHASE_EVAL);
    eng->generate_rows = eng->generate_position = 0;
    if (st == STRATA_OK && eng->comm != NULL)
        st = st_engine_drain(eng); /* ranks talk between calls */
    return st == STRATA_OK ? download_logits(eng, logits) : st;
}

/* model/init.c - seeded initial weights, computed for any range of any page without the rest of the model.
 *
 * Llama family: N(0, 0.02), biases 0, but a router's as weights, norms 1.  GPT-2: weights and embeddings N(0, 0.02), residual
 * projections N(0, 0.02 / sqrt(2 blocks)), biases 0, norms 1 and 0.  Adapters: A as their settings say, B 0. */
#include "core/base/rng.h"
#include "model/layout.h"
#include <string.h>

static void fill_piece(const struct st_piece *piece, uint64_t seed, float *out)
{
    const struct st_tensor *t = piece->tensor;

    if (t->init_range > 0.0f)
        st_rng_uniform(out, piece->count, seed, t->stream, piece->tensor_first, t->init_range);
    else if (t->init_std > 0.0f)
        st_rng_normal(out, piece->count, seed, t->stream, piece->tensor_first, t->init_std);
    else
        memset(out, 0, piece->count * sizeof(*out));
    if (t->init_mean == 0.0f)
        return;
    for (uint64_t i = 0; i < piece->count; i++)
        out[i] += t->init_mean;
}

static strata_status init_read(void *ctx, uint32_t page, uint64_t first, uint64_t count, float *out)
{
    const struct st_model_init *init = ctx;
    struct st_piece piece;

    memset(out, 0, count * sizeof(*out)); /* padding */
    for (uint32_t i = 0; st_model_piece(init->model, page, first, count, i, &piece); i++) {
        if (piece.count > 0)
            fill_piece(&piece, init->seed, out + piece.range_first);
    }
    return STRATA_OK;
}

struct st_weight_source st_model_init_source(struct st_model_init *init)
{
    return (struct st_weight_source){.ctx = init, .read = init_read};
}

static strata_status adapter_read(void *ctx, uint32_t page, uint64_t first, uint64_t count, float *out)
{
    const struct st_adapter_init_source *source = ctx;
    const strata_status st = source->base.read(source->base.ctx, page, first, count, out);
    struct st_piece piece;

    for (uint32_t i = 0; st == STRATA_OK && st_model_piece(source->init.model, page, first, count, i, &piece); i++) {
        if (piece.count > 0 && piece.tensor->adapts != ST_NO_TENSOR)
            fill_piece(&piece, source->init.seed, out + piece.range_first);
    }
    return st;
}

struct st_weight_source st_model_adapter_source(struct st_adapter_init_source *source)
{
    return (struct st_weight_source){.ctx = source, .read = adapter_read};
}

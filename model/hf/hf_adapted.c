/* model/hf/hf_adapted.c - initial values of a model with adapters that come from a directory. */
#include "model/hf/hf_adapter.h"
#include "model/layout.h"
#include <stdio.h>

/* The adapter's tensor that has the piece's values; NULL: the base has them. */
static const struct st_hf_adapted *find(struct st_hf_adapted_source *s, const struct st_tensor *t)
{
    char name[sizeof(((struct st_hf_adapted *)0)->name)];
    uint32_t count;
    const struct st_hf_adapted *list = st_hf_adapter_tensors(s->files, &count);

    if (t->frozen)
        return NULL;
    snprintf(name, sizeof(name), "%s%s", t->adapts != ST_NO_TENSOR ? "" : ST_ADAPTER_PREFIX, t->name);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t at = (s->last + i) % count;

        if (strcmp(list[at].name, name) == 0) {
            s->last = at;
            return &list[at];
        }
    }
    return NULL;
}

static strata_status read_adapted(void *ctx, uint32_t page, uint64_t first, uint64_t count, float *out)
{
    struct st_hf_adapted_source *s = ctx;
    const struct st_adapter_values values = st_hf_adapter_values(s->files);
    struct st_piece piece;
    strata_status st = s->base.read(s->base.ctx, page, first, count, out);

    for (uint32_t i = 0; st == STRATA_OK && st_model_piece(s->m, page, first, count, i, &piece); i++) {
        const struct st_hf_adapted *adapted = piece.count > 0 ? find(s, piece.tensor) : NULL;

        if (adapted != NULL)
            st = values.read(values.ctx, adapted, piece.tensor_first, piece.count, out + piece.range_first);
    }
    return st;
}

struct st_weight_source st_hf_adapted_source(struct st_hf_adapted_source *s)
{
    return (struct st_weight_source){.ctx = s, .read = read_adapted};
}

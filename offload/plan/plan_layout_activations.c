/* plan_layout_activations.c - activations: internals of blocks and head, logits, layer boundaries. */
#include "offload/plan/plan_layout_internal.h"

#include <stdlib.h>
#include <string.h>

static uint32_t *index_array(struct st_walk *k, uint64_t count)
{
    uint32_t *a;

    if (!k->build)
        return NULL;
    a = malloc(count * sizeof(*a));
    if (a == NULL)
        k->no_memory = true;
    else
        memset(a, 0xff, count * sizeof(*a));
    return a;
}

static void set_index(uint32_t *array, uint64_t i, uint32_t buffer)
{
    if (array != NULL)
        array[i] = buffer;
}

/* Micro-batches whose activations live at once. */
static uint64_t live_micros(const struct st_plan *plan)
{
    return st_place_horizontal(plan) ? 1 : plan->program.workload.grad_accum;
}

/* Sets entry i of an index array to a buffer of its own, or to the one of entry `owner`. */
static void set_or_share(struct st_walk *k, uint32_t *array, uint64_t i, uint64_t owner, strata_tier tier, uint64_t bytes,
                         enum st_layout_item item)
{
    if (owner == i)
        set_index(array, i, st_walk_take(k, tier, bytes, item));
    else if (array != NULL)
        array[i] = array[owner];
}

/* Block internals: one each for kept blocks, one for all others. */
static void lay_internals(struct st_walk *k)
{
    const struct st_plan *plan = k->plan;
    const struct st_workload *w = &plan->program.workload;
    const uint64_t g = w->grad_accum, live = live_micros(plan);
    const uint32_t kept_from = w->block_count - plan->decided.kept_blocks;
    struct st_layout *lay = k->lay;
    uint32_t shared = ST_NO_BUFFER;

    if (!k->build) {
        st_walk_take_many(k, STRATA_TIER_DEVICE, w->block_internal_bytes, plan->decided.kept_blocks * live + (kept_from > 0));
        return;
    }
    lay->internals = index_array(k, (uint64_t)w->block_count * g);
    if (kept_from > 0)
        shared = st_walk_take(k, STRATA_TIER_DEVICE, w->block_internal_bytes, ST_ITEM_ACTIVATIONS);
    for (uint64_t i = 0; i < (uint64_t)w->block_count * g; i++) {
        if (i / g < kept_from)
            set_index(lay->internals, i, shared);
        else
            set_or_share(k, lay->internals, i, i / g * g + i % g % live, STRATA_TIER_DEVICE, w->block_internal_bytes,
                         ST_ITEM_ACTIVATIONS);
    }
}

/* Logits of the head's first slices. */
static void lay_logits(struct st_walk *k)
{
    const struct st_plan *plan = k->plan;
    const struct st_workload *w = &plan->program.workload;
    const uint64_t g = w->grad_accum, live = live_micros(plan);

    k->lay->logits = index_array(k, (uint64_t)plan->decided.kept_slices * g + 1);
    for (uint32_t t = 0; t < plan->decided.kept_slices; t++) {
        const uint64_t bytes = st_workload_logits_bytes(w, t);

        if (!k->build)
            st_walk_take_many(k, STRATA_TIER_DEVICE, bytes, live);
        for (uint64_t m = 0; m < g && k->build; m++)
            set_or_share(k, k->lay->logits, t * g + m, t * g + m % live, STRATA_TIER_DEVICE, bytes, ST_ITEM_ACTIVATIONS);
    }
}

static void lay_act_slots(struct st_walk *k)
{
    const struct st_plan *plan = k->plan;
    const uint64_t bytes = plan->program.workload.activation_bytes;
    const strata_tier tier = plan->decided.activation_tier;

    st_walk_take_pool(k, &k->lay->acts, plan->decided.slots.acts, STRATA_TIER_DEVICE, tier == STRATA_TIER_DEVICE ? 0 : bytes,
                      ST_ITEM_ACTIVATION_SLOTS);
    st_walk_take_pool(k, &k->lay->host_acts, plan->decided.slots.host_acts, STRATA_TIER_HOST,
                      tier == STRATA_TIER_NVME ? bytes : 0, ST_ITEM_ACTIVATION_SLOTS);
}

/* Layer boundaries: all of them for backward; two used in turn if there is no backward. */
static void lay_checkpoints(struct st_walk *k)
{
    const struct st_plan *plan = k->plan;
    const struct st_workload *w = &plan->program.workload;
    const uint64_t g = w->grad_accum, live = live_micros(plan), boundaries = (uint64_t)(w->block_count + 1) * g;
    const strata_tier tier = plan->decided.activation_tier;
    struct st_layout *lay = k->lay;

    if (!k->build) {
        st_walk_take_many(k, tier, w->activation_bytes, live * (plan->policy.forward_only ? 2 : w->block_count + 1));
        lay_act_slots(k);
        return;
    }
    lay->checkpoints = index_array(k, boundaries);
    for (uint64_t i = 0; i < boundaries; i++) {
        const uint64_t layer = plan->policy.forward_only ? i / g % 2 : i / g, owner = layer * g + i % g % live;

        set_or_share(k, lay->checkpoints, i, owner, tier, w->activation_bytes, ST_ITEM_CHECKPOINTS);
    }
    lay_act_slots(k);
}

void st_walk_activations(struct st_walk *k)
{
    struct st_plan *plan = k->plan;
    const struct st_workload *w = &plan->program.workload;
    const uint64_t g = w->grad_accum, live = live_micros(plan);
    struct st_layout *lay = k->lay;
    uint64_t workspace = w->block_workspace_bytes;

    if (w->head_workspace_bytes > workspace)
        workspace = w->head_workspace_bytes;
    if (w->embed_workspace_bytes > workspace)
        workspace = w->embed_workspace_bytes;
    lay->workspace = st_walk_take(k, STRATA_TIER_DEVICE, workspace, ST_ITEM_WORKSPACE);
    lay_internals(k);
    lay_logits(k);
    lay->head = index_array(k, g);
    lay->dact = index_array(k, g);
    for (uint64_t m = 0; m < g; m++) {
        set_or_share(k, lay->head, m, m % live, STRATA_TIER_DEVICE, w->head_internal_bytes, ST_ITEM_ACTIVATIONS);
        if (!plan->policy.forward_only)
            set_index(lay->dact, m, st_walk_take(k, STRATA_TIER_DEVICE, w->activation_bytes, ST_ITEM_ACTIVATIONS));
    }
    lay->at.head_internals = lay->head != NULL ? lay->head[0] : ST_NO_BUFFER;
    lay_checkpoints(k);
}

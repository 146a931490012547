/* plan_layout_activations.c - activations: layers' internals, logits, boundaries. */
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

/* Internals: those of kept blocks, one buffer for all others, and those of the layer of losses, which are always kept.  Others
 * with experts share one for each micro-batch, all of which go through a slice before the next. */
static void lay_internals(struct st_walk *k)
{
    const struct st_plan *plan = k->plan;
    const struct st_workload *w = &plan->program.workload;
    const uint64_t g = w->grad_accum, live = live_micros(plan);
    const uint32_t first = st_block_first(w), end = st_block_end(w), kept_from = end - plan->decided.kept_blocks;
    const uint64_t most = plan->sums->internals_most[kept_from], experts = plan->sums->experts_most[kept_from];
    struct st_layout *lay = k->lay;
    uint32_t *shared;

    if (!k->build) {
        st_walk_take_many(k, STRATA_TIER_DEVICE, plan->sums->internals_from[kept_from], live);
        st_walk_take_many(k, STRATA_TIER_DEVICE, most, 1);
        st_walk_take_many(k, STRATA_TIER_DEVICE, experts, live - 1);
        return;
    }
    lay->internals = index_array(k, (uint64_t)w->layer_count * g);
    shared = index_array(k, g);
    for (uint64_t m = 0; m < g && shared != NULL && most > 0; m++)
        if (m == 0 || experts > 0)
            set_or_share(k, shared, m, m % live, STRATA_TIER_DEVICE, m == 0 ? most : experts, ST_ITEM_ACTIVATIONS);
    for (uint64_t i = first * g; i < end * g && shared != NULL; i++) {
        const uint64_t bytes = w->layers[i / g].internal_bytes;

        if (i / g < kept_from)
            set_index(lay->internals, i, shared[w->layers[i / g].kind == ST_LAYER_EXPERTS ? i % g : 0]);
        else if (bytes > 0)
            set_or_share(k, lay->internals, i, i / g * g + i % g % live, STRATA_TIER_DEVICE, bytes, ST_ITEM_ACTIVATIONS);
    }
    free(shared);
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
    const uint64_t bytes = plan->sums->boundary_most;
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
    const bool turns = plan->policy.forward_only;
    const uint64_t g = w->grad_accum, live = live_micros(plan), boundaries = (uint64_t)(w->layer_count - 1) * g;
    const strata_tier tier = plan->decided.activation_tier;
    struct st_layout *lay = k->lay;

    if (!k->build) {
        st_walk_take_many(k, tier, turns ? plan->sums->boundary_most : plan->sums->boundaries[tier != STRATA_TIER_DEVICE],
                          live * (!turns               ? 1
                                  : w->layer_count > 2 ? 2
                                                       : w->layer_count - 1));
        lay_act_slots(k);
        return;
    }
    lay->checkpoints = index_array(k, boundaries + 1);
    for (uint64_t i = 0; i < boundaries; i++) {
        const uint64_t layer = turns ? i / g % 2 : i / g, owner = layer * g + i % g % live;

        set_or_share(k, lay->checkpoints, i, owner, tier, turns ? plan->sums->boundary_most : w->layers[layer].boundary_bytes,
                     ST_ITEM_CHECKPOINTS);
    }
    lay_act_slots(k);
}

/* One for each micro-batch that lives at once: of the layer of losses. */
static void lay_last_internals(struct st_walk *k, uint64_t micro)
{
    const struct st_workload *w = &k->plan->program.workload;
    const uint64_t first = (uint64_t)(w->layer_count - 1) * w->grad_accum;

    if (st_slice_count(w) > 0)
        set_or_share(k, k->lay->internals, first + micro, first + micro % live_micros(k->plan), STRATA_TIER_DEVICE,
                     w->layers[w->layer_count - 1].internal_bytes, ST_ITEM_ACTIVATIONS);
}

void st_walk_activations(struct st_walk *k)
{
    struct st_plan *plan = k->plan;
    const struct st_workload *w = &plan->program.workload;
    const uint64_t g = w->grad_accum;
    struct st_layout *lay = k->lay;

    lay->workspace = st_walk_take(k, STRATA_TIER_DEVICE, w->workspace_bytes, ST_ITEM_WORKSPACE);
    lay_internals(k);
    lay_logits(k);
    lay->dact = index_array(k, g);
    lay->routes = index_array(k, g);
    for (uint64_t m = 0; m < g; m++) {
        lay_last_internals(k, m);
        if (w->routes_bytes > 0)
            set_or_share(k, lay->routes, m, m % live_micros(plan), STRATA_TIER_DEVICE, w->routes_bytes, ST_ITEM_ACTIVATIONS);
        if (!plan->policy.forward_only && plan->sums->boundary_most > 0 && !st_workload_opaque(w))
            set_index(lay->dact, m, st_walk_take(k, STRATA_TIER_DEVICE, plan->sums->boundary_most, ST_ITEM_ACTIVATIONS));
    }
    lay->at.head_internals =
        lay->internals != NULL && st_slice_count(w) > 0 ? lay->internals[(w->layer_count - 1) * g] : ST_NO_BUFFER;
    lay_checkpoints(k);
}

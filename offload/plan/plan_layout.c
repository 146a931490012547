/* plan_layout.c - turns decisions into bytes: every region, slot and extent with its tier, offset and size.
 *
 * The same walk sizes a candidate (no allocation) and builds the chosen one, so the two cannot differ. Sizing takes equal pages
 * at once, and chunks by their sums. */
#include "offload/plan/plan_layout_internal.h"

#include "core/base/error.h"
#include "kernels/kernels.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define HOST_ALIGN 4096u
#define WIRE_SLOTS 2u /* one is filled while the other is added */
#define SAVE_SLOTS 2u /* one is filled while the other is written */
/* Moments of at least this size have staggered planes, which adds about 1 % to a chunk's bytes at most. */
#define SKEWED_BYTES (1u << 20)

static const char *const item_names[ST_ITEM_COUNT] = {
    [ST_ITEM_WEIGHTS] = "weights",
    [ST_ITEM_WEIGHT_SLICES] = "weights in slices",
    [ST_ITEM_WEIGHT_SLOTS] = "weight slots",
    [ST_ITEM_GRADIENTS] = "gradients",
    [ST_ITEM_GRADIENT_SLOTS] = "gradient slots",
    [ST_ITEM_ACCUMULATORS] = "gradient accumulators",
    [ST_ITEM_HOST_ACCUMULATORS] = "host accumulators",
    [ST_ITEM_STATE] = "optimizer state",
    [ST_ITEM_STATE_SLOTS] = "state slots",
    [ST_ITEM_EARLY] = "second versions",
    [ST_ITEM_SAVED_SLOTS] = "checkpoint slots",
    [ST_ITEM_CHECKPOINTS] = "activation checkpoints",
    [ST_ITEM_ACTIVATION_SLOTS] = "activation slots",
    [ST_ITEM_ACTIVATIONS] = "activations",
    [ST_ITEM_WORKSPACE] = "workspace",
    [ST_ITEM_WIRES] = "from other ranks",
    [ST_ITEM_ROWS] = "embedding rows",
    [ST_ITEM_CONSTANTS] = "constants",
    [ST_ITEM_SMALL] = "tokens, losses, norms",
    [ST_ITEM_SAVED] = "checkpoints",
};

static uint64_t round_up(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

uint64_t st_chunk_layout(enum st_master master, uint32_t moments, enum st_moment_format format, uint64_t elems,
                         uint64_t *moment1_offset, uint64_t *moment2_offset)
{
    const uint64_t bytes = st_moment_bytes(format, elems), skew = bytes >= SKEWED_BYTES ? ST_PLANE_SKEW : 0;
    const uint64_t low_half = master == ST_MASTER_WEIGHT ? 0 : round_up(elems * st_master_width(master), 64) + skew;
    const uint64_t moment = round_up(bytes, 64) + skew;

    *moment1_offset = low_half;
    *moment2_offset = moments > 1 ? low_half + moment : 0;
    return round_up(low_half + moments * moment, ST_EXTENT_ALIGN);
}

static void add_to_item(struct st_walk *k, strata_tier tier, uint64_t bytes, enum st_layout_item item)
{
    struct st_plan *plan = k->plan;
    uint8_t *row = &k->row[tier][item];

    if (*row == 0) {
        assert(plan->item_count < ST_PLAN_ITEMS_MAX);
        plan->items[plan->item_count++] = (struct st_plan_item){.name = item_names[item], .tier = tier};
        *row = (uint8_t)plan->item_count;
    }
    plan->items[*row - 1].bytes += bytes;
}

static bool saves(const struct st_walk *k)
{
    return k->plan->policy.sets > 0;
}

/* What of a tier, or of a space of NVMe, is taken so far. */
static uint64_t *taken(struct st_walk *k, strata_tier tier, enum st_space space)
{
    return tier == STRATA_TIER_NVME ? &k->lay->space_bytes[space] : &k->lay->needed[tier];
}

void st_walk_take_many(struct st_walk *k, strata_tier tier, uint64_t bytes, uint64_t count)
{
    assert(!k->build);
    *taken(k, tier, ST_SPACE_SCRATCH) += count * round_up(bytes, tier == STRATA_TIER_DEVICE ? ST_DEVICE_ALIGN : HOST_ALIGN);
}

/* Take `bytes` of a tier; returns the buffer's index when building. */
static uint32_t take_in(struct st_walk *k, strata_tier tier, enum st_space space, uint64_t bytes, enum st_layout_item item)
{
    struct st_plan *plan = k->plan;
    const uint64_t size = round_up(bytes, tier == STRATA_TIER_DEVICE ? ST_DEVICE_ALIGN : HOST_ALIGN);
    const uint64_t offset = *taken(k, tier, space);

    *taken(k, tier, space) += size;
    if (!k->build)
        return ST_NO_BUFFER;
    add_to_item(k, tier, size, item);
    if (plan->program.buffer_count == plan->program.buffer_room) {
        const uint32_t room = plan->program.buffer_room == 0 ? 256 : 2 * plan->program.buffer_room;
        struct st_buffer *grown = realloc(plan->program.buffers, room * sizeof(*grown));

        if (grown == NULL) {
            k->no_memory = true;
            return ST_NO_BUFFER;
        }
        plan->program.buffers = grown;
        plan->program.buffer_room = room;
    }
    plan->program.buffers[plan->program.buffer_count] =
        (struct st_buffer){.tier = tier, .space = (uint8_t)space, .offset = offset, .bytes = size};
    return plan->program.buffer_count++;
}

uint32_t st_walk_take(struct st_walk *k, strata_tier tier, uint64_t bytes, enum st_layout_item item)
{
    return take_in(k, tier, ST_SPACE_SCRATCH, bytes, item);
}

/* An extent of a run that saves; `home`: what is in force between uses lies there.  Only when building: what sets and base take
 * is no decision, and is known (plan_sums.c). */
static uint32_t take_saved(struct st_walk *k, enum st_space space, uint64_t bytes, bool home, enum st_layout_item item)
{
    return bytes == 0 ? ST_NO_BUFFER : take_in(k, STRATA_TIER_NVME, space, bytes, home ? item : ST_ITEM_SAVED);
}

/* The same for each of `count` equal pages (one when building). */
static uint32_t take_each(struct st_walk *k, strata_tier tier, uint64_t bytes, uint32_t count, enum st_layout_item item)
{
    if (k->build)
        return st_walk_take(k, tier, bytes, item);
    st_walk_take_many(k, tier, bytes, count);
    return ST_NO_BUFFER;
}

void st_walk_take_pool(struct st_walk *k, struct st_pool *pool, uint32_t count, strata_tier tier, uint64_t bytes,
                       enum st_layout_item item)
{
    assert(count <= ST_POOL_SLOTS_MAX);
    pool->count = bytes == 0 ? 0 : count;
    if (!k->build)
        st_walk_take_many(k, tier, bytes, pool->count);
    for (uint32_t i = 0; i < pool->count && k->build; i++)
        pool->buffer[i] = st_walk_take(k, tier, bytes, item);
}

/* Lays out the regions of later leaves' sums, which wait there between micro-batches. */
static void lay_leaves(struct st_walk *k, uint32_t p, uint32_t count, struct st_page_place *place)
{
    const uint64_t bytes = k->plan->program.workload.pages[p].trained_elems * sizeof(float);

    if (!st_place_horizontal(k->plan) || !st_place_has_leaves(k->plan, p))
        return;
    for (uint32_t d = 0; d < st_leaf_depth(k->plan->policy.leaves); d++) {
        const uint32_t region = take_each(k, (strata_tier)place->sum, bytes, count,
                                          place->sum == ST_WHERE_DEVICE ? ST_ITEM_ACCUMULATORS : ST_ITEM_HOST_ACCUMULATORS);

        if (d == 0)
            place->leaf_regions = region; /* the others follow it */
    }
}

/* Lays out gradient and accumulator regions of equal trained pages. */
static void lay_gradients(struct st_walk *k, uint32_t p, uint32_t count, struct st_page_place *place)
{
    const struct st_plan *plan = k->plan;
    const struct st_page *page = &plan->program.workload.pages[p], *shard = &plan->program.shards[p];
    const uint64_t sum = (place->sum_cut ? shard : page)->trained_elems * sizeof(float);

    if (place->grad == ST_WHERE_DEVICE || st_place_keeps_grad(plan, p))
        place->grad_region = take_each(k, (strata_tier)place->grad, shard->trained_bytes, count, ST_ITEM_GRADIENTS);
    else if (st_place_grads_wait(plan))
        place->grad_extent = take_each(k, STRATA_TIER_NVME, shard->trained_bytes, count, ST_ITEM_GRADIENTS);
    if (place->grad == ST_WHERE_DEVICE && st_place_rounds_in_place(plan))
        place->accum_region = place->grad_region;
    else if (place->sum != ST_WHERE_STREAMED)
        place->accum_region = take_each(k, (strata_tier)place->sum, sum, count,
                                        place->sum == ST_WHERE_DEVICE ? ST_ITEM_ACCUMULATORS : ST_ITEM_HOST_ACCUMULATORS);
    lay_leaves(k, p, count, place);
}

/* The other place of what lies in `buffer`, of each of `count` equal pages (one when building). */
static void take_other(struct st_walk *k, uint32_t buffer, strata_tier tier, uint64_t bytes, uint32_t count)
{
    const uint32_t other = take_each(k, tier, bytes, count, ST_ITEM_EARLY);

    if (k->build && other != ST_NO_BUFFER)
        k->plan->program.buffers[buffer].other = other;
}

static void grow(uint64_t *most, bool counts, uint64_t elems)
{
    if (counts && elems > *most)
        *most = elems;
}

/* Notes what the slots must be able to hold of page p. */
static void note_slots(struct st_walk *k, uint32_t p, const struct st_page_place *place)
{
    const struct st_program *program = &k->plan->program;
    const struct st_page *page = &program->workload.pages[p], *shard = &program->shards[p];
    const uint64_t elems = page->trained_elems;
    const bool small = st_place_is_small(k->plan, p);

    grow(small ? &k->small_streamed : &k->streamed, place->weights == ST_WHERE_STREAMED, page->bytes);
    grow(&k->from_nvme, place->home == ST_WHERE_NVME, shard->bytes);
    grow(small ? &k->small_grads : &k->slot_grads, place->sum == ST_WHERE_STREAMED || place->sum == ST_WHERE_HOST, elems);
    grow(small ? &k->small_leaving : &k->leaving, place->grad == ST_WHERE_HOST && !st_place_is_table(k->plan, p),
         shard->trained_bytes);
    grow(&k->unkept_grads, place->grad == ST_WHERE_HOST && !st_place_keeps_grad(k->plan, p), shard->trained_bytes);
    grow(&k->reduced, st_place_has_leaves(k->plan, p) && (!st_place_horizontal(k->plan) || place->sum == ST_WHERE_HOST), elems);
    if (place->state == ST_WHERE_STREAMED && k->plan->sums->page_largest[p] > k->streamed_state)
        k->streamed_state = k->plan->sums->page_largest[p];
    grow(&k->most, true, elems);
    grow(&k->wire, place->grad != ST_WHERE_NONE, k->plan->sums->wires[p]);
}

/* Of a run that saves: where checkpoints have a page. */
static void lay_saved_page(struct st_walk *k, uint32_t p, struct st_page_place *place)
{
    const struct st_page *page = &k->plan->program.shards[p];
    const bool on_nvme = place->home == ST_WHERE_NVME;

    place->extent = take_saved(k, ST_SPACE_SET, st_page_set_bytes(page), on_nvme, ST_ITEM_WEIGHTS);
    place->base_extent = take_saved(k, ST_SPACE_BASE, st_page_base_bytes(page), on_nvme, ST_ITEM_WEIGHTS);
    if (on_nvme)
        place->home_region = place->extent != ST_NO_BUFFER ? place->extent : place->base_extent;
}

/* Lays out where the weights are in force between uses, and where checkpoints have them. */
static void lay_home(struct st_walk *k, uint32_t p, uint32_t count, struct st_page_place *place)
{
    const struct st_page *page = &k->plan->program.shards[p];
    const bool on_nvme = place->home == ST_WHERE_NVME, sliced = st_page_sliced(place);

    if ((place->home != ST_WHERE_DEVICE || sliced) && !(on_nvme && saves(k)))
        place->home_region =
            take_each(k, (strata_tier)place->home, page->bytes, count, sliced ? ST_ITEM_WEIGHT_SLICES : ST_ITEM_WEIGHTS);
    if (on_nvme)
        place->extent = place->home_region;
    if (k->build && saves(k))
        lay_saved_page(k, p, place);
    if (place->early && !k->no_memory)
        take_other(k, place->home_region, (strata_tier)place->home, page->bytes, count);
}

/* Lays out weight, gradient and accumulator regions of `count` equal pages from p on. */
static void lay_page(struct st_walk *k, uint32_t p, uint32_t count)
{
    struct st_plan *plan = k->plan;
    const struct st_page *page = &plan->program.workload.pages[p];
    struct st_page_place place = {.sum = ST_WHERE_NONE,
                                  .grad = ST_WHERE_NONE,
                                  .state = ST_WHERE_NONE,
                                  .weight_region = ST_NO_BUFFER,
                                  .home_region = ST_NO_BUFFER,
                                  .extent = ST_NO_BUFFER,
                                  .base_extent = ST_NO_BUFFER,
                                  .grad_region = ST_NO_BUFFER,
                                  .grad_extent = ST_NO_BUFFER,
                                  .accum_region = ST_NO_BUFFER,
                                  .leaf_regions = ST_NO_BUFFER};

    place.weights = st_place_resident(plan, p) ? ST_WHERE_DEVICE : ST_WHERE_STREAMED;
    place.home = st_place_home(plan, p);
    if (st_place_trained(plan, p)) {
        place.sum = st_place_sum(plan, p);
        place.grad = st_place_device_update(plan, p) ? ST_WHERE_DEVICE : ST_WHERE_HOST;
        place.state = st_place_streamed(plan, p) ? ST_WHERE_STREAMED : place.grad;
        place.sum_cut = st_place_sum_cut(plan, p);
        place.early = st_place_early(plan, p);
    }
    note_slots(k, p, &place);
    if (place.weights == ST_WHERE_DEVICE)
        place.weight_region = take_each(k, STRATA_TIER_DEVICE, page->bytes, count, ST_ITEM_WEIGHTS);
    lay_home(k, p, count, &place);
    if (place.grad != ST_WHERE_NONE)
        lay_gradients(k, p, count, &place);
    if (k->build) {
        place.chunk_first = plan->program.pages[p].chunk_first;
        place.chunk_count = plan->program.pages[p].chunk_count;
        plan->program.pages[p] = place;
        plan->program.early_pages += place.early;
    }
}

static void lay_pages(struct st_walk *k)
{
    const uint32_t count = k->plan->program.workload.page_count;

    for (uint32_t p = 0; p < count && k->build; p++)
        lay_page(k, p, 1);
    for (uint32_t place = 0, end; place < count && !k->build; place = end) {
        struct st_alike parts[ST_ALIKE_MAX];
        const uint32_t kinds = st_plan_alike(parts, k->plan, place, &end);

        for (uint32_t i = 0; i < kinds; i++)
            lay_page(k, parts[i].page, parts[i].count);
    }
}

/* Where chunk i's state is by configuration: nothing above its tier, except on the device. */
static enum st_where chunk_state(const struct st_plan *plan, uint32_t i)
{
    if (plan->policy.forward_only || plan->program.chunks[i].group == ST_GROUP_FROZEN)
        return ST_WHERE_NONE;
    if (st_place_device_state(plan, plan->program.chunks[i].page))
        return ST_WHERE_DEVICE;
    return plan->policy.optimizer_tier == STRATA_TIER_NVME ? ST_WHERE_NVME : ST_WHERE_HOST;
}

/* Chunks are placed in order: on the device, in host memory, on NVMe. */
static uint64_t size_chunks(struct st_walk *k)
{
    const struct st_plan *plan = k->plan;
    const uint64_t *before = plan->sums->state_bytes, all = before[plan->program.chunk_count];
    const uint32_t on_device = st_place_device_chunks(plan);
    struct st_cached_sums in_memory = {.bytes = all};

    if (plan->policy.forward_only)
        return 0;
    if (plan->policy.optimizer_tier == STRATA_TIER_NVME)
        in_memory = st_plan_cached(plan, plan->decided.cached_chunks > on_device ? plan->decided.cached_chunks : on_device);
    st_walk_take_many(k, plan->policy.optimizer_tier, st_plan_early_bytes(plan), 1);
    st_walk_take_many(k, STRATA_TIER_DEVICE, before[on_device], 1);
    st_walk_take_many(k, STRATA_TIER_HOST, in_memory.bytes - before[on_device], 1);
    if (!saves(k))
        st_walk_take_many(k, STRATA_TIER_NVME, all - in_memory.bytes, 1);
    return in_memory.largest_left;
}

/* Lays out where the state is between updates, and where checkpoints have it. */
static void lay_chunk(struct st_walk *k, struct st_chunk *chunk)
{
    const bool on_nvme = chunk->state == ST_WHERE_NVME;

    chunk->region = chunk->extent = ST_NO_BUFFER;
    if (chunk->state == ST_WHERE_NONE)
        return;
    if (!on_nvme || !saves(k))
        chunk->region = st_walk_take(k, (strata_tier)chunk->state, chunk->bytes, ST_ITEM_STATE);
    if (saves(k))
        chunk->extent = take_saved(k, ST_SPACE_SET, chunk->bytes, on_nvme, ST_ITEM_STATE);
    else if (on_nvme)
        chunk->extent = chunk->region;
    if (on_nvme)
        chunk->region = chunk->extent;
    if (k->plan->program.pages[chunk->page].early && !k->no_memory)
        take_other(k, chunk->region, (strata_tier)chunk->state, chunk->bytes, 1);
}

static uint64_t build_chunks(struct st_walk *k)
{
    struct st_plan *plan = k->plan;
    uint64_t largest = 0;

    for (uint32_t i = 0; i < plan->program.chunk_count; i++)
        plan->program.chunks[i].state = chunk_state(plan, i);
    st_plan_spread(plan);
    for (uint32_t i = 0; i < plan->program.chunk_count; i++) {
        lay_chunk(k, &plan->program.chunks[i]);
        grow(&largest, plan->program.chunks[i].state == ST_WHERE_NVME, plan->program.chunks[i].bytes);
    }
    return largest;
}

static void lay_chunks(struct st_walk *k)
{
    const uint64_t largest = k->build ? build_chunks(k) : size_chunks(k);

    st_walk_take_pool(k, &k->lay->states, k->plan->decided.slots.states, STRATA_TIER_HOST, largest, ST_ITEM_STATE_SLOTS);
    st_walk_take_pool(k, &k->lay->streamed_states, k->plan->decided.slots.streamed_states, STRATA_TIER_DEVICE, k->streamed_state,
                      ST_ITEM_STATE_SLOTS);
}

/* What comes down for a save at a time.  Not by the decisions: a placement's needs must not jump with the first chunk there. */
static uint64_t saved_at_once(const struct st_plan *plan)
{
    const uint64_t part = plan->policy.part_bytes + ST_PART_MORE, all = plan->sums->saved_largest;

    return !st_place_saves_from_device(plan) ? 0 : all < part ? all : part;
}

/* Vertical: a slot for each depth, of each page that is open.  Horizontal: for what comes back from the host to be added to, and
 * stays until it is back there: two, so that the next may come meanwhile, if a leaf may end more than one sum. */
static uint32_t reduce_slots(const struct st_plan *plan)
{
    const uint32_t depth = st_leaf_depth(plan->policy.leaves);

    if (st_place_horizontal(plan))
        return depth > 2 ? 2 : depth;
    return depth * plan->sums->leaves_at_once;
}

static void lay_slots(struct st_walk *k)
{
    struct st_plan *plan = k->plan;
    const struct st_workload *w = &plan->program.workload;
    const bool in_place = st_place_rounds_in_place(plan), rows = w->gathered_count > 0 && st_place_trained(plan, 0);
    const struct st_slots *slots = &plan->decided.slots;
    const uint32_t pages = plan->sums->pages_at_once - 1, sums = plan->sums->sums_at_once - 1; /* beside one */
    struct st_layout *lay = k->lay;

    st_walk_take_pool(k, &lay->weights, slots->weights + pages, STRATA_TIER_DEVICE, k->streamed, ST_ITEM_WEIGHT_SLOTS);
    st_walk_take_pool(k, &lay->host_weights, slots->host_weights + pages, STRATA_TIER_HOST, k->from_nvme, ST_ITEM_WEIGHT_SLOTS);
    st_walk_take_pool(k, &lay->host_grads, plan->decided.slots.host_weights, STRATA_TIER_HOST, k->unkept_grads,
                      ST_ITEM_GRADIENT_SLOTS);
    st_walk_take_pool(k, &lay->grads, slots->grads + sums, STRATA_TIER_DEVICE, k->slot_grads * 4, ST_ITEM_ACCUMULATORS);
    st_walk_take_pool(k, &lay->rounded, in_place ? 0 : plan->decided.slots.grads, STRATA_TIER_DEVICE, k->leaving,
                      ST_ITEM_GRADIENT_SLOTS);
    st_walk_take_pool(k, &lay->wires, WIRE_SLOTS, STRATA_TIER_DEVICE, k->wire, ST_ITEM_WIRES);
    st_walk_take_pool(k, &lay->dact_wires, WIRE_SLOTS, STRATA_TIER_DEVICE, k->wire > 0 && rows ? w->layers[0].boundary_bytes : 0,
                      ST_ITEM_WIRES);
    st_walk_take_pool(k, &lay->saves, SAVE_SLOTS, STRATA_TIER_HOST, saved_at_once(plan), ST_ITEM_SAVED_SLOTS);
    st_walk_take_pool(k, &lay->small_weights, 1, STRATA_TIER_DEVICE, k->small_streamed, ST_ITEM_WEIGHT_SLOTS);
    st_walk_take_pool(k, &lay->small_grads, 1, STRATA_TIER_DEVICE, k->small_grads * 4, ST_ITEM_ACCUMULATORS);
    st_walk_take_pool(k, &lay->reductions, reduce_slots(plan), STRATA_TIER_DEVICE, k->reduced * 4, ST_ITEM_ACCUMULATORS);
    st_walk_take_pool(k, &lay->small_rounded, in_place ? 0 : 1, STRATA_TIER_DEVICE, k->small_leaving, ST_ITEM_GRADIENT_SLOTS);
    lay->block_sums = st_walk_take(k, STRATA_TIER_DEVICE, (k->most / 4096 + ST_GROUPS_MAX) * sizeof(double), ST_ITEM_SMALL);
}

static void lay_small(struct st_walk *k)
{
    struct st_plan *plan = k->plan;
    const struct st_workload *w = &plan->program.workload;
    const uint64_t tokens = st_program_tokens_bytes(&plan->program);
    const uint64_t scalars = st_scalars_bytes(&plan->program);
    const uint64_t tallies = plan->program.ranks > 1 ? plan->program.ranks * sizeof(struct st_tally) : 0;
    struct st_layout *lay = k->lay;

    lay->at.tokens_host = lay->at.tokens_device = ST_NO_BUFFER;
    if (tokens > 0) {
        lay->at.tokens_host = st_walk_take(k, STRATA_TIER_HOST, tokens, ST_ITEM_SMALL);
        lay->at.tokens_device = st_walk_take(k, STRATA_TIER_DEVICE, tokens, ST_ITEM_SMALL);
    }
    lay->at.scalars_device = st_walk_take(k, STRATA_TIER_DEVICE, scalars, ST_ITEM_SMALL);
    lay->at.scalars_host = st_walk_take(k, STRATA_TIER_HOST, scalars + tallies, ST_ITEM_SMALL);
    lay->at.norms_host = st_walk_take(k, STRATA_TIER_HOST, scalars, ST_ITEM_SMALL);
    lay->at.overflows_device = st_walk_take(k, STRATA_TIER_DEVICE, sizeof(uint64_t), ST_ITEM_SMALL);
    lay->at.overflows_host = st_walk_take(k, STRATA_TIER_HOST, sizeof(uint64_t), ST_ITEM_SMALL);
    lay->at.constants = ST_NO_BUFFER;
    if (w->constants_bytes > 0)
        lay->at.constants = st_walk_take(k, STRATA_TIER_DEVICE, w->constants_bytes, ST_ITEM_CONSTANTS);
    lay->at.choice = ST_NO_BUFFER;
    if (w->experts > 0)
        lay->at.choice =
            st_walk_take(k, STRATA_TIER_HOST, st_program_cuts(&plan->program) * st_workload_choice_bytes(w), ST_ITEM_SMALL);
    lay->rows_host = ST_NO_BUFFER;
    lay->dact_host = ST_NO_BUFFER;
    if (st_place_gather_on_host(plan))
        lay->rows_host = st_walk_take(k, STRATA_TIER_HOST, w->layers[0].boundary_bytes * w->grad_accum, ST_ITEM_ROWS);
    if (w->gathered_count > 0 && st_place_trained(plan, 0) && !st_place_device_update(plan, 0))
        lay->dact_host = st_walk_take(k, STRATA_TIER_HOST, w->layers[0].boundary_bytes, ST_ITEM_ROWS);
}

/* Sums up NVMe: what a build has laid out, with the sets beside the one that is written to. */
static void sum_nvme(struct st_walk *k)
{
    const struct st_plan *plan = k->plan;
    uint64_t *spaces = k->lay->space_bytes;
    const uint32_t sets = plan->policy.sets;

    if (saves(k) && !k->build) {
        spaces[ST_SPACE_BASE] = plan->sums->base_bytes;
        spaces[ST_SPACE_SET] = plan->sums->set_bytes;
    } else if (saves(k)) {
        add_to_item(k, STRATA_TIER_NVME, (sets - 1) * spaces[ST_SPACE_SET], ST_ITEM_SAVED);
    }
    k->lay->needed[STRATA_TIER_NVME] = st_spaces_bytes(spaces, sets);
}

strata_status st_layout_make(struct st_layout *lay, struct st_plan *plan, bool build)
{
    struct st_walk k = {.lay = lay, .plan = plan, .build = build};

    memset(lay, 0, build ? sizeof(*lay) : offsetof(struct st_layout, weights)); /* each pool's count is set below */
    if (build) {
        plan->item_count = 0;
        plan->program.buffer_count = 0;
        plan->program.early_pages = 0;
    }
    lay_pages(&k);
    lay_chunks(&k);
    lay_slots(&k);
    st_walk_activations(&k);
    lay_small(&k);
    sum_nvme(&k);
    if (k.no_memory)
        return st_nomem(0);
    return STRATA_OK;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Slots beside the first of a layer with several pages are no decision. */
static uint32_t beside(uint32_t slots, uint32_t at_once)
{
    return slots > 0 ? slots - (at_once - 1) : 0;
}

struct st_slots st_layout_slots(const struct st_layout *lay, const struct st_plan_sums *sums)
{
    return (struct st_slots){.weights = beside(lay->weights.count, sums->pages_at_once),
                             .host_weights = larger(beside(lay->host_weights.count, sums->pages_at_once), lay->host_grads.count),
                             .states = lay->states.count,
                             .streamed_states = lay->streamed_states.count,
                             .acts = lay->acts.count,
                             .host_acts = lay->host_acts.count,
                             .grads = larger(beside(lay->grads.count, sums->sums_at_once), lay->rounded.count)};
}

void st_layout_fini(struct st_layout *lay)
{
    free(lay->internals);
    free(lay->logits);
    free(lay->checkpoints);
    free(lay->dact);
    free(lay->routes);
    memset(lay, 0, sizeof(*lay));
}

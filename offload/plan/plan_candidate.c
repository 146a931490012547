/* plan_candidate.c - the candidates of a plan: what can be intended for a workload, and the decisions that follow where it fits.
 *
 * An intent names amounts on fixed ladders: how many blocks' activations are kept, the state of how many pages lies on the
 * device, what share of the others is streamed there, and so on.  Ladders depend on the workload alone, so that a larger memory
 * has every intent of a smaller one, and more.  An intent that does not fit gives no candidate.  What is left of memory then goes
 * to the largest amounts that fit: pages resident on the device, weights and state cached in host memory, slots. */
#include "offload/plan/plan_choose_internal.h"

#include <string.h>

#define MEMORY_RUNGS 4u
#define HOST_ORDERS  4u

/* Slots to ask for; the smallest placement has one of each, two for activations.  Deep queues pay only if lanes run on their own.
 */
struct slot_profile {
    struct st_slots first, later; /* reserved before anything is placed; taken from what is left */
    bool before_logits;           /* later ones come before the logits that are kept, else after them */
};
static const struct slot_profile profiles[ST_SLOT_PROFILES] = {
    {{2, 3, 4, 3, 4, 4, 2}, {4, 4, 8, 6, 4, 4, 8}, false}, {{1, 1, 1, 1, 2, 1, 1}, {4, 4, 8, 6, 4, 4, 8}, false},
    {{2, 4, 8, 3, 4, 4, 2}, {4, 4, 8, 6, 4, 4, 8}, false}, {{3, 6, 16, 4, 4, 4, 2}, {4, 6, 16, 6, 4, 4, 8}, false},
    {{1, 1, 1, 1, 2, 1, 1}, {4, 4, 8, 6, 4, 4, 8}, true},
};
static const struct slot_profile host_profiles[ST_SLOT_PROFILES] = {
    {{2, 3, 4, 3, 4, 4, 2}, {2, 3, 8, 3, 4, 4, 2}, false}, {{1, 1, 1, 1, 2, 1, 1}, {2, 3, 8, 3, 4, 4, 2}, false},
    {{2, 4, 8, 3, 4, 4, 2}, {2, 4, 8, 3, 4, 4, 2}, false}, {{3, 6, 16, 4, 4, 4, 2}, {3, 6, 16, 4, 4, 4, 2}, false},
    {{1, 1, 1, 1, 2, 1, 1}, {2, 3, 8, 3, 4, 4, 2}, true},
};

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* --- the largest counts that fit --- */

/* A count that is raised.  What a placement needs grows with it within a piece, in which slots keep their size; a piece more may
 * need less than the one before. */
struct count {
    struct st_plan *plan;
    uint32_t *decision;
    uint64_t room, promoted;                                       /* of chunks, see chunks_fit() */
    uint32_t (*piece)(const struct st_plan *plan, uint32_t value); /* first value of the piece that `value` is in */
    bool (*fits)(const struct count *c, uint32_t value);
};

/* The largest value in [low, high) that fits; low does, high does not. */
static uint32_t bisect(const struct count *c, uint32_t low, uint32_t high)
{
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;

        *(c->fits(c, middle) ? &low : &high) = middle;
    }
    return low;
}

/* Raises a decision to the largest value up to `high` that fits; it stays as it is if no larger one does. */
static void raise(const struct count *c, uint32_t high)
{
    const uint32_t low = *c->decision;

    while (high > low) {
        const uint32_t piece = c->piece(c->plan, high), first = piece > low ? piece : low + 1;

        if (c->fits(c, high)) {
            *c->decision = high;
            return;
        }
        if (first < high && c->fits(c, first)) {
            *c->decision = bisect(c, first, high);
            return;
        }
        high = first - 1;
    }
    *c->decision = low;
}

static bool allowed_with(const struct count *c, uint32_t value)
{
    *c->decision = value;
    return st_plan_allowed(c->plan);
}

static uint32_t page_piece(const struct st_plan *plan, uint32_t p)
{
    return p < plan->program.workload.page_count ? plan->sums->piece_first[p] : p;
}

/* Inside a piece the largest chunk beyond it, which slots must hold, is the same. */
static uint32_t chunk_piece(const struct st_plan *plan, uint32_t c)
{
    const uint64_t largest = st_plan_cached(plan, c).largest_left;
    uint32_t low = 0, high = c;

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;

        if (st_plan_cached(plan, middle).largest_left == largest)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Host bytes of so many chunks' state, and of the slots for the others'. */
static uint64_t chunk_bytes(const struct st_plan *plan, uint32_t value)
{
    const struct st_cached_sums c = st_plan_cached(plan, value);

    return c.bytes + plan->decided.slots.states * c.largest_left;
}

static bool chunks_fit(const struct count *c, uint32_t value)
{
    return chunk_bytes(c->plan, value) <= c->room && st_plan_cached(c->plan, value).bytes <= c->promoted;
}

static void raise_cached_weights(struct st_plan *plan, uint32_t most)
{
    if (plan->policy.param_tier == STRATA_TIER_NVME)
        raise(&(struct count){plan, &plan->decided.cached_weight_pages, 0, 0, page_piece, allowed_with}, most);
}

static bool caches_state(const struct st_plan *plan)
{
    return plan->policy.optimizer_tier == STRATA_TIER_NVME && !plan->policy.forward_only;
}

/* Chunks' bytes are known by their sums, so that one sizing is enough. */
static void raise_cached_chunks(struct st_plan *plan, uint32_t most)
{
    const uint32_t on_device = st_place_device_chunks(plan);
    uint32_t *chunks = &plan->decided.cached_chunks;
    struct count c = {plan, chunks, 0, UINT64_MAX, chunk_piece, chunks_fit};
    uint64_t needed[STRATA_TIER_COUNT];

    if (!caches_state(plan))
        return;
    if (*chunks < on_device)
        *chunks = on_device;
    st_plan_size(plan, needed);
    c.room = chunk_bytes(plan, *chunks) + plan->capacity.bytes[STRATA_TIER_HOST] - needed[STRATA_TIER_HOST];
    if (plan->policy.cache != ST_AUTO_BYTES)
        c.promoted = st_plan_cached(plan, *chunks).bytes + plan->policy.cache - st_plan_promoted(plan);
    raise(&c, smaller(most, st_plan_cacheable(plan)));
}

/* --- slots --- */

/* All at once, as a rule; else one kind after the other, as many as fit. */
static void raise_slots(struct st_plan *plan, const struct st_slots *to)
{
    struct st_slots *slots = &plan->decided.slots;
    const struct st_slots before = *slots;

    *slots = (struct st_slots){.weights = larger(before.weights, to->weights),
                               .host_weights = larger(before.host_weights, to->host_weights),
                               .states = larger(before.states, to->states),
                               .streamed_states = larger(before.streamed_states, to->streamed_states),
                               .acts = larger(before.acts, to->acts),
                               .host_acts = larger(before.host_acts, to->host_acts),
                               .grads = larger(before.grads, to->grads)};
    if (st_plan_allowed(plan))
        return;
    *slots = before;
    st_plan_raise(plan, &slots->weights, to->weights);
    st_plan_raise(plan, &slots->grads, to->grads);
    st_plan_raise(plan, &slots->acts, to->acts);
    st_plan_raise(plan, &slots->host_acts, to->host_acts);
    st_plan_raise(plan, &slots->states, to->states);
    st_plan_raise(plan, &slots->host_weights, to->host_weights);
    st_plan_raise(plan, &slots->streamed_states, to->streamed_states);
}

/* Empties pools that the placement does not use, so that candidates that differ only in those become equal. */
static void drop_unused_slots(struct st_plan *plan)
{
    struct st_layout lay;

    plan->reserved = plan->decided.slots;
    (void)st_layout_make(&lay, plan, false); /* sizing cannot fail */
    plan->decided.slots = st_layout_slots(&lay, plan->sums);
}

/* --- from an intent to decisions --- */

static void raise_resident(struct st_plan *plan, uint32_t most)
{
    raise(&(struct count){plan, &plan->decided.resident_pages, 0, 0, page_piece, allowed_with}, most);
}

/* Spends what is left.  The orders differ where residency, weights and state compete: for host memory, or for a limited cache. */
static void fill(struct st_plan *plan, const struct st_intent *intent)
{
    const uint32_t pages = plan->program.workload.page_count, resident = intent->on[ST_AXIS_RESIDENT];
    const uint32_t chunks = intent->on[ST_AXIS_CACHED];

    switch (intent->on[ST_AXIS_ORDER]) {
    case 0:
        raise_resident(plan, resident);
        raise_cached_weights(plan, pages);
        raise_cached_chunks(plan, chunks);
        return;
    case 1:
        raise_cached_weights(plan, pages);
        raise_resident(plan, resident);
        raise_cached_chunks(plan, chunks);
        return;
    case 2:
        raise_cached_chunks(plan, chunks);
        raise_cached_weights(plan, pages);
        raise_resident(plan, resident);
        return;
    default:
        raise_cached_weights(plan, pages / 2);
        raise_cached_chunks(plan, chunks);
        raise_cached_weights(plan, pages);
        raise_resident(plan, resident);
        return;
    }
}

static bool complete(struct st_plan *plan, const struct st_decisions *start, const struct st_intent *intent)
{
    const struct slot_profile *profile = &(plan->capacity.device_is_host ? host_profiles : profiles)[intent->on[ST_AXIS_SLOTS]];
    const struct st_workload *w = &plan->program.workload;
    const uint32_t kept = intent->on[ST_AXIS_KEPT], state = intent->on[ST_AXIS_STATE], streamed = intent->on[ST_AXIS_STREAMED];
    struct st_decisions *d = &plan->decided;

    *d = *start;
    plan->policy.update = (enum st_update_policy)intent->on[ST_AXIS_UPDATE];
    d->activation_tier = (strata_tier)intent->on[ST_AXIS_TIER];
    if (plan->policy.streamed != ST_STREAMED_AUTO || intent->on[ST_AXIS_GRADS] == 2) /* as much as fits of what is asked for */
        st_plan_raise(plan, &d->streamed, streamed);
    if (state > d->device_state_pages) {
        d->device_state_pages = state;
        if (!st_place_slices(plan))
            d->resident_pages = larger(d->resident_pages, state);
    }
    if (st_place_horizontal(plan))
        d->device_accum_pages = (uint32_t)((uint64_t)w->page_count * intent->on[ST_AXIS_ACCUM] / ST_ACCUM_ALL);
    if (kept != ST_KEPT_REST)
        d->kept_blocks = larger(d->kept_blocks, kept);
    if (intent->on[ST_AXIS_GRADS] == 1)
        d->host_grad_pages = w->gathered_count;
    if (!st_plan_allowed(plan))
        return false;
    st_plan_raise(plan, &d->early_pages, intent->on[ST_AXIS_EARLY]);
    raise_slots(plan, &profile->first);
    if (intent->on[ST_AXIS_GRADS] != 1)
        st_plan_raise(plan, &d->host_grad_pages, w->page_count);
    st_plan_raise(plan, &d->streamed, streamed);
    fill(plan, intent);
    if (kept == ST_KEPT_REST)
        st_plan_raise(plan, &d->kept_blocks, st_block_count(w));
    if (profile->before_logits)
        raise_slots(plan, &profile->later);
    if (plan->policy.activations != ST_ACT_RECOMPUTED && !plan->policy.forward_only && kept > 0)
        st_plan_raise(plan, &d->kept_slices, st_slice_count(w));
    raise_slots(plan, &profile->later);
    drop_unused_slots(plan);
    return true;
}

/* Limits are of fixed sizes, a power of two times 4, 5, 6 or 7, which have numbers. */
static uint64_t size_of_number(uint32_t number)
{
    return (uint64_t)(4 + number % 4) << number / 4;
}

/* Of the largest size that is no more than `bytes`; 0, the smallest one's, if all are. */
static uint32_t number_of_size(uint64_t bytes)
{
    uint32_t power = 0;

    while (bytes >> power >= 8)
        power++;
    return bytes < 4 ? 0 : 4 * power + (uint32_t)(bytes >> power) - 4;
}

/* The size of a smaller memory, `less` sizes below: a larger one has it, too. */
static uint64_t smaller_memory(uint64_t bytes, uint32_t less)
{
    const uint32_t largest = number_of_size(bytes);

    return size_of_number(largest > less ? largest - less : 0);
}

/* ST_AXIS_MEMORY: 1 to MEMORY_RUNGS less of the host's, then of the device's.  ST_AXIS_CACHE: as if `strata.cache` were the size
 * of that number. */
bool st_candidate_complete(struct st_plan *plan, const struct st_decisions *start, const struct st_intent *intent)
{
    const uint32_t memory = intent->on[ST_AXIS_MEMORY], limit = intent->on[ST_AXIS_CACHE];
    const strata_tier tier = memory > MEMORY_RUNGS ? STRATA_TIER_DEVICE : STRATA_TIER_HOST;
    const uint64_t bytes = plan->capacity.bytes[tier], cache = plan->policy.cache;
    bool fits;

    if (memory > 0)
        plan->capacity.bytes[tier] = smaller_memory(bytes, (memory - 1) % MEMORY_RUNGS);
    if (limit > 0 && size_of_number(limit) < cache)
        plan->policy.cache = size_of_number(limit);
    fits = complete(plan, start, intent);
    plan->capacity.bytes[tier] = bytes;
    plan->policy.cache = cache;
    return fits;
}

/* --- ladders --- */

/* 0, 1, 2, ... below `count`. */
static uint32_t counts(uint32_t levels[ST_LEVELS_MAX], uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        levels[i] = i;
    return count;
}

static uint32_t update_levels(uint32_t levels[ST_LEVELS_MAX], const struct st_plan *plan)
{
    const struct st_policy *asked = &plan->asked;
    uint32_t count = 0;

    if (asked->update != ST_UPDATE_AUTO || asked->forward_only) {
        levels[0] = asked->update != ST_UPDATE_AUTO ? asked->update : ST_UPDATE_GATED;
        return 1;
    }
    if (!asked->needs_norm && !st_workload_opaque(&plan->program.workload))
        levels[count++] = ST_UPDATE_IN_BACKWARD;
    levels[count++] = ST_UPDATE_GATED;
    levels[count++] = ST_UPDATE_SERIAL;
    return count;
}

static uint32_t accumulation_levels(uint32_t levels[ST_LEVELS_MAX], const struct st_plan *plan)
{
    levels[0] = plan->policy.accumulation;
    return plan->policy.accumulation == ST_ACCUMULATE_AUTO ? counts(levels, 2) : 1;
}

static uint32_t tier_levels(uint32_t levels[ST_LEVELS_MAX], const struct st_plan *plan)
{
    levels[0] = plan->policy.forward_only ? STRATA_TIER_DEVICE : plan->policy.activation_tier;
    if (levels[0] != STRATA_TIER_COUNT)
        return 1;
    levels[0] = STRATA_TIER_DEVICE;
    levels[1] = STRATA_TIER_HOST;
    return 2;
}

/* 0, 1, 2, 3, 4, 6, 8, 12, 16, ... */
static uint32_t next_level(uint32_t level)
{
    return level < 4 ? level + 1 : (level & (level - 1)) == 0 ? level + level / 2 : level / 3 * 4;
}

/* Counts of pages whose state may lie on the device: none, the table's and what goes with it, and so many blocks more, all. */
static uint32_t state_levels(uint32_t levels[ST_LEVELS_MAX], const struct st_plan *plan)
{
    const struct st_workload *w = &plan->program.workload;
    const uint32_t *pages_of = plan->sums->layer_pages, first = pages_of[st_block_first(w)], end = pages_of[st_block_end(w)];
    uint32_t count = 1;

    levels[0] = 0;
    if (plan->policy.forward_only || plan->policy.optimizer_tier == STRATA_TIER_DEVICE)
        return 1;
    if (first > w->gathered_count)
        levels[count++] = w->gathered_count;
    for (uint32_t pages = 0; first + pages < end && count < ST_LEVELS_MAX - 2; pages = next_level(pages))
        if (first + pages > 0)
            levels[count++] = first + pages;
    levels[count++] = end;
    if (w->page_count > end)
        levels[count++] = w->page_count;
    return count;
}

/* Shares of the blocks whose state is streamed: sixteenths, each count of blocks once. */
static uint32_t streamed_levels(uint32_t levels[ST_LEVELS_MAX], const struct st_plan *plan, uint32_t state_pages)
{
    const uint32_t *plain = plan->sums->plain, blocks = plain[plan->program.workload.page_count] - plain[state_pages];
    uint32_t count = 1;

    levels[0] = 0;
    if (plan->policy.streamed != ST_STREAMED_AUTO) {
        levels[0] = plan->policy.streamed;
        return 1;
    }
    if (plan->policy.forward_only || plan->capacity.device_is_host || plan->policy.optimizer_tier == STRATA_TIER_DEVICE ||
        plan->policy.early != 0)
        return 1;
    for (uint32_t s = ST_STREAMED_PARTS / 16; s <= ST_STREAMED_PARTS; s += ST_STREAMED_PARTS / 16)
        if (blocks * s / ST_STREAMED_PARTS > blocks * levels[count - 1] / ST_STREAMED_PARTS)
            levels[count++] = s;
    return count;
}

/* As many blocks as fit at the end, eighths of all, none. */
static uint32_t kept_levels(uint32_t levels[ST_LEVELS_MAX], const struct st_plan *plan)
{
    const uint64_t blocks = st_block_count(&plan->program.workload);
    uint32_t count = 0;

    if (plan->policy.activations != ST_ACT_AUTO || plan->policy.forward_only) {
        levels[0] = plan->policy.activations == ST_ACT_KEPT ? (uint32_t)blocks : 0;
        return 1;
    }
    levels[count++] = ST_KEPT_REST;
    for (uint32_t eighths = 8; eighths > 0; eighths--)
        if ((blocks * eighths + 7) / 8 < levels[count - 1])
            levels[count++] = (uint32_t)((blocks * eighths + 7) / 8);
    levels[count++] = 0;
    return count;
}

/* All that fit, three, two, one quarter of all, none that need not be. */
static uint32_t quarters_of(uint32_t levels[ST_LEVELS_MAX], uint64_t all)
{
    uint32_t count = 1;

    levels[0] = (uint32_t)all;
    for (uint64_t quarters = 4; quarters-- > 0;)
        if (all * quarters / 4 < levels[count - 1])
            levels[count++] = (uint32_t)(all * quarters / 4);
    return count;
}

/* All that may be, ..., 4, 3, 2, 1, none. */
static uint32_t all_early_levels(uint32_t levels[ST_LEVELS_MAX], const struct st_plan *plan)
{
    const uint32_t all = plan->sums->mix.may[plan->program.workload.page_count];
    uint32_t count = 0;

    levels[count++] = all;
    for (uint32_t pages = 0; pages < all && count < ST_LEVELS_MAX; pages = next_level(pages)) {
        memmove(levels + 2, levels + 1, (count - 1) * sizeof(*levels));
        levels[1] = pages;
        count++;
    }
    return count;
}

/* What is updated early, the host updates: with any of it nothing is streamed. */
static uint32_t early_levels(uint32_t levels[ST_LEVELS_MAX], const struct st_plan *plan)
{
    const uint64_t pages = plan->program.workload.page_count;

    levels[0] = 0;
    if (plan->policy.early == 0 || plan->policy.forward_only || plan->policy.update != ST_UPDATE_GATED)
        return 1;
    if (plan->policy.early == ST_EARLY_AUTO)
        return all_early_levels(levels, plan);
    levels[0] = (uint32_t)(pages * plan->policy.early / ST_EARLY_PARTS);
    return 1;
}

/* All chunks that fit, whatever their size; three, two, one quarter of them, none that need not be. */
static uint32_t cached_levels(uint32_t levels[ST_LEVELS_MAX], const struct st_plan *plan)
{
    const uint32_t count = caches_state(plan) ? quarters_of(levels, plan->program.chunk_count) : 1;

    levels[0] = ST_CACHED_ALL;
    return count;
}

static uint32_t order_levels(const struct st_plan *plan)
{
    const struct st_policy *p = &plan->policy;
    const bool weights = p->param_tier == STRATA_TIER_NVME, state = caches_state(plan);

    if (weights && state)
        return HOST_ORDERS;
    return weights || state ? 3 : 1;
}

uint32_t st_candidate_levels(uint32_t levels[ST_LEVELS_MAX], const struct st_plan *plan, const struct st_intent *intent,
                             enum st_axis axis)
{
    switch (axis) {
    case ST_AXIS_UPDATE:
        return update_levels(levels, plan);
    case ST_AXIS_ACCUMULATION:
        return accumulation_levels(levels, plan);
    case ST_AXIS_TIER:
        return tier_levels(levels, plan);
    case ST_AXIS_KEPT:
        return kept_levels(levels, plan);
    case ST_AXIS_STATE:
        return state_levels(levels, plan);
    case ST_AXIS_STREAMED:
        return streamed_levels(levels, plan, intent->on[ST_AXIS_STATE]);
    case ST_AXIS_EARLY:
        return early_levels(levels, plan);
    case ST_AXIS_ACCUM:
        return counts(levels, intent->on[ST_AXIS_ACCUMULATION] == ST_ACCUMULATE_HORIZONTAL ? ST_ACCUM_ALL + 1 : 1);
    case ST_AXIS_RESIDENT:
        return quarters_of(levels, plan->program.workload.page_count);
    case ST_AXIS_CACHED:
        return cached_levels(levels, plan);
    case ST_AXIS_ORDER:
        return counts(levels, order_levels(plan));
    case ST_AXIS_SLOTS:
        return counts(levels, ST_SLOT_PROFILES);
    case ST_AXIS_GRADS:
        return counts(levels, caches_state(plan) ? 3 : 1);
    case ST_AXIS_MEMORY:
        return counts(levels, 1 + 2 * MEMORY_RUNGS);
    default:
        return counts(levels, 1);
    }
}

/* None, and some below what the decisions have above its tier. */
static uint32_t limits_below(uint32_t levels[ST_LEVELS_MAX], const struct st_plan *plan)
{
    static const uint32_t less[] = {0, 1, 2, 3, 4, 5, 7, 11};
    const uint32_t largest = number_of_size(st_plan_promoted(plan));
    uint32_t count = 1;

    levels[0] = 0;
    for (size_t i = 0; i < sizeof(less) / sizeof(less[0]) && less[i] < largest; i++)
        levels[count++] = largest - less[i];
    return count;
}

uint32_t st_candidate_between(uint32_t levels[ST_LEVELS_MAX], const struct st_plan *plan, const struct st_intent *intent,
                              enum st_axis axis)
{
    static const int steps[] = {-2, -1, 1, 2};
    const struct st_workload *w = &plan->program.workload;
    uint32_t value, most, count = 0;

    if (axis == ST_AXIS_CACHE)
        return limits_below(levels, plan);
    if (st_candidate_levels(levels, plan, intent, axis) == 1)
        return 0;
    switch (axis) {
    case ST_AXIS_KEPT:
        value = plan->decided.kept_blocks;
        most = st_block_count(w);
        break;
    case ST_AXIS_STATE:
        value = plan->decided.device_state_pages;
        most = w->page_count;
        break;
    case ST_AXIS_STREAMED:
        value = plan->decided.streamed;
        most = ST_STREAMED_PARTS;
        break;
    case ST_AXIS_EARLY:
        value = plan->decided.early_pages;
        most = w->page_count;
        break;
    case ST_AXIS_RESIDENT:
        value = plan->decided.resident_pages;
        most = w->page_count;
        break;
    case ST_AXIS_CACHED:
        value = plan->decided.cached_chunks;
        most = plan->program.chunk_count;
        break;
    default:
        return 0;
    }
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
        if (value + (uint32_t)steps[i] <= most) /* wraps round below 0 */
            levels[count++] = value + (uint32_t)steps[i];
    return count;
}

/* plan_place.c - chooses the placement, given the reserved slots: the fewest NVMe bytes, and among equals the fewest link bytes.
 *
 * It makes four decisions: how many pages are resident on the device, for how many the state is there too, how many pages and how
 * many chunks are cached in host memory.  Each is a count from the bottom.
 *
 * Every count of device state is tried.  With that count fixed, more residency never moves more bytes from NVMe and never needs
 * more host memory, so the largest count that fits would be best if it were not for the link.  Link bytes are linear over a run
 * of equal pages, so only the ends of runs can be better, and only those are tried.  With a cache limit this does not hold, since
 * residency uses bytes that caching could use; then all counts are tried.
 *
 * Host memory is divided by trying every count of cached pages whose bound is better than the best placement so far.  The bound
 * fills all remaining memory with state, where a byte saves two.  Chunks take the rest. */
#include "offload/plan/plan_internal.h"

#include <assert.h>

#define ALL_RESIDENCIES_PAGES 256u /* most pages for which a limited cache is divided exactly; else only ends of runs */

struct choice {
    struct st_decisions decided;
    uint64_t nvme, link;
};

struct search {
    struct st_plan *plan;
    struct choice best;
    bool found, caches_weights, caches_state, frozen;
};

static bool better(const struct search *s, uint64_t nvme, uint64_t link)
{
    return !s->found || nvme < s->best.nvme || (nvme == s->best.nvme && link < s->best.link);
}

static void keep_if_better(struct search *s)
{
    const struct st_plan *plan = s->plan;
    struct st_moved moved;

    st_plan_moved(&moved, plan);
    if (!better(s, moved.nvme, moved.link))
        return;
    s->found = true;
    s->best = (struct choice){.decided = plan->decided, .nvme = moved.nvme, .link = moved.link};
}

/* First count of the piece of [0, chunk_count] that contains c.  Inside a piece the slots keep their size, so caching one chunk
 * more always needs more memory. */
static uint32_t chunk_piece(const struct st_plan *plan, uint32_t c)
{
    const uint64_t *largest = plan->sums->state_largest;
    uint32_t low = 0, high = c;

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;

        if (largest[middle] == largest[c])
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static uint32_t page_piece(const struct st_plan *plan, uint32_t p)
{
    return p < plan->program.workload.page_count ? plan->sums->run_first[p] : p;
}

/* Sets a decision to the largest allowed value in [low, high]; false if there is none. */
static bool raise_in_pieces(struct st_plan *plan, uint32_t *decision, uint32_t low, uint32_t high,
                            uint32_t (*piece)(const struct st_plan *, uint32_t))
{
    for (;;) {
        const uint32_t start = piece(plan, high) > low ? piece(plan, high) : low;

        *decision = start;
        if (st_plan_allowed(plan)) {
            st_plan_raise(plan, decision, high);
            return true;
        }
        if (start == low)
            return false;
        high = start - 1;
    }
}

/* The most bytes that cached chunks could take, including those of their slots; false if nothing fits even then. */
static bool room_left(const struct st_plan *plan, uint64_t *room)
{
    const uint64_t capacity = plan->capacity.bytes[STRATA_TIER_HOST] + plan->decided.slots.states * plan->sums->state_largest[0];
    uint64_t needed[STRATA_TIER_COUNT], cached;

    st_plan_size(plan, needed);
    if (needed[STRATA_TIER_HOST] > capacity)
        return false;
    *room = capacity - needed[STRATA_TIER_HOST];
    if (plan->policy.cache == ST_AUTO_BYTES)
        return true;
    cached = st_plan_promoted(plan);
    if (cached > plan->policy.cache)
        return false;
    *room = plan->policy.cache - cached < *room ? plan->policy.cache - cached : *room;
    return true;
}

/* A bound that no placement reaches by caching chunks in the remaining memory. */
static bool bound_of(const struct search *s, struct st_moved *bound)
{
    const struct st_plan *plan = s->plan;
    const uint64_t *before = plan->sums->state_bytes;
    uint64_t room, state = 0;

    if (!room_left(plan, &room))
        return false;
    if (s->caches_state)
        state = before[plan->program.chunk_count] - before[st_place_device_chunks(plan)];
    st_plan_moved(bound, plan);
    bound->nvme -= 2 * (room < state ? room : state);
    return true;
}

static void try_chunks(struct search *s)
{
    struct st_plan *plan = s->plan;
    const uint32_t most = s->caches_state ? plan->program.chunk_count : plan->decided.cached_chunks;

    if (raise_in_pieces(plan, &plan->decided.cached_chunks, plan->decided.cached_chunks, most, chunk_piece))
        keep_if_better(s);
    if (s->caches_state)
        plan->decided.cached_chunks = 0;
}

/* Divides host memory.  Without frozen pages a cached page saves at least as much as state in its place would, so the bounds
 * only get worse as the count falls. */
static void try_host(struct search *s)
{
    struct st_plan *plan = s->plan;
    const uint32_t most = s->caches_weights ? plan->program.workload.page_count : plan->decided.cached_weight_pages;

    for (uint32_t pages = most + 1; pages-- > (s->caches_weights ? 0 : most);) {
        struct st_moved bound;

        plan->decided.cached_weight_pages = pages;
        if (!bound_of(s, &bound))
            continue;
        if (better(s, bound.nvme, bound.link))
            try_chunks(s);
        else if (!s->frozen)
            break;
    }
    if (s->caches_weights)
        plan->decided.cached_weight_pages = 0;
}

/* Tries residency for a fixed count of device state, from the largest count that fits downwards. */
static void try_residency(struct search *s, uint32_t low)
{
    struct st_plan *plan = s->plan;
    const bool every = plan->policy.cache != ST_AUTO_BYTES && plan->program.workload.page_count <= ALL_RESIDENCIES_PAGES;

    if (!raise_in_pieces(plan, &plan->decided.resident_pages, low, plan->program.workload.page_count, page_piece))
        return;
    for (;;) {
        const uint32_t pages = plan->decided.resident_pages;
        uint32_t start;

        if (st_plan_allowed(plan))
            try_host(s);
        if (pages <= low)
            return;
        start = every ? pages - 1 : page_piece(plan, pages - 1);
        plan->decided.resident_pages = start > low ? start : low;
    }
}

static void try_all(struct search *s)
{
    struct st_plan *plan = s->plan;
    const bool stays = plan->policy.forward_only || plan->policy.optimizer_tier == STRATA_TIER_DEVICE;
    const bool resident = plan->policy.param_tier == STRATA_TIER_DEVICE;

    if (!stays)
        for (uint32_t pages = plan->program.workload.page_count; pages >= plan->program.workload.table_count; pages--) {
            plan->decided.device_state_pages = pages;
            try_residency(s, resident ? plan->program.workload.page_count : pages);
        }
    if (!stays)
        plan->decided.device_state_pages = 0;
    try_residency(s, resident ? plan->program.workload.page_count : 0);
}

static bool has_frozen(const struct st_workload *w)
{
    uint64_t params = 0;

    for (uint32_t p = 0; p < w->page_count; p++)
        params += w->pages[p].params;
    return params > w->params;
}

void st_plan_place(struct st_plan *plan)
{
    const struct st_policy *policy = &plan->policy;
    struct search s = {.plan = plan,
                       .caches_weights = policy->param_tier == STRATA_TIER_NVME,
                       .caches_state = policy->optimizer_tier == STRATA_TIER_NVME && !policy->forward_only,
                       .frozen = has_frozen(&plan->program.workload)};

    if (policy->cache == 0)
        return;
    if (s.caches_weights)
        plan->decided.cached_weight_pages = 0;
    if (s.caches_state)
        plan->decided.cached_chunks = 0;
    try_all(&s);
    assert(s.found);
    plan->decided = s.best.decided;
}

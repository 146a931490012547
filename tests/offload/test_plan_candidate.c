/* test_plan_candidate - what an intent is completed to: it fits, and what is left of memory has gone to the largest amounts that
 * fit, so that of what could be kept nearer no more would fit. */
#include "offload/plan/plan_choose_internal.h"
#include "plan_fixture.h"
#include "tests/common/test.h"

#include <stdio.h>

#define CASES 100u
#define AMPLE (UINT64_C(1) << 50)

/* How often an amount was none, some, all of what there is. */
struct seen {
    uint32_t none, some, all;
};

static void see(struct seen *seen, uint32_t value, uint32_t all)
{
    seen->none += value == 0;
    seen->all += value == all;
    seen->some += value > 0 && value < all;
}

static uint64_t whole(uint64_t bytes)
{
    return bytes / ST_EXTENT_ALIGN * ST_EXTENT_ALIGN;
}

/* State at home on NVMe, and weights there or on the device, where none are left to compete with state.  What is placed in memory
 * is whole blocks, and so are the limits: what fits often fits exactly. */
static struct st_plan *random_plan(uint64_t seed)
{
    const struct st_capacity ample = {.bytes = {AMPLE, AMPLE, AMPLE}, .workers = 2, .device_is_host = seed / 2 % 2 == 0};
    struct plan_draws draws = {.seed = seed};
    struct st_policy policy;
    struct st_workload w;
    struct st_plan *plan;

    plan_random_workload(&w, &draws, true);
    plan_random_policy(&policy, &draws, &w);
    policy.param_tier = seed % 2 == 0 ? STRATA_TIER_NVME : STRATA_TIER_DEVICE;
    policy.optimizer_tier = STRATA_TIER_NVME;
    policy.forward_only = false;
    policy.chunk_elems = ST_TILE_ELEMS;
    policy.cache = plan_draw(&draws, 2) == 0 ? ST_AUTO_BYTES : whole(plan_draw(&draws, 16 * w.params));
    if (policy.accumulation == ST_ACCUMULATE_AUTO)
        policy.accumulation = ST_ACCUMULATE_VERTICAL;
    if (st_plan_create(&plan, &w, &ample, &policy) != STRATA_OK)
        fail_msg("seed %llu: %s", (unsigned long long)seed, strata_last_error());
    st_workload_fini(&w);
    assert_true(st_plan_smallest(plan, policy.accumulation));
    for (int t = STRATA_TIER_DEVICE; t <= STRATA_TIER_HOST; t++)
        plan->capacity.bytes[t] =
            plan->minimum[t] + whole(plan_draw(&draws, 16 * plan->program.workload.params + 1) / (1 + plan_draw(&draws, 16)));
    assert_true(st_plan_smallest(plan, policy.accumulation)); /* in that memory */
    return plan;
}

/* The first value of each axis, which is as much as fits; but of the state on the device any amount, in half of the cases. */
static struct st_intent random_intent(const struct st_plan *plan, uint64_t seed)
{
    struct st_intent intent = {0};
    uint32_t levels[ST_LEVELS_MAX];

    intent.on[ST_AXIS_ACCUMULATION] = plan->policy.accumulation;
    for (uint32_t axis = 0; axis < ST_AXIS_COUNT; axis++) {
        const uint32_t count = st_candidate_levels(levels, plan, &intent, (enum st_axis)axis);

        if (axis != ST_AXIS_ACCUMULATION && count > 0)
            intent.on[axis] = levels[axis == ST_AXIS_STATE && seed / 4 % 2 == 0 ? seed / 8 % count : 0];
    }
    return intent;
}

/* Fails if there is a larger value of a decision with which the decisions fit. */
static void check_no_more(struct st_plan *plan, uint32_t *decision, uint32_t all, const char *what, uint64_t seed)
{
    const uint32_t decided = *decision;

    for (*decision = decided + 1; *decision <= all; ++*decision)
        if (st_plan_allowed(plan))
            fail_msg("seed %llu: %u %s of %u, but %u would fit", (unsigned long long)seed, decided, what, all, *decision);
    *decision = decided;
}

/* Amounts are raised one after the other, and only the last is looked at: slots become smaller with it, so that of another one
 * more might fit by then. */
enum last { LAST_CHUNKS, LAST_WEIGHTS, LAST_RESIDENT, LAST_COUNT };
static const struct {
    uint32_t order;  /* ST_AXIS_ORDER */
    uint32_t cached; /* ST_AXIS_CACHED */
    enum last last;
} rows[] = {
    {0, ST_CACHED_ALL, LAST_CHUNKS}, {1, ST_CACHED_ALL, LAST_CHUNKS},   {0, 0, LAST_WEIGHTS},
    {1, 0, LAST_RESIDENT},           {2, ST_CACHED_ALL, LAST_RESIDENT}, {3, ST_CACHED_ALL, LAST_RESIDENT},
};

static const char *const words[LAST_COUNT] = {"chunks are cached", "pages are cached", "pages are resident"};

static uint32_t *last_of(struct st_plan *plan, enum last last, uint32_t *all)
{
    *all = last == LAST_CHUNKS ? plan->program.chunk_count : plan->program.workload.page_count;
    return last == LAST_CHUNKS    ? &plan->decided.cached_chunks
           : last == LAST_WEIGHTS ? &plan->decided.cached_weight_pages
                                  : &plan->decided.resident_pages;
}

TEST(what_is_left_is_spent)
{
    struct seen seen[LAST_COUNT] = {{0}};
    const uint32_t row_count = sizeof(rows) / sizeof(rows[0]);

    for (uint64_t seed = 1; seed <= CASES; seed++) {
        struct st_plan *plan = random_plan(seed);
        const struct st_decisions start = plan->decided;
        struct st_intent intent = random_intent(plan, seed);

        for (uint32_t i = 0; i < row_count * ST_SLOT_PROFILES; i++) {
            const enum last last = rows[i % row_count].last;
            uint32_t all, *decision = last_of(plan, last, &all);

            intent.on[ST_AXIS_SLOTS] = i / row_count;
            intent.on[ST_AXIS_ORDER] = rows[i % row_count].order;
            intent.on[ST_AXIS_CACHED] = rows[i % row_count].cached;
            if ((last != LAST_CHUNKS && plan->policy.param_tier != STRATA_TIER_NVME) ||
                !st_candidate_complete(plan, &start, &intent))
                continue;
            assert_true(st_plan_allowed(plan));
            plan->decided.slots = plan->reserved; /* with those, too, that are no longer used, but might be with more */
            all = last == LAST_CHUNKS ? st_plan_cacheable(plan) : all;
            check_no_more(plan, decision, all, words[last], seed);
            see(&seen[last], *decision, all);
        }
        st_plan_destroy(plan);
    }
    for (uint32_t i = 0; i < LAST_COUNT; i++) {
        print_message("%s: none %u, some %u, all %u\n", words[i], seen[i].none, seen[i].some, seen[i].all);
        assert_true(seen[i].none > 0 && seen[i].some > 0 && seen[i].all > 0);
    }
}

/* State on the device counts, too: with a limit of just what so many chunks take, so many are cached; with a byte less, one less.
 */
TEST(a_limited_cache_is_spent)
{
    const struct st_capacity ample = {.bytes = {AMPLE, AMPLE, AMPLE}, .workers = 2};
    const struct st_policy policy = {.param_tier = STRATA_TIER_DEVICE,
                                     .optimizer_tier = STRATA_TIER_NVME,
                                     .activation_tier = STRATA_TIER_DEVICE,
                                     .update = ST_UPDATE_SERIAL,
                                     .accumulation = ST_ACCUMULATE_VERTICAL,
                                     .cache = ST_AUTO_BYTES,
                                     .chunk_elems = ST_TILE_ELEMS};
    uint32_t levels[ST_LEVELS_MAX], level_count;
    struct st_decisions start;
    struct st_intent intent;
    struct st_workload w;
    struct st_plan *plan;

    plan_workload(&w, &plan_small, NULL);
    assert_int_equal(st_plan_create(&plan, &w, &ample, &policy), STRATA_OK);
    st_workload_fini(&w);
    assert_true(st_plan_smallest(plan, policy.accumulation));
    start = plan->decided;
    intent = random_intent(plan, 0);
    level_count = st_candidate_levels(levels, plan, &intent, ST_AXIS_STATE);
    assert_true(level_count > 2);
    for (uint32_t i = 0; i < level_count; i++) {
        uint32_t on_device;

        intent.on[ST_AXIS_STATE] = levels[i];
        plan->policy.cache = ST_AUTO_BYTES;
        assert_true(st_candidate_complete(plan, &start, &intent));
        assert_int_equal(plan->decided.cached_chunks, plan->program.chunk_count);
        on_device = st_place_device_chunks(plan);
        for (uint32_t n = on_device + 1; n <= plan->program.chunk_count; n++) {
            plan->policy.cache = plan->sums->state_bytes[n];
            assert_true(st_candidate_complete(plan, &start, &intent));
            assert_int_equal(plan->decided.cached_chunks, n);
            plan->policy.cache--;
            assert_true(st_candidate_complete(plan, &start, &intent));
            assert_int_equal(plan->decided.cached_chunks, n - 1);
        }
    }
    st_plan_destroy(plan);
}

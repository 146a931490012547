/* test_plan_spread - which chunks of the state are cached: as many bytes as were decided, spread evenly over the updates.  Random
 * plans: 40 are a sample, with --all 400. */
#include "plan_fixture.h"
#include "tests/common/sample.h"
#include "tests/common/shape.h"
#include "tests/common/test.h"

#include "offload/plan/plan_predicates.h"

#include <stdio.h>
#include <string.h>

#define MANY_SIZES 80u /* more than are spread */

static const struct plan_sizes sizes = {.dtype = STRATA_BF16,
                                        .blocks = 8,
                                        .hidden = 256,
                                        .vocab = 4000,
                                        .slice_rows = 1024,
                                        .seq = 64,
                                        .micro_batch = 2,
                                        .grad_accum = 1,
                                        .positions = true,
                                        .tied = true};
static const struct st_policy nvme_gated = {.param_tier = STRATA_TIER_HOST,
                                            .optimizer_tier = STRATA_TIER_NVME,
                                            .activation_tier = STRATA_TIER_COUNT,
                                            .update = ST_UPDATE_GATED,
                                            .cache = ST_AUTO_BYTES,
                                            .chunk_elems = 65536};

/* --- what is looked at --- */

static bool spread(const struct st_plan *plan, uint32_t chunk)
{
    const struct st_chunk *c = &plan->program.chunks[chunk];

    return chunk >= st_place_device_chunks(plan) && c->group != ST_GROUP_FROZEN && !plan->program.pages[c->page].early;
}

static bool of_table(const struct st_plan *plan, uint32_t chunk)
{
    return st_place_is_table(plan, plan->program.chunks[chunk].page);
}

static uint32_t cached_of(const struct st_plan *plan)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < plan->program.chunk_count; i++)
        count += spread(plan, i) && plan->program.chunks[i].state == ST_WHERE_HOST;
    return count;
}

static uint32_t on_disk_of(const struct st_plan *plan)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < plan->program.chunk_count; i++)
        count += plan->program.chunks[i].state == ST_WHERE_NVME;
    return count;
}

/* --- invariants --- */

/* As many bytes lie in host memory and on the disk as if the first chunks were the cached ones, of those that are not updated
 * early. */
static void bytes_are_those_decided(const struct st_plan *plan)
{
    const uint32_t first = st_place_device_chunks(plan);
    uint32_t left = plan->decided.cached_chunks > first ? plan->decided.cached_chunks - first : 0;
    uint64_t cached = 0, on_disk = 0, want = 0, all = 0;

    for (uint32_t i = 0; i < plan->program.chunk_count; i++) {
        const struct st_chunk *chunk = &plan->program.chunks[i];
        const uint64_t bytes = chunk->group != ST_GROUP_FROZEN ? chunk->bytes : 0;

        if (i >= first && !plan->program.pages[chunk->page].early && left > 0) {
            left--;
            want += bytes;
        }
        all += i >= first ? bytes : 0;
        if (spread(plan, i))
            assert_true(chunk->state == ST_WHERE_HOST || chunk->state == ST_WHERE_NVME);
        if (chunk->state == ST_WHERE_HOST)
            cached += chunk->bytes;
        else if (chunk->state == ST_WHERE_NVME)
            on_disk += chunk->bytes;
    }
    assert_int_equal(cached, want);
    assert_int_equal(on_disk, all - want);
}

static void frozen_chunks_have_no_state(const struct st_plan *plan)
{
    for (uint32_t i = 0; i < plan->program.chunk_count; i++) {
        const struct st_chunk *chunk = &plan->program.chunks[i];

        if (chunk->group != ST_GROUP_FROZEN)
            continue;
        assert_int_equal(chunk->state, ST_WHERE_NONE);
        assert_int_equal(chunk->region, ST_NO_BUFFER);
    }
}

/* No chunk of a page is cached before one of its size of the table. */
static void table_goes_first(const struct st_plan *plan)
{
    for (uint32_t t = 0; t < plan->program.chunk_count; t++) {
        if (!spread(plan, t) || !of_table(plan, t) || plan->program.chunks[t].state == ST_WHERE_HOST)
            continue;
        for (uint32_t i = 0; i < plan->program.chunk_count; i++)
            if (spread(plan, i) && !of_table(plan, i) && plan->program.chunks[i].bytes == plan->program.chunks[t].bytes)
                assert_false(plan->program.chunks[i].state == ST_WHERE_HOST);
    }
}

/* Of the chunks of one size outside the table, those that are not cached stand at most one further apart here than there. */
static void gaps_of_size_are_even(const struct st_plan *plan, uint64_t bytes)
{
    uint32_t seen = 0, last = 0, least = UINT32_MAX, most = 0;
    bool any = false;

    for (uint32_t i = 0; i < plan->program.chunk_count; i++) {
        const struct st_chunk *chunk = &plan->program.chunks[i];

        if (!spread(plan, i) || of_table(plan, i) || chunk->bytes != bytes)
            continue;
        if (chunk->state != ST_WHERE_HOST) {
            const uint32_t gap = seen - last;

            if (any && gap < least)
                least = gap;
            if (any && gap > most)
                most = gap;
            any = true;
            last = seen;
        }
        seen++;
    }
    assert_true(most == 0 || most - least <= 1);
}

static void gaps_are_even(const struct st_plan *plan)
{
    for (uint32_t i = 0; i < plan->program.chunk_count; i++)
        gaps_of_size_are_even(plan, plan->program.chunks[i].bytes);
}

static void check(const struct st_plan *plan)
{
    frozen_chunks_have_no_state(plan);
    bytes_are_those_decided(plan);
    table_goes_first(plan);
    gaps_are_even(plan);
    if (st_plan_verify(plan) != STRATA_OK)
        fail_msg("%s", strata_last_error());
}

/* --- given cases --- */

/* What each tier needs at least and at most. */
static void needs(const struct st_workload *w, const struct st_policy *policy, uint64_t least[STRATA_TIER_COUNT],
                  uint64_t most[STRATA_TIER_COUNT])
{
    struct st_machine machine = {.name = "none", .capacity = {.bytes = {0, 0, 1ull << 50}, .workers = 2}};
    struct st_policy all = *policy;
    struct st_plan *plan = plan_try(w, &machine, policy, "none");

    assert_false(plan->fits);
    memcpy(least, plan->minimum, sizeof(plan->minimum));
    st_plan_destroy(plan);
    all.optimizer_tier = STRATA_TIER_HOST;
    machine.capacity.bytes[STRATA_TIER_DEVICE] = least[STRATA_TIER_DEVICE];
    machine.capacity.bytes[STRATA_TIER_HOST] = 1ull << 50;
    plan = plan_try(w, &machine, &all, "all in memory");
    assert_true(plan->fits);
    memcpy(most, plan->program.needed, sizeof(plan->program.needed));
    st_plan_destroy(plan);
}

static const uint32_t parts = 16;

/* The smallest device, and `part` of what lies between the least host memory and enough for all state. */
static struct st_plan *plan_with_part(const struct st_workload *w, const struct st_policy *policy, uint32_t part)
{
    uint64_t least[STRATA_TIER_COUNT], most[STRATA_TIER_COUNT];
    struct st_machine machine = {.name = "part", .capacity.workers = 2};
    struct st_plan *plan;

    needs(w, policy, least, most);
    machine.capacity.bytes[STRATA_TIER_DEVICE] = least[STRATA_TIER_DEVICE];
    machine.capacity.bytes[STRATA_TIER_HOST] =
        least[STRATA_TIER_HOST] + (most[STRATA_TIER_HOST] - least[STRATA_TIER_HOST]) * part / parts;
    machine.capacity.bytes[STRATA_TIER_NVME] = 1ull << 50;
    plan = plan_try(w, &machine, policy, "part");
    assert_true(plan->fits);
    return plan;
}

/* Plans with every part of cached chunks; how many of them cache some and leave some. */
static uint32_t check_parts(const struct st_workload *w, const struct st_policy *policy)
{
    uint32_t some = 0;

    for (uint32_t part = 0; part <= parts; part++) {
        struct st_plan *plan = plan_with_part(w, policy, part);

        check(plan);
        some += cached_of(plan) > 0 && on_disk_of(plan) > 0;
        st_plan_destroy(plan);
    }
    return some;
}

TEST(cached_chunks_are_spread)
{
    static const enum st_update_policy updates[] = {ST_UPDATE_GATED, ST_UPDATE_SERIAL, ST_UPDATE_IN_BACKWARD};

    for (size_t u = 0; u < 3; u++)
        for (int tied = 0; tied < 2; tied++) {
            struct plan_sizes s = sizes;
            struct st_policy policy = nvme_gated;
            struct st_workload w;

            policy.update = updates[u];
            s.tied = tied != 0;
            plan_workload(&w, &s, NULL);
            assert_true(check_parts(&w, &policy) > parts / 2);
            st_workload_fini(&w);
        }
}

/* Half of the blocks' chunks: the gaps between those on the disk are seen, not merely none. */
TEST(both_kinds_stand_side_by_side)
{
    uint32_t changes = 0;
    struct st_workload w;
    struct st_plan *plan;

    plan_workload(&w, &sizes, NULL);
    plan = plan_with_part(&w, &nvme_gated, parts / 2);
    check(plan);
    for (uint32_t i = 1; i < plan->program.chunk_count; i++)
        changes += plan->program.chunks[i].state != plan->program.chunks[i - 1].state;
    assert_true(changes > plan->program.chunk_count / 8); /* cached as a prefix there would be one */
    st_plan_destroy(plan);
    st_workload_fini(&w);
}

TEST(frozen_pages_are_left_out)
{
    enum plan_frozen frozen[10] = {PLAN_TRAINED};
    struct st_workload w;

    for (uint32_t layer = 1; layer < 10; layer++)
        frozen[layer] = (enum plan_frozen)(layer % 3);
    plan_workload(&w, &sizes, frozen);
    assert_true(check_parts(&w, &nvme_gated) > 0);
    st_workload_fini(&w);
    frozen[0] = PLAN_FROZEN;
    plan_workload(&w, &sizes, frozen);
    assert_true(check_parts(&w, &nvme_gated) > 0);
    st_workload_fini(&w);
}

TEST(without_a_cache_nothing_is_cached)
{
    struct st_policy policy = nvme_gated;
    struct st_workload w;

    policy.cache = 0;
    plan_workload(&w, &sizes, NULL);
    for (uint32_t part = 0; part <= parts; part += 4) {
        struct st_plan *plan = plan_with_part(&w, &policy, part);

        check(plan);
        assert_int_equal(cached_of(plan), 0);
        st_plan_destroy(plan);
    }
    st_workload_fini(&w);
}

/* Where the state's tier is not the disk, nothing is chosen. */
TEST(other_tiers_are_left_alone)
{
    const struct st_machine machine = {.name = "ample",
                                       .capacity = {.bytes = {1ull << 34, 1ull << 34, 1ull << 40}, .workers = 2}};
    static const strata_tier tiers[] = {STRATA_TIER_DEVICE, STRATA_TIER_HOST};

    for (size_t t = 0; t < 2; t++) {
        struct st_policy policy = nvme_gated;
        struct st_workload w;
        struct st_plan *plan;

        policy.optimizer_tier = tiers[t];
        plan_workload(&w, &sizes, NULL);
        plan = plan_try(&w, &machine, &policy, "other tier");
        assert_int_equal(on_disk_of(plan), 0);
        assert_int_equal(st_plan_verify(plan), STRATA_OK);
        st_plan_destroy(plan);
        st_workload_fini(&w);
    }
}

/* Every block one chunk of a size of its own: more sizes than are spread. */
TEST(many_sizes_stay_as_decided)
{
    struct st_policy policy = nvme_gated;
    struct plan_sizes s = sizes;
    struct st_workload w;

    s.blocks = MANY_SIZES;
    s.hidden = 32;
    s.positions = false;
    policy.chunk_elems = 1u << 22;
    plan_workload(&w, &s, NULL);
    for (uint32_t b = 0; b < s.blocks; b++) {
        struct st_page *page = &w.pages[shape_of(&w).block_first + b];
        const uint64_t more = (uint64_t)b * ST_PAGE_ALIGN * 16;

        const uint64_t decay = page->groups[0].elems, no_decay = page->groups[1].elems;

        *page = (struct st_page){.uses = 1, .layer = page->layer};
        (void)st_page_add(page, ST_GROUP_DECAY, w.dtype, decay + more);
        (void)st_page_add(page, ST_GROUP_NO_DECAY, w.dtype, no_decay);
        w.params += more;
    }
    assert_true(check_parts(&w, &policy) > parts / 2);
    st_workload_fini(&w);
}

/* Every second page is updated early, and none of its state is cached.  The topmost is: a slice of the head. */
TEST(early_pages_leave_the_cache_to_the_others)
{
    struct plan_sizes s = sizes;
    struct st_policy policy = nvme_gated;
    struct st_workload w;
    uint32_t some = 0, early = 0;

    policy.early = ST_EARLY_PARTS / 2;
    s.tied = false;
    plan_workload(&w, &s, NULL);
    assert_true(w.pages[w.page_count - 1].row_count > 0);
    for (uint32_t part = 0; part <= parts; part++) {
        struct st_plan *plan = plan_with_part(&w, &policy, part);

        check(plan);
        for (uint32_t i = 0; i < plan->program.chunk_count; i++)
            if (plan->program.pages[plan->program.chunks[i].page].early)
                assert_int_equal(plan->program.chunks[i].state, ST_WHERE_NVME);
        assert_int_equal(plan->program.pages[w.page_count - 1].early, plan->program.early_pages > 0);
        some += cached_of(plan) > 0 && on_disk_of(plan) > 0 && plan->program.early_pages > 0;
        early = plan->program.early_pages > early ? plan->program.early_pages : early;
        st_plan_destroy(plan);
    }
    st_workload_fini(&w);
    assert_true(some > parts / 4 && early > 2);
}

/* --- random cases --- */

static struct st_plan *random_plan(uint64_t seed)
{
    struct plan_draws draws = {.seed = seed};
    struct st_machine machine = {.name = "random", .capacity = {.bytes = {0, 0, 1ull << 50}, .workers = 2}};
    struct st_policy policy;
    struct st_workload w;
    struct st_plan *plan;
    char what[32];

    snprintf(what, sizeof(what), "seed %llu", (unsigned long long)seed);
    plan_random_training(&w, &draws);
    plan_random_policy(&policy, &draws, &w);
    policy.optimizer_tier = STRATA_TIER_NVME;
    policy.forward_only = false;
    plan = plan_try(&w, &machine, &policy, what);
    for (int t = STRATA_TIER_DEVICE; t <= STRATA_TIER_HOST; t++)
        machine.capacity.bytes[t] = plan->minimum[t] + plan_draw(&draws, 12 * w.params + 1);
    st_plan_destroy(plan);
    plan = plan_try(&w, &machine, &policy, what);
    st_workload_fini(&w);
    return plan;
}

TEST(random_plans_are_spread)
{
    const uint32_t cases = sample_is_all() ? 400 : 40;
    uint32_t some = 0;

    for (uint32_t seed = 0; seed < cases; seed++) {
        struct st_plan *plan = random_plan(seed);

        if (plan->fits)
            check(plan);
        some += plan->fits && cached_of(plan) > 0 && on_disk_of(plan) > 0;
        st_plan_destroy(plan);
    }
    print_message("%u of %u plans cache some chunks and leave some\n", some, cases);
    assert_true(some > 2);
}

/* test_plan_streamed - which share of the state is streamed to the device: about the closed form's, none is faster, and only
 * where a step is shorter. */
#include "offload/config/config_options.h"
#include "offload/plan/plan_internal.h"
#include "offload/simulate/simulate.h"
#include "plan_fixture.h"
#include "tests/common/test.h"

#include <math.h>
#include <string.h>

#define BLOCKS 64u

static const struct plan_sizes sizes = {.dtype = STRATA_BF16,
                                        .blocks = BLOCKS,
                                        .hidden = 512,
                                        .vocab = 1024,
                                        .slice_rows = 1024,
                                        .seq = 64,
                                        .micro_batch = 1,
                                        .grad_accum = 1,
                                        .tied = true};

/* Host memory of D bytes a second and a link of B; compute so fast that the update is what a step waits for. */
static struct st_machine machine_of(double memory, double link)
{
    return (struct st_machine){.name = "streamed",
                               .capacity = {.bytes = {1ull << 30, 1ull << 40, 1ull << 40}, .workers = 2},
                               .rates.matmul_flops = 1e18,
                               .rates.upload = link,
                               .rates.download = link,
                               .rates.read = 1e9,
                               .rates.write = 1e9,
                               .rates.mixed = 1e9,
                               .rates.update = memory / 32};
}

static struct st_policy policy_of(strata_tier state, uint32_t streamed)
{
    return (struct st_policy){.param_tier = STRATA_TIER_HOST,
                              .optimizer_tier = state,
                              .activation_tier = STRATA_TIER_COUNT,
                              .update = ST_UPDATE_SERIAL,
                              .cache = 0,
                              .chunk_elems = 1u << 20,
                              .streamed = streamed};
}

static uint32_t streamed_pages(const struct st_plan *plan)
{
    uint32_t count = 0;

    for (uint32_t p = 0; p < plan->program.workload.page_count; p++)
        count += plan->program.pages[p].state == ST_WHERE_STREAMED;
    return count;
}

/* Judged by the rates given; the plan has been verified. */
static struct st_plan *evaluated(const struct st_machine *m, const struct st_policy *policy)
{
    struct st_plan *plan = plan_of(&sizes, m, policy, "streamed");

    assert_true(plan->fits);
    if (st_plan_evaluate(&plan, m) != STRATA_OK || st_plan_verify(plan) != STRATA_OK)
        fail_msg("%s", strata_last_error());
    return plan;
}

static double seconds_of(const struct st_plan *plan, const struct st_machine *m)
{
    struct st_simulation s;

    assert_int_equal(st_simulate(&s, &plan->program, m), STRATA_OK);
    return s.seconds;
}

/* Seconds of the fastest share, asked for one by one. */
static double fastest_share(const struct st_machine *m)
{
    double fastest = HUGE_VAL;

    for (uint32_t share = 0; share <= ST_STREAMED_PARTS; share += ST_STREAMED_PARTS / 16) {
        const struct st_policy policy = policy_of(STRATA_TIER_HOST, share);
        struct st_plan *plan = evaluated(m, &policy);

        fastest = fmin(fastest, seconds_of(plan, m));
        st_plan_destroy(plan);
    }
    return fastest;
}

TEST(the_share_is_the_fastest)
{
    static const double rates[][2] = {{60e9, 25e9}, {300e9, 55e9}, {60e9, 400e9}};

    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        const struct st_machine m = machine_of(rates[i][0], rates[i][1]);
        const struct st_policy open = policy_of(STRATA_TIER_HOST, ST_STREAMED_AUTO), none = policy_of(STRATA_TIER_HOST, 0);
        struct st_plan *plan = evaluated(&m, &open), *without = evaluated(&m, &none);

        assert_int_equal(streamed_pages(plan), BLOCKS * plan->decided.streamed / ST_STREAMED_PARTS);
        assert_int_equal(streamed_pages(without), 0);
        assert_true(seconds_of(plan, &m) < 0.99 * seconds_of(without, &m));
        assert_true(seconds_of(plan, &m) <= 1.002 * fastest_share(&m));
        st_plan_destroy(plan);
        st_plan_destroy(without);
    }
}

static void assert_unchanged(const struct st_machine *m, const struct st_policy *policy, uint32_t want)
{
    struct st_plan *plan = evaluated(m, policy);

    assert_int_equal(plan->decided.streamed, want);
    st_plan_destroy(plan);
}

/* The link, the disk or compute is what the step waits for; or nobody knows; or the device is the host. */
TEST(nothing_is_streamed_in_vain)
{
    const struct st_policy in_ram = policy_of(STRATA_TIER_HOST, ST_STREAMED_AUTO),
                           on_disk = policy_of(STRATA_TIER_NVME, ST_STREAMED_AUTO);
    struct st_machine m = machine_of(150e9, 1e9);

    assert_unchanged(&m, &in_ram, 0);
    m = machine_of(150e9, 55e9);
    assert_unchanged(&m, &on_disk, 0);
    m.rates.update = 0;
    assert_unchanged(&m, &in_ram, 0);
    m = machine_of(150e9, 55e9);
    m.capacity.device_is_host = true;
    assert_unchanged(&m, &in_ram, 0);
}

/* What the configuration says stands, whatever the rates; as much of it as the device has room for. */
TEST(a_share_that_is_asked_for_is_kept)
{
    const struct st_policy half = policy_of(STRATA_TIER_HOST, ST_STREAMED_PARTS / 2);
    struct st_machine m = machine_of(150e9, 1e9);
    struct st_plan *plan = evaluated(&m, &half);
    uint64_t least;

    assert_int_equal(plan->decided.streamed, ST_STREAMED_PARTS / 2);
    least = plan->minimum[STRATA_TIER_DEVICE];
    m.capacity.bytes[STRATA_TIER_DEVICE] = least + (plan->program.needed[STRATA_TIER_DEVICE] - least) / 4;
    st_plan_destroy(plan);
    plan = evaluated(&m, &half);
    assert_in_range(plan->decided.streamed, 1, ST_STREAMED_PARTS / 2 - 1);
    st_plan_destroy(plan);
}

/* offload_optimizer.ratio is the host's share. */
TEST(the_ratio_is_the_rest)
{
    static const struct {
        double ratio;
        uint32_t streamed;
    } rows[] = {
        {1, 0}, {0, ST_STREAMED_PARTS}, {0.5, ST_STREAMED_PARTS / 2}, {0.25, ST_STREAMED_PARTS / 4 * 3}, {NAN, ST_STREAMED_AUTO}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct st_config config = {.update_ratio = rows[i].ratio};
        struct st_policy policy;

        st_config_policy(&policy, &config);
        assert_int_equal(policy.streamed, rows[i].streamed);
    }
}

/* Each way: weight and state of what is streamed; of the others the weight up and the gradient down. */
TEST(a_streamed_parameter_moves_twelve_bytes_each_way)
{
    const struct st_machine m = machine_of(150e9, 55e9);
    const struct st_policy none = policy_of(STRATA_TIER_HOST, 0), all = policy_of(STRATA_TIER_HOST, ST_STREAMED_PARTS);
    struct st_plan *without = evaluated(&m, &none), *with = evaluated(&m, &all);
    uint64_t elems = 0, state_bytes = 0;

    for (uint32_t p = 0; p < with->program.workload.page_count; p++)
        elems += with->program.pages[p].state == ST_WHERE_STREAMED ? with->program.workload.pages[p].elems : 0;
    for (uint32_t c = 0; c < with->program.chunk_count; c++)
        state_bytes +=
            with->program.pages[with->program.chunks[c].page].state == ST_WHERE_STREAMED ? with->program.chunks[c].bytes : 0;
    assert_true(state_bytes >= 10 * elems && (double)state_bytes < 10.2 * (double)elems); /* rounded up, chunk by chunk */
    /* the serial update brings the weights in once more */
    assert_int_equal(plan_steady(with).upload - plan_steady(without).upload, state_bytes + 2 * elems);
    assert_int_equal(plan_steady(with).download - plan_steady(without).download - sizeof(uint64_t), state_bytes);
    st_plan_destroy(without);
    st_plan_destroy(with);
}

/* Small models are cut unevenly, so that of two plans one rank would take the one and the next one the other. */
TEST(all_ranks_decide_alike)
{
    struct st_machine m = machine_of(40e9, 20e9);
    uint32_t compared = 0;

    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct plan_draws draws = {.seed = seed};
        struct st_workload w;
        struct st_policy policy;
        struct st_plan *first = NULL;

        plan_random_workload(&w, &draws, true);
        plan_random_policy(&policy, &draws, &w);
        policy.ranks = seed % 2 == 0 ? 2 : 4;
        policy.leaves = 1;
        policy.stage = 1 + (uint32_t)(seed % 3);
        policy.accumulation = ST_ACCUMULATE_AUTO;
        policy.streamed = ST_STREAMED_AUTO;
        m.capacity.device_is_host = seed % 5 > 2;
        for (policy.rank = 0; policy.rank < policy.ranks; policy.rank++) {
            struct st_plan *plan = plan_try(&w, &m, &policy, "alike");

            assert_true(!plan->fits || (st_plan_evaluate(&plan, &m) == STRATA_OK && st_plan_verify(plan) == STRATA_OK));
            if (policy.rank == 0) {
                first = plan;
                continue;
            }
            if (memcmp(&plan->decided, &first->decided, sizeof(plan->decided)) != 0 ||
                memcmp(plan->program.needed, first->program.needed, sizeof(plan->program.needed)) != 0 ||
                plan->program.op_count != first->program.op_count)
                fail_msg("seed %llu: rank %u of %u has another plan", (unsigned long long)seed, policy.rank, policy.ranks);
            compared += plan->fits && plan->policy.rank == policy.rank && plan->program.rank == policy.rank;
            st_plan_destroy(plan);
        }
        st_plan_destroy(first);
        st_workload_fini(&w);
    }
    assert_true(compared > 30);
}

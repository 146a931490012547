/* test_plan_early - how many pages are updated early: a plan is never slower than without, more memory never makes it so, and how
 * often steps are clipped is weighed. */
#include "offload/plan/plan_internal.h"
#include "offload/simulate/early_forecast.h"
#include "offload/simulate/simulate.h"
#include "plan_fixture.h"
#include "tests/common/test.h"

#include <string.h>

static const struct plan_sizes sizes = {.dtype = STRATA_BF16,
                                        .blocks = 16,
                                        .hidden = 256,
                                        .vocab = 1024,
                                        .slice_rows = 1024,
                                        .seq = 64,
                                        .micro_batch = 1,
                                        .grad_accum = 2,
                                        .block_params = 16 * ST_TILE_ELEMS,
                                        .tied = true};

/* State crosses a drive in about the time of compute. */
static struct st_machine machine_of(double host)
{
    return (struct st_machine){.name = "early",
                               .capacity = {.bytes = {5u << 20, (uint64_t)(host * 0x1p20), 1u << 30}, .workers = 2},
                               .rates.matmul_flops = 60e9,
                               .rates.upload = 10e9,
                               .rates.download = 10e9,
                               .rates.read = 2e9,
                               .rates.write = 2e9,
                               .rates.mixed = 2e9,
                               .rates.update = 2e9};
}

static struct st_policy policy_of(uint32_t early, double clip_rate)
{
    return (struct st_policy){.param_tier = STRATA_TIER_HOST,
                              .optimizer_tier = STRATA_TIER_NVME,
                              .activation_tier = STRATA_TIER_DEVICE,
                              .update = ST_UPDATE_GATED,
                              .early = early,
                              .clip_rate = clip_rate,
                              .needs_norm = true,
                              .accumulation = ST_ACCUMULATE_VERTICAL,
                              .cache = ST_AUTO_BYTES,
                              .streamed = 0};
}

/* *pages: that are updated early. */
static double seconds_of(const struct st_machine *m, const struct st_policy *policy, uint32_t *pages)
{
    struct st_plan *plan = plan_of(&sizes, m, policy, "early");
    struct st_early_forecast f;
    struct st_simulation s;
    double seconds;

    assert_true(plan->fits);
    if (st_plan_evaluate(&plan, m) != STRATA_OK || st_plan_verify(plan) != STRATA_OK)
        fail_msg("%s", strata_last_error());
    *pages = plan->program.early_pages;
    assert_int_equal(st_simulate(&s, &plan->program, m), STRATA_OK);
    seconds = s.seconds;
    if (*pages > 0) {
        assert_int_equal(st_early_forecast_make(&f, s.seconds, &plan->program, m), STRATA_OK);
        assert_true(f.kept == s.seconds && f.gated > 0 && f.redo_adds >= 0);
        assert_true(st_early_forecast_mean(&f, 0) <= f.gated);
        seconds = st_early_forecast_mean(&f, policy->clip_rate);
    }
    st_plan_destroy(plan);
    return seconds;
}

#define SAME 1.003 /* the search takes what is this near for as fast */

TEST(more_memory_is_never_slower_and_nor_are_early_updates)
{
    static const double host[] = {32, 38, 46, 56, 80};
    const struct st_policy gated = policy_of(0, 0), early = policy_of(ST_EARLY_AUTO, 0);
    double best = 0;
    uint32_t most = 0;

    for (size_t i = 0; i < sizeof(host) / sizeof(host[0]); i++) {
        const struct st_machine m = machine_of(host[i]);
        uint32_t pages, none;
        const double seconds = seconds_of(&m, &early, &pages), without = seconds_of(&m, &gated, &none);

        print_message("%g MiB: %u pages, %.4f s; gated %.4f s\n", host[i], pages, seconds, without);
        assert_int_equal(none, 0);
        assert_true(seconds <= without * SAME);
        assert_true(i == 0 || seconds <= best * SAME);
        most = pages > most ? pages : most;
        best = seconds;
    }
    assert_true(most > 0);
}

/* Where the policy of updates is the planner's, they are used if that gains clearly; a device that is the host has no such offer.
 */
TEST(they_may_be_offered)
{
    struct st_machine m = machine_of(38);
    struct st_policy policy = policy_of(ST_EARLY_OFFERED, 0);
    const struct st_policy gated = policy_of(0, 0);
    uint32_t pages, none;

    policy.update = ST_UPDATE_AUTO;
    assert_true(seconds_of(&m, &policy, &pages) <= 0.97 * SAME * seconds_of(&m, &gated, &none));
    assert_true(pages > 0);
    policy.clip_rate = 1;
    assert_true(seconds_of(&m, &policy, &pages) <= SAME * seconds_of(&m, &gated, &none));
    assert_int_equal(pages, 0);
    policy.clip_rate = 0;
    m.capacity.device_is_host = true;
    (void)seconds_of(&m, &policy, &pages);
    assert_int_equal(pages, 0);
}

/* The more of the steps are clipped, the longer is the mean step, but never than a gated one. */
TEST(clipped_steps_are_weighed)
{
    static const double rates[] = {0, 0.1, 0.4, 1};
    const struct st_machine m = machine_of(38);
    const struct st_policy gated = policy_of(0, 0);
    uint32_t pages, first = 0;
    const double without = seconds_of(&m, &gated, &pages);
    double before = 0;

    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        const struct st_policy policy = policy_of(ST_EARLY_AUTO, rates[i]);
        const double seconds = seconds_of(&m, &policy, &pages);

        print_message("%g clipped: %u pages, %.4f s; gated %.4f s\n", rates[i], pages, seconds, without);
        assert_true(seconds <= without * SAME);
        assert_true(seconds * SAME >= before);
        first = i == 0 ? pages : first;
        before = seconds;
    }
    assert_true(first > 0);
}

TEST(the_mean_follows_from_what_is_simulated)
{
    const struct st_early_forecast f = {.kept = 4, .redo_adds = 2, .gated = 5}, worse = {.kept = 4, .redo_adds = 2, .gated = 4},
                                   cheap = {.kept = 4, .redo_adds = 0.5, .gated = 5};

    assert_true(st_early_forecast_most(&f) == 0.5 && st_early_forecast_most(&worse) < 0 && st_early_forecast_most(&cheap) == 1);
    assert_true(st_early_forecast_mean(&f, 0) == 4 && st_early_forecast_mean(&f, 0.25) == 4.5);
    assert_true(st_early_forecast_mean(&f, 0.75) == 5 && st_early_forecast_mean(&worse, 0) == 4);
    assert_true(st_early_forecast_mean(&cheap, 1) == 4.5);
}

/* The draft of a plan: it fits where the plan does, and its step takes about as long as the chosen one's. */
#include "core/base/error.h"
#include "offload/plan/plan.h"
#include "plan_best_fixture.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdlib.h>

#define CASES 24u

/* As the random runs have shown: a draft is a plan, too, so that the choice is hardly ever slower. */
#define LEAST_OF_CHOICE 0.97
#define MEAN_OF_CHOICE  1.15

static double draft(const struct best_case *c, const struct st_capacity *capacity, const struct st_machine *rates)
{
    struct st_draft d;

    if (st_plan_draft(&d, &c->w, capacity, &c->policy, rates, &c->machine, HUGE_VAL) != STRATA_OK)
        fail_msg("%s: %s", c->what, strata_last_error());
    return d.seconds;
}

TEST(a_draft_is_about_as_fast_as_the_choice)
{
    double sum = 0, worst = 0;
    uint32_t compared = 0;

    for (uint64_t seed = 1; seed <= CASES; seed++) {
        struct best_case c;
        struct st_plan *plan;

        best_case_make(&c, seed);
        if (!c.large && (plan = best_plan(&c, &c.policy, &c.machine)) != NULL) {
            const double ratio = draft(&c, &c.machine.capacity, &c.machine) / best_seconds(plan, &c.machine);

            if (!(ratio > LEAST_OF_CHOICE) || !isfinite(ratio))
                fail_msg("%s: the draft takes %.3f of the chosen plan's time", c.what, ratio);
            worst = fmax(worst, ratio);
            sum += ratio;
            compared++;
            st_plan_destroy(plan);
        }
        best_case_fini(&c);
    }
    print_message("%u drafts take %.3f of the chosen plan's time on average, at most %.3f\n", compared, sum / compared, worst);
    assert_true(compared >= CASES / 3 && sum / compared < MEAN_OF_CHOICE);
}

/* Down to the last byte of each tier, with rates and without. */
TEST(a_draft_fits_where_a_plan_does)
{
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        struct best_case c;

        best_case_make(&c, seed);
        for (int tier = 0; tier < STRATA_TIER_COUNT; tier++)
            for (uint32_t eighths = 0; eighths <= 8; eighths += 4) {
                struct st_capacity capacity = c.machine.capacity;
                bool fits;

                capacity.bytes[tier] = capacity.bytes[tier] / 8 * eighths;
                assert_int_equal(st_plan_fits(&fits, &c.w, &capacity, &c.policy), STRATA_OK);
                if (isfinite(draft(&c, &capacity, tier == 0 ? NULL : &c.machine)) != fits)
                    fail_msg("%s: %u eighths of tier %d: a plan %s, a draft does not agree", c.what, eighths, tier,
                             fits ? "fits" : "does not fit");
            }
        best_case_fini(&c);
    }
}

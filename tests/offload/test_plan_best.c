/* test_plan_best - is the plan the best one?  Random runs: as many as the first argument says, from the seed that the second
 * says, with a few comparisons each if the third is "few"; without arguments a sample of those that are planned quickly, and none
 * that is shortened.
 *
 * best     no other setting that a user could write has a step that is shorter by more than 0.5 %: one axis at a time, and pairs
 * memory   more memory of device or host never makes a step longer by more than 0.5 %
 * rates    faster links, drives, cores or compute never by more than 1 %
 * equal    the same inputs give the same plan
 * nominal  without rates the nominal machine evaluates
 * ops      what is simulated for a plan is bounded by a count of ops
 * bound    what keeps candidates from being evaluated is never above their simulated step by more than its slack
 * shortened steps of many micro-batches are evaluated by steps of few: within 2 %
 *
 * The search does not reach every best plan: of the first, second, third and last a part of the cases is above the limit.  So the
 * test holds them to what is reached (best_holds()), prints all that are above, and the worst with all that is needed to meet
 * them again: `test_offload_plan_best 1 SEED`. */
#include "offload/plan/plan_choose_internal.h"
#include "plan_best_fixture.h"
#include "tests/common/shape.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLE           1u
#define PAIRS            8u
#define SHORTENED        20u
#define SHORTENED_SAMPLE 1u
#define OPS_MOST         10000000u /* for a plan whose program is not larger */

static uint64_t first_seed = 1, case_count = SAMPLE;
static bool sample = true, few = true; /* few comparisons */

static uint64_t most_evaluated;
static struct best_worst worst_setting = {.property = "best", .limit = 0.005, .part = 0.03, .most = 0.05};
static struct best_worst worst_memory = {.property = "memory", .limit = 0.005, .part = 0.02, .most = 0.1};
static struct best_worst worst_rates = {.property = "rates", .limit = 0.01, .part = 0.02, .most = 0.2};
static struct best_worst worst_bound = {
    .property = "bound", .limit = 1 / ST_BOUND_SLACK - 1, .part = 0, .most = 1 / ST_BOUND_SLACK - 1};
static struct best_worst worst_shortened = {.property = "shortened", .limit = 0.02, .part = 0, .most = 0.02};

/* --- best --- */

struct grid {
    const struct best_case *c;
    uint64_t promoted; /* by the plan that is compared */
    double best;
    char how[128];
    bool thin; /* one value of each axis, one pair */
};

static void try_setting(struct grid *grid, const struct best_setting *s)
{
    struct st_policy policy;
    struct st_plan *plan;
    char how[128];
    double seconds, work;

    if (!best_setting_policy(&policy, grid->c, s, grid->promoted) ||
        (plan = best_plan(grid->c, &policy, &grid->c->machine)) == NULL)
        return;
    seconds = best_seconds(plan, &grid->c->machine);
    best_setting_text(how, sizeof(how), s);
    best_note(&worst_bound, grid->c, st_plan_bound(plan, &grid->c->machine, &work), seconds, how);
    if (seconds < grid->best) {
        grid->best = seconds;
        memcpy(grid->how, how, sizeof(grid->how));
    }
    st_plan_destroy(plan);
}

/* Every value of every axis; a sample takes one of each. */
static void try_axes(struct grid *grid, struct plan_draws *draws)
{
    for (uint32_t axis = 0; axis < BEST_AXES; axis++) {
        const uint32_t count = best_axis_values(axis), drawn = (uint32_t)plan_draw(draws, count);

        for (uint32_t i = 0; i < count; i++) {
            struct best_setting s = best_all_open;

            s.value[axis] = i;
            if (!grid->thin || i == drawn)
                try_setting(grid, &s);
        }
    }
}

static void try_pairs(struct grid *grid, struct plan_draws *draws)
{
    for (uint32_t pair = 0; pair < (grid->thin ? 1 : PAIRS); pair++) {
        const uint32_t one = (uint32_t)plan_draw(draws, BEST_AXES);
        const uint32_t other = (one + 1 + (uint32_t)plan_draw(draws, BEST_AXES - 1)) % BEST_AXES;
        struct best_setting s = best_all_open;

        s.value[one] = (uint32_t)plan_draw(draws, best_axis_values(one));
        s.value[other] = (uint32_t)plan_draw(draws, best_axis_values(other));
        try_setting(grid, &s);
    }
}

static void check_best(const struct best_case *c, const struct st_plan *plan)
{
    const double seconds = best_seconds(plan, &c->machine);
    struct grid grid = {.c = c, .promoted = st_plan_promoted(plan), .best = seconds, .how = "itself", .thin = few || c->large};
    struct plan_draws draws = {.seed = c->seed + 1000000};
    char how[160];

    try_axes(&grid, &draws);
    try_pairs(&grid, &draws);
    snprintf(how, sizeof(how), "with %s", grid.how);
    best_note(&worst_setting, c, seconds, grid.best, how);
}

/* --- more of something --- */

static double seconds_on(const struct best_case *c, const struct st_machine *machine)
{
    struct st_plan *plan = best_plan(c, &c->policy, machine);
    double seconds;

    if (plan == NULL)
        fail_msg("%s: does not fit in more", c->what);
    seconds = best_seconds(plan, machine);
    st_plan_destroy(plan);
    return seconds;
}

static void check_memory(const struct best_case *c, double seconds)
{
    static const double factors[] = {1.03, 1.1, 1.25, 1.6, 2.5};
    const bool thin = few || c->large;

    for (int t = STRATA_TIER_DEVICE; t <= STRATA_TIER_HOST; t++) {
        struct st_machine m = c->machine;
        double best = seconds, least = 1;

        for (size_t i = thin ? 2 : 0; i < (thin ? 3 : sizeof(factors) / sizeof(factors[0])); i++) {
            char how[96];
            double now;

            m.capacity.bytes[t] = (uint64_t)(factors[i] * (double)c->machine.capacity.bytes[t]);
            now = seconds_on(c, &m);
            snprintf(how, sizeof(how), "(%s memory x %.2f, x %.2f)", t == STRATA_TIER_DEVICE ? "device" : "host", factors[i],
                     least);
            best_note(&worst_memory, c, now, best, how);
            if (now < best) {
                best = now;
                least = factors[i];
            }
        }
    }
}

static void check_rates(const struct best_case *c, double seconds)
{
    static const double factors[] = {1.1, 1.5, 2, 4};
    const bool thin = few || c->large;
    static const char *const names[] = {"links", "drives", "cores", "compute"};

    for (uint32_t which = 0; which < sizeof(names) / sizeof(names[0]); which++) {
        double best = seconds;

        for (size_t i = thin ? 2 : 0; i < (thin ? 3 : sizeof(factors) / sizeof(factors[0])); i++) {
            struct st_machine m = c->machine;
            struct st_rates *r = &m.rates;
            double *const faster[][4] = {{&r->upload, &r->download},
                                         {&r->read, &r->write, &r->mixed},
                                         {&r->update, &r->checksum},
                                         {&r->matmul_flops, &r->block_flops, &r->head_flops, &r->memory}};
            char how[96];
            double now;

            for (uint32_t k = 0; k < 4 && faster[which][k] != NULL; k++)
                *faster[which][k] *= factors[i];
            now = seconds_on(c, &m);
            snprintf(how, sizeof(how), "(%s x %.1f)", names[which], factors[i]);
            best_note(&worst_rates, c, now, best, how);
            best = now < best ? now : best;
        }
    }
}

/* --- equal --- */

static bool alike(const struct st_plan *a, const struct st_plan *b)
{
    return memcmp(&a->decided, &b->decided, sizeof(a->decided)) == 0 && a->policy.chunk_elems == b->policy.chunk_elems &&
           a->policy.update == b->policy.update && a->program.op_count == b->program.op_count &&
           a->evaluated_ops == b->evaluated_ops;
}

static void check_equal(const struct best_case *c, const struct st_plan *plan)
{
    struct st_plan *again = best_plan(c, &c->policy, &c->machine);

    if (!alike(plan, again))
        fail_msg("%s: another plan the second time", c->what);
    st_plan_destroy(again);
}

/* --- the evaluator --- */

/* A plan without rates is the one that the nominal machine's would give. */
static void check_nominal(const struct best_case *c)
{
    struct st_plan *plan = plan_try(&c->w, &c->machine, &c->policy, c->what), *evaluated;
    struct st_machine nominal = c->machine;
    struct st_policy policy = c->policy;

    policy.streamed = 0; /* as without rates */
    best_nominal_rates(&nominal, c);
    if (st_plan_make_evaluated(&evaluated, &c->w, &c->machine.capacity, &policy, &nominal, ST_EFFORT_WHOLE) != STRATA_OK)
        fail_msg("%s: %s", c->what, strata_last_error());
    if (!alike(plan, evaluated))
        fail_msg("%s: the nominal machine's rates give another plan than none", c->what);
    st_plan_destroy(plan);
    st_plan_destroy(evaluated);
}

static void check_case(const struct best_case *c)
{
    struct st_plan *plan = best_plan(c, &c->policy, &c->machine);
    double seconds;

    if (plan == NULL)
        return;
    seconds = best_seconds(plan, &c->machine);
    check_best(c, plan);
    check_equal(c, plan);
    check_nominal(c);
    if (plan->evaluated_ops > OPS_MOST + 256ull * plan->program.op_count)
        fail_msg("%s: %llu ops were simulated", c->what, (unsigned long long)plan->evaluated_ops);
    most_evaluated = plan->evaluated_ops > most_evaluated ? plan->evaluated_ops : most_evaluated;
    st_plan_destroy(plan);
    check_memory(c, seconds);
    check_rates(c, seconds);
}

TEST(the_plan_is_the_best)
{
    for (uint64_t seed = first_seed; seed < first_seed + case_count; seed++) {
        struct best_case c;

        best_case_make(&c, seed);
        if (!sample || !c.large)
            check_case(&c);
        best_case_fini(&c);
    }
    best_print(&worst_setting);
    best_print(&worst_memory);
    best_print(&worst_rates);
    best_print(&worst_bound);
    print_message("at most %llu ops are simulated for a plan\n", (unsigned long long)most_evaluated);
    assert_true(best_holds(&worst_setting));
    assert_true(best_holds(&worst_memory));
    assert_true(best_holds(&worst_rates));
    assert_true(best_holds(&worst_bound));
}

/* --- many micro-batches --- */

/* Whether its program is so long that the evaluator shortens it. */
static bool is_long(const struct best_case *c)
{
    return (4ull * shape_of(&c->w).block_count + 2ull * shape_of(&c->w).head_count) * c->w.grad_accum > 20000;
}

static void check_shortened(const struct best_case *c, const struct st_plan *plan)
{
    struct st_evaluator evaluator;
    struct st_plan *same = plan_try(&c->w, &c->machine, &c->policy, c->what);
    const double whole = best_seconds(plan, &c->machine);
    double seconds;

    same->decided = plan->decided;
    same->reserved = plan->reserved;
    same->policy = plan->policy;
    assert_int_equal(st_evaluator_init(&evaluator, same, &c->machine), STRATA_OK);
    assert_int_equal(st_evaluator_seconds(&seconds, &evaluator, HUGE_VAL), STRATA_OK);
    if (evaluator.ops < plan->program.op_count)
        best_note(&worst_shortened, c, fmax(seconds, whole), fmin(seconds, whole), seconds < whole ? "evaluated" : "whole");
    st_evaluator_fini(&evaluator);
    st_plan_destroy(same);
}

/* A step of many micro-batches is evaluated by steps of few: the chosen plans of 20 runs, each with the step that the evaluator
 * sees and the whole. */
TEST(shortened_steps_take_as_long)
{
    if (sample)
        skip();
    for (uint64_t seed = few ? 1 : first_seed; worst_shortened.compared < (few ? SHORTENED_SAMPLE : SHORTENED); seed++) {
        struct best_case c;
        struct st_plan *plan;

        best_case_many_micros(&c, seed);
        if (is_long(&c) && (plan = best_plan(&c, &c.policy, &c.machine)) != NULL) {
            check_shortened(&c, plan);
            st_plan_destroy(plan);
        }
        best_case_fini(&c);
    }
    best_print(&worst_shortened);
    assert_true(best_holds(&worst_shortened));
}

TEST_MAIN(argc, argv)
{
    sample = argc < 2;
    few = sample || (argc > 3 && strcmp(argv[3], "few") == 0);
    case_count = argc > 1 ? strtoull(argv[1], NULL, 10) : case_count;
    first_seed = argc > 2 ? strtoull(argv[2], NULL, 10) : first_seed;
    return test_run(NULL, NULL);
}

/* test_plan_evaluate - what evaluates candidates: a step of many micro-batches, of which a few are simulated, takes as long as all of
 * them simulated, and no simulated step is shorter than its bound, whatever is slow. */
#include "core/base/error.h"
#include "offload/plan/plan_choose_internal.h"
#include "offload/simulate/simulate.h"
#include "plan_fixture.h"
#include "tests/common/test.h"

#include <math.h>

#define ROOM (UINT64_C(1) << 40)

static struct st_machine machine_of(bool is_host)
{
    return (struct st_machine){
        .name = "evaluate",
        .capacity = {.bytes = {ROOM, ROOM, ROOM}, .workers = 2, .device_is_host = is_host},
        .rates = {.matmul_flops = 1e9, .update = 1e9, .upload = 1e9, .download = 1e9, .read = 1e9, .write = 1e9, .mixed = 1e9}};
}

/* Long enough that not all of it is simulated. */
TEST(a_few_micro_batches_stand_for_many)
{
    static const enum st_accumulation orders[] = {ST_ACCUMULATE_HORIZONTAL, ST_ACCUMULATE_VERTICAL};

    for (uint32_t i = 0; i < 4; i++) {
        const struct plan_sizes sizes = {.dtype = STRATA_BF16,
                                         .blocks = 150,
                                         .hidden = 16,
                                         .vocab = 60,
                                         .slice_rows = 60,
                                         .seq = 8,
                                         .micro_batch = 1,
                                         .grad_accum = i / 2 == 0 ? 40 : 56,
                                         .tied = true};
        const struct st_machine machine = machine_of(i / 2 == 1);
        const struct st_policy policy = {.param_tier = STRATA_TIER_HOST,
                                         .optimizer_tier = STRATA_TIER_HOST,
                                         .activation_tier = STRATA_TIER_DEVICE,
                                         .activations = ST_ACT_RECOMPUTED,
                                         .update = ST_UPDATE_GATED,
                                         .accumulation = orders[i % 2]};
        struct st_plan *plan = plan_of(&sizes, &machine, &policy, "long");
        struct st_simulation whole;
        struct st_evaluator evaluator;
        double seconds;

        assert_int_equal(st_simulate(&whole, &plan->program, &machine), STRATA_OK);
        assert_int_equal(st_evaluator_init(&evaluator, plan, &machine), STRATA_OK);
        assert_true(i % 2 == 0 ? evaluator.few != NULL && evaluator.more != NULL : evaluator.merged != NULL);
        assert_int_equal(st_evaluator_seconds(&seconds, &evaluator, HUGE_VAL), STRATA_OK);
        if (!(fabs(seconds - whole.seconds) <= 0.02 * whole.seconds))
            fail_msg("case %u: %.6g s are evaluated, %.6g s simulated", i, seconds, whole.seconds);
        st_evaluator_fini(&evaluator);
        st_plan_destroy(plan);
    }
}

/* One rate after the other is slow, then two of them. */
TEST(no_simulated_step_is_shorter_than_its_bound)
{
    static const size_t rates[] = {offsetof(struct st_rates, matmul_flops), offsetof(struct st_rates, update),
                                   offsetof(struct st_rates, upload),       offsetof(struct st_rates, download),
                                   offsetof(struct st_rates, read),         offsetof(struct st_rates, write)};
    const size_t count = sizeof(rates) / sizeof(rates[0]);
    uint32_t tight = 0;

    for (uint32_t seed = 1; seed <= 12; seed++) {
        struct plan_draws draws = {.seed = seed};
        struct st_policy policy;
        struct st_workload w;

        plan_random_workload(&w, &draws, true);
        plan_random_policy(&policy, &draws, &w);
        policy.ranks = 1;
        policy.rank = policy.stage = 0;
        for (size_t i = 0; i < count * count; i++) {
            struct st_machine machine = machine_of(seed % 3 == 0);
            struct st_simulation sim;
            struct st_plan *plan;
            double work, bound;

            *(double *)(void *)((char *)&machine.rates + rates[i / count]) = 1e6;
            *(double *)(void *)((char *)&machine.rates + rates[i % count]) = 1e6;
            machine.rates.mixed = fmin(machine.rates.read, machine.rates.write);
            plan = plan_try(&w, &machine, &policy, "slow");
            if (plan->fits) {
                assert_int_equal(st_simulate(&sim, &plan->program, &machine), STRATA_OK);
                bound = st_plan_bound(plan, &machine, &work);
                if (!(bound <= sim.seconds * (1 + 1e-9) && bound <= work * (1 + 1e-9)))
                    fail_msg("seed %u, slow rates %zu and %zu: the bound is %.6g s, the step %.6g s, all work %.6g s", seed,
                             i / count, i % count, bound, sim.seconds, work);
                tight += bound > 0.8 * sim.seconds;
            }
            st_plan_destroy(plan);
        }
        st_workload_fini(&w);
    }
    print_message("%u bounds are within a fifth of the step\n", tight);
    assert_true(tight > 50);
}

/* Where the disk writes all the time, a save takes as long as its bytes, whichever of the steps after it waits for them. */
TEST(a_save_takes_its_bytes_of_a_busy_disk)
{
    struct plan_sizes sizes = plan_small;
    struct st_machine machine = machine_of(false);
    const struct st_policy policy = {.param_tier = STRATA_TIER_HOST,
                                     .optimizer_tier = STRATA_TIER_NVME,
                                     .activation_tier = STRATA_TIER_DEVICE,
                                     .update = ST_UPDATE_GATED,
                                     .chunk_elems = ST_TILE_ELEMS,
                                     .sets = 3};
    struct st_plan *plan;
    double seconds, want;

    sizes.block_params = 8 * ST_TILE_ELEMS;
    plan = plan_of(&sizes, &machine, &policy, "save");
    machine.rates.mixed = 0;
    machine.rates.write = 1e5;
    want = (double)st_program_unsaved(&plan->program) / machine.rates.write;
    assert_int_equal(st_simulate_save(&seconds, &plan->program, &machine), STRATA_OK);
    if (!(want > 0 && fabs(seconds - want) <= 0.02 * want))
        fail_msg("%.6g s, the bytes take %.6g s", seconds, want);
    st_plan_destroy(plan);
}

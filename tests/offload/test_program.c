/* test_program - the program writer's own limits. */
#include "offload/program_emit.h"
#include "plan_fixture.h"
#include "tests/common/child.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static struct st_plan *small_plan(void)
{
    const struct plan_sizes sizes = {.dtype = STRATA_BF16,
                                     .blocks = 3,
                                     .hidden = 16,
                                     .vocab = 60,
                                     .tile_rows = 30,
                                     .seq = 8,
                                     .micro_batch = 1,
                                     .grad_accum = 1,
                                     .positions = true,
                                     .tied = true};
    const struct st_machine machine = {.name = "test", .capacity = {1u << 24, 1u << 24, 1u << 24}, .workers = 1};
    const struct st_policy policy = {.param_tier = STRATA_TIER_NVME,
                                     .optimizer_tier = STRATA_TIER_NVME,
                                     .activation_tier = STRATA_TIER_HOST,
                                     .activations = ST_ACT_RECOMPUTED,
                                     .update = ST_UPDATE_GATED,
                                     .accumulation = ST_ACCUMULATE_VERTICAL,
                                     .chunk_elems = 4096};
    struct st_workload w;
    struct st_plan *plan;

    plan_workload(&w, &sizes, NULL);
    plan = plan_try(&w, &machine, &policy, "small");
    assert_true(plan->fits);
    st_workload_fini(&w);
    return plan;
}

/* Gradients that are held back have two places, for the lowest block's and the positions': a third must not be written. */
static void gradients_held_back_are_two_at_most(void **state)
{
    struct st_plan *plan = small_plan();
    pid_t child;

    (void)state;
    child = child_fork();
    if (child == 0) {
        const struct st_micros all = {.first = 0, .end = 1, .opens = true, .closes = true};
        struct st_layout lay;
        struct st_emitter e = {.plan = plan, .lay = &lay, .update_phases = BODY | EPI, .held_count = ST_HELD_MAX};

        close(STDERR_FILENO); /* the assertion's sentence */
        signal(SIGABRT, SIG_DFL);
        if (st_layout_make(&lay, plan, true) == STRATA_OK)
            st_emit_backward(&e, &all);
        _exit(0);
    }
    assert_int_equal(child_wait(child), 128 + SIGABRT);
    st_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_held_back_are_two_at_most),
    };

    return cmocka_run_group_tests_name("program", tests, NULL, NULL);
}

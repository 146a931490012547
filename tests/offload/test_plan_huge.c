/* test_plan_huge - a trillion parameters in 1000 blocks, everything on NVMe, gated: the planner's size stays within bounds that
 * are functions of pages, not of parameters.  The time is printed, not judged. */
#include "core/system/clock.h"
#include "plan_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void huge_workload(struct st_workload *w)
{
    const struct plan_sizes sizes = {.dtype = STRATA_BF16,
                                     .blocks = 1000,
                                     .hidden = 9216,
                                     .vocab = 131072,
                                     .slice_rows = 256,
                                     .seq = 2048,
                                     .micro_batch = 1,
                                     .grad_accum = 4,
                                     .block_params = 1000000000};

    plan_workload(w, &sizes, NULL);
}

static struct st_plan *huge_plan(uint64_t device, uint64_t host, uint64_t chunk_elems, uint64_t chunk_most)
{
    const struct st_policy policy = {.param_tier = STRATA_TIER_NVME,
                                     .optimizer_tier = STRATA_TIER_NVME,
                                     .activation_tier = STRATA_TIER_COUNT,
                                     .update = ST_UPDATE_GATED,
                                     .needs_norm = true,
                                     .cache = ST_AUTO_BYTES,
                                     .chunk_elems = chunk_elems,
                                     .chunk_most = chunk_most};
    const struct st_machine machine = {.name = "huge", .capacity = {.bytes = {device, host, 1ull << 46}, .workers = 16}};
    struct st_workload w;
    struct st_plan *plan;
    uint64_t start;

    huge_workload(&w);
    start = st_clock_ns();
    plan = plan_try(&w, &machine, &policy, "huge");
    assert_true(plan->fits);
    print_message("device %u GiB, host %u GiB: %u pages, %u chunks of %u Mi, %u ops, %u waits in %.3f s\n",
                  (unsigned)(device >> 30), (unsigned)(host >> 30), w.page_count, plan->program.chunk_count,
                  (unsigned)(plan->policy.chunk_elems >> 20), plan->program.op_count, plan->program.wait_count,
                  (double)(st_clock_ns() - start) * 1e-9);
    st_workload_fini(&w);
    return plan;
}

static void chunks_grow_with_the_model(void **state)
{
    struct st_plan *plan = huge_plan(80ull << 30, 2560ull << 30, 0, 0);

    (void)state;
    assert_true(plan->program.workload.params > 1000000000000);
    assert_true(plan->program.chunk_count <= 20000);
    assert_int_equal(plan->policy.chunk_elems % ST_TILE_ELEMS, 0);
    assert_true(plan->program.op_count <
                10 * (plan->program.chunk_count + plan->program.workload.page_count * plan->program.workload.grad_accum));
    st_plan_destroy(plan);
}

static void ample_memory_is_divided_as_fast(void **state)
{
    struct st_plan *plan = huge_plan(20000ull << 30, 20000ull << 30, 0, 0);

    (void)state;
    assert_int_equal(plan_steady(plan).read + plan_steady(plan).write, 0);
    st_plan_destroy(plan);
}

/* A fixed chunk is obeyed, and so is an upper limit. */
static void given_chunks_are_obeyed(void **state)
{
    struct st_plan *plan = huge_plan(80ull << 30, 4096ull << 30, 8u << 20, 0);

    (void)state;
    assert_int_equal(plan->policy.chunk_elems, 8u << 20);
    st_plan_destroy(plan);
    plan = huge_plan(80ull << 30, 4096ull << 30, 0, 10000000);
    assert_int_equal(plan->policy.chunk_elems, 10000000 / ST_TILE_ELEMS * ST_TILE_ELEMS);
    st_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_grow_with_the_model),
        cmocka_unit_test(ample_memory_is_divided_as_fast),
        cmocka_unit_test(given_chunks_are_obeyed),
    };

    return cmocka_run_group_tests_name("plan_huge", tests, NULL, NULL);
}

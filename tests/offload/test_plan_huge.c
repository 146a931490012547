/* test_plan_huge - a trillion parameters in 1000 blocks, everything on NVMe, gated: the planner's size stays within bounds that
 * are functions of pages, not of parameters.  The time is printed, not evaluated.
 * And the memory that a large model's run takes for saving.  A sample leaves out the models of 70 billion parameters. */
#include "core/system/clock.h"
#include "offload/machine/machine.h"
#include "offload/program/tables.h"
#include "plan_fixture.h"
#include "tests/common/sample.h"
#include "tests/common/test.h"

#include <string.h>

static void huge_workload(struct st_workload *w, uint32_t blocks)
{
    const struct plan_sizes sizes = {.dtype = STRATA_BF16,
                                     .blocks = blocks,
                                     .hidden = 9216,
                                     .vocab = 131072,
                                     .slice_rows = 256,
                                     .seq = 2048,
                                     .micro_batch = 1,
                                     .grad_accum = 4,
                                     .block_params = 1000000000};

    plan_workload(w, &sizes, NULL);
}

static struct st_plan *huge_plan(uint32_t blocks, uint64_t device, uint64_t host, uint64_t chunk_elems, uint64_t chunk_most)
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

    huge_workload(&w, blocks);
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

TEST(chunks_grow_with_the_model)
{
    struct st_plan *plan = huge_plan(1000, 80ull << 30, 2560ull << 30, 0, 0);

    assert_true(plan->program.workload.params > 1000000000000);
    assert_true(plan->program.chunk_count <= 20000);
    assert_int_equal(plan->policy.chunk_elems % ST_TILE_ELEMS, 0);
    assert_true(plan->program.op_count <
                10 * (plan->program.chunk_count + plan->program.workload.page_count * plan->program.workload.grad_accum));
    st_plan_destroy(plan);
}

TEST(ample_memory_is_divided_as_fast)
{
    struct st_plan *plan = huge_plan(200, 20000ull << 30, 20000ull << 30, 0, 0);

    assert_int_equal(plan_steady(plan).read + plan_steady(plan).write, 0);
    st_plan_destroy(plan);
}

/* A fixed chunk is obeyed, and so is an upper limit. */
TEST(given_chunks_are_obeyed)
{
    struct st_plan *plan = huge_plan(4, 80ull << 30, 4096ull << 30, 8u << 20, 0);

    assert_int_equal(plan->policy.chunk_elems, 8u << 20);
    st_plan_destroy(plan);
    plan = huge_plan(4, 80ull << 30, 4096ull << 30, 0, 1000000);
    assert_int_equal(plan->policy.chunk_elems, 1000000 / ST_TILE_ELEMS * ST_TILE_ELEMS);
    st_plan_destroy(plan);
}

/* What a choice costs is a count of simulated ops, whatever the model: the same everywhere, and no more for many micro-batches.
 */
TEST(choices_are_bounded)
{
    static const struct {
        uint32_t blocks, micros;
    } runs[] = {{80, 127}, {1000, 4}}; /* 127 micro-batches: no fewer have as many tokens each */
    const struct st_policy policy = {.param_tier = STRATA_TIER_NVME,
                                     .optimizer_tier = STRATA_TIER_NVME,
                                     .activation_tier = STRATA_TIER_COUNT,
                                     .update = ST_UPDATE_AUTO,
                                     .accumulation = ST_ACCUMULATE_AUTO,
                                     .needs_norm = true,
                                     .streamed = ST_STREAMED_AUTO,
                                     .cache = ST_AUTO_BYTES};
    struct st_machine machine;

    assert_int_equal(st_machine_read(&machine, "tests/machines/card-24gb.json"), STRATA_OK);
    machine.capacity.bytes[STRATA_TIER_HOST] = 1ull << 40;
    machine.capacity.bytes[STRATA_TIER_NVME] = 1ull << 46;
    for (size_t i = sample_is_all() ? 0 : 1; i < sizeof(runs) / sizeof(runs[0]); i++) {
        const struct plan_sizes sizes = {.dtype = STRATA_BF16,
                                         .blocks = runs[i].blocks,
                                         .hidden = 8192,
                                         .vocab = 128256,
                                         .slice_rows = 512,
                                         .seq = 2048,
                                         .micro_batch = 1,
                                         .grad_accum = runs[i].micros,
                                         .block_params = 855654400};
        struct st_plan *plan = plan_of(&sizes, &machine, &policy, "large");
        const uint64_t start = st_clock_ns();

        assert_true(plan->fits);
        if (st_plan_evaluate(&plan, &machine) != STRATA_OK)
            fail_msg("%s", strata_last_error());
        print_message("%u blocks, %u micro-batches: %llu ops simulated for a program of %u, in %.2f s\n", runs[i].blocks,
                      runs[i].micros, (unsigned long long)plan->evaluated_ops, plan->program.op_count,
                      (double)(st_clock_ns() - start) * 1e-9);
        assert_in_range(plan->evaluated_ops, 1, 12000000);
        st_plan_destroy(plan);
    }
}

static uint64_t slot_bytes(const struct st_plan *plan)
{
    for (uint32_t i = 0; i < plan->item_count; i++)
        if (strcmp(plan->items[i].name, "checkpoint slots") == 0)
            return plan->items[i].bytes;
    return 0;
}

/* Memory that only a run that saves takes: slots, copies, the list of what lies where.  The list grows with the model. */
TEST(saving_takes_little_memory)
{
    static const struct {
        uint32_t blocks, hidden, vocab;
        uint64_t block_params;
    } models[] = {{32, 4096, 32000, 202383360}, {80, 8192, 32000, 855654400}};
    static const strata_tier tiers[] = {STRATA_TIER_HOST, STRATA_TIER_NVME};
    struct st_machine machine;

    assert_int_equal(st_machine_read(&machine, "tests/machines/card-24gb.json"), STRATA_OK);
    for (uint32_t i = 0; i < (sample_is_all() ? 4 : 2); i++) {
        const struct plan_sizes sizes = {.dtype = STRATA_BF16,
                                         .blocks = models[i / 2].blocks,
                                         .hidden = models[i / 2].hidden,
                                         .vocab = models[i / 2].vocab,
                                         .seq = 1024,
                                         .micro_batch = 1,
                                         .grad_accum = 1,
                                         .slice_rows = 4000,
                                         .block_params = models[i / 2].block_params};
        struct st_policy policy = {.param_tier = tiers[i / 2],
                                   .optimizer_tier = STRATA_TIER_NVME,
                                   .activation_tier = STRATA_TIER_COUNT,
                                   .update = ST_UPDATE_GATED,
                                   .cache = i % 2 == 0 ? ST_AUTO_BYTES : 0,
                                   .sets = st_sets_of_keep(2),
                                   .keep = 2};
        struct st_plan *saves, *plain;
        struct st_tables t;
        uint64_t more;

        machine.capacity.bytes[STRATA_TIER_NVME] = UINT64_MAX;
        if (i / 2 == 1)
            machine.capacity.bytes[STRATA_TIER_HOST] = 64ull << 30; /* gradients alone would take 128 */
        saves = plan_of(&sizes, &machine, &policy, "large");
        policy.sets = 0;
        plain = plan_of(&sizes, &machine, &policy, "large");
        if (!saves->fits || !plain->fits)
            fail_msg("%s", strata_last_error());
        (void)st_tables_size(&t, &saves->program, 1, true);
        more = t.bounce + t.extents + slot_bytes(saves);
        print_message("%.1f G parameters: %llu MiB of slots, %llu MiB of copies, a list of %llu MiB; tables %lld KiB larger\n",
                      (double)saves->program.workload.params * 1e-9, (unsigned long long)slot_bytes(saves) >> 20,
                      (unsigned long long)t.bounce >> 20, (unsigned long long)t.extents >> 20,
                      (long long)(saves->fixed_bytes - plain->fixed_bytes - t.bounce - t.extents) / 1024);
        assert_true(more < 256u << 20);
        assert_true(saves->fixed_bytes - plain->fixed_bytes + slot_bytes(saves) < 256u << 20);
        assert_true((slot_bytes(saves) > 0) == (i % 2 == 0));
        st_plan_destroy(saves);
        st_plan_destroy(plain);
    }
}

/* test_tables - memory that the engine takes beside its arenas, by malloc's own count, against what the plan counted.
 *
 * A program of many small ops: its tables dwarf what does not grow with it (threads' records, the swap's requests). */
#include "offload/engine/engine.h"
#include "offload/program/tables.h"
#include "tests/common/heap_use.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"
#include "tests/offload/plan_fixture.h"

#include <stdio.h>

#define BLOCKS 2000u
#define SLACK  (UINT64_C(5) << 18) /* of what does not grow, and of the list of layers */

static strata_status nothing(void *model, const struct st_call *call)
{
    (void)model;
    (void)call;
    return STRATA_OK;
}

static void check(strata_tier tier, bool queues)
{
    const struct plan_sizes sizes = {.dtype = STRATA_BF16,
                                     .blocks = BLOCKS,
                                     .hidden = 8,
                                     .vocab = 64,
                                     .slice_rows = 32,
                                     .seq = 8,
                                     .micro_batch = 1,
                                     .grad_accum = 2,
                                     .block_params = 64,
                                     .tied = true};
    const struct st_machine machine = {
        .name = "test", .capacity = {.bytes = {1u << 26, 1ull << 32, 1ull << 36}, .workers = 1, .device_is_host = !queues}};
    const struct st_policy policy = {.param_tier = tier,
                                     .optimizer_tier = tier,
                                     .activation_tier = tier,
                                     .activations = ST_ACT_RECOMPUTED,
                                     .update = ST_UPDATE_GATED,
                                     .accumulation = ST_ACCUMULATE_VERTICAL,
                                     .chunk_elems = ST_TILE_ELEMS};
    struct st_engine_opts opts = {.compute = {.run = nothing},
                                  .training.optimizer.lr = 1e-3,
                                  .threads = 1,
                                  .device = queues ? "paced" : "cpu",
                                  .pace = &machine,
                                  .nvme = {.dirs = {scratch_dir}, .dir_count = 1, .method = "threads"}};
    struct st_engine *eng;
    struct st_tables tables;
    struct st_workload w;
    struct st_plan *plan;
    uint64_t before, taken, planned;

    plan_workload(&w, &sizes, NULL);
    w.workers = 1;
    before = heap_used();
    plan = plan_try(&w, &machine, &policy, "tables");
    assert_true(plan->fits && plan->program.op_count > 10000);
    opts.program = &plan->program;
    assert_int_equal(st_engine_create(&eng, &opts), STRATA_OK);
    taken = heap_used() - before;
    planned = st_tables_size(&tables, &plan->program, 1, queues);
    print_message("%u ops: %.1f MiB planned, %.1f MiB taken\n", plan->program.op_count, (double)planned / 1048576,
                  (double)taken / 1048576);
    assert_true(plan->fixed_bytes >= planned && plan->rss_bytes_max >= planned + plan->program.needed[STRATA_TIER_HOST]);
    assert_true(taken <= planned + SLACK);
    assert_true(taken + SLACK >= planned);
    assert_true(planned > 4 * SLACK);
    st_engine_destroy(eng);
    st_plan_destroy(plan);
    st_workload_fini(&w);
}

TEST(tables_in_memory_are_planned)
{
    check(STRATA_TIER_HOST, false);
    check(STRATA_TIER_HOST, true);
}

TEST(so_are_those_of_transfers)
{
    check(STRATA_TIER_NVME, false);
    check(STRATA_TIER_NVME, true);
}

TEST_GROUP(scratch_create, scratch_remove_empty);

/* test_grads - rounded gradients in host memory, on NVMe, or some here and some there: the same bits, and the bytes of the plan.
 */
#include "agree.h"
#include "tests/common/test.h"

#include "tests/common/scratch.h"

#include <string.h>

#define STEPS 4u

static const enum rig_budget hosts[] = {RIG_ALL, RIG_MIDWAY, RIG_SMALLEST};
#define HOSTS (sizeof(hosts) / sizeof(hosts[0]))

static struct rig_cell cell_of(enum rig_budget host, enum st_update_policy update, enum st_accumulation order)
{
    struct rig_cell cell = rig_swapped();

    cell.host = host;
    cell.update = update;
    cell.accumulation = order;
    cell.grad_accum = 4;
    cell.leaves = 2;
    cell.fake_latency_us = 1;
    cell.cache = ST_AUTO_BYTES;
    cell.flush_after = 2;
    cell.clip = update == ST_UPDATE_IN_BACKWARD ? RIG_CLIP_NEVER : RIG_CLIP_SOMETIMES;
    return cell;
}

/* Pages whose gradients wait on NVMe, and those that the host updates. */
static void count_pages(uint32_t count[2], const struct rig_cell *cell)
{
    struct st_model *model;
    struct st_plan *plan;

    assert_int_equal(rig_model(&model, cell), STRATA_OK);
    assert_int_equal(rig_plan(&plan, model, cell), STRATA_OK);
    count[0] = count[1] = 0;
    for (uint32_t p = 0; p < plan->program.workload.page_count; p++) {
        count[0] += plan->program.pages[p].grad_extent != ST_NO_BUFFER;
        count[1] += plan->program.pages[p].grad == ST_WHERE_HOST && p >= plan->program.workload.gathered_count;
    }
    st_plan_destroy(plan);
    st_model_destroy(model);
}

TEST(wherever_gradients_wait_bits_are_the_same)
{
    static const enum st_update_policy updates[] = {ST_UPDATE_GATED, ST_UPDATE_SERIAL};
    struct rig_cell cells[2 * 2 * HOSTS];
    uint32_t some = 0, all = 0, n = 0;

    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t h = 0; h < HOSTS; h++) {
            uint32_t count[2];

            cells[n] = cell_of(hosts[h], updates[i / 2], i % 2 == 0 ? ST_ACCUMULATE_VERTICAL : ST_ACCUMULATE_HORIZONTAL);
            count_pages(count, &cells[n++]);
            assert_true(h > 0 || count[0] == 0);
            some += count[0] > 0 && count[0] < count[1];
            all += count[0] > 0 && count[0] == count[1];
        }
    assert_true(some > 0 && all > 0);
    (void)rig_agree(cells, n, STEPS, scratch_dir);
}

/* A gradient that is used at once needs a slot alone. */
TEST(gradients_that_need_not_wait_stay_off_the_drive)
{
    struct rig_cell cells[HOSTS];

    for (uint32_t h = 0; h < HOSTS; h++) {
        uint32_t count[2];

        cells[h] = cell_of(hosts[h], ST_UPDATE_IN_BACKWARD, ST_ACCUMULATE_VERTICAL);
        count_pages(count, &cells[h]);
        assert_int_equal(count[0], 0);
    }
    (void)rig_agree(cells, HOSTS, STEPS, scratch_dir);
}

TEST(ranks_put_their_shards_there)
{
    struct rig_result first[2];

    for (uint32_t i = 0; i < 2 * HOSTS; i++) {
        struct rig_cell cell =
            cell_of(hosts[i % HOSTS], ST_UPDATE_GATED, i < HOSTS ? ST_ACCUMULATE_VERTICAL : ST_ACCUMULATE_HORIZONTAL);
        struct rig_result out[2];

        cell.ranks = 2;
        cell.stage = 3;
        cell.leaves = 1;
        cell.clip = RIG_CLIP_ALWAYS;
        assert_int_equal(rig_run_ranks(out, &cell, STEPS, scratch_dir), STRATA_OK);
        for (uint32_t r = 0; r < 2; r++) {
            if (i == 0)
                first[r] = out[r];
            assert_int_equal(out[r].planned_bytes.read, out[r].moved_bytes.read);
            assert_int_equal(out[r].planned_bytes.write, out[r].moved_bytes.write);
            assert_memory_equal(first[r].losses, out[r].losses, sizeof(first[r].losses));
            assert_string_equal(first[r].weights, out[r].weights);
            assert_string_equal(first[r].state, out[r].state);
        }
    }
}

TEST_GROUP(scratch_create, scratch_remove);

/* test_save_failed - each write of a save fails once: that save says so, the run goes on, and the next one writes everything.
 * Weights that overflow in the update that a saving step makes are of what it saves. */
#include "core/base/fault.h"
#include "offload/checkpoint/extents.h"
#include "offload/engine/train_state.h"
#include "rig.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <string.h>

struct rigged {
    struct rig_cell cell;
    struct st_model *model;
    struct st_plan *plan;
    struct rig_engine rig;
    uint32_t steps;
};

/* All in memory, so that whatever is written is a save's; a part of each page is frozen, and a block. */
static struct rig_cell in_memory(void)
{
    return (struct rig_cell){.grad_accum = 1,
                             .act_tier = STRATA_TIER_COUNT,
                             .io_method = "fake",
                             .isa = "auto",
                             .threads = 2,
                             .dtype = STRATA_BF16,
                             .update = ST_UPDATE_SERIAL,
                             .freeze = "*.bias",
                             .fake_latency_us = 1,
                             .sets = 3};
}

static void rigged_open(struct rigged *r, const struct rig_cell *cell)
{
    *r = (struct rigged){.cell = *cell};
    assert_int_equal(rig_model(&r->model, cell), STRATA_OK);
    assert_int_equal(rig_plan(&r->plan, r->model, cell), STRATA_OK);
    assert_int_equal(rig_engine_start(&r->rig, r->model, r->plan, cell, scratch_dir), STRATA_OK);
}

static void rigged_close(struct rigged *r)
{
    rig_engine_stop(&r->rig);
    st_plan_destroy(r->plan);
    st_model_destroy(r->model);
}

/* A step, or one that saves; returns the save's status. */
static strata_status step(struct rigged *r, bool saves)
{
    int32_t tokens[RIG_TOKENS_MAX], targets[RIG_TOKENS_MAX];
    struct st_extents extents = {0};
    struct st_train_state train;
    struct st_saved saved = {.extents = &extents, .train = &train};
    struct st_step_result result;
    strata_status st;

    rig_tokens(tokens, targets, &r->cell, r->steps++);
    st = saves ? st_engine_step_saving(r->rig.engine, tokens, targets, NULL, &result, &saved)
               : st_engine_step(r->rig.engine, tokens, targets, NULL, &result);
    assert_int_equal(st, STRATA_OK);
    assert_int_equal(extents.rows != NULL, saves && saved.status == STRATA_OK);
    st_extents_fini(&extents);
    return saves ? saved.status : STRATA_OK;
}

static strata_status save(struct rigged *r)
{
    struct st_extents extents = {0};
    const strata_status st = st_engine_save(r->rig.engine, &extents);

    assert_int_equal(extents.rows != NULL, st == STRATA_OK);
    st_extents_fini(&extents);
    return st;
}

static uint64_t written(struct rigged *r)
{
    struct st_mover_counters counters;

    st_swap_counters(st_engine_swap(r->rig.engine), &counters);
    return counters.bytes_written;
}

/* Bytes that one save writes; the base is written once. */
static uint64_t whole(const struct rigged *r, bool with_base)
{
    const uint64_t *bytes = r->plan->program.space_bytes;

    return bytes[ST_SPACE_SET] + (with_base ? bytes[ST_SPACE_BASE] : 0);
}

/* Fails write number `nth` of the first save; false: it has fewer. */
static bool fail_one(const struct rig_cell *cell, uint32_t nth, bool within)
{
    struct rigged r;
    uint64_t before;
    strata_status st;
    bool fired;

    rigged_open(&r, cell);
    (void)step(&r, false);
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .after = nth, .count = 1, .result = -EIO});
    st = within ? step(&r, true) : save(&r);
    fired = st_fault_disarm() > 0;
    assert_int_equal(st, fired ? STRATA_E_IO : STRATA_OK);
    if (fired)
        assert_non_null(strstr(strata_last_error(), "Input/output error"));
    assert_int_equal(st_engine_ended(r.rig.engine), STRATA_OK);
    (void)step(&r, false);
    before = written(&r);
    assert_int_equal(save(&r), STRATA_OK);
    /* The base again, unless it was whole: a step that saves begins with it, a save between steps ends with it. */
    before = written(&r) - before;
    assert_true(before == whole(&r, fired) || (within && nth > 0 && before == whole(&r, false)));
    (void)step(&r, false);
    before = written(&r);
    assert_int_equal(step(&r, true), STRATA_OK);
    assert_int_equal(written(&r) - before, whole(&r, false));
    rigged_close(&r);
    return fired;
}

/* By a save or within a step, from a device whose memory the host sees and from another, and from host memory. */
TEST(every_write_may_fail)
{
    static const struct {
        enum st_update_policy update;
        bool within, paced;
        strata_tier tier;
    } rows[] = {
        {ST_UPDATE_SERIAL, false, false, STRATA_TIER_DEVICE}, {ST_UPDATE_GATED, false, false, STRATA_TIER_DEVICE},
        {ST_UPDATE_SERIAL, true, false, STRATA_TIER_DEVICE},  {ST_UPDATE_GATED, true, true, STRATA_TIER_DEVICE},
        {ST_UPDATE_GATED, false, false, STRATA_TIER_HOST},    {ST_UPDATE_GATED, true, false, STRATA_TIER_HOST},
    };

    scratch_open();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct rig_cell cell = in_memory();
        uint32_t nth = 0;

        cell.update = rows[i].update;
        cell.paced = rows[i].paced;
        cell.optimizer = cell.param = rows[i].tier;
        cell.device = rows[i].tier == STRATA_TIER_HOST ? RIG_SMALLEST : 0;
        while (fail_one(&cell, nth, rows[i].within))
            nth += 1 + nth / 4;
        print_message("%u writes failed\n", nth);
        assert_true(nth > 8);
    }
    scratch_close();
}

TEST(overflows_of_the_step_are_saved)
{
    static const enum st_update_policy updates[] = {ST_UPDATE_SERIAL, ST_UPDATE_GATED};

    scratch_open();
    for (size_t i = 0; i < 2; i++) {
        int32_t tokens[RIG_TOKENS_MAX], targets[RIG_TOKENS_MAX];
        struct rig_cell cell = in_memory();
        struct st_extents extents = {0};
        struct st_train_state train;
        struct st_saved saved = {.extents = &extents, .train = &train};
        struct st_step_result result;
        struct rigged r;

        cell.update = updates[i];
        cell.optimizer = cell.param = STRATA_TIER_HOST;
        cell.device = RIG_SMALLEST;
        cell.rule = STRATA_LION;
        cell.lr = 3.4e38;
        rigged_open(&r, &cell);
        if (updates[i] == ST_UPDATE_GATED)
            (void)step(&r, false);
        rig_tokens(tokens, targets, &cell, r.steps);
        assert_int_equal(st_engine_step_saving(r.rig.engine, tokens, targets, NULL, &result, &saved), STRATA_OK);
        assert_int_equal(saved.status, STRATA_OK);
        assert_true(train.overflowed_host > 0);
        assert_int_equal(train.overflowed_host, st_engine_train_state(r.rig.engine)->overflowed_host);
        assert_int_equal(train.steps_applied, 1);
        st_extents_fini(&extents);
        rigged_close(&r);
    }
    scratch_close();
}

/* test_control - the negative control: the verifier and the digests both notice a missing wait.
 *
 * A wait that no other wait implies is removed from a sound program.  The verifier must then fail; and run with the verifier
 * off, on a disk slow enough for the race to be lost, the program must give other digests (or a checksum error). */
#include "rig.h"
#include "tests/common/test.h"

#include <stdlib.h>
#include <string.h>

/* Is op `from` (of this cycle) before op `to` by waits other than number `skip`? */
static bool implied(const struct st_plan *plan, uint32_t from, uint32_t to, uint32_t skip, bool *seen)
{
    const struct st_op *op = &plan->program.ops[to];

    if (seen[to])
        return false;
    seen[to] = true;
    for (uint32_t i = op->wait_first; i < op->wait_first + op->wait_count; i++) {
        if (i == skip || plan->program.waits[i].previous)
            continue;
        if (plan->program.waits[i].op == from || implied(plan, from, plan->program.waits[i].op, UINT32_MAX, seen))
            return true;
    }
    return false;
}

/* A wait of a `kind` op for a `producer` op of the same cycle that nothing else implies; UINT32_MAX: none left from `start`. */
static uint32_t lone_wait(const struct st_plan *plan, enum st_op_kind kind, enum st_op_kind producer, uint32_t start)
{
    bool *seen = calloc(plan->program.op_count, sizeof(*seen));
    uint32_t found = UINT32_MAX;

    for (uint32_t o = 0; o < plan->program.op_count && found == UINT32_MAX; o++) {
        const struct st_op *op = &plan->program.ops[o];

        for (uint32_t i = op->wait_first; op->kind == kind && i < op->wait_first + op->wait_count && found == UINT32_MAX; i++) {
            if (i < start || plan->program.waits[i].previous || plan->program.ops[plan->program.waits[i].op].kind != producer)
                continue;
            memset(seen, 0, plan->program.op_count * sizeof(*seen));
            if (!implied(plan, plan->program.waits[i].op, o, i, seen))
                found = i;
        }
    }
    free(seen);
    return found;
}

/* Point the wait at an op it already had to follow: op 0 has no predecessor to speak of, so waiting for it says nothing. */
static void drop_wait(struct st_plan *plan, uint32_t wait)
{
    plan->program.waits[wait] = (struct st_wait){.op = 0, .previous = true};
}

TEST(a_sound_program_passes)
{
    const struct rig_cell cell = rig_swapped();
    struct st_model *model;
    struct st_plan *plan;

    assert_int_equal(rig_model(&model, &cell), STRATA_OK);
    assert_int_equal(rig_plan(&plan, model, &cell), STRATA_OK);
    assert_int_equal(st_plan_verify(plan), STRATA_OK);
    st_plan_destroy(plan);
    st_model_destroy(model);
}

TEST(every_lone_wait_is_missed)
{
    const struct rig_cell cell = rig_swapped();
    uint32_t tried = 0;
    struct st_model *model;
    struct st_plan *plan;

    assert_int_equal(rig_model(&model, &cell), STRATA_OK);
    assert_int_equal(rig_plan(&plan, model, &cell), STRATA_OK);
    for (int kind = 0; kind < ST_OP_KIND_COUNT; kind++) {
        for (int producer = 0; producer < ST_OP_KIND_COUNT; producer++) {
            const uint32_t wait = lone_wait(plan, (enum st_op_kind)kind, (enum st_op_kind)producer, 0);
            struct st_wait kept;

            if (wait == UINT32_MAX)
                continue;
            kept = plan->program.waits[wait];
            drop_wait(plan, wait);
            if (st_plan_verify(plan) == STRATA_OK)
                fail_msg("the verifier missed a removed wait of %s for %s", st_op_name((enum st_op_kind)kind),
                         st_op_name((enum st_op_kind)producer));
            plan->program.waits[wait] = kept;
            tried++;
        }
    }
    print_message("%u kinds of wait removed, each noticed\n", tried);
    assert_true(tried >= 15);
    assert_int_equal(st_plan_verify(plan), STRATA_OK);
    st_plan_destroy(plan);
    st_model_destroy(model);
}

TEST(without_the_verifier_digests_differ)
{
    struct rig_cell slow = rig_swapped();
    struct rig_result sound, broken;
    struct st_model *model;
    struct st_plan *plan;
    uint32_t wait;

    slow.fake_latency_us = 20000;
    assert_int_equal(rig_model(&model, &slow), STRATA_OK);
    assert_int_equal(rig_plan(&plan, model, &slow), STRATA_OK);
    assert_int_equal(rig_train(&sound, model, plan, &slow, 2, ""), STRATA_OK);
    /* Forward then computes with whatever the slot held before. */
    wait = lone_wait(plan, ST_OP_BLOCK_FORWARD, ST_OP_UPLOAD_WEIGHT, 0);
    assert_int_not_equal(wait, UINT32_MAX);
    drop_wait(plan, wait);
    assert_int_not_equal(st_plan_verify(plan), STRATA_OK);
    assert_int_equal(rig_train(&broken, model, plan, &slow, 2, ""), STRATA_OK);
    assert_string_not_equal(sound.weights, broken.weights);
    assert_string_not_equal(sound.state, broken.state);
    st_plan_destroy(plan);
    st_model_destroy(model);
}

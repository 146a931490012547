/* tests/offload/test_plan_sets_sound.c - plans of runs that save: refused where sets lack room, and proved by the verifier, which
 * finds each number that is changed. */
#include "plan_fixture.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <string.h>

/* --- what does not fit --- */

static struct st_plan *mixed_plan(uint32_t sets, bool forward_only, uint64_t nvme)
{
    static const enum plan_frozen frozen[] = {PLAN_TRAINED, PLAN_FROZEN, PLAN_PART_FROZEN, PLAN_TRAINED, PLAN_TRAINED};
    const struct plan_sizes sizes = {.dtype = STRATA_BF16,
                                     .blocks = 3,
                                     .hidden = 64,
                                     .vocab = 200,
                                     .slice_rows = 100,
                                     .seq = 8,
                                     .micro_batch = 1,
                                     .grad_accum = 1,
                                     .block_params =
                                         8000, /* the frozen part goes past the drive's block that the trained one ends in */
                                     .positions = true};
    const struct st_machine machine = {.name = "mixed", .capacity = {.bytes = {1u << 24, 1u << 24, nvme}, .workers = 1}};
    const struct st_policy policy = {.param_tier = STRATA_TIER_NVME,
                                     .optimizer_tier = STRATA_TIER_NVME,
                                     .activation_tier = STRATA_TIER_NVME,
                                     .update = ST_UPDATE_GATED,
                                     .forward_only = forward_only,
                                     .chunk_elems = ST_TILE_ELEMS,
                                     .sets = sets};
    struct st_workload w;
    struct st_plan *plan;

    plan_workload(&w, &sizes, frozen);
    plan = plan_try(&w, &machine, &policy, "mixed");
    st_workload_fini(&w);
    return plan;
}

TEST(sets_need_room)
{
    struct st_plan *plan = mixed_plan(4, false, UINT64_MAX), *less;
    const uint64_t needed = plan->program.needed[STRATA_TIER_NVME];

    assert_true(plan->fits);
    less = mixed_plan(4, false, needed - 1);
    assert_false(less->fits);
    assert_int_equal(less->program.needed[STRATA_TIER_NVME], needed);
    st_plan_destroy(less);
    less = mixed_plan(3, false, needed - plan->program.space_bytes[ST_SPACE_SET]);
    assert_true(less->fits);
    st_plan_destroy(less);
    st_plan_destroy(plan);
}

TEST(what_trains_nothing_saves_nothing)
{
    struct st_plan *plan = mixed_plan(4, true, UINT64_MAX);

    assert_true(plan->fits);
    assert_int_equal(plan->program.sets, 0);
    assert_int_equal(plan->program.space_bytes[ST_SPACE_SET] + plan->program.space_bytes[ST_SPACE_BASE], 0);
    st_plan_destroy(plan);
}

/* --- the verifier --- */

static void must_fail(const struct st_plan *plan, const char *what)
{
    if (st_plan_verify(plan) == STRATA_OK)
        fail_msg("the verifier missed %s", what);
}

/* Each change of a number is found, and taken back. */
#define MUST_FAIL(plan, place, value, what)                                                                                      \
    do {                                                                                                                         \
        const __typeof__(place) was = (place);                                                                                   \
        (place) = (value);                                                                                                       \
        must_fail(plan, what);                                                                                                   \
        (place) = was;                                                                                                           \
    } while (0)

static void check_verifier(struct st_plan *plan)
{
    struct st_program *program = &plan->program;
    uint32_t partly = 0, frozen = 0;

    while (program->pages[partly].extent == ST_NO_BUFFER || program->pages[partly].base_extent == ST_NO_BUFFER)
        partly++;
    while (program->pages[frozen].extent != ST_NO_BUFFER)
        frozen++;
    for (uint32_t b = 0; b < program->buffer_count; b++) {
        struct st_buffer *buffer = &program->buffers[b];

        if (buffer->tier != STRATA_TIER_NVME)
            continue;
        if (buffer->offset > 0)
            MUST_FAIL(plan, buffer->offset, buffer->offset - 4096, "extents that overlap in their space");
        MUST_FAIL(plan, buffer->offset, program->space_bytes[buffer->space], "an extent past its space");
        MUST_FAIL(plan, buffer->space, ST_SPACE_COUNT, "an extent of no space");
    }
    for (uint32_t space = 0; space < ST_SPACE_COUNT; space++)
        MUST_FAIL(plan, program->space_bytes[space], program->space_bytes[space] + 4096, "spaces that are not what is needed");
    MUST_FAIL(plan, program->sets, program->sets + 1, "a set too many");
    for (uint32_t c = 1; c < program->chunk_count; c++) {
        if (program->chunks[c].extent == ST_NO_BUFFER)
            continue;
        MUST_FAIL(plan, program->chunks[c].extent, ST_NO_BUFFER, "a chunk without an extent");
        MUST_FAIL(plan, program->chunks[c].extent, program->pages[partly].extent, "a chunk in the extent of weights");
    }
    MUST_FAIL(plan, program->pages[partly].extent, ST_NO_BUFFER, "trained weights without an extent");
    MUST_FAIL(plan, program->pages[partly].base_extent, ST_NO_BUFFER, "frozen bytes without an extent");
    MUST_FAIL(plan, program->pages[partly].base_extent, program->pages[frozen].base_extent, "frozen bytes in another's extent");
    MUST_FAIL(plan, program->buffers[program->pages[partly].base_extent].bytes, 0, "an extent without room");
    MUST_FAIL(plan, program->pages[frozen].base_extent, program->pages[partly].extent, "frozen weights in a set");
    MUST_FAIL(plan, program->pages[frozen].extent, program->pages[partly].extent, "frozen weights in a set, too");
    MUST_FAIL(plan, program->pages[partly].home_region, program->pages[partly].base_extent, "a home that is no page's start");
    assert_int_equal(st_plan_verify(plan), STRATA_OK);
}

TEST(the_verifier_finds_wrong_extents)
{
    struct st_plan *plan = mixed_plan(4, false, UINT64_MAX);

    assert_true(plan->fits);
    assert_int_equal(st_plan_verify(plan), STRATA_OK);
    check_verifier(plan);
    st_plan_destroy(plan);
}

static uint32_t find_save(const struct st_program *program, enum st_op_kind kind)
{
    for (uint32_t i = 0; i < program->op_count; i++)
        if (program->ops[i].kind == kind && program->ops[i].phases == ST_PHASE_SAVE)
            return i;
    fail_msg("no op saves by %s", st_op_name(kind));
    return 0;
}

/* The wait of the next cycle's update for what saves the chunk. */
static struct st_wait *wait_for(struct st_program *program, uint32_t save)
{
    for (uint32_t i = 0; i < program->op_count; i++)
        for (uint32_t w = 0; w < program->ops[i].wait_count; w++) {
            struct st_wait *wait = &program->waits[program->ops[i].wait_first + w];

            if (wait->op == save && wait->previous && program->ops[i].chunk == program->ops[save].chunk &&
                st_op_rows[program->ops[i].kind].work == ST_WORK_UPDATE)
                return wait;
        }
    fail_msg("no update waits for op %u", save);
    return NULL;
}

/* A save must write all, after its update and before the next one. */
static void check_save(struct st_plan *plan, enum st_op_kind kind)
{
    struct st_program *program = &plan->program;
    const uint32_t save = find_save(program, kind);
    struct st_op *op = &program->ops[save];
    struct st_wait *wait = wait_for(program, save);

    MUST_FAIL(plan, op->phases, ST_PHASE_EVAL, "a copy that is made in no cycle that saves");
    if (kind == ST_OP_WRITE_STATE) /* what comes down is waited for by way of its slot, too */
        MUST_FAIL(plan, wait->op, 0, "an update that does not wait for the save of its chunk");
    for (uint32_t i = 0; i < program->op_count; i++)
        if (program->ops[i].phases == ST_PHASE_SAVE)
            MUST_FAIL(plan, program->ops[i].phases, ST_PHASE_EVAL, "a copy that is made in no cycle that saves");
    assert_int_equal(st_plan_verify(plan), STRATA_OK);
}

/* Parts of a thing on the device: each of them, in their order, as long as it has to be. */
TEST(the_verifier_proves_parts)
{
    const struct st_machine machine = {.name = "saves", .capacity = {.bytes = {1u << 24, 1u << 24, 1u << 30}, .workers = 1}};
    const struct st_policy policy = {.activation_tier = STRATA_TIER_HOST,
                                     .update = ST_UPDATE_GATED,
                                     .chunk_elems = ST_TILE_ELEMS,
                                     .sets = 4,
                                     .part_bytes = 4096};
    struct st_plan *plan = plan_of(&plan_small, &machine, &policy, "parts");
    uint32_t later = 0;

    assert_true(plan->fits);
    assert_int_equal(st_plan_verify(plan), STRATA_OK);
    for (uint32_t i = 0; i < plan->program.op_count; i++) {
        struct st_op *op = &plan->program.ops[i];

        if (op->phases != ST_PHASE_SAVE) {
            MUST_FAIL(plan, op->part, 1, "a part that no save makes");
            continue;
        }
        MUST_FAIL(plan, op->part, op->part + 1, "another part than the one that is due");
        MUST_FAIL(plan, op->part, UINT32_MAX, "a part past the end");
        if (op->bytes >= 4096)
            MUST_FAIL(plan, op->bytes, op->bytes - 4096, "a part that is too short");
        later += op->part > 0;
    }
    assert_true(later > 0);
    st_plan_destroy(plan);
}

/* In host memory, and on the device, from where it comes down first. */
TEST(the_verifier_proves_saves)
{
    static const strata_tier tiers[] = {STRATA_TIER_HOST, STRATA_TIER_DEVICE};
    static const enum st_update_policy updates[] = {ST_UPDATE_SERIAL, ST_UPDATE_GATED, ST_UPDATE_IN_BACKWARD};

    for (uint32_t i = 0; i < 6; i++) {
        const struct st_machine machine = {.name = "saves", .capacity = {.bytes = {1u << 24, 1u << 24, 1u << 30}, .workers = 1}};
        const struct st_policy policy = {.param_tier = tiers[i % 2],
                                         .optimizer_tier = tiers[i % 2],
                                         .activation_tier = STRATA_TIER_HOST,
                                         .update = updates[i / 2],
                                         .chunk_elems = ST_TILE_ELEMS,
                                         .sets = 4};
        struct st_plan *plan = plan_of(&plan_small, &machine, &policy, "saves");

        assert_true(plan->fits);
        assert_int_equal(st_plan_verify(plan), STRATA_OK);
        check_save(plan, i % 2 == 0 ? ST_OP_WRITE_STATE : ST_OP_DOWNLOAD_STATE);
        st_plan_destroy(plan);
    }
}

TEST(the_verifier_knows_runs_without_sets)
{
    struct st_plan *plan = mixed_plan(0, false, UINT64_MAX);
    struct st_program *program = &plan->program;

    assert_true(plan->fits);
    assert_int_equal(st_plan_verify(plan), STRATA_OK);
    MUST_FAIL(plan, program->pages[0].base_extent, program->pages[0].home_region, "a base without a set");
    MUST_FAIL(plan, program->pages[0].extent, ST_NO_BUFFER, "weights on NVMe without an extent");
    MUST_FAIL(plan, program->buffers[program->pages[0].home_region].space, ST_SPACE_SET, "a set without saving");
    MUST_FAIL(plan, program->chunks[0].extent, ST_NO_BUFFER, "state on NVMe without an extent");
    st_plan_destroy(plan);
}

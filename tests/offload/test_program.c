/* test_program - ops and their rows: the table is whole, the verifier proves that ops match it, and the writer keeps its limits.
 */
#include "core/base/error.h"
#include "offload/plan/emit_internal.h"
#include "offload/program/program_print.h"
#include "offload/program/program_verify.h"
#include "offload/program/tables.h"
#include "plan_fixture.h"
#include "tests/common/child.h"
#include "tests/common/fault_walk.h"
#include "tests/common/shape.h"
#include "tests/common/test.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct st_plan *small_plan_of(uint32_t grad_accum, uint32_t leaves, enum st_accumulation order)
{
    const struct plan_sizes sizes = {.dtype = STRATA_BF16,
                                     .blocks = 3,
                                     .hidden = 16,
                                     .vocab = 60,
                                     .slice_rows = 30,
                                     .seq = 8,
                                     .micro_batch = 1,
                                     .grad_accum = grad_accum,
                                     .positions = true,
                                     .tied = true};
    const struct st_machine machine = {.name = "test", .capacity = {.bytes = {1u << 24, 1u << 24, 1u << 24}, .workers = 1}};
    const struct st_policy policy = {.param_tier = STRATA_TIER_NVME,
                                     .optimizer_tier = STRATA_TIER_NVME,
                                     .activation_tier = STRATA_TIER_HOST,
                                     .activations = ST_ACT_RECOMPUTED,
                                     .update = ST_UPDATE_GATED,
                                     .accumulation = order,
                                     .leaves = leaves,
                                     .chunk_elems = ST_TILE_ELEMS};
    struct st_plan *plan = plan_of(&sizes, &machine, &policy, "small");

    assert_true(plan->fits);
    return plan;
}

static struct st_plan *small_plan(uint32_t grad_accum)
{
    return small_plan_of(grad_accum, 1, ST_ACCUMULATE_VERTICAL);
}

/* Gradients that are held back have two places, for the lowest block's and the positions': a third must not be written. */
TEST(gradients_held_back_are_two_at_most)
{
    struct st_plan *plan = small_plan(1);
    pid_t child;

    child = child_fork();
    if (child == 0) {
        const struct st_micros all = {.first = 0, .end = 1, .opens = true, .closes = true};
        struct st_layout lay;
        struct st_emitter e = {
            .plan = plan, .program = &plan->program, .lay = &lay, .update_phases = BODY | EPI, .held_count = ST_HELD_MAX};

        close(STDERR_FILENO); /* the assertion's sentence */
        signal(SIGABRT, SIG_DFL);
        if (st_layout_make(&lay, plan, true) == STRATA_OK)
            st_emit_backward(&e, &all);
        _exit(0);
    }
    assert_int_equal(child_wait(child), 128 + SIGABRT);
    st_plan_destroy(plan);
}

/* What a block has just made is on the device for the next one, and the next one writes elsewhere: forward alone brings no
 * checkpoint back. */
TEST(fresh_activations_stay_for_the_next_block)
{
    for (uint32_t grad_accum = 1; grad_accum <= 2; grad_accum++) {
        struct st_plan *plan = small_plan(grad_accum);
        uint32_t forwards = 0;

        for (uint32_t i = 0; i < plan->program.op_count; i++) {
            const struct st_op *op = &plan->program.ops[i];

            assert_false(op->kind == ST_OP_UPLOAD_ACT && (op->phases & ST_PHASE_EVAL) != 0);
            if (op->kind != ST_OP_BLOCK_FORWARD)
                continue;
            assert_int_not_equal(st_op_access(plan->program.accesses, op, ST_ROLE_ACT)->buffer,
                                 st_op_access(plan->program.accesses, op, ST_ROLE_ACT_OUT)->buffer);
            forwards++;
        }
        assert_int_equal(forwards, 3 * grad_accum);
        st_plan_destroy(plan);
    }
}

/* --- the table --- */

TEST(every_kind_has_a_row)
{
    for (int kind = 0; kind < ST_OP_KIND_COUNT; kind++) {
        const struct st_op_row *row = &st_op_rows[kind];

        assert_non_null(row->name);
        assert_int_not_equal(row->operands[0].role, ST_ROLE_NONE);
        assert_true(row->work == ST_WORK_COPY || !st_lane_is_io(row->lane));
        for (int other = 0; other < kind; other++)
            assert_string_not_equal(row->name, st_op_rows[other].name);
        for (uint32_t i = 0; i < ST_OPERANDS_MAX; i++) /* each role once: an operand is found by it */
            assert_true(row->operands[i].role == ST_ROLE_NONE ||
                        st_operand_of((enum st_op_kind)kind, (enum st_role)row->operands[i].role) == &row->operands[i]);
    }
}

/* The last piece of an activation checkpoint has a checksum, however short it is. */
TEST(a_part_of_a_piece_is_one)
{
    static const struct {
        uint64_t bytes, pieces;
    } rows[] = {{1, 1},
                {ST_ACT_PIECE - 1, 1},
                {ST_ACT_PIECE, 1},
                {ST_ACT_PIECE + 1, 2},
                {3 * ST_ACT_PIECE - 64, 3},
                {3 * ST_ACT_PIECE, 3}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_int_equal(
            st_act_pieces(&(struct st_workload){.layers = &(struct st_layer){.boundary_bytes = rows[i].bytes}, .layer_count = 1}),
            rows[i].pieces);
}

/* --- the verifier against the table --- */

static void must_fail(const struct st_plan *plan, const struct st_op *op, const char *what)
{
    if (st_plan_verify(plan) == STRATA_OK)
        fail_msg("the verifier missed op %u (%s) with %s", (unsigned)(op - plan->program.ops),
                 st_op_name((enum st_op_kind)op->kind), what);
}

/* Blocks of which a part is frozen, updated on the device, with their home on NVMe: what comes down is what is trained. */
TEST(a_part_of_a_page_is_no_page)
{
    const struct plan_sizes sizes = {.dtype = STRATA_BF16,
                                     .blocks = 2,
                                     .hidden = 16,
                                     .vocab = 60,
                                     .slice_rows = 30,
                                     .seq = 8,
                                     .micro_batch = 1,
                                     .grad_accum = 1,
                                     .block_params = 9000,
                                     .tied = true};
    const enum plan_frozen frozen[] = {PLAN_TRAINED, PLAN_PART_FROZEN, PLAN_PART_FROZEN, PLAN_TRAINED};
    const struct st_machine machine = {.name = "test", .capacity = {.bytes = {1u << 24, 1u << 24, 1u << 24}, .workers = 1}};
    const struct st_policy policy = {.param_tier = STRATA_TIER_NVME,
                                     .optimizer_tier = STRATA_TIER_NVME,
                                     .activation_tier = STRATA_TIER_HOST,
                                     .update = ST_UPDATE_SERIAL,
                                     .accumulation = ST_ACCUMULATE_VERTICAL,
                                     .streamed = ST_STREAMED_PARTS,
                                     .chunk_elems = ST_TILE_ELEMS};
    uint32_t parts = 0;
    struct st_workload w;
    struct st_plan *plan;

    plan_workload(&w, &sizes, frozen);
    for (uint32_t b = 0; b < 2; b++) { /* much is frozen, little trained */
        struct st_page *page = &w.pages[shape_of(&w).block_first + b];

        w.params -= page->groups[0].elems - 600;
        *page = (struct st_page){.uses = 1, .layer = page->layer};
        (void)st_page_add(page, ST_GROUP_DECAY, w.dtype, 600);
        (void)st_page_add(page, ST_GROUP_FROZEN, w.dtype, 9000);
    }
    plan = plan_try(&w, &machine, &policy, "parts");
    assert_true(plan->fits);
    assert_int_equal(st_plan_verify(plan), STRATA_OK);
    for (uint32_t i = 0; i < plan->program.op_count; i++) {
        struct st_op *op = &plan->program.ops[i];
        const struct st_op kept = *op;

        if (op->page == ST_NO_PAGE || !st_page_is_plain(&plan->program.workload.pages[op->page]))
            continue;
        if (op->kind == ST_OP_UPLOAD_WEIGHT) {
            op->bytes = 4096;
            must_fail(plan, op, "frozen weights that stayed behind");
            assert_non_null(strstr(strata_last_error(), "lacks them"));
        } else if (op->kind == ST_OP_DOWNLOAD_WEIGHT || op->kind == ST_OP_WRITE_WEIGHT) {
            parts++;
            assert_int_equal(op->bytes, 4096);
            op->bytes = 600; /* of 1200 that are trained */
            must_fail(plan, op, "trained weights that stayed behind");
            assert_non_null(strstr(strata_last_error(), "leaves behind"));
        }
        *op = kept;
    }
    assert_int_equal(parts, 4);
    st_plan_destroy(plan);
    st_workload_fini(&w);
}

/* Everything on NVMe, and updated early where it can be. */
static struct st_plan *early_plan(void)
{
    const struct plan_sizes sizes = {.dtype = STRATA_BF16,
                                     .blocks = 8,
                                     .hidden = 8,
                                     .vocab = 60,
                                     .slice_rows = 30,
                                     .seq = 8,
                                     .micro_batch = 1,
                                     .grad_accum = 1,
                                     .block_params = 2 * ST_TILE_ELEMS,
                                     .tied = true};
    const struct st_machine machine = {.name = "test", .capacity = {.bytes = {1u << 24, 1u << 24, 1u << 24}, .workers = 1}};
    const struct st_policy policy = {.param_tier = STRATA_TIER_NVME,
                                     .optimizer_tier = STRATA_TIER_NVME,
                                     .activation_tier = STRATA_TIER_HOST,
                                     .update = ST_UPDATE_GATED,
                                     .early = ST_EARLY_PARTS,
                                     .accumulation = ST_ACCUMULATE_VERTICAL,
                                     .sets = 3,
                                     .chunk_elems = ST_TILE_ELEMS};
    struct st_plan *plan = plan_of(&sizes, &machine, &policy, "early");

    assert_true(plan->fits && plan->program.early_pages > 1);
    return plan;
}

/* The one version for the other; an update that is not made again, or not early; places that are not a pair. */
TEST(versions_are_kept_apart)
{
    struct st_plan *plan = early_plan();
    struct st_program *program = &plan->program;
    uint32_t early = 0, again = 0, late = 0, pairs = 0;

    assert_int_equal(st_plan_verify(plan), STRATA_OK);
    for (uint32_t i = 0; i < program->op_count; i++) {
        struct st_op *op = &program->ops[i];
        const struct st_op kept = *op;

        if (op->early) {
            early++;
            op->early = false;
            must_fail(plan, op, "what is early comes into force at once");
            *op = kept;
            op->phases = ST_PHASE_PROLOGUE;
            must_fail(plan, op, "a step leaves no second version");
            op->phases = kept.phases & (uint8_t)~ST_PHASE_EARLY;
            must_fail(plan, op, "an early update of a cycle that makes none");
        } else if (op->phases == ST_PHASE_LATE) {
            op->phases = ST_PHASE_EVAL; /* some is in its slot still */
            late += st_plan_verify(plan) == STRATA_E_INTERNAL;
        } else if ((op->phases & ST_PHASE_REDO) != 0) {
            again++;
            op->phases &= (uint8_t)~ST_PHASE_REDO;
            must_fail(plan, op, "an update that is not made again");
        } else if (op->kind == ST_OP_UPDATE || op->kind == ST_OP_FINISH_GRAD) {
            op->early = true;
            must_fail(plan, op, "an op that cannot be early");
        }
        *op = kept;
    }
    for (uint32_t b = 0; b < program->buffer_count; b++) {
        const struct st_buffer kept = program->buffers[b];

        if (kept.other == 0)
            continue;
        pairs++;
        program->buffers[b].other = 0;
        must_fail(plan, &program->ops[0], "a version without a place");
        program->buffers[b].other = kept.other - 1;
        must_fail(plan, &program->ops[0], "a place that belongs to something else");
        program->buffers[b] = kept;
    }
    assert_true(early > 0 && again > 0 && late > 0 && pairs > 0);
    assert_int_equal(st_plan_verify(plan), STRATA_OK);
    st_plan_destroy(plan);
}

static bool may_follow(enum st_phase before, enum st_phase phase)
{
    const bool pending = (before & (ST_PHASE_PROLOGUE | ST_PHASE_BODY)) != 0;

    if (st_phase_keeps(phase))
        return pending && (before & ST_PHASE_LATE) == 0;
    return pending == ((phase & (ST_PHASE_BODY | ST_PHASE_EPILOGUE)) != 0);
}

/* Every two kinds of cycles that may follow each other do, with either place in force, and no others. */
TEST(the_verifier_walks_through_every_transition)
{
    static const char kinds[] = "pPbBrRsSefv";
    bool found[128][2][128] = {{{false}}};
    const char *walk = st_verify_walk(true);
    uint32_t place = 0, count = 0;

    for (char before = 'v'; *walk != '\0'; before = *walk++) {
        assert_true(may_follow(st_verify_walk_phase(before), st_verify_walk_phase(*walk)));
        count += !found[(int)before][place][(int)*walk];
        found[(int)before][place][(int)*walk] = true;
        place = st_phase_keeps(st_verify_walk_phase(*walk)) ? 1 - place : 0;
    }
    for (const char *a = kinds; *a != '\0'; a++)
        for (const char *b = kinds; *b != '\0'; b++)
            for (place = 0; place < 2 && may_follow(st_verify_walk_phase(*a), st_verify_walk_phase(*b)); place++)
                if (place == 0 || st_phase_keeps(st_verify_walk_phase(*a))) { /* the gate leaves all in the first place */
                    assert_true(found[(int)*a][place][(int)*b]);
                    count--;
                }
    assert_int_equal(count, 0);
}

/* Two ranks of stage 3 on a device that has no room for their blocks. */
static struct st_plan *sliced_plan(void)
{
    const struct plan_sizes sizes = {.dtype = STRATA_BF16,
                                     .blocks = 4,
                                     .hidden = 8,
                                     .vocab = 60,
                                     .slice_rows = 30,
                                     .seq = 8,
                                     .micro_batch = 1,
                                     .grad_accum = 1,
                                     .block_params = 4 * ST_TILE_ELEMS,
                                     .tied = true};
    const struct st_policy policy = {.activation_tier = STRATA_TIER_DEVICE,
                                     .update = ST_UPDATE_GATED,
                                     .accumulation = ST_ACCUMULATE_VERTICAL,
                                     .sets = 2,
                                     .ranks = 2,
                                     .stage = 3};
    struct st_machine machine = {.name = "test", .capacity = {.bytes = {1u << 24, 1u << 24, 1u << 24}, .workers = 1}};
    struct st_plan *plan = plan_of(&sizes, &machine, &policy, "ample");

    machine.capacity.bytes[STRATA_TIER_DEVICE] = plan->minimum[STRATA_TIER_DEVICE];
    st_plan_destroy(plan);
    plan = plan_of(&sizes, &machine, &policy, "slices");
    assert_true(plan->fits);
    return plan;
}

/* Copies, updates and saves of a block that lives on the device in slices, with a slot in the home's place, and the other way
 * round; a gather that is left out. */
TEST(a_shard_is_no_page)
{
    struct st_plan *plan = sliced_plan();
    struct st_program *program = &plan->program;
    uint32_t seen[ST_OP_KIND_COUNT] = {0}, slot = ST_NO_BUFFER;

    assert_int_equal(st_plan_verify(plan), STRATA_OK);
    for (uint32_t i = 0; i < program->op_count; i++) {
        struct st_op *op = &program->ops[i];
        const uint8_t phases = op->phases;

        if (op->page == ST_NO_PAGE || !st_page_sliced(&program->pages[op->page]))
            continue;
        if (op->kind == ST_OP_GATHER_WEIGHT) {
            op->phases = ST_PHASE_EPILOGUE;
            must_fail(plan, op, "slices of others that do not come");
            assert_non_null(strstr(strata_last_error(), "without what other ranks have of it"));
            op->phases = phases;
        }
        for (uint32_t k = op->access_first; k < op->access_first + op->access_count; k++) {
            struct st_access *a = &program->accesses[k];
            const struct st_access kept = *a;
            const uint32_t home = program->pages[op->page].home_region;

            if (a->content != ST_HOLDS_WEIGHT || program->buffers[a->buffer].tier != STRATA_TIER_DEVICE)
                continue;
            slot = a->buffer != home ? a->buffer : slot;
            if (slot == ST_NO_BUFFER)
                continue;
            seen[op->kind]++;
            a->buffer = a->buffer == home ? slot : home;
            must_fail(plan, op, "a page for a shard");
            assert_non_null(strstr(strata_last_error(), "it takes a page"));
            *a = kept;
        }
    }
    assert_true(seen[ST_OP_PLACE_WEIGHT] > 0 && seen[ST_OP_UPDATE_DEVICE] > 0 && seen[ST_OP_DOWNLOAD_WEIGHT] > 0 &&
                seen[ST_OP_GATHER_WEIGHT] > 0 && seen[ST_OP_BLOCK_FORWARD] > 0 && seen[ST_OP_BLOCK_BACKWARD] > 0);
    st_plan_destroy(plan);
}

static void corrupt_access(struct st_plan *plan, const struct st_op *op, struct st_access *a)
{
    const struct st_access kept = *a;
    const bool tracked = a->content != ST_HOLDS_SCRATCH && a->content != ST_HOLDS_SCALARS && a->content != ST_HOLDS_TOKENS &&
                         a->content != ST_HOLDS_ROWS;

    a->role = (uint8_t)(a->role % (ST_ROLE_COUNT - 1) + 1);
    must_fail(plan, op, "an operand in another role");
    *a = kept;
    a->mode = (uint8_t)(a->mode % ST_MODIFY + 1);
    must_fail(plan, op, "an operand used otherwise");
    *a = kept;
    a->content = (uint8_t)((a->content + 1) % ST_CONTENT_COUNT);
    must_fail(plan, op, "an operand that holds something else");
    *a = kept;
    a->buffer = plan->program.buffer_count;
    must_fail(plan, op, "an operand in no buffer");
    *a = kept;
    a->index++;
    if (tracked)
        must_fail(plan, op, "an operand of another thing");
    *a = kept;
}

static void corrupt_indices(struct st_plan *plan, struct st_op *op)
{
    const struct st_op kept = *op;

    op->lane = (uint8_t)((op->lane + 1) % STRATA_LANE_COUNT);
    must_fail(plan, op, "another lane");
    *op = kept;
    op->page = op->page == ST_NO_PAGE ? 0 : ST_NO_PAGE;
    must_fail(plan, op, "a page too many or too few");
    *op = kept;
    op->chunk += plan->program.chunk_count;
    must_fail(plan, op, "another chunk");
    *op = kept;
    op->layer += plan->program.workload.layer_count;
    must_fail(plan, op, "another layer");
    *op = kept;
    op->micro += plan->program.workload.grad_accum;
    must_fail(plan, op, "another micro-batch");
    *op = kept;
    op->slice += st_program_called(&plan->program) ? 1 : shape_of(&plan->program.workload).head_count;
    must_fail(plan, op, "another slice");
    *op = kept;
}

/* Operands that go, at either end; one that only some ops have may go. */
static void corrupt_count(struct st_plan *plan, struct st_op *op)
{
    const struct st_access *last = &plan->program.accesses[op->access_first + op->access_count - 1];
    const struct st_operand *operand = st_operand_of((enum st_op_kind)op->kind, (enum st_role)last->role);
    const struct st_op kept = *op;

    op->access_count--;
    if (operand->times != ST_OPERAND_MAYBE)
        must_fail(plan, op, "its last operand gone");
    *op = kept;
    op->access_first++;
    op->access_count--;
    must_fail(plan, op, "its first operand gone");
    *op = kept;
}

static void corrupt_flags(struct st_plan *plan, struct st_op *op)
{
    const struct st_op kept = *op;

    for (uint32_t i = 0; i < ST_OPERANDS_MAX; i++) {
        const struct st_operand *operand = &st_op_rows[op->kind].operands[i];
        const bool there = st_op_access(plan->program.accesses, op, (enum st_role)operand->role) != NULL;

        op->first = operand->use == ST_OPERAND_ADD && there ? !op->first : op->first;
        op->recompute =
            operand->use == ST_OPERAND_REMAKE || operand->use == ST_OPERAND_REOPEN || operand->times == ST_OPERAND_KEPT
                ? !op->recompute
                : op->recompute;
        if (op->first != kept.first || op->recompute != kept.recompute)
            must_fail(plan, op, "another flag");
        *op = kept;
    }
}

/* One byte more than the smaller of its two buffers has. */
static void corrupt_bytes(struct st_plan *plan, struct st_op *op)
{
    const struct st_access *accesses = &plan->program.accesses[op->access_first];
    const struct st_op kept = *op;

    for (uint32_t i = 0; i < 2 && st_op_copies((enum st_op_kind)op->kind); i++) {
        op->bytes = plan->program.buffers[accesses[i].buffer].bytes + 1;
        must_fail(plan, op, "more bytes than its buffers have");
        assert_non_null(strstr(strata_last_error(), "more bytes than one of its buffers"));
        *op = kept;
    }
}

/* The first op of every kind, once: from random plans until none is missing. */
TEST(ops_that_do_not_match_their_row_are_found)
{
    bool seen[ST_OP_KIND_COUNT] = {false};
    uint32_t missing = ST_OP_KIND_COUNT;

    for (uint64_t seed = 1; missing > 0 && seed < 500; seed++) {
        struct plan_draws draws = {.seed = seed};
        struct st_machine machine = {.name = "test", .capacity = {.bytes = {4u << 20, 1u << 28, 1ull << 32}, .workers = 1}};
        struct st_policy policy;
        struct st_workload w;
        struct st_plan *plan;

        if (seed % 2 == 0) /* not every gradient has room there */
            machine.capacity.bytes[STRATA_TIER_HOST] = 1u << 20;
        plan_random_workload(&w, &draws, true);
        plan_random_policy(&policy, &draws, &w);
        plan = plan_try(&w, &machine, &policy, "random");
        if (plan->fits && seed % 2 == 1) { /* nor every block */
            machine.capacity.bytes[STRATA_TIER_DEVICE] = plan->minimum[STRATA_TIER_DEVICE];
            st_plan_destroy(plan);
            plan = plan_try(&w, &machine, &policy, "random, and small");
        }
        for (uint32_t i = 0; i < plan->program.op_count; i++) {
            struct st_op *op = &plan->program.ops[i];

            if (seen[op->kind])
                continue;
            seen[op->kind] = true;
            missing--;
            assert_int_equal(st_plan_verify(plan), STRATA_OK);
            corrupt_indices(plan, op);
            corrupt_count(plan, op);
            corrupt_bytes(plan, op);
            corrupt_flags(plan, op);
            for (uint32_t k = 0; k < op->access_count; k++)
                corrupt_access(plan, op, &plan->program.accesses[op->access_first + k]);
        }
        st_plan_destroy(plan);
        st_workload_fini(&w);
    }
    for (int kind = 0; kind < ST_OP_KIND_COUNT; kind++)
        if (!seen[kind])
            fail_msg("no plan has an op of kind %s", st_op_name((enum st_op_kind)kind));
}

/* Four leaves of one micro-batch: a reduce that is left out, and leaves of another number. */
TEST(sums_out_of_turn_are_found)
{
    static const enum st_accumulation orders[] = {ST_ACCUMULATE_VERTICAL, ST_ACCUMULATE_HORIZONTAL};

    for (size_t i = 0; i < 2; i++) {
        struct st_plan *plan = small_plan_of(4, 4, orders[i]);
        uint32_t reductions = 0;

        assert_int_equal(st_plan_verify(plan), STRATA_OK);
        for (uint32_t k = 0; k < plan->program.op_count; k++) {
            struct st_op *op = &plan->program.ops[k];
            const uint8_t phases = op->phases;

            if (op->kind != ST_OP_REDUCE_SUM)
                continue;
            reductions++;
            op->phases = 0;
            must_fail(plan, op, "no phases");
            op->phases = phases;
        }
        assert_int_equal(reductions, 3 * plan->program.workload.page_count);
        plan->program.leaves = 2;
        must_fail(plan, plan->program.ops, "leaves of two micro-batches");
        assert_non_null(strstr(strata_last_error(), "not its turn"));
        st_plan_destroy(plan);
    }
}

/* Kinds of which a cycle needs every op.  Of the others some only bring in again what is there still. */
static bool is_work(enum st_op_kind kind)
{
    switch (st_op_rows[kind].work) {
    case ST_WORK_COPY:
        return kind == ST_OP_UPLOAD_TOKENS || kind == ST_OP_UPLOAD_ROWS || kind == ST_OP_DOWNLOAD_CHOICE;
    default:
        return true;
    }
}

/* Each op in each cycle in which it runs: what comes after it would find what an earlier step has left. */
static void find_what_is_left_out(const struct st_policy *policy, bool tied, uint32_t experts)
{
    static const enum st_phase phases[] = {ST_PHASE_PROLOGUE, ST_PHASE_BODY, ST_PHASE_EPILOGUE, ST_PHASE_EVAL};
    const struct plan_sizes sizes = {.dtype = STRATA_BF16,
                                     .blocks = 2,
                                     .hidden = 16,
                                     .vocab = 60,
                                     .slice_rows = 30,
                                     .seq = 8,
                                     .micro_batch = 1,
                                     .grad_accum = policy->forward_only ? 1 : 2,
                                     .positions = true,
                                     .tied = tied,
                                     .experts = experts,
                                     .chosen = policy->forward_only};
    const struct st_machine machine = {.name = "test", .capacity = {.bytes = {1u << 24, 1u << 24, 1u << 24}, .workers = 1}};
    struct st_plan *plan = plan_of(&sizes, &machine, policy, "work");

    assert_int_equal(st_plan_verify(plan), STRATA_OK);
    for (uint32_t i = 0; i < plan->program.op_count; i++) {
        struct st_op *op = &plan->program.ops[i];
        const uint8_t all = op->phases;

        for (size_t k = 0; k < sizeof(phases) / sizeof(phases[0]) && is_work((enum st_op_kind)op->kind); k++) {
            op->phases = (uint8_t)(all & ~(unsigned)phases[k]);
            if (op->phases != all)
                must_fail(plan, op, "a cycle less");
        }
        op->phases = all;
    }
    assert_int_equal(st_plan_verify(plan), STRATA_OK);
    st_plan_destroy(plan);
}

TEST(work_that_is_left_out_is_found)
{
    for (uint32_t i = 0; i < 24; i++) {
        const strata_tier tier = (strata_tier)(i / 2 % 3);
        const struct st_policy policy = {.param_tier = tier,
                                         .optimizer_tier = tier,
                                         .activation_tier = tier,
                                         .update = (enum st_update_policy)(1 + i % 3),
                                         .accumulation = (enum st_accumulation)(i / 3 % 2),
                                         .chunk_elems = ST_TILE_ELEMS,
                                         .ranks = 1 + i / 6 % 2,
                                         .stage = i / 12 * 3};

        find_what_is_left_out(&policy, i % 4 < 2, i % 3);
    }
}

/* Of generation, which chooses slices. */
TEST(a_choice_that_is_left_out_is_found)
{
    for (uint32_t i = 0; i < 12; i++) {
        const strata_tier tier = (strata_tier)(i % 3);
        const struct st_policy policy = {.param_tier = tier,
                                         .update = ST_UPDATE_SERIAL,
                                         .forward_only = true,
                                         .chunk_elems = ST_TILE_ELEMS,
                                         .ranks = 1 + i / 3 % 2,
                                         .stage = i / 6 * 3};

        find_what_is_left_out(&policy, i % 2 == 0, 2);
    }
}

/* --- printing --- */

/* What an op's line has between its bytes and its operands. */
static void print_of(const struct st_program *p, const struct st_op *op, char *out, size_t bytes)
{
    const struct {
        unsigned bit;
        const char *name;
        uint32_t value;
    } indices[] = {{ST_INDEX_PAGE, "page", op->page},
                   {ST_INDEX_CHUNK, "chunk", op->chunk},
                   {ST_INDEX_BLOCK, "block", op->layer - 1},
                   {ST_INDEX_SLICE, "slice", op->slice},
                   {ST_INDEX_MICRO, "micro", op->micro}};
    int used = snprintf(out, bytes, " %" PRIu64 " ", op->bytes);

    for (size_t i = 0; i < sizeof(indices) / sizeof(indices[0]); i++)
        if ((st_op_rows[op->kind].indices & indices[i].bit) != 0)
            used += snprintf(out + used, bytes - (size_t)used, " %s %u", indices[i].name, indices[i].value);
    if (op->part > 0)
        used += snprintf(out + used, bytes - (size_t)used, " part %u", op->part);
    snprintf(out + used, bytes - (size_t)used, "%s%s  %s=", op->first ? " first" : "", op->recompute ? " recompute" : "",
             st_role_name((enum st_role)p->accesses[op->access_first].role));
}

/* Of what the op is, and, at the line's end, what it waits for, of the cycle before with a mark. */
TEST(ops_are_printed)
{
    struct st_plan *plan = small_plan(2);
    const struct st_program *p = &plan->program;
    char *text = NULL, *line;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    uint32_t marked = 0;

    assert_non_null(file);
    st_program_print(p, file);
    assert_int_equal(fclose(file), 0);
    line = strchr(text, '\n') + 1; /* the header */
    for (uint32_t i = 0; i < p->op_count; i++) {
        const struct st_op *op = &p->ops[i];
        const char *after;
        char want[4096] = "", of[256];

        line[strcspn(line, "\n")] = '\0';
        for (uint32_t k = op->wait_first; k < op->wait_first + op->wait_count; k++) {
            snprintf(want + strlen(want), sizeof(want) - strlen(want), " %u%s", p->waits[k].op, p->waits[k].previous ? "'" : "");
            marked += p->waits[k].previous;
        }
        assert_int_equal(strtoul(line, NULL, 10), i);
        after = strstr(line, "  after");
        assert_string_equal(after != NULL ? after + 7 : "", want);
        print_of(p, op, of, sizeof(of));
        if (strstr(line, of) == NULL)
            fail_msg("\"%s\" is not in: %s", of, line);
        assert_non_null(strstr(line, st_op_name((enum st_op_kind)op->kind)));
        line += strlen(line) + 1;
    }
    assert_true(marked > 0 && line == text + bytes);
    free(text);
    st_plan_destroy(plan);
}

/* --- memory --- */

/* From the Nth growth of the lists on there is none: emission goes on, and its end says so. */
TEST(a_program_without_memory_is_refused_once)
{
    struct st_plan *plan = small_plan(1);
    const uint32_t ops = plan->program.op_count;
    struct fault_walk walk = {.site = "plan.program", .result = -1, .lasting = true};

    while (fault_walk_next(&walk)) {
        struct st_plan *again = NULL;
        const strata_status st = st_plan_make(&again, &plan->program.workload, &plan->capacity, &plan->policy);

        fault_walk_end(&walk, st);
        if (walk.fired) {
            assert_int_equal(st, STRATA_E_NOMEM);
            assert_non_null(strstr(strata_last_error(), "no memory"));
            continue;
        }
        assert_int_equal(again->program.op_count, ops);
        st_plan_destroy(again);
    }
    assert_true(walk.failed >= 2); /* ops and accesses */
    st_plan_destroy(plan);
}

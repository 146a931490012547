/* test_bounds - what the two bounds of a step count compute at, against sums by hand. */
#include "core/base/error.h"
#include "offload/simulate/bounds.h"
#include "offload/simulate/cost.h"
#include "offload/simulate/simulate.h"
#include "plan_fixture.h"
#include "tests/common/shape.h"
#include "tests/common/test.h"

#include <math.h>

#define BLOCKS 3u
#define MICROS 2u

static const struct plan_sizes sizes = {.dtype = STRATA_BF16,
                                        .blocks = BLOCKS,
                                        .hidden = 64,
                                        .vocab = 1000,
                                        .slice_rows = 300,
                                        .seq = 32,
                                        .micro_batch = 2,
                                        .grad_accum = MICROS,
                                        .tied = true};

static void assert_near(double value, double wanted)
{
    if (!(fabs(value - wanted) <= 1e-9 * fabs(wanted)))
        fail_msg("%.12g, not %.12g", value, wanted);
}

/* A device with memory of its own and room for everything. */
static struct st_machine wide_machine(void)
{
    return (struct st_machine){
        .name = "wide", .capacity = {.bytes = {1ull << 40, 1ull << 40, 1ull << 40}, .workers = 2}, .rates.matmul_flops = 1e9};
}

static struct st_plan *make_plan_on(const struct st_workload *w, const struct st_machine *machine, strata_tier weights,
                                    enum st_activation_mode activations)
{
    const struct st_policy policy = {.param_tier = weights,
                                     .optimizer_tier = weights,
                                     .activation_tier = STRATA_TIER_DEVICE,
                                     .activations = activations,
                                     .accumulation = ST_ACCUMULATE_VERTICAL,
                                     .update = ST_UPDATE_GATED};
    struct st_plan *plan = NULL;

    if (st_plan_make(&plan, w, &machine->capacity, &policy) != STRATA_OK && machine->capacity.bytes[STRATA_TIER_DEVICE] > 0)
        fail_msg("%s", strata_last_error());
    return plan;
}

static struct st_plan *make_plan(const struct st_workload *w, strata_tier weights, enum st_activation_mode activations)
{
    const struct st_machine machine = wide_machine();

    return make_plan_on(w, &machine, weights, activations);
}

/* FLOPs of a step in which every block is computed anew in backward, and every logit. */
struct flops {
    double block_forward, block_backward, head_forward, head_backward;
};

static struct flops flops_of(const struct st_workload *w)
{
    return (struct flops){.block_forward = MICROS * BLOCKS * shape_of(w).block->forward_flops,
                          .block_backward =
                              MICROS * BLOCKS * (shape_of(w).block->backward_flops + shape_of(w).block->forward_flops),
                          .head_forward = MICROS * shape_of(w).head->forward_flops,
                          .head_backward = MICROS * shape_of(w).head->backward_flops};
}

/* Rates in GFLOP/s: the machine's, and those that blocks, head and the hardware bound are counted at. */
static const struct {
    double block, head;
    double block_counts, head_counts, fastest;
} rows[] = {
    {0, 0, 1, 1, 1},         {0.5, 0, 0.5, 0.5, 1}, {0.5, 0.25, 0.5, 0.25, 1}, {0, 0.25, 1, 0.25, 1},
    {0.5, 0.8, 0.5, 0.8, 1}, {2, 0, 2, 2, 2},       {0.5, 4, 0.5, 4, 4},       {2, 0.5, 2, 0.5, 2},
};
#define ROW_COUNT (sizeof(rows) / sizeof(rows[0]))

/* Nothing but compute takes time: a program that never waits reaches its bound. */
TEST(compute_is_counted_by_block_and_head)
{
    struct st_workload w;
    struct st_plan *plan;
    struct flops f;

    plan_workload(&w, &sizes, NULL);
    plan = make_plan(&w, STRATA_TIER_DEVICE, ST_ACT_RECOMPUTED);
    f = flops_of(&w);
    for (size_t i = 0; i < ROW_COUNT; i++) {
        const struct st_machine rates = {
            .rates.matmul_flops = 1e9, .rates.block_flops = rows[i].block * 1e9, .rates.head_flops = rows[i].head * 1e9};
        const double block = rows[i].block_counts * 1e9, head = rows[i].head_counts * 1e9;
        struct st_simulation sim;
        struct st_bounds bounds;
        const struct st_bounds *b = &bounds;

        st_bounds_make(&bounds, &plan->program, &rates);
        assert_near(b->compute_forward, f.block_forward / block + f.head_forward / head);
        assert_near(b->compute_backward, f.block_backward / block + f.head_backward / head);
        assert_near(b->schedule, b->compute_forward + b->compute_backward);
        assert_near(b->hardware,
                    (f.block_forward + f.block_backward + f.head_forward + f.head_backward) / (rows[i].fastest * 1e9));
        assert_string_equal(b->bound_by, "compute");
        assert_int_equal(st_simulate(&sim, &plan->program, &rates), STRATA_OK);
        assert_near(sim.seconds, b->schedule);
    }
    st_plan_destroy(plan);
    st_workload_fini(&w);
}

/* Kernels that reach half of a matmul's rate cost nothing where a link takes longer in every window. */
TEST(a_slower_block_does_not_move_the_link)
{
    struct st_machine rates = {.rates.matmul_flops = 1e18, .rates.upload = 1e3, .rates.download = 1e3, .rates.update = 1e18};
    struct st_workload w;
    struct st_plan *plan;
    struct st_bounds before, after;

    plan_workload(&w, &sizes, NULL);
    plan = make_plan(&w, STRATA_TIER_HOST, ST_ACT_RECOMPUTED);
    st_bounds_make(&before, &plan->program, &rates);
    rates.rates.block_flops = rates.rates.head_flops = 5e17;
    st_bounds_make(&after, &plan->program, &rates);
    assert_true(before.hardware > 0 && before.compute_backward > 0);
    assert_near(after.hardware, before.hardware);
    assert_near(after.schedule, before.schedule);
    assert_near(after.compute_backward, 2 * before.compute_backward);
    assert_string_equal(after.bound_by, before.bound_by);
    st_plan_destroy(plan);
    st_workload_fini(&w);
}

/* A block that is measured stands for nothing where no matmul is: the hardware bound needs its rate. */
TEST(without_a_matmul_s_rate_there_are_no_bounds)
{
    const struct st_machine rates = {.rates.block_flops = 1e9, .rates.head_flops = 1e9};
    struct st_workload w;
    struct st_plan *plan;
    struct st_bounds bounds;

    plan_workload(&w, &sizes, NULL);
    plan = make_plan(&w, STRATA_TIER_DEVICE, ST_ACT_RECOMPUTED);
    st_bounds_make(&bounds, &plan->program, &rates);
    assert_true(bounds.hardware == 0 && bounds.schedule == 0);
    assert_string_equal(bounds.bound_by, "unknown");
    st_plan_destroy(plan);
    st_workload_fini(&w);
}

/* One call each, slices in equal parts. */
TEST(a_call_costs_its_flops)
{
    const struct st_layer block = {.forward_flops = 100, .backward_flops = 200};
    const struct st_layer head = {.use_count = 1 + 4, .forward_flops = 40, .backward_flops = 120};
    struct st_machine m = {.rates.matmul_flops = 10, .rates.block_flops = 5, .rates.head_flops = 2};

    assert_near(st_call_seconds(&block, &m.rates, ST_CALL_BLOCK_FORWARD, false), 20);
    assert_near(st_call_seconds(&block, &m.rates, ST_CALL_BLOCK_BACKWARD, true), 60);
    assert_near(st_call_seconds(&head, &m.rates, ST_CALL_HEAD_STATS, false), 5);
    assert_near(st_call_seconds(&head, &m.rates, ST_CALL_HEAD_GRAD, true), 15);
    assert_near(st_call_seconds(&head, &m.rates, ST_CALL_HEAD_GRAD, false), 10);
    m.rates.head_flops = 0;
    assert_near(st_call_seconds(&head, &m.rates, ST_CALL_HEAD_STATS, false), 2);
    m.rates.block_flops = 0;
    assert_near(st_call_seconds(&head, &m.rates, ST_CALL_HEAD_STATS, false), 1);
}

/* Of a layer of experts: its first page's calls at the rate of blocks, its slices in equal parts at that of experts. */
TEST(a_part_costs_its_flops)
{
    const struct st_layer layer = {.kind = ST_LAYER_EXPERTS,
                                   .use_count = 1 + 4,
                                   .forward_flops = 100,
                                   .backward_flops = 200,
                                   .experts_forward_flops = 80,
                                   .experts_backward_flops = 240};
    struct st_machine m = {.rates.matmul_flops = 10, .rates.block_flops = 5, .rates.experts_flops = 2};

    assert_near(st_call_seconds(&layer, &m.rates, ST_CALL_ROUTE_FORWARD, false), 20);
    assert_near(st_call_seconds(&layer, &m.rates, ST_CALL_EXPERTS_FORWARD, false), 10);
    assert_near(st_call_seconds(&layer, &m.rates, ST_CALL_ROUTE_AGAIN, true), 20);
    assert_near(st_call_seconds(&layer, &m.rates, ST_CALL_ROUTE_AGAIN, false), 0);
    assert_near(st_call_seconds(&layer, &m.rates, ST_CALL_EXPERTS_BACKWARD, false), 30);
    assert_near(st_call_seconds(&layer, &m.rates, ST_CALL_ROUTE_BACKWARD, false), 40);
    m.rates.experts_flops = 0;
    assert_near(st_call_seconds(&layer, &m.rates, ST_CALL_EXPERTS_FORWARD, false), 4);
}

/* What the host looks up and adds back for all micro-batches, whatever the number of slices that share it. */
TEST(a_lookup_costs_its_rows)
{
    struct st_machine m = wide_machine();
    struct st_workload w;
    struct st_plan *plan;
    double gathered = 0;
    uint32_t gathers = 0;

    plan_workload(&w, &sizes, NULL);
    m.capacity.bytes[STRATA_TIER_DEVICE] = 0;
    plan = make_plan_on(&w, &m, STRATA_TIER_HOST, ST_ACT_RECOMPUTED);
    m.capacity.bytes[STRATA_TIER_DEVICE] = plan->minimum[STRATA_TIER_DEVICE];
    st_plan_destroy(plan);
    plan = make_plan_on(&w, &m, STRATA_TIER_HOST, ST_ACT_RECOMPUTED);
    m.rates.checksum = 1e6;
    for (uint32_t i = 0; i < plan->program.op_count; i++)
        if (plan->program.ops[i].kind == ST_OP_GATHER_HOST) {
            gathered += st_cost_op(&plan->program, &m, &plan->program.ops[i]);
            gathers++;
        }
    assert_int_equal(gathers, shape_of(&w).table_count);
    assert_true(gathers > 1);
    assert_near(gathered, (double)shape_of(&w).activation_bytes * MICROS / 1e6);
    st_plan_destroy(plan);
    st_workload_fini(&w);
}

/* What a device with everything in its memory does beside its products, in bytes by hand, at a byte a second: 26 bytes an update
 * (weight, low half and moments both ways, the gradient once), 6 a gradient, 4 a zeroed sum, which is what products do not
 * write.  Updates and products share the device: a step takes the sum. */
TEST(a_devices_own_passes_cost_their_bytes)
{
    struct st_machine m = wide_machine();
    struct st_workload w;
    struct st_plan *plan;
    struct st_bounds without, b;
    struct st_simulation sim;
    double elems = 0, written = 0, act;

    plan_workload(&w, &sizes, NULL);
    for (uint32_t p = shape_of(&w).block_first; p < shape_of(&w).norm_page; p++)
        written += (double)(w.pages[p].written_elems = w.pages[p].groups[0].elems);
    plan = make_plan(&w, STRATA_TIER_DEVICE, ST_ACT_RECOMPUTED);
    for (uint32_t p = 0; p < w.page_count; p++)
        elems += (double)w.pages[p].trained_elems;
    st_bounds_make(&without, &plan->program, &m);
    assert_true(st_passes_sum(&without.passes) == 0);
    m.rates.memory = 1;
    st_bounds_make(&b, &plan->program, &m);
    assert_near(b.passes.update, 26 * (double)w.params);
    assert_near(b.passes.round, 6 * elems);
    assert_near(b.passes.zero, 4 * (elems - written));
    /* A token's values are looked up (4 bytes each), scattered (10) and normalised both ways (8, 8): the rest is small. */
    act = (double)MICROS * w.micro_batch * w.seq * w.hidden;
    assert_true(b.passes.rows > 30 * act && b.passes.rows < 36 * act);
    assert_near(b.compute_forward + b.compute_backward,
                without.compute_forward + without.compute_backward + st_passes_sum(&b.passes));
    assert_near(b.schedule, b.compute_forward + b.compute_backward);
    assert_near(b.hardware, b.passes.update); /* what no kernel can avoid */
    assert_int_equal(st_simulate(&sim, &plan->program, &m), STRATA_OK);
    assert_near(sim.seconds, b.schedule);
    m.capacity.device_is_host = true;
    st_bounds_make(&b, &plan->program, &m);
    assert_true(st_passes_sum(&b.passes) == 0);
    st_plan_destroy(plan);
    st_workload_fini(&w);
}

/* A leaf for each micro-batch: all their sums are zeroed, and all but one are read, added to what is read, too, and written. */
TEST(adding_leaves_costs_three_passes)
{
    const struct st_policy policy = {.activation_tier = STRATA_TIER_DEVICE, .update = ST_UPDATE_GATED, .leaves = MICROS};
    struct st_machine m = wide_machine();
    struct st_bounds b;
    struct st_workload w;
    struct st_plan *plan;
    double elems = 0;

    plan_workload(&w, &sizes, NULL);
    plan = plan_try(&w, &m, &policy, "leaves");
    for (uint32_t p = 0; p < w.page_count; p++)
        elems += (double)w.pages[p].trained_elems;
    m.rates.memory = 1;
    st_bounds_make(&b, &plan->program, &m);
    assert_near(b.passes.reduce, 12 * elems * (MICROS - 1));
    assert_near(b.passes.zero, 4 * elems * MICROS);
    assert_near(b.hardware, b.passes.update); /* another program need not add them */
    m.capacity.device_is_host = true;
    m.rates.checksum = 1;
    for (uint32_t i = 0; i < plan->program.op_count; i++)
        if (plan->program.ops[i].kind == ST_OP_REDUCE_SUM)
            assert_near(st_cost_op(&plan->program, &m, &plan->program.ops[i]),
                        12 * (double)w.pages[plan->program.ops[i].page].trained_elems);
    st_plan_destroy(plan);
    st_workload_fini(&w);
}

/* The host's update checks and renews the sums of what it changes, where that lies on the drive: state, weights, or both. */
TEST(updates_hash_what_lies_on_the_drive)
{
    static const struct {
        strata_tier weights, state;
        uint32_t bytes; /* of each parameter */
    } places[] = {{STRATA_TIER_HOST, STRATA_TIER_HOST, 0},
                  {STRATA_TIER_HOST, STRATA_TIER_NVME, 10}, /* bf16: two moments and the master's low half */
                  {STRATA_TIER_NVME, STRATA_TIER_HOST, 2},
                  {STRATA_TIER_NVME, STRATA_TIER_NVME, 12}};
    struct st_machine m = wide_machine();
    struct st_workload w;

    plan_workload(&w, &sizes, NULL);
    m.rates.checksum = 1;
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        const struct st_policy policy = {.param_tier = places[i].weights,
                                         .optimizer_tier = places[i].state,
                                         .activation_tier = STRATA_TIER_DEVICE,
                                         .update = ST_UPDATE_GATED};
        struct st_plan *plan = plan_try(&w, &m, &policy, "sums");
        double seconds = 0;

        for (uint32_t k = 0; k < plan->program.op_count; k++)
            if (plan->program.ops[k].kind == ST_OP_UPDATE)
                seconds += st_cost_op(&plan->program, &m, &plan->program.ops[k]);
        assert_near(seconds, 2.0 * places[i].bytes * (double)w.params);
        st_plan_destroy(plan);
    }
    st_workload_fini(&w);
}

/* A disk does both at once at half its mixed rate each, while there is work for both, or one after the other. */
TEST(a_disk_takes_the_shorter_way)
{
    static const struct {
        double read, write, mixed, both; /* both: bytes per second of each direction while both run; 0: one after the other */
    } disks[] = {{8, 4, 6, 3}, {8, 4, 3, 0}, {2, 8, 12, 0}, {8, 8, 16, 8}, {5, 5, 0, 5}, {8, 4, 0, 4}};
    const struct st_machine wide = wide_machine();
    const struct st_policy policy = {.param_tier = STRATA_TIER_HOST,
                                     .optimizer_tier = STRATA_TIER_NVME,
                                     .activation_tier = STRATA_TIER_DEVICE,
                                     .update = ST_UPDATE_GATED};
    struct st_traffic moved;
    struct st_workload w;
    struct st_plan *plan;

    plan_workload(&w, &sizes, NULL);
    plan = plan_try(&w, &wide, &policy, "disk");
    moved = st_program_traffic(&plan->program, ST_PHASE_BODY);
    assert_true(moved.read > 0 && moved.read == moved.write);
    for (size_t i = 0; i < sizeof(disks) / sizeof(disks[0]); i++) {
        const double bytes = (double)moved.read;
        struct st_machine m = wide;
        struct st_bounds b;

        m.rates.read = disks[i].read;
        m.rates.write = disks[i].write;
        m.rates.mixed = disks[i].mixed;
        st_bounds_make(&b, &plan->program, &m);
        if (i == 2) /* reads alone are slower than half of both */
            assert_near(b.io, bytes / 6 + (bytes - bytes / 3) / 2);
        else
            assert_near(b.io, disks[i].both > 0 ? bytes / disks[i].both : bytes / disks[i].read + bytes / disks[i].write);
    }
    st_plan_destroy(plan);
    st_workload_fini(&w);
}

/* What is read ahead for the next step's updates is read beside backward, though all of it stands before backward's first op: so
 * a drive that reads all the time is all that a step waits for. */
TEST(state_read_ahead_passes_beside_backward)
{
    const struct st_machine wide = wide_machine();
    const struct st_policy policy = {.param_tier = STRATA_TIER_HOST,
                                     .optimizer_tier = STRATA_TIER_NVME,
                                     .activation_tier = STRATA_TIER_DEVICE,
                                     .accumulation = ST_ACCUMULATE_VERTICAL,
                                     .update = ST_UPDATE_GATED,
                                     .chunk_elems = 16384};
    struct st_machine m = wide;
    struct st_workload w;
    struct st_plan *plan;
    struct st_simulation sim;
    struct st_bounds b;
    struct st_traffic moved;
    uint32_t ahead = 0;

    plan_workload(&w, &sizes, NULL);
    plan = plan_try(&w, &wide, &policy, "ahead");
    for (uint32_t i = 0; i < st_program_backward(&plan->program); i++)
        ahead += plan->program.ops[i].kind == ST_OP_READ_STATE && (plan->program.ops[i].phases & ST_PHASE_PROLOGUE) != 0;
    assert_true(ahead > 1);
    moved = st_program_traffic(&plan->program, ST_PHASE_BODY);
    st_bounds_make(&b, &plan->program, &m);
    m.rates.read = (double)moved.read / (1.5 * (b.compute_forward + b.compute_backward));
    m.rates.write = m.rates.mixed = 1e18;
    st_bounds_make(&b, &plan->program, &m);
    assert_int_equal(st_simulate(&sim, &plan->program, &m), STRATA_OK);
    assert_near(b.hardware, 1.5 * (b.compute_forward + b.compute_backward));
    assert_true(b.schedule >= b.hardware && sim.seconds >= b.schedule * (1 - 1e-9));
    assert_string_equal(b.bound_by, "nvme");
    st_plan_destroy(plan);
    st_workload_fini(&w);
}

/* Bytes to and from NVMe pass through slots of the device, too: what both hold passes beside the next window.  So no rate of the
 * drive makes a step shorter than its bound. */
TEST(slots_of_both_tiers_hold_over)
{
    static const double parts[] = {0.25, 0.5, 0.75, 1, 1.5, 2};
    const struct st_machine wide = wide_machine();

    for (uint32_t i = 0; i < 48; i++) {
        const struct st_policy policy = {.param_tier = i % 2 == 0 ? STRATA_TIER_HOST : STRATA_TIER_NVME,
                                         .optimizer_tier = i / 2 % 2 == 0 ? STRATA_TIER_HOST : STRATA_TIER_NVME,
                                         .activation_tier = i / 4 % 2 == 0 ? STRATA_TIER_HOST : STRATA_TIER_NVME,
                                         .accumulation = i / 8 % 2 == 0 ? ST_ACCUMULATE_VERTICAL : ST_ACCUMULATE_HORIZONTAL,
                                         .update = i / 16 == 0   ? ST_UPDATE_SERIAL
                                                   : i / 16 == 1 ? ST_UPDATE_GATED
                                                                 : ST_UPDATE_IN_BACKWARD,
                                         .activations = ST_ACT_RECOMPUTED,
                                         .chunk_elems = 16384};
        struct st_workload w;
        struct st_plan *plan;
        struct st_traffic moved;
        struct st_bounds b;

        plan_workload(&w, &sizes, NULL);
        plan = plan_try(&w, &wide, &policy, "slots");
        moved = st_program_traffic(&plan->program, ST_PHASE_BODY);
        st_bounds_make(&b, &plan->program, &wide);
        for (size_t k = 0; k < 2 * sizeof(parts) / sizeof(parts[0]); k++) {
            const double seconds = parts[k / 2] * (b.compute_forward + b.compute_backward);
            struct st_machine m = wide;
            struct st_simulation sim;
            struct st_bounds slow;

            m.rates.read = k % 2 == 0 && moved.read > 0 ? (double)moved.read / seconds : 1e18;
            m.rates.write = k % 2 == 1 && moved.write > 0 ? (double)moved.write / seconds : 1e18;
            m.rates.mixed = 1e18;
            st_bounds_make(&slow, &plan->program, &m);
            assert_int_equal(st_simulate(&sim, &plan->program, &m), STRATA_OK);
            if (sim.seconds < slow.schedule * (1 - 1e-9))
                fail_msg("plan %u, %s at %g of compute: %g simulated, %g bound by %s", i, k % 2 == 0 ? "reads" : "writes",
                         parts[k / 2], sim.seconds, slow.schedule, slow.bound_by);
        }
        st_plan_destroy(plan);
        st_workload_fini(&w);
    }
}

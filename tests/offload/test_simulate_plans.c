/* test_simulate_plans - the clock over whole plans: against sums and both bounds, and against itself on other machines. */
#include "offload/plan/plan.h"
#include "offload/simulate/bounds.h"
#include "offload/simulate/cost.h"
#include "plan_fixture.h"
#include "simulate_fixture.h"
#include "tests/common/sample.h"
#include "tests/common/shape.h"
#include "tests/common/test.h"

#include "core/base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CASES (sample_is_all() ? 120u : 24u)

/* A change of one rate moves which op goes first, so a faster machine may be slower by a little (Graham's anomaly). */
#define ANOMALY 0.10
#define LEAST   1e-9 /* rounding */

/* --- workloads and machines --- */

static uint64_t draw(uint64_t seed, uint64_t *at, uint64_t below)
{
    return st_rng_u64(seed, 9, (*at)++) % below;
}

/* 1, 2, 4, ... times `least`, at most 2^(powers - 1) of it */
static double draw_rate(uint64_t seed, uint64_t *at, double least, uint64_t powers)
{
    return least * (double)(1ull << draw(seed, at, powers)) * (1.0 + 0.1 * (double)draw(seed, at, 10));
}

static void make_workload(struct st_workload *w, uint64_t seed)
{
    struct plan_sizes s = {0};
    uint64_t at = 0;

    s.dtype = (strata_dtype)(1 + draw(seed, &at, 3));
    s.blocks = (uint32_t)(1 + draw(seed, &at, 8));
    s.hidden = (uint32_t)(32 * (1 + draw(seed, &at, 16)));
    s.vocab = (uint32_t)(10 + draw(seed, &at, 3000));
    s.seq = (uint32_t)(16 + draw(seed, &at, 128));
    s.micro_batch = (uint32_t)(1 + draw(seed, &at, 4));
    s.grad_accum = (uint32_t)(1 + draw(seed, &at, 4));
    s.slice_rows = (uint32_t)(s.vocab / (1 + draw(seed, &at, 4)) + 1);
    s.tied = draw(seed, &at, 2) == 0;
    plan_workload(w, &s, NULL);
}

static struct st_policy policy_of(strata_tier weights, strata_tier state, enum st_update_policy update)
{
    return (struct st_policy){.param_tier = weights,
                              .optimizer_tier = state,
                              .activation_tier = STRATA_TIER_COUNT,
                              .update = update,
                              .chunk_elems = 65536};
}

/* Everything fits. */
static struct st_machine wide_machine(bool device_is_host)
{
    return (struct st_machine){
        .name = "wide",
        .capacity = {.bytes = {1ull << 40, 1ull << 40, 1ull << 40}, .workers = 2, .device_is_host = device_is_host}};
}

static struct st_plan *make_plan(const struct st_workload *w, const struct st_machine *machine, const struct st_policy *policy)
{
    struct st_plan *plan = NULL;

    if (st_plan_make(&plan, w, &machine->capacity, policy) != STRATA_OK)
        fail_msg("%s", strata_last_error());
    return plan;
}

TEST(a_deadlock_is_an_error)
{
    const struct st_machine m = wide_machine(true);
    const struct st_policy policy = policy_of(STRATA_TIER_HOST, STRATA_TIER_NVME, ST_UPDATE_GATED);
    struct st_simulation sim;
    struct st_workload w;
    struct st_plan *plan;
    uint32_t victim = 0;

    make_workload(&w, 1);
    plan = make_plan(&w, &m, &policy);
    while (plan->program.ops[victim].kind != ST_OP_UPDATE || plan->program.ops[victim].wait_count == 0)
        victim++;
    simulate(&plan->program, &m);
    /* An update that waits for the last op of the same step. */
    plan->program.waits[plan->program.ops[victim].wait_first] = (struct st_wait){.op = plan->program.op_count - 1};
    assert_int_equal(st_simulate(&sim, &plan->program, &m), STRATA_E_INTERNAL);
    assert_non_null(strstr(strata_last_error(), "never ends"));
    st_workload_fini(&w);
    st_plan_destroy(plan);
}

/* --- plans --- */

/* One executor and a disk that takes no time: nothing overlaps, nothing waits. */
TEST(free_io_leaves_the_sum_of_the_ops)
{

    for (uint64_t seed = 1; seed <= 20; seed++) {
        const struct st_policy policy = policy_of(STRATA_TIER_HOST, STRATA_TIER_NVME, ST_UPDATE_SERIAL);
        struct st_machine m = wide_machine(true);
        struct st_simulation sim;
        struct st_workload w;
        struct st_plan *plan;
        double sum = 0, stall = 0;

        make_workload(&w, seed);
        m.rates.matmul_flops = 1e11, m.rates.upload = 5e9, m.rates.download = 4e9, m.rates.update = 3e8, m.rates.checksum = 1e10;
        plan = make_plan(&w, &m, &policy);
        for (uint32_t i = 0; i < plan->program.op_count; i++)
            if ((plan->program.ops[i].phases & ST_PHASE_BODY) != 0)
                sum += st_cost_op(&plan->program, &m, &plan->program.ops[i]) +
                       st_cost_checksums(&plan->program, &m, &plan->program.ops[i]);
        sim = simulate(&plan->program, &m);
        assert_near(sim.seconds, sum);
        for (int lane = 0; lane < STRATA_LANE_COUNT; lane++)
            stall += sim.stall[lane];
        assert_true(stall == 0);
        assert_int_equal(sim.stalled_by, STRATA_LANE_COUNT);
        st_workload_fini(&w);
        st_plan_destroy(plan);
    }
}

/* All else takes no time, and the disk is one link: it never rests. */
TEST(free_compute_leaves_the_disk)
{
    static const enum st_update_policy updates[] = {ST_UPDATE_SERIAL, ST_UPDATE_GATED, ST_UPDATE_IN_BACKWARD};

    for (uint64_t seed = 1; seed <= 20; seed++) {
        for (uint32_t host = 0; host < 2; host++) {
            const struct st_policy policy = policy_of(STRATA_TIER_NVME, STRATA_TIER_NVME, updates[seed % 3]);
            struct st_machine m = wide_machine(host == 1);
            struct st_workload w;
            struct st_plan *plan;

            make_workload(&w, seed);
            m.rates.read = m.rates.write = m.rates.mixed = 1e9;
            plan = make_plan(&w, &m, &policy);
            assert_true(st_program_traffic(&plan->program, ST_PHASE_BODY).read > 0 &&
                        st_program_traffic(&plan->program, ST_PHASE_BODY).write > 0);
            assert_near(simulate(&plan->program, &m).seconds, (double)(st_program_traffic(&plan->program, ST_PHASE_BODY).read +
                                                                       st_program_traffic(&plan->program, ST_PHASE_BODY).write) /
                                                                  1e9);
            st_workload_fini(&w);
            st_plan_destroy(plan);
        }
    }
}

TEST(forward_alone_reads_at_the_reads_rate)
{
    struct st_policy policy = policy_of(STRATA_TIER_NVME, STRATA_TIER_NVME, ST_UPDATE_GATED);
    struct st_machine m = wide_machine(false);
    struct st_workload w;
    struct st_plan *plan;

    make_workload(&w, 2);
    policy.forward_only = true;
    m.rates.read = 3e9, m.rates.write = 1e9, m.rates.mixed = 1.5e9;
    plan = make_plan(&w, &m, &policy);
    assert_near(simulate(&plan->program, &m).seconds, (double)st_program_traffic(&plan->program, ST_PHASE_BODY).read / 3e9);
    st_workload_fini(&w);
    st_plan_destroy(plan);
}

TEST(checksums_cost_what_the_engine_hashes)
{
    const struct st_policy policy = policy_of(STRATA_TIER_NVME, STRATA_TIER_NVME, ST_UPDATE_GATED);
    struct st_machine m = wide_machine(true);
    struct st_workload w;
    struct st_plan *plan;
    double updates = 0, uploads = 0, backward = 0;

    make_workload(&w, 4);
    m.rates.checksum = 1e9;
    plan = make_plan(&w, &m, &policy);
    for (uint32_t i = 0; i < plan->program.op_count; i++) {
        const struct st_op *op = &plan->program.ops[i];

        if (op->kind == ST_OP_UPDATE)
            updates += st_cost_op(&plan->program, &m, op);
        if (op->kind != ST_OP_UPLOAD_WEIGHT)
            continue;
        assert_true(st_cost_op(&plan->program, &m, op) == 0); /* no rate of the link */
        uploads += st_cost_checksums(&plan->program, &m, op);
        if (st_cost_read_of(&plan->program, op) != ST_NO_BUFFER)
            backward += (double)(w.pages[op->page].elems * strata_dtype_bytes(w.dtype)) / 1e9;
    }
    /* Each value of state and weight is checked and renewed with its update ... */
    assert_near(updates,
                2 * (double)w.params * (double)(strata_dtype_bytes(w.dtype) + 8 + st_master_width(st_master_of(w.dtype))) / 1e9);
    /* ... and weights once more when backward reads them again. */
    assert_true(uploads > 0);
    assert_near(uploads, backward);
    st_workload_fini(&w);
    st_plan_destroy(plan);
}

TEST(missing_rates_are_named)
{
    const struct st_policy policy = policy_of(STRATA_TIER_HOST, STRATA_TIER_NVME, ST_UPDATE_GATED);
    struct st_machine full = wide_machine(true), m;
    struct st_workload w;
    struct st_plan *plan;
    double *const rates[] = {&m.rates.upload, &m.rates.download, &m.rates.read,
                             &m.rates.write,  &m.rates.update,   &m.rates.matmul_flops};

    make_workload(&w, 5);
    full.rates.matmul_flops = full.rates.upload = full.rates.download = full.rates.read = full.rates.write = full.rates.update =
        1e9;
    plan = make_plan(&w, &full, &policy);
    assert_true(st_simulate_possible(&plan->program, &full));
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        m = full;
        *rates[i] = 0;
        assert_false(st_simulate_possible(&plan->program, &m));
    }
    m.rates.block_flops = 1e9; /* stands for the last of them */
    assert_true(st_simulate_possible(&plan->program, &m));
    st_workload_fini(&w);
    st_plan_destroy(plan);
}

/* --- many cases --- */

static struct st_machine random_machine(uint64_t seed)
{
    uint64_t at = 3000;
    struct st_machine m = wide_machine(draw(seed, &at, 2) == 0);

    m.rates.matmul_flops = draw_rate(seed, &at, 1e10, 10);
    m.rates.block_flops = draw(seed, &at, 2) == 0 ? 0 : m.rates.matmul_flops * 0.6;
    m.rates.head_flops = (const double[]){0, 0.3, 1.2}[draw(seed, &at, 3)] * m.rates.matmul_flops;
    m.rates.memory = draw(seed, &at, 4) == 0 ? 0 : m.rates.matmul_flops / (double)(1ull << draw(seed, &at, 9));
    m.rates.upload = draw_rate(seed, &at, 1e9, 6);
    m.rates.download = draw_rate(seed, &at, 1e9, 6);
    m.rates.read = draw_rate(seed, &at, 1e8, 7);
    m.rates.write = m.rates.read / (double)(1 + draw(seed, &at, 3));
    m.rates.mixed = m.rates.write + (m.rates.read - m.rates.write) * (double)draw(seed, &at, 3) / 2;
    m.rates.update = draw_rate(seed, &at, 1e8, 6);
    m.rates.checksum = draw(seed, &at, 3) == 0 ? 0 : draw_rate(seed, &at, 1e9, 6);
    m.capacity.bytes[STRATA_TIER_DEVICE] = 1ull << (22 + draw(seed, &at, 9));
    m.capacity.bytes[STRATA_TIER_HOST] = 1ull << (23 + draw(seed, &at, 9));
    m.rates.link_node = draw_rate(seed, &at, 1e9, 6);
    m.rates.link_nodes = draw_rate(seed, &at, 1e9, 6);
    m.rates.latency_node = (const double[]){0, 1e-5, 1e-2}[draw(seed, &at, 3)];
    m.rates.latency_nodes = m.rates.latency_node * 2;
    m.rates.node_ranks = (uint32_t)draw(seed, &at, 4);
    return m;
}

/* Planned with what it asks for where it does not fit; half of them for one of several ranks. */
static struct st_plan *random_plan(uint64_t seed, struct st_machine *m)
{
    uint64_t at = 4000;
    struct st_plan *plan = NULL;
    struct st_policy policy = policy_of((strata_tier)draw(seed, &at, 3), (strata_tier)draw(seed, &at, 3),
                                        (enum st_update_policy)(1 + draw(seed, &at, 3)));
    struct st_workload w;

    make_workload(&w, seed);
    *m = random_machine(seed);
    policy.accumulation = (enum st_accumulation)draw(seed, &at, 2);
    policy.activation_tier = (strata_tier)draw(seed, &at, 4);
    policy.cache = (uint64_t[]){0, ST_AUTO_BYTES, 1u << 20}[draw(seed, &at, 3)];
    policy.chunk_elems = (uint64_t)ST_TILE_ELEMS << draw(seed, &at, 8) * 3 / 4;
    policy.streamed = (uint32_t[]){0, ST_STREAMED_PARTS / 2, ST_STREAMED_PARTS}[draw(seed, &at, 3)];
    if (draw(seed, &at, 2) == 0) {
        policy.ranks = 2 + (uint32_t)draw(seed, &at, 7);
        policy.rank = (uint32_t)draw(seed, &at, policy.ranks);
        policy.stage = (uint32_t)draw(seed, &at, 4);
    }
    if (st_plan_make(&plan, &w, &m->capacity, &policy) == STRATA_OK) {
        st_workload_fini(&w);
        return plan;
    }
    assert_non_null(plan);
    memcpy(m->capacity.bytes, plan->program.needed, sizeof(m->capacity.bytes));
    st_plan_destroy(plan);
    plan = make_plan(&w, m, &policy);
    st_workload_fini(&w);
    return plan;
}

/* The parts of a step: what compute did and what it waited for make up all of it. */
static void assert_adds_up(const struct st_simulation *sim, const struct st_machine *m)
{
    double sum = sim->busy[STRATA_LANE_COMPUTE];

    for (int lane = 0; lane < STRATA_LANE_COUNT; lane++) {
        assert_true(sim->busy[lane] >= 0 && sim->busy[lane] <= sim->seconds * (1 + 1e-9));
        sum += sim->stall[lane];
    }
    if (m->capacity.device_is_host)
        sum += sim->busy[STRATA_LANE_UPLOAD] + sim->busy[STRATA_LANE_DOWNLOAD] + sim->busy[STRATA_LANE_UPDATE] +
               sim->busy[STRATA_LANE_UPDATE_DEVICE];
    assert_near(sum, sim->seconds);
}

/* Whatever an earlier simulation has left there. */
TEST(memory_of_one_simulation_serves_the_next)
{
    struct st_scratch scratch = {0};
    const void *kept;

    assert_non_null(kept = st_scratch_take(&scratch, 4u << 20));
    memset(scratch.bytes, 0xff, scratch.size);
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct st_simulation alone;
        double seconds, cut;
        struct st_machine m;
        struct st_plan *plan = random_plan(seed, &m);

        alone = simulate(&plan->program, &m);
        assert_int_equal(st_simulate_seconds(&seconds, &plan->program, &m, alone.seconds, &scratch), STRATA_OK);
        assert_memory_equal(&seconds, &alone.seconds, sizeof(seconds));
        assert_int_equal(st_simulate_seconds(&cut, &plan->program, &m, 0.5 * seconds, &scratch), STRATA_OK);
        assert_true(cut > 0.5 * seconds && cut <= seconds);
        st_plan_destroy(plan);
    }
    assert_ptr_equal(scratch.bytes, kept);
    st_scratch_free(&scratch);
}

/* What a watch has been told of the running step, and where each lane's last piece ended. */
struct told {
    const struct st_program *program;
    struct st_simulation sum;
    double end[STRATA_LANE_COUNT];
    uint32_t steps;
};

static void step_began(void *ctx)
{
    struct told *told = ctx;

    memset(&told->sum, 0, sizeof(told->sum));
    memset(told->end, 0, sizeof(told->end));
    told->steps++;
}

static void op_ran(void *ctx, uint32_t lane, uint32_t op, double start, double seconds)
{
    struct told *told = ctx;

    assert_true(seconds > 0 && start >= told->end[lane] * (1 - 1e-9) && op < told->program->op_count);
    told->end[lane] = start + seconds;
    told->sum.busy[lane] += seconds;
}

static void compute_stood_still(void *ctx, const struct st_stall *stall, double start, double seconds)
{
    struct told *told = ctx;

    assert_true(seconds > 0 && start >= 0);
    told->sum.stall[stall->lane] += seconds;
}

/* The pieces are the step: each lane's, one after the other, add up to what the simulation says of the lane. */
TEST(a_watch_is_told_the_whole_step)
{

    for (uint64_t seed = 1; seed <= CASES / 3; seed++) {
        struct st_machine m;
        struct st_plan *plan = random_plan(seed, &m);
        struct told told = {.program = &plan->program};
        const struct st_simulation_watch watch = {&told, step_began, op_ran, compute_stood_still};
        struct st_simulation last;

        assert_int_equal(st_simulate_watched(&last, &plan->program, &m, &watch), STRATA_OK);
        assert_true(told.steps >= 2 && told.steps <= 24);
        for (int lane = 0; lane < STRATA_LANE_COUNT; lane++) {
            assert_near(told.sum.busy[lane], last.busy[lane]);
            assert_near(told.sum.stall[lane], last.stall[lane]);
            assert_true(told.end[lane] <= last.seconds * (1 + 1e-9));
        }
        assert_adds_up(&last, &m);
        st_plan_destroy(plan);
    }
}

/* Of the step by its bounds; fails where it is below one of them. */
static double over_bounds(const struct st_bounds *bounds, const struct st_simulation *sim, uint64_t seed)
{
    if (sim->seconds < bounds->hardware * (1 - 1e-6) || sim->seconds < bounds->schedule * (1 - 1e-6))
        fail_msg("seed %u: %.9g simulated, %.9g hardware bound, %.9g schedule bound by %s", (unsigned)seed, sim->seconds,
                 bounds->hardware, bounds->schedule, bounds->bound_by);
    return sim->seconds / bounds->schedule;
}

TEST(no_step_beats_its_bounds)
{
    double closest = 1e9;
    uint32_t bounded = 0;

    for (uint64_t seed = 1; seed <= CASES; seed++) {
        struct st_machine m;
        struct st_plan *plan = random_plan(seed, &m);
        struct st_bounds bounds;
        const struct st_simulation sim = simulate(&plan->program, &m), again = simulate(&plan->program, &m);

        assert_true(st_simulate_possible(&plan->program, &m));
        assert_memory_equal(&sim, &again, sizeof(sim));
        assert_adds_up(&sim, &m);
        st_bounds_make(&bounds, &plan->program, &m);
        /* The bounds count every byte at the mixed rate: no bound for a disk that is faster at one thing alone. */
        if (m.rates.mixed >= m.rates.read) {
            bounded++;
            closest = fmin(closest, over_bounds(&bounds, &sim, seed));
        }
        st_plan_destroy(plan);
    }
    print_message("%u steps, none below its bounds; the closest takes %.4f of its schedule bound\n", bounded, closest);
    assert_true(bounded > CASES / 4);
}

/* Where one thing takes as good as all of the time, its step comes near the bound: what the bound leaves out for slots that hold
 * over from one window to the next is no more than they hold, and no less. */
TEST(no_step_beats_the_bound_of_what_is_slow)
{
    double closest[7] = {1e9, 1e9, 1e9, 1e9, 1e9, 1e9, 1e9};

    for (uint64_t seed = 1; seed <= CASES / 2; seed++) {
        struct st_machine m;
        struct st_plan *plan = random_plan(seed, &m);
        double *const rates[7] = {&m.rates.upload, &m.rates.download, &m.rates.read,     &m.rates.write,
                                  &m.rates.update, &m.rates.memory,   &m.rates.link_node};

        for (size_t slow = 0; slow < 7; slow++) {
            struct st_simulation sim;
            struct st_bounds bounds;

            for (size_t i = 0; i < 7; i++)
                *rates[i] = i == slow ? 1e3 : 1e9;
            m.rates.node_ranks = 0;
            m.rates.latency_node = 0;
            m.rates.mixed = 2e9; /* neither waits for the other */
            m.rates.checksum = m.rates.matmul_flops = 1e15;
            m.rates.block_flops = m.rates.head_flops = 0;
            sim = simulate(&plan->program, &m);
            st_bounds_make(&bounds, &plan->program, &m);
            closest[slow] = fmin(closest[slow], over_bounds(&bounds, &sim, seed));
        }
        st_plan_destroy(plan);
    }
    for (size_t slow = 0; slow < 7; slow++)
        print_message("rate %zu alone is slow: the closest takes %.6f of its schedule bound\n", slow, closest[slow]);
}

TEST(faster_is_not_slower)
{
    double worst = 0;

    for (uint64_t seed = 1; seed <= CASES; seed++) {
        struct st_machine m, fast;
        struct st_plan *plan = random_plan(seed, &m);
        const double before = simulate(&plan->program, &m).seconds;
        double *const rates[] = {&fast.rates.matmul_flops, &fast.rates.memory,    &fast.rates.upload,    &fast.rates.download,
                                 &fast.rates.read,         &fast.rates.write,     &fast.rates.mixed,     &fast.rates.update,
                                 &fast.rates.checksum,     &fast.rates.link_node, &fast.rates.link_nodes};

        for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
            double change;

            fast = m;
            *rates[i] *= 2;
            change = simulate(&plan->program, &fast).seconds / before - 1;
            if (change > ANOMALY)
                fail_msg("seed %u: rate %u doubled, and the step takes %.4f of what it took", (unsigned)seed, (unsigned)i,
                         1 + change);
            if (change > worst)
                worst = change;
        }
        st_plan_destroy(plan);
    }
    print_message("one rate doubled: at worst %.4f longer\n", worst);
}

/* Nor does any bound count them. */
TEST(latencies_make_no_step_shorter)
{
    static const double parts[] = {1e-4, 1e-3, 1e-2};
    double most = 0;

    for (uint64_t seed = 1; seed <= CASES; seed++) {
        struct st_machine m, slow;
        struct st_plan *plan = random_plan(seed, &m);
        const double before = simulate(&plan->program, &m).seconds;
        double *const latencies[] = {&slow.rates.handover, &slow.rates.latency_io, &slow.rates.launch};
        struct st_bounds without, with;

        st_bounds_make(&without, &plan->program, &m);
        for (size_t i = 0; i < 9; i++) {
            double change;

            slow = m;
            *latencies[i / 3] = before * parts[i % 3];
            st_bounds_make(&with, &plan->program, &slow);
            assert_true(with.schedule == without.schedule && with.hardware == without.hardware);
            change = 1 - simulate(&plan->program, &slow).seconds / before;
            if (change > LEAST)
                fail_msg("seed %u: latency %u of %g, and the step takes %.4f less", (unsigned)seed, (unsigned)(i / 3),
                         parts[i % 3], change);
            most = fmax(most, -change);
        }
        st_plan_destroy(plan);
    }
    assert_true(most > 0.01); /* they are counted */
}

/* Passes over a device's memory are part of what it does: a faster one never has a higher bound nor, where no disk changes which
 * op goes first, a longer step. */
TEST(a_faster_memory_is_not_slower)
{
    uint32_t told = 0;

    for (uint64_t seed = 1; seed <= CASES; seed++) {
        struct st_machine m;
        struct st_plan *plan = random_plan(seed, &m);
        const struct st_traffic t = st_program_traffic(&plan->program, ST_PHASE_BODY);
        const double most = t.read + t.write > 0 ? ANOMALY : LEAST;
        double rate = m.rates.matmul_flops / 512, before, without;
        struct st_bounds last;

        m.rates.memory = 0;
        without = simulate(&plan->program, &m).seconds;
        m.rates.memory = rate;
        before = simulate(&plan->program, &m).seconds;
        st_bounds_make(&last, &plan->program, &m);
        assert_true((before > without * (1 + 1e-9)) <= (st_passes_sum(&last.passes) > 0));
        told += before > without * 1.01;
        for (int i = 0; i < 6; i++) {
            struct st_bounds bounds;
            double now;

            m.rates.memory = rate *= 4;
            now = simulate(&plan->program, &m).seconds;
            st_bounds_make(&bounds, &plan->program, &m);
            assert_true(bounds.schedule <= last.schedule * (1 + 1e-9) && bounds.hardware <= last.hardware * (1 + 1e-9));
            if (now > before * (1 + most))
                fail_msg("seed %u: %.9g at %.4g bytes a second, %.9g at a quarter", (unsigned)seed, now, rate, before);
            before = now;
            last = bounds;
        }
        st_plan_destroy(plan);
    }
    assert_true(told > CASES / 4);
}

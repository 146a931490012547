/* test_plan_oracle - is the choice the fastest?  Tiny workloads against an exhaustive search.
 *
 * The claim: with the slots, kept blocks, activation tier and (horizontal accumulation) device accumulators that a plan has, no
 * other placement that fits has a simulated step that is much shorter.  A placement says how many pages are resident, for how
 * many the state is on the device, how many pages and chunks are cached, each counted from the bottom.  The search walks every
 * one. Beside it, what a placement moves is counted in closed form, which must be what its program moves. */
#include "offload/plan/plan_choose_internal.h"
#include "offload/plan/plan_predicates.h"
#include "offload/simulate/simulate.h"
#include "plan_fixture.h"
#include "tests/common/shape.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t first_seed = 1, case_count = 500;

struct tiny {
    struct st_workload w;
    struct st_policy policy;
    struct st_machine machine;
    char what[64];
};

static const char *describe(const struct st_plan *p)
{
    static char text[2][512], turn;
    char *const out = text[(int)(turn ^= 1)];

    snprintf(out, sizeof(text[0]),
             "policy param %d optimizer %d acts %d update %d accumulation %d forward_only %d cache %llx; g %u pages %u slices %u "
             "tied %d blocks %u chunks %u; resident %u device state %u weights %u chunks %u kept %u accums %u; slots %u %u %u %u",
             (int)p->policy.param_tier, (int)p->policy.optimizer_tier, (int)p->decided.activation_tier, (int)p->policy.update,
             (int)p->decided.accumulation, p->policy.forward_only, (unsigned long long)p->policy.cache,
             p->program.workload.grad_accum, p->program.workload.page_count, shape_of(&p->program.workload).table_count,
             shape_of(&p->program.workload).tied, shape_of(&p->program.workload).block_count, p->program.chunk_count,
             p->decided.resident_pages, p->decided.device_state_pages, p->decided.cached_weight_pages, p->decided.cached_chunks,
             p->decided.kept_blocks, p->decided.device_accum_pages, p->decided.slots.weights, p->decided.slots.host_weights,
             p->decided.slots.states, p->decided.slots.grads);
    return out;
}

static struct st_plan *try_tiny(const struct tiny *t)
{
    return plan_try(&t->w, &t->machine, &t->policy, t->what);
}

/* Capacities between what the smallest placement needs and what everything in the fastest tier takes. */
static void make_tiny(struct tiny *t, uint64_t seed)
{
    struct plan_draws draws = {.seed = seed};
    struct st_plan *plan;

    *t = (struct tiny){.machine = {.name = "tiny", .capacity.workers = 2}};
    snprintf(t->what, sizeof(t->what), "seed %llu", (unsigned long long)seed);
    plan_random_workload(&t->w, &draws, true);
    plan_random_policy(&t->policy, &draws, &t->w);
    t->policy.chunk_elems = (uint64_t)ST_TILE_ELEMS << plan_draw(&draws, 4) / 2;
    t->machine.capacity.device_is_host = plan_draw(&draws, 2) == 0;
    t->machine.capacity.bytes[STRATA_TIER_NVME] = 1ull << 40;
    plan = try_tiny(t);
    for (int tier = STRATA_TIER_DEVICE; tier <= STRATA_TIER_HOST; tier++)
        t->machine.capacity.bytes[tier] =
            plan->minimum[tier] + plan_draw(&draws, 16 * t->w.params + 1) / (1 + plan_draw(&draws, 8));
    st_plan_destroy(plan);
}

/* Bytes of the program's body that the closed form covers. */
static struct st_traffic count_program(const struct st_plan *plan)
{
    const enum st_phase steady = plan->policy.forward_only ? ST_PHASE_EVAL : ST_PHASE_BODY;
    struct st_traffic moved = {0};

    for (uint32_t i = 0; i < plan->program.op_count; i++) {
        const struct st_op *op = &plan->program.ops[i];
        uint64_t *link = st_traffic_of(&moved, op->lane);

        if ((op->phases & steady) == 0 || link == NULL)
            continue;
        switch (op->kind) {
        case ST_OP_UPLOAD_ACT:
        case ST_OP_DOWNLOAD_ACT:
        case ST_OP_READ_ACT:
        case ST_OP_WRITE_ACT:
        case ST_OP_UPLOAD_TOKENS:
        case ST_OP_DOWNLOAD_CHOICE:
        case ST_OP_DOWNLOAD_SCALARS:
            continue;
        default:
            *link += op->lane != STRATA_LANE_COMM || op->kind == ST_OP_GATHER_WEIGHT || op->kind == ST_OP_GATHER_UPDATED ||
                             op->kind == ST_OP_EXCHANGE_GRAD || op->kind == ST_OP_EXCHANGE_ROUNDED ||
                             op->kind == ST_OP_GATHER_GRAD
                         ? op->bytes
                         : 0;
        }
    }
    return moved;
}

TEST(the_closed_form_is_the_program)
{
    for (uint64_t seed = first_seed; seed < first_seed + case_count; seed++) {
        struct st_traffic closed, program;
        struct st_moved moved;
        struct st_plan *plan;
        struct tiny t;

        make_tiny(&t, seed);
        plan = try_tiny(&t);
        if (plan->fits) {
            st_plan_moved(&moved, plan);
            closed = st_moved_sum(&moved);
            program = count_program(plan);
            if (memcmp(&closed, &program, sizeof(closed)) != 0)
                fail_msg("%s: %s: read %llu, program %llu; write %llu, %llu; upload %llu, %llu; download %llu, %llu; comm %llu, "
                         "%llu",
                         t.what, describe(plan), (unsigned long long)closed.read, (unsigned long long)program.read,
                         (unsigned long long)closed.write, (unsigned long long)program.write, (unsigned long long)closed.upload,
                         (unsigned long long)program.upload, (unsigned long long)closed.download,
                         (unsigned long long)program.download, (unsigned long long)closed.comm, (unsigned long long)program.comm);
        }
        st_plan_destroy(plan);
        st_workload_fini(&t.w);
    }
}

/* --- the oracle --- */

struct oracle {
    struct st_plan *trial; /* a plan of its own, of which only the decisions change */
    const struct st_machine *machine;
    struct st_decisions best;
    double seconds;
    uint64_t tried;
};

static double seconds_of(struct st_plan *plan, const struct st_machine *m)
{
    struct st_simulation s;

    assert_int_equal(st_plan_build(plan), STRATA_OK);
    assert_int_equal(st_simulate(&s, &plan->program, m), STRATA_OK);
    return s.seconds;
}

static void try_placement(struct oracle *o)
{
    const struct st_decisions trial = o->trial->decided;
    double seconds;

    if (!st_plan_allowed(o->trial))
        return;
    o->tried++;
    seconds = seconds_of(o->trial, o->machine);
    o->trial->decided = trial; /* building drops slots that nothing needs */
    if (seconds < o->seconds) {
        o->best = trial;
        o->seconds = seconds;
    }
}

static void try_host(struct oracle *o)
{
    const struct st_policy *policy = &o->trial->policy;
    const bool weights = policy->param_tier == STRATA_TIER_NVME && policy->cache != 0;
    const bool state = policy->optimizer_tier == STRATA_TIER_NVME && policy->cache != 0 && !policy->forward_only;

    for (uint32_t w = 0; w <= (weights ? o->trial->program.workload.page_count : 0); w++)
        for (uint32_t c = 0; c <= (state ? o->trial->program.chunk_count : 0); c++) {
            o->trial->decided.cached_weight_pages = w;
            o->trial->decided.cached_chunks = c;
            try_placement(o);
        }
}

static void search(struct oracle *o, const struct st_decisions *ours)
{
    const struct st_policy *policy = &o->trial->policy;
    const uint32_t pages = o->trial->program.workload.page_count, slices = shape_of(&o->trial->program.workload).table_count;
    const bool promotes = policy->cache != 0;
    const uint32_t low = st_place_least_resident(o->trial);
    const bool fixed = policy->forward_only || policy->optimizer_tier == STRATA_TIER_DEVICE || !promotes;

    for (uint32_t r = low; r <= (promotes ? pages : low); r++)
        for (uint32_t d = 0; d <= (fixed ? 0 : r); d++) {
            if (d > 0 && d < slices)
                continue;
            o->trial->decided.resident_pages = r;
            o->trial->decided.device_state_pages = fixed ? ours->device_state_pages : d;
            try_host(o);
        }
}

/* At rates under which everything takes about as long, now this and now that a little longer. */
static void draw_rates(struct st_machine *m, const struct st_plan *plan, struct plan_draws *draws)
{
    double *const rates[] = {&m->rates.matmul_flops, &m->rates.upload, &m->rates.download, &m->rates.update, &m->rates.read};

    st_evaluator_nominal(m, plan);
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++)
        *rates[i] *= (double)(1 + plan_draw(draws, 8)) / 4;
    m->rates.write = m->rates.mixed = m->rates.read;
}

TEST(no_placement_is_much_faster)
{
    uint64_t planned = 0, tried = 0;
    double worst = 1;

    for (uint64_t seed = first_seed; seed < first_seed + case_count / 20; seed++) {
        struct plan_draws draws = {.seed = seed + 1000000};
        struct st_machine machine;
        struct st_plan *plan;
        struct tiny t;

        make_tiny(&t, seed);
        plan = try_tiny(&t);
        if (plan->fits) {
            struct oracle o = {.machine = &machine, .seconds = HUGE_VAL};
            struct st_decisions ours;
            double seconds;

            draw_rates(&machine, plan, &draws);
            assert_int_equal(st_plan_evaluate(&plan, &machine), STRATA_OK);
            seconds = seconds_of(plan, &machine);
            ours = plan->decided;
            o.trial = plan;
            plan->decided.slots = plan->reserved;
            search(&o, &ours);
            plan->decided = ours;
            if (seconds > o.seconds * 1.001) {
                const double ratio = seconds / o.seconds;

                if (ratio > worst) {
                    print_message("%s: %s: %g s, ", t.what, describe(plan), seconds);
                    plan->decided = o.best;
                    print_message("the oracle %g s, %.3f: %s\n", o.seconds, ratio, describe(plan));
                    worst = ratio;
                }
            }
            planned++;
            tried += o.tried;
        }
        st_plan_destroy(plan);
        st_workload_fini(&t.w);
    }
    print_message("%u plans, %u placements tried; the worst is %.3f of the oracle's\n", (unsigned)planned, (unsigned)tried,
                  worst);
    assert_true(planned > case_count / 80);
}

TEST_MAIN(argc, argv)
{
    case_count = argc > 1 ? strtoull(argv[1], NULL, 10) : case_count;
    first_seed = argc > 2 ? strtoull(argv[2], NULL, 10) : first_seed;
    return test_run(NULL, NULL);
}

/* test_plan_oracle - is the placement minimal?  Tiny workloads against an exhaustive search.
 *
 * The claim: with the slots, kept blocks, activation tier and (horizontal accumulation) device accumulators that a plan has
 * reserved, no other placement of its kind that fits moves fewer bytes to and from NVMe in a steady step, nor, with as few,
 * fewer over the links.  Of its kind: what is resident, cached and updated on the device is counted from the bottom; state lies
 * on the device for resident pages alone, for all slices of the table or for none.  The search walks every such placement, sizes
 * each as a layout and counts its bytes in closed form, which the first test compares with the programs'.
 *
 * Not claimed: that the reservation is the best one.  Slots and kept blocks are chosen by simulated time, and a byte that a slot
 * takes is not there to cache state in; how much that costs is printed. */
#include "offload/plan/plan_internal.h"
#include "plan_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t first_seed = 1, case_count = 1000;

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
             p->program.workload.grad_accum, p->program.workload.page_count, p->program.workload.table_count,
             p->program.workload.tied, p->program.workload.block_count, p->program.chunk_count, p->decided.resident_pages,
             p->decided.device_state_pages, p->decided.cached_weight_pages, p->decided.cached_chunks, p->decided.kept_blocks,
             p->decided.device_accum_pages, p->decided.slots.weights, p->decided.slots.host_weights, p->decided.slots.states,
             p->decided.slots.grads);
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
static void count_program(struct st_moved *moved, const struct st_plan *plan)
{
    const enum st_phase steady = plan->policy.forward_only ? ST_PHASE_EVAL : ST_PHASE_BODY;

    *moved = (struct st_moved){0};
    for (uint32_t i = 0; i < plan->program.op_count; i++) {
        const struct st_op *op = &plan->program.ops[i];
        const bool reads = op->lane == ST_LANE_READ_STATE || op->lane == ST_LANE_READ_WEIGHT, up = op->lane == ST_LANE_UPLOAD;

        if ((op->phases & steady) == 0)
            continue;
        switch (op->kind) {
        case ST_OP_UPLOAD_ACT:
        case ST_OP_DOWNLOAD_ACT:
        case ST_OP_READ_ACT:
        case ST_OP_WRITE_ACT:
        case ST_OP_UPLOAD_TOKENS:
        case ST_OP_DOWNLOAD_SCALARS:
            continue;
        default:
            break;
        }
        moved->read += reads ? op->bytes : 0;
        moved->nvme += reads || op->lane == ST_LANE_WRITE ? op->bytes : 0;
        moved->comm += op->kind == ST_OP_GATHER_WEIGHT || op->kind == ST_OP_GATHER_UPDATED || op->kind == ST_OP_EXCHANGE_GRAD ||
                               op->kind == ST_OP_EXCHANGE_ROUNDED || op->kind == ST_OP_GATHER_GRAD
                           ? op->bytes
                           : 0;
        moved->upload += up ? op->bytes : 0;
        moved->link += up || op->lane == ST_LANE_DOWNLOAD ? op->bytes : 0;
    }
}

static void the_closed_form_is_the_program(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + case_count; seed++) {
        struct st_moved closed, program;
        struct st_plan *plan;
        struct tiny t;

        make_tiny(&t, seed);
        plan = try_tiny(&t);
        if (plan->fits) {
            st_plan_moved(&closed, plan);
            count_program(&program, plan);
            if (memcmp(&closed, &program, sizeof(closed)) != 0)
                fail_msg("%s: %s: nvme %llu, program %llu; read %llu, %llu; link %llu, %llu; upload %llu, %llu; comm %llu, %llu",
                         t.what, describe(plan), (unsigned long long)closed.nvme, (unsigned long long)program.nvme,
                         (unsigned long long)closed.read, (unsigned long long)program.read, (unsigned long long)closed.link,
                         (unsigned long long)program.link, (unsigned long long)closed.upload, (unsigned long long)program.upload,
                         (unsigned long long)closed.comm, (unsigned long long)program.comm);
        }
        st_plan_destroy(plan);
        st_workload_fini(&t.w);
    }
}

/* --- the oracle --- */

struct oracle {
    struct st_plan trial; /* shares the plan's arrays */
    struct st_plan best;
    uint64_t nvme, link, tried;
};

static void try_placement(struct oracle *o)
{
    struct st_moved moved;

    if (!st_plan_allowed(&o->trial))
        return;
    o->tried++;
    st_plan_moved(&moved, &o->trial);
    if (moved.nvme < o->nvme || (moved.nvme == o->nvme && moved.link < o->link)) {
        o->best = o->trial;
        o->nvme = moved.nvme;
        o->link = moved.link;
    }
}

static void try_host(struct oracle *o)
{
    const struct st_policy *policy = &o->trial.policy;
    const bool weights = policy->param_tier == STRATA_TIER_NVME && policy->cache != 0;
    const bool state = policy->optimizer_tier == STRATA_TIER_NVME && policy->cache != 0 && !policy->forward_only;

    for (uint32_t w = 0; w <= (weights ? o->trial.program.workload.page_count : 0); w++)
        for (uint32_t c = 0; c <= (state ? o->trial.program.chunk_count : 0); c++) {
            o->trial.decided.cached_weight_pages = w;
            o->trial.decided.cached_chunks = c;
            try_placement(o);
        }
}

/* With what the plan has reserved. */
static void start(struct oracle *o, const struct st_plan *plan)
{
    *o = (struct oracle){.trial = *plan, .nvme = UINT64_MAX, .link = UINT64_MAX};
    o->trial.decided.slots.weights = plan->reserved.weights;
    o->trial.decided.slots.host_weights = plan->reserved.host_weights;
    o->trial.decided.slots.states = plan->reserved.states;
    o->trial.decided.slots.streamed_states = plan->reserved.streamed_states;
    o->trial.decided.slots.acts = plan->reserved.acts;
    o->trial.decided.slots.host_acts = plan->reserved.host_acts;
    o->trial.decided.slots.grads = plan->reserved.grads;
}

/* With as little as it could have. */
static void start_smallest(struct oracle *o, const struct st_plan *plan)
{
    *o = (struct oracle){.trial = *plan, .nvme = UINT64_MAX, .link = UINT64_MAX};
    o->trial.decided.slots.weights = o->trial.decided.slots.host_weights = o->trial.decided.slots.states =
        o->trial.decided.slots.grads = 1;
    o->trial.decided.slots.streamed_states = 1;
    o->trial.decided.slots.acts = 2;
    o->trial.decided.slots.host_acts = 1;
    o->trial.decided.kept_blocks = plan->policy.activations == ST_ACT_KEPT ? plan->program.workload.block_count : 0;
}

static void search(struct oracle *o, const struct st_plan *plan)
{
    const struct st_policy *policy = &plan->policy;
    const uint32_t pages = plan->program.workload.page_count, slices = plan->program.workload.table_count;
    const bool promotes = policy->cache != 0;
    const uint32_t low = policy->param_tier == STRATA_TIER_DEVICE ? pages : 0;
    const bool fixed = policy->forward_only || policy->optimizer_tier == STRATA_TIER_DEVICE || !promotes;

    for (uint32_t r = low; r <= (promotes ? pages : low); r++)
        for (uint32_t d = 0; d <= (fixed ? 0 : r); d++) {
            if (d > 0 && d < slices)
                continue;
            o->trial.decided.resident_pages = r;
            o->trial.decided.device_state_pages = fixed ? plan->decided.device_state_pages : d;
            try_host(o);
        }
}

static void no_placement_moves_less(void **state)
{
    uint64_t planned = 0, tried = 0, moved = 0, dearer = 0;
    double excess = 0;

    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + case_count; seed++) {
        struct st_moved ours;
        struct st_plan *plan;
        struct oracle o;
        struct tiny t;

        make_tiny(&t, seed);
        plan = try_tiny(&t);
        if (plan->fits) {
            start(&o, plan);
            search(&o, plan);
            st_plan_moved(&ours, plan);
            if (ours.nvme != o.nvme || ours.link != o.link)
                fail_msg("%s: %s: moves %llu and %llu bytes, the oracle %llu and %llu (%s)", t.what, describe(plan),
                         (unsigned long long)ours.nvme, (unsigned long long)ours.link, (unsigned long long)o.nvme,
                         (unsigned long long)o.link, describe(&o.best));
            planned++;
            tried += o.tried;
            moved += ours.nvme > 0;
            start_smallest(&o, plan);
            search(&o, plan);
            assert_true(o.nvme <= ours.nvme);
            dearer += o.nvme < ours.nvme;
            if (ours.nvme > 0)
                excess += (double)(ours.nvme - o.nvme) / (double)ours.nvme;
        }
        st_plan_destroy(plan);
        st_workload_fini(&t.w);
    }
    print_message("%u plans, %u of them with NVMe traffic; %u placements tried\n", (unsigned)planned, (unsigned)moved,
                  (unsigned)tried);
    print_message("with the smallest reservation %u of these plans would move fewer NVMe bytes, over all of them %.1f %% fewer\n",
                  (unsigned)dearer, 100 * excess / (double)(moved > 0 ? moved : 1));
    assert_true(planned > case_count / 4 && moved > case_count / 20);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_closed_form_is_the_program),
        cmocka_unit_test(no_placement_moves_less),
    };

    case_count = argc > 1 ? strtoull(argv[1], NULL, 10) : case_count;
    first_seed = argc > 2 ? strtoull(argv[2], NULL, 10) : first_seed;
    return cmocka_run_group_tests_name("plan_oracle", tests, NULL, NULL);
}

/* plan_choose.c - how spare memory is divided: a few candidates, completed in closed form, judged by the simulator.
 *
 * A candidate reserves slots to prefetch into and blocks whose activations are kept; what is left goes to the placement that
 * moves least (plan_place.c), and what that leaves to more slots and kept blocks; both orders of accumulation, where that is
 * open.  The judge simulates each program on a nominal machine, in which compute, update, disk and both links take equally long
 * for the smallest placement (updates and copies little, where the device is the host): no measurement enters, so that the same
 * plan is made everywhere.  Only a device that is not the host is judged once more, when its rates are known (plan_balance.c). */
#include "offload/plan/plan_internal.h"

#include "core/base/error.h"
#include "offload/simulate/simulate.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define OPS_JUDGED  60000u /* larger programs: the first candidate, unjudged */
#define TIE         1.005  /* simulated seconds within this are equal */
#define STATE_SLOTS 8u     /* that leftovers are spent on */
#define QUARTERS    4u

struct reserve {
    uint8_t weights, grads, acts, host_acts, states, host_weights, streamed_states; /* slots */
    uint8_t kept;          /* quarters of the blocks, before anything becomes resident; as many as fit */
    bool host_checkpoints; /* not on the device, where either is allowed */
};

/* The first is what huge workloads get. */
static const struct reserve reserves[] = {
    {2, 2, 4, 4, 2, 3, 3, 0, false},  {2, 2, 4, 4, 4, 3, 3, 0, false}, {2, 2, 4, 4, 8, 4, 3, 0, false},
    {3, 2, 4, 4, 16, 6, 4, 0, false}, {1, 1, 2, 1, 1, 1, 1, 0, false}, {2, 2, 4, 4, 4, 3, 3, 2, false},
    {2, 2, 4, 4, 4, 3, 3, 3, false},  {2, 2, 4, 4, 4, 3, 3, 4, false}, {2, 2, 4, 4, 4, 3, 3, 0, true},
};
#define RESERVES (sizeof(reserves) / sizeof(reserves[0]))

struct candidate {
    struct st_decisions decided;
    struct st_slots reserved;
    double seconds;
    uint64_t moved, memory; /* bytes of a steady step on disk and links; of device and host */
};

/* --- one candidate --- */

static void raise_slots(struct st_plan *plan, const struct reserve *r)
{
    st_plan_raise(plan, &plan->decided.slots.weights, r->weights);
    st_plan_raise(plan, &plan->decided.slots.grads, r->grads);
    st_plan_raise(plan, &plan->decided.slots.acts, r->acts);
    st_plan_raise(plan, &plan->decided.slots.host_acts, r->host_acts);
    st_plan_raise(plan, &plan->decided.slots.states, r->states);
    st_plan_raise(plan, &plan->decided.slots.host_weights, r->host_weights);
    st_plan_raise(plan, &plan->decided.slots.streamed_states, r->streamed_states);
}

static void raise_kept(struct st_plan *plan, uint32_t most)
{
    if (plan->policy.activations == ST_ACT_AUTO && !plan->policy.forward_only)
        st_plan_raise(plan, &plan->decided.kept_blocks, most);
}

/* Pools that the placement has no use for are empty; candidates that differ in them alone are one. */
static void drop_unused_slots(struct st_plan *plan)
{
    struct st_layout lay;

    plan->reserved = plan->decided.slots;
    (void)st_layout_make(&lay, plan, false); /* a sizing fails in nothing */
    plan->decided.slots = st_layout_slots(&lay);
}

/* From the smallest placement: reserve, place, spend what is left. */
static void complete(struct st_plan *plan, const struct reserve *r)
{
    /* Deeper queues pay only where lanes run by themselves. */
    static const struct reserve leftovers_of[] = {{4, 8, 4, 4, STATE_SLOTS, 4, 6, 0, false},
                                                  {2, 2, 4, 4, STATE_SLOTS, 3, 3, 0, false}};
    const struct reserve *leftovers = &leftovers_of[plan->capacity.device_is_host];
    const struct st_workload *w = &plan->program.workload;

    if (plan->decided.activation_tier == STRATA_TIER_HOST && plan->policy.activation_tier == STRATA_TIER_COUNT &&
        !r->host_checkpoints) {
        plan->decided.activation_tier = STRATA_TIER_DEVICE;
        if (!st_plan_allowed(plan))
            plan->decided.activation_tier = STRATA_TIER_HOST;
    }
    raise_slots(plan, r);
    if (plan->policy.streamed != ST_STREAMED_AUTO)
        st_plan_raise(plan, &plan->decided.streamed, plan->policy.streamed);
    raise_kept(plan, (w->block_count * r->kept + QUARTERS - 1) / QUARTERS);
    if (plan->decided.accumulation ==
        ST_ACCUMULATE_HORIZONTAL) { /* a byte of the sums saves less than one of weights, more than state's */
        st_plan_raise(plan, &plan->decided.resident_pages, w->page_count);
        st_plan_raise(plan, &plan->decided.device_accum_pages, w->page_count);
    }
    st_plan_place(plan);
    raise_kept(plan, w->block_count);
    if (plan->policy.activations != ST_ACT_RECOMPUTED && !plan->policy.forward_only)
        st_plan_raise(plan, &plan->decided.kept_slices, w->head_count);
    raise_slots(plan, leftovers);
    drop_unused_slots(plan);
}

/* --- the judge --- */

static double flops(const struct st_workload *w)
{
    const double blocks = w->block_count * (2 * w->block_forward_flops + w->block_backward_flops);

    return w->grad_accum * (blocks + w->head_forward_flops + w->head_backward_flops);
}

/* On a device that is the host an update and a copy are passes over memory, little beside what its cores compute. */
#define HOST_UPDATE 0.125
#define HOST_LINK   0.03125

/* Each resource takes one second for the smallest placement; on a device that is the host, where they take turns, updates and
 * copies less, and the disk as long as all of them.  One that has nothing to do is as fast as the slowest link. */
static void nominal_machine(struct st_machine *machine, const struct st_plan *smallest)
{
    const struct st_workload *w = &smallest->program.workload;
    const uint64_t checkpoints =
        smallest->decided.activation_tier == STRATA_TIER_DEVICE ? 0 : w->activation_bytes * w->grad_accum * (w->block_count + 1);
    const bool host = smallest->capacity.device_is_host;
    const double update = host ? HOST_UPDATE : 1, link = host ? HOST_LINK : 1, disk = host ? 1 + update + 2 * link : 1;
    struct st_moved moved;

    st_plan_moved(&moved, smallest);
    *machine = (struct st_machine){.capacity = smallest->capacity};
    machine->rates.matmul_flops = flops(w);
    machine->rates.update = (double)w->params / update;
    machine->rates.upload = (double)(moved.upload + checkpoints + 1) / link;
    machine->rates.download = (double)(moved.link - moved.upload + checkpoints + 1) / link;
    if (smallest->decided.activation_tier == STRATA_TIER_NVME)
        moved.nvme += 2 * checkpoints;
    machine->rates.read = machine->rates.write = machine->rates.mixed = (double)(moved.nvme + 1) / disk;
}

static bool preferred(const struct candidate *a, const struct candidate *b)
{
    return a->moved != b->moved ? a->moved < b->moved : a->memory < b->memory;
}

/* Index of the best: fewest bytes, then least memory, then the first, of those that take no longer than the fastest. */
static uint32_t best_of(const struct candidate *candidates, uint32_t count)
{
    double fastest = candidates[0].seconds;
    uint32_t best = count;

    for (uint32_t i = 1; i < count; i++)
        if (candidates[i].seconds < fastest)
            fastest = candidates[i].seconds;
    for (uint32_t i = 0; i < count; i++)
        if (candidates[i].seconds <= fastest * TIE && (best == count || preferred(&candidates[i], &candidates[best])))
            best = i;
    return best;
}

/* Build it and, with a machine to do it on, simulate a step. */
static strata_status judge(struct candidate *c, struct st_plan *plan, const struct st_machine *nominal)
{
    struct st_simulation simulation;
    struct st_traffic t;
    strata_status st;

    c->seconds = 0;
    plan->decided = c->decided;
    if ((st = st_plan_build(plan)) != STRATA_OK || nominal == NULL)
        return st;
    t = st_program_traffic(&plan->program, plan->policy.forward_only ? ST_PHASE_EVAL : ST_PHASE_BODY);
    c->moved = t.read + t.write + t.upload + t.download;
    c->memory = plan->program.needed[STRATA_TIER_DEVICE] + plan->program.needed[STRATA_TIER_HOST];
    if ((st = st_simulate(&simulation, &plan->program, nominal)) == STRATA_OK)
        c->seconds = simulation.seconds;
    return st;
}

static bool known(const struct candidate *candidates, uint32_t count, const struct st_decisions *d)
{
    for (uint32_t i = 0; i < count; i++)
        if (memcmp(&candidates[i].decided, d, sizeof(*d)) == 0)
            return true;
    return false;
}

uint64_t st_plan_ops_expected(const struct st_plan *plan)
{
    const struct st_workload *w = &plan->program.workload;

    return 3ull * plan->program.chunk_count + 8ull * w->page_count +
           (6ull * w->block_count + 2ull * w->head_count) * w->grad_accum;
}

struct choice {
    struct st_plan *plan;
    const struct st_machine *judge; /* NULL: a huge program, whose first candidate is taken */
    struct candidate candidates[2 * RESERVES];
    uint32_t count;
};

/* From the smallest placement of one order of accumulation: complete and judge the candidates. */
static strata_status judge_order(struct choice *choice)
{
    struct st_plan *plan = choice->plan;
    const struct st_decisions smallest = plan->decided;
    strata_status st;

    for (uint32_t i = 0; i < (choice->judge == NULL ? 1 : RESERVES); i++) {
        struct candidate *c = &choice->candidates[choice->count];

        plan->decided = smallest;
        complete(plan, &reserves[i]);
        c->decided = plan->decided;
        c->reserved = plan->reserved;
        if (known(choice->candidates, choice->count, &c->decided))
            continue;
        if ((st = judge(c, plan, choice->judge)) != STRATA_OK)
            return st;
        choice->count++;
    }
    return STRATA_OK;
}

/* The other order, where both are open: what it needs at least does not count as the plan's minimum. */
static strata_status judge_other_order(struct choice *choice)
{
    struct st_plan *plan = choice->plan;
    uint64_t minimum[STRATA_TIER_COUNT];
    bool fits;

    if (choice->judge == NULL || plan->policy.accumulation != ST_ACCUMULATE_AUTO ||
        plan->decided.accumulation != ST_ACCUMULATE_VERTICAL)
        return STRATA_OK;
    memcpy(minimum, plan->minimum, sizeof(minimum));
    fits = st_plan_smallest(plan, ST_ACCUMULATE_HORIZONTAL);
    memcpy(plan->minimum, minimum, sizeof(minimum));
    return fits ? judge_order(choice) : STRATA_OK;
}

strata_status st_plan_choose(struct st_plan *plan, const struct st_machine *rates)
{
    struct choice choice = {.plan = plan};
    struct st_machine nominal;
    uint32_t best;
    strata_status st;

    nominal_machine(&nominal, plan);
    if (st_plan_ops_expected(plan) <= OPS_JUDGED)
        choice.judge = rates != NULL ? rates : &nominal;
    if ((st = judge_order(&choice)) != STRATA_OK || (st = judge_other_order(&choice)) != STRATA_OK)
        return st;
    best = best_of(choice.candidates, choice.count);
    plan->decided = choice.candidates[best].decided;
    plan->reserved = choice.candidates[best].reserved;
    return st_plan_build(plan);
}

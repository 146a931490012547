/* plan_choose.c - divides spare memory: completes a few candidates in closed form, and the simulator judges them.
 *
 * A candidate reserves slots to prefetch into and blocks whose activations are kept; the rest goes to the placement that moves
 * the fewest bytes (plan_place.c), and what that leaves goes to more slots and kept blocks. Both orders of accumulation are tried
 * if that is open. The judge simulates each program on a nominal machine, on which compute, update, disk, both links and what
 * ranks exchange take equally long for the smallest placement (updates, copies and exchanges less, if the device is the host): no
 * measurement enters, so that the plan is the same everywhere. Only for a device that is not the host is the choice made again
 * when its rates are known (plan_balance.c). */
#include "offload/plan/plan_internal.h"

#include "core/base/error.h"
#include "offload/simulate/simulate.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define OPS_JUDGED  60000u /* larger programs get the first candidate without a judgement */
#define TIE         1.005  /* simulated seconds within this are equal */
#define STATE_SLOTS 8u     /* the most that leftovers are spent on */
#define QUARTERS    4u

struct reserve {
    uint8_t weights, grads, acts, host_acts, states, host_weights, streamed_states; /* slots */
    uint8_t kept;          /* quarters of the blocks to keep before anything becomes resident; as many as fit */
    bool host_checkpoints; /* checkpoints not on the device, if either tier is allowed */
};

/* Huge workloads get the first one, without a judgement. */
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
    uint64_t moved, memory; /* bytes of a steady step on disk and links; bytes used of device and host */
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

/* Empties pools that the placement does not use, so that candidates that differ only in those become equal. */
static void drop_unused_slots(struct st_plan *plan)
{
    struct st_layout lay;

    plan->reserved = plan->decided.slots;
    (void)st_layout_make(&lay, plan, false); /* sizing cannot fail */
    plan->decided.slots = st_layout_slots(&lay);
}

/* Starts from the smallest placement: reserves, places, and spends what is left. */
static void complete(struct st_plan *plan, const struct reserve *r)
{
    /* Deeper queues pay only if lanes run independently. */
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
        ST_ACCUMULATE_HORIZONTAL) { /* a byte spent on sums saves less than one on weights and more than one on state */
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

/* On a device that is the host, updates and copies are passes over memory, which take little time compared with compute. */
#define HOST_UPDATE 0.125
#define HOST_LINK   0.03125

/* Each resource takes one second for the smallest placement. On a device that is the host, where they take turns, updates and
 * copies take less, and the disk takes as long as all of them together. A resource without work is as fast as the slowest
 * link. */
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
    machine->rates.link_node = (double)(moved.comm + 1) / update;
    if (smallest->decided.activation_tier == STRATA_TIER_NVME)
        moved.nvme += 2 * checkpoints;
    machine->rates.read = machine->rates.write = machine->rates.mixed = (double)(moved.nvme + 1) / disk;
}

static bool preferred(const struct candidate *a, const struct candidate *b)
{
    return a->moved != b->moved ? a->moved < b->moved : a->memory < b->memory;
}

/* Index of the best: of those about as fast as the fastest, the one with the fewest bytes, then the least memory, then the
 * first. */
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

/* Builds it and, given a machine, simulates a step. */
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
    c->moved = t.read + t.write + t.upload + t.download + t.comm;
    c->memory = plan->program.needed[STRATA_TIER_DEVICE] + plan->program.needed[STRATA_TIER_HOST];
    if ((st = st_simulate_in(&simulation, &plan->program, nominal, &plan->scratch)) == STRATA_OK)
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
    const uint64_t saved = plan->policy.sets > 0 ? 2ull * plan->program.chunk_count + 2ull * w->page_count : 0;

    return saved + 3ull * plan->program.chunk_count + (7ull + plan->policy.leaves) * w->page_count +
           (6ull * w->block_count + 2ull * w->head_count) * w->grad_accum;
}

struct choice {
    struct st_plan *plan;
    const struct st_machine *judge; /* NULL: a huge program, which gets the first candidate */
    struct candidate candidates[2 * RESERVES];
    uint32_t count;
};

/* Completes and judges the candidates from the smallest placement of one order of accumulation. */
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

/* Judges the other order, if both are open; its smallest need does not count as the plan's minimum. */
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

/* plan_choose.c - the search: of all candidates the one whose simulated step is the shortest.
 *
 * The candidates are fixed by workload and capacities (plan_candidate.c); rates evaluate them.  There are too many to evaluate
 * all.  So some hundred are completed first: every policy of updates, order of micro-batches and tier of activations, and few
 * values of the other axes.  Of each kind the one with the lowest bound (plan_bound.c) goes along one axis after the other to
 * lower bounds, and where that ends it is evaluated.  From these, the fastest first, the search descends: along one axis after
 * the other it goes to the fastest value, with the others as they are, until no axis has a faster one.  It leaps from there with
 * two axes at once, does the same from the fastest in chunks of other sizes, and with what is left of the count goes detours.  A
 * value whose bound is well above what the descent has reached is not evaluated.
 *
 * All of this is a function of its arguments: it is limited by a count of simulated ops, never by a clock, so that the plan is
 * the same everywhere.  Of the candidates about as fast as the fastest, the one that moves the fewest bytes wins, then the one
 * that takes the least memory, then the first. */
#include "offload/plan/plan_search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- the bases --- */

/* The chunk sizes beside the default one that cut this workload otherwise.  None if the size is given. */
static uint32_t other_sizes(uint64_t sizes[ST_CHUNK_SIZES], const struct st_plan *plan)
{
    static const uint64_t all[ST_CHUNK_SIZES] = {UINT64_C(1) << 20, UINT64_C(4) << 20, UINT64_C(16) << 20, UINT64_C(64) << 20};
    const struct st_workload *w = &plan->program.workload;
    uint64_t largest = 0;
    uint32_t count = 0;

    for (uint32_t p = 0; p < w->page_count; p++)
        for (uint32_t i = 0; i < plan->program.shards[p].group_count; i++)
            if (plan->program.shards[p].groups[i].elems > largest)
                largest = plan->program.shards[p].groups[i].elems;
    for (uint32_t i = 0; i < ST_CHUNK_SIZES && plan->asked.chunk_elems == 0 && !plan->policy.forward_only; i++) {
        const bool fine =
            w->params / all[i] < ST_CHUNKS_MOST && (plan->asked.chunk_most == 0 || all[i] <= plan->asked.chunk_most);
        const bool whole = all[i] >= largest && plan->policy.chunk_elems >= largest;

        if (fine && !whole && all[i] != plan->policy.chunk_elems)
            sizes[count++] = all[i];
        if (all[i] >= largest)
            break;
    }
    return count;
}

static strata_status open_base(struct st_search *s, struct st_plan *plan)
{
    struct st_base *base = &s->bases[s->base_count];

    base->plan = plan;
    for (enum st_accumulation order = ST_ACCUMULATE_VERTICAL; order <= ST_ACCUMULATE_HORIZONTAL; order++) {
        uint64_t minimum[STRATA_TIER_COUNT];

        if (plan->policy.accumulation != ST_ACCUMULATE_AUTO && plan->policy.accumulation != order)
            continue;
        memcpy(minimum, plan->minimum, sizeof(minimum));
        base->fits[order] = st_plan_smallest(plan, order);
        base->start[order] = plan->decided;
        if (plan->policy.optimizer_tier != STRATA_TIER_DEVICE && !plan->policy.forward_only) {
            base->lifted[order] = plan->decided.device_state_pages;
            base->start[order].device_state_pages = 0;
        }
        base->start[order].resident_pages = st_place_least_resident(plan);
        memcpy(plan->minimum, minimum, sizeof(minimum));
    }
    base->ops = st_plan_ops_about(plan);
    s->base_count++;
    return st_evaluator_init(&base->evaluator, plan, s->machine);
}

static strata_status open_others(struct st_search *s)
{
    const struct st_plan *plan = s->bases[0].plan;
    uint64_t sizes[ST_CHUNK_SIZES];
    const uint32_t count = other_sizes(sizes, plan);
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < count && st == STRATA_OK; i++) {
        struct st_policy policy = plan->policy;
        struct st_plan *other;

        policy.chunk_elems = sizes[i];
        if ((st = st_plan_create(&other, &plan->program.workload, &plan->capacity, &policy)) == STRATA_OK) {
            other->asked = plan->asked;
            st = open_base(s, other);
        }
    }
    return st;
}

/* --- the choice --- */

static const uint64_t ops_most[] = {[ST_EFFORT_WHOLE] = 10000000, [ST_EFFORT_COMPARE] = 1250000};

/* Of those about as fast as the fastest: the fewest bytes, the least memory, the first. */
static const struct st_node *best_of(const struct st_search *s)
{
    const struct st_node *best = NULL;

    for (uint32_t i = 0; i < s->count; i++) {
        const struct st_node *n = &s->nodes[i];

        if (isnan(n->seconds) || n->slow || n->seconds > s->fastest * ST_TIE)
            continue;
        if (best == NULL || n->moved < best->moved || (n->moved == best->moved && n->memory < best->memory))
            best = n;
    }
    return best;
}

static strata_status search(struct st_search *s)
{
    static const struct {
        strata_status (*run)(struct st_search *s);
        uint32_t part; /* of what may be evaluated, with the phases before */
    } phases[] = {
        {st_search_first, 2}, {st_search_descend, 4},   {st_search_leap, 5},
        {st_search_recut, 7}, {st_search_leap_last, 8}, {st_search_detour, 8},
    };
    strata_status st = open_others(s);

    for (size_t i = 0; i < sizeof(phases) / sizeof(phases[0]) && st == STRATA_OK; i++) {
        s->part = phases[i].part;
        st = phases[i].run(s);
    }
    return st;
}

/* What the first plan is told by who makes it. */
static void take_base(struct st_plan *to, const struct st_plan *from)
{
    to->fits = from->fits;
    memcpy(to->minimum, from->minimum, sizeof(to->minimum));
}

/* @param seconds  out: of the one that is chosen, which is decided, but not built */
static strata_status choose(struct st_plan **plan, const struct st_machine *rates, enum st_effort effort, double *seconds)
{
    struct st_search s = {.fastest = HUGE_VAL, .ops_most = ops_most[effort]};
    struct st_machine nominal;
    strata_status st;

    st_evaluator_nominal(&nominal, *plan);
    s.machine = rates != NULL ? rates : &nominal;
    if ((st = open_base(&s, *plan)) == STRATA_OK && (st = search(&s)) == STRATA_OK) {
        const struct st_node *best = best_of(&s);

        if (best->intent.on[ST_AXIS_CHUNKS] > 0)
            take_base(s.bases[best->intent.on[ST_AXIS_CHUNKS]].plan, *plan);
        *plan = s.bases[best->intent.on[ST_AXIS_CHUNKS]].plan;
        st_node_decide(*plan, best);
        *seconds = best->seconds;
        (*plan)->evaluated_ops = st_search_ops(&s);
    }
    for (uint32_t i = 0; i < s.base_count; i++) {
        st_evaluator_fini(&s.bases[i].evaluator);
        if (s.bases[i].plan != *plan)
            st_plan_destroy(s.bases[i].plan);
    }
    free(s.nodes);
    free(s.places);
    free(s.completed);
    return st;
}

/* Chooses by another policy, too, and takes that plan if its step takes no more than `most`. */
static strata_status choose_by(struct st_plan **plan, const struct st_policy *policy, const struct st_machine *rates,
                               enum st_effort effort, double most)
{
    const struct st_policy asked = (*plan)->asked;
    struct st_plan *other;
    double seconds;
    strata_status st = st_plan_create(&other, &(*plan)->program.workload, &(*plan)->capacity, policy);

    if (st != STRATA_OK)
        return st;
    other->asked = asked;
    other->asked.update = policy->update;
    take_base(other, *plan);
    st = choose(&other, rates, effort, &seconds);
    other->asked = asked;
    if (st == STRATA_OK && seconds <= most) {
        struct st_plan *const slower = *plan;

        other->evaluated_ops += slower->evaluated_ops;
        *plan = other;
        other = slower;
    }
    st_plan_destroy(other);
    return st;
}

/* Whether steps may be the shorter for early updates where the policy of updates is the planner's choice. */
static bool is_offered(const struct st_plan *plan, const struct st_machine *rates)
{
    return plan->asked.early == ST_EARLY_OFFERED && rates != NULL && !plan->capacity.device_is_host &&
           plan->policy.update != ST_UPDATE_IN_BACKWARD && plan->policy.optimizer_tier != STRATA_TIER_DEVICE &&
           !plan->policy.forward_only && !st_workload_opaque(&plan->program.workload);
}

#define CLEARLY 0.97 /* of a step without early updates, since these wear drives out more */

/* Early updates take space that may serve a plan without them better, so that is another plan. */
strata_status st_plan_choose(struct st_plan **plan, const struct st_machine *rates, enum st_effort effort)
{
    double seconds;
    strata_status st = choose(plan, rates, effort, &seconds);
    struct st_policy other = (*plan)->policy;

    if (st == STRATA_OK && other.early == ST_EARLY_AUTO) {
        other.early = 0;
        st = choose_by(plan, &other, rates, effort, seconds);
        (*plan)->policy.early = ST_EARLY_AUTO; /* though no page may have any */
    } else if (st == STRATA_OK && is_offered(*plan, rates)) {
        other.update = ST_UPDATE_GATED;
        other.early = ST_EARLY_AUTO;
        st = choose_by(plan, &other, rates, effort, CLEARLY * seconds);
    }
    return st == STRATA_OK ? st_plan_build(*plan) : st;
}

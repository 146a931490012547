/* plan_draft.c - about how long a step takes: a choice among very few candidates.
 *
 * From few intents it goes along one axis after the other to the lowest bound (plan_bound.c), which costs no simulation; only
 * where that ends is simulated.  So it takes about a hundredth of the choice (plan_choose.c), whose plan is rarely slower, and
 * serves to tell which of many settings are worth that. */
#include "offload/plan/plan_choose_internal.h"
#include "offload/simulate/simulate.h"

#include <math.h>

#define ROUNDS      2u
#define WORK_WEIGHT 0.02 /* as in the choice: of equal bounds, the one with less work altogether */

struct draft {
    struct st_plan *plan;
    struct st_evaluator evaluator;
    struct st_decisions start, fastest;
    enum st_update_policy update; /* of the fastest */
    double seconds, limit;
    bool lacks;
};

/* Lower is better; infinite: it does not fit. */
static double key_of(struct draft *d, const struct st_intent *intent)
{
    double work, bound;

    if (!st_candidate_complete(d->plan, &d->start, intent))
        return HUGE_VAL;
    bound = st_plan_bound(d->plan, d->evaluator.machine, &work);
    return bound + WORK_WEIGHT * work;
}

static void descend_axis(struct draft *d, struct st_intent *intent, double *key, enum st_axis axis)
{
    uint32_t levels[ST_LEVELS_MAX];
    const uint32_t count = st_candidate_levels(levels, d->plan, intent, axis);
    struct st_intent at = *intent;

    for (uint32_t i = 0; i < count; i++) {
        double found;

        at.on[axis] = levels[i];
        if (levels[i] == intent->on[axis] || (found = key_of(d, &at)) >= *key)
            continue;
        *key = found;
        *intent = at;
    }
}

/* Simulates the plan's decisions, unless they are slower than what is asked about; then their bound is told. */
static strata_status evaluate(struct draft *d)
{
    const struct st_decisions decided = d->plan->decided;
    double seconds, work;
    strata_status st = STRATA_OK;

    seconds = st_plan_bound(d->plan, d->evaluator.machine, &work);
    if (seconds * ST_BOUND_SLACK <= fmin(d->limit, d->seconds))
        st = st_evaluator_seconds(&seconds, &d->evaluator, d->seconds);
    if (st != STRATA_OK || seconds >= d->seconds)
        return st;
    d->seconds = seconds;
    d->fastest = decided;
    d->update = d->plan->policy.update;
    return STRATA_OK;
}

static strata_status descend(struct draft *d, struct st_intent intent)
{
    static const enum st_axis axes[] = {ST_AXIS_ACCUM, ST_AXIS_STREAMED, ST_AXIS_EARLY, ST_AXIS_STATE,
                                        ST_AXIS_KEPT,  ST_AXIS_RESIDENT, ST_AXIS_GRADS, ST_AXIS_ORDER};
    double key = key_of(d, &intent);

    for (uint32_t round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < sizeof(axes) / sizeof(axes[0]); i++)
            descend_axis(d, &intent, &key, axes[i]);
    return st_candidate_complete(d->plan, &d->start, &intent) ? evaluate(d) : STRATA_OK;
}

/* With as many weights on the device as fit, and with none, since no single axis leads from the one to the other. */
static strata_status descend_from(struct draft *d, struct st_intent intent)
{
    uint32_t levels[ST_LEVELS_MAX];
    const uint32_t count = st_candidate_levels(levels, d->plan, &intent, ST_AXIS_RESIDENT);
    strata_status st = descend(d, intent);

    intent.on[ST_AXIS_RESIDENT] = levels[count - 1];
    return st == STRATA_OK && count > 1 ? descend(d, intent) : st;
}

/* The smallest placement is a candidate, too: where memory is that tight, no other may fit. */
static strata_status try_order(struct draft *d, enum st_accumulation order)
{
    struct st_intent intent = {0};
    uint32_t tiers[ST_LEVELS_MAX], count;
    strata_status st;

    if ((d->plan->policy.accumulation != ST_ACCUMULATE_AUTO && d->plan->policy.accumulation != order) ||
        !st_plan_smallest(d->plan, order))
        return STRATA_OK;
    d->start = d->plan->decided;
    intent.on[ST_AXIS_ACCUMULATION] = order;
    for (uint32_t axis = 0; axis < ST_AXIS_COUNT; axis++)
        if (axis != ST_AXIS_ACCUMULATION && st_candidate_levels(tiers, d->plan, &intent, (enum st_axis)axis) > 0)
            intent.on[axis] = tiers[0];
    d->plan->policy.update = (enum st_update_policy)intent.on[ST_AXIS_UPDATE];
    st = evaluate(d);
    if (d->plan->policy.param_tier == STRATA_TIER_DEVICE)
        d->start.resident_pages = st_place_least_resident(d->plan);
    count = st_candidate_levels(tiers, d->plan, &intent, ST_AXIS_TIER);
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++) {
        intent.on[ST_AXIS_TIER] = tiers[i];
        st = descend_from(d, intent);
    }
    return st;
}

/* The fastest on another machine than the evaluator's; by its bound if a rate is missing. */
static strata_status price(struct draft *d, const struct st_machine *machine)
{
    double work;

    d->plan->decided = d->fastest;
    d->plan->policy.update = d->update;
    d->evaluator.machine = machine;
    d->seconds = HUGE_VAL;
    if (st_simulate_possible(&d->plan->program, machine))
        return evaluate(d);
    d->lacks = true;
    d->seconds = st_plan_bound(d->plan, machine, &work);
    return STRATA_OK;
}

static strata_status draft(struct draft *d, const struct st_machine *rates, const struct st_machine *priced)
{
    struct st_machine nominal;
    strata_status st;

    if (!st_plan_smallest_fits(d->plan))
        return STRATA_OK;
    if (rates != NULL && (st = st_plan_known_rates(&rates, d->plan)) != STRATA_OK)
        return st;
    st_evaluator_nominal(&nominal, d->plan);
    if ((st = st_evaluator_init(&d->evaluator, d->plan, rates != NULL ? rates : &nominal)) != STRATA_OK)
        return st;
    if (rates == NULL && d->plan->policy.streamed == ST_STREAMED_AUTO)
        d->plan->policy.streamed = 0;
    for (enum st_accumulation order = ST_ACCUMULATE_VERTICAL; order <= ST_ACCUMULATE_HORIZONTAL && st == STRATA_OK; order++)
        st = try_order(d, order);
    if (st == STRATA_OK && priced != NULL && priced != rates)
        st = price(d, priced);
    st_evaluator_fini(&d->evaluator);
    return st;
}

strata_status st_plan_draft(struct st_draft *out, const struct st_workload *workload, const struct st_capacity *capacity,
                            const struct st_policy *policy, const struct st_machine *rates, const struct st_machine *priced,
                            double limit)
{
    struct draft d = {.seconds = HUGE_VAL, .limit = priced == NULL || priced == rates ? limit : HUGE_VAL};
    strata_status st = st_plan_create(&d.plan, workload, capacity, policy);

    if (st != STRATA_OK)
        return st;
    st = draft(&d, rates, priced);
    st_plan_destroy(d.plan);
    *out = (struct st_draft){.seconds = d.seconds, .lacks = d.lacks};
    return st;
}

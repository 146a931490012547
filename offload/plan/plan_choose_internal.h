/* offload/plan/plan_choose_internal.h - candidates, what bounds them, who judges them: shared by the parts of the choice.
 *
 * plan_choose.c     the search: the fastest candidate
 * plan_candidate.c  the set of candidates, fixed by workload and capacities
 * plan_bound.c      seconds that no schedule of a candidate can beat, from its decisions alone
 * plan_judge.c      seconds of its simulated step */
#ifndef OFFLOAD_PLAN_PLAN_CHOOSE_INTERNAL_H
#define OFFLOAD_PLAN_PLAN_CHOOSE_INTERNAL_H

#include "offload/plan/plan_internal.h"

#define ST_SLOT_PROFILES       4u
#define ST_SLOT_PROFILES_FIRST 2u /* of them, that are visited with every intent */
#define ST_RUNGS_MAX           64u
#define ST_RESIDENT_ALL        4u
#define ST_KEPT_REST           UINT32_MAX /* as many blocks as fit when everything else is placed */

/* What a candidate intends; amounts are of the fixed ladders in plan_candidate.c. */
struct st_intent {
    enum st_accumulation accumulation;
    strata_tier activation_tier;
    uint32_t kept;        /* blocks whose activations are kept, or ST_KEPT_REST */
    uint32_t accum_pages; /* horizontal: whose partial sums stay on the device */
    uint32_t state_pages; /* whose state lies on the device */
    uint32_t streamed;    /* of ST_STREAMED_PARTS */
    uint32_t resident;    /* quarters of the pages: at most so many are resident beside those with state */
    uint32_t order;       /* in which what is left is spent */
    uint32_t slots;       /* profile: how deep the queues are */
};

/* Visits every intent that fits, with the first slot profiles; the plan's decisions are then those of st_candidate_complete(). */
struct st_candidates {
    struct st_plan *plan;
    const struct st_decisions *start; /* the smallest placement of an order of accumulation */
    strata_status (*visit)(void *ctx, const struct st_intent *intent);
    void *ctx;
};
/** Stops at the first status that is not OK, and returns it. */
strata_status st_candidates_visit(struct st_candidates *candidates);
/** Decide on what an intent means for this plan's capacities: plan->decided, ->reserved.  False: it does not fit. */
bool st_candidate_complete(struct st_plan *plan, const struct st_decisions *start, const struct st_intent *intent);
/** The update policies that may be chosen: they do the same when a step fails.  Returns how many. */
#define ST_UPDATES_MAX 3u
uint32_t st_candidate_updates(enum st_update_policy updates[ST_UPDATES_MAX], const struct st_policy *asked);

/** Seconds that no execution of the decided placement can beat, but for what slots carry over a window's end.  *work, returned:
 *  the seconds of all resources together, to prefer those with less of it. */
double st_plan_bound(const struct st_plan *plan, const struct st_machine *machine, double *work);

/* Simulates candidates of one plan.  Steps of many micro-batches are folded: micro-batches that go through the layers side by
 * side are merged to a few large ones; of those that go one after the other a few are simulated, and the rest take as long as the
 * last of these. */
struct st_judge {
    const struct st_machine *machine;
    struct st_plan *plan;                /* borrowed */
    struct st_plan *merged, *few, *more; /* owned; NULL: the plan's own program is simulated */
    uint64_t ops;                        /* simulated so far */
};
strata_status st_judge_init(struct st_judge *judge, struct st_plan *plan, const struct st_machine *machine);
void st_judge_fini(struct st_judge *judge);
/** Seconds of a steady step with the plan's decisions.  May leave the plan without a program that fits them.  E_NOMEM. */
strata_status st_judge_seconds(double *seconds, struct st_judge *judge);

/** Rates by which to judge where none are known: see plan_judge.c.  `smallest`: of this workload and policy. */
void st_judge_nominal(struct st_machine *machine, const struct st_plan *smallest);

#endif

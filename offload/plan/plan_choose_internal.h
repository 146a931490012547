/* offload/plan/plan_choose_internal.h - candidates, what bounds them, who evaluates them: shared by the parts of the choice.
 *
 * plan_choose.c     the fastest candidate that the search finds (plan_search.h)
 * plan_candidate.c  the candidates, fixed by workload and capacities
 * plan_bound.c      seconds that no schedule of a candidate can beat, from its decisions alone
 * plan_evaluate.c      seconds of its simulated step */
#ifndef OFFLOAD_PLAN_PLAN_CHOOSE_INTERNAL_H
#define OFFLOAD_PLAN_PLAN_CHOOSE_INTERNAL_H

#include "offload/plan/plan_predicates.h"

#define ST_SLOT_PROFILES 5u
#define ST_LEVELS_MAX     64u
#define ST_ACCUM_ALL     4u
#define ST_CACHED_ALL    UINT32_MAX /* as many chunks as fit */
#define ST_KEPT_REST     UINT32_MAX /* as many blocks as fit when everything else is placed */

/* What candidates differ in. */
enum st_axis {
    ST_AXIS_UPDATE,       /* enum st_update_policy */
    ST_AXIS_ACCUMULATION, /* enum st_accumulation */
    ST_AXIS_TIER,         /* of activation checkpoints */
    ST_AXIS_KEPT,         /* blocks whose activations are kept, or ST_KEPT_REST */
    ST_AXIS_STATE,        /* pages whose state lies on the device */
    ST_AXIS_STREAMED,     /* of ST_STREAMED_PARTS */
    ST_AXIS_EARLY,        /* pages: at most so many, from the top, are updated early */
    ST_AXIS_ACCUM,        /* horizontal: quarters of the pages, whose partial sums stay on the device */
    ST_AXIS_RESIDENT,     /* pages: at most so many are resident, but for those that must be */
    ST_AXIS_CACHED,       /* chunks: the state of at most so many waits in host memory, or ST_CACHED_ALL */
    ST_AXIS_CACHE,        /* 0: all that may be; else what lies above its tier is limited, see plan_candidate.c */
    ST_AXIS_ORDER,        /* in which what is left is spent */
    ST_AXIS_SLOTS,        /* profile: how deep the queues are */
    ST_AXIS_CHUNKS,       /* which of the search's sizes */
    ST_AXIS_GRADS,        /* 0: as many rounded gradients as fit wait in host memory; 1: as few as may; 2: 0, but streams first */
    ST_AXIS_MEMORY,       /* 0: all of it; else as in a smaller memory of a fixed size, see plan_candidate.c */
    ST_AXIS_COUNT
};

/* What a candidate intends. */
struct st_intent {
    uint32_t on[ST_AXIS_COUNT];
};

/** The values of an axis, which may depend on those of others.  Returns how many. */
uint32_t st_candidate_levels(uint32_t levels[ST_LEVELS_MAX], const struct st_plan *plan, const struct st_intent *intent,
                            enum st_axis axis);
/** Values near the intent's, between the levels; plan->decided is what the intent means.  Returns how many. */
uint32_t st_candidate_between(uint32_t levels[ST_LEVELS_MAX], const struct st_plan *plan, const struct st_intent *intent,
                              enum st_axis axis);
/** Decide on what an intent means for this plan's capacities: plan->decided, ->reserved, ->policy.update.  False: it does not
 *  fit. */
bool st_candidate_complete(struct st_plan *plan, const struct st_decisions *start, const struct st_intent *intent);

/** About the least seconds of the decided placement.  It leaves out work that takes little, so it is mostly too low; but what
 * slots carry over a window's end is only estimated, so it may be a little too high: the most that random plans have shown is 1.1
 * % (tests/offload/test_plan_best.c).  *work, returned: the seconds of all resources together, to prefer those with less of it.
 */
#define ST_BOUND_SLACK 0.97 /* a bound times this is never above the step */
double st_plan_bound(const struct st_plan *plan, const struct st_machine *machine, double *work);

/* Simulates candidates of one plan.  Steps of many micro-batches are shortened: micro-batches that go through the layers side by
 * side are merged to a few large ones; of those that go one after the other a few are simulated, and the rest take as long as the
 * last of these. */
struct st_evaluator {
    const struct st_machine *machine;
    struct st_plan *plan;                /* borrowed */
    struct st_plan *merged, *few, *more; /* owned; NULL: the plan's own program is simulated */
    uint64_t ops;                        /* simulated so far */
};
strata_status st_evaluator_init(struct st_evaluator *evaluator, struct st_plan *plan, const struct st_machine *machine);
void st_evaluator_fini(struct st_evaluator *evaluator);
/** Seconds of a steady step with the plan's decisions.  Where they are more than `limit`, *seconds may be any number between the
 *  two, found sooner.  May leave the plan without a program that fits them.  E_NOMEM. */
strata_status st_evaluator_seconds(double *seconds, struct st_evaluator *evaluator, double limit);

/** About how many ops a steady step has, whatever is decided. */
uint64_t st_plan_ops_about(const struct st_plan *plan);

/** Rates by which to evaluate where none are known: see plan_evaluate.c.  `smallest`: of this workload and policy. */
void st_evaluator_nominal(struct st_machine *machine, const struct st_plan *smallest);

#endif

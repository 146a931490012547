/* offload/plan/plan.h - the plan: the decisions, and the program that follows from them.
 *
 * st_plan_make() is a pure function of workload, capacities and policy: no I/O, no threads, no tiers touched.  The estimator
 * (`strata plan`), the preflight check and the engine all use its result; the engine uses only the program. Predictions about it
 * are separate (figures.h, simulate.h). */
#ifndef OFFLOAD_PLAN_PLAN_H
#define OFFLOAD_PLAN_PLAN_H

#include "offload/machine/rates.h"
#include "offload/program/policy.h"
#include "offload/program/program.h"

struct st_plan_sums; /* offload/plan/plan_internal.h */

#define ST_PLAN_ITEMS_MAX 32u
struct st_plan_item {
    const char *name;
    strata_tier tier;
    uint64_t bytes;
};

/* The decisions that are open once workload, machine and policy are given.  Candidates are compared as bytes, so there is no
 * padding. */
struct st_decisions {
    enum st_accumulation accumulation; /* not AUTO */
    strata_tier activation_tier;
    uint32_t kept_blocks; /* top-most blocks whose internals are kept */
    uint32_t kept_slices; /* slices of the head, from the first on, whose logits are kept */
    uint32_t resident_pages, cached_weight_pages, device_state_pages; /* counted from the bottom, like the next two */
    uint32_t cached_chunks;
    uint32_t device_accum_pages; /* horizontal accumulation: pages whose partial sums stay on the device */
    uint32_t host_grad_pages; /* state on NVMe: pages whose rounded gradients have a place of their own in host memory.  From the
                                 bottom, since those gradients come last and are used first */
    uint32_t streamed;        /* of ST_STREAMED_PARTS: the policy's, or what fits of it */
    uint32_t early_pages;     /* that are updated early, as many as can be (plan_early.c) */
    struct st_slots slots;
};
_Static_assert(sizeof(struct st_decisions) == 19 * sizeof(uint32_t), "no padding");

struct st_plan {
    struct st_program program;
    struct st_capacity capacity; /* the capacity that it is made for */
    struct st_policy policy;     /* with what was open in the caller's, `asked`, decided */
    struct st_policy asked;
    struct st_decisions decided;
    struct st_slots reserved;  /* decided.slots before unused pools were dropped */
    struct st_plan_sums *sums; /* used by the planner alone, as is the next one: */
    struct st_scratch scratch; /* for writing its programs, and simulating them */

    uint64_t evaluated_ops; /* simulated by the choice */
    bool fits;
    uint64_t minimum[STRATA_TIER_COUNT];          /* needed by the smallest placement of this policy */
    uint64_t fixed_bytes, rss_bytes_max;          /* with tables.h; host + cpu device + that */
    struct st_plan_item items[ST_PLAN_ITEMS_MAX]; /* rows of the table: what is placed where */
    uint32_t item_count;
};

/** Leave to a caller that computes the layers what it holds itself: takes it off the capacity, and notes it in the policy. */
void st_plan_leave(struct st_policy *policy, struct st_capacity *capacity, const uint64_t bytes[STRATA_TIER_NVME],
                   uint32_t threads);
/** Plan, evaluated by a nominal machine: one on which everything takes about equally long.  *out is set also on E_NOFIT (fits is
 * false, and needed[] is that of the smallest placement, so it shows what is lacking); the error sentence names the tier, what is
 * needed, and what there is (st_plan_advise()). E_NOFIT: a tier lacks room.  E_INVAL: bad workload.  E_NOMEM. */
strata_status st_plan_make(struct st_plan **out, const struct st_workload *workload, const struct st_capacity *capacity,
                           const struct st_policy *policy);
void st_plan_destroy(struct st_plan *plan);
/** Adds to this thread's sentence of a plan that does not fit what would help.  @return st, of making it; all but E_NOFIT changes
 *  nothing */
strata_status st_plan_advise(const struct st_plan *plan, strata_status st);
/** Whether st_plan_make() would find that it fits, by sizing alone: no program is written.  E_INVAL, E_CONFIG, E_NOMEM. */
strata_status st_plan_fits(bool *fits, const struct st_workload *workload, const struct st_capacity *capacity,
                           const struct st_policy *policy);

/** Prove that the program is sound (program.h) and within the capacities.  E_INTERNAL with the first fault found. */
strata_status st_plan_verify(const struct st_plan *plan);

/* How much is simulated for a choice. */
enum st_effort {
    ST_EFFORT_WHOLE,   /* as a run's plan is chosen */
    ST_EFFORT_COMPARE, /* an eighth, for plans that are compared: their steps are rarely more than 1 % longer */
};
/** The same with known rates: the choice is evaluated by a machine with these, or by a nominal one if a rate is missing that its
 *  programs need.  Any choice gives the same bits. */
strata_status st_plan_make_evaluated(struct st_plan **out, const struct st_workload *workload, const struct st_capacity *capacity,
                                     const struct st_policy *policy, const struct st_machine *rates, enum st_effort effort);
struct st_draft {
    double seconds; /* infinite: it does not fit */
    bool lacks;     /* a rate of the priced machine is missing: they are a bound */
};
/** About the seconds of a step of the plan that st_plan_make_evaluated() would make, in a hundredth of its time: those of one of
 * few candidates.  rates: by which it is chosen, as there; priced: the machine whose seconds they are; either may be NULL, for a
 *  nominal one.  Above `limit` they may be a bound: that a setting is slower is then all that is known.  E_INVAL, E_CONFIG,
 *  E_NOMEM. */
strata_status st_plan_draft(struct st_draft *out, const struct st_workload *workload, const struct st_capacity *capacity,
                            const struct st_policy *policy, const struct st_machine *rates, const struct st_machine *priced,
                            double limit);
/** Choose again, evaluated by known rates: *plan is replaced; it stays what it is after an error.  E_NOMEM. */
strata_status st_plan_evaluate(struct st_plan **plan, const struct st_machine *rates);

#endif

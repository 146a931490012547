/* offload/plan/plan_search.h - the parts of the search for the fastest candidate, in the order in which data goes through them.
 *
 * plan_search.c          candidates that are completed and evaluated: the nodes of the search
 * plan_search_first.c    the first ones: of each kind the most promising
 * plan_search_descend.c  from these to faster ones, one axis at a time
 * plan_search_leap.c     from where that ends to faster ones, two axes at a time
 * plan_search_detour.c   and by ways that are longer at first: with each value that one axis could have */
#ifndef OFFLOAD_PLAN_PLAN_SEARCH_H
#define OFFLOAD_PLAN_PLAN_SEARCH_H

#include "offload/plan/plan_choose_internal.h"

#define ST_CHUNK_SIZES  4u
#define ST_KIND_AXES    3u     /* the first axes: ST_AXIS_UPDATE, ST_AXIS_ACCUMULATION, ST_AXIS_TIER */
#define ST_KINDS        8u     /* from whose fastest a leap or detour starts, at most */
#define ST_SEARCH_PARTS 8u     /* of what may be evaluated, for the phases of the search */
#define ST_TIE          1.002  /* simulated seconds within this are equal */
#define ST_WORTH        0.9995 /* of a round from one candidate to faster ones, or it is the last */

struct st_node {
    struct st_intent intent;
    struct st_decisions decided;
    struct st_slots reserved;
    double bound, key, seconds; /* seconds: NaN until evaluated */
    uint64_t moved, memory;
    uint32_t index;
    bool slow;    /* its step is longer than `seconds`: when that was known, it was not simulated on */
    bool settled; /* a descent has ended here */
    bool leapt;   /* to any kind */
};

/* The workload cut in chunks of one size. */
struct st_base {
    struct st_plan *plan;
    struct st_evaluator evaluator;
    struct st_decisions
        start[2];       /* by order of accumulation: what completes begin with; nothing that need not be on the device */
    uint32_t lifted[2]; /* pages whose state the smallest placement has there for want of host memory */
    bool fits[2];
    uint64_t ops; /* about, of its programs */
};

/* What an intent means: the same intents are met on many ways. */
struct st_completed {
    struct st_node node;
    bool taken, fits;
};

struct st_search {
    const struct st_machine *machine;
    struct st_base bases[1 + ST_CHUNK_SIZES]; /* the first: the default size */
    uint32_t base_count;
    struct st_node *nodes;
    uint32_t count, room;     /* room is a power of two */
    uint32_t *places, placed; /* [2 * room]: 1 + the index of each of the first `placed` nodes, by a hash of their decisions */
    struct st_completed *completed; /* by a hash of their intents; completed_room is a power of two */
    uint32_t completed_count, completed_room;
    double fastest;
    uint32_t evaluated;
    uint64_t ops_most; /* the search ends at the first candidate beyond them */
    uint32_t part;     /* of ST_SEARCH_PARTS: what may be evaluated so far */
};

/* Those of an axis that a node does not have. */
struct st_values {
    uint32_t count, list[2 * ST_LEVELS_MAX];
};

/** The values of an axis.  Returns how many. */
uint32_t st_search_values(uint32_t values[ST_LEVELS_MAX], const struct st_search *s, const struct st_intent *intent,
                          enum st_axis axis);
/** Of one axis, and those near the one that a node has, but not that itself. */
void st_search_values_beside(struct st_values *v, const struct st_search *s, const struct st_node *from, enum st_axis axis);
/** What an intent means; false: it does not fit. */
bool st_search_complete(struct st_node *n, struct st_search *s, const struct st_intent *intent);
/** Of the plan of its base, which has its decisions. */
void st_search_bound(struct st_node *n, const struct st_search *s);
/** E_NOMEM. */
strata_status st_search_push(struct st_search *s, const struct st_node *n);
/** Gives a plan the decisions of a node. */
void st_node_decide(struct st_plan *plan, const struct st_node *n);
int st_node_compare_decisions(const struct st_node *a, const struct st_node *b);

/** Simulates a node, until it is known to be well slower than `seconds`.  E_NOMEM. */
strata_status st_search_evaluate(struct st_search *s, struct st_node *n, double seconds);
/** Ops simulated so far. */
uint64_t st_search_ops(const struct st_search *s);
/** Whether no more is evaluated in this phase. */
bool st_search_spent(const struct st_search *s);
/** Whether a node's bound is well above what has been reached. */
bool st_search_hopeless(const struct st_node *n, double seconds);
/** The evaluated node with the same decisions, or NULL. */
struct st_node *st_search_known(struct st_search *s, const struct st_node *n);
/** Sorts the nodes, all of which are evaluated: the fastest first. */
void st_search_sort(struct st_search *s);
/** Judges a completed node and adds it, or takes what is known of it.  Its seconds stay NaN if it is hopeless against `seconds`,
 * or if no more is evaluated.  E_NOMEM. */
strata_status st_search_meet(struct st_search *s, struct st_node *n, double seconds);
/** By bound and work: for qsort(). */
int st_node_compare_keys(const void *left, const void *right);
/** The fastest node of each policy, order, tier and of state that streams or does not; fastest first.  Returns how many. */
uint32_t st_search_kinds(struct st_node fastest[ST_KINDS], struct st_search *s);

/** Adds the first of each kind, evaluated.  E_NOMEM. */
strata_status st_search_first(struct st_search *s);
/** From the fastest of each policy, order and tier first, then from the fastest of the other kinds.  E_NOMEM. */
strata_status st_search_descend(struct st_search *s);
/** From one node, which becomes the fastest that is met.  `kinds`: with other policies and tiers, too.  E_NOMEM. */
strata_status st_search_descend_from(struct st_search *s, struct st_node *best, bool kinds);
/** From one node along all axes but one, and with its own policy and tiers.  E_NOMEM. */
strata_status st_search_descend_beside(struct st_search *s, struct st_node *best, enum st_axis held);
/** From the fastest of the kinds.  E_NOMEM. */
strata_status st_search_leap(struct st_search *s);
/** From the fastest node of all, to any kind.  E_NOMEM. */
strata_status st_search_leap_last(struct st_search *s);
/** From the fastest of all and, where programs are short, from those of the other kinds.  E_NOMEM. */
strata_status st_search_detour(struct st_search *s);
/** The fastest in chunks of other sizes, and down from there.  E_NOMEM. */
strata_status st_search_recut(struct st_search *s);

#endif

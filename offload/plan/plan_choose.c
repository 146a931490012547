/* plan_choose.c - the search: of all candidates the one whose simulated step is the shortest.
 *
 * The candidates are fixed by workload and capacities (plan_candidate.c); rates judge them.  There are too many to judge all.  So
 * some hundred are completed first: every policy of updates, order of micro-batches and tier of activations, and few values of
 * the other axes.  Of each kind the one with the lowest bound (plan_bound.c) is judged.  From these, the fastest first, the
 * search descends: along one axis after the other it goes to the fastest value, with the others as they are, until no axis has a
 * faster one.  Last, it does the same from the fastest in chunks of other sizes.  A value whose bound is well above what the
 * descent has reached is not judged.
 *
 * All of this is a function of its arguments: it is limited by a count of simulated ops, never by a clock, so that the plan is
 * the same everywhere.  Of the candidates about as fast as the fastest, the one that moves the fewest bytes wins, then the one
 * that takes the least memory, then the first. */
#include "offload/plan/plan_choose_internal.h"

#include "core/base/error.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TIE         1.002    /* simulated seconds within this are equal */
#define BOUND_SLACK 0.9      /* a bound may be too high: it does not know all that slots carry over a window's end */
#define WORK_WEIGHT 0.02     /* of all resources' work in the order in which candidates are judged */
#define OPS_JUDGED  5000000u /* the search ends at the first candidate beyond so many, */
#define LEAST       64u      /* but judges so many, however large their programs */
#define MOST        4000u    /* and no more than that */
#define STARTS      256u     /* of the descent, at most */
#define RECUT       12u      /* of the fastest, in chunks of other sizes */
#define WORTH       0.9995   /* of a round of the descent, or it was the last */
#define CHUNK_SIZES 4u
#define KIND_AXES   3u /* the first axes: ST_AXIS_UPDATE, ST_AXIS_ACCUMULATION, ST_AXIS_TIER */

struct node {
    struct st_intent intent;
    struct st_decisions decided;
    struct st_slots reserved;
    double bound, key, seconds; /* seconds: NaN until judged */
    uint64_t moved, memory;
    uint32_t index;
    bool settled; /* a descent has ended here */
};

/* The workload cut in chunks of one size. */
struct base {
    struct st_plan *plan;
    struct st_judge judge;
    struct st_decisions
        start[2];       /* by order of accumulation: what completes begin with; nothing that need not be on the device */
    uint32_t lifted[2]; /* pages whose state the smallest placement has there for want of host memory */
    bool fits[2];
};

struct search {
    const struct st_machine *machine;
    struct base bases[1 + CHUNK_SIZES]; /* the first: the default size */
    uint32_t base_count;
    struct node *nodes;
    uint32_t count, room;
    double fastest;
    uint32_t judged;
};

/* --- candidates --- */

static void note_sizes(struct node *n, const struct st_plan *plan)
{
    uint64_t needed[STRATA_TIER_COUNT];
    struct st_traffic sum;
    struct st_moved moved;

    st_plan_size(plan, needed);
    st_plan_moved(&moved, plan);
    sum = st_moved_sum(&moved);
    n->moved = sum.read + sum.write + sum.upload + sum.download + sum.comm;
    n->memory = needed[STRATA_TIER_DEVICE] + needed[STRATA_TIER_HOST];
}

static strata_status push_node(struct search *s, const struct node *n)
{
    if (s->count == s->room) {
        const uint32_t room = s->room == 0 ? 1024 : 2 * s->room;
        struct node *grown = realloc(s->nodes, room * sizeof(*grown));

        if (grown == NULL)
            return st_error(STRATA_E_NOMEM, "plan: no memory for %u candidates", room);
        s->nodes = grown;
        s->room = room;
    }
    s->nodes[s->count++] = *n;
    return STRATA_OK;
}

/* Of the plan of its base, which has its decisions. */
static void set_bound(struct node *n, const struct search *s)
{
    double work;

    n->bound = st_plan_bound(s->bases[n->intent.on[ST_AXIS_CHUNKS]].plan, s->machine, &work);
    n->key = n->bound + WORK_WEIGHT * work;
}

/* What an intent means; false: it does not fit. */
static bool complete(struct node *n, const struct search *s, const struct st_intent *intent)
{
    const struct base *base = &s->bases[intent->on[ST_AXIS_CHUNKS]];
    const uint32_t order = intent->on[ST_AXIS_ACCUMULATION];

    if (!base->fits[order] || !st_candidate_complete(base->plan, &base->start[order], intent))
        return false;
    *n = (struct node){.intent = *intent,
                       .decided = base->plan->decided,
                       .reserved = base->plan->reserved,
                       .seconds = (double)NAN,
                       .index = s->count};
    set_bound(n, s);
    return true;
}

static void take_decisions(struct st_plan *plan, const struct node *n)
{
    plan->decided = n->decided;
    plan->reserved = n->reserved;
    plan->policy.update = (enum st_update_policy)n->intent.on[ST_AXIS_UPDATE];
}

static int compare_decisions(const struct node *a, const struct node *b)
{
    const uint32_t *x = a->intent.on, *y = b->intent.on;

    if (x[ST_AXIS_UPDATE] != y[ST_AXIS_UPDATE])
        return x[ST_AXIS_UPDATE] < y[ST_AXIS_UPDATE] ? -1 : 1;
    if (x[ST_AXIS_CHUNKS] != y[ST_AXIS_CHUNKS])
        return x[ST_AXIS_CHUNKS] < y[ST_AXIS_CHUNKS] ? -1 : 1;
    return memcmp(&a->decided, &b->decided, sizeof(a->decided));
}

/* The values of an axis. */
static uint32_t values_of(uint32_t values[ST_RUNGS_MAX], const struct search *s, const struct st_intent *intent,
                          enum st_axis axis)
{
    const struct base *base = &s->bases[intent->on[ST_AXIS_CHUNKS]];
    const uint32_t lifted = base->lifted[intent->on[ST_AXIS_ACCUMULATION]];
    uint32_t count = st_candidate_rungs(values, base->plan, intent, axis);

    if (axis == ST_AXIS_STATE && lifted > 0 && count < ST_RUNGS_MAX)
        values[count++] = lifted;
    if (axis == ST_AXIS_CHUNKS)
        for (count = 0; count < s->base_count; count++)
            values[count] = count;
    return count;
}

/* --- judging --- */

static uint64_t simulated(const struct search *s)
{
    uint64_t ops = 0;

    for (uint32_t i = 0; i < s->base_count; i++)
        ops += s->bases[i].judge.ops;
    return ops;
}

/* `part`: of what may be judged, one in so many. */
static bool spent(const struct search *s, uint32_t part)
{
    return s->judged >= LEAST && (simulated(s) >= OPS_JUDGED / part || s->judged >= MOST / part);
}

static bool hopeless(const struct node *n, const struct node *best)
{
    return n->bound * BOUND_SLACK > best->seconds;
}

static strata_status judge(struct search *s, struct node *n)
{
    struct base *base = &s->bases[n->intent.on[ST_AXIS_CHUNKS]];
    strata_status st;

    take_decisions(base->plan, n);
    if ((st = st_judge_seconds(&n->seconds, &base->judge)) != STRATA_OK)
        return st;
    note_sizes(n, base->plan);
    s->judged++;
    s->fastest = fmin(s->fastest, n->seconds);
    return STRATA_OK;
}

/* --- the first to be judged --- */

/* How many rungs of an axis are among the first: each, the ends and two between them, the ends, the first. */
enum first { FIRST_EVERY, FIRST_FOUR, FIRST_ENDS, FIRST_ONE };
static const enum first firsts[ST_AXIS_COUNT] = {
    [ST_AXIS_ACCUMULATION] = FIRST_EVERY, [ST_AXIS_TIER] = FIRST_EVERY,     [ST_AXIS_KEPT] = FIRST_ENDS,
    [ST_AXIS_STATE] = FIRST_FOUR,         [ST_AXIS_STREAMED] = FIRST_EVERY, [ST_AXIS_ACCUM] = FIRST_ENDS,
    [ST_AXIS_RESIDENT] = FIRST_ENDS,      [ST_AXIS_ORDER] = FIRST_ONE,      [ST_AXIS_SLOTS] = FIRST_ONE,
    [ST_AXIS_CHUNKS] = FIRST_EVERY,       [ST_AXIS_GRADS] = FIRST_ENDS,     [ST_AXIS_MEMORY] = FIRST_ONE,
};

static bool is_first(enum first first, uint32_t i, uint32_t count)
{
    return i == 0 || first == FIRST_EVERY || (first != FIRST_ONE && i == count - 1) ||
           (first == FIRST_FOUR && (i == count / 3 || i == 2 * count / 3));
}

/* Placements are the same whatever the policy of updates. */
static strata_status add_each_update(struct search *s, struct st_intent *intent)
{
    const struct base *base = &s->bases[intent->on[ST_AXIS_CHUNKS]];
    uint32_t updates[ST_RUNGS_MAX];
    const uint32_t count = st_candidate_rungs(updates, base->plan, intent, ST_AXIS_UPDATE);
    strata_status st = STRATA_OK;
    struct node n;

    intent->on[ST_AXIS_UPDATE] = updates[0];
    if (!complete(&n, s, intent))
        return STRATA_OK;
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++) {
        n.intent.on[ST_AXIS_UPDATE] = updates[i];
        take_decisions(base->plan, &n);
        set_bound(&n, s);
        st = push_node(s, &n);
    }
    return st;
}

/* The intents that have the values given so far, and any of the first ones on the axes from this one on. */
static strata_status add_first(struct search *s, struct st_intent *intent, uint32_t axis)
{
    uint32_t rungs[ST_RUNGS_MAX], count;
    strata_status st = STRATA_OK;

    if (axis == ST_AXIS_UPDATE)
        return add_first(s, intent, axis + 1);
    if (axis == ST_AXIS_COUNT)
        return add_each_update(s, intent);
    count = values_of(rungs, s, intent, (enum st_axis)axis);
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++) {
        intent->on[axis] = rungs[i];
        if (is_first(firsts[axis], i, count))
            st = add_first(s, intent, axis + 1);
    }
    return st;
}

static int compare_nodes(const void *left, const void *right)
{
    const struct node *a = left, *b = right;
    const int decisions = compare_decisions(a, b);

    if (a->key < b->key || a->key > b->key)
        return a->key < b->key ? -1 : 1;
    return decisions != 0 ? decisions : a->index < b->index ? -1 : a->index > b->index;
}

/* By their bounds; of equal decisions the first intent remains. */
static void sort_nodes(struct search *s)
{
    uint32_t kept = 0;

    qsort(s->nodes, s->count, sizeof(*s->nodes), compare_nodes);
    for (uint32_t i = 0; i < s->count; i++)
        if (kept == 0 || compare_decisions(&s->nodes[kept - 1], &s->nodes[i]) != 0)
            s->nodes[kept++] = s->nodes[i];
    s->count = kept;
}

/* Candidates of one kind differ in what can be changed one axis at a time. */
static bool alike(const struct node *a, const struct node *b)
{
    static const enum st_axis same[] = {ST_AXIS_UPDATE, ST_AXIS_ACCUMULATION, ST_AXIS_TIER, ST_AXIS_STREAMED, ST_AXIS_CHUNKS};

    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++)
        if (a->intent.on[same[i]] != b->intent.on[same[i]])
            return false;
    return (a->intent.on[ST_AXIS_STATE] > 0) == (b->intent.on[ST_AXIS_STATE] > 0) &&
           (a->intent.on[ST_AXIS_RESIDENT] > 0) == (b->intent.on[ST_AXIS_RESIDENT] > 0) &&
           (a->decided.kept_blocks > 0) == (b->decided.kept_blocks > 0);
}

/* Judges the first of each kind, and drops the others. */
static strata_status judge_first(struct search *s)
{
    uint32_t kept = 0;
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < s->count && st == STRATA_OK && !spent(s, 3); i++) {
        bool is_new = true;

        for (uint32_t k = 0; k < kept; k++)
            is_new = is_new && !alike(&s->nodes[k], &s->nodes[i]);
        if (!is_new)
            continue;
        st = judge(s, &s->nodes[i]);
        s->nodes[kept++] = s->nodes[i];
    }
    s->count = kept;
    return st;
}

/* --- the descent --- */

static struct node *judged_already(const struct search *s, const struct node *n)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (compare_decisions(&s->nodes[i], n) == 0)
            return &s->nodes[i];
    return NULL;
}

/* Judges what an intent means, unless that is known or hopeless.  *best: the faster of the two. */
static strata_status try_intent(struct search *s, struct node *best, const struct st_intent *intent)
{
    const struct node *known;
    struct node n;
    strata_status st;

    if (!complete(&n, s, intent) || hopeless(&n, best))
        return STRATA_OK;
    if ((known = judged_already(s, &n)) != NULL) {
        if (known->seconds < best->seconds)
            *best = *known;
        return STRATA_OK;
    }
    if (spent(s, 1))
        return STRATA_OK;
    if ((st = judge(s, &n)) == STRATA_OK)
        st = push_node(s, &n);
    if (st == STRATA_OK && n.seconds < best->seconds)
        *best = n;
    return st;
}

static strata_status try_values(struct search *s, struct node *best, const struct st_intent *at, enum st_axis axis,
                                const uint32_t *values, uint32_t count)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < count && st == STRATA_OK; i++) {
        struct st_intent intent = *at;

        intent.on[axis] = values[i];
        if (values[i] != at->on[axis])
            st = try_intent(s, best, &intent);
    }
    return st;
}

static strata_status descend_axis(struct search *s, struct node *best, enum st_axis axis)
{
    const struct st_intent at = best->intent;
    struct st_intent near;
    uint32_t values[ST_RUNGS_MAX], count = values_of(values, s, &at, axis);
    strata_status st;

    st = try_values(s, best, &at, axis, values, count);
    if (st != STRATA_OK)
        return st;
    s->bases[best->intent.on[ST_AXIS_CHUNKS]].plan->decided = best->decided;
    near = best->intent;
    count = st_candidate_between(values, s->bases[near.on[ST_AXIS_CHUNKS]].plan, &near, axis);
    return try_values(s, best, &near, axis, values, count);
}

/* Two axes at once where one alone rarely gains. */
static strata_status descend_pairs(struct search *s, struct node *best)
{
    static const enum st_axis pairs[][2] = {{ST_AXIS_ACCUMULATION, ST_AXIS_ACCUM}, {ST_AXIS_TIER, ST_AXIS_KEPT}};
    strata_status st = STRATA_OK;

    for (size_t p = 0; p < sizeof(pairs) / sizeof(pairs[0]); p++) {
        struct st_intent at = best->intent;
        uint32_t values[ST_RUNGS_MAX], count = values_of(values, s, &at, pairs[p][0]);

        for (uint32_t i = 0; i < count && st == STRATA_OK; i++) {
            uint32_t others[ST_RUNGS_MAX], other_count;

            if (values[i] == best->intent.on[pairs[p][0]])
                continue;
            at.on[pairs[p][0]] = values[i];
            other_count = values_of(others, s, &at, pairs[p][1]);
            for (uint32_t k = 0; k < other_count && st == STRATA_OK; k++) {
                at.on[pairs[p][1]] = others[k];
                st = try_intent(s, best, &at);
            }
            at = best->intent;
        }
    }
    return st;
}

/* `kinds`: other policies and tiers, too. */
static strata_status descend(struct search *s, const struct node *from, bool kinds)
{
    static const enum st_axis order[] = {ST_AXIS_RESIDENT, ST_AXIS_ORDER, ST_AXIS_SLOTS,    ST_AXIS_ACCUM,
                                         ST_AXIS_KEPT,     ST_AXIS_STATE, ST_AXIS_STREAMED, ST_AXIS_GRADS,
                                         ST_AXIS_MEMORY,   ST_AXIS_TIER,  ST_AXIS_UPDATE};
    const size_t axes = sizeof(order) / sizeof(order[0]) - (kinds ? 0 : 2);
    struct node best = *from, *end;
    double before;
    strata_status st = STRATA_OK;

    do {
        before = best.seconds;
        for (size_t i = 0; i < axes && st == STRATA_OK; i++)
            st = descend_axis(s, &best, order[i]);
        if (st == STRATA_OK && kinds)
            st = descend_pairs(s, &best);
        end = judged_already(s, &best);
    } while (st == STRATA_OK && best.seconds < before * WORTH && !end->settled && !spent(s, 1));
    end->settled = !kinds;
    return st;
}

static int compare_judged(const void *left, const void *right)
{
    const struct node *a = left, *b = right;

    return a->seconds < b->seconds ? -1 : a->seconds > b->seconds ? 1 : a->index < b->index ? -1 : a->index > b->index;
}

/* From the fastest of each policy, order and tier first, then from the fastest of the other kinds. */
static strata_status descend_from_all(struct search *s)
{
    struct node starts[STARTS];
    const uint32_t count = s->count < STARTS ? s->count : STARTS;
    strata_status st = STRATA_OK;

    qsort(s->nodes, s->count, sizeof(*s->nodes), compare_judged);
    memcpy(starts, s->nodes, count * sizeof(*starts));
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < count && st == STRATA_OK && !spent(s, 2); i++) {
            bool first = true;

            for (uint32_t k = 0; k < i; k++)
                first = first && memcmp(starts[k].intent.on, starts[i].intent.on, KIND_AXES * sizeof(uint32_t)) != 0;
            if (first == (pass == 0))
                st = descend(s, &starts[i], false);
        }
    return st;
}

/* The fastest in chunks of other sizes, with other slots, since these are of a chunk's size; and down from there.  Last, since
 * programs of small chunks are long. */
static strata_status try_chunks(struct search *s)
{
    struct node fastest[RECUT];
    const uint32_t count = s->count < RECUT ? s->count : RECUT;
    strata_status st = STRATA_OK;

    qsort(s->nodes, s->count, sizeof(*s->nodes), compare_judged);
    memcpy(fastest, s->nodes, count * sizeof(*fastest));
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t v = ST_SLOT_PROFILES; v < s->base_count * ST_SLOT_PROFILES && st == STRATA_OK; v++) {
            struct st_intent intent = fastest[i].intent;

            intent.on[ST_AXIS_CHUNKS] = v / ST_SLOT_PROFILES;
            intent.on[ST_AXIS_SLOTS] = v % ST_SLOT_PROFILES;
            st = try_intent(s, &fastest[i], &intent);
        }
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = descend(s, &fastest[i], true);
    return st;
}

/* --- the bases --- */

/* The chunk sizes beside the default one that cut this workload otherwise.  None if the size is given. */
static uint32_t other_sizes(uint64_t sizes[CHUNK_SIZES], const struct st_plan *plan)
{
    static const uint64_t all[CHUNK_SIZES] = {UINT64_C(1) << 20, UINT64_C(4) << 20, UINT64_C(16) << 20, UINT64_C(64) << 20};
    const struct st_workload *w = &plan->program.workload;
    uint64_t largest = 0;
    uint32_t count = 0;

    for (uint32_t p = 0; p < w->page_count; p++)
        for (uint32_t i = 0; i < plan->program.shards[p].group_count; i++)
            if (plan->program.shards[p].groups[i].elems > largest)
                largest = plan->program.shards[p].groups[i].elems;
    for (uint32_t i = 0; i < CHUNK_SIZES && plan->asked.chunk_elems == 0 && !plan->policy.forward_only; i++) {
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

static strata_status open_base(struct search *s, struct st_plan *plan)
{
    struct base *base = &s->bases[s->base_count];

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
        base->start[order].resident_pages = plan->policy.param_tier == STRATA_TIER_DEVICE ? plan->program.workload.page_count : 0;
        memcpy(plan->minimum, minimum, sizeof(minimum));
    }
    s->base_count++;
    return st_judge_init(&base->judge, plan, s->machine);
}

static strata_status open_others(struct search *s)
{
    const struct st_plan *plan = s->bases[0].plan;
    uint64_t sizes[CHUNK_SIZES];
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

/* Of those about as fast as the fastest: the fewest bytes, the least memory, the first. */
static const struct node *best_of(const struct search *s)
{
    const struct node *best = NULL;

    for (uint32_t i = 0; i < s->count; i++) {
        const struct node *n = &s->nodes[i];

        if (isnan(n->seconds) || n->seconds > s->fastest * TIE)
            continue;
        if (best == NULL || n->moved < best->moved || (n->moved == best->moved && n->memory < best->memory))
            best = n;
    }
    return best;
}

static strata_status search(struct search *s)
{
    struct st_intent intent = {0};
    strata_status st;

    if ((st = open_others(s)) != STRATA_OK || (st = add_first(s, &intent, 0)) != STRATA_OK)
        return st;
    sort_nodes(s);
    assert(s->count > 0);
    if ((st = judge_first(s)) == STRATA_OK)
        st = descend_from_all(s);
    return st == STRATA_OK ? try_chunks(s) : st;
}

/* What the first plan is told by who makes it. */
static void take_base(struct st_plan *to, const struct st_plan *from)
{
    to->fits = from->fits;
    memcpy(to->minimum, from->minimum, sizeof(to->minimum));
}

strata_status st_plan_choose(struct st_plan **plan, const struct st_machine *rates)
{
    struct search s = {.fastest = HUGE_VAL};
    struct st_machine nominal;
    strata_status st;

    st_judge_nominal(&nominal, *plan);
    s.machine = rates != NULL ? rates : &nominal;
    if ((st = open_base(&s, *plan)) == STRATA_OK && (st = search(&s)) == STRATA_OK) {
        const struct node *best = best_of(&s);

        if (best->intent.on[ST_AXIS_CHUNKS] > 0)
            take_base(s.bases[best->intent.on[ST_AXIS_CHUNKS]].plan, *plan);
        *plan = s.bases[best->intent.on[ST_AXIS_CHUNKS]].plan;
        take_decisions(*plan, best);
        (*plan)->judged_ops = simulated(&s);
    }
    for (uint32_t i = 0; i < s.base_count; i++) {
        st_judge_fini(&s.bases[i].judge);
        if (s.bases[i].plan != *plan)
            st_plan_destroy(s.bases[i].plan);
    }
    free(s.nodes);
    return st == STRATA_OK ? st_plan_build(*plan) : st;
}

/* plan_choose.c - the search: of all candidates the one whose simulated step is the shortest.
 *
 * The candidates are fixed by workload and capacities (plan_candidate.c); rates only order and judge them.  Those whose bound is
 * the lowest are judged first, and one whose bound is above the fastest so far is not judged, since it cannot win.  Then the
 * fastest few are judged again with other slots and chunks.  What is judged is limited by a count of simulated ops, not by a
 * clock, so that the plan is the same everywhere.
 *
 * Of those about as fast as the fastest, the one that moves the fewest bytes wins, then the one that takes the least memory. */
#include "offload/plan/plan_choose_internal.h"

#include "core/base/error.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TIE           1.002 /* simulated seconds within this are equal */
#define BOUND_SLACK   0.98  /* a bound may be too high by what a candidate's other slots change */
#define WORK_WEIGHT   0.02  /* of all resources' work in the order in which candidates are judged */
#define OPS_JUDGED    3000000u
#define LEAST         64u /* candidates that are judged, however large their programs */
#define MOST          1000u
#define REFINED       12u /* of the fastest that are judged with other slots and chunks */
#define REFINED_AGAIN 4u  /* of what is then the fastest, once more, */
#define ROUNDS        3u  /* so many times */
#define CHUNK_SIZES   4u

struct node {
    struct st_intent intent;
    enum st_update_policy update;
    struct st_decisions decided;
    struct st_slots reserved;
    double bound, key, seconds; /* seconds: NaN until judged */
    uint64_t moved, memory;
    uint32_t index, base;
};

/* The workload cut in chunks of one size. */
struct base {
    struct st_plan *plan;
    struct st_judge judge;
    struct st_decisions start[2]; /* the smallest placement, by order of accumulation */
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
    uint64_t most; /* ops to simulate */
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

/* What the plan has decided, with this policy of updates. */
static strata_status add_node(struct search *s, const struct st_intent *intent, enum st_update_policy update)
{
    struct st_plan *plan = s->bases[0].plan;
    struct node n = {.intent = *intent,
                     .update = update,
                     .decided = plan->decided,
                     .reserved = plan->reserved,
                     .seconds = (double)NAN,
                     .index = s->count};
    double work;

    plan->policy.update = update;
    n.bound = st_plan_bound(plan, s->machine, &work);
    n.key = n.bound + WORK_WEIGHT * work;
    return push_node(s, &n);
}

static strata_status add_intent(void *ctx, const struct st_intent *intent)
{
    struct search *s = ctx;
    enum st_update_policy updates[ST_UPDATES_MAX];
    const uint32_t count = st_candidate_updates(updates, &s->bases[0].plan->asked);
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = add_node(s, intent, updates[i]);
    return st;
}

static int compare_decisions(const struct node *a, const struct node *b)
{
    const int update = (int)a->update - (int)b->update;

    return update != 0 ? update : memcmp(&a->decided, &b->decided, sizeof(a->decided));
}

static int compare_nodes(const void *left, const void *right)
{
    const struct node *a = left, *b = right;
    const int decisions = compare_decisions(a, b);

    if (a->key < b->key || a->key > b->key)
        return a->key < b->key ? -1 : 1;
    return decisions != 0 ? decisions : (int)a->index - (int)b->index;
}

/* In the order in which they are judged; of equal decisions the first intent remains. */
static void sort_nodes(struct search *s)
{
    uint32_t kept = 0;

    qsort(s->nodes, s->count, sizeof(*s->nodes), compare_nodes);
    for (uint32_t i = 0; i < s->count; i++)
        if (kept == 0 || compare_decisions(&s->nodes[kept - 1], &s->nodes[i]) != 0)
            s->nodes[kept++] = s->nodes[i];
    s->count = kept;
}

/* --- judging --- */

static uint64_t simulated(const struct search *s)
{
    uint64_t ops = 0;

    for (uint32_t i = 0; i < s->base_count; i++)
        ops += s->bases[i].judge.ops;
    return ops;
}

/* `part`: of two halves of what may be judged. */
static bool spent(const struct search *s, uint32_t part)
{
    return s->judged >= LEAST * part && (simulated(s) >= s->most / 2 * part || s->judged >= MOST / 2 * part);
}

/* The decisions are those of the plan of its base. */
static strata_status judge(struct search *s, struct node *n)
{
    struct base *base = &s->bases[n->base];
    strata_status st;

    if ((st = st_judge_seconds(&n->seconds, &base->judge)) != STRATA_OK)
        return st;
    note_sizes(n, base->plan);
    s->judged++;
    s->fastest = fmin(s->fastest, n->seconds);
    return STRATA_OK;
}

static void take_decisions(struct st_plan *plan, const struct node *n)
{
    plan->decided = n->decided;
    plan->reserved = n->reserved;
    plan->policy.update = n->update;
}

static strata_status judge_all(struct search *s)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < s->count && st == STRATA_OK && !spent(s, 1); i++) {
        if (s->nodes[i].bound * BOUND_SLACK > s->fastest)
            continue;
        take_decisions(s->bases[0].plan, &s->nodes[i]);
        st = judge(s, &s->nodes[i]);
    }
    return st;
}

static int compare_judged(const void *left, const void *right)
{
    const struct node *a = left, *b = right;
    const double x = isnan(a->seconds) ? HUGE_VAL : a->seconds, y = isnan(b->seconds) ? HUGE_VAL : b->seconds;

    return x < y ? -1 : x > y ? 1 : a->index < b->index ? -1 : a->index > b->index;
}

/* --- the fastest once more --- */

static bool judged_already(const struct search *s, const struct node *n)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (s->nodes[i].base == n->base && !isnan(s->nodes[i].seconds) && compare_decisions(&s->nodes[i], n) == 0)
            return true;
    return false;
}

/* An intent, if it fits a base, and gives what was not judged yet. */
static strata_status judge_variant(struct search *s, const struct node *of, const struct st_intent *intent, uint32_t base)
{
    struct node n = {.intent = *intent, .update = of->update, .bound = of->bound, .base = base, .index = s->count};
    struct st_plan *plan = s->bases[base].plan;
    strata_status st;

    if (spent(s, 2) || !s->bases[base].fits[intent->accumulation] ||
        !st_candidate_complete(plan, &s->bases[base].start[intent->accumulation], intent))
        return STRATA_OK;
    plan->policy.update = n.update;
    n.decided = plan->decided;
    n.reserved = plan->reserved;
    if (judged_already(s, &n))
        return STRATA_OK;
    if ((st = judge(s, &n)) == STRATA_OK)
        st = push_node(s, &n);
    return st;
}

/* With other slots, in chunks of other sizes. */
static strata_status judge_queues(struct search *s, const struct node *of)
{
    strata_status st = STRATA_OK;

    for (uint32_t v = 0; v < s->base_count * ST_SLOT_PROFILES && st == STRATA_OK; v++) {
        struct st_intent intent = of->intent;

        intent.slots = v % ST_SLOT_PROFILES;
        st = judge_variant(s, of, &intent, v / ST_SLOT_PROFILES);
    }
    return st;
}

/* With a little more or less of one amount. */
static strata_status judge_amounts(struct search *s, const struct node *of)
{
    static const int steps[] = {-2, -1, 1, 2};
    const uint32_t blocks = s->bases[0].plan->program.workload.block_count;
    strata_status st = STRATA_OK;

    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]) && st == STRATA_OK; i++) {
        struct st_intent streamed = of->intent, state = of->intent, kept = of->intent;

        streamed.streamed = of->decided.streamed + (uint32_t)steps[i]; /* wraps round below 0 */
        state.state_pages = of->decided.device_state_pages + (uint32_t)steps[i];
        kept.kept = of->decided.kept_blocks + (uint32_t)steps[i];
        if (s->bases[0].plan->policy.streamed == ST_STREAMED_AUTO && of->decided.streamed > 0 &&
            streamed.streamed <= ST_STREAMED_PARTS)
            st = judge_variant(s, of, &streamed, of->base);
        if (st == STRATA_OK && of->decided.device_state_pages > 0 &&
            state.state_pages < s->bases[0].plan->program.workload.page_count)
            st = judge_variant(s, of, &state, of->base);
        if (st == STRATA_OK && of->intent.kept != 0 && kept.kept <= blocks)
            st = judge_variant(s, of, &kept, of->base);
    }
    return st;
}

static strata_status refine(struct search *s, uint32_t most)
{
    struct node fastest[REFINED];
    uint32_t count = s->judged < most ? s->judged : most;
    strata_status st = STRATA_OK;

    qsort(s->nodes, s->count, sizeof(*s->nodes), compare_judged);
    memcpy(fastest, s->nodes, count * sizeof(*fastest));
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        if ((st = judge_queues(s, &fastest[i])) == STRATA_OK)
            st = judge_amounts(s, &fastest[i]);
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
    const enum st_accumulation orders[] = {ST_ACCUMULATE_VERTICAL, ST_ACCUMULATE_HORIZONTAL};
    strata_status st = STRATA_OK;

    for (size_t i = 0; i < 2 && st == STRATA_OK; i++)
        if (s->bases[0].fits[orders[i]])
            st = st_candidates_visit(&(struct st_candidates){s->bases[0].plan, &s->bases[0].start[orders[i]], add_intent, s});
    if (st != STRATA_OK)
        return st;
    sort_nodes(s);
    assert(s->count > 0);
    if ((st = judge_all(s)) == STRATA_OK && (st = open_others(s)) == STRATA_OK)
        st = refine(s, REFINED);
    for (uint32_t i = 0; i < ROUNDS && st == STRATA_OK; i++)
        st = refine(s, REFINED_AGAIN);
    return st;
}

/* What the first plan is told by who makes it. */
static void take_base(struct st_plan *to, const struct st_plan *from)
{
    to->fits = from->fits;
    memcpy(to->minimum, from->minimum, sizeof(to->minimum));
}

strata_status st_plan_choose(struct st_plan **plan, const struct st_machine *rates)
{
    struct search s = {.fastest = HUGE_VAL, .most = OPS_JUDGED};
    struct st_machine nominal;
    strata_status st;

    st_judge_nominal(&nominal, *plan);
    s.machine = rates != NULL ? rates : &nominal;
    if ((st = open_base(&s, *plan)) == STRATA_OK && (st = search(&s)) == STRATA_OK) {
        const struct node *best = best_of(&s);

        if (best->base > 0)
            take_base(s.bases[best->base].plan, *plan);
        *plan = s.bases[best->base].plan;
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

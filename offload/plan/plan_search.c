/* plan_search.c - candidates of the search: completed, bounded, evaluated. */
#include "offload/plan/plan_search.h"

#include "core/base/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WORK_WEIGHT 0.02   /* of all resources' work in the order in which candidates are evaluated */
#define LEAST       64u    /* candidates are evaluated, however large their programs, */
#define MOST        8000u  /* and no more than that */
#define REMEMBERED  65536u /* places for what intents mean: some 20 MB */

/* --- candidates --- */

static void note_sizes(struct st_node *n, const struct st_plan *plan)
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

static void forget_places(struct st_search *s)
{
    memset(s->places, 0, 2 * (size_t)s->room * sizeof(*s->places));
    s->placed = 0;
}

strata_status st_search_push(struct st_search *s, const struct st_node *n)
{
    if (s->count == s->room) {
        const uint32_t room = s->room == 0 ? 1024 : 2 * s->room;
        struct st_node *nodes = realloc(s->nodes, room * sizeof(*nodes));
        uint32_t *places;

        s->nodes = nodes != NULL ? nodes : s->nodes;
        if (nodes == NULL || (places = realloc(s->places, 2 * (size_t)room * sizeof(*places))) == NULL)
            return st_nomem(0);
        s->places = places;
        s->room = room;
        forget_places(s);
    }
    s->nodes[s->count++] = *n;
    return STRATA_OK;
}

/* Of the plan of its base, which has its decisions. */
void st_search_bound(struct st_node *n, const struct st_search *s)
{
    double work;

    n->bound = st_plan_bound(s->bases[n->intent.on[ST_AXIS_CHUNKS]].plan, s->machine, &work);
    n->key = n->bound + WORK_WEIGHT * work;
}

static bool complete(struct st_node *n, const struct st_search *s, const struct st_intent *intent)
{
    const struct st_base *base = &s->bases[intent->on[ST_AXIS_CHUNKS]];
    const uint32_t order = intent->on[ST_AXIS_ACCUMULATION];

    *n = (struct st_node){.intent = *intent, .seconds = (double)NAN};
    if (!base->fits[order] || !st_candidate_complete(base->plan, &base->start[order], intent))
        return false;
    n->decided = base->plan->decided;
    n->reserved = base->plan->reserved;
    st_search_bound(n, s);
    return true;
}

static uint64_t mix(uint64_t hash, uint32_t word)
{
    return (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
}

/* The place of an intent among those that are remembered, or the free one for it. */
static struct st_completed *place_of(const struct st_search *s, const struct st_intent *intent)
{
    uint64_t hash = 0;

    for (uint32_t a = 0; a < ST_AXIS_COUNT; a++)
        hash = mix(hash, intent->on[a]);
    for (uint32_t i = (uint32_t)(hash >> 32);; i++) {
        struct st_completed *c = &s->completed[i & (s->completed_room - 1)];

        if (!c->taken || memcmp(&c->node.intent, intent, sizeof(*intent)) == 0)
            return c;
    }
}

/* Half of the places stay free; without memory for more, nothing more is remembered. */
static bool may_remember(struct st_search *s)
{
    const uint32_t before = s->completed_room, room = before == 0 ? 4096 : 2 * before;
    struct st_completed *old = s->completed, *grown;

    if (2 * (s->completed_count + 1) <= before)
        return true;
    if (room > REMEMBERED || (grown = calloc(room, sizeof(*grown))) == NULL)
        return false;
    s->completed = grown;
    s->completed_room = room;
    for (uint32_t i = 0; i < before; i++)
        if (old[i].taken)
            *place_of(s, &old[i].node.intent) = old[i];
    free(old);
    return true;
}

bool st_search_complete(struct st_node *n, struct st_search *s, const struct st_intent *intent)
{
    const bool remember = may_remember(s);
    struct st_completed *c = s->completed_room > 0 ? place_of(s, intent) : NULL;
    bool fits;

    if (c != NULL && c->taken) {
        *n = c->node;
        fits = c->fits;
    } else {
        fits = complete(n, s, intent);
        if (remember) {
            *c = (struct st_completed){.node = *n, .taken = true, .fits = fits};
            s->completed_count++;
        }
    }
    n->index = s->count;
    return fits;
}

void st_node_decide(struct st_plan *plan, const struct st_node *n)
{
    plan->decided = n->decided;
    plan->reserved = n->reserved;
    plan->policy.update = (enum st_update_policy)n->intent.on[ST_AXIS_UPDATE];
}

int st_node_compare_decisions(const struct st_node *a, const struct st_node *b)
{
    const uint32_t *x = a->intent.on, *y = b->intent.on;

    if (x[ST_AXIS_UPDATE] != y[ST_AXIS_UPDATE])
        return x[ST_AXIS_UPDATE] < y[ST_AXIS_UPDATE] ? -1 : 1;
    if (x[ST_AXIS_CHUNKS] != y[ST_AXIS_CHUNKS])
        return x[ST_AXIS_CHUNKS] < y[ST_AXIS_CHUNKS] ? -1 : 1;
    return memcmp(&a->decided, &b->decided, sizeof(a->decided));
}

/* The values of an axis. */
uint32_t st_search_values(uint32_t values[ST_LEVELS_MAX], const struct st_search *s, const struct st_intent *intent,
                          enum st_axis axis)
{
    const struct st_base *base = &s->bases[intent->on[ST_AXIS_CHUNKS]];
    const uint32_t lifted = base->lifted[intent->on[ST_AXIS_ACCUMULATION]];
    uint32_t count = st_candidate_levels(values, base->plan, intent, axis);

    if (axis == ST_AXIS_STATE && lifted > 0 && count < ST_LEVELS_MAX)
        values[count++] = lifted;
    if (axis == ST_AXIS_CHUNKS)
        for (count = 0; count < s->base_count; count++)
            values[count] = count;
    return count;
}

/* Of one axis, and those near the one that a node has, but not that itself. */
void st_search_values_beside(struct st_values *v, const struct st_search *s, const struct st_node *from, enum st_axis axis)
{
    struct st_plan *plan = s->bases[from->intent.on[ST_AXIS_CHUNKS]].plan;
    uint32_t count = st_search_values(v->list, s, &from->intent, axis);

    plan->decided = from->decided;
    count += st_candidate_between(v->list + count, plan, &from->intent, axis);
    v->count = 0;
    for (uint32_t i = 0; i < count; i++)
        if (v->list[i] != from->intent.on[axis])
            v->list[v->count++] = v->list[i];
}

/* --- evaluating --- */

uint64_t st_search_ops(const struct st_search *s)
{
    uint64_t ops = 0;

    for (uint32_t i = 0; i < s->base_count; i++)
        ops += s->bases[i].evaluator.ops;
    return ops;
}

bool st_search_spent(const struct st_search *s)
{
    return s->evaluated >= LEAST &&
           (st_search_ops(s) >= s->ops_most / ST_SEARCH_PARTS * s->part || s->evaluated >= MOST / ST_SEARCH_PARTS * s->part);
}

bool st_search_hopeless(const struct st_node *n, double seconds)
{
    return n->bound * ST_BOUND_SLACK > seconds;
}

strata_status st_search_evaluate(struct st_search *s, struct st_node *n, double seconds)
{
    const double limit = seconds * ST_TIE;
    struct st_base *base = &s->bases[n->intent.on[ST_AXIS_CHUNKS]];
    strata_status st;

    st_node_decide(base->plan, n);
    if ((st = st_evaluator_seconds(&n->seconds, &base->evaluator, limit)) != STRATA_OK)
        return st;
    n->slow = n->seconds > limit;
    note_sizes(n, base->plan);
    s->evaluated++;
    s->fastest = fmin(s->fastest, n->seconds);
    return STRATA_OK;
}

/* The place of a node with these decisions, or the free one for it. */
static uint32_t *place_of_node(const struct st_search *s, const struct st_node *n)
{
    uint32_t words[sizeof(n->decided) / sizeof(uint32_t)];
    uint64_t hash = mix(mix(0, n->intent.on[ST_AXIS_UPDATE]), n->intent.on[ST_AXIS_CHUNKS]);

    memcpy(words, &n->decided, sizeof(words));
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        hash = mix(hash, words[i]);
    for (uint32_t i = (uint32_t)(hash >> 32);; i++) {
        uint32_t *place = &s->places[i & (2 * s->room - 1)];

        if (*place == 0 || st_node_compare_decisions(&s->nodes[*place - 1], n) == 0)
            return place;
    }
}

struct st_node *st_search_known(struct st_search *s, const struct st_node *n)
{
    uint32_t place;

    for (; s->placed < s->count; s->placed++)
        *place_of_node(s, &s->nodes[s->placed]) = s->placed + 1;
    place = *place_of_node(s, n);
    return place != 0 ? &s->nodes[place - 1] : NULL;
}

strata_status st_search_meet(struct st_search *s, struct st_node *n, double seconds)
{
    struct st_node *known;
    strata_status st;

    if (st_search_hopeless(n, seconds))
        return STRATA_OK;
    known = st_search_known(s, n);
    if (known != NULL && (!known->slow || known->seconds > seconds * ST_TIE)) {
        *n = *known;
        return STRATA_OK;
    }
    if (st_search_spent(s))
        return STRATA_OK;
    n->index = known != NULL ? known->index : s->count;
    if ((st = st_search_evaluate(s, n, seconds)) != STRATA_OK)
        return st;
    if (known != NULL)
        *known = *n;
    return known != NULL ? STRATA_OK : st_search_push(s, n);
}

/* --- orders --- */

int st_node_compare_keys(const void *left, const void *right)
{
    const struct st_node *a = left, *b = right;
    const int decisions = st_node_compare_decisions(a, b);

    if (a->key < b->key || a->key > b->key)
        return a->key < b->key ? -1 : 1;
    return decisions != 0 ? decisions : a->index < b->index ? -1 : a->index > b->index;
}

static int compare_seconds(const void *left, const void *right)
{
    const struct st_node *a = left, *b = right;

    if (a->slow != b->slow)
        return a->slow ? 1 : -1;
    return a->seconds < b->seconds ? -1 : a->seconds > b->seconds ? 1 : a->index < b->index ? -1 : a->index > b->index;
}

void st_search_sort(struct st_search *s)
{
    qsort(s->nodes, s->count, sizeof(*s->nodes), compare_seconds);
    forget_places(s);
}

static bool same_kind(const struct st_node *a, const struct st_node *b)
{
    return memcmp(a->intent.on, b->intent.on, ST_KIND_AXES * sizeof(uint32_t)) == 0 &&
           (a->decided.streamed > 0) == (b->decided.streamed > 0);
}

uint32_t st_search_kinds(struct st_node fastest[ST_KINDS], struct st_search *s)
{
    uint32_t count = 0;

    st_search_sort(s);
    for (uint32_t i = 0; i < s->count && count < ST_KINDS && !s->nodes[i].slow; i++) {
        bool is_new = true;

        for (uint32_t k = 0; k < count; k++)
            is_new = is_new && !same_kind(&fastest[k], &s->nodes[i]);
        if (is_new)
            fastest[count++] = s->nodes[i];
    }
    return count;
}

/* plan_search_first.c - the first candidates that are evaluated: of each kind the one with the lowest bound, and from there along
 * one axis after the other to lower bounds. */
#include "offload/plan/plan_search.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define REFINED 2u    /* rounds */
#define FEW_OPS 3000u /* no program is long that has no more */

/* How many levels of an axis are among the first: each, the ends and two between them, the ends, the first. */
enum first { FIRST_EVERY, FIRST_FOUR, FIRST_ENDS, FIRST_ONE };
static const enum first firsts[ST_AXIS_COUNT] = {
    [ST_AXIS_ACCUMULATION] = FIRST_EVERY, [ST_AXIS_TIER] = FIRST_EVERY,     [ST_AXIS_KEPT] = FIRST_ENDS,
    [ST_AXIS_STATE] = FIRST_FOUR,         [ST_AXIS_STREAMED] = FIRST_EVERY, [ST_AXIS_ACCUM] = FIRST_ENDS,
    [ST_AXIS_RESIDENT] = FIRST_ENDS,      [ST_AXIS_CACHED] = FIRST_ONE,     [ST_AXIS_CACHE] = FIRST_ONE,
    [ST_AXIS_ORDER] = FIRST_ONE,          [ST_AXIS_SLOTS] = FIRST_ONE,      [ST_AXIS_CHUNKS] = FIRST_EVERY,
    [ST_AXIS_GRADS] = FIRST_ENDS,         [ST_AXIS_MEMORY] = FIRST_ONE,     [ST_AXIS_EARLY] = FIRST_FOUR,
};

static bool is_first(enum first first, uint32_t i, uint32_t count)
{
    return i == 0 || first == FIRST_EVERY || (first != FIRST_ONE && i == count - 1) ||
           (first == FIRST_FOUR && (i == count / 3 || i == 2 * count / 3));
}

static bool fits_as(const struct st_base *base, const struct st_base *other)
{
    return base->fits[0] >= other->fits[0] && base->fits[1] >= other->fits[1];
}

/* Where programs are long, the first ones are cut in the chunk size that gives the shortest; the search comes to the others last.
 */
static bool is_first_base(const struct st_search *s, uint32_t index)
{
    const struct st_base *base = &s->bases[index], *whole = &s->bases[0];

    if (base->ops <= FEW_OPS)
        return true;
    for (uint32_t i = 0; i < s->base_count; i++)
        if (s->bases[i].ops < base->ops && fits_as(&s->bases[i], whole))
            return false;
    return fits_as(base, whole);
}

/* Placements are the same whatever the policy of updates. */
static strata_status add_each_update(struct st_search *s, struct st_intent *intent)
{
    const struct st_base *base = &s->bases[intent->on[ST_AXIS_CHUNKS]];
    uint32_t updates[ST_LEVELS_MAX];
    const uint32_t count = st_candidate_levels(updates, base->plan, intent, ST_AXIS_UPDATE);
    strata_status st = STRATA_OK;
    struct st_node n;

    intent->on[ST_AXIS_UPDATE] = updates[0];
    if (!st_search_complete(&n, s, intent))
        return STRATA_OK;
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++) {
        n.intent.on[ST_AXIS_UPDATE] = updates[i];
        st_node_decide(base->plan, &n);
        st_search_bound(&n, s);
        st = st_search_push(s, &n);
    }
    return st;
}

/* The intents that have the values given so far, and any of the first ones on the axes from this one on. */
static strata_status add_first(struct st_search *s, struct st_intent *intent, uint32_t axis)
{
    uint32_t levels[ST_LEVELS_MAX], count;
    strata_status st = STRATA_OK;

    if (axis == ST_AXIS_UPDATE)
        return add_first(s, intent, axis + 1);
    if (axis == ST_AXIS_COUNT)
        return add_each_update(s, intent);
    count = st_search_values(levels, s, intent, (enum st_axis)axis);
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++) {
        intent->on[axis] = levels[i];
        if (axis == ST_AXIS_CHUNKS ? is_first_base(s, i) : is_first(firsts[axis], i, count))
            st = add_first(s, intent, axis + 1);
    }
    return st;
}

/* By their bounds; of equal decisions the first intent remains. */
static void sort_nodes(struct st_search *s)
{
    uint32_t kept = 0;

    qsort(s->nodes, s->count, sizeof(*s->nodes), st_node_compare_keys);
    for (uint32_t i = 0; i < s->count; i++)
        if (kept == 0 || st_node_compare_decisions(&s->nodes[kept - 1], &s->nodes[i]) != 0)
            s->nodes[kept++] = s->nodes[i];
    s->count = kept;
}

/* Candidates of one kind differ in what can be changed one axis at a time. */
static bool alike(const struct st_node *a, const struct st_node *b)
{
    static const enum st_axis same[] = {ST_AXIS_UPDATE,   ST_AXIS_ACCUMULATION, ST_AXIS_TIER,
                                        ST_AXIS_STREAMED, ST_AXIS_EARLY,        ST_AXIS_CHUNKS};

    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++)
        if (a->intent.on[same[i]] != b->intent.on[same[i]])
            return false;
    return (a->intent.on[ST_AXIS_STATE] > 0) == (b->intent.on[ST_AXIS_STATE] > 0) &&
           (a->intent.on[ST_AXIS_RESIDENT] > 0) == (b->intent.on[ST_AXIS_RESIDENT] > 0) &&
           (a->decided.kept_blocks > 0) == (b->decided.kept_blocks > 0);
}

/* To the lowest bound, one axis at a time: nothing is simulated. */
static void refine(struct st_search *s, struct st_node *n)
{
    static const enum st_axis axes[] = {ST_AXIS_KEPT, ST_AXIS_STATE, ST_AXIS_RESIDENT, ST_AXIS_GRADS, ST_AXIS_ORDER};

    for (uint32_t round = 0; round < REFINED; round++)
        for (size_t i = 0; i < sizeof(axes) / sizeof(axes[0]); i++) {
            struct st_intent intent = n->intent;
            uint32_t values[ST_LEVELS_MAX];
            const uint32_t count = st_search_values(values, s, &intent, axes[i]);

            for (uint32_t k = 0; k < count; k++) {
                struct st_node other;

                intent.on[axes[i]] = values[k];
                if (st_search_complete(&other, s, &intent) && other.key < n->key)
                    *n = other;
            }
        }
}

/* Keeps the first of each kind. */
static void keep_first(struct st_search *s)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < s->count; i++) {
        bool is_new = true;

        for (uint32_t k = 0; k < kept; k++)
            is_new = is_new && !alike(&s->nodes[k], &s->nodes[i]);
        if (is_new)
            s->nodes[kept++] = s->nodes[i];
    }
    s->count = kept;
}

/* Where so many long programs cannot all be simulated, the first of either order of accumulation come first: bounds of the other
 * may all be a little lower, and none of it would be seen. */
static void mix_orders(struct st_search *s)
{
    uint64_t ops = 0;
    uint32_t i = 1;

    for (uint32_t k = 0; k < s->count; k++)
        ops += s->bases[s->nodes[k].intent.on[ST_AXIS_CHUNKS]].ops;
    while (i < s->count && s->nodes[i].intent.on[ST_AXIS_ACCUMULATION] == s->nodes[0].intent.on[ST_AXIS_ACCUMULATION])
        i++;
    if (i < s->count && ops > s->ops_most / ST_SEARCH_PARTS) {
        const struct st_node other = s->nodes[i];

        memmove(&s->nodes[2], &s->nodes[1], (i - 1) * sizeof(other));
        s->nodes[1] = other;
    }
}

/* Judges what they lead to, each once, and drops the others. */
static strata_status evaluate_first(struct st_search *s)
{
    uint32_t kept = 0;
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < s->count && st == STRATA_OK && !st_search_spent(s); i++) {
        struct st_node n = s->nodes[i];
        bool is_new = true;

        refine(s, &n);
        for (uint32_t k = 0; k < kept; k++)
            is_new = is_new && st_node_compare_decisions(&s->nodes[k], &n) != 0;
        if (!is_new)
            continue;
        n.index = kept;
        st = st_search_evaluate(s, &n, HUGE_VAL);
        s->nodes[kept++] = n;
    }
    s->count = kept;
    return st;
}

strata_status st_search_first(struct st_search *s)
{
    struct st_intent intent = {0};
    strata_status st = add_first(s, &intent, 0);

    if (st != STRATA_OK)
        return st;
    sort_nodes(s);
    assert(s->count > 0);
    keep_first(s);
    mix_orders(s);
    return evaluate_first(s);
}

/* plan_search_leap.c - from evaluated candidates to those that differ on two axes.
 *
 * A descent ends where no axis alone gains anything: the state of one more page does not fit beside deep queues, say, and shallow
 * queues alone gain nothing.  The pairs are too many to evaluate, but to complete and bound one takes microseconds; so all are, and
 * the most promising are evaluated. */
#include "offload/plan/plan_search.h"

#include "core/base/error.h"

#include <stdlib.h>

#define ROUNDS 6u   /* of leaps and descents from one start */
#define LEAPS  256u /* evaluated in a round */

struct pairs {
    struct st_node *nodes;
    uint32_t count, room;
};

static strata_status push_pair(struct pairs *pairs, const struct st_node *n)
{
    if (pairs->count == pairs->room) {
        const uint32_t room = pairs->room == 0 ? 1024 : 2 * pairs->room;
        struct st_node *grown = realloc(pairs->nodes, room * sizeof(*grown));

        if (grown == NULL)
            return st_nomem(room * sizeof(*grown));
        pairs->nodes = grown;
        pairs->room = room;
    }
    pairs->nodes[pairs->count] = *n;
    pairs->nodes[pairs->count].index = pairs->count;
    pairs->count++;
    return STRATA_OK;
}

/* Those that may be faster than all that is evaluated. */
static strata_status find_pairs(struct pairs *pairs, struct st_search *s, const struct st_node *from, enum st_axis a,
                                const struct st_values *as, enum st_axis b, const struct st_values *bs)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < as->count; i++)
        for (uint32_t k = 0; k < bs->count && st == STRATA_OK; k++) {
            struct st_intent intent = from->intent;
            struct st_node n;

            intent.on[a] = as->list[i];
            intent.on[b] = bs->list[k];
            if (st_search_complete(&n, s, &intent) && !st_search_hopeless(&n, s->fastest))
                st = push_pair(pairs, &n);
        }
    return st;
}

/* *best: the fastest of them and it. */
static strata_status evaluate_pairs(struct st_search *s, struct st_node *best, struct pairs *pairs)
{
    const uint32_t first = s->evaluated;
    strata_status st = STRATA_OK;

    if (pairs->count > 0)
        qsort(pairs->nodes, pairs->count, sizeof(*pairs->nodes), st_node_compare_keys);
    for (uint32_t i = 0; i < pairs->count && s->evaluated - first < LEAPS && st == STRATA_OK; i++) {
        struct st_node n = pairs->nodes[i];

        st = st_search_meet(s, &n, s->fastest);
        if (st == STRATA_OK && n.seconds < best->seconds)
            *best = n;
    }
    return st;
}

static strata_status leap(struct st_search *s, struct st_node *best, bool kinds)
{
    struct st_values values[ST_AXIS_COUNT];
    struct pairs pairs = {0};
    strata_status st = STRATA_OK;

    for (uint32_t a = kinds ? 0 : ST_KIND_AXES; a < ST_AXIS_COUNT && st == STRATA_OK; a++) {
        values[a].count = 0;
        if (a != ST_AXIS_CHUNKS)
            st_search_values_beside(&values[a], s, best, (enum st_axis)a);
        for (uint32_t b = kinds ? 0 : ST_KIND_AXES; b < a && st == STRATA_OK; b++)
            st = find_pairs(&pairs, s, best, (enum st_axis)b, &values[b], (enum st_axis)a, &values[a]);
    }
    if (st == STRATA_OK)
        st = evaluate_pairs(s, best, &pairs);
    free(pairs.nodes);
    return st;
}

static strata_status leap_from(struct st_search *s, struct st_node *best, bool kinds)
{
    for (uint32_t round = 0; round < ROUNDS && !st_search_spent(s); round++) {
        struct st_node *const from = st_search_known(s, best);
        const double before = best->seconds;
        strata_status st;

        if (from->leapt)
            return STRATA_OK;
        from->leapt = kinds;
        if ((st = leap(s, best, kinds)) != STRATA_OK)
            return st;
        if (best->seconds >= before * ST_WORTH)
            return STRATA_OK;
        if ((st = st_search_descend_from(s, best, kinds)) != STRATA_OK)
            return st;
    }
    return STRATA_OK;
}

/* From the fastest of all to any kind, from the fastest of other kinds to their own. */
strata_status st_search_leap(struct st_search *s)
{
    struct st_node starts[ST_KINDS];
    const uint32_t count = st_search_kinds(starts, s);
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = leap_from(s, &starts[i], i == 0);
    return st;
}

strata_status st_search_leap_last(struct st_search *s)
{
    struct st_node best;

    st_search_sort(s);
    best = s->nodes[0];
    return leap_from(s, &best, true);
}

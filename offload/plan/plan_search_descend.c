/* plan_search_descend.c - from judged candidates to faster ones nearby. */
#include "offload/plan/plan_search.h"

#include <stdlib.h>
#include <string.h>

#define STARTS 256u /* of the descent, at most */
#define RECUT  12u  /* of the fastest, in chunks of other sizes */

struct st_node *st_search_known(const struct st_search *s, const struct st_node *n)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (st_node_compare_decisions(&s->nodes[i], n) == 0)
            return &s->nodes[i];
    return NULL;
}

/* Judges what an intent means, unless that is known or hopeless.  *best: the faster of the two. */
static strata_status try_intent(struct st_search *s, struct st_node *best, const struct st_intent *intent)
{
    const struct st_node *known;
    struct st_node n;
    strata_status st;

    if (!st_search_complete(&n, s, intent) || st_search_hopeless(&n, best->seconds))
        return STRATA_OK;
    if ((known = st_search_known(s, &n)) != NULL) {
        if (known->seconds < best->seconds)
            *best = *known;
        return STRATA_OK;
    }
    if (st_search_spent(s))
        return STRATA_OK;
    if ((st = st_search_judge(s, &n)) == STRATA_OK)
        st = st_search_push(s, &n);
    if (st == STRATA_OK && n.seconds < best->seconds)
        *best = n;
    return st;
}

static strata_status try_values(struct st_search *s, struct st_node *best, const struct st_intent *at, enum st_axis axis,
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

static strata_status descend_axis(struct st_search *s, struct st_node *best, enum st_axis axis)
{
    const struct st_intent at = best->intent;
    struct st_intent near;
    uint32_t values[ST_RUNGS_MAX], count = st_search_values(values, s, &at, axis);
    strata_status st;

    st = try_values(s, best, &at, axis, values, count);
    if (st != STRATA_OK)
        return st;
    s->bases[best->intent.on[ST_AXIS_CHUNKS]].plan->decided = best->decided;
    near = best->intent;
    count = st_candidate_between(values, s->bases[near.on[ST_AXIS_CHUNKS]].plan, &near, axis);
    return try_values(s, best, &near, axis, values, count);
}

strata_status st_search_descend_from(struct st_search *s, struct st_node *best, bool kinds)
{
    static const enum st_axis order[] = {ST_AXIS_RESIDENT, ST_AXIS_ORDER,    ST_AXIS_SLOTS, ST_AXIS_ACCUM,  ST_AXIS_KEPT,
                                         ST_AXIS_STATE,    ST_AXIS_STREAMED, ST_AXIS_GRADS, ST_AXIS_CACHED, ST_AXIS_CACHE,
                                         ST_AXIS_MEMORY,   ST_AXIS_TIER,     ST_AXIS_UPDATE};
    const size_t axes = sizeof(order) / sizeof(order[0]) - (kinds ? 0 : 2);
    struct st_node *end;
    double before;
    strata_status st = STRATA_OK;

    do {
        before = best->seconds;
        for (size_t i = 0; i < axes && st == STRATA_OK; i++)
            st = descend_axis(s, best, order[i]);
        end = st_search_known(s, best);
    } while (st == STRATA_OK && best->seconds < before * ST_WORTH && !end->settled && !st_search_spent(s));
    end->settled = !kinds;
    return st;
}

/* From the fastest of each policy, order and tier first, then from the fastest of the other kinds. */
strata_status st_search_descend(struct st_search *s)
{
    struct st_node starts[STARTS];
    const uint32_t count = s->count < STARTS ? s->count : STARTS;
    strata_status st = STRATA_OK;

    qsort(s->nodes, s->count, sizeof(*s->nodes), st_node_compare_seconds);
    memcpy(starts, s->nodes, count * sizeof(*starts));
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < count && st == STRATA_OK && !st_search_spent(s); i++) {
            bool first = true;

            for (uint32_t k = 0; k < i; k++)
                first = first && memcmp(starts[k].intent.on, starts[i].intent.on, ST_KIND_AXES * sizeof(uint32_t)) != 0;
            if (first == (pass == 0))
                st = st_search_descend_from(s, &starts[i], false);
        }
    return st;
}

/* The fastest in chunks of other sizes, with other slots, since these are of a chunk's size; and down from there.  Late, since
 * programs of small chunks are long. */
strata_status st_search_recut(struct st_search *s)
{
    struct st_node fastest[RECUT];
    const uint32_t count = s->count < RECUT ? s->count : RECUT;
    strata_status st = STRATA_OK;

    qsort(s->nodes, s->count, sizeof(*s->nodes), st_node_compare_seconds);
    memcpy(fastest, s->nodes, count * sizeof(*fastest));
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t v = ST_SLOT_PROFILES; v < s->base_count * ST_SLOT_PROFILES && st == STRATA_OK; v++) {
            struct st_intent intent = fastest[i].intent;

            intent.on[ST_AXIS_CHUNKS] = v / ST_SLOT_PROFILES;
            intent.on[ST_AXIS_SLOTS] = v % ST_SLOT_PROFILES;
            intent.on[ST_AXIS_CACHED] = ST_CACHED_ALL; /* counts chunks of one size */
            st = try_intent(s, &fastest[i], &intent);
        }
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = st_search_descend_from(s, &fastest[i], true);
    return st;
}

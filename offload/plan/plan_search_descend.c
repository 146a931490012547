/* plan_search_descend.c - from judged candidates to faster ones nearby. */
#include "offload/plan/plan_search.h"

#include <stdlib.h>
#include <string.h>

#define STARTS 256u   /* of the descent, at most */
#define RECUT  12u    /* of the fastest, in chunks of other sizes */
#define WORTH  0.9995 /* of a round of the descent, or it was the last */

static struct st_node *judged_already(const struct st_search *s, const struct st_node *n)
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

    if (!st_search_complete(&n, s, intent) || st_search_hopeless(&n, best))
        return STRATA_OK;
    if ((known = judged_already(s, &n)) != NULL) {
        if (known->seconds < best->seconds)
            *best = *known;
        return STRATA_OK;
    }
    if (st_search_spent(s, 1))
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

/* Two axes at once where one alone rarely gains. */
static strata_status descend_pairs(struct st_search *s, struct st_node *best)
{
    static const enum st_axis pairs[][2] = {{ST_AXIS_ACCUMULATION, ST_AXIS_ACCUM}, {ST_AXIS_TIER, ST_AXIS_KEPT}};
    strata_status st = STRATA_OK;

    for (size_t p = 0; p < sizeof(pairs) / sizeof(pairs[0]); p++) {
        struct st_intent at = best->intent;
        uint32_t values[ST_RUNGS_MAX], count = st_search_values(values, s, &at, pairs[p][0]);

        for (uint32_t i = 0; i < count && st == STRATA_OK; i++) {
            uint32_t others[ST_RUNGS_MAX], other_count;

            if (values[i] == best->intent.on[pairs[p][0]])
                continue;
            at.on[pairs[p][0]] = values[i];
            other_count = st_search_values(others, s, &at, pairs[p][1]);
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
static strata_status descend(struct st_search *s, const struct st_node *from, bool kinds)
{
    static const enum st_axis order[] = {ST_AXIS_RESIDENT, ST_AXIS_ORDER,    ST_AXIS_SLOTS, ST_AXIS_ACCUM,  ST_AXIS_KEPT,
                                         ST_AXIS_STATE,    ST_AXIS_STREAMED, ST_AXIS_GRADS, ST_AXIS_CACHED, ST_AXIS_CACHE,
                                         ST_AXIS_MEMORY,   ST_AXIS_TIER,     ST_AXIS_UPDATE};
    const size_t axes = sizeof(order) / sizeof(order[0]) - (kinds ? 0 : 2);
    struct st_node best = *from, *end;
    double before;
    strata_status st = STRATA_OK;

    do {
        before = best.seconds;
        for (size_t i = 0; i < axes && st == STRATA_OK; i++)
            st = descend_axis(s, &best, order[i]);
        if (st == STRATA_OK && kinds)
            st = descend_pairs(s, &best);
        end = judged_already(s, &best);
    } while (st == STRATA_OK && best.seconds < before * WORTH && !end->settled && !st_search_spent(s, 1));
    end->settled = !kinds;
    return st;
}

static int compare_judged(const void *left, const void *right)
{
    const struct st_node *a = left, *b = right;

    return a->seconds < b->seconds ? -1 : a->seconds > b->seconds ? 1 : a->index < b->index ? -1 : a->index > b->index;
}

/* From the fastest of each policy, order and tier first, then from the fastest of the other kinds. */
strata_status st_search_descend(struct st_search *s)
{
    struct st_node starts[STARTS];
    const uint32_t count = s->count < STARTS ? s->count : STARTS;
    strata_status st = STRATA_OK;

    qsort(s->nodes, s->count, sizeof(*s->nodes), compare_judged);
    memcpy(starts, s->nodes, count * sizeof(*starts));
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < count && st == STRATA_OK && !st_search_spent(s, 2); i++) {
            bool first = true;

            for (uint32_t k = 0; k < i; k++)
                first = first && memcmp(starts[k].intent.on, starts[i].intent.on, ST_KIND_AXES * sizeof(uint32_t)) != 0;
            if (first == (pass == 0))
                st = descend(s, &starts[i], false);
        }
    return st;
}

/* The fastest in chunks of other sizes, with other slots, since these are of a chunk's size; and down from there.  Last, since
 * programs of small chunks are long. */
strata_status st_search_recut(struct st_search *s)
{
    struct st_node fastest[RECUT];
    const uint32_t count = s->count < RECUT ? s->count : RECUT;
    strata_status st = STRATA_OK;

    qsort(s->nodes, s->count, sizeof(*s->nodes), compare_judged);
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
        st = descend(s, &fastest[i], true);
    return st;
}

/* plan_search_descend.c - from evaluated candidates to faster ones nearby. */
#include "offload/plan/plan_search.h"

#include <string.h>

#define STARTS 256u /* of the descent, at most */
#define PASSES 3u
#define RECUT  12u /* of the fastest, in chunks of other sizes */

/* *best: the faster of it and what an intent means. */
static strata_status try_intent(struct st_search *s, struct st_node *best, const struct st_intent *intent)
{
    struct st_node n;
    strata_status st;

    if (!st_search_complete(&n, s, intent))
        return STRATA_OK;
    st = st_search_meet(s, &n, best->seconds);
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
    uint32_t values[ST_LEVELS_MAX], count = st_search_values(values, s, &at, axis);
    strata_status st;

    st = try_values(s, best, &at, axis, values, count);
    if (st != STRATA_OK)
        return st;
    s->bases[best->intent.on[ST_AXIS_CHUNKS]].plan->decided = best->decided;
    near = best->intent;
    count = st_candidate_between(values, s->bases[near.on[ST_AXIS_CHUNKS]].plan, &near, axis);
    return try_values(s, best, &near, axis, values, count);
}

/* Policy and tier of activations are the last. */
static const enum st_axis axes[] = {ST_AXIS_RESIDENT, ST_AXIS_ORDER,    ST_AXIS_SLOTS, ST_AXIS_ACCUM, ST_AXIS_KEPT,
                                    ST_AXIS_STATE,    ST_AXIS_STREAMED, ST_AXIS_EARLY, ST_AXIS_GRADS, ST_AXIS_CACHED,
                                    ST_AXIS_CACHE,    ST_AXIS_MEMORY,   ST_AXIS_TIER,  ST_AXIS_UPDATE};
#define AXES        (sizeof(axes) / sizeof(axes[0]))
#define AXES_INSIDE (AXES - 2)

static strata_status descend_axes(struct st_search *s, struct st_node *best, size_t count, enum st_axis held)
{
    strata_status st = STRATA_OK;

    for (size_t i = 0; i < count && st == STRATA_OK; i++)
        if (axes[i] != held)
            st = descend_axis(s, best, axes[i]);
    return st;
}

strata_status st_search_descend_from(struct st_search *s, struct st_node *best, bool kinds)
{
    struct st_node *end;
    double before;
    strata_status st;

    do {
        before = best->seconds;
        st = descend_axes(s, best, kinds ? AXES : AXES_INSIDE, ST_AXIS_COUNT);
        end = st_search_known(s, best);
    } while (st == STRATA_OK && best->seconds < before * ST_WORTH && !end->settled && !st_search_spent(s));
    end->settled = !kinds;
    return st;
}

strata_status st_search_descend_beside(struct st_search *s, struct st_node *best, enum st_axis held)
{
    double before;
    strata_status st;

    do {
        before = best->seconds;
        st = descend_axes(s, best, AXES_INSIDE, held);
    } while (st == STRATA_OK && best->seconds < before * ST_WORTH && !st_search_spent(s));
    return st;
}

/* Alike in the axes of their kind and, with `share`, in the share of updates that streams. */
static bool alike(const struct st_node *a, const struct st_node *b, bool share)
{
    return memcmp(a->intent.on, b->intent.on, ST_KIND_AXES * sizeof(uint32_t)) == 0 &&
           (!share || a->intent.on[ST_AXIS_STREAMED] == b->intent.on[ST_AXIS_STREAMED]);
}

/* The fastest start of each kind, of those that are left the fastest of each kind and share of updates that streams, the others:
 * what a descent does not change so well. */
static uint32_t pass_of(const struct st_node *starts, uint32_t index)
{
    bool kind = true, share = true;

    for (uint32_t k = 0; k < index; k++) {
        kind = kind && !alike(&starts[k], &starts[index], false);
        share = share && !alike(&starts[k], &starts[index], true);
    }
    return kind ? 0 : share ? 1 : 2;
}

/* Where no state lies on the device, first with none there: else the first gain that is met brings some there, and a large share
 * that streams, which may gain more, has no room any more. */
static strata_status descend_start(struct st_search *s, struct st_node *best)
{
    strata_status st = STRATA_OK;

    if (best->intent.on[ST_AXIS_STATE] == 0)
        st = st_search_descend_beside(s, best, ST_AXIS_STATE);
    return st == STRATA_OK ? st_search_descend_from(s, best, false) : st;
}

strata_status st_search_descend(struct st_search *s)
{
    struct st_node starts[STARTS];
    uint32_t passes[STARTS];
    const uint32_t count = s->count < STARTS ? s->count : STARTS;
    strata_status st = STRATA_OK;

    st_search_sort(s);
    memcpy(starts, s->nodes, count * sizeof(*starts));
    for (uint32_t i = 0; i < count; i++)
        passes[i] = pass_of(starts, i);
    for (uint32_t pass = 0; pass < PASSES; pass++)
        for (uint32_t i = 0; i < count && st == STRATA_OK && !st_search_spent(s); i++)
            if (passes[i] == pass)
                st = descend_start(s, &starts[i]);
    return st;
}

/* The fastest in chunks of other sizes, with other slots, since these are of a chunk's size; and down from there.  Late, since
 * programs of small chunks are long. */
strata_status st_search_recut(struct st_search *s)
{
    struct st_node fastest[RECUT];
    uint32_t count = 0;
    strata_status st = STRATA_OK;

    st_search_sort(s);
    for (; count < RECUT && count < s->count && !s->nodes[count].slow; count++)
        fastest[count] = s->nodes[count];
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

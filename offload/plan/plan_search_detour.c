/* plan_search_detour.c - from evaluated candidates to those that differ on several axes.
 *
 * A leap changes two axes, and what it meets has to be faster at once.  A detour gives one axis another value, however slow
 * that is, and descends along the others with that value held; then it takes the fastest that was met. */
#include "offload/plan/plan_search.h"

#include <math.h>

#define ROUNDS 4u /* of detours and descents from one start */
#define FEW    4u /* of ST_SEARCH_PARTS: where so much is evaluated, the other kinds are left */

/* *best: the fastest that is met by way of this value of an axis, and it. */
static strata_status detour_by(struct st_search *s, struct st_node *best, const struct st_intent *intent, enum st_axis axis)
{
    struct st_node n;
    strata_status st;

    if (!st_search_complete(&n, s, intent))
        return STRATA_OK;
    if ((st = st_search_meet(s, &n, s->fastest)) != STRATA_OK || isnan(n.seconds))
        return st;
    st = st_search_descend_beside(s, &n, axis);
    if (n.seconds < best->seconds)
        *best = n;
    return st;
}

static strata_status detour(struct st_search *s, struct st_node *best)
{
    const struct st_node from = *best;
    strata_status st = STRATA_OK;

    for (uint32_t a = 0; a < ST_AXIS_COUNT; a++) {
        const enum st_axis axis = (enum st_axis)a;
        struct st_values values;

        if (axis == ST_AXIS_CHUNKS)
            continue;
        st_search_values_beside(&values, s, &from, axis);
        for (uint32_t i = 0; i < values.count && st == STRATA_OK && !st_search_spent(s); i++) {
            struct st_intent intent = from.intent;

            intent.on[axis] = values.list[i];
            st = detour_by(s, best, &intent, axis);
        }
    }
    return st;
}

static strata_status detour_from(struct st_search *s, struct st_node *best)
{
    strata_status st = STRATA_OK;

    for (uint32_t round = 0; round < ROUNDS && st == STRATA_OK && !st_search_spent(s); round++) {
        const double before = best->seconds;

        if ((st = detour(s, best)) != STRATA_OK || best->seconds >= before * ST_WORTH)
            return st;
        st = st_search_descend_from(s, best, true);
    }
    return st;
}

strata_status st_search_detour(struct st_search *s)
{
    struct st_node starts[ST_KINDS];
    const uint32_t count = st_search_kinds(starts, s);
    strata_status st = detour_from(s, &starts[0]);

    s->part = FEW;
    for (uint32_t i = 1; i < count && st == STRATA_OK; i++)
        st = detour_from(s, &starts[i]);
    return st;
}

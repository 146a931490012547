/* nvme/mover/stripe.c - see stripe.h.
 *
 * Spreading w_d slots for each directory over P is a set of unit jobs, the k-th of a directory released at floor(k P / w) and due
 * at ceil((k + 1) P / w); scheduled by earliest due date they all fit, so over any run of slots from the start each directory is
 * less than one unit off its proportion.  Source: Baruah, Cohen, Plaxton, Varvel, "Proportionate progress", Algorithmica 15
 * (1996). */
#include "nvme/mover/stripe.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define ERROR_FINE 0.01 /* relative error of a directory's part */

/* Distributes slots by largest remainder, at least one per directory.  Returns the largest relative error of a part. */
static double apportion(uint32_t weight[], uint32_t dir_count, const double rates[], double rate_sum, uint32_t slots)
{
    uint32_t given = 0;
    double error = 0;

    for (uint32_t d = 0; d < dir_count; d++) {
        const double exact = rates[d] / rate_sum * slots;

        weight[d] = exact < 1 ? 1 : (uint32_t)exact;
        given += weight[d];
    }
    while (given != slots) { /* the directory that is farthest off gains or loses a slot */
        const double sign = given < slots ? 1 : -1;
        uint32_t best = 0;
        double most = -INFINITY;

        for (uint32_t d = 0; d < dir_count; d++) {
            const double off = sign * (rates[d] / rate_sum * slots - weight[d]);

            if ((sign > 0 || weight[d] > 1) && off > most) {
                most = off;
                best = d;
            }
        }
        weight[best] = sign > 0 ? weight[best] + 1 : weight[best] - 1;
        given = sign > 0 ? given + 1 : given - 1;
    }
    for (uint32_t d = 0; d < dir_count; d++)
        error = fmax(error, fabs(weight[d] * rate_sum / (rates[d] * slots) - 1));
    return error;
}

static uint32_t choose_weights(uint32_t weight[], uint32_t dir_count, const double rates[])
{
    double best = INFINITY, rate_sum = 0;
    uint32_t trial[ST_STRIPE_DIRS_MAX], slot_count = 0;

    for (uint32_t d = 0; d < dir_count; d++)
        rate_sum += rates[d];
    for (uint32_t slots = dir_count; slots <= ST_STRIPE_SLOTS_MAX && best > ERROR_FINE; slots++) {
        const double error = apportion(trial, dir_count, rates, rate_sum, slots);

        if (error < best) {
            best = error;
            slot_count = slots;
            memcpy(weight, trial, dir_count * sizeof(*weight));
        }
    }
    return slot_count;
}

/* The released directory with the earliest due date.  released: taken * P <= slot * w. */
static uint32_t earliest(const struct st_stripe *s, const uint32_t taken[], uint32_t slot)
{
    uint32_t best = s->dir_count, best_due = UINT32_MAX;

    for (uint32_t d = 0; d < s->dir_count; d++) {
        const uint32_t w = s->weight[d], released = taken[d] * s->slot_count / w;
        const uint32_t due = ((taken[d] + 1) * s->slot_count + w - 1) / w;

        if (taken[d] < w && released <= slot && due < best_due) {
            best_due = due;
            best = d;
        }
    }
    assert(best < s->dir_count && best_due > slot);
    return best;
}

void st_stripe_init(struct st_stripe *s, uint32_t dir_count, const double *rates, uint32_t unit_bytes)
{
    static const double equal[ST_STRIPE_DIRS_MAX] = {1, 1, 1, 1, 1, 1, 1, 1};
    uint32_t weight[ST_STRIPE_DIRS_MAX] = {0}, taken[ST_STRIPE_DIRS_MAX] = {0};

    assert(dir_count >= 1 && dir_count <= ST_STRIPE_DIRS_MAX && unit_bytes > 0);
    *s = (struct st_stripe){.dir_count = dir_count, .unit_bytes = unit_bytes};
    s->slot_count = choose_weights(weight, dir_count, rates != NULL ? rates : equal);
    assert(s->slot_count >= dir_count && s->slot_count <= ST_STRIPE_SLOTS_MAX);
    for (uint32_t d = 0; d < ST_STRIPE_DIRS_MAX; d++)
        s->weight[d] = (uint8_t)weight[d];
    for (uint32_t slot = 0; slot < s->slot_count; slot++) {
        const uint32_t d = earliest(s, taken, slot);

        s->dir_of[slot] = (uint8_t)d;
        s->rank[slot] = (uint8_t)taken[d]++;
    }
}

struct st_stripe_place st_stripe_at(const struct st_stripe *s, uint64_t offset)
{
    const uint64_t unit = offset / s->unit_bytes, within = offset % s->unit_bytes;
    const uint32_t slot = (uint32_t)(unit % s->slot_count), dir = s->dir_of[slot];
    const uint64_t place = unit / s->slot_count * s->weight[dir] + s->rank[slot];

    if (s->dir_count == 1)
        return (struct st_stripe_place){0, offset, UINT64_MAX};
    return (struct st_stripe_place){dir, place * s->unit_bytes + within, s->unit_bytes - within};
}

bool st_stripe_alike(const struct st_stripe *a, const struct st_stripe *b)
{
    if (a->dir_count != b->dir_count)
        return false;
    return a->dir_count == 1 ||
           (a->unit_bytes == b->unit_bytes && a->slot_count == b->slot_count && memcmp(a->dir_of, b->dir_of, a->slot_count) == 0);
}

uint64_t st_stripe_file_bytes(const struct st_stripe *s, uint32_t dir, uint64_t bytes)
{
    const uint64_t units = bytes / s->unit_bytes, tail = bytes % s->unit_bytes;
    const uint32_t rest = (uint32_t)(units % s->slot_count);
    uint64_t count = units / s->slot_count * s->weight[dir];

    for (uint32_t slot = 0; slot < rest; slot++)
        count += s->dir_of[slot] == dir;
    return count * s->unit_bytes + (s->dir_of[rest] == dir ? tail : 0);
}

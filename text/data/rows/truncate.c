/* truncate.c - see truncate.h. */
#include "text/data/rows/truncate.h"

#include <string.h>

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* How much of a turn is kept in `room`; its numbers are changed. */
static void fit(uint64_t *source, uint64_t *target, uint64_t room)
{
    uint64_t target_most;

    if (2 * *target < room)
        target_most = room;
    else if (2 * *source < room)
        target_most = room - *source;
    else
        target_most = (uint64_t)((double)room * ((double)*target / (double)(*source + *target)));
    *target = smaller(*target, target_most);
    *source = smaller(*source, room - *target);
}

static uint64_t run(const uint8_t *trained, uint64_t count, uint64_t at, uint8_t value)
{
    uint64_t end = at;

    while (end < count && (trained[end] != 0) == (value != 0))
        end++;
    return end - at;
}

static uint64_t keep(uint32_t *ids, uint8_t *trained, uint64_t kept, uint64_t from, uint64_t count)
{
    memmove(ids + kept, ids + from, count * sizeof(*ids));
    memmove(trained + kept, trained + from, count);
    return kept + count;
}

uint64_t st_truncate_turns(uint32_t *ids, uint8_t *trained, uint64_t count, uint64_t most)
{
    uint64_t kept = 0;

    if (count <= most)
        return count;
    for (uint64_t at = 0; at < count && kept < most;) {
        const uint64_t source_all = run(trained, count, at, 0), target_all = run(trained, count, at + source_all, 1);
        uint64_t source = source_all, target = target_all;

        fit(&source, &target, most - kept);
        kept = keep(ids, trained, kept, at, source);
        kept = keep(ids, trained, kept, at + source_all, target);
        at += source_all + target_all;
    }
    return kept;
}

/* The run that ends before `end`. */
static uint64_t run_before(const uint8_t *trained, uint64_t end, uint8_t value)
{
    uint64_t at = end;

    while (at > 0 && (trained[at - 1] != 0) == (value != 0))
        at--;
    return end - at;
}

uint64_t st_truncate_turns_from_last(uint32_t *ids, uint8_t *trained, uint64_t count, uint64_t most)
{
    uint64_t begin = count; /* of what is kept, which lies at the end */

    if (count <= most)
        return count;
    for (uint64_t at = count; at > 0 && count - begin < most;) {
        const uint64_t target_all = run_before(trained, at, 1), source_all = run_before(trained, at - target_all, 0);
        uint64_t source = source_all, target = target_all;

        fit(&source, &target, most - (count - begin));
        begin -= target;
        (void)keep(ids, trained, begin, at - target_all, target);
        begin -= source;
        (void)keep(ids, trained, begin, at - target_all - source_all, source);
        at -= source_all + target_all;
    }
    return keep(ids, trained, 0, begin, count - begin);
}

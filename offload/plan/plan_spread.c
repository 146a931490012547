/* plan_spread.c - decides which chunks of the state are cached in host memory, once their number is known.
 *
 * The sizes are computed as if the cached chunks were the first ones (plan_sums.c).  If they really were, the drive would be idle
 * while the updates of their pages run and overloaded afterwards.  Chunks of the same size are interchangeable, so within each
 * size the cached ones are spread evenly over the order of updates.  The table's chunks come first, since nothing hides the
 * table's update.  What is updated early is not cached (plan_early.c). */
#include "offload/plan/plan_predicates.h"

#include <stdlib.h>

#define CLASSES_MAX 64u /* at most this many sizes are spread; chunks of further sizes stay unchanged */

struct size_class {
    uint64_t bytes;
    uint32_t count, cached; /* without the chunks of the table */
    uint32_t seen;
};

struct spread {
    struct st_plan *plan;
    struct size_class classes[CLASSES_MAX];
    uint32_t class_count;
    uint32_t first, cached_end; /* the decision: of the chunks from `first` on the free ones before cached_end */
};

static struct size_class *class_of(struct spread *s, uint64_t bytes)
{
    for (uint32_t i = 0; i < s->class_count; i++)
        if (s->classes[i].bytes == bytes)
            return &s->classes[i];
    if (s->class_count == CLASSES_MAX)
        return NULL;
    s->classes[s->class_count] = (struct size_class){.bytes = bytes};
    return &s->classes[s->class_count++];
}

static void cache(struct st_chunk *chunk, bool cached)
{
    if (chunk->state != ST_WHERE_NONE)
        chunk->state = cached ? ST_WHERE_HOST : ST_WHERE_NVME;
}

static bool of_table(const struct spread *s, uint32_t chunk)
{
    return st_place_is_table(s->plan, s->plan->program.chunks[chunk].page);
}

/* May be cached, or left on the drive. */
static bool is_free(const struct spread *s, uint32_t chunk)
{
    const struct st_chunk *c = &s->plan->program.chunks[chunk];

    return c->group != ST_GROUP_FROZEN && !st_place_early(s->plan, c->page);
}

static void count_classes(struct spread *s)
{
    for (uint32_t i = s->first; i < s->plan->program.chunk_count; i++) {
        struct size_class *c = class_of(s, s->plan->program.chunks[i].bytes);

        if (c == NULL || !is_free(s, i))
            continue;
        c->count++;
        c->cached += i < s->cached_end;
    }
}

/* Caches as many chunks of the table as its class has cached ones. */
static void cache_table(struct spread *s)
{
    for (uint32_t i = s->first; i < s->plan->program.chunk_count; i++) {
        struct st_chunk *chunk = &s->plan->program.chunks[i];
        struct size_class *c = class_of(s, chunk->bytes);

        if (c == NULL || !is_free(s, i) || !of_table(s, i))
            continue;
        cache(chunk, c->cached > 0);
        c->count--;
        c->cached -= c->cached > 0;
    }
}

static void cache_evenly(struct spread *s)
{
    for (uint32_t i = s->first; i < s->plan->program.chunk_count; i++) {
        struct st_chunk *chunk = &s->plan->program.chunks[i];
        struct size_class *c = class_of(s, chunk->bytes);

        if (c == NULL || !is_free(s, i) || of_table(s, i))
            continue;
        cache(chunk, (uint64_t)(c->seen + 1) * c->cached / c->count > (uint64_t)c->seen * c->cached / c->count);
        c->seen++;
    }
}

void st_plan_spread(struct st_plan *plan)
{
    struct spread s = {
        .plan = plan, .first = st_place_device_chunks(plan), .cached_end = st_plan_cached(plan, plan->decided.cached_chunks).end};

    if (plan->policy.optimizer_tier != STRATA_TIER_NVME || plan->decided.cached_chunks <= s.first)
        return;
    for (uint32_t i = s.first; i < s.cached_end; i++)
        cache(&plan->program.chunks[i], is_free(&s, i));
    count_classes(&s);
    cache_table(&s);
    cache_evenly(&s);
}

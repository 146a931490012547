/* plan_early.c - which pages are updated early, in backward, and what that leaves of the state to be cached.
 *
 * Of those that may be, so many are, evenly spread from the top down, so that both passes have a part of the traffic all the
 * time: backward that of the early ones, forward that of those between.  Cached in host memory is none of their state, since its
 * other version would want as much room again; so what is cached is counted among the other chunks. */
#include "offload/plan/plan_predicates.h"

#include "core/base/error.h"

#include <stdlib.h>
#include <string.h>

/* What the host can update early: a page of one layer, a block's or a slice of an untied head, that is trained whole, so that
 * none of it has to be copied to its other version. */
static bool may_be_early(const struct st_plan *plan, uint32_t p)
{
    const struct st_workload *w = &plan->program.workload;
    const struct st_page *page = &w->pages[p];

    if (st_workload_opaque(w) || page->flags != 0 || page->uses != 1 || st_place_is_table(plan, p) || !st_place_trained(plan, p))
        return false;
    for (uint32_t i = 0; i < page->group_count; i++)
        if (page->groups[i].kind == ST_GROUP_FROZEN)
            return false;
    return true;
}

strata_status st_plan_early_make(struct st_plan *plan, struct st_early_mix *mix)
{
    const size_t count = (size_t)plan->program.workload.page_count + 1;

    mix->may = calloc(count, sizeof(*mix->may));
    mix->chunks = calloc(count, sizeof(*mix->chunks));
    mix->bytes = calloc(count, sizeof(*mix->bytes));
    if (mix->may == NULL || mix->chunks == NULL || mix->bytes == NULL)
        return st_nomem(0);
    for (uint32_t p = 0; p + 1 < count; p++)
        mix->may[p + 1] = mix->may[p] + may_be_early(plan, p);
    return STRATA_OK;
}

void st_plan_early_free(struct st_early_mix *mix)
{
    free(mix->may);
    free(mix->chunks);
    free(mix->bytes);
}

/* Sums it up again, if the decisions are others than those of last time. */
static const struct st_early_mix *mix_of(const struct st_plan *plan)
{
    struct st_early_mix *mix = &plan->sums->mix;
    const uint32_t low = st_place_early_low(plan), pages = st_place_early_from(plan, low);
    const struct st_plan_sums *sums = plan->sums;

    if (mix->low == low && mix->pages == pages)
        return mix;
    mix->low = low;
    mix->pages = pages;
    mix->largest = 0;
    for (uint32_t p = 0; p < plan->program.workload.page_count; p++) {
        const struct st_page_place *place = &plan->program.pages[p];
        const bool early = st_place_early(plan, p);
        const uint64_t bytes = sums->state_bytes[place->chunk_first + place->chunk_count] - sums->state_bytes[place->chunk_first];

        mix->chunks[p + 1] = mix->chunks[p] + (early ? place->chunk_count : 0);
        mix->bytes[p + 1] = mix->bytes[p] + (early ? bytes : 0);
        if (early && sums->page_largest[p] > mix->largest)
            mix->largest = sums->page_largest[p];
    }
    return mix;
}

uint64_t st_plan_early_bytes(const struct st_plan *plan)
{
    return plan->decided.early_pages == 0 ? 0 : mix_of(plan)->bytes[plan->program.workload.page_count];
}

uint32_t st_plan_cacheable(const struct st_plan *plan)
{
    const uint32_t all = plan->program.chunk_count;

    return plan->decided.early_pages == 0 ? all : all - mix_of(plan)->chunks[plan->program.workload.page_count];
}

static uint32_t first_chunk(const struct st_plan *plan, uint32_t p)
{
    return p < plan->program.workload.page_count ? plan->program.pages[p].chunk_first : plan->program.chunk_count;
}

/* The last page before which there are no more than `count` chunks that are not updated early. */
static uint32_t page_behind(const struct st_plan *plan, const struct st_early_mix *mix, uint32_t count)
{
    uint32_t low = 0, high = plan->program.workload.page_count + 1;

    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;

        *(first_chunk(plan, middle) - mix->chunks[middle] <= count ? &low : &high) = middle;
    }
    return low;
}

struct st_cached_sums st_plan_cached(const struct st_plan *plan, uint32_t count)
{
    const struct st_plan_sums *sums = plan->sums;
    const struct st_early_mix *mix;
    struct st_cached_sums c;
    uint32_t page, chunk;

    if (plan->decided.early_pages == 0)
        return (struct st_cached_sums){sums->state_bytes[count], sums->state_largest[count], count};
    mix = mix_of(plan);
    page = page_behind(plan, mix, count);
    chunk = count + mix->chunks[page];
    c = (struct st_cached_sums){sums->state_bytes[chunk] - mix->bytes[page], sums->state_largest[chunk], chunk};
    c.largest_left = c.largest_left > mix->largest ? c.largest_left : mix->largest;
    return c;
}

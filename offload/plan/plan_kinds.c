/* plan_kinds.c - equal pages, wherever they are, so that sizing a candidate takes those of a kind at once.
 *
 * A model with experts has some thousand pages of few kinds: in each layer its first page, then slices.  What decisions say of a
 * page depends on its number alone, by a few limits, so that these cut a kind into few parts. */
#include "offload/plan/plan_predicates.h"

#include "core/base/error.h"

#include <stdlib.h>

/* What makes pages of one kind, for the order below. */
struct entry {
    const struct st_page *page;
    uint32_t number;
    bool stays, leads;
};

static int order_of(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int compare_groups(const struct st_group *a, const struct st_group *b)
{
    int order = order_of(a->kind, b->kind);

    order = order != 0 ? order : order_of(a->format, b->format);
    return order != 0 ? order : order_of(a->elems, b->elems);
}

/* 0: of one kind.  A page that several layers add to is of its own. */
static int compare_kinds(const struct entry *a, const struct entry *b)
{
    const struct st_page *x = a->page, *y = b->page;
    const uint64_t keys[][2] = {
        {a->stays, b->stays},
        {a->leads, b->leads},
        {x->flags, y->flags},
        {x->uses, y->uses},
        {st_page_adds(x) > 1 ? a->number : 0, st_page_adds(y) > 1 ? b->number : 0},
        {x->row_count > 0, y->row_count > 0},
        {x->elems, y->elems},
        {x->group_count, y->group_count},
    };

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (keys[i][0] != keys[i][1])
            return order_of(keys[i][0], keys[i][1]);
    for (uint32_t i = 0; i < x->group_count; i++) {
        const int order = compare_groups(&x->groups[i], &y->groups[i]);

        if (order != 0)
            return order;
    }
    return 0;
}

static int compare_entries(const void *left, const void *right)
{
    const struct entry *a = left, *b = right;
    const int kinds = compare_kinds(a, b);

    return kinds != 0 ? kinds : order_of(a->number, b->number);
}

strata_status st_plan_kinds_find(const struct st_plan *plan, struct st_plan_sums *sums)
{
    const struct st_workload *w = &plan->program.workload;
    struct entry *entries = malloc(w->page_count * sizeof(*entries));

    if (entries == NULL)
        return st_nomem(w->page_count * sizeof(*entries));
    for (uint32_t p = 0; p < w->page_count; p++)
        entries[p] = (struct entry){&w->pages[p], p, p < st_workload_stay(w), st_page_leads(w, p)};
    qsort(entries, w->page_count, sizeof(*entries), compare_entries);
    for (uint32_t p = 0; p < w->page_count; p++)
        sums->piece_first[p] = 0;
    for (uint32_t i = w->page_count; i-- > 0;) {
        const uint32_t p = entries[i].number;
        const bool last = i + 1 == w->page_count || compare_kinds(&entries[i], &entries[i + 1]) != 0;

        sums->by_kind[i] = p;
        sums->kind_end[i] = last ? i + 1 : sums->kind_end[i + 1];
        sums->run_end[i] = last || entries[i + 1].number != p + 1 ? i + 1 : sums->run_end[i + 1];
        if (last && p + 1 < w->page_count)
            sums->piece_first[p + 1] = p + 1;
    }
    for (uint32_t p = 1; p < w->page_count; p++)
        if (sums->piece_first[p] == 0)
            sums->piece_first[p] = sums->piece_first[p - 1];
    free(entries);
    return STRATA_OK;
}

/* The first place of [place, end), of one kind, whose page is not below this one; `end` if that is no place between them. */
static uint32_t cut(const struct st_plan_sums *sums, uint32_t place, uint32_t end, uint32_t page)
{
    const uint32_t *pages = sums->by_kind;
    uint32_t low = place, high = end - 1;

    if (pages[place] >= page || pages[high] < page)
        return end;
    if (sums->run_end[place] >= end)
        return place + (page - pages[place]);
    while (high - low > 1) { /* pages[low] < page <= pages[high] */
        const uint32_t middle = low + (high - low) / 2;

        *(pages[middle] < page ? &low : &high) = middle;
    }
    return high;
}

/* Of `count` pages, how many of the first are streamed: see st_place_streamed(). */
static uint32_t streamed_before(const struct st_plan *plan, uint32_t count)
{
    return (uint32_t)((uint64_t)count * plan->decided.streamed / ST_STREAMED_PARTS);
}

/* How many of the pages [first, end) are streamed, or, where none is, updated early. */
static uint32_t special_among(const struct st_plan *plan, uint32_t first, uint32_t end)
{
    const uint32_t *plain = plan->sums->plain, low = plain[plan->decided.device_state_pages];

    if (plan->decided.streamed == 0)
        return st_place_early_from(plan, first) - st_place_early_from(plan, end);
    return streamed_before(plan, plain[end] - low) - streamed_before(plan, plain[first] - low);
}

/* The same of places. */
static uint32_t count_special(const struct st_plan *plan, uint32_t place, uint32_t end)
{
    const struct st_plan_sums *sums = plan->sums;
    uint32_t count = 0;

    for (uint32_t i = place, next; i < end; i = next) {
        const uint32_t page = sums->by_kind[i];

        next = sums->run_end[i] < end ? sums->run_end[i] : end;
        count += special_among(plan, page, page + (next - i));
    }
    return count;
}

/* Places [first, end) of a kind, of which special ones stand between others: the first of either, and how many there are. */
static uint32_t part(struct st_alike parts[ST_ALIKE_MAX], const struct st_plan *plan, uint32_t first, uint32_t end)
{
    const uint32_t *pages = plan->sums->by_kind, special = count_special(plan, first, end);
    const bool is = st_place_special(plan, pages[first]);
    uint32_t other = first;

    parts[0] = (struct st_alike){pages[first], is ? special : end - first - special};
    if (parts[0].count == end - first)
        return 1;
    while (st_place_special(plan, pages[other]) == is)
        other++;
    parts[1] = (struct st_alike){pages[other], end - first - parts[0].count};
    return 2;
}

/* The first page whose use in backward differs from that of those below: of the lowest layer that backward reaches. */
static uint32_t first_reached(const struct st_plan *plan)
{
    const uint32_t block = st_block_first(&plan->program.workload), low = plan->sums->lowest_layer;

    return plan->sums->layer_pages[low > block ? low : block];
}

uint32_t st_plan_alike(struct st_alike parts[ST_ALIKE_MAX], const struct st_plan *plan, uint32_t place, uint32_t *end)
{
    const struct st_plan_sums *sums = plan->sums;
    const struct st_decisions *d = &plan->decided;
    const struct st_workload *w = &plan->program.workload;
    const uint32_t page = sums->by_kind[place];
    const uint32_t limits[] = {d->resident_pages,  d->device_state_pages,    d->cached_weight_pages, d->device_accum_pages,
                               d->host_grad_pages, st_place_early_low(plan), first_reached(plan)};

    *end = sums->kind_end[place];
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
        *end = cut(sums, place, *end, limits[i]);
    if (st_page_leads(w, page)) /* made again or not */
        *end = cut(sums, place, *end, sums->layer_pages[st_block_end(w) - d->kept_blocks]);
    if (d->streamed > 0
            ? page >= d->device_state_pages && st_page_is_plain(st_place_page(plan, page)) && st_place_trained(plan, page)
            : page >= st_place_early_low(plan))
        return part(parts, plan, place, *end);
    parts[0] = (struct st_alike){page, *end - place};
    return 1;
}

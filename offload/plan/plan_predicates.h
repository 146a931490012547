/* offload/plan/plan_predicates.h - what the decisions mean for a page: where its weights, its sum and its update are.
 *
 * Functions of the decisions alone.  Inline, since the search asks them for each of its candidates. */
#ifndef OFFLOAD_PLAN_PLAN_PREDICATES_H
#define OFFLOAD_PLAN_PLAN_PREDICATES_H

#include "offload/plan/plan_internal.h"

static inline bool st_place_horizontal(const struct st_plan *plan)
{
    return plan->decided.accumulation == ST_ACCUMULATE_HORIZONTAL;
}

static inline const struct st_page *st_place_page(const struct st_plan *plan, uint32_t page)
{
    return &plan->program.workload.pages[page];
}

/* Gathered pages have one policy for all of them: together they are the table that a lookup reads. */
static inline bool st_place_is_table(const struct st_plan *plan, uint32_t page)
{
    return page < plan->program.workload.gathered_count;
}

static inline bool st_place_is_small(const struct st_plan *plan, uint32_t page)
{
    return (st_place_page(plan, page)->flags & ST_PAGE_SMALL) != 0;
}

static inline bool st_place_trained(const struct st_plan *plan, uint32_t page)
{
    return st_place_page(plan, page)->trained_elems > 0 && !plan->policy.forward_only;
}

/* Stage 3 without offload_param: a plain page that is not resident lives on the device as this rank's shard, and its slots are
 * filled from there and by the other ranks.  All other pages are whole.  Not where micro-batches go one by one, each of which
 * would have every page exchanged again. */
static inline bool st_place_slices(const struct st_plan *plan)
{
    return plan->program.stage == 3 && plan->policy.param_tier == STRATA_TIER_DEVICE && plan->sums->slices_save &&
           !st_place_horizontal(plan);
}

static inline bool st_place_resident(const struct st_plan *plan, uint32_t page)
{
    return page < plan->decided.resident_pages || (st_place_slices(plan) && !st_page_is_plain(st_place_page(plan, page)));
}

/* The least resident pages, counted from the bottom, in the order of accumulation that is decided. */
static inline uint32_t st_place_least_resident(const struct st_plan *plan)
{
    const struct st_workload *w = &plan->program.workload;

    if (plan->policy.param_tier != STRATA_TIER_DEVICE)
        return st_workload_stay(w);
    return st_place_slices(plan) ? w->gathered_count : w->page_count;
}

/* State goes to the device page by page from the bottom; the table's slices all together or not at all. */
static inline bool st_place_device_state(const struct st_plan *plan, uint32_t page)
{
    return plan->decided.device_state_pages >= plan->program.workload.gathered_count && page < plan->decided.device_state_pages;
}

/* Only plain pages are streamed, since other pages' sums may wait in host memory. They are evenly spread, so that both processors
 * work all the time. */
static inline bool st_place_streamed(const struct st_plan *plan, uint32_t page)
{
    const uint32_t first = plan->decided.device_state_pages, *plain = plan->sums->plain;
    uint32_t rank;

    if (plan->decided.streamed == 0 || page < first || !st_page_is_plain(st_place_page(plan, page)) ||
        !st_place_trained(plan, page))
        return false;
    rank = plain[page] - plain[first];
    return (rank + 1) * plan->decided.streamed / ST_STREAMED_PARTS > rank * plan->decided.streamed / ST_STREAMED_PARTS;
}

/* Its state is on the device, or moved there for the update. */
static inline bool st_place_device_update(const struct st_plan *plan, uint32_t page)
{
    return st_place_device_state(plan, page) || st_place_streamed(plan, page);
}

/* The lowest page that may be updated early: above what is on the device, and above the last to have gradients. */
static inline uint32_t st_place_early_low(const struct st_plan *plan)
{
    const uint32_t *last = plan->sums->last;
    uint32_t low = plan->decided.device_state_pages;

    if (plan->decided.early_pages == 0 || plan->decided.streamed > 0)
        return plan->program.workload.page_count;
    for (uint32_t i = 0; i < 2; i++)
        low = last[i] != ST_NO_PAGE && last[i] >= low ? last[i] + 1 : low;
    return low;
}

/* How many are, from page `first` on, which is none below that one. */
static inline uint32_t st_place_early_from(const struct st_plan *plan, uint32_t first)
{
    const uint32_t *may = plan->sums->mix.may, all = may[plan->program.workload.page_count];
    const uint64_t of = all - may[st_place_early_low(plan)], pages = plan->decided.early_pages;

    return of <= pages ? all - may[first] : (uint32_t)(((all - may[first]) * pages + of - 1) / of);
}

static inline bool st_place_early(const struct st_plan *plan, uint32_t page)
{
    return page >= st_place_early_low(plan) && st_place_early_from(plan, page) > st_place_early_from(plan, page + 1);
}

/* Whether it is one of those that stand evenly spread between others: streamed, or, where none is, updated early. */
static inline bool st_place_special(const struct st_plan *plan, uint32_t page)
{
    return plan->decided.streamed == 0 ? st_place_early(plan, page) : st_place_streamed(plan, page);
}

/* Every slice. */
static inline bool st_place_table_resident(const struct st_plan *plan)
{
    return plan->decided.resident_pages >= plan->program.workload.gathered_count;
}

/* A table that is gathered on the host keeps all its slices there; so does a page that the host updates. */
static inline enum st_where st_place_home(const struct st_plan *plan, uint32_t page)
{
    const bool gathered = st_place_is_table(plan, page) && !st_place_table_resident(plan);
    const bool host_update = st_place_trained(plan, page) && !st_place_device_update(plan, page);

    if (!host_update && (st_place_resident(plan, page) || st_place_slices(plan)) && !gathered)
        return ST_WHERE_DEVICE;
    if (plan->policy.param_tier == STRATA_TIER_NVME && page >= plan->decided.cached_weight_pages)
        return ST_WHERE_NVME;
    return ST_WHERE_HOST;
}

/* A table that the host updates in its home there is looked up there, too: a few rows cross the link before the whole table has.
 * Not one with its home on NVMe, cached or not: what a placement needs must not jump with the pages cached. */
static inline bool st_place_gather_on_host(const struct st_plan *plan)
{
    return plan->program.workload.gathered_count > 0 &&
           (!st_place_table_resident(plan) ||
            (plan->policy.param_tier != STRATA_TIER_NVME && st_place_home(plan, 0) == ST_WHERE_HOST));
}

/* Whether page p's fp32 sum must outlive the ops of its layer.  The table's last addend comes at the step's end, that of a page
 * that several layers use in another one; with horizontal accumulation every page's comes with the last micro-batch. */
static inline bool st_place_sum_outlives(const struct st_plan *plan, uint32_t p)
{
    const bool between = st_place_horizontal(plan) && plan->program.workload.grad_accum > 1;

    return st_place_is_table(plan, p) || st_page_adds(st_place_page(plan, p)) > 1 || between;
}

/* Whether a gradient of fp32 is its sum. */
static inline bool st_place_rounds_in_place(const struct st_plan *plan)
{
    return plan->sums->trained_f32 && plan->program.ranks == 1;
}

/* As in struct st_page_place. */
static inline enum st_where st_place_sum(const struct st_plan *plan, uint32_t p)
{
    const bool device_update = st_place_device_update(plan, p);

    if (!st_place_trained(plan, p))
        return ST_WHERE_NONE;
    if ((device_update && st_place_rounds_in_place(plan)) || p < st_workload_stay(&plan->program.workload))
        return ST_WHERE_DEVICE;
    if (!st_place_sum_outlives(plan, p))
        return ST_WHERE_STREAMED;
    return device_update || (!st_place_is_table(plan, p) && p < plan->decided.device_accum_pages) ? ST_WHERE_DEVICE
                                                                                                  : ST_WHERE_HOST;
}

/* Micro-batches add to its sum: not only the lookup, as to an untied table's. */
static inline bool st_place_has_leaves(const struct st_plan *plan, uint32_t p)
{
    return st_place_trained(plan, p) && st_page_adds(st_place_page(plan, p)) > 0;
}

/* Whether its sum in host memory is of the rank's shard alone: the table's, which is exchanged before it goes there; not where
 * the rank's own partial sums wait there, too. */
static inline bool st_place_sum_cut(const struct st_plan *plan, uint32_t p)
{
    const bool between = plan->decided.accumulation == ST_ACCUMULATE_HORIZONTAL && plan->program.workload.grad_accum > 1;

    return st_program_cuts(&plan->program) > 1 && st_place_is_table(plan, p) && st_place_sum(plan, p) == ST_WHERE_HOST &&
           !between;
}

/* Whether its rounded gradient, if the host updates it, has a place of its own in host memory.  If not, it passes through slots,
 * and waits on NVMe for an update that waits. */
static inline bool st_place_keeps_grad(const struct st_plan *plan, uint32_t page)
{
    return plan->policy.optimizer_tier != STRATA_TIER_NVME || page < plan->decided.host_grad_pages;
}

/* Whether rounded gradients wait for the norm of all. */
static inline bool st_place_grads_wait(const struct st_plan *plan)
{
    return plan->policy.update != ST_UPDATE_IN_BACKWARD && !plan->policy.forward_only;
}

/* Whether what is saved may, by the policy, be at home on the device. */
static inline bool st_place_saves_from_device(const struct st_plan *plan)
{
    const struct st_policy *policy = &plan->policy;

    return policy->sets > 0 &&
           (policy->cache != 0 || policy->optimizer_tier == STRATA_TIER_DEVICE || policy->param_tier == STRATA_TIER_DEVICE ||
            st_workload_stay(&plan->program.workload) > 0);
}

/* First chunk whose state is not on the device; chunks up to it, then those cached in host memory. */
static inline uint32_t st_place_device_chunks(const struct st_plan *plan)
{
    const uint32_t pages = plan->decided.device_state_pages;

    if (pages < plan->program.workload.gathered_count)
        return 0;
    return pages < plan->program.workload.page_count ? plan->program.pages[pages].chunk_first : plan->program.chunk_count;
}

#endif

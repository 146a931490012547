/* offload/workload.c - consistency of a workload's numbers; copies. */
#include "offload/workload.h"
#include "core/base/error.h"
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static strata_status fault(const struct st_workload *w, const char *what)
{
    return st_error(STRATA_E_INTERNAL, "workload %s: %s", w->name, what);
}

static strata_status page_fault(const struct st_workload *w, uint32_t page, const char *what)
{
    return st_error(STRATA_E_INTERNAL, "workload %s, page %u: %s", w->name, page, what);
}

static uint64_t aligned(uint64_t elems)
{
    return (elems + ST_PAGE_ALIGN - 1) / ST_PAGE_ALIGN * ST_PAGE_ALIGN;
}

uint64_t st_page_add(struct st_page *page, enum st_group_kind kind, strata_dtype format, uint64_t elems)
{
    struct st_group *g = page->group_count > 0 ? &page->groups[page->group_count - 1] : NULL;
    uint64_t first;

    if (g == NULL || g->kind != kind || g->format != format) {
        assert(page->group_count < ST_GROUPS_MAX);
        g = &page->groups[page->group_count++];
        *g = (struct st_group){.kind = kind, .format = format, .offset = page->elems, .at = page->bytes};
    }
    first = g->offset + g->elems;
    g->elems += elems;
    g->bytes = st_format_bytes(format, g->elems);
    page->params += elems;
    page->elems = aligned(g->offset + g->elems);
    page->bytes = g->at + st_format_bytes(format, aligned(g->elems));
    if (kind != ST_GROUP_FROZEN) {
        page->trained_elems = page->elems;
        page->trained_bytes = page->bytes;
    }
    return first;
}

const struct st_group *st_page_group(const struct st_page *page, uint64_t element)
{
    const struct st_group *g = &page->groups[page->group_count - 1];

    while (g > page->groups && element < g->offset)
        g--;
    return g;
}

uint64_t st_page_at(const struct st_page *page, uint64_t element)
{
    const struct st_group *g = st_page_group(page, element);

    return g->at + st_format_bytes(g->format, element - g->offset);
}

static strata_status check_counts(const struct st_workload *w)
{
    if (strata_dtype_bytes(w->dtype) == 0)
        return fault(w, "dtype is none of bf16, fp16 and fp32");
    if (w->block_count == 0 || w->vocab == 0 || w->hidden == 0 || w->seq == 0 || w->micro_batch == 0 || w->grad_accum == 0)
        return fault(w, "a size is 0");
    if (w->generate && (w->micro_batch != 1 || w->grad_accum != 1))
        return fault(w, "generation of more than one sequence");
    if (w->workers == 0)
        return fault(w, "workspaces are sized for no worker");
    if (w->pages == NULL || w->page_count == 0)
        return fault(w, "no pages");
    return STRATA_OK;
}

static bool in_pages(const struct st_workload *w, uint32_t first, uint32_t count)
{
    return count > 0 && first < w->page_count && count <= w->page_count - first;
}

/* Parameter order: table, positions, blocks, norm, and an untied head's slices last. */
static strata_status check_ranges(const struct st_workload *w)
{
    const uint32_t positions = w->position_page == ST_NO_PAGE ? 0 : 1;

    if (w->table_first != 0 || !in_pages(w, w->table_first, w->table_count))
        return fault(w, "table slices are not the first pages");
    if (positions > 0 && w->position_page != w->table_count)
        return fault(w, "the position page does not follow the table");
    if (w->block_first != w->table_count + positions || !in_pages(w, w->block_first, w->block_count))
        return fault(w, "blocks do not follow the embedding");
    if (w->norm_page != w->block_first + w->block_count || !in_pages(w, w->norm_page, 1))
        return fault(w, "the final norm does not follow the blocks");
    if (w->tied && (w->head_first != w->table_first || w->head_count != w->table_count || w->page_count != w->norm_page + 1))
        return fault(w, "a tied head is not the table");
    if (!w->tied && (w->head_first != w->norm_page + 1 || !in_pages(w, w->head_first, w->head_count) ||
                     w->page_count != w->head_first + w->head_count))
        return fault(w, "the head does not follow the final norm");
    return STRATA_OK;
}

/* Trained weights have the workload's dtype or, if they are an adapter's, fp32; what is frozen may be quantised. */
static bool is_format_of(const struct st_workload *w, const struct st_group *g)
{
    return g->format == w->dtype || g->format == STRATA_F32 || (g->format == STRATA_NF4 && g->kind == ST_GROUP_FROZEN);
}

/* By kind; of one kind no two that are stored alike. */
static bool is_in_order(const struct st_page *p, uint32_t group)
{
    for (uint32_t i = 0; i < group; i++)
        if (p->groups[i].kind > p->groups[group].kind ||
            (p->groups[i].kind == p->groups[group].kind && p->groups[i].format == p->groups[group].format))
            return false;
    return p->groups[group].kind <= ST_GROUP_FROZEN;
}

static strata_status check_groups(const struct st_workload *w, uint32_t page)
{
    const struct st_page *p = &w->pages[page];
    uint64_t end = 0, end_bytes = 0, params = 0, trained = 0, trained_bytes = 0;

    if (p->group_count == 0 || p->group_count > ST_GROUPS_MAX)
        return page_fault(w, page, "group count");
    for (uint32_t i = 0; i < p->group_count; i++) {
        const struct st_group *g = &p->groups[i];

        if (g->elems == 0)
            return page_fault(w, page, "an empty group");
        if (g->offset % ST_PAGE_ALIGN != 0)
            return page_fault(w, page, "a group is not aligned");
        if (g->offset < end || g->offset > p->elems || g->elems > p->elems - g->offset)
            return page_fault(w, page, "a group overlaps another or leaves the page");
        if (!is_in_order(p, i))
            return page_fault(w, page, "groups are out of order");
        if (!is_format_of(w, g) || g->bytes != st_format_bytes(g->format, g->elems))
            return page_fault(w, page, "the format of a group");
        if (g->at < end_bytes || g->at > p->bytes || g->bytes > p->bytes - g->at)
            return page_fault(w, page, "a group's weights overlap another's or leave the page's");
        end = g->offset + g->elems;
        end_bytes = g->at + g->bytes;
        params += g->elems;
        trained = g->kind == ST_GROUP_FROZEN ? trained : end;
        trained_bytes = g->kind == ST_GROUP_FROZEN ? trained_bytes : end_bytes;
    }
    if (p->trained_elems != aligned(trained) || p->trained_bytes < trained_bytes || p->trained_bytes > p->bytes)
        return page_fault(w, page, "the extent of what is trained");
    if (p->written_elems > p->trained_elems)
        return page_fault(w, page, "more is written than has a gradient");
    if (p->elems % ST_PAGE_ALIGN != 0)
        return page_fault(w, page, "its extent is not aligned");
    if (p->params != params)
        return page_fault(w, page, "params is not the sum of its groups");
    return STRATA_OK;
}

static uint64_t trained_params(const struct st_page *p)
{
    uint64_t params = 0;

    for (uint32_t i = 0; i < p->group_count; i++)
        params += p->groups[i].kind == ST_GROUP_FROZEN ? 0 : p->groups[i].elems;
    return params;
}

static enum st_page_kind kind_of(const struct st_workload *w, uint32_t page)
{
    if (page < w->block_first)
        return page < w->table_count ? ST_PAGE_TABLE : ST_PAGE_POSITIONS;
    return page < w->norm_page ? ST_PAGE_BLOCK : page == w->norm_page ? ST_PAGE_NORM : ST_PAGE_HEAD;
}

static uint32_t layer_of(const struct st_workload *w, uint32_t page)
{
    const enum st_page_kind kind = w->pages[page].kind;

    if (kind == ST_PAGE_TABLE || kind == ST_PAGE_POSITIONS)
        return 0;
    return kind == ST_PAGE_BLOCK ? page - w->block_first + 1 : w->block_count + 1;
}

static strata_status check_pages(const struct st_workload *w)
{
    uint64_t params = 0;
    strata_status st;

    for (uint32_t i = 0; i < w->page_count; i++) {
        if ((st = check_groups(w, i)) != STRATA_OK)
            return st;
        if (w->pages[i].kind != kind_of(w, i))
            return page_fault(w, i, "its kind");
        if (w->pages[i].layer != layer_of(w, i))
            return page_fault(w, i, "its layer");
        params += trained_params(&w->pages[i]);
    }
    return w->params == params ? STRATA_OK : fault(w, "params is not the sum over the pages");
}

static strata_status check_slices(const struct st_workload *w, uint32_t first, uint32_t count)
{
    uint32_t row = 0;

    for (uint32_t i = first; i < first + count; i++) {
        const struct st_page *p = &w->pages[i];

        if (p->row_first != row || p->row_count == 0 || p->row_count > w->vocab - row)
            return page_fault(w, i, "slices do not cover the vocabulary in order");
        if (p->params != (uint64_t)p->row_count * w->hidden)
            return page_fault(w, i, "a slice is not whole rows");
        if (p->row_count > w->pages[first].row_count || (i + 1 < first + count && p->row_count != w->pages[first].row_count))
            return page_fault(w, i, "slices differ in rows before the last");
        row += p->row_count;
    }
    return row == w->vocab ? STRATA_OK : fault(w, "slices do not cover the vocabulary");
}

static strata_status check_costs(const struct st_workload *w)
{
    const double flops[] = {w->block_forward_flops, w->block_backward_flops, w->head_forward_flops, w->head_backward_flops,
                            w->model_flops_per_token};

    if (w->activation_bytes != (uint64_t)w->micro_batch * w->seq * w->hidden * strata_dtype_bytes(w->dtype))
        return fault(w, "activation bytes are not rows * hidden * dtype");
    if (w->block_internal_bytes == 0 || w->block_workspace_bytes == 0 || w->head_internal_bytes == 0 ||
        (w->head_workspace_bytes == 0 && !w->generate))
        return fault(w, "a buffer of 0 bytes");
    if (w->generate && (w->logits_offset > w->head_internal_bytes ||
                        w->head_internal_bytes - w->logits_offset < (uint64_t)w->vocab * sizeof(float)))
        return fault(w, "logits leave the head's internals");
    for (size_t i = 0; i < sizeof(flops) / sizeof(flops[0]); i++) {
        if (!isfinite(flops[i]) || flops[i] <= 0.0)
            return fault(w, "FLOPs");
    }
    return STRATA_OK;
}

strata_status st_workload_check(const struct st_workload *w)
{
    strata_status st;

    if ((st = check_counts(w)) != STRATA_OK || (st = check_ranges(w)) != STRATA_OK || (st = check_pages(w)) != STRATA_OK ||
        (st = check_slices(w, w->table_first, w->table_count)) != STRATA_OK ||
        (st = check_slices(w, w->head_first, w->head_count)) != STRATA_OK)
        return st;
    return check_costs(w);
}

strata_status st_workload_copy(struct st_workload *out, const struct st_workload *in)
{
    struct st_page *pages = calloc(in->page_count > 0 ? in->page_count : 1, sizeof(*pages));
    struct st_span *order = in->order != NULL ? calloc(in->order_count, sizeof(*order)) : NULL;

    if (pages == NULL || (order == NULL && in->order != NULL)) {
        free(pages);
        return st_nomem(0);
    }
    if (in->page_count > 0)
        memcpy(pages, in->pages, in->page_count * sizeof(*pages));
    if (order != NULL)
        memcpy(order, in->order, in->order_count * sizeof(*order));
    *out = *in;
    out->pages = pages;
    out->order = order;
    return STRATA_OK;
}

void st_workload_fini(struct st_workload *w)
{
    if (w == NULL)
        return;
    free(w->pages);
    free(w->order);
    w->pages = NULL;
    w->order = NULL;
    w->page_count = w->order_count = 0;
}

/* offload/workload.c - makes, checks and copies workloads. */
#include "offload/workload.h"
#include "core/base/error.h"
#include "core/base/fault.h"
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
    return st_page_add_to(page, 0, kind, format, elems);
}

uint64_t st_page_add_to(struct st_page *page, uint32_t set, enum st_group_kind kind, strata_dtype format, uint64_t elems)
{
    struct st_group *g = page->group_count > 0 ? &page->groups[page->group_count - 1] : NULL;
    uint64_t first;

    if (g == NULL || g->kind != kind || g->format != format || g->set != set) {
        assert(page->group_count < ST_GROUPS_MAX);
        g = &page->groups[page->group_count++];
        *g = (struct st_group){.kind = kind, .format = format, .offset = page->elems, .at = page->bytes, .set = set};
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

/* --- to make one --- */

/* Room for one more: lists grow when their counts are powers of two. */
static bool grow(void **list, uint32_t count, size_t size)
{
    void *grown;

    if ((count & (count - 1)) != 0)
        return true;
    grown = st_fault("workload.grow", 0) < 0 ? NULL : realloc(*list, (count > 0 ? 2 * (size_t)count : 1) * size);
    *list = grown != NULL ? grown : *list;
    return grown != NULL;
}

bool st_workload_add_layer(struct st_workload *w, enum st_layer_kind kind)
{
    if (!grow((void **)&w->layers, w->layer_count, sizeof(*w->layers)))
        return false;
    w->layers[w->layer_count++] = (struct st_layer){.kind = kind, .use_first = w->use_count};
    return true;
}

bool st_workload_add_use(struct st_workload *w, uint32_t page)
{
    if (!grow((void **)&w->uses, w->use_count, sizeof(*w->uses)))
        return false;
    w->uses[w->use_count++] = page;
    w->layers[w->layer_count - 1].use_count++;
    w->pages[page].uses++;
    return true;
}

struct st_page *st_workload_add_page(struct st_workload *w, unsigned flags)
{
    if (!grow((void **)&w->pages, w->page_count, sizeof(*w->pages)))
        return NULL;
    w->pages[w->page_count] = (struct st_page){.flags = (uint16_t)flags, .layer = w->layer_count - 1};
    if (!st_workload_add_use(w, w->page_count))
        return NULL;
    w->gathered_count += (flags & ST_PAGE_GATHERED) != 0;
    return &w->pages[w->page_count++];
}

uint64_t st_workload_boundary_most(const struct st_workload *w)
{
    uint64_t most = 0;

    for (uint32_t l = 0; l < w->layer_count; l++)
        most = w->layers[l].boundary_bytes > most ? w->layers[l].boundary_bytes : most;
    return most;
}

/* --- to check one --- */

static strata_status check_counts(const struct st_workload *w)
{
    if (strata_dtype_bytes(w->dtype) == 0)
        return fault(w, "dtype is none of bf16, fp16 and fp32");
    if (w->seq == 0 || w->micro_batch == 0 || w->grad_accum == 0 || (w->vocab == 0) != (w->hidden == 0))
        return fault(w, "a size is 0");
    if (w->generate && (w->micro_batch != 1 || w->grad_accum != 1))
        return fault(w, "generation of more than one sequence");
    if (w->workers == 0)
        return fault(w, "workspaces are sized for no worker");
    if (w->pages == NULL || w->page_count == 0)
        return fault(w, "no pages");
    if (w->layers == NULL || w->layer_count == 0)
        return fault(w, "no layers");
    return w->workspace_bytes > 0 || st_workload_opaque(w) ? STRATA_OK : fault(w, "a workspace of 0 bytes");
}

static strata_status check_slices(const struct st_workload *w, uint32_t layer, uint32_t from, uint32_t count)
{
    uint32_t row = 0, most = 0;

    for (uint32_t i = from; i < from + count; i++) {
        const uint32_t page = st_layer_page(w, layer, i);
        const struct st_page *p = &w->pages[page];

        if (p->row_first != row || p->row_count == 0 || p->row_count > w->vocab - row)
            return page_fault(w, page, "slices do not cover the vocabulary in order");
        if (p->params != (uint64_t)p->row_count * w->hidden)
            return page_fault(w, page, "a slice is not whole rows");
        most = i == from ? p->row_count : most;
        if (p->row_count > most || (i + 1 < from + count && p->row_count != most))
            return page_fault(w, page, "slices differ in rows before the last");
        row += p->row_count;
    }
    return row == w->vocab && w->vocab > 0 ? STRATA_OK : fault(w, "slices do not cover the vocabulary");
}

/* The first layer looks up its gathered pages; it may have another one. */
static strata_status check_lookup(const struct st_workload *w)
{
    const uint32_t gathered = w->gathered_count;

    if (w->layers[0].kind != ST_LAYER_LOOKUP)
        return gathered == 0 ? STRATA_OK : fault(w, "pages are gathered, and no layer looks them up");
    if (gathered == 0 || w->layer_count < 2 || w->layers[0].use_count > gathered + 1 || w->layers[0].use_count < gathered)
        return fault(w, "the lookup's pages");
    if (w->layers[0].use_count > gathered && w->pages[gathered].flags != ST_PAGE_SMALL)
        return page_fault(w, gathered, "what is added to the rows is not small");
    return check_slices(w, 0, 0, gathered);
}

/* The last layer has a small page, then those of rows: all gathered ones, or its own. */
static strata_status check_loss(const struct st_workload *w)
{
    const uint32_t last = w->layer_count - 1, count = w->layers[last].use_count;
    uint32_t gathered = 0;

    if (w->layers[last].kind != ST_LAYER_LOSS)
        return STRATA_OK;
    if (last == 0 || count < 2 || w->pages[st_layer_page(w, last, 0)].flags != ST_PAGE_SMALL)
        return fault(w, "the pages of the layer of losses");
    for (uint32_t i = 1; i < count; i++)
        gathered += st_layer_page(w, last, i) < w->gathered_count;
    if (gathered != 0 && (gathered != w->gathered_count || count != 1 + gathered))
        return fault(w, "a tied head is not the table");
    return check_slices(w, last, 1, count - 1);
}

static strata_status check_layer(const struct st_workload *w, uint32_t l)
{
    const struct st_layer *layer = &w->layers[l];
    const bool last = l + 1 == w->layer_count;
    uint32_t small = 0;

    if (layer->kind > ST_LAYER_EXPERTS || ((layer->kind == ST_LAYER_LOOKUP || layer->kind == ST_LAYER_RESIDENT) && l > 0) ||
        (layer->kind == ST_LAYER_LOSS && !last) || (st_workload_opaque(w) && (layer->kind == ST_LAYER_BLOCK) != (l > 0)))
        return fault(w, "a layer's kind, or its place");
    if (last ? layer->boundary_bytes != 0 : layer->boundary_bytes == 0 && !st_workload_opaque(w))
        return fault(w, "the bytes of a boundary");
    if (layer->kind == ST_LAYER_BLOCK && layer->use_count > ST_LAYER_PAGES_MAX)
        return fault(w, "a layer has too many pages at once");
    if (layer->kind == ST_LAYER_EXPERTS && (l == 0 || last || layer->use_count < 2 || layer->internal_bytes == 0))
        return fault(w, "a layer of experts: its place, its slices or its internals");
    if (layer->kind == ST_LAYER_LOSS && layer->internal_bytes == 0)
        return fault(w, "the layer of losses has no internals");
    for (uint32_t i = 0; i < layer->use_count; i++) {
        const struct st_page *p = &w->pages[st_layer_page(w, l, i)];

        small += (p->flags & ST_PAGE_SMALL) != 0;
        if ((p->flags & ST_PAGE_GATHERED) != 0 && layer->kind == ST_LAYER_BLOCK)
            return fault(w, "a block has a gathered page");
        if (layer->kind == ST_LAYER_EXPERTS && !st_page_is_plain(p))
            return fault(w, "a page of a layer of experts is not plain");
        if (st_workload_opaque(w) && p->uses > 1)
            return fault(w, "a page of a caller's layers has several uses");
        for (uint32_t k = 0; k < i; k++)
            if (st_layer_page(w, l, k) == st_layer_page(w, l, i))
                return fault(w, "a layer has a page twice");
    }
    return small <= 1 ? STRATA_OK : fault(w, "two small pages in a layer");
}

/* Counts of uses, and that pages are numbered as they are first used. */
static strata_status check_uses(const struct st_workload *w)
{
    uint32_t end = 0, known = 0, counted = 0;

    for (uint32_t l = 0; l < w->layer_count; l++) {
        if (w->layers[l].use_first != end || w->layers[l].use_count > w->use_count - end)
            return fault(w, "uses do not follow the layers");
        for (end += w->layers[l].use_count; counted < end; counted++) {
            if (w->uses[counted] > known || w->uses[counted] >= w->page_count)
                return fault(w, "pages are not numbered in the order of their first use");
            if (w->uses[counted] == known && w->pages[known++].layer != l)
                return page_fault(w, known - 1, "its layer");
        }
    }
    if (end != w->use_count || known != w->page_count)
        return fault(w, "a page is not used");
    for (uint32_t p = 0, uses = 0; p < w->page_count; uses += w->pages[p++].uses)
        if (w->pages[p].uses == 0 || ((w->pages[p].flags & ST_PAGE_GATHERED) != 0) != (p < w->gathered_count) ||
            (p + 1 == w->page_count && uses + w->pages[p].uses != w->use_count))
            return page_fault(w, p, "its uses");
    return STRATA_OK;
}

static strata_status check_layers(const struct st_workload *w)
{
    strata_status st = STRATA_OK;

    for (uint32_t l = 0; l < w->layer_count && st == STRATA_OK; l++)
        st = check_layer(w, l);
    if (st == STRATA_OK)
        st = check_lookup(w);
    return st == STRATA_OK ? check_loss(w) : st;
}

/* Trained weights have the workload's dtype or, if they are an adapter's, fp32; what is frozen may be quantised. */
static bool is_format_of(const struct st_workload *w, const struct st_group *g)
{
    return g->format == w->dtype || g->format == STRATA_F32 || (g->format == STRATA_NF4 && g->kind == ST_GROUP_FROZEN);
}

/* By kind; of one kind no two that are stored and trained alike. */
static bool is_in_order(const struct st_page *p, uint32_t group)
{
    for (uint32_t i = 0; i < group; i++)
        if (p->groups[i].kind > p->groups[group].kind ||
            (p->groups[i].kind == p->groups[group].kind && p->groups[i].format == p->groups[group].format &&
             p->groups[i].set == p->groups[group].set))
            return false;
    return p->groups[group].kind <= ST_GROUP_FROZEN && p->groups[group].set < ST_SETS_MAX;
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

uint64_t st_workload_params(const struct st_workload *w)
{
    uint64_t params = 0;

    for (uint32_t i = 0; i < w->page_count; i++)
        params += trained_params(&w->pages[i]);
    return params;
}

static strata_status check_pages(const struct st_workload *w)
{
    strata_status st;

    for (uint32_t i = 0; i < w->page_count; i++)
        if ((st = check_groups(w, i)) != STRATA_OK)
            return st;
    return w->params == st_workload_params(w) ? STRATA_OK : fault(w, "params is not the sum over the pages");
}

static bool is_cost(double flops)
{
    return isfinite(flops) && flops >= 0.0;
}

/* What is chosen in a layer of experts lies in its internals, and its slices have all experts. */
static bool choice_fits(const struct st_workload *w, const struct st_layer *layer)
{
    const uint64_t slices = st_layer_slices(layer), bytes = layer->internal_bytes;

    return layer->kind != ST_LAYER_EXPERTS || w->experts == 0 ||
           (w->choice_offset <= bytes && bytes - w->choice_offset >= st_workload_choice_bytes(w) && w->slice_experts > 0 &&
            slices == (w->experts + (uint64_t)w->slice_experts - 1) / w->slice_experts);
}

static strata_status check_costs(const struct st_workload *w)
{
    const uint64_t internals = w->layers[w->layer_count - 1].internal_bytes;

    if (w->generate && (st_slice_count(w) == 0 || w->logits_offset > internals ||
                        internals - w->logits_offset < (uint64_t)w->vocab * sizeof(float)))
        return fault(w, "logits leave the last layer's internals");
    if (w->experts > 0 && !w->generate)
        return fault(w, "experts are chosen in generation alone");
    for (uint32_t l = 0; l < w->layer_count; l++)
        if (!choice_fits(w, &w->layers[l]))
            return fault(w, "the choice of experts leaves a layer's internals, or slices");
    for (uint32_t l = 0; l < w->layer_count; l++)
        if (!is_cost(w->layers[l].forward_flops) || !is_cost(w->layers[l].backward_flops) ||
            !is_cost(w->layers[l].forward_seconds) || !is_cost(w->layers[l].backward_seconds) ||
            !is_cost(w->layers[l].experts_forward_flops) || !is_cost(w->layers[l].experts_backward_flops))
            return fault(w, "FLOPs, or seconds");
    return is_cost(w->model_flops_per_token) ? STRATA_OK : fault(w, "FLOPs");
}

strata_status st_workload_check(const struct st_workload *w)
{
    strata_status st;

    if ((st = check_counts(w)) != STRATA_OK || (st = check_uses(w)) != STRATA_OK || (st = check_pages(w)) != STRATA_OK ||
        (st = check_layers(w)) != STRATA_OK)
        return st;
    return check_costs(w);
}

/* A copy of a list, in *to; false: no memory. */
static bool copied(void *to, const void *list, uint32_t count, size_t size)
{
    void *copy = list != NULL ? malloc(count * size + 1) : NULL;

    if (copy != NULL)
        memcpy(copy, list, count * size);
    memcpy(to, &copy, sizeof(copy));
    return copy != NULL || list == NULL;
}

strata_status st_workload_copy(struct st_workload *out, const struct st_workload *in)
{
    struct st_workload copy = *in;
    const bool pages = copied(&copy.pages, in->pages, in->page_count, sizeof(*in->pages));
    const bool layers = copied(&copy.layers, in->layers, in->layer_count, sizeof(*in->layers));
    const bool uses = copied(&copy.uses, in->uses, in->use_count, sizeof(*in->uses));

    if (!copied(&copy.order, in->order, in->order_count, sizeof(*in->order)) || !pages || !layers || !uses) {
        st_workload_fini(&copy);
        return st_nomem(0);
    }
    *out = copy;
    return STRATA_OK;
}

void st_workload_fini(struct st_workload *w)
{
    if (w == NULL)
        return;
    free(w->pages);
    free(w->layers);
    free(w->uses);
    free(w->order);
    w->pages = NULL;
    w->layers = NULL;
    w->uses = NULL;
    w->order = NULL;
    w->page_count = w->layer_count = w->use_count = w->order_count = 0;
}

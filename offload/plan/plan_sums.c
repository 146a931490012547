/* plan_sums.c - sums over pages and chunks, computed once, so that sizing a candidate need not go through them. */
#include "offload/plan/plan_predicates.h"

#include "core/base/error.h"

#include <stdlib.h>

static bool alike(const struct st_workload *w, uint32_t a, uint32_t b)
{
    const struct st_page *x = &w->pages[a], *y = &w->pages[b];

    if ((a < st_workload_stay(w)) != (b < st_workload_stay(w)))
        return false;
    if (st_page_leads(w, a) || st_page_leads(w, b))
        return false;
    if (st_page_adds(x) > 1 || x->flags != y->flags || x->uses != y->uses || (x->row_count > 0) != (y->row_count > 0) ||
        x->elems != y->elems || x->group_count != y->group_count)
        return false;
    for (uint32_t i = 0; i < x->group_count; i++)
        if (x->groups[i].kind != y->groups[i].kind || x->groups[i].format != y->groups[i].format ||
            x->groups[i].elems != y->groups[i].elems)
            return false;
    return true;
}

static void sum_chunks(const struct st_plan *plan, struct st_plan_sums *sums)
{
    const uint32_t count = plan->program.chunk_count;

    sums->state_bytes[0] = 0;
    for (uint32_t c = 0; c < count; c++) {
        const struct st_chunk *chunk = &plan->program.chunks[c];

        sums->state_bytes[c + 1] = sums->state_bytes[c] + (chunk->group == ST_GROUP_FROZEN ? 0 : chunk->bytes);
    }
    for (uint32_t p = 0; p < plan->program.workload.page_count; p++)
        sums->page_largest[p] = 0;
    for (uint32_t c = 0; c < count; c++) {
        const uint64_t bytes = sums->state_bytes[c + 1] - sums->state_bytes[c];
        uint64_t *largest = &sums->page_largest[plan->program.chunks[c].page];

        *largest = bytes > *largest ? bytes : *largest;
    }
    sums->state_largest[count] = 0;
    for (uint32_t c = count; c-- > 0;) {
        const uint64_t bytes = sums->state_bytes[c + 1] - sums->state_bytes[c], after = sums->state_largest[c + 1];

        sums->state_largest[c] = bytes > after ? bytes : after;
    }
}

/* Whatever the decisions: of every page and chunk, wherever it lives. */
static void sum_spaces(const struct st_plan *plan, struct st_plan_sums *sums)
{
    const struct st_workload *w = &plan->program.workload;

    sums->set_bytes = sums->state_bytes[plan->program.chunk_count];
    sums->saved_largest = sums->state_largest[0];
    for (uint32_t p = 0; p < w->page_count; p++) {
        const struct st_page *shard = &plan->program.shards[p];
        const uint64_t bytes = st_extent_bytes(st_page_set_bytes(shard));

        sums->set_bytes += bytes;
        sums->saved_largest = bytes > sums->saved_largest ? bytes : sums->saved_largest;
        sums->base_bytes += st_extent_bytes(st_page_base_bytes(shard));
    }
}

/* Of gradients: sums of this rank's slices, but of a table that is only looked up, whose rows come by micro-batch; at stage 0 the
 * others' rounded slices, too. */
static uint64_t exchanged_bytes(const struct st_plan *plan, uint32_t p)
{
    const struct st_program *program = &plan->program;
    const bool summed = st_page_adds(&program->workload.pages[p]) > 0;

    if (program->ranks == 1 || !st_place_trained(plan, p))
        return 0;
    return (summed ? st_program_wire_bytes(program, p) : 0) + (program->stage == 0 ? st_program_gathered_grads(program, p) : 0);
}

static void sum_exchanges(const struct st_plan *plan, struct st_plan_sums *sums)
{
    sums->gathered[0] = sums->regathered[0] = sums->exchanged[0] = 0;
    for (uint32_t p = 0; p < plan->program.workload.page_count; p++) {
        sums->gathered[p + 1] = sums->gathered[p] + st_program_gathered_bytes(&plan->program, p, false);
        sums->regathered[p + 1] = sums->regathered[p] + st_program_gathered_bytes(&plan->program, p, true);
        sums->exchanged[p + 1] = sums->exchanged[p] + exchanged_bytes(plan, p);
    }
}

/* The lowest layer that has something to train, and the pages whose gradients leave last (plan_internal.h). */
static void find_last(const struct st_plan *plan, struct st_plan_sums *sums)
{
    const struct st_workload *w = &plan->program.workload;
    const uint32_t block = st_block_first(w);
    uint32_t low, *last = sums->last;

    sums->lowest_layer = w->layer_count;
    for (uint32_t p = w->page_count; p-- > 0;)
        if (st_place_trained(plan, p) && w->pages[p].layer < sums->lowest_layer)
            sums->lowest_layer = w->pages[p].layer;
    last[0] = last[1] = ST_NO_PAGE;
    if (sums->lowest_layer == w->layer_count)
        return;
    for (uint32_t p = 0; p < st_workload_stay(w); p++) /* the first of them that is trained is closed after all layers */
        if (st_place_trained(plan, p)) {
            last[0] = p;
            return;
        }
    if (w->layers[0].kind == ST_LAYER_LOOKUP && w->layers[0].use_count > w->gathered_count)
        last[0] = w->gathered_count;
    low = sums->lowest_layer < block ? block : sums->lowest_layer;
    for (uint32_t i = 0; i < w->layers[low].use_count; i++) {
        const bool experts = w->layers[low].kind == ST_LAYER_EXPERTS; /* whose first page comes last */
        const uint32_t next = (i + 1) % w->layers[low].use_count;
        const uint32_t p = st_layer_page(w, low, w->layers[low].kind == ST_LAYER_BLOCK ? i : experts ? next : 0);

        last[1] = st_place_trained(plan, p) && w->pages[p].layer == low ? p : last[1];
    }
}

/* Bytes of layers' internals and boundaries, and how many pages their ops have at once. */
static strata_status sum_layers(const struct st_plan *plan, struct st_plan_sums *sums)
{
    const struct st_workload *w = &plan->program.workload;
    const uint32_t count = w->layer_count, end = st_block_end(w);

    sums->internals_from = calloc(count + 1, sizeof(*sums->internals_from));
    sums->internals_most = calloc(count + 1, sizeof(*sums->internals_most));
    sums->experts_most = calloc(count + 1, sizeof(*sums->experts_most));
    sums->layer_end = malloc(count * sizeof(*sums->layer_end));
    sums->experts_first = count;
    if (sums->internals_from == NULL || sums->experts_most == NULL || sums->internals_most == NULL || sums->layer_end == NULL)
        return st_nomem(0);
    sums->pages_at_once = sums->sums_at_once = sums->leaves_at_once = 1;
    for (uint32_t l = count; l-- > 0;) {
        const struct st_layer *layer = &w->layers[l], *above = layer + 1;
        const bool last = l + 1 == count || layer->kind != above->kind || layer->forward_flops != above->forward_flops ||
                          layer->backward_flops != above->backward_flops || layer->forward_seconds != above->forward_seconds ||
                          layer->backward_seconds != above->backward_seconds ||
                          layer->experts_forward_flops != above->experts_forward_flops ||
                          layer->experts_backward_flops != above->experts_backward_flops || layer->use_count != above->use_count;
        uint32_t pages = 0, trained = 0, all = 0;

        if (layer->kind == ST_LAYER_EXPERTS)
            sums->experts_first = l;
        sums->layer_end[l] = last ? l + 1 : sums->layer_end[l + 1];
        sums->internals_from[l] = sums->internals_from[l + 1] + (l < end ? st_device_bytes(layer->internal_bytes) : 0);
        for (uint32_t i = 0; layer->kind == ST_LAYER_BLOCK && i < layer->use_count; i++) {
            const uint32_t p = st_layer_page(w, l, i);

            pages += !st_place_is_small(plan, p);
            trained += !st_place_is_small(plan, p) && st_place_trained(plan, p);
            all += st_place_trained(plan, p);
        }
        sums->pages_at_once = pages > sums->pages_at_once ? pages : sums->pages_at_once;
        sums->sums_at_once = trained > sums->sums_at_once ? trained : sums->sums_at_once;
        sums->leaves_at_once = all > sums->leaves_at_once ? all : sums->leaves_at_once;
    }
    for (uint32_t l = 0; l < end; l++) {
        const uint64_t bytes = w->layers[l].internal_bytes, of_experts = w->layers[l].kind == ST_LAYER_EXPERTS ? bytes : 0;

        sums->internals_most[l + 1] = bytes > sums->internals_most[l] ? bytes : sums->internals_most[l];
        sums->experts_most[l + 1] = of_experts > sums->experts_most[l] ? of_experts : sums->experts_most[l];
    }
    for (uint32_t l = 0; l + 1 < count; l++) {
        sums->boundaries[0] += st_device_bytes(w->layers[l].boundary_bytes);
        sums->boundaries[1] += st_extent_bytes(w->layers[l].boundary_bytes);
        sums->boundaries_plain += w->layers[l].boundary_bytes;
    }
    sums->boundary_most = st_workload_boundary_most(w);
    for (uint32_t p = 0; p < w->page_count; p++) {
        sums->block_pages[0] += w->pages[p].layer < st_block_first(w);
        sums->block_pages[1] += w->pages[p].layer < end;
    }
    return STRATA_OK;
}

static bool slices_save(const struct st_program *program)
{
    const struct st_workload *w = &program->workload;
    uint64_t whole = 0, shards = 0, largest = 0;

    for (uint32_t p = 0; p < w->page_count; p++) {
        if (!st_page_is_plain(&w->pages[p]))
            continue;
        whole += w->pages[p].bytes;
        shards += program->shards[p].bytes;
        largest = w->pages[p].bytes > largest ? w->pages[p].bytes : largest;
    }
    return shards + largest < whole;
}

static bool trained_f32(const struct st_workload *w)
{
    for (uint32_t p = 0; p < w->page_count; p++)
        for (uint32_t i = 0; i < w->pages[p].group_count; i++)
            if (w->pages[p].groups[i].kind != ST_GROUP_FROZEN && w->pages[p].groups[i].format != STRATA_F32)
                return false;
    return true;
}

strata_status st_plan_sums_make(struct st_plan *plan)
{
    const struct st_workload *w = &plan->program.workload;
    struct st_plan_sums *sums = calloc(1, sizeof(*sums));

    plan->sums = sums;
    if (sums == NULL)
        return st_nomem(sizeof(*sums));
    sums->run_end = malloc(w->page_count * sizeof(*sums->run_end));
    sums->plain = malloc(((size_t)w->page_count + 1) * sizeof(*sums->plain));
    sums->run_first = malloc(w->page_count * sizeof(*sums->run_first));
    sums->page_largest = malloc(w->page_count * sizeof(*sums->page_largest));
    sums->gathered = malloc(((size_t)w->page_count + 1) * sizeof(*sums->gathered));
    sums->regathered = malloc(((size_t)w->page_count + 1) * sizeof(*sums->regathered));
    sums->exchanged = malloc(((size_t)w->page_count + 1) * sizeof(*sums->exchanged));
    sums->state_bytes = malloc(((size_t)plan->program.chunk_count + 1) * sizeof(*sums->state_bytes));
    sums->state_largest = malloc(((size_t)plan->program.chunk_count + 1) * sizeof(*sums->state_largest));
    if (sums->plain == NULL || sums->run_end == NULL || sums->run_first == NULL || sums->page_largest == NULL ||
        sums->state_bytes == NULL || sums->state_largest == NULL || sums->gathered == NULL || sums->regathered == NULL ||
        sums->exchanged == NULL || st_plan_early_make(plan, &sums->mix) != STRATA_OK)
        return st_nomem(0);
    for (uint32_t p = w->page_count; p-- > 0;) {
        const bool last = p + 1 == w->page_count || !alike(w, p, p + 1);

        sums->run_end[p] = last ? p + 1 : sums->run_end[p + 1];
    }
    for (uint32_t p = 0; p < w->page_count; p++)
        sums->run_first[p] = p > 0 && sums->run_end[p - 1] == sums->run_end[p] ? sums->run_first[p - 1] : p;
    sums->plain[0] = 0;
    for (uint32_t p = 0; p < w->page_count; p++)
        sums->plain[p + 1] = sums->plain[p] + st_page_is_plain(&w->pages[p]);
    sum_chunks(plan, sums);
    sum_spaces(plan, sums);
    sum_exchanges(plan, sums);
    sums->trained_f32 = trained_f32(w);
    sums->slices_save = slices_save(&plan->program);
    find_last(plan, sums);
    return sum_layers(plan, sums);
}

void st_plan_sums_free(struct st_plan_sums *sums)
{
    if (sums == NULL)
        return;
    free(sums->plain);
    st_plan_early_free(&sums->mix);
    free(sums->internals_from);
    free(sums->internals_most);
    free(sums->experts_most);
    free(sums->layer_end);
    free(sums->run_end);
    free(sums->run_first);
    free(sums->page_largest);
    free(sums->gathered);
    free(sums->regathered);
    free(sums->exchanged);
    free(sums->state_bytes);
    free(sums->state_largest);
    free(sums);
}

static uint32_t cut(uint32_t end, uint32_t page, uint32_t boundary)
{
    return boundary > page && boundary < end ? boundary : end;
}

/* Of `count` pages, how many of the first are streamed: see st_place_streamed(). */
static uint32_t streamed_before(const struct st_plan *plan, uint32_t count)
{
    return (uint32_t)((uint64_t)count * plan->decided.streamed / ST_STREAMED_PARTS);
}

/* Of the pages from `first` up to `end`, how many are streamed, or, where none is, updated early. */
static uint32_t special_among(const struct st_plan *plan, uint32_t first, uint32_t end)
{
    const uint32_t *plain = plan->sums->plain, low = plain[plan->decided.device_state_pages];

    if (plan->decided.streamed == 0)
        return st_place_early_from(plan, first) - st_place_early_from(plan, end);
    return streamed_before(plan, plain[end] - low) - streamed_before(plan, plain[first] - low);
}

static bool is_special(const struct st_plan *plan, uint32_t page)
{
    return plan->decided.streamed == 0 ? st_place_early(plan, page) : st_place_streamed(plan, page);
}

/* Pages [first, *end) of a run, of which such ones stand between others: the first of either kind, and how many there are.
 * Of several ranks each page has other slices, so that only neighbours are counted together. */
static uint32_t part(struct st_alike parts[ST_ALIKE_MAX], const struct st_plan *plan, uint32_t first, uint32_t *end)
{
    const uint32_t special = special_among(plan, first, *end);
    const bool is = is_special(plan, first);
    uint32_t other = first;

    parts[0] = (struct st_alike){first, is ? special : *end - first - special};
    if (parts[0].count == *end - first)
        return 1;
    while (is_special(plan, other) == is)
        other++;
    parts[1] = (struct st_alike){other, *end - first - parts[0].count};
    if (plan->program.ranks == 1)
        return 2;
    *end = other;
    parts[0].count = other - first;
    return 1;
}

uint32_t st_plan_alike(struct st_alike parts[ST_ALIKE_MAX], const struct st_plan *plan, uint32_t page, uint32_t *end)
{
    *end = plan->sums->run_end[page];
    *end = cut(*end, page, plan->decided.resident_pages);
    *end = cut(*end, page, plan->decided.device_state_pages);
    *end = cut(*end, page, plan->decided.cached_weight_pages);
    *end = cut(*end, page, plan->decided.device_accum_pages);
    *end = cut(*end, page, plan->decided.host_grad_pages);
    *end = cut(*end, page, st_place_early_low(plan));
    if (plan->decided.streamed > 0 ? page >= plan->decided.device_state_pages && st_page_is_plain(st_place_page(plan, page)) &&
                                         st_place_trained(plan, page)
                                   : page >= st_place_early_low(plan))
        return part(parts, plan, page, end);
    parts[0] = (struct st_alike){page, *end - page};
    return 1;
}

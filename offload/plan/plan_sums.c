/* plan_sums.c - sums over pages and chunks, computed once, so that sizing a candidate need not go through them.  Kinds of pages:
 * plan_kinds.c. */
#include "offload/plan/plan_predicates.h"

#include "core/base/error.h"

#include <stdlib.h>

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
    sums->gathered[0] = sums->regathered[0] = 0;
    for (uint32_t i = 0; i < plan->program.workload.page_count; i++) {
        const uint32_t p = sums->by_kind[i];

        sums->gathered[i + 1] = sums->gathered[i] + st_program_gathered_bytes(&plan->program, p, false);
        sums->regathered[i + 1] = sums->regathered[i] + st_program_gathered_bytes(&plan->program, p, true);
        sums->exchanged += exchanged_bytes(plan, p);
        sums->wires[p] = st_program_wire_slot(&plan->program, p);
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
    sums->layer_pages = malloc(((size_t)count + 1) * sizeof(*sums->layer_pages));
    sums->experts_first = count;
    if (sums->internals_from == NULL || sums->experts_most == NULL || sums->internals_most == NULL || sums->layer_end == NULL ||
        sums->layer_pages == NULL)
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
    for (uint32_t l = 0, p = 0; l <= count; l++) {
        while (p < w->page_count && w->pages[p].layer < l)
            p++;
        sums->layer_pages[l] = p;
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
    sums->by_kind = malloc(w->page_count * sizeof(*sums->by_kind));
    sums->kind_end = malloc(w->page_count * sizeof(*sums->kind_end));
    sums->run_end = malloc(w->page_count * sizeof(*sums->run_end));
    sums->piece_first = malloc(w->page_count * sizeof(*sums->piece_first));
    sums->plain = malloc(((size_t)w->page_count + 1) * sizeof(*sums->plain));
    sums->page_largest = malloc(w->page_count * sizeof(*sums->page_largest));
    sums->gathered = malloc(((size_t)w->page_count + 1) * sizeof(*sums->gathered));
    sums->regathered = malloc(((size_t)w->page_count + 1) * sizeof(*sums->regathered));
    sums->wires = malloc(w->page_count * sizeof(*sums->wires));
    sums->state_bytes = malloc(((size_t)plan->program.chunk_count + 1) * sizeof(*sums->state_bytes));
    sums->state_largest = malloc(((size_t)plan->program.chunk_count + 1) * sizeof(*sums->state_largest));
    if (sums->plain == NULL || sums->by_kind == NULL || sums->kind_end == NULL || sums->run_end == NULL ||
        sums->piece_first == NULL || sums->page_largest == NULL || sums->state_bytes == NULL || sums->state_largest == NULL ||
        sums->gathered == NULL || sums->regathered == NULL || sums->wires == NULL ||
        st_plan_early_make(plan, &sums->mix) != STRATA_OK || st_plan_kinds_find(plan, sums) != STRATA_OK)
        return st_nomem(0);
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
    free(sums->piece_first);
    free(sums->by_kind);
    free(sums->kind_end);
    free(sums->layer_pages);
    free(sums->page_largest);
    free(sums->gathered);
    free(sums->regathered);
    free(sums->wires);
    free(sums->state_bytes);
    free(sums->state_largest);
    free(sums);
}

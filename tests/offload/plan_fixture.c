/* plan_fixture.c - see plan_fixture.h. */
#include "plan_fixture.h"
#include "tests/common/test.h"

#include "core/base/rng.h"

#include <stdlib.h>
#include <string.h>

uint64_t plan_draw(struct plan_draws *draws, uint64_t below)
{
    return st_rng_u64(draws->seed, 5, draws->at++) % below;
}

const struct plan_sizes plan_small = {.dtype = STRATA_BF16,
                                      .blocks = 2,
                                      .hidden = 64,
                                      .vocab = 200,
                                      .slice_rows = 100,
                                      .seq = 8,
                                      .micro_batch = 1,
                                      .grad_accum = 1,
                                      .positions = true};

static void add_format(struct st_workload *w, struct st_page *page, enum st_group_kind kind, strata_dtype format, uint64_t elems)
{
    if (elems == 0)
        return;
    (void)st_page_add(page, kind, format, elems);
    if (kind != ST_GROUP_FROZEN)
        w->params += elems;
}

static void add_group(struct st_workload *w, struct st_page *page, enum st_group_kind kind, uint64_t elems)
{
    add_format(w, page, kind, w->dtype, elems);
}

static struct st_page *add_page(struct st_workload *w, enum st_page_kind kind, uint32_t layer, uint64_t decay, uint64_t no_decay,
                                enum plan_frozen frozen)
{
    struct st_page *page = &w->pages[w->page_count++];

    *page = (struct st_page){.kind = kind, .layer = layer};
    if (frozen == PLAN_FROZEN) {
        add_group(w, page, ST_GROUP_FROZEN, decay + no_decay);
        return page;
    }
    add_group(w, page, ST_GROUP_DECAY, decay);
    add_group(w, page, frozen == PLAN_PART_FROZEN ? ST_GROUP_FROZEN : ST_GROUP_NO_DECAY, no_decay);
    return page;
}

/* A frozen block with adapters. */
static void add_adapted(struct st_workload *w, const struct plan_sizes *s, uint32_t layer, uint64_t matrices, uint64_t vectors)
{
    struct st_page *page = &w->pages[w->page_count++];

    *page = (struct st_page){.kind = ST_PAGE_BLOCK, .layer = layer};
    add_format(w, page, ST_GROUP_DECAY, STRATA_F32, s->adapter_params);
    add_group(w, page, ST_GROUP_FROZEN, s->quantised ? vectors : matrices + vectors);
    if (s->quantised) /* each begins with a whole record */
        add_format(w, page, ST_GROUP_FROZEN, STRATA_NF4, (matrices + ST_PAGE_ALIGN - 1) / ST_PAGE_ALIGN * ST_PAGE_ALIGN);
}

static void add_slices(struct st_workload *w, enum st_page_kind kind, uint32_t layer, uint32_t slice_rows,
                       enum plan_frozen frozen)
{
    for (uint32_t first = 0; first < w->vocab; first += slice_rows) {
        const uint32_t count = w->vocab - first < slice_rows ? w->vocab - first : slice_rows;
        struct st_page *page = add_page(w, kind, layer, (uint64_t)count * w->hidden, 0, frozen);

        page->row_first = first;
        page->row_count = count;
    }
}

static void add_pages(struct st_workload *w, const struct plan_sizes *s, const enum plan_frozen *frozen)
{
    const uint64_t block = s->block_params != 0 ? s->block_params : 12ull * s->hidden * s->hidden;

    add_slices(w, ST_PAGE_TABLE, 0, s->slice_rows, frozen[0]);
    w->table_count = w->page_count;
    w->position_page = s->positions ? w->page_count : ST_NO_PAGE;
    if (s->positions)
        add_page(w, ST_PAGE_POSITIONS, 0, (uint64_t)s->seq * s->hidden, 0, frozen[0]);
    w->block_first = w->page_count;
    for (uint32_t b = 0; b < s->blocks; b++)
        if (s->adapter_params > 0)
            add_adapted(w, s, 1 + b, block, 13ull * s->hidden);
        else
            add_page(w, ST_PAGE_BLOCK, 1 + b, block, 13ull * s->hidden, frozen[1 + b]);
    w->norm_page = w->page_count;
    add_page(w, ST_PAGE_NORM, s->blocks + 1, s->hidden, s->tied ? s->hidden : 0, frozen[s->blocks + 1]);
    w->tied = s->tied;
    w->head_first = s->tied ? 0 : w->page_count;
    w->head_count = w->table_count;
    if (!s->tied)
        add_slices(w, ST_PAGE_HEAD, s->blocks + 1, s->slice_rows, frozen[s->blocks + 1]);
}

void plan_workload(struct st_workload *w, const struct plan_sizes *s, const enum plan_frozen *frozen)
{
    const uint64_t rows = (uint64_t)s->micro_batch * s->seq;
    const uint32_t slices = (s->vocab + s->slice_rows - 1) / s->slice_rows;
    enum plan_frozen *none = calloc(s->blocks + 2, sizeof(*none));

    *w = (struct st_workload){.name = "fixture",
                              .dtype = s->dtype,
                              .block_count = s->blocks,
                              .vocab = s->vocab,
                              .hidden = s->hidden,
                              .seq = s->seq,
                              .micro_batch = s->micro_batch,
                              .grad_accum = s->grad_accum,
                              .workers = 2};
    w->pages = calloc(2 * (size_t)slices + s->blocks + 2, sizeof(*w->pages));
    assert_non_null(w->pages);
    assert_non_null(none);
    add_pages(w, s, frozen != NULL ? frozen : none);
    free(none);
    w->activation_bytes = rows * w->hidden * strata_dtype_bytes(w->dtype);
    w->block_internal_bytes = 10 * w->activation_bytes;
    w->block_workspace_bytes = 5 * w->activation_bytes + 1000;
    w->head_internal_bytes = 3 * w->activation_bytes + rows * 20;
    w->head_workspace_bytes = rows * s->slice_rows * 6;
    w->block_forward_flops = 2.0 * (double)rows * (double)w->pages[w->block_first].params;
    w->block_backward_flops = 2 * w->block_forward_flops;
    w->head_forward_flops = 2.0 * (double)rows * w->hidden * w->vocab;
    w->head_backward_flops = 3 * w->head_forward_flops;
    w->model_flops_per_token = 6.0 * (double)w->params + 1;
}

static void random_frozen(enum plan_frozen *frozen, struct plan_draws *draws, uint32_t blocks)
{
    const uint64_t how = plan_draw(draws, 4); /* nothing twice as often, some pages, the lower layers */

    for (uint32_t layer = 0; layer < blocks + 2; layer++) {
        frozen[layer] = PLAN_TRAINED;
        if (how == 2 && layer > 0 && layer <= blocks)
            frozen[layer] = (enum plan_frozen)plan_draw(draws, 3);
        else if (how == 3 && layer <= blocks / 2)
            frozen[layer] = PLAN_FROZEN;
    }
}

void plan_random_workload(struct st_workload *w, struct plan_draws *draws, bool tiny)
{
    enum plan_frozen frozen[16];
    struct plan_sizes s = {0};

    s.dtype = (strata_dtype)(1 + plan_draw(draws, 3));
    s.blocks = (uint32_t)(tiny ? 2 + plan_draw(draws, 3) : 1 + plan_draw(draws, 12));
    s.hidden = (uint32_t)(8 * (1 + plan_draw(draws, tiny ? 16 : 64)));
    s.vocab = (uint32_t)(10 + plan_draw(draws, tiny ? 500 : 5000));
    s.seq = (uint32_t)(1 + plan_draw(draws, tiny ? 16 : 128));
    s.micro_batch = (uint32_t)(1 + plan_draw(draws, 4));
    s.grad_accum = (uint32_t)(1 + plan_draw(draws, tiny ? 2 : 5));
    s.slice_rows = (uint32_t)(s.vocab / (1 + plan_draw(draws, tiny ? 2 : 6)) + 1);
    s.positions = plan_draw(draws, 3) != 0;
    s.tied = plan_draw(draws, 2) == 0;
    if (!tiny && plan_draw(draws, 16) == 0)
        s.micro_batch = 4096;                 /* activations dwarf the weights */
    if (!tiny && plan_draw(draws, 16) == 0) { /* pages of the least size */
        s.hidden = 8;
        s.block_params = 64;
    }
    random_frozen(frozen, draws, s.blocks);
    if (plan_draw(draws, 4) == 0) {
        s.adapter_params = 8 + plan_draw(draws, 64) * s.hidden;
        s.quantised = plan_draw(draws, 2) == 0;
        for (uint32_t layer = 0; layer < s.blocks + 2; layer++)
            frozen[layer] = PLAN_FROZEN;
    }
    plan_workload(w, &s, frozen);
}

void plan_random_policy(struct st_policy *policy, struct plan_draws *draws, const struct st_workload *w)
{
    *policy = (struct st_policy){
        .param_tier = (strata_tier)plan_draw(draws, 3),
        .optimizer_tier = (strata_tier)plan_draw(draws, 3),
        .activation_tier = (strata_tier)plan_draw(draws, 4),
        .activations = (enum st_activation_mode)plan_draw(draws, 3),
        .update = (enum st_update_policy)(1 + plan_draw(draws, 3)),
        .accumulation = (enum st_accumulation)plan_draw(draws, 3),
        .forward_only = plan_draw(draws, 6) == 0,
        .cache = (uint64_t[]){0, ST_AUTO_BYTES, ST_AUTO_BYTES, 1u << 20}[plan_draw(draws, 4)],
        .chunk_elems = (uint64_t)ST_TILE_ELEMS << plan_draw(draws, 8) * 3 / 4,
        .fixed_bytes = plan_draw(draws, 2) * 1000,
        .moments = (uint32_t)plan_draw(draws, 3),
        .moment_format = (enum st_moment_format)plan_draw(draws, ST_MOMENTS_COUNT),
        .streamed = plan_draw(draws, 3) > 0 ? 0 : (uint32_t)plan_draw(draws, ST_STREAMED_PARTS + 1),
        .sets = plan_draw(draws, 3) > 0 ? 0 : st_sets_of_keep(1 + (uint32_t)plan_draw(draws, 5)),
    };
    if (policy->cache == 1u << 20)
        policy->cache = w->params * (1 + plan_draw(draws, 8));
    policy->part_bytes = policy->chunk_elems;                                       /* one or several parts of a chunk's state */
    policy->leaves = w->grad_accum / (1 + (uint32_t)(draws->seed % w->grad_accum)); /* as many as there can be, or fewer */
    while (w->grad_accum % policy->leaves != 0)
        policy->leaves--;
    if (draws->seed % 3 == 1) {
        policy->ranks = 2 + (uint32_t)(draws->seed / 3 % 4);
        policy->rank = (uint32_t)(draws->seed / 7 % policy->ranks);
        policy->stage = (uint32_t)(draws->seed / 5 % 4);
        policy->wire = draws->seed / 11 % 3 == 1 ? ST_WIRE_BF16 : ST_WIRE_F32;
    }
}

struct st_plan *plan_try(const struct st_workload *w, const struct st_machine *machine, const struct st_policy *policy,
                         const char *what)
{
    struct st_plan *plan = NULL;
    strata_status st = st_plan_make(&plan, w, &machine->capacity, policy);

    st = st_plan_advise(plan, st);
    if (plan == NULL || (st != STRATA_OK && st != STRATA_E_NOFIT))
        fail_msg("%s: %s", what, strata_last_error());
    assert_int_equal(plan->fits, st == STRATA_OK);
    return plan;
}

struct st_plan *plan_of(const struct plan_sizes *sizes, const struct st_machine *machine, const struct st_policy *policy,
                        const char *what)
{
    struct st_workload w;
    struct st_plan *plan;

    plan_workload(&w, sizes, NULL);
    plan = plan_try(&w, machine, policy, what);
    st_workload_fini(&w);
    return plan;
}

struct st_traffic plan_steady(const struct st_plan *plan)
{
    return st_program_traffic(&plan->program, ST_PHASE_BODY);
}

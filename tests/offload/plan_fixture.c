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

static struct st_page *new_page(struct st_workload *w, unsigned flags)
{
    struct st_page *page = st_workload_add_page(w, flags);

    assert_non_null(page);
    return page;
}

static struct st_page *add_page(struct st_workload *w, unsigned flags, uint64_t decay, uint64_t no_decay, enum plan_frozen frozen)
{
    struct st_page *page = new_page(w, flags);

    if (frozen == PLAN_FROZEN) {
        add_group(w, page, ST_GROUP_FROZEN, decay + no_decay);
        return page;
    }
    add_group(w, page, ST_GROUP_DECAY, decay);
    add_group(w, page, frozen == PLAN_PART_FROZEN ? ST_GROUP_FROZEN : ST_GROUP_NO_DECAY, no_decay);
    return page;
}

/* A frozen block with adapters. */
static void add_adapted(struct st_workload *w, const struct plan_sizes *s, uint64_t matrices, uint64_t vectors)
{
    struct st_page *page = new_page(w, 0);

    add_format(w, page, ST_GROUP_DECAY, STRATA_F32, s->adapter_params);
    add_group(w, page, ST_GROUP_FROZEN, s->quantised ? vectors : matrices + vectors);
    if (s->quantised) /* each begins with a whole record */
        add_format(w, page, ST_GROUP_FROZEN, STRATA_NF4, (matrices + ST_PAGE_ALIGN - 1) / ST_PAGE_ALIGN * ST_PAGE_ALIGN);
}

static void add_slices(struct st_workload *w, unsigned flags, uint32_t slice_rows, enum plan_frozen frozen)
{
    for (uint32_t first = 0; first < w->vocab; first += slice_rows) {
        const uint32_t count = w->vocab - first < slice_rows ? w->vocab - first : slice_rows;
        struct st_page *page = add_page(w, flags, (uint64_t)count * w->hidden, 0, frozen);

        page->row_first = first;
        page->row_count = count;
    }
}

static struct st_layer *add_layer(struct st_workload *w, enum st_layer_kind kind)
{
    assert_true(st_workload_add_layer(w, kind));
    return &w->layers[w->layer_count - 1];
}

/* The last one is smaller. */
static void add_experts(struct st_workload *w, const struct plan_sizes *s, enum plan_frozen frozen)
{
    for (uint32_t i = 0; i < s->experts; i++) {
        const enum plan_frozen own = frozen == PLAN_PART_FROZEN ? (i % 2 == 1 ? PLAN_FROZEN : PLAN_TRAINED) : frozen;

        add_page(w, 0, (i + 1 < s->experts ? 6ull : 3ull) * s->hidden * s->hidden, 0, s->adapter_params > 0 ? PLAN_FROZEN : own);
    }
}

static void add_layers(struct st_workload *w, const struct plan_sizes *s, const enum plan_frozen *frozen)
{
    const uint64_t block = s->block_params != 0 ? s->block_params : 12ull * s->hidden * s->hidden;

    add_layer(w, ST_LAYER_LOOKUP);
    add_slices(w, ST_PAGE_GATHERED, s->slice_rows, frozen[0]);
    if (s->positions)
        add_page(w, ST_PAGE_SMALL, (uint64_t)s->seq * s->hidden, 0, frozen[0]);
    for (uint32_t b = 0; b < s->blocks; b++) {
        const bool experts = b > 0 && s->experts > 0;

        add_layer(w, experts ? ST_LAYER_EXPERTS : ST_LAYER_BLOCK);
        if (s->adapter_params > 0)
            add_adapted(w, s, block, 13ull * s->hidden);
        else
            add_page(w, 0, block, 13ull * s->hidden, frozen[1 + b]);
        if (experts)
            add_experts(w, s, frozen[1 + b]);
    }
    add_layer(w, ST_LAYER_LOSS);
    add_page(w, ST_PAGE_SMALL, s->hidden, s->tied ? s->hidden : 0, frozen[s->blocks + 1]);
    for (uint32_t t = 0; s->tied && t < w->gathered_count; t++)
        assert_true(st_workload_add_use(w, t));
    if (!s->tied)
        add_slices(w, 0, s->slice_rows, frozen[s->blocks + 1]);
}

static void add_costs(struct st_workload *w, const struct plan_sizes *s)
{
    const uint64_t rows = (uint64_t)s->micro_batch * s->seq, act = rows * w->hidden * strata_dtype_bytes(w->dtype);
    const uint64_t block = 5 * act + 1000, head = rows * s->slice_rows * 6;
    struct st_layer *last = &w->layers[w->layer_count - 1];

    w->workspace_bytes = block > head ? block : head;
    for (struct st_layer *l = w->layers; l < last; l++) {
        const double params = l > w->layers ? (double)w->pages[w->uses[w->layers[1].use_first]].params : 0;

        l->boundary_bytes = act;
        l->internal_bytes = l > w->layers ? 10 * act : 0;
        l->forward_flops = 2.0 * (double)rows * params;
        l->backward_flops = 2 * l->forward_flops;
        if (l->kind == ST_LAYER_EXPERTS) {
            l->experts_forward_flops = 3 * l->forward_flops;
            l->experts_backward_flops = 8 * l->forward_flops;
        }
    }
    w->routes_bytes = s->experts > 0 && s->blocks > 1 && s->routes && !s->chosen ? 64 : 0;
    last->internal_bytes = 3 * act + rows * 20 + (s->chosen ? w->vocab * sizeof(float) : 0);
    last->forward_flops = 2.0 * (double)rows * w->hidden * w->vocab;
    last->backward_flops = 3 * last->forward_flops;
    w->model_flops_per_token = 6.0 * (double)w->params + 1;
}

void plan_workload(struct st_workload *w, const struct plan_sizes *s, const enum plan_frozen *frozen)
{
    enum plan_frozen *none = calloc(s->blocks + 2, sizeof(*none));

    *w = (struct st_workload){.name = "fixture",
                              .dtype = s->dtype,
                              .vocab = s->vocab,
                              .hidden = s->hidden,
                              .seq = s->seq,
                              .micro_batch = s->micro_batch,
                              .grad_accum = s->grad_accum,
                              .workers = 2};
    assert_non_null(none);
    add_layers(w, s, frozen != NULL ? frozen : none);
    free(none);
    w->generate = s->chosen;
    w->experts = s->chosen && s->blocks > 1 ? 2 * s->experts - 1 : 0;
    w->slice_experts = 2;
    add_costs(w, s);
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

/* A page of a caller's layers, in one or two groups of any sets. */
static void add_called_page(struct st_workload *w, struct plan_draws *draws, uint64_t size)
{
    struct st_page *page = st_workload_add_page(w, 0);
    const bool frozen = plan_draw(draws, 5) == 0;
    const uint32_t set = (uint32_t)plan_draw(draws, ST_SETS_MAX);

    assert_non_null(page);
    st_page_add_to(page, set, frozen ? ST_GROUP_FROZEN : ST_GROUP_DECAY, w->dtype,
                   plan_draw(draws, 3) == 0 ? 1 + plan_draw(draws, size) : size);
    if (plan_draw(draws, 2) == 0)
        st_page_add_to(page, (uint32_t)plan_draw(draws, ST_SETS_MAX), frozen ? ST_GROUP_FROZEN : ST_GROUP_NO_DECAY,
                       plan_draw(draws, 4) > 0 ? w->dtype : STRATA_F32, 1 + plan_draw(draws, 300));
}

/* Layers that a caller computes, some without pages, boundaries or a known cost. */
static void called_workload(struct st_workload *w, struct plan_draws *draws, bool tiny)
{
    const uint32_t stay = 1 + (uint32_t)plan_draw(draws, 3), layers = 1 + (uint32_t)plan_draw(draws, tiny ? 4 : 12);
    const uint64_t size = 64ull << plan_draw(draws, tiny ? 9 : 14);

    *w = (struct st_workload){.name = "called", .seq = 1, .micro_batch = 1, .workers = 2};
    w->dtype = (strata_dtype)(1 + plan_draw(draws, 3));
    w->grad_accum = (uint32_t)(1 + plan_draw(draws, tiny ? 2 : 5));
    assert_true(st_workload_add_layer(w, ST_LAYER_RESIDENT));
    for (uint32_t i = 0; i < stay; i++)
        add_called_page(w, draws, size);
    for (uint32_t l = 0; l < layers; l++) {
        w->layers[l].boundary_bytes = plan_draw(draws, 4) == 0 ? 0 : 1 + plan_draw(draws, 5000);
        assert_true(st_workload_add_layer(w, ST_LAYER_BLOCK));
        w->layers[l + 1].forward_flops = plan_draw(draws, 2) == 0 ? 0 : 1e6 * (double)plan_draw(draws, 1000);
        w->layers[l + 1].backward_flops = 2 * w->layers[l + 1].forward_flops;
        if (plan_draw(draws, 6) == 0)
            w->layers[l + 1].forward_seconds = w->layers[l + 1].backward_seconds = 1e-4;
        if (plan_draw(draws, 6) > 0)
            add_called_page(w, draws, size);
    }
    for (uint32_t p = 0; p < w->page_count; p++)
        for (uint32_t g = 0; g < w->pages[p].group_count; g++)
            w->params += w->pages[p].groups[g].kind == ST_GROUP_FROZEN ? 0 : w->pages[p].groups[g].elems;
}

void plan_random_workload(struct st_workload *w, struct plan_draws *draws, bool tiny)
{
    enum plan_frozen frozen[16];
    struct plan_sizes s = {0};

    if (draws->seed % 7 == 3) {
        called_workload(w, draws, tiny);
        return;
    }
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
    s.experts = draws->seed % 5 == 4 ? 1 + (uint32_t)(draws->seed / 5 % 3) : 0;
    s.routes = draws->seed / 5 % 2 == 0;
    s.chosen = s.experts > 0 && draws->seed / 15 % 3 == 0;
    if (s.chosen)
        s.micro_batch = s.grad_accum = 1;
    plan_workload(w, &s, frozen);
}

void plan_random_training(struct st_workload *w, struct plan_draws *draws)
{
    plan_random_workload(w, draws, true);
    w->generate = false;
    w->experts = 0; /* all slices come */
}

/* A page of one or two groups, for the layer added last. */
static void random_page(struct st_workload *w, struct plan_draws *draws, unsigned flags)
{
    const uint64_t elems = 1 + plan_draw(draws, 60000);

    add_page(w, flags, elems, plan_draw(draws, 2) == 0 ? 0 : 1 + plan_draw(draws, 300),
             (enum plan_frozen)(plan_draw(draws, 8) / 6));
}

/* Layers of a stranger: none to five pages, some of earlier layers; boundaries, internals and costs that differ. */
static void random_layer(struct st_workload *w, struct plan_draws *draws, bool last)
{
    const uint32_t known = w->page_count;
    struct st_layer *layer;

    add_layer(w, ST_LAYER_BLOCK);
    for (uint64_t pages = plan_draw(draws, 4) == 0 ? 0 : 1 + plan_draw(draws, 3); pages > 0; pages--)
        random_page(w, draws, 0);
    if (plan_draw(draws, 4) == 0)
        random_page(w, draws, ST_PAGE_SMALL);
    for (uint32_t p = 0; p < known && w->layers[w->layer_count - 1].use_count < 5; p++)
        if (plan_draw(draws, 6) == 0 && w->pages[p].flags == 0)
            assert_true(st_workload_add_use(w, p));
    layer = &w->layers[w->layer_count - 1];
    layer->boundary_bytes = last ? 0 : 1 + plan_draw(draws, 9000);
    layer->internal_bytes = plan_draw(draws, 3) * plan_draw(draws, 20000);
    layer->forward_flops = (double)plan_draw(draws, 3) * 1e6;
    layer->backward_flops = 2 * layer->forward_flops;
}

void plan_random_layers(struct st_workload *w, struct plan_draws *draws)
{
    const uint64_t layers = 1 + plan_draw(draws, 8);

    *w = (struct st_workload){.name = "layers",
                              .dtype = (strata_dtype)(1 + plan_draw(draws, 3)),
                              .seq = 1,
                              .micro_batch = 1,
                              .grad_accum = (uint32_t)(1 + plan_draw(draws, 4)),
                              .workspace_bytes = 1 + plan_draw(draws, 5000),
                              .workers = 2};
    for (uint64_t l = 0; l < layers; l++)
        random_layer(w, draws, l + 1 == layers);
    if (w->page_count == 0 || w->params == 0) {
        w->layers[w->layer_count - 1].boundary_bytes = 64;
        add_layer(w, ST_LAYER_BLOCK);
        add_page(w, 0, 5000, 0, PLAN_TRAINED);
    }
}

bool plan_shares(const struct st_workload *w)
{
    for (uint32_t p = 0; p < w->page_count; p++)
        if (st_page_adds(&w->pages[p]) > 1)
            return true;
    return false;
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
        .forward_only = plan_draw(draws, 6) == 0 || w->generate,
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
    if (policy->update == ST_UPDATE_GATED && draws->seed / 2 % 3 > 0 && !policy->forward_only && !st_workload_opaque(w)) {
        policy->early = draws->seed / 2 % 3 == 1 ? ST_EARLY_AUTO : 1 + (uint32_t)(draws->seed / 6 % ST_EARLY_PARTS);
        policy->streamed = 0;
    }
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

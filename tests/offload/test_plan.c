/* test_plan - the planner over random workloads, machines and policies: capacities hold, programs verify, refusals are true. */
#include "offload/plan.h"

#include "core/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CASES 600u
#define PAGES 64u

static uint64_t draw(uint64_t seed, uint64_t *at, uint64_t below)
{
    return st_rng_u64(seed, 5, (*at)++) % below;
}

static uint64_t round_up(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

static void add_group(struct st_workload *w, struct st_page *page, enum st_group_kind kind, uint64_t elems)
{
    if (elems == 0)
        return;
    page->groups[page->group_count++] = (struct st_group){.kind = kind, .offset = page->elems, .elems = elems};
    page->elems += round_up(elems, ST_PAGE_ALIGN);
    page->params += elems;
    if (kind != ST_GROUP_FROZEN)
        w->params += elems;
}

/* frozen: 0 not at all, 1 its smaller part, 2 all of it */
static void add_page(struct st_workload *w, uint32_t layer, uint64_t decay, uint64_t no_decay, uint64_t frozen)
{
    struct st_page *page = &w->pages[w->page_count++];

    page->layer = layer;
    if (frozen == 2) {
        add_group(w, page, ST_GROUP_FROZEN, decay + no_decay);
        return;
    }
    add_group(w, page, ST_GROUP_DECAY, decay);
    add_group(w, page, frozen == 1 ? ST_GROUP_FROZEN : ST_GROUP_NO_DECAY, no_decay);
}

static void add_tiles(struct st_workload *w, uint32_t layer, uint32_t tile_rows, uint64_t frozen)
{
    for (uint32_t first = 0; first < w->vocab; first += tile_rows) {
        const uint32_t count = w->vocab - first < tile_rows ? w->vocab - first : tile_rows;

        add_page(w, layer, (uint64_t)count * w->hidden, 0, frozen);
        w->pages[w->page_count - 1].row_first = first;
        w->pages[w->page_count - 1].row_count = count;
    }
}

static void random_workload(struct st_workload *w, struct st_page pages[PAGES], uint64_t seed)
{
    uint64_t at = 0, rows, freeze;
    uint32_t tile_rows;

    memset(w, 0, sizeof(*w));
    memset(pages, 0, PAGES * sizeof(pages[0]));
    w->pages = pages;
    strcpy(w->name, "random");
    w->dtype = (strata_dtype)(1 + draw(seed, &at, 3));
    w->block_count = (uint32_t)(1 + draw(seed, &at, 12));
    w->hidden = (uint32_t)(8 * (1 + draw(seed, &at, 64)));
    w->vocab = (uint32_t)(10 + draw(seed, &at, 5000));
    w->seq = (uint32_t)(1 + draw(seed, &at, 128));
    w->micro_batch = (uint32_t)(1 + draw(seed, &at, 4));
    w->grad_accum = (uint32_t)(1 + draw(seed, &at, 5));
    w->workers = 2;
    tile_rows = (uint32_t)(w->vocab / (1 + draw(seed, &at, 6)) + 1);
    freeze = draw(seed, &at, 3); /* 0: nothing; 1: some pages; 2: the lower layers */
    add_tiles(w, 0, tile_rows, freeze == 2 ? 2 : 0);
    w->table_count = w->page_count;
    w->position_page = w->page_count;
    if (draw(seed, &at, 3) == 0)
        w->position_page = ST_NO_PAGE;
    else
        add_page(w, 0, (uint64_t)w->seq * w->hidden, 0, freeze == 2 ? 2 : 0);
    w->block_first = w->page_count;
    for (uint32_t b = 0; b < w->block_count; b++)
        add_page(w, 1 + b, 12ull * w->hidden * w->hidden, 13ull * w->hidden,
                 freeze == 1   ? draw(seed, &at, 3)
                 : freeze == 2 ? (b < w->block_count / 2 ? 2 : 0)
                               : 0);
    w->norm_page = w->page_count;
    add_page(w, w->block_count + 1, w->hidden, draw(seed, &at, 2) * w->hidden, 0);
    w->tied = draw(seed, &at, 2) == 0;
    w->head_first = w->tied ? 0 : w->page_count;
    w->head_count = w->table_count;
    if (!w->tied)
        add_tiles(w, w->block_count + 1, tile_rows, 0);
    rows = (uint64_t)w->micro_batch * w->seq;
    w->activation_bytes = rows * w->hidden * strata_dtype_bytes(w->dtype);
    w->block_internal_bytes = 10 * w->activation_bytes;
    w->block_workspace_bytes = 5 * w->activation_bytes + 1000;
    w->head_internal_bytes = 3 * w->activation_bytes + rows * 20;
    w->head_workspace_bytes = rows * tile_rows * 6;
    w->block_forward_flops = w->block_backward_flops = w->head_forward_flops = w->head_backward_flops = 1e9;
    w->model_flops_per_token = 1e9;
}

static void random_policy(struct st_policy *policy, uint64_t seed)
{
    uint64_t at = 1000;

    *policy = (struct st_policy){
        .param_tier = (strata_tier)draw(seed, &at, 3),
        .optimizer_tier = (strata_tier)draw(seed, &at, 3),
        .activation_tier = (strata_tier)draw(seed, &at, 4),
        .activations = (enum st_activation_mode)draw(seed, &at, 3),
        .update = (enum st_update_policy)(1 + draw(seed, &at, 3)),
        .accumulation = (enum st_accumulation)draw(seed, &at, 2),
        .forward_only = draw(seed, &at, 6) == 0,
        .cache = (uint64_t[]){0, ST_AUTO_BYTES, 1u << 20}[draw(seed, &at, 3)],
        .chunk_elems = 4096ull << draw(seed, &at, 8),
    };
}

static bool within(const struct st_plan *plan)
{
    for (int t = 0; t < STRATA_TIER_COUNT; t++)
        if (plan->needed[t] > plan->machine.capacity[t])
            return false;
    return true;
}

/* Nothing may lie above its configured tier with cache 0. */
static void check_cache_zero(const struct st_plan *plan)
{
    if (plan->policy.cache != 0)
        return;
    for (uint32_t p = 0; p < plan->workload.page_count; p++) {
        assert_int_equal(plan->pages[p].resident, plan->policy.param_tier == STRATA_TIER_DEVICE);
        if (plan->policy.param_tier == STRATA_TIER_NVME)
            assert_int_equal(plan->pages[p].weight_home, STRATA_TIER_NVME);
    }
    for (uint32_t c = 0; c < plan->chunk_count; c++)
        assert_int_equal(plan->chunks[c].tier, plan->policy.forward_only || plan->chunks[c].group == ST_GROUP_FROZEN
                                                   ? STRATA_TIER_COUNT
                                                   : plan->policy.optimizer_tier);
}

static void random_plans_are_sound(void **state)
{
    struct st_page pages[PAGES];
    uint32_t planned = 0, refused = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        struct st_machine machine = {.name = "random", .device_is_host = true, .workers = 2};
        struct st_workload w;
        struct st_policy policy;
        struct st_plan *plan = NULL, *smallest = NULL;
        uint64_t at = 2000;
        strata_status st;

        random_workload(&w, pages, seed);
        random_policy(&policy, seed);
        for (int t = 0; t < STRATA_TIER_COUNT; t++)
            machine.capacity[t] = 1ull << (20 + draw(seed, &at, 14));
        st = st_plan_make(&plan, &w, &machine, &policy);
        if (plan == NULL)
            fail_msg("seed %u: %s", (unsigned)seed, strata_last_error());
        if (st == STRATA_OK) {
            planned++;
            assert_true(within(plan));
            check_cache_zero(plan);
            if (st_plan_verify(plan) != STRATA_OK)
                fail_msg("seed %u: %s", (unsigned)seed, strata_last_error());
        } else {
            refused++;
            assert_int_equal(st, STRATA_E_NOFIT);
            assert_false(within(plan));
            /* With exactly what it says is needed, it plans. */
            memcpy(machine.capacity, plan->needed, sizeof(machine.capacity));
            if (st_plan_make(&smallest, &w, &machine, &policy) != STRATA_OK)
                fail_msg("seed %u, with what it needs: %s", (unsigned)seed, strata_last_error());
            if (st_plan_verify(smallest) != STRATA_OK)
                fail_msg("seed %u, smallest: %s", (unsigned)seed, strata_last_error());
        }
        st_plan_destroy(plan);
        st_plan_destroy(smallest);
    }
    print_message("%u planned, %u refused and then planned with what they asked for\n", planned, refused);
    assert_true(planned > CASES / 10 && refused > CASES / 10);
}

static void more_memory_never_moves_more(void **state)
{
    struct st_page pages[PAGES];

    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        const struct st_policy policy = {.param_tier = STRATA_TIER_NVME,
                                         .optimizer_tier = STRATA_TIER_NVME,
                                         .activation_tier = STRATA_TIER_COUNT,
                                         .update = ST_UPDATE_GATED,
                                         .cache = ST_AUTO_BYTES,
                                         .chunk_elems = 16384};
        struct st_machine machine = {
            .name = "grow", .capacity = {1ull << 40, 0, 1ull << 40}, .device_is_host = true, .workers = 2};
        struct st_workload w;
        uint64_t moved = UINT64_MAX, device;
        struct st_plan *plan = NULL;

        random_workload(&w, pages, seed);
        machine.capacity[STRATA_TIER_DEVICE] = 1;
        assert_int_equal(st_plan_make(&plan, &w, &machine, &policy), STRATA_E_NOFIT);
        device = plan->minimum[STRATA_TIER_DEVICE];
        st_plan_destroy(plan);
        machine.capacity[STRATA_TIER_DEVICE] = device;
        for (uint64_t host = 1u << 18; host < 1ull << 30; host *= 2) {
            machine.capacity[STRATA_TIER_HOST] = host;
            if (st_plan_make(&plan, &w, &machine, &policy) == STRATA_OK) {
                assert_true(plan->traffic[1].read + plan->traffic[1].write <= moved);
                moved = plan->traffic[1].read + plan->traffic[1].write;
            }
            st_plan_destroy(plan);
        }
        assert_int_equal(moved, 0); /* at last all of it lies in host memory */
    }
}

static void equal_input_gives_equal_plans(void **state)
{
    struct st_page pages[PAGES];
    struct st_workload w;
    const struct st_policy policy = {.param_tier = STRATA_TIER_HOST,
                                     .optimizer_tier = STRATA_TIER_NVME,
                                     .activation_tier = STRATA_TIER_COUNT,
                                     .update = ST_UPDATE_GATED,
                                     .cache = ST_AUTO_BYTES,
                                     .chunk_elems = 16384};
    struct st_machine machine = {
        .name = "same", .capacity = {1u << 24, 1u << 25, 1ull << 40}, .device_is_host = true, .workers = 2};
    struct st_plan *a, *b;

    (void)state;
    random_workload(&w, pages, 3);
    assert_int_equal(st_plan_make(&a, &w, &machine, &policy), STRATA_OK);
    machine.read = machine.write = machine.mixed = 1e9; /* rates feed bounds, never placement */
    machine.matmul_flops = 1e12;
    assert_int_equal(st_plan_make(&b, &w, &machine, &policy), STRATA_OK);
    assert_int_equal(a->op_count, b->op_count);
    for (uint32_t i = 0; i < a->op_count; i++)
        assert_true(a->ops[i].kind == b->ops[i].kind && a->ops[i].bytes == b->ops[i].bytes &&
                    a->ops[i].phases == b->ops[i].phases);
    assert_int_equal(a->wait_count, b->wait_count);
    for (uint32_t i = 0; i < a->wait_count; i++)
        assert_true(a->waits[i].op == b->waits[i].op && a->waits[i].previous == b->waits[i].previous);
    assert_int_equal(a->buffer_count, b->buffer_count);
    for (uint32_t i = 0; i < a->buffer_count; i++)
        assert_true(a->buffers[i].tier == b->buffers[i].tier && a->buffers[i].offset == b->buffers[i].offset);
    assert_true(b->bounds.schedule > 0 && b->bounds.schedule >= b->bounds.hardware);
    st_plan_destroy(a);
    st_plan_destroy(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_plans_are_sound),
        cmocka_unit_test(more_memory_never_moves_more),
        cmocka_unit_test(equal_input_gives_equal_plans),
    };

    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}

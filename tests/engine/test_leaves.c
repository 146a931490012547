/* test_leaves - gradients of a step's leaves are added up in a tree: against a tree of the test's own, bit by bit, and over every
 * way of placing and ordering them. */
#include "agree.h"
#include "given.h"
#include "tests/common/sample.h"
#include "tests/common/scratch.h"
#include "tests/common/shape.h"
#include "tests/common/test.h"
#include "tests/offload/plan_fixture.h"

#include "core/base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- against a tree of the test's own --- */

#define MICROS 12u
#define SEQ    8u
#define AMPLE  (UINT64_C(1) << 40)

/* An engine that trains by plain SGD at rate 1 from weights of 0, so that a step leaves the negated sum of its gradients. */
struct golden {
    struct st_workload workload;
    struct st_plan *plan;
    struct st_engine *eng;
    int32_t tokens[MICROS * SEQ];
};

/* Of any size: every order of adding them has its own bits. */
static float gradient(uint32_t page, uint32_t micro, uint64_t elem)
{
    float value;

    st_rng_normal(&value, 1, 7, page * MICROS + micro, elem, elem % 3 == 0 ? 100.0f : 1.0f);
    return value;
}

static float row_gradient(uint32_t micro, uint64_t elem)
{
    return gradient(1000, micro, elem);
}

static void add_gradients(const struct st_call *call, uint32_t page)
{
    if (call->first)
        memset(call->grad, 0, call->grad_elems * sizeof(float));
    for (uint64_t i = 0; i < call->grad_elems; i++)
        call->grad[i] += gradient(page, call->micro, i);
}

static strata_status run(void *model, const struct st_call *call)
{
    const struct st_workload *w = &((const struct golden *)model)->workload;
    float *dact = call->dact;

    if (call->kind == ST_CALL_HEAD_BACKWARD)
        for (uint64_t i = 0; i < (uint64_t)SEQ * w->hidden; i++)
            dact[i] = row_gradient(call->micro, i);
    if (call->kind == ST_CALL_EMBED_BACKWARD)
        add_gradients(call, call->page);
    if (call->kind == ST_CALL_BLOCK_BACKWARD)
        add_gradients(call, call->page);
    if (call->kind == ST_CALL_HEAD_GRAD)
        add_gradients(call, call->page);
    if (call->kind == ST_CALL_HEAD_BACKWARD)
        add_gradients(call, call->page);
    return STRATA_OK;
}

static strata_status fill_zero(void *ctx, uint32_t page, uint64_t first, uint64_t count, float *out)
{
    (void)ctx;
    (void)page;
    (void)first;
    memset(out, 0, count * sizeof(*out));
    return STRATA_OK;
}

static bool has_gradients(const struct st_workload *w, uint32_t page)
{
    return st_page_adds(&w->pages[page]) > 0;
}

/* One element's sum over leaves [first, first + count) of `leaf` micro-batches. */
static float tree_sum(uint32_t page, uint64_t elem, uint32_t leaf, uint32_t first, uint32_t count)
{
    uint32_t left = 1;
    float sum = 0;

    if (count == 1) {
        for (uint32_t m = first * leaf; m < (first + 1) * leaf; m++)
            sum += gradient(page, m, elem);
        return sum;
    }
    while (left * 2 < count)
        left *= 2;
    return tree_sum(page, elem, leaf, first, left) + tree_sum(page, elem, leaf, first + left, count - left);
}

/* The lookup's gradients come after the tree's total, all micro-batches in order. */
static float expected(const struct golden *g, uint32_t page, uint64_t elem, uint32_t leaves)
{
    const struct st_workload *w = &g->workload;
    float sum = has_gradients(w, page) ? tree_sum(page, elem, MICROS / leaves, 0, leaves) : 0;

    for (uint32_t i = 0; i < MICROS * SEQ && page < w->gathered_count; i++)
        if ((uint64_t)g->tokens[i] == w->pages[page].row_first + elem / w->hidden)
            sum += row_gradient(i / SEQ, i % SEQ * (uint64_t)w->hidden + elem % w->hidden);
    return 0 - sum;
}

struct check {
    const struct golden *golden;
    uint32_t leaves;
    char what[96];
};

static strata_status compare(void *ctx, uint32_t page, uint64_t first, uint64_t count, const void *weight)
{
    const struct check *c = ctx;
    const float *got = weight;

    for (uint64_t i = 0; i < count; i++) {
        const float want = expected(c->golden, page, first + i, c->leaves);

        if (memcmp(&got[i], &want, sizeof(want)) != 0)
            fail_msg("%s: page %u, element %llu is %a, not %a", c->what, page, (unsigned long long)(first + i), (double)got[i],
                     (double)want);
    }
    return STRATA_OK;
}

static void make_plan(struct golden *g, const struct st_config *config, bool smallest, const char *what)
{
    struct st_machine machine = {.name = "leaves",
                                 .capacity = {.bytes = {AMPLE, AMPLE, AMPLE}, .workers = 2, .device_is_host = true}};
    struct st_policy policy;

    st_config_policy(&policy, config);
    if (smallest) {
        struct st_plan *refused;

        machine.capacity.bytes[STRATA_TIER_DEVICE] = 0;
        refused = plan_try(&g->workload, &machine, &policy, what);
        machine.capacity.bytes[STRATA_TIER_DEVICE] = refused->minimum[STRATA_TIER_DEVICE];
        st_plan_destroy(refused);
    }
    g->plan = plan_try(&g->workload, &machine, &policy, what);
    assert_true(g->plan->fits);
    if (st_plan_verify(g->plan) != STRATA_OK)
        fail_msg("%s: %s", what, strata_last_error());
}

static void check_step(const struct st_config *config, bool tied, bool smallest)
{
    const struct plan_sizes sizes = {.dtype = STRATA_F32,
                                     .blocks = 2,
                                     .hidden = 16,
                                     .vocab = 64,
                                     .slice_rows = 32,
                                     .seq = SEQ,
                                     .micro_batch = 1,
                                     .grad_accum = MICROS,
                                     .block_params = 500,
                                     .positions = true,
                                     .tied = tied};
    struct golden g = {0};
    struct check c = {.golden = &g, .leaves = config->leaves};
    struct st_engine_opts opts;
    struct st_step_result result;

    snprintf(c.what, sizeof(c.what), "%u leaves, %s, tier %d, %s, %s", config->leaves,
             config->accumulation == ST_ACCUMULATE_HORIZONTAL ? "horizontal" : "vertical", (int)config->optimizer_tier,
             tied ? "tied" : "untied", smallest ? "smallest" : "all");
    for (uint32_t i = 0; i < MICROS * SEQ; i++)
        g.tokens[i] = (int32_t)(st_rng_u64(9, 0, i) % 40);
    plan_workload(&g.workload, &sizes, NULL);
    make_plan(&g, config, smallest, c.what);
    st_config_engine_opts(&opts, config);
    opts.program = &g.plan->program;
    opts.compute = (struct st_compute){.model = &g, .run = run};
    assert_int_equal(st_engine_create(&g.eng, &opts), STRATA_OK);
    assert_int_equal(st_engine_load(g.eng, fill_zero, NULL), STRATA_OK);
    st_config_set_rates(config, g.eng);
    assert_int_equal(st_engine_step(g.eng, g.tokens, g.tokens, NULL, &result), STRATA_OK);
    assert_int_equal(st_engine_export(g.eng, compare, &c), STRATA_OK);
    st_engine_destroy(g.eng);
    st_plan_destroy(g.plan);
    st_workload_fini(&g.workload);
}

TEST(sums_are_those_of_the_tree)
{
    static const uint32_t leaves[] = {1, 2, 3, 4, 6, 12};
    static const strata_tier tiers[] = {STRATA_TIER_DEVICE, STRATA_TIER_HOST, STRATA_TIER_NVME};

    for (uint32_t i = 0; i < 6 * 3 * 2 * 2 * 2; i++) {
        struct st_config config = given_config(STRATA_F32, tiers[i / 6 % 3]);

        config.grad_accum = config.train_batch = MICROS;
        config.leaves = leaves[i % 6];
        config.accumulation = i / 18 % 2 == 0 ? ST_ACCUMULATE_VERTICAL : ST_ACCUMULATE_HORIZONTAL;
        config.optimizer = (struct st_optimizer){.type = STRATA_SGD, .lr = 1};
        config.scaling.scale = 1;
        check_step(&config, i / 36 % 2 == 0, i / 72 != 0);
    }
}

/* --- placement --- */

struct split {
    uint32_t micros, leaves;
};

/* Runs of one split in all places and both orders; in a sample of three. */
static struct rig_result agreed(const struct split *split, strata_dtype dtype, bool llama, bool paced)
{
    struct rig_cell cells[2 * AGREE_PLACES];
    size_t count = 0;

    for (size_t i = 0; i < 2 * AGREE_PLACES; i++) {
        struct rig_cell *cell = &cells[count];

        if (!sample_takes(i, 3, 0))
            continue;
        count++;
        *cell = agree_place(i / 2);
        cell->grad_accum = split->micros;
        cell->leaves = split->leaves;
        cell->accumulation = i % 2 == 0 ? ST_ACCUMULATE_VERTICAL : ST_ACCUMULATE_HORIZONTAL;
        cell->dtype = dtype;
        cell->clip = RIG_CLIP_ALWAYS;
        cell->llama = llama;
        cell->paced = paced;
    }
    return rig_agree(cells, count, 2, scratch_dir);
}

static void check_splits(bool paced, const struct split *splits, size_t count)
{
    static const strata_dtype dtypes[] = {STRATA_BF16, STRATA_F32};
    struct rig_result results[8];

    for (uint32_t d = 0; d < 2; d++)
        for (size_t i = 0; i < count; i++) {
            results[i] = agreed(&splits[i], dtypes[d], d == 1, paced);
            for (size_t other = 0; other < i; other++)
                assert_string_not_equal(results[i].state, results[other].state);
        }
}

TEST(placement_never_changes_bits)
{
    static const struct split splits[] = {{6, 3}, {6, 1}, {6, 2}, {8, 4}};

    check_splits(false, splits, sample_is_all() ? sizeof(splits) / sizeof(splits[0]) : 2);
}

TEST(lanes_never_change_bits)
{
    static const struct split splits[] = {{4, 4}, {6, 3}, {6, 1}};

    check_splits(true, splits, sample_is_all() ? sizeof(splits) / sizeof(splits[0]) : 1);
}

/* Two micro-batches in order are two leaves in the tree. */
TEST(pairs_are_the_lowest_level_of_the_tree)
{
    static const struct split pairs = {6, 3}, singles = {6, 6};
    struct rig_result a = agreed(&pairs, STRATA_BF16, false, false), b = agreed(&singles, STRATA_BF16, false, false);

    assert_string_equal(a.state, b.state);
    assert_string_equal(a.weights, b.weights);
}

TEST_GROUP(scratch_create, scratch_remove_empty);

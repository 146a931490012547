/* test_traffic - what a steady step moves to and from NVMe, in bytes per parameter, against the formulae of docs/design.md.
 *
 * With cache 0 and the split master: state 20, 12 with moments in bf16, 8 1/16 in 8 bits; with the weights there too 26 gated or
 * in backward, 28 serial, 4 more for each further micro-batch accumulated horizontally, 4 more with a full fp32 master; beside it
 * one more reading of the head's table (its second pass), less the one reading that the positions, which backward does not need,
 * are spared. Alignment padding comes on top and is stated.  With a cache, less by exactly what it holds.  That runs move what
 * plans say is checked in every cell of the matrix. */
#include "offload/plan/plan.h"
#include "offload/simulate/figures.h"
#include "rig.h"
#include "tests/common/scratch.h"
#include "tests/common/shape.h"
#include "tests/common/test.h"

#include <inttypes.h>

static struct st_plan *plan_limited(const char *preset, strata_tier param, enum st_update_policy update, strata_dtype dtype,
                                    uint32_t g, enum st_accumulation order, enum st_moment_format format, uint64_t cache)
{
    const struct st_model_batch batch = {.micro_batch = 1, .seq = 256, .grad_accum = g, .dtype = dtype, .workers = 2};
    const struct st_machine machine = {
        .name = "test", .capacity = {.bytes = {1ull << 40, 1ull << 40, 1ull << 40}, .workers = 2, .device_is_host = true}};
    const struct st_policy policy = {.param_tier = param,
                                     .optimizer_tier = STRATA_TIER_NVME,
                                     .activation_tier = STRATA_TIER_COUNT,
                                     .update = update,
                                     .accumulation = order,
                                     .cache = cache,
                                     .moment_format = format,
                                     .chunk_elems = 4u << 20};
    struct st_model_config config;
    struct st_model *model;
    struct st_plan *plan;

    assert_int_equal(st_model_preset(&config, preset), STRATA_OK);
    assert_int_equal(st_model_create(&model, &config, &batch), STRATA_OK);
    assert_int_equal(st_plan_make(&plan, st_model_workload(model), &machine.capacity, &policy), STRATA_OK);
    assert_int_equal(st_plan_verify(plan), STRATA_OK);
    st_model_destroy(model);
    return plan;
}

static struct st_plan *plan_with(const char *preset, strata_tier param, enum st_update_policy update, strata_dtype dtype,
                                 uint32_t g, enum st_accumulation order, enum st_moment_format format)
{
    return plan_limited(preset, param, update, dtype, g, order, format, 0);
}

/* State on NVMe, weights in host memory, and so many bytes of cache. */
static struct st_plan *plan_cached(const char *preset, uint64_t cache)
{
    return plan_limited(preset, STRATA_TIER_HOST, ST_UPDATE_GATED, STRATA_BF16, 1, ST_ACCUMULATE_VERTICAL, ST_MOMENTS_F32, cache);
}

static struct st_plan *plan_of(const char *preset, strata_tier param, enum st_update_policy update, strata_dtype dtype,
                               uint32_t g, enum st_accumulation order)
{
    return plan_with(preset, param, update, dtype, g, order, ST_MOMENTS_F32);
}

static uint64_t pages_params(const struct st_plan *plan, uint32_t first, uint32_t count)
{
    uint64_t params = 0;

    for (uint32_t p = first; p < first + count; p++)
        params += plan->program.workload.pages[p].params;
    return params;
}

static struct st_figures figures_of(const struct st_plan *plan)
{
    struct st_figures f;

    st_figures_make(&f, &plan->program, &(struct st_machine){0});
    return f;
}

static void check(const char *preset, strata_tier param, enum st_update_policy update, strata_dtype dtype, uint32_t g,
                  enum st_accumulation order)
{
    struct st_plan *plan = plan_of(preset, param, update, dtype, g, order);
    const struct st_workload *w = &plan->program.workload;
    const uint64_t width = strata_dtype_bytes(dtype), state = dtype == STRATA_BF16 ? 20 : dtype == STRATA_F16 ? 24 : 16;
    const uint64_t passes =
        update == ST_UPDATE_SERIAL ? 4 : 3; /* weight: update and forward share a reading when gated; backward; write */
    const uint64_t table = pages_params(plan, shape_of(w).head_first, shape_of(w).head_count),
                   positions = pages_params(plan, shape_of(w).position_page, 1);
    uint64_t want = state * w->params;
    const struct st_figures f = figures_of(plan);
    const uint64_t moved = f.traffic[1].read + f.traffic[1].write;

    if (param == STRATA_TIER_NVME)
        want += width * (passes * w->params + table - positions);
    if (param == STRATA_TIER_NVME && update == ST_UPDATE_IN_BACKWARD) /* no reading of backward's to share for these two */
        want += width * (table + positions);
    if (param == STRATA_TIER_NVME &&
        order == ST_ACCUMULATE_HORIZONTAL) /* each further micro-batch reads forward's and backward's */
        want += (g - 1) * width * (2 * w->params - positions);
    print_message("%s %s %s g=%u: %.3f bytes per parameter, %.3f with alignment\n", preset,
                  update == ST_UPDATE_SERIAL  ? "serial"
                  : update == ST_UPDATE_GATED ? "gated"
                                              : "in_backward",
                  order == ST_ACCUMULATE_VERTICAL ? "vertical" : "horizontal", g,
                  (double)f.parameter_bytes_nvme / (double)w->params, (double)moved / (double)w->params);
    assert_int_equal(f.parameter_bytes_nvme, want);
    assert_true(moved >= want);
    st_plan_destroy(plan);
}

TEST(state_on_nvme_moves_20)
{
    check("gpt2", STRATA_TIER_HOST, ST_UPDATE_GATED, STRATA_BF16, 1, ST_ACCUMULATE_VERTICAL);
    check("gpt2", STRATA_TIER_HOST, ST_UPDATE_SERIAL, STRATA_BF16, 4, ST_ACCUMULATE_VERTICAL);
    check("gpt2-xl", STRATA_TIER_HOST, ST_UPDATE_GATED, STRATA_BF16, 4, ST_ACCUMULATE_VERTICAL);
    check("nano", STRATA_TIER_HOST, ST_UPDATE_GATED, STRATA_BF16, 1, ST_ACCUMULATE_VERTICAL);
    check("gpt2", STRATA_TIER_HOST, ST_UPDATE_GATED, STRATA_F32, 1, ST_ACCUMULATE_VERTICAL);
}

TEST(weights_on_nvme_add_6_gated_8_serial)
{
    check("gpt2", STRATA_TIER_NVME, ST_UPDATE_GATED, STRATA_BF16, 1, ST_ACCUMULATE_VERTICAL);
    check("gpt2", STRATA_TIER_NVME, ST_UPDATE_GATED, STRATA_BF16, 8, ST_ACCUMULATE_VERTICAL);
    check("gpt2", STRATA_TIER_NVME, ST_UPDATE_SERIAL, STRATA_BF16, 1, ST_ACCUMULATE_VERTICAL);
    check("gpt2-medium", STRATA_TIER_NVME, ST_UPDATE_SERIAL, STRATA_BF16, 4, ST_ACCUMULATE_VERTICAL);
    check("gpt2-xl", STRATA_TIER_NVME, ST_UPDATE_GATED, STRATA_BF16, 1, ST_ACCUMULATE_VERTICAL);
}

TEST(in_backward_moves_26)
{
    check("gpt2", STRATA_TIER_NVME, ST_UPDATE_IN_BACKWARD, STRATA_BF16, 1, ST_ACCUMULATE_VERTICAL);
    check("gpt2-xl", STRATA_TIER_NVME, ST_UPDATE_IN_BACKWARD, STRATA_BF16, 4, ST_ACCUMULATE_VERTICAL);
}

TEST(a_full_master_adds_4)
{
    check("gpt2", STRATA_TIER_HOST, ST_UPDATE_GATED, STRATA_F16, 1, ST_ACCUMULATE_VERTICAL);
    check("gpt2", STRATA_TIER_NVME, ST_UPDATE_GATED, STRATA_F16, 1, ST_ACCUMULATE_VERTICAL);
}

TEST(horizontal_adds_4_a_micro_batch)
{
    check("gpt2", STRATA_TIER_NVME, ST_UPDATE_GATED, STRATA_BF16, 4, ST_ACCUMULATE_HORIZONTAL);
    check("gpt2-medium", STRATA_TIER_NVME, ST_UPDATE_SERIAL, STRATA_BF16, 8, ST_ACCUMULATE_HORIZONTAL);
}

/* Bytes read and written per step for state alone, and that extents pad them by less than a tenth. */
static void check_state(const char *preset, enum st_moment_format format, uint64_t want)
{
    struct st_plan *plan = plan_with(preset, STRATA_TIER_HOST, ST_UPDATE_GATED, STRATA_BF16, 1, ST_ACCUMULATE_VERTICAL, format);
    const struct st_figures f = figures_of(plan);
    const struct st_traffic *t = &f.traffic[1];

    print_message("%s: %.3f bytes per parameter, %.3f with alignment\n", preset,
                  (double)f.parameter_bytes_nvme / (double)plan->program.workload.params,
                  (double)(t->read + t->write) / (double)plan->program.workload.params);
    assert_int_equal(f.parameter_bytes_nvme, want);
    assert_int_equal(t->read, t->write);
    assert_true(t->read >= want / 2 && t->read - want / 2 < want / 20);
    st_plan_destroy(plan);
}

/* Weight's low half 2, two moments of 2: 6 each way. */
TEST(moments_in_bf16_move_12)
{
    struct st_plan *plan = plan_of("gpt2", STRATA_TIER_HOST, ST_UPDATE_GATED, STRATA_BF16, 1, ST_ACCUMULATE_VERTICAL);

    check_state("gpt2", ST_MOMENTS_BF16, 12 * plan->program.workload.params);
    st_plan_destroy(plan);
}

/* Low half 2, two moments of 1 and, for each pack of 4096 elements begun of a group, 64 bytes of scales: 4 1/32 each way. */
TEST(moments_in_8_bits_move_8)
{
    struct st_plan *plan = plan_of("gpt2", STRATA_TIER_HOST, ST_UPDATE_GATED, STRATA_BF16, 1, ST_ACCUMULATE_VERTICAL);
    const struct st_workload *w = &plan->program.workload;
    uint64_t want = 2 * 4 * w->params;

    for (uint32_t p = 0; p < w->page_count; p++)
        for (uint32_t i = 0; i < w->pages[p].group_count; i++)
            want += 2 * 2 * 64 * ((w->pages[p].groups[i].elems + 4095) / 4096);
    assert_true((double)want < 8.07 * (double)w->params);
    check_state("gpt2", ST_MOMENTS_8BIT, want);
    st_plan_destroy(plan);
}

/* --- what is cached is not moved --- */

struct split {
    uint64_t held, moved;               /* bytes of chunks above NVMe, and there */
    uint64_t held_params, moved_params; /* of theirs */
    uint32_t held_chunks;
};

static struct split split_of(const struct st_plan *plan)
{
    struct split s = {0};

    for (uint32_t i = 0; i < plan->program.chunk_count; i++) {
        const struct st_chunk *c = &plan->program.chunks[i];
        const bool held = c->state != ST_WHERE_NVME;

        *(held ? &s.held : &s.moved) += c->bytes;
        *(held ? &s.held_params : &s.moved_params) += c->elems;
        s.held_chunks += held;
    }
    return s;
}

/* Each byte of a cache that holds state is a byte less to read and a byte less to write; weights may take a part. */
static void check_cached(const char *preset, double fraction)
{
    struct st_plan *none = plan_of(preset, STRATA_TIER_HOST, ST_UPDATE_GATED, STRATA_BF16, 1, ST_ACCUMULATE_VERTICAL);
    const uint64_t all = split_of(none).moved, cache = (uint64_t)(fraction * (double)all);
    const struct st_traffic before = figures_of(none).traffic[1];
    struct st_plan *plan = plan_cached(preset, cache);
    const struct st_figures f = figures_of(plan);
    const struct split s = split_of(plan);
    const double c = (double)s.held_params / (double)(s.held_params + s.moved_params);

    print_message("%s with %.3f of the state cached in %u of %u chunks: %.3f bytes per parameter\n", preset, c, s.held_chunks,
                  plan->program.chunk_count, (double)f.parameter_bytes_nvme / (double)plan->program.workload.params);
    assert_int_equal(split_of(none).held, 0);
    assert_int_equal(s.held + s.moved, all);
    assert_true(s.held <= cache && cache - s.held < all / 4);
    assert_int_equal(f.traffic[1].read, before.read - s.held);
    assert_int_equal(f.traffic[1].write, before.write - s.held);
    assert_int_equal(f.parameter_bytes_nvme, 20 * (plan->program.workload.params - s.held_params)); /* 20 (1 - c) a parameter */
    st_plan_destroy(plan);
    st_plan_destroy(none);
}

TEST(a_cached_fraction_is_not_moved)
{
    static const double fractions[] = {0.01, 0.125, 0.25, 0.5, 0.75, 0.99, 1};

    for (size_t i = 0; i < sizeof(fractions) / sizeof(fractions[0]); i++) {
        check_cached("gpt2", fractions[i]);
        check_cached("gpt2-medium", fractions[i]);
    }
}

/* Counted where they move: in each step of a run, every chunk that is not cached once each way. */
TEST(runs_with_a_cache_move_as_much)
{
    enum { STEPS = 4 };
    static const double fractions[] = {0, 0.25, 0.5, 0.75, 1};
    struct rig_cell cell = {.device = RIG_SMALLEST,
                            .host = RIG_ALL,
                            .optimizer = STRATA_TIER_NVME,
                            .param = STRATA_TIER_HOST,
                            .update = ST_UPDATE_SERIAL,
                            .grad_accum = 1,
                            .act_tier = STRATA_TIER_COUNT,
                            .dtype = STRATA_BF16,
                            .io_method = "fake",
                            .isa = "auto",
                            .threads = 1,
                            .chunk_elems = ST_TILE_ELEMS};
    struct st_model *model;
    uint64_t all = 0;

    assert_int_equal(rig_model(&model, &cell), STRATA_OK);
    for (size_t i = 0; i < sizeof(fractions) / sizeof(fractions[0]); i++) {
        struct rig_result result;
        struct st_plan *plan;
        struct split s;

        cell.cache = (uint64_t)(fractions[i] * (double)all);
        assert_int_equal(rig_plan(&plan, model, &cell), STRATA_OK);
        s = split_of(plan);
        all = i == 0 ? s.moved : all;
        assert_true(s.held + s.moved == all && s.held <= cell.cache);
        assert_true(s.held <= cell.cache && cell.cache - s.held < (s.held + s.moved) / 4);
        assert_int_equal(rig_train(&result, model, plan, &cell, STEPS, scratch_dir), STRATA_OK);
        print_message("%u of %u chunks cached: %.0f bytes read and %.0f written per step\n", s.held_chunks,
                      plan->program.chunk_count, (double)result.moved_bytes.read / STEPS,
                      (double)result.moved_bytes.write / STEPS);
        assert_int_equal(result.moved_bytes.read, STEPS * (all - s.held) - st_program_spared(&plan->program));
        assert_int_equal(result.moved_bytes.write, STEPS * (all - s.held));
        st_plan_destroy(plan);
    }
    st_model_destroy(model);
}

/* Vertical accumulation: weights and gradients cross the device link as often for 8 micro-batches as for one. */
TEST(link_traffic_does_not_grow_with_accumulation)
{
    struct st_plan *one = plan_of("gpt2", STRATA_TIER_HOST, ST_UPDATE_GATED, STRATA_BF16, 1, ST_ACCUMULATE_VERTICAL);
    struct st_plan *eight = plan_of("gpt2", STRATA_TIER_HOST, ST_UPDATE_GATED, STRATA_BF16, 8, ST_ACCUMULATE_VERTICAL);
    const struct st_figures less = figures_of(one), more = figures_of(eight);
    const uint64_t act = shape_of(&one->program.workload).activation_bytes, tokens = 2 * 256 * sizeof(int32_t);

    /* What grows is tokens, embedding rows up, and activation gradients for the table's host accumulators down. */
    assert_int_equal(more.traffic[1].upload - less.traffic[1].upload, 7 * (act + tokens));
    assert_int_equal(more.traffic[1].download - less.traffic[1].download, 7 * (act + sizeof(double)));
    st_plan_destroy(one);
    st_plan_destroy(eight);
}

TEST_GROUP(scratch_create, scratch_remove_empty);

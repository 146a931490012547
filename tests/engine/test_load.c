/* test_load - how values between two bf16 numbers are rounded when they are loaded: to even, as torch does, where the weight is
 * all that is kept; away from zero where a low half keeps the rest.  Wherever the weights lie. */
#include "core/base/error.h"
#include "rig.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <string.h>

#define AMPLE  (1ull << 40)
#define PLACES 4u /* on the device or on NVMe, of a device that is host memory or has its own */

struct load_case {
    bool forward_only;
    uint32_t place;     /* below PLACES */
    const char *freeze; /* NULL: nothing */
};

/* Element i of a page: all ties of one exponent, of either sign, and their neighbours on both sides. */
static uint32_t bits_at(uint64_t i)
{
    return 0x3f000000u | (uint32_t)(i % 128) << 16 | 0x8000u | (i / 128 % 2 == 1 ? 0x80000000u : 0);
}

static uint32_t nudged_bits_at(uint64_t i)
{
    return i % 5 == 0 ? bits_at(i) + 1 : i % 5 == 1 ? bits_at(i) - 1 : bits_at(i);
}

static uint16_t even_of(uint32_t bits)
{
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static uint16_t away_of(uint32_t bits)
{
    return (uint16_t)((bits + 0x8000u) >> 16);
}

static strata_status fill(void *ctx, uint32_t page, uint64_t first, uint64_t count, float *out)
{
    (void)ctx;
    (void)page;
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t bits = nudged_bits_at(first + i);

        memcpy(out + i, &bits, sizeof(bits));
    }
    return STRATA_OK;
}

struct seen {
    const struct st_workload *w;
    bool forward_only;
    uint64_t even, away, wrong;
};

/* Elements of groups alone: what lies between them is padding. */
static strata_status look(void *ctx, uint32_t page, uint64_t first, uint64_t count, const void *weight)
{
    const uint16_t *weights = weight;
    struct seen *s = ctx;

    for (uint32_t g = 0; g < s->w->pages[page].group_count; g++) {
        const struct st_group *group = &s->w->pages[page].groups[g];
        const bool even = s->forward_only || group->kind == ST_GROUP_FROZEN;

        for (uint64_t i = 0; i < count; i++) {
            const uint32_t bits = nudged_bits_at(first + i);

            if (first + i < group->offset || first + i >= group->offset + group->elems)
                continue;
            s->wrong += weights[i] != (even ? even_of(bits) : away_of(bits));
            s->even += even;
            s->away += !even;
        }
    }
    return STRATA_OK;
}

static struct seen load(const struct load_case *c)
{
    const bool paged = c->place % 2 == 1;
    const struct rig_cell cell = {.freeze = c->freeze,
                                  .grad_accum = 1,
                                  .optimizer = paged ? STRATA_TIER_NVME : STRATA_TIER_DEVICE,
                                  .param = paged ? STRATA_TIER_NVME : STRATA_TIER_DEVICE,
                                  .act_tier = STRATA_TIER_COUNT,
                                  .io_method = "auto",
                                  .isa = "auto",
                                  .threads = 2,
                                  .dtype = STRATA_BF16};
    const struct st_machine machine = {.capacity = {.bytes = {AMPLE, AMPLE, AMPLE}, .workers = 2, .device_is_host = true},
                                       .rates = {.upload = 1e12, .download = 1e12}};
    struct seen seen = {.forward_only = c->forward_only};
    struct st_config config;
    struct st_engine_opts opts;
    struct st_policy policy;
    struct st_engine *engine = NULL;
    struct st_model *model;
    struct st_plan *plan = NULL;

    rig_config(&config, &cell, scratch_dir);
    st_config_policy(&policy, &config);
    policy.forward_only = c->forward_only;
    assert_int_equal(rig_model(&model, &cell), STRATA_OK);
    assert_int_equal(st_plan_make(&plan, st_model_workload(model), &machine.capacity, &policy), STRATA_OK);
    st_config_engine_opts(&opts, &config);
    opts.program = &plan->program;
    opts.compute = st_model_compute(model);
    if (c->place / 2 == 1) {
        opts.device = "paced";
        opts.pace = &machine;
    }
    assert_int_equal(st_engine_create(&engine, &opts), STRATA_OK);
    assert_int_equal(st_engine_load(engine, fill, NULL), STRATA_OK);
    seen.w = &plan->program.workload;
    assert_int_equal(st_engine_export(engine, look, &seen), STRATA_OK);
    st_engine_destroy(engine);
    st_plan_destroy(plan);
    st_model_destroy(model);
    return seen;
}

TEST(what_is_trained_is_rounded_as_its_updates_will)
{
    for (uint32_t place = 0; place < PLACES; place++) {
        const struct seen seen = load(&(struct load_case){.place = place});

        assert_int_equal(seen.wrong, 0);
        assert_int_equal(seen.even, 0);
        assert_true(seen.away > 100000);
    }
}

TEST(forward_alone_is_rounded_as_torch_rounds)
{
    for (uint32_t place = 0; place < PLACES; place++) {
        const struct seen seen = load(&(struct load_case){.forward_only = true, .place = place});

        assert_int_equal(seen.wrong, 0);
        assert_int_equal(seen.away, 0);
        assert_true(seen.even > 100000);
    }
}

TEST(what_is_frozen_is_rounded_as_torch_rounds)
{
    for (uint32_t place = 0; place < PLACES; place++) {
        const struct seen seen = load(&(struct load_case){.place = place, .freeze = "transformer.h.1.*"});

        assert_int_equal(seen.wrong, 0);
        assert_true(seen.even > 10000 && seen.away > 10000);
    }
}

/* A load that comes after a cancel ends, wherever the weights go. */
TEST(a_cancelled_load_ends)
{
    for (uint32_t place = 0; place < 4; place++) {
        struct rig_cell cell = rig_swapped();
        struct rig_engine rig;
        struct st_model *model;
        struct st_plan *plan;

        cell.paced = place / 2 == 1;
        if (place % 2 == 0) {
            cell.device = cell.host = RIG_ALL;
            cell.optimizer = cell.param = STRATA_TIER_DEVICE;
        }
        assert_int_equal(rig_model(&model, &cell), STRATA_OK);
        assert_int_equal(rig_plan(&plan, model, &cell), STRATA_OK);
        assert_int_equal(rig_engine_start(&rig, model, plan, &cell, scratch_dir), STRATA_OK);
        st_engine_cancel(rig.engine);
        assert_int_equal(st_engine_load(rig.engine, fill, NULL), STRATA_E_CANCELLED);
        assert_string_equal(strata_last_error(), "cancelled");
        rig_engine_stop(&rig);
        st_plan_destroy(plan);
        st_model_destroy(model);
    }
}

static int setup(void **state)
{
    (void)state;
    scratch_open();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_close();
    return 0;
}

TEST_GROUP(setup, teardown);

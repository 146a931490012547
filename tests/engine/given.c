/* given.c - see given.h. */
#include "given.h"
#include "tests/common/shape.h"
#include "tests/common/test.h"

#include "core/base/rng.h"
#include "tests/offload/plan_fixture.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MICRO_BATCHES 2u
#define AMPLE         (UINT64_C(1) << 40)
#define WEIGHT_SEED   11u
#define WEIGHT_STD    0.02f

float given_weight(uint32_t page, uint64_t elem)
{
    float value;

    st_rng_normal(&value, 1, WEIGHT_SEED, page, elem, WEIGHT_STD);
    return value;
}

static strata_status fill(void *ctx, uint32_t page, uint64_t first, uint64_t count, float *out)
{
    (void)ctx;
    st_rng_normal(out, count, WEIGHT_SEED, page, first, WEIGHT_STD);
    return STRATA_OK;
}

/* --- in the model's place --- */

static void add_gradients(const struct given *g, const struct st_call *call, uint32_t p)
{
    const struct st_workload *w = &g->workload;
    const struct st_page *page = &w->pages[p];
    const double scale = (double)call->loss_gradient * w->micro_batch * w->seq * w->grad_accum;

    if (call->first)
        memset(call->grad, 0, call->grad_elems * sizeof(float));
    for (uint32_t k = 0; g->grad != NULL && k < page->group_count && page->groups[k].kind != ST_GROUP_FROZEN; k++)
        for (uint64_t i = page->groups[k].offset; i < page->groups[k].offset + page->groups[k].elems; i++)
            call->grad[i] += (float)(g->grad(p, i, g->step) / MICRO_BATCHES * scale);
}

static strata_status run(void *model, const struct st_call *call)
{
    const struct given *g = model;
    const struct st_workload *w = &g->workload;

    if (g->called != NULL)
        g->called(call);
    if (call->kind == ST_CALL_HEAD_LOSS)
        *call->loss_sum = g->loss;
    if (call->kind == ST_CALL_HEAD_BACKWARD) /* nothing more for the table */
        memset(call->dact, 0, shape_of(w).activation_bytes);
    if (call->grad != NULL)
        add_gradients(g, call, call->page);
    return STRATA_OK;
}

/* --- the engine --- */

struct st_config given_config(strata_dtype dtype, strata_tier tier)
{
    return (struct st_config){.train_batch = MICRO_BATCHES,
                              .micro_batch = 1,
                              .grad_accum = MICRO_BATCHES,
                              .dtype = dtype,
                              .scaling.scale = 1024,
                              .scaling.min_scale = 1,
                              .optimizer.lr = 1e-2,
                              .optimizer.beta1 = 0.9,
                              .optimizer.beta2 = 0.95,
                              .optimizer.eps = 1e-8,
                              .optimizer.bias_correction = true,
                              .zero_stage = 3,
                              .param_tier = tier,
                              .optimizer_tier = tier,
                              .activation_tier = STRATA_TIER_COUNT,
                              .update_ratio = 1,
                              .update = ST_UPDATE_GATED,
                              .chunk_size = UINT64_C(1) << 20,
                              .block_bytes = 65536,
                              .queue_depth = 8,
                              .threads = 2,
                              .io_method = "fake",
                              .isa = "auto"};
}

static void make_plan(struct given *g, const struct given_opts *opts)
{
    struct st_machine machine = {.name = "given",
                                 .capacity = {.bytes = {AMPLE, AMPLE, AMPLE}, .workers = 2, .device_is_host = true}};
    struct st_policy policy;

    st_config_policy(&policy, &g->config);
    if (opts->smallest) {
        struct st_plan *refused;

        machine.capacity.bytes[STRATA_TIER_DEVICE] = 0;
        refused = plan_try(&g->workload, &machine, &policy, "given");
        assert_false(refused->fits);
        machine.capacity.bytes[STRATA_TIER_DEVICE] = refused->minimum[STRATA_TIER_DEVICE];
        if (opts->little_host)
            machine.capacity.bytes[STRATA_TIER_HOST] = refused->minimum[STRATA_TIER_HOST];
        st_plan_destroy(refused);
    }
    g->plan = plan_try(&g->workload, &machine, &policy, "given");
    assert_true(g->plan->fits);
    assert_int_equal(st_plan_verify(g->plan), STRATA_OK);
}

void given_open(struct given *g, const struct given_opts *opts)
{
    const struct plan_sizes sizes = {.dtype = opts->config.dtype,
                                     .blocks = 2,
                                     .hidden = 16,
                                     .vocab = 64,
                                     .slice_rows = 32,
                                     .seq = 8,
                                     .micro_batch = 1,
                                     .grad_accum = MICRO_BATCHES,
                                     .block_params = opts->block_params,
                                     .adapter_params = opts->adapter_params,
                                     .quantised = opts->quantised,
                                     .positions = true,
                                     .tied = true};
    static const enum plan_frozen frozen[] = {PLAN_FROZEN, PLAN_FROZEN, PLAN_FROZEN, PLAN_FROZEN}; /* [sizes.blocks + 2] */
    struct st_engine_opts engine;

    *g = (struct given){.config = opts->config, .grad = opts->grad, .called = opts->called};
    plan_workload(&g->workload, &sizes, opts->adapter_params > 0 ? frozen : NULL);
    make_plan(g, opts);
    st_config_engine_opts(&engine, &g->config);
    engine.program = &g->plan->program;
    engine.compute = (struct st_compute){.model = g, .run = run};
    engine.nvme.fake_seed = 3;
    g->tokens = calloc((size_t)sizes.seq * MICRO_BATCHES, sizeof(*g->tokens));
    assert_non_null(g->tokens);
    assert_int_equal(st_engine_create(&g->eng, &engine), STRATA_OK);
    assert_int_equal(st_engine_load(g->eng, fill, NULL), STRATA_OK);
}

void given_close(struct given *g)
{
    st_engine_destroy(g->eng);
    st_plan_destroy(g->plan);
    st_workload_fini(&g->workload);
    free(g->tokens);
}

strata_status given_step(struct given *g, struct st_step_result *result)
{
    struct st_step_result unused;

    g->step++;
    st_config_set_rates(&g->config, g->eng);
    return st_engine_step(g->eng, g->tokens, g->tokens, NULL, result != NULL ? result : &unused);
}

/* test_caller - layers that the program around the engine computes: the same bits wherever they live, steps that are dropped,
 * and calls that are out of order. */
#include "net.h"
#include "tests/common/sample.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include "core/base/fault.h"
#include "tests/common/fault_walk.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

TEST_GROUP(scratch_create, scratch_remove);

#define STEPS 4u

/* Everything on the device. */
static struct net_cell resident(strata_dtype dtype)
{
    return (struct net_cell){.dtype = dtype,
                             .grads = STRATA_F32,
                             .optimizer = STRATA_TIER_DEVICE,
                             .param = STRATA_TIER_DEVICE,
                             .acts = STRATA_TIER_DEVICE,
                             .update = ST_UPDATE_SERIAL,
                             .threads = 1,
                             .leaves = NET_MICROS,
                             .clip = 1.0,
                             .io = "fake"};
}

/* Everything on NVMe, with as little memory as can be. */
static struct net_cell paged(strata_dtype dtype)
{
    struct net_cell c = resident(dtype);

    c.optimizer = c.param = c.acts = STRATA_TIER_NVME;
    c.update = ST_UPDATE_GATED;
    c.device_least = c.host_least = true;
    c.threads = 2;
    return c;
}

static void same_bits(const struct net_result *a, const struct net_result *b, const struct net_cell *cell)
{
    char text[NET_TEXT];

    for (uint32_t s = 0; s < NET_STEPS_MAX; s++)
        if (memcmp(&a->losses[s], &b->losses[s], sizeof(double)) != 0 || memcmp(&a->norms[s], &b->norms[s], sizeof(double)) != 0)
            fail_msg("%s: step %u: loss %.17g, norm %.17g, not %.17g, %.17g", net_text(text, cell), s + 1, b->losses[s],
                     b->norms[s], a->losses[s], a->norms[s]);
    if (strcmp(a->weights, b->weights) != 0 || strcmp(a->state, b->state) != 0 || a->evaluated != b->evaluated)
        fail_msg("%s: other bits", net_text(text, cell));
}

/* --- the same bits everywhere --- */

static const struct net_cell places[] = {
    {.optimizer = STRATA_TIER_HOST,
     .param = STRATA_TIER_HOST,
     .acts = STRATA_TIER_HOST,
     .update = ST_UPDATE_GATED,
     .threads = 2,
     .device_least = true},
    {.optimizer = STRATA_TIER_NVME,
     .param = STRATA_TIER_NVME,
     .acts = STRATA_TIER_NVME,
     .update = ST_UPDATE_GATED,
     .threads = 2,
     .device_least = true,
     .host_least = true},
    {.optimizer = STRATA_TIER_NVME,
     .param = STRATA_TIER_HOST,
     .acts = STRATA_TIER_DEVICE,
     .update = ST_UPDATE_SERIAL,
     .threads = 1,
     .device_least = true,
     .foreign = true},
    {.optimizer = STRATA_TIER_NVME,
     .param = STRATA_TIER_NVME,
     .acts = STRATA_TIER_HOST,
     .update = ST_UPDATE_SERIAL,
     .threads = 2,
     .host_least = true,
     .cache = ST_AUTO_BYTES,
     .sets = 4},
    {.optimizer = STRATA_TIER_HOST,
     .param = STRATA_TIER_NVME,
     .acts = STRATA_TIER_NVME,
     .update = ST_UPDATE_GATED,
     .threads = 2,
     .device_least = true,
     .paced = true},
    {.optimizer = STRATA_TIER_NVME,
     .param = STRATA_TIER_NVME,
     .acts = STRATA_TIER_NVME,
     .update = ST_UPDATE_GATED,
     .threads = 1,
     .device_least = true,
     .host_least = true,
     .paced = true,
     .foreign = true},
    {.optimizer = STRATA_TIER_DEVICE,
     .param = STRATA_TIER_DEVICE,
     .acts = STRATA_TIER_DEVICE,
     .update = ST_UPDATE_GATED,
     .threads = 2,
     .paced = true},
};

static struct net_cell placed(const struct net_cell *base, const struct net_cell *place)
{
    struct net_cell c = *base;

    c.optimizer = place->optimizer;
    c.param = place->param;
    c.acts = place->acts;
    c.update = place->update;
    c.threads = place->threads;
    c.device_least = place->device_least;
    c.host_least = place->host_least;
    c.foreign = place->foreign;
    c.cache = place->cache;
    c.sets = place->sets;
    c.paced = place->paced;
    return c;
}

static struct net_result agree(const struct net_cell *base)
{
    struct net_result want;

    net_run(&want, base, STEPS, scratch_dir);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        const struct net_cell cell = placed(base, &places[i]);
        struct net_result got;

        net_run(&got, &cell, STEPS, scratch_dir);
        same_bits(&want, &got, &cell);
    }
    return want;
}

TEST(fp32_has_the_same_bits_everywhere)
{
    struct net_cell c = resident(STRATA_F32);
    const struct net_result r = agree(&c);

    for (uint32_t s = 0; s < STEPS; s++)
        assert_true(isfinite(r.losses[s]) && r.norms[s] > 0 && !r.skipped[s] && !r.dropped[s]);
    assert_true(r.losses[STEPS - 1] != r.losses[0] && r.steps_done == STEPS && r.steps_skipped == 0);
}

TEST(bf16_with_rounded_gradients_and_a_short_step)
{
    struct net_cell c = resident(STRATA_BF16);

    c.grads = STRATA_BF16;
    c.fewer_at = 2;
    c.evaluate_at = 3;
    c.flush_at = 1;
    (void)agree(&c);
}

TEST(a_frozen_layer_and_scaled_losses)
{
    struct net_cell c = resident(STRATA_F32);
    struct net_result r;

    c.frozen = 1;
    c.leaves = 2;
    c.scales = true;
    c.poison_at = 2; /* as an overflow */
    r = agree(&c);
    assert_true(r.skipped[1] && !r.dropped[1] && r.scales[0] == 1024 && r.scales[2] == 512);
    c.frozen = 3;
    c.poison_at = 0;
    (void)agree(&c);
}

TEST(updates_in_backward)
{
    struct net_cell c = resident(STRATA_F32);
    struct net_result want, got;

    c.clip = 0;
    net_run(&want, &c, STEPS, scratch_dir);
    for (int paged_too = 0; paged_too < 2; paged_too++) {
        struct net_cell b = paged_too ? paged(STRATA_F32) : c;

        b.clip = 0;
        b.update = ST_UPDATE_IN_BACKWARD;
        b.evaluate_at = 0;
        net_run(&got, &b, STEPS, scratch_dir);
        same_bits(&want, &got, &b);
    }
}

/* Pages are those of the model alone: layers that all stay on the device have the bits of layers that are entered. */
TEST(layers_that_are_all_resident)
{
    struct net_cell c = resident(STRATA_BF16);
    struct net_result want, got;

    c.evaluate_at = 2;
    c.fewer_at = 3;
    net_run(&want, &c, STEPS, scratch_dir);
    c.all_stay = true;
    got = agree(&c);
    same_bits(&want, &got, &c);
    c.fewer_at = 0;
    c.leaves = NET_MICROS;
    net_run(&want, &c, STEPS, scratch_dir);
    for (uint32_t stage = 0; stage <= 3; stage++) {
        c.ranks = 2;
        c.stage = stage;
        c.optimizer = stage % 2 == 0 ? STRATA_TIER_NVME : STRATA_TIER_DEVICE;
        net_run(&got, &c, STEPS, scratch_dir);
        same_bits(&want, &got, &c);
    }
}

/* --- ranks --- */

TEST(ranks_have_the_bits_of_one)
{
    struct net_cell c = resident(STRATA_BF16);
    struct net_result want;

    c.evaluate_at = 2;
    net_run(&want, &c, STEPS, scratch_dir);
    for (uint32_t ranks = 2; ranks <= 4; ranks *= 2)
        for (uint32_t stage = 0; stage <= 3; stage++) {
            struct net_cell r = stage % 2 == 0 ? paged(STRATA_BF16) : c;
            struct net_result got;

            r.evaluate_at = 2;
            r.ranks = ranks;
            r.stage = stage;
            net_run(&got, &r, STEPS, scratch_dir);
            same_bits(&want, &got, &r);
        }
}

/* What the caller holds itself is taken off the capacity, and the plan says so; a core is left to the engine. */
TEST(a_callers_memory_is_left_to_it)
{
    const uint64_t bytes[STRATA_TIER_NVME] = {3u << 20, UINT64_MAX};
    struct st_capacity capacity = {.bytes = {5u << 20, 1u << 20, 7}, .workers = 4};
    struct st_policy policy = {0};

    st_plan_leave(&policy, &capacity, bytes, 8);
    assert_true(capacity.bytes[STRATA_TIER_DEVICE] == 2u << 20 && capacity.bytes[STRATA_TIER_HOST] == 0);
    assert_true(capacity.bytes[STRATA_TIER_NVME] == 7 && capacity.workers == 1);
    assert_true(policy.caller_threads == 8 && policy.caller_bytes[STRATA_TIER_DEVICE] == 3u << 20);
}

/* --- steps that are dropped --- */

/* After a step that was given up the others have the bits that a skipped step leaves them. */
TEST(a_drop_at_any_point_is_a_skipped_step)
{
    struct net_cell skipped = resident(STRATA_BF16), whole;
    struct net_result want, all;
    uint32_t calls;

    whole = skipped;
    net_run(&all, &whole, 2, scratch_dir);
    skipped.poison_at = 2;
    net_run(&want, &skipped, STEPS, scratch_dir);
    assert_true(want.skipped[1] && want.steps_skipped == 1);
    calls = all.calls[1];
    for (uint32_t at = 0, n = 0; at < calls; at += sample_is_all() ? 1 : 1 + calls / 24, n++) {
        struct net_cell c = n % 2 == 0 ? paged(STRATA_BF16) : skipped;
        struct net_result got;

        c.paced = n % 4 == 2;
        c.poison_at = 0;
        c.drop_at = 2;
        c.drop_call = at;
        net_run(&got, &c, STEPS, scratch_dir);
        assert_true(got.dropped[1] && got.skipped[1] && isnan(got.losses[1]) && got.steps_skipped == 1);
        got.losses[1] = want.losses[1];
        got.norms[1] = want.norms[1];
        same_bits(&want, &got, &c);
    }
}

/* Whoever drops it: the step is dropped on every rank, and the next one goes on. */
TEST(a_rank_drops_for_all)
{
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct net_cell c = paged(STRATA_F32), skipped = c;
        struct net_result want, got;

        skipped.ranks = c.ranks = 2;
        skipped.stage = c.stage = rank;
        skipped.poison_at = 2;
        net_run(&want, &skipped, STEPS, scratch_dir);
        c.drop_at = 2;
        c.drop_rank = rank;
        c.drop_call = 7;
        net_run(&got, &c, STEPS, scratch_dir);
        assert_true(got.dropped[1] && got.skipped[1] && got.steps_skipped == 1 && strcmp(got.weights, want.weights) == 0 &&
                    strcmp(got.state, want.state) == 0);
    }
}

/* --- calls out of order --- */

struct order {
    struct st_workload w;
    struct st_plan *plan;
    struct net_cell cell;
    struct net net;
};

static void order_begin(struct order *o, const struct net_cell *cell)
{
    o->cell = *cell;
    net_workload(&o->w, &o->cell);
    o->plan = net_plan(&o->w, &o->cell, 0);
    assert_int_equal(net_open(&o->net, o->plan, &o->cell, 0, NULL, scratch_dir), STRATA_OK);
}

static void order_end(struct order *o)
{
    net_close(&o->net);
    st_plan_destroy(o->plan);
    st_workload_fini(&o->w);
}

static void refused(strata_status st, strata_status with, const char *says)
{
    assert_int_equal(st, with);
    if (strstr(strata_last_error(), says) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", strata_last_error(), says);
}

TEST(calls_out_of_order_change_nothing)
{
    const struct net_cell cell = paged(STRATA_F32);
    const struct st_caller_step step = {.micros = 1}, many = {.micros = NET_MICROS + 1};
    struct st_caller_view view;
    struct st_step_result result;
    struct st_engine_info info;
    char digest[2][33];
    const void *weight;
    struct order o;
    struct st_engine *e;
    double scale;

    order_begin(&o, &cell);
    e = o.net.engine;
    refused(st_engine_caller_enter(e, ST_PASS_FORWARD, 0, &view), STRATA_E_INVAL, "begin");
    refused(st_engine_caller_leave(e), STRATA_E_INVAL, "begin");
    refused(st_engine_caller_end(e, NULL, 1, &result), STRATA_E_INVAL, "begin");
    refused(st_engine_caller_drop(e, NULL), STRATA_E_INVAL, "begin");
    refused(st_engine_caller_begin(e, &many, &scale), STRATA_E_INVAL, "micro-batches");
    assert_int_equal(st_engine_caller_begin(e, &step, &scale), STRATA_OK);
    assert_true(st_engine_caller_inside(e));
    refused(st_engine_caller_begin(e, &step, &scale), STRATA_E_BUSY, "begin");
    refused(st_engine_flush(e, NULL), STRATA_E_BUSY, "flush");
    refused(st_engine_digest(e, digest[0], digest[1]), STRATA_E_BUSY, "digest");
    refused(st_engine_load(e, NULL, NULL), STRATA_E_BUSY, "load");
    refused(st_engine_caller_enter(e, ST_PASS_FORWARD, 1, &view), STRATA_E_INVAL, "forward of layer 0");
    refused(st_engine_caller_enter(e, ST_PASS_BACKWARD, 0, &view), STRATA_E_INVAL, "forward of layer 0");
    refused(st_engine_caller_leave(e), STRATA_E_INVAL, "no layer");
    refused(st_engine_caller_micro_end(e), STRATA_E_INVAL, "left out");
    refused(st_engine_caller_end(e, NULL, 1, &result), STRATA_E_INVAL, "micro-batch 0");
    refused(st_engine_caller_use(e, 2, &weight), STRATA_E_INVAL, "page 2");
    for (uint32_t l = 0; l < NET_LAYERS; l++) {
        assert_int_equal(st_engine_caller_enter(e, ST_PASS_FORWARD, l, &view), STRATA_OK);
        refused(st_engine_caller_enter(e, ST_PASS_FORWARD, l + 1, &view), STRATA_E_INVAL, "still entered");
        refused(st_engine_caller_add(e, view.page, 0, STRATA_F32, 1, &scale), STRATA_E_INVAL, "backward");
        assert_int_equal(st_engine_caller_leave(e), STRATA_OK);
    }
    for (uint32_t l = NET_LAYERS; l-- > 0;) {
        assert_int_equal(st_engine_caller_enter(e, ST_PASS_BACKWARD, l, &view), STRATA_OK);
        refused(st_engine_caller_add(e, view.page, UINT64_MAX, STRATA_F32, 2, &scale), STRATA_E_INVAL, "elements");
        refused(st_engine_caller_add(e, 2 + (l + 1) % NET_LAYERS, 0, STRATA_F32, 1, &scale), STRATA_E_INVAL, "backward");
        refused(st_engine_caller_add(e, view.page, 0, STRATA_NF4, 1, &scale), STRATA_E_INVAL, "fp32");
        assert_int_equal(st_engine_caller_leave(e), STRATA_OK);
    }
    assert_int_equal(st_engine_caller_micro_end(e), STRATA_OK);
    refused(st_engine_caller_micro_end(e), STRATA_E_INVAL, "all over");
    refused(st_engine_caller_enter(e, ST_PASS_FORWARD, 0, &view), STRATA_E_INVAL, "no more layers");
    refused(st_engine_caller_add(e, 0, 0, STRATA_F32, 1, &scale), STRATA_E_INVAL, "last micro-batch");
    refused(st_engine_caller_end(e, NULL, 0, &result), STRATA_E_INVAL, "divisor");
    assert_int_equal(st_engine_caller_end(e, NULL, 3, &result), STRATA_OK);
    assert_true(!st_engine_caller_inside(e) && isnan(result.loss) && result.grad_norm == 0 && !result.skipped);
    st_engine_info(e, &info);
    assert_int_equal(info.steps_done, 1);
    order_end(&o);
}

TEST(in_backward_needs_its_divisor_and_drops_nothing)
{
    const struct st_caller_step without = {.micros = 1}, step = {.micros = 1, .divisor = 4};
    struct net_cell cell = paged(STRATA_F32);
    struct order o;
    double scale;

    cell.update = ST_UPDATE_IN_BACKWARD;
    order_begin(&o, &cell);
    refused(st_engine_caller_begin(o.net.engine, &without, &scale), STRATA_E_INVAL, "divisor");
    assert_int_equal(st_engine_caller_begin(o.net.engine, &step, &scale), STRATA_OK);
    refused(st_engine_caller_drop(o.net.engine, NULL), STRATA_E_INVAL, "in_backward");
    assert_true(st_engine_caller_inside(o.net.engine));
    order_end(&o); /* within the step */
}

/* Wherever the caller stops, the engine can be destroyed. */
TEST(a_caller_that_dies_leaves_nothing_behind)
{
    const struct st_caller_step step = {.micros = 0};

    for (uint32_t enter = 0; enter < 6; enter++) {
        struct net_cell cell = paged(STRATA_F32);
        struct st_caller_view view;
        struct order o;
        double scale;

        cell.paced = enter % 2 != 0;
        order_begin(&o, &cell);
        assert_int_equal(st_engine_caller_begin(o.net.engine, &step, &scale), STRATA_OK);
        for (uint32_t i = 0; i < enter; i++) {
            if (i % 2 == 0)
                assert_int_equal(st_engine_caller_enter(o.net.engine, ST_PASS_FORWARD, i / 2, &view), STRATA_OK);
            else
                assert_int_equal(st_engine_caller_leave(o.net.engine), STRATA_OK);
        }
        order_end(&o);
    }
    assert_int_equal(scratch_entries(scratch_dir, NULL), 0);
}

TEST(a_cancel_ends_the_step)
{
    const struct st_caller_step step = {.micros = 0};
    const struct net_cell cell = paged(STRATA_F32);
    struct st_caller_view view;
    struct order o;
    double scale;

    order_begin(&o, &cell);
    assert_int_equal(st_engine_caller_begin(o.net.engine, &step, &scale), STRATA_OK);
    assert_int_equal(st_engine_caller_enter(o.net.engine, ST_PASS_FORWARD, 0, &view), STRATA_OK);
    st_engine_cancel(o.net.engine);
    assert_int_equal(st_engine_caller_leave(o.net.engine), STRATA_E_CANCELLED);
    assert_int_equal(st_engine_caller_drop(o.net.engine, NULL), STRATA_E_CANCELLED);
    assert_false(st_engine_caller_inside(o.net.engine));
    assert_int_equal(st_engine_caller_begin(o.net.engine, &step, &scale), STRATA_E_CANCELLED);
    order_end(&o);
}

/* --- a failing world --- */

TEST(every_single_failure_is_clean)
{
    struct fault_walk walk = {.result = -EIO};
    struct net_cell cell = paged(STRATA_BF16);
    struct net_result want, got;
    struct st_workload w;
    struct st_plan *plan;

    net_workload(&w, &cell);
    plan = net_plan(&w, &cell, 0);
    assert_int_equal(net_train(&want, plan, &cell, 2, scratch_dir), STRATA_OK);
    while (fault_walk_next(&walk)) {
        const strata_status st = net_train(&got, plan, &cell, 2, scratch_dir);

        fault_walk_end(&walk, st);
        if (st == STRATA_OK)
            same_bits(&want, &got, &cell);
        (void)st_swap_sweep(scratch_dir);
        assert_int_equal(scratch_entries(scratch_dir, NULL), 0);
        if (walk.after >= 8)
            walk.after += walk.after / (sample_is_all() ? 8 : 3);
    }
    assert_true(walk.failed > 0);
    st_plan_destroy(plan);
    st_workload_fini(&w);
}

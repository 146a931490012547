/* tests/api/test_layers.c - a net that the test computes has the same bits wherever its state is, however its gradients come, and
 * whichever thread calls. */
#include "tests/api/handles_fixture.h"
#include "tests/api/layers_net.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define STEPS 4

/* Digest after some steps, and what they lost. */
static void train(const struct net_opts *opts, bool threads, char digest[80], double losses[STEPS])
{
    struct net n;

    assert_ok(net_start(&n, opts));
    n.threads = threads;
    for (uint64_t step = 0; step < STEPS; step++) {
        assert_ok(net_step(&n, step));
        losses[step] = n.last.loss;
    }
    net_digest(&n, digest);
    net_close(&n);
}

static void same(const struct net_opts *opts, bool threads, const char *digest, const double losses[STEPS], const char *what)
{
    double now[STEPS];
    char here[80];

    train(opts, threads, here, now);
    if (strcmp(here, digest) != 0 || memcmp(now, losses, sizeof(now)) != 0)
        fail_msg("%s: %s, not %s", what, here, digest);
}

TEST(the_loss_falls)
{
    struct net n;
    double first, loss;

    assert_ok(net_start(&n, NULL));
    assert_ok(net_eval(&n, 0, &first));
    for (uint64_t step = 0; step < 30; step++)
        assert_ok(net_step(&n, step % 4));
    assert_true(isfinite(n.last.grad_norm) && n.last.grad_norm > 0);
    assert_ok(net_eval(&n, 0, &loss));
    if (!(loss < first / 2))
        fail_msg("a loss of %g became %g", first, loss);
    net_close(&n);
}

/* One rate for all precisions. */
TEST(placement_never_changes_bits)
{
    static const char *const precisions[] = {"bf16.enabled=false", "bf16.enabled=true", "fp16.enabled=true"};
    static const char nvme_all[] = "zero_optimization.offload_param.device=nvme";
    static const char nvme_state[] = "zero_optimization.offload_optimizer.device=nvme";
    char dirs[160];

    snprintf(dirs, sizeof(dirs), "strata.nvme=[\"%s\"]", scratch_path("drive"));
    scratch_put("drive/.keep", "");
    for (uint32_t p = 0; p < 3; p++) {
        const char *plain[] = {precisions[p]};
        const char *on_drive[] = {precisions[p], nvme_state, dirs, "strata.cache=0"};
        const char *all[] = {precisions[p], nvme_state, nvme_all, dirs, "strata.cache=0"};
        const char *serial[] = {precisions[p],          nvme_state,        nvme_all, dirs, "strata.cache=0",
                                "strata.update=serial", "strata.threads=1"};
        const char *host[] = {precisions[p], "zero_optimization.offload_param.device=cpu",
                              "zero_optimization.offload_optimizer.device=cpu", "strata.activation_tier=host"};
        struct net_opts o = {.overrides = plain, .override_count = 1};
        char digest[80];
        double losses[STEPS];

        train(&o, false, digest, losses);
        same(&o, true, digest, losses, "threads of the caller");
        o = (struct net_opts){.overrides = on_drive, .override_count = 4};
        same(&o, false, digest, losses, "state on nvme");
        o = (struct net_opts){.overrides = all, .override_count = 5};
        same(&o, false, digest, losses, "all on nvme");
        o.grad_dtype = STRATA_F32;
        same(&o, false, digest, losses, "gradients that are reported");
        o = (struct net_opts){.overrides = serial, .override_count = 7};
        same(&o, false, digest, losses, "serial updates");
        o = (struct net_opts){.overrides = host, .override_count = 4};
        same(&o, false, digest, losses, "all in host memory");
        o.resident = true;
        same(&o, false, digest, losses, "state in host memory, no layer that is entered");
        o = (struct net_opts){.overrides = on_drive, .override_count = 4, .resident = true};
        same(&o, true, digest, losses, "state on nvme, no layer that is entered");
    }
}

TEST(gradients_of_16_bits_are_widened)
{
    struct net_opts o = {.grad_dtype = STRATA_BF16};
    char digest[80], exact[80];
    double losses[STEPS], exact_losses[STEPS];

    train(&o, false, digest, losses);
    same(&o, true, digest, losses, "again");
    train(NULL, false, exact, exact_losses);
    assert_true(strcmp(digest, exact) != 0 && fabs(losses[STEPS - 1] - exact_losses[STEPS - 1]) < 0.05);
}

/* A step with fewer micro-batches is one of a configuration with fewer, where clipping sees the same norm. */
TEST(fewer_micro_batches)
{
    const char *one[] = {"gradient_accumulation_steps=1"};
    struct net_opts few = {.micros = 1}, small = {.overrides = one, .override_count = 1};
    char digest[80];
    double losses[STEPS];

    train(&small, false, digest, losses);
    same(&few, false, digest, losses, "one of two micro-batches");
}

TEST(groups_have_rates_of_their_own)
{
    struct strata_layers_step s = STRATA_LAYERS_STEP_INIT;
    const double none[] = {0, 0}, first[] = {1e-2, 0};
    float before[NET_WIDTH], after[NET_WIDTH];
    uint32_t table, gain;
    struct net n;

    assert_ok(net_start(&n, NULL));
    assert_ok(strata_engine_find_tensor(n.engine, "table", &table));
    assert_ok(strata_engine_find_tensor(n.engine, "gain", &gain));
    for (uint32_t i = 0; i < 2; i++) {
        char was[80], is[80];

        s.lr = none;
        net_digest(&n, was);
        n.lr = i == 0 ? NULL : first; /* what is said at the end counts */
        assert_ok(strata_engine_read_tensor(n.engine, gain, STRATA_PLANE_WEIGHT, 0, NET_WIDTH, STRATA_F32, before));
        n.step = &s;
        assert_ok(net_step(&n, i));
        n.step = NULL;
        n.lr = NULL;
        net_digest(&n, is);
        assert_ok(strata_engine_read_tensor(n.engine, gain, STRATA_PLANE_WEIGHT, 0, NET_WIDTH, STRATA_F32, after));
        assert_memory_equal(before, after, sizeof(before)); /* its group's rate is 0 */
        assert_int_equal(strncmp(was, is, 32) == 0, i == 0);
    }
    net_close(&n);
}

/* OneCycle's, given at the end of each step, are OneCycle's of the configuration. */
TEST(betas_are_those_of_a_step)
{
    const char *cycle[] = {"scheduler.type=OneCycle", "scheduler.params.cycle_min_lr=1e-3", "scheduler.params.cycle_max_lr=1e-2",
                           "scheduler.params.cycle_first_step_size=3"};
    const struct net_opts scheduled = {.overrides = cycle, .override_count = 4};
    struct strata_config_rates rates = STRATA_CONFIG_RATES_INIT;
    double lr[2], beta1[2], beta2[2];
    char by_schedule[80], by_caller[80];
    struct net a, b;

    assert_ok(net_start(&a, &scheduled));
    assert_ok(net_start(&b, NULL));
    b.lr = lr;
    b.beta1 = beta1;
    b.beta2 = beta2;
    for (uint64_t step = 0; step < 8; step++) {
        assert_ok(strata_config_get_rates(a.config, step + 1, &rates));
        lr[0] = rates.lr;
        lr[1] = 2 * rates.lr;
        beta1[0] = beta1[1] = rates.beta1;
        beta2[0] = beta2[1] = rates.beta2;
        assert_ok(net_step(&a, step));
        assert_ok(net_step(&b, step));
        assert_string_equal(net_digest(&a, by_schedule), net_digest(&b, by_caller));
    }
    beta1[1] = 1;
    assert_refused(net_step(&b, 8), "beta1 of parameter group 1 is 1");
    assert_ok(strata_engine_drop(b.engine, NULL));
    net_close(&a);
    net_close(&b);
}

/* Each group's bias correction is by its own betas, whenever they change. */
TEST(betas_of_groups_are_apart)
{
    const double plain[] = {0.9, 0.9}, apart[] = {0.9, 0.5}, beta2[] = {0.999, 0.999};
    float tables[2][NET_WIDTH], gains[2][NET_WIDTH];
    struct net n;

    for (uint32_t i = 0; i < 2; i++) {
        assert_ok(net_start(&n, NULL));
        n.beta2 = beta2;
        for (uint64_t step = 0; step < 3; step++) {
            n.beta1 = i == 1 && step == 2 ? apart : plain;
            assert_ok(net_step(&n, step));
        }
        assert_ok(strata_engine_read_tensor(n.engine, 0, STRATA_PLANE_WEIGHT, 0, NET_WIDTH, STRATA_F32, tables[i]));
        assert_ok(strata_engine_read_tensor(n.engine, NET_TENSORS - 1, STRATA_PLANE_WEIGHT, 0, NET_WIDTH, STRATA_F32, gains[i]));
        net_close(&n);
    }
    assert_memory_equal(tables[0], tables[1], sizeof(tables[0]));
    assert_memory_not_equal(gains[0], gains[1], sizeof(gains[0]));
}

/* They are made before the step ends, so that it cannot be dropped. */
TEST(updates_in_backward)
{
    const char *gated[] = {"gradient_clipping=0", "strata.update=gated"},
               *at_once[] = {"gradient_clipping=0", "strata.update=in_backward"};
    struct net_opts o = {.overrides = gated, .override_count = 2};
    char digest[80];
    double losses[STEPS];
    struct net n;

    train(&o, false, digest, losses);
    o.overrides = at_once;
    same(&o, false, digest, losses, "updates in backward");
    assert_ok(net_start(&n, &o));
    n.left = 5;
    assert_status(net_step(&n, 0), STRATA_E_CANCELLED, "a part of a step");
    assert_refused(strata_engine_drop(n.engine, NULL), "in_backward");
    net_close(&n);
}

TEST(an_overflow_is_skipped)
{
    const char *fp16[] = {"fp16.enabled=true", "fp16.initial_scale_power=8", "fp16.hysteresis=1"};
    struct net_opts o = {.overrides = fp16, .override_count = 3};
    struct strata_engine_info info = STRATA_ENGINE_INFO_INIT;
    char before[80], after[80];
    struct net n;

    assert_ok(net_start(&n, &o));
    assert_ok(net_step(&n, 0));
    assert_true(n.last.loss_scale == 256 && !n.last.skipped);
    net_digest(&n, before);
    n.spoil = (double)INFINITY;
    assert_ok(net_step(&n, 1));
    assert_true(n.last.skipped && !n.last.dropped && n.last.loss_scale == 256);
    assert_ok(strata_engine_get_info(n.engine, &info));
    assert_true(info.loss_scale == 128);
    net_digest(&n, after);
    assert_string_equal(before, after);
    n.spoil = 0;
    assert_ok(net_step(&n, 2));
    assert_true(!n.last.skipped && n.last.loss_scale == 128);
    net_close(&n);
}

/* Nothing is known of the layers until two steps are over: then the shortest times that they took bound a step, which those two
 * steps were not shorter than. */
TEST(measured_times_bound_a_step)
{
    const struct net_opts o = {.unknown = true};
    struct strata_plan_info info = STRATA_PLAN_INFO_INIT;
    double seconds[3], slept, loss;
    const char *text;
    struct net n;

    assert_ok(net_start(&n, &o));
    n.sleep_us = 1000;
    slept = 2 * 2 * NET_BLOCKS * 1e-3; /* micro-batches, passes */
    for (uint32_t step = 0; step < 3; step++) {
        assert_ok(strata_plan_get_info(n.plan, &info));
        assert_true((info.schedule_bound_seconds > 0) == (step > 1));
        assert_ok(net_eval(&n, 7, &loss)); /* is no step */
        assert_ok(net_step(&n, step));
        seconds[step] = n.last.seconds;
    }
    assert_ok(strata_plan_get_info(n.plan, &info));
    if (!(info.schedule_bound_seconds >= slept && info.schedule_bound_seconds <= seconds[0] &&
          info.schedule_bound_seconds <= seconds[1]))
        fail_msg("a bound of %g s, where %g are slept and steps took %g and %g", info.schedule_bound_seconds, slept, seconds[0],
                 seconds[1]);
    assert_string_equal(info.bound_by, "compute");
    assert_ok(strata_engine_json(n.engine, 3, &text));
    assert_null(strstr(text, "\"schedule_bound_seconds\":null"));
    assert_ok(strata_engine_step_json(n.engine, &n.last, &text));
    assert_non_null(strstr(text, "{\"step\":3,\"epoch\":null,\"loss\":"));
    assert_non_null(strstr(text, "\"tokens\":null,\"tokens_total\":null,\"tokens_per_second\":null,\"mfu\":null,\"step_seconds\":"));
    assert_null(strstr(text, "\"schedule_bound_seconds\":null"));
    assert_null(strstr(text, "\"loss_mean20\":null"));
    net_close(&n);
}

/* An evaluation changes nothing, and makes what is pending. */
TEST(an_evaluation_changes_nothing)
{
    double losses[STEPS], loss, again;
    char digest[80], here[80];
    struct net n;

    train(NULL, false, digest, losses);
    assert_ok(net_start(&n, NULL));
    for (uint64_t step = 0; step < STEPS; step++) {
        assert_ok(net_eval(&n, 9, &loss));
        assert_ok(net_eval(&n, 9, &again));
        assert_true(loss == again);
        assert_ok(net_step(&n, step));
        assert_true(n.last.loss == losses[step]);
    }
    assert_string_equal(net_digest(&n, here), digest);
    net_close(&n);
}

TEST_MAIN(argc, argv)
{
    strata_log_configure(NULL, NULL, STRATA_LOG_ERROR);
    return test_run(scratch_create, scratch_remove);
}

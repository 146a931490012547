/* tests/offload/test_lr_schedule.c - rates read off DeepSpeed 0.19.8 by running it, optimizer steps 1..14; its six
 * printed digits are the tolerance. */
#include "offload/lr_schedule.h"

#include <math.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define STEPS     14
#define TOLERANCE 1e-5 /* relative */

struct schedule_row {
    const char *scheduler; /* members of the section */
    double lr[STEPS];
};

static const struct schedule_row rows[] = {
    {"\"type\": \"WarmupLR\", \"params\": {\"warmup_min_lr\": 0.0, \"warmup_max_lr\": 0.001, \"warmup_num_steps\": 4, "
     "\"warmup_type\": \"log\"}",
     {0, 0, 0.0005, 0.000792481, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001}},
    {"\"type\": \"WarmupLR\", \"params\": {\"warmup_min_lr\": 0.0001, \"warmup_max_lr\": 0.001, \"warmup_num_steps\": 4, "
     "\"warmup_type\": \"linear\"}",
     {0.0001, 0.0001, 0.000325, 0.00055, 0.000775, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001}},
    {"\"type\": \"WarmupLR\", \"params\": {\"warmup_min_lr\": 0.0, \"warmup_max_lr\": 0.001, \"warmup_num_steps\": 1, "
     "\"warmup_type\": \"linear\"}",
     {0, 0, 0.0005, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001}},
    {"\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 10, \"warmup_min_lr\": 0.0, \"warmup_max_lr\": 0.001, "
     "\"warmup_num_steps\": 3, \"warmup_type\": \"linear\"}",
     {0, 0, 0.000333333, 0.000666667, 0.001, 0.000857143, 0.000714286, 0.000571429, 0.000428571, 0.000285714, 0.000142857, 0, 0,
      0}},
    {"\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 10, \"warmup_min_lr\": 0.0, \"warmup_max_lr\": 0.001, "
     "\"warmup_num_steps\": 3, \"warmup_type\": \"log\"}",
     {0, 0, 0.00063093, 0.001, 0.001, 0.000857143, 0.000714286, 0.000571429, 0.000428571, 0.000285714, 0.000142857, 0, 0, 0}},
};

static struct st_config load(const char *scheduler)
{
    const struct st_config_opts opts = {.max_steps = 0};
    struct st_config_source *source;
    struct st_config config;
    char text[512];

    snprintf(text, sizeof(text), "{\"optimizer\": {\"params\": {\"lr\": 7e-4}}, \"scheduler\": {%s}}", scheduler);
    if (st_config_load_text(&config, &source, text, strlen(text), "t", &opts) != STRATA_OK)
        fail_msg("%s: %s", scheduler, strata_last_error());
    st_config_source_free(source);
    return config;
}

static void rates_are_deepspeeds(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct st_config c = load(rows[i].scheduler);

        for (uint64_t step = 1; step <= STEPS; step++) {
            const double want = rows[i].lr[step - 1], got = st_lr_at(&c, step);

            if (!(fabs(got - want) <= TOLERANCE * want))
                fail_msg("row %zu step %u: %.9g, not %.9g", i, (unsigned)step, got, want);
        }
    }
}

static void constant_without_a_scheduler(void **state)
{
    const struct st_config c = load("");

    (void)state;
    for (uint64_t step = 0; step <= STEPS; step++)
        assert_true(st_lr_at(&c, step) == 7e-4);
    assert_true(st_lr_at(&c, UINT64_MAX) == 7e-4);
}

static void warmup_without_a_maximum_ends_at_the_optimizers_rate(void **state)
{
    const struct st_config c = load("\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 4, \"warmup_type\": \"linear\"}");

    (void)state;
    assert_true(st_lr_at(&c, 2) == 0);
    assert_true(fabs(st_lr_at(&c, 4) - 3.5e-4) < 1e-18);
    assert_true(st_lr_at(&c, 6) == 7e-4);
    assert_true(st_lr_at(&c, UINT64_MAX) == 7e-4);
}

/* Fewer steps than the warm-up has, or none known: no division by zero, never above the maximum or below the minimum. */
static void short_runs_stay_in_range(void **state)
{
    static const char *const schedulers[] = {
        "\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 2, \"warmup_num_steps\": 5, \"warmup_min_lr\": 1e-5}",
        "\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 3, \"warmup_num_steps\": 3, \"warmup_min_lr\": 1e-5}",
        "\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": \"auto\", \"warmup_min_lr\": 1e-5, "
        "\"warmup_num_steps\": \"auto\"}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(schedulers) / sizeof(schedulers[0]); i++) {
        const struct st_config c = load(schedulers[i]);

        for (uint64_t step = 1; step < 20; step++)
            assert_true(st_lr_at(&c, step) >= 1e-5 && st_lr_at(&c, step) <= 1e-3);
        assert_true(st_lr_at(&c, 1000) == 1e-5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_deepspeeds),
        cmocka_unit_test(constant_without_a_scheduler),
        cmocka_unit_test(warmup_without_a_maximum_ends_at_the_optimizers_rate),
        cmocka_unit_test(short_runs_stay_in_range),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

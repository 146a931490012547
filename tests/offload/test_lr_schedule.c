/* tests/offload/test_lr_schedule.c - rates read off DeepSpeed 0.19.8 by running it, optimizer steps 1..14: equal to 1e-6,
 * or to half a unit of the sixth digit, which is the last one that was printed. */
#include "core/json/json.h"
#include "offload/config/config.h"
#include "offload/optim/lr_schedule.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define STEPS     14
#define TOLERANCE 1e-6 /* relative */
#define ONE_CYCLE                                                                                                                \
    "\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 0.0001, \"cycle_max_lr\": 0.001, \"cycle_first_step_size\": 4, "

struct schedule_row {
    const char *scheduler; /* members of the section */
    double lr[STEPS];
};

/* beta1 reaches 1 at step 11: such a run is refused, and the shorter one's schedule goes on as DeepSpeed's did. */
#define MOMENTUM_STEPS 10
static const char momentum_cycle[] =
    ONE_CYCLE "\"cycle_second_step_size\": 3, \"decay_lr_rate\": 0.1, \"decay_step_size\": 2, \"cycle_min_mom\": 0.8, "
              "\"cycle_max_mom\": 0.95, \"decay_mom_rate\": 0.05, \"cycle_momentum\": true}";
static const double momentum[STEPS] = {0.8,  0.9125,  0.875,  0.8375,  0.8,   0.85,    0.9,
                                       0.95, 0.97375, 0.9975, 1.02125, 1.045, 1.06875, 1.0925};

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
    {"\"type\": \"WarmupCosineLR\", \"params\": {\"total_num_steps\": 10, \"warmup_num_steps\": 3, \"warmup_min_ratio\": 0.1, "
     "\"cos_min_ratio\": 0.01, \"warmup_type\": \"linear\"}",
     {0, 7e-05, 0.00028, 0.00049, 0.000665686, 0.000569539, 0.000430604, 0.000276396, 0.000137461, 4.13143e-05, 7e-06, 7e-06,
      7e-06, 7e-06}},
    {"\"type\": \"WarmupCosineLR\", \"params\": {\"total_num_steps\": 10, \"warmup_num_steps\": 3, \"warmup_min_ratio\": 0.0, "
     "\"cos_min_ratio\": 0.0001, \"warmup_type\": \"log\"}",
     {0, 0, 0.000441651, 0.0007, 0.000665343, 0.000568235, 0.00042791, 0.00027216, 0.000131835, 3.47274e-05, 7e-08, 7e-08, 7e-08,
      7e-08}},
    {momentum_cycle,
     {0.0001, 0.000325, 0.00055, 0.000775, 0.001, 0.0007, 0.0004, 0.0001, 9.52381e-05, 9.09091e-05, 8.69565e-05, 8.33333e-05,
      8e-05, 7.69231e-05}},
    {ONE_CYCLE
     "\"cycle_first_stair_count\": 2, \"cycle_second_stair_count\": 2, \"decay_lr_rate\": 0.0, \"cycle_momentum\": false}",
     {0.0001, 0.0001, 0.00055, 0.00055, 0.001, 0.00055, 0.00055, 0.0001, 0.0001, 0.0001, 0.0001, 0.0001, 0.0001, 0.0001}},
    {"\"type\": \"LRRangeTest\", \"params\": {\"lr_range_test_min_lr\": 0.0001, \"lr_range_test_step_size\": 3, "
     "\"lr_range_test_step_rate\": 2.0, \"lr_range_test_staircase\": false}",
     {0.0001, 0.000166667, 0.000233333, 0.0003, 0.000366667, 0.000433333, 0.0005, 0.000566667, 0.000633333, 0.0007, 0.000766667,
      0.000833333, 0.0009, 0.000966667}},
    {"\"type\": \"LRRangeTest\", \"params\": {\"lr_range_test_min_lr\": 0.0001, \"lr_range_test_step_size\": 3, "
     "\"lr_range_test_step_rate\": 2.0, \"lr_range_test_staircase\": true}",
     {0.0001, 0.0001, 0.0001, 0.0003, 0.0003, 0.0003, 0.0005, 0.0005, 0.0005, 0.0007, 0.0007, 0.0007, 0.0009, 0.0009}},
};

/* Half a unit of the sixth significant digit. */
static double half_unit(double value)
{
    return value > 0 ? 0.5 * pow(10, floor(log10(value)) - 5) : 0;
}

static void assert_near(double got, double want, const char *what, uint64_t step)
{
    const double unit = half_unit(want) * 1.0001, relative = TOLERANCE * want;

    if (!(fabs(got - want) <= (unit > relative ? unit : relative)))
        fail_msg("%s step %u: %.9g, not %.9g", what, (unsigned)step, got, want);
}

static struct st_config load(const char *scheduler)
{
    const struct st_config_opts opts = {.max_steps = MOMENTUM_STEPS};
    struct st_config_source *source;
    struct st_config config;
    char text[1024];

    snprintf(text, sizeof(text), "{\"optimizer\": {\"params\": {\"lr\": 7e-4}}, \"scheduler\": {%s}}", scheduler);
    if (st_config_load_text(&config, &source, text, strlen(text), "t", &opts) != STRATA_OK)
        fail_msg("%s: %s", scheduler, strata_last_error());
    st_config_source_free(source);
    return config;
}

TEST(rates_are_deepspeeds)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct st_config c = load(rows[i].scheduler);

        for (uint64_t step = 1; step <= STEPS; step++)
            assert_near(st_lr_at(&c.schedule, &c.optimizer, step), rows[i].lr[step - 1], rows[i].scheduler, step);
    }
}

TEST(momentum_is_deepspeeds)
{
    const struct st_config c = load(momentum_cycle);
    double beta1, beta2;

    for (uint64_t step = 1; step <= STEPS; step++) {
        st_betas_at(&c.schedule, &c.optimizer, step, &beta1, &beta2);
        assert_near(beta1, momentum[step - 1], "beta1", step);
        assert_true(beta2 == 0.99);
    }
}

TEST(betas_stay_with_every_other_schedule)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_config c = load(rows[i].scheduler);

        if (c.schedule.cycle_momentum)
            continue;
        c.optimizer.beta1 = 0.7;
        c.optimizer.beta2 = 0.8;
        for (uint64_t step = 0; step <= STEPS; step++) {
            double beta1, beta2;

            st_betas_at(&c.schedule, &c.optimizer, step, &beta1, &beta2);
            assert_true(beta1 == 0.7 && beta2 == 0.8);
        }
    }
}

/* Seven stairs up in 7 steps and two down in 5: exact positions, where rounded fractions would fall off a stair. */
TEST(stairs_are_exact)
{
    const struct st_config c =
        load("\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 0, \"cycle_max_lr\": 6, "
             "\"cycle_first_step_size\": 7, \"cycle_second_step_size\": 5, \"cycle_first_stair_count\": 7, "
             "\"cycle_second_stair_count\": 2}");

    for (uint64_t step = 1; step <= 8; step++)
        assert_true(fabs(st_lr_at(&c.schedule, &c.optimizer, step) - 6 * (double)(step - 1) / 7) < 1e-12);
    for (uint64_t step = 9; step <= 13; step++)
        assert_true(st_lr_at(&c.schedule, &c.optimizer, step) == (step <= 10 ? 3 : 0));
    assert_true(st_lr_at(&c.schedule, &c.optimizer, 14) == 0);
}

TEST(constant_without_a_scheduler)
{
    const struct st_config c = load("");

    for (uint64_t step = 0; step <= STEPS; step++)
        assert_true(st_lr_at(&c.schedule, &c.optimizer, step) == 7e-4);
    assert_true(st_lr_at(&c.schedule, &c.optimizer, UINT64_MAX) == 7e-4);
}

TEST(warmup_without_a_maximum_ends_at_the_optimizers_rate)
{
    const struct st_config c = load("\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 4, \"warmup_type\": \"linear\"}");

    assert_true(st_lr_at(&c.schedule, &c.optimizer, 2) == 0);
    assert_true(fabs(st_lr_at(&c.schedule, &c.optimizer, 4) - 3.5e-4) < 1e-18);
    assert_true(st_lr_at(&c.schedule, &c.optimizer, 6) == 7e-4);
    assert_true(st_lr_at(&c.schedule, &c.optimizer, UINT64_MAX) == 7e-4);
}

/* Fewer steps than the warm-up has, or none known: no division by zero, never above the maximum or below the minimum. */
TEST(short_runs_stay_in_range)
{
    static const char *const schedulers[] = {
        "\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 2, \"warmup_num_steps\": 5, \"warmup_min_lr\": 1e-5}",
        "\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 3, \"warmup_num_steps\": 3, \"warmup_min_lr\": 1e-5}",
        "\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": \"auto\", \"warmup_min_lr\": 1e-5, "
        "\"warmup_num_steps\": \"auto\"}",
    };

    for (size_t i = 0; i < sizeof(schedulers) / sizeof(schedulers[0]); i++) {
        const struct st_config c = load(schedulers[i]);

        for (uint64_t step = 1; step < 20; step++)
            assert_true(st_lr_at(&c.schedule, &c.optimizer, step) >= 1e-5 && st_lr_at(&c.schedule, &c.optimizer, step) <= 1e-3);
        assert_true(st_lr_at(&c.schedule, &c.optimizer, 1000) == 1e-5);
    }
}

/* --- transformers' schedulers: tools/make_golden_lr.py --- */

static void check_shape(const st_json *want, double lr)
{
    const char *type = st_json_string(st_json_get(want, "type"));
    static const char *const ends[] = {"min_lr", "min_lr_rate"};
    char text[384], end[64] = "";
    struct st_config_source *source;
    struct st_config config;
    uint64_t steps, warmup, step = 1;
    struct st_config_opts opts = {0};

    assert_true(st_json_u64(st_json_get(want, "steps"), &steps) && st_json_u64(st_json_get(want, "warmup_steps"), &warmup));
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        if (st_json_get(want, ends[i]) != NULL)
            snprintf(end, sizeof(end), ", \"%s\": %.17g", ends[i], st_json_number(st_json_get(want, ends[i])));
    snprintf(text, sizeof(text),
             "{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": %.17g}}, \"strata\": {\"lr_scheduler\": {\"type\": "
             "\"%s\", \"warmup_steps\": %d, \"warmup_ratio\": %g%s}}}",
             lr, type, (int)warmup, st_json_number(st_json_get(want, "warmup_ratio")), end);
    opts.max_steps = steps;
    assert_int_equal(st_config_load_text(&config, &source, text, strlen(text), "t", &opts), STRATA_OK);
    for (const st_json *n = st_json_first(st_json_get(want, "rates")); n != NULL; n = st_json_next(n), step++) {
        const double got = st_lr_at(&config.schedule, &config.optimizer, step), rate = st_json_number(n);

        if (fabs(got - rate) > 1e-12 * lr)
            fail_msg("%s, %d of %d steps, warm-up %d: %.17g, transformers %.17g", type, (int)step, (int)steps, (int)warmup, got,
                     rate);
    }
    assert_int_equal(step, steps + 1);
    assert_true(st_lr_at(&config.schedule, &config.optimizer, 0) == st_lr_at(&config.schedule, &config.optimizer, 1));
    st_config_source_free(source);
}

TEST(shapes_are_transformers)
{
    const st_json *cases;
    st_json *root;
    int count = 0;

    assert_int_equal(st_json_parse_file(&root, "tests/golden/lr_schedules.json", 1 << 20), STRATA_OK);
    cases = st_json_get(root, "cases");
    for (const st_json *n = st_json_first(cases); n != NULL; n = st_json_next(n), count++)
        check_shape(n, st_json_number(st_json_get(root, "lr")));
    assert_int_equal(count, 16);
    st_json_free(root);
}

/* An end above the rate is a rise, and is said at each start. */
TEST(a_schedule_that_rises_is_told)
{
#define RISES "is above the optimizer's rate: the rate rises after the warm-up"
    static const struct {
        const char *end, *path, *said; /* NULL: nothing */
    } ends[] = {
        {"\"min_lr\": 0.5", "strata.lr_scheduler.min_lr", RISES},
        {"\"min_lr\": 0.25", "strata.lr_scheduler.min_lr", NULL},
        {"\"min_lr_rate\": 1.5", "strata.lr_scheduler.min_lr_rate", RISES},
        {"\"min_lr_rate\": 1", "strata.lr_scheduler.min_lr_rate", NULL},
    };
    const struct st_config_opts opts = {.max_steps = 10};

    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        struct st_config_source *source = NULL;
        const struct st_config_row *row = NULL;
        struct st_config c;
        char text[256];

        snprintf(text, sizeof(text),
                 "{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.25}}, \"strata\": {\"lr_scheduler\": {\"type\": "
                 "\"cosine_with_min_lr\", %s}}}",
                 ends[i].end);
        assert_int_equal(st_config_load_text(&c, &source, text, strlen(text), "t", &opts), STRATA_OK);
        for (uint32_t k = 0; k < st_config_row_count(source); k++)
            if (strcmp(st_config_row_at(source, k)->path, ends[i].path) == 0)
                row = st_config_row_at(source, k);
        assert_non_null(row);
        assert_int_equal(row->announced, ends[i].said != NULL);
        if (ends[i].said != NULL)
            assert_non_null(strstr(row->reason, ends[i].said));
        st_config_source_free(source);
    }
#undef RISES
}

TEST(the_end_of_a_schedule_is_said_once)
{
    static const struct {
        const char *members, *said; /* NULL: it loads */
    } ends[] = {
        {"\"type\": \"cosine_with_min_lr\"", "cosine_with_min_lr needs strata.lr_scheduler.min_lr or min_lr_rate"},
        {"\"type\": \"cosine_with_min_lr\", \"min_lr\": 1e-6, \"min_lr_rate\": 0.1", "keep one of them"},
        {"\"type\": \"cosine_with_min_lr\", \"min_lr\": 0, \"min_lr_rate\": 0.1", NULL},
        {"\"type\": \"cosine\", \"min_lr\": 1e-6", NULL},
    };
    const struct st_config_opts opts = {.max_steps = 10};

    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        struct st_config_source *source = NULL;
        struct st_config c;
        char text[256];

        snprintf(text, sizeof(text), "{\"strata\": {\"lr_scheduler\": {%s}}}", ends[i].members);
        assert_int_equal(st_config_load_text(&c, &source, text, strlen(text), "t", &opts),
                         ends[i].said == NULL ? STRATA_OK : STRATA_E_CONFIG);
        if (ends[i].said != NULL)
            assert_non_null(strstr(st_config_problem_at(source, 0), ends[i].said));
        st_config_source_free(source);
    }
    {
        const struct st_optimizer o = {.lr = 1};
        const struct st_lr_schedule s = {.shape = ST_LR_SHAPE_COSINE_WITH_MIN_LR, .shape_steps = 8, .shape_min_lr = 0.25};

        assert_true(st_lr_at(&s, &o, 100) == 0.25 && st_lr_at(&s, &(struct st_optimizer){.lr = 0}, 3) == 0);
    }
}

/* A schedule that is shorter than the run. */
TEST(shapes_have_ended_behind_their_end)
{
    static const enum st_lr_shape shapes[] = {ST_LR_SHAPE_LINEAR, ST_LR_SHAPE_COSINE};
    const struct st_optimizer o = {.lr = 1};

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const struct st_lr_schedule s = {.shape = shapes[i], .shape_warmup = 2, .shape_steps = 8};

        assert_true(st_lr_at(&s, &o, 8) > 0);
        for (uint64_t step = 9; step < 30; step++)
            assert_true(st_lr_at(&s, &o, step) == 0);
    }
}

/* tests/offload/test_optimizer.c - rules and coefficients of every optimizer, worked out by hand on round numbers. */
#include "offload/config/config.h"
#include "offload/optim/lr_schedule.h"
#include "offload/optim/optimizer.h"
#include "tests/common/test.h"

#include <string.h>

#define CYCLE                                                                                                                    \
    ", \"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 0.25, \"cycle_max_lr\": 1, "                       \
    "\"cycle_first_step_size\": 4, \"cycle_second_step_size\": 4, \"cycle_min_mom\": 0.5, \"cycle_max_mom\": 0.75}}"

static struct st_config load(const char *type, const char *params, const char *more)
{
    struct st_config_source *source;
    struct st_config config;
    char text[512];

    snprintf(text, sizeof(text), "{\"optimizer\": {\"type\": \"%s\", \"params\": {%s}}%s}", type, params, more);
    if (st_config_load_text(&config, &source, text, strlen(text), "t", &(struct st_config_opts){0}) != STRATA_OK)
        fail_msg("%s: %s", text, strata_last_error());
    st_config_source_free(source);
    return config;
}

TEST(every_type_has_its_rule)
{
    static const struct {
        const char *type, *params;
        enum st_rule rule;
    } rows[] = {
        {"AdamW", "", ST_RULE_ADAM},      {"Adam", "\"adam_w_mode\": false", ST_RULE_ADAM},
        {"Adagrad", "", ST_RULE_ADAGRAD}, {"Lion", "", ST_RULE_LION},
        {"SGD", "", ST_RULE_SGD},         {"Adam", "", ST_RULE_ADAM},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct st_config c = load(rows[i].type, rows[i].params, "");

        assert_int_equal(st_rule_of(c.optimizer.type), rows[i].rule);
    }
    assert_int_equal(st_rule_of((struct st_config){0}.optimizer.type), ST_RULE_ADAM);
}

TEST(every_name_has_its_format)
{
    static const char *const names[] = {"fp32", "bf16", "8bit"};

    assert_int_equal((struct st_config){0}.moments, ST_MOMENTS_F32);
    for (int f = 0; f < ST_MOMENTS_COUNT; f++) {
        char more[64];

        snprintf(more, sizeof(more), ", \"strata\": {\"moments\": \"%s\"}", names[f]);
        const struct st_config c = load("AdamW", "", more);

        assert_int_equal(c.moments, f);
    }
}

/* A function of the step alone: the same in every run that comes to it.  The first is spelled out, for runs of another version.
 */
TEST(rounding_follows_from_the_step)
{
    const struct st_config adam = load("AdamW", "", ""), sgd = load("SGD", "\"momentum\": 0.5", "");
    uint64_t before = 0;

    for (uint64_t step = 1; step < 100; step++) {
        const struct st_step_numbers n = {.step = step, .lr = 1, .divisor = 1};
        const struct st_step_numbers other = {.step = step, .lr = 0.5, .beta1 = 0.5, .beta1_power = 0.25, .divisor = 3};
        const uint64_t key = st_update_coef_of(&adam.optimizer, &n, true).rounding_key;

        assert_int_equal(st_update_coef_of(&adam.optimizer, &n, false).rounding_key, key);
        assert_int_equal(st_update_coef_of(&sgd.optimizer, &other, true).rounding_key, key);
        assert_true(key != before && (uint32_t)key != (uint32_t)before && key >> 32 != before >> 32);
        if (step == 1)
            assert_int_equal(key, UINT64_C(0xed01596a8ca99e92));
        before = key;
    }
}

struct coef_row {
    const char *type, *params;
    struct st_step_numbers n;
    struct st_update_coef want; /* of a group with decay */
};

static void assert_coef(const struct st_update_coef *got, const struct st_update_coef *want, const char *type, size_t row)
{
    if (got->rule != want->rule || got->nesterov != want->nesterov || got->grad_scale != want->grad_scale ||
        got->beta1 != want->beta1 || got->one_minus_beta1 != want->one_minus_beta1 || got->beta2 != want->beta2 ||
        got->one_minus_beta2 != want->one_minus_beta2 || got->eps != want->eps || got->step_size != want->step_size ||
        got->vhat_scale != want->vhat_scale || got->decay != want->decay || got->l2 != want->l2)
        fail_msg("row %zu, %s: scale %g betas %g %g %g %g eps %g step %.9g vhat %.9g decay %g l2 %g nesterov %d", row, type,
                 (double)got->grad_scale, (double)got->beta1, (double)got->one_minus_beta1, (double)got->beta2,
                 (double)got->one_minus_beta2, (double)got->eps, (double)got->step_size, (double)got->vhat_scale,
                 (double)got->decay, (double)got->l2, got->nesterov);
}

/* lr 1/2, decay 1/4, gradients divided by 4. */
TEST(coefficients)
{
#define COMMON  .grad_scale = 0.25f, .step_size = 0.5f
#define BETAS   .beta1 = 0.75f, .one_minus_beta1 = 0.25f, .beta2 = 0.5f, .one_minus_beta2 = 0.5f
#define NUMBERS .lr = 0.5, .divisor = 4
#define POWERS  .beta1 = 0.75, .beta2 = 0.5, .beta1_power = 0.5625, .beta2_power = 0.25
#define DECAY   "\"weight_decay\": 0.25"
    static const struct coef_row rows[] = {
        /* 0.5 / (1 - 0.5625) = 8/7 and 1 / sqrt(1 - 0.25) = 2 / sqrt(3) */
        {"AdamW",
         "\"eps\": 0.125, " DECAY,
         {.step = 2, NUMBERS, POWERS},
         {BETAS, .grad_scale = 0.25f, .eps = 0.125f, .step_size = 1.14285714f, .vhat_scale = 1.15470054f, .decay = 0.875f}},
        {"Adam",
         "\"adam_w_mode\": false, \"eps\": 0.125, " DECAY,
         {.step = 2, NUMBERS, POWERS},
         {BETAS, .grad_scale = 0.25f, .eps = 0.125f, .step_size = 1.14285714f, .vhat_scale = 1.15470054f, .decay = 1,
          .l2 = 0.25f}},
        {"AdamW",
         "\"bias_correction\": false, \"eps\": 0.125",
         {.step = 2, NUMBERS, POWERS},
         {BETAS, COMMON, .eps = 0.125f, .vhat_scale = 1, .decay = 1}},
        {"Adagrad", DECAY, {.step = 1, NUMBERS}, {COMMON, .rule = ST_RULE_ADAGRAD, .eps = 1e-10f, .decay = 1, .l2 = 0.25f}},
        {"Adagrad", "\"eps\": 0.5", {.step = 1000, NUMBERS}, {COMMON, .rule = ST_RULE_ADAGRAD, .eps = 0.5f, .decay = 1}},
        {"Lion", DECAY, {.step = 1, NUMBERS, POWERS}, {COMMON, BETAS, .rule = ST_RULE_LION, .decay = 0.875f}},
        {"Lion", "", {.step = 7, NUMBERS, POWERS}, {COMMON, BETAS, .rule = ST_RULE_LION, .decay = 1}},
        {"SGD", DECAY, {.step = 1, NUMBERS}, {COMMON, .rule = ST_RULE_SGD, .one_minus_beta1 = 1, .decay = 1, .l2 = 0.25f}},
        {"SGD",
         "\"momentum\": 0.75, \"dampening\": 0.25",
         {.step = 1, NUMBERS, .beta1 = 0.75},
         {COMMON, .rule = ST_RULE_SGD, .beta1 = 0.75f, .one_minus_beta1 = 1, .decay = 1}},
        {"SGD",
         "\"momentum\": 0.75, \"dampening\": 0.25",
         {.step = 2, NUMBERS, .beta1 = 0.75},
         {COMMON, .rule = ST_RULE_SGD, .beta1 = 0.75f, .one_minus_beta1 = 0.75f, .decay = 1}},
        {"SGD",
         "\"dampening\": 0.25", /* no momentum: the gradient as it is */
         {.step = 2, NUMBERS},
         {COMMON, .rule = ST_RULE_SGD, .one_minus_beta1 = 1, .decay = 1}},
        {"SGD",
         "\"momentum\": 0.75, \"nesterov\": true, " DECAY,
         {.step = 3, NUMBERS, .beta1 = 0.75},
         {COMMON, .rule = ST_RULE_SGD, .nesterov = true, .beta1 = 0.75f, .one_minus_beta1 = 1, .decay = 1, .l2 = 0.25f}},
    };
#undef COMMON
#undef BETAS
#undef NUMBERS
#undef POWERS
#undef DECAY

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct st_config c = load(rows[i].type, rows[i].params, "");
        struct st_update_coef want = rows[i].want;
        struct st_update_coef got = st_update_coef_of(&c.optimizer, &rows[i].n, true);

        assert_coef(&got, &want, rows[i].type, i);
        got = st_update_coef_of(&c.optimizer, &rows[i].n, false);
        want.decay = 1;
        want.l2 = 0;
        assert_coef(&got, &want, rows[i].type, i);
    }
}

/* 1 - beta is taken from the double beta, not from its fp32 neighbour. */
TEST(reductions_in_double)
{
    const struct st_config c = load("Lion", "\"weight_decay\": 0.1", "");
    const struct st_step_numbers n = {.step = 1, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .divisor = 3};
    const struct st_update_coef coef = st_update_coef_of(&c.optimizer, &n, true);

    assert_true(coef.one_minus_beta2 == (float)(1 - 0.999) && coef.one_minus_beta2 != 1 - 0.999f);
    assert_true(coef.decay == (float)(1 - 1e-3 * 0.1) && coef.grad_scale == (float)(1.0 / 3));
}

/* The momentum runs from 1/2 at the first step, by sixteenths, to 3/4 at the cycle's ends. */
TEST(one_cycle_moves_the_momentum)
{
    static const double momentum[] = {0.5, 0.6875, 0.625, 0.5625, 0.5, 0.5625, 0.625, 0.6875, 0.75};
    const struct st_config sgd = load("SGD", "\"momentum\": 0.25", CYCLE), lion = load("Lion", "", CYCLE);
    const struct st_config adagrad = load("Adagrad", "", CYCLE);

    for (uint64_t step = 1; step <= sizeof(momentum) / sizeof(momentum[0]); step++) {
        struct st_step_numbers n = {.step = step, .lr = 1, .divisor = 1};

        st_betas_at(&sgd.schedule, &sgd.optimizer, step, &n.beta1, &n.beta2);
        assert_true(n.beta1 == momentum[step - 1]);
        assert_true(st_update_coef_of(&sgd.optimizer, &n, true).beta1 == (float)momentum[step - 1]);
        st_betas_at(&lion.schedule, &lion.optimizer, step, &n.beta1, &n.beta2);
        assert_true(n.beta1 == momentum[step - 1] && n.beta2 == 0.99);
        st_betas_at(&adagrad.schedule, &adagrad.optimizer, step, &n.beta1, &n.beta2);
        assert_true(n.beta1 == 0 && n.beta2 == 0);
    }
}

TEST(without_a_cycle_the_momentum_stays)
{
    const struct st_config sgd = load("SGD", "\"momentum\": 0.25", "");
    double beta1, beta2;

    st_betas_at(&sgd.schedule, &sgd.optimizer, 5, &beta1, &beta2);
    assert_true(beta1 == 0.25 && beta2 == 0);
}

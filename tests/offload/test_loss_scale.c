/* tests/offload/test_loss_scale.c - scale sequences of DeepSpeed's dynamic scaler, worked out step by step from its rules. */
#include "offload/config/config.h"
#include "offload/optim/loss_scale.h"
#include "tests/common/test.h"

#include <string.h>

#define STEPS_MAX 16

struct sequence {
    uint32_t power, window, hysteresis;
    bool consecutive;
    double min_scale;
    const char *steps;       /* g: gradients finite, b: overflow */
    double scale[STEPS_MAX]; /* after each step; 0: the step is an error */
};

/* clang-format off */
static const struct sequence sequences[] = {
    /* all good: doubles after the third, then after every second step */
    {8, 2, 1, false, 1, "gggggggggg", {256, 256, 512, 512, 1024, 1024, 2048, 2048, 4096, 4096}},
    {4, 1, 1, false, 1, "gggbgg", {16, 32, 64, 32, 32, 64}},
    /* all bad: halves at once, or after the hysteresis is used up; the minimum ends it */
    {8, 2, 1, false, 1, "bbbbbbbbb", {128, 64, 32, 16, 8, 4, 2, 1, 0}},
    {8, 2, 2, false, 1, "bbbbb", {256, 128, 64, 32, 16}},
    {8, 2, 3, false, 1, "bbbbbb", {256, 256, 128, 64, 32, 16}},
    /* mixed */
    {8, 2, 1, false, 1, "gggbggbbggggb", {256, 256, 512, 256, 256, 256, 128, 64, 64, 64, 128, 128, 64}},
    {8, 2, 2, false, 1, "gggbggbbggggbbgb", {256, 256, 512, 512, 512, 512, 256, 128, 128, 128, 256, 256, 256, 128, 128, 64}},
    {8, 2, 2, false, 1, "bgbgbbgbbb", {256, 256, 128, 128, 64, 32, 32, 16, 8, 4}},
    {8, 2, 2, true, 1, "bgbgbbgbbb", {256, 256, 256, 256, 256, 128, 128, 128, 64, 32}},
    {8, 2, 3, false, 1, "bbggbgggbbbgb", {256, 256, 256, 256, 128, 128, 128, 256, 256, 256, 128, 128, 64}},
    {8, 2, 3, true, 1, "bbggbgggbbbgb", {256, 256, 256, 256, 256, 256, 256, 512, 512, 512, 256, 256, 256}},
    /* no hysteresis: DeepSpeed's counter is never 1, so nothing halves the scale */
    {3, 2, 0, false, 1, "bbbggggb", {8, 8, 8, 8, 8, 16, 16, 16}},
    {3, 2, 0, true, 1, "bgbbgggb", {8, 8, 8, 8, 8, 8, 16, 16}},
    /* the minimum is met exactly, though it is no power of two */
    {4, 2, 1, false, 3, "bbbggggbbb", {8, 4, 3, 3, 3, 6, 6, 3, 0}},
    {1, 2, 1, false, 0.25, "bbbb", {1, 0.5, 0.25, 0}},
};
/* clang-format on */

TEST(scales_are_deepspeeds)
{
    for (size_t i = 0; i < sizeof(sequences) / sizeof(sequences[0]); i++) {
        const struct sequence *q = &sequences[i];
        const struct st_loss_scaling opts = {.initial_power = q->power,
                                             .window = q->window,
                                             .hysteresis = q->hysteresis,
                                             .consecutive_hysteresis = q->consecutive,
                                             .min_scale = q->min_scale};
        struct st_loss_scaler s;

        st_loss_scaler_init(&s, &opts);
        assert_true(s.scale == (double)(1u << q->power));
        for (size_t k = 0; k < strlen(q->steps); k++) {
            const double want = q->scale[k];
            const strata_status st = st_loss_scaler_step(&s, q->steps[k] == 'b');

            if (st != (want > 0 ? STRATA_OK : STRATA_E_NUMERICS) || s.scale != (want > 0 ? want : q->min_scale))
                fail_msg("sequence %zu step %zu: scale %g, not %g", i, k, s.scale, want);
            if (want == 0)
                break;
        }
    }
}

TEST(the_end_says_what_helps)
{
    const struct st_loss_scaling opts = {.initial_power = 0, .window = 2, .hysteresis = 1, .min_scale = 1};
    struct st_loss_scaler s;

    st_loss_scaler_init(&s, &opts);
    assert_int_equal(st_loss_scaler_step(&s, false), STRATA_OK);
    assert_int_equal(st_loss_scaler_step(&s, true), STRATA_E_NUMERICS);
    assert_non_null(strstr(strata_last_error(), "loss scale 1, fp16.min_loss_scale, after 2 steps"));
    assert_non_null(strstr(strata_last_error(), "bf16"));
    assert_int_equal(strata_status_exit_code(STRATA_E_NUMERICS), 5);
}

/* A fixed scale, or another precision: nothing moves it, and overflow is no error. */
TEST(other_scales_stay)
{
    static const struct st_loss_scaling fixed = {.scale = 128, .window = 1, .hysteresis = 1, .min_scale = 1};
    static const struct st_loss_scaling small = {.scale = 0.5, .window = 1, .hysteresis = 1, .min_scale = 1};
    static const struct {
        const struct st_loss_scaling *opts;
        double scale;
    } rows[] = {{&fixed, 128}, {&small, 0.5}, {NULL, 1}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_loss_scaler s;

        st_loss_scaler_init(&s, rows[i].opts);
        for (uint32_t k = 0; k < 20; k++) {
            assert_true(s.scale == rows[i].scale);
            assert_int_equal(st_loss_scaler_step(&s, k % 3 != 0), STRATA_OK);
        }
    }
}

/* A run that resumes has the scale of the one before, and settings of its own. */
TEST(a_resumed_scale_has_its_own_settings)
{
    static const struct {
        struct st_loss_scaling is; /* before: 2^4, window 2, hysteresis 3, of which one overflow has been used up, minimum 1 */
        const char *steps;
        double scale[STEPS_MAX];
    } rows[] = {
        {{.initial_power = 4, .window = 2, .hysteresis = 3, .min_scale = 1}, "gggbb", {32, 32, 64, 64, 64}},
        {{.initial_power = 4, .window = 2, .hysteresis = 3, .min_scale = 1}, "bbb", {16, 8, 4}},
        {{.initial_power = 9, .window = 2, .hysteresis = 1, .min_scale = 1}, "bb", {8, 4}},
        {{.initial_power = 9, .window = 2, .hysteresis = 5, .min_scale = 1}, "bbbb", {16, 16, 16, 8}},
        {{.initial_power = 9, .window = 1, .hysteresis = 3, .min_scale = 1}, "gg", {32, 64}},
        {{.initial_power = 9, .window = 1, .hysteresis = 1, .min_scale = 64}, "gbb", {128, 64, 0}},
        {{.scale = 8, .initial_power = 4, .window = 1, .hysteresis = 1, .min_scale = 1}, "gbb", {8, 8, 8}},
    };
    static const struct st_loss_scaling before = {.initial_power = 4, .window = 2, .hysteresis = 3, .min_scale = 1},
                                        fixed = {.scale = 2};
    struct st_loss_scaler was, s;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        st_loss_scaler_init(&was, &before);
        assert_int_equal(st_loss_scaler_step(&was, true), STRATA_OK);
        assert_int_equal(st_loss_scaler_step(&was, false), STRATA_OK);
        assert_int_equal(st_loss_scaler_step(&was, false), STRATA_OK);
        st_loss_scaler_init(&s, &rows[i].is);
        st_loss_scaler_resume(&s, &was);
        for (size_t k = 0; k < strlen(rows[i].steps); k++) {
            const double want = rows[i].scale[k];
            const strata_status st = st_loss_scaler_step(&s, rows[i].steps[k] == 'b');

            if (st != (want > 0 ? STRATA_OK : STRATA_E_NUMERICS) || (want > 0 && s.scale != want))
                fail_msg("row %zu step %zu: scale %g, not %g", i, k, s.scale, want);
        }
    }
    st_loss_scaler_init(&was, &fixed); /* it was fixed, and has no state */
    st_loss_scaler_init(&s, &before);
    st_loss_scaler_resume(&s, &was);
    assert_true(s.scale == 16 && s.hysteresis_left == 3 && s.iteration == 0 && s.last_overflow == -1);
}

/* What an fp16 section says arrives. */
TEST(a_config_sets_the_scaler)
{
    static const char text[] = "{\"fp16\": {\"enabled\": true, \"initial_scale_power\": 3, \"loss_scale_window\": 4, "
                               "\"hysteresis\": 5, \"consecutive_hysteresis\": true, \"min_loss_scale\": 2}}";
    const struct st_config_opts opts = {.max_steps = 0};
    struct st_config_source *source;
    struct st_config config;
    struct st_loss_scaler s;

    assert_int_equal(st_config_load_text(&config, &source, text, strlen(text), "t", &opts), STRATA_OK);
    st_config_source_free(source);
    st_loss_scaler_init(&s, &config.scaling);
    assert_true(s.scale == 8 && s.dynamic && s.consecutive_hysteresis && s.min_scale == 2);
    assert_int_equal(s.window, 4);
    assert_int_equal(s.hysteresis, 5);
    assert_int_equal(s.hysteresis_left, 5);
    assert_int_equal(s.iteration, 0);
    assert_int_equal(s.last_overflow, -1);
}

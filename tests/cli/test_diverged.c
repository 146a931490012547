/* tests/cli/test_diverged.c - a run that cannot learn ends with exit code 5 and writes no model: weights that are not finite,
 * used or not, and too many skipped steps in a row; fp16's scale still goes its normal way down. */
#include "core/json/json.h"
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"
#include "tests/common/whole_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH_BYTES 8u
#define BF16_NAN     0x7fc0u
#define BF16_INF     0xff80u

#define TRAIN "train --overwrite --machine {w}/machine.json --metrics {w}/metrics.jsonl --out {w}/out --model "
#define DATA  " --data {w}/good.bin --seq-len 32 "

/* {w}/poisoned is the model in `dir` with the upper 16 bits of the last element of one tensor replaced. */
static void poison_model(const struct workplace *w, const char *dir, const char *tensor, uint16_t value)
{
    char path[256], *config, *weights;
    size_t config_bytes, bytes;
    const st_json *offsets;
    st_json *header;
    uint64_t header_bytes, end;

    snprintf(path, sizeof(path), "%s/config.json", dir);
    config = read_file(path, &config_bytes);
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    weights = read_file(path, &bytes);
    memcpy(&header_bytes, weights, LENGTH_BYTES);
    assert_int_equal(st_json_parse(&header, weights + LENGTH_BYTES, header_bytes, "header"), STRATA_OK);
    offsets = st_json_get(st_json_get(header, tensor), "data_offsets");
    assert_non_null(offsets);
    end = LENGTH_BYTES + header_bytes + (uint64_t)st_json_number(st_json_next(st_json_first(offsets)));
    assert_true(end <= bytes);
    memcpy(weights + end - sizeof(value), &value, sizeof(value));
    workplace_write(w, "poisoned/config.json", config, config_bytes);
    workplace_write(w, "poisoned/model.safetensors", weights, bytes);
    st_json_free(header);
    free(config);
    free(weights);
}

static void poison(const struct workplace *w, const char *tensor, uint16_t value)
{
    char *dir = workplace_expand(w, "{w}/model");

    poison_model(w, dir, tensor, value);
    free(dir);
}

static int setup(void **state)
{
    if (workplace_setup(state) != 0)
        return -1;
    workplace_make_dir(*state, "poisoned");
    return 0;
}

/* Steps that stand in the metrics. */
static uint32_t steps_seen(const struct workplace *w)
{
    size_t bytes;
    char *text = workplace_read(w, "metrics.jsonl", &bytes);
    uint32_t count = 0;

    for (const char *at = text; (at = strstr(at, "\n{\"step\":")) != NULL; at++)
        count++;
    free(text);
    return count;
}

static void run(const struct workplace *w, struct program *p, const char *options)
{
    char line[512];

    snprintf(line, sizeof(line), "%s%s", TRAIN, options);
    workplace_run(w, p, line);
}

/* Exit code 5, the sentence, the steps before it, and no model. */
static void ends(const struct workplace *w, const char *options, const char *sentence, uint32_t steps)
{
    struct program p;

    run(w, &p, options);
    if (p.code != 5 || strstr(p.err, sentence) == NULL || steps_seen(w) != steps)
        fail_msg("%s: exit code %d after %u steps, not 5 after %u with \"%s\"\n%s", options, p.code, steps_seen(w), steps,
                 sentence, p.err);
    assert_false(workplace_exists(w, "out"));
    program_free(&p);
}

TEST(weights_that_are_not_finite)
{
    const struct workplace *w = *state;

    poison(w, "transformer.ln_f.weight", BF16_NAN);
    ends(w, "{w}/poisoned" DATA "--max-steps 3", "no update was made in 3 steps", 3);
    ends(w, "{w}/poisoned" DATA "--max-steps 3 --set bf16.enabled=false", "no update was made in 3 steps", 3);
    ends(w, "{w}/poisoned" DATA "--max-steps 20", "8 steps in a row", 7);
    ends(w, "{w}/poisoned" DATA "--max-steps 20 --set strata.max_skipped=3", "3 steps in a row", 2);
    ends(w, "{w}/poisoned" DATA "--max-steps 9 --set strata.max_skipped=0", "no update was made in 9 steps", 9);
    ends(w, "{w}/poisoned" DATA "--max-steps 3 --set gradient_clipping=0 --set bf16.check_grad_overflow=false",
         "bf16.check_grad_overflow", 0);
    poison(w, "transformer.h.0.attn.c_attn.weight", BF16_INF);
    ends(w, "{w}/poisoned" DATA "--max-steps 3", "no update was made in 3 steps", 3);
}

/* Good weights, and steps that are far too long: without a limit on such steps the last one's loss says so, too. */
TEST(a_rate_that_is_far_too_high)
{
    static const char *const limits[] = {"0", "40"};
    char options[256];

    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        snprintf(options, sizeof(options),
                 "{w}/model" DATA "--max-steps 8 --set optimizer.type=SGD --lr 1000 --set gradient_clipping=0 --set "
                 "strata.max_skipped=%s",
                 limits[i]);
        ends(*state, options, "the loss of the last step is not finite", 8);
    }
}

/* Good weights, and a loss scale that has no time to come down: the sentence blames the scale. */
TEST(a_loss_scale_that_is_still_too_high)
{
    ends(*state, "{w}/model" DATA "--max-steps 2 --set fp16.enabled=true --set fp16.initial_scale_power=40",
         "fp16's loss scale fell only from 2^40", 2);
}

/* A position that no sequence reaches: the loss is good, the model is not. */
TEST(weights_that_no_step_uses)
{
    const struct workplace *w = *state;

    poison(w, "transformer.wpe.weight", BF16_NAN);
    ends(w, "{w}/poisoned" DATA "--max-steps 2", "transformer.wpe.weight holds 1 value that is not finite", 2);
}

/* A token that the one step does not meet, and the evaluation does. */
TEST(an_evaluation_that_is_not_finite)
{
    const struct workplace *w = *state;

    poison_model(w, "tests/golden/llama_tiny_untied", "model.embed_tokens.weight", BF16_NAN);
    ends(w,
         "{w}/poisoned --data tests/golden/llama_tiny_untied/tokens.bin --seq-len 8 --max-steps 1 --eval-data "
         "tests/golden/llama_tiny_untied/tokens.bin",
         "the held-out loss after step 1 is not finite", 1);
}

/* There is no result of strata eval: neither a figure nor a line that a program would read. */
TEST(eval_prints_no_loss_that_is_not_finite)
{
    static const char *const options[] = {"", " --json", " --set bf16.enabled=false"};
    const struct workplace *w = *state;

    poison(w, "transformer.ln_f.weight", BF16_NAN);
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        char line[256];
        struct program p;

        snprintf(line, sizeof(line), "eval --model {w}/poisoned" DATA "%s", options[i]);
        workplace_run(w, &p, line);
        assert_int_equal(p.code, 5);
        assert_string_equal(p.out, "");
        assert_non_null(strstr(p.err, "the loss is not finite: the weights of "));
        assert_non_null(strstr(p.err, "/poisoned are damaged or have diverged"));
        program_free(&p);
    }
}

/* From 2^40 the scale halves about twenty times before a step counts: more than eight in a row, and no reason to end. */
TEST(the_scale_finds_its_way_down)
{
    static const char options[] = "{w}/model" DATA "--max-steps 40 --set fp16.enabled=true --set fp16.initial_scale_power=40";
    const struct workplace *w = *state;
    struct program p;
    char line[256];

    snprintf(line, sizeof(line), "%s --set strata.max_skipped=8", options);
    ends(w, line, "8 steps in a row", 7);
    run(w, &p, options);
    if (p.code != 0)
        fail_msg("%s", p.err);
    assert_true(workplace_exists(w, "out/model.safetensors"));
    assert_int_equal(steps_seen(w), 40);
    program_free(&p);
}

static uint32_t count_text(const char *text, const char *wanted)
{
    uint32_t count = 0;

    for (const char *at = text; (at = strstr(at, wanted)) != NULL; at++)
        count++;
    return count;
}

/* A line of the metrics.  *last: loss scale of the line before; *applied: a step was not skipped before. */
static uint32_t check_line(const st_json *line, double *last, bool *applied, uint32_t *late)
{
    const bool skipped = st_json_bool(st_json_get(line, "skipped"));
    const double lr = st_json_number(st_json_get(line, "lr")), scale = st_json_number(st_json_get(line, "loss_scale"));

    assert_true(skipped ? lr == 0 : lr > 0);
    assert_true(scale == *last || scale == 2 * *last || scale == *last / 2 || *last == 0);
    *late += skipped && *applied;
    *applied = *applied || !skipped;
    *last = scale;
    return skipped;
}

/* Its line has no learning rate and a word for it, whether steps were applied before or not; the summary counts it. */
TEST(a_skipped_step_says_so)
{
    const struct workplace *w = *state;
    uint32_t skipped = 0, late = 0, told = UINT32_MAX;
    bool applied = false;
    struct program p;
    double last = 0;
    size_t bytes;
    char *text;

    run(w, &p,
        "{w}/model" DATA "--max-steps 24 --set fp16.enabled=true --set fp16.initial_scale_power=24 "
        "--set fp16.loss_scale_window=2");
    assert_int_equal(p.code, 0);
    text = workplace_read(w, "metrics.jsonl", &bytes);
    for (char *at = text, *end; (end = strchr(at, '\n')) != NULL; at = end + 1) {
        st_json *line;

        assert_int_equal(st_json_parse(&line, at, (size_t)(end - at), "metrics"), STRATA_OK);
        if (st_json_get(line, "step") != NULL)
            skipped += check_line(line, &last, &applied, &late);
        if (st_json_get(line, "summary") != NULL)
            told = (uint32_t)st_json_number(st_json_get(st_json_get(line, "summary"), "skipped_steps"));
        st_json_free(line);
    }
    assert_true(applied && late > 0 && late < skipped);
    assert_int_equal(told, skipped);
    assert_int_equal(count_text(p.out, "SKIPPED"), skipped);
    assert_int_equal(count_text(p.out, "a gradient is not finite"), skipped);
    free(text);
    program_free(&p);
}

TEST_GROUP(setup, workplace_teardown);

/* tests/api/test_training.c - a whole run by strata/train.h: the weights of the calls that it makes, lines of JSON, evaluations,
 * checkpoints and what goes on from them, and what is refused. */
#include "core/base/fault.h"
#include "core/json/json.h"
#include "strata/train.h"
#include "tests/api/handles_fixture.h"
#include "tests/common/fault_walk.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define TOKENS 1201u
#define STEPS  6u

static char config_text[640];
static bool cut_evaluations;

static bool watch(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    (void)ctx;
    (void)done;
    (void)total;
    return !cut_evaluations || strstr(what, "evaluating") == NULL;
}

/* A run that saves, up to its engine. */
static struct run open_run(void)
{
    struct run r = {.text = config_text, .progress = watch};

    snprintf(config_text, sizeof(config_text),
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2, \"bf16\": {\"enabled\": true},"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}},"
             " \"strata\": {\"threads\": 2, \"save\": \"%s\", \"keep\": 9}}",
             scratch_path("save"));
    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(strata_plan_make(&r.plan, r.model, NULL));
    assert_ok(strata_engine_create(&r.engine, r.plan, NULL));
    return r;
}

static struct strata_training_opts options(const struct run *r, uint64_t steps)
{
    struct strata_training_opts opts = STRATA_TRAINING_OPTS_INIT;

    opts.data = r->data;
    opts.seed = 5;
    opts.steps = steps;
    return opts;
}

static void weights_of(const struct run *r, char digest[33])
{
    char state[33];

    assert_ok(strata_engine_digest(r->engine, digest, state));
}

static struct strata_training_info info_of(const struct strata_training *t)
{
    struct strata_training_info info = STRATA_TRAINING_INFO_INIT;

    assert_ok(strata_training_get_info(t, &info));
    return info;
}

static double member(const char *json, const char *key)
{
    st_json *line;
    double value = (double)NAN;

    assert_ok(st_json_parse(&line, json, strlen(json), "a line"));
    if (st_json_get(line, key) != NULL)
        value = st_json_number(st_json_get(line, key));
    st_json_free(line);
    return value;
}

/* As a loop of the example does, and as one that calls the engine itself. */
static void train(struct strata_training *t, uint64_t steps)
{
    const struct strata_training_info begun = info_of(t);

    assert_ok(strata_training_evaluate(t));
    for (uint64_t step = begun.done + 1; step <= begun.done + steps && info_of(t).done < info_of(t).steps; step++) {
        struct strata_step result = STRATA_STEP_INIT;
        struct strata_metrics metrics = STRATA_METRICS_INIT;
        const char *line;

        assert_ok(strata_training_step(t, &result));
        assert_ok(strata_training_evaluate(t));
        assert_ok(strata_training_metrics(t, &metrics));
        assert_ok(strata_training_json(t, &line));
        assert_true(metrics.value[STRATA_METRIC_STEP] == (double)step && member(line, "step") == (double)step);
        assert_true(metrics.value[STRATA_METRIC_LOSS] == result.loss && member(line, "loss") == result.loss);
        assert_true(isnan(metrics.value[STRATA_METRIC_EVAL_LOSS]) == isnan(member(line, "eval_loss")));
        assert_ok(strata_training_save(t, false, 0));
    }
    assert_ok(strata_training_finish(t, 0));
}

/* The first step of a model with experts, its settings in `strata`. */
static struct strata_step first_step(const char *settings, char line[4096])
{
    char text[256];
    struct run r = {.text = text, .preset = "tests/golden/experts/mixtral"};
    struct strata_training_opts opts;
    struct strata_step result = STRATA_STEP_INIT;
    struct strata_metrics metrics = STRATA_METRICS_INIT;
    struct strata_training *t;
    const char *json;

    snprintf(text, sizeof(text),
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 3, \"strata\": {\"threads\": 2%s}}", settings);
    assert_ok(run_open(&r, "tests/golden/experts/mixtral/tokens.bin"));
    assert_ok(run_start(&r));
    opts = options(&r, 1);
    assert_ok(strata_training_open(&t, r.engine, &opts));
    assert_ok(strata_training_step(t, &result));
    assert_ok(strata_training_metrics(t, &metrics));
    assert_ok(strata_training_json(t, &json));
    snprintf(line, 4096, "%s", json);
    assert_memory_equal(&metrics.value[STRATA_METRIC_AUX_LOSS], &result.aux_loss, sizeof(result.aux_loss));
    strata_training_close(t);
    run_close(&r);
    return result;
}

/* In the loss, once for each of three micro-batches, and by itself. */
TEST_SETUP(the_auxiliary_loss_is_told, scratch_create, scratch_remove)
{
    static const struct {
        const char *settings;
        double coef;
    } rows[] = {{", \"router_aux_loss_coef\": 0.25", 0.25},
                {", \"output_router_logits\": true", (double)0.001f},
                {", \"output_router_logits\": true, \"router_aux_loss_coef\": 0", 0}};
    char line[4096];
    const struct strata_step without = first_step("", line);

    assert_true(isnan(without.aux_loss) && without.loss == without.token_loss && strstr(line, "aux_loss") == NULL);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct strata_step with = first_step(rows[i].settings, line);

        assert_true(with.token_loss == without.loss);
        assert_true(isnan(with.aux_loss) == (rows[i].coef == 0));
        assert_true(isnan(member(line, "aux_loss")) ? rows[i].coef == 0 : member(line, "aux_loss") == with.aux_loss);
        assert_true(rows[i].coef == 0 ? with.loss == without.loss
                                      : fabs(with.loss - with.token_loss - 3 * rows[i].coef * with.aux_loss) <= 1e-12);
    }
}

/* What runs without experts is not said to have it. */
TEST_SETUP(only_models_with_experts_are_told_to_have_router_logits, scratch_create, scratch_remove)
{
    static const struct {
        const char *preset, *data, *says;
    } rows[] = {{"nano", NULL, "\"output_router_logits\":false"},
                {"tests/golden/experts/mixtral", "tests/golden/experts/mixtral/tokens.bin", "\"output_router_logits\":true"}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct run r = {.preset = rows[i].preset,
                        .text = "{\"train_micro_batch_size_per_gpu\": 1, \"strata\": {\"output_router_logits\": true}}"};
        const char *json;

        assert_ok(run_open(&r, rows[i].data != NULL ? rows[i].data : run_tokens("a.bin", TOKENS)));
        assert_ok(run_start(&r));
        assert_ok(strata_engine_json(r.engine, 1, &json));
        if (strstr(json, rows[i].says) == NULL)
            fail_msg("%s: %s", rows[i].preset, json);
        run_close(&r);
    }
}

static void count_saved(void *ctx, const struct strata_saved *saved)
{
    uint64_t *seen = ctx;

    seen[0]++;
    seen[1] = saved->steps;
}

TEST_SETUP(a_run_has_the_weights_of_its_calls, scratch_create, scratch_remove)
{
    struct run plain = {.text = config_text}, r = open_run();
    struct strata_training_opts opts = options(&r, STEPS);
    struct strata_training *t;
    uint64_t saved[2] = {0};
    char want[33], got[33];

    opts.save_every = 2;
    opts.saved = count_saved;
    opts.ctx = saved;
    assert_ok(strata_training_open(&t, r.engine, &opts));
    train(t, UINT64_MAX - STEPS);
    weights_of(&r, got);
    assert_int_equal(saved[0], 3);
    assert_int_equal(saved[1], STEPS);
    assert_int_equal(info_of(t).done, STEPS);
    assert_non_null(strstr(info_of(t).newest, "step-00000006"));
    assert_refused(strata_training_step(t, NULL), "has made its 6 steps");
    strata_training_close(t);
    run_close(&r);

    snprintf(config_text, sizeof(config_text),
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2, \"bf16\": {\"enabled\": true},"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}}, \"strata\": {\"threads\": 2}}");
    assert_ok(run_open(&plain, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&plain));
    opts = options(&plain, STEPS);
    assert_ok(strata_training_open(&t, plain.engine, &opts));
    assert_refused(strata_training_save(t, true, 0), "strata.save"); /* it names no directory */
    assert_ok(strata_training_save(t, false, 0));
    strata_training_close(t);
    assert_ok(run_train(&plain, 0, STEPS, NULL));
    weights_of(&plain, want);
    run_close(&plain);
    assert_string_equal(got, want);
}

/* Stopped after a step, as a program that was asked to end; and what goes on from there. */
TEST_SETUP(a_stopped_run_goes_on, scratch_create, scratch_remove)
{
    char whole[33], parts[33];
    uint64_t done = 0;

    for (int turn = 0; turn < 3; turn++) {
        struct run r = open_run();
        struct strata_training_opts opts = options(&r, STEPS);
        struct strata_checkpoint *from = NULL;
        struct strata_training *t;

        if (turn == 2) {
            assert_ok(strata_checkpoint_open(&from, scratch_path("save")));
            opts.from = from;
        }
        assert_ok(strata_training_open(&t, r.engine, &opts));
        strata_checkpoint_close(from);
        assert_int_equal(info_of(t).done, turn == 2 ? done : 0);
        train(t, turn == 1 ? 2 : STEPS);
        done = info_of(t).done;
        weights_of(&r, turn == 0 ? whole : parts);
        assert_int_equal(scratch_entries_with(scratch_path("save"), "step-"), turn < 2 ? 1 : 2);
        strata_training_close(t);
        run_close(&r);
        if (turn == 0) { /* another directory for the second run */
            scratch_remove(NULL);
            scratch_create(NULL);
        }
    }
    assert_int_equal(done, STEPS);
    assert_string_equal(whole, parts);
}

/* Losses of steps of rate 1e-3 on other data: one evaluation without a lower loss ends the run, wherever it is. */
TEST_SETUP(evaluations_end_a_run_early, scratch_create, scratch_remove)
{
    struct run r = open_run();
    struct strata_training_opts opts = options(&r, 400);
    const char *other = run_tokens("b.bin", 70);
    struct strata_checkpoint_info was = STRATA_CHECKPOINT_INFO_INIT;
    struct strata_checkpoint *saved;
    struct strata_training *t;
    struct strata_training_info info;
    struct strata_data *held;

    assert_ok(strata_data_open(&held, r.model, &other, 1));
    opts.eval_data = held;
    opts.eval_every = 1;
    opts.early_stop = 1;
    assert_ok(strata_training_open(&t, r.engine, &opts));
    train(t, 300);
    info = info_of(t);
    assert_int_equal(info.evals, info.done);
    assert_int_equal(info.evaluated_at, info.done);
    assert_true(info.ended_early ? info.steps == info.done && info.last_loss >= info.best_loss : info.done == 300);
    assert_ok(strata_checkpoint_open(&saved, scratch_path("save")));
    assert_ok(strata_checkpoint_get_info(saved, &was));
    assert_int_equal(strata_training_stopped(was.note, 1), info.ended_early);
    assert_false(strata_training_stopped("", 1) || strata_training_stopped(NULL, 1));
    strata_checkpoint_close(saved);
    strata_training_close(t);
    strata_data_close(held);
    run_close(&r);
}

/* The program ends during an evaluation; the run that goes on makes up for it, and its line says of which step. */
TEST_SETUP(an_evaluation_that_was_cut_is_made_up, scratch_create, scratch_remove)
{
    for (int turn = 0; turn < 2; turn++) {
        struct run r = open_run();
        struct strata_training_opts opts = options(&r, STEPS);
        struct strata_checkpoint *from = NULL;
        struct strata_training *t;
        const char *line;

        if (turn == 1) {
            assert_ok(strata_checkpoint_open(&from, scratch_path("save")));
            opts.from = from;
        }
        opts.eval_data = r.data;
        opts.eval_every = 2;
        assert_ok(strata_training_open(&t, r.engine, &opts));
        strata_checkpoint_close(from);
        cut_evaluations = turn == 0;
        if (turn == 0) {
            assert_refused(strata_training_json(t, &line), "neither a step nor an evaluation");
            train(t, 2);
            assert_true(info_of(t).eval_cut && info_of(t).evals == 0);
        } else {
            assert_ok(strata_training_evaluate(t));
            assert_int_equal(info_of(t).evaluated_at, 2);
            assert_ok(strata_training_json(t, &line));
            assert_true(member(line, "step") == 2 && member(line, "eval_loss") == info_of(t).eval.loss);
            train(t, STEPS);
            assert_int_equal(info_of(t).evals, 3);
        }
        cut_evaluations = false;
        strata_training_close(t);
        run_close(&r);
    }
}

TEST_SETUP(what_no_run_can_do_is_refused, scratch_create, scratch_remove)
{
    struct strata_training_info info = STRATA_TRAINING_INFO_INIT;
    struct strata_metrics metrics = STRATA_METRICS_INIT;
    struct run r = open_run();
    struct strata_training_opts opts = options(&r, STEPS), wrong = opts;
    enum strata_metric_kind kind;
    struct strata_training *t;
    const char *line, *object;

    assert_refused(strata_training_open(NULL, r.engine, &opts), "run");
    assert_refused(strata_training_open(&t, NULL, &opts), "engine");
    assert_refused(strata_training_open(&t, r.engine, NULL), "opts");
    wrong.data = NULL;
    assert_refused(strata_training_open(&t, r.engine, &wrong), "data");
    wrong = options(&r, 0);
    assert_refused(strata_training_open(&t, r.engine, &wrong), "training.steps");
    wrong = opts;
    wrong.order = STRATA_DATA_IN_ORDER;
    assert_refused(strata_training_open(&t, r.engine, &wrong), "training.order");
    wrong = opts;
    wrong.opts_size--;
    assert_refused(strata_training_open(&t, r.engine, &wrong), "strata_training_opts");
    assert_ok(strata_training_open(&t, r.engine, &opts));
    assert_refused(strata_training_metrics(t, &metrics), "no step");
    assert_refused(strata_training_json(t, NULL), "json");
    info.info_size = 1;
    assert_refused(strata_training_get_info(t, &info), "strata_training_info");
    assert_ok(strata_training_step(t, NULL));
    metrics.metrics_size = 1;
    assert_refused(strata_training_metrics(t, &metrics), "strata_metrics");
    st_fault_arm(&(struct st_fault_spec){.site = "api.training_json", .result = -ENOMEM});
    assert_int_equal(strata_training_json(t, &line), STRATA_E_NOMEM);
    assert_int_equal(st_fault_disarm(), 1);
    assert_ok(strata_training_json(t, &line));
    assert_null(strata_metric_name(STRATA_METRIC_COUNT, &object, &kind));
    assert_null(strata_metric_name(0, NULL, &kind));
    strata_training_close(t);
    strata_training_close(NULL);
    run_close(&r);
}

/* One failure at a time. */
TEST_SETUP(opening_fails_whole, scratch_create, scratch_remove)
{
    static const char *const sites[] = {"api.training", "api.training_batch"};

    for (size_t i = 0; i < sizeof(sites) / sizeof(sites[0]); i++) {
        struct fault_walk walk = {.site = sites[i], .result = -ENOMEM};

        while (fault_walk_next(&walk)) {
            struct run r = open_run();
            const struct strata_training_opts opts = options(&r, STEPS);
            struct strata_training *t = NULL;
            const strata_status st = strata_training_open(&t, r.engine, &opts);

            strata_training_close(t);
            run_close(&r);
            fault_walk_end(&walk, st);
            assert_true(st == STRATA_OK || st == STRATA_E_NOMEM);
        }
        assert_int_equal(walk.failed, 1);
    }
}

TEST_GROUP(NULL, NULL);

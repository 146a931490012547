/* tests/api/test_run.c - whole runs through the door: the same bits however handles are closed, interleaved, loaded again or
 * written. */
#include "tests/api/handles_fixture.h"
#include "tests/common/heap_use.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS 2017u /* the last step of an evaluation is not full */

struct digests {
    char weights[33], state[33];
};

static void assert_same(const struct digests *a, const struct digests *b)
{
    assert_string_equal(a->weights, b->weights);
    assert_string_equal(a->state, b->state);
}

static void digest(struct digests *out, struct run *r)
{
    assert_ok(strata_engine_digest(r->engine, out->weights, out->state));
    assert_int_equal(strlen(out->weights), 32);
}

/* RUN_STEPS steps, all handles closed early: what an engine needs stays. */
static void reference(struct digests *out, const char *dir)
{
    struct run r = {.dir = dir};
    struct strata_step last = STRATA_STEP_INIT;

    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&r));
    strata_config_close(r.config);
    strata_model_close(r.model);
    strata_plan_destroy(r.plan);
    r.config = NULL;
    r.model = NULL;
    r.plan = NULL;
    assert_ok(run_train(&r, 0, RUN_STEPS, &last));
    assert_true(last.loss > 4 && last.loss < 6 && last.lr == 1e-3 && !last.skipped);
    assert_true(last.tokens == 4 * RUN_SEQ && last.seconds > 0);
    assert_true(last.forward_ms + last.backward_ms + last.stall_ms + last.other_ms <= 1e3 * last.seconds * 1.001);
    assert_true((last.write_bytes > 0) == (dir != NULL));
    assert_ok(strata_engine_check(r.engine));
    digest(out, &r);
    run_close(&r);
}

TEST_SETUP(placement_and_closing_change_no_bits, scratch_create, scratch_remove)
{
    struct digests memory, disk;

    reference(&memory, NULL);
    reference(&disk, scratch_dir);
    assert_same(&memory, &disk);
    assert_int_equal(scratch_entries_with(scratch_dir, "strata"), 0);
}

/* However the caller's thread rounds, and with traps set; it finds both again. */
TEST_SETUP(the_callers_floats_change_no_bits, scratch_create, scratch_remove)
{
    const int modes[] = {FE_UPWARD, FE_DOWNWARD}, traps = FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW;
    struct digests plain, other;

    reference(&plain, NULL);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(fesetround(modes[i]), 0);
        assert_int_not_equal(feenableexcept(traps), -1);
        reference(&other, i == 0 ? NULL : scratch_dir);
        assert_int_equal(fegetround(), modes[i]);
        assert_int_equal(fegetexcept(), traps);
        assert_int_equal(fesetenv(FE_DFL_ENV), 0);
        assert_same(&plain, &other);
    }
}

TEST_SETUP(two_engines_take_turns, scratch_create, scratch_remove)
{
    const char *tokens;
    struct digests alone, a, b;
    struct run first = {0}, second = {.dir = scratch_dir};

    reference(&alone, NULL);
    tokens = run_tokens("a.bin", TOKENS);
    assert_ok(run_open(&first, tokens));
    assert_ok(run_open(&second, tokens));
    assert_ok(run_start(&first));
    assert_ok(run_start(&second));
    for (uint64_t step = 0; step < RUN_STEPS; step++) {
        assert_ok(run_train(&first, step, 1, NULL));
        assert_ok(run_train(&second, step, 1, NULL));
    }
    digest(&a, &first);
    digest(&b, &second);
    assert_same(&a, &alone);
    assert_same(&b, &alone);
    run_close(&first);
    run_close(&second);
}

struct thread {
    struct run run;
    strata_status status;
};

static void *train_on_a_thread(void *ctx)
{
    struct thread *t = ctx;

    t->status = run_train(&t->run, 0, RUN_STEPS, NULL);
    return NULL;
}

TEST_SETUP(two_engines_run_at_once, scratch_create, scratch_remove)
{
    struct thread threads[2] = {{.run = {0}}, {.run = {.dir = scratch_dir}}};
    const char *tokens;
    struct digests alone, each;
    pthread_t ids[2];

    reference(&alone, NULL);
    tokens = run_tokens("a.bin", TOKENS);
    for (int i = 0; i < 2; i++) {
        assert_ok(run_open(&threads[i].run, tokens));
        assert_ok(run_start(&threads[i].run));
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&ids[i], NULL, train_on_a_thread, &threads[i]), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_join(ids[i], NULL), 0);
    for (int i = 0; i < 2; i++) {
        assert_ok(threads[i].status);
        digest(&each, &threads[i].run);
        assert_same(&each, &alone);
        run_close(&threads[i].run);
    }
}

TEST_SETUP(a_second_load_begins_again, scratch_create, scratch_remove)
{
    struct digests once, again;
    struct run r = {0};

    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&r));
    assert_ok(run_train(&r, 0, RUN_STEPS, NULL));
    digest(&once, &r);
    assert_ok(strata_engine_load(r.engine));
    assert_ok(run_train(&r, 0, RUN_STEPS, NULL));
    digest(&again, &r);
    assert_same(&once, &again);
    run_close(&r);
}

/* What is written is what was trained: a model opened from it has the same weights and the same loss. */
TEST_SETUP(an_export_is_opened_again, scratch_create, scratch_remove)
{
    struct strata_export_opts overwrite = STRATA_EXPORT_OPTS_INIT;
    struct strata_eval before = STRATA_EVAL_INIT, after = STRATA_EVAL_INIT;
    struct strata_export *out = NULL;
    struct digests trained, read;
    struct run r = {0}, from = {.preset = "", .use = STRATA_USE_EVAL};
    char dir[64];

    strncpy(dir, scratch_path("out"), sizeof(dir) - 1)[sizeof(dir) - 1] = '\0';
    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(strata_export_open(&out, r.model, dir, NULL));
    assert_ok(run_start(&r));
    assert_ok(run_train(&r, 0, RUN_STEPS, NULL));
    assert_ok(strata_engine_eval_data(r.engine, r.data, &before));
    digest(&trained, &r);
    assert_ok(strata_export_check(dir, NULL));
    assert_ok(strata_engine_export(r.engine, out));
    assert_ok(strata_directory_digest(dir, read.weights));
    assert_string_equal(trained.weights, read.weights);
    assert_status(strata_export_check(dir, NULL), STRATA_E_INPUT, "a model lies there");
    assert_status(strata_export_open(&out, r.model, dir, NULL), STRATA_E_INPUT, "a model lies there");
    overwrite.overwrite = true;
    assert_ok(strata_export_open(&out, r.model, dir, &overwrite));
    strata_export_abort(out);
    run_close(&r);

    from.preset = dir;
    assert_ok(run_open(&from, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&from));
    assert_ok(strata_engine_eval_data(from.engine, from.data, &after));
    digest(&read, &from);
    assert_string_equal(trained.weights, read.weights);
    assert_true(before.loss == after.loss && before.targets == after.targets && before.targets > 0);
    assert_true(after.sequences == strata_data_count(from.data) && isnan(after.bits_per_byte));
    assert_true(fabs(after.perplexity - exp(after.loss)) < 1e-6 * after.perplexity);
    assert_ok(strata_engine_load(from.engine)); /* its files are opened once more */
    run_close(&from);
}

static uint64_t written(const struct run *r)
{
    struct strata_engine_info info = STRATA_ENGINE_INFO_INIT;

    assert_ok(strata_engine_get_info(r->engine, &info));
    return info.write_bytes;
}

/* The weights are those of a flush, for fewer bytes written; the next load begins again. */
TEST_SETUP(training_ends_without_its_state, scratch_create, scratch_remove)
{
    static const char text[] = "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2, "
                               "\"gradient_clipping\": 1.0, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}}}";
    struct strata_export *out = NULL;
    struct run r = {.text = text, .dir = scratch_dir};
    struct digests flushed, again;
    uint64_t before, of_flush;
    char weights[33], dir[64];

    snprintf(dir, sizeof(dir), "%s", scratch_path("out"));
    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(strata_export_open(&out, r.model, dir, NULL));
    assert_ok(run_start(&r));
    assert_ok(run_train(&r, 0, RUN_STEPS, NULL));
    before = written(&r);
    assert_ok(strata_engine_flush(r.engine));
    of_flush = written(&r) - before;
    digest(&flushed, &r);

    assert_ok(strata_engine_load(r.engine));
    assert_ok(run_train(&r, 0, RUN_STEPS, NULL));
    before = written(&r);
    assert_ok(strata_engine_end_training(r.engine));
    assert_true(written(&r) - before < of_flush / 2);
    assert_ok(strata_engine_export(r.engine, out));
    assert_ok(strata_directory_digest(dir, weights));
    assert_string_equal(weights, flushed.weights);
    assert_refused(run_train(&r, 0, 1, NULL), "strata_engine_load() comes first");
    assert_refused(strata_engine_digest(r.engine, again.weights, again.state), "strata_engine_load() comes first");
    assert_refused(strata_engine_save(r.engine, NULL), "strata_engine_load() comes first");

    assert_ok(strata_engine_load(r.engine));
    assert_ok(run_train(&r, 0, RUN_STEPS, NULL));
    digest(&again, &r);
    assert_same(&flushed, &again);
    run_close(&r);
}

/* What is frozen lies apart in its page, not in the digest. */
TEST_SETUP(a_frozen_model_has_its_files_digest, scratch_create, scratch_remove)
{
    static const char text[] = "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2, "
                               "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}}, "
                               "\"strata\": {\"freeze\": [\"transformer.h.*.mlp.*\"]}}";
    struct strata_export *out = NULL;
    struct run r = {.text = text};
    struct digests trained;
    char written[33], dir[64];

    snprintf(dir, sizeof(dir), "%s", scratch_path("out"));
    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(strata_export_open(&out, r.model, dir, NULL));
    assert_ok(run_start(&r));
    assert_ok(run_train(&r, 0, 1, NULL));
    digest(&trained, &r);
    assert_ok(strata_engine_export(r.engine, out));
    assert_ok(strata_directory_digest(dir, written));
    assert_string_equal(trained.weights, written);
    run_close(&r);
}

TEST_SETUP(a_learning_rate_of_the_callers, scratch_create, scratch_remove)
{
    struct strata_step step = STRATA_STEP_INIT;
    struct run r = {0};

    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&r));
    assert_ok(run_train(&r, 0, 1, &step));
    assert_true(step.lr == 1e-3);
    assert_ok(strata_engine_set_lr(r.engine, 0.25e-3));
    assert_refused(strata_engine_set_lr(r.engine, -1), "a learning rate of -1");
    assert_refused(strata_engine_set_lr(r.engine, NAN), "a learning rate of");
    assert_ok(run_train(&r, 1, 2, &step));
    assert_true(step.lr == 0.25e-3);
    run_close(&r);
}

TEST_SETUP(the_schedule_is_the_configurations, scratch_create, scratch_remove)
{
    struct strata_step step = STRATA_STEP_INIT;
    struct run r = {.text = "{\"bf16\": {\"enabled\": true}, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}},"
                            " \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_min_lr\": 0, \"warmup_max_lr\": 1e-3,"
                            " \"warmup_num_steps\": 4, \"warmup_type\": \"linear\"}}}"};

    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&r));
    for (uint64_t i = 0; i < 4; i++) {
        assert_ok(run_train(&r, i, 1, &step));
        assert_true(fabs(step.lr - fmax(0, (double)i - 1) * 0.25e-3) < 1e-9); /* a step late, as DeepSpeed */
    }
    run_close(&r);
}

/* A schedule whose length nobody has told would have a rate of 0. */
TEST_SETUP(a_schedule_needs_its_length, scratch_create, scratch_remove)
{
    static const char *const schedules[] = {
        "\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"warmup_num_steps\": 0, \"warmup_max_lr\": 1e-3}}",
        "\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"total_num_steps\": \"auto\"}}",
        "\"strata\": {\"lr_scheduler\": {\"type\": \"linear\"}}",
        "\"strata\": {\"lr_scheduler\": {\"type\": \"cosine\"}}",
        "\"strata\": {\"lr_scheduler\": {\"type\": \"constant_with_warmup\", \"warmup_ratio\": 0.5}}",
        "\"strata\": {\"lr_scheduler\": {\"type\": \"constant_with_warmup\", \"warmup_steps\": 2}}", /* has one */
    };
    const size_t count = sizeof(schedules) / sizeof(schedules[0]);

    for (size_t i = 0; i < count; i++) {
        struct strata_step step = STRATA_STEP_INIT;
        char text[320];
        struct run r = {.text = text};

        snprintf(text, sizeof(text), "{\"bf16\": {\"enabled\": true}, %s}", schedules[i]);
        assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
        assert_ok(run_start(&r));
        if (i + 1 == count) {
            assert_ok(run_train(&r, 0, 1, &step));
            run_close(&r);
            continue;
        }
        assert_refused(run_train(&r, 0, 1, &step), "needs the number of steps");
        assert_ok(strata_engine_set_lr(r.engine, 0.5e-3));
        assert_ok(run_train(&r, 0, 1, &step));
        assert_true(step.lr == 0.5e-3);
        assert_ok(strata_engine_load(r.engine)); /* the schedule's rate again */
        assert_refused(run_train(&r, 0, 1, &step), "needs the number of steps");
        assert_refused(strata_model_set_steps(r.model, UINT64_MAX), "at most 2^53");
        assert_ok(strata_model_set_steps(r.model, 8));
        assert_ok(run_train(&r, 0, 1, &step));
        run_close(&r);
    }
}

/* What a program around an engine asks of it, where a run has saved nothing and has made steps. */
TEST_SETUP(a_run_tells_what_it_is, scratch_create, scratch_remove)
{
    struct strata_config_info says = STRATA_CONFIG_INFO_INIT;
    struct strata_plan_info planned = STRATA_PLAN_INFO_INIT;
    struct strata_step last = STRATA_STEP_INIT;
    struct run r = {.dir = scratch_dir};
    FILE *file = tmpfile();
    const char *json;

    assert_ok(run_open(&r, run_tokens("told.bin", TOKENS)));
    assert_ok(strata_config_get_info(r.config, &says));
    assert_true(says.save[0] == '\0' && says.watchdog && says.keep_best == 0 && !says.tensorboard.enabled && !says.csv.enabled);
    assert_string_equal(says.metrics, "");
    assert_refused(strata_config_get_info(r.config, NULL), "info is NULL");
    assert_false(r.shape.adapter);
    assert_ok(run_start(&r));
    assert_ok(run_train(&r, 0, 3, &last));
    assert_ok(strata_plan_get_info(r.plan, &planned));
    assert_true(planned.step.read == last.read_bytes && planned.step.write == last.write_bytes);
    assert_true(planned.first[0].read < planned.step.read && planned.token_flops > 0 && planned.device_flops == 0);
    for (int tier = 0; tier < STRATA_TIER_NVME; tier++)
        assert_true(planned.least_bytes[tier] > 0 && planned.least_bytes[tier] <= planned.needed_bytes[tier]);
    assert_ok(strata_engine_json(r.engine, 3, &json));
    assert_non_null(strstr(json, "{\"run\":{\"id\":null,"));
    assert_non_null(strstr(json, "\"max_steps\":3,\"config\":{"));
    assert_refused(strata_engine_json(r.engine, 3, NULL), "json is NULL");
    assert_ok(strata_engine_step_json(r.engine, &last, &json));
    assert_non_null(strstr(json, "{\"step\":3,\"epoch\":null,\"loss\":"));
    assert_null(strstr(json, "\"tokens\":null"));
    assert_null(strstr(json, "\"tokens_total\":null"));
    assert_refused(strata_engine_step_json(r.engine, NULL, &json), "step is NULL");
    last.step_size--;
    assert_refused(strata_engine_step_json(r.engine, &last, &json), "strata_step");
    assert_refused(strata_engine_write_trace(r.engine, NULL), "file is NULL");
    assert_refused(strata_engine_write_trace(r.engine, file), "trace_steps");
    assert_int_equal(ftell(file), 0);
    fclose(file);
    run_close(&r);
}

TEST_SETUP(generation_goes_forward, scratch_create, scratch_remove)
{
    struct run r = {.use = STRATA_USE_GENERATE, .prompt_tokens = 3};
    const int32_t prompt[] = {1, 2, 3}, beyond = 256;
    float logits[256], again[256];

    assert_ok(run_open(&r, NULL));
    assert_true(r.shape.seq_len == 3 && r.shape.cache_tokens == 3 + STRATA_MAX_TOKENS_DEFAULT && r.shape.vocab == 256);
    assert_ok(run_start(&r));
    assert_ok(strata_engine_forward(r.engine, prompt, 3, 0, logits));
    assert_ok(strata_engine_forward(r.engine, prompt, 2, 0, again));
    assert_ok(strata_engine_forward(r.engine, prompt + 2, 1, 2, again));
    assert_memory_equal(logits, again, sizeof(logits));
    assert_refused(strata_engine_forward(r.engine, prompt, 4, 0, logits), "1 to 3 at a time");
    assert_refused(strata_engine_forward(r.engine, prompt, 0, 0, logits), "1 to 3 at a time");
    assert_refused(strata_engine_forward(r.engine, prompt, 1, r.shape.cache_tokens, logits), "131 in all");
    assert_status(strata_engine_forward(r.engine, &beyond, 1, 3, logits), STRATA_E_INPUT, "a token beyond the vocabulary");
    assert_ok(strata_engine_forward(r.engine, prompt, 1, 3, logits));
    assert_refused(strata_engine_step(r.engine, prompt, prompt, NULL, NULL), "another use");
    run_close(&r);
}

/* For a text whose length nobody knows yet; what came from a position on is forgotten when it is given again. */
TEST_SETUP(a_conversation_goes_back, scratch_create, scratch_remove)
{
    struct run r = {.use = STRATA_USE_GENERATE, .cache_tokens = 40},
               most = {.use = STRATA_USE_GENERATE, .cache_tokens = 1u << 30};
    const int32_t first[] = {1, 2, 3, 4, 5, 6}, second[] = {1, 2, 9, 8};
    float logits[256], again[256];

    assert_ok(run_open(&most, NULL));
    assert_true(most.shape.cache_tokens == most.shape.context && most.shape.seq_len <= most.shape.context);
    run_close(&most);
    assert_ok(run_open(&r, NULL));
    assert_true(r.shape.seq_len == 40 && r.shape.cache_tokens == 40);
    assert_ok(run_start(&r));
    assert_ok(strata_engine_forward(r.engine, second, 4, 0, logits));
    assert_ok(strata_engine_forward(r.engine, first, 6, 0, again));
    assert_ok(strata_engine_forward(r.engine, second + 2, 2, 2, again)); /* 1 and 2 are known */
    assert_memory_equal(logits, again, sizeof(logits));
    assert_refused(strata_engine_forward(r.engine, first, 1, 40, logits), "40 in all");
    run_close(&r);
}

/* A token after a gap, one that was forgotten, and those of the run before are not what the cache is made of. */
TEST_SETUP(a_position_follows_what_was_given, scratch_create, scratch_remove)
{
    struct run r = {.use = STRATA_USE_GENERATE, .cache_tokens = 40};
    const int32_t ids[] = {1, 2, 3, 4, 5, 6}, beyond = 256;
    float logits[256], again[256];

    assert_ok(run_open(&r, NULL));
    assert_ok(run_start(&r));
    for (int loads = 0; loads < 2; loads++) {
        assert_refused(strata_engine_forward(r.engine, ids, 1, 1, logits), "at position 1, but the sequence has 0");
        assert_ok(strata_engine_forward(r.engine, ids, 4, 0, logits));
        assert_refused(strata_engine_forward(r.engine, ids + 5, 1, 5, logits), "at position 5, but the sequence has 4");
        assert_ok(strata_engine_forward(r.engine, ids + 4, 1, 4, logits));
        assert_ok(strata_engine_forward(r.engine, ids + 2, 1, 2, again)); /* 3 and 4 are forgotten */
        assert_refused(strata_engine_forward(r.engine, ids + 4, 1, 4, again), "at position 4, but the sequence has 3");
        assert_status(strata_engine_forward(r.engine, &beyond, 1, 0, again), STRATA_E_INPUT, "it changes nothing");
        assert_ok(strata_engine_forward(r.engine, ids + 3, 2, 3, again));
        assert_memory_equal(logits, again, sizeof(logits));
        assert_ok(strata_engine_load(r.engine));
    }
    run_close(&r);
}

/* --- ending early --- */

struct watch {
    const char *what; /* the work that is ended */
    uint64_t begun, ended;
    struct run *cancels; /* by strata_engine_cancel() instead */
};

static bool watches(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct watch *w = ctx;

    if (strcmp(what, w->what) != 0)
        return true;
    w->begun += done == 0;
    assert_true(total > 0);
    if (w->cancels != NULL && done > 0)
        strata_engine_cancel(w->cancels->engine);
    return w->cancels != NULL || w->ended-- > 0;
}

TEST_SETUP(progress_ends_work, scratch_create, scratch_remove)
{
    struct watch w = {.what = "evaluating", .ended = 2};
    struct strata_eval eval = STRATA_EVAL_INIT;
    struct run r = {.progress = watches, .progress_ctx = &w};

    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&r));
    assert_status(strata_engine_eval_data(r.engine, r.data, &eval), STRATA_E_CANCELLED, "evaluation");
    assert_true(w.begun == 1 && eval.sequences == 2 * r.shape.step_sequences && eval.targets == eval.sequences * RUN_SEQ);
    assert_ok(run_train(&r, 0, 1, NULL)); /* the engine goes on */
    w = (struct watch){.what = "making initial weights", .ended = 0};
    assert_status(strata_engine_load(r.engine), STRATA_E_CANCELLED, "load");
    assert_refused(run_train(&r, 1, 1, NULL), "nothing is loaded");
    w.ended = UINT64_MAX;
    assert_ok(strata_engine_load(r.engine));
    assert_ok(run_train(&r, 0, 1, NULL));
    run_close(&r);
}

TEST_SETUP(a_cancel_ends_the_engine, scratch_create, scratch_remove)
{
    struct run r = {.dir = scratch_dir};
    struct watch w = {.what = "evaluating", .cancels = &r};
    struct strata_eval eval = STRATA_EVAL_INIT;

    r.progress = watches;
    r.progress_ctx = &w;
    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&r));
    assert_ok(run_train(&r, 0, 1, NULL));
    assert_status(strata_engine_eval_data(r.engine, r.data, &eval), STRATA_E_CANCELLED, "evaluation");
    assert_true(eval.sequences == r.shape.step_sequences);
    assert_status(run_train(&r, 1, 1, NULL), STRATA_E_CANCELLED, "a step behind it");
    assert_status(strata_engine_load(r.engine), STRATA_E_CANCELLED, "a load behind it");
    run_close(&r);
    assert_int_equal(scratch_entries_with(scratch_dir, "strata"), 0);
    strata_engine_cancel(NULL);
}

static atomic_bool stepping;

static void *cancels_a_step(void *ctx)
{
    while (!atomic_load(&stepping))
        ;
    strata_engine_cancel(ctx);
    return NULL;
}

TEST_SETUP(another_thread_cancels, scratch_create, scratch_remove)
{
    struct run r = {.dir = scratch_dir};
    strata_status st = STRATA_OK;
    pthread_t thread;

    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&r));
    atomic_store(&stepping, false);
    assert_int_equal(pthread_create(&thread, NULL, cancels_a_step, r.engine), 0);
    for (uint64_t step = 0; st == STRATA_OK; step++) {
        st = run_train(&r, step, 1, NULL);
        atomic_store(&stepping, true);
    }
    assert_status(st, STRATA_E_CANCELLED, "steps until somebody cancels");
    assert_int_equal(pthread_join(thread, NULL), 0);
    run_close(&r);
}

static void run_once(void *ctx)
{
    const struct run *like = ctx;
    struct run r = *like;

    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&r));
    assert_ok(run_train(&r, 0, 1, NULL));
    run_close(&r);
}

TEST_SETUP(a_run_that_is_closed_takes_no_memory, scratch_create, scratch_remove)
{
    enum { RUNS = 8 };
    struct run rows[] = {{0}, {.dir = scratch_dir}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const int64_t grown = heap_growth(run_once, &rows[i], RUNS);

        if (grown >= (int64_t)RUNS * 1024)
            fail_msg("row %zu: %u runs that are closed took %lld bytes", i, RUNS, (long long)grown);
    }
}

/* However many there are, they are no loss that is lost. */
TEST_SETUP(steps_without_a_target_have_no_loss, scratch_create, scratch_remove)
{
    struct strata_step result = STRATA_STEP_INIT;
    struct run r = {0};
    int32_t *tokens, *targets;
    size_t elems;

    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&r));
    elems = (size_t)r.shape.step_sequences * r.shape.seq_len;
    tokens = calloc(elems, sizeof(*tokens));
    targets = malloc(elems * sizeof(*targets));
    assert_true(tokens != NULL && targets != NULL);
    memset(targets, 0xff, elems * sizeof(*targets));
    for (int step = 0; step < 10; step++) {
        assert_ok(strata_engine_step(r.engine, tokens, targets, NULL, &result));
        assert_true(isnan(result.loss) && result.grad_norm == 0 && !result.skipped);
    }
    assert_ok(strata_engine_check(r.engine));
    assert_ok(run_train(&r, 0, 1, &result));
    assert_true(result.loss > 4 && result.loss < 6);
    run_close(&r);
    free(tokens);
    free(targets);
}

TEST_MAIN(argc, argv)
{
    strata_log_configure(NULL, NULL, STRATA_LOG_WARN);
    return test_run(NULL, NULL);
}

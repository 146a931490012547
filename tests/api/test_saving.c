/* tests/api/test_saving.c - saves between which something else comes: an evaluation, another save, nothing at all; and calls that
 * save nothing, each with its sentence. */
#include "core/base/fault.h"
#include "run/run_describe.h"
#include "strata/checkpoint.h"
#include "tests/api/handles_fixture.h"
#include "tests/common/kept_log.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TOKENS 1201u
#define SAVED  2u /* steps at the save */

#define CONFIG_HEAD                                                                                                              \
    "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2, \"bf16\": {\"enabled\": true},"                 \
    " \"gradient_clipping\": 1.0, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}},"                             \
    " \"strata\": {\"threads\": 2"

/* An update waits for the next step, or for whoever needs it before. */
#define GATED ", \"update\": \"gated\""

static const char *saving(char text[640])
{
    snprintf(text, 640, CONFIG_HEAD GATED ", \"save\": \"%s\"}}", scratch_path("save"));
    return text;
}

struct digests {
    char weights[33], state[33];
};

static void digests_of(struct run *r, struct digests *d)
{
    assert_ok(strata_engine_digest(r->engine, d->weights, d->state));
}

static void assert_alike(const struct digests *a, const struct digests *b)
{
    assert_string_equal(a->weights, b->weights);
    assert_string_equal(a->state, b->state);
}

static void save_whole(struct run *r, struct strata_saved *saved)
{
    assert_ok(strata_engine_save(r->engine, NULL));
    assert_ok(strata_engine_saved(r->engine, true, saved));
}

/* A new run, after the steps that it saves. */
static void run_to_the_save(struct run *r)
{
    assert_ok(run_open(r, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(r));
    assert_ok(run_train(r, 0, SAVED, NULL));
}

/* A run that saves nothing, after so many steps. */
static void never_saved(uint64_t steps, struct digests *d)
{
    struct run r = {.text = CONFIG_HEAD "}}"};

    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&r));
    assert_ok(run_train(&r, 0, steps, NULL));
    digests_of(&r, d);
    run_close(&r);
}

/* The only checkpoint: what it says, and what a run has that resumes from it, at once and after one more step. */
static void check_saved(const struct digests *at_save, const struct digests *later)
{
    struct strata_checkpoint_info info = STRATA_CHECKPOINT_INFO_INIT;
    struct strata_checkpoint *saved = NULL;
    struct run r = {.text = CONFIG_HEAD "}}"};
    struct digests d;

    assert_ok(strata_checkpoint_open(&saved, scratch_path("save")));
    assert_ok(strata_checkpoint_get_info(saved, &info));
    assert_int_equal(info.steps, SAVED);
    assert_int_equal(info.skipped_steps, 0);
    assert_int_equal(info.sequences, SAVED * 4);
    assert_int_equal(info.step_sequences, 4);
    assert_int_equal(info.kept, 1);
    assert_string_equal(info.model, "nano");
    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(strata_plan_make(&r.plan, r.model, NULL));
    assert_ok(strata_engine_create(&r.engine, r.plan, NULL));
    for (int again = 0; again < 2; again++) { /* on an engine that has gone its own way, too */
        assert_ok(strata_engine_resume(r.engine, saved, NULL));
        digests_of(&r, &d);
        assert_alike(&d, at_save);
        assert_ok(run_train(&r, SAVED, 1, NULL));
        digests_of(&r, &d);
        assert_alike(&d, later);
        assert_ok(strata_engine_set_lr(r.engine, 0.25));
        assert_ok(run_train(&r, 0, 1, NULL));
    }
    run_close(&r);
    strata_checkpoint_close(saved);
}

TEST_SETUP(what_comes_between_changes_nothing, scratch_create, scratch_remove)
{
    static const struct {
        bool evaluates, saves_again, waits; /* in this order, between a save and the next step */
    } rows[] = {{0}, {.evaluates = true}, {.evaluates = true, .waits = true}, {.saves_again = true}};
    struct digests at_save, later, d;

    never_saved(SAVED, &at_save);
    never_saved(SAVED + 1, &later);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct strata_eval eval = STRATA_EVAL_INIT;
        struct strata_saved saved = STRATA_SAVED_INIT;
        char text[640];
        struct run r = {.text = saving(text)};

        run_to_the_save(&r);
        assert_ok(strata_engine_save(r.engine, NULL));
        if (rows[i].evaluates)
            assert_ok(strata_engine_eval_data(r.engine, r.data, &eval));
        if (rows[i].saves_again)
            assert_refused(strata_engine_save(r.engine, NULL), "no step has run since the last checkpoint");
        if (rows[i].waits) {
            assert_ok(strata_engine_saved(r.engine, true, &saved));
            assert_true(saved.done);
        }
        assert_ok(run_train(&r, SAVED, 1, NULL));
        assert_ok(strata_engine_saved(r.engine, true, &saved));
        assert_true(saved.done);
        assert_int_equal(saved.steps, SAVED);
        assert_string_equal(saved.path, scratch_path("save/step-00000002"));
        digests_of(&r, &d);
        assert_alike(&d, &later);
        run_close(&r);
        check_saved(&at_save, &later);
        scratch_remove(state);
        assert_int_equal(scratch_create(state), 0);
    }
}

/* A step with a token outside the vocabulary runs nothing: the save that it would have made is made by the next one. */
TEST_SETUP(a_refused_step_loses_no_save, scratch_create, scratch_remove)
{
    static int32_t beyond[4 * RUN_SEQ] = {[5] = 256}, targets[4 * RUN_SEQ];
    struct strata_saved saved = STRATA_SAVED_INIT;
    struct digests at_save, later, d;
    char text[640];
    struct run r = {.text = saving(text)};

    never_saved(SAVED, &at_save);
    never_saved(SAVED + 1, &later);
    run_to_the_save(&r);
    assert_ok(strata_engine_save(r.engine, NULL));
    assert_status(strata_engine_step(r.engine, beyond, targets, NULL, NULL), STRATA_E_INPUT, "a token outside the vocabulary");
    assert_non_null(strstr(strata_last_error(), "token 5 of sequence 0 is 256"));
    assert_ok(strata_engine_saved(r.engine, false, &saved));
    assert_false(saved.done);
    assert_ok(run_train(&r, SAVED, 1, NULL));
    assert_ok(strata_engine_saved(r.engine, true, &saved));
    assert_int_equal(saved.steps, SAVED);
    digests_of(&r, &d);
    assert_alike(&d, &later);
    run_close(&r);
    check_saved(&at_save, &later);
}

/* A run that ends with a save that nothing has followed. */
TEST_SETUP(the_end_of_a_run_loses_no_save, scratch_create, scratch_remove)
{
    struct strata_saved saved = STRATA_SAVED_INIT;
    struct digests at_save, later;
    char text[640];
    struct run r = {.text = text};

    snprintf(text, sizeof(text), CONFIG_HEAD ", \"save\": \"%s\"}}", scratch_path("save"));
    never_saved(SAVED, &at_save);
    never_saved(SAVED + 1, &later);
    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&r));
    assert_refused(strata_engine_save(r.engine, NULL), "or since the run began");
    assert_ok(run_train(&r, 0, SAVED, NULL));
    assert_ok(strata_engine_save(r.engine, NULL));
    assert_ok(strata_engine_saved(r.engine, false, &saved));
    assert_false(saved.done);
    assert_int_equal(saved.steps, 0);
    assert_ok(strata_engine_saved(r.engine, true, &saved));
    assert_int_equal(saved.steps, SAVED);
    run_close(&r);
    check_saved(&at_save, &later);
}

static bool is_due(const struct run *r, bool asked)
{
    bool due = !asked;

    assert_ok(strata_engine_save_due(r->engine, asked, &due));
    return due;
}

/* By its number of steps, or when asked, and only what no checkpoint has; a step that a save may follow writes what lives in
 * memory. */
TEST_SETUP(a_rule_says_when_a_save_is_due, scratch_create, scratch_remove)
{
    struct strata_save_rule rule = STRATA_SAVE_RULE_INIT;
    struct strata_saved saved = STRATA_SAVED_INIT;
    struct strata_step step = STRATA_STEP_INIT;
    char text[640];
    struct run r = {.text = text};

    snprintf(text, sizeof(text), CONFIG_HEAD ", \"keep_best\": 1, \"save\": \"%s\"}}", scratch_path("save"));
    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&r));
    rule.every = 3, rule.eval_every = 2, rule.steps = 5;
    assert_ok(strata_engine_save_when(r.engine, &rule));
    assert_true(!is_due(&r, false) && !is_due(&r, true));
    for (uint64_t done = 1; done <= 5; done++) {
        assert_ok(run_train(&r, done - 1, 1, &step));
        assert_true((step.write_bytes > 0) == (done != 1)); /* 2 and 4 are evaluated, 3 is due, 5 is the last */
        assert_true(is_due(&r, false) == (done == 3 || done == 5) && is_due(&r, true));
        if (done == 3) {
            save_whole(&r, &saved);
            assert_true(saved.steps == done && !is_due(&r, false) && !is_due(&r, true));
        }
    }
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.fsync", .count = 1, .result = -EIO});
    assert_ok(strata_engine_save(r.engine, NULL));
    assert_status(strata_engine_saved(r.engine, true, &saved), STRATA_E_IO, "a save that fails");
    assert_int_equal(st_fault_disarm(), 1);
    assert_true(is_due(&r, true)); /* again */
    run_close(&r);
}

/* A second run saves to the same directory: a checkpoint tells of those of its own run alone, by whose name it goes. */
TEST_SETUP(another_runs_checkpoints_do_not_count, scratch_create, scratch_remove)
{
    struct strata_checkpoint_info info = STRATA_CHECKPOINT_INFO_INIT;
    struct strata_engine_info engine[2] = {STRATA_ENGINE_INFO_INIT, STRATA_ENGINE_INFO_INIT};
    struct strata_saved saved = STRATA_SAVED_INIT;
    struct strata_checkpoint *checkpoint = NULL;
    char text[640];

    snprintf(text, sizeof(text), CONFIG_HEAD ", \"leaves\": 2, \"save\": \"%s\"}}", scratch_path("save"));
    for (uint32_t first = 1; first <= 3; first += 2) { /* saves after steps 1 and 2, and after 3 and 4 */
        struct run r = {.text = text};

        assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
        assert_ok(run_start(&r));
        assert_ok(strata_engine_get_info(r.engine, &engine[first / 2]));
        assert_int_equal(strlen(engine[first / 2].run), 16);
        for (uint32_t step = 0; step < first + 1; step++) {
            assert_ok(run_train(&r, step, 1, NULL));
            if (step + 1 < first)
                continue;
            save_whole(&r, &saved);
            assert_int_equal(saved.steps, step + 1);
            assert_true(saved.seconds > 0 && saved.stopped > 0 && saved.stopped <= saved.seconds);
            assert_ok(strata_checkpoint_open(&checkpoint, saved.path));
            assert_ok(strata_checkpoint_get_info(checkpoint, &info));
            assert_int_equal(info.kept, step + 2 - first);
            assert_int_equal(info.leaves, 2);
            assert_string_equal(info.run, engine[first / 2].run);
            strata_checkpoint_close(checkpoint);
        }
        run_close(&r);
    }
    assert_string_not_equal(engine[0].run, engine[1].run);
    assert_int_equal(scratch_entries_with(scratch_path("save"), "step-"), 4);
}

static void check_same_bytes(const struct run *r, const struct strata_engine_info *before)
{
    struct strata_engine_info now = STRATA_ENGINE_INFO_INIT;

    assert_ok(strata_engine_get_info(r->engine, &now));
    assert_memory_equal(&now, before, sizeof(now));
}

/* A run of which a save is due is not replaced, by a load or a resume, and neither makes the update that the save waits for; once
 * it is made, both do. */
TEST_SETUP(a_run_whose_save_is_due_is_not_replaced, scratch_create, scratch_remove)
{
    for (int i = 0; i < 4; i++) {
        const bool resumes = i % 2 == 1;
        struct strata_saved saved = STRATA_SAVED_INIT;
        struct strata_checkpoint *checkpoint = NULL;
        char text[640];
        struct run r = {.text = text, .dir = i < 2 ? NULL : scratch_dir};
        struct strata_engine_info before = STRATA_ENGINE_INFO_INIT;
        struct digests at_save, d;

        snprintf(text, sizeof(text), CONFIG_HEAD GATED ", \"keep\": 9, \"save\": \"%s\"}}", scratch_path("save"));
        never_saved(SAVED, &at_save);
        assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
        assert_ok(run_start(&r));
        assert_ok(run_train(&r, 0, 1, NULL));
        save_whole(&r, &saved);
        assert_ok(strata_checkpoint_open(&checkpoint, saved.path));
        assert_ok(run_train(&r, 1, SAVED - 1, NULL));
        assert_ok(strata_engine_save(r.engine, NULL));
        assert_ok(strata_engine_saved(r.engine, false, &saved));
        assert_int_equal(saved.steps, 1); /* it is due */
        assert_ok(strata_engine_get_info(r.engine, &before));
        assert_refused(strata_engine_load(r.engine), "strata_engine_load: a save waits for the next step");
        assert_refused(strata_engine_resume(r.engine, checkpoint, NULL), "strata_engine_resume: a save waits for the next step");
        check_same_bytes(&r, &before);
        assert_ok(strata_engine_saved(r.engine, true, &saved));
        assert_int_equal(saved.steps, SAVED);
        assert_ok(resumes ? strata_engine_resume(r.engine, checkpoint, NULL) : strata_engine_load(r.engine));
        assert_ok(run_train(&r, resumes, 1, NULL));
        assert_ok(strata_engine_saved(r.engine, true, &saved));
        assert_int_equal(saved.steps, SAVED);
        strata_checkpoint_close(checkpoint);
        assert_ok(strata_checkpoint_open(&checkpoint, scratch_path("save/step-00000002")));
        assert_ok(strata_engine_resume(r.engine, checkpoint, NULL));
        digests_of(&r, &d);
        assert_alike(&d, &at_save);
        strata_checkpoint_close(checkpoint);
        run_close(&r);
        scratch_remove(state);
        assert_int_equal(scratch_create(state), 0);
    }
}

/* What was to be saved when the engine goes: it is there, or a warning says why it is not. */
TEST_SETUP(a_save_that_nobody_waits_for_is_made, scratch_create, scratch_remove)
{
    struct strata_checkpoint *checkpoint = NULL;
    struct digests at_save, later;
    char text[640];

    never_saved(SAVED, &at_save);
    never_saved(SAVED + 1, &later);
    for (int fails = 0; fails < 2; fails++) {
        struct run r = {.text = saving(text)};

        run_to_the_save(&r);
        assert_ok(strata_engine_save(r.engine, NULL));
        if (fails)
            st_fault_arm(&(struct st_fault_spec){.site = "nvme.link", .result = -EACCES});
        kept_log_begin(ST_LOG_WARN);
        run_close(&r);
        kept_log_end();
        assert_true((st_fault_disarm() > 0) == (fails == 1));
        assert_int_equal(kept_log.count, fails);
        if (!fails) {
            check_saved(&at_save, &later);
        } else {
            assert_non_null(strstr(kept_log.last, "the last checkpoint was not made: "));
            assert_status(strata_checkpoint_open(&checkpoint, scratch_path("save")), STRATA_E_INPUT, "of one that is not made");
        }
        scratch_remove(state);
        assert_int_equal(scratch_create(state), 0);
    }
}

/* What begins anew has made no checkpoint: it saves after as many steps as the run before it did. */
TEST_SETUP(a_run_that_begins_anew_saves_at_the_same_step, scratch_create, scratch_remove)
{
    struct strata_saved saved = STRATA_SAVED_INIT;
    char text[640];
    struct run r = {.text = saving(text)};

    run_to_the_save(&r);
    save_whole(&r, &saved);
    assert_int_equal(rename(scratch_path("save/step-00000002"), scratch_path("before")), 0);
    assert_ok(strata_engine_load(r.engine));
    assert_refused(strata_engine_save(r.engine, NULL), "no step has run since the last checkpoint, or since the run began");
    assert_ok(run_train(&r, 0, SAVED, NULL));
    save_whole(&r, &saved);
    assert_int_equal(saved.steps, SAVED);
    run_close(&r);
}

/* What was in the way is removed, and the run has not gone on: the same step is saved. */
TEST_SETUP(a_save_that_failed_is_made_again, scratch_create, scratch_remove)
{
    struct strata_saved saved = STRATA_SAVED_INIT;
    struct digests at_save, later;
    char text[640];
    struct run r = {.text = saving(text)};

    never_saved(SAVED, &at_save);
    never_saved(SAVED + 1, &later);
    run_to_the_save(&r);
    assert_int_equal(mkdir(scratch_path("save/step-00000002"), 0755), 0);
    scratch_put("save/step-00000002/mine", "");
    for (int again = 0; again < 2; again++) {
        assert_ok(strata_engine_save(r.engine, NULL));
        saved.saved_size = 1;
        assert_refused(strata_engine_saved(r.engine, true, &saved), "struct strata_saved gives its size as 1 bytes");
        saved.saved_size = sizeof(saved);
        assert_status(strata_engine_saved(r.engine, true, &saved), STRATA_E_INPUT, "the name is taken");
        assert_int_equal(saved.steps, 0);
    }
    assert_int_equal(unlink(scratch_path("save/step-00000002/mine")), 0);
    assert_int_equal(rmdir(scratch_path("save/step-00000002")), 0);
    save_whole(&r, &saved);
    assert_int_equal(saved.steps, SAVED);
    assert_refused(strata_engine_save(r.engine, NULL), "no step has run since the last checkpoint");
    run_close(&r);
    check_saved(&at_save, &later);
}

/* Where files cannot be linked, as across file systems, a save says how much it copied, all but what describes it; else nothing.
 */
TEST_SETUP(copies_are_counted, scratch_create, scratch_remove)
{
    for (int crosses = 0; crosses < 2; crosses++) {
        struct strata_checkpoint_info info = STRATA_CHECKPOINT_INFO_INIT;
        struct strata_saved saved = STRATA_SAVED_INIT;
        struct strata_checkpoint *checkpoint = NULL;
        char text[640];
        struct run r = {.text = saving(text)};

        run_to_the_save(&r);
        if (crosses)
            st_fault_arm(&(struct st_fault_spec){.site = "nvme.link", .result = -EXDEV});
        save_whole(&r, &saved);
        assert_true((st_fault_disarm() > 0) == (crosses == 1));
        assert_ok(strata_checkpoint_open(&checkpoint, saved.path));
        assert_ok(strata_checkpoint_get_info(checkpoint, &info));
        assert_true(crosses ? saved.copied_bytes < info.bytes && info.bytes - saved.copied_bytes < 65536
                            : saved.copied_bytes == 0);
        strata_checkpoint_close(checkpoint);
        run_close(&r);
        scratch_remove(state);
        assert_int_equal(scratch_create(state), 0);
    }
}

/* What bits are promised for, as the checkpoint says it; where this run has another, a notice names both. */
TEST_SETUP(what_bits_depend_on_is_compared, scratch_create, scratch_remove)
{
    struct strata_saved saved = STRATA_SAVED_INIT;
    struct st_manifest m;
    char text[640];
    struct run r = {.text = saving(text)};

    run_to_the_save(&r);
    save_whole(&r, &saved);
    run_close(&r);
    for (int change = 0; change < 6; change++) {
        static const char *const says[] = {NULL,
                                           "which summed or rounded otherwise: bits may differ",
                                           "was saved with the device abacus, and this one is cpu: bits may differ",
                                           "was saved with the instruction set odd, and this one is ",
                                           "was saved with the matmul library mine, and this one is ",
                                           "of a run that began with the weights of elsewhere; model.model names nano"};
        struct strata_checkpoint *checkpoint = NULL;
        struct run again = {.text = CONFIG_HEAD "}}"};
        uint64_t bytes;
        char *written;

        assert_ok(st_manifest_read(&m, scratch_path(change == 0 ? "save/step-00000002/manifest.json" : "whole.json")));
        assert_string_equal(m.device, "cpu");
        assert_true(m.isa[0] != '\0' && m.matmul[0] != '\0');
        m.numerics += change == 1;
        if (change == 2)
            snprintf(m.device, sizeof(m.device), "abacus");
        if (change == 3)
            snprintf(m.isa, sizeof(m.isa), "odd");
        if (change == 4)
            snprintf(m.matmul, sizeof(m.matmul), "mine");
        if (change == 5)
            snprintf(m.model_source, sizeof(m.model_source), "elsewhere");
        assert_ok(st_manifest_text(&written, &bytes, &m));
        st_manifest_fini(&m);
        scratch_put(change == 0 ? "whole.json" : "save/step-00000002/manifest.json", written);
        free(written);
        assert_ok(strata_checkpoint_open(&checkpoint, scratch_path("save")));
        assert_ok(run_open(&again, NULL));
        assert_ok(strata_plan_make(&again.plan, again.model, NULL));
        assert_ok(strata_engine_create(&again.engine, again.plan, NULL));
        kept_log_begin(ST_LOG_NOTICE);
        assert_ok(strata_engine_resume(again.engine, checkpoint, NULL));
        kept_log_end();
        assert_int_equal(kept_log.count, change > 0);
        if (change > 0 && strstr(kept_log.last, says[change]) == NULL)
            fail_msg("\"%s\" lacks \"%s\"", kept_log.last, says[change]);
        run_close(&again);
        strata_checkpoint_close(checkpoint);
    }
}

TEST_SETUP(what_cannot_be_saved_or_resumed_is_told, scratch_create, scratch_remove)
{
    struct strata_checkpoint_info info = STRATA_CHECKPOINT_INFO_INIT;
    struct strata_saved saved = STRATA_SAVED_INIT;
    struct strata_checkpoint *checkpoint = NULL;
    char text[640];
    bool same;
    struct run saves = {.text = saving(text)}, r = {.text = CONFIG_HEAD "}}"}, evaluates = {.use = STRATA_USE_EVAL},
               fakes = {.text = text};
    struct digests d;

    assert_ok(run_open(&saves, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&saves));
    assert_ok(run_train(&saves, 0, SAVED, NULL));
    assert_ok(strata_engine_save(saves.engine, NULL));
    assert_ok(strata_engine_saved(saves.engine, true, &saved));
    run_close(&saves);
    assert_refused(strata_checkpoint_open(NULL, scratch_path("save")), "checkpoint is NULL");
    assert_refused(strata_checkpoint_open(&checkpoint, NULL), "path is NULL");
    assert_null(checkpoint);
    assert_ok(strata_checkpoint_open(&checkpoint, scratch_path("save")));
    assert_true(strata_save_takes("latest") && strata_save_takes("step-00000100") && strata_save_takes("step-123456789"));
    assert_false(strata_save_takes(NULL) || strata_save_takes("") || strata_save_takes("step-100") ||
                 strata_save_takes("step-00000100.jsonl") || strata_save_takes("latest.jsonl"));
    assert_refused(strata_checkpoint_get_info(NULL, &info), "checkpoint is NULL");
    assert_refused(strata_checkpoint_get_info(checkpoint, NULL), "info is NULL");
    assert_status(strata_adapter_compare("tests/golden/adapters/gpt2_exact", scratch_path("save"), &same), STRATA_E_CORRUPT,
                  "an adapter of a run without one");
    assert_non_null(strstr(strata_last_error(), "step-00000002: its run trained no adapter"));

    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&r));
    assert_ok(run_train(&r, 0, 1, NULL));
    assert_refused(strata_engine_save(r.engine, NULL), "names no directory: set strata.save");
    assert_refused(strata_engine_save_when(r.engine, NULL), "names no directory: set strata.save");
    saved.done = false;
    assert_ok(strata_engine_saved(r.engine, false, &saved)); /* a loop that waits for it ends */
    assert_true(saved.done);
    assert_refused(strata_engine_saved(NULL, true, &saved), "engine is NULL");
    assert_refused(strata_engine_save_due(NULL, true, &same), "engine is NULL");
    assert_refused(strata_engine_save_due(r.engine, true, NULL), "due is NULL");
    assert_refused(strata_engine_save_due(r.engine, true, &same), "names no directory: set strata.save");
    assert_refused(strata_engine_saved(r.engine, true, NULL), "saved is NULL");
    assert_refused(strata_engine_resume(r.engine, NULL, NULL), "checkpoint is NULL");
    assert_ok(run_train(&r, 1, 1, NULL));
    run_close(&r);

    assert_ok(run_open(&evaluates, NULL));
    assert_ok(run_start(&evaluates));
    assert_refused(strata_engine_resume(evaluates.engine, checkpoint, NULL), "another use than training");
    digests_of(&evaluates, &d); /* it is loaded still */
    run_close(&evaluates);

    snprintf(text, sizeof(text), CONFIG_HEAD ", \"io_method\": \"fake\", \"save\": \"%s\"}}", scratch_path("other"));
    assert_ok(run_open(&fakes, NULL));
    assert_status(run_start(&fakes), STRATA_E_CONFIG, "a save without files");
    assert_non_null(strstr(strata_last_error(), "strata.save needs files"));
    run_close(&fakes);
    assert_int_equal(scratch_entries_with(scratch_dir, "other"), 0);
    strata_checkpoint_close(checkpoint);
}

/* What resuming has replaced nothing of goes on as it was, with the rate that its caller has set. */
TEST_SETUP(a_refused_resume_changes_nothing, scratch_create, scratch_remove)
{
    struct strata_saved saved = STRATA_SAVED_INIT;
    struct strata_checkpoint *checkpoint = NULL;
    struct strata_step step = STRATA_STEP_INIT;
    char text[640];
    struct run saves = {.text = saving(text)},
               other = {.text = "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2}"};
    struct digests d, before;

    assert_ok(run_open(&saves, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&saves));
    assert_ok(run_train(&saves, 0, SAVED, NULL));
    assert_ok(strata_engine_save(saves.engine, NULL));
    assert_ok(strata_engine_saved(saves.engine, true, &saved));
    run_close(&saves);
    assert_ok(strata_checkpoint_open(&checkpoint, scratch_path("save")));
    assert_ok(run_open(&other, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&other));
    assert_ok(strata_engine_set_lr(other.engine, 0.25));
    digests_of(&other, &before);
    assert_refused(strata_engine_resume(other.engine, NULL, NULL), "checkpoint is NULL");
    assert_status(strata_engine_resume(other.engine, checkpoint, NULL), STRATA_E_INPUT, "of another precision");
    digests_of(&other, &d);
    assert_alike(&d, &before);
    assert_ok(run_train(&other, 0, 1, &step));
    assert_true(step.lr == 0.25);
    run_close(&other);
    strata_checkpoint_close(checkpoint);
}

/* A run that begins on an engine which has resumed, wholly or in part, but has run no step since: its optimizer state is zero. */
TEST_SETUP(a_load_after_a_resume_begins_anew, scratch_create, scratch_remove)
{
    struct strata_saved saved = STRATA_SAVED_INIT;
    struct strata_checkpoint *checkpoint = NULL;
    char text[640];
    struct run saves = {.text = saving(text)};
    struct digests begun, d;

    never_saved(0, &begun);
    assert_ok(run_open(&saves, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&saves));
    assert_ok(run_train(&saves, 0, SAVED, NULL));
    assert_ok(strata_engine_save(saves.engine, NULL));
    assert_ok(strata_engine_saved(saves.engine, true, &saved));
    run_close(&saves);
    assert_ok(strata_checkpoint_open(&checkpoint, scratch_path("save")));
    for (int fails = 0; fails < 2; fails++) {
        struct run r = {.text = CONFIG_HEAD "}}"};
        strata_status st;

        assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
        assert_ok(strata_plan_make(&r.plan, r.model, NULL));
        assert_ok(strata_engine_create(&r.engine, r.plan, NULL));
        if (fails) /* a later read of it */
            st_fault_arm(&(struct st_fault_spec){.site = "engine.corrupt", .after = 2, .count = 1, .result = -1});
        st = strata_engine_resume(r.engine, checkpoint, NULL);
        assert_int_equal(st_fault_disarm(), fails);
        assert_int_equal(st, fails ? STRATA_E_CORRUPT : STRATA_OK);
        assert_ok(strata_engine_load(r.engine));
        digests_of(&r, &d);
        assert_alike(&d, &begun);
        run_close(&r);
    }
    strata_checkpoint_close(checkpoint);
}

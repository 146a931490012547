/* tests/api/test_saved.c - a checkpoint as a model, and exported: the run's own weights, or one failure at a time a sentence and
 * nothing left. */
#include "strata/checkpoint.h"
#include "tests/api/handles_fixture.h"
#include "tests/common/fault_walk.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TOKENS 1201u

static char weights[33]; /* of the run that saved */

static const char config_format[] =
    "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2, \"bf16\": {\"enabled\": true},"
    " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}}, \"strata\": {\"threads\": 2, \"save\": \"%s\","
    " \"freeze\": [\"*.bias\", \"transformer.h.1.*\"]}}";

/* SAVE with one checkpoint, whose pages are others than those of a model without frozen tensors. */
static int save(void **state)
{
    struct strata_saved saved = STRATA_SAVED_INIT;
    char text[640], state_digest[33];
    struct run r = {.text = text};

    if (scratch_create(state) != 0)
        return -1;
    snprintf(text, sizeof(text), config_format, scratch_path("save"));
    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&r));
    assert_ok(run_train(&r, 0, 2, NULL));
    assert_ok(strata_engine_digest(r.engine, weights, state_digest));
    assert_ok(strata_engine_save(r.engine, NULL));
    assert_ok(strata_engine_saved(r.engine, true, &saved));
    assert_int_equal(saved.steps, 2);
    run_close(&r);
    return 0;
}

static strata_status load(char digest[33])
{
    struct run r = {.preset = scratch_path("save")};
    char state[33];
    strata_status st = run_open(&r, NULL);

    if (st == STRATA_OK)
        st = run_start(&r);
    if (st == STRATA_OK)
        st = strata_engine_digest(r.engine, digest, state);
    run_close(&r);
    return st;
}

/* All passages of what only the reading of a checkpoint's weights passes, and one in `stride` of all. */
static void walk_all(void (*once)(struct fault_walk *walk), uint32_t stride)
{
    static const char *const sites[] = {"run.weights",  "run.parts",        "run.runs", "run.spans",
                                        "reader.alloc", "checkpoint.alloc", NULL};

    for (size_t i = 0; i < sizeof(sites) / sizeof(sites[0]); i++) {
        struct fault_walk walk = {.site = sites[i], .result = -EIO};

        while (fault_walk_next(&walk)) {
            once(&walk);
            walk.after += sites[i] == NULL ? stride - 1 : 0;
        }
        assert_true(walk.failed > 0);
    }
}

static void load_once(struct fault_walk *walk)
{
    char digest[33];
    const strata_status st = load(digest);

    fault_walk_end(walk, st);
    if (st == STRATA_OK)
        assert_string_equal(digest, weights);
}

TEST(a_failure_is_said_or_the_weights_are_right)
{
    walk_all(load_once, 9);
}

static void export_once(struct fault_walk *walk)
{
    const strata_status st = strata_verify_export(scratch_path("save"), scratch_path("out"), NULL, NULL);
    char digest[33], sentence[512], command[320];
    struct stat info;

    snprintf(sentence, sizeof(sentence), "%s", strata_last_error());
    fault_walk_end(walk, st);
    if (st == STRATA_OK) {
        assert_ok(strata_directory_digest(scratch_path("out"), digest));
        assert_string_equal(digest, weights);
    } else if (strstr(sentence, "the model is written") == NULL && strstr(sentence, "are kept as") == NULL &&
               stat(scratch_path("out"), &info) == 0 && scratch_entries(scratch_path("out"), NULL) > 0) {
        fail_msg("run %u of an export leaves files, and does not say so: %s", walk->runs, sentence);
    }
    snprintf(command, sizeof(command), "rm -rf %s", scratch_path("out"));
    assert_int_equal(system(command), 0);
}

TEST(a_failed_export_leaves_nothing)
{
    walk_all(export_once, 5);
}

static bool stop_at_half(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    (void)ctx;
    assert_string_equal(what, "exporting");
    return done < total / 2;
}

TEST(an_export_is_cancelled)
{
    struct strata_verify_opts opts = STRATA_VERIFY_OPTS_INIT;
    struct stat info;

    opts.progress = stop_at_half;
    assert_status(strata_verify_export(scratch_path("save"), scratch_path("deep/out"), NULL, &opts), STRATA_E_CANCELLED,
                  "export");
    assert_int_not_equal(stat(scratch_path("deep"), &info), 0);
    assert_refused(strata_verify_export(NULL, "out", NULL, NULL), "path is NULL");
    assert_refused(strata_verify_export("save", NULL, NULL, NULL), "dir is NULL");
}

TEST_GROUP(save, scratch_remove);

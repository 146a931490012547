/* tests/api/test_saving_told.c - what becomes of saves that nobody asks about, and of the directory that the model came from. */
#include "core/base/fault.h"
#include "strata/checkpoint.h"
#include "strata/verify.h"
#include "tests/api/handles_fixture.h"
#include "tests/common/kept_log.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define TOKENS   1201u
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define CONFIG(more)                                                                                                             \
    "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2, \"bf16\": {\"enabled\": true},"                 \
    " \"gradient_clipping\": 1.0, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}},"                             \
    " \"strata\": {\"threads\": 2" more "}}"

/* A run that saves, begun.  Where the update is gated, what a step learns is saved beside the next one; where it is serial, by
 * strata_engine_save(). */
static void begin_with(struct run *r, const char *update, char text[640])
{
    snprintf(text, 640, CONFIG(", \"update\": \"%s\", \"save\": \"%s\""), update, scratch_path("save"));
    r->text = text;
    assert_ok(run_open(r, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(r));
}

static void begin(struct run *r, char text[640])
{
    begin_with(r, "gated", text);
}

/* Numbers of a checkpoint are JSON's, and an order is one of those that there are: a caller hears of it, and goes on. */
TEST_SETUP(what_no_checkpoint_can_say_is_refused, scratch_create, scratch_remove)
{
    struct strata_save_opts opts = STRATA_SAVE_OPTS_INIT;
    struct strata_resume_opts other = STRATA_RESUME_OPTS_INIT;
    struct strata_checkpoint_info info = STRATA_CHECKPOINT_INFO_INIT;
    struct strata_saved saved = STRATA_SAVED_INIT;
    struct strata_checkpoint *checkpoint = NULL;
    char text[640];
    struct run r = {0};

    begin_with(&r, "serial", text);
    assert_ok(run_train(&r, 0, 1, NULL));
    opts.metrics_bytes = UINT64_MAX;
    assert_refused(strata_engine_save(r.engine, &opts), "metrics_bytes: 18446744073709551615: at most 2^53");
    opts.metrics_bytes = UINT64_C(1) << 53;
    opts.data = r.data;
    opts.data_seed = UINT64_MAX;
    opts.data_order = STRATA_DATA_EPOCHS_IN_ORDER + 1;
    assert_refused(strata_engine_save(r.engine, &opts), "data_order: 5 is not an order");
    opts.data_order = STRATA_DATA_IN_ORDER;
    assert_ok(strata_engine_save(r.engine, &opts));
    assert_ok(strata_engine_saved(r.engine, true, &saved));
    assert_ok(strata_checkpoint_open(&checkpoint, scratch_path("save")));
    assert_ok(strata_checkpoint_get_info(checkpoint, &info));
    assert_true(info.metrics_bytes == UINT64_C(1) << 53);
    other.data = r.data;
    other.data_seed = UINT64_MAX;
    other.data_order = STRATA_DATA_EPOCHS_IN_ORDER + 1;
    assert_refused(strata_engine_resume(r.engine, checkpoint, &other), "data_order: 5 is not an order");
    other.data_order = STRATA_DATA_SHUFFLED;
    assert_status(strata_engine_resume(r.engine, checkpoint, &other), STRATA_E_INPUT, "another order");
    assert_non_null(strstr(strata_last_error(), "by a run with train.no_shuffle, and this one is without it"));
    other.data_order = STRATA_DATA_CYCLE;
    assert_status(strata_engine_resume(r.engine, checkpoint, &other), STRATA_E_INPUT, "another order");
    assert_non_null(strstr(strata_last_error(), "by a run with data_order 1, and this one has 3"));
    other.data_order = STRATA_DATA_IN_ORDER;
    assert_ok(strata_engine_resume(r.engine, checkpoint, &other));
    strata_checkpoint_close(checkpoint);
    run_close(&r);
}

static void fail_once(const char *site)
{
    st_fault_arm(&(struct st_fault_spec){.site = site, .count = 1, .result = -ENOSPC});
}

TEST_SETUP(a_run_that_saves_nothing_leaves_nothing, scratch_create, scratch_remove)
{
    char text[640];
    struct run r = {0};

    begin(&r, text);
    assert_int_equal(scratch_entries_with(scratch_dir, "save"), 1);
    run_close(&r);
    assert_int_equal(scratch_entries_with(scratch_dir, "save"), 0);
}

TEST_SETUP(a_failure_is_not_lost_in_the_next_success, scratch_create, scratch_remove)
{
    struct strata_saved saved = STRATA_SAVED_INIT;
    char text[640];
    struct run r = {0};

    begin(&r, text);
    assert_ok(run_train(&r, 0, 1, NULL));
    fail_once("commit.mkdir");
    assert_ok(strata_engine_save(r.engine, NULL));
    assert_ok(run_train(&r, 1, 1, NULL));
    kept_log_begin(ST_LOG_WARN);
    assert_ok(strata_engine_save(r.engine, NULL));
    kept_log_end();
    assert_int_equal(st_fault_disarm(), 1);
    assert_int_equal(kept_log.count, 1);
    assert_non_null(strstr(kept_log.last, "the last checkpoint was not made: making directory "));
    assert_ok(strata_engine_saved(r.engine, true, &saved));
    assert_int_equal(saved.steps, 2);
    run_close(&r);
}

/* Who has heard of it hears of it once. */
TEST_SETUP(a_failure_that_was_asked_for_is_not_said, scratch_create, scratch_remove)
{
    struct strata_saved saved = STRATA_SAVED_INIT;
    char text[640];
    struct run r = {0};

    begin(&r, text);
    kept_log_begin(ST_LOG_WARN);
    for (uint64_t step = 0; step < 2; step++) {
        assert_ok(run_train(&r, step, 1, NULL));
        fail_once("commit.mkdir");
        assert_ok(strata_engine_save(r.engine, NULL));
        assert_status(strata_engine_saved(r.engine, true, &saved), STRATA_E_NOSPC, "what the save failed with");
        assert_int_equal(st_fault_disarm(), 1);
    }
    run_close(&r);
    kept_log_end();
    assert_int_equal(kept_log.count, 0);
}

/* Somebody reads all of the run's sets, and there can be no new ones. */
TEST_SETUP(a_failure_that_the_save_returned_is_not_said, scratch_create, scratch_remove)
{
    char text[640];
    struct run r = {0};
    glob_t sets;
    int fds[16];

    begin_with(&r, "serial", text);
    assert_int_equal(glob(scratch_path("save/strata-*/set-*"), 0, NULL, &sets), 0);
    assert_true(sets.gl_pathc > 0 && sets.gl_pathc <= COUNT(fds));
    for (size_t i = 0; i < sets.gl_pathc; i++) {
        fds[i] = open(sets.gl_pathv[i], O_RDONLY | O_CLOEXEC);
        assert_int_equal(flock(fds[i], LOCK_SH), 0);
    }
    kept_log_begin(ST_LOG_WARN);
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.unlink", .result = -EIO});
    for (uint64_t step = 0; step < 2; step++) {
        assert_ok(run_train(&r, step, 1, NULL));
        assert_status(strata_engine_save(r.engine, NULL), STRATA_E_IO, "what the save fails with");
    }
    assert_true(st_fault_disarm() > 0);
    run_close(&r);
    kept_log_end();
    assert_int_equal(kept_log.count, 0);
    for (size_t i = 0; i < sets.gl_pathc; i++)
        close(fds[i]);
    globfree(&sets);
}

/* Fails where the newest checkpoint is not what the engine has. */
static void check_newest(struct run *r)
{
    char weights[33], state[33], saved_weights[33], saved_state[33];
    uint64_t damages = 1;

    assert_ok(strata_engine_digest(r->engine, weights, state));
    assert_ok(strata_verify(scratch_path("save"), NULL, &damages));
    assert_int_equal(damages, 0);
    assert_ok(strata_verify_digest(scratch_path("save"), NULL, saved_weights, saved_state));
    assert_string_equal(saved_weights, weights);
    assert_string_equal(saved_state, state);
}

/* No update has written what lies on the drive to another set than that of the save that failed. */
static void save_again_on_a_drive(const char *update)
{
    struct strata_saved saved = STRATA_SAVED_INIT;
    struct run r = {.dir = scratch_dir};
    char text[640];

    begin_with(&r, update, text);
    for (uint64_t step = 0; step < 3; step++) {
        assert_ok(run_train(&r, step, 1, NULL));
        for (uint64_t failures = 0; failures < step; failures++) {
            fail_once("commit.mkdir");
            assert_ok(strata_engine_save(r.engine, NULL));
            assert_status(strata_engine_saved(r.engine, true, &saved), STRATA_E_NOSPC, "a disk that is full for a while");
            assert_int_equal(st_fault_disarm(), 1);
        }
        assert_ok(strata_engine_save(r.engine, NULL));
        assert_ok(strata_engine_saved(r.engine, true, &saved));
        assert_int_equal(saved.steps, step + 1);
        check_newest(&r);
    }
    run_close(&r);
}

/* Files that are open; of them those that have no name. */
static uint32_t open_files(uint32_t *nameless)
{
    uint32_t count = 0;

    *nameless = 0;
    for (int fd = 0; fd < 256; fd++) {
        struct stat info;
        const bool is_file = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);

        count += is_file;
        *nameless += is_file && info.st_nlink == 0;
    }
    return count;
}

/* A run that goes back to its own checkpoint needs no more space than one that goes on. */
static void go_back(const char *update)
{
    struct strata_saved saved = STRATA_SAVED_INIT;
    struct strata_checkpoint *checkpoint;
    struct run r = {.dir = scratch_dir};
    uint32_t before, open, nameless;
    char text[640];

    begin_with(&r, update, text);
    open = open_files(&before);
    for (uint64_t step = 0; step < 9; step++) {
        assert_ok(run_train(&r, step, 1, NULL));
        assert_ok(strata_engine_save(r.engine, NULL));
        assert_ok(strata_engine_saved(r.engine, true, &saved));
        check_newest(&r);
        (void)open_files(&nameless);
        assert_int_equal(nameless, before);
        if (step % 4 != 2 && step != 8)
            continue;
        assert_ok(strata_checkpoint_open(&checkpoint, scratch_path("save")));
        assert_ok(strata_engine_resume(r.engine, checkpoint, NULL));
        strata_checkpoint_close(checkpoint);
    }
    assert_true(open_files(&nameless) > open);
    assert_ok(strata_engine_load(r.engine));
    assert_int_equal(open_files(&nameless), open);
    run_close(&r);
}

TEST_SETUP(a_run_that_goes_back_takes_no_other_space, scratch_create, scratch_remove)
{
    go_back("gated");
}

TEST_SETUP(nor_does_one_whose_updates_do_not_wait, scratch_create, scratch_remove)
{
    go_back("serial");
}

/* A save that fails since a sync does, and what becomes of it when it is made again at once. */
static void fail_to_sync(struct run *r, uint32_t after, const char *again)
{
    struct strata_saved saved = STRATA_SAVED_INIT;

    st_fault_arm(&(struct st_fault_spec){.site = "nvme.fsync", .after = after, .count = 1, .result = -EIO});
    assert_ok(strata_engine_save(r->engine, NULL));
    assert_status(strata_engine_saved(r->engine, true, &saved), STRATA_E_IO, "a drive that loses what it has");
    assert_int_equal(st_fault_disarm(), 1);
    assert_ok(strata_engine_save(r->engine, NULL));
    assert_status(strata_engine_saved(r->engine, true, &saved), STRATA_E_IO, "the same, asked again");
    assert_non_null(strstr(strata_last_error(), again));
}

/* A system that has failed to write its cache says so once: the next fsync is as if nothing had been. */
TEST_SETUP(a_sync_that_failed_is_not_tried_again, scratch_create, scratch_remove)
{
    struct strata_saved saved = STRATA_SAVED_INIT;
    struct run r = {.dir = scratch_dir};
    char text[640];

    begin(&r, text);
    assert_ok(run_train(&r, 0, 1, NULL));
    fail_to_sync(&r, 0, "what step 1 has written could not be made durable");
    assert_ok(run_train(&r, 1, 1, NULL));
    assert_ok(strata_engine_save(r.engine, NULL));
    assert_ok(strata_engine_saved(r.engine, true, &saved));
    check_newest(&r);
    run_close(&r);
}

/* They are written once. */
TEST_SETUP(frozen_weights_that_are_lost_are_in_no_checkpoint, scratch_create, scratch_remove)
{
    struct strata_saved saved = STRATA_SAVED_INIT;
    struct run r = {.dir = scratch_dir};
    char text[640];

    snprintf(text, sizeof(text), CONFIG(", \"freeze\": [\"*wte*\"], \"save\": \"%s\""), scratch_path("save"));
    r.text = text;
    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&r));
    assert_ok(run_train(&r, 0, 1, NULL));
    fail_to_sync(&r, 1, "the frozen weights could not be made durable");
    assert_ok(run_train(&r, 1, 1, NULL));
    assert_ok(strata_engine_save(r.engine, NULL));
    assert_status(strata_engine_saved(r.engine, true, &saved), STRATA_E_IO, "of a later step");
    assert_ok(strata_engine_load(r.engine)); /* writes them anew */
    assert_ok(run_train(&r, 0, 1, NULL));
    assert_ok(strata_engine_save(r.engine, NULL));
    assert_ok(strata_engine_saved(r.engine, true, &saved));
    check_newest(&r);
    run_close(&r);
}

TEST_SETUP(what_lies_on_a_drive_is_saved_again_with_the_rest, scratch_create, scratch_remove)
{
    save_again_on_a_drive("gated");
}

TEST_SETUP(so_it_is_where_updates_do_not_wait, scratch_create, scratch_remove)
{
    save_again_on_a_drive("serial");
}

/* The save that is under way ends before a run resumes, and with one checkpoint kept the other one goes: nothing else changes. */
TEST_SETUP(a_save_that_removes_what_would_be_resumed_leaves_the_run, scratch_create, scratch_remove)
{
    struct strata_engine_info info = STRATA_ENGINE_INFO_INIT;
    struct strata_saved saved = STRATA_SAVED_INIT;
    struct strata_checkpoint *ck;
    char text[640];
    struct run r = {.text = text};

    snprintf(text, sizeof(text), CONFIG(", \"update\": \"gated\", \"keep\": 1, \"save\": \"%s\""), scratch_path("save"));
    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&r));
    assert_ok(run_train(&r, 0, 1, NULL));
    assert_ok(strata_engine_save(r.engine, NULL));
    assert_ok(strata_engine_saved(r.engine, true, &saved));
    assert_ok(strata_checkpoint_open(&ck, scratch_path("save")));
    assert_ok(run_train(&r, 1, 1, NULL));
    assert_ok(strata_engine_save(r.engine, NULL));
    assert_ok(run_train(&r, 2, 1, NULL));
    assert_status(strata_engine_resume(r.engine, ck, NULL), STRATA_E_INPUT, "a checkpoint that has gone");
    assert_non_null(strstr(strata_last_error(), "step-00000001: was removed while it was read"));
    strata_checkpoint_close(ck);
    assert_ok(strata_engine_saved(r.engine, true, &saved));
    assert_int_equal(saved.steps, 2);
    assert_ok(run_train(&r, 3, 1, NULL));
    assert_ok(strata_engine_get_info(r.engine, &info));
    assert_int_equal(info.steps, 4);
    run_close(&r);
}

TEST_SETUP(a_full_disk_refuses_the_run_that_would_save, scratch_create, scratch_remove)
{
    static const char *const sites[] = {"run.save_dir", "store.mkdir", "owned.mkdir", "commit.keep"};
    struct strata_engine *engine = NULL;
    char text[640];
    struct run r = {0};

    begin(&r, text);
    strata_engine_destroy(r.engine);
    r.engine = NULL;
    for (size_t i = 0; i < COUNT(sites); i++) {
        fail_once(sites[i]);
        assert_status(strata_engine_create(&engine, r.plan, NULL), STRATA_E_NOFIT, sites[i]);
        assert_int_equal(st_fault_disarm(), 1);
        assert_null(engine);
    }
    run_close(&r);
    assert_int_equal(scratch_entries_with(scratch_dir, "save"), 0);
}

TEST_SETUP(a_whole_one_is_not_called_unmade, scratch_create, scratch_remove)
{
    uint64_t damages = 1;
    char text[640];
    struct run r = {0};

    begin(&r, text);
    assert_ok(run_train(&r, 0, 1, NULL));
    scratch_put("save/latest/mine", ""); /* no file can have the name */
    assert_ok(strata_engine_save(r.engine, NULL));
    kept_log_begin(ST_LOG_WARN);
    run_close(&r);
    kept_log_end();
    assert_int_equal(kept_log.count, 1);
    assert_non_null(strstr(kept_log.last, "the last checkpoint is whole, but what follows it has failed: "));
    assert_ok(strata_verify(scratch_path("save/step-00000001"), NULL, &damages));
    assert_int_equal(damages, 0);
}

/* A Hugging Face directory with weights of nano's. */
static void put_model(const char *dir)
{
    struct strata_export *out = NULL;
    struct run r = {.text = CONFIG("")};

    assert_ok(run_open(&r, NULL));
    assert_ok(run_start(&r));
    assert_ok(strata_export_open(&out, r.model, dir, NULL));
    assert_ok(strata_engine_export(r.engine, out));
    run_close(&r);
}

/* The run has read all of it, and what a checkpoint has of it is what it was when the run began. */
TEST_SETUP(the_models_directory_may_go, scratch_create, scratch_remove)
{
    struct strata_saved saved = STRATA_SAVED_INIT;
    uint64_t damages = 1;
    char text[640], dir[128];
    struct run r = {.preset = dir};

    snprintf(dir, sizeof(dir), "%s", scratch_path("model"));
    put_model(dir);
    scratch_put("model/special_tokens_map.json", "{}");
    begin(&r, text);
    scratch_put("model/special_tokens_map.json", "{\"another\": 1}");
    scratch_put("model/added_tokens.json", "{}");
    assert_ok(run_train(&r, 0, 1, NULL));
    assert_ok(strata_engine_save(r.engine, NULL));
    assert_ok(strata_engine_saved(r.engine, true, &saved));
    scratch_holds("save/step-00000001/model/special_tokens_map.json", "{}");
    assert_int_equal(scratch_entries(scratch_path("save/step-00000001/model"), "special_tokens_map.json"), 2);
    assert_int_equal(rename(dir, scratch_path("elsewhere")), 0);
    assert_ok(run_train(&r, 1, 1, NULL));
    assert_ok(strata_engine_save(r.engine, NULL));
    assert_ok(strata_engine_saved(r.engine, true, &saved));
    assert_int_equal(saved.steps, 2);
    scratch_holds("save/step-00000002/model/special_tokens_map.json", "{}");
    run_close(&r);
    assert_ok(strata_verify(scratch_path("save"), NULL, &damages));
    assert_int_equal(damages, 0);
}

/* tests/api/test_misuse.c - calls at the wrong time: while another is in progress, in a child of fork(), on an engine that has
 * ended, and again after an export that failed. */
#include "tests/api/handles_fixture.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TOKENS        500u
#define CHILD_SECONDS 30u /* a child that hangs is killed */

static int32_t ids[4 * RUN_SEQ];

static void assert_sentence(const char *part)
{
    if (strstr(strata_last_error(), part) == NULL)
        fail_msg("\"%s\" lacks \"%s\"", strata_last_error(), part);
}

/* --- one call at a time --- */

struct intruder {
    struct run run;
    uint32_t calls;
};

static void assert_busy(strata_status st, const char *call)
{
    assert_status(st, STRATA_E_BUSY, call);
    assert_sentence("another call on this engine is in progress");
}

/* Every call but a cancel. */
static void *intrude(void *ctx)
{
    struct strata_engine_info info = STRATA_ENGINE_INFO_INIT;
    struct strata_eval eval = STRATA_EVAL_INIT;
    struct strata_export *out = NULL;
    struct intruder *in = ctx;
    struct run *r = &in->run;
    char hex[33], state[33];
    float logits[1];
    double loss;
    uint64_t seen;

    assert_busy(strata_engine_load(r->engine), "load");
    assert_busy(strata_engine_step(r->engine, ids, ids, NULL, NULL), "step");
    assert_busy(strata_engine_flush(r->engine), "flush");
    assert_busy(strata_engine_end_training(r->engine), "end_training");
    assert_busy(strata_engine_eval(r->engine, ids, ids, NULL, &loss, &seen), "eval");
    assert_busy(strata_engine_eval_data(r->engine, r->data, &eval), "eval_data");
    assert_busy(strata_engine_forward(r->engine, ids, 1, 0, logits), "forward");
    assert_busy(strata_engine_set_lr(r->engine, 1e-3), "set_lr");
    assert_busy(strata_engine_check(r->engine), "check");
    assert_busy(strata_engine_digest(r->engine, hex, state), "digest");
    assert_busy(strata_engine_get_info(r->engine, &info), "get_info");
    assert_ok(strata_export_open(&out, r->model, scratch_path("out"), NULL));
    assert_busy(strata_engine_export(r->engine, out), "export");
    strata_export_abort(out); /* it was not taken */
    strata_engine_destroy(r->engine);
    in->calls++;
    return NULL;
}

/* From the callback's own thread, and from another one. */
static bool intrudes(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct intruder *in = ctx;
    pthread_t thread;

    (void)total;
    if (strcmp(what, "evaluating") != 0 || done > 0)
        return true;
    intrude(in);
    assert_int_equal(pthread_create(&thread, NULL, intrude, in), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    return true;
}

TEST_SETUP(one_call_at_a_time, scratch_create, scratch_remove)
{
    struct intruder in = {.run = {.dir = scratch_dir}};
    struct strata_eval eval = STRATA_EVAL_INIT;

    in.run.progress = intrudes;
    in.run.progress_ctx = &in;
    assert_ok(run_open(&in.run, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&in.run));
    strata_log_configure(NULL, NULL, STRATA_LOG_NONE); /* of the calls to destroy it */
    assert_ok(strata_engine_eval_data(in.run.engine, in.run.data, &eval));
    strata_log_configure(NULL, NULL, STRATA_LOG_WARN);
    assert_int_equal(in.calls, 2);
    assert_ok(run_train(&in.run, 0, 1, NULL));
    run_close(&in.run);
    assert_int_equal(scratch_entries(scratch_dir, "a.bin"), 0);
}

/* --- a child of fork() --- */

/* Runs `child` in a child process; fails where it fails, hangs or crashes. */
static void in_child(void (*child)(struct run *r, struct strata_export *out), struct run *r, struct strata_export *out)
{
    int status = 0;
    pid_t pid;

    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(CHILD_SECONDS);
        child(r, out);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("the child ended with wait status %#x", (unsigned)status);
}

/* The child's assertion: cmocka's would go on with the parent's tests. */
static void child_wants(bool fine, int code)
{
    if (!fine)
        _exit(code);
}

static bool is_anothers(strata_status st)
{
    return st == STRATA_E_INVAL && strstr(strata_last_error(), "was created by process") != NULL;
}

static void call_in_child(struct run *r, struct strata_export *out)
{
    struct strata_engine_info info = STRATA_ENGINE_INFO_INIT;
    struct strata_eval eval = STRATA_EVAL_INIT;
    char hex[33], state[33];

    child_wants(is_anothers(strata_engine_step(r->engine, ids, ids, NULL, NULL)), 1);
    child_wants(is_anothers(strata_engine_digest(r->engine, hex, state)), 2);
    child_wants(is_anothers(strata_engine_load(r->engine)), 3);
    child_wants(is_anothers(strata_engine_eval_data(r->engine, r->data, &eval)), 4);
    child_wants(is_anothers(strata_engine_check(r->engine)), 5);
    child_wants(is_anothers(strata_engine_get_info(r->engine, &info)), 6);
    (void)out;
    run_close(r); /* the parent's handles: all of them */
}

TEST_SETUP(a_child_leaves_its_parents_engine_alone, scratch_create, scratch_remove)
{
    struct run r = {.dir = scratch_dir};
    uint32_t files;

    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&r));
    assert_ok(run_train(&r, 0, 1, NULL));
    files = scratch_entries(scratch_dir, NULL);
    in_child(call_in_child, &r, NULL);
    assert_int_equal(scratch_entries(scratch_dir, NULL), files); /* its swap files */
    assert_ok(run_train(&r, 1, 2, NULL));
    run_close(&r);
    assert_int_equal(scratch_entries_with(scratch_dir, "strata"), 0);
}

static void drop_in_child(struct run *r, struct strata_export *out)
{
    (void)r;
    strata_export_abort(out);
    strata_abandon();
}

TEST_SETUP(a_child_leaves_its_parents_files_alone, scratch_create, scratch_remove)
{
    struct run r = {.dir = scratch_dir};
    struct strata_export *out = NULL;
    char weights[33], written[33], state_digest[33];
    uint32_t files;

    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(strata_export_open(&out, r.model, scratch_path("out"), NULL));
    assert_ok(run_start(&r));
    assert_ok(run_train(&r, 0, 1, NULL));
    files = scratch_entries(scratch_dir, NULL);
    in_child(drop_in_child, &r, out);
    assert_int_equal(scratch_entries(scratch_dir, NULL), files);
    assert_ok(run_train(&r, 1, 1, NULL));
    assert_ok(strata_engine_digest(r.engine, weights, state_digest));
    assert_ok(strata_engine_export(r.engine, out));
    assert_ok(strata_directory_digest(scratch_path("out"), written));
    assert_string_equal(weights, written);
    run_close(&r);
}

/* A child that lives on has the parent's descriptors, so closing those does not end a lock; nor does the child end it. */
TEST_SETUP(a_child_that_lives_on_keeps_no_directory, scratch_create, scratch_remove)
{
    const struct strata_export_opts replace = {.opts_size = sizeof(replace), .overwrite = true};
    struct run r = {0};
    struct strata_export *out = NULL, *second = NULL;
    int pipe_fds[2], status = 0;
    char one;
    pid_t pid;

    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(strata_export_open(&out, r.model, scratch_path("out"), NULL));
    assert_ok(run_start(&r));
    in_child(drop_in_child, &r, out);
    assert_status(strata_export_open(&second, r.model, scratch_path("out"), &replace), STRATA_E_INPUT, "the first is open still");
    assert_int_equal(pipe(pipe_fds), 0);
    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) { /* lives until the parent closes its end */
        close(pipe_fds[1]);
        _exit(read(pipe_fds[0], &one, 1) == 0 ? 0 : 1);
    }
    close(pipe_fds[0]);
    assert_ok(strata_engine_export(r.engine, out));
    for (int again = 0; again < 2; again++) {
        assert_ok(strata_export_open(&out, r.model, scratch_path("out"), &replace));
        assert_ok(strata_engine_export(r.engine, out));
    }
    close(pipe_fds[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    run_close(&r);
}

/* --- an export whose directory has gone --- */

TEST_SETUP(an_export_that_failed_is_tried_again, scratch_create, scratch_remove)
{
    struct strata_export *out = NULL;
    char weights[33], written[33], state_digest[33], command[320];
    struct run r = {0};

    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(strata_export_open(&out, r.model, scratch_path("out"), NULL));
    assert_ok(run_start(&r));
    assert_ok(run_train(&r, 0, 1, NULL));
    assert_ok(strata_engine_digest(r.engine, weights, state_digest));
    snprintf(command, sizeof(command), "rm -rf %s", scratch_path("out"));
    assert_int_equal(system(command), 0);
    assert_status(strata_engine_export(r.engine, out), STRATA_E_IO, "the directory is gone");
    assert_sentence("the trained weights are lost");
    assert_null(strstr(strata_last_error(), "are kept as"));
    assert_int_equal(scratch_entries(scratch_dir, "a.bin"), 0);
    assert_ok(strata_export_open(&out, r.model, scratch_path("other"), NULL));
    assert_ok(strata_engine_export(r.engine, out));
    assert_ok(strata_directory_digest(scratch_path("other"), written));
    assert_string_equal(weights, written);
    run_close(&r);
}

/* --- an engine that has ended --- */

static void assert_ended(struct run *r, strata_status with, const char *sentence)
{
    struct strata_engine_info info = STRATA_ENGINE_INFO_INIT;
    char hex[33], state[33];

    assert_status(strata_engine_step(r->engine, ids, ids, NULL, NULL), with, "step");
    assert_sentence(sentence);
    assert_status(strata_engine_check(r->engine), with, "check");
    assert_sentence(sentence);
    assert_status(strata_engine_set_lr(r->engine, 1e-3), with, "set_lr");
    assert_status(strata_engine_flush(r->engine), with, "flush");
    assert_status(strata_engine_digest(r->engine, hex, state), with, "digest");
    assert_status(strata_engine_load(r->engine), with, "load");
    assert_sentence(sentence);
    assert_ok(strata_engine_get_info(r->engine, &info));
}

TEST_SETUP(an_engine_that_diverged_has_ended, scratch_create, scratch_remove)
{
    struct run r = {.text = "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2}"};
    strata_status st = STRATA_OK;

    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&r));
    assert_ok(strata_engine_set_lr(r.engine, 1e3));
    for (uint64_t step = 0; step < 100 && st == STRATA_OK; step++)
        st = run_train(&r, step, 1, NULL);
    assert_status(st, STRATA_E_NUMERICS, "steps with a learning rate of 1000");
    assert_ended(&r, STRATA_E_NUMERICS, "the engine stopped after an earlier error");
    run_close(&r);
}

static bool cancels_loading(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct run *r = ctx;

    (void)total;
    if (strcmp(what, "making initial weights") == 0 && done > 0)
        strata_engine_cancel(r->engine);
    return true;
}

TEST_SETUP(a_load_that_was_cancelled_has_ended_it, scratch_create, scratch_remove)
{
    struct run r = {.progress = cancels_loading};

    r.progress_ctx = &r;
    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_status(run_start(&r), STRATA_E_CANCELLED, "load");
    assert_ended(&r, STRATA_E_CANCELLED, "cancelled");
    run_close(&r);
}

/* --- the learning rate --- */

TEST_SETUP(a_new_run_has_the_schedules_rate, scratch_create, scratch_remove)
{
    struct strata_step step = STRATA_STEP_INIT;
    struct run r = {0}, evaluates = {.use = STRATA_USE_EVAL};

    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(strata_plan_make(&r.plan, r.model, NULL));
    assert_ok(strata_engine_create(&r.engine, r.plan, NULL));
    assert_refused(strata_engine_set_lr(r.engine, 0.5e-3), "strata_engine_load() comes first");
    assert_ok(strata_engine_load(r.engine));
    assert_ok(strata_engine_set_lr(r.engine, 0.5e-3));
    assert_ok(run_train(&r, 0, 1, &step));
    assert_true(step.lr == 0.5e-3);
    assert_ok(strata_engine_load(r.engine));
    assert_ok(run_train(&r, 0, 1, &step));
    assert_true(step.lr == 1e-3);
    assert_ok(run_open(&evaluates, NULL));
    assert_ok(run_start(&evaluates));
    assert_refused(strata_engine_set_lr(evaluates.engine, 0.5e-3), "another use than training");
    run_close(&r);
    run_close(&evaluates);
}

/* A list whose count says more than there is. */
TEST(drives_that_are_not_there_are_refused)
{
    const char *const drives[] = {"7GB/s:2TB", NULL};
    struct strata_machine_opts opts = STRATA_MACHINE_OPTS_INIT;
    struct strata_machine *machine = NULL;

    opts.gpu = "4090";
    opts.drive_count = 1;
    assert_refused(strata_machine_open(&machine, &opts), "strata_machine_open: drives is NULL");
    opts.drives = drives;
    opts.drive_count = 2;
    assert_refused(strata_machine_open(&machine, &opts), "strata_machine_open: one of drives is NULL");
    opts.drive_count = 1;
    assert_ok(strata_machine_open(&machine, &opts));
    strata_machine_close(machine);
}

TEST_MAIN(argc, argv)
{
    strata_log_configure(NULL, NULL, STRATA_LOG_WARN);
    return test_run(NULL, NULL);
}

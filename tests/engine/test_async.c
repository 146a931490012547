/* test_async - failures on a device with queues of its own, while disk, copies, compute and updates all run at once.
 *
 * An error of the disk, a flipped byte, a failed task of the device, Ctrl-C: each ends the run with its own status once all that
 * was under way is over, the engine says so to every later call, and no file is left. */
#include "sound.h"
#include "tests/common/test.h"

#include "core/base/fault.h"
#include "tests/common/sample.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

/* --- whole runs --- */

TEST(every_failed_completion_is_reported)
{
    sound_completions(true, sample_is_all() ? 24 : 8);
}

/* Whoever looks first at what a read brought must check it: an update itself, before an upload the host thread. */
TEST(every_flipped_byte_is_found)
{
    assert_true(sound_flips(true) > 0);
}

/* No update checks what is frozen in a page, which is uploaded after it: the host thread must, on arrival, since it alone has the
 * workers. */
TEST(pages_frozen_in_part_are_checked_on_arrival)
{
    static const struct {
        enum rig_adapters adapters;
        const char *freeze;
    } parts[] = {{RIG_LORA, NULL}, {RIG_LORA_NF4, NULL}, {RIG_NO_ADAPTERS, "*.bias"}};
    static const struct sound_walk walk = {
        .site = "engine.corrupt_weight", .result = -1, .dense = 4, .expected = STRATA_E_CORRUPT, .fatal = true};

    for (size_t i = 0; i < 2 * sizeof(parts) / sizeof(parts[0]); i++) {
        struct rig_cell cell = sound_cell("fake", true);
        struct sound s;

        cell.adapters = parts[i / 2].adapters;
        cell.freeze = parts[i / 2].freeze;
        cell.device = i % 2 == 0 ? RIG_SMALLEST : RIG_ALL;
        sound_begin(&s, &cell, SOUND_STEPS);
        (void)sound_walk(&s, &walk);
        sound_again(&s);
        sound_end(&s);
    }
}

static void is_a_task(const char *why, void *ctx)
{
    (void)ctx;
    assert_non_null(strstr(why, "paced device: a task failed"));
}

TEST(every_failed_task_is_reported)
{
    static const struct sound_walk walk = {
        .site = "paced.task", .result = -EIO, .dense = 24, .expected = STRATA_E_IO, .fatal = true, .failed = is_a_task};
    struct sound s;

    sound_begin_with(&s, "fake", true);
    print_message("%u failed runs\n", sound_walk(&s, &walk));
    sound_again(&s);
    sound_end(&s);
}

TEST(every_single_failure_is_clean)
{
    sound_single_failures(true);
}

/* --- one engine, step by step --- */

static void start(struct rig_engine *rig, const struct sound *s)
{
    assert_int_equal(rig_engine_start(rig, s->model, s->plan, &s->cell, s->dir), STRATA_OK);
}

static strata_status step(struct rig_engine *rig, const struct rig_cell *cell, uint32_t number)
{
    int32_t tokens[RIG_TOKENS_MAX], targets[RIG_TOKENS_MAX];
    struct st_step_result result;

    rig_tokens(tokens, targets, cell, number);
    return st_engine_step(rig->engine, tokens, targets, NULL, &result);
}

/* After an error every call returns it, with its cause. */
static void stays_stopped(struct rig_engine *rig, const struct rig_cell *cell, strata_status why, const char *cause)
{
    char weights[33], state[33];

    assert_int_equal(step(rig, cell, 0), why);
    assert_non_null(strstr(strata_last_error(), "the engine stopped after an earlier error"));
    assert_non_null(strstr(strata_last_error(), cause));
    assert_true(st_engine_flush(rig->engine, NULL) != STRATA_OK);
    assert_true(st_engine_digest(rig->engine, weights, state) != STRATA_OK);
}

TEST(an_engine_that_failed_stays_stopped)
{
    static const struct {
        struct st_fault_spec fault;
        strata_status status;
        const char *cause;
    } cases[] = {
        {{.site = "nvme.cqe", .after = 30, .count = 1, .result = -EIO}, STRATA_E_IO, "Input/output error"},
        {{.site = "engine.corrupt_state", .after = 30, .count = 1, .result = -1}, STRATA_E_CORRUPT, "checksum mismatch"},
        {{.site = "paced.task", .after = 100, .count = 1, .result = -EIO}, STRATA_E_IO, "a task failed"},
        {{.site = "paced.task", .after = 0, .count = 0, .result = -ENOMEM}, STRATA_E_NOMEM, "a task failed"},
    };
    struct sound s;

    sound_begin_with(&s, "fake", true);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig_engine rig;
        strata_status st = STRATA_OK;

        start(&rig, &s);
        st_fault_arm(&cases[i].fault);
        for (uint32_t n = 0; st == STRATA_OK && n < 100; n++)
            st = step(&rig, &s.cell, n % SOUND_STEPS);
        assert_true(st_fault_disarm() > 0);
        assert_int_equal(st, cases[i].status);
        assert_non_null(strstr(strata_last_error(), cases[i].cause));
        stays_stopped(&rig, &s.cell, cases[i].status, cases[i].cause);
        rig_engine_stop(&rig);
        sound_is_empty(&s);
    }
    sound_again(&s);
    sound_end(&s);
}

/* Steps until somebody else ends them. */
struct endless {
    struct rig_engine rig;
    atomic_uint begun; /* steps; released by the caller, acquired by the canceller */
    uint32_t cancel_in;
};

static void *cancel_main(void *arg)
{
    struct endless *e = arg;

    while (atomic_load_explicit(&e->begun, memory_order_acquire) < e->cancel_in)
        sched_yield();
    st_engine_cancel(e->rig.engine);
    return NULL;
}

/* Ends with the status of the step that was cancelled. */
static strata_status run_until_cancelled(const struct sound *s, struct endless *e)
{
    strata_status st = STRATA_OK;
    pthread_t canceller;

    assert_int_equal(pthread_create(&canceller, NULL, cancel_main, e), 0);
    while (st == STRATA_OK) {
        atomic_fetch_add_explicit(&e->begun, 1, memory_order_release);
        st = step(&e->rig, &s->cell, 0);
    }
    assert_int_equal(pthread_join(canceller, NULL), 0);
    return st;
}

TEST(another_thread_can_cancel)
{
    for (size_t i = 0; i < SOUND_METHODS; i++) {
        struct sound s;

        sound_begin_with(&s, sound_methods[i], true);
        for (uint32_t cancel_in = 0; cancel_in < 6; cancel_in++) {
            struct endless e = {.cancel_in = cancel_in};

            start(&e.rig, &s);
            assert_int_equal(run_until_cancelled(&s, &e), STRATA_E_CANCELLED);
            assert_string_equal(strata_last_error(), "cancelled");
            stays_stopped(&e.rig, &s.cell, STRATA_E_CANCELLED, "cancelled");
            rig_engine_stop(&e.rig);
            sound_is_empty(&s);
        }
        sound_again(&s);
        sound_end(&s);
    }
}

/* Whichever is seen first is the one that is reported, with its own sentence: tasks that fail while a cancelled step drains
 * change nothing. */
TEST(a_cancelled_step_may_fail_as_it_drains)
{
    uint32_t cancelled = 0;
    struct sound s;

    sound_begin_with(&s, "fake", true);
    for (uint32_t after = 0; after < 200; after += 5) {
        struct endless e = {.cancel_in = 1};
        strata_status st;

        start(&e.rig, &s);
        st_fault_arm(&(struct st_fault_spec){.site = "paced.task", .after = after, .result = -EIO});
        st = run_until_cancelled(&s, &e);
        (void)st_fault_disarm();
        assert_true(st == STRATA_E_CANCELLED || st == STRATA_E_IO);
        stays_stopped(&e.rig, &s.cell, st, st == STRATA_E_IO ? "a task failed" : "cancelled");
        rig_engine_stop(&e.rig);
        sound_is_empty(&s);
        cancelled += st == STRATA_E_CANCELLED;
    }
    print_message("%u of 40 cancelled before a task failed\n", cancelled);
    sound_end(&s);
}

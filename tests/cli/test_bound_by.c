/* tests/cli/test_bound_by.c - which resource a run is said to be bound by, and how memory pressure shows. */
#include "api/metrics.h"
#include "cli/report/bound_by.h"
#include "cli/report/progress.h"
#include "core/base/log.h"
#include "core/trace/metrics_put.h"
#include "tests/common/test.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A step of 1000 ms with so much in forward and backward and the rest in `other`. */
static struct strata_metrics step_of(double forward, double backward)
{
    struct strata_metrics step = {.stalled_by = STRATA_LANE_COUNT};

    step.value[STRATA_METRIC_STEP_SECONDS] = 1;
    step.value[STRATA_METRIC_MS_FORWARD] = forward;
    step.value[STRATA_METRIC_MS_BACKWARD] = backward;
    step.value[STRATA_METRIC_MS_OTHER] = 1000 - forward - backward;
    return step;
}

static void stall(struct strata_metrics *step, enum strata_lane lane, double ms)
{
    step->value[STRATA_METRIC_STALL_MS + lane] += ms;
    step->value[STRATA_METRIC_MS_STALL] += ms;
    step->value[STRATA_METRIC_MS_OTHER] -= ms;
}

static void assert_bound(const struct strata_metrics *step, double memory_fraction, const char *resource, double fraction,
                         const char *text)
{
    struct cli_medians *m = NULL;
    struct cli_bound_by bound;

    assert_int_equal(cli_medians_create(&m), STRATA_OK);
    cli_medians_add(m, step);
    cli_medians_add(m, step);
    cli_medians_add(m, step);
    cli_bound_by(&bound, m, memory_fraction);
    assert_string_equal(bound.resource, resource);
    assert_true(fabs(bound.fraction - fraction) < 1e-9);
    assert_string_equal(bound.text, text);
    free(m);
}

/* A lower bound that a step beats is none; a few per cent are the scatter of rates. */
TEST(a_bound_that_is_beaten_does_not_hold)
{
    assert_true(cli_bound_holds(1.5, 1) && cli_bound_holds(1, 1) && cli_bound_holds(0.96, 1));
    assert_false(cli_bound_holds(0.94, 1));
    assert_false(cli_bound_holds(0.36, 1));
    assert_true(cli_bound_holds(1, NAN) && cli_bound_holds(NAN, 1));
}

/* Each figure of a step comes from its own member of the result, and none is left out. */
TEST(a_step_has_every_figure)
{
    struct strata_plan_info plan = STRATA_PLAN_INFO_INIT;
    struct strata_step r = STRATA_STEP_INIT;
    double want[STRATA_METRIC_COUNT];
    struct strata_metrics got;

    plan.device_flops = 100;
    plan.token_flops = 5;
    plan.hardware_bound_seconds = 7;
    plan.schedule_bound_seconds = 0; /* not known */
    r.loss = want[STRATA_METRIC_LOSS] = 1;
    r.aux_loss = want[STRATA_METRIC_AUX_LOSS] = 1.5;
    r.grad_norm = want[STRATA_METRIC_GRAD_NORM] = 2;
    r.lr = want[STRATA_METRIC_LR] = 3;
    r.loss_scale = want[STRATA_METRIC_LOSS_SCALE] = 4;
    r.skipped = true;
    want[STRATA_METRIC_SKIPPED] = 1;
    r.weights_overflowed = 5, want[STRATA_METRIC_WEIGHTS_OVERFLOWED] = 5;
    r.tokens = 600, want[STRATA_METRIC_TOKENS] = 600;
    r.seconds = want[STRATA_METRIC_STEP_SECONDS] = 20;
    want[STRATA_METRIC_TOKENS_PER_SECOND] = 30;
    want[STRATA_METRIC_MFU] = 1.5;
    want[STRATA_METRIC_HARDWARE_BOUND] = 7;
    want[STRATA_METRIC_STEP] = 8;
    want[STRATA_METRIC_TOKENS_TOTAL] = 9;
    want[STRATA_METRIC_LOSS_MEAN] = want[STRATA_METRIC_EPOCH] = want[STRATA_METRIC_BITS_PER_BYTE] =
        want[STRATA_METRIC_SCHEDULE_BOUND] = want[STRATA_METRIC_EVAL_LOSS] = want[STRATA_METRIC_EVAL_BITS_PER_BYTE] = NAN;
    r.forward_ms = want[STRATA_METRIC_MS_FORWARD] = 11;
    r.backward_ms = want[STRATA_METRIC_MS_BACKWARD] = 12;
    r.stall_ms = want[STRATA_METRIC_MS_STALL] = 13;
    r.other_ms = want[STRATA_METRIC_MS_OTHER] = 14;
    for (uint32_t i = 0; i < STRATA_LANE_COUNT; i++) {
        r.busy_ms[i] = want[STRATA_METRIC_BUSY_MS + i] = 100 + i;
        r.lane_stall_ms[i] = want[STRATA_METRIC_STALL_MS + i] = 200 + i;
    }
    r.upload_bytes = 15, want[STRATA_METRIC_UPLOAD] = 15;
    r.download_bytes = 16, want[STRATA_METRIC_DOWNLOAD] = 16;
    r.read_bytes = 17, want[STRATA_METRIC_READ] = 17;
    r.write_bytes = 18, want[STRATA_METRIC_WRITE] = 18;
    r.comm_bytes = 19, want[STRATA_METRIC_COMM] = 19;
    plan.early_pages = 3;
    r.early_made = r.early_redone = true;
    want[STRATA_METRIC_EARLY_MADE] = want[STRATA_METRIC_EARLY_REDONE] = 1;
    want[STRATA_METRIC_EARLY_KEPT] = 0;
    r.redone_bytes = 20, want[STRATA_METRIC_REDONE_BYTES] = 20;
    r.wasted_bytes = 21, want[STRATA_METRIC_WASTED_BYTES] = 21;
    for (int t = 0; t < STRATA_TIER_COUNT; t++) {
        plan.needed_bytes[t] = 300u + (unsigned)t;
        want[STRATA_METRIC_RESIDENT + t] = 300 + t;
    }
    for (uint32_t lane = 0; lane <= STRATA_LANE_COUNT; lane++) {
        memset(&got, 0xff, sizeof(got));
        r.stalled_by = lane;
        st_metrics_fill(&got, &plan, NULL, &r, 8, 9);
        assert_int_equal(got.stalled_by, lane < STRATA_LANE_COUNT ? lane : STRATA_LANE_COUNT);
    }
    for (uint32_t i = 0; i < STRATA_METRIC_MAJOR_FAULTS; i++)
        if (isnan(want[i]) ? !isnan(got.value[i]) : got.value[i] != want[i])
            fail_msg("column %u is %g, not %g", i, got.value[i], want[i]);
    plan.early_pages = 0;
    st_metrics_fill(&got, &plan, NULL, &r, 8, 9);
    for (uint32_t i = STRATA_METRIC_EARLY_MADE; i <= STRATA_METRIC_WASTED_BYTES; i++)
        assert_true(isnan(got.value[i]));
}

TEST(nothing_ran)
{
    struct cli_medians *m = NULL;
    struct cli_bound_by bound;

    assert_int_equal(cli_medians_create(&m), STRATA_OK);
    cli_bound_by(&bound, m, NAN);
    assert_null(bound.resource);
    assert_true(isnan(bound.fraction));
    assert_string_equal(bound.text, "");
    free(m);
}

/* Medians and sums of steps that took 100, 1, 2, 3, ... seconds: the first counts only while it is alone. */
TEST(the_first_step_warms_up)
{
    struct cli_medians *m = NULL;

    assert_int_equal(cli_medians_create(&m), STRATA_OK);
    for (int i = 0; i < 6; i++) {
        static const double medians[] = {100, 1, 1.5, 2, 2.5, 3};
        struct strata_metrics step = step_of(300, 600);

        step.value[STRATA_METRIC_STEP_SECONDS] = i == 0 ? 100 : i;
        step.value[STRATA_METRIC_SKIPPED] = i % 2 == 0;
        cli_medians_add(m, &step);
        assert_true(cli_medians_get(m, STRATA_METRIC_STEP_SECONDS) == medians[i]);
        assert_true(m->sum[STRATA_METRIC_STEP_SECONDS] == (i == 0 ? 100 : i * (i + 1) / 2));
        assert_true(m->last[STRATA_METRIC_STEP_SECONDS] == step.value[STRATA_METRIC_STEP_SECONDS]);
    }
    assert_true(m->steps == 6 && m->skipped == 3); /* these count every step */
    free(m);
}

/* Beyond CLI_SAMPLES_MAX steps every second sample goes, then every fourth: those that stay are spread over the whole run. */
TEST(long_runs_are_thinned_out_evenly)
{
    struct cli_medians *m = NULL;

    assert_int_equal(cli_medians_create(&m), STRATA_OK);
    for (uint32_t i = 0; i <= 8 * CLI_SAMPLES_MAX; i++) { /* the first counts only while it is alone */
        struct strata_metrics step = step_of(300, 600);

        step.value[STRATA_METRIC_STEP_SECONDS] = i;
        cli_medians_add(m, &step);
        if (i == 0)
            continue;
        assert_true(m->samples[STRATA_METRIC_STEP_SECONDS][0] == 1);
        assert_true(m->count > (i < CLI_SAMPLES_MAX ? i - 1 : CLI_SAMPLES_MAX / 2 - 1) && m->count <= CLI_SAMPLES_MAX);
        for (uint32_t k = 1; k < m->count; k++)
            assert_true(m->samples[STRATA_METRIC_STEP_SECONDS][k] == (double)(1 + k * m->stride));
        assert_true(i - m->samples[STRATA_METRIC_STEP_SECONDS][m->count - 1] < (double)m->stride);
    }
    assert_int_equal(m->stride, 8);
    free(m);
}

TEST(the_largest_is_named)
{
    struct strata_metrics step = step_of(300, 600);

    assert_bound(&step, 0, "compute", 0.9, "compute: 90 % of the step went into forward and backward");
    step = step_of(100, 200);
    stall(&step, STRATA_LANE_READ_STATE, 620);
    assert_bound(&step, NAN, "nvme read", 0.62,
                 "nvme read: 62 % of the step waited for read_state; then compute: 30 % of the step went into forward and "
                 "backward");
    step = step_of(100, 200);
    stall(&step, STRATA_LANE_READ_STATE, 310);
    stall(&step, STRATA_LANE_READ_WEIGHT, 310);
    stall(&step, STRATA_LANE_WRITE, 40);
    assert_bound(&step, NAN, "nvme read", 0.62,
                 "nvme read: 62 % of the step waited for read_state, read_weight; then compute: 30 % of the step went into "
                 "forward and backward");
}

/* What is neither forward, backward nor a stall is shared out as update and copies were busy. */
TEST(other_time_has_a_name)
{
    struct strata_metrics step = step_of(100, 100);

    step.value[STRATA_METRIC_BUSY_MS + STRATA_LANE_UPDATE] = 600;
    step.value[STRATA_METRIC_BUSY_MS + STRATA_LANE_UPLOAD] = 200;
    assert_bound(&step, 0, "update", 0.6,
                 "update: 60 % of the step went into update; then compute: 20 % of the step went into forward and backward");
}

/* By the four lanes that may run in it, and by no others. */
TEST(other_time_is_shared_out_by_four_lanes)
{
    static const struct {
        enum strata_lane lane;
        double busy;
    } own[] = {
        {STRATA_LANE_UPDATE, 100}, {STRATA_LANE_UPDATE_DEVICE, 300}, {STRATA_LANE_UPLOAD, 200}, {STRATA_LANE_DOWNLOAD, 400}};
    struct strata_metrics step = step_of(100, 150);

    for (int lane = 0; lane < STRATA_LANE_COUNT; lane++)
        step.value[STRATA_METRIC_BUSY_MS + lane] = 7000 + lane; /* others run beside the step */
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        step.value[STRATA_METRIC_BUSY_MS + own[i].lane] = own[i].busy;
    assert_bound(&step, 0, "update", 0.75 * 0.4,
                 "update: 30 % of the step went into update; then download: 30 % of the step went into download");
    step.value[STRATA_METRIC_BUSY_MS + STRATA_LANE_DOWNLOAD] = 0;
    assert_bound(&step, 0, "update", 0.5,
                 "update: 50 % of the step went into update; then compute: 25 % of the step went into forward and backward");
    step.value[STRATA_METRIC_BUSY_MS + STRATA_LANE_UPLOAD] = 1600;
    assert_bound(&step, 0, "upload", 0.6,
                 "upload: 60 % of the step went into upload; then compute: 25 % of the step went into forward and backward");
}

TEST(every_lane_has_a_resource)
{
    for (int lane = 0; lane < STRATA_LANE_COUNT; lane++) {
        struct strata_metrics step = step_of(0, 100);
        struct cli_medians *m = NULL;
        struct cli_bound_by bound;

        stall(&step, (enum strata_lane)lane, 800);
        assert_int_equal(cli_medians_create(&m), STRATA_OK);
        cli_medians_add(m, &step);
        cli_bound_by(&bound, m, 0);
        if (lane == STRATA_LANE_READ_ACTIVATION || lane == STRATA_LANE_WRITE)
            assert_string_equal(bound.resource, lane == STRATA_LANE_WRITE ? "nvme write" : "nvme read");
        assert_non_null(strstr(bound.text, strata_lane_name((uint32_t)lane)));
        free(m);
    }
}

TEST(memory_lies_inside_the_others_time)
{
    const struct strata_metrics step = step_of(300, 600);

    assert_bound(&step, 0.44, "compute", 0.9, "compute: 90 % of the step went into forward and backward");
    assert_bound(&step, 0.46, "memory pressure", 0.46, "memory pressure: 46 % of the time waiting for memory");
}

/* --- what a person and a program see --- */

static const struct st_pressure_sample before,
    after = {.major_faults = 1234, .some_us = 600000, .full_us = 250000, .swap_bytes = 300u << 20},
    slightly = {.major_faults = 3, .some_us = 1500};

static void assert_holds(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("%s\nhas no: %s", text, part);
}

static const char *summary_of(char **text, const struct st_pressure_sample *now)
{
    static const struct strata_plan_info plan;
    struct cli_summary summary = {.seconds = 2};
    struct strata_metrics step = step_of(300, 600);
    struct st_pressure_verdict verdict;
    struct st_json_writer writer;
    struct cli_progress p;
    struct cli_medians *m = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(text, &bytes);

    assert_non_null(file);
    assert_int_equal(cli_medians_create(&m), STRATA_OK);
    st_pressure_between(&before, now, 1, &verdict);
    st_metrics_press(&step, &verdict);
    p = (struct cli_progress){.file = file, .steps_total = 2, .every = 1};
    for (int i = 1; i <= 2; i++) {
        step.value[STRATA_METRIC_STEP] = i;
        cli_progress_step(&p, &step);
        cli_medians_add(m, &step);
    }
    st_pressure_between(&before, now, 2, &summary.pressure);
    cli_progress_summary(&p, &plan, m, &summary);
    st_json_begin(&writer, file);
    st_json_object_open(&writer, NULL);
    st_metrics_put(&writer, step.value, strata_metric_name, false);
    st_json_object_close(&writer);
    st_json_end_line(&writer);
    cli_metrics_summary(&writer, m, &summary);
    assert_int_equal(fclose(file), 0);
    free(m);
    return *text;
}

/* The first step has no update to make, and the second reads what no update has written yet: they move other bytes than the
 * ones after them, and each is held against its own plan. */
TEST(bytes_are_held_against_the_steps_own_plan)
{
    struct strata_plan_info plan = {0};

    plan.first[0].upload = 1024;
    plan.first[1].upload = 2048;
    plan.step.upload = 3072;
    for (int steps = 1; steps <= 4; steps++) {
        const struct cli_summary summary = {.seconds = 2};
        struct cli_medians *m = NULL;
        char *text = NULL;
        size_t bytes = 0;
        FILE *file = open_memstream(&text, &bytes);
        struct cli_progress p = {.file = file};

        assert_non_null(file);
        assert_int_equal(cli_medians_create(&m), STRATA_OK);
        for (int i = 1; i <= steps; i++) {
            struct strata_metrics step = step_of(300, 600);

            step.value[STRATA_METRIC_UPLOAD] = 1024 * (i < 3 ? i : 3);
            cli_medians_add(m, &step);
        }
        cli_progress_summary(&p, &plan, m, &summary);
        assert_int_equal(fclose(file), 0);
        assert_holds(text, steps == 1   ? "upload 1.00 KiB (as planned)"
                           : steps == 2 ? "upload 2.00 KiB (as planned)"
                                        : "upload 3.00 KiB (as planned)");
        free(text);
        free(m);
    }
}

TEST(what_is_left_is_a_time_of_day)
{
    static const struct {
        uint64_t seconds;
        const char *text;
    } rows[] = {{59, "ETA 0:59"}, {61, "ETA 1:01"}, {3599, "ETA 59:59"}, {3723, "ETA 1:02:03"}, {360059, "ETA 100:00:59"}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct strata_metrics step = step_of(300, 600);
        char *text = NULL;
        size_t bytes = 0;
        FILE *file = open_memstream(&text, &bytes);
        struct cli_progress p = {.file = file, .steps_total = rows[i].seconds + 1, .every = 1};

        assert_non_null(file);
        step.value[STRATA_METRIC_STEP] = 1;
        cli_progress_step(&p, &step);
        assert_int_equal(fclose(file), 0);
        assert_holds(text, rows[i].text);
        free(text);
    }
}

static void line_of(char line[CLI_PROGRESS_LINE_MAX], const struct strata_metrics *step, bool narrow)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    struct cli_progress p = {.file = file, .steps_total = 1, .every = 1, .narrow = narrow, .verbose = true};

    assert_non_null(file);
    cli_progress_step(&p, step);
    assert_int_equal(fclose(file), 0);
    snprintf(line, CLI_PROGRESS_LINE_MAX, "%.*s", (int)strcspn(text, "\n"), text);
    free(text);
}

/* A terminal of 80 columns gets as many whole pieces as leave its last column free. */
TEST(lines_are_cut_to_the_terminal)
{
    char whole[CLI_PROGRESS_LINE_MAX], cut[CLI_PROGRESS_LINE_MAX];
    uint32_t full = 0;

    for (double losses = 1; losses < 1e30; losses *= 10) { /* a character more each time */
        struct strata_metrics step = step_of(300, 600);
        const char *next;
        size_t length;

        step.value[STRATA_METRIC_STEP] = 1;
        step.value[STRATA_METRIC_LOSS] = losses;
        line_of(whole, &step, false);
        line_of(cut, &step, true);
        length = strlen(cut);
        assert_true(length <= 79 && length < strlen(whole) && memcmp(cut, whole, length) == 0);
        assert_memory_equal(whole + length, " | ", 3);
        next = strstr(whole + length + 3, " | ");
        assert_true(next == NULL || next - whole > 79); /* one piece more would be too long */
        full += length == 79;
    }
    assert_true(full > 0);
}

/* In a pipe long work says from time to time how far it is; here each time it is told of. */
TEST(long_work_says_how_far_it_is)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    struct cli_progress p = {.file = file}, quiet = {.file = file, .quiet = true};

    assert_non_null(file);
    for (int turn = 0; turn < 2; turn++) {
        struct cli_progress *watched = turn == 0 ? &p : &quiet;

        assert_true(cli_progress_watch(watched, "loading weights", 0, 200));
        assert_true(cli_progress_watch(watched, "loading weights", 74, 200));
        assert_true(cli_progress_watch(watched, "loading weights", 210, 200)); /* what was padded is counted, too */
        cli_progress_work_end(watched);
        assert_true(cli_progress_watch(watched, "measuring", 0, 0));
        assert_true(cli_progress_watch(watched, "measuring", 1, 0));
        cli_progress_work_end(watched);
        cli_progress_note(watched, "%s of %u", "notes", 2);
        cli_progress_note(watched, "are lines");
    }
    assert_int_equal(fclose(file), 0);
    assert_memory_equal(text, "loading weights: 37 %, ETA ", strlen("loading weights: 37 %, ETA "));
    assert_string_equal(strchr(text, '\n'), "\nloading weights: 100 %, ETA 0:00\nmeasuring\nnotes of 2\nare lines\n");
    free(text);
}

/* On a terminal a message ends the line that is rewritten, as long as there is one: after the end nobody touches it. */
TEST(messages_end_the_line_until_the_end)
{
    const int fd = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    FILE *file = fdopen(fd, "r+");
    struct cli_progress p;

    assert_non_null(file);
    assert_int_equal(setenv("TERM", "xterm", 1), 0);
    cli_progress_init(&p, file, false, 4, 0);
    assert_true(p.terminal);
    for (int turn = 0; turn < 2; turn++) {
        p.line = CLI_LINE_STEP;
        st_log(ST_LOG_INFO, "a message, turn %d", turn);
        assert_int_equal(p.line, turn == 0 ? CLI_LINE_NONE : CLI_LINE_STEP);
        cli_progress_fini(&p);
        assert_int_equal(p.line, CLI_LINE_NONE);
    }
    assert_int_equal(fclose(file), 0);
}

TEST(pressure_is_named_when_it_is_the_cause)
{
    char *text;

    summary_of(&text, &after);
    assert_holds(text, " | MEMORY PRESSURE | ");
    assert_holds(text, " | 600 ms waiting for memory | 1234 major faults | 300 MiB in swap | ");
    assert_holds(text,
                 "\n  pressure      memory pressure: 1,234 major faults, 30 % of the time waiting for memory, 300 MiB of this "
                 "process in swap: lower strata.host_memory (memory pressure in 2 of 2 steps)\n");
    assert_holds(text, "\n  bound by      compute: 90 %");
    assert_holds(text, "\"pressure\":{\"major_faults\":1234,\"swap_bytes\":314572800,\"psi_some_ms\":600,\"psi_full_ms\":250}");
    assert_holds(text,
                 "\"pressure_total\":{\"major_faults\":1234,\"swap_bytes\":314572800,\"psi_some_ms\":600,\"psi_full_ms\":250,"
                 "\"pressed_steps\":2}");
    assert_holds(text, "\"bound_by\":\"compute\"");
    free(text);
}

TEST(without_pressure_there_are_only_totals)
{
    struct st_pressure_sample unknown;
    char *text;

    summary_of(&text, &slightly);
    assert_null(strstr(text, "MEMORY PRESSURE"));
    assert_holds(text, "\n  pressure      none: 3 major faults, 2 ms waiting for memory\n");
    free(text);
    memset(&unknown, 0xff, sizeof(unknown));
    summary_of(&text, &unknown);
    assert_holds(text, "\n  pressure      unknown: the system does not report it\n");
    assert_holds(text, "\"pressure\":{\"major_faults\":null,\"swap_bytes\":null,\"psi_some_ms\":null,\"psi_full_ms\":null}");
    free(text);
}

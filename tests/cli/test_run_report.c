/* tests/cli/test_run_report.c - the summary of a run as JSON, key by key, and what the lines for people say of bytes between
 * ranks, of pressure that came and went, of time that is left, and where a rate is not known. */
#include "api/metrics.h"
#include "cli/report/progress.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must_hold(const char *text, const char *wanted)
{
    if (strstr(text, wanted) == NULL)
        fail_msg("%s\nlacks: %s", text, wanted);
}

/* Every column has a value of its own: its number, 1000 times the step's. */
static struct strata_metrics step_of(double times)
{
    struct strata_metrics step = {.stalled_by = STRATA_LANE_COUNT};

    for (int c = 0; c < STRATA_METRIC_COUNT; c++)
        step.value[c] = times * 1000 + c;
    step.value[STRATA_METRIC_SKIPPED] = 0;
    return step;
}

/* A member of the summary; NaN where it is not there. */
static double number_of(const char *text, const char *key)
{
    char quoted[64];
    const char *at;

    snprintf(quoted, sizeof(quoted), "\"%s\":", key);
    at = strstr(text, quoted);
    return at != NULL ? strtod(at + strlen(quoted), NULL) : (double)NAN;
}

static char *summary_of(struct cli_medians *m, const struct cli_summary *summary)
{
    struct st_json_writer w;
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    assert_non_null(file);
    st_json_begin(&w, file);
    cli_metrics_summary(&w, m, summary);
    assert_int_equal(fclose(file), 0);
    return text;
}

/* The last step's loss, although one before had a number; an evaluation counts until the next one. */
TEST(a_last_loss_that_is_no_number_is_none)
{
    const struct cli_summary summary = {0};
    struct cli_medians *m = NULL;
    char *text;

    assert_int_equal(cli_medians_create(&m), STRATA_OK);
    for (int i = 1; i <= 3; i++) {
        struct strata_metrics step = step_of(i);

        if (i == 3)
            step.value[STRATA_METRIC_LOSS] = step.value[STRATA_METRIC_EVAL_LOSS] = NAN;
        cli_medians_add(m, &step);
    }
    text = summary_of(m, &summary);
    must_hold(text, "\"last_loss\":null");
    assert_true(number_of(text, "eval_loss") == 2000 + STRATA_METRIC_EVAL_LOSS);
    free(text);
    free(m);
}

/* Medians, last values, counts and what the run took, each under its own key. */
TEST(figures_stand_under_their_keys)
{
    static const struct {
        const char *key;
        double value;
    } wanted[] = {
        {"epoch", 5000 + STRATA_METRIC_EPOCH}, /* the last one's, like all totals */
        {"tokens_total", 5000 + STRATA_METRIC_TOKENS_TOTAL},
        {"eval_loss", 5000 + STRATA_METRIC_EVAL_LOSS},
        {"last_loss", 5000 + STRATA_METRIC_LOSS},
        {"loss", 3500 + STRATA_METRIC_LOSS}, /* of steps 2 to 5 */
        {"grad_norm", 3500 + STRATA_METRIC_GRAD_NORM},
        {"lr", 3500 + STRATA_METRIC_LR},
        {"loss_scale", 3500 + STRATA_METRIC_LOSS_SCALE},
        {"tokens", 3500 + STRATA_METRIC_TOKENS},
        {"mfu", 3500 + STRATA_METRIC_MFU},
        {"step_seconds", 3500 + STRATA_METRIC_STEP_SECONDS},
        {"hardware_bound_seconds", 3500 + STRATA_METRIC_HARDWARE_BOUND},
        {"schedule_bound_seconds", 3500 + STRATA_METRIC_SCHEDULE_BOUND},
        {"forward", 3500 + STRATA_METRIC_MS_FORWARD},
        {"backward", 3500 + STRATA_METRIC_MS_BACKWARD},
        {"other", 3500 + STRATA_METRIC_MS_OTHER},
        {"read", 4000 + STRATA_METRIC_READ}, /* of steps 3 to 5 */
        {"steps", 5},
        {"skipped_steps", 2},
        {"pressed_steps", 1},
        {"seconds", 71},
        {"peak_rss_bytes", 72},
        {"rss_bytes_max", 73},
    };
    const struct strata_engine_info early = {
        .early_made = 81, .early_kept = 82, .early_redone = 83, .redone_bytes = 84, .wasted_bytes = 85};
    const struct cli_summary summary = {.early = &early,
                                        .seconds = 71,
                                        .peak_rss_bytes = 72,
                                        .rss_bytes_max = 73,
                                        .weights_digest = "one",
                                        .state_digest = "other"};
    struct cli_medians *m = NULL;
    char *text, moved[128];

    assert_int_equal(cli_medians_create(&m), STRATA_OK);
    for (int i = 1; i <= 5; i++) {
        struct strata_metrics step = step_of(i);

        step.value[STRATA_METRIC_SKIPPED] = i == 2 || i == 4;
        step.pressed = i == 3;
        cli_medians_add(m, &step);
    }
    text = summary_of(m, &summary);
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        if (!(fabs(number_of(text, wanted[i].key) - wanted[i].value) < 1e-6))
            fail_msg("%s is %.17g, not %.17g, in %s", wanted[i].key, number_of(text, wanted[i].key), wanted[i].value, text);
    snprintf(moved, sizeof(moved), "\"bytes\":{\"upload\":%d,\"download\":%d,\"read\":%d,\"write\":%d,\"comm\":%d}",
             4000 + STRATA_METRIC_UPLOAD, 4000 + STRATA_METRIC_DOWNLOAD, 4000 + STRATA_METRIC_READ, 4000 + STRATA_METRIC_WRITE,
             4000 + STRATA_METRIC_COMM);
    must_hold(text, moved);
    must_hold(text, "\"early\":{\"made\":81,\"kept\":82,\"redone\":83,\"redone_bytes\":84,\"wasted_bytes\":85}");
    must_hold(text, "\"status\":\"ok\",\"weights_digest\":\"one\",\"state_digest\":\"other\"}}\n");
    free(text);
    free(m);
}

/* Without a rate there is no fraction of it. */
TEST(a_fraction_of_no_rate_is_unknown)
{
    static const struct strata_plan_info plan;
    struct strata_step r = STRATA_STEP_INIT;
    struct strata_metrics got = {0};

    r.tokens = 600;
    r.seconds = 20;
    st_metrics_fill(&got, &plan, NULL, &r, 1, 600);
    assert_true(isnan(got.value[STRATA_METRIC_MFU]));
    assert_true(got.value[STRATA_METRIC_TOKENS_PER_SECOND] == 30);
    r.seconds = 0;
    st_metrics_fill(&got, &plan, NULL, &r, 1, 600);
    assert_true(got.value[STRATA_METRIC_TOKENS_PER_SECOND] == 0);
}

/* The block for people after steps of which those from `first` to `last` are under pressure. */
static char *block_with(const struct strata_plan_info *plan, int first, int last, const struct strata_engine_info *early)
{
    struct cli_summary summary = {.seconds = 2, .early = early};
    struct cli_medians *m = NULL;
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    struct cli_progress p = {.file = file};

    assert_non_null(file);
    assert_int_equal(cli_medians_create(&m), STRATA_OK);
    for (int i = 1; i <= 4; i++) {
        struct strata_metrics step = {.stalled_by = STRATA_LANE_COUNT};

        step.value[STRATA_METRIC_STEP_SECONDS] = 1;
        step.value[STRATA_METRIC_COMM] = 2048;
        step.pressed = i >= first && i <= last;
        cli_medians_add(m, &step);
    }
    summary.pressure.moved = (struct st_pressure_sample){.major_faults = 7, .some_us = 9000, .swap_bytes = 2048};
    cli_progress_summary(&p, plan, m, &summary);
    assert_int_equal(fclose(file), 0);
    free(m);
    return text;
}

static char *block_of(const struct strata_plan_info *plan, int first, int last)
{
    return block_with(plan, first, last, NULL);
}

/* Four steps: three could have kept what the one before had updated. */
TEST(what_became_of_early_updates_is_told)
{
    const struct strata_plan_info plan = {0};
    struct strata_engine_info early = {.early_made = 3, .early_kept = 3};
    char *text = block_of(&plan, 0, 0);

    assert_null(strstr(text, "early updates"));
    free(text);
    text = block_with(&plan, 0, 0, &early);
    must_hold(text, "\n  early updates in 3 of the steps: kept in 3, made again in 0\n");
    free(text);
    early = (struct strata_engine_info){
        .early_made = 3, .early_kept = 1, .early_redone = 2, .redone_bytes = 2048, .wasted_bytes = 1024};
    text = block_with(&plan, 0, 0, &early);
    must_hold(text, "\n  early updates in 3 of the steps: kept in 1, made again in 2 (after clipped or skipped "
                    "steps, saves and the end: 2.00 KiB; 1.00 KiB written to nvme for "
                    "nothing); strata.clip_rate 0.67 makes a plan for so few that are kept\n");
    free(text);
}

TEST(bytes_between_ranks_are_told_where_there_are_any)
{
    struct strata_plan_info plan = {0};
    char *text;

    text = block_of(&plan, 0, 0);
    assert_null(strstr(text, ", comm "));
    must_hold(text, "\n  step/bound    unknown, as the machine's rates are\n");
    free(text);
    plan.step.comm = 2048;
    text = block_of(&plan, 0, 0);
    must_hold(text, ", comm 2.00 KiB (as planned)\n");
    free(text);
    plan.step.comm = 1;
    text = block_of(&plan, 0, 0);
    must_hold(text, ", comm 2.00 KiB (planned 1 B)\n");
    free(text);
}

TEST(pressure_that_came_and_went_is_told)
{
    const struct strata_plan_info plan = {0};
    char *text = block_of(&plan, 0, 0);

    must_hold(text, "\n  pressure      none: 7 major faults, 9 ms waiting for memory, 2.00 KiB in swap\n");
    free(text);
    text = block_of(&plan, 2, 3);
    must_hold(text,
              "\n  pressure      at times: 7 major faults, 9 ms waiting for memory, 2.00 KiB in swap (memory pressure in 2 of 4 "
              "steps)\n");
    free(text);
}

/* By an average over some ten steps: one slow step moves it by a tenth. */
TEST(time_left_is_by_an_average)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    struct cli_progress p = {.file = file, .steps_total = 102, .every = 1};

    assert_non_null(file);
    for (int i = 1; i <= 2; i++) {
        struct strata_metrics step = step_of(0);

        step.value[STRATA_METRIC_STEP] = i;
        step.value[STRATA_METRIC_STEP_SECONDS] = i * 10;
        cli_progress_step(&p, &step);
    }
    assert_int_equal(fclose(file), 0);
    must_hold(text, " | ETA 16:50 | "); /* 101 steps of 10 s */
    must_hold(text, " | ETA 18:20 | "); /* 100 of 11 s */
    free(text);
}

/* In a run that trains in fp16, too. */
TEST(weights_that_became_infinite_are_told)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    struct cli_progress p = {.file = file, .steps_total = 1, .every = 1};
    struct strata_metrics step = step_of(0);

    assert_non_null(file);
    step.value[STRATA_METRIC_STEP] = 1;
    step.value[STRATA_METRIC_WEIGHTS_OVERFLOWED] = 3;
    cli_progress_step(&p, &step);
    assert_int_equal(fclose(file), 0);
    must_hold(text, " | 3 weights are infinite in 16 bits | ");
    free(text);
}

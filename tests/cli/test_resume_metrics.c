/* test_resume_metrics.c - files that a resumed run goes on with: one that is another run's, one that was removed, failures in the
 * middle and at the end, and the monitor's without a path. */
#include "program.h"
#include "tests/common/test.h"
#include "workplace.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRAIN   "train --model nano --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --quiet "
#define RESUMED TRAIN "--max-steps 4 --resume {w}/a/step-00000002 --metrics {w}/m.jsonl "
#define CSV     "--set csv_monitor.enabled=true --set csv_monitor.output_path={w}/mon "
#define ROWS    "mon/DeepSpeedJobName/Train_Samples_lr.csv"

static void says(const struct workplace *w, const char *command, int code, const char *wanted)
{
    struct program p;

    workplace_run(w, &p, command);
    if (p.code != code || strstr(p.err, wanted) == NULL)
        fail_msg("%s\nexit code %d, not %d with \"%s\":\n%s", command, p.code, code, wanted, p.err);
    program_free(&p);
}

/* Steps that the file's lines tell, in their order: "1 2 3 4"; a header is H, the summary S, anything else "?". */
static void holds(const struct workplace *w, const char *name, const char *wanted)
{
    char found[256] = "";
    size_t bytes, length = 0;
    char *text = workplace_read(w, name, &bytes), *line = text;

    for (char *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = '\0';
        if (strncmp(line, "{\"step\":", 8) == 0)
            length += (size_t)snprintf(found + length, sizeof(found) - length, "%d ", atoi(line + 8));
        else
            length += (size_t)snprintf(found + length, sizeof(found) - length, "%s",
                                       strncmp(line, "{\"run\":", 7) == 0        ? "H "
                                       : strncmp(line, "{\"summary\":", 11) == 0 ? "S "
                                                                                 : "? ");
    }
    assert_string_equal(found, wanted);
    assert_int_equal(*line, '\0');
    free(text);
}

static int setup(void **state)
{
    struct program p;

    if (workplace_setup(state) != 0)
        return -1;
    workplace_run_ok(*state, &p, TRAIN "--max-steps 3 --save {w}/a --save-every 2 --keep 3 --metrics {w}/first.jsonl " CSV);
    program_free(&p);
    return 0;
}

/* The lines of the first part, as m.jsonl. */
static void take_metrics(const struct workplace *w)
{
    size_t bytes;
    char *text = workplace_read(w, "first.jsonl", &bytes);

    workplace_write(w, "m.jsonl", text, bytes);
    free(text);
}

/* As m.jsonl the header of the first part, and `lines`; returns it all. */
static char *header_and(const struct workplace *w, const char *lines)
{
    size_t bytes;
    char *first = workplace_read(w, "first.jsonl", &bytes), *text;

    bytes = (size_t)(strchr(first, '\n') + 1 - first);
    text = malloc(bytes + strlen(lines) + 1);
    assert_non_null(text);
    memcpy(text, first, bytes);
    memcpy(text + bytes, lines, strlen(lines) + 1);
    workplace_write(w, "m.jsonl", text, strlen(text));
    free(first);
    return text;
}

/* A file that no line of the checkpoint's run ends in is another's: left as it is, or replaced by a whole one where asked. */
TEST(another_runs_file_is_refused_or_replaced)
{
    const struct workplace *w = *state;
    size_t bytes, after;
    char *text, *kept;

    take_metrics(w);
    text = workplace_read(w, "m.jsonl", &bytes);
    memset(text, 'x', bytes - 1);
    workplace_write(w, "m.jsonl", text, bytes);
    says(w, RESUMED, 2, "--metrics: ");
    says(w, RESUMED, 2, "m.jsonl is not what the checkpoint's run wrote, as no line ends at byte ");
    kept = workplace_read(w, "m.jsonl", &after);
    assert_int_equal(after, bytes);
    assert_memory_equal(kept, text, bytes);
    free(kept);
    free(text);
    says(w, RESUMED "--overwrite", 0, "");
    holds(w, "m.jsonl", "H 3 4 S ");
    workplace_remove(w, "m.jsonl");
}

/* One that is shorter is no earlier part that a power cut has shortened, unless it begins as one. */
TEST(a_short_file_of_another_kind_is_left_alone)
{
    static const char notes[] = "my notes\nthe last line, without an end";
    const struct workplace *w = *state;
    size_t bytes, whole;
    char *text;

    workplace_write(w, "m.jsonl", notes, strlen(notes));
    says(w, RESUMED, 2, "m.jsonl is not what the checkpoint's run wrote, as it does not begin with the header of a run");
    text = workplace_read(w, "m.jsonl", &bytes);
    assert_int_equal(bytes, strlen(notes));
    assert_memory_equal(text, notes, bytes);
    free(text);
    says(w, RESUMED "--overwrite", 0, "");
    holds(w, "m.jsonl", "H 3 4 S ");

    text = workplace_read(w, "first.jsonl", &whole); /* within its header */
    workplace_write(w, "m.jsonl", text, 5);
    free(text);
    says(w, RESUMED, 0, "");
    holds(w, "m.jsonl", "H 3 4 S ");
    workplace_remove(w, "m.jsonl");
}

/* A shorter one of another run that has ended has its summary, which the earlier part of a run has not; without it the lines that
 * a power cut has left go on. */
TEST(a_short_file_of_a_run_that_ended_is_left_alone)
{
    const struct workplace *w = *state;
    char *other = header_and(w, "{\"step\":1}\n{\"summary\":{}}\n{\"st"), *text;
    size_t bytes;

    says(w, RESUMED, 2, "m.jsonl is not what the checkpoint's run wrote, as it has the summary of a shorter run");
    text = workplace_read(w, "m.jsonl", &bytes);
    assert_int_equal(bytes, strlen(other));
    assert_memory_equal(text, other, bytes);
    free(text);
    says(w, RESUMED "--overwrite", 0, "");
    holds(w, "m.jsonl", "H 3 4 S ");
    workplace_write(w, "m.jsonl", other, (size_t)(strstr(other, "{\"summary") - other) + 5);
    says(w, RESUMED, 0, " bytes of the run's earlier part");
    holds(w, "m.jsonl", "H 1 3 4 S ");
    free(other);
    workplace_remove(w, "m.jsonl");
}

/* Of one that was killed, or saves nothing, the header tells. */
TEST(a_short_file_of_a_run_that_was_killed_is_left_alone)
{
    static const char *const others[] = {TRAIN "--max-steps 1 --metrics {w}/m.jsonl --save {w}/b",
                                         TRAIN "--max-steps 1 --metrics {w}/m.jsonl"};
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        size_t bytes;
        char *text;

        says(w, others[i], 0, "");
        text = workplace_read(w, "m.jsonl", &bytes);
        workplace_write(w, "m.jsonl", text, (size_t)(strstr(text, "{\"summary\":") - text));
        free(text);
        says(w, RESUMED, 2, "m.jsonl is not what the checkpoint's run wrote, as its header names another run");
        holds(w, "m.jsonl", "H 1 ");
        says(w, RESUMED "--overwrite", 0, "");
        holds(w, "m.jsonl", "H 3 4 S ");
        workplace_remove(w, "m.jsonl");
    }
    workplace_remove(w, "b");
}

/* A checkpoint of a run without lines, as an import makes them, and an attempt that was killed before it had saved: it comes
 * again by the same command line, and what it left gets another name. */
TEST(lines_of_an_attempt_that_saved_nothing_are_set_aside)
{
    static const char attempt[] = TRAIN "--max-steps 4 --save {w}/b --resume auto --metrics {w}/m.jsonl ";
    static const char left[] = "{\"run\":{}}\n{\"step\":3}\n";
    const struct workplace *w = *state;
    size_t bytes;
    char *text;

    says(w, TRAIN "--max-steps 2 --save {w}/b", 0, "");
    workplace_write(w, "m.jsonl", left, strlen(left));
    says(w, TRAIN "--max-steps 4 --resume {w}/b/step-00000002 --metrics {w}/m.jsonl", 2, "m.jsonl: exists already");
    says(w, attempt, 0, "m.jsonl.1");
    holds(w, "m.jsonl", "H 3 4 S ");
    text = workplace_read(w, "m.jsonl.1", &bytes);
    assert_string_equal(text, left);
    free(text);
    says(w, attempt, 0, ""); /* that one saved its lines */
    holds(w, "m.jsonl", "H 3 4 S ");
    assert_false(workplace_exists(w, "m.jsonl.2"));
    workplace_remove(w, "m.jsonl");
    workplace_remove(w, "m.jsonl.1");
    workplace_remove(w, "b");
}

/* The file itself goes on, with --overwrite, too; what came after the checkpoint comes again. */
TEST(ones_own_goes_on)
{
    const struct workplace *w = *state;

    holds(w, "first.jsonl", "H 1 2 3 S ");
    for (int overwrite = 0; overwrite < 2; overwrite++) {
        take_metrics(w);
        says(w, overwrite == 1 ? RESUMED "--overwrite" : RESUMED, 0, "");
        holds(w, "m.jsonl", "H 1 2 3 4 S ");
        workplace_remove(w, "m.jsonl");
    }
}

/* Each failure leaves the earlier lines as they were, or the new ones whole, and is said. */
TEST(failures_of_the_file_are_said)
{
    static const struct {
        const char *fault, *wanted, *lines;
        int code;
    } rows[] = {
        {"metrics.seek", "--metrics: ", "H 1 2 3 S ", 4},
        {"file.rename", "--metrics: ", "H 1 2 3 S ", 4},
        {"metrics.write:0:1:-28", "m.jsonl cannot be written: No space left on device: no more lines", "H 1 2 ", 4},
        {"metrics.write:1:1:-28", "m.jsonl cannot be written: No space left on device: the rest of the run", "H 1 2 3 ", 4},
        {"file.sync:0:1", "m.jsonl", "H 1 2 3 4 S ", 4},
    };
    const struct workplace *w = *state;
    char command[512];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        take_metrics(w);
        snprintf(command, sizeof(command), RESUMED "--fault %s", rows[i].fault);
        says(w, command, rows[i].code, rows[i].wanted);
        holds(w, "m.jsonl", rows[i].lines);
        workplace_remove(w, "m.jsonl");
    }
}

/* Rows begin at the checkpoint where the file is not there any more. */
TEST(a_monitor_whose_file_is_gone_begins_anew)
{
    const struct workplace *w = *state;
    size_t bytes;
    char *rows;
    unsigned long first, second;

    workplace_remove(w, "mon");
    says(w, TRAIN "--max-steps 4 --resume {w}/a/step-00000002 " CSV, 0, "");
    rows = workplace_read(w, ROWS, &bytes);
    assert_int_equal(sscanf(rows, "step,lr %lu,%*s %lu,%*s", &first, &second), 2);
    assert_int_equal(first, 3);
    assert_int_equal(second, 4);
    assert_string_equal(rows + bytes - 2, "\r\n");
    free(rows);
    workplace_remove(w, "mon");
}

/* The last moment of a file: the run is done, and the exit code says that its rows may not be kept. */
TEST(a_monitor_that_is_not_kept_is_said)
{
    const struct workplace *w = *state;

    says(w, TRAIN "--max-steps 2 " CSV "--fault file.sync:1:1", 4,
         "/Train_Samples_lr.csv: Input/output error: the rest of the run is not there");
    workplace_remove(w, "mon");
}

/* As DeepSpeed has it: without a path the job's directory is made where the run is started. */
TEST(a_monitor_without_a_path_is_here)
{
    const struct workplace *w = *state;
    char before[4096];

    assert_non_null(getcwd(before, sizeof(before)));
    assert_int_equal(chdir(w->path), 0);
    says(w, TRAIN "--max-steps 2 --set csv_monitor.enabled=true --set csv_monitor.job_name=job", 0, "");
    assert_int_equal(chdir(before), 0);
    assert_int_equal(workplace_entries(w, "job"), 3);
    assert_true(workplace_exists(w, "job/Train_Samples_train_loss.csv"));
    workplace_remove(w, "job");
}

/* An evaluation that a signal cuts comes before the next step, and its line behind that of its own step. */
TEST(a_cut_evaluation_is_made_up_for_in_its_place)
{
#define EVALUATED "train --model nano --seq-len 32 --machine {w}/machine.json --data {w}/good.bin --eval-every 2 --save {w}/cut "
    static char text[1 << 19]; /* an evaluation of some seconds, which is never made */
    const struct workplace *w = *state;
    const char *eval, *step;
    struct program p;
    size_t bytes;
    char *metrics;

    memset(text, 'a', sizeof(text));
    workplace_write(w, "long", text, sizeof(text));
    workplace_run_ok(w, &p, "tokens {w}/long --out {w}/long.bin");
    program_free(&p);
    workplace_start_piped(w, &p, EVALUATED "--max-steps 4 --eval-data {w}/long.bin --metrics {w}/cut.jsonl --resume auto");
    program_wait_for(&p, "step 2/");
    assert_int_equal(kill(p.pid, SIGTERM), 0);
    program_wait(&p);
    assert_int_equal(p.code, 143);
    program_free(&p);
    says(w, EVALUATED "--max-steps 4 --eval-data {w}/good.heldout.bin --metrics {w}/cut.jsonl --resume auto", 0, "");
    holds(w, "cut.jsonl", "H 1 2 2 3 4 S ");
    metrics = workplace_read(w, "cut.jsonl", &bytes);
    eval = strstr(metrics, "{\"step\":2,\"eval_loss\":");
    step = strstr(metrics, "{\"step\":3,");
    assert_true(eval != NULL && step != NULL && eval < step);
    assert_non_null(strstr(step, "\"eval_loss\":"));
    free(metrics);
    says(w, EVALUATED "--max-steps 6 --eval-data {w}/good.heldout.bin --metrics {w}/cut.jsonl --resume auto", 0, "");
    holds(w, "cut.jsonl", "H 1 2 2 3 4 5 6 S "); /* nothing was cut */
    workplace_remove(w, "long");
    workplace_remove(w, "long.bin");
    workplace_remove(w, "cut.jsonl");
    workplace_remove(w, "cut");
#undef EVALUATED
}

TEST_GROUP(setup, workplace_teardown);

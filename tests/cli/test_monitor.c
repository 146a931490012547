/* tests/cli/test_monitor.c - the files of csv_monitor and tensorboard, number by number: what the metrics say, over the sequences
 * of all ranks so far; how they go on after a checkpoint. */
#include "core/json/json.h"
#include "core/trace/tfevents.h"
#include "tests/cli/ranks.h"
#include "tests/common/test.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRAIN                                                                                                                    \
    "train --model nano --data {w}/good.bin --seq-len 32 --micro-batch 2 --machine {w}/machine.json --quiet "                    \
    "--metrics {w}/m.jsonl --set tensorboard.enabled=true --set tensorboard.output_path={w}/mon "                                \
    "--set csv_monitor.enabled=true --set csv_monitor.output_path={w}/mon --set csv_monitor.job_name=csv "
#define EVENTS    "mon/DeepSpeedJobName"
#define STEPS_MAX 16u

enum { LOSS, LR, NORM, SCALE, SCALARS };

static const struct {
    const char *key, *tag, *file;
} scalars[SCALARS] = {{"loss", "Train/Samples/train_loss", "mon/csv/Train_Samples_train_loss.csv"},
                      {"lr", "Train/Samples/lr", "mon/csv/Train_Samples_lr.csv"},
                      {"grad_norm", "Train/Samples/grad_norm", "mon/csv/Train_Samples_grad_norm.csv"},
                      {"loss_scale", "Train/Samples/loss_scale", "mon/csv/Train_Samples_loss_scale.csv"}};

/* What the steps of the metrics say. */
struct metrics {
    uint32_t steps;
    double value[STEPS_MAX][SCALARS];
};

static struct metrics read_metrics(const struct workplace *w)
{
    struct metrics m = {0};
    size_t bytes;
    char *text = workplace_read(w, "m.jsonl", &bytes);

    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        st_json *root;

        assert_int_equal(st_json_parse(&root, line, (size_t)(end - line), "line"), 0);
        if (st_json_get(root, "step") != NULL) {
            assert_true(m.steps < STEPS_MAX);
            for (int s = 0; s < SCALARS; s++)
                m.value[m.steps][s] = st_json_number(st_json_get(root, scalars[s].key));
            m.steps++;
        }
        st_json_free(root);
    }
    free(text);
    return m;
}

/* A row for each step, its number that of the sequences so far. */
static void check_csv(const struct workplace *w, const struct metrics *m, int scalar, uint32_t sequences)
{
    size_t bytes;
    char *text = workplace_read(w, scalars[scalar].file, &bytes), *line = strchr(text, '\n') + 1;

    for (uint32_t i = 0; i < m->steps; i++) {
        char *at;

        assert_int_equal(strtoull(line, &at, 10), (i + 1) * sequences);
        assert_int_equal(*at, ',');
        assert_true(strtod(at + 1, &at) == m->value[i][scalar]);
        assert_memory_equal(at, "\r\n", 2);
        line = at + 2;
    }
    assert_int_equal(*line, '\0');
    free(text);
}

/* --- event files --- */

static uint64_t little(const unsigned char *at, unsigned bytes)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

/* An event without its time: that record as the encoder makes it of a step and a value must be the same. */
static void same_record(const unsigned char *record, const unsigned char *wanted, size_t bytes)
{
    const size_t time = 13; /* length, its checksum, the key of the time */

    assert_int_equal(little(record, 8) + 16, bytes);
    assert_memory_equal(record, wanted, time);
    assert_memory_equal(record + time + 8, wanted + time + 8, bytes - 4 - time - 8);
}

/* The next record is this one. */
#define NEXT(at, call)                                                                                                           \
    do {                                                                                                                         \
        unsigned char wanted[ST_TF_RECORD_BYTES];                                                                                \
        const size_t record_bytes = call;                                                                                        \
                                                                                                                                 \
        same_record(at, wanted, record_bytes);                                                                                   \
        at += record_bytes;                                                                                                      \
    } while (0)

/* The events of steps first + 1 to last of a run that begins at step `first`, perhaps not for the first time. */
static void check_events_of(const struct workplace *w, const char *name, const struct metrics *m, uint32_t first, uint32_t last,
                            uint32_t sequences, bool scales, bool again)
{
    size_t bytes;
    char path[512], *text;
    const unsigned char *at;

    snprintf(path, sizeof(path), EVENTS "/%s", name);
    text = workplace_read(w, path, &bytes);
    at = (const unsigned char *)text;
    NEXT(at, st_tf_version(wanted, 0));
    if (first > 0 || again) /* what the attempt before said of later steps does not count */
        NEXT(at, st_tf_restart(wanted, 0, (uint64_t)first * sequences + 1));
    for (uint32_t i = first; i < last; i++)
        for (int s = 0; s < (scales ? SCALARS : SCALE); s++)
            NEXT(at, st_tf_scalar(wanted, 0, (uint64_t)(i + 1) * sequences, scalars[s].tag, (float)m->value[i][s]));
    assert_int_equal(at - (const unsigned char *)text, bytes);
    free(text);
}

static void check_events(const struct workplace *w, const char *name, const struct metrics *m, uint32_t first, uint32_t last,
                         uint32_t sequences, bool scales)
{
    check_events_of(w, name, m, first, last, sequences, scales, false);
}

/* Names of the event files. */
static uint32_t list_events(const struct workplace *w, char names[4][256])
{
    char *path = workplace_expand(w, "{w}/" EVENTS);
    DIR *dir = opendir(path);
    uint32_t count = 0;

    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        if (e->d_name[0] != '.') {
            assert_true(count < 4);
            snprintf(names[count++], 256, "%s", e->d_name);
        }
    closedir(dir);
    free(path);
    return count;
}

/* --- runs --- */

static void clear(const struct workplace *w)
{
    workplace_remove(w, "mon");
    workplace_remove(w, "m.jsonl");
    workplace_remove(w, "a");
}

TEST(numbers_are_those_of_the_metrics)
{
    const struct workplace *w = *state;
    char names[4][256];
    struct metrics m;
    struct program p;

    workplace_run_ok(w, &p, TRAIN "--max-steps 4 --set fp16.enabled=true --set fp16.initial_scale_power=8");
    program_free(&p);
    m = read_metrics(w);
    assert_int_equal(m.steps, 4);
    for (int s = 0; s < SCALARS; s++)
        check_csv(w, &m, s, 2);
    assert_int_equal(list_events(w, names), 1);
    check_events(w, names[0], &m, 0, 4, 2, true);
    clear(w);
}

/* As other programs write them: with no more digits than tell a number from all others. */
TEST(numbers_are_as_short_as_they_can_be)
{
    static const struct {
        const char *lr, *rows;
    } rates[] = {{"0.1", "\r\n2,0.1\r\n4,0.1\r\n"},
                 {"3e-4", "\r\n2,0.0003\r\n4,0.0003\r\n"},
                 {"0.30000000000000004", "\r\n2,0.30000000000000004\r\n4,0.30000000000000004\r\n"}};
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        struct program p;
        char command[640], *text;

        snprintf(command, sizeof(command), TRAIN "--max-steps 2 --lr %s", rates[i].lr);
        workplace_run_ok(w, &p, command);
        program_free(&p);
        text = workplace_read(w, scalars[LR].file, NULL);
        assert_string_equal(strstr(text, "\r\n"), rates[i].rows);
        free(text);
        clear(w);
    }
}

/* The second attempt's events begin behind the checkpoint; its rows follow those up to it. */
TEST(a_second_attempt_goes_on_behind_the_checkpoint)
{
    const struct workplace *w = *state;
    char names[2][4][256];
    struct metrics m;
    struct program p;

    workplace_run_ok(w, &p, TRAIN "--max-steps 4 --save {w}/a --save-every 3");
    program_free(&p);
    assert_int_equal(list_events(w, names[0]), 1);
    workplace_run_ok(w, &p, TRAIN "--max-steps 6 --resume {w}/a/step-00000003");
    program_free(&p);
    m = read_metrics(w);
    assert_int_equal(m.steps, 6);
    for (int s = 0; s < SCALE; s++)
        check_csv(w, &m, s, 2);
    assert_int_equal(list_events(w, names[1]), 2);
    check_events(w, names[0][0], &m, 0, 4, 2, false);
    check_events(w, names[1][strcmp(names[1][0], names[0][0]) == 0], &m, 3, 6, 2, false);
    clear(w);
}

/* An attempt that ended before its first checkpoint has said of steps what does not count. */
TEST(a_first_attempt_without_a_checkpoint_does_not_count)
{
    const struct workplace *w = *state;
    char names[2][4][256];
    struct metrics m;
    struct program p;

    for (int attempt = 0; attempt < 2; attempt++) {
        workplace_run_ok(w, &p, TRAIN "--max-steps 2 --save {w}/a --resume auto");
        program_free(&p);
        assert_int_equal(list_events(w, names[attempt]), attempt + 1);
        workplace_remove(w, "a");
    }
    m = read_metrics(w);
    assert_int_equal(m.steps, 2);
    check_events_of(w, names[1][strcmp(names[1][0], names[0][0]) == 0], &m, 0, 2, 2, false, true);
    workplace_remove(w, "m.jsonl.1");
    clear(w);
}

/* Of a row that cannot be written whole nothing stays; the other files have all rows. */
TEST(a_row_is_there_whole_or_not_at_all)
{
    static const struct {
        const char *name;
        int lines;
    } files[] = {{"mon/csv/Train_Samples_lr.csv", 2}, {"mon/csv/Train_Samples_train_loss.csv", 4}};
    const struct workplace *w = *state;
    struct program p;

    /* three headers, three rows of the first step, the loss of the second, its learning rate */
    workplace_run(w, &p,
                  "train --model nano --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --max-steps 3 "
                  "--set csv_monitor.enabled=true --set csv_monitor.output_path={w}/mon --set csv_monitor.job_name=csv "
                  "--fault file.write:7:1:-28");
    if (p.code != 4 || strstr(p.err, "Train_Samples_lr.csv at byte ") == NULL)
        fail_msg("exit code %d\n%s", p.code, p.err);
    program_free(&p);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        size_t bytes;
        char *text = workplace_read(w, files[i].name, &bytes);
        int lines = 0;

        for (size_t k = 0; k < bytes; k++)
            lines += text[k] == '\n';
        assert_int_equal(lines, files[i].lines);
        assert_int_equal(text[bytes - 1], '\n');
        free(text);
    }
    clear(w);
}

/* Rows beyond the checkpoint may be another run's: the file that has them stays, beside the one that goes on. */
TEST(rows_of_another_run_are_not_lost)
{
    static const char other[] = "step,lr\r\n2,0.1\r\n4,0.1\r\n6,0.1\r\n400,0.1\r\n";
    const struct workplace *w = *state;
    struct program p;
    size_t bytes;
    char *kept;

    workplace_run_ok(w, &p, TRAIN "--max-steps 3 --save {w}/a");
    program_free(&p);
    assert_false(workplace_exists(w, "mon/csv/Train_Samples_lr.csv.1"));
    workplace_write(w, "mon/csv/Train_Samples_lr.csv", other, strlen(other));
    workplace_run_ok(w, &p, TRAIN "--max-steps 5 --save {w}/a --resume auto");
    assert_non_null(strstr(p.err, "Train_Samples_lr.csv.1 now"));
    program_free(&p);
    kept = workplace_read(w, "mon/csv/Train_Samples_lr.csv.1", &bytes);
    assert_string_equal(kept, other);
    free(kept);
    assert_false(workplace_exists(w, "mon/csv/Train_Samples_train_loss.csv.1"));
    clear(w);
}

/* Rank 0 writes, and counts the sequences of both. */
TEST(ranks_count_together)
{
    const struct workplace *w = *state;
    struct ranks r = {0};
    char names[4][256];
    struct metrics m;

    ranks_run_ok(w, &r, 2, TRAIN "--max-steps 3 --save {w}/a --save-every 2");
    ranks_free(&r);
    m = read_metrics(w);
    assert_int_equal(m.steps, 3);
    for (int s = 0; s < SCALE; s++)
        check_csv(w, &m, s, 4);
    assert_int_equal(list_events(w, names), 1);
    check_events(w, names[0], &m, 0, 3, 4, false);
    clear(w);
}

/* The rows cannot be kept: the run ends behind the header of its lines and before its first step. */
TEST(a_run_that_does_not_begin_takes_no_time)
{
    const struct workplace *w = *state;
    char *rows = workplace_expand(w, "{w}/mon/csv/Train_Samples_lr.csv");
    const char *seconds;
    struct program p;

    workplace_run_ok(w, &p, TRAIN "--max-steps 1 --save {w}/a");
    program_free(&p);
    assert_int_equal(truncate(rows, (off_t)1100 << 20), 0); /* more than is read again */
    workplace_run(w, &p, TRAIN "--max-steps 2 --save {w}/a --resume auto --json");
    assert_int_equal(p.code, 2);
    seconds = strstr(p.out, "\"seconds\":");
    assert_non_null(seconds);
    assert_true(strtod(seconds + strlen("\"seconds\":"), NULL) == 0);
    program_free(&p);
    free(rows);
    clear(w);
}

/* Neither a directory nor a job is named: the files are in the working directory, not in the root of the file system. */
TEST(without_names_files_are_in_the_working_directory)
{
    static const char *const files[] = {"Train_Samples_train_loss.csv", "Train_Samples_lr.csv", "Train_Samples_grad_norm.csv"};
    const struct workplace *w = *state;
    char *before = getcwd(NULL, 0);
    struct program p;

    assert_non_null(before);
    assert_int_equal(chdir(w->path), 0);
    workplace_run_ok(w, &p, TRAIN "--max-steps 1 --set csv_monitor.output_path= --set csv_monitor.job_name=");
    program_free(&p);
    assert_int_equal(chdir(before), 0);
    free(before);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        assert_true(workplace_exists(w, files[i]));
        workplace_remove(w, files[i]);
    }
    clear(w);
}

TEST_GROUP(workplace_setup, workplace_teardown);

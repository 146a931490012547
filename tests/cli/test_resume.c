/* test_resume.c - a run that was saved, ended and resumed has the bits of one that never ended; what --save and --resume refuse.
 */
#include "program.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"
#include "workplace.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TRAIN "train --model nano --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --digest "
#define DRIVES                                                                                                                   \
    "--nvme {w}/nvme --set zero_optimization.stage=3 --set zero_optimization.offload_optimizer.device=nvme "                     \
    "--set zero_optimization.offload_param.device=nvme --set strata.cache=0 --device-memory 20MiB "

/* Saved in memory and on drives, resumed in both, with other budgets; the schedule's decay shows a step counted wrongly. */
TEST(a_resumed_run_has_the_same_bits)
{
    const struct workplace *w = *state;
    static const char *const commands[] = {
        TRAIN "--max-steps 6 --save {w}/a --save-every 2 --keep 3 --quiet",
        TRAIN DRIVES "--max-steps 6 --save {w}/b --save-every 2 --keep 3 --quiet",
        TRAIN "--max-steps 6 --resume {w}/a/step-00000002 --quiet",
        TRAIN "--max-steps 6 --resume {w}/b/step-00000004 --threads 1 --quiet",
        TRAIN DRIVES "--max-steps 6 --resume {w}/a/step-00000004 --save {w}/c --quiet",
        TRAIN DRIVES "--max-steps 6 --resume {w}/b/step-00000002 --save {w}/d --set strata.update=serial --quiet",
        TRAIN "--max-steps 6 --resume {w}/c --quiet", /* the newest, of the last step */
    };
    char never_ended[160], is[160];

    workplace_digests(w, TRAIN "--max-steps 6 --quiet", never_ended);
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        workplace_digests(w, commands[i], is);
        if (strcmp(is, never_ended) != 0)
            fail_msg("%s\n%sexpected\n%s", commands[i], is, never_ended);
    }
    assert_int_equal(workplace_entries(w, "a"), 4); /* three checkpoints and latest */
    assert_int_equal(workplace_entries(w, "c"), 2);
    for (char dir[] = "a"; dir[0] <= 'd'; dir[0]++)
        workplace_remove(w, dir);
}

/* Bytes that a step has written to drives, by a line of metrics. */
static unsigned long long written_by(const struct workplace *w, const char *name, int step)
{
    size_t bytes;
    char key[32], *text = workplace_read(w, name, &bytes);
    const char *at;
    unsigned long long written = 0;

    snprintf(key, sizeof(key), "{\"step\":%d,", step);
    assert_non_null(at = strstr(text, key));
    assert_non_null(at = strstr(at, "\"write\":"));
    written = strtoull(at + 8, NULL, 10);
    free(text);
    return written;
}

/* Where updates do not wait for the next step, the step itself writes what its checkpoint needs and lives in memory. */
TEST(a_step_that_is_saved_writes_itself)
{
    static const char *const policies[] = {"serial", "in_backward"};
    const struct workplace *w = *state;
    struct program p;
    char command[1024], never_ended[160], is[160];

    for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++)
        for (int drives = 0; drives < 2; drives++) {
#define POLICY                                                                                                                   \
    TRAIN "%s --set strata.update=%s --set gradient_clipping=0 --set bf16.check_grad_overflow=false --quiet --max-steps 6 "
            snprintf(command, sizeof(command), POLICY, "", policies[i]);
            workplace_digests(w, command, never_ended);
            snprintf(command, sizeof(command),
                     POLICY
                     "--save {w}/a --save-every 2 --keep 3 --eval-data {w}/good.heldout.bin --eval-every 2 --metrics {w}/m.jsonl",
                     drives ? DRIVES : "", policies[i]);
            workplace_digests(w, command, is);
            assert_string_equal(is, never_ended);
            for (int step = 1; step <= 6 && !drives; step++)
                assert_true((written_by(w, "m.jsonl", step) > 0) == (step % 2 == 0));
            workplace_run_ok(w, &p, "verify {w}/a/step-00000002");
            program_free(&p);
            snprintf(command, sizeof(command), POLICY "--resume {w}/a/step-00000004", drives ? "" : DRIVES, policies[i]);
            workplace_digests(w, command, is);
            assert_string_equal(is, never_ended);
            workplace_remove(w, "a");
            workplace_remove(w, "m.jsonl");
        }
#undef POLICY
}

/* The first step of a metrics file that was skipped, behind one that was not. */
static int skipped_behind_another(const struct workplace *w, const char *name)
{
    size_t bytes;
    char *text = workplace_read(w, name, &bytes);
    const char *at = strstr(text, "\"skipped\":false");
    int step = 0;

    assert_non_null(at);
    assert_non_null(at = strstr(at, "\"skipped\":true"));
    while (strncmp(at, "{\"step\":", 8) != 0)
        at--;
    assert_int_equal(sscanf(at, "{\"step\":%d,", &step), 1);
    free(text);
    return step;
}

/* Skipped steps are steps of the run: one that is resumed behind them does the next one, with the next one's sequences. */
TEST(skipped_steps_are_counted_once)
{
#define FP16 TRAIN "--set bf16.enabled=false --set fp16.enabled=true --set fp16.initial_scale_power=32 "
    const struct workplace *w = *state;
    char never_ended[160], is[160];

    workplace_digests(w, FP16 "--max-steps 24 --save {w}/a --save-every 22 --quiet --set strata.max_skipped=40", never_ended);
    workplace_digests(w, FP16 "--max-steps 24 --resume {w}/a/step-00000022 --quiet --set strata.max_skipped=40", is);
    assert_string_equal(is, never_ended);
    workplace_remove(w, "a");
    workplace_digests(w, FP16 "--max-steps 24 --save {w}/a --save-every 1 --keep 22 --quiet --set strata.max_skipped=40", is);
    assert_string_equal(is, never_ended);
    assert_true(workplace_exists(w, "a/step-00000003") && workplace_exists(w, "a/step-00000004")); /* both are skipped */
    workplace_remove(w, "a");
#undef FP16
}

/* The scale grows until a step is skipped again.  That one is saved, and what it saves are the values that steps before have
 * made, which saved nothing. */
TEST(a_skipped_step_saves_what_others_made)
{
#define FP16                                                                                                                     \
    TRAIN "--set bf16.enabled=false --set fp16.enabled=true --set fp16.loss_scale_window=1 --set fp16.hysteresis=1 "             \
          "--set fp16.initial_scale_power=24 --max-steps 24 --quiet --set strata.max_skipped=40 --set strata.update=%s "
#define HOST                                                                                                                     \
    "--device-memory 6MiB --set zero_optimization.stage=3 --set zero_optimization.offload_optimizer.device=cpu "                 \
    "--set zero_optimization.offload_param.device=cpu"
    static const char *const policies[] = {"gated", "gated " HOST, "serial " HOST};
    const struct workplace *w = *state;
    char command[1024], never_ended[160], is[160];
    struct program p;

    for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++) {
        int step;

        snprintf(command, sizeof(command), FP16 "--metrics {w}/m", policies[i]);
        workplace_digests(w, command, never_ended);
        step = skipped_behind_another(w, "m");
        snprintf(command, sizeof(command), FP16 "--save {w}/a --save-every %d --keep 9", policies[i], step);
        workplace_digests(w, command, is);
        assert_string_equal(is, never_ended);
        snprintf(command, sizeof(command), "verify {w}/a/step-%08d", step);
        workplace_run_ok(w, &p, command);
        program_free(&p);
        snprintf(command, sizeof(command), FP16 "--resume {w}/a/step-%08d", policies[i], step);
        workplace_digests(w, command, is);
        assert_string_equal(is, never_ended);
        workplace_remove(w, "a");
        workplace_remove(w, "m");
    }
#undef HOST
#undef FP16
}

/* A checkpoint of every step by a run whose earlier ones fill --keep: two sets, one of which holds what the other is made of. */
TEST(two_sets_are_enough_for_every_step)
{
    const struct workplace *w = *state;
    char never_ended[160], is[160];

    workplace_digests(w, TRAIN "--max-steps 7 --quiet", never_ended);
    workplace_digests(w, TRAIN DRIVES "--max-steps 3 --save {w}/a --keep 1 --quiet", is);
    workplace_digests(w, TRAIN DRIVES "--max-steps 7 --save {w}/a --keep 1 --save-every 1 --resume auto --quiet", is);
    assert_string_equal(is, never_ended);
    workplace_remove(w, "a");
}

/* Frozen weights lie in files that checkpoints share; a run that deals them out to its drives in another way has its own. */
TEST(frozen_weights_follow_the_drives)
{
#define FROZEN TRAIN DRIVES "--set 'strata.freeze=[\"transformer.h.0.*\",\"transformer.h.1.*\"]' --quiet "
#define TWO    "--nvme {w}/nvme2 --set aio.block_size="
    const struct workplace *w = *state;
    char never_ended[160], is[160];
    struct program p;

    workplace_make_dir(w, "nvme2");
    workplace_digests(w, FROZEN "--max-steps 8", never_ended);
    workplace_digests(w, FROZEN "--max-steps 2 --save {w}/a", is);
    workplace_digests(w, FROZEN TWO "65536 --max-steps 4 --save {w}/a --resume auto", is);
    workplace_run_ok(w, &p, "verify {w}/a/step-00000004");
    program_free(&p);
    workplace_digests(w, FROZEN TWO "16384 --max-steps 6 --save {w}/a --resume auto", is);
    workplace_run_ok(w, &p, "verify {w}/a/step-00000006");
    program_free(&p);
    workplace_digests(w, FROZEN "--max-steps 8 --save {w}/a --resume auto", is);
    assert_string_equal(is, never_ended);
    workplace_remove(w, "a");
#undef TWO
#undef FROZEN
}

/* A signal ends the run after its step and saves; auto begins where there is nothing, and goes on where there is. */
TEST(auto_goes_on_after_a_signal)
{
    const struct workplace *w = *state;
    struct program p;
    char never_ended[160], is[160];

    workplace_digests(w, TRAIN "--max-steps 40 --quiet", never_ended);
    workplace_start_piped(w, &p, TRAIN "--max-steps 40 --save {w}/a --resume auto");
    program_wait_for(&p, "step 2/");
    assert_int_equal(kill(p.pid, SIGTERM), 0);
    program_wait(&p);
    assert_int_equal(p.code, 143);
    assert_non_null(strstr(p.err, "--resume goes on from "));
    program_free(&p);
    workplace_digests(w, TRAIN "--max-steps 40 --save {w}/a --resume auto --quiet", is);
    assert_string_equal(is, never_ended);
    workplace_remove(w, "a");
}

/* All steps are behind it: what is left is the evaluation after the last one, which the attempt before did not come to. */
TEST(the_last_evaluation_is_made_up_for)
{
    const struct workplace *w = *state;
    struct program p;
    size_t bytes;
    char *metrics;

    workplace_run_ok(w, &p, TRAIN "--max-steps 2 --save {w}/a --quiet");
    program_free(&p);
    workplace_run_ok(w, &p,
                     TRAIN "--max-steps 2 --save {w}/a --resume auto --eval-data {w}/good.heldout.bin --metrics {w}/m.jsonl");
    assert_non_null(strstr(p.out, "eval after step 2: loss "));
    program_free(&p);
    metrics = workplace_read(w, "m.jsonl", &bytes);
    assert_non_null(strstr(metrics, "\"eval_loss\":"));
    assert_int_equal(strncmp(metrics, "{\"run\":", 7), 0);
    free(metrics);
    workplace_remove(w, "m.jsonl");
    workplace_remove(w, "a");
}

/* SIGUSR1 saves, and the run goes on.
 *  @param said  when it has been said, the signal is sent */
static void saves_when_asked(const struct workplace *w, const char *command, const char *said)
{
    struct program p;

    workplace_start_piped(w, &p, command);
    program_wait_for(&p, said);
    assert_int_equal(kill(p.pid, SIGUSR1), 0);
    program_wait_for(&p, "checkpoint of step");
    assert_int_equal(kill(p.pid, SIGTERM), 0);
    program_wait(&p);
    assert_int_equal(p.code, 143);
    program_free(&p);
    assert_int_equal(workplace_entries(w, "a"), 3);
    workplace_remove(w, "a");
}

TEST(a_signal_asks_for_a_checkpoint)
{
    saves_when_asked(*state, TRAIN "--max-steps 400 --save {w}/a", "step 2/");
}

/* One that comes before the first step, while the run loads, saves after it. */
TEST(a_signal_may_come_early)
{
    saves_when_asked(*state,
                     "train --model mini --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --threads 1 --max-steps "
                     "1000000 --save {w}/a",
                     "shortest step");
}

/* A resumed run plans no second room for the checkpoints that its own will replace. */
TEST(a_resumed_run_needs_no_more_room)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run_ok(w, &p, TRAIN "--max-steps 4 --save {w}/a --save-every 1");
    assert_non_null(strstr(p.out, "2 kept, in 4 sets"));
    program_free(&p);
    workplace_run_ok(w, &p, TRAIN "--max-steps 8 --save {w}/a --save-every 1 --resume auto");
    assert_non_null(strstr(p.out, "2 kept, in 2 sets"));
    program_free(&p);
    assert_int_equal(workplace_entries(w, "a"), 3);
    workplace_run_ok(w, &p, TRAIN "--max-steps 8 --save {w}/b --resume {w}/a/step-00000007");
    assert_non_null(strstr(p.out, "2 kept, in 4 sets"));
    program_free(&p);
    workplace_remove(w, "a");
    workplace_remove(w, "b");
}

static void refused(const struct workplace *w, const char *command, const char *said)
{
    struct program p;

    workplace_run(w, &p, command);
    assert_int_equal(p.code, 2);
    if (strstr(p.err, said) == NULL)
        fail_msg("%s: no \"%s\" in: %s", command, said, p.err);
    program_free(&p);
}

TEST(what_cannot_be_is_refused)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run_ok(w, &p, TRAIN "--max-steps 3 --save {w}/a --quiet");
    program_free(&p);
    refused(w, TRAIN "--max-steps 2 --resume {w}/a", "--max-steps 2: the checkpoint has done 3 steps already");
    refused(w, TRAIN "--max-steps 4 --resume {w}/a --save {w}/a/step-00000003", "lies in a checkpoint");
    refused(w, TRAIN "--max-steps 4 --save {w}/b --out {w}/b", "--out and --save name the same directory");
    refused(w, TRAIN "--max-steps 4 --save {w}/a", "has checkpoints of later steps already (step-00000003)");
    refused(w, TRAIN "--max-steps 4 --resume auto", "--resume auto needs --save DIR");
    refused(w, TRAIN "--max-steps 4 --resume {w}/none", "--resume");
    refused(w, TRAIN "--max-steps 4 --resume {w}/a --seed 7", "--seed 0");
    refused(w, TRAIN "--max-steps 4 --resume {w}/a --micro-batch 2", "train_batch_size 1 (the checkpoint's) is not");
    refused(w, TRAIN "--max-steps 4 --resume {w}/a --set bf16.enabled=false", "in bf16, and this one is in fp32");
    workplace_remove(w, "a");
}

/* Files of a checkpoint are readable as others are. The model's small files are part of what is checked before an export; a run
 * that resumes does not need them. */
TEST(the_small_files_are_checked)
{
    const struct workplace *w = *state;
    const mode_t mask = umask(0);
    struct program p;
    struct stat info;
    size_t bytes;
    char *text, *file;

    umask(mask);
    workplace_run_ok(w, &p, TRAIN "--max-steps 2 --save {w}/a --quiet");
    program_free(&p);
    file = workplace_expand(w, "{w}/a/step-00000002/set.0");
    assert_int_equal(stat(file, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0666 & ~mask);
    free(file);
    text = workplace_read(w, "a/step-00000002/model/config.json", &bytes);
    text[bytes / 2] ^= 1;
    workplace_write(w, "a/step-00000002/model/config.json", text, bytes);
    for (int i = 0; i < 3; i++) {
        static const char *const commands[] = {"verify {w}/a", "export {w}/a --out {w}/out",
                                               "eval --model {w}/a --data {w}/good.bin --seq-len 32"};

        workplace_run(w, &p, commands[i]);
        assert_int_equal(p.code, 4);
        assert_non_null(strstr(p.err, "small files are not those that were saved"));
        program_free(&p);
    }
    text[bytes / 2] ^= 1;
    workplace_write(w, "a/step-00000002/model/config.json", text, bytes);
    workplace_run_ok(w, &p, "verify {w}/a");
    program_free(&p);
    workplace_write(w, "a/step-00000002/model/more", text, 1);
    workplace_run(w, &p, "verify {w}/a");
    assert_int_equal(p.code, 4);
    program_free(&p);
    workplace_run_ok(w, &p, TRAIN "--max-steps 3 --resume {w}/a --quiet");
    program_free(&p);
    free(text);
    workplace_remove(w, "a");
}

/* Steps of a file of metrics, in their order, each once; -1 where a line is no step's. */
static void assert_steps(const struct workplace *w, const char *name, int first, int last)
{
    size_t bytes;
    char *text = workplace_read(w, name, &bytes), *line = text;
    int expected = first, headers = 0;

    for (char *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = '\0';
        headers += strncmp(line, "{\"run\":", 7) == 0;
        if (strncmp(line, "{\"step\":", 8) == 0)
            assert_int_equal(atoi(line + 8), expected++);
    }
    assert_int_equal(*line, '\0');
    assert_int_equal(expected, last + 1);
    assert_int_equal(headers, 1);
    free(text);
}

/* The lines of --metrics go on behind the checkpoint, without a gap, a double, or a second header. */
TEST(metrics_go_on)
{
    const struct workplace *w = *state;
    struct program p;
    size_t bytes;
    char *metrics;

    workplace_run_ok(w, &p, TRAIN "--max-steps 5 --save {w}/a --save-every 3 --metrics {w}/m.jsonl --quiet");
    program_free(&p);
    assert_steps(w, "m.jsonl", 1, 5);
    workplace_run_ok(w, &p, TRAIN "--max-steps 6 --resume {w}/a/step-00000003 --metrics {w}/m.jsonl --quiet");
    program_free(&p);
    assert_steps(w, "m.jsonl", 1, 6);
    workplace_run_ok(w, &p, TRAIN "--max-steps 5 --resume {w}/a/step-00000003 --metrics {w}/new.jsonl --quiet");
    program_free(&p);
    assert_steps(w, "new.jsonl", 4, 5);
    metrics = workplace_read(w, "m.jsonl", &bytes);
    workplace_write(w, "m.jsonl", metrics, (size_t)(strstr(metrics, "\n{\"step\":3,") + 20 - metrics)); /* half a line of it */
    free(metrics);
    workplace_run_ok(w, &p, TRAIN "--max-steps 4 --resume {w}/a/step-00000003 --metrics {w}/m.jsonl --quiet");
    assert_non_null(strstr(p.err, "bytes of the run's earlier part"));
    program_free(&p);
    workplace_run(w, &p, TRAIN "--max-steps 4 --resume {w}/a/step-00000003 --metrics {w}/good.bin --quiet");
    assert_int_equal(p.code, 2);
    program_free(&p);
    workplace_run(w, &p, TRAIN "--max-steps 4 --resume {w}/a/step-00000003 --metrics {w}/machine.json --quiet");
    assert_int_equal(p.code, 2);
    program_free(&p);
    workplace_remove(w, "a");
    workplace_remove(w, "m.jsonl");
    workplace_remove(w, "new.jsonl");
}

/* The rows of a monitor's file after its header: multiples of a step's one sequence, from 1 on, each once. */
static void assert_rows(const struct workplace *w, const char *name, const char *header, unsigned last)
{
    size_t bytes;
    char *text = workplace_read(w, name, &bytes), *line = text;

    assert_int_equal(strncmp(text, header, strlen(header)), 0);
    line += strlen(header);
    for (unsigned i = 1; i <= last; i++) {
        char *end = strstr(line, "\r\n");

        assert_int_equal(strtoul(line, &line, 10), i);
        assert_int_equal(*line, ',');
        assert_non_null(end);
        line = end + 2;
    }
    assert_int_equal(*line, '\0');
    free(text);
}

/* The files of csv_monitor go on like --metrics; those of tensorboard are one for each attempt. */
TEST(monitors_go_on)
{
#define MONITORS                                                                                                                 \
    "--set tensorboard.enabled=true --set tensorboard.output_path={w}/mon --set csv_monitor.enabled=true "                       \
    "--set csv_monitor.output_path={w}/mon --set csv_monitor.job_name=job --quiet "
    static const char loss[] = "mon/job/Train_Samples_train_loss.csv";
    const struct workplace *w = *state;
    struct program p;

    workplace_run_ok(w, &p, TRAIN MONITORS "--max-steps 5 --save {w}/a --save-every 3");
    program_free(&p);
    assert_rows(w, loss, "step,train_loss\r\n", 5);
    assert_rows(w, "mon/job/Train_Samples_lr.csv", "step,lr\r\n", 5);
    assert_false(workplace_exists(w, "mon/job/Train_Samples_loss_scale.csv"));
    assert_int_equal(workplace_entries(w, "mon/DeepSpeedJobName"), 1);
    workplace_run_ok(w, &p, TRAIN MONITORS "--max-steps 7 --resume {w}/a/step-00000003");
    program_free(&p);
    assert_rows(w, loss, "step,train_loss\r\n", 7);
    assert_int_equal(workplace_entries(w, "mon/DeepSpeedJobName"), 2);
    refused(w, TRAIN MONITORS "--max-steps 2", "csv_monitor: ");
    workplace_run_ok(w, &p, TRAIN MONITORS "--max-steps 2 --overwrite");
    program_free(&p);
    assert_rows(w, loss, "step,train_loss\r\n", 2);
    workplace_run_ok(w, &p, TRAIN MONITORS "--max-steps 3 --save {w}/b --resume auto"); /* nothing to go on from */
    assert_non_null(strstr(p.err, "/mon/job/Train_Samples_lr.csv.2 now"));
    program_free(&p);
    assert_rows(w, loss, "step,train_loss\r\n", 3);
    workplace_run(w, &p, TRAIN MONITORS "--max-steps 3 --overwrite --fault file.write:5:1");
    assert_int_equal(p.code, 4);
    program_free(&p);
    workplace_remove(w, "a");
    workplace_remove(w, "b");
    workplace_remove(w, "mon");
#undef MONITORS
}

/* A run that a signal ends leaves its model to the run that goes on, so one command line does all. */
TEST(one_command_line_does_all)
{
    static const char command[] = TRAIN "--max-steps 60 --save {w}/a --resume auto --out {w}/out --metrics {w}/m.jsonl "
                                        "--trace {w}/t.json";
    const struct workplace *w = *state;
    struct program p;
    char was[160], is[160];

    workplace_start_piped(w, &p, command);
    program_wait_for(&p, "step 2/");
    assert_int_equal(kill(p.pid, SIGTERM), 0);
    program_wait(&p);
    assert_int_equal(p.code, 143);
    assert_non_null(strstr(p.err, "--out was not written, --resume goes on from "));
    program_free(&p);
    assert_false(workplace_exists(w, "out"));
    workplace_run_ok(w, &p, command);
    assert_non_null(strstr(p.err, "/t.json.1 now"));
    program_free(&p);
    assert_true(workplace_exists(w, "t.json") && workplace_exists(w, "t.json.1"));
    assert_true(workplace_exists(w, "out/model.safetensors"));
    assert_steps(w, "m.jsonl", 1, 60);
    workplace_digests(w, TRAIN "--max-steps 60 --quiet", was);
    workplace_run_ok(w, &p, command); /* submitted once more, its run having ended */
    assert_non_null(strstr(p.out, "nothing is left to do"));
    assert_string_equal(strstr(p.out, "weights_digest"), was);
    program_free(&p);
    assert_steps(w, "m.jsonl", 1, 60);
    assert_false(workplace_exists(w, "t.json.2"));
    refused(w, TRAIN "--max-steps 61 --save {w}/a --resume auto --out {w}/out",
            "holds a model already, and the run goes on from step 60 of 61");
    workplace_remove(w, "out");
    workplace_run_ok(w, &p, command); /* ended before its model was written */
    program_free(&p);
    assert_true(workplace_exists(w, "out/model.safetensors"));
    workplace_remove(w, "out");
    workplace_run_ok(w, &p, TRAIN "--max-steps 2 --out {w}/out --quiet");
    program_free(&p);
    refused(w, command, "holds another model than that of ");
    workplace_digests(w, TRAIN "--max-steps 60 --resume {w}/a --quiet", is);
    assert_string_equal(is, was);
    workplace_run_ok(w, &p, TRAIN "--max-steps 61 --save {w}/a --resume auto --out {w}/out --metrics {w}/m.jsonl --overwrite");
    program_free(&p);
    assert_steps(w, "m.jsonl", 1, 61);
    workplace_remove(w, "out");
    workplace_remove(w, "a");
    workplace_remove(w, "m.jsonl");
    workplace_remove(w, "t.json");
    workplace_remove(w, "t.json.1");
    workplace_remove(w, "t.json.2");
}

/* Killed before its first checkpoint: the next attempt begins, and keeps the lines of the one before under another name. */
TEST(an_attempt_that_saved_nothing_is_in_nobodys_way)
{
    static const char command[] = TRAIN "--max-steps 4 --save {w}/a --save-every 2 --resume auto --metrics {w}/m.jsonl --quiet";
    const struct workplace *w = *state;
    struct program p;

    for (int i = 0; i < 2; i++) {
        char *killed = malloc(sizeof(command) + 64);

        assert_non_null(killed);
        snprintf(killed, sizeof(command) + 64, "%s --fault commit.mkdir:0:1:kill", command);
        workplace_run(w, &p, killed);
        assert_int_equal(p.code, 128 + SIGKILL);
        program_free(&p);
        free(killed);
    }
    refused(w, TRAIN "--max-steps 4 --save {w}/a --metrics {w}/m.jsonl --quiet", "m.jsonl");
    workplace_run_ok(w, &p, command);
    assert_non_null(strstr(p.err, "/m.jsonl.2 now"));
    program_free(&p);
    assert_steps(w, "m.jsonl", 1, 4);
    assert_true(workplace_exists(w, "m.jsonl.1"));
    workplace_remove(w, "a");
    workplace_remove(w, "m.jsonl");
    workplace_remove(w, "m.jsonl.1");
    workplace_remove(w, "m.jsonl.2");
}

/* Damage that shows while a checkpoint is read: auto goes on from an older one, metrics included, and saves at its end, which is
 * no further than the damaged one. */
TEST(auto_takes_an_older_one)
{
    const struct workplace *w = *state;
    struct program p;
    char never_ended[160], is[160];
    size_t bytes;
    char *set;

    workplace_digests(w, TRAIN "--max-steps 6 --quiet", never_ended);
    workplace_run_ok(w, &p, TRAIN "--max-steps 4 --save {w}/a --save-every 2 --metrics {w}/m.jsonl --quiet");
    program_free(&p);
    set = workplace_read(w, "a/step-00000004/set.0", &bytes);
    set[bytes / 2] ^= 8;
    workplace_write(w, "a/step-00000004/set.0", set, bytes);
    free(set);
    workplace_run(w, &p, TRAIN "--max-steps 6 --resume {w}/a/step-00000004 --quiet");
    assert_int_equal(p.code, 4);
    program_free(&p);
    workplace_run_ok(w, &p, TRAIN "--max-steps 4 --save {w}/a --resume auto --metrics {w}/m.jsonl");
    assert_non_null(strstr(p.err, ": taking "));
    assert_non_null(strstr(p.out, "/a/step-00000002, after step 2\n"));
    program_free(&p);
    workplace_run_ok(w, &p, "verify {w}/a");
    program_free(&p);
    workplace_run_ok(w, &p, TRAIN "--max-steps 6 --save {w}/a --resume auto --metrics {w}/m.jsonl --quiet");
    assert_null(strstr(p.err, ": taking "));
    snprintf(is, sizeof(is), "%s", strstr(p.out, "weights_digest"));
    program_free(&p);
    assert_string_equal(is, never_ended);
    assert_steps(w, "m.jsonl", 1, 6);
    workplace_remove(w, "a");
    workplace_remove(w, "m.jsonl");
}

TEST_GROUP(workplace_setup, workplace_teardown);

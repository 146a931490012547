/* test_saves.c - what can befall a directory of checkpoints: a save that fails, a disk that is full, copies, links, moves and
 * removals, two runs at once, and many saves. */
#include "program.h"
#include "tests/common/test.h"
#include "workplace.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define TRAIN                                                                                                                    \
    "train --model nano --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --digest --set strata.watchdog=false "
#define DRIVES                                                                                                                   \
    "--nvme {w}/nvme --set zero_optimization.stage=3 --set zero_optimization.offload_optimizer.device=nvme "                     \
    "--set zero_optimization.offload_param.device=nvme --set strata.cache=0 --device-memory 20MiB "

static unsigned long saves = 12;
static char never_ended[160]; /* digests after six steps */

static void shell(const struct workplace *w, const char *command)
{
    char *line = workplace_expand(w, command);

    if (system(line) != 0)
        fail_msg("%s", line);
    free(line);
}

static const char *digests(const struct program *p)
{
    const char *at = strstr(p->out, "weights_digest");

    return at != NULL ? at : "";
}

static void expect(const struct workplace *w, const char *command, int code, const char *sentence)
{
    struct program p;

    workplace_run(w, &p, command);
    if (p.code != code || strcmp(digests(&p), never_ended) != 0 || (sentence != NULL && strstr(p.err, sentence) == NULL))
        fail_msg("%s: exit code %d\n%s%s", command, p.code, p.err, p.out);
    program_free(&p);
}

/* --- failures --- */

/* The run goes on; only a last one that failed is the run's failure, and its other results are there. */
TEST(a_save_that_fails_is_not_the_run)
{
    const struct workplace *w = *state;
    static const char *const sites[] = {"commit.mkdir", "commit.alloc:1", "nvme.fsync",
                                        "nvme.link",    "store.rename",   "file.links:2"};
    char command[512];

    for (size_t i = 0; i < sizeof(sites) / sizeof(sites[0]); i++) {
        snprintf(command, sizeof(command), TRAIN DRIVES "--max-steps 6 --save {w}/a --save-every 3 --quiet --fault %s%s:1",
                 sites[i], strchr(sites[i], ':') != NULL ? "" : ":0");
        expect(w, command, 0, "no checkpoint was made: ");
        assert_int_equal(workplace_entries(w, "a"), 2);
        assert_true(workplace_exists(w, "a/step-00000006"));
        workplace_remove(w, "a");
    }
    expect(w, TRAIN DRIVES "--max-steps 6 --save {w}/a --out {w}/out --quiet --fault commit.mkdir", 4,
           "the last checkpoint could not be made: ");
    assert_int_equal(workplace_entries(w, "a"), 1); /* what a job that is submitted again is told */
    assert_true(workplace_exists(w, "a/unsaved.json"));
    assert_true(workplace_exists(w, "out/model.safetensors"));
    workplace_remove(w, "a");
    workplace_remove(w, "out");
    expect(w, TRAIN DRIVES "--max-steps 6 --save {w}/a --save-every 3 --quiet --fault commit.mkdir:1", 4,
           "the last checkpoint could not be made: "); /* the first one could */
    assert_true(workplace_exists(w, "a/step-00000003"));
    assert_false(workplace_exists(w, "a/step-00000006"));
    workplace_remove(w, "a");
}

/* --out has the model, and no checkpoint is of its step: the same job finds its own there, with an older checkpoint or none, and
 * takes nothing else for it. */
TEST(a_job_whose_last_save_failed_finds_its_model)
{
#define JOB  TRAIN DRIVES "--max-steps 6 --save {w}/a --save-every 3 --resume auto --out {w}/out "
#define LORA "--set 'strata.lora={\"r\":4,\"target_modules\":\"all-linear\"}' "
    static const char *const faults[] = {"--fault commit.mkdir:1", "--fault commit.mkdir"};
    const struct workplace *w = *state;
    struct program p;

    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        char command[512];

        snprintf(command, sizeof(command), JOB "%s", faults[i]);
        expect(w, command, 4, "the last checkpoint could not be made: ");
        assert_int_equal(workplace_exists(w, "a/step-00000003"), i == 0);
        expect(w, JOB, 0, NULL);
        workplace_run_ok(w, &p, JOB);
        assert_non_null(strstr(p.out, "of the last step, whose checkpoint could not be made: nothing is left to do"));
        program_free(&p);
        workplace_run(w, &p, TRAIN DRIVES "--max-steps 7 --save {w}/a --save-every 3 --resume auto --out {w}/out");
        assert_int_equal(p.code, 2);
        assert_non_null(strstr(p.err, "holds a model already"));
        program_free(&p);
        workplace_run_ok(w, &p, TRAIN "--max-steps 1 --out {w}/out --overwrite --quiet"); /* another run's */
        program_free(&p);
        workplace_run(w, &p, JOB);
        assert_int_equal(p.code, 2);
        assert_non_null(strstr(p.err, "holds a model already"));
        program_free(&p);
        workplace_remove(w, "out");
        expect(w, JOB, 0, NULL); /* goes on, or begins */
        assert_false(workplace_exists(w, "a/unsaved.json"));
        workplace_remove(w, "out");
        workplace_remove(w, "a");
    }
    workplace_run(w, &p, JOB LORA "--fault commit.mkdir:1");
    assert_int_equal(p.code, 4);
    program_free(&p);
    workplace_run_ok(w, &p, JOB LORA);
    assert_non_null(strstr(p.out, "holds the adapter of the last step, whose checkpoint could not be made"));
    program_free(&p);
    workplace_remove(w, "out");
    workplace_remove(w, "a");
#undef LORA
#undef JOB
}

/* A file that has the name of what tells of a lost checkpoint, and does not say what that says. */
TEST(a_file_of_somebody_else_stays)
{
#define JOB TRAIN DRIVES "--max-steps 6 --save {w}/a --out {w}/out --quiet "
    static const char *const texts[] = {"mine", "{}", ""};
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        char *text;
        size_t bytes;

        workplace_make_dir(w, "a");
        workplace_write(w, "a/unsaved.json", texts[i], strlen(texts[i]));
        expect(w, JOB "--fault commit.mkdir", 4, "unsaved.json exists, and no run wrote it: --resume auto will not know");
        workplace_remove(w, "out");
        expect(w, JOB, 0, NULL);
        text = workplace_read(w, "a/unsaved.json", &bytes);
        assert_int_equal(bytes, strlen(texts[i]));
        assert_memory_equal(text, texts[i], bytes);
        free(text);
        workplace_remove(w, "out");
        workplace_remove(w, "a");
    }
#undef JOB
}

/* What was written of a run that a signal ended, no checkpoint of which could be made, is replaced by the same job. */
TEST(a_job_that_ended_early_unsaved_goes_on)
{
#define JOB                                                                                                                      \
    "train --model nano --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --max-steps 60 --save {w}/a --resume auto "  \
    "--out {w}/out "
    const struct workplace *w = *state;
    struct program p;

    workplace_start_piped(w, &p, JOB "--fault commit.mkdir");
    program_wait_for(&p, "step 2/");
    assert_int_equal(kill(p.pid, SIGTERM), 0);
    program_wait(&p);
    program_free(&p);
    assert_true(workplace_exists(w, "out/model.safetensors"));
    workplace_run_ok(w, &p, JOB);
    program_free(&p);
    assert_true(workplace_exists(w, "a/step-00000060") && !workplace_exists(w, "a/unsaved.json"));
    workplace_run_ok(w, &p, JOB);
    assert_non_null(strstr(p.out, "nothing is left to do"));
    program_free(&p);
    workplace_remove(w, "out");
    workplace_remove(w, "a");
#undef JOB
}

/* The checkpoint is there, and so is all of it, whatever becomes of older ones and of `latest`. */
TEST(what_fails_after_a_checkpoint_is_not_its_failure)
{
    const struct workplace *w = *state;
    struct program p;

    expect(w, TRAIN "--max-steps 6 --save {w}/a --save-every 3 --keep 1 --fault store.rename:2:1", 0,
           "a/step-00000003: cannot be removed: ");
    assert_int_equal(workplace_entries(w, "a"), 3);
    workplace_remove(w, "a");
    workplace_make_dir(w, "a");
    workplace_make_dir(w, "a/latest");
    workplace_run(w, &p, TRAIN "--max-steps 6 --save {w}/a --save-every 3 --keep 1");
    if (p.code != 0 || strstr(p.err, "latest: ") == NULL || strstr(p.err, "the checkpoint of step 6 is whole") == NULL ||
        strstr(p.err, "could not be made") != NULL || strstr(p.err, "no checkpoint was made") != NULL)
        fail_msg("exit code %d\n%s", p.code, p.err);
    program_free(&p);
    assert_true(workplace_exists(w, "a/step-00000006"));
    assert_false(workplace_exists(w, "a/step-00000003"));
    workplace_remove(w, "a");
}

/* Killed right after its last checkpoint had its name: the next run has no step to do, and ends the removal of the one before. */
TEST(a_last_removal_is_made_up_for)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run(w, &p, TRAIN DRIVES "--max-steps 6 --save {w}/a --save-every 3 --keep 1 --quiet --fault store.rename:2:1:kill");
    assert_int_equal(p.code, 128 + SIGKILL);
    program_free(&p);
    assert_true(workplace_exists(w, "a/step-00000003"));
    expect(w, TRAIN DRIVES "--max-steps 6 --save {w}/a --save-every 3 --keep 1 --resume auto --quiet", 0, NULL);
    assert_int_equal(workplace_entries(w, "a"), 2);
    assert_true(workplace_exists(w, "a/step-00000006"));
    workplace_remove(w, "a");
}

/* A run without drives has its files in SAVE; what it leaves there goes, also where the one that goes on has drives. */
TEST(what_a_dead_run_has_left_goes_whatever_the_next_one_has)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run(w, &p, TRAIN "--max-steps 6 --save {w}/a --save-every 3 --quiet --fault store.rename:1:1:kill");
    assert_int_equal(p.code, 128 + SIGKILL);
    program_free(&p);
    shell(w, "ls {w}/a/strata-*/set-* > {w}/left");
    expect(w, TRAIN DRIVES "--max-steps 6 --save {w}/a --keep 1 --resume auto --quiet", 0, "a: removed swap space of 1 dead run");
    shell(w, "test $(ls -A {w}/a | wc -l) = 2");
    assert_true(workplace_exists(w, "a/step-00000006"));
    workplace_remove(w, "a");
    workplace_remove(w, "left");
}

/* With as few sets as it can have, since its checkpoints are there: the step that saves reads one, writes the other. */
TEST(a_resumed_run_saves_each_step)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run(w, &p, TRAIN DRIVES "--max-steps 6 --save {w}/a --save-every 1 --keep 2 --quiet --fault commit.mkdir:2:1:kill");
    assert_int_equal(p.code, 128 + SIGKILL);
    program_free(&p);
    expect(w, TRAIN DRIVES "--max-steps 6 --save {w}/a --save-every 1 --keep 2 --resume auto --quiet", 0, NULL);
    expect(w, TRAIN "--max-steps 6 --resume {w}/a/step-00000005 --quiet", 0, NULL);
    workplace_remove(w, "a");
}

TEST(a_full_disk_says_how_much_is_missing)
{
    const struct workplace *w = *state;

    if (!w->mounted) {
        print_message("%s\n", w->not_mounted);
        skip();
    }
    expect(w, TRAIN DRIVES "--max-steps 6 --save {w}/full/a --save-every 3 --quiet", 4, " bytes too few");
    assert_false(workplace_exists(w, "full/a"));
}

/* --- other hands --- */

TEST(copies_are_checkpoints)
{
    const struct workplace *w = *state;
    struct program p;

    expect(w, TRAIN DRIVES "--max-steps 6 --save {w}/a --save-every 2 --keep 3 --quiet", 0, NULL);
    shell(w, "cp -r {w}/a/step-00000002 {w}/copy && cp -al {w}/a/step-00000004 {w}/linked && mv {w}/a/step-00000002 {w}/moved");
    expect(w, TRAIN "--max-steps 6 --resume {w}/copy --quiet", 0, NULL);
    expect(w, TRAIN DRIVES "--max-steps 6 --resume {w}/linked --save {w}/b --save-every 1 --keep 1 --quiet", 0, NULL);
    expect(w, TRAIN DRIVES "--max-steps 6 --resume {w}/moved --quiet", 0, NULL);
    workplace_run_ok(w, &p, "verify {w}/linked"); /* others have gone on from it */
    program_free(&p);
    shell(w, "rm -r {w}/a/step-00000004");
    expect(w, TRAIN DRIVES "--max-steps 6 --resume {w}/linked --quiet", 0, NULL);
    shell(w, "rm -r {w}/a {w}/b {w}/copy {w}/linked {w}/moved");
}

/* One drive is on the file system of --save: what checkpoints share there is reserved with the rest, and all of them are whole.
 */
TEST(drives_of_two_file_systems_save)
{
    const struct workplace *w = *state;
    struct program p;

    if (access("/dev/shm", W_OK) != 0)
        skip();
    shell(w, "d=$(mktemp -d /dev/shm/strata-test-XXXXXX) && ln -s $d {w}/shm");
    expect(w, TRAIN DRIVES "--nvme {w}/shm --max-steps 6 --save {w}/a --save-every 1 --keep 3", 0, NULL);
    for (int step = 4; step <= 6; step++) {
        char command[64];

        snprintf(command, sizeof(command), "verify {w}/a/step-0000000%d", step);
        workplace_run_ok(w, &p, command);
        program_free(&p);
    }
    shell(w, "rm -r $(readlink {w}/shm) {w}/shm {w}/a");
}

static void start_from_a_copy(const struct workplace *w, struct program *p, const char *save)
{
    char command[512];

    snprintf(command, sizeof(command), TRAIN DRIVES "--max-steps 6 --resume {w}/from --save {w}/%s", save);
    workplace_start_piped(w, p, command);
    program_wait_for(p, "resumed from");
}

/* Its files were adopted: the run has them, whatever becomes of their names. */
TEST(one_in_use_may_be_removed)
{
    const struct workplace *w = *state;
    struct program p;

    expect(w, TRAIN DRIVES "--max-steps 6 --save {w}/a --save-every 2 --keep 3 --quiet", 0, NULL);
    shell(w, "cp -al {w}/a/step-00000002 {w}/from");
    start_from_a_copy(w, &p, "b");
    shell(w, "rm -r {w}/from {w}/a");
    program_drain(&p);
    program_wait(&p);
    if (p.code != 0)
        fail_msg("%s", p.err);
    program_free(&p);
    expect(w, TRAIN "--max-steps 6 --resume {w}/b --quiet", 0, NULL);
    workplace_remove(w, "b");
}

/* All that was saved so far goes with it; the run makes it again for what it saves next. */
TEST(a_removed_directory_is_made_again)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_start_piped(w, &p, TRAIN DRIVES "--max-steps 4000 --save {w}/a");
    program_wait_for(&p, "step 2/");
    shell(w, "rm -r {w}/a");
    assert_int_equal(kill(p.pid, SIGUSR1), 0);
    program_wait_for(&p, "checkpoint of step");
    assert_int_equal(kill(p.pid, SIGTERM), 0);
    program_drain(&p);
    program_wait(&p);
    if (p.code != 143 || strstr(p.err, "was removed: it is made again") == NULL)
        fail_msg("exit code %d\n%s", p.code, p.err);
    program_free(&p);
    assert_int_equal(workplace_entries(w, "a"), 3);
    workplace_run_ok(w, &p, "verify {w}/a");
    program_free(&p);
    workplace_remove(w, "a");
}

static const char a_text[] = "What a run reads while it has no engine yet, and has looked at the names of --save already.\n";

/* Starts a run that saves to {w}/a and reads its text from a pipe, until it does. */
static void start_reading(const struct workplace *w, struct program *p, int in[2])
{
    char *line = workplace_expand(
        w, "train --model nano --data - --seq-len 32 --max-steps 3 --save {w}/a --machine {w}/machine.json --quiet");
    const char *words[WORDS_MAX], *redirect;
    int left = 1;

    program_split(line, words, &redirect);
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    program_start_in(p, words, in[0], STDERR_FILENO);
    assert_int_equal(write(in[1], a_text, strlen(a_text)), strlen(a_text));
    while (left > 0) {
        assert_int_equal(ioctl(in[0], FIONREAD, &left), 0);
        usleep(1000);
    }
    free(line);
}

/* The rest of its text. */
static void end_reading(struct program *p, const int in[2])
{
    for (int i = 0; i < 20; i++)
        assert_int_equal(write(in[1], a_text, strlen(a_text)), strlen(a_text));
    close(in[0]);
    close(in[1]);
    program_wait(p);
}

/* While the run still reads its text, before there is an engine: the first step is saved. */
TEST(a_save_may_be_asked_for_before_the_first_step)
{
    const struct workplace *w = *state;
    struct program p;
    int in[2];

    start_reading(w, &p, in);
    assert_int_equal(kill(p.pid, SIGUSR1), 0);
    usleep(20000); /* it has a thread of its own, which is asked in no time */
    end_reading(&p, in);
    assert_int_equal(p.code, 0);
    assert_true(workplace_exists(w, "a/step-00000001") && workplace_exists(w, "a/step-00000003"));
    program_free(&p);
    workplace_remove(w, "a");
}

/* Another run begins and ends before this one has the directory: it is refused as if the names had been there, not at its last
 * step. */
TEST(names_that_appear_before_the_run_begins_are_seen)
{
    const struct workplace *w = *state;
    struct program p, other;
    int in[2];

    start_reading(w, &p, in);
    workplace_run_ok(w, &other, TRAIN "--max-steps 3 --save {w}/a --quiet");
    program_free(&other);
    end_reading(&p, in);
    if (p.code != 2 || strstr(p.err, "a has checkpoints of later steps already (step-00000003)") == NULL)
        fail_msg("exit code %d\n%s", p.code, p.err);
    program_free(&p);
    workplace_run_ok(w, &other, "verify {w}/a");
    program_free(&other);
    assert_int_equal(workplace_entries(w, "a"), 2);
    workplace_remove(w, "a");
}

/* What it has just made stays, though the attempt that it left behind has checkpoints of later steps, and so does the one that
 * `latest` names. */
TEST(a_run_that_goes_back_keeps_what_it_makes)
{
    static const char *const placements[] = {"", DRIVES "--set 'strata.freeze=[\"*wte*\"]' "};
    const struct workplace *w = *state;

    for (size_t i = 0; i < 2; i++) {
        char command[1024];
        struct program p;
        size_t bytes;
        char *latest;

        snprintf(command, sizeof(command), TRAIN "%s--max-steps 8 --save {w}/a --save-every 2 --keep 4 --quiet", placements[i]);
        workplace_run_ok(w, &p, command);
        program_free(&p);
        snprintf(command, sizeof(command),
                 TRAIN "%s--max-steps 5 --save {w}/a --save-every 1 --keep 1 --resume {w}/a/step-00000002 --overwrite --quiet",
                 placements[i]);
        workplace_run_ok(w, &p, command);
        program_free(&p);
        latest = workplace_read(w, "a/latest", &bytes);
        assert_string_equal(latest, "step-00000005\n");
        free(latest);
        assert_true(workplace_exists(w, "a/step-00000005") && workplace_exists(w, "a/step-00000008"));
        assert_true(!workplace_exists(w, "a/step-00000002") && !workplace_exists(w, "a/step-00000004"));
        workplace_run_ok(w, &p, "verify {w}/a/step-00000005");
        program_free(&p);
        snprintf(command, sizeof(command), TRAIN "%s--max-steps 8 --save {w}/a --resume auto", placements[i]);
        workplace_run_ok(w, &p, command);
        assert_non_null(strstr(p.err, "step-00000008, with the most steps, but "));
        assert_non_null(strstr(p.err, "a/step-00000005 --overwrite goes on from that"));
        program_free(&p);
        workplace_remove(w, "a");
    }
}

/* A run that --overwrite has begun in another's directory goes on from its own last checkpoint, not from the most steps; damaged,
 * it takes none of the other's instead. */
TEST(a_run_that_replaces_another_goes_on_by_itself)
{
    static const char *const ways[] = {"--resume auto --overwrite", "--resume {w}/a --overwrite", "--resume auto"};
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        char command[512];
        struct program p;

        workplace_run_ok(w, &p, TRAIN DRIVES "--lr 0.5 --max-steps 8 --save {w}/a --save-every 2 --keep 4 --quiet");
        program_free(&p);
        workplace_run_ok(w, &p, TRAIN DRIVES "--max-steps 3 --save {w}/a --quiet --overwrite");
        program_free(&p);
        snprintf(command, sizeof(command), TRAIN DRIVES "--max-steps 6 --save {w}/a %s", ways[i]);
        expect(w, command, 0, "step-00000008 is of an earlier run: --resume ");
        workplace_run_ok(w, &p, TRAIN DRIVES "--max-steps 6 --save {w}/a --resume auto --overwrite"); /* it has step 6 by now */
        assert_string_equal(digests(&p), never_ended);
        assert_non_null(strstr(p.err, "a/step-00000006, made last; "));
        program_free(&p);
        shell(w,
              "printf x | dd of={w}/a/step-00000003/set.0 bs=1 seek=100 conv=notrunc status=none && rm -r {w}/a/step-00000006 && "
              "touch {w}/a/step-00000003/manifest.json");
        workplace_run(w, &p, TRAIN "--max-steps 6 --save {w}/a --resume auto --overwrite");
        assert_int_equal(p.code, 4);
        assert_null(strstr(p.err, ": taking "));
        program_free(&p);
        workplace_remove(w, "a");
    }
}

/* A notice, since a configuration may be one that other runs save with. */
TEST(without_a_directory_nothing_is_saved)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run_ok(w, &p, TRAIN "--max-steps 3 --save-every 1 --quiet");
    assert_non_null(strstr(p.err, "strata.save_every: not used: strata.save (--save) names no directory, so nothing is saved"));
    program_free(&p);
    workplace_run_ok(w, &p, TRAIN "--max-steps 3 --save-every epoch --quiet");
    assert_non_null(strstr(p.err, "--save-every epoch: not used: --save names no directory, so nothing is saved"));
    program_free(&p);
}

/* Beside checkpoints there is room for what is called otherwise, be it only by the number of digits. */
TEST(names_that_no_checkpoint_takes_are_free)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_make_dir(w, "a");
    workplace_run_ok(w, &p, TRAIN "--max-steps 2 --save {w}/a --metrics {w}/a/step-2 --trace {w}/a/latest.json --quiet");
    program_free(&p);
    assert_int_equal(workplace_entries(w, "a"), 4);
    workplace_run_ok(w, &p, "verify {w}/a");
    program_free(&p);
    workplace_remove(w, "a");
}

TEST(two_runs_go_on_from_one)
{
    const struct workplace *w = *state;
    struct program p, q;

    expect(w, TRAIN DRIVES "--max-steps 6 --save {w}/a --save-every 2 --keep 3 --quiet", 0, NULL);
    shell(w, "cp -al {w}/a/step-00000002 {w}/from");
    start_from_a_copy(w, &p, "b");
    start_from_a_copy(w, &q, "c");
    program_drain(&p);
    program_drain(&q);
    program_wait(&p);
    program_wait(&q);
    assert_int_equal(p.code, 0);
    assert_int_equal(q.code, 0);
    program_free(&p);
    program_free(&q);
    expect(w, TRAIN "--max-steps 6 --resume {w}/b --quiet", 0, NULL);
    expect(w, TRAIN "--max-steps 6 --resume {w}/c --quiet", 0, NULL);
    expect(w, TRAIN "--max-steps 6 --resume {w}/from --quiet", 0, NULL);
    shell(w, "rm -r {w}/a {w}/b {w}/c {w}/from");
}

TEST(a_second_run_is_refused)
{
    const struct workplace *w = *state;
    struct program p, q;

    workplace_start_piped(w, &p, TRAIN "--max-steps 4000 --save {w}/a");
    program_wait_for(&p, "step 2/");
    workplace_run(w, &q, TRAIN "--max-steps 6 --save {w}/a --quiet");
    assert_int_equal(q.code, 2);
    assert_non_null(strstr(q.err, "another run saves there now"));
    program_free(&q);
    assert_int_equal(kill(p.pid, SIGTERM), 0);
    program_wait(&p);
    assert_int_equal(p.code, 143);
    program_free(&p);
    assert_int_equal(workplace_entries(w, "a"), 2);
    workplace_remove(w, "a");
}

/* --- many --- */

TEST(many_saves_leave_nothing)
{
    const struct workplace *w = *state;
    struct program p;
    char command[512];

    snprintf(command, sizeof(command), TRAIN DRIVES "--max-steps %lu --save {w}/a --save-every 1 --keep 3 --quiet", saves);
    workplace_run_ok(w, &p, command);
    program_free(&p);
    assert_int_equal(workplace_entries(w, "a"), 4); /* three and latest */
    assert_int_equal(workplace_entries(w, "nvme"), 0);
    workplace_run_ok(w, &p, "verify {w}/a --pool");
    assert_null(strstr(p.out, ".strata"));
    program_free(&p);
    workplace_run_ok(w, &p, "verify {w}/a");
    program_free(&p);
    workplace_remove(w, "a");
}

static int setup(void **state)
{
    struct program p;

    if (workplace_setup(state) != 0)
        return -1;
    workplace_mount(*state);
    workplace_run_ok(*state, &p, TRAIN "--max-steps 6 --quiet");
    snprintf(never_ended, sizeof(never_ended), "%s", digests(&p));
    program_free(&p);
    return 0;
}

/* More checkpoints than this run will keep are there already: it still has a set to write while one is being saved. */
TEST(a_run_keeps_fewer_than_there_are)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run_ok(w, &p, TRAIN DRIVES "--max-steps 4 --save {w}/a --save-every 1 --keep 4 --quiet");
    program_free(&p);
    assert_true(workplace_exists(w, "a/step-00000001"));
    expect(w, TRAIN DRIVES "--max-steps 6 --save {w}/a --save-every 1 --keep 1 --resume auto --quiet", 0, NULL);
    for (int step = 1; step <= 6; step++) {
        char name[64];

        snprintf(name, sizeof(name), "a/step-%08d", step);
        assert_int_equal(workplace_exists(w, name), step == 6);
    }
    expect(w, TRAIN "--max-steps 6 --resume {w}/a --quiet", 0, NULL);
    shell(w, "rm -r {w}/a");
}

TEST_MAIN(argc, argv)
{
    if (argc > 1)
        saves = strtoul(argv[1], NULL, 10);
    return test_run(setup, workplace_teardown);
}

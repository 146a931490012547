/* tests/cli/test_files.c - what a run writes: never over something else, never together with another run, never half. */
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEPS "train --model nano --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --quiet "
#define RUN   STEPS "--max-steps 1 "
#define NEVER STEPS "--max-steps 1000000 --json "

static void ends(const struct workplace *w, const char *command, int code, const char *sentence)
{
    struct program p;

    workplace_run(w, &p, command);
    if (p.code != code || strstr(p.err, sentence) == NULL)
        fail_msg("strata %s\nexit code %d, wanted %d and \"%s\":\n%s", command, p.code, code, sentence, p.err);
    program_free(&p);
}

static void is_text(const struct workplace *w, const char *name, const char *want)
{
    size_t bytes;
    char *text = workplace_read(w, name, &bytes);

    assert_int_equal(bytes, strlen(want));
    assert_memory_equal(text, want, bytes);
    free(text);
}

static void link_to(const struct workplace *w, const char *target, const char *name)
{
    char *path = workplace_expand(w, name);

    assert_int_equal(symlink(target, path), 0);
    free(path);
}

/* Started, and past its start: the header of its metrics has come. */
static void start(const struct workplace *w, struct program *p, const char *command)
{
    char first;

    workplace_start_piped(w, p, command);
    assert_int_equal(read(p->out_fd, &first, 1), 1);
}

static void stop(struct program *p, int number)
{
    kill(p->pid, number);
    program_drain(p);
    program_wait(p);
    program_free(p);
}

TEST(a_planted_link_is_not_followed)
{
    const struct workplace *w = *state;

    workplace_write(w, "victim", "precious", 8);
    ends(w, RUN "--out {w}/out", 0, "");
    workplace_remove(w, "out/model.safetensors");
    link_to(w, "../victim", "{w}/out/model.safetensors.tmp");
    ends(w, RUN "--out {w}/out --overwrite", 0, "");
    assert_true(workplace_exists(w, "out/model.safetensors"));
    link_to(w, "../victim", "{w}/out/generation_config.json.tmp");
    workplace_remove(w, "out/model.safetensors");
    link_to(w, "../victim", "{w}/out/model.safetensors");
    ends(w, RUN "--out {w}/out --overwrite", 2, "out/model.safetensors: is a link");
    is_text(w, "victim", "precious");
    workplace_remove(w, "victim");
    workplace_remove(w, "out");
}

/* The second file of an output is one, too. */
TEST(marks_of_tokens_replace_no_input)
{
    const struct workplace *w = *state;

    workplace_write(w, "t.bin.meta", "{\"text\": \"precious\"}\n", 21);
    ends(w, "tokens {w}/t.bin.meta --format text --tokenizer tests/golden/chat/qwen --out {w}/t.bin --overwrite", 2,
         "t.bin.meta: is the same file as");
    is_text(w, "t.bin.meta", "{\"text\": \"precious\"}\n");
    workplace_remove(w, "t.bin.meta");
}

/* Scratch directories are often links. */
TEST(a_link_to_a_directory_is_followed)
{
    const struct workplace *w = *state;
    char *path = workplace_expand(w, "{w}/out");

    link_to(w, "elsewhere", "{w}/out");
    ends(w, RUN "--out {w}/out", 2, "out is a dangling link: make the directory that it names");
    workplace_make_dir(w, "elsewhere");
    ends(w, RUN "--out {w}/out", 0, "");
    assert_true(workplace_exists(w, "elsewhere/model.safetensors"));
    assert_int_equal(unlink(path), 0);
    free(path);
    workplace_remove(w, "elsewhere");
}

TEST(a_model_is_overwritten_when_asked)
{
    const struct workplace *w = *state;

    ends(w, RUN "--out {w}/out", 0, "");
    ends(w, RUN "--out {w}/out", 2, "--overwrite");
    ends(w,
         "train --model {w}/out --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --quiet --max-steps 1 --out {w}/out",
         2, "--overwrite");
    ends(w,
         "train --model {w}/out --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --quiet --max-steps 1 --out {w}/out "
         "--overwrite",
         0, "");
    ends(w, "eval --model {w}/out --data {w}/good.bin --seq-len 32", 0, "");
    workplace_remove(w, "out");
}

/* The index's shards and numbered ones go once the new file is there; nothing else does. */
TEST(old_shards_go_with_their_index)
{
    static const char index[] = "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\",\"b\":\"odd.safetensors\","
                                "\"c\":\"model.safetensors\",\"d\":\"notes.txt\"}}";
    static const char *const shards[] = {"out/model-00001-of-00002.safetensors", "out/model-00002-of-00002.safetensors",
                                         "out/odd.safetensors"};
    static const char *const others[] = {"out/notes.txt", "out/other.safetensors", "out/model-1-of-2.safetensors"};
    const struct workplace *w = *state;

    ends(w, RUN "--out {w}/out", 0, "");
    for (size_t i = 0; i < 3; i++) {
        workplace_write(w, shards[i], "old", 3);
        workplace_write(w, others[i], "mine", 4);
    }
    workplace_write(w, "out/model.safetensors.index.json", index, strlen(index));
    workplace_remove(w, "out/config.json");
    workplace_remove(w, "out/generation_config.json");
    workplace_remove(w, "out/model.safetensors");
    ends(w, RUN "--out {w}/out", 2, "out/model.safetensors.index.json: exists already");
    workplace_remove(w, "out/model.safetensors.index.json");
    ends(w, RUN "--out {w}/out", 2, "-of-00002.safetensors: exists already");
    workplace_write(w, "out/model.safetensors.index.json", index, strlen(index));
    ends(w, RUN "--out {w}/out --overwrite", 0, "");
    for (size_t i = 0; i < 3; i++) {
        assert_false(workplace_exists(w, shards[i]));
        is_text(w, others[i], "mine");
    }
    assert_false(workplace_exists(w, "out/model.safetensors.index.json"));
    ends(w, "eval --model {w}/out --data {w}/good.bin --seq-len 32", 0, "");
    workplace_remove(w, "out");
}

TEST(two_runs_do_not_share_an_output)
{
    const struct workplace *w = *state;
    struct program p;

    start(w, &p, NEVER "--out {w}/out --metrics {w}/m.jsonl --trace {w}/t.json");
    link_to(w, ".", "{w}/here");
    ends(w, RUN "--out {w}/out", 2, "another run is writing it");
    ends(w, RUN "--out {w}/here/out --overwrite", 2, "another run is writing it");
    ends(w, RUN "--metrics {w}/here/here/m.jsonl --overwrite", 2, "another run is writing it");
    ends(w, RUN "--trace {w}/here/t.json", 2, "another run is writing it");
    stop(&p, SIGTERM);
    workplace_remove(w, "out");
    workplace_remove(w, "m.jsonl");
    workplace_remove(w, "t.json");
    workplace_remove(w, "here");
}

TEST(what_a_dead_run_left_is_removed)
{
    const struct workplace *w = *state;
    struct program p;

    start(w, &p, NEVER "--out {w}/out");
    assert_int_equal(workplace_entries(w, "out"), 3);
    stop(&p, SIGKILL);
    assert_int_equal(workplace_entries(w, "out"), 3);
    workplace_write(w, "out/model.safetensors.strata-mine.tmp", "mine", 4);
    ends(w, RUN "--out {w}/out", 0, "");
    assert_int_equal(workplace_entries(w, "out"), 4);
    is_text(w, "out/model.safetensors.strata-mine.tmp", "mine");
    workplace_remove(w, "out");
}

/* What the training cost is worth more than its log. */
TEST(metrics_that_cannot_be_written_do_not_end_the_run)
{
    const struct workplace *w = *state;

    ends(w, STEPS "--max-steps 4 --metrics {w}/m.jsonl --out {w}/out --fault metrics.write:2:1:-28", 4,
         "m.jsonl cannot be written: No space left on device: the rest of the run is not in it");
    ends(w, "eval --model {w}/out --data {w}/good.bin --seq-len 32", 0, "");
    workplace_remove(w, "out");
    workplace_remove(w, "m.jsonl");
}

/* The header's line is whole, and that of the first step. */
static void take_a_step(struct program *p)
{
    char byte;

    for (int lines = 0; lines < 2; lines += byte == '\n')
        assert_int_equal(read(p->out_fd, &byte, 1), 1);
}

static void ended(struct program *p, int code, const char *sentence)
{
    kill(p->pid, SIGTERM);
    program_drain(p);
    program_wait(p);
    if (p->code != code || strstr(p->err, sentence) == NULL)
        fail_msg("exit code %d, wanted %d and \"%s\":\n%s", p->code, code, sentence, p->err);
    program_free(p);
}

TEST(outputs_that_others_move_or_remove_are_told_of)
{
    const struct workplace *w = *state;
    char *from = workplace_expand(w, "{w}/out"), *to = workplace_expand(w, "{w}/moved");
    struct program p;

    start(w, &p, NEVER "--metrics {w}/m.jsonl");
    workplace_remove(w, "m.jsonl");
    take_a_step(&p);
    ended(&p, 143, "m.jsonl was removed or replaced while it was being written");
    start(w, &p, NEVER "--out {w}/out");
    assert_int_equal(rename(from, to), 0);
    take_a_step(&p);
    ended(&p, 143, "was moved while it was being written: it is now ");
    ends(w, "eval --model {w}/moved --data {w}/good.bin --seq-len 32", 0, "");
    ends(w, STEPS "--max-steps 1 --out {w}/out", 0, "");
    workplace_remove(w, "moved");
    workplace_remove(w, "out");
    free(from);
    free(to);
}

TEST(a_broken_standard_output_does_not_end_the_run)
{
    const struct workplace *w = *state;

    ends(w, STEPS "--max-steps 4 --json --out {w}/out >/dev/full", 4,
         "cannot write to standard output: No space left on device: no more lines are written there, the run goes on");
    ends(w, "eval --model {w}/out --data {w}/good.bin --seq-len 32", 0, "");
    workplace_remove(w, "out");
}

/* A name that stands for both: the preset is taken, and how to name the directory is said. */
TEST(a_preset_goes_before_a_directory_of_its_name)
{
    static const char notice[] =
        "nano is both a preset and a directory here: using the preset; for the directory say --model ./nano";
    const struct workplace *w = *state;
    const int home = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct program p;
    bool told;

    workplace_make_dir(w, "nano");
    assert_true(home >= 0 && chdir(w->path) == 0);
    workplace_run(w, &p, "plan --model nano --seq-len 32 --json");
    told = p.code == 0 && strstr(p.err, notice) != NULL && strstr(p.out, "\"model\":\"nano\"") != NULL;
    if (!told)
        print_error("exit code %d\n%s%.300s\n", p.code, p.err, p.out);
    program_free(&p);
    workplace_run(w, &p, "plan --model ./nano --seq-len 32");
    told = told && p.code == 2 && strstr(p.err, notice) == NULL && strstr(p.err, "./nano/config.json") != NULL;
    assert_int_equal(fchdir(home), 0);
    close(home);
    if (!told)
        fail_msg("exit code %d\n%s", p.code, p.err);
    program_free(&p);
    workplace_run_ok(w, &p, "plan --model nano --seq-len 32");
    assert_null(strstr(p.err, "both a preset"));
    program_free(&p);
    workplace_remove(w, "nano");
}

TEST_GROUP(workplace_setup, workplace_teardown);

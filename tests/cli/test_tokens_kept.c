/* tests/cli/test_tokens_kept.c - what train makes of texts and rows stays beside --out for the next run, and nowhere else. */
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define TRAIN   "train --model nano --seq-len 32 --max-steps 2 --machine {w}/machine.json --digest --overwrite --data "
#define MADE    "tokens kept for the next run"
#define FOUND   "reusing cached tokens: "
#define REFUSED "notice: tokens are not kept: "

/* The lines with digests. */
static void run(const struct workplace *w, const char *command, const char *said, char digests[256])
{
    struct program p;
    const char *at;

    workplace_run_ok(w, &p, command);
    if (said != NULL ? strstr(p.err, said) == NULL : strstr(p.err, "kept") != NULL)
        fail_msg("%s: %s", command, p.err);
    at = strstr(p.out, "weights_digest");
    assert_non_null(at);
    snprintf(digests, 256, "%s", at);
    program_free(&p);
    assert_int_equal(workplace_entries(w, "tmp"), 0);
}

/* A name in a directory of the workplace that ends so. */
static void find(const struct workplace *w, const char *dir, const char *end, char name[256])
{
    char *path = workplace_expand(w, dir);
    DIR *stream = opendir(path);
    const struct dirent *entry;

    assert_non_null(stream);
    name[0] = '\0';
    while ((entry = readdir(stream)) != NULL)
        if (strlen(entry->d_name) > strlen(end) && strcmp(entry->d_name + strlen(entry->d_name) - strlen(end), end) == 0)
            snprintf(name, 256, "%s", entry->d_name);
    closedir(stream);
    free(path);
    assert_true(name[0] != '\0');
}

TEST(the_next_run_takes_what_the_last_one_made)
{
    const struct workplace *w = *state;
    char first[256], second[256], plain[256], name[256], tokens[512];
    struct program p;

    run(w, TRAIN "{w}/a.txt", NULL, plain); /* no --out: nothing stays */
    run(w, TRAIN "{w}/a.txt --eval-data {w}/b.txt --out {w}/out/", "out.tokens/", first);
    assert_string_equal(first, plain);
    assert_int_equal(workplace_entries(w, "out.tokens"), 4);
    run(w, TRAIN "{w}/a.txt --eval-data {w}/b.txt --out {w}/out", FOUND, second);
    assert_string_equal(first, second);
    assert_int_equal(workplace_entries(w, "out.tokens"), 4);
    find(w, "{w}/out", "config.json", name);
    workplace_run(w, &p, "digest {w}/out"); /* nothing but a model is in it */
    assert_int_equal(p.code, 0);
    program_free(&p);
    find(w, "{w}/out.tokens", ".bin", name);
    snprintf(tokens, sizeof(tokens), "eval --model {w}/model --seq-len 32 --data {w}/out.tokens/%s", name);
    workplace_run_ok(w, &p, tokens); /* they are token files like others */
    program_free(&p);
}

TEST(a_text_that_changes_is_read_again)
{
    const struct workplace *w = *state;
    char first[256], second[256], again[256];

    workplace_write(w, "c.txt", "abcdefghijklmnopqrstuvwxyz abcdefghijklmnopqrstuvwxyz abcdefghijklmnopqrstuvwxyz", 80);
    run(w, TRAIN "{w}/c.txt --out {w}/changes", MADE, first);
    workplace_write(w, "c.txt", "abcdefghijklmnopqrstuvwxyz abcdefghijKLMnopqrstuvwxyz abcdefghijklmnopqrstuvwxyz", 80);
    run(w, TRAIN "{w}/c.txt --out {w}/changes", MADE, second);
    run(w, TRAIN "{w}/c.txt", NULL, again);
    assert_string_equal(second, again);
    assert_string_not_equal(first, second);
}

/* Damage, half of a pair as a power cut leaves it, and what a run that was killed has left. */
TEST(what_is_left_of_other_runs_does_no_harm)
{
    const struct workplace *w = *state;
    char first[256], second[256], bin[256], path[600];
    char *text;
    size_t bytes;

    run(w, TRAIN "{w}/a.txt --out {w}/left", MADE, first);
    find(w, "{w}/left.tokens", ".bin", bin);
    snprintf(path, sizeof(path), "left.tokens/%s", bin);
    text = workplace_read(w, path, &bytes);
    text[bytes - 1] ^= 1;
    workplace_write(w, path, text, bytes);
    free(text);
    run(w, TRAIN "{w}/a.txt --out {w}/left", "now it is made again", second);
    assert_string_equal(first, second);
    workplace_remove(w, path);
    snprintf(path, sizeof(path), "left.tokens/%s.strata-0123456789abcdef.tmp", bin);
    workplace_write(w, path, "half", 4);
    run(w, TRAIN "{w}/a.txt --out {w}/left", MADE, second);
    assert_string_equal(first, second);
    assert_int_equal(workplace_entries(w, "left.tokens"), 2);
    run(w, TRAIN "{w}/a.txt --out {w}/left", FOUND, second);
    assert_string_equal(first, second);
}

TEST(where_nothing_can_be_kept_runs_go_on)
{
    const struct workplace *w = *state;
    char plain[256], got[256];

    run(w, TRAIN "{w}/a.txt", NULL, plain);
    workplace_write(w, "taken.tokens", "mine", 4);
    run(w, TRAIN "{w}/a.txt --out {w}/taken", REFUSED, got);
    assert_string_equal(got, plain);
    run(w, TRAIN "{w}/a.txt --out {w}/full --fault file.write:0:1:-28", REFUSED, got);
    assert_string_equal(got, plain);
    assert_false(workplace_exists(w, "full.tokens"));
    run(w, TRAIN "{w}/a.txt --out {w}/forbidden --fault file.create:0:1:-13", REFUSED, got);
    assert_string_equal(got, plain);
    assert_false(workplace_exists(w, "forbidden.tokens"));
}

/* While one run makes them, which its lock shows, another with the same texts makes its own. */
TEST(two_runs_at_once_do_not_meet)
{
    const struct workplace *w = *state;
    char first[256], second[256], bin[256], name[600], *path;
    int fd;

    run(w, TRAIN "{w}/a.txt --out {w}/pair", MADE, first);
    find(w, "{w}/pair.tokens", ".bin", bin);
    snprintf(name, sizeof(name), "pair.tokens/%s", bin);
    workplace_remove(w, name);
    snprintf(name, sizeof(name), "{w}/pair.tokens/%s.strata-0123456789abcdef.tmp", bin);
    path = workplace_expand(w, name);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0);
    run(w, TRAIN "{w}/a.txt --out {w}/pair", "another run is writing it", second);
    assert_string_equal(first, second);
    assert_int_equal(workplace_entries(w, "pair.tokens"), 2); /* the other's, and what lay beside the file that was removed */
    close(fd);
    free(path);
    run(w, TRAIN "{w}/a.txt --out {w}/pair", MADE, second);
    assert_string_equal(first, second);
    assert_int_equal(workplace_entries(w, "pair.tokens"), 2);
}

/* Neither a run that does not fit nor one whose outputs are refused makes tokens first. */
TEST(runs_that_cannot_be_make_nothing)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run(w, &p, TRAIN "{w}/a.txt --out {w}/never --device-memory 1MiB");
    assert_int_equal(p.code, 3);
    program_free(&p);
    workplace_run(w, &p, TRAIN "{w}/a.txt --out {w}/never --metrics {w}/nowhere/m.jsonl");
    assert_int_equal(p.code, 2);
    program_free(&p);
    assert_false(workplace_exists(w, "never"));
    assert_false(workplace_exists(w, "never.tokens"));
}

static int setup(void **state)
{
    const int code = workplace_setup(state);
    char text[4096], *dir = workplace_expand(*state, "{w}/tmp");

    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)(' ' + i * i / 32 % 90);
    workplace_write(*state, "a.txt", text, sizeof(text));
    workplace_write(*state, "b.txt", text, sizeof(text) / 2);
    assert_int_equal(mkdir(dir, 0700), 0);
    setenv("TMPDIR", dir, 1);
    free(dir);
    return code;
}

TEST_GROUP(setup, workplace_teardown);

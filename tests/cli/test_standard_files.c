/* tests/cli/test_standard_files.c - standard files that are closed, full or not read, and limits on files: sentences, nothing
 * lost in files of others, nothing left. */
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/child.h"
#include "tests/common/test.h"

#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define TRAIN "train --model nano --data {w}/good.bin --seq-len 32 --max-steps 2 --machine {w}/machine.json "

/* Exit code of strata with standard files closed. */
static int run_closed(const struct workplace *w, const char *command)
{
    char *line = workplace_expand(w, command);
    const char *words[WORDS_MAX], *redirect, *argv[WORDS_MAX + 1] = {STRATA_BINARY};
    int count = program_split(line, words, &redirect), code;
    pid_t pid;

    for (int i = 0; i <= count; i++)
        argv[i + 1] = words[i];
    pid = child_fork();
    if (pid == 0) {
        for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
            close(fd);
        execv(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    code = child_wait(pid);
    free(line);
    return code;
}

/* What is printed goes nowhere, which is an error, and not into the first file that is opened; the run's own files are whole. */
TEST(closed_files_are_nobodys)
{
    const struct workplace *w = *state;
    size_t bytes;
    char *metrics;

    assert_int_equal(run_closed(w, TRAIN "--metrics {w}/m.jsonl --digest"), 4);
    metrics = workplace_read(w, "m.jsonl", &bytes);
    for (const char *line = metrics; *line != '\0'; line = strchr(line, '\n') + 1)
        assert_int_equal(*line, '{');
    assert_null(strstr(metrics, "weights_digest "));
    free(metrics);
    workplace_remove(w, "m.jsonl");
}

TEST(a_pipe_that_nobody_reads_is_an_exit_code)
{
    static const char *const commands[] = {"--help",
                                           "plan --model gpt2 --micro-batch 1 --machine {w}/machine.json",
                                           "info --json",
                                           "train --help",
                                           TRAIN "--json",
                                           "eval --model {w}/model --data {w}/good.heldout.bin --seq-len 32",
                                           "generate --model {w}/model --prompt x --max-tokens 9",
                                           "digest {w}/model"};
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        char *line = workplace_expand(w, commands[i]);
        const char *words[WORDS_MAX], *redirect;
        struct program p;
        int ends[2];

        program_split(line, words, &redirect);
        assert_int_equal(pipe(ends), 0);
        close(ends[0]);
        program_start_on(&p, words, ends[1], -1);
        close(ends[1]);
        program_wait(&p);
        if (p.code != 4 || strstr(p.err, "error") != NULL)
            fail_msg("strata %s: exit code %d: %s", commands[i], p.code, p.err);
        program_free(&p);
        free(line);
    }
}

TEST(limits_on_files_are_named)
{
    static const struct {
        const char *command, *name;
        int code;
    } cases[] = {
        {TRAIN "--out {w}/out", "model.safetensors", 3},
        {"tokens {w}/text --out {w}/new.bin", "new.bin", 4},
        {TRAIN "--nvme {w}/nvme --set zero_optimization.offload_optimizer.device=nvme --set strata.cache=0", "swap-0", 3},
    };
    const struct rlimit small = {.rlim_cur = 4096, .rlim_max = RLIM_INFINITY};
    const struct workplace *w = *state;
    struct rlimit before;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct program p;

        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        workplace_start_piped(w, &p, cases[i].command);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        program_drain(&p);
        program_wait(&p);
        if (p.code != cases[i].code || strstr(p.err, cases[i].name) == NULL ||
            strstr(p.err, "ulimit -f allows 4096 bytes") == NULL)
            fail_msg("strata %s: exit code %d: %s", cases[i].command, p.code, p.err);
        program_free(&p);
        assert_false(workplace_exists(w, "out"));
        assert_false(workplace_exists(w, "new.bin"));
        assert_int_equal(workplace_entries(w, "nvme"), 0);
    }
}

/* What stands in the file of metrics when it meets the limit is whole lines. */
TEST(metrics_end_with_a_line)
{
    const struct rlimit small = {.rlim_cur = 16384, .rlim_max = RLIM_INFINITY};
    const struct workplace *w = *state;
    struct rlimit before;
    struct program p;
    size_t bytes;
    char *text;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    workplace_start_piped(w, &p,
                          "train --model nano --data {w}/good.bin --seq-len 32 --max-steps 40 --machine {w}/machine.json --quiet "
                          "--metrics {w}/lines.jsonl");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    program_drain(&p);
    program_wait(&p);
    if (p.code != 4 || strstr(p.err, "lines.jsonl cannot be written") == NULL)
        fail_msg("exit code %d: %s", p.code, p.err);
    text = workplace_read(w, "lines.jsonl", &bytes);
    assert_true(bytes > 1024 && bytes < small.rlim_cur);
    assert_int_equal(text[bytes - 1], '\n');
    free(text);
    program_free(&p);
}

/* A stack that is too small is said so, rather than overrun. */
TEST(a_small_stack_is_refused)
{
    const struct rlimit small = {.rlim_cur = 65536, .rlim_max = RLIM_INFINITY};
    const struct workplace *w = *state;
    struct rlimit before;
    struct program p;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* they need more of it themselves */
#endif
    assert_int_equal(getrlimit(RLIMIT_STACK, &before), 0);
    assert_int_equal(setrlimit(RLIMIT_STACK, &small), 0);
    workplace_start_piped(w, &p, "plan --model nano --micro-batch 1");
    assert_int_equal(setrlimit(RLIMIT_STACK, &before), 0);
    program_drain(&p);
    program_wait(&p);
    if (p.code != 3 || strstr(p.err, "ulimit -s allows stacks of 64 KiB; 256 KiB are needed") == NULL)
        fail_msg("exit code %d: %s", p.code, p.err);
    program_free(&p);
}

/* Memory that is refused inside a library ends a process somehow; so a run that would meet a limit does not begin. */
TEST(limits_on_memory_are_named)
{
    static const struct {
        __rlimit_resource_t resource;
        const char *more, *sentence;
    } cases[] = {
        {RLIMIT_AS, "", "does not fit: .*; ulimit -v leaves .*, the process takes .*: raise ulimit -v"},
        {RLIMIT_DATA, "", "does not fit: .*; ulimit -d leaves .*, the process takes .*: raise ulimit -d"},
        {RLIMIT_AS, "--host-memory 64MiB --device-memory 32MiB", "the plan takes .* of memory, ulimit -v leaves "},
    };
    const struct workplace *w = *state;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* they map terabytes */
#endif
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char command[512];
        struct rlimit before, small;
        struct program p;
        regex_t sentence;

        snprintf(command, sizeof(command), TRAIN "%s", cases[i].more);
        assert_int_equal(getrlimit(cases[i].resource, &before), 0);
        small = (struct rlimit){.rlim_cur = 130u << 20, .rlim_max = before.rlim_max};
        assert_int_equal(setrlimit(cases[i].resource, &small), 0);
        workplace_start_piped(w, &p, command);
        assert_int_equal(setrlimit(cases[i].resource, &before), 0);
        program_drain(&p);
        program_wait(&p);
        assert_int_equal(regcomp(&sentence, cases[i].sentence, REG_EXTENDED | REG_NOSUB), 0);
        if (p.code != 3 || regexec(&sentence, p.err, 0, NULL, 0) != 0)
            fail_msg("strata %s: exit code %d: %s", command, p.code, p.err);
        regfree(&sentence);
        program_free(&p);
    }
}

TEST_GROUP(workplace_setup, workplace_teardown);

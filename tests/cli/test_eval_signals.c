/* tests/cli/test_eval_signals.c - a signal that comes while the model of the second of several adapters is loaded, or while it is
 * evaluated: the exit code and the sentence are the signal's, and the first adapter's line is printed.
 *
 * The linker puts the functions here before the library's, so that the signal comes when it should. */
#include "cli/cli_signals.h"
#include "cli/commands/commands.h"
#include "strata/engine.h"
#include "tests/common/child.h"
#include "tests/common/free_port.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"
#include "tests/common/whole_file.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODEL   "tests/golden/families/gpt2_exact"
#define ADAPTER "tests/golden/adapters/gpt2_exact"

static unsigned loads_left, passes_left; /* until the signal; 0: none comes there */

strata_status __wrap_strata_engine_load(struct strata_engine *engine);
strata_status __real_strata_engine_load(struct strata_engine *engine);
strata_status __wrap_strata_engine_eval_data(struct strata_engine *engine, struct strata_data *data, struct strata_eval *result);
strata_status __real_strata_engine_eval_data(struct strata_engine *engine, struct strata_data *data, struct strata_eval *result);

/* As if it had just come. */
static void come(int number)
{
    kill(getpid(), number);
    while (cli_signals_pending() == 0)
        sched_yield();
}

strata_status __wrap_strata_engine_load(struct strata_engine *engine)
{
    if (loads_left > 0 && --loads_left == 0)
        come(SIGTERM);
    return __real_strata_engine_load(engine);
}

strata_status __wrap_strata_engine_eval_data(struct strata_engine *engine, struct strata_data *data, struct strata_eval *result)
{
    if (passes_left > 0 && --passes_left == 0)
        come(SIGINT);
    return __real_strata_engine_eval_data(engine, data, result);
}

/* The program's own is beside its main(). */
int cli_fail(strata_status st)
{
    fprintf(stderr, "error: %s\n", strata_last_error());
    return st == STRATA_OK ? 0 : 1;
}

static void redirect(int fd, const char *name)
{
    const int file = open(scratch_path(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (file < 0 || dup2(file, fd) < 0)
        _exit(125);
}

/* The command in a process of its own, which is rank 0 of one or one of two.  Its output is in "out" and "err", and "out1" and
 * "err1". */
static pid_t start(unsigned rank, unsigned ranks, unsigned port, unsigned loads, unsigned passes)
{
    char numbers[3][16];
    const char *const words[] = {"strata",        "eval",       "--model",   MODEL,      "--data",       MODEL "/tokens.bin",
                                 "--seq-len",     "32",         "--threads", "1",        "--adapter",    "a=" ADAPTER,
                                 "b=" ADAPTER,    "c=" ADAPTER, "--rank",    numbers[0], "--world-size", numbers[1],
                                 "--master-port", numbers[2]};
    struct cli_args args;
    const pid_t pid = child_fork();
    int code;

    if (pid > 0)
        return pid;
    snprintf(numbers[0], sizeof(numbers[0]), "%u", rank);
    snprintf(numbers[1], sizeof(numbers[1]), "%u", ranks);
    snprintf(numbers[2], sizeof(numbers[2]), "%u", port);
    redirect(STDOUT_FILENO, rank == 0 ? "out" : "out1");
    redirect(STDERR_FILENO, rank == 0 ? "err" : "err1");
    signal(SIGINT, SIG_DFL); /* ignored in a script's background */
    loads_left = loads;
    passes_left = passes;
    if (cli_signals_start() != STRATA_OK ||
        cli_args_parse(&args, CLI_CMD_EVAL, sizeof(words) / sizeof(words[0]), (char **)(uintptr_t)words) != STRATA_OK)
        _exit(125);
    code = cmd_eval(&args);
    fflush(stdout);
    _exit(code);
}

/* By one rank; returns its exit code. */
static int evaluate(unsigned loads, unsigned passes)
{
    return child_wait(start(0, 1, free_port(), loads, passes));
}

static void says(const char *name, const char *wanted)
{
    size_t bytes;
    char *text = read_file(scratch_path(name), &bytes);

    if (strncmp(text, wanted, strlen(wanted)) != 0)
        fail_msg("\"%s\" does not begin with \"%s\"", text, wanted);
    free(text);
}

static uint32_t lines_of(const char *name)
{
    size_t bytes;
    char *text = read_file(scratch_path(name), &bytes);
    uint32_t count = 0;

    for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++)
        count++;
    free(text);
    return count;
}

TEST(without_a_signal_there_is_a_line_each)
{
    assert_int_equal(evaluate(0, 0), 0);
    says("out", "a: loss ");
    says("err", "");
    assert_int_equal(lines_of("out"), 3);
}

TEST(a_signal_while_the_next_model_is_loaded)
{
    assert_int_equal(evaluate(2, 0), 128 + SIGTERM);
    says("out", "a: loss ");
    says("err", "strata: ended by SIGTERM after 0 of 80 windows\n");
    assert_int_equal(lines_of("out"), 1);
}

TEST(a_signal_while_it_is_evaluated)
{
    assert_int_equal(evaluate(0, 3), 128 + SIGINT);
    says("out", "a: loss ");
    says("err", "strata: ended by Ctrl-C after 0 of 80 windows\n");
    assert_int_equal(lines_of("out"), 2);
}

/* It has come to one of them alone: all end, where all hear of it. */
TEST(a_signal_to_a_rank_while_the_next_model_is_loaded)
{
    const unsigned port = free_port();
    const pid_t first = start(0, 2, port, 0, 0), second = start(1, 2, port, 2, 0);

    assert_int_equal(child_wait(second), 128 + SIGTERM);
    assert_int_equal(child_wait(first), 128 + SIGTERM);
    says("out", "a: loss ");
    says("err", "2 ranks (--rank and --world-size), 2 on this machine, by tcp\nstrata: ended by SIGTERM after 0 of 80 windows\n");
    assert_int_equal(lines_of("out"), 1);
    says("err1", "");
}

TEST_GROUP(scratch_create, scratch_remove);

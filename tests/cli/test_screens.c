/* tests/cli/test_screens.c - what people see on terminals of several widths, on a dumb one, and in a pipe. */
#include "tests/cli/program.h"
#include "tests/cli/terminal.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRAIN                                                                                                                    \
    "train --model nano --data {w}/good.bin --seq-len 128 --max-steps 12 --machine {w}/machine.json --set steps_per_print=5 "    \
    "--eval-data {w}/good.heldout.bin"

static const unsigned widths[] = {60, 80, 120, 200};
#define WIDTH_COUNT (sizeof(widths) / sizeof(widths[0]))

/* The line that begins so, NULL if there is none; into buf. */
static const char *line_of(char buf[1024], const char *screen, const char *begin)
{
    char *at;

    snprintf(buf, 1024, "\n%s", begin);
    at = strstr(screen, buf);
    if (at == NULL)
        return NULL;
    snprintf(buf, 1024, "%.*s", (int)strcspn(at + 1, "\n"), at + 1);
    return buf;
}

static void fail_screen(const char *screen, const char *what, unsigned columns)
{
    fail_msg("%s, at %u columns:\n%s", what, columns, screen);
}

/* The first three steps, every fifth and the last stay; each says what matters most. */
TEST(steps_leave_a_history)
{
    static const unsigned kept[] = {1, 2, 3, 5, 10, 12}, gone[] = {4, 6, 7, 8, 9, 11};

    for (size_t w = 0; w < WIDTH_COUNT; w++) {
        struct program p;
        char begin[32], line[1024];
        char *screen;

        terminal_run(*state, &p, TRAIN, widths[w], "xterm", true);
        assert_int_equal(p.code, 0);
        screen = terminal_screen(p.out);
        for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
            snprintf(begin, sizeof(begin), "step %u/12 | loss ", kept[i]);
            if (line_of(line, screen, begin) == NULL)
                fail_screen(screen, begin, widths[w]);
            if (strstr(line, " | MEMORY PRESSURE") != NULL) /* of a busy machine: it takes the place of others */
                continue;
            if (strstr(line, " ms | ") == NULL || strstr(line, " tok/s | ETA ") == NULL)
                fail_screen(screen, begin, widths[w]);
            if ((strstr(line, " | lr ") != NULL) != (widths[w] >= 120) || strstr(line, " | fwd ") != NULL)
                fail_screen(screen, "more, or less, than fits", widths[w]);
        }
        for (size_t i = 0; i < sizeof(gone) / sizeof(gone[0]); i++) {
            snprintf(begin, sizeof(begin), "step %u/12 ", gone[i]);
            if (line_of(line, screen, begin) != NULL || strstr(p.out, begin) == NULL)
                fail_screen(screen, begin, widths[w]);
        }
        if (terminal_widest(screen) > widths[w])
            fail_screen(screen, "wider than the terminal", widths[w]);
        free(screen);
        program_free(&p);
    }
}

/* Rates a million times too low, as of a machine that stood still while they were measured: a step beats the bound they give, so
 * it is none, and neither is the fraction of the peak. */
TEST(no_step_beats_a_bound)
{
    static const char slow[] = "{\"matmul_flops\":1e5,\"upload\":1e4,\"download\":1e4,\"update\":1e3}";
    static const char command[] =
        "train --model nano --data {w}/good.bin --seq-len 32 --max-steps 3 --machine {w}/slow.json --verbose --metrics "
        "{w}/slow.jsonl --overwrite";
    char *metrics;
    size_t bytes;
    struct program p;

    workplace_write(*state, "slow.json", slow, strlen(slow));
    workplace_run_ok(*state, &p, command);
    metrics = workplace_read(*state, "slow.jsonl", &bytes);
    assert_null(strstr(p.out, "x bound"));
    assert_null(strstr(p.out, "MFU"));
    assert_non_null(strstr(p.out, " | faster than the rates allow | "));
    assert_non_null(strstr(p.out, " steps were faster than the rates allow"));
    assert_non_null(strstr(metrics, "\"bound_holds\":false"));
    free(metrics);
    program_free(&p);
    workplace_remove(*state, "slow.json");
    workplace_remove(*state, "slow.jsonl");
}

/* Loading and evaluating show themselves and leave nothing behind; short work is not worth a line of a pipe's. */
TEST(work_shows_itself)
{
    static const struct {
        const char *command, *work[2];
    } rows[] = {
        {TRAIN, {"making initial weights", "evaluating"}},
        {"eval --model {w}/model --data {w}/good.heldout.bin --seq-len 128", {"loading weights", "evaluating"}},
        {"generate --model {w}/model --prompt x --max-tokens 2", {"loading weights", "loading weights"}},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct program shown, piped;
        char *screen;

        terminal_run(*state, &shown, rows[i].command, 80, "xterm", true);
        assert_int_equal(shown.code, 0);
        workplace_run_ok(*state, &piped, rows[i].command);
        screen = terminal_screen(shown.out);
        for (size_t k = 0; k < 2; k++) {
            if (strstr(shown.out, rows[i].work[k]) == NULL || strstr(screen, rows[i].work[k]) != NULL)
                fail_screen(shown.out, rows[i].work[k], 80);
            assert_null(strstr(piped.out, rows[i].work[k]));
            assert_null(strstr(piped.err, rows[i].work[k]));
        }
        free(screen);
        program_free(&shown);
        program_free(&piped);
    }
}

/* Errors and notices are sentences of any length: broken between words, too. */
TEST(sentences_fit)
{
    static const char *const commands[] = {
        "plan --model gpt2 --config configs/zero3_cpu.json --machine tests/machines/laptop-8gb.json --nvme {w}/nvme",
        "plan --model gpt2-xl --micro-batch 1 --machine tests/machines/laptop-8gb.json",
        "train --model no-such-preset --data {w}/good.bin --max-steps 1",
        "check {w}/wrong.json",
        "generate --model {w}/model --prompt x --max-tokens 2 --top-p 0.5",
        "train --model nano --data {w}/good.bin --max-steps 1 --config {w}/wrong.json",
    };
    static const char wrong[] = "{\"no_such_key_of_any_configuration\": 1, \"nor_this_one_either_as_it_seems\": 2}";

    workplace_write(*state, "wrong.json", wrong, strlen(wrong));
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        struct program p;
        char *screen;

        terminal_run(*state, &p, commands[i], 60, "xterm", true);
        screen = terminal_screen(p.out);
        if (strstr(screen, "strata: ") == NULL || terminal_widest(screen) > 60)
            fail_screen(screen, commands[i], 60);
        free(screen);
        program_free(&p);
    }
}

TEST(tables_fit)
{
    static const char *const commands[] = {
        "--help",
        "train --help",
        "bench --help",
        "bench step --help",
        "info --nvme {w}/nvme",
        "check configs/zero3_nvme.json",
        "plan --model gpt2 --grad-accum 4 --machine tests/machines/laptop-8gb.json",
        "plan --model tests/cli/two-blocks --machine tests/machines/laptop-8gb.json",
        "bench update --params 64K --repeats 1",
        "bench step --model nano --seq-len 32 --simulate --machine tests/machines/two-cores.json",
        TRAIN,
    };

    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        struct program p;
        char *screen;

        terminal_run(*state, &p, commands[i], 80, "xterm", false);
        screen = terminal_screen(p.out);
        if (terminal_widest(screen) > 80)
            fail_screen(screen, commands[i], 80);
        free(screen);
        program_free(&p);
    }
}

/* A table's second row comes on a page without its header. */
TEST(bench_steps_fit_and_are_counted)
{
    struct program p;
    char *screen;

    terminal_run(*state, &p,
                 "bench step --model nano --seq-len 32 --steps 1 --fault machine.patience:0:0:0 --machine {w}/machine.json", 80,
                 "xterm", true);
    assert_int_equal(p.code, 0);
    screen = terminal_screen(p.out);
    if (strstr(p.out, "step, repeat 1 of 1") == NULL || strstr(screen, "\nstep            serial ") == NULL)
        fail_screen(p.out, "a step is not counted, or a schedule is missing", 80);
    if (terminal_widest(screen) > 80)
        fail_screen(screen, "wider than the terminal", 80);
    free(screen);
    program_free(&p);
}

/* Milliseconds and a percentage end the line that begins so. */
static bool has_figures(const char *screen, const char *begin)
{
    const char *at = strstr(screen, begin);
    unsigned ms, percent, tenths;
    int end = 0;

    return at != NULL && sscanf(at + strlen(begin), "%u ms -%u.%u %%%n", &ms, &percent, &tenths, &end) == 3 && end > 0 &&
           at[strlen(begin) + (size_t)end] == '\n';
}

/* A row of the plan's tables stays whole: closer together, then below its label. */
TEST(rows_of_a_plan_stay_whole)
{
    static const struct {
        unsigned columns;
        const char *budget, *more; /* more: up to its figures; NULL: not looked for */
    } rows[] = {
        {80, "\n  budget                       7.00 GiB     11.0 GiB      466 GiB\n", "\n    compute twice as fast       "},
        {64, "\n  budget                      7.00 GiB    11.0 GiB     466 GiB\n", "\n    compute twice as fast       "},
        {54, "\n  budget                   7.00 GiB 11.0 GiB  466 GiB\n", "\n    compute twice as fast       "},
        {52, "\n       device         host         nvme\n  budget\n     7.00 GiB     11.0 GiB      466 GiB\n", NULL},
        {40, "\n       device         host         nvme\n  budget\n     7.00 GiB     11.0 GiB      466 GiB\n",
         "\n    compute twice as fast\n        "},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct program p;
        char *screen;

        terminal_run(*state, &p, "plan --model gpt2 --grad-accum 4 --machine tests/machines/laptop-8gb.json", rows[i].columns,
                     "xterm", false);
        screen = terminal_screen(p.out);
        if (terminal_widest(screen) > rows[i].columns)
            fail_screen(screen, "wider than the terminal", rows[i].columns);
        if (strstr(screen, rows[i].budget) == NULL || (rows[i].more != NULL && !has_figures(screen, rows[i].more)))
            fail_screen(screen, "a row is broken", rows[i].columns);
        assert_null(strstr(screen, "-0.0 %"));
        free(screen);
        program_free(&p);
    }
}

/* Paragraphs are filled, and a command that is broken is one that a shell takes. */
TEST(help_is_filled)
{
    struct program p;

    terminal_run(*state, &p, "train --help", 80, "xterm", false);
    assert_non_null(strstr(p.out, "\nPlans the run, prints the plan, trains, and says how far each step is from what\n"
                                  "the hardware allows.\n"));
    assert_non_null(
        strstr(p.out, "\nWhat does not fit is refused with exit code 3 before anything is allocated.  The\nresult has "));
    assert_non_null(strstr(p.out, " --seq-len 256 \\\n      --device-memory 2MiB \\\n      --set zero_optimization."));
    program_free(&p);
    terminal_run(*state, &p, "--help", 80, "xterm", false);
    assert_non_null(strstr(p.out, "\n  check       every value of a configuration: its origin and its meaning here\n"));
    assert_non_null(strstr(p.out, "\nExit codes: 0 done, 1 internal, 2 usage, configuration or input, 3 does not fit,\n"
                                  "4 I/O, 5 numerics, 128 + its number ended by a signal (130 Ctrl-C, 143 SIGTERM,\n"
                                  "129 SIGHUP).\n"));
    program_free(&p);
    terminal_run(*state, &p, "bench --help", 80, "xterm", false);
    assert_non_null(strstr(p.out, "\n  optim   the optimizer's kernels, by state layout, size of the tensor and\n"
                                  "          instruction set.  Roof: the lower of memory (a stream "));
    program_free(&p);
}

TEST(info_speaks_plainly)
{
    struct program p;
    char *screen;

    terminal_run(*state, &p, "info", 44, "xterm", false);
    screen = terminal_screen(p.out);
    assert_true(terminal_widest(screen) <= 44);
    assert_non_null(strstr(screen, "\n  memory stalls  "));
    free(screen);
    program_free(&p);

    workplace_run_ok(*state, &p, "info");
    assert_null(strstr(p.out, "no version"));
    program_free(&p);
}

/* A dumb terminal gets lines of its width, and nothing that it would have to understand. */
TEST(dumb_terminals_get_lines)
{
    struct program p;

    terminal_run(*state, &p, TRAIN, 80, "dumb", true);
    assert_int_equal(p.code, 0);
    assert_null(strchr(p.out, '\r'));
    assert_null(strchr(p.out, '\033'));
    assert_non_null(strstr(p.out, "\nstep 5/12 | "));
    assert_null(strstr(p.out, "\nstep 4/12 | "));
    assert_true(terminal_widest(p.out) <= 80);
    program_free(&p);
}

TEST(pipes_get_whole_lines)
{
    struct program p;

    workplace_run_ok(*state, &p, TRAIN);
    assert_null(strchr(p.out, '\r'));
    assert_null(strchr(p.out, '\033'));
    assert_non_null(strstr(p.out, "\nstep 5/12 | "));
    assert_null(strstr(p.out, "\nstep 4/12 | "));
    assert_non_null(strstr(p.out, " | lr "));
    assert_null(strstr(p.out, " | fwd "));
    assert_true(terminal_widest(p.out) > 80);
    program_free(&p);
}

TEST_GROUP(workplace_setup, workplace_teardown);

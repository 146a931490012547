/* tests/cli/test_signals.c - Ctrl-C and SIGTERM during a run: exit code, no swap files, a summary in the metrics. */
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const char endless_run[] =
    "train --model nano --data {w}/good.bin --seq-len 32 --max-steps 1000000 --machine {w}/machine.json --metrics {w}/m.jsonl "
    "--out {w}/out --set zero_optimization.offload_optimizer.device=nvme --set strata.cache=0 --nvme {w}/nvme";

static void check_end(const struct workplace *w, const struct program *p, int code, const char *name)
{
    size_t bytes;
    char *metrics = workplace_read(w, "m.jsonl", &bytes);

    assert_int_equal(p->code, code);
    assert_non_null(strstr(p->err, name));
    assert_non_null(strstr(p->err, "--out was not written"));
    assert_int_equal(workplace_entries(w, "nvme"), 0);
    assert_false(workplace_exists(w, "out"));
    assert_non_null(strstr(metrics, "{\"run\":"));
    assert_non_null(strstr(metrics, "{\"summary\":"));
    assert_non_null(strstr(metrics, "\"status\":\"cancelled\""));
    assert_int_equal(metrics[bytes - 1], '\n');
    free(metrics);
    workplace_remove(w, "m.jsonl");
}

/* Runs until a step is done, then sends a signal, and at once `second` unless that is 0. */
static void run_and_signal(const struct workplace *w, struct program *p, int number, int second)
{
    workplace_start_piped(w, p, endless_run);
    program_wait_for(p, "step 1/");
    assert_int_equal(kill(p->pid, number), 0);
    if (second != 0)
        assert_int_equal(kill(p->pid, second), 0);
    program_drain(p);
    program_wait(p);
}

static void ends_by(const struct workplace *w, int number, int code, const char *name)
{
    struct program p;

    run_and_signal(w, &p, number, 0);
    check_end(w, &p, code, name);
    program_free(&p);
}

static void ctrl_c_ends_with_130(void **state)
{
    ends_by(*state, SIGINT, 130, "Ctrl-C");
}

static void sigterm_ends_with_143(void **state)
{
    ends_by(*state, SIGTERM, 143, "SIGTERM");
}

/* Two signals at once: the second may find the first one's handler, the end, or nothing; swap files go in every case. */
static void a_second_signal_leaves_no_swap_files(void **state)
{
    const struct workplace *w = *state;
    struct program p;

    run_and_signal(w, &p, SIGINT, SIGTERM);
    assert_true(p.code == 130 || p.code == 143);
    assert_int_equal(workplace_entries(w, "nvme"), 0);
    assert_false(workplace_exists(w, "out"));
    workplace_remove(w, "m.jsonl");
    program_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ctrl_c_ends_with_130),
        cmocka_unit_test(sigterm_ends_with_143),
        cmocka_unit_test(a_second_signal_leaves_no_swap_files),
    };

    return cmocka_run_group_tests(tests, workplace_setup, workplace_teardown);
}

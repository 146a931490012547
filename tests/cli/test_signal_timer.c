/* tests/cli/test_signal_timer.c - somebody else's signal handler runs all the time: no crash, and the same bits.
 *
 *     test_cli_signal_timer [RUNS] */
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALLS_LEAST 20

static long runs = 2;

/* fp32: by the kernels that do so on every processor; those of AMX and the like use the stack as one should. */
static const char training[] = "train --model nano --data {w}/good.bin --seq-len 128 --max-steps 40 --machine {w}/machine.json "
                               "--set bf16.enabled=false --digest --quiet";

/* Both lines of digests; owned by the caller. */
static char *digests_of(const struct workplace *w, long *calls)
{
    struct program p;
    const char *at;
    char *digests;

    workplace_run_ok(w, &p, training);
    at = strstr(p.out, "weights_digest");
    assert_non_null(at);
    digests = strdup(at);
    at = strstr(p.err, "timer: ");
    *calls = at != NULL ? strtol(at + strlen("timer: "), NULL, 10) : 0;
    program_free(&p);
    return digests;
}

TEST(a_handler_elsewhere_changes_nothing)
{
    const struct workplace *w = *state;
    long calls;
    char *quiet = digests_of(w, &calls);

    assert_int_equal(calls, 0);
    assert_int_equal(setenv("LD_PRELOAD", SIGNAL_TIMER, 1), 0);
    for (long i = 0; i < runs; i++) {
        char *disturbed = digests_of(w, &calls);

        assert_string_equal(disturbed, quiet);
        assert_true(calls >= CALLS_LEAST);
        free(disturbed);
    }
    assert_int_equal(unsetenv("LD_PRELOAD"), 0);
    print_message("%ld runs under a timer of 1 kHz, equal digests\n", runs);
    free(quiet);
}

TEST_MAIN(argc, argv)
{
    if (argc > 1)
        runs = strtol(argv[1], NULL, 10);
    return test_run(workplace_setup, workplace_teardown);
}

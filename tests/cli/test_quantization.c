/* tests/cli/test_quantization.c - a plain model whose linear weights are stored in NF4: evaluated and continued, wherever it
 * lies. */
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static double loss_of(const struct workplace *w, const char *quantization, const char *options)
{
    struct program p;
    char line[512];
    const char *at;
    double loss;

    snprintf(line, sizeof(line),
             "eval --model nano-llama --data {w}/good.bin --seq-len 32 --json --set "
             "strata.quantization=%s %s",
             quantization, options);
    workplace_run_ok(w, &p, line);
    at = strstr(p.out, "\"loss\":");
    assert_non_null(at);
    loss = strtod(at + strlen("\"loss\":"), NULL);
    program_free(&p);
    return loss;
}

static void losses_change_little_and_never_with_the_place(void **state)
{
    const struct workplace *w = *state;
    const double none = loss_of(w, "none", ""), nf4 = loss_of(w, "nf4", ""), twice = loss_of(w, "nf4-double", "");

    assert_true(nf4 != none && twice != none && twice != nf4);
    assert_true(nf4 > 0.98 * none && nf4 < 1.02 * none && twice > 0.98 * none && twice < 1.02 * none);
    assert_true(loss_of(w, "nf4", "--device-memory 2M") == nf4);
    assert_true(loss_of(w, "nf4-double", "--device-memory 2M") == twice);
}

static void a_prompt_is_continued(void **state)
{
    struct program p;

    workplace_run_ok(*state, &p,
                     "generate --model nano-llama --prompt-tokens 1,2,3 --max-tokens 4 --json --set "
                     "strata.quantization=nf4");
    assert_non_null(strstr(p.out, "\"tokens\":"));
    program_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_change_little_and_never_with_the_place),
        cmocka_unit_test(a_prompt_is_continued),
    };

    return cmocka_run_group_tests_name("quantization", tests, workplace_setup, workplace_teardown);
}

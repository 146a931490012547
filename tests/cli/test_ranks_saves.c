/* tests/cli/test_ranks_saves.c - what runs of several ranks find out about saving before they have saved, and leave behind. */
#include "tests/cli/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define RUN "train --model nano --data {w}/good.bin --seq-len 32 --threads 1 --quiet --set zero_optimization.stage=2 "

static void all_end_with(const struct ranks *r, int code)
{
    for (uint32_t k = 0; k < r->count; k++)
        if (r->programs[k].code != code)
            fail_msg("rank %u: exit code %d, not %d: %s", k, r->programs[k].code, code, r->programs[k].err);
}

/* A run that diverges before it has saved: fp16's scale is too large for three steps. */
static void a_run_that_saves_nothing_leaves_no_directory(void **state)
{
    static const char diverges[] = RUN "--machine {w}/machine.json --max-steps 3 --set fp16.enabled=true --set "
                                       "fp16.initial_scale_power=31 --save {w}/saved ";
    const struct workplace *w = *state;
    struct ranks r = {0};
    struct program one;

    workplace_run(w, &one, diverges);
    assert_int_equal(one.code, 5);
    assert_false(workplace_exists(w, "saved"));
    program_free(&one);
    ranks_run(w, &r, 2, diverges, "");
    all_end_with(&r, 5);
    assert_false(workplace_exists(w, "saved"));
    ranks_free(&r);
    workplace_make_dir(w, "saved"); /* the user's own */
    workplace_run(w, &one, diverges);
    assert_int_equal(one.code, 5);
    assert_true(workplace_exists(w, "saved"));
    program_free(&one);
    workplace_remove(w, "saved");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_that_saves_nothing_leaves_no_directory),
    };

    return cmocka_run_group_tests(tests, workplace_setup, workplace_teardown);
}

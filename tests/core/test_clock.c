/* tests/core/test_clock.c - time does not run backwards, and no sleep ends early. */
#include "core/system/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_monotonic(void **state)
{
    uint64_t before = st_clock_ns();

    (void)state;
    assert_true(before > 0);
    for (int i = 0; i < 1000; i++) {
        uint64_t now = st_clock_ns();

        assert_true(now >= before);
        before = now;
    }
}

static void test_no_sleep_ends_early(void **state)
{
    const uint64_t start = st_clock_ns();

    (void)state;
    st_clock_sleep_until(0); /* long over */
    for (uint64_t due = start + 1; due < start + 3000000; due += 700000) {
        st_clock_sleep_until(due);
        assert_true(st_clock_ns() >= due);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_monotonic), cmocka_unit_test(test_no_sleep_ends_early)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

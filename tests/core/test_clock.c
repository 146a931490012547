/* tests/core/test_clock.c - time does not run backwards. */
#include "core/clock.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_monotonic)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

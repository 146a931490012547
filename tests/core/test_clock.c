/* tests/core/test_clock.c - time does not run backwards, and no sleep ends early. */
#include "core/system/clock.h"
#include "tests/common/test.h"

TEST(test_monotonic)
{
    uint64_t before = st_clock_ns();

    assert_true(before > 0);
    for (int i = 0; i < 1000; i++) {
        uint64_t now = st_clock_ns();

        assert_true(now >= before);
        before = now;
    }
}

TEST(test_no_sleep_ends_early)
{
    const uint64_t start = st_clock_ns();

    st_clock_sleep_until(0); /* long over */
    for (uint64_t due = start + 1; due < start + 3000000; due += 700000) {
        st_clock_sleep_until(due);
        assert_true(st_clock_ns() >= due);
    }
}

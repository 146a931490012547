/* tests/core/test_stats.c - medians and memory figures. */
#include "core/trace/stats.h"
#include "tests/common/test.h"

#include <stdlib.h>
#include <string.h>

TEST(test_median)
{
    double odd[] = {5, 1, 3}, even[] = {4, 1, 3, 2}, one[] = {7}, more[] = {9, 1, 8, 2, 7, 3, 6},
           most[] = {9, 1, 8, 2, 7, 3, 6, 5};

    assert_true(st_stats_median(NULL, 0) == 0);
    assert_true(st_stats_median(one, 1) == 7);
    assert_true(st_stats_median(odd, 3) == 3);
    assert_true(st_stats_median(even, 4) == 2.5);
    assert_true(st_stats_median(more, 7) == 6);
    assert_true(st_stats_median(most, 8) == 5.5);
}

TEST(test_memory)
{
    const size_t bytes = (size_t)48 << 20;
    uint64_t before = st_stats_rss_bytes(), with, peak;
    char *block = malloc(bytes);

    assert_non_null(block);
    memset(block, 1, bytes);
    with = st_stats_rss_bytes();
    peak = st_stats_rss_peak_bytes();
    free(block);
    assert_true(before > 0);
    assert_true(with >= before + bytes - ((size_t)4 << 20));
    assert_true(peak + ((size_t)4 << 20) >= with);
    assert_true(st_stats_rss_peak_bytes() + ((size_t)4 << 20) >= with);
}

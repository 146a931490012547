/* tests/nvme/test_latency.c - percentiles against sorted samples, the stated error, the ends of the range, none. */
#include "core/base/rng.h"
#include "nvme/measure/latency.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES   10007u
#define ERROR_MAX 0.01

static int ascending(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

TEST(percentiles_are_within_one_percent)
{
    static const double fractions[] = {0, 0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 1};
    static struct st_latency h;
    static uint64_t samples[SAMPLES];

    for (uint32_t spread = 1; spread <= 38; spread++) {
        double sum = 0;

        memset(&h, 0, sizeof(h));
        for (uint32_t i = 0; i < SAMPLES; i++) {
            samples[i] = st_rng_u64(7, spread, i) >> (64 - 1 - st_rng_u64(8, spread, i) % spread);
            sum += (double)samples[i];
            st_latency_add(&h, samples[i]);
        }
        qsort(samples, SAMPLES, sizeof(samples[0]), ascending);
        for (size_t s = 0; s < sizeof(fractions) / sizeof(fractions[0]); s++) {
            const double rank = ceil(fractions[s] * SAMPLES);
            const double want = (double)samples[rank < 1 ? 0 : (uint32_t)rank - 1];

            assert_true(fabs(st_latency_percentile(&h, fractions[s]) - want) <= ERROR_MAX * want);
        }
        assert_int_equal(h.count, SAMPLES);
        assert_int_equal(h.max_ns, samples[SAMPLES - 1]);
        assert_true(fabs(st_latency_mean(&h) - sum / SAMPLES) <= 1e-9 * sum / SAMPLES);
    }
}

/* Each power of two and its neighbours alone. */
TEST(every_scale_keeps_its_error)
{
    static struct st_latency h;

    for (uint32_t bit = 0; bit < ST_LATENCY_BITS; bit++)
        for (int64_t off = -1; off <= 1; off++) {
            const uint64_t value = (UINT64_C(1) << bit) + (uint64_t)off;

            memset(&h, 0, sizeof(h));
            st_latency_add(&h, value);
            assert_true(fabs(st_latency_percentile(&h, 0.5) - (double)value) <= ERROR_MAX * (double)value);
        }
}

TEST(the_largest_values_stay)
{
    static struct st_latency h;

    memset(&h, 0, sizeof(h));
    st_latency_add(&h, UINT64_MAX >> 8);
    st_latency_add(&h, 1000);
    assert_true(st_latency_percentile(&h, 1) == (double)(UINT64_MAX >> 8));
    assert_true(st_latency_percentile(&h, 0.5) > 990 && st_latency_percentile(&h, 0.5) < 1010);
}

/* The least of percentiles is the least sample, and not what no sample is. */
TEST(the_first_is_the_smallest)
{
    static struct st_latency h;

    for (uint64_t ns = 1000000; ns <= 2000000; ns += 1000)
        st_latency_add(&h, ns);
    assert_true(fabs(st_latency_percentile(&h, 0) - 1e6) <= ERROR_MAX * 1e6);
    assert_true(fabs(st_latency_percentile(&h, 1) - 2e6) <= ERROR_MAX * 2e6);
}

TEST(none_is_zero)
{
    static struct st_latency h;

    memset(&h, 0, sizeof(h));
    assert_true(st_latency_percentile(&h, 0.99) == 0 && st_latency_mean(&h) == 0);
    st_latency_add(&h, 0);
    assert_true(st_latency_percentile(&h, 0.99) == 0 && h.count == 1);
}

/* tests/nvme/test_depth.c - the depth follows the knee of a device that is a formula and a clock. */
#include "core/base/rng.h"
#include "nvme/mover/depth.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdlib.h>

#define BLOCK 1048576u

/* With n requests in flight it moves min(n, knee) of them at a time, each taking latency_ns. */
struct device {
    double knee, latency_ns;
    double noise; /* of a request's time, relative */
    double now_ns;
    uint64_t random;
};

static double rate_at(const struct device *device, uint32_t depth)
{
    return fmin(depth, device->knee) / device->latency_ns;
}

/* `mix`: of four requests, how many are reads. */
static void use(struct st_depth *d, struct device *device, uint32_t requests, uint32_t mix)
{
    for (uint32_t i = 0; i < requests; i++) {
        const double random = (double)(st_rng_u64(5, 1, device->random++) % 2001) / 1000 - 1;

        device->now_ns += (1 + device->noise * random) / rate_at(device, d->depth);
        st_depth_done(d, (uint64_t)device->now_ns, BLOCK, i % 4 < mix, true);
        assert_in_range(d->depth, ST_DEPTH_MIN, ST_DEPTH_MAX);
    }
}

/* Where it lives, trials left aside. */
static void assert_settled(const struct st_depth *d, const struct device *device)
{
    const double best = rate_at(device, ST_DEPTH_MAX);

    assert_true(rate_at(device, d->home) >= 0.93 * best);
    assert_true(d->home <= ST_DEPTH_MIN || d->home <= 1.5 * device->knee + 2);
}

TEST(every_knee_is_found)
{
    static const double knees[] = {1, 4, 6, 8, 12, 16, 24, 31, 48, 64, 100};

    for (size_t i = 0; i < sizeof(knees) / sizeof(knees[0]); i++) {
        struct device device = {.knee = knees[i], .latency_ns = 250000, .now_ns = 1};
        struct st_depth d;

        st_depth_init(&d);
        assert_int_equal(d.depth, 32);
        use(&d, &device, 20000, 4);
        assert_settled(&d, &device);
    }
}

TEST(depth_under_noise_settles_as_without)
{
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct device device = {.knee = 16, .latency_ns = 250000, .noise = 0.5, .now_ns = 1, .random = seed << 32};
        struct st_depth d;

        st_depth_init(&d);
        use(&d, &device, 50000, seed % 5 == 0 ? 2 : 4);
        assert_settled(&d, &device);
    }
}

TEST(a_device_that_changes_is_followed)
{
    struct device device = {.knee = 8, .latency_ns = 250000, .now_ns = 1};
    struct st_depth d;

    st_depth_init(&d);
    use(&d, &device, 20000, 4);
    assert_settled(&d, &device);
    device.knee = 48;
    use(&d, &device, 60000, 4);
    assert_settled(&d, &device);
    device.knee = 12;
    use(&d, &device, 60000, 4);
    assert_settled(&d, &device);
}

/* Reads run, then writes at a third of the rate: no trial is evaluated by the other's. */
TEST(mixes_are_not_compared)
{
    struct device reads = {.knee = 24, .latency_ns = 250000, .now_ns = 1};
    struct st_depth d;

    st_depth_init(&d);
    for (uint32_t round = 0; round < 300; round++) {
        struct device writes = reads;

        use(&d, &reads, 200, 4);
        writes.latency_ns *= 3;
        writes.now_ns = reads.now_ns;
        use(&d, &writes, 200, 0);
        reads.now_ns = writes.now_ns;
    }
    assert_settled(&d, &reads);
}

/* What was in flight at the depth before ran at its rate: none of it is counted for the new one, be that higher or lower. */
TEST(requests_of_the_depth_before_are_not_counted)
{
    struct device device = {.knee = 24, .latency_ns = 250000, .now_ns = 1};
    uint32_t before = ST_DEPTH_START, left = 0, falls = 0, rises = 0;
    struct st_depth d;

    st_depth_init(&d);
    for (uint32_t i = 0; i < 20000; i++) {
        use(&d, &device, 1, 4);
        left -= left > 0;
        if (d.depth != before) {
            left = before > d.depth ? before : d.depth;
            falls += before > d.depth;
            rises += before < d.depth;
            before = d.depth;
        }
        assert_true(left == 0 || d.requests == 0);
    }
    assert_true(falls > 3 && rises > 3);
}

/* Trials that fail come ever more rarely, but never more than some 64 windows apart: a device may change at any time. */
TEST(failing_trials_never_cease)
{
    struct device device = {.knee = 24, .latency_ns = 250000, .now_ns = 1};
    uint32_t windows = 0, longest = 0, before;
    struct st_depth d;

    st_depth_init(&d);
    for (uint32_t i = 0; i < 100000; i++) {
        before = d.requests;
        use(&d, &device, 1, 4);
        windows += d.requests < before;
        if (d.depth != d.home)
            windows = 0;
        longest = windows > longest ? windows : longest;
    }
    assert_in_range(longest, 60, 70);
}

TEST(an_empty_queue_says_nothing)
{
    struct device device = {.knee = 2, .latency_ns = 250000, .now_ns = 1};
    struct st_depth d;

    st_depth_init(&d);
    for (uint32_t i = 0; i < 10000; i++) {
        device.now_ns += 1 / rate_at(&device, d.depth);
        st_depth_done(&d, (uint64_t)device.now_ns, BLOCK, true, i % 40 != 0); /* never a whole window */
    }
    assert_int_equal(d.depth, 32);
    for (uint32_t i = 0; i < 10000; i++) /* nor a clock that stands still */
        st_depth_done(&d, (uint64_t)device.now_ns, BLOCK, true, true);
    assert_int_equal(d.depth, 32);
}

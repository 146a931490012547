/* tests/nvme/test_tune.c - the knee search over drives that are formulas. */
#include "core/base/error.h"
#include "core/base/rng.h"
#include "nvme/measure/tune.h"
#include "tests/common/test.h"

#include <math.h>
#include <string.h>

#define KIB       1024u
#define MIB       (1024u * KIB)
#define TOLERANCE 0.03

static const uint32_t blocks[] = {128 * KIB, 256 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB};
static const uint32_t depths[] = {1, 2, 4, 8, 16, 32, 64, 128};
#define COUNT(a) ((uint32_t)(sizeof(a) / sizeof((a)[0])))

/* rate = least of what the drive, its requests per second, its latency (Little's law) and a serial link allow. */
struct drive {
    double rate_max, requests_max, latency; /* bytes/s, 1/s, s */
    double method_factor[3];                /* 0: as fast as the first */
    double slope;                           /* fraction that is lost each time that as little again is in flight */
    double noise;                           /* fraction; each sample by a random number of its own */
    uint32_t calls, fail_at;                /* fail_at: this call fails; 0: none */
    uint32_t refuse_from;                   /* depths of the first method that the machine has no memory for; 0: none */
};

static strata_status measure(void *ctx, uint32_t method, uint32_t block, uint32_t depth, double *rate)
{
    struct drive *d = ctx;
    double value = (double)block * depth / (d->latency + (double)block / d->rate_max);

    if (++d->calls == d->fail_at)
        return st_error(STRATA_E_IO, "call %u", d->calls);
    if (method == 0 && d->refuse_from > 0 && depth >= d->refuse_from)
        return st_error(STRATA_E_NOSYS, "depth %u", depth);
    value = value < d->requests_max * block ? value : d->requests_max * block;
    value = value < d->rate_max ? value : d->rate_max;
    value *= 1 - d->slope * log2(256.0 * MIB / ((double)block * depth));
    if (method > 0 && d->method_factor[method] > 0)
        value *= d->method_factor[method];
    *rate = value * (1 + d->noise * ((double)(st_rng_u64(3, 0, d->calls) >> 11) / 9007199254740992.0 - 0.5) * 2);
    return STRATA_OK;
}

static struct st_tune_opts options(struct drive *d)
{
    return (struct st_tune_opts){
        .blocks = blocks,
        .block_count = COUNT(blocks),
        .depths = depths,
        .depth_count = COUNT(depths),
        .method_count = 3,
        .first_block = 3,
        .bytes_in_flight = 256 * MIB,
        .tolerance = TOLERANCE,
        .rounds = 3,
        .measure = measure,
        .ctx = d,
    };
}

/* The best rate that any pair of the lists reaches. */
static double best_of(struct drive d)
{
    double best = 0;

    d.noise = 0;
    d.fail_at = 0;
    for (uint32_t b = 0; b < COUNT(blocks); b++)
        for (uint32_t i = 0; i < COUNT(depths); i++) {
            double rate = 0;

            assert_int_equal(measure(&d, 0, blocks[b], depths[i], &rate), STRATA_OK);
            best = rate > best ? rate : best;
        }
    return best;
}

static struct st_tune_point search(struct drive *d, struct st_tune_result *r)
{
    const struct st_tune_opts opts = options(d);

    assert_int_equal(st_tune_search(r, &opts), STRATA_OK);
    assert_true(d->calls <= 45);
    return r->points[r->knee];
}

/* A drive of 1 ms and 4 GB/s needs 8 MB in flight or so: not the 128 MiB that the list ends with. */
TEST(the_knee_is_near_the_best_with_little_in_flight)
{
    static const struct drive drives[] = {
        {.rate_max = 4e9, .requests_max = 1e6, .latency = 1e-3}, {.rate_max = 1e9, .requests_max = 1e6, .latency = 1e-4},
        {.rate_max = 7e9, .requests_max = 1e4, .latency = 2e-3}, {.rate_max = 14e9, .requests_max = 1e6, .latency = 1e-4},
        {.rate_max = 2e8, .requests_max = 200, .latency = 1e-2},
    };

    for (uint32_t i = 0; i < COUNT(drives); i++) {
        struct drive d = drives[i];
        struct st_tune_result r;
        const struct st_tune_point knee = search(&d, &r);
        const double needed = d.rate_max * d.latency;

        assert_int_equal(knee.method, 0);
        assert_true(knee.final_rate >= best_of(drives[i]) * (1 - TOLERANCE));
        assert_true((double)knee.block_bytes * knee.queue_depth <= 4 * (needed > 4 * MIB ? needed : 4 * MIB));
    }
}

/* Each step down is within the tolerance of the one before: what counts is the best. */
TEST(search_on_a_slope_keeps_the_best_rate)
{
    static const double slopes[] = {0.012, 0.018, 0.04};

    for (uint32_t i = 0; i < COUNT(slopes); i++) {
        struct drive d = {.rate_max = 14e9, .requests_max = 1e6, .latency = 1e-5, .slope = slopes[i]};
        struct st_tune_result r;
        const struct st_tune_point knee = search(&d, &r);

        assert_true(knee.final_rate >= r.points[r.fastest].final_rate * (1 - TOLERANCE));
    }
}

/* Few requests per second: only large blocks are fast, and the depth walk at 1 MiB does not see it. */
TEST(a_drive_of_few_requests_gets_large_blocks)
{
    struct drive d = {.rate_max = 4e9, .requests_max = 600, .latency = 1e-3};
    struct st_tune_result r;

    assert_true(search(&d, &r).block_bytes >= 4 * MIB);
}

TEST(a_flat_drive_gets_the_cheapest_point)
{
    struct drive d = {.rate_max = 1e9, .requests_max = 1e9, .latency = 0};
    struct st_tune_result r;
    const struct st_tune_point knee = search(&d, &r);

    assert_int_equal(knee.queue_depth, 1);
    assert_true(r.point_count < 20);
}

TEST(another_method_must_be_clearly_faster)
{
    struct drive slower = {.rate_max = 2e9, .requests_max = 1e6, .latency = 1e-3, .method_factor = {0, 0.7, 1.02}};
    struct drive faster = {.rate_max = 2e9, .requests_max = 1e6, .latency = 1e-3, .method_factor = {0, 0.7, 1.3}};
    struct st_tune_result r;

    assert_int_equal(search(&slower, &r).method, 0);
    assert_int_equal(search(&faster, &r).method, 2);
    assert_int_equal(r.points[r.fastest].method, 2);
}

/* What is chosen of the first method is chosen without slower ones, too, however wide the tolerance is. */
TEST(slower_methods_change_nothing)
{
    static const double tolerances[] = {0.03, 0.1, 0.2, 0.3, 0.4, 0.5};

    for (size_t i = 0; i < COUNT(tolerances); i++) {
        struct st_tune_point knee[2], fastest[2];

        for (uint32_t k = 0; k < 2; k++) {
            struct drive d = {.rate_max = 2e9, .requests_max = 1e6, .latency = 1e-3, .method_factor = {0, 0.5, 0.6}};
            struct st_tune_opts opts = options(&d);
            struct st_tune_result r;

            opts.tolerance = tolerances[i];
            opts.method_count = k == 0 ? 1 : 3;
            assert_int_equal(st_tune_search(&r, &opts), STRATA_OK);
            knee[k] = r.points[r.knee];
            fastest[k] = r.points[r.fastest];
        }
        assert_true(knee[1].method == 0 && knee[1].block_bytes == knee[0].block_bytes &&
                    knee[1].queue_depth == knee[0].queue_depth);
        assert_true(fastest[1].method == 0 && fastest[1].block_bytes == fastest[0].block_bytes &&
                    fastest[1].queue_depth == fastest[0].queue_depth);
    }
}

/* Medians of the last rounds hold against noise of 5 %: the knee stays within 15 % of the best. */
TEST(search_in_5_percent_of_noise_stays_within_15_of_the_best)
{
    struct drive d = {.rate_max = 3e9, .requests_max = 1e5, .latency = 1e-3, .noise = 0.05};
    struct st_tune_result r;
    struct st_tune_point knee;
    struct drive quiet = d;
    double rate = 0;

    knee = search(&d, &r);
    quiet.noise = 0;
    assert_int_equal(measure(&quiet, 0, knee.block_bytes, knee.queue_depth, &rate), STRATA_OK);
    assert_true(rate >= 0.85 * best_of(d));
    assert_int_equal(r.points[r.knee].sample_count, 3);
}

TEST(points_are_measured_once_and_within_the_limit)
{
    struct drive d = {.rate_max = 8e9, .requests_max = 1e6, .latency = 5e-3};
    struct st_tune_opts opts = options(&d);
    struct st_tune_result r;
    bool at_limit = false;

    opts.bytes_in_flight = 16 * MIB;
    assert_int_equal(st_tune_search(&r, &opts), STRATA_OK);
    for (uint32_t i = 0; i < r.point_count; i++) {
        assert_true((uint64_t)r.points[i].block_bytes * r.points[i].queue_depth <= opts.bytes_in_flight);
        at_limit |= (uint64_t)r.points[i].block_bytes * r.points[i].queue_depth == opts.bytes_in_flight;
        for (uint32_t j = 0; j < i; j++)
            assert_false(r.points[i].method == r.points[j].method && r.points[i].block_bytes == r.points[j].block_bytes &&
                         r.points[i].queue_depth == r.points[j].queue_depth);
    }
    assert_true(at_limit); /* which is within it */
    opts.bytes_in_flight = 4 * KIB;
    assert_int_equal(st_tune_search(&r, &opts), STRATA_E_INVAL);
}

static bool holds(const uint32_t *list, uint32_t count, uint32_t value)
{
    for (uint32_t i = 0; i < count; i++)
        if (list[i] == value)
            return true;
    return false;
}

/* Each longer depth and block would be faster: what lies behind the lists is none. */
TEST(only_what_the_lists_have_is_measured)
{
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t count = 1 + i / 2;
        struct drive d = {.rate_max = 1e12, .requests_max = 1e9, .latency = 1};
        struct st_tune_opts opts = options(&d);
        struct st_tune_result r;

        opts.depth_count = opts.block_count = count;
        opts.first_block = i % 2 == 0 ? 0 : count - 1;
        assert_int_equal(st_tune_search(&r, &opts), STRATA_OK);
        for (uint32_t k = 0; k < r.point_count; k++)
            assert_true(holds(depths, count, r.points[k].queue_depth) && holds(blocks, count, r.points[k].block_bytes));
    }
}

/* The knee and the fastest, four of the first method, and the best of another are measured in the last rounds. */
TEST(few_points_reach_the_last_rounds)
{
    struct drive d = {.rate_max = 4e9, .requests_max = 1e6, .latency = 1e-3, .method_factor = {0, 0.7, 0.9}};
    uint32_t again[3] = {0};
    struct st_tune_result r;

    search(&d, &r);
    for (uint32_t i = 0; i < r.point_count; i++)
        again[r.points[i].method] += r.points[i].sample_count > 1;
    assert_true(r.points[r.knee].sample_count == 3 && r.points[r.fastest].sample_count == 3);
    assert_int_equal(again[0], 4);
    assert_int_equal(again[1], 0);
    assert_int_equal(again[2], 1);
}

/* What a user may lock is too little for deep queues: the search goes on without them. */
TEST(what_cannot_be_measured_is_left_out)
{
    struct drive d = {.rate_max = 8e9, .requests_max = 1e6, .latency = 5e-3, .refuse_from = 8}, none = d;
    struct st_tune_opts opts = options(&none);
    struct st_tune_result r;

    (void)search(&d, &r);
    for (uint32_t i = 0; i < r.point_count; i++)
        assert_true(r.points[i].method > 0 || r.points[i].queue_depth < 8);
    none.refuse_from = 1;
    assert_int_equal(st_tune_search(&r, &opts), STRATA_E_NOSYS);
    assert_non_null(strstr(strata_last_error(), "depth "));
}

/* Every call may fail; the search ends there with that status. */
TEST(a_failure_ends_the_search)
{
    uint32_t walked = 0;

    for (uint32_t n = 1;; n++) {
        struct drive d = {.rate_max = 4e9, .requests_max = 1e6, .latency = 1e-3, .fail_at = n};
        const struct st_tune_opts opts = options(&d);
        struct st_tune_result r;
        const strata_status st = st_tune_search(&r, &opts);

        if (st == STRATA_OK)
            break;
        assert_int_equal(st, STRATA_E_IO);
        assert_int_equal(d.calls, n);
        walked++;
    }
    assert_true(walked > 10);
}

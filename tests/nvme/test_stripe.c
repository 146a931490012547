/* tests/nvme/test_stripe.c - properties of the pattern, over many numbers of directories, rates and sizes. */
#include "core/base/rng.h"
#include "nvme/mover/stripe.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define UNIT  4096u
#define CASES 2000u

static uint64_t random_index;

static uint64_t random_below(uint64_t limit)
{
    return st_rng_u64(77, 3, random_index++) % limit;
}

static void random_stripe(struct st_stripe *stripe, double rates[ST_STRIPE_DIRS_MAX])
{
    const uint32_t dirs = 1 + (uint32_t)random_below(ST_STRIPE_DIRS_MAX);

    for (uint32_t d = 0; d < dirs; d++)
        rates[d] = (double)(1 + random_below(random_below(2) == 0 ? 10 : 1000)) * 1e7;
    st_stripe_init(stripe, dirs, rates, UNIT);
}

TEST(slots_are_shared_as_weights_say)
{
    double rates[ST_STRIPE_DIRS_MAX];

    for (uint32_t i = 0; i < CASES; i++) {
        uint32_t count[ST_STRIPE_DIRS_MAX] = {0}, sum = 0;
        struct st_stripe s;

        random_stripe(&s, rates);
        assert_in_range(s.slot_count, s.dir_count, ST_STRIPE_SLOTS_MAX);
        for (uint32_t n = 1; n <= s.slot_count; n++) {
            const uint32_t d = s.dir_of[n - 1];

            assert_true(d < s.dir_count);
            assert_int_equal(s.rank[n - 1], count[d]);
            count[d]++;
            for (uint32_t k = 0; k < s.dir_count; k++) /* after every slot */
                assert_true(fabs(count[k] - (double)n * s.weight[k] / s.slot_count) < 1);
        }
        for (uint32_t d = 0; d < s.dir_count; d++) {
            assert_true(s.weight[d] >= 1);
            assert_int_equal(count[d], s.weight[d]);
            sum += s.weight[d];
        }
        assert_int_equal(sum, s.slot_count);
    }
}

TEST(weights_are_near_the_rates)
{
    static const double two[] = {3e9, 1e9}, three[] = {7e9, 3.2e9, 3.2e9}, far[] = {1, 1e9};
    double rates[ST_STRIPE_DIRS_MAX];
    struct st_stripe s;

    for (uint32_t dirs = 1; dirs <= ST_STRIPE_DIRS_MAX; dirs++) {
        st_stripe_init(&s, dirs, NULL, UNIT);
        assert_int_equal(s.slot_count, dirs);
    }
    st_stripe_init(&s, 2, two, UNIT);
    assert_int_equal(s.slot_count, 4);
    assert_int_equal(s.weight[0], 3);
    st_stripe_init(&s, 3, three, UNIT);
    for (uint32_t d = 0; d < 3; d++)
        assert_true(fabs(s.weight[d] * 13.4e9 / (three[d] * s.slot_count) - 1) <= 0.01);
    st_stripe_init(&s, 2, far, UNIT);
    assert_int_equal(s.weight[0], 1);
    for (uint32_t i = 0; i < CASES; i++) {
        double sum = 0;

        random_stripe(&s, rates);
        for (uint32_t d = 0; d < s.dir_count; d++)
            sum += rates[d];
        for (uint32_t d = 0; d < s.dir_count; d++) { /* within one slot, or as small as it can be */
            const double exact = rates[d] / sum * s.slot_count;

            assert_true(s.weight[d] < exact + 1 || s.weight[d] == 1);
            assert_true(s.weight[d] > exact - ST_STRIPE_DIRS_MAX);
        }
    }
}

/* Rates in bytes, or in gigabytes, per second: only their ratios count. */
TEST(the_unit_of_rates_is_nothing)
{
    double rates[ST_STRIPE_DIRS_MAX], small[ST_STRIPE_DIRS_MAX];

    for (uint32_t i = 0; i < CASES; i++) {
        struct st_stripe s, t;

        random_stripe(&s, rates);
        for (uint32_t d = 0; d < s.dir_count; d++)
            small[d] = ldexp(rates[d], -40);
        st_stripe_init(&t, s.dir_count, small, UNIT);
        assert_memory_equal(&s, &t, sizeof(s));
    }
}

/* Every byte has one place: files are filled from their start without a gap, in the order of the space. */
TEST(every_unit_has_one_place)
{
    double rates[ST_STRIPE_DIRS_MAX];

    for (uint32_t i = 0; i < CASES; i++) {
        const uint64_t bytes = random_below(300) * UNIT + random_below(UNIT);
        uint64_t end[ST_STRIPE_DIRS_MAX] = {0}, sum = 0;
        struct st_stripe s;

        random_stripe(&s, rates);
        for (uint64_t at = 0; at < bytes;) {
            const struct st_stripe_place place = st_stripe_at(&s, at);
            const uint64_t left = bytes - at, piece = 1 + random_below(place.bytes < left ? place.bytes : left);

            assert_true(place.dir < s.dir_count);
            assert_int_equal(place.offset, end[place.dir]);
            end[place.dir] += piece;
            at += piece;
        }
        for (uint32_t d = 0; d < s.dir_count; d++) {
            assert_int_equal(st_stripe_file_bytes(&s, d, bytes), end[d]);
            sum += end[d];
        }
        assert_int_equal(sum, bytes);
    }
}

TEST(far_offsets_are_exact)
{
    static const double rates[] = {5e9, 3e9, 1e9};
    const uint64_t bytes = UINT64_C(1) << 50; /* a petabyte */
    struct st_stripe s;

    st_stripe_init(&s, 3, rates, 1u << 20);
    for (uint64_t at = bytes - 100 * UINT64_C(1048576); at < bytes; at += 1u << 20) {
        const struct st_stripe_place place = st_stripe_at(&s, at);

        assert_int_equal(place.offset, st_stripe_file_bytes(&s, place.dir, at));
        assert_true(place.offset + place.bytes <= st_stripe_file_bytes(&s, place.dir, bytes));
    }
}

TEST(one_directory_is_one_run)
{
    struct st_stripe s;

    st_stripe_init(&s, 1, NULL, UNIT);
    for (uint64_t at = 0; at < 40 * UNIT; at += 512) {
        const struct st_stripe_place place = st_stripe_at(&s, at);

        assert_int_equal(place.dir, 0);
        assert_int_equal(place.offset, at);
        assert_true(place.bytes == UINT64_MAX);
        assert_int_equal(st_stripe_file_bytes(&s, 0, at), at);
    }
}

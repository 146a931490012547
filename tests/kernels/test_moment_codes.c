/* Moments of few bits as kernels/isa/scalar.h defines them: what codes mean, and that stochastic rounding is fair and its bits
 * are random.  All at fixed seeds: a bound of 5 or 6 standard deviations holds always or never. */
#include "core/base/rng.h"
#include "kernels/isa/scalar.h"
#include "tests/common/test.h"
#include "tests/kernels/kernel_fixture.h"
#include <stdio.h>

#define RANDOM_MAX ((1u << ST_CODE_SHIFT) - 1u)

static uint32_t code_max(bool squares)
{
    return squares ? 255u : 127u;
}

/* --- codes --- */

/* Value of a code of no sign at scale 1: 4 bits of mantissa, an exponent above them, less the first. */
static double stated(uint32_t code, bool squares)
{
    const double base = squares ? 0x1p-15 : 0x1p-7;

    return base * (ldexp(1.0 + code % 16 / 16.0, (int)(code / 16)) - 1.0);
}

TEST(codes_have_the_stated_values)
{
    for (int squares = 0; squares < 2; squares++) {
        for (uint32_t code = 0; code < 256; code++) {
            const double mag = stated(code & code_max(squares != 0), squares != 0);
            const double want = squares == 0 && code >= 128 ? -mag : mag;

            assert_true((double)st_code_decode((uint8_t)code, 1.0f, squares != 0) == want);
            assert_true((double)st_code_decode((uint8_t)code, 0x1p-30f, squares != 0) == want * 0x1p-30);
            assert_true(st_code_decode((uint8_t)code, 0.0f, squares != 0) == 0.0f);
            assert_true(isnan(st_code_decode((uint8_t)code, st_f32_from_bits(ST_F32_NAN), squares != 0)) != 0);
        }
        assert_true((double)st_code_most(squares != 0) == stated(code_max(squares != 0), squares != 0));
    }
}

TEST(decoding_is_monotone)
{
    for (int squares = 0; squares < 2; squares++) {
        for (uint32_t code = 0; code < code_max(squares != 0); code++) {
            for (int exponent = -126; exponent <= 126; exponent += 7) {
                const float scale = ldexpf(1.37f, exponent);
                const float low = st_code_decode((uint8_t)code, scale, squares != 0);
                const float high = st_code_decode((uint8_t)(code + 1), scale, squares != 0);

                assert_true(exponent < -110 ? low <= high : low < high);
                if (squares == 0)
                    assert_true(st_code_decode((uint8_t)(code | 0x80u), scale, false) == -low);
            }
        }
    }
}

static void assert_stays(uint32_t code, float scale, float inverse, uint32_t random, bool squares)
{
    const float x = st_code_decode((uint8_t)code, scale, squares);
    const uint32_t got = st_code_encode(x, inverse, random, squares);
    const uint32_t want = squares && code == 0 ? 1 : !squares && code == 0x80u ? 0 : code; /* there is no -0 */

    if (got != want)
        fail_msg("code %u at scale %a: %a became %u by %u", code, (double)scale, (double)x, got, random);
}

/* What a code decodes to has that code again: at a scale of a power of two by any random bits, at others by all but the few least
 * and most, for a value and the inverse of its scale are rounded to fp32. */
TEST(codes_come_back)
{
    for (int squares = 0; squares < 2; squares++) {
        const float most = st_code_most(squares != 0);

        for (uint32_t code = 0; code < 256; code++) {
            for (uint32_t random = 0; random <= RANDOM_MAX; random += random < 99 || random > RANDOM_MAX - 99 ? 1 : 3)
                assert_stays(code, 0x1p-20f, 0x1p20f, random, squares != 0);
            for (int exponent = -70; exponent <= 120; exponent += 5) {
                float inverse;
                const float x = ldexpf(most * (1.0f + (float)exponent / 777.0f), exponent);
                const float scale = st_code_scale(st_f32_bits(x), squares != 0, &inverse);

                for (uint32_t random = 8; random <= RANDOM_MAX - 8; random += random / 3)
                    assert_stays(code, scale, inverse, random, squares != 0);
                assert_stays(code, scale, inverse, RANDOM_MAX - 8, squares != 0);
            }
        }
    }
}

/* The largest magnitude of a block has the last code, whatever the random bits, but that the 4 least of RANDOM_MAX may give the
 * one before (the 16 least where the inverse is subnormal); it decodes to itself within an ulp. */
static void check_most(uint32_t mag, bool squares)
{
    const uint32_t last = code_max(squares);
    const float most = st_f32_from_bits(mag);
    float inverse;
    const float scale = st_code_scale(mag, squares, &inverse);
    const uint32_t least = st_code_encode(most, inverse, 0, squares), few = inverse < 0x1p-126f ? 16 : 4;

    if (st_code_encode(most, inverse, RANDOM_MAX, squares) != last || st_code_encode(most, inverse, few, squares) != last ||
        least < last - 1 || least > last)
        fail_msg("most %a, squares %d: codes %u to %u", (double)most, (int)squares, least,
                 st_code_encode(most, inverse, RANDOM_MAX, squares));
    if (st_f32_bits(st_code_decode((uint8_t)last, scale, squares)) - mag + 1 > 2)
        fail_msg("most %a, squares %d: %a", (double)most, (int)squares, (double)st_code_decode((uint8_t)last, scale, squares));
}

/* Every mantissa, at the least exponent, at 0, and where inverses are subnormal. */
TEST(the_most_is_reached)
{
    static const uint32_t exponents[] = {27, 127, 253, 254};

    for (int squares = 0; squares < 2; squares++) {
        for (uint32_t e = 0; e < 4; e++) {
            for (uint32_t mantissa = 0; mantissa < 1u << 23; mantissa++)
                check_most(exponents[e] << 23 | mantissa, squares != 0);
        }
        for (uint32_t e = 27; e < 255; e++) {
            for (uint32_t i = 0; i < 1000; i++)
                check_most(e << 23 | kf_bits(e, i) >> 9, squares != 0);
        }
    }
}

TEST(scales_of_the_rare_blocks)
{
    static const uint32_t zero[] = {0u, 1u, 0x007fffffu, ST_CODE_LEAST - 1u},
                          nan[] = {0x7f800000u, 0x7f800001u, 0x7fc00000u, 0x7fffffffu};

    for (int squares = 0; squares < 2; squares++) {
        for (size_t i = 0; i < 4; i++) {
            float inverse = 1.0f;

            assert_int_equal(st_f32_bits(st_code_scale(zero[i], squares != 0, &inverse)), 0);
            assert_true(inverse == 0.0f);
            inverse = 1.0f;
            assert_int_equal(st_f32_bits(st_code_scale(nan[i], squares != 0, &inverse)), ST_F32_NAN);
            assert_true(inverse == 0.0f);
        }
        for (uint32_t random = 0; random <= RANDOM_MAX; random += 1001) {
            assert_int_equal(st_code_encode(INFINITY, 0.0f, random, squares != 0), 0);
            assert_int_equal(st_code_encode(-0.5f, 0.0f, random, squares != 0), 0);
        }
    }
    assert_true(st_f32_from_bits(ST_CODE_LEAST) == 0x1p-100f);
}

/* In a block with a scale, a sum of squares of any size has a code and a value. */
TEST(squares_are_never_zero)
{
    for (uint32_t i = 0; i < 1000000; i++) {
        const uint32_t most = ST_CODE_LEAST + kf_bits(3, i) % (ST_F32_INF - ST_CODE_LEAST);
        const uint32_t x = i % 16 == 0 ? 0 : kf_bits(4, i) % (most + 1);
        float inverse;
        const float scale = st_code_scale(most, true, &inverse);
        const uint8_t code = st_code_encode(st_f32_from_bits(x), inverse, kf_bits(5, i) & RANDOM_MAX, true);

        assert_true(code > 0);
        assert_true(st_code_decode(code, scale, true) > 0.0f);
    }
}

/* --- rounding --- */

/* Key of a step, as good as the optimizer's own. */
static uint64_t key_of(uint64_t step)
{
    return st_rng_u64(0x51e9, 7, step);
}

#define DRAWS (1u << 20)

/* x lies between low and high, one of which each draw must be: their mean is x within 5 sigma. */
struct mean {
    double x, low, high;
    uint64_t ups;
};

static void count_draw(struct mean *m, double got)
{
    assert_true(got == m->low || got == m->high);
    m->ups += got == m->high;
}

static void check_mean(const struct mean *m)
{
    const double part = (m->x - m->low) / (m->high - m->low), got = (double)m->ups / DRAWS;
    const double bound = 5.0 * sqrt(part * (1.0 - part) / DRAWS) + 0x1p-19;

    if (!(fabs(got - part) <= bound))
        fail_msg("%a between %a and %a: up in %f of draws, not %f; bound %f", m->x, m->low, m->high, got, part, bound);
}

static const double parts[] = {0.0, 0.001, 0.1, 0.25, 0.5, 0.7, 0.99, 0.9999};

TEST(bf16_rounding_is_fair)
{
    static const uint32_t lows[] = {0x3f800000u, 0xbf810000u, 0x00010000u, 0x35ff0000u, 0x80000000u, 0x7e7f0000u};

    for (size_t n = 0; n < sizeof(lows) / sizeof(lows[0]) * 8; n++) {
        const uint32_t low = lows[n / 8], bits = low + (uint32_t)(parts[n % 8] * 65536.0);
        const float x = st_f32_from_bits(bits);
        struct mean m = {(double)x, (double)st_f32_from_bits(low), (double)st_f32_from_bits(low + 0x10000u), 0};

        const uint64_t key = key_of(n);

        for (uint64_t i = 0; i < DRAWS; i++) {
            const uint32_t random = st_rounding_part(st_rounding_bits(key, i), (int)(n % 2), 16);

            count_draw(&m, (double)st_bf16_to_f32(st_f32_to_bf16_random(x, random)));
        }
        check_mean(&m);
    }
    assert_int_equal(st_f32_to_bf16_random(st_f32_from_bits(0xffffffffu), 0xffffu), ST_BF16_NAN);
    assert_int_equal(st_f32_to_bf16_random(INFINITY, 0xffffu), 0x7f80u);
}

TEST(code_rounding_is_fair)
{
    for (size_t n = 0; n < 96; n++) {
        const bool squares = n % 2 != 0;
        const uint32_t code = 1 + (uint32_t)(n / 8 * 31) % (code_max(squares) - 1);
        const float sign = !squares && n % 3 == 0 ? -1.0f : 1.0f;
        const double low = stated(code, squares), high = stated(code + 1, squares);
        const float x = (float)(low + parts[n % 8] * (high - low));
        struct mean m = {(double)x, low, high, 0};

        const uint64_t key = key_of(n);

        for (uint64_t i = 0; i < DRAWS; i++) {
            const uint32_t random = st_rounding_part(st_rounding_bits(key, i), (int)(n / 2 % 2), ST_CODE_SHIFT);

            count_draw(&m, (double)(sign * st_code_decode(st_code_encode(sign * x, 1.0f, random, squares), 1.0f, squares)));
        }
        check_mean(&m);
    }
}

/* --- bits --- */

/* Chi-square of N counts that should be equal is N - 1 with a deviation of sqrt(2 (N - 1)): within 6 of those. */
static void assert_uniform(const uint32_t *counts, uint32_t bins, uint64_t draws, const char *what)
{
    const double want = (double)draws / bins, sigma = sqrt(2.0 * (bins - 1));
    double chi2 = 0.0;

    for (uint32_t i = 0; i < bins; i++)
        chi2 += ((double)counts[i] - want) * ((double)counts[i] - want) / want;
    if (!(fabs(chi2 - (bins - 1)) <= 6.0 * sigma))
        fail_msg("%s: chi-square %f over %u bins", what, chi2, bins);
}

/* The part of a moment at consecutive positions: how often its first and last 8 bits are what.  (At 2^22 positions and more the
 * high half's frequencies show to be off by half a percent; what it takes to round up does not, see below.) */
static void check_uniform(uint64_t key, uint64_t begin, int which, int width)
{
    const uint64_t draws = 1u << 18;
    uint32_t bytes[2][256] = {0};
    char what[64];

    for (uint64_t i = 0; i < draws; i++) {
        const uint32_t part = st_rounding_part(st_rounding_bits(key, begin + i), which, width);

        bytes[0][part & 0xffu]++;
        bytes[1][part >> (width - 8)]++;
    }
    snprintf(what, sizeof(what), "%d bits for moment%d from %llx on", width, which + 1, (unsigned long long)begin);
    assert_uniform(bytes[0], 256, draws, what);
    assert_uniform(bytes[1], 256, draws, what);
}

/* How often the part is below each bound, against how often it should be.  Kolmogorov: more than 2.5 / sqrt(draws) apart has a
 * probability of 1e-5. */
static void check_distribution(uint64_t key, uint64_t begin, int which, int width)
{
    static uint32_t counts[1u << ST_CODE_SHIFT];
    const uint64_t draws = 1u << 22;
    uint64_t below = 0;
    double apart = 0.0;

    memset(counts, 0, sizeof(counts));
    for (uint64_t i = 0; i < draws; i++)
        counts[st_rounding_part(st_rounding_bits(key, begin + i), which, width)]++;
    for (uint32_t part = 0; part < 1u << width; part++) {
        apart = fmax(apart, fabs((double)below - ldexp((double)part, -width) * (double)draws));
        below += counts[part];
    }
    assert_int_equal(below, draws);
    if (!(apart <= 2.5 * sqrt((double)draws)))
        fail_msg("%d bits for moment%d from %llx on: %f apart", width, which + 1, (unsigned long long)begin, apart);
}

TEST(parts_are_uniform)
{
    static const uint64_t begins[] = {0, (uint64_t)5 << 32, ((uint64_t)1 << 32) - (1u << 17)};

    for (size_t n = 0; n < 96; n++)
        check_uniform(key_of(n / 12), begins[n / 4 % 3], (int)(n % 2), n % 4 < 2 ? 16 : ST_CODE_SHIFT);
    for (size_t n = 0; n < 12; n++)
        check_distribution(key_of(n / 6), begins[n / 4], (int)(n % 2), n % 4 < 2 ? 16 : ST_CODE_SHIFT);
}

/* A uniform half, of mean 0 and variance 1. */
static double centered(uint32_t half)
{
    return ((double)half - 32767.5) * (1.0 / 18918.6140);
}

static double half_at(uint64_t key, uint64_t position, int which)
{
    return centered(st_rounding_part(st_rounding_bits(key, position), which, 16));
}

#define PAIRS (1u << 18)

/* Correlation of two halves over many positions: 0 within 5 deviations of 1 / sqrt(PAIRS). */
static void assert_uncorrelated(uint64_t key1, uint64_t key2, int which1, int which2, uint64_t lag, const char *what)
{
    double sum = 0.0;

    for (uint64_t i = 0; i < PAIRS; i++)
        sum += half_at(key1, i, which1) * half_at(key2, i + lag, which2);
    if (!(fabs(sum) <= 5.0 * sqrt(PAIRS)))
        fail_msg("%s, halves %d and %d, lag %llu: correlation %f", what, which1, which2, (unsigned long long)lag, sum / PAIRS);
}

TEST(halves_of_an_element_are_uncorrelated)
{
    for (uint64_t step = 0; step < 32; step++)
        assert_uncorrelated(key_of(step), key_of(step), 0, 1, 0, "one element");
}

TEST(neighbours_are_uncorrelated)
{
    static const uint64_t lags[] = {1, 2, 3, 4, 8, 16, 32, 255, 256, 4096, 65536};

    for (size_t l = 0; l < sizeof(lags) / sizeof(lags[0]); l++) {
        for (int halves = 0; halves < 4; halves++)
            assert_uncorrelated(key_of(l), key_of(l), halves % 2, halves / 2, lags[l], "neighbours");
    }
}

TEST(steps_are_uncorrelated)
{
    for (uint64_t step = 0; step < 32; step++) {
        for (int halves = 0; halves < 4; halves++)
            assert_uncorrelated(key_of(step), key_of(step + 1), halves % 2, halves / 2, 0, "steps");
        assert_uncorrelated(key_of(step), key_of(step + 1), (int)(step % 2), (int)(step % 2), 1, "steps");
    }
}

/* Of one element over steps: chi-square of its bytes, and from each step to the next. */
TEST(an_element_is_random_over_steps)
{
    for (uint64_t position = 0; position < 16; position++) {
        const int which = (int)(position % 2);
        uint32_t counts[256] = {0};
        double sum = 0.0, before = 0.0;

        for (uint64_t step = 1; step <= 65536; step++) {
            const double half = half_at(key_of(step), position * 4099, which);

            counts[st_rounding_part(st_rounding_bits(key_of(step), position * 4099), which, 16) >> 8]++;
            sum += half * before;
            before = half;
        }
        assert_uniform(counts, 256, 65536, "an element over steps");
        assert_true(fabs(sum) <= 5.0 * 256.0);
    }
}

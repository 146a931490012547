/* tests/core/test_rng.c - published Philox answers, slices of the same stream, moments of the normal, bijections. */
#include "core/base/rng.h"
#include "tests/common/test.h"

#include "core/base/checksum.h"
#include "core/base/cpu.h"
#include "core/base/rng_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* kat_vectors of Random123 1.09, philox4x32 10. */
TEST(test_philox_known_answers)
{
    static const struct {
        uint64_t index, stream, seed;
        uint32_t out[4];
    } rows[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {UINT64_C(0x85a308d3243f6a88),
         UINT64_C(0x0370734413198a2e),
         UINT64_C(0x299f31d0a4093822),
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint32_t out[4];

        st_rng_block(out, rows[i].seed, rows[i].stream, rows[i].index);
        assert_memory_equal(out, rows[i].out, sizeof(out));
    }
}

TEST(test_u64_walks_the_blocks)
{
    uint32_t block[4];

    st_rng_block(block, 9, 8, 7);
    assert_true(st_rng_u64(9, 8, 14) == ((uint64_t)block[1] << 32 | block[0]));
    assert_true(st_rng_u64(9, 8, 15) == ((uint64_t)block[3] << 32 | block[2]));
}

/* Any slice of a stream equals the same slice of the whole. */
TEST(test_normal_slices)
{
    enum { COUNT = 3000 };
    static float whole[COUNT], part[COUNT + 1];

    st_rng_normal(whole, COUNT, 5, 6, 0, 0.02f);
    for (size_t first = 0; first < 20; first++)
        for (size_t count = 0; count < 600; count += first % 2 == 0 ? 1 : 97) {
            part[count] = 123.0f;
            st_rng_normal(part, count, 5, 6, first * 119, 0.02f);
            assert_memory_equal(part, whole + first * 119, count * sizeof(part[0]));
            assert_true(part[count] == 123.0f);
        }
}

/* Sample by sample against Box-Muller in double precision with libm. */
TEST(test_normal_is_box_muller)
{
    enum { BLOCKS = 20000 };
    const double two_pi = 6.283185307179586;
    float *values = malloc(BLOCKS * 4 * sizeof(values[0]));

    assert_non_null(values);
    st_rng_normal(values, BLOCKS * 4, 11, 12, 0, 1.0f);
    for (uint64_t i = 0; i < BLOCKS; i++) {
        uint32_t words[4];

        st_rng_block(words, 11, 12, i);
        for (size_t pair = 0; pair < 2; pair++) {
            double u = ((words[pair * 2] >> 1) + 0.5) / 2147483648.0, angle = words[pair * 2 + 1] * two_pi / 4294967296.0;
            double radius = sqrt(-2 * log(u)), tolerance = 1e-6 + 1.2e-7 / radius; /* u has 24 bits */

            assert_true(fabs(values[i * 4 + pair * 2] - radius * cos(angle)) < tolerance);
            assert_true(fabs(values[i * 4 + pair * 2 + 1] - radius * sin(angle)) < tolerance);
        }
    }
    free(values);
}

/* The bits are part of the contract: a preset's weights are the same on every machine. */
TEST(test_normal_bits)
{
    enum { COUNT = 100003 };
    float *values = malloc(COUNT * sizeof(values[0]));

    assert_non_null(values);
    st_rng_normal(values, COUNT, 1234, 1, 3, 0.02f);
    assert_true(st_checksum64(values, COUNT * sizeof(values[0])) == UINT64_C(0x8484d445c3cbe7dd));
    free(values);
}

static const struct {
    const char *name;
    st_rng_normal_fn *fill;
    uint32_t feature;
} variants[] = {
#if defined(__x86_64__)
    {"avx2", st_rng_normal_avx2, ST_CPU_AVX2_FMA},
    {"avx512", st_rng_normal_avx512, ST_CPU_AVX512},
#endif
    {"scalar", st_rng_normal_scalar, 0},
};
#define VARIANTS (sizeof(variants) / sizeof(variants[0]))

/* Some whole counters, by every variant, between canaries that stay; what a variant leaves to the scalar one stays, too. */
static void check_counters(size_t blocks, uint64_t seed, uint64_t stream, uint64_t index, float std)
{
    enum { MOST = 4 * 300, PAD = 16 };
    static float want[MOST], got[PAD + MOST + PAD];

    assert_true(blocks * 4 <= MOST);
    assert_int_equal(st_rng_normal_scalar(want, blocks, seed, stream, index, std), blocks);
    for (size_t v = 0; v < VARIANTS; v++) {
        size_t done;

        if ((st_cpu_features() & variants[v].feature) != variants[v].feature)
            continue;
        for (size_t i = 0; i < PAD + MOST + PAD; i++)
            got[i] = 123.0f;
        done = variants[v].fill(got + PAD, blocks, seed, stream, index, std);
        assert_true(done <= blocks && blocks - done < 64);
        if (memcmp(got + PAD, want, done * 4 * sizeof(got[0])) != 0)
            fail_msg("%s: %zu counters from %llx of stream %llx differ", variants[v].name, blocks, (unsigned long long)index,
                     (unsigned long long)stream);
        for (size_t i = 0; i < PAD; i++)
            assert_true(got[i] == 123.0f && got[PAD + done * 4 + i] == 123.0f);
    }
}

/* Many streams, places (the ends of both halves of the counter included), lengths and deviations. */
TEST(test_every_variant_gives_the_scalar_bits)
{
    static const float stds[] = {0.02f, 1.0f, 0.0f, 0.0036084391824351613f, 3.4e38f, 1.2e-38f, -0.5f};
    static const uint64_t places[] = {0, 1, 7, UINT32_MAX - 130ull, UINT64_C(5) << 40, UINT64_MAX / 4 - 400};

    for (size_t blocks = 0; blocks < 80; blocks++)
        for (size_t p = 0; p < sizeof(places) / sizeof(places[0]); p++)
            check_counters(blocks, blocks, places[p], places[p] + blocks, stds[blocks % 7]);
    for (uint64_t i = 0; i < 3000; i++) {
        const uint64_t seed = st_rng_u64(1, 2, 3 * i), stream = st_rng_u64(1, 2, 3 * i + 1), index = st_rng_u64(1, 2, 3 * i + 2);

        check_counters(260 + i % 40, seed, stream, index, stds[i % 7]);
    }
}

/* Slices that begin and end within a counter, as st_rng_normal() takes them. */
TEST(test_every_variant_cuts_the_same_slices)
{
    enum { COUNT = 400 };
    static float whole[COUNT], part[COUNT + 1];

    (void)st_rng_normal_scalar(whole, COUNT / 4, 5, 6, 0, 0.02f);
    for (size_t v = 0; v < VARIANTS; v++)
        for (size_t first = 0; first < 40 && (st_cpu_features() & variants[v].feature) == variants[v].feature; first++)
            for (size_t count = 0; first + count <= COUNT; count += 1 + count / 16) {
                part[count] = 123.0f;
                st_rng_normal_by(variants[v].fill, part, count, 5, 6, first, 0.02f);
                assert_memory_equal(part, whole + first, count * sizeof(part[0]));
                assert_true(part[count] == 123.0f);
            }
}

static double normal_cdf(double x)
{
    return 0.5 * erfc(-x / sqrt(2.0));
}

TEST(test_normal_distribution)
{
    enum { COUNT = 1 << 20, BINS = 64 };
    float *values = malloc(COUNT * sizeof(values[0]));
    double sum = 0, sum2 = 0, sum4 = 0, product = 0, chi2 = 0;
    unsigned bins[BINS] = {0};

    assert_non_null(values);
    st_rng_normal(values, COUNT, 42, 7, 0, 1.0f);
    for (size_t i = 0; i < COUNT; i++) {
        double x = values[i], p = normal_cdf(x) * BINS;

        assert_true(isfinite(x) && fabs(x) < 7);
        sum += x;
        sum2 += x * x;
        sum4 += x * x * x * x;
        product += i > 0 ? x * values[i - 1] : 0;
        bins[p < BINS ? (size_t)p : BINS - 1]++;
    }
    for (size_t i = 0; i < BINS; i++)
        chi2 += (bins[i] - (double)COUNT / BINS) * (bins[i] - (double)COUNT / BINS) / ((double)COUNT / BINS);
    free(values);
    /* Five standard errors each; chi-squared of 63 degrees of freedom has mean 63 and deviation 11.2. */
    assert_true(fabs(sum / COUNT) < 5 / 1024.0);
    assert_true(fabs(sum2 / COUNT - 1) < 5 * sqrt(2.0) / 1024);
    assert_true(fabs(sum4 / COUNT - 3) < 5 * sqrt(96.0) / 1024);
    assert_true(fabs(product / COUNT) < 5 / 1024.0);
    assert_true(chi2 < 63 + 5 * 11.2);
}

TEST(test_normal_scale)
{
    float one[257], two[257];

    st_rng_normal(one, 257, 3, 3, 1, 1.0f);
    st_rng_normal(two, 257, 3, 3, 1, 0.5f);
    for (size_t i = 0; i < 257; i++)
        assert_true(two[i] == 0.5f * one[i]);
    st_rng_normal(two, 257, 3, 3, 1, 0.0f);
    for (size_t i = 0; i < 257; i++)
        assert_true(two[i] == 0.0f);
}

static void check_bijection(uint64_t n, uint64_t seed)
{
    unsigned char *seen = calloc(n, 1);

    assert_non_null(seen);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = st_rng_permute(i, n, seed, 2);

        assert_true(at < n);
        assert_int_equal(seen[at], 0);
        seen[at] = 1;
    }
    free(seen);
}

TEST(test_permutation_is_a_bijection)
{
    static const uint64_t sizes[] = {255, 256, 257, 1000, 4096, 4097, 65537};

    for (uint64_t n = 1; n < 70; n++)
        check_bijection(n, n * 77);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        check_bijection(sizes[i], i);
}

TEST(test_permutation_depends_on_seed)
{
    unsigned same = 0;

    for (uint64_t i = 0; i < 1000; i++)
        same += st_rng_permute(i, 1000, 1, 0) == st_rng_permute(i, 1000, 2, 0);
    assert_true(same < 20);
    assert_true(st_rng_permute(12345, UINT64_MAX, 1, 0) != 12345);
}

/* Split and join of the master, casts and addition: every table against scalar by memcmp, scalar against what the words
 * "nearest" and "exact" mean.  With --exhaustive: the split over all 2^32 masters, in every table. */
#include "kernels/isa/scalar.h"
#include "tests/common/test.h"
#include "tests/kernels/kernel_fixture.h"

#define SHORT_MAX 130u
#define PRIME     100003u

/* One master against the definition, in double, where every distance between an fp32 and a bf16 value is exact. */
static void check_split_element(uint32_t bits, uint16_t weight, int16_t low_half)
{
    const double x = (double)st_f32_from_bits(bits);
    const uint16_t toward = (uint16_t)(bits >> 16), away = (uint16_t)(toward + 1); /* neighbours in magnitude */

    if (st_f32_bits_are_nan(bits)) {
        assert_int_equal(weight, ST_BF16_NAN);
        assert_int_equal(low_half, 0);
        return;
    }
    if (st_split_join(weight, low_half) != bits)
        fail_msg("%08x splits into %04x and %d, which join to %08x", bits, weight, low_half, st_split_join(weight, low_half));
    if (!st_f32_bits_are_finite(bits)) {
        assert_int_equal(weight, toward);
        return;
    }
    /* Where the neighbour is infinite, it stands for 2^128, one step further. */
    const double step_away =
        (away & 0x7fffu) == 0x7f80u ? ((bits >> 31) != 0 ? -0x1p128 : 0x1p128) : (double)st_bf16_to_f32(away);
    const double down = fabs(x - (double)st_bf16_to_f32(toward)), up = fabs(step_away - x);

    if (weight != (up <= down ? away : toward))
        fail_msg("%08x rounds to %04x; distances %a toward zero, %a away", bits, weight, down, up);
}

#define BATCH 65536u

/* Masters from, from + step, ... of one batch through a table's split and join. */
static void check_split_batch(const struct st_kernels *k, uint32_t from, uint32_t step)
{
    static float master[BATCH], joined[BATCH];
    static uint16_t weight[BATCH];
    static int16_t low_half[BATCH];

    for (uint32_t i = 0; i < BATCH; i++)
        master[i] = st_f32_from_bits(from + i * step);
    k->master_split(weight, low_half, master, BATCH);
    k->master_join(joined, weight, low_half, BATCH);
    for (uint32_t i = 0; i < BATCH; i++) {
        const uint32_t bits = from + i * step, want = st_f32_bits_are_nan(bits) ? ST_F32_NAN : bits;

        if (st_f32_bits(joined[i]) != want)
            fail_msg("%s: %08x came back as %08x", k->name, bits, st_f32_bits(joined[i]));
        if (st_split_join(st_split_weight(bits), st_split_low_half(bits)) != bits)
            fail_msg("%08x does not survive the split of its bits", bits);
        check_split_element(bits, weight[i], low_half[i]);
    }
}

/* 2^24 masters, evenly spread with an odd start, so that all exponents and low halves occur. */
TEST(split_round_trip_is_exact)
{
    const struct st_kernels *k;

    for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
        for (uint32_t batch = 0; batch < (1u << 24) / BATCH; batch++)
            check_split_batch(k, batch << 24 | batch * 131u % 257u, 257u);
    }
}

static void split_round_trip_is_exact_for_all(void **state)
{
    const struct st_kernels *k;

    (void)state;
    for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
        for (uint32_t batch = 0; batch < (uint32_t)((1ull << 32) / BATCH); batch++)
            check_split_batch(k, batch * BATCH, 1);
    }
}

TEST(split_of_specials)
{
    for (uint32_t i = 0; i < KF_SPECIAL_COUNT; i++) {
        const float x = st_f32_from_bits(kf_special[i]);
        uint16_t weight;
        int16_t low_half;

        kf_scalar()->master_split(&weight, &low_half, &x, 1);
        check_split_element(kf_special[i], weight, low_half);
    }
    assert_true(st_split_overflows(0x7f7f8000u) && st_split_overflows(0xff7fffffu));
    assert_false(st_split_overflows(0x7f7f7fffu) || st_split_overflows(0x7f800000u) || st_split_overflows(0xffc00000u));
}

/* A cast to 16 bits: the nearest of the two neighbours, the even one at a tie.  `widen` gives the value of a pattern. */
static void check_nearest_even(uint32_t bits, uint16_t got, float (*widen)(uint16_t), uint16_t inf, double overflow_at)
{
    const double x = (double)st_f32_from_bits(bits), mag = fabs(x);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u), got_mag = (uint16_t)(got & 0x7fffu);

    assert_int_equal(got & 0x8000u, sign);
    if (mag >= overflow_at) {
        assert_int_equal(got_mag, inf);
        return;
    }
    assert_true(got_mag < inf);
    const double here = fabs(mag - (double)widen(got_mag));
    const double up = got_mag + 1 == inf ? HUGE_VAL : fabs((double)widen((uint16_t)(got_mag + 1)) - mag);
    const double down = got_mag == 0 ? HUGE_VAL : fabs(mag - (double)widen((uint16_t)(got_mag - 1)));
    const double other = up < down ? up : down;

    if (here > other || (here == other && (got & 1u) != 0))
        fail_msg("%08x rounds to %04x, but a neighbour is as near", bits, got);
}

TEST(casts_round_to_nearest_even)
{
    for (uint32_t i = 0; i < (1u << 22) + KF_SPECIAL_COUNT; i++) {
        const uint32_t bits = i < KF_SPECIAL_COUNT ? kf_special[i] : (i - KF_SPECIAL_COUNT) * 1021u;
        const float x = st_f32_from_bits(bits);
        uint16_t bf16, f16;

        kf_scalar()->f32_to_bf16(&bf16, &x, 1);
        kf_scalar()->f32_to_f16(&f16, &x, 1);
        if (st_f32_bits_are_nan(bits)) {
            assert_int_equal(bf16, ST_BF16_NAN);
            assert_int_equal(f16, ST_F16_NAN);
            continue;
        }
        check_nearest_even(bits, bf16, st_bf16_to_f32, 0x7f80, 0x1.ffp127);
        check_nearest_even(bits, f16, st_f16_to_f32, 0x7c00, 65520.0);
    }
}

/* All 65536 patterns: value from the fields of the format, and back by rounding. */
TEST(widening_is_exact)
{
    for (uint32_t i = 0; i < 65536; i++) {
        const uint16_t x = (uint16_t)i;
        const int exponent = (int)(i >> 10 & 31u), fraction = (int)(i & 1023u);
        float wide;

        kf_scalar()->bf16_to_f32(&wide, &x, 1);
        assert_int_equal(st_f32_bits(wide), i << 16);
        if (!isnan(wide))
            assert_int_equal(st_f32_to_bf16(wide), x);
        kf_scalar()->f16_to_f32(&wide, &x, 1);
        if (exponent == 31) {
            assert_true(fraction == 0 ? isinf(wide) != 0 : st_f32_bits(wide) == ST_F32_NAN);
            continue;
        }
        const double mag = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);

        assert_true((double)wide == (i >> 15 != 0 ? -mag : mag));
        assert_int_equal(st_f32_to_f16(wide), x);
    }
}

/* The same patterns through every table's own loops, not its tail. */
TEST(fp16_of_every_table)
{
    static uint16_t x[65536], back[65536];
    static float wide[65536];
    const struct st_kernels *k;

    for (uint32_t i = 0; i < 65536; i++)
        x[i] = (uint16_t)i;
    for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
        k->f16_to_f32(wide, x, 65536);
        k->f32_to_f16(back, wide, 65536);
        for (uint32_t i = 0; i < 65536; i++) {
            assert_int_equal(st_f32_bits(wide[i]), st_f32_bits(st_f16_to_f32(x[i])));
            assert_int_equal(back[i], (i & 0x7fffu) > 0x7c00u ? ST_F16_NAN : i);
        }
    }
}

struct cast_arrays {
    struct kf_array f32[2], in[2], weight[2], low_half[2]; /* [0] of the variant, [1] of the scalar table */
};

static void create(struct cast_arrays *a)
{
    for (size_t i = 0; i < 2; i++) {
        kf_array_create(&a->f32[i], PRIME * sizeof(float));
        kf_array_create(&a->in[i], PRIME * sizeof(float));
        kf_array_create(&a->weight[i], PRIME * sizeof(uint16_t));
        kf_array_create(&a->low_half[i], PRIME * sizeof(int16_t));
    }
}

static void destroy(struct cast_arrays *a)
{
    for (size_t i = 0; i < 2; i++) {
        kf_array_destroy(&a->f32[i]);
        kf_array_destroy(&a->in[i]);
        kf_array_destroy(&a->weight[i]);
        kf_array_destroy(&a->low_half[i]);
    }
}

/* Fill the scalar side, copy it to the other. */
static void fill(struct cast_arrays *a, size_t elems)
{
    kf_fill(a->f32[1].data, STRATA_F32, elems, elems, 1.0f);
    kf_fill(a->in[1].data, STRATA_F32, elems, elems + 1, 1.0f);
    kf_fill(a->weight[1].data, STRATA_BF16, elems, elems + 2, 1.0f);
    kf_fill(a->low_half[1].data, STRATA_F16, elems, elems + 3, 1.0f);
    kf_array_copy(&a->f32[0], &a->f32[1]);
    kf_array_copy(&a->in[0], &a->in[1]);
    kf_array_copy(&a->weight[0], &a->weight[1]);
    kf_array_copy(&a->low_half[0], &a->low_half[1]);
}

static void assert_all_same(const struct cast_arrays *a, const char *what)
{
    kf_assert_same(&a->f32[0], &a->f32[1], what);
    kf_assert_same(&a->in[0], &a->in[1], what);
    kf_assert_same(&a->weight[0], &a->weight[1], what);
    kf_assert_same(&a->low_half[0], &a->low_half[1], what);
}

/* All kernels of table i of the arrays; each writes one plane that the next comparison sees. */
static void run_kernels(const struct st_kernels *k, const struct cast_arrays *a, size_t i, size_t elems, int kernel)
{
    float *const f32 = (void *)a->f32[i].data;
    const float *const in = (void *)a->in[i].data;
    uint16_t *const weight = (void *)a->weight[i].data;
    int16_t *const low_half = (void *)a->low_half[i].data;

    switch (kernel) {
    case 0:
        k->master_split(weight, low_half, in, elems);
        break;
    case 1:
        k->master_join(f32, weight, low_half, elems);
        break;
    case 2:
        k->f32_to_bf16(weight, in, elems);
        break;
    case 3:
        k->bf16_to_f32(f32, weight, elems);
        break;
    case 4:
        k->f32_to_f16(weight, in, elems);
        break;
    case 5:
        k->f16_to_f32(f32, (const uint16_t *)low_half, elems);
        break;
    default:
        k->add_f32(f32, in, elems);
        break;
    }
}

static void compare(struct cast_arrays *a, size_t elems)
{
    static const char *const names[] = {"master_split", "master_join", "f32_to_bf16", "bf16_to_f32",
                                        "f32_to_f16",   "f16_to_f32",  "add_f32"};
    const struct st_kernels *k;

    for (size_t t = 0; (k = kf_variant(t)) != NULL; t++) {
        for (int kernel = 0; kernel < 7; kernel++) {
            fill(a, elems);
            run_kernels(kf_scalar(), a, 1, elems, kernel);
            run_kernels(k, a, 0, elems, kernel);
            assert_all_same(a, names[kernel]);
        }
    }
}

TEST(tables_agree_at_every_length_and_alignment)
{
    struct cast_arrays a;

    create(&a);
    for (size_t elems = 0; elems <= SHORT_MAX; elems++) {
        for (size_t shift = 0; shift < 32; shift++) {
            kf_array_place(&a.f32[1], sizeof(float), elems, shift);
            kf_array_place(&a.in[1], sizeof(float), elems, shift * 5 + elems);
            kf_array_place(&a.weight[1], sizeof(uint16_t), elems, shift);
            kf_array_place(&a.low_half[1], sizeof(int16_t), elems, shift * 3 + elems);
            compare(&a, elems);
        }
    }
    destroy(&a);
}

static void place_all_at_end(struct cast_arrays *a, size_t elems)
{
    kf_array_place_at_end(&a->f32[1], sizeof(float), elems);
    kf_array_place_at_end(&a->in[1], sizeof(float), elems);
    kf_array_place_at_end(&a->weight[1], sizeof(uint16_t), elems);
    kf_array_place_at_end(&a->low_half[1], sizeof(int16_t), elems);
}

TEST(nothing_past_the_end_is_touched)
{
    struct cast_arrays a;

    create(&a);
    for (size_t elems = 0; elems <= SHORT_MAX; elems++) {
        place_all_at_end(&a, elems);
        compare(&a, elems);
    }
    place_all_at_end(&a, PRIME);
    compare(&a, PRIME);
    destroy(&a);
}

TEST(sums_of_awkward_values)
{
    for (uint32_t i = 0; i < KF_SPECIAL_COUNT; i++) {
        for (uint32_t j = 0; j < KF_SPECIAL_COUNT; j++) {
            const float x = st_f32_from_bits(kf_special[i]), y = st_f32_from_bits(kf_special[j]);
            const struct st_kernels *k;

            for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
                float acc[9], in[9];

                for (size_t e = 0; e < 9; e++) {
                    acc[e] = x;
                    in[e] = y;
                }
                k->add_f32(acc, in, 9);
                for (size_t e = 0; e < 9; e++)
                    assert_int_equal(st_f32_bits(acc[e]), st_f32_canonical_bits(x + y));
            }
        }
    }
}

TEST_MAIN(argc, argv)
{
    const struct CMUnitTest exhaustive[] = {cmocka_unit_test(split_round_trip_is_exact_for_all)};

    if (argc > 1 && strcmp(argv[1], "--exhaustive") == 0)
        return cmocka_run_group_tests_name("cast", exhaustive, NULL, NULL);
    return test_run(NULL, NULL);
}

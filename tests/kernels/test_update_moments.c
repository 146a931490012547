/* Moments in bf16 and in 8 bits: every table against scalar, the step against that with fp32 moments and against fp64. */
#include "kernels/isa/isa.h"
#include "kernels/isa/scalar.h"
#include "tests/common/test.h"
#include "tests/kernels/update_scalar_fma.h"
#include <math.h>
#include <string.h>

#define SHORT_MAX 130u
#define PRIME     1000003u

static const enum st_moment_format formats[2] = {ST_MOMENTS_BF16, ST_MOMENTS_8BIT};

/* Positions near 0, and such that the array crosses a multiple of 2^32. */
static uint64_t any_position(uint64_t seed)
{
    const uint64_t near = (uint64_t)(kf_bits(seed, 77) % 4) * ST_NORM_BLOCK;

    return kf_bits(seed, 78) % 2 == 0 ? near : ((uint64_t)(1 + kf_bits(seed, 79) % 100) << 32) - near;
}

static struct uf_case make_case(enum uf_rule rule, enum uf_layout layout, enum st_moment_format format, strata_dtype grad_dtype,
                                size_t elems, size_t choice)
{
    return (struct uf_case){rule, layout, format, grad_dtype, elems, any_position(choice), uf_any_coef(rule, choice)};
}

/* Rule, layout and gradient number n of RULES_AND_ALL. */
#define RULES_AND_ALL ((size_t)UF_RULE_COUNT * UF_LAYOUT_COUNT * 3)

static struct uf_case case_number(size_t n, enum st_moment_format format, size_t elems)
{
    return make_case((enum uf_rule)(n % UF_RULE_COUNT), (enum uf_layout)(n / UF_RULE_COUNT % UF_LAYOUT_COUNT), format,
                     uf_grad_dtypes[n / UF_RULE_COUNT / UF_LAYOUT_COUNT], elems, n + elems);
}

/* --- tables against scalar --- */

TEST(tables_agree_at_every_length_and_alignment)
{
    for (size_t elems = 0; elems <= SHORT_MAX; elems++) {
        for (size_t shift = 0; shift < UF_SHIFTS; shift++) {
            for (size_t i = 0; i < 2 * (size_t)UF_RULE_COUNT; i++) {
                const size_t choice = kf_bits(elems * UF_SHIFTS + shift, i);
                const struct uf_case c = make_case((enum uf_rule)(i / 2), (enum uf_layout)(choice / 64 % UF_LAYOUT_COUNT),
                                                   formats[i % 2], uf_grad_dtypes[choice % 3], elems, choice / 3);

                uf_place(*state, &c, shift);
                uf_fill(*state, &c, choice);
                uf_compare(*state, &c);
            }
        }
    }
}

/* In one block, around one, around one pack and around two. */
TEST(all_combinations_agree_and_nothing_past_the_end_is_touched)
{
    static const size_t lengths[] = {0, 1, 31, 97, 130, 255, 256, 257, 4095, 4096, 4097, 8191, 8192, 8193};

    for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++) {
        for (size_t n = 0; n < 2 * RULES_AND_ALL; n++) {
            const struct uf_case c = case_number(n / 2, formats[n % 2], lengths[l]);

            uf_place_at_end(*state, &c);
            uf_fill(*state, &c, n + lengths[l]);
            uf_compare(*state, &c);
        }
    }
}

TEST(tables_agree_over_a_large_prime)
{
    for (size_t n = 0; n < 2 * (size_t)UF_RULE_COUNT; n++) {
        const struct uf_case c = make_case((enum uf_rule)(n / 2), (enum uf_layout)((n / 2 + n % 2) % UF_LAYOUT_COUNT),
                                           formats[n % 2], uf_grad_dtypes[n % 3], PRIME, n);

        uf_place(*state, &c, n + 1);
        uf_fill(*state, &c, n);
        uf_compare(*state, &c);
    }
}

/* One master that is rare, at each place of a block: the others of the block and their codes are as without. */
TEST(a_large_master_anywhere_in_a_block_agrees)
{
    static const uint32_t large[] = {0x7f7f8000u, 0x7f800000u, 0x7fc00000u, 0xff7fffffu};
    struct uf_arrays *const a = *state;

    for (size_t n = 0; n < 2 * (size_t)UF_RULE_COUNT; n++) {
        struct uf_case c = make_case((enum uf_rule)(n / 2), UF_SPLIT, formats[n % 2], STRATA_BF16, 3 * ST_MOMENT_BLOCK, 0);

        c.coef.grad_scale = 0x1p-30f; /* fewer infinities */
        uf_place(a, &c, n);
        for (size_t at = 0; at < ST_MOMENT_BLOCK; at++) {
            const uint32_t bits = large[at % 4];

            uf_fill(a, &c, n);
            ((uint16_t *)(void *)a->source[UF_WEIGHT].data)[ST_MOMENT_BLOCK + at] = st_split_weight(bits);
            ((int16_t *)(void *)a->source[UF_LOW_HALF].data)[ST_MOMENT_BLOCK + at] = st_split_low_half(bits);
            uf_compare(a, &c);
        }
    }
}

TEST(scalar_bits_do_not_depend_on_flags)
{
    struct uf_arrays *const a = *state;

    for (size_t n = 0; n < 2 * RULES_AND_ALL; n++) {
        const struct uf_case c = case_number(n / 2, formats[n % 2], 12421);

        uf_place(a, &c, 0);
        uf_fill(a, &c, n);
        uf_compare_with_fma(a, &c);
    }
}

/* --- what holds within a table --- */

TEST(cuts_at_multiples_of_the_norm_block_do_not_show)
{
    static const size_t cuts[] = {0, 1, 2, 7, 8, 24}, blocks = 24;
    const size_t elems = blocks * ST_NORM_BLOCK + 4001;
    struct uf_arrays *const a = *state;
    const struct st_kernels *k;

    for (size_t n = 0; n < 2 * (size_t)UF_RULE_COUNT * 2; n++) {
        const enum uf_layout layout = n / 2 / UF_RULE_COUNT == 0 ? UF_SPLIT : UF_FULL_F16;
        const struct uf_case c = make_case((enum uf_rule)(n / 2 % UF_RULE_COUNT), layout, formats[n % 2], STRATA_BF16, elems, n);

        uf_place(a, &c, n);
        uf_fill(a, &c, n);
        for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
            uint64_t sum = 0;

            uf_take_source(a, 0);
            uf_take_source(a, 1);
            for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
                const size_t at = cuts[i] * ST_NORM_BLOCK, end = cuts[i] == blocks ? elems : cuts[i + 1] * ST_NORM_BLOCK;

                sum += uf_run_part(k, a, 0, &c, at, end - at);
            }
            assert_int_equal(uf_run(k, a, 1, &c), sum);
            uf_assert_same(a, k->name, &c);
        }
    }
}

TEST(split_equals_full_master)
{
    for (size_t n = 0; n < 2 * (size_t)UF_RULE_COUNT; n++) {
        const struct uf_case split = make_case((enum uf_rule)(n / 2), UF_SPLIT, formats[n % 2], STRATA_BF16, 10007, 3);

        uf_compare_split_and_full(*state, &split, 42 + n);
    }
}

/* --- the step against that with fp32 moments --- */

#define STEP_ELEMS 9001u /* two packs and a part, whose last block is a part too */

/* Element i of a moment that lies in `format`. */
static float moment_at(const void *plane, enum st_moment_format format, size_t i, bool squares)
{
    const unsigned char *const pack = (const unsigned char *)plane + st_moment_bytes(ST_MOMENTS_8BIT, i & ~(ST_NORM_BLOCK - 1u));
    const size_t at = i % ST_NORM_BLOCK;
    float scale;

    if (format == ST_MOMENTS_BF16)
        return st_bf16_to_f32(((const uint16_t *)plane)[i]);
    memcpy(&scale, pack + at / ST_MOMENT_BLOCK * sizeof(scale), sizeof(scale));
    return st_code_decode(pack[64 + at], scale, squares);
}

/* Round `exact` into a block's moments as the format says. */
static void assert_block_rounded(const void *plane, const struct uf_case *c, const float *exact, size_t first, int which)
{
    const size_t end = first + ST_MOMENT_BLOCK < c->elems ? first + ST_MOMENT_BLOCK : c->elems;
    const bool squares = st_moment_is_squares(c->coef.rule, which);
    uint32_t most = 0;
    float scale, inverse;

    for (size_t i = first; i < end; i++) {
        const uint32_t mag = st_f32_bits(exact[i]) & ST_F32_MAG;

        most = mag > most ? mag : most;
    }
    scale = st_code_scale(most, squares, &inverse);
    for (size_t i = first; i < end; i++) {
        const uint32_t random = st_rounding_bits(c->coef.rounding_key, c->position + i);
        const float want =
            c->format == ST_MOMENTS_BF16
                ? st_bf16_to_f32(st_f32_to_bf16_random(exact[i], st_rounding_part(random, which, 16)))
                : st_code_decode(st_code_encode(exact[i], inverse, st_rounding_part(random, which, ST_CODE_SHIFT), squares),
                                 scale, squares);
        const float got = moment_at(plane, c->format, i, squares);

        if (st_f32_canonical_bits(got) != st_f32_canonical_bits(want))
            fail_msg("%s, moment%d, element %zu: %a, not %a", uf_rule_names[c->rule], which + 1, i, (double)got, (double)want);
    }
}

/* Decode the source's moments into fp32, step those, and hold the result against the low-bit step's. */
static void check_against_fp32(const struct st_kernels *k, struct uf_arrays *a, const struct uf_case *c)
{
    static float exact[2][STEP_ELEMS], master[STEP_ELEMS];
    const uint32_t planes = st_rule_moments(c->coef.rule);
    const struct st_moments moments = {ST_MOMENTS_F32, exact[0], planes == 2 ? exact[1] : NULL, 0};

    uf_take_source(a, 0);
    memcpy(master, uf_data(a, UF_MASTER, 0), sizeof(master));
    for (uint32_t w = 0; w < planes; w++) {
        for (size_t i = 0; i < c->elems; i++)
            exact[w][i] = moment_at(uf_data(a, UF_MOMENT1 + w, 0), c->format, i, st_moment_is_squares(c->coef.rule, (int)w));
    }
    kf_scalar()->update_master(master, NULL, STRATA_DTYPE_INVALID, &moments, uf_data(a, UF_GRAD, 0), c->grad_dtype, c->elems,
                               &c->coef);
    uf_run(k, a, 0, c);
    assert_memory_equal(uf_data(a, UF_MASTER, 0), master, sizeof(master));
    for (uint32_t w = 0; w < planes; w++) {
        for (size_t first = 0; first < c->elems; first += ST_MOMENT_BLOCK)
            assert_block_rounded(uf_data(a, UF_MOMENT1 + w, 0), c, exact[w], first, (int)w);
    }
}

TEST(step_is_that_of_fp32_with_moments_rounded_once)
{
    struct uf_arrays *const a = *state;
    const struct st_kernels *k;

    for (size_t n = 0; n < 2 * (size_t)UF_RULE_COUNT * 3; n++) {
        const struct uf_case c = make_case((enum uf_rule)(n / 2 % UF_RULE_COUNT), UF_FULL_BF16, formats[n % 2],
                                           uf_grad_dtypes[n / 2 / UF_RULE_COUNT], STEP_ELEMS, n);

        uf_place(a, &c, 0);
        uf_fill(a, &c, n);
        for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++)
            check_against_fp32(k, a, &c);
    }
}

/* --- the step against fp64 --- */

/* Moments of one step from m and v in double, with exact coefficients. */
static void exact_moments(double moment[2], const struct uf_recipe *r, double p, double grad)
{
    const double d = grad * r->grad_scale + r->l2 * p;

    switch (r->rule) {
    case UF_ADAM:
        moment[0] = r->beta1 * moment[0] + (1.0 - r->beta1) * d;
        moment[1] = r->beta2 * moment[1] + (1.0 - r->beta2) * d * d;
        break;
    case UF_ADAGRAD:
        moment[0] += d * d;
        break;
    case UF_LION:
        moment[0] = r->beta2 * moment[0] + (1.0 - r->beta2) * d;
        break;
    default:
        moment[0] = r->beta1 * moment[0] + (1.0 - r->dampening) * d;
        break;
    }
}

/* Distance from one value of the format to the next above |x|, in a block whose codes have this scale. */
static double step_at(enum st_moment_format format, double x, double scale, bool squares)
{
    const double base = squares ? 0x1p-15 : 0x1p-7;
    int exponent;

    if (format == ST_MOMENTS_BF16)
        (void)frexp(x, &exponent);
    else
        (void)frexp(fabs(x) / scale + base, &exponent);
    return format == ST_MOMENTS_BF16 ? ldexp(1.0, exponent - 8) : ldexp(scale, exponent - 5);
}

static float scale_at(const void *plane, size_t i)
{
    float scale;

    memcpy(&scale,
           (const unsigned char *)plane + st_moment_bytes(ST_MOMENTS_8BIT, i & ~(ST_NORM_BLOCK - 1u)) +
               i % ST_NORM_BLOCK / ST_MOMENT_BLOCK * sizeof(scale),
           sizeof(scale));
    return scale;
}

/* Ordinary contents: masters below 1, gradients 1 to 2 and 2^-20 of that, moments as after some steps with such. */
static void fill_ordinary(struct uf_arrays *a, const struct uf_case *c)
{
    float *const master = (void *)a->source[UF_MASTER].data, *const grad = (void *)a->source[UF_GRAD].data;

    for (size_t i = 0; i < c->elems; i++) {
        master[i] = kf_uniform(1, i);
        grad[i] = copysignf(1.5f + kf_uniform(2, i) / 2, kf_uniform(3, i)) * (i % 5 == 0 ? 0x1p-20f : 1.0f);
    }
    for (uint32_t w = 0; w < st_rule_moments(c->coef.rule); w++)
        memset(a->source[UF_MOMENT1 + w].data, 0, a->source[UF_MOMENT1 + w].data_bytes);
}

/* One step within a step of the format, where fp32's own roundings take a 2^-18th of the value at most; squares below the first
 * code become it. */
static void check_step(struct uf_arrays *a, const struct uf_case *c, const struct uf_recipe *r, const float *p, double before[2],
                       size_t i)
{
    const double grad = (double)((const float *)uf_data(a, UF_GRAD, 0))[i];

    exact_moments(before, r, (double)p[i], grad);
    for (uint32_t w = 0; w < st_rule_moments(c->coef.rule); w++) {
        const bool squares = st_moment_is_squares(c->coef.rule, (int)w);
        const void *const plane = uf_data(a, UF_MOMENT1 + w, 0);
        const double scale = c->format == ST_MOMENTS_8BIT ? (double)scale_at(plane, i) : 0.0;
        const double got = (double)moment_at(plane, c->format, i, squares);
        const double bound = step_at(c->format, before[w], scale, squares) + fabs(before[w]) * 0x1p-18;

        if (!(fabs(got - before[w]) <= bound))
            fail_msg("%s, moment%u, element %zu: %a, not %a; a step is %a", uf_rule_names[c->rule], w + 1, i, got, before[w],
                     bound);
        before[w] = got;
    }
}

/* Ten steps, each from the moments that the one before left. */
static void check_steps(const struct st_kernels *k, struct uf_arrays *a, struct uf_case *c, const struct uf_recipe *r)
{
    static double moment[STEP_ELEMS][2];
    static float p[STEP_ELEMS];

    uf_place(a, c, 0);
    fill_ordinary(a, c);
    uf_take_source(a, 0);
    memset(moment, 0, sizeof(moment));
    for (unsigned step = 2; step < 12; step++) {
        c->coef = uf_coef(r, step);
        c->coef.rounding_key = (uint64_t)kf_bits(9, step) << 32 | kf_bits(10, step);
        memcpy(p, uf_data(a, UF_MASTER, 0), sizeof(p));
        uf_run(k, a, 0, c);
        for (size_t i = 0; i < c->elems; i++)
            check_step(a, c, r, p, moment[i], i);
    }
}

TEST(moments_are_within_one_step_of_fp64)
{
    static const struct uf_recipe recipes[] = {
        {UF_ADAM, 1e-3, 0.9, 0.999, 0.0, 1e-8, 0.1, 0.0, 1.0},  {UF_ADAM, 1e-3, 0.9, 0.999, 0.0, 1e-8, 0.0, 0.1, 0.25},
        {UF_ADAGRAD, 0.01, 0.0, 0.0, 0.0, 1e-8, 0.0, 0.1, 1.0}, {UF_LION, 1e-3, 0.9, 0.99, 0.0, 0.0, 0.1, 0.0, 1.0},
        {UF_LION, 1e-3, 0.9, 0.99, 0.0, 0.0, 0.0, 0.1, 0.5},    {UF_SGD, 1e-3, 0.9, 0.0, 0.0, 0.0, 0.0, 0.1, 1.0},
        {UF_NESTEROV, 1e-3, 0.9, 0.0, 0.5, 0.0, 0.0, 0.0, 1.0},
    };
    const struct st_kernels *k;

    for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
        for (size_t n = 0; n < 2 * sizeof(recipes) / sizeof(recipes[0]); n++) {
            const struct uf_recipe *const r = &recipes[n / 2];
            struct uf_case c = make_case(r->rule, UF_FULL, formats[n % 2], STRATA_F32, STEP_ELEMS, n);

            check_steps(k, *state, &c, r);
        }
    }
}

/* --- blocks without a scale --- */

/* Two blocks whose first has one gradient of `odd`: codes and scale of each afterwards. */
static void check_block(const struct st_kernels *k, float grad, float odd, float want_scale)
{
    _Alignas(float) unsigned char m[64 + 512], v[64 + 512];
    const struct st_moments moments = {ST_MOMENTS_8BIT, m, v, 0};
    const struct st_update_coef coef = uf_any_coef(UF_ADAM, 0);
    float p[512], g[512], scale[2];

    memset(m, 0, sizeof(m));
    memset(v, 0, sizeof(v));
    for (size_t i = 0; i < 512; i++) {
        p[i] = 1.0f;
        g[i] = i < 256 ? grad : 1.0f;
    }
    g[100] = odd;
    k->update_master(p, NULL, STRATA_DTYPE_INVALID, &moments, g, STRATA_F32, 512, &coef);
    for (size_t i = 0; i < 256; i++)
        assert_true(m[64 + i] == 0 && v[64 + i] == 0);
    for (size_t i = 256; i < 512; i++)
        assert_true(m[64 + i] >= 126 && v[64 + i] >= 254);
    memcpy(scale, m, sizeof(scale));
    assert_int_equal(st_f32_bits(scale[0]), st_f32_bits(want_scale));
    assert_true(scale[1] > 0.0f);
    memcpy(scale, v, sizeof(scale));
    assert_int_equal(st_f32_bits(scale[0]), st_f32_bits(want_scale));
}

TEST(blocks_become_nan_or_zero_alone)
{
    const float nan = st_f32_from_bits(ST_F32_NAN);
    const struct st_kernels *k;

    for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
        check_block(k, 1.0f, INFINITY, nan);
        check_block(k, 1.0f, -INFINITY, nan);
        check_block(k, 1.0f, st_f32_from_bits(0xffc12345u), nan);
        check_block(k, 0.0f, 0.0f, 0.0f);
        check_block(k, -0.0f, 0x1p-126f, 0.0f);
        check_block(k, 0x1p-140f, -0x1p-149f, 0.0f);
    }
}

/* What a checkpoint imports: values of two moments that differ, and the last block is short. */
TEST(stored_moments_are_those_given_within_one_rounding)
{
    enum { ELEMS = 3 * ST_MOMENT_BLOCK + 57 };
    static float moment1[ELEMS], moment2[ELEMS];
    static uint32_t planes[2][ELEMS + 2 * ST_NORM_BLOCK];
    struct st_moment_block o;

    for (size_t i = 0; i < ELEMS; i++) {
        moment1[i] = (i % 2 == 0 ? 1.0f : -1.0f) * (0.25f + (float)(i % 97) / 128.0f);
        moment2[i] = 4.0f + (float)(i % 89) / 32.0f;
    }
    for (int format = 0; format < ST_MOMENTS_COUNT; format++) {
        const struct st_moments to = {(enum st_moment_format)format, planes[0], planes[1], 0};
        const float part = format == ST_MOMENTS_F32 ? 0.0f : format == ST_MOMENTS_BF16 ? 0x1p-7f : 0x1p-4f;

        memset(planes, 0xa5, sizeof(planes));
        st_moments_store(&to, moment1, moment2, ELEMS);
        for (size_t first = 0; first < ELEMS; first += ST_MOMENT_BLOCK) {
            const size_t count = ELEMS - first < ST_MOMENT_BLOCK ? ELEMS - first : ST_MOMENT_BLOCK;

            st_moments_open(&o, &to, ST_RULE_ADAM, first, count);
            for (size_t i = 0; i < count; i++) {
                assert_true(fabsf(o.moment1[i] - moment1[first + i]) <= part * fabsf(moment1[first + i]));
                assert_true(fabsf(o.moment2[i] - moment2[first + i]) <= part * moment2[first + i]);
            }
        }
    }
}

/* With --short: what flags and libm have a part in. */
TEST_MAIN(argc, argv)
{
    const struct CMUnitTest few[] = {
        cmocka_unit_test(scalar_bits_do_not_depend_on_flags),
        cmocka_unit_test(step_is_that_of_fp32_with_moments_rounded_once),
    };

    if (argc > 1 && strcmp(argv[1], "--short") == 0)
        return cmocka_run_group_tests_name("moments of few bits, in short", few, uf_create, uf_destroy);
    return test_run(uf_create, uf_destroy);
}

/* Every rule with fp32 moments: every table against scalar by memcmp.  Adagrad, Lion and SGD: scalar against fp64. */
#include "kernels/isa/scalar.h"
#include "tests/common/test.h"
#include "tests/kernels/update_scalar_fma.h"
#include <string.h>

#define SHORT_MAX 130u
#define PRIME     1000003u

static struct uf_case make_case(enum uf_rule rule, enum uf_layout layout, strata_dtype grad_dtype, size_t elems, size_t choice)
{
    return (struct uf_case){rule, layout, ST_MOMENTS_F32, grad_dtype, elems, 0, uf_any_coef(rule, choice)};
}

/* --- tables against scalar --- */

TEST(tables_agree_at_every_length_and_alignment)
{
    for (size_t elems = 0; elems <= SHORT_MAX; elems++) {
        for (size_t shift = 0; shift < UF_SHIFTS; shift++) {
            const size_t choice = kf_bits(elems, shift);

            for (int rule = 0; rule < UF_RULE_COUNT; rule++) {
                const struct uf_case c = make_case((enum uf_rule)rule, (enum uf_layout)(choice / 64 % UF_LAYOUT_COUNT),
                                                   uf_grad_dtypes[choice % 3], elems, choice / 3);

                uf_place(*state, &c, shift);
                uf_fill(*state, &c, elems * UF_SHIFTS + shift);
                uf_compare(*state, &c);
            }
        }
    }
}

TEST(all_combinations_agree_and_nothing_past_the_end_is_touched)
{
    static const size_t lengths[] = {0, 1, 15, 16, 31, 48, 63, 97, 130};

    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]) * 3; i++) {
        for (size_t n = 0; n < (size_t)UF_RULE_COUNT * UF_LAYOUT_COUNT * 8; n++) {
            const struct uf_case c = make_case((enum uf_rule)(n / 8 % UF_RULE_COUNT), (enum uf_layout)(n / 8 / UF_RULE_COUNT),
                                               uf_grad_dtypes[i % 3], lengths[i / 3], n % 8);

            uf_place_at_end(*state, &c);
            uf_fill(*state, &c, n);
            uf_compare(*state, &c);
        }
    }
}

TEST(tables_agree_over_a_large_prime)
{
    for (size_t n = 0; n < (size_t)UF_RULE_COUNT * UF_LAYOUT_COUNT; n++) {
        const struct uf_case c =
            make_case((enum uf_rule)(n % UF_RULE_COUNT), (enum uf_layout)(n / UF_RULE_COUNT), uf_grad_dtypes[n % 3], PRIME, n);

        uf_place(*state, &c, n + 1);
        uf_fill(*state, &c, n);
        uf_compare(*state, &c);
    }
}

/* --- special values --- */

/* Every combination of the first `count` special values in master, moment and gradient. */
static void place_specials(struct uf_arrays *a, const struct uf_case *c, size_t count)
{
    uf_place(a, c, 0);
    uint32_t *const master = (void *)a->source[UF_MASTER].data, *const moment = (void *)a->source[UF_MOMENT1].data;
    uint32_t *const grad = (void *)a->source[UF_GRAD].data;
    uint16_t *const weight = (void *)a->source[UF_WEIGHT].data;
    int16_t *const low_half = (void *)a->source[UF_LOW_HALF].data;

    memset(a->source[UF_COPY].data, 0, 2 * c->elems);
    for (size_t i = 0; i < c->elems; i++) {
        grad[i] = kf_special[i % count];
        moment[i] = kf_special[i / count % count];
        master[i] = kf_special[i / count / count];
        weight[i] = st_split_weight(master[i]);
        low_half[i] = st_split_low_half(master[i]);
    }
}

static void compare_specials(struct uf_arrays *a, enum uf_rule rule, enum uf_layout layout, const struct st_update_coef *coef)
{
    static const size_t counts[] = {KF_SPECIAL_COUNT, KF_SPECIAL_SMALL_COUNT};

    for (size_t i = 0; i < 2; i++) {
        const size_t elems = counts[i] * counts[i] * counts[i];
        const struct uf_case c = {rule, layout, ST_MOMENTS_F32, STRATA_F32, elems, 0, *coef};

        place_specials(a, &c, counts[i]);
        uf_compare(a, &c);
        uf_assert_one_nan(uf_data(a, UF_MOMENT1, 1), elems);
        if (layout == UF_SPLIT)
            kf_scalar()->master_join(uf_data(a, UF_MASTER, 1), uf_data(a, UF_WEIGHT, 1), uf_data(a, UF_LOW_HALF, 1), elems);
        uf_assert_one_nan(uf_data(a, UF_MASTER, 1), elems);
    }
}

/* Rules of one moment; test_update.c has Adam's. */
TEST(special_values_agree_and_nan_has_one_pattern)
{
    for (int rule = UF_ADAGRAD; rule < UF_RULE_COUNT; rule++) {
        /* betas 0, eps 0: divisions by zero; infinity times 0 in Lion's moment alone */
        const struct uf_recipe odd = {(enum uf_rule)rule, 1.0, 0.5, 0.0, 1.0, 0.0, 0.0, 0.0, 0x1p-100};
        const struct st_update_coef coefs[] = {uf_any_coef((enum uf_rule)rule, 0), uf_any_coef((enum uf_rule)rule, 3),
                                               uf_coef(&odd, 2)};

        for (int layout = 0; layout < UF_LAYOUT_COUNT; layout++) {
            for (size_t i = 0; i < sizeof(coefs) / sizeof(coefs[0]); i++)
                compare_specials(*state, (enum uf_rule)rule, (enum uf_layout)layout, &coefs[i]);
        }
    }
}

TEST(scalar_bits_do_not_depend_on_flags)
{
    const size_t elems = KF_SPECIAL_COUNT * KF_SPECIAL_COUNT * KF_SPECIAL_COUNT;
    struct uf_arrays *const a = *state;

    for (size_t n = 0; n < (size_t)UF_RULE_COUNT * 4; n++) {
        const enum uf_rule rule = (enum uf_rule)(n % UF_RULE_COUNT);
        const bool specials = n / UF_RULE_COUNT % 2 == 0 && rule != UF_ADAM;
        const struct uf_case c = make_case(rule, n / UF_RULE_COUNT < 2 ? UF_SPLIT : UF_FULL_F16, STRATA_F32, elems, 3);

        uf_place(a, &c, 0);
        uf_fill(a, &c, 5);
        if (specials)
            place_specials(a, &c, KF_SPECIAL_COUNT);
        uf_compare_with_fma(a, &c);
    }
}

/* --- what holds within a table --- */

/* The same array in one call and in pieces. */
TEST(cuts_do_not_show)
{
    static const size_t cuts[] = {0, 1, 9, 40, 41, 4137, 50001, 100003};
    const size_t cut_count = sizeof(cuts) / sizeof(cuts[0]);
    struct uf_arrays *const a = *state;
    const struct st_kernels *k;

    for (size_t n = 0; n < (size_t)UF_RULE_COUNT * 2; n++) {
        const struct uf_case c = make_case((enum uf_rule)(n % UF_RULE_COUNT), n / UF_RULE_COUNT == 0 ? UF_SPLIT : UF_FULL_BF16,
                                           STRATA_BF16, cuts[cut_count - 1], n);

        uf_place(a, &c, n);
        uf_fill(a, &c, n);
        for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
            uint64_t sum = 0;

            uf_take_source(a, 0);
            uf_take_source(a, 1);
            for (size_t i = 0; i + 1 < cut_count; i++)
                sum += uf_run_part(k, a, 0, &c, cuts[i], cuts[i + 1] - cuts[i]);
            assert_int_equal(uf_run(k, a, 1, &c), sum);
            uf_assert_same(a, k->name, &c);
        }
    }
}

TEST(split_equals_full_master)
{
    for (int rule = 0; rule < UF_RULE_COUNT; rule++) {
        const struct uf_case split = make_case((enum uf_rule)rule, UF_SPLIT, STRATA_BF16, 10007, 3);

        uf_compare_split_and_full(*state, &split, 42);
    }
}

/* c is 0 by a moment and a gradient of 0 of either sign, and by ones that cancel. */
TEST(lion_with_c_zero_leaves_p_times_decay)
{
    static const float moments[] = {0.0f, -0.0f, 0.0f, -0.0f, 1.0f, -2.5f}, grads[] = {0.0f, 0.0f, -0.0f, -0.0f, -1.0f, 2.5f};
    static const float masters[] = {0.0f, -0.0f, 1.0f, -3.1415927f, 0x1p-149f, -0x1.8p-127f, 1e30f};
    const struct uf_recipe r = {UF_LION, 0.25, 0.5, 0.75, 0.0, 0.0, 0.1, 0.0, 1.0};
    const struct st_update_coef coef = uf_coef(&r, 1);
    const struct st_kernels *k;

    for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
        float p[42], m[42], g[42];
        const struct st_moments moments_f32 = {ST_MOMENTS_F32, m, NULL, 0};

        for (size_t i = 0; i < 42; i++) {
            p[i] = masters[i / 6];
            m[i] = moments[i % 6];
            g[i] = grads[i % 6];
        }
        k->update_master(p, NULL, STRATA_DTYPE_INVALID, &moments_f32, g, STRATA_F32, 42, &coef);
        for (size_t i = 0; i < 42; i++) {
            assert_int_equal(st_f32_bits(p[i]), st_f32_bits(masters[i / 6] * coef.decay));
            assert_true(m[i] == 0.5f * moments[i % 6]); /* 0.75 m + 0.25 g with g = -m or 0 */
        }
    }
}

TEST(lion_moves_by_the_step_size_whatever_the_gradient)
{
    static const float grads[] = {1.0f, -1.0f, 0x1p-149f, -0x1p-149f, INFINITY, -INFINITY};
    const struct uf_recipe r = {UF_LION, 0.125, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 1.0};
    const struct st_update_coef coef = uf_coef(&r, 1);
    const struct st_kernels *k;

    for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
        float p[36], m[36] = {0}, g[36];
        const struct st_moments moments = {ST_MOMENTS_F32, m, NULL, 0};

        for (size_t i = 0; i < 36; i++) {
            p[i] = 1.0f;
            g[i] = grads[i % 6];
        }
        k->update_master(p, NULL, STRATA_DTYPE_INVALID, &moments, g, STRATA_F32, 36, &coef);
        for (size_t i = 0; i < 36; i++)
            assert_true(p[i] == (i % 2 == 0 ? 0.875f : 1.125f));
    }
}

/* --- scalar against fp64 --- */

#define TRACK 512u

/* The papers' formulas in double, with exact coefficients. */
static void reference_step(double *p, double *m, const float *g, const struct uf_recipe *r, unsigned step)
{
    for (size_t i = 0; i < TRACK; i++) {
        const double d = (double)g[i] * r->grad_scale + r->l2 * p[i];
        const double c = r->beta1 * m[i] + (1.0 - r->beta1) * d;

        switch (r->rule) {
        case UF_ADAGRAD:
            m[i] += d * d;
            p[i] -= r->lr * d / (sqrt(m[i]) + r->eps);
            break;
        case UF_LION:
            assert_true(fabs(c) > 1e-3); /* far beyond its error: the sign is that of exact arithmetic */
            p[i] -= r->lr * ((c > 0.0 ? 1.0 : -1.0) + r->weight_decay * p[i]);
            m[i] = r->beta2 * m[i] + (1.0 - r->beta2) * d;
            break;
        default:
            m[i] = step == 1 ? d : r->beta1 * m[i] + (1.0 - r->dampening) * d;
            p[i] -= r->lr * (r->rule == UF_NESTEROV ? d + r->beta1 * m[i] : m[i]);
            break;
        }
    }
}

/* 1000 steps from |p| < 1 with 1 <= |g| < 2: even elements pushed one way throughout, odd ones to and fro.
 *
 * With u = 2^-24, all roundings the same way and L2 decay moving |g| by less than 0.2, so 0.8 < |d| < 2.2, d errs by at most
 * 7u.  Of an update of size lr times something, what else errs than p itself, in units of lr u per step:
 *   Adagrad  the sum is off by at most (t + 18)u of itself, its root by half as much, the rest by 12u; |d| / root is at most
 *            2.75 / sqrt(t); the mean over t <= 1000 steps stays below 110.
 *   Lion     the step size alone: 1.
 *   SGD      m is below 22; each step errs by at most 53u and a tenth is forgotten: 530; coefficients and nesterov: 700.
 * p is rounded once per step and its decay factor once.  After t steps: t u (2 |p|max + drift lr), |p|max = 2.  In ulps of
 * 1 <= p < 2, 2u each: at most 2.6, 5.1 and 2550 after steps 1, 2 and 1000.  L2 decay pulls an error of p back.
 * Lion's moment, which p does not show, is below 2 and errs by at most 4.1u per step, a hundredth forgotten: 410u, and by
 * what L2 decay hands on of p's error. */
struct track {
    struct uf_recipe recipe;
    double drift;
};

static const struct track tracks[] = {
    {{UF_ADAGRAD, 0.01, 0.0, 0.0, 0.0, 1e-8, 0.0, 0.0, 1.0}, 110.0},
    {{UF_ADAGRAD, 0.01, 0.0, 0.0, 0.0, 0.5, 0.0, 0.1, 0.25}, 110.0},
    {{UF_LION, 7e-4, 0.9, 0.99, 0.0, 0.0, 0.0, 0.02, 1.0}, 1.0},
    {{UF_LION, 7e-4, 0.9, 0.99, 0.0, 0.0, 0.0, 0.0, 1.0}, 1.0},
    {{UF_LION, 7e-4, 0.9, 0.99, 0.0, 0.0, 0.1, 0.0, 0.25}, 1.0},
    {{UF_SGD, 5e-5, 0.9, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0}, 700.0},
    {{UF_SGD, 5e-4, 0.9, 0.0, 0.9, 0.0, 0.0, 0.1, 0.25}, 700.0},
    {{UF_NESTEROV, 5e-5, 0.9, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0}, 700.0},
    {{UF_NESTEROV, 5e-5, 0.9, 0.0, 0.0, 0.0, 0.0, 0.1, 0.25}, 700.0},
};

static void make_gradient(float g[TRACK], unsigned step, double grad_scale)
{
    for (size_t i = 0; i < TRACK; i++) {
        const float size = 1.5f + 0.5f * kf_uniform(2000 + step, i);

        g[i] = (i % 2 == 0 || step % 2 == 0 ? size : -size) / (float)grad_scale;
    }
}

static void check_accuracy(const struct st_kernels *k, const struct track *track)
{
    static float p[TRACK], m[TRACK], g[TRACK];
    static double p64[TRACK], m64[TRACK];
    const struct uf_recipe *const r = &track->recipe;
    const struct st_moments moments = {ST_MOMENTS_F32, m, NULL, 0};
    double moved_max = 0.0;

    for (size_t i = 0; i < TRACK; i++) {
        p[i] = kf_uniform(1, i);
        p64[i] = (double)p[i];
        m[i] = 0.0f;
        m64[i] = 0.0;
    }
    for (unsigned step = 1; step <= 1000; step++) {
        const struct st_update_coef coef = uf_coef(r, step);
        const double bound = step * 0x1p-24 * (2.0 * 2.0 + track->drift * r->lr);

        make_gradient(g, step, r->grad_scale);
        k->update_master(p, NULL, STRATA_DTYPE_INVALID, &moments, g, STRATA_F32, TRACK, &coef);
        reference_step(p64, m64, g, r, step);
        for (size_t i = 0; i < TRACK; i++) {
            assert_true(fabs(p64[i]) < 2.0);
            assert_true(r->rule != UF_LION || fabs((double)m[i] - m64[i]) <= 410.0 * 0x1p-24 + r->l2 * bound);
            if (!(fabs((double)p[i] - p64[i]) <= bound))
                fail_msg("%s, %s: step %u, element %zu: %a, not %a; bound %a", k->name, uf_rule_names[r->rule], step, i,
                         (double)p[i], p64[i], bound);
            moved_max = fmax(moved_max, fabs(p64[i] - (double)kf_uniform(1, i)));
        }
    }
    assert_true(moved_max > 0.5); /* so the bound is far below what a wrong formula would change */
}

TEST(thousand_steps_follow_fp64)
{
    const struct st_kernels *k;

    for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
        for (size_t i = 0; i < sizeof(tracks) / sizeof(tracks[0]); i++)
            check_accuracy(k, &tracks[i]);
    }
}

/* With --short: what flags and libm have a part in. */
TEST_MAIN(argc, argv)
{
    const struct CMUnitTest few[] = {
        cmocka_unit_test(special_values_agree_and_nan_has_one_pattern),
        cmocka_unit_test(scalar_bits_do_not_depend_on_flags),
    };

    if (argc > 1 && strcmp(argv[1], "--short") == 0)
        return cmocka_run_group_tests_name("update rules, in short", few, uf_create, uf_destroy);
    return test_run(uf_create, uf_destroy);
}

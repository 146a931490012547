/* Adam and AdamW: special values in every combination, split master against full master over steps, counts, scalar against fp64.
 * test_update_rules.c holds the tables against scalar for every rule. */
#include "kernels/isa/scalar.h"
#include "tests/common/test.h"
#include "tests/kernels/update_scalar_fma.h"
#include <string.h>

#define PRIME 100003u

static const struct uf_recipe adamw = {UF_ADAM, 1e-3, 0.9, 0.999, 0.0, 1e-8, 0.1, 0.0, 1.0};
static const struct uf_recipe adam_l2 = {UF_ADAM, 1e-3, 0.9, 0.999, 0.0, 1e-8, 0.0, 0.1, 0.25};

static struct uf_case make_case(const struct uf_recipe *r, unsigned step, enum uf_layout layout, strata_dtype grad_dtype,
                                size_t elems)
{
    return (struct uf_case){UF_ADAM, layout, ST_MOMENTS_F32, grad_dtype, elems, 0, uf_coef(r, step)};
}

/* Every combination of the first `count` special values in master, moments and gradient. */
static void place_specials(struct uf_arrays *a, const struct uf_case *c, size_t count)
{
    uf_place(a, c, 0);
    uint32_t *const master = (void *)a->source[UF_MASTER].data, *const grad = (void *)a->source[UF_GRAD].data;
    uint32_t *const moment1 = (void *)a->source[UF_MOMENT1].data, *const moment2 = (void *)a->source[UF_MOMENT2].data;
    uint16_t *const weight = (void *)a->source[UF_WEIGHT].data;
    int16_t *const low_half = (void *)a->source[UF_LOW_HALF].data;

    memset(a->source[UF_COPY].data, 0, 2 * c->elems);
    for (size_t i = 0; i < c->elems; i++) {
        grad[i] = kf_special[i % count];
        moment2[i] = kf_special[i / count % count];
        moment1[i] = kf_special[i / count / count % count];
        master[i] = kf_special[i / count / count / count];
        weight[i] = st_split_weight(master[i]);
        low_half[i] = st_split_low_half(master[i]);
    }
}

static void compare_specials(struct uf_arrays *a, const struct uf_recipe *r, unsigned step, enum uf_layout layout, size_t count)
{
    const struct uf_case c = make_case(r, step, layout, STRATA_F32, count * count * count * count);

    place_specials(a, &c, count);
    uf_compare(a, &c);
    uf_assert_one_nan(uf_data(a, UF_MOMENT1, 1), c.elems);
    uf_assert_one_nan(uf_data(a, UF_MOMENT2, 1), c.elems);
    if (layout == UF_SPLIT)
        kf_scalar()->master_join(uf_data(a, UF_MASTER, 1), uf_data(a, UF_WEIGHT, 1), uf_data(a, UF_LOW_HALF, 1), c.elems);
    uf_assert_one_nan(uf_data(a, UF_MASTER, 1), c.elems);
}

TEST(special_values_agree_and_nan_has_one_pattern)
{
    static const struct uf_recipe odd = {UF_ADAM, 1.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0x1p-100}; /* eps 0: divisions by zero */

    for (int layout = 0; layout < UF_LAYOUT_COUNT; layout++) {
        for (size_t i = 0; i < 2; i++) {
            const size_t count = i == 0 ? KF_SPECIAL_COUNT : KF_SPECIAL_SMALL_COUNT;

            compare_specials(*state, &adamw, 1, (enum uf_layout)layout, count);
            compare_specials(*state, &adam_l2, 7, (enum uf_layout)layout, count);
            compare_specials(*state, &odd, 1, (enum uf_layout)layout, count);
        }
    }
}

TEST(scalar_bits_do_not_depend_on_flags)
{
    struct uf_arrays *const a = *state;

    for (int layout = 0; layout < UF_LAYOUT_COUNT; layout++) {
        const struct uf_case c = make_case(&adam_l2, 5, (enum uf_layout)layout, STRATA_F32, UF_ELEMS_MAX);

        place_specials(a, &c, KF_SPECIAL_COUNT);
        uf_compare_with_fma(a, &c);
    }
}

/* Split and full master from the same values, step after step: same masters, moments, counts; the copy is the weight. */
TEST(split_equals_full_master)
{
    struct uf_arrays *const a = *state;
    const struct st_kernels *k;

    for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
        for (unsigned step = 1; step <= 20; step++) {
            const struct uf_recipe *const r = step % 5 == 0 ? &adam_l2 : &adamw;
            const struct uf_case split = make_case(r, step, UF_SPLIT, STRATA_BF16, PRIME);
            const struct uf_case full = make_case(r, step, UF_FULL_BF16, STRATA_BF16, PRIME);

            if (step == 1) {
                uf_place(a, &split, 0);
                uf_fill(a, &split, 42);
                uf_take_source(a, 0);
                uf_take_source(a, 1);
                k->master_join(uf_data(a, UF_MASTER, 1), uf_data(a, UF_WEIGHT, 1), uf_data(a, UF_LOW_HALF, 1), PRIME);
            }
            assert_int_equal(uf_run(k, a, 0, &split), uf_run(k, a, 1, &full));
            k->master_join(uf_data(a, UF_MASTER, 0), uf_data(a, UF_WEIGHT, 0), uf_data(a, UF_LOW_HALF, 0), PRIME);
            memcpy(uf_data(a, UF_COPY, 0), uf_data(a, UF_WEIGHT, 0), a->plane[UF_COPY][0].data_bytes);
            for (size_t p = UF_MASTER; p < UF_PLANE_COUNT; p++)
                kf_assert_same(&a->plane[p][0], &a->plane[p][1], "split against full");
        }
    }
}

/* A step that changes nothing shows the count alone: finite masters at and above the last bf16 tie, no others. */
TEST(overflows_are_counted)
{
    static const uint32_t masters[] = {0x7f7f8000u, 0xff7fffffu, 0x7f7f7fffu, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0u};
    static const uint32_t large[] = {0x477ff000u, 0xc7800000u, 0x477fefffu, 0x7f800000u, 0x7fc00000u, 0x3f800000u, 0u};
    const struct uf_recipe still = {UF_ADAM, 0.0, 0.9, 0.999, 0.0, 1e-8, 0.0, 0.0, 1.0};
    const struct st_update_coef coef = uf_coef(&still, 1);
    const struct st_kernels *k;

    for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
        float p[28], m[28] = {0}, v[28] = {0}, g[28] = {0};
        uint16_t weight[28];
        int16_t low_half[28];
        const struct st_moments moments = {ST_MOMENTS_F32, m, v, 0};

        for (size_t i = 0; i < 28; i++)
            p[i] = st_f32_from_bits(masters[i % 7]);
        k->master_split(weight, low_half, p, 28);
        assert_int_equal(k->update_split(weight, low_half, &moments, g, STRATA_F32, 28, &coef), 8);
        assert_int_equal(k->update_master(p, weight, STRATA_BF16, &moments, g, STRATA_F32, 28, &coef), 8);
        assert_int_equal(k->update_master(p, NULL, STRATA_DTYPE_INVALID, &moments, g, STRATA_F32, 28, &coef), 0);
        for (size_t i = 0; i < 28; i++)
            p[i] = st_f32_from_bits(large[i % 7]);
        assert_int_equal(k->update_master(p, weight, STRATA_F16, &moments, g, STRATA_F32, 28, &coef), 8);
    }
}

TEST(without_l2_the_master_stays_out_of_the_moments)
{
    const struct st_update_coef coef = uf_coef(&adamw, 1);
    const struct st_kernels *k;

    for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
        float p[9], m[9] = {0}, v[9] = {0}, g[9];
        const struct st_moments moments = {ST_MOMENTS_F32, m, v, 0};

        for (size_t i = 0; i < 9; i++) {
            p[i] = i % 2 == 0 ? INFINITY : NAN;
            g[i] = 1.0f;
        }
        k->update_master(p, NULL, STRATA_DTYPE_INVALID, &moments, g, STRATA_F32, 9, &coef);
        for (size_t i = 0; i < 9; i++) {
            assert_true(m[i] == coef.one_minus_beta1 && v[i] == coef.one_minus_beta2);
            assert_true(i % 2 == 0 ? isinf(p[i]) != 0 : isnan(p[i]) != 0);
        }
    }
}

#define TRACK 512u

/* The papers' formulas in double, with exact coefficients. */
static void reference_step(double *p, double *m, double *v, const float *g, const struct uf_recipe *r, unsigned step)
{
    for (size_t i = 0; i < TRACK; i++) {
        const double gi = (double)g[i] * r->grad_scale + r->l2 * p[i];

        m[i] = r->beta1 * m[i] + (1.0 - r->beta1) * gi;
        v[i] = r->beta2 * v[i] + (1.0 - r->beta2) * gi * gi;
        const double m_hat = m[i] / (1.0 - pow(r->beta1, step)), v_hat = v[i] / (1.0 - pow(r->beta2, step));

        p[i] -= r->lr * (m_hat / (sqrt(v_hat) + r->eps) + r->weight_decay * p[i]);
    }
}

/* 1000 steps from |p| < 1 with 1 <= |g| < 2, half of the elements pushed one way throughout.
 *
 * Bound, with u = 2^-24 and all roundings the same way: v carries a relative error of at most 2u / (1 - beta2) = 2000u, so
 * the denominator 1000u; m of at most 30u |g|max absolutely; an update is at most 2 lr and divides by at least |g|max / 2,
 * so it errs by lr 2100u; p itself is rounded once per step and its decay factor once.  After t steps:
 * t u (2 |p|max + 2100 lr).  L2 moves |g| by less than 0.2: the same bound. */
static void check_accuracy(const struct st_kernels *k, const struct uf_recipe *r)
{
    static float p[TRACK], m[TRACK], v[TRACK], g[TRACK];
    static double p64[TRACK], m64[TRACK], v64[TRACK];
    const struct st_moments moments = {ST_MOMENTS_F32, m, v, 0};
    double moved_max = 0.0;

    for (size_t i = 0; i < TRACK; i++) {
        p[i] = kf_uniform(1, i);
        p64[i] = (double)p[i];
        m[i] = v[i] = 0.0f;
        m64[i] = v64[i] = 0.0;
    }
    for (unsigned step = 1; step <= 1000; step++) {
        const struct st_update_coef coef = uf_coef(r, step);
        const double bound = step * 0x1p-24 * (2.0 * 2.0 + 2100.0 * r->lr);

        for (size_t i = 0; i < TRACK; i++) {
            const float x = kf_uniform(2 + step, i);

            g[i] = (i % 2 == 0 || x < 0.0f ? -1.5f : 1.5f) + 0.5f * kf_uniform(2000 + step, i);
            g[i] /= (float)r->grad_scale;
        }
        k->update_master(p, NULL, STRATA_DTYPE_INVALID, &moments, g, STRATA_F32, TRACK, &coef);
        reference_step(p64, m64, v64, g, r, step);
        for (size_t i = 0; i < TRACK; i++) {
            assert_true(fabs(p64[i]) < 2.0);
            if (!(fabs((double)p[i] - p64[i]) <= bound))
                fail_msg("%s: step %u, element %zu: %a, not %a; bound %a", k->name, step, i, (double)p[i], p64[i], bound);
            moved_max = fmax(moved_max, fabs(p64[i] - (double)kf_uniform(1, i)));
        }
    }
    assert_true(moved_max > 0.5); /* so the bound is far below what a wrong formula would change */
}

TEST(thousand_steps_follow_fp64)
{
    const struct st_kernels *k;

    for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
        check_accuracy(k, &adamw);
        check_accuracy(k, &adam_l2);
    }
}

/* With --short: what flags and libm have a part in. */
TEST_MAIN(argc, argv)
{
    const struct CMUnitTest few[] = {
        cmocka_unit_test(scalar_bits_do_not_depend_on_flags),
        cmocka_unit_test(thousand_steps_follow_fp64),
    };

    if (argc > 1 && strcmp(argv[1], "--short") == 0)
        return cmocka_run_group_tests_name("adam, in short", few, uf_create, uf_destroy);
    return test_run(uf_create, uf_destroy);
}

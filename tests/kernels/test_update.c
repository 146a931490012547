/* Adam and AdamW: every table against scalar by memcmp, split master against full master, scalar against fp64. */
#include "core/cpu.h"
#include "kernels/scalar.h"
#include "tests/kernels/kernel_fixture.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define SHORT_MAX 130u
#define PRIME     100003u
#define LARGE_MAX 1336336u /* 34^4: every combination of special values; above PRIME */

enum plane { WEIGHT, RESIDUAL, MASTER, COPY, MOMENT1, MOMENT2, GRAD, PLANE_COUNT };
enum mode { SPLIT, FULL, FULL_BF16, FULL_F16, MODE_COUNT };

static const char *const mode_names[MODE_COUNT] = {"split", "full", "full with bf16 copy", "full with fp16 copy"};
static const strata_dtype grad_dtypes[] = {STRATA_BF16, STRATA_F32, STRATA_F16};

struct fixture {
    struct kf_array plane[PLANE_COUNT][2]; /* [0] of the variant, [1] of the scalar table */
};

static size_t plane_elem_bytes(enum plane p, strata_dtype grad_dtype)
{
    switch (p) {
    case WEIGHT:
    case RESIDUAL:
    case COPY:
        return 2;
    case GRAD:
        return strata_dtype_bytes(grad_dtype);
    default:
        return 4;
    }
}

static int create(void **state)
{
    struct fixture *const f = calloc(1, sizeof(*f));

    assert_non_null(f);
    for (size_t p = 0; p < PLANE_COUNT; p++) {
        for (size_t side = 0; side < 2; side++)
            kf_array_create(&f->plane[p][side], LARGE_MAX * sizeof(float));
    }
    *state = f;
    return 0;
}

static int destroy(void **state)
{
    struct fixture *const f = *state;

    for (size_t p = 0; p < PLANE_COUNT; p++) {
        for (size_t side = 0; side < 2; side++)
            kf_array_destroy(&f->plane[p][side]);
    }
    free(f);
    return 0;
}

static void *data_of(struct fixture *f, enum plane p, size_t side)
{
    return f->plane[p][side].data;
}

/* Every plane at its own alignment. */
static void place(struct fixture *f, strata_dtype grad_dtype, size_t elems, size_t shift)
{
    for (size_t p = 0; p < PLANE_COUNT; p++)
        kf_array_place(&f->plane[p][1], plane_elem_bytes((enum plane)p, grad_dtype), elems, shift * (2 * p + 1) + p * elems);
}

static void place_at_end(struct fixture *f, strata_dtype grad_dtype, size_t elems)
{
    for (size_t p = 0; p < PLANE_COUNT; p++)
        kf_array_place_at_end(&f->plane[p][1], plane_elem_bytes((enum plane)p, grad_dtype), elems);
}

/* Contents of the scalar side; moment2 as it is in life, not negative, except where kf_fill() gives NaNs anyway. */
static void fill(struct fixture *f, strata_dtype grad_dtype, size_t elems, uint64_t seed)
{
    float *const moment2 = data_of(f, MOMENT2, 1);

    kf_fill(data_of(f, WEIGHT, 1), STRATA_BF16, elems, seed, 1.0f);
    kf_fill(data_of(f, RESIDUAL, 1), STRATA_F16, elems, seed + 1, 1.0f);
    kf_fill(data_of(f, MASTER, 1), STRATA_F32, elems, seed + 2, 1.0f);
    kf_fill(data_of(f, COPY, 1), STRATA_F16, elems, seed + 3, 1.0f);
    kf_fill(data_of(f, MOMENT1, 1), STRATA_F32, elems, seed + 4, 1e-3f);
    kf_fill(data_of(f, MOMENT2, 1), STRATA_F32, elems, seed + 5, 1e-6f);
    kf_fill(data_of(f, GRAD, 1), grad_dtype, elems, seed + 6, 1e-2f);
    for (size_t i = 0; i < elems; i++) {
        if (i / 16 % 3 != 1)
            moment2[i] = fabsf(moment2[i]);
    }
}

static void copy_to_variant(struct fixture *f)
{
    for (size_t p = 0; p < PLANE_COUNT; p++)
        kf_array_copy(&f->plane[p][0], &f->plane[p][1]);
}

static uint64_t run(const struct st_kernels *k, struct fixture *f, size_t side, enum mode mode, strata_dtype grad_dtype,
                    size_t elems, const struct st_update_coef *coef)
{
    float *const m = data_of(f, MOMENT1, side), *const v = data_of(f, MOMENT2, side);
    const void *const g = data_of(f, GRAD, side);
    uint16_t *const copy = mode == FULL ? NULL : data_of(f, COPY, side);

    if (mode == SPLIT)
        return k->update_split(data_of(f, WEIGHT, side), data_of(f, RESIDUAL, side), m, v, g, grad_dtype, elems, coef);
    return k->update_master(data_of(f, MASTER, side), copy, mode == FULL_F16 ? STRATA_F16 : STRATA_BF16, m, v, g, grad_dtype, elems,
                          coef);
}

/* Planes are placed and the scalar side is filled: run both, compare everything. */
static void compare(struct fixture *f, const struct st_kernels *k, enum mode mode, strata_dtype grad_dtype, size_t elems,
                    const struct st_update_coef *coef)
{
    copy_to_variant(f);
    const uint64_t want = run(kf_scalar(), f, 1, mode, grad_dtype, elems, coef);

    assert_int_equal(run(k, f, 0, mode, grad_dtype, elems, coef), want);
    for (size_t p = 0; p < PLANE_COUNT; p++)
        kf_assert_same(&f->plane[p][0], &f->plane[p][1], mode_names[mode]);
}

/* Coefficients as the caller makes them: all in double, rounded once. */
struct recipe {
    double lr, beta1, beta2, eps, weight_decay, grad_scale;
    bool decoupled;
};

static const struct recipe adamw = {1e-3, 0.9, 0.999, 1e-8, 0.1, 1.0, true};
static const struct recipe adam_l2 = {1e-3, 0.9, 0.999, 1e-8, 0.1, 0.25, false};

static struct st_update_coef make_coef(const struct recipe *r, unsigned step)
{
    return (struct st_update_coef){
        .grad_scale = (float)r->grad_scale,
        .beta1 = (float)r->beta1,
        .one_minus_beta1 = (float)(1.0 - r->beta1),
        .beta2 = (float)r->beta2,
        .one_minus_beta2 = (float)(1.0 - r->beta2),
        .eps = (float)r->eps,
        .step_size = (float)(r->lr / (1.0 - pow(r->beta1, step))),
        .vhat_scale = (float)(1.0 / sqrt(1.0 - pow(r->beta2, step))),
        .decay = r->decoupled ? (float)(1.0 - r->lr * r->weight_decay) : 1.0f,
        .l2 = r->decoupled ? 0.0f : (float)r->weight_decay,
    };
}

static void tables_agree_at_every_length_and_alignment(void **state)
{
    struct fixture *const f = *state;
    const struct st_kernels *k;

    for (size_t t = 0; (k = kf_variant(t)) != NULL; t++) {
        for (size_t elems = 0; elems <= SHORT_MAX; elems++) {
            for (size_t shift = 0; shift < 32; shift++) {
                const strata_dtype dtype = grad_dtypes[(elems + shift) % 3];
                const struct st_update_coef coef = make_coef((elems ^ shift) % 2 == 0 ? &adamw : &adam_l2, 1 + (unsigned)shift);

                for (int mode = 0; mode < MODE_COUNT; mode++) {
                    place(f, dtype, elems, shift);
                    fill(f, dtype, elems, elems * 32 + shift);
                    compare(f, k, (enum mode)mode, dtype, elems, &coef);
                }
            }
        }
    }
}

static void nothing_past_the_end_is_touched(void **state)
{
    const struct st_update_coef coef = make_coef(&adamw, 3);
    struct fixture *const f = *state;
    const struct st_kernels *k;

    for (size_t t = 0; (k = kf_variant(t)) != NULL; t++) {
        for (size_t elems = 0; elems <= SHORT_MAX; elems++) {
            for (size_t i = 0; i < (size_t)MODE_COUNT * 3; i++) {
                place_at_end(f, grad_dtypes[i % 3], elems);
                fill(f, grad_dtypes[i % 3], elems, elems);
                compare(f, k, (enum mode)(i / 3), grad_dtypes[i % 3], elems, &coef);
            }
        }
    }
}

static void tables_agree_over_a_large_prime(void **state)
{
    struct fixture *const f = *state;
    const struct st_kernels *k;

    for (size_t t = 0; (k = kf_variant(t)) != NULL; t++) {
        for (size_t i = 0; i < (size_t)MODE_COUNT * 3; i++) {
            const struct st_update_coef coef = make_coef(i % 2 == 0 ? &adamw : &adam_l2, 1000);

            place(f, grad_dtypes[i % 3], PRIME, i);
            fill(f, grad_dtypes[i % 3], PRIME, i);
            compare(f, k, (enum mode)(i / 3), grad_dtypes[i % 3], PRIME, &coef);
        }
    }
}

/* Every combination of the first `count` special values in master, moments and gradient; returns the elements. */
static size_t place_specials(struct fixture *f, size_t count)
{
    const size_t elems = count * count * count * count;

    place(f, STRATA_F32, elems, 0);
    memset(data_of(f, COPY, 1), 0, 2 * elems);
    uint32_t *const master = data_of(f, MASTER, 1), *const grad = data_of(f, GRAD, 1);
    uint32_t *const moment1 = data_of(f, MOMENT1, 1), *const moment2 = data_of(f, MOMENT2, 1);
    uint16_t *const weight = data_of(f, WEIGHT, 1);
    int16_t *const residual = data_of(f, RESIDUAL, 1);

    for (size_t i = 0; i < elems; i++) {
        grad[i] = kf_special[i % count];
        moment2[i] = kf_special[i / count % count];
        moment1[i] = kf_special[i / count / count % count];
        master[i] = kf_special[i / count / count / count];
        weight[i] = st_split_weight(master[i]);
        residual[i] = st_split_residual(master[i]);
    }
    return elems;
}

static void assert_one_nan(const float *values, size_t elems)
{
    for (size_t i = 0; i < elems; i++) {
        const uint32_t bits = st_f32_bits(values[i]);

        if (st_f32_bits_are_nan(bits) && bits != ST_F32_NAN)
            fail_msg("element %zu is the NaN %08x", i, bits);
    }
}

static void compare_specials(struct fixture *f, const struct st_kernels *k, enum mode mode, size_t count,
                             const struct st_update_coef *coef)
{
    const size_t elems = place_specials(f, count);

    compare(f, k, mode, STRATA_F32, elems, coef);
    assert_one_nan(data_of(f, MOMENT1, 1), elems);
    assert_one_nan(data_of(f, MOMENT2, 1), elems);
    if (mode == SPLIT)
        kf_scalar()->master_join(data_of(f, MASTER, 1), data_of(f, WEIGHT, 1), data_of(f, RESIDUAL, 1), elems);
    assert_one_nan(data_of(f, MASTER, 1), elems);
}

static void special_values_agree_and_nan_has_one_pattern(void **state)
{
    static const struct recipe odd = {1.0, 0.0, 0.5, 0.0, 0.0, 0x1p-100, true}; /* eps 0: divisions by zero */
    const struct st_update_coef coefs[] = {make_coef(&adamw, 1), make_coef(&adam_l2, 7), make_coef(&odd, 1)};
    struct fixture *const f = *state;
    const struct st_kernels *k;

    for (size_t t = 0; (k = kf_variant(t)) != NULL; t++) {
        for (size_t i = 0; i < sizeof(coefs) / sizeof(coefs[0]); i++) {
            for (int mode = 0; mode < MODE_COUNT; mode++) {
                compare_specials(f, k, (enum mode)mode, KF_SPECIAL_COUNT, &coefs[i]);
                compare_specials(f, k, (enum mode)mode, KF_SPECIAL_SMALL_COUNT, &coefs[i]);
            }
        }
    }
}

/* The scalar file compiled with -mfma, so that fmaf is an instruction. */
extern st_update_split_fn st_update_split_scalar_fma;
extern st_update_master_fn st_update_master_scalar_fma;

static void scalar_bits_do_not_depend_on_flags(void **state)
{
    const struct st_kernels fma = {"scalar with -mfma", 0, .update_split = st_update_split_scalar_fma,
                                   .update_master = st_update_master_scalar_fma};
    const struct st_update_coef coef = make_coef(&adam_l2, 5);
    struct fixture *const f = *state;

    if ((st_cpu_features() & ST_CPU_AVX2_FMA) == 0)
        skip();
    for (int mode = 0; mode < MODE_COUNT; mode++) {
        compare_specials(f, &fma, (enum mode)mode, KF_SPECIAL_COUNT, &coef);
        place(f, STRATA_BF16, PRIME, 0);
        fill(f, STRATA_BF16, PRIME, 1);
        compare(f, &fma, (enum mode)mode, STRATA_BF16, PRIME, &coef);
    }
}

/* Split and full master from the same values, step after step: same masters, moments, counts; the copy is the weight. */
static void split_equals_full_master(void **state)
{
    struct fixture *const f = *state;
    const struct st_kernels *k;

    for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
        for (unsigned step = 1; step <= 20; step++) {
            const struct st_update_coef coef = make_coef(step % 5 == 0 ? &adam_l2 : &adamw, step);

            if (step == 1) {
                place(f, STRATA_BF16, PRIME, 0);
                fill(f, STRATA_BF16, PRIME, 42);
                k->master_join(data_of(f, MASTER, 1), data_of(f, WEIGHT, 1), data_of(f, RESIDUAL, 1), PRIME);
                copy_to_variant(f);
            }
            const uint64_t count = run(k, f, 0, SPLIT, STRATA_BF16, PRIME, &coef);

            assert_int_equal(run(k, f, 1, FULL_BF16, STRATA_BF16, PRIME, &coef), count);
            k->master_join(data_of(f, MASTER, 0), data_of(f, WEIGHT, 0), data_of(f, RESIDUAL, 0), PRIME);
            memcpy(data_of(f, COPY, 0), data_of(f, WEIGHT, 0), f->plane[COPY][0].data_bytes);
            for (size_t p = MASTER; p < PLANE_COUNT; p++)
                kf_assert_same(&f->plane[p][0], &f->plane[p][1], "split against full");
        }
    }
}

/* The same array in one call and in pieces. */
static void cuts_do_not_show(void **state)
{
    static const size_t cuts[] = {0, 1, 9, 40, 41, 4137, 50001, PRIME};
    const struct st_update_coef coef = make_coef(&adamw, 2);
    struct fixture *const f = *state;
    const struct st_kernels *k;

    for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
        uint64_t sum = 0;

        place(f, STRATA_BF16, PRIME, 0);
        fill(f, STRATA_BF16, PRIME, 7);
        copy_to_variant(f);
        const uint64_t whole = run(k, f, 1, SPLIT, STRATA_BF16, PRIME, &coef);
        uint16_t *const weight = data_of(f, WEIGHT, 0);
        int16_t *const residual = data_of(f, RESIDUAL, 0);
        float *const moment1 = data_of(f, MOMENT1, 0), *const moment2 = data_of(f, MOMENT2, 0);
        const uint16_t *const grad = data_of(f, GRAD, 0);

        for (size_t c = 0; c + 1 < sizeof(cuts) / sizeof(cuts[0]); c++) {
            const size_t at = cuts[c], elems = cuts[c + 1] - at;

            sum += k->update_split(weight + at, residual + at, moment1 + at, moment2 + at, grad + at, STRATA_BF16, elems, &coef);
        }
        assert_int_equal(sum, whole);
        for (size_t p = 0; p < PLANE_COUNT; p++)
            kf_assert_same(&f->plane[p][0], &f->plane[p][1], "pieces against the whole");
    }
}

/* A step that changes nothing shows the count alone: finite masters at and above the last bf16 tie, no others. */
static void overflows_are_counted(void **state)
{
    static const uint32_t masters[] = {0x7f7f8000u, 0xff7fffffu, 0x7f7f7fffu, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0u};
    static const uint32_t large[] = {0x477ff000u, 0xc7800000u, 0x477fefffu, 0x7f800000u, 0x7fc00000u, 0x3f800000u, 0u};
    const struct recipe still = {0.0, 0.9, 0.999, 1e-8, 0.0, 1.0, true};
    const struct st_update_coef coef = make_coef(&still, 1);
    const struct st_kernels *k;

    (void)state;
    for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
        float p[28], m[28] = {0}, v[28] = {0}, g[28] = {0};
        uint16_t weight[28];
        int16_t residual[28];

        for (size_t i = 0; i < 28; i++)
            p[i] = st_f32_from_bits(masters[i % 7]);
        k->master_split(weight, residual, p, 28);
        assert_int_equal(k->update_split(weight, residual, m, v, g, STRATA_F32, 28, &coef), 8);
        assert_int_equal(k->update_master(p, weight, STRATA_BF16, m, v, g, STRATA_F32, 28, &coef), 8);
        assert_int_equal(k->update_master(p, NULL, STRATA_DTYPE_INVALID, m, v, g, STRATA_F32, 28, &coef), 0);
        for (size_t i = 0; i < 28; i++)
            p[i] = st_f32_from_bits(large[i % 7]);
        assert_int_equal(k->update_master(p, weight, STRATA_F16, m, v, g, STRATA_F32, 28, &coef), 8);
    }
}

static void without_l2_the_master_stays_out_of_the_moments(void **state)
{
    const struct st_update_coef coef = make_coef(&adamw, 1);
    const struct st_kernels *k;

    (void)state;
    for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
        float p[9], m[9] = {0}, v[9] = {0}, g[9];

        for (size_t i = 0; i < 9; i++) {
            p[i] = i % 2 == 0 ? INFINITY : NAN;
            g[i] = 1.0f;
        }
        k->update_master(p, NULL, STRATA_DTYPE_INVALID, m, v, g, STRATA_F32, 9, &coef);
        for (size_t i = 0; i < 9; i++) {
            assert_true(m[i] == coef.one_minus_beta1 && v[i] == coef.one_minus_beta2);
            assert_true(i % 2 == 0 ? isinf(p[i]) != 0 : isnan(p[i]) != 0);
        }
    }
}

#define TRACK 512u

/* The papers' formulas in double, with exact coefficients. */
static void reference_step(double *p, double *m, double *v, const float *g, const struct recipe *r, unsigned step)
{
    for (size_t i = 0; i < TRACK; i++) {
        const double gi = (double)g[i] * r->grad_scale + (r->decoupled ? 0.0 : r->weight_decay * p[i]);

        m[i] = r->beta1 * m[i] + (1.0 - r->beta1) * gi;
        v[i] = r->beta2 * v[i] + (1.0 - r->beta2) * gi * gi;
        const double m_hat = m[i] / (1.0 - pow(r->beta1, step)), v_hat = v[i] / (1.0 - pow(r->beta2, step));

        p[i] -= r->lr * (m_hat / (sqrt(v_hat) + r->eps) + (r->decoupled ? r->weight_decay * p[i] : 0.0));
    }
}

/* 1000 steps from |p| < 1 with 1 <= |g| < 2, half of the elements pushed one way throughout.
 *
 * Bound, with u = 2^-24 and all roundings the same way: v carries a relative error of at most 2u / (1 - beta2) = 2000u, so
 * the denominator 1000u; m of at most 30u |g|max absolutely; an update is at most 2 lr and divides by at least |g|max / 2,
 * so it errs by lr 2100u; p itself is rounded once per step and its decay factor once.  After t steps:
 * t u (2 |p|max + 2100 lr).  L2 moves |g| by less than 0.2: the same bound. */
static void check_accuracy(const struct st_kernels *k, const struct recipe *r)
{
    static float p[TRACK], m[TRACK], v[TRACK], g[TRACK];
    static double p64[TRACK], m64[TRACK], v64[TRACK];
    double moved_max = 0.0;

    for (size_t i = 0; i < TRACK; i++) {
        p[i] = kf_uniform(1, i);
        p64[i] = (double)p[i];
        m[i] = v[i] = 0.0f;
        m64[i] = v64[i] = 0.0;
    }
    for (unsigned step = 1; step <= 1000; step++) {
        const struct st_update_coef coef = make_coef(r, step);
        const double bound = step * 0x1p-24 * (2.0 * 2.0 + 2100.0 * r->lr);

        for (size_t i = 0; i < TRACK; i++) {
            const float x = kf_uniform(2 + step, i);

            g[i] = (i % 2 == 0 || x < 0.0f ? -1.5f : 1.5f) + 0.5f * kf_uniform(2000 + step, i);
            g[i] /= (float)r->grad_scale;
        }
        k->update_master(p, NULL, STRATA_DTYPE_INVALID, m, v, g, STRATA_F32, TRACK, &coef);
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

static void thousand_steps_follow_fp64(void **state)
{
    const struct st_kernels *k;

    (void)state;
    for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
        check_accuracy(k, &adamw);
        check_accuracy(k, &adam_l2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_agree_at_every_length_and_alignment),
        cmocka_unit_test(nothing_past_the_end_is_touched),
        cmocka_unit_test(tables_agree_over_a_large_prime),
        cmocka_unit_test(special_values_agree_and_nan_has_one_pattern),
        cmocka_unit_test(scalar_bits_do_not_depend_on_flags),
        cmocka_unit_test(split_equals_full_master),
        cmocka_unit_test(cuts_do_not_show),
        cmocka_unit_test(overflows_are_counted),
        cmocka_unit_test(without_l2_the_master_stays_out_of_the_moments),
        cmocka_unit_test(thousand_steps_follow_fp64),
    };

    return cmocka_run_group_tests_name("adam", tests, create, destroy);
}

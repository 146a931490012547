/* Adagrad, Lion and SGD: every table against scalar by memcmp, scalar against fp64.  moment2 is NULL throughout. */
#include "core/cpu.h"
#include "kernels/scalar.h"
#include "tests/kernels/kernel_fixture.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define SHORT_MAX 130u
#define SHIFTS    32u /* elements: every alignment modulo 64 bytes of every dtype */
#define PRIME     1000003u

enum plane { WEIGHT, RESIDUAL, MASTER, COPY, MOMENT, GRAD, PLANE_COUNT };
enum mode { SPLIT, FULL, FULL_BF16, FULL_F16, MODE_COUNT };

static const char *const mode_names[MODE_COUNT] = {"split", "full", "full with bf16 copy", "full with fp16 copy"};
static const strata_dtype grad_dtypes[3] = {STRATA_BF16, STRATA_F32, STRATA_F16};

/* The rules under test; nesterov counts as one. */
enum variant { ADAGRAD, LION, SGD, NESTEROV, VARIANT_COUNT };
static const char *const variant_names[VARIANT_COUNT] = {"adagrad", "lion", "sgd", "sgd with nesterov"};

/* Coefficients as the caller makes them: all in double, rounded once. */
struct recipe {
    enum variant variant;
    double lr, beta1, beta2, dampening, eps, weight_decay, l2, grad_scale;
};

static struct st_update_coef make_coef(const struct recipe *r, unsigned step)
{
    static const enum st_rule rules[VARIANT_COUNT] = {ST_RULE_ADAGRAD, ST_RULE_LION, ST_RULE_SGD, ST_RULE_SGD};
    const bool sgd = rules[r->variant] == ST_RULE_SGD;

    return (struct st_update_coef){
        .rule = rules[r->variant],
        .nesterov = r->variant == NESTEROV,
        .grad_scale = (float)r->grad_scale,
        .beta1 = (float)r->beta1,
        .one_minus_beta1 = !sgd        ? (float)(1.0 - r->beta1)
                           : step == 1 ? 1.0f
                                       : (float)(1.0 - r->dampening),
        .beta2 = (float)r->beta2,
        .one_minus_beta2 = (float)(1.0 - r->beta2),
        .eps = (float)r->eps,
        .step_size = (float)r->lr,
        .decay = (float)(1.0 - r->lr * r->weight_decay),
        .l2 = (float)r->l2,
    };
}

/* Coefficients of the comparisons: bit 0 of `choice` switches L2 decay on, bit 1 the decoupled one. */
static struct st_update_coef any_coef(enum variant variant, size_t choice)
{
    const struct recipe r = {variant,
                             1e-3,
                             0.9,
                             0.99,
                             0.25,
                             1e-8,
                             (choice & 2) != 0 ? 0.1 : 0.0,
                             (choice & 1) != 0 ? 0.1 : 0.0,
                             (choice & 1) != 0 ? 0.3 : 1.0};

    return make_coef(&r, 1 + (unsigned)(choice / 4 % 2));
}

/* --- arrays --- */

struct fixture {
    struct kf_array plane[PLANE_COUNT][2]; /* [0] of the variant, [1] of the scalar table */
    struct kf_array source[PLANE_COUNT];   /* where a case with a prepared content takes it from */
};

static int create(void **state)
{
    struct fixture *const f = calloc(1, sizeof(*f));

    assert_non_null(f);
    for (size_t p = 0; p < PLANE_COUNT; p++) {
        for (size_t side = 0; side < 2; side++)
            kf_array_create(&f->plane[p][side], PRIME * sizeof(float));
        kf_array_create(&f->source[p], PRIME * sizeof(float));
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
        kf_array_destroy(&f->source[p]);
    }
    free(f);
    return 0;
}

static size_t plane_elem_bytes(enum plane p, strata_dtype grad_dtype)
{
    if (p == GRAD)
        return strata_dtype_bytes(grad_dtype);
    return p == MASTER || p == MOMENT ? 4 : 2;
}

static void *data_of(struct fixture *f, enum plane p, size_t side)
{
    return f->plane[p][side].data;
}

/* Every plane of the source at its own alignment, or each before a faulting page. */
static void place(struct fixture *f, strata_dtype grad_dtype, size_t elems, size_t shift, bool at_end)
{
    for (size_t p = 0; p < PLANE_COUNT; p++) {
        const size_t elem_bytes = plane_elem_bytes((enum plane)p, grad_dtype);

        if (at_end)
            kf_array_place_at_end(&f->source[p], elem_bytes, elems);
        else
            kf_array_place(&f->source[p], elem_bytes, elems, shift * (2 * p + 1) + p * elems);
    }
}

/* Sums of squares as in life, not negative, except where kf_fill() gives NaNs anyway. */
static void fill(struct fixture *f, strata_dtype grad_dtype, size_t elems, uint64_t seed, enum variant variant)
{
    float *const moment = (void *)f->source[MOMENT].data;

    kf_fill(f->source[WEIGHT].data, STRATA_BF16, elems, seed, 1.0f);
    kf_fill(f->source[RESIDUAL].data, STRATA_F16, elems, seed + 1, 1.0f);
    kf_fill(f->source[MASTER].data, STRATA_F32, elems, seed + 2, 1.0f);
    kf_fill(f->source[COPY].data, STRATA_F16, elems, seed + 3, 1.0f);
    kf_fill(moment, STRATA_F32, elems, seed + 4, 1e-3f);
    kf_fill(f->source[GRAD].data, grad_dtype, elems, seed + 5, 1e-2f);
    for (size_t i = 0; variant == ADAGRAD && i < elems; i++) {
        if (i / 16 % 3 != 1)
            moment[i] = fabsf(moment[i]);
    }
}

static uint64_t run(const struct st_kernels *k, struct fixture *f, size_t side, enum mode mode, strata_dtype grad_dtype,
                    size_t at, size_t elems, const struct st_update_coef *coef)
{
    uint16_t *const weight = data_of(f, WEIGHT, side), *const copy = data_of(f, COPY, side);
    int16_t *const residual = data_of(f, RESIDUAL, side);
    float *const master = data_of(f, MASTER, side), *const moment = data_of(f, MOMENT, side);
    const void *const grad = f->plane[GRAD][side].data + strata_dtype_bytes(grad_dtype) * at;

    if (mode == SPLIT)
        return k->update_split(weight + at, residual + at, moment + at, NULL, grad, grad_dtype, elems, coef);
    return k->update_master(master + at, mode == FULL ? NULL : copy + at, mode == FULL_F16 ? STRATA_F16 : STRATA_BF16,
                            moment + at, NULL, grad, grad_dtype, elems, coef);
}

static void take_source(struct fixture *f, size_t side)
{
    for (size_t p = 0; p < PLANE_COUNT; p++)
        kf_array_copy(&f->plane[p][side], &f->source[p]);
}

static void assert_same(struct fixture *f, const char *table, enum variant variant, enum mode mode)
{
    char what[96];

    snprintf(what, sizeof(what), "%s, %s, %s", table, variant_names[variant], mode_names[mode]);
    for (size_t p = 0; p < PLANE_COUNT; p++)
        kf_assert_same(&f->plane[p][0], &f->plane[p][1], what);
}

/* The source is placed and filled: the scalar table's result against that of every other. */
static void compare(struct fixture *f, enum variant variant, enum mode mode, strata_dtype grad_dtype, size_t elems,
                    const struct st_update_coef *coef)
{
    const struct st_kernels *k;

    take_source(f, 1);
    const uint64_t count = run(kf_scalar(), f, 1, mode, grad_dtype, 0, elems, coef);

    for (size_t t = 0; (k = kf_variant(t)) != NULL; t++) {
        take_source(f, 0);
        assert_int_equal(run(k, f, 0, mode, grad_dtype, 0, elems, coef), count);
        assert_same(f, k->name, variant, mode);
    }
}

/* --- tables against scalar --- */

static void tables_agree_at_every_length_and_alignment(void **state)
{
    struct fixture *const f = *state;

    for (size_t elems = 0; elems <= SHORT_MAX; elems++) {
        for (size_t shift = 0; shift < SHIFTS; shift++) {
            const size_t choice = kf_bits(elems, shift);
            const strata_dtype dtype = grad_dtypes[choice % 3];

            place(f, dtype, elems, shift, false);
            for (int v = 0; v < VARIANT_COUNT; v++) {
                const struct st_update_coef coef = any_coef((enum variant)v, choice / 3);

                fill(f, dtype, elems, elems * SHIFTS + shift, (enum variant)v);
                compare(f, (enum variant)v, (enum mode)(choice / 64 % MODE_COUNT), dtype, elems, &coef);
            }
        }
    }
}

static void all_combinations_agree_and_nothing_past_the_end_is_touched(void **state)
{
    static const size_t lengths[] = {0, 1, 15, 16, 31, 48, 63, 97, 130};
    struct fixture *const f = *state;

    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]) * 3; i++) {
        const strata_dtype dtype = grad_dtypes[i % 3];

        place(f, dtype, lengths[i / 3], 0, true);
        for (size_t c = 0; c < (size_t)VARIANT_COUNT * MODE_COUNT * 8; c++) {
            const enum variant variant = (enum variant)(c / 8 % VARIANT_COUNT);
            const struct st_update_coef coef = any_coef(variant, c % 8);

            fill(f, dtype, lengths[i / 3], c, variant);
            compare(f, variant, (enum mode)(c / 8 / VARIANT_COUNT), dtype, lengths[i / 3], &coef);
        }
    }
}

static void tables_agree_over_a_large_prime(void **state)
{
    struct fixture *const f = *state;

    for (size_t d = 0; d < 3; d++) {
        place(f, grad_dtypes[d], PRIME, d + 1, false);
        fill(f, grad_dtypes[d], PRIME, d, ADAGRAD);
        for (size_t c = 0; c < (size_t)VARIANT_COUNT * MODE_COUNT; c++) {
            const enum variant variant = (enum variant)(c % VARIANT_COUNT);
            const struct st_update_coef coef = any_coef(variant, c);

            if (c % 3 == d)
                compare(f, variant, (enum mode)(c / VARIANT_COUNT), grad_dtypes[d], PRIME, &coef);
        }
    }
}

/* --- special values --- */

/* Every combination of the first `count` special values in master, moment and gradient; returns the elements. */
static size_t place_specials(struct fixture *f, size_t count)
{
    const size_t elems = count * count * count;

    place(f, STRATA_F32, elems, 0, false);
    uint32_t *const master = (void *)f->source[MASTER].data, *const moment = (void *)f->source[MOMENT].data;
    uint32_t *const grad = (void *)f->source[GRAD].data;
    uint16_t *const weight = (void *)f->source[WEIGHT].data;
    int16_t *const residual = (void *)f->source[RESIDUAL].data;

    memset(f->source[COPY].data, 0, 2 * elems);
    for (size_t i = 0; i < elems; i++) {
        grad[i] = kf_special[i % count];
        moment[i] = kf_special[i / count % count];
        master[i] = kf_special[i / count / count];
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

static void compare_specials(struct fixture *f, enum variant variant, enum mode mode, const struct st_update_coef *coef)
{
    static const size_t counts[] = {KF_SPECIAL_COUNT, KF_SPECIAL_SMALL_COUNT};

    for (size_t i = 0; i < 2; i++) {
        const size_t elems = place_specials(f, counts[i]);

        compare(f, variant, mode, STRATA_F32, elems, coef);
        assert_one_nan(data_of(f, MOMENT, 1), elems);
        if (mode == SPLIT)
            kf_scalar()->master_join(data_of(f, MASTER, 1), data_of(f, WEIGHT, 1), data_of(f, RESIDUAL, 1), elems);
        assert_one_nan(data_of(f, MASTER, 1), elems);
    }
}

static void special_values_agree_and_nan_has_one_pattern(void **state)
{
    struct fixture *const f = *state;

    for (size_t c = 0; c < (size_t)VARIANT_COUNT * MODE_COUNT; c++) {
        const enum variant variant = (enum variant)(c % VARIANT_COUNT);
        const enum mode mode = (enum mode)(c / VARIANT_COUNT);
        /* betas 0, eps 0: divisions by zero; infinity times 0 in Lion's moment alone */
        const struct recipe odd = {variant, 1.0, 0.5, 0.0, 1.0, 0.0, 0.0, 0.0, 0x1p-100};
        const struct st_update_coef coefs[] = {any_coef(variant, 0), any_coef(variant, 3), make_coef(&odd, 2)};

        for (size_t i = 0; i < sizeof(coefs) / sizeof(coefs[0]); i++)
            compare_specials(f, variant, mode, &coefs[i]);
    }
}

/* The scalar file compiled with -mfma, so that fmaf is an instruction. */
extern st_update_split_fn st_update_split_scalar_fma;
extern st_update_master_fn st_update_master_scalar_fma;

static void scalar_bits_do_not_depend_on_flags(void **state)
{
    const struct st_kernels fma = {"scalar with -mfma", 0, .update_split = st_update_split_scalar_fma,
                                   .update_master = st_update_master_scalar_fma};
    struct fixture *const f = *state;
    const size_t elems = KF_SPECIAL_COUNT * KF_SPECIAL_COUNT * KF_SPECIAL_COUNT;

    if ((st_cpu_features() & ST_CPU_AVX2_FMA) == 0)
        skip();
    for (size_t c = 0; c < (size_t)VARIANT_COUNT * 2; c++) {
        const enum variant variant = (enum variant)(c % VARIANT_COUNT);
        const enum mode mode = c / VARIANT_COUNT == 0 ? SPLIT : FULL_F16;
        const struct st_update_coef coef = any_coef(variant, 3);

        for (int random = 0; random < 2; random++) {
            place_specials(f, KF_SPECIAL_COUNT);
            if (random != 0)
                fill(f, STRATA_F32, elems, 5, variant);
            take_source(f, 0);
            take_source(f, 1);
            assert_int_equal(run(&fma, f, 0, mode, STRATA_F32, 0, elems, &coef),
                             run(kf_scalar(), f, 1, mode, STRATA_F32, 0, elems, &coef));
            assert_same(f, fma.name, variant, mode);
        }
    }
}

/* --- what holds within a table --- */

/* The same array in one call and in pieces. */
static void cuts_do_not_show(void **state)
{
    static const size_t cuts[] = {0, 1, 9, 40, 41, 4137, 50001, 100003};
    const size_t cut_count = sizeof(cuts) / sizeof(cuts[0]), elems = cuts[cut_count - 1];
    struct fixture *const f = *state;
    const struct st_kernels *k;

    for (size_t c = 0; c < (size_t)VARIANT_COUNT * 2; c++) {
        const enum variant variant = (enum variant)(c % VARIANT_COUNT);
        const enum mode mode = c / VARIANT_COUNT == 0 ? SPLIT : FULL_BF16;
        const struct st_update_coef coef = any_coef(variant, c);

        place(f, STRATA_BF16, elems, c, false);
        fill(f, STRATA_BF16, elems, c, variant);
        for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
            uint64_t sum = 0;

            take_source(f, 0);
            take_source(f, 1);
            for (size_t i = 0; i + 1 < cut_count; i++)
                sum += run(k, f, 0, mode, STRATA_BF16, cuts[i], cuts[i + 1] - cuts[i], &coef);
            assert_int_equal(run(k, f, 1, mode, STRATA_BF16, 0, elems, &coef), sum);
            assert_same(f, k->name, variant, mode);
        }
    }
}

/* Split and full master from the same values: same masters, moments and counts; the copy is the weight. */
static void split_equals_full_master(void **state)
{
    const size_t elems = 10007;
    struct fixture *const f = *state;
    const struct st_kernels *k;

    for (int v = 0; v < VARIANT_COUNT; v++) {
        const struct st_update_coef coef = any_coef((enum variant)v, 3);

        place(f, STRATA_BF16, elems, 0, false);
        fill(f, STRATA_BF16, elems, 42, (enum variant)v);
        for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
            k->master_join((void *)f->source[MASTER].data, (void *)f->source[WEIGHT].data, (void *)f->source[RESIDUAL].data,
                           elems);
            take_source(f, 0);
            take_source(f, 1);
            assert_int_equal(run(k, f, 0, SPLIT, STRATA_BF16, 0, elems, &coef),
                             run(k, f, 1, FULL_BF16, STRATA_BF16, 0, elems, &coef));
            k->master_join(data_of(f, MASTER, 0), data_of(f, WEIGHT, 0), data_of(f, RESIDUAL, 0), elems);
            kf_assert_same(&f->plane[MASTER][0], &f->plane[MASTER][1], "split against full");
            kf_assert_same(&f->plane[MOMENT][0], &f->plane[MOMENT][1], "split against full");
            assert_memory_equal(data_of(f, WEIGHT, 0), data_of(f, COPY, 1), 2 * elems);
        }
    }
}

/* c is 0 by a moment and a gradient of 0 of either sign, and by ones that cancel. */
static void lion_with_c_zero_leaves_p_times_decay(void **state)
{
    static const float moments[] = {0.0f, -0.0f, 0.0f, -0.0f, 1.0f, -2.5f}, grads[] = {0.0f, 0.0f, -0.0f, -0.0f, -1.0f, 2.5f};
    static const float masters[] = {0.0f, -0.0f, 1.0f, -3.1415927f, 0x1p-149f, -0x1.8p-127f, 1e30f};
    const struct recipe r = {LION, 0.25, 0.5, 0.75, 0.0, 0.0, 0.1, 0.0, 1.0};
    const struct st_update_coef coef = make_coef(&r, 1);
    const struct st_kernels *k;

    (void)state;
    for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
        float p[42], m[42], g[42];

        for (size_t i = 0; i < 42; i++) {
            p[i] = masters[i / 6];
            m[i] = moments[i % 6];
            g[i] = grads[i % 6];
        }
        k->update_master(p, NULL, STRATA_DTYPE_INVALID, m, NULL, g, STRATA_F32, 42, &coef);
        for (size_t i = 0; i < 42; i++) {
            assert_int_equal(st_f32_bits(p[i]), st_f32_bits(masters[i / 6] * coef.decay));
            assert_true(m[i] == 0.5f * moments[i % 6]); /* 0.75 m + 0.25 g with g = -m or 0 */
        }
    }
}

static void lion_moves_by_the_step_size_whatever_the_gradient(void **state)
{
    static const float grads[] = {1.0f, -1.0f, 0x1p-149f, -0x1p-149f, INFINITY, -INFINITY};
    const struct recipe r = {LION, 0.125, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 1.0};
    const struct st_update_coef coef = make_coef(&r, 1);
    const struct st_kernels *k;

    (void)state;
    for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
        float p[36], m[36] = {0}, g[36];

        for (size_t i = 0; i < 36; i++) {
            p[i] = 1.0f;
            g[i] = grads[i % 6];
        }
        k->update_master(p, NULL, STRATA_DTYPE_INVALID, m, NULL, g, STRATA_F32, 36, &coef);
        for (size_t i = 0; i < 36; i++)
            assert_true(p[i] == (i % 2 == 0 ? 0.875f : 1.125f));
    }
}

/* --- scalar against fp64 --- */

#define TRACK 512u

/* The papers' formulas in double, with exact coefficients. */
static void reference_step(double *p, double *m, const float *g, const struct recipe *r, unsigned step)
{
    for (size_t i = 0; i < TRACK; i++) {
        const double d = (double)g[i] * r->grad_scale + r->l2 * p[i];
        const double c = r->beta1 * m[i] + (1.0 - r->beta1) * d;

        switch (r->variant) {
        case ADAGRAD:
            m[i] += d * d;
            p[i] -= r->lr * d / (sqrt(m[i]) + r->eps);
            break;
        case LION:
            assert_true(fabs(c) > 1e-3); /* far beyond its error: the sign is that of exact arithmetic */
            p[i] -= r->lr * ((c > 0.0 ? 1.0 : -1.0) + r->weight_decay * p[i]);
            m[i] = r->beta2 * m[i] + (1.0 - r->beta2) * d;
            break;
        default:
            m[i] = step == 1 ? d : r->beta1 * m[i] + (1.0 - r->dampening) * d;
            p[i] -= r->lr * (r->variant == NESTEROV ? d + r->beta1 * m[i] : m[i]);
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
 * Lion's moment, which p does not show, is below 2 and errs by at most 4.1u per step, a hundredth forgotten: 410u. */
struct track {
    struct recipe recipe;
    double drift;
};

static const struct track tracks[] = {
    {{ADAGRAD, 0.01, 0.0, 0.0, 0.0, 1e-8, 0.0, 0.0, 1.0}, 110.0}, {{ADAGRAD, 0.01, 0.0, 0.0, 0.0, 0.5, 0.0, 0.1, 0.25}, 110.0},
    {{LION, 7e-4, 0.9, 0.99, 0.0, 0.0, 0.0, 0.0, 1.0}, 1.0},      {{LION, 7e-4, 0.9, 0.99, 0.0, 0.0, 0.1, 0.0, 0.25}, 1.0},
    {{SGD, 5e-5, 0.9, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0}, 700.0},      {{SGD, 5e-4, 0.9, 0.0, 0.9, 0.0, 0.0, 0.1, 0.25}, 700.0},
    {{NESTEROV, 5e-5, 0.9, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0}, 700.0}, {{NESTEROV, 5e-5, 0.9, 0.0, 0.0, 0.0, 0.0, 0.1, 0.25}, 700.0},
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
    const struct recipe *const r = &track->recipe;
    double moved_max = 0.0;

    for (size_t i = 0; i < TRACK; i++) {
        p[i] = kf_uniform(1, i);
        p64[i] = (double)p[i];
        m[i] = 0.0f;
        m64[i] = 0.0;
    }
    for (unsigned step = 1; step <= 1000; step++) {
        const struct st_update_coef coef = make_coef(r, step);
        const double bound = step * 0x1p-24 * (2.0 * 2.0 + track->drift * r->lr);

        make_gradient(g, step, r->grad_scale);
        k->update_master(p, NULL, STRATA_DTYPE_INVALID, m, NULL, g, STRATA_F32, TRACK, &coef);
        reference_step(p64, m64, g, r, step);
        for (size_t i = 0; i < TRACK; i++) {
            assert_true(fabs(p64[i]) < 2.0);
            assert_true(r->variant != LION || fabs((double)m[i] - m64[i]) <= 410.0 * 0x1p-24);
            if (!(fabs((double)p[i] - p64[i]) <= bound))
                fail_msg("%s, %s: step %u, element %zu: %a, not %a; bound %a", k->name, variant_names[r->variant], step, i,
                         (double)p[i], p64[i], bound);
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
        for (size_t i = 0; i < sizeof(tracks) / sizeof(tracks[0]); i++)
            check_accuracy(k, &tracks[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_agree_at_every_length_and_alignment),
        cmocka_unit_test(all_combinations_agree_and_nothing_past_the_end_is_touched),
        cmocka_unit_test(tables_agree_over_a_large_prime),
        cmocka_unit_test(special_values_agree_and_nan_has_one_pattern),
        cmocka_unit_test(scalar_bits_do_not_depend_on_flags),
        cmocka_unit_test(cuts_do_not_show),
        cmocka_unit_test(split_equals_full_master),
        cmocka_unit_test(lion_with_c_zero_leaves_p_times_decay),
        cmocka_unit_test(lion_moves_by_the_step_size_whatever_the_gradient),
        cmocka_unit_test(thousand_steps_follow_fp64),
    };

    return cmocka_run_group_tests_name("update rules", tests, create, destroy);
}

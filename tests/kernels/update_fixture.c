/* tests/kernels/update_fixture.c - see update_fixture.h. */
#include "tests/kernels/update_fixture.h"
#include "kernels/isa/scalar.h"
#include "tests/common/test.h"
#include <stdio.h>
#include <stdlib.h>

const char *const uf_rule_names[UF_RULE_COUNT] = {"adam", "adagrad", "lion", "sgd", "sgd with nesterov"};
const strata_dtype uf_grad_dtypes[3] = {STRATA_BF16, STRATA_F32, STRATA_F16};

static const enum st_rule rules[UF_RULE_COUNT] = {ST_RULE_ADAM, ST_RULE_ADAGRAD, ST_RULE_LION, ST_RULE_SGD, ST_RULE_SGD};

/* --- coefficients --- */

struct st_update_coef uf_coef(const struct uf_recipe *r, unsigned step)
{
    const bool adam = r->rule == UF_ADAM, sgd = rules[r->rule] == ST_RULE_SGD;

    return (struct st_update_coef){
        .rule = rules[r->rule],
        .nesterov = r->rule == UF_NESTEROV,
        .grad_scale = (float)r->grad_scale,
        .beta1 = (float)r->beta1,
        .one_minus_beta1 = !sgd        ? (float)(1.0 - r->beta1)
                           : step == 1 ? 1.0f
                                       : (float)(1.0 - r->dampening),
        .beta2 = (float)r->beta2,
        .one_minus_beta2 = (float)(1.0 - r->beta2),
        .eps = (float)r->eps,
        .step_size = (float)(adam ? r->lr / (1.0 - pow(r->beta1, step)) : r->lr),
        .vhat_scale = adam ? (float)(1.0 / sqrt(1.0 - pow(r->beta2, step))) : 0.0f,
        .decay = (float)(1.0 - r->lr * r->weight_decay),
        .l2 = (float)r->l2,
    };
}

struct st_update_coef uf_any_coef(enum uf_rule rule, size_t choice)
{
    const struct uf_recipe r = {rule,
                                1e-3,
                                0.9,
                                rule == UF_ADAM ? 0.999 : 0.99,
                                0.25,
                                1e-8,
                                (choice & 2) != 0 ? 0.1 : 0.0,
                                (choice & 1) != 0 ? 0.1 : 0.0,
                                (choice & 1) != 0 ? 0.3 : 1.0};
    struct st_update_coef coef = uf_coef(&r, 1 + (unsigned)(choice / 4 % 2) * 4);

    coef.rounding_key = (uint64_t)kf_bits(choice, 1) << 32 | kf_bits(choice, 2);
    return coef;
}

/* --- arrays --- */

int uf_create(void **state)
{
    struct uf_arrays *const a = calloc(1, sizeof(*a));

    assert_non_null(a);
    for (size_t p = 0; p < UF_PLANE_COUNT; p++) {
        for (size_t side = 0; side < 2; side++)
            kf_array_create(&a->plane[p][side], UF_ELEMS_MAX * sizeof(float));
        kf_array_create(&a->source[p], UF_ELEMS_MAX * sizeof(float));
    }
    *state = a;
    return 0;
}

int uf_destroy(void **state)
{
    struct uf_arrays *const a = *state;

    for (size_t p = 0; p < UF_PLANE_COUNT; p++) {
        for (size_t side = 0; side < 2; side++)
            kf_array_destroy(&a->plane[p][side]);
        kf_array_destroy(&a->source[p]);
    }
    free(a);
    return 0;
}

/* Bytes of a plane, and what it is aligned to. */
static size_t plane_bytes(enum uf_plane plane, const struct uf_case *c, size_t *align)
{
    switch (plane) {
    case UF_MOMENT1:
    case UF_MOMENT2:
        *align = c->format == ST_MOMENTS_BF16 ? 2 : 4;
        return plane == UF_MOMENT2 && st_rule_moments(c->coef.rule) < 2 ? 0 : st_moment_bytes(c->format, c->elems);
    case UF_GRAD:
        *align = strata_dtype_bytes(c->grad_dtype);
        break;
    case UF_MASTER:
        *align = 4;
        break;
    default:
        *align = 2;
        break;
    }
    return *align * c->elems;
}

void uf_place(struct uf_arrays *a, const struct uf_case *c, size_t shift)
{
    for (size_t p = 0; p < UF_PLANE_COUNT; p++) {
        size_t align;
        const size_t bytes = plane_bytes((enum uf_plane)p, c, &align);

        kf_array_place_bytes(&a->source[p], bytes, align * (shift * (2 * p + 1) + p * c->elems));
    }
}

void uf_place_at_end(struct uf_arrays *a, const struct uf_case *c)
{
    for (size_t p = 0; p < UF_PLANE_COUNT; p++) {
        size_t align;
        const size_t bytes = plane_bytes((enum uf_plane)p, c, &align);

        kf_array_place_bytes_at_end(&a->source[p], bytes, align);
    }
}

void uf_take_source(struct uf_arrays *a, size_t side)
{
    for (size_t p = 0; p < UF_PLANE_COUNT; p++)
        kf_array_copy(&a->plane[p][side], &a->source[p]);
}

void *uf_data(struct uf_arrays *a, enum uf_plane plane, size_t side)
{
    return a->plane[plane][side].data;
}

/* --- contents --- */

/* kf_fill() makes elements 16 to 31 of every 48 of any kind. */
static void clear_signs(float *values, size_t elems)
{
    for (size_t i = 0; i < elems; i++) {
        if (i / 16 % 3 != 1)
            values[i] = fabsf(values[i]);
    }
}

void uf_fill(struct uf_arrays *a, const struct uf_case *c, uint64_t seed)
{
    void *const moment[2] = {a->source[UF_MOMENT1].data, a->source[UF_MOMENT2].data};

    if (c->format != ST_MOMENTS_F32) {
        uf_fill_blocks(a, c, seed);
        return;
    }
    kf_fill(a->source[UF_WEIGHT].data, STRATA_BF16, c->elems, seed, 1.0f);
    kf_fill(a->source[UF_LOW_HALF].data, STRATA_F16, c->elems, seed + 1, 1.0f);
    kf_fill(a->source[UF_MASTER].data, STRATA_F32, c->elems, seed + 2, 1.0f);
    kf_fill(a->source[UF_COPY].data, STRATA_F16, c->elems, seed + 3, 1.0f);
    for (uint32_t which = 0; which < st_rule_moments(c->coef.rule); which++) {
        kf_fill(moment[which], STRATA_F32, c->elems, seed + 4 + which, which == 0 ? 1e-3f : 1e-6f);
        if (st_moment_is_squares(c->coef.rule, (int)which))
            clear_signs(moment[which], c->elems);
    }
    kf_fill(a->source[UF_GRAD].data, c->grad_dtype, c->elems, seed + 6, 1e-2f);
}

enum block_kind { ORDINARY, ANY_BITS, ALL_ZERO, TINY, LARGE_MASTERS, ONE_BAD, WIDE, FINITE, KIND_COUNT };

static enum block_kind kind_of(uint64_t seed, size_t i)
{
    return (enum block_kind)(kf_bits(seed ^ 0xb10cu, i / ST_MOMENT_BLOCK) % KIND_COUNT);
}

/* A special value or any pattern. */
static float any_bits(uint64_t seed, size_t i)
{
    const uint32_t choice = kf_bits(seed ^ 0xa27u, i);

    return st_f32_from_bits(choice % 2 == 0 ? kf_special[choice / 2 % KF_SPECIAL_COUNT] : kf_bits(seed ^ 0xb17u, i));
}

/* A gradient or a moment in a block of that kind; of a moment in 8 bits its scale. */
static float value_of(enum block_kind kind, uint64_t seed, size_t i, float size)
{
    const float x = kf_uniform(seed, i) * size;
    float special;

    switch (kind) {
    case ANY_BITS:
        return any_bits(seed, i);
    case ALL_ZERO:
        return kf_bits(seed, i) % 4 == 0 ? -0.0f : 0.0f;
    case TINY:
        return kf_uniform(seed, i) * 0x1p-128f;
    case ONE_BAD:
        special = any_bits(seed, i / ST_MOMENT_BLOCK); /* NaN one time in eight or so */
        return kf_bits(seed ^ 0xbadu, i / ST_MOMENT_BLOCK) % ST_MOMENT_BLOCK == i % ST_MOMENT_BLOCK ? special : x;
    case WIDE:
        return ldexpf(x, (int)(kf_bits(seed ^ 0x31deu, i) % 81) - 40);
    case FINITE:
        return fabsf(any_bits(seed, i)) < 0x1p60f ? any_bits(seed, i) : x;
    default:
        return x;
    }
}

static float master_of(enum block_kind kind, uint64_t seed, size_t i)
{
    static const uint32_t large[] = {0x7f7f8000u, 0xff7fffffu, 0x7f7f7fffu, 0x7f800000u, 0xff800000u,
                                     0x7fc00000u, 0xffc12345u, 0x477ff000u, 0xc77fefffu};
    const uint32_t choice = kf_bits(seed ^ 0x1a26eu, i);

    if (kind == ANY_BITS)
        return any_bits(seed, i);
    if (kind == LARGE_MASTERS && choice % 32 == 0)
        return st_f32_from_bits(large[choice / 32 % (sizeof(large) / sizeof(large[0]))]);
    return kf_uniform(seed, i);
}

static void store(void *out, strata_dtype dtype, size_t i, float x)
{
    if (dtype == STRATA_F32)
        ((float *)out)[i] = x;
    else
        ((uint16_t *)out)[i] = dtype == STRATA_BF16 ? (uint16_t)(st_f32_bits(x) >> 16) : st_f32_to_f16(x);
}

/* Any codes; a scale as a value of the block's kind, not negative. */
static void fill_codes(unsigned char *plane, size_t elems, uint64_t seed, bool squares)
{
    const float size = squares ? 1e-6f : 1e-3f;

    for (size_t first = 0; first < elems; first += ST_NORM_BLOCK) {
        float *const scales = (void *)(plane + st_moment_bytes(ST_MOMENTS_8BIT, first));
        unsigned char *const codes = (void *)(scales + ST_NORM_BLOCK / ST_MOMENT_BLOCK);

        for (size_t b = 0; b < ST_NORM_BLOCK / ST_MOMENT_BLOCK; b++) {
            const size_t i = first + b * ST_MOMENT_BLOCK;
            scales[b] = fabsf(value_of(kind_of(seed, i), seed, i, size));
        }
        for (size_t i = first; i < elems && i < first + ST_NORM_BLOCK; i++)
            codes[i - first] = (unsigned char)(kf_bits(seed ^ 0xc0deu, i) & (kind_of(seed, i) == ALL_ZERO ? 0x80u : 0xffu));
    }
}

static void fill_moment(void *plane, const struct uf_case *c, uint64_t seed, bool squares)
{
    if (c->format == ST_MOMENTS_8BIT) {
        fill_codes(plane, c->elems, seed, squares);
        return;
    }
    for (size_t i = 0; i < c->elems; i++) {
        const enum block_kind kind = kind_of(seed, i);
        const float x = value_of(kind, seed ^ 0x303eu, i, squares ? 1e-6f : 1e-3f);

        store(plane, c->format == ST_MOMENTS_BF16 ? STRATA_BF16 : STRATA_F32, i, squares && kind != ANY_BITS ? fabsf(x) : x);
    }
}

void uf_fill_blocks(struct uf_arrays *a, const struct uf_case *c, uint64_t seed)
{
    uint16_t *const weight = (void *)a->source[UF_WEIGHT].data;
    int16_t *const low_half = (void *)a->source[UF_LOW_HALF].data;
    float *const master = (void *)a->source[UF_MASTER].data;

    kf_fill(a->source[UF_COPY].data, STRATA_F16, c->elems, seed, 1.0f);
    for (size_t i = 0; i < c->elems; i++) {
        const enum block_kind kind = kind_of(seed, i);

        master[i] = master_of(kind, seed ^ 0xa57e2u, i);
        weight[i] = st_split_weight(st_f32_bits(master[i]));
        low_half[i] = st_split_low_half(st_f32_bits(master[i]));
        store(a->source[UF_GRAD].data, c->grad_dtype, i, value_of(kind, seed ^ 0x62adu, i, 1e-2f));
    }
    fill_moment(a->source[UF_MOMENT1].data, c, seed, st_moment_is_squares(c->coef.rule, 0));
    if (st_rule_moments(c->coef.rule) == 2)
        fill_moment(a->source[UF_MOMENT2].data, c, seed, true);
}

/* --- runs --- */

struct st_moments uf_moments(struct uf_arrays *a, const struct uf_case *c, size_t side, size_t at)
{
    const struct st_moments all = {c->format, uf_data(a, UF_MOMENT1, side),
                                   st_rule_moments(c->coef.rule) == 2 ? uf_data(a, UF_MOMENT2, side) : NULL, c->position};

    return st_moments_at(&all, at);
}

uint64_t uf_run_part(const struct st_kernels *k, struct uf_arrays *a, size_t side, const struct uf_case *c, size_t at,
                     size_t elems)
{
    const struct st_moments moments = uf_moments(a, c, side, at);
    const void *const grad = (char *)uf_data(a, UF_GRAD, side) + strata_dtype_bytes(c->grad_dtype) * at;
    uint16_t *const weight = uf_data(a, UF_WEIGHT, side), *const copy = uf_data(a, UF_COPY, side);
    int16_t *const low_half = uf_data(a, UF_LOW_HALF, side);
    float *const master = uf_data(a, UF_MASTER, side);

    if (c->layout == UF_SPLIT)
        return k->update_split(weight + at, low_half + at, &moments, grad, c->grad_dtype, elems, &c->coef);
    return k->update_master(master + at, c->layout == UF_FULL ? NULL : copy + at,
                            c->layout == UF_FULL_F16 ? STRATA_F16 : STRATA_BF16, &moments, grad, c->grad_dtype, elems, &c->coef);
}

uint64_t uf_run(const struct st_kernels *k, struct uf_arrays *a, size_t side, const struct uf_case *c)
{
    return uf_run_part(k, a, side, c, 0, c->elems);
}

static void name_case(char name[160], const char *table, const struct uf_case *c, const char *plane)
{
    static const char *const layouts[UF_LAYOUT_COUNT] = {"split", "full", "full with bf16 copy", "full with fp16 copy"};
    static const char *const formats[ST_MOMENTS_COUNT] = {"fp32", "bf16", "8-bit"};

    snprintf(name, 160, "%s, %s, %s, %s moments, gradient %d, %zu elements%s: %s", table, uf_rule_names[c->rule],
             layouts[c->layout], formats[c->format], (int)c->grad_dtype, c->elems, c->coef.fetch_even ? ", fetched evenly" : "",
             plane);
}

void uf_assert_same(struct uf_arrays *a, const char *table, const struct uf_case *c)
{
    static const char *const planes[UF_PLANE_COUNT] = {"weight", "low_half", "master", "copy", "moment1", "moment2", "grad"};
    char what[160];

    for (size_t p = 0; p < UF_PLANE_COUNT; p++) {
        name_case(what, table, c, planes[p]);
        kf_assert_same(&a->plane[p][0], &a->plane[p][1], what);
    }
}

static void assert_count(uint64_t got, uint64_t want, const char *table, const struct uf_case *c)
{
    char what[160];

    name_case(what, table, c, "count");
    if (got != want)
        fail_msg("%s of overflows %llu, not %llu", what, (unsigned long long)got, (unsigned long long)want);
}

void uf_compare(struct uf_arrays *a, const struct uf_case *c)
{
    const struct st_kernels *k;

    uf_take_source(a, 1);
    const uint64_t count = uf_run(kf_scalar(), a, 1, c);

    for (size_t t = 0; (k = kf_variant(t / 2)) != NULL; t++) {
        struct uf_case fetched = *c;

        fetched.coef.fetch_even = t % 2 != 0;
        uf_take_source(a, 0);
        assert_count(uf_run(k, a, 0, &fetched), count, k->name, &fetched);
        uf_assert_same(a, k->name, &fetched);
    }
}

void uf_compare_split_and_full(struct uf_arrays *a, const struct uf_case *split, uint64_t seed)
{
    const struct st_kernels *k;
    struct uf_case full = *split;

    full.layout = UF_FULL_BF16;
    uf_place(a, split, 0);
    uf_fill(a, split, seed);
    for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
        k->master_join((void *)a->source[UF_MASTER].data, (void *)a->source[UF_WEIGHT].data, (void *)a->source[UF_LOW_HALF].data,
                       split->elems);
        uf_take_source(a, 0);
        uf_take_source(a, 1);
        assert_int_equal(uf_run(k, a, 0, split), uf_run(k, a, 1, &full));
        k->master_join(uf_data(a, UF_MASTER, 0), uf_data(a, UF_WEIGHT, 0), uf_data(a, UF_LOW_HALF, 0), split->elems);
        kf_assert_same(&a->plane[UF_MASTER][0], &a->plane[UF_MASTER][1], "split against full");
        kf_assert_same(&a->plane[UF_MOMENT1][0], &a->plane[UF_MOMENT1][1], "split against full");
        kf_assert_same(&a->plane[UF_MOMENT2][0], &a->plane[UF_MOMENT2][1], "split against full");
        assert_memory_equal(uf_data(a, UF_WEIGHT, 0), uf_data(a, UF_COPY, 1), 2 * split->elems);
    }
}

void uf_assert_one_nan(const float *values, size_t elems)
{
    for (size_t i = 0; i < elems; i++) {
        const uint32_t bits = st_f32_bits(values[i]);

        if (st_f32_bits_are_nan(bits) && bits != ST_F32_NAN)
            fail_msg("element %zu is the NaN %08x", i, bits);
    }
}

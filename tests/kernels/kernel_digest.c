/* tests/kernels/kernel_digest.c - kernel_digest TABLE [LENGTHS]: prints a digest of what each kernel of the table writes for
 * fixed inputs, of all four lengths or the first LENGTHS.
 *
 * The lines are equal for every table on every processor: test_neon.sh compares those of two. */
#include "kernels/isa/scalar.h"
#include "tests/kernels/kernel_fixture.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define ELEMS_MAX  65537u
#define BLOCKS_MAX (ELEMS_MAX / ST_NORM_BLOCK + 1u)

struct planes {
    uint16_t weight[ELEMS_MAX], copy[ELEMS_MAX];
    int16_t low_half[ELEMS_MAX];
    float master[ELEMS_MAX], moment1[ELEMS_MAX], moment2[ELEMS_MAX], grad[ELEMS_MAX]; /* moments, grad: of any format and dtype */
    double block_sums[BLOCKS_MAX];
    size_t elems; /* in use; the rest is 0 */
};

static struct planes planes;

static const strata_dtype dtypes[] = {STRATA_F32, STRATA_BF16, STRATA_F16};
static const char *const rule_names[ST_RULE_COUNT] = {"adam", "adagrad", "lion", "sgd"};
static const char *const format_names[ST_MOMENTS_COUNT] = {"fp32", "bf16", "8bit"};

/* Codes as they come, with a scale for each block that is not negative. */
static void fill_moment(float *plane, enum st_moment_format format, uint64_t seed, float scale)
{
    const uint64_t bytes = st_moment_bytes(format, planes.elems);

    if (format != ST_MOMENTS_8BIT) {
        kf_fill(plane, format == ST_MOMENTS_F32 ? STRATA_F32 : STRATA_BF16, planes.elems, seed, scale);
        return;
    }
    for (uint64_t i = 0; i < bytes; i++)
        ((unsigned char *)plane)[i] = (unsigned char)kf_bits(seed, i);
    for (uint64_t first = 0; first < planes.elems; first += ST_NORM_BLOCK) {
        float *const scales = (void *)((char *)plane + st_moment_bytes(format, first));

        for (uint64_t b = 0; b < ST_NORM_BLOCK / ST_MOMENT_BLOCK; b++)
            scales[b] = fabsf(kf_uniform(seed, first + b)) * scale;
    }
}

/* Of any kind in every fourth block: elsewhere a block of moments stays finite. */
static void fill_grad(strata_dtype dtype, enum st_moment_format format, uint64_t seed)
{
    kf_fill(planes.grad, dtype, planes.elems, seed, 1e-2f);
    for (size_t i = 0; format != ST_MOMENTS_F32 && i < planes.elems; i++) {
        const float x = kf_uniform(seed, i) * 1e-2f;

        if (i / ST_MOMENT_BLOCK % 4 == 0)
            continue;
        if (dtype == STRATA_F32)
            planes.grad[i] = x;
        else
            ((uint16_t *)planes.grad)[i] = dtype == STRATA_BF16 ? st_f32_to_bf16(x) : st_f32_to_f16(x);
    }
}

static void fill(strata_dtype grad_dtype, enum st_moment_format format, uint64_t seed)
{
    const size_t elems = planes.elems;

    memset(&planes, 0, sizeof(planes));
    planes.elems = elems;
    kf_fill(planes.weight, STRATA_BF16, elems, seed, 1.0f);
    kf_fill(planes.low_half, STRATA_F16, elems, seed + 1, 1.0f);
    kf_fill(planes.master, STRATA_F32, elems, seed + 2, 1.0f);
    fill_moment(planes.moment1, format, seed + 3, 1e-3f);
    fill_moment(planes.moment2, format, seed + 4, 1e-6f);
    fill_grad(grad_dtype, format, seed + 5);
}

/* FNV-1a. */
static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
    return hash;
}

/* Of all planes, a block and more past their ends, and of the kernel's count. */
static void print_digest(const char *kernel, const char *variant, strata_dtype dtype, uint64_t count)
{
    const size_t reach = (planes.elems / ST_NORM_BLOCK + 2) * ST_NORM_BLOCK, elems = reach < ELEMS_MAX ? reach : ELEMS_MAX;
    const struct {
        const void *data;
        size_t width;
    } all[] = {{planes.weight, 2},  {planes.copy, 2},    {planes.low_half, 2}, {planes.master, 4},
               {planes.moment1, 4}, {planes.moment2, 4}, {planes.grad, 4}};
    uint64_t hash = hash_bytes(0xcbf29ce484222325u, planes.block_sums, sizeof(planes.block_sums));

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        hash = hash_bytes(hash, all[i].data, elems * all[i].width);
    printf("%s %s %d, %zu elements: %" PRIu64 " %016" PRIx64 "\n", kernel, variant, (int)dtype, planes.elems, count, hash);
}

static struct st_update_coef make_coef(enum st_rule rule, bool odd)
{
    return (struct st_update_coef){
        .rule = rule,
        .nesterov = odd,
        .grad_scale = odd ? 0.25f : 1.0f,
        .beta1 = 0.9f,
        .one_minus_beta1 = 0.1f,
        .beta2 = 0.999f,
        .one_minus_beta2 = 0.001f,
        .eps = 1e-8f,
        .step_size = 0.01f,
        .vhat_scale = 1.5f,
        .decay = odd ? 1.0f : 0.9999f,
        .l2 = odd ? 0.1f : 0.0f,
        .rounding_key = odd ? 0x0123456789abcdefu : 0xfedcba9876543210u,
    };
}

static void digest_updates(const struct st_kernels *k, enum st_rule rule, enum st_moment_format format, bool odd)
{
    const struct st_update_coef coef = make_coef(rule, odd);
    const struct st_moments moments = {format, planes.moment1, st_rule_moments(rule) == 2 ? planes.moment2 : NULL,
                                       (uint64_t)odd << 32};
    uint64_t count;
    char variant[32];

    snprintf(variant, sizeof(variant), "%s %s", rule_names[rule], format_names[format]);
    for (size_t d = 0; d < 3; d++) {
        fill(dtypes[d], format, 7 * d);
        count = k->update_split(planes.weight, planes.low_half, &moments, planes.grad, dtypes[d], planes.elems, &coef);
        print_digest("update_split", variant, dtypes[d], count);
        fill(dtypes[d], format, 7 * d + 50);
        count = k->update_master(planes.master, d == 0 ? NULL : planes.copy, dtypes[d], &moments, planes.grad, dtypes[d],
                                 planes.elems, &coef);
        print_digest("update_master", variant, dtypes[d], count);
    }
}

static void digest_norms(const struct st_kernels *k)
{
    for (size_t d = 0; d < 3; d++) {
        for (uint64_t seed = 100; seed < 102; seed++) {
            fill(STRATA_F32, ST_MOMENTS_F32, seed);
            if (seed == 100) { /* finite sums, too */
                for (size_t i = 0; i < planes.elems; i++)
                    planes.master[i] = kf_uniform(seed, i);
            }
            const uint64_t count = k->grad_finish(planes.grad, dtypes[d], planes.master, planes.elems, planes.block_sums);

            print_digest("grad_finish", seed == 100 ? "finite" : "any", dtypes[d], count);
        }
    }
}

static void digest_casts(const struct st_kernels *k)
{
    fill(STRATA_F32, ST_MOMENTS_F32, 200);
    k->master_split(planes.weight, planes.low_half, planes.master, planes.elems);
    print_digest("master_split", "-", STRATA_F32, 0);
    fill(STRATA_F32, ST_MOMENTS_F32, 201);
    k->master_join(planes.master, planes.weight, planes.low_half, planes.elems);
    print_digest("master_join", "-", STRATA_F32, 0);
    fill(STRATA_F32, ST_MOMENTS_F32, 202);
    k->f32_to_bf16(planes.copy, planes.master, planes.elems);
    print_digest("f32_to_bf16", "-", STRATA_BF16, 0);
    k->f32_to_f16(planes.copy, planes.master, planes.elems);
    print_digest("f32_to_f16", "-", STRATA_F16, 0);
    k->bf16_to_f32(planes.master, planes.weight, planes.elems);
    print_digest("bf16_to_f32", "-", STRATA_BF16, 0);
    k->f16_to_f32(planes.master, planes.weight, planes.elems);
    print_digest("f16_to_f32", "-", STRATA_F16, 0);
    k->add_f32(planes.moment1, planes.grad, planes.elems);
    print_digest("add_f32", "-", STRATA_F32, 0);
}

static void digest_nf4(const struct st_kernels *k)
{
    struct st_nf4_block *const blocks = (void *)planes.moment1;

    for (size_t d = 0; d < 3; d++) {
        fill(STRATA_F32, ST_MOMENTS_F32, 300 + d);
        for (size_t i = 0; i < planes.elems; i++)
            planes.grad[i] = kf_uniform(300 + d, i) * 0.02f;
        k->nf4_quantise(blocks, planes.grad, planes.elems);
        k->nf4_widen(planes.master, dtypes[d], blocks, planes.elems);
        print_digest("nf4", "-", dtypes[d], 0);
    }
}

int main(int argc, char **argv)
{
    static const size_t lengths[] = {131, 4093, 12421, ELEMS_MAX}; /* primes */
    const struct st_kernels *const k = st_kernels_pick(argc > 1 ? argv[1] : NULL);
    const size_t all = sizeof(lengths) / sizeof(lengths[0]), asked = argc > 2 ? strtoul(argv[2], NULL, 10) : all;

    if (k == NULL) {
        fprintf(stderr, "kernel_digest: no table %s here\n", argv[1]);
        return 1;
    }
    for (size_t l = 0; l < all && l < asked; l++) {
        planes.elems = lengths[l];
        for (int n = 0; n < ST_RULE_COUNT * ST_MOMENTS_COUNT; n++) {
            digest_updates(k, (enum st_rule)(n / ST_MOMENTS_COUNT), (enum st_moment_format)(n % ST_MOMENTS_COUNT), false);
            digest_updates(k, (enum st_rule)(n / ST_MOMENTS_COUNT), (enum st_moment_format)(n % ST_MOMENTS_COUNT), true);
        }
        digest_norms(k);
        digest_casts(k);
        digest_nf4(k);
    }
    return 0;
}

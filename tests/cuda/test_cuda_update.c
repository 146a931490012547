/* The CUDA optimizer and gradient kernels against the scalar definition, bit by bit: on a GPU, or under the emulator.
 *
 *     test_cuda_update [--elems N]   N random elements instead of 3e5 */
#include "core/base/cpu.h"
#include "kernels/cuda/update.h"
#include "tests/common/test.h"
#include "tests/cuda/cuda_fixture.h"
#include "tests/kernels/update_fixture.h"
#include <stdlib.h>
#include <string.h>

#define NO_GPU       77 /* exit status: skipped */
#define PLANES_MAX   8u
#define PLANE_ALIGN  256u
#define DEVICE_BYTES (PLANES_MAX * ((uint64_t)UF_ELEMS_MAX * 4 + 2 * PLANE_ALIGN))
#define FINISH_ELEMS 50001u
#define COMBINATIONS ((uint64_t)UF_RULE_COUNT * ST_MOMENTS_COUNT * UF_LAYOUT_COUNT * 3)

static uint64_t elems_wanted = 300000;

/* --- host arrays on the device for one call --- */

static unsigned char *device;

static struct mirror {
    void *host, *device;
    uint64_t bytes;
} mirrors[PLANES_MAX];
static uint32_t mirror_count;
static uint64_t device_used;

/* A copy on the device with the host's alignment. */
static void *to_device(const void *host, uint64_t bytes)
{
    struct mirror *m = &mirrors[mirror_count++];

    assert_true(mirror_count <= PLANES_MAX);
    device_used = (device_used + PLANE_ALIGN - 1) / PLANE_ALIGN * PLANE_ALIGN;
    *m = (struct mirror){(void *)(uintptr_t)host, device + device_used + (uintptr_t)host % PLANE_ALIGN, bytes};
    device_used += PLANE_ALIGN + bytes;
    assert_true(device_used <= DEVICE_BYTES);
    cf_ok(cudaMemcpy(m->device, host, bytes, cudaMemcpyHostToDevice));
    return m->device;
}

static void all_back(void)
{
    cf_ok(cudaDeviceSynchronize());
    for (uint32_t i = 0; i < mirror_count; i++)
        cf_ok(cudaMemcpy(mirrors[i].host, mirrors[i].device, mirrors[i].bytes, cudaMemcpyDeviceToHost));
    mirror_count = 0;
    device_used = 0;
}

static struct st_moments moments_to_device(const struct st_moments *moments, size_t elems)
{
    struct st_moments on = *moments;
    const uint64_t bytes = st_moment_bytes(moments->format, elems);

    on.moment1 = to_device(on.moment1, bytes);
    on.moment2 = on.moment2 == NULL ? NULL : to_device(on.moment2, bytes);
    return on;
}

/* --- a table of CUDA's --- */

static uint64_t cuda_split(uint16_t *weight, int16_t *low_half, const struct st_moments *moments, const void *grad,
                           strata_dtype grad_dtype, size_t elems, const struct st_update_coef *coef)
{
    uint64_t count = 0;
    uint64_t *const count_on = to_device(&count, sizeof(count));
    const struct st_moments on = moments_to_device(moments, elems);

    cf_ok(st_cuda_update_split(NULL, to_device(weight, elems * 2), to_device(low_half, elems * 2), &on,
                               to_device(grad, elems * strata_dtype_bytes(grad_dtype)), grad_dtype, elems, coef, count_on));
    all_back();
    return count;
}

static uint64_t cuda_master(float *master, uint16_t *copy_out, strata_dtype copy_dtype, const struct st_moments *moments,
                            const void *grad, strata_dtype grad_dtype, size_t elems, const struct st_update_coef *coef)
{
    uint64_t count = 0;
    uint64_t *const count_on = to_device(&count, sizeof(count));
    const struct st_moments on = moments_to_device(moments, elems);
    uint16_t *const copy_on = copy_out == NULL ? NULL : to_device(copy_out, elems * 2);

    cf_ok(st_cuda_update_master(NULL, to_device(master, elems * 4), copy_on, copy_dtype, &on,
                                to_device(grad, elems * strata_dtype_bytes(grad_dtype)), grad_dtype, elems, coef, count_on));
    all_back();
    return count;
}

static const struct st_kernels cuda = {.name = "cuda", .update_split = cuda_split, .update_master = cuda_master};

static void compare(struct uf_arrays *a, const struct uf_case *c)
{
    uint64_t count;

    uf_take_source(a, 1);
    count = uf_run(kf_scalar(), a, 1, c);
    uf_take_source(a, 0);
    assert_int_equal(uf_run(&cuda, a, 0, c), count);
    uf_assert_same(a, cuda.name, c);
}

/* --- tests --- */

static struct uf_case combination(uint64_t part)
{
    return (struct uf_case){
        .rule = (enum uf_rule)(part % UF_RULE_COUNT),
        .format = (enum st_moment_format)(part / UF_RULE_COUNT % ST_MOMENTS_COUNT),
        .layout = (enum uf_layout)(part / UF_RULE_COUNT / ST_MOMENTS_COUNT % UF_LAYOUT_COUNT),
        .grad_dtype = uf_grad_dtypes[part / UF_RULE_COUNT / ST_MOMENTS_COUNT / UF_LAYOUT_COUNT],
    };
}

TEST(every_length_agrees)
{
    static const size_t lengths[] = {0, 1, 7, 8, 9, 255, 256, 257, 2047, 2048, 2049, 4095, 4096, 4097, 8191, 12289};

    for (uint64_t part = 0; part < COMBINATIONS; part++) {
        struct uf_case c = combination(part);

        c.elems = lengths[part % (sizeof(lengths) / sizeof(lengths[0]))];
        c.coef = uf_any_coef(c.rule, part);
        uf_place(*state, &c, 0);
        uf_fill(*state, &c, part);
        compare(*state, &c);
    }
}

TEST(random_elements_agree)
{
    uint64_t elems = 0;

    for (uint64_t n = 0; elems < elems_wanted; n++) {
        struct uf_case c = combination(kf_bits(n, 0) % COMBINATIONS);

        c.elems = 1 + kf_bits(n, 1) % (elems_wanted > 1000000 ? UF_ELEMS_MAX / 2 : 9000);
        c.position = (((uint64_t)kf_bits(n, 2) << 32 | kf_bits(n, 3)) >> kf_bits(n, 4) % 40) / ST_NORM_BLOCK * ST_NORM_BLOCK;
        c.coef = uf_any_coef(c.rule, kf_bits(n, 5));
        uf_place(*state, &c, kf_bits(n, 6) % UF_SHIFTS);
        if (n % 2 == 0)
            uf_fill(*state, &c, n);
        else
            uf_fill_blocks(*state, &c, n);
        compare(*state, &c);
        elems += c.elems;
    }
    print_message("%llu elements\n", (unsigned long long)elems);
}

/* Ordinary values with a few that are not. */
static void fill_sums(float *acc, size_t elems, uint32_t seed)
{
    for (size_t i = 0; i < elems; i++) {
        const uint32_t bits = kf_bits(i, seed);

        memcpy(&acc[i], &bits, sizeof(bits));
        if (bits % 1000 != 0) /* any bits for one in a thousand */
            acc[i] = ((float)(bits % 20001) - 10000.0f) * 1e-4f;
    }
}

TEST(finished_gradients_agree)
{
    static float acc[FINISH_ELEMS];
    static unsigned char out[2][FINISH_ELEMS * 4];
    static const size_t lengths[] = {1, 8, 4095, 4096, 4097, 8192, 40000, FINISH_ELEMS};
    double sums[2][FINISH_ELEMS / ST_NORM_BLOCK + 1] = {{0}};

    for (uint32_t n = 0; n < 3 * sizeof(lengths) / sizeof(lengths[0]); n++) {
        const strata_dtype dtype = uf_grad_dtypes[n % 3];
        const size_t elems = lengths[n / 3], blocks = (elems + ST_NORM_BLOCK - 1) / ST_NORM_BLOCK;
        double norm2 = 0.75, want = 0.75;
        uint64_t bad = 5;

        fill_sums(acc, elems, n);
        const uint64_t want_bad = 5 + kf_scalar()->grad_finish(out[0], dtype, acc, elems, sums[0]);

        want += st_norm_group(sums[0], blocks);
        cf_ok(st_cuda_grad_finish(NULL, to_device(out[1], elems * strata_dtype_bytes(dtype)), dtype, to_device(acc, elems * 4),
                                  elems, to_device(sums[1], blocks * sizeof(double)), to_device(&norm2, sizeof(norm2)),
                                  to_device(&bad, sizeof(bad))));
        all_back();
        assert_memory_equal(out[0], out[1], elems * strata_dtype_bytes(dtype));
        assert_memory_equal(sums[0], sums[1], blocks * sizeof(double));
        assert_true(memcmp(&norm2, &want, sizeof(want)) == 0 || (norm2 != norm2 && want != want));
        assert_true(bad == want_bad);
    }
}

/* `blocks` blocks, the last one short; out is acc. */
static void check_sums(struct cf_buffer *acc, uint64_t blocks)
{
    const uint64_t elems = blocks * ST_NORM_BLOCK - 7, bad_before = 5;
    struct cf_buffer sums = cf_create(blocks * sizeof(double), 0), norm2 = cf_create(sizeof(double), 0);
    struct cf_buffer bad = cf_create(sizeof(uint64_t), 0);
    double *want_sums = calloc(blocks, sizeof(*want_sums)), want = 0.75;
    float *out = malloc(elems * sizeof(*out));

    assert_true(want_sums != NULL && out != NULL);
    assert_true(kf_scalar()->grad_finish(out, STRATA_F32, (const float *)(void *)acc->host, elems, want_sums) == 0);
    memcpy(norm2.host, &want, sizeof(want));
    memcpy(bad.host, &bad_before, sizeof(bad_before));
    want += st_norm_group(want_sums, blocks);
    cf_upload(&norm2), cf_upload(&bad);
    cf_ok(st_cuda_grad_finish(NULL, acc->device, STRATA_F32, acc->device, elems, sums.device, norm2.device, bad.device));
    cf_ok(cudaDeviceSynchronize());
    cf_download(acc), cf_download(&sums), cf_download(&norm2), cf_download(&bad);
    assert_memory_equal(acc->host, out, elems * sizeof(*out));
    assert_memory_equal(sums.host, want_sums, blocks * sizeof(double));
    assert_memory_equal(norm2.host, &want, sizeof(want));
    assert_memory_equal(bad.host, &bad_before, sizeof(bad_before));
    cf_destroy(&sums), cf_destroy(&norm2), cf_destroy(&bad);
    free(want_sums);
    free(out);
}

/* The kernel that adds the tiles' sums takes 256 at a time: one to four turns of its loop, the last one short or not. */
TEST(sums_of_many_blocks_agree)
{
    static const uint64_t tiles[] = {200, 256, 257, 2 * 256 + 3, 3 * 256, 3 * 256 + 5, 3 * 256 + 100, 3 * 256 + 129};
    const uint32_t count = sizeof(tiles) / sizeof(tiles[0]);
    struct cf_buffer acc = cf_create_random(tiles[count - 1] * ST_TILE_ELEMS, STRATA_F32, 7, 1, 0);

    for (uint32_t i = 0; i < count; i++)
        check_sums(&acc, tiles[i] * ST_TILE_BLOCKS - i % ST_TILE_BLOCKS);
    cf_destroy(&acc);
}

TEST_MAIN(argc, argv)
{
    int count = 0, failed;

    if (argc > 2 && strcmp(argv[1], "--elems") == 0)
        elems_wanted = strtoull(argv[2], NULL, 10);
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
        return NO_GPU;
    if (cudaMalloc((void **)&device, DEVICE_BYTES) != cudaSuccess)
        return 1;
    failed = test_run(uf_create, uf_destroy);
    cudaFree(device);
    return failed;
}

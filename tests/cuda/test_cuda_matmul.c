/* The products of the cuda device over the emulator: shapes that are prepared once, epilogues that the library refuses, and the
 * memory that attention's kernels are allowed. */
#include "core/base/fault.h"
#include "tests/cuda/device_rig.h"
#include "tests/offload/device_values.h"
#include <math.h>

/* --- matmul --- */

TEST_SETUP(shapes_are_prepared_once, before_each, after_each)
{
    struct st_device *dev = opened(ARENA);
    unsigned char *arena = ops->arena(dev);
    struct st_matmul mm = square(16, STRATA_BF16, STRATA_F32);
    uint64_t asked = blas->heuristics;
    int64_t most = 0;

    ok(ops->zero(dev, arena, ARENA));
    for (int i = 0; i < 5; i++)
        ok(ops->tensors->matmul(dev, &mm, arena + 65536, arena + 4096 * i, arena + 32768, NULL)); /* where it lies is no matter */
    assert_int_equal(blas->heuristics - asked, 1);
    ok(ops->tensors->matmul(dev, &mm, arena + 65536, arena + 2, arena + 32768, NULL)); /* less aligned: another algorithm */
    assert_int_equal(blas->heuristics - asked, 2);
    for (uint32_t n = 1; n <= 1000; n++) {
        mm = (struct st_matmul){
            .m = 1, .n = n, .k = 1, .lda = 1, .ldb = n, .ldc = n, .ab_dtype = STRATA_F32, .c_dtype = STRATA_F32};
        ok(ops->tensors->matmul(dev, &mm, arena + 65536, arena, arena + 32768, NULL));
        most = blas->objects > most ? blas->objects : most;
    }
    assert_true(most <= 4 * 256 + 2);
    mm.m = 0;
    ok(ops->tensors->matmul(dev, &mm, arena + 65536, arena, arena + 32768, NULL));
    ops->close(dev);
}

/* An algorithm is of one shape, one set of dtypes and the alignment of each operand: whichever differs, the library is asked. */
TEST_SETUP(what_decides_an_algorithm, before_each, after_each)
{
    struct st_device *dev = opened(ARENA);
    unsigned char *arena = ops->arena(dev);
    const struct st_matmul base = square(16, STRATA_F32, STRATA_F32);
    struct st_matmul other[] = {base, base, base, base, base, base, base, base, base, base};
    const uint32_t others = sizeof(other) / sizeof(other[0]);
    uint64_t asked;

    ok(ops->zero(dev, arena, ARENA));
    other[0].m--;
    other[1].n--;
    other[2].k--;
    other[3].lda++;
    other[4].ldb++;
    other[5].ldc++;
    other[6].trans_a = true;
    other[7].trans_b = true;
    other[8].ab_dtype = other[8].c_dtype = STRATA_BF16;
    other[9].ab_dtype = STRATA_BF16;
    ok(ops->tensors->matmul(dev, &base, arena, arena + 16384, arena + 32768, NULL));
    asked = blas->heuristics;
    for (uint32_t i = 0; i < 2 * others; i++) {
        ok(ops->tensors->matmul(dev, &other[i / 2], arena, arena + 16384, arena + 32768, NULL));
        assert_int_equal(blas->heuristics - asked, i / 2 + 1);
    }
    for (uint32_t i = 0; i < 6; i++) { /* 0: none is moved */
        unsigned char *const at[5] = {arena + 4 * (i == 1), arena + 16384 + 4 * (i == 2), arena + 32768 + 4 * (i == 3),
                                      arena + 49152 + 4 * (i == 4), arena + 65536 + 4 * (i == 5)};
        struct st_matmul mm = base;

        mm.bias = true;
        mm.epilogue = ST_EPILOGUE_GELU;
        mm.aux = at[4];
        for (int turn = 0; turn < 2; turn++) {
            ok(ops->tensors->matmul(dev, &mm, at[0], at[1], at[2], at[3]));
            assert_int_equal(blas->heuristics - asked, others + i + 1);
        }
    }
    ops->close(dev);
}

TEST_SETUP(unsupported_matmuls_are_named, before_each, after_each)
{
    struct st_device *dev = opened(ARENA);
    unsigned char *arena = ops->arena(dev);
    struct st_matmul mm = square(24, STRATA_BF16, STRATA_F32);

    mm.bias = true;
    blas->refuses_heuristics = 1;
    assert_int_equal(ops->tensors->matmul(dev, &mm, arena, arena, arena, arena), STRATA_E_NOSYS);
    assert_non_null(strstr(strata_last_error(), "24 x 24 x 24 from bf16 to fp32")); /* nor without the bias */
    mm.epilogue = ST_EPILOGUE_GELU;
    mm.aux = arena + 4096;
    assert_int_equal(ops->tensors->matmul(dev, &mm, arena, arena, arena, arena), STRATA_E_NOSYS); /* nor without GELU */
    blas->refuses_heuristics = 0;
    mm = square(24, STRATA_BF16, STRATA_F32);
    ok(ops->tensors->matmul(dev, &mm, arena + 65536, arena, arena, NULL));
    mm = (struct st_matmul){.m = 1,
                            .n = 5000000,
                            .k = 1,
                            .lda = 1,
                            .ldb = 5000000,
                            .ldc = 5000000,
                            .bias = true,
                            .ab_dtype = STRATA_BF16,
                            .c_dtype = STRATA_F32};
    assert_int_equal(ops->tensors->matmul(dev, &mm, arena, arena, arena, arena), STRATA_E_NOSYS);
    assert_non_null(strstr(strata_last_error(), "a bias of 5000000 columns"));
    ops->close(dev);
}

/* aux and C of one matmul with each epilogue, `size` square, to out [4][size * size]. */
static void run_gelus(float *out, uint32_t size)
{
    struct st_device *dev = opened(ARENA);
    float *const arena = (float *)(void *)ops->arena(dev);
    const size_t elems = (size_t)size * size;
    struct st_matmul mm = square(size, STRATA_F32, STRATA_F32);

    assert_true(7 * elems + size <= ARENA / sizeof(float));
    for (uint32_t i = 0; i < 2 * elems + size; i++) /* a, b, bias */
        out[i] = (float)((i * 37u) % 23u) / 11 - 1;
    to_device(arena, out, (2 * elems + size) * sizeof(float));
    mm.bias = true;
    mm.epilogue = ST_EPILOGUE_GELU;
    mm.aux = arena + 3 * elems;
    for (int i = 0; i < 3; i++)
        ok(ops->tensors->matmul(dev, &mm, arena + 4 * elems, arena, arena + elems, arena + 2 * elems));
    mm.epilogue = ST_EPILOGUE_GELU_INPUT;
    mm.aux = arena + 5 * elems;
    ok(ops->tensors->matmul(dev, &mm, arena + 6 * elems, arena, arena + elems, arena + 2 * elems));
    mm.bias = false;
    mm.epilogue = ST_EPILOGUE_GELU_BACKWARD;
    ok(ops->tensors->matmul(dev, &mm, arena + 6 * elems, arena, arena + elems, NULL));
    ok(ops->finish(dev, ST_QUEUE_COMPUTE));
    from_device(out, arena + 3 * elems, 4 * elems * sizeof(float));
    ops->close(dev);
    assert_memory_equal(out, out + 2 * elems, elems * sizeof(float)); /* GELU_INPUT's aux is GELU's */
}

/* The library's epilogue where it has one; else a pass of ours, and the library is not asked each time. */
TEST_SETUP(gelu_is_an_epilogue_or_a_pass, before_each, after_each)
{
    enum { SIZE = 24, ELEMS = SIZE * SIZE, ODD = 25 };
    static float fused[4 * ELEMS], apart[4 * ELEMS], odd[4 * ODD * ODD];
    const struct twin_blas before = *blas;

    run_gelus(fused, SIZE);
    assert_int_equal(blas->gelus - before.gelus, 4);
    assert_int_equal(blas->gelu_gradients - before.gelu_gradients, 1);
    assert_int_equal(blas->heuristics - before.heuristics, 2);
    blas->refuses_gelu = 1;
    run_gelus(apart, SIZE);
    blas->refuses_gelu = 0;
    assert_int_equal(blas->heuristics - before.heuristics, 6); /* each once with and once without */
    run_gelus(odd, ODD);                                       /* rows that the library cannot take as aux */
    assert_int_equal(blas->heuristics - before.heuristics, 8);
    assert_int_equal(blas->gelus - before.gelus, 4);
    assert_int_equal(blas->invalid, before.invalid);
    for (int i = 0; i < 4 * ELEMS; i++)
        assert_true(fabsf(fused[i] - apart[i]) <= 2e-5f);
    assert_memory_not_equal(fused, apart, sizeof(fused)); /* neither is promised the other's bits */
    blas->refuses_gelu = 1;
    blas->refuses_bias = 1; /* two passes */
    run_gelus(apart, SIZE);
    for (int i = 0; i < 4 * ELEMS; i++)
        assert_true(fabsf(fused[i] - apart[i]) <= 2e-5f);
}

enum { BIAS_ROWS = 9, BIAS_COLS = 21, BIAS_DEEP = 24, BIAS_STRIDE = 25, BIAS_ELEMS = BIAS_ROWS * BIAS_STRIDE };

/* C of one matmul with a bias; its last columns are not the matmul's. */
static void run_bias(float out[BIAS_ELEMS], strata_dtype ab, strata_dtype c, bool accumulate)
{
    struct st_device *dev = opened(ARENA);
    unsigned char *arena = ops->arena(dev), host[16384 + BIAS_ELEMS * sizeof(float)] = {0};
    const struct st_matmul mm = {.m = BIAS_ROWS,
                                 .n = BIAS_COLS,
                                 .k = BIAS_DEEP,
                                 .lda = BIAS_DEEP,
                                 .ldb = BIAS_COLS,
                                 .ldc = BIAS_STRIDE,
                                 .accumulate = accumulate,
                                 .bias = true,
                                 .ab_dtype = ab,
                                 .c_dtype = c};

    for (uint32_t i = 0; i < 3 * 4096 / strata_dtype_bytes(ab); i++) /* a, b, bias */
        df_set(host, i, ab, (double)((i * 37u) % 23u) / 11 - 1);
    for (uint32_t i = 0; i < BIAS_ELEMS; i++)
        df_set(host + 16384, i, c, (double)(i % 5));
    to_device(arena, host, sizeof(host));
    for (int i = 0; i < (accumulate ? 1 : 3); i++)
        ok(ops->tensors->matmul(dev, &mm, arena + 16384, arena, arena + 4096, arena + 8192));
    ok(ops->finish(dev, ST_QUEUE_COMPUTE));
    from_device(host, arena, sizeof(host));
    for (uint32_t i = 0; i < BIAS_ELEMS; i++)
        out[i] = (float)df_at(host + 16384, i, c);
    ops->close(dev);
}

/* The library's epilogue where it has one; else a pass of ours, with the same one rounding. */
TEST_SETUP(bias_is_an_epilogue_or_a_pass, before_each, after_each)
{
    static const struct {
        strata_dtype ab, c;
        bool accumulate;
        float loss;
    } cases[] = {{STRATA_F32, STRATA_F32, false, 1e-5f},
                 {STRATA_F32, STRATA_F32, true, 1e-5f},
                 {STRATA_BF16, STRATA_BF16, false, 0.04f}, /* half a unit in the last place of the largest */
                 {STRATA_F16, STRATA_F16, false, 0.005f},
                 {STRATA_BF16, STRATA_F32, false, 1e-5f}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        float fused[BIAS_ELEMS], apart[BIAS_ELEMS];
        const uint64_t asked = blas->heuristics;

        run_bias(fused, cases[i].ab, cases[i].c, cases[i].accumulate);
        assert_int_equal(blas->heuristics - asked, 1);
        blas->refuses_bias = 1;
        run_bias(apart, cases[i].ab, cases[i].c, cases[i].accumulate);
        blas->refuses_bias = 0;
        assert_int_equal(blas->heuristics - asked, 3); /* once with and once without */
        for (uint32_t e = 0; e < BIAS_ELEMS; e++)
            if (fabsf(fused[e] - apart[e]) > (e % BIAS_STRIDE < BIAS_COLS ? cases[i].loss : 0))
                fail_msg("case %zu, element %u: %g, not %g", i, e, (double)apart[e], (double)fused[e]);
    }
}

/* Whichever kernel around the library's product is not launched, with its epilogue and without: the product says so. */
TEST_SETUP(a_launch_that_fails_is_told, before_each, after_each)
{
    const struct st_matmul mm = {
        .m = 8, .n = 8, .k = 8, .lda = 8, .ldb = 8, .ldc = 8, .bias = true, .ab_dtype = STRATA_BF16, .c_dtype = STRATA_F32};
    uint32_t failed = 0;

    for (int refuses = 0; refuses < 2; refuses++) {
        uint32_t fired = 1;

        blas->refuses_bias = refuses;
        for (uint32_t after = 0; fired > 0; after++) {
            struct st_device *dev = opened(ARENA);
            unsigned char *arena = ops->arena(dev);
            strata_status st;

            st_fault_arm(&(struct st_fault_spec){.site = "cuda.launch", .after = after, .count = 1, .result = -1});
            st = ops->tensors->matmul(dev, &mm, arena + 16384, arena, arena + 4096, arena + 8192);
            fired = st_fault_disarm();
            assert_true((st == STRATA_OK) == (fired == 0));
            failed += fired;
            ops->close(dev);
        }
    }
    blas->refuses_bias = 0;
    assert_true(failed >= 3);
}

/* --- attention --- */

/* The driver is asked for shared memory when the device opens, and never by a launch. */
TEST_SETUP(kernels_are_allowed_their_memory_once, before_each, after_each)
{
    const struct st_attention at = {.batch = 1,
                                    .seq = 8,
                                    .heads = 1,
                                    .kv_heads = 1,
                                    .head_dim = 128,
                                    .qkv_stride = 384,
                                    .out_stride = 128,
                                    .dt = STRATA_BF16};
    struct st_device *dev = opened(ARENA);
    unsigned char *arena = ops->arena(dev), *workspace = arena + 4 * 65536;
    float *lse = (float *)(void *)(arena + 3 * 65536);

    ok(ops->zero(dev, arena, ARENA));
    for (int direction = 0; direction < 2; direction++) {
        static const char *const calls[] = {"cudaFuncSetAttribute", "cudaGetDeviceProperties", "cudaGetDevice"};

        for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
            twin_fail(calls[i], 0, UINT64_MAX, cudaErrorUnknown);
            if (direction == 0)
                ok(ops->tensors->attention_forward(dev, &at, arena + 65536, lse, arena, workspace));
            else
                ok(ops->tensors->attention_backward(dev, &at, arena + 2 * 65536, arena + 65536, arena + 65536, lse, arena,
                                                    workspace));
            assert_int_equal(twin_disarm(), 0);
        }
    }
    ops->close(dev);
}

TEST_MAIN(argc, argv)
{
    return device_rig_load() ? test_run(NULL, NULL) : 1;
}

/* The device's matmul against fp64: blocks, transposed operands, sums into fp32, biases, and its epilogues, for fp32, bf16 and
 * fp16.  A sample has two of four forms of a large product, others in each dtype. */
#include "kernels/ops/ops.h"
#include "tests/common/sample.h"
#include "tests/common/test.h"
#include "tests/offload/device_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* m, n, k: single blocks, several, with rests; an aux whose rows do and do not begin at multiples of 16 bytes. */
static const uint32_t sizes[][3] = {{1, 1, 1},      {300, 200, 50}, {130, 1601, 33}, {512, 96, 31},
                                    {257, 131, 67}, {90, 70, 2100}, {40, 2050, 30},  {3, 8, 5}};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

struct operands {
    void *a, *b, *bias, *c; /* c: random */
    double *product;        /* fp64, with the bias, and C's values when accumulating */
};

static double tolerance_of(strata_dtype dt)
{
    return dt == STRATA_BF16 ? 0x1p-8 : dt == STRATA_F16 ? 0x1p-10 : 4e-6;
}

/* What tensor cores lose where fp32 is stored: a step of 8 products cuts each below 2^-24 of the largest partial sum, and their
 * sum below 2^-22 of it at most (tests/cuda/emulator/tensor_core.h); on the cpu device sums round. */
static double cut_of(const struct st_matmul *mm)
{
    const bool cuts = strcmp(DF_DEVICE, "cpu") != 0 && mm->ab_dtype != STRATA_F32 && mm->c_dtype == STRATA_F32;

    return cuts ? (mm->k + 7) / 8 * (8 * 0x1p-24 + 0x1p-22) : 0;
}

static struct operands operands_of(struct df_device *d, const struct st_matmul *mm)
{
    const strata_dtype dt = mm->ab_dtype;
    const uint64_t a_elems = (uint64_t)mm->m * mm->k, b_elems = (uint64_t)mm->k * mm->n, elems = (uint64_t)mm->m * mm->n;
    struct operands o = {.a = df_random(d, a_elems, dt, 1, 1, 0),
                         .b = df_random(d, b_elems, dt, 2, 1, 0),
                         .bias = df_random(d, mm->n, dt, 3, 1, 0),
                         .c = df_random(d, elems, mm->c_dtype, 4, 1, 0)};
    double *da = df_doubles(o.a, a_elems, dt), *db = df_doubles(o.b, b_elems, dt);

    o.product = df_doubles(o.c, elems, mm->c_dtype);
    for (uint64_t i = 0; i < mm->m; i++) {
        for (uint64_t j = 0; j < mm->n; j++) {
            double sum = (mm->accumulate ? o.product[i * mm->n + j] : 0) + (mm->bias ? df_at(o.bias, j, dt) : 0);

            for (uint64_t k = 0; k < mm->k; k++)
                sum += da[mm->trans_a ? k * mm->m + i : i * mm->k + k] * db[mm->trans_b ? j * mm->k + k : k * mm->n + j];
            o.product[i * mm->n + j] = sum;
        }
    }
    free(da);
    free(db);
    return o;
}

static void run(struct df_device *d, const struct st_matmul *mm, const struct operands *o, void *c)
{
    df_ok(d->tensors->matmul(d->dev, mm, c, o->a, o->b, mm->bias ? o->bias : NULL));
}

/* --- the product --- */

enum form { FORWARD, WIDE_FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, FORMS };

static void check_forms(struct df_device *d, strata_dtype dt)
{
    for (size_t i = 0; i < SIZES; i++) {
        for (int form = 0; form < FORMS; form++) {
            const uint32_t m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
            const struct st_matmul mm = {.m = m,
                                         .n = n,
                                         .k = k,
                                         .lda = form == WEIGHT_GRADIENT ? m : k,
                                         .ldb = form == INPUT_GRADIENT ? k : n,
                                         .ldc = n,
                                         .trans_a = form == WEIGHT_GRADIENT,
                                         .trans_b = form == INPUT_GRADIENT,
                                         .accumulate = form == WEIGHT_GRADIENT,
                                         .bias = form == FORWARD || form == WIDE_FORWARD,
                                         .ab_dtype = dt,
                                         .c_dtype = form == WEIGHT_GRADIENT || form == WIDE_FORWARD ? STRATA_F32 : dt};
            struct operands o;

            if ((uint64_t)m * n * k > 1u << 20 && !sample_takes((uint64_t)form, 2, i + dt))
                continue;
            d->used = 0;
            o = operands_of(d, &mm);
            run(d, &mm, &o, o.c);
            df_assert_close("matmul", o.c, mm.c_dtype, o.product, (uint64_t)m * n, tolerance_of(mm.c_dtype) + cut_of(&mm));
            free(o.product);
        }
    }
}

TEST(products_match)
{
    df_each_dtype(check_forms);
}

/* --- epilogues --- */

#define GELU_STEEPEST 1.13 /* its slope, at most */

static double gelu(enum st_activation form, double x)
{
    return 0.5 * x * (form == ST_GELU_ERF ? erfc(-x / sqrt(2)) : 1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(enum st_activation form, double x)
{
    return (gelu(form, x + DF_STEP) - gelu(form, x - DF_STEP)) / (2 * DF_STEP);
}

/* The cpu device's have the bits of the pass they save. */
static void assert_same_on_cpu(const void *got, const void *pass, uint64_t elems, strata_dtype dt)
{
    if (strcmp(DF_DEVICE, "cpu") == 0)
        assert_memory_equal(got, pass, elems * strata_dtype_bytes(dt));
}

static void check_gelu(struct df_device *d, const struct st_matmul *shape)
{
    const uint64_t elems = (uint64_t)shape->m * shape->n;
    const strata_dtype dt = shape->c_dtype;
    struct st_matmul mm = *shape;
    struct operands o;
    void *aux, *again, *pass;

    d->used = 0;
    o = operands_of(d, &mm);
    aux = df_random(d, elems, dt, 5, 1, 0);
    again = df_random(d, elems, dt, 6, 1, 0);
    pass = df_random(d, elems, dt, 7, 1, 0);
    mm.epilogue = ST_EPILOGUE_GELU;
    mm.aux = aux;
    run(d, &mm, &o, o.c);
    df_assert_close("gelu's input", aux, dt, o.product, elems, tolerance_of(dt) + cut_of(&mm));
    mm.epilogue = ST_EPILOGUE_GELU_INPUT;
    mm.aux = again;
    run(d, &mm, &o, pass);
    assert_memory_equal(again, aux, elems * strata_dtype_bytes(dt));
    df_ok(d->tensors->activation_forward(d->dev, mm.activation, pass, aux, elems, dt));
    assert_same_on_cpu(o.c, pass, elems, dt);
    for (uint64_t i = 0; i < elems; i++)
        o.product[i] = gelu(mm.activation, o.product[i]);
    df_assert_close("gelu", o.c, dt, o.product, elems, df_tolerance(dt) + GELU_STEEPEST * cut_of(&mm));
    free(o.product);
}

static void check_gelu_backward(struct df_device *d, const struct st_matmul *shape)
{
    const uint64_t elems = (uint64_t)shape->m * shape->n;
    const strata_dtype dt = shape->c_dtype;
    struct st_matmul mm = *shape;
    struct operands o;
    void *aux, *kept, *pass;

    mm.bias = false;
    d->used = 0;
    o = operands_of(d, &mm);
    aux = df_random(d, elems, dt, 5, 4, 0);
    kept = df_random(d, elems, dt, 5, 4, 0);
    pass = df_alloc(d, elems, dt);
    run(d, &mm, &o, pass);
    st_ops_scalar.activation_backward(mm.activation, pass, pass, aux, elems, dt);
    mm.epilogue = ST_EPILOGUE_GELU_BACKWARD;
    mm.aux = aux;
    run(d, &mm, &o, o.c);
    assert_memory_equal(aux, kept, elems * strata_dtype_bytes(dt));
    assert_same_on_cpu(o.c, pass, elems, dt);
    for (uint64_t i = 0; i < elems; i++)
        o.product[i] *= gelu_slope(mm.activation, df_at(aux, i, dt));
    df_assert_close("gelu backward", o.c, dt, o.product, elems, df_tolerance(dt) + GELU_STEEPEST * cut_of(&mm));
    free(o.product);
}

static void check_epilogues(struct df_device *d, strata_dtype dt)
{
    for (size_t i = 0; i < SIZES; i++) {
        for (uint32_t bits = 0; bits < 8; bits++) {
            const uint32_t m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
            const bool trans_b = (bits & 1) != 0, wide = (bits & 4) != 0;
            const struct st_matmul mm = {.m = m,
                                         .n = n,
                                         .k = k,
                                         .lda = k,
                                         .ldb = trans_b ? k : n,
                                         .ldc = n,
                                         .trans_b = trans_b,
                                         .bias = (bits & 2) != 0,
                                         .activation = i % 2 == 0 ? ST_GELU_TANH : ST_GELU_ERF,
                                         .ab_dtype = dt,
                                         .c_dtype = wide ? STRATA_F32 : dt};

            if (wide && dt == STRATA_F32)
                continue;
            check_gelu(d, &mm);
            if (!mm.bias)
                check_gelu_backward(d, &mm);
        }
    }
}

TEST(epilogues_match)
{
    df_each_dtype(check_epilogues);
}

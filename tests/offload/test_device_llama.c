/* Llama's ops on the cpu device: RMSNorm, rotary positions and SwiGLU against fp64, gradients against central differences of
 * the fp64 forward, for fp32, bf16 and fp16. */
#include "tests/offload/device_fixture.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define EPS 1e-5f

/* --- RMSNorm --- */

struct norm {
    uint32_t rows, cols;
    uint64_t first, end; /* rows that the loss sums */
    double *x, *w, *dy;
};

static double norm_rstd(const struct norm *n, uint64_t r)
{
    double square = 0;

    for (uint32_t i = 0; i < n->cols; i++)
        square += n->x[r * n->cols + i] * n->x[r * n->cols + i] / n->cols;
    return 1 / sqrt(square + (double)EPS);
}

/* sum of y * dy over the rows n->first .. n->end - 1. */
static double norm_loss(void *of)
{
    const struct norm *n = of;
    double loss = 0;

    for (uint64_t r = n->first; r < n->end; r++) {
        const double rstd = norm_rstd(n, r);

        for (uint64_t c = 0; c < n->cols; c++)
            loss += n->x[r * n->cols + c] * rstd * n->w[c] * n->dy[r * n->cols + c];
    }
    return loss;
}

static double norm_slope(struct norm *n, double *at, uint64_t first, uint64_t end)
{
    n->first = first;
    n->end = end;
    return df_slope(norm_loss, n, at);
}

static void check_norm_shape(struct df_device *d, strata_dtype dt, strata_dtype dy_dt, uint32_t rows, uint32_t cols,
                             bool residual)
{
    const uint64_t elems = (uint64_t)rows * cols;
    void *x = df_random(d, elems, dt, 1, 2, 0.5), *w = df_random(d, cols, dt, 2, 1, 1);
    void *dy = df_random(d, elems, dy_dt, 4, 1, 0), *res = df_random(d, elems, dt, 5, 1, 0);
    void *y = df_alloc(d, elems, dt), *dx = df_alloc(d, elems, dt), *frozen = df_alloc(d, elems, dt);
    float *stats = df_alloc(d, rows, STRATA_F32), *dw = df_random(d, cols, STRATA_F32, 6, 1, 0);
    struct norm n = {.rows = rows,
                     .cols = cols,
                     .x = df_doubles(x, elems, dt),
                     .w = df_doubles(w, cols, dt),
                     .dy = df_doubles(dy, elems, dy_dt)};
    const struct st_rmsnorm norm = {.rows = rows, .heads = 1, .cols = cols, .stride = cols, .eps = EPS, .dt = dt};
    double *want = df_doubles(res, elems, dt), *want_w = df_doubles(dw, cols, STRATA_F32),
           *want_y = malloc(elems * sizeof(double));
    double *want_stats = malloc(rows * sizeof(double));

    df_ok(d->tensors->rmsnorm_forward(d->dev, &norm, y, stats, x, w));
    memcpy(dx, res, elems * strata_dtype_bytes(dt)); /* the residual may be dx itself */
    df_ok(d->tensors->rmsnorm_backward(d->dev, &norm, dx, dw, dy, dy_dt, x, stats, w, residual ? dx : NULL));
    df_ok(d->tensors->rmsnorm_backward(d->dev, &norm, frozen, NULL, dy, dy_dt, x, stats, w, residual ? res : NULL));
    for (uint64_t i = 0; i < elems; i++) {
        want_stats[i / cols] = norm_rstd(&n, i / cols);
        want_y[i] = n.x[i] * want_stats[i / cols] * n.w[i % cols];
        want[i] = (residual ? want[i] : 0) + norm_slope(&n, &n.x[i], i / cols, i / cols + 1);
    }
    for (uint32_t c = 0; c < cols; c++)
        want_w[c] += norm_slope(&n, &n.w[c], 0, rows);
    df_assert_close("rms y", y, dt, want_y, elems, df_tolerance(dt) / 2);
    df_assert_close("rms stats", stats, STRATA_F32, want_stats, rows, 1e-6);
    df_assert_close("rms dx", dx, dt, want, elems, df_tolerance(dt));
    df_assert_close("rms dweight", dw, STRATA_F32, want_w, cols, df_tolerance(STRATA_F32));
    assert_memory_equal(frozen, dx, elems * strata_dtype_bytes(dt));
    free(n.x), free(n.w), free(n.dy);
    free(want), free(want_w), free(want_y), free(want_stats);
}

static void check_norm(struct df_device *d, strata_dtype dt)
{
    check_norm_shape(d, dt, dt, 5, 13, true);
    check_norm_shape(d, dt, STRATA_F32, 7, 67, false);
    check_norm_shape(d, dt, dt, 3, 97, false);
    check_norm_shape(d, dt, STRATA_F32, 300, 128, true);
}

static void rmsnorm_matches(void **state)
{
    (void)state;
    df_each_dtype(check_norm);
}

/* --- rotary positions --- */

#define BASE 10000.0

struct rope {
    uint32_t rows, seq, first, heads, head_dim, stride;
};

static double angle_of(const struct rope *p, uint64_t r, uint32_t pair)
{
    return (double)(p->first + r % p->seq) * pow(BASE, -2.0 * pair / p->head_dim);
}

/* table[position][head_dim / 2] = cos, sin. */
static float *rope_table(struct df_device *d, const struct rope *p)
{
    const uint32_t positions = p->first + p->seq, half = p->head_dim / 2;
    float *table = df_alloc(d, (uint64_t)positions * p->head_dim, STRATA_F32);

    for (uint32_t position = 0; position < positions; position++) {
        for (uint32_t i = 0; i < half; i++) {
            const double angle = position * pow(BASE, -2.0 * i / p->head_dim);

            table[(size_t)position * p->head_dim + 2 * i] = (float)cos(angle);
            table[(size_t)position * p->head_dim + 2 * i + 1] = (float)sin(angle);
        }
    }
    return table;
}

/* Element c of row r of the rotated x. */
static double rotated(const struct rope *p, const double *x, uint64_t r, uint32_t c)
{
    const double *row = x + r * p->stride;
    const uint32_t half = p->head_dim / 2, i = c % p->head_dim;
    const double angle = angle_of(p, r, i % half);

    if (c >= p->heads * p->head_dim)
        return row[c];
    return i < half ? row[c] * cos(angle) - row[c + half] * sin(angle) : row[c] * cos(angle) + row[c - half] * sin(angle);
}

struct rope_row {
    const struct rope *p;
    double *x;
    const double *dy;
    uint64_t r;
};

/* sum of rotated x * dy over one row, which alone sees its elements. */
static double rope_loss(void *of)
{
    const struct rope_row *row = of;
    const struct rope *p = row->p;
    double loss = 0;

    for (uint32_t i = 0; i < p->stride; i++)
        loss += rotated(p, row->x, row->r, i) * row->dy[row->r * p->stride + i];
    return loss;
}

static void check_rope_shape(struct df_device *d, strata_dtype dt, const struct rope *p)
{
    const uint64_t elems = (uint64_t)p->rows * p->stride;
    void *x = df_random(d, elems, dt, 1, 2, 0), *dy = df_random(d, elems, dt, 2, 1, 0);
    struct st_rope rope = {.rows = p->rows,
                           .stride = p->stride,
                           .heads = p->heads,
                           .head_dim = p->head_dim,
                           .rotary_dim = p->head_dim,
                           .seq = p->seq,
                           .first = p->first,
                           .table = rope_table(d, p),
                           .dt = dt};
    double *wide = df_doubles(x, elems, dt), *wide_dy = df_doubles(dy, elems, dt), *want = malloc(elems * sizeof(double));

    df_ok(d->tensors->rope(d->dev, &rope, x));
    for (uint64_t i = 0; i < elems; i++)
        want[i] = rotated(p, wide, i / p->stride, (uint32_t)(i % p->stride));
    df_assert_close("rope", x, dt, want, elems, df_tolerance(dt) / 2);
    rope.inverse = true;
    df_ok(d->tensors->rope(d->dev, &rope, dy));
    for (uint64_t i = 0; i < elems; i++)
        want[i] = df_slope(rope_loss, &(struct rope_row){p, wide, wide_dy, i / p->stride}, &wide[i]);
    df_assert_close("rope gradient", dy, dt, want, elems, df_tolerance(dt) / 2);
    for (uint64_t i = 0; i < elems; i++)
        if (i % p->stride >= p->heads * p->head_dim)
            assert_true(df_at(x, i, dt) == wide[i] && df_at(dy, i, dt) == wide_dy[i]);
    free(wide), free(wide_dy), free(want);
}

static void check_rope(struct df_device *d, strata_dtype dt)
{
    static const struct rope shapes[] = {
        {26, 13, 0, 3, 10, 37}, {1, 1, 41, 2, 64, 200}, {9, 9, 5, 1, 2, 2}, {300, 150, 0, 4, 32, 128}, {4, 2, 0, 2, 140, 300},
    };

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        check_rope_shape(d, dt, &shapes[i]);
}

static void rope_matches(void **state)
{
    (void)state;
    df_each_dtype(check_rope);
}

/* --- SwiGLU --- */

static double swiglu(double gate, double up)
{
    return gate / (1 + exp(-gate)) * up;
}

static void check_swiglu_shape(struct df_device *d, strata_dtype dt, uint32_t rows, uint32_t ffn)
{
    const uint64_t elems = (uint64_t)rows * ffn;
    void *gate_up = df_random(d, 2 * elems, dt, 1, 4, 0), *dy = df_random(d, elems, dt, 2, 1, 0);
    void *y = df_alloc(d, elems, dt), *apart = df_alloc(d, 2 * elems, dt);
    double *x = df_doubles(gate_up, 2 * elems, dt), *wide_dy = df_doubles(dy, elems, dt);
    double *want = malloc(2 * elems * sizeof(double));

    for (uint64_t i = 0; i < elems; i++)
        want[i] = swiglu(x[i / ffn * 2 * ffn + i % ffn], x[i / ffn * 2 * ffn + ffn + i % ffn]);
    df_ok(d->tensors->gated_forward(d->dev, ST_SILU, y, gate_up, rows, ffn, dt));
    df_assert_close("swiglu", y, dt, want, elems, df_tolerance(dt) / 3);
    for (uint64_t i = 0; i < elems; i++) {
        const uint64_t gate = i / ffn * 2 * ffn + i % ffn, up = gate + ffn;

        want[gate] = wide_dy[i] * (swiglu(x[gate] + DF_STEP, x[up]) - swiglu(x[gate] - DF_STEP, x[up])) / (2 * DF_STEP);
        want[up] = wide_dy[i] * swiglu(x[gate], 1);
    }
    df_ok(d->tensors->gated_backward(d->dev, ST_SILU, apart, dy, gate_up, rows, ffn, dt));
    df_assert_close("swiglu gradient", apart, dt, want, 2 * elems, df_tolerance(dt) / 3);
    df_ok(d->tensors->gated_backward(d->dev, ST_SILU, gate_up, dy, gate_up, rows, ffn, dt)); /* in place */
    assert_memory_equal(gate_up, apart, 2 * elems * strata_dtype_bytes(dt));
    free(x), free(wide_dy), free(want);
}

static void check_swiglu(struct df_device *d, strata_dtype dt)
{
    check_swiglu_shape(d, dt, 3, 5);
    check_swiglu_shape(d, dt, 7, 67);
    check_swiglu_shape(d, dt, 260, 384);
    check_swiglu_shape(d, dt, 2, 40000);
}

static void swiglu_matches(void **state)
{
    (void)state;
    df_each_dtype(check_swiglu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm_matches),
        cmocka_unit_test(rope_matches),
        cmocka_unit_test(swiglu_matches),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

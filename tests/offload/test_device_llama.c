/* The ops of Llama and its relatives: RMSNorm, rotary positions and gates against fp64, gradients against central differences of
 * the fp64 forward, for fp32, bf16 and fp16. */
#include "tests/common/test.h"
#include "tests/offload/device_fixture.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EPS 1e-5f

/* --- RMSNorm --- */

/* Every head is a row here. */
struct norm {
    const struct st_rmsnorm *shape;
    uint64_t first, end; /* rows that the loss sums */
    double *x, *w, *dy;
};

static uint64_t norm_row(const struct st_rmsnorm *n, uint64_t r)
{
    return r / n->heads * n->stride + r % n->heads * n->cols;
}

static double norm_rstd(const struct norm *n, uint64_t r)
{
    const double *x = n->x + norm_row(n->shape, r);
    double square = 0;

    for (uint32_t i = 0; i < n->shape->cols; i++)
        square += x[i] * x[i] / n->shape->cols;
    return 1 / sqrt(square + (double)EPS);
}

static double norm_value(const struct norm *n, uint64_t r, uint32_t c)
{
    return n->x[norm_row(n->shape, r) + c] * norm_rstd(n, r) * ((double)n->shape->offset + n->w[c]);
}

/* sum of y * dy over the rows n->first .. n->end - 1. */
static double norm_loss(void *of)
{
    const struct norm *n = of;
    double loss = 0;

    for (uint64_t r = n->first; r < n->end; r++) {
        const double rstd = norm_rstd(n, r);

        for (uint64_t c = 0, at = norm_row(n->shape, r); c < n->shape->cols; c++, at++)
            loss += n->x[at] * rstd * ((double)n->shape->offset + n->w[c]) * n->dy[at];
    }
    return loss;
}

static double norm_slope(struct norm *n, double *at, uint64_t first, uint64_t end)
{
    n->first = first;
    n->end = end;
    return df_slope(norm_loss, n, at);
}

/* Elements past the heads stay as they are. */
static void check_norm_of(struct df_device *d, const struct st_rmsnorm *norm, strata_dtype dy_dt, bool residual)
{
    const strata_dtype dt = norm->dt;
    const uint64_t elems = (uint64_t)norm->rows * norm->stride, rows = (uint64_t)norm->rows * norm->heads;
    const uint32_t cols = norm->cols;
    void *x = df_random(d, elems, dt, 1, 2, 0.5), *w = df_random(d, cols, dt, 2, 1, 1);
    void *dy = df_random(d, elems, dy_dt, 4, 1, 0), *res = df_random(d, elems, dt, 5, 1, 0);
    void *y = df_alloc(d, elems, dt), *dx = df_random(d, elems, dt, 5, 1, 0), *frozen = df_random(d, elems, dt, 5, 1, 0);
    float *stats = df_alloc(d, rows, STRATA_F32), *dw = df_random(d, cols, STRATA_F32, 6, 1, 0);
    struct norm n = {
        .shape = norm, .x = df_doubles(x, elems, dt), .w = df_doubles(w, cols, dt), .dy = df_doubles(dy, elems, dy_dt)};
    double *want = df_doubles(res, elems, dt), *want_w = df_doubles(dw, cols, STRATA_F32),
           *want_y = calloc(elems, sizeof(double));
    double *want_stats = malloc(rows * sizeof(double));

    df_ok(d->tensors->rmsnorm_forward(d->dev, norm, y, stats, x, w, NULL, NULL));
    df_ok(d->tensors->rmsnorm_backward(d->dev, norm, dx, dw, dy, dy_dt, x, stats, w, residual ? dx : NULL)); /* it may be dx */
    df_ok(d->tensors->rmsnorm_backward(d->dev, norm, frozen, NULL, dy, dy_dt, x, stats, w, residual ? res : NULL));
    for (uint64_t r = 0; r < rows; r++) {
        want_stats[r] = norm_rstd(&n, r);
        for (uint32_t c = 0; c < cols; c++) {
            const uint64_t i = norm_row(norm, r) + c;

            want_y[i] = norm_value(&n, r, c);
            want[i] = (residual ? want[i] : 0) + norm_slope(&n, &n.x[i], r, r + 1);
        }
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

/* A norm of a sum has the bits of add and the norm of what that gives; the sum may lie where either of its terms does.  Elements
 * past the heads stay as they are. */
static void check_norm_of_sum(struct df_device *d, const struct st_rmsnorm *norm)
{
    const strata_dtype dt = norm->dt;
    const uint64_t elems = (uint64_t)norm->rows * norm->stride, rows = (uint64_t)norm->rows * norm->heads;
    const size_t bytes = strata_dtype_bytes(dt);
    void *x = df_random(d, elems, dt, 1, 2, 0.5), *addend = df_random(d, elems, dt, 2, 2, 0);
    void *w = df_random(d, norm->cols, dt, 3, 1, 1), *want_sum = df_alloc(d, elems, dt);
    unsigned char *y = df_random(d, elems, dt, 4, 1, 0), *want = df_random(d, elems, dt, 4, 1, 0);
    float *stats = df_alloc(d, rows, STRATA_F32), *want_stats = df_alloc(d, rows, STRATA_F32);

    df_ok(d->tensors->add(d->dev, want_sum, x, addend, elems, dt));
    df_ok(d->tensors->rmsnorm_forward(d->dev, norm, want, want_stats, want_sum, w, NULL, NULL));
    for (uint32_t form = 0; form < 3; form++) {
        unsigned char *const left = df_random(d, elems, dt, 1, 2, 0.5), *const right = df_random(d, elems, dt, 2, 2, 0);
        unsigned char *const sum = df_random(d, elems, dt, 5, 1, 0), *const to = form == 0 ? sum : form == 1 ? left : right;
        unsigned char *const all = df_random(d, elems, dt, form == 0 ? 5 : form, form == 0 ? 1 : 2, form == 1 ? 0.5 : 0);

        for (uint64_t r = 0; r < rows; r++)
            memcpy(all + norm_row(norm, r) * bytes, (unsigned char *)want_sum + norm_row(norm, r) * bytes, norm->cols * bytes);
        df_ok(d->tensors->rmsnorm_forward(d->dev, norm, y, stats, left, w, right, to));
        assert_memory_equal(to, all, elems * bytes);
        assert_memory_equal(y, want, elems * bytes);
        assert_memory_equal(stats, want_stats, rows * sizeof(float));
    }
}

static void check_norm_shape(struct df_device *d, strata_dtype dt, strata_dtype dy_dt, uint32_t rows, uint32_t cols,
                             bool residual)
{
    const struct st_rmsnorm norm = {.rows = rows, .heads = 1, .cols = cols, .stride = cols, .eps = EPS, .dt = dt};

    check_norm_of(d, &norm, dy_dt, residual);
}

/* Norms of heads, of queries in packed rows, and weights that are stored as their distance from 1. */
static void check_norm_variants(struct df_device *d, strata_dtype dt)
{
    const struct st_rmsnorm heads = {.rows = 7, .heads = 3, .cols = 24, .stride = 100, .eps = EPS, .dt = dt};
    const struct st_rmsnorm queries = {.rows = 5, .heads = 1, .cols = 72, .stride = 104, .eps = EPS, .dt = dt};
    const struct st_rmsnorm distance = {.rows = 9, .heads = 1, .cols = 50, .stride = 50, .eps = EPS, .offset = 1.0f, .dt = dt};
    const struct st_rmsnorm both = {.rows = 700, .heads = 4, .cols = 16, .stride = 64, .eps = EPS, .offset = 1.0f, .dt = dt};

    for (uint32_t cols = 1; cols <= 9000; cols = cols * 6 + 7) {
        const struct st_rmsnorm dense = {.rows = 3, .heads = 1, .cols = cols, .stride = cols, .eps = EPS, .dt = dt};
        const struct st_rmsnorm wide = {.rows = 2, .heads = 1, .cols = 8 * cols, .stride = 8 * cols, .eps = EPS, .dt = dt};

        check_norm_of_sum(d, &dense);
        if (cols <= 1024)
            check_norm_of_sum(d, &wide);
    }
    check_norm_of_sum(d, &heads);
    check_norm_of_sum(d, &both);
    check_norm_of(d, &heads, dt, false);
    check_norm_of(d, &queries, dt, true);
    check_norm_of(d, &distance, STRATA_F32, true);
    check_norm_of(d, &both, dt, false);
}

TEST(rmsnorm_variants_match)
{
    df_each_dtype(check_norm_variants);
}

static void check_norm(struct df_device *d, strata_dtype dt)
{
    check_norm_shape(d, dt, dt, 5, 13, true);
    check_norm_shape(d, dt, STRATA_F32, 7, 67, false);
    check_norm_shape(d, dt, dt, 3, 97, false);
    check_norm_shape(d, dt, STRATA_F32, 300, 128, true);
}

TEST(rmsnorm_matches)
{
    df_each_dtype(check_norm);
}

/* --- rotary positions --- */

#define BASE 10000.0

struct rope {
    uint32_t rows, seq, first, heads, head_dim, stride;
    uint32_t rotary_dim; /* 0: head_dim */
    bool documents;      /* positions begin anew in rows 0, 4, 8, ... of a sequence */
};

static uint32_t rotary_dim_of(const struct rope *p)
{
    return p->rotary_dim > 0 ? p->rotary_dim : p->head_dim;
}

static double angle_of(const struct rope *p, uint64_t r, uint32_t pair)
{
    return (double)(p->first + r % p->seq % (p->documents ? 4 : p->seq)) * pow(BASE, -2.0 * pair / rotary_dim_of(p));
}

/* table[position][rotary_dim / 2] = cos, sin. */
static float *rope_table(struct df_device *d, const struct rope *p)
{
    const uint32_t positions = p->first + p->seq, dim = rotary_dim_of(p);
    float *table = df_alloc(d, (uint64_t)positions * dim, STRATA_F32);

    for (uint32_t position = 0; position < positions; position++) {
        for (uint32_t i = 0; i < dim / 2; i++) {
            const double angle = position * pow(BASE, -2.0 * i / dim);

            table[(size_t)position * dim + 2 * i] = (float)cos(angle);
            table[(size_t)position * dim + 2 * i + 1] = (float)sin(angle);
        }
    }
    return table;
}

/* Element c of row r of the rotated x. */
static double rotated(const struct rope *p, const double *x, uint64_t r, uint32_t c)
{
    const double *row = x + r * p->stride;
    const uint32_t half = rotary_dim_of(p) / 2, i = c % p->head_dim;
    const double angle = angle_of(p, r, i % half);

    if (c >= p->heads * p->head_dim || i >= 2 * half)
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
                           .rotary_dim = rotary_dim_of(p),
                           .seq = p->seq,
                           .first = p->first,
                           .table = rope_table(d, p),
                           .dt = dt};
    double *wide = df_doubles(x, elems, dt), *wide_dy = df_doubles(dy, elems, dt), *want = malloc(elems * sizeof(double));

    if (p->documents) {
        int32_t *positions = df_alloc(d, p->rows, STRATA_F32);

        for (uint32_t r = 0; r < p->rows; r++)
            positions[r] = (int32_t)(r % p->seq % 4);
        rope.positions = positions;
    }
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
        if (i % p->stride >= p->heads * p->head_dim || i % p->stride % p->head_dim >= rotary_dim_of(p))
            assert_true(df_at(x, i, dt) == wide[i] && df_at(dy, i, dt) == wide_dy[i]);
    free(wide), free(wide_dy), free(want);
}

static void check_rope(struct df_device *d, strata_dtype dt)
{
    static const struct rope shapes[] = {
        {26, 13, 0, 3, 10, 37, 0, false},    {1, 1, 41, 2, 64, 200, 0, false},  {9, 9, 5, 1, 2, 2, 0, false},
        {300, 150, 0, 4, 32, 128, 0, false}, {4, 2, 0, 2, 140, 300, 0, false},  {26, 13, 2, 3, 24, 80, 18, false},
        {26, 13, 0, 3, 10, 37, 0, true},     {20, 10, 1, 2, 64, 128, 32, true},
    };

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        check_rope_shape(d, dt, &shapes[i]);
}

TEST(rope_matches)
{
    df_each_dtype(check_rope);
}

/* --- gates --- */

static double gated(enum st_activation activation, double gate, double up)
{
    if (activation == ST_SILU)
        return gate / (1 + exp(-gate)) * up;
    if (activation == ST_GELU_ERF)
        return 0.5 * gate * erfc(-gate / sqrt(2)) * up;
    return 0.5 * gate * (1 + tanh(sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate))) * up;
}

static void check_gated_shape(struct df_device *d, strata_dtype dt, uint32_t rows, uint32_t ffn, enum st_activation a)
{
    const uint64_t elems = (uint64_t)rows * ffn;
    void *gate_up = df_random(d, 2 * elems, dt, 1, 4, 0), *dy = df_random(d, elems, dt, 2, 1, 0);
    void *y = df_alloc(d, elems, dt), *apart = df_alloc(d, 2 * elems, dt), *left = df_alloc(d, elems, dt);
    double *x = df_doubles(gate_up, 2 * elems, dt), *wide_dy = df_doubles(dy, elems, dt);
    double *want = malloc(2 * elems * sizeof(double));

    for (uint64_t i = 0; i < elems; i++)
        want[i] = gated(a, x[i / ffn * 2 * ffn + i % ffn], x[i / ffn * 2 * ffn + ffn + i % ffn]);
    df_ok(d->tensors->gated_forward(d->dev, a, y, gate_up, rows, ffn, dt));
    df_assert_close("gated", y, dt, want, elems, df_tolerance(dt) / 3);
    for (uint64_t i = 0; i < elems; i++) {
        const uint64_t gate = i / ffn * 2 * ffn + i % ffn, up = gate + ffn;

        want[gate] = wide_dy[i] * (gated(a, x[gate] + DF_STEP, x[up]) - gated(a, x[gate] - DF_STEP, x[up])) / (2 * DF_STEP);
        want[up] = wide_dy[i] * gated(a, x[gate], 1);
    }
    df_ok(d->tensors->gated_backward(d->dev, a, apart, NULL, dy, gate_up, rows, ffn, dt));
    df_assert_close("gated gradient", apart, dt, want, 2 * elems, df_tolerance(dt) / 3);
    df_ok(d->tensors->gated_backward(d->dev, a, apart, left, dy, gate_up, rows, ffn, dt));
    assert_memory_equal(left, y, elems * strata_dtype_bytes(dt));                          /* forward's bits */
    df_ok(d->tensors->gated_backward(d->dev, a, gate_up, dy, dy, gate_up, rows, ffn, dt)); /* in place */
    assert_memory_equal(gate_up, apart, 2 * elems * strata_dtype_bytes(dt));
    assert_memory_equal(dy, y, elems * strata_dtype_bytes(dt));
    free(x), free(wide_dy), free(want);
}

static void check_gated(struct df_device *d, strata_dtype dt)
{
    check_gated_shape(d, dt, 3, 5, ST_SILU);
    check_gated_shape(d, dt, 7, 67, ST_SILU);
    check_gated_shape(d, dt, 260, 384, ST_SILU);
    check_gated_shape(d, dt, 2, 40000, ST_SILU);
    check_gated_shape(d, dt, 7, 67, ST_GELU_TANH);
    check_gated_shape(d, dt, 60, 72, ST_GELU_TANH);
    check_gated_shape(d, dt, 7, 67, ST_GELU_ERF);
    check_gated_shape(d, dt, 60, 72, ST_GELU_ERF);
}

TEST(gated_matches)
{
    df_each_dtype(check_gated);
}

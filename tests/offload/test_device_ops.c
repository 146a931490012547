/* The cpu device's row, column and pointwise ops: values against fp64, gradients against central differences of the fp64
 * forward, for fp32, bf16 and fp16, odd and prime shapes. */
#include "tests/common/test.h"
#include "tests/offload/device_fixture.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- LayerNorm --- */

struct norm {
    uint32_t rows, cols;
    uint64_t first, end; /* rows that the loss sums */
    double *x, *w, *b, *dy;
};

static double norm_output(const struct norm *n, uint64_t r, uint64_t c)
{
    const double *x = n->x + r * n->cols;
    double mean = 0, variance = 0;

    for (uint32_t i = 0; i < n->cols; i++)
        mean += x[i] / n->cols;
    for (uint32_t i = 0; i < n->cols; i++)
        variance += (x[i] - mean) * (x[i] - mean) / n->cols;
    return (x[c] - mean) / sqrt(variance + 1e-5) * n->w[c] + n->b[c];
}

/* sum of y * dy over the rows n->first .. n->end - 1: the loss whose gradient dy begins. */
static double norm_loss(void *of)
{
    const struct norm *n = of;
    double loss = 0;

    for (uint64_t r = n->first; r < n->end; r++)
        for (uint64_t c = 0; c < n->cols; c++)
            loss += norm_output(n, r, c) * n->dy[r * n->cols + c];
    return loss;
}

static double norm_slope(struct norm *n, double *at, uint64_t first, uint64_t end)
{
    n->first = first;
    n->end = end;
    return df_slope(norm_loss, n, at);
}

/* Without a place for the gradients of weight, bias or both, all else is the same. */
static void check_frozen(struct df_device *d, const struct norm *n, const void *dx, const float *dw, const float *db,
                         const void *dy, strata_dtype dy_dt, const void *x, const float *stats, const void *w, const void *res,
                         strata_dtype dt)
{
    const uint64_t elems = (uint64_t)n->rows * n->cols;

    for (uint32_t form = 0; form < 3; form++) { /* neither, dweight, dbias */
        void *got = df_alloc(d, elems, dt);
        float *got_w = form == 1 ? df_random(d, n->cols, STRATA_F32, 6, 1, 0) : NULL;
        float *got_b = form == 2 ? df_random(d, n->cols, STRATA_F32, 7, 1, 0) : NULL;

        df_ok(d->tensors->layernorm_backward(d->dev, got, got_w, got_b, dy, dy_dt, x, stats, w, res, n->rows, n->cols, dt));
        assert_memory_equal(got, dx, elems * strata_dtype_bytes(dt));
        if (got_w != NULL)
            assert_memory_equal(got_w, dw, n->cols * sizeof(float));
        if (got_b != NULL)
            assert_memory_equal(got_b, db, n->cols * sizeof(float));
    }
}

static void check_norm_shape(struct df_device *d, strata_dtype dt, strata_dtype dy_dt, uint32_t rows, uint32_t cols,
                             bool residual)
{
    const uint64_t elems = (uint64_t)rows * cols;
    void *x = df_random(d, elems, dt, 1, 2, 0.5), *w = df_random(d, cols, dt, 2, 1, 1), *b = df_random(d, cols, dt, 3, 1, 0);
    void *dy = df_random(d, elems, dy_dt, 4, 1, 0), *res = df_random(d, elems, dt, 5, 1, 0);
    void *y = df_alloc(d, elems, dt), *dx = df_alloc(d, elems, dt);
    float *stats = df_alloc(d, 2 * (uint64_t)rows, STRATA_F32);
    float *dw = df_random(d, cols, STRATA_F32, 6, 1, 0), *db = df_random(d, cols, STRATA_F32, 7, 1, 0);
    struct norm n = {.rows = rows,
                     .cols = cols,
                     .x = df_doubles(x, elems, dt),
                     .w = df_doubles(w, cols, dt),
                     .b = df_doubles(b, cols, dt),
                     .dy = df_doubles(dy, elems, dy_dt)};
    double *want = df_doubles(res, elems, dt), *want_w = df_doubles(dw, cols, STRATA_F32),
           *want_b = df_doubles(db, cols, STRATA_F32);
    double *want_y = malloc(elems * sizeof(double));

    df_ok(d->tensors->layernorm_forward(d->dev, y, stats, x, w, b, NULL, NULL, rows, cols, 1e-5f, dt));
    memcpy(dx, res, elems * strata_dtype_bytes(dt)); /* the residual may be dx itself */
    df_ok(d->tensors->layernorm_backward(d->dev, dx, dw, db, dy, dy_dt, x, stats, w, residual ? dx : NULL, rows, cols, dt));
    for (uint64_t i = 0; i < elems; i++) {
        want_y[i] = norm_output(&n, i / cols, i % cols);
        want[i] = (residual ? want[i] : 0) + norm_slope(&n, &n.x[i], i / cols, i / cols + 1);
    }
    for (uint32_t c = 0; c < cols; c++) {
        want_w[c] += norm_slope(&n, &n.w[c], 0, rows);
        want_b[c] += norm_slope(&n, &n.b[c], 0, rows);
    }
    check_frozen(d, &n, dx, dw, db, dy, dy_dt, x, stats, w, residual ? res : NULL, dt);
    df_assert_close("norm y", y, dt, want_y, elems, df_tolerance(dt));
    df_assert_close("norm dx", dx, dt, want, elems, df_tolerance(dt));
    df_assert_close("norm dweight", dw, STRATA_F32, want_w, cols, df_tolerance(STRATA_F32));
    df_assert_close("norm dbias", db, STRATA_F32, want_b, cols, df_tolerance(STRATA_F32));
    free(n.x), free(n.w), free(n.b), free(n.dy);
    free(want), free(want_w), free(want_b), free(want_y);
}

/* A norm of a sum has the bits of add and the norm of what that gives; the sum may lie where either of its terms does. */
static void check_norm_of_sum(struct df_device *d, strata_dtype dt, uint32_t rows, uint32_t cols)
{
    const uint64_t elems = (uint64_t)rows * cols, bytes = elems * strata_dtype_bytes(dt);
    void *x = df_random(d, elems, dt, 1, 2, 0.5), *addend = df_random(d, elems, dt, 2, 2, 0);
    void *w = df_random(d, cols, dt, 3, 1, 1), *b = df_random(d, cols, dt, 4, 1, 0);
    void *sum = df_alloc(d, elems, dt), *y = df_alloc(d, elems, dt), *want = df_alloc(d, elems, dt);
    float *stats = df_alloc(d, 2 * (uint64_t)rows, STRATA_F32), *want_stats = df_alloc(d, 2 * (uint64_t)rows, STRATA_F32);
    void *want_sum = df_alloc(d, elems, dt);

    df_ok(d->tensors->add(d->dev, want_sum, x, addend, elems, dt));
    df_ok(d->tensors->layernorm_forward(d->dev, want, want_stats, want_sum, w, b, NULL, NULL, rows, cols, 1e-5f, dt));
    for (uint32_t form = 0; form < 3; form++) {
        void *const left = df_random(d, elems, dt, 1, 2, 0.5), *const right = df_random(d, elems, dt, 2, 2, 0);
        void *const to = form == 0 ? sum : form == 1 ? left : right;

        df_ok(d->tensors->layernorm_forward(d->dev, y, stats, left, w, b, right, to, rows, cols, 1e-5f, dt));
        assert_memory_equal(to, want_sum, bytes);
        assert_memory_equal(y, want, bytes);
        assert_memory_equal(stats, want_stats, 2 * rows * sizeof(float));
    }
}

static void check_norm(struct df_device *d, strata_dtype dt)
{
    check_norm_of_sum(d, dt, 1, 1);
    check_norm_of_sum(d, dt, 5, 13);
    check_norm_of_sum(d, dt, 70, 768);
    check_norm_of_sum(d, dt, 2, 2048);
    check_norm_of_sum(d, dt, 2, 8200);
    check_norm_shape(d, dt, dt, 5, 13, true);
    check_norm_shape(d, dt, STRATA_F32, 7, 67, false);
    check_norm_shape(d, dt, dt, 3, 97, false);
    check_norm_shape(d, dt, STRATA_F32, 2, 128, true);
}

TEST(norm_matches)
{
    df_each_dtype(check_norm);
}

/* --- gelu, add, bias --- */

static double activate(enum st_activation activation, double x)
{
    if (activation == ST_SILU)
        return x / (1 + exp(-x));
    return 0.5 * x * (activation == ST_GELU_ERF ? erfc(-x / sqrt(2)) : 1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static void check_pointwise(struct df_device *d, strata_dtype dt)
{
    const uint64_t elems = 40009;
    void *x = df_random(d, elems, dt, 1, 5, 0), *dy = df_random(d, elems, dt, 2, 1, 0), *y = df_alloc(d, elems, dt);
    double *want_x = df_doubles(x, elems, dt), *want_dy = df_doubles(dy, elems, dt), *want = df_doubles(x, elems, dt);

    for (enum st_activation a = ST_GELU_TANH; a <= ST_SILU; a++) {
        for (uint64_t i = 0; i < elems; i++)
            want[i] = activate(a, want_x[i]);
        df_ok(d->tensors->activation_forward(d->dev, a, y, x, elems, dt));
        df_assert_close("activation", y, dt, want, elems, df_tolerance(dt) / 3);
        for (uint64_t i = 0; i < elems; i++)
            want[i] = want_dy[i] * (activate(a, want_x[i] + 1e-5) - activate(a, want_x[i] - 1e-5)) / 2e-5;
        df_ok(d->tensors->activation_backward(d->dev, a, y, dy, x, elems, dt));
        df_assert_close("activation backward", y, dt, want, elems, df_tolerance(dt));
    }
    for (uint64_t i = 0; i < elems; i++)
        want[i] = want_x[i] + want_dy[i];
    df_ok(d->tensors->add(d->dev, y, x, dy, elems, dt));
    df_assert_close("add", y, dt, want, elems, df_tolerance(dt) / 3);
    for (uint64_t i = 0; i < elems; i++)
        want[i] = 2.53125 * want_x[i];
    df_ok(d->tensors->scale(d->dev, y, x, 2.53125f, elems, dt));
    df_assert_close("scale", y, dt, want, elems, df_tolerance(dt) / 3);
    free(want), free(want_x), free(want_dy);
}

/* Columns of wider rows, both ways: the other columns stay. */
static void check_cast(struct df_device *d, strata_dtype dt)
{
    const uint32_t rows = 131, cols = 101, wider = 120;
    const struct st_cast widen = {
        .rows = rows, .cols = cols, .to_stride = cols, .from_stride = wider, .to = STRATA_F32, .from = dt};
    const struct st_cast narrow = {
        .rows = rows, .cols = cols, .to_stride = wider, .from_stride = cols, .to = dt, .from = STRATA_F32};
    const size_t bytes = strata_dtype_bytes(dt), skip = 7 * bytes;
    unsigned char *x = df_random(d, (uint64_t)rows * wider, dt, 1, 1, 0), *y = df_random(d, (uint64_t)rows * wider, dt, 2, 1, 0);
    float *wide = df_alloc(d, (uint64_t)rows * cols, STRATA_F32);
    unsigned char *before = malloc(rows * wider * bytes);

    memcpy(before, y, rows * wider * bytes);
    df_ok(d->tensors->cast(d->dev, &widen, wide, x + skip));
    df_ok(d->tensors->cast(d->dev, &narrow, y + skip, wide));
    for (uint64_t r = 0; r < rows; r++) {
        for (uint64_t c = 0; c < cols; c++)
            assert_true((double)wide[r * cols + c] == df_at(x, r * wider + 7 + c, dt));
        memcpy(before + (r * wider + 7) * bytes, x + (r * wider + 7) * bytes, cols * bytes);
    }
    assert_memory_equal(y, before, rows * wider * bytes);
    free(before);
}

TEST(casts_keep_values)
{
    df_each_dtype(check_cast);
}

/* Operands as stored; what is not named is random or 0. */
static void check_thin_product(struct df_device *d, const struct st_thin *t)
{
    const uint64_t p_elems = (uint64_t)(t->trans_p ? t->k : t->rows) * t->ldp;
    const uint64_t q_elems = (uint64_t)(t->trans_q ? t->cols : t->k) * t->ldq, elems = (uint64_t)t->rows * t->cols;
    void *p = df_random(d, p_elems, t->p, 1, 1, 0), *q = df_random(d, q_elems, t->q, 2, 1, 0);
    float *c = df_random(d, elems, STRATA_F32, 3, 1, 0);
    void *to = t->ld_to > 0 ? df_alloc(d, elems, t->to) : NULL;
    double *want = calloc(elems, sizeof(*want));

    for (uint64_t i = 0; i < elems; i++) {
        const uint64_t r = i / t->cols, j = i % t->cols;

        for (uint64_t k = 0; k < t->k; k++)
            want[i] += df_at(p, t->trans_p ? k * t->ldp + r : r * t->ldp + k, t->p) *
                       df_at(q, t->trans_q ? j * t->ldq + k : k * t->ldq + j, t->q);
        want[i] = (want[i] + (t->add ? (double)c[i] : 0)) * (double)t->scale;
    }
    df_ok(d->tensors->thin(d->dev, t, c, to, p, q));
    df_assert_close("thin", to != NULL ? to : (void *)c, to != NULL ? t->to : STRATA_F32, want, elems,
                    df_tolerance(to != NULL ? t->to : STRATA_F32));
    free(want);
}

/* Every order of storage, more and less than an item or a block of each extent. */
static void check_thin(struct df_device *d, strata_dtype dt)
{
    static const uint32_t extents[][3] = {{1, 16, 200}, {150, 16, 131}, {131, 600, 16}, {16, 70, 300}, {5, 3, 1}, {70, 33, 40}};

    for (uint32_t i = 0; i < 8 * sizeof(extents) / sizeof(extents[0]) && d->tensors->thin != NULL; i++) {
        struct st_thin t = {.rows = extents[i / 8][0], .cols = extents[i / 8][1], .k = extents[i / 8][2], .p = dt, .to = dt};

        t.trans_p = i % 2 != 0;
        t.trans_q = i / 2 % 2 != 0;
        t.add = i / 4 % 2 != 0;
        t.scale = t.add ? 1.0f : 2.5f;
        t.q = t.trans_q ? STRATA_F32 : dt;
        t.ldp = (t.trans_p ? t.rows : t.k) + 3;
        t.ldq = (t.trans_q ? t.k : t.cols) + 1;
        t.ldc = t.cols;
        t.ld_to = t.add ? t.cols : 0;
        d->used = 0;
        check_thin_product(d, &t);
    }
}

TEST(thin_products_match)
{
    df_each_dtype(check_thin);
}

/* The bits of the scalar table, and nothing behind the last element. */
static void check_nf4_widen(struct df_device *d, strata_dtype dt)
{
    const uint64_t lengths[] = {1, 63, 64, 5000, 100001};

    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        const uint64_t elems = lengths[i], records = (elems + ST_NF4_ELEMS - 1) / ST_NF4_ELEMS;
        float *x = df_random(d, records * ST_NF4_ELEMS, STRATA_F32, 1, 1, 0);
        struct st_nf4_block *packed = df_alloc(d, records * sizeof(*packed) / sizeof(float), STRATA_F32);
        unsigned char *y = df_alloc(d, elems + 1, dt), *want = df_alloc(d, elems + 1, dt);

        st_kernels_pick("scalar")->nf4_quantise(packed, x, elems);
        memset(y, 0x5a, (elems + 1) * strata_dtype_bytes(dt));
        memset(want, 0x5a, (elems + 1) * strata_dtype_bytes(dt));
        st_kernels_pick("scalar")->nf4_widen(want, dt, packed, elems);
        df_ok(d->tensors->nf4_widen(d->dev, y, packed, elems, dt));
        assert_memory_equal(y, want, (elems + 1) * strata_dtype_bytes(dt));
    }
}

TEST(nf4_widens_as_the_kernels_do)
{
    df_each_dtype(check_nf4_widen);
}

TEST(pointwise_matches)
{
    df_each_dtype(check_pointwise);
}

static void check_bias(struct df_device *d, strata_dtype dt)
{
    const uint32_t rows = 131, cols = 101;
    void *dy = df_random(d, (uint64_t)rows * cols, dt, 1, 1, 0);
    float *db = df_random(d, cols, STRATA_F32, 2, 1, 0);
    double *want = df_doubles(db, cols, STRATA_F32);

    for (uint64_t i = 0; i < (uint64_t)rows * cols; i++)
        want[i % cols] += df_at(dy, i, dt);
    df_ok(d->tensors->bias_backward(d->dev, db, dy, rows, cols, dt));
    df_assert_close("dbias", db, STRATA_F32, want, cols, df_tolerance(STRATA_F32));
    free(want);
}

TEST(bias_matches)
{
    df_each_dtype(check_bias);
}

/* --- embedding --- */

/* documents: positions begin anew in rows 0, 4, 8, ... of a sequence, other ones in each. */
static void check_positions(struct df_device *d, strata_dtype dt, uint32_t sequences, bool documents)
{
    enum { SEQ = 13, COLS = 37 };
    const uint32_t rows = sequences * SEQ;
    void *x = df_random(d, rows * COLS, dt, 1, 1, 0), *pos = df_random(d, SEQ * COLS, dt, 2, 1, 0);
    void *dx = df_random(d, rows * COLS, dt, 3, 1, 0);
    float *dpos = df_random(d, SEQ * COLS, STRATA_F32, 4, 1, 0);
    int32_t *positions = df_alloc(d, rows, STRATA_F32);
    double *want = df_doubles(x, rows * COLS, dt), *want_pos = df_doubles(dpos, SEQ * COLS, STRATA_F32);

    for (uint32_t i = 0; i < rows; i++)
        positions[i] = (int32_t)(i % SEQ % (documents ? 4 + i / SEQ % 5 : SEQ));
    for (uint32_t i = 0; i < rows * COLS; i++) {
        const uint32_t at = (uint32_t)positions[i / COLS] * COLS + i % COLS;

        want[i] += df_at(pos, at, dt);
        want_pos[at] += df_at(dx, i, dt);
    }
    df_ok(d->tensors->embed_add_position(d->dev, x, pos, documents ? positions : NULL, rows, SEQ, COLS, dt));
    df_ok(d->tensors->embed_position_backward(d->dev, dpos, dx, documents ? positions : NULL, rows, SEQ, COLS, dt));
    df_assert_close("positions", x, dt, want, rows * COLS, df_tolerance(dt) / 3);
    df_assert_close("dpos", dpos, STRATA_F32, want_pos, SEQ * COLS, df_tolerance(STRATA_F32));
    free(want), free(want_pos);
}

static void check_both_positions(struct df_device *d, strata_dtype dt)
{
    for (uint32_t sequences = 3; sequences <= 75; sequences += 72) { /* of one item of work, and of several */
        check_positions(d, dt, sequences, false);
        check_positions(d, dt, sequences, true);
    }
}

TEST(positions_match)
{
    df_each_dtype(check_both_positions);
}

static void check_embedding(struct df_device *d, strata_dtype dt)
{
    enum { ROWS = 39, COLS = 37, VOCAB = 11, SLICE = 4 };
    void *table = df_random(d, VOCAB * COLS, dt, 1, 1, 0);
    void *x = df_alloc(d, ROWS * COLS, dt), *dx = df_random(d, ROWS * COLS, dt, 3, 1, 0);
    float *dtable = df_alloc(d, VOCAB * COLS, STRATA_F32);
    int32_t *tokens = df_alloc(d, ROWS, STRATA_F32);
    double want[ROWS * COLS], want_table[VOCAB * COLS] = {0};

    for (uint32_t i = 0; i < ROWS; i++)
        tokens[i] = (int32_t)(df_bits(5, i) % VOCAB);
    for (uint32_t i = 0; i < ROWS * COLS; i++) {
        const uint32_t entry = (uint32_t)tokens[i / COLS] * COLS + i % COLS;

        want[i] = df_at(table, entry, dt);
        want_table[entry] += df_at(dx, i, dt);
    }
    for (uint32_t first = 0; first < VOCAB; first += SLICE) { /* the table arrives in slices of rows */
        const uint32_t count = VOCAB - first < SLICE ? VOCAB - first : SLICE;
        const void *slice = (const char *)table + (size_t)first * COLS * strata_dtype_bytes(dt);

        df_ok(d->ops->embed_gather(d->dev, x, slice, tokens, ROWS, COLS, first, count, dt));
        df_ok(d->ops->embed_scatter(d->dev, dtable + first * COLS, dx, tokens, ROWS, COLS, first, count, dt));
    }
    df_assert_close("embedding", x, dt, want, ROWS * COLS, df_tolerance(dt) / 3);
    df_assert_close("dtable", dtable, STRATA_F32, want_table, VOCAB * COLS, df_tolerance(STRATA_F32));
}

TEST(embedding_matches)
{
    df_each_dtype(check_embedding);
}

/* --- bytes, gradient, update --- */

TEST(bytes_move)
{
    enum { BYTES = 700001 };
    struct df_device d;
    unsigned char *host = malloc(BYTES), *back = malloc(BYTES), *a, *b;

    df_open(&d, &(struct df_opts){0});
    a = df_alloc(&d, BYTES, STRATA_BF16);
    b = df_alloc(&d, BYTES, STRATA_BF16);
    for (uint32_t i = 0; i < BYTES; i++)
        host[i] = (unsigned char)df_bits(1, i);
    df_ok(d.ops->upload(d.dev, a, host, BYTES));
    df_ok(d.ops->finish(d.dev, ST_QUEUE_UPLOAD));
    df_ok(d.ops->copy(d.dev, b, a, BYTES));
    df_ok(d.ops->finish(d.dev, ST_QUEUE_COMPUTE));
    df_ok(d.ops->download(d.dev, back, b, BYTES));
    df_ok(d.ops->finish(d.dev, ST_QUEUE_DOWNLOAD));
    assert_memory_equal(host, back, BYTES);
    df_ok(d.ops->zero(d.dev, b, BYTES - 1));
    memset(host, 0, BYTES - 1);
    assert_memory_equal(b, host, BYTES);
    df_ok(d.ops->zero(d.dev, b, 0));
    df_close(&d);
    free(host);
    free(back);
}

/* Sums of leaves are added with one rounding, the same everywhere: beside ties, subnormals and infinities. */
TEST(sums_are_reduced)
{
    const uint64_t elems = 150001;
    struct df_device d;
    float *sum, *addend, *want;
    uint16_t *narrow;

    df_open(&d, &(struct df_opts){0});
    sum = df_random(&d, elems, STRATA_F32, 1, 1, 0);
    addend = df_random(&d, elems, STRATA_F32, 2, 1e-3, 0);
    want = df_alloc(&d, elems, STRATA_F32);
    sum[0] = 1.0f, addend[0] = 0x1p-24f;
    sum[1] = 0x1p-149f, addend[1] = 0x1p-127f;
    sum[2] = 3e38f, addend[2] = 3e38f;
    sum[elems - 1] = -0.0f, addend[elems - 1] = 0.0f;
    for (uint64_t i = 0; i < elems; i++)
        want[i] = sum[i] + addend[i];
    df_ok(d.ops->reduce(d.dev, sum, addend, STRATA_F32, elems));
    assert_memory_equal(sum, want, elems * sizeof(float));
    narrow = df_random(&d, elems, STRATA_BF16, 3, 1e-2, 0);
    st_kernels_pick("scalar")->bf16_to_f32(addend, narrow, elems);
    for (uint64_t i = 0; i < elems; i++)
        want[i] = sum[i] + addend[i];
    df_ok(d.ops->reduce(d.dev, sum, narrow, STRATA_BF16, elems));
    assert_memory_equal(sum, want, elems * sizeof(float));
    df_close(&d);
}

/* One group, and two cut at a multiple of the norm block, against the kernel itself. */
static void check_finish(struct df_device *d, strata_dtype dt)
{
    const uint64_t elems = 150001, cut = 17 * ST_NORM_BLOCK, blocks = (elems + ST_NORM_BLOCK - 1) / ST_NORM_BLOCK;
    float *acc = df_random(d, elems, STRATA_F32, 1, 1, 0);
    unsigned char *out = df_alloc(d, elems, dt), *want = df_alloc(d, elems, dt);
    double *sums = df_alloc(d, 2 * blocks, STRATA_F32), *want_sums = df_alloc(d, 2 * blocks, STRATA_F32),
           *norm2 = df_alloc(d, 2, STRATA_F32);
    uint64_t *nonfinite = df_alloc(d, 2, STRATA_F32), want_bad;
    double want_norm2 = 0.25;

    acc[70000] = NAN;
    acc[140000] = INFINITY;
    want_bad = 5 + st_kernels_pick("scalar")->grad_finish(want, dt, acc, elems, want_sums);
    acc[70000] = acc[140000] = 1;
    st_kernels_pick("scalar")->grad_finish(want, dt, acc, elems, want_sums);
    want_norm2 += st_norm_group(want_sums, blocks);
    *norm2 = 0.25;
    df_ok(d->ops->grad_finish(d->dev, out, dt, acc, elems, sums, norm2, nonfinite));
    assert_memory_equal(out, want, elems * strata_dtype_bytes(dt));
    assert_true(*norm2 == want_norm2);
    assert_true(*nonfinite == 0);
    *norm2 = 0.25;
    *nonfinite = 5;
    df_ok(d->ops->grad_finish(d->dev, out, dt, acc, cut, sums, norm2, nonfinite));
    df_ok(d->ops->grad_finish(d->dev, out + cut * strata_dtype_bytes(dt), dt, acc + cut, elems - cut, sums, norm2, nonfinite));
    assert_memory_equal(out, want, elems * strata_dtype_bytes(dt));
    assert_true(*norm2 == 0.25 + st_norm_group(want_sums, cut / ST_NORM_BLOCK) +
                              st_norm_group(want_sums + cut / ST_NORM_BLOCK, blocks - cut / ST_NORM_BLOCK));
    acc[70000] = NAN;
    acc[140000] = INFINITY;
    df_ok(d->ops->grad_finish(d->dev, out, dt, acc, elems, sums, norm2, nonfinite));
    assert_true(*nonfinite == want_bad && want_bad == 7);
}

TEST(gradient_is_finished)
{
    df_each_dtype(check_finish);
}

static const struct st_update_coef coef = {.grad_scale = 0.5f,
                                           .beta1 = 0.9f,
                                           .one_minus_beta1 = 0.1f,
                                           .beta2 = 0.999f,
                                           .one_minus_beta2 = 0.001f,
                                           .eps = 1e-8f,
                                           .step_size = 1e-2f,
                                           .vhat_scale = 20.0f,
                                           .decay = 0.999f};

/* The planes of one update. */
struct update {
    void *weight, *grad;
    int16_t *low_half;
    float *master;
    struct st_moments moments;
    uint64_t moment_bytes;
};

static struct update update_create(struct df_device *d, uint64_t elems, strata_dtype dt, bool master,
                                   enum st_moment_format format)
{
    const bool plain = format == ST_MOMENTS_F32;
    struct update u = {.weight = df_random(d, elems, dt, 1, 1, 0),
                       .grad = df_random(d, elems, dt, 4, 1, 0),
                       .moments = {.format = format, .position = 7 * ST_NORM_BLOCK},
                       .moment_bytes = st_moment_bytes(format, elems)};

    u.moments.moment1 = plain ? df_random(d, elems, STRATA_F32, 2, 0.1, 0) : df_alloc(d, u.moment_bytes / 4 + 1, STRATA_F32);
    u.moments.moment2 = plain ? df_random(d, elems, STRATA_F32, 3, 0.1, 0.1) : df_alloc(d, u.moment_bytes / 4 + 1, STRATA_F32);
    if (master)
        u.master = df_random(d, elems, STRATA_F32, 1, 1, 0);
    else if (dt == STRATA_BF16)
        u.low_half = df_alloc(d, elems, STRATA_BF16);
    if (u.master != NULL)
        u.master[99999] = 65600.0f; /* after the decay still infinite in fp16 */
    if (u.low_half != NULL) {
        ((uint16_t *)u.weight)[99999] = 0x7f7f; /* the largest */
        u.low_half[99999] = 0x7fff;
    }
    return u;
}

static uint64_t scalar_update(const struct update *u, uint64_t elems, strata_dtype dt)
{
    const struct st_kernels *scalar = st_kernels_pick("scalar");
    const struct st_moments *moments = &u->moments;

    if (u->low_half != NULL)
        return scalar->update_split(u->weight, u->low_half, moments, u->grad, dt, elems, &coef);
    if (u->master != NULL)
        return scalar->update_master(u->master, u->weight, dt, moments, u->grad, dt, elems, &coef);
    return scalar->update_master(u->weight, NULL, STRATA_DTYPE_INVALID, moments, u->grad, dt, elems, &coef);
}

/* Two steps: the second finds moments other than 0 in every format. */
static void check_update(struct df_device *d, strata_dtype dt, bool master, enum st_moment_format format)
{
    const uint64_t elems = 130003, before = d->used;
    const struct update u = update_create(d, elems, dt, master, format), want = update_create(d, elems, dt, master, format);
    uint64_t *overflowed = df_alloc(d, 2, STRATA_F32), want_overflowed = 0;

    *overflowed = 3;
    for (int step = 0; step < 2; step++) {
        df_ok(d->ops->update(d->dev, u.weight, u.low_half, u.master, &u.moments, u.grad, dt, elems, &coef, overflowed));
        want_overflowed += scalar_update(&want, elems, dt);
    }
    assert_int_equal(*overflowed, 3 + want_overflowed);
    assert_true(dt == STRATA_F16 ? want_overflowed > 0 : want_overflowed == 0);
    assert_memory_equal(u.weight, want.weight, elems * strata_dtype_bytes(dt));
    if (u.low_half != NULL)
        assert_memory_equal(u.low_half, want.low_half, elems * 2);
    if (u.master != NULL)
        assert_memory_equal(u.master, want.master, elems * 4);
    assert_memory_equal(u.moments.moment1, want.moments.moment1, u.moment_bytes);
    assert_memory_equal(u.moments.moment2, want.moments.moment2, u.moment_bytes);
    memset(d->ops->arena(d->dev) + before, 0, d->used - before);
    d->used = before;
}

/* Split master, full master with a copy, the weight as its own master. */
static void check_adam(struct df_device *d, strata_dtype dt)
{
    for (int f = 0; f < ST_MOMENTS_COUNT; f++) {
        if (dt != STRATA_F16)
            check_update(d, dt, false, (enum st_moment_format)f);
        if (dt != STRATA_F32)
            check_update(d, dt, true, (enum st_moment_format)f);
    }
}

TEST(update_equals_the_kernel)
{
    df_each_dtype(check_adam);
}

TEST(devices_by_name)
{
    assert_ptr_equal(st_device_find("cpu"), &st_device_cpu_ops);
    assert_null(st_device_find("tpu"));
    st_device_cpu_ops.close(NULL);
}

/* Causal attention against an fp64 reference whose own gradient is checked by central differences: one and several
 * blocks, grouped heads, padded rows, fp32, bf16, widened bf16 and fp16.  A long sequence, a key-value cache. */
#include "tests/offload/device_fixture.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Forward and backward in fp64 over the same packed rows. */
struct reference {
    struct st_attention at;
    uint64_t qkv_elems, out_elems, lse_elems;
    double *qkv, *dout, *out, *lse, *dqkv;
};

static uint64_t k_column(const struct st_attention *at)
{
    return (uint64_t)at->heads * at->head_dim;
}

static uint64_t v_column(const struct st_attention *at)
{
    return k_column(at) + (uint64_t)at->kv_heads * at->head_dim;
}

/* Element 0 of a head's row in qkv. */
static double *head_row(const struct reference *r, double *packed, uint64_t column, uint64_t b, uint64_t h, uint64_t t)
{
    return packed + (b * r->at.seq + t) * r->at.qkv_stride + column + h * r->at.head_dim;
}

static double dot(const double *a, const double *b, uint32_t n)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* p[0..t] of one query; returns the log-sum-exp. */
static double probabilities(const struct reference *r, double *p, uint64_t b, uint64_t h, uint64_t t)
{
    const uint64_t kv = h / (r->at.heads / r->at.kv_heads);
    const double scale = 1 / sqrt((double)r->at.head_dim);
    double top = -INFINITY, sum = 0;

    for (uint64_t s = 0; s <= t; s++) {
        p[s] = scale * dot(head_row(r, r->qkv, 0, b, h, t), head_row(r, r->qkv, k_column(&r->at), b, kv, s), r->at.head_dim);
        top = fmax(top, p[s]);
    }
    for (uint64_t s = 0; s <= t; s++)
        sum += exp(p[s] - top);
    for (uint64_t s = 0; s <= t; s++)
        p[s] = exp(p[s] - top) / sum;
    return top + log(sum);
}

static void forward(struct reference *r, double *p)
{
    const struct st_attention *at = &r->at;

    memset(r->out, 0, r->out_elems * sizeof(double));
    for (uint64_t b = 0; b < at->batch; b++) {
        for (uint64_t h = 0; h < at->heads; h++) {
            for (uint64_t t = 0; t < at->seq; t++) {
                double *out = r->out + (b * at->seq + t) * at->out_stride + h * at->head_dim;

                r->lse[(b * at->heads + h) * at->seq + t] = probabilities(r, p, b, h, t);
                for (uint64_t s = 0; s <= t; s++)
                    for (uint64_t i = 0; i < at->head_dim; i++)
                        out[i] += p[s] * head_row(r, r->qkv, v_column(at), b, h / (at->heads / at->kv_heads), s)[i];
            }
        }
    }
}

static void backward_row(struct reference *r, double *p, uint64_t b, uint64_t h, uint64_t t)
{
    const struct st_attention *at = &r->at;
    const uint64_t kv = h / (at->heads / at->kv_heads), row = (b * at->seq + t) * at->out_stride + h * at->head_dim;
    const double scale = 1 / sqrt((double)at->head_dim), *dout = r->dout + row;
    const double delta = dot(dout, r->out + row, at->head_dim);
    double *q = head_row(r, r->qkv, 0, b, h, t), *dq = head_row(r, r->dqkv, 0, b, h, t);

    probabilities(r, p, b, h, t);
    for (uint64_t s = 0; s <= t; s++) {
        double *k = head_row(r, r->qkv, k_column(at), b, kv, s), *dk = head_row(r, r->dqkv, k_column(at), b, kv, s);
        double *v = head_row(r, r->qkv, v_column(at), b, kv, s), *dv = head_row(r, r->dqkv, v_column(at), b, kv, s);
        const double ds = p[s] * (dot(dout, v, at->head_dim) - delta) * scale;

        for (uint64_t i = 0; i < at->head_dim; i++) {
            dq[i] += ds * k[i];
            dk[i] += ds * q[i];
            dv[i] += p[s] * dout[i];
        }
    }
}

static void backward(struct reference *r, double *p)
{
    memset(r->dqkv, 0, r->qkv_elems * sizeof(double));
    for (uint64_t b = 0; b < r->at.batch; b++)
        for (uint64_t h = 0; h < r->at.heads; h++)
            for (uint64_t t = 0; t < r->at.seq; t++)
                backward_row(r, p, b, h, t);
}

struct trial {
    struct reference *r;
    double *p; /* [seq], scratch */
};

static double loss(void *of)
{
    const struct trial *trial = of;
    const struct reference *r = trial->r;
    double sum = 0;

    forward(trial->r, trial->p);
    for (uint64_t i = 0; i < r->out_elems; i++)
        sum += r->out[i] * r->dout[i];
    return sum;
}

/* Some elements of the analytic gradient against differences of the forward. */
static void check_reference(struct reference *r, double *p)
{
    for (uint32_t n = 0; n < 12; n++) {
        const uint64_t i = df_bits(99, n) % r->qkv_elems;
        const double slope = df_slope(loss, &(struct trial){r, p}, &r->qkv[i]);

        if (!(fabs(slope - r->dqkv[i]) < 1e-7))
            fail_msg("reference: element %llu is %.9g, differences say %.9g", (unsigned long long)i, r->dqkv[i], slope);
    }
    forward(r, p);
}

static struct reference reference_create(const struct st_attention *at, const void *qkv, const void *dout)
{
    struct reference r = {.at = *at};
    double *p = malloc(at->seq * sizeof(double));

    r.qkv_elems = (uint64_t)at->batch * at->seq * at->qkv_stride;
    r.out_elems = (uint64_t)at->batch * at->seq * at->out_stride;
    r.lse_elems = (uint64_t)at->batch * at->seq * at->heads;
    r.qkv = df_doubles(qkv, r.qkv_elems, at->dt);
    r.dout = df_doubles(dout, r.out_elems, at->dt);
    r.out = malloc(r.out_elems * sizeof(double));
    r.lse = malloc(r.lse_elems * sizeof(double));
    r.dqkv = malloc(r.qkv_elems * sizeof(double));
    for (uint64_t i = 0; i < r.out_elems; i++) /* columns past the heads are nobody's */
        r.dout[i] = i % at->out_stride < k_column(at) ? r.dout[i] : 0;
    forward(&r, p);
    backward(&r, p);
    check_reference(&r, p);
    free(p);
    return r;
}

static void reference_destroy(struct reference *r)
{
    free(r->qkv), free(r->dout), free(r->out), free(r->lse), free(r->dqkv);
}

/* Columns past the last head keep what they held. */
static void assert_padding(const void *p, uint64_t rows, uint32_t stride, uint64_t used, strata_dtype dt)
{
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = used; c < stride; c++)
            assert_true(df_at(p, r * stride + c, dt) == 0);
}

static void check_shape(const struct st_attention *shape, strata_dtype dt, bool widen)
{
    struct st_attention at = *shape;
    const uint64_t rows = (uint64_t)at.batch * at.seq;
    struct df_device d;
    struct reference r;
    void *qkv, *out, *dout, *dqkv, *workspace;
    float *lse;

    at.dt = dt;
    df_open(&d, &(struct df_opts){.widen_bf16 = widen});
    qkv = df_random(&d, rows * at.qkv_stride, dt, 1, 1.5, 0);
    dout = df_random(&d, rows * at.out_stride, dt, 2, 1, 0);
    out = df_alloc(&d, rows * at.out_stride, dt);
    dqkv = df_alloc(&d, rows * at.qkv_stride, dt);
    lse = df_alloc(&d, rows * at.heads, STRATA_F32);
    workspace = df_alloc(&d, d.ops->attention_workspace(&at, 2) / 4 + 1, STRATA_F32);
    r = reference_create(&at, qkv, dout);
    df_ok(d.ops->attention_forward(d.dev, &at, out, lse, qkv, workspace));
    df_ok(d.ops->attention_backward(d.dev, &at, dqkv, dout, out, lse, qkv, workspace));
    df_assert_close("attention out", out, dt, r.out, r.out_elems, df_tolerance(dt));
    df_assert_close("attention lse", lse, STRATA_F32, r.lse, r.lse_elems, df_tolerance(STRATA_F32));
    df_assert_close("attention dqkv", dqkv, dt, r.dqkv, r.qkv_elems, df_tolerance(dt));
    assert_padding(out, rows, at.out_stride, k_column(&at), dt);
    assert_padding(dqkv, rows, at.qkv_stride, v_column(&at) + (uint64_t)at.kv_heads * at.head_dim, dt);
    reference_destroy(&r);
    df_close(&d);
}

/* batch, seq, heads, kv_heads, head_dim, qkv_stride, out_stride */
static const struct st_attention shapes[] = {
    {1, 1, 1, 1, 1, 3, 1, STRATA_F32},    {2, 7, 3, 3, 5, 45, 15, STRATA_F32},   {1, 64, 2, 2, 16, 96, 32, STRATA_F32},
    {1, 67, 4, 2, 8, 67, 33, STRATA_F32}, {2, 131, 4, 1, 8, 48, 32, STRATA_F32}, {1, 200, 2, 2, 32, 192, 64, STRATA_F32},
};

static void attention_matches(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        check_shape(&shapes[i], STRATA_F32, false);
        check_shape(&shapes[i], STRATA_BF16, false);
        check_shape(&shapes[i], STRATA_BF16, true);
        check_shape(&shapes[i], STRATA_F16, false);
    }
}

/* Never seq x seq for all heads: GPT-2's largest shape costs less than one head's scores in fp32 per worker. */
static void workspace_is_small(void **state)
{
    const struct st_attention at = {.batch = 8,
                                    .seq = 1024,
                                    .heads = 25,
                                    .kv_heads = 25,
                                    .head_dim = 64,
                                    .qkv_stride = 4800,
                                    .out_stride = 1600,
                                    .dt = STRATA_BF16};
    const uint64_t one = st_device_cpu_ops.attention_workspace(&at, 1), two = st_device_cpu_ops.attention_workspace(&at, 2);

    (void)state;
    assert_true(one < 4u << 20);
    assert_true(two - one < 4u << 20);
    assert_true(two > one);
}

/* --- nano-llama at 4096 tokens: some rows and keys in fp64, the workspace between canaries --- */

#ifndef LONG /* fewer where a device is emulated */
#define LONG 4096u
#endif
#define LONG_BYTES (64u << 20)

static const struct st_attention nano_llama = {1, LONG, 4, 2, 32, 256, 128, STRATA_F32};

/* Gradients of query t of head h, and its part of those of key s. */
static void long_row(const struct reference *r, double *p, uint64_t h, uint64_t t, uint64_t s, double *dk, double *dv)
{
    const struct st_attention *at = &r->at;
    const uint64_t kv = h / (at->heads / at->kv_heads), row = t * at->out_stride + h * at->head_dim;
    const double scale = 1 / sqrt((double)at->head_dim), *q = head_row(r, r->qkv, 0, 0, h, t), *dout = r->dout + row;
    double *out = r->out + row, *dq = head_row(r, r->dqkv, 0, 0, h, t), delta;

    r->lse[h * at->seq + t] = probabilities(r, p, 0, h, t);
    memset(out, 0, at->head_dim * sizeof(double));
    memset(dq, 0, at->head_dim * sizeof(double));
    for (uint64_t i = 0; i <= t; i++)
        for (uint64_t c = 0; c < at->head_dim; c++)
            out[c] += p[i] * head_row(r, r->qkv, v_column(at), 0, kv, i)[c];
    delta = dot(dout, out, at->head_dim);
    for (uint64_t i = 0; i <= t; i++) {
        const double *k = head_row(r, r->qkv, k_column(at), 0, kv, i), *v = head_row(r, r->qkv, v_column(at), 0, kv, i);
        const double ds = p[i] * (dot(dout, v, at->head_dim) - delta) * scale;

        for (uint64_t c = 0; c < at->head_dim; c++) {
            dq[c] += ds * k[c];
            if (i == s) {
                dk[c] += ds * q[c];
                dv[c] += p[i] * dout[c];
            }
        }
    }
}

static void assert_near(const char *what, const void *got, uint64_t at, strata_dtype dt, const double *want, uint32_t elems,
                        double size)
{
    for (uint32_t i = 0; i < elems; i++)
        if (!(fabs(df_at(got, at + i, dt) - want[i]) <= df_tolerance(dt) * size))
            fail_msg("%s: element %llu is %.9g, not %.9g", what, (unsigned long long)(at + i), df_at(got, at + i, dt), want[i]);
}

/* Rows t >= s of the heads of kv head 1, and key s, which nobody else sees. */
static void check_long(struct reference *r, uint64_t s, const void *out, const float *lse, const void *dqkv)
{
    const struct st_attention *at = &r->at;
    const uint64_t d = at->head_dim, group = at->heads / at->kv_heads, kv = 1;
    const uint64_t k_at = s * at->qkv_stride + k_column(at) + kv * d, v_at = s * at->qkv_stride + v_column(at) + kv * d;
    double dk[64] = {0}, dv[64] = {0}, *p = malloc(LONG * sizeof(double));

    for (uint64_t t = s; t < LONG; t++) {
        for (uint64_t h = kv * group; h < (kv + 1) * group; h++) {
            const uint64_t q_at = t * at->qkv_stride + h * d, out_at = t * at->out_stride + h * d;

            long_row(r, p, h, t, s, dk, dv);
            assert_near("out", out, out_at, at->dt, r->out + out_at, at->head_dim, 0.5);
            assert_near("lse", lse, h * LONG + t, STRATA_F32, r->lse + h * LONG + t, 1, 10);
            assert_near("dq", dqkv, q_at, at->dt, r->dqkv + q_at, at->head_dim, 0.1);
        }
    }
    assert_near("dk", dqkv, k_at, at->dt, dk, at->head_dim, 0.1);
    assert_near("dv", dqkv, v_at, at->dt, dv, at->head_dim, 0.1);
    free(p);
}

static void check_long_dtype(strata_dtype dt, bool widen)
{
    struct st_attention at = nano_llama;
    struct df_device d;
    struct reference r = {.at = nano_llama, .qkv_elems = LONG * 256, .out_elems = LONG * 128, .lse_elems = LONG * 4};
    void *qkv, *out, *dout, *dqkv;
    unsigned char *workspace, *end;
    float *lse;
    uint64_t bytes;

    at.dt = r.at.dt = dt;
    df_open(&d, &(struct df_opts){.widen_bf16 = widen, .arena_bytes = LONG_BYTES});
    bytes = d.ops->attention_workspace(&at, 2);
    assert_true(bytes < sizeof(float) * LONG * LONG / 4); /* a quarter of one head's scores */
    qkv = df_random(&d, r.qkv_elems, dt, 1, 1.5, 0);
    dout = df_random(&d, r.out_elems, dt, 2, 1, 0);
    out = df_alloc(&d, r.out_elems, dt);
    dqkv = df_alloc(&d, r.qkv_elems, dt);
    lse = df_alloc(&d, r.lse_elems, STRATA_F32);
    workspace = df_alloc(&d, (LONG_BYTES - d.used) / sizeof(float), STRATA_F32); /* all that is left */
    end = d.ops->arena(d.dev) + LONG_BYTES;
    memset(workspace, 0xa5, (size_t)(end - workspace));
    df_ok(d.ops->attention_forward(d.dev, &at, out, lse, qkv, workspace));
    df_ok(d.ops->attention_backward(d.dev, &at, dqkv, dout, out, lse, qkv, workspace));
    for (const unsigned char *c = workspace + bytes; c < end; c++)
        if (*c != 0xa5)
            fail_msg("byte %td past the workspace was written", c - workspace - (ptrdiff_t)bytes);
    r.qkv = df_doubles(qkv, r.qkv_elems, dt);
    r.dout = df_doubles(dout, r.out_elems, dt);
    r.out = df_doubles(out, r.out_elems, dt);
    r.lse = df_doubles(lse, r.lse_elems, STRATA_F32);
    r.dqkv = df_doubles(dqkv, r.qkv_elems, dt);
    check_long(&r, LONG - 1, out, lse, dqkv);
    check_long(&r, LONG - 70, out, lse, dqkv);
    reference_destroy(&r);
    df_close(&d);
}

static void long_sequence_stays_in_its_workspace(void **state)
{
    (void)state;
    check_long_dtype(STRATA_F32, false);
    check_long_dtype(STRATA_BF16, false);
    check_long_dtype(STRATA_BF16, true);
    check_long_dtype(STRATA_F16, false);
}

/* --- the key-value cache --- */

struct cached {
    void *out, *keys, *values;
};

/* All rows in calls of `group` rows. */
static struct cached run_cached(struct df_device *d, const struct st_attention *at, const void *qkv, uint32_t group,
                                void *workspace)
{
    const uint64_t width = (uint64_t)at->kv_heads * at->head_dim, bytes = strata_dtype_bytes(at->dt);
    const struct cached c = {df_alloc(d, (uint64_t)at->seq * at->out_stride, at->dt), df_alloc(d, at->seq * width, at->dt),
                             df_alloc(d, at->seq * width, at->dt)};

    for (uint32_t first = 0; first < at->seq; first += group) {
        const uint32_t rows = at->seq - first < group ? at->seq - first : group;

        df_ok(d->ops->attention_cached(d->dev, at, (char *)c.out + (uint64_t)first * at->out_stride * bytes, c.keys, c.values,
                                       (const char *)qkv + (uint64_t)first * at->qkv_stride * bytes, first, rows, workspace));
    }
    return c;
}

/* Against fp64 within the tolerance of attention_forward; however rows are grouped, the same bits. */
static void check_cached(const struct st_attention *shape, strata_dtype dt)
{
    static const uint32_t groups[] = {1, 2, 7, 64};
    struct st_attention at = *shape;
    const uint64_t width = (uint64_t)at.kv_heads * at.head_dim;
    double *p = malloc(at.seq * sizeof(double));
    struct df_device d;
    struct reference r = {.at = at};
    struct cached whole;
    unsigned char *workspace;
    uint64_t bytes;
    void *qkv;

    at.dt = r.at.dt = dt;
    df_open(&d, &(struct df_opts){0});
    bytes = d.ops->attention_workspace(&at, 2);
    qkv = df_random(&d, (uint64_t)at.seq * at.qkv_stride, dt, 1, 1.5, 0);
    workspace = df_alloc(&d, bytes / 2 + 32, STRATA_F16);
    memset(workspace + bytes, 0xa5, 64);
    whole = run_cached(&d, &at, qkv, at.seq, workspace);
    r.qkv = df_doubles(qkv, (uint64_t)at.seq * at.qkv_stride, dt);
    r.out_elems = (uint64_t)at.seq * at.out_stride;
    r.out = malloc(r.out_elems * sizeof(double));
    r.lse = malloc((uint64_t)at.seq * at.heads * sizeof(double));
    forward(&r, p);
    df_assert_close("cached attention", whole.out, dt, r.out, r.out_elems, df_tolerance(dt));
    for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++) {
        const struct cached cut = run_cached(&d, &at, qkv, groups[g], workspace);

        assert_memory_equal(cut.out, whole.out, r.out_elems * strata_dtype_bytes(dt));
        assert_memory_equal(cut.keys, whole.keys, at.seq * width * strata_dtype_bytes(dt));
        assert_memory_equal(cut.values, whole.values, at.seq * width * strata_dtype_bytes(dt));
    }
    for (uint64_t i = 0; i < at.seq * width; i++) {
        const uint64_t row = i / width * at.qkv_stride, c = i % width;

        assert_true(df_at(whole.keys, i, dt) == r.qkv[row + k_column(&at) + c]);
        assert_true(df_at(whole.values, i, dt) == r.qkv[row + v_column(&at) + c]);
    }
    for (uint32_t i = 0; i < 64; i++)
        assert_int_equal(workspace[bytes + i], 0xa5);
    reference_destroy(&r);
    free(p);
    df_close(&d);
}

static void cached_rows_match(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct st_attention at = shapes[i];

        at.batch = 1;
        for (strata_dtype dt = STRATA_F32; dt <= STRATA_F16; dt++)
            check_cached(&at, dt);
    }
}

/* What generation computes is what training would, to the precision of the dtype. */
static void cached_equals_forward(void **state)
{
    (void)state;
    for (strata_dtype dt = STRATA_F32; dt <= STRATA_F16; dt++) {
        struct st_attention at = {1, 131, 4, 2, 24, 192, 96, dt};
        const uint64_t out_elems = (uint64_t)at.seq * at.out_stride;
        struct df_device d;
        struct cached c;
        void *qkv, *out, *workspace;
        double *want;

        df_open(&d, &(struct df_opts){0});
        qkv = df_random(&d, (uint64_t)at.seq * at.qkv_stride, dt, 1, 1.5, 0);
        out = df_alloc(&d, out_elems, dt);
        workspace = df_alloc(&d, d.ops->attention_workspace(&at, 2) / 4 + 1, STRATA_F32);
        df_ok(d.ops->attention_forward(d.dev, &at, out, df_alloc(&d, at.seq * at.heads, STRATA_F32), qkv, workspace));
        c = run_cached(&d, &at, qkv, 5, workspace);
        want = df_doubles(out, out_elems, dt);
        df_assert_close("cached against forward", c.out, dt, want, out_elems, df_tolerance(dt));
        free(want);
        df_close(&d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_matches),
        cmocka_unit_test(workspace_is_small),
        cmocka_unit_test(cached_rows_match),
        cmocka_unit_test(cached_equals_forward),
        cmocka_unit_test(long_sequence_stays_in_its_workspace),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

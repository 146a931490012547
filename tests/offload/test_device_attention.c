/* Causal attention against an fp64 reference whose own gradient is checked by central differences: one and several
 * blocks, grouped heads, padded rows, fp32, bf16, widened bf16 and fp16.  Windows, documents, scales, soft-capping.  A long
 * sequence, a key-value cache. */
#include "tests/common/sample.h"
#include "tests/common/test.h"
#include "tests/offload/attention_reference.h"
#include "tests/offload/device_fixture.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Both directions of the reference, some elements of whose gradient are checked against differences of the forward. */
static struct attention_reference reference_create(const struct st_attention *at, const void *qkv, const void *dout)
{
    struct attention_reference r = ar_create(at, qkv, dout);

    ar_forward(&r);
    ar_backward(&r);
    for (uint32_t n = 0; n < 12; n++)
        ar_assert_slope(&r, df_bits(99, n) % r.qkv_elems);
    ar_forward(&r); /* as it was before the last difference */
    return r;
}

/* Columns past the last head keep what they held. */
static void assert_padding(const void *p, uint64_t rows, uint32_t stride, uint64_t used, strata_dtype dt)
{
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = used; c < stride; c++)
            assert_true(df_at(p, r * stride + c, dt) == 0);
}

/* What a family may ask of attention. */
struct option {
    uint32_t window;
    float scale, softcap;
    bool documents, sinks;
};

static const struct option plain = {0};
static const struct option options[] = {
    {.window = 1},
    {.window = 7},
    {.window = 64},
    {.window = 70},
    {.window = 100000},
    {.scale = 0.3f},
    {.softcap = 2.0f},
    {.documents = true},
    {.window = 20, .scale = 0.2f, .softcap = 3.0f, .documents = true},
    {.sinks = true},
    {.window = 20, .documents = true, .sinks = true},
};

static void set_option(struct df_device *d, struct st_attention *at, const struct option *o)
{
    at->window = o->window;
    at->scale = o->scale;
    at->softcap = o->softcap;
    if (o->documents) {
        int32_t *positions = df_alloc(d, (uint64_t)at->batch * at->seq, STRATA_F32);

        ar_documents(positions, at->batch, at->seq, 5);
        at->positions = positions;
    }
    if (o->sinks)
        at->sinks = df_random(d, at->heads, at->dt, 6, 3, 1);
}

/* Added to what is there. */
static void check_sinks(struct df_device *d, struct attention_reference *r, const void *dout, const void *out, const float *lse)
{
    float *dsinks = df_random(d, r->at.heads, STRATA_F32, 7, 1, 0);
    double *want = df_doubles(dsinks, r->at.heads, STRATA_F32);

    for (uint32_t h = 0; h < r->at.heads; h++)
        want[h] += ar_sink_slope(r, h);
    df_ok(d->tensors->attention_sinks_backward(d->dev, &r->at, dsinks, dout, out, lse));
    df_assert_close("attention dsinks", dsinks, STRATA_F32, want, r->at.heads, df_tolerance(r->at.dt));
    free(want);
}

static void check_shape(const struct st_attention *shape, strata_dtype dt, bool widen, const struct option *o)
{
    struct st_attention at = *shape;
    const uint64_t rows = (uint64_t)at.batch * at.seq;
    struct df_device d;
    struct attention_reference r;
    void *qkv, *out, *dout, *dqkv, *workspace;
    float *lse;

    at.dt = dt;
    df_open(&d, &(struct df_opts){.widen_bf16 = widen});
    set_option(&d, &at, o);
    qkv = df_random(&d, rows * at.qkv_stride, dt, 1, 1.5, 0);
    dout = df_random(&d, rows * at.out_stride, dt, 2, 1, 0);
    out = df_alloc(&d, rows * at.out_stride, dt);
    dqkv = df_alloc(&d, rows * at.qkv_stride, dt);
    lse = df_alloc(&d, rows * at.heads, STRATA_F32);
    workspace = df_alloc(&d, d.tensors->attention_workspace(&at, 2) / 4 + 1, STRATA_F32);
    r = reference_create(&at, qkv, dout);
    df_ok(d.tensors->attention_forward(d.dev, &at, out, lse, qkv, workspace));
    df_ok(d.tensors->attention_backward(d.dev, &at, dqkv, dout, out, lse, qkv, workspace));
    df_assert_close("attention out", out, dt, r.out, r.out_elems, df_tolerance(dt));
    df_assert_close("attention lse", lse, STRATA_F32, r.lse, r.lse_elems, df_tolerance(STRATA_F32));
    df_assert_close("attention dqkv", dqkv, dt, r.dqkv, r.qkv_elems, df_tolerance(dt));
    if (at.sinks != NULL)
        check_sinks(&d, &r, dout, out, lse);
    assert_padding(out, rows, at.out_stride, ar_key_column(&at), dt);
    assert_padding(dqkv, rows, at.qkv_stride, ar_end_column(&at), dt);
    ar_destroy(&r);
    df_close(&d);
}

#define SHAPE(b, s, h, kv, d, qkv, out)                                                                                          \
    {                                                                                                                            \
        .batch = b, .seq = s, .heads = h, .kv_heads = kv, .head_dim = d, .qkv_stride = qkv, .out_stride = out, .dt = STRATA_F32  \
    }

static const struct st_attention shapes[] = {
    SHAPE(1, 1, 1, 1, 1, 3, 1),    SHAPE(2, 7, 3, 3, 5, 45, 15),   SHAPE(1, 64, 2, 2, 16, 96, 32),
    SHAPE(1, 67, 4, 2, 8, 67, 33), SHAPE(2, 131, 4, 1, 8, 48, 32), SHAPE(1, 200, 2, 2, 32, 192, 64),
};

/* Of the two long shapes a sample has one in each dtype. */
TEST(attention_matches)
{
    static const struct {
        strata_dtype dt;
        bool widen;
    } forms[] = {{STRATA_F32, false}, {STRATA_BF16, false}, {STRATA_BF16, true}, {STRATA_F16, false}};

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (size_t f = 0; f < sizeof(forms) / sizeof(forms[0]); f++)
            if (shapes[i].seq < 100 || sample_takes(i, 2, f))
                check_shape(&shapes[i], forms[f].dt, forms[f].widen, &plain);
}

/* Windows and documents that begin anywhere in a block, and borders of blocks; head sizes of the families. */
TEST(options_match)
{
    static const struct st_attention several = SHAPE(2, 135, 2, 1, 24, 100, 50);
    static const uint32_t dims[] = {64, 80, 96, 128, 256};

    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        for (strata_dtype dt = STRATA_F32; dt <= STRATA_F16; dt++)
            if (sample_takes(i, 3, dt))
                check_shape(&several, dt, i % 2 == 0, &options[i]);
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        const struct st_attention wide = SHAPE(1, 70, 2, 1, dims[i], 4 * dims[i], 2 * dims[i]);

        check_shape(&wide, i % 2 == 0 ? STRATA_F32 : STRATA_BF16, false, &options[8]);
    }
}

/* --- what transformers computes: tests/golden/attention.txt, made by tools/make_golden_attention.py --- */

static double *read_doubles(FILE *f, uint64_t elems)
{
    double *x = malloc(elems * sizeof(*x));

    assert_non_null(x);
    for (uint64_t i = 0; i < elems; i++)
        assert_int_equal(fscanf(f, "%lf", &x[i]), 1);
    return x;
}

/* The next line's numbers, in the arena. */
static void *read_tensor(struct df_device *d, FILE *f, uint64_t elems, strata_dtype dt)
{
    double *x = read_doubles(f, elems);
    void *t = df_alloc(d, elems, dt);

    for (uint64_t i = 0; i < elems; i++)
        df_set(t, i, dt, x[i]);
    free(x);
    return t;
}

static void check_golden_case(FILE *f, struct st_attention at)
{
    const uint64_t rows = (uint64_t)at.batch * at.seq;
    struct df_device d;
    int32_t *positions;
    void *qkv, *dout, *out, *dqkv, *workspace;
    double *want;
    float *lse;

    at.out_stride = at.heads * at.head_dim;
    at.qkv_stride = at.out_stride + 2 * at.kv_heads * at.head_dim;
    at.dt = STRATA_F32;
    df_open(&d, &(struct df_opts){0});
    positions = df_alloc(&d, rows, STRATA_F32);
    for (uint64_t i = 0; i < rows; i++)
        assert_int_equal(fscanf(f, "%d", &positions[i]), 1);
    at.positions = positions;
    qkv = read_tensor(&d, f, rows * at.qkv_stride, at.dt);
    dout = read_tensor(&d, f, rows * at.out_stride, at.dt);
    out = df_alloc(&d, rows * at.out_stride, at.dt);
    dqkv = df_alloc(&d, rows * at.qkv_stride, at.dt);
    lse = df_alloc(&d, rows * at.heads, STRATA_F32);
    workspace = df_alloc(&d, d.tensors->attention_workspace(&at, 2) / 4 + 1, STRATA_F32);
    df_ok(d.tensors->attention_forward(d.dev, &at, out, lse, qkv, workspace));
    df_ok(d.tensors->attention_backward(d.dev, &at, dqkv, dout, out, lse, qkv, workspace));
    want = read_doubles(f, rows * at.out_stride);
    df_assert_close("transformers' out", out, at.dt, want, rows * at.out_stride, 1e-6);
    free(want);
    want = read_doubles(f, rows * at.qkv_stride);
    df_assert_close("transformers' gradient", dqkv, at.dt, want, rows * at.qkv_stride, 1e-6);
    free(want);
    df_close(&d);
}

TEST(transformers_agrees)
{
    struct st_attention at = {0};
    uint32_t cases = 0;
    FILE *f = fopen("tests/golden/attention.txt", "r");

    assert_non_null(f);
    for (; fscanf(f, "%u %u %u %u %u %u %f %f", &at.batch, &at.seq, &at.heads, &at.kv_heads, &at.head_dim, &at.window, &at.scale,
                  &at.softcap) == 8;
         cases++)
        check_golden_case(f, at);
    assert_int_equal(cases, 4);
    fclose(f);
}

struct results {
    void *out, *dqkv;
    float *lse;
    uint64_t out_bytes, qkv_bytes, lse_bytes;
};

static struct results run_both(struct df_device *d, const struct st_attention *at, const void *qkv, const void *dout)
{
    const uint64_t rows = (uint64_t)at->batch * at->seq, width = strata_dtype_bytes(at->dt);
    struct results r = {.out_bytes = rows * at->out_stride * width,
                        .qkv_bytes = rows * at->qkv_stride * width,
                        .lse_bytes = rows * at->heads * sizeof(float)};
    void *workspace = df_alloc(d, d->tensors->attention_workspace(at, 2) / 4 + 1, STRATA_F32);

    r.out = df_alloc(d, rows * at->out_stride, at->dt);
    r.dqkv = df_alloc(d, rows * at->qkv_stride, at->dt);
    r.lse = df_alloc(d, rows * at->heads, STRATA_F32);
    df_ok(d->tensors->attention_forward(d->dev, at, r.out, r.lse, qkv, workspace));
    df_ok(d->tensors->attention_backward(d->dev, at, r.dqkv, dout, r.out, r.lse, qkv, workspace));
    return r;
}

/* A window over everything, and documents that are whole sequences, are what attention is without them: bit by bit. */
TEST(what_bounds_nothing_changes_no_bits)
{
    for (strata_dtype dt = STRATA_F32; dt <= STRATA_F16; dt++) {
        struct st_attention at = SHAPE(2, 135, 2, 1, 24, 100, 50);
        struct df_device d;
        struct results want, got;
        int32_t *positions;
        void *qkv, *dout;

        at.dt = dt;
        df_open(&d, &(struct df_opts){0});
        qkv = df_random(&d, (uint64_t)at.batch * at.seq * at.qkv_stride, dt, 1, 1.5, 0);
        dout = df_random(&d, (uint64_t)at.batch * at.seq * at.out_stride, dt, 2, 1, 0);
        positions = df_alloc(&d, (uint64_t)at.batch * at.seq, STRATA_F32);
        for (uint32_t r = 0; r < at.batch * at.seq; r++)
            positions[r] = (int32_t)(r % at.seq);
        want = run_both(&d, &at, qkv, dout);
        at.window = at.seq;
        at.positions = positions;
        got = run_both(&d, &at, qkv, dout);
        assert_memory_equal(got.out, want.out, want.out_bytes);
        assert_memory_equal(got.lse, want.lse, want.lse_bytes);
        assert_memory_equal(got.dqkv, want.dqkv, want.qkv_bytes);
        df_close(&d);
    }
}

/* Rows of far tiles hold NaNs, which would be seen by whoever multiplied by them, even by 0. */
static void check_skipped(strata_dtype dt, bool documents)
{
    const uint32_t seq = 320, border = 128;
    struct st_attention at = SHAPE(1, seq, 1, 1, 32, 96, 32);
    struct df_device d;
    struct results clean, spoiled;
    int32_t *positions;
    void *qkv, *dout;

    at.dt = dt;
    df_open(&d, &(struct df_opts){0});
    qkv = df_random(&d, (uint64_t)seq * at.qkv_stride, dt, 1, 1.5, 0);
    dout = df_random(&d, (uint64_t)seq * at.out_stride, dt, 2, 1, 0);
    positions = df_alloc(&d, seq, STRATA_F32);
    for (uint32_t t = 0; t < seq; t++)
        positions[t] = (int32_t)(t < border ? t : t - border);
    at.positions = documents ? positions : NULL;
    at.window = documents ? 0 : 32;
    clean = run_both(&d, &at, qkv, dout);
    for (uint64_t i = 0; i < (documents ? border : border / 2) * (uint64_t)at.qkv_stride; i++)
        df_set(qkv, i, dt, (double)NAN);
    spoiled = run_both(&d, &at, qkv, dout);
    for (uint64_t row = border; row < seq; row++) {
        const uint64_t width = strata_dtype_bytes(dt), out = row * at.out_stride * width, q = row * at.qkv_stride * width;

        assert_memory_equal((char *)spoiled.out + out, (char *)clean.out + out, at.out_stride * width);
        assert_memory_equal((char *)spoiled.dqkv + q, (char *)clean.dqkv + q, at.heads * at.head_dim * width);
        if (documents)
            assert_memory_equal((char *)spoiled.dqkv + q, (char *)clean.dqkv + q, at.qkv_stride * width);
    }
    df_close(&d);
}

TEST(masked_tiles_are_skipped)
{
    for (strata_dtype dt = STRATA_F32; dt <= STRATA_F16; dt++) {
        if (sample_takes(0, 3, dt))
            check_skipped(dt, false);
        if (sample_takes(1, 3, dt))
            check_skipped(dt, true);
    }
}

/* Never seq x seq for all heads: GPT-2's largest shape costs less than one head's scores in fp32 per worker. */
TEST(workspace_is_small)
{
    const struct st_attention at = {.batch = 8,
                                    .seq = 1024,
                                    .heads = 25,
                                    .kv_heads = 25,
                                    .head_dim = 64,
                                    .qkv_stride = 4800,
                                    .out_stride = 1600,
                                    .dt = STRATA_BF16};
    const uint64_t one = st_tensor_cpu_ops.attention_workspace(&at, 1), two = st_tensor_cpu_ops.attention_workspace(&at, 2);

    assert_true(one < 4u << 20);
    assert_true(two - one < 4u << 20);
    assert_true(two > one);
}

/* --- nano-llama at 4096 tokens: some rows and keys in fp64, the workspace between canaries --- */

#ifndef LONG /* fewer where a device is emulated */
#define LONG 4096u
#endif
#define LONG_BYTES (64u << 20)

static const struct st_attention nano_llama = SHAPE(1, LONG, 4, 2, 32, 256, 128);

static void assert_near(const char *what, const void *got, uint64_t at, strata_dtype dt, const double *want, uint32_t elems,
                        double size)
{
    for (uint32_t i = 0; i < elems; i++)
        if (!(fabs(df_at(got, at + i, dt) - want[i]) <= df_tolerance(dt) * size))
            fail_msg("%s: element %llu is %.9g, not %.9g", what, (unsigned long long)(at + i), df_at(got, at + i, dt), want[i]);
}

/* Rows t >= s of the heads of kv head 1, and key s, which nobody else sees: of the reference's gradient that much is whole. */
static void check_long(struct attention_reference *r, uint64_t s, const void *out, const float *lse, const void *dqkv)
{
    const struct st_attention *at = &r->at;
    const uint64_t d = at->head_dim, group = at->heads / at->kv_heads, kv = 1;
    const uint64_t k_at = s * at->qkv_stride + ar_key_column(at) + kv * d,
                   v_at = s * at->qkv_stride + ar_value_column(at) + kv * d;

    memset(r->dqkv, 0, r->qkv_elems * sizeof(*r->dqkv));
    for (uint64_t t = s; t < LONG; t++) {
        for (uint64_t h = kv * group; h < (kv + 1) * group; h++) {
            const uint64_t q_at = t * at->qkv_stride + h * d, out_at = t * at->out_stride + h * d;

            ar_forward_row(r, 0, h, t);
            ar_backward_row(r, 0, h, t);
            assert_near("out", out, out_at, at->dt, r->out + out_at, at->head_dim, 0.5);
            assert_near("lse", lse, h * LONG + t, STRATA_F32, r->lse + h * LONG + t, 1, 10);
            assert_near("dq", dqkv, q_at, at->dt, r->dqkv + q_at, at->head_dim, 0.1);
        }
    }
    assert_near("dk", dqkv, k_at, at->dt, r->dqkv + k_at, at->head_dim, 0.1);
    assert_near("dv", dqkv, v_at, at->dt, r->dqkv + v_at, at->head_dim, 0.1);
}

static void check_long_dtype(strata_dtype dt, bool widen)
{
    struct st_attention at = nano_llama;
    struct df_device d;
    struct attention_reference r;
    void *qkv, *out, *dout, *dqkv;
    unsigned char *workspace, *end;
    float *lse;
    uint64_t bytes;

    at.dt = dt;
    df_open(&d, &(struct df_opts){.widen_bf16 = widen, .arena_bytes = LONG_BYTES});
    bytes = d.tensors->attention_workspace(&at, 2);
    assert_true(bytes < sizeof(float) * LONG * LONG / 4); /* a quarter of one head's scores */
    qkv = df_random(&d, LONG * at.qkv_stride, dt, 1, 1.5, 0);
    dout = df_random(&d, LONG * at.out_stride, dt, 2, 1, 0);
    out = df_alloc(&d, LONG * at.out_stride, dt);
    dqkv = df_alloc(&d, LONG * at.qkv_stride, dt);
    lse = df_alloc(&d, LONG * at.heads, STRATA_F32);
    workspace = df_alloc(&d, (LONG_BYTES - d.used) / sizeof(float), STRATA_F32); /* all that is left */
    end = d.ops->arena(d.dev) + LONG_BYTES;
    memset(workspace, 0xa5, (size_t)(end - workspace));
    df_ok(d.tensors->attention_forward(d.dev, &at, out, lse, qkv, workspace));
    df_ok(d.tensors->attention_backward(d.dev, &at, dqkv, dout, out, lse, qkv, workspace));
    for (const unsigned char *c = workspace + bytes; c < end; c++)
        if (*c != 0xa5)
            fail_msg("byte %td past the workspace was written", c - workspace - (ptrdiff_t)bytes);
    r = ar_create(&at, qkv, dout);
    check_long(&r, LONG - 1, out, lse, dqkv);
    check_long(&r, LONG - 70, out, lse, dqkv);
    ar_destroy(&r);
    df_close(&d);
}

TEST(long_sequence_stays_in_its_workspace)
{
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

        df_ok(d->tensors->attention_cached(d->dev, at, (char *)c.out + (uint64_t)first * at->out_stride * bytes, c.keys, c.values,
                                           (const char *)qkv + (uint64_t)first * at->qkv_stride * bytes, first, rows, workspace));
    }
    return c;
}

/* Against fp64 within the tolerance of attention_forward; however rows are grouped, the same bits. */
static void check_cached(const struct st_attention *shape, strata_dtype dt, const struct option *o)
{
    static const uint32_t groups[] = {1, 2, 7, 64};
    struct st_attention at = *shape;
    const uint64_t width = (uint64_t)at.kv_heads * at.head_dim;
    struct df_device d;
    struct attention_reference r;
    struct cached whole;
    unsigned char *workspace;
    uint64_t bytes;
    void *qkv;

    at.dt = dt;
    df_open(&d, &(struct df_opts){0});
    set_option(&d, &at, o);
    bytes = d.tensors->attention_workspace(&at, 2);
    qkv = df_random(&d, (uint64_t)at.seq * at.qkv_stride, dt, 1, 1.5, 0);
    workspace = df_alloc(&d, bytes / 2 + 32, STRATA_F16);
    memset(workspace + bytes, 0xa5, 64);
    whole = run_cached(&d, &at, qkv, at.seq, workspace);
    r = ar_create(&at, qkv, NULL);
    ar_forward(&r);
    df_assert_close("cached attention", whole.out, dt, r.out, r.out_elems, df_tolerance(dt));
    for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++) {
        const struct cached cut = run_cached(&d, &at, qkv, groups[g], workspace);

        assert_memory_equal(cut.out, whole.out, r.out_elems * strata_dtype_bytes(dt));
        assert_memory_equal(cut.keys, whole.keys, at.seq * width * strata_dtype_bytes(dt));
        assert_memory_equal(cut.values, whole.values, at.seq * width * strata_dtype_bytes(dt));
    }
    for (uint64_t i = 0; i < at.seq * width; i++) {
        const uint64_t row = i / width * at.qkv_stride, c = i % width;

        assert_true(df_at(whole.keys, i, dt) == r.qkv[row + ar_key_column(&at) + c]);
        assert_true(df_at(whole.values, i, dt) == r.qkv[row + ar_value_column(&at) + c]);
    }
    for (uint32_t i = 0; i < 64; i++)
        assert_int_equal(workspace[bytes + i], 0xa5);
    ar_destroy(&r);
    df_close(&d);
}

TEST(cached_rows_match)
{
    static const struct option bounded[] = {{.window = 7}, {.window = 64, .softcap = 2.0f}, {.scale = 0.2f, .softcap = 3.0f}};

    for (size_t i = 0; i < sizeof(bounded) / sizeof(bounded[0]); i++)
        check_cached(&shapes[3], (strata_dtype)(STRATA_F32 + i), &bounded[i]);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct st_attention at = shapes[i];

        at.batch = 1;
        for (strata_dtype dt = STRATA_F32; dt <= STRATA_F16; dt++)
            if (sample_takes(i, 3, dt))
                check_cached(&at, dt, &plain);
    }
}

/* What generation computes is what training would, to the precision of the dtype. */
TEST(cached_equals_forward)
{
    for (strata_dtype dt = STRATA_F32; dt <= STRATA_F16; dt++) {
        struct st_attention at = SHAPE(1, 131, 4, 2, 24, 192, 96);
        const struct option window = {.window = 50, .scale = 0.25f, .softcap = 4.0f};
        const uint64_t out_elems = (uint64_t)at.seq * at.out_stride;
        struct df_device d;
        struct cached c;
        void *qkv, *out, *workspace;
        double *want;

        at.dt = dt;
        df_open(&d, &(struct df_opts){0});
        set_option(&d, &at, dt == STRATA_BF16 ? &plain : &window);
        qkv = df_random(&d, (uint64_t)at.seq * at.qkv_stride, dt, 1, 1.5, 0);
        out = df_alloc(&d, out_elems, dt);
        workspace = df_alloc(&d, d.tensors->attention_workspace(&at, 2) / 4 + 1, STRATA_F32);
        df_ok(d.tensors->attention_forward(d.dev, &at, out, df_alloc(&d, at.seq * at.heads, STRATA_F32), qkv, workspace));
        c = run_cached(&d, &at, qkv, 5, workspace);
        want = df_doubles(out, out_elems, dt);
        df_assert_close("cached against forward", c.out, dt, want, out_elems, df_tolerance(dt));
        free(want);
        df_close(&d);
    }
}

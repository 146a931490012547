/* The decoder's CUDA ops against the scalar ops of kernels/ops.h: odd and large shapes, every dtype, aligned and not, in place
 * where offload/device.h allows it; bits that stay from launch to launch, and nothing written beyond the outputs. */
#include "kernels/cuda/ops.h"
#include "kernels/ops.h"
#include "kernels/scalar.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define IN_COUNT  4u
#define OUT_COUNT 3u
#define GUARD     64u /* bytes before and after each output that must stay */
#define LAUNCHES  2u  /* the emulator orders blocks and threads differently each time */
#define SLACK     64u /* elements of a buffer beyond 2 rows cols + 8 cols */
#define EPS       1e-5f

enum kind { NOT_USED, OWN_DTYPE, SINGLE, DOUBLE };

/* What a case writes, and how far it may be off: ulps of the output's dtype, and an absolute part for sums and cancellation. */
struct output {
    unsigned char *start; /* the first element */
    enum kind kind;
    uint64_t elems;
    double ulps, slack;
};

struct call {
    cudaStream_t stream;
    bool device; /* which of the two is to run, and where the pointers below point */
    uint32_t rows, cols;
    strata_dtype dt;
    const void *x[IN_COUNT];  /* dt, numbers in -2 .. 2 */
    const float *f[IN_COUNT]; /* f32, the same */
    const float *stats;       /* [rows][3] positive */
    const int32_t *tokens;    /* [rows], -1 .. rows + 3 */
    struct output out[OUT_COUNT];
};

typedef void case_fn(struct call *c);

/* --- cases: each runs one op on the device or by the scalar table --- */

static void ok(cudaError_t err)
{
    assert_int_equal(err, cudaSuccess);
}

/* Output 0 is aligned to the call's dtype, 1 to fp32, 2 to doubles. */
static void *out(struct call *c, uint32_t which, enum kind kind, uint64_t elems, double ulps, double slack)
{
    c->out[which].kind = kind;
    c->out[which].elems = elems;
    c->out[which].ulps = ulps;
    c->out[which].slack = slack;
    return c->out[which].start;
}

/* An output that begins as a copy of an input of the call's dtype. */
static void *in_place(struct call *c, uint32_t which, const void *from, uint64_t elems, double ulps, double slack)
{
    void *const to = out(c, which, OWN_DTYPE, elems, ulps, slack);

    if (c->device)
        ok(cudaMemcpyAsync(to, from, elems * strata_dtype_bytes(c->dt), cudaMemcpyDeviceToDevice, c->stream));
    else
        memcpy(to, from, elems * strata_dtype_bytes(c->dt));
    return to;
}

/* Rounding errors of a sum of `terms` products of numbers up to 2: they grow with the root. */
static double sum_slack(uint32_t terms)
{
    return 2e-6 * sqrt(terms);
}

static void run_gelu(struct call *c)
{
    const uint64_t elems = (uint64_t)c->rows * c->cols;
    void *const y = out(c, 0, OWN_DTYPE, elems, c->dt == STRATA_F32 ? 16 : 1, 1e-7);
    void *const dx = out(c, 1, OWN_DTYPE, elems, c->dt == STRATA_F32 ? 16 : 1, 1e-6);
    void *const over_dy = in_place(c, 2, c->x[1], elems, c->dt == STRATA_F32 ? 16 : 1, 1e-6);

    if (!c->device) {
        st_ops_scalar.gelu_forward(y, c->x[0], elems, c->dt);
        st_ops_scalar.gelu_backward(dx, c->x[1], c->x[0], elems, c->dt);
        st_ops_scalar.gelu_backward(over_dy, over_dy, c->x[0], elems, c->dt);
        return;
    }
    ok(st_cuda_gelu_forward(c->stream, y, c->x[0], elems, c->dt));
    ok(st_cuda_gelu_backward(c->stream, dx, c->x[1], c->x[0], elems, c->dt));
    ok(st_cuda_gelu_backward(c->stream, over_dy, over_dy, c->x[0], elems, c->dt));
}

static void run_add(struct call *c)
{
    const uint64_t elems = (uint64_t)c->rows * c->cols;
    void *const y = out(c, 0, OWN_DTYPE, elems, 0, 0);
    void *const over_a = in_place(c, 1, c->x[0], elems, 0, 0), *const over_b = in_place(c, 2, c->x[1], elems, 0, 0);

    if (!c->device) {
        st_ops_scalar.add(y, c->x[0], c->x[1], elems, c->dt);
        st_ops_scalar.add(over_a, over_a, c->x[1], elems, c->dt);
        st_ops_scalar.add(over_b, c->x[0], over_b, elems, c->dt);
        return;
    }
    ok(st_cuda_add(c->stream, y, c->x[0], c->x[1], elems, c->dt));
    ok(st_cuda_add(c->stream, over_a, over_a, c->x[1], elems, c->dt));
    ok(st_cuda_add(c->stream, over_b, c->x[0], over_b, elems, c->dt));
}

static void run_swiglu(struct call *c)
{
    const uint64_t elems = (uint64_t)c->rows * c->cols;
    const double ulps = c->dt == STRATA_F32 ? 16 : 1;
    void *const y = out(c, 0, OWN_DTYPE, elems, ulps, 1e-7), *const d = out(c, 1, OWN_DTYPE, 2 * elems, ulps, 1e-6);
    void *const over = in_place(c, 2, c->x[0], 2 * elems, ulps, 1e-6);

    if (!c->device) {
        st_ops_scalar.swiglu_forward(y, c->x[0], c->rows, c->cols, c->dt);
        st_ops_scalar.swiglu_backward(d, c->x[1], c->x[0], c->rows, c->cols, c->dt);
        st_ops_scalar.swiglu_backward(over, c->x[1], over, c->rows, c->cols, c->dt);
        return;
    }
    ok(st_cuda_swiglu_forward(c->stream, y, c->x[0], c->rows, c->cols, c->dt));
    ok(st_cuda_swiglu_backward(c->stream, d, c->x[1], c->x[0], c->rows, c->cols, c->dt));
    ok(st_cuda_swiglu_backward(c->stream, over, c->x[1], over, c->rows, c->cols, c->dt));
}

/* Up to three heads at the start of rows that may be longer; positions 1, 2, 3, 1, ... */
static void run_rope(struct call *c)
{
    const uint32_t heads = c->cols < 6 ? 1 : 3, head_dim = c->cols / heads / 2 * 2;
    const uint64_t elems = (uint64_t)c->rows * c->cols;

    for (uint32_t i = 0; i < 2; i++) {
        void *const x = in_place(c, i, c->x[0], elems, 1, 8e-6);

        if (c->device)
            ok(st_cuda_rope(c->stream, x, c->cols, c->rows, 3, 1, heads, head_dim, c->f[1], i == 1, c->dt));
        else
            st_ops_scalar.rope_rows(x, c->cols, 0, c->rows, 3, 1, heads, head_dim, c->f[1], i == 1, c->dt);
    }
}

static void run_layernorm_forward(struct call *c)
{
    void *const y = out(c, 0, OWN_DTYPE, (uint64_t)c->rows * c->cols, 2, 4e-6);
    float *const stats = out(c, 1, SINGLE, 2 * (uint64_t)c->rows, 16, 1e-6);

    if (c->device)
        ok(st_cuda_layernorm_forward(c->stream, y, stats, c->x[0], c->x[1], c->x[2], c->rows, c->cols, EPS, c->dt));
    else
        st_ops_scalar.norm_forward(y, stats, c->x[0], c->x[1], c->x[2], c->rows, c->cols, EPS, c->dt);
}

static void run_rmsnorm_forward(struct call *c)
{
    void *const y = out(c, 0, OWN_DTYPE, (uint64_t)c->rows * c->cols, 2, 4e-6);
    float *const stats = out(c, 1, SINGLE, c->rows, 16, 0);

    if (c->device)
        ok(st_cuda_rmsnorm_forward(c->stream, y, stats, c->x[0], c->x[1], c->rows, c->cols, EPS, c->dt));
    else
        st_ops_scalar.rms_forward(y, stats, c->x[0], c->x[1], c->rows, c->cols, EPS, c->dt);
}

/* Statistics of positive numbers: any will do here. */
static void norm_backward(struct call *c, void *dx, const void *dy, strata_dtype dy_dt, const void *residual, float *dweight,
                          float *dbias)
{
    if (c->device) {
        ok(st_cuda_layernorm_backward(c->stream, dx, dweight, dbias, dy, dy_dt, c->x[0], c->stats, c->x[1], residual, c->rows,
                                      c->cols, c->dt));
        return;
    }
    st_ops_scalar.norm_backward_columns(dweight, dbias, dy, dy_dt, c->x[0], c->cols, c->stats, c->rows, c->cols, c->dt);
    st_ops_scalar.norm_backward_rows(dx, dy, dy_dt, c->x[0], c->stats, c->x[1], residual, c->rows, c->cols, c->dt);
}

static void run_layernorm_backward_frozen(struct call *c)
{
    norm_backward(c, out(c, 0, OWN_DTYPE, (uint64_t)c->rows * c->cols, 2, 2e-5), c->x[3], c->dt, NULL, NULL, NULL);
}

/* dx is the residual's memory. */
static void run_layernorm_backward_frozen_fp32(struct call *c)
{
    void *const dx = in_place(c, 0, c->x[2], (uint64_t)c->rows * c->cols, 2, 2e-5);

    norm_backward(c, dx, c->f[3], STRATA_F32, dx, NULL, NULL);
}

static void run_layernorm_backward(struct call *c)
{
    void *const dx = out(c, 0, OWN_DTYPE, (uint64_t)c->rows * c->cols, 2, 2e-5);
    float *const dweight = out(c, 1, SINGLE, c->cols, 1, 2 * sum_slack(c->rows));
    float *const dbias = out(c, 2, SINGLE, c->cols, 1, sum_slack(c->rows));

    norm_backward(c, dx, c->x[3], c->dt, NULL, dweight, dbias);
}

/* dx is the residual's memory; the gradient comes as fp32. */
static void run_layernorm_backward_residual(struct call *c)
{
    void *const dx = in_place(c, 0, c->x[2], (uint64_t)c->rows * c->cols, 2, 2e-5);
    float *const dweight = out(c, 1, SINGLE, c->cols, 1, 2 * sum_slack(c->rows));

    norm_backward(c, dx, c->f[3], STRATA_F32, dx, dweight, NULL);
}

/* dx is dy's memory. */
static void run_layernorm_backward_over_dy(struct call *c)
{
    void *const dx = in_place(c, 0, c->x[3], (uint64_t)c->rows * c->cols, 2, 2e-5);
    float *const dbias = out(c, 1, SINGLE, c->cols, 1, sum_slack(c->rows));

    norm_backward(c, dx, dx, c->dt, c->x[2], NULL, dbias);
}

static void rms_backward(struct call *c, void *dx, const void *dy, strata_dtype dy_dt, const void *residual, float *dweight)
{
    if (c->device) {
        ok(st_cuda_rmsnorm_backward(c->stream, dx, dweight, dy, dy_dt, c->x[0], c->stats, c->x[1], residual, c->rows, c->cols,
                                    c->dt));
        return;
    }
    if (dweight != NULL)
        st_ops_scalar.rms_backward_columns(dweight, dy, dy_dt, c->x[0], c->cols, c->stats, c->rows, c->cols, c->dt);
    st_ops_scalar.rms_backward_rows(dx, dy, dy_dt, c->x[0], c->stats, c->x[1], residual, c->rows, c->cols, c->dt);
}

static void run_rmsnorm_backward(struct call *c)
{
    void *const dx = out(c, 0, OWN_DTYPE, (uint64_t)c->rows * c->cols, 2, 2e-5);
    float *const dweight = out(c, 1, SINGLE, c->cols, 1, 2 * sum_slack(c->rows));

    rms_backward(c, dx, c->f[3], STRATA_F32, c->x[2], dweight);
}

/* dx is dy's memory. */
static void run_rmsnorm_backward_over_dy(struct call *c)
{
    void *const dx = in_place(c, 0, c->x[3], (uint64_t)c->rows * c->cols, 2, 2e-5);
    float *const dweight = out(c, 1, SINGLE, c->cols, 1, 2 * sum_slack(c->rows));

    rms_backward(c, dx, dx, c->dt, NULL, dweight);
}

static void run_rmsnorm_backward_frozen(struct call *c)
{
    void *const dx = in_place(c, 0, c->x[2], (uint64_t)c->rows * c->cols, 2, 2e-5);

    rms_backward(c, dx, c->x[3], c->dt, dx, NULL);
}

static void run_bias_backward(struct call *c)
{
    float *const dbias = out(c, 1, SINGLE, c->cols, 1, sum_slack(c->rows));

    if (c->device)
        ok(st_cuda_bias_backward(c->stream, dbias, c->x[0], c->rows, c->cols, c->dt));
    else
        st_ops_scalar.sum_columns(dbias, c->x[0], c->cols, c->rows, c->cols, c->dt);
}

/* The gradients of tables add in the scalar op's order: the same bits. */
static void run_embed_tokens(struct call *c)
{
    const uint64_t elems = (uint64_t)c->rows * c->cols;
    const size_t row_bytes = c->cols * strata_dtype_bytes(c->dt);
    unsigned char *const gathered = out(c, 0, OWN_DTYPE, elems, 0, 0);
    float *const dtable = out(c, 1, SINGLE, elems, 0, 0);

    if (c->device) {
        ok(st_cuda_embed_gather(c->stream, gathered, c->x[0], c->tokens, c->rows, c->cols, 2, c->rows, c->dt));
        ok(st_cuda_embed_scatter(c->stream, dtable, c->x[1], c->tokens, c->rows, c->cols, 2, c->rows, c->dt));
        return;
    }
    for (uint32_t i = 0; i < c->rows; i++) {
        if (c->tokens[i] >= 2 && c->tokens[i] - 2 < (int32_t)c->rows)
            memcpy(gathered + i * row_bytes, (const unsigned char *)c->x[0] + (size_t)(c->tokens[i] - 2) * row_bytes, row_bytes);
    }
    st_ops_scalar.scatter_columns(dtable, c->x[1], c->cols, c->tokens, c->rows, c->cols, 2, c->rows, c->dt);
}

static void run_embed_positions(struct call *c)
{
    const uint32_t seq = (c->rows + 6) / 7, batch = c->rows / seq, rows = batch * seq;
    void *const x = in_place(c, 0, c->x[0], (uint64_t)rows * c->cols, 0, 0);
    float *const dpos = out(c, 1, SINGLE, (uint64_t)seq * c->cols, 0, 0);

    if (c->device) {
        ok(st_cuda_embed_add_position(c->stream, x, c->x[1], rows, seq, c->cols, c->dt));
        ok(st_cuda_embed_position_backward(c->stream, dpos, c->x[2], rows, seq, c->cols, c->dt));
        return;
    }
    st_ops_scalar.add_position_rows(x, c->x[1], 0, rows, seq, c->cols, c->dt);
    st_ops_scalar.position_backward_rows(dpos, c->x[2], 0, seq, batch, seq, c->cols, c->dt);
}

/* Two tiles of the vocabulary, the second's logits eight times as large; every third target is in no tile. */
static void run_xent(struct call *c)
{
    float *const stats = out(c, 1, SINGLE, 3 * (uint64_t)c->rows, 32, 1e-6);
    void *const dlogits = out(c, 0, OWN_DTYPE, (uint64_t)c->rows * c->cols, c->dt == STRATA_F32 ? 64 : 1, 1e-6);
    double *const loss = out(c, 2, DOUBLE, 1, 0, 1e-5 * c->rows);

    if (!c->device) {
        st_ops_scalar.xent_stats(stats, c->f[0], c->tokens, c->rows, c->cols, 0);
        st_ops_scalar.xent_stats(stats, c->f[1], c->tokens, c->rows, c->cols, c->cols);
        st_ops_scalar.xent_grad(dlogits, c->f[0], stats, c->tokens, c->rows, c->cols, 0, 0.37f, c->dt);
        *loss = st_ops_scalar.xent_loss(stats, c->tokens, c->rows);
        return;
    }
    ok(st_cuda_xent_stats(c->stream, stats, c->f[0], c->tokens, c->rows, c->cols, 0));
    ok(st_cuda_xent_stats(c->stream, stats, c->f[1], c->tokens, c->rows, c->cols, c->cols));
    ok(st_cuda_xent_grad(c->stream, dlogits, c->f[0], stats, c->tokens, c->rows, c->cols, 0, 0.37f, c->dt));
    ok(st_cuda_xent_loss(c->stream, loss, stats, c->tokens, c->rows));
}

static void run_xent_loss(struct call *c)
{
    double *const loss = out(c, 2, DOUBLE, 1, 0, 1e-12 * c->rows);

    if (c->device)
        ok(st_cuda_xent_loss(c->stream, loss, c->stats, c->tokens, c->rows));
    else
        *loss = st_ops_scalar.xent_loss(c->stats, c->tokens, c->rows);
}

/* --- the harness --- */

/* Seeded, the same everywhere. */
static uint32_t random_bits(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static float random_number(uint32_t *state)
{
    return (float)random_bits(state) * (4.0f / 16777216.0f) - 2.0f;
}

static size_t buffer_elems(uint32_t rows, uint32_t cols)
{
    return 2 * (size_t)rows * cols + 8 * (size_t)cols + SLACK;
}

static void store_element(void *to, size_t i, float x, strata_dtype dt)
{
    if (dt == STRATA_F32)
        ((float *)to)[i] = x;
    else
        ((uint16_t *)to)[i] = dt == STRATA_BF16 ? st_f32_to_bf16(x) : st_f32_to_f16(x);
}

/* The same bytes on both sides. */
struct mirror {
    size_t bytes;
    unsigned char *host, *device;
};

static void mirror_open(struct mirror *t, size_t bytes)
{
    void *device;

    t->bytes = (bytes + 63) / 64 * 64;
    t->host = aligned_alloc(64, t->bytes);
    assert_non_null(t->host);
    ok(cudaMalloc(&device, t->bytes));
    t->device = device;
}

static void mirror_upload(const struct mirror *t)
{
    ok(cudaMemcpy(t->device, t->host, t->bytes, cudaMemcpyHostToDevice));
}

static void mirror_close(struct mirror *t)
{
    free(t->host);
    ok(cudaFree(t->device));
}

static unsigned char *mirror_at(const struct mirror *t, bool device, size_t offset)
{
    return (device ? t->device : t->host) + offset;
}

/* Tensors begin `shift` elements after a boundary of 64 bytes. */
struct memory {
    uint32_t shift;
    struct mirror x[IN_COUNT], f[IN_COUNT], stats, tokens, out[OUT_COUNT];
    size_t out_at[OUT_COUNT];       /* where an output's first element is */
    unsigned char *got[OUT_COUNT];  /* what the device's first launch left */
    unsigned char *more[OUT_COUNT]; /* and a later one */
};

static void fill_inputs(struct memory *m, const struct call *c, size_t elems)
{
    uint32_t state = c->rows * 31 + c->cols;
    int32_t *const tokens = (int32_t *)(void *)m->tokens.host;

    for (uint32_t k = 0; k < IN_COUNT; k++) {
        for (size_t i = 0; i < elems; i++) {
            store_element(m->x[k].host, i, random_number(&state), c->dt);
            store_element(m->f[k].host, i, random_number(&state) * (k == 1 ? 8.0f : 1.0f), STRATA_F32);
        }
        mirror_upload(&m->x[k]);
        mirror_upload(&m->f[k]);
    }
    for (uint32_t i = 0; i < c->rows * 3; i++)
        store_element(m->stats.host, i, 0.6f + 0.1f * random_number(&state), STRATA_F32);
    for (uint32_t i = 0; i < c->rows; i++)
        tokens[i] = (int32_t)(random_bits(&state) % (i % 2 == 0 ? 5 : c->rows + 5)) - 1;
    mirror_upload(&m->stats);
    mirror_upload(&m->tokens);
}

static void memory_open(struct memory *m, const struct call *c, uint32_t shift)
{
    const size_t elems = buffer_elems(c->rows, c->cols) + shift;
    const size_t shifts[OUT_COUNT] = {strata_dtype_bytes(c->dt), sizeof(float), sizeof(double)};

    m->shift = shift;
    for (uint32_t k = 0; k < IN_COUNT; k++) {
        mirror_open(&m->x[k], elems * strata_dtype_bytes(c->dt));
        mirror_open(&m->f[k], elems * sizeof(float));
    }
    mirror_open(&m->stats, c->rows * 3 * sizeof(float));
    mirror_open(&m->tokens, c->rows * sizeof(int32_t));
    fill_inputs(m, c, elems);
    for (uint32_t k = 0; k < OUT_COUNT; k++) {
        mirror_open(&m->out[k], 2 * GUARD + elems * sizeof(float));
        m->out_at[k] = GUARD + shift * shifts[k];
        m->got[k] = malloc(m->out[k].bytes);
        m->more[k] = malloc(m->out[k].bytes);
        assert_true(m->got[k] != NULL && m->more[k] != NULL);
    }
}

static void memory_close(struct memory *m)
{
    for (uint32_t k = 0; k < IN_COUNT; k++) {
        mirror_close(&m->x[k]);
        mirror_close(&m->f[k]);
    }
    for (uint32_t k = 0; k < OUT_COUNT; k++) {
        mirror_close(&m->out[k]);
        free(m->got[k]);
        free(m->more[k]);
    }
    mirror_close(&m->stats);
    mirror_close(&m->tokens);
}

/* Points the call to one side; outputs begin as numbers, the same ones each time: some ops add to them. */
static void aim(struct call *c, const struct memory *m, bool device)
{
    uint32_t state = 7;

    c->device = device;
    for (uint32_t k = 0; k < IN_COUNT; k++) {
        c->x[k] = mirror_at(&m->x[k], device, m->shift * strata_dtype_bytes(c->dt));
        c->f[k] = (const float *)(const void *)mirror_at(&m->f[k], device, m->shift * sizeof(float));
    }
    c->stats = (const float *)(const void *)mirror_at(&m->stats, device, 0);
    c->tokens = (const int32_t *)(const void *)mirror_at(&m->tokens, device, 0);
    for (uint32_t k = 0; k < OUT_COUNT; k++) {
        for (size_t i = 0; i < m->out[k].bytes / sizeof(float); i++)
            store_element(m->out[k].host, i, random_number(&state), STRATA_F32);
        mirror_upload(&m->out[k]);
        c->out[k] = (struct output){.start = mirror_at(&m->out[k], device, m->out_at[k])};
    }
}

static size_t element_bytes(const struct call *c, enum kind kind)
{
    return kind == DOUBLE ? sizeof(double) : kind == SINGLE ? sizeof(float) : strata_dtype_bytes(c->dt);
}

static double ulp_of(double x, strata_dtype dt)
{
    const int digits = dt == STRATA_F32 ? 23 : dt == STRATA_BF16 ? 7 : 10, lowest = dt == STRATA_F16 ? -14 : -126;
    int e;

    frexp(x, &e);
    return ldexp(1.0, (e - 1 > lowest ? e - 1 : lowest) - digits);
}

static double element(const struct call *c, enum kind kind, const void *from, size_t i)
{
    if (kind == DOUBLE)
        return ((const double *)from)[i];
    return (double)st_load_f32(from, kind == SINGLE ? STRATA_F32 : c->dt, i);
}

static bool is_close(double got, double want, double ulps, double slack, strata_dtype dt)
{
    if (isnan(want) || isnan(got))
        return isnan(want) && isnan(got);
    if (isinf(want) || isinf(got))
        return got == want;
    return fabs(got - want) <= ulps * ulp_of(want, dt) + slack;
}

/* What the device wrote against what the scalar table has just written; around it, nothing. */
static void compare(const struct call *c, const struct memory *m, const char *name)
{
    for (uint32_t k = 0; k < OUT_COUNT; k++) {
        const struct output *const o = &c->out[k];
        const size_t before = m->out_at[k], end = before + o->elems * element_bytes(c, o->kind);
        const strata_dtype dt = o->kind == OWN_DTYPE ? c->dt : STRATA_F32;

        if (o->kind == NOT_USED)
            continue;
        for (size_t i = 0; i < o->elems; i++) {
            const double got = element(c, o->kind, m->got[k] + before, i), want = element(c, o->kind, o->start, i);

            if (!is_close(got, want, o->ulps, o->slack, dt))
                fail_msg("%s output %u [%u, %u] dtype %d at %zu: %.9g, scalar %.9g", name, k, c->rows, c->cols, (int)c->dt, i,
                         got, want);
        }
        assert_memory_equal(m->got[k], m->out[k].host, before);
        assert_memory_equal(m->got[k] + end, m->out[k].host + end, m->out[k].bytes - end);
    }
}

static void run_on_device(struct call *c, const struct memory *m, case_fn *run, unsigned char *const got[OUT_COUNT])
{
    aim(c, m, true);
    run(c);
    ok(cudaStreamSynchronize(c->stream));
    for (uint32_t k = 0; k < OUT_COUNT; k++)
        ok(cudaMemcpy(got[k], m->out[k].device, m->out[k].bytes, cudaMemcpyDeviceToHost));
}

static void check_memory(struct call *c, const struct memory *m, case_fn *run, const char *name)
{
    run_on_device(c, m, run, m->got);
    for (uint32_t i = 1; i < LAUNCHES; i++) {
        run_on_device(c, m, run, m->more);
        for (uint32_t k = 0; k < OUT_COUNT; k++)
            assert_memory_equal(m->got[k], m->more[k], m->out[k].bytes);
    }
    aim(c, m, false);
    run(c);
    compare(c, m, name);
}

static void check_call(case_fn *run, const char *name, uint32_t rows, uint32_t cols, strata_dtype dt, uint32_t shift)
{
    struct call c = {.rows = rows, .cols = cols, .dt = dt};
    struct memory m;

    ok(cudaStreamCreate(&c.stream));
    memory_open(&m, &c, shift);
    check_memory(&c, &m, run, name);
    memory_close(&m);
    ok(cudaStreamDestroy(c.stream));
}

static const strata_dtype dtypes[] = {STRATA_BF16, STRATA_F16, STRATA_F32};

#define DTYPE_COUNT (sizeof(dtypes) / sizeof(dtypes[0]))

static void check(case_fn *run, const char *name, const uint32_t shapes[][2], size_t count)
{
    for (size_t i = 0; i < count; i++) {
        for (size_t d = 0; d < DTYPE_COUNT; d++) {
            check_call(run, name, shapes[i][0], shapes[i][1], dtypes[d], 0);
            check_call(run, name, shapes[i][0], shapes[i][1], dtypes[d], 1);
        }
    }
}

/* --- tests --- */

/* Rows of a warp, of a block, and too long to be kept; wide and not. */
static const uint32_t row_shapes[][2] = {{1, 1},    {1, 8},    {3, 7},    {5, 96},   {9, 768},  {17, 100}, {2, 1024},
                                         {2, 1031}, {3, 2048}, {1, 4104}, {1, 6001}, {1, 8200}, {1, 9003}};
/* Fewer and more rows than lanes, and than one turn takes. */
static const uint32_t column_shapes[][2] = {{1, 1}, {2, 31}, {127, 32}, {129, 33}, {700, 8}, {641, 5}, {60, 104}};

#define ROWS(run)    check(run, #run, row_shapes, sizeof(row_shapes) / sizeof(row_shapes[0]))
#define COLUMNS(run) check(run, #run, column_shapes, sizeof(column_shapes) / sizeof(column_shapes[0]))

static void test_pointwise(void **state)
{
    (void)state;
    ROWS(run_gelu);
    ROWS(run_add);
    ROWS(run_swiglu);
    ROWS(run_rope);
}

static void test_norm_forward(void **state)
{
    (void)state;
    ROWS(run_layernorm_forward);
    ROWS(run_rmsnorm_forward);
}

static void test_norm_backward(void **state)
{
    (void)state;
    ROWS(run_layernorm_backward_frozen);
    ROWS(run_layernorm_backward_frozen_fp32);
    ROWS(run_rmsnorm_backward_frozen);
}

static void test_columns(void **state)
{
    (void)state;
    COLUMNS(run_bias_backward);
    COLUMNS(run_layernorm_backward);
    COLUMNS(run_layernorm_backward_residual);
    COLUMNS(run_layernorm_backward_over_dy);
    COLUMNS(run_rmsnorm_backward);
    COLUMNS(run_rmsnorm_backward_over_dy);
}

static void test_embed(void **state)
{
    (void)state;
    ROWS(run_embed_tokens);
    ROWS(run_embed_positions);
    COLUMNS(run_embed_tokens);
    COLUMNS(run_embed_positions);
}

static void test_xent(void **state)
{
    (void)state;
    ROWS(run_xent);
    COLUMNS(run_xent_loss);
}

/* Numbers where formulas saturate, and no numbers. */
static void test_special_numbers(void **state)
{
    static const float special[] = {0.0f,   -0.0f,   1e-30f, -1e-30f, 9.5f,     -9.5f,     40.0f, -40.0f,
                                    100.0f, -100.0f, 6e4f,   -6e4f,   INFINITY, -INFINITY, NAN,   1.0f};
    case_fn *const runs[] = {run_gelu, run_add, run_swiglu};

    (void)state;
    for (size_t d = 0; d < DTYPE_COUNT; d++) {
        struct call c = {.rows = 16, .cols = 16, .dt = dtypes[d]};
        struct memory m;

        ok(cudaStreamCreate(&c.stream));
        memory_open(&m, &c, 0);
        for (uint32_t i = 0; i < 2 * 16 * 16; i++) {
            store_element(m.x[0].host, i, special[i % 16], c.dt);
            store_element(m.x[1].host, i, special[i / 16 % 16], c.dt);
        }
        mirror_upload(&m.x[0]);
        mirror_upload(&m.x[1]);
        for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++)
            check_memory(&c, &m, runs[i], "special numbers");
        memory_close(&m);
        ok(cudaStreamDestroy(c.stream));
    }
}

/* Whole runs of one thread that are minus infinity add nothing; one NaN spoils its row alone. */
static void test_xent_infinite_logits(void **state)
{
    struct call c = {.rows = 4, .cols = 96, .dt = STRATA_F32};
    struct memory m;

    (void)state;
    ok(cudaStreamCreate(&c.stream));
    memory_open(&m, &c, 0);
    for (uint32_t i = 0; i < 64; i++)
        store_element(m.f[0].host, i, -INFINITY, STRATA_F32);
    store_element(m.f[0].host, 2 * 96 + 50, NAN, STRATA_F32);
    for (uint32_t i = 0; i < 4; i++)
        ((int32_t *)(void *)m.tokens.host)[i] = i == 2 ? -1 : 90;
    mirror_upload(&m.f[0]);
    mirror_upload(&m.tokens);
    check_memory(&c, &m, run_xent, "infinite logits");
    memory_close(&m);
    ok(cudaStreamDestroy(c.stream));
}

static void test_nothing_and_nonsense(void **state)
{
    (void)state;
    ok(st_cuda_gelu_forward(NULL, NULL, NULL, 0, STRATA_BF16));
    ok(st_cuda_layernorm_forward(NULL, NULL, NULL, NULL, NULL, NULL, 0, 8, EPS, STRATA_BF16));
    ok(st_cuda_bias_backward(NULL, NULL, NULL, 8, 0, STRATA_BF16));
    ok(st_cuda_rope(NULL, NULL, 8, 0, 1, 0, 1, 8, NULL, false, STRATA_F32));
    ok(st_cuda_swiglu_forward(NULL, NULL, NULL, 0, 8, STRATA_F32));
    ok(st_cuda_embed_gather(NULL, NULL, NULL, NULL, 0, 8, 0, 8, STRATA_F32));
    ok(st_cuda_xent_stats(NULL, NULL, NULL, NULL, 0, 8, 0));
    assert_int_equal(st_cuda_add(NULL, NULL, NULL, NULL, 8, STRATA_DTYPE_INVALID), cudaErrorInvalidValue);
    assert_int_equal(st_cuda_rmsnorm_backward(NULL, NULL, NULL, NULL, STRATA_F16, NULL, NULL, NULL, NULL, 1, 8, STRATA_BF16),
                     cudaErrorInvalidValue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pointwise),
        cmocka_unit_test(test_norm_forward),
        cmocka_unit_test(test_norm_backward),
        cmocka_unit_test(test_columns),
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_xent),
        cmocka_unit_test(test_special_numbers),
        cmocka_unit_test(test_xent_infinite_logits),
        cmocka_unit_test(test_nothing_and_nonsense),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

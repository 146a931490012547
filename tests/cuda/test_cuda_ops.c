/* The decoder's CUDA ops against the scalar ops of kernels/ops/ops.h: odd and large shapes, every dtype, aligned and not, in
 * place where offload/device/device.h allows it; bits that stay from launch to launch, and nothing written beyond the outputs. */
#include "kernels/cuda/cuda_ops.h"
#include "kernels/ops/ops.h"
#include "tests/common/test.h"
#include "tests/cuda/ops_fixture.h"
#include "tests/offload/device_values.h"
#include <math.h>
#include <string.h>

#define EPS 1e-5f

/* --- cases --- */

/* Rounding errors of a sum of `terms` products of numbers up to 2: they grow with the root. */
static double sum_slack(uint32_t terms)
{
    return 2e-6 * sqrt(terms);
}

static void activate(struct ops_call *c, enum st_activation activation, double slack)
{
    const uint64_t elems = (uint64_t)c->rows * c->cols;
    void *const y = ops_out(c, 0, OPS_OWN_DTYPE, elems, c->dt == STRATA_F32 ? 16 : 1, slack);
    void *const dx = ops_out(c, 1, OPS_OWN_DTYPE, elems, c->dt == STRATA_F32 ? 16 : 1, 1e-6);
    void *const over_dy = ops_in_place(c, 2, c->x[1], elems, c->dt == STRATA_F32 ? 16 : 1, 1e-6);

    if (!c->device) {
        st_ops_scalar.activation_forward(activation, y, c->x[0], elems, c->dt);
        st_ops_scalar.activation_backward(activation, dx, c->x[1], c->x[0], elems, c->dt);
        st_ops_scalar.activation_backward(activation, over_dy, over_dy, c->x[0], elems, c->dt);
        return;
    }
    cf_ok(st_cuda_activation_forward(c->stream, activation, y, c->x[0], elems, c->dt));
    cf_ok(st_cuda_activation_backward(c->stream, activation, dx, c->x[1], c->x[0], elems, c->dt));
    cf_ok(st_cuda_activation_backward(c->stream, activation, over_dy, over_dy, c->x[0], elems, c->dt));
}

static void run_gelu(struct ops_call *c)
{
    activate(c, ST_GELU_TANH, 1e-7);
}

static void run_gelu_erf(struct ops_call *c)
{
    activate(c, ST_GELU_ERF, 1e-6);
}

static void run_add(struct ops_call *c)
{
    const uint64_t elems = (uint64_t)c->rows * c->cols;
    void *const y = ops_out(c, 0, OPS_OWN_DTYPE, elems, 0, 0);
    void *const over_a = ops_in_place(c, 1, c->x[0], elems, 0, 0), *const over_b = ops_in_place(c, 2, c->x[1], elems, 0, 0);

    if (!c->device) {
        st_ops_scalar.add(y, c->x[0], c->x[1], elems, c->dt);
        st_ops_scalar.add(over_a, over_a, c->x[1], elems, c->dt);
        st_ops_scalar.add(over_b, c->x[0], over_b, elems, c->dt);
        return;
    }
    cf_ok(st_cuda_add(c->stream, y, c->x[0], c->x[1], elems, c->dt));
    cf_ok(st_cuda_add(c->stream, over_a, over_a, c->x[1], elems, c->dt));
    cf_ok(st_cuda_add(c->stream, over_b, c->x[0], over_b, elems, c->dt));
}

static void run_scale(struct ops_call *c)
{
    const uint64_t elems = (uint64_t)c->rows * c->cols;
    void *const y = ops_out(c, 0, OPS_OWN_DTYPE, elems, 0, 0), *const over_x = ops_in_place(c, 1, c->x[0], elems, 0, 0);

    if (!c->device) {
        st_ops_scalar.scale(y, c->x[0], 1.7f, elems, c->dt);
        st_ops_scalar.scale(over_x, over_x, 1.7f, elems, c->dt);
        return;
    }
    cf_ok(st_cuda_scale(c->stream, y, c->x[0], 1.7f, elems, c->dt));
    cf_ok(st_cuda_scale(c->stream, over_x, over_x, 1.7f, elems, c->dt));
}

/* Rows to the second half of wider ones, both ways. */
static void run_cast(struct ops_call *c)
{
    const uint32_t wider = 2 * c->cols;
    const struct st_cast widen = {
        .rows = c->rows, .cols = c->cols, .to_stride = wider, .from_stride = c->cols, .to = STRATA_F32, .from = c->dt};
    const struct st_cast narrow = {
        .rows = c->rows, .cols = c->cols, .to_stride = wider, .from_stride = c->cols, .to = c->dt, .from = STRATA_F32};
    float *const wide = ops_out(c, 1, OPS_SINGLE, (uint64_t)c->rows * wider, 0, 0);
    unsigned char *const y = ops_out(c, 0, OPS_OWN_DTYPE, (uint64_t)c->rows * wider, 0, 0);

    if (c->device) {
        cf_ok(st_cuda_cast(c->stream, &widen, wide + c->cols, c->x[0]));
        cf_ok(st_cuda_cast(c->stream, &narrow, y + c->cols * strata_dtype_bytes(c->dt), c->f[0]));
        return;
    }
    st_ops_scalar.widen_rows(wide + c->cols, wider, c->x[0], c->cols, c->rows, c->cols, c->dt);
    st_ops_scalar.round_rows(y + c->cols * strata_dtype_bytes(c->dt), wider, c->f[0], c->cols, c->rows, c->cols, c->dt);
}

/* The scalar table's bits, fresh and added. */
static void run_dropout(struct ops_call *c)
{
    const uint64_t elems = (uint64_t)c->rows * c->cols;
    struct st_dropout d = {.rows = c->rows,
                           .cols = c->cols,
                           .first = 1,
                           .seq = 2,
                           .sequence = UINT32_MAX,
                           .key = UINT64_C(0x123456789abcdef),
                           .limit = UINT32_MAX / 3,
                           .scale = 1.5f,
                           .from = c->dt};
    float *const y = ops_out(c, 1, OPS_SINGLE, elems, 0, 0), *const sum = ops_out(c, 2, OPS_SINGLE, elems, 0, 0);

    if (c->device)
        cf_ok(st_cuda_dropout(c->stream, &d, y, c->x[0]));
    else
        st_ops_scalar.dropout_rows(&d, y, c->x[0], 0, c->rows);
    d.add = true;
    if (c->device)
        cf_ok(st_cuda_dropout(c->stream, &d, sum, c->x[1]));
    else
        st_ops_scalar.dropout_rows(&d, sum, c->x[1], 0, c->rows);
}

/* Records made of numbers: the first is the magnitude. */
static void run_nf4_widen(struct ops_call *c)
{
    const uint64_t elems = (uint64_t)c->rows * c->cols;
    const struct st_nf4_block *records = (const void *)c->f[0];
    void *const y = ops_out(c, 0, OPS_OWN_DTYPE, elems, 0, 0);

    if (c->device)
        cf_ok(st_cuda_nf4_widen(c->stream, y, records, elems, c->dt));
    else
        st_kernels_pick("scalar")->nf4_widen(y, c->dt, records, elems);
}

static void gate(struct ops_call *c, enum st_activation activation, double slack)
{
    const uint64_t elems = (uint64_t)c->rows * c->cols;
    const double ulps = c->dt == STRATA_F32 ? 16 : 1;
    void *const y = ops_out(c, 0, OPS_OWN_DTYPE, elems, ulps, slack);
    void *const d = ops_out(c, 1, OPS_OWN_DTYPE, 2 * elems, ulps, 10 * slack);
    void *const left = ops_out(c, 2, OPS_OWN_DTYPE, elems, ulps, slack);

    if (!c->device) {
        st_ops_scalar.gated_forward(activation, y, c->x[0], c->rows, c->cols, c->dt);
        st_ops_scalar.gated_backward(activation, d, left, c->x[1], c->x[0], c->rows, c->cols, c->dt);
        return;
    }
    cf_ok(st_cuda_gated_forward(c->stream, activation, y, c->x[0], c->rows, c->cols, c->dt));
    cf_ok(st_cuda_gated_backward(c->stream, activation, d, NULL, c->x[1], c->x[0], c->rows, c->cols, c->dt));
    cf_ok(st_cuda_gated_backward(c->stream, activation, d, left, c->x[1], c->x[0], c->rows, c->cols, c->dt));
}

/* Gradients over gate and up; y over dy, or none. */
static void gate_in_place(struct ops_call *c, enum st_activation activation, double slack)
{
    const uint64_t elems = (uint64_t)c->rows * c->cols;
    const double ulps = c->dt == STRATA_F32 ? 16 : 1;
    void *const over = ops_in_place(c, 0, c->x[0], 2 * elems, ulps, 10 * slack);
    void *const alone = ops_in_place(c, 1, c->x[0], 2 * elems, ulps, 10 * slack);
    void *const y = ops_in_place(c, 2, c->x[1], elems, ulps, slack);

    if (!c->device) {
        st_ops_scalar.gated_backward(activation, alone, NULL, y, alone, c->rows, c->cols, c->dt);
        st_ops_scalar.gated_backward(activation, over, y, y, over, c->rows, c->cols, c->dt);
        return;
    }
    cf_ok(st_cuda_gated_backward(c->stream, activation, alone, NULL, y, alone, c->rows, c->cols, c->dt));
    cf_ok(st_cuda_gated_backward(c->stream, activation, over, y, y, over, c->rows, c->cols, c->dt));
}

static void run_swiglu(struct ops_call *c)
{
    gate(c, ST_SILU, 1e-7);
}

static void run_geglu(struct ops_call *c)
{
    gate(c, c->cols % 2 == 0 ? ST_GELU_TANH : ST_GELU_ERF, 1e-6);
}

static void run_swiglu_in_place(struct ops_call *c)
{
    gate_in_place(c, ST_SILU, 1e-7);
}

static void run_geglu_in_place(struct ops_call *c)
{
    gate_in_place(c, c->cols % 2 == 0 ? ST_GELU_TANH : ST_GELU_ERF, 1e-6);
}

/* Up to three heads at the start of rows that may be longer; positions 1, 2, 3, 1, ..., then those of documents, and a part of
 * each head. */
static void run_rope(struct ops_call *c)
{
    const uint32_t heads = c->cols < 6 ? 1 : 3, head_dim = c->cols / heads / 2 * 2;
    const uint64_t elems = (uint64_t)c->rows * c->cols;
    struct st_rope rope = {.rows = c->rows,
                           .stride = c->cols,
                           .heads = heads,
                           .head_dim = head_dim,
                           .rotary_dim = head_dim,
                           .seq = 3,
                           .first = 1,
                           .table = c->f[1],
                           .dt = c->dt};

    for (uint32_t i = 0; i < 3; i++) {
        void *const x = ops_in_place(c, i, c->x[0], elems, 1, 8e-6);

        rope.inverse = i == 1;
        rope.positions = i == 2 ? c->positions : NULL;
        rope.rotary_dim = i == 2 ? head_dim / 4 * 2 : head_dim;
        if (c->device)
            cf_ok(st_cuda_rope(c->stream, &rope, x));
        else
            st_ops_scalar.rope_rows(&rope, x, 0, c->rows);
    }
}

static void run_layernorm_forward(struct ops_call *c)
{
    void *const y = ops_out(c, 0, OPS_OWN_DTYPE, (uint64_t)c->rows * c->cols, 2, 4e-6);
    float *const stats = ops_out(c, 1, OPS_SINGLE, 2 * (uint64_t)c->rows, 16, 1e-6);

    if (c->device)
        cf_ok(
            st_cuda_layernorm_forward(c->stream, y, stats, c->x[0], c->x[1], c->x[2], NULL, NULL, c->rows, c->cols, EPS, c->dt));
    else
        st_ops_scalar.norm_forward(y, stats, c->x[0], c->x[1], c->x[2], c->rows, c->cols, EPS, c->dt);
}

static struct st_rmsnorm rmsnorm_of(const struct ops_call *c)
{
    return (struct st_rmsnorm){.rows = c->rows, .heads = 1, .cols = c->cols, .stride = c->cols, .eps = EPS, .dt = c->dt};
}

static void run_rmsnorm_forward(struct ops_call *c)
{
    void *const y = ops_out(c, 0, OPS_OWN_DTYPE, (uint64_t)c->rows * c->cols, 2, 4e-6);
    float *const stats = ops_out(c, 1, OPS_SINGLE, c->rows, 16, 0);
    const struct st_rmsnorm norm = rmsnorm_of(c);

    if (c->device)
        cf_ok(st_cuda_rmsnorm_forward(c->stream, &norm, y, stats, c->x[0], c->x[1], NULL, NULL));
    else
        st_ops_scalar.rms_forward(&norm, y, stats, c->x[0], c->x[1], c->rows);
}

/* Statistics of positive numbers: any will do here. */
static void norm_backward(struct ops_call *c, void *dx, const void *dy, strata_dtype dy_dt, const void *residual, float *dweight,
                          float *dbias)
{
    if (c->device) {
        cf_ok(st_cuda_layernorm_backward(c->stream, dx, dweight, dbias, dy, dy_dt, c->x[0], c->stats, c->x[1], residual, c->rows,
                                         c->cols, c->dt, c->workspace));
        return;
    }
    st_ops_scalar.norm_backward_columns(dweight, dbias, dy, dy_dt, c->x[0], c->cols, c->stats, c->rows, c->cols, c->dt);
    st_ops_scalar.norm_backward_rows(dx, dy, dy_dt, c->x[0], c->stats, c->x[1], residual, c->rows, c->cols, c->dt);
}

static void run_layernorm_backward_frozen(struct ops_call *c)
{
    norm_backward(c, ops_out(c, 0, OPS_OWN_DTYPE, (uint64_t)c->rows * c->cols, 2, 2e-5), c->x[3], c->dt, NULL, NULL, NULL);
}

/* dx is the residual's memory. */
static void run_layernorm_backward_frozen_fp32(struct ops_call *c)
{
    void *const dx = ops_in_place(c, 0, c->x[2], (uint64_t)c->rows * c->cols, 2, 2e-5);

    norm_backward(c, dx, c->f[3], STRATA_F32, dx, NULL, NULL);
}

static void run_layernorm_backward(struct ops_call *c)
{
    void *const dx = ops_out(c, 0, OPS_OWN_DTYPE, (uint64_t)c->rows * c->cols, 2, 2e-5);
    float *const dweight = ops_out(c, 1, OPS_SINGLE, c->cols, 1, 2 * sum_slack(c->rows));
    float *const dbias = ops_out(c, 2, OPS_SINGLE, c->cols, 1, sum_slack(c->rows));

    norm_backward(c, dx, c->x[3], c->dt, NULL, dweight, dbias);
}

/* dx is the residual's memory; the gradient comes as fp32. */
static void run_layernorm_backward_residual(struct ops_call *c)
{
    void *const dx = ops_in_place(c, 0, c->x[2], (uint64_t)c->rows * c->cols, 2, 2e-5);
    float *const dweight = ops_out(c, 1, OPS_SINGLE, c->cols, 1, 2 * sum_slack(c->rows));

    norm_backward(c, dx, c->f[3], STRATA_F32, dx, dweight, NULL);
}

/* dx is dy's memory. */
static void run_layernorm_backward_over_dy(struct ops_call *c)
{
    void *const dx = ops_in_place(c, 0, c->x[3], (uint64_t)c->rows * c->cols, 2, 2e-5);
    float *const dbias = ops_out(c, 1, OPS_SINGLE, c->cols, 1, sum_slack(c->rows));

    norm_backward(c, dx, dx, c->dt, c->x[2], NULL, dbias);
}

static void rms_backward(struct ops_call *c, void *dx, const void *dy, strata_dtype dy_dt, const void *residual, float *dweight)
{
    const struct st_rmsnorm norm = rmsnorm_of(c);

    if (c->device) {
        cf_ok(st_cuda_rmsnorm_backward(c->stream, &norm, dx, dweight, dy, dy_dt, c->x[0], c->stats, c->x[1], residual,
                                       c->workspace));
        return;
    }
    if (dweight != NULL)
        st_ops_scalar.rms_backward_columns(&norm, dweight, dy, dy_dt, c->x[0], c->stats, c->cols);
    st_ops_scalar.rms_backward_rows(&norm, dx, dy, dy_dt, c->x[0], c->stats, c->x[1], residual, c->rows);
}

static void run_rmsnorm_backward(struct ops_call *c)
{
    void *const dx = ops_out(c, 0, OPS_OWN_DTYPE, (uint64_t)c->rows * c->cols, 2, 2e-5);
    float *const dweight = ops_out(c, 1, OPS_SINGLE, c->cols, 1, 2 * sum_slack(c->rows));

    rms_backward(c, dx, c->f[3], STRATA_F32, c->x[2], dweight);
}

/* dx is dy's memory. */
static void run_rmsnorm_backward_over_dy(struct ops_call *c)
{
    void *const dx = ops_in_place(c, 0, c->x[3], (uint64_t)c->rows * c->cols, 2, 2e-5);
    float *const dweight = ops_out(c, 1, OPS_SINGLE, c->cols, 1, 2 * sum_slack(c->rows));

    rms_backward(c, dx, dx, c->dt, NULL, dweight);
}

static void run_rmsnorm_backward_frozen(struct ops_call *c)
{
    void *const dx = ops_in_place(c, 0, c->x[2], (uint64_t)c->rows * c->cols, 2, 2e-5);

    rms_backward(c, dx, c->x[3], c->dt, dx, NULL);
}

/* Two heads at the start of a row, with an offset weight. */
static void run_rmsnorm_heads(struct ops_call *c)
{
    const struct st_rmsnorm norm = {.rows = c->rows,
                                    .heads = c->cols < 2 ? 1 : 2,
                                    .cols = (c->cols + 2) / 3,
                                    .stride = c->cols,
                                    .eps = EPS,
                                    .offset = 1.0f,
                                    .dt = c->dt};
    const uint64_t elems = (uint64_t)c->rows * c->cols;
    void *const y = ops_in_place(c, 0, c->x[0], elems, 2, 8e-6), *const dx = ops_in_place(c, 1, c->x[3], elems, 2, 4e-5);
    float *const sums = ops_out(c, 2, OPS_SINGLE, norm.cols, 1, 4 * sum_slack(2 * c->rows));

    if (c->device) {
        cf_ok(st_cuda_rmsnorm_forward(c->stream, &norm, y, c->scratch, y, c->x[1], NULL, NULL));
        cf_ok(
            st_cuda_rmsnorm_backward(c->stream, &norm, dx, sums, dx, c->dt, c->x[0], c->scratch, c->x[1], c->x[2], c->workspace));
        return;
    }
    st_ops_scalar.rms_forward(&norm, y, c->scratch, y, c->x[1], c->rows);
    st_ops_scalar.rms_backward_columns(&norm, sums, dx, c->dt, c->x[0], c->scratch, norm.cols);
    st_ops_scalar.rms_backward_rows(&norm, dx, dx, c->dt, c->x[0], c->scratch, c->x[1], c->x[2], c->rows);
}

static void run_bias_backward(struct ops_call *c)
{
    float *const dbias = ops_out(c, 1, OPS_SINGLE, c->cols, 1, sum_slack(c->rows));

    if (c->device)
        cf_ok(st_cuda_bias_backward(c->stream, dbias, c->x[0], c->rows, c->cols, c->dt));
    else
        st_ops_scalar.sum_columns(dbias, c->x[0], c->cols, c->rows, c->cols, c->dt);
}

/* The gradients of tables add in the scalar op's order: the same bits. */
static void run_embed_tokens(struct ops_call *c)
{
    const uint64_t elems = (uint64_t)c->rows * c->cols;
    const size_t row_bytes = c->cols * strata_dtype_bytes(c->dt);
    unsigned char *const gathered = ops_out(c, 0, OPS_OWN_DTYPE, elems, 0, 0);
    float *const dtable = ops_out(c, 1, OPS_SINGLE, elems, 0, 0);

    if (c->device) {
        cf_ok(st_cuda_embed_gather(c->stream, gathered, c->x[0], c->tokens, c->rows, c->cols, 2, c->rows, c->dt));
        cf_ok(st_cuda_embed_scatter(c->stream, dtable, c->x[1], c->tokens, c->rows, c->cols, 2, c->rows, c->dt));
        return;
    }
    for (uint32_t i = 0; i < c->rows; i++) {
        if (c->tokens[i] >= 2 && c->tokens[i] - 2 < (int32_t)c->rows)
            memcpy(gathered + i * row_bytes, (const unsigned char *)c->x[0] + (size_t)(c->tokens[i] - 2) * row_bytes, row_bytes);
    }
    st_ops_scalar.scatter_columns(dtable, c->x[1], c->cols, c->tokens, c->rows, c->cols, 2, c->rows, c->dt);
}

static void add_positions(struct ops_call *c, const int32_t *positions)
{
    const uint32_t seq = (c->rows + 6) / 7, batch = c->rows / seq, rows = batch * seq;
    void *const x = ops_in_place(c, 0, c->x[0], (uint64_t)rows * c->cols, 0, 0);
    float *const dpos = ops_out(c, 1, OPS_SINGLE, (uint64_t)seq * c->cols, 0, 0);

    if (c->device) {
        cf_ok(st_cuda_embed_add_position(c->stream, x, c->x[1], positions, rows, seq, c->cols, c->dt));
        cf_ok(st_cuda_embed_position_backward(c->stream, dpos, c->x[2], positions, rows, seq, c->cols, c->dt));
        return;
    }
    st_ops_scalar.add_position_rows(x, c->x[1], positions, 0, rows, seq, c->cols, c->dt);
    if (positions != NULL)
        st_ops_scalar.scatter_columns(dpos, c->x[2], c->cols, positions, rows, c->cols, 0, seq, c->dt);
    else
        st_ops_scalar.position_backward_rows(dpos, c->x[2], 0, seq, batch, seq, c->cols, c->dt);
}

static void run_embed_positions(struct ops_call *c)
{
    add_positions(c, NULL);
}

static void run_embed_documents(struct ops_call *c)
{
    add_positions(c, c->positions);
}

/* Two slices of the vocabulary, the second's logits eight times as large; every third target is in no slice. */
static void xent(struct ops_call *c, float softcap)
{
    float *const stats = ops_out(c, 1, OPS_SINGLE, 3 * (uint64_t)c->rows, 32, 1e-6);
    void *const dlogits = ops_out(c, 0, OPS_OWN_DTYPE, (uint64_t)c->rows * c->cols, c->dt == STRATA_F32 ? 64 : 1, 1e-6);
    double *const loss = ops_out(c, 2, OPS_DOUBLE, 1, 0, 1e-5 * c->rows);

    if (!c->device) {
        st_ops_scalar.xent_stats(stats, c->f[0], c->tokens, c->rows, c->cols, 0, softcap);
        st_ops_scalar.xent_stats(stats, c->f[1], c->tokens, c->rows, c->cols, c->cols, softcap);
        st_ops_scalar.xent_grad(dlogits, c->f[0], stats, c->tokens, c->rows, c->cols, 0, 0.37f, softcap, c->dt);
        *loss = st_ops_scalar.xent_loss(stats, c->tokens, c->rows);
        return;
    }
    cf_ok(st_cuda_xent_stats(c->stream, stats, c->f[0], c->tokens, c->rows, c->cols, 0, softcap));
    cf_ok(st_cuda_xent_stats(c->stream, stats, c->f[1], c->tokens, c->rows, c->cols, c->cols, softcap));
    cf_ok(st_cuda_xent_grad(c->stream, dlogits, c->f[0], stats, c->tokens, c->rows, c->cols, 0, 0.37f, softcap, c->dt));
    cf_ok(st_cuda_xent_loss(c->stream, loss, stats, c->tokens, c->rows));
}

static void run_xent(struct ops_call *c)
{
    xent(c, 0.0f);
}

static void run_capped_xent(struct ops_call *c)
{
    xent(c, 3.0f);
}

static void run_xent_loss(struct ops_call *c)
{
    double *const loss = ops_out(c, 2, OPS_DOUBLE, 1, 0, 1e-12 * c->rows);

    if (c->device)
        cf_ok(st_cuda_xent_loss(c->stream, loss, c->stats, c->tokens, c->rows));
    else
        *loss = st_ops_scalar.xent_loss(c->stats, c->tokens, c->rows);
}

/* --- tests --- */

/* Rows of a warp, of a block, and too long to be kept; wide and not. */
static const uint32_t row_shapes[][2] = {{1, 1},    {1, 8},    {3, 7},    {5, 96},   {9, 768},  {17, 100}, {2, 1024},
                                         {2, 1031}, {3, 2048}, {1, 4104}, {1, 6001}, {1, 8200}, {1, 9003}};
/* Fewer and more rows than lanes, and than one turn takes. */
static const uint32_t column_shapes[][2] = {{1, 1}, {2, 31}, {127, 32}, {129, 33}, {700, 8}, {641, 5}, {60, 104}};

/* For what shares its kernels with an op that meets all of them. */
static const uint32_t few_shapes[][2] = {{1, 1}, {3, 7}, {5, 96}, {17, 100}, {2, 1031}, {1, 6001}};

/* Rows of a warp, of a block, and too long to be kept; wide and not. */
static const uint32_t norm_shapes[][2] = {{1, 1}, {131, 5}, {1, 256}, {3, 264}, {7, 768}, {5, 1031}, {5, 2048}, {3, 2056}};
/* Heads have a third of the columns each. */
static const uint32_t head_shapes[][2] = {{1, 1}, {3, 7}, {17, 100}, {5, 1536}, {2, 6001}, {2, 6144}};

#define FEW(run)     ops_check(run, #run, few_shapes, sizeof(few_shapes) / sizeof(few_shapes[0]))
#define ROWS(run)    ops_check(run, #run, row_shapes, sizeof(row_shapes) / sizeof(row_shapes[0]))
#define NORMS(run)   ops_check(run, #run, norm_shapes, sizeof(norm_shapes) / sizeof(norm_shapes[0]))
#define HEADS(run)   ops_check(run, #run, head_shapes, sizeof(head_shapes) / sizeof(head_shapes[0]))
#define COLUMNS(run) ops_check(run, #run, column_shapes, sizeof(column_shapes) / sizeof(column_shapes[0]))

TEST(test_pointwise)
{
    ROWS(run_gelu);
    FEW(run_gelu_erf);
    ROWS(run_add);
    ROWS(run_scale);
    ROWS(run_nf4_widen);
    ROWS(run_cast);
    ROWS(run_dropout);
    ROWS(run_swiglu);
    ROWS(run_swiglu_in_place);
    FEW(run_geglu);
    FEW(run_geglu_in_place);
    ROWS(run_rope);
}

TEST(test_norm_forward)
{
    ROWS(run_layernorm_forward);
    ROWS(run_rmsnorm_forward);
}

TEST(test_norm_backward)
{
    ROWS(run_layernorm_backward_frozen);
    ROWS(run_layernorm_backward_frozen_fp32);
    ROWS(run_rmsnorm_backward_frozen);
    NORMS(run_layernorm_backward);
    NORMS(run_rmsnorm_backward);
    HEADS(run_rmsnorm_heads);
}

/* More rows than blocks have at once, and wide ones for which the workspace has no room for as many. */
TEST(test_norm_blocks)
{
    const struct {
        uint32_t rows, cols;
        ops_case_fn *run;
    } cases[] = {{1026, 2056, run_rmsnorm_backward}, {512, 8200, run_layernorm_backward}, {2100, 24, run_rmsnorm_heads}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ops_call c = {.rows = cases[i].rows, .cols = cases[i].cols, .dt = STRATA_BF16};
        struct ops_memory m;

        ops_open(&m, &c, 0);
        ops_compare(&c, &m, cases[i].run, "norm blocks");
        ops_close(&m, &c);
    }
}

TEST(test_columns)
{
    COLUMNS(run_bias_backward);
    COLUMNS(run_layernorm_backward_residual);
    COLUMNS(run_layernorm_backward_over_dy);
    COLUMNS(run_rmsnorm_backward_over_dy);
}

TEST(test_embed)
{
    ROWS(run_embed_tokens);
    ROWS(run_embed_positions);
    FEW(run_embed_documents);
    COLUMNS(run_embed_tokens);
    COLUMNS(run_embed_positions);
}

TEST(test_xent)
{
    ROWS(run_xent);
    FEW(run_capped_xent);
    COLUMNS(run_xent_loss);
}

/* Numbers where formulas saturate, and no numbers. */
TEST(test_special_numbers)
{
    static const float special[] = {0.0f,   -0.0f,   1e-30f, -1e-30f, 9.5f,     -9.5f,     40.0f, -40.0f,
                                    100.0f, -100.0f, 6e4f,   -6e4f,   INFINITY, -INFINITY, NAN,   1.0f};
    ops_case_fn *const runs[] = {run_gelu,  run_gelu_erf,        run_add,           run_scale, run_swiglu,
                                 run_geglu, run_swiglu_in_place, run_geglu_in_place};

    for (strata_dtype dt = STRATA_F32; dt <= STRATA_F16; dt++) {
        struct ops_call c = {.rows = 16, .cols = 16, .dt = dt};
        struct ops_memory m;

        ops_open(&m, &c, 0);
        for (uint32_t i = 0; i < 2 * 16 * 16; i++) {
            df_set(m.x[0].host, i, c.dt, (double)special[i % 16]);
            df_set(m.x[1].host, i, c.dt, (double)special[i / 16 % 16]);
        }
        cf_upload(&m.x[0]);
        cf_upload(&m.x[1]);
        for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++)
            ops_compare(&c, &m, runs[i], "special numbers");
        ops_close(&m, &c);
    }
}

/* Whole runs of one thread that are minus infinity add nothing; one NaN spoils its row alone. */
TEST(test_xent_infinite_logits)
{
    struct ops_call c = {.rows = 4, .cols = 96, .dt = STRATA_F32};
    struct ops_memory m;

    ops_open(&m, &c, 0);
    for (uint32_t i = 0; i < 64; i++)
        df_set(m.f[0].host, i, STRATA_F32, (double)-INFINITY);
    df_set(m.f[0].host, 2 * 96 + 50, STRATA_F32, (double)NAN);
    for (uint32_t i = 0; i < 4; i++)
        ((int32_t *)(void *)m.tokens.host)[i] = i == 2 ? -1 : 90;
    cf_upload(&m.f[0]);
    cf_upload(&m.tokens);
    ops_compare(&c, &m, run_xent, "infinite logits");
    ops_close(&m, &c);
}

TEST(test_nothing_and_nonsense)
{
    const struct st_rope rope = {.heads = 1, .head_dim = 8, .rotary_dim = 8, .stride = 8, .seq = 1, .dt = STRATA_F32};
    const struct st_rmsnorm norm = {.rows = 1, .heads = 1, .cols = 8, .stride = 8, .eps = EPS, .dt = STRATA_BF16};

    cf_ok(st_cuda_activation_forward(NULL, ST_GELU_TANH, NULL, NULL, 0, STRATA_BF16));
    cf_ok(st_cuda_layernorm_forward(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 8, EPS, STRATA_BF16));
    cf_ok(st_cuda_bias_backward(NULL, NULL, NULL, 8, 0, STRATA_BF16));
    cf_ok(st_cuda_rope(NULL, &rope, NULL));
    cf_ok(st_cuda_gated_forward(NULL, ST_SILU, NULL, NULL, 0, 8, STRATA_F32));
    cf_ok(st_cuda_embed_gather(NULL, NULL, NULL, NULL, 0, 8, 0, 8, STRATA_F32));
    cf_ok(st_cuda_xent_stats(NULL, NULL, NULL, NULL, 0, 8, 0, 0.0f));
    assert_int_equal(st_cuda_add(NULL, NULL, NULL, NULL, 8, STRATA_DTYPE_INVALID), cudaErrorInvalidValue);
    assert_int_equal(st_cuda_gated_forward(NULL, (enum st_activation)3, NULL, NULL, 1, 8, STRATA_F32), cudaErrorInvalidValue);
    assert_int_equal(st_cuda_rmsnorm_backward(NULL, &norm, NULL, NULL, NULL, STRATA_F16, NULL, NULL, NULL, NULL, NULL),
                     cudaErrorInvalidValue);
}

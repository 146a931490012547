/* kernels/ops/ops.h - the decoder's ops as leaf functions over ranges of rows, columns or elements.
 *
 * One source (ops_*.inc), compiled per instruction set with -ffp-contract=off: every result is a stated sequence of correctly
 * rounded add, sub, mul, div and sqrt, so all tables give the same bits (for numbers; the payload of a NaN is not fixed). Tensors
 * of dtype `dt` (F32, BF16 or F16) are widened on load and rounded (nearest even, NaN 0x7fc0 or 0x7e00) once on store; arithmetic
 * in between is fp32.  Sums along a row use 16 fixed lanes and a fixed tree; sums along a column add rows in index order; `thin`
 * rounds a product and its sum together (fma).  exp and log are our own: ops_math.inc states their errors.
 *
 * Ranges let the caller spread work over threads: results never depend on the split.  `ld` counts elements between rows.  A
 * pointer needs only the alignment of its element. */
#ifndef KERNELS_OPS_OPS_H
#define KERNELS_OPS_OPS_H

#include "kernels/op_shapes.h"

/* A block of query rows against `keys` keys.  Row r sees keys low(r) .. first + r, low(r) being the largest of 0, first + r + 1 -
 * window (if there is a window) and first + r - positions[r] (if there are positions). */
struct st_attention_rows {
    uint32_t rows, keys, first, window;
    const int32_t *positions; /* [rows] or NULL */
    float scale, softcap;     /* a score is scale * s or, if softcap is not 0, softcap * tanh(scale * s / softcap) */
    const float *sink;        /* one more score of each row, of no key; or NULL */
};

struct st_ops {
    const char *name;

    /* --- pointwise over `elems` elements --- */

    /* y = activation(x); gelu_new is x / (1 + exp(-2 u)), without its cancellation.  y may be x. */
    void (*activation_forward)(enum st_activation activation, void *y, const void *x, size_t elems, strata_dtype dt);
    /* dx = dy * activation'(x).  dx may be dy. */
    void (*activation_backward)(enum st_activation activation, void *dx, const void *dy, const void *x, size_t elems,
                                strata_dtype dt);
    /* y[r][c] = activation(gate) * up; row r of gate_up: ffn values of gate, then ffn of up. */
    void (*gated_forward)(enum st_activation activation, void *y, const void *gate_up, uint32_t rows, uint32_t ffn,
                          strata_dtype dt);
    /* Gradients of gate and up, laid out like them.  y: gated_forward's bits, or NULL.  dgate_up may be gate_up, y may be dy. */
    void (*gated_backward)(enum st_activation activation, void *dgate_up, void *y, const void *dy, const void *gate_up,
                           uint32_t rows, uint32_t ffn, strata_dtype dt);
    /* y = a + b.  y may be either. */
    void (*add)(void *y, const void *a, const void *b, size_t elems, strata_dtype dt);
    /* y = factor x, rounded once; y may alias x. */
    void (*scale)(void *y, const void *x, float factor, size_t elems, strata_dtype dt);

    /* --- rows --- */

    /* dst[r][c] (dt, ldd) = src[r][c] (f32, lds), and back. */
    void (*round_rows)(void *dst, size_t ldd, const float *src, size_t lds, uint32_t rows, uint32_t cols, strata_dtype dt);
    void (*widen_rows)(float *dst, size_t ldd, const void *src, size_t lds, uint32_t rows, uint32_t cols, strata_dtype dt);
    /* Rows row_first .. row_first + rows - 1 of whole tensors, from (d->from) to fp32: see st_dropout. */
    void (*dropout_rows)(const struct st_dropout *d, float *to, const void *from, uint32_t row_first, uint32_t rows);
    /* out[r] = sum over c of a[r][c] * b[r][c]. */
    void (*dot_rows)(float *out, const void *a, size_t lda, const void *b, size_t ldb, uint32_t rows, uint32_t cols,
                     strata_dtype dt);
    /* The product, or a range of its rows or columns: see st_thin. */
    void (*thin)(const struct st_thin *t, float *c, void *to, const void *p, const void *q);
    /* y = (x - mean) * rstd * weight + bias; stats[r] = {mean, rstd}. */
    void (*norm_forward)(void *y, float *stats, const void *x, const void *weight, const void *bias, uint32_t rows, uint32_t cols,
                         float eps, strata_dtype dt);
    /* dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) + residual, g = dy * weight.  residual may be NULL or dx. */
    void (*norm_backward_rows)(void *dx, const void *dy, strata_dtype dy_dt, const void *x, const float *stats,
                               const void *weight, const void *residual, uint32_t rows, uint32_t cols, strata_dtype dt);
    /* `rows` of the norm's rows: y = x * rstd * (offset + weight), rstd = 1 / sqrt(mean(x^2) + eps); stats[r * heads + h] =
     * rstd.  y may be x. */
    void (*rms_forward)(const struct st_rmsnorm *norm, void *y, float *stats, const void *x, const void *weight, uint32_t rows);
    /* dx = rstd * (g - xhat * mean(g * xhat)) + residual, g = dy * (offset + weight), xhat = x * rstd.  residual may be NULL or
     * dx, dx may be dy. */
    void (*rms_backward_rows)(const struct st_rmsnorm *norm, void *dx, const void *dy, strata_dtype dy_dt, const void *x,
                              const float *stats, const void *weight, const void *residual, uint32_t rows);
    /* Rows row_first .. row_first + rows - 1; x: whole tensor. */
    void (*rope_rows)(const struct st_rope *rope, void *x, uint32_t row_first, uint32_t rows);
    /* x[r] += pos[position of first + r]: positions[first + r], or (first + r) % seq if positions is NULL. */
    void (*add_position_rows)(void *x, const void *pos, const int32_t *positions, uint32_t first, uint32_t rows, uint32_t seq,
                              uint32_t cols, strata_dtype dt);
    /* dpos[first + i] += dx[b * seq + first + i] for b = 0, 1, ..., batch - 1 and i < count; dpos, dx: whole tensors. */
    void (*position_backward_rows)(float *dpos, const void *dx, uint32_t first, uint32_t count, uint32_t batch, uint32_t seq,
                                   uint32_t cols, strata_dtype dt);

    /* --- columns: pointers are to the range's first column --- */

    /* out[c] += sum over rows in order of x[r][c]. */
    void (*sum_columns)(float *out, const void *x, size_t ld, uint32_t rows, uint32_t cols, strata_dtype dt);
    /* dweight[c] += sum of dy * xhat, dbias[c] += sum of dy; either may be NULL. */
    void (*norm_backward_columns)(float *dweight, float *dbias, const void *dy, strata_dtype dy_dt, const void *x, size_t ld,
                                  const float *stats, uint32_t rows, uint32_t cols, strata_dtype dt);
    /* dweight[c] += sum over the norm's rows and heads in order of dy * x * rstd. */
    void (*rms_backward_columns)(const struct st_rmsnorm *norm, float *dweight, const void *dy, strata_dtype dy_dt, const void *x,
                                 const float *stats, uint32_t cols);
    /* dtable[(tokens[i] - row_first) * ld + c] += dx[i * ld + c], i in order, for tokens in [row_first, row_first + row_count).
     */
    void (*scatter_columns)(float *dtable, const void *dx, size_t ld, const int32_t *tokens, uint32_t rows, uint32_t cols,
                            uint32_t row_first, uint32_t row_count, strata_dtype dt);

    /* --- attention --- */

    /* p = softmax(scores) over the seen keys and the sink, 0 elsewhere; lse[r] = log of the sum of exp(score).
     * s [rows, keys] f32 is scratch afterwards; p [rows, keys] dt may be s when dt is F32. */
    void (*attention_probs)(const struct st_attention_rows *at, void *p, float *lse, float *s, strata_dtype dt);
    /* p = exp(score - lse), ds = p * (dp - delta) * the score's slope over the seen keys, 0 elsewhere; p may be s and ds may be
     * dp when dt is F32. */
    void (*attention_grads)(const struct st_attention_rows *at, void *p, void *ds, const float *s, const float *dp,
                            const float *lse, const float *delta, strata_dtype dt);

    /* One query row against `keys` cached rows: out = sum over keys in order of softmax(scores of q k) v.  out, q: [head_dim];
     * k, v: [keys][ld], the head's first element; s: [keys] scratch; sink: one more score, of no key, or
     * -INFINITY. */
    void (*attention_row)(void *out, float *s, const void *q, const void *k, const void *v, size_t ld, uint32_t keys,
                          uint32_t head_dim, float scale, float softcap, float sink, strata_dtype dt);

    /* --- softmax cross-entropy over one slice of the vocabulary: entries first .. first + cols - 1 --- */

    /* stats[r] = {max, sum of exp(x - max), target's x} so far, x = softcap * tanh(logit / softcap), or the logit if softcap is
     * 0; a slice with first 0 starts it. */
    void (*xent_stats)(float *stats, const float *logits, const int32_t *targets, uint32_t rows, uint32_t cols, uint32_t first,
                       float softcap);
    /* dlogits = (softmax - onehot) * scale, times 1 - (x / softcap)^2; zeros in rows with target < 0. */
    void (*xent_grad)(void *dlogits, const float *logits, const float *stats, const int32_t *targets, uint32_t rows,
                      uint32_t cols, uint32_t first, float scale, float softcap, strata_dtype dt);
    /* Sum over rows with target >= 0, in order, of max + log(sum) - target logit, in double. */
    double (*xent_loss)(const float *stats, const int32_t *targets, uint32_t rows);

    /* --- experts --- */

    /* Rows row_first .. row_first + rows - 1 of whole tensors: see route_choose and route_backward of
     * offload/device/tensor_ops.h. */
    void (*route_rows)(const struct st_route *route, int32_t *ids, float *weights, float *probs, const void *logits,
                       uint32_t row_first, uint32_t rows);
    void (*route_backward_rows)(const struct st_route *route, void *dlogits, const float *dweights, const float *probs,
                                const int32_t *ids, const float *weights, const int64_t *counts, float aux, uint32_t row_first,
                                uint32_t rows);
    /* sum = or += weight * y. */
    void (*weigh_row)(float *sum, const void *y, float weight, bool add, size_t cols, strata_dtype dt);
    /* dy = weight * d; returns the sum of d * y.  dy may be y. */
    float (*weigh_row_backward)(void *dy, const void *d, const void *y, float weight, size_t cols, strata_dtype dt);
    float (*sigmoid_one)(float x);
    /* As gated_forward and gated_backward, of the gate with a limit. */
    void (*clamped_forward)(const struct st_gate *gate, void *y, const void *gate_up, uint32_t rows, uint32_t ffn,
                            strata_dtype dt);
    void (*clamped_backward)(const struct st_gate *gate, void *dgate_up, void *y, const void *dy, const void *gate_up,
                             uint32_t rows, uint32_t ffn, strata_dtype dt);
    /* x within -limit .. limit; dx 0 where x, clipped before, is at either. */
    void (*clip)(void *x, float limit, size_t elems, strata_dtype dt);
    void (*clip_backward)(void *dx, const void *x, float limit, size_t elems, strata_dtype dt);

    /* --- for tests: the functions everything above is made of --- */
    void (*exp_f32)(float *y, const float *x, size_t elems);
    void (*tanh_f32)(float *y, const float *x, size_t elems);
    double (*log_f64)(double x);
};

extern const struct st_ops st_ops_scalar, st_ops_avx2, st_ops_avx512;

#endif

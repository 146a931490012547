/* offload/device/tensor_ops.h - the ops that models compute with: a table of functions over tensors on a device.
 *
 * Each enqueues on the device's compute queue, which runs in order; on a device without queues it is done when it returns. The
 * memory that a call's pointers name must not change until then; structs given by pointer (st_matmul, st_attention, st_rmsnorm,
 * st_rope, st_cast, st_route, ...) are copied by the call. All other pointers are to device memory, which the host cannot
 * dereference on `cuda`. offload/device/device.h moves bytes between host and device and has the ops of the engine itself.
 *
 * Activations, weights and activation gradients have dtype `dt` (BF16, F16 or F32); gradients of parameters accumulate in
 * F32.  Block shapes are functions of the operands' shapes alone, so results never depend on budgets or thread count.  Shapes are
 * row-major; `rows` = batch * seq of one micro-batch. */
#ifndef OFFLOAD_DEVICE_TENSOR_OPS_H
#define OFFLOAD_DEVICE_TENSOR_OPS_H

#include "kernels/kernels.h"
#include "kernels/matmul/matmul.h"
#include "kernels/op_shapes.h"
#include "strata/status.h"
#include "strata/types.h"
#include <stdbool.h>

struct st_device; /* offload/device/device.h */

struct st_tensor_ops {
    strata_status (*zero)(struct st_device *dev, void *dst, uint64_t bytes);
    /* C = op(A) op(B) + bias, with the epilogue; spread over workers in blocks set by the shape.  GELU's C may differ in bits
     * from activation_forward(aux), so later values must always be computed from aux. */
    strata_status (*matmul)(struct st_device *dev, const struct st_matmul *mm, void *c, const void *a, const void *b,
                            const void *bias);
    /* dbias[cols] f32 += column sums of dy[rows, cols] dt, rows in a fixed order (cpu: by index). */
    strata_status (*bias_backward)(struct st_device *dev, float *dbias, const void *dy, uint32_t rows, uint32_t cols,
                                   strata_dtype dt);
    /* y = (x - mean) * rstd * weight + bias; stats[rows][2] f32 = mean, rstd.  With an addend (may be NULL, then sum is, too) x
     * is sum = x + addend instead, rounded once, with the bits of add and a norm after it; sum may alias either, y none of them.
     */
    strata_status (*layernorm_forward)(struct st_device *dev, void *y, float *stats, const void *x, const void *weight,
                                       const void *bias, const void *addend, void *sum, uint32_t rows, uint32_t cols, float eps,
                                       strata_dtype dt);
    /* dx = backward of the norm applied to dy (dy dtype dy_dt: dt or F32), plus `residual` (dt, may be NULL; may alias dx);
     * dweight, dbias [cols] f32 +=, rows in a fixed order (cpu: by index). */
    strata_status (*layernorm_backward)(struct st_device *dev, void *dx, float *dweight, float *dbias, const void *dy,
                                        strata_dtype dy_dt, const void *x, const float *stats, const void *weight,
                                        const void *residual, uint32_t rows, uint32_t cols, strata_dtype dt);
    /* y = x * rstd * (offset + weight), rstd = 1 / sqrt(mean(x^2) + eps), rounded once; stats[rows * heads] f32 = rstd.
     * Without an addend y may alias x; addend and sum have x's strides, and are as above. */
    strata_status (*rmsnorm_forward)(struct st_device *dev, const struct st_rmsnorm *norm, void *y, float *stats, const void *x,
                                     const void *weight, const void *addend, void *sum);
    /* As layernorm_backward, without a bias.  dweight and dbias may be NULL (frozen), here and above. */
    strata_status (*rmsnorm_backward)(struct st_device *dev, const struct st_rmsnorm *norm, void *dx, float *dweight,
                                      const void *dy, strata_dtype dy_dt, const void *x, const float *stats, const void *weight,
                                      const void *residual);
    /* Rotates x in place. */
    strata_status (*rope)(struct st_device *dev, const struct st_rope *rope, void *x);
    /* y[r][c] = activation(gate) * up; gate_up rows are [ffn gate values, ffn up values]. */
    strata_status (*gated_forward)(struct st_device *dev, enum st_activation activation, void *y, const void *gate_up,
                                   uint32_t rows, uint32_t ffn, strata_dtype dt);
    /* Gradients of gate and up from dy, and y with gated_forward's bits, or NULL.  dgate_up may alias gate_up, and y dy. */
    strata_status (*gated_backward)(struct st_device *dev, enum st_activation activation, void *dgate_up, void *y, const void *dy,
                                    const void *gate_up, uint32_t rows, uint32_t ffn, strata_dtype dt);
    strata_status (*activation_forward)(struct st_device *dev, enum st_activation activation, void *y, const void *x,
                                        uint64_t elems, strata_dtype dt);
    /* dx = dy * activation'(x); dx may be dy.  Also an epilogue of matmul. */
    strata_status (*activation_backward)(struct st_device *dev, enum st_activation activation, void *dx, const void *dy,
                                         const void *x, uint64_t elems, strata_dtype dt);
    /* y = a + b, rounded once; y may alias either. */
    strata_status (*add)(struct st_device *dev, void *y, const void *a, const void *b, uint64_t elems, strata_dtype dt);
    /* y = factor x, rounded once; y may alias x. */
    strata_status (*scale)(struct st_device *dev, void *y, const void *x, float factor, uint64_t elems, strata_dtype dt);
    /* Widens exactly, or rounds once; no aliasing. */
    strata_status (*cast)(struct st_device *dev, const struct st_cast *cast, void *to, const void *from);
    /* to [rows, cols] fp32, dense = or += dropout of from [rows, cols], dense: the same bits on every device. */
    strata_status (*dropout)(struct st_device *dev, const struct st_dropout *d, float *to, const void *from);
    /* A thin product, on rows of C or, if it is not NULL, of `to`.  NULL on devices that have matmul instead. */
    strata_status (*thin)(struct st_device *dev, const struct st_thin *t, float *c, void *to, const void *p, const void *q);
    /* y[elems] dt = the elements of records of NF4: the same bits on every device. */
    strata_status (*nf4_widen)(struct st_device *dev, void *y, const struct st_nf4_block *x, uint64_t elems, strata_dtype dt);

    /* lse [batch, heads, seq] f32 is kept for backward. workspace: st attention_workspace() bytes. */
    uint64_t (*attention_workspace)(const struct st_attention *at, uint32_t workers);
    strata_status (*attention_forward)(struct st_device *dev, const struct st_attention *at, void *out, float *lse,
                                       const void *qkv, void *workspace);
    /* dqkv is overwritten. */
    strata_status (*attention_backward)(struct st_device *dev, const struct st_attention *at, void *dqkv, const void *dout,
                                        const void *out, const float *lse, const void *qkv, void *workspace);
    /* dsinks[heads] f32 += - sum of exp(sink - lse) <dout, out> over a head's rows, in a fixed order. */
    strata_status (*attention_sinks_backward)(struct st_device *dev, const struct st_attention *at, float *dsinks,
                                              const void *dout, const void *out, const float *lse);
    /* Generation: append the keys and values of `rows` rows (positions first..first+rows-1 of one sequence, at->batch 1) to the
     * caches [context, kv_heads * head_dim] dt, then attend each row to all positions up to its own.  The bits of a row do not
     * depend on the other rows of the call.  workspace: attention_workspace() of the same `at` with seq = the context. */
    strata_status (*attention_cached)(struct st_device *dev, const struct st_attention *at, void *out, void *keys, void *values,
                                      const void *qkv, uint32_t first, uint32_t rows, void *workspace);

    /* --- experts: what is routed is data, which no call waits for --- */

    /* ids [rows, k], the largest logit first; weights [rows, k] f32; probs [rows, experts] f32, the softmax of logits. */
    strata_status (*route_choose)(struct st_device *dev, const struct st_route *route, int32_t *ids, float *weights, float *probs,
                                  const void *logits);
    /* order [rows * k]: of each place the choice, row * k + j; places [rows, k]: of each row, ascending; offsets [experts + 1].
     */
    strata_status (*route_sort)(struct st_device *dev, const struct st_route *route, int32_t *order, int32_t *places,
                                int32_t *offsets, const int32_t *ids);
    /* counts[experts] += choices, sums[experts] += probs, of rows that are no padding, in index order. */
    strata_status (*route_totals)(struct st_device *dev, const struct st_route *route, int64_t *counts, double *sums,
                                  const int32_t *ids, const float *probs);
    /* *loss (double, device) = the auxiliary loss, experts in index order; 0 without rows. */
    strata_status (*route_loss)(struct st_device *dev, const struct st_route *route, double *loss, const int64_t *counts,
                                const double *sums);
    /* dlogits from dweights [rows, k], and from aux times the auxiliary loss; counts NULL: without it. */
    strata_status (*route_backward)(struct st_device *dev, const struct st_route *route, void *dlogits, const float *dweights,
                                    const float *probs, const int32_t *ids, const float *weights, const int64_t *counts,
                                    float aux);
    /* to: the slice's rows of x [rows, cols]. */
    strata_status (*experts_gather)(struct st_device *dev, const struct st_experts *of, void *to, const void *x,
                                    const int32_t *order, const int32_t *offsets, uint32_t cols, strata_dtype dt);
    /* The bits of an expert's result depend on its operands and on how many rows it has, on nothing of other experts. */
    strata_status (*experts_matmul)(struct st_device *dev, const struct st_expert_matmul *mm, void *c, const void *a,
                                    const void *b, const void *bias, const int32_t *offsets);
    /* to [rows, cols] = from, over the slice's rows; to may be from if both are fp32. */
    strata_status (*experts_cast)(struct st_device *dev, const struct st_expert_cast *cast, void *to, const void *from,
                                  const int32_t *offsets);
    /* dbias[cols] f32 of each expert += column sums of its rows of dy. */
    strata_status (*experts_bias_backward)(struct st_device *dev, const struct st_experts *of, float *dbias, uint64_t stride,
                                           const void *dy, const int32_t *offsets, uint32_t cols, strata_dtype dt);
    /* As gated_forward and gated_backward, over the slice's rows. */
    strata_status (*experts_gated_forward)(struct st_device *dev, const struct st_experts *of, const struct st_gate *gate,
                                           void *y, const void *gate_up, const int32_t *offsets, uint32_t ffn, strata_dtype dt);
    strata_status (*experts_gated_backward)(struct st_device *dev, const struct st_experts *of, const struct st_gate *gate,
                                            void *dgate_up, void *y, const void *dy, const void *gate_up, const int32_t *offsets,
                                            uint32_t ffn, strata_dtype dt);
    /* sum [rows, cols] f32 += weight * y, y the slice's rows, each row's experts in ascending order; weights NULL: 1. */
    strata_status (*experts_add)(struct st_device *dev, const struct st_experts *of, float *sum, const void *y,
                                 const float *weights, const int32_t *order, const int32_t *places, const int32_t *offsets,
                                 uint32_t cols, strata_dtype dt);
    /* dy = weight * d [rows, cols] for the slice's rows; their dweights [rows, k] f32 = <d, y>.  dy may be y. */
    strata_status (*experts_add_backward)(struct st_device *dev, const struct st_experts *of, void *dy, float *dweights,
                                          const void *d, const void *y, const float *weights, const int32_t *order,
                                          const int32_t *offsets, uint32_t cols, strata_dtype dt);
    /* sum [rows, cols] f32 = y, times 1 / (1 + exp(-logit)) of the row unless logits [rows] is NULL. */
    strata_status (*shared_forward)(struct st_device *dev, float *sum, const void *y, const void *logits, uint32_t rows,
                                    uint32_t cols, strata_dtype dt);
    /* dy and dlogits [rows] from d; dy may be y. */
    strata_status (*shared_backward)(struct st_device *dev, void *dy, void *dlogits, const void *d, const void *y,
                                     const void *logits, uint32_t rows, uint32_t cols, strata_dtype dt);
    /* x within -limit .. limit, and dx 0 where x, clipped, is at either end.  `cols` elements of rows `stride` apart. */
    strata_status (*clip)(struct st_device *dev, void *x, float limit, uint32_t rows, uint32_t cols, uint32_t stride,
                          strata_dtype dt);
    strata_status (*clip_backward)(struct st_device *dev, void *dx, const void *x, float limit, uint32_t rows, uint32_t cols,
                                   uint32_t stride, strata_dtype dt);

    /* x[r] += pos[position of r], rounded once; positions [rows] as in st_attention, NULL: r % seq. */
    strata_status (*embed_add_position)(struct st_device *dev, void *x, const void *pos, const int32_t *positions, uint32_t rows,
                                        uint32_t seq, uint32_t cols, strata_dtype dt);
    /* dpos[s] f32 += sum over the rows with position s < seq, in order. */
    strata_status (*embed_position_backward)(struct st_device *dev, float *dpos, const void *dx, const int32_t *positions,
                                             uint32_t rows, uint32_t seq, uint32_t cols, strata_dtype dt);

    /* Softmax cross-entropy over slices of the vocabulary.  stats [rows][3] f32: running max, sum of exp, target logit.
     * first slice: initialises.  logits [rows, cols] f32, cols = this slice's vocabulary rows starting at `first`.
     * softcap: it is of softcap * tanh(logit / softcap); 0: of the logits themselves. */
    strata_status (*xent_stats)(struct st_device *dev, float *stats, const float *logits, const int32_t *targets, uint32_t rows,
                                uint32_t cols, uint32_t first, float softcap);
    /* dlogits [rows, cols] dt = (softmax - onehot) * scale, times the slope of soft-capping; rows with target < 0 give zeros. */
    strata_status (*xent_grad)(struct st_device *dev, void *dlogits, const float *logits, const float *stats,
                               const int32_t *targets, uint32_t rows, uint32_t cols, uint32_t first, float scale, float softcap,
                               strata_dtype dt);
    /* *loss_sum (double, device) = sum over rows with target >= 0 of log-sum-exp - target logit, rows in index order. */
    strata_status (*xent_loss)(struct st_device *dev, double *loss_sum, const float *stats, const int32_t *targets,
                               uint32_t rows);
};

/** The cpu's ops, for which a model is sized if no device is given. */
extern const struct st_tensor_ops st_tensor_cpu_ops, st_tensor_cuda_ops;

#endif

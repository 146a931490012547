/* offload/device/tensor_ops.h - the ops that models compute with: a table of functions over tensors on a device.
 *
 * Each enqueues on the device's compute queue, which runs in order; on a device without queues it is done when it returns. The
 * memory that a call's pointers name must not change until then; structs given by pointer (st_matmul, st_attention, st_rmsnorm,
 * st_rope, st_cast) are copied by the call. All other pointers are to device memory, which the host cannot dereference on `cuda`.
 * offload/device/device.h moves bytes between host and device and has the ops of the engine itself.
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
    /* Generation: append the keys and values of `rows` rows (positions first..first+rows-1 of one sequence, at->batch 1) to the
     * caches [context, kv_heads * head_dim] dt, then attend each row to all positions up to its own.  The bits of a row do not
     * depend on the other rows of the call.  workspace: attention_workspace() of the same `at` with seq = the context. */
    strata_status (*attention_cached)(struct st_device *dev, const struct st_attention *at, void *out, void *keys, void *values,
                                      const void *qkv, uint32_t first, uint32_t rows, void *workspace);

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

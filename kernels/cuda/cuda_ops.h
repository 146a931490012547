/* kernels/cuda/cuda_ops.h - the decoder's ops on a GPU: one launcher for each entry of the table in offload/device/tensor_ops.h,
 * which says what it computes and what may alias.
 *
 * Tensors of dtype `dt` (BF16, F16 or F32) are widened on load and rounded to nearest even once on store; arithmetic in between
 * is fp32, and the compiler may contract it.  Of 16 bits activations take exp and 1 / x by the GPU's approximations, off by 2^-16
 * of the result at most.  A pointer needs only the alignment of its element; if pointers and rows begin at multiples of 16 bytes,
 * accesses are that wide.  An extent of 0 does nothing.  No launcher needs a workspace but those that have a parameter of that
 * name.
 *
 * The order of every sum is a function of only the operands' shapes and alignment.  Along a row a thread adds runs of 8 elements
 * in order, its runs 8 * threads apart; then the threads of a warp are added by a tree of shuffles, and the warps in index order.
 * Down a column there are 128 lanes, and lane l adds rows l, l + 128, ... in order; then the 8 lanes of a warp are added by a
 * tree, the 16 warps in index order, and their sum to the old value.  The norms' backward first adds the rows of a block: at most
 * 1024 blocks have equally many that follow each other, and in those of warps with rows of their own warp w of 4 adds rows w, w +
 * 4, ... in order, then the warps are added in index order; what the blocks give are the rows of the sums above.  Gradients of
 * the embedding's tables and the loss are added one by one in index order, as on the cpu device. */
#ifndef KERNELS_CUDA_CUDA_OPS_H
#define KERNELS_CUDA_CUDA_OPS_H

#include "kernels/cuda/launch.h"
#include "kernels/kernels.h"
#include "kernels/op_shapes.h"

/* --- ops_columns.cu --- */

/** dbias[cols] f32 += column sums of dy [rows, cols] dt. */
ST_CUDA_API cudaError_t st_cuda_bias_backward(cudaStream_t stream, float *dbias, const void *dy, uint32_t rows, uint32_t cols,
                                              strata_dtype dt);

/* --- ops_norm.cu --- */

/* Workspace of backward, aligned to 16 bytes: at most this, and never more than 8 bytes an element; what it holds counts for
 * nothing before and after. */
#define ST_CUDA_NORM_WORKSPACE (UINT64_C(32) << 20)

/** stats [rows][2] f32 out = mean, rstd; addend may be NULL, and sum x or addend. */
ST_CUDA_API cudaError_t st_cuda_layernorm_forward(cudaStream_t stream, void *y, float *stats, const void *x, const void *weight,
                                                  const void *bias, const void *addend, void *sum, uint32_t rows, uint32_t cols,
                                                  float eps, strata_dtype dt);

/** dx may be dy (of the same dtype) or residual; dweight, dbias and residual may be NULL. */
ST_CUDA_API cudaError_t st_cuda_layernorm_backward(cudaStream_t stream, void *dx, float *dweight, float *dbias, const void *dy,
                                                   strata_dtype dy_dt, const void *x, const float *stats, const void *weight,
                                                   const void *residual, uint32_t rows, uint32_t cols, strata_dtype dt,
                                                   void *workspace);

/** stats [rows * heads] f32 out = rstd; addend may be NULL, and y x then; sum may be x or addend. */
ST_CUDA_API cudaError_t st_cuda_rmsnorm_forward(cudaStream_t stream, const struct st_rmsnorm *norm, void *y, float *stats,
                                                const void *x, const void *weight, const void *addend, void *sum);

/** As st_cuda_layernorm_backward, without a bias. */
ST_CUDA_API cudaError_t st_cuda_rmsnorm_backward(cudaStream_t stream, const struct st_rmsnorm *norm, void *dx, float *dweight,
                                                 const void *dy, strata_dtype dy_dt, const void *x, const float *stats,
                                                 const void *weight, const void *residual, void *workspace);

/* --- ops_pointwise.cu --- */

/** In place. */
ST_CUDA_API cudaError_t st_cuda_rope(cudaStream_t stream, const struct st_rope *rope, void *x);

/** y [rows, ffn] = activation(gate) * up; rows of gate_up: ffn gate values, ffn up values. */
ST_CUDA_API cudaError_t st_cuda_gated_forward(cudaStream_t stream, enum st_activation activation, void *y, const void *gate_up,
                                              uint32_t rows, uint32_t ffn, strata_dtype dt);

/** y: the bits of st_cuda_gated_forward, or NULL.  dgate_up may be gate_up, y may be dy. */
ST_CUDA_API cudaError_t st_cuda_gated_backward(cudaStream_t stream, enum st_activation activation, void *dgate_up, void *y,
                                               const void *dy, const void *gate_up, uint32_t rows, uint32_t ffn, strata_dtype dt);

/** y may be x. */
ST_CUDA_API cudaError_t st_cuda_activation_forward(cudaStream_t stream, enum st_activation activation, void *y, const void *x,
                                                   uint64_t elems, strata_dtype dt);

/** dx may be dy or x. */
ST_CUDA_API cudaError_t st_cuda_activation_backward(cudaStream_t stream, enum st_activation activation, void *dx, const void *dy,
                                                    const void *x, uint64_t elems, strata_dtype dt);

/** y may be a or b. */
/* sum += addend, which is of dt. */
ST_CUDA_API cudaError_t st_cuda_reduce(cudaStream_t stream, float *sum, const void *addend, uint64_t elems, strata_dtype dt);
ST_CUDA_API cudaError_t st_cuda_add(cudaStream_t stream, void *y, const void *a, const void *b, uint64_t elems, strata_dtype dt);
ST_CUDA_API cudaError_t st_cuda_scale(cudaStream_t stream, void *y, const void *x, float factor, uint64_t elems, strata_dtype dt);
/** One of the dtypes is F32. */
ST_CUDA_API cudaError_t st_cuda_cast(cudaStream_t stream, const struct st_cast *cast, void *to, const void *from);
/** to [rows, cols] fp32, with the bits that the CPU's kernels give. */
ST_CUDA_API cudaError_t st_cuda_dropout(cudaStream_t stream, const struct st_dropout *d, float *to, const void *from);
/** The elements of records, with the bits that the CPU's kernels give. */
ST_CUDA_API cudaError_t st_cuda_nf4_widen(cudaStream_t stream, void *y, const struct st_nf4_block *x, uint64_t elems,
                                          strata_dtype dt);

/* --- ops_experts.cu, and experts_matmul.cu: see offload/device/tensor_ops.h.  Gates without a limit are of ST_SILU --- */

ST_CUDA_API cudaError_t st_cuda_route_choose(cudaStream_t stream, const struct st_route *route, int32_t *ids, float *weights,
                                             float *probs, const void *logits);
ST_CUDA_API cudaError_t st_cuda_route_sort(cudaStream_t stream, const struct st_route *route, int32_t *order, int32_t *places,
                                           int32_t *offsets, const int32_t *ids);
ST_CUDA_API cudaError_t st_cuda_route_totals(cudaStream_t stream, const struct st_route *route, int64_t *counts, double *sums,
                                             const int32_t *ids, const float *probs);
ST_CUDA_API cudaError_t st_cuda_route_loss(cudaStream_t stream, const struct st_route *route, double *loss,
                                           const int64_t *counts, const double *sums);
ST_CUDA_API cudaError_t st_cuda_route_backward(cudaStream_t stream, const struct st_route *route, void *dlogits,
                                               const float *dweights, const float *probs, const int32_t *ids,
                                               const float *weights, const int64_t *counts, float aux);
ST_CUDA_API cudaError_t st_cuda_experts_gather(cudaStream_t stream, const struct st_experts *of, void *to, const void *x,
                                               const int32_t *order, const int32_t *offsets, uint32_t cols, strata_dtype dt);
ST_CUDA_API cudaError_t st_cuda_experts_matmul(cudaStream_t stream, const struct st_expert_matmul *mm, void *c, const void *a,
                                               const void *b, const void *bias, const int32_t *offsets);
ST_CUDA_API cudaError_t st_cuda_experts_cast(cudaStream_t stream, const struct st_expert_cast *cast, void *to, const void *from,
                                             const int32_t *offsets);
ST_CUDA_API cudaError_t st_cuda_experts_bias_backward(cudaStream_t stream, const struct st_experts *of, float *dbias,
                                                      uint64_t stride, const void *dy, const int32_t *offsets, uint32_t cols,
                                                      strata_dtype dt);
ST_CUDA_API cudaError_t st_cuda_experts_gated_forward(cudaStream_t stream, const struct st_experts *of,
                                                      const struct st_gate *gate, void *y, const void *gate_up,
                                                      const int32_t *offsets, uint32_t ffn, strata_dtype dt);
ST_CUDA_API cudaError_t st_cuda_experts_gated_backward(cudaStream_t stream, const struct st_experts *of,
                                                       const struct st_gate *gate, void *dgate_up, void *y, const void *dy,
                                                       const void *gate_up, const int32_t *offsets, uint32_t ffn,
                                                       strata_dtype dt);
ST_CUDA_API cudaError_t st_cuda_experts_add(cudaStream_t stream, const struct st_experts *of, float *sum, const void *y,
                                            const float *weights, const int32_t *order, const int32_t *places,
                                            const int32_t *offsets, uint32_t cols, strata_dtype dt);
ST_CUDA_API cudaError_t st_cuda_experts_add_backward(cudaStream_t stream, const struct st_experts *of, void *dy, float *dweights,
                                                     const void *d, const void *y, const float *weights, const int32_t *order,
                                                     const int32_t *offsets, uint32_t cols, strata_dtype dt);
ST_CUDA_API cudaError_t st_cuda_shared_forward(cudaStream_t stream, float *sum, const void *y, const void *logits, uint32_t rows,
                                               uint32_t cols, strata_dtype dt);
ST_CUDA_API cudaError_t st_cuda_shared_backward(cudaStream_t stream, void *dy, void *dlogits, const void *d, const void *y,
                                                const void *logits, uint32_t rows, uint32_t cols, strata_dtype dt);
ST_CUDA_API cudaError_t st_cuda_clip(cudaStream_t stream, void *x, float limit, uint32_t rows, uint32_t cols, uint32_t stride,
                                     strata_dtype dt);
ST_CUDA_API cudaError_t st_cuda_clip_backward(cudaStream_t stream, void *dx, const void *x, float limit, uint32_t rows,
                                              uint32_t cols, uint32_t stride, strata_dtype dt);

/* --- ops_embed.cu --- */

/** out[i] = table row tokens[i] - row_first for tokens in [row_first, row_first + row_count); other rows untouched. */
ST_CUDA_API cudaError_t st_cuda_embed_gather(cudaStream_t stream, void *out, const void *table, const int32_t *tokens,
                                             uint32_t rows, uint32_t cols, uint32_t row_first, uint32_t row_count,
                                             strata_dtype dt);

/** x[r] += pos[positions[r]], or pos[r % seq] if positions is NULL, rounded once. */
ST_CUDA_API cudaError_t st_cuda_embed_add_position(cudaStream_t stream, void *x, const void *pos, const int32_t *positions,
                                                   uint32_t rows, uint32_t seq, uint32_t cols, strata_dtype dt);

/** x[r][c] = of[c], or with `add` x[r][c] += of[c], rounded once; `stride` elements between rows of x. */
ST_CUDA_API cudaError_t st_cuda_fill_rows(cudaStream_t stream, void *x, uint32_t stride, const void *of, uint32_t rows,
                                          uint32_t cols, bool add, strata_dtype dt);

/** dpos[position of r] f32 += dx[r], r in order. */
ST_CUDA_API cudaError_t st_cuda_embed_position_backward(cudaStream_t stream, float *dpos, const void *dx,
                                                        const int32_t *positions, uint32_t rows, uint32_t seq, uint32_t cols,
                                                        strata_dtype dt);

/** dtable[tokens[i] - row_first] f32 += dx[i], i in order, for tokens in the range. */
ST_CUDA_API cudaError_t st_cuda_embed_scatter(cudaStream_t stream, float *dtable, const void *dx, const int32_t *tokens,
                                              uint32_t rows, uint32_t cols, uint32_t row_first, uint32_t row_count,
                                              strata_dtype dt);

/* --- ops_xent.cu --- */

/** stats [rows][3] f32 = running max, sum of exp, target logit; a slice with first 0 starts them. */
ST_CUDA_API cudaError_t st_cuda_xent_stats(cudaStream_t stream, float *stats, const float *logits, const int32_t *targets,
                                           uint32_t rows, uint32_t cols, uint32_t first, float softcap);

/** dlogits [rows, cols] dt = (softmax - onehot) * scale; may be logits where dt is F32. */
ST_CUDA_API cudaError_t st_cuda_xent_grad(cudaStream_t stream, void *dlogits, const float *logits, const float *stats,
                                          const int32_t *targets, uint32_t rows, uint32_t cols, uint32_t first, float scale,
                                          float softcap, strata_dtype dt);

/** *loss_sum (double, device) = sum over rows with target >= 0 of log-sum-exp - target logit. */
ST_CUDA_API cudaError_t st_cuda_xent_loss(cudaStream_t stream, double *loss_sum, const float *stats, const int32_t *targets,
                                          uint32_t rows);

#endif

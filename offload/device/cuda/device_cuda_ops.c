/* device_cuda_ops.c - the compute entries of the cuda device: each passes its operands to its launcher on the compute stream.
 *
 * All pointers are device memory; structs are read during the call. */
#include "core/base/error.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/update.h"
#include "offload/device/cuda/device_cuda_internal.h"

/* Launchers return the thread's last error: one that somebody else left is not the launch's. */
static cudaStream_t enter_queue(struct st_device *dev, enum st_queue queue)
{
    (void)cudaSetDevice(cuda_of(dev)->index); /* if the GPU is lost, the launch says so */
    (void)cudaGetLastError();
    return cuda_of(dev)->queues[queue].stream;
}

static cudaStream_t enter(struct st_device *dev)
{
    return enter_queue(dev, ST_QUEUE_COMPUTE);
}

strata_status st_cuda_allow(const struct cuda_device *cuda)
{
    cudaError_t err = ST_CUDA_PASS("cuda.allow", st_cuda_attention_forward_allow(cuda->shared_most));

    if (err == cudaSuccess)
        err = ST_CUDA_PASS("cuda.allow", st_cuda_attention_backward_allow(cuda->shared_most));
    return st_cuda_status(err, "cudaFuncSetAttribute");
}

/* What the kernels of the compute queue share. */
static void *workspace_of(struct st_device *dev)
{
    _Static_assert(ST_CUDA_NORM_WORKSPACE <= ST_CUDA_WORKSPACE, "the sums of backward fit");
    return st_cuda_matmul_workspace(cuda_of(dev)->matmul);
}

static strata_status launched(const char *op, cudaError_t err)
{
    return st_cuda_status(ST_CUDA_PASS("cuda.launch", err), op);
}

strata_status st_cuda_dev_matmul(struct st_device *dev, const struct st_matmul *mm, void *c, const void *a, const void *b,
                                 const void *bias)
{
    return st_cuda_matmul_run(cuda_of(dev)->matmul, enter(dev), mm, c, a, b, bias);
}

strata_status st_cuda_dev_bias_backward(struct st_device *dev, float *dbias, const void *dy, uint32_t rows, uint32_t cols,
                                        strata_dtype dt)
{
    return launched("bias_backward", st_cuda_bias_backward(enter(dev), dbias, dy, rows, cols, dt));
}

strata_status st_cuda_dev_layernorm_forward(struct st_device *dev, void *y, float *stats, const void *x, const void *weight,
                                            const void *bias, const void *addend, void *sum, uint32_t rows, uint32_t cols,
                                            float eps, strata_dtype dt)
{
    return launched("layernorm_forward",
                    st_cuda_layernorm_forward(enter(dev), y, stats, x, weight, bias, addend, sum, rows, cols, eps, dt));
}

strata_status st_cuda_dev_layernorm_backward(struct st_device *dev, void *dx, float *dweight, float *dbias, const void *dy,
                                             strata_dtype dy_dt, const void *x, const float *stats, const void *weight,
                                             const void *residual, uint32_t rows, uint32_t cols, strata_dtype dt)
{
    return launched("layernorm_backward", st_cuda_layernorm_backward(enter(dev), dx, dweight, dbias, dy, dy_dt, x, stats, weight,
                                                                     residual, rows, cols, dt, workspace_of(dev)));
}

strata_status st_cuda_dev_rmsnorm_forward(struct st_device *dev, const struct st_rmsnorm *norm, void *y, float *stats,
                                          const void *x, const void *weight, const void *addend, void *sum)
{
    return launched("rmsnorm_forward", st_cuda_rmsnorm_forward(enter(dev), norm, y, stats, x, weight, addend, sum));
}

strata_status st_cuda_dev_rmsnorm_backward(struct st_device *dev, const struct st_rmsnorm *norm, void *dx, float *dweight,
                                           const void *dy, strata_dtype dy_dt, const void *x, const float *stats,
                                           const void *weight, const void *residual)
{
    return launched("rmsnorm_backward", st_cuda_rmsnorm_backward(enter(dev), norm, dx, dweight, dy, dy_dt, x, stats, weight,
                                                                 residual, workspace_of(dev)));
}

strata_status st_cuda_dev_rope(struct st_device *dev, const struct st_rope *rope, void *x)
{
    return launched("rope", st_cuda_rope(enter(dev), rope, x));
}

strata_status st_cuda_dev_gated_forward(struct st_device *dev, enum st_activation activation, void *y, const void *gate_up,
                                        uint32_t rows, uint32_t ffn, strata_dtype dt)
{
    return launched("gated_forward", st_cuda_gated_forward(enter(dev), activation, y, gate_up, rows, ffn, dt));
}

strata_status st_cuda_dev_gated_backward(struct st_device *dev, enum st_activation activation, void *dgate_up, void *y,
                                         const void *dy, const void *gate_up, uint32_t rows, uint32_t ffn, strata_dtype dt)
{
    return launched("gated_backward", st_cuda_gated_backward(enter(dev), activation, dgate_up, y, dy, gate_up, rows, ffn, dt));
}

strata_status st_cuda_dev_activation_forward(struct st_device *dev, enum st_activation activation, void *y, const void *x,
                                             uint64_t elems, strata_dtype dt)
{
    return launched("activation_forward", st_cuda_activation_forward(enter(dev), activation, y, x, elems, dt));
}

strata_status st_cuda_dev_activation_backward(struct st_device *dev, enum st_activation activation, void *dx, const void *dy,
                                              const void *x, uint64_t elems, strata_dtype dt)
{
    return launched("activation_backward", st_cuda_activation_backward(enter(dev), activation, dx, dy, x, elems, dt));
}

strata_status st_cuda_dev_cast(struct st_device *dev, const struct st_cast *cast, void *to, const void *from)
{
    return launched("cast", st_cuda_cast(enter(dev), cast, to, from));
}

strata_status st_cuda_dev_dropout(struct st_device *dev, const struct st_dropout *d, float *to, const void *from)
{
    return launched("dropout", st_cuda_dropout(enter(dev), d, to, from));
}

strata_status st_cuda_dev_add(struct st_device *dev, void *y, const void *a, const void *b, uint64_t elems, strata_dtype dt)
{
    return launched("add", st_cuda_add(enter(dev), y, a, b, elems, dt));
}

strata_status st_cuda_dev_scale(struct st_device *dev, void *y, const void *x, float factor, uint64_t elems, strata_dtype dt)
{
    return launched("scale", st_cuda_scale(enter(dev), y, x, factor, elems, dt));
}

strata_status st_cuda_dev_nf4_widen(struct st_device *dev, void *y, const struct st_nf4_block *x, uint64_t elems, strata_dtype dt)
{
    return launched("nf4_widen", st_cuda_nf4_widen(enter(dev), y, x, elems, dt));
}

strata_status st_cuda_dev_embed_gather(struct st_device *dev, void *out, const void *table, const int32_t *tokens, uint32_t rows,
                                       uint32_t cols, uint32_t row_first, uint32_t row_count, strata_dtype dt)
{
    return launched("embed_gather", st_cuda_embed_gather(enter(dev), out, table, tokens, rows, cols, row_first, row_count, dt));
}

strata_status st_cuda_dev_embed_add_position(struct st_device *dev, void *x, const void *pos, const int32_t *positions,
                                             uint32_t rows, uint32_t seq, uint32_t cols, strata_dtype dt)
{
    return launched("embed_add_position", st_cuda_embed_add_position(enter(dev), x, pos, positions, rows, seq, cols, dt));
}

strata_status st_cuda_dev_embed_position_backward(struct st_device *dev, float *dpos, const void *dx, const int32_t *positions,
                                                  uint32_t rows, uint32_t seq, uint32_t cols, strata_dtype dt)
{
    return launched("embed_position_backward",
                    st_cuda_embed_position_backward(enter(dev), dpos, dx, positions, rows, seq, cols, dt));
}

strata_status st_cuda_dev_embed_scatter(struct st_device *dev, float *dtable, const void *dx, const int32_t *tokens,
                                        uint32_t rows, uint32_t cols, uint32_t row_first, uint32_t row_count, strata_dtype dt)
{
    return launched("embed_scatter", st_cuda_embed_scatter(enter(dev), dtable, dx, tokens, rows, cols, row_first, row_count, dt));
}

strata_status st_cuda_dev_xent_stats(struct st_device *dev, float *stats, const float *logits, const int32_t *targets,
                                     uint32_t rows, uint32_t cols, uint32_t first, float softcap)
{
    return launched("xent_stats", st_cuda_xent_stats(enter(dev), stats, logits, targets, rows, cols, first, softcap));
}

strata_status st_cuda_dev_xent_grad(struct st_device *dev, void *dlogits, const float *logits, const float *stats,
                                    const int32_t *targets, uint32_t rows, uint32_t cols, uint32_t first, float scale,
                                    float softcap, strata_dtype dt)
{
    return launched("xent_grad",
                    st_cuda_xent_grad(enter(dev), dlogits, logits, stats, targets, rows, cols, first, scale, softcap, dt));
}

strata_status st_cuda_dev_xent_loss(struct st_device *dev, double *loss_sum, const float *stats, const int32_t *targets,
                                    uint32_t rows)
{
    return launched("xent_loss", st_cuda_xent_loss(enter(dev), loss_sum, stats, targets, rows));
}

/* --- attention --- */

uint64_t st_cuda_dev_attention_workspace(const struct st_attention *at, uint32_t workers)
{
    (void)workers;
    return st_cuda_attention_workspace(at);
}

static strata_status attended(const char *op, const struct st_attention *at, cudaError_t err)
{
    if (err == cudaErrorNotSupported)
        return st_error_remedy(st_error(STRATA_E_NOSYS,
                                        "cuda: %s: heads of %u in %s need more shared memory than this GPU's blocks have", op,
                                        at->head_dim, strata_dtype_name(at->dt)),
                               "machine.device", "use 16 bits, or machine.device cpu");
    return launched(op, err);
}

strata_status st_cuda_dev_attention_forward(struct st_device *dev, const struct st_attention *at, void *out, float *lse,
                                            const void *qkv, void *workspace)
{
    return attended("attention_forward", at,
                    st_cuda_attention_forward(enter(dev), cuda_of(dev)->shared_most, at, out, lse, qkv, workspace));
}

strata_status st_cuda_dev_attention_backward(struct st_device *dev, const struct st_attention *at, void *dqkv, const void *dout,
                                             const void *out, const float *lse, const void *qkv, void *workspace)
{
    return attended("attention_backward", at,
                    st_cuda_attention_backward(enter(dev), cuda_of(dev)->shared_most, at, dqkv, dout, out, lse, qkv, workspace));
}

strata_status st_cuda_dev_attention_cached(struct st_device *dev, const struct st_attention *at, void *out, void *keys,
                                           void *values, const void *qkv, uint32_t first, uint32_t rows, void *workspace)
{
    return launched("attention_cached", st_cuda_attention_cached(enter(dev), at, out, keys, values, qkv, first, rows, workspace));
}

strata_status st_cuda_dev_attention_sinks_backward(struct st_device *dev, const struct st_attention *at, float *dsinks,
                                                   const void *dout, const void *out, const float *lse)
{
    return launched("attention_sinks_backward", st_cuda_attention_sinks_backward(enter(dev), at, dsinks, dout, out, lse));
}

/* --- experts --- */

strata_status st_cuda_dev_route_choose(struct st_device *dev, const struct st_route *route, int32_t *ids, float *weights,
                                       float *probs, const void *logits)
{
    return launched("route_choose", st_cuda_route_choose(enter(dev), route, ids, weights, probs, logits));
}

strata_status st_cuda_dev_route_sort(struct st_device *dev, const struct st_route *route, int32_t *order, int32_t *places,
                                     int32_t *offsets, const int32_t *ids)
{
    return launched("route_sort", st_cuda_route_sort(enter(dev), route, order, places, offsets, ids));
}

strata_status st_cuda_dev_route_totals(struct st_device *dev, const struct st_route *route, int64_t *counts, double *sums,
                                       const int32_t *ids, const float *probs)
{
    return launched("route_totals", st_cuda_route_totals(enter(dev), route, counts, sums, ids, probs));
}

strata_status st_cuda_dev_route_loss(struct st_device *dev, const struct st_route *route, double *loss, const int64_t *counts,
                                     const double *sums)
{
    return launched("route_loss", st_cuda_route_loss(enter(dev), route, loss, counts, sums));
}

strata_status st_cuda_dev_route_backward(struct st_device *dev, const struct st_route *route, void *dlogits,
                                         const float *dweights, const float *probs, const int32_t *ids, const float *weights,
                                         const int64_t *counts, float aux)
{
    return launched("route_backward",
                    st_cuda_route_backward(enter(dev), route, dlogits, dweights, probs, ids, weights, counts, aux));
}

strata_status st_cuda_dev_experts_gather(struct st_device *dev, const struct st_experts *of, void *to, const void *x,
                                         const int32_t *order, const int32_t *offsets, uint32_t cols, strata_dtype dt)
{
    return launched("experts_gather", st_cuda_experts_gather(enter(dev), of, to, x, order, offsets, cols, dt));
}

strata_status st_cuda_dev_experts_matmul(struct st_device *dev, const struct st_expert_matmul *mm, void *c, const void *a,
                                         const void *b, const void *bias, const int32_t *offsets)
{
    return launched("experts_matmul", st_cuda_experts_matmul(enter(dev), mm, c, a, b, bias, offsets));
}

strata_status st_cuda_dev_experts_cast(struct st_device *dev, const struct st_expert_cast *cast, void *to, const void *from,
                                       const int32_t *offsets)
{
    return launched("experts_cast", st_cuda_experts_cast(enter(dev), cast, to, from, offsets));
}

strata_status st_cuda_dev_experts_bias_backward(struct st_device *dev, const struct st_experts *of, float *dbias, uint64_t stride,
                                                const void *dy, const int32_t *offsets, uint32_t cols, strata_dtype dt)
{
    return launched("experts_bias_backward", st_cuda_experts_bias_backward(enter(dev), of, dbias, stride, dy, offsets, cols, dt));
}

strata_status st_cuda_dev_experts_gated_forward(struct st_device *dev, const struct st_experts *of, const struct st_gate *gate,
                                                void *y, const void *gate_up, const int32_t *offsets, uint32_t ffn,
                                                strata_dtype dt)
{
    return launched("experts_gated_forward", st_cuda_experts_gated_forward(enter(dev), of, gate, y, gate_up, offsets, ffn, dt));
}

strata_status st_cuda_dev_experts_gated_backward(struct st_device *dev, const struct st_experts *of, const struct st_gate *gate,
                                                 void *dgate_up, void *y, const void *dy, const void *gate_up,
                                                 const int32_t *offsets, uint32_t ffn, strata_dtype dt)
{
    return launched("experts_gated_backward",
                    st_cuda_experts_gated_backward(enter(dev), of, gate, dgate_up, y, dy, gate_up, offsets, ffn, dt));
}

strata_status st_cuda_dev_experts_add(struct st_device *dev, const struct st_experts *of, float *sum, const void *y,
                                      const float *weights, const int32_t *order, const int32_t *places, const int32_t *offsets,
                                      uint32_t cols, strata_dtype dt)
{
    return launched("experts_add", st_cuda_experts_add(enter(dev), of, sum, y, weights, order, places, offsets, cols, dt));
}

strata_status st_cuda_dev_experts_add_backward(struct st_device *dev, const struct st_experts *of, void *dy, float *dweights,
                                               const void *d, const void *y, const float *weights, const int32_t *order,
                                               const int32_t *offsets, uint32_t cols, strata_dtype dt)
{
    return launched("experts_add_backward",
                    st_cuda_experts_add_backward(enter(dev), of, dy, dweights, d, y, weights, order, offsets, cols, dt));
}

strata_status st_cuda_dev_shared_forward(struct st_device *dev, float *sum, const void *y, const void *logits, uint32_t rows,
                                         uint32_t cols, strata_dtype dt)
{
    return launched("shared_forward", st_cuda_shared_forward(enter(dev), sum, y, logits, rows, cols, dt));
}

strata_status st_cuda_dev_shared_backward(struct st_device *dev, void *dy, void *dlogits, const void *d, const void *y,
                                          const void *logits, uint32_t rows, uint32_t cols, strata_dtype dt)
{
    return launched("shared_backward", st_cuda_shared_backward(enter(dev), dy, dlogits, d, y, logits, rows, cols, dt));
}

strata_status st_cuda_dev_clip(struct st_device *dev, void *x, float limit, uint32_t rows, uint32_t cols, uint32_t stride,
                               strata_dtype dt)
{
    return launched("clip", st_cuda_clip(enter(dev), x, limit, rows, cols, stride, dt));
}

strata_status st_cuda_dev_clip_backward(struct st_device *dev, void *dx, const void *x, float limit, uint32_t rows, uint32_t cols,
                                        uint32_t stride, strata_dtype dt)
{
    return launched("clip_backward", st_cuda_clip_backward(enter(dev), dx, x, limit, rows, cols, stride, dt));
}

/* --- gradient and update --- */

strata_status st_cuda_dev_reduce(struct st_device *dev, float *sum, const void *addend, strata_dtype dt, uint64_t elems)
{
    return launched("reduce", st_cuda_reduce(enter(dev), sum, addend, elems, dt));
}

strata_status st_cuda_dev_grad_finish(struct st_device *dev, void *out, strata_dtype dt, const float *acc, uint64_t elems,
                                      double *block_sums, double *norm2, uint64_t *nonfinite)
{
    return launched("grad_finish", st_cuda_grad_finish(enter(dev), out, dt, acc, elems, block_sums, norm2, nonfinite));
}

strata_status st_cuda_dev_update(struct st_device *dev, void *weight, int16_t *low_half, float *master,
                                 const struct st_moments *moments, const void *grad, strata_dtype dt, uint64_t elems,
                                 const struct st_update_coef *coef, uint64_t *overflowed)
{
    const cudaStream_t stream = enter_queue(dev, ST_QUEUE_UPDATE);
    cudaError_t err;

    if (low_half != NULL)
        err = st_cuda_update_split(stream, weight, low_half, moments, grad, dt, elems, coef, overflowed);
    else if (master != NULL)
        err = st_cuda_update_master(stream, master, weight, dt, moments, grad, dt, elems, coef, overflowed);
    else
        err = st_cuda_update_master(stream, weight, NULL, STRATA_DTYPE_INVALID, moments, grad, dt, elems, coef, overflowed);
    return launched("update", err);
}

/* kernels/cuda/attention.h - fused causal attention on a GPU, with grouped heads; kernels/op_shapes.h and
 * offload/device/tensor_ops.h define the results.
 *
 * As in FlashAttention, scores live in registers, one tile of keys at a time, and only the log-sum-exp of each row is kept. bf16
 * and fp16 are multiplied on tensor cores (mma.sync m16n8k16, fp32 sums), fp32 by fma.  The shape fixes the order of all sums:
 * same operands, same bits.  Any head_dim from 1 to ST_CUDA_HEAD_MAX works, with any stride and element-aligned address; rows of
 * whole 16-byte groups (head_dim and strides multiples of 8, addresses multiples of 16 bytes) are fast, and head_dims 32, 64, 80,
 * 96, 128, 192 and 256 waste nothing.
 *
 * Every call returns cudaErrorInvalidValue for a shape that contradicts itself, and cudaErrorNotSupported for a larger head_dim,
 * or for one that needs more shared memory than a block can have: above 128 in fp32 with 99 KiB (capability 8.6, 8.9 and 12.0,
 * where 16-bit heads of 192 and 256 take smaller stages), above 64 in fp32 and 128 in fp16 with 64 KiB (7.5, which has no bf16:
 * there a product is two of m16n8k8, and copies are made at once). */
#ifndef KERNELS_CUDA_ATTENTION_H
#define KERNELS_CUDA_ATTENTION_H

#include "kernels/cuda/launch.h"
#include "kernels/op_shapes.h"

#define ST_CUDA_HEAD_MAX 256u

/**
 * Let all kernels of a direction have the shared memory that they need; once for each device, before its first call.
 *
 * @param shared_most  bytes that a block may have on the current device (sharedMemPerBlockOptin); the calls get the same
 */
ST_CUDA_API cudaError_t st_cuda_attention_forward_allow(uint32_t shared_most);
ST_CUDA_API cudaError_t st_cuda_attention_backward_allow(uint32_t shared_most);

/** Bytes of workspace that suffice for each of the three calls below.  Forward and cached do not use it. */
ST_CUDA_API uint64_t st_cuda_attention_workspace(const struct st_attention *at);

/**
 * out = softmax(scores of q k^T) v over the keys that each row sees.
 *
 * @param out  [batch * seq][out_stride] dt, out; columns past the heads stay unchanged
 * @param lse  [batch, heads, seq] f32, out: log of the sum of exp of the scores
 * @param qkv  [batch * seq][qkv_stride] dt
 */
ST_CUDA_API cudaError_t st_cuda_attention_forward(cudaStream_t stream, uint32_t shared_most, const struct st_attention *at,
                                                  void *out, float *lse, const void *qkv, void *workspace);

/**
 * Gradient of the above; recomputes the scores from qkv and lse.
 *
 * @param dqkv       [batch * seq][qkv_stride] dt, out: overwritten; columns past the heads stay unchanged
 * @param workspace  st_cuda_attention_workspace() bytes, aligned to 16
 */
ST_CUDA_API cudaError_t st_cuda_attention_backward(cudaStream_t stream, uint32_t shared_most, const struct st_attention *at,
                                                   void *dqkv, const void *dout, const void *out, const float *lse,
                                                   const void *qkv, void *workspace);

/** dsinks[heads] f32 += - sum of exp(sink - lse) <dout, out> over a head's rows. */
ST_CUDA_API cudaError_t st_cuda_attention_sinks_backward(cudaStream_t stream, const struct st_attention *at, float *dsinks,
                                                         const void *dout, const void *out, const float *lse);

/**
 * Generation: append keys and values of `rows` rows, positions first..first+rows-1 of one sequence (at->batch 1), then attend
 * each row to the positions up to its own, within the window.  The bits of a row do not depend on the other rows of the call.
 * at->seq is not read.
 *
 * @param keys, values  [context, kv_heads * head_dim] dt, in and out
 */
ST_CUDA_API cudaError_t st_cuda_attention_cached(cudaStream_t stream, const struct st_attention *at, void *out, void *keys,
                                                 void *values, const void *qkv, uint32_t first, uint32_t rows, void *workspace);

#endif

/* kernels/cuda/update.h - the optimizer's step and the gradient's last rounding on a GPU.
 *
 * The same bits as kernels/kernels.h states for the CPU, for every input: both compile kernels/update/update_step.h and
 * kernels/isa/scalar.h.  Arrays are device memory, aligned to their elements (16 bytes is fastest).  Structs are read during the
 * call. */
#ifndef KERNELS_CUDA_UPDATE_H
#define KERNELS_CUDA_UPDATE_H

#include "kernels/cuda/launch.h"
#include "kernels/kernels.h"

/** st_update_split_fn; adds the count to *overflowed (device memory). */
ST_CUDA_API cudaError_t st_cuda_update_split(cudaStream_t stream, uint16_t *weight, int16_t *low_half,
                                             const struct st_moments *moments, const void *grad, strata_dtype grad_dtype,
                                             uint64_t elems, const struct st_update_coef *coef, uint64_t *overflowed);

/** st_update_master_fn; copy_out may be NULL. */
ST_CUDA_API cudaError_t st_cuda_update_master(cudaStream_t stream, float *master, uint16_t *copy_out, strata_dtype copy_dtype,
                                              const struct st_moments *moments, const void *grad, strata_dtype grad_dtype,
                                              uint64_t elems, const struct st_update_coef *coef, uint64_t *overflowed);

/**
 * st_grad_finish_fn of a whole group, which also adds st_norm_group() to *norm2 and the count to *nonfinite.
 *
 * @param out         [elems] dtype; may be acc where dtype is F32
 * @param block_sums  [ceil(elems / ST_NORM_BLOCK)] out
 */
ST_CUDA_API cudaError_t st_cuda_grad_finish(cudaStream_t stream, void *out, strata_dtype dtype, const float *acc, uint64_t elems,
                                            double *block_sums, double *norm2, uint64_t *nonfinite);

#endif

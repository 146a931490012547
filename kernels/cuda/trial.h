/* kernels/cuda/trial.h - what tells whether two ways to compute a product give the same bits. */
#ifndef KERNELS_CUDA_TRIAL_H
#define KERNELS_CUDA_TRIAL_H

#include "kernels/cuda/launch.h"
#include "strata/types.h"
#include <stdbool.h>
#include <stdint.h>

#define ST_CUDA_SAMPLES 256u

/** Adds to *sum a number that each bit of the matrix and its place decide.  Equal sums of other matrices are a chance of 2^-64.
 *  @param c  [rows][cols] dt, ldc elements from row to row */
ST_CUDA_API cudaError_t st_cuda_matrix_sum(cudaStream_t stream, uint64_t *sum, const void *c, uint32_t ldc, uint32_t rows,
                                           uint32_t cols, strata_dtype dt);

/** A product op(A) op(B) [m][n] of k terms; lda, ldb: elements from row to row of A and B as they are stored. */
struct st_cuda_product {
    uint32_t m, n, k, lda, ldb;
    bool trans_a, trans_b;
    strata_dtype dt; /* of A and B */
};

/** Adds to *count how many of ST_CUDA_SAMPLES elements of op(A) op(B) have other bits if their terms are added in another order.
 */
ST_CUDA_API cudaError_t st_cuda_order_counts(cudaStream_t stream, uint64_t *count, const struct st_cuda_product *p, const void *a,
                                             const void *b);

#endif

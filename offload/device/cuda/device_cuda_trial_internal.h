/* offload/device/cuda/device_cuda_trial_internal.h - which of the library's algorithms computes a product fastest, of those that
 * give the bits of the first.
 *
 * A trial runs each candidate on the product's own operands and into its own C, before the product itself, and notes C's bits:
 * once as C = AB, then, timed, as C = AB + C.  So it needs no memory, and what accumulates has the same bits, too.  It is only
 * enqueued; the queue that computes the product does it, nobody waits, and the first algorithm is used until its end is seen.
 *
 * Equal bits of one product prove little if its terms can be added in any order, as zeros can.  So elements of the product are
 * computed in two orders, and a trial counts only if that changes the bits of at least half of them.  Then an algorithm of
 * another order agrees with the first in all of C by a chance far below that of a broken bit in memory.  A C of 16 bits hides
 * most of the differences, so it must be large. */
#ifndef OFFLOAD_DEVICE_CUDA_DEVICE_CUDA_TRIAL_INTERNAL_H
#define OFFLOAD_DEVICE_CUDA_DEVICE_CUDA_TRIAL_INTERNAL_H

#include "offload/device/cuda/device_cuda_blas_internal.h"
#include "offload/device/tensor_ops.h"

#define ST_CUDA_CANDIDATES  8u
#define ST_CUDA_TRIALS      64u                  /* of a device: one takes the time of 25 of its products, at most 40 ms */
#define ST_CUDA_TRIAL_TERMS (UINT64_C(1) << 21)  /* a product of fewer takes no longer than its launch */
#define ST_CUDA_TRIAL_ELEMS (UINT64_C(1) << 20)  /* of a C of 16 bits: one in 2^14 shows another order, so 64 do */
#define ST_CUDA_TRIAL_CODE  (UINT64_C(32) << 20) /* bytes of ST_CUDA_CODE that kernels of candidates may take in all */

/* A product of the library with all its operands, in the library's order: C' = B' A'. */
struct st_blas_call {
    const struct st_blas *blas;
    blas_desc_t desc;
    const blas_layout_t *layout; /* [3]: B, A, C */
    const struct st_matmul *mm;
    const void *a, *b;
    void *c, *workspace;
    uint64_t workspace_bytes;
    cudaStream_t stream;
};

/* One trial at a time; zeroed: none yet. */
struct st_cuda_trial {
    uint64_t *found; /* pinned: samples whose order counts, then two sums of C for each candidate; NULL: not made yet */
    cudaEvent_t from[ST_CUDA_CANDIDATES], to[ST_CUDA_CANDIDATES], end;
    uint32_t count;  /* of its candidates */
    uint32_t failed; /* a bit for each */
    uint32_t made;   /* trials */
    uint64_t code;   /* bytes that candidates' kernels took */
    bool runs;
};

/* device_cuda_matmul.c: enqueues the product; 0 or a cublasStatus_t. */
int st_blas_call(const struct st_blas_call *call, const struct blas_algo *algo, float beta);

/* Whether a trial of this product can show anything. */
bool st_cuda_trial_is_worth(const struct st_matmul *mm);
/* Enqueues a trial; C is to be written by the call, and the workspace is the trial's.  False: none was made. */
bool st_cuda_trial_start(struct st_cuda_trial *t, const struct st_blas_call *call, const struct blas_algo *algos, uint32_t count);
/* Whether a trial has ended since; *fastest: its index of the algorithm to use from now on. */
bool st_cuda_trial_ended(struct st_cuda_trial *t, uint32_t *fastest);
void st_cuda_trial_fini(struct st_cuda_trial *t); /* when the queue has ended */

#endif

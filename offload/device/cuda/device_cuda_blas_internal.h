/* offload/device/cuda/device_cuda_blas_internal.h - the part of cublasLt that matmuls need, opened at run time.
 *
 * The declarations are our own, with the names and values of the toolkit's cublasLt.h (the same in 12 and 13), so the build needs
 * neither the headers nor the library.  Matrices are column-major.  A function returns 0 or a cublasStatus_t. */
#ifndef OFFLOAD_DEVICE_CUDA_DEVICE_CUDA_BLAS_INTERNAL_H
#define OFFLOAD_DEVICE_CUDA_DEVICE_CUDA_BLAS_INTERNAL_H

#include "offload/device/cuda/cuda_library.h"
#include "strata/status.h"
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BLAS_ALLOC_FAILED = 3 };                            /* cublasStatus_t */
enum { BLAS_R_32F = 0, BLAS_R_16F = 2, BLAS_R_16BF = 14 }; /* cudaDataType_t */
enum { BLAS_COMPUTE_32F = 68 };                            /* cublasComputeType_t; for fp32 operands this does not use TF32 */
enum { BLAS_OP_N = 0, BLAS_OP_T = 1 };                     /* cublasOperation_t */
enum {                                                     /* cublasLtEpilogue_t, 32 bits; gelu: the tanh form */
       BLAS_EPILOGUE_DEFAULT = 1,
       BLAS_EPILOGUE_BIAS = 4,       /* may be combined with GELU_AUX; the bias is added first */
       BLAS_EPILOGUE_GELU_AUX = 160, /* keeps the input of gelu in aux */
       BLAS_EPILOGUE_DGELU = 192     /* multiplies by gelu'(aux) */
};
enum { BLAS_REDUCTION_COMPUTE_TYPE = 2 }; /* cublasLtReductionScheme_t, as a mask, 32 bits */
enum {                                    /* cublasLtMatmulDescAttributes_t */
       BLAS_DESC_TRANSA = 3,
       BLAS_DESC_TRANSB = 4,
       BLAS_DESC_EPILOGUE = 7,
       BLAS_DESC_BIAS_POINTER = 8,
       BLAS_DESC_AUX_POINTER = 11, /* of D's type */
       BLAS_DESC_AUX_LD = 12,      /* int64_t, a multiple of 8 */
       BLAS_DESC_BIAS_DATA_TYPE = 26
};
enum { /* cublasLtMatmulPreferenceAttributes_t */
       BLAS_PREF_MAX_WORKSPACE_BYTES = 1,
       BLAS_PREF_REDUCTION_SCHEME_MASK = 3,
       BLAS_PREF_MIN_ALIGNMENT_A_BYTES = 5,
       BLAS_PREF_MIN_ALIGNMENT_B_BYTES = 6,
       BLAS_PREF_MIN_ALIGNMENT_C_BYTES = 7,
       BLAS_PREF_MIN_ALIGNMENT_D_BYTES = 8
};

typedef struct blas_handle *blas_handle_t;
typedef struct blas_desc *blas_desc_t;
typedef struct blas_layout *blas_layout_t;
typedef struct blas_preference *blas_preference_t;
struct blas_algo {
    uint64_t data[8];
};
struct blas_heuristic {
    struct blas_algo algo;
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};

struct st_blas {
    void *library;
    char name[256];       /* file of the library that was opened */
    blas_handle_t handle; /* of the device that was current; NULL: none was wanted */
    size_t (*version)(void);
    int (*create)(blas_handle_t *handle);
    int (*destroy)(blas_handle_t handle);
    int (*desc_create)(blas_desc_t *desc, int compute_type, int scale_type);
    int (*desc_destroy)(blas_desc_t desc);
    int (*desc_set)(blas_desc_t desc, int attribute, const void *value, size_t bytes);
    int (*layout_create)(blas_layout_t *layout, int type, uint64_t rows, uint64_t cols, int64_t ld);
    int (*layout_destroy)(blas_layout_t layout);
    int (*preference_create)(blas_preference_t *pref);
    int (*preference_destroy)(blas_preference_t pref);
    int (*preference_set)(blas_preference_t pref, int attribute, const void *value, size_t bytes);
    int (*heuristic)(blas_handle_t handle, blas_desc_t desc, blas_layout_t a, blas_layout_t b, blas_layout_t c, blas_layout_t d,
                     blas_preference_t pref, int wanted, struct blas_heuristic *results, int *found);
    int (*matmul)(blas_handle_t handle, blas_desc_t desc, const void *alpha, const void *a, blas_layout_t a_layout, const void *b,
                  blas_layout_t b_layout, const void *beta, const void *c, blas_layout_t c_layout, void *d,
                  blas_layout_t d_layout, const struct blas_algo *algo, void *workspace, size_t workspace_bytes,
                  cudaStream_t stream);
};

extern const struct st_library_kind st_blas_library; /* where it is searched for, and in which order */

/** Opens cublasLt (cuda_library.h says where it is searched for).
 *  @param kind         st_blas_library; tests search for another name
 *  @param with_handle  a library counts only if cublasLtCreate succeeds on the current device; false: only named, no GPU needed
 *  @return E_NOSYS: none can be used; the sentence says what to install and what was tried.  E_DEVICE_OOM */
strata_status st_blas_open(struct st_blas *out, const struct st_library_kind *kind, bool with_handle);
void st_blas_close(struct st_blas *blas); /* destroys the handle; a zeroed struct is allowed */

#endif

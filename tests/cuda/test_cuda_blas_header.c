/* Our declarations of cublasLt against its own header, when this is compiled; and against the library, which checks the size of
 * each attribute.  The library is opened without a handle, so no GPU is needed.  Exits 77 where there is none. */
#include "core/base/error.h"
#include "offload/device/cuda/device_cuda_blas_internal.h"
#include "tests/common/test.h"
#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours " is not " #theirs)
#define LIES(ours, at, theirs, there)                                                                                            \
    _Static_assert(offsetof(struct ours, at) == offsetof(theirs, there) &&                                                       \
                       sizeof(((struct ours *)0)->at) == sizeof(((theirs *)0)->there),                                           \
                   "where " #at " of " #ours " lies, or its size")

SAME(BLAS_ALLOC_FAILED, CUBLAS_STATUS_ALLOC_FAILED);
SAME(0, CUBLAS_STATUS_SUCCESS);
SAME(1, CUBLAS_STATUS_NOT_INITIALIZED); /* these and ALLOC_FAILED have meanings to device_cuda_matmul.c */
SAME(8, CUBLAS_STATUS_ARCH_MISMATCH);
SAME(13, CUBLAS_STATUS_EXECUTION_FAILED);
SAME(15, CUBLAS_STATUS_NOT_SUPPORTED);
SAME(BLAS_R_32F, CUDA_R_32F);
SAME(BLAS_R_16F, CUDA_R_16F);
SAME(BLAS_R_16BF, CUDA_R_16BF);
SAME(BLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F);
SAME(BLAS_OP_N, CUBLAS_OP_N);
SAME(BLAS_OP_T, CUBLAS_OP_T);
SAME(BLAS_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_DEFAULT);
SAME(BLAS_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BIAS);
SAME(BLAS_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX);
SAME(BLAS_EPILOGUE_GELU_AUX | BLAS_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
SAME(BLAS_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_DGELU);
SAME(BLAS_REDUCTION_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
SAME(BLAS_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSA);
SAME(BLAS_DESC_TRANSB, CUBLASLT_MATMUL_DESC_TRANSB);
SAME(BLAS_DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE);
SAME(BLAS_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
SAME(BLAS_DESC_AUX_POINTER, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
SAME(BLAS_DESC_AUX_LD, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
SAME(BLAS_DESC_BIAS_DATA_TYPE, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
SAME(BLAS_PREF_MAX_WORKSPACE_BYTES, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SAME(BLAS_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
SAME(BLAS_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
SAME(BLAS_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
SAME(BLAS_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
SAME(BLAS_PREF_MIN_ALIGNMENT_D_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);

LIES(blas_heuristic, algo, cublasLtMatmulHeuristicResult_t, algo);
LIES(blas_heuristic, workspace_bytes, cublasLtMatmulHeuristicResult_t, workspaceSize);
LIES(blas_heuristic, state, cublasLtMatmulHeuristicResult_t, state);
LIES(blas_heuristic, waves, cublasLtMatmulHeuristicResult_t, wavesCount);
_Static_assert(sizeof(struct blas_heuristic) == sizeof(cublasLtMatmulHeuristicResult_t), "size of a heuristic's result");

/* An enumeration is passed as an int. */
_Static_assert(sizeof(cublasComputeType_t) == sizeof(int) && sizeof(cudaDataType_t) == sizeof(int) &&
                   sizeof(cublasLtMatmulDescAttributes_t) == sizeof(int) && sizeof(cublasStatus_t) == sizeof(int) &&
                   sizeof(cublasLtMatmulPreferenceAttributes_t) == sizeof(int),
               "size of an enumeration");

/* The functions have the parameters of our pointers, in their order.  Only the types are looked at: nothing is called. */
#define TYPES(f, ...) _Static_assert(_Generic(f, cublasStatus_t(*)(__VA_ARGS__) : 1, default : 0), "parameters of " #f)
_Static_assert(_Generic(cublasLtGetVersion, size_t (*)(void) : 1, default : 0), "parameters of cublasLtGetVersion");
TYPES(cublasLtCreate, cublasLtHandle_t *);
TYPES(cublasLtDestroy, cublasLtHandle_t);
TYPES(cublasLtMatmulDescCreate, cublasLtMatmulDesc_t *, cublasComputeType_t, cudaDataType_t);
TYPES(cublasLtMatmulDescDestroy, cublasLtMatmulDesc_t);
TYPES(cublasLtMatmulDescSetAttribute, cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *, size_t);
TYPES(cublasLtMatrixLayoutCreate, cublasLtMatrixLayout_t *, cudaDataType, uint64_t, uint64_t, int64_t);
TYPES(cublasLtMatrixLayoutDestroy, cublasLtMatrixLayout_t);
TYPES(cublasLtMatmulPreferenceCreate, cublasLtMatmulPreference_t *);
TYPES(cublasLtMatmulPreferenceDestroy, cublasLtMatmulPreference_t);
TYPES(cublasLtMatmulPreferenceSetAttribute, cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void *,
      size_t);
TYPES(cublasLtMatmulAlgoGetHeuristic, cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
      cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t *, int *);
TYPES(cublasLtMatmul, cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *, cublasLtMatrixLayout_t, const void *,
      cublasLtMatrixLayout_t, const void *, const void *, cublasLtMatrixLayout_t, void *, cublasLtMatrixLayout_t,
      const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t);

static struct st_blas blas;

TEST(the_version_is_one_we_know)
{
    const size_t major = blas.version() / 10000;

    assert_true(major == 12 || major == 13);
}

/* The library takes an attribute of this size and of no other. */
static void takes(int (*set)(void *object, int attribute, const void *value, size_t bytes), void *object, int attribute,
                  size_t bytes)
{
    const uint64_t zeros[2] = {0};

    if (set(object, attribute, zeros, bytes) != 0 || set(object, attribute, zeros, 2 * bytes) == 0)
        fail_msg("attribute %d does not have %zu bytes", attribute, bytes);
}

static int set_desc(void *desc, int attribute, const void *value, size_t bytes)
{
    return blas.desc_set(desc, attribute, value, bytes);
}

static int set_preference(void *preference, int attribute, const void *value, size_t bytes)
{
    return blas.preference_set(preference, attribute, value, bytes);
}

TEST(attributes_have_the_sizes_that_we_give)
{
    static const size_t desc_bytes[][2] = {{BLAS_DESC_TRANSA, sizeof(int32_t)},        {BLAS_DESC_TRANSB, sizeof(int32_t)},
                                           {BLAS_DESC_EPILOGUE, sizeof(uint32_t)},     {BLAS_DESC_BIAS_POINTER, sizeof(void *)},
                                           {BLAS_DESC_AUX_POINTER, sizeof(void *)},    {BLAS_DESC_AUX_LD, sizeof(int64_t)},
                                           {BLAS_DESC_BIAS_DATA_TYPE, sizeof(int32_t)}};
    blas_desc_t desc;
    blas_preference_t preference;

    assert_int_equal(blas.desc_create(&desc, BLAS_COMPUTE_32F, BLAS_R_32F), 0);
    for (size_t i = 0; i < sizeof(desc_bytes) / sizeof(desc_bytes[0]); i++)
        takes(set_desc, desc, (int)desc_bytes[i][0], desc_bytes[i][1]);
    assert_int_equal(blas.desc_destroy(desc), 0);
    assert_int_equal(blas.preference_create(&preference), 0);
    takes(set_preference, preference, BLAS_PREF_MAX_WORKSPACE_BYTES, sizeof(uint64_t));
    takes(set_preference, preference, BLAS_PREF_REDUCTION_SCHEME_MASK, sizeof(uint32_t));
    for (int i = BLAS_PREF_MIN_ALIGNMENT_A_BYTES; i <= BLAS_PREF_MIN_ALIGNMENT_D_BYTES; i++)
        takes(set_preference, preference, i, sizeof(uint32_t));
    assert_int_equal(blas.preference_destroy(preference), 0);
}

TEST_MAIN(argc, argv)
{
    int failed;

    if (st_blas_open(&blas, &st_blas_library, false) != STRATA_OK) {
        fprintf(stderr, "skipped: %s\n", strata_last_error());
        return 77;
    }
    failed = test_run(NULL, NULL);
    st_blas_close(&blas);
    return failed;
}

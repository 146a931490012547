/* tests/cuda/emulator/blas.c - the part of cublasLt that offload/device_cuda_blas.h names, over host memory: a library to be opened
 * at run time.  Column-major; fp64 sums rounded once to C; beta * C added in fp32; with the bias epilogue bias [rows of C] too.
 * As strict as the library: a bias of another type than C's has no algorithm, and operands less aligned than the heuristic was
 * told are refused. */
#include "offload/device_cuda_blas.h"
#include "kernels/scalar.h"
#include "tests/cuda/emulator/blas.h"

#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

enum { OK = 0, ALLOC_FAILED = 3, INVALID_VALUE = 7, NOT_SUPPORTED = 15 }; /* cublasStatus_t */

extern API struct twin_blas twin_blas;
struct twin_blas twin_blas;

struct blas_handle {
    int unused;
};

struct blas_preference {
    uint64_t workspace_bytes;
    uint32_t align[4]; /* A, B, C, D; what an algorithm keeps of them */
};

struct blas_desc {
    int32_t trans_a, trans_b, bias_type;
    uint32_t epilogue;
    const void *bias;
};

struct blas_layout {
    int type;
    uint64_t rows, cols;
    int64_t ld;
};

/* A matmul that a stream has still to do: all it needs, by value. */
struct job {
    struct blas_desc desc;
    struct blas_layout a_layout, b_layout, c_layout;
    float beta;
    const void *a, *b;
    void *c;
};

API size_t cublasLtGetVersion(void);
API int cublasLtCreate(blas_handle_t *handle);
API int cublasLtDestroy(blas_handle_t handle);
API int cublasLtMatmulDescCreate(blas_desc_t *desc, int compute_type, int scale_type);
API int cublasLtMatmulDescDestroy(blas_desc_t desc);
API int cublasLtMatmulDescSetAttribute(blas_desc_t desc, int attribute, const void *value, size_t bytes);
API int cublasLtMatrixLayoutCreate(blas_layout_t *layout, int type, uint64_t rows, uint64_t cols, int64_t ld);
API int cublasLtMatrixLayoutDestroy(blas_layout_t layout);
API int cublasLtMatmulPreferenceCreate(blas_preference_t *pref);
API int cublasLtMatmulPreferenceDestroy(blas_preference_t pref);
API int cublasLtMatmulPreferenceSetAttribute(blas_preference_t pref, int attribute, const void *value, size_t bytes);
API int cublasLtMatmulAlgoGetHeuristic(blas_handle_t handle, blas_desc_t desc, blas_layout_t a, blas_layout_t b, blas_layout_t c,
                                       blas_layout_t d, blas_preference_t pref, int wanted, struct blas_heuristic *results,
                                       int *found);
API int cublasLtMatmul(blas_handle_t handle, blas_desc_t desc, const void *alpha, const void *a, blas_layout_t a_layout,
                       const void *b, blas_layout_t b_layout, const void *beta, const void *c, blas_layout_t c_layout, void *d,
                       blas_layout_t d_layout, const struct blas_algo *algo, void *workspace, size_t workspace_bytes,
                       cudaStream_t stream);

size_t cublasLtGetVersion(void)
{
    return 130000;
}

static int make(void **out, size_t bytes)
{
    *out = calloc(1, bytes);
    twin_blas.objects += *out != NULL;
    return *out != NULL ? OK : ALLOC_FAILED;
}

static int drop(void *object)
{
    twin_blas.objects--;
    free(object);
    return OK;
}

int cublasLtCreate(blas_handle_t *handle)
{
    return make((void **)handle, sizeof(**handle));
}

int cublasLtDestroy(blas_handle_t handle)
{
    return drop(handle);
}

int cublasLtMatmulDescCreate(blas_desc_t *desc, int compute_type, int scale_type)
{
    if (compute_type != BLAS_COMPUTE_32F || scale_type != BLAS_R_32F)
        return NOT_SUPPORTED;
    return make((void **)desc, sizeof(**desc));
}

int cublasLtMatmulDescDestroy(blas_desc_t desc)
{
    return drop(desc);
}

int cublasLtMatmulDescSetAttribute(blas_desc_t desc, int attribute, const void *value, size_t bytes)
{
    void *const to = attribute == BLAS_DESC_TRANSA           ? (void *)&desc->trans_a
                     : attribute == BLAS_DESC_TRANSB         ? (void *)&desc->trans_b
                     : attribute == BLAS_DESC_EPILOGUE       ? (void *)&desc->epilogue
                     : attribute == BLAS_DESC_BIAS_DATA_TYPE ? (void *)&desc->bias_type
                     : attribute == BLAS_DESC_BIAS_POINTER   ? (void *)&desc->bias
                                                             : NULL;

    if (to == NULL || bytes != (attribute == BLAS_DESC_BIAS_POINTER ? sizeof(void *) : sizeof(int32_t)))
        return INVALID_VALUE;
    memcpy(to, value, bytes);
    return OK;
}

int cublasLtMatrixLayoutCreate(blas_layout_t *layout, int type, uint64_t rows, uint64_t cols, int64_t ld)
{
    int rc = (type == BLAS_R_32F || type == BLAS_R_16F || type == BLAS_R_16BF) && rows > 0 && cols > 0 && ld >= (int64_t)rows
                 ? make((void **)layout, sizeof(**layout))
                 : INVALID_VALUE;

    if (rc == OK)
        **layout = (struct blas_layout){type, rows, cols, ld};
    return rc;
}

int cublasLtMatrixLayoutDestroy(blas_layout_t layout)
{
    return drop(layout);
}

int cublasLtMatmulPreferenceCreate(blas_preference_t *pref)
{
    return make((void **)pref, sizeof(**pref));
}

int cublasLtMatmulPreferenceDestroy(blas_preference_t pref)
{
    return drop(pref);
}

int cublasLtMatmulPreferenceSetAttribute(blas_preference_t pref, int attribute, const void *value, size_t bytes)
{
    if (attribute == BLAS_PREF_MAX_WORKSPACE_BYTES && bytes == sizeof(pref->workspace_bytes))
        memcpy(&pref->workspace_bytes, value, bytes);
    else if (bytes != sizeof(uint32_t))
        return INVALID_VALUE;
    else if (attribute >= BLAS_PREF_MIN_ALIGNMENT_A_BYTES && attribute <= BLAS_PREF_MIN_ALIGNMENT_D_BYTES)
        memcpy(&pref->align[attribute - BLAS_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
    return OK;
}

/* Whether op(A) op(B) has the shape of C. */
static int fits(const struct blas_desc *desc, const struct blas_layout *a, const struct blas_layout *b, const struct blas_layout *c)
{
    const uint64_t a_rows = desc->trans_a ? a->cols : a->rows, a_cols = desc->trans_a ? a->rows : a->cols;
    const uint64_t b_rows = desc->trans_b ? b->cols : b->rows, b_cols = desc->trans_b ? b->rows : b->cols;

    return a->type == b->type && a_cols == b_rows && a_rows == c->rows && b_cols == c->cols;
}

int cublasLtMatmulAlgoGetHeuristic(blas_handle_t handle, blas_desc_t desc, blas_layout_t a, blas_layout_t b, blas_layout_t c,
                                   blas_layout_t d, blas_preference_t pref, int wanted, struct blas_heuristic *results, int *found)
{
    if (handle == NULL || pref == NULL || wanted < 1 || c->type != d->type || !fits(desc, a, b, d))
        return INVALID_VALUE;
    memset(results, 0, sizeof(*results));
    *found = 0;
    twin_blas.heuristics++;
    if (twin_blas.refuses_heuristics || (d->type != a->type && d->type != BLAS_R_32F) ||
        (desc->epilogue == BLAS_EPILOGUE_BIAS && desc->bias_type != d->type))
        return NOT_SUPPORTED;
    memcpy(results->algo.data, pref->align, sizeof(pref->align));
    *found = 1;
    return OK;
}

static double value_at(const void *p, int type, uint64_t i)
{
    if (type == BLAS_R_32F)
        return (double)((const float *)p)[i];
    return (double)(type == BLAS_R_16BF ? st_bf16_to_f32(((const uint16_t *)p)[i]) : st_f16_to_f32(((const uint16_t *)p)[i]));
}

static void store_at(void *p, int type, uint64_t i, float x)
{
    if (type == BLAS_R_32F)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = type == BLAS_R_16BF ? st_f32_to_bf16(x) : st_f32_to_f16(x);
}

static double sum_at(const struct job *j, uint64_t row, uint64_t col)
{
    const uint64_t k = j->desc.trans_a ? j->a_layout.rows : j->a_layout.cols;
    const uint64_t lda = (uint64_t)j->a_layout.ld, ldb = (uint64_t)j->b_layout.ld;
    double sum = 0;

    for (uint64_t i = 0; i < k; i++)
        sum += value_at(j->a, j->a_layout.type, j->desc.trans_a ? row * lda + i : i * lda + row) *
               value_at(j->b, j->b_layout.type, j->desc.trans_b ? i * ldb + col : col * ldb + i);
    if (j->desc.epilogue == BLAS_EPILOGUE_BIAS)
        sum += value_at(j->desc.bias, j->desc.bias_type, row);
    return sum;
}

static void run_job(void *of)
{
    struct job *j = of;

    for (uint64_t col = 0; col < j->c_layout.cols; col++)
        for (uint64_t row = 0; row < j->c_layout.rows; row++) {
            const uint64_t i = col * (uint64_t)j->c_layout.ld + row;
            float x = (float)sum_at(j, row, col);

            if (j->beta != 0) /* else C may hold anything */
                x += j->beta * (float)value_at(j->c, j->c_layout.type, i);
            store_at(j->c, j->c_layout.type, i, x);
        }
    free(j);
}

static int is_aligned(const struct blas_algo *algo, uint32_t operand, const void *p)
{
    const uint64_t two = algo->data[operand / 2];
    const uint64_t align = operand % 2 == 0 ? two & UINT32_MAX : two >> 32;

    return align == 0 || (uintptr_t)p % align == 0;
}

int cublasLtMatmul(blas_handle_t handle, blas_desc_t desc, const void *alpha, const void *a, blas_layout_t a_layout, const void *b,
                   blas_layout_t b_layout, const void *beta, const void *c, blas_layout_t c_layout, void *d,
                   blas_layout_t d_layout, const struct blas_algo *algo, void *workspace, size_t workspace_bytes,
                   cudaStream_t stream)
{
    struct job *j;

    (void)c_layout;
    if (handle == NULL || algo == NULL || c != d || (workspace == NULL && workspace_bytes > 0) ||
        *(const float *)alpha != 1 || !fits(desc, a_layout, b_layout, d_layout))
        return INVALID_VALUE;
    if (!is_aligned(algo, 0, a) || !is_aligned(algo, 1, b) || !is_aligned(algo, 2, c) || !is_aligned(algo, 3, d))
        return INVALID_VALUE;
    j = malloc(sizeof(*j));
    if (j == NULL)
        return ALLOC_FAILED;
    *j = (struct job){*desc, *a_layout, *b_layout, *d_layout, *(const float *)beta, a, b, d};
    if (cudaLaunchHostFunc(stream, run_job, j) == cudaSuccess)
        return OK;
    free(j);
    return 13; /* CUBLAS_STATUS_EXECUTION_FAILED */
}

/* tests/cuda/emulator/blas.c - the part of cublasLt that offload/device/cuda/device_cuda_blas_internal.h names, over host memory:
 * a library to be opened at run time.  Column-major; of 16 bits sums as of tensor cores, else of fp64, rounded once to C; beta *
 * C added in fp32; with the bias epilogue bias [rows of C] too. As strict as the library: a bias of another type than C's has no
 * algorithm, what an epilogue needs must be set, and operands less aligned than the heuristic was told, or less workspace, are
 * refused. And as free as it: with a GELU epilogue K is summed in two halves, so that neither aux nor C have a plain matmul's
 * bits, and gelu and its slope are taken of, or multiplied with, what is not yet rounded.  The workspace is written to.  It may
 * be asked to offer several algorithms (blas.h), of other speeds and bits. */
#include "tests/cuda/emulator/blas.h"
#include "kernels/isa/scalar.h"
#include "offload/device/cuda/device_cuda_blas_internal.h"
#include "tests/cuda/emulator/tensor_core.h"
#include "tests/cuda/emulator/twin.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#ifndef TWIN_BLAS_BROKEN
#define TWIN_BLAS_BROKEN 0
#endif
#ifndef TWIN_BLAS_LACKING
#define TWIN_BLAS_LACKING 0
#endif
#define API __attribute__((visibility("default")))

enum {
    OK = 0,
    NOT_INITIALIZED = 1,
    ALLOC_FAILED = 3,
    INVALID_VALUE = 7,
    EXECUTION_FAILED = 13,
    NOT_SUPPORTED = 15
}; /* cublasStatus_t */
enum { ALIGN_MOST = 16, SCRIBBLE = 64 };

extern API struct twin_blas twin_blas;
struct twin_blas twin_blas;

struct blas_handle {
    void *code[TWIN_BLAS_KINDS]; /* device memory of the algorithms that ran */
};

struct blas_preference {
    uint64_t workspace_bytes;
    uint32_t align[4]; /* A, B, C, D; what an algorithm keeps of them */
};

struct blas_desc {
    int32_t trans_a, trans_b, bias_type; /* bias_type -1: D's */
    uint32_t epilogue;
    const void *bias;
    void *aux;
    int64_t aux_ld;
};

struct blas_layout {
    int type;
    uint64_t rows, cols;
    int64_t ld;
};

/* What an algorithm was chosen for, as bytes of struct blas_algo: alignments of A, B, C, D, bias and aux, 0 for any. */
struct terms {
    uint32_t align[6], kind;
    uint64_t workspace_bytes;
};

/* A matmul that a stream has still to do: all it needs, by value. */
struct job {
    struct blas_desc desc;
    struct blas_layout a_layout, b_layout, c_layout;
    float beta;
    const void *a, *b;
    void *c;
    unsigned char *workspace;
    size_t workspace_bytes;
    uint32_t kind;
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

static int invalid(void)
{
    twin_blas.invalid++;
    return INVALID_VALUE;
}

size_t cublasLtGetVersion(void)
{
    return 130000;
}

/* What was allocated and not given back: a lost device leaves its handle to the driver and its matmuls in their queue, which is
 * no leak of ours. */
struct kept {
    struct kept *next, *before;
};
static struct kept alive = {&alive, &alive};
static pthread_mutex_t alive_lock = PTHREAD_MUTEX_INITIALIZER;

static void *keep(size_t bytes)
{
    struct kept *k = calloc(1, sizeof(*k) + bytes);

    if (k == NULL)
        return NULL;
    pthread_mutex_lock(&alive_lock);
    *k = (struct kept){.next = alive.next, .before = &alive};
    k->next->before = alive.next = k;
    pthread_mutex_unlock(&alive_lock);
    return k + 1;
}

static void give_back(void *object)
{
    struct kept *k = (struct kept *)object - 1;

    pthread_mutex_lock(&alive_lock);
    k->next->before = k->before;
    k->before->next = k->next;
    pthread_mutex_unlock(&alive_lock);
    free(k);
}

static int make(void **out, size_t bytes)
{
    *out = keep(bytes);
    twin_blas.objects += *out != NULL;
    return *out != NULL ? OK : ALLOC_FAILED;
}

static int drop(void *object)
{
    twin_blas.objects--;
    if (object != NULL)
        give_back(object);
    return OK;
}

#if TWIN_BLAS_BROKEN /* a stand-in for one that cannot work on this machine */
int cublasLtCreate(blas_handle_t *handle)
{
    *handle = NULL;
    return NOT_INITIALIZED;
}
#elif !TWIN_BLAS_LACKING /* nor for one of other functions */
int cublasLtCreate(blas_handle_t *handle)
{
    return make((void **)handle, sizeof(**handle));
}
#endif

int cublasLtDestroy(blas_handle_t handle)
{
    for (uint32_t i = 0; handle != NULL && i < TWIN_BLAS_KINDS; i++)
        if (handle->code[i] != NULL)
            (void)cudaFree(handle->code[i]);
    return drop(handle);
}

int cublasLtMatmulDescCreate(blas_desc_t *desc, int compute_type, int scale_type)
{
    if (compute_type != BLAS_COMPUTE_32F || scale_type != BLAS_R_32F)
        return NOT_SUPPORTED;
    if (make((void **)desc, sizeof(**desc)) != OK)
        return ALLOC_FAILED;
    (*desc)->epilogue = BLAS_EPILOGUE_DEFAULT;
    (*desc)->bias_type = -1;
    return OK;
}

int cublasLtMatmulDescDestroy(blas_desc_t desc)
{
    return drop(desc);
}

int cublasLtMatmulDescSetAttribute(blas_desc_t desc, int attribute, const void *value, size_t bytes)
{
    const struct {
        int attribute;
        void *to;
        size_t bytes;
    } known[] = {
        {BLAS_DESC_TRANSA, &desc->trans_a, sizeof(desc->trans_a)},
        {BLAS_DESC_TRANSB, &desc->trans_b, sizeof(desc->trans_b)},
        {BLAS_DESC_EPILOGUE, &desc->epilogue, sizeof(desc->epilogue)},
        {BLAS_DESC_BIAS_POINTER, &desc->bias, sizeof(desc->bias)},
        {BLAS_DESC_AUX_POINTER, &desc->aux, sizeof(desc->aux)},
        {BLAS_DESC_AUX_LD, &desc->aux_ld, sizeof(desc->aux_ld)},
        {BLAS_DESC_BIAS_DATA_TYPE, &desc->bias_type, sizeof(desc->bias_type)},
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (known[i].attribute != attribute || known[i].bytes != bytes)
            continue;
        memcpy(known[i].to, value, bytes);
        return OK;
    }
    return invalid();
}

int cublasLtMatrixLayoutCreate(blas_layout_t *layout, int type, uint64_t rows, uint64_t cols, int64_t ld)
{
    int rc = (type == BLAS_R_32F || type == BLAS_R_16F || type == BLAS_R_16BF) && rows > 0 && cols > 0 && ld >= (int64_t)rows
                 ? make((void **)layout, sizeof(**layout))
                 : invalid();

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
        return invalid();
    else if (attribute >= BLAS_PREF_MIN_ALIGNMENT_A_BYTES && attribute <= BLAS_PREF_MIN_ALIGNMENT_D_BYTES)
        memcpy(&pref->align[attribute - BLAS_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
    return OK;
}

/* Whether op(A) op(B) has the shape of C. */
static int fits(const struct blas_desc *desc, const struct blas_layout *a, const struct blas_layout *b,
                const struct blas_layout *c)
{
    const uint64_t a_rows = desc->trans_a ? a->cols : a->rows, a_cols = desc->trans_a ? a->rows : a->cols;
    const uint64_t b_rows = desc->trans_b ? b->cols : b->rows, b_cols = desc->trans_b ? b->rows : b->cols;

    return a->type == b->type && a_cols == b_rows && a_rows == c->rows && b_cols == c->cols;
}

static int has_bias(const struct blas_desc *desc)
{
    return desc->epilogue == BLAS_EPILOGUE_BIAS || desc->epilogue == (BLAS_EPILOGUE_GELU_AUX | BLAS_EPILOGUE_BIAS);
}

static int has_gelu(const struct blas_desc *desc)
{
    return (desc->epilogue & ~(uint32_t)BLAS_EPILOGUE_BIAS) == BLAS_EPILOGUE_GELU_AUX;
}

static int has_slope(const struct blas_desc *desc)
{
    return desc->epilogue == BLAS_EPILOGUE_DGELU;
}

/* Whether an epilogue is known, and all that it reads is there. */
static int check_epilogue(const struct blas_desc *desc, const struct blas_layout *d)
{
    if (desc->epilogue != BLAS_EPILOGUE_DEFAULT && !has_bias(desc) && !has_gelu(desc) && !has_slope(desc))
        return NOT_SUPPORTED;
    if (has_bias(desc) && desc->bias == NULL)
        return invalid();
    if (has_bias(desc) && desc->bias_type != -1 && desc->bias_type != d->type)
        return NOT_SUPPORTED;
    if (has_bias(desc) && twin_blas.refuses_bias)
        return NOT_SUPPORTED;
    if (!has_gelu(desc) && !has_slope(desc))
        return OK;
    if (desc->aux == NULL || desc->aux_ld < (int64_t)d->rows || desc->aux_ld % 8 != 0)
        return invalid();
    return twin_blas.refuses_gelu ? NOT_SUPPORTED : OK;
}

static uint32_t alignment(const void *p)
{
    const uintptr_t at = (uintptr_t)p | ALIGN_MOST;

    return (uint32_t)(at & (~at + 1));
}

int cublasLtMatmulAlgoGetHeuristic(blas_handle_t handle, blas_desc_t desc, blas_layout_t a, blas_layout_t b, blas_layout_t c,
                                   blas_layout_t d, blas_preference_t pref, int wanted, struct blas_heuristic *results,
                                   int *found)
{
    struct terms terms = {.align = {pref->align[0], pref->align[1], pref->align[2], pref->align[3]},
                          .workspace_bytes = pref->workspace_bytes};
    int rc;

    if (handle == NULL || wanted < 1 || c->type != d->type || !fits(desc, a, b, d))
        return invalid();
    memset(results, 0, (size_t)wanted * sizeof(*results));
    *found = 0;
    twin_blas.heuristics++;
    if (twin_blas.refuses_heuristics || (d->type != a->type && d->type != BLAS_R_32F))
        return NOT_SUPPORTED;
    rc = check_epilogue(desc, d);
    if (rc != OK)
        return rc;
    terms.align[4] = has_bias(desc) ? alignment(desc->bias) : 0;
    terms.align[5] = has_gelu(desc) || has_slope(desc) ? alignment(desc->aux) : 0;
    do {
        terms.kind = (uint32_t)*found;
        memcpy(results[*found].algo.data, &terms, sizeof(terms));
        results[*found].workspace_bytes = terms.workspace_bytes;
        results[*found].state = terms.kind == TWIN_BLAS_UNKNOWN ? NOT_SUPPORTED : OK;
    } while (++*found < wanted && *found < twin_blas.offered && *found < TWIN_BLAS_KINDS);
    if (twin_blas.claims != 0)
        *found = twin_blas.claims;
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

/* Rows of op(A) in memory, so that TWIN_WIDE of them are summed side by side. */
static uint64_t whole(uint64_t rows)
{
    return (rows + TWIN_WIDE - 1) / TWIN_WIDE * TWIN_WIDE;
}

/* op(A), [k and a step of zeros][whole(rows)]: the rows of a column are summed side by side, each in the order of k. */
static float *widen_a(const struct job *j, uint64_t rows, uint64_t k)
{
    const uint64_t lda = (uint64_t)j->a_layout.ld, width = whole(rows);
    float *wide = calloc(width * (k + TWIN_STEP), sizeof(*wide));

    for (uint64_t i = 0; wide != NULL && i < k; i++)
        for (uint64_t row = 0; row < rows; row++)
            wide[i * width + row] = (float)value_at(j->a, j->a_layout.type, j->desc.trans_a ? row * lda + i : i * lda + row);
    return wide;
}

static double value_of_b(const struct job *j, uint64_t i, uint64_t col)
{
    const uint64_t ldb = (uint64_t)j->b_layout.ld;

    return value_at(j->b, j->b_layout.type, j->desc.trans_b ? i * ldb + col : col * ldb + i);
}

/* The same as sum_between(), of 16 bits, as tensor cores do; sums are fp32 values. */
static void sum_by_steps(const struct job *j, const float *a, uint64_t rows, uint64_t col, uint64_t first, uint64_t end,
                         double *restrict sums)
{
    const uint64_t width = whole(rows);

    for (uint64_t k = first; k < end; k += TWIN_STEP) {
        float b[TWIN_STEP] = {0}, c[TWIN_WIDE] = {0};

        for (uint64_t i = k; i < end && i < k + TWIN_STEP; i++)
            b[i - k] = (float)value_of_b(j, i, col);
        for (uint64_t row = 0; row < width; row += TWIN_WIDE) {
            for (uint64_t i = 0; i < TWIN_WIDE && row + i < rows; i++)
                c[i] = (float)sums[row + i];
            twin_tensor_step(c, b, a + k * width + row, width);
            for (uint64_t i = 0; i < TWIN_WIDE && row + i < rows; i++)
                sums[row + i] = (double)c[i];
        }
    }
}

/* sums[rows] of column `col` of op(B), over [first, end) of k. */
static void sum_between(const struct job *j, const float *a, uint64_t rows, uint64_t col, uint64_t first, uint64_t end,
                        double *restrict sums)
{
    memset(sums, 0, rows * sizeof(*sums));
    if (j->a_layout.type != BLAS_R_32F) {
        sum_by_steps(j, a, rows, col, first, end, sums);
        return;
    }
    for (uint64_t i = first; i < end; i++) {
        const double b = value_of_b(j, i, col);

        for (uint64_t row = 0; row < rows; row++)
            sums[row] += (double)a[i * whole(rows) + row] * b;
    }
}

static double gelu(double x, double *slope)
{
    const double scale = sqrt(2 / M_PI), t = tanh(scale * (x + 0.044715 * x * x * x));

    *slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * scale * (1 + 3 * 0.044715 * x * x);
    return 0.5 * x * (1 + t);
}

/* The epilogue of one element; the aux is written or read. */
static float finish(const struct job *j, uint64_t row, uint64_t col, float x)
{
    const uint64_t at = col * (uint64_t)j->desc.aux_ld + row;
    double slope;

    if (has_gelu(&j->desc)) {
        store_at(j->desc.aux, j->c_layout.type, at, x);
        return (float)gelu((double)x, &slope);
    }
    if (!has_slope(&j->desc))
        return x;
    (void)gelu(value_at(j->desc.aux, j->c_layout.type, at), &slope);
    return (float)((double)x * slope);
}

/* Both ends of what the library was lent. */
static void scribble(const struct job *j)
{
    const size_t bytes = j->workspace_bytes < SCRIBBLE ? j->workspace_bytes : SCRIBBLE;

    if (bytes == 0)
        return;
    memset(j->workspace, 0xff, bytes);
    memset(j->workspace + j->workspace_bytes - bytes, 0xff, bytes);
}

/* One column of C; sums: [2][rows], over both halves of k where it is summed in halves. */
static void finish_column(const struct job *j, uint64_t col, uint64_t rows, const double *sums)
{
    for (uint64_t row = 0; row < rows; row++) {
        const uint64_t i = col * (uint64_t)j->c_layout.ld + row;
        const double bias = has_bias(&j->desc) ? value_at(j->desc.bias, j->c_layout.type, row) : 0;
        float x = (float)sums[row] + (float)(sums[rows + row] + bias);

        if (j->beta != 0 && j->kind == TWIN_BLAS_ADDS)
            x = (float)(sums[row] + sums[rows + row] + bias + (double)j->beta * value_at(j->c, j->c_layout.type, i));
        else if (j->beta != 0) /* else C may hold anything */
            x += j->beta * (float)value_at(j->c, j->c_layout.type, i);
        store_at(j->c, j->c_layout.type, i, finish(j, row, col, x));
    }
}

static void run_job(void *of)
{
    static const uint64_t seconds[TWIN_BLAS_KINDS] = {
        [TWIN_BLAS_FIRST] = 3, [TWIN_BLAS_SLOW] = 5, [TWIN_BLAS_BEST] = 1, [TWIN_BLAS_SECOND] = 2};
    struct job *j = of;
    const uint64_t rows = j->c_layout.rows, k = j->desc.trans_a ? j->a_layout.rows : j->a_layout.cols;
    const bool halves = has_gelu(&j->desc) || has_slope(&j->desc) || j->kind == TWIN_BLAS_OTHER;
    const uint64_t half = halves ? k / 2 : 0;
    float *const a = widen_a(j, rows, k);
    double *const sums = malloc(2 * rows * sizeof(*sums));

    if (a == NULL || sums == NULL)
        abort();
    scribble(j);
    if (twin_blas.offered > 1)
        twin_spend(seconds[j->kind] * 1000000000u);
    for (uint64_t col = 0; col < j->c_layout.cols; col++) {
        sum_between(j, a, rows, col, 0, half, sums);
        sum_between(j, a, rows, col, half, k, sums + rows);
        finish_column(j, col, rows, sums);
    }
    free(a);
    free(sums);
    give_back(j);
}

static int is_aligned(uint32_t align, const void *p)
{
    return align == 0 || (uintptr_t)p % align == 0;
}

/* Whether the call keeps what the heuristic was told. */
static int keeps(const struct terms *t, const struct blas_desc *desc, const void *a, const void *b, const void *c, const void *d,
                 size_t workspace_bytes)
{
    const void *const operands[] = {
        a, b, c, d, has_bias(desc) ? desc->bias : NULL, has_gelu(desc) || has_slope(desc) ? desc->aux : NULL};
    int kept = workspace_bytes >= t->workspace_bytes;

    for (uint32_t i = 0; i < 6; i++)
        kept = kept && is_aligned(t->align[i], operands[i]);
    return kept;
}

int cublasLtMatmul(blas_handle_t handle, blas_desc_t desc, const void *alpha, const void *a, blas_layout_t a_layout,
                   const void *b, blas_layout_t b_layout, const void *beta, const void *c, blas_layout_t c_layout, void *d,
                   blas_layout_t d_layout, const struct blas_algo *algo, void *workspace, size_t workspace_bytes,
                   cudaStream_t stream)
{
    struct terms terms;
    struct job *j;

    (void)c_layout;
    if (handle == NULL || algo == NULL || c != d || (workspace == NULL && workspace_bytes > 0) || *(const float *)alpha != 1 ||
        !fits(desc, a_layout, b_layout, d_layout) || check_epilogue(desc, d_layout) != OK)
        return invalid();
    memcpy(&terms, algo->data, sizeof(terms));
    if (!keeps(&terms, desc, a, b, c, d, workspace_bytes))
        return invalid();
    if (terms.kind == TWIN_BLAS_FAILS)
        return EXECUTION_FAILED;
    if (handle->code[terms.kind] == NULL && twin_blas.code_bytes > 0 &&
        cudaMalloc(&handle->code[terms.kind], twin_blas.code_bytes) != cudaSuccess)
        return ALLOC_FAILED;
    twin_blas.runs[terms.kind]++;
    twin_blas.gelus += has_gelu(desc) != 0;
    twin_blas.gelu_gradients += has_slope(desc) != 0;
    j = keep(sizeof(*j));
    if (j == NULL)
        return ALLOC_FAILED;
    *j = (struct job){.desc = *desc,
                      .a_layout = *a_layout,
                      .b_layout = *b_layout,
                      .c_layout = *d_layout,
                      .beta = *(const float *)beta,
                      .a = a,
                      .b = b,
                      .c = d,
                      .workspace = workspace,
                      .workspace_bytes = workspace_bytes,
                      .kind = terms.kind};
    if (twin_launch(stream, run_job, j) == cudaSuccess)
        return OK;
    give_back(j);
    return EXECUTION_FAILED;
}

/* device_cuda_matmul.c - matmuls by cublasLt: sums in fp32, bias and GELU in the epilogue, gradients added in fp32 to what C
 * holds.
 *
 * The library is column-major: a row-major C = op(A) op(B) is its C' = op(B)' op(A)', so B is passed first and no operand moves.
 * The algorithm of a shape gives the bits of the first that the library's heuristic returns for it.  That is a function of shape,
 * dtypes and the operands' alignment, never of what ran before.  At most 16 bytes of alignment count, so that the place of a
 * buffer decides nothing.  Partial sums are only ever reduced in fp32, in the workspace.  Of several algorithms with these bits
 * the fastest is found by a trial (device_cuda_trial_internal.h).
 *
 * If the library has no algorithm for a GELU (again a function of the same things; it never has one for the exact GELU), the
 * GELU is a pass after the plain matmul; if it has none with a bias, C is filled with the bias before a matmul that adds to C, so
 * the sum is still rounded once. The library's DGELU_BGRAD is not used: it writes a bias gradient in C's dtype and in an order of
 * its own, while ours adds in fp32.  The library wants a bias in C's dtype, so for an fp32 C the bias of 16-bit operands is
 * converted to fp32 at the end of the workspace. */
#include "core/base/error.h"
#include "kernels/cuda/cuda_ops.h"
#include "offload/device/cuda/device_cuda_blas_internal.h"
#include "offload/device/cuda/device_cuda_internal.h"
#include "offload/device/cuda/device_cuda_trial_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define CACHE_SETS      64u /* of CACHE_WAYS shapes each: a model has a few dozen; a full set replaces its oldest entry */
#define CACHE_WAYS      4u
#define ALIGN_MOST      16u
#define LT_OPERANDS     3u
#define AUX_MULTIPLE    8u /* of aux's leading dimension */
#define WORKSPACE_ALIGN 256u

enum { KEY_C = 9, KEY_A, KEY_B, KEY_BIAS, KEY_AUX, KEY_WORDS }; /* the words from KEY_C on are alignments */

struct matmul_key {
    uint32_t word[KEY_WORDS]; /* no padding: compared and hashed as bytes */
};

struct prepared {
    bool used, refused; /* refused: the library has no algorithm with this epilogue */
    bool untried;       /* a trial of its algorithms is still to be made */
    struct matmul_key key;
    blas_desc_t desc;
    blas_layout_t layout[LT_OPERANDS]; /* in the library's order: B, A, C */
    struct blas_algo algos[ST_CUDA_CANDIDATES];
    uint32_t algo_count, taken;
};

struct st_cuda_matmul {
    struct st_blas blas;
    blas_preference_t preference;
    void *workspace; /* [ST_CUDA_WORKSPACE] device */
    struct st_cuda_trial trial;
    struct prepared *tried; /* whose algorithms the trial that runs is of; NULL: of none that is still wanted */
    struct prepared cache[CACHE_SETS][CACHE_WAYS];
    uint32_t oldest[CACHE_SETS];
};

static strata_status blas_status(const struct st_cuda_matmul *m, int rc, const char *call)
{
    if (rc == 0)
        return STRATA_OK;
    return st_error(rc == BLAS_ALLOC_FAILED          ? STRATA_E_DEVICE_OOM
                    : rc == 1 || rc == 8 || rc == 15 ? STRATA_E_NOSYS
                                                     : STRATA_E_INTERNAL,
                    "cuda: %s of %s returned status %d", call, m->blas.name, rc);
}

/* --- create and destroy --- */

static strata_status set_preference(struct st_cuda_matmul *m)
{
    const uint32_t reductions = BLAS_REDUCTION_COMPUTE_TYPE;
    int rc = m->blas.preference_create(&m->preference);

    if (rc == 0)
        rc = m->blas.preference_set(m->preference, BLAS_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof(reductions));
    return blas_status(m, rc, "cublasLtMatmulPreferenceSetAttribute");
}

strata_status st_cuda_matmul_create(struct st_cuda_matmul **out)
{
    struct st_cuda_matmul *m = calloc(1, sizeof(*m));
    strata_status st;

    if (m == NULL)
        return st_nomem(sizeof(*m));
    st = st_blas_open(&m->blas, &st_blas_library, true);
    if (st == STRATA_OK)
        st = set_preference(m);
    if (st == STRATA_OK)
        st = st_cuda_status(ST_CUDA_PASS("cuda.malloc", cudaMalloc(&m->workspace, ST_CUDA_WORKSPACE)),
                            "cudaMalloc of the matmuls' workspace");
    if (st != STRATA_OK)
        st_cuda_matmul_destroy(m, false);
    else
        *out = m;
    return st;
}

void *st_cuda_matmul_workspace(const struct st_cuda_matmul *m)
{
    return m->workspace;
}

static void forget(const struct st_blas *blas, struct prepared *p)
{
    for (uint32_t i = 0; i < LT_OPERANDS; i++)
        if (p->layout[i] != NULL)
            (void)blas->layout_destroy(p->layout[i]);
    if (p->desc != NULL)
        (void)blas->desc_destroy(p->desc);
    *p = (struct prepared){0};
}

void st_cuda_matmul_destroy(struct st_cuda_matmul *m, bool lost)
{
    if (m == NULL)
        return;
    for (uint32_t set = 0; set < CACHE_SETS; set++)
        for (uint32_t way = 0; way < CACHE_WAYS; way++)
            forget(&m->blas, &m->cache[set][way]);
    if (m->preference != NULL)
        (void)m->blas.preference_destroy(m->preference);
    if (!lost) { /* these wait for the GPU */
        st_cuda_trial_fini(&m->trial);
        if (m->workspace != NULL)
            (void)cudaFree(m->workspace);
        st_blas_close(&m->blas);
    }
    free(m);
}

/* --- shapes --- */

static uint32_t alignment(const void *p)
{
    const uintptr_t at = (uintptr_t)p | ALIGN_MOST;

    return (uint32_t)(at & (~at + 1));
}

static int type_of(strata_dtype dt)
{
    return dt == STRATA_BF16 ? BLAS_R_16BF : dt == STRATA_F16 ? BLAS_R_16F : BLAS_R_32F;
}

/* The number that stands for an epilogue.  GELU_INPUT shares the number of GELU, since it gives the same bits. */
static uint32_t epilogue_of(const struct st_matmul *mm)
{
    const uint32_t bias = mm->bias ? BLAS_EPILOGUE_BIAS : 0;

    if (mm->epilogue == ST_EPILOGUE_GELU_BACKWARD)
        return BLAS_EPILOGUE_DGELU;
    if (mm->epilogue != ST_EPILOGUE_NONE)
        return BLAS_EPILOGUE_GELU_AUX | bias;
    return mm->bias ? bias : BLAS_EPILOGUE_DEFAULT;
}

/* Whether C is added to is no part of it: the heuristic is not told. */
static struct matmul_key key_of(const struct st_matmul *mm, const void *c, const void *a, const void *b, const void *bias)
{
    const uint32_t flags =
        (uint32_t)mm->trans_a | (uint32_t)mm->trans_b << 1 | (uint32_t)mm->bias << 2 | (uint32_t)epilogue_of(mm) << 3;

    return (struct matmul_key){{mm->m, mm->n, mm->k, mm->lda, mm->ldb, mm->ldc, flags, (uint32_t)mm->ab_dtype,
                                (uint32_t)mm->c_dtype, alignment(c), alignment(a), alignment(b), alignment(bias),
                                alignment(mm->aux)}};
}

static uint32_t set_of(const struct matmul_key *key)
{
    uint64_t hash = 0x9e3779b97f4a7c15u;

    for (uint32_t i = 0; i < KEY_WORDS; i++)
        hash = (hash ^ key->word[i]) * 0xff51afd7ed558ccdu;
    return (uint32_t)(hash >> 40) % CACHE_SETS;
}

/* Bytes of the bias in C's dtype if that is another dtype; they lie after the part of the workspace that the library may use. */
static uint64_t bias_bytes(const struct st_matmul *mm)
{
    const uint64_t bytes = mm->bias && mm->c_dtype != mm->ab_dtype ? (uint64_t)mm->n * sizeof(float) : 0;

    return (bytes + WORKSPACE_ALIGN - 1) / WORKSPACE_ALIGN * WORKSPACE_ALIGN;
}

static uint64_t workspace_of(const struct st_matmul *mm)
{
    return ST_CUDA_WORKSPACE - bias_bytes(mm);
}

static int set_pointers(const struct st_blas *blas, const struct prepared *p, const struct st_matmul *mm, const void *bias,
                        const void *aux)
{
    int rc = 0;

    if (mm->bias)
        rc = blas->desc_set(p->desc, BLAS_DESC_BIAS_POINTER, &bias, sizeof(bias));
    if (rc == 0 && mm->epilogue != ST_EPILOGUE_NONE)
        rc = blas->desc_set(p->desc, BLAS_DESC_AUX_POINTER, &aux, sizeof(aux));
    return rc;
}

/* The heuristic reads alignments from the pointers, so addresses with the alignments of the call's pointers are set here. */
static int make_desc(const struct st_cuda_matmul *m, struct prepared *p, const struct st_matmul *mm)
{
    const struct st_blas *blas = &m->blas;
    const unsigned char *const place = m->workspace; /* aligned to more than ALIGN_MOST */
    const int32_t first = mm->trans_b ? BLAS_OP_T : BLAS_OP_N, second = mm->trans_a ? BLAS_OP_T : BLAS_OP_N;
    const int32_t bias_type = type_of(mm->c_dtype);
    const uint32_t epilogue = epilogue_of(mm);
    const int64_t aux_ld = mm->ldc;
    int rc = blas->desc_create(&p->desc, BLAS_COMPUTE_32F, BLAS_R_32F);

    if (rc == 0)
        rc = blas->desc_set(p->desc, BLAS_DESC_TRANSA, &first, sizeof(first));
    if (rc == 0)
        rc = blas->desc_set(p->desc, BLAS_DESC_TRANSB, &second, sizeof(second));
    if (rc == 0)
        rc = blas->desc_set(p->desc, BLAS_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
    if (rc == 0 && mm->bias)
        rc = blas->desc_set(p->desc, BLAS_DESC_BIAS_DATA_TYPE, &bias_type, sizeof(bias_type));
    if (rc == 0 && mm->epilogue != ST_EPILOGUE_NONE)
        rc = blas->desc_set(p->desc, BLAS_DESC_AUX_LD, &aux_ld, sizeof(aux_ld));
    return rc != 0 ? rc : set_pointers(blas, p, mm, place + p->key.word[KEY_BIAS], place + p->key.word[KEY_AUX]);
}

/* A row-major matrix as stored, [rows, cols], is the library's [cols, rows]. */
static int make_layouts(const struct st_blas *blas, struct prepared *p, const struct st_matmul *mm)
{
    const int ab = type_of(mm->ab_dtype);
    int rc = blas->layout_create(&p->layout[0], ab, mm->trans_b ? mm->k : mm->n, mm->trans_b ? mm->n : mm->k, mm->ldb);

    if (rc == 0)
        rc = blas->layout_create(&p->layout[1], ab, mm->trans_a ? mm->m : mm->k, mm->trans_a ? mm->k : mm->m, mm->lda);
    if (rc == 0)
        rc = blas->layout_create(&p->layout[2], type_of(mm->c_dtype), mm->n, mm->m, mm->ldc);
    return rc;
}

static int set_limits(struct st_cuda_matmul *m, const struct prepared *p, const struct st_matmul *mm)
{
    const uint64_t workspace = workspace_of(mm);
    const struct {
        int attribute;
        uint32_t bytes;
    } alignments[] = {{BLAS_PREF_MIN_ALIGNMENT_A_BYTES, p->key.word[KEY_B]},
                      {BLAS_PREF_MIN_ALIGNMENT_B_BYTES, p->key.word[KEY_A]},
                      {BLAS_PREF_MIN_ALIGNMENT_C_BYTES, p->key.word[KEY_C]},
                      {BLAS_PREF_MIN_ALIGNMENT_D_BYTES, p->key.word[KEY_C]}};
    int rc = m->blas.preference_set(m->preference, BLAS_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace));

    for (uint32_t i = 0; i < 4 && rc == 0; i++)
        rc = m->blas.preference_set(m->preference, alignments[i].attribute, &alignments[i].bytes, sizeof(uint32_t));
    return rc;
}

/* Sets p->algos, or p->refused if there is an epilogue or a bias. */
static strata_status choose_algo(struct st_cuda_matmul *m, struct prepared *p, const struct st_matmul *mm)
{
    struct blas_heuristic found[ST_CUDA_CANDIDATES] = {0};
    int count = 0, rc = set_limits(m, p, mm);

    if (rc != 0)
        return blas_status(m, rc, "cublasLtMatmulPreferenceSetAttribute");
    rc = m->blas.heuristic(m->blas.handle, p->desc, p->layout[0], p->layout[1], p->layout[2], p->layout[2], m->preference,
                           ST_CUDA_CANDIDATES, found, &count);
    if (rc == 0 && count > 0)
        rc = found[0].state;
    p->refused = rc != 0 || count <= 0;
    if (p->refused && mm->epilogue == ST_EPILOGUE_NONE && !mm->bias)
        return st_error(STRATA_E_NOSYS, "cuda: %s has no matmul of %u x %u x %u from %s to %s (status %d)", m->blas.name, mm->m,
                        mm->n, mm->k, strata_dtype_name(mm->ab_dtype), strata_dtype_name(mm->c_dtype), rc);
    for (int i = 0; i < count && i < (int)ST_CUDA_CANDIDATES && !p->refused; i++)
        if (found[i].state == 0)
            p->algos[p->algo_count++] = found[i].algo;
    p->untried = p->algo_count > 1 && st_cuda_trial_is_worth(mm);
    return STRATA_OK;
}

static strata_status prepare(struct st_cuda_matmul *m, struct prepared *p, const struct matmul_key *key,
                             const struct st_matmul *mm)
{
    strata_status st;

    if (bias_bytes(mm) > ST_CUDA_WORKSPACE / 2)
        return st_error(STRATA_E_NOSYS, "cuda: no matmul from %s to %s with a bias of %u columns: at most %llu",
                        strata_dtype_name(mm->ab_dtype), strata_dtype_name(mm->c_dtype), mm->n,
                        (unsigned long long)(ST_CUDA_WORKSPACE / 2 / sizeof(float)));
    if (m->tried == p)
        m->tried = NULL;
    forget(&m->blas, p);
    p->key = *key;
    st = blas_status(m, make_desc(m, p, mm), "cublasLtMatmulDescCreate");
    if (st == STRATA_OK)
        st = blas_status(m, make_layouts(&m->blas, p, mm), "cublasLtMatrixLayoutCreate");
    if (st == STRATA_OK)
        st = choose_algo(m, p, mm);
    if (st != STRATA_OK)
        forget(&m->blas, p);
    else
        p->used = true;
    return st;
}

static strata_status find(struct st_cuda_matmul *m, const struct st_matmul *mm, const struct matmul_key *key,
                          struct prepared **out)
{
    const uint32_t set = set_of(key);

    for (uint32_t way = 0; way < CACHE_WAYS; way++) {
        *out = &m->cache[set][way];
        if ((*out)->used && memcmp(&(*out)->key, key, sizeof(*key)) == 0)
            return STRATA_OK;
    }
    *out = &m->cache[set][m->oldest[set]++ % CACHE_WAYS];
    return prepare(m, *out, key, mm);
}

/* --- run --- */

static strata_status launched(cudaError_t err, const char *what)
{
    return st_cuda_status(ST_CUDA_PASS("cuda.launch", err), what);
}

/* *bias in C's dtype, fp32, made by adding it to zeros. */
static strata_status convert_bias(struct st_cuda_matmul *m, cudaStream_t stream, const struct st_matmul *mm, const void **bias)
{
    float *const to = (float *)(void *)((unsigned char *)m->workspace + workspace_of(mm));
    strata_status st = launched(cudaMemsetAsync(to, 0, mm->n * sizeof(float), stream), "cudaMemsetAsync of a bias");

    if (st == STRATA_OK)
        st = launched(st_cuda_bias_backward(stream, to, *bias, 1, mm->n, mm->ab_dtype), "conversion of a bias");
    *bias = to;
    return st;
}

int st_blas_call(const struct st_blas_call *call, const struct blas_algo *algo, float beta)
{
    const float alpha = 1;

    return call->blas->matmul(call->blas->handle, call->desc, &alpha, call->b, call->layout[0], call->a, call->layout[1], &beta,
                              call->c, call->layout[2], call->c, call->layout[2], algo, call->workspace, call->workspace_bytes,
                              call->stream);
}

/* Takes what a trial has found, and begins that of this product's algorithms, where C's old value is not wanted. */
static void consider(struct st_cuda_matmul *m, struct prepared *p, const struct st_blas_call *call)
{
    uint32_t fastest;

    if (st_cuda_trial_ended(&m->trial, &fastest) && m->tried != NULL)
        m->tried->taken = fastest;
    if (!m->trial.runs)
        m->tried = NULL;
    if (!p->untried || call->mm->accumulate || m->trial.runs)
        return;
    p->untried = false;
    m->tried = st_cuda_trial_start(&m->trial, call, p->algos, p->algo_count) ? p : NULL;
}

static strata_status run_prepared(struct st_cuda_matmul *m, cudaStream_t stream, struct prepared *p, const struct st_matmul *mm,
                                  void *c, const void *a, const void *b, const void *bias)
{
    const struct st_blas_call call = {.blas = &m->blas,
                                      .desc = p->desc,
                                      .layout = p->layout,
                                      .mm = mm,
                                      .a = a,
                                      .b = b,
                                      .c = c,
                                      .workspace = m->workspace,
                                      .workspace_bytes = workspace_of(mm),
                                      .stream = stream};
    strata_status st = STRATA_OK;
    int rc;

    if (mm->bias && mm->c_dtype != mm->ab_dtype)
        st = convert_bias(m, stream, mm, &bias);
    if (st != STRATA_OK)
        return st;
    rc = set_pointers(&m->blas, p, mm, bias, mm->aux);
    if (rc == 0)
        consider(m, p, &call);
    if (rc == 0)
        rc = st_fault("cuda.launch", 0) != 0 ? 13 : st_blas_call(&call, &p->algos[p->taken], mm->accumulate ? 1 : 0);
    return blas_status(m, rc, "cublasLtMatmul");
}

/* The bias, then the product added to it. */
static strata_status run_bias_apart(struct st_cuda_matmul *m, cudaStream_t stream, const struct st_matmul *mm, void *c,
                                    const void *a, const void *b, const void *bias)
{
    struct st_matmul plain = *mm;
    strata_status st = STRATA_OK;

    plain.bias = false;
    plain.accumulate = true;
    if (mm->c_dtype != mm->ab_dtype)
        st = convert_bias(m, stream, mm, &bias);
    if (st == STRATA_OK)
        st = launched(st_cuda_fill_rows(stream, c, mm->ldc, bias, mm->m, mm->n, mm->accumulate, mm->c_dtype), "bias");
    return st == STRATA_OK ? st_cuda_matmul_run(m, stream, &plain, c, a, b, NULL) : st;
}

/* The product with its bias, then the epilogue. */
static strata_status run_apart(struct st_cuda_matmul *m, cudaStream_t stream, const struct st_matmul *mm, void *c, const void *a,
                               const void *b, const void *bias)
{
    const bool backward = mm->epilogue == ST_EPILOGUE_GELU_BACKWARD;
    const uint64_t elems = (uint64_t)mm->m * mm->n;
    struct st_matmul plain = *mm;
    strata_status st;

    if (mm->epilogue == ST_EPILOGUE_NONE)
        return run_bias_apart(m, stream, mm, c, a, b, bias);
    plain.epilogue = ST_EPILOGUE_NONE;
    plain.aux = NULL;
    st = st_cuda_matmul_run(m, stream, &plain, backward ? c : mm->aux, a, b, bias);
    if (st == STRATA_OK && backward)
        st = launched(st_cuda_activation_backward(stream, mm->activation, c, c, mm->aux, elems, mm->c_dtype),
                      "activation_backward");
    else if (st == STRATA_OK && mm->epilogue == ST_EPILOGUE_GELU)
        st = launched(st_cuda_activation_forward(stream, mm->activation, c, mm->aux, elems, mm->c_dtype), "activation_forward");
    return st;
}

strata_status st_cuda_matmul_run(struct st_cuda_matmul *m, cudaStream_t stream, const struct st_matmul *mm, void *c,
                                 const void *a, const void *b, const void *bias)
{
    const struct matmul_key key = key_of(mm, c, a, b, bias);
    struct prepared *p;
    strata_status st;

    assert(mm->bias == (bias != NULL) && mm->k > 0);
    assert(mm->epilogue == ST_EPILOGUE_NONE || (mm->aux != NULL && mm->ldc == mm->n && !mm->accumulate));
    assert(mm->epilogue != ST_EPILOGUE_GELU_BACKWARD || !mm->bias);
    if (mm->m == 0 || mm->n == 0)
        return STRATA_OK;
    if (mm->epilogue != ST_EPILOGUE_NONE && (mm->ldc % AUX_MULTIPLE != 0 || mm->activation != ST_GELU_TANH))
        return run_apart(m, stream, mm, c, a, b, bias);
    st = find(m, mm, &key, &p);
    if (st != STRATA_OK)
        return st;
    return p->refused ? run_apart(m, stream, mm, c, a, b, bias) : run_prepared(m, stream, p, mm, c, a, b, bias);
}

/* device_cuda_trial.c - see device_cuda_trial_internal.h.  Whatever fails here leaves the product to the first algorithm. */
#include "kernels/cuda/trial.h"
#include "offload/device/cuda/device_cuda_internal.h"
#include "offload/device/cuda/device_cuda_trial_internal.h"

#define TIMED 2 /* products between two events */
#define WORDS (1 + 2 * ST_CUDA_CANDIDATES)

static bool passed(cudaError_t err)
{
    if (err != cudaSuccess)
        (void)cudaGetLastError(); /* else the next launch would report it */
    return err == cudaSuccess;
}

static cudaError_t make_event(cudaEvent_t *event)
{
    return ST_CUDA_PASS("cuda.trial", cudaEventCreateWithFlags(event, cudaEventBlockingSync));
}

static bool make(struct st_cuda_trial *t)
{
    void *found = NULL;
    cudaError_t err = ST_CUDA_PASS("cuda.trial", cudaHostAlloc(&found, WORDS * sizeof(*t->found), cudaHostAllocDefault));

    t->found = found;
    if (err == cudaSuccess)
        err = make_event(&t->end);
    for (uint32_t i = 0; i < ST_CUDA_CANDIDATES && err == cudaSuccess; i++) {
        err = make_event(&t->from[i]);
        if (err == cudaSuccess)
            err = make_event(&t->to[i]);
    }
    if (!passed(err)) {
        st_cuda_trial_fini(t);
        t->made = ST_CUDA_TRIALS;
    }
    return err == cudaSuccess;
}

void st_cuda_trial_fini(struct st_cuda_trial *t)
{
    if (t->end != NULL)
        (void)cudaEventDestroy(t->end);
    for (uint32_t i = 0; i < ST_CUDA_CANDIDATES; i++) {
        if (t->from[i] != NULL)
            (void)cudaEventDestroy(t->from[i]);
        if (t->to[i] != NULL)
            (void)cudaEventDestroy(t->to[i]);
    }
    if (t->found != NULL)
        (void)cudaFreeHost(t->found);
    *t = (struct st_cuda_trial){0};
}

bool st_cuda_trial_is_worth(const struct st_matmul *mm)
{
    const uint64_t elems = (uint64_t)mm->m * mm->n;

    return mm->epilogue == ST_EPILOGUE_NONE && elems >= ST_CUDA_TRIAL_TERMS / mm->k &&
           (mm->c_dtype == STRATA_F32 || elems >= ST_CUDA_TRIAL_ELEMS);
}

/* Brings to t->found[word] the sum of C's bits, or, for word 0, how many samples depend on the order. */
static cudaError_t look(const struct st_cuda_trial *t, const struct st_blas_call *call, uint32_t word)
{
    const struct st_matmul *mm = call->mm;
    const struct st_cuda_product product = {.m = mm->m,
                                            .n = mm->n,
                                            .k = mm->k,
                                            .lda = mm->lda,
                                            .ldb = mm->ldb,
                                            .trans_a = mm->trans_a,
                                            .trans_b = mm->trans_b,
                                            .dt = mm->ab_dtype};
    uint64_t *const sum = call->workspace;
    cudaError_t err = ST_CUDA_PASS("cuda.trial", cudaMemsetAsync(sum, 0, sizeof(*sum), call->stream));

    if (err == cudaSuccess && word == 0)
        err = ST_CUDA_PASS("cuda.trial", st_cuda_order_counts(call->stream, sum, &product, call->a, call->b));
    else if (err == cudaSuccess)
        err = ST_CUDA_PASS("cuda.trial", st_cuda_matrix_sum(call->stream, sum, call->c, mm->ldc, mm->m, mm->n, mm->c_dtype));
    if (err == cudaSuccess)
        err =
            ST_CUDA_PASS("cuda.trial", cudaMemcpyAsync(&t->found[word], sum, sizeof(*sum), cudaMemcpyDeviceToHost, call->stream));
    return err;
}

static cudaError_t record(cudaEvent_t event, cudaStream_t stream)
{
    return ST_CUDA_PASS("cuda.trial", cudaEventRecord(event, stream));
}

/* The first product also loads the candidate's kernel, so it is not timed. */
static bool enqueue(const struct st_cuda_trial *t, const struct st_blas_call *call, const struct blas_algo *algo, uint32_t i)
{
    int rc = st_fault("cuda.trial", 0) != 0 ? 1 : st_blas_call(call, algo, 0);
    cudaError_t err = rc == 0 ? look(t, call, 1 + 2 * i) : cudaErrorUnknown;

    if (err == cudaSuccess)
        err = record(t->from[i], call->stream);
    for (uint32_t turn = 0; turn < TIMED && rc == 0 && err == cudaSuccess; turn++)
        rc = st_blas_call(call, algo, 1);
    if (rc == 0 && err == cudaSuccess)
        err = record(t->to[i], call->stream);
    if (rc == 0 && err == cudaSuccess)
        err = look(t, call, 2 + 2 * i);
    return passed(rc == 0 ? err : cudaErrorUnknown);
}

static bool free_memory(size_t *bytes)
{
    size_t total;

    return passed(ST_CUDA_PASS("cuda.trial", cudaMemGetInfo(bytes, &total)));
}

bool st_cuda_trial_start(struct st_cuda_trial *t, const struct st_blas_call *call, const struct blas_algo *algos, uint32_t count)
{
    size_t before, now;

    if (t->runs || t->made == ST_CUDA_TRIALS || t->code >= ST_CUDA_TRIAL_CODE || (t->found == NULL && !make(t)))
        return false;
    t->made++;
    t->failed = 0;
    t->count = 0;
    if (!free_memory(&before) || !passed(look(t, call, 0)))
        return false;
    while (t->count < count && t->code < ST_CUDA_TRIAL_CODE) {
        t->failed |= (uint32_t)!enqueue(t, call, &algos[t->count], t->count) << t->count;
        t->count++;
        if (!free_memory(&now))
            break;
        t->code += before > now ? before - now : 0;
        before = now;
    }
    t->runs = passed(record(t->end, call->stream));
    return t->runs;
}

/* False: the candidate failed, or has other bits than the first. */
static bool time_of(const struct st_cuda_trial *t, uint32_t i, float *ms)
{
    const uint64_t *const sums = &t->found[1 + 2 * i];

    return (t->failed >> i & 1) == 0 && sums[0] == t->found[1] && sums[1] == t->found[2] &&
           passed(ST_CUDA_PASS("cuda.trial", cudaEventElapsedTime(ms, t->from[i], t->to[i])));
}

bool st_cuda_trial_ended(struct st_cuda_trial *t, uint32_t *fastest)
{
    float least, ms;
    cudaError_t err;

    if (!t->runs)
        return false;
    err = ST_CUDA_PASS("cuda.trial", cudaEventQuery(t->end));
    if (!passed(err) && err == cudaErrorNotReady)
        return false;
    t->runs = false;
    *fastest = 0;
    if (err != cudaSuccess || t->found[0] < ST_CUDA_SAMPLES / 2 || !time_of(t, 0, &least))
        return true;
    for (uint32_t i = 1; i < t->count; i++)
        if (time_of(t, i, &ms) && ms < least) {
            *fastest = i;
            least = ms;
        }
    return true;
}

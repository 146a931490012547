/* kernels/cuda/ops_xent.cu - softmax cross-entropy over slices of the vocabulary. */
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/elems.cuh"
#include <float.h>

#define STATS_THREADS 128u /* each of two runs: a row of a slice of 2048 in one turn, and many rows in flight */
#define GRAD_THREADS  256u
#define LOSS_THREADS  256u
#define STATS_WARPS   (STATS_THREADS / ST_WARP)
#define AHEAD         2u /* runs in flight at a time */

static __device__ float block_max(float x, float *part)
{
#pragma unroll
    for (uint32_t step = ST_WARP / 2; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(ST_ALL_LANES, x, static_cast<int>(step)));
    if (threadIdx.x % ST_WARP == 0)
        part[threadIdx.x / ST_WARP] = x;
    __syncthreads();
    x = part[0];
    for (uint32_t i = 1; i < STATS_WARPS; i++)
        x = fmaxf(x, part[i]);
    return x;
}

/* softcap * tanh(x / softcap) */
static __device__ float capped(float x, float softcap)
{
    return softcap * tanhf(x / softcap);
}

/* The maximum so far, and the sum of exp(x - maximum).  The maximum starts finite, so that -inf adds nothing. */
struct softmax {
    float top, sum;
};

static __device__ void take_run(struct softmax *s, const float x[ST_RUN])
{
    float top = s->top;

#pragma unroll
    for (uint32_t i = 0; i < ST_RUN; i++)
        top = fmaxf(top, x[i]);
    if (top > s->top) {
        s->sum *= expf(s->top - top);
        s->top = top;
    }
#pragma unroll
    for (uint32_t i = 0; i < ST_RUN; i++)
        s->sum += expf(x[i] - top);
}

/* Whole runs need nothing; of others the elements that do not exist become -inf. */
static __device__ void end_run(float x[ST_RUN], uint32_t count)
{
    if (count == ST_RUN)
        return;
#pragma unroll
    for (uint32_t i = 0; i < ST_RUN; i++)
        x[i] = i < count ? x[i] : -__builtin_huge_valf();
}

/* What the row's earlier slices left, read while the logits are under way: only thread 0 needs it. */
struct row_so_far {
    int32_t target;
    float top, sum;
};

static __device__ struct row_so_far read_row(const float *stats, const int32_t *target, bool started)
{
    if (threadIdx.x > 0)
        return {-1, -FLT_MAX, 0.0f};
    return {*target, started ? stats[0] : -FLT_MAX, started ? stats[1] : 0.0f};
}

/* A block for a row.  Each thread reads its logits once; then all sums are rescaled to the row's maximum and added. */
template <bool CAPPED>
static __global__ void __launch_bounds__(STATS_THREADS)
    xent_stats(float *stats, const float *logits, const int32_t *targets, uint32_t cols, uint32_t first, float softcap, bool wide)
{
    __shared__ float top_part[STATS_WARPS], sum_part[STATS_WARPS];
    const uint64_t row = blockIdx.x;
    float *const st = stats + 3 * row;
    const struct row_so_far before = read_row(st, targets + row, first > 0);
    struct softmax own = {-FLT_MAX, 0.0f}, slice;

    for (uint64_t column = threadIdx.x * ST_RUN; column < cols; column += AHEAD * STATS_THREADS * ST_RUN) {
        struct st_packed<STRATA_F32> from[AHEAD];
        uint32_t count[AHEAD];

#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++) {
            const uint64_t first_of = column + k * STATS_THREADS * ST_RUN;

            count[k] = st_run_count(first_of, cols);
            from[k] = st_fetch<STRATA_F32>(logits, row * cols + first_of, count[k], wide);
        }
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++) {
            float x[ST_RUN];

            st_unpack<STRATA_F32>(x, from[k]);
            if (CAPPED) {
#pragma unroll
                for (uint32_t i = 0; i < ST_RUN; i++)
                    x[i] = capped(x[i], softcap);
            }
            end_run(x, count[k]);
            take_run(&own, x);
        }
    }
    slice.top = block_max(own.top, top_part);
    slice.sum = st_group_sum<STATS_WARPS>(own.sum * expf(own.top - slice.top), sum_part);
    if (threadIdx.x == 0) {
        const int64_t target = static_cast<int64_t>(before.target) - first;
        const float top = fmaxf(slice.top, before.top);

        st[1] = before.sum * expf(before.top - top) + slice.sum * expf(slice.top - top);
        st[0] = top;
        if (target >= 0 && target < cols) {
            const float logit = logits[row * cols + static_cast<uint64_t>(target)];

            st[2] = CAPPED ? capped(logit, softcap) : logit;
        } else if (first == 0) {
            st[2] = 0.0f;
        }
    }
}

cudaError_t st_cuda_xent_stats(cudaStream_t stream, float *stats, const float *logits, const int32_t *targets, uint32_t rows,
                               uint32_t cols, uint32_t first, float softcap)
{
    const bool wide = cols % ST_RUN == 0 && st_are_aligned({logits});

    if (rows == 0)
        return cudaSuccess;
    if (softcap != 0.0f)
        ST_LAUNCH(xent_stats<true>, rows, STATS_THREADS, 0, stream, stats, logits, targets, cols, first, softcap, wide);
    else
        ST_LAUNCH(xent_stats<false>, rows, STATS_THREADS, 0, stream, stats, logits, targets, cols, first, softcap, wide);
    return cudaGetLastError();
}

template <strata_dtype DT, bool CAPPED>
static __global__ void __launch_bounds__(GRAD_THREADS)
    xent_grad(void *dlogits, const float *logits, const float *stats, const int32_t *targets, uint32_t cols, uint32_t first,
              float scale, float softcap, bool wide)
{
    const uint64_t row = blockIdx.x, column = (static_cast<uint64_t>(blockIdx.y) * GRAD_THREADS + threadIdx.x) * ST_RUN;
    const uint32_t count = st_run_count(column, cols);
    const int32_t token = targets[row];
    const int64_t target = static_cast<int64_t>(token) - first - static_cast<int64_t>(column);
    const float top = stats[3 * row], inverse = 1.0f / stats[3 * row + 1];
    float x[ST_RUN] = {};

    if (token >= 0) {
        st_load<STRATA_F32>(x, logits, row * cols + column, count, wide);
#pragma unroll
        for (uint32_t i = 0; i < ST_RUN; i++) {
            const float c = CAPPED ? capped(x[i], softcap) : x[i];

            x[i] = (expf(c - top) * inverse - (target == i ? 1.0f : 0.0f)) * scale;
            if (CAPPED)
                x[i] *= 1.0f - c / softcap * (c / softcap);
        }
    }
    st_store<DT>(dlogits, row * cols + column, x, count, wide);
}

cudaError_t st_cuda_xent_grad(cudaStream_t stream, void *dlogits, const float *logits, const float *stats, const int32_t *targets,
                              uint32_t rows, uint32_t cols, uint32_t first, float scale, float softcap, strata_dtype dt)
{
    const bool wide = cols % ST_RUN == 0 && st_are_aligned({dlogits, logits});

    if (rows == 0 || cols == 0)
        return cudaSuccess;
    return st_by_dtype(dt, [&](auto tag) {
        constexpr strata_dtype own = decltype(tag)::value;
        const dim3 grid(rows, st_blocks(cols, GRAD_THREADS * ST_RUN));

        if (softcap != 0.0f)
            ST_LAUNCH((xent_grad<own, true>), grid, GRAD_THREADS, 0, stream, dlogits, logits, stats, targets, cols, first, scale,
                      softcap, wide);
        else
            ST_LAUNCH((xent_grad<own, false>), grid, GRAD_THREADS, 0, stream, dlogits, logits, stats, targets, cols, first, scale,
                      softcap, wide);
    });
}

static __device__ double row_loss(const float *stats, int32_t target)
{
    if (target < 0)
        return 0.0;
    return static_cast<double>(stats[0]) - static_cast<double>(stats[2]) + log(static_cast<double>(stats[1]));
}

/* All threads compute, and one adds their results in index order. */
static __global__ void __launch_bounds__(LOSS_THREADS)
    xent_loss(double *loss_sum, const float *stats, const int32_t *targets, uint32_t rows)
{
    __shared__ double near[LOSS_THREADS];
    double loss = 0;

    for (uint64_t first = 0; first < rows; first += LOSS_THREADS) {
        const uint64_t row = first + threadIdx.x;

        near[threadIdx.x] = row < rows ? row_loss(stats + 3 * row, targets[row]) : 0.0;
        __syncthreads();
        if (threadIdx.x == 0) {
#pragma unroll 8
            for (uint32_t i = 0; i < LOSS_THREADS; i++)
                loss += near[i];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0)
        *loss_sum = loss;
}

cudaError_t st_cuda_xent_loss(cudaStream_t stream, double *loss_sum, const float *stats, const int32_t *targets, uint32_t rows)
{
    ST_LAUNCH(xent_loss, 1, LOSS_THREADS, 0, stream, loss_sum, stats, targets, rows);
    return cudaGetLastError();
}

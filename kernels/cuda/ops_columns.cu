/* kernels/cuda/ops_columns.cu - sums down columns: a block takes a strip of 32 columns and all rows, so that no partial sum
 * leaves it. */
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/elems.cuh"

#define STRIP          32u /* columns of a block */
#define STRIP_RUNS     (STRIP / ST_RUN)
#define COLUMN_THREADS 512u
#define COLUMN_LANES   (COLUMN_THREADS / STRIP_RUNS)
#define AHEAD          4u /* rows of one lane in flight at a time */
#define COLUMN_WARPS   (COLUMN_THREADS / ST_WARP)

/* sums[cols] += sums down the columns of x [rows, cols].  The eight lanes of a warp that hold the same columns are added as a
 * tree, then the warps in index order. */
template <strata_dtype DT>
static __global__ void __launch_bounds__(COLUMN_THREADS)
    column_sums(float *sums, const void *x, uint64_t rows, uint32_t cols, bool wide)
{
    __shared__ float part[COLUMN_WARPS][STRIP];
    const uint64_t column = static_cast<uint64_t>(blockIdx.x) * STRIP + threadIdx.x % STRIP_RUNS * ST_RUN;
    const uint64_t own = static_cast<uint64_t>(blockIdx.x) * STRIP + threadIdx.x;
    const uint32_t count = st_run_count(column, cols);
    float sum[ST_RUN] = {};

    for (uint64_t row = threadIdx.x / STRIP_RUNS; row < rows; row += AHEAD * COLUMN_LANES) {
        struct st_packed<DT> ahead[AHEAD];

#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++) {
            const uint64_t r = row + k * COLUMN_LANES;

            ahead[k] = st_fetch<DT>(x, r * cols + column, r < rows ? count : 0, wide);
        }
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++) {
            float in[ST_RUN];

            st_unpack<DT>(in, ahead[k]); /* zeros below the last row: they add nothing */
#pragma unroll
            for (uint32_t i = 0; i < ST_RUN; i++)
                sum[i] += in[i];
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < ST_RUN; i++) {
#pragma unroll
        for (uint32_t step = STRIP_RUNS; step < ST_WARP; step *= 2)
            sum[i] += __shfl_xor_sync(ST_ALL_LANES, sum[i], static_cast<int>(step));
        if (threadIdx.x % ST_WARP < STRIP_RUNS)
            part[threadIdx.x / ST_WARP][threadIdx.x % STRIP_RUNS * ST_RUN + i] = sum[i];
    }
    __syncthreads();
    if (threadIdx.x >= STRIP || own >= cols)
        return;
    sum[0] = 0.0f;
    for (uint32_t i = 0; i < COLUMN_WARPS; i++)
        sum[0] += part[i][threadIdx.x];
    sums[own] += sum[0];
}

cudaError_t st_cuda_bias_backward(cudaStream_t stream, float *dbias, const void *dy, uint32_t rows, uint32_t cols,
                                  strata_dtype dt)
{
    const bool wide = cols % ST_RUN == 0 && st_are_aligned({dy});

    if (rows == 0 || cols == 0)
        return cudaSuccess;
    return st_by_dtype(dt, [&](auto tag) {
        ST_LAUNCH((column_sums<decltype(tag)::value>), st_blocks(cols, STRIP), COLUMN_THREADS, 0, stream, dbias, dy, rows, cols,
                  wide);
    });
}

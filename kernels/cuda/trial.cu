/* kernels/cuda/trial.cu - see trial.h.  Sums of integers: their order is no matter. */
#include "kernels/cuda/elems.cuh"
#include "kernels/cuda/trial.h"

#define THREADS     256u
#define BLOCKS_MOST 1024u
#define WARPS       (THREADS / ST_WARP)

static __device__ uint64_t mixed(uint64_t x)
{
    x = (x ^ x >> 32) * 0xff51afd7ed558ccdu;
    x = (x ^ x >> 32) * 0xc4ceb9fe1a85ec53u;
    return x ^ x >> 32;
}

static __device__ void add(uint64_t *to, uint64_t value)
{
    atomicAdd(reinterpret_cast<unsigned long long *>(to), static_cast<unsigned long long>(value));
}

/* A block takes every gridDim.x-th row. */
static __global__ void __launch_bounds__(THREADS)
    matrix_sum(uint64_t *sum, const void *c, uint32_t ldc, uint32_t rows, uint32_t cols, bool wide)
{
    uint64_t part = 0;

    for (uint32_t row = blockIdx.x; row < rows; row += gridDim.x) {
        for (uint32_t col = threadIdx.x; col < cols; col += THREADS) {
            const uint64_t at = static_cast<uint64_t>(row) * ldc + col;
            const uint32_t bits = wide ? static_cast<const uint32_t *>(c)[at] : static_cast<const uint16_t *>(c)[at];

            part += mixed(mixed(at) ^ bits);
        }
    }
#pragma unroll
    for (uint32_t step = ST_WARP / 2; step > 0; step /= 2)
        part += __shfl_xor_sync(ST_ALL_LANES, part, static_cast<int>(step));
    if (threadIdx.x % ST_WARP == 0)
        add(sum, part);
}

template <strata_dtype DT> static __device__ float element(const void *matrix, uint64_t at)
{
    if (DT == STRATA_F32)
        return static_cast<const float *>(matrix)[at];
    return st_widen<DT>(static_cast<const uint16_t *>(matrix)[at]);
}

/* A warp for each sample: a lane adds every 32nd term, and the lanes' sums are added once by a tree and once one by one. */
template <strata_dtype DT>
static __global__ void __launch_bounds__(THREADS)
    order_counts(uint64_t *count, struct st_cuda_product p, const void *a, const void *b)
{
    const uint64_t sample = mixed(1 + static_cast<uint64_t>(blockIdx.x) * WARPS + threadIdx.x / ST_WARP);
    const uint64_t row = (sample & 0xffffffffu) % p.m, col = (sample >> 32) % p.n;
    float part = 0, tree, line = 0;

    for (uint64_t k = threadIdx.x % ST_WARP; k < p.k; k += ST_WARP)
        part += element<DT>(a, p.trans_a ? k * p.lda + row : row * p.lda + k) *
                element<DT>(b, p.trans_b ? col * p.ldb + k : k * p.ldb + col);
    tree = st_warp_sum(part);
#pragma unroll
    for (uint32_t lane = 0; lane < ST_WARP; lane++)
        line += __shfl_sync(ST_ALL_LANES, part, static_cast<int>(lane));
    if (threadIdx.x % ST_WARP == 0 && st_f32_bits_are_finite(st_f32_bits(line)) && st_f32_bits(tree) != st_f32_bits(line))
        add(count, 1);
}

cudaError_t st_cuda_matrix_sum(cudaStream_t stream, uint64_t *sum, const void *c, uint32_t ldc, uint32_t rows, uint32_t cols,
                               strata_dtype dt)
{
    ST_LAUNCH(matrix_sum, rows < BLOCKS_MOST ? rows : BLOCKS_MOST, THREADS, 0, stream, sum, c, ldc, rows, cols, dt == STRATA_F32);
    return cudaGetLastError();
}

cudaError_t st_cuda_order_counts(cudaStream_t stream, uint64_t *count, const struct st_cuda_product *p, const void *a,
                                 const void *b)
{
    return st_by_dtype(p->dt, [&](auto tag) {
        ST_LAUNCH(order_counts<decltype(tag)::value>, ST_CUDA_SAMPLES / WARPS, THREADS, 0, stream, count, *p, a, b);
    });
}

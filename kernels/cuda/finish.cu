/* kernels/cuda/finish.cu - rounds a finished gradient once and takes its sums of squares in the fixed tree.
 *
 * Eight consecutive threads compute the eight sums of a norm block, each adding every eighth element in index order.  That is the
 * order of the definition, and it reads 32 bytes of each line at a time. */
#include "kernels/cuda/update.h"
#include "kernels/isa/scalar.h"

#define LANES         8u
#define BLOCK_THREADS 128u
#define BLOCK_NORMS   (BLOCK_THREADS / LANES) /* norm blocks of one thread block */
#define AHEAD         8u                      /* elements of a thread in flight at a time */
#define SUM_THREADS   256u                    /* a power of two */
#define ALL_LANES     0xffffffffu

static __device__ void add_count(uint64_t *to, uint64_t count)
{
    if (count > 0)
        atomicAdd(reinterpret_cast<unsigned long long *>(to), static_cast<unsigned long long>(count));
}

static __device__ void *element(void *out, strata_dtype dtype, uint64_t index)
{
    return static_cast<unsigned char *>(out) + index * (dtype == STRATA_F32 ? 4 : 2);
}

/* out may be acc: a thread reads ahead only elements that it writes itself. */
static __global__ void __launch_bounds__(BLOCK_THREADS)
    finish(void *out, strata_dtype dtype, const float *acc, uint64_t elems, double *block_sums, uint64_t *nonfinite)
{
    const uint64_t norm = static_cast<uint64_t>(blockIdx.x) * BLOCK_NORMS + threadIdx.x / LANES;
    const uint32_t lane = threadIdx.x % LANES;
    const uint64_t first = norm * ST_NORM_BLOCK, end = first + ST_NORM_BLOCK < elems ? first + ST_NORM_BLOCK : elems;
    uint64_t nonfinite_count = 0;
    double sum = 0, lanes[LANES];

    for (uint64_t i = first + lane; i < end; i += AHEAD * LANES) {
        float from[AHEAD];

#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++)
            from[k] = i + k * LANES < end ? acc[i + k * LANES] : 0.0f;
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++) {
            if (i + k * LANES < end) {
                const float x = st_finish_element(element(out, dtype, i + k * LANES), dtype, &from[k], 0);

                sum += static_cast<double>(x) * static_cast<double>(x);
                nonfinite_count += !st_f32_bits_are_finite(st_f32_bits(x));
            }
        }
    }
    for (uint32_t i = 0; i < LANES; i++)
        lanes[i] = __shfl_sync(ALL_LANES, sum, static_cast<int>(i), LANES);
    if (lane == 0 && first < elems)
        block_sums[norm] = st_norm_tree(lanes);
    add_count(nonfinite, nonfinite_count);
}

/* st_norm_group by one thread block: SUM_THREADS tiles at a time, a thread for each.  Every second sum takes its neighbour's,
 * then every fourth, until the first has all: that is the tree below a run of SUM_THREADS tiles, and below a shorter last one.  The
 * runs are the leaves of what is above. */
static __global__ void __launch_bounds__(SUM_THREADS) add_sums(double *norm2, const double *block_sums, uint64_t blocks)
{
    __shared__ double sums[SUM_THREADS];
    __shared__ struct st_norm_sum group; /* of the first thread */
    const uint64_t tiles = (blocks + ST_TILE_BLOCKS - 1) / ST_TILE_BLOCKS;
    const uint32_t thread = threadIdx.x;

    if (thread == 0)
        group.tiles = 0;
    for (uint64_t first = 0; first < tiles; first += SUM_THREADS) {
        const uint32_t count = tiles - first < SUM_THREADS ? static_cast<uint32_t>(tiles - first) : SUM_THREADS;

        if (thread < count)
            sums[thread] = st_norm_tile(block_sums, first + thread, blocks);
        __syncthreads();
        for (uint32_t apart = 1; apart < count; apart *= 2) {
            if (thread % (2 * apart) == 0 && thread + apart < count)
                sums[thread] += sums[thread + apart];
            __syncthreads();
        }
        if (thread == 0)
            st_norm_add(&group, sums[0]);
    }
    if (thread == 0)
        *norm2 += st_norm_total(&group);
}

cudaError_t st_cuda_grad_finish(cudaStream_t stream, void *out, strata_dtype dtype, const float *acc, uint64_t elems,
                                double *block_sums, double *norm2, uint64_t *nonfinite)
{
    const uint64_t norms = (elems + ST_NORM_BLOCK - 1) / ST_NORM_BLOCK;
    cudaError_t err;

    if (elems == 0)
        return cudaSuccess;
    ST_LAUNCH(finish, static_cast<unsigned>((norms + BLOCK_NORMS - 1) / BLOCK_NORMS), BLOCK_THREADS, 0, stream, out, dtype, acc,
              elems, block_sums, nonfinite);
    if ((err = cudaGetLastError()) != cudaSuccess)
        return err;
    ST_LAUNCH(add_sums, 1, SUM_THREADS, 0, stream, norm2, block_sums, norms);
    return cudaGetLastError();
}

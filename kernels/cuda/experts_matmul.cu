/* kernels/cuda/experts_matmul.cu - products of experts: blocks of 64 x 64 of an expert's result.
 *
 * A block finds its expert by the offsets; those behind the last tile end at once.  K is walked in steps of 32, in order, so that
 * an expert's bits depend on its own rows alone.  16 bits: tensor cores, four warps of 16 rows each.  fp32: fma, 4 x 8 elements
 * of a thread. */
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/elems.cuh"
#include "kernels/cuda/mma.cuh"

#define THREADS 128u
#define TILE    64u
#define STEP    32u /* of K */

/* A tile lies as its operand is stored: lines of TILE elements for each of STEP, or of STEP for each of TILE. */
#define LONG_LINE  (TILE + 8u)
#define SHORT_LINE (STEP + 8u)
#define TILE_ELEMS (TILE * SHORT_LINE) /* no less than STEP * LONG_LINE */

template <strata_dtype DT> struct element {
    using type = uint16_t;
};
template <> struct element<STRATA_F32> {
    using type = float;
};

struct args {
    struct st_expert_matmul mm;
    void *c;
    const void *a, *b, *bias;
    const int32_t *offsets;
    bool wide_a, wide_b;
};

/* One block's result: extents that exist, from (row, column) of the expert's. */
struct place {
    uint32_t expert, first_row, rows; /* of the expert: in the slice, how many */
    uint32_t row, column, m, n, k;
    bool any;
};

static __device__ struct place place_of_block(const struct st_expert_matmul &mm, const int32_t *offsets)
{
    const int32_t *begin = offsets + mm.of.first;
    const bool matrix = mm.k == 0;
    struct place p = {blockIdx.z, 0, 0, blockIdx.y * TILE, blockIdx.x * TILE, 0, 0, mm.k, true};
    uint32_t tile = blockIdx.y;

    if (!matrix) {
        for (p.expert = 0; p.expert < mm.of.count; p.expert++) {
            const uint32_t tiles = (static_cast<uint32_t>(begin[p.expert + 1] - begin[p.expert]) + TILE - 1) / TILE;

            if (tile < tiles)
                break;
            tile -= tiles;
        }
        p.row = tile * TILE;
        if ((p.any = p.expert < mm.of.count) == false)
            return p;
    }
    p.first_row = static_cast<uint32_t>(begin[p.expert] - begin[0]);
    p.rows = static_cast<uint32_t>(begin[p.expert + 1] - begin[p.expert]);
    p.m = (matrix ? mm.m : p.rows) - p.row;
    p.n = mm.n - p.column;
    p.k = matrix ? p.rows : mm.k;
    return p;
}

/* `lines` lines of `length` elements from `first` on, which is `inside` lines and elements from the operand's end: zeros beyond.
 */
template <strata_dtype DT, uint32_t LINES, uint32_t LENGTH, uint32_t STRIDE>
static __device__ void load_tile(typename element<DT>::type *tile, const void *operand, uint64_t first, uint32_t ld,
                                 uint32_t lines, uint32_t length, bool wide)
{
    constexpr uint32_t runs = LENGTH / ST_RUN;

    for (uint32_t i = threadIdx.x; i < LINES * runs; i += THREADS) {
        const uint32_t line = i / runs, at = i % runs * ST_RUN;
        const uint32_t count = line < lines ? st_run_count(at, length) : 0;
        const struct st_packed<DT> in = st_fetch<DT>(operand, first + static_cast<uint64_t>(line) * ld + at, count, wide);

        st_put<DT>(tile, line * STRIDE + at, in, ST_RUN, true);
    }
}

static __device__ __forceinline__ uint32_t left_of(uint32_t extent, uint32_t from)
{
    return extent > from ? extent - from : 0;
}

template <strata_dtype DT, bool MATRIX, bool TRANS_B>
static __device__ void load_step(typename element<DT>::type *a, typename element<DT>::type *b, const struct args &s,
                                 const struct place &p, uint32_t k)
{
    const struct st_expert_matmul &mm = s.mm;
    const uint32_t depth = left_of(p.k, k);
    const uint64_t row = p.first_row + (MATRIX ? k : p.row), matrix = p.expert * mm.stride;

    if (MATRIX)
        load_tile<DT, STEP, TILE, LONG_LINE>(a, s.a, row * mm.lda + p.row, mm.lda, depth, p.m, s.wide_a);
    else
        load_tile<DT, TILE, STEP, SHORT_LINE>(a, s.a, row * mm.lda + k, mm.lda, p.m, depth, s.wide_a);
    if (TRANS_B)
        load_tile<DT, TILE, STEP, SHORT_LINE>(b, s.b, matrix + static_cast<uint64_t>(p.column) * mm.ldb + k, mm.ldb, p.n, depth,
                                              s.wide_b);
    else
        load_tile<DT, STEP, TILE, LONG_LINE>(b, s.b,
                                             (MATRIX ? row * mm.ldb : matrix + static_cast<uint64_t>(k) * mm.ldb) + p.column,
                                             mm.ldb, depth, p.n, s.wide_b);
}

template <strata_dtype DT>
static __device__ void put(const struct args &s, const struct place &p, uint32_t row, uint32_t column, float x)
{
    const struct st_expert_matmul &mm = s.mm;
    const uint64_t base = mm.k == 0 ? p.expert * mm.stride : static_cast<uint64_t>(p.first_row) * mm.ldc;
    const uint64_t at = base + static_cast<uint64_t>(p.row + row) * mm.ldc + p.column + column;

    if (row >= p.m || column >= p.n)
        return;
    if (mm.bias) {
        const uint64_t i = p.expert * mm.bias_stride + p.column + column;

        x += DT == STRATA_F32 ? static_cast<const float *>(s.bias)[i] : st_widen<DT>(static_cast<const uint16_t *>(s.bias)[i]);
    }
    if (mm.c_dtype == STRATA_F32)
        static_cast<float *>(s.c)[at] = mm.accumulate ? static_cast<float *>(s.c)[at] + x : x;
    else
        static_cast<uint16_t *>(s.c)[at] = static_cast<uint16_t>(st_round_pair < DT == STRATA_F32 ? STRATA_BF16 : DT > (x, 0.0f));
}

/* --- 16 bits --- */

/* A's fragments of 16 rows and columns k .. k + 15, by a warp. */
template <bool MATRIX> static __device__ void load_a(uint32_t r[4], const uint16_t *a, uint32_t row, uint32_t k)
{
    const uint32_t lane = threadIdx.x % ST_WARP, part = lane / 8;

    if (MATRIX)
        st_load_matrices_transposed(r, a + (k + part / 2 * 8 + lane % 8) * LONG_LINE + row + part % 2 * 8);
    else
        st_load_matrices(r, a + (row + part % 2 * 8 + lane % 8) * SHORT_LINE + k + part / 2 * 8);
}

/* B's of two tiles of 8 columns: b0, b1 of one, then of the other. */
template <bool TRANS_B> static __device__ void load_b(uint32_t r[4], const uint16_t *b, uint32_t column, uint32_t k)
{
    const uint32_t lane = threadIdx.x % ST_WARP, part = lane / 8;

    if (TRANS_B)
        st_load_matrices(r, b + (column + part / 2 * 8 + lane % 8) * SHORT_LINE + k + part % 2 * 8);
    else
        st_load_matrices_transposed(r, b + (k + part % 2 * 8 + lane % 8) * LONG_LINE + column + part / 2 * 8);
}

template <strata_dtype DT, bool MATRIX, bool TRANS_B>
static __global__ void __launch_bounds__(THREADS) multiply_halves(const struct args s)
{
    __shared__ __align__(16) uint16_t a[TILE_ELEMS], b[TILE_ELEMS];
    const struct place p = place_of_block(s.mm, s.offsets);
    const uint32_t warp_row = threadIdx.x / ST_WARP * 16, lane = threadIdx.x % ST_WARP;
    float c[TILE / 8][4] = {};

    if (!p.any)
        return;
    for (uint32_t k = 0; k < p.k; k += STEP) {
        load_step<DT, MATRIX, TRANS_B>(a, b, s, p, k);
        __syncthreads();
#pragma unroll
        for (uint32_t step = 0; step < STEP; step += 16) {
            uint32_t left[4];

            load_a<MATRIX>(left, a, warp_row, step);
#pragma unroll
            for (uint32_t n = 0; n < TILE / 8; n += 2) {
                uint32_t right[4];

                load_b<TRANS_B>(right, b, n * 8, step);
                st_mma<DT>(c[n], left, right[0], right[1]);
                st_mma<DT>(c[n + 1], left, right[2], right[3]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (uint32_t n = 0; n < TILE / 8; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            put<DT>(s, p, warp_row + lane / 4 + i / 2 * 8, n * 8 + lane % 4 * 2 + i % 2, c[n][i]);
}

/* --- fp32 --- */

template <bool MATRIX, bool TRANS_B> static __global__ void __launch_bounds__(THREADS) multiply_f32(const struct args s)
{
    __shared__ __align__(16) float a[TILE_ELEMS], b[TILE_ELEMS];
    const struct place p = place_of_block(s.mm, s.offsets);
    const uint32_t row = threadIdx.x / 8 * 4, column = threadIdx.x % 8;
    float c[4][8] = {};

    if (!p.any)
        return;
    for (uint32_t k = 0; k < p.k; k += STEP) {
        load_step<STRATA_F32, MATRIX, TRANS_B>(a, b, s, p, k);
        __syncthreads();
        for (uint32_t step = 0; step < STEP; step++) {
            float left[4], right[8];

#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                left[i] = MATRIX ? a[step * LONG_LINE + row + i] : a[(row + i) * SHORT_LINE + step];
#pragma unroll
            for (uint32_t j = 0; j < 8; j++)
                right[j] = TRANS_B ? b[(column + 8 * j) * SHORT_LINE + step] : b[step * LONG_LINE + column + 8 * j];
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
#pragma unroll
                for (uint32_t j = 0; j < 8; j++)
                    c[i][j] = fmaf(left[i], right[j], c[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
#pragma unroll
        for (uint32_t j = 0; j < 8; j++)
            put<STRATA_F32>(s, p, row + i, column + 8 * j, c[i][j]);
}

/* --- launch --- */

template <bool MATRIX, bool TRANS_B> static cudaError_t launch(cudaStream_t stream, dim3 grid, const struct args &s)
{
    void (*kernel)(struct args) = multiply_f32<MATRIX, TRANS_B>;

    if (s.mm.ab_dtype == STRATA_BF16)
        kernel = multiply_halves<STRATA_BF16, MATRIX, TRANS_B>;
    else if (s.mm.ab_dtype == STRATA_F16)
        kernel = multiply_halves<STRATA_F16, MATRIX, TRANS_B>;
    ST_LAUNCH(kernel, grid, THREADS, 0, stream, s);
    return cudaGetLastError();
}

cudaError_t st_cuda_experts_matmul(cudaStream_t stream, const struct st_expert_matmul *mm, void *c, const void *a, const void *b,
                                   const void *bias, const int32_t *offsets)
{
    const bool matrix = mm->k == 0;
    const uint64_t rows = static_cast<uint64_t>(mm->of.rows) * (mm->of.k < mm->of.count ? mm->of.k : mm->of.count);
    const uint64_t tiles = matrix ? (mm->m + TILE - 1) / TILE : rows / TILE + mm->of.count;
    const struct args s = {*mm,
                           c,
                           a,
                           b,
                           bias,
                           offsets,
                           mm->lda % ST_RUN == 0 && st_are_aligned({a}),
                           mm->ldb % ST_RUN == 0 && (matrix || mm->stride % ST_RUN == 0) && st_are_aligned({b})};

    if (tiles > 65535 || mm->of.count > 65535 || (mm->c_dtype != STRATA_F32 && mm->c_dtype != mm->ab_dtype))
        return cudaErrorInvalidValue;
    if (tiles == 0 || mm->n == 0)
        return cudaSuccess;
    const dim3 grid(st_blocks(mm->n, TILE), static_cast<unsigned>(tiles), matrix ? mm->of.count : 1);

    if (matrix)
        return launch<true, false>(stream, grid, s);
    return mm->trans_b ? launch<false, true>(stream, grid, s) : launch<false, false>(stream, grid, s);
}

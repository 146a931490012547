/* kernels/cuda/ops_embed.cu - embeddings of tokens and positions: a thread takes a run of eight columns of a row.
 *
 * The table's gradient adds rows in token order without atomics: the block of the first row with a token adds all rows with that
 * token. */
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/elems.cuh"

#define THREADS       256u
#define BLOCK_COLUMNS (THREADS * ST_RUN)
#define WARPS         (THREADS / ST_WARP)
#define AHEAD         4u /* rows in flight at a time when rows are added */

/* The thread's columns of row blockIdx.x. */
struct part {
    uint64_t row, column;
    uint32_t count;
};

static __device__ part part_of(uint32_t cols)
{
    const uint64_t column = (static_cast<uint64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * ST_RUN;

    return {blockIdx.x, column, st_run_count(column, cols)};
}

/* A block for each row and BLOCK_COLUMNS of its columns. */
static dim3 grid_of(uint32_t rows, uint32_t cols)
{
    return dim3(rows, st_blocks(cols, BLOCK_COLUMNS));
}

static unsigned threads_of(uint32_t cols)
{
    const unsigned threads = st_blocks(cols, ST_WARP * ST_RUN) * ST_WARP;

    return threads < THREADS ? threads : THREADS;
}

/* acc += x. */
template <strata_dtype DT> static __device__ void add_run(float acc[ST_RUN], const struct st_packed<DT> &x)
{
    float wide[ST_RUN];

    st_unpack<DT>(wide, x);
#pragma unroll
    for (uint32_t i = 0; i < ST_RUN; i++)
        acc[i] += wide[i];
}

/* --- forward --- */

struct tokens {
    const int32_t *token;
    uint32_t rows, cols, row_first, row_count;
};

/* The table's row for a token; row_count or more: the token has none here. */
static __device__ uint64_t table_row(const struct tokens &t, int32_t token)
{
    return static_cast<uint64_t>(static_cast<int64_t>(token) - t.row_first);
}

template <strata_dtype DT>
static __global__ void __launch_bounds__(THREADS) gather(void *out, const void *table, const struct tokens t, bool wide)
{
    const struct part p = part_of(t.cols);
    const uint64_t row = table_row(t, t.token[p.row]);

    if (row < t.row_count)
        st_put<DT>(out, p.row * t.cols + p.column, st_fetch<DT>(table, row * t.cols + p.column, p.count, wide), p.count, wide);
}

cudaError_t st_cuda_embed_gather(cudaStream_t stream, void *out, const void *table, const int32_t *tokens, uint32_t rows,
                                 uint32_t cols, uint32_t row_first, uint32_t row_count, strata_dtype dt)
{
    const struct tokens t = {tokens, rows, cols, row_first, row_count};
    const bool wide = cols % ST_RUN == 0 && st_are_aligned({out, table});

    if (rows == 0 || cols == 0)
        return cudaSuccess;
    return st_by_dtype(dt, [&](auto tag) {
        ST_LAUNCH((gather<decltype(tag)::value>), grid_of(rows, cols), threads_of(cols), 0, stream, out, table, t, wide);
    });
}

template <strata_dtype DT>
static __global__ void __launch_bounds__(THREADS)
    add_position(void *x, const void *pos, const int32_t *positions, uint32_t seq, uint32_t cols, bool wide)
{
    const struct part p = part_of(cols);
    const struct st_packed<DT> from_x = st_fetch<DT>(x, p.row * cols + p.column, p.count, wide);
    const uint64_t position = positions != nullptr ? static_cast<uint32_t>(positions[p.row]) : p.row % seq;
    const struct st_packed<DT> from_pos = st_fetch<DT>(pos, position * cols + p.column, p.count, wide);
    float sum[ST_RUN];

    st_unpack<DT>(sum, from_x);
    add_run<DT>(sum, from_pos);
    st_store<DT>(x, p.row * cols + p.column, sum, p.count, wide);
}

cudaError_t st_cuda_embed_add_position(cudaStream_t stream, void *x, const void *pos, const int32_t *positions, uint32_t rows,
                                       uint32_t seq, uint32_t cols, strata_dtype dt)
{
    const bool wide = cols % ST_RUN == 0 && st_are_aligned({x, pos});

    if (rows == 0 || cols == 0)
        return cudaSuccess;
    return st_by_dtype(dt, [&](auto tag) {
        ST_LAUNCH((add_position<decltype(tag)::value>), grid_of(rows, cols), threads_of(cols), 0, stream, x, pos, positions, seq,
                  cols, wide);
    });
}

template <strata_dtype DT>
static __global__ void __launch_bounds__(THREADS)
    fill(void *x, uint32_t stride, const void *of, uint32_t cols, bool add, bool wide)
{
    const struct part p = part_of(cols);
    const uint64_t first = p.row * stride + p.column;
    struct st_packed<DT> row = st_fetch<DT>(of, p.column, p.count, wide);

    if (add) {
        float sum[ST_RUN];

        st_load<DT>(sum, x, first, p.count, wide);
        add_run<DT>(sum, row);
        row = st_pack<DT>(sum);
    }
    st_put<DT>(x, first, row, p.count, wide);
}

cudaError_t st_cuda_fill_rows(cudaStream_t stream, void *x, uint32_t stride, const void *of, uint32_t rows, uint32_t cols,
                              bool add, strata_dtype dt)
{
    const bool wide = cols % ST_RUN == 0 && stride % ST_RUN == 0 && st_are_aligned({x, of});

    if (rows == 0 || cols == 0)
        return cudaSuccess;
    return st_by_dtype(dt, [&](auto tag) {
        ST_LAUNCH((fill<decltype(tag)::value>), grid_of(rows, cols), threads_of(cols), 0, stream, x, stride, of, cols, add, wide);
    });
}

/* --- backward --- */

template <strata_dtype DT>
static __global__ void __launch_bounds__(THREADS)
    position_backward(float *dpos, const void *dx, uint32_t batch, uint32_t seq, uint32_t cols, bool wide)
{
    const struct part p = part_of(cols);
    const uint64_t first = p.row * cols + p.column;
    float sum[ST_RUN];

    st_load<STRATA_F32>(sum, dpos, first, p.count, wide);
    for (uint32_t b = 0; b < batch; b += AHEAD) {
        struct st_packed<DT> x[AHEAD];

#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++)
            x[i] = st_fetch<DT>(dx, (static_cast<uint64_t>(b) + i) * seq * cols + first, b + i < batch ? p.count : 0, wide);
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            if (b + i < batch)
                add_run<DT>(sum, x[i]);
        }
    }
    st_store<STRATA_F32>(dpos, first, sum, p.count, wide);
}

/* Whether an earlier row has the token; all threads call it. */
static __device__ bool is_repeated(const struct tokens &t, uint32_t row, int32_t token)
{
    bool seen = false;

#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < row; i += THREADS)
        seen |= t.token[i] == token;
    return __syncthreads_or(seen) != 0;
}

/* The rows among first .. first + THREADS - 1 with the token, in order; returns their count.  All threads call it. */
static __device__ uint32_t find_rows(uint32_t found[THREADS], const struct tokens &t, uint64_t first, int32_t token)
{
    __shared__ uint32_t matches[WARPS];
    const uint32_t warp = threadIdx.x / ST_WARP, lane = threadIdx.x % ST_WARP;
    const uint64_t row = first + threadIdx.x;
    const bool match = row < t.rows && t.token[row] == token;
    const uint32_t lanes = __ballot_sync(ST_ALL_LANES, match);
    uint32_t before = 0, total = 0;

    if (lane == 0)
        matches[warp] = lanes;
    __syncthreads(); /* and all threads have read the rows of the previous find */
    for (uint32_t i = 0; i < WARPS; i++) {
        const uint32_t count = static_cast<uint32_t>(__popc(matches[i]));

        before += i < warp ? count : 0;
        total += count;
    }
    if (match)
        found[before + static_cast<uint32_t>(__popc(lanes & ((1u << lane) - 1u)))] = static_cast<uint32_t>(row);
    __syncthreads();
    return total;
}

template <strata_dtype DT>
static __global__ void __launch_bounds__(THREADS) scatter(float *dtable, const void *dx, const struct tokens t, bool wide)
{
    __shared__ uint32_t found[THREADS];
    const struct part p = part_of(t.cols);
    const int32_t token = t.token[p.row];
    const uint64_t first = table_row(t, token) * t.cols + p.column;
    float sum[ST_RUN];

    if (table_row(t, token) >= t.row_count || is_repeated(t, blockIdx.x, token))
        return;
    st_load<STRATA_F32>(sum, dtable, first, p.count, wide);
    for (uint64_t from = p.row; from < t.rows; from += THREADS) {
        const uint32_t total = find_rows(found, t, from, token);

        for (uint32_t i = 0; i < total; i += AHEAD) {
            struct st_packed<DT> x[AHEAD];

#pragma unroll
            for (uint32_t k = 0; k < AHEAD; k++) {
                const uint64_t row = found[i + k < total ? i + k : i];

                x[k] = st_fetch<DT>(dx, row * t.cols + p.column, i + k < total ? p.count : 0, wide);
            }
#pragma unroll
            for (uint32_t k = 0; k < AHEAD; k++) {
                if (i + k < total)
                    add_run<DT>(sum, x[k]);
            }
        }
    }
    st_store<STRATA_F32>(dtable, first, sum, p.count, wide);
}

cudaError_t st_cuda_embed_scatter(cudaStream_t stream, float *dtable, const void *dx, const int32_t *tokens, uint32_t rows,
                                  uint32_t cols, uint32_t row_first, uint32_t row_count, strata_dtype dt)
{
    const struct tokens t = {tokens, rows, cols, row_first, row_count};
    const bool wide = cols % ST_RUN == 0 && st_are_aligned({dtable, dx});

    if (rows == 0 || cols == 0)
        return cudaSuccess;
    return st_by_dtype(dt, [&](auto tag) {
        ST_LAUNCH((scatter<decltype(tag)::value>), grid_of(rows, cols), THREADS, 0, stream, dtable, dx, t, wide);
    });
}

cudaError_t st_cuda_embed_position_backward(cudaStream_t stream, float *dpos, const void *dx, const int32_t *positions,
                                            uint32_t rows, uint32_t seq, uint32_t cols, strata_dtype dt)
{
    const bool wide = cols % ST_RUN == 0 && st_are_aligned({dpos, dx});

    if (rows == 0 || seq == 0 || cols == 0)
        return cudaSuccess;
    if (positions != nullptr)
        return st_cuda_embed_scatter(stream, dpos, dx, positions, rows, cols, 0, seq, dt);
    return st_by_dtype(dt, [&](auto tag) {
        ST_LAUNCH((position_backward<decltype(tag)::value>), grid_of(seq, cols), threads_of(cols), 0, stream, dpos, dx,
                  rows / seq, seq, cols, wide);
    });
}

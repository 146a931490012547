/* kernels/cuda/ops_norm.cu - LayerNorm and RMSNorm, and sums down columns.
 *
 * Rows: one warp handles a row of up to 1024 columns, a block a longer one; up to 8192 columns a row stays in registers between
 * passes, and a longer one is read again; these limits are halved in F32.  Columns: a block takes a strip of 32 columns and all
 * rows, so that no partial sum leaves it.  Each head of an RMSNorm over heads is a row. */
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/elems.cuh"

/* RMS_HEADS: with heads, gaps between rows or an offset weight, in kernels of their own: to find a row is then a division. */
enum norm { LAYER, RMS, RMS_HEADS };

/* --- rows --- */

#define ROW_THREADS 256u /* threads of a block: all on one row, or ROW_THREADS / ST_WARP rows */
#define KEPT_RUNS   4u   /* runs of a row that a thread keeps; half as many in F32 */

/* Where rows begin: `heads` of `cols` elements in each `stride` elements. */
struct row_places {
    uint64_t rows; /* heads included */
    uint32_t cols, heads, stride;

    template <bool HEADS> __device__ uint64_t first(uint64_t row) const
    {
        return HEADS ? row / heads * stride + row % heads * cols : row * cols;
    }
};

static struct row_places dense_rows(uint32_t rows, uint32_t cols)
{
    return {rows, cols, 1, cols};
}

static struct row_places norm_rows(const struct st_rmsnorm *norm)
{
    return {static_cast<uint64_t>(norm->rows) * norm->heads, norm->cols, norm->heads, norm->stride};
}

static bool is_dense(const struct st_rmsnorm *norm)
{
    return norm->heads == 1 && norm->stride == norm->cols && norm->offset == 0.0f;
}

/* Whether runs are whole: where rows begin at multiples of runs, if the tensors do. */
static bool rows_are_wide(const struct row_places &at)
{
    return at.cols % ST_RUN == 0 && at.stride % ST_RUN == 0;
}

/* The runs of row `row` that are this thread's.  GROUP threads share the row; each keeps RUNS of its runs; 0: none. */
template <bool HEADS, uint32_t GROUP, uint32_t RUNS> struct row_part {
    uint64_t row, first; /* the row, and the index of its first element */
    uint32_t lane, cols;
    bool wide;

    __device__ row_part(const struct row_places &at, bool wide_)
        : row(static_cast<uint64_t>(blockIdx.x) * (ROW_THREADS / GROUP) + threadIdx.x / GROUP), first(at.first<HEADS>(row)),
          lane(threadIdx.x % GROUP), cols(at.cols), wide(wide_)
    {
    }
    __device__ uint32_t runs() const
    {
        return RUNS > 0 ? RUNS : (cols + GROUP * ST_RUN - 1) / (GROUP * ST_RUN);
    }
    /* Whether any thread of the row has elements in this run; the same answer for all of them. */
    __device__ bool has(uint32_t run) const
    {
        return RUNS <= 1 || run * GROUP * ST_RUN < cols;
    }
    __device__ uint64_t column(uint32_t run) const
    {
        return (static_cast<uint64_t>(run) * GROUP + lane) * ST_RUN;
    }
    __device__ uint32_t count(uint32_t run) const
    {
        return st_run_count(column(run), cols);
    }
};

/* The part that a thread keeps of the row of a tensor that begins at element `first`; tensor NULL: zeros. */
template <bool HEADS, strata_dtype DT, uint32_t GROUP, uint32_t RUNS> struct kept_row {
    struct st_packed<DT> run[RUNS > 0 ? RUNS : 1];
    const void *tensor;
    uint64_t first;

    __device__ kept_row(const void *tensor_, uint64_t first_, const struct row_part<HEADS, GROUP, RUNS> &part)
        : tensor(tensor_), first(first_)
    {
#pragma unroll
        for (uint32_t k = 0; k != RUNS; k++)
            run[k] = part.has(k) ? fetch(part, k) : st_packed<DT>();
    }
    __device__ st_packed<DT> fetch(const struct row_part<HEADS, GROUP, RUNS> &part, uint32_t k) const
    {
        return st_fetch<DT>(tensor, first + part.column(k), tensor != nullptr ? part.count(k) : 0, part.wide);
    }
    __device__ void get(float out[ST_RUN], const struct row_part<HEADS, GROUP, RUNS> &part, uint32_t k) const
    {
        st_unpack<DT>(out, RUNS > 0 ? run[k] : fetch(part, k));
    }
};

/* A row's sum, in all its threads. */
template <uint32_t GROUP> static __device__ float row_sum(float x, float *shared)
{
    return st_group_sum<GROUP / ST_WARP>(x, shared);
}

struct norm_forward_args {
    void *y;
    float *stats;
    const void *x, *weight, *bias;
    struct row_places at;
    float eps, offset; /* offset: of the weight of RMS */
    bool wide;
};

/* An offset of 0 is not added: it would make a weight of -0 a 0. */
template <enum norm NORM> static __device__ float offset_weight(float weight, float offset)
{
    return NORM == RMS_HEADS && offset != 0.0f ? weight + offset : weight;
}

template <enum norm NORM, strata_dtype DT, uint32_t GROUP, uint32_t RUNS>
static __global__ void __launch_bounds__(ROW_THREADS, 2) norm_forward(const struct norm_forward_args s)
{
    __shared__ float shared[2][ROW_THREADS / ST_WARP];
    const struct row_part<NORM == RMS_HEADS, GROUP, RUNS> part(s.at, s.wide);
    float mean = 0.0f, squares = 0.0f, rstd;

    if (part.row >= s.at.rows)
        return;
    const struct kept_row<NORM == RMS_HEADS, DT, GROUP, RUNS> in(s.x, part.first, part), weights(s.weight, 0, part);
    const struct kept_row<NORM == RMS_HEADS, DT, GROUP, RUNS> biases(s.bias, 0, part);

    if (NORM == LAYER) {
        float sum = 0.0f;

#pragma unroll
        for (uint32_t k = 0; k < part.runs() && part.has(k); k++) {
            float x[ST_RUN];

            in.get(x, part, k); /* zeros past the end of the row */
#pragma unroll
            for (uint32_t i = 0; i < ST_RUN; i++)
                sum += x[i];
        }
        mean = row_sum<GROUP>(sum, shared[0]) / static_cast<float>(s.at.cols);
    }
#pragma unroll
    for (uint32_t k = 0; k < part.runs() && part.has(k); k++) {
        const uint32_t count = part.count(k);
        float x[ST_RUN];

        in.get(x, part, k);
#pragma unroll
        for (uint32_t i = 0; i < ST_RUN; i++) {
            const float d = i < count ? x[i] - mean : 0.0f;

            squares += d * d;
        }
    }
    rstd = 1.0f / sqrtf(row_sum<GROUP>(squares, shared[1]) / static_cast<float>(s.at.cols) + s.eps);
#pragma unroll
    for (uint32_t k = 0; k < part.runs() && part.has(k); k++) {
        const uint32_t count = part.count(k);
        float x[ST_RUN], weight[ST_RUN], bias[ST_RUN];

        in.get(x, part, k);
        weights.get(weight, part, k);
        biases.get(bias, part, k);
#pragma unroll
        for (uint32_t i = 0; i < ST_RUN; i++)
            x[i] = NORM == LAYER ? (x[i] - mean) * rstd * weight[i] + bias[i]
                                 : x[i] * rstd * offset_weight<NORM>(weight[i], s.offset);
        st_store<DT>(s.y, part.first + part.column(k), x, count, s.wide);
    }
    if (part.lane == 0 && NORM == LAYER) {
        s.stats[2 * part.row] = mean;
        s.stats[2 * part.row + 1] = rstd;
    } else if (part.lane == 0) {
        s.stats[part.row] = rstd;
    }
}

struct norm_backward_args {
    void *dx;
    float *dweight, *dbias; /* either may be NULL */
    const void *dy, *x;
    const float *stats;
    const void *weight, *residual; /* residual: may be NULL */
    struct row_places at;
    float offset; /* of the weight of RMS */
    bool wide;
};

/* The values of a row that the backward pass reads. */
template <enum norm NORM, strata_dtype DT, strata_dtype DY, uint32_t GROUP, uint32_t RUNS> struct backward_row {
    static constexpr bool HEADS = NORM == RMS_HEADS;

    struct kept_row<HEADS, DY, GROUP, RUNS> dy;
    struct kept_row<HEADS, DT, GROUP, RUNS> x, weight;
    float mean, rstd, offset;

    /* g = dy * weight and xhat of run k; zeros past the end of the row. */
    __device__ void get(float g[ST_RUN], float xhat[ST_RUN], const struct row_part<HEADS, GROUP, RUNS> &part, uint32_t k) const
    {
        const uint32_t count = part.count(k);
        float w[ST_RUN];

        dy.get(g, part, k);
        x.get(xhat, part, k);
        weight.get(w, part, k);
#pragma unroll
        for (uint32_t i = 0; i < ST_RUN; i++) {
            g[i] *= offset_weight<NORM>(w[i], offset);
            xhat[i] = i < count ? (xhat[i] - mean) * rstd : 0.0f;
        }
    }
};

/* dx = rstd (g - mean(g) - xhat mean(g xhat)) + residual; RMS: without mean(g).  A thread has read its elements of dy and of the
 * residual before it writes them: dx may be either. */
template <enum norm NORM, strata_dtype DT, strata_dtype DY, uint32_t GROUP, uint32_t RUNS>
static __global__ void __launch_bounds__(ROW_THREADS, 2) norm_backward(const struct norm_backward_args s)
{
    __shared__ float shared[2][ROW_THREADS / ST_WARP];
    const struct row_part<NORM == RMS_HEADS, GROUP, RUNS> part(s.at, s.wide);
    float g_sum = 0.0f, gx_sum = 0.0f, g_mean = 0.0f, gx_mean;

    if (part.row >= s.at.rows)
        return;
    const struct backward_row<NORM, DT, DY, GROUP, RUNS> in = {
        {s.dy, part.first, part}, {s.x, part.first, part}, {s.weight, 0, part}, NORM == LAYER ? s.stats[2 * part.row] : 0.0f,
            NORM == LAYER ? s.stats[2 * part.row + 1] : s.stats[part.row], s.offset
    };

#pragma unroll
    for (uint32_t k = 0; k < part.runs() && part.has(k); k++) {
        float g[ST_RUN], xhat[ST_RUN];

        in.get(g, xhat, part, k);
#pragma unroll
        for (uint32_t i = 0; i < ST_RUN; i++) {
            g_sum += g[i];
            gx_sum += g[i] * xhat[i];
        }
    }
    if (NORM == LAYER)
        g_mean = row_sum<GROUP>(g_sum, shared[0]) / static_cast<float>(s.at.cols);
    gx_mean = row_sum<GROUP>(gx_sum, shared[1]) / static_cast<float>(s.at.cols);
    const struct kept_row<NORM == RMS_HEADS, DT, GROUP, RUNS> residuals(s.residual, part.first, part);

#pragma unroll
    for (uint32_t k = 0; k < part.runs() && part.has(k); k++) {
        float g[ST_RUN], xhat[ST_RUN], residual[ST_RUN];

        in.get(g, xhat, part, k);
        residuals.get(residual, part, k);
#pragma unroll
        for (uint32_t i = 0; i < ST_RUN; i++)
            g[i] = (g[i] - g_mean - xhat[i] * gx_mean) * in.rstd + residual[i];
        st_store<DT>(s.dx, part.first + part.column(k), g, part.count(k), s.wide);
    }
}

/* --- columns --- */

#define STRIP          32u /* columns of a block */
#define STRIP_RUNS     (STRIP / ST_RUN)
#define COLUMN_THREADS 512u
#define COLUMN_LANES   (COLUMN_THREADS / STRIP_RUNS)
#define AHEAD          4u /* rows of one lane in flight at a time */
#define COLUMN_WARPS   (COLUMN_THREADS / ST_WARP)

enum columns { COLUMNS_PLAIN, COLUMNS_LAYER, COLUMNS_RMS, COLUMNS_RMS_HEADS };

/* Adds the eight lanes of a warp that hold the same columns, as a tree; part [warp][column of the strip]. */
static __device__ void put_warp_sums(float part[COLUMN_WARPS][STRIP], const float sum[ST_RUN])
{
#pragma unroll
    for (uint32_t i = 0; i < ST_RUN; i++) {
        float x = sum[i];

#pragma unroll
        for (uint32_t step = STRIP_RUNS; step < ST_WARP; step *= 2)
            x += __shfl_xor_sync(ST_ALL_LANES, x, static_cast<int>(step));
        if (threadIdx.x % ST_WARP < STRIP_RUNS)
            part[threadIdx.x / ST_WARP][threadIdx.x % STRIP_RUNS * ST_RUN + i] = x;
    }
}

/* out[c] += the warps' sums of column c, in index order. */
static __device__ void add_warp_sums(float *out, const float part[COLUMN_WARPS][STRIP], uint32_t column, uint32_t cols)
{
    const uint64_t c = static_cast<uint64_t>(blockIdx.x) * STRIP + column;
    float sum = 0.0f;

    if (out == nullptr || c >= cols)
        return;
    for (uint32_t i = 0; i < COLUMN_WARPS; i++)
        sum += part[i][column];
    out[c] += sum;
}

/* dbias += sum of dy, dweight += sum of dy * xhat. */
template <enum columns WHAT, strata_dtype DT, strata_dtype DY>
static __global__ void __launch_bounds__(COLUMN_THREADS) column_sums(const struct norm_backward_args s)
{
    constexpr bool OF_RMS = WHAT == COLUMNS_RMS || WHAT == COLUMNS_RMS_HEADS;
    __shared__ float weight_part[COLUMN_WARPS][STRIP], bias_part[COLUMN_WARPS][STRIP];
    const uint64_t column = static_cast<uint64_t>(blockIdx.x) * STRIP + threadIdx.x % STRIP_RUNS * ST_RUN;
    const uint32_t count = st_run_count(column, s.at.cols);
    float weight[ST_RUN] = {}, bias[ST_RUN] = {};

    for (uint64_t row = threadIdx.x / STRIP_RUNS; row < s.at.rows; row += AHEAD * COLUMN_LANES) {
        struct st_packed<DY> from_dy[AHEAD];
        struct st_packed<DT> from_x[AHEAD];
        float mean[AHEAD], rstd[AHEAD];

#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++) {
            const uint64_t r = row + k * COLUMN_LANES, first = s.at.first<WHAT == COLUMNS_RMS_HEADS>(r) + column;
            const bool there = r < s.at.rows;

            from_dy[k] = st_fetch<DY>(s.dy, first, there ? count : 0, s.wide);
            from_x[k] = st_fetch<DT>(s.x, first, there && WHAT != COLUMNS_PLAIN ? count : 0, s.wide);
            mean[k] = there && WHAT == COLUMNS_LAYER ? s.stats[2 * r] : 0.0f;
            rstd[k] = there && WHAT == COLUMNS_LAYER ? s.stats[2 * r + 1] : 0.0f;
            if (there && OF_RMS)
                rstd[k] = s.stats[r];
        }
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++) {
            float dy[ST_RUN], x[ST_RUN];

            st_unpack<DY>(dy, from_dy[k]); /* zeros below the last row: they add nothing */
            st_unpack<DT>(x, from_x[k]);
#pragma unroll
            for (uint32_t i = 0; i < ST_RUN; i++) {
                weight[i] += dy[i] * ((x[i] - mean[k]) * rstd[k]);
                bias[i] += dy[i];
            }
        }
    }
    if (WHAT != COLUMNS_PLAIN)
        put_warp_sums(weight_part, weight);
    if (!OF_RMS)
        put_warp_sums(bias_part, bias);
    __syncthreads();
    if (WHAT != COLUMNS_PLAIN && threadIdx.x / STRIP == 0)
        add_warp_sums(s.dweight, weight_part, threadIdx.x, s.at.cols);
    if (!OF_RMS && threadIdx.x / STRIP == 1)
        add_warp_sums(s.dbias, bias_part, threadIdx.x - STRIP, s.at.cols);
}

/* --- launchers --- */

/* Threads of a row and runs each keeps. */
template <uint32_t GROUP_, uint32_t RUNS_> struct row_shape {
    static constexpr uint32_t group = GROUP_, runs = RUNS_;
};

/* Calls body with the shape for rows of `cols` columns of DT, and the grid for `rows` of them. */
template <strata_dtype DT, typename BODY> static void by_row_shape(uint64_t rows, uint32_t cols, BODY body)
{
    constexpr uint32_t runs = DT == STRATA_F32 ? KEPT_RUNS / 2 : KEPT_RUNS;

    if (cols <= ST_WARP * runs * ST_RUN)
        body(row_shape<ST_WARP, runs>(), st_blocks(rows, ROW_THREADS / ST_WARP));
    else if (cols <= ROW_THREADS * runs * ST_RUN)
        body(row_shape<ROW_THREADS, runs>(), st_blocks(rows, 1));
    else
        body(row_shape<ROW_THREADS, 0>(), st_blocks(rows, 1));
}

template <enum norm NORM>
static cudaError_t launch_forward(cudaStream_t stream, const struct norm_forward_args *s, strata_dtype dt)
{
    if (s->at.rows == 0 || s->at.cols == 0)
        return cudaSuccess;
    return st_by_dtype(dt, [&](auto tag) {
        constexpr strata_dtype own = decltype(tag)::value;

        by_row_shape<own>(s->at.rows, s->at.cols, [&](auto shape, unsigned blocks) {
            ST_LAUNCH((norm_forward<NORM, own, decltype(shape)::group, decltype(shape)::runs>), blocks, ROW_THREADS, 0, stream,
                      *s);
        });
    });
}

/* The columns go first, since dx may be dy's memory. */
template <enum norm NORM, strata_dtype DT, strata_dtype DY>
static void launch_backward_as(cudaStream_t stream, const struct norm_backward_args *s)
{
    constexpr enum columns what = NORM == LAYER ? COLUMNS_LAYER : NORM == RMS ? COLUMNS_RMS : COLUMNS_RMS_HEADS;

    if (s->dweight != nullptr || s->dbias != nullptr)
        ST_LAUNCH((column_sums<what, DT, DY>), st_blocks(s->at.cols, STRIP), COLUMN_THREADS, 0, stream, *s);
    by_row_shape<DT>(s->at.rows, s->at.cols, [&](auto shape, unsigned blocks) {
        ST_LAUNCH((norm_backward<NORM, DT, DY, decltype(shape)::group, decltype(shape)::runs>), blocks, ROW_THREADS, 0, stream,
                  *s);
    });
}

template <enum norm NORM>
static cudaError_t launch_backward(cudaStream_t stream, const struct norm_backward_args *s, strata_dtype dy_dt, strata_dtype dt)
{
    if (s->at.rows == 0 || s->at.cols == 0)
        return cudaSuccess;
    if (dy_dt != dt && dy_dt != STRATA_F32)
        return cudaErrorInvalidValue;
    return st_by_dtype(dt, [&](auto tag) {
        constexpr strata_dtype own = decltype(tag)::value;

        if (dy_dt == own)
            launch_backward_as<NORM, own, own>(stream, s);
        else
            launch_backward_as<NORM, own, STRATA_F32>(stream, s);
    });
}

cudaError_t st_cuda_bias_backward(cudaStream_t stream, float *dbias, const void *dy, uint32_t rows, uint32_t cols,
                                  strata_dtype dt)
{
    struct norm_backward_args s = {};

    if (rows == 0 || cols == 0)
        return cudaSuccess;
    s.dbias = dbias;
    s.dy = dy;
    s.at = dense_rows(rows, cols);
    s.wide = cols % ST_RUN == 0 && st_are_aligned({dy});
    return st_by_dtype(dt, [&](auto tag) {
        constexpr strata_dtype own = decltype(tag)::value;

        ST_LAUNCH((column_sums<COLUMNS_PLAIN, own, own>), st_blocks(cols, STRIP), COLUMN_THREADS, 0, stream, s);
    });
}

cudaError_t st_cuda_layernorm_forward(cudaStream_t stream, void *y, float *stats, const void *x, const void *weight,
                                      const void *bias, uint32_t rows, uint32_t cols, float eps, strata_dtype dt)
{
    const bool wide = cols % ST_RUN == 0 && st_are_aligned({y, x, weight, bias});
    const struct norm_forward_args s = {y, stats, x, weight, bias, dense_rows(rows, cols), eps, 0.0f, wide};

    return launch_forward<LAYER>(stream, &s, dt);
}

cudaError_t st_cuda_rmsnorm_forward(cudaStream_t stream, const struct st_rmsnorm *norm, void *y, float *stats, const void *x,
                                    const void *weight)
{
    const struct row_places at = norm_rows(norm);
    const bool wide = rows_are_wide(at) && st_are_aligned({y, x, weight});
    const struct norm_forward_args s = {y, stats, x, weight, nullptr, at, norm->eps, norm->offset, wide};

    return is_dense(norm) ? launch_forward<RMS>(stream, &s, norm->dt) : launch_forward<RMS_HEADS>(stream, &s, norm->dt);
}

cudaError_t st_cuda_layernorm_backward(cudaStream_t stream, void *dx, float *dweight, float *dbias, const void *dy,
                                       strata_dtype dy_dt, const void *x, const float *stats, const void *weight,
                                       const void *residual, uint32_t rows, uint32_t cols, strata_dtype dt)
{
    const bool wide = cols % ST_RUN == 0 && st_are_aligned({dx, dy, x, weight, residual});
    const struct norm_backward_args s = {dx, dweight, dbias, dy, x, stats, weight, residual, dense_rows(rows, cols), 0.0f, wide};

    return launch_backward<LAYER>(stream, &s, dy_dt, dt);
}

cudaError_t st_cuda_rmsnorm_backward(cudaStream_t stream, const struct st_rmsnorm *norm, void *dx, float *dweight, const void *dy,
                                     strata_dtype dy_dt, const void *x, const float *stats, const void *weight,
                                     const void *residual)
{
    const struct row_places at = norm_rows(norm);
    const bool wide = rows_are_wide(at) && st_are_aligned({dx, dy, x, weight, residual});
    const struct norm_backward_args s = {dx, dweight, nullptr, dy, x, stats, weight, residual, at, norm->offset, wide};

    return is_dense(norm) ? launch_backward<RMS>(stream, &s, dy_dt, norm->dt)
                          : launch_backward<RMS_HEADS>(stream, &s, dy_dt, norm->dt);
}

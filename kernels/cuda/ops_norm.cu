/* kernels/cuda/ops_norm.cu - LayerNorm and RMSNorm.
 *
 * Rows: a warp takes a row of up to 2048 columns, a block a longer one.  Up to 8192 columns a row stays in registers between
 * passes, and a longer one is read again; wider numbers and more sums halve these limits.  Each head of an RMSNorm over heads is
 * a row.
 *
 * Backward: a block takes rows that follow each other.  What they add to the gradients of the parameters it sums while it has
 * them, and leaves in the workspace, where ops_columns.cu adds what the blocks left. */
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/elems.cuh"

/* RMS_HEADS: with heads, gaps between rows or an offset weight, in separate kernels: to find a row is then a division. */
enum norm { LAYER, RMS, RMS_HEADS };

/* --- rows --- */

#define WARPS_THREADS 128u  /* of blocks in which each warp has a row */
#define SUM_BLOCKS    1024u /* of backward at most: more sums than these would cost more than they spread */

/* Threads of a block: warps with a row each, or all on one row. */
static __host__ __device__ constexpr uint32_t block_threads(uint32_t group)
{
    return group == ST_WARP ? WARPS_THREADS : group;
}

/* Blocks on a multiprocessor, which limits registers: to 255 of a thread whose warp has a whole row, to 128 of others. */
static __host__ __device__ constexpr uint32_t blocks_at_least(uint32_t group)
{
    return group == ST_WARP ? 2 : 512 / group;
}

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

/* The runs of a row that are this thread's.  GROUP threads share the row; each keeps RUNS of its runs; 0: none.  More than one
 * are kept only of wide rows. */
template <uint32_t GROUP, uint32_t RUNS> struct row_part {
    uint64_t first; /* the index of the row's first element */
    uint32_t lane, cols;
    bool wide;

    __device__ row_part(uint64_t first_, uint32_t cols_, bool wide_)
        : first(first_), lane(threadIdx.x % GROUP), cols(cols_), wide(RUNS > 1 || wide_)
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
        if (RUNS > 1)
            return column(run) < cols ? ST_RUN : 0;
        return st_run_count(column(run), cols);
    }
};

/* A thread's runs of a row of `tensor`; NULL: zeros. */
template <strata_dtype DT, uint32_t RUNS> struct kept_row {
    struct st_packed<DT> run[RUNS > 0 ? RUNS : 1];
    const void *tensor;

    template <typename PART> __device__ kept_row(const void *tensor_, const PART &part) : tensor(tensor_)
    {
#pragma unroll
        for (uint32_t k = 0; k != RUNS; k++)
            run[k] = part.has(k) ? fetch(part, k) : st_packed<DT>();
    }
    template <typename PART> __device__ st_packed<DT> fetch(const PART &part, uint32_t k) const
    {
        return st_fetch<DT>(tensor, part.first + part.column(k), tensor != nullptr ? part.count(k) : 0, part.wide);
    }
    template <typename PART> __device__ void get(float out[ST_RUN], const PART &part, uint32_t k) const
    {
        st_unpack<DT>(out, RUNS > 0 ? run[k] : fetch(part, k));
    }
    /* Becomes its sum with another row, which is also written to `sum`. */
    template <typename PART> __device__ void add(const struct kept_row<DT, RUNS> &other, void *sum, const PART &part)
    {
#pragma unroll
        for (uint32_t k = 0; k < part.runs() && part.has(k); k++) {
            float a[ST_RUN], b[ST_RUN];

            get(a, part, k);
            other.get(b, part, k);
#pragma unroll
            for (uint32_t i = 0; i < ST_RUN; i++)
                a[i] += b[i];
            run[RUNS > 0 ? k : 0] = st_pack<DT>(a);
            st_put<DT>(sum, part.first + part.column(k), run[RUNS > 0 ? k : 0], part.count(k), part.wide);
        }
        tensor = sum;
    }
    /* Between passes: the compiler must not keep what it computed of the row, which takes more registers than the row. */
    __device__ void forget_derived()
    {
#ifdef __CUDA_ARCH__
#pragma unroll
        for (uint32_t k = 0; k != RUNS; k++) {
#pragma unroll
            for (uint32_t i = 0; i < sizeof(run[k]) / 4; i++)
                asm volatile("" : "+r"(run[k].word[i])::"memory");
        }
#endif
    }
};

/* A thread's runs of a row that it writes: at the end if rows are kept, so that no read must wait for a write. */
template <strata_dtype DT, uint32_t RUNS> struct written_row {
    struct st_packed<DT> run[RUNS > 0 ? RUNS : 1];
    void *tensor;

    __device__ explicit written_row(void *tensor_) : tensor(tensor_)
    {
    }
    template <typename PART> __device__ void put(const float in[ST_RUN], const PART &part, uint32_t k)
    {
        run[RUNS > 0 ? k : 0] = st_pack<DT>(in);
        if (RUNS == 0)
            st_put<DT>(tensor, part.first + part.column(k), run[0], part.count(k), part.wide);
    }
    template <typename PART> __device__ void finish(const PART &part) const
    {
#pragma unroll
        for (uint32_t k = 0; k != RUNS && part.has(k); k++)
            st_put<DT>(tensor, part.first + part.column(k), run[k], part.count(k), part.wide);
    }
};

/* Loads weights or biases, which all rows share, so that they are in the first cache. */
template <strata_dtype DT, uint32_t GROUP, uint32_t RUNS>
static __device__ void get_parameter(float out[ST_RUN], const void *tensor, const struct row_part<GROUP, RUNS> &part, uint32_t k)
{
    st_load<DT>(out, tensor, part.column(k), part.count(k), part.wide);
}

/* A row's sum, in all its threads. */
template <uint32_t GROUP> static __device__ float row_sum(float x, float *shared)
{
    return st_group_sum<GROUP / ST_WARP>(x, shared);
}

struct norm_forward_args {
    void *y, *sum;
    float *stats;
    const void *x, *addend, *weight, *bias; /* addend: may be NULL */
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
static __global__ void __launch_bounds__(block_threads(GROUP), blocks_at_least(GROUP))
    norm_forward(const struct norm_forward_args s)
{
    __shared__ float shared[2][block_threads(GROUP) / ST_WARP];
    const uint64_t row = static_cast<uint64_t>(blockIdx.x) * (block_threads(GROUP) / GROUP) + threadIdx.x / GROUP;
    const struct row_part<GROUP, RUNS> part(s.at.first<NORM == RMS_HEADS>(row), s.at.cols, s.wide);
    float mean = 0.0f, squares = 0.0f, rstd;

    if (row >= s.at.rows)
        return;
    struct kept_row<DT, RUNS> in(s.x, part);
    struct written_row<DT, RUNS> y(s.y);

    if (s.addend != nullptr)
        in.add(kept_row<DT, RUNS>(s.addend, part), s.sum, part);
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
            const float d = NORM == LAYER && i >= count ? 0.0f : x[i] - mean;

            squares += d * d;
        }
    }
    rstd = 1.0f / sqrtf(row_sum<GROUP>(squares, shared[1]) / static_cast<float>(s.at.cols) + s.eps);
#pragma unroll
    for (uint32_t k = 0; k < part.runs() && part.has(k); k++) {
        float x[ST_RUN], weight[ST_RUN], bias[ST_RUN];

        in.get(x, part, k);
        get_parameter<DT>(weight, s.weight, part, k);
        if (NORM == LAYER)
            get_parameter<DT>(bias, s.bias, part, k);
#pragma unroll
        for (uint32_t i = 0; i < ST_RUN; i++)
            x[i] = NORM == LAYER ? (x[i] - mean) * rstd * weight[i] + bias[i]
                                 : x[i] * rstd * offset_weight<NORM>(weight[i], s.offset);
        y.put(x, part, k);
    }
    y.finish(part);
    if (part.lane == 0 && NORM == LAYER) {
        s.stats[2 * row] = mean;
        s.stats[2 * row + 1] = rstd;
    } else if (part.lane == 0) {
        s.stats[row] = rstd;
    }
}

/* --- backward --- */

struct norm_backward_args {
    void *dx;
    float *weight_sums, *bias_sums; /* [blocks][cols] in the workspace; either may be NULL */
    const void *dy, *x;
    const float *stats;
    const void *weight, *residual; /* residual: may be NULL */
    struct row_places at;
    uint64_t block_rows; /* of one block, a multiple of those that it has at once */
    float offset;        /* of the weight of RMS */
    bool wide;
};

template <uint32_t GROUP> struct backward_shared {
    static constexpr uint32_t warps = block_threads(GROUP) / ST_WARP;

    float rows[2][2][warps];                                                     /* of row_sum: by turn, and by what */
    float __align__(16) columns[warps][GROUP == ST_WARP ? ST_WARP * ST_RUN : 4]; /* of a run of each warp */
};

/* What a thread's elements of the block's rows add to the gradient of one parameter: in registers or, if rows are not kept, where
 * the block leaves it. */
template <uint32_t GROUP, uint32_t RUNS> struct parameter_sums {
    float run[RUNS > 0 ? RUNS : 1][ST_RUN];
    float *out; /* the block's; NULL: the parameter is frozen */

    __device__ parameter_sums(float *all, uint32_t cols)
        : run(), out(all != nullptr ? all + static_cast<uint64_t>(blockIdx.x) * cols : nullptr)
    {
    }
    __device__ void add(const float x[ST_RUN], const struct row_part<GROUP, RUNS> &part, uint32_t k, bool is_first)
    {
        const uint32_t count = out != nullptr ? part.count(k) : 0;
        float *const sum = run[RUNS > 0 ? k : 0];

        if (RUNS == 0)
            st_load<STRATA_F32>(sum, out, part.column(k), is_first ? 0 : count, part.wide);
#pragma unroll
        for (uint32_t i = 0; i < ST_RUN; i++)
            sum[i] += x[i];
        if (RUNS == 0)
            st_store<STRATA_F32>(out, part.column(k), sum, count, part.wide);
    }
    /* Leaves the block's sums: warps that had rows of their own are added in index order. */
    __device__ void finish(const struct row_part<GROUP, RUNS> &part, struct backward_shared<GROUP> *shared) const
    {
#pragma unroll
        for (uint32_t k = 0; k != RUNS && out != nullptr && part.has(k); k++) {
            if (GROUP != ST_WARP) {
                st_store<STRATA_F32>(out, part.column(k), run[k], part.count(k), part.wide);
                continue;
            }
            __syncthreads(); /* all have read the run before */
            st_store<STRATA_F32>(shared->columns[threadIdx.x / ST_WARP], part.lane * ST_RUN, run[k], ST_RUN, true);
            __syncthreads();
            for (uint32_t c = threadIdx.x; c < ST_WARP * ST_RUN; c += WARPS_THREADS) {
                float sum = shared->columns[0][c];

#pragma unroll
                for (uint32_t warp = 1; warp < shared->warps; warp++)
                    sum += shared->columns[warp][c];
                if (k * ST_WARP * ST_RUN + c < part.cols)
                    out[k * ST_WARP * ST_RUN + c] = sum;
            }
        }
    }
};

/* dx = rstd (g - mean(g) - xhat mean(g xhat)) + residual, g = dy weight; RMS: without mean(g).  The weight's gradient is a sum of
 * dy xhat, the bias's of dy.  A thread has read its elements of dy and of the residual before it writes them: dx may be either.
 */
template <enum norm NORM, strata_dtype DT, strata_dtype DY, uint32_t GROUP, uint32_t RUNS>
static __global__ void __launch_bounds__(block_threads(GROUP), blocks_at_least(GROUP))
    norm_backward(const struct norm_backward_args s)
{
    constexpr uint32_t ROWS = block_threads(GROUP) / GROUP; /* at once */
    __shared__ struct backward_shared<GROUP> shared;
    const uint64_t first = blockIdx.x * s.block_rows, end = first + s.block_rows < s.at.rows ? first + s.block_rows : s.at.rows;
    struct parameter_sums<GROUP, RUNS> weight_sums(s.weight_sums, s.at.cols), bias_sums(s.bias_sums, s.at.cols);
    uint32_t turn = 0;

    for (uint64_t row = first + threadIdx.x / GROUP; row < end; row += ROWS, turn ^= 1) {
        const struct row_part<GROUP, RUNS> part(s.at.first<NORM == RMS_HEADS>(row), s.at.cols, s.wide);
        struct kept_row<DT, RUNS> in_x(s.x, part);
        struct kept_row<DY, RUNS> in_dy(s.dy, part);
        /* Read late where registers are short. */
        const struct kept_row<DT, NORM == RMS_HEADS && GROUP != ST_WARP ? 0 : RUNS> residuals(s.residual, part);
        const float mean = NORM == LAYER ? s.stats[2 * row] : 0.0f, rstd = NORM == LAYER ? s.stats[2 * row + 1] : s.stats[row];
        float g_sum = 0.0f, gx_sum = 0.0f, g_mean = 0.0f, gx_mean;

#pragma unroll
        for (uint32_t k = 0; k < part.runs() && part.has(k); k++) {
            float dy[ST_RUN], x[ST_RUN], weight[ST_RUN];

            in_dy.get(dy, part, k); /* zeros past the end of the row */
            in_x.get(x, part, k);
            get_parameter<DT>(weight, s.weight, part, k);
            if (NORM == LAYER)
                bias_sums.add(dy, part, k, row == first);
#pragma unroll
            for (uint32_t i = 0; i < ST_RUN; i++) {
                g_sum += dy[i] * weight[i];
                dy[i] *= (x[i] - mean) * rstd;
                gx_sum += dy[i] * offset_weight<NORM>(weight[i], s.offset);
            }
            weight_sums.add(dy, part, k, row == first);
        }
        if (NORM == LAYER)
            g_mean = row_sum<GROUP>(g_sum, shared.rows[turn][0]) / static_cast<float>(s.at.cols);
        gx_mean = row_sum<GROUP>(gx_sum, shared.rows[turn][1]) / static_cast<float>(s.at.cols);
        struct written_row<DT, RUNS> dx(s.dx);

        in_x.forget_derived();
        in_dy.forget_derived();
#pragma unroll
        for (uint32_t k = 0; k < part.runs() && part.has(k); k++) {
            float dy[ST_RUN], x[ST_RUN], weight[ST_RUN], residual[ST_RUN];

            in_dy.get(dy, part, k);
            in_x.get(x, part, k);
            get_parameter<DT>(weight, s.weight, part, k);
            residuals.get(residual, part, k);
#pragma unroll
            for (uint32_t i = 0; i < ST_RUN; i++) {
                const float g = dy[i] * offset_weight<NORM>(weight[i], s.offset);

                x[i] = (g - g_mean - (x[i] - mean) * rstd * gx_mean) * rstd + residual[i];
            }
            dx.put(x, part, k);
        }
        dx.finish(part);
    }
    const struct row_part<GROUP, RUNS> part(0, s.at.cols, s.wide);

    weight_sums.finish(part, &shared);
    if (NORM == LAYER)
        bias_sums.finish(part, &shared);
}

/* --- launchers --- */

/* Threads of a row and runs each keeps. */
template <uint32_t GROUP, uint32_t RUNS> struct row_shape {
    static constexpr uint32_t group = GROUP, runs = RUNS;
};

/* Calls body with the shape for rows of `cols` columns; RUNS: the most that a thread of many keeps, half of what a warp does. */
template <uint32_t RUNS, typename BODY> static void by_row_shape(uint32_t cols, bool wide, BODY body)
{
    if (cols <= ST_WARP * ST_RUN)
        body(row_shape<ST_WARP, 1>());
    else if (wide && cols <= ST_WARP * 2 * RUNS * ST_RUN)
        body(row_shape<ST_WARP, 2 * RUNS>());
    else if (wide && cols <= 128 * RUNS * ST_RUN)
        body(row_shape<128, RUNS>());
    else if (wide && cols <= 256 * RUNS * ST_RUN)
        body(row_shape<256, RUNS>());
    else
        body(row_shape<256, 0>());
}

template <enum norm NORM>
static cudaError_t launch_forward(cudaStream_t stream, const struct norm_forward_args *s, strata_dtype dt)
{
    if (s->at.rows == 0 || s->at.cols == 0)
        return cudaSuccess;
    return st_by_dtype(dt, [&](auto tag) {
        constexpr strata_dtype own = decltype(tag)::value;
        constexpr uint32_t half = own == STRATA_F32 ? 2 : 1;

        by_row_shape<4 / half>(s->at.cols, s->wide, [&](auto shape) {
            constexpr uint32_t group = decltype(shape)::group, threads = block_threads(group);

            ST_LAUNCH((norm_forward<NORM, own, group, decltype(shape)::runs>), st_blocks(s->at.rows, threads / group), threads, 0,
                      stream, *s);
        });
    });
}

/* What backward was asked for, beside its kernel's arguments. */
struct backward_call {
    struct norm_backward_args args; /* without block_rows and sums */
    float *dweight, *dbias, *workspace;
};

/* The blocks for `rows` rows, and the rows of each: no more blocks than SUM_BLOCKS, nor than the workspace has room for. */
static unsigned backward_blocks(uint64_t *block_rows, uint64_t rows, uint64_t block_bytes, uint32_t at_once)
{
    const uint64_t room = ST_CUDA_NORM_WORKSPACE / block_bytes, most = room < SUM_BLOCKS ? room : SUM_BLOCKS;
    const uint64_t turns = (rows + most * at_once - 1) / (most * at_once);

    *block_rows = turns * at_once;
    return st_blocks(rows, *block_rows);
}

/* *blocks: how many leave their sums in the workspace, the weight's before the bias's. */
template <enum norm NORM, strata_dtype DT, strata_dtype DY>
static void launch_rows(cudaStream_t stream, const struct backward_call *call, unsigned *blocks)
{
    constexpr uint32_t half = DY == STRATA_F32 || NORM == LAYER ? 2 : 1;

    by_row_shape<4 / half>(call->args.at.cols, call->args.wide, [&](auto shape) {
        constexpr uint32_t group = decltype(shape)::group, threads = block_threads(group);
        struct norm_backward_args s = call->args;
        const uint64_t of_block = s.at.cols * sizeof(float);

        *blocks = backward_blocks(&s.block_rows, s.at.rows, NORM == LAYER ? 2 * of_block : of_block, threads / group);
        s.weight_sums = call->dweight != nullptr ? call->workspace : nullptr;
        s.bias_sums = call->dbias != nullptr ? call->workspace + static_cast<uint64_t>(*blocks) * s.at.cols : nullptr;
        ST_LAUNCH((norm_backward<NORM, DT, DY, group, decltype(shape)::runs>), *blocks, threads, 0, stream, s);
    });
}

template <enum norm NORM>
static cudaError_t launch_backward(cudaStream_t stream, const struct backward_call *call, strata_dtype dy_dt, strata_dtype dt)
{
    const struct row_places *at = &call->args.at;
    unsigned blocks = 0;
    cudaError_t err;

    if (at->rows == 0 || at->cols == 0)
        return cudaSuccess;
    if ((dy_dt != dt && dy_dt != STRATA_F32) || at->cols > ST_CUDA_NORM_WORKSPACE / (2 * sizeof(float)))
        return cudaErrorInvalidValue;
    err = st_by_dtype(dt, [&](auto tag) {
        constexpr strata_dtype own = decltype(tag)::value;

        if (dy_dt == own)
            launch_rows<NORM, own, own>(stream, call, &blocks);
        else
            launch_rows<NORM, own, STRATA_F32>(stream, call, &blocks);
    });
    if (err == cudaSuccess && call->dweight != nullptr)
        err = st_cuda_bias_backward(stream, call->dweight, call->workspace, blocks, at->cols, STRATA_F32);
    if (err == cudaSuccess && call->dbias != nullptr)
        err = st_cuda_bias_backward(stream, call->dbias, call->workspace + static_cast<uint64_t>(blocks) * at->cols, blocks,
                                    at->cols, STRATA_F32);
    return err;
}

cudaError_t st_cuda_layernorm_forward(cudaStream_t stream, void *y, float *stats, const void *x, const void *weight,
                                      const void *bias, const void *addend, void *sum, uint32_t rows, uint32_t cols, float eps,
                                      strata_dtype dt)
{
    const bool wide = cols % ST_RUN == 0 && st_are_aligned({y, x, weight, bias, addend, sum});
    const struct norm_forward_args s = {y, sum, stats, x, addend, weight, bias, dense_rows(rows, cols), eps, 0.0f, wide};

    return launch_forward<LAYER>(stream, &s, dt);
}

cudaError_t st_cuda_rmsnorm_forward(cudaStream_t stream, const struct st_rmsnorm *norm, void *y, float *stats, const void *x,
                                    const void *weight, const void *addend, void *sum)
{
    const struct row_places at = norm_rows(norm);
    const bool wide = rows_are_wide(at) && st_are_aligned({y, x, weight, addend, sum});
    const struct norm_forward_args s = {y, sum, stats, x, addend, weight, nullptr, at, norm->eps, norm->offset, wide};

    return is_dense(norm) ? launch_forward<RMS>(stream, &s, norm->dt) : launch_forward<RMS_HEADS>(stream, &s, norm->dt);
}

cudaError_t st_cuda_layernorm_backward(cudaStream_t stream, void *dx, float *dweight, float *dbias, const void *dy,
                                       strata_dtype dy_dt, const void *x, const float *stats, const void *weight,
                                       const void *residual, uint32_t rows, uint32_t cols, strata_dtype dt, void *workspace)
{
    const bool wide = cols % ST_RUN == 0 && st_are_aligned({dx, dy, x, weight, residual});
    const struct row_places at = dense_rows(rows, cols);
    const struct backward_call call = {{dx, nullptr, nullptr, dy, x, stats, weight, residual, at, 0, 0.0f, wide},
                                       dweight,
                                       dbias,
                                       static_cast<float *>(workspace)};

    return launch_backward<LAYER>(stream, &call, dy_dt, dt);
}

cudaError_t st_cuda_rmsnorm_backward(cudaStream_t stream, const struct st_rmsnorm *norm, void *dx, float *dweight, const void *dy,
                                     strata_dtype dy_dt, const void *x, const float *stats, const void *weight,
                                     const void *residual, void *workspace)
{
    const struct row_places at = norm_rows(norm);
    const bool wide = rows_are_wide(at) && st_are_aligned({dx, dy, x, weight, residual});
    const struct backward_call call = {{dx, nullptr, nullptr, dy, x, stats, weight, residual, at, 0, norm->offset, wide},
                                       dweight,
                                       nullptr,
                                       static_cast<float *>(workspace)};

    return is_dense(norm) ? launch_backward<RMS>(stream, &call, dy_dt, norm->dt)
                          : launch_backward<RMS_HEADS>(stream, &call, dy_dt, norm->dt);
}

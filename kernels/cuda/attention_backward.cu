/* kernels/cuda/attention_backward.cu - see attention.h and attention_backward.cuh. */
#include "kernels/cuda/attention_backward.cuh"

#define PREPARE_THREADS 256u
#define ROW_LANES       8u

/* Sum of a[i] * b[i] over groups of eight columns; every eighth group is this lane's.  `wide`: see st_rows_are_wide(). */
template <strata_dtype DT>
static __device__ __forceinline__ float lane_dot(const st_elem_t<DT> *a, const st_elem_t<DT> *b, uint32_t columns, bool wide)
{
    constexpr uint32_t words = 8 / st_group_elems<DT>;
    float sum = 0;

    for (uint32_t c = threadIdx.x % ROW_LANES * 8; c < columns; c += ROW_LANES * 8) {
        if (wide && columns - c >= 8) {
            st_elem_t<DT> left[8], right[8];
            uint4 word[words];

#pragma unroll
            for (uint32_t i = 0; i < words; i++)
                word[i] = reinterpret_cast<const uint4 *>(a + c)[i];
            memcpy(left, word, sizeof(left));
#pragma unroll
            for (uint32_t i = 0; i < words; i++)
                word[i] = reinterpret_cast<const uint4 *>(b + c)[i];
            memcpy(right, word, sizeof(right));
#pragma unroll
            for (uint32_t i = 0; i < 8; i++)
                sum = fmaf(st_element_load<DT>(left[i]), st_element_load<DT>(right[i]), sum);
        } else {
            for (uint32_t i = c; i < c + 8 && i < columns; i++)
                sum = fmaf(st_element_load<DT>(a[i]), st_element_load<DT>(b[i]), sum);
        }
    }
    return sum;
}

/* Eight lanes work on one head of one row. */
template <strata_dtype DT> static __global__ void __launch_bounds__(PREPARE_THREADS) prepare(struct backward_args s)
{
    const uint64_t item = (static_cast<uint64_t>(blockIdx.x) * PREPARE_THREADS + threadIdx.x) / ROW_LANES;
    const uint64_t row = item / s.at.heads;
    const uint32_t head = static_cast<uint32_t>(item % s.at.heads);
    const bool inside = row < static_cast<uint64_t>(s.at.batch) * s.at.seq;
    const uint64_t at = row * s.at.out_stride + st_query_column(s.at, head);
    float sum = 0;

    if (inside)
        sum = lane_dot<DT>(static_cast<const st_elem_t<DT> *>(s.out) + at, static_cast<const st_elem_t<DT> *>(s.dout) + at,
                           s.at.head_dim, s.wide_out && s.wide_dout);
#pragma unroll
    for (int lanes = ROW_LANES / 2; lanes > 0; lanes /= 2)
        sum += __shfl_xor_sync(ST_ALL_LANES, sum, lanes);
    if (inside && threadIdx.x % ROW_LANES == 0) {
        const uint32_t batch = static_cast<uint32_t>(row / s.at.seq);
        const size_t to = rows_at(s.at, batch, head) + row % s.at.seq;

        s.rows[to] = make_float2(s.lse[to] * ST_LOG2E, sum * s.scale);
    }
}

static cudaError_t prepare_launch(cudaStream_t stream, const struct backward_args &s)
{
    const uint64_t items = static_cast<uint64_t>(s.at.batch) * s.at.seq * s.at.heads, block_items = PREPARE_THREADS / ROW_LANES;
    const uint64_t blocks = (items + block_items - 1) / block_items;
    void (*kernel)(struct backward_args) = s.at.dt == STRATA_BF16  ? prepare<STRATA_BF16>
                                           : s.at.dt == STRATA_F16 ? prepare<STRATA_F16>
                                                                   : prepare<STRATA_F32>;

    if (blocks > INT32_MAX)
        return cudaErrorInvalidValue;
    ST_LAUNCH(kernel, static_cast<unsigned>(blocks), PREPARE_THREADS, 0, stream, s);
    return cudaGetLastError();
}

cudaError_t st_cuda_attention_backward_allow(uint32_t shared_most)
{
    const cudaError_t err = st_backward_keys_allow(shared_most);

    return err != cudaSuccess ? err : st_backward_queries_allow(shared_most);
}

uint64_t st_cuda_attention_workspace(const struct st_attention *at)
{
    return sizeof(float2) * at->batch * at->heads * at->seq;
}

cudaError_t st_cuda_attention_backward(cudaStream_t stream, uint32_t shared_most, const struct st_attention *at, void *dqkv,
                                       const void *dout, const void *out, const float *lse, const void *qkv, void *workspace)
{
    const struct backward_args s = {*at,
                                    dqkv,
                                    dout,
                                    out,
                                    qkv,
                                    lse,
                                    static_cast<float2 *>(workspace),
                                    st_attention_scale(*at),
                                    st_rows_are_wide(qkv, at->qkv_stride, at->head_dim, at->dt),
                                    st_rows_are_wide(dqkv, at->qkv_stride, at->head_dim, at->dt),
                                    st_rows_are_wide(dout, at->out_stride, at->head_dim, at->dt),
                                    st_rows_are_wide(out, at->out_stride, at->head_dim, at->dt)};
    const struct st_tile_queue queue = {stream, shared_most};
    cudaError_t err = st_attention_check(*at);

    if (err != cudaSuccess || at->batch == 0 || at->seq == 0)
        return err;
    err = prepare_launch(stream, s);
    if (err == cudaSuccess)
        err = st_backward_keys(queue, s);
    return err != cudaSuccess ? err : st_backward_queries(queue, s);
}

/* --- sinks: a block for a head --- */

struct sinks_args {
    struct st_attention at;
    float *dsinks;
    const void *dout, *out;
    const float *lse;
    bool wide;
};

/* Eight lanes work on a row; what the groups of lanes sum over their rows is added in index order. */
template <strata_dtype DT> static __global__ void __launch_bounds__(PREPARE_THREADS) sinks_backward(struct sinks_args s)
{
    constexpr uint32_t groups = PREPARE_THREADS / ROW_LANES;
    __shared__ float part[groups];
    const uint32_t head = blockIdx.x, group = threadIdx.x / ROW_LANES;
    const float sink = st_element_load<DT>(static_cast<const st_elem_t<DT> *>(s.at.sinks)[head]);
    float taken = 0;

    for (uint64_t first = 0; first < static_cast<uint64_t>(s.at.batch) * s.at.seq; first += groups) {
        const uint64_t row = first + group, at = row * s.at.out_stride + st_query_column(s.at, head);
        const bool inside = row < static_cast<uint64_t>(s.at.batch) * s.at.seq;
        float sum = 0;

        if (inside)
            sum = lane_dot<DT>(static_cast<const st_elem_t<DT> *>(s.out) + at, static_cast<const st_elem_t<DT> *>(s.dout) + at,
                               s.at.head_dim, s.wide);
#pragma unroll
        for (int lanes = ROW_LANES / 2; lanes > 0; lanes /= 2)
            sum += __shfl_xor_sync(ST_ALL_LANES, sum, lanes);
        if (inside)
            taken += expf(sink - s.lse[rows_at(s.at, static_cast<uint32_t>(row / s.at.seq), head) + row % s.at.seq]) * sum;
    }
    if (threadIdx.x % ROW_LANES == 0)
        part[group] = taken;
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    for (uint32_t i = 1; i < groups; i++)
        taken += part[i];
    s.dsinks[head] -= taken;
}

cudaError_t st_cuda_attention_sinks_backward(cudaStream_t stream, const struct st_attention *at, float *dsinks, const void *dout,
                                             const void *out, const float *lse)
{
    const struct sinks_args s = {*at,
                                 dsinks,
                                 dout,
                                 out,
                                 lse,
                                 st_rows_are_wide(dout, at->out_stride, at->head_dim, at->dt) &&
                                     st_rows_are_wide(out, at->out_stride, at->head_dim, at->dt)};
    void (*kernel)(struct sinks_args) = at->dt == STRATA_BF16  ? sinks_backward<STRATA_BF16>
                                        : at->dt == STRATA_F16 ? sinks_backward<STRATA_F16>
                                                               : sinks_backward<STRATA_F32>;

    ST_LAUNCH(kernel, at->heads, PREPARE_THREADS, 0, stream, s);
    return cudaGetLastError();
}

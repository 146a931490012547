/* kernels/cuda/attention_cached.cu - see attention.h.
 *
 * A block works on one head of one row.  A team of eight lanes works on one key at a time, each lane on every eighth group of
 * eight columns; 32 teams divide the keys by index and keep running sums of their own, which are joined in a fixed order.  So a
 * row's bits depend only on its position and its cache. */
#include "kernels/cuda/attention_tile.cuh"

#define THREADS        256u
#define WARPS          (THREADS / ST_WARP)
#define TEAM           8u
#define TEAMS          (THREADS / TEAM)
#define GROUP          8u /* columns */
#define KEYS_AT_ONCE   4u /* of a team: loads in flight together */
#define APPEND_THREADS 256u

struct cached_args {
    struct st_attention at;
    void *out, *keys, *values;
    const void *qkv;
    uint32_t first, rows;
    float scale; /* of products; capped scores are not scaled */
    float rate;  /* scale of scores * log2(e) */
    bool wide;   /* true for all tensors */
};

/* Keys and values of a row are side by side in the input; their caches are separate. */
template <typename T> static __global__ void __launch_bounds__(APPEND_THREADS) append(struct cached_args s)
{
    const uint32_t width = s.at.kv_heads * s.at.head_dim, row = blockIdx.x;
    const T *from = static_cast<const T *>(s.qkv) + static_cast<size_t>(row) * s.at.qkv_stride + s.at.heads * s.at.head_dim;
    const size_t to = (static_cast<size_t>(s.first) + row) * width;

    for (uint32_t c = threadIdx.x; c < width; c += APPEND_THREADS) {
        static_cast<T *>(s.keys)[to + c] = from[c];
        static_cast<T *>(s.values)[to + c] = from[width + c];
    }
}

/* Columns column..column + 7 of a head's row, zeros past `columns`. */
template <strata_dtype DT>
static __device__ __forceinline__ void group_load(float (&x)[GROUP], const st_elem_t<DT> *row, uint32_t column, uint32_t columns,
                                                  bool wide)
{
    constexpr uint32_t words = GROUP / st_group_elems<DT>;
    st_elem_t<DT> elem[GROUP];

    if (wide && column < columns) {
        uint4 word[words];

#pragma unroll
        for (uint32_t i = 0; i < words; i++)
            word[i] = reinterpret_cast<const uint4 *>(row + column)[i];
        memcpy(elem, word, sizeof(elem));
    } else {
#pragma unroll
        for (uint32_t i = 0; i < GROUP; i++)
            elem[i] = column + i < columns ? row[column + i] : st_elem_t<DT>(0);
    }
#pragma unroll
    for (uint32_t i = 0; i < GROUP; i++)
        x[i] = st_element_load<DT>(elem[i]);
}

/* The result for some of the keys: largest score, sum of exp, and this lane's columns of the weighted values. */
template <uint32_t GROUPS> struct partial {
    float top, sum, out[GROUPS][GROUP];
};

/* The weight of a key; 0 for keys that do not count. */
static __device__ __forceinline__ float share(float score, float top, float rate)
{
    return score == -ST_TILE_INFINITY ? 0 : exp2f((score - top) * rate);
}

template <uint32_t GROUPS> static __device__ __forceinline__ void rescale(struct partial<GROUPS> &part, float top, float rate)
{
    const float factor = share(part.top, top, rate);

    part.top = top;
    part.sum *= factor;
#pragma unroll
    for (uint32_t g = 0; g < GROUPS; g++)
#pragma unroll
        for (uint32_t i = 0; i < GROUP; i++)
            part.out[g][i] *= factor;
}

/* Goes through the keys of a team: its own index and every TEAMS-th from there, KEYS_AT_ONCE at a time. */
template <strata_dtype DT, uint32_t GROUPS, bool CAPPED>
static __device__ __forceinline__ struct partial<GROUPS> attend_team(const struct cached_args &s, const st_elem_t<DT> *q,
                                                                     const st_elem_t<DT> *keys, const st_elem_t<DT> *values,
                                                                     uint32_t count) {
    const uint32_t team = threadIdx.x / TEAM, column = threadIdx.x % TEAM * GROUP, d = s.at.head_dim;
    const size_t stride = static_cast<size_t>(s.at.kv_heads) * d;
    struct partial<GROUPS> part = {
        - ST_TILE_INFINITY, 0,
        {
        }
    };
    float query[GROUPS][GROUP];

#pragma unroll
    for (uint32_t g = 0; g < GROUPS; g++)
        group_load<DT>(query[g], q, column + g * TEAM * GROUP, d, s.wide);
    for (uint32_t begin = 0; begin < count; begin += TEAMS * KEYS_AT_ONCE) {
        float score[KEYS_AT_ONCE], top = part.top;

#pragma unroll
        for (uint32_t u = 0; u < KEYS_AT_ONCE; u++) {
            const uint32_t key = begin + u * TEAMS + team;

            score[u] = 0;
#pragma unroll
            for (uint32_t g = 0; g < GROUPS; g++) {
                float k[GROUP];

                group_load<DT>(k, keys + stride * (key < count ? key : 0), column + g * TEAM * GROUP, d, s.wide);
#pragma unroll
                for (uint32_t i = 0; i < GROUP; i++)
                    score[u] = fmaf(query[g][i], k[i], score[u]);
            }
#pragma unroll
            for (int lanes = TEAM / 2; lanes > 0; lanes /= 2)
                score[u] += __shfl_xor_sync(ST_ALL_LANES, score[u], lanes);
            if (CAPPED)
                score[u] = st_capped(score[u], s.scale, s.at.softcap);
            score[u] = key < count ? score[u] : -ST_TILE_INFINITY;
            top = fmaxf(top, score[u]);
        }
        rescale(part, top, s.rate);
#pragma unroll
        for (uint32_t u = 0; u < KEYS_AT_ONCE; u++) {
            const uint32_t key = begin + u * TEAMS + team;
            const float p = share(score[u], top, s.rate);

            part.sum += p;
#pragma unroll
            for (uint32_t g = 0; g < GROUPS; g++) {
                float v[GROUP];

                group_load<DT>(v, values + stride * (key < count ? key : 0), column + g * TEAM * GROUP, d, s.wide);
#pragma unroll
                for (uint32_t i = 0; i < GROUP; i++)
                    part.out[g][i] = key < count ? fmaf(p, v[i], part.out[g][i]) : part.out[g][i];
            }
        }
    }
    return part;
}

/* Adds the teams of a warp in a tree: every lane gets the sum for its columns. */
template <uint32_t GROUPS>
static __device__ __forceinline__ void join_teams(struct partial<GROUPS> &part, float rate)
{
#pragma unroll
    for (int lanes = TEAM; lanes < static_cast<int>(ST_WARP); lanes *= 2) {
        rescale(part, fmaxf(part.top, __shfl_xor_sync(ST_ALL_LANES, part.top, lanes)), rate);
        part.sum += __shfl_xor_sync(ST_ALL_LANES, part.sum, lanes);
#pragma unroll
        for (uint32_t g = 0; g < GROUPS; g++)
#pragma unroll
            for (uint32_t i = 0; i < GROUP; i++)
                part.out[g][i] += __shfl_xor_sync(ST_ALL_LANES, part.out[g][i], lanes);
    }
}

template <strata_dtype DT, uint32_t GROUPS, bool CAPPED>
static __global__ void __launch_bounds__(THREADS, GROUPS < 4 ? 2 : 1) attend(struct cached_args s)
{
    constexpr uint32_t columns = GROUPS * TEAM * GROUP;
    __shared__ float top[WARPS], sum[WARPS], out[WARPS][columns];
    const uint32_t row = blockIdx.x / s.at.heads, head = blockIdx.x % s.at.heads, kv = head / (s.at.heads / s.at.kv_heads);
    const uint32_t warp = threadIdx.x / ST_WARP, lane = threadIdx.x % ST_WARP, d = s.at.head_dim, c = threadIdx.x;
    const uint32_t position = s.first + row, low = s.at.window > 0 && position >= s.at.window ? position + 1 - s.at.window : 0;
    const size_t from = static_cast<size_t>(low) * s.at.kv_heads * d + kv * d;
    const st_elem_t<DT> *keys = static_cast<const st_elem_t<DT> *>(s.keys) + from;
    const st_elem_t<DT> *values = static_cast<const st_elem_t<DT> *>(s.values) + from;
    const st_elem_t<DT> *q = static_cast<const st_elem_t<DT> *>(s.qkv) + static_cast<size_t>(row) * s.at.qkv_stride + head * d;
    struct partial<GROUPS> part = attend_team<DT, GROUPS, CAPPED>(s, q, keys, values, position + 1 - low);
    float block_top = -ST_TILE_INFINITY, block_sum = 0, block_out = 0;

    join_teams(part, s.rate);
    if (lane < TEAM) {
#pragma unroll
        for (uint32_t g = 0; g < GROUPS; g++)
#pragma unroll
            for (uint32_t i = 0; i < GROUP; i++)
                out[warp][(g * TEAM + lane) * GROUP + i] = part.out[g][i];
    }
    if (lane == 0) {
        top[warp] = part.top;
        sum[warp] = part.sum;
    }
    __syncthreads();
    if (c >= d)
        return;
    for (uint32_t w = 0; w < WARPS; w++)
        block_top = fmaxf(block_top, top[w]);
    for (uint32_t w = 0; w < WARPS; w++) {
        const float factor = share(top[w], block_top, s.rate);

        block_sum = fmaf(sum[w], factor, block_sum);
        block_out = fmaf(out[w][c], factor, block_out);
    }
    if (s.at.sinks != nullptr)
        block_sum += st_exp2(
            fmaf(st_element_load<DT>(static_cast<const st_elem_t<DT> *>(s.at.sinks)[head]), ST_LOG2E, -block_top * s.rate));
    static_cast<st_elem_t<DT> *>(s.out)[static_cast<size_t>(row) * s.at.out_stride + head * d + c] =
        st_element_round<DT>(block_out / block_sum);
}

template <strata_dtype DT, bool CAPPED> static cudaError_t run_as(cudaStream_t stream, const struct cached_args &s)
{
    const uint64_t blocks = static_cast<uint64_t>(s.rows) * s.at.heads;
    void (*append_rows)(struct cached_args) = append<st_elem_t<DT>>;
    void (*attend_rows)(struct cached_args) = s.at.head_dim <= 64    ? attend<DT, 1, CAPPED>
                                              : s.at.head_dim <= 128 ? attend<DT, 2, CAPPED>
                                                                     : attend<DT, 4, CAPPED>;
    cudaError_t err;

    if (blocks > INT32_MAX)
        return cudaErrorInvalidValue;
    ST_LAUNCH(append_rows, s.rows, APPEND_THREADS, 0, stream, s);
    if ((err = cudaGetLastError()) != cudaSuccess)
        return err;
    ST_LAUNCH(attend_rows, static_cast<unsigned>(blocks), THREADS, 0, stream, s);
    return cudaGetLastError();
}

template <strata_dtype DT> static cudaError_t run(cudaStream_t stream, const struct cached_args &s)
{
    return s.at.softcap != 0.0f ? run_as<DT, true>(stream, s) : run_as<DT, false>(stream, s);
}

cudaError_t st_cuda_attention_cached(cudaStream_t stream, const struct st_attention *at, void *out, void *keys, void *values,
                                     const void *qkv, uint32_t first, uint32_t rows, void *workspace)
{
    const uint32_t width = at->kv_heads * at->head_dim, d = at->head_dim;
    const bool wide = d % GROUP == 0 && st_rows_are_wide(qkv, at->qkv_stride, d, at->dt) &&
                      st_rows_are_wide(keys, width, d, at->dt) && st_rows_are_wide(values, width, d, at->dt);
    const float scale = st_attention_scale(*at), rate = (at->softcap != 0.0f ? 1.0f : scale) * ST_LOG2E;
    const struct cached_args s = {*at, out, keys, values, qkv, first, rows, scale, rate, wide};
    const cudaError_t err = st_attention_check(*at);

    (void)workspace;
    if (err != cudaSuccess || rows == 0)
        return err;
    if (at->batch != 1)
        return cudaErrorInvalidValue;
    return at->dt == STRATA_BF16  ? run<STRATA_BF16>(stream, s)
           : at->dt == STRATA_F16 ? run<STRATA_F16>(stream, s)
                                  : run<STRATA_F32>(stream, s);
}

/* kernels/cuda/attention_forward.cu - see attention.h.
 *
 * A block has 64 or 128 query rows of one head and walks the keys up to its last row, a tile at a time: values are loaded while
 * scores are computed, and the next keys while the values are weighted and summed.  Only tiles on the diagonal are masked.  BOUND
 * kernels, for windows, documents and soft-capping, begin with the tile of the first key that the first row sees, and mask all.
 * Source: Dao, arXiv:2307.08691, Algorithm 1. */
#include "kernels/cuda/attention_tile.cuh"

struct forward_args {
    struct st_attention at;
    void *out;
    float *lse;
    const void *qkv;
    float scale;
    bool wide_qkv, wide_out;
};

/* The place of a block: its head and first query row. */
struct place {
    uint32_t batch, head, kv, first;
};

/* Later rows see more keys, so they start first. */
static __device__ __forceinline__ struct place place_of_block(const struct st_attention &at, uint32_t queries)
{
    const uint32_t head = blockIdx.x % at.heads;

    return {blockIdx.x / at.heads, head, head / (at.heads / at.kv_heads), (gridDim.y - 1 - blockIdx.y) * queries};
}

template <typename T> struct inputs {
    struct st_head<const T> q, k, v;
};

template <typename T>
static __device__ __forceinline__ struct inputs<T> inputs_of(const struct forward_args &s, const struct place &p) {
    const T *qkv = static_cast<const T *>(s.qkv);

    return {st_head_at(s.at, qkv, s.at.qkv_stride, p.batch, st_query_column(s.at, p.head), s.wide_qkv),
            st_head_at(s.at, qkv, s.at.qkv_stride, p.batch, st_key_column(s.at, p.kv), s.wide_qkv),
            st_head_at(s.at, qkv, s.at.qkv_stride, p.batch, st_value_column(s.at, p.kv), s.wide_qkv)};
}

/* One past the last key that rows first..first + queries - 1 see. */
static __device__ __forceinline__ uint32_t
keys_seen(const struct st_attention &at, uint32_t first, uint32_t queries)
{
    return at.seq - first < queries ? at.seq : first + queries;
}

static __device__ __forceinline__ size_t lse_at(const struct st_attention &at, const struct place &p, uint32_t row)
{
    return (static_cast<size_t>(p.batch) * at.heads + p.head) * at.seq + row;
}

/* What scores are multiplied by after capping. */
template <bool BOUND> static __device__ __forceinline__ float score_scale(const struct forward_args &s)
{
    return BOUND && s.at.softcap != 0.0f ? 1.0f : s.scale;
}

/* What a row has seen before its first key: nothing, or a sink, in the unit of scores. */
template <strata_dtype DT>
static __device__ __forceinline__ float first_top(const struct st_attention &at, uint32_t head, float scale)
{
    if (at.sinks == nullptr)
        return -ST_TILE_INFINITY;
    return st_element_load<DT>(static_cast<const st_elem_t<DT> *>(at.sinks)[head]) / scale;
}

/* --- 16 bits: tensor cores --- */

/* For the row pair g, g + 8 of each 16 rows: the largest score so far and this thread's part of the sum of exp. */
template <uint32_t TALL> struct running {
    float top[TALL][2], sum[TALL][2];
};

/* tall_of: groups of 16 queries of a warp.  keys_of: keys of a tile; only these change bits.  More would not fit into the
 * registers. */
template <uint32_t WIDTH, bool BOUND> constexpr uint32_t tall_of = WIDTH > 128 || (WIDTH == 80 && BOUND) ? 1 : 2;
template <uint32_t WIDTH> constexpr uint32_t keys_of = WIDTH == 96 || WIDTH == 128 ? 32 : 64;

/* Largest of, or sum over, the four lanes of a row. */
static __device__ __forceinline__ float row_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(ST_ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ST_ALL_LANES, x, 2));
}

static __device__ __forceinline__ float row_sum(float x)
{
    x += __shfl_xor_sync(ST_ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ST_ALL_LANES, x, 2);
}

/* What is subtracted from scores: of a row that has seen no key yet (a BOUND kernel's) 0, so that its sums stay 0. */
template <bool BOUND> static __device__ __forceinline__ float finite_top(float top)
{
    return BOUND && top == -ST_TILE_INFINITY ? 0.0f : top;
}

/* Turns scores into exp(scale * (score - top)) and rescales earlier sums to the new top.  rate: scale * log2(e). */
template <bool BOUND, uint32_t TALL, uint32_t ACROSS, uint32_t COLUMNS>
static __device__ __forceinline__ void soften(float (&s)[TALL][ACROSS][4], float (&out)[TALL][COLUMNS][4],
                                              struct running<TALL> &run, float rate)
{
#pragma unroll
    for (uint32_t m = 0; m < TALL; m++)
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            float top = run.top[m][half], factor, base;

#pragma unroll
            for (uint32_t n = 0; n < ACROSS; n++)
                top = fmaxf(top, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
            top = row_max(top);
            factor = st_exp2((run.top[m][half] - finite_top<BOUND>(top)) * rate);
            base = -finite_top<BOUND>(top) * rate;
            run.top[m][half] = top;
            run.sum[m][half] *= factor;
#pragma unroll
            for (uint32_t n = 0; n < ACROSS; n++)
#pragma unroll
                for (uint32_t i = 2 * half; i < 2 * half + 2; i++) {
                    s[m][n][i] = st_exp2(fmaf(s[m][n][i], rate, base));
                    run.sum[m][half] += s[m][n][i];
                }
#pragma unroll
            for (uint32_t n = 0; n < COLUMNS; n++) {
                out[m][n][2 * half] *= factor;
                out[m][n][2 * half + 1] *= factor;
            }
        }
}

template <strata_dtype DT, uint32_t WIDTH, bool BOUND>
static constexpr uint32_t forward_shared = (64 * tall_of<WIDTH, BOUND> + 2 * keys_of<WIDTH>)*st_tile_row_bytes<DT, WIDTH>;

template <strata_dtype DT, uint32_t WIDTH, bool BOUND>
static __global__ void __launch_bounds__(ST_TILE_THREADS) forward_halves(struct forward_args s)
{
    constexpr uint32_t TALL = tall_of<WIDTH, BOUND>, QUERIES = 64 * TALL, KEYS = keys_of<WIDTH>,
                       stride = st_tile_stride<DT, WIDTH>;
    ST_SHARED_DYNAMIC(shared);
    uint16_t *q = reinterpret_cast<uint16_t *>(shared), *k = q + QUERIES * stride, *v = k + KEYS * stride;
    const struct place p = place_of_block(s.at, QUERIES);
    const struct inputs<uint16_t> in = inputs_of<uint16_t>(s, p);
    const uint32_t warp_row = threadIdx.x / ST_WARP * 16 * TALL, lane = threadIdx.x % ST_WARP;
    const uint32_t first = p.first + warp_row, row = first + lane / 4; /* of the warp, of the thread */
    const uint32_t begin = BOUND ? st_first_key(s.at, p.batch, p.first) / KEYS * KEYS : 0;
    const uint32_t end = keys_seen(s.at, p.first, QUERIES);
    const float scale = score_scale<BOUND>(s), rate = scale * ST_LOG2E;
    float out[TALL][WIDTH / 8][4] = {};
    struct running<TALL> run;
    float inverse[TALL][2];
    uint32_t low[TALL][2]; /* BOUND: the first keys of the thread's rows */

    if constexpr (BOUND)
        st_first_keys(low, s.at, p.batch, row);
#pragma unroll
    for (uint32_t m = 0; m < TALL; m++)
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            run.top[m][half] = first_top<DT>(s.at, p.head, scale);
            run.sum[m][half] = s.at.sinks != nullptr && lane % 4 == 0 ? 1.0f : 0.0f; /* of four lanes that are added */
        }
    st_tile_load<DT, WIDTH, QUERIES>(q, in.q, p.first);
    st_tile_load<DT, WIDTH, KEYS>(k, in.k, begin);
    st_copy_commit();
#pragma unroll 1
    for (uint32_t key = begin; key < end; key += KEYS) {
        const bool seen = key < first + 16 * TALL && first < s.at.seq; /* a row of this warp sees the key */
        float scores[TALL][KEYS / 8][4] = {};

        st_copy_wait<0>();
        __syncthreads(); /* keys have arrived; the last values are no longer used */
        st_tile_load<DT, WIDTH, KEYS>(v, in.v, key);
        st_copy_commit();
        if (seen)
            st_rows_by_rows<DT, WIDTH>(scores, q + warp_row * stride, k);
        st_copy_wait<0>();
        __syncthreads(); /* values have arrived; the keys are no longer used */
        if (key + KEYS < end)
            st_tile_load<DT, WIDTH, KEYS>(k, in.k, key + KEYS);
        st_copy_commit();
        if (!seen)
            continue;
        if constexpr (BOUND) {
            if (s.at.softcap != 0.0f)
                st_cap(scores, s.scale, s.at.softcap);
            st_hide_before(scores, low, key + lane % 4 * 2);
        }
        if (key + KEYS > first)
            st_hide_later(scores, row, key + lane % 4 * 2);
        soften<BOUND>(scores, out, run, rate);
        st_weights_by_rows<DT, WIDTH>(out, scores, v);
    }
#pragma unroll
    for (uint32_t m = 0; m < TALL; m++)
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            const float sum = row_sum(run.sum[m][half]);
            const uint32_t at = row + 16 * m + 8 * half;

            inverse[m][half] = 1.0f / sum;
            if (lane % 4 == 0 && at < s.at.seq)
                s.lse[lse_at(s.at, p, at)] = fmaf(run.top[m][half], scale, logf(sum));
        }
    st_sums_store<DT, WIDTH>(
        st_head_at(s.at, static_cast<uint16_t *>(s.out), s.at.out_stride, p.batch, st_query_column(s.at, p.head), s.wide_out),
        first, 0, q + warp_row * stride, out, inverse);
}

/* --- fp32 --- */

/* Over the eight lanes of a row. */
static __device__ __forceinline__ float row_max_f32(float x)
{
    return fmaxf(row_max(x), __shfl_xor_sync(ST_ALL_LANES, row_max(x), 4));
}

static __device__ __forceinline__ float row_sum_f32(float x)
{
    x = row_sum(x);
    return x + __shfl_xor_sync(ST_ALL_LANES, x, 4);
}

/* Turns scores from `key` on into exp(scale * (score - top)), 0 after their row and before `low`, and rescales earlier sums to
 * the new top. */
template <bool BOUND, uint32_t WIDTH>
static __device__ __forceinline__ void
soften_f32(float (&scores)[ST_F32_ROWS][ST_F32_ACROSS], float (&out)[ST_F32_ROWS][WIDTH / 8], float (&top)[ST_F32_ROWS],
           float (&sum)[ST_F32_ROWS], const uint32_t (&low)[ST_F32_ROWS], uint32_t first, uint32_t key, float rate)
{
#pragma unroll
    for (uint32_t i = 0; i < ST_F32_ROWS; i++) {
        const float before = top[i];
        float factor;

#pragma unroll
        for (uint32_t j = 0; j < ST_F32_ACROSS; j++) {
            if (key + st_f32_column(j) > first + st_f32_row(i) || (BOUND && key + st_f32_column(j) < low[i]))
                scores[i][j] = -ST_TILE_INFINITY;
            top[i] = fmaxf(top[i], scores[i][j]);
        }
        top[i] = row_max_f32(top[i]);
        factor = st_exp2((before - finite_top<BOUND>(top[i])) * rate);
        sum[i] *= factor;
#pragma unroll
        for (uint32_t j = 0; j < ST_F32_ACROSS; j++) {
            scores[i][j] = st_exp2((scores[i][j] - finite_top<BOUND>(top[i])) * rate);
            sum[i] += scores[i][j];
        }
#pragma unroll
        for (uint32_t c = 0; c < WIDTH / 8; c++)
            out[i][c] *= factor;
    }
}

template <uint32_t WIDTH, bool BOUND>
static constexpr uint32_t forward_shared<STRATA_F32, WIDTH, BOUND> =
    3 * ST_F32_TILE *st_tile_row_bytes<STRATA_F32, WIDTH> + ST_F32_TILE *ST_F32_STRIDE * 4;

template <uint32_t WIDTH, bool BOUND>
static __global__ void __launch_bounds__(ST_TILE_THREADS, 1) forward_f32(struct forward_args s)
{
    constexpr uint32_t tile = ST_F32_TILE * st_tile_stride<STRATA_F32, WIDTH>;
    ST_SHARED_DYNAMIC(shared);
    float *q = reinterpret_cast<float *>(shared), *k = q + tile, *v = k + tile, *weights = v + tile;
    const struct place p = place_of_block(s.at, ST_F32_TILE);
    const struct inputs<float> in = inputs_of<float>(s, p);
    const uint32_t begin = BOUND ? st_first_key(s.at, p.batch, p.first) / ST_F32_TILE * ST_F32_TILE : 0;
    const uint32_t end = keys_seen(s.at, p.first, ST_F32_TILE);
    const float scale = score_scale<BOUND>(s);
    float out[ST_F32_ROWS][WIDTH / 8] = {}, top[ST_F32_ROWS], sum[ST_F32_ROWS], inverse[ST_F32_ROWS];
    uint32_t low[ST_F32_ROWS] = {};

#pragma unroll
    for (uint32_t i = 0; i < ST_F32_ROWS; i++) {
        top[i] = first_top<STRATA_F32>(s.at, p.head, scale);
        sum[i] = s.at.sinks != nullptr && threadIdx.x % 8 == 0 ? 1.0f : 0.0f; /* of eight lanes that are added */
        if (BOUND)
            low[i] = st_first_key_or_0(s.at, p.batch, p.first + st_f32_row(i));
    }
    st_tile_load<STRATA_F32, WIDTH, ST_F32_TILE>(q, in.q, p.first);
    for (uint32_t key = begin; key < end; key += ST_F32_TILE) {
        float scores[ST_F32_ROWS][ST_F32_ACROSS];

        st_tile_load<STRATA_F32, WIDTH, ST_F32_TILE>(k, in.k, key);
        st_tile_load<STRATA_F32, WIDTH, ST_F32_TILE>(v, in.v, key);
        st_copy_commit();
        st_copy_wait<0>();
        __syncthreads();
        st_f32_rows_by_rows<WIDTH>(scores, q, k);
        if (BOUND && s.at.softcap != 0.0f)
            st_f32_cap(scores, s.scale, s.at.softcap);
        soften_f32<BOUND, WIDTH>(scores, out, top, sum, low, p.first, key, scale * ST_LOG2E);
        st_f32_weights_by_rows<WIDTH>(out, scores, weights, v);
        __syncthreads();
    }
#pragma unroll
    for (uint32_t i = 0; i < ST_F32_ROWS; i++) {
        const float total = row_sum_f32(sum[i]);
        const uint32_t row = p.first + st_f32_row(i);

        inverse[i] = 1.0f / total;
        if (threadIdx.x % 8 == 0 && row < s.at.seq)
            s.lse[lse_at(s.at, p, row)] = fmaf(top[i], scale, logf(total));
    }
    st_f32_sums_store<WIDTH>(
        st_head_at(s.at, static_cast<float *>(s.out), s.at.out_stride, p.batch, st_query_column(s.at, p.head), false), p.first,
        out, inverse);
}

/* --- launch --- */

template <strata_dtype DT, uint32_t WIDTH> struct forward_launch {
    template <bool BOUND> static constexpr auto kernel()
    {
        if constexpr (DT == STRATA_F32)
            return forward_f32<WIDTH, BOUND>;
        else
            return forward_halves<DT, WIDTH, BOUND>;
    }

    static cudaError_t allow(uint32_t shared_most)
    {
        const cudaError_t err = st_tile_allow(kernel<false>(), forward_shared<DT, WIDTH, false>, shared_most);

        return err != cudaSuccess ? err : st_tile_allow(kernel<true>(), forward_shared<DT, WIDTH, true>, shared_most);
    }

    static cudaError_t run(const struct st_tile_queue &queue, const struct forward_args &s)
    {
        return st_attention_is_bound(s.at) ? run_as<true>(queue, s) : run_as<false>(queue, s);
    }

  private:
    template <bool BOUND> static cudaError_t run_as(const struct st_tile_queue &queue, const struct forward_args &s)
    {
        constexpr uint32_t queries = DT == STRATA_F32 ? ST_F32_TILE : 64 * tall_of<WIDTH, BOUND>;

        return st_tile_launch(kernel<BOUND>(), s.at.batch * s.at.heads, (s.at.seq + queries - 1) / queries,
                              forward_shared<DT, WIDTH, BOUND>, queue, s);
    }
};

cudaError_t st_cuda_attention_forward_allow(uint32_t shared_most)
{
    return st_allow_all<forward_launch>(shared_most);
}

cudaError_t st_cuda_attention_forward(cudaStream_t stream, uint32_t shared_most, const struct st_attention *at, void *out,
                                      float *lse, const void *qkv, void *workspace)
{
    const struct forward_args s = {*at,
                                   out,
                                   lse,
                                   qkv,
                                   st_attention_scale(*at),
                                   st_rows_are_wide(qkv, at->qkv_stride, at->head_dim, at->dt),
                                   st_rows_are_wide(out, at->out_stride, at->head_dim, at->dt)};
    const cudaError_t err = st_attention_check(*at);

    (void)workspace;
    if (err != cudaSuccess || at->batch == 0 || at->seq == 0)
        return err;
    return st_launch_by_dtype<forward_launch>({stream, shared_most}, s);
}

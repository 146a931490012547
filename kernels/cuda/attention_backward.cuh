/* kernels/cuda/attention_backward.cuh - what the kernels of attention's backward share.
 *
 * Three kernels without atomics, a file each.  prepare (attention_backward.cu): writes, per row, the log-sum-exp in powers of two
 * and the scaled dot product of out and its gradient to the workspace.  to_keys (attention_backward_keys.cu): a block has 32, 64
 * or 128 keys and walks the query heads of their group.  to_queries (attention_backward_queries.cu): a block has 64 or 128
 * queries and walks the keys up to the diagonal.  It computes the scores a second time: two products in seven.  BOUND kernels,
 * for windows, documents and soft-capping, walk from the first row to the last one of which a pair may see each other.  Source:
 * Dao, arXiv:2307.08691, Algorithm 2. */
#ifndef KERNELS_CUDA_ATTENTION_BACKWARD_CUH
#define KERNELS_CUDA_ATTENTION_BACKWARD_CUH

#include "kernels/cuda/attention_tile.cuh"

struct backward_args {
    struct st_attention at;
    void *dqkv;
    const void *dout, *out, *qkv;
    const float *lse;
    float2 *rows; /* [batch, heads, seq] {lse * log2(e), scale * (out . dout)} */
    float scale;
    bool wide_qkv, wide_dqkv, wide_dout, wide_out;
};

static __device__ __forceinline__ size_t rows_at(const struct st_attention &at, uint32_t batch, uint32_t head)
{
    return (static_cast<size_t>(batch) * at.heads + head) * at.seq;
}

template <typename T> struct operands {
    struct st_head<const T> q, k, v, dout;
    const float2 *rows;
};

template <typename T>
static __device__ __forceinline__ struct operands<T> operands_of(const struct backward_args &s, uint32_t batch, uint32_t head) {
    const T *qkv = static_cast<const T *>(s.qkv);
    const uint32_t kv = head / (s.at.heads / s.at.kv_heads);

    return {st_head_at(s.at, qkv, s.at.qkv_stride, batch, st_query_column(s.at, head), s.wide_qkv),
            st_head_at(s.at, qkv, s.at.qkv_stride, batch, st_key_column(s.at, kv), s.wide_qkv),
            st_head_at(s.at, qkv, s.at.qkv_stride, batch, st_value_column(s.at, kv), s.wide_qkv),
            st_head_at(s.at, static_cast<const T *>(s.dout), s.at.out_stride, batch, st_query_column(s.at, head), s.wide_dout),
            s.rows + rows_at(s.at, batch, head)};
}

template <typename T>
static __device__ __forceinline__ struct st_head<T> gradient_of(const struct backward_args &s, uint32_t batch, uint32_t column) {
    return st_head_at(s.at, static_cast<T *>(s.dqkv), s.at.qkv_stride, batch, column, s.wide_dqkv);
}

/* Starts to load the prepared values of STAGE rows; rows past seq get zeros and so contribute zeros. */
template <uint32_t STAGE>
static __device__ __forceinline__ void rows_load(float2 *shared, const float2 *rows, uint32_t first, uint32_t seq)
{
    if (threadIdx.x < STAGE) {
        const bool inside = first + threadIdx.x < seq;

        st_copy_async<8>(shared + threadIdx.x, rows + (inside ? first + threadIdx.x : 0), inside);
    }
}

/* score: p = exp(scale * score - lse), 0 if the score is minus infinity.  Returns p; of a capped score, whose scale is 1, p times
 * the slope of capping, 1 - (score / softcap)^2. */
template <bool BOUND> static __device__ __forceinline__ float weigh(float &score, float lse, const struct backward_args &s)
{
    if (BOUND && s.at.softcap != 0.0f) {
        const float t = score / s.at.softcap;

        score = st_exp2(fmaf(score, ST_LOG2E, -lse));
        return score * fmaxf(fmaf(-t, t, 1.0f), 0.0f); /* not minus infinity */
    }
    score = st_exp2(fmaf(score, s.scale * ST_LOG2E, -lse));
    return score;
}

/* The same, and dprob: weight * (scale * dprob - scale * (out . dout)). */
template <bool BOUND>
static __device__ __forceinline__ void slope(float &score, float &dprob, float2 row, const struct backward_args &s)
{
    const float weight = weigh<BOUND>(score, row.x, s);

    dprob = weight * fmaf(dprob, s.scale, -row.y);
}

/* --- fp32 --- */

template <uint32_t WIDTH>
constexpr uint32_t shared_f32 = 4 * ST_F32_TILE *st_tile_row_bytes<STRATA_F32, WIDTH> + ST_F32_TILE *(ST_F32_STRIDE * 4 + 8);

/* Four tiles, the scores passed to the threads of a row, and the prepared values of the queries. */
template <uint32_t WIDTH> struct tiles_f32 {
    float q[ST_F32_TILE * st_tile_stride<STRATA_F32, WIDTH>], dout[ST_F32_TILE * st_tile_stride<STRATA_F32, WIDTH>];
    float k[ST_F32_TILE * st_tile_stride<STRATA_F32, WIDTH>], v[ST_F32_TILE * st_tile_stride<STRATA_F32, WIDTH>];
    float weights[ST_F32_TILE * ST_F32_STRIDE];
    float2 rows[ST_F32_TILE];
};

template <uint32_t WIDTH>
static __device__ __forceinline__ void queries_load_f32(struct tiles_f32<WIDTH> *t, const struct operands<float> &in,
                                                        uint32_t first, uint32_t seq)
{
    st_tile_load<STRATA_F32, WIDTH, ST_F32_TILE>(t->q, in.q, first);
    st_tile_load<STRATA_F32, WIDTH, ST_F32_TILE>(t->dout, in.dout, first);
    rows_load<ST_F32_TILE>(t->rows, in.rows, first, seq);
}

template <uint32_t WIDTH>
static __device__ __forceinline__ void keys_load_f32(struct tiles_f32<WIDTH> *t, const struct operands<float> &in, uint32_t first)
{
    st_tile_load<STRATA_F32, WIDTH, ST_F32_TILE>(t->k, in.k, first);
    st_tile_load<STRATA_F32, WIDTH, ST_F32_TILE>(t->v, in.v, first);
}

static __device__ __forceinline__ void copies_arrive()
{
    st_copy_commit();
    st_copy_wait<0>();
    __syncthreads();
}

/* --- launches of the two; as st_cuda_attention_backward_allow() and st_cuda_attention_backward() --- */

cudaError_t st_backward_keys_allow(uint32_t shared_most);
cudaError_t st_backward_keys(const struct st_tile_queue &queue, const struct backward_args &s);
cudaError_t st_backward_queries_allow(uint32_t shared_most);
cudaError_t st_backward_queries(const struct st_tile_queue &queue, const struct backward_args &s);

#endif

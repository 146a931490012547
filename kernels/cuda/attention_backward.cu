/* kernels/cuda/attention_backward.cu - see attention.h.
 *
 * Three kernels without atomics.  prepare: writes, per row, the log-sum-exp in powers of two and the scaled dot product of out
 * and its gradient to the workspace. to_keys: a block has 64 or 128 keys and walks the query heads of their group in order, and
 * in each head the queries from the diagonal on; it works on transposed scores, so that probabilities and their gradients can be
 * used as operands directly. to_queries: a block has 64 or 128 queries and walks the keys up to the diagonal.  It computes the
 * scores a second time: two products in seven.  Stages of 32 rows are loaded while the previous ones are used.  BOUND kernels,
 * for windows, documents and soft-capping, walk from the first row to the last one of which a pair may see each other.  Source:
 * Dao, arXiv:2307.08691, Algorithm 2. */
#include "kernels/cuda/attention_tile.cuh"

/* Rows loaded together: queries in to_keys, keys in to_queries.  A SMALL kernel has the second number, which changes no bits. */
#define STAGE_ROWS        32u
#define STAGE_SMALL       16u
#define SHARED_EVERYWHERE (99u << 10) /* shared memory of a block, on every GPU of capability 8.0 and later */

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

/* --- per row --- */

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

/* --- operands --- */

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

template <bool SMALL>
constexpr uint32_t stage_of = SMALL ? STAGE_SMALL : STAGE_ROWS;

/* Starts to load the prepared values of STAGE rows; rows past seq get zeros and so contribute zeros. */
template <uint32_t STAGE>
static __device__ __forceinline__ void rows_load(float2 *shared, const float2 *rows, uint32_t first, uint32_t seq)
{
    if (threadIdx.x < STAGE) {
        const bool inside = first + threadIdx.x < seq;

        st_copy_async<8>(shared + threadIdx.x, rows + (inside ? first + threadIdx.x : 0), inside);
    }
}

/* The first keys that STAGE queries see. */
template <uint32_t STAGE>
static __device__ __forceinline__ void low_load(uint32_t *shared, const struct st_attention &at, uint32_t batch, uint32_t first)
{
    if (threadIdx.x < STAGE)
        shared[threadIdx.x] = st_first_key_or_0(at, batch, first + threadIdx.x);
}

/* score: p = exp(scale * score - lse), 0 if the score is minus infinity; dprob: scale * p * (dprob - out . dout).  Of a capped
 * score the scale is 1, and dprob is also multiplied by the slope of capping, 1 - (score / softcap)^2. */
template <bool BOUND>
static __device__ __forceinline__ void slope(float &score, float &dprob, float2 row, const struct backward_args &s)
{
    if (BOUND && s.at.softcap != 0.0f) {
        const float t = score / s.at.softcap;

        score = st_exp2(fmaf(score, ST_LOG2E, -row.x));
        dprob = score * fmaf(dprob, s.scale, -row.y) * fmaxf(fmaf(-t, t, 1.0f), 0.0f); /* not minus infinity */
        return;
    }
    score = st_exp2(fmaf(score, s.scale * ST_LOG2E, -row.x));
    dprob = score * fmaf(dprob, s.scale, -row.y);
}

/* A step of a walk over the query heads of a group and, in each head, the stages from the diagonal on. */
struct step {
    uint32_t head, query; /* first query of the stage */
};

static __device__ __forceinline__ struct step first_step(const struct st_attention &at, uint32_t kv, uint32_t key)
{
    return {kv * (at.heads / at.kv_heads), key};
}

/* The next step; `key` is where the diagonal is, `end` where the queries end. */
template <uint32_t STAGE>
static __device__ __forceinline__ struct step next_step(const struct step &now, uint32_t key, uint32_t end)
{
    const bool same_head = end - now.query > STAGE;

    return {same_head ? now.head : now.head + 1, same_head ? now.query + STAGE : key};
}

template <uint32_t STAGE>
static __device__ __forceinline__ uint32_t steps_from(const struct st_attention &at, uint32_t key, uint32_t end)
{
    return (end - key + STAGE - 1) / STAGE * (at.heads / at.kv_heads);
}

/* One past the last query that sees one of `keys` keys from `first` on. */
template <bool BOUND>
static __device__ __forceinline__ uint32_t queries_end(const struct st_attention &at, uint32_t batch, uint32_t first,
                                                       uint32_t keys)
{
    return BOUND ? st_rows_end(at, batch, (at.seq - first < keys ? at.seq : first + keys) - 1) : at.seq;
}

/* --- 16 bits: gradients of keys and values --- */

template <uint32_t WIDTH> constexpr uint32_t keys_tall = WIDTH <= 64 ? 2 : 1; /* groups of 16 keys of a warp */
template <uint32_t WIDTH>
constexpr uint32_t keys_parts = WIDTH <= 128 ? 1 : 2; /* blocks that share the columns, so that the sums fit in registers */
/* Groups of 16 queries of a warp that fit into its registers; with bounds, 96 columns need one or two more than sm_80 has. */
template <uint32_t WIDTH, bool BOUND> constexpr uint32_t queries_tall = WIDTH <= 128 && !(BOUND && WIDTH == 96) ? 2 : 1;

/* Stages in shared memory: one is used while the next is loaded, or a SMALL kernel waits. */
template <bool SMALL> constexpr uint32_t keys_buffers = SMALL ? 1 : 2;

template <strata_dtype DT, uint32_t WIDTH, bool SMALL>
constexpr uint32_t to_keys_shared = (2 * 64 * keys_tall<WIDTH> +
                                     2 * keys_buffers<SMALL> * stage_of<SMALL>)*st_tile_row_bytes<DT, WIDTH> +
                                    keys_buffers<SMALL> *stage_of<SMALL> *(8 + 4);

/* The queries of a step and their gradients. */
template <strata_dtype DT, uint32_t WIDTH, uint32_t STAGE>
static __device__ __forceinline__ void stage_load(uint16_t *q, uint16_t *dout, float2 *rows, const struct backward_args &s,
                                                  uint32_t batch, const struct step &of)
{
    const struct operands<uint16_t> in = operands_of<uint16_t>(s, batch, of.head);

    st_tile_load<DT, WIDTH, STAGE>(q, in.q, of.query);
    st_tile_load<DT, WIDTH, STAGE>(dout, in.dout, of.query);
    rows_load<STAGE>(rows, in.rows, of.query, s.at.seq);
}

/* Sets the transposed scores of queries before their key to minus infinity.  key, query: those of this thread's first score. */
template <uint32_t TALL, uint32_t ACROSS>
static __device__ __forceinline__ void hide_earlier(float (&s)[TALL][ACROSS][4], uint32_t key, uint32_t query)
{
#pragma unroll
    for (uint32_t m = 0; m < TALL; m++)
#pragma unroll
        for (uint32_t n = 0; n < ACROSS; n++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                if (key + 16 * m + 8 * (i / 2) > query + 8 * n + i % 2)
                    s[m][n][i] = -ST_TILE_INFINITY;
}

/* The same for keys before the first one that their query sees; low: from this thread's first query on. */
template <uint32_t TALL, uint32_t ACROSS>
static __device__ __forceinline__ void hide_before(float (&s)[TALL][ACROSS][4], const uint32_t *low, uint32_t key)
{
#pragma unroll
    for (uint32_t n = 0; n < ACROSS; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t least = low[8 * n + i % 2];

#pragma unroll
            for (uint32_t m = 0; m < TALL; m++)
                if (key + 16 * m + 8 * (i / 2) < least)
                    s[m][n][i] = -ST_TILE_INFINITY;
        }
}

/* Turns transposed scores into probabilities, and gradients of probabilities into those of scores; rows: from this thread's first
 * query on. */
template <bool BOUND, uint32_t TALL, uint32_t ACROSS>
static __device__ __forceinline__ void key_slopes(float (&p)[TALL][ACROSS][4], float (&ds)[TALL][ACROSS][4], const float2 *rows,
                                                  const struct backward_args &s)
{
#pragma unroll
    for (uint32_t n = 0; n < ACROSS; n++)
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const float2 row = rows[8 * n + i];

#pragma unroll
            for (uint32_t m = 0; m < TALL; m++)
#pragma unroll
                for (uint32_t half = 0; half < 2; half++)
                    slope<BOUND>(p[m][n][2 * half + i], ds[m][n][2 * half + i], row, s);
        }
}

template <strata_dtype DT, uint32_t WIDTH, bool BOUND, bool SMALL>
static __global__ void __launch_bounds__(ST_TILE_THREADS) to_keys(struct backward_args s)
{
    constexpr uint32_t TALL = keys_tall<WIDTH>, KEYS = 64 * TALL, COLUMNS = WIDTH / keys_parts<WIDTH>;
    constexpr uint32_t STAGE = stage_of<SMALL>, BUFFERS = keys_buffers<SMALL>;
    constexpr uint32_t stride = st_tile_stride<DT, WIDTH>, stage = STAGE * stride;
    ST_SHARED_DYNAMIC(shared);
    uint16_t *k = reinterpret_cast<uint16_t *>(shared), *v = k + KEYS * stride, *q = v + KEYS * stride,
             *dout = q + BUFFERS * stage;
    float2 *rows = reinterpret_cast<float2 *>(dout + BUFFERS * stage);
    uint32_t *low = reinterpret_cast<uint32_t *>(rows + BUFFERS * STAGE); /* BOUND: the first keys of the stages' queries */
    const uint32_t batch = blockIdx.x / s.at.kv_heads, kv = blockIdx.x % s.at.kv_heads, first = blockIdx.y * KEYS;
    const uint32_t part = blockIdx.z * COLUMNS, lane = threadIdx.x % ST_WARP, warp_row = threadIdx.x / ST_WARP * 16 * TALL;
    const uint32_t end = queries_end<BOUND>(s.at, batch, first, KEYS), steps = steps_from<STAGE>(s.at, first, end);
    struct step at = first_step(s.at, kv, first), ahead = next_step<STAGE>(at, first, end);
    float dk[TALL][COLUMNS / 8][4] = {}, dv[TALL][COLUMNS / 8][4] = {};
    float one[TALL][2];

    st_tile_load<DT, WIDTH, KEYS>(k, operands_of<uint16_t>(s, batch, at.head).k, first);
    st_tile_load<DT, WIDTH, KEYS>(v, operands_of<uint16_t>(s, batch, at.head).v, first);
    stage_load<DT, WIDTH, STAGE>(q, dout, rows, s, batch, at);
    st_copy_commit();
    if constexpr (BOUND)
        low_load<STAGE>(low, s.at, batch, at.query);
#pragma unroll 1
    for (uint32_t i = 0; i < steps; i++, at = ahead, ahead = next_step<STAGE>(at, first, end)) {
        const uint32_t query = at.query, now = i % BUFFERS, next = 1 - now;
        float p[TALL][STAGE / 8][4] = {}, ds[TALL][STAGE / 8][4] = {};

        if (SMALL && i > 0) {
            __syncthreads(); /* the previous stage is no longer used */
            stage_load<DT, WIDTH, STAGE>(q, dout, rows, s, batch, at);
            st_copy_commit();
            if constexpr (BOUND)
                low_load<STAGE>(low, s.at, batch, query);
        }
        st_copy_wait<0>();
        __syncthreads(); /* stage i has arrived; the previous one is no longer used */
        if (!SMALL && i + 1 < steps)
            stage_load<DT, WIDTH, STAGE>(q + next * stage, dout + next * stage, rows + next * STAGE, s, batch, ahead);
        st_copy_commit();
        if constexpr (BOUND && !SMALL)
            low_load<STAGE>(low + next * STAGE, s.at, batch, i + 1 < steps ? ahead.query : 0);
        if (query + STAGE <= first + warp_row) /* these queries see no key of this warp */
            continue;
        if (BOUND && low[now * STAGE] >= first + warp_row + 16 * TALL) /* nor do these */
            continue;
        st_rows_by_rows<DT, WIDTH>(p, k + warp_row * stride, q + now * stage);
        st_rows_by_rows<DT, WIDTH>(ds, v + warp_row * stride, dout + now * stage);
        if constexpr (BOUND) {
            if (s.at.softcap != 0.0f)
                st_cap(p, s.scale, s.at.softcap);
            hide_before(p, low + now * STAGE + lane % 4 * 2, first + warp_row + lane / 4);
        }
        if (query < first + warp_row + 16 * TALL)
            hide_earlier(p, first + warp_row + lane / 4, query + lane % 4 * 2);
        key_slopes<BOUND>(p, ds, rows + now * STAGE + lane % 4 * 2, s);
        st_weights_by_rows<DT, WIDTH>(dv, p, dout + now * stage + part);
        st_weights_by_rows<DT, WIDTH>(dk, ds, q + now * stage + part);
    }
#pragma unroll
    for (uint32_t m = 0; m < TALL; m++)
        one[m][0] = one[m][1] = 1;
    st_sums_store<DT, WIDTH>(gradient_of<uint16_t>(s, batch, st_key_column(s.at, kv)), first + warp_row, part,
                             k + warp_row * stride, dk, one);
    st_sums_store<DT, WIDTH>(gradient_of<uint16_t>(s, batch, st_value_column(s.at, kv)), first + warp_row, part,
                             v + warp_row * stride, dv, one);
}

/* --- 16 bits: gradients of queries --- */

template <strata_dtype DT, uint32_t WIDTH, uint32_t TALL, bool SMALL>
constexpr uint32_t to_queries_shared = (2 * 64 * TALL + 4 * stage_of<SMALL>)*st_tile_row_bytes<DT, WIDTH>;

template <bool BOUND, uint32_t TALL, uint32_t ACROSS>
static __device__ __forceinline__ void query_slopes(float (&p)[TALL][ACROSS][4], float (&ds)[TALL][ACROSS][4],
                                                    const float2 (&rows)[TALL][2], const struct backward_args &s)
{
#pragma unroll
    for (uint32_t m = 0; m < TALL; m++)
#pragma unroll
        for (uint32_t n = 0; n < ACROSS; n++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                slope<BOUND>(p[m][n][i], ds[m][n][i], rows[m][i / 2], s);
}

/* A row's sums are in the order of the keys, so TALL does not change any bits. */
template <strata_dtype DT, uint32_t WIDTH, uint32_t TALL, bool BOUND, bool SMALL>
static __global__ void __launch_bounds__(ST_TILE_THREADS) to_queries(struct backward_args s)
{
    constexpr uint32_t QUERIES = 64 * TALL, STAGE = stage_of<SMALL>;
    constexpr uint32_t stride = st_tile_stride<DT, WIDTH>, stage = STAGE * stride;
    ST_SHARED_DYNAMIC(shared);
    uint16_t *q = reinterpret_cast<uint16_t *>(shared), *dout = q + QUERIES * stride, *k = dout + QUERIES * stride,
             *v = k + 2 * stage;
    const uint32_t batch = blockIdx.x / s.at.heads, head = blockIdx.x % s.at.heads, lane = threadIdx.x % ST_WARP;
    const uint32_t block_first = (gridDim.y - 1 - blockIdx.y) * QUERIES, warp_row = threadIdx.x / ST_WARP * 16 * TALL;
    const uint32_t first = block_first + warp_row, row = first + lane / 4; /* of the warp, of the thread */
    const uint32_t begin = BOUND ? st_first_key(s.at, batch, block_first) / STAGE * STAGE : 0;
    const uint32_t end = s.at.seq - block_first < QUERIES ? s.at.seq : block_first + QUERIES;
    const struct operands<uint16_t> in = operands_of<uint16_t>(s, batch, head);
    float dq[TALL][WIDTH / 8][4] = {}, one[TALL][2];
    float2 rows[TALL][2];
    uint32_t low[TALL][2]; /* BOUND: the first keys of the thread's rows */

    if constexpr (BOUND)
        st_first_keys(low, s.at, batch, row);
    st_tile_load<DT, WIDTH, QUERIES>(q, in.q, block_first);
    st_tile_load<DT, WIDTH, QUERIES>(dout, in.dout, block_first);
    st_tile_load<DT, WIDTH, STAGE>(k, in.k, begin);
    st_tile_load<DT, WIDTH, STAGE>(v, in.v, begin);
    st_copy_commit();
#pragma unroll
    for (uint32_t m = 0; m < TALL; m++)
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            const uint32_t at = row + 16 * m + 8 * half;

            one[m][half] = 1;
            rows[m][half] = at < s.at.seq ? in.rows[at] : make_float2(0, 0);
        }
#pragma unroll 1
    for (uint32_t key = begin; key < end; key += STAGE) {
        const uint32_t now = (key - begin) / STAGE % 2, next = 1 - now;
        float p[TALL][STAGE / 8][4] = {}, ds[TALL][STAGE / 8][4] = {};

        st_copy_wait<0>();
        __syncthreads(); /* this stage has arrived; the previous one is no longer used */
        if (key + STAGE < end) {
            st_tile_load<DT, WIDTH, STAGE>(k + next * stage, in.k, key + STAGE);
            st_tile_load<DT, WIDTH, STAGE>(v + next * stage, in.v, key + STAGE);
        }
        st_copy_commit();
        if (key >= first + 16 * TALL || first >= s.at.seq) /* after every row of this warp, or the warp has no rows */
            continue;
        st_rows_by_rows<DT, WIDTH>(p, q + warp_row * stride, k + now * stage);
        st_rows_by_rows<DT, WIDTH>(ds, dout + warp_row * stride, v + now * stage);
        if constexpr (BOUND) {
            if (s.at.softcap != 0.0f)
                st_cap(p, s.scale, s.at.softcap);
            st_hide_before(p, low, key + lane % 4 * 2);
        }
        if (key + STAGE > first)
            st_hide_later(p, row, key + lane % 4 * 2);
        query_slopes<BOUND>(p, ds, rows, s);
        st_weights_by_rows<DT, WIDTH>(dq, ds, k + now * stage);
    }
    st_sums_store<DT, WIDTH>(gradient_of<uint16_t>(s, batch, st_query_column(s.at, head)), first, 0, q + warp_row * stride, dq,
                             one);
}

/* --- fp32 --- */

template <uint32_t WIDTH>
constexpr uint32_t to_keys_shared<STRATA_F32, WIDTH, false> = /* and of to_queries_f32 */
    4 * ST_F32_TILE *st_tile_row_bytes<STRATA_F32, WIDTH> + ST_F32_TILE *(ST_F32_STRIDE * 4 + 8);

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

template <uint32_t WIDTH, bool BOUND>
static __global__ void __launch_bounds__(ST_TILE_THREADS, 1) to_keys_f32(struct backward_args s)
{
    ST_SHARED_DYNAMIC(shared);
    struct tiles_f32<WIDTH> *t = reinterpret_cast<struct tiles_f32<WIDTH> *>(shared);
    const uint32_t batch = blockIdx.x / s.at.kv_heads, kv = blockIdx.x % s.at.kv_heads, first = blockIdx.y * ST_F32_TILE;
    const uint32_t end = queries_end<BOUND>(s.at, batch, first, ST_F32_TILE);
    struct step at = first_step(s.at, kv, first);
    float dk[ST_F32_ROWS][WIDTH / 8] = {}, dv[ST_F32_ROWS][WIDTH / 8] = {};
    const float one[ST_F32_ROWS] = {1, 1};

    keys_load_f32(t, operands_of<float>(s, batch, at.head), first);
    for (uint32_t left = steps_from<ST_F32_TILE>(s.at, first, end); left > 0;
         left--, at = next_step<ST_F32_TILE>(at, first, end)) {
        float p[ST_F32_ROWS][ST_F32_ACROSS], ds[ST_F32_ROWS][ST_F32_ACROSS];
        uint32_t low[ST_F32_ACROSS] = {};

        queries_load_f32(t, operands_of<float>(s, batch, at.head), at.query, s.at.seq);
        copies_arrive();
        st_f32_rows_by_rows<WIDTH>(p, t->k, t->q);
        st_f32_rows_by_rows<WIDTH>(ds, t->v, t->dout);
        if (BOUND && s.at.softcap != 0.0f)
            st_f32_cap(p, s.scale, s.at.softcap);
#pragma unroll
        for (uint32_t j = 0; BOUND && j < ST_F32_ACROSS; j++)
            low[j] = st_first_key_or_0(s.at, batch, at.query + st_f32_column(j));
#pragma unroll
        for (uint32_t i = 0; i < ST_F32_ROWS; i++)
#pragma unroll
            for (uint32_t j = 0; j < ST_F32_ACROSS; j++) {
                if (first + st_f32_row(i) > at.query + st_f32_column(j) || (BOUND && first + st_f32_row(i) < low[j]))
                    p[i][j] = -ST_TILE_INFINITY;
                slope<BOUND>(p[i][j], ds[i][j], t->rows[st_f32_column(j)], s);
            }
        st_f32_weights_by_rows<WIDTH>(dv, p, t->weights, t->dout);
        st_f32_weights_by_rows<WIDTH>(dk, ds, t->weights, t->q);
        __syncthreads();
    }
    st_f32_sums_store<WIDTH>(gradient_of<float>(s, batch, st_key_column(s.at, kv)), first, dk, one);
    st_f32_sums_store<WIDTH>(gradient_of<float>(s, batch, st_value_column(s.at, kv)), first, dv, one);
}

template <uint32_t WIDTH, bool BOUND>
static __global__ void __launch_bounds__(ST_TILE_THREADS, 1) to_queries_f32(struct backward_args s)
{
    ST_SHARED_DYNAMIC(shared);
    struct tiles_f32<WIDTH> *t = reinterpret_cast<struct tiles_f32<WIDTH> *>(shared);
    const uint32_t batch = blockIdx.x / s.at.heads, head = blockIdx.x % s.at.heads;
    const uint32_t first = (gridDim.y - 1 - blockIdx.y) * ST_F32_TILE;
    const struct operands<float> in = operands_of<float>(s, batch, head);
    const uint32_t begin = BOUND ? st_first_key(s.at, batch, first) / ST_F32_TILE * ST_F32_TILE : 0;
    float dq[ST_F32_ROWS][WIDTH / 8] = {};
    const float one[ST_F32_ROWS] = {1, 1};
    uint32_t low[ST_F32_ROWS] = {};

#pragma unroll
    for (uint32_t i = 0; BOUND && i < ST_F32_ROWS; i++)
        low[i] = st_first_key_or_0(s.at, batch, first + st_f32_row(i));
    queries_load_f32(t, in, first, s.at.seq);
    for (uint32_t key = begin; key <= first; key += ST_F32_TILE) {
        float p[ST_F32_ROWS][ST_F32_ACROSS], ds[ST_F32_ROWS][ST_F32_ACROSS];

        keys_load_f32(t, in, key);
        copies_arrive();
        st_f32_rows_by_rows<WIDTH>(p, t->q, t->k);
        st_f32_rows_by_rows<WIDTH>(ds, t->dout, t->v);
        if (BOUND && s.at.softcap != 0.0f)
            st_f32_cap(p, s.scale, s.at.softcap);
#pragma unroll
        for (uint32_t i = 0; i < ST_F32_ROWS; i++)
#pragma unroll
            for (uint32_t j = 0; j < ST_F32_ACROSS; j++) {
                if (key + st_f32_column(j) > first + st_f32_row(i) || (BOUND && key + st_f32_column(j) < low[i]))
                    p[i][j] = -ST_TILE_INFINITY;
                slope<BOUND>(p[i][j], ds[i][j], t->rows[st_f32_row(i)], s);
            }
        st_f32_weights_by_rows<WIDTH>(dq, ds, t->weights, t->k);
        __syncthreads();
    }
    st_f32_sums_store<WIDTH>(gradient_of<float>(s, batch, st_query_column(s.at, head)), first, dq, one);
}

/* --- launch --- */

template <strata_dtype DT, uint32_t WIDTH, bool BOUND, bool SMALL> static constexpr auto to_keys_kernel()
{
    if constexpr (DT == STRATA_F32)
        return to_keys_f32<WIDTH, BOUND>;
    else
        return to_keys<DT, WIDTH, BOUND, SMALL>;
}

/* TALL is not read in fp32. */
template <strata_dtype DT, uint32_t WIDTH, uint32_t TALL, bool BOUND, bool SMALL> static constexpr auto to_queries_kernel()
{
    if constexpr (DT == STRATA_F32)
        return to_queries_f32<WIDTH, BOUND>;
    else
        return to_queries<DT, WIDTH, TALL, BOUND, SMALL>;
}

template <strata_dtype DT, uint32_t WIDTH, uint32_t TALL, bool SMALL> static constexpr uint32_t to_queries_bytes()
{
    if constexpr (DT == STRATA_F32)
        return to_keys_shared<DT, WIDTH, false>;
    else
        return to_queries_shared<DT, WIDTH, TALL, SMALL>;
}

template <strata_dtype DT, uint32_t WIDTH> struct backward_launch {
    template <bool BOUND> static constexpr uint32_t TALL = DT == STRATA_F32 ? 1 : queries_tall<WIDTH, BOUND>;
    /* Where a GPU's blocks have too little for TALL, or for whole stages of wide heads. */
    template <bool BOUND>
    static constexpr uint32_t LEAST = to_queries_bytes<DT, WIDTH, TALL<BOUND>, false>() > SHARED_EVERYWHERE ? 1 : TALL<BOUND>;
    static constexpr bool SMALL = DT != STRATA_F32 && WIDTH > 128;

    static cudaError_t allow(uint32_t shared_most)
    {
        const cudaError_t err = allow_as<false>(shared_most);

        return err != cudaSuccess ? err : allow_as<true>(shared_most);
    }

    static cudaError_t run(const struct st_tile_queue &queue, const struct backward_args &s)
    {
        return st_attention_is_bound(s.at) ? run_as<true>(queue, s) : run_as<false>(queue, s);
    }

  private:
    template <bool BOUND> static cudaError_t allow_as(uint32_t shared_most)
    {
        cudaError_t err = allow_keys<BOUND, false>(shared_most);

        if (err == cudaSuccess)
            err = allow_queries<TALL<BOUND>, BOUND, false>(shared_most);
        if (err == cudaSuccess && LEAST<BOUND> != TALL<BOUND>)
            err = allow_queries<LEAST<BOUND>, BOUND, false>(shared_most);
        if (err == cudaSuccess && SMALL)
            err = allow_keys<BOUND, SMALL>(shared_most);
        if (err == cudaSuccess && SMALL)
            err = allow_queries<LEAST<BOUND>, BOUND, SMALL>(shared_most);
        return err;
    }

    template <bool BOUND> static cudaError_t run_as(const struct st_tile_queue &queue, const struct backward_args &s)
    {
        const bool whole = queue.shared_most >= to_keys_shared<DT, WIDTH, false>;
        const cudaError_t err = whole ? run_keys<BOUND, false>(queue, s) : run_keys<BOUND, SMALL>(queue, s);

        if (err != cudaSuccess)
            return err;
        if (queue.shared_most >= to_queries_bytes<DT, WIDTH, TALL<BOUND>, false>())
            return run_queries<TALL<BOUND>, BOUND, false>(queue, s);
        return run_queries<LEAST<BOUND>, BOUND, SMALL>(queue, s);
    }

    template <bool BOUND, bool SMALL_> static cudaError_t allow_keys(uint32_t shared_most)
    {
        return st_tile_allow(to_keys_kernel<DT, WIDTH, BOUND, SMALL_>(), to_keys_shared<DT, WIDTH, SMALL_>, shared_most);
    }

    template <uint32_t ROWS, bool BOUND, bool SMALL_> static cudaError_t allow_queries(uint32_t shared_most)
    {
        return st_tile_allow(to_queries_kernel<DT, WIDTH, ROWS, BOUND, SMALL_>(), to_queries_bytes<DT, WIDTH, ROWS, SMALL_>(),
                             shared_most);
    }

    template <bool BOUND, bool SMALL_>
    static cudaError_t run_keys(const struct st_tile_queue &queue, const struct backward_args &s)
    {
        constexpr uint32_t keys = DT == STRATA_F32 ? ST_F32_TILE : 64 * keys_tall<WIDTH>;
        constexpr uint32_t parts = DT == STRATA_F32 ? 1 : keys_parts<WIDTH>;

        return st_tile_launch(to_keys_kernel<DT, WIDTH, BOUND, SMALL_>(), s.at.batch * s.at.kv_heads,
                              (s.at.seq + keys - 1) / keys, parts, to_keys_shared<DT, WIDTH, SMALL_>, queue, s);
    }

    template <uint32_t ROWS, bool BOUND, bool SMALL_>
    static cudaError_t run_queries(const struct st_tile_queue &queue, const struct backward_args &s)
    {
        constexpr uint32_t rows = DT == STRATA_F32 ? ST_F32_TILE : 64 * ROWS;

        return st_tile_launch(to_queries_kernel<DT, WIDTH, ROWS, BOUND, SMALL_>(), s.at.batch * s.at.heads,
                              (s.at.seq + rows - 1) / rows, 1, to_queries_bytes<DT, WIDTH, ROWS, SMALL_>(), queue, s);
    }
};

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
    return st_allow_all<backward_launch>(shared_most);
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
    cudaError_t err = st_attention_check(*at);

    if (err != cudaSuccess || at->batch == 0 || at->seq == 0)
        return err;
    err = prepare_launch(stream, s);
    return err != cudaSuccess ? err : st_launch_by_dtype<backward_launch>({stream, shared_most}, s);
}

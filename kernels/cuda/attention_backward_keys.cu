/* kernels/cuda/attention_backward_keys.cu - see attention_backward.cuh.
 *
 * to_keys walks the query heads of its keys' group in order, and in each head the queries from the diagonal on; it works on
 * transposed scores, so that probabilities and their gradients can be used as operands directly.  Stages of 32 rows are loaded
 * while the previous ones are used. */
#include "kernels/cuda/attention_backward.cuh"

/* The first keys that STAGE queries see. */
template <uint32_t STAGE>
static __device__ __forceinline__ void low_load(uint32_t *shared, const struct st_attention &at, uint32_t batch, uint32_t first)
{
    if (threadIdx.x < STAGE)
        shared[threadIdx.x] = st_first_key_or_0(at, batch, first + threadIdx.x);
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

/* --- fp32 --- */

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

/* --- launch --- */

template <uint32_t WIDTH> constexpr uint32_t to_keys_shared<STRATA_F32, WIDTH, false> = shared_f32<WIDTH>;

template <strata_dtype DT, uint32_t WIDTH> struct keys_launch {
    static constexpr bool SMALL = DT != STRATA_F32 && WIDTH > 128; /* where a GPU's blocks have too little for whole stages */

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
    template <bool BOUND, bool SMALL_> static constexpr auto kernel()
    {
        if constexpr (DT == STRATA_F32)
            return to_keys_f32<WIDTH, BOUND>;
        else
            return to_keys<DT, WIDTH, BOUND, SMALL_>;
    }

    template <bool BOUND> static cudaError_t allow_as(uint32_t shared_most)
    {
        const cudaError_t err = allow_one<BOUND, false>(shared_most);

        return err != cudaSuccess || !SMALL ? err : allow_one<BOUND, SMALL>(shared_most);
    }

    template <bool BOUND> static cudaError_t run_as(const struct st_tile_queue &queue, const struct backward_args &s)
    {
        const bool whole = queue.shared_most >= to_keys_shared<DT, WIDTH, false>;

        return whole ? run_one<BOUND, false>(queue, s) : run_one<BOUND, SMALL>(queue, s);
    }

    template <bool BOUND, bool SMALL_> static cudaError_t allow_one(uint32_t shared_most)
    {
        return st_tile_allow(kernel<BOUND, SMALL_>(), to_keys_shared<DT, WIDTH, SMALL_>, shared_most);
    }

    template <bool BOUND, bool SMALL_>
    static cudaError_t run_one(const struct st_tile_queue &queue, const struct backward_args &s)
    {
        constexpr uint32_t keys = DT == STRATA_F32 ? ST_F32_TILE : 64 * keys_tall<WIDTH>;
        constexpr uint32_t parts = DT == STRATA_F32 ? 1 : keys_parts<WIDTH>;

        return st_tile_launch(kernel<BOUND, SMALL_>(), s.at.batch * s.at.kv_heads, (s.at.seq + keys - 1) / keys, parts,
                              to_keys_shared<DT, WIDTH, SMALL_>, queue, s);
    }
};

cudaError_t st_backward_keys_allow(uint32_t shared_most)
{
    return st_allow_all<keys_launch>(shared_most);
}

cudaError_t st_backward_keys(const struct st_tile_queue &queue, const struct backward_args &s)
{
    return st_launch_by_dtype<keys_launch>(queue, s);
}

/* kernels/cuda/attention_backward_queries.cu - see attention_backward.cuh.
 *
 * Stages of 32 keys and their values are loaded while the previous ones are used. */
#include "kernels/cuda/attention_backward.cuh"

/* Keys loaded together.  A SMALL kernel has the second number, which changes no bits. */
#define STAGE_ROWS  32u
#define STAGE_SMALL 16u

/* Shared memory that a block can have on every GPU with this dtype: 64 KiB on capability 7.5, which has no bf16. */
template <strata_dtype DT> constexpr uint32_t shared_everywhere = (DT == STRATA_BF16 ? 99u : 64u) << 10;

/* --- 16 bits --- */

template <bool SMALL> constexpr uint32_t stage_of = SMALL ? STAGE_SMALL : STAGE_ROWS;

template <uint32_t WIDTH, bool BOUND> constexpr uint32_t queries_tall = WIDTH <= 128 && !(BOUND && WIDTH == 96) ? 2 : 1;

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

template <strata_dtype DT, uint32_t WIDTH, uint32_t TALL, bool SMALL> static constexpr uint32_t to_queries_bytes()
{
    if constexpr (DT == STRATA_F32)
        return shared_f32<WIDTH>;
    else
        return to_queries_shared<DT, WIDTH, TALL, SMALL>;
}

template <strata_dtype DT, uint32_t WIDTH> struct queries_launch {
    template <bool BOUND>
    static constexpr uint32_t TALL = DT == STRATA_F32 ? 1 : queries_tall<WIDTH, BOUND>; /* not read in fp32 */
    /* Where a GPU's blocks have too little for TALL, or for whole stages of wide heads. */
    template <bool BOUND>
    static constexpr uint32_t LEAST = to_queries_bytes<DT, WIDTH, TALL<BOUND>, false>() > shared_everywhere<DT> ? 1 : TALL<BOUND>;
    static constexpr bool SMALL = DT != STRATA_F32 && to_queries_bytes<DT, WIDTH, 1, false>() > shared_everywhere<DT>;

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
    template <uint32_t ROWS, bool BOUND, bool SMALL_> static constexpr auto kernel()
    {
        if constexpr (DT == STRATA_F32)
            return to_queries_f32<WIDTH, BOUND>;
        else
            return to_queries<DT, WIDTH, ROWS, BOUND, SMALL_>;
    }

    template <bool BOUND> static cudaError_t allow_as(uint32_t shared_most)
    {
        cudaError_t err = allow_one<TALL<BOUND>, BOUND, false>(shared_most);

        if (err == cudaSuccess && LEAST<BOUND> != TALL<BOUND>)
            err = allow_one<LEAST<BOUND>, BOUND, false>(shared_most);
        if (err == cudaSuccess && SMALL)
            err = allow_one<LEAST<BOUND>, BOUND, SMALL>(shared_most);
        return err;
    }

    template <bool BOUND> static cudaError_t run_as(const struct st_tile_queue &queue, const struct backward_args &s)
    {
        if (queue.shared_most >= to_queries_bytes<DT, WIDTH, TALL<BOUND>, false>())
            return run_one<TALL<BOUND>, BOUND, false>(queue, s);
        if (queue.shared_most >= to_queries_bytes<DT, WIDTH, LEAST<BOUND>, false>())
            return run_one<LEAST<BOUND>, BOUND, false>(queue, s);
        return run_one<LEAST<BOUND>, BOUND, SMALL>(queue, s);
    }

    template <uint32_t ROWS, bool BOUND, bool SMALL_> static cudaError_t allow_one(uint32_t shared_most)
    {
        return st_tile_allow(kernel<ROWS, BOUND, SMALL_>(), to_queries_bytes<DT, WIDTH, ROWS, SMALL_>(), shared_most);
    }

    template <uint32_t ROWS, bool BOUND, bool SMALL_>
    static cudaError_t run_one(const struct st_tile_queue &queue, const struct backward_args &s)
    {
        constexpr uint32_t rows = DT == STRATA_F32 ? ST_F32_TILE : 64 * ROWS;

        return st_tile_launch(kernel<ROWS, BOUND, SMALL_>(), s.at.batch * s.at.heads, (s.at.seq + rows - 1) / rows,
                              to_queries_bytes<DT, WIDTH, ROWS, SMALL_>(), queue, s);
    }
};

cudaError_t st_backward_queries_allow(uint32_t shared_most)
{
    return st_allow_all<queries_launch>(shared_most);
}

cudaError_t st_backward_queries(const struct st_tile_queue &queue, const struct backward_args &s)
{
    return st_launch_by_dtype<queries_launch>(queue, s);
}

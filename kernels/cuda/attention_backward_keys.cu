/* kernels/cuda/attention_backward_keys.cu - see attention_backward.cuh.
 *
 * Blocks walk the query heads of their keys' group in order, and in each head the queries from the diagonal on.  They work on
 * transposed scores, so that probabilities and their gradients can be used as operands directly.  Stages of queries are loaded
 * while earlier ones are used.  In both of the kernels for 16 bits a sum is in the order of the queries. */
#include "kernels/cuda/attention_backward.cuh"

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

/* --- 16 bits: stages of queries --- */

/* STAGES stages of STAGE queries in shared memory. */
template <strata_dtype DT, uint32_t WIDTH, uint32_t STAGE, uint32_t STAGES> struct query_stages {
    uint16_t tiles[STAGES][2][STAGE * st_tile_stride<DT, WIDTH>]; /* queries, gradients of out */
    float2 rows[STAGES][STAGE];
    uint32_t low[STAGES][STAGE]; /* BOUND: the first keys that the queries see */
    uint32_t query[STAGES];      /* the first one */
};

enum { OF_QUERIES, OF_OUT }; /* tiles of a stage: which one a thread loads */

static __device__ __forceinline__ uint32_t tile_of_thread()
{
    return threadIdx.x / ST_WARP % 2;
}

/* Starts to load a step's queries as stage number `index`. */
template <bool BOUND, strata_dtype DT, uint32_t WIDTH, uint32_t STAGE, uint32_t STAGES>
static __device__ __forceinline__ void stage_load(struct query_stages<DT, WIDTH, STAGE, STAGES> *t, const struct backward_args &s,
                                                  uint32_t batch, const struct step &of, uint32_t index)
{
    const uint32_t to = index % STAGES, thread = threadIdx.x / ST_WARP / 2 * ST_WARP + threadIdx.x % ST_WARP;
    const struct operands<uint16_t> in = operands_of<uint16_t>(s, batch, of.head);
    struct st_head<const uint16_t> from = in.q;

    if (tile_of_thread() == OF_OUT)
        from = in.dout;
    st_tile_load<DT, WIDTH, STAGE, ST_TILE_THREADS / 2>(t->tiles[to][tile_of_thread()], from, of.query, thread);
    rows_load<STAGE>(t->rows[to], in.rows, of.query, s.at.seq);
    if (threadIdx.x == 0)
        t->query[to] = of.query;
    if (BOUND && threadIdx.x < STAGE)
        t->low[to][threadIdx.x] = st_first_key_or_0(s.at, batch, of.query + threadIdx.x);
}

/* Whether a query of a stage sees one of the KEYS keys from `key` on. */
template <bool BOUND, uint32_t KEYS, strata_dtype DT, uint32_t WIDTH, uint32_t STAGE, uint32_t STAGES>
static __device__ __forceinline__ bool stage_sees(const struct query_stages<DT, WIDTH, STAGE, STAGES> &t, uint32_t at,
                                                  uint32_t key)
{
    return t.query[at] + STAGE > key && (!BOUND || t.low[at][0] < key + KEYS);
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

/* Caps transposed scores and hides those that do not count; key: the first one of this warp's. */
template <bool BOUND, uint32_t TALL, uint32_t ACROSS>
static __device__ __forceinline__ void cap_and_hide(float (&p)[TALL][ACROSS][4], const struct backward_args &s,
                                                    const uint32_t *low, uint32_t key, uint32_t query)
{
    const uint32_t lane = threadIdx.x % ST_WARP;

    if constexpr (BOUND) {
        if (s.at.softcap != 0.0f)
            st_cap(p, s.scale, s.at.softcap);
        hide_before(p, low + lane % 4 * 2, key + lane / 4);
    }
    if (query < key + 16 * TALL)
        hide_earlier(p, key + lane / 4, query + lane % 4 * 2);
}

/* --- heads up to 64: a warp sums up both gradients of its keys --- */

#define NARROW_TALL  2u
#define NARROW_KEYS  (64u * NARROW_TALL)
#define NARROW_STAGE 32u

/* Two stages: one is used while the other is loaded. */
template <strata_dtype DT, uint32_t WIDTH> struct narrow_tiles {
    uint16_t k[NARROW_KEYS * st_tile_stride<DT, WIDTH>], v[NARROW_KEYS * st_tile_stride<DT, WIDTH>];
    struct query_stages<DT, WIDTH, NARROW_STAGE, 2> stages;
};

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

/* key, row: the first one of this warp, and its place in the block. */
template <strata_dtype DT, uint32_t WIDTH, bool BOUND>
static __device__ __forceinline__ void narrow_use(float (&dk)[NARROW_TALL][WIDTH / 8][4], float (&dv)[NARROW_TALL][WIDTH / 8][4],
                                                  const struct narrow_tiles<DT, WIDTH> *t, const struct backward_args &s,
                                                  uint32_t key, uint32_t row, uint32_t index)
{
    constexpr uint32_t stride = st_tile_stride<DT, WIDTH>;
    const uint32_t at = index % 2;
    const uint16_t *q = t->stages.tiles[at][OF_QUERIES], *dout = t->stages.tiles[at][OF_OUT];
    float p[NARROW_TALL][NARROW_STAGE / 8][4] = {}, ds[NARROW_TALL][NARROW_STAGE / 8][4] = {};

    if (!stage_sees<BOUND, 16 * NARROW_TALL>(t->stages, at, key))
        return;
    st_rows_by_rows<DT, WIDTH>(p, t->k + row * stride, q);
    st_rows_by_rows<DT, WIDTH>(ds, t->v + row * stride, dout);
    cap_and_hide<BOUND>(p, s, t->stages.low[at], key, t->stages.query[at]);
    key_slopes<BOUND>(p, ds, t->stages.rows[at] + threadIdx.x % 4 * 2, s);
    st_weights_by_rows<DT, WIDTH>(dv, p, dout);
    st_weights_by_rows<DT, WIDTH>(dk, ds, q);
}

template <strata_dtype DT, uint32_t WIDTH, bool BOUND>
static __global__ void __launch_bounds__(ST_TILE_THREADS) to_keys_narrow(struct backward_args s)
{
    ST_SHARED_DYNAMIC(shared);
    struct narrow_tiles<DT, WIDTH> *t = reinterpret_cast<struct narrow_tiles<DT, WIDTH> *>(shared);
    const uint32_t batch = blockIdx.x / s.at.kv_heads, kv = blockIdx.x % s.at.kv_heads, first = blockIdx.y * NARROW_KEYS;
    const uint32_t row = threadIdx.x / ST_WARP * 16 * NARROW_TALL, place = row * st_tile_stride<DT, WIDTH>;
    const uint32_t end = queries_end<BOUND>(s.at, batch, first, NARROW_KEYS), steps = steps_from<NARROW_STAGE>(s.at, first, end);
    struct step ahead = first_step(s.at, kv, first);
    float dk[NARROW_TALL][WIDTH / 8][4] = {}, dv[NARROW_TALL][WIDTH / 8][4] = {};
    const float one[NARROW_TALL][2] = {{1, 1}, {1, 1}};

    st_tile_load<DT, WIDTH, NARROW_KEYS>(t->k, operands_of<uint16_t>(s, batch, ahead.head).k, first);
    st_tile_load<DT, WIDTH, NARROW_KEYS>(t->v, operands_of<uint16_t>(s, batch, ahead.head).v, first);
#pragma unroll 1
    for (uint32_t load = 0; load <= steps; load++) {
        st_copy_wait<0>();
        __syncthreads(); /* stage load - 1 has arrived; the one before it is no longer used */
        if (load < steps)
            stage_load<BOUND>(&t->stages, s, batch, ahead, load);
        st_copy_commit();
        ahead = next_step<NARROW_STAGE>(ahead, first, end);
        if (load > 0)
            narrow_use<DT, WIDTH, BOUND>(dk, dv, t, s, first + row, row, load - 1);
    }
    st_sums_store<DT, WIDTH>(gradient_of<uint16_t>(s, batch, st_key_column(s.at, kv)), first + row, 0, t->k + place, dk, one);
    st_sums_store<DT, WIDTH>(gradient_of<uint16_t>(s, batch, st_value_column(s.at, kv)), first + row, 0, t->v + place, dv, one);
}

/* --- wider heads: two warps share keys, and each sums up one gradient ---
 *
 * A block's four warps are two pairs.  The first warp of a pair holds its keys, turns scores into probabilities, passes these on,
 * and sums up gradients of values.  The second holds the values, is one stage behind, turns gradients of probabilities into those
 * of scores, and sums up gradients of keys.  Sums of one gradient leave registers for twice as many keys, and each row of a stage
 * that a warp loads from shared memory is used for all of them. */

#define PAIRED_STAGE 16u

enum { HOLDS_KEYS, HOLDS_VALUES }; /* the warps of a pair */

template <uint32_t WIDTH> constexpr uint32_t paired_tall = WIDTH <= 128 ? 2 : 1; /* groups of 16 keys of a pair */
template <uint32_t WIDTH> constexpr uint32_t paired_keys = 2 * 16 * paired_tall<WIDTH>;
/* Two are used, the others loaded: four fit where the keys and values were before. */
template <uint32_t WIDTH> constexpr uint32_t paired_stages = WIDTH <= 128 ? 4 : 3;

template <strata_dtype DT, uint32_t WIDTH> struct paired_tiles {
    union {
        uint16_t held[2][paired_keys<WIDTH> * st_tile_stride<DT, WIDTH>]; /* at first; gradients at last */
        struct query_stages<DT, WIDTH, PAIRED_STAGE, paired_stages<WIDTH>> stages;
    };
    float4 weights[2][2][paired_tall<WIDTH>][PAIRED_STAGE / 8][ST_WARP]; /* of two stages and two pairs: fragments */
};

/* Turns transposed scores into probabilities and passes weights for pair_slopes(); rows: from this thread's first query on. */
template <bool BOUND, uint32_t TALL, uint32_t ACROSS>
static __device__ __forceinline__ void pair_weights(float (&p)[TALL][ACROSS][4], float4 (&weights)[TALL][ACROSS][ST_WARP],
                                                    const float2 *rows, const struct backward_args &s)
{
#pragma unroll
    for (uint32_t n = 0; n < ACROSS; n++) {
        const float left = rows[8 * n].x, right = rows[8 * n + 1].x;

#pragma unroll
        for (uint32_t m = 0; m < TALL; m++) {
            float(&x)[4] = p[m][n];

            weights[m][n][threadIdx.x % ST_WARP] = {weigh<BOUND>(x[0], left, s), weigh<BOUND>(x[1], right, s),
                                                    weigh<BOUND>(x[2], left, s), weigh<BOUND>(x[3], right, s)};
        }
    }
}

/* Turns gradients of probabilities into those of scores. */
template <uint32_t TALL, uint32_t ACROSS>
static __device__ __forceinline__ void pair_slopes(float (&ds)[TALL][ACROSS][4], const float4 (&weights)[TALL][ACROSS][ST_WARP],
                                                   const float2 *rows, float scale)
{
#pragma unroll
    for (uint32_t n = 0; n < ACROSS; n++) {
        const float left = -rows[8 * n].y, right = -rows[8 * n + 1].y;

#pragma unroll
        for (uint32_t m = 0; m < TALL; m++) {
            const float4 weight = weights[m][n][threadIdx.x % ST_WARP];
            float(&x)[4] = ds[m][n];

            x[0] = weight.x * fmaf(x[0], scale, left);
            x[1] = weight.y * fmaf(x[1], scale, right);
            x[2] = weight.z * fmaf(x[2], scale, left);
            x[3] = weight.w * fmaf(x[3], scale, right);
        }
    }
}

/* key: the first one of this warp. */
template <strata_dtype DT, uint32_t WIDTH, bool BOUND, uint32_t TALL>
static __device__ __forceinline__ void paired_use(float (&sums)[TALL][WIDTH / 8][4], const struct st_held<WIDTH, TALL> &held,
                                                  struct paired_tiles<DT, WIDTH> *t, const struct backward_args &s, uint32_t key,
                                                  uint32_t index)
{
    const uint32_t at = index % paired_stages<WIDTH>, side = threadIdx.x / ST_WARP % 2, pair = threadIdx.x / ST_WARP / 2;
    const float2 *rows = t->stages.rows[at] + threadIdx.x % 4 * 2;
    float x[TALL][PAIRED_STAGE / 8][4] = {}; /* scores, or gradients of probabilities */

    if (!stage_sees<BOUND, 16 * TALL>(t->stages, at, key))
        return;
    st_held_by_rows<DT>(x, held, t->stages.tiles[at][side]);
    if (side == HOLDS_KEYS) {
        cap_and_hide<BOUND>(x, s, t->stages.low[at], key, t->stages.query[at]);
        pair_weights<BOUND>(x, t->weights[index % 2][pair], rows, s);
    } else {
        pair_slopes(x, t->weights[index % 2][pair], rows, s.scale);
    }
    st_weights_by_rows<DT, WIDTH>(sums, x, t->stages.tiles[at][1 - side]);
}

template <strata_dtype DT, uint32_t WIDTH, bool BOUND>
static __global__ void __launch_bounds__(ST_TILE_THREADS) to_keys_paired(struct backward_args s)
{
    constexpr uint32_t TALL = paired_tall<WIDTH>, KEYS = paired_keys<WIDTH>, AHEAD = paired_stages<WIDTH> - 2;
    ST_SHARED_DYNAMIC(shared);
    struct paired_tiles<DT, WIDTH> *t = reinterpret_cast<struct paired_tiles<DT, WIDTH> *>(shared);
    const uint32_t batch = blockIdx.x / s.at.kv_heads, kv = blockIdx.x % s.at.kv_heads, first = blockIdx.y * KEYS;
    const uint32_t side = threadIdx.x / ST_WARP % 2, row = threadIdx.x / ST_WARP / 2 * 16 * TALL;
    const uint32_t end = queries_end<BOUND>(s.at, batch, first, KEYS), steps = steps_from<PAIRED_STAGE>(s.at, first, end);
    uint16_t *mine = t->held[side] + row * st_tile_stride<DT, WIDTH>;
    struct step ahead = first_step(s.at, kv, first);
    struct st_held<WIDTH, TALL> held;
    float sums[TALL][WIDTH / 8][4] = {}, one[TALL][2];

    st_tile_load<DT, WIDTH, KEYS>(t->held[HOLDS_KEYS], operands_of<uint16_t>(s, batch, ahead.head).k, first);
    st_tile_load<DT, WIDTH, KEYS>(t->held[HOLDS_VALUES], operands_of<uint16_t>(s, batch, ahead.head).v, first);
    copies_arrive();
    st_hold<DT>(held, mine);
#pragma unroll 1
    for (uint32_t load = 0; load < steps + AHEAD + 1; load++) {
        const uint32_t use = load - AHEAD - side;

        st_copy_wait<AHEAD - 1>();
        __syncthreads(); /* stage load - AHEAD has arrived; load - AHEAD - 2, keys and values are no longer used */
        if (load < steps)
            stage_load<BOUND>(&t->stages, s, batch, ahead, load);
        st_copy_commit();
        ahead = next_step<PAIRED_STAGE>(ahead, first, end);
        if (use < steps)
            paired_use<DT, WIDTH, BOUND>(sums, held, t, s, first + row, use);
    }
    __syncthreads(); /* nor is any stage */
#pragma unroll
    for (uint32_t m = 0; m < TALL; m++)
        one[m][0] = one[m][1] = 1;
    st_sums_store<DT, WIDTH>(
        gradient_of<uint16_t>(s, batch, side == HOLDS_KEYS ? st_value_column(s.at, kv) : st_key_column(s.at, kv)), first + row, 0,
        mine, sums, one);
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

template <strata_dtype DT, uint32_t WIDTH> struct keys_launch {
    static cudaError_t allow(uint32_t shared_most)
    {
        const cudaError_t err = st_tile_allow(kernel<false>(), shared(), shared_most);

        return err != cudaSuccess ? err : st_tile_allow(kernel<true>(), shared(), shared_most);
    }

    static cudaError_t run(const struct st_tile_queue &queue, const struct backward_args &s)
    {
        constexpr uint32_t keys = DT == STRATA_F32 ? ST_F32_TILE : NARROW ? NARROW_KEYS : paired_keys<WIDTH>;

        return st_tile_launch(st_attention_is_bound(s.at) ? kernel<true>() : kernel<false>(), s.at.batch * s.at.kv_heads,
                              (s.at.seq + keys - 1) / keys, shared(), queue, s);
    }

  private:
    static constexpr bool NARROW = WIDTH <= 64;

    static constexpr uint32_t shared()
    {
        if constexpr (DT == STRATA_F32)
            return shared_f32<WIDTH>;
        else if constexpr (NARROW)
            return sizeof(struct narrow_tiles<DT, WIDTH>);
        else
            return sizeof(struct paired_tiles<DT, WIDTH>);
    }

    template <bool BOUND> static constexpr auto kernel()
    {
        if constexpr (DT == STRATA_F32)
            return to_keys_f32<WIDTH, BOUND>;
        else if constexpr (NARROW)
            return to_keys_narrow<DT, WIDTH, BOUND>;
        else
            return to_keys_paired<DT, WIDTH, BOUND>;
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

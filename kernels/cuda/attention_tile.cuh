/* kernels/cuda/attention_tile.cuh - tiles of heads in shared memory and a warp's products over them, shared by the attention
 * kernels.
 *
 * A tile is [rows][width + 16 bytes]: the odd number of 16-byte groups puts eight rows in eight different groups of banks, so
 * matrix loads, copies and stores have no bank conflicts.  Columns past head_dim and rows past seq are zeros.  A warp owns 16 *
 * TALL rows of its block's first operand; arrays of fragments are [TALL][columns / 8][4] as mma.cuh lays them out. */
#ifndef KERNELS_CUDA_ATTENTION_TILE_CUH
#define KERNELS_CUDA_ATTENTION_TILE_CUH

#include "kernels/cuda/attention.h"
#include "kernels/cuda/mma.cuh"

#define ST_TILE_THREADS  128u
#define ST_GRID_Y_MAX    65535u
#define ST_TILE_INFINITY __builtin_huge_valf()

template <strata_dtype DT> struct st_element {
    using type = uint16_t;
};
template <> struct st_element<STRATA_F32> {
    using type = float;
};
template <strata_dtype DT> using st_elem_t = typename st_element<DT>::type;

/* Elements of 16 bytes; elements between the rows of a tile. */
template <strata_dtype DT> constexpr uint32_t st_group_elems = 16u / static_cast<uint32_t>(sizeof(st_elem_t<DT>));
template <strata_dtype DT, uint32_t WIDTH> constexpr uint32_t st_tile_stride = WIDTH + st_group_elems<DT>;
template <strata_dtype DT, uint32_t WIDTH>
constexpr uint32_t st_tile_row_bytes = st_tile_stride<DT, WIDTH> *static_cast<uint32_t>(sizeof(st_elem_t<DT>));

/* One element, widened exactly; one rounded. */
template <strata_dtype DT> static __device__ __forceinline__ float st_element_load(st_elem_t<DT> x)
{
    if constexpr (DT == STRATA_F32)
        return x;
    else
        return st_widen<DT>(x);
}

template <strata_dtype DT> static __device__ __forceinline__ st_elem_t<DT> st_element_round(float x)
{
    if constexpr (DT == STRATA_F32)
        return x;
    else
        return static_cast<uint16_t>(st_round_pair<DT>(x, 0));
}

/* --- packed rows --- */

/* One head's rows inside packed rows: element c of row r is first[r * stride + c]. */
template <typename T> struct st_head {
    T *first;
    uint32_t stride, rows, columns;
    bool wide; /* whole 16-byte groups */
};

/* First columns of a head of q, k and v in qkv; of out, a query's. */
static __device__ __forceinline__ uint32_t st_query_column(const struct st_attention &at, uint32_t head)
{
    return head * at.head_dim;
}

static __device__ __forceinline__ uint32_t st_key_column(const struct st_attention &at, uint32_t kv)
{
    return (at.heads + kv) * at.head_dim;
}

static __device__ __forceinline__ uint32_t st_value_column(const struct st_attention &at, uint32_t kv)
{
    return (at.heads + at.kv_heads + kv) * at.head_dim;
}

template <typename T>
static __device__ __forceinline__ struct st_head<T> st_head_at(const struct st_attention &at, T *packed, uint32_t stride,
                                                               uint32_t batch, uint32_t column, bool wide) {
    return {packed + static_cast<size_t>(batch) * at.seq * stride + column, stride, at.seq, at.head_dim, wide};
}

/* Whether rows with this stride from p on are, head by head, whole 16-byte groups. */
static inline bool
st_rows_are_wide(const void *p, uint32_t stride, uint32_t head_dim, strata_dtype dt)
{
    const uint32_t group = dt == STRATA_F32 ? 4u : 8u;

    return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % group == 0 && head_dim % group == 0;
}

/* --- tiles --- */

/* Starts to load rows first..first + ROWS - 1 of a head; st_copy_commit(), st_copy_wait() and a barrier complete it.
 * THREADS threads do so, of which this one is `thread`. */
template <strata_dtype DT, uint32_t WIDTH, uint32_t ROWS, uint32_t THREADS = ST_TILE_THREADS>
static __device__ __forceinline__ void st_tile_load(st_elem_t<DT> *tile, const struct st_head<const st_elem_t<DT>> &head,
                                                    uint32_t first, uint32_t thread = threadIdx.x)
{
    constexpr uint32_t group = st_group_elems<DT>, groups = WIDTH / group, stride = st_tile_stride<DT, WIDTH>;
    constexpr uint32_t turns = (ROWS * groups + THREADS - 1) / THREADS;
    constexpr bool same_column = THREADS % groups == 0; /* in all turns: compilers do not see it */

    if (head.wide) {
#pragma unroll
        for (uint32_t turn = 0; turn < turns; turn++) {
            const uint32_t i = turn * THREADS + thread, column = (same_column ? thread : i) % groups * group;
            const uint32_t row = same_column ? thread / groups + turn * (THREADS / groups) : i / groups;
            const bool inside = first + row < head.rows && column < head.columns;
            const uint32_t from_row = first + row < head.rows ? first + row : head.rows - 1; /* some address */
            const uint32_t from_column = column < head.columns ? column : 0;

            if (ROWS * groups % THREADS == 0 || i < ROWS * groups)
                st_copy_async<16>(tile + row * stride + column,
                                  head.first + static_cast<size_t>(from_row) * head.stride + from_column, inside);
        }
        return;
    }
#pragma unroll 1
    for (uint32_t i = thread; i < ROWS * WIDTH; i += THREADS) {
        const uint32_t row = i / WIDTH, column = i % WIDTH;
        const bool inside = first + row < head.rows && column < head.columns;

        tile[row * stride + column] =
            inside ? head.first[static_cast<size_t>(first + row) * head.stride + column] : st_elem_t<DT>(0);
    }
}

/* Stores columns column..column + COLUMNS - 1 of ROWS rows of a head from `first` on, from a tile's first columns; by one
 * warp. */
template <strata_dtype DT, uint32_t WIDTH, uint32_t ROWS, uint32_t COLUMNS>
static __device__ __forceinline__ void st_tile_store(const struct st_head<st_elem_t<DT>> &head, uint32_t first, uint32_t column,
                                                     const st_elem_t<DT> *tile)
{
    constexpr uint32_t group = st_group_elems<DT>, groups = COLUMNS / group, stride = st_tile_stride<DT, WIDTH>;
    const uint32_t lane = threadIdx.x % ST_WARP;

#pragma unroll 1
    for (uint32_t i = lane; i < ROWS * groups; i += ST_WARP) {
        const uint32_t row = i / groups, from = i % groups * group;
        st_elem_t<DT> *to = head.first + static_cast<size_t>(first + row) * head.stride + column + from;
        const st_elem_t<DT> *of = tile + row * stride + from;

        if (first + row >= head.rows)
            continue;
        if (head.wide && column + from < head.columns)
            *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(of);
        else
            for (uint32_t c = 0; c < group && column + from + c < head.columns; c++)
                to[c] = of[c];
    }
}

/* --- a warp's products --- */

/* sums += left times 16 columns, from b_row on, of 8 * ACROSS rows; b_row: this lane's address. */
template <strata_dtype DT, uint32_t WIDTH, uint32_t TALL, uint32_t ACROSS>
static __device__ __forceinline__ void st_columns_by_rows(float (&sums)[TALL][ACROSS][4], const uint32_t (&left)[TALL][4],
                                                          const uint16_t *b_row)
{
#pragma unroll
    for (uint32_t n = 0; n < ACROSS; n += 2) {
        uint32_t right[4];

        st_load_matrices(right, b_row + 8 * n * st_tile_stride<DT, WIDTH>);
#pragma unroll
        for (uint32_t m = 0; m < TALL; m++) {
            st_mma<DT>(sums[m][n], left[m], right[0], right[1]);
            st_mma<DT>(sums[m][n + 1], left[m], right[2], right[3]);
        }
    }
}

/* This lane's address of the first operand's, of the second's first 16 columns. */
template <strata_dtype DT, uint32_t WIDTH> static __device__ __forceinline__ const uint16_t *st_left_row(const uint16_t *a)
{
    return a + threadIdx.x % 16 * st_tile_stride<DT, WIDTH> + threadIdx.x % ST_WARP / 16 * 8;
}

template <strata_dtype DT, uint32_t WIDTH> static __device__ __forceinline__ const uint16_t *st_right_row(const uint16_t *b)
{
    const uint32_t lane = threadIdx.x % ST_WARP;

    return b + (lane % 8 + lane / 16 * 8) * st_tile_stride<DT, WIDTH> + lane / 8 % 2 * 8;
}

/* sums += a b^T over WIDTH columns: a the warp's 16 * TALL rows, b 8 * ACROSS rows. */
template <strata_dtype DT, uint32_t WIDTH, uint32_t TALL, uint32_t ACROSS>
static __device__ __forceinline__ void st_rows_by_rows(float (&sums)[TALL][ACROSS][4], const uint16_t *a, const uint16_t *b)
{
    const uint16_t *a_row = st_left_row<DT, WIDTH>(a), *b_row = st_right_row<DT, WIDTH>(b);

#pragma unroll
    for (uint32_t k = 0; k < WIDTH; k += 16) {
        uint32_t left[TALL][4];

#pragma unroll
        for (uint32_t m = 0; m < TALL; m++)
            st_load_matrices(left[m], a_row + 16 * m * st_tile_stride<DT, WIDTH> + k);
        st_columns_by_rows<DT, WIDTH>(sums, left, b_row + k);
    }
}

/* The warp's 16 * TALL rows of a tile, in registers. */
template <uint32_t WIDTH, uint32_t TALL> struct st_held {
    uint32_t columns[WIDTH / 16][TALL][4];
};

template <strata_dtype DT, uint32_t WIDTH, uint32_t TALL>
static __device__ __forceinline__ void st_hold(struct st_held<WIDTH, TALL> &held, const uint16_t *a)
{
    const uint16_t *a_row = st_left_row<DT, WIDTH>(a);

#pragma unroll
    for (uint32_t k = 0; k < WIDTH; k += 16)
#pragma unroll
        for (uint32_t m = 0; m < TALL; m++)
            st_load_matrices(held.columns[k / 16][m], a_row + 16 * m * st_tile_stride<DT, WIDTH> + k);
}

/* st_rows_by_rows() of held rows. */
template <strata_dtype DT, uint32_t WIDTH, uint32_t TALL, uint32_t ACROSS>
static __device__ __forceinline__ void st_held_by_rows(float (&sums)[TALL][ACROSS][4], const struct st_held<WIDTH, TALL> &held,
                                                       const uint16_t *b)
{
    const uint16_t *b_row = st_right_row<DT, WIDTH>(b);

#pragma unroll
    for (uint32_t k = 0; k < WIDTH; k += 16)
        st_columns_by_rows<DT, WIDTH>(sums, held.columns[k / 16], b_row + k);
}

/* Two adjacent tiles of sums as a first operand. */
template <strata_dtype DT>
static __device__ __forceinline__ void st_operand(uint32_t a[4], const float (&left)[4], const float (&right)[4])
{
    a[0] = st_round_pair<DT>(left[0], left[1]);
    a[1] = st_round_pair<DT>(left[2], left[3]);
    a[2] = st_round_pair<DT>(right[0], right[1]);
    a[3] = st_round_pair<DT>(right[2], right[3]);
}

/* sums += weights x: weights [16 * TALL][8 * DEEP] rounded to DT, x the first 8 * ACROSS columns from x on of 8 * DEEP rows. */
template <strata_dtype DT, uint32_t WIDTH, uint32_t TALL, uint32_t DEEP, uint32_t ACROSS>
static __device__ __forceinline__ void st_weights_by_rows(float (&sums)[TALL][ACROSS][4], const float (&weights)[TALL][DEEP][4],
                                                          const uint16_t *x)
{
    constexpr uint32_t stride = st_tile_stride<DT, WIDTH>;
    const uint32_t lane = threadIdx.x % ST_WARP;
    const uint16_t *x_row = x + lane % 16 * stride + lane / 16 * 8;

#pragma unroll
    for (uint32_t k = 0; k < DEEP; k += 2) {
        uint32_t left[TALL][4];

#pragma unroll
        for (uint32_t m = 0; m < TALL; m++)
            st_operand<DT>(left[m], weights[m][k], weights[m][k + 1]);
#pragma unroll
        for (uint32_t n = 0; n < ACROSS; n += 2) {
            uint32_t right[4];

            st_load_matrices_transposed(right, x_row + 8 * k * stride + 8 * n);
#pragma unroll
            for (uint32_t m = 0; m < TALL; m++) {
                st_mma<DT>(sums[m][n], left[m], right[0], right[1]);
                st_mma<DT>(sums[m][n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

/* Sets the scores of keys after their row to minus infinity.  row, key: those of this thread's first score. */
template <uint32_t TALL, uint32_t ACROSS>
static __device__ __forceinline__ void st_hide_later(float (&s)[TALL][ACROSS][4], uint32_t row, uint32_t key)
{
#pragma unroll
    for (uint32_t m = 0; m < TALL; m++)
#pragma unroll
        for (uint32_t n = 0; n < ACROSS; n++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                if (key + 8 * n + i % 2 > row + 16 * m + 8 * (i / 2))
                    s[m][n][i] = -ST_TILE_INFINITY;
}

/* --- which keys a row sees, and soft-capping: only BOUND kernels ask for more than all keys up to the row --- */

/* The first key that a row sees.  It never falls from row to row. */
static __device__ __forceinline__ uint32_t st_first_key(const struct st_attention &at, uint32_t batch, uint32_t row)
{
    uint32_t reach = row;

    if (at.positions != nullptr)
        reach = static_cast<uint32_t>(at.positions[static_cast<size_t>(batch) * at.seq + row]);
    if (at.window > 0 && reach >= at.window)
        reach = at.window - 1;
    return row - reach;
}

/* The same; rows past the sequence, whose results nobody takes, see everything. */
static __device__ __forceinline__ uint32_t st_first_key_or_0(const struct st_attention &at, uint32_t batch, uint32_t row)
{
    return row < at.seq ? st_first_key(at, batch, row) : 0;
}

/* One past the last row that sees a key up to `key`. */
static __device__ __forceinline__ uint32_t st_rows_end(const struct st_attention &at, uint32_t batch, uint32_t key)
{
    uint32_t seen = key, end = at.seq; /* row `seen` does, row `end` does not */

    if (at.window > 0 && at.seq - key > at.window)
        end = key + at.window;
    while (at.positions != nullptr && end - seen > 1) {
        const uint32_t middle = seen + (end - seen) / 2;

        if (st_first_key(at, batch, middle) <= key)
            seen = middle;
        else
            end = middle;
    }
    return end;
}

/* For this thread's row pairs: row + 16 m and 8 more. */
template <uint32_t TALL>
static __device__ __forceinline__ void st_first_keys(uint32_t (&low)[TALL][2], const struct st_attention &at, uint32_t batch,
                                                     uint32_t row)
{
#pragma unroll
    for (uint32_t m = 0; m < TALL; m++)
#pragma unroll
        for (uint32_t half = 0; half < 2; half++)
            low[m][half] = st_first_key_or_0(at, batch, row + 16 * m + 8 * half);
}

/* Sets the scores of keys before the first one that their row sees to minus infinity; key: that of this thread's first score. */
template <uint32_t TALL, uint32_t ACROSS>
static __device__ __forceinline__ void st_hide_before(float (&s)[TALL][ACROSS][4], const uint32_t (&low)[TALL][2], uint32_t key)
{
#pragma unroll
    for (uint32_t m = 0; m < TALL; m++)
#pragma unroll
        for (uint32_t n = 0; n < ACROSS; n++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                if (key + 8 * n + i % 2 < low[m][i / 2])
                    s[m][n][i] = -ST_TILE_INFINITY;
}

static __device__ __forceinline__ float st_capped(float score, float scale, float softcap)
{
    return softcap * tanhf(score * scale / softcap);
}

/* Turns products of queries and keys into capped scores, of which the scale is then 1. */
template <uint32_t TALL, uint32_t ACROSS>
static __device__ __forceinline__ void st_cap(float (&s)[TALL][ACROSS][4], float scale, float softcap)
{
#pragma unroll
    for (uint32_t m = 0; m < TALL; m++)
#pragma unroll
        for (uint32_t n = 0; n < ACROSS; n++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                s[m][n][i] = st_capped(s[m][n][i], scale, softcap);
}

/* Writes row i's sums times factor[i / 16][i / 8 % 2], rounded, to the warp's own part of a tile, and from there to memory. */
template <strata_dtype DT, uint32_t WIDTH, uint32_t TALL, uint32_t ACROSS>
static __device__ __forceinline__ void st_sums_store(const struct st_head<uint16_t> &head, uint32_t first, uint32_t column,
                                                     uint16_t *tile, const float (&sums)[TALL][ACROSS][4],
                                                     const float (&factor)[TALL][2])
{
    constexpr uint32_t stride = st_tile_stride<DT, WIDTH>;
    const uint32_t lane = threadIdx.x % ST_WARP;
    uint16_t *row = tile + lane / 4 * stride + lane % 4 * 2;

    __syncwarp();
#pragma unroll
    for (uint32_t m = 0; m < TALL; m++)
#pragma unroll
        for (uint32_t n = 0; n < ACROSS; n++)
#pragma unroll
            for (uint32_t half = 0; half < 2; half++)
                *reinterpret_cast<uint32_t *>(row + (16 * m + 8 * half) * stride + 8 * n) =
                    st_round_pair<DT>(sums[m][n][2 * half] * factor[m][half], sums[m][n][2 * half + 1] * factor[m][half]);
    __syncwarp();
    st_tile_store<DT, WIDTH, 16 * TALL, 8 * ACROSS>(head, first, column, tile);
}

/* --- fp32: 32 x 32 scores of a block; a thread has rows ty, ty + 16 and columns tx + 8 j, or groups of 4 columns tx + 8 j of
 * a head --- */

#define ST_F32_TILE   32u /* rows and columns */
#define ST_F32_ROWS   2u  /* of a thread */
#define ST_F32_ACROSS 4u
#define ST_F32_STRIDE (ST_F32_TILE + 4u) /* between rows of scores in shared memory */

static __device__ __forceinline__ uint32_t st_f32_row(uint32_t i)
{
    return threadIdx.x / 8 + 16 * i;
}

static __device__ __forceinline__ uint32_t st_f32_column(uint32_t j)
{
    return threadIdx.x % 8 + 8 * j;
}

/* scores = a b^T. */
template <uint32_t WIDTH>
static __device__ __forceinline__ void st_f32_rows_by_rows(float (&scores)[ST_F32_ROWS][ST_F32_ACROSS], const float *a,
                                                           const float *b)
{
    constexpr uint32_t stride = st_tile_stride<STRATA_F32, WIDTH>;

#pragma unroll
    for (uint32_t i = 0; i < ST_F32_ROWS; i++)
#pragma unroll
        for (uint32_t j = 0; j < ST_F32_ACROSS; j++)
            scores[i][j] = 0;
#pragma unroll 4
    for (uint32_t k = 0; k < WIDTH; k += 4) {
        float4 left[ST_F32_ROWS];

#pragma unroll
        for (uint32_t i = 0; i < ST_F32_ROWS; i++)
            left[i] = *reinterpret_cast<const float4 *>(a + st_f32_row(i) * stride + k);
#pragma unroll
        for (uint32_t j = 0; j < ST_F32_ACROSS; j++) {
            const float4 right = *reinterpret_cast<const float4 *>(b + st_f32_column(j) * stride + k);

#pragma unroll
            for (uint32_t i = 0; i < ST_F32_ROWS; i++) {
                scores[i][j] = fmaf(left[i].x, right.x, scores[i][j]);
                scores[i][j] = fmaf(left[i].y, right.y, scores[i][j]);
                scores[i][j] = fmaf(left[i].z, right.z, scores[i][j]);
                scores[i][j] = fmaf(left[i].w, right.w, scores[i][j]);
            }
        }
    }
}

/* sums += weights x, rows of x in order; `shared` [32][ST_F32_STRIDE] passes the weights to the threads of a row, which are in
 * one warp. */
template <uint32_t WIDTH>
static __device__ __forceinline__ void st_f32_weights_by_rows(float (&sums)[ST_F32_ROWS][WIDTH / 8],
                                                              const float (&weights)[ST_F32_ROWS][ST_F32_ACROSS], float *shared,
                                                              const float *x)
{
    constexpr uint32_t stride = st_tile_stride<STRATA_F32, WIDTH>;

    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < ST_F32_ROWS; i++)
#pragma unroll
        for (uint32_t j = 0; j < ST_F32_ACROSS; j++)
            shared[st_f32_row(i) * ST_F32_STRIDE + st_f32_column(j)] = weights[i][j];
    __syncwarp();
#pragma unroll 2
    for (uint32_t r = 0; r < ST_F32_TILE; r++) {
        float weight[ST_F32_ROWS];

#pragma unroll
        for (uint32_t i = 0; i < ST_F32_ROWS; i++)
            weight[i] = shared[st_f32_row(i) * ST_F32_STRIDE + r];
#pragma unroll
        for (uint32_t j = 0; j < WIDTH / 32; j++) {
            const float4 of = *reinterpret_cast<const float4 *>(x + r * stride + 4 * st_f32_column(j));

#pragma unroll
            for (uint32_t i = 0; i < ST_F32_ROWS; i++) {
                sums[i][4 * j] = fmaf(weight[i], of.x, sums[i][4 * j]);
                sums[i][4 * j + 1] = fmaf(weight[i], of.y, sums[i][4 * j + 1]);
                sums[i][4 * j + 2] = fmaf(weight[i], of.z, sums[i][4 * j + 2]);
                sums[i][4 * j + 3] = fmaf(weight[i], of.w, sums[i][4 * j + 3]);
            }
        }
    }
}

/* As st_cap. */
static __device__ __forceinline__ void st_f32_cap(float (&s)[ST_F32_ROWS][ST_F32_ACROSS], float scale, float softcap)
{
#pragma unroll
    for (uint32_t i = 0; i < ST_F32_ROWS; i++)
#pragma unroll
        for (uint32_t j = 0; j < ST_F32_ACROSS; j++)
            s[i][j] = st_capped(s[i][j], scale, softcap);
}

/* Writes a thread's sums times its rows' factors to rows of a head from `first` on. */
template <uint32_t WIDTH>
static __device__ __forceinline__ void st_f32_sums_store(const struct st_head<float> &head, uint32_t first,
                                                         const float (&sums)[ST_F32_ROWS][WIDTH / 8],
                                                         const float (&factor)[ST_F32_ROWS])
{
#pragma unroll
    for (uint32_t i = 0; i < ST_F32_ROWS; i++)
#pragma unroll
        for (uint32_t c = 0; c < WIDTH / 8; c++) {
            const uint32_t row = first + st_f32_row(i), column = 4 * st_f32_column(c / 4) + c % 4;

            if (row < head.rows && column < head.columns)
                head.first[static_cast<size_t>(row) * head.stride + column] = sums[i][c] * factor[i];
        }
}

/* --- launches --- */

static inline float st_attention_scale(const struct st_attention &at)
{
    return at.scale != 0.0f ? at.scale : 1.0f / sqrtf(static_cast<float>(at.head_dim));
}

/* Whether BOUND kernels are needed. */
static inline bool st_attention_is_bound(const struct st_attention &at)
{
    return at.window > 0 || at.softcap != 0.0f || at.positions != nullptr;
}

static inline cudaError_t st_attention_check(const struct st_attention &at)
{
    const uint64_t width = static_cast<uint64_t>(at.heads) * at.head_dim,
                   kv_width = static_cast<uint64_t>(at.kv_heads) * at.head_dim;

    if (at.heads == 0 || at.kv_heads == 0 || at.heads % at.kv_heads != 0 || at.head_dim == 0)
        return cudaErrorInvalidValue;
    if (at.qkv_stride < width + 2 * kv_width || at.out_stride < width || strata_dtype_bytes(at.dt) == 0)
        return cudaErrorInvalidValue;
    return at.head_dim > ST_CUDA_HEAD_MAX ? cudaErrorNotSupported : cudaSuccess;
}

/* Where to launch, and the shared memory that a block may have there. */
struct st_tile_queue {
    cudaStream_t stream;
    uint32_t shared_most;
};

/* Lets the kernel's blocks have as much shared memory as they ask for, where the GPU has it. */
template <typename Args> static cudaError_t st_tile_allow(void (*kernel)(Args), uint32_t shared_bytes, uint32_t shared_most)
{
    if (shared_bytes > shared_most)
        return cudaSuccess; /* st_tile_launch() refuses */
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(shared_bytes));
}

/* One block per head (or kv head) of a sample in x, per tile in y: the first tiles of all heads go first.  The kernel's shared
 * memory was allowed when the device was opened. */
template <typename Args>
static cudaError_t st_tile_launch(void (*kernel)(Args), uint32_t heads, uint32_t tiles, uint32_t shared_bytes,
                                  const struct st_tile_queue &queue, const Args &args)
{
    if (tiles > ST_GRID_Y_MAX || heads > INT32_MAX)
        return cudaErrorInvalidValue;
    if (shared_bytes > queue.shared_most)
        return cudaErrorNotSupported;
    ST_LAUNCH(kernel, dim3(heads, tiles), dim3(ST_TILE_THREADS), shared_bytes, queue.stream, args);
    return cudaGetLastError();
}

/* The widths that kernels are made for, in ascending order. */
template <uint32_t... WIDTHS> struct st_widths {
};
template <strata_dtype DT> struct st_widths_of {
    using type = st_widths<32, 64, 80, 96, 128, 192, 256>;
};
template <> struct st_widths_of<STRATA_F32> {
    using type = st_widths<64, 128, 256>;
};

/* Calls Launch<DT, width>::run() with the smallest width that holds a head. */
template <strata_dtype DT, template <strata_dtype, uint32_t> class Launch, typename Args, uint32_t... WIDTHS>
static cudaError_t st_by_width(const struct st_tile_queue &queue, const Args &args, st_widths<WIDTHS...>)
{
    const uint32_t d = args.at.head_dim;
    cudaError_t err = cudaErrorNotSupported;

    (void)((d <= WIDTHS && (err = Launch<DT, WIDTHS>::run(queue, args), true)) || ...);
    return err;
}

template <strata_dtype DT, template <strata_dtype, uint32_t> class Launch, uint32_t... WIDTHS>
static cudaError_t st_allow_widths(uint32_t shared_most, st_widths<WIDTHS...>)
{
    cudaError_t err = cudaSuccess;

    (void)(((err = Launch<DT, WIDTHS>::allow(shared_most)) == cudaSuccess) && ...);
    return err;
}

/* Calls allow() of every launch that st_launch_by_dtype() can choose. */
template <template <strata_dtype, uint32_t> class Launch> static cudaError_t st_allow_all(uint32_t shared_most)
{
    cudaError_t err = st_allow_widths<STRATA_F32, Launch>(shared_most, typename st_widths_of<STRATA_F32>::type());

    if (err == cudaSuccess)
        err = st_allow_widths<STRATA_BF16, Launch>(shared_most, typename st_widths_of<STRATA_BF16>::type());
    if (err == cudaSuccess)
        err = st_allow_widths<STRATA_F16, Launch>(shared_most, typename st_widths_of<STRATA_F16>::type());
    return err;
}

template <strata_dtype DT, template <strata_dtype, uint32_t> class Launch, typename Args>
static cudaError_t st_by_width_of(const struct st_tile_queue &queue, const Args &args)
{
    return st_by_width<DT, Launch>(queue, args, typename st_widths_of<DT>::type());
}

template <template <strata_dtype, uint32_t> class Launch, typename Args>
static cudaError_t st_launch_by_dtype(const struct st_tile_queue &queue, const Args &args)
{
    return args.at.dt == STRATA_BF16  ? st_by_width_of<STRATA_BF16, Launch>(queue, args)
           : args.at.dt == STRATA_F16 ? st_by_width_of<STRATA_F16, Launch>(queue, args)
                                      : st_by_width_of<STRATA_F32, Launch>(queue, args);
}

#endif

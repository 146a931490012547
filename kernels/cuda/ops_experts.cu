/* kernels/cuda/ops_experts.cu - the choice of experts, and the rows that go to them and back; their products: experts_matmul.cu.
 *
 * What is routed is read on the device: grids are as large as any routing needs, and blocks behind the last row end at once. */
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/elems.cuh"
#include <float.h>

#define THREADS      256u
#define ROW_THREADS  128u
#define ROW_WARPS    (ROW_THREADS / ST_WARP)
#define WARPS        (THREADS / ST_WARP)
#define WARP_THREADS (ROW_WARPS * ST_WARP) /* a warp for each of ROW_WARPS rows */

template <strata_dtype DT> static __device__ __forceinline__ float element(const void *tensor, uint64_t i)
{
    if (DT == STRATA_F32)
        return static_cast<const float *>(tensor)[i];
    return st_widen<DT>(static_cast<const uint16_t *>(tensor)[i]);
}

template <strata_dtype DT> static __device__ __forceinline__ float rounded(float x)
{
    return DT == STRATA_F32 ? x : st_widen<DT>(static_cast<uint16_t>(st_round_pair<DT>(x, 0.0f)));
}

template <strata_dtype DT> static __device__ __forceinline__ void put_element(void *tensor, uint64_t i, float x)
{
    if (DT == STRATA_F32)
        static_cast<float *>(tensor)[i] = x;
    else
        static_cast<uint16_t *>(tensor)[i] = static_cast<uint16_t>(st_round_pair<DT>(x, 0.0f));
}

static __device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (uint32_t step = ST_WARP / 2; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(ST_ALL_LANES, x, static_cast<int>(step)));
    return x;
}

static __device__ __forceinline__ uint32_t lane_of()
{
    return threadIdx.x % ST_WARP;
}

/* The row of this warp. */
static __device__ __forceinline__ uint64_t warp_row()
{
    return static_cast<uint64_t>(blockIdx.x) * ROW_WARPS + threadIdx.x / ST_WARP;
}

/* --- the choice: a warp for a row --- */

/* Bits that rise with the number, those of 0 and -0 being equal; NaN is larger than all. */
static __device__ __forceinline__ uint32_t rising(float x)
{
    const uint32_t bits = st_f32_bits(x + 0.0f);

    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* A logit and where it is: the larger one comes first, of equal ones that of lower index. */
static __device__ __forceinline__ uint64_t rank_of(float logit, uint32_t expert)
{
    return static_cast<uint64_t>(rising(logit)) << 32 | (0xffffffffu - expert);
}

/* The largest rank below `last`. */
template <strata_dtype DT>
static __device__ uint64_t next_rank(const struct st_route &route, const void *logits, uint64_t first, uint64_t last)
{
    uint64_t best = 0;

    for (uint32_t e = lane_of(); e < route.experts; e += ST_WARP) {
        const uint64_t rank = rank_of(element<DT>(logits, first + e), e);

        best = rank < last && rank > best ? rank : best;
    }
#pragma unroll
    for (uint32_t step = ST_WARP / 2; step > 0; step /= 2) {
        const uint64_t other = __shfl_xor_sync(ST_ALL_LANES, best, static_cast<int>(step));

        best = other > best ? other : best;
    }
    return best;
}

/* Lane 0: of what weights[k] holds, logits or probs, the weights. */
template <strata_dtype DT> static __device__ void end_weights(const struct st_route &route, float *weights)
{
    const float top = weights[0];
    float sum = 0;

    for (uint32_t j = 0; j < route.k; j++) {
        if (route.after)
            weights[j] = expf(weights[j] - top);
        sum += weights[j];
    }
    for (uint32_t j = 0; j < route.k; j++) {
        const float weight = route.after || route.divided ? weights[j] / sum : weights[j];

        weights[j] = route.round ? rounded<DT>(weight) : weight;
    }
}

template <strata_dtype DT>
static __global__ void __launch_bounds__(WARP_THREADS)
    route_choose(const struct st_route route, int32_t *ids, float *weights, float *probs, const void *logits)
{
    const uint64_t row = warp_row(), first = row * route.experts;
    float top = -FLT_MAX, sum = 0, inverse;
    uint64_t last = ~static_cast<uint64_t>(0);

    if (row >= route.rows)
        return;
    for (uint32_t e = lane_of(); e < route.experts; e += ST_WARP)
        top = fmaxf(top, element<DT>(logits, first + e));
    top = warp_max(top);
    for (uint32_t e = lane_of(); e < route.experts; e += ST_WARP)
        sum += expf(element<DT>(logits, first + e) - top);
    inverse = 1.0f / st_warp_sum(sum);
    for (uint32_t e = lane_of(); e < route.experts; e += ST_WARP)
        probs[first + e] = expf(element<DT>(logits, first + e) - top) * inverse;
    for (uint32_t j = 0; j < route.k; j++) {
        last = next_rank<DT>(route, logits, first, last);
        if (lane_of() == 0) {
            const uint32_t e = 0xffffffffu - static_cast<uint32_t>(last);
            const float logit = element<DT>(logits, first + e);

            ids[row * route.k + j] = static_cast<int32_t>(e);
            weights[row * route.k + j] = route.after ? logit : expf(logit - top) * inverse;
        }
    }
    if (lane_of() == 0)
        end_weights<DT>(route, weights + row * route.k);
}

cudaError_t st_cuda_route_choose(cudaStream_t stream, const struct st_route *route, int32_t *ids, float *weights, float *probs,
                                 const void *logits)
{
    if (route->rows == 0)
        return cudaSuccess;
    return st_by_dtype(route->dt, [&](auto tag) {
        ST_LAUNCH((route_choose<decltype(tag)::value>), st_blocks(route->rows, ROW_WARPS), WARP_THREADS, 0, stream, *route, ids,
                  weights, probs, logits);
    });
}

static __device__ bool is_padding(const struct st_route &route, uint64_t row)
{
    return route.targets != nullptr && route.targets[row] == STRATA_TARGET_PADDING;
}

/* The rows that an auxiliary loss counts. */
static __device__ double rows_counted(const struct st_route &route, const int64_t *counts)
{
    int64_t choices = 0;

    for (uint32_t e = 0; e < route.experts; e++)
        choices += counts[e];
    return static_cast<double>(choices / route.k);
}

/* The formulas are those of kernels/ops/ops_experts.inc. */
static __device__ float aux_of_choice(const struct st_route &route, const int64_t *counts, float aux)
{
    const double rows = rows_counted(route, counts);

    return rows > 0 ? static_cast<float>(static_cast<double>(aux) * route.experts / (rows * rows)) : 0.0f;
}

template <strata_dtype DT>
static __global__ void __launch_bounds__(WARP_THREADS)
    route_backward(const struct st_route route, void *dlogits, const float *dweights, const float *probs, const int32_t *ids,
                   const float *weights, const int64_t *counts, float aux)
{
    const uint64_t row = warp_row(), first = row * route.experts;
    const float *const p = probs + first, *const dw = dweights + row * route.k, *const w = weights + row * route.k;
    const int32_t *const id = ids + row * route.k;
    float s = 0, dot = 0, mean = 0;

    if (row >= route.rows)
        return;
    if (counts != nullptr && is_padding(route, row))
        counts = nullptr;
    if (counts != nullptr)
        aux = aux_of_choice(route, counts, aux);
    for (uint32_t e = lane_of(); e < route.experts && counts != nullptr; e += ST_WARP)
        mean += p[e] * (aux * static_cast<float>(counts[e]));
    mean = st_warp_sum(mean);
    for (uint32_t j = 0; j < route.k; j++)
        s += p[id[j]];
    for (uint32_t j = 0; j < route.k; j++)
        dot += dw[j] * (route.after ? w[j] : p[id[j]] / s);
    for (uint32_t j = 0; j < route.k && !route.after; j++)
        mean += p[id[j]] * (route.divided ? (dw[j] - dot) / s : dw[j]);
    for (uint32_t e = lane_of(); e < route.experts; e += ST_WARP) {
        float g = counts != nullptr ? aux * static_cast<float>(counts[e]) : 0.0f, chosen = 0;

        for (uint32_t j = 0; j < route.k; j++) {
            if (id[j] != static_cast<int32_t>(e))
                continue;
            if (route.after)
                chosen = w[j] * (dw[j] - dot);
            else
                g += route.divided ? (dw[j] - dot) / s : dw[j];
        }
        put_element<DT>(dlogits, first + e, p[e] * (g - mean) + chosen);
    }
}

cudaError_t st_cuda_route_backward(cudaStream_t stream, const struct st_route *route, void *dlogits, const float *dweights,
                                   const float *probs, const int32_t *ids, const float *weights, const int64_t *counts, float aux)
{
    if (route->rows == 0)
        return cudaSuccess;
    return st_by_dtype(route->dt, [&](auto tag) {
        ST_LAUNCH((route_backward<decltype(tag)::value>), st_blocks(route->rows, ROW_WARPS), WARP_THREADS, 0, stream, *route,
                  dlogits, dweights, probs, ids, weights, counts, aux);
    });
}

/* --- the order: a warp for an expert walks all choices --- */

static __global__ void __launch_bounds__(ST_WARP) count_choices(int32_t *offsets, const int32_t *ids, uint64_t choices)
{
    const int32_t e = static_cast<int32_t>(blockIdx.x);
    int32_t count = 0;

    for (uint64_t first = 0; first < choices; first += ST_WARP) {
        const uint64_t i = first + lane_of();

        count += __popc(__ballot_sync(ST_ALL_LANES, i < choices && ids[i] == e));
    }
    if (lane_of() == 0)
        offsets[1 + e] = count;
}

static __global__ void add_counts(int32_t *offsets, uint32_t experts)
{
    int32_t sum = 0;

    offsets[0] = 0;
    for (uint32_t e = 1; e <= experts; e++) {
        sum += offsets[e];
        offsets[e] = sum;
    }
}

/* places: for now in the order of the choices. */
static __global__ void __launch_bounds__(ST_WARP)
    place_choices(int32_t *order, int32_t *places, const int32_t *offsets, const int32_t *ids, uint64_t choices)
{
    const int32_t e = static_cast<int32_t>(blockIdx.x);
    int32_t next = offsets[e];

    for (uint64_t first = 0; first < choices; first += ST_WARP) {
        const uint64_t i = first + lane_of();
        const bool mine = i < choices && ids[i] == e;
        const uint32_t all = __ballot_sync(ST_ALL_LANES, mine);

        if (mine) {
            const int32_t place = next + __popc(all & ((1u << lane_of()) - 1u));

            order[place] = static_cast<int32_t>(i);
            places[i] = place;
        }
        next += __popc(all);
    }
}

static __global__ void __launch_bounds__(THREADS) sort_places(int32_t *places, uint32_t rows, uint32_t k)
{
    const uint64_t row = static_cast<uint64_t>(blockIdx.x) * THREADS + threadIdx.x;
    int32_t *const place = places + row * k;

    for (uint32_t j = 1; row < rows && j < k; j++) {
        const int32_t own = place[j];
        uint32_t i = j;

        for (; i > 0 && place[i - 1] > own; i--)
            place[i] = place[i - 1];
        place[i] = own;
    }
}

cudaError_t st_cuda_route_sort(cudaStream_t stream, const struct st_route *route, int32_t *order, int32_t *places,
                               int32_t *offsets, const int32_t *ids)
{
    const uint64_t choices = static_cast<uint64_t>(route->rows) * route->k;
    cudaError_t err;

    ST_LAUNCH(count_choices, route->experts, ST_WARP, 0, stream, offsets, ids, choices);
    if ((err = cudaGetLastError()) != cudaSuccess)
        return err;
    ST_LAUNCH(add_counts, 1, 1, 0, stream, offsets, route->experts);
    if ((err = cudaGetLastError()) != cudaSuccess || choices == 0)
        return err;
    ST_LAUNCH(place_choices, route->experts, ST_WARP, 0, stream, order, places, offsets, ids, choices);
    if ((err = cudaGetLastError()) != cudaSuccess)
        return err;
    ST_LAUNCH(sort_places, st_blocks(route->rows, THREADS), THREADS, 0, stream, places, route->rows, route->k);
    return cudaGetLastError();
}

/* A block for an expert; its threads' sums are added in index order. */
static __global__ void __launch_bounds__(THREADS)
    route_totals(const struct st_route route, int64_t *counts, double *sums, const int32_t *ids, const float *probs)
{
    __shared__ double part[THREADS];
    __shared__ int32_t part_count[THREADS];
    const uint32_t e = blockIdx.x;
    double sum = 0;
    int32_t count = 0;

    for (uint64_t row = threadIdx.x; row < route.rows; row += THREADS) {
        if (is_padding(route, row))
            continue;
        sum += static_cast<double>(probs[row * route.experts + e]);
        for (uint32_t j = 0; j < route.k; j++)
            count += ids[row * route.k + j] == static_cast<int32_t>(e);
    }
    part[threadIdx.x] = sum;
    part_count[threadIdx.x] = count;
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    for (uint32_t i = 1; i < THREADS; i++) {
        sum += part[i];
        count += part_count[i];
    }
    sums[e] += sum;
    counts[e] += count;
}

cudaError_t st_cuda_route_totals(cudaStream_t stream, const struct st_route *route, int64_t *counts, double *sums,
                                 const int32_t *ids, const float *probs)
{
    ST_LAUNCH(route_totals, route->experts, THREADS, 0, stream, *route, counts, sums, ids, probs);
    return cudaGetLastError();
}

static __global__ void route_loss(const struct st_route route, double *loss, const int64_t *counts, const double *sums)
{
    const double rows = rows_counted(route, counts);
    double sum = 0;

    for (uint32_t e = 0; e < route.experts; e++)
        sum += static_cast<double>(counts[e]) * sums[e];
    *loss = rows > 0 ? route.experts * sum / (rows * rows) : 0.0;
}

cudaError_t st_cuda_route_loss(cudaStream_t stream, const struct st_route *route, double *loss, const int64_t *counts,
                               const double *sums)
{
    ST_LAUNCH(route_loss, 1, 1, 0, stream, *route, loss, counts, sums);
    return cudaGetLastError();
}

/* --- rows of a slice: a block for a row --- */

static __device__ __forceinline__ uint32_t rows_of(const struct st_experts &of, const int32_t *offsets)
{
    return static_cast<uint32_t>(offsets[of.first + of.count] - offsets[of.first]);
}

/* As many as any routing gives a slice. */
static uint32_t rows_most(const struct st_experts *of)
{
    return of->rows * (of->k < of->count ? of->k : of->count);
}

template <strata_dtype DT>
static __global__ void __launch_bounds__(ROW_THREADS)
    gather(const struct st_experts of, void *to, const void *x, const int32_t *order, const int32_t *offsets, uint32_t cols,
           bool wide)
{
    const uint64_t row = blockIdx.x;

    if (row >= rows_of(of, offsets))
        return;
    const uint64_t from = static_cast<uint64_t>(order[offsets[of.first] + static_cast<int32_t>(row)]) / of.k;

    for (uint64_t c = threadIdx.x * ST_RUN; c < cols; c += ROW_THREADS * ST_RUN) {
        const uint32_t count = st_run_count(c, cols);

        st_put<DT>(to, row * cols + c, st_fetch<DT>(x, from * cols + c, count, wide), count, wide);
    }
}

cudaError_t st_cuda_experts_gather(cudaStream_t stream, const struct st_experts *of, void *to, const void *x,
                                   const int32_t *order, const int32_t *offsets, uint32_t cols, strata_dtype dt)
{
    const bool wide = cols % ST_RUN == 0 && st_are_aligned({to, x});

    if (rows_most(of) == 0)
        return cudaSuccess;
    return st_by_dtype(dt, [&](auto tag) {
        ST_LAUNCH((gather<decltype(tag)::value>), rows_most(of), ROW_THREADS, 0, stream, *of, to, x, order, offsets, cols, wide);
    });
}

template <strata_dtype TO, strata_dtype FROM>
static __global__ void __launch_bounds__(ROW_THREADS) cast_rows(const struct st_experts of, void *to, const void *from,
                                                                const int32_t *offsets, uint32_t cols, float factor, bool wide)
{
    const uint64_t row = blockIdx.x;

    if (row >= rows_of(of, offsets))
        return;
    for (uint64_t c = threadIdx.x * ST_RUN; c < cols; c += ROW_THREADS * ST_RUN) {
        const uint32_t count = st_run_count(c, cols);
        float x[ST_RUN];

        st_load<FROM>(x, from, row * cols + c, count, wide);
#pragma unroll
        for (uint32_t i = 0; i < ST_RUN; i++)
            x[i] = TO == FROM ? __fmul_rn(x[i], factor) : x[i];
        st_store<TO>(to, row * cols + c, x, count, wide);
    }
}

cudaError_t st_cuda_experts_cast(cudaStream_t stream, const struct st_expert_cast *cast, void *to, const void *from,
                                 const int32_t *offsets)
{
    const struct st_experts *of = &cast->of;
    const bool wide = cast->cols % ST_RUN == 0 && st_are_aligned({to, from});

    if (cast->to != STRATA_F32 && cast->from != STRATA_F32)
        return cudaErrorInvalidValue;
    if (rows_most(of) == 0)
        return cudaSuccess;
    return st_by_dtype(cast->to == STRATA_F32 ? cast->from : cast->to, [&](auto tag) {
        constexpr strata_dtype dt = decltype(tag)::value;

        if (cast->to == STRATA_F32)
            ST_LAUNCH((cast_rows<STRATA_F32, dt>), rows_most(of), ROW_THREADS, 0, stream, *of, to, from, offsets, cast->cols,
                      cast->factor, wide);
        else
            ST_LAUNCH((cast_rows<dt, STRATA_F32>), rows_most(of), ROW_THREADS, 0, stream, *of, to, from, offsets, cast->cols,
                      cast->factor, wide);
    });
}

/* A thread for a column of an expert, rows in index order. */
template <strata_dtype DT>
static __global__ void __launch_bounds__(THREADS) bias_backward(const struct st_experts of, float *dbias, uint64_t stride,
                                                                const void *dy, const int32_t *offsets, uint32_t cols)
{
    const uint32_t c = blockIdx.x * THREADS + threadIdx.x, e = blockIdx.y;
    const int32_t base = offsets[of.first], first = offsets[of.first + e] - base, end = offsets[of.first + e + 1] - base;
    float sum = 0;

    if (c >= cols)
        return;
    for (int32_t row = first; row < end; row++)
        sum += element<DT>(dy, static_cast<uint64_t>(row) * cols + c);
    dbias[e * stride + c] += sum;
}

cudaError_t st_cuda_experts_bias_backward(cudaStream_t stream, const struct st_experts *of, float *dbias, uint64_t stride,
                                          const void *dy, const int32_t *offsets, uint32_t cols, strata_dtype dt)
{
    const dim3 grid(st_blocks(cols, THREADS), of->count);

    if (cols == 0)
        return cudaSuccess;
    return st_by_dtype(dt, [&](auto tag) {
        ST_LAUNCH((bias_backward<decltype(tag)::value>), grid, THREADS, 0, stream, *of, dbias, stride, dy, offsets, cols);
    });
}

/* --- gates --- */

struct gate {
    float value, slope; /* of the gate's half */
    float up;           /* what it is multiplied by */
    bool gate_moves, up_moves;
};

/* alpha 1 and no limit: silu.  No rounding is left to the compiler, so that backward's y has forward's bits. */
static __device__ __forceinline__ struct gate gate_of(const struct st_gate &s, float g, float u)
{
    const bool clamped = s.limit != 0.0f;
    const float alpha = clamped ? s.alpha : 1.0f, x = clamped ? fminf(g, s.limit) : g;
    const float e = expf(-__fmul_rn(alpha, x)), share = 1.0f / __fadd_rn(e, 1.0f), value = __fmul_rn(x, share);
    const float slope = share + alpha * value * (fminf(e, FLT_MAX) * share);

    if (!clamped)
        return {value, slope, u, true, true};
    return {value, slope, __fadd_rn(fmaxf(fminf(u, s.limit), -s.limit), 1.0f), g <= s.limit, fabsf(u) <= s.limit};
}

/* Gates and ups of the run of columns from c on: each from its half of the row, or alternating. */
template <strata_dtype DT>
static __device__ __forceinline__ void load_halves(float g[ST_RUN], float u[ST_RUN], const void *gate_up, uint64_t row_at,
                                                   uint64_t c, uint32_t ffn, bool alternate, bool wide)
{
    float both[2 * ST_RUN];

    if (!alternate) {
        st_load<DT>(g, gate_up, row_at + c, st_run_count(c, ffn), wide);
        st_load<DT>(u, gate_up, row_at + ffn + c, st_run_count(c, ffn), wide);
        return;
    }
    st_load<DT>(both, gate_up, row_at + 2 * c, st_run_count(2 * c, 2 * ffn), wide);
    st_load<DT>(both + ST_RUN, gate_up, row_at + 2 * c + ST_RUN, st_run_count(2 * c + ST_RUN, 2 * ffn), wide);
#pragma unroll
    for (uint32_t i = 0; i < ST_RUN; i++) {
        g[i] = both[2 * i];
        u[i] = both[2 * i + 1];
    }
}

template <strata_dtype DT>
static __device__ __forceinline__ void store_halves(void *gate_up, const float g[ST_RUN], const float u[ST_RUN], uint64_t row_at,
                                                    uint64_t c, uint32_t ffn, bool alternate, bool wide)
{
    float both[2 * ST_RUN];

    if (!alternate) {
        st_store<DT>(gate_up, row_at + c, g, st_run_count(c, ffn), wide);
        st_store<DT>(gate_up, row_at + ffn + c, u, st_run_count(c, ffn), wide);
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < ST_RUN; i++) {
        both[2 * i] = g[i];
        both[2 * i + 1] = u[i];
    }
    st_store<DT>(gate_up, row_at + 2 * c, both, st_run_count(2 * c, 2 * ffn), wide);
    st_store<DT>(gate_up, row_at + 2 * c + ST_RUN, both + ST_RUN, st_run_count(2 * c + ST_RUN, 2 * ffn), wide);
}

template <bool BACKWARD, strata_dtype DT>
static __global__ void __launch_bounds__(ROW_THREADS)
    gated(const struct st_experts of, const struct st_gate s, void *dgate_up, void *y, const void *dy, const void *gate_up,
          const int32_t *offsets, uint32_t ffn, bool wide)
{
    const uint64_t row = blockIdx.x;

    if (row >= rows_of(of, offsets))
        return;
    for (uint64_t c = threadIdx.x * ST_RUN; c < ffn; c += ROW_THREADS * ST_RUN) {
        const uint32_t count = st_run_count(c, ffn);
        const uint64_t at = row * ffn + c;
        float g[ST_RUN], u[ST_RUN], d[ST_RUN] = {}, out[ST_RUN];

        load_halves<DT>(g, u, gate_up, 2 * row * ffn, c, ffn, s.limit != 0.0f, wide);
        if (BACKWARD)
            st_load<DT>(d, dy, at, count, wide);
#pragma unroll
        for (uint32_t i = 0; i < ST_RUN; i++) {
            const struct gate a = gate_of(s, g[i], u[i]);

            out[i] = __fmul_rn(a.value, a.up);
            g[i] = a.gate_moves ? d[i] * a.up * a.slope : 0.0f;
            u[i] = a.up_moves ? d[i] * a.value : 0.0f;
        }
        if (BACKWARD)
            store_halves<DT>(dgate_up, g, u, 2 * row * ffn, c, ffn, s.limit != 0.0f, wide);
        if (y != nullptr)
            st_store<DT>(y, at, out, count, wide);
    }
}

template <bool BACKWARD>
static cudaError_t launch_gated(cudaStream_t stream, const struct st_experts *of, const struct st_gate *gate, void *dgate_up,
                                void *y, const void *dy, const void *gate_up, const int32_t *offsets, uint32_t ffn,
                                strata_dtype dt)
{
    const bool wide = ffn % ST_RUN == 0 && st_are_aligned({dgate_up, y, dy, gate_up});

    if (gate->limit == 0.0f && gate->activation != ST_SILU)
        return cudaErrorInvalidValue;
    if (rows_most(of) == 0)
        return cudaSuccess;
    return st_by_dtype(dt, [&](auto tag) {
        ST_LAUNCH((gated<BACKWARD, decltype(tag)::value>), rows_most(of), ROW_THREADS, 0, stream, *of, *gate, dgate_up, y, dy,
                  gate_up, offsets, ffn, wide);
    });
}

cudaError_t st_cuda_experts_gated_forward(cudaStream_t stream, const struct st_experts *of, const struct st_gate *gate, void *y,
                                          const void *gate_up, const int32_t *offsets, uint32_t ffn, strata_dtype dt)
{
    return launch_gated<false>(stream, of, gate, nullptr, y, nullptr, gate_up, offsets, ffn, dt);
}

cudaError_t st_cuda_experts_gated_backward(cudaStream_t stream, const struct st_experts *of, const struct st_gate *gate,
                                           void *dgate_up, void *y, const void *dy, const void *gate_up, const int32_t *offsets,
                                           uint32_t ffn, strata_dtype dt)
{
    return launch_gated<true>(stream, of, gate, dgate_up, y, dy, gate_up, offsets, ffn, dt);
}

/* --- weighing --- */

/* A block for a row: its places rise with its experts. */
template <strata_dtype DT>
static __global__ void __launch_bounds__(ROW_THREADS)
    add_rows(const struct st_experts of, float *sum, const void *y, const float *weights, const int32_t *order,
             const int32_t *places, const int32_t *offsets, uint32_t cols, bool wide)
{
    const uint64_t row = blockIdx.x;
    const int32_t first = offsets[of.first], end = offsets[of.first + of.count];

    for (uint64_t c = threadIdx.x * ST_RUN; c < cols; c += ROW_THREADS * ST_RUN) {
        const uint32_t count = st_run_count(c, cols);
        float total[ST_RUN], in[ST_RUN];

        st_load<STRATA_F32>(total, sum, row * cols + c, count, wide);
        for (uint32_t j = 0; j < of.k; j++) {
            const int32_t place = places[row * of.k + j];

            if (place < first || place >= end)
                continue;
            const float weight = weights != nullptr ? weights[order[place]] : 1.0f;

            st_load<DT>(in, y, static_cast<uint64_t>(place - first) * cols + c, count, wide);
#pragma unroll
            for (uint32_t i = 0; i < ST_RUN; i++)
                total[i] = fmaf(weight, in[i], total[i]);
        }
        st_store<STRATA_F32>(sum, row * cols + c, total, count, wide);
    }
}

cudaError_t st_cuda_experts_add(cudaStream_t stream, const struct st_experts *of, float *sum, const void *y, const float *weights,
                                const int32_t *order, const int32_t *places, const int32_t *offsets, uint32_t cols,
                                strata_dtype dt)
{
    const bool wide = cols % ST_RUN == 0 && st_are_aligned({sum, y});

    if (of->rows == 0)
        return cudaSuccess;
    return st_by_dtype(dt, [&](auto tag) {
        ST_LAUNCH((add_rows<decltype(tag)::value>), of->rows, ROW_THREADS, 0, stream, *of, sum, y, weights, order, places,
                  offsets, cols, wide);
    });
}

/* dy = weight * d of a row; returns the sum of d * y in every thread.  Reads before it writes: dy may be y. */
template <strata_dtype DT>
static __device__ float weigh_backward(void *dy, uint64_t dy_at, const void *d, uint64_t d_at, const void *y, float weight,
                                       uint32_t cols, bool wide, float *part)
{
    float dot = 0;

    for (uint64_t c = threadIdx.x * ST_RUN; c < cols; c += ROW_THREADS * ST_RUN) {
        const uint32_t count = st_run_count(c, cols);
        float in[ST_RUN], given[ST_RUN];

        st_load<DT>(in, y, dy_at + c, count, wide);
        st_load<DT>(given, d, d_at + c, count, wide);
#pragma unroll
        for (uint32_t i = 0; i < ST_RUN; i++) {
            dot = fmaf(given[i], in[i], dot);
            given[i] *= weight;
        }
        st_store<DT>(dy, dy_at + c, given, count, wide);
    }
    return st_group_sum<ROW_WARPS>(dot, part);
}

template <strata_dtype DT>
static __global__ void __launch_bounds__(ROW_THREADS)
    add_backward(const struct st_experts of, void *dy, float *dweights, const void *d, const void *y, const float *weights,
                 const int32_t *order, const int32_t *offsets, uint32_t cols, bool wide)
{
    __shared__ float part[ROW_WARPS];
    const uint64_t row = blockIdx.x;

    if (row >= rows_of(of, offsets))
        return;
    const uint64_t choice = static_cast<uint64_t>(order[offsets[of.first] + static_cast<int32_t>(row)]);
    const float dot = weigh_backward<DT>(dy, row * cols, d, choice / of.k * cols, y, weights[choice], cols, wide, part);

    if (threadIdx.x == 0)
        dweights[choice] = dot;
}

cudaError_t st_cuda_experts_add_backward(cudaStream_t stream, const struct st_experts *of, void *dy, float *dweights,
                                         const void *d, const void *y, const float *weights, const int32_t *order,
                                         const int32_t *offsets, uint32_t cols, strata_dtype dt)
{
    const bool wide = cols % ST_RUN == 0 && st_are_aligned({dy, d, y});

    if (rows_most(of) == 0)
        return cudaSuccess;
    return st_by_dtype(dt, [&](auto tag) {
        ST_LAUNCH((add_backward<decltype(tag)::value>), rows_most(of), ROW_THREADS, 0, stream, *of, dy, dweights, d, y, weights,
                  order, offsets, cols, wide);
    });
}

/* --- the shared expert --- */

template <strata_dtype DT> static __device__ __forceinline__ float shared_gate(const void *logits, uint64_t row)
{
    return logits != nullptr ? 1.0f / (expf(-element<DT>(logits, row)) + 1.0f) : 1.0f;
}

template <strata_dtype DT>
static __global__ void __launch_bounds__(ROW_THREADS)
    shared_forward(float *sum, const void *y, const void *logits, uint32_t cols, bool wide)
{
    const uint64_t row = blockIdx.x;
    const float gate = shared_gate<DT>(logits, row);

    for (uint64_t c = threadIdx.x * ST_RUN; c < cols; c += ROW_THREADS * ST_RUN) {
        const uint32_t count = st_run_count(c, cols);
        float in[ST_RUN];

        st_load<DT>(in, y, row * cols + c, count, wide);
#pragma unroll
        for (uint32_t i = 0; i < ST_RUN; i++)
            in[i] *= gate;
        st_store<STRATA_F32>(sum, row * cols + c, in, count, wide);
    }
}

cudaError_t st_cuda_shared_forward(cudaStream_t stream, float *sum, const void *y, const void *logits, uint32_t rows,
                                   uint32_t cols, strata_dtype dt)
{
    const bool wide = cols % ST_RUN == 0 && st_are_aligned({sum, y});

    if (rows == 0)
        return cudaSuccess;
    return st_by_dtype(dt, [&](auto tag) {
        ST_LAUNCH((shared_forward<decltype(tag)::value>), rows, ROW_THREADS, 0, stream, sum, y, logits, cols, wide);
    });
}

template <strata_dtype DT>
static __global__ void __launch_bounds__(ROW_THREADS)
    shared_backward(void *dy, void *dlogits, const void *d, const void *y, const void *logits, uint32_t cols, bool wide)
{
    __shared__ float part[ROW_WARPS];
    const uint64_t row = blockIdx.x, at = row * cols;
    const float gate = shared_gate<DT>(logits, row);
    const float dot = weigh_backward<DT>(dy, at, d, at, y, gate, cols, wide, part);

    if (threadIdx.x == 0 && dlogits != nullptr)
        put_element<DT>(dlogits, row, dot * (gate * (1.0f - gate)));
}

cudaError_t st_cuda_shared_backward(cudaStream_t stream, void *dy, void *dlogits, const void *d, const void *y,
                                    const void *logits, uint32_t rows, uint32_t cols, strata_dtype dt)
{
    const bool wide = cols % ST_RUN == 0 && st_are_aligned({dy, d, y});

    if (rows == 0)
        return cudaSuccess;
    return st_by_dtype(dt, [&](auto tag) {
        ST_LAUNCH((shared_backward<decltype(tag)::value>), rows, ROW_THREADS, 0, stream, dy, dlogits, d, y, logits, cols, wide);
    });
}

/* --- clipping: x, or what is of dx where x is within --- */

template <bool BACKWARD, strata_dtype DT>
static __global__ void __launch_bounds__(ROW_THREADS)
    clip(void *to, const void *x, float limit, uint32_t cols, uint32_t stride, bool wide)
{
    const uint64_t row = blockIdx.x;
    const float end = rounded<DT>(limit);

    for (uint64_t c = threadIdx.x * ST_RUN; c < cols; c += ROW_THREADS * ST_RUN) {
        const uint32_t count = st_run_count(c, cols);
        float in[ST_RUN], out[ST_RUN];

        st_load<DT>(in, x, row * stride + c, count, wide);
        st_load<DT>(out, to, row * stride + c, count, wide);
#pragma unroll
        for (uint32_t i = 0; i < ST_RUN; i++) {
            if (BACKWARD)
                out[i] = in[i] >= end || in[i] <= -end ? 0.0f : out[i];
            else
                out[i] = in[i] > limit ? limit : in[i] < -limit ? -limit : in[i];
        }
        st_store<DT>(to, row * stride + c, out, count, wide);
    }
}

template <bool BACKWARD>
static cudaError_t launch_clip(cudaStream_t stream, void *to, const void *x, float limit, uint32_t rows, uint32_t cols,
                               uint32_t stride, strata_dtype dt)
{
    const bool wide = stride % ST_RUN == 0 && st_are_aligned({to, x});

    if (rows == 0)
        return cudaSuccess;
    return st_by_dtype(dt, [&](auto tag) {
        ST_LAUNCH((clip<BACKWARD, decltype(tag)::value>), rows, ROW_THREADS, 0, stream, to, x, limit, cols, stride, wide);
    });
}

cudaError_t st_cuda_clip(cudaStream_t stream, void *x, float limit, uint32_t rows, uint32_t cols, uint32_t stride,
                         strata_dtype dt)
{
    return launch_clip<false>(stream, x, x, limit, rows, cols, stride, dt);
}

cudaError_t st_cuda_clip_backward(cudaStream_t stream, void *dx, const void *x, float limit, uint32_t rows, uint32_t cols,
                                  uint32_t stride, strata_dtype dt)
{
    return launch_clip<true>(stream, dx, x, limit, rows, cols, stride, dt);
}

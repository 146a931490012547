/* kernels/cuda/ops_pointwise.cu - gelu, SwiGLU, add and rotary positions: a thread takes a run of eight elements.
 *
 * A thread loads everything it needs before it uses any of it, so that the loads are in flight together. */
#include "kernels/cuda/elems.cuh"
#include "kernels/cuda/cuda_ops.h"

#define THREADS 256u

/* 2 u = 2 sqrt(2/pi) (x + 0.044715 x^3) */
#define GELU_2U_SCALE 1.5957691216057308f
#define GELU_CUBE     0.044715f

/* Gradients clamp the argument of exp to this: e stays finite, and the error is below 1e-34. */
#define EXP_ARGUMENT_MOST 80.0f

/* --- one element: as in kernels/ops/ops_pointwise.inc --- */

static __device__ float gelu_2u(float x)
{
    return x * GELU_2U_SCALE * (x * x * GELU_CUBE + 1.0f);
}

/* x (1 + tanh u) / 2 = x / (1 + e), e = exp(-2u) */
static __device__ float gelu_value(float x)
{
    return x / (expf(-gelu_2u(x)) + 1.0f);
}

/* s + x s (1 - s) 2u', s = 1 / (1 + e); 1 - s = e s without cancellation. */
static __device__ float gelu_slope(float x)
{
    const float e = expf(-fmaxf(-EXP_ARGUMENT_MOST, gelu_2u(x)));
    const float s = 1.0f / (e + 1.0f);
    const float two_du = (x * x * (3.0f * GELU_CUBE) + 1.0f) * GELU_2U_SCALE;

    return s + x * s * (e * s) * two_du;
}

static __device__ float swiglu_value(float gate, float up)
{
    return gate / (expf(-gate) + 1.0f) * up;
}

/* With s = 1 / (1 + e), e = exp(-gate): silu = gate s, silu' = s + gate s (1 - s), 1 - s = e s. */
static __device__ void swiglu_slopes(float *dgate, float *dup, float dy, float gate, float up)
{
    const float e = expf(-fmaxf(-EXP_ARGUMENT_MOST, gate));
    const float s = 1.0f / (e + 1.0f), silu = gate * s;

    *dgate = dy * up * (s + silu * (e * s));
    *dup = dy * silu;
}

/* --- arrays of elements --- */

enum operation { GELU_FORWARD, GELU_BACKWARD, ADD };

/* y = gelu(a), a * gelu'(b) or a + b.  Reads its elements before it writes them: y may be a or b. */
template <enum operation OP, strata_dtype DT>
static __global__ void __launch_bounds__(THREADS) pointwise(void *y, const void *a, const void *b, uint64_t elems, bool wide)
{
    const uint64_t first = (static_cast<uint64_t>(blockIdx.x) * THREADS + threadIdx.x) * ST_RUN;
    const uint32_t count = st_run_count(first, elems);
    const struct st_packed<DT> from_a = st_fetch<DT>(a, first, count, wide);
    const struct st_packed<DT> from_b = st_fetch<DT>(b, first, OP == GELU_FORWARD ? 0 : count, wide);
    float left[ST_RUN], right[ST_RUN];

    st_unpack<DT>(left, from_a);
    st_unpack<DT>(right, from_b);
#pragma unroll
    for (uint32_t i = 0; i < ST_RUN; i++) {
        if (OP == GELU_FORWARD)
            left[i] = gelu_value(left[i]);
        else
            left[i] = OP == ADD ? left[i] + right[i] : left[i] * gelu_slope(right[i]);
    }
    st_store<DT>(y, first, left, count, wide);
}

template <enum operation OP>
static cudaError_t launch_pointwise(cudaStream_t stream, void *y, const void *a, const void *b, uint64_t elems, strata_dtype dt)
{
    const bool wide = st_are_aligned({y, a, b});

    if (elems == 0)
        return cudaSuccess;
    return st_by_dtype(dt, [&](auto tag) {
        ST_LAUNCH((pointwise<OP, decltype(tag)::value>), st_blocks(elems, THREADS * ST_RUN), THREADS, 0, stream, y, a, b, elems,
                  wide);
    });
}

cudaError_t st_cuda_gelu_forward(cudaStream_t stream, void *y, const void *x, uint64_t elems, strata_dtype dt)
{
    return launch_pointwise<GELU_FORWARD>(stream, y, x, nullptr, elems, dt);
}

cudaError_t st_cuda_gelu_backward(cudaStream_t stream, void *dx, const void *dy, const void *x, uint64_t elems, strata_dtype dt)
{
    return launch_pointwise<GELU_BACKWARD>(stream, dx, dy, x, elems, dt);
}

cudaError_t st_cuda_add(cudaStream_t stream, void *y, const void *a, const void *b, uint64_t elems, strata_dtype dt)
{
    return launch_pointwise<ADD>(stream, y, a, b, elems, dt);
}

/* --- SwiGLU: a block for THREADS runs of a row --- */

template <strata_dtype DT>
static __global__ void __launch_bounds__(THREADS) swiglu_forward(void *y, const void *gate_up, uint32_t ffn, bool wide)
{
    const uint64_t row = blockIdx.x, column = (static_cast<uint64_t>(blockIdx.y) * THREADS + threadIdx.x) * ST_RUN;
    const uint64_t gate_first = 2 * row * ffn + column;
    const uint32_t count = st_run_count(column, ffn);
    const struct st_packed<DT> from_gate = st_fetch<DT>(gate_up, gate_first, count, wide);
    const struct st_packed<DT> from_up = st_fetch<DT>(gate_up, gate_first + ffn, count, wide);
    float gate[ST_RUN], up[ST_RUN];

    st_unpack<DT>(gate, from_gate);
    st_unpack<DT>(up, from_up);
#pragma unroll
    for (uint32_t i = 0; i < ST_RUN; i++)
        gate[i] = swiglu_value(gate[i], up[i]);
    st_store<DT>(y, row * ffn + column, gate, count, wide);
}

template <strata_dtype DT>
static __global__ void __launch_bounds__(THREADS)
    swiglu_backward(void *dgate_up, const void *dy, const void *gate_up, uint32_t ffn, bool wide)
{
    const uint64_t row = blockIdx.x, column = (static_cast<uint64_t>(blockIdx.y) * THREADS + threadIdx.x) * ST_RUN;
    const uint64_t gate_first = 2 * row * ffn + column;
    const uint32_t count = st_run_count(column, ffn);
    const struct st_packed<DT> from_gate = st_fetch<DT>(gate_up, gate_first, count, wide);
    const struct st_packed<DT> from_up = st_fetch<DT>(gate_up, gate_first + ffn, count, wide);
    const struct st_packed<DT> from_dy = st_fetch<DT>(dy, row * ffn + column, count, wide);
    float gate[ST_RUN], up[ST_RUN], d[ST_RUN];

    st_unpack<DT>(gate, from_gate);
    st_unpack<DT>(up, from_up);
    st_unpack<DT>(d, from_dy);
#pragma unroll
    for (uint32_t i = 0; i < ST_RUN; i++)
        swiglu_slopes(&gate[i], &up[i], d[i], gate[i], up[i]);
    st_store<DT>(dgate_up, gate_first, gate, count, wide);
    st_store<DT>(dgate_up, gate_first + ffn, up, count, wide);
}

cudaError_t st_cuda_swiglu_forward(cudaStream_t stream, void *y, const void *gate_up, uint32_t rows, uint32_t ffn,
                                   strata_dtype dt)
{
    const dim3 grid(rows, st_blocks(ffn, THREADS * ST_RUN));
    const bool wide = ffn % ST_RUN == 0 && st_are_aligned({y, gate_up});

    if (rows == 0 || ffn == 0)
        return cudaSuccess;
    return st_by_dtype(dt, [&](auto tag) {
        ST_LAUNCH((swiglu_forward<decltype(tag)::value>), grid, THREADS, 0, stream, y, gate_up, ffn, wide);
    });
}

cudaError_t st_cuda_swiglu_backward(cudaStream_t stream, void *dgate_up, const void *dy, const void *gate_up, uint32_t rows,
                                    uint32_t ffn, strata_dtype dt)
{
    const dim3 grid(rows, st_blocks(ffn, THREADS * ST_RUN));
    const bool wide = ffn % ST_RUN == 0 && st_are_aligned({dgate_up, dy, gate_up});

    if (rows == 0 || ffn == 0)
        return cudaSuccess;
    return st_by_dtype(dt, [&](auto tag) {
        ST_LAUNCH((swiglu_backward<decltype(tag)::value>), grid, THREADS, 0, stream, dgate_up, dy, gate_up, ffn, wide);
    });
}

/* --- rotary positions: a block for a row, a thread for eight pairs of a head --- */

struct rope {
    void *x;
    uint32_t stride, seq, first, heads, head_dim;
    const float *table;
    bool inverse, wide;
};

template <strata_dtype DT> static __global__ void __launch_bounds__(THREADS) rope_rows(const struct rope s)
{
    const uint64_t row = blockIdx.x, position = s.first + row % s.seq;
    const uint32_t half = s.head_dim / 2, head_runs = (half + ST_RUN - 1) / ST_RUN;
    const float *const angles = s.table + position * s.head_dim;

    for (uint32_t item = threadIdx.x; item < s.heads * head_runs; item += blockDim.x) {
        const uint32_t head = item / head_runs, pair = item % head_runs * ST_RUN, count = st_run_count(pair, half);
        const uint64_t low_first = row * s.stride + static_cast<uint64_t>(head) * s.head_dim + pair;
        const struct st_packed<DT> from_low = st_fetch<DT>(s.x, low_first, count, s.wide);
        const struct st_packed<DT> from_high = st_fetch<DT>(s.x, low_first + half, count, s.wide);
        float low[ST_RUN], high[ST_RUN], turn[2 * ST_RUN];

        st_load<STRATA_F32>(turn, angles, 2 * pair, st_run_count(2 * pair, 2 * half), s.wide);
        st_load<STRATA_F32>(turn + ST_RUN, angles, 2 * pair + ST_RUN, st_run_count(2 * pair + ST_RUN, 2 * half), s.wide);
        st_unpack<DT>(low, from_low);
        st_unpack<DT>(high, from_high);
#pragma unroll
        for (uint32_t i = 0; i < ST_RUN; i++) {
            const float a = low[i], b = high[i], c = turn[2 * i], d = s.inverse ? -turn[2 * i + 1] : turn[2 * i + 1];

            low[i] = a * c - b * d;
            high[i] = b * c + a * d;
        }
        st_store<DT>(s.x, low_first, low, count, s.wide);
        st_store<DT>(s.x, low_first + half, high, count, s.wide);
    }
}

cudaError_t st_cuda_rope(cudaStream_t stream, void *x, uint32_t stride, uint32_t rows, uint32_t seq, uint32_t first,
                         uint32_t heads, uint32_t head_dim, const float *table, bool inverse, strata_dtype dt)
{
    const uint32_t half = head_dim / 2;
    const uint32_t warps = st_blocks(static_cast<uint64_t>(heads) * st_blocks(half, ST_RUN), ST_WARP);
    const uint32_t threads = warps * ST_WARP < THREADS ? warps * ST_WARP : THREADS;
    const bool wide = half % ST_RUN == 0 && stride % ST_RUN == 0 && st_are_aligned({x, table});
    const struct rope s = {x, stride, seq, first, heads, head_dim, table, inverse, wide};

    if (rows == 0 || warps == 0)
        return cudaSuccess;
    return st_by_dtype(dt, [&](auto tag) { ST_LAUNCH((rope_rows<decltype(tag)::value>), rows, threads, 0, stream, s); });
}

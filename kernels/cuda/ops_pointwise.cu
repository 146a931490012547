/* kernels/cuda/ops_pointwise.cu - activations, gates, add and rotary positions: a thread takes a run of eight elements.
 *
 * A thread loads everything it needs before it uses any of it, so that the loads are in flight together. */
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/elems.cuh"
#include <float.h>

#define THREADS 256u

/* 2 u = 2 sqrt(2/pi) (x + 0.044715 x^3) */
#define GELU_2U_SCALE 1.5957691216057308f
#define GELU_CUBE     0.044715f
#define SQUARE_MOST   1e30f /* of the slope: beyond it the other factor is 0, and infinity times it would be no number */

/* --- one element: as in kernels/ops/ops_activation.inc, which has the formulas --- */

static __device__ float gelu_2u(float x)
{
    return x * GELU_2U_SCALE * fmaf(x * x, GELU_CUBE, 1.0f);
}

/* The normal distribution's probability of less than x. */
static __device__ float normal_less(float x)
{
    return 0.5f * erfcf(x * -0.70710678f);
}

/* e^x and 1 / x.  Of what is rounded to 16 bits in the end, in three instructions for 20: relative errors of |x| 2^-23 + 2^-22
 * (at most 2^-16, where e^x is finite) and 2^-23, for half a unit of fp16 of 2^-12 and of bf16 of 2^-9. */
template <strata_dtype DT> static __device__ float exponential(float x)
{
    return DT == STRATA_F32 ? expf(x) : st_exp2(x * ST_LOG2E);
}

template <strata_dtype DT> static __device__ float reciprocal(float x)
{
    return DT == STRATA_F32 ? 1.0f / x : st_reciprocal(x);
}

struct activated {
    float value, slope;
};

/* The value has the same bits in every kernel: no rounding of its terms is left to the compiler. */
template <enum st_activation A, strata_dtype DT> static __device__ struct activated activated_of(float x)
{
    if (A == ST_GELU_ERF) {
        const float p = normal_less(x);

        return {x * p, p + x * exponential<DT>(x * x * -0.5f) * 0.39894228f};
    }
    const float e = exponential<DT>(A == ST_GELU_TANH ? -gelu_2u(x) : -x), s = reciprocal<DT>(__fadd_rn(e, 1.0f));
    const float value = x * s, rest = fminf(e, FLT_MAX) * s;
    const float two_du = (fminf(x * x, SQUARE_MOST) * (3.0f * GELU_CUBE) + 1.0f) * GELU_2U_SCALE;

    return {value, A == ST_GELU_TANH ? s + value * rest * two_du : s + value * rest};
}

template <enum st_activation A> struct activation_tag {
    static constexpr enum st_activation value = A;
};

/* Calls body with the tag of `activation`. */
template <typename BODY> static cudaError_t by_activation(enum st_activation activation, BODY body)
{
    switch (activation) {
    case ST_GELU_TANH:
        return body(activation_tag<ST_GELU_TANH>());
    case ST_GELU_ERF:
        return body(activation_tag<ST_GELU_ERF>());
    case ST_SILU:
        return body(activation_tag<ST_SILU>());
    }
    return cudaErrorInvalidValue;
}

/* --- arrays of elements --- */

/* y = activation(x), or BACKWARD dy * activation'(x).  Reads its elements before it writes them: y may be dy or x. */
template <enum st_activation A, bool BACKWARD, strata_dtype DT>
static __global__ void __launch_bounds__(THREADS) activate(void *y, const void *dy, const void *x, uint64_t elems, bool wide)
{
    const uint64_t first = (static_cast<uint64_t>(blockIdx.x) * THREADS + threadIdx.x) * ST_RUN;
    const uint32_t count = st_run_count(first, elems);
    const struct st_packed<DT> from_dy = st_fetch<DT>(dy, first, BACKWARD ? count : 0, wide);
    const struct st_packed<DT> from_x = st_fetch<DT>(x, first, count, wide);
    float d[ST_RUN], in[ST_RUN];

    st_unpack<DT>(d, from_dy);
    st_unpack<DT>(in, from_x);
#pragma unroll
    for (uint32_t i = 0; i < ST_RUN; i++)
        in[i] = BACKWARD ? d[i] * activated_of<A, DT>(in[i]).slope : activated_of<A, DT>(in[i]).value;
    st_store<DT>(y, first, in, count, wide);
}

template <bool BACKWARD>
static cudaError_t launch_activation(cudaStream_t stream, enum st_activation activation, void *y, const void *dy, const void *x,
                                     uint64_t elems, strata_dtype dt)
{
    const bool wide = st_are_aligned({y, dy, x});

    if (elems == 0)
        return cudaSuccess;
    return by_activation(activation, [&](auto kind) {
        return st_by_dtype(dt, [&](auto tag) {
            ST_LAUNCH((activate<decltype(kind)::value, BACKWARD, decltype(tag)::value>), st_blocks(elems, THREADS * ST_RUN),
                      THREADS, 0, stream, y, dy, x, elems, wide);
        });
    });
}

cudaError_t st_cuda_activation_forward(cudaStream_t stream, enum st_activation activation, void *y, const void *x, uint64_t elems,
                                       strata_dtype dt)
{
    return launch_activation<false>(stream, activation, y, nullptr, x, elems, dt);
}

cudaError_t st_cuda_activation_backward(cudaStream_t stream, enum st_activation activation, void *dx, const void *dy,
                                        const void *x, uint64_t elems, strata_dtype dt)
{
    return launch_activation<true>(stream, activation, dx, dy, x, elems, dt);
}

/* Reads its elements before it writes them: y may be a or b. */
template <strata_dtype DT>
static __global__ void __launch_bounds__(THREADS) add(void *y, const void *a, const void *b, uint64_t elems, bool wide)
{
    const uint64_t first = (static_cast<uint64_t>(blockIdx.x) * THREADS + threadIdx.x) * ST_RUN;
    const uint32_t count = st_run_count(first, elems);
    const struct st_packed<DT> from_a = st_fetch<DT>(a, first, count, wide);
    const struct st_packed<DT> from_b = st_fetch<DT>(b, first, count, wide);
    float left[ST_RUN], right[ST_RUN];

    st_unpack<DT>(left, from_a);
    st_unpack<DT>(right, from_b);
#pragma unroll
    for (uint32_t i = 0; i < ST_RUN; i++)
        left[i] += right[i];
    st_store<DT>(y, first, left, count, wide);
}

cudaError_t st_cuda_add(cudaStream_t stream, void *y, const void *a, const void *b, uint64_t elems, strata_dtype dt)
{
    const bool wide = st_are_aligned({y, a, b});

    if (elems == 0)
        return cudaSuccess;
    return st_by_dtype(dt, [&](auto tag) {
        ST_LAUNCH((add<decltype(tag)::value>), st_blocks(elems, THREADS * ST_RUN), THREADS, 0, stream, y, a, b, elems, wide);
    });
}

template <strata_dtype DT>
static __global__ void __launch_bounds__(THREADS) reduce(float *sum, const void *addend, uint64_t elems, bool wide)
{
    const uint64_t first = (static_cast<uint64_t>(blockIdx.x) * THREADS + threadIdx.x) * ST_RUN;
    const uint32_t count = st_run_count(first, elems);
    float left[ST_RUN], right[ST_RUN];

    st_unpack<STRATA_F32>(left, st_fetch<STRATA_F32>(sum, first, count, wide));
    st_unpack<DT>(right, st_fetch<DT>(addend, first, count, wide));
#pragma unroll
    for (uint32_t i = 0; i < ST_RUN; i++)
        left[i] += right[i];
    st_store<STRATA_F32>(sum, first, left, count, wide);
}

cudaError_t st_cuda_reduce(cudaStream_t stream, float *sum, const void *addend, uint64_t elems, strata_dtype dt)
{
    const bool wide = st_are_aligned({sum, addend});

    if (elems == 0)
        return cudaSuccess;
    return st_by_dtype(dt, [&](auto tag) {
        ST_LAUNCH((reduce<decltype(tag)::value>), st_blocks(elems, THREADS * ST_RUN), THREADS, 0, stream, sum, addend, elems, wide);
    });
}

template <strata_dtype DT>
static __global__ void __launch_bounds__(THREADS) scale(void *y, const void *x, float factor, uint64_t elems, bool wide)
{
    const uint64_t first = (static_cast<uint64_t>(blockIdx.x) * THREADS + threadIdx.x) * ST_RUN;
    const uint32_t count = st_run_count(first, elems);
    float values[ST_RUN];

    st_unpack<DT>(values, st_fetch<DT>(x, first, count, wide));
#pragma unroll
    for (uint32_t i = 0; i < ST_RUN; i++)
        values[i] *= factor;
    st_store<DT>(y, first, values, count, wide);
}

cudaError_t st_cuda_scale(cudaStream_t stream, void *y, const void *x, float factor, uint64_t elems, strata_dtype dt)
{
    const bool wide = st_are_aligned({y, x});

    if (elems == 0)
        return cudaSuccess;
    return st_by_dtype(dt, [&](auto tag) {
        ST_LAUNCH((scale<decltype(tag)::value>), st_blocks(elems, THREADS * ST_RUN), THREADS, 0, stream, y, x, factor, elems,
                  wide);
    });
}

/* A block for THREADS runs of a row. */
template <strata_dtype TO, strata_dtype FROM>
static __global__ void __launch_bounds__(THREADS) cast_rows(const struct st_cast s, void *to, const void *from, bool wide)
{
    const uint64_t row = blockIdx.x, column = (static_cast<uint64_t>(blockIdx.y) * THREADS + threadIdx.x) * ST_RUN;
    const uint32_t count = st_run_count(column, s.cols);
    float values[ST_RUN];

    st_load<FROM>(values, from, row * s.from_stride + column, count, wide);
    st_store<TO>(to, row * s.to_stride + column, values, count, wide);
}

cudaError_t st_cuda_cast(cudaStream_t stream, const struct st_cast *cast, void *to, const void *from)
{
    const dim3 grid(cast->rows, st_blocks(cast->cols, THREADS * ST_RUN));
    const bool wide = cast->to_stride % ST_RUN == 0 && cast->from_stride % ST_RUN == 0 && st_are_aligned({to, from});

    if (cast->rows == 0 || cast->cols == 0)
        return cudaSuccess;
    if (cast->to == STRATA_F32)
        return st_by_dtype(cast->from, [&](auto tag) {
            ST_LAUNCH((cast_rows<STRATA_F32, decltype(tag)::value>), grid, THREADS, 0, stream, *cast, to, from, wide);
        });
    return st_by_dtype(cast->to, [&](auto tag) {
        ST_LAUNCH((cast_rows<decltype(tag)::value, STRATA_F32>), grid, THREADS, 0, stream, *cast, to, from, wide);
    });
}

/* --- dropout: a block for THREADS runs of a row; the formulas are those of kernels/ops/ops_pointwise.inc --- */

static __device__ void philox(uint32_t c[4], uint64_t key)
{
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);

    for (uint32_t round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c[0], p1 = static_cast<uint64_t>(0xCD9E8D57u) * c[2];

        c[0] = static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0;
        c[2] = static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1;
        c[1] = static_cast<uint32_t>(p1);
        c[3] = static_cast<uint32_t>(p0);
    }
}

template <strata_dtype FROM>
static __global__ void __launch_bounds__(THREADS) dropout_rows(const struct st_dropout d, float *to, const void *from, bool wide)
{
    const uint64_t row = blockIdx.x, column = (static_cast<uint64_t>(blockIdx.y) * THREADS + threadIdx.x) * ST_RUN;
    const uint64_t at = d.first + row, sequence = d.sequence + at / d.seq;
    const uint32_t count = st_run_count(column, d.cols);
    float values[ST_RUN], sums[ST_RUN] = {};

    st_load<FROM>(values, from, row * d.cols + column, count, wide);
    if (d.add)
        st_load<STRATA_F32>(sums, to, row * d.cols + column, count, wide);
#pragma unroll
    for (uint32_t i = 0; i < ST_RUN; i += 4) {
        uint32_t c[4] = {static_cast<uint32_t>((column + i) / 4), static_cast<uint32_t>(at % d.seq),
                         static_cast<uint32_t>(sequence), static_cast<uint32_t>(sequence >> 32)};

        philox(c, d.key);
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            if (c[j] >= d.limit) {
                const float kept = __fmul_rn(values[i + j], d.scale);

                sums[i + j] = d.add ? __fadd_rn(sums[i + j], kept) : kept;
            }
    }
    st_store<STRATA_F32>(to, row * d.cols + column, sums, count, wide);
}

cudaError_t st_cuda_dropout(cudaStream_t stream, const struct st_dropout *d, float *to, const void *from)
{
    const dim3 grid(d->rows, st_blocks(d->cols, THREADS * ST_RUN));
    const bool wide = d->cols % ST_RUN == 0 && st_are_aligned({to, from});

    if (d->rows == 0 || d->cols == 0)
        return cudaSuccess;
    return st_by_dtype(d->from, [&](auto tag) {
        ST_LAUNCH((dropout_rows<decltype(tag)::value>), grid, THREADS, 0, stream, *d, to, from, wide);
    });
}

/* A run lies in one record. */
template <strata_dtype DT>
static __global__ void __launch_bounds__(THREADS) nf4_widen(void *y, const struct st_nf4_block *x, uint64_t elems, bool wide)
{
    __shared__ float values[16];
    const uint64_t first = (static_cast<uint64_t>(blockIdx.x) * THREADS + threadIdx.x) * ST_RUN;
    const uint32_t count = st_run_count(first, elems);
    float out[ST_RUN];

    if (threadIdx.x < 16) {
        const float table[16] = ST_NF4_VALUES;

        values[threadIdx.x] = table[threadIdx.x];
    }
    __syncthreads();
    if (count == 0)
        return;
    const struct st_nf4_block *record = x + first / ST_NF4_ELEMS;
    const uint32_t codes = *reinterpret_cast<const uint32_t *>(record->codes + first % ST_NF4_ELEMS / 2);

#pragma unroll
    for (uint32_t i = 0; i < ST_RUN; i++)
        out[i] = values[codes >> (i / 2 * 8 + (i % 2 == 0 ? 4 : 0)) & 15] * record->absmax;
    st_store<DT>(y, first, out, count, wide);
}

cudaError_t st_cuda_nf4_widen(cudaStream_t stream, void *y, const struct st_nf4_block *x, uint64_t elems, strata_dtype dt)
{
    const bool wide = st_are_aligned({y});

    if (elems == 0)
        return cudaSuccess;
    return st_by_dtype(dt, [&](auto tag) {
        ST_LAUNCH((nf4_widen<decltype(tag)::value>), st_blocks(elems, THREADS * ST_RUN), THREADS, 0, stream, y, x, elems, wide);
    });
}

/* --- gates: a block for THREADS runs of a row --- */

template <enum st_activation A, strata_dtype DT>
static __global__ void __launch_bounds__(THREADS) gated_forward(void *y, const void *gate_up, uint32_t ffn, bool wide)
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
        gate[i] = activated_of<A, DT>(gate[i]).value * up[i];
    st_store<DT>(y, row * ffn + column, gate, count, wide);
}

template <enum st_activation A, strata_dtype DT>
static __global__ void __launch_bounds__(THREADS)
    gated_backward(void *dgate_up, void *y, const void *dy, const void *gate_up, uint32_t ffn, bool wide)
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
    for (uint32_t i = 0; i < ST_RUN; i++) {
        const struct activated a = activated_of<A, DT>(gate[i]);
        const float of_up = d[i] * a.value;

        gate[i] = d[i] * up[i] * a.slope;
        d[i] = a.value * up[i];
        up[i] = of_up;
    }
    st_store<DT>(dgate_up, gate_first, gate, count, wide);
    st_store<DT>(dgate_up, gate_first + ffn, up, count, wide);
    if (y != nullptr)
        st_store<DT>(y, row * ffn + column, d, count, wide);
}

cudaError_t st_cuda_gated_forward(cudaStream_t stream, enum st_activation activation, void *y, const void *gate_up, uint32_t rows,
                                  uint32_t ffn, strata_dtype dt)
{
    const dim3 grid(rows, st_blocks(ffn, THREADS * ST_RUN));
    const bool wide = ffn % ST_RUN == 0 && st_are_aligned({y, gate_up});

    if (rows == 0 || ffn == 0)
        return cudaSuccess;
    return by_activation(activation, [&](auto kind) {
        return st_by_dtype(dt, [&](auto tag) {
            ST_LAUNCH((gated_forward<decltype(kind)::value, decltype(tag)::value>), grid, THREADS, 0, stream, y, gate_up, ffn,
                      wide);
        });
    });
}

cudaError_t st_cuda_gated_backward(cudaStream_t stream, enum st_activation activation, void *dgate_up, void *y, const void *dy,
                                   const void *gate_up, uint32_t rows, uint32_t ffn, strata_dtype dt)
{
    const dim3 grid(rows, st_blocks(ffn, THREADS * ST_RUN));
    const bool wide = ffn % ST_RUN == 0 && st_are_aligned({dgate_up, y, dy, gate_up});

    if (rows == 0 || ffn == 0)
        return cudaSuccess;
    return by_activation(activation, [&](auto kind) {
        return st_by_dtype(dt, [&](auto tag) {
            ST_LAUNCH((gated_backward<decltype(kind)::value, decltype(tag)::value>), grid, THREADS, 0, stream, dgate_up, y, dy,
                      gate_up, ffn, wide);
        });
    });
}

/* --- rotary positions: a block for a row, a thread for eight pairs of a head --- */

template <strata_dtype DT> static __global__ void __launch_bounds__(THREADS) rope_rows(const struct st_rope s, void *x, bool wide)
{
    const uint64_t row = blockIdx.x;
    const uint64_t position = s.first + (s.positions != nullptr ? static_cast<uint32_t>(s.positions[row]) : row % s.seq);
    const uint32_t half = s.rotary_dim / 2, head_runs = (half + ST_RUN - 1) / ST_RUN;
    const float *const angles = s.table + position * s.rotary_dim;

    for (uint32_t item = threadIdx.x; item < s.heads * head_runs; item += blockDim.x) {
        const uint32_t head = item / head_runs, pair = item % head_runs * ST_RUN, count = st_run_count(pair, half);
        const uint64_t low_first = row * s.stride + static_cast<uint64_t>(head) * s.head_dim + pair;
        const struct st_packed<DT> from_low = st_fetch<DT>(x, low_first, count, wide);
        const struct st_packed<DT> from_high = st_fetch<DT>(x, low_first + half, count, wide);
        float low[ST_RUN], high[ST_RUN], turn[2 * ST_RUN];

        st_load<STRATA_F32>(turn, angles, 2 * pair, st_run_count(2 * pair, 2 * half), wide);
        st_load<STRATA_F32>(turn + ST_RUN, angles, 2 * pair + ST_RUN, st_run_count(2 * pair + ST_RUN, 2 * half), wide);
        st_unpack<DT>(low, from_low);
        st_unpack<DT>(high, from_high);
#pragma unroll
        for (uint32_t i = 0; i < ST_RUN; i++) {
            const float a = low[i], b = high[i], c = turn[2 * i], d = s.inverse ? -turn[2 * i + 1] : turn[2 * i + 1];

            low[i] = a * c - b * d;
            high[i] = b * c + a * d;
        }
        st_store<DT>(x, low_first, low, count, wide);
        st_store<DT>(x, low_first + half, high, count, wide);
    }
}

cudaError_t st_cuda_rope(cudaStream_t stream, const struct st_rope *rope, void *x)
{
    const uint32_t half = rope->rotary_dim / 2;
    const uint32_t warps = st_blocks(static_cast<uint64_t>(rope->heads) * st_blocks(half, ST_RUN), ST_WARP);
    const uint32_t threads = warps * ST_WARP < THREADS ? warps * ST_WARP : THREADS;
    const bool wide =
        half % ST_RUN == 0 && rope->head_dim % ST_RUN == 0 && rope->stride % ST_RUN == 0 && st_are_aligned({x, rope->table});

    if (rope->rows == 0 || warps == 0)
        return cudaSuccess;
    return st_by_dtype(rope->dt, [&](auto tag) {
        ST_LAUNCH((rope_rows<decltype(tag)::value>), rope->rows, threads, 0, stream, *rope, x, wide);
    });
}

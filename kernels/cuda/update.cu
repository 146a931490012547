/* kernels/cuda/update.cu - the update rules on a GPU, using the scalar definition of one element.
 *
 * A warp takes one block of ST_MOMENT_BLOCK elements and a lane eight consecutive elements, so that every plane is read and
 * written in accesses of 16 bytes (codes: 8 bytes), and shuffles find the largest moment of a block.  Compiled without
 * contraction. */
#include "kernels/cuda/update.h"
#include "kernels/update/update_step.h"

#define WARP          32u
#define LANE_ELEMS    (ST_MOMENT_BLOCK / WARP)
#define BLOCK_THREADS 256u
#define BLOCK_ELEMS   (BLOCK_THREADS * LANE_ELEMS)
#define ALL_LANES     0xffffffffu

enum layout { SPLIT, MASTER };

struct planes {
    uint16_t *weight; /* SPLIT */
    int16_t *low_half;
    float *master;  /* MASTER */
    uint16_t *copy; /* NULL: none */
    strata_dtype copy_dtype;
    struct st_moments moments;
    const void *grad;
    strata_dtype grad_dtype;
    uint64_t elems;
    uint64_t *overflowed;
};

/* --- eight elements of a plane --- */

/* The word that one access moves of eight elements of BYTES bytes. */
template <size_t BYTES> struct wide_word {
    using type = uint4;
};
template <> struct wide_word<1> {
    using type = uint2;
};
template <typename T> using word_of = typename wide_word<sizeof(T)>::type;
template <typename T> constexpr uint32_t words_of = LANE_ELEMS * sizeof(T) / sizeof(word_of<T>);

/* `whole`: all eight are there and the plane is aligned for wide accesses. */
template <typename T> static __device__ void load_lane(T out[LANE_ELEMS], const T *plane, uint32_t count, bool whole)
{
    if (whole) {
        const word_of<T> *in = reinterpret_cast<const word_of<T> *>(plane);
        word_of<T> word[words_of<T>];

#pragma unroll
        for (uint32_t i = 0; i < words_of<T>; i++)
            word[i] = in[i];
        memcpy(out, word, sizeof(word));
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < LANE_ELEMS; i++)
        out[i] = i < count ? plane[i] : T(0);
}

template <typename T> static __device__ void store_lane(T *plane, const T in[LANE_ELEMS], uint32_t count, bool whole)
{
    if (whole) {
        word_of<T> *out = reinterpret_cast<word_of<T> *>(plane);
        word_of<T> word[words_of<T>];

        memcpy(word, in, sizeof(word));
#pragma unroll
        for (uint32_t i = 0; i < words_of<T>; i++)
            out[i] = word[i];
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < LANE_ELEMS; i++) {
        if (i < count)
            plane[i] = in[i];
    }
}

static __device__ void load_grad(float out[LANE_ELEMS], const struct planes &s, uint64_t first, uint32_t count, bool whole)
{
    uint16_t half[LANE_ELEMS];

    if (s.grad_dtype == STRATA_F32) {
        load_lane(out, static_cast<const float *>(s.grad) + first, count, whole);
        return;
    }
    load_lane(half, static_cast<const uint16_t *>(s.grad) + first, count, whole);
#pragma unroll
    for (uint32_t i = 0; i < LANE_ELEMS; i++)
        out[i] = s.grad_dtype == STRATA_BF16 ? st_bf16_to_f32(half[i]) : st_f16_to_f32(half[i]);
}

template <enum layout LAYOUT>
static __device__ void load_master(float out[LANE_ELEMS], const struct planes &s, uint64_t first, uint32_t count, bool whole)
{
    uint16_t weight[LANE_ELEMS];
    int16_t low_half[LANE_ELEMS];

    if constexpr (LAYOUT == MASTER) {
        load_lane(out, s.master + first, count, whole);
    } else {
        load_lane(weight, s.weight + first, count, whole);
        load_lane(low_half, s.low_half + first, count, whole);
#pragma unroll
        for (uint32_t i = 0; i < LANE_ELEMS; i++)
            out[i] = st_f32_from_bits(st_split_join(weight[i], low_half[i]));
    }
}

/* Returns how many of the elements rounded to infinity. */
template <enum layout LAYOUT>
static __device__ uint64_t store_master(const struct planes &s, const float in[LANE_ELEMS], uint64_t first, uint32_t count,
                                        bool whole)
{
    uint16_t weight[LANE_ELEMS];
    int16_t low_half[LANE_ELEMS];
    uint64_t overflow_count = 0;

    if constexpr (LAYOUT == MASTER) {
        store_lane(s.master + first, in, count, whole);
        if (s.copy == nullptr)
            return 0;
        for (uint32_t i = 0; i < LANE_ELEMS; i++)
            weight[i] = st_copy_element(in[i], s.copy_dtype, &overflow_count);
        store_lane(s.copy + first, weight, count, whole);
    } else {
#pragma unroll
        for (uint32_t i = 0; i < LANE_ELEMS; i++) {
            const uint32_t bits = st_f32_bits(in[i]);

            weight[i] = st_split_weight(bits);
            low_half[i] = st_split_low_half(bits);
            overflow_count += st_split_overflows(bits);
        }
        store_lane(s.weight + first, weight, count, whole);
        store_lane(s.low_half + first, low_half, count, whole);
    }
    return overflow_count;
}

/* --- moments --- */

/* The group of ST_NORM_BLOCK elements that contains `first`, in a plane of 8-bit moments. */
static __device__ unsigned char *coded_group(void *plane, uint64_t first)
{
    return static_cast<unsigned char *>(plane) + st_moment_bytes(ST_MOMENTS_8BIT, first / ST_NORM_BLOCK * ST_NORM_BLOCK);
}

static __device__ float *coded_scale(void *plane, uint64_t first)
{
    return reinterpret_cast<float *>(coded_group(plane, first)) + first % ST_NORM_BLOCK / ST_MOMENT_BLOCK;
}

static __device__ uint8_t *coded_codes(void *plane, uint64_t first)
{
    return coded_group(plane, first) + ST_NORM_BLOCK / ST_MOMENT_BLOCK * sizeof(float) + first % ST_NORM_BLOCK;
}

template <enum st_moment_format FORMAT>
static __device__ void load_moment(float out[LANE_ELEMS], void *plane, bool squares, uint64_t first, uint32_t count, bool whole)
{
    uint16_t half[LANE_ELEMS];
    uint8_t codes[LANE_ELEMS];

    if constexpr (FORMAT == ST_MOMENTS_F32) {
        load_lane(out, static_cast<const float *>(plane) + first, count, whole);
    } else if constexpr (FORMAT == ST_MOMENTS_BF16) {
        load_lane(half, static_cast<const uint16_t *>(plane) + first, count, whole);
#pragma unroll
        for (uint32_t i = 0; i < LANE_ELEMS; i++)
            out[i] = st_bf16_to_f32(half[i]);
    } else {
        const float scale = count > 0 ? *coded_scale(plane, first) : 0.0f;

        load_lane(codes, coded_codes(plane, first), count, whole);
#pragma unroll
        for (uint32_t i = 0; i < LANE_ELEMS; i++)
            out[i] = st_code_decode(codes[i], scale, squares);
    }
}

/* The largest magnitude of the warp's moments, as bits. */
static __device__ uint32_t warp_most(const float in[LANE_ELEMS], uint32_t count)
{
    uint32_t most = 0;

#pragma unroll
    for (uint32_t i = 0; i < LANE_ELEMS; i++) {
        const uint32_t mag = st_f32_bits(in[i]) & ST_F32_MAG;

        most = i < count && mag > most ? mag : most;
    }
#pragma unroll
    for (uint32_t step = WARP / 2; step > 0; step /= 2) {
        const uint32_t other = __shfl_xor_sync(ALL_LANES, most, step);

        most = other > most ? other : most;
    }
    return most;
}

/* Round and store the moments that a lane holds from `first` on.  All lanes of a warp call it: in 8 bits they share a scale. */
template <enum st_moment_format FORMAT>
static __device__ void store_moment(void *plane, const float in[LANE_ELEMS], const struct planes &s, int which,
                                    const struct st_update_coef &coef, uint64_t first, uint32_t count, bool whole)
{
    const bool squares = st_moment_is_squares(coef.rule, which);
    uint16_t half[LANE_ELEMS];
    uint8_t codes[LANE_ELEMS];
    float scale, inverse;

    if constexpr (FORMAT == ST_MOMENTS_F32) {
        store_lane(static_cast<float *>(plane) + first, in, count, whole);
    } else if constexpr (FORMAT == ST_MOMENTS_BF16) {
#pragma unroll
        for (uint32_t i = 0; i < LANE_ELEMS; i++) {
            const uint32_t random = st_rounding_bits(coef.rounding_key, s.moments.position + first + i);

            half[i] = st_f32_to_bf16_random(in[i], st_rounding_part(random, which, 16));
        }
        store_lane(static_cast<uint16_t *>(plane) + first, half, count, whole);
    } else {
        scale = st_code_scale(warp_most(in, count), squares, &inverse);
#pragma unroll
        for (uint32_t i = 0; i < LANE_ELEMS; i++) {
            const uint32_t random = st_rounding_bits(coef.rounding_key, s.moments.position + first + i);

            codes[i] = st_code_encode(in[i], inverse, st_rounding_part(random, which, ST_CODE_SHIFT), squares);
        }
        if (count == 0)
            return;
        store_lane(coded_codes(plane, first), codes, count, whole);
        if (first % ST_MOMENT_BLOCK == 0)
            *coded_scale(plane, first) = scale;
    }
}

/* --- one step --- */

static __device__ void add_overflowed(uint64_t *overflowed, uint64_t count)
{
    if (count > 0)
        atomicAdd(reinterpret_cast<unsigned long long *>(overflowed), static_cast<unsigned long long>(count));
}

template <enum layout LAYOUT, enum st_moment_format FORMAT>
static __global__ void __launch_bounds__(BLOCK_THREADS) update(const struct planes s, const struct st_update_coef coef, bool wide)
{
    const uint64_t first = (static_cast<uint64_t>(blockIdx.x) * BLOCK_THREADS + threadIdx.x) * LANE_ELEMS;
    const uint64_t left = first < s.elems ? s.elems - first : 0;
    const uint32_t count = left < LANE_ELEMS ? static_cast<uint32_t>(left) : LANE_ELEMS;
    const bool whole = wide && count == LANE_ELEMS, two = s.moments.moment2 != nullptr;
    float master[LANE_ELEMS], grad[LANE_ELEMS], moment1[LANE_ELEMS], moment2[LANE_ELEMS] = {};

    load_master<LAYOUT>(master, s, first, count, whole);
    load_grad(grad, s, first, count, whole);
    load_moment<FORMAT>(moment1, s.moments.moment1, st_moment_is_squares(coef.rule, 0), first, count, whole);
    if (two)
        load_moment<FORMAT>(moment2, s.moments.moment2, st_moment_is_squares(coef.rule, 1), first, count, whole);
    if constexpr (FORMAT == ST_MOMENTS_8BIT)
        __syncwarp(); /* all lanes read the scale before one of them replaces it */
#pragma unroll
    for (uint32_t i = 0; i < LANE_ELEMS; i++)
        master[i] = st_update_step(master[i], &moment1[i], &moment2[i], grad[i], &coef);
    store_moment<FORMAT>(s.moments.moment1, moment1, s, 0, coef, first, count, whole);
    if (two)
        store_moment<FORMAT>(s.moments.moment2, moment2, s, 1, coef, first, count, whole);
    add_overflowed(s.overflowed, store_master<LAYOUT>(s, master, first, count, whole));
}

static bool is_aligned(const void *plane, size_t align)
{
    return reinterpret_cast<uintptr_t>(plane) % align == 0;
}

/* Whether a lane's elements of every plane begin at a multiple of the access size. */
static bool is_wide(const struct planes *s)
{
    const void *const planes[] = {s->weight, s->low_half, s->master, s->copy, s->moments.moment1, s->moments.moment2, s->grad};

    for (const void *plane : planes) {
        if (!is_aligned(plane, 16))
            return false;
    }
    return true;
}

template <enum layout LAYOUT>
static cudaError_t launch(cudaStream_t stream, const struct planes *s, const struct st_update_coef *coef)
{
    const unsigned blocks = static_cast<unsigned>((s->elems + BLOCK_ELEMS - 1) / BLOCK_ELEMS);
    const bool wide = is_wide(s);

    if (s->elems == 0)
        return cudaSuccess;
    switch (s->moments.format) {
    case ST_MOMENTS_F32:
        ST_LAUNCH((update<LAYOUT, ST_MOMENTS_F32>), blocks, BLOCK_THREADS, 0, stream, *s, *coef, wide);
        break;
    case ST_MOMENTS_BF16:
        ST_LAUNCH((update<LAYOUT, ST_MOMENTS_BF16>), blocks, BLOCK_THREADS, 0, stream, *s, *coef, wide);
        break;
    case ST_MOMENTS_8BIT:
        ST_LAUNCH((update<LAYOUT, ST_MOMENTS_8BIT>), blocks, BLOCK_THREADS, 0, stream, *s, *coef, wide);
        break;
    default:
        return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}

cudaError_t st_cuda_update_split(cudaStream_t stream, uint16_t *weight, int16_t *low_half, const struct st_moments *moments,
                                 const void *grad, strata_dtype grad_dtype, uint64_t elems, const struct st_update_coef *coef,
                                 uint64_t *overflowed)
{
    const struct planes s = {weight,   low_half, nullptr,    nullptr, STRATA_DTYPE_INVALID,
                             *moments, grad,     grad_dtype, elems,   overflowed};

    return launch<SPLIT>(stream, &s, coef);
}

cudaError_t st_cuda_update_master(cudaStream_t stream, float *master, uint16_t *copy_out, strata_dtype copy_dtype,
                                  const struct st_moments *moments, const void *grad, strata_dtype grad_dtype, uint64_t elems,
                                  const struct st_update_coef *coef, uint64_t *overflowed)
{
    const struct planes s = {nullptr, nullptr, master, copy_out, copy_dtype, *moments, grad, grad_dtype, elems, overflowed};

    return launch<MASTER>(stream, &s, coef);
}

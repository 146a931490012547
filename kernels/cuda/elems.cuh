/* kernels/cuda/elems.cuh - runs of eight elements of a tensor, and sums over threads: the building blocks of ops_*.cu. */
#ifndef KERNELS_CUDA_ELEMS_CUH
#define KERNELS_CUDA_ELEMS_CUH

#include "kernels/cuda/halves.cuh"
#include <initializer_list>

#define ST_RUN 8u /* elements of a run: 16 bytes, or 32 in F32 */

/* --- a run --- */

/* A run as it is stored in memory. */
template <strata_dtype DT> struct st_packed {
    uint32_t word[DT == STRATA_F32 ? ST_RUN : ST_RUN / 2];
};

template <strata_dtype DT> static __device__ void st_unpack(float out[ST_RUN], const struct st_packed<DT> &in)
{
#pragma unroll
    for (uint32_t i = 0; i < ST_RUN; i++) {
        if (DT == STRATA_F32)
            out[i] = st_f32_from_bits(in.word[i]);
        else
            out[i] = st_widen<DT>(static_cast<uint16_t>(in.word[i / 2] >> 16 * (i % 2)));
    }
}

template <strata_dtype DT> static __device__ st_packed<DT> st_pack(const float in[ST_RUN])
{
    struct st_packed<DT> out;

#pragma unroll
    for (uint32_t i = 0; i < sizeof(out) / 4; i++) {
        if (DT == STRATA_F32)
            out.word[i] = st_f32_bits(in[i]);
        else
            out.word[i] = st_round_pair<DT>(in[2 * i], in[2 * i + 1]);
    }
    return out;
}

/* Elements first .. first + count - 1 of the tensor, zeros after them.  wide: a whole run may be read at once. */
template <strata_dtype DT> static __device__ st_packed<DT> st_fetch(const void *tensor, uint64_t first, uint32_t count, bool wide)
{
    struct st_packed<DT> out = {
    };

    if (wide && count == ST_RUN) {
        const uint4 *in = reinterpret_cast<const uint4 *>(static_cast<const char *>(tensor) + first * (sizeof(out) / ST_RUN));

#pragma unroll
        for (uint32_t i = 0; i < sizeof(out) / 16; i++) {
            const uint4 part = in[i];

            out.word[4 * i] = part.x;
            out.word[4 * i + 1] = part.y;
            out.word[4 * i + 2] = part.z;
            out.word[4 * i + 3] = part.w;
        }
        return out;
    }
#pragma unroll
    for (uint32_t i = 0; i < ST_RUN; i++) {
        if (i < count && DT == STRATA_F32)
            out.word[i] = st_f32_bits(static_cast<const float *>(tensor)[first + i]);
        else if (i < count)
            out.word[i / 2] |= static_cast<uint32_t>(static_cast<const uint16_t *>(tensor)[first + i]) << 16 * (i % 2);
    }
    return out;
}

template <strata_dtype DT>
static __device__ void st_put(void *tensor, uint64_t first, const struct st_packed<DT> &in, uint32_t count, bool wide)
{
    if (wide && count == ST_RUN) {
        uint4 *out = reinterpret_cast<uint4 *>(static_cast<char *>(tensor) + first * (sizeof(in) / ST_RUN));

#pragma unroll
        for (uint32_t i = 0; i < sizeof(in) / 16; i++)
            out[i] = make_uint4(in.word[4 * i], in.word[4 * i + 1], in.word[4 * i + 2], in.word[4 * i + 3]);
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < ST_RUN; i++) {
        if (i < count && DT == STRATA_F32)
            static_cast<float *>(tensor)[first + i] = st_f32_from_bits(in.word[i]);
        else if (i < count)
            static_cast<uint16_t *>(tensor)[first + i] = static_cast<uint16_t>(in.word[i / 2] >> 16 * (i % 2));
    }
}

template <strata_dtype DT>
static __device__ void st_load(float out[ST_RUN], const void *tensor, uint64_t first, uint32_t count, bool wide)
{
    st_unpack<DT>(out, st_fetch<DT>(tensor, first, count, wide));
}

template <strata_dtype DT>
static __device__ void st_store(void *tensor, uint64_t first, const float in[ST_RUN], uint32_t count, bool wide)
{
    st_put<DT>(tensor, first, st_pack<DT>(in), count, wide);
}

/* How many elements of the run that begins at `first` exist. */
static inline __device__ uint32_t st_run_count(uint64_t first, uint64_t end)
{
    if (first >= end)
        return 0;
    return end - first < ST_RUN ? static_cast<uint32_t>(end - first) : ST_RUN;
}

/* --- sums over threads, in a fixed order --- */

static inline __device__ float st_warp_sum(float x)
{
#pragma unroll
    for (uint32_t step = ST_WARP / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(ST_ALL_LANES, x, static_cast<int>(step));
    return x;
}

/* Sum over WARPS warps, which are the whole block if there is more than one; part [WARPS] is shared memory that no earlier sum is
 * still using. */
template <uint32_t WARPS> static __device__ float st_group_sum(float x, float *part)
{
    float sum = st_warp_sum(x);

    if (WARPS == 1)
        return sum;
    if (threadIdx.x % ST_WARP == 0)
        part[threadIdx.x / ST_WARP] = sum;
    __syncthreads();
    sum = part[0];
#pragma unroll
    for (uint32_t i = 1; i < WARPS; i++)
        sum += part[i];
    return sum;
}

/* --- launchers --- */

static inline bool st_are_aligned(std::initializer_list<const void *> tensors)
{
    for (const void *tensor : tensors) {
        if (reinterpret_cast<uintptr_t>(tensor) % 16 != 0)
            return false;
    }
    return true;
}

static inline unsigned st_blocks(uint64_t total, uint64_t of_one)
{
    return static_cast<unsigned>((total + of_one - 1) / of_one);
}

template <strata_dtype DT> struct st_dtype_tag {
    static constexpr strata_dtype value = DT;
};

/* Calls body with the tag of `dt`; body launches. */
template <typename BODY> static cudaError_t st_by_dtype(strata_dtype dt, BODY body)
{
    switch (dt) {
    case STRATA_F32:
        body(st_dtype_tag<STRATA_F32>());
        break;
    case STRATA_BF16:
        body(st_dtype_tag<STRATA_BF16>());
        break;
    case STRATA_F16:
        body(st_dtype_tag<STRATA_F16>());
        break;
    default:
        return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}

#endif

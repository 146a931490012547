/* kernels/cuda/halves.cuh - bf16 and fp16 elements, rounded and widened in one instruction where the GPU has one, and the size of
 * a warp: what all kernels share. */
#ifndef KERNELS_CUDA_HALVES_CUH
#define KERNELS_CUDA_HALVES_CUH

#include "kernels/cuda/launch.h"
#include "kernels/isa/scalar.h"

#define ST_WARP      32u
#define ST_ALL_LANES 0xffffffffu

/* Two elements of 16 bits, the first in the low half.  A NaN becomes some quiet NaN. */
template <strata_dtype DT> static __device__ uint32_t st_round_pair(float low, float high)
{
#ifdef __CUDA_ARCH__
    uint32_t word;

    if (DT == STRATA_BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
#else
    if (DT == STRATA_BF16)
        return st_f32_to_bf16(low) | static_cast<uint32_t>(st_f32_to_bf16(high)) << 16;
    return st_f32_to_f16(low) | static_cast<uint32_t>(st_f32_to_f16(high)) << 16;
#endif
}

template <strata_dtype DT> static __device__ float st_widen(uint16_t x)
{
    if (DT == STRATA_BF16)
        return st_bf16_to_f32(x);
#ifdef __CUDA_ARCH__
    float wide;

    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x));
    return wide;
#else
    return st_f16_to_f32(x);
#endif
}

#endif

/* kernels/cuda/halves.cuh - bf16 and fp16 elements, rounded and widened in one instruction where the GPU has one, approximations
 * that one instruction computes, and the size of a warp: what all kernels share. */
#ifndef KERNELS_CUDA_HALVES_CUH
#define KERNELS_CUDA_HALVES_CUH

#include "kernels/cuda/launch.h"
#include "kernels/isa/scalar.h"

#define ST_WARP      32u
#define ST_ALL_LANES 0xffffffffu
#define ST_LOG2E     1.44269504088896341f

/* Capability 7.5 has neither bf16 nor conversions of pairs: there each fp16 element is rounded separately. */
static __device__ __forceinline__ uint32_t st_round_f16(float x)
{
#ifdef __CUDA_ARCH__
    uint16_t half;

    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
#else
    return st_f32_to_f16(x);
#endif
}

/* Two elements of 16 bits, the first in the low half.  A NaN becomes some quiet NaN. */
template <strata_dtype DT> static __device__ uint32_t st_round_pair(float low, float high)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint32_t word;

    if (DT == STRATA_BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
#else
    if (DT == STRATA_BF16)
        return st_f32_to_bf16(low) | static_cast<uint32_t>(st_f32_to_bf16(high)) << 16;
    return st_round_f16(low) | st_round_f16(high) << 16;
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

/** 2^x to two units in the last place; 0 below 2^-126, where exp2f() spends three more instructions on subnormals. */
static __device__ __forceinline__ float st_exp2(float x)
{
#ifdef __CUDA_ARCH__
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#elif defined(ST_CUDA_EMULATOR)
    return twin_ex2_approx(x);
#else
    return exp2f(x);
#endif
}

/** 1 / x to one unit in the last place; 0 above 2^126, where division spends seven more instructions and a branch. */
static __device__ __forceinline__ float st_reciprocal(float x)
{
#ifdef __CUDA_ARCH__
    float y;

    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#elif defined(ST_CUDA_EMULATOR)
    return twin_rcp_approx(x);
#else
    return 1.0f / x;
#endif
}

#endif

/* kernels/scalar.h - one element at a time: what the scalar kernels are made of, and the tails of the others.
 *
 * Plain C on bits and correctly rounded operations, so a file compiled with any instruction set gets the same bits.
 * NaN has one pattern in what kernels write (0x7fc00000, bf16 0x7fc0, fp16 0x7e00): which of two NaN operands a
 * processor hands on is not defined by the C language and differs between instructions. */
#ifndef KERNELS_SCALAR_H
#define KERNELS_SCALAR_H

#include "kernels/kernels.h"
#include <assert.h>
#include <math.h>
#include <string.h>

#define ST_F32_INF  0x7f800000u
#define ST_F32_NAN  0x7fc00000u
#define ST_BF16_NAN 0x7fc0u
#define ST_F16_NAN  0x7e00u
#define ST_F64_NAN  0x7ff8000000000000u
#define ST_F32_MAG  0x7fffffffu /* all but the sign */

/* The least fp32 magnitudes that round to infinity: bf16 with ties away, fp16 with ties to even (65520). */
#define ST_BF16_OVERFLOW 0x7f7f8000u
#define ST_F16_OVERFLOW  0x477ff000u

static inline uint32_t st_f32_bits(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline float st_f32_from_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline bool st_f32_bits_are_nan(uint32_t bits)
{
    return (bits & ST_F32_MAG) > ST_F32_INF;
}

static inline bool st_f32_bits_are_finite(uint32_t bits)
{
    return (bits & ST_F32_MAG) < ST_F32_INF;
}

/** Bits of x, with every NaN as 0x7fc00000. */
static inline uint32_t st_f32_canonical_bits(float x)
{
    const uint32_t bits = st_f32_bits(x);

    return st_f32_bits_are_nan(bits) ? ST_F32_NAN : bits;
}

static inline float st_f32_canonical(float x)
{
    return st_f32_from_bits(st_f32_canonical_bits(x));
}

/** Exact; a NaN keeps its payload. */
static inline float st_bf16_to_f32(uint16_t x)
{
    return st_f32_from_bits((uint32_t)x << 16);
}

/** Nearest, ties to even; NaN: 0x7fc0. */
static inline uint16_t st_f32_to_bf16(float x)
{
    const uint32_t bits = st_f32_bits(x);

    if (st_f32_bits_are_nan(bits))
        return ST_BF16_NAN;
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/** Exact; every NaN becomes 0x7fc00000. */
static inline float st_f16_to_f32(uint16_t x)
{
    const uint32_t sign = (uint32_t)(x & 0x8000u) << 16, mag = x & 0x7fffu;

    if (mag > 0x7c00u)
        return st_f32_from_bits(ST_F32_NAN);
    if (mag == 0x7c00u)
        return st_f32_from_bits(sign | ST_F32_INF);
    if (mag >= 0x0400u)
        return st_f32_from_bits(sign | ((mag << 13) + (112u << 23)));   /* exponent bias 15 -> 127 */
    return st_f32_from_bits(sign | st_f32_bits((float)mag * 0x1p-24f)); /* subnormal: a count of 2^-24 */
}

/** Nearest, ties to even; NaN: 0x7e00. */
static inline uint16_t st_f32_to_f16(float x)
{
    const uint32_t bits = st_f32_bits(x), sign = bits >> 16 & 0x8000u, mag = bits & ST_F32_MAG;

    if (mag > ST_F32_INF)
        return ST_F16_NAN;
    if (mag >= ST_F16_OVERFLOW)
        return (uint16_t)(sign | 0x7c00u);
    if (mag < 0x38800000u) /* below 2^-14: one ulp of x + 0.5 is one fp16 subnormal step, so the addition rounds */
        return (uint16_t)(sign | (st_f32_bits(st_f32_from_bits(mag) + 0.5f) - st_f32_bits(0.5f)));
    return (uint16_t)(sign | ((mag - (112u << 23) + 0xfffu + (mag >> 13 & 1u)) >> 13));
}

/* Split master: bits = (weight << 16) + residual modulo 2^32, for every pattern. */

/** Master bits to bf16, nearest, ties away from zero.  Of a NaN only 0x7fc00000 stays one. */
static inline uint16_t st_split_weight(uint32_t bits)
{
    return (uint16_t)((bits + 0x8000u) >> 16);
}

/** What st_split_weight() left behind. */
static inline int16_t st_split_residual(uint32_t bits)
{
    return (int16_t)(uint16_t)bits;
}

static inline uint32_t st_split_join(uint16_t weight, int16_t residual)
{
    return ((uint32_t)weight << 16) + (uint32_t)(int32_t)residual;
}

/** Whether these finite bits have an infinite weight. */
static inline bool st_split_overflows(uint32_t bits)
{
    return (bits & ST_F32_MAG) >= ST_BF16_OVERFLOW && st_f32_bits_are_finite(bits);
}

/** Element i of an array of `dtype`, widened exactly. */
static inline float st_load_f32(const void *in, strata_dtype dtype, size_t i)
{
    switch (dtype) {
    case STRATA_F32:
        return ((const float *)in)[i];
    case STRATA_BF16:
        return st_bf16_to_f32(((const uint16_t *)in)[i]);
    case STRATA_F16:
        return st_f16_to_f32(((const uint16_t *)in)[i]);
    case STRATA_DTYPE_INVALID:
        break;
    }
    assert(false && "dtype");
    return 0.0f;
}

/** The eight lanes of one gradient-norm block, added in the fixed order. */
static inline double st_norm_tree(const double lane[8])
{
    const double sum = ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
    const uint64_t nan_bits = ST_F64_NAN;
    double nan;

    memcpy(&nan, &nan_bits, sizeof(nan));
    return isnan(sum) ? nan : sum;
}

#endif

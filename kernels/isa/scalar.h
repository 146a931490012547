/* kernels/isa/scalar.h - functions of one element: the scalar kernels are made of them, and so are the tails of the vector
 * kernels.
 *
 * Plain C on bits and correctly rounded operations, so a file compiled with any instruction set gets the same bits.  Kernels
 * write NaN in one pattern only (0x7fc00000, bf16 0x7fc0, fp16 0x7e00): the C language does not define which of two NaN operands
 * an operation returns, and instructions differ. */
#ifndef KERNELS_ISA_SCALAR_H
#define KERNELS_ISA_SCALAR_H

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

/* Stochastic rounding: st_rounding_bits(). */
#define ST_MIX_1   0x7feb352du
#define ST_MIX_2   0x846ca68bu
#define ST_MIX_KEY 0x9e3779b9u

/* Codes of 8 bits: the float of code 0, 2^-15 or 2^-7, whose lower exponent bits are 0, so that the largest code is 1.9375; the
 * number of bits below a code's last one; and the least magnitude that gives a block a scale, 2^-100. */
#define ST_CODE_BASE_SQUARES (112u << 23)
#define ST_CODE_BASE_SIGNED  (120u << 23)
#define ST_CODE_SHIFT        19
#define ST_CODE_LEAST        (27u << 23)

/* The magnitude that a record of NF4 is scaled by if its own is smaller. */
#define ST_NF4_LEAST 1e-38f

/* The least fp32 magnitudes that round to infinity: bf16 with ties away, fp16 with ties to even (65520). */
#define ST_BF16_OVERFLOW 0x7f7f8000u
#define ST_F16_OVERFLOW  0x477ff000u

ST_LEAF uint32_t st_f32_bits(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

ST_LEAF float st_f32_from_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

ST_LEAF bool st_f32_bits_are_nan(uint32_t bits)
{
    return (bits & ST_F32_MAG) > ST_F32_INF;
}

ST_LEAF bool st_f32_bits_are_finite(uint32_t bits)
{
    return (bits & ST_F32_MAG) < ST_F32_INF;
}

/** Bits of x, with every NaN as 0x7fc00000. */
ST_LEAF uint32_t st_f32_canonical_bits(float x)
{
    const uint32_t bits = st_f32_bits(x);

    return st_f32_bits_are_nan(bits) ? ST_F32_NAN : bits;
}

ST_LEAF float st_f32_canonical(float x)
{
    return st_f32_from_bits(st_f32_canonical_bits(x));
}

/** Exact; a NaN keeps its payload. */
ST_LEAF float st_bf16_to_f32(uint16_t x)
{
    return st_f32_from_bits((uint32_t)x << 16);
}

/** Nearest, ties to even; NaN: 0x7fc0. */
ST_LEAF uint16_t st_f32_to_bf16(float x)
{
    const uint32_t bits = st_f32_bits(x);

    if (st_f32_bits_are_nan(bits))
        return ST_BF16_NAN;
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/** Exact; every NaN becomes 0x7fc00000. */
ST_LEAF float st_f16_to_f32(uint16_t x)
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
ST_LEAF uint16_t st_f32_to_f16(float x)
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

/* Split master: bits = (weight << 16) + low_half modulo 2^32, for every pattern. */

/** Master bits to bf16, nearest, ties away from zero.  Only the NaN 0x7fc00000 stays a NaN. */
ST_LEAF uint16_t st_split_weight(uint32_t bits)
{
    return (uint16_t)((bits + 0x8000u) >> 16);
}

/** The remainder that st_split_weight() drops. */
ST_LEAF int16_t st_split_low_half(uint32_t bits)
{
    return (int16_t)(uint16_t)bits;
}

ST_LEAF uint32_t st_split_join(uint16_t weight, int16_t low_half)
{
    return ((uint32_t)weight << 16) + (uint32_t)(int32_t)low_half;
}

/** Whether a master with these finite bits has an infinite weight. */
ST_LEAF bool st_split_overflows(uint32_t bits)
{
    return (bits & ST_F32_MAG) >= ST_BF16_OVERFLOW && st_f32_bits_are_finite(bits);
}

/** Element i of an array of `dtype`, widened exactly. */
ST_LEAF float st_load_f32(const void *in, strata_dtype dtype, size_t i)
{
    switch (dtype) {
    case STRATA_F32:
        return ((const float *)in)[i];
    case STRATA_BF16:
        return st_bf16_to_f32(((const uint16_t *)in)[i]);
    case STRATA_F16:
        return st_f16_to_f32(((const uint16_t *)in)[i]);
    case STRATA_NF4:
    case STRATA_DTYPE_INVALID:
        break;
    }
    assert(false && "dtype");
    return 0.0f;
}

/* Stochastic rounding of moments. */

/** Random bits of the element at `position`.  Mixes a counter by two multiplications, adding a key before each.  Rounding needs
 * no better generator, and Philox would cost as much as the step. */
ST_LEAF uint32_t st_rounding_bits(uint64_t key, uint64_t position)
{
    uint32_t x = ((uint32_t)position + (uint32_t)key) * ST_MIX_1;

    x ^= x >> 15;
    x += (uint32_t)(key >> 32) + (uint32_t)(position >> 32) * ST_MIX_KEY;
    x *= ST_MIX_2;
    return x ^ x >> 16;
}

/** The part of those bits used for moment1 (which: 0; the lowest bits) or moment2 (1; the highest), below 2^width. */
ST_LEAF uint32_t st_rounding_part(uint32_t random, int which, int width)
{
    return which == 0 ? random & ((1u << width) - 1u) : random >> (32 - width);
}

/** Stochastically rounded by 16 random bits; NaN: 0x7fc0.  A value above the largest finite bf16 may become infinite. */
ST_LEAF uint16_t st_f32_to_bf16_random(float x, uint32_t random16)
{
    return (uint16_t)((st_f32_canonical_bits(x) + random16) >> 16);
}

/* Codes of moments in 8 bits.  The codes of one sign are the floats with 4 bits of mantissa from the base on, minus the base: so
 * they begin at 0 with even spacing and need no subnormals.  A code of the other sign also has bit 0x80. */

/** Whether a moment of `rule` is a sum of squares; which: 0 for moment1, 1 for moment2. */
ST_LEAF bool st_moment_is_squares(enum st_rule rule, int which)
{
    return rule == ST_RULE_ADAM ? which == 1 : rule == ST_RULE_ADAGRAD;
}

ST_LEAF uint32_t st_code_base(bool squares)
{
    return squares ? ST_CODE_BASE_SQUARES : ST_CODE_BASE_SIGNED;
}

/** Magnitude of the largest code at scale 1. */
ST_LEAF float st_code_most(bool squares)
{
    const uint32_t base = st_code_base(squares), count = squares ? 255u : 127u;

    return st_f32_from_bits(base + (count << ST_CODE_SHIFT)) - st_f32_from_bits(base);
}

ST_LEAF float st_code_decode(uint8_t code, float scale, bool squares)
{
    const uint32_t base = st_code_base(squares), count = squares ? code : code & 0x7fu;
    const float mag = st_f32_from_bits(base + (count << ST_CODE_SHIFT)), zero = st_f32_from_bits(base) * scale;

    return squares || code < 0x80u ? fmaf(mag, scale, -zero) : fmaf(-mag, scale, zero);
}

/** The scale of a block whose largest magnitude has the bits `most`, and the factor by which its moments are multiplied before
 *  they are encoded. */
ST_LEAF float st_code_scale(uint32_t most, bool squares, float *inverse)
{
    *inverse = 0.0f;
    if (most >= ST_F32_INF)
        return st_f32_from_bits(ST_F32_NAN);
    if (most < ST_CODE_LEAST)
        return 0.0f;
    /* one ulp less, so that not even the largest moment is rounded above the last code */
    *inverse = st_f32_from_bits(st_f32_bits(st_code_most(squares) / st_f32_from_bits(most)) - 1u);
    return st_f32_from_bits(most) / st_code_most(squares);
}

/** Stochastically rounded by ST_CODE_SHIFT random bits.  An inverse of 0 gives code 0; otherwise squares get at least code 1. */
ST_LEAF uint8_t st_code_encode(float x, float inverse, uint32_t random, bool squares)
{
    const uint32_t base = st_code_base(squares), bits = st_f32_bits(x), mag = squares ? bits : bits & ST_F32_MAG;
    uint32_t code;

    if (inverse == 0.0f)
        return 0;
    code = (st_f32_bits(fmaf(st_f32_from_bits(mag), inverse, st_f32_from_bits(base))) + random) >> ST_CODE_SHIFT;
    code -= base >> ST_CODE_SHIFT;
    if (squares)
        return (uint8_t)(code == 0 ? 1 : code);
    return (uint8_t)(code | (bits >> 24 & 0x80u));
}

/** Write element i, rounded to `dtype`. */
ST_LEAF void st_store_f32(void *out, strata_dtype dtype, size_t i, float x)
{
    switch (dtype) {
    case STRATA_F32:
        ((float *)out)[i] = x;
        return;
    case STRATA_BF16:
        ((uint16_t *)out)[i] = st_f32_to_bf16(x);
        return;
    case STRATA_F16:
        ((uint16_t *)out)[i] = st_f32_to_f16(x);
        return;
    case STRATA_NF4:
    case STRATA_DTYPE_INVALID:
        break;
    }
    assert(false && "dtype");
}

/** Write element i of acc as `dtype`; returns the rounded value. */
ST_LEAF float st_finish_element(void *out, strata_dtype dtype, const float *acc, size_t i)
{
    st_store_f32(out, dtype, i, acc[i]);
    return st_load_f32(out, dtype, i);
}

/** The eight lanes of one gradient-norm block, added in the fixed order. */
ST_LEAF double st_norm_tree(const double lane[8])
{
    const double sum = ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
    const uint64_t nan_bits = ST_F64_NAN;
    double nan;

    memcpy(&nan, &nan_bits, sizeof(nan));
    return isnan(sum) ? nan : sum;
}

#endif

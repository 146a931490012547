/* tests/cuda/emulator/tensor_core.h - how tensor cores add, and what approximate instructions miss: for kernels and for blas.c.
 *
 * A step adds 8 products to a sum: all nine are aligned to the largest one's exponent, cut below one bit under fp32's last, added
 * exactly, and cut to fp32.  So an A100; an H100 adds 16 products a step and cuts one bit lower.
 * Source: Fasi et al., "Numerical behavior of NVIDIA tensor cores", PeerJ CS 330 (2021); Khattak and Mikaitis, "Accurate models
 * of NVIDIA tensor cores", arXiv:2512.07004. */
#ifndef TESTS_CUDA_EMULATOR_TENSOR_CORE_H
#define TESTS_CUDA_EMULATOR_TENSOR_CORE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TWIN_STEP 8 /* products that a step adds */
#define TWIN_WIDE 8 /* sums side by side */

/* An exponent field below which, or from which on, sums are rounded once: tiny ones, and infinities and NaN. */
enum { TWIN_EXPONENT_LEAST = 26, TWIN_EXPONENT_END = 255, TWIN_EXTRA_BITS = 24 };

static inline uint32_t twin_float_bits(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline float twin_bits_float(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Towards zero; |x| < 2^30. */
static inline float twin_cut(int32_t x)
{
    const int32_t size = x < 0 ? -x : x;
    const float near = (float)size;
    const float cut = twin_bits_float(twin_float_bits(near) - ((int32_t)near > size ? 1u : 0u));

    return x < 0 ? -cut : cut;
}

/* Of one sum: products [TWIN_STEP]. */
static inline float twin_round_once(float c, const float *a, const float *b, size_t b_stride)
{
    double sum = (double)c;

    for (int k = 0; k < TWIN_STEP; k++)
        sum += (double)a[k] * (double)b[(size_t)k * b_stride];
    return (float)sum;
}

/* c[i] += the sum of a[k] b[k][i], k < TWIN_STEP, for TWIN_WIDE sums; rows of b are b_stride apart.  Products of bf16 and fp16
 * are exact in fp32. */
static inline void twin_tensor_step(float *c, const float *a, const float *b, size_t b_stride)
{
    float products[TWIN_STEP][TWIN_WIDE], scale[TWIN_WIDE], back[TWIN_WIDE];
    int32_t most[TWIN_WIDE], sum[TWIN_WIDE], special[TWIN_WIDE], specials = 0;

    for (int i = 0; i < TWIN_WIDE; i++)
        most[i] = (int32_t)(twin_float_bits(c[i]) & 0x7fffffffu);
    for (int k = 0; k < TWIN_STEP; k++)
        for (int i = 0; i < TWIN_WIDE; i++) {
            const float product = a[k] * b[(size_t)k * b_stride + (size_t)i];
            const int32_t size = (int32_t)(twin_float_bits(product) & 0x7fffffffu);

            products[k][i] = product;
            most[i] = most[i] < size ? size : most[i];
        }
    for (int i = 0; i < TWIN_WIDE; i++) {
        const int32_t exponent = most[i] >> 23;

        special[i] = (exponent < TWIN_EXPONENT_LEAST) | (exponent == TWIN_EXPONENT_END);
        specials |= special[i];
        scale[i] = special[i] ? 0.0f : twin_bits_float((uint32_t)(254 + TWIN_EXTRA_BITS - exponent) << 23);
        back[i] = special[i] ? 0.0f : twin_bits_float((uint32_t)(exponent - TWIN_EXTRA_BITS) << 23);
    }
    if (specials) {
        for (int i = 0; i < TWIN_WIDE; i++)
            c[i] = twin_round_once(c[i], a, b + i, b_stride);
        return;
    }
    for (int i = 0; i < TWIN_WIDE; i++)
        sum[i] = (int32_t)(c[i] * scale[i]);
    for (int k = 0; k < TWIN_STEP; k++)
        for (int i = 0; i < TWIN_WIDE; i++)
            sum[i] += (int32_t)(products[k][i] * scale[i]);
    for (int i = 0; i < TWIN_WIDE; i++)
        c[i] = twin_cut(sum[i]) * back[i];
}

/* A value that misses `exact` by up to so many units in the last place, always by the same at one x. */
static inline float twin_miss(float exact, float x, uint32_t units)
{
    const uint32_t mixed = (twin_float_bits(x) * 2654435761u) >> 16;

    if (!isfinite(exact) || fabsf(exact) < 0x1p-120f || fabsf(exact) > 0x1p120f)
        return exact;
    return twin_bits_float(twin_float_bits(exact) + mixed % (2 * units + 1) - units);
}

/* ex2.approx.ftz.f32: two units; exact at 0.  Source: PTX ISA, "ex2". */
static inline float twin_ex2_approx(float x)
{
    return x == 0 ? 1.0f : x < -126 ? 0.0f : twin_miss(exp2f(x), x, 2);
}

/* rcp.approx.ftz.f32: one unit; subnormals are zeros.  Source: PTX ISA, "rcp". */
static inline float twin_rcp_approx(float x)
{
    return fabsf(x) > 0x1p126f ? copysignf(0.0f, x) : twin_miss(1.0f / (fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x), x, 1);
}

#endif

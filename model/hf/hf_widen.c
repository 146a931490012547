/* model/hf/hf_widen.c - see hf_widen_internal.h. */
#include "core/system/file.h"
#include "model/hf/hf_widen_internal.h"
#include <string.h>

static float float_of_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Exact: subnormal halves are whole multiples of 2^-24. */
static float float_of_half(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = half >> 10 & 31u, mantissa = half & 1023u;

    if (exponent == 0) {
        const float value = (float)mantissa * 0x1p-24f;

        return sign != 0 ? -value : value;
    }
    if (exponent == 31)
        return float_of_bits(sign | 0x7f800000u | mantissa << 13);
    return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

/* Values taken out of the way of the results, so that the compiler may use vectors. */
#define WIDEN_VALUES 256u

static void widen_some(float *out, const unsigned char *in, uint64_t count, strata_dtype dtype)
{
    uint16_t halves[WIDEN_VALUES];

    for (uint64_t i = 0; i < count; i++)
        halves[i] = (uint16_t)(in[2 * i] | in[2 * i + 1] << 8);
    for (uint64_t i = 0; i < count && dtype == STRATA_BF16; i++)
        out[i] = float_of_bits((uint32_t)halves[i] << 16);
    for (uint64_t i = 0; i < count && dtype == STRATA_F16; i++)
        out[i] = float_of_half(halves[i]);
}

/* The 16-bit values are in the second half of out, so a value is read before anything overwrites it. */
static void widen(float *out, uint64_t count, strata_dtype dtype)
{
    const unsigned char *in = (const unsigned char *)out + count * 2;

    for (uint64_t at = 0; at < count; at += WIDEN_VALUES)
        widen_some(out + at, in + 2 * at, count - at < WIDEN_VALUES ? count - at : WIDEN_VALUES, dtype);
}

strata_status st_hf_read_widened(int fd, const char *path, uint64_t begin, strata_dtype dtype, uint64_t first, uint64_t count,
                                 float *out)
{
    const uint64_t elem_bytes = strata_dtype_bytes(dtype);
    unsigned char *at = (unsigned char *)out + count * (sizeof(float) - elem_bytes);
    const strata_status st = st_file_read_at(fd, at, count * elem_bytes, begin + first * elem_bytes, path);

    if (st == STRATA_OK && dtype != STRATA_F32)
        widen(out, count, dtype);
    return st;
}

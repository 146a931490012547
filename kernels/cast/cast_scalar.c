/* kernels/cast/cast_scalar.c - split, join, casts and addition, the definition. */
#include "kernels/isa/isa.h"
#include "kernels/isa/scalar.h"

void st_master_split_scalar(uint16_t *weight, int16_t *low_half, const float *master, size_t elems)
{
    for (size_t i = 0; i < elems; i++) {
        const uint32_t bits = st_f32_canonical_bits(master[i]);

        weight[i] = st_split_weight(bits);
        low_half[i] = st_split_low_half(bits);
    }
}

void st_master_join_scalar(float *master, const uint16_t *weight, const int16_t *low_half, size_t elems)
{
    for (size_t i = 0; i < elems; i++)
        master[i] = st_f32_from_bits(st_split_join(weight[i], low_half[i]));
}

void st_f32_to_bf16_scalar(uint16_t *out, const float *in, size_t elems)
{
    for (size_t i = 0; i < elems; i++)
        out[i] = st_f32_to_bf16(in[i]);
}

void st_bf16_to_f32_scalar(float *out, const uint16_t *in, size_t elems)
{
    for (size_t i = 0; i < elems; i++)
        out[i] = st_bf16_to_f32(in[i]);
}

void st_f32_to_f16_scalar(uint16_t *out, const float *in, size_t elems)
{
    for (size_t i = 0; i < elems; i++)
        out[i] = st_f32_to_f16(in[i]);
}

void st_f16_to_f32_scalar(float *out, const uint16_t *in, size_t elems)
{
    for (size_t i = 0; i < elems; i++)
        out[i] = st_f16_to_f32(in[i]);
}

void st_add_f32_scalar(float *acc, const float *in, size_t elems)
{
    for (size_t i = 0; i < elems; i++)
        acc[i] = st_f32_canonical(acc[i] + in[i]);
}

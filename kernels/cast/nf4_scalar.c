/* kernels/cast/nf4_scalar.c - NF4, the definition. */
#include "kernels/isa/isa.h"
#include "kernels/isa/scalar.h"

static const float values[16] = ST_NF4_VALUES;

/* How many of the fifteen bounds between two values x is above.  Binary search: a NaN is above all. */
static uint8_t code_of(float x)
{
    uint32_t code = 0;

    for (uint32_t step = 8; step > 0; step /= 2) {
        const float bound = (values[code + step - 1] + values[code + step]) / 2.0f;

        if (!(x <= bound))
            code += step;
    }
    return (uint8_t)code;
}

void st_nf4_quantise_scalar(struct st_nf4_block *out, const float *in, size_t elems)
{
    for (; elems > 0; out++) {
        const size_t count = elems < ST_NF4_ELEMS ? elems : ST_NF4_ELEMS;
        uint32_t most = 0;

        for (size_t i = 0; i < count; i++) {
            const uint32_t mag = st_f32_bits(in[i]) & ST_F32_MAG;

            most = mag > most ? mag : most;
        }
        const float absmax = st_f32_from_bits(most), divisor = absmax < ST_NF4_LEAST ? ST_NF4_LEAST : absmax;
        const float inverse = 1.0f / divisor;

        out->absmax = count < ST_NF4_ELEMS ? divisor : absmax;
        for (size_t i = 0; i < ST_NF4_ELEMS; i += 2) {
            float pair[2] = {0.0f, 0.0f};

            for (size_t j = 0; j < 2 && i + j < count; j++)
                pair[j] = count < ST_NF4_ELEMS ? in[i + j] / divisor : in[i + j] * inverse;
            out->codes[i / 2] = (uint8_t)(code_of(pair[0]) << 4 | code_of(pair[1]));
        }
        in += count;
        elems -= count;
    }
}

void st_nf4_widen_scalar(void *out, strata_dtype dtype, const struct st_nf4_block *in, size_t elems)
{
    for (size_t i = 0; i < elems; i++) {
        const struct st_nf4_block *const b = &in[i / ST_NF4_ELEMS];
        const uint32_t pair = b->codes[i % ST_NF4_ELEMS / 2];
        const float x = st_f32_canonical(values[i % 2 == 0 ? pair >> 4 : pair & 15u] * b->absmax);

        st_store_f32(out, dtype, i, x);
    }
}

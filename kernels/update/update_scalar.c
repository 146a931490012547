/* kernels/update/update_scalar.c - the update of arrays, the definition: opens blocks of moments, steps them and closes them
 * again. */
#include "kernels/isa/isa.h"
#include "kernels/update/update_step.h"

/* --- moments --- */

/* Where the codes of a block begin; *scale is its scale. */
static uint8_t *code_block(void *plane, size_t first, float **scale)
{
    unsigned char *const pack = (unsigned char *)plane + st_moment_bytes(ST_MOMENTS_8BIT, first / ST_NORM_BLOCK * ST_NORM_BLOCK);
    const size_t at = first % ST_NORM_BLOCK;

    *scale = (float *)(void *)pack + at / ST_MOMENT_BLOCK;
    return pack + ST_NORM_BLOCK / ST_MOMENT_BLOCK * sizeof(float) + at;
}

static void open_plane(float *out, const struct st_moments *moments, enum st_rule rule, int which, size_t first, size_t elems)
{
    void *const plane = which == 0 ? moments->moment1 : moments->moment2;
    const bool squares = st_moment_is_squares(rule, which);
    const uint8_t *codes;
    float *scale;

    if (moments->format == ST_MOMENTS_BF16) {
        for (size_t i = 0; i < elems; i++)
            out[i] = st_bf16_to_f32(((const uint16_t *)plane)[first + i]);
        return;
    }
    codes = code_block(plane, first, &scale);
    for (size_t i = 0; i < elems; i++)
        out[i] = st_code_decode(codes[i], *scale, squares);
}

void st_moments_open(struct st_moment_block *o, const struct st_moments *moments, enum st_rule rule, size_t first, size_t elems)
{
    const bool two = st_rule_moments(rule) == 2;

    if (moments->format == ST_MOMENTS_F32) {
        o->moment1 = (float *)moments->moment1 + first;
        o->moment2 = two ? (float *)moments->moment2 + first : NULL;
        return;
    }
    o->moment1 = o->buffer[0];
    o->moment2 = two ? o->buffer[1] : NULL;
    for (int which = 0; which <= (int)two; which++)
        open_plane(o->buffer[which], moments, rule, which, first, elems);
}

void st_moment_close(const float *in, const struct st_moments *moments, const struct st_update_coef *coef, int which,
                     size_t first, size_t elems)
{
    void *const plane = which == 0 ? moments->moment1 : moments->moment2;
    const bool squares = st_moment_is_squares(coef->rule, which);
    uint32_t most = 0, random;
    float *scale, inverse;
    uint8_t *codes;

    if (moments->format == ST_MOMENTS_BF16) {
        for (size_t i = 0; i < elems; i++) {
            random = st_rounding_bits(coef->rounding_key, moments->position + first + i);
            ((uint16_t *)plane)[first + i] = st_f32_to_bf16_random(in[i], st_rounding_part(random, which, 16));
        }
        return;
    }
    for (size_t i = 0; i < elems; i++) {
        const uint32_t mag = st_f32_bits(in[i]) & ST_F32_MAG;

        most = mag > most ? mag : most;
    }
    codes = code_block(plane, first, &scale);
    *scale = st_code_scale(most, squares, &inverse);
    for (size_t i = 0; i < elems; i++) {
        random = st_rounding_bits(coef->rounding_key, moments->position + first + i);
        codes[i] = st_code_encode(in[i], inverse, st_rounding_part(random, which, ST_CODE_SHIFT), squares);
    }
}

void st_moments_close(const struct st_moment_block *o, const struct st_moments *moments, const struct st_update_coef *coef,
                      size_t first, size_t elems)
{
    if (moments->format == ST_MOMENTS_F32)
        return;
    st_moment_close(o->moment1, moments, coef, 0, first, elems);
    if (o->moment2 != NULL)
        st_moment_close(o->moment2, moments, coef, 1, first, elems);
}

/* --- masters --- */

static size_t block_elems(size_t first, size_t elems)
{
    return elems - first < ST_MOMENT_BLOCK ? elems - first : ST_MOMENT_BLOCK;
}

uint64_t st_update_split_scalar(uint16_t *weight, int16_t *low_half, const struct st_moments *moments, const void *grad,
                                strata_dtype grad_dtype, size_t elems, const struct st_update_coef *coef)
{
    uint64_t overflow_count = 0;
    struct st_moment_block o;

    for (size_t first = 0; first < elems; first += ST_MOMENT_BLOCK) {
        const size_t count = block_elems(first, elems);

        st_moments_open(&o, moments, coef->rule, first, count);
        for (size_t i = 0, e = first; i < count; i++, e++) {
            const float p = st_f32_from_bits(st_split_join(weight[e], low_half[e]));
            const float g = st_load_f32(grad, grad_dtype, e);
            const uint32_t bits =
                st_f32_bits(st_update_step(p, &o.moment1[i], o.moment2 == NULL ? NULL : &o.moment2[i], g, coef));

            weight[e] = st_split_weight(bits);
            low_half[e] = st_split_low_half(bits);
            overflow_count += st_split_overflows(bits);
        }
        st_moments_close(&o, moments, coef, first, count);
    }
    return overflow_count;
}

uint64_t st_update_master_scalar(float *master, uint16_t *copy_out, strata_dtype copy_dtype, const struct st_moments *moments,
                                 const void *grad, strata_dtype grad_dtype, size_t elems, const struct st_update_coef *coef)
{
    uint64_t overflow_count = 0;
    struct st_moment_block o;

    for (size_t first = 0; first < elems; first += ST_MOMENT_BLOCK) {
        const size_t count = block_elems(first, elems);

        st_moments_open(&o, moments, coef->rule, first, count);
        for (size_t i = 0, e = first; i < count; i++, e++) {
            const float g = st_load_f32(grad, grad_dtype, e);

            master[e] = st_update_step(master[e], &o.moment1[i], o.moment2 == NULL ? NULL : &o.moment2[i], g, coef);
            if (copy_out != NULL)
                copy_out[e] = st_copy_element(master[e], copy_dtype, &overflow_count);
        }
        st_moments_close(&o, moments, coef, first, count);
    }
    return overflow_count;
}

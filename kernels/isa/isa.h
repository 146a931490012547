/* kernels/isa/isa.h - the kernels of every instruction set, for the tables in isa_dispatch.c and for sets that use another set's
 * kernels. */
#ifndef KERNELS_ISA_ISA_H
#define KERNELS_ISA_ISA_H

#include "kernels/kernels.h"

st_update_split_fn st_update_split_scalar, st_update_split_avx2, st_update_split_avx512, st_update_split_neon;
st_update_master_fn st_update_master_scalar, st_update_master_avx2, st_update_master_avx512, st_update_master_neon;
st_grad_finish_fn st_grad_finish_scalar, st_grad_finish_avx2, st_grad_finish_avx512, st_grad_finish_neon;
st_master_split_fn st_master_split_scalar, st_master_split_avx2, st_master_split_avx512, st_master_split_neon;
st_master_join_fn st_master_join_scalar, st_master_join_avx2, st_master_join_avx512, st_master_join_neon;
st_cast_f32_bf16_fn st_f32_to_bf16_scalar, st_f32_to_bf16_avx2, st_f32_to_bf16_avx512, st_f32_to_bf16_neon;
st_cast_bf16_f32_fn st_bf16_to_f32_scalar, st_bf16_to_f32_avx2, st_bf16_to_f32_avx512, st_bf16_to_f32_neon;
st_cast_f32_f16_fn st_f32_to_f16_scalar, st_f32_to_f16_avx2, st_f32_to_f16_avx512, st_f32_to_f16_neon;
st_cast_f16_f32_fn st_f16_to_f32_scalar, st_f16_to_f32_avx2, st_f16_to_f32_avx512, st_f16_to_f32_neon;
st_nf4_quantise_fn st_nf4_quantise_scalar, st_nf4_quantise_avx2, st_nf4_quantise_avx512, st_nf4_quantise_neon;
st_nf4_widen_fn st_nf4_widen_scalar, st_nf4_widen_avx2, st_nf4_widen_avx512, st_nf4_widen_neon;
st_add_f32_fn st_add_f32_scalar, st_add_f32_avx2, st_add_f32_avx512, st_add_f32_neon;

/* The moments of up to one block as fp32: in place, or in a buffer. */
struct st_moment_block {
    float *moment1, *moment2; /* moment2 NULL: none */
    float buffer[2][ST_MOMENT_BLOCK];
};

/** Moments of elements first..first + elems - 1, at most ST_MOMENT_BLOCK; in 8 bits, `first` must begin a block and the elements
 *  must be all that it has. */
void st_moments_open(struct st_moment_block *o, const struct st_moments *moments, enum st_rule rule, size_t first, size_t elems);
/** Round and store them again. */
void st_moments_close(const struct st_moment_block *o, const struct st_moments *moments, const struct st_update_coef *coef,
                      size_t first, size_t elems);
/* The same of one of them. */
void st_moment_close(const float *in, const struct st_moments *moments, const struct st_update_coef *coef, int which,
                     size_t first, size_t elems);

#endif

/* kernels/isa.h - the kernels of every instruction set, for the tables in dispatch.c and for one set's use of another. */
#ifndef KERNELS_ISA_H
#define KERNELS_ISA_H

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
st_add_f32_fn st_add_f32_scalar, st_add_f32_avx2, st_add_f32_avx512, st_add_f32_neon;

#endif

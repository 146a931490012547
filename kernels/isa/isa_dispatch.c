/* kernels/isa/isa_dispatch.c - the table of kernels per instruction set, and the choice among them.  Best first; scalar, which
 * works everywhere, last. */
#include "core/base/cpu.h"
#include "kernels/isa/isa.h"
#include "kernels/ops/ops.h"
#include <string.h>

static const struct st_kernels tables[] = {
#if defined(__x86_64__)
    {
        .name = "avx512",
        .needs = ST_CPU_AVX2_FMA | ST_CPU_AVX512,
        .update_split = st_update_split_avx512,
        .update_master = st_update_master_avx512,
        .grad_finish = st_grad_finish_avx512,
        .master_split = st_master_split_avx512,
        .master_join = st_master_join_avx512,
        .f32_to_bf16 = st_f32_to_bf16_avx512,
        .bf16_to_f32 = st_bf16_to_f32_avx512,
        .add_f32 = st_add_f32_avx512,
        .ops = &st_ops_avx512,
        .f32_to_f16 = st_f32_to_f16_avx512,
        .f16_to_f32 = st_f16_to_f32_avx512,
        .nf4_quantise = st_nf4_quantise_avx512,
        .nf4_widen = st_nf4_widen_avx512,
    },
    {
        .name = "avx2",
        .needs = ST_CPU_AVX2_FMA,
        .update_split = st_update_split_avx2,
        .update_master = st_update_master_avx2,
        .grad_finish = st_grad_finish_avx2,
        .master_split = st_master_split_avx2,
        .master_join = st_master_join_avx2,
        .f32_to_bf16 = st_f32_to_bf16_avx2,
        .bf16_to_f32 = st_bf16_to_f32_avx2,
        .add_f32 = st_add_f32_avx2,
        .ops = &st_ops_avx2,
        .f32_to_f16 = st_f32_to_f16_avx2,
        .f16_to_f32 = st_f16_to_f32_avx2,
        .nf4_quantise = st_nf4_quantise_avx2,
        .nf4_widen = st_nf4_widen_avx2,
    },
#elif defined(__aarch64__)
    {
        .name = "neon",
        .needs = ST_CPU_NEON,
        .update_split = st_update_split_neon,
        .update_master = st_update_master_neon,
        .grad_finish = st_grad_finish_neon,
        .master_split = st_master_split_neon,
        .master_join = st_master_join_neon,
        .f32_to_bf16 = st_f32_to_bf16_neon,
        .bf16_to_f32 = st_bf16_to_f32_neon,
        .add_f32 = st_add_f32_neon,
        .ops = &st_ops_scalar, /* four lanes: the compiler makes NEON code of it */
        .f32_to_f16 = st_f32_to_f16_neon,
        .f16_to_f32 = st_f16_to_f32_neon,
        .nf4_quantise = st_nf4_quantise_neon,
        .nf4_widen = st_nf4_widen_neon,
    },
#endif
    {
        .name = "scalar",
        .needs = 0,
        .update_split = st_update_split_scalar,
        .update_master = st_update_master_scalar,
        .grad_finish = st_grad_finish_scalar,
        .master_split = st_master_split_scalar,
        .master_join = st_master_join_scalar,
        .f32_to_bf16 = st_f32_to_bf16_scalar,
        .bf16_to_f32 = st_bf16_to_f32_scalar,
        .add_f32 = st_add_f32_scalar,
        .ops = &st_ops_scalar,
        .f32_to_f16 = st_f32_to_f16_scalar,
        .f16_to_f32 = st_f16_to_f32_scalar,
        .nf4_quantise = st_nf4_quantise_scalar,
        .nf4_widen = st_nf4_widen_scalar,
    },
};

const struct st_kernels *st_kernels_usable(size_t i)
{
    const uint32_t have = st_cpu_features();

    for (size_t t = 0; t < sizeof(tables) / sizeof(tables[0]); t++) {
        if ((tables[t].needs & ~have) != 0)
            continue;
        if (i == 0)
            return &tables[t];
        i--;
    }
    return NULL;
}

const struct st_kernels *st_kernels_pick(const char *want)
{
    const struct st_kernels *table;

    if (want == NULL || strcmp(want, "auto") == 0)
        return st_kernels_usable(0);
    for (size_t i = 0; (table = st_kernels_usable(i)) != NULL; i++) {
        if (strcmp(table->name, want) == 0)
            return table;
    }
    return NULL;
}

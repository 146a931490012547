/* tests/kernels/update_scalar_fma.h - the scalar kernels compiled with -mfma, in which fmaf is an instruction. */
#ifndef TESTS_KERNELS_UPDATE_SCALAR_FMA_H
#define TESTS_KERNELS_UPDATE_SCALAR_FMA_H

#include "core/base/cpu.h"
#include "tests/common/test.h"
#include "tests/kernels/update_fixture.h"

extern st_update_split_fn st_update_split_scalar_fma;
extern st_update_master_fn st_update_master_scalar_fma;

/** From the source: their bits are those of the scalar ones.  Skips the test where the processor lacks the instruction. */
static inline void uf_compare_with_fma(struct uf_arrays *a, const struct uf_case *c)
{
    const struct st_kernels fma = {"scalar with -mfma", 0, .update_split = st_update_split_scalar_fma,
                                   .update_master = st_update_master_scalar_fma};

    if ((st_cpu_features() & ST_CPU_AVX2_FMA) == 0)
        skip();
    uf_take_source(a, 0);
    uf_take_source(a, 1);
    assert_int_equal(uf_run(&fma, a, 0, c), uf_run(kf_scalar(), a, 1, c));
    uf_assert_same(a, fma.name, c);
}

#endif

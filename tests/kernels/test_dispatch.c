/* The choice of a kernel table: by name, by what the processor has, and never a table with a hole. */
#include "core/base/cpu.h"
#include "kernels/kernels.h"
#include "kernels/ops/ops.h"
#include "tests/common/test.h"
#include <string.h>

TEST(scalar_is_last_and_always_there)
{
    const struct st_kernels *last = NULL;
    size_t count = 0;

    for (const struct st_kernels *t; (t = st_kernels_usable(count)) != NULL; count++)
        last = t;
    assert_true(count >= 1);
    assert_string_equal(last->name, "scalar");
    assert_int_equal(last->needs, 0);
    assert_null(st_kernels_usable(count + 1));
    assert_null(st_kernels_usable(SIZE_MAX));
}

TEST(auto_is_the_best)
{
    assert_ptr_equal(st_kernels_pick(NULL), st_kernels_usable(0));
    assert_ptr_equal(st_kernels_pick("auto"), st_kernels_usable(0));
}

TEST(names_find_their_table)
{
    const struct st_kernels *t;

    for (size_t i = 0; (t = st_kernels_usable(i)) != NULL; i++)
        assert_ptr_equal(st_kernels_pick(t->name), t);
    assert_null(st_kernels_pick(""));
    assert_null(st_kernels_pick("Scalar"));
    assert_null(st_kernels_pick("avx1024"));
}

TEST(avx2_follows_the_processor)
{
    const struct st_kernels *const avx2 = st_kernels_pick("avx2");

    if ((st_cpu_features() & ST_CPU_AVX2_FMA) != 0)
        assert_non_null(avx2);
    else
        assert_null(avx2);
}

TEST(avx512_follows_the_processor)
{
    const uint32_t needs = ST_CPU_AVX512 | ST_CPU_AVX2_FMA;
    const struct st_kernels *const avx512 = st_kernels_pick("avx512");

    if ((st_cpu_features() & needs) == needs)
        assert_ptr_equal(avx512, st_kernels_usable(0));
    else
        assert_null(avx512);
}

TEST(neon_is_the_best_of_aarch64)
{
    const struct st_kernels *const neon = st_kernels_pick("neon");

    if ((st_cpu_features() & ST_CPU_NEON) != 0)
        assert_ptr_equal(neon, st_kernels_usable(0));
    else
        assert_null(neon);
#if defined(__aarch64__)
    assert_non_null(neon);
#endif
}

/* A table of ops is a name and function pointers. */
static void assert_no_holes(const struct st_ops *ops)
{
    static const unsigned char hole[sizeof(void *)];
    const unsigned char *const bytes = (const unsigned char *)ops;

    for (size_t i = 0; i < sizeof(*ops); i += sizeof(void *))
        assert_memory_not_equal(bytes + i, hole, sizeof(hole));
}

TEST(tables_are_whole)
{
    const struct st_kernels *t;

    for (size_t i = 0; (t = st_kernels_usable(i)) != NULL; i++) {
        assert_int_equal(t->needs & ~st_cpu_features(), 0);
        assert_non_null(t->update_split);
        assert_non_null(t->update_master);
        assert_non_null(t->grad_finish);
        assert_non_null(t->master_split);
        assert_non_null(t->master_join);
        assert_non_null(t->f32_to_bf16);
        assert_non_null(t->bf16_to_f32);
        assert_non_null(t->add_f32);
        assert_non_null(t->f32_to_f16);
        assert_non_null(t->f16_to_f32);
        assert_non_null(t->ops);
        assert_string_equal(t->ops->name, strcmp(t->name, "neon") == 0 ? "scalar" : t->name); /* it has none of its own */
        assert_no_holes(t->ops);
    }
}

/* tests/kernels/test_nf4.c - NF4: every table against what bitsandbytes makes of the same tensors (tests/golden/nf4, made by
 * tools/make_golden_nf4.py), and against scalar by memcmp.
 *
 *     test_kernels_nf4 [FILE]     FILE: other tensors, written by the same tool */
#include "kernels/isa/scalar.h"
#include "tests/common/test.h"
#include "tests/kernels/kernel_fixture.h"
#include <stdio.h>
#include <stdlib.h>

#define ELEMS_MAX   100000u
#define BLOCKS_MAX  (ELEMS_MAX / ST_NF4_ELEMS + 1u)
#define LENGTHS_MAX 200u

static const strata_dtype dtypes[] = {STRATA_F32, STRATA_BF16, STRATA_F16};
static const char *golden = "tests/golden/nf4/tensors.bin";

/* A tensor of the file. */
struct tensor {
    uint32_t elems;
    float in[ELEMS_MAX], absmax[BLOCKS_MAX];
    uint8_t codes[ELEMS_MAX / 2 + 1];
    unsigned char widened[3][ELEMS_MAX * sizeof(float)]; /* by dtypes[] */
};

static void must_read(FILE *file, void *out, size_t bytes)
{
    assert_int_equal(fread(out, 1, bytes, file), bytes);
}

static bool next(FILE *file, struct tensor *t)
{
    if (fread(&t->elems, 1, sizeof(t->elems), file) != sizeof(t->elems))
        return false;
    assert_in_range(t->elems, 1, ELEMS_MAX);
    must_read(file, t->in, t->elems * sizeof(float));
    must_read(file, t->absmax, (t->elems + ST_NF4_ELEMS - 1) / ST_NF4_ELEMS * sizeof(float));
    must_read(file, t->codes, (t->elems + 1) / 2);
    for (size_t d = 0; d < 3; d++)
        must_read(file, t->widened[d], t->elems * strata_dtype_bytes(dtypes[d]));
    return true;
}

static void check_quantise(const struct st_kernels *k, const struct tensor *t, uint32_t index)
{
    static struct st_nf4_block blocks[BLOCKS_MAX];

    k->nf4_quantise(blocks, t->in, t->elems);
    for (uint32_t i = 0; i < t->elems; i++) {
        const struct st_nf4_block *const b = &blocks[i / ST_NF4_ELEMS];

        if (st_f32_bits(b->absmax) != st_f32_bits(t->absmax[i / ST_NF4_ELEMS]))
            fail_msg("%s: tensor %u, block %u: magnitude %a, not %a", k->name, index, i / ST_NF4_ELEMS, (double)b->absmax,
                     (double)t->absmax[i / ST_NF4_ELEMS]);
        if (b->codes[i % ST_NF4_ELEMS / 2] != t->codes[i / 2])
            fail_msg("%s: tensor %u, element %u (%a): codes %02x, not %02x", k->name, index, i, (double)t->in[i],
                     b->codes[i % ST_NF4_ELEMS / 2], t->codes[i / 2]);
    }
    for (uint32_t i = (t->elems + 1) / 2 * 2; i % ST_NF4_ELEMS != 0; i += 2)
        assert_int_equal(blocks[i / ST_NF4_ELEMS].codes[i % ST_NF4_ELEMS / 2], 0x77); /* 0 behind the tensor's end */
}

static void check_widen(const struct st_kernels *k, const struct tensor *t, uint32_t index)
{
    static struct st_nf4_block blocks[BLOCKS_MAX];
    static unsigned char out[ELEMS_MAX * sizeof(float)];

    for (uint32_t i = 0; i < t->elems; i++) {
        blocks[i / ST_NF4_ELEMS].absmax = t->absmax[i / ST_NF4_ELEMS];
        blocks[i / ST_NF4_ELEMS].codes[i % ST_NF4_ELEMS / 2] = t->codes[i / 2];
    }
    for (size_t d = 0; d < 3; d++) {
        k->nf4_widen(out, dtypes[d], blocks, t->elems);
        if (memcmp(out, t->widened[d], t->elems * strata_dtype_bytes(dtypes[d])) != 0)
            fail_msg("%s: tensor %u comes back otherwise in %s", k->name, index, strata_dtype_name(dtypes[d]));
    }
}

TEST(tensors_are_bitsandbytes)
{
    struct tensor *const t = calloc(1, sizeof(*t));
    FILE *const file = fopen(golden, "rb");
    const struct st_kernels *k;
    uint32_t count = 0;

    assert_non_null(t);
    if (file == NULL)
        fail_msg("%s cannot be opened", golden);
    for (; next(file, t); count++) {
        for (size_t i = 0; (k = st_kernels_usable(i)) != NULL; i++) {
            check_quantise(k, t, count);
            check_widen(k, t, count);
        }
    }
    assert_true(count > 30);
    fclose(file);
    free(t);
}

/* What came from records becomes the same records, so that a reader may give a model in NF4 as fp32. */
TEST(widened_values_become_the_same_records)
{
    static struct st_nf4_block blocks[BLOCKS_MAX], again[BLOCKS_MAX];
    static float values[ELEMS_MAX];
    const struct st_kernels *const k = st_kernels_usable(0);
    const size_t elems = ELEMS_MAX / ST_NF4_ELEMS * ST_NF4_ELEMS;

    for (size_t i = 0; i < elems; i++)
        values[i] = kf_uniform(5, i) * exp2f((float)(i / ST_NF4_ELEMS % 200) - 100.0f);
    k->nf4_quantise(blocks, values, elems);
    k->nf4_widen(values, STRATA_F32, blocks, elems);
    k->nf4_quantise(again, values, elems);
    assert_memory_equal(again, blocks, elems / ST_NF4_ELEMS * sizeof(blocks[0]));
}

struct arrays {
    struct kf_array in[2], blocks[2], out[2]; /* [0] of the variant, [1] of the scalar table */
};

static void create(struct arrays *a)
{
    for (size_t i = 0; i < 2; i++) {
        kf_array_create(&a->in[i], LENGTHS_MAX * sizeof(float));
        kf_array_create(&a->blocks[i], LENGTHS_MAX * sizeof(struct st_nf4_block));
        kf_array_create(&a->out[i], LENGTHS_MAX * sizeof(float));
    }
}

static void destroy(struct arrays *a)
{
    for (size_t i = 0; i < 2; i++) {
        kf_array_destroy(&a->in[i]);
        kf_array_destroy(&a->blocks[i]);
        kf_array_destroy(&a->out[i]);
    }
}

/* Values of any kind into records, and those into values; `a` is placed. */
static void compare(struct arrays *a, size_t elems, strata_dtype dtype)
{
    const size_t blocks = (elems + ST_NF4_ELEMS - 1) / ST_NF4_ELEMS;
    const struct st_kernels *k;

    for (size_t t = 0; (k = kf_variant(t)) != NULL; t++) {
        kf_fill(a->in[1].data, STRATA_F32, elems, elems + t, 1.0f);
        memset(a->blocks[1].data, 0, blocks * sizeof(struct st_nf4_block));
        kf_fill(a->out[1].data, dtype, elems, elems, 1.0f);
        for (size_t i = 0; i < 2; i++) {
            const struct st_kernels *const of = i == 0 ? k : kf_scalar();

            if (i == 0) {
                kf_array_copy(&a->in[0], &a->in[1]);
                kf_array_copy(&a->blocks[0], &a->blocks[1]);
                kf_array_copy(&a->out[0], &a->out[1]);
            }
            of->nf4_quantise((void *)a->blocks[i].data, (const void *)a->in[i].data, elems);
            of->nf4_widen(a->out[i].data, dtype, (const void *)a->blocks[i].data, elems);
        }
        kf_assert_same(&a->in[0], &a->in[1], "what is quantised");
        kf_assert_same(&a->blocks[0], &a->blocks[1], "nf4_quantise");
        kf_assert_same(&a->out[0], &a->out[1], "nf4_widen");
    }
}

TEST(tables_agree_at_every_length_and_alignment)
{
    struct arrays a;

    create(&a);
    for (size_t elems = 0; elems <= LENGTHS_MAX; elems++) {
        const size_t blocks = (elems + ST_NF4_ELEMS - 1) / ST_NF4_ELEMS;

        for (size_t shift = 0; shift < 16; shift += 5) {
            kf_array_place(&a.in[1], sizeof(float), elems, shift);
            kf_array_place(&a.blocks[1], sizeof(float), blocks * sizeof(struct st_nf4_block) / sizeof(float), shift * 3 + elems);
            for (size_t d = 0; d < 3; d++) {
                kf_array_place(&a.out[1], strata_dtype_bytes(dtypes[d]), elems, shift * 7 + elems);
                compare(&a, elems, dtypes[d]);
            }
        }
        kf_array_place_at_end(&a.in[1], sizeof(float), elems);
        kf_array_place_at_end(&a.blocks[1], sizeof(struct st_nf4_block), blocks);
        for (size_t d = 0; d < 3; d++) {
            kf_array_place_at_end(&a.out[1], strata_dtype_bytes(dtypes[d]), elems);
            compare(&a, elems, dtypes[d]);
        }
    }
    destroy(&a);
}

TEST_MAIN(argc, argv)
{
    if (argc > 1)
        golden = argv[1];
    return test_run(NULL, NULL);
}

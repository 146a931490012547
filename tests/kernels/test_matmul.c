/* Matmul blocks against an fp64 reference, native and widened, every layout; then what the engine promises beside the
 * numbers: bits that depend on the shape alone, ids that stay, nothing written outside C. */
#include "kernels/isa/scalar.h"
#include "kernels/kernels.h"
#include "kernels/matmul/matmul.h"
#include "tests/common/test.h"
#include "tests/kernels/kernel_fixture.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WORKERS 3u
#define PAD     5u /* elements between rows beyond what they need */

/* One operand: its bytes, and its values as doubles. */
struct operand {
    unsigned char *data;
    double *value;
    strata_dtype dt;
};

struct problem {
    struct st_matmul mm;
    struct operand a, b, c, bias; /* c: the starting value */
};

static double value_at(const void *p, size_t i, strata_dtype dt)
{
    return (double)st_load_f32(p, dt, i);
}

static struct operand operand_create(size_t elems, strata_dtype dt, uint64_t seed)
{
    const struct st_kernels *k = st_kernels_pick("scalar");
    struct operand o = {malloc(elems * strata_dtype_bytes(dt) + 1), malloc(elems * sizeof(double) + 1), dt};
    float *f = malloc(elems * sizeof(float) + 1);

    assert_non_null(o.data);
    assert_non_null(o.value);
    assert_non_null(f);
    for (size_t i = 0; i < elems; i++)
        f[i] = kf_uniform(seed, i);
    if (dt == STRATA_BF16)
        k->f32_to_bf16((uint16_t *)(void *)o.data, f, elems);
    else if (dt == STRATA_F16)
        k->f32_to_f16((uint16_t *)(void *)o.data, f, elems);
    else
        memcpy(o.data, f, elems * sizeof(float));
    for (size_t i = 0; i < elems; i++)
        o.value[i] = value_at(o.data, i, dt);
    free(f);
    return o;
}

static void operand_destroy(struct operand *o)
{
    free(o->data);
    free(o->value);
}

static struct st_matmul with_strides(struct st_matmul mm, uint32_t pad)
{
    mm.lda = (mm.trans_a ? mm.m : mm.k) + pad;
    mm.ldb = (mm.trans_b ? mm.k : mm.n) + pad;
    mm.ldc = mm.n + pad;
    return mm;
}

static void problem_create(struct problem *p, const struct st_matmul *mm, uint64_t seed)
{
    p->mm = *mm;
    p->a = operand_create((size_t)(mm->trans_a ? mm->k : mm->m) * mm->lda, mm->ab_dtype, seed + 1);
    p->b = operand_create((size_t)(mm->trans_b ? mm->n : mm->k) * mm->ldb, mm->ab_dtype, seed + 2);
    p->c = operand_create((size_t)mm->m * mm->ldc, mm->c_dtype, seed + 3);
    p->bias = operand_create(mm->n, mm->ab_dtype, seed + 4);
}

static void problem_destroy(struct problem *p)
{
    operand_destroy(&p->a);
    operand_destroy(&p->b);
    operand_destroy(&p->c);
    operand_destroy(&p->bias);
}

static size_t c_bytes(const struct st_matmul *mm)
{
    return (size_t)mm->m * mm->ldc * strata_dtype_bytes(mm->c_dtype);
}

/* A fresh copy of C after one run. */
static unsigned char *run(struct st_matmul_engine *e, const struct problem *p, uint32_t worker)
{
    const int id = st_matmul_prepare(e, &p->mm);
    unsigned char *c = malloc(c_bytes(&p->mm));

    assert_true(id >= 0);
    assert_non_null(c);
    memcpy(c, p->c.data, c_bytes(&p->mm));
    assert_int_equal(st_matmul_run(e, id, worker, c, p->a.data, p->b.data, p->mm.bias ? p->bias.data : NULL), 0);
    return c;
}

static enum st_matmul_path path_of_bf16(const struct st_matmul_engine *e)
{
    return st_matmul_path_of(e, &(struct st_matmul){.m = 2, .ab_dtype = STRATA_BF16});
}

static void check_values(const struct problem *p, const unsigned char *c)
{
    const struct st_matmul *mm = &p->mm;
    const double rounding = mm->c_dtype == STRATA_BF16 ? 0x1p-8 : mm->c_dtype == STRATA_F16 ? 0x1p-11 : 0;

    for (size_t i = 0; i < mm->m; i++) {
        for (size_t j = 0; j < mm->n; j++) {
            double want = (mm->bias ? p->bias.value[j] : 0) + (mm->accumulate ? p->c.value[i * mm->ldc + j] : 0),
                   size = fabs(want);
            double got = value_at(c, i * mm->ldc + j, mm->c_dtype);

            for (size_t k = 0; k < mm->k; k++) {
                const double a = p->a.value[mm->trans_a ? k * mm->lda + i : i * mm->lda + k];
                const double b = p->b.value[mm->trans_b ? j * mm->ldb + k : k * mm->ldb + j];

                want += a * b;
                size += fabs(a * b);
            }
            if (!(fabs(got - want) <= size * 0x1p-21 + fabs(want) * rounding))
                fail_msg("%u x %u x %u ta %d tb %d acc %d bias %d ab %d c %d: [%zu][%zu] is %.9g, not %.9g", mm->m, mm->n, mm->k,
                         mm->trans_a, mm->trans_b, mm->accumulate, mm->bias, mm->ab_dtype, mm->c_dtype, i, j, got, want);
        }
    }
}

static void check_padding(const struct problem *p, const unsigned char *c)
{
    const size_t width = strata_dtype_bytes(p->mm.c_dtype);

    for (size_t i = 0; i < p->mm.m; i++) {
        const size_t at = (i * p->mm.ldc + p->mm.n) * width;

        assert_memory_equal(c + at, p->c.data + at, (p->mm.ldc - p->mm.n) * width);
    }
}

/* bf16 by at most `path`, which the processor may not have. */
static struct st_matmul_engine *engine_create(enum st_matmul_path path)
{
    struct st_matmul_engine *e;

    assert_int_equal(st_matmul_create(&e, WORKERS), 0);
    st_matmul_limit(e, path);
    return e;
}

/* m, n, k: odd, prime, smaller than a register or a tile, one more than a block or a panel, K in one, two, three and five
 * pieces. */
static const uint32_t sizes[][3] = {
    {1, 1, 1},      {1, 7, 3},     {17, 5, 31},    {64, 64, 64},  {67, 129, 53}, {128, 32, 256}, {33, 100, 1024},
    {16, 48, 1025}, {5, 19, 2100}, {130, 70, 768}, {3, 21, 4200}, {513, 20, 40}, {20, 273, 40},
};

static void check_layouts(struct st_matmul_engine *e, const uint32_t *size, strata_dtype ab, strata_dtype c)
{
    for (uint32_t bits = 0; bits < 16; bits++) {
        const struct st_matmul shape = {.m = size[0],
                                        .n = size[1],
                                        .k = size[2],
                                        .trans_a = (bits & 1) != 0,
                                        .trans_b = (bits & 2) != 0,
                                        .accumulate = (bits & 4) != 0,
                                        .bias = (bits & 8) != 0,
                                        .ab_dtype = ab,
                                        .c_dtype = c};
        const struct st_matmul mm = with_strides(shape, bits % 2 == 0 ? PAD : 0);
        struct problem p;
        unsigned char *got;

        if (shape.accumulate && (c != STRATA_F32 || shape.bias))
            continue;
        problem_create(&p, &mm, 100 * bits + size[0]);
        got = run(e, &p, bits % WORKERS);
        check_values(&p, got);
        check_padding(&p, got);
        free(got);
        problem_destroy(&p);
    }
}

TEST(values_are_right)
{
    for (enum st_matmul_path path = 0; path <= ST_MATMUL_TILES; path++) {
        struct st_matmul_engine *e = engine_create(path);

        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && path_of_bf16(e) == path; i++) {
            check_layouts(e, sizes[i], STRATA_BF16, STRATA_F32);
            check_layouts(e, sizes[i], STRATA_BF16, STRATA_BF16);
            if (path != ST_MATMUL_WIDENED)
                continue; /* the others do not depend on it */
            check_layouts(e, sizes[i], STRATA_F32, STRATA_F32);
            check_layouts(e, sizes[i], STRATA_F32, STRATA_BF16);
            check_layouts(e, sizes[i], STRATA_F32, STRATA_F16);
            check_layouts(e, sizes[i], STRATA_F16, STRATA_F32);
            check_layouts(e, sizes[i], STRATA_F16, STRATA_F16);
        }
        st_matmul_destroy(e);
    }
}

/* Widening is exact: in one piece of K it is the fp32 product of the same numbers, bit for bit. */
static void check_widened(strata_dtype dt)
{
    struct st_matmul_engine *e = engine_create(ST_MATMUL_WIDENED);
    const struct st_matmul shape = {.m = 70, .n = 200, .k = 333, .ab_dtype = dt, .c_dtype = STRATA_F32};
    const struct st_matmul mm = with_strides(shape, 0);
    struct problem p, wide;
    unsigned char *narrow_c, *wide_c;

    problem_create(&p, &mm, 7);
    wide = p;
    wide.mm.ab_dtype = STRATA_F32;
    wide.a = operand_create((size_t)mm.m * mm.lda, STRATA_F32, 0);
    wide.b = operand_create((size_t)mm.k * mm.ldb, STRATA_F32, 0);
    for (size_t i = 0; i < (size_t)mm.m * mm.lda; i++)
        ((float *)(void *)wide.a.data)[i] = (float)p.a.value[i];
    for (size_t i = 0; i < (size_t)mm.k * mm.ldb; i++)
        ((float *)(void *)wide.b.data)[i] = (float)p.b.value[i];
    narrow_c = run(e, &p, 0);
    wide_c = run(e, &wide, 1);
    assert_memory_equal(narrow_c, wide_c, c_bytes(&mm));
    free(narrow_c);
    free(wide_c);
    operand_destroy(&wide.a);
    operand_destroy(&wide.b);
    problem_destroy(&p);
    st_matmul_destroy(e);
}

TEST(widened_equals_fp32)
{
    check_widened(STRATA_BF16);
    check_widened(STRATA_F16);
}

/* Buffers of a problem moved `shift` elements from a 64-byte boundary; the result must not notice. */
static void check_shifted(struct st_matmul_engine *e, const struct problem *p, const unsigned char *want, size_t shift,
                          uint32_t worker)
{
    const struct st_matmul *mm = &p->mm;
    const size_t ab_width = strata_dtype_bytes(mm->ab_dtype), c_width = strata_dtype_bytes(mm->c_dtype);
    const size_t a_bytes = (size_t)(mm->trans_a ? mm->k : mm->m) * mm->lda * ab_width;
    const size_t b_bytes = (size_t)(mm->trans_b ? mm->n : mm->k) * mm->ldb * ab_width;
    struct kf_array a, b, c;
    void *pa, *pb, *pc;

    kf_array_create(&a, a_bytes);
    kf_array_create(&b, b_bytes);
    kf_array_create(&c, c_bytes(mm));
    pa = kf_array_place(&a, ab_width, a_bytes / ab_width, shift);
    pb = kf_array_place(&b, ab_width, b_bytes / ab_width, 2 * shift);
    pc = kf_array_place(&c, c_width, c_bytes(mm) / c_width, 3 * shift);
    memcpy(pa, p->a.data, a_bytes);
    memcpy(pb, p->b.data, b_bytes);
    memcpy(pc, p->c.data, c_bytes(mm));
    assert_int_equal(st_matmul_run(e, st_matmul_prepare(e, mm), worker, pc, pa, pb, NULL), 0);
    assert_memory_equal(pc, want, c_bytes(mm));
    kf_array_destroy(&a);
    kf_array_destroy(&b);
    kf_array_destroy(&c);
}

/* Activations and weights lie at other addresses in every placement. */
TEST(bits_ignore_addresses_and_workers)
{
    static const uint32_t shapes[][3] = {{128, 192, 256}, {64, 256, 32}, {64, 33, 100}, {96, 64, 512}};

    for (enum st_matmul_path path = 0; path <= ST_MATMUL_TILES; path++) {
        struct st_matmul_engine *e = engine_create(path);

        for (uint32_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]) * 24; i++) {
            const uint32_t *s = shapes[i / 24], bits = i % 24;
            const struct st_matmul shape = {.m = s[0],
                                            .n = s[1],
                                            .k = s[2],
                                            .trans_a = (bits & 1) != 0,
                                            .trans_b = (bits & 2) != 0,
                                            .accumulate = (bits & 4) != 0,
                                            .ab_dtype = STRATA_F32 + bits / 8,
                                            .c_dtype = STRATA_F32};
            const struct st_matmul mm = with_strides(shape, 0);
            struct problem p;
            unsigned char *want;

            problem_create(&p, &mm, i);
            want = run(e, &p, 0);
            for (size_t shift = 0; shift < 8; shift++)
                check_shifted(e, &p, want, shift, (uint32_t)shift % WORKERS);
            free(want);
            problem_destroy(&p);
        }
        st_matmul_destroy(e);
    }
}

static void check_part(struct st_matmul_engine *e, const struct problem *p, const unsigned char *want, uint32_t row, uint32_t col)
{
    const struct st_matmul *mm = &p->mm;
    const size_t at = (size_t)row * mm->ldc + col;
    struct problem part = *p;
    unsigned char *got;

    part.mm.m = mm->m - row;
    part.mm.n = mm->n - col;
    part.a.data += 2 * (mm->trans_a ? row : (size_t)row * mm->lda);
    part.b.data += 2 * (mm->trans_b ? (size_t)col * mm->ldb : col);
    part.c.data += 4 * at;
    got = malloc(c_bytes(mm));
    assert_non_null(got);
    memcpy(got, p->c.data, c_bytes(mm));
    assert_int_equal(st_matmul_run(e, st_matmul_prepare(e, &part.mm), 1, got + 4 * at, part.a.data, part.b.data, NULL), 0);
    for (size_t r = row; r < mm->m; r++)
        assert_memory_equal(got + 4 * (r * mm->ldc + col), want + 4 * (r * mm->ldc + col), 4 * (size_t)part.mm.n);
    free(got);
}

/* On tiles no bit of an element depends on the block that it is computed in. */
TEST(bits_of_tiles_ignore_blocks)
{
    struct st_matmul_engine *e = engine_create(ST_MATMUL_TILES);

    for (uint32_t bits = 0; bits < 8 && path_of_bf16(e) == ST_MATMUL_TILES; bits++) {
        const struct st_matmul shape = {.m = 520,
                                        .n = 300,
                                        .k = 1100,
                                        .trans_a = (bits & 1) != 0,
                                        .trans_b = (bits & 2) != 0,
                                        .accumulate = (bits & 4) != 0,
                                        .ab_dtype = STRATA_BF16,
                                        .c_dtype = STRATA_F32};
        const struct st_matmul mm = with_strides(shape, 0);
        struct problem p;
        unsigned char *want;

        problem_create(&p, &mm, bits);
        want = run(e, &p, 0);
        check_part(e, &p, want, 0, 7);
        check_part(e, &p, want, 33, 0);
        check_part(e, &p, want, 518, 299);
        free(want);
        problem_destroy(&p);
    }
    st_matmul_destroy(e);
}

/* From libgomp, as in kernels/matmul/matmul_dnnl.c. */
int omp_get_max_threads(void);
void omp_set_num_threads(int threads);

/* A caller may have an OpenMP team for work of its own, and set it whenever it likes: it keeps that, and no bit depends on it. */
TEST(the_callers_team_is_its_own)
{
    static const uint32_t shapes[][3] = {{128, 192, 256}, {64, 64, 4096}, {512, 384, 512}, {384, 1536, 512}, {512, 256, 384}};

    for (uint32_t i = 0; i < 2 * sizeof(shapes) / sizeof(shapes[0]); i++) {
        const uint32_t *s = shapes[i / 2];
        const struct st_matmul shape = {.m = s[0],
                                        .n = s[1],
                                        .k = s[2],
                                        .trans_a = i % 2 == 0,
                                        .accumulate = i % 2 == 0,
                                        .ab_dtype = STRATA_F32,
                                        .c_dtype = STRATA_F32};
        const struct st_matmul mm = with_strides(shape, 0);
        struct problem p;
        unsigned char *want = NULL;

        problem_create(&p, &mm, i);
        for (int team = 1; team <= 8; team += 7) {
            struct st_matmul_engine *e;
            unsigned char *got;

            omp_set_num_threads(team);
            e = engine_create(ST_MATMUL_TILES);
            assert_int_equal(omp_get_max_threads(), team);
            got = run(e, &p, 0);
            assert_int_equal(omp_get_max_threads(), team);
            if (want != NULL)
                assert_memory_equal(got, want, c_bytes(&mm));
            free(want);
            want = got;
            st_matmul_destroy(e);
        }
        free(want);
        problem_destroy(&p);
    }
    omp_set_num_threads(1);
}

TEST(ids_stay)
{
    struct st_matmul_engine *e = engine_create(ST_MATMUL_TILES);
    struct st_matmul mm = {.n = 8, .k = 8, .lda = 8, .ldb = 8, .ldc = 8, .ab_dtype = STRATA_F32, .c_dtype = STRATA_F32};

    for (int i = 0; i < 300; i++) {
        mm.m = (uint32_t)i + 1;
        assert_int_equal(st_matmul_prepare(e, &mm), i);
    }
    for (int i = 0; i < 300; i++) {
        mm.m = (uint32_t)i + 1;
        assert_int_equal(st_matmul_prepare(e, &mm), i);
    }
    st_matmul_destroy(e);
}

TEST(what_it_cannot_do_is_refused)
{
    struct st_matmul_engine *e = engine_create(ST_MATMUL_TILES);
    struct st_matmul mm = {.m = 4, .n = 4, .k = 4, .lda = 4, .ldb = 4, .ldc = 4, .ab_dtype = STRATA_BF16, .c_dtype = STRATA_BF16};

    mm.accumulate = true;
    assert_int_equal(st_matmul_prepare(e, &mm), -ST_MATMUL_UNSUPPORTED);
    mm.accumulate = false;
    mm.ab_dtype = STRATA_F16; /* to bf16: nobody asks */
    assert_int_equal(st_matmul_prepare(e, &mm), -ST_MATMUL_UNSUPPORTED);
    mm.c_dtype = STRATA_F16;
    mm.accumulate = true;
    assert_int_equal(st_matmul_prepare(e, &mm), -ST_MATMUL_UNSUPPORTED);
    mm.accumulate = false;
    mm.c_dtype = STRATA_DTYPE_INVALID;
    assert_int_equal(st_matmul_prepare(e, &mm), -ST_MATMUL_UNSUPPORTED);
    mm.c_dtype = STRATA_F32;
    mm.ab_dtype = STRATA_DTYPE_INVALID;
    assert_int_equal(st_matmul_prepare(e, &mm), -ST_MATMUL_UNSUPPORTED);
    mm.ab_dtype = STRATA_F32;
    mm.epilogue = ST_EPILOGUE_GELU_INPUT; /* a device's affair */
    assert_int_equal(st_matmul_prepare(e, &mm), -ST_MATMUL_UNSUPPORTED);
    mm.epilogue = ST_EPILOGUE_NONE;
    mm.k = 0;
    assert_int_equal(st_matmul_prepare(e, &mm), -ST_MATMUL_UNSUPPORTED);
    st_matmul_destroy(e);
    st_matmul_destroy(NULL);
}

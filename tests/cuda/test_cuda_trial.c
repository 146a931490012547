/* Which of the library's algorithms a product takes: the fastest of those with the bits of the first.  The emulator's library
 * offers some that are faster and have other bits, and some that fail (emulator/blas.h). */
#include "tests/common/fault_walk.h"
#include "tests/cuda/device_rig.h"

enum { SIZE = 128, ELEMS = SIZE * SIZE };

static float operands[2 * ELEMS]; /* A, B */

static int fill(void **state)
{
    uint32_t x = 1;

    for (uint32_t i = 0; i < 2 * ELEMS; i++) {
        x = x * 1664525u + 1013904223u;
        operands[i] = (float)(x >> 8) / (float)(1 << 23) - 1;
    }
    return before_each(state);
}

static float *in_arena(struct st_device *dev, uint32_t matrix)
{
    return (float *)(void *)ops->arena(dev) + (size_t)matrix * ELEMS;
}

/* A device with A, B and an empty C in its arena. */
static struct st_device *with_operands(const float *data, int offered)
{
    struct st_device *dev = opened(ARENA);

    blas->offered = offered;
    ok(ops->upload(dev, ops->arena(dev), data, sizeof(operands)));
    ok(ops->finish(dev, ST_QUEUE_UPLOAD));
    return dev;
}

static strata_status product(struct st_device *dev, const struct st_matmul *mm)
{
    strata_status st = ops->tensors->matmul(dev, mm, in_arena(dev, 2), in_arena(dev, 0), in_arena(dev, 1), NULL);

    return st == STRATA_OK ? ops->finish(dev, ST_QUEUE_COMPUTE) : st;
}

static void take_result(struct st_device *dev, float c[ELEMS])
{
    ok(ops->download(dev, c, in_arena(dev, 2), ELEMS * sizeof(*c)));
    ok(ops->finish(dev, ST_QUEUE_DOWNLOAD));
}

/* The algorithm that one more product is done by. */
static uint32_t taken(struct st_device *dev, const struct st_matmul *mm)
{
    uint64_t before[TWIN_BLAS_KINDS];
    uint32_t kind = TWIN_BLAS_KINDS;

    memcpy(before, blas->runs, sizeof(before));
    ok(product(dev, mm));
    for (uint32_t i = 0; i < TWIN_BLAS_KINDS; i++)
        if (blas->runs[i] != before[i]) {
            assert_int_equal(kind, TWIN_BLAS_KINDS);
            assert_int_equal(blas->runs[i] - before[i], 1);
            kind = i;
        }
    return kind;
}

/* C = AB and then C = AB + C, by the only algorithm. */
static void by_the_first(float c[2][ELEMS])
{
    struct st_matmul mm = square(SIZE, STRATA_F32, STRATA_F32);
    struct st_device *dev = with_operands(operands, 1);

    for (int turn = 0; turn < 2; turn++) {
        mm.accumulate = turn == 1;
        assert_int_equal(taken(dev, &mm), TWIN_BLAS_FIRST);
        take_result(dev, c[turn]);
    }
    ops->close(dev);
}

TEST_SETUP(the_fastest_with_the_same_bits_is_taken, fill, after_each)
{
    static float want[2][ELEMS], got[ELEMS];
    struct st_matmul mm = square(SIZE, STRATA_F32, STRATA_F32);
    uint64_t before[TWIN_BLAS_KINDS];
    struct st_device *dev;

    by_the_first(want);
    dev = with_operands(operands, TWIN_BLAS_KINDS);
    memcpy(before, blas->runs, sizeof(before));
    ok(product(dev, &mm));
    for (uint32_t i = 0; i < TWIN_BLAS_KINDS; i++) /* each that can be called, once to load it and twice timed */
        assert_int_equal(blas->runs[i] - before[i],
                         i == TWIN_BLAS_FAILS || i == TWIN_BLAS_UNKNOWN ? 0 : 3 + (i == TWIN_BLAS_FIRST));
    take_result(dev, got);
    assert_memory_equal(got, want[0], sizeof(got));
    assert_int_equal(taken(dev, &mm), TWIN_BLAS_BEST);
    take_result(dev, got);
    assert_memory_equal(got, want[0], sizeof(got));
    mm.accumulate = true;
    assert_int_equal(taken(dev, &mm), TWIN_BLAS_BEST);
    take_result(dev, got);
    assert_memory_equal(got, want[1], sizeof(got));
    ops->close(dev);
}

/* What shows no order, what adds to C, what is small, and a C of 16 bits that is not large. */
TEST_SETUP(what_proves_nothing_leaves_the_first, fill, after_each)
{
    static const float zeros[2 * ELEMS];
    struct st_matmul mm = square(SIZE, STRATA_F32, STRATA_F32);
    struct st_device *dev = with_operands(zeros, TWIN_BLAS_KINDS);

    ok(product(dev, &mm));
    assert_int_equal(taken(dev, &mm), TWIN_BLAS_FIRST);
    ops->close(dev);
    dev = with_operands(operands, TWIN_BLAS_KINDS);
    mm.accumulate = true;
    assert_int_equal(taken(dev, &mm), TWIN_BLAS_FIRST);
    mm.accumulate = false;
    mm.m--;
    assert_int_equal(taken(dev, &mm), TWIN_BLAS_FIRST);
    mm = square(SIZE, STRATA_BF16, STRATA_BF16);
    assert_int_equal(taken(dev, &mm), TWIN_BLAS_FIRST);
    ops->close(dev);
}

/* Candidates' kernels take device memory: after what is reserved for them, no more are tried. */
TEST_SETUP(kernels_stay_within_their_memory, fill, after_each)
{
    struct st_matmul mm = square(SIZE, STRATA_F32, STRATA_F32);
    struct st_device *dev;

    blas->code_bytes = ST_CUDA_CODE / 8;
    dev = with_operands(operands, TWIN_BLAS_KINDS);
    ok(product(dev, &mm));
    assert_int_equal(twin_held().device_bytes, ARENA + ST_CUDA_WORKSPACE + 2 * blas->code_bytes);
    assert_int_equal(taken(dev, &mm), TWIN_BLAS_FIRST);
    mm.trans_a = true;
    assert_int_equal(taken(dev, &mm), TWIN_BLAS_FIRST);
    ops->close(dev);
}

/* Whichever call of a trial fails, the products are right. */
TEST_SETUP(a_trial_that_fails_is_harmless, fill, after_each)
{
    static float want[2][ELEMS], got[ELEMS];
    const struct st_matmul mm = square(SIZE, STRATA_F32, STRATA_F32);
    uint32_t fired = 1, walked = 0;

    by_the_first(want);
    for (uint32_t after = 0; fired > 0; after++) {
        struct st_device *dev = with_operands(operands, 2);

        st_fault_arm(&(struct st_fault_spec){.site = "cuda.trial", .after = after, .count = 1, .result = -1});
        ok(product(dev, &mm));
        assert_int_equal(taken(dev, &mm), TWIN_BLAS_FIRST);
        fired = st_fault_disarm();
        walked += fired;
        take_result(dev, got);
        assert_memory_equal(got, want[0], sizeof(got));
        ops->close(dev);
        assert_nothing_held();
    }
    assert_true(walked > 30);
}

/* More results than were asked for, or fewer than none. */
TEST_SETUP(a_library_that_miscounts_is_not_believed, fill, after_each)
{
    static float want[2][ELEMS], got[ELEMS];
    const struct st_matmul mm = square(SIZE, STRATA_F32, STRATA_F32);
    struct st_device *dev;

    by_the_first(want);
    dev = with_operands(operands, TWIN_BLAS_KINDS);
    blas->claims = 100000;
    ok(product(dev, &mm));
    assert_int_equal(taken(dev, &mm), TWIN_BLAS_BEST);
    take_result(dev, got);
    assert_memory_equal(got, want[0], sizeof(got));
    ops->close(dev);
    dev = with_operands(operands, TWIN_BLAS_KINDS);
    blas->claims = -1;
    assert_int_equal(product(dev, &mm), STRATA_E_NOSYS);
    ops->close(dev);
}

TEST_MAIN(argc, argv)
{
    return device_rig_load() ? test_run(NULL, NULL) : 1;
}

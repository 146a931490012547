/* The finish of a gradient: rounding, sums of squares per block and in a group, the count of values that are not finite.  Every
 * table against scalar by memcmp, scalar against the order of additions that kernels.h states. */
#include "kernels/isa/scalar.h"
#include "tests/common/test.h"
#include "tests/kernels/kernel_fixture.h"
#include <stdlib.h>

#define SHORT_MAX 130u
#define PRIME     100003u
#define BLOCKS    ((PRIME + ST_NORM_BLOCK - 1) / ST_NORM_BLOCK)

static const strata_dtype dtypes[] = {STRATA_BF16, STRATA_F32, STRATA_F16};

struct fixture {
    struct kf_array acc[2], out[2], sums[2]; /* [0] of the variant, [1] of the scalar table */
};

static int create(void **state)
{
    struct fixture *const f = calloc(1, sizeof(*f));

    assert_non_null(f);
    for (size_t side = 0; side < 2; side++) {
        kf_array_create(&f->acc[side], PRIME * sizeof(float));
        kf_array_create(&f->out[side], PRIME * sizeof(float));
        kf_array_create(&f->sums[side], BLOCKS * sizeof(double));
    }
    *state = f;
    return 0;
}

static int destroy(void **state)
{
    struct fixture *const f = *state;

    for (size_t side = 0; side < 2; side++) {
        kf_array_destroy(&f->acc[side]);
        kf_array_destroy(&f->out[side]);
        kf_array_destroy(&f->sums[side]);
    }
    free(f);
    return 0;
}

static size_t block_count(size_t elems)
{
    return (elems + ST_NORM_BLOCK - 1) / ST_NORM_BLOCK;
}

static uint64_t run(const struct st_kernels *k, struct fixture *f, size_t side, strata_dtype dtype, bool in_place, size_t elems)
{
    float *const acc = (void *)f->acc[side].data;

    return k->grad_finish(in_place ? (void *)acc : f->out[side].data, dtype, acc, elems, (void *)f->sums[side].data);
}

/* The scalar side is placed and filled: run both, compare everything. */
static void compare(struct fixture *f, const struct st_kernels *k, strata_dtype dtype, bool in_place, size_t elems)
{
    kf_array_copy(&f->acc[0], &f->acc[1]);
    kf_array_copy(&f->out[0], &f->out[1]);
    kf_array_copy(&f->sums[0], &f->sums[1]);
    assert_int_equal(run(k, f, 0, dtype, in_place, elems), run(kf_scalar(), f, 1, dtype, in_place, elems));
    kf_assert_same(&f->acc[0], &f->acc[1], "acc");
    kf_assert_same(&f->out[0], &f->out[1], "out");
    kf_assert_same(&f->sums[0], &f->sums[1], "sums");
}

static void place(struct fixture *f, strata_dtype dtype, size_t elems, size_t shift)
{
    kf_array_place(&f->acc[1], sizeof(float), elems, shift);
    kf_array_place(&f->out[1], strata_dtype_bytes(dtype), elems, shift * 3 + elems);
    kf_array_place(&f->sums[1], sizeof(double), block_count(elems), shift);
    memset(f->out[1].data, 0, f->out[1].data_bytes);
    memset(f->sums[1].data, 0, f->sums[1].data_bytes);
    kf_fill(f->acc[1].data, STRATA_F32, elems, elems * 64 + shift, 1e-2f);
}

TEST(tables_agree_at_every_length_and_alignment)
{
    struct fixture *const f = *state;
    const struct st_kernels *k;

    for (size_t t = 0; (k = kf_variant(t)) != NULL; t++) {
        for (size_t elems = 0; elems <= SHORT_MAX; elems++) {
            for (size_t shift = 0; shift < 32; shift++) {
                place(f, dtypes[shift % 3], elems, shift);
                compare(f, k, dtypes[shift % 3], shift % 2 == 1 && dtypes[shift % 3] == STRATA_F32, elems);
            }
        }
    }
}

TEST(tables_agree_around_blocks)
{
    static const size_t lengths[] = {ST_NORM_BLOCK - 1, ST_NORM_BLOCK, ST_NORM_BLOCK + 1, 3 * ST_NORM_BLOCK, 12289, PRIME};
    struct fixture *const f = *state;
    const struct st_kernels *k;

    for (size_t t = 0; (k = kf_variant(t)) != NULL; t++) {
        for (size_t i = 0; i < 6; i++) {
            for (size_t j = 0; j < 3 * 32; j++) {
                place(f, dtypes[j % 3], lengths[i], j / 3);
                compare(f, k, dtypes[j % 3], j % 2 == 1 && dtypes[j % 3] == STRATA_F32, lengths[i]);
            }
        }
    }
}

TEST(nothing_past_the_end_is_touched)
{
    struct fixture *const f = *state;
    const struct st_kernels *k;

    for (size_t t = 0; (k = kf_variant(t)) != NULL; t++) {
        for (size_t elems = 0; elems <= 3 * ST_NORM_BLOCK; elems += elems < SHORT_MAX ? 1 : 1009) {
            for (size_t i = 0; i < 3; i++) {
                kf_array_place_at_end(&f->acc[1], sizeof(float), elems);
                kf_array_place_at_end(&f->out[1], strata_dtype_bytes(dtypes[i]), elems);
                kf_array_place_at_end(&f->sums[1], sizeof(double), block_count(elems));
                kf_fill(f->acc[1].data, STRATA_F32, elems, elems, 1.0f);
                compare(f, k, dtypes[i], false, elems);
            }
        }
    }
}

/* The stated order, written once more from the outside: lane by lane instead of element by element. */
static double stated_sum(const double *squares, size_t elems)
{
    double lane[8] = {0};

    for (size_t l = 0; l < 8; l++) {
        for (size_t i = l; i < elems; i += 8)
            lane[l] += squares[i];
    }
    const double even = (lane[0] + lane[4]) + (lane[2] + lane[6]), odd = (lane[1] + lane[5]) + (lane[3] + lane[7]);

    return even + odd;
}

TEST(sums_are_those_of_the_rounded_values)
{
    static float acc[PRIME];
    static uint16_t out[PRIME];
    static double sums[BLOCKS], squares[ST_NORM_BLOCK];
    const struct st_kernels *k;

    for (size_t i = 0; i < PRIME; i++)
        acc[i] = kf_uniform(3, i) * ldexpf(1.0f, (int)(i % 40) - 20);
    for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
        assert_int_equal(k->grad_finish(out, STRATA_BF16, acc, PRIME, sums), 0);
        for (size_t b = 0; b < BLOCKS; b++) {
            const size_t from = b * ST_NORM_BLOCK, elems = PRIME - from < ST_NORM_BLOCK ? PRIME - from : ST_NORM_BLOCK;

            for (size_t i = 0; i < elems; i++) {
                const double x = (double)st_bf16_to_f32(st_f32_to_bf16(acc[from + i]));

                assert_int_equal(out[from + i], st_f32_to_bf16(acc[from + i]));
                squares[i] = x * x;
            }
            assert_true(sums[b] == stated_sum(squares, elems));
        }
    }
}

/* One value that is not finite, at every place of a block and a tail; what only rounds to infinity counts. */
TEST(values_that_are_not_finite_are_counted)
{
    static const uint32_t bad[] = {0x7f800000u, 0xff800000u, 0x7f800001u, 0xffffffffu, 0x7f7f8000u, 0x477ff000u};
    static float acc[ST_NORM_BLOCK + 13];
    static uint16_t out[ST_NORM_BLOCK + 13];
    const size_t elems = ST_NORM_BLOCK + 13;
    const struct st_kernels *k;

    for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
        for (size_t i = 0; i < elems; i++) {
            double sums[2];

            if (i > 64 && i < ST_NORM_BLOCK - 64 && i % 61 != 0)
                continue;
            acc[i] = st_f32_from_bits(bad[i % 6]);
            assert_int_equal(k->grad_finish(out, STRATA_F32, acc, 0, sums), 0);
            assert_int_equal(k->grad_finish(acc, STRATA_F32, acc, elems, sums), i % 6 < 4);
            assert_int_equal(k->grad_finish(out, STRATA_BF16, acc, elems, sums), i % 6 < 5);
            assert_int_equal(k->grad_finish(out, STRATA_F16, acc, elems, sums), 1);
            const double sum = sums[i / ST_NORM_BLOCK];

            assert_true(i % 6 == 2 || i % 6 == 3 ? isnan(sum) != 0 : isinf(sum) != 0);
            assert_true(sums[1 - i / ST_NORM_BLOCK] == 0.0);
            acc[i] = 0.0f;
        }
    }
}

/* Cut at multiples of the block, the sums are the same. */
TEST(cuts_at_blocks_do_not_show)
{
    struct fixture *const f = *state;
    const struct st_kernels *k;

    for (size_t t = 0; (k = st_kernels_usable(t)) != NULL; t++) {
        const size_t cut = 5 * ST_NORM_BLOCK;

        place(f, STRATA_BF16, PRIME, 0);
        kf_array_copy(&f->acc[0], &f->acc[1]);
        kf_array_copy(&f->out[0], &f->out[1]);
        kf_array_copy(&f->sums[0], &f->sums[1]);
        const uint64_t whole = run(k, f, 1, STRATA_BF16, false, PRIME);
        const float *const acc = (void *)f->acc[0].data;
        uint16_t *const out = (void *)f->out[0].data;
        double *const sums = (void *)f->sums[0].data;
        const uint64_t parts = k->grad_finish(out + cut, STRATA_BF16, acc + cut, PRIME - cut, sums + 5);

        assert_int_equal(parts + k->grad_finish(out, STRATA_BF16, acc, cut, sums), whole);
        kf_assert_same(&f->out[0], &f->out[1], "out");
        kf_assert_same(&f->sums[0], &f->sums[1], "sums");
    }
}

/* --- the sum of a group --- */

#define GROUP_TILES 300u

static double group_blocks[GROUP_TILES * ST_TILE_BLOCKS];

static void fill_blocks(void)
{
    for (uint64_t b = 0; b < GROUP_TILES * ST_TILE_BLOCKS; b++)
        group_blocks[b] = ldexp(1.0 + kf_bits(b, 40) * 0x1p-32, (int)(kf_bits(b, 41) % 30));
}

static double tile_in_order(uint64_t tile, uint64_t blocks)
{
    const uint64_t first = tile * ST_TILE_BLOCKS, end = first + ST_TILE_BLOCKS < blocks ? first + ST_TILE_BLOCKS : blocks;
    double sum = group_blocks[first];

    for (uint64_t b = first + 1; b < end; b++)
        sum += group_blocks[b];
    return sum;
}

/* Sums of runs of tiles that begin at a multiple of their length, a power of two. */
struct run_sums {
    uint64_t tiles[GROUP_TILES]; /* of the run that begins there; 0: none does */
    double sum[GROUP_TILES];
};

/* The tree from its words, down to tiles, or, where `known` is given, to the runs whose sums it has. */
static double sum_by_tree(uint64_t first, uint64_t tiles, uint64_t blocks, const struct run_sums *known)
{
    uint64_t left = 1;

    if (known != NULL && known->tiles[first] == tiles)
        return known->sum[first];
    if (tiles == 1) {
        assert_null(known);
        return tile_in_order(first, blocks);
    }
    while (2 * left < tiles)
        left *= 2;
    return sum_by_tree(first, left, blocks, known) + sum_by_tree(first + left, tiles - left, blocks, known);
}

TEST(groups_are_added_in_their_tree)
{
    uint32_t unlike = 0;

    fill_blocks();
    assert_true(st_norm_group(group_blocks, 0) == 0);
    for (uint64_t blocks = 1; blocks <= GROUP_TILES * ST_TILE_BLOCKS; blocks++) {
        const double sum = st_norm_group(group_blocks, blocks);
        const uint64_t tiles = (blocks + ST_TILE_BLOCKS - 1) / ST_TILE_BLOCKS;
        double chain = 0;

        assert_true(sum == sum_by_tree(0, tiles, blocks, NULL));
        for (uint64_t b = 0; b < blocks; b++)
            chain += group_blocks[b];
        assert_true(fabs(sum - chain) <= 1e-13 * chain);
        unlike += sum != chain;
    }
    assert_true(unlike > GROUP_TILES); /* the order shows */
}

/* Takes the tiles from `from` to `to` apart into the longest such runs, and adds up each as a group of its own. */
static void sum_runs(struct run_sums *out, uint64_t from, uint64_t to, uint64_t blocks)
{
    while (from < to) {
        const uint64_t first = from * ST_TILE_BLOCKS;
        uint64_t tiles = 1;

        while (from % (2 * tiles) == 0 && from + 2 * tiles <= to)
            tiles *= 2;
        out->tiles[from] = tiles;
        out->sum[from] = st_norm_group(group_blocks + first,
                                       blocks - first < tiles * ST_TILE_BLOCKS ? blocks - first : tiles * ST_TILE_BLOCKS);
        from += tiles;
    }
}

/* What a group has in several places adds up to the same bits from the sums of each one's runs. */
TEST(runs_of_tiles_add_up_to_their_group)
{
    fill_blocks();
    for (uint64_t blocks = 1; blocks <= GROUP_TILES * ST_TILE_BLOCKS; blocks += 1 + kf_bits(blocks, 42) % 5) {
        const uint64_t tiles = (blocks + ST_TILE_BLOCKS - 1) / ST_TILE_BLOCKS;
        struct run_sums runs = {{0}, {0}};
        uint64_t from = 0;

        while (from < tiles) {
            const uint64_t part = 1 + kf_bits(blocks + from, 43) % tiles, to = from + part < tiles ? from + part : tiles;

            sum_runs(&runs, from, to, blocks);
            from = to;
        }
        assert_true(sum_by_tree(0, tiles, blocks, &runs) == st_norm_group(group_blocks, blocks));
    }
}

TEST_GROUP(create, destroy);

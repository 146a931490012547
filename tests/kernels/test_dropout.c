/* tests/kernels/test_dropout.c - dropout of every table against a Philox4x32-10 written here, which is held to the known answers
 * of its authors' library (Random123, kat_vectors). */
#include "kernels/ops/ops.h"
#include "tests/common/test.h"
#include "tests/kernels/kernel_fixture.h"
#include <math.h>
#include <string.h>

#define ROWS     7u
#define COLS_MAX 1031u

/* One round at a time, in the words of the paper: (R0, L0, R1, L1) -> (hi1 ^ L0 ^ k0, lo1, hi0 ^ L1 ^ k1, lo0). */
static void philox(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2])
{
    uint32_t k[2] = {key[0], key[1]};

    memcpy(out, counter, 4 * sizeof(out[0]));
    for (int round = 0; round < 10; round++) {
        const uint64_t first = (uint64_t)out[0] * 0xD2511F53u, second = (uint64_t)out[2] * 0xCD9E8D57u;
        const uint32_t next[4] = {(uint32_t)(second >> 32) ^ out[1] ^ k[0], (uint32_t)second,
                                  (uint32_t)(first >> 32) ^ out[3] ^ k[1], (uint32_t)first};

        memcpy(out, next, sizeof(next));
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
}

TEST(philox_gives_the_known_answers)
{
    static const struct {
        uint32_t counter[4], key[2], words[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        uint32_t words[4];

        philox(words, known[i].counter, known[i].key);
        assert_memory_equal(words, known[i].words, sizeof(words));
    }
}

static bool keeps(const struct st_dropout *d, uint32_t row, uint32_t col)
{
    const uint64_t at = (uint64_t)d->first + row, sequence = d->sequence + at / d->seq;
    const uint32_t counter[4] = {col / 4, (uint32_t)(at % d->seq), (uint32_t)sequence, (uint32_t)(sequence >> 32)};
    const uint32_t key[2] = {(uint32_t)d->key, (uint32_t)(d->key >> 32)};
    uint32_t words[4];

    philox(words, counter, key);
    return words[col % 4] >= d->limit;
}

/* What the kernels write, from fp32; `to` as it was. */
static float want(const struct st_dropout *d, uint32_t row, uint32_t col, float to, float from)
{
    const bool kept = keeps(d, row, col);

    if (d->add)
        return kept ? to + from * d->scale : to;
    return kept ? from * d->scale : 0.0f;
}

/* Sequences of 3 rows from the last of one on; their number passes 2^32. */
static struct st_dropout example(uint32_t cols, double p)
{
    return (struct st_dropout){.rows = ROWS,
                               .cols = cols,
                               .first = 5,
                               .seq = 3,
                               .sequence = UINT64_C(0xfffffffe),
                               .key = UINT64_C(0x0123456789abcdef),
                               .limit = (uint64_t)(p * 4294967296.0),
                               .scale = p < 1 ? (float)(1.0 / (1.0 - p)) : 0.0f,
                               .from = STRATA_F32};
}

static float from[ROWS * COLS_MAX], to[ROWS * COLS_MAX], before[ROWS * COLS_MAX];

/* All rows but the first, which stays. */
static void check(const struct st_kernels *k, const struct st_dropout *d)
{
    memcpy(to, before, sizeof(to));
    k->ops->dropout_rows(d, to, from, 1, d->rows - 1);
    for (uint32_t i = 0; i < d->rows * d->cols; i++) {
        const uint32_t row = i / d->cols;
        const float expected = row == 0 ? before[i] : want(d, row, i % d->cols, before[i], from[i]);

        if (memcmp(&to[i], &expected, sizeof(expected)) != 0)
            fail_msg("%s: %u columns, limit %llx: row %u, column %u is %a, not %a", k->name, d->cols, (unsigned long long)d->limit,
                     row, i % d->cols, (double)to[i], (double)expected);
    }
}

TEST(tables_drop_what_philox_says)
{
    static const uint32_t cols[] = {1, 2, 3, 4, 5, 7, 63, 64, 65, 128, 257, COLS_MAX};
    static const double p[] = {0, 0.05, 0.5, 0.999, 1};

    for (uint32_t i = 0; i < ROWS * COLS_MAX; i++) {
        from[i] = kf_uniform(1, i);
        before[i] = kf_uniform(2, i);
    }
    for (size_t t = 0; st_kernels_usable(t) != NULL; t++)
        for (size_t i = 0; i < sizeof(cols) / sizeof(cols[0]) * 2 * sizeof(p) / sizeof(p[0]); i++) {
            struct st_dropout d = example(cols[i / 10], p[i % 5]);

            d.add = i / 5 % 2 != 0;
            check(st_kernels_usable(t), &d);
        }
}

/* p = 0 keeps all bits, p = 1 none. */
TEST(the_ends_keep_all_or_nothing)
{
    struct st_dropout d = example(COLS_MAX, 0);

    for (uint32_t i = 0; i < ROWS * COLS_MAX; i++)
        from[i] = kf_uniform(1, i);
    st_kernels_pick(NULL)->ops->dropout_rows(&d, to, from, 0, ROWS);
    assert_memory_equal(to, from, sizeof(to));
    d = example(COLS_MAX, 1);
    memset(before, 0, sizeof(before));
    st_kernels_pick(NULL)->ops->dropout_rows(&d, to, from, 0, ROWS);
    assert_memory_equal(to, before, sizeof(to));
}

/* How many of many rows' elements are kept, and of another module's: within five standard deviations. */
TEST(as_many_are_kept_as_asked_for)
{
    static const double p[] = {0.05, 0.1, 0.5, 0.9};

    for (uint32_t i = 0; i < ROWS * COLS_MAX; i++)
        from[i] = 1.0f;
    for (size_t i = 0; i < sizeof(p) / sizeof(p[0]); i++) {
        struct st_dropout d = example(COLS_MAX, p[i]), other;
        double kept = 0, both = 0, elems = 0;

        d.seq = ROWS; /* whole sequences, so that no row is met twice */
        d.first = 0;
        other = d;
        other.key++;
        for (d.sequence = other.sequence = 0; d.sequence < 60; d.sequence = ++other.sequence, elems += ROWS * COLS_MAX) {
            st_kernels_pick(NULL)->ops->dropout_rows(&d, to, from, 0, ROWS);
            st_kernels_pick(NULL)->ops->dropout_rows(&other, before, from, 0, ROWS);
            for (uint32_t e = 0; e < ROWS * COLS_MAX; e++) {
                kept += to[e] != 0;
                both += to[e] != 0 && before[e] != 0;
            }
        }
        assert_true(fabs(kept - elems * (1 - p[i])) < 5 * sqrt(elems * p[i] * (1 - p[i])));
        assert_true(fabs(both - elems * (1 - p[i]) * (1 - p[i])) < 5 * sqrt(elems * (1 - p[i]) * (1 - p[i])));
    }
}

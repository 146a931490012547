/* test_shard - slices of groups: together the whole group, cut at whole units, never larger than the shard's room. */
#include "plan_fixture.h"
#include "tests/common/shape.h"
#include "tests/common/test.h"

#include "offload/program/shard.h"

#include <stdlib.h>

#define RANKS_MOST 9u

/* A hidden size that is no multiple of a tile, so that a table's units are many rows. */
static const struct plan_sizes sizes = {.dtype = STRATA_BF16,
                                        .blocks = 3,
                                        .hidden = 384,
                                        .vocab = 2000,
                                        .slice_rows = 1024,
                                        .seq = 64,
                                        .micro_batch = 1,
                                        .grad_accum = 1,
                                        .positions = true,
                                        .tied = true};

static void check_group(const struct st_workload *w, uint32_t p, uint32_t i, uint32_t ranks)
{
    const struct st_group *g = &w->pages[p].groups[i];
    const uint64_t unit = st_shard_unit(w, p);
    struct st_page shard;
    uint64_t sum = 0, most = 0;

    st_shard_make(&shard, w, p, ranks);
    for (uint32_t r = 0; r < ranks; r++) {
        const struct st_slice s = st_slice_of(w, p, i, ranks, r);

        sum += s.elems;
        most = s.elems > most ? s.elems : most;
        if (s.elems == 0)
            continue;
        assert_true(s.first % unit == 0 && s.first + s.elems <= g->elems && s.elems <= shard.groups[i].elems);
        assert_true((s.first + s.elems) % unit == 0 || s.first + s.elems == g->elems);
        assert_int_equal(st_slice_owner(w, p, i, ranks, s.first), r);
        assert_int_equal(st_slice_owner(w, p, i, ranks, s.first + s.elems - 1), r);
    }
    assert_int_equal(sum, g->elems);                  /* within bounds and with one owner for each end, so no element has two */
    assert_true(shard.groups[i].elems < most + unit); /* its room is the largest slice's, which may end in a part of a unit */
    assert_true(shard.groups[i].elems <= g->elems && shard.groups[i].kind == g->kind && shard.groups[i].format == g->format);
}

TEST(test_slices_make_up_every_group)
{
    struct st_workload w;

    plan_workload(&w, &sizes, NULL);
    for (uint32_t ranks = 1; ranks <= RANKS_MOST; ranks++)
        for (uint32_t p = 0; p < w.page_count; p++)
            for (uint32_t i = 0; i < w.pages[p].group_count; i++)
                check_group(&w, p, i, ranks);
    st_workload_fini(&w);
}

/* One row of the table, whole, belongs to one rank. */
TEST(test_a_row_has_one_owner)
{
    struct st_workload w;

    plan_workload(&w, &sizes, NULL);
    for (uint32_t ranks = 2; ranks <= RANKS_MOST; ranks++)
        for (uint64_t row = 0; row < w.pages[0].row_count; row++)
            assert_int_equal(st_slice_owner(&w, 0, 0, ranks, row * w.hidden),
                             st_slice_owner(&w, 0, 0, ranks, row * w.hidden + w.hidden - 1));
    st_workload_fini(&w);
}

/* A group of one tile has one owner, and those of consecutive pages have different ones. */
TEST(test_small_groups_spread)
{
    struct st_workload w;
    uint32_t owners = 0;

    plan_workload(&w, &sizes, NULL);
    for (uint32_t b = 0; b < shape_of(&w).block_count; b++)
        owners |= 1u << st_slice_owner(&w, shape_of(&w).block_first + b, 1, 3, 0);
    assert_int_equal(owners, 7);
    st_workload_fini(&w);
}

/* Marks in `seen` the page's bytes that the pieces of all ranks have, taken from their shards in parts of `part` bytes. */
static void mark_pieces(const struct st_workload *w, uint32_t p, uint32_t ranks, uint64_t part, unsigned char *seen)
{
    struct st_page shard;

    st_shard_make(&shard, w, p, ranks);
    for (uint32_t r = 0; r < ranks; r++)
        for (uint64_t at = 0; at < shard.bytes; at += part) {
            struct st_shard_piece pieces[ST_GROUPS_MAX];
            const uint32_t count = st_shard_pieces(pieces, w, p, ranks, r, at, shard.bytes - at < part ? shard.bytes - at : part);
            uint64_t end = at;

            for (uint32_t i = 0; i < count; i++) {
                assert_true(pieces[i].shard_at >= end && pieces[i].bytes > 0);
                end = pieces[i].shard_at + pieces[i].bytes;
                for (uint64_t b = 0; b < pieces[i].bytes; b++)
                    seen[pieces[i].page_at + b]++;
            }
            assert_true(end <= at + part && end <= shard.bytes);
        }
}

/* However the shards' bytes are asked for, all ranks' pieces are each weight's bytes once. */
TEST(test_pieces_make_up_every_page)
{
    const uint64_t parts[] = {10000, 1 << 20};
    struct st_workload w;

    plan_workload(&w, &sizes, NULL);
    for (uint32_t ranks = 2; ranks <= 5; ranks++)
        for (uint32_t n = 0; n < 2 * w.page_count; n++) {
            const struct st_page *page = &w.pages[n / 2];
            unsigned char *seen = calloc(1, page->bytes);

            assert_non_null(seen);
            mark_pieces(&w, n / 2, ranks, parts[n % 2], seen);
            for (uint32_t i = 0; i < page->group_count; i++)
                for (uint64_t b = 0; b < page->groups[i].bytes; b++)
                    assert_int_equal(seen[page->groups[i].at + b], 1);
            free(seen);
        }
    st_workload_fini(&w);
}

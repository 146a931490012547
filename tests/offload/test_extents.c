/* extents.bin: what is written comes back, and nothing else is taken. */
#include "core/base/checksum.h"
#include "offload/checkpoint/extents.h"
#include "tests/common/assert_status.h"
#include "tests/common/fault_walk.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"
#include "tests/offload/checkpoint_fixture.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FILE_MOST = 4096 };

struct file {
    unsigned char bytes[FILE_MOST];
    uint64_t size;
    char digest[33];
};

static strata_status put(void *ctx, const void *part, uint64_t bytes, uint64_t offset)
{
    struct file *f = ctx;

    assert_int_equal(offset, f->size);
    assert_true(f->size + bytes <= sizeof(f->bytes));
    memcpy(f->bytes + offset, part, bytes);
    f->size += bytes;
    return STRATA_OK;
}

static struct file file_of(const struct st_extents *e)
{
    struct file f = {.size = 0};

    assert_ok(st_extents_write(e, put, &f, f.digest));
    assert_int_equal(f.size, st_extents_bytes(e));
    return f;
}

static strata_status read_back(struct st_extents *out, const struct file *f, const char *digest)
{
    const int fd = memfd_create("extents", MFD_CLOEXEC);
    strata_status st;

    assert_true(fd >= 0 && write(fd, f->bytes, f->size) == (ssize_t)f->size);
    st = st_extents_read(out, fd, f->size, "extents.bin", digest);
    close(fd);
    return st;
}

/* With a checksum of what it has become. */
static void seal(struct file *f)
{
    struct st_digest *digest;

    assert_ok(st_digest_create(&digest));
    st_digest_update(digest, f->bytes, f->size - ST_EXTENTS_TRAILER);
    st_digest_hex(digest, f->digest);
    st_digest_destroy(digest);
    memcpy(f->bytes + f->size - ST_EXTENTS_TRAILER, f->digest, ST_EXTENTS_TRAILER);
}

TEST(comes_back)
{
    struct st_extents e = fixture_extents(), back;
    const struct file f = file_of(&e);

    assert_int_equal(e.row_count, 4 + 3 + 1); /* a bf16 group, an fp32 one that is its own master, a frozen one */
    assert_ok(read_back(&back, &f, f.digest));
    assert_int_equal(back.row_count, e.row_count);
    assert_int_equal(back.sum_count, e.sum_count);
    assert_memory_equal(back.rows, e.rows, e.row_count * sizeof(*e.rows));
    assert_memory_equal(back.sums, e.sums, e.sum_count * sizeof(*e.sums));
    st_extents_fini(&back);
    st_extents_fini(&e);
}

TEST(none_is_a_file_too)
{
    const struct st_extents none = {0};
    const struct file f = file_of(&none);
    struct st_extents back;

    assert_ok(read_back(&back, &f, NULL));
    assert_int_equal(back.row_count + back.sum_count, 0);
    st_extents_fini(&back);
}

TEST(every_flipped_byte_is_found)
{
    struct st_extents e = fixture_extents(), back;
    struct file f = file_of(&e);

    for (uint64_t i = 0; i < f.size; i++)
        for (uint32_t flip = 1; flip < 256; flip *= 2) {
            f.bytes[i] = (unsigned char)(f.bytes[i] ^ flip);
            assert_int_equal(read_back(&back, &f, NULL), STRATA_E_CORRUPT);
            f.bytes[i] = (unsigned char)(f.bytes[i] ^ flip);
        }
    for (; f.size > 0; f.size--) {
        struct file cut = f;

        cut.size--;
        assert_int_equal(read_back(&back, &cut, NULL), STRATA_E_CORRUPT);
    }
    st_extents_fini(&e);
}

TEST(another_checkpoints_file_is_refused)
{
    struct st_extents e = fixture_extents(), back;
    const struct file f = file_of(&e);

    assert_refused(read_back(&back, &f, "00112233445566778899aabbccddeeff"), STRATA_E_CORRUPT,
                   "not the one that the manifest names");
    st_extents_fini(&e);
}

/* Numbers in the header that promise more than the file has: no memory is taken for them. */
TEST(counts_are_bounded)
{
    static const uint64_t counts[] = {0, 1, 7, UINT64_C(1) << 61, UINT64_MAX / 56 + 1, UINT64_MAX};
    struct st_extents e = fixture_extents(), back;
    const struct file f = file_of(&e);

    for (uint32_t at = 16; at <= 24; at += 8)
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
            struct file changed = f;

            memcpy(changed.bytes + at, &counts[i], sizeof(counts[i]));
            seal(&changed);
            assert_refused(read_back(&back, &changed, NULL), STRATA_E_CORRUPT, "not what its header promises");
        }
    st_extents_fini(&e);
}

TEST(impossible_rows_are_refused)
{
    struct st_extents e = fixture_extents(), back;
    const struct file f = file_of(&e);
    const struct {
        uint32_t row;
        size_t at;
        uint64_t value;
        uint32_t bytes;
        const char *says;
    } rows[] = {
#define CASE(row, member, value, says)                                                                                           \
    {row, offsetof(struct st_extent_row, member), value, sizeof(((struct st_extent_row *)0)->member), says}
        CASE(0, page, 1, "out of order"),
        CASE(0, group, ST_GROUPS_MAX, "impossible"),
        CASE(0, group, 1, "out of order"),
        CASE(0, plane, ST_PLANE_COUNT, "impossible"),
        CASE(1, plane, ST_PLANE_MASTER, "out of order"),
        CASE(0, space, ST_SPACE_SCRATCH, "impossible"),
        CASE(0, space, ST_SPACE_COUNT, "impossible"),
        CASE(0, first, 1, "impossible"),
        CASE(0, first, UINT64_MAX - ST_TILE_ELEMS + 1, "impossible"),
        CASE(0, elems, 0, "impossible"),
        CASE(0, elems, UINT64_MAX, "impossible"),
        CASE(0, elems, ST_TILE_ELEMS, "impossible"), /* one tile has one sum */
        CASE(0, offset, 63, "impossible"),
        CASE(0, offset, UINT64_MAX - 63, "impossible"),
        CASE(0, bytes, 0, "impossible"),
        CASE(0, sum_first, 1, "impossible"),
        CASE(0, sum_count, 1, "impossible"),
        CASE(7, sum_first, UINT64_MAX, "impossible"),
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct file changed = f;

        memcpy(changed.bytes + ST_EXTENTS_HEADER + rows[i].row * sizeof(struct st_extent_row) + rows[i].at, &rows[i].value,
               rows[i].bytes);
        seal(&changed);
        assert_refused(read_back(&back, &changed, NULL), STRATA_E_CORRUPT, rows[i].says);
    }
    st_extents_fini(&e);
}

TEST(sums_without_a_row_are_refused)
{
    struct st_extents e = fixture_extents(), back;
    struct file f;

    e.sum_count++;
    f = file_of(&e);
    assert_refused(read_back(&back, &f, NULL), STRATA_E_CORRUPT, "belong to no row");
    st_extents_fini(&e);
}

TEST(every_failure_has_a_sentence)
{
    struct fault_walk walk = {.result = -EIO};
    struct st_extents e = fixture_extents(), back = {0};
    const struct file f = file_of(&e);

    while (fault_walk_next(&walk)) {
        const strata_status st = read_back(&back, &f, f.digest);

        fault_walk_end(&walk, st);
        if (st == STRATA_OK)
            st_extents_fini(&back);
    }
    assert_true(walk.failed >= 6);
    st_extents_fini(&e);
}

/* --- parts --- */

#define PARTS 3u

static const uint64_t space_bytes[ST_SPACE_COUNT] = {0, UINT64_C(1) << 20, UINT64_C(1) << 21};

static uint32_t part_of_row(uint64_t row, uint32_t shift)
{
    return (uint32_t)((row + shift) % PARTS);
}

/* Every third row, with its sums behind one another. */
static struct st_extents part_of(const struct st_extents *e, uint32_t part, uint32_t shift)
{
    struct st_extents own = {.rows = calloc(e->row_count, sizeof(*own.rows)), .sums = calloc(e->sum_count, sizeof(*own.sums))};

    assert_true(own.rows != NULL && own.sums != NULL);
    for (uint64_t i = 0; i < e->row_count; i++) {
        struct st_extent_row *row = &own.rows[own.row_count];

        if (part_of_row(i, shift) != part)
            continue;
        own.row_count++;
        *row = e->rows[i];
        row->sum_first = own.sum_count;
        memcpy(own.sums + own.sum_count, e->sums + e->rows[i].sum_first, row->sum_count * sizeof(*own.sums));
        own.sum_count += row->sum_count;
    }
    return own;
}

static void write_parts(const struct st_extents *e, char paths[PARTS][64], uint32_t shift, uint64_t flipped)
{
    for (uint32_t i = 0; i < PARTS; i++) {
        struct st_extents own = part_of(e, i, shift);
        struct file f = file_of(&own);
        FILE *out;

        if (i == 1 && flipped < f.size)
            f.bytes[flipped] ^= 0x10;
        snprintf(paths[i], sizeof(paths[i]), "%s/part-%u", scratch_dir, i);
        out = fopen(paths[i], "wb");
        assert_true(out != NULL && fwrite(f.bytes, 1, f.size, out) == f.size && fclose(out) == 0);
        st_extents_fini(&own);
    }
}

static strata_status merge(char paths[PARTS][64], struct file *out)
{
    const char *const names[PARTS] = {paths[0], paths[1], paths[2]};
    struct st_extents_merge *m;
    strata_status st = st_extents_merge_open(&m, names, PARTS, space_bytes);

    *out = (struct file){.size = 0};
    if (st != STRATA_OK)
        return st;
    st = st_extents_merge_write(m, put, out, out->digest);
    if (st == STRATA_OK)
        assert_int_equal(out->size, st_extents_bytes(st_extents_merged(m)));
    st_extents_merge_close(m);
    return st;
}

static struct st_extents cut(struct st_manifest *m)
{
    *m = fixture_manifest_of(5 * (uint64_t)ST_TILE_ELEMS + 4480);
    return fixture_extents_of(m, ST_TILE_ELEMS);
}

/* Whichever part has a row: it lies behind the parts before, in its own space. */
TEST_SETUP(parts_make_up_the_whole, scratch_create, scratch_remove)
{
    struct st_manifest m;
    struct st_extents e = cut(&m), back;
    uint32_t bases = 0;
    char paths[PARTS][64];
    struct file f;

    for (uint32_t shift = 0; shift < PARTS; shift++) {
        write_parts(&e, paths, shift, UINT64_MAX);
        assert_ok(merge(paths, &f));
        assert_ok(read_back(&back, &f, f.digest));
        assert_int_equal(back.row_count, e.row_count);
        assert_true(back.row_count > 2 * PARTS);
        assert_memory_equal(back.sums, e.sums, e.sum_count * sizeof(*e.sums));
        for (uint64_t i = 0; i < e.row_count; i++) {
            struct st_extent_row want = e.rows[i];

            want.offset += part_of_row(i, shift) * space_bytes[want.space];
            assert_memory_equal(&back.rows[i], &want, sizeof(want));
            bases += want.space == ST_SPACE_BASE && part_of_row(i, shift) > 0;
        }
        st_extents_fini(&back);
    }
    assert_true(bases > 0);
    st_extents_fini(&e);
    st_manifest_fini(&m);
}

TEST_SETUP(a_parts_flipped_byte_is_found, scratch_create, scratch_remove)
{
    struct st_manifest m;
    struct st_extents e = cut(&m);
    char paths[PARTS][64];
    struct file f;

    write_parts(&e, paths, 0, UINT64_MAX);
    assert_ok(merge(paths, &f));
    for (uint64_t at = 0; at < ST_EXTENTS_HEADER + 3 * sizeof(*e.rows); at += 5) {
        write_parts(&e, paths, 0, at);
        assert_int_equal(merge(paths, &f), STRATA_E_CORRUPT);
    }
    write_parts(&e, paths, 0, ST_EXTENTS_HEADER + (e.row_count / PARTS + 1) * sizeof(*e.rows) + 3); /* in the sums */
    assert_refused(merge(paths, &f), STRATA_E_CORRUPT, "part-1: its checksum is wrong");
    write_parts(&e, paths, 0, UINT64_MAX);
    assert_int_equal(truncate(paths[1], ST_EXTENTS_HEADER + ST_EXTENTS_TRAILER - 1), 0);
    assert_refused(merge(paths, &f), STRATA_E_CORRUPT, "part-1: it is too short");
    st_extents_fini(&e);
    st_manifest_fini(&m);
}

/* A row that two ranks have. */
TEST_SETUP(parts_do_not_overlap, scratch_create, scratch_remove)
{
    struct st_manifest m;
    struct st_extents e = cut(&m);
    char paths[PARTS][64];
    struct file f;

    write_parts(&e, paths, 0, UINT64_MAX);
    memcpy(paths[2], paths[0], sizeof(paths[0]));
    assert_refused(merge(paths, &f), STRATA_E_CORRUPT, "out of order");
    st_extents_fini(&e);
    st_manifest_fini(&m);
}

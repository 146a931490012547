/* extents.bin: what is written comes back, and nothing else is taken. */
#include "core/base/checksum.h"
#include "offload/checkpoint/extents.h"
#include "tests/common/assert_status.h"
#include "tests/common/fault_walk.h"
#include "tests/offload/checkpoint_fixture.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

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

static void comes_back(void **state)
{
    struct st_extents e = fixture_extents(), back;
    const struct file f = file_of(&e);

    (void)state;
    assert_int_equal(e.row_count, 4 + 3 + 1); /* a bf16 group, an fp32 one that is its own master, a frozen one */
    assert_ok(read_back(&back, &f, f.digest));
    assert_int_equal(back.row_count, e.row_count);
    assert_int_equal(back.sum_count, e.sum_count);
    assert_memory_equal(back.rows, e.rows, e.row_count * sizeof(*e.rows));
    assert_memory_equal(back.sums, e.sums, e.sum_count * sizeof(*e.sums));
    st_extents_fini(&back);
    st_extents_fini(&e);
}

static void none_is_a_file_too(void **state)
{
    const struct st_extents none = {0};
    const struct file f = file_of(&none);
    struct st_extents back;

    (void)state;
    assert_ok(read_back(&back, &f, NULL));
    assert_int_equal(back.row_count + back.sum_count, 0);
    st_extents_fini(&back);
}

static void every_flipped_byte_is_found(void **state)
{
    struct st_extents e = fixture_extents(), back;
    struct file f = file_of(&e);

    (void)state;
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

static void another_checkpoints_file_is_refused(void **state)
{
    struct st_extents e = fixture_extents(), back;
    const struct file f = file_of(&e);

    (void)state;
    assert_refused(read_back(&back, &f, "00112233445566778899aabbccddeeff"), STRATA_E_CORRUPT,
                   "not the one that the manifest names");
    st_extents_fini(&e);
}

/* Numbers in the header that promise more than the file has: no memory is taken for them. */
static void counts_are_bounded(void **state)
{
    static const uint64_t counts[] = {0, 1, 7, UINT64_C(1) << 61, UINT64_MAX / 56 + 1, UINT64_MAX};
    struct st_extents e = fixture_extents(), back;
    const struct file f = file_of(&e);

    (void)state;
    for (uint32_t at = 16; at <= 24; at += 8)
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
            struct file changed = f;

            memcpy(changed.bytes + at, &counts[i], sizeof(counts[i]));
            seal(&changed);
            assert_refused(read_back(&back, &changed, NULL), STRATA_E_CORRUPT, "not what its header promises");
        }
    st_extents_fini(&e);
}

static void impossible_rows_are_refused(void **state)
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

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct file changed = f;

        memcpy(changed.bytes + ST_EXTENTS_HEADER + rows[i].row * sizeof(struct st_extent_row) + rows[i].at, &rows[i].value,
               rows[i].bytes);
        seal(&changed);
        assert_refused(read_back(&back, &changed, NULL), STRATA_E_CORRUPT, rows[i].says);
    }
    st_extents_fini(&e);
}

static void sums_without_a_row_are_refused(void **state)
{
    struct st_extents e = fixture_extents(), back;
    struct file f;

    (void)state;
    e.sum_count++;
    f = file_of(&e);
    assert_refused(read_back(&back, &f, NULL), STRATA_E_CORRUPT, "belong to no row");
    st_extents_fini(&e);
}

static void every_failure_has_a_sentence(void **state)
{
    struct fault_walk walk = {.result = -EIO};
    struct st_extents e = fixture_extents(), back = {0};
    const struct file f = file_of(&e);

    (void)state;
    while (fault_walk_next(&walk)) {
        const strata_status st = read_back(&back, &f, f.digest);

        fault_walk_end(&walk, st);
        if (st == STRATA_OK)
            st_extents_fini(&back);
    }
    assert_true(walk.failed >= 6);
    st_extents_fini(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_back),
        cmocka_unit_test(none_is_a_file_too),
        cmocka_unit_test(every_flipped_byte_is_found),
        cmocka_unit_test(another_checkpoints_file_is_refused),
        cmocka_unit_test(counts_are_bounded),
        cmocka_unit_test(impossible_rows_are_refused),
        cmocka_unit_test(sums_without_a_row_are_refused),
        cmocka_unit_test(every_failure_has_a_sentence),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

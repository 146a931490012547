/* All of a checkpoint is read: damage is found and named, and the digests are those of the planes in their order. */
#include "offload/checkpoint/verify.h"
#include "tests/common/test.h"

#include "core/base/checksum.h"
#include "tests/common/assert_status.h"
#include "tests/common/fault_walk.h"
#include "tests/common/scratch.h"
#include "tests/offload/checkpoint_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ELEMS (5 * (uint64_t)ST_TILE_ELEMS + 4480)
#define CHUNK (2 * (uint64_t)ST_TILE_ELEMS)

/* tensors: whether the checkpoint lists them. */
static struct st_checkpoint *made(bool tensors)
{
    struct st_manifest m = fixture_manifest_of(ELEMS);
    struct st_extents e = fixture_extents_of(&m, CHUNK);
    struct st_checkpoint *ck = NULL;

    m.tensor_count = tensors ? m.tensor_count : 0;
    assert_int_equal(mkdir(scratch_path("ck"), 0777), 0);
    fixture_write(scratch_path("ck"), &m, &e);
    st_extents_fini(&e);
    st_manifest_fini(&m);
    assert_ok(st_checkpoint_open(&ck, scratch_path("ck")));
    return ck;
}

struct seen {
    const struct st_checkpoint *ck;
    uint64_t damages, calls, done, total, lost, stop_after; /* lost: bytes of the rows with damage */
    struct st_damage last;
};

static bool progress_seen(void *ctx, uint64_t done, uint64_t total)
{
    struct seen *s = ctx;

    assert_true(done >= s->done && done <= total);
    s->done = done;
    s->total = total;
    return s->stop_after == 0 || ++s->calls < s->stop_after;
}

static void damage_seen(void *ctx, const struct st_damage *damage)
{
    struct seen *s = ctx;
    const struct st_manifest *m = &s->ck->manifest;

    s->damages++;
    s->lost +=
        st_plane_bytes((enum st_plane)damage->row->plane, st_manifest_group(m, damage->row->page, damage->row->group)->format,
                       m->moment_format, damage->row->elems);
    s->last = *damage;
}

static void flip(const char *name, uint64_t at)
{
    const int fd = open(scratch_path(name), O_RDWR | O_CLOEXEC);
    unsigned char byte;

    assert_true(fd >= 0 && pread(fd, &byte, 1, (off_t)at) == 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
}

TEST_SETUP(a_whole_one_is_whole, scratch_begin, scratch_end)
{
    struct st_checkpoint *ck = made(true);
    struct seen s = {.ck = ck};
    uint64_t damages = 1, bytes, tiles;

    st_verify_amount(ck, &bytes, &tiles);
    assert_int_equal(tiles, 4 * 6 + 3 + 1);
    assert_ok(st_verify(ck, progress_seen, damage_seen, &s, &damages));
    assert_int_equal(damages + s.damages, 0);
    assert_int_equal(s.done, bytes); /* all of it */
    assert_int_equal(s.total, bytes);
    s.stop_after = 2;
    s.done = 0;
    assert_int_equal(st_verify(ck, progress_seen, damage_seen, &s, &damages), STRATA_E_CANCELLED);
    st_checkpoint_close(ck);
}

TEST_SETUP(all_damage_is_found_in_one_pass, scratch_begin, scratch_end)
{
    struct st_checkpoint *ck = made(true);
    struct seen s = {.ck = ck};
    uint64_t damages = 0;

    flip("ck/set.0", 0);
    flip("ck/set.1", 70000);
    flip("ck/base.0", 4100);
    assert_refused(st_verify(ck, progress_seen, damage_seen, &s, &damages), STRATA_E_CORRUPT, "3 of its 28 tiles are damaged");
    assert_int_equal(damages, 3);
    assert_int_equal(s.damages, 3);
    assert_true(s.lost > 0 && s.done == s.total - s.lost); /* a row comes at once: whole, or it is no progress */
    assert_string_equal(s.last.why, "its checksum is wrong");
    assert_int_equal(s.last.row->space, ST_SPACE_SET);                             /* as they lie: the base first */
    assert_int_equal(st_verify(ck, NULL, NULL, NULL, &damages), STRATA_E_CORRUPT); /* nobody wants to know where */
    assert_int_equal(damages, 3);
    st_checkpoint_close(ck);
}

/* The byte of a plane's element, or of its `byte`-th. */
static void update(struct st_digest *d, const struct st_checkpoint *ck, const struct st_extent_row *row, uint64_t from,
                   uint64_t end)
{
    const struct st_manifest *m = &ck->manifest;
    const strata_dtype format = st_manifest_group(m, row->page, row->group)->format;
    const uint64_t first = st_plane_bytes((enum st_plane)row->plane, format, m->moment_format, from - row->first);
    const uint64_t last = st_plane_bytes((enum st_plane)row->plane, format, m->moment_format, end - row->first);

    for (uint64_t i = first; i < last; i++) {
        const unsigned char byte = fixture_byte((enum st_space)row->space, row->offset + i);

        st_digest_update(d, &byte, 1);
    }
}

/* Elements [first, end) of a group's plane, looked for row by row. */
static void update_range(struct st_digest *d, const struct st_checkpoint *ck, uint32_t page, uint32_t group, uint32_t plane,
                         uint64_t first, uint64_t end)
{
    for (uint64_t i = 0; i < ck->extents.row_count; i++) {
        const struct st_extent_row *row = &ck->extents.rows[i];
        const uint64_t from = row->first > first ? row->first : first;
        const uint64_t to = row->first + row->elems < end ? row->first + row->elems : end;

        if (row->page == page && row->group == group && row->plane == plane && from < to)
            update(d, ck, row, from, to);
    }
}

static void expected_state(const struct st_checkpoint *ck, char hex[33])
{
    struct st_digest *whole, *plane;

    assert_ok(st_digest_create(&whole));
    for (uint32_t p = ST_PLANE_MASTER; p <= ST_PLANE_MOMENT2; p++) {
        assert_ok(st_digest_create(&plane));
        update_range(plane, ck, 0, 0, p, 0, ELEMS);
        update_range(plane, ck, 0, 1, p, 0, FIXTURE_BIASES);
        st_digest_hex(plane, hex);
        st_digest_destroy(plane);
        st_digest_update(whole, hex, 32);
    }
    st_digest_hex(whole, hex);
    st_digest_destroy(whole);
}

TEST_SETUP(digests_are_those_of_the_planes, scratch_begin, scratch_end)
{
    for (uint32_t tensors = 0; tensors < 2; tensors++) {
        struct st_checkpoint *ck = made(tensors != 0);
        char weights[33], planes[33], want_weights[33], want_planes[33];
        struct st_digest *d;

        assert_ok(st_digest_create(&d));
        if (tensors != 0) { /* as the fixture lists them */
            update_range(d, ck, 0, 0, ST_PLANE_WEIGHT, 0, 6400);
            update_range(d, ck, 0, 0, ST_PLANE_WEIGHT, 6400, ELEMS);
        } else {
            update_range(d, ck, 0, 0, ST_PLANE_WEIGHT, 0, ELEMS);
        }
        update_range(d, ck, 0, 1, ST_PLANE_WEIGHT, 0, FIXTURE_BIASES);
        update_range(d, ck, 1, 0, ST_PLANE_WEIGHT, 0, FIXTURE_FROZEN);
        st_digest_hex(d, want_weights);
        st_digest_destroy(d);
        expected_state(ck, want_planes);
        assert_ok(st_verify_digest(ck, NULL, NULL, weights, planes));
        assert_string_equal(weights, want_weights);
        assert_string_equal(planes, want_planes);
        flip("ck/set.0", 9);
        assert_refused(st_verify_digest(ck, NULL, NULL, weights, planes), STRATA_E_CORRUPT, "its checksum is wrong");
        st_checkpoint_close(ck);
        scratch_close();
        scratch_open();
    }
}

/* Tensors in another order than they lie: the weights' digest follows the list. */
TEST_SETUP(weights_follow_the_list_of_tensors, scratch_begin, scratch_end)
{
    struct st_checkpoint *ck = made(true);
    struct st_manifest_tensor *t = ck->manifest.tensors;
    const struct st_manifest_tensor second = t[1];
    char weights[33], planes[33], want[33];
    struct st_digest *d;

    t[1] = t[3];
    t[3] = second;
    assert_ok(st_digest_create(&d));
    update_range(d, ck, 0, 0, ST_PLANE_WEIGHT, 0, 6400);
    update_range(d, ck, 1, 0, ST_PLANE_WEIGHT, 0, FIXTURE_FROZEN);
    update_range(d, ck, 0, 1, ST_PLANE_WEIGHT, 0, FIXTURE_BIASES);
    update_range(d, ck, 0, 0, ST_PLANE_WEIGHT, 6400, ELEMS);
    st_digest_hex(d, want);
    st_digest_destroy(d);
    assert_ok(st_verify_digest(ck, NULL, NULL, weights, planes));
    assert_string_equal(weights, want);
    st_checkpoint_close(ck);
}

/* With two directories and two spaces 280 files, all open at a time. */
TEST_SETUP(one_of_many_ranks_is_read, scratch_begin, scratch_end)
{
    struct st_checkpoint *one = made(true), *ck = NULL;
    struct st_manifest m = fixture_manifest_of(ELEMS);
    struct st_extents e = fixture_extents_of(&m, CHUNK);
    char weights[2][33], planes[2][33];
    uint64_t damages = 1;

    assert_int_equal(mkdir(scratch_path("ranks"), 0777), 0);
    fixture_write_ranks(scratch_path("ranks"), &m, &e, 70);
    assert_ok(st_checkpoint_open(&ck, scratch_path("ranks")));
    assert_int_equal(st_manifest_parts(&ck->manifest), 70);
    assert_ok(st_verify(ck, NULL, NULL, NULL, &damages));
    assert_int_equal(damages, 0);
    assert_ok(st_verify_digest(one, NULL, NULL, weights[0], planes[0]));
    assert_ok(st_verify_digest(ck, NULL, NULL, weights[1], planes[1]));
    assert_string_equal(weights[1], weights[0]);
    assert_string_equal(planes[1], planes[0]);
    st_extents_fini(&e);
    st_manifest_fini(&m);
    st_checkpoint_close(one);
    st_checkpoint_close(ck);
}

TEST_SETUP(every_failure_has_a_sentence, scratch_begin, scratch_end)
{
    struct st_checkpoint *ck = made(true);
    struct fault_walk walk = {.result = -EIO};

    while (fault_walk_next(&walk)) {
        char weights[33], planes[33];

        fault_walk_end(&walk, st_verify_digest(ck, NULL, NULL, weights, planes));
    }
    assert_true(walk.failed >= 10);
    st_checkpoint_close(ck);
}

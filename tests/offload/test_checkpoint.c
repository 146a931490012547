/* Checkpoints that are read: what is whole opens, what is not is named, and every tile is compared before it is used. */
#include "offload/checkpoint/checkpoint.h"
#include "offload/checkpoint/model_files.h"
#include "offload/checkpoint/reader.h"
#include "tests/common/assert_status.h"
#include "tests/common/fault_walk.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"
#include "tests/offload/checkpoint_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define ELEMS (37 * UINT64_C(65536) + 4480) /* three pieces of a transfer, and the last tile is a part */
#define CHUNK (20 * UINT64_C(65536))

static const char *const step_1 = "save/step-00000001", *const step_2 = "save/step-00000002";
static const char *const names_of_2[] = {"save/step-00000002", "save/step-00000002//", "save/step-00000002/.", "link", "link/"};

static void make_of(const char *name, uint64_t chunk)
{
    struct st_manifest m = fixture_manifest_of(ELEMS);
    struct st_extents e = fixture_extents_of(&m, chunk);

    assert_true(mkdir(scratch_path("save"), 0777) == 0 || errno == EEXIST);
    assert_int_equal(mkdir(scratch_path(name), 0777), 0);
    fixture_write(scratch_path(name), &m, &e);
    st_extents_fini(&e);
    st_manifest_fini(&m);
}

static void make(const char *name)
{
    make_of(name, CHUNK);
}

static void flip(const char *name, uint64_t at)
{
    const int fd = open(scratch_path(name), O_RDWR | O_CLOEXEC);
    unsigned char byte;

    assert_true(fd >= 0 && pread(fd, &byte, 1, (off_t)at) == 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
}

static struct st_checkpoint *opened(const char *name)
{
    struct st_checkpoint *ck = NULL;

    assert_ok(st_checkpoint_open(&ck, scratch_path(name)));
    return ck;
}

TEST_SETUP(a_whole_one_opens, scratch_begin, scratch_end)
{
    struct st_checkpoint *ck;

    make(step_1);
    ck = opened(step_1);
    assert_int_equal(ck->manifest.step, 100);
    assert_int_equal(ck->extents.row_count, 2 * 4 + 3 + 1);
    st_checkpoint_close(ck);
}

/* Whoever writes to files that have lost their name finds them locked while they are read. */
TEST_SETUP(files_are_locked_while_they_are_open, scratch_begin, scratch_end)
{
    struct st_checkpoint_volume set;
    struct st_checkpoint *ck;
    int fd;

    make(step_1);
    ck = opened(step_1);
    fd = open(scratch_path("save/step-00000001/set.1"), O_RDONLY | O_CLOEXEC);
    assert_ok(st_checkpoint_volume_open(&set, ck, ST_SPACE_SET, ST_CHECKPOINT_PARTS));
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), -1);
    st_checkpoint_volume_close(&set);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    close(fd);
    st_checkpoint_close(ck);
}

/* A live run removes its oldest: who reads that is told so, and not that it is damaged. */
TEST_SETUP(one_that_goes_meanwhile_is_not_damaged, scratch_begin, scratch_end)
{
    struct st_checkpoint_volume set;
    struct st_checkpoint *ck;

    make(step_1);
    ck = opened(step_1);
    assert_int_equal(unlink(scratch_path("save/step-00000001/set.0")), 0);
    assert_refused(st_checkpoint_volume_open(&set, ck, ST_SPACE_SET, ST_CHECKPOINT_PARTS), STRATA_E_CORRUPT, "set.0");
    assert_int_equal(rename(scratch_path(step_1), scratch_path("gone")), 0);
    assert_refused(st_checkpoint_volume_open(&set, ck, ST_SPACE_SET, ST_CHECKPOINT_PARTS), STRATA_E_INPUT,
                   "step-00000001: was removed while it was read");
    snprintf(ck->manifest.model_files, sizeof(ck->manifest.model_files), "of files in model/");
    assert_refused(st_model_files_check(ck), STRATA_E_INPUT, "was removed while it was read");
    st_checkpoint_close(ck);
}

/* A live run that replaces what has the names of its own: what another one has there is not read as this one's. */
TEST_SETUP(one_that_is_replaced_meanwhile_is_not_damaged, scratch_begin, scratch_end)
{
    struct st_checkpoint_volume set;
    struct st_checkpoint *ck;

    make(step_1);
    ck = opened(step_1);
    snprintf(ck->manifest.model_files, sizeof(ck->manifest.model_files), "of files in model/");
    assert_int_equal(mkdir(scratch_path("save/step-00000001/model"), 0700), 0);
    assert_refused(st_model_files_check(ck), STRATA_E_CORRUPT, "model's small files");
    assert_int_equal(rename(scratch_path(step_1), scratch_path("gone")), 0);
    make_of(step_1, 2 * CHUNK);
    assert_refused(st_checkpoint_still_there(ck), STRATA_E_INPUT, "step-00000001: was replaced while it was read");
    assert_refused(st_checkpoint_volume_open(&set, ck, ST_SPACE_SET, ST_CHECKPOINT_PARTS), STRATA_E_INPUT, "was replaced");
    assert_int_equal(unlink(scratch_path("save/step-00000001/set.0")), 0);
    assert_refused(st_checkpoint_volume_open(&set, ck, ST_SPACE_SET, ST_CHECKPOINT_PARTS), STRATA_E_INPUT, "was replaced");
    assert_refused(st_model_files_check(ck), STRATA_E_INPUT, "was replaced");
    st_checkpoint_close(ck);
}

TEST_SETUP(what_is_missing_or_cut_is_named, scratch_begin, scratch_end)
{
    static const char *const files[] = {"manifest.json", "extents.bin", "set.0", "set.1", "base.0"};
    struct st_checkpoint *ck;
    char path[64];
    struct stat info;

    make(step_1);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", step_1, files[i]);
        assert_int_equal(rename(scratch_path(path), scratch_path("aside")), 0);
        assert_refused(st_checkpoint_open(&ck, scratch_path(step_1)), i == 0 ? STRATA_E_INPUT : STRATA_E_CORRUPT, files[i]);
        assert_non_null(strstr(strata_last_error(), i < 2 ? "No such file or directory" : "is missing"));
        if (i >= 2) { /* a file of planes */
            assert_int_equal(mkdir(scratch_path(path), 0700), 0);
            assert_refused(st_checkpoint_open(&ck, scratch_path(step_1)), STRATA_E_CORRUPT, "is no file");
            assert_int_equal(rmdir(scratch_path(path)), 0);
        }
        assert_int_equal(rename(scratch_path("aside"), scratch_path(path)), 0);
        assert_int_equal(stat(scratch_path(path), &info), 0);
        assert_int_equal(truncate(scratch_path(path), info.st_size - 1), 0);
        assert_refused(st_checkpoint_open(&ck, scratch_path(step_1)), STRATA_E_CORRUPT, files[i]);
        assert_int_equal(truncate(scratch_path(path), info.st_size), 0); /* ends in a zero now */
        if (i < 2)
            assert_refused(st_checkpoint_open(&ck, scratch_path(step_1)), STRATA_E_CORRUPT, "damaged");
        else
            st_checkpoint_close(opened(step_1));
        if (i < 2) {
            scratch_close();
            scratch_open();
            make(step_1);
        }
    }
}

static void digest_of(char digest[ST_DIGEST_TEXT], const char *a, const char *a_text, const char *b, const char *b_text)
{
    char name[2][32];

    assert_int_equal(mkdir(scratch_path("model"), 0700), 0);
    snprintf(name[0], sizeof(name[0]), "model/%s", a);
    snprintf(name[1], sizeof(name[1]), "model/%s", b);
    scratch_put(name[0], a_text);
    scratch_put(name[1], b_text);
    assert_ok(st_model_files_digest(digest, scratch_path("model")));
    assert_int_equal(unlink(scratch_path(name[0])), 0);
    assert_int_equal(unlink(scratch_path(name[1])), 0);
    assert_int_equal(rmdir(scratch_path("model")), 0);
}

/* The digest of a model's small files has their names, sizes and bytes, in one order. */
TEST_SETUP(each_small_file_counts, scratch_begin, scratch_end)
{
    static const char *const others[][4] = {{"a.json", "xy", "c.json", "zzz"}, /* another name */
                                            {"b.json", "xy", "a.json", "zzz"}, /* the two contents, the other way round */
                                            {"a.json", "xx", "b.json", "zzz"}, /* another byte */
                                            {"a.json", "xyz", "b.json", "zz"}, /* the same bytes behind each other */
                                            {"a.json", "", "b.json", "xyzzz"},
                                            {"a.json", "", "xyb.json", "zzz"}}; /* one's end as the next one's name */
    char want[ST_DIGEST_TEXT], got[ST_DIGEST_TEXT];

    digest_of(want, "a.json", "xy", "b.json", "zzz");
    digest_of(got, "b.json", "zzz", "a.json", "xy"); /* made in another order */
    assert_string_equal(got, want);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        digest_of(got, others[i][0], others[i][1], others[i][2], others[i][3]);
        assert_string_not_equal(got, want);
    }
}

/* One that is read in parts, the last of them short or whole: each of its bytes counts, and none behind its end. */
TEST_SETUP(a_large_small_file_counts_whole, scratch_begin, scratch_end)
{
    static const size_t sizes[] = {65535, 65536, 65537, 131072, 200000};
    char *text = malloc(200001), want[ST_DIGEST_TEXT], got[ST_DIGEST_TEXT];

    assert_non_null(text);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        memset(text, 'x', sizes[i]);
        text[sizes[i]] = '\0';
        digest_of(want, "a.json", text, "b.json", "");
        text[sizes[i] - 1] = 'y';
        digest_of(got, "a.json", text, "b.json", "");
        assert_string_not_equal(got, want);
        text[sizes[i] - 1] = 'x';
        text[65535 % sizes[i]] = 'y';
        digest_of(got, "a.json", text, "b.json", "");
        assert_string_not_equal(got, want);
    }
    free(text);
}

/* Rows that are possible by themselves, but not for this model. */
TEST(rows_must_be_those_of_the_model)
{
    struct st_manifest m = fixture_manifest_of(ELEMS);
    struct st_extents e = fixture_extents_of(&m, CHUNK);
    const struct st_extents whole = e;
    const uint64_t second = e.rows[1].offset;

    m.space_bytes[ST_SPACE_SET] = UINT64_C(1) << 40;
    assert_ok(st_checkpoint_check(&m, &e, "e"));
    e.row_count--;
    assert_refused(st_checkpoint_check(&m, &e, "e"), STRATA_E_CORRUPT, "weight of page 1, group 0 is not covered from element 0");
    e.row_count++;
    e.rows++;
    e.row_count--;
    assert_refused(st_checkpoint_check(&m, &e, "e"), STRATA_E_CORRUPT, "master of page 0, group 0 is not covered from element 0");
    e = whole;
    e.rows[1].first += ST_TILE_ELEMS;
    assert_refused(st_checkpoint_check(&m, &e, "e"), STRATA_E_CORRUPT, "not covered from element 1310720");
    e.rows[1].first -= ST_TILE_ELEMS;
    e.rows[1].elems += 1;
    assert_refused(st_checkpoint_check(&m, &e, "e"), STRATA_E_CORRUPT, "not covered");
    e.rows[1].elems -= 1;
    e.rows[1].bytes += 64;
    assert_refused(st_checkpoint_check(&m, &e, "e"), STRATA_E_CORRUPT, "lies where it cannot");
    e.rows[1].bytes -= 64;
    e.rows[1].offset += m.space_bytes[ST_SPACE_SET]; /* of a second part, which is not there */
    assert_refused(st_checkpoint_check(&m, &e, "e"), STRATA_E_CORRUPT, "lies where it cannot");
    e.rows[1].offset -= m.space_bytes[ST_SPACE_SET];
    e.rows[1].offset += m.space_bytes[ST_SPACE_SET] - e.rows[1].offset - 64; /* it ends behind its space */
    assert_refused(st_checkpoint_check(&m, &e, "e"), STRATA_E_CORRUPT, "lies where it cannot");
    e.rows[1].offset = second;
    e.rows[2].format = ST_MOMENTS_BF16;
    assert_refused(st_checkpoint_check(&m, &e, "e"), STRATA_E_CORRUPT, "moment1 of page 0, group 0 lies where it cannot");
    e.rows[2].format = ST_MOMENTS_8BIT;
    m.space_bytes[ST_SPACE_BASE] = 4096;
    assert_refused(st_checkpoint_check(&m, &e, "e"), STRATA_E_CORRUPT, "weight of page 1, group 0 lies where it cannot");
    m.space_bytes[ST_SPACE_BASE] = 8192;
    m.group_count--;
    assert_refused(st_checkpoint_check(&m, &e, "e"), STRATA_E_CORRUPT, "planes that the model does not have");
    m.group_count++;
    m.moments = 1;
    assert_refused(st_checkpoint_check(&m, &e, "e"), STRATA_E_CORRUPT, "not covered");
    e = whole;
    st_extents_fini(&e);
    st_manifest_fini(&m);
}

struct skips {
    uint32_t count;
    char last[512];
};

static void skip_seen(void *ctx, const char *path, const char *sentence)
{
    struct skips *s = ctx;

    s->count++;
    snprintf(s->last, sizeof(s->last), "%s: %s", path, sentence);
}

TEST_SETUP(the_newest_that_opens_is_taken, scratch_begin, scratch_end)
{
    struct skips skips = {0};
    struct st_checkpoint *ck;

    assert_refused(st_checkpoint_newest(&ck, scratch_path("save"), NULL, NULL), STRATA_E_INPUT, "save");
    make(step_1);
    make(step_2);
    assert_ok(st_checkpoint_find(&ck, scratch_path("save"), skip_seen, &skips));
    assert_non_null(strstr(ck->path, step_2));
    st_checkpoint_close(ck);
    flip("save/step-00000002/manifest.json", 40);
    assert_ok(st_checkpoint_find(&ck, scratch_path("save"), skip_seen, &skips));
    assert_non_null(strstr(ck->path, step_1));
    st_checkpoint_close(ck);
    assert_int_equal(skips.count, 1);
    assert_int_equal(symlink(step_2, scratch_path("link")), 0);
    for (size_t i = 0; i < sizeof(names_of_2) / sizeof(names_of_2[0]); i++) {
        assert_ok(st_checkpoint_older(&ck, scratch_path(names_of_2[i])));
        assert_non_null(strstr(ck->path, step_1));
        st_checkpoint_close(ck);
    }
    assert_refused(st_checkpoint_older(&ck, scratch_path(step_1)), STRATA_E_INPUT,
                   "step-00000001: none of the checkpoints beside it is older");
    assert_refused(st_checkpoint_older(&ck, scratch_path("save")), STRATA_E_INPUT, "says no step");
    assert_non_null(strstr(skips.last, "step-00000002/manifest.json: its checksum is wrong"));
    assert_refused(st_checkpoint_find(&ck, scratch_path(step_2), skip_seen, &skips), STRATA_E_CORRUPT, "its checksum is wrong");
    flip("save/step-00000001/extents.bin", 400);
    assert_refused(st_checkpoint_find(&ck, scratch_path("save"), NULL, NULL), STRATA_E_CORRUPT, "none of its checkpoints opens");
}

/* A removal takes the whole directory away: one that is there without its manifest is damaged, and said so. */
TEST_SETUP(one_without_its_manifest_is_told_of, scratch_begin, scratch_end)
{
    struct skips skips = {0};
    struct st_checkpoint *ck;

    make(step_1);
    make(step_2);
    assert_int_equal(unlink(scratch_path("save/step-00000002/manifest.json")), 0);
    assert_ok(st_checkpoint_find(&ck, scratch_path("save"), skip_seen, &skips));
    assert_non_null(strstr(ck->path, step_1));
    st_checkpoint_close(ck);
    assert_int_equal(skips.count, 1);
    assert_non_null(strstr(skips.last, "step-00000002/manifest.json: No such file"));
    assert_int_equal(unlink(scratch_path("save/step-00000001/manifest.json")), 0);
    assert_refused(st_checkpoint_newest(&ck, scratch_path("save"), skip_seen, &skips), STRATA_E_CORRUPT, "none of its");
    assert_int_equal(skips.count, 3);
}

static void skip_seen_while_the_other_goes(void *ctx, const char *path, const char *sentence)
{
    skip_seen(ctx, path, sentence);
    (void)rename(scratch_path(step_1), scratch_path("gone"));
}

/* Where one goes meanwhile the directory is looked at once more; a damaged one is told of once. */
TEST_SETUP(a_second_look_tells_nothing_twice, scratch_begin, scratch_end)
{
    struct skips skips = {0};
    struct st_checkpoint *ck;

    make(step_1);
    make(step_2);
    flip("save/step-00000002/manifest.json", 40);
    assert_refused(st_checkpoint_newest(&ck, scratch_path("save"), skip_seen_while_the_other_goes, &skips), STRATA_E_CORRUPT,
                   "none of its checkpoints opens");
    assert_int_equal(skips.count, 1);
    assert_non_null(strstr(skips.last, "step-00000002"));
}

TEST_SETUP(rows_are_found, scratch_begin, scratch_end)
{
    struct st_checkpoint *ck;
    const struct st_extent_row *rows;
    uint64_t count = 0;

    make(step_1);
    ck = opened(step_1);
    rows = ck->extents.rows;
    assert_ptr_equal(st_checkpoint_rows(ck, 0, 0, ST_PLANE_MASTER, 0, ELEMS, &count), &rows[0]);
    assert_int_equal(count, 2);
    assert_ptr_equal(st_checkpoint_rows(ck, 0, 0, ST_PLANE_MASTER, 0, CHUNK, &count), &rows[0]);
    assert_int_equal(count, 1);
    assert_ptr_equal(st_checkpoint_rows(ck, 0, 0, ST_PLANE_MASTER, CHUNK - 1, 2, &count), &rows[0]);
    assert_int_equal(count, 2);
    assert_ptr_equal(st_checkpoint_rows(ck, 0, 0, ST_PLANE_WEIGHT, CHUNK, 1, &count), &rows[7]);
    assert_int_equal(count, 1);
    assert_null(st_checkpoint_rows(ck, 0, 0, ST_PLANE_WEIGHT, CHUNK, ELEMS, &count));
    assert_null(st_checkpoint_rows(ck, 0, 1, ST_PLANE_MASTER, 0, 1, &count)); /* fp32 is its own */
    assert_null(st_checkpoint_rows(ck, 1, 0, ST_PLANE_MOMENT1, 0, 1, &count));
    assert_ptr_equal(st_checkpoint_rows(ck, 1, 0, ST_PLANE_WEIGHT, 0, FIXTURE_FROZEN, &count), &rows[11]);
    assert_null(st_checkpoint_rows(ck, 2, 0, ST_PLANE_WEIGHT, 0, 1, &count));
    st_checkpoint_close(ck);
}

/* --- reading --- */

struct seen {
    const struct st_checkpoint *ck;
    uint64_t elems, damages, stop_at;
    struct st_damage last;
    char path[ST_PATH_MAX];
};

static strata_status seen_data(void *ctx, const struct st_extent_row *row, uint64_t first, uint64_t elems, const void *data)
{
    struct seen *s = ctx;
    const struct st_manifest *m = &s->ck->manifest;
    const strata_dtype format = st_manifest_group(m, row->page, row->group)->format;
    const uint64_t from = st_plane_bytes((enum st_plane)row->plane, format, m->moment_format, first - row->first);
    const uint64_t end = st_plane_bytes((enum st_plane)row->plane, format, m->moment_format, first - row->first + elems);

    for (uint64_t i = from; i < end; i++)
        if (((const unsigned char *)data)[i - from] != fixture_byte((enum st_space)row->space, row->offset + i))
            fail_msg("page %u, plane %u, byte %llu", row->page, row->plane, (unsigned long long)i);
    s->elems += elems;
    return s->elems >= s->stop_at && s->stop_at > 0 ? STRATA_E_CANCELLED : STRATA_OK;
}

static strata_status seen_damage(void *ctx, const struct st_damage *damage)
{
    struct seen *s = ctx;

    s->damages++;
    s->last = *damage;
    snprintf(s->path, sizeof(s->path), "%s", damage->path);
    return STRATA_OK;
}

static strata_status read_all(struct st_reader *r, struct seen *s, bool tell)
{
    const struct st_reader_sink sink = {.data = seen_data, .damaged = tell ? seen_damage : NULL, .ctx = s};
    struct st_reader_span spans[16];
    uint64_t count = 0;

    for (; count < s->ck->extents.row_count; count++)
        spans[count] = (struct st_reader_span){.row = &s->ck->extents.rows[count],
                                               .first = s->ck->extents.rows[count].first,
                                               .elems = s->ck->extents.rows[count].elems};
    return st_reader_read(r, spans, count, &sink);
}

TEST_SETUP(every_byte_is_read, scratch_begin, scratch_end)
{
    static const char *const methods[] = {"auto", "threads"};

    make(step_1);
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
        struct seen s = {.ck = opened(step_1)};
        struct st_reader *r;

        assert_ok(st_reader_open(&r, s.ck, methods[i]));
        assert_ok(read_all(r, &s, false));
        assert_int_equal(s.elems, 4 * ELEMS + 3 * FIXTURE_BIASES + FIXTURE_FROZEN);
        s.elems = 0;
        s.stop_at = ELEMS + 1; /* what the sink says ends it, with transfers in flight */
        assert_int_equal(read_all(r, &s, false), STRATA_E_CANCELLED);
        assert_true(s.elems < 2 * ELEMS);
        st_reader_close(r);
        st_checkpoint_close((struct st_checkpoint *)(uintptr_t)s.ck);
    }
}

TEST_SETUP(parts_of_a_plane_are_read, scratch_begin, scratch_end)
{
    struct seen s;
    struct st_reader *r;

    make(step_1);
    s = (struct seen){.ck = opened(step_1)};
    assert_ok(st_reader_open(&r, s.ck, NULL));
    for (uint64_t first = 0; first < CHUNK; first += 99991)
        for (uint64_t elems = 1; first + elems <= CHUNK; elems = elems * 7 + 1) {
            const struct st_reader_span span = {.row = &s.ck->extents.rows[6], .first = first, .elems = elems};
            const struct st_reader_sink sink = {.data = seen_data, .ctx = &s};

            s.elems = 0;
            assert_int_equal(span.row->plane, ST_PLANE_WEIGHT);
            assert_ok(st_reader_read(r, &span, 1, &sink));
            assert_int_equal(s.elems, elems);
        }
    st_reader_close(r);
    st_checkpoint_close((struct st_checkpoint *)(uintptr_t)s.ck);
}

/* One flip per tile and plane: each is found, alone, and named by its place. */
TEST_SETUP(every_damaged_tile_is_found, scratch_begin, scratch_end)
{
    struct seen s;
    struct st_reader *r;

    make(step_1);
    s = (struct seen){.ck = opened(step_1)};
    assert_ok(st_reader_open(&r, s.ck, NULL));
    for (uint64_t i = 0; i < s.ck->extents.row_count; i++) {
        const struct st_extent_row *row = &s.ck->extents.rows[i];
        const struct st_manifest *m = &s.ck->manifest;
        const strata_dtype format = st_manifest_group(m, row->page, row->group)->format;

        for (uint64_t tile = 0; tile < row->sum_count; tile += 5) {
            const struct st_reader_sink sink = {.data = seen_data, .damaged = seen_damage, .ctx = &s};
            const struct st_reader_span span = {.row = row, .first = row->first, .elems = row->elems};
            const uint64_t at =
                row->offset + st_plane_bytes((enum st_plane)row->plane, format, m->moment_format, tile * ST_TILE_ELEMS);
            const struct st_stripe_place place = st_stripe_at(&m->stripe, at);
            char name[ST_PATH_MAX];

            snprintf(name, sizeof(name), "%s/%s", step_1, st_manifest_file(m, (enum st_space)row->space, place.dir)->name);
            flip(name, place.offset + 1);
            s.damages = 0;
            assert_ok(st_reader_read(r, &span, 1, &sink));
            assert_int_equal(s.damages, 1);
            assert_ptr_equal(s.last.row, row);
            assert_int_equal(s.last.first, row->first + tile * ST_TILE_ELEMS);
            assert_int_equal(s.last.offset, place.offset);
            assert_non_null(strstr(s.path, name));
            flip(name, place.offset + 1);
        }
    }
    s.damages = 0;
    assert_ok(read_all(r, &s, true));
    assert_int_equal(s.damages, 0);
    flip("save/step-00000001/set.1", 5);
    assert_refused(read_all(r, &s, false), STRATA_E_CORRUPT, "its checksum is wrong");
    st_reader_close(r);
    st_checkpoint_close((struct st_checkpoint *)(uintptr_t)s.ck);
}

static strata_status open_and_read(void)
{
    struct seen s = {0};
    struct st_checkpoint *ck;
    struct st_reader *r;
    strata_status st = st_checkpoint_open(&ck, scratch_path(step_1));

    if (st != STRATA_OK)
        return st;
    s.ck = ck;
    st = st_reader_open(&r, ck, "threads");
    if (st == STRATA_OK) {
        st = read_all(r, &s, false);
        st_reader_close(r);
    }
    st_checkpoint_close(ck);
    return st;
}

TEST_SETUP(every_failure_has_a_sentence, scratch_begin, scratch_end)
{
    struct fault_walk walk = {.result = -EIO};

    make(step_1);
    while (fault_walk_next(&walk)) {
        fault_walk_end(&walk, open_and_read());
        walk.after += walk.after / 4; /* the reads are alike */
    }
    assert_true(walk.failed >= 20);
}

/* test_damage.c - whatever changes in a checkpoint of a run is found before it is used, and an older one is offered.
 *
 *     test_cli_damage           a sample
 *     test_cli_damage --all     every tile and every byte of what describes them */
#include "strata/verify.h"
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/sample.h"
#include "tests/common/test.h"
#include "tests/common/whole_file.h"

#include "offload/checkpoint/verify.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRAIN  "train --model nano --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --digest --quiet "
#define FREEZE "--set 'strata.freeze=[\"*mlp*\"]' "
#define NEWER  "{w}/a/step-00000004"
#define OLDER  "{w}/a/step-00000002"

static const char *const files[] = {"manifest.json", "extents.bin", "set.0", "base.0"};
#define FILE_COUNT (sizeof(files) / sizeof(files[0]))

static char newer[ST_PATH_MAX];

static char *path_in(const struct workplace *w, const char *dir, const char *name)
{
    char text[128];

    snprintf(text, sizeof(text), "%s/%s", dir, name);
    return workplace_expand(w, text);
}

static int setup(void **state)
{
    struct program p;
    char *path;

    if (workplace_setup(state) != 0)
        return -1;
    workplace_run_ok(*state, &p, TRAIN FREEZE "--max-steps 4 --save {w}/a --save-every 2");
    program_free(&p);
    path = workplace_expand(*state, NEWER);
    snprintf(newer, sizeof(newer), "%s", path);
    free(path);
    return 0;
}

static void flip(const char *path, uint64_t at, unsigned char bits)
{
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    unsigned char byte;

    assert_true(fd >= 0 && pread(fd, &byte, 1, (off_t)at) == 1);
    byte ^= bits;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
}

/* Fails where the exit code is another, or a text is missing. */
static void says(const struct workplace *w, const char *command, int code, const char *first, const char *second)
{
    struct program p;

    workplace_run(w, &p, command);
    if (p.code != code || strstr(p.err, first) == NULL || strstr(p.err, second) == NULL)
        fail_msg("strata %s\nexit code %d, wanted %d, \"%s\" and \"%s\":\n%s", command, p.code, code, first, second, p.err);
    program_free(&p);
}

static void resume_offers_the_older(const struct workplace *w, const char *what)
{
    says(w, TRAIN FREEZE "--max-steps 6 --resume " NEWER, 4, what, "/a/step-00000002, which is older, opens: --resume");
}

/* --- planes --- */

struct found {
    uint64_t damages;
    const struct st_extent_row *row;
    uint64_t first;
};

static void keep(void *ctx, const struct st_damage *damage)
{
    struct found *f = ctx;

    f->damages++;
    f->row = damage->row;
    f->first = damage->first;
}

static uint64_t bytes_of(const struct st_checkpoint *ck, const struct st_extent_row *row, uint64_t elems)
{
    const strata_dtype format = st_manifest_group(&ck->manifest, row->page, row->group)->format;

    return st_plane_bytes((enum st_plane)row->plane, format, ck->manifest.moment_format, elems);
}

/* What the library tells of a damaged tile, kept. */
struct told {
    uint32_t damages;
    struct strata_damage last;
    char file[ST_PATH_MAX], tensor[256];
};

static void take(void *ctx, const struct strata_damage *damage)
{
    struct told *t = ctx;

    t->damages++;
    t->last = *damage;
    snprintf(t->file, sizeof(t->file), "%s", damage->file);
    snprintf(t->tensor, sizeof(t->tensor), "%s", damage->tensor);
}

/* The first tensor that has elements from `first` on, of a page. */
static const char *tensor_from(const struct st_checkpoint *ck, uint32_t page, uint64_t first)
{
    const struct st_manifest_tensor *best = NULL;

    for (uint32_t i = 0; i < ck->manifest.tensor_count; i++) {
        const struct st_manifest_tensor *t = &ck->manifest.tensors[i];

        if (t->page == page && t->offset + t->elems > first && (best == NULL || t->offset < best->offset))
            best = t;
    }
    assert_non_null(best);
    return best->name;
}

static void the_library_tells(const struct st_checkpoint *ck, const struct st_extent_row *row, uint64_t at, const char *path)
{
    struct strata_verify_opts opts = STRATA_VERIFY_OPTS_INIT;
    struct told told = {0};
    uint64_t damages;

    opts.damaged = take;
    opts.ctx = &told;
    assert_int_equal(strata_verify(newer, &opts, &damages), STRATA_E_CORRUPT);
    assert_true(damages == 1 && told.damages == 1);
    assert_string_equal(told.file, path);
    assert_string_equal(told.last.plane, st_plane_name((enum st_plane)row->plane));
    assert_string_equal(
        told.tensor,
        tensor_from(ck, row->page, st_manifest_group(&ck->manifest, row->page, row->group)->offset + row->first + at));
    assert_int_equal(told.last.offset, row->offset + bytes_of(ck, row, at));
    assert_true(told.last.page == row->page && told.last.group == row->group && told.last.first == row->first + at);
    assert_int_equal(told.last.elems, row->elems - at < ST_TILE_ELEMS ? row->elems - at : ST_TILE_ELEMS);
}

/* A bit of the tile that begins with this element of the row. */
static void damage_tile(const struct workplace *w, const struct st_checkpoint *ck, const struct st_extent_row *row, uint64_t at,
                        bool resumed)
{
    const uint64_t end = row->elems - at < ST_TILE_ELEMS ? row->elems : at + ST_TILE_ELEMS;
    const uint64_t place = row->offset + bytes_of(ck, row, at) + (at / ST_TILE_ELEMS * 977) % bytes_of(ck, row, end - at);
    char *path = path_in(w, NEWER, row->space == ST_SPACE_BASE ? "base.0" : "set.0");
    struct found f = {0};
    char what[128];
    uint64_t damages;

    flip(path, place, (unsigned char)(1u << at / ST_TILE_ELEMS % 8));
    assert_int_equal(st_verify(ck, NULL, keep, &f, &damages), STRATA_E_CORRUPT);
    assert_int_equal(f.damages, 1);
    assert_true(f.row == row);
    assert_int_equal(f.first, row->first + at);
    the_library_tells(ck, row, at, path);
    if (resumed) {
        snprintf(what, sizeof(what), "checksum mismatch in plane %s of page %u, elements from %llu, at byte %llu:",
                 st_plane_name((enum st_plane)row->plane), row->page, (unsigned long long)(row->first + at),
                 (unsigned long long)(row->offset + bytes_of(ck, row, at)));
        resume_offers_the_older(w, what);
    }
    flip(path, place, (unsigned char)(1u << at / ST_TILE_ELEMS % 8));
    free(path);
}

/* One flip in each tile of each plane of set and base; the first of each plane, and the first that another comes before, by a run
 * that resumes, too. */
TEST(every_tile_is_checked)
{
    bool seen[ST_SPACE_COUNT][ST_PLANE_COUNT][2] = {{{false}}};
    struct st_checkpoint *ck = NULL;
    uint64_t tile = 0, planes = 0;

    assert_int_equal(st_checkpoint_open(&ck, newer), STRATA_OK);
    for (uint64_t i = 0; i < ck->extents.row_count; i++) {
        const struct st_extent_row *row = &ck->extents.rows[i];

        for (uint64_t at = 0; at < row->elems; at += ST_TILE_ELEMS, tile++) {
            const bool first = !seen[row->space][row->plane][at > 0];

            if (first || sample_takes(tile, 16, 0))
                damage_tile(*state, ck, row, at, first);
            planes += first && at == 0;
            seen[row->space][row->plane][at > 0] = true;
        }
    }
    assert_int_equal(planes, 5); /* four of the set, weights in the base */
    assert_true(tile > 100);
    st_checkpoint_close(ck);
}

/* --- what describes them --- */

static void assert_does_not_open(const char *name, uint64_t at)
{
    struct st_checkpoint *ck;

    if (st_checkpoint_open(&ck, newer) != STRATA_E_CORRUPT)
        fail_msg("%s, byte %llu: opens", name, (unsigned long long)at);
}

TEST(every_byte_of_the_small_files_is_checked)
{
    for (size_t i = 0; i < 2; i++) {
        char *path = path_in(*state, NEWER, files[i]), *data;
        size_t bytes;
        uint64_t flips = 0;

        data = read_file(path, &bytes);
        for (uint64_t at = 0; at < bytes; at++)
            if (sample_takes(at, 16, i)) {
                flip(path, at, (unsigned char)(1u << flips++ % 8));
                assert_does_not_open(files[i], at);
                write_file(path, data, bytes);
            }
        for (uint64_t more = 0; sample_is_all() && i == 1 && more < 10000; more++) {
            flip(path, more * 7919 % bytes, (unsigned char)(1 + more % 255));
            assert_does_not_open(files[i], more * 7919 % bytes);
            write_file(path, data, bytes);
        }
        flip(path, bytes / 2, 1);
        resume_offers_the_older(*state, files[i]);
        write_file(path, data, bytes);
        free(data);
        free(path);
    }
}

TEST(a_file_that_is_cut_is_found)
{
    for (size_t i = 0; i < FILE_COUNT; i++) {
        char *path = path_in(*state, NEWER, files[i]), *data;
        size_t bytes;

        data = read_file(path, &bytes);
        assert_int_equal(unlink(path), 0); /* both checkpoints have base.0, and one is to stay whole */
        write_file(path, data, bytes);
        for (unsigned part = 0; part < 4; part++) {
            const uint64_t left = part == 0 ? bytes - 1 : part == 1 ? bytes / 2 : part == 2 ? 1 : 0;

            assert_int_equal(truncate(path, (off_t)left), 0);
            assert_does_not_open(files[i], left);
        }
        resume_offers_the_older(*state, files[i]);
        assert_int_equal(unlink(path), 0);
        if (i > 0) /* without a manifest it is no checkpoint */
            assert_does_not_open(files[i], 0);
        write_file(path, data, bytes);
        free(data);
        free(path);
    }
}

/* Of another step; base.0 is the same file in both. */
TEST(a_file_of_another_one_is_found)
{
    for (size_t i = 0; i < 3; i++) {
        char *path = path_in(*state, NEWER, files[i]), *other = path_in(*state, OLDER, files[i]);
        char *data, *wrong;
        size_t bytes, wrong_bytes;

        data = read_file(path, &bytes);
        wrong = read_file(other, &wrong_bytes);
        write_file(path, wrong, wrong_bytes);
        resume_offers_the_older(*state, i == 2 ? "checksum mismatch in plane" : "step-00000004");
        write_file(path, data, bytes);
        free(wrong);
        free(data);
        free(other);
        free(path);
    }
}

/* --- auto --- */

/* It passes over what does not open, says so, and the run takes its name again. */
TEST(auto_goes_on_from_an_older_one)
{
    char *path = path_in(*state, NEWER, files[0]);
    struct program p;

    flip(path, 100, 1);
    workplace_run_ok(*state, &p, TRAIN FREEZE "--max-steps 4 --save {w}/a --save-every 2 --resume auto");
    assert_non_null(strstr(p.err, "step-00000004/manifest.json: its checksum is wrong"));
    assert_non_null(strstr(p.err, "taking an older checkpoint"));
    program_free(&p);
    workplace_run_ok(*state, &p, "verify " NEWER);
    program_free(&p);
    assert_int_equal(workplace_entries(*state, "a"), 3);
    free(path);
}

/* The older one was made without metrics: of the file nothing is kept, and it begins anew. */
TEST(metrics_of_which_nothing_is_kept_begin_anew)
{
    char *path = path_in(*state, "{w}/a/step-00000006", files[2]), *metrics;
    struct program p;
    size_t bytes;

    workplace_run_ok(*state, &p, TRAIN FREEZE "--max-steps 6 --save {w}/a --resume auto --metrics {w}/m.jsonl");
    program_free(&p);
    flip(path, 70000, 1);
    workplace_run_ok(*state, &p, TRAIN FREEZE "--max-steps 6 --save {w}/a --resume auto --metrics {w}/m.jsonl");
    assert_non_null(strstr(p.err, "step-00000004, which is older"));
    program_free(&p);
    metrics = workplace_read(*state, "m.jsonl", &bytes);
    assert_int_equal(strncmp(metrics, "{\"run\":", 7), 0);
    assert_non_null(strstr(metrics, "\n{\"step\":5,"));
    assert_null(strstr(strstr(metrics, "\n{\"step\":5,") + 10, "\n{\"step\":5,"));
    free(metrics);
    free(path);
    workplace_remove(*state, "m.jsonl");
}

TEST_GROUP(setup, workplace_teardown);

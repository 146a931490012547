/* The thread that makes checkpoints: what it links or copies opens and verifies; what fails leaves what was there. */
#include "core/base/log.h"
#include "offload/checkpoint/commit.h"
#include "tests/common/test.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/file.h"
#include "core/system/tree.h"
#include "offload/checkpoint/commit_internal.h"
#include "offload/checkpoint/store.h"
#include "offload/checkpoint/verify.h"
#include "tests/common/assert_status.h"
#include "tests/common/fault_walk.h"
#include "tests/common/kept_log.h"
#include "tests/common/sample.h"
#include "tests/common/scratch.h"
#include "tests/common/whole_file.h"
#include "tests/offload/commit_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

/* Nothing here loses power; hundreds of real syncs would take a minute. */
int fsync(int fd)
{
    return fcntl(fd, F_GETFD) < 0 ? -1 : 0;
}

static uint64_t links_of(const char *name)
{
    struct stat info;

    assert_int_equal(stat(scratch_path(name), &info), 0);
    return info.st_nlink;
}

/* --- tests --- */

TEST_SETUP(sets_are_linked, fixture_setup, fixture_teardown)
{
    struct st_committer *c = fixture_started((struct st_committer_opts){0});
    struct st_commit_report report = fixture_commit(c, 1);

    assert_ok(report.status);
    assert_true(report.committed && report.linked_bytes > 0 && report.copied_bytes == 0);
    assert_int_equal(report.step, 1);
    fixture_assert_whole("1");
    scratch_holds("save/latest", "step-00000001\n");
    assert_int_equal(links_of("save/step-00000001/set.0"), 2);
    assert_false(st_swap_reusable(fixture_swap, 1));
    assert_true(st_swap_reusable(fixture_swap, 2));
    assert_ok(fixture_commit(c, 2).status);
    assert_ok(fixture_commit(c, 3).status);
    fixture_assert_whole("2 3");
    assert_true(st_swap_reusable(fixture_swap, 1)); /* its checkpoint has gone */
    assert_false(st_swap_reusable(fixture_swap, 2));
    assert_int_equal(links_of("save/step-00000003/base.0"), 3);
    st_committer_stop(c);
    assert_int_equal(scratch_entries(fixture_save(), ST_STORE_LATEST), 2);
}

static strata_status put_config(void *ctx, const char *dir)
{
    char path[ST_PATH_MAX];
    struct st_new_file f;
    strata_status st = st_path_join(path, dir, "config.json");

    if (*(bool *)ctx)
        return st_error(STRATA_E_IO, "the model's files cannot be written");
    if (st != STRATA_OK || (st = st_new_file_create(&f, path, 0)) != STRATA_OK)
        return st;
    if ((st = st_new_file_write_at(&f, "{}", 2, 0)) == STRATA_OK)
        return st_new_file_commit(&f);
    st_new_file_abort(&f);
    return st;
}

TEST_SETUP(the_models_files_are_in_it, fixture_setup, fixture_teardown)
{
    bool fails = true;
    struct st_committer *c = fixture_started((struct st_committer_opts){.model = put_config, .ctx = &fails});
    struct st_commit_report report = fixture_commit(c, 1);

    assert_int_equal(report.status, STRATA_E_IO);
    assert_string_equal(report.sentence.text, "the model's files cannot be written");
    assert_false(report.committed);
    fixture_assert_whole("");
    assert_true(st_swap_reusable(fixture_swap, 1)); /* nothing of the failed one is left */
    fails = false;
    assert_ok(fixture_commit(c, 1).status);
    scratch_holds("save/step-00000001/model/config.json", "{}");
    st_committer_stop(c);
}

static void remove_save(void)
{
    const int fd = open(scratch_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    assert_int_equal(st_tree_remove(fd, "save"), 0);
    close(fd);
}

/* The model's directory may go, or get other files, once the run has begun. */
TEST_SETUP(what_is_kept_of_the_model_is_in_all, fixture_setup, fixture_teardown)
{
    bool fails = true;
    struct st_committer *c = fixture_started((struct st_committer_opts){.model = put_config, .ctx = &fails});

    assert_refused(st_committer_keep_model(c), STRATA_E_IO, "the model's files cannot be written");
    fails = false;
    assert_ok(st_committer_keep_model(c));
    fails = true;
    assert_ok(fixture_commit(c, 1).status);
    scratch_put("save/step-00000001/model/config.json", "edited");
    assert_ok(fixture_commit(c, 2).status);
    scratch_holds("save/step-00000002/model/config.json", "{}");
    remove_save(); /* with what was kept */
    assert_int_equal(fixture_commit(c, 3).status, STRATA_E_IO);
    fails = false;
    assert_ok(fixture_commit(c, 3).status);
    scratch_holds("save/step-00000003/model/config.json", "{}");
    st_committer_stop(c);
    assert_int_equal(scratch_entries(fixture_save(), ST_STORE_LATEST), 1);
}

TEST_SETUP(one_at_a_time, fixture_setup, fixture_teardown)
{
    struct st_committer *c = fixture_started((struct st_committer_opts){0});
    struct st_commit first = fixture_job(1), second = fixture_job(2);
    struct st_commit_report report;

    assert_ok(st_committer_submit(c, &first));
    assert_refused(st_committer_submit(c, &second), STRATA_E_BUSY, "still being made");
    st_committer_wait(c);
    assert_refused(st_committer_submit(c, &second), STRATA_E_BUSY, "still being made"); /* nobody has asked yet */
    assert_true(st_committer_reported(c, &report));
    assert_ok(report.status);
    assert_ok(st_committer_submit(c, &second));
    st_committer_stop(c); /* waits */
    fixture_assert_whole("1 2");
}

TEST_SETUP(another_runs_stay, fixture_setup, fixture_teardown)
{
    struct st_committer *c = fixture_started((struct st_committer_opts){.keep = 1});
    struct st_commit job = fixture_job(2);
    struct st_commit_report report;

    memcpy(job.manifest.run, "fedcba9876543210", 17);
    assert_ok(st_committer_submit(c, &job));
    st_committer_wait(c);
    assert_true(st_committer_reported(c, &report));
    assert_ok(report.status);
    assert_ok(fixture_commit(c, 3).status);
    assert_ok(fixture_commit(c, 4).status);
    fixture_assert_whole("2 4");
    report = fixture_commit(c, 4);
    assert_int_equal(report.status, STRATA_E_INPUT);
    assert_non_null(strstr(report.sentence.text, "step-00000004 exists already, and is kept"));
    st_committer_stop(c);
    c = fixture_started((struct st_committer_opts){.keep = 1, .overwrite = true});
    assert_ok(fixture_commit(c, 4).status);
    fixture_assert_whole("2 4");
    st_committer_stop(c);
}

TEST_SETUP(rows_that_cannot_be_are_not_written, fixture_setup, fixture_teardown)
{
    struct st_committer *c = fixture_started((struct st_committer_opts){0});
    struct st_commit job = fixture_job(1);
    struct st_commit_report report;

    job.extents.rows[0].bytes += 64;
    assert_ok(st_committer_submit(c, &job));
    st_committer_wait(c);
    assert_true(st_committer_reported(c, &report));
    assert_int_equal(report.status, STRATA_E_CORRUPT);
    fixture_assert_whole("");
    st_committer_stop(c);
}

/* The run has its own files: whoever takes a checkpoint away takes nothing that the next one needs. */
TEST_SETUP(a_checkpoint_that_is_taken_away_is_not_missed, fixture_setup, fixture_teardown)
{
    const int fd = open(scratch_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct st_committer *c = fixture_started((struct st_committer_opts){0});

    for (uint64_t step = 1; step <= 3; step++) {
        assert_ok(fixture_commit(c, step).status);
        if (step < 3)
            assert_int_equal(st_tree_remove(fd, step == 1 ? "save/step-00000001" : "save/step-00000002"), 0);
    }
    fixture_assert_whole("3");
    st_committer_stop(c);
    close(fd);
}

/* The new one is there, and the run goes on; but the old one is, too, and fills the disk. */
TEST_SETUP(an_old_one_that_cannot_be_removed_is_told, fixture_setup, fixture_teardown)
{
    struct st_committer *c = fixture_started((struct st_committer_opts){.keep = 1});
    struct st_commit_report report;

    assert_ok(fixture_commit(c, 1).status);
    st_fault_arm(&(struct st_fault_spec){.site = "store.rename", .after = 1, .count = 1, .result = -EIO});
    report = fixture_commit(c, 2);
    assert_int_equal(st_fault_disarm(), 1);
    assert_int_equal(report.status, STRATA_E_IO);
    assert_true(report.committed);
    assert_non_null(strstr(report.sentence.text, "step-00000001: cannot be removed"));
    fixture_assert_whole("1 2");
    scratch_holds("save/latest", "step-00000002\n");
    assert_ok(fixture_commit(c, 3).status);
    fixture_assert_whole("3");
    st_committer_stop(c);
}

/* Under a checkpoint's name, but nobody can say of whose run: it counts for nothing, and stays. */
TEST_SETUP(what_has_no_manifest_stays, fixture_setup, fixture_teardown)
{
    static const char *const texts[] = {NULL, "", "{}\n"}; /* of the manifest; NULL: there is none */
    struct st_committer *c;

    assert_int_equal(mkdir(fixture_save(), 0700), 0);
    for (uint32_t i = 0; i < 3; i++) {
        char name[64];

        snprintf(name, sizeof(name), "save/step-%08u", i + 1);
        assert_int_equal(mkdir(scratch_path(name), 0700), 0);
        snprintf(name, sizeof(name), "save/step-%08u/notes", i + 1);
        write_file(scratch_path(name), "mine", 4);
        snprintf(name, sizeof(name), "save/step-%08u/" ST_MANIFEST_NAME, i + 1);
        if (texts[i] != NULL)
            write_file(scratch_path(name), texts[i], strlen(texts[i]));
    }
    c = fixture_started((struct st_committer_opts){.keep = 1});
    for (uint64_t step = 4; step <= 6; step++)
        assert_ok(fixture_commit(c, step).status);
    st_committer_stop(c);
    for (uint32_t i = 0; i < 3; i++) {
        char name[64];

        snprintf(name, sizeof(name), "save/step-%08u/notes", i + 1);
        scratch_holds(name, "mine");
    }
    assert_int_equal(scratch_entries_with(fixture_save(), "step-"), 4);
}

/* --- where nothing can be linked --- */

TEST_SETUP(what_cannot_be_linked_is_copied, fixture_setup, fixture_teardown)
{
    struct st_committer *c = fixture_started((struct st_committer_opts){.keep = 1});
    struct st_commit_report report;

    kept_log_begin(ST_LOG_NOTICE);
    for (uint64_t step = 1; step <= 2; step++) {
        st_fault_arm(&(struct st_fault_spec){.site = "nvme.link", .result = -EXDEV});
        report = fixture_commit(c, step);
        assert_true(st_fault_disarm() > 0);
        assert_ok(report.status);
        assert_true(report.copied_bytes > 0 && report.linked_bytes == 0);
        assert_true(st_swap_reusable(fixture_swap, (uint32_t)step));
    }
    kept_log_end();
    assert_int_equal(kept_log.count, 1); /* it is said once */
    assert_non_null(strstr(kept_log.last, "are copied; a directory on "));
    fixture_assert_whole("2");
    st_committer_stop(c);
}

/* A file that ends before what is to be copied of it: the disk's failure, and no file is left. */
TEST_SETUP(a_file_that_is_cut_is_not_copied, scratch_begin, scratch_end)
{
    const int fd = open(scratch_path("short"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    char to[ST_PATH_MAX];

    assert_true(fd >= 0 && ftruncate(fd, 8192) == 0);
    snprintf(to, sizeof(to), "%s/copy", scratch_dir);
    assert_ok(st_commit_copy(to, "short", fd, 8192));
    assert_int_equal(unlink(to), 0);
    assert_refused(st_commit_copy(to, "short", fd, 12288), STRATA_E_IO, "short");
    assert_int_equal(access(to, F_OK), -1);
    close(fd);
}

/* Another file system, with room for so many checkpoints, and not for half of one more. */
static bool mount_small(uint64_t checkpoints)
{
    char size[32];

    assert_int_equal(mkdir(fixture_save(), 0700), 0);
    snprintf(size, sizeof(size), "size=%llu", (unsigned long long)(checkpoints * 56 * ST_TILE_ELEMS));
    if (unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
        mount("none", fixture_save(), "tmpfs", 0, size) == 0)
        return true;
    print_message("no small file system can be mounted here: not tested\n");
    return false;
}

TEST_SETUP(a_full_disk_ends_that_checkpoint_alone, fixture_setup, fixture_teardown)
{
    struct st_commit_report report;
    struct st_committer *c;

    if (!mount_small(1))
        skip();
    kept_log_begin(ST_LOG_NOTICE);
    c = fixture_started((struct st_committer_opts){.keep = 2});
    assert_ok(fixture_commit(c, 1).status);
    report = fixture_commit(c, 2);
    assert_int_equal(report.status, STRATA_E_NOSPC);
    assert_non_null(strstr(report.sentence.text, "bytes too few"));
    fixture_assert_whole("1");
    assert_int_equal(scratch_entries_with(fixture_save(), "step-"), 1);
    st_committer_stop(c);
    kept_log_end();
    assert_int_equal(scratch_entries(fixture_save(), ST_STORE_LATEST), 1);
    assert_int_equal(umount(fixture_save()), 0);
}

/* Of several parts each asks for the room of all of them, before it copies a byte. */
TEST_SETUP(all_parts_need_room, fixture_setup, fixture_teardown)
{
    struct st_commit_report report;

    if (!mount_small(1))
        skip();
    kept_log_begin(ST_LOG_NOTICE);
    for (uint32_t parts = 1; parts <= 2; parts++) { /* there is room for one */
        struct st_committer *c = fixture_started((struct st_committer_opts){.parts = parts});
        struct st_commit job = fixture_job(1);

        job.what = ST_COMMIT_PART;
        assert_ok(st_committer_begin(c, 1, job.dir));
        assert_ok(st_committer_submit(c, &job));
        st_committer_wait(c);
        assert_true(st_committer_reported(c, &report));
        assert_int_equal(report.status, parts == 1 ? STRATA_OK : STRATA_E_NOSPC);
        if (parts > 1) {
            assert_non_null(strstr(report.sentence.text, "bytes too few"));
            assert_int_equal(scratch_entries(job.dir, NULL), 0);
        }
        st_committer_end(c, 1, false);
        st_committer_stop(c);
    }
    kept_log_end();
    assert_int_equal(umount(fixture_save()), 0);
}

/* What another part has copied by now is of the room that all of them need. */
TEST_SETUP(what_is_copied_already_needs_no_room, fixture_setup, fixture_teardown)
{
    struct st_committer *c;
    struct st_commit job = fixture_job(1);
    struct st_commit_report report;
    char path[ST_PATH_MAX];
    int fd;

    if (!mount_small(2))
        skip();
    kept_log_begin(ST_LOG_NOTICE);
    c = fixture_started((struct st_committer_opts){.parts = 2});
    job.what = ST_COMMIT_PART;
    assert_ok(st_committer_begin(c, 1, job.dir));
    assert_ok(st_path_join(path, job.dir, "rank-1.set.0.under-way"));
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && fallocate(fd, 0, 0, 55 * (off_t)ST_TILE_ELEMS) == 0);
    close(fd);
    assert_ok(st_committer_submit(c, &job));
    st_committer_wait(c);
    assert_true(st_committer_reported(c, &report));
    assert_ok(report.status);
    assert_true(report.copied_bytes > 28 * (uint64_t)ST_TILE_ELEMS);
    st_committer_end(c, 1, false);
    st_committer_stop(c);
    kept_log_end();
    assert_int_equal(umount(fixture_save()), 0);
}

/* The base is less than a unit, so that the second directory's file of it holds nothing; it is to be there nevertheless. */
TEST_SETUP(an_empty_file_is_copied, fixture_setup, fixture_teardown)
{
    struct st_committer *c = fixture_started((struct st_committer_opts){0});
    struct st_commit_report report;

    kept_log_begin(ST_LOG_NOTICE);
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.link", .after = 1, .count = 1, .result = -EXDEV});
    report = fixture_commit(c, 1);
    assert_int_equal(st_fault_disarm(), 1);
    assert_ok(report.status);
    assert_int_equal(report.copied_bytes, 0);
    fixture_assert_whole("1");
    st_committer_stop(c);
    kept_log_end();
}

/* --- whatever fails --- */

/* One checkpoint of a run that keeps one, where there is one. */
static strata_status save_second(void)
{
    const struct st_committer_opts opts = {.save = fixture_save(), .swap = fixture_swap, .keep = 1};
    struct st_commit job = fixture_job(2);
    struct st_commit_report report;
    struct st_committer *c;
    strata_status st = st_committer_start(&c, &opts);

    if (st == STRATA_OK && (st = st_committer_submit(c, &job)) == STRATA_OK) {
        st_committer_wait(c);
        assert_true(st_committer_reported(c, &report));
        st = report.status != STRATA_OK ? st_error_again(report.status, &report.sentence) : STRATA_OK;
        st_committer_stop(c);
    }
    fixture_drop(&job);
    return st;
}

static void start_again(void)
{
    struct st_committer *c;

    remove_save();
    c = fixture_started((struct st_committer_opts){0});
    assert_ok(fixture_commit(c, 1).status);
    st_committer_stop(c);
}

/* Linked, and copied after a link that did not work. */
TEST_SETUP(every_site_may_fail, fixture_setup, fixture_teardown)
{
    static const int64_t results[] = {-EIO, -EXDEV};

    kept_log_begin(ST_LOG_NOTICE);
    for (uint32_t i = 0; i < 2; i++) {
        struct fault_walk walk = {.result = results[i]};

        start_again();
        while (fault_walk_next(&walk)) {
            const strata_status st = save_second();
            struct st_store_list list;

            fault_walk_end(&walk, st);
            assert_ok(st_store_list(&list, fixture_save()));
            if (list.count == 2)
                fixture_assert_whole("1 2"); /* what was to be removed is there still */
            else
                fixture_assert_whole(list.count == 1 && list.steps[0] == 2 ? "2" : "1");
            assert_true(st != STRATA_OK || (list.count > 0 && list.steps[list.count - 1] == 2));
            if (st == STRATA_OK)
                scratch_holds("save/latest", "step-00000002\n");
            if (list.count != 1 || list.steps[0] != 1)
                start_again();
            free(list.steps);
            walk.after += sample_is_all() ? 0 : 2;
            st_committer_stop(fixture_started((struct st_committer_opts){0})); /* sweeps */
            assert_int_equal(scratch_entries_with(fixture_save(), ".strata-save"), 0);
        }
        assert_true(walk.failed >= 25);
    }
    kept_log_end();
}

/* Committer: the frozen weights that a run has from the checkpoint that it resumed from are in its own checkpoints, whatever
 * becomes of that one. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "tests/common/assert_status.h"
#include "tests/common/kept_log.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"
#include "tests/offload/commit_fixture.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Step 1 by another run, whose files have no name but in its checkpoint. */
static void commit_first(void)
{
    struct st_committer *c = fixture_started((struct st_committer_opts){0});

    st_fault_arm(&(struct st_fault_spec){.site = "nvme.link", .result = -EXDEV});
    assert_ok(fixture_commit(c, 1).status);
    assert_true(st_fault_disarm() > 0);
    st_committer_stop(c);
}

/* A run that goes on with the base of a checkpoint, which is then removed. */
TEST_SETUP(a_base_is_taken_along, fixture_setup, fixture_teardown)
{
    struct st_committer *c;
    struct st_commit_report report;

    commit_first();
    c = fixture_started((struct st_committer_opts){.keep = 1});
    fixture_use_base(c, 1);
    for (uint64_t step = 2; step <= 4; step++) {
        report = fixture_commit(c, step);
        assert_ok(report.status);
        assert_int_equal(report.copied_bytes, 0);
    }
    fixture_assert_whole("4");
    st_committer_stop(c);
}

/* Removed before the run has a checkpoint of its own: the run holds the files, which it copies once and links from then on. */
TEST_SETUP(a_base_outlives_its_checkpoint, fixture_setup, fixture_teardown)
{
    struct st_committer *c;
    struct st_commit job = fixture_job(1);
    struct st_commit_report report;

    commit_first();
    kept_log_begin(ST_LOG_NOTICE);
    c = fixture_started((struct st_committer_opts){.keep = 1});
    fixture_use_base(c, 1);
    fixture_remove(1);
    for (uint64_t step = 2; step <= 4; step++) {
        report = fixture_commit(c, step);
        assert_ok(report.status);
        assert_int_equal(report.copied_bytes, step == 2 ? job.manifest.space_bytes[ST_SPACE_BASE] : 0);
    }
    fixture_assert_whole("4");
    kept_log_end();
    assert_int_equal(kept_log.count, 1);
    assert_non_null(strstr(kept_log.last, "step-00000002: the checkpoint that the run resumed from is gone: "));
    st_committer_stop(c);
    fixture_drop(&job);
}

/* So does a rank that is not the first, which is told that a checkpoint is there; one that failed is nothing to link from. */
TEST_SETUP(a_base_outlives_its_checkpoint_on_every_rank, fixture_setup, fixture_teardown)
{
    struct st_committer *c;

    commit_first();
    kept_log_begin(ST_LOG_NOTICE);
    c = fixture_started((struct st_committer_opts){.parts = 2, .part = 1});
    fixture_use_base(c, 1);
    fixture_remove(1);
    for (uint64_t step = 2; step <= 5; step++) {
        struct st_commit job = fixture_job(step);
        const uint64_t base_bytes = job.manifest.space_bytes[ST_SPACE_BASE];
        struct st_commit_report report;

        snprintf(job.dir, sizeof(job.dir), "%s/step-%08u", fixture_save(), (unsigned)step);
        assert_int_equal(mkdir(job.dir, 0700), 0);
        job.what = ST_COMMIT_PART;
        assert_ok(st_committer_submit(c, &job));
        st_committer_wait(c);
        assert_true(st_committer_reported(c, &report));
        assert_ok(report.status);
        assert_int_equal(report.copied_bytes, step <= 3 ? base_bytes : 0);
        if (step == 2)
            fixture_remove(2);
        st_committer_end(c, step, step > 2);
    }
    st_committer_stop(c);
    kept_log_end();
}

/* Another checkpoint has the name meanwhile: it is not taken for the one that the run came from. */
TEST_SETUP(a_base_is_not_found_by_its_name, fixture_setup, fixture_teardown)
{
    struct st_committer *c;

    commit_first();
    c = fixture_started((struct st_committer_opts){.keep = 1});
    fixture_use_base(c, 1);
    fixture_remove(1);
    assert_int_equal(mkdir(scratch_path("save/step-00000001"), 0700), 0);
    scratch_put("save/step-00000001/base.0", "another's");
    scratch_put("save/step-00000001/base.1", "another's");
    assert_ok(fixture_commit(c, 2).status);
    fixture_remove(1);
    fixture_assert_whole("2");
    st_committer_stop(c);
}

/* The same where neither it nor the run's files can be linked: everything is copied, and nothing stays open. */
TEST_SETUP(a_base_that_cannot_be_linked_is_copied, fixture_setup, fixture_teardown)
{
    struct st_committer *c;
    struct st_commit_report report;

    commit_first();
    c = fixture_started((struct st_committer_opts){.keep = 2});
    fixture_use_base(c, 1);
    st_fault_arm(&(struct st_fault_spec){.site = "commit.link", .result = -EXDEV});
    report = fixture_commit(c, 2);
    assert_true(st_fault_disarm() > 0);
    assert_ok(report.status);
    assert_true(report.copied_bytes > 0);
    fixture_assert_whole("1 2");
    st_committer_stop(c);
}

/* No descriptor is left to hold the second file: the run does not begin, and the first one is let go. */
TEST_SETUP(a_base_that_cannot_be_held_is_refused, fixture_setup, fixture_teardown)
{
    struct st_committer *c = fixture_started((struct st_committer_opts){0});

    assert_ok(fixture_commit(c, 1).status);
    st_fault_arm(&(struct st_fault_spec){.site = "commit.dup", .after = 1, .result = -EMFILE});
    assert_int_equal(fixture_try_base(c, 1), STRATA_E_IO);
    assert_non_null(strstr(strata_last_error(), "Too many open files"));
    assert_int_equal(st_fault_disarm(), 1);
    assert_ok(fixture_commit(c, 2).status);
    fixture_assert_whole("1 2");
    st_committer_stop(c);
}

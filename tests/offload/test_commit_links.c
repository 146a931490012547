/* Committer: what cannot be linked is copied, file by file, and which failures of a link are none. */
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

static uint64_t bytes_of(const char *name)
{
    char path[64];
    struct stat info;

    snprintf(path, sizeof(path), "save/step-00000001/%s", name);
    assert_int_equal(stat(scratch_path(path), &info), 0);
    return (uint64_t)info.st_size;
}

/* Of four files one is copied, and the others are linked. */
TEST_SETUP(what_is_copied_is_counted_by_file, fixture_setup, fixture_teardown)
{
    static const char *const names[] = {"base.0", "base.1", "set.0", "set.1"};

    kept_log_begin(ST_LOG_NOTICE);
    for (uint32_t i = 0; i < 4; i++) {
        struct st_committer *c = fixture_started((struct st_committer_opts){0});
        struct st_commit_report report;
        uint64_t all = 0;

        st_fault_arm(&(struct st_fault_spec){.site = "nvme.link", .after = i, .count = 1, .result = -EXDEV});
        report = fixture_commit(c, 1);
        assert_int_equal(st_fault_disarm(), 1);
        assert_ok(report.status);
        for (uint32_t k = 0; k < 4; k++)
            all += bytes_of(names[k]);
        assert_int_equal(report.copied_bytes, bytes_of(names[i]));
        assert_int_equal(report.linked_bytes, all - bytes_of(names[i]));
        fixture_assert_whole("1");
        st_committer_stop(c);
        assert_int_equal(fixture_teardown(state), 0);
        assert_int_equal(fixture_setup(state), 0);
    }
    kept_log_end();
}

/* What a file system says that has no links, or has no more of them for this file, is no failure; anything else is one. */
TEST_SETUP(which_links_fail, fixture_setup, fixture_teardown)
{
    static const struct {
        int err;
        bool copied, base_copied; /* a base that is held without a name is found under none */
    } rows[] = {{EXDEV, true, true},      {EPERM, true, true}, {EMLINK, true, true},   {ENOSYS, true, true},
                {EOPNOTSUPP, true, true}, {EIO, false, false}, {EACCES, false, false}, {ENOENT, false, true}};
    struct st_committer *c = fixture_started((struct st_committer_opts){0});
    uint64_t step = 1;

    kept_log_begin(ST_LOG_NOTICE);
    assert_ok(fixture_commit(c, step).status);
    st_committer_stop(c);
    for (size_t i = 0; i < 2 * sizeof(rows) / sizeof(rows[0]); i++) {
        const bool of_base = i % 2 == 1; /* from another checkpoint, and not from the run's own files */
        const bool copied = of_base ? rows[i / 2].base_copied : rows[i / 2].copied;
        struct st_commit_report report;

        c = fixture_started((struct st_committer_opts){.keep = 100});
        if (of_base)
            fixture_use_base(c, step);
        st_fault_arm(&(struct st_fault_spec){.site = of_base ? "commit.link" : "nvme.link", .result = -rows[i / 2].err});
        report = fixture_commit(c, step + 1);
        assert_true(st_fault_disarm() > 0);
        if (report.committed != copied || (report.status == STRATA_OK) != copied)
            fail_msg("%s, of %s: status %d", strerror(rows[i / 2].err), of_base ? "the base" : "the run", (int)report.status);
        assert_true((report.copied_bytes > 0) == copied);
        step += report.committed;
        st_committer_stop(c);
    }
    kept_log_end();
}

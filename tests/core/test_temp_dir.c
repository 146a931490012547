/* tests/core/test_temp_dir.c - a directory of temporary files: made where TMPDIR says, gone with its files. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/cleanup.h"
#include "core/system/file.h"
#include "core/system/temp_dir.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static bool is_there(const char *path)
{
    return access(path, F_OK) == 0;
}

static FILE *add_file(const struct st_temp_dir *d, const char *name)
{
    char path[ST_PATH_MAX];
    FILE *file;

    assert_int_equal(st_path_join(path, d->own.path, name), STRATA_OK);
    file = fopen(path, "w");
    assert_non_null(file);
    return file;
}

static int setup(void **state)
{
    const int code = scratch_create(state);

    setenv("TMPDIR", scratch_dir, 1);
    return code;
}

TEST_SETUP(it_goes_with_its_files, setup, scratch_remove)
{
    struct st_temp_dir d;
    struct stat what;
    char path[PATH_MAX];
    FILE *file;

    assert_int_equal(st_temp_dir_create(&d), STRATA_OK);
    assert_int_equal(strncmp(d.own.path, scratch_dir, strlen(scratch_dir)), 0);
    assert_true(stat(d.own.path, &what) == 0 && S_ISDIR(what.st_mode) && (what.st_mode & 0777) == 0700);
    file = add_file(&d, "open");
    fclose(add_file(&d, "closed"));
    memcpy(path, d.own.path, sizeof(path));
    st_temp_dir_remove(&d);
    assert_false(is_there(path));
    fclose(file);
    st_temp_dir_remove(&d);
}

TEST_SETUP(all_go_at_the_end, setup, scratch_remove)
{
    struct st_temp_dir a, b, c;

    assert_int_equal(st_temp_dir_create(&a), STRATA_OK);
    assert_int_equal(st_temp_dir_create(&b), STRATA_OK);
    assert_int_equal(st_temp_dir_create(&c), STRATA_OK);
    fclose(add_file(&a, "x"));
    st_temp_dir_remove(&b);
    st_cleanup_run();
    assert_false(is_there(a.own.path) || is_there(c.own.path));
    assert_int_equal(scratch_entries_with(scratch_dir, "strata-"), 0);
    st_temp_dir_remove(&a); /* a warning */
    st_temp_dir_remove(&c);
}

TEST_SETUP(failures_have_sentences, setup, scratch_remove)
{
    struct st_temp_dir d;

    setenv("TMPDIR", scratch_path("missing"), 1);
    assert_int_equal(st_temp_dir_create(&d), STRATA_E_INPUT);
    assert_non_null(strstr(strata_last_error(), "TMPDIR"));
    st_temp_dir_remove(&d);
    setenv("TMPDIR", scratch_dir, 1);
    st_fault_arm(&(struct st_fault_spec){.site = "owned.mkdir", .result = -28});
    assert_int_equal(st_temp_dir_create(&d), STRATA_E_NOSPC);
    (void)st_fault_disarm();
    assert_int_equal(scratch_entries_with(scratch_dir, "strata-"), 0);
}

/* Leaves one behind, as a process that is killed does. */
static void leave(const char *file)
{
    const pid_t child = fork();
    int code;

    assert_true(child >= 0);
    if (child == 0) {
        struct st_temp_dir d;

        if (st_temp_dir_create(&d) == STRATA_OK)
            fclose(add_file(&d, file));
        raise(SIGKILL);
    }
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_true(WIFSIGNALED(code));
}

/* Directories that only look like ours stay: one without a mark, one that a link names, one with another's mark. */
TEST_SETUP(what_a_killed_process_left_goes, setup, scratch_remove)
{
    static const char *const others[] = {"strata-temporary-0123456789abcdef/kept", "strata-temporary-0123456789abcdee/lock",
                                         "strata-abcdef/kept", "elsewhere/texts.bin"};
    char link[PATH_MAX];
    struct st_temp_dir d, live;

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        scratch_put(others[i], "a user's");
    snprintf(link, sizeof(link), "%s/strata-temporary-0123456789abcdea", scratch_dir);
    assert_int_equal(symlink(scratch_path("elsewhere"), link), 0);
    assert_int_equal(st_temp_dir_create(&live), STRATA_OK);
    leave("texts.bin");
    assert_int_equal(scratch_entries_with(scratch_dir, "strata-temporary-"), 5);
    assert_int_equal(st_temp_dir_create(&d), STRATA_OK); /* in place of the one that was left */
    assert_int_equal(scratch_entries_with(scratch_dir, "strata-temporary-"), 5);
    assert_true(is_there(live.own.path) && is_there(d.own.path) && is_there(link));
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        assert_true(is_there(scratch_path(others[i])));
    st_temp_dir_remove(&d);
    st_temp_dir_remove(&live);
    assert_int_equal(scratch_entries_with(scratch_dir, "strata-temporary-"), 3);
}

/* Another user's directory, which root can open, stays. */
TEST_SETUP(what_another_user_left_stays, setup, scratch_remove)
{
    struct st_temp_dir d;

    leave("texts.bin");
    st_fault_arm(&(struct st_fault_spec){.site = "temp.owner", .result = -EPERM});
    assert_int_equal(st_temp_dir_create(&d), STRATA_OK);
    assert_int_equal(st_fault_disarm(), 1);
    assert_int_equal(scratch_entries_with(scratch_dir, "strata-temporary-"), 2);
    st_temp_dir_remove(&d);
}

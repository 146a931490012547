/* tests/core/test_temp_dir.c - a directory of temporary files: made where TMPDIR says, gone with its files. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/cleanup.h"
#include "core/system/temp_dir.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_there(const char *path)
{
    return access(path, F_OK) == 0;
}

static FILE *add_file(const struct st_temp_dir *d, const char *name)
{
    char path[ST_PATH_MAX];
    FILE *file;

    assert_int_equal(st_path_join(path, d->path, name), STRATA_OK);
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
    char path[ST_PATH_MAX];
    FILE *file;

    assert_int_equal(st_temp_dir_create(&d), STRATA_OK);
    assert_int_equal(strncmp(d.path, scratch_dir, strlen(scratch_dir)), 0);
    assert_true(stat(d.path, &what) == 0 && S_ISDIR(what.st_mode) && (what.st_mode & 0777) == 0700);
    file = add_file(&d, "open");
    fclose(add_file(&d, "closed"));
    snprintf(path, sizeof(path), "%s", d.path);
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
    assert_false(is_there(a.path) || is_there(c.path));
    assert_int_equal(scratch_entries_with(scratch_dir, "strata-"), 0);
    st_temp_dir_remove(&a); /* a warning */
    st_temp_dir_remove(&c);
}

TEST_SETUP(failures_have_sentences, setup, scratch_remove)
{
    struct st_temp_dir d;

    setenv("TMPDIR", scratch_path("missing"), 1);
    assert_int_equal(st_temp_dir_create(&d), STRATA_E_INPUT);
    assert_non_null(strstr(strata_last_error(), "TMPDIR names another place"));
    st_temp_dir_remove(&d);
    setenv("TMPDIR", scratch_dir, 1);
    st_fault_arm(&(struct st_fault_spec){.site = "temp.make", .result = -28});
    assert_int_equal(st_temp_dir_create(&d), STRATA_E_NOSPC);
    (void)st_fault_disarm();
    assert_int_equal(scratch_entries_with(scratch_dir, "strata-"), 0);
}

/* Directories go with all that is in them, and nothing else goes. */
#include "core/system/tree.h"
#include "tests/common/test.h"

#include "core/base/fault.h"
#include "tests/common/scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int open_scratch(void)
{
    const int fd = open(scratch_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    assert_true(fd >= 0);
    return fd;
}

TEST_SETUP(all_of_it_goes, scratch_begin, scratch_end)
{
    const int fd = open_scratch();

    scratch_put("tree/a", "1");
    scratch_put("tree/deep/er/b", "2");
    scratch_put("beside/c", "3");
    assert_int_equal(symlink("../beside", scratch_path("tree/link")), 0);
    assert_int_equal(st_tree_remove(fd, "tree"), 0);
    assert_int_equal(scratch_entries(scratch_dir, NULL), 1);
    scratch_holds("beside/c", "3");                  /* a link is not followed */
    assert_int_equal(st_tree_remove(fd, "tree"), 0); /* gone already */
    close(fd);
}

TEST_SETUP(one_entry_may_stay, scratch_begin, scratch_end)
{
    int fd;

    scratch_put("tree/lock", "1");
    scratch_put("tree/sub/lock", "2");
    fd = open(scratch_path("tree"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(st_tree_clear(fd, "lock"), 0);
    assert_int_equal(scratch_entries(scratch_path("tree"), "lock"), 0);
    scratch_holds("tree/lock", "1");
    close(fd);
}

TEST_SETUP(depth_is_bounded, scratch_begin, scratch_end)
{
    const int fd = open_scratch();
    char name[256] = "t", *at = name + 1;

    for (uint32_t i = 0; i < ST_TREE_DEPTH_MAX + 2; i++)
        at += sprintf(at, "/d");
    strcpy(at, "/f");
    scratch_put(name, "");
    assert_int_equal(st_tree_remove(fd, "t"), -ELOOP);
    close(fd);
}

/* What fails is said, and what can go goes. */
TEST_SETUP(a_failure_is_said, scratch_begin, scratch_end)
{
    const int fd = open_scratch();

    for (uint32_t after = 0;; after++) {
        int rc;

        scratch_put("tree/a", "1");
        scratch_put("tree/b/c", "2");
        st_fault_arm(&(struct st_fault_spec){.after = after, .count = 1, .result = -EACCES});
        rc = st_tree_remove(fd, "tree");
        if (st_fault_disarm() == 0) {
            assert_int_equal(rc, 0);
            assert_true(after >= 8);
            break;
        }
        assert_true(rc < 0);
        assert_int_equal(st_tree_remove(fd, "tree"), 0);
        assert_int_equal(scratch_entries(scratch_dir, NULL), 0);
    }
    close(fd);
}

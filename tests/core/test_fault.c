/* tests/core/test_fault.c - arming, counting and the textual form. */
#include "core/base/fault.h"
#include "tests/common/test.h"

#include "tests/common/child.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

TEST(test_unarmed_sites_pass)
{
    assert_int_equal(st_fault("a.site", 42), 42);
    assert_int_equal(st_fault("a.site", -ENOENT), -ENOENT);
    assert_int_equal(st_fault_disarm(), 0);
}

TEST(test_after_and_count)
{
    st_fault_arm(&(struct st_fault_spec){.site = "a.site", .after = 2, .count = 1, .result = -EIO});
    assert_int_equal(st_fault("other.site", 1), 1);
    assert_int_equal(st_fault("a.site", 1), 1);
    assert_int_equal(st_fault("a.site", 1), 1);
    assert_int_equal(st_fault("a.site", 1), -EIO);
    assert_int_equal(st_fault("a.site", 1), 1);
    assert_int_equal(st_fault_disarm(), 1);
    assert_int_equal(st_fault("a.site", 1), 1);
}

TEST(test_count_zero_fails_all)
{
    st_fault_arm(&(struct st_fault_spec){.site = "a.site", .result = 3});
    for (int i = 0; i < 5; i++)
        assert_int_equal(st_fault("a.site", 4096), 3);
    assert_int_equal(st_fault_disarm(), 5);
}

TEST(test_any_site)
{
    st_fault_arm(&(struct st_fault_spec){.after = 1, .count = 1, .result = -ENOMEM});
    assert_int_equal(st_fault("first", 0), 0);
    assert_int_equal(st_fault("second", 0), -ENOMEM);
    assert_int_equal(st_fault("third", 0), 0);
    assert_int_equal(st_fault_disarm(), 1);
}

TEST(test_text)
{
    assert_int_equal(st_fault_arm_text("nvme.cqe"), 0);
    assert_int_equal(st_fault("nvme.cqe", 0), -EIO);
    assert_int_equal(st_fault_arm_text("nvme.cqe:1:1:-28"), 0);
    assert_int_equal(st_fault("nvme.cqe", 0), 0);
    assert_int_equal(st_fault("nvme.cqe", 0), -ENOSPC);
    assert_int_equal(st_fault("nvme.cqe", 0), 0);
    assert_int_equal(st_fault_arm_text("*:1"), 0);
    assert_int_equal(st_fault("x", 0), 0);
    assert_int_equal(st_fault("y", 0), -EIO);
    st_fault_disarm();
}

TEST(test_a_site_kills)
{
    const pid_t pid = child_fork();

    if (pid == 0) {
        if (st_fault_arm_text("a:1:1:kill") != 0 || st_fault("b", 1) != 1 || st_fault("a", 1) != 1)
            _exit(1);
        _exit(st_fault("a", 2) == 2 ? 2 : 3);
    }
    assert_int_equal(child_wait(pid), 128 + SIGKILL);
}

TEST(test_bad_text)
{
    static const char *const bad[] = {
        "",
        ":1",
        "a:",
        "a:x",
        "a:1:",
        "a:-1",
        "a:1:2:3:4",
        "a:1:2:",
        "a:4294967296",
        "a:1x",
        "a:kill",
        "a:1:1:killed",
        "a-site-name-that-is-far-longer-than-any-site-this-library-could-ever-have",
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(st_fault_arm_text(bad[i]), -1);
    assert_int_equal(st_fault("a", 7), 7);
}

TEST(test_refuses)
{
    errno = 0;
    assert_false(st_fault_refuses("a"));
    st_fault_arm(&(struct st_fault_spec){.site = "a", .count = 1, .result = -ENOSPC});
    assert_true(st_fault_refuses("a"));
    assert_int_equal(errno, ENOSPC);
    assert_false(st_fault_refuses("a"));
    assert_int_equal(st_fault_disarm(), 1);
}

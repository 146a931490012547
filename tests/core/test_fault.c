/* tests/core/test_fault.c - arming, counting and the textual form. */
#include "core/base/fault.h"

#include "tests/common/child.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_unarmed_sites_pass(void **state)
{
    (void)state;
    assert_int_equal(st_fault("a.site", 42), 42);
    assert_int_equal(st_fault("a.site", -ENOENT), -ENOENT);
    assert_int_equal(st_fault_disarm(), 0);
}

static void test_after_and_count(void **state)
{
    (void)state;
    st_fault_arm(&(struct st_fault_spec){.site = "a.site", .after = 2, .count = 1, .result = -EIO});
    assert_int_equal(st_fault("other.site", 1), 1);
    assert_int_equal(st_fault("a.site", 1), 1);
    assert_int_equal(st_fault("a.site", 1), 1);
    assert_int_equal(st_fault("a.site", 1), -EIO);
    assert_int_equal(st_fault("a.site", 1), 1);
    assert_int_equal(st_fault_disarm(), 1);
    assert_int_equal(st_fault("a.site", 1), 1);
}

static void test_count_zero_fails_all(void **state)
{
    (void)state;
    st_fault_arm(&(struct st_fault_spec){.site = "a.site", .result = 3});
    for (int i = 0; i < 5; i++)
        assert_int_equal(st_fault("a.site", 4096), 3);
    assert_int_equal(st_fault_disarm(), 5);
}

static void test_any_site(void **state)
{
    (void)state;
    st_fault_arm(&(struct st_fault_spec){.after = 1, .count = 1, .result = -ENOMEM});
    assert_int_equal(st_fault("first", 0), 0);
    assert_int_equal(st_fault("second", 0), -ENOMEM);
    assert_int_equal(st_fault("third", 0), 0);
    assert_int_equal(st_fault_disarm(), 1);
}

static void test_text(void **state)
{
    (void)state;
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

static void test_a_site_kills(void **state)
{
    const pid_t pid = child_fork();

    (void)state;
    if (pid == 0) {
        if (st_fault_arm_text("a:1:1:kill") != 0 || st_fault("b", 1) != 1 || st_fault("a", 1) != 1)
            _exit(1);
        _exit(st_fault("a", 2) == 2 ? 2 : 3);
    }
    assert_int_equal(child_wait(pid), 128 + SIGKILL);
}

static void test_bad_text(void **state)
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

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(st_fault_arm_text(bad[i]), -1);
    assert_int_equal(st_fault("a", 7), 7);
}

static void test_refuses(void **state)
{
    (void)state;
    errno = 0;
    assert_false(st_fault_refuses("a"));
    st_fault_arm(&(struct st_fault_spec){.site = "a", .count = 1, .result = -ENOSPC});
    assert_true(st_fault_refuses("a"));
    assert_int_equal(errno, ENOSPC);
    assert_false(st_fault_refuses("a"));
    assert_int_equal(st_fault_disarm(), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unarmed_sites_pass),
        cmocka_unit_test(test_after_and_count),
        cmocka_unit_test(test_count_zero_fails_all),
        cmocka_unit_test(test_any_site),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_a_site_kills),
        cmocka_unit_test(test_bad_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

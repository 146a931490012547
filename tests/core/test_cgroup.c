/* tests/core/test_cgroup.c - fake trees of both versions, with limits at every level and with holes. */
#include "core/cgroup.h"

#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static char root[] = "/tmp/strata-cgroup-XXXXXX";

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *ftw)
{
    (void)info;
    (void)type;
    (void)ftw;
    return remove(path);
}

static int make_root(void **state)
{
    (void)state;
    strcpy(root, "/tmp/strata-cgroup-XXXXXX");
    return mkdtemp(root) == NULL;
}

static int remove_root(void **state)
{
    (void)state;
    return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* Writes text to root/name, making the folders in between. */
static void put(const char *name, const char *text)
{
    char path[PATH_MAX];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", root, name);
    for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        mkdir(path, 0755);
        *at = '/';
    }
    file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static struct st_cgroup_limits limits_of(const char *membership)
{
    struct st_cgroup_limits limits;
    char path[PATH_MAX];

    put("membership", membership);
    snprintf(path, sizeof(path), "%s/membership", root);
    st_cgroup_read(&limits, root, path);
    return limits;
}

static void assert_no_limits(struct st_cgroup_limits limits)
{
    assert_true(limits.memory_limit == UINT64_MAX);
    assert_true(limits.memory_available == UINT64_MAX);
    assert_true(limits.cpus == 0);
    assert_string_equal(limits.cpu_list, "");
}

static void test_nothing(void **state)
{
    struct st_cgroup_limits limits;

    (void)state;
    assert_no_limits(limits_of(""));
    assert_no_limits(limits_of("0::/\n"));
    assert_no_limits(limits_of("0::/some/where\n4:memory:/x\n1:cpu,cpuacct:/y\nnonsense\n7:\n"));
    st_cgroup_read(&limits, "/nonexistent", "/nonexistent/file");
    assert_no_limits(limits);
}

static void test_v2(void **state)
{
    struct st_cgroup_limits limits;

    (void)state;
    put("a/b/memory.max", "1000000\n");
    put("a/b/memory.current", "400000\n");
    put("a/b/cpu.max", "150000 100000\n");
    limits = limits_of("0::/a/b\n");
    assert_int_equal(limits.memory_limit, 1000000);
    assert_int_equal(limits.memory_available, 600000);
    assert_true(limits.cpus == 1.5);
}

static void test_v2_no_limit(void **state)
{
    (void)state;
    put("a/memory.max", "max\n");
    put("a/memory.current", "400000\n");
    put("a/cpu.max", "max 100000\n");
    assert_no_limits(limits_of("0::/a\n"));
}

static void test_tightest_level_wins(void **state)
{
    struct st_cgroup_limits limits;

    (void)state;
    put("a/b/c/memory.max", "5000000\n");
    put("a/b/c/memory.current", "100000\n");
    put("a/b/memory.max", "2000000\n");
    put("a/b/memory.current", "1900000\n");
    put("a/memory.max", "max\n");
    put("a/cpu.max", "50000 100000\n");
    put("memory.max", "3000000\n");
    put("memory.current", "100000\n");
    limits = limits_of("0::/a/b/c\n");
    assert_int_equal(limits.memory_limit, 2000000);
    assert_int_equal(limits.memory_available, 100000);
    assert_true(limits.cpus == 0.5);
}

static void test_page_cache_counts_as_free(void **state)
{
    struct st_cgroup_limits limits;

    (void)state;
    put("memory.max", "1000000\n");
    put("memory.current", "900000\n");
    put("memory.stat", "anon 300000\ninactive_anon 7\nactive_file 200000\ninactive_file 400000\n");
    limits = limits_of("0::/\n");
    assert_int_equal(limits.memory_available, 600000);
    put("memory.stat", "inactive_file 4000000\n");
    limits = limits_of("0::/\n");
    assert_int_equal(limits.memory_available, 1000000);
}

static void test_over_the_limit(void **state)
{
    struct st_cgroup_limits limits;

    (void)state;
    put("memory.max", "1000\n");
    put("memory.current", "5000\n");
    limits = limits_of("0::/\n");
    assert_int_equal(limits.memory_limit, 1000);
    assert_int_equal(limits.memory_available, 0);
}

static void test_missing_group_falls_back_to_root(void **state)
{
    struct st_cgroup_limits limits;

    (void)state;
    put("memory.max", "7000000\n");
    put("memory.current", "0\n");
    put("cpu.max", "200000 100000\n");
    limits = limits_of("0::/docker/0123456789abcdef\n");
    assert_int_equal(limits.memory_limit, 7000000);
    assert_int_equal(limits.memory_available, 7000000);
    assert_true(limits.cpus == 2);
}

static void test_v1(void **state)
{
    struct st_cgroup_limits limits;

    (void)state;
    put("memory/job/memory.limit_in_bytes", "8000000\n");
    put("memory/job/memory.usage_in_bytes", "3000000\n");
    put("memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 1000000\ntotal_active_file 0\n");
    put("memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("memory/memory.usage_in_bytes", "30000000\n");
    put("cpu/job/cpu.cfs_quota_us", "250000\n");
    put("cpu/job/cpu.cfs_period_us", "100000\n");
    put("cpu/cpu.cfs_quota_us", "-1\n");
    put("cpu/cpu.cfs_period_us", "100000\n");
    limits = limits_of("9:name=systemd:/\n4:memory:/job\n3:cpu,cpuacct:/job\n0::/\n");
    assert_int_equal(limits.memory_limit, 8000000);
    assert_int_equal(limits.memory_available, 6000000);
    assert_true(limits.cpus == 2.5);
}

static void test_v1_other_controllers_do_not_count(void **state)
{
    (void)state;
    put("memory/memory.limit_in_bytes", "8000000\n");
    put("cpu/cpu.cfs_quota_us", "1000\n");
    put("cpu/cpu.cfs_period_us", "1000\n");
    assert_no_limits(limits_of("4:memoryx:/\n5:cpuset:/\n6:cpuacct:/\n"));
}

static void test_hybrid(void **state)
{
    struct st_cgroup_limits limits;

    (void)state;
    put("unified/s/cpu.max", "100000 100000\n");
    put("memory/s/memory.limit_in_bytes", "4096000\n");
    limits = limits_of("4:memory:/s\n0::/s\n");
    assert_int_equal(limits.memory_limit, 4096000);
    assert_int_equal(limits.memory_available, 4096000);
    assert_true(limits.cpus == 1);
}

static void test_bad_numbers(void **state)
{
    (void)state;
    put("memory.max", "lots\n");
    put("cpu.max", "100000\n");
    assert_no_limits(limits_of("0::/\n"));
    put("memory.max", "-5\n");
    put("cpu.max", "100000 0\n");
    assert_no_limits(limits_of("0::/\n"));
    put("memory.max", "");
    put("cpu.max", "");
    assert_no_limits(limits_of("0::/\n"));
}

static void test_cpuset_of_the_nearest_group(void **state)
{
    (void)state;
    put("cpuset.cpus.effective", "0-127\n");
    put("a/cpuset.cpus.effective", "0-63\n");
    put("a/b/cpuset.cpus.effective", "4-7,12\n");
    assert_string_equal(limits_of("0::/a/b\n").cpu_list, "4-7,12");
    assert_string_equal(limits_of("0::/a/c\n").cpu_list, "0-127"); /* not there: the root of this tree */
    put("a/d/memory.max", "max\n");
    assert_string_equal(limits_of("0::/a/d\n").cpu_list, "0-63"); /* controller not enabled below a */
    put("a/b/cpuset.cpus.effective", "\n");
    assert_string_equal(limits_of("0::/a/b\n").cpu_list, "0-63");
}

static void test_v1_cpuset(void **state)
{
    (void)state;
    put("cpuset/job/cpuset.cpus", "0-7\n");
    assert_string_equal(limits_of("5:cpuset:/job\n").cpu_list, "0-7");
    put("cpuset/job/cpuset.effective_cpus", "2-3\n");
    assert_string_equal(limits_of("5:cpuset:/job\n").cpu_list, "2-3");
    assert_string_equal(limits_of("5:cpuacct:/job\n").cpu_list, "");
}

static void test_a_list_too_long_is_no_list(void **state)
{
    char text[ST_CGROUP_LIST_MAX + 2];

    (void)state;
    memset(text, '1', sizeof(text));
    text[ST_CGROUP_LIST_MAX - 1] = '\n';
    text[ST_CGROUP_LIST_MAX] = '\0';
    put("cpuset.cpus.effective", text);
    assert_int_equal(strlen(limits_of("0::/\n").cpu_list), ST_CGROUP_LIST_MAX - 1);
    text[ST_CGROUP_LIST_MAX - 1] = '1';
    text[ST_CGROUP_LIST_MAX] = '\n';
    text[ST_CGROUP_LIST_MAX + 1] = '\0';
    put("cpuset.cpus.effective", text);
    assert_string_equal(limits_of("0::/\n").cpu_list, "");
}

#define TREE_TEST(f) cmocka_unit_test_setup_teardown(f, make_root, remove_root)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TREE_TEST(test_nothing),
        TREE_TEST(test_v2),
        TREE_TEST(test_v2_no_limit),
        TREE_TEST(test_tightest_level_wins),
        TREE_TEST(test_page_cache_counts_as_free),
        TREE_TEST(test_over_the_limit),
        TREE_TEST(test_missing_group_falls_back_to_root),
        TREE_TEST(test_v1),
        TREE_TEST(test_v1_other_controllers_do_not_count),
        TREE_TEST(test_hybrid),
        TREE_TEST(test_bad_numbers),
        TREE_TEST(test_cpuset_of_the_nearest_group),
        TREE_TEST(test_v1_cpuset),
        TREE_TEST(test_a_list_too_long_is_no_list),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

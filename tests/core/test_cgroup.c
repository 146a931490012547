/* tests/core/test_cgroup.c - fake trees of both versions, with limits at every level and with holes. */
#include "core/system/cgroup.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct st_cgroup_limits limits_of(const char *membership)
{
    struct st_cgroup_limits limits;
    char path[PATH_MAX];

    scratch_put("membership", membership);
    snprintf(path, sizeof(path), "%s/membership", scratch_dir);
    st_cgroup_read(&limits, scratch_dir, path);
    return limits;
}

static void assert_no_limits(struct st_cgroup_limits limits)
{
    assert_true(limits.memory_limit == UINT64_MAX);
    assert_true(limits.memory_available == UINT64_MAX);
    assert_true(limits.cpus == 0);
    assert_string_equal(limits.cpu_list, "");
}

TEST_SETUP(test_nothing, scratch_create, scratch_remove)
{
    struct st_cgroup_limits limits;

    assert_no_limits(limits_of(""));
    assert_no_limits(limits_of("0::/\n"));
    assert_no_limits(limits_of("0::/some/where\n4:memory:/x\n1:cpu,cpuacct:/y\nnonsense\n7:\n"));
    st_cgroup_read(&limits, "/nonexistent", "/nonexistent/file");
    assert_no_limits(limits);
}

TEST_SETUP(test_v2, scratch_create, scratch_remove)
{
    struct st_cgroup_limits limits;

    scratch_put("a/b/memory.max", "1000000\n");
    scratch_put("a/b/memory.current", "400000\n");
    scratch_put("a/b/cpu.max", "150000 100000\n");
    limits = limits_of("0::/a/b\n");
    assert_int_equal(limits.memory_limit, 1000000);
    assert_int_equal(limits.memory_available, 600000);
    assert_true(limits.cpus == 1.5);
}

TEST_SETUP(test_v2_no_limit, scratch_create, scratch_remove)
{
    scratch_put("a/memory.max", "max\n");
    scratch_put("a/memory.current", "400000\n");
    scratch_put("a/cpu.max", "max 100000\n");
    assert_no_limits(limits_of("0::/a\n"));
}

TEST_SETUP(test_tightest_level_wins, scratch_create, scratch_remove)
{
    struct st_cgroup_limits limits;

    scratch_put("a/b/c/memory.max", "5000000\n");
    scratch_put("a/b/c/memory.current", "100000\n");
    scratch_put("a/b/memory.max", "2000000\n");
    scratch_put("a/b/memory.current", "1900000\n");
    scratch_put("a/memory.max", "max\n");
    scratch_put("a/cpu.max", "50000 100000\n");
    scratch_put("memory.max", "3000000\n");
    scratch_put("memory.current", "100000\n");
    limits = limits_of("0::/a/b/c\n");
    assert_int_equal(limits.memory_limit, 2000000);
    assert_int_equal(limits.memory_available, 100000);
    assert_true(limits.cpus == 0.5);
}

/* What a level above leaves free counts whatever its limit: others use it, too. */
TEST_SETUP(test_fullest_level_wins, scratch_create, scratch_remove)
{
    struct st_cgroup_limits limits;

    scratch_put("a/b/memory.max", "1000000\n");
    scratch_put("a/b/memory.current", "100000\n");
    scratch_put("a/memory.max", "9000000\n");
    scratch_put("a/memory.current", "8700000\n");
    limits = limits_of("0::/a/b\n");
    assert_int_equal(limits.memory_limit, 1000000);
    assert_int_equal(limits.memory_available, 300000);
}

TEST_SETUP(test_page_cache_counts_as_free, scratch_create, scratch_remove)
{
    struct st_cgroup_limits limits;

    scratch_put("memory.max", "1000000\n");
    scratch_put("memory.current", "900000\n");
    scratch_put("memory.stat", "anon 300000\ninactive_anon 7\nactive_file 200000\ninactive_file 400000\n");
    limits = limits_of("0::/\n");
    assert_int_equal(limits.memory_available, 600000);
    scratch_put("memory.stat", "inactive_file 4000000\n");
    limits = limits_of("0::/\n");
    assert_int_equal(limits.memory_available, 1000000);
}

/* Rows of each version's memory.stat as the kernel writes them, and rows whose names only begin or end alike: a version 1 group
 * counts its children in total_ rows alone. */
TEST_SETUP(test_reclaimable_of_whole_files, scratch_create, scratch_remove)
{
    static const char v2[] = "anon 10\nfile 20\nkernel 30\ninactive_anon 40\nactive_anon 50\ninactive_file 600\n"
                             "active_file 7000\nunevictable 80\nworkingset_refault_file 90\ntotal_inactive_file 3\n";
    static const char v1[] = "cache 10\nrss 20\ninactive_anon 30\nactive_anon 40\ninactive_file 50\nactive_file 60\n"
                             "hierarchical_memory_limit 70\ntotal_cache 80\ntotal_inactive_anon 90\ntotal_active_anon 100\n"
                             "total_inactive_file 600\ntotal_active_file 7000\ntotal_unevictable 5\n";

    assert_int_equal(st_cgroup_reclaimable(v2, false), 600 + 7000 / 2);
    assert_int_equal(st_cgroup_reclaimable(v1, true), 600 + 7000 / 2);
    assert_int_equal(st_cgroup_reclaimable(v1, false), 50 + 60 / 2);
    assert_int_equal(st_cgroup_reclaimable("active_file 8\n", false), 4);
    assert_int_equal(st_cgroup_reclaimable("inactive_file 8\n", false), 8);
    assert_int_equal(st_cgroup_reclaimable("inactive_file 8\nactive_file 8\n", true), 0);
    assert_int_equal(st_cgroup_reclaimable("", false), 0);
}

TEST_SETUP(test_over_the_limit, scratch_create, scratch_remove)
{
    struct st_cgroup_limits limits;

    scratch_put("memory.max", "1000\n");
    scratch_put("memory.current", "5000\n");
    limits = limits_of("0::/\n");
    assert_int_equal(limits.memory_limit, 1000);
    assert_int_equal(limits.memory_available, 0);
}

TEST_SETUP(test_missing_group_falls_back_to_root, scratch_create, scratch_remove)
{
    struct st_cgroup_limits limits;

    scratch_put("memory.max", "7000000\n");
    scratch_put("memory.current", "0\n");
    scratch_put("cpu.max", "200000 100000\n");
    limits = limits_of("0::/docker/0123456789abcdef\n");
    assert_int_equal(limits.memory_limit, 7000000);
    assert_int_equal(limits.memory_available, 7000000);
    assert_true(limits.cpus == 2);
}

TEST_SETUP(test_v1, scratch_create, scratch_remove)
{
    struct st_cgroup_limits limits;

    scratch_put("memory/job/memory.limit_in_bytes", "8000000\n");
    scratch_put("memory/job/memory.usage_in_bytes", "3000000\n");
    scratch_put("memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 1000000\ntotal_active_file 0\n");
    scratch_put("memory/memory.limit_in_bytes", "9223372036854771712\n");
    scratch_put("memory/memory.usage_in_bytes", "30000000\n");
    scratch_put("cpu/job/cpu.cfs_quota_us", "250000\n");
    scratch_put("cpu/job/cpu.cfs_period_us", "100000\n");
    scratch_put("cpu/cpu.cfs_quota_us", "-1\n");
    scratch_put("cpu/cpu.cfs_period_us", "100000\n");
    limits = limits_of("9:name=systemd:/\n4:memory:/job\n3:cpu,cpuacct:/job\n0::/\n");
    assert_int_equal(limits.memory_limit, 8000000);
    assert_int_equal(limits.memory_available, 6000000);
    assert_true(limits.cpus == 2.5);
}

TEST_SETUP(test_v1_other_controllers_do_not_count, scratch_create, scratch_remove)
{
    scratch_put("memory/memory.limit_in_bytes", "8000000\n");
    scratch_put("cpu/cpu.cfs_quota_us", "1000\n");
    scratch_put("cpu/cpu.cfs_period_us", "1000\n");
    assert_no_limits(limits_of("4:memoryx:/\n5:cpuset:/\n6:cpuacct:/\n"));
}

TEST_SETUP(test_hybrid, scratch_create, scratch_remove)
{
    struct st_cgroup_limits limits;

    scratch_put("unified/s/cpu.max", "100000 100000\n");
    scratch_put("memory/s/memory.limit_in_bytes", "4096000\n");
    limits = limits_of("4:memory:/s\n0::/s\n");
    assert_int_equal(limits.memory_limit, 4096000);
    assert_int_equal(limits.memory_available, 4096000);
    assert_true(limits.cpus == 1);
}

TEST_SETUP(test_bad_numbers, scratch_create, scratch_remove)
{
    scratch_put("memory.max", "lots\n");
    scratch_put("cpu.max", "100000\n");
    assert_no_limits(limits_of("0::/\n"));
    scratch_put("memory.max", "-5\n");
    scratch_put("cpu.max", "100000 0\n");
    assert_no_limits(limits_of("0::/\n"));
    scratch_put("memory.max", "");
    scratch_put("cpu.max", "");
    assert_no_limits(limits_of("0::/\n"));
}

TEST_SETUP(test_cpuset_of_the_nearest_group, scratch_create, scratch_remove)
{
    scratch_put("cpuset.cpus.effective", "0-127\n");
    scratch_put("a/cpuset.cpus.effective", "0-63\n");
    scratch_put("a/b/cpuset.cpus.effective", "4-7,12\n");
    assert_string_equal(limits_of("0::/a/b\n").cpu_list, "4-7,12");
    assert_string_equal(limits_of("0::/a/c\n").cpu_list, "0-127"); /* not there: the scratch_dir of this tree */
    scratch_put("a/d/memory.max", "max\n");
    assert_string_equal(limits_of("0::/a/d\n").cpu_list, "0-63"); /* controller not enabled below a */
    scratch_put("a/b/cpuset.cpus.effective", "\n");
    assert_string_equal(limits_of("0::/a/b\n").cpu_list, "0-63");
}

TEST_SETUP(test_v1_cpuset, scratch_create, scratch_remove)
{
    scratch_put("cpuset/job/cpuset.cpus", "0-7\n");
    assert_string_equal(limits_of("5:cpuset:/job\n").cpu_list, "0-7");
    scratch_put("cpuset/job/cpuset.effective_cpus", "2-3\n");
    assert_string_equal(limits_of("5:cpuset:/job\n").cpu_list, "2-3");
    assert_string_equal(limits_of("5:cpuacct:/job\n").cpu_list, "");
}

TEST_SETUP(test_a_list_too_long_is_no_list, scratch_create, scratch_remove)
{
    char text[ST_CGROUP_LIST_MAX + 2];

    memset(text, '1', sizeof(text));
    text[ST_CGROUP_LIST_MAX - 1] = '\n';
    text[ST_CGROUP_LIST_MAX] = '\0';
    scratch_put("cpuset.cpus.effective", text);
    assert_int_equal(strlen(limits_of("0::/\n").cpu_list), ST_CGROUP_LIST_MAX - 1);
    text[ST_CGROUP_LIST_MAX - 1] = '1';
    text[ST_CGROUP_LIST_MAX] = '\n';
    text[ST_CGROUP_LIST_MAX + 1] = '\0';
    scratch_put("cpuset.cpus.effective", text);
    assert_string_equal(limits_of("0::/\n").cpu_list, "");
}

/* Where the kernel begins to hold the tasks up, and the watchdog ends the run. */
TEST_SETUP(test_high_counts_like_max, scratch_create, scratch_remove)
{
    static const struct {
        const char *max, *high;
        uint64_t limit;
    } rows[] = {{"max\n", "700000\n", 700000},
                {"500000\n", "700000\n", 500000},
                {"900000\n", "700000\n", 700000},
                {"900000\n", "max\n", 900000},
                {"max\n", "max\n", UINT64_MAX}};

    scratch_put("a/memory.current", "100000\n");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_cgroup_limits limits;

        scratch_put("a/memory.max", rows[i].max);
        scratch_put("a/memory.high", rows[i].high);
        limits = limits_of("0::/a\n");
        assert_true(limits.memory_limit == rows[i].limit);
        assert_true(limits.memory_available == (rows[i].limit == UINT64_MAX ? UINT64_MAX : rows[i].limit - 100000));
    }
}

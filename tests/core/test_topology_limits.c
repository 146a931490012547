/* tests/core/test_topology_limits.c - processors and memory under the limits of a fake control group and of ulimit, alone and
 * divided among processes; what threads are bound to. */
#include "core/system/topology.h"
#include "tests/common/test.h"

#include "core/base/fault.h"
#include "core/system/ulimit.h"
#include "tests/common/scratch.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <sys/resource.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true /* their maps are larger than any limit that a machine's memory is above */
#else
#define SANITIZED false
#endif
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* What hwloc was asked for last. */
static struct {
    char units[64];
    int flags;
} bound;

/* hwloc's own is behind this one, which it calls.  Its header belongs to core/system/topology.c alone. */
struct hwloc_topology;
struct hwloc_bitmap_s;
int hwloc_bitmap_list_snprintf(char *text, size_t bytes, const struct hwloc_bitmap_s *set);
int hwloc_set_cpubind(struct hwloc_topology *topology, const struct hwloc_bitmap_s *set, int flags);

#define CPUBIND_THREAD 2

int hwloc_set_cpubind(struct hwloc_topology *topology, const struct hwloc_bitmap_s *set, int flags)
{
    int (*next)(struct hwloc_topology *, const struct hwloc_bitmap_s *, int);

    *(void **)&next = dlsym(RTLD_NEXT, "hwloc_set_cpubind");
    hwloc_bitmap_list_snprintf(bound.units, sizeof(bound.units), set);
    bound.flags = flags;
    return next(topology, set, flags);
}

/* No affinity and no control group of this machine. */
static struct st_topology *ungrouped_machine(const char *description)
{
    const struct st_topology_source source = {
        .synthetic = description, .cgroup_root = "/nonexistent", .membership = "/nonexistent"};
    struct st_topology *topo;

    assert_int_equal(st_topology_load_from(&topo, &source), STRATA_OK);
    return topo;
}

/* Units of workers 0.. in order, as "0 2 4". */
static void assert_units(const struct st_topology *topo, uint32_t count, const char *wanted)
{
    char text[512] = "";
    size_t length = 0;

    for (uint32_t i = 0; i < count; i++)
        length += (size_t)snprintf(text + length, sizeof(text) - length, "%s%u", i > 0 ? " " : "", st_topology_unit(topo, i));
    assert_string_equal(text, wanted);
}

/* A fake control group with these files, and a machine of two nodes with eight cores each, of which a process has this share. */
static struct st_topology *grouped_share(const char *membership, const char *const files[][2], struct st_topology_share share)
{
    struct st_topology_source source = {.synthetic = "numa:2 core:8 pu:1", .cgroup_root = scratch_dir, .share = share};
    struct st_topology *topo;

    scratch_open();
    scratch_put("membership", membership);
    for (; (*files)[0] != NULL; files++)
        scratch_put((*files)[0], (*files)[1]);
    source.membership = scratch_path("membership");
    assert_int_equal(st_topology_load_from(&topo, &source), STRATA_OK);
    return topo;
}

static struct st_topology *grouped(const char *membership, const char *const files[][2])
{
    return grouped_share(membership, files, (struct st_topology_share){0});
}

static void ungrouped(struct st_topology *topo)
{
    st_topology_destroy(topo);
    scratch_close();
}

TEST(test_cpuset_limits_the_cores)
{
    static const char *const v2[][2] = {{"job/cpuset.cpus.effective", "6-9\n"}, {"job/memory.max", "50000000\n"}, {NULL, NULL}};
    static const char *const v1[][2] = {{"cpuset/job/cpuset.effective_cpus", "12-15\n"}, {NULL, NULL}};
    static const char *const foreign[][2] = {{"job/cpuset.cpus.effective", "100-103\n"}, {NULL, NULL}};
    struct st_topology *topo = grouped("0::/job\n", v2);

    assert_int_equal(st_topology_core_count(topo), 4);
    assert_units(topo, 4, "6 7 8 9");
    assert_int_equal(st_topology_numa_count(topo), 2);
    assert_true(st_topology_memory_limit(topo) == 50000000);
    assert_false(st_topology_has_quota(topo));
    ungrouped(topo);
    topo = grouped("3:cpuset:/job\n", v1);
    assert_units(topo, 4, "12 13 14 15");
    assert_int_equal(st_topology_numa_count(topo), 1);
    assert_int_equal(st_topology_numa_node(topo, 0).os_index, 1);
    ungrouped(topo);
    topo = grouped("0::/job\n", foreign);
    assert_int_equal(st_topology_core_count(topo), 16);
    ungrouped(topo);
}

TEST(test_a_quota_limits_the_workers)
{
    static const char *const v2[][2] = {
        {"job/cpu.max", "250000 100000\n"}, {"job/cpuset.cpus.effective", "4-15\n"}, {NULL, NULL}};
    static const char *const v1[][2] = {{"cpu/job/cpu.cfs_quota_us", "150000\n"},
                                        {"cpu/job/cpu.cfs_period_us", "100000\n"},
                                        {"memory/job/memory.limit_in_bytes", "7000000\n"},
                                        {NULL, NULL}};
    struct st_topology *topo = grouped("0::/job\n", v2);

    assert_int_equal(st_topology_core_count(topo), 3);
    assert_true(st_topology_has_quota(topo));
    assert_units(topo, 3, "4 5 6"); /* one node */
    ungrouped(topo);
    topo = grouped("2:cpu,cpuacct:/job\n3:memory:/job\n", v1);
    assert_int_equal(st_topology_core_count(topo), 2);
    assert_true(st_topology_memory_limit(topo) == 7000000);
    ungrouped(topo);
}

/* A worker has a unit of its own; under a quota, which names none, all of its node that are usable. */
TEST(test_what_workers_are_bound_to)
{
    static const char *const quota[][2] = {
        {"job/cpu.max", "250000 100000\n"}, {"job/cpuset.cpus.effective", "2-11\n"}, {NULL, NULL}};
    struct st_topology *topo = ungrouped_machine("numa:2 core:4 pu:2");

    for (uint32_t i = 0; i < 20; i++) {
        char unit[16];

        snprintf(unit, sizeof(unit), "%u", st_topology_unit(topo, i));
        assert_int_equal(st_topology_bind(topo, i), STRATA_OK);
        assert_string_equal(bound.units, unit);
        assert_int_equal(bound.flags, CPUBIND_THREAD);
    }
    st_topology_destroy(topo);
    topo = grouped("0::/job\n", quota);
    for (uint32_t i = 0; i < 20; i++) {
        assert_int_equal(st_topology_bind(topo, i), STRATA_OK);
        assert_string_equal(bound.units, i % 10 < 6 ? "2-7" : "8-11");
    }
    ungrouped(topo);
}

/* A ulimit below all else is the limit, less stacks, and nothing above it is available. */
TEST(test_a_ulimit_is_a_limit)
{
    struct st_topology *topo;
    struct rlimit was, limit;
    struct st_ulimit memory;

    if (SANITIZED)
        skip();
    assert_int_equal(getrlimit(RLIMIT_AS, &was), 0);
    limit = (struct rlimit){.rlim_cur = UINT64_C(900) << 20, .rlim_max = was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
    topo = ungrouped_machine("numa:1 core:4 pu:1");
    memory = st_ulimit_memory(4 + 4); /* the workers and those beside them */
    assert_int_equal(setrlimit(RLIMIT_AS, &was), 0);
    assert_string_equal(st_topology_ulimit(topo), "ulimit -v");
    assert_int_equal(st_topology_memory_limit(topo), memory.bytes);
    assert_true(memory.bytes < limit.rlim_cur && st_topology_memory_available(topo) <= memory.bytes);
    st_topology_destroy(topo);
}

/* Ranks of one machine divide what their group has: quota, limit and what is available.  Each is a row of its own, so that no two
 * of them can stand in for each other. */
TEST(test_shares_of_a_group)
{
    static const char *const files[][2] = {
        {"job/cpu.max", "700000 100000\n"}, {"job/memory.max", "48000000\n"}, {"job/memory.current", "36000000\n"}, {NULL, NULL}};
    static const struct {
        struct st_topology_share share;
        uint32_t cores;
        bool quota;
        uint64_t limit, available;
    } rows[] = {
        {{0, 0, 0}, 7, true, 48000000, 12000000},  {{0, 1, 1}, 7, true, 48000000, 12000000},
        {{1, 2, 2}, 4, true, 24000000, 6000000}, /* 3.5 processors of 8 cores */
        {{0, 4, 2}, 2, true, 24000000, 6000000}, /* 1.75 of 4 */
        {{3, 4, 4}, 2, true, 12000000, 3000000},   {{2, 4, 1}, 2, true, 48000000, 12000000},
        {{13, 16, 16}, 1, false, 3000000, 750000}, /* a half, and one core */
        {{23, 24, 24}, 1, false, 2000000, 500000}, /* more than there are cores */
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct st_topology *topo = grouped_share("0::/job\n", files, rows[i].share);

        assert_int_equal(st_topology_core_count(topo), rows[i].cores);
        assert_int_equal(st_topology_has_quota(topo), rows[i].quota);
        assert_int_equal(st_topology_memory_limit(topo), rows[i].limit);
        assert_int_equal(st_topology_memory_available(topo), rows[i].available);
        assert_int_equal(st_topology_memory_shares(topo), rows[i].share.memory > 0 ? rows[i].share.memory : 1);
        ungrouped(topo);
    }
}

/* Groups within groups: the tightest of each kind counts, wherever it is. */
TEST(test_the_tightest_group_counts)
{
    static const char *const inner[][2] = {{"a/cpu.max", "600000 100000\n"},
                                           {"a/b/cpu.max", "300000 100000\n"},
                                           {"a/memory.max", "90000000\n"},
                                           {"a/b/memory.max", "40000000\n"},
                                           {"a/memory.current", "30000000\n"},
                                           {"a/b/memory.current", "10000000\n"},
                                           {NULL, NULL}};
    static const char *const outer[][2] = {{"a/cpu.max", "300000 100000\n"},
                                           {"a/b/cpu.max", "600000 100000\n"},
                                           {"a/memory.max", "40000000\n"},
                                           {"a/b/memory.max", "90000000\n"},
                                           {"a/memory.current", "10000000\n"},
                                           {"a/b/memory.current", "10000000\n"},
                                           {NULL, NULL}};
    const char *const(*both[])[2] = {inner, outer};

    for (size_t i = 0; i < COUNT(both); i++) {
        struct st_topology *topo = grouped("0::/a/b\n", both[i]);

        assert_int_equal(st_topology_core_count(topo), 3);
        assert_int_equal(st_topology_memory_limit(topo), 40000000);
        assert_int_equal(st_topology_memory_available(topo), 30000000);
        ungrouped(topo);
    }
}

/* A chroot without /proc, or no descriptor left: the machine has its memory all the same. */
TEST(test_memory_is_known_without_proc)
{
    struct st_topology *here, *there;
    uint64_t all;

    assert_int_equal(st_topology_load_from(&here, &(struct st_topology_source){.cgroup_root = scratch_dir}), STRATA_OK);
    all = st_topology_memory_limit(here);
    st_topology_destroy(here);
    st_fault_arm(&(struct st_fault_spec){.site = "kernel.open", .result = -ENOENT});
    assert_int_equal(st_topology_load_from(&there, &(struct st_topology_source){.cgroup_root = scratch_dir}), STRATA_OK);
    assert_true(st_fault_disarm() > 0);
    assert_true(st_topology_memory_limit(there) >= all - all / 64 && st_topology_memory_limit(there) <= all + all / 64);
    assert_true(st_topology_memory_available(there) > 0 &&
                st_topology_memory_available(there) <= st_topology_memory_limit(there));
    st_topology_destroy(there);
}

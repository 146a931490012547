/* tests/core/test_topology.c - this machine, and others that hwloc makes of a description; test_topology_limits.c has limits. */
#include "core/system/topology.h"
#include "tests/common/test.h"

#include "core/base/fault.h"
#include "core/system/arena.h"
#include "core/system/workers.h"
#include "tests/common/fault_walk.h"
#include "tests/common/scratch.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* What hwloc was asked for last. */
static struct {
    char nodes[64];
    int policy;
} placed;

/* hwloc's own is behind this one, which it calls.  Its header belongs to core/system/topology.c alone. */
struct hwloc_topology;
struct hwloc_bitmap_s;
int hwloc_bitmap_list_snprintf(char *text, size_t bytes, const struct hwloc_bitmap_s *set);
int hwloc_set_area_membind(struct hwloc_topology *topology, const void *base, size_t bytes, const struct hwloc_bitmap_s *set,
                           int policy, int flags);

#define MEMBIND_BIND       2
#define MEMBIND_INTERLEAVE 3
#define MEMBIND_BYNODESET  32

int hwloc_set_area_membind(struct hwloc_topology *topology, const void *base, size_t bytes, const struct hwloc_bitmap_s *set,
                           int policy, int flags)
{
    int (*next)(struct hwloc_topology *, const void *, size_t, const struct hwloc_bitmap_s *, int, int);

    *(void **)&next = dlsym(RTLD_NEXT, "hwloc_set_area_membind");
    hwloc_bitmap_list_snprintf(placed.nodes, sizeof(placed.nodes), set);
    placed.policy = policy;
    assert_int_equal(flags, MEMBIND_BYNODESET);
    return next(topology, base, bytes, set, policy, flags);
}

/* A child that may not ask for its processors, as under a filter of system calls. */
static int load_where_asking_is_forbidden(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sched_getaffinity, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {.len = sizeof(filter) / sizeof(filter[0]), .filter = filter};
    struct st_topology *topo;

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        return 77;
    if (st_topology_load(&topo, "/nonexistent") != STRATA_OK)
        return 1;
    return st_topology_core_count(topo) >= 1 && st_topology_numa_count(topo) >= 1 ? 0 : 2;
}

/* The first: hwloc has asked nothing yet. */
TEST(test_affinity_may_be_a_secret)
{
    const pid_t pid = fork();
    int status;

    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(30); /* hwloc alone would ask for ever */
        _exit(load_where_asking_is_forbidden());
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

TEST(test_plausible)
{
    struct st_topology *topo;
    cpu_set_t set;

    assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
    assert_int_equal(st_topology_load(&topo, "/nonexistent"), STRATA_OK);
    assert_int_equal(st_topology_core_count(topo), CPU_COUNT(&set));
    assert_true(st_topology_numa_count(topo) >= 1);
    assert_true(st_topology_memory_limit(topo) > (UINT64_C(64) << 20));
    assert_true(st_topology_memory_available(topo) <= st_topology_memory_limit(topo));
    assert_true(strlen(st_topology_cpu_name(topo)) > 0);
    st_topology_destroy(topo);
    st_topology_destroy(NULL);
}

/* MemTotal as the kernel writes it, in KiB. */
static uint64_t memory_kib(void)
{
    FILE *file = fopen("/proc/meminfo", "r");
    unsigned long long kib = 0;
    char line[256];

    while (file != NULL && fgets(line, sizeof(line), file) != NULL && sscanf(line, "MemTotal: %llu kB", &kib) != 1)
        ;
    if (file != NULL)
        fclose(file);
    return kib;
}

TEST(test_without_limits_it_is_the_machines_memory)
{
    const uint64_t total = 1024 * memory_kib();
    struct st_topology *topo;

    assert_int_equal(st_topology_load(&topo, "/nonexistent"), STRATA_OK);
    if (total == 0 || st_topology_ulimit(topo) != NULL) {
        st_topology_destroy(topo);
        skip();
    }
    assert_int_equal(st_topology_memory_limit(topo), total);
    st_topology_destroy(topo);
}

TEST(test_limits_apply)
{
    struct st_topology *topo;

    scratch_open();
    scratch_put("memory.max", "50000000\n");
    scratch_put("memory.current", "20000000\n");
    scratch_put("cpu.max", "10000 100000\n");
    assert_int_equal(st_topology_load(&topo, scratch_dir), STRATA_OK);
    if (access("/proc/self/cgroup", R_OK) == 0 && st_topology_memory_limit(topo) == 50000000) {
        assert_int_equal(st_topology_memory_available(topo), 30000000);
        assert_int_equal(st_topology_core_count(topo), 1);
    }
    st_topology_destroy(topo);
    scratch_close();
}

static void *bind_all(void *arg)
{
    const struct st_topology *topo = arg;
    uint32_t count = st_topology_core_count(topo);

    for (uint32_t i = 0; i < 2 * count; i++) {
        cpu_set_t set;

        if (st_topology_bind(topo, i) == STRATA_E_NOSYS)
            return NULL;
        assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
        if (!st_topology_has_quota(topo))
            assert_int_equal(CPU_COUNT(&set), 1);
        assert_true(CPU_ISSET(st_topology_unit(topo, i), &set));
    }
    return NULL;
}

TEST(test_bind)
{
    struct st_topology *topo;
    cpu_set_t before, after;
    pthread_t thread;

    assert_int_equal(st_topology_load(&topo, NULL), STRATA_OK);
    assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
    assert_int_equal(pthread_create(&thread, NULL, bind_all, topo), 0);
    pthread_join(thread, NULL);
    assert_int_equal(sched_getaffinity(0, sizeof(after), &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
    st_fault_arm(&(struct st_fault_spec){.site = "topology.bind", .result = -EPERM});
    assert_int_equal(st_topology_bind(topo, 0), STRATA_E_NOSYS);
    st_fault_disarm();
    assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
    st_topology_destroy(topo);
}

/* The machine is read once for all that are loaded at the same time, and anew after the last one is gone. */
TEST(test_several_at_once)
{
    struct st_topology *first, *second, *third;
    cpu_set_t before;

    assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
    assert_int_equal(st_topology_load(&first, NULL), STRATA_OK);
    st_fault_arm(&(struct st_fault_spec){.site = "topology.load", .result = -EIO});
    assert_int_equal(st_topology_load(&second, NULL), STRATA_OK);
    assert_int_equal(st_topology_core_count(second), st_topology_core_count(first));
    st_topology_destroy(first);
    assert_true(st_topology_bind(second, 0) == STRATA_OK || st_topology_has_quota(second));
    assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
    st_topology_destroy(second);
    assert_int_equal(st_topology_load(&third, NULL), STRATA_E_INTERNAL);
    assert_int_equal(st_fault_disarm(), 1);
    assert_int_equal(st_topology_load(&third, NULL), STRATA_OK);
    st_topology_destroy(third);
}

TEST(test_single_failure_walk)
{
    struct fault_walk walk = {.result = -ENOMEM};

    while (fault_walk_next(&walk)) {
        struct st_topology *topo = NULL;
        const strata_status st = st_topology_load_share(&topo, &(struct st_topology_share){.of_units = 2, .memory = 2});

        fault_walk_end(&walk, st);
        assert_int_equal(topo != NULL, st == STRATA_OK);
        st_topology_destroy(topo);
    }
    assert_true(walk.failed >= 4); /* what is refused of affinity alone is no failure */
}

/* --- machines that are not here --- */

/* No affinity and no control group of this machine. */
static struct st_topology *synthetic(const char *description, const char *affinity)
{
    const struct st_topology_source source = {
        .synthetic = description, .affinity = affinity, .cgroup_root = "/nonexistent", .membership = "/nonexistent"};
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

TEST(test_workers_fill_a_node)
{
    struct st_topology *topo = synthetic("numa:2 core:4 pu:2", NULL);
    char text[64];

    assert_int_equal(st_topology_core_count(topo), 16);
    assert_int_equal(st_topology_numa_count(topo), 2);
    assert_int_equal(st_topology_numa_node(topo, 0).unit_count, 8);
    assert_int_equal(st_topology_numa_node(topo, 1).os_index, 1);
    assert_units(topo, 17, "0 2 4 6 8 10 12 14 1 3 5 7 9 11 13 15 0"); /* first threads of both nodes, then the second ones */
    for (uint32_t i = 0; i < 16; i++)
        assert_int_equal(st_topology_unit_node(topo, i), i / 4 % 2);
    assert_string_equal(st_topology_units_text(topo, 6, UINT32_MAX, text, sizeof(text)), "0,2,4,6,8,10");
    assert_string_equal(st_topology_units_text(topo, 6, 1, text, sizeof(text)), "8,10");
    assert_string_equal(st_topology_units_text(topo, 99, 0, text, sizeof(text)), "0-7");
    st_topology_destroy(topo);
}

/* Numbers that alternate between the nodes, as some systems give them. */
TEST(test_interleaved_numbers)
{
    struct st_topology *topo = synthetic("numa:2 core:2 pu:1(indexes=0,2,1,3)", NULL);

    assert_units(topo, 4, "0 2 1 3");
    assert_int_equal(st_topology_unit_node(topo, 1), 0);
    assert_int_equal(st_topology_unit_node(topo, 2), 1);
    st_topology_destroy(topo);
}

TEST(test_affinity_leaves_nodes_out)
{
    struct st_topology *topo = synthetic("numa:4(memory=64GiB) core:4 pu:1", "9-10,13");

    assert_int_equal(st_topology_core_count(topo), 3);
    assert_int_equal(st_topology_numa_count(topo), 2); /* the other two have no core for us */
    assert_units(topo, 3, "9 10 13");
    assert_int_equal(st_topology_numa_node(topo, 0).os_index, 2);
    assert_int_equal(st_topology_numa_node(topo, 0).unit_count, 2);
    assert_int_equal(st_topology_numa_node(topo, 1).os_index, 3);
    assert_true(st_topology_numa_node(topo, 1).memory_bytes == UINT64_C(64) << 30);
    assert_int_equal(st_topology_numa_node(topo, 2).unit_count, 0);
    st_topology_destroy(topo);
}

TEST(test_second_threads_alone)
{
    struct st_topology *topo = synthetic("numa:1 core:4 pu:2", "1,3,5");

    assert_int_equal(st_topology_core_count(topo), 3);
    assert_units(topo, 3, "1 3 5");
    st_topology_destroy(topo);
}

/* Its number is not that of the machine's first one. */
TEST(test_one_unit_is_that_of_all_workers)
{
    struct st_topology *topo = synthetic("numa:2 core:2 pu:1", "3");

    assert_int_equal(st_topology_core_count(topo), 1);
    assert_units(topo, 3, "3 3 3");
    st_topology_destroy(topo);
}

static struct st_topology *share_of(const char *description, const char *affinity, uint32_t share, uint32_t shares)
{
    const struct st_topology_source source = {.synthetic = description,
                                              .affinity = affinity,
                                              .cgroup_root = "/nonexistent",
                                              .membership = "/nonexistent",
                                              .share = {.units = share, .of_units = shares, .memory = shares}};
    struct st_topology *topo;

    assert_int_equal(st_topology_load_from(&topo, &source), STRATA_OK);
    return topo;
}

/* Ranks of one machine: whole cores with both threads, neighbours together, each core once. */
TEST(test_shares_of_cores)
{
    static const struct {
        const char *machine, *affinity;
        uint32_t shares;
        const char *units[4];
    } rows[] = {
        {"numa:2 core:4 pu:2", NULL, 2, {"0-7", "8-15"}},
        {"numa:2 core:4 pu:2", NULL, 4, {"0-3", "4-7", "8-11", "12-15"}},
        {"numa:2 core:4 pu:2", NULL, 3, {"0-3", "4-9", "10-15"}},
        {"numa:1 core:4 pu:2", "1,3-6", 2, {"1,3", "4-6"}},    /* cores 0 and 1, then 2 and 3, as far as they are usable */
        {"numa:1 core:2 pu:2", NULL, 4, {"0", "1", "2", "3"}}, /* fewer cores than shares: their threads */
        {"numa:1 core:2 pu:1", NULL, 4, {"0", "1", "0", "1"}}, /* fewer of those, too */
        {"numa:1 core:3 pu:1", NULL, 1, {"0-2"}},
    };
    char text[64];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (uint32_t s = 0; s < rows[i].shares; s++) {
            struct st_topology *topo = share_of(rows[i].machine, rows[i].affinity, s, rows[i].shares);

            assert_string_equal(st_topology_units_text(topo, UINT32_MAX, UINT32_MAX, text, sizeof(text)), rows[i].units[s]);
            st_topology_destroy(topo);
        }
}

/* Without the limits of a group: all that the kernel says, to the byte. */
TEST(test_shares_of_memory)
{
    struct st_topology *all = share_of("core:4 pu:1", NULL, 0, 1), *part = share_of("core:4 pu:1", NULL, 1, 4);
    FILE *meminfo = fopen("/proc/meminfo", "r");
    unsigned long long kib;

    assert_non_null(meminfo);
    assert_int_equal(fscanf(meminfo, "MemTotal: %llu kB", &kib), 1);
    assert_int_equal(fclose(meminfo), 0);
    if (st_topology_ulimit(all) == NULL)
        assert_int_equal(st_topology_memory_limit(all), kib << 10);
    assert_int_equal(st_topology_memory_shares(all), 1);
    assert_int_equal(st_topology_memory_shares(part), 4);
    assert_int_equal(st_topology_memory_limit(part), st_topology_memory_limit(all) / 4);
    st_topology_destroy(all);
    st_topology_destroy(part);
}

TEST(test_a_machine_without_nodes_has_one)
{
    struct st_topology *topo = synthetic("pack:1 core:3 pu:1", NULL);

    assert_int_equal(st_topology_numa_count(topo), 1);
    assert_int_equal(st_topology_numa_node(topo, 0).unit_count, 3);
    st_topology_destroy(topo);
}

TEST(test_what_hwloc_does_not_take)
{
    struct st_topology *topo = NULL;

    assert_int_equal(st_topology_load_from(&topo, &(struct st_topology_source){.synthetic = "core:four"}), STRATA_E_INVAL);
    assert_int_equal(st_topology_load_from(&topo, &(struct st_topology_source){.synthetic = "core:4 pu:1", .affinity = "0-x"}),
                     STRATA_E_INVAL);
    assert_null(topo);
}

/* Binding and placing go through hwloc, which does nothing on a machine that is not this one; refusals are reported. */
TEST(test_memory_near_workers)
{
    struct st_topology *two = synthetic("numa:2 core:4 pu:1", NULL), *one = synthetic("numa:1 core:4 pu:1", NULL);
    struct st_workers *workers;
    struct st_arena arena;

    assert_int_equal(st_workers_create(&workers, 3, NULL), STRATA_OK);
    for (uint32_t count = 1; count <= 8; count++) {
        assert_int_equal(st_arena_create_near(&arena, "test", 3 << 20, workers, two), STRATA_OK);
        assert_int_equal(arena.base[(3 << 20) - 1], 0);
        assert_int_equal(st_topology_place_memory(two, arena.base, arena.bytes, count), STRATA_OK);
        assert_string_equal(placed.nodes, count <= 4 ? "0" : "0-1"); /* those that have a worker */
        assert_int_equal(placed.policy, count <= 4 ? MEMBIND_BIND : MEMBIND_INTERLEAVE);
        st_arena_destroy(&arena);
    }
    assert_int_equal(st_arena_create(&arena, "test", 4096, NULL), STRATA_OK);
    st_fault_arm(&(struct st_fault_spec){.site = "topology.place", .result = -ENOSYS});
    assert_int_equal(st_topology_place_memory(one, arena.base, arena.bytes, 2), STRATA_OK); /* nothing to ask for */
    assert_int_equal(st_topology_place_memory(two, arena.base, arena.bytes, 2), STRATA_E_NOSYS);
    st_arena_destroy(&arena);
    assert_int_equal(st_arena_create_near(&arena, "test", 4096, workers, two), STRATA_OK); /* first touch instead */
    st_fault_disarm();
    st_arena_destroy(&arena);
    st_workers_destroy(workers);
    st_topology_destroy(one);
    st_topology_destroy(two);
}

/* What hwloc does for real, on the node that every machine has. */
TEST(test_placed_memory_is_usable)
{
    struct st_topology *topo;
    struct st_arena arena;

    assert_int_equal(st_topology_load(&topo, NULL), STRATA_OK);
    assert_int_equal(st_arena_create_near(&arena, "test", 1 << 20, NULL, topo), STRATA_OK);
    memset(arena.base, 7, arena.bytes);
    st_arena_destroy(&arena);
    st_topology_destroy(topo);
}

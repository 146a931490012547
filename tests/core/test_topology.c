/* tests/core/test_topology.c - this machine, with and without the limits of a fake control group. */
#include "core/topology.h"

#include "core/fault.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_plausible(void **state)
{
    struct st_topology *topo;
    cpu_set_t set;

    (void)state;
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

static void put(const char *folder, const char *name, const char *text)
{
    char path[256];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void test_limits_apply(void **state)
{
    static const char *const names[] = {"memory.max", "memory.current", "cpu.max"};
    char folder[] = "/tmp/strata-topology-XXXXXX", path[256];
    struct st_topology *topo;

    (void)state;
    assert_non_null(mkdtemp(folder));
    put(folder, "memory.max", "50000000\n");
    put(folder, "memory.current", "20000000\n");
    put(folder, "cpu.max", "10000 100000\n");
    assert_int_equal(st_topology_load(&topo, folder), STRATA_OK);
    if (access("/proc/self/cgroup", R_OK) == 0 && st_topology_memory_limit(topo) == 50000000) {
        assert_int_equal(st_topology_memory_available(topo), 30000000);
        assert_int_equal(st_topology_core_count(topo), 1);
    }
    st_topology_destroy(topo);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(folder), 0);
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
        assert_int_equal(CPU_COUNT(&set), 1);
    }
    return NULL;
}

static void test_bind(void **state)
{
    struct st_topology *topo;
    cpu_set_t before, after;
    pthread_t thread;

    (void)state;
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

static void test_single_failure_walk(void **state)
{
    uint32_t n = 0, fired;

    (void)state;
    do {
        struct st_topology *topo = NULL;
        strata_status st;

        st_fault_arm(&(struct st_fault_spec){.after = n++, .count = 1, .result = -ENOMEM});
        st = st_topology_load(&topo, NULL);
        fired = st_fault_disarm();
        assert_int_equal(st == STRATA_OK, fired == 0);
        assert_int_equal(topo != NULL, fired == 0);
        st_topology_destroy(topo);
    } while (fired > 0);
    assert_true(n >= 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plausible),
        cmocka_unit_test(test_limits_apply),
        cmocka_unit_test(test_bind),
        cmocka_unit_test(test_single_failure_walk),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

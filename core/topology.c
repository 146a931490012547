/* core/topology.c - hwloc's one home: usable processors, NUMA nodes, binding; with memory from /proc and cgroups.
 *
 * Immutable after load, so any thread may read it; hwloc allows concurrent binding on a loaded topology. */
#include "core/topology.h"

#include "core/cgroup.h"
#include "core/error.h"
#include "core/fault.h"

#include <errno.h>
#include <hwloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct st_topology {
    hwloc_topology_t hwloc;
    unsigned *units; /* [unit_count] os index of each usable processing unit, one per core before second threads */
    uint32_t unit_count;
    uint32_t core_count; /* unit_count, or less under a quota */
    uint32_t numa_count;
    uint64_t memory_limit, memory_available;
    char cpu_name[128];
};

/* The set this process may run on: its affinity within what hwloc is allowed to see. */
static hwloc_bitmap_t usable_set(hwloc_topology_t hwloc)
{
    hwloc_bitmap_t set = hwloc_bitmap_alloc();

    if (set == NULL)
        return NULL;
    if (hwloc_get_cpubind(hwloc, set, HWLOC_CPUBIND_PROCESS) != 0 || hwloc_bitmap_iszero(set))
        hwloc_bitmap_copy(set, hwloc_topology_get_allowed_cpuset(hwloc));
    else
        hwloc_bitmap_and(set, set, hwloc_topology_get_allowed_cpuset(hwloc));
    return set;
}

/* Adds the unit number `rank` of each core, so that a few workers get a core each before any shares one. */
static uint32_t add_units(struct st_topology *topo, hwloc_const_bitmap_t set, unsigned rank)
{
    uint32_t added = 0;
    hwloc_obj_t unit = NULL;

    while ((unit = hwloc_get_next_obj_by_type(topo->hwloc, HWLOC_OBJ_PU, unit)) != NULL) {
        if (unit->sibling_rank != rank || !hwloc_bitmap_isset(set, unit->os_index))
            continue;
        topo->units[topo->unit_count++] = unit->os_index;
        added++;
    }
    return added;
}

static strata_status list_units(struct st_topology *topo)
{
    int pu_count = hwloc_get_nbobjs_by_type(topo->hwloc, HWLOC_OBJ_PU);
    hwloc_bitmap_t set = usable_set(topo->hwloc);
    uint32_t capacity = pu_count > 0 ? (uint32_t)pu_count : 1;

    topo->units = calloc(capacity, sizeof(topo->units[0]));
    if (set == NULL || topo->units == NULL || st_fault("topology.alloc", 0) < 0) {
        hwloc_bitmap_free(set);
        return st_error(STRATA_E_NOMEM, "topology: no memory for %u processing units", capacity);
    }
    for (unsigned rank = 0; rank < capacity && topo->unit_count < capacity; rank++)
        add_units(topo, set, rank);
    hwloc_bitmap_free(set);
    return STRATA_OK;
}

/* "Name:   123 kB" of /proc/meminfo, in bytes; 0 if it is not there. */
static uint64_t meminfo_bytes(const char *name)
{
    FILE *file = fopen("/proc/meminfo", "re");
    char line[256];
    unsigned long long kib = 0;
    size_t length = strlen(name);

    if (file == NULL)
        return 0;
    while (fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, name, length) == 0 && line[length] == ':' && sscanf(line + length + 1, "%llu", &kib) == 1)
            break;
    fclose(file);
    return kib * 1024;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void apply_limits(struct st_topology *topo, const struct st_cgroup_limits *limits)
{
    topo->memory_limit = smaller(meminfo_bytes("MemTotal"), limits->memory_limit);
    topo->memory_available = smaller(meminfo_bytes("MemAvailable"), limits->memory_available);
    topo->core_count = topo->unit_count > 0 ? topo->unit_count : 1;
    if (limits->cpus > 0 && ceil(limits->cpus) < topo->core_count)
        topo->core_count = (uint32_t)ceil(limits->cpus);
}

static void read_cpu_name(struct st_topology *topo)
{
    hwloc_obj_t package = hwloc_get_obj_by_type(topo->hwloc, HWLOC_OBJ_PACKAGE, 0);
    const char *name = package != NULL ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;

    if (name == NULL)
        name = hwloc_obj_get_info_by_name(hwloc_get_root_obj(topo->hwloc), "CPUModel");
    snprintf(topo->cpu_name, sizeof(topo->cpu_name), "%s", name != NULL ? name : "unknown");
}

strata_status st_topology_load(struct st_topology **out, const char *cgroup_root)
{
    struct st_topology *topo = calloc(1, sizeof(*topo));
    struct st_cgroup_limits limits;
    strata_status st;
    int numa_count;

    if (topo == NULL)
        return st_error(STRATA_E_NOMEM, "topology: no memory");
    if (st_fault("topology.load", 0) < 0 || hwloc_topology_init(&topo->hwloc) != 0) {
        topo->hwloc = NULL;
        st = st_error(STRATA_E_INTERNAL, "topology: hwloc could not start");
        goto fail;
    }
    if (hwloc_topology_load(topo->hwloc) != 0) {
        st = st_error(STRATA_E_INTERNAL, "topology: hwloc could not read the machine: %s", strerror(errno));
        goto fail;
    }
    st = list_units(topo);
    if (st != STRATA_OK)
        goto fail;
    numa_count = hwloc_get_nbobjs_by_type(topo->hwloc, HWLOC_OBJ_NUMANODE);
    topo->numa_count = numa_count > 0 ? (uint32_t)numa_count : 1;
    st_cgroup_read(&limits, cgroup_root != NULL ? cgroup_root : "/sys/fs/cgroup", "/proc/self/cgroup");
    apply_limits(topo, &limits);
    read_cpu_name(topo);
    *out = topo;
    return STRATA_OK;

fail:
    st_topology_destroy(topo);
    return st;
}

void st_topology_destroy(struct st_topology *topo)
{
    if (topo == NULL)
        return;
    if (topo->hwloc != NULL)
        hwloc_topology_destroy(topo->hwloc);
    free(topo->units);
    free(topo);
}

uint32_t st_topology_core_count(const struct st_topology *topo)
{
    return topo->core_count;
}

uint32_t st_topology_numa_count(const struct st_topology *topo)
{
    return topo->numa_count;
}

uint64_t st_topology_memory_limit(const struct st_topology *topo)
{
    return topo->memory_limit;
}

uint64_t st_topology_memory_available(const struct st_topology *topo)
{
    return topo->memory_available;
}

const char *st_topology_cpu_name(const struct st_topology *topo)
{
    return topo->cpu_name;
}

strata_status st_topology_bind(const struct st_topology *topo, uint32_t index)
{
    hwloc_bitmap_t set;
    int res;

    if (topo->unit_count == 0)
        return st_error(STRATA_E_NOSYS, "topology: no processor list to bind to");
    set = hwloc_bitmap_alloc();
    if (set == NULL)
        return st_error(STRATA_E_NOMEM, "topology: no memory");
    hwloc_bitmap_only(set, topo->units[index % topo->unit_count]);
    res = hwloc_set_cpubind(topo->hwloc, set, HWLOC_CPUBIND_THREAD);
    hwloc_bitmap_free(set);
    if (st_fault("topology.bind", res) < 0)
        return st_error(STRATA_E_NOSYS, "topology: the system refuses to bind threads: %s", strerror(errno));
    return STRATA_OK;
}

/* core/system/topology.c - hwloc's one home: usable units, NUMA nodes, binding; with memory from /proc and cgroups.
 *
 * Immutable after load, so any thread may read it; hwloc allows concurrent binding on a loaded topology. */
#include "core/system/topology.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/system/cgroup.h"
#include "core/system/file.h"
#include "core/system/ulimit.h"

#include <errno.h>
#include <hwloc.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>

#define THREADS_BESIDE 4u /* the workers: the signal, disk, host and device threads */

struct unit {
    uint32_t os_index;
    uint32_t node; /* index into nodes */
};

/* The machine as hwloc describes it, which it reads from some hundred files: one for all topologies of it that are loaded at the
 * same time.  What of it this process may use, and what memory is free, each asks for itself. */
static struct {
    pthread_mutex_t lock;
    hwloc_topology_t hwloc; /* NULL while nobody uses it */
    uint32_t users;
} machine = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct st_topology {
    hwloc_topology_t hwloc; /* machine.hwloc if `joined`, else its own, of a description */
    bool joined;
    struct unit *units; /* [unit_count], one per core before second threads; nodes in order within each */
    uint32_t unit_count;
    uint32_t core_count;        /* unit_count, or less under a quota */
    struct st_numa_node *nodes; /* [node_count], the nodes with usable units */
    uint32_t node_count;
    uint32_t memory_shares; /* processes that share the machine's memory */
    uint64_t memory_limit, memory_available;
    const char *ulimit;    /* a literal: the ulimit that memory_limit comes from; or NULL */
    bool affinity_refused; /* hwloc must not ask for the affinity */
    char cpu_name[128];
};

/* --- usable units --- */

static strata_status parse_list(hwloc_bitmap_t set, const char *list, const char *what)
{
    if (hwloc_bitmap_list_sscanf(set, list) != 0)
        return st_error(STRATA_E_INVAL, "topology: %s: \"%s\" is not a list of processors such as 0-3,8", what, list);
    return STRATA_OK;
}

/* True if the system refuses to tell the affinity. hwloc 2 asks the kernel for this process's processors with ever larger sets
 * until it gets an answer, which never comes where a seccomp filter forbids the call.  A set that is too small is EINVAL. */
static bool affinity_refused(void)
{
    cpu_set_t set;
    const int64_t res = st_fault("topology.affinity", sched_getaffinity(0, sizeof(set), &set) == 0 ? 0 : -errno);

    return res < 0 && res != -EINVAL;
}

/* `set` becomes the units this process may run on: affinity, what hwloc is allowed to see, and the group's cpuset.  A cpuset that
 * has nothing in common with the rest belongs to another machine and is ignored. */
static strata_status usable_set(const struct st_topology *topo, hwloc_bitmap_t set, const struct st_topology_source *source,
                                const char *cpu_list)
{
    const hwloc_const_bitmap_t allowed = hwloc_topology_get_allowed_cpuset(topo->hwloc);
    hwloc_bitmap_t group = hwloc_bitmap_alloc();
    strata_status st = STRATA_OK;

    if (group == NULL || st_fault("topology.set", 0) < 0) {
        hwloc_bitmap_free(group);
        return st_nomem(0);
    }
    if (source->affinity != NULL)
        st = parse_list(set, source->affinity, "affinity");
    else if (topo->affinity_refused || hwloc_get_cpubind(topo->hwloc, set, HWLOC_CPUBIND_PROCESS) != 0)
        hwloc_bitmap_copy(set, allowed);
    hwloc_bitmap_and(set, set, allowed);
    if (hwloc_bitmap_iszero(set))
        hwloc_bitmap_copy(set, allowed);
    if (cpu_list[0] != '\0' && hwloc_bitmap_list_sscanf(group, cpu_list) == 0 && hwloc_bitmap_intersects(group, set))
        hwloc_bitmap_and(set, set, group);
    hwloc_bitmap_free(group);
    return st;
}

/* Objects of a type that have usable units. */
static uint32_t count_objects(const struct st_topology *topo, hwloc_const_bitmap_t set, hwloc_obj_type_t type)
{
    hwloc_obj_t object = NULL;
    uint32_t count = 0;

    while ((object = hwloc_get_next_obj_by_type(topo->hwloc, type, object)) != NULL)
        count += hwloc_bitmap_intersects(object->cpuset, set) != 0;
    return count;
}

/* Leaves of `set` the share's part: whole cores, or units where there are fewer cores than shares; where there are fewer units,
 * too, several have the same one. */
static strata_status take_share(const struct st_topology *topo, hwloc_bitmap_t set, const struct st_topology_share *share)
{
    const uint32_t cores = count_objects(topo, set, HWLOC_OBJ_CORE), units = (uint32_t)hwloc_bitmap_weight(set);
    const hwloc_obj_type_t type = cores >= share->of_units ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    const uint64_t count = type == HWLOC_OBJ_CORE ? cores : units;
    const uint64_t first = count >= share->of_units ? count * share->units / share->of_units : share->units % count;
    const uint64_t end = count >= share->of_units ? count * (share->units + 1) / share->of_units : first + 1;
    hwloc_bitmap_t mine = st_fault("topology.share", 0) < 0 ? NULL : hwloc_bitmap_alloc();
    hwloc_obj_t object = NULL;
    uint64_t at = 0;

    if (mine == NULL)
        return st_nomem(0);
    while ((object = hwloc_get_next_obj_by_type(topo->hwloc, type, object)) != NULL) {
        if (!hwloc_bitmap_intersects(object->cpuset, set))
            continue;
        if (at >= first && at < end)
            hwloc_bitmap_or(mine, mine, object->cpuset);
        at++;
    }
    hwloc_bitmap_and(set, set, mine);
    hwloc_bitmap_free(mine);
    return STRATA_OK;
}

/* The node a unit's memory comes from.  If several nodes share its cores (fast memory beside ordinary), the system's first. */
static hwloc_obj_t node_of(hwloc_topology_t hwloc, unsigned unit)
{
    hwloc_obj_t node = NULL, best = NULL;

    while ((node = hwloc_get_next_obj_by_type(hwloc, HWLOC_OBJ_NUMANODE, node)) != NULL)
        if (node->cpuset != NULL && hwloc_bitmap_isset(node->cpuset, unit) && (best == NULL || node->os_index < best->os_index))
            best = node;
    return best;
}

/* Index of the node in topo->nodes; new ones are appended.  Without any node object there is one node, number 0. */
static uint32_t node_index(struct st_topology *topo, unsigned unit)
{
    const hwloc_obj_t node = node_of(topo->hwloc, unit);
    const uint32_t os_index = node != NULL ? node->os_index : 0;

    for (uint32_t i = 0; i < topo->node_count; i++)
        if (topo->nodes[i].os_index == os_index)
            return i;
    topo->nodes[topo->node_count] = (struct st_numa_node){.os_index = os_index};
    if (node != NULL)
        topo->nodes[topo->node_count].memory_bytes = node->attr->numanode.local_memory;
    return topo->node_count++;
}

/* Adds the usable units of one node that are thread number `rank` of their core. */
static void add_units(struct st_topology *topo, hwloc_const_bitmap_t set, uint32_t node, unsigned rank)
{
    hwloc_obj_t unit = NULL;

    while ((unit = hwloc_get_next_obj_by_type(topo->hwloc, HWLOC_OBJ_PU, unit)) != NULL) {
        if (unit->sibling_rank != rank || !hwloc_bitmap_isset(set, unit->os_index) || node_index(topo, unit->os_index) != node)
            continue;
        topo->units[topo->unit_count++] = (struct unit){.os_index = unit->os_index, .node = node};
        topo->nodes[node].unit_count++;
    }
}

/* Nodes in the order of their first usable unit, which is hwloc's order: neighbours are near each other. */
static void list_nodes(struct st_topology *topo, hwloc_const_bitmap_t set)
{
    hwloc_obj_t unit = NULL;

    while ((unit = hwloc_get_next_obj_by_type(topo->hwloc, HWLOC_OBJ_PU, unit)) != NULL)
        if (hwloc_bitmap_isset(set, unit->os_index))
            (void)node_index(topo, unit->os_index);
}

static strata_status list_units(struct st_topology *topo, const struct st_topology_source *source, const char *cpu_list)
{
    const int pu_count = hwloc_get_nbobjs_by_type(topo->hwloc, HWLOC_OBJ_PU);
    const uint32_t capacity = pu_count > 0 ? (uint32_t)pu_count : 1;
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    strata_status st;

    topo->units = calloc(capacity, sizeof(topo->units[0]));
    topo->nodes = calloc(capacity, sizeof(topo->nodes[0])); /* a node listed here has a unit */
    if (set == NULL || topo->units == NULL || topo->nodes == NULL || st_fault("topology.alloc", 0) < 0) {
        hwloc_bitmap_free(set);
        return st_nomem(0);
    }
    st = usable_set(topo, set, source, cpu_list);
    if (st == STRATA_OK && source->share.of_units > 1)
        st = take_share(topo, set, &source->share);
    if (st == STRATA_OK) {
        list_nodes(topo, set);
        for (unsigned rank = 0; rank < capacity && (int)topo->unit_count < hwloc_bitmap_weight(set); rank++)
            for (uint32_t node = 0; node < topo->node_count; node++)
                add_units(topo, set, node, rank);
    }
    hwloc_bitmap_free(set);
    return st;
}

/* --- memory and limits --- */

/* "Name:   123 kB" of /proc/meminfo, in bytes; 0 if there is no such line. */
static uint64_t meminfo_bytes(const char *name)
{
    FILE *file = st_kernel_file_stream("/proc/meminfo");
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

/* All of the machine's memory, or what of it is free: by the call where /proc is not mounted, as in a chroot, or cannot be
 * opened.  The call does not count the page cache as free. */
static uint64_t machine_bytes(bool all)
{
    uint64_t bytes = meminfo_bytes(all ? "MemTotal" : "MemAvailable");
    struct sysinfo info;

    if (bytes == 0 && !st_fault_refuses("topology.memory") && sysinfo(&info) == 0)
        bytes = (uint64_t)(all ? info.totalram : info.freeram + info.bufferram) * info.mem_unit;
    return bytes;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void apply_limits(struct st_topology *topo, const struct st_cgroup_limits *limits, const struct st_topology_share *share)
{
    const double cpus = share->of_units > 1 ? limits->cpus / share->of_units : limits->cpus;

    topo->memory_shares = share->memory > 1 ? share->memory : 1;
    topo->memory_limit = smaller(machine_bytes(true), limits->memory_limit) / topo->memory_shares;
    topo->memory_available = smaller(machine_bytes(false), limits->memory_available) / topo->memory_shares;
    topo->core_count = topo->unit_count > 0 ? topo->unit_count : 1;
    if (cpus > 0 && ceil(cpus) < topo->core_count)
        topo->core_count = (uint32_t)ceil(cpus);
}

/* The limit counts everything this process maps; the plan counts code and libraries as part of its memory. */
static void apply_ulimit(struct st_topology *topo, const struct st_ulimit *limit)
{
    topo->memory_available = smaller(topo->memory_available, limit->bytes);
    if (limit->bytes >= topo->memory_limit)
        return;
    topo->memory_limit = limit->bytes;
    topo->ulimit = limit->name;
}

static void read_cpu_name(struct st_topology *topo)
{
    hwloc_obj_t package = hwloc_get_obj_by_type(topo->hwloc, HWLOC_OBJ_PACKAGE, 0);
    const char *name = package != NULL ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;

    if (name == NULL)
        name = hwloc_obj_get_info_by_name(hwloc_get_root_obj(topo->hwloc), "CPUModel");
    snprintf(topo->cpu_name, sizeof(topo->cpu_name), "%s", name != NULL ? name : "unknown");
}

/* --- load --- */

static strata_status load_hwloc(hwloc_topology_t *out, const char *synthetic, bool without_affinity)
{
    hwloc_topology_t hwloc;

    if (st_fault("topology.load", 0) < 0 || hwloc_topology_init(&hwloc) != 0)
        return st_error(STRATA_E_INTERNAL, "topology: hwloc could not start");
    if (synthetic != NULL && hwloc_topology_set_synthetic(hwloc, synthetic) != 0) {
        hwloc_topology_destroy(hwloc);
        return st_error(STRATA_E_INVAL, "topology: hwloc does not understand \"%s\"", synthetic);
    }
    if (without_affinity) /* this component binds to each processor */
        (void)hwloc_topology_set_components(hwloc, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
    if (hwloc_topology_load(hwloc) != 0) {
        hwloc_topology_destroy(hwloc);
        return st_error(STRATA_E_INTERNAL, "topology: hwloc could not read the machine: %s", strerror(errno));
    }
    *out = hwloc;
    return STRATA_OK;
}

static strata_status join_machine(struct st_topology *topo)
{
    strata_status st = STRATA_OK;

    topo->affinity_refused = affinity_refused();
    if (topo->affinity_refused)
        st_log(ST_LOG_NOTICE, "the system does not say which processors this process may use: using all of the machine's");
    pthread_mutex_lock(&machine.lock);
    if (machine.users == 0)
        st = load_hwloc(&machine.hwloc, NULL, topo->affinity_refused);
    if (st == STRATA_OK) {
        machine.users++;
        topo->hwloc = machine.hwloc;
        topo->joined = true;
    }
    pthread_mutex_unlock(&machine.lock);
    return st;
}

static void leave_machine(void)
{
    pthread_mutex_lock(&machine.lock);
    if (--machine.users == 0) {
        hwloc_topology_destroy(machine.hwloc);
        machine.hwloc = NULL;
    }
    pthread_mutex_unlock(&machine.lock);
}

strata_status st_topology_load_from(struct st_topology **out, const struct st_topology_source *source)
{
    struct st_topology *topo = calloc(1, sizeof(*topo));
    struct st_cgroup_limits limits;
    struct st_ulimit ulimit;
    strata_status st;

    if (topo == NULL)
        return st_nomem(sizeof(*topo));
    st_cgroup_read(&limits, source->cgroup_root != NULL ? source->cgroup_root : "/sys/fs/cgroup",
                   source->membership != NULL ? source->membership : "/proc/self/cgroup");
    st = source->synthetic != NULL ? load_hwloc(&topo->hwloc, source->synthetic, false) : join_machine(topo);
    if (st == STRATA_OK)
        st = list_units(topo, source, limits.cpu_list);
    if (st != STRATA_OK) {
        st_topology_destroy(topo);
        return st;
    }
    apply_limits(topo, &limits, &source->share);
    ulimit = st_ulimit_memory(topo->core_count + THREADS_BESIDE);
    apply_ulimit(topo, &ulimit);
    read_cpu_name(topo);
    *out = topo;
    return STRATA_OK;
}

strata_status st_topology_load(struct st_topology **out, const char *cgroup_root)
{
    return st_topology_load_from(out, &(struct st_topology_source){.cgroup_root = cgroup_root});
}

strata_status st_topology_load_share(struct st_topology **out, const struct st_topology_share *share)
{
    struct st_topology_source source = {0};

    if (share != NULL)
        source.share = *share;
    return st_topology_load_from(out, &source);
}

void st_topology_destroy(struct st_topology *topo)
{
    if (topo == NULL)
        return;
    if (topo->joined)
        leave_machine();
    else if (topo->hwloc != NULL)
        hwloc_topology_destroy(topo->hwloc);
    free(topo->units);
    free(topo->nodes);
    free(topo);
}

/* --- questions --- */

uint32_t st_topology_core_count(const struct st_topology *topo)
{
    return topo->core_count;
}

bool st_topology_has_quota(const struct st_topology *topo)
{
    return topo->core_count < topo->unit_count;
}

uint64_t st_topology_memory_limit(const struct st_topology *topo)
{
    return topo->memory_limit;
}

uint64_t st_topology_memory_available(const struct st_topology *topo)
{
    return topo->memory_available;
}

const char *st_topology_ulimit(const struct st_topology *topo)
{
    return topo->ulimit;
}

uint32_t st_topology_memory_shares(const struct st_topology *topo)
{
    return topo->memory_shares;
}

const char *st_topology_cpu_name(const struct st_topology *topo)
{
    return topo->cpu_name;
}

uint32_t st_topology_numa_count(const struct st_topology *topo)
{
    return topo->node_count > 0 ? topo->node_count : 1;
}

struct st_numa_node st_topology_numa_node(const struct st_topology *topo, uint32_t index)
{
    return index < topo->node_count ? topo->nodes[index] : (struct st_numa_node){0};
}

uint32_t st_topology_unit(const struct st_topology *topo, uint32_t index)
{
    return topo->unit_count > 0 ? topo->units[index % topo->unit_count].os_index : 0;
}

uint32_t st_topology_unit_node(const struct st_topology *topo, uint32_t index)
{
    return topo->unit_count > 0 ? topo->units[index % topo->unit_count].node : 0;
}

const char *st_topology_units_text(const struct st_topology *topo, uint32_t workers, uint32_t node, char *text, size_t bytes)
{
    hwloc_bitmap_t set = hwloc_bitmap_alloc();

    text[0] = '\0';
    if (set == NULL)
        return text;
    for (uint32_t i = 0; i < workers && i < topo->unit_count; i++)
        if (node == UINT32_MAX || topo->units[i].node == node)
            hwloc_bitmap_set(set, topo->units[i].os_index);
    hwloc_bitmap_list_snprintf(text, bytes, set);
    hwloc_bitmap_free(set);
    return text;
}

/* --- binding --- */

/* Units for worker `index`: its own, or those of its node. */
static void units_to_bind(const struct st_topology *topo, uint32_t index, hwloc_bitmap_t set)
{
    const struct unit *mine = &topo->units[index % topo->unit_count];

    if (!st_topology_has_quota(topo)) {
        hwloc_bitmap_only(set, mine->os_index);
        return;
    }
    for (uint32_t i = 0; i < topo->unit_count; i++)
        if (topo->units[i].node == mine->node)
            hwloc_bitmap_set(set, topo->units[i].os_index);
}

strata_status st_topology_bind(const struct st_topology *topo, uint32_t index)
{
    hwloc_bitmap_t set;
    int res;

    if (topo->unit_count == 0)
        return st_error(STRATA_E_NOSYS, "topology: no processor list to bind to");
    set = hwloc_bitmap_alloc();
    if (set == NULL)
        return st_nomem(0);
    units_to_bind(topo, index, set);
    res = hwloc_set_cpubind(topo->hwloc, set, HWLOC_CPUBIND_THREAD);
    hwloc_bitmap_free(set);
    if (st_fault("topology.bind", res) < 0)
        return st_error(STRATA_E_NOSYS, "topology: the system refuses to bind threads: %s", strerror(errno));
    return STRATA_OK;
}

strata_status st_topology_place_memory(const struct st_topology *topo, void *base, uint64_t bytes, uint32_t workers)
{
    hwloc_bitmap_t nodes;
    bool several;
    int res;

    if (topo->node_count <= 1 || bytes == 0)
        return STRATA_OK;
    nodes = hwloc_bitmap_alloc();
    if (nodes == NULL)
        return st_nomem(0);
    for (uint32_t i = 0; i < workers && i < topo->unit_count; i++)
        hwloc_bitmap_set(nodes, topo->nodes[topo->units[i].node].os_index);
    several = hwloc_bitmap_weight(nodes) > 1;
    res = hwloc_set_area_membind(topo->hwloc, base, bytes, nodes, several ? HWLOC_MEMBIND_INTERLEAVE : HWLOC_MEMBIND_BIND,
                                 HWLOC_MEMBIND_BYNODESET);
    hwloc_bitmap_free(nodes);
    if (st_fault("topology.place", res) < 0)
        return st_error(STRATA_E_NOSYS, "topology: the system refuses to place memory: %s", strerror(errno));
    return STRATA_OK;
}

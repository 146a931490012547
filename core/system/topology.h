/* core/system/topology.h - the cores and memory that this process may actually use (hwloc, affinity, cgroups).
 *
 * A unit is a processing unit (a hardware thread).  The list of usable units is ordered so that consecutive workers fill one NUMA
 * node core by core, then the next node; the second threads of the cores follow in the same order. */
#ifndef CORE_SYSTEM_TOPOLOGY_H
#define CORE_SYSTEM_TOPOLOGY_H

#include "strata/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct st_topology; /* holds the hwloc topology and the list of usable units */

/** @param cgroup_root  NULL: "/sys/fs/cgroup"; tests pass a fake tree.  v1 and v2 are understood. */
strata_status st_topology_load(struct st_topology **out, const char *cgroup_root);
void st_topology_destroy(struct st_topology *topo);

/* The part of this process, where several share the machine.  Zeros: it is alone. */
struct st_topology_share {
    uint32_t units, of_units; /* part `units` of `of_units`, by whole cores, neighbours together, as long as there are enough */
    uint32_t
        memory; /* processes that share the machine's memory and drives: this one's limit is its part of the machine's; 0: 1 */
};
/** The same for one of several processes.  @param share  NULL: it is alone */
strata_status st_topology_load_share(struct st_topology **out, const struct st_topology_share *share);

/* What to read instead of this machine; a NULL member means this machine's. */
struct st_topology_source {
    const char *synthetic;   /* hwloc's description of a machine, "numa:2 core:4 pu:2"; binding then does nothing */
    const char *affinity;    /* units this process may run on: "0-3,8" */
    const char *cgroup_root; /* "/sys/fs/cgroup" */
    const char *membership;  /* "/proc/self/cgroup" */
    struct st_topology_share share;
};
/** The same from any source.  E_INVAL: a description or list that hwloc does not understand. */
strata_status st_topology_load_from(struct st_topology **out, const struct st_topology_source *source);

/** A sensible number of workers: usable units (affinity, cpuset), or fewer if a CPU quota is tighter, rounded up; >= 1. */
uint32_t st_topology_core_count(const struct st_topology *topo);
bool st_topology_has_quota(const struct st_topology *topo);            /* the CPU quota is tighter than the list of units */
uint64_t st_topology_memory_limit(const struct st_topology *topo);     /* smallest of MemTotal, cgroup limit and ulimits, bytes */
uint64_t st_topology_memory_available(const struct st_topology *topo); /* smaller of MemAvailable and limit - used, bytes */
const char *st_topology_ulimit(const struct st_topology *topo); /* the ulimit that sets this limit (ulimit.h); NULL: none does */
uint32_t
st_topology_memory_shares(const struct st_topology *topo); /* processes that share the machine's memory and drives; >= 1 */
const char *st_topology_cpu_name(const struct st_topology *topo);

/* A NUMA node with usable units. */
struct st_numa_node {
    uint32_t os_index;
    uint32_t unit_count;   /* usable ones */
    uint64_t memory_bytes; /* 0: unknown */
};
uint32_t st_topology_numa_count(const struct st_topology *topo); /* nodes with usable units; >= 1 */
/** Node `index` of 0..numa_count - 1, in the order in which workers fill them. */
struct st_numa_node st_topology_numa_node(const struct st_topology *topo, uint32_t index);

/** Unit (its number in the system) and node (index as above) of worker `index`, modulo the number of usable units. */
uint32_t st_topology_unit(const struct st_topology *topo, uint32_t index);
uint32_t st_topology_unit_node(const struct st_topology *topo, uint32_t index);
/** Units of workers 0..workers - 1, as "0-3,8"; of one node, or of all if node is UINT32_MAX.  Cut where `text` ends. */
const char *st_topology_units_text(const struct st_topology *topo, uint32_t workers, uint32_t node, char *text, size_t bytes);

/** Bind the calling thread to unit `index`; under a CPU quota, which names no cores, to all usable units of its node.  E_NOSYS
 *  where the system refuses. */
strata_status st_topology_bind(const struct st_topology *topo, uint32_t index);

/** Place the kernel pages of [base, base + bytes) that are not touched yet near workers 0..workers - 1: preferred on their node
 *  if there is one, interleaved over several, since any worker may take any item.  Does nothing on a machine with one node.
 *  E_NOSYS if the system refuses: then the first touch decides.  base: aligned to a kernel page. */
strata_status st_topology_place_memory(const struct st_topology *topo, void *base, uint64_t bytes, uint32_t workers);

#endif

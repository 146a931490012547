/* core/topology.h - the cores and memory this process may really use (hwloc, affinity, cgroups). */
#ifndef CORE_TOPOLOGY_H
#define CORE_TOPOLOGY_H

#include "strata/status.h"
#include <stdint.h>

struct st_topology; /* holds the hwloc topology and the list of usable cores */

/** @param cgroup_root  NULL: "/sys/fs/cgroup"; tests pass a fake tree.  v1 and v2 are understood. */
strata_status st_topology_load(struct st_topology **out, const char *cgroup_root);
void st_topology_destroy(struct st_topology *topo);

uint32_t st_topology_core_count(const struct st_topology *topo); /* affinity and cgroup quota, rounded up, >= 1 */
uint32_t st_topology_numa_count(const struct st_topology *topo);
uint64_t st_topology_memory_limit(const struct st_topology *topo);     /* smaller of MemTotal and cgroup limit, bytes */
uint64_t st_topology_memory_available(const struct st_topology *topo); /* smaller of MemAvailable and limit - used, bytes */
const char *st_topology_cpu_name(const struct st_topology *topo);

/** Bind the calling thread to usable core `index` (modulo count).  E_NOSYS where the system refuses. */
strata_status st_topology_bind(const struct st_topology *topo, uint32_t index);

#endif

/* core/system/cgroup.h - limits that control groups (v1 and v2) put on this process; used by topology.c and watchdog.c. */
#ifndef CORE_SYSTEM_CGROUP_H
#define CORE_SYSTEM_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

#define ST_CGROUP_LIST_MAX 1024u

struct st_cgroup_limits {
    uint64_t memory_limit;     /* bytes, the lower of memory.max and memory.high as for the watchdog; UINT64_MAX: none */
    uint64_t memory_available; /* bytes until a limit is reached, with page cache that can be dropped counted as free; UINT64_MAX:
                                  no limit */
    double cpus;               /* processors' worth of time; 0: no quota */
    char cpu_list[ST_CGROUP_LIST_MAX]; /* processors the group may run on, "0-3,8"; "": no restriction known */
};

/** Read the tightest limits from the process's group up to the root of the tree; the processors come from the nearest group that
 *  states them, since the kernel has already intersected that list with its ancestors'.  A group that does not exist below `root`
 *  (containers) is taken to be the root itself; without any file there is no limit.
 *  @param root        mount point, e.g. "/sys/fs/cgroup"
 *  @param membership  file like /proc/self/cgroup */
void st_cgroup_read(struct st_cgroup_limits *limits, const char *root, const char *membership);

typedef void st_cgroup_group_fn(void *ctx, const char *dir);

/** Call `group` with the directory of every group that may limit this process's memory, of both versions, from its own up to the
 *  root of each tree.  A directory may lack any file. */
void st_cgroup_memory_groups(const char *root, const char *membership, st_cgroup_group_fn *group, void *ctx);

/** Page cache that the kernel would drop first, of the text of a group's memory.stat: all inactive and half of the active file
 *  pages, as MemAvailable counts it. */
uint64_t st_cgroup_reclaimable(const char *memory_stat, bool v1);

#endif

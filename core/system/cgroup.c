/* core/system/cgroup.c - walks the groups of this process and takes the tightest limit of each kind.
 *
 * Version 2 has one tree; version 1 has one per controller, below root/<controller>.  Both are read, since hybrid systems have
 * some controllers in each.  Used once, at the start. */
#include "core/system/cgroup.h"
#include "core/base/fault.h"
#include "core/system/file.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Above this a v1 limit means "none" (the kernel reports LONG_MAX rounded down to a kernel page). */
#define NO_LIMIT (UINT64_C(1) << 62)

struct group_files {
    const char *limit, *used; /* memory */
    const char *stat_prefix;  /* of the page cache rows of memory.stat that include child groups */
};

static const struct group_files files_v1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_"};
static const struct group_files files_v2 = {"memory.max", "memory.current", ""};

static bool open_in(FILE **file, const char *group, const char *name)
{
    char path[PATH_MAX];

    if (snprintf(path, sizeof(path), "%s/%s", group, name) >= (int)sizeof(path))
        return false;
    *file = st_kernel_file_stream(path);
    return *file != NULL;
}

/* Reads up to two numbers of a file and returns how many there were ("max" is not a number). */
static int read_numbers(const char *group, const char *name, long long *first, long long *second)
{
    FILE *file;
    int count;

    if (!open_in(&file, group, name))
        return 0;
    count = fscanf(file, "%lld %lld", first, second);
    fclose(file);
    return count < 0 ? 0 : count;
}

/* Page cache that the kernel would drop first: all inactive and half of the active file pages, as MemAvailable counts it. */
static uint64_t reclaimable_bytes(const char *group, const char *prefix)
{
    char line[256], inactive[64], active[64];
    unsigned long long bytes;
    uint64_t sum = 0;
    FILE *file;

    if (!open_in(&file, group, "memory.stat"))
        return 0;
    snprintf(inactive, sizeof(inactive), "%sinactive_file ", prefix);
    snprintf(active, sizeof(active), "%sactive_file ", prefix);
    while (fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, inactive, strlen(inactive)) == 0 && sscanf(line + strlen(inactive), "%llu", &bytes) == 1)
            sum += bytes;
        else if (strncmp(line, active, strlen(active)) == 0 && sscanf(line + strlen(active), "%llu", &bytes) == 1)
            sum += bytes / 2;
    }
    fclose(file);
    return sum;
}

static void apply_memory(struct st_cgroup_limits *limits, const char *group, const struct group_files *files)
{
    long long limit, used, rest;
    uint64_t taken, available;

    if (read_numbers(group, files->limit, &limit, &rest) < 1 || limit < 0 || (uint64_t)limit >= NO_LIMIT)
        return;
    if ((uint64_t)limit < limits->memory_limit)
        limits->memory_limit = (uint64_t)limit;
    taken = read_numbers(group, files->used, &used, &rest) < 1 || used < 0 ? 0 : (uint64_t)used;
    available = reclaimable_bytes(group, files->stat_prefix);
    taken -= available < taken ? available : taken;
    available = taken < (uint64_t)limit ? (uint64_t)limit - taken : 0;
    if (available < limits->memory_available)
        limits->memory_available = available;
}

static void apply_quota(struct st_cgroup_limits *limits, long long quota, long long period)
{
    double cpus = (double)quota / (double)period;

    if (quota > 0 && period > 0 && (limits->cpus == 0 || cpus < limits->cpus))
        limits->cpus = cpus;
}

/* Reads the first line of a file, if it fits and is not empty. */
static void read_list(char list[ST_CGROUP_LIST_MAX], const char *group, const char *name)
{
    char line[ST_CGROUP_LIST_MAX + 1];
    FILE *file;

    if (list[0] != '\0' || !open_in(&file, group, name))
        return;
    if (fgets(line, sizeof(line), file) != NULL) {
        const size_t length = strcspn(line, "\n");

        if (length < ST_CGROUP_LIST_MAX) {
            line[length] = '\0';
            memcpy(list, line, length + 1);
        }
    }
    fclose(file);
}

static void apply_v1_memory(struct st_cgroup_limits *limits, const char *group)
{
    apply_memory(limits, group, &files_v1);
}

static void apply_v1_cpu(struct st_cgroup_limits *limits, const char *group)
{
    long long quota, period, rest;

    if (read_numbers(group, "cpu.cfs_quota_us", &quota, &rest) >= 1 &&
        read_numbers(group, "cpu.cfs_period_us", &period, &rest) >= 1)
        apply_quota(limits, quota, period);
}

static void apply_v1_cpuset(struct st_cgroup_limits *limits, const char *group)
{
    read_list(limits->cpu_list, group, "cpuset.effective_cpus");
    read_list(limits->cpu_list, group, "cpuset.cpus"); /* kernels before 3.17 only have this one */
}

static void apply_v2(struct st_cgroup_limits *limits, const char *group)
{
    long long quota, period;

    apply_memory(limits, group, &files_v2);
    read_list(limits->cpu_list, group, "cpuset.cpus.effective");
    if (read_numbers(group, "cpu.max", &quota, &period) == 2)
        apply_quota(limits, quota, period);
}

typedef void apply_fn(struct st_cgroup_limits *limits, const char *group);

/* Applies `apply` to tree/path and every group above it, the tree's root included. */
static void walk_up(struct st_cgroup_limits *limits, apply_fn *apply, const char *tree, const char *path)
{
    char group[PATH_MAX];
    size_t root_length = strlen(tree);
    struct stat info;

    if (snprintf(group, sizeof(group), "%s%s", tree, path) >= (int)sizeof(group) || st_fault_refuses("cgroup.stat") ||
        stat(group, &info) != 0)
        snprintf(group, sizeof(group), "%s", tree);
    for (size_t length = strlen(group); length > root_length; length = (size_t)(strrchr(group, '/') - group)) {
        group[length] = '\0';
        if (group[length - 1] != '/')
            apply(limits, group);
        else if (length - 1 == root_length)
            break;
    }
    apply(limits, tree);
}

/* True if the comma-separated list holds `name`. */
static bool list_has(const char *list, const char *name)
{
    size_t length = strlen(name);

    for (const char *at = list; at != NULL; at = strchr(at, ',') != NULL ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    return false;
}

/* One line of the membership file: "id:controllers:path". */
static void apply_line(struct st_cgroup_limits *limits, const char *root, char *line)
{
    char tree[PATH_MAX], *controllers = strchr(line, ':'), *path;

    if (controllers == NULL || (path = strchr(controllers + 1, ':')) == NULL)
        return;
    controllers++;
    *path++ = '\0';
    path[strcspn(path, "\n")] = '\0';
    if (controllers[0] == '\0') {
        walk_up(limits, apply_v2, root, path);
        snprintf(tree, sizeof(tree), "%s/unified", root);
        walk_up(limits, apply_v2, tree, path);
    }
    if (list_has(controllers, "memory")) {
        snprintf(tree, sizeof(tree), "%s/memory", root);
        walk_up(limits, apply_v1_memory, tree, path);
    }
    if (list_has(controllers, "cpuset")) {
        snprintf(tree, sizeof(tree), "%s/cpuset", root);
        walk_up(limits, apply_v1_cpuset, tree, path);
    }
    if (list_has(controllers, "cpu")) {
        snprintf(tree, sizeof(tree), "%s/cpu", root);
        walk_up(limits, apply_v1_cpu, tree, path);
    }
}

void st_cgroup_read(struct st_cgroup_limits *limits, const char *root, const char *membership)
{
    char line[PATH_MAX];
    FILE *file = st_kernel_file_stream(membership);

    *limits = (struct st_cgroup_limits){.memory_limit = UINT64_MAX, .memory_available = UINT64_MAX};
    if (file == NULL)
        return;
    while (fgets(line, sizeof(line), file) != NULL)
        apply_line(limits, root, line);
    fclose(file);
}

/* core/system/cgroup.c - walks the groups of this process and takes the tightest limit of each kind.
 *
 * Version 2 has one tree; version 1 has one per controller, below root/<controller>.  Both are read, since hybrid systems have
 * some controllers in each.  Used once, at the start. */
#include "core/system/cgroup.h"
#include "core/base/fault.h"
#include "core/system/file.h"
#include "core/system/kernel_text.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Above this a v1 limit means "none" (the kernel reports LONG_MAX rounded down to a kernel page). */
#define NO_LIMIT (UINT64_C(1) << 62)

struct group_files {
    const char *limit, *high, *used; /* memory; high: from which on the kernel holds the tasks up, NULL: there is none */
    bool v1;
};

static const struct group_files files_v1 = {"memory.limit_in_bytes", NULL, "memory.usage_in_bytes", true};
static const struct group_files files_v2 = {"memory.max", "memory.high", "memory.current", false};

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

uint64_t st_cgroup_reclaimable(const char *memory_stat, bool v1)
{
    const uint64_t inactive = st_kernel_text_number(memory_stat, v1 ? "total_inactive_file " : "inactive_file ", ""),
                   active = st_kernel_text_number(memory_stat, v1 ? "total_active_file " : "active_file ", "");

    return (inactive != ST_KERNEL_UNKNOWN ? inactive : 0) + (active != ST_KERNEL_UNKNOWN ? active / 2 : 0);
}

static uint64_t reclaimable_bytes(const char *group, bool v1)
{
    char text[ST_KERNEL_TEXT_MAX];
    const int fd = st_kernel_text_open(group, "memory.stat");
    const bool there = st_kernel_text_read(fd, text);

    if (fd >= 0)
        close(fd);
    return there ? st_cgroup_reclaimable(text, v1) : 0;
}

/* The limit in one of a group's files; NO_LIMIT: there is none. */
static uint64_t limit_of(const char *group, const char *name)
{
    long long limit, rest;

    return name != NULL && read_numbers(group, name, &limit, &rest) >= 1 && limit >= 0 ? (uint64_t)limit : NO_LIMIT;
}

static void apply_memory(struct st_cgroup_limits *limits, const char *group, const struct group_files *files)
{
    const uint64_t most = limit_of(group, files->limit), high = limit_of(group, files->high), limit = most < high ? most : high;
    long long used, rest;
    uint64_t taken, available;

    if (limit >= NO_LIMIT)
        return;
    if (limit < limits->memory_limit)
        limits->memory_limit = limit;
    taken = read_numbers(group, files->used, &used, &rest) < 1 || used < 0 ? 0 : (uint64_t)used;
    available = reclaimable_bytes(group, files->v1);
    taken -= available < taken ? available : taken;
    available = taken < limit ? limit - taken : 0;
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

static void apply_v1_memory(void *limits, const char *group)
{
    apply_memory(limits, group, &files_v1);
}

static void apply_v1_cpu(void *limits, const char *group)
{
    long long quota, period, rest;

    if (read_numbers(group, "cpu.cfs_quota_us", &quota, &rest) >= 1 &&
        read_numbers(group, "cpu.cfs_period_us", &period, &rest) >= 1)
        apply_quota(limits, quota, period);
}

static void apply_v1_cpuset(void *ctx, const char *group)
{
    struct st_cgroup_limits *limits = ctx;

    read_list(limits->cpu_list, group, "cpuset.effective_cpus");
    read_list(limits->cpu_list, group, "cpuset.cpus"); /* kernels before 3.17 only have this one */
}

static void apply_v2(void *ctx, const char *group)
{
    struct st_cgroup_limits *limits = ctx;
    long long quota, period;

    apply_memory(limits, group, &files_v2);
    read_list(limits->cpu_list, group, "cpuset.cpus.effective");
    if (read_numbers(group, "cpu.max", &quota, &period) == 2)
        apply_quota(limits, quota, period);
}

typedef void apply_fn(void *ctx, const char *group);

/* What to do with a group of this process, by where it is; NULL: nothing. */
struct visitor {
    apply_fn *v2, *v1_memory, *v1_cpuset, *v1_cpu;
    void *ctx;
};

/* Applies `apply` to tree/path and every group above it, the tree's root included. */
static void walk_up(apply_fn *apply, void *ctx, const char *tree, const char *path)
{
    char group[PATH_MAX];
    size_t root_length = strlen(tree);
    struct stat info;

    if (apply == NULL)
        return;
    if (snprintf(group, sizeof(group), "%s%s", tree, path) >= (int)sizeof(group) || st_fault_refuses("cgroup.stat") ||
        stat(group, &info) != 0)
        snprintf(group, sizeof(group), "%s", tree);
    for (size_t length = strlen(group); length > root_length; length = (size_t)(strrchr(group, '/') - group)) {
        group[length] = '\0';
        if (group[length - 1] != '/')
            apply(ctx, group);
        else if (length - 1 == root_length)
            break;
    }
    apply(ctx, tree);
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
static void visit_line(const struct visitor *v, const char *root, char *line)
{
    char tree[PATH_MAX], *controllers = strchr(line, ':'), *path;

    if (controllers == NULL || (path = strchr(controllers + 1, ':')) == NULL)
        return;
    controllers++;
    *path++ = '\0';
    path[strcspn(path, "\n")] = '\0';
    if (controllers[0] == '\0') {
        walk_up(v->v2, v->ctx, root, path);
        snprintf(tree, sizeof(tree), "%s/unified", root);
        walk_up(v->v2, v->ctx, tree, path);
    }
    if (list_has(controllers, "memory")) {
        snprintf(tree, sizeof(tree), "%s/memory", root);
        walk_up(v->v1_memory, v->ctx, tree, path);
    }
    if (list_has(controllers, "cpuset")) {
        snprintf(tree, sizeof(tree), "%s/cpuset", root);
        walk_up(v->v1_cpuset, v->ctx, tree, path);
    }
    if (list_has(controllers, "cpu")) {
        snprintf(tree, sizeof(tree), "%s/cpu", root);
        walk_up(v->v1_cpu, v->ctx, tree, path);
    }
}

static void visit(const struct visitor *v, const char *root, const char *membership)
{
    char line[PATH_MAX];
    FILE *file = st_kernel_file_stream(membership);

    if (file == NULL)
        return;
    while (fgets(line, sizeof(line), file) != NULL)
        visit_line(v, root, line);
    fclose(file);
}

void st_cgroup_read(struct st_cgroup_limits *limits, const char *root, const char *membership)
{
    *limits = (struct st_cgroup_limits){.memory_limit = UINT64_MAX, .memory_available = UINT64_MAX};
    visit(&(struct visitor){apply_v2, apply_v1_memory, apply_v1_cpuset, apply_v1_cpu, limits}, root, membership);
}

void st_cgroup_memory_groups(const char *root, const char *membership, st_cgroup_group_fn *group, void *ctx)
{
    visit(&(struct visitor){.v2 = group, .v1_memory = group, .ctx = ctx}, root, membership);
}

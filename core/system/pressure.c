/* core/system/pressure.c - reads /proc and the control group by descriptors that stay open, and judges the difference. */
#include "core/system/pressure.h"
#include "core/base/error.h"
#include "core/base/size.h"
#include "core/system/file.h"
#include "core/system/kernel_text.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FRACTION_PRESSED 0.05
#define FAULT_SECONDS    100e-6 /* a 4 KiB read of an NVMe drive; other disks take longer */
#define SWAP_OUT_PRESSED (1u << 20)

struct st_pressure {
    int stat, status, vmstat, psi, events; /* -1: not there */
    enum st_pressure_scope scope;
};

/* --- opening --- */

/* A kernel with PSI switched off may have the file and yet refuse to read it. */
static int open_psi(const char *dir, const char *name)
{
    char text[ST_KERNEL_TEXT_MAX];
    int fd = st_kernel_text_open(dir, name);

    if (fd >= 0 && !st_kernel_text_read(fd, text)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* The path of the version 2 group of this process, "/a/b"; false if it has none. */
static bool group_path(const char *proc_root, char path[PATH_MAX])
{
    char name[PATH_MAX], line[PATH_MAX];
    bool found = false;
    FILE *file;

    if (snprintf(name, sizeof(name), "%s/self/cgroup", proc_root) >= (int)sizeof(name) ||
        (file = st_kernel_file_stream(name)) == NULL)
        return false;
    while (!found && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, "0::/", 4) != 0)
            continue;
        line[strcspn(line, "\n")] = '\0';
        memcpy(path, line + 3, strlen(line + 3) + 1);
        found = true;
    }
    fclose(file);
    return found;
}

/* A group that does not exist below the root (containers) is taken to be the root itself. */
static void open_group(struct st_pressure *p, const char *proc_root, const char *cgroup_root)
{
    static const char *const trees[] = {"", "/unified"};
    char path[PATH_MAX], dir[PATH_MAX];

    if (!group_path(proc_root, path))
        return;
    for (size_t i = 0; i < 2 * sizeof(trees) / sizeof(trees[0]); i++) {
        const char *below = i % 2 == 0 ? path : "";

        if (snprintf(dir, sizeof(dir), "%s%s%s", cgroup_root, trees[i / 2], below) >= (int)sizeof(dir))
            continue;
        p->psi = open_psi(dir, "memory.pressure");
        if (p->psi < 0)
            continue;
        p->events = st_kernel_text_open(dir, "memory.events"); /* the root group of the machine has none */
        p->scope =
            p->events >= 0 || (below[0] != '\0' && strcmp(below, "/") != 0) ? ST_PRESSURE_OF_GROUP : ST_PRESSURE_OF_MACHINE;
        return;
    }
}

strata_status st_pressure_open(struct st_pressure **out, const char *proc_root, const char *cgroup_root)
{
    struct st_pressure *p = calloc(1, sizeof(*p));

    if (p == NULL)
        return st_nomem(sizeof(*p));
    if (proc_root == NULL)
        proc_root = "/proc";
    if (cgroup_root == NULL)
        cgroup_root = "/sys/fs/cgroup";
    p->psi = p->events = -1;
    p->stat = st_kernel_text_open(proc_root, "self/stat");
    p->status = st_kernel_text_open(proc_root, "self/status");
    p->vmstat = st_kernel_text_open(proc_root, "vmstat");
    open_group(p, proc_root, cgroup_root);
    if (p->psi < 0 && (p->psi = open_psi(proc_root, "pressure/memory")) >= 0)
        p->scope = ST_PRESSURE_OF_MACHINE;
    *out = p;
    return STRATA_OK;
}

void st_pressure_close(struct st_pressure *p)
{
    if (p == NULL)
        return;
    const int files[] = {p->stat, p->status, p->vmstat, p->psi, p->events};

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        if (files[i] >= 0)
            close(files[i]);
    free(p);
}

enum st_pressure_scope st_pressure_scope(const struct st_pressure *p)
{
    return p->scope;
}

/* --- sampling --- */

/* Field 12 of /proc/self/stat; the name before it, in parentheses, may contain anything. */
static uint64_t major_faults_of(const char *text)
{
    const char *at = strrchr(text, ')');
    uint64_t value;
    char *end;

    for (int field = 2; at != NULL && field < 12; field++)
        at = strchr(at + 1, ' ');
    if (at == NULL)
        return ST_PRESSURE_UNKNOWN;
    value = strtoull(at, &end, 10);
    return end == at ? ST_PRESSURE_UNKNOWN : value;
}

static uint64_t sum_known(const uint64_t *values, size_t count)
{
    uint64_t sum = ST_PRESSURE_UNKNOWN;

    for (size_t i = 0; i < count; i++)
        if (values[i] != ST_PRESSURE_UNKNOWN)
            sum = (sum == ST_PRESSURE_UNKNOWN ? 0 : sum) + values[i];
    return sum;
}

static uint64_t limit_hits_of(const char *text)
{
    const uint64_t hits[] = {st_kernel_text_number(text, "high ", ""), st_kernel_text_number(text, "max ", ""),
                             st_kernel_text_number(text, "oom ", "")};

    return sum_known(hits, sizeof(hits) / sizeof(hits[0]));
}

void st_pressure_sample(const struct st_pressure *p, struct st_pressure_sample *out)
{
    char text[ST_KERNEL_TEXT_MAX];

    memset(out, 0xff, sizeof(*out)); /* all unknown */
    if (p == NULL)
        return;
    if (st_kernel_text_read(p->stat, text))
        out->major_faults = major_faults_of(text);
    if (st_kernel_text_read(p->status, text)) {
        const uint64_t kilobytes = st_kernel_text_number(text, "VmSwap:", "");

        out->swap_bytes = kilobytes > UINT64_MAX / 1024 ? ST_PRESSURE_UNKNOWN : kilobytes * 1024;
    }
    if (st_kernel_text_read(p->vmstat, text)) {
        out->pages_in = st_kernel_text_number(text, "pswpin ", "");
        out->pages_out = st_kernel_text_number(text, "pswpout ", "");
    }
    if (st_kernel_text_read(p->psi, text)) {
        out->some_us = st_kernel_text_number(text, "some ", "total=");
        out->full_us = st_kernel_text_number(text, "full ", "total=");
    }
    if (st_kernel_text_read(p->events, text))
        out->group_limit_hits = limit_hits_of(text);
}

/* --- judging --- */

static uint64_t grown(uint64_t before, uint64_t after)
{
    if (before == ST_PRESSURE_UNKNOWN || after == ST_PRESSURE_UNKNOWN)
        return ST_PRESSURE_UNKNOWN;
    return after > before ? after - before : 0;
}

static bool some(uint64_t value)
{
    return value != ST_PRESSURE_UNKNOWN && value > 0;
}

static double fraction_of(uint64_t count, double seconds_each, double seconds)
{
    return count == ST_PRESSURE_UNKNOWN ? (double)NAN : fmin(1, (double)count * seconds_each / seconds);
}

/* Major faults are lost time, but they mean memory pressure only if they come from swap: a program that starts has them, too. */
static double waited_fraction(const struct st_pressure_sample *moved, double seconds)
{
    const double stalled = fraction_of(moved->some_us, 1e-6, seconds),
                 faulted = fraction_of(moved->major_faults, FAULT_SECONDS, seconds);

    if (isnan(stalled))
        return faulted;
    return some(moved->swap_bytes) || some(moved->pages_in) ? fmax(stalled, faulted) : stalled;
}

struct text {
    char *at;
    size_t left;
    const char *before; /* the next piece */
};

__attribute__((format(printf, 2, 3))) static void put(struct text *t, const char *fmt, ...)
{
    va_list args;
    int used = snprintf(t->at, t->left, "%s", t->before);

    t->at += used;
    t->left -= (size_t)used;
    va_start(args, fmt);
    used = vsnprintf(t->at, t->left, fmt, args);
    va_end(args);
    t->at += used;
    t->left -= (size_t)used;
    t->before = ", ";
}

/* "1,234,567" */
static const char *count_text(char buf[32], uint64_t count)
{
    char digits[24];
    const int length = snprintf(digits, sizeof(digits), "%llu", (unsigned long long)count);
    char *at = buf;

    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            *at++ = ',';
        *at++ = digits[i];
    }
    *at = '\0';
    return buf;
}

static void put_sentence(struct st_pressure_verdict *v)
{
    struct text t = {v->sentence, sizeof(v->sentence), "memory pressure: "};
    const struct st_pressure_sample *moved = &v->moved;
    char number[32];

    if (some(moved->major_faults))
        put(&t, "%s major faults", count_text(number, moved->major_faults));
    if (v->waited_fraction >= 0.005)
        put(&t, "%.0f %% of the time waiting for memory", v->waited_fraction * 100);
    if (some(moved->swap_bytes))
        put(&t, "%s of this process in swap", st_size_text(number, moved->swap_bytes));
    if (some(moved->group_limit_hits))
        put(&t, "its control group met a limit %s times", count_text(number, moved->group_limit_hits));
    t.before = ": ";
    put(&t, "lower strata.host_memory%s", some(moved->group_limit_hits) ? ", or raise the group's limit" : "");
}

void st_pressure_between(const struct st_pressure_sample *before, const struct st_pressure_sample *after, double seconds,
                         struct st_pressure_verdict *verdict)
{
    const uint64_t swapped_out = grown(before->swap_bytes, after->swap_bytes);

    verdict->moved = (struct st_pressure_sample){.major_faults = grown(before->major_faults, after->major_faults),
                                                 .swap_bytes = after->swap_bytes,
                                                 .pages_in = grown(before->pages_in, after->pages_in),
                                                 .pages_out = grown(before->pages_out, after->pages_out),
                                                 .some_us = grown(before->some_us, after->some_us),
                                                 .full_us = grown(before->full_us, after->full_us),
                                                 .group_limit_hits = grown(before->group_limit_hits, after->group_limit_hits)};
    verdict->waited_fraction = seconds > 0 ? waited_fraction(&verdict->moved, seconds) : (double)NAN;
    verdict->pressed =
        verdict->waited_fraction >= FRACTION_PRESSED || (swapped_out != ST_PRESSURE_UNKNOWN && swapped_out >= SWAP_OUT_PRESSED);
    verdict->sentence[0] = '\0';
    if (verdict->pressed)
        put_sentence(verdict);
}

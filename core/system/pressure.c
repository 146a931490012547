/* core/system/pressure.c - reads /proc and the control group by descriptors that stay open, and evaluates the difference. */
#include "core/system/pressure.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/base/size.h"
#include "core/system/cgroup.h"
#include "core/system/clock.h"
#include "core/system/kernel_text.h"
#include "core/system/ulimit.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FRACTION_PRESSED  0.05
#define SWAP_OUT_PRESSED  (1u << 20)
#define DESCRIPTORS_LEAST 64u /* of `ulimit -n`: with fewer, a run needs the descriptors of control groups for its own files */

/* Files of a control group; -1: not there. */
struct group {
    int limit, high, used, stat, pressure, swap_limit, swap_used;
    bool v1;
    char *name;
};

struct st_pressure {
    int stat, status, vmstat, meminfo, machine_psi; /* of /proc; -1: not there */
    int psi, events;                                /* of this process's group; psi: else the machine's */
    enum st_pressure_scope scope;
    struct group groups[ST_PRESSURE_PLACES_MAX - 1];
    uint32_t group_count;
    const char *cgroup_root; /* while it opens */
    bool lacks_names;        /* no memory for them */
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

/* The nearest group that has PSI.  Only the root group of a machine, the top of its tree, counts no events: that PSI is the
 * machine's. */
static void open_own(struct st_pressure *p, const char *dir)
{
    const size_t root = strlen(p->cgroup_root);

    if (p->psi >= 0 || (p->psi = open_psi(dir, "memory.pressure")) < 0)
        return;
    p->events = st_kernel_text_open(dir, "memory.events");
    p->scope = p->events >= 0 || (strcmp(dir + root, "") != 0 && strcmp(dir + root, "/unified") != 0) ? ST_PRESSURE_OF_GROUP
                                                                                                      : ST_PRESSURE_OF_MACHINE;
}

static void open_group(void *ctx, const char *dir)
{
    struct st_pressure *p = ctx;
    struct group *g = &p->groups[p->group_count];
    int limit, v1_limit;

    open_own(p, dir);
    if (p->group_count == ST_PRESSURE_PLACES_MAX - 1)
        return;
    limit = st_kernel_text_open(dir, "memory.max");
    v1_limit = limit < 0 ? st_kernel_text_open(dir, "memory.limit_in_bytes") : -1;
    if (limit < 0 && v1_limit < 0)
        return;
    *g = (struct group){
        .limit = limit >= 0 ? limit : v1_limit, .v1 = limit < 0, .high = -1, .pressure = -1, .swap_limit = -1, .swap_used = -1};
    p->group_count++;
    g->used = st_kernel_text_open(dir, g->v1 ? "memory.usage_in_bytes" : "memory.current");
    g->stat = st_kernel_text_open(dir, "memory.stat");
    if (!g->v1) {
        g->high = st_kernel_text_open(dir, "memory.high");
        g->pressure = st_kernel_text_open(dir, "memory.pressure");
        g->swap_limit = st_kernel_text_open(dir, "memory.swap.max");
        g->swap_used = st_kernel_text_open(dir, "memory.swap.current");
    }
    g->name = st_fault_refuses("pressure.name") ? NULL : strdup(dir);
    if (g->name == NULL)
        p->lacks_names = true;
}

static bool descriptors_are_few(void)
{
    const uint64_t limit = st_ulimit_descriptors();

    if (limit >= DESCRIPTORS_LEAST)
        return false;
    st_log(ST_LOG_WARN, "ulimit -n allows %u descriptors: control groups are watched from %u", (unsigned)limit,
           DESCRIPTORS_LEAST);
    return true;
}

static strata_status open_all(struct st_pressure *p, const char *proc_root)
{
    char membership[PATH_MAX];

    p->stat = st_kernel_text_open(proc_root, "self/stat");
    p->status = st_kernel_text_open(proc_root, "self/status");
    p->vmstat = st_kernel_text_open(proc_root, "vmstat");
    p->meminfo = st_kernel_text_open(proc_root, "meminfo");
    p->machine_psi = open_psi(proc_root, "pressure/memory");
    if (snprintf(membership, sizeof(membership), "%s/self/cgroup", proc_root) < (int)sizeof(membership) && !descriptors_are_few())
        st_cgroup_memory_groups(p->cgroup_root, membership, open_group, p);
    if (p->psi < 0 && (p->psi = p->machine_psi) >= 0)
        p->scope = ST_PRESSURE_OF_MACHINE;
    return p->lacks_names ? st_nomem(0) : STRATA_OK;
}

strata_status st_pressure_open(struct st_pressure **out, const char *proc_root, const char *cgroup_root)
{
    struct st_pressure *p = calloc(1, sizeof(*p));
    strata_status st;

    if (p == NULL)
        return st_nomem(sizeof(*p));
    p->psi = p->events = -1;
    p->cgroup_root = cgroup_root != NULL ? cgroup_root : "/sys/fs/cgroup";
    st = open_all(p, proc_root != NULL ? proc_root : "/proc");
    p->cgroup_root = NULL;
    if (st != STRATA_OK) {
        st_pressure_close(p);
        return st;
    }
    *out = p;
    return STRATA_OK;
}

static void close_if_open(const int *files, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (files[i] >= 0)
            close(files[i]);
}

void st_pressure_close(struct st_pressure *p)
{
    if (p == NULL)
        return;
    close_if_open((const int[]){p->stat, p->status, p->vmstat, p->meminfo, p->machine_psi, p->events}, 6);
    if (p->psi != p->machine_psi)
        close_if_open(&p->psi, 1);
    for (uint32_t i = 0; i < p->group_count; i++) {
        const struct group *g = &p->groups[i];

        close_if_open((const int[]){g->limit, g->high, g->used, g->stat, g->pressure, g->swap_limit, g->swap_used}, 7);
        free(g->name);
    }
    free(p);
}

enum st_pressure_scope st_pressure_scope(const struct st_pressure *p)
{
    return p->scope;
}

const char *st_pressure_place_name(const struct st_pressure *p, uint32_t place)
{
    return place == 0 ? "this machine" : p->groups[place - 1].name;
}

/* --- sampling --- */

static uint64_t bytes_of_row(const char *text, const char *row)
{
    const uint64_t kilobytes = st_kernel_text_number(text, row, "");

    return kilobytes > UINT64_MAX / 1024 ? ST_PRESSURE_UNKNOWN : kilobytes * 1024;
}

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
    if (st_kernel_text_read(p->status, text))
        out->swap_bytes = bytes_of_row(text, "VmSwap:");
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

static uint64_t number_of(int fd, const char *row)
{
    char text[ST_KERNEL_TEXT_MAX];

    return st_kernel_text_read(fd, text) ? st_kernel_text_number(text, row, "") : ST_PRESSURE_UNKNOWN;
}

static uint64_t full_of(int fd)
{
    char text[ST_KERNEL_TEXT_MAX];

    return st_kernel_text_read(fd, text) ? st_kernel_text_number(text, "full ", "total=") : ST_PRESSURE_UNKNOWN;
}

static void look_at_machine(const struct st_pressure *from, struct st_pressure_place *p, uint64_t *free_swap)
{
    char text[ST_KERNEL_TEXT_MAX];

    *p = (struct st_pressure_place){ST_PRESSURE_UNKNOWN, ST_PRESSURE_UNKNOWN, full_of(from->machine_psi)};
    *free_swap = 0;
    if (!st_kernel_text_read(from->meminfo, text))
        return;
    *free_swap = bytes_of_row(text, "SwapFree:");
    *free_swap = *free_swap == ST_PRESSURE_UNKNOWN ? 0 : *free_swap;
    p->limit_bytes = bytes_of_row(text, "MemTotal:");
    p->left_bytes = bytes_of_row(text, "MemAvailable:");
    if (p->left_bytes != ST_PRESSURE_UNKNOWN)
        p->left_bytes += *free_swap;
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* "max" is no number, which is no limit; version 1 says 2^63 or so for that. */
static void look_at_group(const struct group *g, uint64_t machine_full_us, uint64_t free_swap, struct st_pressure_place *p)
{
    const uint64_t limit = less(number_of(g->limit, ""), number_of(g->high, "")), used = number_of(g->used, ""),
                   swap_limit = number_of(g->swap_limit, ""), swap_used = number_of(g->swap_used, "");
    char text[ST_KERNEL_TEXT_MAX];
    uint64_t taken = used;

    *p = (struct st_pressure_place){ST_PRESSURE_UNKNOWN, ST_PRESSURE_UNKNOWN, full_of(g->pressure)};
    if (p->full_us == ST_PRESSURE_UNKNOWN)
        p->full_us = machine_full_us;
    if (limit >= UINT64_C(1) << 62 || used == ST_PRESSURE_UNKNOWN)
        return;
    if (st_kernel_text_read(g->stat, text))
        taken -= less(taken, st_cgroup_reclaimable(text, g->v1));
    if (swap_limit != ST_PRESSURE_UNKNOWN)
        free_swap = less(free_swap, swap_limit - less(swap_limit, swap_used == ST_PRESSURE_UNKNOWN ? 0 : swap_used));
    p->limit_bytes = limit;
    p->left_bytes = limit - less(limit, taken) + free_swap;
}

void st_pressure_look(const struct st_pressure *p, struct st_pressure_look *out)
{
    char text[ST_KERNEL_TEXT_MAX];
    uint64_t free_swap;

    memset(out, 0xff, sizeof(*out)); /* all unknown */
    if (st_kernel_text_read(p->stat, text))
        out->major_faults = major_faults_of(text);
    if (st_kernel_text_read(p->status, text))
        out->resident_bytes = bytes_of_row(text, "VmRSS:");
    look_at_machine(p, &out->place[0], &free_swap);
    for (uint32_t i = 0; i < p->group_count; i++)
        look_at_group(&p->groups[i], out->place[0].full_us, free_swap, &out->place[1 + i]);
    out->at_ns = st_clock_ns();
}

/* --- evaluating --- */

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
                 faulted = fraction_of(moved->major_faults, ST_PRESSURE_FAULT_SECONDS, seconds);

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

/* core/system/watchdog.c - looks by descriptors that stay open, and judges what it sees. */
#include "core/system/watchdog.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/size.h"
#include "core/system/cgroup.h"
#include "core/system/clock.h"
#include "core/system/kernel_text.h"
#include "core/system/pressure.h"
#include "core/system/thread.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SECOND_NS     UINT64_C(1000000000)
#define LONG_NS       (10 * SECOND_NS)
#define SHORT_NS      (3 * SECOND_NS)
#define LONG_SHARE    0.2
#define SHORT_SHARE   0.5
#define FALL_SECONDS  10
#define MARGIN_PART   64u
#define MARGIN_MIN    (UINT64_C(32) << 20)
#define MARGIN_MAX    (UINT64_C(1) << 30)
#define FAULT_SECONDS 100e-6 /* as in pressure.c */
#define UNKNOWN       ST_WATCH_UNKNOWN

/* --- judging --- */

/* What the plan leaves is what is left now, less what the process may still take. */
static uint64_t margin_of(const struct st_watch_judge *j, const struct st_watch_look *look, const struct st_watch_place *p)
{
    const uint64_t resident = look->resident_bytes == UNKNOWN ? 0 : look->resident_bytes;
    const uint64_t to_come = j->planned_bytes > resident ? j->planned_bytes - resident : 0;
    const uint64_t spared = p->left_bytes > to_come ? (p->left_bytes - to_come) / 2 : 0;
    uint64_t margin = p->limit_bytes / MARGIN_PART;

    margin = margin < MARGIN_MIN ? MARGIN_MIN : margin > MARGIN_MAX ? MARGIN_MAX : margin;
    return spared >= margin ? margin : spared > margin / 8 ? spared : margin / 8;
}

/* It is low again at once, and no longer low only when half as much again as the margin is left. */
static void update_low(struct st_watch_judge *j, const struct st_watch_look *look, uint32_t i)
{
    const struct st_watch_place *p = &look->place[i];

    if (p->left_bytes == UNKNOWN || p->limit_bytes == UNKNOWN) {
        j->low_since_ns[i] = 0;
        return;
    }
    if (j->margin[i] == 0)
        j->margin[i] = margin_of(j, look, p);
    if (p->left_bytes >= j->margin[i] + j->margin[i] / 2)
        j->low_since_ns[i] = 0;
    else if (p->left_bytes < j->margin[i] && j->low_since_ns[i] == 0)
        j->low_since_ns[i] = look->at_ns;
}

/* The newest look that is at least so old; NULL: there is none. */
static const struct st_watch_look *look_before(const struct st_watch_judge *j, uint64_t now_ns, uint64_t age_ns)
{
    const uint64_t kept = j->look_count < ST_WATCH_LOOKS ? j->look_count : ST_WATCH_LOOKS;

    for (uint64_t back = 1; back <= kept; back++) {
        const struct st_watch_look *look = &j->looks[(j->look_count - back) % ST_WATCH_LOOKS];

        if (now_ns - look->at_ns >= age_ns)
            return look;
    }
    return NULL;
}

static double share_of(uint64_t before, uint64_t after, double seconds_each, double seconds)
{
    if (before == UNKNOWN || after == UNKNOWN || seconds <= 0)
        return (double)NAN;
    return after > before ? fmin(1, (double)(after - before) * seconds_each / seconds) : 0;
}

/* Part of the time since `before` that was spent waiting for memory. */
static double waited(const struct st_watch_look *before, const struct st_watch_look *now, uint32_t i)
{
    const double seconds = (double)(now->at_ns - before->at_ns) * 1e-9;
    const double full = share_of(before->place[i].full_us, now->place[i].full_us, 1e-6, seconds);

    return isnan(full) ? share_of(before->major_faults, now->major_faults, FAULT_SECONDS, seconds) : full;
}

/* Whether so much of the last `ns` was waiting; fills in the alarm's figures if so. */
static bool stands_still(const struct st_watch_judge *j, const struct st_watch_look *look, uint32_t i, uint64_t ns, double share,
                         struct st_watch_alarm *alarm)
{
    const struct st_watch_look *before = look_before(j, look->at_ns, ns);
    const double part = before != NULL ? waited(before, look, i) : (double)NAN;

    if (!(part >= share))
        return false;
    alarm->waited = part;
    alarm->seconds = (double)(look->at_ns - before->at_ns) * 1e-9;
    return true;
}

/* What is left of a place when this process has taken all that it has planned. */
static double spare(const struct st_watch_judge *j, const struct st_watch_look *look, uint32_t i)
{
    const uint64_t resident = look->resident_bytes;

    return (double)look->place[i].left_bytes - (j->planned_bytes > resident ? (double)(j->planned_bytes - resident) : 0);
}

/* Whether less is left at each look of the last seconds than at the one before, and soon nothing; fills in the pace if so. */
static bool falls(const struct st_watch_judge *j, const struct st_watch_look *look, uint32_t i, struct st_watch_alarm *alarm)
{
    const struct st_watch_look *later = look, *before = look;
    double pace;

    if (j->planned_bytes == 0)
        return false;
    for (uint64_t back = 1; look->at_ns - before->at_ns < SHORT_NS; back++, later = before) {
        if (back > j->look_count || back > ST_WATCH_LOOKS)
            return false;
        before = &j->looks[(j->look_count - back) % ST_WATCH_LOOKS];
        if (before->resident_bytes == UNKNOWN || later->resident_bytes == UNKNOWN || before->place[i].left_bytes == UNKNOWN ||
            spare(j, later, i) >= spare(j, before, i))
            return false;
    }
    pace = (spare(j, before, i) - spare(j, look, i)) / ((double)(look->at_ns - before->at_ns) * 1e-9);
    if (pace * FALL_SECONDS < (double)look->place[i].left_bytes)
        return false;
    alarm->taken = pace;
    return true;
}

/* Compared with the last number known. */
static bool has_killed(struct st_watch_judge *j, const struct st_watch_look *look, uint32_t i)
{
    const uint64_t before = j->killed[i], now = look->place[i].killed;

    if (now == UNKNOWN)
        return false;
    j->killed[i] = now + 1;
    return before != 0 && now + 1 > before;
}

static bool judge_place(struct st_watch_judge *j, const struct st_watch_look *look, uint32_t i, struct st_watch_alarm *alarm)
{
    const bool was_low = j->low_since_ns[i] != 0, killed = has_killed(j, look, i);
    const struct st_watch_place *p = &look->place[i];
    bool low;

    update_low(j, look, i);
    low = j->low_since_ns[i] != 0;
    *alarm = (struct st_watch_alarm){.place = i,
                                     .limit_bytes = p->limit_bytes,
                                     .left_bytes = p->left_bytes,
                                     .resident_bytes = look->resident_bytes,
                                     .waited = (double)NAN};
    if ((low || was_low) && killed) {
        alarm->killed = true;
        return true;
    }
    if (low && falls(j, look, i, alarm))
        return true;
    if (low && look->at_ns - j->low_since_ns[i] >= LONG_NS && stands_still(j, look, i, LONG_NS, LONG_SHARE, alarm))
        return true;
    return low && p->left_bytes < j->margin[i] / 4 && stands_still(j, look, i, SHORT_NS, SHORT_SHARE, alarm);
}

bool st_watch_judge(struct st_watch_judge *j, const struct st_watch_look *look, struct st_watch_alarm *alarm)
{
    bool found = false;

    for (uint32_t i = 0; i < ST_WATCH_PLACES_MAX; i++) { /* all of them: each remembers since when it is low */
        struct st_watch_alarm one;

        if (judge_place(j, look, i, &one) && !found) {
            *alarm = one;
            found = true;
        }
    }
    j->looks[j->look_count++ % ST_WATCH_LOOKS] = *look;
    return found;
}

/* --- looking --- */

/* Of a control group; -1: not there. */
struct group {
    int limit, high, used, stat, events, pressure, swap_limit, swap_used;
    bool v1;
    char *name;
};

struct st_watchdog {
    struct st_watchdog_opts opts;
    struct st_pressure *process;     /* for the major faults */
    int status, memory, psi, vmstat; /* /proc/self/status, meminfo, pressure/memory, vmstat */
    struct group groups[ST_WATCH_PLACES_MAX - 1];
    uint32_t group_count;
    bool lacks_names; /* no memory for them */
    struct st_watch_judge judge;

    pthread_t thread;
    bool running;
    pthread_mutex_t lock;  /* guards `stop` */
    pthread_cond_t change; /* of `stop`; monotonic clock */
    bool stop;
};

static void open_group(void *ctx, const char *dir)
{
    struct st_watchdog *w = ctx;
    struct group *g = &w->groups[w->group_count];
    int limit, v1_limit;

    if (w->group_count == ST_WATCH_PLACES_MAX - 1)
        return;
    limit = st_kernel_text_open(dir, "memory.max");
    v1_limit = limit < 0 ? st_kernel_text_open(dir, "memory.limit_in_bytes") : -1;
    if (limit < 0 && v1_limit < 0)
        return;
    *g = (struct group){.limit = limit >= 0 ? limit : v1_limit,
                        .v1 = limit < 0,
                        .high = -1,
                        .events = -1,
                        .pressure = -1,
                        .swap_limit = -1,
                        .swap_used = -1};
    w->group_count++;
    g->used = st_kernel_text_open(dir, g->v1 ? "memory.usage_in_bytes" : "memory.current");
    g->stat = st_kernel_text_open(dir, "memory.stat");
    g->events = st_kernel_text_open(dir, g->v1 ? "memory.oom_control" : "memory.events"); /* both count "oom_kill N" */
    if (!g->v1) {
        g->high = st_kernel_text_open(dir, "memory.high");
        g->pressure = st_kernel_text_open(dir, "memory.pressure");
        g->swap_limit = st_kernel_text_open(dir, "memory.swap.max");
        g->swap_used = st_kernel_text_open(dir, "memory.swap.current");
    }
    g->name = st_fault_refuses("watchdog.name") ? NULL : strdup(dir);
    if (g->name == NULL)
        w->lacks_names = true;
}

static uint64_t number_of(int fd, const char *row)
{
    char text[ST_KERNEL_TEXT_MAX];

    return st_kernel_text_read(fd, text) ? st_kernel_text_number(text, row, "") : UNKNOWN;
}

static uint64_t bytes_of_row(const char *text, const char *row)
{
    const uint64_t kilobytes = st_kernel_text_number(text, row, "");

    return kilobytes > UINT64_MAX / 1024 ? UNKNOWN : kilobytes * 1024;
}

static uint64_t full_of(int fd)
{
    char text[ST_KERNEL_TEXT_MAX];

    return st_kernel_text_read(fd, text) ? st_kernel_text_number(text, "full ", "total=") : UNKNOWN;
}

static void look_at_machine(const struct st_watchdog *w, struct st_watch_place *p, uint64_t *free_swap)
{
    char text[ST_KERNEL_TEXT_MAX];

    *p = (struct st_watch_place){UNKNOWN, UNKNOWN, full_of(w->psi), number_of(w->vmstat, "oom_kill ")};
    *free_swap = 0;
    if (!st_kernel_text_read(w->memory, text))
        return;
    *free_swap = bytes_of_row(text, "SwapFree:");
    *free_swap = *free_swap == UNKNOWN ? 0 : *free_swap;
    p->limit_bytes = bytes_of_row(text, "MemTotal:");
    p->left_bytes = bytes_of_row(text, "MemAvailable:");
    if (p->left_bytes != UNKNOWN)
        p->left_bytes += *free_swap;
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* "max" is no number, which is no limit; version 1 says 2^63 or so for that. */
static void look_at_group(const struct group *g, uint64_t machine_full_us, uint64_t free_swap, struct st_watch_place *p)
{
    const uint64_t limit = less(number_of(g->limit, ""), number_of(g->high, "")), used = number_of(g->used, ""),
                   swap_limit = number_of(g->swap_limit, ""), swap_used = number_of(g->swap_used, "");
    char text[ST_KERNEL_TEXT_MAX];
    uint64_t taken = used;

    *p = (struct st_watch_place){UNKNOWN, UNKNOWN, full_of(g->pressure), number_of(g->events, "oom_kill ")};
    if (p->full_us == UNKNOWN)
        p->full_us = machine_full_us;
    if (limit >= UINT64_C(1) << 62 || used == UNKNOWN)
        return;
    if (st_kernel_text_read(g->stat, text))
        taken -= less(taken, st_cgroup_reclaimable(text, g->v1));
    if (swap_limit != UNKNOWN)
        free_swap = less(free_swap, swap_limit - less(swap_limit, swap_used == UNKNOWN ? 0 : swap_used));
    p->limit_bytes = limit;
    p->left_bytes = limit - less(limit, taken) + free_swap;
}

static void look(const struct st_watchdog *w, struct st_watch_look *out)
{
    struct st_pressure_sample process;
    char text[ST_KERNEL_TEXT_MAX];
    uint64_t free_swap;

    memset(out, 0xff, sizeof(*out)); /* all unknown */
    st_pressure_sample(w->process, &process);
    out->major_faults = process.major_faults;
    if (st_kernel_text_read(w->status, text))
        out->resident_bytes = bytes_of_row(text, "VmRSS:");
    look_at_machine(w, &out->place[0], &free_swap);
    for (uint32_t i = 0; i < w->group_count; i++)
        look_at_group(&w->groups[i], out->place[0].full_us, free_swap, &out->place[1 + i]);
    out->at_ns = st_clock_ns();
}

/* --- the alarm --- */

static void raise_alarm(const struct st_watchdog *w, const struct st_watch_alarm *a)
{
    char text[ST_WATCH_SENTENCE_MAX], left[24], limit[24], why[96], held[96] = "", resident[24], planned[24], taken[24];
    const char *where = a->place == 0 ? "this machine" : w->groups[a->place - 1].name;

    if (a->killed)
        snprintf(why, sizeof(why), "the kernel has killed for memory there");
    else if (a->taken > 0)
        snprintf(why, sizeof(why), "%s a second beyond what is planned are taken there", st_size_text(taken, (uint64_t)a->taken));
    else
        snprintf(why, sizeof(why), "%.0f %% of the last %.0f s went into waiting for memory", a->waited * 100, a->seconds);
    if (a->resident_bytes != UNKNOWN && w->opts.planned_bytes > 0)
        snprintf(held, sizeof(held), "; this process holds %s of %s planned", st_size_text(resident, a->resident_bytes),
                 st_size_text(planned, w->opts.planned_bytes));
    snprintf(text, sizeof(text), "%s of %s of memory are left in %.200s, and %s%s", st_size_text(left, a->left_bytes),
             st_size_text(limit, a->limit_bytes), where, why, held);
    w->opts.alarm(w->opts.ctx, text);
}

/* Waits for the next look; false: it is over. */
static bool wait_for_next(struct st_watchdog *w)
{
    const uint64_t at_ns = st_clock_ns() + (w->opts.period_ns > 0 ? w->opts.period_ns : SECOND_NS);
    bool stop;

    pthread_mutex_lock(&w->lock);
    while (!w->stop && st_cond_wait(&w->change, &w->lock, at_ns))
        ;
    stop = w->stop;
    pthread_mutex_unlock(&w->lock);
    return !stop;
}

/* For tests of what an alarm leads to. */
static bool raised(const struct st_watch_look *look, struct st_watch_alarm *alarm)
{
    if (st_fault("watchdog.alarm", 0) == 0)
        return false;
    *alarm = (struct st_watch_alarm){.limit_bytes = look->place[0].limit_bytes,
                                     .left_bytes = look->place[0].left_bytes,
                                     .resident_bytes = look->resident_bytes,
                                     .killed = true};
    return true;
}

static void *watch(void *arg)
{
    struct st_watchdog *w = arg;
    struct st_watch_look now;
    struct st_watch_alarm alarm;

    while (wait_for_next(w)) {
        look(w, &now);
        if (st_watch_judge(&w->judge, &now, &alarm) || raised(&now, &alarm)) {
            raise_alarm(w, &alarm);
            break;
        }
    }
    return NULL;
}

/* --- starting and stopping --- */

static strata_status open_all(struct st_watchdog *w)
{
    const char *proc = w->opts.proc_root != NULL ? w->opts.proc_root : "/proc",
               *cgroup = w->opts.cgroup_root != NULL ? w->opts.cgroup_root : "/sys/fs/cgroup";
    char membership[PATH_MAX];

    w->status = st_kernel_text_open(proc, "self/status");
    w->memory = st_kernel_text_open(proc, "meminfo");
    w->vmstat = st_kernel_text_open(proc, "vmstat");
    w->psi = st_kernel_text_open(proc, "pressure/memory");
    if (snprintf(membership, sizeof(membership), "%s/self/cgroup", proc) < (int)sizeof(membership))
        st_cgroup_memory_groups(cgroup, membership, open_group, w);
    return w->lacks_names ? st_nomem(0) : st_pressure_open(&w->process, proc, cgroup);
}

strata_status st_watchdog_start(struct st_watchdog **out, const struct st_watchdog_opts *opts)
{
    struct st_watchdog *w = st_fault_refuses("watchdog.alloc") ? NULL : calloc(1, sizeof(*w));
    struct st_watch_alarm alarm;
    struct st_watch_look first;
    strata_status st;

    if (w == NULL)
        return st_nomem(sizeof(*w));
    w->opts = *opts;
    w->judge.planned_bytes = opts->planned_bytes;
    pthread_mutex_init(&w->lock, NULL);
    st_cond_init(&w->change);
    st = open_all(w);
    if (st == STRATA_OK) {
        look(w, &first);
        (void)st_watch_judge(&w->judge, &first, &alarm); /* nothing came before it */
        st = st_thread_start(&w->thread, "strata-memory", watch, w);
        w->running = st == STRATA_OK;
    }
    if (st != STRATA_OK) {
        st_watchdog_stop(w);
        return st;
    }
    *out = w;
    return STRATA_OK;
}

static void close_if_open(const int *files, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (files[i] >= 0)
            close(files[i]);
}

void st_watchdog_stop(struct st_watchdog *w)
{
    if (w == NULL)
        return;
    if (w->running) {
        pthread_mutex_lock(&w->lock);
        w->stop = true;
        pthread_cond_signal(&w->change);
        pthread_mutex_unlock(&w->lock);
        pthread_join(w->thread, NULL);
    }
    close_if_open((const int[]){w->status, w->memory, w->psi, w->vmstat}, 4);
    for (uint32_t i = 0; i < w->group_count; i++) {
        const struct group *g = &w->groups[i];

        close_if_open((const int[]){g->limit, g->high, g->used, g->stat, g->events, g->pressure, g->swap_limit, g->swap_used}, 8);
        free(g->name);
    }
    st_pressure_close(w->process);
    pthread_cond_destroy(&w->change);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

/* core/system/watchdog.c - looks at memory each second, and evaluates what it sees. */
#include "core/system/watchdog.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/size.h"
#include "core/system/clock.h"
#include "core/system/thread.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define SECOND_NS    UINT64_C(1000000000)
#define SHORT_NS     (3 * SECOND_NS)
#define SHORT_SHARE  0.5
#define FALL_SECONDS 10
#define MARGIN_PART  64u
#define MARGIN_MIN   (UINT64_C(32) << 20)
#define MARGIN_MAX   (UINT64_C(1) << 30)
#define UNKNOWN      ST_PRESSURE_UNKNOWN

/* --- evaluating --- */

/* What the plan leaves is what is left now, less what the process may still take. */
static uint64_t margin_of(const struct st_watch *j, const struct st_pressure_look *look, const struct st_pressure_place *p)
{
    const uint64_t resident = look->resident_bytes == UNKNOWN ? 0 : look->resident_bytes;
    const uint64_t to_come = j->planned_bytes > resident ? j->planned_bytes - resident : 0;
    const uint64_t spared = p->left_bytes > to_come ? (p->left_bytes - to_come) / 2 : 0;
    uint64_t margin = p->limit_bytes / MARGIN_PART;

    margin = margin < MARGIN_MIN ? MARGIN_MIN : margin > MARGIN_MAX ? MARGIN_MAX : margin;
    return spared >= margin ? margin : spared > margin / 8 ? spared : margin / 8;
}

/* The newest look that is at least so old; NULL: there is none. */
static const struct st_pressure_look *look_before(const struct st_watch *j, uint64_t now_ns, uint64_t age_ns)
{
    const uint64_t kept = j->look_count < ST_WATCH_LOOKS ? j->look_count : ST_WATCH_LOOKS;

    for (uint64_t back = 1; back <= kept; back++) {
        const struct st_pressure_look *look = &j->looks[(j->look_count - back) % ST_WATCH_LOOKS];

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
static double waited(const struct st_pressure_look *before, const struct st_pressure_look *now, uint32_t i)
{
    const double seconds = (double)(now->at_ns - before->at_ns) * 1e-9;
    const double full = share_of(before->place[i].full_us, now->place[i].full_us, 1e-6, seconds);

    return isnan(full) ? share_of(before->major_faults, now->major_faults, ST_PRESSURE_FAULT_SECONDS, seconds) : full;
}

/* Whether half of the last seconds was waiting; fills in the alarm's figures if so. */
static bool stands_still(const struct st_watch *j, const struct st_pressure_look *look, uint32_t i, struct st_watch_alarm *alarm)
{
    const struct st_pressure_look *before = look_before(j, look->at_ns, SHORT_NS);
    const double part = before != NULL ? waited(before, look, i) : (double)NAN;

    if (!(part >= SHORT_SHARE))
        return false;
    alarm->waited = part;
    alarm->seconds = (double)(look->at_ns - before->at_ns) * 1e-9;
    return true;
}

/* What is left of a place when this process has taken all that it has planned. */
static double spare(const struct st_watch *j, const struct st_pressure_look *look, uint32_t i)
{
    const uint64_t resident = look->resident_bytes;

    return (double)look->place[i].left_bytes - (j->planned_bytes > resident ? (double)(j->planned_bytes - resident) : 0);
}

/* Whether less is left at each look of the last seconds than at the one before, and soon nothing; fills in the pace if so. */
static bool falls(const struct st_watch *j, const struct st_pressure_look *look, uint32_t i, struct st_watch_alarm *alarm)
{
    const struct st_pressure_look *later = look, *before = look;
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

static bool evaluate_place(struct st_watch *j, const struct st_pressure_look *look, uint32_t i, struct st_watch_alarm *alarm)
{
    const struct st_pressure_place *p = &look->place[i];

    if (p->left_bytes == UNKNOWN || p->limit_bytes == UNKNOWN)
        return false;
    if (j->margin[i] == 0)
        j->margin[i] = margin_of(j, look, p);
    *alarm = (struct st_watch_alarm){
        .place = i, .limit_bytes = p->limit_bytes, .left_bytes = p->left_bytes, .resident_bytes = look->resident_bytes};
    return (p->left_bytes < j->margin[i] && falls(j, look, i, alarm)) ||
           (p->left_bytes < j->margin[i] / 4 && stands_still(j, look, i, alarm));
}

bool st_watch_evaluate(struct st_watch *j, const struct st_pressure_look *look, struct st_watch_alarm *alarm)
{
    bool found = false;

    for (uint32_t i = 0; i < ST_PRESSURE_PLACES_MAX; i++) { /* all of them: each has a margin */
        struct st_watch_alarm one;

        if (evaluate_place(j, look, i, &one) && !found) {
            *alarm = one;
            found = true;
        }
    }
    j->looks[j->look_count++ % ST_WATCH_LOOKS] = *look;
    return found;
}

struct st_watchdog {
    struct st_watchdog_opts opts;
    struct st_watch watch;

    pthread_t thread;
    bool running;
    pthread_mutex_t lock;  /* guards `stop` */
    pthread_cond_t change; /* of `stop`; monotonic clock */
    bool stop;
};

/* --- the alarm --- */

static void raise_alarm(const struct st_watchdog *w, const struct st_watch_alarm *a)
{
    char text[ST_WATCH_SENTENCE_MAX], left[24], limit[24], why[96], held[96] = "", resident[24], planned[24], taken[24];

    if (a->taken > 0)
        snprintf(why, sizeof(why), "%s a second beyond what is planned are taken there", st_size_text(taken, (uint64_t)a->taken));
    else
        snprintf(why, sizeof(why), "%.0f %% of the last %.0f s went into waiting for memory", a->waited * 100, a->seconds);
    if (a->resident_bytes != UNKNOWN && w->opts.planned_bytes > 0)
        snprintf(held, sizeof(held), "; this process holds %s of %s planned", st_size_text(resident, a->resident_bytes),
                 st_size_text(planned, w->opts.planned_bytes));
    snprintf(text, sizeof(text), "%s of %s of memory are left in %.200s, and %s%s", st_size_text(left, a->left_bytes),
             st_size_text(limit, a->limit_bytes), st_pressure_place_name(w->opts.pressure, a->place), why, held);
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
static bool raised(const struct st_pressure_look *look, struct st_watch_alarm *alarm)
{
    if (st_fault("watchdog.alarm", 0) == 0)
        return false;
    *alarm = (struct st_watch_alarm){.limit_bytes = look->place[0].limit_bytes,
                                     .left_bytes = look->place[0].left_bytes,
                                     .resident_bytes = look->resident_bytes,
                                     .waited = 1,
                                     .seconds = (double)(SHORT_NS / SECOND_NS)};
    return true;
}

static void *watch(void *arg)
{
    struct st_watchdog *w = arg;
    struct st_pressure_look now;
    struct st_watch_alarm alarm;

    while (wait_for_next(w)) {
        st_pressure_look(w->opts.pressure, &now);
        if (st_watch_evaluate(&w->watch, &now, &alarm) || raised(&now, &alarm)) {
            raise_alarm(w, &alarm);
            break;
        }
    }
    return NULL;
}

/* --- starting and stopping --- */

strata_status st_watchdog_start(struct st_watchdog **out, const struct st_watchdog_opts *opts)
{
    struct st_watchdog *w = st_fault_refuses("watchdog.alloc") ? NULL : calloc(1, sizeof(*w));
    struct st_watch_alarm alarm;
    struct st_pressure_look first;
    strata_status st;

    if (w == NULL)
        return st_nomem(sizeof(*w));
    w->opts = *opts;
    w->watch.planned_bytes = opts->planned_bytes;
    pthread_mutex_init(&w->lock, NULL);
    st_cond_init(&w->change);
    st_pressure_look(opts->pressure, &first);
    (void)st_watch_evaluate(&w->watch, &first, &alarm); /* nothing came before it */
    st = st_thread_start(&w->thread, "strata-memory", watch, w);
    w->running = st == STRATA_OK;
    if (st != STRATA_OK) {
        st_watchdog_stop(w);
        return st;
    }
    *out = w;
    return STRATA_OK;
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
    pthread_cond_destroy(&w->change);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

/* core/system/watchdog.h - is the kernel about to end this process for want of memory?
 *
 * A thread looks once a second at every place where memory can run out: the machine, and each control group of this process (both
 * versions).  st_watch_evaluate() decides and is a pure function of the looks.  Being near a limit is no danger: a run fills its
 * planned memory and stays there.  It is an alarm if in one place
 *
 *   - less than a quarter of the margin is left, and for half of the last 3 s every task there waited for memory, or
 *   - less than the margin is left, each look of the last 3 s found less than the one before, beyond what this process took of
 *     what it has planned, and at that pace nothing is left in 10 s.
 *
 * The first is the end where there is swap or page cache to drop; the second where there is none: memory that cannot be dropped
 * is not waited for, so that the kernel kills with no warning.  Slower standstills are the progress line's
 * (core/system/pressure.h).
 *
 * The margin is a 64th of the limit, 32 MiB to 1 GiB, but at most half of what the plan itself leaves, and at least an eighth of
 * that.  Waiting is the kernel's own account (PSI, "full"); without PSI it is this process's major faults at 100 us each.
 *
 * PSI's triggers are not used: without privileges their window is two seconds, so a look each second is earlier. */
#ifndef CORE_SYSTEM_WATCHDOG_H
#define CORE_SYSTEM_WATCHDOG_H

#include "core/system/pressure.h"

#define ST_WATCH_LOOKS        8u /* kept; more than three seconds of them */
#define ST_WATCH_SENTENCE_MAX 512u

/* Begin with zeros and `planned_bytes`. */
struct st_watch {
    uint64_t planned_bytes;                        /* memory of the process that the plan allows; 0: unknown */
    uint64_t margin[ST_PRESSURE_PLACES_MAX];       /* set by the first look */
    struct st_pressure_look looks[ST_WATCH_LOOKS]; /* a ring */
    uint64_t look_count;
};

struct st_watch_alarm {
    uint32_t place;
    uint64_t limit_bytes, left_bytes, resident_bytes;
    double waited;  /* part of the time */
    double taken;   /* bytes a second beyond the plan; 0: not the reason */
    double seconds; /* that it was looked at for */
};

/** Take a look into account.  True: it is an alarm, and *alarm says why. */
bool st_watch_evaluate(struct st_watch *watch, const struct st_pressure_look *look, struct st_watch_alarm *alarm);

struct st_watchdog;

struct st_watchdog_opts {
    const struct st_pressure *pressure; /* borrowed */
    uint64_t planned_bytes;             /* as in st_watch */
    /* Called at most once, on the watchdog's thread, with a sentence that is valid during the call; it must not stop the
     * watchdog. */
    void (*alarm)(void *ctx, const char *sentence);
    void *ctx;
    uint64_t period_ns; /* between looks; 0: a second */
};

/** Take the first look, and start the thread.  From then on nothing is opened or allocated.  E_NOMEM. */
strata_status st_watchdog_start(struct st_watchdog **out, const struct st_watchdog_opts *opts);
void st_watchdog_stop(struct st_watchdog *w); /* NULL is fine */

#endif

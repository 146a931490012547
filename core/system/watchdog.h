/* core/system/watchdog.h - is the kernel about to end this process for want of memory?
 *
 * A thread looks once a second at every place where memory can run out: the machine, and each control group of this process (both
 * versions).  st_watch_judge() decides and is a pure function of the looks.  Being near a limit is no danger: a run fills its
 * planned memory and stays there.  Danger is to be near it and to stand still for it, or to come nearer by what nobody has
 * planned: memory that cannot be dropped is not waited for, so without swap the kernel kills with no warning.  It is an alarm if
 * in one place
 *
 *   - less than the margin has been left for 10 s, and for 20 % of the last 10 s every task there waited for memory, or
 *   - less than a quarter of the margin is left, and it was half of the last 3 s, or
 *   - less than the margin is left, each look of the last 3 s found less than the one before, beyond what this process took of
 *     what it has planned, and at that pace nothing is left in 10 s, or
 *   - less than the margin is left, or was at the look before, and the kernel has killed for memory there since.
 *
 * Left is what remains below the limit (the lower of memory.max and memory.high; of the machine MemAvailable), with page cache
 * that can be dropped and free swap counted.  The margin is a 64th of the limit, 32 MiB to 1 GiB, but at most half of what the
 * plan itself leaves, and at least an eighth of that.  Waiting is the kernel's own account (PSI, "full"); without PSI it is this
 * process's major faults at 100 us each.
 *
 * PSI's triggers are not used: without privileges their window is two seconds, so a look each second is earlier. */
#ifndef CORE_SYSTEM_WATCHDOG_H
#define CORE_SYSTEM_WATCHDOG_H

#include "strata/status.h"
#include <stdbool.h>
#include <stdint.h>

#define ST_WATCH_UNKNOWN      UINT64_MAX
#define ST_WATCH_PLACES_MAX   9u  /* the machine, and the groups that are nearest */
#define ST_WATCH_LOOKS        16u /* kept; more than ten seconds of them */
#define ST_WATCH_SENTENCE_MAX 512u

/* Counters since boot; each may be ST_WATCH_UNKNOWN. */
struct st_watch_place {
    uint64_t limit_bytes, left_bytes; /* unknown: no limit there */
    uint64_t full_us;                 /* time in which all tasks of the place waited for memory */
    uint64_t killed;                  /* how often the kernel killed there for want of memory */
};

struct st_watch_look {
    uint64_t at_ns;
    uint64_t resident_bytes, major_faults;            /* of this process */
    struct st_watch_place place[ST_WATCH_PLACES_MAX]; /* [0]: the machine */
};

/* Begin with zeros and `planned_bytes`. */
struct st_watch_judge {
    uint64_t planned_bytes;                     /* memory of the process that the plan allows; 0: unknown */
    uint64_t margin[ST_WATCH_PLACES_MAX];       /* set by the first look */
    uint64_t low_since_ns[ST_WATCH_PLACES_MAX]; /* 0: more than the margin is left */
    uint64_t killed[ST_WATCH_PLACES_MAX];       /* one more than was last known; 0: nothing is */
    struct st_watch_look looks[ST_WATCH_LOOKS]; /* a ring */
    uint64_t look_count;
};

struct st_watch_alarm {
    uint32_t place;
    uint64_t limit_bytes, left_bytes, resident_bytes;
    double waited;  /* part of the time; NaN: unknown */
    double taken;   /* bytes a second beyond the plan; 0: not the reason */
    double seconds; /* that it was looked at for */
    bool killed;    /* the kernel has begun */
};

/** Take a look into account.  True: it is an alarm, and *alarm says why. */
bool st_watch_judge(struct st_watch_judge *judge, const struct st_watch_look *look, struct st_watch_alarm *alarm);

struct st_watchdog;

struct st_watchdog_opts {
    uint64_t planned_bytes; /* as in st_watch_judge */
    /* Called at most once, on the watchdog's thread, with a sentence that is valid during the call; it must not stop the
     * watchdog. */
    void (*alarm)(void *ctx, const char *sentence);
    void *ctx;
    const char *proc_root, *cgroup_root; /* as of st_pressure_open(); tests fake these */
    uint64_t period_ns;                  /* between looks; 0: a second */
};

/** Take the first look, and start the thread.  From then on nothing is opened or allocated.  E_NOMEM. */
strata_status st_watchdog_start(struct st_watchdog **out, const struct st_watchdog_opts *opts);
void st_watchdog_stop(struct st_watchdog *w); /* NULL is fine */

#endif

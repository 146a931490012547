/* core/system/pressure.h - what the kernel says of memory: samples of its counters, which tell whether memory pressure explains
 * lost time, and looks at each place where memory can run out, which the watchdog evaluates.
 *
 * What a system does not report (old kernels, containers, PSI switched off) is unknown, never an error.  Sampling
 * changes nothing, so any thread may; st_pressure_between is a pure function. */
#ifndef CORE_SYSTEM_PRESSURE_H
#define CORE_SYSTEM_PRESSURE_H

#include "strata/status.h"
#include <stdbool.h>
#include <stdint.h>

#define ST_PRESSURE_UNKNOWN       UINT64_MAX
#define ST_PRESSURE_SENTENCE_MAX  320u
#define ST_PRESSURE_PLACES_MAX    9u     /* the machine, and the groups that are nearest */
#define ST_PRESSURE_FAULT_SECONDS 100e-6 /* a 4 KiB read of an NVMe drive; other disks take longer */

struct st_pressure; /* the open files */

/* Counters since boot or since the process began, except swap_bytes; each may be ST_PRESSURE_UNKNOWN. */
struct st_pressure_sample {
    uint64_t major_faults;        /* of this process: kernel pages that had to come from a disk */
    uint64_t swap_bytes;          /* of this process, in swap now */
    uint64_t pages_in, pages_out; /* of the machine, from and to swap */
    uint64_t some_us, full_us;    /* PSI: time in which at least one task, or all of them, waited for memory */
    uint64_t group_limit_hits;    /* how often the control group hit one of its memory limits */
};

/* Left: what remains below the limit (the lower of memory.max and memory.high; of the machine MemAvailable), with page cache that
 * can be dropped and free swap counted.  Each may be ST_PRESSURE_UNKNOWN. */
struct st_pressure_place {
    uint64_t limit_bytes, left_bytes; /* unknown: no limit there */
    uint64_t full_us; /* time in which all tasks of the place waited for memory; of a group without PSI: the machine's */
};

struct st_pressure_look {
    uint64_t at_ns;
    uint64_t resident_bytes, major_faults;                  /* of this process */
    struct st_pressure_place place[ST_PRESSURE_PLACES_MAX]; /* [0]: the machine; then its groups, both versions */
};

enum st_pressure_scope { ST_PRESSURE_NO_PSI = 0, ST_PRESSURE_OF_MACHINE, ST_PRESSURE_OF_GROUP };

struct st_pressure_verdict {
    struct st_pressure_sample moved;         /* growth of the counters; swap_bytes: at the end */
    double waited_fraction;                  /* part of the interval spent waiting for memory; NaN: unknown */
    bool pressed;                            /* memory pressure explains lost time */
    char sentence[ST_PRESSURE_SENTENCE_MAX]; /* cause and remedy; "" unless pressed */
};

/** Open the files that exist, for the life of the sampler.
 *  @param proc_root    NULL: "/proc"; tests pass a fake tree with self/stat, self/status, self/cgroup, vmstat, meminfo,
 *                     pressure/memory
 *  @param cgroup_root  NULL: "/sys/fs/cgroup"; the PSI of this process's group is preferred to the machine's
 *  @return STRATA_OK or E_NOMEM. */
strata_status st_pressure_open(struct st_pressure **out, const char *proc_root, const char *cgroup_root);
void st_pressure_close(struct st_pressure *p); /* NULL is fine */

/** Cost: at most five preads of small files; opens and allocates nothing.  p NULL: everything unknown. */
void st_pressure_sample(const struct st_pressure *p, struct st_pressure_sample *out);

/** Cost: a pread of four files, and at most seven for each group; opens and allocates nothing. */
void st_pressure_look(const struct st_pressure *p, struct st_pressure_look *out);
/** "this machine", or a group's directory. */
const char *st_pressure_place_name(const struct st_pressure *p, uint32_t place);

/** Whether the PSI is the machine's or the control group's. */
enum st_pressure_scope st_pressure_scope(const struct st_pressure *p);

/** What happened between two samples, `seconds` apart.  Pressed: 5 % of the time or more went into waiting for memory (PSI;
 *  without PSI, or for kernel pages that come from swap, major faults at 100 us each), or ones of this process went to swap. */
void st_pressure_between(const struct st_pressure_sample *before, const struct st_pressure_sample *after, double seconds,
                         struct st_pressure_verdict *verdict);

#endif

/* core/system/pressure.h - does memory pressure explain lost time?  Samples the kernel's counters before and after.
 *
 * What a system does not report (old kernels, containers, PSI switched off) is unknown, never an error.  One thread per sampler;
 * st_pressure_between is a pure function. */
#ifndef CORE_SYSTEM_PRESSURE_H
#define CORE_SYSTEM_PRESSURE_H

#include "strata/status.h"
#include <stdbool.h>
#include <stdint.h>

#define ST_PRESSURE_UNKNOWN      UINT64_MAX
#define ST_PRESSURE_SENTENCE_MAX 320u

struct st_pressure; /* the open files */

/* Counters since boot or since the process began, except swap_bytes; each may be ST_PRESSURE_UNKNOWN. */
struct st_pressure_sample {
    uint64_t major_faults;        /* of this process: kernel pages that had to come from a disk */
    uint64_t swap_bytes;          /* of this process, in swap now */
    uint64_t pages_in, pages_out; /* of the machine, from and to swap */
    uint64_t some_us, full_us;    /* PSI: time in which at least one task, or all of them, waited for memory */
    uint64_t group_limit_hits;    /* how often the control group hit one of its memory limits */
};

enum st_pressure_scope { ST_PRESSURE_NO_PSI = 0, ST_PRESSURE_OF_MACHINE, ST_PRESSURE_OF_GROUP };

struct st_pressure_verdict {
    struct st_pressure_sample moved;         /* growth of the counters; swap_bytes: at the end */
    double waited_fraction;                  /* part of the interval spent waiting for memory; NaN: unknown */
    bool pressed;                            /* memory pressure explains lost time */
    char sentence[ST_PRESSURE_SENTENCE_MAX]; /* cause and remedy; "" unless pressed */
};

/** Open the files that exist, for the life of the sampler.
 *  @param proc_root    NULL: "/proc"; tests pass a fake tree with self/stat, self/status, self/cgroup, vmstat, pressure/memory
 *  @param cgroup_root  NULL: "/sys/fs/cgroup"; the PSI of this process's group is preferred to the machine's
 *  @return STRATA_OK or E_NOMEM. */
strata_status st_pressure_open(struct st_pressure **out, const char *proc_root, const char *cgroup_root);
void st_pressure_close(struct st_pressure *p); /* NULL is fine */

/** Cost: at most five preads of small files; opens and allocates nothing.  p NULL: everything unknown. */
void st_pressure_sample(const struct st_pressure *p, struct st_pressure_sample *out);

/** Whether the PSI is the machine's or the control group's. */
enum st_pressure_scope st_pressure_scope(const struct st_pressure *p);

/** What happened between two samples, `seconds` apart.  Pressed: 5 % of the time or more went into waiting for memory (PSI;
 *  without PSI, or for kernel pages that come from swap, major faults at 100 us each), or ones of this process went to swap. */
void st_pressure_between(const struct st_pressure_sample *before, const struct st_pressure_sample *after, double seconds,
                         struct st_pressure_verdict *verdict);

#endif

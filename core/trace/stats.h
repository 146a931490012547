/* core/trace/stats.h - medians and process memory figures. */
#ifndef CORE_TRACE_STATS_H
#define CORE_TRACE_STATS_H

#include <stddef.h>
#include <stdint.h>

/** Median of values[0..count-1]; reorders them.  0 for none. */
double st_stats_median(double *values, size_t count);
uint64_t st_stats_rss_bytes(void);      /* resident set now (/proc/self/statm) */
uint64_t st_stats_rss_peak_bytes(void); /* VmHWM */

#endif

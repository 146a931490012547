/* nvme/measure/latency.h - a histogram of latencies: fixed size, two additions per sample, percentiles within 1 %.
 *
 * Values below 128 ns have one bucket each.  Above that, every power of two is cut into 128 equal buckets, so a bucket is at most
 * 1/128 as wide as its values; a percentile is the middle of its bucket, at most 0.4 % off the sample.  Mean and maximum are
 * exact.  One thread. */
#ifndef NVME_MEASURE_LATENCY_H
#define NVME_MEASURE_LATENCY_H

#include <stdint.h>

#define ST_LATENCY_SUB_BITS 7u  /* 128 buckets per power of two */
#define ST_LATENCY_BITS     40u /* the last bucket takes everything from 2^40 ns (18 minutes) up */
#define ST_LATENCY_BUCKETS  ((ST_LATENCY_BITS - ST_LATENCY_SUB_BITS + 1) << ST_LATENCY_SUB_BITS)

struct st_latency {
    uint64_t count, sum_ns, max_ns;
    uint64_t buckets[ST_LATENCY_BUCKETS];
};

void st_latency_add(struct st_latency *h, uint64_t ns);
/** The value that this fraction of the samples does not exceed; 0 without samples.  @param fraction  0..1 */
double st_latency_percentile(const struct st_latency *h, double fraction);
double st_latency_mean(const struct st_latency *h); /* 0 without samples */

#endif

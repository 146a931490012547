/* nvme/measure/latency.c - see nvme/measure/latency.h. */
#include "nvme/measure/latency.h"

#include <assert.h>
#include <math.h>

#define SUB_COUNT (UINT64_C(1) << ST_LATENCY_SUB_BITS)

static uint32_t bucket_of(uint64_t ns)
{
    uint32_t top, octave;

    if (ns < SUB_COUNT)
        return (uint32_t)ns;
    top = 63u - (uint32_t)__builtin_clzll(ns);
    if (top >= ST_LATENCY_BITS)
        return ST_LATENCY_BUCKETS - 1;
    octave = top - ST_LATENCY_SUB_BITS; /* 0: [128, 256), one bucket per value */
    return (uint32_t)(((octave + 1) << ST_LATENCY_SUB_BITS) + ((ns >> octave) - SUB_COUNT));
}

static double middle_of(uint32_t bucket)
{
    const uint32_t octave = bucket >> ST_LATENCY_SUB_BITS;
    uint64_t least, width;

    if (octave <= 1)
        return bucket;
    width = UINT64_C(1) << (octave - 1);
    least = ((bucket & (SUB_COUNT - 1)) + SUB_COUNT) * width;
    return (double)least + (double)(width - 1) / 2;
}

void st_latency_add(struct st_latency *h, uint64_t ns)
{
    h->buckets[bucket_of(ns)]++;
    h->count++;
    h->sum_ns += ns;
    if (ns > h->max_ns)
        h->max_ns = ns;
}

double st_latency_percentile(const struct st_latency *h, double fraction)
{
    uint64_t rank, seen = 0;

    assert(fraction >= 0 && fraction <= 1);
    if (h->count == 0)
        return 0;
    rank = (uint64_t)ceil(fraction * (double)h->count);
    rank = rank < 1 ? 1 : rank;
    for (uint32_t i = 0; i < ST_LATENCY_BUCKETS; i++)
        if ((seen += h->buckets[i]) >= rank)
            return i == ST_LATENCY_BUCKETS - 1 || middle_of(i) > (double)h->max_ns ? (double)h->max_ns : middle_of(i);
    return (double)h->max_ns;
}

double st_latency_mean(const struct st_latency *h)
{
    return h->count == 0 ? 0 : (double)h->sum_ns / (double)h->count;
}

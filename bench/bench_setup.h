/* bench/bench_setup.h - shared by the benches of `strata bench`: workers and progress. */
#ifndef BENCH_BENCH_SETUP_H
#define BENCH_BENCH_SETUP_H

#include "bench/bench.h"
#include "core/system/topology.h"
#include "core/system/workers.h"

struct bench_setup {
    const struct bench_opts *opts; /* borrowed */
    struct st_topology *topology;
    struct st_workers *workers;
    uint32_t threads, repeats;
};

/** @param repeats  used if the options name none. */
strata_status bench_setup_open(struct bench_setup *s, const struct bench_opts *opts, uint32_t repeats);
void bench_setup_close(struct bench_setup *s); /* half-open and zeroed are fine */

/** E_NOFIT if `bytes` more bytes are not available; `remedy` ends the sentence. */
strata_status bench_check_memory(const struct bench_setup *s, uint64_t bytes, const char *remedy);

/** Rewrite the progress line; NULL clears it. */
void bench_progress(const struct bench_setup *s, const char *what, uint32_t repeat);

double bench_least(const double *values, uint32_t count);
/** Median; does not reorder the values. */
double bench_median(const double *values, uint32_t count);

#endif

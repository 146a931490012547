/* nvme/measure/tune.h - which request size, queue depth and method a drive needs: a search over a measuring function.
 *
 * Pure: no I/O, no clock, no threads.  A drive's rate rises with the bytes in flight and then stays flat; the knee is the
 * cheapest point within `tolerance` of the best: fewest bytes in flight (memory, latency), then largest requests (processor). */
#ifndef NVME_MEASURE_TUNE_H
#define NVME_MEASURE_TUNE_H

#include "strata/status.h"
#include <stdbool.h>
#include <stdint.h>

#define ST_TUNE_POINTS_MAX  96u
#define ST_TUNE_SAMPLES_MAX 8u
#define ST_TUNE_SIZES_MAX   16u

/* Why a point was measured. */
enum st_tune_stage { ST_TUNE_DEPTH = 0, ST_TUNE_BLOCK, ST_TUNE_NEAR, ST_TUNE_METHOD };

struct st_tune_point {
    uint32_t method; /* the caller's index */
    uint32_t block_bytes, queue_depth;
    enum st_tune_stage stage;
    double rate;           /* bytes per second, from the one sample during the search */
    uint32_t sample_count; /* samples in the last rounds; 0: it was not among them */
    double samples[ST_TUNE_SAMPLES_MAX];
    double final_rate; /* median of those samples; 0: none */
};

/** Measures one short run, in bytes per second.  E_NOSYS: this machine has not what the point takes, which is left out.  Any
 * other status but OK ends the search, which returns it. */
typedef strata_status st_tune_measure_fn(void *ctx, uint32_t method, uint32_t block_bytes, uint32_t queue_depth, double *rate);

struct st_tune_opts {
    const uint32_t *blocks; /* request sizes, ascending; [block_count], 1..ST_TUNE_SIZES_MAX */
    uint32_t block_count;
    const uint32_t *depths; /* queue depths, ascending; [depth_count], 1..ST_TUNE_SIZES_MAX */
    uint32_t depth_count;
    uint32_t method_count;    /* methods are 0..count-1, the preferred one first; at least 1 */
    uint32_t first_block;     /* index of the block size for the walk over depths */
    uint64_t bytes_in_flight; /* limit of block x depth; points above it are not measured */
    double tolerance;         /* rates this close count as equal: 0.03 is 3 % of the best */
    uint32_t rounds;          /* samples of each finalist, taken in turns at the end; 1..ST_TUNE_SAMPLES_MAX */
    st_tune_measure_fn *measure;
    void *ctx;
};

struct st_tune_result {
    struct st_tune_point points[ST_TUNE_POINTS_MAX];
    uint32_t point_count;
    uint32_t knee;    /* index of the point to use; like `fastest`, by the last rounds */
    uint32_t fastest; /* index of the highest final rate */
};

/**
 * Walks depths at the first block size until two steps in a row gain nothing, then block sizes at the bytes in flight found, then
 * the neighbours of the knee, then the other methods there.  A drive's rate drifts, so the finalists are measured again at the
 * end, in turns, and only those samples decide.  Another method is chosen only if it is faster by more than the tolerance.
 *
 * @return STRATA_OK; E_INVAL if no point is within bytes_in_flight; E_NOSYS if none could be measured; else the status that
 * measure() returned.
 */
strata_status st_tune_search(struct st_tune_result *out, const struct st_tune_opts *opts);

#endif

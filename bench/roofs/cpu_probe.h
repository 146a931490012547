/* bench/roofs/cpu_probe.h - loops that measure what a processor can do at best: streams over the planes of a layout, and division
 * with square root.  One table per instruction set, so that a roof is not lower than what stands below it. */
#ifndef BENCH_ROOFS_CPU_PROBE_H
#define BENCH_ROOFS_CPU_PROBE_H

#include "bench/roofs/layouts.h"

#define BENCH_STREAM_TURN  32u  /* elements of a stream's turn: one or two lines of each plane */
#define BENCH_DIVIDE_ELEMS 128u /* eight registers of 16 lanes: the results of one do not wait for another's */

/** One integer operation on every word of the planes that are written, elements from..to-1, both multiples of ST_NORM_BLOCK:
 *  the reads and writes of an update.  Each word changes only in its last bit and back again by the next pass.
 *  @param prefetch  fetch ahead as the kernels do.
 *  @return a number that depends on all that is only read. */
typedef uint64_t bench_stream_fn(void *const planes[BENCH_PLANE_COUNT], enum bench_layout layout, bool prefetch, size_t from,
                                 size_t to);
/** One square root and one division for each value, `rounds` times.  @param values  [BENCH_DIVIDE_ELEMS], above 0. */
typedef void bench_divide_fn(float *values, uint64_t rounds);

struct bench_probe {
    const char *name; /* as the table of kernels with these instructions */
    uint32_t needs;   /* st_cpu_feature bits */
    bench_stream_fn *stream;
    bench_divide_fn *divide;
};

/** The best that works here. */
const struct bench_probe *bench_probe_best(void);
/** The one with these kernels' instructions; NULL: none. */
const struct bench_probe *bench_probe_find(const char *name);

extern bench_stream_fn bench_stream_base, bench_stream_avx2, bench_stream_avx512;
extern bench_divide_fn bench_divide_base, bench_divide_avx2, bench_divide_avx512;

#endif

/* core/base/rng_internal.h - normal deviates of whole counters, once per instruction set; for rng*.c and tests. */
#ifndef CORE_BASE_RNG_INTERNAL_H
#define CORE_BASE_RNG_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#define ST_RNG_PHILOX_ROUNDS 10

/* Writes the four samples of each counter from `index` on, for the first counters of `blocks` that fill its vectors; returns how
 * many it did.  Every variant gives the bits of the scalar one, which does them all. */
typedef size_t st_rng_normal_fn(float *out, size_t blocks, uint64_t seed, uint64_t stream, uint64_t index, float std);

st_rng_normal_fn st_rng_normal_scalar, st_rng_normal_avx2, st_rng_normal_avx512;

/* st_rng_normal() by one variant. */
void st_rng_normal_by(st_rng_normal_fn *fill, float *out, size_t count, uint64_t seed, uint64_t stream, uint64_t first,
                      float std);

#endif

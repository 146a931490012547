/* core/base/rng.h - counter-based random numbers (Philox4x32-10): value i of stream (seed, key) is a function,
 * so any part of a tensor can be made anywhere, in any order, with the same bits on every machine.
 * Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. */
#ifndef CORE_BASE_RNG_H
#define CORE_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

/** One Philox4x32-10 block: out[4] from a 128-bit counter (index, key_hi) and a 64-bit seed. */
void st_rng_block(uint32_t out[4], uint64_t seed, uint64_t stream, uint64_t index);
/** 64 random bits at position `index`. */
uint64_t st_rng_u64(uint64_t seed, uint64_t stream, uint64_t index);
/** out[i] = mean + std * N(0,1) sample number (first + i); own log/cos polynomials or integer-exact method,
 *  so that the bits do not depend on libm. */
void st_rng_normal(float *out, size_t count, uint64_t seed, uint64_t stream, uint64_t first, float std);
/** out[i] = sample number (first + i) of U(-range, range), one of 2^24 values. */
void st_rng_uniform(float *out, size_t count, uint64_t seed, uint64_t stream, uint64_t first, float range);
/** Position of `index` in a seeded permutation of 0..n-1 (cycle-walking Feistel). */
uint64_t st_rng_permute(uint64_t index, uint64_t n, uint64_t seed, uint64_t stream);

#endif

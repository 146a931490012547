/* kernels/isa/stream.h - how the vector kernels stream through several planes at once. */
#ifndef KERNELS_ISA_STREAM_H
#define KERNELS_ISA_STREAM_H

#include <stddef.h>
#include <stdint.h>

/* Elements per turn of a streaming loop: eight consecutive lines of a 4-byte plane, so that the memory stays on one DRAM row for
 * a while (with two lines an fp32 AdamW takes 6 to 9 % longer on Zen 4, a split one the same time). */
#define ST_STREAM_TURN 128u
/* How far ahead every stream is prefetched, into the second-level cache.  The hardware prefetcher follows few streams, and none
 * across kernel pages (prefetching took an Adam step over a split master from 0.74 to 0.88 of the rate of a stream with the same
 * reads and writes on Emerald Rapids).  Prefetching that far into the first level hurts: planes start at kernel page boundaries,
 * so the lines 4 KiB ahead fall into the sets in use (Zen 4, one thread: 0.67 against 0.60 ns per element, 0.88 against 0.54 in
 * fp32).  strata bench optim. */
#define ST_STREAM_AHEAD_BYTES 4096u

/* The other way: a line or two of each plane at a time, less far ahead and into the first level.  On Emerald Rapids that takes a
 * split AdamW from 0.87 to 1.00 of the rate of a stream with the same reads and writes, and Lion from 0.78 to 0.93; bursts fill
 * all of its fill buffers at once.  On Zen 4 bursts are faster.  strata bench optim measures both. */
#define ST_EVEN_TURN        32u
#define ST_EVEN_AHEAD_BYTES 2048u

/** Prefetch the lines of the plane at `at` that a later turn needs.  Addresses may be past its end: a prefetch never faults. */
static inline void st_stream_prefetch(const void *at, size_t elem_bytes)
{
    const uintptr_t ahead = (uintptr_t)at + ST_STREAM_AHEAD_BYTES;

    for (size_t line = 0; line < ST_STREAM_TURN * elem_bytes; line += 64)
        __builtin_prefetch((const void *)(ahead + line), 0, 2); /* for reading, into the second level */
}

static inline void st_stream_prefetch_even(const void *at, size_t elem_bytes)
{
    const uintptr_t ahead = (uintptr_t)at + ST_EVEN_AHEAD_BYTES;

    for (size_t line = 0; line < ST_EVEN_TURN * elem_bytes; line += 64)
        __builtin_prefetch((const void *)(ahead + line), 0, 3); /* for reading, into the first level */
}

/** Address of element i of an array with elements of elem_bytes. */
static inline const void *st_stream_at(const void *base, size_t elem_bytes, size_t i)
{
    return (const char *)base + elem_bytes * i;
}

#endif

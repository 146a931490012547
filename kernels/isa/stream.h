/* kernels/isa/stream.h - how the vector kernels walk several planes at once. */
#ifndef KERNELS_ISA_STREAM_H
#define KERNELS_ISA_STREAM_H

#include <stddef.h>
#include <stdint.h>

/* Elements per turn of a streaming loop: eight lines of a 4-byte plane in a row, so that memory stays on a page of its own for
 * a while (two lines: an fp32 AdamW takes 6 to 9 % longer on Zen 4, a split one as long). */
#define ST_STREAM_TURN 128u
/* How far ahead every stream is fetched, and into the second-level cache: the hardware follows few streams and none across
 * pages (an Adam step over a split master went from 0.74 to 0.88 of a stream with the same reads and writes on Emerald
 * Rapids).  Into the first level the same distance hurts: planes start at page boundaries, so the lines 4 KiB ahead fall in
 * the sets in use (Zen 4, one thread: 0.67 against 0.60 ns per element, 0.88 against 0.54 in fp32).  strata bench optim. */
#define ST_STREAM_AHEAD_BYTES 4096u

/** Fetch the lines that a later turn needs of the plane at `at`.  May name addresses past its end: a prefetch never faults. */
static inline void st_stream_prefetch(const void *at, size_t elem_bytes)
{
    const uintptr_t ahead = (uintptr_t)at + ST_STREAM_AHEAD_BYTES;

    for (size_t line = 0; line < ST_STREAM_TURN * elem_bytes; line += 64)
        __builtin_prefetch((const void *)(ahead + line), 0, 2); /* to be read; the second level */
}

/** Address of element i of an array with elements of elem_bytes. */
static inline const void *st_stream_at(const void *base, size_t elem_bytes, size_t i)
{
    return (const char *)base + elem_bytes * i;
}

#endif

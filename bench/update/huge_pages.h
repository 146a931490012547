/* bench/update/huge_pages.h - how much of a piece of memory is actually on huge pages. */
#ifndef BENCH_UPDATE_HUGE_PAGES_H
#define BENCH_UPDATE_HUGE_PAGES_H

#include <stdint.h>

/** Fraction of [base, base + bytes) on huge pages, from /proc/self/smaps; NaN if it does not say. */
double bench_huge_fraction(const void *base, uint64_t bytes);

#endif

/* tests/common/heap_use.h - what malloc has given out, so that a leak shows in builds without a sanitizer. */
#ifndef TESTS_COMMON_HEAP_USE_H
#define TESTS_COMMON_HEAP_USE_H

#include <stdint.h>

/** Bytes that malloc has given out, to all threads. */
uint64_t heap_used(void);
/** Bytes by which that grows while `once` runs `times` times, after a few that warm up what stays for good. */
int64_t heap_growth(void (*once)(void *ctx), void *ctx, uint32_t times);

#endif

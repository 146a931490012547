/* core/clock.h - monotonic time. */
#ifndef CORE_CLOCK_H
#define CORE_CLOCK_H

#include <stdint.h>

uint64_t st_clock_ns(void); /* CLOCK_MONOTONIC, nanoseconds */

#endif

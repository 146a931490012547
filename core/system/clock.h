/* core/system/clock.h - monotonic time. */
#ifndef CORE_SYSTEM_CLOCK_H
#define CORE_SYSTEM_CLOCK_H

#include <stdint.h>

uint64_t st_clock_ns(void); /* CLOCK_MONOTONIC, nanoseconds */
/** Sleep until st_clock_ns() is at least `ns`; at once if it already is. */
void st_clock_sleep_until(uint64_t ns);

#endif

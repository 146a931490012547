/* tests/cli/chance.h - numbers and instants of chance, for tests of what may come at any instant: these alone sleep. */
#ifndef TESTS_CLI_CHANCE_H
#define TESTS_CLI_CHANCE_H

#include <stdint.h>

/** The numbers that follow; without it those of seed 1. */
void chance_seed(uint64_t seed);
/** At least 0, less than limit. */
uint32_t chance_below(uint32_t limit);
/** Sleep for less than so many microseconds. */
void chance_sleep_us(uint32_t limit);

#endif

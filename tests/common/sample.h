/* tests/common/sample.h - how much a long test does: a sample that takes every path once, or, with the argument --all, all of it
 * (`make matrix`). */
#ifndef TESTS_COMMON_SAMPLE_H
#define TESTS_COMMON_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

/** From main(); without it everything is taken. */
void sample_init(int argc, char **argv);
bool sample_is_all(void);
/** Whether case number `index` is one of a sample of every `every`-th, beginning with number `first`. */
bool sample_takes(uint64_t index, uint64_t every, uint64_t first);

#endif

/* tests/fuzz/fuzz.h - what every fuzz target defines; libFuzzer or replay.c calls it. */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/** One input; aborts if it breaks an invariant.  Always returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif

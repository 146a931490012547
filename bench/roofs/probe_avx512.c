/* bench/roofs/probe_avx512.c - the probes for AVX-512. */
#define PROBE(name) name##_avx512
#include "bench/roofs/probe.inc"

/* bench/roofs/cpu_probe_avx512.c - the probes for AVX-512. */
#define PROBE(name) name##_avx512
#include "bench/roofs/cpu_probe.inc"

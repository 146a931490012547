/* bench/roofs/cpu_probe_avx2.c - the probes for AVX2. */
#define PROBE(name) name##_avx2
#include "bench/roofs/cpu_probe.inc"

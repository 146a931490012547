/* bench/roofs/cpu_probe_base.c - the probes for the instructions that every processor has; on aarch64 that includes NEON. */
#define PROBE(name) name##_base
#include "bench/roofs/cpu_probe.inc"

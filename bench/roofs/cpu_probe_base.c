/* bench/roofs/cpu_probe_base.c - the probes for what every processor has; on aarch64 that is NEON. */
#define PROBE(name) name##_base
#include "bench/roofs/cpu_probe.inc"

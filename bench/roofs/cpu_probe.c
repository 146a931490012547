/* bench/roofs/cpu_probe.c - the tables of probes, best first. */
#include "bench/roofs/cpu_probe.h"

#include "core/base/cpu.h"

#include <string.h>

#if defined(__aarch64__)
#define BASE_NAME "neon" /* always there */
#else
#define BASE_NAME "base"
#endif

static const struct bench_probe probes[] = {
#if defined(__x86_64__)
    {"avx512", ST_CPU_AVX2_FMA | ST_CPU_AVX512, bench_stream_avx512, bench_divide_avx512},
    {"avx2", ST_CPU_AVX2_FMA, bench_stream_avx2, bench_divide_avx2},
#endif
    {BASE_NAME, 0, bench_stream_base, bench_divide_base},
};
#define PROBE_COUNT (sizeof(probes) / sizeof(probes[0]))

static bool usable(const struct bench_probe *probe)
{
    return (probe->needs & ~st_cpu_features()) == 0;
}

const struct bench_probe *bench_probe_best(void)
{
    size_t i = 0;

    while (!usable(&probes[i]))
        i++;
    return &probes[i];
}

const struct bench_probe *bench_probe_find(const char *name)
{
    for (size_t i = 0; i < PROBE_COUNT; i++)
        if (usable(&probes[i]) && strcmp(probes[i].name, name) == 0)
            return &probes[i];
    return NULL;
}

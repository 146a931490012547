/* core/base/cpu.h - instruction sets this processor and kernel let us use. */
#ifndef CORE_BASE_CPU_H
#define CORE_BASE_CPU_H

#include <stdint.h>

enum st_cpu_feature {
    ST_CPU_AVX2_FMA = 1u << 0, /* AVX2, FMA and F16C */
    ST_CPU_AVX512 = 1u << 1,   /* F, BW, VL, DQ */
    ST_CPU_AVX512_BF16 = 1u << 2,
    ST_CPU_AMX_BF16 = 1u << 3,
    ST_CPU_NEON = 1u << 4,
};

/** Bit set of st_cpu_feature; computed once. */
uint32_t st_cpu_features(void);

#endif

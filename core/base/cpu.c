/* core/base/cpu.c - which instruction sets the processor has and the kernel saves the registers of (the compiler's model checks
 * both).  Any thread. */
#include "core/base/cpu.h"

#include <stdatomic.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define CPU_KNOWN (1u << 31) /* set once detected, so that "no features" is remembered, too */

#if defined(__x86_64__)
#define LEAF1_ECX_F16C     (1u << 29) /* Intel SDM volume 2, CPUID */
#define LEAF7_EDX_AMX_BF16 (1u << 22)
#define XCR0_TILES         (3u << 17)

/* For the feature that not every compiler knows by name. */
static uint32_t cpu_detect_by_cpuid(void)
{
    uint32_t features = 0, eax, ebx, ecx, edx, xcr0, xcr0_high;

    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & LEAF1_ECX_F16C) != 0 && __builtin_cpu_supports("avx2") &&
        __builtin_cpu_supports("fma"))
        features |= ST_CPU_AVX2_FMA;
    if (!__builtin_cpu_supports("avx512f") || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx))
        return features;
    __asm__("xgetbv" : "=a"(xcr0), "=d"(xcr0_high) : "c"(0));
    if ((edx & LEAF7_EDX_AMX_BF16) != 0 && (xcr0 & XCR0_TILES) == XCR0_TILES)
        features |= ST_CPU_AMX_BF16;
    return features;
}

static uint32_t cpu_detect(void)
{
    uint32_t features;

    __builtin_cpu_init();
    features = cpu_detect_by_cpuid();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        features |= ST_CPU_AVX512;
    if (__builtin_cpu_supports("avx512bf16"))
        features |= ST_CPU_AVX512_BF16;
    return features;
}
#elif defined(__aarch64__)
static uint32_t cpu_detect(void)
{
    return ST_CPU_NEON; /* part of the base architecture */
}
#else
static uint32_t cpu_detect(void)
{
    return 0;
}
#endif

uint32_t st_cpu_features(void)
{
    static _Atomic uint32_t cached; /* threads that race here store the same value */
    uint32_t features = atomic_load_explicit(&cached, memory_order_relaxed);

    if (features == 0) {
        features = cpu_detect() | CPU_KNOWN;
        atomic_store_explicit(&cached, features, memory_order_relaxed);
    }
    return features & ~CPU_KNOWN;
}

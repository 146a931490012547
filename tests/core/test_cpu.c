/* tests/core/test_cpu.c - features agree with /proc/cpuinfo and do not change. */
#include "core/base/cpu.h"
#include "tests/common/test.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* True if the "flags" line of the first processor has the word. */
static bool cpuinfo_has(const char *flag)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    size_t length = strlen(flag), capacity = 0;
    char *line = NULL;
    bool found = false;

    assert_non_null(file);
    while (getline(&line, &capacity, file) > 0) {
        if (strncmp(line, "flags", 5) != 0)
            continue;
        for (char *at = line; (at = strstr(at, flag)) != NULL; at += length)
            if (at[-1] == ' ' && (at[length] == ' ' || at[length] == '\n'))
                found = true;
        break;
    }
    free(line);
    fclose(file);
    return found;
}

TEST(test_features_match_cpuinfo)
{
    uint32_t features = st_cpu_features();

    assert_int_equal(st_cpu_features(), features);
#if defined(__x86_64__)
    assert_int_equal((features & ST_CPU_AVX2_FMA) != 0, cpuinfo_has("avx2") && cpuinfo_has("fma") && cpuinfo_has("f16c"));
    assert_int_equal((features & ST_CPU_AVX512) != 0,
                     cpuinfo_has("avx512f") && cpuinfo_has("avx512bw") && cpuinfo_has("avx512vl") && cpuinfo_has("avx512dq"));
    assert_int_equal((features & ST_CPU_AVX512_BF16) != 0, cpuinfo_has("avx512_bf16"));
    assert_int_equal((features & ST_CPU_AMX_BF16) != 0, cpuinfo_has("amx_bf16"));
    assert_int_equal(features & ST_CPU_NEON, 0);
#else
    (void)cpuinfo_has;
#endif
}

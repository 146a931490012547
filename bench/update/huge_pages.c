/* bench/update/huge_pages.c - /proc/self/smaps: it has a line with the range of each mapping, followed by its figures. */
#include "bench/update/huge_pages.h"
#include "core/system/file.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>

double bench_huge_fraction(const void *base, uint64_t bytes)
{
    FILE *const file = st_kernel_file_stream("/proc/self/smaps");
    const uint64_t first = (uintptr_t)base, end = first + bytes;
    uint64_t from, to, kib, huge = 0;
    bool inside = false, seen = false;
    char line[512];

    if (file == NULL)
        return NAN;
    while (fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &from, &to) == 2) {
            inside = from < end && to > first;
        } else if (inside && sscanf(line, "AnonHugePages: %" SCNu64 " kB", &kib) == 1) {
            huge += kib * 1024;
            seen = true;
        }
    }
    fclose(file);
    if (!seen || bytes == 0)
        return NAN;
    return huge < bytes ? (double)huge / (double)bytes : 1;
}

/* core/trace/stats.c - medians, and what the kernel says about this process's memory.
 *
 * The two /proc files are opened once and stay open: a running step opens nothing. */
#include "core/trace/stats.h"
#include "core/base/fault.h"
#include "core/system/file.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_once_t proc_once = PTHREAD_ONCE_INIT;
static int proc_statm = -1, proc_status = -1; /* written once */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double st_stats_median(double *values, size_t count)
{
    if (count == 0)
        return 0;
    qsort(values, count, sizeof(values[0]), compare_doubles);
    if (count % 2 == 1)
        return values[count / 2];
    return values[count / 2 - 1] / 2 + values[count / 2] / 2;
}

static void proc_open(void)
{
    proc_statm = st_kernel_file_open("/proc/self/statm");
    proc_status = st_kernel_file_open("/proc/self/status");
}

/* Reads the file from its start, as text; "" if it cannot be read. */
static void proc_read(const int *fd, char *text, size_t size)
{
    ssize_t got;

    pthread_once(&proc_once, proc_open);
    got = st_fault_refuses("kernel.read") ? -1 : pread(*fd, text, size - 1, 0);
    text[got > 0 ? got : 0] = '\0';
}

uint64_t st_stats_rss_bytes(void)
{
    char text[256];
    const char *resident;

    proc_read(&proc_statm, text, sizeof(text));
    resident = strchr(text, ' '); /* "size resident shared ..." in kernel pages */
    return resident != NULL ? strtoull(resident, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

uint64_t st_stats_rss_peak_bytes(void)
{
    char text[4096];
    const char *peak;

    proc_read(&proc_status, text, sizeof(text));
    peak = strstr(text, "VmHWM:");
    return peak != NULL ? strtoull(peak + strlen("VmHWM:"), NULL, 10) * 1024 : 0;
}

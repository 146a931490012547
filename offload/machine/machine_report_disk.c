/* offload/machine/machine_report_disk.c - the device under a directory, whether the operations of a run work there, and what to
 * change. */
#include "core/base/fault.h"
#include "core/system/arena.h"
#include "core/system/file.h"
#include "nvme/method/direct.h"
#include "nvme/method/io.h"
#include "offload/machine/machine_report.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define BLOCK_BYTES     4096u
#define USUAL_BYTES     (UINT64_C(32) << 20) /* in flight by default: 32 requests of 1 MiB */
#define REQUEST_KIB     1024u                /* the default request */
#define QUEUE_LEAST     32u                  /* the default depth */
#define PATH_BYTES      512u
#define ATTRIBUTE_BYTES 256u

/* --- /sys --- */

/* First line of a file, without the newline; "" if there is no such file. */
static void read_line(char *out, size_t size, const char *directory, const char *name)
{
    char path[PATH_BYTES];
    FILE *file;

    out[0] = '\0';
    if (snprintf(path, sizeof(path), "%s/%s", directory, name) >= (int)sizeof(path) ||
        (file = st_kernel_file_stream(path)) == NULL)
        return;
    if (fgets(out, (int)size, file) == NULL)
        out[0] = '\0';
    fclose(file);
    for (size_t length = strlen(out); length > 0 && (out[length - 1] == '\n' || out[length - 1] == ' '); length--)
        out[length - 1] = '\0';
}

static uint64_t read_number(const char *directory, const char *name)
{
    char text[ATTRIBUTE_BYTES];

    read_line(text, sizeof(text), directory, name);
    return strtoull(text, NULL, 10);
}

/* The file says "none [mq-deadline] kyber"; the word in brackets is the one in use. */
static void read_scheduler(char *out, size_t size, const char *directory)
{
    char text[ATTRIBUTE_BYTES];
    const char *open, *close;

    read_line(text, sizeof(text), directory, "queue/scheduler");
    open = strchr(text, '[');
    close = open != NULL ? strchr(open, ']') : NULL;
    if (close != NULL)
        snprintf(out, size, "%.*s", (int)(close - open - 1), open + 1);
    else
        snprintf(out, size, "%.*s", (int)size - 1, text);
}

static bool has_queue(const char *directory)
{
    char path[PATH_BYTES];
    struct stat info;

    return snprintf(path, sizeof(path), "%s/queue", directory) < (int)sizeof(path) && !st_fault_refuses("report.stat") &&
           stat(path, &info) == 0;
}

/* The caller frees the string; NULL: no block device.  The directory of a partition lies inside that of its disk, which has the
 * queue. */
static char *disk_directory(dev_t device)
{
    char link[64], *directory, *slash;

    snprintf(link, sizeof(link), "/sys/dev/block/%u:%u", major(device), minor(device));
    directory = st_fault_refuses("report.disk") ? NULL : realpath(link, NULL);
    if (directory != NULL && !has_queue(directory) && (slash = strrchr(directory, '/')) != NULL)
        *slash = '\0';
    if (directory == NULL || has_queue(directory))
        return directory;
    free(directory);
    return NULL;
}

void st_report_disk(struct st_disk_report *out, int fd)
{
    struct stat info;
    const char *name;
    char *directory;

    *out = (struct st_disk_report){0};
    if (st_fault_refuses("report.stat") || fstat(fd, &info) != 0 || (directory = disk_directory(info.st_dev)) == NULL)
        return;
    name = strrchr(directory, '/');
    snprintf(out->name, sizeof(out->name), "%.*s", (int)sizeof(out->name) - 1, name != NULL ? name + 1 : directory);
    read_line(out->model, sizeof(out->model), directory, "device/model");
    out->rotational = read_number(directory, "queue/rotational") != 0;
    out->nr_requests = read_number(directory, "queue/nr_requests");
    out->max_sectors_kb = read_number(directory, "queue/max_sectors_kb");
    read_scheduler(out->scheduler, sizeof(out->scheduler), directory);
    free(directory);
}

/* --- trying it --- */

static void try_direct(struct st_dir_report *out, int fd, const void *block)
{
    struct st_direct direct;

    st_direct_enable(&direct, fd);
    out->direct_works =
        direct.works && !st_fault_refuses("report.write") && pwrite(fd, block, BLOCK_BYTES, 0) == (ssize_t)BLOCK_BYTES;
    if (direct.told) {
        out->memory_align = direct.memory_align;
        out->offset_align = direct.offset_align;
    }
}

static bool region_registers(void *base, uint64_t bytes)
{
    const struct st_io_ops *ops = st_io_find("uring", NULL);
    const struct st_io_opts opts = {.queue_depth = 1};
    struct st_io *io = NULL;
    bool works;

    if (ops == NULL || ops->register_region == NULL || ops->open(&io, &opts) != STRATA_OK)
        return false;
    works = ops->register_region(io, base, bytes) == STRATA_OK;
    ops->close(io);
    return works;
}

void st_report_try(struct st_dir_report *out, int fd)
{
    struct st_arena arena = {0};

    if (st_arena_create(&arena, "info", USUAL_BYTES, NULL) != STRATA_OK)
        return;
    try_direct(out, fd, arena.base);
    out->registers = region_registers(arena.base, arena.bytes);
    st_arena_destroy(&arena);
}

/* --- advice --- */

__attribute__((format(printf, 2, 3))) static void advise(struct st_dir_report *out, const char *format, ...)
{
    const size_t length = strlen(out->advice);
    va_list args;

    va_start(args, format);
    if (length > 0 && length + 2 < sizeof(out->advice))
        memcpy(out->advice + length, "; ", 3);
    vsnprintf(out->advice + strlen(out->advice), sizeof(out->advice) - strlen(out->advice), format, args);
    va_end(args);
}

void st_report_advise(struct st_dir_report *out)
{
    const struct st_disk_report *d = &out->disk;

    out->advice[0] = '\0';
    if (!out->direct_works)
        advise(out, "use a directory on ext4 or xfs: without O_DIRECT the page cache takes memory from the run");
    if (strcmp(out->filesystem, "9p") == 0)
        advise(out, "use a disk of this system's own, such as WSL's below /home: 9p passes every request to another system");
    if (!out->registers)
        advise(out,
               "raise RLIMIT_MEMLOCK (ulimit -l unlimited) if io_uring is allowed: buffers are mapped for every request now");
    if (d->rotational)
        advise(out, "use an SSD (a virtual disk may only seem to rotate)");
    if (strcmp(d->scheduler, "bfq") == 0 || strcmp(d->scheduler, "cfq") == 0)
        advise(out, "echo none > /sys/block/%s/queue/scheduler: %s orders requests for rotating disks", d->name, d->scheduler);
    if (d->nr_requests != 0 && d->nr_requests < QUEUE_LEAST)
        advise(out, "echo %u > /sys/block/%s/queue/nr_requests: a run keeps that many in flight", QUEUE_LEAST, d->name);
    if (d->max_sectors_kb != 0 && d->max_sectors_kb < REQUEST_KIB / 8)
        advise(out, "raise /sys/block/%s/queue/max_sectors_kb: requests of %u KiB are cut at %" PRIu64, d->name, REQUEST_KIB,
               d->max_sectors_kb);
}

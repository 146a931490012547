/* nvme/method/direct.c - see direct.h. */
#include "nvme/method/direct.h"

#include "core/base/fault.h"
#include "nvme/method/io_method.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Asks statx for the alignment: Linux 6.1 and later, and not on every file system. */
static void ask_statx(struct st_direct *out, int fd)
{
#ifdef STATX_DIOALIGN
    struct statx info;

    if (st_fault("nvme.statx", 0) < 0 || statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) < 0 ||
        (info.stx_mask & STATX_DIOALIGN) == 0)
        return;
    out->told = true;
    out->memory_align = info.stx_dio_mem_align;
    out->offset_align = info.stx_dio_offset_align;
#else
    (void)out;
    (void)fd;
#endif
}

/* True for tmpfs, which accepts O_DIRECT and ignores it. */
static bool is_memory_backed(int fd)
{
    struct statfs info;

    return !st_fault_refuses("nvme.fstatfs") && fstatfs(fd, &info) == 0 &&
           (info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC);
}

/* Tries a direct read.  A read of an empty file returns 0 bytes, which counts as success. */
static bool direct_read_works(int fd)
{
    void *block;
    bool works;

    if (st_fault_refuses("nvme.alloc") || posix_memalign(&block, ST_IO_ALIGN, ST_IO_ALIGN) != 0)
        return false;
    works = !st_fault_refuses("nvme.direct_read") && pread(fd, block, ST_IO_ALIGN, 0) >= 0;
    free(block);
    return works;
}

static bool may_work(const struct st_direct *direct, int fd)
{
    if (!direct->told)
        return !is_memory_backed(fd);
    return direct->offset_align > 0 && direct->offset_align <= ST_IO_ALIGN && direct->memory_align <= ST_IO_ALIGN;
}

void st_direct_enable(struct st_direct *out, int fd)
{
    const int flags = fcntl(fd, F_GETFL);

    *out = (struct st_direct){.works = false};
    ask_statx(out, fd);
    if (flags < 0 || !may_work(out, fd) || st_fault("nvme.direct", 0) < 0 || fcntl(fd, F_SETFL, flags | O_DIRECT) < 0)
        return;
    out->works = out->told || direct_read_works(fd);
    if (!out->works)
        (void)fcntl(fd, F_SETFL, flags);
    else if (!out->told)
        out->memory_align = out->offset_align = ST_IO_ALIGN;
}

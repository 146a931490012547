/* nvme/swap_file.c - one swap file: its space is really allocated, and O_DIRECT is used where it works. */
#include "nvme/swap_parts.h"

#include "core/error.h"
#include "core/fault.h"
#include "core/log.h"
#include "core/size.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static strata_status file_error(int err, const char *what, const struct st_run_dir *run)
{
    char reason[128];
    const char *text = strerror_r(err, reason, sizeof(reason));

    return st_error(STRATA_E_IO, "%s/" ST_SWAP_FILE_NAME "0: cannot %s: %s", run->path, what, text);
}

static strata_status reserve(int fd, const struct st_run_dir *run, uint64_t bytes)
{
    char needed[24], free_text[24];
    uint64_t free_bytes = 0;
    int err = (int)-st_fault("nvme.fallocate", 0);

    if (err == 0)
        do
            err = posix_fallocate(fd, 0, (off_t)bytes);
        while (err == EINTR);
    if (err == 0)
        return STRATA_OK;
    if (err != ENOSPC && err != EDQUOT && err != EFBIG)
        return file_error(err, "reserve its space", run);
    if (st_swap_free_bytes(run->path, &free_bytes) != STRATA_OK)
        free_bytes = 0;
    return st_error(STRATA_E_NOSPC,
                    "%s/" ST_SWAP_FILE_NAME "0: cannot reserve %s (%s free): %s: free space, or name another "
                    "directory with --nvme",
                    run->path, st_size_text(needed, bytes), st_size_text(free_text, free_bytes),
                    err == ENOSPC   ? "no space left on the device"
                    : err == EDQUOT ? "disk quota exceeded"
                                    : "file too large for it");
}

enum direct_answer { DIRECT_NO, DIRECT_YES, DIRECT_UNKNOWN };

/* What statx says (Linux 6.1 and later, and not every file system). */
static enum direct_answer ask_statx(int fd)
{
#ifdef STATX_DIOALIGN
    struct statx info;

    if (st_fault("nvme.statx", 0) < 0 || statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) < 0 ||
        (info.stx_mask & STATX_DIOALIGN) == 0)
        return DIRECT_UNKNOWN;
    return info.stx_dio_offset_align > 0 && info.stx_dio_offset_align <= ST_SWAP_ALIGN && info.stx_dio_mem_align <= ST_SWAP_ALIGN
               ? DIRECT_YES
               : DIRECT_NO;
#else
    (void)fd;
    return DIRECT_UNKNOWN;
#endif
}

/* tmpfs takes O_DIRECT and ignores it. */
static bool is_memory_backed(int fd)
{
    struct statfs info;

    return fstatfs(fd, &info) == 0 && (info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC);
}

static bool direct_read_works(int fd)
{
    void *block;
    bool works;

    if (posix_memalign(&block, ST_SWAP_ALIGN, ST_SWAP_ALIGN) != 0)
        return false;
    works = pread(fd, block, ST_SWAP_ALIGN, 0) == (ssize_t)ST_SWAP_ALIGN;
    free(block);
    return works;
}

/* Called with the space reserved, so that a block can be read for a try. */
static bool make_direct(int fd)
{
    const enum direct_answer answer = ask_statx(fd);

    if (answer == DIRECT_NO || (answer == DIRECT_UNKNOWN && is_memory_backed(fd)))
        return false;
    if (st_fault("nvme.direct", 0) < 0 || fcntl(fd, F_SETFL, O_RDWR | O_DIRECT) < 0)
        return false;
    if (answer == DIRECT_YES || direct_read_works(fd))
        return true;
    fcntl(fd, F_SETFL, O_RDWR);
    return false;
}

strata_status st_swap_file_create(int *out_fd, bool *out_direct, const struct st_run_dir *run, uint64_t bytes)
{
    int fd = (int)st_fault("nvme.open", 0);
    strata_status st;

    if (fd == 0 && (fd = openat(run->dir_fd, ST_SWAP_FILE_NAME "0", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) < 0)
        fd = -errno;
    if (fd < 0)
        return file_error(-fd, "create it", run);
    if ((st = reserve(fd, run, bytes)) != STRATA_OK) {
        close(fd);
        return st;
    }
    *out_direct = make_direct(fd);
    if (!*out_direct)
        st_log(ST_LOG_WARN, "%s: no direct I/O here; reads and writes go through the page cache, which takes memory from the run",
               run->path);
    *out_fd = fd;
    return STRATA_OK;
}

/* nvme/swap/swap_file.c - one file of a swap: its space is preallocated, and O_DIRECT is used if it works. */
#include "nvme/swap/swap_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/size.h"
#include "core/system/cleanup.h"
#include "nvme/method/direct.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void st_swap_file_name(char name[ST_SWAP_NAME_BYTES], uint32_t volume, uint32_t dir)
{
    if (volume < 2)
        snprintf(name, ST_SWAP_NAME_BYTES, "%s-%" PRIu32, volume == 0 ? "swap" : "base", dir);
    else
        snprintf(name, ST_SWAP_NAME_BYTES, "set-%" PRIu32 "-%" PRIu32, volume - 2, dir);
}

static strata_status file_error(int err, const char *what, const struct st_owned_dir *run, const char *name)
{
    char reason[ST_ERRNO_BYTES];

    return st_error(STRATA_E_IO, "%s/%s: cannot %s: %s", run->path, name, what, st_errno_text(err, reason));
}

/* Reserves the space; an empty file needs none. */
static strata_status reserve(int fd, const struct st_owned_dir *run, const char *name, uint64_t bytes)
{
    char needed[24], free_text[24], reason[ST_ERRNO_BYTES];
    uint64_t free_bytes = 0;
    uint32_t interrupted = 0;
    int err = (int)-st_fault("nvme.fallocate", 0);

    if (err == 0)
        do
            err = bytes > 0 ? posix_fallocate(fd, 0, (off_t)bytes) : 0;
        while (st_again(-err, &interrupted));
    if (err == 0)
        return STRATA_OK;
    if (err != ENOSPC && err != EDQUOT && err != EFBIG)
        return file_error(err, "reserve its space", run, name);
    if (st_swap_free_bytes(run->path, &free_bytes) != STRATA_OK)
        free_bytes = 0;
    return st_error_remedy(st_error(STRATA_E_NOSPC, "%s/%s: cannot reserve %s (%s free): %s", run->path, name,
                                    st_size_text(needed, bytes), st_size_text(free_text, free_bytes), st_errno_text(err, reason)),
                           "strata.nvme", "free space, or name another directory with strata.nvme");
}

strata_status st_swap_file_create(int *out_fd, bool *out_direct, const struct st_owned_dir *run, const char *name, uint64_t bytes,
                                  mode_t mode)
{
    int fd = (int)st_fault("nvme.open", 0);
    struct st_direct direct;
    strata_status st;

    st_cleanup_hold();
    if (fd == 0 && (fd = openat(run->dir_fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode)) < 0)
        fd = -errno;
    st_cleanup_release();
    if (fd < 0)
        return file_error(-fd, "create it", run, name);
    if ((st = reserve(fd, run, name, bytes)) != STRATA_OK) {
        close(fd);
        return st;
    }
    st_direct_enable(&direct, fd);
    *out_direct = direct.works;
    *out_fd = fd;
    return STRATA_OK;
}

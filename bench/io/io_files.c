/* bench/io/io_files.c - the files of a load: nameless, preallocated, and written once. */
#include "bench/io/io_load.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/base/rng.h"
#include "core/base/size.h"
#include "nvme/method/direct.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILL_BYTES (UINT64_C(4) << 20) /* of one write */

void io_fill(void *base, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes / sizeof(uint64_t); i++) {
        const uint64_t word = st_rng_u64(1, 0, i);

        memcpy((char *)base + i * sizeof(word), &word, sizeof(word));
    }
}

static strata_status dir_error(int err, const char *dir)
{
    if (err == ENOENT)
        return st_error(STRATA_E_INVAL, "%s: there is no such directory: mkdir -p %s makes it, or name another with --nvme", dir,
                        dir);
    if (err == ENOTDIR)
        return st_error(STRATA_E_INVAL, "%s is not a directory: --nvme takes a directory", dir);
    return st_error_errno(err, "cannot create a file in %s: name a directory that can be written with --nvme", dir);
}

/* If the file system does not support O_TMPFILE, the file has a name for an instant. */
static int open_named(const char *dir)
{
    char path[4096];
    int fd;

    if (snprintf(path, sizeof(path), "%s/strata-bench-io-XXXXXX", dir) >= (int)sizeof(path))
        return -ENAMETOOLONG;
    fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return -errno;
    unlink(path);
    return fd;
}

static strata_status open_file(int *out, const char *dir)
{
    struct stat info;
    int fd;

    if (st_fault_refuses("bench.stat") || stat(dir, &info) != 0)
        return dir_error(errno, dir);
    if (!S_ISDIR(info.st_mode))
        return dir_error(ENOTDIR, dir);
    fd = st_fault_refuses("bench.open") ? -1 : open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL))
        fd = open_named(dir);
    else if (fd < 0)
        fd = -errno;
    if (fd < 0)
        return dir_error(-fd, dir);
    *out = fd;
    return STRATA_OK;
}

static strata_status reserve(int fd, const char *dir, uint64_t bytes)
{
    char text[24];
    uint32_t interrupted = 0;
    int err = (int)-st_fault("bench.reserve", 0);

    if (err == 0)
        do
            err = posix_fallocate(fd, 0, (off_t)bytes);
        while (st_again(-err, &interrupted));
    return err == 0 ? STRATA_OK
                    : st_error_errno(err, "cannot reserve %s in %s: lower --size, or name another directory",
                                     st_size_text(text, bytes), dir);
}

static strata_status write_file(int fd, const char *dir, const char *from, uint64_t bytes)
{
    uint32_t interrupted = 0;

    for (uint64_t at = 0; at < bytes;) {
        const uint64_t left = bytes - at, part = left < FILL_BYTES ? left : FILL_BYTES;
        const ssize_t put = pwrite(fd, from, part, (off_t)at);
        const int64_t moved = st_fault("bench.write", put < 0 ? -errno : put);

        if (st_again(moved, &interrupted))
            continue;
        interrupted = 0;
        if (moved < IO_ALIGN) /* not one whole block: trying again would not help */
            return st_error_errno(moved < 0 ? (int)-moved : ENOSPC, "cannot write to %s", dir);
        at += (uint64_t)moved & ~(uint64_t)(IO_ALIGN - 1);
    }
    return STRATA_OK;
}

static strata_status add_dir(struct io_files *f, const char *dir, const struct st_arena *filler)
{
    strata_status st = open_file(&f->fds[f->count], dir);
    struct st_direct direct;
    int fd;

    if (st != STRATA_OK)
        return st;
    fd = f->fds[f->count++];
    if ((st = reserve(fd, dir, f->bytes)) != STRATA_OK)
        return st;
    st_direct_enable(&direct, fd);
    if (!direct.works)
        st_log(ST_LOG_WARN, "%s: no direct I/O here; these figures are the page cache's, not the drive's", dir);
    f->direct = f->direct && direct.works;
    io_fill(filler->base, filler->bytes);
    return write_file(fd, dir, (const char *)filler->base, f->bytes);
}

/* All files alike: rates of some with and others without it would be compared with fio's, which has one setting. */
static strata_status use_page_cache(const struct io_files *f)
{
    for (uint32_t i = 0; i < f->count; i++) {
        const int flags = st_fault_refuses("bench.flags") ? -1 : fcntl(f->fds[i], F_GETFL);

        if (flags < 0 || fcntl(f->fds[i], F_SETFL, flags & ~O_DIRECT) != 0)
            return st_error_errno(errno, "direct I/O cannot be switched off");
    }
    return STRATA_OK;
}

strata_status io_files_open(struct io_files *f, const char *const *dirs, uint32_t count, uint64_t bytes)
{
    struct st_arena filler = {0};
    strata_status st;

    *f = (struct io_files){.bytes = bytes, .direct = true};
    if (count > IO_DIRS_MAX)
        return st_error(STRATA_E_INVAL, "at most %u directories", IO_DIRS_MAX);
    st = st_arena_create(&filler, "bench io", FILL_BYTES, NULL);
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = add_dir(f, dirs[i], &filler);
    st_arena_destroy(&filler);
    if (st == STRATA_OK && !f->direct)
        st = use_page_cache(f);
    if (st != STRATA_OK)
        io_files_close(f);
    return st;
}

void io_files_close(struct io_files *f)
{
    for (uint32_t i = 0; i < f->count; i++)
        close(f->fds[i]);
    *f = (struct io_files){0};
}

/* core/system/file_write.c - writing to a new file, in whole ranges or as a stream: see file.h. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

strata_status st_new_file_reserve(struct st_new_file *f, uint64_t bytes)
{
    uint32_t interrupted = 0;
    int64_t res;

    do /* a signal that the program handles may end it early */
        res = bytes > 0 ? st_fault("file.reserve", st_result(fallocate(f->fd, 0, 0, (off_t)bytes))) : 0;
    while (st_again(res, &interrupted));
    if (res == -EOPNOTSUPP || res == -ENOSYS)
        res = st_fault("file.truncate", st_result(ftruncate(f->fd, (off_t)bytes)));
    if (res < 0)
        return st_error_errno((int)-res, "taking %llu bytes for %s", (unsigned long long)bytes, f->path);
    return STRATA_OK;
}

strata_status st_new_file_write_at(struct st_new_file *f, const void *buf, uint64_t bytes, uint64_t offset)
{
    const unsigned char *at = buf;
    uint32_t interrupted = 0;

    while (bytes > 0) {
        const size_t part = bytes < (1u << 30) ? (size_t)bytes : 1u << 30;
        const int64_t put = st_fault("file.write", st_result(pwrite(f->fd, at, part, (off_t)offset)));

        if (st_again(put, &interrupted))
            continue;
        if (put <= 0)
            return st_error_errno(put < 0 ? (int)-put : EIO, "writing %s at byte %llu", f->path, (unsigned long long)offset);
        interrupted = 0;
        at += put;
        bytes -= (uint64_t)put;
        offset += (uint64_t)put;
    }
    return STRATA_OK;
}

/* stdio forgets why a write failed and goes on writing. */
static ssize_t stream_write(void *file, const char *buf, size_t bytes)
{
    struct st_new_file *f = file;
    uint32_t interrupted = 0;
    size_t done = 0;

    if (f->cleanup.pid != getpid())
        return (ssize_t)bytes; /* a copy of what the parent will write itself */
    while (done < bytes && f->stream_errno == 0) {
        const int64_t put = st_fault("file.stream_write", st_result(write(f->fd, buf + done, bytes - done)));

        if (put > 0)
            done += (size_t)put;
        else if (!st_again(put, &interrupted))
            f->stream_errno = put < 0 ? (int)-put : EIO;
    }
    return (ssize_t)done;
}

strata_status st_new_file_stream(struct st_new_file *f)
{
    const cookie_io_functions_t calls = {.write = stream_write};

    f->stream = st_fault_refuses("file.stream") ? NULL : fopencookie(f, "w", calls);
    return f->stream != NULL ? STRATA_OK : st_error_errno(errno, "%s", f->path);
}

int st_new_file_flush(struct st_new_file *f)
{
    const bool failed = fflush(f->stream) != 0 || ferror(f->stream) != 0;

    return (int)-st_fault("file.flush", f->stream_errno != 0 ? -f->stream_errno : failed ? -EIO : 0);
}

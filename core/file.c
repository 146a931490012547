/* core/file.c - see file.h.  Every foreign call passes a fault site; EINTR and short transfers continue. */
#include "core/file.h"
#include "core/error.h"
#include "core/fault.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Result of a call that returns -1 and errno, as a negative errno, through a fault site. */
static int64_t passed(const char *site, int64_t result)
{
    return st_fault(site, result < 0 ? -errno : result);
}

/* open() through a fault site: a failed site leaves nothing open and nothing newly made. */
static int64_t open_passed(const char *site, const char *path, int flags)
{
    const int fd = open(path, flags | O_CLOEXEC, 0666);
    const int64_t res = passed(site, fd);

    if (fd >= 0 && res < 0) {
        close(fd);
        if ((flags & O_CREAT) != 0)
            unlink(path);
    }
    return res;
}

strata_status st_path_join(char path[ST_PATH_MAX], const char *dir, const char *name)
{
    const int length = snprintf(path, ST_PATH_MAX, "%s/%s", dir, name);

    if (length < 0 || length >= ST_PATH_MAX)
        return st_error(STRATA_E_INVAL, "path too long: %s/%s", dir, name);
    return STRATA_OK;
}

strata_status st_file_open(int *fd, uint64_t *bytes, const char *path, strata_status missing)
{
    struct stat info;
    int64_t res = open_passed("file.open", path, O_RDONLY);

    if (res < 0)
        return st_error(missing, "%s: %s", path, strerror((int)-res));
    *fd = (int)res;
    res = passed("file.stat", fstat(*fd, &info));
    if (res < 0 || !S_ISREG(info.st_mode)) {
        close(*fd);
        *fd = -1;
        return st_error(missing, "%s: %s", path, res < 0 ? strerror((int)-res) : "not a regular file");
    }
    *bytes = (uint64_t)info.st_size;
    return STRATA_OK;
}

strata_status st_file_read_at(int fd, void *buf, uint64_t bytes, uint64_t offset, const char *path)
{
    unsigned char *at = buf;

    while (bytes > 0) {
        const size_t part = bytes < (1u << 30) ? (size_t)bytes : 1u << 30;
        const int64_t got = passed("file.read", pread(fd, at, part, (off_t)offset));

        if (got == -EINTR)
            continue;
        if (got < 0)
            return st_error_errno((int)-got, "reading %s at byte %llu", path, (unsigned long long)offset);
        if (got == 0)
            return st_error(STRATA_E_INPUT, "%s is too short: nothing at byte %llu, which its header promises", path,
                            (unsigned long long)offset);
        at += got;
        bytes -= (uint64_t)got;
        offset += (uint64_t)got;
    }
    return STRATA_OK;
}

strata_status st_file_read_text(char **text, uint64_t *bytes, const char *path, uint64_t bytes_max)
{
    uint64_t size;
    strata_status st;
    char *buf;
    int fd;

    if ((st = st_file_open(&fd, &size, path, STRATA_E_INPUT)) != STRATA_OK)
        return st;
    if (size > bytes_max) {
        close(fd);
        return st_error(STRATA_E_INPUT, "%s: %llu bytes, more than the %llu such a file may have", path, (unsigned long long)size,
                        (unsigned long long)bytes_max);
    }
    buf = malloc((size_t)size + 1);
    st = buf == NULL ? st_error(STRATA_E_NOMEM, "%s", path) : st_file_read_at(fd, buf, size, 0, path);
    close(fd);
    if (st != STRATA_OK) {
        free(buf);
        return st;
    }
    buf[size] = '\0';
    *text = buf;
    *bytes = size;
    return STRATA_OK;
}

strata_status st_new_file_create(struct st_new_file *f, const char *path)
{
    int64_t res;

    f->fd = -1;
    if (snprintf(f->path, sizeof(f->path), "%s", path) >= (int)sizeof(f->path) ||
        snprintf(f->temp, sizeof(f->temp), "%s.tmp", path) >= (int)sizeof(f->temp))
        return st_error(STRATA_E_INVAL, "path too long: %s", path);
    res = open_passed("file.create", f->temp, O_RDWR | O_CREAT | O_TRUNC);
    if (res < 0)
        return st_error_errno((int)-res, "creating %s", f->temp);
    f->fd = (int)res;
    return STRATA_OK;
}

strata_status st_new_file_reserve(struct st_new_file *f, uint64_t bytes)
{
    int64_t res = bytes > 0 ? passed("file.reserve", fallocate(f->fd, 0, 0, (off_t)bytes)) : 0;

    if (res == -EOPNOTSUPP || res == -ENOSYS)
        res = passed("file.truncate", ftruncate(f->fd, (off_t)bytes));
    if (res < 0)
        return st_error_errno((int)-res, "taking %llu bytes for %s", (unsigned long long)bytes, f->temp);
    return STRATA_OK;
}

strata_status st_new_file_write_at(struct st_new_file *f, const void *buf, uint64_t bytes, uint64_t offset)
{
    const unsigned char *at = buf;

    while (bytes > 0) {
        const size_t part = bytes < (1u << 30) ? (size_t)bytes : 1u << 30;
        const int64_t put = passed("file.write", pwrite(f->fd, at, part, (off_t)offset));

        if (put == -EINTR)
            continue;
        if (put <= 0)
            return st_error_errno(put < 0 ? (int)-put : EIO, "writing %s at byte %llu", f->temp, (unsigned long long)offset);
        at += put;
        bytes -= (uint64_t)put;
        offset += (uint64_t)put;
    }
    return STRATA_OK;
}

/* Make a rename in the file's directory last. */
static strata_status sync_directory(const char *path)
{
    char dir[ST_PATH_MAX];
    char *slash;
    int64_t res;
    int fd;

    snprintf(dir, sizeof(dir), "%s", path);
    slash = strrchr(dir, '/');
    if (slash == NULL)
        snprintf(dir, sizeof(dir), ".");
    else
        slash[slash == dir ? 1 : 0] = '\0';
    res = open_passed("file.open_directory", dir, O_RDONLY | O_DIRECTORY);
    if (res < 0)
        return st_error_errno((int)-res, "opening directory %s", dir);
    fd = (int)res;
    res = passed("file.sync_directory", fsync(fd));
    close(fd);
    if (res < 0 && res != -EINVAL) /* some file systems cannot sync a directory */
        return st_error_errno((int)-res, "syncing directory %s", dir);
    return STRATA_OK;
}

strata_status st_new_file_commit(struct st_new_file *f)
{
    int64_t res = passed("file.sync", fsync(f->fd));

    if (res >= 0) {
        res = passed("file.close", close(f->fd));
        f->fd = -1;
    }
    if (res >= 0)
        res = passed("file.rename", rename(f->temp, f->path));
    if (res < 0) {
        if (f->fd >= 0)
            close(f->fd);
        f->fd = -1;
        unlink(f->temp);
        return st_error_errno((int)-res, "completing %s", f->path);
    }
    f->temp[0] = '\0';
    return sync_directory(f->path);
}

void st_new_file_abort(struct st_new_file *f)
{
    if (f->fd < 0)
        return;
    close(f->fd);
    f->fd = -1;
    unlink(f->temp);
}

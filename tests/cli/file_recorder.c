/* tests/cli/file_recorder.c - preloaded into the program: writes down each call that changes files, one at a time.
 *
 *     STRATA_RECORD          file that takes the records
 *     STRATA_RECORD_DEVICE   a directory: calls on its file system are written down
 *     STRATA_RECORD_NO_LINK  no file gets a second name, as where file systems differ */
#include "tests/cli/file_record.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = -1;
static dev_t device;
static bool no_link;

__attribute__((constructor)) static void start(void)
{
    const char *path = getenv("STRATA_RECORD"), *dir = getenv("STRATA_RECORD_DEVICE");
    struct stat info;

    no_link = getenv("STRATA_RECORD_NO_LINK") != NULL;
    if (path == NULL || dir == NULL || stat(dir, &info) != 0)
        abort();
    device = info.st_dev;
    log_fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    if (log_fd < 0)
        abort();
}

static void put(const void *data, size_t bytes)
{
    if (syscall(SYS_write, log_fd, data, bytes) != (long)bytes)
        abort();
}

/* Inode numbers, 0 elsewhere. */
static uint64_t number(int rc, const struct stat *info)
{
    return rc == 0 && info->st_dev == device ? info->st_ino : 0;
}

static uint64_t number_of(int fd)
{
    struct stat info;

    return number(fstat(fd, &info), &info);
}

static uint64_t number_at(int dir_fd, const char *path)
{
    struct stat info;

    return number(fstatat(dir_fd, path, &info, AT_SYMLINK_NOFOLLOW), &info);
}

/* The directory of a path, whose last part goes to `name`. */
static uint64_t split(int dir_fd, const char *path, char name[80])
{
    const char *slash = strrchr(path, '/');
    char dir[4096];

    if (snprintf(name, 80, "%s", slash != NULL ? slash + 1 : path) >= 80)
        abort();
    if (slash == NULL)
        return number_at(dir_fd, ".");
    snprintf(dir, sizeof(dir), "%.*s", slash == path ? 1 : (int)(slash - path), path);
    return number_at(dir_fd, dir);
}

static int named(enum file_record_op op, uint64_t node, bool is_dir, int dir_fd, const char *path)
{
    struct file_record r = {.op = op, .node = node, .bytes = is_dir};

    r.dir = split(dir_fd, path, r.name);
    if (r.dir != 0)
        put(&r, sizeof(r));
    return 0;
}

static void sized(enum file_record_op op, int fd, const void *data, uint64_t offset, uint64_t bytes)
{
    const struct file_record r = {.op = op, .node = number_of(fd), .offset = offset, .bytes = bytes};

    if (r.node == 0)
        return;
    put(&r, sizeof(r));
    if (data != NULL)
        put(data, bytes);
}

/* --- the calls, each alone, so that the records are in an order that was --- */

#pragma GCC visibility push(default)

static int open_one(int dir_fd, const char *path, int flags, unsigned mode)
{
    bool is_new;
    int fd;

    pthread_mutex_lock(&lock);
    is_new = (flags & O_CREAT) != 0 && faccessat(dir_fd, path, F_OK, AT_SYMLINK_NOFOLLOW) != 0;
    fd = (int)syscall(SYS_openat, dir_fd, path, flags, mode);
    if (fd >= 0 && is_new)
        named(FILE_MAKE, number_of(fd), false, dir_fd, path);
    else if (fd >= 0 && (flags & O_TRUNC) != 0)
        sized(FILE_CUT, fd, NULL, 0, 0);
    pthread_mutex_unlock(&lock);
    return fd;
}

int open(const char *path, int flags, ...)
{
    va_list args;
    unsigned mode;

    va_start(args, flags);
    mode = (flags & O_CREAT) != 0 ? va_arg(args, unsigned) : 0;
    va_end(args);
    return open_one(AT_FDCWD, path, flags, mode);
}

int openat(int dir_fd, const char *path, int flags, ...)
{
    va_list args;
    unsigned mode;

    va_start(args, flags);
    mode = (flags & O_CREAT) != 0 ? va_arg(args, unsigned) : 0;
    va_end(args);
    return open_one(dir_fd, path, flags, mode);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    ssize_t done;

    pthread_mutex_lock(&lock);
    done = syscall(SYS_pwrite64, fd, data, bytes, offset);
    if (done > 0)
        sized(FILE_WRITE, fd, data, (uint64_t)offset, (uint64_t)done);
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    off_t end;
    ssize_t done;

    pthread_mutex_lock(&lock);
    done = syscall(SYS_write, fd, data, bytes);
    end = done > 0 ? lseek(fd, 0, SEEK_CUR) : -1; /* -1: a pipe */
    if (end >= done)
        sized(FILE_WRITE, fd, data, (uint64_t)(end - done), (uint64_t)done);
    pthread_mutex_unlock(&lock);
    return done;
}

int fsync(int fd)
{
    int rc;

    pthread_mutex_lock(&lock);
    rc = (int)syscall(SYS_fsync, fd);
    if (rc == 0)
        sized(FILE_SYNC, fd, NULL, 0, 0);
    pthread_mutex_unlock(&lock);
    return rc;
}

int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    int rc;

    pthread_mutex_lock(&lock);
    rc = (int)syscall(SYS_fallocate, fd, mode, offset, bytes);
    if (rc == 0)
        sized(FILE_RESERVE, fd, NULL, 0, (uint64_t)(offset + bytes));
    pthread_mutex_unlock(&lock);
    return rc;
}

int posix_fallocate(int fd, off_t offset, off_t bytes)
{
    return fallocate(fd, 0, offset, bytes) == 0 ? 0 : errno;
}

int ftruncate(int fd, off_t bytes)
{
    int rc;

    pthread_mutex_lock(&lock);
    rc = (int)syscall(SYS_ftruncate, fd, bytes);
    if (rc == 0)
        sized(FILE_CUT, fd, NULL, 0, (uint64_t)bytes);
    pthread_mutex_unlock(&lock);
    return rc;
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
    int rc;

    pthread_mutex_lock(&lock);
    errno = EXDEV;
    rc = no_link ? -1 : (int)syscall(SYS_linkat, from_fd, from, to_fd, to, flags);
    if (rc == 0)
        named(FILE_LINK, number_at(to_fd, to), false, to_fd, to);
    pthread_mutex_unlock(&lock);
    return rc;
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    const bool exchange = (flags & RENAME_EXCHANGE) != 0;
    struct file_record r = {.op = exchange ? FILE_EXCHANGE : FILE_RENAME};
    int rc;

    pthread_mutex_lock(&lock);
    rc = (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
    r.dir = split(from_fd, from, r.name);
    r.to_dir = split(to_fd, to, r.to_name);
    if (rc == 0 && r.dir != 0)
        put(&r, sizeof(r));
    pthread_mutex_unlock(&lock);
    return rc;
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    return renameat2(from_fd, from, to_fd, to, 0);
}

int mkdirat(int dir_fd, const char *path, mode_t mode)
{
    int rc;

    pthread_mutex_lock(&lock);
    rc = (int)syscall(SYS_mkdirat, dir_fd, path, mode);
    if (rc == 0)
        named(FILE_MAKE, number_at(dir_fd, path), true, dir_fd, path);
    pthread_mutex_unlock(&lock);
    return rc;
}

int mkdir(const char *path, mode_t mode)
{
    return mkdirat(AT_FDCWD, path, mode);
}

int unlinkat(int dir_fd, const char *path, int flags)
{
    int rc;

    pthread_mutex_lock(&lock);
    rc = (int)syscall(SYS_unlinkat, dir_fd, path, flags);
    if (rc == 0)
        named(FILE_UNLINK, 0, false, dir_fd, path);
    pthread_mutex_unlock(&lock);
    return rc;
}

int unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}

int rmdir(const char *path)
{
    return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

#pragma GCC visibility pop

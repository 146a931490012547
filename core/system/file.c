/* core/system/file.c - reading files: see file.h.  Every foreign call passes a fault site; EINTR and short transfers continue. */
#include "core/system/file.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Passes the result of a call that returns -1 and errno through a fault site, as a negative errno. */
static int64_t passed(const char *site, int64_t result)
{
    return st_fault(site, result < 0 ? -errno : result);
}

static const char *not_regular(mode_t mode)
{
    return S_ISDIR(mode) ? "is a directory, not a file" : "is a device or a pipe, not a file";
}

strata_status st_file_find(bool *there, const char *path)
{
    struct stat info;
    const int64_t res = passed("file.find", lstat(path, &info));

    *there = res == 0;
    return res == 0 || res == -ENOENT ? STRATA_OK : st_error_errno((int)-res, "%s", path);
}

#define ASIDE_MAX 10000u

/* 0 or -errno; -EEXIST: the name is taken. */
static int rename_to_free(const char *path, const char *to)
{
    if (!st_fault_refuses("file.aside") && renameat2(AT_FDCWD, path, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -errno;
    if (st_fault_refuses("file.aside_link") || link(path, to) != 0 || unlink(path) != 0)
        return -errno;
    return 0;
}

strata_status st_file_set_aside(char to[ST_PATH_MAX], const char *path)
{
    int rc = -EEXIST;

    for (uint32_t i = 1; i < ASIDE_MAX && rc == -EEXIST; i++) {
        if (snprintf(to, ST_PATH_MAX, "%s.%u", path, i) >= ST_PATH_MAX)
            return st_error(STRATA_E_INPUT, "%s: the name is too long to put a number behind it", path);
        rc = rename_to_free(path, to);
    }
    if (rc == 0)
        return STRATA_OK;
    if (rc != -ENOENT)
        return st_error_errno(-rc, "%s: cannot be renamed to %s", path, to);
    to[0] = '\0';
    return STRATA_OK;
}

/* --- what was opened --- */

static struct st_file_identity identity_of(const struct stat *info)
{
    return (struct st_file_identity){
        .device = info->st_dev,
        .inode = info->st_ino,
        .links = info->st_nlink,
        .bytes = (uint64_t)info->st_size,
        .modified = info->st_mtim,
        .changed = info->st_ctim,
        .permissions = info->st_mode & 0777,
        .regular = S_ISREG(info->st_mode),
    };
}

strata_status st_file_identify(struct st_file_identity *out, int fd, const char *path)
{
    struct stat info;
    const int64_t res = passed("file.stat", fstat(fd, &info));

    if (res < 0)
        return st_error_errno((int)-res, "%s", path);
    *out = identity_of(&info);
    return STRATA_OK;
}

bool st_file_is_same(const char *a, const char *b)
{
    struct stat one, other;

    return !st_fault_refuses("file.same") && stat(a, &one) == 0 && stat(b, &other) == 0 && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}

strata_status st_file_check_apart(const char *out, const char *in)
{
    struct stat a = {0}, b = {0};
    int64_t res = passed("file.apart", stat(out, &a));

    if (res == 0)
        res = passed("file.apart", strcmp(in, "-") == 0 ? fstat(STDIN_FILENO, &b) : stat(in, &b));
    if (res == -ENOENT || res == -ENOTDIR)
        return STRATA_OK;
    if (res < 0)
        return st_error_errno((int)-res, "comparing %s with %s", out, in);
    if (a.st_dev != b.st_dev || a.st_ino != b.st_ino)
        return STRATA_OK;
    return st_error(STRATA_E_INPUT, "%s: is the same file as %s, which this command reads: name another one", out, in);
}

static bool same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

/* A writer can set the modification time back afterwards but not the change time.  The change time alone is not enough either: it
 * also moves when a name is added or removed, as when another file replaces this one. */
static bool same_state(const struct st_file_identity *a, const struct st_file_identity *b)
{
    return a->device == b->device && a->inode == b->inode && a->bytes == b->bytes && same_time(a->modified, b->modified) &&
           (a->links != b->links || same_time(a->changed, b->changed));
}

strata_status st_file_check_unchanged(int fd, const struct st_file_identity *was, const char *path)
{
    struct st_file_identity is = {0};
    const strata_status st = st_file_identify(&is, fd, path);

    if (st != STRATA_OK || !was->regular)
        return st;
    if (st_fault("file.changed", same_state(was, &is) ? 0 : -ESTALE) == 0)
        return STRATA_OK;
    return st_error(STRATA_E_INPUT, "%s changed while it was read: run again when nothing writes to it", path);
}

/* Whether a pipe has bytes or a writer: tee() looks without taking any.  0: it has neither; else 1 or -errno. */
static int look_into_pipe(int fd)
{
    int copy[2], res;

    if (st_fault_refuses("file.pipe") || pipe2(copy, O_CLOEXEC) != 0)
        return -errno;
    res = tee(fd, copy[1], 1, SPLICE_F_NONBLOCK) == 0 ? 0 : 1;
    close(copy[0]);
    close(copy[1]);
    return res;
}

/* The kernel's own files call themselves empty, and some wait for ever for what is to come (/proc/kmsg). */
static bool is_of_kernel(int fd, const struct stat *info)
{
    struct statfs system;

    return S_ISREG(info->st_mode) && info->st_size == 0 && !st_fault_refuses("file.statfs") && fstatfs(fd, &system) == 0 &&
           (system.f_type == PROC_SUPER_MAGIC || system.f_type == TRACEFS_MAGIC || system.f_type == DEBUGFS_MAGIC);
}

/* O_NONBLOCK: opening a pipe must not wait for a process at its other end.  A writer that connects later would find no reader, and
 * its data would be lost silently. */
static strata_status open_checked(int *out, struct st_file_identity *identity, const char *path, strata_status missing,
                                  bool pipes)
{
    struct stat info;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    int64_t res = passed("file.open", fd);
    strata_status st;

    *out = -1;
    if (res >= 0)
        res = passed("file.stat", fstat(fd, &info));
    if (res >= 0 && is_of_kernel(fd, &info)) {
        close(fd);
        return st_error(missing, "%s: is a file of the kernel's, which may never end: copy what is wanted out of it", path);
    }
    if (res >= 0 && (S_ISREG(info.st_mode) || (pipes && S_ISFIFO(info.st_mode)))) {
        if (S_ISFIFO(info.st_mode) && (res = look_into_pipe(fd)) <= 0) {
            close(fd);
            return res < 0 ? st_error_errno((int)-res, "%s", path)
                           : st_error(missing, "%s: is a pipe that nobody writes to: start what writes first", path);
        }
        (void)fcntl(fd, F_SETFL, 0); /* from here on, reads wait for a writer at the other end */
        *out = fd;
        *identity = identity_of(&info);
        return STRATA_OK;
    }
    if (fd >= 0)
        close(fd);
    if (res >= 0)
        return st_error(missing, "%s: %s", path, not_regular(info.st_mode));
    st = st_error_errno((int)-res, "%s", path);
    return st == STRATA_E_INPUT ? missing : st;
}

strata_status st_file_open(int *fd, struct st_file_identity *identity, const char *path, strata_status missing)
{
    return open_checked(fd, identity, path, missing, false);
}

strata_status st_file_open_stream(int *fd, struct st_file_identity *identity, const char *path, strata_status missing)
{
    return open_checked(fd, identity, path, missing, true);
}

bool st_file_is_pipe(const char *path)
{
    struct stat info;

    return !st_fault_refuses("file.kind") && stat(path, &info) == 0 && S_ISFIFO(info.st_mode);
}

struct dirent *st_dir_next(DIR *dir)
{
    errno = 0;
    return st_fault_refuses("file.readdir") ? NULL : readdir(dir);
}

int st_kernel_file_open(const char *path)
{
    static atomic_bool told; /* that no descriptor is free: the next files cannot be opened either */
    const int fd = st_fault_refuses("kernel.open") ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    char reason[ST_ERRNO_BYTES];

    if (fd >= 0 || errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == EPERM ||
        ((errno == EMFILE || errno == ENFILE) && atomic_exchange(&told, true)))
        return fd;
    st_log(ST_LOG_WARN, "%s: %s: it is not taken into account", path, st_errno_text(errno, reason));
    return fd;
}

FILE *st_kernel_file_stream(const char *path)
{
    const int fd = st_kernel_file_open(path);
    FILE *file = fd < 0 || st_fault_refuses("kernel.stream") ? NULL : fdopen(fd, "r");

    if (file == NULL && fd >= 0)
        close(fd);
    return file;
}

/* A file may have been cut while it was read: what it has now, if the system says. */
static strata_status too_short(int fd, uint64_t offset, uint64_t bytes, const char *path)
{
    struct stat info;
    const uint64_t size = passed("file.stat", fstat(fd, &info)) < 0 ? offset : (uint64_t)info.st_size;

    return st_error(STRATA_E_INPUT, "%s is too short: it ends at byte %llu, and its header promises %llu bytes at byte %llu",
                    path, (unsigned long long)size, (unsigned long long)bytes, (unsigned long long)offset);
}

strata_status st_file_read_at(int fd, void *buf, uint64_t bytes, uint64_t offset, const char *path)
{
    unsigned char *at = buf;
    uint32_t interrupted = 0;

    while (bytes > 0) {
        const size_t part = bytes < (1u << 30) ? (size_t)bytes : 1u << 30;
        const int64_t got = passed("file.read", pread(fd, at, part, (off_t)offset));

        if (st_again(got, &interrupted))
            continue;
        if (got < 0)
            return st_error_errno((int)-got, "reading %s at byte %llu", path, (unsigned long long)offset);
        if (got == 0)
            return too_short(fd, offset, bytes, path);
        interrupted = 0;
        at += got;
        bytes -= (uint64_t)got;
        offset += (uint64_t)got;
    }
    return STRATA_OK;
}

/* A request for more than the device's readahead is cut to that, without a word. */
#define AHEAD_BYTES (128u * 1024u)

void st_file_read_ahead(int fd, uint64_t bytes, uint64_t offset)
{
    for (uint64_t end = offset + bytes; offset < end; offset += AHEAD_BYTES)
        (void)posix_fadvise(fd, (off_t)offset, end - offset < AHEAD_BYTES ? (off_t)(end - offset) : AHEAD_BYTES,
                            POSIX_FADV_WILLNEED);
}

strata_status st_file_read_text(char **text, uint64_t *bytes, const char *path, uint64_t bytes_max)
{
    struct st_file_identity was = {0};
    uint64_t size;
    strata_status st;
    char *buf;
    int fd;

    if ((st = st_file_open(&fd, &was, path, STRATA_E_INPUT)) != STRATA_OK)
        return st;
    size = was.bytes;
    if (size > bytes_max) {
        close(fd);
        return st_error(STRATA_E_INPUT, "%s: %llu bytes, more than the %llu such a file may have", path, (unsigned long long)size,
                        (unsigned long long)bytes_max);
    }
    buf = malloc((size_t)size + 1);
    st = buf == NULL ? st_nomem((size_t)size + 1) : st_file_read_at(fd, buf, size, 0, path);
    if (st == STRATA_OK)
        st = st_file_check_unchanged(fd, &was, path);
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

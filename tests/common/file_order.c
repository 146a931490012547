/* tests/common/file_order.c - calls that the tests compare with an order: see the header.  One thread makes files at a time. */
#include "tests/common/file_order.h"
#include "core/system/file.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char noted[4096];

void file_order_begin(void)
{
    noted[0] = '\0';
}

const char *file_order_text(void)
{
    return noted;
}

static int note(int rc, const char *what, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    const char *mark = strstr(name, ST_NEW_FILE_MARK);
    const size_t length = strlen(noted);

    if (rc == 0)
        snprintf(noted + length, sizeof(noted) - length, "%s%s %.*s", length > 0 ? ", " : "", what,
                 (int)(mark != NULL ? (size_t)(mark - name) : strlen(name)), name);
    return rc;
}

int fsync(int fd)
{
    char link[32], path[PATH_MAX];
    struct stat info;
    ssize_t length;

    if (fstat(fd, &info) == 0 && S_ISDIR(info.st_mode))
        return note((int)syscall(SYS_fsync, fd), "sync", ".");
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof(path) - 1);
    path[length > 0 ? length : 0] = '\0';
    return note((int)syscall(SYS_fsync, fd), "sync", path);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    return note((int)syscall(SYS_renameat2, from_fd, from, to_fd, to, 0), "name", to);
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    return note((int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags), "name", to);
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
    return note((int)syscall(SYS_linkat, from_fd, from, to_fd, to, flags), "name", to);
}

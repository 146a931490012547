/* core/system/tree.c - see core/system/tree.h. */
#include "core/system/tree.h"

#include "core/base/fault.h"
#include "core/system/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static int clear(int dir_fd, const char *except, unsigned depth);

/* 0 or -errno. */
static int unlink_one(int dir_fd, const char *name, int flags)
{
    const int refused = (int)st_fault("tree.unlink", 0);

    if (refused < 0)
        return refused;
    return unlinkat(dir_fd, name, flags) == 0 || errno == ENOENT ? 0 : -errno;
}

/* Descriptor or -errno. */
static int open_dir(int at_fd, const char *name)
{
    const int refused = (int)st_fault("tree.open", 0);
    int fd;

    if (refused < 0)
        return refused;
    fd = openat(at_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd >= 0 ? fd : -errno;
}

static int remove_dir(int parent_fd, const char *name, unsigned depth)
{
    const int fd = open_dir(parent_fd, name);
    int rc, gone;

    if (fd < 0)
        return fd == -ENOENT ? 0 : fd;
    rc = clear(fd, NULL, depth);
    close(fd);
    gone = unlink_one(parent_fd, name, AT_REMOVEDIR);
    return rc != 0 ? rc : gone;
}

static int clear_entry(int dir_fd, const char *name, unsigned depth)
{
    const int rc = unlink_one(dir_fd, name, 0);

    return rc == -EISDIR || rc == -EPERM ? remove_dir(dir_fd, name, depth - 1) : rc;
}

static int clear(int dir_fd, const char *except, unsigned depth)
{
    const int fd = depth > 0 ? open_dir(dir_fd, ".") : -ELOOP;
    int first = 0, rc;
    DIR *stream;

    if (fd < 0)
        return fd;
    stream = st_fault_refuses("tree.stream") ? NULL : fdopendir(fd);
    if (stream == NULL) {
        rc = -errno;
        close(fd);
        return rc;
    }
    for (const struct dirent *entry; (entry = st_dir_next(stream)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            (except != NULL && strcmp(entry->d_name, except) == 0))
            continue;
        rc = clear_entry(dir_fd, entry->d_name, depth);
        if (first == 0)
            first = rc;
    }
    if (first == 0)
        first = -errno; /* of reading the directory; 0 at its end */
    closedir(stream);
    return first;
}

int st_tree_clear(int dir_fd, const char *except)
{
    return clear(dir_fd, except, ST_TREE_DEPTH_MAX);
}

int st_tree_remove(int parent_fd, const char *name)
{
    const int rc = remove_dir(parent_fd, name, ST_TREE_DEPTH_MAX);

    return rc == -ENOTDIR ? unlink_one(parent_fd, name, 0) : rc;
}

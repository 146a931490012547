/* nvme/swap/swap_dir.c - run directories: created, locked, removed, and swept when their owner is dead.
 *
 * Two flocks show that the owner is alive: one on the directory, taken right after it is made, and one on the file `lock` in it,
 * which other hosts see if the file system's locks reach them.  The kernel drops both when the owner dies.  The text in `lock`
 * marks the directory as ours; the file is created before anything else there and removed last.  So a kill at any instant leaves
 * a directory with a name of ours whose locks are free and which is marked, or empty, or holds nothing but an unfinished mark: a
 * sweep removes all three.  An owner whose new directory was swept by mistake makes another.  Only names that strata makes are
 * removed, and an unmarked directory only if nothing else is in it. */
#include "nvme/swap/swap_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/base/size.h"
#include "core/system/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define RUN_PREFIX   "strata-"
#define RUN_DIGITS   16u
#define LOCK_MARKER  "strata swap lock 1\n"
#define CREATE_TRIES 64u /* a sweep may remove a new directory before it is locked; each try loses to one sweep at most */

static strata_status dir_error(int err, const char *what, const char *path)
{
    char reason[128];
    const char *text = strerror_r(err, reason, sizeof(reason));

    switch (err) {
    case ENOENT:
        return st_error(STRATA_E_INPUT, "%s: there is no such directory: create it, or name another with --nvme", path);
    case ENOTDIR:
        return st_error(STRATA_E_INPUT, "%s is not a directory: --nvme takes a directory", path);
    case ENOSPC:
    case EDQUOT:
        return st_error(STRATA_E_NOSPC, "%s %s: %s: free space there, or name another directory with --nvme", what, path, text);
    case ENOMEM:
        return st_error(STRATA_E_NOMEM, "%s %s: %s", what, path, text);
    default:
        return st_error(STRATA_E_IO, "%s %s: %s: name a directory that can be written with --nvme", what, path, text);
    }
}

/* Descriptor, or -errno. */
static int open_at(int dir_fd, const char *name, int flags)
{
    int fd = (int)st_fault("nvme.open", 0);

    if (fd < 0)
        return fd;
    fd = openat(dir_fd, name, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
    return fd < 0 ? -errno : fd;
}

/* 0 or -errno. */
static int lock_file(int fd)
{
    uint32_t interrupted = 0;
    int rc;

    do
        rc = (int)st_fault("nvme.lock", flock(fd, LOCK_EX | LOCK_NB) < 0 ? -errno : 0);
    while (st_again(rc, &interrupted));
    return rc;
}

/* 0 or -errno. */
static int write_marker(int fd)
{
    char text[sizeof(LOCK_MARKER) + 32];
    const int length = snprintf(text, sizeof(text), LOCK_MARKER "pid %ld\n", (long)getpid());
    const int refused = (int)st_fault("nvme.marker", 0);
    uint32_t interrupted = 0;
    int64_t written;

    if (refused < 0)
        return refused;
    do
        if ((written = write(fd, text, (size_t)length)) < 0)
            written = -errno;
    while (st_again(written, &interrupted));
    return written == length ? 0 : written < 0 ? (int)written : -ENOSPC;
}

/* 0 or -errno. */
static int random_id(uint64_t *id)
{
    const int refused = (int)st_fault("nvme.random", 0);

    if (refused < 0)
        return refused;
    return getrandom(id, sizeof(*id), 0) == sizeof(*id) ? 0 : -EIO; /* requests of up to 256 bytes are never short */
}

/* 0 or -errno. */
static int make_dir(int parent_fd, const char *name)
{
    const int refused = (int)st_fault("nvme.mkdir", 0);

    if (refused < 0)
        return refused;
    return mkdirat(parent_fd, name, 0700) < 0 ? -errno : 0;
}

/* `dir` as an absolute path, which stays valid after a chdir. */
static strata_status resolve(const char *dir, char path[PATH_MAX])
{
    const int refused = (int)st_fault("nvme.realpath", 0);
    struct stat info;

    if (refused < 0)
        return dir_error(-refused, "cannot use", dir);
    if (realpath(dir, path) == NULL || stat(path, &info) < 0)
        return dir_error(errno, "cannot use", dir);
    if (!S_ISDIR(info.st_mode))
        return dir_error(ENOTDIR, "cannot use", dir);
    return STRATA_OK;
}

/* 0 or -errno; -ENOENT: a sweep removed it as a dead run's. */
static int has_name(int fd)
{
    struct stat info;

    if (st_fault_refuses("nvme.stat") || fstat(fd, &info) < 0)
        return -errno;
    return info.st_nlink > 0 ? 0 : -ENOENT;
}

/* Opens, locks and marks the directory.  On failure *what says which step failed. */
static int occupy(struct st_run_dir *run, const char **what)
{
    int rc;

    *what = "cannot open";
    if ((rc = open_at(run->parent_fd, run->name, O_RDONLY | O_DIRECTORY)) < 0)
        return rc;
    run->dir_fd = rc;
    *what = "cannot lock";
    if ((rc = lock_file(run->dir_fd)) < 0 || (rc = has_name(run->dir_fd)) < 0)
        return rc;
    *what = "cannot create the lock file in";
    if ((rc = open_at(run->dir_fd, ST_SWAP_LOCK_NAME, O_RDWR | O_CREAT | O_EXCL)) < 0)
        return rc;
    run->lock_fd = rc;
    *what = "cannot lock";
    if ((rc = lock_file(run->lock_fd)) < 0)
        return rc;
    *what = "cannot write the lock file in";
    if ((rc = write_marker(run->lock_fd)) < 0)
        return rc;
    *what = "cannot lock";
    return has_name(run->lock_fd);
}

/* 0 or -errno; -EEXIST, -ENOENT, -EWOULDBLOCK: try another name. */
static int make_and_occupy(struct st_run_dir *run, const char *parent, const char **what)
{
    uint64_t id = 0;
    int rc;

    *what = "cannot create a run directory in";
    if ((rc = random_id(&id)) < 0)
        return rc;
    snprintf(run->name, sizeof(run->name), RUN_PREFIX "%016" PRIx64, id);
    if (snprintf(run->path, sizeof(run->path), "%s/%s", parent, run->name) >= (int)sizeof(run->path))
        return -ENAMETOOLONG;
    if ((rc = make_dir(run->parent_fd, run->name)) < 0)
        return rc;
    run->made = true;
    return occupy(run, what);
}

/* It is fine if the file is already gone: st_swap_unlink_all() may have removed it. */
static bool unlink_known(int dir_fd, const char *name, const char *path)
{
    int rc = (int)st_fault("nvme.unlink", 0);

    if (rc == 0 && unlinkat(dir_fd, name, 0) < 0)
        rc = -errno;
    if (rc == 0 || rc == -ENOENT)
        return true;
    st_log(ST_LOG_WARN, "%s/%s could not be removed: %s", path, name, strerror(-rc));
    return false;
}

/* Removes the lock file last, and keeps it if a file could not be removed: a later sweep recognises the directory by it. */
static void unlink_own(const struct st_run_dir *run)
{
    bool gone = true;

    for (uint32_t v = 0; v < run->volume_count; v++) {
        char name[ST_SWAP_NAME_BYTES];

        st_swap_file_name(name, v, run->index);
        gone = unlink_known(run->dir_fd, name, run->path) && gone;
    }
    if (gone)
        unlink_known(run->dir_fd, ST_SWAP_LOCK_NAME, run->path);
}

void st_run_dir_clear(struct st_run_dir *run)
{
    if (run->dir_fd >= 0)
        unlink_own(run);
    if (run->made && (st_fault_refuses("nvme.unlink") || unlinkat(run->parent_fd, run->name, AT_REMOVEDIR) < 0) &&
        errno != ENOENT)
        st_log(ST_LOG_WARN, "%s could not be removed: %s", run->path, strerror(errno));
    run->made = false;
}

/* Drops the locks and leaves the directory to a sweep. */
static void let_go(struct st_run_dir *run)
{
    if (run->lock_fd >= 0)
        close(run->lock_fd);
    if (run->dir_fd >= 0)
        close(run->dir_fd);
    run->lock_fd = run->dir_fd = -1;
    run->made = false;
}

void st_run_dir_close(struct st_run_dir *run)
{
    let_go(run);
    if (run->parent_fd >= 0)
        close(run->parent_fd);
    run->parent_fd = -1;
}

void st_run_dir_remove(struct st_run_dir *run)
{
    st_run_dir_clear(run);
    st_run_dir_close(run);
}

strata_status st_run_dir_create(struct st_run_dir *run, const char *dir)
{
    char parent[PATH_MAX];
    const char *what = "";
    strata_status st;
    int rc;

    *run = ST_RUN_DIR_NONE;
    if ((st = resolve(dir, parent)) != STRATA_OK)
        return st;
    rc = open_at(AT_FDCWD, parent, O_RDONLY | O_DIRECTORY);
    if (rc < 0)
        return dir_error(-rc, "cannot open", parent);
    run->parent_fd = rc;
    rc = -EEXIST;
    for (uint32_t i = 0; i < CREATE_TRIES && (rc == -EEXIST || rc == -ENOENT || rc == -EWOULDBLOCK); i++) {
        let_go(run);
        rc = make_and_occupy(run, parent, &what);
    }
    if (rc == 0)
        return STRATA_OK;
    st = dir_error(-rc, what, run->made ? run->path : parent);
    st_run_dir_remove(run);
    return st;
}

static bool is_run_name(const char *name)
{
    const size_t prefix = strlen(RUN_PREFIX);

    return strncmp(name, RUN_PREFIX, prefix) == 0 && strlen(name) == prefix + RUN_DIGITS &&
           strspn(name + prefix, "0123456789abcdef") == RUN_DIGITS;
}

enum mark { MARK_FOREIGN, MARK_NONE, MARK_BEGUN, MARK_OURS };

/* Locks a directory's lock file and reads its mark; *lock_fd keeps the lock.  FOREIGN: in use, or not ours. */
static enum mark mark_of(int dir_fd, int *lock_fd)
{
    char text[sizeof(LOCK_MARKER) - 1];
    struct stat info;
    ssize_t bytes;

    *lock_fd = open_at(dir_fd, ST_SWAP_LOCK_NAME, O_RDONLY | O_NONBLOCK);
    if (*lock_fd < 0)
        return *lock_fd == -ENOENT ? MARK_NONE : MARK_FOREIGN;
    if (st_fault_refuses("nvme.stat") || fstat(*lock_fd, &info) < 0 || !S_ISREG(info.st_mode) || lock_file(*lock_fd) < 0)
        return MARK_FOREIGN;
    bytes = st_fault_refuses("nvme.marker") ? -1 : pread(*lock_fd, text, sizeof(text), 0);
    if (bytes < 0 || memcmp(text, LOCK_MARKER, (size_t)bytes) != 0)
        return MARK_FOREIGN;
    return bytes == (ssize_t)sizeof(text) ? MARK_OURS : MARK_BEGUN;
}

/* NULL: it cannot be listed. */
static DIR *list(int dir_fd)
{
    const int fd = open_at(dir_fd, ".", O_RDONLY | O_DIRECTORY);
    DIR *stream = fd >= 0 && !st_fault_refuses("nvme.opendir") ? fdopendir(fd) : NULL;

    if (stream == NULL && fd >= 0)
        close(fd);
    return stream;
}

/* True if the directory holds nothing but the lock file. */
static bool is_empty(int dir_fd)
{
    DIR *stream = list(dir_fd);
    bool empty = stream != NULL;

    for (const struct dirent *entry; empty && (entry = st_dir_next(stream)) != NULL;)
        empty =
            strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 || strcmp(entry->d_name, ST_SWAP_LOCK_NAME) == 0;
    empty = empty && errno == 0; /* a directory that cannot be read does not count as empty */
    if (stream != NULL)
        closedir(stream);
    return empty;
}

/* Whether a file of a swap may have this name. */
static bool is_file_name(const char *name)
{
    char made[ST_SWAP_NAME_BYTES];

    for (uint32_t v = 0; v < ST_SWAP_VOLUMES_MAX; v++)
        for (uint32_t dir = 0; dir < ST_SWAP_DIRS_MAX; dir++) {
            st_swap_file_name(made, v, dir);
            if (strcmp(name, made) == 0)
                return true;
        }
    return false;
}

/* The same as unlink_own() for a directory that a dead run left: nobody knows how many sets it had. */
static void unlink_left(int dir_fd, const char *path)
{
    DIR *stream = list(dir_fd);
    bool gone = stream != NULL;

    for (const struct dirent *entry; stream != NULL && (entry = st_dir_next(stream)) != NULL;)
        if (is_file_name(entry->d_name))
            gone = unlink_known(dir_fd, entry->d_name, path) && gone;
    gone = gone && errno == 0; /* otherwise something may not have been listed */
    if (stream != NULL)
        closedir(stream);
    if (gone)
        unlink_known(dir_fd, ST_SWAP_LOCK_NAME, path);
}

/* True if parent/name was an orphan and is gone. */
static bool sweep_one(int parent_fd, const char *parent, const char *name)
{
    const int dir_fd = open_at(parent_fd, name, O_RDONLY | O_DIRECTORY);
    int lock_fd = -1;
    enum mark mark;
    bool gone = false;

    if (dir_fd < 0)
        return false;
    mark = lock_file(dir_fd) == 0 ? mark_of(dir_fd, &lock_fd) : MARK_FOREIGN;
    if (mark == MARK_OURS || (mark != MARK_FOREIGN && is_empty(dir_fd))) {
        unlink_left(dir_fd, name);
        gone = !st_fault_refuses("nvme.unlink") && unlinkat(parent_fd, name, AT_REMOVEDIR) == 0;
        if (!gone && errno != ENOENT)
            st_log(ST_LOG_WARN, "%s/%s, left by a run that died, could not be removed: %s", parent, name, strerror(errno));
    }
    if (lock_fd >= 0)
        close(lock_fd);
    close(dir_fd);
    return gone;
}

uint32_t st_swap_sweep(const char *dir)
{
    uint32_t removed = 0;
    struct dirent *entry;
    DIR *stream = st_fault_refuses("nvme.opendir") ? NULL : opendir(dir);

    if (stream == NULL)
        return 0;
    while ((entry = st_dir_next(stream)) != NULL)
        if (is_run_name(entry->d_name) && sweep_one(dirfd(stream), dir, entry->d_name))
            removed++;
    st_users_sweep_at(dirfd(stream));
    closedir(stream);
    if (removed > 0)
        st_log(ST_LOG_NOTICE, "%s: removed swap space of %" PRIu32 " dead run%s", dir, removed, removed == 1 ? "" : "s");
    return removed;
}

strata_status st_swap_free_bytes(const char *dir, uint64_t *out)
{
    char path[PATH_MAX];
    struct statvfs info;
    strata_status st = resolve(dir, path);
    int rc;

    if (st != STRATA_OK)
        return st;
    rc = (int)st_fault("nvme.statvfs", 0);
    if (rc == 0 && statvfs(path, &info) < 0)
        rc = -errno;
    if (rc < 0)
        return dir_error(-rc, "cannot read the free space of", dir);
    *out = (uint64_t)info.f_bavail * info.f_frsize;
    return STRATA_OK;
}

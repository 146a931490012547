/* nvme/swap_dir.c - run directories: created, locked, removed, and swept when their owner is dead.
 *
 * The lock is flock() on DIR/strata-RUNID/lock, which the kernel drops when its owner dies.  The text is written after
 * the lock is held, so a directory whose lock file is free and marked has a dead owner.  Only names we make are removed. */
#include "nvme/swap_parts.h"

#include "core/error.h"
#include "core/fault.h"
#include "core/log.h"
#include "core/size.h"

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
#define CREATE_TRIES 8u /* run ids are 64 random bits */

static strata_status dir_error(int err, const char *what, const char *path)
{
    char reason[128];
    const char *text = strerror_r(err, reason, sizeof(reason));

    switch (err) {
    case ENOENT:
        return st_error(STRATA_E_INVAL, "%s: there is no such directory: create it, or name another with --nvme", path);
    case ENOTDIR:
        return st_error(STRATA_E_INVAL, "%s is not a directory: --nvme takes a directory", path);
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
    int rc = (int)st_fault("nvme.lock", 0);

    while (rc == 0 && flock(fd, LOCK_EX | LOCK_NB) < 0)
        if (errno != EINTR)
            rc = -errno;
    return rc;
}

/* 0 or -errno. */
static int write_marker(int fd)
{
    char text[sizeof(LOCK_MARKER) + 32];
    const int length = snprintf(text, sizeof(text), LOCK_MARKER "pid %ld\n", (long)getpid());
    const int refused = (int)st_fault("nvme.marker", 0);
    ssize_t written;

    if (refused < 0)
        return refused;
    do
        written = write(fd, text, (size_t)length);
    while (written < 0 && errno == EINTR);
    return written == length ? 0 : written < 0 ? -errno : -ENOSPC;
}

static strata_status lock_create(struct st_run_dir *run)
{
    int rc = open_at(run->dir_fd, ST_SWAP_LOCK_NAME, O_RDWR | O_CREAT | O_EXCL);

    if (rc < 0)
        return dir_error(-rc, "cannot create the lock file in", run->path);
    run->lock_fd = rc;
    if ((rc = lock_file(run->lock_fd)) < 0)
        return dir_error(-rc, "cannot lock", run->path);
    if ((rc = write_marker(run->lock_fd)) < 0)
        return dir_error(-rc, "cannot write the lock file in", run->path);
    return STRATA_OK;
}

/* 0 or -errno. */
static int random_id(uint64_t *id)
{
    const int refused = (int)st_fault("nvme.random", 0);

    if (refused < 0)
        return refused;
    return getrandom(id, sizeof(*id), 0) == sizeof(*id) ? 0 : -EIO; /* at most 256 bytes: never short */
}

/* 0 or -errno. */
static int make_dir(const char *path)
{
    const int refused = (int)st_fault("nvme.mkdir", 0);

    if (refused < 0)
        return refused;
    return mkdir(path, 0700) < 0 ? -errno : 0;
}

static strata_status run_dir_make(struct st_run_dir *run, const char *parent)
{
    int rc = -EEXIST;

    for (uint32_t i = 0; i < CREATE_TRIES && rc == -EEXIST; i++) {
        uint64_t id = 0;

        if ((rc = random_id(&id)) < 0)
            break;
        if (snprintf(run->path, sizeof(run->path), "%s/" RUN_PREFIX "%016" PRIx64, parent, id) >= (int)sizeof(run->path))
            rc = -ENAMETOOLONG;
        else
            rc = make_dir(run->path);
    }
    if (rc < 0)
        return dir_error(-rc, "cannot create a run directory in", parent);
    run->made = true;
    return STRATA_OK;
}

/* `dir` as an absolute path, which stays right after a chdir. */
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

strata_status st_run_dir_create(struct st_run_dir *run, const char *dir)
{
    char parent[PATH_MAX];
    strata_status st;

    *run = (struct st_run_dir){.dir_fd = -1, .lock_fd = -1};
    if ((st = resolve(dir, parent)) != STRATA_OK)
        return st;
    if ((st = run_dir_make(run, parent)) != STRATA_OK)
        return st;
    run->dir_fd = open_at(AT_FDCWD, run->path, O_RDONLY | O_DIRECTORY);
    st = run->dir_fd < 0 ? dir_error(-run->dir_fd, "cannot open", run->path) : lock_create(run);
    if (st != STRATA_OK)
        st_run_dir_remove(run);
    return st;
}

/* A file that is already gone is fine: st_swap_unlink_all() may have been there first. */
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

/* The lock goes last, and stays if a file does: a later sweep knows the directory by it. */
static void unlink_all_known(int dir_fd, const char *path)
{
    bool gone = true;

    for (uint32_t i = 0; i < ST_SWAP_DIRS_MAX; i++) {
        char name[32];

        snprintf(name, sizeof(name), ST_SWAP_FILE_NAME "%" PRIu32, i);
        gone = unlink_known(dir_fd, name, path) && gone;
    }
    if (gone)
        unlink_known(dir_fd, ST_SWAP_LOCK_NAME, path);
}

void st_run_dir_remove(struct st_run_dir *run)
{
    if (run->dir_fd >= 0) {
        unlink_all_known(run->dir_fd, run->path);
        close(run->dir_fd);
    }
    if (run->made && rmdir(run->path) < 0 && errno != ENOENT)
        st_log(ST_LOG_WARN, "%s could not be removed: %s", run->path, strerror(errno));
    if (run->lock_fd >= 0)
        close(run->lock_fd);
    run->dir_fd = run->lock_fd = -1;
    run->made = false;
}

static bool is_run_name(const char *name)
{
    const size_t prefix = strlen(RUN_PREFIX);

    return strncmp(name, RUN_PREFIX, prefix) == 0 && strlen(name) == prefix + RUN_DIGITS &&
           strspn(name + prefix, "0123456789abcdef") == RUN_DIGITS;
}

/* Descriptor of the locked, marked lock file in dir_fd: its owner is dead.  -1: in use, or not ours. */
static int lock_orphan(int dir_fd)
{
    char text[sizeof(LOCK_MARKER) - 1];
    const int fd = open_at(dir_fd, ST_SWAP_LOCK_NAME, O_RDONLY | O_NONBLOCK);
    struct stat info;

    if (fd < 0)
        return -1;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && lock_file(fd) == 0 &&
        pread(fd, text, sizeof(text), 0) == (ssize_t)sizeof(text) && memcmp(text, LOCK_MARKER, sizeof(text)) == 0)
        return fd;
    close(fd);
    return -1;
}

/* True if parent/name was an orphan and is gone. */
static bool sweep_one(int parent_fd, const char *parent, const char *name)
{
    const int dir_fd = open_at(parent_fd, name, O_RDONLY | O_DIRECTORY);
    int lock_fd;
    bool gone = false;

    if (dir_fd < 0)
        return false;
    lock_fd = lock_orphan(dir_fd);
    if (lock_fd >= 0) {
        unlink_all_known(dir_fd, name);
        gone = unlinkat(parent_fd, name, AT_REMOVEDIR) == 0;
        if (!gone && errno != ENOENT)
            st_log(ST_LOG_WARN, "%s/%s of a run that died could not be removed: %s", parent, name, strerror(errno));
        close(lock_fd);
    }
    close(dir_fd);
    return gone;
}

uint32_t st_swap_sweep(const char *dir)
{
    uint32_t removed = 0;
    struct dirent *entry;
    DIR *stream = opendir(dir);

    if (stream == NULL)
        return 0;
    while ((entry = readdir(stream)) != NULL)
        if (is_run_name(entry->d_name) && sweep_one(dirfd(stream), dir, entry->d_name))
            removed++;
    closedir(stream);
    st_share_sweep(dir);
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

/* core/system/owned_dir.c - see core/system/owned_dir.h.
 *
 * The text in `lock` marks the directory as ours; the file is created before anything else there and removed last.  So a kill at
 * any instant leaves a directory with a name of ours whose locks are free and which is marked, or empty, or holds nothing but an
 * unfinished mark: a sweep removes all three.  An owner whose new directory was swept by mistake makes another. */
#include "core/system/owned_dir.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/system/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define ID_DIGITS    16u
#define MARK_MOST    64u
#define CREATE_TRIES 64u /* a sweep may remove a new directory before it is locked; each try loses to one sweep at most */

strata_status st_owned_dir_error(int err, const char *what, const char *path, const char *key)
{
    char reason[ST_ERRNO_BYTES];
    const char *text = st_errno_text(err, reason);
    char word[ST_PATH_MAX];

    switch (err) {
    case ENOENT:
        return st_error_remedy(st_error(STRATA_E_INPUT, "%s: there is no such directory", path), key,
                               "mkdir -p %s makes it, or name another with %s", st_text_shell(word, sizeof(word), path), key);
    case ENOTDIR:
        return st_error_remedy(st_error(STRATA_E_INPUT, "%s is not a directory", path), key, "%s takes a directory", key);
    case ENOSPC:
    case EDQUOT:
        return st_error_remedy(st_error(STRATA_E_NOSPC, "%s %s: %s", what, path, text), key,
                               "free space there, or name another directory with %s", key);
    case ENOMEM:
        return st_error(STRATA_E_NOMEM, "%s %s: %s", what, path, text);
    case EMFILE:
    case ENFILE:
        return st_error(STRATA_E_IO, "%s %s: %s", what, path, text);
    default:
        return st_error_remedy(st_error(STRATA_E_IO, "%s %s: %s", what, path, text), key,
                               "name a directory that can be written with %s", key);
    }
}

/* Descriptor, or -errno. */
static int open_at(int dir_fd, const char *name, int flags)
{
    int fd = (int)st_fault("owned.open", 0);

    if (fd < 0)
        return fd;
    fd = openat(dir_fd, name, flags | O_CLOEXEC | O_NOFOLLOW, 0644);
    return fd < 0 ? -errno : fd;
}

/* 0 or -errno. */
static int lock_file(int fd)
{
    uint32_t interrupted = 0;
    int rc;

    do
        rc = (int)st_fault("owned.lock", st_result(flock(fd, LOCK_EX | LOCK_NB)));
    while (st_again(rc, &interrupted));
    return rc;
}

/* 0 or -errno. */
static int write_mark(int fd, const char *mark)
{
    char text[MARK_MOST + 32];
    const int length = snprintf(text, sizeof(text), "%spid %ld\n", mark, (long)getpid());
    const int refused = (int)st_fault("owned.mark", 0);
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
static int sync_fd(int fd)
{
    const int rc = (int)st_fault("owned.sync", st_result(fsync(fd)));

    return rc == -EINVAL ? 0 : rc; /* some file systems cannot sync a directory */
}

/* 0 or -errno; -ENOENT: a sweep removed it as a dead process's. */
static int has_name(int fd)
{
    struct stat info;

    if (st_fault_refuses("owned.stat") || fstat(fd, &info) < 0)
        return -errno;
    return info.st_nlink > 0 ? 0 : -ENOENT;
}

/* Opens, locks and marks the directory.  On failure *what says which step failed. */
static int occupy(struct st_owned_dir *d, const char **what)
{
    int rc;

    *what = "cannot open";
    if ((rc = open_at(d->parent_fd, d->name, O_RDONLY | O_DIRECTORY)) < 0)
        return rc;
    d->dir_fd = rc;
    *what = "cannot lock";
    if ((rc = lock_file(d->dir_fd)) < 0 || (rc = has_name(d->dir_fd)) < 0)
        return rc;
    *what = "cannot create the lock file in";
    if ((rc = open_at(d->dir_fd, ST_OWNED_DIR_LOCK, O_RDWR | O_CREAT | O_EXCL)) < 0)
        return rc;
    d->lock_fd = rc;
    *what = "cannot lock";
    if ((rc = lock_file(d->lock_fd)) < 0)
        return rc;
    *what = "cannot write the lock file in";
    if ((rc = write_mark(d->lock_fd, d->kind->mark)) < 0)
        return rc;
    if ((rc = sync_fd(d->lock_fd)) < 0 ||
        (rc = sync_fd(d->dir_fd)) < 0) /* or a power cut may leave what is put beside it alone */
        return rc;
    *what = "cannot lock";
    return has_name(d->lock_fd);
}

/* 0 or -errno; -EEXIST, -ENOENT, -EWOULDBLOCK: try another name. */
static int make_and_occupy(struct st_owned_dir *d, const char *parent, const char **what)
{
    uint64_t id = 0;
    int rc = (int)st_fault("owned.mkdir", 0);

    *what = "cannot create a run directory in";
    if (rc < 0)
        return rc;
    if (st_fault_refuses("owned.random") || getrandom(&id, sizeof(id), 0) != sizeof(id))
        return -EIO; /* requests of up to 256 bytes are never short */
    snprintf(d->name, sizeof(d->name), "%s%016" PRIx64, d->kind->prefix, id);
    if (snprintf(d->path, sizeof(d->path), "%s/%s", parent, d->name) >= (int)sizeof(d->path))
        return -ENAMETOOLONG;
    if (mkdirat(d->parent_fd, d->name, d->kind->mode) < 0)
        return -errno;
    d->made = true;
    return occupy(d, what);
}

/* Drops the locks and leaves the directory to a sweep. */
static void let_go(struct st_owned_dir *d)
{
    if (d->lock_fd >= 0)
        close(d->lock_fd);
    if (d->dir_fd >= 0)
        close(d->dir_fd);
    d->lock_fd = d->dir_fd = -1;
    d->made = false;
}

void st_owned_dir_close(struct st_owned_dir *d)
{
    let_go(d);
    if (d->parent_fd >= 0)
        close(d->parent_fd);
    d->parent_fd = -1;
}

/* It is fine if it is gone already: whoever ends the process removes it, too. */
static bool unlink_at(int dir_fd, const char *name, int flags, const char *path)
{
    const int refused = (int)st_fault("owned.unlink", 0);
    const int rc = refused < 0 ? refused : unlinkat(dir_fd, name, flags) < 0 ? -errno : 0;
    char reason[ST_ERRNO_BYTES];

    if (rc == 0 || rc == -ENOENT)
        return true;
    st_log(ST_LOG_WARN, "%s: cannot be removed: %s", path, st_errno_text(-rc, reason));
    return false;
}

/* The lock goes last, and stays if something else does: a later sweep recognises the directory by it.  The disk must not be told
 * of that first, either. */
static bool remove_contents(const struct st_owned_dir_kind *kind, int dir_fd, const char *path)
{
    if (!kind->clear(dir_fd, path))
        return false;
    (void)sync_fd(dir_fd);
    return unlink_at(dir_fd, ST_OWNED_DIR_LOCK, 0, path);
}

void st_owned_dir_clear(struct st_owned_dir *d)
{
    if (d->made && (d->dir_fd < 0 || remove_contents(d->kind, d->dir_fd, d->path)))
        (void)unlink_at(d->parent_fd, d->name, AT_REMOVEDIR, d->path);
    d->made = false;
}

void st_owned_dir_remove(struct st_owned_dir *d)
{
    st_owned_dir_clear(d);
    st_owned_dir_close(d);
}

strata_status st_owned_dir_create(struct st_owned_dir *d, const struct st_owned_dir_kind *kind, const char *parent)
{
    char absolute[PATH_MAX]; /* which stays valid after a chdir */
    const char *what = "";
    strata_status st;
    int rc;

    *d = ST_OWNED_DIR_NONE;
    d->kind = kind;
    if (st_fault_refuses("owned.realpath") || realpath(parent, absolute) == NULL)
        return st_owned_dir_error(errno, "cannot use", parent, kind->key);
    rc = open_at(AT_FDCWD, absolute, O_RDONLY | O_DIRECTORY);
    if (rc < 0)
        return st_owned_dir_error(-rc, "cannot open", absolute, kind->key);
    d->parent_fd = rc;
    rc = -EEXIST;
    for (uint32_t i = 0; i < CREATE_TRIES && (rc == -EEXIST || rc == -ENOENT || rc == -EWOULDBLOCK); i++) {
        let_go(d);
        rc = make_and_occupy(d, absolute, &what);
    }
    if (rc == 0)
        return STRATA_OK;
    st = st_owned_dir_error(-rc, what, d->made ? d->path : absolute, kind->key);
    st_owned_dir_remove(d);
    return st;
}

/* --- those of others --- */

static bool is_name(const struct st_owned_dir_kind *kind, const char *name)
{
    const size_t prefix = strlen(kind->prefix);

    return strncmp(name, kind->prefix, prefix) == 0 && strlen(name) == prefix + ID_DIGITS &&
           strspn(name + prefix, "0123456789abcdef") == ID_DIGITS;
}

/* True if the directory holds nothing but the lock file. */
static bool is_empty(int dir_fd)
{
    const int fd = open_at(dir_fd, ".", O_RDONLY | O_DIRECTORY);
    DIR *stream = fd >= 0 && !st_fault_refuses("owned.opendir") ? fdopendir(fd) : NULL;
    bool empty = stream != NULL;

    if (stream == NULL && fd >= 0)
        close(fd);
    for (const struct dirent *entry; empty && (entry = st_dir_next(stream)) != NULL;)
        empty =
            strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 || strcmp(entry->d_name, ST_OWNED_DIR_LOCK) == 0;
    empty = empty && errno == 0; /* a directory that cannot be read does not count as empty */
    if (stream != NULL)
        closedir(stream);
    return empty;
}

/* What a refusal to open something there says of it. */
static enum st_owned_dir_state refused(int rc)
{
    return rc == -EACCES || rc == -EPERM ? ST_OWNED_DIR_HIDDEN : ST_OWNED_DIR_FOREIGN;
}

/* Takes both locks of a dead owner's directory; *lock_fd keeps the second. */
static enum st_owned_dir_state state_of(const struct st_owned_dir_kind *kind, int dir_fd, int *lock_fd)
{
    const size_t length = strlen(kind->mark);
    char text[MARK_MOST];
    struct stat info;
    ssize_t bytes;
    int rc = lock_file(dir_fd);

    *lock_fd = -1;
    if (rc < 0)
        return rc == -EWOULDBLOCK ? ST_OWNED_DIR_LIVE : ST_OWNED_DIR_FOREIGN;
    *lock_fd = open_at(dir_fd, ST_OWNED_DIR_LOCK, O_RDONLY | O_NONBLOCK);
    if (*lock_fd < 0)
        return *lock_fd == -ENOENT && is_empty(dir_fd) ? ST_OWNED_DIR_DEAD : refused(*lock_fd);
    if (st_fault_refuses("owned.stat") || fstat(*lock_fd, &info) < 0 || !S_ISREG(info.st_mode))
        return ST_OWNED_DIR_FOREIGN;
    if ((rc = lock_file(*lock_fd)) < 0)
        return rc == -EWOULDBLOCK ? ST_OWNED_DIR_LIVE : ST_OWNED_DIR_FOREIGN;
    bytes = st_fault_refuses("owned.mark") ? -1 : pread(*lock_fd, text, length, 0);
    if (bytes < 0 || memcmp(text, kind->mark, (size_t)bytes) != 0)
        return ST_OWNED_DIR_FOREIGN;
    return bytes == (ssize_t)length || is_empty(dir_fd) ? ST_OWNED_DIR_DEAD : ST_OWNED_DIR_FOREIGN;
}

/* *gone: it was a dead owner's, and has been removed; *counts: and an owner had it.  One without a lock file may be a live
 * process's that has not come to lock it, and makes another. */
static enum st_owned_dir_state look_at(const struct st_owned_dir_kind *kind, int parent_fd, const char *parent, const char *name,
                                       bool sweep, bool *gone, bool *counts)
{
    const int dir_fd = open_at(parent_fd, name, O_RDONLY | O_DIRECTORY);
    enum st_owned_dir_state state;
    char path[PATH_MAX + 64];
    int lock_fd;

    *gone = *counts = false;
    if (dir_fd < 0)
        return refused(dir_fd);
    snprintf(path, sizeof(path), "%s/%s, left by a run that died", parent, name);
    state = state_of(kind, dir_fd, &lock_fd);
    if (state == ST_OWNED_DIR_DEAD && sweep)
        *gone = remove_contents(kind, dir_fd, path) && unlink_at(parent_fd, name, AT_REMOVEDIR, path);
    *counts = *gone && lock_fd >= 0;
    if (lock_fd >= 0)
        close(lock_fd);
    close(dir_fd);
    return state;
}

uint32_t st_owned_dir_each(const struct st_owned_dir_kind *kind, int parent_fd, const char *path, const char *except, bool sweep,
                           st_owned_dir_fn *seen, void *ctx)
{
    const int fd = open_at(parent_fd, ".", O_RDONLY | O_DIRECTORY);
    DIR *stream = fd >= 0 && !st_fault_refuses("owned.opendir") ? fdopendir(fd) : NULL;
    uint32_t removed = 0;

    if (stream == NULL && fd >= 0)
        close(fd);
    for (const struct dirent *entry; stream != NULL && (entry = st_dir_next(stream)) != NULL;) {
        enum st_owned_dir_state state;
        bool gone, counts;

        if (!is_name(kind, entry->d_name) || (except != NULL && strcmp(entry->d_name, except) == 0))
            continue;
        state = look_at(kind, parent_fd, path, entry->d_name, sweep, &gone, &counts);
        removed += counts;
        if (!gone && seen != NULL)
            seen(ctx, entry->d_name, state);
    }
    if (stream != NULL)
        closedir(stream);
    return removed;
}

struct leftovers {
    const char *dir;
    void (*seen)(void *ctx, const char *path, bool live);
    void *ctx;
};

static void leftover_seen(void *ctx, const char *name, enum st_owned_dir_state state)
{
    const struct leftovers *l = ctx;
    char path[ST_PATH_MAX];

    if (state == ST_OWNED_DIR_FOREIGN || st_path_join(path, l->dir, name) != STRATA_OK)
        return;
    if (state == ST_OWNED_DIR_HIDDEN)
        st_log(ST_LOG_WARN, "%s: is another user's, and cannot be looked into: its run may be dead", path);
    l->seen(l->ctx, path, state != ST_OWNED_DIR_DEAD);
}

uint32_t st_owned_dir_leftovers(const struct st_owned_dir_kind *kind, int parent_fd, const char *path, bool sweep,
                                void (*seen)(void *ctx, const char *path, bool live), void *ctx)
{
    struct leftovers l = {.dir = path, .seen = seen, .ctx = ctx};

    return st_owned_dir_each(kind, parent_fd, path, NULL, sweep, seen != NULL ? leftover_seen : NULL, &l);
}

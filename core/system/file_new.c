/* core/system/file_new.c - creating files: see file.h.
 *
 * Until its writer has locked it, a new file looks like one that a dead process left.  So the writer takes the lock and then
 * checks that the file still has its name: if another process is removing dead files at that moment, one of the two gets the
 * lock, and the other begins again or leaves the file alone. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/system/cleanup.h"
#include "core/system/file.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEMP_MARK    ST_NEW_FILE_MARK
#define TEMP_END     ".tmp"
#define ID_DIGITS    16u
#define CREATE_TRIES 8u

/* --- what is there already --- */

static strata_status check_target(const char *path, bool overwrite)
{
    struct stat info;

    if (st_path_name(path)[0] == '\0')
        return st_error(STRATA_E_INPUT, "%s: is not a file name", path);
    if (st_fault_refuses("file.target") || lstat(path, &info) != 0)
        return errno == ENOENT || errno == ENOTDIR || errno == EACCES /* the check of its directory gives a better message */
                   ? STRATA_OK
                   : st_error_errno(errno, "%s: cannot be created", path);
    if (S_ISREG(info.st_mode))
        return overwrite ? STRATA_OK
                         : st_error_remedy(st_error(STRATA_E_INPUT, "%s: exists already", path), "export.overwrite",
                                           "export.overwrite replaces it");
    if (S_ISLNK(info.st_mode))
        return st_error(STRATA_E_INPUT, "%s: is a link, and strata does not write through links: name another file", path);
    return st_error(STRATA_E_INPUT, "%s: is %s, not a file", path, S_ISDIR(info.st_mode) ? "a directory" : "a device or a pipe");
}

bool st_new_file_is_same(const char *a, const char *b)
{
    char dir_a[ST_PATH_MAX], dir_b[ST_PATH_MAX];

    return st_file_is_same(a, b) || (strcmp(st_path_name(a), st_path_name(b)) == 0 && st_path_dir(dir_a, a) == STRATA_OK &&
                                     st_path_dir(dir_b, b) == STRATA_OK && st_file_is_same(dir_a, dir_b));
}

bool st_new_file_is_dir(const char *path, const char *dir)
{
    char a[ST_PATH_MAX], b[ST_PATH_MAX];

    snprintf(a, sizeof(a), "%.*s", (int)st_path_length(path), path);
    snprintf(b, sizeof(b), "%.*s", (int)st_path_length(dir), dir);
    return st_new_file_is_same(a, b);
}

strata_status st_new_file_no_place(int err, const char *what, const char *dir)
{
    char word[ST_PATH_MAX];

    if (err != ENOENT)
        return st_error_errno(err, "%s: cannot be created in %s", what, dir);
    return st_error(STRATA_E_INPUT, "%s: cannot be created in %s: No such file or directory: mkdir -p %s makes it", what, dir,
                    st_text_shell(word, sizeof(word), dir));
}

strata_status st_new_file_check(const char *path, bool overwrite)
{
    char dir[ST_PATH_MAX];
    struct stat info;
    strata_status st;

    if (strlen(path) >= ST_PATH_MAX)
        return st_error(STRATA_E_INPUT, "%.64s...: the name is too long", path);
    if ((st = check_target(path, overwrite)) != STRATA_OK || (st = st_path_dir(dir, path)) != STRATA_OK)
        return st;
    if (!st_fault_refuses("file.access") && access(dir, W_OK | X_OK) == 0)
        return STRATA_OK;
    if (stat(dir, &info) == 0 && !S_ISDIR(info.st_mode))
        errno = ENOTDIR; /* for root, access() would blame permissions */
    return st_new_file_no_place(errno, path, dir);
}

/* --- directories --- */

static strata_status make_one(const char *path, bool *made)
{
    struct stat info;
    int64_t res;

    *made = false;
    if (st_fault_refuses("file.parent") || stat(path, &info) != 0) {
        if (errno != ENOENT)
            return st_error_errno(errno, "looking at %s", path);
    } else if (S_ISDIR(info.st_mode)) {
        return STRATA_OK;
    }
    res = st_fault("file.mkdir", 0);
    if (res == 0)
        res = st_result(mkdir(path, 0777));
    if (res == -EEXIST) /* a file, a link to nothing, or a directory that another run made meanwhile */
        return stat(path, &info) == 0 && S_ISDIR(info.st_mode) ? STRATA_OK
                                                               : st_error(STRATA_E_INPUT, "%s is not a directory", path);
    if (res < 0)
        return st_error_errno((int)-res, "making directory %s", path);
    *made = true;
    return STRATA_OK;
}

/* mkdir -p of the directory; records where the new part begins. */
static strata_status make_parents(struct st_new_file *f)
{
    char dir[ST_PATH_MAX];
    strata_status st;
    bool made;

    for (size_t end = 1; end < f->base; end++) {
        if (f->path[end] != '/')
            continue;
        snprintf(dir, sizeof(dir), "%.*s", (int)end, f->path);
        if ((st = make_one(dir, &made)) != STRATA_OK)
            return st_error_prefix(st, "%s", f->path);
        if (made && f->made_from == f->base)
            f->made_from = end - 1;
    }
    return STRATA_OK;
}

/* Removes the directories that were made, if they are empty.  No fault site: an empty directory that stays does no harm. */
static void remove_parents(const struct st_new_file *f)
{
    char dir[ST_PATH_MAX];

    for (size_t end = f->base; end > f->made_from + 1; end--) {
        if (f->path[end - 1] != '/')
            continue;
        snprintf(dir, sizeof(dir), "%.*s", (int)(end - 1), f->path);
        if (rmdir(dir) != 0)
            return;
    }
}

static strata_status open_directory(struct st_new_file *f)
{
    char dir[ST_PATH_MAX];
    int64_t res = st_fault("file.open_directory", 0);
    const strata_status st = st_path_dir(dir, f->path);

    if (st != STRATA_OK)
        return st;
    if (res == 0)
        res = st_result(open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (res < 0)
        return st_new_file_no_place((int)-res, f->path, dir);
    f->dir_fd = (int)res;
    return STRATA_OK;
}

/* --- files being written --- */

static bool same_directory(int a, int b)
{
    struct stat one, other;

    return !st_fault_refuses("file.same") && fstat(a, &one) == 0 && fstat(b, &other) == 0 && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}

/* A file that did not get its name leaves nothing behind.  No fault site: if it cannot be removed, the next writer's sweep does
 * it. */
static void remove_traces(void *file)
{
    const struct st_new_file *f = file;

    if (f->named || f->kept || f->cleanup.pid != getpid())
        return;
    if (f->temp[0] != '\0')
        (void)unlinkat(f->dir_fd, f->temp, 0);
    remove_parents(f);
}

/* False: this process is already writing that file. */
static bool live_add(struct st_new_file *f)
{
    bool is_new = true;

    st_cleanup_lock();
    for (const struct st_cleanup *c = st_cleanup_last(); c != NULL; c = c->next) {
        const struct st_new_file *at = c->owner;

        if (c->remove == remove_traces && strcmp(at->path + at->base, f->path + f->base) == 0 &&
            same_directory(at->dir_fd, f->dir_fd))
            is_new = false;
    }
    st_cleanup_unlock();
    if (is_new)
        st_cleanup_add(&f->cleanup, remove_traces, f);
    return is_new;
}

/* Closes the descriptors after that, so that the list never holds a number that has been reused.  The lock goes, too. */
static void live_remove(struct st_new_file *f)
{
    st_cleanup_drop(&f->cleanup);
    if (f->stream != NULL)
        fclose(f->stream);
    if (f->fd >= 0 && f->cleanup.pid == getpid() && !st_fault_refuses("file.unlock"))
        (void)flock(f->fd, LOCK_UN); /* closing does not end it while a child of fork() has the descriptor, too */
    if (f->fd >= 0)
        close(f->fd);
    close(f->dir_fd);
    f->stream = NULL;
    f->fd = f->dir_fd = -1;
}

/* --- locks --- */

/* 0 or -errno; -EWOULDBLOCK: its writer is alive. */
static int64_t lock_file(int fd)
{
    uint32_t interrupted = 0;
    int64_t res;

    do
        res = st_fault("file.lock", st_result(flock(fd, LOCK_EX | LOCK_NB)));
    while (st_again(res, &interrupted));
    return res;
}

static bool is_temp_of(const char *name, const char *base)
{
    const size_t length = strlen(base), mark = strlen(TEMP_MARK);

    return strncmp(name, base, length) == 0 && strncmp(name + length, TEMP_MARK, mark) == 0 &&
           strspn(name + length + mark, "0123456789abcdef") == ID_DIGITS &&
           strcmp(name + length + mark + ID_DIGITS, TEMP_END) == 0;
}

/* Opens a file in order to lock it.  Locks need write access only on NFS, and copies may be read-only. */
static int open_to_lock(int dir_fd, const char *name)
{
    const int flags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    const int fd = openat(dir_fd, name, O_RDWR | flags);

    return fd < 0 && errno == EACCES ? openat(dir_fd, name, O_RDONLY | flags) : fd;
}

/* E_INPUT if a live process is writing `name`; a new file left by a dead one is removed. */
static strata_status look_at(const struct st_new_file *f, const char *name, bool is_temp)
{
    const int fd = st_fault_refuses("file.look_at") ? -1 : open_to_lock(f->dir_fd, name);
    struct stat info;
    strata_status st = STRATA_OK;
    int64_t res;

    if (fd < 0)
        return STRATA_OK;
    if (!st_fault_refuses("file.look_at") && fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
        res = lock_file(fd);
        if (res == -EWOULDBLOCK)
            st = st_error(STRATA_E_INPUT, "%s: another run is writing it: wait for its end, or name another file", f->path);
        else if (res == 0 && is_temp)
            (void)unlinkat(f->dir_fd, name, 0);
        if (res == 0)
            (void)flock(fd, LOCK_UN);
    }
    close(fd);
    return st;
}

/* Looks at the new files of others first, then at the name itself, so that a file that takes its name in between is found
 * there. */
static strata_status look_around(const struct st_new_file *f)
{
    const char *base = f->path + f->base;
    const int fd = st_fault_refuses("file.look_around") ? -1 : openat(f->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 && !st_fault_refuses("file.look_around") ? fdopendir(fd) : NULL;
    strata_status st = STRATA_OK;
    struct dirent *entry;

    if (dir == NULL) {
        st = st_error_errno(errno, "%s: its directory cannot be read", f->path);
        if (fd >= 0)
            close(fd);
        return st;
    }
    while (st == STRATA_OK && (entry = st_dir_next(dir)) != NULL)
        if (is_temp_of(entry->d_name, base) && strcmp(entry->d_name, f->temp) != 0)
            st = look_at(f, entry->d_name, true);
    if (st == STRATA_OK && errno != 0)
        st = st_error_errno(errno, "%s: its directory cannot be read", f->path);
    closedir(dir);
    return st == STRATA_OK ? look_at(f, base, false) : st;
}

/* --- making --- */

/* A descriptor of a new file that is locked and still has its name, or -errno. */
static int64_t open_locked(struct st_new_file *f)
{
    struct stat info;
    uint64_t id;
    int64_t res = st_fault("file.create", 0);
    int fd;

    if (res < 0)
        return res;
    if (st_fault_refuses("file.random") || getrandom(&id, sizeof(id), 0) != sizeof(id))
        return -EIO;
    if (snprintf(f->temp, sizeof(f->temp), "%s" TEMP_MARK "%016" PRIx64 TEMP_END, f->path + f->base, id) >= (int)sizeof(f->temp))
        return -ENAMETOOLONG;
    fd = openat(f->dir_fd, f->temp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, f->permissions);
    if (fd < 0)
        return -errno;
    res = lock_file(fd);
    if (res == -EWOULDBLOCK) {
        close(fd); /* another process took it for a dead one's file and will remove it */
        return -EAGAIN;
    }
    if (st_fault_refuses("file.links") || fstat(fd, &info) != 0) {
        res = -errno;
        (void)unlinkat(f->dir_fd, f->temp, 0);
        close(fd);
        return res;
    }
    if (res == 0 && info.st_nlink == 0) {
        close(fd); /* another process took it for a dead one's file and has removed it */
        return -EAGAIN;
    }
    return fd;
}

static strata_status create_temp(struct st_new_file *f)
{
    int64_t res = -EAGAIN;

    for (uint32_t i = 0; i < CREATE_TRIES && (res == -EAGAIN || res == -EEXIST); i++)
        res = open_locked(f);
    if (res < 0) {
        f->temp[0] = '\0';
        return st_error_errno((int)-res, "%s: cannot be created", f->path);
    }
    f->fd = (int)res;
    return look_around(f);
}

static strata_status create(struct st_new_file *f, unsigned flags)
{
    strata_status st;

    if (((flags & ST_NEW_FILE_PARENTS) != 0 && (st = make_parents(f)) != STRATA_OK) || (st = open_directory(f)) != STRATA_OK) {
        remove_parents(f);
        return st;
    }
    if (!live_add(f))
        st = st_error(STRATA_E_INPUT, "%s: is the name of two outputs: name another file", f->path);
    else if ((st = check_target(f->path, f->overwrite)) == STRATA_OK)
        st = create_temp(f);
    if (st != STRATA_OK) {
        remove_traces(f);
        live_remove(f);
    }
    return st;
}

strata_status st_new_file_create(struct st_new_file *f, const char *path, unsigned flags)
{
    return st_new_file_create_as(f, path, flags, 0666);
}

strata_status st_new_file_create_as(struct st_new_file *f, const char *path, unsigned flags, unsigned permissions)
{
    strata_status st;

    *f = (struct st_new_file){.fd = -1,
                              .cleanup.pid = getpid(),
                              .dir_fd = -1,
                              .overwrite = (flags & ST_NEW_FILE_OVERWRITE) != 0,
                              .permissions = (permissions & 0777) | S_IRUSR};
    if ((size_t)snprintf(f->path, sizeof(f->path), "%s", path) >= sizeof(f->path))
        return st_error(STRATA_E_INVAL, "%.64s...: the name is too long", path);
    f->base = f->made_from = (size_t)(st_path_name(f->path) - f->path);
    st_cleanup_hold(); /* until the file is listed with its name */
    st = create(f, flags);
    st_cleanup_release();
    return st;
}

/* --- taking the name --- */

/* Creating the file worked, so any failure to complete it counts as the disk's, be it a missing system call or a lack of
 * memory. */
static strata_status cannot_end(int err, const char *what, const char *path)
{
    const strata_status st = st_error_errno(err, "%s %s", what, path);

    return st == STRATA_E_NOSPC ? st : STRATA_E_IO;
}

/* -EEXIST if the name is taken.  Most file systems that cannot rename without replacing can link without replacing; on the others
 * the name is looked up first. */
static int64_t rename_to_free(const struct st_new_file *f, const char *base)
{
    int64_t res = st_fault("file.rename", 0);
    struct stat info;

    if (res == 0)
        res = st_result(renameat2(f->dir_fd, f->temp, f->dir_fd, base, RENAME_NOREPLACE));
    if (res != -EINVAL && res != -ENOSYS)
        return res;
    res = st_fault("file.link", 0);
    if (res == 0)
        res = st_result(linkat(f->dir_fd, f->temp, f->dir_fd, base, 0));
    if (res == 0)
        (void)unlinkat(f->dir_fd, f->temp, 0);
    if (res == 0 || res == -EEXIST)
        return res;
    if (st_fault_refuses("file.free"))
        return -errno;
    if (fstatat(f->dir_fd, base, &info, AT_SYMLINK_NOFOLLOW) == 0)
        return -EEXIST;
    if (errno != ENOENT)
        return -errno;
    return st_result(renameat(f->dir_fd, f->temp, f->dir_fd, base));
}

static int64_t rename_over(const struct st_new_file *f, const char *base)
{
    const int64_t refused = st_fault("file.rename", 0);

    return refused < 0 ? refused : st_result(renameat(f->dir_fd, f->temp, f->dir_fd, base));
}

bool st_new_file_kept_for_now(const struct st_new_file *f)
{
    return is_temp_of(f->temp, f->path + f->base);
}

/* Hours of work are not thrown away for a name: the new file loses the suffix that would let a later run remove it. */
static void keep(struct st_new_file *f)
{
    char kept[sizeof(f->temp)];

    snprintf(kept, sizeof(kept), "%.*s", (int)(strlen(f->temp) - strlen(TEMP_END)), f->temp);
    f->kept = true;
    if (st_fault_refuses("file.keep") || renameat(f->dir_fd, f->temp, f->dir_fd, kept) != 0)
        return;
    memcpy(f->temp, kept, sizeof(kept));
    (void)fsync(f->dir_fd); /* without it a power cut may bring the suffix back */
}

void st_new_file_keep(struct st_new_file *f)
{
    st_cleanup_lock();
    if (!f->named && !f->kept)
        keep(f);
    st_cleanup_unlock();
}

static strata_status keep_beside(struct st_new_file *f)
{
    keep(f);
    return st_error(STRATA_E_INPUT, "%s appeared while it was being made, and is kept: the new file is beside it, as %s%s",
                    f->path, f->temp, st_new_file_kept_for_now(f) ? ", until the next run that makes it" : "");
}

strata_status st_new_file_publish(struct st_new_file *f)
{
    const char *base = f->path + f->base;
    strata_status st = STRATA_OK;
    int64_t res;

    st_cleanup_lock();
    res = f->overwrite ? rename_over(f, base) : rename_to_free(f, base);
    if (res >= 0)
        f->named = true;
    else
        st = res == -EEXIST ? keep_beside(f) : cannot_end((int)-res, "completing", f->path);
    st_cleanup_unlock();
    return st;
}

void st_new_file_take_back(struct st_new_file *f)
{
    st_cleanup_lock();
    if (f->named && !st_fault_refuses("file.take_back") && unlinkat(f->dir_fd, f->path + f->base, 0) == 0)
        f->named = false;
    st_cleanup_unlock();
}

strata_status st_new_file_sync(struct st_new_file *f)
{
    int64_t res = f->stream != NULL ? -st_new_file_flush(f) : 0;

    if (res == 0)
        res = st_fault("file.sync", st_result(fsync(f->fd)));
    return res >= 0 ? STRATA_OK : cannot_end((int)-res, "completing", f->path);
}

/* Makes a rename survive a power cut. */
static strata_status sync_directory(const struct st_new_file *f)
{
    const int64_t res = st_fault("file.sync_directory", st_result(fsync(f->dir_fd)));

    if (res < 0 && res != -EINVAL) /* some file systems cannot sync a directory */
        return cannot_end((int)-res, "syncing the directory of", f->path);
    return STRATA_OK;
}

/* Says once for a directory where its files are now. */
static void warn_moved(const struct st_new_file *f)
{
    static char last[ST_PATH_MAX]; /* guarded by st_cleanup_lock() */
    char link[32], now[ST_PATH_MAX], dir[ST_PATH_MAX];
    ssize_t length;
    bool is_said;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", f->fd);
    length = readlink(link, now, sizeof(now) - 1);
    now[length > 0 ? length : 0] = '\0';
    snprintf(dir, sizeof(dir), "%.*s.", (int)f->base, f->path); /* never empty */
    st_cleanup_lock();
    is_said = strcmp(last, dir) == 0;
    snprintf(last, sizeof(last), "%s", dir);
    st_cleanup_unlock();
    if (!is_said)
        st_log(ST_LOG_WARN, "%s was moved while it was being written%s%s", f->path, length > 0 ? ": it is now " : "", now);
}

/* Somebody else may have removed or moved the file, or its directory. */
static strata_status look_again(struct st_new_file *f)
{
    struct stat mine, there;

    if (st_fault_refuses("file.look_again") || fstat(f->fd, &mine) != 0)
        return cannot_end(errno, "looking at", f->path);
    if (mine.st_nlink == 0) {
        st_cleanup_lock();
        f->named = false;
        st_cleanup_unlock();
        return st_error(STRATA_E_IO, "%s was removed or replaced while it was being written", f->path);
    }
    if (lstat(f->path, &there) != 0 || there.st_dev != mine.st_dev || there.st_ino != mine.st_ino)
        warn_moved(f);
    return STRATA_OK;
}

strata_status st_new_file_commit(struct st_new_file *f)
{
    strata_status st = st_new_file_sync(f);

    if (st == STRATA_OK && !f->named)
        st = st_new_file_publish(f);
    if (st == STRATA_OK)
        st = sync_directory(f);
    if (st == STRATA_OK)
        st = look_again(f);
    remove_traces(f);
    live_remove(f);
    return st;
}

void st_new_file_abort(struct st_new_file *f)
{
    if (f->fd < 0)
        return;
    remove_traces(f);
    live_remove(f);
}

/* store.c - see store.h. */
#include "offload/checkpoint/store.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/system/cleanup.h"
#include "core/system/clock.h"
#include "core/system/file.h"
#include "core/system/owned_dir.h"
#include "core/system/tree.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define GONE_PREFIX "gone-"

#define TURN_NS      UINT64_C(5000000000) /* a look takes milliseconds; a script may keep such a lock while it runs this program */
#define TURN_LOOK_NS UINT64_C(2000000)

struct st_store {
    char dir[ST_PATH_MAX];
    struct st_owned_dir_kind kind; /* of `own` */
    struct st_owned_dir own;
    char own_path[ST_PATH_MAX]; /* from `dir` on */
    int new_fd;                 /* -1: none is unfinished */
    uint64_t new_step;
    char new_path[ST_PATH_MAX];
    size_t made;   /* bytes of `dir` up to the first directory that this store made; 0: none */
    uint32_t gone; /* how many were moved away */
    struct st_cleanup cleanup;
};

static bool clear_own(int dir_fd, const char *path)
{
    const int rc = st_tree_clear(dir_fd, ST_OWNED_DIR_LOCK);
    char reason[ST_ERRNO_BYTES];

    if (rc == 0)
        return true;
    st_log(ST_LOG_WARN, "%s: cannot be removed: %s", path, st_errno_text(-rc, reason));
    return false;
}

static const struct st_owned_dir_kind own_kind = {
    .prefix = ".strata-save-", .mark = "strata save lock 1\n", .mode = 0755, .key = "strata.save", .clear = clear_own};

/* --- opening --- */

/* 0 or -errno. */
static int sync_dir(int fd)
{
    const int rc = (int)st_fault("store.sync", st_result(fsync(fd)));

    return rc == -EINVAL ? 0 : rc; /* some file systems cannot sync a directory */
}

/* Makes the name of a directory, the first `end` bytes of `dir`, durable.  0 or -errno. */
static int sync_parent(const char *dir, size_t end)
{
    char path[ST_PATH_MAX + 4];
    int fd, rc;

    snprintf(path, sizeof(path), "%.*s/..", (int)end, dir);
    fd = st_fault_refuses("store.open") ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    rc = sync_dir(fd);
    close(fd);
    return rc;
}

/* mkdir -p; each new name is made durable in its parent, and the last one in any case: whoever made it may not have done so. */
static strata_status make_dirs(const char *dir, const char *key, size_t *made)
{
    char path[ST_PATH_MAX];
    const size_t length = strlen(dir);

    if (length == 0 || length >= sizeof(path))
        return st_error_key(st_error(STRATA_E_INPUT, "%s \"%.64s\" is not the name of a directory", key, dir), key);
    for (size_t end = 1; end <= length; end++) {
        int rc = 0, synced;

        if (end < length && dir[end] != '/')
            continue;
        snprintf(path, sizeof(path), "%.*s", (int)end, dir);
        if (st_fault_refuses("store.mkdir") || mkdir(path, 0777) != 0)
            rc = -errno;
        if (rc == -EEXIST && end < length)
            continue;
        if (rc != 0 && rc != -EEXIST)
            return st_error_errno(-rc, "making directory %s", path);
        if (rc == 0 && *made == 0)
            *made = end;
        synced = sync_parent(dir, end);
        if (synced < 0 && (rc == 0 || synced != -EACCES)) /* one that was there may lie where this user cannot read */
            return st_error_errno(-synced, "syncing the directory of %.*s", (int)end, dir);
    }
    return STRATA_OK;
}

/* Other runs that keep this one from saving there. */
struct others {
    uint32_t live;
    char hidden[64]; /* "": none */
};

static void see_other(void *ctx, const char *name, enum st_owned_dir_state state)
{
    struct others *o = ctx;

    o->live += state == ST_OWNED_DIR_LIVE;
    if (state == ST_OWNED_DIR_HIDDEN)
        snprintf(o->hidden, sizeof(o->hidden), "%s", name);
}

/* Lets one of several runs that begin at once go first: else each would see the directories of all, and none would go on.  The
 * lock (flock) is on SAVE itself until the run has looked.  If somebody keeps it for long, or the file system locks no
 * directories, the run goes on without.  Returns the descriptor, or -1. */
static int take_turn(const char *dir)
{
    const int fd = st_fault_refuses("store.open") ? -1 : open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const uint64_t end_ns = st_clock_ns() + TURN_NS;
    uint32_t interrupted = 0;

    for (int rc = 0; fd >= 0;) {
        rc = (int)st_fault("store.lock", st_result(flock(fd, LOCK_EX | LOCK_NB)));
        if (rc == -EWOULDBLOCK && st_clock_ns() < end_ns)
            st_clock_sleep_until(st_clock_ns() + TURN_LOOK_NS);
        else if (!st_again(rc, &interrupted))
            break;
    }
    return fd;
}

/* Directories that were made, where nothing came of them. */
static void remove_made(const struct st_store *s)
{
    char path[ST_PATH_MAX];

    for (size_t end = s->made > 0 ? strlen(s->dir) : 0; end >= s->made && end > 0; end--) {
        if (s->dir[end] != '\0' && s->dir[end] != '/')
            continue;
        snprintf(path, sizeof(path), "%.*s", (int)end, s->dir);
        if (st_fault_refuses("store.rmdir") || (rmdir(path) != 0 && errno != ENOENT)) /* "a/" and "a" are one */
            break;
    }
}

static void remove_unfinished(void *store)
{
    const struct st_store *s = store;

    (void)st_tree_clear(s->own.dir_fd, ST_OWNED_DIR_LOCK);
    (void)st_tree_remove(s->own.parent_fd, s->own.name);
    remove_made(s);
}

/* Takes its own directory there; then whoever came first is seen. */
static strata_status look_around(struct st_store *s)
{
    struct others others = {0};
    strata_status st;

    st_cleanup_hold();
    st = st_owned_dir_create(&s->own, &s->kind, s->dir);
    if (st == STRATA_OK)
        st_cleanup_add(&s->cleanup, remove_unfinished, s);
    st_cleanup_release();
    if (st != STRATA_OK || (st = st_path_join(s->own_path, s->dir, s->own.name)) != STRATA_OK)
        return st;
    (void)st_owned_dir_each(&s->kind, s->own.parent_fd, s->dir, s->own.name, false, see_other, &others);
    if (others.live > 0)
        return st_error_remedy(st_error(STRATA_E_INPUT, "%s: another run saves there now", s->dir), s->kind.key,
                               "wait for its end, or name another directory with %s", s->kind.key);
    if (others.hidden[0] != '\0')
        return st_error_remedy(
            st_error(STRATA_E_INPUT, "%s/%s: is another user's, and it cannot be seen whether its run saves there now", s->dir,
                     others.hidden),
            s->kind.key, "wait for its end, have the directory removed if that run is dead, or name another one with %s",
            s->kind.key);
    return STRATA_OK;
}

static strata_status occupy(struct st_store *s)
{
    const int turn = take_turn(s->dir);
    const strata_status st = look_around(s);
    uint32_t swept;

    if (turn >= 0 && !st_fault_refuses("store.unlock"))
        (void)flock(turn, LOCK_UN); /* a child of fork() may have the descriptor, too */
    if (turn >= 0)
        close(turn);
    if (st != STRATA_OK)
        return st;
    swept = st_owned_dir_each(&s->kind, s->own.parent_fd, s->dir, s->own.name, true, NULL, NULL);
    if (swept > 0)
        st_log(ST_LOG_NOTICE, "%s: removed unfinished checkpoints of %u dead run%s", s->dir, swept, swept == 1 ? "" : "s");
    return STRATA_OK;
}

strata_status st_store_open(struct st_store **out, const char *dir)
{
    return st_store_open_for(out, dir, own_kind.key);
}

strata_status st_store_open_for(struct st_store **out, const char *dir, const char *key)
{
    struct st_store *s = st_fault("store.alloc", 0) < 0 ? NULL : calloc(1, sizeof(*s));
    strata_status st;

    if (s == NULL)
        return st_nomem(sizeof(*s));
    s->kind = own_kind;
    s->kind.key = key;
    s->own = ST_OWNED_DIR_NONE;
    s->new_fd = -1;
    s->cleanup.pid = getpid();
    snprintf(s->dir, sizeof(s->dir), "%s", dir);
    st = make_dirs(dir, key, &s->made);
    if (st == STRATA_OK)
        st = occupy(s);
    if (st != STRATA_OK) {
        st_store_close(s);
        return st;
    }
    *out = s;
    return STRATA_OK;
}

void st_store_close(struct st_store *s)
{
    if (s == NULL)
        return;
    st_cleanup_hold();
    st_cleanup_drop(&s->cleanup);
    st_cleanup_release();
    if (s->new_fd >= 0)
        close(s->new_fd);
    if (s->cleanup.pid == getpid())
        st_owned_dir_remove(&s->own);
    else
        st_owned_dir_close(&s->own);
    if (s->cleanup.pid == getpid())
        remove_made(s);
    free(s);
}

/* --- one checkpoint --- */

static void leave(struct st_store *s)
{
    st_cleanup_hold();
    st_cleanup_drop(&s->cleanup);
    st_cleanup_release();
    st_owned_dir_remove(&s->own);
    s->own = ST_OWNED_DIR_NONE;
}

/* The run's own directory, made again where someone has removed it, or all of SAVE. */
static strata_status stay(struct st_store *s)
{
    struct stat own;
    strata_status st;

    if (s->own.dir_fd >= 0 && (st_fault_refuses("store.stat") || fstat(s->own.dir_fd, &own) != 0))
        return st_error_errno(errno, "%s", s->own.path);
    if (s->own.dir_fd >= 0 && own.st_nlink > 0)
        return STRATA_OK;
    st_log(ST_LOG_WARN, "%s: this run's directory there was removed: it is made again", s->dir);
    leave(s);
    if ((st = make_dirs(s->dir, s->kind.key, &s->made)) == STRATA_OK && (st = occupy(s)) != STRATA_OK)
        leave(s);
    return st;
}

/* Renames from one directory to another, within which both ends are names of ours.  0 or -errno. */
static int rename_at(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    int rc;

    st_cleanup_hold();
    rc = (int)st_fault("store.rename", 0);
    if (rc == 0 && (flags != 0 ? renameat2(from_fd, from, to_fd, to, flags) : renameat(from_fd, from, to_fd, to)) != 0)
        rc = -errno;
    st_cleanup_release();
    return rc;
}

/* Moves a checkpoint, or a link to one, out of sight and then removes it, what is left of it being swept later.  0 or -errno. */
static int remove_named(struct st_store *s, int from_fd, const char *name)
{
    char gone[ST_STORE_NAME_BYTES];
    int rc;

    snprintf(gone, sizeof(gone), GONE_PREFIX "%u", s->gone++);
    rc = rename_at(from_fd, name, s->own.dir_fd, gone, 0);
    if (rc == 0)
        rc = sync_dir(s->own.dir_fd);
    if (rc == 0)
        rc = sync_dir(s->own.parent_fd); /* its name is gone for good before a file of it is */
    if (rc == 0)
        rc = st_tree_remove(s->own.dir_fd, gone); /* of a link not what it leads to */
    return rc;
}

/* Makes the directory of a new checkpoint; a name that an earlier one has left there, which could not be removed then, goes. */
static int make_new(struct st_store *s, const char *name)
{
    int rc = 0;

    for (int again = 0; again < 2 && (again == 0 || rc == -EEXIST); again++) {
        if (again > 0)
            (void)remove_named(s, s->own.dir_fd, name);
        st_cleanup_hold();
        rc = st_fault_refuses("store.mkdir") || mkdirat(s->own.dir_fd, name, 0777) != 0 ? -errno : 0;
        st_cleanup_release();
    }
    return rc;
}

strata_status st_store_begin(struct st_store *s, uint64_t step)
{
    const strata_status st = stay(s);
    char name[ST_STORE_NAME_BYTES];
    int rc;

    assert(s->new_fd < 0 && step <= ST_STORE_STEP_MOST);
    if (st != STRATA_OK)
        return st;
    st_store_name(name, step);
    if (snprintf(s->new_path, sizeof(s->new_path), "%s/%s/%s", s->dir, s->own.name, name) >= (int)sizeof(s->new_path))
        return st_error(STRATA_E_INPUT, "%s: the name is too long for what %s puts there", s->dir, s->kind.key);
    s->new_step = step;
    if ((rc = make_new(s, name)) == 0) {
        s->new_fd = st_fault_refuses("store.open") ? -1 : openat(s->own.dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        rc = s->new_fd < 0 ? -errno : 0;
        if (rc != 0)
            (void)st_tree_remove(s->own.dir_fd, name);
    }
    return rc == 0 ? STRATA_OK : st_error_errno(-rc, "%s: cannot be made", s->new_path);
}

const char *st_store_path(const struct st_store *s)
{
    return s->new_path;
}

int st_store_dir_fd(const struct st_store *s)
{
    return s->new_fd;
}

const char *st_store_own(const struct st_store *s, int *dir_fd)
{
    *dir_fd = s->own.dir_fd;
    return s->own_path;
}

/* A directory that is not empty is never replaced by a rename, nor is a link.  0 or -errno. */
static int take_name(struct st_store *s, const char *name, bool replace)
{
    int rc = rename_at(s->own.dir_fd, name, s->own.parent_fd, name, 0);

    if (!replace || (rc != -EEXIST && rc != -ENOTEMPTY && rc != -ENOTDIR))
        return rc;
    rc = rename_at(s->own.dir_fd, name, s->own.parent_fd, name, RENAME_EXCHANGE);
    if (rc != -EINVAL && rc != -ENOSYS)
        return rc;
    rc = remove_named(s, s->own.parent_fd, name); /* a file system that cannot exchange names */
    return rc == 0 ? rename_at(s->own.dir_fd, name, s->own.parent_fd, name, 0) : rc;
}

strata_status st_store_commit(struct st_store *s, bool replace)
{
    char name[ST_STORE_NAME_BYTES], reason[ST_ERRNO_BYTES];
    int rc = sync_dir(s->new_fd);

    st_store_name(name, s->new_step);
    if (rc < 0)
        return st_error_errno(-rc, "syncing %s", s->new_path);
    rc = take_name(s, name, replace);
    if (rc == -EEXIST || rc == -ENOTEMPTY || rc == -ENOTDIR)
        return st_error(STRATA_E_INPUT, "%s/%s exists already, and is kept", s->dir, name);
    if (rc < 0)
        return st_error_errno(-rc, "%s/%s cannot take its name", s->dir, name);
    close(s->new_fd);
    s->new_fd = -1;
    rc = sync_dir(s->own.parent_fd);
    if (rc < 0)
        return st_error(STRATA_E_IO, "%s: cannot be synced: %s: %s is there, but a power cut may take it away", s->dir,
                        st_errno_text(-rc, reason), name);
    (void)sync_dir(s->own.dir_fd);
    (void)st_tree_remove(s->own.dir_fd, name); /* the one that was replaced; what stays is swept */
    return STRATA_OK;
}

void st_store_abort(struct st_store *s)
{
    char name[ST_STORE_NAME_BYTES];

    if (s->new_fd < 0)
        return;
    close(s->new_fd);
    s->new_fd = -1;
    st_store_name(name, s->new_step);
    (void)st_tree_remove(s->own.dir_fd, name); /* what stays is swept */
}

strata_status st_store_set_latest(struct st_store *s, uint64_t step)
{
    char path[ST_PATH_MAX], name[ST_STORE_NAME_BYTES + 1];
    struct st_new_file f;
    strata_status st = st_path_join(path, s->dir, ST_STORE_LATEST);

    if (st != STRATA_OK || (st = st_new_file_create(&f, path, ST_NEW_FILE_OVERWRITE)) != STRATA_OK)
        return st;
    st_store_name(name, step);
    strcat(name, "\n");
    st = st_new_file_write_at(&f, name, strlen(name), 0);
    if (st == STRATA_OK)
        return st_new_file_commit(&f);
    st_new_file_abort(&f);
    return st;
}

/* --- old ones --- */

static strata_status remove_step(struct st_store *s, uint64_t step)
{
    char name[ST_STORE_NAME_BYTES];
    int rc;

    st_store_name(name, step);
    rc = remove_named(s, s->own.parent_fd, name);
    return rc == 0 ? STRATA_OK : st_error_errno(-rc, "%s/%s: cannot be removed", s->dir, name);
}

/* A checkpoint, and what its judge says of it. */
struct judged {
    uint64_t step;
    double score; /* NaN: none */
    enum st_store_judgement what;
    bool stays;
};

static strata_status judge_all(struct judged **out, const struct st_store *s, const struct st_store_list *list, uint64_t newest,
                               st_store_judge_fn *judge, void *ctx)
{
    struct judged *all = st_fault("store.alloc", 0) < 0 ? NULL : calloc(list->count + 1u, sizeof(*all));

    *out = all;
    if (all == NULL)
        return st_nomem((list->count + 1u) * sizeof(*all));
    for (uint32_t i = 0; i < list->count; i++) {
        char path[ST_PATH_MAX], name[ST_STORE_NAME_BYTES];

        st_store_name(name, list->steps[i]);
        all[i] = (struct judged){.step = list->steps[i], .score = (double)NAN};
        if (list->steps[i] <= newest && st_path_join(path, s->dir, name) == STRATA_OK)
            all[i].what = judge(ctx, path, list->steps[i], &all[i].score);
    }
    return STRATA_OK;
}

/* Marks what stays: other runs' checkpoints, the newest whole ones, and those with the lowest scores. */
static void choose_stays(struct judged *all, uint32_t count, uint32_t keep, uint32_t best)
{
    uint32_t whole = 0;

    for (uint32_t i = count; i > 0; i--) {
        all[i - 1].stays = all[i - 1].what == ST_STORE_FOREIGN || whole < keep;
        whole += all[i - 1].what == ST_STORE_WHOLE;
    }
    for (uint32_t n = 0; n < best; n++) {
        struct judged *lowest = NULL;

        for (uint32_t i = 0; i < count; i++)
            if (all[i].what == ST_STORE_WHOLE && !isnan(all[i].score) && (lowest == NULL || all[i].score < lowest->score))
                lowest = &all[i];
        if (lowest == NULL)
            return;
        lowest->stays = true;
        lowest->score = (double)NAN; /* it is taken */
    }
}

strata_status st_store_prune(struct st_store *s, uint64_t newest, uint32_t keep, uint32_t best, st_store_judge_fn *judge,
                             void *ctx)
{
    struct st_store_list list;
    struct judged *all = NULL;
    strata_status first = st_store_list(&list, s->dir);

    assert(keep > 0);
    if (first != STRATA_OK)
        return first;
    first = judge_all(&all, s, &list, newest, judge, ctx);
    if (first == STRATA_OK)
        choose_stays(all, list.count, keep, best);
    for (uint32_t i = list.count; i > 0 && all != NULL; i--) {
        const strata_status st = all[i - 1].stays ? STRATA_OK : remove_step(s, all[i - 1].step);

        if (first == STRATA_OK)
            first = st;
    }
    free(all);
    free(list.steps);
    return first;
}

/* --- leftovers --- */

uint32_t st_store_leftovers(const char *dir, bool sweep, void (*seen)(void *ctx, const char *path, bool live), void *ctx)
{
    const int fd = st_fault_refuses("store.open") ? -1 : open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    uint32_t removed;

    if (fd < 0)
        return 0;
    removed = st_owned_dir_leftovers(&own_kind, fd, dir, sweep, seen, ctx);
    close(fd);
    return removed;
}

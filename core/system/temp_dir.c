/* core/system/temp_dir.c - see core/system/temp_dir.h. */
#include "core/system/temp_dir.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/system/tree.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static bool clear(int dir_fd, const char *path)
{
    const int rc = st_tree_clear(dir_fd, ST_OWNED_DIR_LOCK);
    char reason[ST_ERRNO_BYTES];

    if (rc != 0)
        st_log(ST_LOG_WARN, "%s: cannot be removed: %s", path, st_errno_text(-rc, reason));
    return rc == 0;
}

/* What another user's process left stays, as root may look into it. */
static bool clear_left(int dir_fd, const char *path)
{
    struct stat info;

    return !st_fault_refuses("temp.owner") && fstat(dir_fd, &info) == 0 && info.st_uid == geteuid() && clear(dir_fd, path);
}

static const struct st_owned_dir_kind own_kind = {
    .prefix = "strata-temporary-", .mark = "strata temporary lock 1\n", .mode = 0700, .key = "TMPDIR", .clear = clear};

/* While the program ends: what cannot be removed, the next process sweeps. */
static void remove_listed(void *dir)
{
    const struct st_temp_dir *d = dir;

    (void)st_tree_clear(d->own.dir_fd, NULL);
    if (!st_fault_refuses("temp.remove"))
        (void)unlinkat(d->own.parent_fd, d->own.name, AT_REMOVEDIR);
}

strata_status st_temp_dir_create(struct st_temp_dir *d)
{
    const char *named = getenv("TMPDIR"), *const base = named != NULL && named[0] == '/' ? named : "/tmp";
    struct st_owned_dir_kind left = own_kind;
    strata_status st;

    *d = (struct st_temp_dir){0};
    st_cleanup_hold();
    st = st_owned_dir_create(&d->own, &own_kind, base);
    if (st == STRATA_OK)
        st_cleanup_add(&d->cleanup, remove_listed, d);
    st_cleanup_release();
    left.clear = clear_left;
    if (st == STRATA_OK)
        (void)st_owned_dir_each(&left, d->own.parent_fd, base, d->own.name, true, NULL, NULL);
    return st;
}

void st_temp_dir_remove(struct st_temp_dir *d)
{
    if (!d->own.made || d->cleanup.pid != getpid())
        return;
    st_cleanup_hold();
    st_owned_dir_clear(&d->own);
    st_cleanup_drop(&d->cleanup);
    st_cleanup_release();
    st_owned_dir_close(&d->own);
}

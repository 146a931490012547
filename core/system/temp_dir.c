/* core/system/temp_dir.c - see core/system/temp_dir.h. */
#include "core/system/temp_dir.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/system/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Only files are in it.  Returns 0 or the errno value of the first failure. */
static int remove_traces(const struct st_temp_dir *d)
{
    DIR *dir = st_fault_refuses("temp.open") ? NULL : opendir(d->path);
    int error = dir != NULL ? 0 : errno;

    for (const struct dirent *entry; dir != NULL && (entry = st_dir_next(dir)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 && unlinkat(dirfd(dir), entry->d_name, 0) != 0 &&
            error == 0)
            error = errno;
    if (dir != NULL)
        closedir(dir);
    if (rmdir(d->path) != 0 && error == 0)
        error = errno;
    return error;
}

static void remove_listed(void *dir)
{
    (void)remove_traces(dir);
}

strata_status st_temp_dir_create(struct st_temp_dir *d)
{
    const char *base = getenv("TMPDIR");
    strata_status st;
    int error = 0;

    *d = (struct st_temp_dir){0};
    if ((st = st_path_join(d->path, base != NULL && base[0] == '/' ? base : "/tmp", "strata-XXXXXX")) != STRATA_OK) {
        d->path[0] = '\0';
        return st;
    }
    st_cleanup_hold();
    if (st_fault_refuses("temp.make") || mkdtemp(d->path) == NULL)
        error = errno;
    else
        st_cleanup_add(&d->cleanup, remove_listed, d);
    st_cleanup_release();
    if (error != 0) {
        st = st_error_errno(error, "cannot make the directory %s for temporary files (TMPDIR names another place)", d->path);
        d->path[0] = '\0';
    }
    return st;
}

void st_temp_dir_remove(struct st_temp_dir *d)
{
    int error;

    if (d->path[0] == '\0' || d->cleanup.pid != getpid())
        return;
    st_cleanup_hold();
    error = remove_traces(d);
    st_cleanup_drop(&d->cleanup);
    st_cleanup_release();
    if (error != 0) {
        char text[ST_ERRNO_BYTES];

        st_log(ST_LOG_WARN, "%s: cannot be removed: %s", d->path, st_errno_text(error, text));
    }
    d->path[0] = '\0';
}

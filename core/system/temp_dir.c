/* core/system/temp_dir.c - see core/system/temp_dir.h. */
#include "core/system/temp_dir.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/system/ending.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t live_mutex = PTHREAD_MUTEX_INITIALIZER; /* guards `live` */
static struct st_temp_dir *live;

strata_status st_temp_dir_create(struct st_temp_dir *d)
{
    const char *base = getenv("TMPDIR");
    strata_status st;
    int error = 0;

    *d = (struct st_temp_dir){.pid = getpid()};
    if ((st = st_path_join(d->path, base != NULL && base[0] == '/' ? base : "/tmp", "strata-XXXXXX")) != STRATA_OK) {
        d->path[0] = '\0';
        return st;
    }
    st_ending_hold();
    if (st_fault_refuses("temp.make") || mkdtemp(d->path) == NULL) {
        error = errno;
    } else {
        pthread_mutex_lock(&live_mutex);
        d->next = live;
        live = d;
        pthread_mutex_unlock(&live_mutex);
    }
    st_ending_release();
    if (error != 0) {
        st = st_error_errno(error, "cannot make the directory %s for temporary files (TMPDIR names another place)", d->path);
        d->path[0] = '\0';
    }
    return st;
}

/* Files alone are in it.  Returns 0 or the errno value of the first failure. */
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

void st_temp_dir_remove(struct st_temp_dir *d)
{
    int error;

    if (d->path[0] == '\0' || d->pid != getpid())
        return;
    st_ending_hold();
    error = remove_traces(d);
    pthread_mutex_lock(&live_mutex);
    for (struct st_temp_dir **at = &live; *at != NULL; at = &(*at)->next)
        if (*at == d) {
            *at = d->next;
            break;
        }
    pthread_mutex_unlock(&live_mutex);
    st_ending_release();
    if (error != 0) {
        char text[ST_ERRNO_BYTES];

        st_log(ST_LOG_WARN, "%s: cannot be removed: %s", d->path, st_errno_text(error, text));
    }
    d->path[0] = '\0';
}

void st_temp_dir_remove_all(void)
{
    pthread_mutex_lock(&live_mutex);
    for (const struct st_temp_dir *d = live; d != NULL; d = d->next)
        if (d->pid == getpid())
            (void)remove_traces(d);
    pthread_mutex_unlock(&live_mutex);
}

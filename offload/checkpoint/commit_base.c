/* commit_base.c - see commit_internal.h.
 *
 * A file that has a name is linked by its descriptor, through /proc, whatever became of the name that it was opened by.  One that
 * has none any more cannot be linked: it is copied. */
#include "offload/checkpoint/commit_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

void st_commit_base_drop(struct st_commit_base *b)
{
    for (uint32_t i = 0; i < b->count; i++)
        close(b->fds[i]);
    *b = (struct st_commit_base){0};
}

strata_status st_commit_base_take(struct st_commit_base *b, const struct st_volume_file *files, uint32_t count)
{
    st_commit_base_drop(b);
    for (; b->count < count; b->count++) {
        const int fd = st_fault_refuses("commit.dup") ? -1 : fcntl(files[b->count].fd, F_DUPFD_CLOEXEC, 3);

        if (fd < 0) {
            const int err = errno;

            st_commit_base_drop(b);
            return st_error_errno(err, "the run's hold on the frozen weights of its checkpoint cannot be taken");
        }
        b->fds[b->count] = fd;
    }
    return STRATA_OK;
}

strata_status st_commit_base_link(struct st_commit_base *b, const struct st_manifest_file *f, int dir_fd, bool *crossed)
{
    char held[64];
    int err = 0;

    snprintf(held, sizeof(held), "/proc/self/fd/%d", b->fds[f->dir]);
    if (st_fault_refuses("commit.link") || linkat(AT_FDCWD, held, dir_fd, f->name, AT_SYMLINK_FOLLOW) != 0)
        err = errno;
    *crossed = err == ENOENT || err == EXDEV || err == EPERM || err == EMLINK || err == ENOSYS || err == EOPNOTSUPP;
    b->copied = b->copied || *crossed;
    b->nameless_bytes += err == ENOENT ? f->bytes : 0;
    return err == 0 || *crossed
               ? STRATA_OK
               : st_error_errno(err, "%s: the frozen weights that the run resumed with cannot be linked", f->name);
}

strata_status st_commit_base_copy(const struct st_commit_base *b, const struct st_manifest_file *f, const char *to)
{
    return st_commit_copy(to, "the frozen weights that the run resumed with", b->fds[f->dir], f->bytes);
}

/* The copy in this checkpoint, instead of the file held so far. */
static bool follow(struct st_commit_base *b, uint32_t dir, const char *checkpoint, const char *name)
{
    char path[ST_PATH_MAX];
    struct st_file_identity identity;
    int fd;

    if (st_path_join(path, checkpoint, name) != STRATA_OK || st_file_open(&fd, &identity, path, STRATA_E_IO) != STRATA_OK)
        return false;
    close(b->fds[dir]);
    b->fds[dir] = fd;
    return true;
}

void st_commit_base_follow(struct st_commit_base *b, const char *checkpoint, const struct st_commit_parts *part)
{
    bool all = true;

    for (uint32_t i = 0; i < b->count && b->copied; i++) {
        struct st_manifest_file f = {.space = ST_SPACE_BASE};

        st_commit_name_file(&f, part, part->first, i);
        all = follow(b, i, checkpoint, f.name) && all;
    }
    b->copied = b->copied && !all;
}

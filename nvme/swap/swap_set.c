/* nvme/swap/swap_set.c - what saving and resuming do with a swap's files: they are linked into checkpoints, made anew where
 * others keep them, and a checkpoint's files are read as if they were the swap's own.
 *
 * Plain system calls on the caller's thread; only the volumes are the I/O thread's. */
#include "nvme/swap/swap_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "nvme/method/direct.h"
#include "nvme/method/io_method.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

uint32_t st_swap_volume(const struct st_swap *swap, enum st_space space, uint32_t set)
{
    const uint32_t volume = space == ST_SPACE_SET ? ST_SPACE_SET + set : (uint32_t)space;

    assert(volume < swap->volume_count);
    return volume;
}

const struct st_stripe *st_swap_stripe(const struct st_swap *swap)
{
    return &swap->stripe;
}

int st_swap_fd(const struct st_swap *swap, uint32_t volume, uint32_t dir)
{
    assert(volume < swap->volume_count && dir < swap->stripe.dir_count);
    return swap->volumes[volume].fds[dir];
}

static strata_status fake_error(void)
{
    return st_error(STRATA_E_NOSYS, "I/O method fake keeps its files in memory: they are no part of a checkpoint");
}

/* Errors that say no more than that a link is impossible there. */
static bool is_crossed(int err)
{
    return err == EXDEV || err == EPERM || err == EMLINK || err == ENOSYS || err == EOPNOTSUPP;
}

strata_status st_swap_link(struct st_swap *swap, uint32_t volume, uint32_t dir, int to_dir_fd, const char *name, bool *crossed)
{
    const struct st_owned_dir *run = &swap->parts[dir].run;
    char own[ST_SWAP_NAME_BYTES], reason[ST_ERRNO_BYTES];
    int err = (int)-st_fault("nvme.link", 0);

    assert(volume < swap->volume_count && dir < swap->stripe.dir_count);
    if (swap->fake)
        return fake_error();
    st_swap_file_name(own, volume, dir);
    if (err == 0 && linkat(run->dir_fd, own, to_dir_fd, name, 0) < 0)
        err = errno;
    *crossed = is_crossed(err);
    if (err == 0 || *crossed)
        return STRATA_OK;
    return st_error(err == ENOSPC || err == EDQUOT ? STRATA_E_NOSPC : STRATA_E_IO, "%s/%s: cannot be linked as %s: %s", run->path,
                    own, name, st_errno_text(err, reason));
}

/* Whether the run directory's name is the only one that the file has. */
static bool is_own(const struct st_swap *swap, uint32_t volume, uint32_t dir)
{
    struct stat file, named;
    char own[ST_SWAP_NAME_BYTES];

    st_swap_file_name(own, volume, dir);
    return !st_fault_refuses("nvme.stat") && fstat(swap->volumes[volume].fds[dir], &file) == 0 &&
           fstatat(swap->parts[dir].run.dir_fd, own, &named, AT_SYMLINK_NOFOLLOW) == 0 && file.st_nlink == 1 &&
           file.st_ino == named.st_ino && file.st_dev == named.st_dev;
}

/* Whether no process reads the file: who opens a checkpoint's files locks them, and reads on when their name is gone. */
static bool is_unread(int fd)
{
    if (st_fault_refuses("nvme.lock") || flock(fd, LOCK_EX | LOCK_NB) != 0)
        return false;
    (void)flock(fd, LOCK_UN);
    return true;
}

bool st_swap_reusable(const struct st_swap *swap, uint32_t set)
{
    const uint32_t volume = st_swap_volume(swap, ST_SPACE_SET, set);
    bool own = true;

    for (uint32_t i = 0; i < swap->stripe.dir_count && own && !swap->fake; i++)
        own = is_own(swap, volume, i) && is_unread(swap->volumes[volume].fds[i]);
    return own;
}

/* Takes the volume's name in a directory away; another name of the file stays. */
static strata_status unname(const struct st_swap *swap, uint32_t volume, uint32_t dir)
{
    const struct st_owned_dir *run = &swap->parts[dir].run;
    char own[ST_SWAP_NAME_BYTES], reason[ST_ERRNO_BYTES];
    int err = (int)-st_fault("nvme.unlink", 0);

    st_swap_file_name(own, volume, dir);
    if (err == 0 && unlinkat(run->dir_fd, own, 0) < 0)
        err = errno;
    if (err == 0 || err == ENOENT)
        return STRATA_OK;
    return st_error(STRATA_E_IO, "%s/%s: cannot be removed: %s", run->path, own, st_errno_text(err, reason));
}

static void close_files(const struct st_swap *swap, const struct st_swap_files *files)
{
    for (uint32_t i = 0; i < swap->stripe.dir_count; i++)
        if (files->fds[i] >= 0)
            close(files->fds[i]);
}

/* New files under the volume's names. */
static strata_status make_files(struct st_swap *swap, uint32_t volume, struct st_swap_files *files)
{
    strata_status st = STRATA_OK;
    bool direct;

    for (uint32_t i = 0; i < swap->stripe.dir_count && st == STRATA_OK; i++)
        if ((st = unname(swap, volume, i)) == STRATA_OK)
            st = st_swap_create_file(swap, volume, i, &files->fds[i], &direct);
    return st;
}

/* Leaves none of the names, so that nothing takes the set for its own files'. */
static void drop_files(const struct st_swap *swap, uint32_t volume, const struct st_swap_files *files)
{
    for (uint32_t i = 0; i < swap->stripe.dir_count; i++) {
        char own[ST_SWAP_NAME_BYTES];

        st_swap_file_name(own, volume, i);
        if (!st_fault_refuses("nvme.unlink"))
            (void)unlinkat(swap->parts[i].run.dir_fd, own, 0);
    }
    close_files(swap, files);
}

strata_status st_swap_renew(struct st_swap *swap, uint32_t set)
{
    const uint32_t volume = st_swap_volume(swap, ST_SPACE_SET, set);
    struct st_swap_files files, old = swap->volumes[volume];
    struct st_swap_description d;
    strata_status st;

    memset(files.fds, -1, sizeof(files.fds));
    st = swap->fake ? STRATA_OK : make_files(swap, volume, &files);
    if (st == STRATA_OK) {
        st_swap_describe(swap, volume, &files, &d);
        st = st_mover_replace(swap->mover, volume, &d.opts);
    }
    if (st == STRATA_OK) {
        swap->volumes[volume] = files;
        close_files(swap, &old);
    } else if (!swap->fake) {
        drop_files(swap, volume, &files);
    }
    return st;
}

/* The drive whose queue a file shares: that of a directory on its device, the one of the same index first. */
static uint32_t drive_of(const struct st_swap *swap, int fd, uint32_t index)
{
    const uint32_t count = swap->stripe.dir_count;
    struct stat file, dir;

    if (st_fault_refuses("nvme.stat") || fstat(fd, &file) < 0)
        return index % count;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t at = (index + i) % count;

        if (!st_fault_refuses("nvme.stat") && fstat(swap->parts[at].run.dir_fd, &dir) == 0 && dir.st_dev == file.st_dev)
            return at;
    }
    return index % count;
}

strata_status st_swap_attach(struct st_swap *swap, const struct st_volume_opts *opts, uint32_t *volume)
{
    const uint32_t dirs = opts->stripe->dir_count, count = dirs * (opts->spaces > 0 ? opts->spaces : 1);
    struct st_volume_opts given = *opts;
    struct st_volume_file *files;
    strata_status st;

    if (swap->fake)
        return fake_error();
    if ((st = st_io_alloc((void **)&files, count, sizeof(*files))) != STRATA_OK)
        return st;
    for (uint32_t i = 0; i < count; i++) {
        struct st_direct direct;

        files[i] = opts->files[i];
        files[i].drive = drive_of(swap, files[i].fd, i % dirs);
        st_direct_enable(&direct, files[i].fd);
    }
    given.files = files;
    given.read_only = true;
    st = st_mover_add(swap->mover, &given, volume);
    free(files);
    return st;
}

void st_swap_detach(struct st_swap *swap, uint32_t volume)
{
    assert(volume >= swap->volume_count);
    st_mover_remove(swap->mover, volume);
}

/* nvme/swap/swap_dir.c - run directories: what is in them, and how they are swept when their owner is dead. */
#include "nvme/swap/swap_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/system/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* It is fine if the file is already gone: st_cleanup_run() may have removed it. */
static bool unlink_known(int dir_fd, const char *name, const char *path)
{
    char reason[ST_ERRNO_BYTES];
    struct stat info;

    if (fstatat(dir_fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT)
        return true;
    if ((!st_fault_refuses("nvme.unlink") && unlinkat(dir_fd, name, 0) == 0) || errno == ENOENT)
        return true;
    st_log(ST_LOG_WARN, "%s/%s could not be removed: %s", path, name, st_errno_text(errno, reason));
    return false;
}

/* Nobody knows how many sets a dead run had, nor which of its directories this was.  Other names are not ours. */
static bool unlink_all_known(int dir_fd, const char *path)
{
    bool gone = true;

    for (uint32_t v = 0; v < ST_SWAP_VOLUMES_MAX; v++)
        for (uint32_t dir = 0; dir < ST_SWAP_DIRS_MAX; dir++) {
            char name[ST_SWAP_NAME_BYTES];

            st_swap_file_name(name, v, dir);
            gone = unlink_known(dir_fd, name, path) && gone;
        }
    return gone;
}

const struct st_owned_dir_kind st_run_dir_kind = {
    .prefix = "strata-", .mark = "strata swap lock 1\n", .mode = 0700, .key = "strata.nvme", .clear = unlink_all_known};

uint32_t st_swap_sweep(const char *dir)
{
    const int fd = st_fault_refuses("nvme.opendir") ? -1 : open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    uint32_t removed;

    if (fd < 0)
        return 0;
    removed = st_owned_dir_each(&st_run_dir_kind, fd, dir, NULL, true, NULL, NULL);
    st_users_sweep_at(fd);
    close(fd);
    if (removed > 0)
        st_log(ST_LOG_NOTICE, "%s: removed swap space of %" PRIu32 " dead run%s", dir, removed, removed == 1 ? "" : "s");
    return removed;
}

void st_swap_leftovers(const char *dir, void (*seen)(void *ctx, const char *path, bool live), void *ctx)
{
    const int fd = st_fault_refuses("nvme.opendir") ? -1 : open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return;
    (void)st_owned_dir_leftovers(&st_run_dir_kind, fd, dir, false, seen, ctx);
    close(fd);
}

strata_status st_swap_free_bytes(const char *dir, uint64_t *out)
{
    struct statvfs info;
    struct stat what;

    if (st_fault_refuses("nvme.stat") || stat(dir, &what) < 0)
        return st_owned_dir_error(errno, "cannot use", dir, "strata.nvme");
    if (!S_ISDIR(what.st_mode))
        return st_owned_dir_error(ENOTDIR, "cannot use", dir, "strata.nvme");
    if (st_fault_refuses("nvme.statvfs") || statvfs(dir, &info) < 0)
        return st_owned_dir_error(errno, "cannot read the free space of", dir, "strata.nvme");
    *out = (uint64_t)info.f_bavail * info.f_frsize;
    return STRATA_OK;
}

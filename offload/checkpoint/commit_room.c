/* commit_room.c - whether there is room for what a checkpoint copies: see commit_internal.h.
 *
 * Parts are copied at the same time, so that what one has placed by now is not free any more, but was needed. */
#include "offload/checkpoint/commit_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/size.h"
#include "core/system/file.h"
#include "nvme/swap/swap.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#define STAT_BLOCK 512u /* of st_blocks, whatever the file system has */
#define LOOKS      3    /* a file that is complete gets its name, once */

static bool is_own(const struct st_manifest *m, const char *name)
{
    for (uint32_t i = 0; i < m->file_count; i++)
        if (strcmp(m->files[i].name, name) == 0)
            return true;
    return false;
}

/* What a file of another part takes there: nothing where it is a link.  *moved: it has another name by now. */
static uint64_t taken_by(int dir_fd, const char *name, bool *moved)
{
    struct stat info;

    if (st_fault_refuses("commit.stat") || fstatat(dir_fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
        *moved = true;
        return 0;
    }
    return S_ISREG(info.st_mode) && info.st_nlink == 1 ? (uint64_t)info.st_blocks * STAT_BLOCK : 0;
}

/* Bytes that other parts have copied there. */
static strata_status find_taken(uint64_t *bytes, const struct st_manifest *m, const char *dir, bool *moved)
{
    DIR *stream = st_fault_refuses("commit.opendir") ? NULL : opendir(dir);
    const struct dirent *entry;
    strata_status st = STRATA_OK;

    *bytes = 0;
    *moved = false;
    if (stream == NULL)
        return st_error_errno(errno, "%s", dir);
    while ((entry = st_dir_next(stream)) != NULL)
        if (!is_own(m, entry->d_name))
            *bytes += taken_by(dirfd(stream), entry->d_name, moved);
    if (errno != 0)
        st = st_error_errno(errno, "reading %s", dir);
    closedir(stream);
    return st;
}

strata_status st_commit_check_room(const struct st_manifest *m, const char *save, const char *dir, uint64_t bytes, uint32_t parts)
{
    char need[24], have[24];
    uint64_t room, taken = 0;
    strata_status st = st_swap_free_bytes(save, &room);
    bool moved = parts > 1;

    /* after what is free: what is placed meanwhile may count twice, but is never missing */
    for (int look = 0; st == STRATA_OK && moved && look < LOOKS; look++)
        st = find_taken(&taken, m, dir, &moved);
    room += taken;
    bytes *= parts; /* the other parts are as large */
    if (st != STRATA_OK || bytes <= room)
        return st;
    return st_error(STRATA_E_NOSPC, "%s: the checkpoint needs %s there, %s are free, %" PRIu64 " bytes too few", save,
                    st_size_text(need, bytes), st_size_text(have, room), bytes - room);
}

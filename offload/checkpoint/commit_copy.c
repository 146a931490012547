/* commit_copy.c - copies a file of planes that cannot be linked: see commit_internal.h. */
#include "offload/checkpoint/commit_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/file.h"
#include "nvme/swap/swap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define PART_BYTES (UINT64_C(8) << 20)

/* Lets the part that was just written go to the disk, and the one before leave the page cache: what a reader of the file saves
 * by it is less than what training loses. */
static void write_behind(int fd, uint64_t at, uint64_t bytes)
{
    (void)sync_file_range(fd, (off_t)at, (off_t)bytes, SYNC_FILE_RANGE_WRITE);
    if (at < PART_BYTES)
        return;
    (void)sync_file_range(fd, (off_t)(at - PART_BYTES), (off_t)PART_BYTES,
                          SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    (void)posix_fadvise(fd, (off_t)(at - PART_BYTES), (off_t)PART_BYTES, POSIX_FADV_DONTNEED);
}

static strata_status copy_parts(struct st_new_file *f, const char *from, int from_fd, uint64_t bytes, unsigned char *buf)
{
    strata_status st = STRATA_OK;

    for (uint64_t at = 0; at < bytes && st == STRATA_OK; at += PART_BYTES) {
        const uint64_t part = bytes - at < PART_BYTES ? bytes - at : PART_BYTES;

        st = st_file_read_at(from_fd, buf, part, at, from);
        if (st == STRATA_OK)
            st = st_new_file_write_at(f, buf, part, at);
        if (st == STRATA_OK)
            write_behind(f->fd, at, part);
    }
    return st;
}

strata_status st_commit_copy(const char *to, const char *from, int from_fd, uint64_t bytes)
{
    unsigned char *buf = st_fault("commit.alloc", 0) < 0 ? NULL : aligned_alloc(ST_SWAP_ALIGN, PART_BYTES);
    struct st_new_file f;
    strata_status st;

    if (buf == NULL)
        return st_nomem(PART_BYTES);
    st = st_new_file_create(&f, to, 0);
    if (st == STRATA_OK) {
        st = st_new_file_reserve(&f, bytes);
        if (st == STRATA_OK)
            st = copy_parts(&f, from, from_fd, bytes, buf);
        if (st == STRATA_OK)
            st = st_new_file_commit(&f);
        else
            st_new_file_abort(&f);
    }
    free(buf);
    return st == STRATA_E_INPUT ? STRATA_E_IO : st;
}

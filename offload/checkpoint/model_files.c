/* model_files.c - see model_files.h. */
#include "offload/checkpoint/model_files.h"

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/file.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PART_BYTES (UINT64_C(1) << 16)

static int no_dots(const struct dirent *entry)
{
    return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static strata_status add_bytes(struct st_digest *d, int fd, uint64_t bytes, const char *path)
{
    unsigned char part[PART_BYTES];
    strata_status st = STRATA_OK;

    st_digest_update(d, &bytes, sizeof(bytes));
    for (uint64_t at = 0; at < bytes && st == STRATA_OK; at += PART_BYTES) {
        const uint64_t left = bytes - at, count = left < PART_BYTES ? left : PART_BYTES;

        if ((st = st_file_read_at(fd, part, count, at, path)) == STRATA_OK)
            st_digest_update(d, part, count);
    }
    return st;
}

static strata_status add_file(struct st_digest *d, const char *dir, const char *name)
{
    struct st_file_identity file;
    char path[ST_PATH_MAX];
    int fd;
    strata_status st = st_path_join(path, dir, name);

    if (st != STRATA_OK || (st = st_file_open(&fd, &file, path, STRATA_E_CORRUPT)) != STRATA_OK)
        return st;
    st_digest_update(d, name, strlen(name) + 1);
    st = add_bytes(d, fd, file.bytes, path);
    close(fd);
    return st;
}

strata_status st_model_files_digest(char digest[ST_DIGEST_TEXT], const char *dir)
{
    struct dirent **entries = NULL;
    struct st_digest *d;
    strata_status st = st_digest_create(&d);
    int count;

    if (st != STRATA_OK)
        return st;
    count = st_fault_refuses("checkpoint.model_files") ? -1 : scandir(dir, &entries, no_dots, by_name);
    if (count < 0)
        st = errno == ENOENT || errno == ENOTDIR ? st_error(STRATA_E_CORRUPT, "%s: is missing: this checkpoint is damaged", dir)
                                                 : st_error_errno(errno, "%s: cannot be listed", dir);
    for (int i = 0; i < count; i++) {
        if (st == STRATA_OK)
            st = add_file(d, dir, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    if (st == STRATA_OK)
        st_digest_hex(d, digest);
    st_digest_destroy(d);
    return st;
}

strata_status st_model_files_check(const struct st_checkpoint *ck)
{
    char dir[ST_PATH_MAX], digest[ST_DIGEST_TEXT];
    strata_status st;

    if (ck->manifest.model_files[0] == '\0')
        return STRATA_OK;
    if ((st = st_path_join(dir, ck->path, ST_CHECKPOINT_MODEL)) != STRATA_OK ||
        (st = st_model_files_digest(digest, dir)) != STRATA_OK)
        return st_checkpoint_failed(ck, st);
    if (strcmp(digest, ck->manifest.model_files) == 0)
        return STRATA_OK;
    st = st_error(
        STRATA_E_CORRUPT,
        "%s: the model's small files are not those that were saved: this checkpoint is damaged; take them from an older one",
        dir);
    return st_checkpoint_failed(ck, st);
}

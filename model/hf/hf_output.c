/* model/hf/hf_output.c - an existing model in the directory where a new one is written.
 *
 * A shard is a file whose name is model-NNNNN-of-NNNNN.safetensors, or another .safetensors file that the index names.  The index
 * is removed last, so that a run that ends in between leaves files that the next one still recognises. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/file.h"
#include "model/hf/hf_index_internal.h"
#include "model/hf/hf_output_internal.h"
#include "model/model.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHARD_ENDING ".safetensors"

static bool digits(const char **at, const char *end)
{
    if (strspn(*at, "0123456789") != 5 || strncmp(*at + 5, end, strlen(end)) != 0)
        return false;
    *at += 5 + strlen(end);
    return true;
}

static bool is_shard(const char *name)
{
    const char *at = name + strlen("model-");

    return strncmp(name, "model-", strlen("model-")) == 0 && digits(&at, "-of-") && digits(&at, SHARD_ENDING) && *at == '\0';
}

static bool is_named_shard(const char *name)
{
    const size_t length = strlen(name), ending = strlen(SHARD_ENDING);

    return length > ending && strcmp(name + length - ending, SHARD_ENDING) == 0 && strcmp(name, ST_HF_WEIGHTS_NAME) != 0;
}

/* --- is there a model? --- */

static strata_status check_shards(const char *dir)
{
    DIR *entries = st_fault_refuses("hf.opendir") ? NULL : opendir(dir);
    strata_status st = STRATA_OK;
    struct dirent *entry;

    if (entries == NULL)
        return errno == ENOENT ? STRATA_OK : st_error_errno(errno, "%s", dir);
    while (st == STRATA_OK && (entry = st_dir_next(entries)) != NULL)
        if (is_shard(entry->d_name))
            st = st_error_remedy(st_error(STRATA_E_INPUT, "%s/%s: exists already", dir, entry->d_name), "export.overwrite",
                                 "export.overwrite replaces the model");
    if (st == STRATA_OK && errno != 0)
        st = st_error_errno(errno, "%s: its entries cannot be read", dir);
    closedir(entries);
    return st;
}

/* Finds what prevents directories from being made: the deepest existing one cannot be written, or is a file. */
static strata_status check_parents(const char *dir)
{
    char path[ST_PATH_MAX], deepest[ST_PATH_MAX] = ".";
    struct stat info;

    for (size_t end = 1; end <= strlen(dir); end++) {
        if (dir[end] != '/' && dir[end] != '\0')
            continue;
        snprintf(path, sizeof(path), "%.*s", (int)end, dir);
        if (st_fault_refuses("hf.parent") || stat(path, &info) != 0) {
            if (errno != ENOENT)
                return st_error_errno(errno, "%s", path);
            break;
        }
        if (!S_ISDIR(info.st_mode))
            return st_error(STRATA_E_INPUT, "%s: %s is not a directory", dir, path);
        memcpy(deepest, path, sizeof(deepest));
    }
    return access(deepest, W_OK | X_OK) == 0 ? STRATA_OK : st_error_errno(errno, "%s: cannot be created in %s", dir, deepest);
}

strata_status st_hf_output_check_names(const char *dir, const char *const *names, uint32_t count, bool overwrite)
{
    char path[ST_PATH_MAX];
    bool there;
    strata_status st;

    if (dir[0] == '\0' || strlen(dir) >= sizeof(path))
        return st_error(STRATA_E_INPUT, "output directory \"%.64s\": the name is %s", dir, dir[0] == '\0' ? "empty" : "too long");
    if ((st = st_file_find(&there, dir)) != STRATA_OK || !there)
        return st == STRATA_OK ? check_parents(dir) : st;
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        if ((st = st_path_join(path, dir, names[i])) == STRATA_OK)
            st = st_new_file_check(path, overwrite);
    return st;
}

strata_status st_hf_output_check(const char *dir, bool overwrite)
{
    static const char *const names[] = {ST_HF_CONFIG_NAME, ST_HF_GENERATION_NAME, ST_HF_WEIGHTS_NAME, ST_HF_INDEX_NAME};
    const strata_status st = st_hf_output_check_names(dir, names, sizeof(names) / sizeof(names[0]), overwrite);

    return st != STRATA_OK || overwrite ? st : check_shards(dir);
}

strata_status st_hf_output_check_lacks(const char *dir, const char *name, const char *what)
{
    char path[ST_PATH_MAX];
    bool there = false;
    strata_status st = st_path_join(path, dir, name);

    if (st == STRATA_OK)
        st = st_file_find(&there, path);
    if (st != STRATA_OK || !there)
        return st;
    return st_error(STRATA_E_INPUT,
                    "%s holds %s (%s): a model and an adapter in one directory would be loaded together: name another directory",
                    dir, what, name);
}

strata_status st_hf_output_check_apart(const char *dir, const char *path)
{
    const char *name = st_path_name(path);
    char parent[ST_PATH_MAX];
    strata_status st;

    if (st_new_file_is_dir(path, dir))
        return st_error(STRATA_E_INPUT, "%s: is the name of two outputs: name another file", path);
    if (strcmp(name, ST_HF_INDEX_NAME) != 0 && strcmp(name, ST_HF_WEIGHTS_NAME) != 0 && !is_named_shard(name))
        return STRATA_OK;
    if ((st = st_path_dir(parent, path)) != STRATA_OK || !st_file_is_same(parent, dir))
        return st;
    return st_error(STRATA_E_INPUT, "%s: the model in %s uses this name itself: name another file", path, dir);
}

/* --- small files --- */

strata_status st_hf_output_put(struct st_new_file *file, const char *dir, const char *name, const void *bytes, uint64_t count,
                               bool overwrite)
{
    char path[ST_PATH_MAX];
    strata_status st;

    if ((st = st_path_join(path, dir, name)) != STRATA_OK ||
        (st = st_new_file_create(file, path, overwrite ? ST_NEW_FILE_OVERWRITE : 0)) != STRATA_OK)
        return st;
    return st_new_file_write_at(file, bytes, count, 0);
}

strata_status st_hf_output_name(struct st_new_file *file, strata_status *unsafe)
{
    const strata_status st = st_new_file_commit(file);

    if (!file->named)
        return st;
    *unsafe = st != STRATA_OK ? st : *unsafe;
    return STRATA_OK;
}

/* --- removing it --- */

strata_status st_hf_output_remove(const char *dir, const char *name)
{
    char path[ST_PATH_MAX];
    strata_status st = st_path_join(path, dir, name);
    int64_t res;

    if (st != STRATA_OK)
        return st;
    res = st_fault("hf.unlink", 0);
    if (res == 0 && unlink(path) != 0)
        res = -errno;
    return res == 0 || res == -ENOENT ? STRATA_OK : st_error_errno((int)-res, "removing %s of the previous model", path);
}

struct old_files {
    const char *dir;
    bool (*is_new)(void *ctx, const char *name);
    void *ctx;
};

static strata_status remove_old(const struct old_files *old, const char *name)
{
    return old->is_new(old->ctx, name) ? STRATA_OK : st_hf_output_remove(old->dir, name);
}

static strata_status remove_found(const struct old_files *old)
{
    DIR *entries = st_fault_refuses("hf.opendir") ? NULL : opendir(old->dir);
    strata_status st = STRATA_OK;
    struct dirent *entry;

    if (entries == NULL)
        return st_error_errno(errno, "%s", old->dir);
    while (st == STRATA_OK && (entry = st_dir_next(entries)) != NULL)
        if (is_shard(entry->d_name))
            st = remove_old(old, entry->d_name);
    if (st == STRATA_OK && errno != 0)
        st = st_error_errno(errno, "%s: its entries cannot be read", old->dir);
    closedir(entries);
    return st;
}

strata_status st_hf_output_read_index(struct st_hf_index *out, const char *dir)
{
    char path[ST_PATH_MAX];
    bool there;
    strata_status st;

    *out = (struct st_hf_index){0};
    if ((st = st_path_join(path, dir, ST_HF_INDEX_NAME)) != STRATA_OK || (st = st_file_find(&there, path)) != STRATA_OK || !there)
        return st;
    st = st_hf_index_read(out, path);
    return st == STRATA_E_INPUT ? STRATA_OK : st;
}

/* Old weights in one file go first: readers prefer them to new shards. */
strata_status st_hf_output_remove_old(const char *dir, const struct st_hf_index *index,
                                      bool (*is_new)(void *ctx, const char *name), void *ctx)
{
    const struct old_files old = {.dir = dir, .is_new = is_new, .ctx = ctx};
    strata_status st = remove_old(&old, ST_HF_WEIGHTS_NAME);

    if (st == STRATA_OK)
        st = remove_old(&old, ST_HF_GENERATION_NAME);
    for (uint32_t i = 0; i < index->file_count && st == STRATA_OK; i++)
        if (is_named_shard(index->files[i]))
            st = remove_old(&old, index->files[i]);
    if (st == STRATA_OK)
        st = remove_found(&old);
    return st == STRATA_OK ? remove_old(&old, ST_HF_INDEX_NAME) : st;
}

bool st_hf_output_has_name(const struct st_new_file *file, const char *name)
{
    return file->named && strcmp(file->path + file->base, name) == 0;
}

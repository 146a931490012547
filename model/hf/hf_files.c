/* model/hf/hf_files.c - see hf_files_internal.h. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "model/hf/hf_files_internal.h"
#include "model/hf/hf_index_internal.h"
#include "model/hf/hf_names_internal.h"
#include "model/hf/hf_output_internal.h"
#include <stdlib.h>
#include <unistd.h>

/* The next file of the list, whose path is there. */
static strata_status open_next(struct st_hf_files *to)
{
    struct st_hf_weights *f = &to->list[to->count];
    strata_status st;

    f->fd = -1;
    if ((st = st_file_open(&f->fd, &f->identity, f->path, STRATA_E_INPUT)) != STRATA_OK)
        return st;
    to->count++;
    return st_safetensors_read(&f->header, f->fd, f->identity.bytes, f->path);
}

static strata_status open_file(struct st_hf_files *to, const char *dir, const char *name)
{
    const strata_status st = st_path_join(to->list[to->count].path, dir, name);

    return st == STRATA_OK ? open_next(to) : st;
}

static strata_status alloc_files(struct st_hf_files *to, uint32_t count)
{
    to->list = st_fault("hf.files", 0) < 0 ? NULL : calloc(count, sizeof(*to->list));
    return to->list != NULL ? STRATA_OK : st_nomem(count * sizeof(*to->list));
}

static strata_status check_shard(bool *held, const struct st_hf_index *index, const struct st_hf_files *files, uint32_t shard,
                                 const char *path)
{
    const struct st_hf_weights *f = &files->list[shard];

    for (uint32_t i = 0; i < f->header.count; i++) {
        const struct st_hf_index_entry *e = st_hf_index_find(index, f->header.tensors[i].name);

        if (e == NULL || e->file != shard)
            return st_error(STRATA_E_INPUT, "%s: tensor %s is in this file, but %s says otherwise", f->path,
                            f->header.tensors[i].name, path);
        held[e - index->entries] = true;
    }
    return STRATA_OK;
}

/* Checks that shards and index name the same tensors in the same files.  Writers of an index may count a tied head, which no
 * shard need hold. */
static strata_status check_index(const struct st_hf_files *files, const struct st_hf_index *index, const char *path,
                                 const struct st_model_config *config)
{
    bool *held = st_fault("hf.files", 0) < 0 ? NULL : calloc(index->count, sizeof(*held));
    strata_status st = held != NULL ? STRATA_OK : st_nomem(index->count * sizeof(*held));

    for (uint32_t i = 0; i < files->count && st == STRATA_OK; i++)
        st = check_shard(held, index, files, i, path);
    for (uint32_t i = 0; i < index->count && st == STRATA_OK; i++)
        if (!held[i] && (config == NULL || config->untied || !st_hf_name_is_head(config, index->entries[i].name)))
            st = st_error(STRATA_E_INPUT, "%s names tensor %s in %s, which does not hold it", path, index->entries[i].name,
                          index->files[index->entries[i].file]);
    free(held);
    return st;
}

static strata_status open_shards(struct st_hf_files *to, const char *dir, const char *index_path,
                                 const struct st_model_config *config)
{
    struct st_hf_index index;
    strata_status st = st_hf_index_read(&index, index_path);

    if (st != STRATA_OK)
        return st;
    st = alloc_files(to, index.file_count);
    for (uint32_t i = 0; i < index.file_count && st == STRATA_OK; i++)
        st = open_file(to, dir, index.files[i]);
    if (st == STRATA_OK)
        st = check_index(to, &index, index_path, config);
    st_hf_index_fini(&index);
    return st;
}

strata_status st_hf_files_open_one(struct st_hf_files *out, const char *dir, const char *name)
{
    struct st_hf_files files = {0};
    strata_status st = alloc_files(&files, 1);

    if (st == STRATA_OK)
        st = open_file(&files, dir, name);
    if (st == STRATA_OK)
        *out = files;
    else
        st_hf_files_close(&files);
    return st;
}

strata_status st_hf_files_open_list(struct st_hf_files *out, const char *const *paths, uint32_t count)
{
    struct st_hf_files files = {0};
    strata_status st = alloc_files(&files, count);

    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        if ((st = st_path_copy(files.list[i].path, paths[i])) == STRATA_OK)
            st = open_next(&files);
    if (st == STRATA_OK)
        *out = files;
    else
        st_hf_files_close(&files);
    return st;
}

strata_status st_hf_files_check_unchanged(const struct st_hf_files *files)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < files->count && st == STRATA_OK; i++)
        st = st_file_check_unchanged(files->list[i].fd, &files->list[i].identity, files->list[i].path);
    return st;
}

static strata_status find_file(bool *there, char path[ST_PATH_MAX], const char *dir, const char *name)
{
    const strata_status st = st_path_join(path, dir, name);

    return st == STRATA_OK ? st_file_find(there, path) : st;
}

strata_status st_hf_files_are_there(bool *there, const char *dir)
{
    char path[ST_PATH_MAX];
    strata_status st = find_file(there, path, dir, ST_HF_WEIGHTS_NAME);

    return st == STRATA_OK && !*there ? find_file(there, path, dir, ST_HF_INDEX_NAME) : st;
}

strata_status st_hf_files_open(struct st_hf_files *out, const char *dir, const struct st_model_config *config)
{
    struct st_hf_files files = {0};
    char path[ST_PATH_MAX];
    bool there;
    strata_status st = find_file(&there, path, dir, ST_HF_WEIGHTS_NAME);

    if (st == STRATA_OK && there)
        return st_hf_files_open_one(out, dir, ST_HF_WEIGHTS_NAME);
    if (st != STRATA_OK || (st = find_file(&there, path, dir, ST_HF_INDEX_NAME)) != STRATA_OK)
        return st;
    if (!there)
        return st_error(STRATA_E_INPUT,
                        "%s: no weights: neither model.safetensors nor model.safetensors.index.json; of weights in another form "
                        "transformers' "
                        "save_pretrained() makes them",
                        dir);
    if ((st = open_shards(&files, dir, path, config)) == STRATA_OK)
        *out = files;
    else
        st_hf_files_close(&files);
    return st;
}

void st_hf_files_close(struct st_hf_files *files)
{
    for (uint32_t i = 0; i < files->count; i++) {
        st_safetensors_fini(&files->list[i].header);
        close(files->list[i].fd);
    }
    free(files->list);
    *files = (struct st_hf_files){0};
}

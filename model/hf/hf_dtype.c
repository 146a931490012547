/* model/hf/hf_dtype.c - finds the dtype in which a Hugging Face directory stores its weights, before any of them is read. */
#include "core/base/error.h"
#include "core/system/file.h"
#include "model/hf/hf_fields_internal.h"
#include "model/hf/hf_index_internal.h"
#include "model/hf/safetensors_internal.h"
#include "model/layout.h"
#include "model/model.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONFIG_BYTES_MAX (1u << 20)

static strata_status parse_dtype(strata_dtype *out, const st_json *root, const char *key, const char *where)
{
    static const struct {
        const char *name;
        strata_dtype dtype;
    } names[] = {{"float32", STRATA_F32}, {"bfloat16", STRATA_BF16}, {"float16", STRATA_F16}};
    const char *text = NULL;
    const strata_status st = st_hf_read_text(root, key, &text, where);

    if (st != STRATA_OK || text == NULL)
        return st;
    if (strncmp(text, "torch.", 6) == 0)
        text += 6;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(names[i].name, text) == 0) {
            *out = names[i].dtype;
            return STRATA_OK;
        }
    }
    return st_error(STRATA_E_INPUT,
                    "%s: \"%s\" is \"%.32s\", and the run's configuration names no precision: set bf16.enabled or fp16.enabled",
                    where, key, text);
}

strata_status st_hf_config_dtype(strata_dtype *out, const char *path)
{
    uint64_t bytes;
    st_json *root;
    char *text;
    strata_status st = st_file_read_text(&text, &bytes, path, CONFIG_BYTES_MAX);

    *out = STRATA_DTYPE_INVALID;
    if (st != STRATA_OK)
        return st;
    st = st_json_parse(&root, text, bytes, path);
    free(text);
    if (st != STRATA_OK)
        return st;
    st = parse_dtype(out, root, "dtype", path);
    if (st == STRATA_OK && *out == STRATA_DTYPE_INVALID)
        st = parse_dtype(out, root, "torch_dtype", path); /* the older spelling */
    st_json_free(root);
    return st;
}

static strata_status dtype_of_file(strata_dtype *out, const char *path)
{
    struct st_safetensors header = {0};
    struct st_file_identity was;
    strata_status st;
    int fd = -1;

    if ((st = st_file_open(&fd, &was, path, STRATA_E_INPUT)) != STRATA_OK)
        return st;
    if ((st = st_safetensors_read(&header, fd, was.bytes, path)) == STRATA_OK)
        st = st_file_check_unchanged(fd, &was, path);
    for (uint32_t i = 0; st == STRATA_OK && i < header.count && *out == STRATA_DTYPE_INVALID; i++)
        *out = header.tensors[i].dtype;
    st_safetensors_fini(&header);
    close(fd);
    return st;
}

static strata_status dtype_of_weights(strata_dtype *out, const char *dir)
{
    char single[ST_PATH_MAX], index_path[ST_PATH_MAX], shard[ST_PATH_MAX];
    struct st_hf_index index;
    bool there;
    strata_status st;

    if ((st = st_path_join(single, dir, "model.safetensors")) != STRATA_OK ||
        (st = st_path_join(index_path, dir, "model.safetensors.index.json")) != STRATA_OK ||
        (st = st_file_find(&there, single)) != STRATA_OK)
        return st;
    if (there)
        return dtype_of_file(out, single);
    if ((st = st_file_find(&there, index_path)) != STRATA_OK || !there)
        return st;
    if ((st = st_hf_index_read(&index, index_path)) != STRATA_OK)
        return st;
    if (index.file_count > 0 && (st = st_path_join(shard, dir, index.files[0])) == STRATA_OK)
        st = dtype_of_file(out, shard);
    st_hf_index_fini(&index);
    return st;
}

strata_status st_hf_stored_dtype(strata_dtype *out, const char *dir)
{
    strata_dtype stored = STRATA_DTYPE_INVALID;
    char path[ST_PATH_MAX];
    strata_status st = st_path_join(path, dir, "config.json");

    if (st == STRATA_OK)
        st = st_hf_config_dtype(&stored, path);
    if (st == STRATA_OK && stored == STRATA_DTYPE_INVALID)
        st = dtype_of_weights(&stored, dir);
    if (st == STRATA_OK)
        *out = stored;
    return st;
}

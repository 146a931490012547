/* model/hf/hf_adapter_base.c - compares the name of an adapter's base model with that of the model that is given.
 *
 * Only letters and digits of names are compared, and one may be a part of the other: llama-2-7b is Llama-2-7b-hf.  A
 * directory has the name of its last part, that of the hub's cache (models--ORG--NAME) if it lies there, and what config.json
 * calls it. */
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/json/json.h"
#include "core/system/file.h"
#include "model/hf/hf_adapter.h"
#include "model/hf/hf_output_internal.h"

#include <stdlib.h>
#include <string.h>

#define CACHE_MARK       "models--"
#define CONFIG_BYTES_MAX (1u << 20)

/* Letters, small, and digits of the last part of a path. */
static void plain_name(char out[ST_PATH_MAX], const char *path)
{
    size_t end = strlen(path), begin, n = 0;

    while (end > 0 && path[end - 1] == '/')
        end--;
    for (begin = end; begin > 0 && path[begin - 1] != '/';)
        begin--;
    for (; begin < end && n + 1 < ST_PATH_MAX; begin++)
        if (st_text_is_word(path[begin]))
            out[n++] = st_text_lower(path[begin]);
    out[n] = '\0';
}

static bool is_like(const char *base, const char *path)
{
    char a[ST_PATH_MAX], b[ST_PATH_MAX];

    plain_name(a, base);
    plain_name(b, path);
    return a[0] == '\0' || (b[0] != '\0' && (strstr(a, b) != NULL || strstr(b, a) != NULL));
}

/* .../models--ORG--NAME/snapshots/HASH */
static bool is_cached_as(const char *base, const char *path)
{
    const char *mark = strstr(path, CACHE_MARK), *name = mark != NULL ? strstr(mark + strlen(CACHE_MARK), "--") : NULL;
    char part[ST_PATH_MAX];

    if (name == NULL)
        return false;
    snprintf(part, sizeof(part), "%.*s", (int)strcspn(name, "/"), name);
    return is_like(base, part);
}

static bool is_configured_as(const char *base, const char *dir)
{
    char path[ST_PATH_MAX];
    const st_json *member = NULL;
    const char *name = NULL;
    st_json *root = NULL;
    bool like;

    if (st_path_join(path, dir, ST_HF_CONFIG_NAME) == STRATA_OK && st_json_parse_file(&root, path, CONFIG_BYTES_MAX) == STRATA_OK)
        member = st_json_get(root, "_name_or_path");
    if (member != NULL)
        name = st_json_string(member);
    like = name != NULL && name[0] != '\0' && is_like(base, name);
    st_json_free(root);
    return like;
}

void st_hf_adapter_note_base(const struct st_hf_adapter *a, const char *model)
{
    const st_json *member = st_json_get(st_adapter_spec_object(st_hf_adapter_spec(a)), "base_model_name_or_path");
    const char *base = member != NULL ? st_json_string(member) : NULL;
    char real[PATH_MAX];

    if (base == NULL || is_like(base, model) || st_file_is_same(base, model) || is_cached_as(base, model))
        return;
    if (!st_fault_refuses("adapter.realpath") && realpath(model, real) != NULL &&
        (is_like(base, real) || is_cached_as(base, real) || is_configured_as(base, real)))
        return;
    st_log(ST_LOG_NOTICE,
           "the adapter was trained on %s (" ST_ADAPTER_CONFIG_NAME
           ": base_model_name_or_path) and is used with %s: give a model with the same weights",
           base, model);
}

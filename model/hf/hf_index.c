/* model/hf/hf_index.c - see hf_index_internal.h. */
#include "core/base/error.h"
#include "core/json/json.h"
#include "core/system/file.h"
#include "model/hf/hf_index_internal.h"
#include <stdlib.h>
#include <string.h>

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct st_hf_index_entry *)a)->name, ((const struct st_hf_index_entry *)b)->name);
}

/* Index of a shard's name, added when new. */
static strata_status file_index(struct st_hf_index *x, const char *name, uint32_t *out, const char *path)
{
    if (name[0] == '\0' || strchr(name, '/') != NULL || strcmp(name, "..") == 0 || strcmp(name, ".") == 0)
        return st_error(STRATA_E_INPUT, "%s: \"%.64s\" is not a file name", path, name);
    for (uint32_t i = x->file_count; i-- > 0;) { /* neighbours usually share a shard */
        if (strcmp(x->files[i], name) == 0) {
            *out = i;
            return STRATA_OK;
        }
    }
    if (x->file_count == ST_HF_SHARDS_MAX)
        return st_error(STRATA_E_INPUT, "%s: more than %u shards", path, ST_HF_SHARDS_MAX);
    x->files[x->file_count] = strdup(name);
    if (x->files[x->file_count] == NULL)
        return st_nomem(0);
    *out = x->file_count++;
    return STRATA_OK;
}

static strata_status fill(struct st_hf_index *x, const st_json *map, const char *path)
{
    uint32_t count = 0;
    strata_status st;

    for (const st_json *n = st_json_first(map); n != NULL; n = st_json_next(n))
        count++;
    x->entries = calloc(count > 0 ? count : 1, sizeof(*x->entries));
    x->files = calloc(ST_HF_SHARDS_MAX, sizeof(*x->files));
    if (x->entries == NULL || x->files == NULL)
        return st_nomem(0);
    for (const st_json *n = st_json_first(map); n != NULL; n = st_json_next(n)) {
        struct st_hf_index_entry *e = &x->entries[x->count];

        if (st_json_type(n) != ST_JSON_STRING)
            return st_error(STRATA_E_INPUT, "%s: weight_map of \"%.64s\" is not a file name", path, st_json_name(n));
        if ((st = file_index(x, st_json_string(n), &e->file, path)) != STRATA_OK)
            return st;
        e->name = strdup(st_json_name(n));
        if (e->name == NULL)
            return st_nomem(0);
        x->count++;
    }
    if (x->count == 0)
        return st_error(STRATA_E_INPUT, "%s: weight_map is empty", path);
    qsort(x->entries, x->count, sizeof(*x->entries), by_name);
    return STRATA_OK;
}

strata_status st_hf_index_read(struct st_hf_index *out, const char *path)
{
    struct st_hf_index index = {0};
    const st_json *map;
    uint64_t bytes;
    st_json *root;
    strata_status st;
    char *text;

    if ((st = st_file_read_text(&text, &bytes, path, ST_HF_INDEX_BYTES_MAX)) != STRATA_OK)
        return st;
    st = st_json_parse(&root, text, bytes, path);
    free(text);
    if (st != STRATA_OK)
        return st == STRATA_E_NOMEM ? st : st_error_prefix(STRATA_E_INPUT, "safetensors index");
    map = st_json_type(root) == ST_JSON_OBJECT ? st_json_get(root, "weight_map") : NULL;
    if (map == NULL || st_json_type(map) != ST_JSON_OBJECT)
        st = st_error(STRATA_E_INPUT, "%s: no object \"weight_map\"", path);
    else
        st = fill(&index, map, path);
    st_json_free(root);
    if (st != STRATA_OK) {
        st_hf_index_fini(&index);
        return st;
    }
    *out = index;
    return STRATA_OK;
}

void st_hf_index_fini(struct st_hf_index *x)
{
    for (uint32_t i = 0; i < x->count; i++)
        free(x->entries[i].name);
    for (uint32_t i = 0; i < x->file_count; i++)
        free(x->files[i]);
    free(x->entries);
    free(x->files);
    *x = (struct st_hf_index){0};
}

const struct st_hf_index_entry *st_hf_index_find(const struct st_hf_index *x, const char *name)
{
    const struct st_hf_index_entry key = {.name = (char *)(uintptr_t)name};

    return bsearch(&key, x->entries, x->count, sizeof(*x->entries), by_name);
}

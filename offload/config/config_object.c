/* config_object.c - a value that is an object whose keys are read elsewhere: kept as text without spaces. */
#include "offload/config/config_source.h"

#include "core/base/fault.h"
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 16u

static void put_node(FILE *file, const st_json *node)
{
    struct st_json_writer w;

    st_json_begin(&w, file);
    st_json_put_node(&w, NULL, node);
}

const char *st_object_check(struct st_config_source *src, const st_json *node)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file;

    if (st_json_depth(node) > DEPTH_MAX)
        return st_source_keep(src, "is nested more than %u levels deep", DEPTH_MAX);
    file = st_fault("config.alloc", 0) < 0 ? NULL : open_memstream(&text, &bytes);
    if (file != NULL)
        put_node(file, node);
    if (file == NULL || fclose(file) != 0)
        src->failed = true;
    free(text);
    if (bytes >= ST_CONFIG_JSON_MAX)
        return st_source_keep(src, "has %zu bytes without spaces; at most %d are allowed", bytes, ST_CONFIG_JSON_MAX - 1);
    return NULL;
}

void st_object_store(char *at, const st_json *node)
{
    FILE *file;

    memset(at, 0, ST_CONFIG_JSON_MAX);
    file = st_fault("config.alloc", 0) < 0 ? NULL : fmemopen(at, ST_CONFIG_JSON_MAX, "w");
    if (file == NULL)
        return;
    put_node(file, node);
    fclose(file);
}

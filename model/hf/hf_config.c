/* model/hf/hf_config.c - reads config.json of Hugging Face directories, strictly for keys that change the model's meaning. */
#include "core/base/error.h"
#include "core/system/file.h"
#include "model/hf/hf_config_internal.h"
#include "model/hf/hf_fields_internal.h"
#include "model/hf/hf_output_internal.h"
#include "model/layout.h"
#include <stdlib.h>
#include <string.h>

#define CONFIG_BYTES_MAX (1u << 20)

static strata_status unknown_family(const char *type, const char *where)
{
    char list[256] = "";
    size_t length = 0;

    for (enum st_model_family i = 0; i < ST_FAMILY_COUNT; i++)
        length += (size_t)snprintf(list + length, sizeof(list) - length, "%s%s",
                                   i == 0                    ? ""
                                   : i + 1 < ST_FAMILY_COUNT ? ", "
                                                             : " and ",
                                   st_family_of(i)->model_type);
    return st_error(STRATA_E_INPUT, "%s: \"model_type\" is \"%.32s\"; %s are supported", where, type, list);
}

static strata_status parse_family(struct st_model_config *c, const st_json *root, const char *where)
{
    const struct st_family *family;
    const char *type = NULL;
    const strata_status st = st_hf_read_text(root, "model_type", &type, where);

    if (st != STRATA_OK)
        return st;
    if (type == NULL)
        return st_hf_key_fault(where, "model_type", "is missing");
    if ((family = st_family_named(type)) == NULL)
        return unknown_family(type, where);
    *c = family->defaults;
    return family->positions != NULL ? st_hf_gpt2_parse(c, root, where) : st_hf_llama_parse(c, root, family, where);
}

static strata_status parse_root(struct st_model_config *c, const st_json *root, const char *where)
{
    strata_status st;

    if (st_json_type(root) != ST_JSON_OBJECT)
        return st_error(STRATA_E_INPUT, "%s: not a JSON object", where);
    if ((st = parse_family(c, root, where)) != STRATA_OK)
        return st;
    return st_model_config_check(c, STRATA_E_INPUT, where);
}

strata_status st_model_config_parse(struct st_model_config *out, const char *text, uint64_t bytes, const char *where)
{
    struct st_model_config config = {0};
    st_json *root;
    strata_status st = st_json_parse(&root, text, bytes, where);

    if (st != STRATA_OK)
        return st == STRATA_E_NOMEM ? st : st_error_prefix(STRATA_E_INPUT, "model config");
    st = parse_root(&config, root, where);
    memcpy(config.name, out->name, sizeof(config.name));
    st_json_free(root);
    if (st == STRATA_OK)
        *out = config;
    return st;
}

/* The last component of so much of a path names the model. */
static void name_from_path(struct st_model_config *c, const char *dir, size_t end)
{
    size_t begin;

    while (end > 1 && dir[end - 1] == '/')
        end--;
    begin = end;
    while (begin > 0 && dir[begin - 1] != '/')
        begin--;
    snprintf(c->name, sizeof(c->name), "%.*s", (int)(end - begin < sizeof(c->name) ? end - begin : sizeof(c->name) - 1),
             dir + begin);
}

static strata_status read_file(struct st_model_config *config, const char *path)
{
    uint64_t bytes;
    char *text;
    strata_status st = st_file_read_text(&text, &bytes, path, CONFIG_BYTES_MAX);

    if (st != STRATA_OK)
        return st;
    st = st_model_config_parse(config, text, bytes, path);
    free(text);
    return st;
}

strata_status st_model_config_read(struct st_model_config *out, const char *dir)
{
    struct st_model_config config = {0};
    char path[ST_PATH_MAX];
    strata_status st = st_path_join(path, dir, ST_HF_CONFIG_NAME);

    name_from_path(&config, dir, strlen(dir));
    if (st == STRATA_OK && (st = read_file(&config, path)) == STRATA_OK)
        *out = config;
    return st;
}

strata_status st_model_config_read_file(struct st_model_config *out, const char *path)
{
    static const char usual[] = "/" ST_HF_CONFIG_NAME;
    const size_t length = strlen(path), end = sizeof(usual) - 1;
    struct st_model_config config = {0};
    const bool is_usual = length > end && strcmp(path + length - end, usual) == 0;
    strata_status st;

    name_from_path(&config, path, is_usual ? length - end : length);
    if ((st = read_file(&config, path)) == STRATA_OK)
        *out = config;
    return st;
}

/* text/tokenizer/tokenizer_roles.c - which tokens begin, end and fill texts: tokenizer_config.json and special_tokens_map.json.
 */
#include "text/tokenizer/tokenizer_internal.h"

#include "core/base/error.h"
#include "core/system/file.h"

#include <stdio.h>
#include <string.h>

#define FILE_BYTES_MAX (16u << 20)

static const char *const keys[ST_TOKEN_ROLES] = {"bos_token", "eos_token", "unk_token", "pad_token"};

strata_status st_tokenizer_beside(st_json **out, const char *path, const char *name)
{
    char file[ST_PATH_MAX];
    bool there;
    strata_status st = st_path_beside(file, path, name);

    *out = NULL;
    if (st != STRATA_OK || (st = st_file_find(&there, file)) != STRATA_OK || !there)
        return st;
    if ((st = st_tokenizer_parse_file(out, file, FILE_BYTES_MAX)) != STRATA_OK || st_json_type(*out) == ST_JSON_OBJECT)
        return st;
    st_json_free(*out);
    *out = NULL;
    return st_error(STRATA_E_INPUT, "%s: must be an object", file);
}

/* "eos_token": "</s>", {"content": "</s>", ...} or null. */
static strata_status read_text(const char **out, const struct st_place *at, const char *key)
{
    const st_json *node = st_json_get(at->node, key);
    struct st_place token;
    strata_status st;

    *out = NULL;
    if (node == NULL || st_json_type(node) != ST_JSON_OBJECT)
        return st_place_text(out, at, key);
    st = st_place_object(&token, at, key);
    return st == STRATA_OK ? st_place_text(out, &token, "content") : st;
}

/* A token takes the place of the one that the vocabulary's own file has for this, around texts too. */
static void set_role(struct st_tokenizer *t, unsigned role, uint32_t id)
{
    const uint32_t before = t->roles[role];

    t->roles[role] = id;
    for (uint32_t i = 0; before != ST_TOKEN_NONE && role == ST_TOKEN_BOS && i < t->prefix_count; i++)
        t->prefix[i] = t->prefix[i] == before ? id : t->prefix[i];
    for (uint32_t i = 0; before != ST_TOKEN_NONE && role == ST_TOKEN_EOS && i < t->suffix_count; i++)
        t->suffix[i] = t->suffix[i] == before ? id : t->suffix[i];
}

/* A padding or unknown token may be one that transformers would add: nothing here needs it.
 * @param named  in and out: roles that a file has named before */
static strata_status read_roles(struct st_tokenizer *t, const struct st_place *at, bool named[ST_TOKEN_ROLES])
{
    const char *text;
    strata_status st;

    for (unsigned role = 0; role < ST_TOKEN_ROLES; role++) {
        uint32_t id;

        if ((st = read_text(&text, at, keys[role])) != STRATA_OK)
            return st;
        if (text == NULL || named[role])
            continue;
        id = st_tokenizer_find(t, text);
        if (id == ST_TOKEN_NONE && (role == ST_TOKEN_BOS || role == ST_TOKEN_EOS))
            return st_place_fault(at, keys[role], "\"%.40s\" is no token of %s", text, t->path);
        if (id == ST_TOKEN_NONE)
            continue;
        set_role(t, role, id);
        named[role] = true;
    }
    return STRATA_OK;
}

/* "eos_token_id": 2, [2, 3] or null. */
static uint32_t read_id(const struct st_tokenizer *t, const st_json *root, const char *key)
{
    const st_json *node = st_json_get(root, key);
    uint64_t id;

    if (node != NULL && st_json_type(node) == ST_JSON_ARRAY)
        node = st_json_first(node);
    if (node == NULL || st_json_type(node) != ST_JSON_NUMBER || !st_json_u64(node, &id) || id >= t->vocab)
        return ST_TOKEN_NONE;
    return st_tokenizer_is_special(t, (uint32_t)id) ? (uint32_t)id : ST_TOKEN_NONE;
}

static const char *const model_files[] = {"generation_config.json", "config.json"};

strata_status st_tokenizer_role_beside(uint32_t *id, const struct st_tokenizer *t, enum st_token_role role)
{
    char key[32];

    *id = ST_TOKEN_NONE;
    snprintf(key, sizeof(key), "%s_id", keys[role]);
    for (size_t i = 0; i < sizeof(model_files) / sizeof(model_files[0]) && *id == ST_TOKEN_NONE; i++) {
        st_json *root;
        const strata_status st = st_tokenizer_beside(&root, t->path, model_files[i]);

        if (st != STRATA_OK)
            return st;
        if (root != NULL)
            *id = read_id(t, root, key);
        st_json_free(root);
    }
    return STRATA_OK;
}

bool st_token_is_end(const struct st_token_ends *ends, uint32_t id)
{
    for (uint32_t i = 0; i < ends->count; i++)
        if (ends->ids[i] == id)
            return true;
    return false;
}

static void add_end(struct st_token_ends *out, const struct st_tokenizer *t, const st_json *node)
{
    uint64_t id;

    if (out->count < ST_TOKEN_ENDS_MAX && st_json_type(node) == ST_JSON_NUMBER && st_json_u64(node, &id) && id < t->vocab &&
        !st_token_is_end(out, (uint32_t)id))
        out->ids[out->count++] = (uint32_t)id;
}

strata_status st_tokenizer_ends(struct st_token_ends *out, const struct st_tokenizer *t)
{
    *out = (struct st_token_ends){.ids = {t->roles[ST_TOKEN_EOS]}, .count = t->roles[ST_TOKEN_EOS] != ST_TOKEN_NONE};
    for (size_t i = 0; i < sizeof(model_files) / sizeof(model_files[0]); i++) {
        st_json *root;
        const st_json *node;
        const strata_status st = st_tokenizer_beside(&root, t->path, model_files[i]);

        if (st != STRATA_OK)
            return st;
        node = root != NULL ? st_json_get(root, "eos_token_id") : NULL;
        if (node != NULL && st_json_type(node) == ST_JSON_ARRAY)
            for (const st_json *n = st_json_first(node); n != NULL; n = st_json_next(n))
                add_end(out, t, n);
        else if (node != NULL)
            add_end(out, t, node);
        st_json_free(root);
    }
    return STRATA_OK;
}

/* Where two files name a token, the map counts beside a config of before added_tokens_decoder, as in transformers. */
strata_status st_tokenizer_read_roles(struct st_tokenizer *t)
{
    struct st_place config = {.file = "tokenizer_config.json"}, map = {.file = "special_tokens_map.json"};
    st_json *config_root = NULL, *map_root = NULL;
    bool named[ST_TOKEN_ROLES] = {false}, map_first;
    strata_status st = st_tokenizer_beside(&config_root, t->path, config.file);

    if (st == STRATA_OK)
        st = st_tokenizer_beside(&map_root, t->path, map.file);
    config.node = config_root;
    map.node = map_root;
    map_first = config_root == NULL || st_json_get(config_root, "added_tokens_decoder") == NULL;
    if (st == STRATA_OK && map_root != NULL && map_first)
        st = read_roles(t, &map, named);
    if (st == STRATA_OK && config_root != NULL)
        st = read_roles(t, &config, named);
    if (st == STRATA_OK && map_root != NULL && !map_first)
        st = read_roles(t, &map, named);
    st_json_free(config_root);
    st_json_free(map_root);
    return st;
}

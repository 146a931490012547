/* model/hf/hf_config.c - reads config.json of Hugging Face directories, strictly for keys that change the model's meaning. */
#include "core/base/error.h"
#include "core/system/file.h"
#include "model/hf/hf_config_internal.h"
#include "model/hf/hf_experts_internal.h"
#include "model/hf/hf_fields_internal.h"
#include "model/hf/hf_output_internal.h"
#include "model/layout.h"
#include <stdlib.h>
#include <string.h>

#define CONFIG_BYTES_MAX (1u << 20)

static const char text_key[] = "text_config";

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

static strata_status unknown_type(const st_json *root, const char *type, const char *where)
{
    if (st_hf_member(root, "kv_lora_rank") != NULL)
        return st_error(STRATA_E_INPUT,
                        "%s: \"model_type\" is \"%.32s\", with latent attention (\"kv_lora_rank\"): not supported", where, type);
    if (st_hf_member(root, text_key) == NULL)
        return unknown_family(type, where);
    return st_error(
        STRATA_E_INPUT,
        "%s: \"model_type\" is \"%.32s\", a model of more than text: save only its text model with transformers (docs/models.md)",
        where, type);
}

/* Sizes that a text_config may leave out. */
static void take_sizes(struct st_model_config *c)
{
    static const struct {
        enum st_model_family family;
        uint32_t vocab, hidden, ffn, blocks, heads, context;
    } rows[] = {{ST_FAMILY_LLAMA, 32000, 4096, 11008, 32, 32, 2048},
                {ST_FAMILY_MISTRAL, 32000, 4096, 14336, 32, 32, 131072},
                {ST_FAMILY_QWEN2, 151936, 4096, 22016, 32, 32, 32768},
                {ST_FAMILY_GEMMA3, 262208, 2304, 9216, 26, 8, 131072}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].family != c->family)
            continue;
        c->vocab = rows[i].vocab;
        c->hidden = rows[i].hidden;
        c->ffn = rows[i].ffn;
        c->blocks = rows[i].blocks;
        c->heads = rows[i].heads;
        c->context = rows[i].context;
    }
}

static bool says_base(const st_json *text)
{
    static const char key[] = "rope_theta";
    const st_json *parameters = st_hf_member(text, "rope_parameters");

    return st_hf_member(text, key) != NULL ||
           (parameters != NULL && st_json_type(parameters) == ST_JSON_OBJECT && st_hf_member(parameters, key) != NULL);
}

/* The settings of the text model are the object's own in older files of some. */
static strata_status parse_text(struct st_model_config *c, const st_json *root, const struct st_wrapper *w, const char *where)
{
    const st_json *within = st_hf_member(root, text_key), *text = within != NULL ? within : root;
    const struct st_family *family;
    const char *type = NULL;
    bool is_alias;
    strata_status st;

    if (st_json_type(text) != ST_JSON_OBJECT)
        return st_hf_key_fault(where, text_key, "must be an object");
    if (within != NULL && (st = st_hf_read_text(within, "model_type", &type, where)) != STRATA_OK)
        return st;
    is_alias = w->text_alias != NULL && (type == NULL || strcmp(type, w->text_alias) == 0);
    family = st_family_named(type == NULL || is_alias ? w->text_type : type);
    if (family == NULL || family->positions != NULL)
        return unknown_family(type, where);
    *c = family->defaults;
    c->wrapper = w;
    if (is_alias && w->needs_base && !says_base(text))
        return st_hf_key_fault(where, "rope_theta", "is missing: transformers 4 and 5 take different ones then");
    if (is_alias) {
        c->norm_eps = w->norm_eps > 0.0f ? w->norm_eps : c->norm_eps;
        c->rope_base = w->rope_base > 0.0f ? w->rope_base : c->rope_base;
        c->kv_heads = w->kv_heads > 0 ? w->kv_heads : c->kv_heads;
    } else if (within != NULL) {
        take_sizes(c);
    }
    return st_hf_llama_parse(c, text, family, where);
}

/* The whole model's keys for a tied head and for quantised weights hold for its text model, too; a text model that says itself
 * that its head is tied is believed. */
static strata_status parse_wrapper(struct st_model_config *c, const st_json *root, const struct st_wrapper *w, const char *where)
{
    char within[ST_PATH_MAX + 32];
    const st_json *text = st_hf_member(root, text_key);
    const bool is_said = text != NULL && st_hf_member(text, "tie_word_embeddings") != NULL;
    bool tied;
    strata_status st;

    snprintf(within, sizeof(within), "%s%s", where, text != NULL ? ": \"text_config\"" : "");
    if ((st = parse_text(c, root, w, within)) != STRATA_OK || (st = st_hf_read_quantisation(c, root, where)) != STRATA_OK)
        return st;
    tied = !c->untied;
    st = st_hf_read_bool(root, "tie_word_embeddings", &tied, where);
    c->untied = !(tied || (is_said && !c->untied));
    return st;
}

static strata_status parse_family(struct st_model_config *c, const st_json *root, const char *where)
{
    const struct st_wrapper *wrapper;
    const struct st_family *family;
    const char *type = NULL;
    const strata_status st = st_hf_read_text(root, "model_type", &type, where);

    if (st != STRATA_OK)
        return st;
    if (type == NULL)
        return st_hf_key_fault(where, "model_type", "is missing");
    if ((wrapper = st_wrapper_named(type)) != NULL)
        return parse_wrapper(c, root, wrapper, where);
    if ((family = st_family_named(type)) == NULL)
        return unknown_type(root, type, where);
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
    if (st == STRATA_OK && (st = read_file(&config, path)) == STRATA_OK && (st = st_hf_stack_detect(&config, dir)) == STRATA_OK)
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

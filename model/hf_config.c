/* model/hf_config.c - config.json of Hugging Face GPT-2 directories, read strictly where it changes the model's meaning. */
#include "model/hf_config.h"
#include "core/error.h"
#include "core/json.h"
#include "model/file.h"
#include "model/layout.h"
#include <stdlib.h>
#include <string.h>

#define CONFIG_BYTES_MAX (1u << 20)
#define GPT2_VOCAB       50257u
#define GPT2_END_OF_TEXT 50256u

enum field_kind { FIELD_REQUIRED, FIELD_OPTIONAL };

static strata_status key_fault(const char *where, const char *key, const char *what)
{
    return st_error(STRATA_E_INPUT, "%s: \"%s\" %s", where, key, what);
}

/* A member that is there and not null. */
static const st_json *member(const st_json *root, const char *key)
{
    const st_json *n = st_json_get(root, key);

    return n != NULL && st_json_type(n) != ST_JSON_NULL ? n : NULL;
}

static strata_status read_size(const st_json *root, const char *key, enum field_kind kind, uint32_t *out, const char *where)
{
    const st_json *n = member(root, key);
    uint64_t value;

    if (n == NULL)
        return kind == FIELD_OPTIONAL ? STRATA_OK : key_fault(where, key, "is missing");
    if (!st_json_u64(n, &value) || value == 0 || value > UINT32_MAX)
        return key_fault(where, key, "must be a whole number above 0");
    *out = (uint32_t)value;
    return STRATA_OK;
}

static strata_status read_real(const st_json *root, const char *key, double *out, const char *where)
{
    const st_json *n = member(root, key);

    if (n == NULL)
        return STRATA_OK;
    if (st_json_type(n) != ST_JSON_NUMBER)
        return key_fault(where, key, "must be a number");
    *out = st_json_number(n);
    return STRATA_OK;
}

/* A switch that must have, or default to, the one value that is implemented. */
static strata_status want_bool(const st_json *root, const char *key, bool want, const char *where)
{
    const st_json *n = member(root, key);

    if (n == NULL)
        return STRATA_OK;
    if (st_json_type(n) != ST_JSON_BOOL)
        return key_fault(where, key, "must be true or false");
    return st_json_bool(n) == want ? STRATA_OK : key_fault(where, key, want ? "false is not supported" : "true is not supported");
}

static strata_status check_type(const st_json *root, const char *where)
{
    const st_json *type = member(root, "model_type");
    const st_json *activation = member(root, "activation_function");

    if (type == NULL || st_json_type(type) != ST_JSON_STRING)
        return key_fault(where, "model_type", "is missing");
    if (strcmp(st_json_string(type), "gpt2") != 0)
        return st_error(STRATA_E_INPUT, "%s: \"model_type\" is \"%.32s\"; only gpt2 is supported", where, st_json_string(type));
    if (activation == NULL)
        return STRATA_OK; /* gelu_new */
    if (st_json_type(activation) != ST_JSON_STRING)
        return key_fault(where, "activation_function", "must be a string");
    if (strcmp(st_json_string(activation), "gelu_new") != 0 && strcmp(st_json_string(activation), "gelu_pytorch_tanh") != 0)
        return st_error(STRATA_E_INPUT, "%s: \"activation_function\" is \"%.32s\"; only gelu_new is supported", where,
                        st_json_string(activation));
    return STRATA_OK;
}

static strata_status check_switches(const st_json *root, const char *where)
{
    strata_status st;

    if ((st = want_bool(root, "tie_word_embeddings", true, where)) != STRATA_OK ||
        (st = want_bool(root, "scale_attn_weights", true, where)) != STRATA_OK ||
        (st = want_bool(root, "scale_attn_by_inverse_layer_idx", false, where)) != STRATA_OK)
        return st;
    return want_bool(root, "add_cross_attention", false, where);
}

static strata_status read_sizes(struct st_model_config *c, const st_json *root, const char *where)
{
    strata_status st;

    if ((st = read_size(root, "n_layer", FIELD_REQUIRED, &c->blocks, where)) != STRATA_OK ||
        (st = read_size(root, "n_embd", FIELD_REQUIRED, &c->hidden, where)) != STRATA_OK ||
        (st = read_size(root, "n_head", FIELD_REQUIRED, &c->heads, where)) != STRATA_OK ||
        (st = read_size(root, "vocab_size", FIELD_REQUIRED, &c->vocab, where)) != STRATA_OK ||
        (st = read_size(root, "n_positions", FIELD_REQUIRED, &c->context, where)) != STRATA_OK)
        return st;
    c->ffn = c->hidden <= UINT32_MAX / 4 ? 4 * c->hidden : UINT32_MAX;
    return read_size(root, "n_inner", FIELD_OPTIONAL, &c->ffn, where);
}

/* The largest of the three; transformers' default is 0.1. */
static strata_status read_dropout(struct st_model_config *c, const st_json *root, const char *where)
{
    static const char *const keys[] = {"resid_pdrop", "embd_pdrop", "attn_pdrop"};
    strata_status st;

    c->dropout = 0.0f;
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        double value = 0.1;

        if ((st = read_real(root, keys[i], &value, where)) != STRATA_OK)
            return st;
        if (!(value >= 0.0 && value <= 1.0))
            return key_fault(where, keys[i], "must lie between 0 and 1");
        c->dropout = (float)value > c->dropout ? (float)value : c->dropout;
    }
    return STRATA_OK;
}

static strata_status parse_root(struct st_model_config *c, const st_json *root, const char *where)
{
    double eps = 1e-5;
    strata_status st;

    if (st_json_type(root) != ST_JSON_OBJECT)
        return st_error(STRATA_E_INPUT, "%s: not a JSON object", where);
    if ((st = check_type(root, where)) != STRATA_OK || (st = check_switches(root, where)) != STRATA_OK ||
        (st = read_sizes(c, root, where)) != STRATA_OK || (st = read_dropout(c, root, where)) != STRATA_OK ||
        (st = read_real(root, "layer_norm_epsilon", &eps, where)) != STRATA_OK)
        return st;
    if (!(eps > 0.0 && eps < 1.0))
        return key_fault(where, "layer_norm_epsilon", "must lie between 0 and 1");
    c->norm_eps = (float)eps;
    return st_model_config_check(c, STRATA_E_INPUT, where);
}

strata_status st_model_config_parse(struct st_model_config *out, const char *text, uint64_t bytes, const char *where)
{
    struct st_model_config config = *out;
    st_json *root;
    strata_status st = st_json_parse(&root, text, bytes, where);

    if (st != STRATA_OK)
        return st == STRATA_E_NOMEM ? st : st_error_prefix(STRATA_E_INPUT, "model config");
    st = parse_root(&config, root, where);
    st_json_free(root);
    if (st == STRATA_OK)
        *out = config;
    return st;
}

/* The directory's last component names the model. */
static void name_from_dir(struct st_model_config *c, const char *dir)
{
    size_t end = strlen(dir), begin;

    while (end > 1 && dir[end - 1] == '/')
        end--;
    begin = end;
    while (begin > 0 && dir[begin - 1] != '/')
        begin--;
    snprintf(c->name, sizeof(c->name), "%.*s", (int)(end - begin < sizeof(c->name) ? end - begin : sizeof(c->name) - 1),
             dir + begin);
}

strata_status st_model_config_read(struct st_model_config *out, const char *dir)
{
    struct st_model_config config = {0};
    char path[ST_PATH_MAX];
    uint64_t bytes;
    strata_status st;
    char *text;

    if ((st = st_path_join(path, dir, "config.json")) != STRATA_OK ||
        (st = st_file_read_text(&text, &bytes, path, CONFIG_BYTES_MAX)) != STRATA_OK)
        return st;
    name_from_dir(&config, dir);
    st = st_model_config_parse(&config, text, bytes, path);
    free(text);
    if (st == STRATA_OK)
        *out = config;
    return st;
}

/* The double with the fewest digits that rounds to `value`: 1e-05, not 9.9999997473787516e-06. */
static double shortest(float value)
{
    char text[32];

    for (int digits = 1; digits < 9; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, (double)value);
        if ((float)strtod(text, NULL) == value)
            return strtod(text, NULL);
    }
    return (double)value;
}

static void put_token_ids(struct st_json_writer *w, const struct st_model_config *c)
{
    if (c->vocab == GPT2_VOCAB) {
        st_json_put_u64(w, "bos_token_id", GPT2_END_OF_TEXT);
        st_json_put_u64(w, "eos_token_id", GPT2_END_OF_TEXT);
    } else { /* bytes as tokens have no such marks */
        st_json_put_string(w, "bos_token_id", NULL);
        st_json_put_string(w, "eos_token_id", NULL);
    }
}

void st_model_config_write(const struct st_model_config *c, strata_dtype dtype, FILE *file)
{
    struct st_json_writer w;

    st_json_begin(&w, file);
    st_json_object_open(&w, NULL);
    st_json_array_open(&w, "architectures");
    st_json_put_string(&w, NULL, "GPT2LMHeadModel");
    st_json_array_close(&w);
    st_json_put_string(&w, "model_type", "gpt2");
    st_json_put_string(&w, "activation_function", "gelu_new");
    st_json_put_u64(&w, "vocab_size", c->vocab);
    st_json_put_u64(&w, "n_positions", c->context);
    st_json_put_u64(&w, "n_ctx", c->context);
    st_json_put_u64(&w, "n_embd", c->hidden);
    st_json_put_u64(&w, "n_layer", c->blocks);
    st_json_put_u64(&w, "n_head", c->heads);
    if (c->ffn == 4 * c->hidden)
        st_json_put_string(&w, "n_inner", NULL);
    else
        st_json_put_u64(&w, "n_inner", c->ffn);
    st_json_put_double(&w, "layer_norm_epsilon", shortest(c->norm_eps));
    st_json_put_double(&w, "initializer_range", 0.02);
    st_json_put_double(&w, "resid_pdrop", shortest(c->dropout));
    st_json_put_double(&w, "embd_pdrop", shortest(c->dropout));
    st_json_put_double(&w, "attn_pdrop", shortest(c->dropout));
    st_json_put_bool(&w, "scale_attn_weights", true);
    st_json_put_bool(&w, "scale_attn_by_inverse_layer_idx", false);
    st_json_put_bool(&w, "reorder_and_upcast_attn", false);
    st_json_put_bool(&w, "tie_word_embeddings", true);
    st_json_put_bool(&w, "use_cache", true);
    put_token_ids(&w, c);
    st_json_put_string(&w, "torch_dtype", dtype == STRATA_BF16 ? "bfloat16" : "float32");
    st_json_object_close(&w);
    st_json_end_line(&w);
}

void st_model_generation_config_write(const struct st_model_config *c, FILE *file)
{
    struct st_json_writer w;

    st_json_begin(&w, file);
    st_json_object_open(&w, NULL);
    put_token_ids(&w, c);
    st_json_object_close(&w);
    st_json_end_line(&w);
}

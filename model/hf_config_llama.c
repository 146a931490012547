/* model/hf_config_llama.c - config.json of model_type llama, qwen2 and mistral.  Defaults: transformers' configs.
 *
 * Rotary settings lie in "rope_theta" and "rope_scaling", or all in "rope_parameters" (transformers 5). */
#include "core/error.h"
#include "model/hf_fields.h"
#include "model/layout.h"
#include <string.h>

static strata_status check_activation(const st_json *root, const char *where)
{
    const char *name = "silu";
    const strata_status st = st_hf_read_text(root, "hidden_act", &name, where);

    if (st != STRATA_OK || strcmp(name, "silu") == 0 || strcmp(name, "swish") == 0)
        return st;
    return st_error(STRATA_E_INPUT, "%s: \"hidden_act\" is \"%.32s\"; only silu is supported", where, name);
}

static strata_status check_layer_types(const st_json *root, const char *where)
{
    const st_json *types = st_hf_member(root, "layer_types");

    for (const st_json *n = types != NULL ? st_json_first(types) : NULL; n != NULL; n = st_json_next(n)) {
        if (st_json_type(n) != ST_JSON_STRING || strcmp(st_json_string(n), "full_attention") != 0)
            return st_hf_key_fault(where, "layer_types", "has layers other than full_attention: not supported");
    }
    return STRATA_OK;
}

/* Mistral's window is in use unless null or no shorter than the context; Qwen2's has a switch; Llama has none. */
static strata_status check_window(const struct st_model_config *c, const st_json *root, const char *where)
{
    uint32_t window = UINT32_MAX;
    strata_status st;

    if ((st = check_layer_types(root, where)) != STRATA_OK)
        return st;
    if (c->family == ST_FAMILY_QWEN2)
        return st_hf_want_bool(root, "use_sliding_window", false, where);
    if (c->family != ST_FAMILY_MISTRAL)
        return STRATA_OK;
    if ((st = st_hf_read_size(root, "sliding_window", ST_HF_OPTIONAL, &window, where)) != STRATA_OK)
        return st;
    if (window >= c->context)
        return STRATA_OK;
    return st_error(STRATA_E_INPUT, "%s: \"sliding_window\" %u is below the context of %u tokens: not supported", where, window,
                    c->context);
}

static strata_status check_others(const st_json *root, const char *where)
{
    double share = 1.0;
    strata_status st;

    if (st_hf_member(root, "quantization_config") != NULL)
        return st_hf_key_fault(where, "quantization_config", "is there: quantized weights are not read");
    if ((st = st_hf_read_real(root, "partial_rotary_factor", &share, where)) != STRATA_OK)
        return st;
    if (share != 1.0)
        return st_hf_key_fault(where, "partial_rotary_factor", "other than 1 is not supported");
    return st_hf_want_bool(root, "mlp_bias", false, where);
}

static strata_status read_sizes(struct st_model_config *c, const st_json *root, const char *where)
{
    const bool llama = c->family == ST_FAMILY_LLAMA; /* the others' default for kv heads is no function of heads */
    strata_status st;

    if ((st = st_hf_read_size(root, "num_hidden_layers", ST_HF_REQUIRED, &c->blocks, where)) != STRATA_OK ||
        (st = st_hf_read_size(root, "hidden_size", ST_HF_REQUIRED, &c->hidden, where)) != STRATA_OK ||
        (st = st_hf_read_size(root, "num_attention_heads", ST_HF_REQUIRED, &c->heads, where)) != STRATA_OK ||
        (st = st_hf_read_size(root, "intermediate_size", ST_HF_REQUIRED, &c->ffn, where)) != STRATA_OK ||
        (st = st_hf_read_size(root, "vocab_size", ST_HF_REQUIRED, &c->vocab, where)) != STRATA_OK ||
        (st = st_hf_read_size(root, "max_position_embeddings", ST_HF_REQUIRED, &c->context, where)) != STRATA_OK)
        return st;
    c->kv_heads = c->heads;
    if ((st = st_hf_read_size(root, "num_key_value_heads", llama ? ST_HF_OPTIONAL : ST_HF_REQUIRED, &c->kv_heads, where)) !=
        STRATA_OK)
        return st;
    c->head_dim = c->hidden % c->heads == 0 ? c->hidden / c->heads : 0;
    return st_hf_read_size(root, "head_dim", ST_HF_OPTIONAL, &c->head_dim, where);
}

static strata_status read_float(const st_json *object, const char *key, float *out, const char *where)
{
    double value;
    strata_status st;

    if (st_hf_member(object, key) == NULL)
        return st_hf_key_fault(where, key, "is missing from the rotary scaling");
    if ((st = st_hf_read_real(object, key, &value, where)) == STRATA_OK)
        *out = (float)value;
    return st;
}

static strata_status read_llama3(struct st_model_config *c, const st_json *scaling, const char *where)
{
    strata_status st;

    if ((st = read_float(scaling, "factor", &c->rope_factor, where)) != STRATA_OK ||
        (st = read_float(scaling, "low_freq_factor", &c->rope_low, where)) != STRATA_OK ||
        (st = read_float(scaling, "high_freq_factor", &c->rope_high, where)) != STRATA_OK)
        return st;
    if (!(c->rope_factor >= 1.0f)) /* 0 would read as no scaling */
        return st_hf_key_fault(where, "factor", "of the rotary scaling must be 1 or more");
    return st_hf_read_size(scaling, "original_max_position_embeddings", ST_HF_REQUIRED, &c->rope_original, where);
}

static strata_status read_scaling(struct st_model_config *c, const st_json *root, const char *key, const char *where)
{
    const st_json *scaling = st_hf_member(root, key);
    const char *type = "default";
    strata_status st;

    if (scaling == NULL)
        return STRATA_OK;
    if (st_json_type(scaling) != ST_JSON_OBJECT)
        return st_hf_key_fault(where, key, "must be an object or null");
    if ((st = st_hf_read_text(scaling, "type", &type, where)) != STRATA_OK || /* the older spelling */
        (st = st_hf_read_text(scaling, "rope_type", &type, where)) != STRATA_OK)
        return st;
    if (strcmp(type, "default") == 0)
        return STRATA_OK;
    if (strcmp(type, "llama3") != 0)
        return st_error(STRATA_E_INPUT, "%s: \"%s\" has type \"%.32s\"; only default and llama3 are supported", where, key, type);
    return read_llama3(c, scaling, where);
}

static strata_status read_rotary(struct st_model_config *c, const st_json *root, const char *where)
{
    const st_json *parameters = st_hf_member(root, "rope_parameters");
    double base = 10000.0;
    strata_status st;

    if ((st = st_hf_read_real(root, "rope_theta", &base, where)) != STRATA_OK ||
        (st = read_scaling(c, root, "rope_scaling", where)) != STRATA_OK ||
        (st = read_scaling(c, root, "rope_parameters", where)) != STRATA_OK ||
        (parameters != NULL && (st = st_hf_read_real(parameters, "rope_theta", &base, where)) != STRATA_OK))
        return st;
    c->rope_base = (float)base;
    return STRATA_OK;
}

/* A number, or the first of a list; *out is one more. */
static strata_status read_token(const st_json *root, const char *key, uint32_t *out, const char *where)
{
    const st_json *n = st_hf_member(root, key);
    uint64_t id;

    if (n != NULL && st_json_type(n) == ST_JSON_ARRAY)
        n = st_json_first(n);
    *out = 0;
    if (n == NULL)
        return STRATA_OK;
    if (!st_json_u64(n, &id) || id >= UINT32_MAX)
        return st_hf_key_fault(where, key, "must be a token's number, or a list of them");
    *out = (uint32_t)id + 1;
    return STRATA_OK;
}

static strata_status read_switches(struct st_model_config *c, const st_json *root, const char *where)
{
    bool tied = false, biases = false;
    strata_status st;

    if ((st = st_hf_read_bool(root, "tie_word_embeddings", &tied, where)) != STRATA_OK ||
        (c->family == ST_FAMILY_LLAMA && (st = st_hf_read_bool(root, "attention_bias", &biases, where)) != STRATA_OK))
        return st;
    c->untied = !tied;
    c->biases = c->family == ST_FAMILY_QWEN2 ? ST_BIAS_QKV : biases ? ST_BIAS_ATTENTION : ST_BIAS_NONE;
    return STRATA_OK;
}

strata_status st_hf_llama_parse(struct st_model_config *c, const st_json *root, enum st_model_family family, const char *where)
{
    static const char *const dropouts[] = {"attention_dropout"};
    strata_status st;

    st_model_llama_options(c, family);
    if ((st = check_activation(root, where)) != STRATA_OK || (st = check_others(root, where)) != STRATA_OK ||
        (st = read_sizes(c, root, where)) != STRATA_OK || (st = check_window(c, root, where)) != STRATA_OK ||
        (st = read_switches(c, root, where)) != STRATA_OK || (st = read_rotary(c, root, where)) != STRATA_OK ||
        (st = read_token(root, "bos_token_id", &c->bos_token, where)) != STRATA_OK ||
        (st = read_token(root, "eos_token_id", &c->eos_token, where)) != STRATA_OK ||
        (st = st_hf_read_dropout(root, dropouts, 1, 0.0, &c->dropout, where)) != STRATA_OK)
        return st;
    return st_hf_read_eps(root, "rms_norm_eps", 1e-6, &c->norm_eps, where);
}

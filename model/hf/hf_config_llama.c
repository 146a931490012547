/* model/hf/hf_config_llama.c - config.json of model_type llama, qwen2 and mistral.  Defaults: transformers' configs.
 *
 * Rotary settings are in "rope_theta" and "rope_scaling", or all in "rope_parameters" (transformers 5). */
#include "core/base/error.h"
#include "model/hf/hf_fields_internal.h"
#include "model/layout.h"
#include <string.h>

#define FULL_LAYERS_DEFAULT 28u /* of Qwen2: the first layers, which attend to everything before them */

static strata_status check_activation(const st_json *root, const char *where)
{
    const char *name = "silu";
    const strata_status st = st_hf_read_text(root, "hidden_act", &name, where);

    if (st != STRATA_OK || strcmp(name, "silu") == 0 || strcmp(name, "swish") == 0)
        return st;
    return st_error(STRATA_E_INPUT, "%s: \"hidden_act\" is \"%.32s\"; only silu is supported", where, name);
}

/* *slides: layer_types says that some layer attends within the window only; unchanged if the key is absent. */
static strata_status read_layer_types(const st_json *root, bool *slides, const char *where)
{
    const st_json *types = st_hf_member(root, "layer_types");

    if (types == NULL)
        return STRATA_OK;
    *slides = false;
    for (const st_json *n = st_json_first(types); n != NULL; n = st_json_next(n)) {
        const char *type = st_json_type(n) == ST_JSON_STRING ? st_json_string(n) : "";

        if (strcmp(type, "full_attention") != 0 && strcmp(type, "sliding_attention") != 0)
            return st_hf_key_fault(where, "layer_types",
                                   "has layers other than full_attention and sliding_attention: not supported");
        *slides |= strcmp(type, "sliding_attention") == 0;
    }
    return STRATA_OK;
}

/* null: none. */
static strata_status read_window(const st_json *root, uint32_t *window, const char *where)
{
    if (st_json_get(root, "sliding_window") != NULL)
        *window = 0;
    return st_hf_read_size(root, "sliding_window", ST_HF_OPTIONAL, window, where);
}

/* A window needs its switch and layers to apply to: those named in layer_types, else layers from max_window_layers on. */
static strata_status read_window_from(struct st_model_config *c, const st_json *root, const char *where)
{
    const st_json *full = st_hf_member(root, "max_window_layers");
    uint64_t full_count = FULL_LAYERS_DEFAULT;
    uint32_t window = c->window;
    bool on = false, slides;
    strata_status st;

    if (full != NULL && !st_json_u64(full, &full_count))
        return st_hf_key_fault(where, "max_window_layers", "must be a whole number");
    if ((st = st_hf_read_bool(root, "use_sliding_window", &on, where)) != STRATA_OK ||
        (st = read_window(root, &window, where)) != STRATA_OK)
        return st;
    on = on && window != 0;
    slides = on && full_count < c->blocks;
    if ((st = read_layer_types(root, &slides, where)) != STRATA_OK)
        return st;
    if (slides && !on)
        return st_hf_key_fault(where, "layer_types", "has sliding_attention, but no sliding_window is in use");
    c->window = slides ? window : 0;
    return STRATA_OK;
}

static strata_status read_attention(struct st_model_config *c, const st_json *root, enum st_window_rule rule, const char *where)
{
    bool slides = false;
    strata_status st;

    if (rule == ST_WINDOW_FROM)
        return read_window_from(c, root, where);
    if ((st = read_layer_types(root, &slides, where)) != STRATA_OK)
        return st;
    if (rule == ST_WINDOW_ALL)
        return read_window(root, &c->window, where);
    return slides ? st_hf_key_fault(where, "layer_types", "has sliding_attention: a model of this type has no window")
                  : STRATA_OK;
}

static strata_status check_rotary_fraction(const st_json *object, const char *where)
{
    double fraction = 1.0;
    const strata_status st = st_hf_read_real(object, "partial_rotary_factor", &fraction, where);

    return st == STRATA_OK && fraction != 1.0 ? st_hf_key_fault(where, "partial_rotary_factor", "other than 1 is not supported")
                                              : st;
}

static strata_status check_others(const st_json *root, const char *where)
{
    if (st_hf_member(root, "quantization_config") != NULL)
        return st_hf_key_fault(where, "quantization_config", "is set: quantized weights are not supported");
    return check_rotary_fraction(root, where);
}

static strata_status read_sizes(struct st_model_config *c, const st_json *root, const char *where)
{
    strata_status st;

    if ((st = st_hf_read_size(root, "num_hidden_layers", ST_HF_REQUIRED, &c->blocks, where)) != STRATA_OK ||
        (st = st_hf_read_size(root, "hidden_size", ST_HF_REQUIRED, &c->hidden, where)) != STRATA_OK ||
        (st = st_hf_read_size(root, "num_attention_heads", ST_HF_REQUIRED, &c->heads, where)) != STRATA_OK ||
        (st = st_hf_read_size(root, "intermediate_size", ST_HF_REQUIRED, &c->ffn, where)) != STRATA_OK ||
        (st = st_hf_read_size(root, "vocab_size", ST_HF_REQUIRED, &c->vocab, where)) != STRATA_OK ||
        (st = st_hf_read_size(root, "max_position_embeddings", ST_HF_REQUIRED, &c->context, where)) != STRATA_OK)
        return st;
    if (st_json_get(root, "num_key_value_heads") != NULL || c->kv_heads == 0) /* null: heads */
        c->kv_heads = c->heads;
    if ((st = st_hf_read_size(root, "num_key_value_heads", ST_HF_OPTIONAL, &c->kv_heads, where)) != STRATA_OK)
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
    if (!(c->rope_factor >= 1.0f)) /* 0 would mean no scaling */
        return st_hf_key_fault(where, "factor", "of the rotary scaling must be 1 or more");
    return st_hf_read_size(scaling, "original_max_position_embeddings", ST_HF_REQUIRED, &c->rope_original, where);
}

static strata_status read_scaling(struct st_model_config *c, const st_json *root, const char *key, const char *where)
{
    const st_json *scaling = st_hf_member(root, key);
    const char *type = "default";
    float factor = 0.0f;
    strata_status st;

    if (scaling == NULL)
        return STRATA_OK;
    if (st_json_type(scaling) != ST_JSON_OBJECT)
        return st_hf_key_fault(where, key, "must be an object or null");
    if ((st = st_hf_read_text(scaling, "type", &type, where)) != STRATA_OK || /* the older spelling */
        (st = st_hf_read_text(scaling, "rope_type", &type, where)) != STRATA_OK ||
        (st = check_rotary_fraction(scaling, where)) != STRATA_OK)
        return st;
    if (strcmp(type, "default") == 0)
        return STRATA_OK;
    if (strcmp(type, "llama3") == 0)
        return read_llama3(c, scaling, where);
    if (strcmp(type, "linear") == 0 && (st = read_float(scaling, "factor", &factor, where)) != STRATA_OK)
        return st;
    if (factor == 1.0f)
        return STRATA_OK;
    return st_error(STRATA_E_INPUT, "%s: \"%s\" has type \"%.32s\"; only default, llama3 and linear with factor 1 are supported",
                    where, key, type);
}

static strata_status read_rotary(struct st_model_config *c, const st_json *root, const char *where)
{
    const st_json *parameters = st_hf_member(root, "rope_parameters");
    double base = (double)c->rope_base, other;
    strata_status st;

    if ((st = st_hf_read_real(root, "rope_theta", &base, where)) != STRATA_OK ||
        (st = read_scaling(c, root, "rope_scaling", where)) != STRATA_OK ||
        (st = read_scaling(c, root, "rope_parameters", where)) != STRATA_OK)
        return st;
    other = base;
    if (parameters != NULL && (st = st_hf_read_real(parameters, "rope_theta", &other, where)) != STRATA_OK)
        return st;
    if (other != base && st_hf_member(root, "rope_theta") != NULL) /* transformers' versions differ in which one counts */
        return st_hf_key_fault(where, "rope_theta", "differs from the one in rope_parameters: keep one of them");
    base = other;
    c->rope_base = (float)base;
    return STRATA_OK;
}

static strata_status read_switches(struct st_model_config *c, const st_json *root, uint32_t keys, const char *where)
{
    bool tied = !c->untied, biases = c->biases == ST_BIAS_ATTENTION;
    strata_status st;

    if ((st = st_hf_read_bool(root, "tie_word_embeddings", &tied, where)) != STRATA_OK)
        return st;
    c->untied = !tied;
    if ((keys & ST_KEY_MLP_BIAS) != 0 && (st = st_hf_read_bool(root, "mlp_bias", &c->mlp_bias, where)) != STRATA_OK)
        return st;
    if ((keys & ST_KEY_ATTENTION_BIAS) == 0)
        return STRATA_OK;
    st = st_hf_read_bool(root, "attention_bias", &biases, where);
    c->biases = biases ? ST_BIAS_ATTENTION : ST_BIAS_NONE;
    return st;
}

strata_status st_hf_llama_parse(struct st_model_config *c, const st_json *root, const struct st_family *family, const char *where)
{
    static const char *const dropouts[] = {"attention_dropout"};
    strata_status st;

    if ((st = check_activation(root, where)) != STRATA_OK || (st = check_others(root, where)) != STRATA_OK ||
        (st = read_sizes(c, root, where)) != STRATA_OK || (st = read_attention(c, root, family->windows, where)) != STRATA_OK ||
        (st = read_switches(c, root, family->keys, where)) != STRATA_OK || (st = read_rotary(c, root, where)) != STRATA_OK ||
        (st = st_hf_read_dropout(root, dropouts, 1, 0.0, &c->dropout, where)) != STRATA_OK)
        return st;
    return st_hf_read_eps(root, "rms_norm_eps", (double)c->norm_eps, &c->norm_eps, where);
}

/* model/hf/hf_config_llama.c - config.json of the families with rotary positions.  Defaults: transformers' configs. */
#include "core/base/error.h"
#include "model/hf/hf_experts_internal.h"
#include "model/hf/hf_fields_internal.h"
#include <math.h>
#include <string.h>

static strata_status read_activation(struct st_model_config *c, const st_json *root, const char *key, const char *where)
{
    static const struct {
        const char *name;
        enum st_activation_type type;
    } types[] = {{"silu", ST_ACTIVATION_SWIGLU},
                 {"swish", ST_ACTIVATION_SWIGLU},
                 {"gelu_pytorch_tanh", ST_ACTIVATION_GEGLU},
                 {"gelu_new", ST_ACTIVATION_GEGLU},
                 {"gelu", ST_ACTIVATION_GEGLU_EXACT}};
    const char *name = NULL;
    const strata_status st = st_hf_read_text(root, key, &name, where);

    if (st != STRATA_OK || name == NULL)
        return st;
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(name, types[i].name) == 0) {
            c->activation = types[i].type;
            return STRATA_OK;
        }
    }
    return st_error(STRATA_E_INPUT, "%s: \"%s\" is \"%.32s\"; silu, gelu_pytorch_tanh and gelu are supported", where, key, name);
}

/* The only quantised weights that are read are bitsandbytes' in nf4. */
strata_status st_hf_read_quantisation(struct st_model_config *c, const st_json *root, const char *where)
{
    const st_json *keys = st_hf_member(root, "quantization_config");
    const char *method = "", *type = "fp4";
    bool in_4bit = false, in_8bit = false;
    strata_status st;

    if (keys == NULL)
        return STRATA_OK;
    if (st_json_type(keys) != ST_JSON_OBJECT)
        return st_hf_key_fault(where, "quantization_config", "is no object");
    if ((st = st_hf_read_text(keys, "quant_method", &method, where)) != STRATA_OK ||
        (st = st_hf_read_bool(keys, "load_in_4bit", &in_4bit, where)) != STRATA_OK ||
        (st = st_hf_read_bool(keys, "load_in_8bit", &in_8bit, where)) != STRATA_OK ||
        (st = st_hf_read_text(keys, "bnb_4bit_quant_type", &type, where)) != STRATA_OK)
        return st;
    if (strcmp(method, "mxfp4") == 0)
        return st_error(STRATA_E_INPUT,
                        "%s: \"quantization_config\" has \"quant_method\" \"mxfp4\", which is not read: " ST_HF_MXFP4_REMEDY,
                        where);
    if (strcmp(method, "bitsandbytes") != 0)
        return st_error(STRATA_E_INPUT,
                        "%s: \"quantization_config\" has \"quant_method\" \"%.32s\"; of quantized weights only those of "
                        "bitsandbytes in nf4 are read",
                        where, method);
    if (in_4bit && in_8bit)
        return st_error(STRATA_E_INPUT,
                        "%s: \"quantization_config\" has both \"load_in_4bit\" and \"load_in_8bit\" true: one of them is not so",
                        where);
    if (!in_4bit || strcmp(type, "nf4") != 0)
        return st_error(STRATA_E_INPUT, "%s: \"quantization_config\" is for %s%.32s; of bitsandbytes' weights nf4 is read", where,
                        in_4bit ? "" : "int8", in_4bit ? type : "");
    c->quantised = true;
    return STRATA_OK;
}

static strata_status check_others(struct st_model_config *c, const st_json *root, const char *where)
{
    strata_status st = st_hf_read_quantisation(c, root, where);

    if (st == STRATA_OK)
        st = st_hf_want_bool(root, "use_bidirectional_attention", false, where);
    return st == STRATA_OK ? st_hf_want_bool(root, "is_causal", true, where) : st;
}

static strata_status read_sizes(struct st_model_config *c, const st_json *root, const char *where)
{
    const enum st_hf_field kind = c->hidden == 0 ? ST_HF_REQUIRED : ST_HF_OPTIONAL;
    strata_status st;

    if ((st = st_hf_read_size(root, "num_hidden_layers", kind, &c->blocks, where)) != STRATA_OK ||
        (st = st_hf_read_size(root, "hidden_size", kind, &c->hidden, where)) != STRATA_OK ||
        (st = st_hf_read_size(root, "num_attention_heads", kind, &c->heads, where)) != STRATA_OK ||
        (st = st_hf_read_size(root, "intermediate_size", kind, &c->ffn, where)) != STRATA_OK ||
        (st = st_hf_read_size(root, "vocab_size", kind, &c->vocab, where)) != STRATA_OK ||
        (st = st_hf_read_size(root, "max_position_embeddings", kind, &c->context, where)) != STRATA_OK)
        return st;
    if (st_json_get(root, "num_key_value_heads") != NULL || c->kv_heads == 0) /* null: heads */
        c->kv_heads = c->heads;
    if ((st = st_hf_read_size(root, "num_key_value_heads", ST_HF_OPTIONAL, &c->kv_heads, where)) != STRATA_OK)
        return st;
    if (st_json_get(root, "head_dim") != NULL || c->head_dim == 0)
        c->head_dim = c->hidden % c->heads == 0 ? c->hidden / c->heads : 0;
    return st_hf_read_size(root, "head_dim", ST_HF_OPTIONAL, &c->head_dim, where);
}

/* A number above 0; null: 0. */
static strata_status read_positive(const st_json *root, const char *key, float *out, const char *where)
{
    double value = st_json_get(root, key) != NULL ? 0.0 : (double)*out;
    const strata_status st = st_hf_read_single(root, key, &value, where);

    if (st != STRATA_OK)
        return st;
    if (st_hf_member(root, key) != NULL && !(value > 0.0 && isfinite((float)value)))
        return st_hf_value_fault(root, where, key, "must be a number above 0");
    *out = (float)value;
    return STRATA_OK;
}

/* Gemma's own keys.  transformers' Gemma 3 does not apply attn_logit_softcapping. */
static strata_status read_scores(struct st_model_config *c, const st_json *root, uint32_t keys, const char *where)
{
    strata_status st;

    if ((keys & ST_KEY_QUERY_SCALAR) == 0)
        return STRATA_OK;
    if ((st = read_positive(root, "query_pre_attn_scalar", &c->query_scalar, where)) != STRATA_OK ||
        (st = read_positive(root, "final_logit_softcapping", &c->logit_cap, where)) != STRATA_OK)
        return st;
    if ((keys & ST_KEY_SCORE_CAP) != 0)
        return read_positive(root, "attn_logit_softcapping", &c->score_cap, where);
    return st_hf_member(root, "attn_logit_softcapping") == NULL
               ? STRATA_OK
               : st_hf_key_fault(where, "attn_logit_softcapping", "is not supported in a model of this type");
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
    static const char *const dropouts[] = {"attention_dropout", "resid_pdrop", "embd_pdrop"};
    const char *activation = (family->keys & ST_KEY_QUERY_SCALAR) != 0 ? "hidden_activation" : "hidden_act";
    strata_status st;

    if ((st = read_activation(c, root, activation, where)) != STRATA_OK || (st = check_others(c, root, where)) != STRATA_OK ||
        (st = read_sizes(c, root, where)) != STRATA_OK || (st = st_hf_read_experts(c, root, family, where)) != STRATA_OK ||
        (st = st_hf_read_layers(c, root, family, where)) != STRATA_OK ||
        (st = read_scores(c, root, family->keys, where)) != STRATA_OK ||
        (st = read_switches(c, root, family->keys, where)) != STRATA_OK ||
        (st = st_hf_read_rope(c, root, family, where)) != STRATA_OK ||
        (st = st_hf_read_dropout(root, dropouts, sizeof(dropouts) / sizeof(dropouts[0]), 0.0, &c->dropout, where)) != STRATA_OK)
        return st;
    return st_hf_read_eps(root, "rms_norm_eps", (double)c->norm_eps, &c->norm_eps, where);
}

/* model/hf/hf_config_gpt2.c - config.json of model_type gpt2.  Defaults: transformers' GPT2Config. */
#include "core/base/error.h"
#include "model/hf/hf_fields_internal.h"
#include <string.h>

static strata_status read_activation(struct st_model_config *c, const st_json *root, const char *where)
{
    const char *name = "gelu_new";
    const strata_status st = st_hf_read_text(root, "activation_function", &name, where);

    c->activation = strcmp(name, "gelu") == 0 ? ST_ACTIVATION_GELU_EXACT : ST_ACTIVATION_GELU;
    if (st != STRATA_OK || c->activation == ST_ACTIVATION_GELU_EXACT || strcmp(name, "gelu_new") == 0 ||
        strcmp(name, "gelu_pytorch_tanh") == 0)
        return st;
    return st_error(STRATA_E_INPUT, "%s: \"activation_function\" is \"%.32s\"; gelu_new and gelu are supported", where, name);
}

/* Scores that are not divided by the root of a head's size are divided by that of 1. */
static strata_status read_switches(struct st_model_config *c, const st_json *root, const char *where)
{
    bool tied = true, scaled = true;
    strata_status st;

    if ((st = st_hf_read_bool(root, "tie_word_embeddings", &tied, where)) != STRATA_OK ||
        (st = st_hf_read_bool(root, "scale_attn_weights", &scaled, where)) != STRATA_OK ||
        (st = st_hf_read_bool(root, "scale_attn_by_inverse_layer_idx", &c->inverse_layer_scale, where)) != STRATA_OK)
        return st;
    c->untied = !tied;
    c->query_scalar = scaled ? 0.0f : 1.0f;
    if ((st = st_hf_want_bool(root, "is_causal", true, where)) != STRATA_OK)
        return st;
    return st_hf_want_bool(root, "add_cross_attention", false, where);
}

static strata_status read_sizes(struct st_model_config *c, const st_json *root, const char *where)
{
    strata_status st;

    if ((st = st_hf_read_size(root, "n_layer", ST_HF_REQUIRED, &c->blocks, where)) != STRATA_OK ||
        (st = st_hf_read_size(root, "n_embd", ST_HF_REQUIRED, &c->hidden, where)) != STRATA_OK ||
        (st = st_hf_read_size(root, "n_head", ST_HF_REQUIRED, &c->heads, where)) != STRATA_OK ||
        (st = st_hf_read_size(root, "vocab_size", ST_HF_REQUIRED, &c->vocab, where)) != STRATA_OK ||
        (st = st_hf_read_size(root, "n_positions", ST_HF_REQUIRED, &c->context, where)) != STRATA_OK)
        return st;
    c->ffn = c->hidden <= UINT32_MAX / 4 ? 4 * c->hidden : UINT32_MAX;
    return st_hf_read_size(root, "n_inner", ST_HF_OPTIONAL, &c->ffn, where);
}

strata_status st_hf_gpt2_parse(struct st_model_config *c, const st_json *root, const char *where)
{
    static const char *const dropouts[] = {"resid_pdrop", "embd_pdrop", "attn_pdrop"};
    strata_status st;

    if ((st = read_activation(c, root, where)) != STRATA_OK || (st = read_switches(c, root, where)) != STRATA_OK ||
        (st = read_sizes(c, root, where)) != STRATA_OK ||
        (st = st_hf_read_dropout(root, dropouts, sizeof(dropouts) / sizeof(dropouts[0]), 0.1, &c->dropout, where)) != STRATA_OK)
        return st;
    return st_hf_read_eps(root, "layer_norm_epsilon", 1e-5, &c->norm_eps, where);
}

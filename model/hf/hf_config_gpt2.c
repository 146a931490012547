/* model/hf/hf_config_gpt2.c - config.json of model_type gpt2.  Defaults: transformers' GPT2Config. */
#include "core/base/error.h"
#include "model/hf/hf_fields_internal.h"
#include <string.h>

static strata_status check_activation(const st_json *root, const char *where)
{
    const char *name = "gelu_new";
    const strata_status st = st_hf_read_text(root, "activation_function", &name, where);

    if (st != STRATA_OK || strcmp(name, "gelu_new") == 0 || strcmp(name, "gelu_pytorch_tanh") == 0)
        return st;
    return st_error(STRATA_E_INPUT, "%s: \"activation_function\" is \"%.32s\"; only gelu_new is supported", where, name);
}

static strata_status check_switches(const st_json *root, const char *where)
{
    strata_status st;

    if ((st = st_hf_want_bool(root, "tie_word_embeddings", true, where)) != STRATA_OK ||
        (st = st_hf_want_bool(root, "scale_attn_weights", true, where)) != STRATA_OK ||
        (st = st_hf_want_bool(root, "scale_attn_by_inverse_layer_idx", false, where)) != STRATA_OK)
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

    if ((st = check_activation(root, where)) != STRATA_OK || (st = check_switches(root, where)) != STRATA_OK ||
        (st = read_sizes(c, root, where)) != STRATA_OK ||
        (st = st_hf_read_dropout(root, dropouts, sizeof(dropouts) / sizeof(dropouts[0]), 0.1, &c->dropout, where)) != STRATA_OK)
        return st;
    return st_hf_read_eps(root, "layer_norm_epsilon", 1e-5, &c->norm_eps, where);
}

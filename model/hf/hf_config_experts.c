/* model/hf/hf_config_experts.c - experts of a config.json.  Defaults: transformers' configs. */
#include "model/hf/hf_fields_internal.h"
#include <math.h>

/* Both names are one key. */
static strata_status read_count(struct st_model_config *c, const st_json *root, const char *where)
{
    static const char own[] = "num_experts", local[] = "num_local_experts";
    uint32_t other;
    strata_status st;

    if ((st = st_hf_read_size(root, own, ST_HF_OPTIONAL, &c->experts, where)) != STRATA_OK)
        return st;
    other = c->experts;
    if ((st = st_hf_read_size(root, local, ST_HF_OPTIONAL, &other, where)) != STRATA_OK)
        return st;
    if (other != c->experts && st_hf_member(root, own) != NULL)
        return st_hf_key_fault(where, local, "differs from num_experts: keep one of them");
    c->experts = other;
    return st_hf_read_size(root, "num_experts_per_tok", ST_HF_OPTIONAL, &c->experts_chosen, where);
}

/* Every decoder_sparse_step-th layer has experts, but those of mlp_only_layers. */
static strata_status read_sparse(struct st_model_config *c, const st_json *root, uint32_t keys, const char *where)
{
    const st_json *dense = (keys & ST_KEY_MOE_FFN) != 0 ? st_hf_member(root, "mlp_only_layers") : NULL;
    uint32_t step = 1;
    strata_status st;

    if ((keys & ST_KEY_MOE_FFN) != 0 &&
        (st = st_hf_read_size(root, "decoder_sparse_step", ST_HF_OPTIONAL, &step, where)) != STRATA_OK)
        return st;
    if (dense != NULL && st_json_type(dense) != ST_JSON_ARRAY)
        return st_hf_value_fault(root, where, "mlp_only_layers", "must be a list of layers or null");
    for (uint32_t b = 0; b < c->blocks && b < ST_BLOCKS_MAX; b++) {
        bool is_sparse = (b + 1) % step == 0;

        for (const st_json *n = dense != NULL ? st_json_first(dense) : NULL; n != NULL; n = st_json_next(n)) {
            uint64_t layer;

            if (!st_json_u64(n, &layer))
                return st_hf_node_fault(n, where, "mlp_only_layers", "must list numbers of layers");
            is_sparse = is_sparse && layer != b;
        }
        if (is_sparse)
            st_layer_set(c->sparse, b);
    }
    return STRATA_OK;
}

static strata_status read_clip(struct st_model_config *c, const st_json *root, const char *where)
{
    double clip = 0.0;
    const strata_status st = st_hf_read_single(root, "clip_qkv", &clip, where);

    if (st == STRATA_OK && st_hf_member(root, "clip_qkv") != NULL && !(clip > 0.0))
        return st_hf_value_fault(root, where, "clip_qkv", "must be a number above 0, or null");
    c->qkv_clip = (float)clip;
    return st;
}

static strata_status check_jitter(const st_json *root, const char *where)
{
    double jitter = 0.0;
    const strata_status st = st_hf_read_real(root, "router_jitter_noise", &jitter, where);

    return st != STRATA_OK || jitter == 0.0
               ? st
               : st_hf_value_fault(root, where, "router_jitter_noise", "other than 0 is not supported");
}

/* Of experts whose gate has a limit. */
static strata_status read_gate(struct st_model_config *c, const st_json *root, const char *where)
{
    static const char limit_key[] = "swiglu_limit", alpha_key[] = "swiglu_alpha";
    double limit = (double)c->gate_limit, alpha = (double)c->gate_alpha;
    strata_status st;

    if (c->activation != ST_ACTIVATION_SWIGLU)
        return st_hf_key_fault(where, "hidden_act", "must be silu: experts of this type have no other gate");
    if ((st = st_hf_read_single(root, limit_key, &limit, where)) != STRATA_OK ||
        (st = st_hf_read_single(root, alpha_key, &alpha, where)) != STRATA_OK)
        return st;
    if (!((float)limit > 0.0f && isfinite((float)limit)))
        return st_hf_value_fault(root, where, limit_key, "must be a number above 0: 7.0 in the published models");
    if (!((float)alpha > 0.0f && isfinite((float)alpha)))
        return st_hf_value_fault(root, where, alpha_key, "must be a number above 0: 1.702 if it is not there");
    c->gate_limit = (float)limit;
    c->gate_alpha = (float)alpha;
    return STRATA_OK;
}

/* Both are checked whether or not the loss has it. */
static strata_status read_aux_loss(struct st_model_config *c, const st_json *root, const char *where)
{
    double coef = (double)c->aux_loss_coef;
    strata_status st = st_hf_read_bool(root, "output_router_logits", &c->aux_loss, where);

    if (st != STRATA_OK || (st = st_hf_read_single(root, "router_aux_loss_coef", &coef, where)) != STRATA_OK)
        return st;
    if (!(coef >= 0.0 && coef <= ST_AUX_LOSS_COEF_MAX))
        return st_hf_value_fault(root, where, "router_aux_loss_coef", "must lie between 0 and 1000");
    c->aux_loss_coef = (float)coef;
    return STRATA_OK;
}

strata_status st_hf_read_experts(struct st_model_config *c, const st_json *root, const struct st_family *family,
                                 const char *where)
{
    const uint32_t keys = family->keys;
    bool biases = c->biases == ST_BIAS_QKV;
    strata_status st;

    if (family->experts == NULL)
        return STRATA_OK;
    if ((keys & ST_KEY_MOE_FFN) == 0)
        c->expert_ffn = c->ffn;
    if ((st = read_count(c, root, where)) != STRATA_OK ||
        ((keys & ST_KEY_MOE_FFN) != 0 &&
         (st = st_hf_read_size(root, "moe_intermediate_size", ST_HF_OPTIONAL, &c->expert_ffn, where)) != STRATA_OK) ||
        ((keys & ST_KEY_SHARED) != 0 &&
         (st = st_hf_read_size(root, "shared_expert_intermediate_size", ST_HF_OPTIONAL, &c->shared_ffn, where)) != STRATA_OK) ||
        ((keys & ST_KEY_TOPK_NORM) != 0 &&
         (st = st_hf_read_bool(root, "norm_topk_prob", &c->experts_divided, where)) != STRATA_OK) ||
        ((keys & ST_KEY_QKV_BIAS) != 0 && (st = st_hf_read_bool(root, "qkv_bias", &biases, where)) != STRATA_OK) ||
        ((keys & ST_KEY_JITTER) != 0 && (st = check_jitter(root, where)) != STRATA_OK) ||
        ((keys & ST_KEY_GATE_LIMIT) != 0 && (st = read_gate(c, root, where)) != STRATA_OK) ||
        (st = read_aux_loss(c, root, where)) != STRATA_OK ||
        ((keys & ST_KEY_QKV_CLIP) != 0 && (st = read_clip(c, root, where)) != STRATA_OK))
        return st;
    if ((keys & ST_KEY_QKV_BIAS) != 0)
        c->biases = biases ? ST_BIAS_QKV : ST_BIAS_NONE;
    return read_sparse(c, root, keys, where);
}

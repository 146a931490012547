/* model/hf/hf_config_write.c - config.json and generation_config.json of a model that began as a preset. */
#include "core/base/number.h"
#include "core/json/json.h"
#include "model/hf/hf_config_internal.h"
#include "model/layout.h"
#include <math.h>
#include <stdlib.h>

/* The double with the fewest digits that rounds to `value`: 1e-05, not 9.9999997473787516e-06. */
static double shortest(float value)
{
    char text[32];

    for (int digits = 1; digits < 9; digits++) {
        st_number_print(text, sizeof(text), "%.*g", digits, (double)value);
        if ((float)st_number_read(text, NULL) == value)
            return st_number_read(text, NULL);
    }
    return (double)value;
}

/* A byte vocabulary has no begin and end tokens; in other vocabularies the tokenizer defines them. */
static void put_token_ids(struct st_json_writer *w, const struct st_model_config *c)
{
    static const char *const keys[] = {"bos_token_id", "eos_token_id"};

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        if (c->family == ST_FAMILY_GPT2 && c->vocab == ST_GPT2_VOCAB)
            st_json_put_u64(w, keys[i], ST_GPT2_END_OF_TEXT);
        else
            st_json_put_string(w, keys[i], NULL);
    }
}

static void put_gpt2(struct st_json_writer *w, const struct st_model_config *c)
{
    st_json_put_string(w, "activation_function", c->activation == ST_ACTIVATION_GELU_EXACT ? "gelu" : "gelu_new");
    st_json_put_u64(w, "vocab_size", c->vocab);
    st_json_put_u64(w, "n_positions", c->context);
    st_json_put_u64(w, "n_ctx", c->context);
    st_json_put_u64(w, "n_embd", c->hidden);
    st_json_put_u64(w, "n_layer", c->blocks);
    st_json_put_u64(w, "n_head", c->heads);
    if (c->ffn == 4 * c->hidden)
        st_json_put_string(w, "n_inner", NULL);
    else
        st_json_put_u64(w, "n_inner", c->ffn);
    st_json_put_double(w, "layer_norm_epsilon", shortest(c->norm_eps));
    st_json_put_double(w, "initializer_range", 0.02);
    st_json_put_double(w, "resid_pdrop", shortest(c->dropout));
    st_json_put_double(w, "embd_pdrop", shortest(c->dropout));
    st_json_put_double(w, "attn_pdrop", shortest(c->dropout));
    st_json_put_bool(w, "scale_attn_weights", c->query_scalar == 0.0f);
    st_json_put_bool(w, "scale_attn_by_inverse_layer_idx", c->inverse_layer_scale);
    st_json_put_bool(w, "reorder_and_upcast_attn", false);
}

static void put_divisors(struct st_json_writer *w, const char *key, const float *divisors, uint32_t count)
{
    st_json_array_open(w, key);
    for (uint32_t i = 0; i < count; i++)
        st_json_put_double(w, NULL, shortest(divisors[i]));
    st_json_array_close(w);
}

/* The numbers of the type. */
static void put_scaling(struct st_json_writer *w, const struct st_model_config *c)
{
    const uint32_t pairs = (c->rotary_dim > 0 ? c->rotary_dim : c->head_dim) / 2;
    const bool llama3 = c->rope_type == ST_ROPE_LLAMA3, longrope = c->rope_type == ST_ROPE_LONGROPE;

    if (!longrope)
        st_json_put_double(w, "factor", shortest(c->rope_factor));
    if (c->rope_type == ST_ROPE_LINEAR && c->rope_local_base == 0.0f) /* else a reader takes the context for the original one */
        st_json_put_u64(w, "original_max_position_embeddings",
                        (uint64_t)fmax(floor((double)c->context / (double)c->rope_factor), 1.0));
    if (c->rope_type == ST_ROPE_LINEAR || c->rope_type == ST_ROPE_DYNAMIC)
        return;
    if (!longrope)
        st_json_put_u64(w, "original_max_position_embeddings", c->rope_original);
    if (longrope) {
        put_divisors(w, "short_factor", c->rope_short, pairs);
        put_divisors(w, "long_factor", c->rope_long, pairs);
    } else {
        st_json_put_double(w, llama3 ? "low_freq_factor" : "beta_slow", shortest(c->rope_low));
        st_json_put_double(w, llama3 ? "high_freq_factor" : "beta_fast", shortest(c->rope_high));
    }
    if (llama3)
        return;
    st_json_put_double(w, "attention_factor", shortest(c->rope_attention));
    if (!longrope)
        st_json_put_bool(w, "truncate", c->rope_whole_pairs);
}

/* The fraction of a head, of which a reader takes the whole part: a half more where a quotient would be rounded down. */
static double rotary_fraction(const struct st_model_config *c)
{
    const double fraction = (double)c->rotary_dim / c->head_dim;

    return (uint32_t)(c->head_dim * fraction) == c->rotary_dim ? fraction : (c->rotary_dim + 0.5) / c->head_dim;
}

static void put_rotary(struct st_json_writer *w, const struct st_model_config *c)
{
    static const char *const types[] = {
        [ST_ROPE_DEFAULT] = "default", [ST_ROPE_LINEAR] = "linear",     [ST_ROPE_LLAMA3] = "llama3",
        [ST_ROPE_YARN] = "yarn",       [ST_ROPE_LONGROPE] = "longrope", [ST_ROPE_DYNAMIC] = "dynamic"};

    st_json_put_double(w, "rope_theta", shortest(c->rope_base));
    if (c->rope_local_base > 0.0f)
        st_json_put_double(w, "rope_local_base_freq", shortest(c->rope_local_base));
    if (c->rotary_dim > 0 && c->rotary_dim != c->head_dim)
        st_json_put_double(w, "partial_rotary_factor", rotary_fraction(c));
    if (c->rope_type == ST_ROPE_DEFAULT && st_family_of(c->family)->defaults.rope_type == ST_ROPE_DEFAULT) {
        st_json_put_string(w, "rope_scaling", NULL);
        return;
    }
    if (c->rope_type == ST_ROPE_LONGROPE) /* which all versions of transformers look for here */
        st_json_put_u64(w, "original_max_position_embeddings", c->rope_original);
    st_json_object_open(w, "rope_scaling");
    st_json_put_string(w, "rope_type", types[c->rope_type]);
    if (c->rope_type != ST_ROPE_DEFAULT)
        put_scaling(w, c);
    st_json_object_close(w);
}

/* A number above 0, or null.  transformers 5 takes no whole number for a real one. */
static void put_cap(struct st_json_writer *w, const char *key, float value)
{
    if (value > 0.0f)
        st_json_put_real(w, key, shortest(value));
    else
        st_json_put_string(w, key, NULL);
}

static void put_layers(struct st_json_writer *w, const struct st_model_config *c, const struct st_family *family)
{
    if (c->window > 0)
        st_json_put_u64(w, "sliding_window", c->window);
    else if (family->windows != ST_WINDOW_NONE)
        st_json_put_string(w, "sliding_window", NULL);
    if (family->windows != ST_WINDOW_NONE && family->windows != ST_WINDOW_ALL && family->windows != ST_WINDOW_PERIOD)
        st_json_put_bool(w, "use_sliding_window", c->window > 0);
    if (c->window > 0 && family->windows != ST_WINDOW_ALL && family->windows != ST_WINDOW_SWITCH) {
        st_json_array_open(w, "layer_types");
        for (uint32_t i = 0; i < c->blocks; i++)
            st_json_put_string(w, NULL, st_layer_bit(c->sliding, i) ? "sliding_attention" : "full_attention");
        st_json_array_close(w);
    }
    if ((family->keys & ST_KEY_NO_ROPE_LAYERS) == 0)
        return;
    st_json_array_open(w, "no_rope_layers");
    for (uint32_t i = 0; i < c->blocks; i++)
        st_json_put_u64(w, NULL, st_layer_bit(c->unrotated, i) ? 0 : 1);
    st_json_array_close(w);
}

/* Gemma's own keys. */
static void put_scores(struct st_json_writer *w, const struct st_model_config *c)
{
    if (c->query_scalar > 0.0f)
        st_json_put_double(w, "query_pre_attn_scalar", shortest(c->query_scalar));
    else
        st_json_put_string(w, "query_pre_attn_scalar", NULL);
    put_cap(w, "final_logit_softcapping", c->logit_cap);
    put_cap(w, "attn_logit_softcapping", c->score_cap);
}

static void put_experts(struct st_json_writer *w, const struct st_model_config *c, uint32_t keys)
{
    st_json_put_u64(w, (keys & ST_KEY_LOCAL_EXPERTS) != 0 ? "num_local_experts" : "num_experts", c->experts);
    st_json_put_u64(w, "num_experts_per_tok", c->experts_chosen);
    if ((keys & ST_KEY_TOPK_NORM) != 0)
        st_json_put_bool(w, "norm_topk_prob", c->experts_divided);
    if ((keys & ST_KEY_SHARED) != 0)
        st_json_put_u64(w, "shared_expert_intermediate_size", c->shared_ffn);
    if ((keys & ST_KEY_QKV_BIAS) != 0)
        st_json_put_bool(w, "qkv_bias", c->biases == ST_BIAS_QKV);
    if ((keys & ST_KEY_QKV_CLIP) != 0)
        put_cap(w, "clip_qkv", c->qkv_clip);
    if ((keys & ST_KEY_GATE_LIMIT) != 0) {
        st_json_put_real(w, "swiglu_alpha", shortest(c->gate_alpha));
        st_json_put_real(w, "swiglu_limit", shortest(c->gate_limit));
    }
    if (c->aux_loss)
        st_json_put_bool(w, "output_router_logits", true);
    if (c->aux_loss_coef != st_family_of(c->family)->defaults.aux_loss_coef)
        st_json_put_real(w, "router_aux_loss_coef", shortest(c->aux_loss_coef));
    if ((keys & ST_KEY_MOE_FFN) == 0)
        return;
    st_json_put_u64(w, "moe_intermediate_size", c->expert_ffn);
    st_json_put_u64(w, "decoder_sparse_step", 1);
    st_json_array_open(w, "mlp_only_layers");
    for (uint32_t i = 0; i < c->blocks; i++)
        if (!st_layer_bit(c->sparse, i))
            st_json_put_u64(w, NULL, i);
    st_json_array_close(w);
}

static void put_llama(struct st_json_writer *w, const struct st_model_config *c)
{
    static const char *const activations[] = {
        [ST_ACTIVATION_SWIGLU] = "silu", [ST_ACTIVATION_GEGLU] = "gelu_pytorch_tanh", [ST_ACTIVATION_GEGLU_EXACT] = "gelu"};
    const struct st_family *family = st_family_of(c->family);
    const bool gemma = (family->keys & ST_KEY_QUERY_SCALAR) != 0;

    st_json_put_string(w, gemma ? "hidden_activation" : "hidden_act", activations[c->activation]);
    st_json_put_u64(w, "vocab_size", c->vocab);
    st_json_put_u64(w, "max_position_embeddings", c->context);
    st_json_put_u64(w, "hidden_size", c->hidden);
    st_json_put_u64(w, "intermediate_size", c->ffn);
    st_json_put_u64(w, "num_hidden_layers", c->blocks);
    st_json_put_u64(w, "num_attention_heads", c->heads);
    st_json_put_u64(w, "num_key_value_heads", c->kv_heads);
    st_json_put_u64(w, "head_dim", c->head_dim);
    st_json_put_double(w, "rms_norm_eps", shortest(c->norm_eps));
    st_json_put_double(w, "initializer_range", 0.02);
    st_json_put_double(w, "attention_dropout", shortest(c->dropout));
    put_rotary(w, c);
    if (gemma)
        put_scores(w, c);
    if ((family->keys & ST_KEY_ATTENTION_BIAS) != 0)
        st_json_put_bool(w, "attention_bias", c->biases == ST_BIAS_ATTENTION);
    if ((family->keys & ST_KEY_MLP_BIAS) != 0)
        st_json_put_bool(w, "mlp_bias", c->mlp_bias);
    if (family->experts != NULL)
        put_experts(w, c, family->keys);
    put_layers(w, c, family);
}

const char *st_hf_dtype_name(strata_dtype dtype)
{
    return dtype == STRATA_BF16 ? "bfloat16" : dtype == STRATA_F16 ? "float16" : "float32";
}

void st_model_config_write(const struct st_model_config *c, strata_dtype dtype, FILE *file)
{
    const struct st_family *family = st_family_of(c->family);
    struct st_json_writer w;

    st_json_begin(&w, file);
    st_json_object_open(&w, NULL);
    st_json_array_open(&w, "architectures");
    st_json_put_string(&w, NULL, family->architecture);
    st_json_array_close(&w);
    st_json_put_string(&w, "model_type", family->model_type);
    if (c->family == ST_FAMILY_GPT2)
        put_gpt2(&w, c);
    else
        put_llama(&w, c);
    st_json_put_bool(&w, "tie_word_embeddings", !c->untied);
    st_json_put_bool(&w, "use_cache", true);
    put_token_ids(&w, c);
    st_json_put_string(&w, "torch_dtype", st_hf_dtype_name(dtype));
    st_json_object_close(&w);
    st_json_end_line(&w);
}

void st_model_generation_config_write(const struct st_model_config *c, FILE *file)
{
    struct st_json_writer w;

    st_json_begin(&w, file);
    st_json_object_open(&w, NULL);
    put_token_ids(&w, c);
    st_json_put_bool(&w, "do_sample", true); /* as st_generation_of_preset(): greedy text of a small model repeats itself */
    st_json_put_u64(&w, "top_k", 0);
    st_json_object_close(&w);
    st_json_end_line(&w);
}

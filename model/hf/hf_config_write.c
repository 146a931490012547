/* model/hf/hf_config_write.c - config.json and generation_config.json of a model that began as a preset. */
#include "core/json/json.h"
#include "model/hf/hf_config_internal.h"
#include "model/layout.h"
#include <stdlib.h>

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
    st_json_put_string(w, "activation_function", "gelu_new");
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
    st_json_put_bool(w, "scale_attn_weights", true);
    st_json_put_bool(w, "scale_attn_by_inverse_layer_idx", false);
    st_json_put_bool(w, "reorder_and_upcast_attn", false);
}

static void put_rotary(struct st_json_writer *w, const struct st_model_config *c)
{
    st_json_put_double(w, "rope_theta", shortest(c->rope_base));
    if (c->rope_factor == 0.0f) {
        st_json_put_string(w, "rope_scaling", NULL);
        return;
    }
    st_json_object_open(w, "rope_scaling");
    st_json_put_string(w, "rope_type", "llama3");
    st_json_put_double(w, "factor", shortest(c->rope_factor));
    st_json_put_double(w, "low_freq_factor", shortest(c->rope_low));
    st_json_put_double(w, "high_freq_factor", shortest(c->rope_high));
    st_json_put_u64(w, "original_max_position_embeddings", c->rope_original);
    st_json_object_close(w);
}

static void put_llama(struct st_json_writer *w, const struct st_model_config *c)
{
    const struct st_family *family = st_family_of(c->family);

    st_json_put_string(w, "hidden_act", "silu");
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
    if ((family->keys & ST_KEY_ATTENTION_BIAS) != 0)
        st_json_put_bool(w, "attention_bias", c->biases == ST_BIAS_ATTENTION);
    if ((family->keys & ST_KEY_MLP_BIAS) != 0)
        st_json_put_bool(w, "mlp_bias", c->mlp_bias);
    if (c->window > 0)
        st_json_put_u64(w, "sliding_window", c->window);
    else if (family->windows != ST_WINDOW_NONE)
        st_json_put_string(w, "sliding_window", NULL);
    if (family->windows != ST_WINDOW_FROM)
        return;
    st_json_put_bool(w, "use_sliding_window", c->window > 0);
    if (c->window > 0)
        st_json_put_u64(w, "max_window_layers", 0); /* every layer has the window */
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

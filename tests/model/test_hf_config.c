/* tests/model/test_hf_config.c - config.json: read, refused with file and key, written and read back. */
#include "core/base/rng.h"
#include "core/system/file.h"
#include "model/family.h"
#include "model/hf/hf_config_internal.h"
#include "model_fixture.h"
#include "tests/common/golden.h"
#include "tests/common/whole_file.h"
#include <ctype.h>
#include <math.h>

#define BLOCK_SIZES                                                                                                              \
    "\"num_hidden_layers\":2,\"hidden_size\":64,\"num_attention_heads\":4,\"intermediate_size\":96,\"vocab_size\":96,"           \
    "\"max_position_embeddings\":32"
#define LLAMA_SIZES BLOCK_SIZES ",\"num_key_value_heads\":2"
#define LLAMA3                                                                                                                   \
    "{\"factor\":32.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192,"               \
    "\"rope_type\":\"llama3\"}"
#define SIZES "\"n_layer\":2,\"n_embd\":64,\"n_head\":2,\"vocab_size\":96,\"n_positions\":32"

static strata_status parse(struct st_model_config *c, const char *text)
{
    memset(c, 0, sizeof(*c));
    return st_model_config_parse(c, text, strlen(text), "dir/config.json");
}

TEST(test_defaults_are_transformers)
{
    struct st_model_config c;

    assert_ok(parse(&c, "{\"model_type\":\"gpt2\"," SIZES "}"));
    assert_int_equal(c.blocks, 2);
    assert_int_equal(c.hidden, 64);
    assert_int_equal(c.heads, 2);
    assert_int_equal(c.ffn, 256);
    assert_int_equal(c.vocab, 96);
    assert_int_equal(c.context, 32);
    assert_true(c.norm_eps == 1e-5f);
    assert_true(c.dropout == 0.1f);
}

TEST(test_options_are_read)
{
    struct st_model_config c;

    assert_ok(parse(&c, "{\"model_type\":\"gpt2\"," SIZES ",\"n_inner\":128,\"layer_norm_epsilon\":1e-6,\"resid_pdrop\":0,"
                        "\"embd_pdrop\":0.2,\"attn_pdrop\":0.0,\"activation_function\":\"gelu_pytorch_tanh\",\"foo\":[1]}"));
    assert_int_equal(c.ffn, 128);
    assert_true(c.norm_eps == 1e-6f);
    assert_true(c.dropout == 0.2f);
    assert_ok(parse(&c, "{\"model_type\":\"gpt2\"," SIZES ",\"n_inner\":null,\"tie_word_embeddings\":true}"));
    assert_int_equal(c.ffn, 256);
}

TEST(test_faults_name_file_and_key)
{
    static const char *const rows[][2] = {
        {"", "model config"},
        {"[]", "not a JSON object"},
        {"{" SIZES "}", "\"model_type\" is missing"},
        {"{\"model_type\":\"bert\"," SIZES "}",
         "\"bert\"; gpt2, llama, qwen2, mistral, qwen3, smollm3, phi3, gemma2, "
         "gemma3_text, olmo2, qwen2_moe, qwen3_moe, olmoe, mixtral and gpt_oss are supported"},
        {"{\"model_type\":1," SIZES "}", "\"model_type\" must be a string"},
        {"{\"model_type\":\"gpt2\",\"n_embd\":64,\"n_head\":2,\"vocab_size\":96,\"n_positions\":32}", "\"n_layer\" is missing"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":2.5,\"n_embd\":64,\"n_head\":2,\"vocab_size\":96,\"n_positions\":32}",
         "\"n_layer\""},
        {"{\"model_type\":\"gpt2\",\"n_layer\":\"2\",\"n_embd\":64,\"n_head\":2,\"vocab_size\":96,\"n_positions\":32}",
         "\"n_layer\""},
        {"{\"model_type\":\"gpt2\",\"n_layer\":0,\"n_embd\":64,\"n_head\":2,\"vocab_size\":96,\"n_positions\":32}",
         "\"n_layer\""},
        {"{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_embd\":64,\"n_head\":3,\"vocab_size\":96,\"n_positions\":32}", "3 heads"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_embd\":4294967288,\"n_head\":2,\"vocab_size\":96,\"n_positions\":32}",
         "hidden size"},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"n_inner\":7}", "feed-forward size 7"},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"is_causal\":false}", "\"is_causal\" false"},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"activation_function\":\"relu\"}", "gelu_new and gelu are supported"},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"activation_function\":1}", "\"activation_function\""},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"tie_word_embeddings\":0}", "\"tie_word_embeddings\""},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"scale_attn_weights\":0}", "\"scale_attn_weights\""},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"scale_attn_by_inverse_layer_idx\":0}", "\"scale_attn_by_inverse_layer_idx\""},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"add_cross_attention\":1}", "must be true or false"},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"layer_norm_epsilon\":0}", "\"layer_norm_epsilon\""},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"layer_norm_epsilon\":\"x\"}", "must be a number"},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"resid_pdrop\":1.5}", "\"resid_pdrop\""},
        {"{\"model_type\":\"gpt2\"," SIZES "} x", "dir/config.json"},
    };
    struct st_model_config c;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_refused(parse(&c, rows[i][0]), STRATA_E_INPUT, rows[i][1]);
        assert_non_null(strstr(strata_last_error(), "dir/config.json"));
        assert_int_equal(c.hidden, 0);
    }
}

TEST(test_llama_defaults_are_transformers)
{
    struct st_model_config c;

    assert_ok(parse(&c, "{\"model_type\":\"llama\"," BLOCK_SIZES "}"));
    assert_int_equal(c.family, ST_FAMILY_LLAMA);
    assert_int_equal(c.norm, ST_NORM_RMSNORM);
    assert_int_equal(c.activation, ST_ACTIVATION_SWIGLU);
    assert_int_equal(c.positions, ST_POSITION_ROTARY);
    assert_int_equal(c.biases, ST_BIAS_NONE);
    assert_true(c.out_in && c.untied);
    assert_int_equal(c.kv_heads, 4);
    assert_int_equal(c.head_dim, 16);
    assert_true(c.norm_eps == 1e-6f);
    assert_true(c.rope_base == 10000.0f && c.rope_factor == 0.0f);
    assert_true(c.dropout == 0.0f);
}

/* The auxiliary loss of experts: off with the family's coefficient, both keys checked whether or not it is on, and written back.
 */
TEST(test_auxiliary_loss_is_read)
{
    static const char *const faults[][2] = {
        {"\"output_router_logits\":1", "\"output_router_logits\" must be true or false"},
        {"\"router_aux_loss_coef\":\"0.1\"", "\"router_aux_loss_coef\" must be a number"},
        {"\"router_aux_loss_coef\":[]", "\"router_aux_loss_coef\" must be a number"},
        {"\"router_aux_loss_coef\":-0.1", "\"router_aux_loss_coef\" must lie between 0 and 1000"},
        {"\"router_aux_loss_coef\":1000.5,\"output_router_logits\":true", "must lie between 0 and 1000"},
        {"\"router_aux_loss_coef\":1e-60", "outside the range of single precision"},
    };
    char text[512], *written;
    struct st_model_config c, back;
    size_t bytes;
    FILE *f;

    assert_ok(parse(&c, "{\"model_type\":\"olmoe\"," LLAMA_SIZES "}"));
    assert_true(!c.aux_loss && c.aux_loss_coef == 0.01f);
    assert_true(st_model_aux_loss_coef(&c, false, (double)NAN) == 0.0f);
    assert_true(st_model_aux_loss_coef(&c, true, (double)NAN) == 0.01f);
    assert_true(st_model_aux_loss_coef(&c, false, 0.25) == 0.25f);
    assert_ok(
        parse(&c, "{\"model_type\":\"mixtral\"," LLAMA_SIZES ",\"output_router_logits\":true,\"router_aux_loss_coef\":0.02}"));
    assert_true(c.aux_loss && c.aux_loss_coef == 0.02f);
    assert_true(st_model_aux_loss_coef(&c, false, (double)NAN) == 0.02f);
    assert_true(st_model_aux_loss_coef(&c, true, 0) == 0.0f);
    f = open_memstream(&written, &bytes);
    assert_non_null(f);
    st_model_config_write(&c, STRATA_F32, f);
    fclose(f);
    assert_ok(parse(&back, written));
    assert_true(back.aux_loss && back.aux_loss_coef == 0.02f);
    free(written);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        snprintf(text, sizeof(text), "{\"model_type\":\"qwen3_moe\"," LLAMA_SIZES ",%s}", faults[i][0]);
        assert_refused(parse(&c, text), STRATA_E_INPUT, faults[i][1]);
    }
}

/* Null means one key and value head for each head, and heads that divide the hidden size; without a key it is the family's. */
TEST(test_null_sizes_are_derived)
{
    struct st_model_config c;

    assert_ok(parse(&c, "{\"model_type\":\"qwen3\"," BLOCK_SIZES ",\"head_dim\":null,\"num_key_value_heads\":null}"));
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.kv_heads, 4);
    assert_ok(parse(&c, "{\"model_type\":\"gemma2\"," BLOCK_SIZES ",\"head_dim\":null,\"num_key_value_heads\":2}"));
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.kv_heads, 2);
    assert_ok(parse(&c, "{\"model_type\":\"gemma2\"," BLOCK_SIZES "}"));
    assert_int_equal(c.head_dim, 256);
    assert_int_equal(c.kv_heads, 4);
}

TEST(test_llama_options_are_read)
{
    struct st_model_config c;

    assert_ok(parse(&c, "{\"model_type\":\"llama\"," LLAMA_SIZES ",\"rms_norm_eps\":1e-5,\"rope_theta\":500000.0,\"head_dim\":8,"
                        "\"rope_scaling\":" LLAMA3 ",\"tie_word_embeddings\":true,\"attention_bias\":true,"
                        "\"sliding_window\":8,\"attention_dropout\":0.1}"));
    assert_int_equal(c.kv_heads, 2);
    assert_int_equal(c.head_dim, 8);
    assert_int_equal(c.biases, ST_BIAS_ATTENTION);
    assert_false(c.untied);
    assert_true(c.norm_eps == 1e-5f && c.rope_base == 500000.0f && c.dropout == 0.1f);
    assert_true(c.rope_factor == 32.0f && c.rope_low == 1.0f && c.rope_high == 4.0f);
    assert_int_equal(c.rope_original, 8192);
    /* newer and older spellings */
    assert_ok(parse(&c, "{\"model_type\":\"llama\"," LLAMA_SIZES
                        ",\"rope_parameters\":{\"rope_theta\":5e5,\"rope_type\":\"default\"},"
                        "\"layer_types\":[\"full_attention\",\"full_attention\"]}"));
    assert_true(c.rope_base == 500000.0f && c.rope_factor == 0.0f);
    assert_ok(parse(&c, "{\"model_type\":\"llama\"," LLAMA_SIZES ",\"rope_scaling\":{\"type\":\"default\"}}"));
    assert_true(c.rope_factor == 0.0f);
    /* scaling by 1 is none */
    assert_ok(parse(&c, "{\"model_type\":\"llama\"," LLAMA_SIZES
                        ",\"rope_theta\":1e6,\"rope_scaling\":{\"type\":\"linear\",\"factor\":1.0,"
                        "\"rope_theta\":1000000,\"partial_rotary_factor\":1}}"));
    assert_ok(parse(&c, "{\"model_type\":\"llama\"," LLAMA_SIZES ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":1.0}}"));
    assert_true(c.rope_factor == 0.0f && c.rope_base == 10000.0f);
    assert_ok(parse(&c, "{\"model_type\":\"llama\"," LLAMA_SIZES
                        ",\"rope_parameters\":{\"rope_theta\":5e5,\"rope_type\":\"linear\",\"factor\":1}}"));
    assert_true(c.rope_factor == 0.0f && c.rope_base == 500000.0f);
    /* Qwen2 has its biases always */
    assert_ok(parse(&c, "{\"model_type\":\"qwen2\"," LLAMA_SIZES ",\"sliding_window\":8,\"use_sliding_window\":false}"));
    assert_int_equal(c.family, ST_FAMILY_QWEN2);
    assert_int_equal(c.biases, ST_BIAS_QKV);
    assert_ok(parse(&c, "{\"model_type\":\"mistral\"," LLAMA_SIZES "}"));
    assert_int_equal(c.family, ST_FAMILY_MISTRAL);
    assert_int_equal(c.biases, ST_BIAS_NONE);
}

/* A letter for each layer: s slides, f attends to everything; capitals are not rotated. */
static const char *layer_letters(const struct st_model_config *c)
{
    static char letters[8];

    for (uint32_t i = 0; i < c->blocks; i++) {
        const char letter = st_layer_bit(c->sliding, i) ? 's' : 'f';

        letters[i] = (char)(st_layer_bit(c->unrotated, i) ? toupper(letter) : letter);
    }
    letters[c->blocks] = '\0';
    return letters;
}

/* What transformers makes of the keys. */
TEST(test_layers_are_transformers)
{
#define ON ",\"sliding_window\":8,\"use_sliding_window\":true"
    static const struct {
        const char *family, *keys;
        uint32_t window;
        const char *layers; /* of two */
    } rows[] = {
        {"mistral", "", 4096, "ss"},
        {"mistral", ",\"sliding_window\":null", 0, "ff"},
        {"mistral", ",\"sliding_window\":8", 8, "ss"},
        {"mistral", ",\"sliding_window\":8,\"layer_types\":[\"sliding_attention\",\"sliding_attention\"]", 8, "ss"},
        {"llama", ",\"sliding_window\":8", 0, "ff"},
        {"qwen2", ",\"sliding_window\":8", 0, "ff"},
        {"qwen2", ",\"sliding_window\":8,\"use_sliding_window\":false,\"max_window_layers\":0", 0, "ff"},
        {"qwen2", ON, 0, "ff"}, /* the first 28 have none */
        {"qwen2", ON ",\"max_window_layers\":2", 0, "ff"},
        {"qwen2", ON ",\"max_window_layers\":1", 8, "fs"},
        {"qwen2", ",\"use_sliding_window\":true,\"max_window_layers\":0", 4096, "ss"},
        {"qwen2", ",\"use_sliding_window\":true,\"max_window_layers\":0,\"sliding_window\":null", 0, "ff"},
        {"qwen2", ON ",\"max_window_layers\":0,\"layer_types\":[\"full_attention\",\"full_attention\"]", 0, "ff"},
        {"qwen3", ON ",\"layer_types\":[\"sliding_attention\",\"full_attention\"]", 8, "sf"},
        {"phi3", "", 0, "ff"},
        {"phi3", ",\"sliding_window\":8", 8, "ss"},
        {"gemma2", "", 4096, "sf"},
        {"gemma2", ",\"sliding_window_pattern\":1", 4096, "sf"}, /* not a key of this type */
        {"gemma2", ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]", 4096, "fs"},
        {"gemma3_text", ",\"sliding_window\":8", 8, "ss"},
        {"gemma3_text", ",\"sliding_window\":8,\"sliding_window_pattern\":2", 8, "sf"},
        {"gemma3_text", ",\"sliding_window_pattern\":1", 0, "ff"},
        {"olmo2", ",\"sliding_window\":8", 0, "ff"},
        {"smollm3", "", 0, "ff"},
        {"smollm3", ",\"no_rope_layers\":[1,0]", 0, "fF"},
        {"smollm3", ",\"no_rope_layer_interval\":1", 0, "FF"},
        {"smollm3", ",\"sliding_window\":8,\"no_rope_layers\":[0,1]", 0, "Ff"},
        {"smollm3", ON ",\"no_rope_layers\":[0,1]", 8, "Sf"},
        {"smollm3", ON ",\"no_rope_layers\":[0,1],\"layer_types\":[\"full_attention\",\"sliding_attention\"]", 8, "Fs"},
    };
#undef ON

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_model_config c;
        char text[1024];

        snprintf(text, sizeof(text), "{\"model_type\":\"%s\"," LLAMA_SIZES "%s}", rows[i].family, rows[i].keys);
        assert_ok(parse(&c, text));
        assert_int_equal(c.window, rows[i].window);
        assert_string_equal(rows[i].layers, layer_letters(&c));
    }
}

TEST(test_llama_faults_name_the_key)
{
    static const char *const rows[][3] = {
        {"llama", ",\"hidden_act\":\"relu\"", "\"hidden_act\" is \"relu\"; silu, gelu_pytorch_tanh and gelu are"},
        {"llama", ",\"rope_scaling\":{\"rope_type\":\"mrope\",\"factor\":4}",
         "\"mrope\"; default, linear, dynamic, llama3, yarn and longrope"},
        {"llama", ",\"rope_scaling\":{\"rope_type\":\"dynamic\"}", "\"factor\" is missing"},
        {"llama", ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2,\"rope_theta\":1e6}",
         "\"rope_theta\" in rope_scaling counts"},
        {"llama", ",\"rope_theta\":1e6,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2,\"partial_rotary_factor\":0.5}",
         "\"partial_rotary_factor\" in rope_scaling counts"},
        {"llama", ",\"rope_scaling\":{\"type\":\"su\"}", "has type \"su\""},
        {"llama", ",\"rope_scaling\":{\"rope_type\":null,\"factor\":2}", "\"rope_scaling\" has a \"rope_type\" of null"},
        {"llama", ",\"rope_parameters\":{\"rope_type\":\"linear\",\"type\":null,\"factor\":2}", "\"type\" of null"},
        {"llama", ",\"rope_scaling\":{\"type\":\"linear\",\"rope_type\":\"default\",\"factor\":2}", "that differ"},
        {"llama", ",\"rope_scaling\":{\"factor\":2}", "\"rope_scaling\" has a \"factor\" and no \"rope_type\""},
        {"llama", ",\"rope_scaling\":{\"type\":\"yarn\"}", "\"factor\" is missing"},
        {"llama", ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0.5}", "\"factor\" of the rotary scaling must be 1 or more"},
        {"llama", ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,\"attention_factor\":0}",
         "\"attention_factor\" of the rotary scaling must be above 0"},
        {"phi3", ",\"partial_rotary_factor\":\"1\"", "\"partial_rotary_factor\" must be a number"},
        {"phi3",
         ",\"rope_scaling\":{\"type\":\"longrope\",\"factor\":0,\"short_factor\":[1,1,1,1,1,1,1,1],\"long_factor\":"
         "[1,1,1,1,1,1,1,1]}",
         "\"factor\" of the rotary scaling must be above 0"},
        {"llama", ",\"quantization_config\":{\"quant_method\":1}", "\"quant_method\" must be a string"},
        {"llama", ",\"rope_scaling\":{\"type\":\"longrope\",\"factor\":2,\"short_factor\":[1]}",
         "\"short_factor\" lists 1 numbers; the 8 pairs"},
        {"llama", ",\"rope_scaling\":{\"type\":\"longrope\",\"factor\":2,\"short_factor\":[1,0]}",
         "\"short_factor\" must list numbers above 0"},
        {"llama", ",\"rope_scaling\":{\"type\":\"default\"},\"rope_parameters\":{}",
         "\"rope_scaling\" is there beside rope_parameters"},
        {"llama", ",\"rope_parameters\":{\"full_attention\":{}}", "\"rope_parameters\" has full_attention"},
        {"llama", ",\"rope_parameters\":[]", "\"rope_parameters\" must be an object"},
        {"llama",
         ",\"original_max_position_embeddings\":7,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,\"original_max_position_"
         "embeddings\":8}",
         "\"original_max_position_embeddings\" differs"},
        {"phi3", ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}",
         "\"linear\"; default and longrope (also called su and yarn)"},
        {"phi3", ",\"partial_rotary_factor\":0.01", "\"partial_rotary_factor\" must leave"},
        {"phi3", ",\"partial_rotary_factor\":0.2", "heads of 16 values, of which 3 are rotated"},
        {"gemma2", ",\"use_bidirectional_attention\":true", "\"use_bidirectional_attention\" true"},
        {"qwen2", ",\"is_causal\":false", "\"is_causal\" false"},
        {"mistral", ",\"sliding_window\":8,\"layer_types\":[\"full_attention\",\"sliding_attention\"]",
         "\"layer_types\" must be sliding_attention in all layers"},
        {"gemma2", ",\"query_pre_attn_scalar\":-1", "\"query_pre_attn_scalar\" must be a number above 0"},
        {"gemma2", ",\"layer_types\":5", "\"layer_types\" must be a list"},
        {"gemma2", ",\"layer_types\":[]", "\"layer_types\" must be a list"},
        {"gemma2", ",\"layer_types\":[\"full_attention\"]", "\"layer_types\" does not name num_hidden_layers layers"},
        {"gemma2", ",\"sliding_window\":null,\"layer_types\":[\"full_attention\",\"sliding_attention\"]",
         "no sliding_window is in use"},
        {"gemma3_text", ",\"attn_logit_softcapping\":50", "\"attn_logit_softcapping\" is not supported"},
        {"gemma3_text", ",\"rope_parameters\":{\"rope_type\":\"default\"}", "\"rope_parameters\" must have full_attention"},
        {"gemma3_text", ",\"rope_parameters\":{\"sliding_attention\":{\"rope_type\":\"linear\",\"factor\":2}}",
         "\"sliding_attention\" has rotary scaling"},
        {"gemma3_text", ",\"rope_parameters\":{\"sliding_attention\":7}", "\"sliding_attention\" must be an object or null"},
        {"gemma3_text", ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\"}}", "\"factor\" is missing"},
        {"gemma3_text", ",\"rope_local_base_freq\":1", "rotary base 1"},
        {"gemma3_text", ",\"rope_local_base_freq\":0", "rotary base 0"},
        {"smollm3", ",\"no_rope_layers\":[1]", "\"no_rope_layers\" does not list num_hidden_layers layers"},
        {"smollm3", ",\"no_rope_layers\":[1,2]", "\"no_rope_layers\" must list a 1"},
        {"llama", ",\"rope_scaling\":{\"type\":\"linear\"}", "\"factor\" is missing"},
        {"llama", ",\"rope_parameters\":{\"rope_type\":\"default\",\"partial_rotary_factor\":0.5}", "\"partial_rotary_factor\""},
        {"llama", ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":4}", "\"low_freq_factor\" is missing"},
        {"llama", ",\"rope_scaling\":4", "must be an object or null"},
        {"llama", ",\"rope_scaling\":{\"factor\":0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"rope_type\":\"llama3\"}",
         "\"factor\""},
        {"llama", ",\"rope_theta\":0", "rotary base 0"},
        {"llama", ",\"rope_theta\":\"big\"", "\"rope_theta\" must be a number"},
        {"llama", ",\"head_dim\":7", "heads of 7 values"},
        {"llama", ",\"head_dim\":4294967295", "4 heads of 4294967295"},
        {"llama", ",\"rms_norm_eps\":0", "\"rms_norm_eps\""},
        {"llama", ",\"rms_norm_eps\":1e-60", "\"rms_norm_eps\" is outside the range of single precision"},
        {"llama", ",\"rope_theta\":1e60", "\"rope_theta\" is outside the range of single precision"},
        {"smollm3", ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"beta_slow\":1e-60}",
         "\"beta_slow\" is outside the range of single precision"},
        {"gemma2", ",\"attn_logit_softcapping\":1e-60", "\"attn_logit_softcapping\" is outside the range of single precision"},
        {"llama", ",\"attention_bias\":0", "must be true or false"},
        {"llama", ",\"partial_rotary_factor\":0.5", "\"partial_rotary_factor\""},
        {"llama", ",\"quantization_config\":{}", "quantized"},
        {"llama", ",\"quantization_config\":[]", "is no object"},
        {"llama", ",\"quantization_config\":{\"quant_method\":\"gptq\"}", "\"gptq\""},
        {"llama", ",\"quantization_config\":{\"quant_method\":\"bitsandbytes\",\"load_in_8bit\":true}", "is for int8"},
        {"llama", ",\"quantization_config\":{\"quant_method\":\"bitsandbytes\",\"load_in_4bit\":true}", "is for fp4"},
        {"llama",
         ",\"quantization_config\":{\"quant_method\":\"bitsandbytes\",\"load_in_4bit\":true,\"load_in_8bit\":true,"
         "\"bnb_4bit_quant_type\":\"nf4\"}",
         "has both \"load_in_4bit\" and \"load_in_8bit\" true"},
        {"llama", ",\"layer_types\":[\"sliding_attention\"]", "\"layer_types\""},
        {"qwen2", ",\"layer_types\":[\"chunked_attention\"]", "\"layer_types\" has layers other than"},
        {"qwen2", ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]", "no sliding_window is in use"},
        {"qwen2", ",\"use_sliding_window\":true,\"max_window_layers\":-1", "\"max_window_layers\""},
        {"mistral", ",\"sliding_window\":0", "\"sliding_window\""},
        {"qwen2", ",\"use_sliding_window\":1", "\"use_sliding_window\" must be"},
        {"qwen2", ",\"use_sliding_window\":true,\"max_window_layers\":0,\"sliding_window\":\"8\"", "\"sliding_window\""},
        {"smollm3", ",\"no_rope_layer_interval\":\"4\"", "\"no_rope_layer_interval\""},
    };
    struct st_model_config c;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[1024];

        snprintf(text, sizeof(text), "{\"model_type\":\"%s\"," LLAMA_SIZES "%s}", rows[i][0], rows[i][1]);
        assert_refused(parse(&c, text), STRATA_E_INPUT, rows[i][2]);
        assert_non_null(strstr(strata_last_error(), "dir/config.json"));
    }
    assert_refused(parse(&c, "{\"model_type\":\"llama\"," LLAMA_SIZES
                             ",\"rope_theta\":1e4,\"rope_parameters\":{\"rope_theta\":5e4,\"rope_type\":\"default\"}}"),
                   STRATA_E_INPUT, "\"rope_theta\" differs from the one in rope_parameters");
    assert_ok(parse(&c, "{\"model_type\":\"llama\"," LLAMA_SIZES
                        ",\"rope_theta\":5e4,\"rope_parameters\":{\"rope_theta\":5e4,\"rope_type\":\"default\"}}"));
    assert_true(c.rope_base == 5e4f);
}

#define SIZES_OF_32                                                                                                              \
    "\"num_hidden_layers\":2,\"hidden_size\":256,\"num_attention_heads\":32,\"intermediate_size\":96,\"vocab_size\":96,"         \
    "\"max_position_embeddings\":32"

/* transformers' classes have defaults of their own; null means one for each head in all of them. */
TEST(test_key_value_heads_left_out)
{
    struct st_model_config c;

    assert_ok(parse(&c, "{\"model_type\":\"llama\"," SIZES_OF_32 "}"));
    assert_int_equal(c.kv_heads, 32);
    assert_ok(parse(&c, "{\"model_type\":\"mistral\"," SIZES_OF_32 "}"));
    assert_int_equal(c.kv_heads, 8);
    assert_ok(parse(&c, "{\"model_type\":\"mistral\"," SIZES_OF_32 ",\"num_key_value_heads\":null}"));
    assert_int_equal(c.kv_heads, 32);
    assert_ok(parse(&c, "{\"model_type\":\"qwen2\"," SIZES_OF_32 "}"));
    assert_int_equal(c.kv_heads, 32);
}

/* Fails unless the text is the line of tests/golden/written_configs.txt that begins with the name. */
static void check_written(const char *name, const char *text)
{
    const size_t length = strlen(name);
    char *golden, *line, *save = NULL;
    uint64_t bytes;

    assert_ok(st_file_read_text(&golden, &bytes, "tests/golden/written_configs.txt", 1 << 20));
    for (line = strtok_r(golden, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save))
        if (strncmp(line, name, length) == 0 && line[length] == ' ')
            break;
    if (line == NULL || strncmp(line + length + 1, text, strcspn(text, "\n")) != 0)
        fail_msg("not as in tests/golden/written_configs.txt:\n%s %s", name, text);
    free(golden);
}

/* With options that no preset has. */
TEST(test_every_family_is_written_as_itself)
{
    for (enum st_model_family i = ST_FAMILY_LLAMA; i < ST_FAMILY_COUNT; i++) {
        const struct st_family *family = st_family_of(i);
        const struct st_model_config sizes = tiny_llama_config();
        struct st_model_config c = family->defaults, back;
        char *text;
        size_t bytes;
        FILE *f = open_memstream(&text, &bytes);

        assert_non_null(f);
        c.blocks = 3;
        c.hidden = sizes.hidden;
        c.heads = c.kv_heads = sizes.heads;
        c.head_dim = sizes.head_dim;
        c.ffn = sizes.ffn;
        c.vocab = sizes.vocab;
        c.context = sizes.context;
        c.untied = !c.untied;
        c.mlp_bias = (family->keys & ST_KEY_MLP_BIAS) != 0;
        c.biases = (family->keys & ST_KEY_ATTENTION_BIAS) != 0 ? ST_BIAS_ATTENTION : c.biases;
        c.activation = (family->keys & ST_KEY_GATE_LIMIT) != 0 ? ST_ACTIVATION_SWIGLU : ST_ACTIVATION_GEGLU_EXACT;
        c.gate_limit = c.gate_limit > 0.0f ? 2.5f : 0.0f;
        c.gate_alpha = c.gate_alpha > 0.0f ? 1.25f : 0.0f;
        c.stacked = false; /* weights' */
        c.context = c.rope_type == ST_ROPE_YARN ? (uint32_t)c.rope_factor * c.rope_original : c.context;
        c.window = family->windows == ST_WINDOW_NONE ? 0 : 16;
        for (uint32_t b = 0; b < 3 && c.window > 0; b++)
            if (b != 1 || family->windows == ST_WINDOW_ALL || family->windows == ST_WINDOW_SWITCH)
                st_layer_set(c.sliding, b);
        for (uint32_t b = 0; b < 3 && family->experts != NULL; b++)
            if (b != 1 || (family->keys & ST_KEY_MOE_FFN) == 0)
                st_layer_set(c.sparse, b);
        c.expert_ffn = family->experts != NULL && (family->keys & ST_KEY_MOE_FFN) == 0 ? c.ffn : c.expert_ffn;
        c.qkv_clip = (family->keys & ST_KEY_QKV_CLIP) != 0 ? 2.5f : 0.0f;
        if ((family->keys & ST_KEY_NO_ROPE_LAYERS) != 0)
            st_layer_set(c.unrotated, 1);
        c.dropout = 0.25f;
        st_model_config_write(&c, STRATA_F16, f);
        fclose(f);
        check_written(family->architecture, text);
        assert_ok(parse(&back, text));
        memcpy(back.name, c.name, sizeof(c.name));
        back.stacked = false;
        assert_memory_equal(&back, &c, sizeof(c));
        assert_non_null(strstr(text, family->architecture));
        assert_non_null(strstr(text, "\"torch_dtype\":\"float16\""));
        free(text);
    }
}

/* Of gpt_oss: what is absent is transformers' default, its rotary scaling, too; another one replaces that whole. */
TEST(test_gpt_oss_defaults_are_transformers)
{
    struct st_model_config c;

    assert_ok(parse(&c, "{\"model_type\":\"gpt_oss\"," LLAMA_SIZES "}"));
    assert_true(c.stacked && c.untied && c.biases == ST_BIAS_ATTENTION);
    assert_int_equal(c.head_dim, 64);
    assert_int_equal(c.experts, 128);
    assert_int_equal(c.experts_chosen, 4);
    assert_int_equal(c.expert_ffn, c.ffn);
    assert_int_equal(c.window, 128);
    assert_true(st_layer_bit(c.sliding, 0) && !st_layer_bit(c.sliding, 1) && st_layer_bit(c.sparse, 1));
    assert_true(c.gate_alpha == 1.702f && c.gate_limit == 7.0f);
    assert_int_equal(c.rope_type, ST_ROPE_YARN);
    assert_true(c.rope_factor == 32.0f && c.rope_original == 4096 && !c.rope_whole_pairs && c.rope_base == 150000.0f);
    assert_int_equal(c.context, 131072);

    assert_ok(parse(&c, "{\"model_type\":\"gpt_oss\"," LLAMA_SIZES
                        ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2.0,\"beta_fast\":8}}"));
    assert_true(c.rope_factor == 2.0f && c.rope_high == 8.0f && c.rope_whole_pairs && c.rope_original == 32);
    assert_ok(parse(&c, "{\"model_type\":\"gpt_oss\"," LLAMA_SIZES ",\"rope_parameters\":{\"rope_type\":\"default\"}}"));
    assert_true(c.rope_type == ST_ROPE_DEFAULT && c.rope_factor == 0.0f && c.rope_original == 0);
    assert_ok(parse(&c, "{\"model_type\":\"gpt_oss\"," LLAMA_SIZES
                        ",\"num_experts\":6,\"swiglu_limit\":2,\"swiglu_alpha\":1.5,\"attention_bias\":false}"));
    assert_true(c.experts == 6 && c.gate_limit == 2.0f && c.gate_alpha == 1.5f && c.biases == ST_BIAS_NONE);
}

TEST(test_faults_of_experts_name_the_key)
{
    static const char *const rows[][2] = {
        {"\"gpt_oss\"," LLAMA_SIZES ",\"hidden_act\":\"gelu\"", "\"hidden_act\" must be silu"},
        {"\"gpt_oss\"," LLAMA_SIZES ",\"swiglu_limit\":0", "\"swiglu_limit\" must be a number above 0"},
        {"\"gpt_oss\"," LLAMA_SIZES ",\"swiglu_limit\":-7.0", "above 0: 7.0 in the published models (it is -7.0)"},
        {"\"gpt_oss\"," LLAMA_SIZES ",\"swiglu_limit\":\"7\"", "\"swiglu_limit\" must be a number (it is \"7\")"},
        {"\"gpt_oss\"," LLAMA_SIZES ",\"num_experts\":4294967304",
         "\"num_experts\" must be a whole number above 0, at most 4294967295 (it is 4294967304)"},
        {"\"gpt_oss\"," LLAMA_SIZES ",\"num_local_experts\":9223372036854775808", "(it is 9223372036854775808)"},
        {"\"olmoe\"," LLAMA_SIZES ",\"num_experts_per_tok\":1.5", "at most 4294967295 (it is 1.5)"},
        {"\"olmoe\"," LLAMA_SIZES ",\"router_aux_loss_coef\":-1", "must lie between 0 and 1000 (it is -1)"},
        {"\"olmoe\"," LLAMA_SIZES ",\"rope_theta\":1e300", "range of single precision (it is 1e300)"},
        {"\"olmoe\"," LLAMA_SIZES ",\"rms_norm_eps\":true", "must be a number (it is true)"},
        {"\"olmoe\"," LLAMA_SIZES ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0.5}", "must be 1 or more (it is 0.5)"},
        {"\"qwen3_moe\"," LLAMA_SIZES ",\"mlp_only_layers\":[0,-1]", "must list numbers of layers (it is -1)"},
        {"\"gpt_oss\"," LLAMA_SIZES ",\"swiglu_alpha\":0.0", "\"swiglu_alpha\" must be a number above 0"},
        {"\"gpt_oss\"," LLAMA_SIZES ",\"rope_scaling\":null", "\"rope_scaling\" is null, which transformers 4 and 5 read"},
        {"\"gpt_oss\"," LLAMA_SIZES ",\"num_experts_per_tok\":129", "129 experts of 128"},
        {"\"gpt_oss\"," LLAMA_SIZES ",\"sliding_window\":null,\"layer_types\":[\"sliding_attention\",\"full_attention\"]",
         "\"layer_types\" has sliding_attention, but no sliding_window"},
        {"\"gpt_oss\"," LLAMA_SIZES ",\"quantization_config\":{\"quant_method\":\"mxfp4\"}",
         "Mxfp4Config(dequantize=True)) and save_pretrained()"},
        {"\"deepseek_v3\"," LLAMA_SIZES ",\"kv_lora_rank\":512,\"n_routed_experts\":256",
         "\"model_type\" is \"deepseek_v3\", with latent attention (\"kv_lora_rank\"): not supported"},
        {"\"mixtral\"," LLAMA_SIZES ",\"router_jitter_noise\":0.1", "\"router_jitter_noise\" other than 0"},
        {"\"olmoe\"," LLAMA_SIZES ",\"clip_qkv\":0", "\"clip_qkv\" must be a number above 0"},
        {"\"qwen3_moe\"," LLAMA_SIZES ",\"num_experts\":8,\"num_local_experts\":9", "\"num_local_experts\" differs"},
    };
    struct st_model_config c;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[1024];

        snprintf(text, sizeof(text), "{\"model_type\":%s}", rows[i][0]);
        assert_refused(parse(&c, text), STRATA_E_INPUT, rows[i][1]);
        assert_non_null(strstr(strata_last_error(), "dir/config.json"));
    }
}

/* A model's own config, in which nothing is left open, has no fraction where whole heads are rotated. */
TEST(test_whole_heads_have_no_fraction)
{
    struct st_model *m = NULL;
    const struct st_model_config config = tiny_llama_config();
    char *text;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);

    assert_non_null(f);
    m = tiny_model_of(&config, STRATA_F32);
    st_model_config_write(st_model_config(m), STRATA_F32, f);
    fclose(f);
    assert_null(strstr(text, "partial_rotary_factor"));
    free(text);
    st_model_destroy(m);
}

/* The same models as transformers 4 and 5 write them. */
TEST(test_versions_spell_one_model)
{
    static const char *const dirs[] = {GOLDEN_FAMILIES};

    for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
        struct st_model_config four, five = {0};
        char path[256], *text;
        uint64_t bytes;

        assert_ok(st_model_config_read(&four, dirs[i]));
        memcpy(five.name, four.name, sizeof(five.name));
        snprintf(path, sizeof(path), "%s/config5.json", dirs[i]);
        assert_ok(st_file_read_text(&text, &bytes, path, 1 << 20));
        assert_ok(st_model_config_parse(&five, text, bytes, path));
        assert_memory_equal(&four, &five, sizeof(four));
        free(text);
    }
}

/* What files say that no preset has: rotary scaling of every kind, windows, caps, activations. */
TEST(test_golden_configs_are_written_and_read_back)
{
    static const char *const dirs[] = {GOLDEN_FAMILIES, GOLDEN_EXPERTS};

    for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
        struct st_model_config c, back;
        char *text;
        size_t bytes;
        FILE *f = open_memstream(&text, &bytes);

        assert_non_null(f);
        assert_ok(st_model_config_read(&c, dirs[i]));
        st_model_config_write(&c, STRATA_F32, f);
        fclose(f);
        assert_ok(parse(&back, text));
        memcpy(back.name, c.name, sizeof(c.name));
        back.stacked = c.stacked; /* weights' */
        if (memcmp(&back, &c, sizeof(c)) != 0)
            fail_msg("%s: another model is read back from %s", dirs[i], text);
        free(text);
    }
}

TEST(test_written_config_is_read_back)
{
    for (uint32_t i = 0; st_model_preset_name(i) != NULL; i++) {
        struct st_model_config c, back;
        char *text;
        size_t bytes;
        FILE *f = open_memstream(&text, &bytes);

        assert_non_null(f);
        assert_ok(st_model_preset(&c, st_model_preset_name(i)));
        if (i == 0)
            c.ffn = 320;
        st_model_config_write(&c, STRATA_BF16, f);
        fclose(f);
        check_written(st_model_preset_name(i), text);
        assert_ok(parse(&back, text));
        memcpy(back.name, c.name, sizeof(c.name));
        assert_memory_equal(&back, &c, sizeof(c));
        assert_non_null(strstr(text, "\"torch_dtype\":\"bfloat16\""));
        assert_true(c.logit_cap == 0.0f || strstr(text, "\"final_logit_softcapping\":30.0,") != NULL);
        assert_non_null(strstr(text, c.vocab == 50257 ? "\"eos_token_id\":50256" : "\"eos_token_id\":null"));
        free(text);
    }
}

/* In as few digits as read back as the same number, which are nine for some. */
TEST(test_numbers_are_written_so_that_they_read_back)
{
    struct st_model_config c, back;
    uint32_t long_ones = 0;

    assert_ok(parse(&c, "{\"model_type\":\"gemma2\"," LLAMA_SIZES "}"));
    for (uint64_t i = 0; i < 200; i++) {
        float *const numbers[] = {&c.norm_eps, &c.rope_base, &c.query_scalar, &c.logit_cap, &c.score_cap};
        char *text;
        size_t bytes;
        FILE *f = open_memstream(&text, &bytes);

        for (uint32_t n = 0; n < 5; n++)
            *numbers[n] = (n == 0 ? 1e-7f : 2.0f) * (1.0f + (float)(st_rng_u64(1, i, n) >> 40) * 0x1p-20f);
        st_model_config_write(&c, STRATA_F32, f);
        fclose(f);
        assert_ok(parse(&back, text));
        memcpy(back.name, c.name, sizeof(c.name));
        if (memcmp(&back, &c, sizeof(c)) != 0)
            fail_msg("another model is read back from %s", text);
        for (const char *at = text; (at = strpbrk(at, "0123456789")) != NULL; at += strspn(at, "0123456789."))
            long_ones += strspn(at, "0123456789.") >= 10;
        free(text);
    }
    assert_true(long_ones > 0);
}

TEST(test_directory_names_the_model)
{
    static const char text[] = "{\"model_type\":\"gpt2\"," SIZES "}";
    struct st_model_config c;

    scratch_open();
    assert_refused(st_model_config_read(&c, scratch_dir), STRATA_E_INPUT, "config.json: No such file");
    write_file(scratch_path("config.json"), text, strlen(text));
    assert_ok(st_model_config_read(&c, scratch_dir));
    assert_string_equal(c.name, strrchr(scratch_dir, '/') + 1);
    assert_ok(st_model_config_read(&c, scratch_path("")));
    assert_string_equal(c.name, strrchr(scratch_dir, '/') + 1);
    scratch_close();
}

/* --- models of more than text --- */

/* What a text_config leaves out has the defaults of transformers' class. */
TEST(test_text_configs_have_their_classes_defaults)
{
    static const struct {
        const char *type, *text;
        enum st_model_family family;
        uint32_t blocks, hidden, heads, kv_heads, head_dim, ffn, vocab, context;
    } rows[] = {
        {"gemma3", "{}", ST_FAMILY_GEMMA3, 26, 2304, 8, 4, 256, 9216, 262208, 131072},
        {"gemma3", "{\"model_type\":\"gemma3_text\",\"hidden_size\":2560,\"intermediate_size\":10240,\"num_hidden_layers\":34}",
         ST_FAMILY_GEMMA3, 34, 2560, 8, 4, 256, 10240, 262208, 131072},
        {"llava", "{\"model_type\":\"llama\",\"vocab_size\":32064,\"max_position_embeddings\":4096}", ST_FAMILY_LLAMA, 32, 4096,
         32, 32, 128, 11008, 32064, 4096},
        {"mistral3", "{\"model_type\":\"mistral\"}", ST_FAMILY_MISTRAL, 32, 4096, 32, 8, 128, 14336, 32000, 131072},
        {"llava_onevision", "{\"model_type\":\"qwen2\",\"num_attention_heads\":32}", ST_FAMILY_QWEN2, 32, 4096, 32, 32, 128,
         22016, 151936, 32768},
    };
    struct st_model_config c;
    char text[512];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        snprintf(text, sizeof(text), "{\"model_type\":\"%s\",\"text_config\":%s}", rows[i].type, rows[i].text);
        assert_ok(parse(&c, text));
        if (c.family != rows[i].family || c.blocks != rows[i].blocks || c.hidden != rows[i].hidden || c.heads != rows[i].heads ||
            c.kv_heads != rows[i].kv_heads || c.head_dim != rows[i].head_dim || c.ffn != rows[i].ffn ||
            c.vocab != rows[i].vocab || c.context != rows[i].context || c.wrapper == NULL)
            fail_msg("%s: %u x %u, %u / %u heads of %u, %u, %u, %u", text, c.blocks, c.hidden, c.heads, c.kv_heads, c.head_dim,
                     c.ffn, c.vocab, c.context);
    }
}

/* The keys of the text model may be those of the whole (older files of Qwen2-VL), and the head is tied where either says so. */
TEST(test_text_models_are_read_where_they_are)
{
#define TIE(value) "\"tie_word_embeddings\":" #value
    static const struct {
        const char *type, *beside, *text;
        bool untied;
        double base, eps;
    } rows[] = {
        {"qwen2_vl", "", "," LLAMA_SIZES ",\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[1,1,2]}", true, 1e6, 1e-5},
        {"qwen2_5_vl", "", "," LLAMA_SIZES ",\"rope_theta\":5e4,\"rms_norm_eps\":1e-6", true, 5e4, 1e-6},
        {"qwen2_vl", "," TIE(true), ",\"text_config\":{\"model_type\":\"qwen2_vl_text\"," LLAMA_SIZES "}", false, 1e6, 1e-5},
        {"qwen3_vl", "," TIE(false), ",\"text_config\":{\"model_type\":\"qwen3_vl_text\",\"rope_theta\":5e5," LLAMA_SIZES "}",
         true, 5e5, 1e-6},
        {"llava", "," TIE(false), ",\"text_config\":{" LLAMA_SIZES "," TIE(true) "}", false, 1e4, 1e-6},
        {"internvl", "," TIE(true), ",\"text_config\":{" LLAMA_SIZES "," TIE(false) "}", false, 1e4, 1e-6},
        {"mistral3", "", ",\"text_config\":{" LLAMA_SIZES "}", true, 1e4, 1e-6},
        {"gemma3", "", ",\"text_config\":{" LLAMA_SIZES "}", false, 1e6, 1e-6},
        {"gemma3", "," TIE(false), ",\"text_config\":{" LLAMA_SIZES "}", true, 1e6, 1e-6},
    };
    struct st_model_config c;
    char text[512];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        snprintf(text, sizeof(text), "{\"model_type\":\"%s\"%s%s}", rows[i].type, rows[i].beside, rows[i].text);
        assert_ok(parse(&c, text));
        if (c.untied != rows[i].untied || c.rope_base != (float)rows[i].base || c.norm_eps != (float)rows[i].eps)
            fail_msg("%s: untied %d, base %g, eps %g", text, c.untied, (double)c.rope_base, (double)c.norm_eps);
    }
}

TEST(test_faults_of_text_models_say_where)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"{\"model_type\":\"paligemma\",\"text_config\":{}}",
         "\"model_type\" is \"paligemma\", a model of more than text: save only its text model"},
        {"{\"model_type\":\"llava\",\"text_config\":{\"model_type\":\"phi\"}}",
         "\"text_config\": \"model_type\" is \"phi\"; gpt2, llama"},
        {"{\"model_type\":\"llava\",\"text_config\":7}", "\"text_config\" must be an object"},
        {"{\"model_type\":\"gemma3\",\"text_config\":{\"hidden_size\":0}}",
         "dir/config.json: \"text_config\": \"hidden_size\" must be a whole number above 0"},
        {"{\"model_type\":\"qwen2_vl\",\"text_config\":{}}", "\"num_hidden_layers\" is missing"},
        {"{\"model_type\":\"qwen3_vl\",\"text_config\":{\"rope_parameters\":{}}}",
         "\"rope_theta\" is missing: transformers 4 and 5"},
        {"{\"model_type\":\"gemma3\",\"text_config\":{},\"quantization_config\":{\"quant_method\":\"gptq\"}}", "\"gptq\""},
    };
    struct st_model_config c;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_refused(parse(&c, rows[i].text), STRATA_E_INPUT, rows[i].says);
}

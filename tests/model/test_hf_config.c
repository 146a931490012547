/* tests/model/test_hf_config.c - config.json: read, refused with file and key, written and read back. */
#include "model/hf_config.h"
#include "model_fixture.h"

#define SIZES "\"n_layer\":2,\"n_embd\":64,\"n_head\":2,\"vocab_size\":96,\"n_positions\":32"

static strata_status parse(struct st_model_config *c, const char *text)
{
    memset(c, 0, sizeof(*c));
    return st_model_config_parse(c, text, strlen(text), "dir/config.json");
}

static void test_defaults_are_transformers(void **state)
{
    struct st_model_config c;

    (void)state;
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

static void test_options_are_read(void **state)
{
    struct st_model_config c;

    (void)state;
    assert_ok(parse(&c, "{\"model_type\":\"gpt2\"," SIZES ",\"n_inner\":128,\"layer_norm_epsilon\":1e-6,\"resid_pdrop\":0,"
                        "\"embd_pdrop\":0.2,\"attn_pdrop\":0.0,\"activation_function\":\"gelu_pytorch_tanh\",\"foo\":[1]}"));
    assert_int_equal(c.ffn, 128);
    assert_true(c.norm_eps == 1e-6f);
    assert_true(c.dropout == 0.2f);
    assert_ok(parse(&c, "{\"model_type\":\"gpt2\"," SIZES ",\"n_inner\":null,\"tie_word_embeddings\":true}"));
    assert_int_equal(c.ffn, 256);
}

static void test_faults_name_file_and_key(void **state)
{
    static const char *const rows[][2] = {
        {"", "model config"},
        {"[]", "not a JSON object"},
        {"{" SIZES "}", "\"model_type\" is missing"},
        {"{\"model_type\":\"llama\"," SIZES "}", "\"llama\"; only gpt2"},
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
        {"{\"model_type\":\"gpt2\"," SIZES ",\"activation_function\":\"relu\"}", "only gelu_new"},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"activation_function\":1}", "\"activation_function\""},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"tie_word_embeddings\":false}", "\"tie_word_embeddings\" false"},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"scale_attn_weights\":false}", "\"scale_attn_weights\""},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"scale_attn_by_inverse_layer_idx\":true}", "\"scale_attn_by_inverse_layer_idx\""},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"add_cross_attention\":1}", "must be true or false"},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"layer_norm_epsilon\":0}", "\"layer_norm_epsilon\""},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"layer_norm_epsilon\":\"x\"}", "must be a number"},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"resid_pdrop\":1.5}", "\"resid_pdrop\""},
        {"{\"model_type\":\"gpt2\"," SIZES "} x", "dir/config.json"},
    };
    struct st_model_config c;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_refused(parse(&c, rows[i][0]), STRATA_E_INPUT, rows[i][1]);
        assert_non_null(strstr(strata_last_error(), "dir/config.json"));
        assert_int_equal(c.hidden, 0);
    }
}

static void test_written_config_is_read_back(void **state)
{
    (void)state;
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
        assert_ok(parse(&back, text));
        memcpy(back.name, c.name, sizeof(c.name));
        assert_memory_equal(&back, &c, sizeof(c));
        assert_non_null(strstr(text, "\"torch_dtype\":\"bfloat16\""));
        assert_non_null(strstr(text, i == 0 ? "\"eos_token_id\":null" : "\"eos_token_id\":50256"));
        free(text);
    }
}

static void test_directory_names_the_model(void **state)
{
    static const char text[] = "{\"model_type\":\"gpt2\"," SIZES "}";
    struct st_model_config c;
    struct scratch s;

    (void)state;
    scratch_open(&s);
    assert_refused(st_model_config_read(&c, s.dir), STRATA_E_INPUT, "config.json: No such file");
    write_file(scratch_path(&s, "config.json"), text, strlen(text));
    assert_ok(st_model_config_read(&c, s.dir));
    assert_string_equal(c.name, strrchr(s.dir, '/') + 1);
    assert_ok(st_model_config_read(&c, scratch_path(&s, "")));
    assert_string_equal(c.name, strrchr(s.dir, '/') + 1);
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_are_transformers), cmocka_unit_test(test_options_are_read),
        cmocka_unit_test(test_faults_name_file_and_key),  cmocka_unit_test(test_written_config_is_read_back),
        cmocka_unit_test(test_directory_names_the_model),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

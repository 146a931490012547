/* tests/model/test_generation.c - generation_config.json, or config.json where there is none: end tokens, sampling, and what is
 * said about the rest. */
#include "model/hf/generation.h"
#include "model_fixture.h"
#include "tests/common/whole_file.h"

#include <stdio.h>

static strata_status parse(struct st_generation *g, const char *text)
{
    memset(g, 0xff, sizeof(*g));
    return st_generation_parse(g, text, strlen(text), "dir/generation_config.json");
}

TEST(test_defaults_are_transformers)
{
    struct st_generation g;

    assert_ok(parse(&g, "{}"));
    assert_int_equal(g.end_count, 0);
    assert_false(g.sample);
    assert_true(g.temperature == 1 && g.top_k == 50 && g.top_p == 1 && g.repetition_penalty == 1);
    assert_string_equal(g.ignored, "");
}

TEST(test_end_tokens)
{
    static const struct {
        const char *text;
        uint32_t count, first, last;
    } rows[] = {
        {"{\"eos_token_id\":0}", 1, 0, 0},
        {"{\"eos_token_id\":[100,12]}", 2, 100, 12},
        {"{\"eos_token_id\":[]}", 0, 0, 0},
        {"{\"eos_token_id\":null}", 0, 0, 0},
        {"{\"model_type\":\"gpt2\"}", 1, 50256, 50256},
        {"{\"model_type\":\"gpt2\",\"eos_token_id\":null}", 0, 0, 0},
        {"{\"model_type\":\"llama\"}", 1, 2, 2},
        {"{\"model_type\":\"mistral\"}", 1, 2, 2},
        {"{\"model_type\":\"mistral\",\"eos_token_id\":[7,8,9]}", 3, 7, 9},
        {"{\"model_type\":\"qwen2\"}", 0, 0, 0},
        {"{\"model_type\":\"gemma3\",\"text_config\":{\"model_type\":\"gemma3_text\"}}", 1, 1, 1},
        {"{\"model_type\":\"gemma3\",\"text_config\":{\"eos_token_id\":[1,106]}}", 2, 1, 106},
        {"{\"model_type\":\"gemma3\",\"eos_token_id\":7,\"text_config\":{\"eos_token_id\":9}}", 1, 7, 7},
    };
    struct st_generation g;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_ok(parse(&g, rows[i].text));
        assert_int_equal(g.end_count, rows[i].count);
        if (g.end_count == 0)
            continue;
        assert_int_equal(g.end_tokens[0], rows[i].first);
        assert_int_equal(g.end_tokens[g.end_count - 1], rows[i].last);
    }
}

TEST(test_sampling)
{
    struct st_generation g;

    assert_ok(parse(&g, "{\"do_sample\":true,\"temperature\":0.6,\"top_k\":20,\"top_p\":0.95,\"repetition_penalty\":1.1}"));
    assert_true(g.sample && g.temperature == 0.6 && g.top_k == 20 && g.top_p == 0.95 && g.repetition_penalty == 1.1);
    assert_ok(parse(&g, "{\"temperature\":null,\"top_k\":null,\"top_p\":null,\"repetition_penalty\":null,\"do_sample\":null}"));
    assert_true(!g.sample && g.temperature == 1 && g.top_k == 0 && g.top_p == 1 && g.repetition_penalty == 1);
    assert_ok(parse(&g, "{\"top_p\":0,\"top_k\":0}"));
    assert_true(g.top_k == 0 && g.top_p > 0 && g.top_p < 1e-300); /* the likeliest is left */
}

TEST(test_what_is_not_done_is_listed)
{
    struct st_generation g;

    assert_ok(parse(&g, "{\"num_beams\":4,\"min_p\":0.05,\"suppress_tokens\":[3],\"typical_p\":1.0,\"stop_strings\":\"x\","
                        "\"bad_words_ids\":[],\"guidance_scale\":null,\"max_length\":4096,\"pad_token_id\":0}"));
    assert_string_equal(g.ignored, "num_beams, min_p, suppress_tokens, stop_strings");
}

/* Each key that changes what is generated, with a value that does, is listed; with the value that does nothing it is not. */
TEST(test_each_key_that_is_not_done_is_listed)
{
    static const char *const rows[][3] = {
        {"num_beams", "2", "1"},
        {"num_beam_groups", "2", "1"},
        {"penalty_alpha", "0.6", "0"},
        {"min_p", "0.1", "0.0"},
        {"encoder_no_repeat_ngram_size", "3", "0"},
        {"encoder_repetition_penalty", "1.2", "1.0"},
        {"token_healing", "true", "false"},
        {"dola_layers", "\"high\"", "null"},
        {"typical_p", "0.9", "1.0"},
        {"top_h", "0.4", "null"},
        {"epsilon_cutoff", "0.1", "0.0"},
        {"eta_cutoff", "0.1", "0.0"},
        {"no_repeat_ngram_size", "3", "0"},
        {"min_length", "5", "0"},
        {"min_new_tokens", "5", "null"},
        {"guidance_scale", "1.5", "1"},
        {"bad_words_ids", "[[1]]", "null"},
        {"force_words_ids", "[[1]]", "null"},
        {"constraints", "[1]", "null"},
        {"sequence_bias", "[[[1],2.0]]", "null"},
        {"forced_bos_token_id", "0", "null"},
        {"forced_eos_token_id", "0", "null"},
        {"suppress_tokens", "[1]", "[]"},
        {"begin_suppress_tokens", "[1]", "[]"},
        {"exponential_decay_length_penalty", "[5,1.1]", "null"},
        {"stop_strings", "[\"x\"]", "null"},
        {"watermarking_config", "{\"bias\":2}", "null"},
    };
    struct st_generation g;
    char text[128];

    for (size_t i = 0; i < 2 * sizeof(rows) / sizeof(rows[0]); i++) {
        snprintf(text, sizeof(text), "{\"%s\":%s}", rows[i / 2][0], rows[i / 2][1 + i % 2]);
        assert_ok(parse(&g, text));
        assert_string_equal(g.ignored, i % 2 == 0 ? rows[i / 2][0] : "");
    }
}

TEST(test_faults_name_file_and_key)
{
    static const char *const rows[][2] = {
        {"", "generation config"},
        {"[]", "not a JSON object"},
        {"{\"eos_token_id\":\"2\"}", "\"eos_token_id\" must be a token's number"},
        {"{\"eos_token_id\":-1}", "\"eos_token_id\""},
        {"{\"eos_token_id\":[1,2.5]}", "\"eos_token_id\""},
        {"{\"eos_token_id\":3000000000}", "\"eos_token_id\""},
        {"{\"do_sample\":1}", "\"do_sample\" must be true or false"},
        {"{\"temperature\":-1}", "\"temperature\" is -1: it must be from 0 to 1000000"},
        {"{\"temperature\":1e300}", "\"temperature\" is 1e+300"},
        {"{\"temperature\":\"x\"}", "\"temperature\" must be a number"},
        {"{\"top_k\":1.5}", "\"top_k\""},
        {"{\"top_k\":4294967296}", "\"top_k\" is 4.29497e+09: it must be from 0 to 4294967295"},
        {"{\"top_p\":1.5}", "\"top_p\" is 1.5: it must be from 0 to 1"},
        {"{\"repetition_penalty\":0}", "\"repetition_penalty\" is 0: it must be from 1e-06 to 1000000"},
        {"{\"repetition_penalty\":1e-300}", "\"repetition_penalty\" is 1e-300"},
        {"{\"repetition_penalty\":1e300}", "\"repetition_penalty\" is 1e+300"},
    };
    struct st_generation g;
    char many[2048] = "{\"eos_token_id\":[0";

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_refused(parse(&g, rows[i][0]), STRATA_E_INPUT, rows[i][1]);
        assert_non_null(strstr(strata_last_error(), "dir/generation_config.json"));
    }
    for (uint32_t i = 0; i < ST_END_TOKENS_MAX; i++)
        strcat(many, ",1");
    strcat(many, "]}");
    assert_refused(parse(&g, many), STRATA_E_INPUT, "more than 64 tokens");
}

/* generation_config.json alone counts where it is there. */
TEST(test_directories)
{
    static const char model[] = "{\"model_type\":\"llama\",\"eos_token_id\":[5,6],\"temperature\":0.5}";
    struct st_generation g;

    scratch_open();
    assert_refused(st_generation_read(&g, scratch_dir), STRATA_E_INPUT, "config.json: No such file");
    write_file(scratch_path("config.json"), model, strlen(model));
    assert_ok(st_generation_read(&g, scratch_dir));
    assert_int_equal(g.end_count, 2);
    assert_true(g.temperature == 0.5);
    assert_string_equal(g.from, "config.json");
    write_file(scratch_path("generation_config.json"), "{}", 2);
    assert_ok(st_generation_read(&g, scratch_dir));
    assert_int_equal(g.end_count, 0);
    assert_true(g.temperature == 1);
    assert_string_equal(g.from, "generation_config.json");
    write_file(scratch_path("generation_config.json"), "{", 1);
    assert_refused(st_generation_read(&g, scratch_dir), STRATA_E_INPUT, "generation_config.json:1:");
    scratch_close();
}

TEST(test_presets)
{
    struct st_model_config config;
    struct st_generation g;

    assert_ok(st_model_preset(&config, "nano"));
    st_generation_of_preset(&g, &config);
    assert_true(g.sample && g.temperature == 1 && g.top_k == 0 && g.top_p == 1 && g.end_count == 0);
    assert_ok(st_model_preset(&config, "gpt2"));
    st_generation_of_preset(&g, &config);
    assert_int_equal(g.end_count, 1);
    assert_int_equal(g.end_tokens[0], 50256);
}

/* tests/model/test_adapter.c - an adapter's settings: what is refused, by which sentence, and what fits no module. */
#include "model/adapter/adapter.h"
#include "model_fixture.h"
#include "tests/common/heap_use.h"

#include <stdio.h>

static const struct st_adapter_module llama[] = {
    {.path = "model.embed_tokens", .kind = ST_ADAPTER_EMBEDDING},
    {.path = "model.layers.0.self_attn.q_proj", .kind = ST_ADAPTER_LINEAR},
    {.path = "model.layers.0.self_attn.v_proj", .kind = ST_ADAPTER_LINEAR},
    {.path = "model.layers.0.mlp.down_proj", .kind = ST_ADAPTER_LINEAR},
    {.path = "model.layers.0.input_layernorm", .kind = ST_ADAPTER_NORM},
    {.path = "model.layers.1.self_attn.q_proj", .kind = ST_ADAPTER_LINEAR},
    {.path = "model.layers.1.self_attn.v_proj", .kind = ST_ADAPTER_LINEAR},
    {.path = "model.layers.1.mlp.down_proj", .kind = ST_ADAPTER_LINEAR},
    {.path = "model.layers.1.input_layernorm", .kind = ST_ADAPTER_NORM},
    {.path = "model.norm", .kind = ST_ADAPTER_NORM},
    {.path = "lm_head", .kind = ST_ADAPTER_HEAD},
};
#define MODULES (sizeof(llama) / sizeof(llama[0]))

/* Reads and resolves; `modules`: a copy of llama[]. */
static strata_status resolve(const char *text, bool tied, struct st_adapter_module modules[MODULES])
{
    struct st_adapter_spec *spec;
    strata_status st;

    memcpy(modules, llama, sizeof(llama));
    modules[0].tied = modules[MODULES - 1].tied = tied;
    if ((st = st_adapter_spec_parse(&spec, text, strlen(text), "here")) != STRATA_OK)
        return st;
    st = st_adapter_resolve(spec, modules, MODULES, "q_proj v_proj", NULL);
    st_adapter_spec_destroy(spec);
    return st;
}

TEST(test_what_is_refused)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"[]", "here must be an object"},
        {"{\"r\":0}", "here: \"r\" must be a whole number from 1 to 8192"},
        {"{\"r\":8.5}", "\"r\" must be a whole number"},
        {"{\"lora_alpha\":-1}", "\"lora_alpha\" must be a number above 0"},
        {"{\"lora_alpah\":1}", "\"lora_alpah\" is no key of PEFT's LoraConfig that is known here; did you mean \"lora_alpha\"?"},
        {"{\"peft_type\":\"IA3\"}", "\"peft_type\" must be \"LORA\""},
        {"{\"task_type\":\"SEQ_CLS\"}", "\"task_type\" must be \"CAUSAL_LM\" or null"},
        {"{\"bias\":\"all\"}", "\"bias\" must be \"none\""},
        {"{\"use_dora\":true}", "\"use_dora\": DoRA is not supported; leave it out"},
        {"{\"lora_bias\":true}", "\"lora_bias\": a bias of B is not supported"},
        {"{\"layer_replication\":[[0,2],[1,2]]}", "\"layer_replication\": a model whose layers are repeated"},
        {"{\"target_parameters\":[\"a\"]}", "\"target_parameters\": \"a\" fits no stack of experts"},
        {"{\"trainable_token_indices\":[1]}", "\"trainable_token_indices\""},
        {"{\"alora_invocation_tokens\":[1]}", "\"alora_invocation_tokens\": aLoRA"},
        {"{\"megatron_config\":{\"a\":1}}", "\"megatron_config\""},
        {"{\"megatron_config\":\"x\"}", "\"megatron_config\""},
        {"{\"init_lora_weights\":\"pissa\"}", "\"init_lora_weights\" must be true or \"gaussian\""},
        {"{\"init_lora_weights\":false}", "\"init_lora_weights\" must be true or \"gaussian\""},
        {"{\"lora_dropout\":1.5}", "\"lora_dropout\" must be a number from 0 to 1"},
        {"{\"target_modules\":[]}", "\"target_modules\" is an empty list"},
        {"{\"target_modules\":[1]}", "\"target_modules\" must be a list of names"},
        {"{\"target_modules\":[\"\"]}", "\"target_modules\" holds an empty name"},
        {"{\"target_modules\":\"all-linear\",\"layers_to_transform\":[0]}", "\"layers_to_transform\" needs a list of names"},
        {"{\"layers_pattern\":\"layers\"}", "\"layers_pattern\" needs layers_to_transform, too"},
        {"{\"layers_to_transform\":[-1]}", "\"layers_to_transform\" must be a block's number"},
        {"{\"target_modules\":\"(q\"}", "\"target_modules\": the pattern \"(q\": missing closing parenthesis"},
        {"{\"target_modules\":\"a{,3}\"}", "{,m}: write {0,m}"},
        {"{\"target_modules\":\"(*UTF)q_proj\"}", "(*...)"},
        {"{\"target_modules\":\"[[:alpha:]]\"}", "[:, [. or [= in a class"},
        {"{\"target_modules\":\"\\\\Kq\"}", "an escape that is not one of both Python's and PCRE2's"},
        {"{\"rank_pattern\":{\"q_proj\":0}}", "\"rank_pattern\" must be a whole number"},
        {"{\"use_rslora\":1}", "\"use_rslora\" must be true or false"},
        {"{\"target_modules\":{}}", "\"target_modules\" must be a list of names"},
        {"{\"modules_to_save\":7}", "\"modules_to_save\" must be a list of names"},
        {"{\"modules_to_save\":\"lm_head\"}", "\"modules_to_save\" must be a list of names"},
        {"{\"rank_pattern\":[4]}", "\"rank_pattern\" must be an object of patterns and numbers"},
        {"{\"alpha_pattern\":8}", "\"alpha_pattern\" must be an object of patterns and numbers"},
        /* Against the model. */
        {"{\"target_modules\":[\"q_porj\"]}",
         "\"target_modules\": \"q_porj\" fits no module of the model; its modules end in q_proj,"},
        {"{\"target_modules\":[\"q_proj\",\"proj\"]}", "\"proj\" fits no module"},
        {"{\"exclude_modules\":[\"v\"]}", "\"exclude_modules\": \"v\" fits no module"},
        {"{\"modules_to_save\":[\"classifier\"]}", "\"modules_to_save\": \"classifier\" fits no module"},
        {"{\"modules_to_save\":[\"embed_token\"]}", "\"modules_to_save\": \"embed_token\" fits no module"},
        {"{\"modules_to_save\":[\"layers.\"]}", "\"modules_to_save\": \"layers.\" fits no module"},
        /* What fits in one list does not in another. */
        {"{\"target_modules\":[\"q_proj\"],\"exclude_modules\":[\"k\"]}", "\"exclude_modules\": \"k\" fits no module"},
        {"{\"target_modules\":[\"q_proj\",\"v_proj\"],\"exclude_modules\":[\"v_proj\"],\"modules_to_save\":[\"k\"]}",
         "\"modules_to_save\": \"k\" fits no module"},
        {"{\"modules_to_save\":[\"lm_head\"],\"rank_pattern\":{\"k\":4}}", "\"rank_pattern\": \"k\" fits no module"},
        {"{\"rank_pattern\":{\"q_proj\":4},\"alpha_pattern\":{\"k\":4}}", "\"alpha_pattern\": \"k\" fits no module"},
        {"{\"target_modules\":[\"q_proj\"],\"layers_to_transform\":[2]}", "\"layers_to_transform\" names block 2, in which"},
        {"{\"rank_pattern\":{\"down_proj\":4}}",
         "\"rank_pattern\": \"down_proj\" fits no module of the model that has an adapter"},
        {"{\"alpha_pattern\":{\"down_proj\":4}}", "\"alpha_pattern\": \"down_proj\" fits no module of the model that has an"},
        {"{\"target_modules\":\".*(q_proj|layernorm)\"}",
         "fits model.layers.0.input_layernorm, which is a norm: only linear layers of"},
        {"{\"target_modules\":[\"embed_tokens\"]}", "fits model.embed_tokens, which is an embedding"},
        {"{\"target_modules\":[\"q_proj\",\"lm_head\"]}", "fits lm_head, which is the head"},
        {"{\"target_modules\":[\"q_proj\"],\"layers_to_transform\":[1,2]}", "\"layers_to_transform\" names block 2, in which"},
        {"{\"target_modules\":[\"model.layers.0.self_attn.q_proj\"],\"layers_to_transform\":[1,99]}",
         "\"layers_to_transform\" names block 99, in which"},
        {"{\"exclude_modules\":\".*proj\"}", "\"target_modules\" leaves no module that has an adapter"},
        {"{\"modules_to_save\":[\"layers\"]}", "\"target_modules\" leaves no module that has an adapter"},
        {"{\"target_modules\":\"((a*)*)*b|(.*)*.*(.*)*[0-9]x\"}", "gave up on model.embed_tokens: match limit"},
    };
    struct st_adapter_module modules[MODULES];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(resolve(rows[i].text, false, modules), STRATA_E_CONFIG);
        if (strstr(strata_last_error(), rows[i].says) == NULL)
            fail_msg("%s\nis answered: %s", rows[i].text, strata_last_error());
    }
}

/* {"KEY":[VALUE,VALUE,...]}, or {"KEY":{"VALUE0":1,...}}: freed by the caller. */
static char *repeated(const char *key, const char *value, uint32_t count, bool object)
{
    char *text = malloc(64 + count * (strlen(value) + 16)), *to = text;

    assert_non_null(text);
    to += sprintf(to, "{\"%s\":%c", key, object ? '{' : '[');
    for (uint32_t i = 0; i < count; i++)
        to += object ? sprintf(to, "%s\"%s%u\":1", i > 0 ? "," : "", value, i) : sprintf(to, "%s%s", i > 0 ? "," : "", value);
    sprintf(to, "%c}", object ? '}' : ']');
    return text;
}

/* The most that a list may hold is taken; one more is not. */
TEST(test_lists_are_limited)
{
    static const struct {
        const char *key, *value;
        bool object;
        const char *says;
    } rows[] = {
        {"target_modules", "\"q_proj\"", false, "\"target_modules\" holds more than 4096 names"},
        {"modules_to_save", "\"norm\"", false, "\"modules_to_save\" holds more than 4096 names"},
        {"rank_pattern", "q", true, "\"rank_pattern\" holds more than 4096 names"},
        {"layers_to_transform", "1", false, "\"layers_to_transform\" holds more than 4096 numbers"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (uint32_t count = 4096; count < 4098; count++) {
            char *text = repeated(rows[i].key, rows[i].value, count, rows[i].object);
            struct st_adapter_spec *spec = NULL;
            const strata_status st = st_adapter_spec_parse(&spec, text, strlen(text), "here");

            assert_int_equal(st, count == 4096 ? STRATA_OK : STRATA_E_CONFIG);
            if (st != STRATA_OK && strstr(strata_last_error(), rows[i].says) == NULL)
                fail_msg("%s: %s", rows[i].key, strata_last_error());
            if (st == STRATA_OK)
                st_adapter_spec_destroy(spec);
            free(text);
        }
}

TEST(test_patterns_are_limited)
{
    char text[9000];
    struct st_adapter_module modules[MODULES];

    for (uint32_t bytes = 4096; bytes < 4098; bytes++) {
        char *to = text + sprintf(text, "{\"target_modules\":\".*q_proj|");

        memset(to, 'x', bytes - strlen(".*q_proj|"));
        strcpy(to + bytes - strlen(".*q_proj|"), "\"}");
        if (bytes == 4096)
            assert_ok(resolve(text, false, modules));
        else
            assert_refused(resolve(text, false, modules), STRATA_E_CONFIG,
                           "\"target_modules\": a pattern of 4097 bytes; the most are 4096");
    }
}

/* layers_pattern: whatever groups it has itself, the number is the block's. */
TEST(test_layers_patterns_may_have_groups)
{
    static const char *const patterns[] = {"\"layers\"",         "[\"h\",\"layers\"]",    "\"(layers)\"",
                                           "\"((h)|(layers))\"", "\"(h|(lay)(er(s)?))\"", "\"(model\\\\.)?layers\"",
                                           "\"(?:h|layers)\"",   "\"(?P<name>layers)\"",  "[\"(h)\",\"(lay)ers\"]"};
    struct st_adapter_module modules[MODULES];
    char text[256];

    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++)
        for (uint32_t block = 0; block < 2; block++) {
            snprintf(text, sizeof(text), "{\"target_modules\":[\"q_proj\"],\"layers_to_transform\":[%u],\"layers_pattern\":%s}",
                     block, patterns[i]);
            assert_ok(resolve(text, false, modules));
            for (uint32_t m = 0; m < MODULES; m++)
                if ((modules[m].r > 0) != (m == 1 + 4 * block))
                    fail_msg("%s: %s has rank %u", text, modules[m].path, modules[m].r);
        }
}

/* Letters whose escapes Python does not know, or means otherwise than PCRE2. */
TEST(test_escapes_of_one_language_are_refused)
{
    static const char letters[] = "CEGHKLNPQRUVXghkopuv", both[] = "ABDSWbdsw";
    struct st_adapter_module modules[MODULES];
    char text[64];

    for (size_t i = 0; letters[i] != '\0'; i++) {
        snprintf(text, sizeof(text), "{\"target_modules\":\".*\\\\%cq_proj\"}", letters[i]);
        assert_int_equal(resolve(text, false, modules), STRATA_E_CONFIG);
        if (strstr(strata_last_error(), "an escape that is not one of both") == NULL)
            fail_msg("%s\nis answered: %s", text, strata_last_error());
    }
    for (size_t i = 0; both[i] != '\0'; i++) {
        snprintf(text, sizeof(text), "{\"target_modules\":\".*q_proj|\\\\%c\"}", both[i]);
        assert_ok(resolve(text, false, modules));
    }
}

/* A name in modules_to_save is the end of a module's, and stands for all that is inside the module. */
TEST(test_what_is_saved_whole)
{
    static const struct {
        const char *name;
        uint32_t first, last; /* modules that are saved */
    } rows[] = {{"norm", 4, 9}, {"model.norm", 9, 9}, {"tokens", 0, 0}, {"1", 5, 8}, {"s.0.mlp", 3, 3}, {"lm_head", 10, 10}};
    struct st_adapter_module modules[MODULES];
    char text[64];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        snprintf(text, sizeof(text), "{\"modules_to_save\":[\"%s\"]}", rows[i].name);
        assert_ok(resolve(text, false, modules));
        for (uint32_t m = 0; m < MODULES; m++) {
            const bool wanted = m >= rows[i].first && m <= rows[i].last && (i > 0 || llama[m].kind == ST_ADAPTER_NORM);

            if (modules[m].saved != wanted)
                fail_msg("%s: %s is saved: %d", text, modules[m].path, modules[m].saved);
        }
    }
}

TEST(test_tied_table_is_not_saved)
{
    struct st_adapter_module modules[MODULES];

    assert_ok(resolve("{\"modules_to_save\":[\"embed_tokens\",\"lm_head\"]}", false, modules));
    assert_true(modules[0].saved && modules[MODULES - 1].saved);
    assert_int_equal(resolve("{\"modules_to_save\":[\"lm_head\"]}", true, modules), STRATA_E_CONFIG);
    assert_string_equal(strata_last_error(), "here: \"modules_to_save\" fits lm_head, which shares its matrix with the table of "
                                             "tokens and cannot be trained beside adapters: leave it out");
    assert_int_equal(resolve("{\"modules_to_save\":[\"embed_tokens\"]}", true, modules), STRATA_E_CONFIG);
}

/* What PEFT writes although it is off, known or from another version, says nothing. */
TEST(test_what_is_off_is_not_there)
{
    struct st_adapter_module modules[MODULES];

    assert_ok(resolve("{\"use_dora\":false,\"megatron_config\":null,\"a_new_variant\":null,\"another\":false,\"more\":{},"
                      "\"peft_type\":\"LORA\",\"task_type\":null,\"target_modules\":null,\"r\":null,\"loftq_config\":{\"a\":1},"
                      "\"fan_in_fan_out\":true,\"megatron_core\":\"megatron.core\",\"lora_dropout\":0.05}",
                      false, modules));
    assert_int_equal(modules[1].r, 8);
    assert_true(modules[1].scale == 1.0f);
    assert_int_equal(modules[3].r, 0);
}

TEST(test_spec_says_how_it_begins)
{
    static const char text[] = "{\"init_lora_weights\":\"gaussian\",\"lora_dropout\":0.25,\"r\":4}";
    struct st_adapter_spec *spec;

    assert_ok(st_adapter_spec_parse(&spec, text, strlen(text), "here"));
    assert_int_equal(st_adapter_spec_init(spec), ST_ADAPTER_INIT_GAUSSIAN);
    assert_true(st_adapter_spec_dropout(spec) == 0.25);
    assert_true(st_json_number(st_json_get(st_adapter_spec_object(spec), "r")) == 4);
    st_adapter_spec_destroy(spec);
}

/* Names, patterns and layers, as they are taken and as they are refused halfway. */
static void resolve_all(void *ctx)
{
    static const char *const texts[] = {
        "{\"target_modules\":\".*_proj\",\"rank_pattern\":{\"q_proj\":4},\"alpha_pattern\":{\"v_.*\":2}}",
        "{\"target_modules\":[\"q_proj\"],\"layers_to_transform\":[1],\"layers_pattern\":\"layers\"}",
        "{\"rank_pattern\":{\"q_proj\":4},\"target_modules\":\"(q\"}",
    };
    struct st_adapter_module modules[MODULES];

    (void)ctx;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        assert_int_equal(resolve(texts[i], false, modules) == STRATA_OK, i < 2);
}

/* The library that compiles patterns takes memory of its own. */
TEST(test_specs_that_are_destroyed_take_no_memory)
{
    enum { TIMES = 64 };

    assert_true(heap_growth(resolve_all, NULL, TIMES) < TIMES * 64);
}

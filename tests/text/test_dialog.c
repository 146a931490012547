/* tests/text/test_dialog.c - conversations as ids and masks: those of transformers (dialogs_golden.json, by
 * tools/make_golden_dialogs.py), where a template is found, and how a date is written. */
#include "core/json/json.h"
#include "text/data/dialog/dialog.h"
#include "tests/text/text_fixture.h"
#include "tests/common/whole_file.h"

#include <sys/stat.h>

#define TOKENIZERS "tests/golden/tokenizers"

/* The scratch directory becomes a model's, with a copy of a small tokenizer. */
static void begin(const char *shape)
{
    char path[160], *text;

    scratch_open();
    snprintf(path, sizeof(path), TOKENIZERS "/%s.json", shape);
    text = read_file(path, NULL);
    scratch_put("tokenizer.json", text);
    free(text);
}

static void fnv1a(uint64_t *value, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        *value = (*value ^ ((const unsigned char *)data)[i]) * 0x100000001b3;
}

static void check_conversation(struct st_dialog *d, struct st_dialog_ids *out, const st_json *messages, const char *want)
{
    uint64_t value = 0xcbf29ce484222325;
    char hash[17];

    assert_ok(st_dialog_encode(d, messages, NULL, false, out));
    fnv1a(&value, out->encoding.ids, out->encoding.count * sizeof(out->encoding.ids[0]));
    fnv1a(&value, out->trained, out->encoding.count);
    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)value);
    if (strcmp(hash, want) != 0)
        fail_msg("%s, \"%.60s\": ids or mask are not the reference's", st_dialog_template_name(d),
                 st_json_string(st_json_get(st_json_first(messages), "content")));
}

static void quote(char *out, size_t bytes, const st_json *text)
{
    if (st_json_type(text) == ST_JSON_STRING)
        snprintf(out, bytes, "\"%s\"", st_json_string(text));
    else
        snprintf(out, bytes, "null");
}

static void check_case(const st_json *c, const st_json *talks)
{
    const char *template = st_json_string(st_json_get(c, "template"));
    const st_json *talk = st_json_first(talks);
    char config[256], bos[64], eos[64];
    struct st_dialog_ids out = {0};
    struct st_dialog_opts opts = {.template = template};
    struct st_tokenizer *t;
    struct st_dialog *d;

    begin(st_json_string(st_json_get(c, "tokenizer")));
    quote(bos, sizeof(bos), st_json_get(c, "bos_token"));
    quote(eos, sizeof(eos), st_json_get(c, "eos_token"));
    snprintf(config, sizeof(config), "{\"bos_token\": %s, \"eos_token\": %s}", bos, eos);
    scratch_put("tokenizer_config.json", config);
    if (strchr(template, '{') != NULL) {
        scratch_put("chat_template.jinja", template);
        opts.template = NULL;
    }
    assert_ok(st_tokenizer_open(&t, scratch_dir));
    assert_ok(st_dialog_open(&d, t, &opts));
    for (const st_json *want = st_json_first(st_json_get(c, "hashes")); want != NULL; want = st_json_next(want)) {
        check_conversation(d, &out, talk, st_json_string(want));
        talk = st_json_next(talk);
    }
    assert_null(talk);
    st_dialog_ids_free(&out);
    st_dialog_close(d);
    st_tokenizer_close(t);
    scratch_close();
}

TEST(test_masks_are_the_references)
{
    st_json *golden;

    assert_ok(st_json_parse_file(&golden, "tests/text/dialogs_golden.json", 1u << 20));
    for (const st_json *c = st_json_first(st_json_get(golden, "cases")); c != NULL; c = st_json_next(c))
        check_case(c, st_json_get(golden, "conversations"));
    st_json_free(golden);
}

/* Which answers a tokenizer can end, and the template of the directory. */
static void encode_one(struct st_dialog_ids *out, const char *template, const char *messages, bool prompt)
{
    const struct st_dialog_opts opts = {.template = template};
    struct st_tokenizer *t;
    struct st_dialog *d;
    st_json *root;

    assert_ok(st_json_parse(&root, messages, strlen(messages), "messages"));
    assert_ok(st_tokenizer_open(&t, scratch_dir));
    assert_ok(st_dialog_open(&d, t, &opts));
    assert_ok(st_dialog_encode(d, root, NULL, prompt, out));
    st_dialog_close(d);
    st_tokenizer_close(t);
    st_json_free(root);
}

static uint32_t count_trained(const struct st_dialog_ids *out)
{
    uint32_t count = 0;

    for (size_t i = 0; i < out->encoding.count; i++)
        count += out->trained[i];
    return count;
}

#define TALK                                                                                                                     \
    "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},"                                         \
    "{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\",\"content\":\"d\"}]"

TEST(test_answers_without_an_end_are_counted)
{
    struct st_dialog_ids out = {0};

    begin("gpt2"); /* has no <|im_end|> */
    encode_one(&out, "chatml", TALK, false);
    assert_int_equal(out.counts.answers, 2);
    assert_int_equal(out.counts.unended, 2);
    assert_int_equal(count_trained(&out), 2);
    scratch_close();
    begin("qwen2");
    encode_one(&out, "chatml", TALK, false);
    assert_int_equal(out.counts.answers, 2);
    assert_int_equal(out.counts.unended, 0);
    assert_int_equal(count_trained(&out), 4);
    encode_one(&out, "chatml", "[{\"role\":\"user\",\"content\":\"a\"}]", true); /* nothing is answered yet */
    assert_int_equal(out.counts.answers, 0);
    assert_int_equal(count_trained(&out), 0);
    scratch_close();
    st_dialog_ids_free(&out);
}

/* What the template writes between reasoning and answer is no end. */
TEST(test_reasoning_goes_on)
{
    static const char talk[] =
        "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\",\"reasoning_content\":"
        "\"r\"},{\"role\":\"assistant\",\"content\":\"c\"}]";
    struct st_dialog_ids out = {0};

    begin("qwen2");
    scratch_put("chat_template.jinja",
                "{% for m in messages %}{% if m.reasoning_content %}(({{ m.reasoning_content }})){% endif %}"
                "{{ m.content }}<|im_end|>{% endfor %}");
    encode_one(&out, NULL, talk, false);
    assert_int_equal(out.counts.unended, 0);
    scratch_put("chat_template.jinja",
                "{% for m in messages %}{% if m.reasoning_content %}(({{ m.reasoning_content }})){% endif %}"
                "{{ m.content }}{% endfor %}.");
    encode_one(&out, NULL, talk, false);
    assert_int_equal(out.counts.unended, 2);
    st_dialog_ids_free(&out);
    scratch_close();
}

/* What is written of "tool_calls" is trained. */
TEST(test_calls_that_are_not_written_are_counted)
{
    static const char talk[] = "[{\"role\":\"assistant\",\"content\":\"b\",\"tool_calls\":[{\"name\":\"f\"}]},"
                               "{\"role\":\"assistant\",\"content\":\"c\",\"tool_calls\":[]},"
                               "{\"role\":\"assistant\",\"content\":\"d\",\"tool_calls\":null},"
                               "{\"role\":\"assistant\",\"content\":\"e\",\"tool_calls\":[{\"name\":\"f\"}],\"loss\":false},"
                               "{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\"}]}]";
    static const struct {
        const char *template;
        uint32_t calls, unwritten, trained;
    } cases[] = {
        {"{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}", 2, 1, 6},
        {"{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.name }}{% endfor %}<|im_end|>{% endfor %}", 0, 0,
         9},
        {"{% for m in messages %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}.{% endfor %}", 2, 1, 7}};

    begin("qwen2");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct st_dialog_ids out = {0};

        scratch_put("chat_template.jinja", cases[i].template);
        encode_one(&out, NULL, talk, false);
        assert_int_equal(out.counts.calls, cases[i].calls);
        assert_int_equal(out.counts.unwritten, cases[i].unwritten);
        assert_int_equal(count_trained(&out), cases[i].trained);
        st_dialog_ids_free(&out);
    }
    scratch_close();
}

static void check_tools(const char *template, const char *variables, bool toolless)
{
    static const char talk[] = "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]";
    struct st_dialog_ids out = {0};
    struct st_tokenizer *t;
    struct st_dialog *d;
    st_json *messages, *v;

    assert_ok(st_json_parse(&messages, talk, strlen(talk), "talk"));
    assert_ok(st_json_parse(&v, variables, strlen(variables), "variables"));
    assert_ok(st_tokenizer_open(&t, scratch_dir));
    assert_ok(st_dialog_open(&d, t, &(struct st_dialog_opts){.template = template}));
    assert_ok(st_dialog_encode(d, messages, v, false, &out));
    assert_int_equal(out.toolless, toolless);
    st_dialog_ids_free(&out);
    st_dialog_close(d);
    st_tokenizer_close(t);
    st_json_free(messages);
    st_json_free(v);
}

TEST(test_tools_that_are_not_written_are_told)
{
    begin("qwen2");
    scratch_put("chat_template.jinja", "{{ tools[0].name }}{{ messages[1].content }}<|im_end|>");
    check_tools("qwen", "{\"tools\":[{\"name\":\"f\"}]}", true);
    check_tools("qwen", "{\"tools\":null}", false);
    check_tools("qwen", "{}", false);
    check_tools(NULL, "{\"tools\":[{\"name\":\"f\"}]}", false);
    scratch_close();
}

/* Behind a special token Llama's tokenizer puts a space in front of the text, which is no byte of it: inside an answer that token
 * is the answer's, as in transformers' mask. */
TEST(test_tokens_of_no_byte_are_of_the_answer_around_them)
{
    static const char talk[] =
        "[{\"role\":\"user\",\"content\":\"a</s>\\nb\"},{\"role\":\"assistant\",\"content\":\"c</s>\\nd\"}]";
    static const char *const templates[] = {
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ '[assistant]' if add_generation_prompt }}",
        "{% for m in messages %}[{{ m.role }}]{% if m.role == 'user' %}{{ m.content }}{% else %}{% generation %}{{ m.content }}"
        "{% endgeneration %}{% endif %}{% endfor %}"};

    for (size_t i = 0; i < sizeof(templates) / sizeof(templates[0]); i++) {
        struct st_dialog_ids out = {0};
        size_t last;

        begin("llama2");
        scratch_put("chat_template.jinja", templates[i]);
        encode_one(&out, NULL, talk, false);
        last = out.encoding.count - 1;
        assert_int_equal(out.encoding.begins[last - 2], out.encoding.ends[last - 2]); /* c </s> _ \n d */
        assert_int_equal(count_trained(&out), 5);
        for (size_t k = last - 4; k <= last; k++)
            assert_int_equal(out.trained[k], 1);
        assert_int_equal(out.counts.answers, 1);
        assert_int_equal(out.counts.unended, 1);
        st_dialog_ids_free(&out);
        scratch_close();
    }
}

/* At its beginning, too: a model that has been given what stands before has to write it. */
TEST(test_tokens_of_no_byte_before_the_answer_are_its)
{
    static const char talk[] = "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"\\nb\"}]";
    struct st_dialog_ids out = {0};
    size_t last;

    begin("llama2");
    scratch_put("chat_template.jinja", "{{ messages[0].content }}</s>{{ messages[1].content }}");
    encode_one(&out, NULL, talk, false);
    last = out.encoding.count - 1;
    assert_int_equal(out.encoding.begins[last - 2], out.encoding.ends[last - 2]); /* a </s> _ \n b */
    assert_int_equal(count_trained(&out), 3);
    assert_true(out.trained[last] == 1 && out.trained[last - 1] == 1 && out.trained[last - 2] == 1);
    st_dialog_ids_free(&out);
    scratch_close();
}

static void expect_open(const char *template, strata_status want, const char *name)
{
    const struct st_dialog_opts opts = {.template = template};
    struct st_tokenizer *t;
    struct st_dialog *d;

    assert_ok(st_tokenizer_open(&t, scratch_dir));
    assert_int_equal(st_dialog_open(&d, t, &opts), want);
    if (want == STRATA_OK) {
        assert_non_null(strstr(st_dialog_template_name(d), name));
        st_dialog_close(d);
    } else {
        assert_non_null(strstr(strata_last_error(), name));
    }
    st_tokenizer_close(t);
}

TEST(test_the_directory_says_which_template)
{

    begin("qwen2");
    expect_open(NULL, STRATA_E_INPUT, "chatml");
    expect_open("chatmL", STRATA_E_INPUT, "chatmL");
    expect_open("llama3", STRATA_OK, "built-in llama3");
    scratch_put("tokenizer_config.json", "{\"chat_template\": 3}");
    expect_open(NULL, STRATA_E_INPUT, "chat_template: neither a text nor a list");
    scratch_put("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"x\"}]}");
    expect_open(NULL, STRATA_E_INPUT, "\"default\"");
    scratch_put("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"default\"}]}");
    expect_open(NULL, STRATA_E_INPUT, "needs a name and a template");
    scratch_put("tokenizer_config.json", "{\"chat_template\": \"{% if %}\"}");
    expect_open(NULL, STRATA_E_CONFIG, "tokenizer_config.json");
    scratch_put("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"default\", \"template\": \"x\"}]}");
    expect_open(NULL, STRATA_OK, "tokenizer_config.json");
    scratch_put("chat_template.jinja", "y");
    expect_open(NULL, STRATA_OK, "chat_template.jinja");
    write_file(scratch_path("chat_template.jinja"), "y\0z", 3);
    expect_open(NULL, STRATA_E_INPUT, "a zero byte");
    expect_open(scratch_path("tokenizer_config.json"), STRATA_OK, "tokenizer_config.json"); /* any file is a template */
    scratch_close();
}

static void expect_ids(const struct st_dialog_ids *out, const char *text, size_t begins)
{
    assert_int_equal(out->encoding.ids[0] == 1, begins > 0);
    assert_int_equal(out->encoding.ends[out->encoding.count - 1], begins + strlen(text));
}

/* A built-in template takes what begins and ends a text from the model's files where no file of the tokenizer names it. */
TEST(test_builtins_do_without_named_tokens)
{
    static const char one[] = "[{\"role\":\"user\",\"content\":\"a\"}]";
    struct st_dialog_ids named = {0}, out = {0};

    begin("llama2");
    encode_one(&out, "llama2", one, true);
    expect_ids(&out, "[INST] a [/INST]", 0);
    scratch_put("config.json", "{\"bos_token_id\": 1, \"eos_token_id\": [2, 0]}");
    encode_one(&out, "llama2", one, true);
    expect_ids(&out, "[INST] a [/INST]", strlen("<s>"));
    encode_one(&out, "llama2", TALK, false);
    scratch_put("tokenizer_config.json", "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}");
    encode_one(&named, "llama2", TALK, false);
    assert_int_equal(out.encoding.count, named.encoding.count);
    assert_memory_equal(out.encoding.ids, named.encoding.ids, named.encoding.count * sizeof(uint32_t));
    assert_memory_equal(out.trained, named.trained, named.encoding.count);
    scratch_put("tokenizer_config.json", "{}");
    scratch_put("generation_config.json", "{\"bos_token_id\": 2}");
    encode_one(&out, "gemma", one, false);
    assert_int_equal(out.encoding.ids[0], 2);
    scratch_put("generation_config.json", "{\"bos_token_id\": 3}"); /* no special token */
    encode_one(&out, "gemma", one, false);
    assert_int_equal(out.encoding.ids[0], 1);
    scratch_put("chat_template.jinja", "{{ bos_token is defined }}"); /* a directory's own says it itself, as in transformers */
    encode_one(&out, NULL, one, false);
    assert_int_equal(out.encoding.ends[out.encoding.count - 1], strlen("False"));
    st_dialog_ids_free(&named);
    st_dialog_ids_free(&out);
    scratch_close();
}

/* Of a directory whose usual template is "x", and whose template for tools "{{ strftime_now('%d') }}{{ tools[0].name }}" */
static void check_both_templates(void)
{
    static const char messages[] = "[{\"role\":\"user\",\"content\":\"a\"}]", tools[] = "{\"tools\": [{\"name\": \"f\"}]}";
    const struct st_dialog_opts opts = {.date = {2026, 2, 3}};
    struct st_dialog_ids usual = {0}, with_tools = {0};
    struct st_tokenizer *t;
    st_json *talk, *variables;
    struct st_dialog *d;

    assert_ok(st_json_parse(&talk, messages, strlen(messages), "messages"));
    assert_ok(st_json_parse(&variables, tools, strlen(tools), "tools"));
    assert_ok(st_tokenizer_open(&t, scratch_dir));
    assert_ok(st_dialog_open(&d, t, &opts));
    assert_true(st_dialog_uses_date(d));
    assert_ok(st_dialog_encode(d, talk, NULL, false, &usual));
    assert_ok(st_dialog_encode(d, talk, variables, false, &with_tools));
    assert_int_equal(usual.encoding.count, 1);
    assert_int_equal(with_tools.encoding.ends[with_tools.encoding.count - 1], 3); /* "03f" */
    st_dialog_ids_free(&usual);
    st_dialog_ids_free(&with_tools);
    st_dialog_close(d);
    st_tokenizer_close(t);
    st_json_free(talk);
    st_json_free(variables);
}

TEST(test_tools_choose_the_template_for_them)
{
    begin("qwen2");
    scratch_put("tokenizer_config.json",
                "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"{{ strftime_now('%d') }}{{ tools[0].name }}\"},"
                "{\"name\": \"default\", \"template\": \"x\"}]}");
    check_both_templates();
    scratch_close();
    begin("qwen2"); /* as transformers saves them */
    scratch_put("chat_template.jinja", "x");
    assert_int_equal(mkdir(scratch_path("additional_chat_templates"), 0700), 0);
    scratch_put(ST_DIALOG_TOOLS_NAME, "{{ strftime_now('%d') }}{{ tools[0].name }}");
    check_both_templates();
    write_file(scratch_path(ST_DIALOG_TOOLS_NAME), "y\0z", 3);
    expect_open(NULL, STRATA_E_INPUT, "tool_use.jinja: a zero byte");
    expect_open("chatml", STRATA_OK, "built-in chatml");
    scratch_close();
}

TEST(test_dates)
{
    static const char *const wrong[] = {"2026-2-03",  "2026-02-30", "2025-02-29", "1900-02-29", "2100-02-29",
                                        "2026-04-31", "2026-13-01", "2026-00-01", "0000-01-01", "2026-01-00",
                                        "26-01-01",   "2026/01/01", "2026-01-1 ", "----------", ""};
    static const char *const right[] = {"2000-02-29", "2400-02-29", "0001-01-01", "2024-12-31", "2026-04-30", "9999-07-31"};
    struct st_date d;
    char text[64];

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_false(st_date_parse(&d, wrong[i]));
    for (uint32_t i = 0; i < sizeof(right) / sizeof(right[0]); i++) {
        assert_true(st_date_parse(&d, right[i]));
        snprintf(text, sizeof(text), "%04d-%02d-%02d", d.year, d.month, d.day);
        assert_string_equal(text, right[i]);
    }
    assert_true(st_date_parse(&d, "2024-02-29"));
    assert_int_equal(d.year * 10000 + d.month * 100 + d.day, 20240229);
    d = st_date_today();
    assert_true(d.year > 2000 && d.month >= 1 && d.month <= 12 && d.day >= 1 && d.day <= 31);
}

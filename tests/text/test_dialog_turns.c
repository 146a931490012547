/* tests/text/test_dialog_turns.c - what of an answer is trained: all that a model has to write, whatever a template writes
 * before, between and after.  The templates here are small ones that do what published ones do. */
#include "core/json/json.h"
#include "text/data/dialog/dialog.h"
#include "tests/text/text_fixture.h"
#include "tests/common/fault_walk.h"
#include "tests/common/whole_file.h"

/* The scratch directory has a small tokenizer: <|im_start|>, <|im_end|> and <|endoftext|> are special, the second ends a text. */
static int begin(void **state)
{
    char *text = read_file("tests/golden/tokenizers/qwen2.json", NULL);

    (void)state;
    scratch_open();
    scratch_put("tokenizer.json", text);
    scratch_put("tokenizer_config.json", "{\"eos_token\": \"<|im_end|>\"}");
    free(text);
    return 0;
}

static int end(void **state)
{
    (void)state;
    scratch_close();
    return 0;
}

static void refuse(const char *kwargs, const char *sentence)
{
    struct st_tokenizer *t;
    struct st_dialog *d;

    assert_ok(st_tokenizer_open(&t, scratch_dir));
    assert_int_equal(st_dialog_open(&d, t, &(struct st_dialog_opts){.kwargs = kwargs}), STRATA_E_INVAL);
    assert_non_null(strstr(strata_last_error(), sentence));
    st_tokenizer_close(t);
}

static struct st_dialog_counts encode(char *trained, size_t room, const char *template, const char *messages, const char *kwargs)
{
    struct st_dialog_ids out = {0};
    struct st_dialog_counts counts;
    struct st_decoded decoded = {0};
    struct st_tokenizer *t;
    struct st_dialog *d;
    st_json *root;
    size_t fill = 0;

    scratch_put("chat_template.jinja", template);
    assert_ok(st_json_parse(&root, messages, strlen(messages), "messages"));
    assert_ok(st_tokenizer_open(&t, scratch_dir));
    assert_ok(st_dialog_open(&d, t, &(struct st_dialog_opts){.kwargs = kwargs}));
    assert_ok(st_dialog_encode(d, root, NULL, false, &out));
    for (size_t i = 0; i < out.encoding.count; i++) {
        if (out.trained[i] == 0) {
            fill = fill > 0 && trained[fill - 1] != '|' ? fill + (size_t)snprintf(trained + fill, room - fill, "|") : fill;
            continue;
        }
        decoded.count = 0;
        assert_ok(st_decode(t, &out.encoding.ids[i], 1, false, &decoded));
        fill += (size_t)snprintf(trained + fill, room - fill, "%.*s", (int)decoded.count, decoded.bytes);
        assert_true(fill < room);
    }
    trained[fill] = '\0';
    counts = out.counts;
    st_decoded_free(&decoded);
    st_dialog_ids_free(&out);
    st_dialog_close(d);
    st_tokenizer_close(t);
    st_json_free(root);
    return counts;
}

/* The trained text, runs of it ended by "|". */
static struct st_dialog_counts assert_trained(const char *template, const char *messages, const char *want)
{
    char trained[1024] = "";
    const struct st_dialog_counts counts = encode(trained, sizeof(trained), template, messages, NULL);

    assert_string_equal(trained, want);
    return counts;
}

#define USER(text)            "{\"role\":\"user\",\"content\":\"" text "\"}"
#define ANSWER(members)       "{\"role\":\"assistant\"," members "}"
#define CALL                  "\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":\"w\",\"arguments\":{\"c\":\"O\",\"n\":1}}}]"
#define RESULT                "{\"role\":\"tool\",\"content\":\"12\"}"
#define ASK                   "{{ '<|im_start|>assistant\n' if add_generation_prompt }}"
#define ROUND(before, inside) "{% for m in messages %}" before "<|im_start|>{{ m.role }}\n" inside "<|im_end|>\n{% endfor %}"

/* Qwen3's way: thoughts of history are left out, an answer without any gets an empty block. */
#define THINKS                                                                                                                   \
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}" \
    "{% endfor %}" ROUND("", "{% if m.role == 'assistant' and loop.index0 > ns.last %}<think>\n{{ m.reasoning_content }}\n"      \
                             "</think>\n\n{% endif %}{{ m.content }}"                                                            \
                             "{% for c in m.tool_calls %}<tool_call>{{ c.function.name }}: {{ c.function.arguments | tojson }}"  \
                             "</tool_call>{% endfor %}") ASK

TEST_SETUP(thoughts_and_calls_are_trained, begin, end)
{
    struct st_dialog_counts c;

    c = assert_trained(THINKS, "[" USER("a") "," ANSWER("\"content\":\"b\",\"reasoning\":\"r\"") "]",
                       "<think>\nr\n</think>\n\nb<|im_end|>|");
    assert_int_equal(c.thoughtless + c.guessed + c.unended, 0);
    (void)assert_trained(THINKS, "[" USER("a") "," ANSWER("\"content\":\"b\"") "]", "<think>\n\n</think>\n\nb<|im_end|>|");
    c = assert_trained(THINKS,
                       "[" USER("a") "," ANSWER("\"content\":\"b\",\"thinking\":\"r\"") "," USER("c") "," ANSWER(
                           "\"content\":\"d\",\"thinking\":\"s\"") "]",
                       "b<|im_end|>|<think>\ns\n</think>\n\nd<|im_end|>|");
    assert_int_equal(c.thoughtless, 1);
    assert_int_equal(c.answers, 2);
    c = assert_trained(
        THINKS,
        "[" USER("a") "," ANSWER(CALL ",\"reasoning_content\":\"r\"") "," RESULT "," ANSWER("\"content\":\"b\"") "," USER(
            "c") "," ANSWER("\"content\":\"d\"") "]",
        "<tool_call>w: {\"c\": \"O\", \"n\": 1}</tool_call><|im_end|>|b<|im_end|>|<think>\n\n</think>\n\nd<|im_end|>|");
    assert_int_equal(c.thoughtless, 1);
    assert_int_equal(c.calls + c.guessed, 0);
}

/* GLM's: thoughts that are left out leave an empty block, which is not trained; a turn ends where the next one begins. */
TEST_SETUP(empty_blocks_in_place_of_thoughts_are_not_trained, begin, end)
{
    static const char template[] =
        "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>{{ m.content }}{% else %}<|endoftext|>\n"
        "<think>{{ m.reasoning_content if loop.last }}</think>\n{{ m.content }}{% endif %}{% endfor %}"
        "{{ '<|endoftext|>' if add_generation_prompt }}";
    struct st_dialog_counts c;

    scratch_put("generation_config.json", "{\"eos_token_id\": [421]}"); /* <|im_start|> */
    c = assert_trained(template,
                       "[" USER("a") "," ANSWER("\"content\":\"b\",\"thinking\":\"r\"") "," USER("c") "," ANSWER(
                           "\"content\":\"d\",\"thinking\":\"s\"") "]",
                       "b<|im_start|>|\n<think>s</think>\nd");
    assert_int_equal(c.thoughtless, 1);
    assert_int_equal(c.unended, 1);
    (void)assert_trained(template,
                         "[" USER("a") "," ANSWER("\"content\":\"b\"") "," USER("c") "," ANSWER("\"content\":\"d\"") "]",
                         "\n<think></think>\nb<|im_start|>|\n<think></think>\nd");
    (void)assert_trained(template, "[" USER("a") "," ANSWER("\"content\":\"<think>r</think>b\"") "]", "<think>r</think>b");
    (void)assert_trained(template, "[" USER("a") "," ANSWER("\"content\":\"<think> </think>b\"") "]",
                         "\n<think></think>\n<think> </think>b");
    c = assert_trained("{% for m in messages %}{{ m.content }}[THINK] [/THINK] {% endfor %}x",
                       "[" USER("a") "," ANSWER("\"content\":\"b\",\"thinking\":\"r\"") "]", " b|");
}

/* gpt-oss's: channels, a call that ends with its own token, and a result that names the call. */
TEST_SETUP(channels_are_trained, begin, end)
{
    static const char template[] =
        "{% for m in messages %}{% if m.role == 'assistant' %}{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}"
        "<|im_start|>assistant to={{ f.name }}[json]{{ f.arguments | tojson }}<|endoftext|>{% else %}{% if loop.last and "
        "m.thinking %}"
        "<|im_start|>assistant[analysis]{{ m.thinking }}<|im_end|>{% endif %}<|im_start|>assistant[final]{{ m.content "
        "}}<|im_end|>"
        "{% endif %}{% elif m.role == 'tool' %}<|im_start|>{{ messages[1].tool_calls[0].function.name }}[result]{{ m.content }}"
        "<|im_end|>{% else %}<|im_start|>{{ m.role }}[]{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
        "{{ '<|im_start|>assistant' if add_generation_prompt }}";
    struct st_dialog_counts c;

    c = assert_trained(template,
                       "[" USER("a") "," ANSWER("\"content\":\"b\",\"thinking\":\"r\"") "," USER("c") "," ANSWER(
                           "\"content\":\"d\",\"thinking\":\"s\"") "]",
                       "[final]b<|im_end|>|[analysis]s<|im_end|><|im_start|>assistant[final]d<|im_end|>");
    assert_int_equal(c.thoughtless, 1);
    c = assert_trained(template, "[" USER("a") "," ANSWER(CALL) "," RESULT "," ANSWER("\"content\":\"b\"") "]",
                       " to=w[json]{\"c\": \"O\", \"n\": 1}<|endoftext|>|[final]b<|im_end|>");
    assert_int_equal(c.calls + c.guessed + c.unended, 0);
}

/* Gemma 4's: the result stands inside the answer that called, with its sender's name, and before what was said beside the call.
 */
TEST_SETUP(results_inside_an_answer_are_not_trained, begin, end)
{
    static const char template[] =
        "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>user {{ m.content }}<|im_start|>model {% elif m.role != "
        "'tool' %}"
        "{% for c in m.tool_calls %}[call]{{ c.function.name }} {{ c.function.arguments | tojson }}<|endoftext|>from "
        "{{ c.function.name }}: ({{ messages[loop.index0 + 2].content }})<|im_start|>{% endfor %}{{ m.content }}<|im_end|>"
        "{% endif %}{% endfor %}";
    struct st_dialog_counts c;

    scratch_put("generation_config.json", "{\"eos_token_id\": [420, 422]}"); /* <|endoftext|>, <|im_end|> */
    c = assert_trained(template, "[" USER("a") "," ANSWER(CALL) "," RESULT "," ANSWER("\"content\":\"b\"") "]",
                       "[call]w {\"c\": \"O\", \"n\": 1}<|endoftext|>|b<|im_end|>");
    assert_int_equal(c.answers, 2);
    c = assert_trained(template,
                       "[" USER("a") "," ANSWER("\"content\":\"b\",\"tool_calls\":[{\"function\":{\"name\":\"w\",\"arguments\":"
                                                "{}}}]") "," RESULT "]",
                       "[call]w {}<|endoftext|>|b<|im_end|>");
    assert_int_equal(c.answers, 1);
    assert_int_equal(c.unended, 0);
}

/* Mistral's: tools stand before the last question, so that history is written differently when it is asked for. */
TEST_SETUP(what_history_differs_in_does_not_matter, begin, end)
{
    static const char template[] =
        "{% for m in messages %}{% if m.role == 'user' %}{{ '[TOOLS]' if loop.last or not messages[loop.index0 + 2:] }}[INST]"
        "{{ m.content }}[/INST]{% elif m.role == 'tool' %}[RESULT]{{ m.content }}[/RESULT]{% elif m.tool_calls %}"
        "[CALLS]{{ m.tool_calls | tojson }}<|im_end|>{% else %} {{ m.content }}<|im_end|>{% endif %}{% endfor %}";
    struct st_dialog_counts c;

    c = assert_trained(
        template,
        "[" USER("a") "," ANSWER(CALL) "," RESULT
                                       "," ANSWER("\"content\":\"b\"") "," USER("c") "," ANSWER("\"content\":\"d\"") "]",
        "[CALLS][{\"function\": {\"name\": \"w\", \"arguments\": {\"c\": \"O\", \"n\": 1}}}]<|im_end|>| b<|im_end|>| "
        "d<|im_end|>");
    assert_int_equal(c.guessed, 0);
}

/* Where the messages before cannot be rendered, the prompt behind one question tells; where that fails, too, a special token. */
TEST_SETUP(templates_that_want_more_are_asked_otherwise, begin, end)
{

    static const char talk[] = "[" USER("a") "," USER("b") "," ANSWER("\"content\":\"c\"") "," ANSWER("\"content\":\"d\"") "]";

    assert_int_equal(
        assert_trained("{% if messages | length == 2 or messages | length == 3 %}{{ raise_exception('') }}{% endif %}" ROUND(
                           "", "{{ m.content }}") "{{ '<|im_start|>assistant\n[go]' if add_generation_prompt }}",
                       talk, "c<|im_end|>|d<|im_end|>|")
            .guessed,
        0);
    assert_int_equal(assert_trained("{{ messages[2].content[:0] }}{{ messages[3].content[:0] }}" ROUND("", "{{ m.content }}"),
                                    talk, "assistant\nc<|im_end|>|assistant\nd<|im_end|>|")
                         .guessed,
                     2);
    assert_int_equal(
        assert_trained("{{ messages[2].content[:0] }}{{ messages[3].content[:0] }}{% for m in messages %}({{ m.content }})"
                       "{% endfor %}",
                       talk, "c|d|")
            .guessed,
        2);
}

TEST_SETUP(ends_are_the_turns, begin, end)
{
    static const char talk[] = "[" USER("a") "," ANSWER("\"content\":\"b\"") "," USER("c") "," ANSWER("\"content\":\"d\"") "]";

    /* The end of text right behind another special token closes both; behind white space it ends the conversation. */
    (void)assert_trained("{% for m in messages %}{{ m.content }}<|endoftext|><|im_end|>{% endfor %}", talk,
                         "b<|endoftext|><|im_end|>|d<|endoftext|><|im_end|>");
    (void)assert_trained("{% for m in messages %}{{ m.content }}<|endoftext|>\n{% endfor %}<|im_end|>", talk,
                         "b<|endoftext|>|d<|endoftext|>|");
    assert_int_equal(assert_trained("{% for m in messages %}{{ m.content }};{% endfor %}", talk, "b|d|").unended, 2);
}

/* A whole turn is left out where its row says so, and where nothing of it is written. */
TEST_SETUP(turns_are_left_out_as_a_whole, begin, end)
{
    const struct st_dialog_counts c = assert_trained(
        ROUND("", "{{ m.content }}") ASK,
        "[" USER("a") "," ANSWER("\"content\":\"b\",\"weight\":0") "," USER("c") "," ANSWER(
            "\"content\":\"d\",\"loss\":"
            "false") "," USER("e") "," ANSWER("\"content\":\"\"") "," USER("g") "," ANSWER("\"content\":\"h\",\"loss\":true") "]",
        "h<|im_end|>|");

    assert_int_equal(c.unwritten, 1);
    assert_int_equal(c.answers, 1);
}

static strata_status encode_messages(const char *messages)
{
    struct st_dialog_ids out = {0};
    struct st_tokenizer *t;
    struct st_dialog *d;
    st_json *root;
    strata_status st;

    assert_ok(st_json_parse(&root, messages, strlen(messages), "messages"));
    assert_ok(st_tokenizer_open(&t, scratch_dir));
    if ((st = st_dialog_open(&d, t, &(struct st_dialog_opts){0})) == STRATA_OK) {
        st = st_dialog_encode(d, root, NULL, false, &out);
        st_dialog_close(d);
    }
    if (st == STRATA_OK)
        assert_int_equal(out.counts.answers, 1);
    st_dialog_ids_free(&out);
    st_tokenizer_close(t);
    st_json_free(root);
    return st;
}

/* Content in parts is a text for templates that want one; others go through the parts themselves. */
TEST_SETUP(parts_are_joined_where_a_text_is_wanted, begin, end)
{
    static const char talk[] =
        "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]},"
        "{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"b\"},{\"type\":\"text\",\"text\":\"c\"}]}]";

    (void)assert_trained(ROUND("", "{{ m.content }}") ASK, talk, "bc<|im_end|>|");
    (void)assert_trained(ROUND("", "{{ '' + m.content }}") ASK, talk, "bc<|im_end|>|");
    (void)assert_trained(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for p in m.content %}({{ p.text }}){% endfor %}<|im_end|>"
        "{% endfor %}" ASK,
        talk, "(b)(c)<|im_end|>");
    scratch_put("chat_template.jinja", ROUND("", "{{ m.content }}"));
    assert_int_equal(encode_messages("[" USER("a") "," ANSWER("\"content\":[{\"type\":\"x\",\"y\":\"z\"}]") "]"), STRATA_E_INPUT);
    assert_non_null(strstr(strata_last_error(), "a list of parts"));
    /* Qwen3's passes over what is no text. */
    assert_int_equal(
        assert_trained(ROUND("", "{% if m.content is string %}{{ m.content }}{% endif %}") ASK, talk, "bc<|im_end|>|").unseen, 0);
}

/* What others say must not get lost without a word: a role that the template does not know, content that is no text. */
TEST_SETUP(messages_that_are_not_written_are_counted, begin, end)
{
    static const char talk[] = "[{\"role\":\"developer\",\"content\":\"x\"}," USER(
        "a") ",{\"role\":\"user\",\"content\":{\"k\":\"v\"}},"
             "{\"role\":\"tool\",\"content\":\" \"},{\"role\":\"tool\",\"content\":null}," ANSWER("\"content\":\"b\"") "]";
    const struct st_dialog_counts c = assert_trained(
        "{% for m in messages %}{% if m.role != 'developer' and m.content is string %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "<|im_end|>\n{% endif %}{% endfor %}" ASK,
        talk, "b<|im_end|>|");

    assert_int_equal(c.unseen, 2);
    assert_int_equal(c.unwritten, 0);
}

/* Without thinking Qwen3's prompt holds the empty block, which is then no part of what is trained. */
TEST_SETUP(settings_reach_the_template, begin, end)
{
    static const char template[] = THINKS "{{ '<think>\n\n</think>\n\n' if add_generation_prompt and enable_thinking is false }}";
    static const char talk[] = "[" USER("a") "," ANSWER("\"content\":\"b\"") "]";
    static const struct {
        const char *kwargs, *want; /* of what is trained, or of the sentence */
    } rows[] = {{NULL, "<think>\n\n</think>\n\nb<|im_end|>|"},
                {"{\"enable_thinking\": true}", "<think>\n\n</think>\n\nb<|im_end|>|"},
                {"{\"enable_thinking\": false}", "b<|im_end|>|"},
                {"[]", "not a JSON object"},
                {"{", "texts.chat_template_kwargs"},
                {"{\"tools\": []}", "\"tools\" comes from each conversation"}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char trained[256] = "";

        if (i < 3)
            (void)encode(trained, sizeof(trained), template, talk, rows[i].kwargs);
        if (i < 3)
            assert_string_equal(trained, rows[i].want);
        else
            refuse(rows[i].kwargs, rows[i].want);
    }
}

/* Also while the messages before an answer are rendered: what cannot be asked then is no reason to guess. */
TEST_SETUP(memory_that_runs_out, begin, end)
{
    static const char *const sites[] = {"dialog.alloc", "template.alloc"};

    scratch_put("chat_template.jinja", "{% if messages | length == 2 %}{{ raise_exception('') }}{% endif %}" ROUND(
                                           "", "{% if m.content is string %}{{ m.content }}{% endif %}") ASK);
    for (size_t i = 0; i < sizeof(sites) / sizeof(sites[0]); i++) {
        struct fault_walk walk = {.site = sites[i], .result = -1};

        while (fault_walk_next(&walk)) {
            const strata_status st = encode_messages("[" USER(
                "a") ",{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"b\"}]}," ANSWER("\"content\":\"c\"") "]");

            fault_walk_end(&walk, st);
            assert_int_equal(st, walk.fired ? STRATA_E_NOMEM : STRATA_OK);
        }
        assert_true(walk.failed > 4);
    }
}

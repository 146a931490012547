/* test_template_origins.c - where each byte of a rendered conversation came from: which parts of it are an answer, and are
 * trained, follows from that. */
#include "tests/common/test.h"
#include "text/template/template.h"

#include "tests/common/assert_status.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define TALK "[{\"role\":\"user\",\"content\":\"ab\"},{\"role\":\"assistant\",\"content\":\" cd\",\"reasoning_content\":\"r\"}]"

static void render(struct st_rendered *out, const char *template, const char *messages)
{
    struct st_template_input input = {.year = 2026, .month = 2, .day = 3};
    struct st_template *t;
    st_json *m;

    assert_ok(st_json_parse(&m, messages, strlen(messages), "talk"));
    input.messages = m;
    assert_ok(st_template_open(&t, template, strlen(template), "case"));
    assert_ok(st_template_render(out, t, &input));
    st_template_close(t);
    st_json_free(m);
}

/* Fields and bits as hexadecimal digits beside the text, and the numbers of the messages. */
static void assert_origins(const char *template, const char *messages, const char *text, const char *fields, const char *numbers)
{
    struct st_rendered out;
    char digits[256], of[256];

    render(&out, template, messages);
    assert_string_equal(out.text, text);
    assert_true(out.bytes < sizeof(digits));
    for (size_t i = 0; i < out.bytes; i++) {
        digits[i] = "0123456789abcdef"[out.origins[i] & 15];
        of[i] = (char)('0' + st_origin_message(out.origins[i]));
    }
    digits[out.bytes] = of[out.bytes] = '\0';
    assert_string_equal(digits, fields);
    assert_string_equal(of, numbers);
    st_rendered_free(&out);
}

TEST(bytes_keep_their_origin)
{
    assert_origins("{% for m in messages %}{{ m.role[0] + m.content }}{% endfor %}", TALK, "uaba cd", "0110111", "0110222");
    assert_origins("{{ messages[1].content.strip().split('c')[1] ~ messages[1].content[::-1] }}", TALK, "ddc ", "1111", "2222");
    assert_origins("{{ messages[1].content | upper | trim | replace('C', 'xy') }}", TALK, "xyD", "001", "002");
    assert_origins("{{ messages[1].content | replace('c', 'é') | upper }}{{ messages[0].content | capitalize }}", TALK, " ÉDAb",
                   "100111", "200211");
    assert_origins("{{ messages[1].content | tojson }}{{ [messages[1].content] }}", TALK, "\" cd\"[' cd']", "011100011100",
                   "022200022200");
    assert_origins("{% set x %}<{{ messages[1].content }}>{% endset %}{{ [x, messages[0].content] | join('-') }}", TALK,
                   "< cd>-ab", "01110011", "02220011");
    assert_origins("{% macro f(x) %}({{ x }}){% endmacro %}{{ f(messages[1].reasoning_content) }}", TALK, "(r)", "020", "020");
    assert_origins("{{ messages[1].role }}", TALK, "assistant", "000000000", "000000000");
}

TEST(generation_blocks_are_marked)
{
    assert_origins("{% for m in messages %}<{% generation %}{{ m.content }}!{% endgeneration %}>{% endfor %}", TALK,
                   "<ab!>< cd!>", "05540055540", "01100022200");
    assert_origins("{% macro f(x) %}({{ x }}){% endmacro %}{% generation %}{{ f('a') }}{% endgeneration %}.", TALK, "(a).",
                   "4440", "0000");
    assert_origins(
        "{% set ns = namespace() %}{% generation %}{% set ns.x = 'a' ~ messages[0].content %}{{ ns.x }}{% endgeneration %}"
        "{{ ns.x }}",
        TALK, "aabaab", "455011", "011011");
    assert_origins("{% set x %}<{% generation %}a{% endgeneration %}>{% endset %}{{ x ~ x | upper }}", TALK, "<a><A>", "040040",
                   "000000");
}

/* XTuner's "loss" and OpenAI's "weight" of a message: what a block of a {% generation %} writes around it goes with it. */
TEST(excluded_answers_are_marked)
{
#define ANSWER(content, wish) "{\"role\":\"assistant\",\"content\":\"" content "\"" wish "}"
    static const char talk[] = "[" ANSWER("a", ",\"loss\":false") "," ANSWER("b", ",\"weight\":0") "," ANSWER(
        "c", ",\"loss\":true,\"weight\":1") "," ANSWER("d", ",\"loss\":null,\"reasoning_content\":\"r\"") "]";

    assert_origins("{% for m in messages %}{{ m.content }}.{% endfor %}", talk, "a.b.c.d.", "90901010", "10203040");
    assert_origins("{% for m in messages %}<{% generation %}{{ m.content }}!{% endgeneration %}{% endfor %}", talk,
                   "<a!<b!<c!<d!", "090090054054", "010020030040");
    assert_origins("{{ messages[0].reasoning_content }}", "[" ANSWER("a", ",\"loss\":false,\"reasoning_content\":\"r\"") "]", "r",
                   "a", "1");
    assert_origins("{{ messages[0].content }}", "[{\"role\":\"user\",\"content\":\"a\",\"loss\":false}]", "a", "1", "1");
    assert_origins(
        "{% for m in messages %}{{ m.role[0] }}{% generation %}{{ m.tool_calls[0].name }}!{% endgeneration %}{% endfor %}",
        "[" ANSWER("", ",\"loss\":false,\"tool_calls\":[{\"name\":\"f\"}]") "," ANSWER("",
                                                                                       ",\"tool_calls\":[{\"name\":\"g\"}]") "]",
        "af!ag!", "0b0074", "010020");
#undef ANSWER
}

/* A call that a later message names again, as the sender of its result, is the template's there. */
TEST(calls_keep_their_message)
{
    static const char talk[] = "[{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\",\"arguments\":{\"k\":\"v\",\"n\":1}}]},"
                               "{\"role\":\"tool\",\"content\":\"r\"}]";

    assert_origins(
        "{% set ns = namespace() %}{% for m in messages %}{% if m.tool_calls %}{% set ns.f = m.tool_calls[0].name %}{{ ns.f }}"
        "{{ m.tool_calls[0].arguments | tojson }}{% else %}<{{ ns.f }}>{{ m.content }}{% endif %}{% endfor %}",
        talk, "f{\"k\": \"v\", \"n\": 1}<f>r", "30030000300003000000001", "10010000100001000000002");
    assert_origins("{{ messages[0].tool_calls[0].name }}", talk, "f", "3", "1");
}

/* Reasoning has three names, of which templates ask for two; what is null is not there. */
TEST(reasoning_has_many_names)
{
    static const char *const names[] = {"reasoning", "thinking", "reasoning_content"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char talk[160];

        snprintf(talk, sizeof(talk), "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":null,\"%s\":\"r\"}]", names[i]);
        assert_origins("{{ messages[0].thinking }}{{ messages[0].reasoning_content }}{{ 'content' in messages[0] }}"
                       "{{ messages[0].tool_calls is defined }}",
                       talk, "rrFalseFalse", "220000000000", "110000000000");
    }
}

TEST(generation_is_told)
{
    struct st_rendered out;

    render(&out, "{% if 0 %}{% generation %}{% endgeneration %}{% endif %}", TALK);
    assert_true(out.has_generation);
    st_rendered_free(&out);
    render(&out, "{{ messages[0].content }}", TALK);
    assert_false(out.has_generation);
    st_rendered_free(&out);
}

/* Of a text of several origins each letter keeps its own, whatever is done with the text: a to f are the user's, g to l the
 * assistant's, the others the template's. */
TEST(filters_keep_the_origin_of_each_letter)
{
    static const char *const done[] = {
        "s",
        "s[3:14:2]",
        "s[::-1]",
        "s[10]",
        "s | upper",
        "s | title",
        "s | capitalize",

        "s | replace('c', 'xy')",
        "s | replace('e', '')",
        "s.replace('h', 'zz')",
        "s.replace('q', 'z', 1)",
        "s.replace('a', 'z') | replace('l', 'z')",
        "s | replace('no', s)",
        "s.split('q')",
        "s.split('q')[1]",

        "s.split('c', 1)[1] ~ s.split('k')[0]",
        "(' ' ~ s ~ ' ').strip()",
        "('  ' ~ s).lstrip()",
        "(s ~ ' ').rstrip()",
        "s.lstrip('abc')",
        "s.rstrip('lk')",
        "s.strip('al')",
        "(' ' ~ s ~ ' ') | trim",
        "s | list | join('-')",
        "s | list",
        "s | reverse",
        "s | list | reverse | list",
        "s | first ~ s | last",
        "s | list | sort | join",
        "s | list | unique | join",
        "[s[6:], s[:6]] | join(s[2])",
        "s | max ~ s | min",
        "s ~ '/' ~ s[::-1]",
        "s + s[4:]",
        "s | tojson",
        "[s, {'x': s}]",
        "{'x': s} | tojson",
        "(s ~ '\\n' ~ s) | indent(2)",
        "s if 1 else 'x'",
        "s | string",
        "s | map('upper') | join",
        "s | list | select('ne', 'd') | join",
        "s | list | reject('in', 'gh') | join",
        "s[2:] * 2",
        "{s: 1} | items | list",
        "dict(x=s).x",
        "namespace(x=s).x",
        "{'x': s}.items() | list",
        "s.lower()",
        "s.upper().lower()",
        "s | lower",
        "s | default('z')",
        "none or s",
        "s | safe",
    };

    for (size_t i = 0; i < sizeof(done) / sizeof(done[0]); i++) {
        struct st_rendered out;
        char template[256];
        uint32_t letters = 0;

        snprintf(template, sizeof(template), "{%% set s = messages[0].content ~ 'nopq' ~ messages[1].content %%}{{ %s }}",
                 done[i]);
        render(&out, template, "[{\"role\":\"user\",\"content\":\"abcdef\"},{\"role\":\"assistant\",\"content\":\"ghijkl\"}]");
        for (size_t b = 0; b < out.bytes; b++) {
            const int letter = tolower((unsigned char)out.text[b]);
            const uint32_t want = letter >= 'a' && letter <= 'f' ? 1 : letter >= 'g' && letter <= 'l' ? 2 : 0;

            letters += want > 0;
            if (st_origin_message(out.origins[b]) != want)
                fail_msg("%s: byte %zu of \"%s\" is of %u, not %u", done[i], b, out.text, st_origin_message(out.origins[b]),
                         want);
        }
        assert_true(letters > 0);
        st_rendered_free(&out);
    }
}

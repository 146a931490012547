/* test_template.c - chat templates against what transformers renders (templates_golden.json), limits, and refusals. */
#include "tests/common/test.h"
#include "text/template/template.h"

#include "tests/common/assert_status.h"
#include "tests/common/fault_walk.h"
#include "tests/common/whole_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct st_template_variable specials[] = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};

static struct st_template_input input_of(const st_json *messages)
{
    return (struct st_template_input){
        .messages = messages, .specials = specials, .special_count = 2, .year = 2026, .month = 2, .day = 3};
}

/* --- against the reference --- */

static const char *text_of(const st_json *c)
{
    const st_json *builtin = st_json_get(c, "builtin");

    return builtin != NULL ? st_template_builtin(st_json_string(builtin)) : st_json_string(st_json_get(c, "template"));
}

static void check_case(const st_json *c)
{
    const char *text = text_of(c);
    const st_json *wanted = st_json_get(c, "text");
    struct st_template_input input = input_of(st_json_get(c, "messages"));
    struct st_rendered out;
    struct st_template *t = NULL;
    strata_status st = st_template_open(&t, text, strlen(text), "case");

    input.variables = st_json_get(c, "variables");
    input.add_generation_prompt = st_json_bool(st_json_get(c, "add_generation_prompt"));
    if (st == STRATA_OK)
        st = st_template_render(&out, t, &input);
    if ((st == STRATA_OK) != (st_json_type(wanted) == ST_JSON_STRING)) {
        fail_msg("template <%s>: %s; the reference has %s", text, st == STRATA_OK ? out.text : strata_last_error(),
                 st_json_type(wanted) == ST_JSON_STRING ? st_json_string(wanted) : "an error");
    } else if (st == STRATA_OK) {
        if (strcmp(out.text, st_json_string(wanted)) != 0)
            fail_msg("template <%s>:\n%s\nthe reference has\n%s", text, out.text, st_json_string(wanted));
        assert_int_equal(out.bytes, strlen(out.text));
        st_rendered_free(&out);
    }
    st_template_close(t);
}

TEST(same_as_reference)
{
    st_json *cases;
    uint32_t count = 0;

    assert_ok(st_json_parse_file(&cases, "tests/text/templates_golden.json", 1 << 20));
    for (const st_json *c = st_json_first(cases); c != NULL; c = st_json_next(c), count++)
        check_case(c);
    assert_true(count > 100);
    st_json_free(cases);
}

/* --- limits --- */

static st_json *talk(const char *text)
{
    st_json *messages;

    assert_ok(st_json_parse(&messages, text, strlen(text), "talk"));
    return messages;
}

#define TALK "[{\"role\":\"user\",\"content\":\"ab\"},{\"role\":\"assistant\",\"content\":\" cd\",\"reasoning_content\":\"r\"}]"

static void assert_renders(const char *template, const st_json *messages, const char *text)
{
    const struct st_template_input input = input_of(messages);
    struct st_template *t;
    struct st_rendered out;

    assert_ok(st_template_open(&t, template, strlen(template), "case"));
    assert_ok(st_template_render(&out, t, &input));
    if (strcmp(out.text, text) != 0)
        fail_msg("template <%s>: %s, not %s", template, out.text, text);
    st_rendered_free(&out);
    st_template_close(t);
}

/* --- the words of published templates --- */

/* Whether a template with a word at the sample's @ is rendered, or refused for something else than the word. */
static bool knows(const char *sample, const char *word, const st_json *messages)
{
    static const char *const unknown[] = {"supported", "undefined", "must not", "end is expected"};
    const struct st_template_input input = input_of(messages);
    const char *at = strchr(sample, '@');
    struct st_template *t = NULL;
    struct st_rendered out;
    char template[128];
    strata_status st;
    bool known = true;

    snprintf(template, sizeof(template), "%.*s%s%s", (int)(at - sample), sample, word, at + 1);
    st = st_template_open(&t, template, strlen(template), "t");
    if (st == STRATA_OK && (st = st_template_render(&out, t, &input)) == STRATA_OK)
        st_rendered_free(&out);
    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]) && st != STRATA_OK; i++)
        known = known && strstr(strata_last_error(), unknown[i]) == NULL;
    st_template_close(t);
    return known;
}

TEST(words_of_published_templates_are_known)
{
    static const char *const samples[][2] = {{"filter", "{{ 'a' | @ }}"},
                                             {"filter", "{{ {'a': 1} | @ | list }}"},
                                             {"filter", "{{ [1] | @('odd') | list }}"},
                                             {"function", "{{ @('a') }}"},
                                             {"function", "{{ @(a=1).a }}"},
                                             {"method", "{{ 'a'.@('a') }}"},
                                             {"method", "{{ {'a': 1}.@('a') }}"},
                                             {"method", "{{ [1].@(0) }}"},
                                             {"operator", "{{ 1 @ [1] }}"},
                                             {"test", "{{ 1 is @ }}"},
                                             {"tag", "{% for x in [1] %}{% @ "},
                                             {"loop", "{% for x in [1, 2] %}{{ loop.@ }}{% endfor %}"}};
    size_t bytes;
    char *text = read_file("tests/text/template_words.tsv", &bytes);
    st_json *m = talk(TALK);
    uint32_t count = 0;

    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"), count += line != NULL) {
        char kind[16], word[32], refused[8] = "";
        bool known = false;

        if (line[0] == '#')
            continue;
        assert_in_range(sscanf(line, "%15[^\t]\t%31[^\t]\t%*u\t%7s", kind, word, refused), 2, 3);
        for (size_t i = 0; i < sizeof(samples) / sizeof(samples[0]); i++)
            known = known || (strcmp(samples[i][0], kind) == 0 && knows(samples[i][1], word, m));
        if (known != (refused[0] == '\0'))
            fail_msg("%s %s is %sknown: %s", kind, word, known ? "" : "not ", strata_last_error());
    }
    assert_true(count > 80);
    st_json_free(m);
    free(text);
}

/* Corners that no template of a model has shown yet. */
TEST(lengths_and_margins)
{
    static const struct {
        const char *template, *text;
    } rows[] = {{"{% for x in [1, 2, 3] %}{{ loop | length }}{% endfor %}", "333"},
                {"{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% for x in [5] %}{{ m() }}{% endfor %}", "1"},
                {"{% macro m() %}{{ y is defined }}{% endmacro %}{% for y in [5] %}{{ m() }}{% endfor %}{% set y = 2 %}{{ m() }}",
                 "FalseTrue"},
                {"{{ 'a\nb' | indent(0) }}|{{ 'a\nb' | indent(0, true) }}|{{ 'a\nb' | indent(1) }}", "a\nb|a\nb|a\n b"}};
    st_json *m = talk(TALK);

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_renders(rows[i].template, m, rows[i].text);
    st_json_free(m);
}

/* Each kind of value, empty and not, wherever a template asks for its truth: as Jinja 3.1 answers. */
TEST(truth_is_pythons)
{
    static const char *const values[][32] = {{"none", "nowhere", "false", "0", "0.0", "-0.0", "''", "[]", "()", "{}", "range(0)",
                                              "{}.keys()", "{}.items()", "{}.values()", "'a'[1:]", "[1][1:]", "dict()",
                                              "messages[0].nothing", "(2 > 3)"},
                                             {"namespace()",
                                              "true",
                                              "1",
                                              "-1",
                                              "0.5",
                                              "' '",
                                              "'0'",
                                              "'false'",
                                              "[0]",
                                              "[[]]",
                                              "(0,)",
                                              "{'a': 0}",
                                              "{'': none}",
                                              "range(1)",
                                              "{'a': 0}.keys()",
                                              "{'a': 0}.items()",
                                              "{'a': 0}.values()",
                                              "'a'[:1]",
                                              "dict(a=1)",
                                              "range",
                                              "messages"}};
    static const char asked[] = "{%% set x = %s %%}{%% if x %%}i{%% else %%}-{%% endif %%}{{ 'i' if x else '-' }}"
                                "{{ '-' if not x else 'i' }}{{ (x and 'i') or '-' }}"
                                "{%% for y in [x] if y %%}i{%% else %%}-{%% endfor %%}";
    st_json *m = talk(TALK);
    char template[512];

    for (int truth = 0; truth < 2; truth++)
        for (size_t i = 0; values[truth][i] != NULL; i++) {
            snprintf(template, sizeof(template), asked, values[truth][i]);
            assert_renders(template, m, truth ? "iiiii" : "-----");
        }
    st_json_free(m);
}

/* An if within each branch of another, alone there and between other text, for every case of both: as Jinja2 has it. */
TEST(branches_hold_what_is_in_them)
{
    static const char *const inner[] = {"{% if b %}B{% endif %}",
                                        "{% if b %}B{% else %}b{% endif %}",
                                        "{% if b %}B{% endif %}x",
                                        "x{% if b %}B{% endif %}",
                                        "{% if b %}B{% elif c %}C{% endif %}x",
                                        "{% for i in [1, 2] %}{% if b %}{{ i }}{% endif %}{% endfor %}x",
                                        "{% set d = b %}{% if d %}B{% endif %}x"};
    static const char *const is_b[] = {"B", "B", "Bx", "xB", "Bx", "12x", "Bx"},
                             *const is_c[] = {"", "b", "x", "x", "Cx", "x", "x"}, *const is_none[] = {"",  "b", "x", "x",
                                                                                                      "x", "x", "x"};
    st_json *m = talk(TALK);

    for (size_t i = 0; i < sizeof(inner) / sizeof(inner[0]); i++)
        for (int branch = 0; branch < 4; branch++)
            for (int a = 0; a < 4; a++)
                for (int of = 0; of < 3; of++) {
                    char template[512], wanted[16];

                    snprintf(template, sizeof(template),
                             "{%% set a = %d %%}{%% set b = %s %%}{%% set c = %s %%}{%% if a == 0 %%}%s{%% elif a == 1 %%}%s{%% "
                             "elif a == 2 "
                             "%%}%s{%% else %%}%s{%% endif %%}.",
                             a, of == 0 ? "true" : "false", of == 1 ? "true" : "false", branch == 0 ? inner[i] : "0",
                             branch == 1 ? inner[i] : "1", branch == 2 ? inner[i] : "2", branch == 3 ? inner[i] : "3");
                    snprintf(wanted, sizeof(wanted), "%d.", a);
                    if (a == branch)
                        snprintf(wanted, sizeof(wanted), "%s.", (of == 0 ? is_b : of == 1 ? is_c : is_none)[i]);
                    assert_renders(template, m, wanted);
                }
    st_json_free(m);
}

/* --- refusals and limits --- */

/* Each field of a date as Python's strftime writes it, in years before and after this one. */
TEST(dates_are_pythons)
{
    static const char template[] = "{{ strftime_now('%a %A %b %B %d %j %m %y %Y %H:%M:%S %%') }}";
    static const struct {
        int year, month, day;
        const char *text;
    } rows[] = {{1999, 12, 31, "Fri Friday Dec December 31 365 12 99 1999 00:00:00 %"},
                {2000, 2, 29, "Tue Tuesday Feb February 29 060 02 00 2000 00:00:00 %"},
                {2024, 12, 31, "Tue Tuesday Dec December 31 366 12 24 2024 00:00:00 %"},
                {2101, 1, 1, "Sat Saturday Jan January 01 001 01 01 2101 00:00:00 %"}};
    st_json *m = talk("[]");

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_template_input input = input_of(m);
        struct st_rendered out;
        struct st_template *t;

        input.year = rows[i].year;
        input.month = rows[i].month;
        input.day = rows[i].day;
        assert_ok(st_template_open(&t, template, sizeof(template) - 1, "case"));
        assert_ok(st_template_render(&out, t, &input));
        assert_string_equal(out.text, rows[i].text);
        st_rendered_free(&out);
        st_template_close(t);
    }
    st_json_free(m);
}

static void assert_render_fails(const char *template, strata_status wanted, const char *sentence)
{
    st_json *m = talk(TALK);
    const struct st_template_input input = input_of(m);
    struct st_rendered out;
    struct st_template *t;

    assert_ok(st_template_open(&t, template, strlen(template), "chat.jinja"));
    assert_refused(st_template_render(&out, t, &input), wanted, sentence);
    st_template_close(t);
    st_json_free(m);
}

static void assert_open_fails(const char *template, const char *sentence)
{
    struct st_template *t;

    assert_refused(st_template_open(&t, template, strlen(template), "chat.jinja"), STRATA_E_CONFIG, sentence);
}

/* The line of what is done, not of the last operand. */
TEST(an_operation_over_several_lines_is_told_at_its_own)
{
    static const char *const rows[][2] = {
        {"{{ nothing[\n'a'\n] }}", "line 1: "},  {"{{ {\n'a': 1}.b.c }}", "line 2: "}, {"{{ 1 +\n\n'a' }}", "line 1: "},
        {"{{ 1 <\n\n'a' }}", "line 1: "},        {"{{ 1\n< 2\n<\n'a' }}", "line 3: "}, {"{{ nothing(\n1\n) }}", "line 1: "},
        {"{{ 1 | join(\n\n'x') }}", "line 1: "}, {"{{ 1 is in(\n\n0) }}", "line 1: "}, {"{{ (\n'a'\n).x\n.y }}", "line 4: "},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_render_fails(rows[i][0], STRATA_E_INPUT, rows[i][1]);
}

TEST(refusals_name_the_line)
{
    assert_open_fails("a\n{% include 'x' %}", "chat.jinja, line 2: the tag 'include' is not supported here");
    assert_open_fails("{% if x %}\n\n", "line 2: the text ends before elif");
    assert_open_fails("\n{{ 'a\n\n", "line 2: the string that begins here has no end");
    assert_open_fails("{{ \"\\N{DASH}\" }}", "escape");
    assert_open_fails("{% for x in y recursive %}{% endfor %}", "recursive");
    assert_open_fails("\xff", "byte 0 of the template is not UTF-8");
    assert_render_fails("\n\n{{ 'a' | xmlattr }}", STRATA_E_NOSYS, "chat.jinja, line 3: the filter 'xmlattr' is not supported");
    assert_render_fails("{{ 'a'.zfill(3) }}", STRATA_E_NOSYS, "the method .zfill() of a string");
    assert_render_fails("{{ 'abc'.startswith('b', 1) }}", STRATA_E_NOSYS, "the method .startswith() of a string");
    assert_render_fails("{{ 'abc'.endswith('b', 0, 2) }}", STRATA_E_NOSYS, "the method .endswith() of a string");
    assert_render_fails("{{ 1e22 | int }}", STRATA_E_INPUT, "int of a number past 64 bits");
    assert_render_fails("{% macro f(a) %}{% endmacro %}{{ f(1, z=2) }}", STRATA_E_INPUT, "f has no parameter 'z'");
    assert_render_fails("{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", STRATA_E_INPUT, "f takes at most 1 arguments");
    assert_render_fails("{{ '%s' % 1 }}", STRATA_E_NOSYS, "formatting with %");
    assert_render_fails("{{ {}.keys() == {}.keys() }}", STRATA_E_NOSYS, "comparing two views");
    assert_render_fails("{{ messages | tojson(separators=(',', 1)) }}", STRATA_E_INPUT, "tojson: separators are two texts");
    assert_render_fails("{% macro f(a) %}{% endmacro %}{{ f(*1) }}", STRATA_E_INPUT, "an integer after * gives no arguments");
    assert_render_fails("{{ dict(*([1] * 99)) }}", STRATA_E_NOSYS, "more than ");
    assert_render_fails("{{ strftime_now('%c') }}", STRATA_E_NOSYS, "strftime_now()");
    assert_render_fails("{{ raise_exception('no ' ~ 2) }}", STRATA_E_INPUT, "the template refuses the conversation: no 2");
    assert_render_fails("{{ x.y }}", STRATA_E_INPUT, "'x' is undefined");
}

/* Whole sentences: what is wrong, and with a value of which kind. */
static const char *const refusals[][2] = {
    {"{{ 'a'.replace(1, 'b') }}", "replace of an integer by a string"},
    {"{{ 'a'.replace('b', 1) }}", "replace of a string by an integer"},
    {"{{ 'a'.startswith(1) }}", "startswith() needs a string as its argument 1, not an integer"},
    {"{{ 'a'.split(1) }}", "split() needs a text to split by"},
    {"{{ 'a'.join(3) }}", "an integer has no items"},
    {"{{ strftime_now('%Q') }}", "strftime_now() knows only %a %A %b %B %d %j %m %y %Y %H %M %S and %%"},
    {"{{ 7() }}", "an integer cannot be called"},
    {"{{ {}.get() }}", "get() needs a key"},
    {"{{ messages.clear() }}", "the method .clear() of a list is not supported"},
    {"{{ {'a': 1}.pop('a') }}", ".pop() would change a dict, which a template must not"},
    {"{{ [1]['a':] }}", "a string in a slice"},
    {"{{ 1 - 'a' }}", "an integer - a string has no meaning"},
    {"{{ {} < {} }}", "a dict and a dict have no order"},
    {"{{ 1 in 'abc' }}", "an integer cannot be in a string"},
    {"{{ 'a' in 7 }}", "an integer has no items"},
    {"{{ -'a' }}", "a sign before a string"},
    {"{{ +[] }}", "a sign before a list"},
    {"{{ 7 | length }}", "an integer has no length"},
    {"{{ none | length }}", "none has no length"},
    {"{{ [1] | items }}", "the items of a list: only a dict has pairs"},
    {"{{ [1] | map | list }}", "map needs a filter or an attribute"},
    {"{{ 'a' | replace('b') }}", "replace needs two texts"},
    {"{{ 'a' | replace(1, 2) }}", "replace of an integer by an integer"},
    {"{% set messages.x = 1 %}", "'messages' is no namespace: its .x cannot be set"},
    {"{% set a, b = [1, 2, 3] %}", "3 values for 2 names"},
    {"{{ {[1]: 2} | tojson }}", "a list cannot be the key of a dict"},
    {"{{ strftime_now | string }}", "a function cannot be printed"},
    {"{{ 'a' is odd }}", "a test of whether a string can be divided"},
    {"{{ 7 | list }}", "an integer has no items"},
    {"{{ [1, 'a'] | sort }}", "a string and an integer have no order"},
    {"{{ [{}, {}] | min }}", "a dict and a dict have no order"},
    {"{{ '-9223372036854775809' | int }}", "int of a number past 64 bits"},
    {"{{ 999999999999999999 * 100 }}", "an integer past 64 bits"},
    {"{{ 'abc'.find('c') }}", "the method .find() of a string is not supported like this"},
    {"{{ '1e20' | int }}", "int of a number past 64 bits"},
    {"{{ 'a' | indent(1.5) }}", "indent takes a text, or 0 to 1000 spaces"},
    {"{{ 'a' | indent(-1) }}", "indent takes a text, or 0 to 1000 spaces"},
    {"{{ 5 | indent }}", "indent of an integer"},
    {"{{ 1 | tojson(separators=[',']) }}", "tojson: separators are two texts"},
    {"{{ 1 | tojson(indent=200) }}", "tojson(indent=...) must be 0 to 100"},
    {"{{ 1e300 | int }}", "int of a number past 64 bits"},
    {"{{ range(1, 2, 0) }}", "range() with a step of 0"},
    {"{{ range() }}", "range() takes one to three integers"},
    {"{{ range('a') }}", "range() takes one to three integers"},
    {"{{ range(100000000) }}", "range() of more than 100000 numbers"},
    {"{{ 9223372036854775807 + 1 }}", "the number 9223372036854775807... is too long"},
    {"{{ 9223372036854775808 }}", "the number 9223372036854775808... is too long"},
    {"{{ 'a' * 100000000 }}", "the template has not ended after 20000000 steps"},
    {"{{ 5 % 0 }}", "a division by zero"},
    {"{{ dict(1) }}", "an integer as the members of a dict is not supported"},
    {"{{ namespace(1) }}", "an integer as the members of a dict is not supported"},
    {"{{ loop.index }}", "'loop' is undefined: it has no .index"},
    {"{% for x in 5 %}{% endfor %}", "an integer has no items"},
    {"{% for a, b in [[1, 2, 3]] %}{% endfor %}", "3 values for 2 names"},
    {"{{ 'a' | batch(2) }}", "the filter 'batch' is not supported"},
    {"{{ 'a' is filter }}", "the test 'filter' is not supported"},
    {"{{ 'a'.title }}{{ 'a'.zfill(3) }}", "a method cannot be printed"},
    {"{{ [1].index(1) }}", "the method .index() of a list is not supported"},
    {"{{ {}.setdefault('a') }}", ".setdefault() would change a dict, which a template must not"},
    {"{{ 'a'.encode() }}", "the method .encode() of a string is not supported like this"},
    {"{{ raise_exception(7) }}", "the template refuses the conversation: 7"},
    {"{% include 'x' %}", "the tag 'include' is not supported here"},
    {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "the macro m takes at most 1 arguments"},
    {"{% macro m(a) %}{% endmacro %}{{ m(b=2) }}", "the macro m has no parameter 'b'"},
    {"{% call 1 %}{% endcall %}", "{% call %} must call a macro"},
    {"{% call dict() %}{% endcall %}", "{% call %} of a function, which is no macro, is not supported"},
    {"{% macro f() %}{{ caller() }}{% endmacro %}{{ f() }}", "'caller' is undefined: it cannot be called"},
    {"{{ 'a' if }}", "a value is expected before '}}'"},
    {"{{ messages[0].content.x.y }}", "'x' is undefined: it has no .y"},
    {"{{ 'abc' | selectattr }}", "selectattr and rejectattr need the name of an attribute"},
    {"{{ [1] | selectattr('a', 'nope') | list }}", "the test 'nope' is not supported"},
    {"{{ [1] | select('nope') | list }}", "the test 'nope' is not supported"},
    {"{{ [1] | map('nope') | list }}", "the filter 'nope' is not supported"},
    {"{{ x.y.z }}", "'x' is undefined: it has no .y"},
    {"{{ 'a' ~ }}", "a value is expected before '}}'"},
    {"{{ {'a' 1} }}", ": is expected before '1'"},
    {"{{ \"\\xZZ\" }}", "a string has an escape that is not valid or not supported (\\N)"},
    {"{{ '\\ud800' }}", "a string has an escape that is not valid or not supported (\\N)"},
    {"{{ '\\U0000dfff' }}", "a string has an escape that is not valid or not supported (\\N)"},
    {"{{ '\\U00110000' }}", "a string has an escape that is not valid or not supported (\\N)"},
    {"{% raw %}", "the raw block that begins here has no end"},
    {"{% set %}", "a name is expected before '%}'"},
    {"{{ 1 is }}", "the name of a test is expected after `is`"},
    {"{{ 'a'|}}", "the name of a filter is expected"},
    {"{% endgeneration %}", "the tag 'endgeneration' is not supported here"},
};

TEST(refusals_say_what_is_wrong)
{
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        st_json *m = talk(TALK);
        const struct st_template_input input = input_of(m);
        struct st_rendered out;
        struct st_template *t = NULL;
        strata_status st = st_template_open(&t, refusals[i][0], strlen(refusals[i][0]), "t");

        if (st == STRATA_OK)
            st = st_template_render(&out, t, &input);
        if (st == STRATA_OK || strcmp(strata_last_error() + strlen("t, line 1: "), refusals[i][1]) != 0)
            fail_msg("%s: %s", refusals[i][0], st == STRATA_OK ? "is rendered" : strata_last_error());
        st_template_close(t);
        st_json_free(m);
    }
}

TEST(hostile_templates_end)
{
    assert_render_fails("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", STRATA_E_INPUT, "");
    assert_render_fails("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", STRATA_E_INPUT, "inside each other");
    assert_render_fails("{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(64) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
                        STRATA_E_INPUT, "");
    assert_render_fails("{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
                        STRATA_E_INPUT, "inside each other");
    assert_render_fails("{% set ns = namespace(x=1, y=1) %}{% for i in range(64) %}{% set ns.x = [ns.x, ns.x] %}"
                        "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
                        STRATA_E_INPUT, "has not ended after 20000000 steps");
    assert_render_fails("{% set ns = namespace(x=[1]) %}{% for i in range(64) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
                        STRATA_E_INPUT, "");
    assert_render_fails("{{ 'a' * 10000000000 }}", STRATA_E_INPUT, "");
}

/* {{ (((...1...))) }} */
static void assert_too_deep(char open, char close)
{
    enum { LEVELS = 1000 };
    char text[2 * LEVELS + 8] = "{{ ";

    memset(text + 3, open, LEVELS);
    text[3 + LEVELS] = '1';
    memset(text + 4 + LEVELS, close, LEVELS);
    memcpy(text + 4 + 2 * LEVELS, " }}", 4);
    assert_open_fails(text, "levels of nesting");
}

TEST(deep_templates_are_refused)
{
    char text[10001] = "";

    assert_too_deep('(', ')');
    assert_too_deep('[', ']');
    assert_too_deep('-', ' ');
    for (size_t i = 0; i + 10 < sizeof(text); i += 10)
        memcpy(text + i, "{% if 1 %}", 11);
    assert_open_fails(text, "levels of nesting");
}

TEST(large_templates_are_refused)
{
    char *large = malloc(ST_TEMPLATE_BYTES_MAX + 1);
    struct st_template *t;

    assert_non_null(large);
    memset(large, 'a', ST_TEMPLATE_BYTES_MAX + 1);
    assert_refused(st_template_open(&t, large, ST_TEMPLATE_BYTES_MAX + 1, "large"), STRATA_E_CONFIG, "1048577 bytes");
    assert_ok(st_template_open(&t, large, ST_TEMPLATE_BYTES_MAX, "large"));
    st_template_close(t);
    assert_refused(st_template_open(&t, "a\0b", 3, "nul"), STRATA_E_CONFIG, "NUL");
    free(large);
}

TEST(messages_must_be_a_list)
{
    static const char *const talks[] = {"{}", "null", "3", "\"x\""};
    struct st_template *t;
    struct st_rendered out;

    assert_ok(st_template_open(&t, "{{ messages }}", 14, "case"));
    for (size_t i = 0; i < sizeof(talks) / sizeof(talks[0]); i++) {
        st_json *m = talk(talks[i]);
        const struct st_template_input input = input_of(m);

        assert_refused(st_template_render(&out, t, &input), STRATA_E_INPUT, "messages must be a list");
        st_json_free(m);
    }
    st_template_close(t);
}

/* --- failures of the system --- */

static strata_status open_and_render(const st_json *messages)
{
    static const char text[] = "{% for m in messages %}{{ m.content ~ m.role }}{% endfor %}";
    const struct st_template_input input = input_of(messages);
    struct st_rendered out;
    struct st_template *t;
    strata_status st = st_template_open(&t, text, sizeof(text) - 1, "case");

    if (st != STRATA_OK)
        return st;
    st = st_template_render(&out, t, &input);
    if (st == STRATA_OK) {
        assert_string_equal(out.text, "abuser cdassistant");
        st_rendered_free(&out);
    }
    st_template_close(t);
    return st;
}

TEST(memory_that_runs_out)
{
    struct fault_walk walk = {.site = "template.alloc", .result = -1};
    st_json *m = talk(TALK);

    while (fault_walk_next(&walk)) {
        const strata_status st = open_and_render(m);

        fault_walk_end(&walk, st);
        assert_int_equal(st, walk.fired ? STRATA_E_NOMEM : STRATA_OK);
    }
    assert_true(walk.failed > 5);
    st_json_free(m);
}

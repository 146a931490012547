/* test_template_values.c - expressions of chat templates as Jinja2 3.1.6 prints them, each in a sandbox with transformers'
 * tojson, and the whole sentences of what is refused. */
#include "tests/common/test.h"
#include "text/template/template.h"

#include "tests/common/assert_status.h"

#include <stdio.h>
#include <string.h>

#define TALK "[{\"role\":\"user\",\"content\":\"ab\"},{\"role\":\"assistant\",\"content\":\" cd\",\"reasoning_content\":\"r\"}]"

static const char *const values[][2] = {
    {"1.5 - 0.25", "1.25"},
    {"'a\\n' | indent(2, blank=true)", "a\n  "},
    {"'a\\n' | indent(3)", "a\n"},
    {"'a\\n\\n' | indent(1, blank=true)", "a\n \n "},
    {"'\\nfoo' | indent(2, first=true)", "  \n  foo"},
    {"'' | indent(2, first=true)", "  "},
    {"'' | indent", ""},
    {"'x\\r\\ny' | indent(2)", "x\n  y"},
    {"'a\\rb\\n' | indent(2)", "a\n  b\n"},
    {"'a\\vb\\fc' | indent(1)", "a\n b\n c"},
    {"'a\\u0085b\\u2028\\n\\nc' | indent(1)", "a\n b\n\n\n c"},
    {"'\\n' | indent(1, true, true)", " \n "},
    {"'a\\r' | indent(2, blank=true)", "a"},
    {"'\\r' | indent(1, true)", " "},
    {"'a\\r\\r' | indent(1, blank=true)", "a\n "},
    {"'a\\n\\r' | indent(1, blank=true)", "a\n "},
    {"'a\\n\\nb\\n' | indent(1, true)", " a\n\n b\n"},
    {"'a\nb\n\nc' | indent('>>'), 'a\n\nb' | indent('- ', true, true)", "('a\\n>>b\\n\\n>>c', '- a\\n- \\n- b')"},
    {"0.5 - 1", "-0.5"},
    {"7.5 / 2", "3.75"},
    {"7 / 2.0", "3.5"},
    {"1 / -0.5", "-2.0"},
    {"1e308 * 10", "inf"},
    {"-1e308 * 10", "-inf"},
    {"1e308 * 10 - 1e308 * 10", "nan"},
    {"'ab'.startswith(('x', 'y'))", "False"},
    {"'ab'.endswith(())", "False"},
    {"'abc'[7] is defined", "False"},
    {"'abc'[-4] is defined", "False"},
    {"'abc'[0] ~ 'abc'[2] ~ 'abc'[-3]", "aca"},
    {"{none: 1, true: 2, false: 3, 4: 5, 1.5: 6} | tojson", "{\"null\": 1, \"true\": 2, \"false\": 3, \"4\": 5, \"1.5\": 6}"},
    {"{1: {2: 3}} | tojson(indent=1)", "{\n \"1\": {\n  \"2\": 3\n }\n}"},
    {"\"a\\x01\\x1f\\x7f\\b\\f\\v\" | tojson", "\"a\\u0001\\u001f\\b\\f\\u000b\""},
    {"[nowhere, {'a': nowhere}]", "[Undefined, {'a': Undefined}]"},
    {"1_000 + 1_0", "1010"},
    {"1_000.5", "1000.5"},
    {"range == range", "True"},
    {"range == dict", "False"},
    {"[range] == [range]", "True"},
    {"range in [dict, range]", "True"},
    {"namespace(a=1) == namespace(a=1)", "False"},
    {"(messages | first).role", "user"},
    {"{'a': 1}['items'] is defined, {'a': 1}['item'] is defined, {'items': 0}['items'], 'y' if {'a': 1}['keys'] else 'n'",
     "(True, False, 0, 'y')"},
    {"{'a': 1}['items']() | list, {'a': 1}['get']('a'), {'a': 1}['items']['type'] is defined", "([('a', 1)], 1, False)"},
    {"[{'items': [1]}, {'a': 1}] | selectattr('items') | list | length, 'ab'['upper']()", "(2, 'AB')"},
    {"('a' ~ 'b')[1]", "b"},
    {"'a\\\nb'", "ab"},
    {"0.1 + 0.2", "0.30000000000000004"},
    {"1.0e-4", "0.0001"},
    {"0.00001", "1e-05"},
    {"1e15", "1000000000000000.0"},
    {"1e16", "1e+16"},
    {"1e22", "1e+22"},
    {"-0.0", "-0.0"},
    {"true / 2", "0.5"},
    {"1 - true", "0"},
    {"2 - 0.5", "1.5"},
    {"[1, 2.0] == [1.0, 2]", "True"},
    {"(1,) == [1]", "False"},
    {"none in [none]", "True"},
    {"[[1, 2], [3, 4]] | map('last') | join(',')", "2,4"},
    {"[1, none, 2] | select('none') | list", "[None]"},
    {"[{'a': {'b': 1}}, {'a': {'b': 2}}] | selectattr('a.b', 'eq', 2) | list", "[{'a': {'b': 2}}]"},
    {"2 - 1 - 1.5", "-0.5"},
    {"6 / 3 / 4", "0.5"},
    {"[1, 2][true]", "2"},
    {"'ab'[false]", "a"},
    {"messages[0]['role'][0]", "u"},
    {"1.5 == 1.5 and 1.5 != 2.5", "True"},
    {"'abc'[1:2:none]", "b"},
};

/* Every filter with each of its arguments, by place and by name, as Jinja 3.1.6 has it. */
static const char *const filtered[][2] = {
    {"[{'a': 1, 'b': 'x'}, {'a': 1, 'b': 'y'}, {'a': 0, 'b': 'z'}, {'a': 2, 'b': 'Y'}] | sort(attribute='a') | "
     "map(attribute='b') | join",
     "zxyY"},
    {"[{'a': 1, 'b': 'x'}, {'a': 1, 'b': 'y'}, {'a': 0, 'b': 'z'}, {'a': 2, 'b': 'Y'}] | sort(attribute='a', reverse=true) | "
     "map(attribute='b') | join",
     "Yxyz"},
    {"[{'a': 1, 'b': 'x'}, {'a': 1, 'b': 'y'}, {'a': 0, 'b': 'z'}, {'a': 2, 'b': 'Y'}] | sort(true, attribute='a') | "
     "map(attribute='b') | join",
     "Yxyz"},
    {"[{'a': 1, 'b': 'x'}, {'a': 1, 'b': 'y'}, {'a': 0, 'b': 'z'}, {'a': 2, 'b': 'Y'}] | sort(attribute='b') | "
     "map(attribute='b') | join",
     "xyYz"},
    {"[{'a': 1, 'b': 'x'}, {'a': 1, 'b': 'y'}, {'a': 0, 'b': 'z'}, {'a': 2, 'b': 'Y'}] | sort(attribute='b', "
     "case_sensitive=true) | map(attribute='b') | join",
     "Yxyz"},
    {"[{'a': 1, 'b': 'x'}, {'a': 1, 'b': 'y'}, {'a': 0, 'b': 'z'}, {'a': 2, 'b': 'Y'}] | sort(true, true, 'b') | "
     "map(attribute='b') | join",
     "zyxY"},
    {"[{'t': {'n': 2}, 'k': 'p'}, {'t': {'n': 1}, 'k': 'q'}, {'t': {'n': 2}, 'k': 'r'}] | sort(attribute='t.n') | "
     "map(attribute='k') | join",
     "qpr"},
    {"[{'t': {'n': 2}, 'k': 'p'}, {'t': {'n': 1}, 'k': 'q'}, {'t': {'n': 2}, 'k': 'r'}] | sort(attribute='t.n', reverse=true) | "
     "map(attribute='k') | join",
     "prq"},
    {"['b', 'A', 'a', 'B'] | sort | join", "AabB"},
    {"['b', 'A', 'a', 'B'] | sort(reverse=true) | join", "bBAa"},
    {"[none, none] | sort, [{'a': 1}, {'a': 1}] | sort", "([None, None], [{'a': 1}, {'a': 1}])"},
    {"['b', 'A', 'a', 'B'] | sort(case_sensitive=true) | join", "ABab"},
    {"['b', 'A', 'a', 'B'] | sort(true, true) | join", "baBA"},
    {"[3, 1.5, 2, true] | sort", "[True, 1.5, 2, 3]"},
    {"'hello' | sort | join", "ehllo"},
    {"{'b': 1, 'A': 3, 'a': 2, 'C': 1} | dictsort", "[('A', 3), ('a', 2), ('b', 1), ('C', 1)]"},
    {"{'b': 1, 'A': 3, 'a': 2, 'C': 1} | dictsort(true)", "[('A', 3), ('C', 1), ('a', 2), ('b', 1)]"},
    {"{'b': 1, 'A': 3, 'a': 2, 'C': 1} | dictsort(false, 'value')", "[('b', 1), ('C', 1), ('a', 2), ('A', 3)]"},
    {"{'b': 1, 'A': 3, 'a': 2, 'C': 1} | dictsort(by='value', reverse=true)", "[('A', 3), ('a', 2), ('b', 1), ('C', 1)]"},
    {"{'b': 1, 'A': 3, 'a': 2, 'C': 1} | dictsort(reverse=true)", "[('C', 1), ('b', 1), ('A', 3), ('a', 2)]"},
    {"{'b': 1, 'A': 3, 'a': 2, 'C': 1} | dictsort(case_sensitive=true, reverse=true)",
     "[('b', 1), ('a', 2), ('C', 1), ('A', 3)]"},
    {"['b', 'A', 'a', 'B', 'b'] | unique | join", "bA"},
    {"['b', 'A', 'a', 'B', 'b'] | unique(true) | join", "bAaB"},
    {"['b', 'A', 'a', 'B', 'b'] | unique(case_sensitive=true) | list", "['b', 'A', 'a', 'B']"},
    {"[{'a': 1, 'b': 'x'}, {'a': 1, 'b': 'y'}, {'a': 0, 'b': 'z'}, {'a': 2, 'b': 'Y'}] | unique(attribute='a') | "
     "map(attribute='b') | join",
     "xzY"},
    {"[{'a': 1, 'b': 'x'}, {'a': 1, 'b': 'y'}, {'a': 0, 'b': 'z'}, {'a': 2, 'b': 'Y'}] | unique(false, 'b') | map(attribute='b') "
     "| join",
     "xyz"},
    {"['b', 'A', 'c'] | min", "A"},
    {"['b', 'A', 'c'] | max", "c"},
    {"['b', 'A', 'c'] | min(true)", "A"},
    {"['b', 'a', 'C'] | max(case_sensitive=true)", "b"},
    {"([{'a': 1, 'b': 'x'}, {'a': 1, 'b': 'y'}, {'a': 0, 'b': 'z'}, {'a': 2, 'b': 'Y'}] | min(attribute='a')).b", "z"},
    {"([{'a': 1, 'b': 'x'}, {'a': 1, 'b': 'y'}, {'a': 0, 'b': 'z'}, {'a': 2, 'b': 'Y'}] | max(attribute='a')).b", "Y"},
    {"([{'a': 1, 'b': 'x'}, {'a': 1, 'b': 'y'}, {'a': 0, 'b': 'z'}, {'a': 2, 'b': 'Y'}] | max(attribute='b')).b", "z"},
    {"[] | min is defined", "False"},
    {"[2, 1, 1.0] | min", "1"},
    {"[{'a': 1, 'b': 'x'}, {'a': 1, 'b': 'y'}, {'a': 0, 'b': 'z'}, {'a': 2, 'b': 'Y'}] | map(attribute='c', default='-') | "
     "join(',')",
     "-,-,-,-"},
    {"[{'a': 1, 'b': 'x'}, {'a': 1, 'b': 'y'}, {'a': 0, 'b': 'z'}, {'a': 2, 'b': 'Y'}] | map(attribute='a') | list",
     "[1, 1, 0, 2]"},
    {"[{'t': {'n': 2}, 'k': 'p'}, {'t': {'n': 1}, 'k': 'q'}, {'t': {'n': 2}, 'k': 'r'}] | map(attribute='t.n') | join('+')",
     "2+1+2"},
    {"['a', 'b'] | map('upper') | join", "AB"},
    {"['abc', 'de'] | map('replace', 'b', '-') | list", "['a-c', 'de']"},
    {"[' a ', 'b '] | map('trim') | list", "['a', 'b']"},
    {"['1', 'x'] | map('int', 7) | list", "[1, 7]"},
    {"['1', 'x'] | map('int', default=8) | list", "[1, 8]"},
    {"[1, 2, 3, 4] | select('odd') | list", "[1, 3]"},
    {"[1, 2, 3, 4] | reject('odd') | list", "[2, 4]"},
    {"[0, 1, '', 'a'] | select | list", "[1, 'a']"},
    {"[0, 1, '', 'a'] | reject | list", "[0, '']"},
    {"[1, 2, 3, 4] | select('gt', 2) | list", "[3, 4]"},
    {"[1, 2, 3, 4] | reject('in', [2, 3]) | list", "[1, 4]"},
    {"[{'a': 1, 'b': 'x'}, {'a': 1, 'b': 'y'}, {'a': 0, 'b': 'z'}, {'a': 2, 'b': 'Y'}] | selectattr('a') | map(attribute='b') | "
     "join",
     "xyY"},
    {"[{'a': 1, 'b': 'x'}, {'a': 1, 'b': 'y'}, {'a': 0, 'b': 'z'}, {'a': 2, 'b': 'Y'}] | rejectattr('a') | map(attribute='b') | "
     "join",
     "z"},
    {"[{'a': 1, 'b': 'x'}, {'a': 1, 'b': 'y'}, {'a': 0, 'b': 'z'}, {'a': 2, 'b': 'Y'}] | selectattr('a', 'eq', 1) | "
     "map(attribute='b') | join",
     "xy"},
    {"[{'a': 1, 'b': 'x'}, {'a': 1, 'b': 'y'}, {'a': 0, 'b': 'z'}, {'a': 2, 'b': 'Y'}] | rejectattr('a', 'eq', 1) | "
     "map(attribute='b') | join",
     "zY"},
    {"[{'a': 1, 'b': 'x'}, {'a': 1, 'b': 'y'}, {'a': 0, 'b': 'z'}, {'a': 2, 'b': 'Y'}] | selectattr('b', 'in', ['x', 'z']) | "
     "map(attribute='b') | join",
     "xz"},
    {"[{'t': {'n': 2}, 'k': 'p'}, {'t': {'n': 1}, 'k': 'q'}, {'t': {'n': 2}, 'k': 'r'}] | selectattr('t.n', '>', 1) | "
     "map(attribute='k') | join",
     "pr"},
    {"[{'a': 1, 'b': 'x'}, {'a': 1, 'b': 'y'}, {'a': 0, 'b': 'z'}, {'a': 2, 'b': 'Y'}] | selectattr('c', 'defined') | list",
     "[]"},
    {"[{'a': 1, 'b': 'x'}, {'a': 1, 'b': 'y'}, {'a': 0, 'b': 'z'}, {'a': 2, 'b': 'Y'}] | selectattr('c', 'undefined') | list | "
     "length",
     "4"},
    {"[1, 2, 3] | join", "123"},
    {"[1, 2, 3] | join(', ')", "1, 2, 3"},
    {"[{'a': 1, 'b': 'x'}, {'a': 1, 'b': 'y'}, {'a': 0, 'b': 'z'}, {'a': 2, 'b': 'Y'}] | join('-', attribute='b')", "x-y-z-Y"},
    {"[{'a': 1, 'b': 'x'}, {'a': 1, 'b': 'y'}, {'a': 0, 'b': 'z'}, {'a': 2, 'b': 'Y'}] | join('-', 'a')", "1-1-0-2"},
    {"[{'a': 1, 'b': 'x'}, {'a': 1, 'b': 'y'}, {'a': 0, 'b': 'z'}, {'a': 2, 'b': 'Y'}] | join(d='+', attribute='a')", "1+1+0+2"},
    {"'abc' | join('.')", "a.b.c"},
    {"{'a': 1, 'b': 2} | join", "ab"},
    {"'abc' | first", "a"},
    {"'abc' | last", "c"},
    {"[1, 2] | first", "1"},
    {"[1, 2] | last", "2"},
    {"'' | first is defined", "False"},
    {"[] | last is defined", "False"},
    {"'abc' | reverse", "cba"},
    {"[1, 2, 3] | reverse | list", "[3, 2, 1]"},
    {"{'a': 1, 'b': 2} | list", "['a', 'b']"},
    {"{'a': 1, 'b': 2} | items | list", "[('a', 1), ('b', 2)]"},
    {"{'a': 1} | length", "1"},
    {"'äß' | length", "2"},
    {"'äß' | list", "['ä', 'ß']"},
    {"nowhere | default('x')", "x"},
    {"'' | default('x')", ""},
    {"'' | default('x', true)", "x"},
    {"none | default('x')", "None"},
    {"none | default('x', boolean=true)", "x"},
    {"0 | d(5, true)", "5"},
    {"false | d(5)", "False"},
    {"'ab cd-ef gH' | title", "Ab Cd-Ef Gh"},
    {"'aB CD' | capitalize", "Ab cd"},
    {"'ÄB' | capitalize | length", "2"},
    {"'Hello' | upper", "HELLO"},
    {"'größe, Übung, û' | lower, 'é-Ø' | upper, 'école ÉTÉ' | title, 'ñU' | capitalize",
     "('größe, übung, û', 'É-Ø', 'École Été', 'Ñu')"},
    {"'Ёлка яЩ' | upper, 'ЁЛКА, ЯЩ' | lower, 'ёлка щит' | title, 'a1b éC日d'.title()",
     "('ЁЛКА ЯЩ', 'ёлка, ящ', 'Ёлка Щит', 'A1B Éc日D')"},
    {"'日本 🙂 한국 שלום สวัสดี e\u0301' | upper",
     "日本 🙂 한국 שלום สวัสดี E\u0301"},
    {"{'Б': 1, 'а': 2, '日': 3, 'Ä': 4, 'z': 5} | dictsort | map('first') | join", "zÄаБ日"},
    {"'Hello' | lower", "hello"},
    {"'xxaxx' | trim('x')", "a"},
    {"'  a\\n' | trim", "a"},
    {"'xyaxy' | trim('yx')", "a"},
    {"'xyaxy' | trim(chars='x')", "yaxy"},
    {"'aXaXa' | replace('X', '-')", "a-a-a"},
    {"'aXaXa' | replace('X', '-', 1)", "a-aXa"},
    {"'aXaXa' | replace('X', '', count=2)", "aaa"},
    {"'aaa' | replace('aa', 'b')", "ba"},
    {"'aaa' | replace('a', 'aa', 0)", "aaa"},
    {"'12' | int", "12"},
    {"'x' | int", "0"},
    {"'x' | int(3)", "3"},
    {"'1.9' | int", "1"},
    {"'-2.9' | int", "-2"},
    {"2.9 | int", "2"},
    {"-2.9 | int", "-2"},
    {"true | int", "1"},
    {"' +7\\n' | int, '-9223372036854775808' | int, '1e2' | int, '1 2' | int(8), '' | int(8), '0x1f' | int(8)",
     "(7, -9223372036854775808, 100, 8, 8, 8)"},
    {"'inf' | int(7), 'nan' | int(7), [] | int(7), '+-1' | int(7)", "(7, 7, 7, 7)"},
    {"5 | string", "5"},
    {"1.0 | string", "1.0"},
    {"none | string", "None"},
    {"[1, 'a'] | string", "[1, 'a']"},
    {"'a\\nb\\n\\nc' | indent", "a\n    b\n\n    c"},
    {"'a\\nb\\n\\nc' | indent(2)", "a\n  b\n\n  c"},
    {"'a\\nb\\n\\nc' | indent(2, true)", "  a\n  b\n\n  c"},
    {"'a\\nb\\n\\nc' | indent(2, true, true)", "  a\n  b\n  \n  c"},
    {"'a\\nb\\n\\nc' | indent(width=1, blank=true)", "a\n b\n \n c"},
};

static strata_status render(struct st_rendered *out, const char *template)
{
    struct st_template_input input = {.year = 2026, .month = 2, .day = 3};
    struct st_template *t = NULL;
    st_json *messages;
    strata_status st;

    assert_ok(st_json_parse(&messages, TALK, strlen(TALK), "talk"));
    input.messages = messages;
    st = st_template_open(&t, template, strlen(template), "t");
    if (st == STRATA_OK)
        st = st_template_render(out, t, &input);
    st_template_close(t);
    st_json_free(messages);
    return st;
}

static void assert_renders(const char *template, const char *text)
{
    struct st_rendered out;

    if (render(&out, template) != STRATA_OK)
        fail_msg("%s: %s", template, strata_last_error());
    if (strcmp(out.text, text) != 0)
        fail_msg("%s: %s, not %s", template, out.text, text);
    st_rendered_free(&out);
}

static void all_render(const char *const (*rows)[2], size_t count)
{
    char template[256];

    for (size_t i = 0; i < count; i++) {
        snprintf(template, sizeof(template), "{{ %s }}", rows[i][0]);
        assert_renders(template, rows[i][1]);
    }
}

TEST(values_are_pythons)
{
    all_render(values, sizeof(values) / sizeof(values[0]));
}

TEST(filters_take_their_arguments)
{
    all_render(filtered, sizeof(filtered) / sizeof(filtered[0]));
}

/* Within a list or a dict a text is quoted as repr() does it: characters that cannot be seen, but for the space, by their number.
 */
TEST(hidden_characters_are_escaped)
{
    static const struct {
        const char *text, *quoted;
    } rows[] = {
        {"\x1f", "\\x1f"},
        {" ", " "},
        {"~", "~"},
        {"\x7f", "\\x7f"},
        {"\xc2\x80", "\\x80"},
        {"\xc2\xa0", "\\xa0"},
        {"\u00a1", "\u00a1"},
        {"\u00ac", "\u00ac"},
        {"\u00ad", "\\xad"},
        {"\u00ae", "\u00ae"},
        {"\u00e9", "\u00e9"},
        {"\u0605", "\\u0605"},
        {"\u0606", "\u0606"},
        {"\u1680", "\\u1680"},
        {"\u2000", "\\u2000"},
        {"\u200f", "\\u200f"},
        {"\u2010", "\u2010"},
        {"\u2027", "\u2027"},
        {"\u2028", "\\u2028"},
        {"\u202f", "\\u202f"},
        {"\u2030", "\u2030"},
        {"\u3000", "\\u3000"},
        {"\u3001", "\u3001"},
        {"\u65e5", "\u65e5"},
        {"\xee\x80\x80", "\\ue000"},
        {"\xef\xa3\xbf", "\\uf8ff"},
        {"\uf900", "\uf900"},
        {"\ufeff", "\\ufeff"},
        {"\ufffd", "\ufffd"},
        {"\U0001f600", "\U0001f600"},
        {"\U0001d173", "\\U0001d173"},
        {"\U000e0001", "\\U000e0001"},
        {"\U000e0100", "\U000e0100"},
        {"\xf4\x80\x80\x80", "\\U00100000"},
    };
    char template[128], text[128];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        snprintf(template, sizeof(template), "{{ ['a%sb'] }}{{ {'%s': 'a%sb'} }}{{ 'a%sb' }}", rows[i].text, rows[i].text,
                 rows[i].text, rows[i].text);
        snprintf(text, sizeof(text), "['a%sb']{'%s': 'a%sb'}a%sb", rows[i].quoted, rows[i].quoted, rows[i].quoted, rows[i].text);
        assert_renders(template, text);
    }
}

/* As json.dumps() names them, where str() says inf and nan. */
TEST(numbers_that_are_none_in_json)
{
    assert_renders("{{ [1e999, -1e999, 1e999 - 1e999] | tojson }}", "[Infinity, -Infinity, NaN]");
    assert_renders("{{ {1e999: 1, -1e999: 2, 1.5: 3} | tojson }}", "{\"Infinity\": 1, \"-Infinity\": 2, \"1.5\": 3}");
    assert_renders("{{ [1e999, -1e999, 1e999 - 1e999] }}", "[inf, -inf, nan]");
}

/* A condition sees what the body has set so far; loop.last and nextitem look one item ahead, length and revindex at all. */
TEST(conditions_are_asked_when_the_loop_gets_there)
{
    static const char *const rows[][2] = {
        {"{% set ns = namespace(found=false) %}{% for m in messages if not ns.found %}"
         "{% if m.role == 'user' %}{% set ns.found = true %}{% endif %}{{ m.role }},{% endfor %}",
         "user,"},
        {"{% set ns = namespace(last='') %}{% for m in ['a','a','b'] if m != ns.last %}"
         "{% set ns.last = m %}{{ m }}{% endfor %}",
         "ab"},
        {"{% set ns = namespace(stop=false) %}{% for x in [3,1,2] if not ns.stop %}"
         "{% if x == 1 %}{% set ns.stop = true %}{% endif %}{{ x }},{{ loop.index }};{% endfor %}",
         "3,1;1,2;"},
        {"{% set ns = namespace(stop=false) %}{% for x in [3,1,2] if not ns.stop %}"
         "{{ x }}{{ loop.last }}{% if x == 1 %}{% set ns.stop = true %}{% endif %}{% endfor %}",
         "3False1False2True"},
        {"{% set ns = namespace(stop=false) %}{% for x in [3,1,2] if not ns.stop %}"
         "{% if x == 3 %}{% set ns.stop = true %}{% endif %}{{ x }}{{ loop.nextitem is defined }}{{ loop.length }}{% endfor %}",
         "3False1"},
        {"{% set ns = namespace(stop=false) %}{% for x in [3,1,2] if not ns.stop %}"
         "{{ loop.revindex }}{% set ns.stop = true %}{% endfor %}",
         "321"},
        {"{% for x in [1,2,3,4,5] if x is odd %}"
         "{{ loop.previtem }}{{ x }}{{ loop.nextitem }}{{ loop.revindex0 }}{{ loop | length }} {% endfor %}",
         "1323 13513 3503 "},
        {"{% for a, b in [[1, 2], 'xy', {'p': 1, 'q': 2}] if true %}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}",
         "('x', 'y');(1, 2)('p', 'q');('x', 'y');"},
        {"{% set ns = namespace(on=false) %}{% for x in [1,2,3] if ns.on %}{{ x }}{% else %}none{% endfor %}", "none"},
        {"{% for x in [1,2] %}{% for y in [3,4] if y > loop.index + 2 %}{{ y }}{% endfor %};{% endfor %}", "4;;"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_renders(rows[i][0], rows[i][1]);
}

/* Jinja notes at the end of a turn's body that there was one: turns that a break or a continue ends are none. */
TEST(loops_whose_turns_all_end_early_have_an_else)
{
    assert_renders("{% for x in [1,2] %}{{ x }}{% continue %}{% else %}none{% endfor %}", "12none");
    assert_renders("{% for x in [1,2] %}{{ x }}{% break %}{% else %}none{% endfor %}", "1none");
    assert_renders("{% for x in [1,2] %}{{ x }}{% if x == 2 %}{% break %}{% endif %}{% else %}none{% endfor %}", "12");
    assert_renders("{% for x in [1,2] %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% else %}none{% endfor %}", "2");
}

/* What Jinja writes as a generator is true, and read once: by a loop as far as it comes, by `in` up to what it finds. */
TEST(iterators_are_read_once)
{
    static const char *const rows[][2] = {
        {"{% if messages | selectattr('role', 'eq', 'system') %}Y{% else %}N{% endif %}", "Y"},
        {"{% if [] | map('upper') and {} | items and [] | reverse and [] | unique and nowhere | reject %}Y{% endif %}", "Y"},
        {"{% if [] | sort or [] | list or '' | reverse or {} | dictsort or [1] | reject | reverse %}Y{% else %}N{% endif %}",
         "N"},
        {"{% set s = messages | selectattr('role', 'eq', 'user') %}{{ s | list | length }}{{ s | list | length }}", "10"},
        {"{% set s = [2, 1] | select %}{{ s | join }},{{ s | join }},{{ s | sort }}{{ s | max is defined }}", "21,,[]False"},
        {"{% set s = [1, 2, 3] | reverse %}{{ s | first }}{{ s | first }}{{ s | list }}{{ s | first is defined }}", "32[1]False"},
        {"{% set s = [1, 2, 3] | map('string') %}{{ '2' in s }}{{ s | list }}{{ '1' in s }}", "True['3']False"},
        {"{{ [] | map('upper') | unique | sort | join }}{{ nowhere | map('upper') | list }}", "[]"},
        {"{% set s = [1, 2, 3] | select %}{% for x in s %}{% if x == 2 %}{% break %}{% endif %}{% endfor %}{{ s | list }}",
         "[3]"},
        {"{% set s = [1, 2, 3] | select %}{% for x in s %}{{ loop.last }}{% break %}{% endfor %}{{ s | list }}", "False[3]"},
        {"{% set s = [1, 2, 3] | select %}{% for x in s %}{{ loop.length }}{% break %}{% endfor %}{{ s | list }}", "3[]"},
        {"{% set s = [1, 2, 3] | select %}{% for x in s if x > 1 %}{{ x }}{% break %}{% endfor %}{{ s | list }}", "2[3]"},
        {"{% for k, v in {'a': 1, 'b': 2} | items %}{{ k }}{{ v }}{{ loop.last }}{% endfor %}", "a1Falseb2True"},
        {"{% set s = [2, 1] | select %}{{ s == s }}{{ s == [2, 1] }}{{ s is iterable }}{{ s is sequence }}{{ s[0] is defined }}",
         "TrueFalseTrueFalseFalse"},
        {"{% set a, b = [2, 1] | select %}{{ a }}{{ b }}{{ {'a': 1}.items() | length }}{{ {'a': 1}.items() | reverse | list }}",
         "211[('a', 1)]"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_renders(rows[i][0], rows[i][1]);
}

/* Of the tags it alone takes no newline with it, and no +. */
TEST(raw_keeps_the_newline_behind_it)
{
    assert_renders("a\n  {% raw %}\n{{ x }}\n  {% endraw %}\nb", "a\n\n{{ x }}\nb");
    assert_renders("{%- raw -%} \n x {%- endraw -%}\n b", "xb");
    assert_renders("{% raw -%}\n\nx{% endraw +%}\nb", "x\nb");
}

TEST(defaults_of_a_macro_mean_its_parameters)
{
    assert_renders("{% set k = 'out' %}{% macro m(k=k) %}[{{ k }}]{% endmacro %}{{ m() }}{{ m(1) }}", "[][1]");
    assert_renders("{% set b = 'out' %}{% macro m(a=b, b=2) %}[{{ a }}{{ b }}]{% endmacro %}{{ m() }}{{ m(b=3) }}", "[2][33]");
    assert_renders("{% set z = 'out' %}{% macro m(a, b=a ~ z) %}[{{ b }}]{% endmacro %}{{ m(1) }}{{ m() }}", "[1out][out]");
}

TEST(refusals_say_what_is_wrong)
{
    static const char *const rows[][2] = {
        {"{{ [1, 2][::0] }}", "a slice with a step of 0"},
        {"{{ nowhere[1:] }}", "'nowhere' is undefined: it has no parts"},
        {"{{ 5.0 / 0 }}", "a division by zero"},
        {"{{ [1][1:2:1:1] }}", "a slice has at most three parts"},
        {"{{ messages[0 1] }}", "] is expected after the index"},
        {"{{ messages[] }}", "an index is expected between [ and ]"},
        {"{{ dict(a=1, 2) }}", "an argument without a name after one with a name"},
        {"{{ messages.'a' }}", "a name is expected after the point"},
        {"{{ 'a' ? 'b' }}", "the character '?' has no meaning in a tag"},
        {"{{ range(1, 2, 3, 4, 5, 6, 7, 8, 9) }}", "more than 8 arguments"},
        {"{{ dict(a=1, b=2, c=3, d=4, e=5, f=6, g=7, h=8, i=9) }}", "more than 8 arguments"},
        {"{{ nowhere | int }}", "'nowhere' is undefined: int needs a value"},
        {"{{ '7_0' | int }}", "int of a text with more than 63 bytes, with _, or past ASCII is not supported"},
        {"{{ '٣' | int }}", "int of a text with more than 63 bytes, with _, or past ASCII is not supported"},
        {"{{ ('1' * 64) | int }}", "int of a text with more than 63 bytes, with _, or past ASCII is not supported"},
        {"{{ '12' | int(0, 16) }}", "int with a base is not supported"},
        {"{{ 1.5 % 1 }}", "% of a float is not supported"},
        {"{{ 5 // 2 }}", "the tag's end is expected before '//'"},
        {"{{ (2 ** 3) }}", ") is expected before '**'"},
        {"{{ {} | tojson(sort_keys=true) }}", "tojson with sort_keys is not supported"},
        {"{{ messages | sort(attribute='role,content') }}", "sort by more than one attribute is not supported"},
        {"{{ 'straße' | upper }}", "the case of U+00DF is not supported: only ASCII, Latin-1 and Cyrillic letters"},
        {"{{ 'ΑΣ' | lower }}", "the case of U+0391 is not supported: only ASCII, Latin-1 and Cyrillic letters"},
        {"{{ {'a': 1, 'ł': 2} | dictsort }}", "the case of U+0142 is not supported: only ASCII, Latin-1 and Cyrillic letters"},
        {"{{ 1 is eq }}", "the test 'eq' needs something to compare with"},
        {"{{ 'abc' | replace('', '-') }}", "replace() of an empty string is not supported"},
        {"{% for x in [1] %}{{ loop.cycle }}{% endfor %}", "loop.cycle is not supported"},
        {"{{ {(1, 2): 3} | tojson }}", "a tuple cannot be a key in JSON"},
        {"{{ {range: 1} | tojson }}", "a function cannot be a key in JSON"},
        {"{{ messages | sort(attribute=1.5) }}", "a float as the name of an attribute"},
        {"{{ [3, 1] | dictsort }}", "the items of a list: only a dict has pairs"},
        {"{{ ', '.join(['a', 1]) }}", "join() of an integer: only of texts"},
        {"{{ ''.join([nowhere]) }}", "join() of an undefined value: only of texts"},
        {"{{ nowhere | dictsort }}", "'nowhere' is undefined: it has no items to sort"},
        {"{{ {'a': 1} | dictsort(by='x') }}", "dictsort(by=...) must be 'key' or 'value'"},
        {"{{ messages | unique | list }}", "unique of a dict: only what may be the key of a dict"},
        {"{{ [([1], 2)] | unique | list }}", "unique of a tuple: only what may be the key of a dict"},
        {"{{ [1] in {} }}", "a list cannot be the key of a dict"},
        {"{{ {(1, [2]): 3} }}", "a tuple cannot be the key of a dict"},
        {"{{ 'a' | trim(1) }}", "trim of an integer: only of the characters of a text"},
        {"{{ [1] | select | length }}", "an iterator has no length"},
        {"{{ [1] | select | last }}", "an iterator has no last item: make a list of it before"},
        {"{{ [1] | select | tojson }}", "an iterator cannot be written as JSON"},
        {"{{ [1] | select }}", "an iterator cannot be printed"},
        {"{{ ([1] | select) + [2] }}", "an iterator + a list has no meaning"},
        {"{{ ([1] | select)[1:] }}", "an iterator has no parts"},
        {"{% raw +%}a{% endraw %}", "the tag 'raw' is not supported here"},
        {"{% raw %}a{% endraw x %}", "endraw takes nothing"},
        {"{{ strftime_now(1) }}", "strftime_now() needs a string as its argument 1, not an integer"},
        {"{{ raise_exception(strftime_now) }}", "a function cannot be printed"},
        {"{{ ('a' * 1024) * 65537 }}", "the template needs more than 256 MiB"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_rendered out;

        if (render(&out, rows[i][0]) == STRATA_OK)
            fail_msg("%s is rendered", rows[i][0]);
        if (strcmp(strata_last_error(), rows[i][1]) != 0 && strcmp(strata_last_error() + strlen("t, line 1: "), rows[i][1]) != 0)
            fail_msg("%s: %s", rows[i][0], strata_last_error());
    }
}

/* tests/core/test_yaml.c - what scalars are, what is refused and where, aliases and their limits, and the Nth failure.  What
 * PyYAML's safe_load() with OmegaConf's numbers says of the scalars was asked of them once. */
#include "core/json/json_build.h"
#include "core/yaml/yaml.h"
#include "tests/common/fault_walk.h"
#include "tests/common/json_member.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect(const char *yaml, const char *json)
{
    st_json *root = NULL;
    char *text;

    if (st_yaml_parse(&root, yaml, strlen(yaml), "t") != STRATA_OK)
        fail_msg("%s: %s", yaml, strata_last_error());
    text = json_whole(root);
    if (strcmp(text, json) != 0)
        fail_msg("%s: %s, not %s", yaml, text, json);
    free(text);
    st_json_free(root);
}

static void refuse(const char *yaml, const char *sentence)
{
    st_json *root = NULL;

    assert_int_equal(st_yaml_parse(&root, yaml, strlen(yaml), "t"), STRATA_E_CONFIG);
    assert_null(root);
    if (strstr(strata_last_error(), sentence) == NULL)
        fail_msg("%s: %s, not %s", yaml, strata_last_error(), sentence);
}

TEST(scalars)
{
    static const char *const rows[][2] = {
        {"yes", "true"},
        {"No", "false"},
        {"ON", "true"},
        {"off", "false"},
        {"True", "true"},
        {"y", "\"y\""},
        {"tRUE", "\"tRUE\""},
        {"~", "null"},
        {"null", "null"},
        {"Null", "null"},
        {"none", "\"none\""},
        {"", "null"},
        {"\"\"", "\"\""},
        {"'no'", "\"no\""},
        {"0", "0"},
        {"-3", "-3"},
        {"+12", "12"},
        {"1_000", "1000"},
        {"0x1F", "31"},
        {"-0x10", "-16"},
        {"010", "8"},
        {"0b101", "5"},
        {"08", "\"08\""},
        {"0o17", "\"0o17\""},
        {"0x", "\"0x\""},
        {"12a", "\"12a\""},
        {"1-2", "\"1-2\""},

        {"1e-4", "0.0001"},
        {"1.0e-4", "0.0001"},
        {"5e8", "500000000.0"},
        {"1E+3", "1000.0"},
        {"1.5", "1.5"},
        {"1.", "1.0"},
        {".5", "0.5"},
        {".5e-3", "0.0005"},
        {".5e3", "\".5e3\""},
        {"-.5", "\"-.5\""},
        {"1_0.5", "10.5"},
        {"1e", "\"1e\""},
        {"e5", "\"e5\""},
        {"2026-01-31", "\"2026-01-31\""},
        {"1.2.3", "\"1.2.3\""},
        {"localhost:29500", "\"localhost:29500\""},
        {"9007199254740993", "9007199254740992"},
        {"1.0", "1.0"},
        {"a b", "\"a b\""},
        {"|\n  x\n  y\n", "\"x\\ny\\n\""},
        {">\n  x\n  y\n", "\"x y\\n\""},
        {"\"\\u00e9\"", "\"\xc3\xa9\""},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char yaml[80], json[80];

        snprintf(yaml, sizeof(yaml), "- %s", rows[i][0]);
        snprintf(json, sizeof(json), "[%s]", rows[i][1]);
        expect(yaml, json);
    }
}

TEST(shapes)
{
    expect("", "null");
    expect("# a comment\n", "null");
    expect("\xef\xbb\xbf"
           "a: 1",
           "{\"a\":1}");
    expect("\xef\xbb\xbf"
           "a: 1\r\nb:\r\n- 2\r\n",
           "{\"a\":1,\"b\":[2]}");
    expect("\xef\xbb\xbf", "null");
    expect("---\na: 1\n...\n", "{\"a\":1}");
    expect("a: {b: [1, {c: d}], e: }\nf:\n- g\n-  - h\n", "{\"a\":{\"b\":[1,{\"c\":\"d\"}],\"e\":null},\"f\":[\"g\",[\"h\"]]}");
    expect("yes: 1\n1: 2\n\"null\": 3\n", "{\"yes\":1,\"1\":2,\"null\":3}"); /* keys are words */
    expect("a: [1,\t2]\t# tabs that indent nothing\n", "{\"a\":[1,2]}");
}

TEST(aliases_and_merges)
{
    expect("a: &x [1, 2]\nb: *x\n", "{\"a\":[1,2],\"b\":[1,2]}");
    expect("a: &x 1\nb: &x 2\nc: *x\n", "{\"a\":1,\"b\":2,\"c\":2}");
    expect("d: &d {a: 1, b: 2}\ne: {<<: *d, b: 3}\n", "{\"d\":{\"a\":1,\"b\":2},\"e\":{\"b\":3,\"a\":1}}");
    expect("e: {<<: [{a: 1}, {a: 2, b: 2}], c: 3}\n", "{\"e\":{\"c\":3,\"a\":1,\"b\":2}}");
    expect("e: {<<: &m {a: 1}}\nf: *m\n", "{\"e\":{\"a\":1},\"f\":{\"a\":1}}");
    refuse("a: *x\n", "t:1:4: no anchor before this has the name \"x\"");
    refuse("a: &x\n  - b: *x\n", "t:2:8: an alias within what it stands for: \"x\"");
    refuse("a: {<<: 1}\n", "<< takes a mapping");
    refuse("a: {<<: {b: 1}, <<: {c: 1}}\n", "t:1:17: duplicate key \"<<\"");
    refuse("a: {<<: [{b: 1}, 2]}\n", "<< takes a mapping");
}

TEST(what_is_refused)
{
    refuse("a: 1\nb: 2\na: 3\n", "t:3:1: duplicate key \"a\"");
    refuse("x:\n  y: {a: 1, a: 2}\n", "t:2:13: duplicate key \"a\"");
    refuse("a: !!str 1\n", "t:1:4: tags are not read here: \"tag:yaml.org,2002:str\"");
    refuse("a: !!python/object/apply:os.system [x]\n", "t:1:4: tags are not read here");
    refuse("!x {a: 1}\n", "t:1:1: tags are not read here");
    refuse("? [a]\n: 1\n", "t:1:3: a key that is not a word");
    refuse("a: .inf\n", "t:1:4: not a finite number: \".inf\"");
    refuse("a: -.INF\n", "not a finite number");
    refuse("a: .nan\n", "not a finite number");
    refuse("a: 1e999\n", "not a finite number");
    refuse("a: 1:30\n", "t:1:4: a number of base 60");
    refuse("a: 1\n---\nb: 2\n", "t:2:1: a second document");
    refuse("a:\n\tb: 1\n", "t:2:1: a tab indents this line");
    refuse("a: [1, 2\nb: 3\n", "t:2:");
    refuse("a: \"x\n", "t:");
    refuse("a: \"x\\0y\"\n", "t:1:4: a zero byte in a value");
    refuse("\"a\\0\": 1\n", "t:1:1: a zero byte in a key");
    refuse("a: \xff\n", "t: byte 4:");
    refuse("\xef\xbb\xbf"
           "a: \xff\n",
           "t: byte 7:");
    refuse("a: \xc3\x28\n", "UTF-8");
}

static void repeat(char *to, const char *what, size_t count)
{
    *to = '\0';
    for (size_t i = 0; i < count; i++)
        to = stpcpy(to, what);
}

TEST(limits)
{
    static char text[200000];
    st_json *root = NULL;
    char *end;

    repeat(text, "[", ST_YAML_DEPTH_MAX);
    repeat(text + strlen(text), "]", ST_YAML_DEPTH_MAX);
    assert_int_equal(st_yaml_parse(&root, text, strlen(text), "t"), STRATA_OK);
    st_json_free(root);
    repeat(text, "[", ST_YAML_DEPTH_MAX + 1);
    repeat(text + strlen(text), "]", ST_YAML_DEPTH_MAX + 1);
    refuse(text, "nested deeper than 64");
    /* A billion laughs, and what nests by aliases alone. */
    end = stpcpy(text, "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for (int i = 1; i < 10; i++)
        end += sprintf(end, "a%d: &a%d [*a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d]\n", i, i, i - 1, i - 1, i - 1,
                       i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1);
    refuse(text, "more than 16384 values");
    /* An alias counts as what it stands for: the top, a list of 8001 values and a copy of it leave room for 381 others. */
    end = stpcpy(text, "- &a\n");
    for (int i = 0; i < 8000; i++)
        end = stpcpy(end, "  - x\n");
    end = stpcpy(end, "- *a\n");
    assert_int_equal(st_yaml_parse(&root, text, strlen(text), "t"), STRATA_OK);
    st_json_free(root);
    repeat(end, "- *a\n", 1);
    refuse(text, "t:8003:3: more than 16384 values");
    repeat(end, "- x\n", 382);
    refuse(text, "t:8384:3: more than 16384 values");
    end = stpcpy(text, "a0: &a0 [x]\n");
    for (int i = 1; i < 100; i++)
        end += sprintf(end, "a%d: &a%d [*a%d]\n", i, i, i - 1);
    refuse(text, "nested deeper than 64");
    end = text;
    for (int i = 0; i < 1025; i++)
        end += sprintf(end, "- &a%d x\n", i);
    refuse(text, "more than 1024 anchors");
    repeat(text, "- x\n", ST_YAML_VALUES_MAX);
    refuse(text, "t:16384:3: more than 16384 values");
}

TEST(values_know_their_lines)
{
    static const char text[] = "# one\na: 1\nb:\n  c: [x,\n    y]\n  d: &m\n    e: 2\nf: *m\n";
    const st_json *b, *c;
    st_json *root;

    assert_int_equal(st_yaml_parse(&root, text, strlen(text), "t"), STRATA_OK);
    assert_int_equal(st_json_line(st_json_get(root, "a")), 2);
    b = st_json_get(root, "b");
    c = st_json_get(b, "c");
    assert_int_equal(st_json_line(st_json_first(c)), 4);
    assert_int_equal(st_json_line(st_json_next(st_json_first(c))), 5);
    assert_int_equal(st_json_line(st_json_get(st_json_get(b, "d"), "e")), 7);
    assert_int_equal(st_json_line(st_json_get(root, "f")), 8); /* where the alias stands */
    st_json_free(root);
    assert_int_equal(st_json_parse(&root, "[7]", 3, "t"), STRATA_OK);
    assert_int_equal(st_json_line(st_json_first(root)), 0);
    st_json_free(root);
}

TEST(files)
{
    st_json *root = NULL;

    scratch_open();
    scratch_put("a.yaml", "a: b\n");
    assert_int_equal(st_yaml_parse_file(&root, scratch_path("a.yaml"), 100), STRATA_OK);
    assert_string_equal(st_json_string(st_json_get(root, "a")), "b");
    st_json_free(root);
    assert_int_equal(st_yaml_parse_file(&root, scratch_path("a.yaml"), 3), STRATA_E_CONFIG);
    assert_int_equal(st_yaml_parse_file(&root, scratch_path("none.yaml"), 100), STRATA_E_CONFIG);
    assert_true(st_yaml_is_name("x/a.yaml") && st_yaml_is_name("a.YML"));
    assert_false(st_yaml_is_name("a.json") || st_yaml_is_name("yaml") || st_yaml_is_name("a.yaml.txt"));
    scratch_close();
}

TEST(single_failure_walk)
{
    struct fault_walk walk = {.result = -EIO};

    scratch_open();
    scratch_put("a.yaml", "a: &x {b: [1, null, yes, 1.0]}\nc: {<<: *x, d: *x}\n");
    while (fault_walk_next(&walk)) {
        st_json *root = NULL;
        const strata_status st = st_yaml_parse_file(&root, scratch_path("a.yaml"), 1000);

        fault_walk_end(&walk, st);
        assert_int_equal(st == STRATA_OK, !walk.fired);
        assert_int_equal(root != NULL, !walk.fired);
        st_json_free(root);
    }
    assert_true(walk.runs >= 20);
    scratch_close();
}

/* tests/core/test_json.c - tables of good and bad text, places in errors, files, and the Nth failure. */
#include "core/json/json.h"
#include "tests/common/fault_walk.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static strata_status parse(st_json **out, const char *text)
{
    return st_json_parse(out, text, strlen(text), "t");
}

TEST(test_good)
{
    static const char *const rows[] = {
        "{}",
        "[]",
        " [ ] \n",
        "null",
        "true",
        "false",
        "0",
        "-0",
        "-1.5e-3",
        "1E+9",
        "\"\"",
        "\"\\u00e9\\ud83d\\ude00\\n\\/\"",
        "\"h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \xef\xbf\xbf \xf4\x8f\xbf\xbf\"",
        "{\"a\":1,\"b\":{\"a\":2},\"c\":[{\"a\":3},{\"a\":4}]}",
        "{\"a\":1,\"A\":2,\"\":3}",
        "[1,2,3,[4,[5]],{}]",
        "\t{\r\n\"k\" : [ true , null ] }",
        "123456789012345678901234567890",
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        st_json *root = NULL;

        assert_int_equal(parse(&root, rows[i]), STRATA_OK);
        st_json_free(root);
    }
}

static const struct {
    const char *text, *error;
} bad_rows[] = {
    {"", "t:1:1: a value is missing"},
    {"   \n ", "t:2:2: a value is missing"},
    {"{} {}", "t:1:4: more text after the end"},
    {"{}x", "t:1:3: more text after the end"},
    {"1 2", "t:1:3: more text after the end"},
    {"{\"a\":1} // note", "t:1:9: comments are not JSON"},
    {"// note\n{}", "t:1:1: comments are not JSON"},
    {"{\"a\": # x\n1}", "t:1:7: comments are not JSON"},
    {"{\n  \"a\": 1,\n  \"a\": 2\n}", "t:3:3: duplicate key \"a\""},
    {"{\"x\":{\"q\":0,\"r\":1},\"b\":[{\"k\":1,\"z\":2,\"k\":3}]}", "t:1:38: duplicate key \"k\""},
    {"{\"a\":1,\"\\u0061\":2}", "t:1:8: duplicate key \"a\""},
    {"{\"a\":1,\"b\":2,\"b\":3,\"a\":4}", "t:1:14: duplicate key \"b\""},
    {"{\"a\":{\"c\":1,\"c\":2},\"a\":4}", "t:1:13: duplicate key \"c\""},
    {"{\"a\":1,}", "t:1:8: comma before }"},
    {"[1,]", "t:1:4: comma before ]"},
    {"[1 2]", "t:1:4: , or ] is missing"},
    {"{\"a\":1 \"b\":2}", "t:1:8: , or } is missing"},
    {"{\"a\" 1}", "t:1:6: : is missing after a name"},
    {"{a:1}", "t:1:2: a name in double quotes is missing"},
    {"{'a':1}", "t:1:2: a name in double quotes is missing"},
    {"['a']", "t:1:2: strings need double quotes"},
    {"{\"a\":}", "t:1:6: a value is missing"},
    {"[,1]", "t:1:2: a value is missing"},
    {"[", "t:1:2: a value is missing"},
    {"{", "t:1:2: a name in double quotes is missing"},
    {"[1", "t:1:3: , or ] is missing"},
    {"{\"a\":1", "t:1:7: , or } is missing"},
    {"]", "t:1:1: a value is missing"},
    {"\"abc", "t:1:5: string not closed"},
    {"\"a\nb\"", "t:1:3: string not closed on its line"},
    {"\"a\tb\"", "t:1:3: string not closed on its line"},
    {"\"\\x\"", "t:1:2: unknown escape"},
    {"\"\\", "t:1:2: unknown escape"},
    {"\"\\u12g4\"", "t:1:4: \\u needs four hex digits"},
    {"\"\\u0000\"", "t:1:4: \\u0000 is not allowed"},
    {"\"\\udc00\"", "t:1:4: second half of a surrogate pair"},
    {"\"\\ud800x\"", "t:1:4: first half of a surrogate pair"},
    {"\"\\ud800\\u0041\"", "t:1:4: first half of a surrogate pair"},
    {"\"\xff\"", "t:1:2: not UTF-8"},
    {"\"\xc0\xaf\"", "t:1:2: not UTF-8"},
    {"\"\xe0\x80\xaf\"", "t:1:2: not UTF-8"},
    {"\"\xed\xa0\x80\"", "t:1:2: not UTF-8"},
    {"\"\xf4\x90\x80\x80\"", "t:1:2: not UTF-8"},
    {"\"\xe2\x82\"", "t:1:2: not UTF-8"},
    {"\xef\xbb\xbf{}", "t:1:1: starts with a byte order mark"},
    {"NaN", "t:1:1: NaN and Infinity are not JSON"},
    {"[-Infinity]", "t:1:3: NaN and Infinity are not JSON"},
    {"Infinity", "t:1:1: NaN and Infinity are not JSON"},
    {"True", "t:1:1: a value is missing"},
    {"nul", "t:1:1: unknown word"},
    {"01", "t:1:1: a number must not start with 0"},
    {"-01", "t:1:2: a number must not start with 0"},
    {"1.", "t:1:3: a digit is missing"},
    {"1.e5", "t:1:3: a digit is missing"},
    {".5", "t:1:1: a value is missing"},
    {"+1", "t:1:1: a value is missing"},
    {"-", "t:1:2: a digit is missing"},
    {"1e", "t:1:3: a digit is missing"},
    {"1e+", "t:1:4: a digit is missing"},
    {"0x10", "t:1:2: more text after the end"},
    {"1e999", "t:1:1: number too large"},
    {"-1e999", "t:1:1: number too large"},
    {"1.5.5", "t:1:4: more text after the end"},
    {"1000000000000000000000000000000000000000000000000000000000000", "t:1:1: number of more than 60"},
};

TEST(test_bad)
{
    for (size_t i = 0; i < sizeof(bad_rows) / sizeof(bad_rows[0]); i++) {
        st_json *root = NULL;

        assert_int_equal(parse(&root, bad_rows[i].text), STRATA_E_CONFIG);
        assert_null(root);
        if (strncmp(strata_last_error(), bad_rows[i].error, strlen(bad_rows[i].error)) != 0)
            fail_msg("%s: \"%s\" instead of \"%s\"", bad_rows[i].text, strata_last_error(), bad_rows[i].error);
    }
}

/* What hjson-py 3.1.0 makes of them, written as JSON. */
TEST(test_hjson)
{
    static const char *const rows[][2] = {
        {"\xef\xbb\xbf{\"a\": 1}", "{\"a\":1}"},
        {"# one\n{\"a\": # two\n 1, // three\r\n /* four * / **/ \"b\":2/**/}#", "{\"a\":1,\"b\":2}"},
        {"{\"a\": [1, 2,], \"b\": {\"c\": true,},\n}\n", "{\"a\":[1,2],\"b\":{\"c\":true}}"},
        {"{\"a\": 1\n\"b\": [1\n2 # two\n{}]\n\n\"c\": {} }", "{\"a\":1,\"b\":[1,2,{}],\"c\":{}}"},
        {"{a: 1, b_c.d-9: null}", "{\"a\":1,\"b_c.d-9\":null}"},
        {"{'a': 'x\"y\\'z', \"b\": \"it's\"}", "{\"a\":\"x\\\"y'z\",\"b\":\"it's\"}"},
        {"{\"a\": \"# no // comment /* here */\"}", "{\"a\":\"# no // comment /* here */\"}"},
        {"{\"a\": -1.50e-7, \"b\": 5e8}", "{\"a\":-1.5e-07,\"b\":5e8}"},
        {"[\"\\u00e9\\/\", []]", "[\"\xc3\xa9/\",[]]"},
        {"{}", "{}"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_json_writer w;
        char *written = NULL;
        size_t bytes;
        st_json *root = NULL;
        FILE *file = open_memstream(&written, &bytes);

        if (st_hjson_parse(&root, rows[i][0], strlen(rows[i][0]), "t") != STRATA_OK)
            fail_msg("%s: %s", rows[i][0], strata_last_error());
        st_json_begin(&w, file);
        st_json_put_node(&w, NULL, root);
        assert_int_equal(fclose(file), 0);
        assert_string_equal(written, rows[i][1]);
        free(written);
        st_json_free(root);
    }
}

/* Python's json reads it, and hjson a string: a reader says what it means. */
TEST(test_hjson_infinity)
{
    st_json *root = NULL;

    assert_int_equal(st_hjson_parse(&root, "[Infinity,-Infinity]", 20, "t"), STRATA_OK);
    assert_true(st_json_number(st_json_first(root)) == (double)INFINITY);
    assert_true(st_json_number(st_json_next(st_json_first(root))) == -(double)INFINITY);
    st_json_free(root);
}

TEST(test_bad_hjson)
{
    static const char *const rows[][2] = {
        {"", "t:1:1: a value is missing"},
        {"# nothing\n", "t:2:1: a value is missing"},
        {"a: 1\n", "t:1:1: { is missing: Hjson without braces around it is not read"},
        {"{\n\"a\": /* x\n 1}", "t:2:6: a comment is not closed"},
        {"{} /* x", "t:1:4: a comment is not closed"},
        {"{\"a\": 1 /*", "t:1:9: a comment is not closed"},
        {"{\"a\": 1 \"b\": 2}", "t:1:9: , or } is missing"},
        {"[1 2]", "t:1:4: , or ] is missing"},
        {"{\"a\": 1,, \"b\": 2}", "t:1:9: a name is missing: put it in double quotes"},
        {"{,}", "t:1:2: a name is missing"},
        {"[,]", "t:1:2: a value is missing"},
        {"{\"a\":\n}", "t:2:1: a value is missing"},
        {"{\"a\": text\n}", "t:1:7: unknown word"},
        {"{\"a\": AdamW\n}", "t:1:7: Hjson's texts without quotes are not read: put it in double quotes"},
        {"{\"a\": NaN\n}", "t:1:7: NaN is no number: give one"},
        {"{\"a\": '''x'''}", "t:1:7: Hjson's texts of several lines are not read"},
        {"{\"a\": 'x\n'}", "t:1:9: string not closed on its line"},
        {"{\"a\": 01}", "t:1:7: a number must not start with 0"},
        {"{\"a\": True}", "t:1:7: Hjson's texts without quotes are not read"},
        {"{\"a\": 1; \"b\": 2}", "t:1:8: , or } is missing"},
        {"{\n  a: 1,\n  # twice\n  'a': 2\n}", "t:4:3: duplicate key \"a\""},
        {"{\"a\": \"\\u0000\"}", "t:1:10: \\u0000 is not allowed"},
        {"{} x", "t:1:4: more text after the end"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        st_json *root = NULL;

        assert_int_equal(st_hjson_parse(&root, rows[i][0], strlen(rows[i][0]), "t"), STRATA_E_CONFIG);
        assert_null(root);
        if (strncmp(strata_last_error(), rows[i][1], strlen(rows[i][1])) != 0)
            fail_msg("%s: \"%s\" instead of \"%s\"", rows[i][0], strata_last_error(), rows[i][1]);
    }
}

TEST(test_nul_byte)
{
    st_json *root = NULL;

    assert_int_equal(st_json_parse(&root, "{}\0", 3, "t"), STRATA_E_CONFIG);
    assert_int_equal(st_json_parse(&root, "\"a\0b\"", 5, "t"), STRATA_E_CONFIG);
    assert_int_equal(st_json_parse(&root, "12345", 2, "t"), STRATA_OK);
    assert_true(st_json_number(root) == 12);
    st_json_free(root);
}

TEST(test_depth)
{
    char text[200];
    st_json *root = NULL;

    memset(text, '[', 64);
    memset(text + 64, ']', 64);
    assert_int_equal(st_json_parse(&root, text, 128, "t"), STRATA_OK);
    st_json_free(root);
    memset(text, '[', 65);
    memset(text + 65, ']', 65);
    assert_int_equal(st_json_parse(&root, text, 130, "t"), STRATA_E_CONFIG);
    assert_string_equal(strata_last_error(), "t:1:65: nested deeper than 64");
}

TEST(test_reading_a_tree)
{
    st_json *root;
    const st_json *list, *item;

    assert_int_equal(parse(&root, "{\"n\":null,\"list\":[true,2.5,\"s\\u00e9\"],\"o\":{}}"), STRATA_OK);
    assert_int_equal(st_json_type(root), ST_JSON_OBJECT);
    assert_null(st_json_name(root));
    assert_null(st_json_get(root, "missing"));
    assert_null(st_json_get(root, "N"));
    assert_int_equal(st_json_type(st_json_get(root, "n")), ST_JSON_NULL);
    list = st_json_get(root, "list");
    assert_string_equal(st_json_name(list), "list");
    assert_int_equal(st_json_type(list), ST_JSON_ARRAY);
    item = st_json_first(list);
    assert_int_equal(st_json_type(item), ST_JSON_BOOL);
    assert_true(st_json_bool(item));
    item = st_json_next(item);
    assert_int_equal(st_json_type(item), ST_JSON_NUMBER);
    assert_true(st_json_number(item) == 2.5);
    item = st_json_next(item);
    assert_int_equal(st_json_type(item), ST_JSON_STRING);
    assert_string_equal(st_json_string(item), "s\xc3\xa9");
    assert_null(st_json_next(item));
    assert_null(st_json_first(st_json_get(root, "o")));
    st_json_free(root);
}

TEST(test_whole_numbers)
{
    static const struct {
        const char *text;
        int whole;
        uint64_t value;
    } rows[] = {
        {"5e8", 1, 500000000},
        {"5.0", 1, 5},
        {"0", 1, 0},
        {"-0", 1, 0},
        {"3000000000", 1, UINT64_C(3000000000)},
        {"9007199254740992", 1, UINT64_C(9007199254740992)},
        {"9007199254740994", 0, 0},
        {"-1", 0, 0},
        {"0.5", 0, 0},
        {"1e300", 0, 0},
        {"\"5\"", 0, 0},
        {"true", 0, 0},
        {"null", 0, 0},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint64_t value = 77;
        st_json *root;

        assert_int_equal(parse(&root, rows[i].text), STRATA_OK);
        assert_int_equal(st_json_u64(root, &value), rows[i].whole);
        assert_true(value == (rows[i].whole ? rows[i].value : 77));
        st_json_free(root);
    }
}

/* What a double does not say of a number: that it was written with a point, and the digits of a large integer. */
TEST(test_numbers_keep_their_text)
{
    static const char text[] =
        "{\"1.0\": \"-2.0\\\"3.0\\\\\", \"a\": [1, 1.0, -0.0, -0, 1e2, 2.5, 9007199254740991, 9007199254740992, "
        "9007199254740993, -123456789012345678901234567890, -1000000000000000, -9007199254740990], \"b\": true, \"c\": 4.0}";
    static const char *const wanted[] = {
        NULL, "1.0", "-0.0", NULL, "1e2", NULL, NULL, "9007199254740992", "9007199254740993", "-123456789012345678901234567890",
        NULL, NULL};
    struct st_json_writer w;
    char *written = NULL;
    size_t bytes, i = 0;
    FILE *file = open_memstream(&written, &bytes);
    st_json *root;

    assert_int_equal(parse(&root, text), STRATA_OK);
    for (const st_json *n = st_json_first(st_json_get(root, "a")); n != NULL; n = st_json_next(n), i++) {
        if (wanted[i] == NULL)
            assert_null(st_json_number_text(n));
        else
            assert_string_equal(st_json_number_text(n), wanted[i]);
    }
    assert_int_equal(i, sizeof(wanted) / sizeof(wanted[0]));
    assert_null(st_json_number_text(st_json_get(root, "1.0")));
    assert_string_equal(st_json_number_text(st_json_get(root, "c")), "4.0");
    st_json_begin(&w, file);
    st_json_put_node(&w, NULL, st_json_get(root, "a"));
    assert_int_equal(fclose(file), 0);
    assert_string_equal(written, "[1,1.0,-0.0,0,1e2,2.5,9007199254740991,9007199254740992,9007199254740993,-"
                                 "123456789012345678901234567890,-1000000000000000,-9007199254740990]");
    free(written);
    st_json_free(root);
    assert_int_equal(st_json_parse(&root, "1.0", 1, "t"), STRATA_OK); /* ends where it is said to end */
    assert_null(st_json_number_text(root));
    st_json_free(root);
}

/* A header of many names, as safetensors has: all different, then one twice. */
TEST(test_many_names)
{
    enum { COUNT = 20000 };
    size_t capacity = (size_t)COUNT * 16 + 64, used;
    char *text = malloc(capacity);
    st_json *root = NULL;

    assert_non_null(text);
    used = (size_t)snprintf(text, capacity, "{\"k0\":0");
    for (int i = 1; i < COUNT; i++)
        used += (size_t)snprintf(text + used, capacity - used, ",\n\"k%d\":%d", i, i);
    snprintf(text + used, capacity - used, "}");
    assert_int_equal(parse(&root, text), STRATA_OK);
    st_json_free(root);
    snprintf(text + used, capacity - used, ",\n\"k777\":1}");
    assert_int_equal(parse(&root, text), STRATA_E_CONFIG);
    assert_string_equal(strata_last_error(), "t:20001:1: duplicate key \"k777\"");
    free(text);
}

TEST(test_files)
{
    const char *path;
    st_json *root = NULL;

    scratch_open();
    scratch_put("json", "{\"a\": 5e8}\n");
    path = scratch_path("json");
    assert_int_equal(st_json_parse_file(&root, path, 100), STRATA_OK);
    assert_true(st_json_number(st_json_get(root, "a")) == 5e8);
    st_json_free(root);
    root = NULL;
    assert_int_equal(st_json_parse_file(&root, path, 11), STRATA_OK);
    st_json_free(root);
    root = NULL;
    assert_int_equal(st_json_parse_file(&root, path, 10), STRATA_E_CONFIG);
    assert_non_null(strstr(strata_last_error(), "larger than 10 bytes"));
    scratch_put("json", "\xef\xbb\xbf{\r\n\"a\": 1}"); /* as some editors save it */
    assert_int_equal(st_json_parse_file(&root, path, 100), STRATA_OK);
    st_json_free(root);
    root = NULL;
    scratch_put("json", "\xef\xbb\xbf{\"a\": 1,}");
    assert_int_equal(st_json_parse_file(&root, path, 100), STRATA_E_CONFIG);
    assert_non_null(strstr(strata_last_error(), ":1:9: comma before }"));
    assert_int_equal(st_hjson_parse_file(&root, path, 100), STRATA_OK);
    st_json_free(root);
    root = NULL;
    scratch_put("json", "");
    assert_int_equal(st_json_parse_file(&root, path, 100), STRATA_E_CONFIG);
    scratch_close();
    assert_int_equal(st_json_parse_file(&root, path, 100), STRATA_E_CONFIG);
    assert_non_null(strstr(strata_last_error(), "No such file"));
    assert_int_equal(st_json_parse_file(&root, "/tmp", 100), STRATA_E_CONFIG);
    assert_non_null(strstr(strata_last_error(), "directory"));
    assert_null(root);
}

TEST(test_single_failure_walk)
{
    struct fault_walk walk = {.result = -EIO};

    scratch_open();
    scratch_put("json", "{\"a\":{\"b\":1,\"c\":2},\"d\":3.0}");
    while (fault_walk_next(&walk)) {
        st_json *root = NULL;
        const strata_status st = st_hjson_parse_file(&root, scratch_path("json"), 1000);

        fault_walk_end(&walk, st);
        assert_int_equal(st == STRATA_OK, !walk.fired);
        assert_int_equal(root != NULL, !walk.fired);
        st_json_free(root);
    }
    assert_true(walk.runs >= 6);
    scratch_close();
}

/* What Python writes of a row is read where strict text is refused, and the members that have it are told. */
TEST(test_rows)
{
    static const struct {
        const char *text;
        uint64_t members;
        const char *problem; /* NULL: none */
        const char *again;   /* the text afterwards; NULL: as it was */
    } rows[] = {
        {"{\"a\": 1, \"b\": [NaN, -Infinity, Infinity]}", 2, "NaN and Infinity are not JSON",
         "{\"a\": 1, \"b\": [0  , 0        , 0       ]}"},
        {"{\"a\": \"x\\u0000y\", \"b\": {\"c\": \"\\ud83d\"}, \"d\": \"\\ude00\"}", 7, "\\u0000 is not allowed in a string",
         "{\"a\": \"x\\ufffdy\", \"b\": {\"c\": \"\\ufffd\"}, \"d\": \"\\ufffd\"}"},
        {"{\"a\": \"\\ud83d\\ude00\\n\", \"b\": 1e999}", 2, "number too large", "{\"a\": \"\\ud83d\\ude00\\n\", \"b\": 0    }"},
        {"{\"a\": \"x\ty\x1b\"}", 0, NULL, NULL},
        {"{\"a\": 1}", 0, NULL, NULL},
        {"NaN", 1, "NaN and Infinity are not JSON", "0  "},
    };
    static const char *const bad[] = {"{\"a\": Nan}", "{\"a\": NaN, \"b\"}", "{\"a\": \"x\ny\"}", "{\"a\": -Inf}",
                                      "{\"a\": 1, \"a\": NaN}"};
    struct st_json_odd odd;
    char text[256];
    st_json *root;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        snprintf(text, sizeof(text), "%s", rows[i].text);
        assert_int_equal(st_json_parse_row(&root, &odd, text, strlen(text), "t", 1, 1), STRATA_OK);
        assert_int_equal(odd.members, rows[i].members);
        assert_string_equal(odd.problem == NULL ? "" : odd.problem, rows[i].problem == NULL ? "" : rows[i].problem);
        assert_string_equal(text, rows[i].again == NULL ? rows[i].text : rows[i].again);
        st_json_free(root);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(text, sizeof(text), "%s", bad[i]);
        assert_int_equal(st_json_parse_row(&root, &odd, text, strlen(text), "t", 3, 5), STRATA_E_CONFIG);
        assert_non_null(strstr(strata_last_error(), "t:3:"));
        if (i < 4)
            assert_string_equal(text, bad[i]); /* not changed: the reader looks for the next row in it */
    }
    snprintf(text, sizeof(text), "{");
    for (uint32_t i = 0; i < 20; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "\"%u\": 0, ", i);
    snprintf(text + strlen(text), sizeof(text) - strlen(text), "\"x\": NaN}");
    assert_int_equal(st_json_parse_row(&root, &odd, text, strlen(text), "t", 1, 1), STRATA_OK);
    assert_int_equal(odd.members, UINT64_C(1) << 20);
    st_json_free(root);
}

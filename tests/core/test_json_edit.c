/* tests/core/test_json_edit.c - one member of a JSON text is replaced or added; every other byte stays. */
#include "core/json/json_edit.h"
#include "tests/common/test.h"

#include "core/base/error.h"

#include <stdlib.h>

TEST(sections_are_replaced_or_added)
{
    static const struct {
        const char *before, *after;
    } cases[] = {
        {"{}", "{\n    \"aio\": {}\n}"},
        {" { } \n", " {\n    \"aio\": {}\n} \n"},
        {"{\"a\":1}", "{\"a\":1, \"aio\": {}}"},
        {"{\"a\": [1, {\"aio\": 2}],\n \"b\" : \"\\\"aio\\\": {\" }\n",
         "{\"a\": [1, {\"aio\": 2}],\n \"b\" : \"\\\"aio\\\": {\", \"aio\": {} }\n"},
        {"{\"aio\":null,\"b\":2}", "{\"aio\":{},\"b\":2}"},
        {"{\"x\":{\"aio\":1},\"aio\" :\t{\"y\":\"}\\\\\"} , \"z\":[]}", "{\"x\":{\"aio\":1},\"aio\" :\t{} , \"z\":[]}"},
        {"{\"aio2\":1,\"ai\":2,\"aio\":[3]}", "{\"aio2\":1,\"ai\":2,\"aio\":{}}"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *out = NULL;

        assert_int_equal(st_json_edit(&out, cases[i].before, "test", "aio", "{}"), STRATA_OK);
        assert_string_equal(out, cases[i].after);
        free(out);
    }
}

TEST(sections_are_indented_as_the_file_is)
{
    static const char section[] = "{\n        \"x\": 1,\n        \"y\": 2\n    }";
    static const struct {
        const char *before, *after;
    } cases[] = {
        {"{}", "{\n    \"aio\": {\n        \"x\": 1,\n        \"y\": 2\n    }\n}"},
        {"{\n  \"a\": 1\n}\n", "{\n  \"a\": 1,\n  \"aio\": {\n    \"x\": 1,\n    \"y\": 2\n  }\n}\n"},
        {"{\n\t\"a\": 1\n}\n", "{\n\t\"a\": 1,\n\t\"aio\": {\n\t\t\"x\": 1,\n\t\t\"y\": 2\n\t}\n}\n"},
        {"{\n  \"aio\": {\n  }\n}", "{\n  \"aio\": {\n    \"x\": 1,\n    \"y\": 2\n  }\n}"},
        {"{\n\"a\": 1\n}", "{\n\"a\": 1,\n\"aio\": {\n\"x\": 1,\n\"y\": 2\n}\n}"},
        {"{\"a\": 1}", "{\"a\": 1, \"aio\": {\"x\": 1, \"y\": 2}}"},
        {"{ \"aio\": {} }", "{ \"aio\": {\"x\": 1, \"y\": 2} }"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *out = NULL;

        assert_int_equal(st_json_edit(&out, cases[i].before, "test", "aio", section), STRATA_OK);
        assert_string_equal(out, cases[i].after);
        free(out);
    }
}

TEST(bad_text_is_refused)
{
    static const char *const bad[] = {"", "[]", "3", "{\"a\":1,}", "{\"a\":1,\"a\":2}", "{\"a\":1} x"};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char *out = NULL;

        assert_int_equal(st_json_edit(&out, bad[i], "test", "aio", "{}"), STRATA_E_CONFIG);
        assert_null(out);
    }
}

/* A value that is no JSON, or text that says the key in another spelling, makes no text. */
TEST(bad_results_are_refused)
{
    char *out = NULL;

    assert_int_equal(st_json_edit(&out, "{}", "test", "aio", "{"), STRATA_E_CONFIG);
    assert_int_equal(st_json_edit(&out, "{\"\\u0061io\":1}", "test", "aio", "2"), STRATA_E_CONFIG);
    assert_null(out);
}

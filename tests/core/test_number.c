/* tests/core/test_number.c - numbers of data have a point, in a program whose locale has a comma as well. */
#include "core/base/number.h"
#include "core/json/json.h"
#include "core/yaml/yaml.h"
#include "tests/common/assert_status.h"
#include "tests/common/comma.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* People's sentences follow the program. */
TEST(test_text)
{
    char text[32], *end;

    assert_int_equal(st_number_print(text, sizeof(text), "%.3g|%d", 0.125, 7), 7);
    assert_string_equal(text, "0.125|7");
    assert_true(st_number_read("2.5e-3 ", &end) == 2.5e-3);
    assert_string_equal(end, " ");
    snprintf(text, sizeof(text), "%.3g", 0.125);
    assert_string_equal(text, "0,125");
}

TEST(test_json)
{
    static const char line[] = "{\"lr\":0.0025,\"half\":0.5,\"whole\":30.0}\n";
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    struct st_json_writer w;
    st_json *root = NULL;

    st_json_begin(&w, file);
    st_json_object_open(&w, NULL);
    st_json_put_double(&w, "lr", 2.5e-3);
    st_json_put_real(&w, "half", 0.5);
    st_json_put_real(&w, "whole", 30);
    st_json_object_close(&w);
    st_json_end_line(&w);
    fclose(file);
    assert_string_equal(text, line);
    assert_ok(st_json_parse(&root, text, bytes, "line"));
    assert_true(st_json_number(st_json_get(root, "lr")) == 2.5e-3);
    st_json_free(root);
    free(text);
}

TEST(test_yaml)
{
    static const char text[] = "lr: 2.5e-3\nratio: 0.5\n";
    st_json *root = NULL;

    assert_ok(st_yaml_parse(&root, text, strlen(text), "file"));
    assert_true(st_json_number(st_json_get(root, "lr")) == 2.5e-3);
    assert_true(st_json_number(st_json_get(root, "ratio")) == 0.5);
    st_json_free(root);
}

TEST_MAIN(argc, argv)
{
    return comma_result(test_run(comma_begin, comma_end));
}

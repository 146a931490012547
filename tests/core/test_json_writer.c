/* tests/core/test_json_writer.c - what is written, exactly, and that it reads back. */
#include "core/json/json.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TEST(test_line)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    struct st_json_writer w;

    assert_non_null(file);
    st_json_begin(&w, file);
    st_json_object_open(&w, NULL);
    st_json_put_u64(&w, "step", UINT64_MAX);
    st_json_put_double(&w, "loss", 0.5);
    st_json_put_real(&w, "whole", 30);
    st_json_put_real(&w, "half", 0.5);
    st_json_put_double(&w, "nan", NAN);
    st_json_put_double(&w, "inf", -INFINITY);
    st_json_put_bool(&w, "skipped", false);
    st_json_object_open(&w, "empty");
    st_json_object_close(&w);
    st_json_array_open(&w, "list");
    st_json_put_u64(&w, NULL, 1);
    st_json_object_open(&w, NULL);
    st_json_put_bool(&w, "x", true);
    st_json_object_close(&w);
    st_json_array_open(&w, NULL);
    st_json_array_close(&w);
    st_json_put_string(&w, NULL, NULL);
    st_json_array_close(&w);
    st_json_put_bool(&w, "k\"\\\n\xff\x1b", true); /* a name, say of a tensor, is as foreign as a value */
    st_json_put_string(&w, "s", "a\"b\\c\n\t\x01\xc3\xa9\xff/\x7f\xc2\x9b\xe2\x80\xae\xf3\xa0\x81\x81");
    st_json_object_close(&w);
    st_json_end_line(&w);
    st_json_object_open(&w, NULL);
    st_json_object_close(&w);
    st_json_end_line(&w);
    fclose(file);
    assert_string_equal(
        text,
        "{\"step\":18446744073709551615,\"loss\":0.5,\"whole\":30.0,\"half\":0.5,\"nan\":null,\"inf\":null,\"skipped\":false,"
        "\"empty\":{},"
        "\"list\":[1,{\"x\":true},[],null],\"k\\\"\\\\\\n\\ufffd\\u001b\":true,\"s\":\"a\\\"b\\\\c\\n\\t\\u0001\xc3\xa9\\ufffd/"
        "\\u007f\\u009b\\u202e\\udb40\\udc41\"}\n{}\n");
    free(text);
}

/* Who follows a file has each line when it ends, not when the file is closed. */
TEST(test_lines_are_there_as_they_end)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    struct st_json_writer w;

    assert_non_null(file);
    st_json_begin(&w, file);
    for (size_t i = 1; i <= 2; i++) {
        st_json_put_u64(&w, NULL, 7);
        st_json_end_line(&w);
        assert_int_equal(bytes, 2 * i);
        assert_memory_equal(text, "7\n7\n", bytes);
    }
    fclose(file);
    free(text);
}

TEST(test_doubles_read_back_exactly)
{
    static const double values[] = {0.1, -1.0 / 3, 5e-324, 1.7976931348623157e308, 123456789012345680.0, 0.95, 1e-8, -0.0};

    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        char *text = NULL;
        size_t bytes = 0;
        FILE *file = open_memstream(&text, &bytes);
        struct st_json_writer w;
        st_json *root;
        double back;

        assert_non_null(file);
        st_json_begin(&w, file);
        st_json_put_double(&w, NULL, values[i]);
        fclose(file);
        assert_int_equal(st_json_parse(&root, text, bytes, "t"), STRATA_OK);
        back = st_json_number(root);
        assert_memory_equal(&back, &values[i], sizeof(back));
        st_json_free(root);
        free(text);
    }
}

TEST(test_deep)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    struct st_json_writer w;
    st_json *root;

    assert_non_null(file);
    st_json_begin(&w, file);
    st_json_array_open(&w, NULL);
    for (int i = 1; i < 32; i++) {
        st_json_put_u64(&w, NULL, (uint64_t)i);
        st_json_array_open(&w, NULL);
    }
    for (int i = 0; i < 32; i++)
        st_json_array_close(&w);
    fclose(file);
    assert_int_equal(st_json_parse(&root, text, bytes, "t"), STRATA_OK);
    st_json_free(root);
    free(text);
}

/* Every kind of value, inside an object that has a member already. */
TEST(test_trees)
{
    static const char tree[] = "{\"a\":[1,-2.5,true,false,null,\"x\\n\\\"\",[],{}],\"b\":{\"c\":9007199254740992}}";
    char *text = NULL, want[128];
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    struct st_json_writer w;
    st_json *root;

    assert_non_null(file);
    assert_int_equal(st_json_parse(&root, tree, strlen(tree), "t"), STRATA_OK);
    st_json_begin(&w, file);
    st_json_object_open(&w, NULL);
    st_json_put_u64(&w, "n", 1);
    st_json_put_node(&w, "tree", root);
    st_json_object_close(&w);
    fclose(file);
    snprintf(want, sizeof(want), "{\"n\":1,\"tree\":%s}", tree);
    assert_string_equal(text, want);
    st_json_free(root);
    free(text);
}

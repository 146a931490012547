/* tests/common/json_member.h - members of JSON that must be there, as numbers and as texts; and a tree as text. */
#ifndef TESTS_COMMON_JSON_MEMBER_H
#define TESTS_COMMON_JSON_MEMBER_H

#include "core/json/json.h"
#include "tests/common/test.h"

#include <stdio.h>

static inline double json_number(const st_json *node, const char *key)
{
    const st_json *member = st_json_get(node, key);

    assert_non_null(member);
    assert_int_equal(st_json_type(member), ST_JSON_NUMBER);
    return st_json_number(member);
}

/* Borrowed from the document. */
static inline const char *json_text(const st_json *node, const char *key)
{
    const st_json *member = st_json_get(node, key);

    assert_non_null(member);
    assert_int_equal(st_json_type(member), ST_JSON_STRING);
    return st_json_string(member);
}

/* All of it on one line; freed by the caller. */
static inline char *json_whole(const st_json *node)
{
    struct st_json_writer w;
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    assert_non_null(file);
    st_json_begin(&w, file);
    st_json_put_node(&w, NULL, node);
    assert_int_equal(fclose(file), 0);
    return text;
}

#endif

/* tests/common/json_member.h - members of JSON that must be there, as numbers and as texts. */
#ifndef TESTS_COMMON_JSON_MEMBER_H
#define TESTS_COMMON_JSON_MEMBER_H

#include "core/json/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

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

#endif

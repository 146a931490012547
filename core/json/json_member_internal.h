/* core/json/json_member_internal.h - finds a member in the text of an object that has been checked and ends with a NUL.  Private
 * to core/json/. */
#ifndef CORE_JSON_JSON_MEMBER_INTERNAL_H
#define CORE_JSON_JSON_MEMBER_INTERNAL_H

#include "core/json/json.h"

const char *st_json_skip_space(const char *at);
/** From the opening quote to just past the closing one. */
const char *st_json_skip_string(const char *at);
/** From the first character of a value to just past its last. */
const char *st_json_skip_value(const char *at);

struct st_json_member {
    const char *begin, *end; /* of the member's value; if there is none, both are where it belongs */
    bool found, first;       /* first: the object has no member */
};
/** The first member whose name is written like `key`. */
struct st_json_member st_json_find_member(const char *object, const char *key);

#endif

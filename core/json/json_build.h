/* core/json/json_build.h - makes a tree of JSON's kinds for another notation (core/yaml): nodes know the line they stand on.
 *
 * Every maker returns NULL when there is no memory; members of what is freed are freed with it. */
#ifndef CORE_JSON_JSON_BUILD_H
#define CORE_JSON_JSON_BUILD_H

#include "core/json/json.h"

st_json *st_json_new_null(void);
st_json *st_json_new_bool(bool value);
/** @param real  it was written with a point or exponent, which is told of a whole one, too (st_json_number_text()) */
st_json *st_json_new_number(double value, bool real);
st_json *st_json_new_string(const char *value);
st_json *st_json_new_array(void);
st_json *st_json_new_object(void);
/** A copy of all of it, lines included. */
st_json *st_json_new_copy(const st_json *node);
void st_json_set_line(st_json *node, uint32_t line);
/** Put `child` last into an array (name NULL) or object; taken, also on failure.  False: no memory. */
bool st_json_add(st_json *parent, const char *name, st_json *child);
/** The same in the place of the member of that name, if there is one. */
bool st_json_put(st_json *object, const char *name, st_json *child);
/** A member to change; NULL: none. */
st_json *st_json_member(st_json *object, const char *name);
/** Values in it, itself included. */
uint64_t st_json_count(const st_json *node);

#endif

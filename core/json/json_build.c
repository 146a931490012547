/* json_build.c - see json_build.h.  cJSON's other home: a node's line lies in valueint, which nothing here reads as a number. */
#include "core/json/json_build.h"

#include "core/base/fault.h"

#include <cJSON.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHOLE_MAX 9007199254740992.0 /* 2^53, as in json.c */

static st_json *made(st_json *node)
{
    if (node != NULL && st_fault("json.alloc", 0) < 0) {
        cJSON_Delete(node);
        return NULL;
    }
    if (node != NULL)
        node->valueint = 0;
    return node;
}

st_json *st_json_new_null(void)
{
    return made(cJSON_CreateNull());
}

st_json *st_json_new_bool(bool value)
{
    return made(cJSON_CreateBool(value));
}

st_json *st_json_new_number(double value, bool real)
{
    st_json *node = made(cJSON_CreateNumber(value));
    char text[40]; /* with ".0" behind it */

    if (node == NULL || (real ? value != floor(value) : fabs(value) < WHOLE_MAX))
        return node;
    (void)st_json_double_text(text, value);
    if (real && strpbrk(text, ".e") == NULL)
        strcat(text, ".0");
    node->valuestring = cJSON_malloc(strlen(text) + 1);
    if (node->valuestring == NULL) {
        cJSON_Delete(node);
        return NULL;
    }
    strcpy(node->valuestring, text);
    return node;
}

st_json *st_json_new_string(const char *value)
{
    return made(cJSON_CreateString(value));
}

st_json *st_json_new_array(void)
{
    return made(cJSON_CreateArray());
}

st_json *st_json_new_object(void)
{
    return made(cJSON_CreateObject());
}

st_json *st_json_new_copy(const st_json *node)
{
    st_json *copy = st_fault("json.alloc", 0) < 0 ? NULL : cJSON_Duplicate(node, true);

    if (copy != NULL && copy->string != NULL) {
        cJSON_free(copy->string);
        copy->string = NULL;
    }
    return copy;
}

void st_json_set_line(st_json *node, uint32_t line)
{
    node->valueint = line < INT_MAX ? (int)line : INT_MAX;
}

bool st_json_add(st_json *parent, const char *name, st_json *child)
{
    const bool added = name != NULL ? cJSON_AddItemToObject(parent, name, child) : cJSON_AddItemToArray(parent, child);

    if (!added)
        cJSON_Delete(child);
    return added;
}

bool st_json_put(st_json *object, const char *name, st_json *child)
{
    cJSON_DeleteItemFromObjectCaseSensitive(object, name);
    return st_json_add(object, name, child);
}

st_json *st_json_member(st_json *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

uint64_t st_json_count(const st_json *node)
{
    uint64_t values = 1;

    for (const st_json *child = node->child; child != NULL; child = child->next)
        values += st_json_count(child);
    return values;
}

/* text/tokenizer/fields.c - see fields_internal.h. */
#include "text/tokenizer/fields_internal.h"

#include "core/base/error.h"
#include "core/system/file.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

strata_status st_place_fault(const struct st_place *at, const char *key, const char *fmt, ...)
{
    char text[256];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return st_error(STRATA_E_INPUT, "%s: %s%s%s%s%s", at->file, at->name, at->name[0] != '\0' && key != NULL ? "." : "",
                    key != NULL ? key : "", at->name[0] != '\0' || key != NULL ? ": " : "", text);
}

/* The member, or NULL if it is absent or null. */
static const st_json *member(const struct st_place *at, const char *key)
{
    const st_json *node = st_json_get(at->node, key);

    return node != NULL && st_json_type(node) != ST_JSON_NULL ? node : NULL;
}

/* A long name is cut. */
static void name_place(struct st_place *out, const struct st_place *at, const char *key)
{
    if (snprintf(out->name, sizeof(out->name), "%s%s%s", at->name, at->name[0] != '\0' ? "." : "", key) < 0)
        out->name[0] = '\0';
}

strata_status st_place_object(struct st_place *out, const struct st_place *at, const char *key)
{
    *out = (struct st_place){.file = at->file, .node = member(at, key)};
    name_place(out, at, key);
    if (out->node != NULL && st_json_type(out->node) != ST_JSON_OBJECT)
        return st_place_fault(at, key, "must be an object");
    return STRATA_OK;
}

strata_status st_place_element(struct st_place *out, const struct st_place *at, const char *key, const st_json *node,
                               uint32_t index)
{
    char numbered[40];

    *out = (struct st_place){.file = at->file, .node = node};
    if (snprintf(numbered, sizeof(numbered), "%.24s[%u]", key, index) > 0)
        name_place(out, at, numbered);
    return st_json_type(node) == ST_JSON_OBJECT ? STRATA_OK : st_place_fault(out, NULL, "must be an object");
}

strata_status st_place_array(const st_json **first, const struct st_place *at, const char *key)
{
    const st_json *node = member(at, key);

    *first = NULL;
    if (node == NULL)
        return STRATA_OK;
    if (st_json_type(node) != ST_JSON_ARRAY)
        return st_place_fault(at, key, "must be a list");
    *first = st_json_first(node);
    return STRATA_OK;
}

/* Whether `word` is one of `words`, which are separated by single spaces. */
static bool is_one_of(const char *word, const char *words)
{
    const size_t length = strlen(word);

    for (const char *at = words; length > 0 && (at = strstr(at, word)) != NULL; at += length)
        if ((at == words || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0'))
            return true;
    return false;
}

strata_status st_place_known(const struct st_place *at, const char *known)
{
    for (const st_json *node = st_json_first(at->node); node != NULL; node = st_json_next(node))
        if (st_json_type(node) != ST_JSON_NULL && !is_one_of(st_json_name(node), known))
            return st_place_fault(at, st_json_name(node), "not supported");
    return STRATA_OK;
}

strata_status st_place_text(const char **out, const struct st_place *at, const char *key)
{
    const st_json *node = member(at, key);

    if (node == NULL)
        return STRATA_OK;
    if (st_json_type(node) != ST_JSON_STRING)
        return st_place_fault(at, key, "must be a string");
    *out = st_json_string(node);
    return STRATA_OK;
}

strata_status st_place_need_text(const char **out, const struct st_place *at, const char *key)
{
    return member(at, key) == NULL ? st_place_fault(at, key, "is missing") : st_place_text(out, at, key);
}

strata_status st_place_bool(bool *out, const struct st_place *at, const char *key)
{
    const st_json *node = member(at, key);

    if (node == NULL)
        return STRATA_OK;
    if (st_json_type(node) != ST_JSON_BOOL)
        return st_place_fault(at, key, "must be true or false");
    *out = st_json_bool(node);
    return STRATA_OK;
}

strata_status st_place_number(uint32_t *out, const struct st_place *at, const char *key, uint32_t most)
{
    const st_json *node = member(at, key);
    uint64_t value;

    if (node == NULL)
        return st_place_fault(at, key, "is missing");
    if (!st_json_u64(node, &value) || value > most)
        return st_place_fault(at, key, "must be a whole number of at most %u", most);
    *out = (uint32_t)value;
    return STRATA_OK;
}

strata_status st_tokenizer_parse_file(st_json **out, const char *path, uint64_t bytes_max)
{
    char *text;
    uint64_t bytes;
    strata_status st = st_file_read_text(&text, &bytes, path, bytes_max);

    if (st != STRATA_OK)
        return st;
    st = st_json_parse(out, text, bytes, path);
    free(text);
    return st == STRATA_E_CONFIG ? STRATA_E_INPUT : st;
}

/* core/json/json_edit.c - see json_edit.h.  core/json/json.h checks the text first, so the scan below only meets valid JSON. */
#include "core/json/json_edit.h"
#include "core/base/error.h"
#include "core/json/json.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INDENT "    " /* that `value` comes with, and for a file that has no indent of its own */

static const char *skip_space(const char *at)
{
    return at + strspn(at, " \t\r\n");
}

/* Skips from the opening quote to just past the closing one. */
static const char *skip_string(const char *at)
{
    for (at++; *at != '"'; at++)
        if (*at == '\\')
            at++;
    return at + 1;
}

/* Skips from the first character of a value to just past its last. */
static const char *skip_value(const char *at)
{
    int depth = 0;

    if (*at == '"')
        return skip_string(at);
    if (*at != '{' && *at != '[')
        return at + strcspn(at, ",]} \t\r\n");
    do {
        if (*at == '"') {
            at = skip_string(at);
            continue;
        }
        depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
        at++;
    } while (depth > 0);
    return at;
}

struct place {
    const char *begin, *end; /* of the member's value; if there is none, both are where it belongs */
    bool found, first;       /* first: the object has no member */
};

static struct place find_member(const char *text, const char *key)
{
    const char *at = skip_space(skip_space(text) + 1), *last = at;
    const size_t length = strlen(key);
    struct place place = {.first = *at == '}'};

    while (*at != '}') {
        const char *name = at + 1, *after = skip_string(at), *value = skip_space(skip_space(after) + 1);

        last = skip_value(value);
        if ((size_t)(after - name) == length + 1 && strncmp(name, key, length) == 0) {
            place.found = true;
            place.begin = value;
            place.end = last;
            return place;
        }
        at = skip_space(last);
        if (*at == ',')
            at = skip_space(at + 1);
    }
    place.begin = place.end = place.first ? skip_space(text) + 1 : last;
    return place;
}

/* The indent before the first member on its line.  NULL: no indent, the object is on one line. */
static char *indent_of(const char *text)
{
    const char *inside = skip_space(text) + 1, *first = skip_space(inside), *line = first;

    while (line > inside && line[-1] != '\n')
        line--;
    if (*first == '}')
        return strdup(INDENT);
    return line > inside ? strndup(line, (size_t)(first - line)) : NULL;
}

/* `value` with this indent in place of its own; on one line if `indent` is NULL. */
static char *lay_out(const char *value, const char *indent)
{
    char *out = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&out, &bytes);

    if (file == NULL)
        return NULL;
    for (const char *at = value; *at != '\0';) {
        size_t spaces;

        if (*at != '\n') {
            fputc(*at++, file);
            continue;
        }
        if (indent != NULL)
            fputc('\n', file);
        else if (at > value && at[-1] == ',')
            fputc(' ', file);
        spaces = strspn(++at, " ");
        for (size_t i = 0; indent != NULL && i < spaces / strlen(INDENT); i++)
            fputs(indent, file);
        at += spaces;
    }
    return fclose(file) == 0 ? out : NULL;
}

/* The text with `value`, formatted, put at `place`; NULL: no memory. */
static char *with_member(const char *text, const struct place *place, const char *key, const char *value, const char *indent)
{
    const char *const end = place->first ? skip_space(place->end) : place->end;
    const int before = (int)(place->begin - text);
    char *edited = NULL;
    int rc;

    if (place->found)
        rc = asprintf(&edited, "%.*s%s%s", before, text, value, end);
    else
        rc = asprintf(&edited, "%.*s%s%s%s\"%s\": %s%s%s", before, text, place->first ? "" : ",", indent != NULL ? "\n" : " ",
                      indent != NULL ? indent : "", key, value, place->first ? "\n" : "", end);
    return rc < 0 ? NULL : edited;
}

static strata_status check_object(const char *text, const char *name)
{
    st_json *root = NULL;
    strata_status st = st_json_parse(&root, text, strlen(text), name);

    if (st == STRATA_OK && st_json_type(root) != ST_JSON_OBJECT)
        st = st_error(STRATA_E_CONFIG, "%s: not an object in braces", name);
    st_json_free(root);
    return st;
}

strata_status st_json_edit(char **out, const char *text, const char *name, const char *key, const char *value)
{
    strata_status st = check_object(text, name);
    struct place place;
    char *indent, *laid_out, *edited;

    if (st != STRATA_OK)
        return st;
    place = find_member(text, key);
    indent = indent_of(text);
    laid_out = lay_out(value, indent);
    edited = laid_out != NULL ? with_member(text, &place, key, laid_out, indent) : NULL;
    free(laid_out);
    free(indent);
    if (edited == NULL)
        return st_error(STRATA_E_NOMEM, "%s: no memory to edit it", name);
    if ((st = check_object(edited, name)) == STRATA_OK)
        *out = edited;
    else
        free(edited);
    return st;
}

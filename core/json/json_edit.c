/* core/json/json_edit.c - see json_edit.h.  core/json/json.h checks the text first. */
#include "core/json/json_edit.h"
#include "core/base/error.h"
#include "core/json/json_member_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INDENT "    " /* that `value` comes with, and for a file without an indent */

/* The indent before the first member on its line.  NULL: no indent, the object is on one line. */
static char *indent_of(const char *text)
{
    const char *inside = st_json_skip_space(text) + 1, *first = st_json_skip_space(inside), *line = first;

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
static char *with_member(const char *text, const struct st_json_member *place, const char *key, const char *value,
                         const char *indent)
{
    const char *const end = place->first ? st_json_skip_space(place->end) : place->end;
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
    struct st_json_member place;
    char *indent, *laid_out, *edited;

    if (st != STRATA_OK)
        return st;
    place = st_json_find_member(text, key);
    indent = indent_of(text);
    laid_out = lay_out(value, indent);
    edited = laid_out != NULL ? with_member(text, &place, key, laid_out, indent) : NULL;
    free(laid_out);
    free(indent);
    if (edited == NULL)
        return st_nomem(0);
    if ((st = check_object(edited, name)) == STRATA_OK)
        *out = edited;
    else
        free(edited);
    return st;
}

/* config_taken.c - values that DeepSpeed takes for a key that changes no result, and the key's row does not: they are read as
 * DeepSpeed reads them, or brought into the range of the row, which is said. */
#include "offload/config/config_source.h"

#include "core/base/text.h"
#include <math.h>
#include <string.h>

#define SHOW_BYTES 96 /* of a value inside a message */

/* reference: pydantic, which reads DeepSpeed's sections.  NULL: it is neither true nor false. */
static const char *as_bool(const st_json *node)
{
    static const char *const words[][2] = {{"0", "1"}, {"false", "true"}, {"f", "t"}, {"no", "yes"}, {"n", "y"}, {"off", "on"}};
    char shown[SHOW_BYTES];

    st_value_show(shown, sizeof(shown), node);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        for (int yes = 0; yes < 2; yes++)
            if (st_text_same(words[i][yes], shown))
                return yes ? "true" : "false";
    return NULL;
}

/* A switch that is written as a number or a string, and a number that is a string. */
static const st_json *read_as(struct st_config_source *src, const struct st_field *field, const st_json *node)
{
    const enum st_json_type type = st_json_type(node);
    const char *text = NULL;
    const st_json *read;

    if (field->type == ST_FIELD_BOOL && (type == ST_JSON_NUMBER || type == ST_JSON_STRING))
        text = as_bool(node);
    else if ((field->type == ST_FIELD_INT || field->type == ST_FIELD_REAL) && type == ST_JSON_STRING)
        text = st_json_string(node);
    read = text != NULL ? st_source_parse(src, text) : NULL;
    return read != NULL && st_json_type(read) < ST_JSON_STRING ? read : node;
}

/* The nearest value of the row; 0 means nothing, as if the key were left out. */
static const st_json *bring(struct st_config_source *src, const struct st_field *field, const st_json *node)
{
    const double asked = st_json_number(node), high = fmin(asked, field->max), near = fmax(high, field->min);
    const double used = near - fmod(near, field->near);
    char shown[SHOW_BYTES], text[SHOW_BYTES], low_text[32], high_text[32], steps[32];
    const st_json *brought;

    if (!(asked >= 0) || asked == used || (isfinite(asked) && asked != floor(asked)))
        return node; /* it is right, or wrong for DeepSpeed, too */
    (void)st_json_double_text(steps, field->near);
    (void)st_json_double_text(text, used);
    brought = st_source_parse(src, asked > 0 ? text : field->fallback);
    if (brought == NULL)
        return node;
    st_value_show(shown, sizeof(shown), node);
    st_value_show(text, sizeof(text), brought);
    st_source_announce(src, field->path,
                       st_source_keep(src, "asked for %s, and %s is used: it is %s to %s%s%s; results are the same", shown, text,
                                      st_json_double_text(low_text, field->min), st_json_double_text(high_text, field->max),
                                      field->near > 1 ? " in steps of " : "", field->near > 1 ? steps : ""));
    return brought;
}

const st_json *st_value_take(struct st_config_source *src, const struct st_field *field, const st_json *node)
{
    if (st_field_changes(field) == ST_CHANGES_RESULTS)
        return node;
    node = read_as(src, field, node);
    return field->near > 0 && st_json_type(node) == ST_JSON_NUMBER ? bring(src, field, node) : node;
}

bool st_value_is_idle(struct st_config_source *src, const struct st_field *field, const st_json *node)
{
    const struct st_field_state *on = st_source_state(src, "fp16.enabled");
    const bool f16 = on->node != NULL && st_json_type(on->node) == ST_JSON_BOOL && st_json_bool(on->node);

    return st_field_inside(field, "fp16") && field->bind != ST_BIND_NONE && field->bind != ST_BIND_F16 && !f16 &&
           st_json_type(node) == ST_JSON_NUMBER && st_json_number(node) >= 0 && isfinite(st_json_number(node));
}

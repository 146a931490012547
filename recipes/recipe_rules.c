/* recipes/recipe_rules.c - what rules between a trainer's keys ask and say: values that were given, what they become, what is refused. */
#include "recipes/recipe_internal.h"

#include "core/base/fault.h"
#include "core/json/json_build.h"

#include <stdarg.h>
#include <string.h>

#define VALUE_BYTES ST_CONFIG_VALUE_MAX

/* --- values --- */

const st_json *st_recipe_node(struct strata_recipe *r, const char *key)
{
    const struct st_recipe_state *state = st_recipe_state_of(r, key);
    const char *fallback;
    uint32_t index;

    if (state->node != NULL)
        return state->usable ? state->node : NULL;
    fallback = st_recipe_row(r->trainer, key, &index)->fallback;
    return fallback != NULL ? st_source_parse(r->src, fallback) : NULL;
}

bool st_recipe_given(struct strata_recipe *r, const char *key)
{
    return st_recipe_state_of(r, key)->usable;
}

bool st_recipe_on(struct strata_recipe *r, const char *key)
{
    const st_json *node = st_recipe_node(r, key);

    return node != NULL && st_json_type(node) == ST_JSON_BOOL && st_json_bool(node);
}

double st_recipe_number(struct strata_recipe *r, const char *key)
{
    const st_json *node = st_recipe_node(r, key);

    return node != NULL && st_json_type(node) == ST_JSON_NUMBER ? st_json_number(node) : 0;
}

const char *st_recipe_real(struct strata_recipe *r, double value)
{
    char text[32];

    st_json_double_text(text, value);
    return st_source_keep(r->src, "%s", text);
}

const char *st_recipe_text(struct strata_recipe *r, const char *key)
{
    const st_json *node = st_recipe_node(r, key);

    return node != NULL && st_json_type(node) == ST_JSON_STRING ? st_json_string(node) : "";
}

int st_recipe_choice(struct strata_recipe *r, const char *key, int otherwise)
{
    uint32_t index;
    const struct st_choice *choice = st_choice_find(st_recipe_row(r->trainer, key, &index)->choices, st_recipe_text(r, key));

    return choice != NULL ? choice->value : otherwise;
}

/* --- what keys become --- */

static void put_value(struct strata_recipe *r, const char *from, const char *unless, const char *to, const char *text)
{
    struct st_config_said *value = st_source_add(r->src, &r->values, sizeof(*value));
    uint32_t index;
    const bool given = st_recipe_row(r->trainer, from, &index) != NULL && st_recipe_given(r, from); /* else it is for people */
    const st_json *node = given ? st_recipe_state_of(r, from)->node : NULL;

    if (value != NULL)
        *value = (struct st_config_said){.to = to,
                                         .text = text,
                                         .from = from,
                                         .unless = unless,
                                         .line = node != NULL ? st_json_line(node) : 0,
                                         .on_line = given && st_recipe_is_on_line(r, from, node),
                                         .weak = !given};
}

const char *st_recipe_json(struct strata_recipe *r, const st_json *node)
{
    struct st_json_writer w;
    char text[VALUE_BYTES];
    FILE *file;
    bool whole;

    if (st_json_type(node) == ST_JSON_NUMBER)
        return st_recipe_real(r, st_json_number(node));
    file = st_fault("config.alloc", 0) < 0 ? NULL : fmemopen(text, sizeof(text), "w");
    if (file == NULL) {
        r->src->failed = true;
        return "null";
    }
    st_json_begin(&w, file);
    st_json_put_node(&w, NULL, node);
    whole = ferror(file) == 0;
    if (fclose(file) != 0 || !whole)
        return ""; /* too long for any key: refused where it is taken, as it is no JSON */
    return st_source_keep_whole(r->src, text);
}

static void put_format(struct strata_recipe *r, const char *key, const char *unless, const char *to, const char *fmt,
                       va_list args)
{
    char text[VALUE_BYTES];

    if (fmt != NULL)
        vsnprintf(text, sizeof(text), fmt, args);
    put_value(r, key, unless, to, fmt != NULL ? st_source_keep_whole(r->src, text) : NULL);
}

void st_recipe_put(struct strata_recipe *r, const char *key, const char *to, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    put_format(r, key, NULL, to, fmt, args);
    va_end(args);
}

void st_recipe_put_unless(struct strata_recipe *r, const char *key, const char *unless, const char *to, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    put_format(r, key, unless, to, fmt, args);
    va_end(args);
}

void st_recipe_put_over(struct strata_recipe *r, const char *key, const char *to, const char *fmt, ...)
{
    const uint32_t count = r->values.count;
    va_list args;

    va_start(args, fmt);
    put_format(r, key, NULL, to, fmt, args);
    va_end(args);
    if (r->values.count > count) /* else memory ran out */
        ((struct st_config_said *)r->values.items)[count].over = true;
}

void st_recipe_note(struct strata_recipe *r, const char *key, const char *reason)
{
    struct st_recipe_state *state = st_recipe_state_of(r, key);

    if (state->verdict != ST_VERDICT_REJECTED)
        state->reason = reason;
}

void st_recipe_announce(struct strata_recipe *r, const char *key, const char *reason)
{
    st_recipe_note(r, key, reason);
    st_recipe_state_of(r, key)->announced = true;
}

void st_recipe_idle(struct strata_recipe *r, const char *key, const char *reason)
{
    st_recipe_note(r, key, reason);
    if (st_recipe_state_of(r, key)->verdict != ST_VERDICT_REJECTED)
        st_recipe_state_of(r, key)->verdict = ST_VERDICT_NOTICE;
}

void st_recipe_reject(struct strata_recipe *r, const char *key, const char *reason)
{
    struct st_recipe_state *state = st_recipe_state_of(r, key);

    state->usable = false;
    state->verdict = ST_VERDICT_REJECTED;
    state->reason = reason;
    st_recipe_add_problem(r, key, state->node, reason);
}

const char *st_recipe_quoted(struct strata_recipe *r, const char *text)
{
    st_json *node = st_json_new_string(text);

    if (node == NULL || st_source_adopt(r->src, node) == NULL) {
        r->src->failed = true;
        return "null";
    }
    return st_recipe_json(r, node);
}

const char *st_recipe_list(struct strata_recipe *r, const char *key)
{
    const char *text = st_recipe_text(r, key);
    st_json *list = st_json_new_array();
    bool made = list != NULL;

    while (made) {
        const size_t length = strcspn(text, ",");
        size_t first = strspn(text, " \t"), last = length;
        const char *word;

        first = first < length ? first : length;
        while (last > first && (text[last - 1] == ' ' || text[last - 1] == '\t'))
            last--;
        word = st_source_keep(r->src, "%.*s", (int)(last - first), text + first);
        made = st_json_add(list, NULL, st_json_new_string(word));
        text += length;
        if (*text == '\0')
            break;
        text++;
    }
    if (!made) {
        st_json_free(list);
        r->src->failed = true;
        return "[]";
    }
    return st_recipe_json(r, st_source_adopt(r->src, list));
}

/* "DIR/name", where DIR is the first `length` bytes of the recipe's path; NULL: it is not there. */
static const char *in_directory(struct strata_recipe *r, size_t length, const char *name)
{
    char path[ST_PATH_MAX];
    bool there = false;

    if ((size_t)snprintf(path, sizeof(path), "%.*s%s", (int)length, r->path, name) >= sizeof(path) ||
        st_file_find(&there, path) != STRATA_OK || !there)
        return NULL;
    return st_source_keep_whole(r->src, path);
}

const char *st_recipe_beside(struct strata_recipe *r, const char *name)
{
    const char *found = NULL;
    bool there = false;

    if (name[0] == '/' || (st_file_find(&there, name) == STRATA_OK && there))
        return name;
    for (size_t length = strlen(r->path); length > 0 && found == NULL; length--)
        if (r->path[length - 1] == '/')
            found = in_directory(r, length, name);
    return found != NULL ? found : name;
}

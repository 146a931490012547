/* template_input.c - what a template is given: the messages, whose bytes remember where they come from, and the variables beside
 * them. */
#include "text/template/template_internal.h"

#include <string.h>

bool st_template_message_excluded(const st_json *message)
{
    const st_json *loss = st_json_get(message, "loss"), *weight = st_json_get(message, "weight");

    return (loss != NULL && st_json_type(loss) == ST_JSON_BOOL && !st_json_bool(loss)) ||
           (weight != NULL && st_json_type(weight) == ST_JSON_NUMBER && st_json_number(weight) == 0);
}

bool st_template_is_answer(const st_json *message)
{
    const st_json *role = st_json_type(message) == ST_JSON_OBJECT ? st_json_get(message, "role") : NULL;

    return role != NULL && st_json_type(role) == ST_JSON_STRING && strcmp(st_json_string(role), "assistant") == 0;
}

static bool is_null(const st_json *n)
{
    return n == NULL || st_json_type(n) == ST_JSON_NULL;
}

static const char *const reasoning_names[] = {"reasoning_content", "thinking", "reasoning"};

const st_json *st_template_reasoning(const st_json *message)
{
    const st_json *found = NULL;

    for (size_t i = 0; i < sizeof(reasoning_names) / sizeof(reasoning_names[0]) && is_null(found); i++)
        found = st_json_type(message) == ST_JSON_OBJECT ? st_json_get(message, reasoning_names[i]) : NULL;
    return is_null(found) ? NULL : found;
}

static enum st_origin field_of(const char *name)
{
    if (strcmp(name, "content") == 0)
        return ST_ORIGIN_CONTENT;
    if (strcmp(name, "tool_calls") == 0 || strcmp(name, "function_call") == 0)
        return ST_ORIGIN_CALL;
    for (size_t i = 0; i < sizeof(reasoning_names) / sizeof(reasoning_names[0]); i++)
        if (strcmp(name, reasoning_names[i]) == 0)
            return ST_ORIGIN_REASONING;
    return ST_ORIGIN_TEMPLATE;
}

/* Who wrote the role, and such, is the template. */
static uint32_t origin_of(const st_json *message, uint32_t number, const char *name)
{
    const uint32_t field = field_of(name);
    const bool excluded = st_template_is_answer(message) && st_template_message_excluded(message) && strcmp(name, "role") != 0;

    return (field | (excluded ? ST_ORIGIN_EXCLUDED : 0)) | (field != 0 ? number << ST_ORIGIN_BITS : 0);
}

/* A part's text; NULL: it has none. */
static const st_json *text_of(const st_json *part)
{
    const st_json *text = st_json_type(part) == ST_JSON_OBJECT ? st_json_get(part, "text") : NULL;

    return text != NULL && st_json_type(text) == ST_JSON_STRING ? text : NULL;
}

bool st_template_has_parts(const st_json *message)
{
    const st_json *content = st_json_type(message) == ST_JSON_OBJECT ? st_json_get(message, "content") : NULL;
    bool all = content != NULL && st_json_type(content) == ST_JSON_ARRAY && st_json_first(content) != NULL;

    for (const st_json *part = all ? st_json_first(content) : NULL; part != NULL && all; part = st_json_next(part))
        all = text_of(part) != NULL;
    return all;
}

/* The texts of all parts, one behind the other. */
static struct st_value joined(struct st_render *r, const st_json *content, uint32_t origin)
{
    struct st_builder b = {0};

    for (const st_json *part = st_json_first(content); part != NULL; part = st_json_next(part)) {
        const struct st_value text = st_val_json(r, text_of(part), origin);

        if (r->status == STRATA_OK)
            st_build_value(r, &b, &text);
    }
    return st_val_built(r, &b);
}

static void put_member(struct st_render *r, struct st_dict *d, const st_json *message, const char *name, const st_json *value)
{
    const uint32_t origin = origin_of(message, d->message, name);
    const bool join = r->input->join_parts && strcmp(name, "content") == 0 && st_template_has_parts(message);

    st_dict_put(r, d, st_val_text(r, name), join ? joined(r, value, origin) : st_val_json(r, value, origin));
}

/* As transformers gives it: without members that are null, and its reasoning by the two names that templates ask for. */
static struct st_value message_value(struct st_render *r, const st_json *message, uint32_t number)
{
    const struct st_value v = st_val_dict(r, VAL_DICT);
    const st_json *reasoning = st_template_reasoning(message);

    if (st_json_type(message) != ST_JSON_OBJECT)
        return st_val_json(r, message, ST_ORIGIN_TEMPLATE);
    if (r->status != STRATA_OK)
        return v;
    v.as.dict->message = number;
    if (reasoning != NULL)
        put_member(r, v.as.dict, message, "thinking", reasoning);
    for (const st_json *m = st_json_first(message); m != NULL && r->status == STRATA_OK; m = st_json_next(m))
        if (!is_null(m))
            put_member(r, v.as.dict, message, st_json_name(m), m);
    if (reasoning != NULL)
        put_member(r, v.as.dict, message, "reasoning_content", reasoning);
    return v;
}

static struct st_value messages_value(struct st_render *r)
{
    const struct st_template_input *input = r->input;
    const struct st_value messages = st_val_list(r, VAL_LIST);
    uint32_t count = 0;

    if (input->messages == NULL || st_json_type(input->messages) != ST_JSON_ARRAY)
        return st_render_fail(r, STRATA_E_INPUT, "messages must be a list");
    for (const st_json *m = st_json_first(input->messages); m != NULL && r->status == STRATA_OK; m = st_json_next(m)) {
        if (input->message_count != 0 && count == input->message_count)
            break;
        if (count == ST_TEMPLATE_MESSAGES_MAX)
            return st_render_fail(r, STRATA_E_INPUT, "a conversation of more than %u messages", ST_TEMPLATE_MESSAGES_MAX);
        st_list_push(r, messages.as.list, message_value(r, m, ++count));
    }
    return messages;
}

static void set_members(struct st_render *r, const st_json *object)
{
    for (const st_json *v = object == NULL ? NULL : st_json_first(object); v != NULL && r->status == STRATA_OK;
         v = st_json_next(v))
        st_scope_set(r, r->scope, st_json_name(v), st_val_json(r, v, ST_ORIGIN_TEMPLATE));
}

void st_render_input(struct st_render *r)
{
    const struct st_template_input *input = r->input;

    st_scope_set(r, r->scope, "messages", messages_value(r));
    st_scope_set(r, r->scope, "add_generation_prompt", st_val_bool(input->add_generation_prompt));
    st_scope_set(r, r->scope, "tools", st_val_none());
    st_scope_set(r, r->scope, "documents", st_val_none());
    for (uint32_t i = 0; i < input->special_count; i++)
        st_scope_set(r, r->scope, input->specials[i].name, st_val_text(r, input->specials[i].text));
    set_members(r, input->settings);
    set_members(r, input->variables);
}

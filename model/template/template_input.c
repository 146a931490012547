/* template_input.c - what a template is given: the messages, whose bytes remember where they come from, and the variables beside
 * them. */
#include "model/template/template_internal.h"

#include <string.h>

bool st_template_message_excluded(const st_json *message)
{
    const st_json *loss = st_json_get(message, "loss"), *weight = st_json_get(message, "weight");

    return (loss != NULL && st_json_type(loss) == ST_JSON_BOOL && !st_json_bool(loss)) ||
           (weight != NULL && st_json_type(weight) == ST_JSON_NUMBER && st_json_number(weight) == 0);
}

/* What the assistant wrote itself is trained, unless the row says otherwise. */
static uint8_t origin_of(const st_json *message, const char *field)
{
    const st_json *role = st_json_type(message) == ST_JSON_OBJECT ? st_json_get(message, "role") : NULL;
    const bool assistant = role != NULL && st_json_type(role) == ST_JSON_STRING && strcmp(st_json_string(role), "assistant") == 0;
    const bool thought = strcmp(field, "reasoning_content") == 0 || strcmp(field, "thinking") == 0;

    if (assistant && st_template_message_excluded(message))
        return strcmp(field, "role") != 0 ? ST_ORIGIN_EXCLUDED : ST_ORIGIN_TEMPLATE;
    if (strcmp(field, "content") != 0 && !(assistant && thought))
        return ST_ORIGIN_TEMPLATE;
    return assistant ? ST_ORIGIN_ANSWER : ST_ORIGIN_MESSAGE;
}

static struct st_value message_value(struct st_render *r, const st_json *message)
{
    const struct st_value v = st_val_dict(r, VAL_DICT);

    if (st_json_type(message) != ST_JSON_OBJECT)
        return st_val_json(r, message, ST_ORIGIN_TEMPLATE);
    for (const st_json *m = st_json_first(message); m != NULL && r->status == STRATA_OK; m = st_json_next(m))
        st_dict_put(r, v.as.dict, st_val_text(r, st_json_name(m)), st_val_json(r, m, origin_of(message, st_json_name(m))));
    return v;
}

void st_render_input(struct st_render *r)
{
    const struct st_template_input *input = r->input;
    const struct st_value messages = st_val_list(r, VAL_LIST);

    if (r->status != STRATA_OK)
        return;
    if (input->messages == NULL || st_json_type(input->messages) != ST_JSON_ARRAY) {
        st_render_fail(r, STRATA_E_INPUT, "a conversation that is no list of messages");
        return;
    }
    for (const st_json *m = st_json_first(input->messages); m != NULL && r->status == STRATA_OK; m = st_json_next(m))
        st_list_push(r, messages.as.list, message_value(r, m));
    st_scope_set(r, r->scope, "messages", messages);
    st_scope_set(r, r->scope, "add_generation_prompt", st_val_bool(input->add_generation_prompt));
    st_scope_set(r, r->scope, "tools", st_val_none());
    st_scope_set(r, r->scope, "documents", st_val_none());
    for (uint32_t i = 0; i < input->special_count; i++)
        st_scope_set(r, r->scope, input->specials[i].name, st_val_text(r, input->specials[i].text));
    if (input->variables == NULL)
        return;
    for (const st_json *v = st_json_first(input->variables); v != NULL && r->status == STRATA_OK; v = st_json_next(v))
        st_scope_set(r, r->scope, st_json_name(v), st_val_json(r, v, ST_ORIGIN_TEMPLATE));
}

/* template_run.c - statements: one rendering of a template, its scopes and its limits. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "text/template/template_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY_MAX  ((size_t)256 << 20) /* values, of which none is freed before the end */
#define NESTING_MAX 300u                /* expressions, calls and values inside each other */

/* --- limits --- */

struct st_value st_render_fail(struct st_render *r, strata_status st, const char *fmt, ...)
{
    char text[512];
    va_list args;

    if (r->status != STRATA_OK)
        return st_val_undefined("");
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    r->status = st_error(st, "%s, line %u: %s", r->t->name, r->line, text);
    return st_val_undefined("");
}

bool st_render_spend(struct st_render *r, size_t bytes)
{
    const uint64_t steps = 1 + bytes / 64;

    if (steps > r->steps_left)
        st_render_fail(r, STRATA_E_INPUT, "the template has not ended after %llu steps", (unsigned long long)r->steps_max);
    else
        r->steps_left -= steps;
    return r->status == STRATA_OK;
}

bool st_render_enter(struct st_render *r)
{
    if (r->depth++ >= NESTING_MAX)
        st_render_fail(r, STRATA_E_INPUT, "more than %u calls and values inside each other", NESTING_MAX);
    return r->status == STRATA_OK;
}

void st_render_leave(struct st_render *r)
{
    r->depth--;
}

void *st_render_get(struct st_render *r, size_t bytes)
{
    void *got = r->status == STRATA_OK && st_render_spend(r, bytes) ? st_arena_get(&r->arena, bytes) : NULL;

    if (got == NULL && r->status == STRATA_OK) {
        if (bytes > MEMORY_MAX - r->arena.used)
            st_render_fail(r, STRATA_E_INPUT, "the template needs more than %zu MiB", MEMORY_MAX >> 20);
        else
            r->status = st_nomem(0);
    }
    return got;
}

/* --- scopes --- */

struct st_variable {
    struct st_variable *next;
    const char *name;
    struct st_value value;
};

struct st_scope *st_scope_open(struct st_render *r, struct st_scope *parent)
{
    struct st_scope *s = st_render_get(r, sizeof(*s));

    if (s != NULL)
        s->parent = parent;
    return s;
}

void st_scope_set(struct st_render *r, struct st_scope *s, const char *name, struct st_value v)
{
    struct st_variable *at = s == NULL ? NULL : s->variables;

    while (at != NULL && strcmp(at->name, name) != 0)
        at = at->next;
    if (at == NULL && s != NULL && (at = st_render_get(r, sizeof(*at))) != NULL) {
        *at = (struct st_variable){.next = s->variables, .name = name};
        s->variables = at;
    }
    if (at != NULL)
        at->value = v;
}

struct st_value st_scope_get(const struct st_render *r, const char *name)
{
    for (const struct st_scope *s = r->scope; s != NULL; s = s->parent)
        for (const struct st_variable *v = s->variables; v != NULL; v = v->next)
            if (strcmp(v->name, name) == 0)
                return v->value;
    return st_is_function(name) ? (struct st_value){.kind = VAL_FUNCTION, .as.name = name} : st_val_undefined(name);
}

/* --- statements --- */

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

static enum flow run(struct st_render *r, const struct st_node *n);

/* Run statements in a new scope; the text goes to `out`. */
static enum flow run_inside(struct st_render *r, const struct st_node *body, struct st_builder *out)
{
    struct st_scope *scope = r->scope;
    struct st_builder *before = r->out;
    enum flow flow = FLOW_ON;

    r->scope = st_scope_open(r, scope);
    r->out = out;
    if (r->scope != NULL)
        flow = run(r, body);
    r->scope = scope;
    r->out = before;
    return flow;
}

static void assign(struct st_render *r, const struct st_node *target, const struct st_value *v)
{
    const struct st_list *items;
    size_t count = 0, i = 0;

    if (r->status != STRATA_OK)
        return;
    if (target->kind == NODE_NAME) {
        st_scope_set(r, r->scope, target->text, *v);
    } else if (target->kind == NODE_ATTRIBUTE) {
        const struct st_value space = st_eval(r, target->a);

        if (space.kind == VAL_NAMESPACE)
            st_dict_put(r, space.as.dict, st_val_text(r, target->text), *v);
        else
            st_render_fail(r, STRATA_E_INPUT, "'%s' is no namespace: its .%s cannot be set", target->a->text, target->text);
    } else {
        items = st_val_items(r, v);
        for (const struct st_node *name = target->first; name != NULL; name = name->next)
            count++;
        if (items != NULL && items->count != count)
            st_render_fail(r, STRATA_E_INPUT, "%zu values for %zu names", items->count, count);
        for (const struct st_node *name = target->first; name != NULL && r->status == STRATA_OK; name = name->next)
            st_scope_set(r, r->scope, name->text, items->items[i++]);
    }
}

/* Ask a loop's condition for an item.  One that passes is read back from the loop's names, several as a tuple. */
static void ask_for(struct st_render *r, struct st_loop *loop, const struct st_value *given)
{
    struct st_scope *scope = r->scope;
    const uint32_t line = r->line;
    struct st_value holds, item = *given;
    struct st_list *parts;

    if (loop->node->b == NULL) {
        st_list_push(r, loop->items, item);
        return;
    }
    r->line = loop->node->line;
    if (loop->node->target->kind == NODE_TUPLE && (parts = st_val_items(r, given)) != NULL)
        item = (struct st_value){.kind = VAL_TUPLE, .as.list = parts};
    r->scope = st_scope_open(r, loop->scope);
    assign(r, loop->node->target, &item);
    holds = st_eval(r, loop->node->b);
    if (r->status == STRATA_OK && st_val_true(&holds))
        st_list_push(r, loop->items, item);
    r->scope = scope;
    r->line = line;
}

bool st_loop_has(struct st_render *r, struct st_loop *loop, size_t index)
{
    const struct st_value *item;

    while (loop->from != NULL && loop->items->count <= index && r->status == STRATA_OK &&
           (item = st_iterator_next(loop->from)) != NULL)
        ask_for(r, loop, item);
    return r->status == STRATA_OK && index < loop->items->count;
}

/* A loop over a list without a condition has its items at once; another asks for them. */
static struct st_loop *open_loop(struct st_render *r, const struct st_node *n)
{
    struct st_value of = st_eval(r, n->a), held = {0};
    const bool asks = n->b != NULL || of.kind == VAL_ITERATOR;
    struct st_list *items = NULL;
    struct st_loop *loop = st_render_get(r, sizeof(*loop));

    if (r->status == STRATA_OK && of.kind != VAL_ITERATOR)
        items = st_val_items(r, &of);
    if (r->status == STRATA_OK && asks)
        held = st_val_list(r, VAL_LIST);
    if (r->status == STRATA_OK && asks && items != NULL)
        of = st_val_iterator(r, items);
    if (r->status != STRATA_OK)
        return NULL;
    *loop =
        (struct st_loop){.items = asks ? held.as.list : items, .node = n, .scope = r->scope, .from = asks ? of.as.list : NULL};
    return loop;
}

/* Which message a loop is at; the one around the loop where its items are none. */
static uint32_t message_of(const struct st_value *item, uint32_t around)
{
    return item->kind == VAL_DICT && item->as.dict->message > 0 ? item->as.dict->message : around;
}

static void run_for(struct st_render *r, const struct st_node *n)
{
    struct st_scope *scope = r->scope;
    const uint32_t message = r->message;
    struct st_loop *loop = open_loop(r, n);
    enum flow flow = FLOW_ON;
    bool ran = false; /* a turn to its end: Jinja looks at the others for none at all */

    if (loop == NULL)
        return;
    for (; flow != FLOW_BREAK && st_loop_has(r, loop, loop->index); loop->index++) {
        r->scope = st_scope_open(r, scope); /* each turn has its variables */
        st_scope_set(r, r->scope, "loop", (struct st_value){.kind = VAL_LOOP, .as.loop = loop});
        assign(r, n->target, &loop->items->items[loop->index]);
        r->message = message_of(&loop->items->items[loop->index], message);
        flow = run(r, n->body);
        ran = ran || flow == FLOW_ON;
    }
    r->scope = scope;
    r->message = message;
    if (!ran && n->other != NULL && r->status == STRATA_OK)
        (void)run_inside(r, n->other, r->out);
}

static enum flow run_if(struct st_render *r, const struct st_node *n)
{
    for (; n != NULL && n->kind == NODE_IF && r->status == STRATA_OK; n = n->other) {
        const struct st_value holds = st_eval(r, n->a);

        if (st_val_true(&holds))
            return run(r, n->body);
        if (n->other == NULL || n->other->kind != NODE_IF || n->other->next != NULL)
            return run(r, n->other);
    }
    return FLOW_ON;
}

static void run_set_block(struct st_render *r, const struct st_node *n)
{
    struct st_builder text = {0};
    struct st_value v;

    (void)run_inside(r, n->body, &text);
    v = st_val_built(r, &text);
    if (n->a != NULL)
        v = st_eval_filters(r, n->a, &v);
    assign(r, n->target, &v);
}

static void run_filter_block(struct st_render *r, const struct st_node *n)
{
    struct st_builder text = {0};
    struct st_value v;

    (void)run_inside(r, n->body, &text);
    v = st_val_built(r, &text);
    v = st_eval_filters(r, n->a, &v);
    if (r->status == STRATA_OK)
        st_build_value(r, r->out, &v);
}

static bool holds_excluded(const struct st_builder *text)
{
    for (size_t i = 0; i < text->bytes; i++)
        if ((text->origins[i] & ST_ORIGIN_EXCLUDED) != 0)
            return true;
    return false;
}

/* What the block writes is marked where it is written: a text that is only made in it, and kept in a namespace, is not; nor is
 * an answer that its row excludes, with what the block writes around it. */
static void run_generation(struct st_render *r, const struct st_node *n)
{
    struct st_builder text = {0};
    bool marked;

    (void)run_inside(r, n->body, &text);
    marked = r->status == STRATA_OK && !holds_excluded(&text);
    for (size_t i = 0; marked && i < text.bytes; i++)
        text.origins[i] |= ST_ORIGIN_GENERATION;
    st_build(r, r->out, text.text, text.bytes, text.origins);
}

/* A call's name that a template writes again at a later message, as the sender of its result, is no part of the call. */
static void run_print(struct st_render *r, const struct st_node *n)
{
    const size_t from = r->out->bytes;
    const struct st_value v = st_eval(r, n->a);

    if (r->status == STRATA_OK)
        st_build_value(r, r->out, &v);
    for (size_t i = from; i < r->out->bytes && r->message > 0; i++)
        if ((r->out->origins[i] & ST_ORIGIN_FIELD) == ST_ORIGIN_CALL && st_origin_message(r->out->origins[i]) < r->message)
            r->out->origins[i] = ST_ORIGIN_TEMPLATE;
}

static struct st_value macro_value(struct st_render *r, const struct st_node *n)
{
    struct st_macro *m = st_render_get(r, sizeof(*m));

    if (m == NULL)
        return st_val_undefined("");
    *m = (struct st_macro){.node = n, .scope = r->scope};
    return (struct st_value){.kind = VAL_MACRO, .as.macro = m};
}

static void run_call(struct st_render *r, const struct st_node *n)
{
    const struct st_value caller = macro_value(r, n->body);
    const struct st_value v = st_eval_call(r, n->a, &caller);

    if (r->status == STRATA_OK)
        st_build_value(r, r->out, &v);
}

static enum flow run_one(struct st_render *r, const struct st_node *n)
{
    struct st_value v;

    switch (n->kind) {
    case NODE_DATA:
        st_build(r, r->out, n->text, n->bytes, NULL);
        return FLOW_ON;
    case NODE_PRINT:
        run_print(r, n);
        return FLOW_ON;
    case NODE_IF:
        return run_if(r, n);
    case NODE_FOR:
        run_for(r, n);
        return FLOW_ON;
    case NODE_SET:
        v = st_eval(r, n->a);
        assign(r, n->target, &v);
        return FLOW_ON;
    case NODE_SET_BLOCK:
        run_set_block(r, n);
        return FLOW_ON;
    case NODE_FILTER_BLOCK:
        run_filter_block(r, n);
        return FLOW_ON;
    case NODE_GENERATION:
        run_generation(r, n);
        return FLOW_ON;
    case NODE_MACRO:
        v = macro_value(r, n);
        st_scope_set(r, r->scope, n->text, v);
        return FLOW_ON;
    case NODE_CALL_BLOCK:
        run_call(r, n);
        return FLOW_ON;
    case NODE_BREAK:
        return FLOW_BREAK;
    default:
        return FLOW_CONTINUE;
    }
}

static enum flow run(struct st_render *r, const struct st_node *n)
{
    enum flow flow = FLOW_ON;

    if (!st_render_enter(r))
        n = NULL;
    for (; n != NULL && flow == FLOW_ON && st_render_spend(r, 1); n = n->next) {
        r->line = n->line;
        flow = run_one(r, n);
    }
    st_render_leave(r);
    return flow;
}

static bool has_parameter(const struct st_macro *m, const char *name)
{
    for (const struct st_node *p = m->node->first; p != NULL; p = p->next)
        if (strcmp(p->text, name) == 0)
            return true;
    return false;
}

/* What a {% call %} gives beside the arguments. */
static bool is_caller(const struct st_arguments *args, uint32_t i)
{
    return args->named[i].value.kind == VAL_MACRO && strcmp(args->named[i].name, "caller") == 0;
}

struct st_value st_call_macro(struct st_render *r, const struct st_macro *m, const struct st_arguments *args)
{
    struct st_scope *scope = r->scope;
    struct st_builder text = {0};
    uint32_t index = 0;

    if (!st_render_enter(r) || (r->scope = st_scope_open(r, m->scope)) == NULL) {
        r->scope = scope;
        st_render_leave(r);
        return st_val_undefined("");
    }
    for (const struct st_node *p = m->node->first; p != NULL && r->status == STRATA_OK; p = p->next, index++) {
        const struct st_value *given = st_argument(args, index, p->text);

        st_scope_set(r, r->scope, p->text, given != NULL ? *given : st_val_undefined(p->text));
    }
    /* A name in a default means the parameter, whatever has that name outside. */
    index = 0;
    for (const struct st_node *p = m->node->first; p != NULL && r->status == STRATA_OK; p = p->next, index++)
        if (p->a != NULL && st_argument(args, index, p->text) == NULL)
            st_scope_set(r, r->scope, p->text, st_eval(r, p->a));
    for (uint32_t i = 0; i < args->named_count && r->status == STRATA_OK; i++)
        if (is_caller(args, i))
            st_scope_set(r, r->scope, "caller", args->named[i].value);
    if (args->count > index)
        st_render_fail(r, STRATA_E_INPUT, "the macro %s takes at most %u arguments", m->node->text, index);
    for (uint32_t i = 0; i < args->named_count && r->status == STRATA_OK; i++)
        if (!has_parameter(m, args->named[i].name) && !is_caller(args, i))
            st_render_fail(r, STRATA_E_INPUT, "the macro %s has no parameter '%s'", m->node->text, args->named[i].name);
    if (r->status == STRATA_OK)
        (void)run_inside(r, m->node->body, &text);
    r->scope = scope;
    st_render_leave(r);
    return st_val_built(r, &text);
}

static strata_status keep(struct st_rendered *out, const struct st_render *r, const struct st_builder *text)
{
    struct st_rendered kept = {.bytes = text->bytes, .has_generation = r->t->has_generation, .printed_parts = r->printed_parts};

    kept.text = st_fault("template.alloc", 0) < 0 ? NULL : malloc(text->bytes + 1);
    kept.origins = st_fault("template.alloc", 0) < 0 ? NULL : malloc((text->bytes + 1) * sizeof(*kept.origins));
    if (kept.text == NULL || kept.origins == NULL) {
        st_rendered_free(&kept);
        return st_nomem(0);
    }
    if (text->bytes > 0) {
        memcpy(kept.text, text->text, text->bytes);
        memcpy(kept.origins, text->origins, text->bytes * sizeof(*kept.origins));
    }
    kept.text[text->bytes] = '\0';
    *out = kept;
    return STRATA_OK;
}

strata_status st_template_render(struct st_rendered *out, const struct st_template *t, const struct st_template_input *input)
{
    struct st_builder text = {0};
    struct st_render r = {.t = t, .input = input, .arena.limit = MEMORY_MAX, .out = &text, .line = 1};

    r.steps_max = r.steps_left = input->steps_max != 0 ? input->steps_max : ST_TEMPLATE_STEPS_MAX;
    r.scope = st_scope_open(&r, NULL);
    if (r.status == STRATA_OK)
        st_render_input(&r);
    if (r.status == STRATA_OK)
        (void)run(&r, t->body);
    if (r.status == STRATA_OK)
        r.status = keep(out, &r, &text);
    st_arena_free(&r.arena);
    return r.status;
}

void st_rendered_free(struct st_rendered *rendered)
{
    free(rendered->text);
    free(rendered->origins);
    *rendered = (struct st_rendered){0};
}

/* template_eval.c - expressions: what a node's value is.  Python's rules, as far as the subset goes. */
#include "text/template/template_internal.h"

#include <string.h>

/* --- attributes and items --- */

static int64_t loop_length(struct st_render *r, struct st_loop *loop)
{
    (void)st_loop_has(r, loop, SIZE_MAX);
    return (int64_t)loop->items->count;
}

static struct st_value loop_attribute(struct st_render *r, struct st_loop *loop, const char *name)
{
    if (strcmp(name, "index") == 0)
        return st_val_int((int64_t)loop->index + 1);
    if (strcmp(name, "index0") == 0)
        return st_val_int((int64_t)loop->index);
    if (strcmp(name, "revindex") == 0)
        return st_val_int(loop_length(r, loop) - (int64_t)loop->index);
    if (strcmp(name, "revindex0") == 0)
        return st_val_int(loop_length(r, loop) - (int64_t)loop->index - 1);
    if (strcmp(name, "first") == 0)
        return st_val_bool(loop->index == 0);
    if (strcmp(name, "last") == 0)
        return st_val_bool(!st_loop_has(r, loop, loop->index + 1));
    if (strcmp(name, "length") == 0)
        return st_val_int(loop_length(r, loop));
    if (strcmp(name, "previtem") == 0)
        return loop->index == 0 ? st_val_undefined(name) : loop->items->items[loop->index - 1];
    if (strcmp(name, "nextitem") == 0)
        return st_loop_has(r, loop, loop->index + 1) ? loop->items->items[loop->index + 1] : st_val_undefined(name);
    return st_render_fail(r, STRATA_E_NOSYS, "loop.%s is not supported", name);
}

static struct st_value method_of(struct st_render *r, const struct st_value *self, const char *name)
{
    struct st_method *m = st_render_get(r, sizeof(*m));

    if (m == NULL)
        return st_val_undefined(name);
    *m = (struct st_method){.self = *self, .name = name};
    return (struct st_value){.kind = VAL_METHOD, .as.method = m};
}

struct st_value st_get_attribute(struct st_render *r, const struct st_value *of, const char *name)
{
    const struct st_value *found;

    if (of->kind == VAL_UNDEFINED)
        return st_render_fail(r, STRATA_E_INPUT, "'%s' is undefined: it has no .%s", of->as.name, name);
    if (of->kind == VAL_LOOP)
        return loop_attribute(r, of->as.loop, name);
    if (of->kind == VAL_NAMESPACE) {
        found = st_dict_find(r, of->as.dict, name);
        return found != NULL ? *found : st_val_undefined(name);
    }
    if (st_has_method(of, name)) /* Python's methods come before the members of a dict */
        return method_of(r, of, name);
    if (of->kind == VAL_DICT && (found = st_dict_find(r, of->as.dict, name)) != NULL)
        return *found;
    return st_val_undefined(name);
}

/* The byte offsets of characters, for an index: *count is their number. */
static size_t *char_offsets(struct st_render *r, const struct st_string *s, size_t *count)
{
    size_t *offsets, n = 0;

    *count = 0;
    if (!st_render_spend(r, s->bytes))
        return NULL;
    offsets = st_render_get(r, (st_string_chars(s) + 1) * sizeof(*offsets));
    if (offsets == NULL)
        return NULL;
    for (size_t at = 0; at < s->bytes; at = st_utf8_next(s, at))
        offsets[n++] = at;
    offsets[n] = s->bytes;
    *count = n;
    return offsets;
}

static bool as_index(const struct st_value *v, int64_t *index)
{
    if (v->kind != VAL_INT && v->kind != VAL_BOOL)
        return false;
    *index = v->kind == VAL_INT ? v->as.integer : v->as.truth;
    return true;
}

struct st_value st_get_item(struct st_render *r, const struct st_value *of, const struct st_value *key)
{
    const struct st_value *found;
    int64_t index, count;
    size_t chars, *offsets;

    if (of->kind == VAL_UNDEFINED)
        return st_render_fail(r, STRATA_E_INPUT, "'%s' is undefined: it has no items", of->as.name);
    if (of->kind == VAL_DICT && (found = st_dict_get(r, of->as.dict, key)) != NULL)
        return *found;
    if (st_val_has_list(of) && as_index(key, &index)) {
        count = (int64_t)of->as.list->count;
        index += index < 0 ? count : 0;
        return index >= 0 && index < count ? of->as.list->items[index] : st_val_undefined("an item past the end");
    }
    if (of->kind == VAL_STRING && as_index(key, &index)) {
        offsets = char_offsets(r, of->as.string, &chars);
        index += index < 0 ? (int64_t)chars : 0;
        if (offsets == NULL || index < 0 || index >= (int64_t)chars)
            return st_val_undefined("a character past the end");
        return st_val_part(r, of->as.string, offsets[index], offsets[index + 1]);
    }
    if (key->kind == VAL_STRING) {
        char *name = st_render_get(r, key->as.string->bytes + 1);

        if (name == NULL)
            return st_val_undefined("");
        memcpy(name, key->as.string->text, key->as.string->bytes);
        if (of->kind != VAL_DICT || st_has_method(of, name)) /* what is no member is an attribute, for Jinja */
            return st_get_attribute(r, of, name);
    }
    return st_val_undefined(key->kind == VAL_STRING ? "a missing key" : "a missing item");
}

/* --- slices --- */

/* Python's slice.indices(): start, stop and step for a sequence of `count` items. */
static bool slice_bounds(struct st_render *r, const struct st_node *n, int64_t count, int64_t bounds[3])
{
    const struct st_node *parts[3] = {n->first, n->first->next, n->first->next->next};
    struct st_value values[3];
    int64_t step = 1;

    for (uint32_t i = 0; i < 3; i++) {
        values[i] = st_eval(r, parts[i]);
        if (values[i].kind != VAL_NONE && !as_index(&values[i], &bounds[i])) {
            st_render_fail(r, STRATA_E_INPUT, "%s in a slice", st_val_type(&values[i]));
            return false;
        }
    }
    if (values[2].kind != VAL_NONE && (step = bounds[2]) == 0) {
        st_render_fail(r, STRATA_E_INPUT, "a slice with a step of 0");
        return false;
    }
    for (uint32_t i = 0; i < 2; i++) {
        const int64_t least = step < 0 ? -1 : 0, most = step < 0 ? count - 1 : count;

        if (values[i].kind == VAL_NONE) {
            bounds[i] = (i == 0) == (step > 0) ? least : most;
            continue;
        }
        bounds[i] += bounds[i] < 0 ? count : 0;
        bounds[i] = bounds[i] < least ? least : bounds[i] > most ? most : bounds[i];
    }
    bounds[2] = step;
    return r->status == STRATA_OK;
}

/* What a part of a range is printed as. */
static void slice_range(struct st_render *r, struct st_list *out, const struct st_list *of, const int64_t bounds[3])
{
    int64_t start, stop;

    if (__builtin_mul_overflow(bounds[0], of->step, &start) || __builtin_add_overflow(of->start, start, &out->start) ||
        __builtin_mul_overflow(bounds[1], of->step, &stop) || __builtin_add_overflow(of->start, stop, &out->stop) ||
        __builtin_mul_overflow(bounds[2], of->step, &out->step))
        st_render_fail(r, STRATA_E_INPUT, "a part of a range past 64 bits");
}

static struct st_value eval_slice(struct st_render *r, const struct st_node *n)
{
    const struct st_value of = st_eval(r, n->a);
    const bool text = of.kind == VAL_STRING;
    struct st_builder b = {0};
    struct st_value out;
    int64_t bounds[3];
    size_t chars = 0, *offsets = NULL;

    if (of.kind == VAL_UNDEFINED)
        return st_render_fail(r, STRATA_E_INPUT, "'%s' is undefined: it has no parts", of.as.name);
    if (!text && !st_val_has_list(&of))
        return st_render_fail(r, STRATA_E_INPUT, "%s has no parts", st_val_type(&of));
    if (text && (offsets = char_offsets(r, of.as.string, &chars)) == NULL)
        return st_val_undefined("");
    out = st_val_list(r, of.kind);
    if (!slice_bounds(r, n, text ? (int64_t)chars : (int64_t)of.as.list->count, bounds))
        return st_val_undefined("");
    if (text && bounds[2] == 1)
        return st_val_part(r, of.as.string, offsets[bounds[0]], offsets[bounds[0] < bounds[1] ? bounds[1] : bounds[0]]);
    if (of.kind == VAL_RANGE && r->status == STRATA_OK)
        slice_range(r, out.as.list, of.as.list, bounds);
    for (int64_t i = bounds[0]; bounds[2] > 0 ? i < bounds[1] : i > bounds[1]; i += bounds[2]) {
        if (!st_render_spend(r, 1))
            break;
        if (!text) {
            st_list_push(r, out.as.list, of.as.list->items[i]);
        } else {
            const struct st_string c = st_string_part(of.as.string, offsets[i], offsets[i + 1]);

            st_build(r, &b, c.text, c.bytes, c.origins);
        }
        if (bounds[2] > bounds[1] - i && bounds[2] > 0)
            break; /* a step past the end, without overflow */
    }
    return text ? st_val_built(r, &b) : out;
}

/* --- operators --- */

static struct st_value concat(struct st_render *r, const struct st_value *a, const struct st_value *b)
{
    struct st_builder out = {0};

    st_build_value(r, &out, a);
    st_build_value(r, &out, b);
    return st_val_built(r, &out);
}

static struct st_value joined_list(struct st_render *r, const struct st_value *a, const struct st_value *b)
{
    struct st_value out = st_val_list(r, a->kind);

    for (size_t i = 0; i < a->as.list->count && r->status == STRATA_OK; i++)
        st_list_push(r, out.as.list, a->as.list->items[i]);
    for (size_t i = 0; i < b->as.list->count && r->status == STRATA_OK; i++)
        st_list_push(r, out.as.list, b->as.list->items[i]);
    return out;
}

static struct st_value repeated(struct st_render *r, const struct st_value *v, int64_t times)
{
    struct st_builder out = {0};
    struct st_value list = *v;

    if (v->kind == VAL_STRING) {
        for (; times > 0 && st_render_spend(r, 1); times--)
            st_build_value(r, &out, v);
        return st_val_built(r, &out);
    }
    list = st_val_list(r, v->kind);
    for (; times > 0 && st_render_spend(r, 1); times--)
        for (size_t i = 0; i < v->as.list->count; i++)
            st_list_push(r, list.as.list, v->as.list->items[i]);
    return list;
}

static bool is_sequence(const struct st_value *v)
{
    return v->kind == VAL_STRING || v->kind == VAL_LIST || v->kind == VAL_TUPLE;
}

static const char *const sign_texts[] = {"+", "-", "*", "/", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};

/* The text in HTML, unless it is marked as that. */
static void build_safe(struct st_render *r, struct st_builder *b, const struct st_string *s)
{
    static const char signs[] = "&<>'\"", *const names[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};

    for (size_t i = 0; i < s->bytes && r->status == STRATA_OK; i++) {
        const char *sign = s->safe || s->text[i] == '\0' ? NULL : strchr(signs, s->text[i]);
        const char *text = sign != NULL ? names[sign - signs] : s->text + i;

        for (size_t k = 0, bytes = sign != NULL ? strlen(text) : 1; k < bytes; k++)
            st_build(r, b, text + k, 1, s->origins != NULL ? s->origins + i : NULL);
    }
}

/* + with a text that the filter `safe` has marked: so is the result. */
static struct st_value join_safe(struct st_render *r, const struct st_string *first, const struct st_string *second)
{
    struct st_builder b = {0};
    struct st_value out;

    build_safe(r, &b, first);
    build_safe(r, &b, second);
    out = st_val_built(r, &b);
    if (r->status == STRATA_OK)
        out.as.string->safe = true;
    return out;
}

static struct st_value eval_binary(struct st_render *r, const struct st_node *n)
{
    const struct st_value a = st_eval(r, n->a), b = st_eval(r, n->b);
    int64_t i = 0, j = 0;

    if (r->status != STRATA_OK)
        return st_val_undefined("");
    r->line = n->line;
    if (n->sign == SIGN_CONCAT)
        return concat(r, &a, &b);
    if (n->sign == SIGN_ADD && a.kind == VAL_STRING && b.kind == VAL_STRING)
        return a.as.string->safe || b.as.string->safe ? join_safe(r, a.as.string, b.as.string) : concat(r, &a, &b);
    if (n->sign == SIGN_ADD && a.kind == b.kind && (a.kind == VAL_LIST || a.kind == VAL_TUPLE))
        return joined_list(r, &a, &b);
    if (n->sign == SIGN_MUL && is_sequence(&a) && as_index(&b, &j))
        return repeated(r, &a, j);
    if (n->sign == SIGN_MUL && is_sequence(&b) && as_index(&a, &i))
        return repeated(r, &b, i);
    if (as_index(&a, &i) && as_index(&b, &j))
        return st_val_of_integers(r, n->sign, i, j);
    if ((a.kind == VAL_FLOAT || as_index(&a, &i)) && (b.kind == VAL_FLOAT || as_index(&b, &j)))
        return st_val_of_reals(r, n->sign, a.kind == VAL_FLOAT ? a.as.real : (double)i,
                               b.kind == VAL_FLOAT ? b.as.real : (double)j);
    if (a.kind == VAL_UNDEFINED || b.kind == VAL_UNDEFINED)
        return st_render_fail(r, STRATA_E_INPUT, "'%s' is undefined", a.kind == VAL_UNDEFINED ? a.as.name : b.as.name);
    if (n->sign == SIGN_MOD && a.kind == VAL_STRING)
        return st_render_fail(r, STRATA_E_NOSYS, "formatting with %% is not supported");
    return st_render_fail(r, STRATA_E_INPUT, "%s %s %s has no meaning", st_val_type(&a), sign_texts[n->sign], st_val_type(&b));
}

static bool contains(struct st_render *r, const struct st_value *in, const struct st_value *what)
{
    const struct st_list *items;
    const struct st_value *item;

    if (in->kind == VAL_STRING) {
        if (what->kind != VAL_STRING) {
            st_render_fail(r, STRATA_E_INPUT, "%s cannot be in a string", st_val_type(what));
            return false;
        }
        return st_string_find(r, in->as.string, 0, what->as.string->text, what->as.string->bytes) != SIZE_MAX;
    }
    if (in->kind == VAL_DICT && !st_val_hashable(what)) {
        st_render_fail(r, STRATA_E_INPUT, "%s cannot be the key of a dict", st_val_type(what));
        return false;
    }
    if (in->kind == VAL_DICT)
        return st_dict_get(r, in->as.dict, what) != NULL;
    if (in->kind == VAL_ITERATOR) { /* what stands behind is left */
        while (r->status == STRATA_OK && (item = st_iterator_next(in->as.list)) != NULL)
            if (st_val_equal(r, item, what))
                return true;
        return false;
    }
    items = st_val_items(r, in);
    for (size_t i = 0; items != NULL && i < items->count && r->status == STRATA_OK; i++)
        if (st_val_equal(r, &items->items[i], what))
            return true;
    return false;
}

bool st_compare_sign(struct st_render *r, enum st_sign sign, const struct st_value *a, const struct st_value *b)
{
    if (sign == SIGN_EQ || sign == SIGN_NE)
        return st_val_equal(r, a, b) == (sign == SIGN_EQ);
    if (sign == SIGN_IN || sign == SIGN_NOT_IN)
        return contains(r, b, a) == (sign == SIGN_IN);
    if (sign == SIGN_LT)
        return st_val_compare(r, a, b) < 0;
    if (sign == SIGN_LE)
        return st_val_compare(r, a, b) <= 0;
    return sign == SIGN_GT ? st_val_compare(r, a, b) > 0 : st_val_compare(r, a, b) >= 0;
}

static struct st_value eval_comparison(struct st_render *r, const struct st_node *n)
{
    struct st_value a = st_eval(r, n->a);

    for (const struct st_node *operand = n->first; operand != NULL; operand = operand->next) {
        const struct st_value b = st_eval(r, operand->a);

        r->line = operand->line;
        if (r->status != STRATA_OK || !st_compare_sign(r, operand->sign, &a, &b))
            return st_val_bool(false);
        a = b;
    }
    return st_val_bool(true);
}

static struct st_value eval_sign(struct st_render *r, const struct st_node *n)
{
    const struct st_value v = st_eval(r, n->a);
    int64_t i;

    if (v.kind == VAL_FLOAT)
        return st_val_float(n->kind == NODE_NEGATE ? -v.as.real : v.as.real);
    if (!as_index(&v, &i))
        return st_render_fail(r, STRATA_E_INPUT, "a sign before %s", st_val_type(&v));
    return n->kind == NODE_NEGATE ? st_val_of_integers(r, SIGN_SUB, 0, i) : st_val_int(i);
}

/* --- calls --- */

const struct st_value *st_argument(const struct st_arguments *args, uint32_t index, const char *name)
{
    if (index < args->count)
        return &args->at[index];
    for (uint32_t i = 0; name != NULL && i < args->named_count; i++)
        if (strcmp(args->named[i].name, name) == 0)
            return &args->named[i].value;
    return NULL;
}

static void add_arguments(struct st_render *r, struct st_arguments *args, const struct st_value *at, size_t count)
{
    const uint32_t most = sizeof(args->at) / sizeof(args->at[0]);

    if (count > most - args->count) {
        st_render_fail(r, STRATA_E_NOSYS, "more than %u arguments", most);
        return;
    }
    memcpy(args->at + args->count, at, count * sizeof(*at));
    args->count += (uint32_t)count;
}

static void add_named(struct st_render *r, struct st_arguments *args, const char *name, const struct st_value *v)
{
    const uint32_t most = sizeof(args->named) / sizeof(args->named[0]);

    if (args->named_count == most) {
        st_render_fail(r, STRATA_E_NOSYS, "more than %u arguments", most);
        return;
    }
    args->named[args->named_count].name = name;
    args->named[args->named_count++].value = *v;
}

void st_eval_arguments(struct st_render *r, struct st_arguments *args, const struct st_node *first)
{
    args->count = args->named_count = 0;
    for (const struct st_node *n = first; n != NULL && r->status == STRATA_OK; n = n->next) {
        const struct st_value v = st_eval(r, n->kind == NODE_ARGUMENT || n->kind == NODE_SPREAD ? n->a : n);

        if (r->status != STRATA_OK)
            return;
        if (n->kind == NODE_ARGUMENT)
            add_named(r, args, n->text, &v);
        else if (n->kind != NODE_SPREAD)
            add_arguments(r, args, &v, 1);
        else if (v.kind == VAL_LIST || v.kind == VAL_TUPLE)
            add_arguments(r, args, v.as.list->items, v.as.list->count);
        else
            st_render_fail(r, STRATA_E_INPUT, "%s after * gives no arguments: only a list does", st_val_type(&v));
    }
}

struct st_value st_eval_call(struct st_render *r, const struct st_node *n, const struct st_value *caller)
{
    const struct st_value f = st_eval(r, n->a);
    struct st_arguments args;

    st_eval_arguments(r, &args, n->first);
    if (caller != NULL && r->status == STRATA_OK && f.kind == VAL_MACRO)
        add_named(r, &args, "caller", caller);
    else if (caller != NULL && r->status == STRATA_OK)
        st_render_fail(r, STRATA_E_NOSYS, "{%% call %%} of %s, which is no macro, is not supported", st_val_type(&f));
    r->line = n->line;
    return r->status == STRATA_OK ? st_call(r, &f, &args) : st_val_undefined("");
}

struct st_value st_eval_filters(struct st_render *r, const struct st_node *n, const struct st_value *v)
{
    struct st_arguments args;
    struct st_value of = *v;

    if (n->a != NULL)
        of = n->a->kind == NODE_FILTER ? st_eval_filters(r, n->a, v) : st_eval(r, n->a);
    st_eval_arguments(r, &args, n->first);
    r->line = n->line;
    return r->status == STRATA_OK ? st_apply_filter(r, n->text, &of, &args) : st_val_undefined("");
}

static struct st_value eval_test(struct st_render *r, const struct st_node *n)
{
    const struct st_value v = st_eval(r, n->a);
    struct st_arguments args;

    st_eval_arguments(r, &args, n->first);
    r->line = n->line;
    return st_val_bool(r->status == STRATA_OK && st_apply_test(r, n->text, &v, &args));
}

/* --- displays --- */

static struct st_value eval_list(struct st_render *r, const struct st_node *n)
{
    const struct st_value out = st_val_list(r, n->kind == NODE_LIST ? VAL_LIST : VAL_TUPLE);

    for (const struct st_node *item = n->first; item != NULL && r->status == STRATA_OK; item = item->next)
        st_list_push(r, out.as.list, st_eval(r, item));
    return out;
}

static struct st_value eval_dict(struct st_render *r, const struct st_node *n)
{
    const struct st_value out = st_val_dict(r, VAL_DICT);

    for (const struct st_node *key = n->first; key != NULL && r->status == STRATA_OK; key = key->next->next) {
        const struct st_value k = st_eval(r, key);

        st_dict_put(r, out.as.dict, k, st_eval(r, key->next));
    }
    return out;
}

static struct st_value eval(struct st_render *r, const struct st_node *n)
{
    struct st_value v, key;

    switch (n->kind) {
    case NODE_CONST:
        return n->value;
    case NODE_NAME:
        return st_scope_get(r, n->text);
    case NODE_LIST:
    case NODE_TUPLE:
        return eval_list(r, n);
    case NODE_DICT:
        return eval_dict(r, n);
    case NODE_ATTRIBUTE:
        v = st_eval(r, n->a);
        r->line = n->line;
        return r->status == STRATA_OK ? st_get_attribute(r, &v, n->text) : v;
    case NODE_ITEM:
        v = st_eval(r, n->a);
        key = st_eval(r, n->b);
        r->line = n->line;
        return r->status == STRATA_OK ? st_get_item(r, &v, &key) : v;
    case NODE_SLICE:
        return eval_slice(r, n);
    case NODE_CALL:
        return st_eval_call(r, n, NULL);
    case NODE_FILTER:
        return st_eval_filters(r, n, &(struct st_value){.kind = VAL_NONE});
    case NODE_TEST:
        return eval_test(r, n);
    case NODE_NOT:
        v = st_eval(r, n->a);
        return st_val_bool(!st_val_true(&v));
    case NODE_NEGATE:
    case NODE_POSITIVE:
        return eval_sign(r, n);
    case NODE_BINARY:
        return eval_binary(r, n);
    case NODE_COMPARE:
        return eval_comparison(r, n);
    case NODE_AND:
    case NODE_OR:
        v = st_eval(r, n->a);
        return st_val_true(&v) == (n->kind == NODE_OR) ? v : st_eval(r, n->b);
    case NODE_CHOICE:
        v = st_eval(r, n->b);
        return st_val_true(&v) ? st_eval(r, n->a) : n->c != NULL ? st_eval(r, n->c) : st_val_undefined("the missing else");
    default:
        return st_render_fail(r, STRATA_E_INTERNAL, "a statement where a value belongs");
    }
}

struct st_value st_eval(struct st_render *r, const struct st_node *n)
{
    struct st_value v = st_val_undefined("");

    if (r->status != STRATA_OK)
        return v;
    r->line = n->line;
    if (st_render_enter(r) && st_render_spend(r, 1))
        v = eval(r, n);
    st_render_leave(r);
    return v;
}

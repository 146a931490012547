/* template_value.c - values: lists, dicts, strings with the origin of their bytes; Python's rules for truth, order and equality.
 */
#include "core/base/text.h"
#include "text/template/template_internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct st_value st_val_undefined(const char *name)
{
    return (struct st_value){.kind = VAL_UNDEFINED, .as.name = name};
}

struct st_value st_val_none(void)
{
    return (struct st_value){.kind = VAL_NONE};
}

struct st_value st_val_bool(bool truth)
{
    return (struct st_value){.kind = VAL_BOOL, .as.truth = truth};
}

struct st_value st_val_int(int64_t integer)
{
    return (struct st_value){.kind = VAL_INT, .as.integer = integer};
}

struct st_value st_val_float(double real)
{
    return (struct st_value){.kind = VAL_FLOAT, .as.real = real};
}

const char *st_val_type(const struct st_value *v)
{
    static const char *const names[] = {
        [VAL_UNDEFINED] = "an undefined value",
        [VAL_NONE] = "none",
        [VAL_BOOL] = "a boolean",
        [VAL_INT] = "an integer",
        [VAL_FLOAT] = "a float",
        [VAL_STRING] = "a string",
        [VAL_LIST] = "a list",
        [VAL_TUPLE] = "a tuple",
        [VAL_RANGE] = "a range",
        [VAL_VIEW] = "a view of a dict",
        [VAL_ITERATOR] = "an iterator",
        [VAL_DICT] = "a dict",
        [VAL_NAMESPACE] = "a namespace",
        [VAL_MACRO] = "a macro",
        [VAL_FUNCTION] = "a function",
        [VAL_METHOD] = "a method",
        [VAL_LOOP] = "a loop",
    };

    return names[v->kind];
}

bool st_val_has_list(const struct st_value *v)
{
    return v->kind == VAL_LIST || v->kind == VAL_TUPLE || v->kind == VAL_RANGE;
}

/* --- lists and dicts --- */

struct st_value st_val_list(struct st_render *r, enum st_value_kind kind)
{
    struct st_list *l = st_render_get(r, sizeof(*l));

    return l == NULL ? st_val_undefined("") : (struct st_value){.kind = kind, .as.list = l};
}

struct st_value st_val_dict(struct st_render *r, enum st_value_kind kind)
{
    struct st_dict *d = st_render_get(r, sizeof(*d));

    return d == NULL ? st_val_undefined("") : (struct st_value){.kind = kind, .as.dict = d};
}

/* Room for one more of `count` items; the old array stays in the arena. */
static struct st_value *grow(struct st_render *r, const struct st_value *items, size_t count, size_t capacity)
{
    struct st_value *grown = st_render_get(r, capacity * sizeof(*grown));

    if (grown != NULL && count > 0)
        memcpy(grown, items, count * sizeof(*grown));
    return grown;
}

void st_list_push(struct st_render *r, struct st_list *l, struct st_value v)
{
    if (r->status != STRATA_OK)
        return;
    if (l->count == l->capacity) {
        const size_t capacity = l->capacity == 0 ? 4 : 2 * l->capacity;
        struct st_value *items = grow(r, l->items, l->count, capacity);

        if (items == NULL)
            return;
        l->items = items;
        l->capacity = capacity;
    }
    l->items[l->count++] = v;
}

bool st_val_hashable(const struct st_value *v)
{
    bool all = v->kind != VAL_LIST && v->kind != VAL_DICT && v->kind != VAL_NAMESPACE && v->kind != VAL_VIEW;

    for (size_t i = 0; v->kind == VAL_TUPLE && i < v->as.list->count && all; i++)
        all = st_val_hashable(&v->as.list->items[i]);
    return all;
}

static size_t find_key(struct st_render *r, const struct st_dict *d, const struct st_value *key)
{
    for (size_t i = 0; i < d->count; i++)
        if (st_val_equal(r, &d->keys[i], key))
            return i;
    return SIZE_MAX;
}

void st_dict_put(struct st_render *r, struct st_dict *d, struct st_value key, struct st_value v)
{
    const size_t at = find_key(r, d, &key);

    if (r->status != STRATA_OK)
        return;
    if (!st_val_hashable(&key)) {
        st_render_fail(r, STRATA_E_INPUT, "%s cannot be the key of a dict", st_val_type(&key));
        return;
    }
    if (at != SIZE_MAX) {
        d->values[at] = v;
        return;
    }
    if (d->count == d->capacity) {
        const size_t capacity = d->capacity == 0 ? 4 : 2 * d->capacity;
        struct st_value *keys = grow(r, d->keys, d->count, capacity), *values = grow(r, d->values, d->count, capacity);

        if (keys == NULL || values == NULL)
            return;
        d->keys = keys;
        d->values = values;
        d->capacity = capacity;
    }
    d->keys[d->count] = key;
    d->values[d->count++] = v;
}

const struct st_value *st_dict_get(struct st_render *r, const struct st_dict *d, const struct st_value *key)
{
    const size_t at = find_key(r, d, key);

    return at == SIZE_MAX ? NULL : &d->values[at];
}

const struct st_value *st_dict_find(struct st_render *r, const struct st_dict *d, const char *key)
{
    if (!st_render_spend(r, 16 * d->count))
        return NULL;
    for (size_t i = 0; i < d->count; i++)
        if (st_val_is_string(&d->keys[i], key))
            return &d->values[i];
    return NULL;
}

struct st_value st_val_iterator(struct st_render *r, const struct st_list *items)
{
    const struct st_value out = st_val_list(r, VAL_ITERATOR);

    if (r->status == STRATA_OK)
        *out.as.list = (struct st_list){.items = items->items, .count = items->count};
    return out;
}

const struct st_value *st_iterator_next(struct st_list *iterator)
{
    return iterator->read < iterator->count ? &iterator->items[iterator->read++] : NULL;
}

struct st_list *st_val_items(struct st_render *r, const struct st_value *v)
{
    struct st_value list;

    if (st_val_has_list(v) || v->kind == VAL_VIEW)
        return v->as.list;
    list = st_val_list(r, VAL_LIST);
    if (r->status != STRATA_OK)
        return NULL;
    if (v->kind == VAL_ITERATOR) {
        struct st_list *const from = v->as.list;

        list.as.list->items = from->read < from->count ? &from->items[from->read] : NULL;
        list.as.list->count = list.as.list->capacity = from->count - from->read;
        from->read = from->count;
    } else if (v->kind == VAL_DICT) {
        list.as.list->items = v->as.dict->keys;
        list.as.list->count = v->as.dict->count; /* full: a push copies */
        list.as.list->capacity = v->as.dict->count;
    } else if (v->kind == VAL_STRING) {
        const struct st_string *s = v->as.string;

        for (size_t at = 0, to; at < s->bytes && r->status == STRATA_OK; at = to) {
            to = st_utf8_next(s, at);
            st_list_push(r, list.as.list, st_val_part(r, s, at, to));
        }
    } else if (v->kind != VAL_UNDEFINED) {
        st_render_fail(r, STRATA_E_INPUT, "%s has no items", st_val_type(v));
        return NULL;
    }
    return list.as.list;
}

int64_t st_val_length(struct st_render *r, const struct st_value *v)
{
    switch (v->kind) {
    case VAL_UNDEFINED:
        return 0;
    case VAL_STRING:
        return st_render_spend(r, v->as.string->bytes) ? (int64_t)st_string_chars(v->as.string) : -1;
    case VAL_LIST:
    case VAL_TUPLE:
    case VAL_RANGE:
    case VAL_VIEW:
        return (int64_t)v->as.list->count;
    case VAL_DICT:
        return (int64_t)v->as.dict->count;
    case VAL_LOOP:
        (void)st_loop_has(r, v->as.loop, SIZE_MAX);
        return (int64_t)v->as.loop->items->count;
    default:
        return -1;
    }
}

/* --- from JSON --- */

/* As in Python, what is written with a point or an exponent is a float, and what is not is an integer. */
static struct st_value json_number(struct st_render *r, const st_json *n)
{
    const char *text = st_json_number_text(n);
    const double number = st_json_number(n);
    int64_t whole;

    if (text == NULL)
        return number == floor(number) ? st_val_int((int64_t)number) : st_val_float(number);
    if (strpbrk(text, ".eE") != NULL)
        return st_val_float(number);
    errno = 0;
    whole = strtoll(text, NULL, 10);
    return errno != 0 ? st_render_fail(r, STRATA_E_INPUT, "an integer past 64 bits") : st_val_int(whole);
}

/* A string whose bytes all have one origin. */
static struct st_value json_string(struct st_render *r, const char *text, uint32_t origin)
{
    const size_t bytes = strlen(text);
    uint32_t *origins = NULL;

    if (origin != ST_ORIGIN_TEMPLATE) {
        origins = st_render_get(r, bytes * sizeof(*origins));
        if (origins == NULL)
            return st_val_undefined("");
        for (size_t i = 0; i < bytes; i++)
            origins[i] = origin;
    }
    return st_val_string(r, text, bytes, origins);
}

struct st_value st_val_json(struct st_render *r, const st_json *n, uint32_t origin)
{
    struct st_value v;

    if (n == NULL)
        return st_val_none();
    switch (st_json_type(n)) {
    case ST_JSON_NULL:
        return st_val_none();
    case ST_JSON_BOOL:
        return st_val_bool(st_json_bool(n));
    case ST_JSON_NUMBER:
        return json_number(r, n);
    case ST_JSON_STRING:
        return json_string(r, st_json_string(n), origin);
    case ST_JSON_ARRAY:
        v = st_val_list(r, VAL_LIST);
        for (const st_json *m = st_json_first(n); m != NULL && r->status == STRATA_OK; m = st_json_next(m))
            st_list_push(r, v.as.list, st_val_json(r, m, origin));
        return v;
    case ST_JSON_OBJECT:
        break;
    }
    v = st_val_dict(r, VAL_DICT);
    for (const st_json *m = st_json_first(n); m != NULL && r->status == STRATA_OK; m = st_json_next(m))
        st_dict_put(r, v.as.dict, json_string(r, st_json_name(m), origin), st_val_json(r, m, origin));
    return v;
}

/* --- truth, equality, order --- */

bool st_val_true(const struct st_value *v)
{
    switch (v->kind) {
    case VAL_UNDEFINED:
    case VAL_NONE:
        return false;
    case VAL_BOOL:
        return v->as.truth;
    case VAL_INT:
        return v->as.integer != 0;
    case VAL_FLOAT:
        return v->as.real != 0.0;
    case VAL_STRING:
        return v->as.string->bytes > 0;
    case VAL_LIST:
    case VAL_TUPLE:
    case VAL_RANGE:
    case VAL_VIEW:
        return v->as.list->count > 0;
    case VAL_DICT:
        return v->as.dict->count > 0;
    default:
        return true;
    }
}

bool st_val_is_string(const struct st_value *v, const char *text)
{
    return v->kind == VAL_STRING && v->as.string->bytes == strlen(text) &&
           memcmp(v->as.string->text, text, v->as.string->bytes) == 0;
}

/* Booleans count as 0 and 1. */
static bool as_number(const struct st_value *v, double *number)
{
    if (v->kind == VAL_BOOL)
        *number = v->as.truth;
    else if (v->kind == VAL_INT)
        *number = (double)v->as.integer;
    else if (v->kind == VAL_FLOAT)
        *number = v->as.real;
    else
        return false;
    return true;
}

static bool lists_equal(struct st_render *r, const struct st_list *a, const struct st_list *b)
{
    if (a->count != b->count)
        return false;
    for (size_t i = 0; i < a->count; i++)
        if (!st_val_equal(r, &a->items[i], &b->items[i]))
            return false;
    return true;
}

static bool dicts_equal(struct st_render *r, const struct st_dict *a, const struct st_dict *b)
{
    if (a->count != b->count)
        return false;
    for (size_t i = 0; i < a->count; i++) {
        const struct st_value *other = st_dict_get(r, b, &a->keys[i]);

        if (other == NULL || !st_val_equal(r, &a->values[i], other))
            return false;
    }
    return true;
}

static bool equal(struct st_render *r, const struct st_value *a, const struct st_value *b)
{
    double x, y;

    if (a->kind == VAL_INT && b->kind == VAL_INT)
        return a->as.integer == b->as.integer;
    if (as_number(a, &x) && as_number(b, &y))
        return x == y;
    if (a->kind != b->kind)
        return false;
    switch (a->kind) {
    case VAL_UNDEFINED:
    case VAL_NONE:
        return true;
    case VAL_STRING:
        return a->as.string->bytes == b->as.string->bytes &&
               memcmp(a->as.string->text, b->as.string->text, a->as.string->bytes) == 0;
    case VAL_LIST:
    case VAL_TUPLE:
    case VAL_RANGE:
        return lists_equal(r, a->as.list, b->as.list);
    case VAL_DICT:
        return dicts_equal(r, a->as.dict, b->as.dict);
    case VAL_VIEW: /* keys and items by what they hold, values never */
        st_render_fail(r, STRATA_E_NOSYS, "comparing two views of dicts is not supported");
        return false;
    case VAL_FUNCTION:
        return strcmp(a->as.name, b->as.name) == 0;
    default:
        return a->as.dict == b->as.dict; /* the same thing */
    }
}

bool st_val_equal(struct st_render *r, const struct st_value *a, const struct st_value *b)
{
    bool is = false;

    if (st_render_enter(r) && st_render_spend(r, a->kind == VAL_STRING ? a->as.string->bytes : 0))
        is = equal(r, a, b);
    st_render_leave(r);
    return is;
}

int st_val_compare(struct st_render *r, const struct st_value *a, const struct st_value *b)
{
    double x, y;

    if (a->kind == VAL_INT && b->kind == VAL_INT)
        return (a->as.integer > b->as.integer) - (a->as.integer < b->as.integer);
    if (as_number(a, &x) && as_number(b, &y))
        return (x > y) - (x < y);
    if (a->kind == VAL_STRING && b->kind == VAL_STRING) {
        const struct st_string *s = a->as.string, *t = b->as.string;
        const size_t both = s->bytes < t->bytes ? s->bytes : t->bytes;
        const int order = both == 0 ? 0 : memcmp(s->text, t->text, both);

        if (!st_render_spend(r, both))
            return 0;
        return order != 0 ? (order > 0) - (order < 0) : (s->bytes > t->bytes) - (s->bytes < t->bytes);
    }
    if ((a->kind == VAL_LIST || a->kind == VAL_TUPLE) && a->kind == b->kind) {
        const struct st_list *l = a->as.list, *m = b->as.list;

        for (size_t i = 0; i < l->count && i < m->count; i++) {
            if (st_val_equal(r, &l->items[i], &m->items[i]))
                continue;
            return st_val_compare(r, &l->items[i], &m->items[i]); /* as deep as the comparison above went */
        }
        return (l->count > m->count) - (l->count < m->count);
    }
    st_render_fail(r, STRATA_E_INPUT, "%s and %s have no order", st_val_type(a), st_val_type(b));
    return 0;
}

/* template_filter.c - filters (`value|name(arguments)`), one row each; those of text and numbers stand in template_filter_text.c.
 */
#include "text/template/template_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* --- any value --- */

static struct st_value filter_default(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    const struct st_value *other = st_argument(args, 0, "default_value");
    const bool empty = st_argument_flag(args, 1, "boolean") && !st_val_true(v);

    if (v->kind != VAL_UNDEFINED && !empty)
        return *v;
    return other != NULL ? *other : st_val_text(r, "");
}

static struct st_value filter_length(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    const int64_t length = st_val_length(r, v);

    (void)args;
    return length >= 0 ? st_val_int(length) : st_render_fail(r, STRATA_E_INPUT, "%s has no length", st_val_type(v));
}

/* --- lists --- */

/* What a filter gives that Jinja writes as a generator. */
static struct st_value item_by_item(struct st_render *r, const struct st_value *list)
{
    return r->status == STRATA_OK ? st_val_iterator(r, list->as.list) : st_val_undefined("");
}

/* One part of an attribute's path: an item by its number or key, or an attribute. */
static struct st_value path_part(struct st_render *r, const struct st_value *of, const char *part, size_t bytes)
{
    char *name = st_render_get(r, bytes + 1), *end;
    struct st_value key;

    if (name == NULL)
        return st_val_undefined("");
    memcpy(name, part, bytes);
    key = st_val_int(strtoll(name, &end, 10));
    if (bytes == 0 || *end != '\0' || !isdigit((unsigned char)name[0]))
        key = st_val_string(r, name, bytes, NULL);
    return r->status == STRATA_OK ? st_get_item(r, of, &key) : key;
}

/* What map(attribute=...), selectattr(...), sort(attribute=...) look at; NULL: the item itself. */
static struct st_value attribute_of(struct st_render *r, struct st_value item, const struct st_value *path)
{
    const struct st_string *s;

    if (path == NULL || path->kind == VAL_NONE)
        return item;
    if (path->kind == VAL_INT)
        return st_get_item(r, &item, path);
    if (path->kind != VAL_STRING)
        return st_render_fail(r, STRATA_E_INPUT, "%s as the name of an attribute", st_val_type(path));
    s = path->as.string;
    for (size_t at = 0; at <= s->bytes && r->status == STRATA_OK;) {
        const char *point = memchr(s->text + at, '.', s->bytes - at);
        const size_t to = point == NULL ? s->bytes : (size_t)(point - s->text);

        item = path_part(r, &item, s->text + at, to - at);
        at = to + 1;
    }
    return item;
}

static struct st_value filter_list(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    struct st_list *items = st_val_items(r, v);
    const struct st_value out = st_val_list(r, VAL_LIST);

    (void)args;
    for (size_t i = 0; items != NULL && i < items->count && r->status == STRATA_OK; i++)
        st_list_push(r, out.as.list, items->items[i]);
    return out;
}

static struct st_value filter_join(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    const struct st_value *between = st_argument(args, 0, "d"), *path = st_argument(args, 1, "attribute");
    struct st_list *items = st_val_items(r, v);
    struct st_builder b = {0};

    for (size_t i = 0; items != NULL && i < items->count && r->status == STRATA_OK; i++) {
        const struct st_value item = attribute_of(r, items->items[i], path);

        if (i > 0 && between != NULL)
            st_build_value(r, &b, between);
        st_build_value(r, &b, &item);
    }
    return st_val_built(r, &b);
}

static struct st_value one_of(struct st_render *r, const struct st_value *v, bool last)
{
    const struct st_value *next = v->kind == VAL_ITERATOR ? st_iterator_next(v->as.list) : NULL;
    struct st_list *items = v->kind == VAL_ITERATOR ? NULL : st_val_items(r, v);

    if (next != NULL)
        return *next;
    if (items == NULL || items->count == 0)
        return st_val_undefined("an item of an empty list");
    return items->items[last ? items->count - 1 : 0];
}

static struct st_value filter_first(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    (void)args;
    return one_of(r, v, false);
}

static struct st_value filter_last(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    (void)args;
    if (v->kind == VAL_ITERATOR)
        return st_render_fail(r, STRATA_E_INPUT, "an iterator has no last item: make a list of it before");
    return one_of(r, v, true);
}

static struct st_value filter_reverse(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    struct st_list *items = st_val_items(r, v);
    const struct st_value out = st_val_list(r, VAL_LIST);

    (void)args;
    for (size_t i = items == NULL ? 0 : items->count; i > 0 && r->status == STRATA_OK; i--)
        st_list_push(r, out.as.list, items->items[i - 1]);
    if (v->kind == VAL_STRING && r->status == STRATA_OK)
        return filter_join(r, &out, &(struct st_arguments){0});
    return v->kind == VAL_ITERATOR ? out : item_by_item(r, &out); /* Python's reversed() takes none: it becomes a list before */
}

static struct st_value pair(struct st_render *r, struct st_value a, struct st_value b)
{
    const struct st_value out = st_val_list(r, VAL_TUPLE);

    if (r->status == STRATA_OK) {
        st_list_push(r, out.as.list, a);
        st_list_push(r, out.as.list, b);
    }
    return out;
}

static struct st_value pairs(struct st_render *r, const struct st_value *v)
{
    const struct st_value out = st_val_list(r, VAL_LIST);

    if (v->kind != VAL_DICT && v->kind != VAL_UNDEFINED)
        return st_render_fail(r, STRATA_E_INPUT, "the items of %s: only a dict has pairs", st_val_type(v));
    for (size_t i = 0; v->kind == VAL_DICT && i < v->as.dict->count && r->status == STRATA_OK; i++)
        st_list_push(r, out.as.list, pair(r, v->as.dict->keys[i], v->as.dict->values[i]));
    return out;
}

static struct st_value filter_items(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    const struct st_value out = pairs(r, v);

    (void)args;
    return item_by_item(r, &out);
}

/* --- order --- */

/* What an item is ordered by; small letters unless case counts. */
static struct st_value order_key(struct st_render *r, const struct st_value *item, const struct st_value *path, bool case_counts)
{
    const struct st_value key = attribute_of(r, *item, path);

    return key.kind == VAL_STRING && !case_counts ? st_with_case(r, &key, CASE_LOWER) : key;
}

/* Insertion by halves, of an item and its key: stable; moves count as steps. */
static void put_sorted(struct st_render *r, struct st_list *out, struct st_list *keys, const struct st_value *item,
                       const struct st_value *key, bool reverse)
{
    const size_t count = out->count;
    size_t low = 0, high = count;

    while (low < high && r->status == STRATA_OK) {
        const size_t middle = (low + high) / 2;
        const int order = st_val_compare(r, key, &keys->items[middle]);

        if (reverse ? order > 0 : order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    st_list_push(r, out, *item);
    st_list_push(r, keys, *key);
    if (r->status != STRATA_OK || !st_render_spend(r, (count - low) * sizeof(*key)))
        return;
    memmove(out->items + low + 1, out->items + low, (count - low) * sizeof(*key));
    memmove(keys->items + low + 1, keys->items + low, (count - low) * sizeof(*key));
    out->items[low] = *item;
    keys->items[low] = *key;
}

static struct st_value filter_sort(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    const struct st_value out = st_val_list(r, VAL_LIST), keys = st_val_list(r, VAL_LIST);
    const bool reverse = st_argument_flag(args, 0, "reverse"), case_counts = st_argument_flag(args, 1, "case_sensitive");
    const struct st_value *path = st_argument(args, 2, "attribute");
    struct st_list *items = st_val_items(r, v);

    if (path != NULL && path->kind == VAL_STRING && memchr(path->as.string->text, ',', path->as.string->bytes) != NULL)
        return st_render_fail(r, STRATA_E_NOSYS, "sort by more than one attribute is not supported");
    for (size_t i = 0; items != NULL && i < items->count && r->status == STRATA_OK; i++) {
        const struct st_value key = st_val_list(r, VAL_LIST); /* equal ones need no order, as in Python's lists */

        st_list_push(r, key.as.list, order_key(r, &items->items[i], path, case_counts));
        if (r->status == STRATA_OK)
            put_sorted(r, out.as.list, keys.as.list, &items->items[i], &key, reverse);
    }
    return out;
}

static struct st_value filter_dictsort(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    const struct st_value *by = st_argument(args, 1, "by");
    const bool by_value = by != NULL && st_val_is_string(by, "value");
    const struct st_value place = st_val_int(by_value ? 1 : 0);
    const struct st_value items = pairs(r, v), out = st_val_list(r, VAL_LIST), keys = st_val_list(r, VAL_LIST);

    if (v->kind == VAL_UNDEFINED)
        return st_render_fail(r, STRATA_E_INPUT, "'%s' is undefined: it has no items to sort", v->as.name);
    if (by != NULL && !by_value && !st_val_is_string(by, "key"))
        return st_render_fail(r, STRATA_E_INPUT, "dictsort(by=...) must be 'key' or 'value'");
    for (size_t i = 0; r->status == STRATA_OK && i < items.as.list->count; i++) {
        const struct st_value *item = &items.as.list->items[i];
        const struct st_value key = order_key(r, item, &place, st_argument_flag(args, 0, "case_sensitive"));

        if (r->status == STRATA_OK)
            put_sorted(r, out.as.list, keys.as.list, item, &key, st_argument_flag(args, 2, "reverse"));
    }
    return out;
}

static struct st_value filter_unique(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    const bool case_counts = st_argument_flag(args, 0, "case_sensitive");
    const struct st_value out = st_val_list(r, VAL_LIST), keys = st_val_list(r, VAL_LIST);
    struct st_list *items = st_val_items(r, v);

    for (size_t i = 0; items != NULL && i < items->count && r->status == STRATA_OK; i++) {
        const struct st_value key = order_key(r, &items->items[i], st_argument(args, 1, "attribute"), case_counts);

        if (!st_val_hashable(&key))
            return st_render_fail(r, STRATA_E_INPUT, "unique of %s: only what may be the key of a dict", st_val_type(&key));
        if (st_compare_sign(r, SIGN_IN, &key, &keys))
            continue;
        st_list_push(r, out.as.list, items->items[i]);
        st_list_push(r, keys.as.list, key);
    }
    return item_by_item(r, &out);
}

static struct st_value extreme(struct st_render *r, const struct st_value *v, const struct st_arguments *args, int wanted)
{
    const struct st_value *path = st_argument(args, 1, "attribute");
    struct st_list *items = st_val_items(r, v);
    size_t best = 0;

    if (items == NULL || items->count == 0)
        return st_val_undefined("an item of an empty list");
    for (size_t i = 1; i < items->count && r->status == STRATA_OK; i++) {
        const struct st_value a = order_key(r, &items->items[i], path, st_argument_flag(args, 0, "case_sensitive"));
        const struct st_value b = order_key(r, &items->items[best], path, st_argument_flag(args, 0, "case_sensitive"));

        if (st_val_compare(r, &a, &b) == wanted)
            best = i;
    }
    return items->items[best];
}

static struct st_value filter_min(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    return extreme(r, v, args, -1);
}

static struct st_value filter_max(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    return extreme(r, v, args, 1);
}

/* --- choosing --- */

/* The arguments behind the first `skip`. */
static struct st_arguments behind(const struct st_arguments *args, uint32_t skip)
{
    struct st_arguments rest = *args;

    rest.count = args->count > skip ? args->count - skip : 0;
    memmove(rest.at, rest.at + skip, rest.count * sizeof(rest.at[0]));
    return rest;
}

/* select, reject, selectattr, rejectattr: items (or attributes) for which a test holds, or which are true. */
static struct st_value chosen(struct st_render *r, const struct st_value *v, const struct st_arguments *args, bool attribute,
                              bool keep)
{
    const struct st_value *path = attribute ? st_argument(args, 0, NULL) : NULL;
    const struct st_value *test = st_argument(args, attribute ? 1 : 0, NULL);
    const struct st_arguments rest = behind(args, attribute ? 2 : 1);
    const struct st_value out = st_val_list(r, VAL_LIST);
    struct st_list *items = st_val_true(v) ? st_val_items(r, v) : NULL; /* none, too, has no items here */
    char *name = NULL;

    if (attribute && path == NULL)
        return st_render_fail(r, STRATA_E_INPUT, "selectattr and rejectattr need the name of an attribute");
    if (test != NULL && test->kind == VAL_STRING && (name = st_render_get(r, test->as.string->bytes + 1)) != NULL)
        memcpy(name, test->as.string->text, test->as.string->bytes);
    for (size_t i = 0; items != NULL && i < items->count && r->status == STRATA_OK; i++) {
        const struct st_value of = attribute_of(r, items->items[i], path);

        if ((name != NULL ? st_apply_test(r, name, &of, &rest) : st_val_true(&of)) == keep)
            st_list_push(r, out.as.list, items->items[i]);
    }
    return item_by_item(r, &out);
}

static struct st_value filter_select(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    return chosen(r, v, args, false, true);
}

static struct st_value filter_reject(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    return chosen(r, v, args, false, false);
}

static struct st_value filter_selectattr(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    return chosen(r, v, args, true, true);
}

static struct st_value filter_rejectattr(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    return chosen(r, v, args, true, false);
}

static struct st_value filter_map(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    const struct st_value *path = st_argument(args, 8, "attribute"), *other = st_argument(args, 8, "default");
    const struct st_value *name = st_argument(args, 0, NULL);
    const struct st_arguments rest = behind(args, 1);
    const struct st_value out = st_val_list(r, VAL_LIST);
    struct st_list *items = st_val_true(v) ? st_val_items(r, v) : NULL; /* none, too, has no items here */
    char *filter = NULL;

    if (path == NULL) {
        if (name == NULL || name->kind != VAL_STRING)
            return st_render_fail(r, STRATA_E_INPUT, "map needs a filter or an attribute");
        if ((filter = st_render_get(r, name->as.string->bytes + 1)) == NULL)
            return out;
        memcpy(filter, name->as.string->text, name->as.string->bytes);
    }
    for (size_t i = 0; items != NULL && i < items->count && r->status == STRATA_OK; i++) {
        struct st_value to =
            filter != NULL ? st_apply_filter(r, filter, &items->items[i], &rest) : attribute_of(r, items->items[i], path);

        if (filter == NULL && to.kind == VAL_UNDEFINED && other != NULL)
            to = *other;
        st_list_push(r, out.as.list, to);
    }
    return item_by_item(r, &out);
}

static const struct {
    const char *name;
    st_filter_fn *apply;
} filters[] = {
    {"capitalize", st_filter_capitalize},
    {"count", filter_length},
    {"d", filter_default},
    {"default", filter_default},
    {"dictsort", filter_dictsort},
    {"first", filter_first},
    {"indent", st_filter_indent},
    {"int", st_filter_int},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_last},
    {"length", filter_length},
    {"list", filter_list},
    {"lower", st_filter_lower},
    {"map", filter_map},
    {"max", filter_max},
    {"min", filter_min},
    {"reject", filter_reject},
    {"rejectattr", filter_rejectattr},
    {"replace", st_filter_replace},
    {"reverse", filter_reverse},
    {"safe", st_filter_safe},
    {"select", filter_select},
    {"selectattr", filter_selectattr},
    {"sort", filter_sort},
    {"string", st_filter_string},
    {"title", st_filter_title},
    {"tojson", st_filter_tojson},
    {"trim", st_filter_trim},
    {"unique", filter_unique},
    {"upper", st_filter_upper},
};

struct st_value st_apply_filter(struct st_render *r, const char *name, const struct st_value *v, const struct st_arguments *args)
{
    struct st_value out = st_val_undefined("");

    for (size_t i = 0; i < sizeof(filters) / sizeof(filters[0]); i++) {
        if (strcmp(filters[i].name, name) != 0)
            continue;
        if (st_render_enter(r)) /* map(...) may name a filter that names a filter */
            out = filters[i].apply(r, v, args);
        st_render_leave(r);
        return out;
    }
    return st_render_fail(r, STRATA_E_NOSYS, "the filter '%s' is not supported", name);
}

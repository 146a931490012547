/* template_call.c - functions and methods of the subset.  What Python has beyond it is refused by name. */
#include "core/base/text.h"
#include "text/template/template_internal.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define RANGE_MAX 100000 /* Jinja's sandbox allows as many */

static const struct st_string *text_argument(struct st_render *r, const struct st_arguments *args, uint32_t index,
                                             const char *name, const char *of)
{
    const struct st_value *v = st_argument(args, index, name);

    if (v == NULL || v->kind != VAL_STRING) {
        st_render_fail(r, STRATA_E_INPUT, "%s() needs a string as its argument %u, not %s", of, index + 1,
                       v == NULL ? "nothing" : st_val_type(v));
        return NULL;
    }
    return v->as.string;
}

/* --- functions --- */

static struct st_value call_range(struct st_render *r, const struct st_arguments *args)
{
    const struct st_value out = st_val_list(r, VAL_RANGE);
    int64_t n[3] = {0, 0, 1};

    for (uint32_t i = 0; i < args->count; i++)
        if (i == 3 || args->at[i].kind != VAL_INT)
            return st_render_fail(r, STRATA_E_INPUT, "range() takes one to three integers");
    if (args->count == 0 || args->named_count > 0)
        return st_render_fail(r, STRATA_E_INPUT, "range() takes one to three integers");
    for (uint32_t i = 0; i < args->count; i++)
        n[args->count == 1 ? 1 : i] = args->at[i].as.integer;
    if (n[2] == 0)
        return st_render_fail(r, STRATA_E_INPUT, "range() with a step of 0");
    if (r->status != STRATA_OK)
        return out;
    out.as.list->start = n[0];
    out.as.list->stop = n[1];
    out.as.list->step = n[2];
    for (int64_t i = n[0]; (n[2] > 0 ? i < n[1] : i > n[1]) && r->status == STRATA_OK;) {
        if (out.as.list->count == RANGE_MAX)
            return st_render_fail(r, STRATA_E_INPUT, "range() of more than %d numbers", RANGE_MAX);
        st_list_push(r, out.as.list, st_val_int(i));
        if (__builtin_add_overflow(i, n[2], &i))
            break;
    }
    return out;
}

/* dict(...) and namespace(...): the members of a dict, then names. */
static struct st_value call_dict(struct st_render *r, const struct st_arguments *args, enum st_value_kind kind)
{
    const struct st_value out = st_val_dict(r, kind);

    for (uint32_t i = 0; i < args->count && r->status == STRATA_OK; i++) {
        if (args->at[i].kind != VAL_DICT)
            return st_render_fail(r, STRATA_E_NOSYS, "%s as the members of a dict is not supported", st_val_type(&args->at[i]));
        for (size_t k = 0; k < args->at[i].as.dict->count; k++)
            st_dict_put(r, out.as.dict, args->at[i].as.dict->keys[k], args->at[i].as.dict->values[k]);
    }
    for (uint32_t i = 0; i < args->named_count && r->status == STRATA_OK; i++)
        st_dict_put(r, out.as.dict, st_val_text(r, args->named[i].name), args->named[i].value);
    return out;
}

static struct st_value call_dict_function(struct st_render *r, const struct st_arguments *args)
{
    return call_dict(r, args, VAL_DICT);
}

static struct st_value call_namespace(struct st_render *r, const struct st_arguments *args)
{
    return call_dict(r, args, VAL_NAMESPACE);
}

static struct st_value call_raise(struct st_render *r, const struct st_arguments *args)
{
    const struct st_value *message = st_argument(args, 0, "message");
    const struct st_value text = message != NULL ? st_val_str(r, message) : st_val_text(r, "");

    if (r->status != STRATA_OK)
        return text;
    return st_render_fail(r, STRATA_E_INPUT, "the template refuses the conversation: %.*s",
                          text.as.string->bytes < 300 ? (int)text.as.string->bytes : 300, text.as.string->text);
}

/* One field of a date by its letter, as Python's strftime writes it in English; false: not in the subset. */
static bool build_date_field(struct st_render *r, struct st_builder *b, const struct tm *day, char letter)
{
    static const char *const months[] = {"January", "February", "March",     "April",   "May",      "June",
                                         "July",    "August",   "September", "October", "November", "December"};
    static const char *const days[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
    char number[24] = "";

    switch (letter) {
    case 'A':
        st_build_text(r, b, days[day->tm_wday]);
        return true;
    case 'a':
        st_build(r, b, days[day->tm_wday], 3, NULL);
        return true;
    case 'B':
        st_build_text(r, b, months[day->tm_mon]);
        return true;
    case 'b':
        st_build(r, b, months[day->tm_mon], 3, NULL);
        return true;
    case 'd':
        snprintf(number, sizeof(number), "%02d", day->tm_mday);
        break;
    case 'j':
        snprintf(number, sizeof(number), "%03d", day->tm_yday + 1);
        break;
    case 'm':
        snprintf(number, sizeof(number), "%02d", day->tm_mon + 1);
        break;
    case 'y':
        snprintf(number, sizeof(number), "%02d", day->tm_year % 100);
        break;
    case 'Y':
        snprintf(number, sizeof(number), "%d", day->tm_year + 1900);
        break;
    case 'H': /* a recorded day begins at midnight */
    case 'M':
    case 'S':
        st_build_text(r, b, "00");
        return true;
    case '%':
        st_build_text(r, b, "%");
        return true;
    default:
        return false;
    }
    st_build_text(r, b, number);
    return true;
}

static struct st_value call_strftime(struct st_render *r, const struct st_arguments *args)
{
    const struct st_string *format = text_argument(r, args, 0, "format", "strftime_now");
    struct tm day = {.tm_year = 70, .tm_mday = 1};
    struct st_builder b = {0};
    time_t at;

    if (r->input->year != 0)
        day = (struct tm){.tm_year = r->input->year - 1900, .tm_mon = r->input->month - 1, .tm_mday = r->input->day};
    at = timegm(&day);
    if (format == NULL || gmtime_r(&at, &day) == NULL)
        return st_render_fail(r, STRATA_E_INPUT, "the date is not valid");
    for (size_t i = 0; i < format->bytes && r->status == STRATA_OK; i++) {
        if (format->text[i] != '%')
            st_build(r, &b, format->text + i, 1, NULL);
        else if (++i == format->bytes || !build_date_field(r, &b, &day, format->text[i]))
            return st_render_fail(r, STRATA_E_NOSYS,
                                  "strftime_now() knows only %%a %%A %%b %%B %%d %%j %%m %%y %%Y %%H %%M %%S and %%%%");
    }
    return st_val_built(r, &b);
}

static const struct {
    const char *name;
    struct st_value (*call)(struct st_render *r, const struct st_arguments *args);
} functions[] = {
    {"range", call_range},           {"dict", call_dict_function},    {"namespace", call_namespace},
    {"raise_exception", call_raise}, {"strftime_now", call_strftime},
};

bool st_is_function(const char *name)
{
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++)
        if (strcmp(functions[i].name, name) == 0)
            return true;
    return false;
}

struct st_value st_call(struct st_render *r, const struct st_value *f, const struct st_arguments *args)
{
    if (f->kind == VAL_MACRO)
        return st_call_macro(r, f->as.macro, args);
    if (f->kind == VAL_METHOD)
        return st_call_method(r, f->as.method, args);
    if (f->kind == VAL_UNDEFINED)
        return st_render_fail(r, STRATA_E_INPUT, "'%s' is undefined: it cannot be called", f->as.name);
    if (f->kind != VAL_FUNCTION)
        return st_render_fail(r, STRATA_E_INPUT, "%s cannot be called", st_val_type(f));
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++)
        if (strcmp(functions[i].name, f->as.name) == 0)
            return functions[i].call(r, args);
    return st_render_fail(r, STRATA_E_NOSYS, "the function %s() is not supported", f->as.name);
}

/* --- methods of strings --- */

static struct st_value split_space(struct st_render *r, const struct st_string *s, int64_t most)
{
    const struct st_value out = st_val_list(r, VAL_LIST);
    const char *end = s->text + s->bytes;
    size_t at = 0, from, space;

    while (r->status == STRATA_OK && st_render_spend(r, 1)) {
        while ((space = st_space_at(s->text + at, end)) != 0)
            at += space;
        if (at == s->bytes)
            break;
        from = at;
        if (most-- == 0) { /* the rest keeps its trailing space */
            st_list_push(r, out.as.list, st_val_part(r, s, from, s->bytes));
            break;
        }
        while (at < s->bytes && st_space_at(s->text + at, end) == 0)
            at = st_utf8_next(s, at);
        st_list_push(r, out.as.list, st_val_part(r, s, from, at));
    }
    return out;
}

static struct st_value string_split(struct st_render *r, const struct st_string *s, const struct st_arguments *args)
{
    const struct st_value *sep = st_argument(args, 0, "sep"), *most = st_argument(args, 1, "maxsplit");
    const struct st_value out = st_val_list(r, VAL_LIST);
    int64_t left = most != NULL && most->kind == VAL_INT ? most->as.integer : -1;
    size_t at = 0, found;

    if (sep == NULL || sep->kind == VAL_NONE)
        return split_space(r, s, left);
    if (sep->kind != VAL_STRING || sep->as.string->bytes == 0)
        return st_render_fail(r, STRATA_E_INPUT, "split() needs a text to split by");
    while (left-- != 0 && (found = st_string_find(r, s, at, sep->as.string->text, sep->as.string->bytes)) != SIZE_MAX) {
        st_list_push(r, out.as.list, st_val_part(r, s, at, found));
        at = found + sep->as.string->bytes;
    }
    st_list_push(r, out.as.list, st_val_part(r, s, at, s->bytes));
    return out;
}

static bool has_end(const struct st_string *s, const struct st_value *v, bool start)
{
    const struct st_string *part = v->as.string;

    return v->kind == VAL_STRING && part->bytes <= s->bytes &&
           memcmp(start ? s->text : s->text + s->bytes - part->bytes, part->text, part->bytes) == 0;
}

static struct st_value string_ends(struct st_render *r, const struct st_string *s, const struct st_arguments *args, bool start)
{
    const struct st_value *v = st_argument(args, 0, NULL);

    if (v != NULL && v->kind == VAL_TUPLE) {
        for (size_t i = 0; i < v->as.list->count; i++)
            if (has_end(s, &v->as.list->items[i], start))
                return st_val_bool(true);
        return st_val_bool(false);
    }
    if (text_argument(r, args, 0, NULL, start ? "startswith" : "endswith") == NULL)
        return st_val_undefined("");
    return st_val_bool(has_end(s, v, start));
}

static struct st_value string_strip(struct st_render *r, const struct st_string *s, const struct st_arguments *args, bool left,
                                    bool right)
{
    const struct st_value *chars = st_argument(args, 0, NULL);

    if (chars == NULL || chars->kind == VAL_NONE)
        return st_val_strip(r, s, NULL, left, right);
    return text_argument(r, args, 0, NULL, "strip") == NULL ? st_val_undefined("")
                                                            : st_val_strip(r, s, chars->as.string, left, right);
}

/* Unlike the filter, it takes only texts. */
static struct st_value string_join(struct st_render *r, const struct st_value *between, const struct st_value *of)
{
    const struct st_arguments args = {.count = 1, .at = {*between}};
    struct st_list *items = st_val_items(r, of);
    const struct st_value list = {.kind = VAL_LIST, .as.list = items};

    for (size_t i = 0; items != NULL && i < items->count; i++)
        if (items->items[i].kind != VAL_STRING)
            return st_render_fail(r, STRATA_E_INPUT, "join() of %s: only of texts", st_val_type(&items->items[i]));
    return items != NULL ? st_apply_filter(r, "join", &list, &args) : st_val_undefined("");
}

/* Methods that are filters too. */
static struct st_value as_filter(struct st_render *r, const struct st_method *m, const struct st_arguments *args)
{
    return st_apply_filter(r, m->name, &m->self, args);
}

static struct st_value call_string(struct st_render *r, const struct st_method *m, const struct st_arguments *args)
{
    const struct st_string *s = m->self.as.string;
    const char *name = m->name;

    if (strcmp(name, "strip") == 0 || strcmp(name, "lstrip") == 0 || strcmp(name, "rstrip") == 0)
        return string_strip(r, s, args, name[0] != 'r', name[0] != 'l');
    if ((strcmp(name, "startswith") == 0 || strcmp(name, "endswith") == 0) && args->count == 1)
        return string_ends(r, s, args, name[0] == 's');
    if (strcmp(name, "split") == 0)
        return string_split(r, s, args);
    if (strcmp(name, "join") == 0 && args->count == 1)
        return string_join(r, &m->self, &args->at[0]);
    if (strcmp(name, "replace") == 0 || strcmp(name, "upper") == 0 || strcmp(name, "lower") == 0 ||
        strcmp(name, "capitalize") == 0)
        return as_filter(r, m, args);
    if (strcmp(name, "title") == 0)
        return st_with_case(r, &m->self, CASE_WORDS);
    return st_render_fail(r, STRATA_E_NOSYS, "the method .%s() of a string is not supported like this", name);
}

/* --- methods of dicts --- */

static struct st_value call_get(struct st_render *r, const struct st_dict *d, const struct st_arguments *args)
{
    const struct st_value *key = st_argument(args, 0, NULL), *otherwise = st_argument(args, 1, NULL);
    const struct st_value *found = key == NULL ? NULL : st_dict_get(r, d, key);

    if (key == NULL)
        return st_render_fail(r, STRATA_E_INPUT, "get() needs a key");
    return found != NULL ? *found : otherwise != NULL ? *otherwise : st_val_none();
}

static struct st_value call_list_of(struct st_render *r, const struct st_dict *d, bool keys)
{
    const struct st_value out = st_val_list(r, VAL_LIST);

    for (size_t i = 0; i < d->count && r->status == STRATA_OK; i++)
        st_list_push(r, out.as.list, keys ? d->keys[i] : d->values[i]);
    return out;
}

static struct st_value view_of(struct st_value list, const char *name)
{
    if (list.kind == VAL_UNDEFINED)
        return list; /* it failed */
    list.kind = VAL_VIEW;
    list.as.list->view = name;
    return list;
}

static struct st_value call_of_dict(struct st_render *r, const struct st_method *m, const struct st_arguments *args)
{
    const struct st_dict *d = m->self.as.dict;

    if (strcmp(m->name, "get") == 0)
        return call_get(r, d, args);
    if (strcmp(m->name, "keys") == 0)
        return view_of(call_list_of(r, d, true), "dict_keys");
    if (strcmp(m->name, "values") == 0)
        return view_of(call_list_of(r, d, false), "dict_values");
    if (strcmp(m->name, "items") == 0)
        return view_of(as_filter(r, m, args), "dict_items");
    return st_render_fail(r, STRATA_E_INPUT, ".%s() would change a dict, which a template must not", m->name);
}

/* --- which methods there are --- */

static const char *const of_strings[] = {
    "capitalize",   "casefold",   "center",    "count",       "encode",    "endswith",     "expandtabs",   "find",
    "format",       "format_map", "index",     "isalnum",     "isalpha",   "isascii",      "isdecimal",    "isdigit",
    "isidentifier", "islower",    "isnumeric", "isprintable", "isspace",   "istitle",      "isupper",      "join",
    "ljust",        "lower",      "lstrip",    "maketrans",   "partition", "removeprefix", "removesuffix", "replace",
    "rfind",        "rindex",     "rjust",     "rpartition",  "rsplit",    "rstrip",       "split",        "splitlines",
    "startswith",   "strip",      "swapcase",  "title",       "translate", "upper",        "zfill",        NULL,
};
static const char *const of_dicts[] = {"clear", "copy",    "fromkeys",   "get",    "items",  "keys",
                                       "pop",   "popitem", "setdefault", "update", "values", NULL};
static const char *const of_lists[] = {"append", "clear", "copy",   "count",   "extend", "index",
                                       "insert", "pop",   "remove", "reverse", "sort",   NULL};

bool st_has_method(const struct st_value *self, const char *name)
{
    const char *const *names = self->kind == VAL_STRING ? of_strings
                               : self->kind == VAL_DICT ? of_dicts
                               : self->kind == VAL_LIST ? of_lists
                                                        : NULL;

    for (; names != NULL && *names != NULL; names++)
        if (strcmp(*names, name) == 0)
            return true;
    return false;
}

struct st_value st_call_method(struct st_render *r, const struct st_method *m, const struct st_arguments *args)
{
    if (m->self.kind == VAL_STRING)
        return call_string(r, m, args);
    if (m->self.kind == VAL_DICT)
        return call_of_dict(r, m, args);
    return st_render_fail(r, STRATA_E_NOSYS, "the method .%s() of a list is not supported", m->name);
}

/* template_filter_text.c - filters of text, and int. */
#include "core/base/number.h"
#include "core/base/text.h"
#include "text/template/template_internal.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- arguments --- */

bool st_argument_flag(const struct st_arguments *args, uint32_t index, const char *name)
{
    const struct st_value *v = st_argument(args, index, name);

    return v != NULL && st_val_true(v);
}

bool st_value_integer(const struct st_value *v, int64_t *out)
{
    if (v == NULL || v->kind != VAL_INT)
        return false;
    *out = v->as.integer;
    return true;
}

/* --- text --- */

/* The text of a value, as Jinja's soft_str gives it. */
const struct st_string *st_soft_text(struct st_render *r, const struct st_value *v)
{
    const struct st_value text = st_val_str(r, v);

    return r->status == STRATA_OK ? text.as.string : NULL;
}

struct st_value st_filter_trim(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    const struct st_value *chars = st_argument(args, 0, "chars");
    const struct st_string *s = st_soft_text(r, v);

    if (chars != NULL && chars->kind != VAL_STRING && chars->kind != VAL_NONE)
        return st_render_fail(r, STRATA_E_INPUT, "trim of %s: only of the characters of a text", st_val_type(chars));
    if (s == NULL)
        return st_val_undefined("");
    return st_val_strip(r, s, chars != NULL && chars->kind == VAL_STRING ? chars->as.string : NULL, true, true);
}

struct st_value st_filter_string(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    (void)args;
    return st_val_str(r, v);
}

struct st_value st_filter_safe(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    const struct st_string *s = st_soft_text(r, v);
    struct st_value out;

    (void)args;
    if (s == NULL)
        return st_val_undefined("");
    out = st_val_part(r, s, 0, s->bytes);
    if (r->status == STRATA_OK)
        out.as.string->safe = true;
    return out;
}

struct st_value st_filter_replace(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    const struct st_value *from = st_argument(args, 0, "old"), *to = st_argument(args, 1, "new");
    const struct st_string *s = st_soft_text(r, v);
    int64_t count = -1;

    st_value_integer(st_argument(args, 2, "count"), &count);
    if (s == NULL || from == NULL || to == NULL)
        return st_render_fail(r, STRATA_E_INPUT, "replace needs two texts");
    if (from->kind != VAL_STRING || to->kind != VAL_STRING)
        return st_render_fail(r, STRATA_E_INPUT, "replace of %s by %s", st_val_type(from), st_val_type(to));
    return st_val_replace(r, s, from->as.string, to->as.string, count);
}

/* The bytes of what ends a line at `at`, by Python's splitlines(); 0: nothing. */
static size_t line_end(const struct st_string *s, size_t at)
{
    const size_t unit = st_utf8_next(s, at) - at;
    const uint32_t c = st_text_utf8_code(s->text + at, unit);

    if (c == '\r' && at + 1 < s->bytes && s->text[at + 1] == '\n')
        return 2;
    return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029 ? unit : 0;
}

/* As Jinja: what ends a line is what does for splitlines(), and becomes a newline; the first line is indented if `first` says so,
 * empty or not, and each later one, the one behind the last newline too, unless it is empty and not `blank`.  It takes the lines
 * of the text and a newline, which with a carriage return before it is one end of a line. */
struct st_value st_filter_indent(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    const struct st_value *width = st_argument(args, 0, "width");
    const struct st_value space = st_val_text(r, " ");
    const struct st_value *margin = width != NULL && width->kind == VAL_STRING ? width : &space;
    const bool first = st_argument_flag(args, 1, "first"), blank = st_argument_flag(args, 2, "blank");
    const struct st_string *s = v->kind == VAL_STRING ? v->as.string : NULL;
    struct st_builder b = {0};
    int64_t times = margin == width ? 1 : 4;
    size_t from = 0, ends = 0, bytes; /* bytes: of the text without a carriage return that the newline behind it would end */

    if (s == NULL)
        return st_render_fail(r, STRATA_E_INPUT, "indent of %s", st_val_type(v));
    if (width != NULL && margin != width && (!st_value_integer(width, &times) || times < 0 || times > 1000))
        return st_render_fail(r, STRATA_E_NOSYS, "indent takes a text, or 0 to 1000 spaces");
    bytes = s->bytes - (s->bytes > 0 && s->text[s->bytes - 1] == '\r');
    for (size_t at = 0; at <= bytes && st_render_spend(r, 1); at += ends) {
        const bool last = at == bytes;

        ends = last ? 1 : line_end(s, at);
        if (ends == 0) {
            ends = st_utf8_next(s, at) - at;
            continue;
        }
        for (int64_t i = 0; (from == 0 ? first : at > from || blank) && i < times; i++)
            st_build_value(r, &b, margin);
        st_build(r, &b, s->text + from, at - from, s->origins == NULL ? NULL : s->origins + from);
        if (!last)
            st_build(r, &b, "\n", 1, s->origins == NULL ? NULL : s->origins + at);
        from = at + ends;
    }
    return st_val_built(r, &b);
}

struct st_value st_filter_tojson(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    const struct st_value *indent = st_argument(args, 1, "indent"), *separators = st_argument(args, 2, "separators");
    struct st_json_style style = {.indent = -1, .ascii = st_argument_flag(args, 0, "ensure_ascii")};
    struct st_builder b = {0};

    if (st_argument_flag(args, 3, "sort_keys"))
        return st_render_fail(r, STRATA_E_NOSYS, "tojson with sort_keys is not supported");
    if (indent != NULL && indent->kind != VAL_NONE &&
        (!st_value_integer(indent, &style.indent) || style.indent < 0 || style.indent > 100))
        return st_render_fail(r, STRATA_E_NOSYS, "tojson(indent=...) must be 0 to 100");
    if (separators != NULL && separators->kind != VAL_NONE) {
        if ((separators->kind != VAL_LIST && separators->kind != VAL_TUPLE) || separators->as.list->count != 2 ||
            separators->as.list->items[0].kind != VAL_STRING || separators->as.list->items[1].kind != VAL_STRING)
            return st_render_fail(r, STRATA_E_INPUT, "tojson: separators are two texts");
        style.comma = &separators->as.list->items[0];
        style.colon = &separators->as.list->items[1];
    }
    st_build_json(r, &b, v, &style);
    return st_val_built(r, &b);
}

/* --- numbers --- */

#define SPACE " \t\n\v\f\r"

/* A text as C's functions read it: without underscores, which Python reads, and names of numbers, which it reads otherwise. */
static strata_status number_text(struct st_render *r, char out[64], const struct st_string *s)
{
    static const char known[] = "0123456789+-.eE" SPACE;
    bool number = true;

    for (size_t i = 0; i < s->bytes; i++) {
        if (s->text[i] == '_' || (unsigned char)s->text[i] >= 0x80 || s->bytes > 63)
            st_render_fail(r, STRATA_E_NOSYS, "int of a text with more than 63 bytes, with _, or past ASCII is not supported");
        number = number && s->text[i] != '\0' && strchr(known, s->text[i]) != NULL;
    }
    snprintf(out, 64, "%.*s", number && s->bytes < 64 ? (int)s->bytes : 0, s->text);
    return r->status;
}

static struct st_value whole_of(struct st_render *r, double real, struct st_value none)
{
    if (isfinite(real) && fabs(real) >= 9e18)
        return st_render_fail(r, STRATA_E_INPUT, "int of a number past 64 bits");
    return isfinite(real) ? st_val_int((int64_t)real) : none;
}

/* As Python's int(text), else int(float(text)); what is no number gives the default. */
struct st_value st_filter_int(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    const struct st_value *other = st_argument(args, 0, "default");
    const struct st_value none = other != NULL ? *other : st_val_int(0);
    char text[64], *end;
    long long whole;
    double real;

    if (v->kind == VAL_UNDEFINED)
        return st_render_fail(r, STRATA_E_INPUT, "'%s' is undefined: int needs a value", v->as.name);
    if (st_argument(args, 1, "base") != NULL)
        return st_render_fail(r, STRATA_E_NOSYS, "int with a base is not supported");
    if (v->kind == VAL_INT || v->kind == VAL_BOOL)
        return st_val_int(v->kind == VAL_INT ? v->as.integer : v->as.truth);
    if (v->kind == VAL_FLOAT)
        return whole_of(r, v->as.real, none);
    if (v->kind != VAL_STRING || number_text(r, text, v->as.string) != STRATA_OK)
        return none;
    errno = 0;
    whole = strtoll(text, &end, 10);
    if (end != text && end[strspn(end, SPACE)] == '\0')
        return errno == 0 ? st_val_int(whole) : st_render_fail(r, STRATA_E_INPUT, "int of a number past 64 bits");
    real = st_number_read(text, &end);
    return end != text && end[strspn(end, SPACE)] == '\0' ? whole_of(r, real, none) : none;
}

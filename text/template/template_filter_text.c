/* template_filter_text.c - filters of text and of numbers. */
#include "core/base/number.h"
#include "text/template/template_internal.h"

#include <ctype.h>
#include <math.h>
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
        return st_render_fail(r, STRATA_E_NOSYS, "indent by something else than a text or 0 to 1000 spaces is not supported");
    bytes = s->bytes - (s->bytes > 0 && s->text[s->bytes - 1] == '\r');
    for (size_t at = 0; at <= bytes && st_render_spend(r, 1); at += ends) {
        const bool last = at == bytes;

        ends = last ? 1 : st_string_line_end(s, at);
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
    struct st_json_style style = {
        .indent = -1, .ascii = st_argument_flag(args, 0, "ensure_ascii"), .sort_keys = st_argument_flag(args, 3, "sort_keys")};
    struct st_builder b = {0};

    if (indent != NULL && indent->kind != VAL_NONE &&
        (!st_value_integer(indent, &style.indent) || style.indent < 0 || style.indent > 100))
        return st_render_fail(r, STRATA_E_NOSYS, "tojson indented by something else than 0 to 100 spaces is not supported");
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

#define NUMBER_BYTES 64u

/* What is left of a text of ASCII's characters without Python's white space around it. */
static void without_space(const struct st_string *s, size_t *first, size_t *last)
{
    static const char space[] = " \t\n\v\f\r";

    *first = 0;
    *last = s->bytes;
    while (*first < *last && memchr(space, s->text[*first], sizeof(space) - 1) != NULL)
        (*first)++;
    while (*last > *first && memchr(space, s->text[*last - 1], sizeof(space) - 1) != NULL)
        (*last)--;
}

enum reading { NO_INTEGER, AN_INTEGER, TOO_LARGE };

static uint32_t digit_value(char c)
{
    return c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
           : c >= 'a' && c <= 'z' ? (uint32_t)(c - 'a') + 10
           : c >= 'A' && c <= 'Z' ? (uint32_t)(c - 'A') + 10
                                  : 99;
}

/* After "0": the base that x, o or b stands for; 0: another character. */
static int64_t prefix_base(char c)
{
    return c == 'x' || c == 'X' ? 16 : c == 'o' || c == 'O' ? 8 : c == 'b' || c == 'B' ? 2 : 0;
}

/* Python's int(text, base): base 0 is that of the prefix, else 10, in which no number but 0 begins with 0. */
static enum reading read_integer(const struct st_string *s, int64_t base, int64_t *out)
{
    bool below = false, digit = false, large = false, zero;
    int64_t whole = 0, prefix;
    size_t at, end;

    without_space(s, &at, &end);
    if (at < end && (s->text[at] == '-' || s->text[at] == '+'))
        below = s->text[at++] == '-';
    prefix = end - at > 2 && s->text[at] == '0' ? prefix_base(s->text[at + 1]) : 0;
    if (prefix != 0 && (base == prefix || base == 0)) {
        base = prefix;
        at += s->text[at + 2] == '_' ? 3 : 2;
    }
    zero = base == 0 && at < end && s->text[at] == '0';
    base = base == 0 ? 10 : base;
    for (; at < end; at++) {
        const uint32_t value = digit_value(s->text[at]);

        if (s->text[at] == '_' && digit && at + 1 < end) {
            digit = false; /* one must follow */
            continue;
        }
        if (value >= base || (zero && value != 0))
            return NO_INTEGER;
        digit = true;
        large = large || __builtin_mul_overflow(whole, base, &whole) || __builtin_sub_overflow(whole, (int64_t)value, &whole);
    }
    large = large || (!below && __builtin_sub_overflow(0, whole, &whole));
    *out = whole;
    return !digit ? NO_INTEGER : large ? TOO_LARGE : AN_INTEGER;
}

/* A text as C's functions read it: without Python's white space around it and its underscores between digits.  False: Python
 * takes it for no number, whatever C does, or it is too long. */
static bool number_text(char out[NUMBER_BYTES], const struct st_string *s)
{
    size_t first, last, count = 0;

    without_space(s, &first, &last);
    if (first == last || last - first >= NUMBER_BYTES)
        return false;
    for (size_t i = first; i < last; i++) {
        const char c = s->text[i];

        if (c == '_' &&
            (i == first || i + 1 == last || !isdigit((unsigned char)s->text[i - 1]) || !isdigit((unsigned char)s->text[i + 1])))
            return false;
        if (c == 'x' || c == 'X' || c == '(' || c == '\0')
            return false;
        if (c != '_')
            out[count++] = c;
    }
    out[count] = '\0';
    return true;
}

/* False: the filter fails.  Python reads the digits and the white space of all scripts. */
static bool may_be_number(struct st_render *r, const struct st_value *v, const char *filter)
{
    if (v->kind == VAL_UNDEFINED)
        st_render_fail(r, STRATA_E_INPUT, "'%s' is undefined: %s needs a value", v->as.name, filter);
    for (size_t i = 0; v->kind == VAL_STRING && i < v->as.string->bytes && r->status == STRATA_OK; i++)
        if ((unsigned char)v->as.string->text[i] >= 0x80)
            st_render_fail(r, STRATA_E_NOSYS, "%s of a text with other characters than ASCII's is not supported", filter);
    return r->status == STRATA_OK;
}

struct st_value st_filter_int(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    const struct st_value *other = st_argument(args, 0, "default");
    const struct st_value none = other != NULL ? *other : st_val_int(0);
    const struct st_value *given = st_argument(args, 1, "base");
    int64_t base = 10, whole;
    enum reading reading = NO_INTEGER;
    double real;
    char text[NUMBER_BYTES], *end;

    if (!may_be_number(r, v, "int"))
        return none;
    if (v->kind == VAL_INT || v->kind == VAL_BOOL)
        return st_val_int(v->kind == VAL_INT ? v->as.integer : v->as.truth);
    if (v->kind != VAL_FLOAT && v->kind != VAL_STRING)
        return none;
    if (v->kind == VAL_STRING && (given == NULL || st_value_integer(given, &base)) && (base == 0 || (base > 1 && base <= 36)))
        reading = read_integer(v->as.string, base, &whole);
    if (reading == AN_INTEGER)
        return st_val_int(whole);
    real = v->kind == VAL_FLOAT ? v->as.real : NAN; /* a text that is no integer may be a float, which is cut */
    if (v->kind == VAL_STRING && reading == NO_INTEGER && number_text(text, v->as.string)) {
        real = st_number_read(text, &end);
        real = *end != '\0' ? NAN : real;
    }
    if (reading == TOO_LARGE || (isfinite(real) && fabs(real) >= 9e18))
        return st_render_fail(r, STRATA_E_INPUT, "int of a number past 64 bits");
    return isfinite(real) ? st_val_int((int64_t)real) : none;
}

struct st_value st_filter_float(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    const struct st_value *other = st_argument(args, 0, "default");
    const struct st_string *s;
    char text[NUMBER_BYTES], *end;
    double real;

    if (!may_be_number(r, v, "float"))
        return st_val_undefined("");
    if (v->kind == VAL_FLOAT)
        return *v;
    if (v->kind == VAL_INT || v->kind == VAL_BOOL)
        return st_val_float(v->kind == VAL_INT ? (double)v->as.integer : v->as.truth);
    s = st_soft_text(r, v);
    if (s != NULL && number_text(text, s)) {
        real = st_number_read(text, &end);
        if (*end == '\0')
            return st_val_float(real);
    }
    return other != NULL ? *other : st_val_float(0.0);
}

struct st_value st_filter_abs(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    (void)args;
    if (v->kind == VAL_FLOAT)
        return st_val_float(fabs(v->as.real));
    if (v->kind == VAL_INT && v->as.integer != INT64_MIN)
        return st_val_int(v->as.integer < 0 ? -v->as.integer : v->as.integer);
    return st_render_fail(r, STRATA_E_INPUT, "abs of %s", st_val_type(v));
}

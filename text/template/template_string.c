/* template_string.c - strings: parts, characters, white space, and the text that is being built.  Every byte keeps its origin. */
#include "core/base/number.h"
#include "core/base/text.h"
#include "text/template/template_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct st_value st_val_string(struct st_render *r, const char *text, size_t bytes, const uint32_t *origins)
{
    struct st_string *s = st_render_get(r, sizeof(*s));

    if (s == NULL)
        return st_val_undefined("");
    *s = (struct st_string){.text = text, .bytes = bytes, .origins = origins};
    return (struct st_value){.kind = VAL_STRING, .as.string = s};
}

struct st_value st_val_text(struct st_render *r, const char *text)
{
    return st_val_string(r, text, strlen(text), NULL);
}

struct st_string st_string_part(const struct st_string *s, size_t from, size_t to)
{
    return (struct st_string){
        .text = s->text + from, .bytes = to - from, .origins = s->origins == NULL ? NULL : s->origins + from};
}

struct st_value st_val_part(struct st_render *r, const struct st_string *s, size_t from, size_t to)
{
    const struct st_string part = st_string_part(s, from, to);

    return st_val_string(r, part.text, part.bytes, part.origins);
}

size_t st_utf8_next(const struct st_string *s, size_t at)
{
    const size_t unit = st_text_utf8_bytes(s->text + at, s->bytes - at);

    return at + (unit > 0 ? unit : 1);
}

size_t st_string_chars(const struct st_string *s)
{
    size_t chars = 0;

    for (size_t at = 0; at < s->bytes; at = st_utf8_next(s, at))
        chars++;
    return chars;
}

size_t st_space_at(const char *text, const char *end)
{
    const size_t unit = text < end ? st_text_utf8_bytes(text, (size_t)(end - text)) : 0;
    const uint32_t c = unit > 0 ? st_text_utf8_code(text, unit) : 0;
    const bool space = (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
                       (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;

    return space ? unit : 0;
}

size_t st_string_find(struct st_render *r, const struct st_string *s, size_t from, const char *what, size_t bytes)
{
    const char *found;

    if (!st_render_spend(r, s->bytes - from) || bytes > s->bytes - from)
        return SIZE_MAX;
    found = bytes == 0 ? s->text + from : memmem(s->text + from, s->bytes - from, what, bytes);
    return found == NULL ? SIZE_MAX : (size_t)(found - s->text);
}

/* --- strip --- */

static bool goes(const struct st_string *chars, const char *at, size_t unit, const char *end)
{
    if (chars == NULL)
        return st_space_at(at, end) != 0;
    return unit <= chars->bytes && memmem(chars->text, chars->bytes, at, unit) != NULL;
}

struct st_value st_val_strip(struct st_render *r, const struct st_string *s, const struct st_string *chars, bool left, bool right)
{
    const char *end = s->text + s->bytes;
    size_t from = 0, to = s->bytes, keep;

    if (!st_render_spend(r, s->bytes * (chars == NULL ? 1 : 1 + chars->bytes / 16)))
        return st_val_undefined("");
    while (left && from < to && goes(chars, s->text + from, st_utf8_next(s, from) - from, end))
        from = st_utf8_next(s, from);
    keep = from; /* the end of the last character that stays */
    for (size_t at = from, next; right && at < to; at = next) {
        next = st_utf8_next(s, at);
        if (!goes(chars, s->text + at, next - at, end))
            keep = next;
    }
    return st_val_part(r, s, from, right ? keep : to);
}

/* --- building --- */

void st_build(struct st_render *r, struct st_builder *b, const char *text, size_t bytes, const uint32_t *origins)
{
    if (r->status != STRATA_OK || bytes == 0)
        return;
    if (b->bytes + bytes > ST_TEMPLATE_OUTPUT_MAX) {
        st_render_fail(r, STRATA_E_INPUT, "a text of more than %zu bytes", ST_TEMPLATE_OUTPUT_MAX);
        return;
    }
    if (b->bytes + bytes > b->capacity) {
        const size_t twice = 2 * b->capacity, needed = b->bytes + bytes, capacity = needed > twice ? needed + 64 : twice;
        char *grown = st_render_get(r, capacity);
        uint32_t *grown_origins = st_render_get(r, capacity * sizeof(*grown_origins));

        if (grown == NULL || grown_origins == NULL)
            return;
        if (b->bytes > 0) {
            memcpy(grown, b->text, b->bytes);
            memcpy(grown_origins, b->origins, b->bytes * sizeof(*b->origins));
        }
        b->text = grown;
        b->origins = grown_origins;
        b->capacity = capacity;
    }
    memcpy(b->text + b->bytes, text, bytes);
    for (size_t i = 0; i < bytes; i++)
        b->origins[b->bytes + i] = origins == NULL ? 0 : origins[i];
    b->bytes += bytes;
}

void st_build_text(struct st_render *r, struct st_builder *b, const char *text)
{
    st_build(r, b, text, strlen(text), NULL);
}

struct st_value st_val_built(struct st_render *r, const struct st_builder *b)
{
    return st_val_string(r, b->bytes > 0 ? b->text : "", b->bytes, b->origins);
}

struct st_value st_val_replace(struct st_render *r, const struct st_string *s, const struct st_string *from,
                               const struct st_string *to, int64_t count)
{
    struct st_builder b = {0};
    size_t at = 0, found;

    if (from->bytes == 0)
        return st_render_fail(r, STRATA_E_NOSYS, "replace() of an empty string is not supported");
    while (count-- != 0 && r->status == STRATA_OK && (found = st_string_find(r, s, at, from->text, from->bytes)) != SIZE_MAX) {
        const struct st_string before = st_string_part(s, at, found);

        st_build(r, &b, before.text, before.bytes, before.origins);
        st_build(r, &b, to->text, to->bytes, to->origins);
        at = found + from->bytes;
    }
    if (at == 0)
        return st_val_part(r, s, 0, s->bytes);
    st_build(r, &b, s->text + at, s->bytes - at, s->origins == NULL ? NULL : s->origins + at);
    return st_val_built(r, &b);
}

/* --- numbers as Python prints them --- */

#define NUMBER_BYTES 64

/* The shortest digits that read back as the same number; an exponent below 1e-4 and from 1e16 on. */
static void print_float(char out[NUMBER_BYTES], double number)
{
    char digits[NUMBER_BYTES], *power;
    int precision = 0, exponent;

    if (isnan(number) || isinf(number)) {
        snprintf(out, NUMBER_BYTES, "%s", isnan(number) ? "nan" : number > 0 ? "inf" : "-inf");
        return;
    }
    do
        st_number_print(digits, sizeof(digits), "%.*e", precision, number);
    while (st_number_read(digits, NULL) != number && precision++ < 17);
    power = strchr(digits, 'e');
    exponent = atoi(power + 1);
    if (exponent < -4 || exponent >= 16) {
        *power = '\0';
        snprintf(out, NUMBER_BYTES, "%.30se%c%02d", digits, exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    st_number_print(out, NUMBER_BYTES, "%.*f", precision > exponent ? precision - exponent : 1, number);
}

/* --- str() and repr() --- */

static void build_repr(struct st_render *r, struct st_builder *b, const struct st_value *v);

/* Whether str.isprintable() is false: white space but for the space itself, controls, formats and private characters.  Those that
 * are not assigned, of which each version of Python knows others, are taken for printable. */
static bool is_hidden(uint32_t code)
{
    static const uint32_t ranges[][2] = {
        {0x7f, 0xa0},       {0xad, 0xad},       {0x600, 0x605},      {0x61c, 0x61c},     {0x6dd, 0x6dd},     {0x70f, 0x70f},
        {0x890, 0x891},     {0x8e2, 0x8e2},     {0x1680, 0x1680},    {0x180e, 0x180e},   {0x2000, 0x200f},   {0x2028, 0x202f},
        {0x205f, 0x2064},   {0x2066, 0x206f},   {0x3000, 0x3000},    {0xd800, 0xf8ff},   {0xfeff, 0xfeff},   {0xfff9, 0xfffb},
        {0x110bd, 0x110bd}, {0x110cd, 0x110cd}, {0x13430, 0x1343f},  {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0xe0001, 0xe0001},
        {0xe0020, 0xe007f}, {0xf0000, 0xffffd}, {0x100000, 0x10fffd}};

    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]) && ranges[i][0] <= code; i++)
        if (code <= ranges[i][1])
            return true;
    return code < 0x20;
}

/* Python's quotes: single, unless the text has single quotes and no double ones. */
static void build_quoted(struct st_render *r, struct st_builder *b, const struct st_string *s)
{
    const bool twice = memchr(s->text, '\'', s->bytes) != NULL && memchr(s->text, '"', s->bytes) == NULL;
    const char quote = twice ? '"' : '\'';

    st_build(r, b, &quote, 1, NULL);
    for (size_t at = 0, next; at < s->bytes && r->status == STRATA_OK; at = next) {
        const char c = s->text[at];
        uint32_t code;
        char escape[16] = {'\\', c, '\0'};

        next = st_utf8_next(s, at);
        code = st_text_utf8_code(s->text + at, next - at);
        if (c == '\n' || c == '\r' || c == '\t')
            escape[1] = c == '\n' ? 'n' : c == '\r' ? 'r' : 't';
        else if (is_hidden(code))
            snprintf(escape, sizeof(escape), code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)code);
        else if (c != '\\' && c != quote)
            escape[0] = '\0';
        if (escape[0] != '\0')
            st_build_text(r, b, escape);
        else
            st_build(r, b, s->text + at, next - at, s->origins == NULL ? NULL : s->origins + at);
    }
    st_build(r, b, &quote, 1, NULL);
}

static bool is_of_content(const struct st_value *v)
{
    return v->kind == VAL_STRING && v->as.string->bytes > 0 && v->as.string->origins != NULL &&
           (v->as.string->origins[0] & ST_ORIGIN_FIELD) == ST_ORIGIN_CONTENT;
}

/* A message's content: {"type": "text", "text": ...} each, or texts. */
static bool is_parts(const struct st_list *l)
{
    const struct st_value *first = l->count > 0 ? &l->items[0] : NULL;
    bool found = first != NULL && is_of_content(first);

    for (size_t i = 0; first != NULL && first->kind == VAL_DICT && i < first->as.dict->count && !found; i++)
        found = is_of_content(&first->as.dict->values[i]);
    return found;
}

static void build_list(struct st_render *r, struct st_builder *b, const struct st_list *l, const char *open, const char *close)
{
    r->printed_parts |= is_parts(l);
    st_build_text(r, b, open);
    for (size_t i = 0; i < l->count && r->status == STRATA_OK; i++) {
        if (i > 0)
            st_build_text(r, b, ", ");
        build_repr(r, b, &l->items[i]);
    }
    if (l->count == 1 && strcmp(open, "(") == 0)
        st_build_text(r, b, ",");
    st_build_text(r, b, close);
}

static void build_range(struct st_render *r, struct st_builder *b, const struct st_list *l)
{
    char text[3 * NUMBER_BYTES];

    if (l->step == 1)
        snprintf(text, sizeof(text), "range(%lld, %lld)", (long long)l->start, (long long)l->stop);
    else
        snprintf(text, sizeof(text), "range(%lld, %lld, %lld)", (long long)l->start, (long long)l->stop, (long long)l->step);
    st_build_text(r, b, text);
}

static void build_dict(struct st_render *r, struct st_builder *b, const struct st_dict *d)
{
    st_build_text(r, b, "{");
    for (size_t i = 0; i < d->count && r->status == STRATA_OK; i++) {
        if (i > 0)
            st_build_text(r, b, ", ");
        build_repr(r, b, &d->keys[i]);
        st_build_text(r, b, ": ");
        build_repr(r, b, &d->values[i]);
    }
    st_build_text(r, b, "}");
}

static void build_repr(struct st_render *r, struct st_builder *b, const struct st_value *v)
{
    if (!st_render_enter(r) || !st_render_spend(r, 1)) {
        st_render_leave(r);
        return;
    }
    if (v->kind == VAL_STRING)
        build_quoted(r, b, v->as.string);
    else if (v->kind == VAL_UNDEFINED)
        st_build_text(r, b, "Undefined");
    else
        st_build_value(r, b, v);
    st_render_leave(r);
}

void st_build_value(struct st_render *r, struct st_builder *b, const struct st_value *v)
{
    char number[NUMBER_BYTES];

    switch (v->kind) {
    case VAL_UNDEFINED:
        return;
    case VAL_NONE:
        st_build_text(r, b, "None");
        return;
    case VAL_BOOL:
        st_build_text(r, b, v->as.truth ? "True" : "False");
        return;
    case VAL_INT:
        snprintf(number, sizeof(number), "%lld", (long long)v->as.integer);
        st_build_text(r, b, number);
        return;
    case VAL_FLOAT:
        print_float(number, v->as.real);
        st_build_text(r, b, number);
        return;
    case VAL_STRING:
        st_build(r, b, v->as.string->text, v->as.string->bytes, v->as.string->origins);
        return;
    case VAL_LIST:
        build_list(r, b, v->as.list, "[", "]");
        return;
    case VAL_TUPLE:
        build_list(r, b, v->as.list, "(", ")");
        return;
    case VAL_RANGE:
        build_range(r, b, v->as.list);
        return;
    case VAL_VIEW:
        st_build_text(r, b, v->as.list->view);
        build_list(r, b, v->as.list, "([", "])");
        return;
    case VAL_DICT:
        build_dict(r, b, v->as.dict);
        return;
    default:
        st_render_fail(r, STRATA_E_NOSYS, "%s cannot be printed", st_val_type(v));
    }
}

struct st_value st_val_str(struct st_render *r, const struct st_value *v)
{
    struct st_builder b = {0};

    if (v->kind == VAL_STRING)
        return *v;
    st_build_value(r, &b, v);
    return st_val_built(r, &b);
}

/* --- JSON, as Python's json.dumps() writes it --- */

/* How JSON writes a character that it does not write as it is; "": it does. */
static void json_escape(char out[16], uint32_t code, bool ascii)
{
    static const char names[] = "\"\\\n\r\t\b\f", escapes[] = "\"\\nrtbf";
    const char *name = code > 0 && code < 0x80 ? strchr(names, (int)code) : NULL;

    out[0] = '\0';
    if (name != NULL)
        snprintf(out, 16, "\\%c", escapes[name - names]);
    else if (code > 0xffff && ascii)
        snprintf(out, 16, "\\u%04x\\u%04x", 0xd7c0u + (unsigned)(code >> 10), 0xdc00u | (unsigned)(code & 0x3ff));
    else if (code < 0x20 || (code > 0x7e && ascii))
        snprintf(out, 16, "\\u%04x", (unsigned)code);
}

static void build_json_string(struct st_render *r, struct st_builder *b, const struct st_string *s, bool ascii)
{
    st_build_text(r, b, "\"");
    for (size_t at = 0, next; at < s->bytes && r->status == STRATA_OK; at = next) {
        const uint32_t *origin = s->origins == NULL ? NULL : s->origins + at;
        char escape[16];

        next = st_utf8_next(s, at);
        json_escape(escape, st_text_utf8_code(s->text + at, next - at), ascii);
        if (escape[0] == '\0')
            st_build(r, b, s->text + at, next - at, origin);
        for (const char *e = escape; *e != '\0'; e++)
            st_build(r, b, e, 1, origin);
    }
    st_build_text(r, b, "\"");
}

/* JSON writes NaN and Infinity where str() writes nan and inf. */
static struct st_value json_number(struct st_render *r, const struct st_value *v)
{
    if (v->kind != VAL_FLOAT || isfinite(v->as.real))
        return st_val_str(r, v);
    return st_val_text(r, isnan(v->as.real) ? "NaN" : v->as.real > 0 ? "Infinity" : "-Infinity");
}

static void json_line(struct st_render *r, struct st_builder *b, const struct st_json_style *style, int64_t level)
{
    if (style->indent < 0)
        return;
    st_build_text(r, b, "\n");
    for (int64_t i = 0; i < level * style->indent && r->status == STRATA_OK; i++)
        st_build_text(r, b, " ");
}

static void build_json(struct st_render *r, struct st_builder *b, const struct st_value *v, struct st_json_style *style);

static void json_comma(struct st_render *r, struct st_builder *b, const struct st_json_style *style, size_t i)
{
    if (i > 0 && style->comma != NULL)
        st_build_value(r, b, style->comma);
    else if (i > 0)
        st_build_text(r, b, style->indent < 0 ? ", " : ",");
    json_line(r, b, style, style->level);
}

static void build_json_key(struct st_render *r, struct st_builder *b, const struct st_value *key, bool ascii)
{
    const struct st_value words[] = {st_val_text(r, "null"), st_val_text(r, "true"), st_val_text(r, "false")};
    struct st_value text = *key;

    if (key->kind == VAL_NONE)
        text = words[0];
    else if (key->kind == VAL_BOOL)
        text = words[key->as.truth ? 1 : 2];
    else if (key->kind == VAL_INT || key->kind == VAL_FLOAT)
        text = json_number(r, key);
    if (text.kind != VAL_STRING)
        st_render_fail(r, STRATA_E_INPUT, "%s cannot be a key in JSON", st_val_type(key));
    else
        build_json_string(r, b, text.as.string, ascii);
}

static void build_json_dict(struct st_render *r, struct st_builder *b, const struct st_dict *d, struct st_json_style *style)
{
    st_build_text(r, b, "{");
    style->level++;
    for (size_t i = 0; i < d->count && r->status == STRATA_OK; i++) {
        json_comma(r, b, style, i);
        build_json_key(r, b, &d->keys[i], style->ascii);
        if (style->colon != NULL)
            st_build_value(r, b, style->colon);
        else
            st_build_text(r, b, ": ");
        build_json(r, b, &d->values[i], style);
    }
    style->level--;
    if (d->count > 0)
        json_line(r, b, style, style->level);
    st_build_text(r, b, "}");
}

static void build_json_list(struct st_render *r, struct st_builder *b, const struct st_list *l, struct st_json_style *style)
{
    st_build_text(r, b, "[");
    style->level++;
    for (size_t i = 0; i < l->count && r->status == STRATA_OK; i++) {
        json_comma(r, b, style, i);
        build_json(r, b, &l->items[i], style);
    }
    style->level--;
    if (l->count > 0)
        json_line(r, b, style, style->level);
    st_build_text(r, b, "]");
}

static void build_json_value(struct st_render *r, struct st_builder *b, const struct st_value *v, struct st_json_style *style)
{
    struct st_value number;

    switch (v->kind) {
    case VAL_NONE:
        st_build_text(r, b, "null");
        return;
    case VAL_BOOL:
        st_build_text(r, b, v->as.truth ? "true" : "false");
        return;
    case VAL_INT:
    case VAL_FLOAT:
        number = json_number(r, v);
        st_build_value(r, b, &number);
        return;
    case VAL_STRING:
        build_json_string(r, b, v->as.string, style->ascii);
        return;
    case VAL_LIST:
    case VAL_TUPLE:
        build_json_list(r, b, v->as.list, style);
        return;
    case VAL_DICT:
        build_json_dict(r, b, v->as.dict, style);
        return;
    default:
        st_render_fail(r, STRATA_E_INPUT, "%s cannot be written as JSON", st_val_type(v));
    }
}

static void build_json(struct st_render *r, struct st_builder *b, const struct st_value *v, struct st_json_style *style)
{
    if (st_render_enter(r) && st_render_spend(r, 1))
        build_json_value(r, b, v, style);
    st_render_leave(r);
}

void st_build_json(struct st_render *r, struct st_builder *b, const struct st_value *v, const struct st_json_style *style)
{
    struct st_json_style own = *style;

    build_json(r, b, v, &own);
}

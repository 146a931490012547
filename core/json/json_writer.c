/* core/json/json_writer.c - JSON straight into a FILE.  One user per writer; unbalanced levels are a bug in the caller and are
 * asserted. */
#include "core/base/number.h"
#include "core/base/text.h"
#include "core/json/json.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WRITER_DEPTH_MAX 32

/* Hidden characters are legal in JSON text, but a terminal obeys them there as well, so they are escaped. */
static void write_character(FILE *file, const char *text, size_t length)
{
    const uint32_t code = st_text_utf8_code(text, length);

    if (code == '"' || code == '\\')
        fprintf(file, "\\%c", (int)code);
    else if (code == '\n')
        fputs("\\n", file);
    else if (code == '\t')
        fputs("\\t", file);
    else if (st_text_hidden(code) && code > 0xffff) /* as a UTF-16 surrogate pair */
        fprintf(file, "\\u%04x\\u%04x", (unsigned)(0xd7c0 + (code >> 10)), (unsigned)(0xdc00 + (code & 0x3ff)));
    else if (st_text_hidden(code))
        fprintf(file, "\\u%04x", (unsigned)code);
    else
        fwrite(text, 1, length, file);
}

static void write_string(FILE *file, const char *text, size_t bytes)
{
    fputc('"', file);
    for (size_t i = 0; i < bytes;) {
        const size_t length = st_text_utf8_bytes(text + i, bytes - i);

        if (length == 0) /* not UTF-8: a file name, say */
            fputs("\\ufffd", file);
        else
            write_character(file, text + i, length);
        i += length != 0 ? length : 1;
    }
    fputc('"', file);
}

/* Comma and key in front of the next value. */
static void before_value(struct st_json_writer *w, const char *key)
{
    uint32_t bit = w->depth > 0 ? UINT32_C(1) << (w->depth - 1) : 0;

    if ((w->has_item & bit) != 0)
        fputc(',', w->file);
    w->has_item |= bit;
    if (key != NULL) {
        write_string(w->file, key, strlen(key));
        fputc(':', w->file);
    }
}

static void open_level(struct st_json_writer *w, const char *key, char open)
{
    assert(w->depth < WRITER_DEPTH_MAX);
    before_value(w, key);
    fputc(open, w->file);
    w->has_item &= ~(UINT32_C(1) << w->depth);
    w->depth++;
}

static void close_level(struct st_json_writer *w, char close)
{
    assert(w->depth > 0);
    w->depth--;
    fputc(close, w->file);
}

void st_json_begin(struct st_json_writer *w, FILE *file)
{
    *w = (struct st_json_writer){.file = file};
}

void st_json_object_open(struct st_json_writer *w, const char *key)
{
    open_level(w, key, '{');
}

void st_json_object_close(struct st_json_writer *w)
{
    close_level(w, '}');
}

void st_json_array_open(struct st_json_writer *w, const char *key)
{
    open_level(w, key, '[');
}

void st_json_array_close(struct st_json_writer *w)
{
    close_level(w, ']');
}

void st_json_put_string(struct st_json_writer *w, const char *key, const char *value)
{
    before_value(w, key);
    if (value != NULL)
        write_string(w->file, value, strlen(value));
    else
        fputs("null", w->file);
}

void st_json_put_bytes(struct st_json_writer *w, const char *key, const char *text, size_t bytes)
{
    before_value(w, key);
    write_string(w->file, text, bytes);
}

const char *st_json_double_text(char buf[32], double value)
{
    for (int digits = 15; digits <= 17; digits++) {
        st_number_print(buf, 32, "%.*g", digits, value);
        if (st_number_read(buf, NULL) == value)
            break;
    }
    return buf;
}

void st_json_put_double(struct st_json_writer *w, const char *key, double value)
{
    char text[32];

    before_value(w, key);
    fputs(isfinite(value) ? st_json_double_text(text, value) : "null", w->file);
}

/* For readers to whom 30 is no real number. */
void st_json_put_real(struct st_json_writer *w, const char *key, double value)
{
    st_json_put_double(w, key, value);
    if (isfinite(value) && fabs(value) < 1e15 && value == floor(value))
        fputs(".0", w->file);
}

void st_json_put_u64(struct st_json_writer *w, const char *key, uint64_t value)
{
    before_value(w, key);
    fprintf(w->file, "%" PRIu64, value);
}

void st_json_put_bool(struct st_json_writer *w, const char *key, bool value)
{
    before_value(w, key);
    fputs(value ? "true" : "false", w->file);
}

static void put_number(struct st_json_writer *w, const char *key, const st_json *node)
{
    const double number = st_json_number(node);
    const char *text = st_json_number_text(node);
    uint64_t whole;

    if (text != NULL) {
        before_value(w, key);
        fputs(text, w->file);
    } else if (st_json_u64(node, &whole))
        st_json_put_u64(w, key, whole);
    else if (number == floor(number) && number < 0 && number > -0x1p53) { /* an integer: with an exponent it would be none */
        before_value(w, key);
        fprintf(w->file, "%" PRId64, (int64_t)number);
    } else
        st_json_put_double(w, key, number);
}

void st_json_put_node(struct st_json_writer *w, const char *key, const st_json *node)
{
    const enum st_json_type type = st_json_type(node);

    switch (type) {
    case ST_JSON_OBJECT:
    case ST_JSON_ARRAY:
        open_level(w, key, type == ST_JSON_OBJECT ? '{' : '[');
        for (const st_json *child = st_json_first(node); child != NULL; child = st_json_next(child))
            st_json_put_node(w, type == ST_JSON_OBJECT ? st_json_name(child) : NULL, child);
        close_level(w, type == ST_JSON_OBJECT ? '}' : ']');
        return;
    case ST_JSON_STRING:
        st_json_put_string(w, key, st_json_string(node));
        return;
    case ST_JSON_NUMBER:
        put_number(w, key, node);
        return;
    case ST_JSON_BOOL:
        st_json_put_bool(w, key, st_json_bool(node));
        return;
    case ST_JSON_NULL:
        st_json_put_string(w, key, NULL);
    }
}

void st_json_put_text(struct st_json_writer *w, const char *key, const char *json)
{
    before_value(w, key);
    fputs(json, w->file);
}

void st_json_end_line(struct st_json_writer *w)
{
    assert(w->depth == 0);
    fputc('\n', w->file);
    fflush(w->file);
}

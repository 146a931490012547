/* template_lex.c - cuts a template's text into tokens, with Jinja's rules for white space: trim_blocks (a newline after a block
 * or comment goes), lstrip_blocks (blanks between the start of a line and a block or comment go), `-` (all white space on that
 * side goes), `+` (none does), and one newline at the end of the text goes.  Of {% raw %} the newline behind it stays. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/number.h"
#include "core/base/text.h"
#include "text/template/template_internal.h"

#include <stdlib.h>
#include <string.h>

struct lex {
    struct st_parse *p;
    const char *at;
    uint32_t line;
    bool line_starts; /* the last tag took its newline with it, or nothing was read yet */
};

static void count_lines(struct lex *x, const char *to)
{
    for (; x->at < to; x->at++)
        x->line += *x->at == '\n';
}

static struct st_tok *push(struct lex *x, enum st_token_kind kind, const char *text, size_t bytes)
{
    struct st_parse *p = x->p;

    if (p->count == p->capacity) {
        const uint32_t capacity = p->capacity == 0 ? 64 : 2 * p->capacity;
        struct st_tok *grown = st_fault("template.alloc", 0) < 0 ? NULL : realloc(p->toks, capacity * sizeof(*grown));

        if (grown == NULL) {
            if (p->status == STRATA_OK)
                p->status = st_nomem(capacity * sizeof(*grown));
            return NULL;
        }
        p->toks = grown;
        p->capacity = capacity;
    }
    p->toks[p->count] = (struct st_tok){.kind = kind, .line = x->line, .text = text, .bytes = bytes};
    return &p->toks[p->count++];
}

/* --- text between tags --- */

static bool starts_tag(const char *at)
{
    return at[0] == '{' && (at[1] == '{' || at[1] == '%' || at[1] == '#');
}

static const char *find_tag(const char *at, const char *end)
{
    while (at < end && !starts_tag(at))
        at++;
    return at;
}

/* Where text [from, to) ends if all white space goes. */
static const char *without_space(const char *from, const char *to)
{
    const char *end = from;

    while (from < to) {
        const size_t space = st_space_at(from, to);
        const size_t unit = space != 0 ? space : st_text_utf8_bytes(from, (size_t)(to - from));

        from += unit != 0 ? unit : 1;
        if (space == 0)
            end = from;
    }
    return end;
}

/* lstrip_blocks: blanks after the last newline go if there is nothing else. */
static const char *without_indent(const struct lex *x, const char *from, const char *to)
{
    const char *start = to;

    while (start > from && start[-1] != '\n')
        start--;
    if (start == from && !x->line_starts)
        return to;
    return without_space(start, to) == start ? start : to;
}

static void push_data(struct lex *x, const char *to)
{
    if (to > x->at)
        push(x, TOK_DATA, x->at, (size_t)(to - x->at));
}

/* --- the ends of tags --- */

/* At the two characters that end a tag, or at the sign before them: takes them, and white space as they say.  False: not there.
 */
static bool take_end(struct lex *x, char first, char second, bool trims)
{
    const char *end = x->p->end, *at = x->at;
    const char sign = *at;

    if (sign == '-' || (sign == '+' && trims))
        at++;
    if (end - at < 2 || at[0] != first || at[1] != second)
        return false;
    at += 2;
    if (sign == '-') {
        for (size_t space; (space = st_space_at(at, end)) != 0;)
            at += space;
    } else if (sign != '+' && trims && at < end && *at == '\n') {
        at++;
    }
    count_lines(x, at);
    x->line_starts = at[-1] == '\n';
    return true;
}

static void lex_comment(struct lex *x)
{
    const uint32_t line = x->line;

    for (count_lines(x, x->at + 2); x->at < x->p->end; count_lines(x, x->at + 1))
        if (take_end(x, '#', '}', true))
            return;
    st_parse_fail(x->p, line, "the comment that begins here has no end #}");
}

/* {% raw %}: takes all to {% endraw %} as text.  False: another tag. */
static const char *after_word(const char *at, const char *end, const char *word)
{
    const size_t bytes = strlen(word);

    if (at < end && (*at == '-' || *at == '+'))
        at++;
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\n'))
        at++;
    if ((size_t)(end - at) < bytes || memcmp(at, word, bytes) != 0)
        return NULL;
    for (at += bytes; at < end && (*at == ' ' || *at == '\t' || *at == '\n');)
        at++;
    return at;
}

static bool lex_raw(struct lex *x)
{
    const char *end = x->p->end, *body = after_word(x->at + 2, end, "raw");
    const uint32_t line = x->line;

    if (body == NULL || body + 1 >= end || (*body != '-' && *body != '%'))
        return false;
    count_lines(x, body);
    if (!take_end(x, '%', '}', false)) /* the newline behind it is part of the text */
        return false;
    for (const char *at = x->at; at < end; at++) {
        const char *closing = at[0] == '{' && at[1] == '%' ? after_word(at + 2, end, "endraw") : NULL;

        if (closing == NULL)
            continue;
        push_data(x, at[2] == '-' ? without_space(x->at, at) : at[2] == '+' ? at : without_indent(x, x->at, at));
        count_lines(x, closing);
        if (!take_end(x, '%', '}', true))
            st_parse_fail(x->p, x->line, "endraw takes nothing");
        return true;
    }
    st_parse_fail(x->p, line, "the raw block that begins here has no end");
    return true;
}

/* --- inside tags --- */

static bool name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || (unsigned char)c >= 0x80;
}

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

static uint32_t digit_value(char c)
{
    return digit(c) ? (uint32_t)(c - '0') : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a') + 10 : (uint32_t)(c - 'A') + 10;
}

static bool hex_digit(char c)
{
    return digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* \xHH, \uHHHH, \UHHHHHHHH or an octal number, after the backslash: its character into out.  NULL: not valid. */
static const char *take_number(const char *at, const char *end, char **out)
{
    static const char kinds[] = "xuU";
    static const uint32_t lengths[] = {2, 4, 8};
    const char *kind = strchr(kinds, *at);
    uint32_t code = 0, digits = 0, wanted = 3;

    if (kind != NULL) {
        wanted = lengths[kind - kinds];
        for (at++; digits < wanted && at < end && hex_digit(*at); at++, digits++)
            code = code * 16 + digit_value(*at);
        if (digits < wanted)
            return NULL;
    } else {
        for (; digits < wanted && at < end && *at >= '0' && *at <= '7'; at++, digits++)
            code = code * 8 + digit_value(*at);
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return NULL;
    *out += st_text_utf8_put(*out, code);
    return at;
}

/* One escape after its backslash, as Python reads it: its bytes into out.  NULL: not valid. */
static const char *take_escape(const char *at, const char *end, char **out)
{
    static const char names[] = "\\'\"abfnrtv", values[] = "\\'\"\a\b\f\n\r\t\v";
    const char *name = strchr(names, *at);

    if (name != NULL) {
        *(*out)++ = values[name - names];
        return at + 1;
    }
    if (*at == '\n')
        return at + 1;
    if (*at == 'N')
        return NULL;
    if (*at == 'x' || *at == 'u' || *at == 'U' || (*at >= '0' && *at <= '7'))
        return take_number(at, end, out);
    *(*out)++ = '\\'; /* unknown: stays as it is */
    return at;
}

static void lex_string(struct lex *x)
{
    const char quote = *x->at, *end = x->p->end, *at = x->at + 1;
    const char *close = at;
    char *text, *out;

    while (close < end && *close != quote)
        close += *close == '\\' && close + 1 < end ? 2 : 1;
    if (close >= end) {
        st_parse_fail(x->p, x->line, "the string that begins here has no end");
        x->at = end;
        return;
    }
    text = out = st_parse_get(x->p, (size_t)(close - at) + 4);
    if (text == NULL)
        return;
    while (at < close) {
        if (*at != '\\') {
            *out++ = *at++;
            continue;
        }
        at = take_escape(at + 1, close, &out);
        if (at == NULL) {
            st_parse_fail(x->p, x->line, "a string has an escape that is not valid or not supported (\\N)");
            return;
        }
    }
    push(x, TOK_STRING, text, (size_t)(out - text));
    count_lines(x, close + 1);
}

static void lex_number(struct lex *x)
{
    const char *end = x->p->end, *at = x->at;
    char buf[64];
    size_t used = 0;
    bool real = false;
    struct st_tok *k;

    for (; at < end && used < sizeof(buf) - 2; at++) {
        const bool point = *at == '.' && !real && at + 1 < end && digit(at[1]) && at[-1] != '.';
        const bool power = (*at == 'e' || *at == 'E') && at + 1 < end &&
                           (digit(at[1]) || ((at[1] == '+' || at[1] == '-') && at + 2 < end && digit(at[2])));

        if (*at == '_' && at + 1 < end && digit(at[1]))
            continue;
        if (!digit(*at) && !point && !power)
            break;
        real |= point || power;
        buf[used++] = *at;
        if (power)
            buf[used++] = *++at;
    }
    buf[used] = '\0';
    if (used >= sizeof(buf) - 2 || (used > 18 && !real)) {
        st_parse_fail(x->p, x->line, "the number %s... is too long", buf);
        return;
    }
    k = push(x, real ? TOK_FLOAT : TOK_INT, x->at, (size_t)(at - x->at));
    if (k != NULL && real)
        k->real = st_number_read(buf, NULL);
    else if (k != NULL)
        k->integer = strtoll(buf, NULL, 10);
    x->at = at;
}

static bool lex_sign(struct lex *x)
{
    static const char *const signs[] = {"==", "!=", ">=", "<=", "//", "**", "+", "-", "/", "*", "%", "~", "[",
                                        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

    for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++) {
        const size_t bytes = strlen(signs[i]);

        if ((size_t)(x->p->end - x->at) >= bytes && memcmp(x->at, signs[i], bytes) == 0) {
            push(x, TOK_SIGN, signs[i], bytes);
            x->at += bytes;
            return true;
        }
    }
    return false;
}

/* One token of a tag; the white space before it goes. */
static void lex_token(struct lex *x)
{
    const char c = *x->at;
    const char *to = x->at;

    if (c == '\'' || c == '"') {
        lex_string(x);
    } else if (digit(c)) {
        lex_number(x);
    } else if (name_char(c)) {
        while (to < x->p->end && name_char(*to))
            to++;
        push(x, TOK_NAME, x->at, (size_t)(to - x->at));
        x->at = to;
    } else if (!lex_sign(x)) {
        st_parse_fail(x->p, x->line, "the character '%.1s' has no meaning in a tag", x->at);
    }
}

/* What stands in a tag, to its end; braces, brackets and parentheses in it must close first. */
static void lex_tag(struct lex *x, bool print)
{
    const char close = print ? '}' : '%';
    const uint32_t line = x->line;
    uint32_t open = 0;

    push(x, print ? TOK_PRINT : TOK_TAG, x->at, 2);
    x->at += 2;
    if (x->at < x->p->end && (*x->at == '-' || *x->at == '+'))
        x->at++;
    while (x->p->status == STRATA_OK) {
        const size_t space = st_space_at(x->at, x->p->end);

        if (x->at >= x->p->end) {
            st_parse_fail(x->p, line, "the tag that begins here has no end");
        } else if (space != 0) {
            count_lines(x, x->at + space);
        } else {
            const char *start = x->at;

            if (open == 0 && take_end(x, close, '}', !print)) {
                push(x, TOK_CLOSE, start, 2);
                return;
            }
            if (strchr("([{", *start) != NULL)
                open++;
            else if (strchr(")]}", *start) != NULL && open > 0)
                open--;
            lex_token(x);
        }
    }
}

void st_template_lex(struct st_parse *p)
{
    struct lex x = {.p = p, .at = p->text, .line = 1, .line_starts = true};

    while (x.at < p->end && p->status == STRATA_OK) {
        const char *tag = find_tag(x.at, p->end);
        const char sign = tag < p->end ? tag[2] : '\0';
        const char *to = tag;

        if (sign == '-')
            to = without_space(x.at, tag);
        else if (tag < p->end && sign != '+' && tag[1] != '{')
            to = without_indent(&x, x.at, tag);
        push_data(&x, to);
        count_lines(&x, tag);
        if (tag == p->end)
            break;
        if (tag[1] == '#')
            lex_comment(&x);
        else if (tag[1] == '{' || !lex_raw(&x))
            lex_tag(&x, tag[1] == '{');
    }
    if (p->status == STRATA_OK)
        push(&x, TOK_END, p->end, 0);
}

/* core/json/json_scan.c - a recursive-descent check of RFC 8259 that builds nothing, and of Hjson, of which it writes the JSON.
 *
 * cJSON accepts much that other readers refuse (`1.`, `01`, raw newlines in strings, bad UTF-8, numbers that overflow) and
 * reports no line; it sees only text that passed this check.  Any thread. */
#include "core/json/json_scan.h"
#include "core/base/number.h"
#include "core/base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_BYTES_MAX 60 /* cJSON copies a number into 64 bytes */

struct scan {
    const char *text, *at, *end;
    const char *problem;
    struct st_json_odd *odd;   /* what to tell of text that is not strict; NULL: it is refused */
    char *mend;                /* the text, where what is odd is written over; NULL: it stays */
    uint64_t member;           /* of the outermost object, from 1; 0: none yet */
    bool controls;             /* control characters may stand in strings, apart from line ends and NUL */
    uint64_t keys_before_stop; /* names still to skip in st_json_find_key; counts down */
    const char *key_found;
    unsigned depth;
    bool hjson;
    char *out; /* what was read, as JSON; NULL: nobody asks */
};

static bool scan_value(struct scan *s);

/* A comment that is not closed is the problem, not what is missing there. */
static bool fail(struct scan *s, const char *problem)
{
    if (s->problem == NULL)
        s->problem = problem;
    return false;
}

/* What Python writes and JSON does not have; false where it is refused. */
static bool odd(struct scan *s, const char *problem)
{
    const uint64_t bit = s->member == 0 ? 0 : s->member < 64 ? s->member - 1 : 63;

    if (s->odd == NULL)
        return fail(s, problem);
    s->odd->members |= UINT64_C(1) << bit;
    if (s->odd->problem == NULL)
        s->odd->problem = problem;
    return true;
}

/* Four hex digits at `at` become those of U+FFFD. */
static void mend_digits(const struct scan *s)
{
    if (s->mend != NULL)
        memcpy(s->mend + (s->at - s->text), "fffd", 4);
}

/* The next bytes become a number. */
static bool odd_number(struct scan *s, size_t bytes, const char *problem)
{
    if (!odd(s, problem))
        return false;
    if (s->mend != NULL) {
        memset(s->mend + (s->at - s->text), ' ', bytes);
        s->mend[s->at - s->text] = '0';
    }
    s->at += bytes;
    return true;
}

static void put(struct scan *s, const char *text, size_t bytes)
{
    if (s->out == NULL)
        return;
    memcpy(s->out, text, bytes);
    s->out += bytes;
}

static bool at_char(const struct scan *s, char c)
{
    return s->at < s->end && *s->at == c;
}

static bool at_digit(const struct scan *s)
{
    return s->at < s->end && *s->at >= '0' && *s->at <= '9';
}

static bool at_text(const struct scan *s, const char *text)
{
    return (size_t)(s->end - s->at) >= strlen(text) && memcmp(s->at, text, strlen(text)) == 0;
}

/* False: there is no comment, or it is not closed. */
static bool skip_comment(struct scan *s)
{
    const char *at = s->at + 2;

    if (at_char(s, '#') || at_text(s, "//")) {
        while (s->at < s->end && *s->at != '\n' && *s->at != '\r')
            s->at++;
        return true;
    }
    if (!at_text(s, "/*"))
        return false;
    while (s->end - at >= 2 && (at[0] != '*' || at[1] != '/'))
        at++;
    if (s->end - at < 2)
        return fail(s, "a comment is not closed");
    s->at = at + 2;
    return true;
}

static void skip_space(struct scan *s)
{
    do
        while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r'))
            s->at++;
    while (s->hjson && skip_comment(s));
}

/* The value of four hex digits at `at`; -1 if there are none. */
static int hex4(const char *at, const char *end)
{
    int value = 0;

    if (end - at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = at[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;

        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* After "\u". */
static bool scan_unicode(struct scan *s)
{
    int code = hex4(s->at, s->end);
    const char *problem = code == 0                          ? "\\u0000 is not allowed in a string"
                          : code >= 0xdc00 && code <= 0xdfff ? "second half of a surrogate pair without the first"
                                                             : NULL;

    if (code < 0)
        return fail(s, "\\u needs four hex digits");
    if (code >= 0xd800 && code <= 0xdbff) {
        int low = s->end - s->at >= 6 && s->at[4] == '\\' && s->at[5] == 'u' ? hex4(s->at + 6, s->end) : -1;

        if (low >= 0xdc00 && low <= 0xdfff) {
            s->at += 10;
            return true;
        }
        problem = "first half of a surrogate pair without the second";
    }
    if (problem != NULL && !odd(s, problem))
        return false;
    if (problem != NULL)
        mend_digits(s);
    s->at += 4;
    return true;
}

static bool scan_escape(struct scan *s)
{
    char c = s->at + 1 < s->end ? s->at[1] : '\0';

    if (c == 'u') {
        s->at += 2;
        return scan_unicode(s);
    }
    if (c == '\'' && s->hjson) {
        s->at += 2;
        return true;
    }
    if (c == '\0' || strchr("\"\\/bfnrt", c) == NULL)
        return fail(s, "unknown escape in a string");
    s->at += 2;
    return true;
}

/* What stands between quotes, a character or an escape, as it is between double quotes. */
static void put_character(struct scan *s, const char *begin)
{
    if (*begin == '"')
        put(s, "\\\"", 2);
    else if (begin[0] == '\\' && begin[1] == '\'')
        put(s, "'", 1);
    else
        put(s, begin, (size_t)(s->at - begin));
}

static bool scan_string(struct scan *s)
{
    const char quote = *s->at++;

    put(s, "\"", 1);
    while (s->at < s->end && *s->at != quote) {
        const char *begin = s->at;
        size_t bytes;

        if (*s->at == '\\') {
            if (!scan_escape(s))
                return false;
            put_character(s, begin);
            continue;
        }
        if ((unsigned char)*s->at < 0x20 && (!s->controls || *s->at == '\n' || *s->at == '\0'))
            return fail(s, "string not closed on its line (control characters are written as escapes)");
        bytes = st_text_utf8_bytes(s->at, (size_t)(s->end - s->at));
        if (bytes == 0)
            return fail(s, "not UTF-8");
        s->at += bytes;
        put_character(s, begin);
    }
    if (s->at == s->end)
        return fail(s, "string not closed");
    s->at++;
    put(s, "\"", 1);
    return true;
}

static bool scan_digits(struct scan *s)
{
    if (!at_digit(s))
        return fail(s, "a digit is missing in a number");
    while (at_digit(s))
        s->at++;
    return true;
}

/* NaN, Infinity, -Infinity. */
static bool scan_not_finite(struct scan *s)
{
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (at_text(s, words[i]))
            return odd_number(s, strlen(words[i]), "NaN and Infinity are not JSON");
    return fail(s, "NaN and Infinity are not JSON");
}

static bool scan_number(struct scan *s)
{
    const char *begin = s->at;
    char copy[NUMBER_BYTES_MAX + 1];
    size_t bytes;

    if (at_char(s, '-'))
        s->at++;
    if (at_char(s, '0') && s->at + 1 < s->end && s->at[1] >= '0' && s->at[1] <= '9')
        return fail(s, "a number must not start with 0");
    if (s->at < s->end && (*s->at == 'I' || *s->at == 'N')) {
        s->at -= s->odd != NULL;
        return scan_not_finite(s);
    }
    if (!scan_digits(s))
        return false;
    if (at_char(s, '.')) {
        s->at++;
        if (!scan_digits(s))
            return false;
    }
    if (at_char(s, 'e') || at_char(s, 'E')) {
        s->at++;
        if (at_char(s, '+') || at_char(s, '-'))
            s->at++;
        if (!scan_digits(s))
            return false;
    }
    bytes = (size_t)(s->at - begin);
    s->at = begin;
    if (bytes > NUMBER_BYTES_MAX)
        return odd_number(s, bytes, "number of more than 60 characters");
    memcpy(copy, begin, bytes);
    copy[bytes] = '\0';
    if (!isfinite(st_number_read(copy, NULL)))
        return odd_number(s, bytes, "number too large");
    s->at = begin + bytes;
    put(s, begin, bytes);
    return true;
}

static bool scan_word(struct scan *s, const char *word)
{
    if (!at_text(s, word))
        return fail(s, "unknown word: true, false or null expected");
    s->at += strlen(word);
    put(s, word, strlen(word));
    return true;
}

/* As Python's json writes it; a number that overflows says the same to cJSON. */
static bool scan_infinity(struct scan *s)
{
    const bool negative = at_char(s, '-');

    s->at += strlen("Infinity") + negative;
    put(s, negative ? "-1e999" : "1e999", negative ? 6 : 5);
    return true;
}

/* Without quotes. */
static bool scan_bare_name(struct scan *s)
{
    const char *begin = s->at;

    while (s->at < s->end && (st_text_is_word(*s->at) || memchr("_-.", *s->at, 3) != NULL))
        s->at++;
    if (s->at == begin)
        return fail(s, "a name is missing: put it in double quotes");
    put(s, "\"", 1);
    put(s, begin, (size_t)(s->at - begin));
    put(s, "\"", 1);
    return true;
}

static bool scan_name(struct scan *s)
{
    if (at_char(s, '"') || (s->hjson && at_char(s, '\'')))
        return scan_string(s);
    if (s->hjson)
        return scan_bare_name(s);
    return fail(s, at_char(s, '}') ? "comma before }" : "a name in double quotes is missing");
}

/* "name": ... of an object. */
static bool scan_member(struct scan *s)
{
    s->member += s->depth == 1;
    if (s->keys_before_stop-- == 0)
        s->key_found = s->at;
    if (!scan_name(s))
        return false;
    skip_space(s);
    if (!at_char(s, ':'))
        return fail(s, ": is missing after a name");
    s->at++;
    put(s, ":", 1);
    skip_space(s);
    return scan_value(s);
}

static bool scan_element(struct scan *s)
{
    return at_char(s, ']') ? fail(s, "comma before ]") : scan_value(s);
}

/* After an item: whether another one follows.  In Hjson a comma may be left out at the end of a line, and may be the last. */
static bool at_next(struct scan *s, char close)
{
    const char *begin = s->at;

    skip_space(s);
    if (at_char(s, ',')) {
        s->at++;
        skip_space(s);
        return !s->hjson || !at_char(s, close);
    }
    return s->hjson && s->at < s->end && !at_char(s, close) && memchr(begin, '\n', (size_t)(s->at - begin)) != NULL;
}

/* Items between an opening and a `close` character; s->at is the opening one. */
static bool scan_items(struct scan *s, char close, bool (*item)(struct scan *))
{
    if (++s->depth > ST_JSON_DEPTH_MAX)
        return fail(s, "nested deeper than 64");
    put(s, s->at++, 1);
    skip_space(s);
    if (!at_char(s, close)) {
        while (item(s)) {
            if (!at_next(s, close))
                break;
            put(s, ",", 1);
        }
        if (s->problem != NULL)
            return false;
        if (!at_char(s, close))
            return fail(s, close == '}' ? ", or } is missing" : ", or ] is missing");
    }
    put(s, s->at++, 1);
    s->depth--;
    return true;
}

/* What Hjson has and JSON has not. */
static bool scan_hjson_value(struct scan *s)
{
    if (at_text(s, "Infinity") || at_text(s, "-Infinity"))
        return scan_infinity(s);
    if (at_text(s, "NaN"))
        return fail(s, "NaN is no number: give one");
    if (at_text(s, "'''"))
        return fail(s, "Hjson's texts of several lines are not read: put it in double quotes");
    if (at_char(s, '\''))
        return scan_string(s);
    return fail(s, at_char(s, ']') || at_char(s, '}') || at_char(s, ',') || at_char(s, ':')
                       ? "a value is missing"
                       : "Hjson's texts without quotes are not read: put it in double quotes");
}

static bool scan_value(struct scan *s)
{
    const bool number = at_digit(s) || (at_char(s, '-') && !(s->hjson && at_text(s, "-I")));

    if (s->at == s->end)
        return fail(s, "a value is missing");
    if (s->hjson && !number && strchr("{[\"tfn", *s->at) == NULL)
        return scan_hjson_value(s);
    switch (*s->at) {
    case '{':
        return scan_items(s, '}', scan_member);
    case '[':
        return scan_items(s, ']', scan_element);
    case '"':
        return scan_string(s);
    case 't':
        return scan_word(s, "true");
    case 'f':
        return scan_word(s, "false");
    case 'n':
        return scan_word(s, "null");
    case 'N':
    case 'I':
        return scan_not_finite(s);
    case '/':
    case '#':
        return fail(s, "comments are not JSON");
    case '\'':
        return fail(s, "strings need double quotes");
    default:
        return number ? scan_number(s) : fail(s, "a value is missing");
    }
}

static void place_at(struct st_json_place *place, const struct scan *s, const char *at)
{
    *place = (struct st_json_place){.line = 1, .column = 1, .problem = s->problem};
    for (const char *c = s->text; c < at; c++) {
        place->column++;
        if (*c == '\n') {
            place->line++;
            place->column = 1;
        }
    }
}

static bool scan_document(struct scan *s)
{
    if (at_text(s, "\xef\xbb\xbf"))
        return fail(s, "starts with a byte order mark: save as UTF-8 without one");
    skip_space(s);
    if (s->hjson && s->at < s->end && *s->at != '{' && *s->at != '[')
        return fail(s, "{ is missing: Hjson without braces around it is not read");
    if (!scan_value(s))
        return false;
    skip_space(s);
    return s->at == s->end || fail(s, at_char(s, '/') || at_char(s, '#') ? "comments are not JSON" : "more text after the end");
}

bool st_json_scan_row(struct st_json_place *place, struct st_json_odd *odd, char *text, size_t bytes)
{
    struct scan s = {.text = text, .at = text, .end = text + bytes, .keys_before_stop = UINT64_MAX, .odd = odd, .controls = true};
    const struct scan again = s;
    bool good;

    *odd = (struct st_json_odd){0};
    odd->whole = good = scan_document(&s);
    place_at(place, &s, s.at);
    if (good && odd->problem != NULL) {
        s = again;
        s.mend = text;
        (void)scan_document(&s);
    }
    return good;
}

bool st_json_scan(struct st_json_place *place, const char *text, size_t bytes)
{
    struct scan s = {.text = text, .at = text, .end = text + bytes, .keys_before_stop = UINT64_MAX};
    bool good = scan_document(&s);

    place_at(place, &s, s.at);
    return good;
}

bool st_hjson_scan(struct st_json_place *place, const char *text, size_t bytes, char *json, size_t *json_bytes)
{
    struct scan s = {.text = text, .at = text, .end = text + bytes, .keys_before_stop = UINT64_MAX, .hjson = true, .out = json};
    bool good = scan_document(&s);

    place_at(place, &s, s.at);
    *json_bytes = (size_t)(s.out - json);
    return good;
}

void st_json_find_key(struct st_json_place *place, const char *text, size_t bytes, bool hjson, uint64_t ordinal)
{
    struct scan s = {
        .text = text, .at = text, .end = text + bytes, .keys_before_stop = ordinal, .controls = true, .hjson = hjson};

    (void)scan_document(&s);
    place_at(place, &s, s.key_found != NULL ? s.key_found : text);
}

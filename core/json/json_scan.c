/* core/json/json_scan.c - a recursive-descent check of RFC 8259 that builds nothing.
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
};

static bool scan_value(struct scan *s);

static bool fail(struct scan *s, const char *problem)
{
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

static bool at_char(const struct scan *s, char c)
{
    return s->at < s->end && *s->at == c;
}

static bool at_digit(const struct scan *s)
{
    return s->at < s->end && *s->at >= '0' && *s->at <= '9';
}

static void skip_space(struct scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r'))
        s->at++;
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
    if (c == '\0' || strchr("\"\\/bfnrt", c) == NULL)
        return fail(s, "unknown escape in a string");
    s->at += 2;
    return true;
}

static bool scan_string(struct scan *s)
{
    s->at++;
    while (s->at < s->end && *s->at != '"') {
        size_t bytes;

        if (*s->at == '\\') {
            if (!scan_escape(s))
                return false;
            continue;
        }
        if ((unsigned char)*s->at < 0x20 && (!s->controls || *s->at == '\n' || *s->at == '\0'))
            return fail(s, "string not closed on its line (control characters are written as escapes)");
        bytes = st_text_utf8_bytes(s->at, (size_t)(s->end - s->at));
        if (bytes == 0)
            return fail(s, "not UTF-8");
        s->at += bytes;
    }
    if (s->at == s->end)
        return fail(s, "string not closed");
    s->at++;
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
        if ((size_t)(s->end - s->at) >= strlen(words[i]) && memcmp(s->at, words[i], strlen(words[i])) == 0)
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
    return true;
}

static bool scan_word(struct scan *s, const char *word)
{
    size_t bytes = strlen(word);

    if ((size_t)(s->end - s->at) < bytes || memcmp(s->at, word, bytes) != 0)
        return fail(s, "unknown word: true, false or null expected");
    s->at += bytes;
    return true;
}

/* "name": ... of an object. */
static bool scan_member(struct scan *s)
{
    if (!at_char(s, '"'))
        return fail(s, at_char(s, '}') ? "comma before }" : "a name in double quotes is missing");
    s->member += s->depth == 1;
    if (s->keys_before_stop-- == 0)
        s->key_found = s->at;
    if (!scan_string(s))
        return false;
    skip_space(s);
    if (!at_char(s, ':'))
        return fail(s, ": is missing after a name");
    s->at++;
    skip_space(s);
    return scan_value(s);
}

static bool scan_element(struct scan *s)
{
    return at_char(s, ']') ? fail(s, "comma before ]") : scan_value(s);
}

/* Items between an opening and a `close` character; s->at is the opening one. */
static bool scan_items(struct scan *s, char close, bool (*item)(struct scan *))
{
    if (++s->depth > ST_JSON_DEPTH_MAX)
        return fail(s, "nested deeper than 64");
    s->at++;
    skip_space(s);
    if (!at_char(s, close)) {
        for (;;) {
            if (!item(s))
                return false;
            skip_space(s);
            if (!at_char(s, ','))
                break;
            s->at++;
            skip_space(s);
        }
        if (!at_char(s, close))
            return fail(s, close == '}' ? ", or } is missing" : ", or ] is missing");
    }
    s->at++;
    s->depth--;
    return true;
}

static bool scan_value(struct scan *s)
{
    if (s->at == s->end)
        return fail(s, "a value is missing");
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
        return *s->at == '-' || at_digit(s) ? scan_number(s) : fail(s, "a value is missing");
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
    if (s->end - s->at >= 3 && memcmp(s->at, "\xef\xbb\xbf", 3) == 0)
        return fail(s, "starts with a byte order mark: save as UTF-8 without one");
    skip_space(s);
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

void st_json_find_key(struct st_json_place *place, const char *text, size_t bytes, uint64_t ordinal)
{
    struct scan s = {.text = text, .at = text, .end = text + bytes, .keys_before_stop = ordinal, .controls = true};

    (void)scan_document(&s);
    place_at(place, &s, s.key_found != NULL ? s.key_found : text);
}

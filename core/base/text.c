/* core/base/text.c - UTF-8, and which characters are escaped.  Leaf functions, any thread. */
#include "core/base/text.h"

#include <stdio.h>
#include <string.h>

char st_text_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

bool st_text_is_word(char c)
{
    return (c >= '0' && c <= '9') || (st_text_lower(c) >= 'a' && st_text_lower(c) <= 'z');
}

bool st_text_begins(const char *text, const char *word)
{
    for (; *word != '\0'; text++, word++)
        if (st_text_lower(*text) != st_text_lower(*word))
            return false;
    return true;
}

bool st_text_same(const char *a, const char *b)
{
    return strlen(a) == strlen(b) && st_text_begins(a, b);
}

struct range {
    uint32_t first, last;
};

/* Control characters, and those that Unicode calls default ignorable and that can hide or reorder text (UAX #9, UTR #36). */
static const struct range hidden_ranges[] = {
    {0x00, 0x1f},       /* C0 */
    {0x7f, 0x9f},       /* DEL, C1 */
    {0xad, 0xad},       /* soft hyphen */
    {0x61c, 0x61c},     /* Arabic letter mark */
    {0x200b, 0x200f},   /* zero width space, joiners, left-to-right and right-to-left marks */
    {0x2028, 0x202e},   /* line and paragraph separators, embeddings and overrides */
    {0x2060, 0x206f},   /* word joiner, invisible operators, isolates, deprecated format characters */
    {0xfeff, 0xfeff},   /* byte order mark */
    {0xfff9, 0xfffb},   /* interlinear annotation */
    {0xe0000, 0xe007f}, /* tags */
};

static bool is_continuation(const char *text, size_t bytes, size_t i)
{
    return i < bytes && ((unsigned char)text[i] & 0xc0) == 0x80;
}

size_t st_text_utf8_bytes(const char *text, size_t bytes)
{
    unsigned char lead, second;

    if (bytes == 0)
        return 0;
    lead = (unsigned char)text[0];
    if (lead < 0x80)
        return 1;
    if (lead < 0xc2 || lead > 0xf4 || !is_continuation(text, bytes, 1))
        return 0;
    if (lead < 0xe0)
        return 2;
    second = (unsigned char)text[1];
    if (!is_continuation(text, bytes, 2) || (lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f))
        return 0;
    if (lead < 0xf0)
        return 3;
    if (!is_continuation(text, bytes, 3) || (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f))
        return 0;
    return 4;
}

bool st_text_is_utf8(const char *text)
{
    const size_t bytes = strlen(text);

    for (size_t at = 0, length; at < bytes; at += length)
        if ((length = st_text_utf8_bytes(text + at, bytes - at)) == 0)
            return false;
    return true;
}

uint32_t st_text_utf8_code(const char *text, size_t length)
{
    static const unsigned char lead_bits[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint32_t code = (unsigned char)text[0] & lead_bits[length];

    for (size_t i = 1; i < length; i++)
        code = code << 6 | ((unsigned char)text[i] & 0x3f);
    return code;
}

size_t st_text_utf8_put(char out[4], uint32_t code)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xe0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3f));
        out[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3f));
    out[2] = (char)(0x80 | (code >> 6 & 0x3f));
    out[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}

bool st_text_hidden(uint32_t code)
{
    for (size_t i = 0; i < sizeof(hidden_ranges) / sizeof(hidden_ranges[0]); i++)
        if (code >= hidden_ranges[i].first && code <= hidden_ranges[i].last)
            return true;
    return false;
}

size_t st_text_unit(char out[ST_TEXT_UNIT_MAX], const char *text, size_t bytes)
{
    const size_t length = st_text_utf8_bytes(text, bytes);
    const uint32_t code = length != 0 ? st_text_utf8_code(text, length) : (unsigned char)text[0];

    if (length == 0 || (code < 0x80 && st_text_hidden(code)))
        snprintf(out, ST_TEXT_UNIT_MAX, "\\x%02x", (unsigned)code);
    else if (st_text_hidden(code))
        snprintf(out, ST_TEXT_UNIT_MAX, "\\u{%x}", (unsigned)code);
    else
        snprintf(out, ST_TEXT_UNIT_MAX, "%.*s", (int)length, text);
    return length != 0 ? length : 1;
}

void st_text_escape(char *out, size_t bytes, const char *text)
{
    const size_t length = strlen(text);
    size_t used = 0;

    for (size_t i = 0; i < length;) {
        char unit[ST_TEXT_UNIT_MAX];

        i += st_text_unit(unit, text + i, length - i);
        if (used + strlen(unit) >= bytes)
            break;
        memcpy(out + used, unit, strlen(unit));
        used += strlen(unit);
    }
    out[used] = '\0';
}

const char *st_text_shell(char *out, size_t bytes, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%";
    size_t at = 1;

    if (word[0] != '\0' && word[strspn(word, plain)] == '\0') {
        snprintf(out, bytes, "%s", word);
        return out;
    }
    snprintf(out, bytes, "'");
    for (; *word != '\0' && at + 6 < bytes; word++)
        at += (size_t)(*word == '\'' ? snprintf(out + at, bytes - at, "'\\''") : snprintf(out + at, bytes - at, "%c", *word));
    snprintf(out + at, bytes - at, "'");
    return out;
}

/* template_case.c - upper, lower and title case: ASCII, Latin-1 and Cyrillic.  Scripts without cases stay as they are; a letter
 * of any other script is refused, since Python may make several of it. */
#include "core/base/text.h"
#include "text/template/template_internal.h"

#include <string.h>

#define COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))

/* Capital letters; the small ones are `delta` further on. */
static const struct {
    uint32_t first, last, delta;
} letters[] = {{'A', 'Z', 32}, {0xc0, 0xd6, 32}, {0xd8, 0xde, 32}, {0x400, 0x40f, 80}, {0x410, 0x42f, 32}};

/* Characters that have no case: marks and punctuation, Hebrew to Burmese, Hangul, Ethiopic to Mongolian, symbols, Chinese and
 * Japanese, pictures. */
static const uint32_t caseless[][2] = {
    {0x00, 0x40},     {0x5b, 0x60},     {0x7b, 0xa9},     {0xab, 0xb4},       {0xb6, 0xb9},      {0xbb, 0xbf},
    {0xd7, 0xd7},     {0xf7, 0xf7},     {0x300, 0x344},   {0x346, 0x36f},     {0x591, 0x109f},   {0x1100, 0x139f},
    {0x1400, 0x1c7f}, {0x2000, 0x2070}, {0x20a0, 0x20ff}, {0x2190, 0x24b5},   {0x24ea, 0x2bff},  {0x2e80, 0xa63f},
    {0xac00, 0xfaff}, {0xfb1d, 0xff20}, {0xff5b, 0xffff}, {0x1f000, 0x1f12f}, {0x1f18a, 0x3ffff}};

enum letter { NO_LETTER, LETTER, UNKNOWN_LETTER };

/* Give *code the wanted case. */
static enum letter change_case(uint32_t *code, bool upper)
{
    for (size_t i = 0; i < COUNT(letters); i++) {
        const uint32_t small = *code - letters[i].delta;

        if (*code >= letters[i].first && *code <= letters[i].last) {
            *code += upper ? 0 : letters[i].delta;
            return LETTER;
        }
        if (small >= letters[i].first && small <= letters[i].last) {
            *code = upper ? small : *code;
            return LETTER;
        }
    }
    for (size_t i = 0; i < COUNT(caseless); i++)
        if (*code >= caseless[i][0] && *code <= caseless[i][1])
            return NO_LETTER;
    return *code == 0xdf && !upper ? LETTER : UNKNOWN_LETTER; /* U+00DF is small, and has no capital letter of one character */
}

struct st_value st_with_case(struct st_render *r, const struct st_value *v, enum st_letter_case wanted)
{
    const struct st_string *s = st_soft_text(r, v);
    struct st_builder b = {0};
    bool first = true;

    if (s == NULL || !st_render_spend(r, s->bytes))
        return st_val_undefined("");
    for (size_t at = 0, next; at < s->bytes && r->status == STRATA_OK; at = next) {
        uint32_t origins[4], code;
        enum letter letter;
        char to[4];

        next = st_utf8_next(s, at);
        code = st_text_utf8_code(s->text + at, next - at);
        letter = change_case(&code, wanted == CASE_UPPER || (wanted != CASE_LOWER && first));
        if (letter == UNKNOWN_LETTER)
            return st_render_fail(r, STRATA_E_NOSYS,
                                  "the case of U+%04X is not supported: only ASCII, Latin-1 and Cyrillic letters",
                                  (unsigned)code);
        for (size_t i = 0; i < 4; i++)
            origins[i] = s->origins == NULL ? 0 : s->origins[at];
        st_build(r, &b, to, st_text_utf8_put(to, code), origins);
        if (wanted == CASE_WORDS)
            first = letter == NO_LETTER;
        else
            first = wanted == CASE_TITLE && (st_space_at(s->text + at, s->text + s->bytes) != 0 ||
                                             (code < 0x80 && memchr("-({[<", (int)code, 5) != NULL));
    }
    return st_val_built(r, &b);
}

struct st_value st_filter_upper(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    (void)args;
    return st_with_case(r, v, CASE_UPPER);
}

struct st_value st_filter_lower(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    (void)args;
    return st_with_case(r, v, CASE_LOWER);
}

struct st_value st_filter_capitalize(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    (void)args;
    return st_with_case(r, v, CASE_CAPITAL);
}

struct st_value st_filter_title(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    (void)args;
    return st_with_case(r, v, CASE_TITLE);
}

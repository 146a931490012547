/* text/tokenizer/unicode_internal.h - what the reference library knows about characters.  Private to text/tokenizer/. */
#ifndef TEXT_TOKENIZER_UNICODE_INTERNAL_H
#define TEXT_TOKENIZER_UNICODE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ST_UNICODE_CODES 0x110000u

enum st_unicode_flag {
    ST_UC_LETTER = 1,   /* \p{L} */
    ST_UC_NUMBER = 2,   /* \p{N} */
    ST_UC_SPACE = 4,    /* \s */
    ST_UC_MARK = 8,     /* \p{M} */
    ST_UC_NUMERIC = 16, /* what Digits splits off */
    ST_UC_WORD = 32,    /* what single_word may not touch */
};
enum { ST_NFC_RANK = 0x3f, ST_NFC_JOINS = 0x40, ST_NFC_CHANGES = 0x80 };

struct st_unicode {
    uint8_t flags[ST_UNICODE_CODES];
    /* For NFC: the rank of the combining class (0: a starter); JOINS: it may compose with what stands before; CHANGES: it is
     * written otherwise in NFC. */
    uint8_t nfc[ST_UNICODE_CODES];
};
/** @return NULL: no memory */
struct st_unicode *st_unicode_create(void);
void st_unicode_destroy(struct st_unicode *u);

/** The category of that number by its two letters; NULL past the last one. */
const char *st_unicode_category_name(uint32_t category);
/** Row `i` of the table of categories: they hold from `first` to the next row's.  False past the last one. */
bool st_unicode_category_run(uint32_t i, uint32_t *first, uint32_t *category);

#define ST_DECOMPOSED_MAX 4u
/** The full canonical decomposition of a character.  @return how many; the character itself if it has none */
uint32_t st_unicode_decompose(uint32_t out[ST_DECOMPOSED_MAX], uint32_t code);
/** What two characters compose to; 0: nothing. */
uint32_t st_unicode_compose(uint32_t first, uint32_t second);

/** The character at text, which is UTF-8; *length: its bytes. */
static inline uint32_t st_utf8_at(const char *text, size_t *length)
{
    const unsigned char *b = (const unsigned char *)text;

    if (b[0] < 0x80) {
        *length = 1;
        return b[0];
    }
    if (b[0] < 0xe0) {
        *length = 2;
        return (b[0] & 0x1fu) << 6 | (b[1] & 0x3fu);
    }
    if (b[0] < 0xf0) {
        *length = 3;
        return (b[0] & 0x0fu) << 12 | (b[1] & 0x3fu) << 6 | (b[2] & 0x3fu);
    }
    *length = 4;
    return (b[0] & 0x07u) << 18 | (b[1] & 0x3fu) << 12 | (b[2] & 0x3fu) << 6 | (b[3] & 0x3fu);
}

#endif

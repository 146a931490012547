/* text/tokenizer/unicode.c - tables of characters, spread out from runs once per tokenizer.  Read-only afterwards. */
#include "text/tokenizer/unicode_internal.h"

#include "core/base/fault.h"

#include <assert.h>
#include <stdlib.h>

#include "text/tokenizer/unicode_table.inc"

#define COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))

/* Hangul syllables are composed by arithmetic (The Unicode Standard, section 3.12). */
enum { S_BASE = 0xac00, L_BASE = 0x1100, V_BASE = 0x1161, T_BASE = 0x11a7, L_COUNT = 19, V_COUNT = 21, T_COUNT = 28 };
enum { S_COUNT = L_COUNT * V_COUNT * T_COUNT };

static const char categories[][3] = {"Cn", "Cc", "Cf", "Co", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No",
                                     "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp"};

const char *st_unicode_category_name(uint32_t category)
{
    return category < COUNT(categories) ? categories[category] : NULL;
}

bool st_unicode_category_run(uint32_t i, uint32_t *first, uint32_t *category)
{
    if (i >= COUNT(category_runs))
        return false;
    *first = category_runs[i] >> 5;
    *category = category_runs[i] & 31;
    return true;
}

static uint8_t flag_of_category(uint32_t category)
{
    switch (categories[category][0]) {
    case 'L':
        return ST_UC_LETTER;
    case 'M':
        return ST_UC_MARK;
    case 'N':
        return ST_UC_NUMBER;
    default:
        return 0;
    }
}

/* Rows of first code point << shift | value, to the next row; a value is a flag or, with `flag` 0, what is stored. */
static void spread(uint8_t *out, const uint32_t *rows, size_t count, unsigned shift, uint8_t flag)
{
    for (size_t i = 0; i < count; i++) {
        const uint32_t end = i + 1 < count ? rows[i + 1] >> shift : ST_UNICODE_CODES, value = rows[i] & ((1u << shift) - 1);

        if (value == 0)
            continue;
        for (uint32_t code = rows[i] >> shift; code < end; code++)
            out[code] |= flag != 0 ? flag : (uint8_t)value;
    }
}

static void spread_categories(uint8_t *out)
{
    uint32_t first, category, next, ignored;

    for (uint32_t i = 0; st_unicode_category_run(i, &first, &category); i++) {
        if (!st_unicode_category_run(i + 1, &next, &ignored))
            next = ST_UNICODE_CODES;
        for (uint32_t code = first; code < next; code++)
            out[code] |= flag_of_category(category);
    }
}

/* Whether NFC may join what stands before this character to it. */
static void mark_joining(uint8_t *nfc)
{
    for (size_t i = 0; i < COUNT(composition_rows); i += 3)
        nfc[composition_rows[i + 1]] |= ST_NFC_JOINS;
    for (uint32_t i = 0; i < V_COUNT; i++)
        nfc[V_BASE + i] |= ST_NFC_JOINS;
    for (uint32_t i = 1; i < T_COUNT; i++)
        nfc[T_BASE + i] |= ST_NFC_JOINS;
}

/* Mark characters with a decomposition: whether it composes again, and whether it begins with a mark. */
static void mark_changing(uint8_t *nfc)
{
    for (size_t i = 0; i < COUNT(decomposition_rows); i += 1 + (decomposition_rows[i] & 7)) {
        const uint32_t code = decomposition_rows[i] >> 3, first = decomposition_rows[i + 1];

        nfc[code] |= ST_NFC_CHANGES;
        if (nfc[first] != 0)
            nfc[code] |= ST_NFC_JOINS;
    }
    for (size_t i = 0; i < COUNT(composition_rows); i += 3)
        nfc[composition_rows[i + 2]] &= (uint8_t)~ST_NFC_CHANGES;
}

struct st_unicode *st_unicode_create(void)
{
    struct st_unicode *u = st_fault("tokenizer.alloc", 0) < 0 ? NULL : calloc(1, sizeof(*u));

    if (u == NULL)
        return NULL;
    spread_categories(u->flags);
    spread(u->flags, numeric_runs, COUNT(numeric_runs), 1, ST_UC_NUMERIC);
    spread(u->flags, word_runs, COUNT(word_runs), 1, ST_UC_WORD);
    spread(u->flags, space_runs, COUNT(space_runs), 1, ST_UC_SPACE);
    spread(u->nfc, mark_runs, COUNT(mark_runs), 8, 0);
    mark_joining(u->nfc);
    mark_changing(u->nfc);
    return u;
}

void st_unicode_destroy(struct st_unicode *u)
{
    free(u);
}

/* Where the rows of each 256th code point begin would cost more than this search saves: only what NFC changes comes here. */
static const uint32_t *find_decomposition(uint32_t code)
{
    for (size_t i = 0; i < COUNT(decomposition_rows); i += 1 + (decomposition_rows[i] & 7)) {
        if (decomposition_rows[i] >> 3 == code)
            return &decomposition_rows[i];
        if (decomposition_rows[i] >> 3 > code)
            break;
    }
    return NULL;
}

uint32_t st_unicode_decompose(uint32_t out[ST_DECOMPOSED_MAX], uint32_t code)
{
    const uint32_t *row, syllable = code - S_BASE;

    if (syllable < S_COUNT) {
        out[0] = L_BASE + syllable / (V_COUNT * T_COUNT);
        out[1] = V_BASE + syllable % (V_COUNT * T_COUNT) / T_COUNT;
        out[2] = T_BASE + syllable % T_COUNT;
        return syllable % T_COUNT == 0 ? 2 : 3;
    }
    row = find_decomposition(code);
    if (row == NULL) {
        out[0] = code;
        return 1;
    }
    assert((row[0] & 7) <= ST_DECOMPOSED_MAX);
    for (uint32_t i = 0; i < (row[0] & 7); i++)
        out[i] = row[1 + i];
    return row[0] & 7;
}

uint32_t st_unicode_compose(uint32_t first, uint32_t second)
{
    size_t low = 0, high = COUNT(composition_rows) / 3;

    if (first - L_BASE < L_COUNT && second - V_BASE < V_COUNT)
        return S_BASE + ((first - L_BASE) * V_COUNT + (second - V_BASE)) * T_COUNT;
    if (first - S_BASE < S_COUNT && (first - S_BASE) % T_COUNT == 0 && second - T_BASE - 1 < T_COUNT - 1)
        return first + (second - T_BASE);
    while (low < high) {
        const size_t middle = (low + high) / 2;
        const uint32_t *row = &composition_rows[3 * middle];

        if (row[0] == first && row[1] == second)
            return row[2];
        if (row[0] < first || (row[0] == first && row[1] < second))
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

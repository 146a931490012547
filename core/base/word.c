/* word.c - Levenshtein distance, one row at a time. */
#include "core/base/word.h"

#include "core/base/text.h"

#include <string.h>

#define WORD_MAX   64u
#define EDITS_MOST 3u

static uint32_t min3(uint32_t a, uint32_t b, uint32_t c)
{
    const uint32_t ab = a < b ? a : b;

    return ab < c ? ab : c;
}

uint32_t st_word_edits(const char *a, const char *b)
{
    const size_t a_length = strnlen(a, WORD_MAX), b_length = strnlen(b, WORD_MAX);
    uint32_t row[WORD_MAX + 1];

    for (uint32_t j = 0; j <= b_length; j++)
        row[j] = j;
    for (uint32_t i = 0; i < a_length; i++) {
        uint32_t diagonal = row[0];

        row[0] = i + 1;
        for (size_t j = 0; j < b_length; j++) {
            const uint32_t above = row[j + 1];
            const uint32_t change = st_text_lower(a[i]) != st_text_lower(b[j]);

            row[j + 1] = min3(above + 1, row[j] + 1, diagonal + change);
            diagonal = above;
        }
    }
    return row[b_length];
}

uint32_t st_word_edits_most(const char *word)
{
    const uint32_t half = (uint32_t)strnlen(word, WORD_MAX) / 2;

    return half < 1 ? 1 : half < EDITS_MOST ? half : EDITS_MOST;
}

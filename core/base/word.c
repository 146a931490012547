/* word.c - edits between words (optimal string alignment), of which three rows are kept. */
#include "core/base/word.h"

#include "core/base/text.h"

#include <stdbool.h>
#include <string.h>

#define WORD_MAX   64u
#define EDITS_MOST 3u

static uint32_t min3(uint32_t a, uint32_t b, uint32_t c)
{
    const uint32_t ab = a < b ? a : b;

    return ab < c ? ab : c;
}

static bool is_same(char a, char b)
{
    return st_text_lower(a) == st_text_lower(b);
}

uint32_t st_word_edits(const char *a, const char *b)
{
    const size_t a_length = strnlen(a, WORD_MAX), b_length = strnlen(b, WORD_MAX);
    uint32_t rows[3][WORD_MAX + 1]; /* row i, in rows[i % 3]: edits from the first i letters of a */

    for (uint32_t j = 0; j <= b_length; j++)
        rows[0][j] = j;
    for (uint32_t i = 1; i <= a_length; i++) {
        const uint32_t *before = rows[(i + 1) % 3], *above = rows[(i + 2) % 3];
        uint32_t *row = rows[i % 3];

        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            row[j] = min3(above[j] + 1, row[j - 1] + 1, above[j - 1] + !is_same(a[i - 1], b[j - 1]));
            if (i > 1 && j > 1 && is_same(a[i - 1], b[j - 2]) && is_same(a[i - 2], b[j - 1]) && before[j - 2] < row[j])
                row[j] = before[j - 2] + 1;
        }
    }
    return rows[a_length % 3][b_length];
}

uint32_t st_word_edits_most(const char *word)
{
    const uint32_t half = (uint32_t)strnlen(word, WORD_MAX) / 2;

    return half < 1 ? 1 : half < EDITS_MOST ? half : EDITS_MOST;
}

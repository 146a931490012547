/* tests/common/comma.c - see comma.h.
 *
 * glibc's form of a category: a mark, how many items there are, their offsets, the items.  Of numbers these are the decimal
 * point, the thousands' separator, the groups' sizes, the first two as wide characters, and the character set. */
#include "tests/common/comma.h"
#include "tests/common/scratch.h"

#include <locale.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MARK  (0x20031115u ^ (uint32_t)LC_NUMERIC)
#define ITEMS 6u

static bool has_comma;

static void write_category(void)
{
    const uint32_t first = (2 + ITEMS) * sizeof(uint32_t);
    const uint32_t words[2 + ITEMS] = {MARK, ITEMS, first, first + 2, first + 3, first + 8, first + 12, first + 16};
    char bytes[64] = {0};
    FILE *file;

    memcpy(bytes, words, sizeof(words));
    bytes[first] = bytes[first + 8] = ',';
    bytes[first + 3] = 0x7f; /* no groups */
    memcpy(bytes + first + 16, "UTF-8", 6);
    scratch_put("locale/comma/LC_NUMERIC", "");
    file = fopen(scratch_path("locale/comma/LC_NUMERIC"), "wb");
    if (file != NULL) {
        fwrite(bytes, first + 22, 1, file);
        fclose(file);
    }
}

int comma_begin(void **state)
{
    char text[8];

    if (scratch_create(state) != 0)
        return -1;
    write_category();
    setenv("LOCPATH", scratch_path("locale"), 1);
    (void)setlocale(LC_NUMERIC, "comma");
    snprintf(text, sizeof(text), "%.1f", 0.5);
    has_comma = strcmp(text, "0,5") == 0;
    return has_comma ? 0 : -1;
}

int comma_end(void **state)
{
    setlocale(LC_NUMERIC, "C");
    unsetenv("LOCPATH");
    return scratch_remove(state);
}

int comma_result(int failed)
{
    if (has_comma)
        return failed;
    printf("skipped: this C library takes its locales from elsewhere\n");
    return 77;
}

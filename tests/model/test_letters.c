/* tests/model/test_letters.c - capital and small letters in a program whose locale is Turkish, where I is no capital i.
 *
 * No such locale has to be installed: this program has the C library's tables of it in place of the library's own. */
#include "core/base/size.h"
#include "core/system/path.h"
#include "tests/common/renders.h"
#include "tests/common/test.h"

#include <ctype.h>

#define BELOW 128 /* the tables begin at -128 */

static __int32_t small[BELOW + 256], capital[BELOW + 256];

static const __int32_t **table_of(const __int32_t *table)
{
    static const __int32_t *at[2];
    const int i = table == capital;

    for (int c = -BELOW; c < 256; c++) {
        small[BELOW + c] = c >= 'A' && c <= 'Z' && c != 'I' ? c - 'A' + 'a' : c;
        capital[BELOW + c] = c >= 'a' && c <= 'z' && c != 'i' ? c - 'a' + 'A' : c;
    }
    at[i] = table + BELOW;
    return &at[i];
}

const __int32_t **__ctype_tolower_loc(void)
{
    return table_of(small);
}

const __int32_t **__ctype_toupper_loc(void)
{
    return table_of(capital);
}

TEST(a_template_changes_case_as_python)
{
    assert_renders_alone("{{ 'info' | upper }} {{ 'INFO' | lower }} {{ 'in it' | title }} {{ 'iI'.upper() }}",
                         "INFO info In It II");
}

TEST(names_are_the_same_in_any_case)
{
    uint64_t bytes = 0;

    assert_int_equal(st_size_parse("2GIB", &bytes), 0);
    assert_true(bytes == UINT64_C(2) << 30);
    assert_true(st_path_ends("book.BIN", ".bin"));
    assert_false(st_path_ends("book.BIN", ".ban"));
}

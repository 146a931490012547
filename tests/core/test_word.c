/* Edits between words. */
#include "core/base/word.h"
#include "tests/common/test.h"

TEST(edits_are_counted)
{
    static const struct {
        const char *a, *b;
        uint32_t edits;
    } rows[] = {{"", "", 0},       {"", "abc", 3},      {"plan", "plan", 0}, {"max-stepz", "max-steps", 1},
                {"sqe", "seq", 1}, {"sep", "steps", 2}, {"Plan", "pLAN", 0}, {"plan", "train", 3},
                {"steps", "s", 4}, {"3900", "3090", 1}, {"Ab", "ba", 1},      {"abc", "ca", 3}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(st_word_edits(rows[i].a, rows[i].b), rows[i].edits);
        assert_int_equal(st_word_edits(rows[i].b, rows[i].a), rows[i].edits);
    }
}

#define TEN   "abcdefghij"
#define SIXTY TEN TEN TEN TEN TEN TEN

TEST(what_is_long_is_cut)
{
    assert_int_equal(st_word_edits(SIXTY "1234", SIXTY "4321"), 3);
    assert_int_equal(st_word_edits(SIXTY "1234" TEN, SIXTY "1234"), 0);
    assert_int_equal(st_word_edits(SIXTY SIXTY, ""), 64);
}

TEST(short_words_are_near_to_few)
{
    assert_int_equal(st_word_edits_most(""), 1);
    assert_int_equal(st_word_edits_most("foo"), 1);
    assert_int_equal(st_word_edits_most("trian"), 2);
    assert_int_equal(st_word_edits_most("frobnicate"), 3);
}

/* tests/text/test_tokenizer_pattern.c - hand-written scanners against the same pattern as a regular expression, on the texts of
 * the golden files, on every pair of kinds of characters, and cut at every place. */
#include "core/base/text.h"
#include "tests/common/heap_use.h"
#include "tests/common/scratch.h"
#include "tests/text/text_fixture.h"
#include "text/tokenizer/tokenizer.h"

#include <stdio.h>

static const char *const patterns[] = {
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\\\p{L}+| ?\\\\p{N}+| ?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+(?!\\\\S)|\\\\s+",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| "
    "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|"
    "\\\\s+(?!\\\\S)|\\\\s+",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| "
    "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|"
    "\\\\s+(?!\\\\S)|\\\\s+",
};

/* One of each kind that the patterns tell apart. */
static const char *const kinds[] = {" ",      "  ", "\n",     "\r\n",   "\t",         "\u00a0", "a",     "Zz",  "\u00e9",
                                    "\u4e2d", "1",  "22",     "\u0663", "\u00bd",     "'",      "'s",    "'LL", "'\u017f",
                                    "!",      "?!", "\u0301", "_",      "\U0001f600", "\u200d", "\u3000"};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

/* Every word begins with a bar, and bytes are tokens: so ids show where words begin. */
static char *tokenizer_text(const char *pattern, bool wrapped)
{
    static const char front[] =
        "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"";
    static const char middle[] =
        "\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"Metaspace\",\"replacement\":\"|\","
        "\"prepend_scheme\":\"always\",\"split\":false}]},\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,"
        "\"vocab\":{\"|\":0";
    char *text = malloc(32768), *to = text;

    assert_non_null(text);
    to += sprintf(to, "%s%s%s%s%s", front, wrapped ? "(?:" : "", pattern, wrapped ? ")" : "", middle);
    for (unsigned byte = 0; byte < 256; byte++)
        to += sprintf(to, ",\"<0x%02X>\":%u", byte, byte + 1);
    sprintf(to, "},\"merges\":[]}}");
    return text;
}

struct pair {
    struct st_tokenizer *t[2];
    struct st_encoder *e[2];
};

static void open_pair(struct pair *p, const char *pattern)
{
    for (unsigned i = 0; i < 2; i++) {
        char *text = tokenizer_text(pattern, i == 1);

        scratch_put("tokenizer.json", text);
        assert_ok(st_tokenizer_open(&p->t[i], scratch_dir));
        assert_ok(st_encoder_create(&p->e[i], p->t[i]));
        free(text);
    }
}

static void close_pair(struct pair *p)
{
    for (unsigned i = 0; i < 2; i++) {
        st_encoder_destroy(p->e[i]);
        st_tokenizer_close(p->t[i]);
    }
}

static void check_text(struct pair *p, const char *text, size_t bytes)
{
    struct st_encoding out[2] = {{0}};

    for (unsigned i = 0; i < 2; i++)
        assert_ok(st_encode(p->e[i], text, bytes, NULL, &out[i]));
    if (out[0].count != out[1].count || (bytes > 0 && memcmp(out[0].ids, out[1].ids, out[0].count * sizeof(uint32_t)) != 0))
        fail_msg("the scanner cuts \"%.*s\" otherwise", (int)bytes, text);
    for (unsigned i = 0; i < 2; i++)
        st_encoding_free(&out[i]);
}

TEST(test_scanners_cut_as_their_patterns)
{
    char text[128];

    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        struct pair p;

        open_pair(&p, patterns[i]);
        for (size_t a = 0; a < KINDS; a++)
            for (size_t b = 0; b < KINDS; b++)
                for (size_t c = 0; c < KINDS; c++) {
                    const int bytes =
                        snprintf(text, sizeof(text), "%s%s%s%s", kinds[a], kinds[b], kinds[c], kinds[(a + b + c) % KINDS]);

                    check_text(&p, text, (size_t)bytes);
                }
        close_pair(&p);
    }
}

/* Every character up to the ideographic space, beside letters, signs and spaces: among them all that are white space. */
TEST(test_scanners_know_each_character)
{
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        struct pair p;

        open_pair(&p, patterns[i]);
        for (uint32_t code = 1; code <= 0x3001; code++) {
            char one[5] = "", text[32];

            one[st_text_utf8_put(one, code)] = '\0';
            snprintf(text, sizeof(text), "%sa%s!%s \n%s", one, one, one, one);
            check_text(&p, text, strlen(text));
        }
        close_pair(&p);
    }
}

/* Outside a class \w is more than inside: the pieces of each pattern, their first bytes marked. */
TEST(test_word_characters_are_the_references)
{
    static const struct {
        const char *pattern;
        size_t words;
    } rows[] = {{"\\\\w", 5}, {"[\\\\w]", 4}, {"\\\\W", 4}}; /* of "!", one half, "a", "a", "!" and one third */

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        static const char subject[] = "!\u00bdaa!\u2153";
        char *text = tokenizer_text(rows[i].pattern, false);
        struct st_encoding out = {0};
        struct st_tokenizer *t;
        struct st_encoder *e;
        size_t words = 0;

        scratch_put("tokenizer.json", text);
        assert_ok(st_tokenizer_open(&t, scratch_dir));
        assert_ok(st_encoder_create(&e, t));
        assert_ok(st_encode(e, subject, sizeof(subject) - 1, NULL, &out));
        for (size_t k = 0; k < out.count; k++)
            words += out.ids[k] == 0;
        assert_int_equal(words, rows[i].words);
        st_encoder_destroy(e);
        st_tokenizer_close(t);
        st_encoding_free(&out);
        free(text);
    }
}

/* What the two libraries read differently is refused by its name, and its nearest neighbours are not. */
TEST(test_patterns_of_another_meaning_are_refused)
{
    static const struct {
        const char *pattern, *why; /* why: NULL: taken */
    } rows[] = {
        {"\\\\p", "\\p without {...}"},
        {"\\\\pL", "\\p without {...}"},
        {"\\\\p{Han}", "must be a general category"},
        {"\\\\p{Xx}", "must be a general category"},
        {"\\\\p{Cs}", "must be a general category"},
        {"\\\\p{^Lu}", NULL},
        {"a\\\\", "a backslash at the end"},
        {"\\\\q", "an escape other than"},
        {"\\\\b", "an escape other than"},
        {"[]", "an empty class"},
        {"[^]a]", "an empty class"},
        {"[\\\\]a]", NULL},
        {"[a[b]]", "a class within a class"},
        {"[a&&b]", "a class within a class"},
        {"[a&b&]", NULL},
        {"[a-\\\\d]", "a range from or to a set"},
        {"[\\\\d-a]", "a range from or to a set"},
        {"[a\\\\-\\\\d]", NULL},
        {"[\\\\d\\\\s]", NULL},
        {"[a-c-]", NULL},
        {"[ab", "a class without its ]"},
        {"(?i:[a])", "more than letters and signs"},
        {"(?i:a.)", "more than letters and signs"},
        {"(?i:xSs)", "with ss, st, ff, fi or fl"},
        {"(?i:'s|'t)", NULL},
        {"(?i:s's)", NULL},
        {"(*UTF)a", "(*...)"},
        {"(?P<n>a)", "a group other than"},
        {"(?#a)", "a group other than"},
        {"(?<=a)b(?!c)(?>d)", NULL},
        {"^a", "^ and $"},
        {"a$", "^ and $"},
        {"a{,3}", "{,m}"},
        {"a{0,3}", NULL},
        {"a{1,2}+", "{n,m}+"},
        {"a++", NULL},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char *text = tokenizer_text(rows[i].pattern, false);
        struct st_tokenizer *t = NULL;
        strata_status st;

        scratch_put("tokenizer.json", text);
        st = st_tokenizer_open(&t, scratch_dir);
        if ((st == STRATA_OK) != (rows[i].why == NULL) || (st != STRATA_OK && strstr(strata_last_error(), rows[i].why) == NULL))
            fail_msg("%s: %s", rows[i].pattern, st == STRATA_OK ? "is taken" : strata_last_error());
        if (st == STRATA_OK)
            st_tokenizer_close(t);
        free(text);
    }
}

/* A pattern that searches for ever ends with a sentence. */
TEST(test_a_hostile_pattern_gives_up)
{
    char *text = tokenizer_text("(a+)+cx", false), subject[64];
    struct st_encoding out = {0};
    struct st_tokenizer *t;
    struct st_encoder *e;

    scratch_put("tokenizer.json", text);
    assert_ok(st_tokenizer_open(&t, scratch_dir));
    assert_ok(st_encoder_create(&e, t));
    memset(subject, 'a', sizeof(subject));
    memcpy(subject + 61, "cyx", 3);
    assert_refused(st_encode(e, subject, sizeof(subject), NULL, &out), STRATA_E_INPUT, "gave up on a text: match limit exceeded");
    st_encoder_destroy(e);
    st_tokenizer_close(t);
    st_encoding_free(&out);
    free(text);
}

static void open_and_close(void *text)
{
    struct pair p;

    open_pair(&p, text);
    close_pair(&p);
}

/* The library that compiles patterns takes memory of its own. */
TEST(test_tokenizers_that_are_closed_take_no_memory)
{
    enum { TIMES = 16 };
    char text[] = "'s|\\\\p{L}+";

    assert_true(heap_growth(open_and_close, text, TIMES) < TIMES * 64);
}

TEST_GROUP(scratch_create, scratch_remove);

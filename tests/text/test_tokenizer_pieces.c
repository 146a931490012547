/* tests/text/test_tokenizer_pieces.c - what the parts of a tokenizer make of a text, shown by a vocabulary of bytes: the pieces
 * of patterns as the reference library (tokenizers 0.23) cuts them, composed Hangul, tokens that stand for bytes, unknown
 * characters. */
#include "core/base/text.h"
#include "text/tokenizer/tokenizer.h"
#include "tests/text/text_fixture.h"
#include "tests/common/scratch.h"

#include <stdio.h>

static void put_bytes(char **to)
{
    for (unsigned byte = 0; byte < 256; byte++)
        *to += sprintf(*to, ",\"<0x%02X>\":%u", byte, byte + 1);
}

/* A text as this encoder leaves it: id 0 is a bar, the others are bytes. */
static void text_of(char *out, struct st_encoder *e, const char *text, size_t bytes)
{
    struct st_encoding ids = {0};

    assert_ok(st_encode(e, text, bytes, NULL, &ids));
    assert_true(ids.count < 256);
    for (size_t i = 0; i < ids.count; i++)
        out[i] = ids.ids[i] == 0 ? '|' : (char)(ids.ids[i] - 1);
    out[ids.count] = '\0';
    st_encoding_free(&ids);
}

/* Tokens of bytes, and a bar in front of each piece that a part makes. */
static void open_part(struct st_tokenizer **t, struct st_encoder **e, const char *part)
{
    char *text = malloc(32768), *to = text;

    assert_non_null(text);
    to +=
        sprintf(to,
                "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[%s,{\"type\":\"Metaspace\",\"replacement\":\"|\","
                "\"prepend_scheme\":\"always\",\"split\":false}]},\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{"
                "\"|\":0",
                part);
    put_bytes(&to);
    sprintf(to, "},\"merges\":[]}}");
    scratch_put("tokenizer.json", text);
    free(text);
    assert_ok(st_tokenizer_open(t, scratch_dir));
    assert_ok(st_encoder_create(e, *t));
}

static void open_split(struct st_tokenizer **t, struct st_encoder **e, const char *pattern, const char *behavior, bool invert)
{
    char part[1024];

    snprintf(part, sizeof(part), "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":\"%s\",\"invert\":%s}", pattern,
             behavior, invert ? "true" : "false");
    open_part(t, e, part);
}

/* Characters as long as the delimiter are none. */
TEST(parts_cut_at_their_own_characters)
{
    static const struct {
        const char *part, *text, *pieces;
    } rows[] = {
        {"{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"always\",\"split\":true}", "ab c__d",
         "|_ab|_c|_|_d"},
        {"{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"never\",\"split\":true}", "ab c", "|ab|_c"},
        {"{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"always\",\"split\":false}", "ab c", "|_ab_c"},
        {"{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"never\",\"split\":true}",
         "\xe6\x97\xa5\xe6\x97\xa5 a",
         "|\xe6\x97\xa5\xe6\x97\xa5|\xe2\x96\x81"
         "a"},
        {"{\"type\":\"Digits\",\"individual_digits\":true}", "a12b3", "|a|1|2|b|3"},
        {"{\"type\":\"Digits\",\"individual_digits\":false}", "a12b3", "|a|12|b|3"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_tokenizer *t;
        struct st_encoder *e;
        char pieces[256];

        open_part(&t, &e, rows[i].part);
        text_of(pieces, e, rows[i].text, strlen(rows[i].text));
        assert_string_equal(pieces, rows[i].pieces);
        st_encoder_destroy(e);
        st_tokenizer_close(t);
    }
}

static const struct {
    const char *pattern, *behavior;
    bool invert;
    const char *text, *pieces;
} splits[] = {
    {".", "Isolated", false, "a\nb\xc3\xa9\r\n", "|a|\n|b|\xc3\xa9|\r|\n"},
    {".+", "Isolated", false, "ab\ncd\n\n", "|ab|\n|cd|\n\n"},
    {"\\\\v", "Isolated", false,
     "a\x0b"
     "b\x0c"
     "c\nd",
     "|a|\x0b|b\x0c"
     "c\nd"},
    {"[\\\\v]", "Isolated", false,
     "a\x0b"
     "b\x0c"
     "c",
     "|a|\x0b|b\x0c"
     "c"},
    {"a*", "Isolated", false, "aab", "|aa|b"},
    {"a*", "Isolated", false,
     "\xc3\xa9\xe6\x97\xa5"
     "a",
     "|\xc3\xa9|\xe6\x97\xa5|a"},
    {"x?", "Isolated", false, "abx", "|a|b|x"},
    {"(?=b)", "Isolated", false, "abab", "|a|ba|b"},
    {"a|(?=b)", "Isolated", false, "aab", "|a|a|b"},
    {"b*", "Isolated", false, "abba\xe6\x97\xa5", "|a|bb|a|\xe6\x97\xa5"},
    {"\\\\s*", "Isolated", false, "a\n\nb", "|a|\n\n|b"},
    {"(?!a)", "Isolated", false, "aba", "|a|ba"},
    {"(?i:ab)", "Isolated", false, "aBAb", "|aB|Ab"},
    {"\\\\w*", "Isolated", false, "ab!cd", "|ab|!|cd"},
    {"\\\\w+", "Isolated", false, "\u4e8c\u3007\u2163\u24b6!\u2460", "|\u4e8c\u3007\u2163\u24b6|!\u2460"},
    {"[\\\\W]+", "Isolated", false, "\u4e8c\u3007\u2163\u24b6!\u2460", "|\u4e8c\u3007\u2163\u24b6|!\u2460"},
    {"[^\\\\w]+", "Isolated", false, "\U0001f170\u3007!\u2460", "|\U0001f170\u3007|!\u2460"},
    {"\\\\d{1,3}", "Isolated", false, "12345", "|123|45"},
    {"(?<=a)", "Isolated", false, "aab", "|a|a|b"},
    {"a+", "Removed", false, "baacaad", "|b|c|d"},
    {"a*", "Removed", false,
     "baac\xe6\x97\xa5"
     "d",
     "|b|c|\xe6\x97\xa5|d"},
    {"b", "Removed", false, "abbcb", "|a|c"},
    {"a+", "Isolated", false, "baacaad", "|b|aa|c|aa|d"},
    {"a*", "Isolated", false,
     "baac\xe6\x97\xa5"
     "d",
     "|b|aa|c|\xe6\x97\xa5|d"},
    {"b", "Isolated", false, "abbcb", "|a|b|b|c|b"},
    {"a+", "MergedWithPrevious", false, "baacaad", "|baa|caa|d"},
    {"a*", "MergedWithPrevious", false,
     "baac\xe6\x97\xa5"
     "d",
     "|baa|c|\xe6\x97\xa5|d"},
    {"b", "MergedWithPrevious", false, "abbcb", "|ab|b|cb"},
    {"a+", "MergedWithNext", false, "baacaad", "|b|aac|aad"},
    {"a*", "MergedWithNext", false,
     "baac\xe6\x97\xa5"
     "d",
     "|b|aac|\xe6\x97\xa5|d"},
    {"b", "MergedWithNext", false, "abbcb", "|a|b|bc|b"},
    {"a+", "Contiguous", false, "baacaad", "|b|aa|c|aa|d"},
    {"a*", "Contiguous", false,
     "baac\xe6\x97\xa5"
     "d",
     "|b|aa|c|\xe6\x97\xa5|d"},
    {"b", "Contiguous", false, "abbcb", "|a|bb|c|b"},
    {"a+", "Removed", true, "baacaad", "|aa|aa"},
    {"a*", "Removed", true,
     "baac\xe6\x97\xa5"
     "d",
     "|aa"},
    {"b", "Removed", true, "abbcb", "|b|b|b"},
    {"a+", "Isolated", true, "baacaad", "|b|aa|c|aa|d"},
    {"a*", "Isolated", true,
     "baac\xe6\x97\xa5"
     "d",
     "|b|aa|c|\xe6\x97\xa5|d"},
    {"b", "Isolated", true, "abbcb", "|a|b|b|c|b"},
    {"a+", "MergedWithPrevious", true, "baacaad", "|b|aac|aad"},
    {"a*", "MergedWithPrevious", true,
     "baac\xe6\x97\xa5"
     "d",
     "|b|aac|\xe6\x97\xa5|d"},
    {"b", "MergedWithPrevious", true, "abbcb", "|a|b|bc|b"},
    {"a+", "MergedWithNext", true, "baacaad", "|baa|caa|d"},
    {"a*", "MergedWithNext", true,
     "baac\xe6\x97\xa5"
     "d",
     "|baa|c|\xe6\x97\xa5|d"},
    {"b", "MergedWithNext", true, "abbcb", "|ab|b|cb"},
    {"a+", "Contiguous", true, "baacaad", "|b|aa|c|aa|d"},
    {"a*", "Contiguous", true,
     "baac\xe6\x97\xa5"
     "d",
     "|b|aa|c|\xe6\x97\xa5|d"},
    {"b", "Contiguous", true, "abbcb", "|a|bb|c|b"},
};

/* Matches with nothing in them, and every way to keep what is matched or what is not. */
TEST(test_pieces_are_the_references)
{
    for (size_t i = 0; i < sizeof(splits) / sizeof(splits[0]); i++) {
        struct st_tokenizer *t;
        struct st_encoder *e;
        char pieces[256];

        open_split(&t, &e, splits[i].pattern, splits[i].behavior, splits[i].invert);
        text_of(pieces, e, splits[i].text, strlen(splits[i].text));
        if (strcmp(pieces, splits[i].pieces) != 0)
            fail_msg("%s, %s%s, of \"%s\": %s, not %s", splits[i].pattern, splits[i].behavior,
                     splits[i].invert ? " inverted" : "", splits[i].text, pieces, splits[i].pieces);
        st_encoder_destroy(e);
        st_tokenizer_close(t);
    }
}

/* --- Hangul: what is composed by a rule, not by a table --- */

static void check_nfc(struct st_encoder *e, const uint32_t *codes, uint32_t count, const uint32_t *wanted, uint32_t wanted_count)
{
    char text[64], want[64], got[256];
    size_t bytes = 0, want_bytes = 0;

    for (uint32_t i = 0; i < count; i++)
        bytes += st_text_utf8_put(text + bytes, codes[i]);
    for (uint32_t i = 0; i < wanted_count; i++)
        want_bytes += st_text_utf8_put(want + want_bytes, wanted[i]);
    want[want_bytes] = '\0';
    text_of(got, e, text, bytes);
    if (strcmp(got, want) != 0)
        fail_msg("U+%04X U+%04X ...: %s, not %s", (unsigned)codes[0], (unsigned)codes[1], got, want);
}

/* Every syllable out of its two or three letters, and out of a syllable and its last letter; nothing joins a whole one. */
TEST(test_hangul_is_composed)
{
    char *text = malloc(32768), *to = text;
    struct st_tokenizer *t;
    struct st_encoder *e;

    assert_non_null(text);
    to += sprintf(to, "{\"normalizer\":{\"type\":\"NFC\"},\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{\"|\":0");
    put_bytes(&to);
    sprintf(to, "},\"merges\":[]}}");
    scratch_put("tokenizer.json", text);
    free(text);
    assert_ok(st_tokenizer_open(&t, scratch_dir));
    assert_ok(st_encoder_create(&e, t));
    for (uint32_t i = 0; i < 11172; i++) {
        const uint32_t first = 0x1100 + i / 588, middle = 0x1161 + i % 588 / 28, last = 0x11a7 + i % 28, whole = 0xac00 + i,
                       open = whole - i % 28, mark = 0x301;

        check_nfc(e, (const uint32_t[]){first, middle, last, mark}, i % 28 == 0 ? 2 : 4, (const uint32_t[]){whole, mark},
                  i % 28 == 0 ? 1 : 2);
        if (i % 28 != 0)
            check_nfc(e, (const uint32_t[]){open, last, first}, 3, (const uint32_t[]){whole, first}, 2);
        check_nfc(e, (const uint32_t[]){whole, mark, 0x11a8}, 3, (const uint32_t[]){whole, mark, 0x11a8}, 3);
        check_nfc(e, (const uint32_t[]){whole, 0x11a7, middle}, 3, (const uint32_t[]){whole, 0x11a7, middle}, 3);
    }
    st_encoder_destroy(e);
    st_tokenizer_close(t);
}

/* --- tokens that stand for a byte --- */

/* As Rust's from_str_radix reads the two digits, a plus sign among them. */
TEST(test_byte_tokens_are_the_references)
{
    static const struct {
        const char *token, *text;
    } rows[] = {{"<0x0A>", "\n"},     {"<0x0a>", "\n"},     {"<0x7e>", "~"},      {"<0x+A>", "\n"},     {"<0x+1>", "\x01"},
                {"<0x-1>", "<0x-1>"}, {"<0xG0>", "<0xG0>"}, {"<0x++>", "<0x++>"}, {"<0x4>", "<0x4>"},   {"<0x041>", "<0x041>"},
                {"<0X41>", "<0X41>"}, {"<0x41", "<0x41"},   {"<0x+G>", "<0x+G>"}, {"<0x4+>", "<0x4+>"}, {"<0x 4>", "<0x 4>"}};

    for (uint32_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const uint32_t ids[] = {0, 1, 0};
        struct st_decoded out = {0};
        struct st_tokenizer *t;
        char text[256], want[64];

        snprintf(text, sizeof(text),
                 "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"%s\":1},\"merges\":[]},\"decoder\":{\"type\":\"Sequence\","
                 "\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]}}",
                 rows[i].token);
        snprintf(want, sizeof(want), "a%sa", rows[i].text);
        scratch_put("tokenizer.json", text);
        assert_ok(st_tokenizer_open(&t, scratch_dir));
        assert_ok(st_decode(t, ids, 3, false, &out));
        if (out.count != strlen(want) || memcmp(out.bytes, want, out.count) != 0)
            fail_msg("%s is decoded to \"%.*s\"", rows[i].token, (int)out.count, out.bytes);
        st_decoded_free(&out);
        st_tokenizer_close(t);
    }
}

/* Unknown characters side by side are one token where fuse_unk says so, a token each where it does not; what each stands for lies
 * where it lies in the text. */
TEST(test_unknown_characters)
{
    static const char subject[] = "xa\u00e9\u65e5a!";
    static const struct {
        const char *fuse;
        uint32_t count, ids[6], begins[6], ends[6];
    } rows[] = {{"false", 6, {1, 0, 1, 1, 0, 1}, {0, 1, 2, 4, 7, 8}, {1, 2, 4, 7, 8, 9}},
                {"true", 5, {1, 0, 1, 0, 1}, {0, 1, 2, 7, 8}, {1, 2, 7, 8, 9}}};

    for (uint32_t i = 0; i < 2; i++) {
        struct st_encoding out = {0};
        struct st_tokenizer *t;
        struct st_encoder *e;
        char text[256];

        snprintf(text, sizeof(text),
                 "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"?\":1},\"merges\":[],\"unk_token\":\"?\",\"fuse_unk\":%s}}",
                 rows[i].fuse);
        scratch_put("tokenizer.json", text);
        assert_ok(st_tokenizer_open(&t, scratch_dir));
        assert_ok(st_encoder_create(&e, t));
        assert_ok(st_encode(e, subject, sizeof(subject) - 1, NULL, &out));
        assert_int_equal(out.count, rows[i].count);
        for (uint32_t k = 0; k < rows[i].count; k++) {
            assert_int_equal(out.ids[k], rows[i].ids[k]);
            assert_int_equal(out.begins[k], rows[i].begins[k]);
            assert_int_equal(out.ends[k], rows[i].ends[k]);
        }
        st_encoding_free(&out);
        st_encoder_destroy(e);
        st_tokenizer_close(t);
    }
}

/* Ids of a text with a tokenizer.json, as "1 2 3". */
static void check_ids(const char *file, const char *text, const char *want)
{
    struct st_encoding out = {0};
    struct st_tokenizer *t;
    struct st_encoder *e;
    char ids[256] = "";

    scratch_put("tokenizer.json", file);
    assert_ok(st_tokenizer_open(&t, scratch_dir));
    assert_ok(st_encoder_create(&e, t));
    assert_ok(st_encode(e, text, strlen(text), NULL, &out));
    for (size_t i = 0; i < out.count && i < 40; i++)
        sprintf(ids + strlen(ids), "%s%u", i > 0 ? " " : "", out.ids[i]);
    assert_string_equal(ids, want);
    st_encoding_free(&out);
    st_encoder_destroy(e);
    st_tokenizer_close(t);
}

/* Bytes of ByteLevel that the vocabulary lacks: as above, and left out where no token is the unknown one. */
TEST(test_unknown_bytes)
{
    static const char file[] = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"?\":1,\"\\u0120\":2,\"a?\":3,\"\\u0120a\":4},"
                               "\"merges\":[\"a ?\",\"\\u0120 a\"]%s},"
                               "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}}";
    static const struct {
        const char *keys, *ids;
    } rows[] = {{",\"unk_token\":\"?\",\"fuse_unk\":false", "3 1 1 2 3 2"},
                {",\"unk_token\":\"?\",\"fuse_unk\":true", "3 2 3 2"},
                {"", "0 4 2"},
                {",\"unk_token\":\"?\",\"ignore_merges\":true", "3 1 1 2 3 2"}};
    char text[512];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        snprintf(text, sizeof(text), file, rows[i].keys);
        check_ids(text, "axyz a! ", rows[i].ids);
    }
}

/* A piece that is a token is that token, whatever its merges; a part of a piece is not. */
TEST(test_whole_tokens_are_whole_pieces)
{
    static const char file[] = "{\"model\":{\"type\":\"BPE\",\"ignore_merges\":%s,\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"a\":1,"
                               "\"b\":2,\"c\":3,\"abc\":4,\"ab\":5},"
                               "\"merges\":[\"a b\"]},\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\" "
                               "\"},\"behavior\":\"Removed\",\"invert\":false}}";
    char text[512];

    snprintf(text, sizeof(text), file, "true");
    check_ids(text, "abc cabc abc ab abca", "4 3 5 3 4 5 5 3 1");
    snprintf(text, sizeof(text), file, "false");
    check_ids(text, "abc cabc abc ab abca", "5 3 3 5 3 5 3 5 5 3 1");
}

/* What stands behind an added token that is found in the normalized text, where two parts of the pre-tokenizer write texts. */
TEST(test_a_normalized_text_outlives_its_first_part)
{
    static const char file[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"_\":3,\"\\u0120\":4,\"d\":5},\"merges\":[]},"
        "\"added_tokens\":[{\"id\":6,\"content\":\"<\",\"normalized\":true}],"
        "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"x\"},\"content\":\"d\"},"
        "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Metaspace\",\"replacement\":\"_\","
        "\"prepend_scheme\":\"always\",\"split\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}]}"
        "}";

    check_ids(file, "xabc<bab<bx", "4 3 5 0 1 2 6 4 3 1 0 1 6 4 3 1 5");
}

/* "first" is what the reference takes for the first: a text that begins with the replacement of several characters has none. */
TEST(test_the_first_piece_of_a_replaced_text)
{
    static const char file[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"_\":2,\"x\":3,\"y\":4},\"merges\":[]},"
        "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"b+\"},\"content\":\"xy\"},"
        "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"first\",\"split\":false}}";

    check_ids(file, "aa", "2 0 0");
    check_ids(file, "ba", "2 3 4 0");
    check_ids(file, "bba", "3 4 0");
    check_ids(file, "abba", "2 0 3 4 0");
}

/* Patterns that are written out by hand replace as others do. */
TEST(test_known_patterns_replace)
{
    static const char file[] = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"_\":2},\"merges\":[]},\"normalizer\":{"
                               "\"type\":\"Replace\",\"pattern\":{\"Regex\":"
                               "\"'s|'t|'re|'ve|'m|'ll|'d| ?\\\\p{L}+| ?\\\\p{N}+| "
                               "?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"content\":\"_\"}}";

    check_ids(file, "ab ba1", "2 2 2");
}

/* Steps that look at whole tokens, behind one that hands on a token in parts. */
TEST(test_decoders_see_whole_tokens)
{
    static const char strip[] = "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}",
                      bytes[] = "{\"type\":\"ByteFallback\"}",
                      bar[] = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"_\"},\"content\":\" \"}",
                      two[] = "{\"type\":\"Replace\",\"pattern\":{\"String\":\" a\"},\"content\":\"A\"}",
                      level[] = "{\"type\":\"ByteLevel\"}";
    static const struct {
        const char *steps[3], *text;
    } rows[] = {{{strip, bytes},
                 "\xc3\xa9__a_b\xc3\xa9"
                 "a"},
                {{bar, two},
                 "<0xC3><0xA9> A b\xc3\xa9"
                 "a"},
                {{bar, bytes, strip},
                 "\xc3\xa9 ab\xc3\xa9"
                 "a"},
                {{strip, level},
                 "<0xC3><0xA9>__a_b\xef\xbf\xbd"
                 "a"}};
    static const uint32_t ids[] = {0, 1, 2, 3, 4};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_decoded out = {0};
        struct st_tokenizer *t;
        char text[1024];
        size_t at = (size_t)snprintf(
            text, sizeof(text),
            "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"<0xC3>\":0,\"<0xA9>\":1,\"__a\":2,\"_b\":3,\"\\u00e9a\":4},\"merges\":[]},"
            "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[");

        for (size_t k = 0; k < 3 && rows[i].steps[k] != NULL; k++)
            at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s", k > 0 ? "," : "", rows[i].steps[k]);
        snprintf(text + at, sizeof(text) - at, "]}}");
        scratch_put("tokenizer.json", text);
        assert_ok(st_tokenizer_open(&t, scratch_dir));
        assert_ok(st_decode(t, ids, 5, false, &out));
        assert_int_equal(out.count, strlen(rows[i].text));
        assert_memory_equal(out.bytes, rows[i].text, out.count);
        st_decoded_free(&out);
        st_tokenizer_close(t);
    }
}

/* The first token of each text, not of the first text alone, loses what stands for the space before it. */
TEST(test_each_text_has_a_first_token)
{
    static const uint32_t ids[] = {0, 0};
    struct st_decoded out = {0};
    struct st_tokenizer *t;
    struct st_decoder *d;

    scratch_put("tokenizer.json", "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"_b\":0},\"merges\":[]},"
                                  "\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"always\"}}");
    assert_ok(st_tokenizer_open(&t, scratch_dir));
    assert_ok(st_decoder_create(&d, t, false));
    for (int text = 0; text < 2; text++) {
        out.count = 0;
        for (size_t i = 0; i < 2; i++)
            assert_ok(st_decoder_push(d, ids[i], &out));
        assert_ok(st_decoder_finish(d, &out));
        assert_int_equal(out.count, 3);
        assert_memory_equal(out.bytes, "b b", 3);
    }
    st_decoded_free(&out);
    st_decoder_destroy(d);
    st_tokenizer_close(t);
}

TEST_GROUP(scratch_create, scratch_remove);

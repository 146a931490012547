/* tests/text/test_tokenizer.c - ids and texts as the reference library gives them (tests/golden/tokenizers), whole and in parts.
 *
 * The shapes are those of known models' files, with small vocabularies; tools/make_golden_tokenizers.py made them and the hashes.
 */
#include "core/base/rng.h"
#include "core/json/json.h"
#include "text/tokenizer/encode_internal.h"
#include "text/tokenizer/tokenizer.h"
#include "tests/text/text_fixture.h"
#include "tests/common/lost_memory.h"
#include "tests/common/whole_file.h"

#define GOLDEN "tests/golden/tokenizers"

static const char *const shapes[] = {"gpt2",    "llama2", "llama3",  "qwen2",   "smollm",       "phi3",
                                     "mistral", "gemma",  "corners", "gpt_oss", "sentencepiece"};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

struct golden {
    st_json *root;
    const char *texts[64];
    uint32_t count; /* the last text is every character */
    char *every;
};

static size_t put_code(char *out, uint32_t code)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 63));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xe0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 63));
        out[2] = (char)(0x80 | (code & 63));
        return 3;
    }
    out[0] = (char)(0xf0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 63));
    out[2] = (char)(0x80 | (code >> 6 & 63));
    out[3] = (char)(0x80 | (code & 63));
    return 4;
}

/* every_character() of tools/make_golden_tokenizers.py; it begins with a NUL. */
static size_t every_character(char *out)
{
    size_t bytes = 0;

    for (uint32_t code = 0; code < 0xe0200; code++) {
        if (code == 0x33480)
            code = 0xe0000;
        if (code >= 0xd800 && code < 0xe000)
            continue;
        bytes += put_code(out + bytes, code);
        if (code % 7 == 0)
            out[bytes++] = ' ';
        else if (code % 5 == 0)
            out[bytes++] = 'e';
    }
    return bytes;
}

static int load(void **state)
{
    struct golden *g = calloc(1, sizeof(*g));

    assert_non_null(g);
    assert_ok(st_json_parse_file(&g->root, GOLDEN "/golden.json", 1 << 20));
    for (const st_json *n = st_json_first(st_json_get(g->root, "texts")); n != NULL; n = st_json_next(n)) {
        assert_true(g->count < 63);
        g->texts[g->count++] = st_json_string(n);
    }
    g->every = malloc(2 << 20);
    assert_non_null(g->every);
    g->texts[g->count++] = g->every;
    *state = g;
    return 0;
}

static int unload(void **state)
{
    struct golden *g = *state;

    st_json_free(g->root);
    free(g->every);
    free(g);
    return 0;
}

static struct st_tokenizer *open_shape(const char *name)
{
    struct st_tokenizer *t;
    char path[128];

    snprintf(path, sizeof(path), strcmp(name, "sentencepiece") == 0 ? GOLDEN "/%s" : GOLDEN "/%s.json", name);
    assert_ok(st_tokenizer_open(&t, path));
    return t;
}

static void fnv1a(char out[17], const void *data, size_t bytes)
{
    uint64_t value = 0xcbf29ce484222325;

    for (size_t i = 0; i < bytes; i++)
        value = (value ^ ((const unsigned char *)data)[i]) * 0x100000001b3;
    snprintf(out, 17, "%016llx", (unsigned long long)value);
}

/* The next element of a row. */
static const st_json *next(const st_json **at)
{
    const st_json *n = *at;

    assert_non_null(n);
    *at = st_json_next(n);
    return n;
}

static void check_hash(const st_json *want, const void *data, size_t bytes)
{
    char hash[17];

    fnv1a(hash, data, bytes);
    assert_string_equal(hash, st_json_string(want));
}

/* What each id stands for lies in the text, from left to right. */
static void check_spans(const struct st_encoding *out, size_t bytes)
{
    for (size_t i = 0; i < out->count; i++) {
        assert_true(out->begins[i] <= out->ends[i] && out->ends[i] <= bytes);
        assert_true(i == 0 || (out->begins[i - 1] <= out->begins[i] && out->ends[i - 1] <= out->ends[i]));
    }
}

static void check_row(const struct st_tokenizer *t, struct st_encoder *e, const char *text, size_t bytes, const st_json *row)
{
    const struct st_encode_opts with_special = {.add_special = true}, as_text = {.special_as_text = true};
    struct st_encoding out = {0}, full = {0};
    struct st_decoded back = {0};
    const st_json *at = st_json_first(row);

    assert_ok(st_encode(e, text, bytes, NULL, &out));
    assert_int_equal(out.count, (size_t)st_json_number(next(&at)));
    check_hash(next(&at), out.ids, out.count * sizeof(out.ids[0]));
    check_spans(&out, bytes);
    assert_ok(st_decode(t, out.ids, out.count, false, &back));
    check_hash(next(&at), back.bytes, back.count);
    assert_ok(st_encode(e, text, bytes, &with_special, &full));
    assert_int_equal(full.count - out.count, (size_t)st_json_number(next(&at)));
    full.count = 0;
    assert_ok(st_encode(e, text, bytes, &as_text, &full));
    check_hash(next(&at), full.ids, full.count * sizeof(full.ids[0]));
    st_encoding_free(&out);
    st_encoding_free(&full);
    st_decoded_free(&back);
}

TEST(test_ids_are_the_references)
{
    const struct golden *g = *state;
    const size_t every_bytes = every_character(g->every);

    for (size_t s = 0; s < SHAPES; s++) {
        const st_json *row = st_json_first(st_json_get(st_json_get(g->root, "shapes"), shapes[s]));
        struct st_tokenizer *t = open_shape(shapes[s]);
        struct st_encoder *e;

        assert_ok(st_encoder_create(&e, t));
        for (uint32_t i = 0; i < g->count; i++) {
            check_row(t, e, g->texts[i], i + 1 < g->count ? strlen(g->texts[i]) : every_bytes, next(&row));
        }
        st_encoder_destroy(e);
        st_tokenizer_close(t);
    }
}

static void assert_same(const struct st_encoding *a, const struct st_encoding *b)
{
    assert_int_equal(a->count, b->count);
    if (a->count == 0)
        return;
    assert_memory_equal(a->ids, b->ids, a->count * sizeof(a->ids[0]));
    assert_memory_equal(a->begins, b->begins, a->count * sizeof(a->begins[0]));
    assert_memory_equal(a->ends, b->ends, a->count * sizeof(a->ends[0]));
}

static void feed_in_parts(struct st_encoder *e, const char *text, size_t bytes, size_t part, struct st_encoding *out)
{
    st_encode_begin(e, NULL);
    for (size_t at = 0; at < bytes; at += part)
        assert_ok(st_encode_feed(e, text + at, part < bytes - at ? part : bytes - at, out));
    assert_ok(st_encode_finish(e, out));
}

/* All texts many times, with bytes that are no UTF-8 between them: several windows. */
static char *long_text(const struct golden *g, size_t *bytes)
{
    static const char *const bad[] = {"\xff", "\xe2\x82", "\xf0\x9f\x98", "\xc3(", "\xed\xa0\x80", "\x80\x80", " \xe2"};
    char *text = malloc(1 << 20);

    assert_non_null(text);
    *bytes = 0;
    for (unsigned i = 0; *bytes < 300000; i++) {
        const char *next_text = g->texts[i % (g->count - 1)];

        memcpy(text + *bytes, next_text, strlen(next_text));
        *bytes += strlen(next_text);
        if (i % 3 == 0) {
            memcpy(text + *bytes, bad[i / 3 % 7], strlen(bad[i / 3 % 7]));
            *bytes += strlen(bad[i / 3 % 7]);
        }
    }
    return text;
}

/* Whatever the parts, the same ids and places; that windows change nothing shows with every character, which is many of them. */
TEST(test_parts_give_the_same)
{
    static const size_t parts[] = {1, 3, 4096, 70000};
    size_t bytes;
    char *text = long_text(*state, &bytes);

    for (size_t s = 0; s < SHAPES; s++) {
        struct st_tokenizer *t = open_shape(shapes[s]);
        struct st_encoding whole = {0}, out = {0};
        struct st_encoder *e;
        uint64_t replaced;

        assert_ok(st_encoder_create(&e, t));
        assert_ok(st_encode(e, text, bytes, NULL, &whole));
        check_spans(&whole, bytes);
        replaced = st_encoder_replaced(e);
        assert_true(replaced > 100);
        for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
            out.count = 0;
            feed_in_parts(e, text, bytes, parts[i], &out);
            assert_same(&out, &whole);
            assert_int_equal(st_encoder_replaced(e), replaced);
        }
        st_encoding_free(&whole);
        st_encoding_free(&out);
        st_encoder_destroy(e);
        st_tokenizer_close(t);
    }
    free(text);
}

/* Id by id, the pieces of text make up the whole, and none ends within a character. */
TEST(test_streamed_text_is_the_whole)
{
    const struct golden *g = *state;

    for (size_t s = 0; s < SHAPES; s++) {
        struct st_tokenizer *t = open_shape(shapes[s]);
        struct st_decoder *d;
        struct st_encoder *e;

        assert_ok(st_encoder_create(&e, t));
        assert_ok(st_decoder_create(&d, t, true));
        for (uint32_t i = 0; i + 1 < g->count; i++) {
            struct st_encoding out = {0};
            struct st_decoded whole = {0}, parts = {0};

            assert_ok(st_encode(e, g->texts[i], strlen(g->texts[i]), NULL, &out));
            assert_ok(st_decode(t, out.ids, out.count, true, &whole));
            for (size_t k = 0; k < out.count; k++) {
                assert_ok(st_decoder_push(d, out.ids[k], &parts));
                assert_true(parts.count == whole.count || ((unsigned char)whole.bytes[parts.count] & 0xc0) != 0x80);
            }
            assert_ok(st_decoder_finish(d, &parts));
            assert_int_equal(parts.count, whole.count);
            if (parts.count > 0)
                assert_memory_equal(parts.bytes, whole.bytes, parts.count);
            st_encoding_free(&out);
            st_decoded_free(&whole);
            st_decoded_free(&parts);
        }
        st_decoder_destroy(d);
        st_encoder_destroy(e);
        st_tokenizer_close(t);
    }
}

/* --- merges --- */

enum { LETTERS = 3, TOKENS = 60, MERGES = 120, TOKEN_BYTES = 16, WORD_MOST = 150 };

/* A vocabulary of the letters and what seeded merges make of them. */
struct merges {
    char tokens[TOKENS][TOKEN_BYTES];
    uint32_t token_count, left[MERGES], right[MERGES], to[MERGES], count;
};

static uint32_t token_named(const struct merges *m, const char *text)
{
    uint32_t i = 0;

    while (i < m->token_count && strcmp(m->tokens[i], text) != 0)
        i++;
    return i;
}

static uint32_t rank_of(const struct merges *m, uint32_t left, uint32_t right)
{
    uint32_t i = 0;

    while (i < m->count && (m->left[i] != left || m->right[i] != right))
        i++;
    return i;
}

/* Several merges may give one token, and later ones may take apart what earlier ones wait for. */
static void make_merges(struct merges *m, uint64_t seed)
{
    *m = (struct merges){.token_count = LETTERS};
    for (uint32_t i = 0; i < LETTERS; i++)
        m->tokens[i][0] = (char)('a' + i);
    for (uint64_t n = 0; n < 4000 && m->count < MERGES; n++) {
        const uint32_t left = (uint32_t)(st_rng_u64(seed, 1, n) % m->token_count),
                       right = (uint32_t)(st_rng_u64(seed, 2, n) % m->token_count);
        char both[2 * TOKEN_BYTES];
        uint32_t to;

        snprintf(both, sizeof(both), "%s%s", m->tokens[left], m->tokens[right]);
        to = token_named(m, both);
        if (strlen(both) >= TOKEN_BYTES || to == TOKENS || rank_of(m, left, right) < m->count)
            continue;
        if (to == m->token_count)
            memcpy(m->tokens[m->token_count++], both, strlen(both));
        m->left[m->count] = left;
        m->right[m->count] = right;
        m->to[m->count++] = to;
    }
}

static struct st_tokenizer *open_merges(const struct merges *m)
{
    struct st_tokenizer *t;
    size_t bytes;
    char *json;
    FILE *file = open_memstream(&json, &bytes);

    assert_non_null(file);
    fprintf(file, "{\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (uint32_t i = 0; i < m->token_count; i++)
        fprintf(file, "%s\"%s\":%u", i > 0 ? "," : "", m->tokens[i], i);
    fprintf(file, "},\"merges\":[");
    for (uint32_t i = 0; i < m->count; i++)
        fprintf(file, "%s\"%s %s\"", i > 0 ? "," : "", m->tokens[m->left[i]], m->tokens[m->right[i]]);
    fprintf(file, "]}}");
    assert_int_equal(fclose(file), 0);
    scratch_put("tokenizer.json", json);
    assert_ok(st_tokenizer_open(&t, scratch_dir));
    free(json);
    return t;
}

/* The definition: of all pairs the first of the lowest rank, again and again. */
static uint32_t merge_plainly(const struct merges *m, const char *word, uint32_t ids[WORD_MOST])
{
    uint32_t count = (uint32_t)strlen(word);

    for (uint32_t i = 0; i < count; i++)
        ids[i] = (uint32_t)(word[i] - 'a');
    for (;;) {
        uint32_t best = 0, rank = m->count;

        for (uint32_t i = 0; i + 1 < count; i++)
            if (rank_of(m, ids[i], ids[i + 1]) < rank) {
                rank = rank_of(m, ids[i], ids[i + 1]);
                best = i;
            }
        if (rank == m->count)
            return count;
        ids[best] = m->to[rank];
        memmove(ids + best + 1, ids + best + 2, (--count - best - 1) * sizeof(ids[0]));
    }
}

/* Words of every length, also those that use a heap, are merged by rank and from the left. */
TEST(test_merges_are_those_of_the_definition)
{
    scratch_open();
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct merges m;
        struct st_tokenizer *t;
        struct st_encoder *e;

        make_merges(&m, seed);
        t = open_merges(&m);
        assert_ok(st_encoder_create(&e, t));
        for (uint32_t bytes = 1; bytes <= WORD_MOST; bytes++) {
            struct st_encoding out = {0};
            char word[WORD_MOST + 1] = "";
            uint32_t ids[WORD_MOST];

            for (uint32_t i = 0; i < bytes; i++)
                word[i] = (char)('a' + st_rng_u64(seed, 2 + bytes, i) % LETTERS);
            assert_ok(st_encode(e, word, bytes, NULL, &out));
            assert_int_equal(out.count, merge_plainly(&m, word, ids));
            assert_memory_equal(out.ids, ids, out.count * sizeof(ids[0]));
            st_encoding_free(&out);
        }
        st_encoder_destroy(e);
        st_tokenizer_close(t);
    }
    scratch_close();
}

/* Without a decoder a space stands between tokens, and none before the first, also when the decoder begins again. */
TEST(test_tokens_without_a_decoder_are_apart)
{
    struct merges m;
    struct st_tokenizer *t;
    struct st_decoded out = {0};
    struct st_decoder *d;

    scratch_open();
    make_merges(&m, 1);
    t = open_merges(&m);
    assert_ok(st_decoder_create(&d, t, false));
    for (int turn = 0; turn < 2; turn++) {
        out.count = 0;
        for (uint32_t id = 0; id < LETTERS; id++)
            assert_ok(st_decoder_push(d, id, &out));
        assert_ok(st_decoder_finish(d, &out));
        assert_int_equal(out.count, 5);
        assert_memory_equal(out.bytes, "a b c", 5);
    }
    st_decoded_free(&out);
    st_decoder_destroy(d);
    st_tokenizer_close(t);
    scratch_close();
}

/* A token whose characters all stand for bytes is these bytes; one with any other character, wherever it is, is its text as it
 * stands, beside pieces of a character that come before and after it. */
TEST(test_a_token_is_bytes_or_text)
{
    static const char *const contents[] = {"<|a|>",
                                           "\xe2\x80\xb9"
                                           "a>",
                                           "<\xe2\x80\xb9"
                                           "a",
                                           "a b",
                                           "ab ",
                                           " ab",
                                           "\xe4\xb8\xad",
                                           "a\xe4\xb8\xad"
                                           "b"};
    enum { ADDED = sizeof(contents) / sizeof(contents[0]) };
    struct st_decoded out = {0};
    struct st_tokenizer *t;
    struct st_decoder *d;
    char json[2048];
    int length;

    scratch_open();
    length = snprintf(json, sizeof(json),
                      "{\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"x\":0,"
                      "\"\xc4\xa0\":1,\"\xc3\x83\":2,\"\xc2\xa9\":3},\"merges\":[]},\"added_tokens\":[");
    for (uint32_t i = 0; i < ADDED; i++)
        length += snprintf(json + length, sizeof(json) - (size_t)length, "%s{\"id\":%u,\"content\":\"%s\"}", i > 0 ? "," : "",
                           4 + i, contents[i]);
    snprintf(json + length, sizeof(json) - (size_t)length, "]}");
    scratch_put("tokenizer.json", json);
    assert_ok(st_tokenizer_open(&t, scratch_dir));
    assert_ok(st_decoder_create(&d, t, false));
    for (uint32_t i = 0; i < ADDED; i++) {
        const uint32_t ids[] = {0, 4 + i, 1, 2, 3, 4 + i, 0}; /* 2 and 3: the bytes of e with an acute accent */
        char wanted[64];

        out.count = 0;
        for (size_t k = 0; k < sizeof(ids) / sizeof(ids[0]); k++)
            assert_ok(st_decoder_push(d, ids[k], &out));
        assert_ok(st_decoder_finish(d, &out));
        snprintf(wanted, sizeof(wanted), "x%s \xc3\xa9%sx", contents[i], contents[i]);
        assert_int_equal(out.count, strlen(wanted));
        assert_memory_equal(out.bytes, wanted, out.count);
    }
    st_decoded_free(&out);
    st_decoder_destroy(d);
    st_tokenizer_close(t);
    scratch_close();
}

/* An added token looks at what is beside it also where a long text could be cut between them: takes the white space there, or is
 * none inside a word. */
TEST(test_added_tokens_look_across_windows)
{
    static const struct {
        const char *flag, *part, *pre_tokenizer; /* the text is parts */
        uint32_t ids[4], count;                  /* of each part */
    } cases[] = {
        {"rstrip", "xx  ", "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}", {6}, 1},
        {"lstrip", "  xx", "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}", {6}, 1},
        {"single_word", ".xxy", "null", {4, 0, 0, 2}, 4},
        {"single_word", "yxx.", "null", {2, 0, 0, 4}, 4},
    };
    enum { COUNT = 60000 };
    char *text = malloc(4 * COUNT), json[512];

    assert_non_null(text);
    scratch_open();
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        struct st_encoding out = {0};
        struct st_tokenizer *t;
        struct st_encoder *e;

        for (size_t i = 0; i < COUNT; i++)
            memcpy(text + 4 * i, cases[c].part, 4);
        snprintf(
            json, sizeof(json),
            "{\"added_tokens\":[{\"id\":6,\"content\":\"xx\",\"%s\":true,\"normalized\":false}],\"pre_tokenizer\":%s,"
            "\"model\":{\"type\":\"BPE\",\"vocab\":{\"x\":0,\"\xc4\xa0\":1,\"y\":2,\"yy\":3,\".\":4,\"?\":5},\"merges\":[\"y "
            "y\"],\"unk_token\":\"?\"}}",
            cases[c].flag, cases[c].pre_tokenizer);
        scratch_put("tokenizer.json", json);
        assert_ok(st_tokenizer_open(&t, scratch_dir));
        assert_ok(st_encoder_create(&e, t));
        feed_in_parts(e, text, 4 * COUNT, 1000, &out);
        assert_int_equal(out.count, cases[c].count * COUNT);
        for (size_t i = 0; i < out.count; i++)
            assert_int_equal(out.ids[i], cases[c].ids[i % cases[c].count]);
        st_encoding_free(&out);
        st_encoder_destroy(e);
        st_tokenizer_close(t);
    }
    scratch_close();
    free(text);
}

TEST(test_what_a_tokenizer_says_of_itself)
{
    struct st_tokenizer *llama3 = open_shape("llama3"), *qwen2 = open_shape("qwen2");
    const uint32_t bos = st_tokenizer_find(llama3, "<|begin_of_text|>");
    const char *text;
    size_t bytes;

    assert_int_equal(bos + 4, st_tokenizer_vocab(llama3));
    assert_true(st_tokenizer_is_special(llama3, bos) && !st_tokenizer_is_special(llama3, 0));
    text = st_tokenizer_text(llama3, bos, &bytes);
    assert_int_equal(bytes, 17);
    assert_memory_equal(text, "<|begin_of_text|>", 17);
    assert_null(st_tokenizer_text(llama3, st_tokenizer_vocab(llama3), &bytes));
    assert_int_equal(st_tokenizer_find(llama3, "<|no such token|>"), ST_TOKEN_NONE);
    assert_true(st_tokenizer_hash(llama3) != st_tokenizer_hash(qwen2));
    st_tokenizer_close(llama3);
    st_tokenizer_close(qwen2);
}

/* What costs time alone, were it otherwise: letters that compose again are left as they are, and short words are remembered. */
TEST(test_what_saves_work_does)
{
    static const uint32_t same[] = {'a', 0xe9, 0x1e69, 0x3094}, other[] = {0x340, 0x958, 0x2126};
    struct st_unicode *u = st_unicode_create();
    struct st_tokenizer *t = open_shape("gpt2");
    struct st_encoding out = {0};
    struct st_encoder *e;
    uint32_t words = 0;

    assert_non_null(u);
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++)
        assert_int_equal(u->nfc[same[i]] & ST_NFC_CHANGES, 0);
    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++)
        assert_int_not_equal(u->nfc[other[i]] & ST_NFC_CHANGES, 0);
    st_unicode_destroy(u);
    assert_ok(st_encoder_create(&e, t));
    assert_ok(st_encode(e, "one two three two one", 21, NULL, &out));
    for (uint32_t i = 0; i < ST_WORDS; i++)
        words += e->words[i].bytes > 0;
    assert_int_equal(words, 4); /* "one", " two", " three", " one" */
    st_encoding_free(&out);
    st_encoder_destroy(e);
    st_tokenizer_close(t);
}

/* An encoding grows by doubling: a long text costs no block of memory for each token. */
TEST(test_a_long_text_takes_few_blocks)
{
    enum { WORDS = 20000 };
    struct st_tokenizer *t = open_shape("gpt2");
    struct st_encoding out = {0};
    struct st_encoder *e;
    char *text = malloc(2 * WORDS);
    uint64_t before;

    for (size_t i = 0; i < WORDS; i++)
        memcpy(text + 2 * i, i % 2 == 0 ? " a" : "!?", 2);
    assert_ok(st_encoder_create(&e, t));
    assert_ok(st_encode(e, text, 2 * WORDS, NULL, &out)); /* the encoder's own memory */
    st_encoding_free(&out);
    before = memory_mark();
    assert_ok(st_encode(e, text, 2 * WORDS, NULL, &out));
    assert_true(out.count >= WORDS);
    assert_in_range(memory_mark() - before, 1, 100);
    st_encoding_free(&out);
    st_encoder_destroy(e);
    st_tokenizer_close(t);
    free(text);
}

TEST_GROUP(load, unload);

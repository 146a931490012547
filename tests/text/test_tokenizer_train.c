/* tests/text/test_tokenizer_train.c - a vocabulary of one's own, and token files made with it. */
#include "core/base/fault.h"
#include "core/base/rng.h"
#include "core/json/json.h"
#include "core/system/file.h"
#include "text/data/tokens.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/train.h"
#include "tests/text/text_fixture.h"
#include "tests/common/fault_walk.h"
#include "tests/common/scratch.h"
#include "tests/common/whole_file.h"

#include <errno.h>
#include <unistd.h>

static const char *const texts[] = {
    "In the beginning God created the heaven and the earth. And the earth was without form, and void;\n",
    "and darkness was upon the face of the deep. And the Spirit of God moved upon the face of the waters.\n",
    "caf\xc3\xa9 caf\xc3\xa9 12 12 12 aaaaaaaaaaaaaaaa aaaaaaaaaaaaaaaa\n\n\xff",
};

/* In this order of texts, in parts of this size, into `name` of the scratch directory. */
static uint32_t train(const char *name, const unsigned order[3], size_t part, uint32_t vocab)
{
    struct st_train_report report;
    struct st_train *t;

    assert_ok(st_train_create(&t));
    for (unsigned i = 0; i < 3; i++) {
        const char *text = texts[order[i]];
        const size_t bytes = strlen(text);

        for (size_t at = 0; at < bytes; at += part)
            assert_ok(st_train_feed(t, text + at, part < bytes - at ? part : bytes - at));
        assert_ok(st_train_end_text(t));
    }
    assert_ok(st_train_write(t, vocab, scratch_path(name), false, &report));
    st_train_destroy(t);
    return report.vocab;
}

static void test_the_same_texts_give_the_same_files(void **state)
{
    const char *const files[] = {"a/tokenizer.json", "a/tokenizer_config.json"};
    char *first, *second, other[64];

    (void)state;
    assert_int_equal(train("a", (const unsigned[]){0, 1, 2}, 1000, 290), 290);
    assert_int_equal(train("b", (const unsigned[]){2, 0, 1}, 7, 290), 290);
    for (size_t i = 0; i < 2; i++) {
        first = read_file(scratch_path(files[i]), NULL);
        snprintf(other, sizeof(other), "b%s", files[i] + 1);
        second = read_file(scratch_path(other), NULL);
        assert_string_equal(first, second);
        free(first);
        free(second);
    }
}

/* The pair that occurs most comes first; among equals the lower ids: what the merges of these texts must be. */
static void test_merges_by_frequency(void **state)
{
    const char *keys[] = {"{\"version\":\"1.0\"",
                          "\"truncation\":null",
                          "\"padding\":null",
                          "\"added_tokens\":[{\"id\":",
                          "\"normalizer\":null",
                          "\"pre_tokenizer\":{\"type\":",
                          "\"post_processor\":{\"type\":",
                          "\"decoder\":{\"type\":",
                          "\"model\":{\"type\":\"BPE\"",
                          NULL};
    struct st_train_report report;
    struct st_train *t;
    char *json;

    (void)state;
    assert_ok(st_train_create(&t));
    assert_ok(st_train_feed(t, "ab ab ab abc abc xyxy", 21));
    assert_ok(st_train_end_text(t));
    assert_ok(st_train_write(t, 1000, scratch_path("c"), false, &report));
    st_train_destroy(t);
    assert_int_equal(report.words, 6);
    assert_int_equal(report.different_words, 4); /* "ab", " ab", " abc", " xyxy" */
    json = read_file(scratch_path("c/tokenizer.json"), NULL);
    assert_non_null(strstr(json, "\"merges\":[[\"a\",\"b\"],[\"\u0120\",\"ab\"],[\"x\",\"y\"],[\"\u0120ab\",\"c\"]]"));
    assert_int_equal(report.vocab, 256 + 4 + 1);
    for (const char **key = keys, *at = json; *key != NULL; key++) { /* as Hugging Face's tokenizers writes them */
        at = strstr(at, *key);
        if (at == NULL)
            fail_msg("%s is missing, or stands elsewhere", *key);
    }
    free(json);
    json = read_file(scratch_path("c/tokenizer_config.json"), NULL);
    assert_string_equal(json, "{\"tokenizer_class\":\"PreTrainedTokenizerFast\",\"bos_token\":\"<|endoftext|>\","
                              "\"eos_token\":\"<|endoftext|>\",\"clean_up_tokenization_spaces\":false}\n");
    free(json);
}

/* All merges of a text, as the file has them. */
static void assert_merges(const char *text, const char *name, const char *merges)
{
    struct st_train_report report;
    struct st_train *t;
    char file[64], *json;

    assert_ok(st_train_create(&t));
    assert_ok(st_train_feed(t, text, strlen(text)));
    assert_ok(st_train_end_text(t));
    assert_ok(st_train_write(t, 1000, scratch_path(name), false, &report));
    st_train_destroy(t);
    snprintf(file, sizeof(file), "%s/tokenizer.json", name);
    json = read_file(scratch_path(file), NULL);
    assert_non_null(strstr(json, merges));
    free(json);
}

/* Words in which a pair stands several times, one behind the other as well: the merges are those of counting all pairs anew for
 * each of them. */
static void test_pairs_that_repeat_in_a_word(void **state)
{
    (void)state;
    assert_merges(
        "abab abab cabab cababab bananan banana nana ababab cabcabcab cabcab xabyab xabyab xabyab", "e",
        "\"merges\":[[\"a\",\"b\"],[\"c\",\"ab\"],[\"a\",\"n\"],[\"ab\",\"ab\"],[\"\u0120\",\"cab\"],[\"\u0120\",\"x\"],"
        "[\"y\",\"ab\"],[\"ab\",\"yab\"],[\"an\",\"an\"],[\"\u0120x\",\"abyab\"],[\"\u0120\",\"b\"],[\"\u0120\",\"abab\"],"
        "[\"\u0120cab\",\"cab\"],[\"\u0120b\",\"anan\"]]");
}

/* "b" with "c" stands five times, and after the merge of "a" and "b" twice, which is enough. */
static void test_a_pair_may_become_rare(void **state)
{
    (void)state;
    assert_merges("abc\nabc\nabc\nab\nab\nzbc\nzbc\n", "rare",
                  "\"merges\":[[\"a\",\"b\"],[\"ab\",\"c\"],[\"b\",\"c\"],[\"z\",\"bc\"]]");
}

/* --- against a trainer that counts every pair again for each merge --- */

enum { LETTERS = 60, WORDS = 6000, WORD_MOST = 8, LEARNED = 60 };

/* As in the file: letters of one byte and of two, each word behind a space. */
struct naive {
    uint32_t ids[WORDS][2 * WORD_MOST + 1], symbols[WORDS];
    uint32_t counts[256 + LEARNED][256 + LEARNED];
    char tokens[256 + LEARNED][64]; /* as ByteLevel writes them */
};

static void name_bytes(struct naive *n)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        const char raw[] = {(char)byte, '\0'};

        snprintf(n->tokens[byte], sizeof(n->tokens[byte]), "%s", raw);
    }
    strcpy(n->tokens[' '], "\u0120");
    strcpy(n->tokens[0xc3], "\u00c3"); /* the first byte of \u00e0 and of those behind it */
    for (unsigned byte = 0xa1; byte < 0xad; byte++)
        snprintf(n->tokens[byte], sizeof(n->tokens[byte]), "%c%c", 0xc2, byte);
}

/* Letter `index`: a to z, A to Z, then U+00E1 and on. */
static uint32_t put_letter(char *to, uint32_t *ids, uint32_t index)
{
    if (index < 52) {
        ids[0] = (unsigned char)(*to = (char)(index < 26 ? 'a' + index : 'A' + index - 26));
        return 1;
    }
    ids[0] = (unsigned char)(to[0] = (char)0xc3);
    ids[1] = (unsigned char)(to[1] = (char)(0xa1 + index - 52));
    return 2;
}

/* The pair that most words have, the lowest ids among equals. */
static uint32_t find_best(struct naive *n, uint32_t vocab, uint32_t *left, uint32_t *right)
{
    uint32_t best = 0;

    memset(n->counts, 0, sizeof(n->counts));
    for (uint32_t w = 0; w < WORDS; w++)
        for (uint32_t i = 0; i + 1 < n->symbols[w]; i++)
            n->counts[n->ids[w][i]][n->ids[w][i + 1]]++;
    for (uint32_t a = 0; a < vocab; a++)
        for (uint32_t b = 0; b < vocab; b++)
            if (n->counts[a][b] > best) {
                best = n->counts[a][b];
                *left = a;
                *right = b;
            }
    return best;
}

static void merge_all(struct naive *n, uint32_t left, uint32_t right, uint32_t id)
{
    for (uint32_t w = 0; w < WORDS; w++) {
        uint32_t *ids = n->ids[w], kept = 0;

        for (uint32_t i = 0; i < n->symbols[w]; i++) {
            const bool both = i + 1 < n->symbols[w] && ids[i] == left && ids[i + 1] == right;

            ids[kept++] = both ? id : ids[i];
            i += both;
        }
        n->symbols[w] = kept;
    }
    snprintf(n->tokens[id], sizeof(n->tokens[id]), "%.30s%.30s", n->tokens[left], n->tokens[right]);
}

/* Thousands of different words and of pairs, which is more than the tables of both begin with room for. */
static void test_many_words_and_pairs(void **state)
{
    struct naive *n = calloc(1, sizeof(*n));
    char *text = malloc(WORDS * (2 * WORD_MOST + 1)), *to = text;
    struct st_train_report report;
    struct st_train *t;
    const st_json *pair, *side;
    st_json *root;

    (void)state;
    assert_true(n != NULL && text != NULL);
    name_bytes(n);
    for (uint32_t w = 0; w < WORDS; w++) {
        const uint32_t letters = 4 + (uint32_t)(st_rng_u64(7, w, 0) % (WORD_MOST - 3));

        n->ids[w][n->symbols[w]++] = (unsigned char)(*to++ = ' ');
        for (uint32_t i = 1; i <= letters; i++) {
            const uint32_t bytes = put_letter(to, &n->ids[w][n->symbols[w]], (uint32_t)(st_rng_u64(7, w, i) % LETTERS));

            to += bytes;
            n->symbols[w] += bytes;
        }
    }
    assert_ok(st_train_create(&t));
    for (uint32_t i = 0; i < 2; i++) { /* each word is known the second time */
        assert_ok(st_train_feed(t, text, (size_t)(to - text)));
        assert_ok(st_train_end_text(t));
    }
    assert_ok(st_train_write(t, 256 + LEARNED + 1, scratch_path("many"), false, &report));
    st_train_destroy(t);
    assert_int_equal(report.words, 2 * WORDS);
    assert_true(report.different_words <= WORDS && report.different_words > WORDS - 10);
    assert_ok(st_json_parse_file(&root, scratch_path("many/tokenizer.json"), 1 << 20));
    pair = st_json_first(st_json_get(st_json_get(root, "model"), "merges"));
    for (uint32_t id = 256; id < 256 + LEARNED; id++, pair = st_json_next(pair)) {
        uint32_t left = 0, right = 0;

        assert_true(find_best(n, id, &left, &right) > 1);
        assert_non_null(pair);
        side = st_json_first(pair);
        assert_string_equal(st_json_string(side), n->tokens[left]);
        assert_string_equal(st_json_string(st_json_next(side)), n->tokens[right]);
        merge_all(n, left, right, id);
    }
    assert_null(pair);
    st_json_free(root);
    free(text);
    free(n);
}

static void test_what_it_refuses(void **state)
{
    const unsigned order[] = {0, 1, 2};
    struct st_train_report report;
    struct st_train *t;

    (void)state;
    assert_ok(st_train_create(&t));
    assert_refused(st_train_write(t, 300, scratch_path("d"), false, &report), STRATA_E_INPUT, "the text is empty");
    assert_ok(st_train_feed(t, "text", 4));
    assert_ok(st_train_end_text(t));
    assert_refused(st_train_write(t, 256, scratch_path("d"), false, &report), STRATA_E_INVAL, "must be 257 to 1048576");
    (void)train("d", order, 100, 257);
    assert_refused(st_train_write(t, 300, scratch_path("d"), false, &report), STRATA_E_INPUT, "tokenizer_config.json");
    st_train_destroy(t);
}

static strata_status train_with_fault(uint32_t after, uint32_t *fired)
{
    struct st_train_report report;
    struct st_train *t = NULL;
    strata_status st;

    st_fault_arm(&(struct st_fault_spec){.site = "tokenizer.alloc", .after = after, .count = 1, .result = -1});
    st = st_train_create(&t);
    for (unsigned i = 0; i < 3 && st == STRATA_OK; i++)
        if ((st = st_train_feed(t, texts[i], strlen(texts[i]))) == STRATA_OK)
            st = st_train_end_text(t);
    if (st == STRATA_OK)
        st = st_train_write(t, 280, scratch_path("e"), true, &report);
    *fired = st_fault_disarm();
    st_train_destroy(t);
    return st;
}

/* One word of a single character: the longest token is one that is read again. */
static void trained_on_a_run(char c, size_t bytes, uint32_t vocab)
{
    struct st_train_report report;
    struct st_tokenizer *read;
    struct st_train *t;
    char *run = malloc(bytes);

    assert_non_null(run);
    memset(run, c, bytes);
    assert_ok(st_train_create(&t));
    assert_ok(st_train_feed(t, run, bytes));
    assert_ok(st_train_end_text(t));
    assert_ok(st_train_write(t, 300, scratch_path("run"), true, &report));
    st_train_destroy(t);
    free(run);
    assert_int_equal(report.vocab, vocab);
    assert_ok(st_tokenizer_open(&read, scratch_path("run")));
    st_tokenizer_close(read);
}

static void test_no_token_is_too_long_to_be_read(void **state)
{
    (void)state;
    trained_on_a_run('-', 200000, 256 + 16 + 1);  /* of 2, 4, ... 65536 */
    trained_on_a_run('\0', 100000, 256 + 15 + 1); /* two bytes each in the file */
}

static void test_every_allocation_may_fail(void **state)
{
    uint32_t fired = 1;

    (void)state;
    for (uint32_t after = 0; fired > 0; after++) {
        const strata_status st = train_with_fault(after, &fired);

        assert_int_equal(st, fired > 0 ? STRATA_E_NOMEM : STRATA_OK);
    }
}

/* Every text a document with an end token; all of it decodes to the texts again. */
static void test_token_files(void **state)
{
    const char *const paths[] = {scratch_path("0.txt"), scratch_path("1.txt"), scratch_path("2.txt")},
                      *out = scratch_path("x.bin");
    const unsigned order[] = {0, 1, 2};
    struct st_tokens_report report;
    struct st_decoded back = {0};
    struct st_tokenizer *t;
    struct st_token_set *set;
    char path[ST_PATH_MAX], *file, want[512];
    uint32_t ids[512];

    (void)state;
    for (unsigned i = 0; i < 3; i++)
        write_file(paths[i], texts[i], strlen(texts[i]));
    (void)train("f", order, 100, 300);
    snprintf(path, sizeof(path), "%s", scratch_path("f"));
    assert_ok(st_tokenizer_open(&t, path));
    assert_ok(st_tokens_from_text(t, paths, 3, out, 0.0, false, &report));
    assert_int_equal(report.source_bytes, strlen(texts[0]) + strlen(texts[1]) + strlen(texts[2]));
    assert_int_equal(report.replaced, 1);
    assert_true(report.tokens < 512);
    assert_ok(st_token_set_open(&set, &out, 1, 300, 4));
    st_token_set_close(set);
    file = read_file(out, NULL);
    for (uint32_t i = 0; i < report.tokens; i++)
        ids[i] = ((unsigned char *)file)[1024 + 2 * i] | (uint32_t)((unsigned char *)file)[1025 + 2 * i] << 8;
    free(file);
    assert_int_equal(ids[report.tokens - 1], st_tokenizer_role(t, ST_TOKEN_EOS));
    assert_ok(st_decode(t, ids, report.tokens, false, &back));
    snprintf(want, sizeof(want), "%s<|endoftext|>%s<|endoftext|>%.*s\xef\xbf\xbd<|endoftext|>", texts[0], texts[1],
             (int)strlen(texts[2]) - 1, texts[2]);
    assert_int_equal(back.count, strlen(want));
    assert_memory_equal(back.bytes, want, back.count);
    st_decoded_free(&back);
    st_tokenizer_close(t);
}

/* Blocks are cut at ends of lines: both files hold whole lines, and together all of them. */
static void test_heldout_lines(void **state)
{
    const unsigned order[] = {0, 1, 2};
    const char *source = scratch_path("long.txt"), *out = scratch_path("y.bin");
    struct st_tokens_report report;
    struct st_tokenizer *t;
    char path[ST_PATH_MAX], *text = malloc(100000), *to = text;

    (void)state;
    assert_non_null(text);
    for (unsigned i = 0; i < 800; i++)
        to += snprintf(to, 120, "%u %s", i, texts[i % 2]);
    write_file(source, text, (size_t)(to - text));
    (void)train("g", order, 100, 300);
    snprintf(path, sizeof(path), "%s", scratch_path("g"));
    assert_ok(st_tokenizer_open(&t, path));
    assert_ok(st_tokens_from_text(t, &source, 1, out, 0.5, false, &report));
    assert_int_equal(report.source_bytes + report.heldout_bytes, (uint64_t)(to - text));
    assert_true(report.heldout_bytes > 16384 && report.heldout_bytes % 16384 != 0);
    assert_int_equal(report.replaced, 0);
    free(text);
    st_tokenizer_close(t);
}

/* Both files are there or none is, and then the directory is not there either.  A directory that cannot be synced is no reason to
 * take them back. */
static void test_a_failure_leaves_both_files_or_none(void **state)
{
    struct fault_walk walk = {.result = -EIO};
    uint32_t none = 0;

    (void)state;
    while (fault_walk_next(&walk)) {
        struct st_train_report report;
        struct st_train *t = NULL;
        strata_status st = st_train_create(&t);
        bool both, one;

        if (st == STRATA_OK && (st = st_train_feed(t, "ab ab abc", 9)) == STRATA_OK && (st = st_train_end_text(t)) == STRATA_OK)
            st = st_train_write(t, 270, scratch_path("failing"), false, &report);
        st_train_destroy(t);
        fault_walk_end(&walk, st);
        both = access(scratch_path("failing/tokenizer.json"), F_OK) == 0;
        one = access(scratch_path("failing/tokenizer_config.json"), F_OK) == 0;
        assert_true(both == one && (both || st != STRATA_OK));
        assert_int_equal(access(scratch_path("failing"), F_OK) == 0, both);
        none += !both;
        unlink(scratch_path("failing/tokenizer.json"));
        unlink(scratch_path("failing/tokenizer_config.json"));
        rmdir(scratch_path("failing"));
    }
    assert_true(none > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_texts_give_the_same_files),
        cmocka_unit_test(test_merges_by_frequency),
        cmocka_unit_test(test_pairs_that_repeat_in_a_word),
        cmocka_unit_test(test_a_pair_may_become_rare),
        cmocka_unit_test(test_many_words_and_pairs),
        cmocka_unit_test(test_what_it_refuses),
        cmocka_unit_test(test_no_token_is_too_long_to_be_read),
        cmocka_unit_test(test_every_allocation_may_fail),
        cmocka_unit_test(test_a_failure_leaves_both_files_or_none),
        cmocka_unit_test(test_token_files),
        cmocka_unit_test(test_heldout_lines),
    };

    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}

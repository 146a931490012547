/* tests/text/test_tokenizer_older.c - files older than tokenizer.json: vocab.json with merges.txt where no other file says more,
 * and SentencePiece models made here, field by field. */
#include "core/base/rng.h"
#include "core/system/file.h"
#include "tests/common/scratch.h"
#include "tests/common/whole_file.h"
#include "tests/text/text_fixture.h"
#include "text/tokenizer/tokenizer.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

static void drop_file(const char *name)
{
    (void)unlink(scratch_path(name));
}

static int drop_files(void **state)
{
    static const char *const names[] = {"vocab.json", "merges.txt", "tokenizer_config.json", "tokenizer.model"};

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        drop_file(names[i]);
    return 0;
}

static void assert_ids(const struct st_encoding *out, const uint32_t *ids, size_t count)
{
    assert_int_equal(out->count, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(out->ids[i], ids[i]);
}

static void check_ids(const struct st_tokenizer *t, const char *text, bool special, const uint32_t *ids, size_t count)
{
    const struct st_encode_opts opts = {.add_special = special};
    struct st_encoding out = {0};
    struct st_encoder *e;

    assert_ok(st_encoder_create(&e, t));
    assert_ok(st_encode(e, text, strlen(text), &opts, &out));
    assert_ids(&out, ids, count);
    st_encoding_free(&out);
    st_encoder_destroy(e);
}

/* --- vocab.json and merges.txt --- */

/* The token is special without a file that lists it, and begins, ends and stands for what is unknown, but does not fill. */
TEST_SETUP(test_gpt2_has_one_special_token, NULL, drop_files)
{
    const uint32_t ids[] = {2, 4, 2};
    struct st_decoded out = {0};
    struct st_tokenizer *t;

    scratch_put("vocab.json", "{\"a\":0,\"b\":1,\"ab\":2,\"<\":3,\"<|endoftext|>\":4}");
    scratch_put("merges.txt", "#version: 0.2\na b");
    assert_ok(st_tokenizer_open(&t, scratch_dir));
    check_ids(t, "ab<|endoftext|>ab", false, ids, 3);
    assert_int_equal(st_tokenizer_role(t, ST_TOKEN_BOS), 4);
    assert_int_equal(st_tokenizer_role(t, ST_TOKEN_EOS), 4);
    assert_int_equal(st_tokenizer_role(t, ST_TOKEN_UNK), 4);
    assert_int_equal(st_tokenizer_role(t, ST_TOKEN_PAD), ST_TOKEN_NONE);
    assert_true(st_tokenizer_is_special(t, 4));
    assert_ok(st_decode(t, ids, 3, true, &out));
    assert_int_equal(out.count, 4);
    assert_memory_equal(out.bytes, "abab", 4);
    st_decoded_free(&out);
    st_tokenizer_close(t);
    scratch_put("tokenizer_config.json", "{\"eos_token\":\"<\"}"); /* a file names another */
    assert_ok(st_tokenizer_open(&t, scratch_dir));
    assert_int_equal(st_tokenizer_role(t, ST_TOKEN_BOS), 4);
    assert_int_equal(st_tokenizer_role(t, ST_TOKEN_EOS), 3);
    st_tokenizer_close(t);
    scratch_put("tokenizer_config.json", "{\"added_tokens_decoder\":{\"3\":{\"content\":\"<\"}}}"); /* a file lists another */
    assert_ok(st_tokenizer_open(&t, scratch_dir));
    assert_int_equal(st_tokenizer_role(t, ST_TOKEN_EOS), ST_TOKEN_NONE);
    assert_false(st_tokenizer_is_special(t, 4));
    st_tokenizer_close(t);
}

TEST_SETUP(test_what_older_files_may_not_say, NULL, drop_files)
{
    static const struct {
        const char *vocab, *merges, *config, *part;
    } rows[] = {
        {"[\"a\"]", "", NULL, "vocab.json: must be an object of tokens and ids"},
        {"{\"a\":0}", "\xff a\n", NULL, "merges.txt: is not UTF-8"},
        {"{\"a\":0}", "a\n", NULL, "merge 1 must be two tokens"},
        {"{\"a\":0,\"b\":1,\"ab\":2}", "a b\n\nb b\n", NULL, "\"b\" and \"b\" merge to is not in the vocabulary"},
        {"{\"a\":0}", "", "[]", "tokenizer_config.json: must be an object"},
        {"{\"a\":0}", "", "{\"tokenizer_class\":7}", "tokenizer_config.json: tokenizer_class: must be a string"},
        {"{\"a\":0}", "", "{\"tokenizer_class\":\"GPT2TokenizerFaster\"}", "\"GPT2TokenizerFaster\": not supported"},
        {"{\"a\":0}", "", "{\"added_tokens_decoder\":[]}", "added_tokens_decoder: must be an object"},
        {"{\"a\":0}", "", "{\"added_tokens_decoder\":{\"x\":{}}}",
         "added_tokens_decoder.x: the name must be an id below 4194304"},
        {"{\"a\":0}", "", "{\"added_tokens_decoder\":{\"1x\":{}}}", "added_tokens_decoder.1x: the name must be an id"},
        {"{\"a\":0}", "", "{\"added_tokens_decoder\":{\"\":{}}}", "the name must be an id"},
        {"{\"a\":0}", "", "{\"added_tokens_decoder\":{\"-1\":{}}}", "the name must be an id"},
        {"{\"a\":0}", "", "{\"added_tokens_decoder\":{\"4194304\":{}}}", "the name must be an id"},
        {"{\"a\":0}", "", "{\"added_tokens_decoder\":{\"1\":\"b\"}}", "added_tokens_decoder.1: must be an object"},
        {"{\"a\":0}", "", "{\"added_tokens_decoder\":{\"2\":{\"content\":\"b\"}}}", "is 2, but \"b\" has the id 1 by its place"},
    };
    struct st_tokenizer *t;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        scratch_put("vocab.json", rows[i].vocab);
        scratch_put("merges.txt", rows[i].merges);
        drop_file("tokenizer_config.json");
        if (rows[i].config != NULL)
            scratch_put("tokenizer_config.json", rows[i].config);
        assert_refused(st_tokenizer_open(&t, scratch_dir), STRATA_E_INPUT, rows[i].part);
    }
}

/* --- SentencePiece models --- */

enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

struct proto {
    char bytes[8192];
    size_t count;
};

static void put_raw(struct proto *p, const void *bytes, size_t count)
{
    assert_true(p->count + count <= sizeof(p->bytes));
    memcpy(p->bytes + p->count, bytes, count);
    p->count += count;
}

static void put_varint(struct proto *p, uint64_t value)
{
    for (; value > 0x7f; value >>= 7)
        put_raw(p, &(char){(char)(0x80 | (value & 0x7f))}, 1);
    put_raw(p, &(char){(char)value}, 1);
}

static void put_number(struct proto *p, unsigned field, uint64_t value)
{
    put_varint(p, field << 3);
    put_varint(p, value);
}

static void put_message(struct proto *p, unsigned field, const void *bytes, size_t count)
{
    put_varint(p, field << 3 | 2);
    put_varint(p, count);
    put_raw(p, bytes, count);
}

static void put_piece_bytes(struct proto *p, const char *text, size_t bytes, float score, unsigned type)
{
    struct proto piece = {.count = 0};

    put_message(&piece, 1, text, bytes);
    put_varint(&piece, 2 << 3 | 5);
    put_raw(&piece, &score, sizeof(score));
    put_number(&piece, 3, type);
    put_message(p, 1, piece.bytes, piece.count);
}

static void put_piece(struct proto *p, const char *text, float score, unsigned type)
{
    put_piece_bytes(p, text, strlen(text), score, type);
}

/* <unk>, <s> and </s>, the ids that SentencePiece gives them. */
static void begin_pieces(struct proto *p)
{
    p->count = 0;
    put_piece(p, "<unk>", 0, UNKNOWN);
    put_piece(p, "<s>", 0, CONTROL);
    put_piece(p, "</s>", 0, CONTROL);
}

/* A model of type BPE that leaves texts as they are: but for one number of its trainer's or its normalizer's settings. */
static void end_pieces(struct proto *p, unsigned trainer_field, uint64_t trainer, unsigned normalizer_field, uint64_t normalizer)
{
    struct proto part = {.count = 0};

    put_number(&part, 3, 2);
    if (trainer_field != 0)
        put_number(&part, trainer_field, trainer);
    put_message(p, 2, part.bytes, part.count);
    part.count = 0;
    put_number(&part, 3, 0);
    put_number(&part, 4, 0);
    if (normalizer_field != 0)
        put_number(&part, normalizer_field, normalizer);
    put_message(p, 3, part.bytes, part.count);
    write_file(scratch_path("tokenizer.model"), p->bytes, p->count);
}

TEST_SETUP(test_what_begins_and_ends_a_text, NULL, drop_files)
{
    static const struct {
        const char *config;
        bool begins, ends;
    } rows[] = {
        {NULL, true, false},
        {"{}", true, false},
        {"{\"add_bos_token\":null,\"add_eos_token\":null}", true, false},
        {"{\"add_bos_token\":true,\"add_eos_token\":true}", true, true},
        {"{\"add_bos_token\":false,\"add_eos_token\":false}", false, false},
        {"{\"add_bos_token\":false,\"add_eos_token\":true}", false, true},
    };
    struct st_tokenizer *t;
    struct proto p;

    begin_pieces(&p);
    put_piece(&p, "a", -1, NORMAL);
    put_number(&p, 6, 3); /* a field that is no message is passed over */
    end_pieces(&p, 0, 0, 0, 0);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint32_t ids[3], count = 0;

        if (rows[i].config != NULL)
            scratch_put("tokenizer_config.json", rows[i].config);
        assert_ok(st_tokenizer_open(&t, scratch_path("tokenizer.model")));
        if (rows[i].begins)
            ids[count++] = 1;
        ids[count++] = 3;
        if (rows[i].ends)
            ids[count++] = 2;
        check_ids(t, "a", true, ids, count);
        check_ids(t, "a", false, (const uint32_t[]){3}, 1);
        assert_int_equal(st_tokenizer_role(t, ST_TOKEN_BOS), 1);
        assert_int_equal(st_tokenizer_role(t, ST_TOKEN_EOS), 2);
        assert_int_equal(st_tokenizer_role(t, ST_TOKEN_UNK), 0);
        assert_int_equal(st_tokenizer_role(t, ST_TOKEN_PAD), ST_TOKEN_NONE);
        st_tokenizer_close(t);
    }
    scratch_put("tokenizer_config.json", /* what it names counts, not what the model does */
                "{\"add_eos_token\":true,\"bos_token\":\"a\",\"eos_token\":{\"content\":\"<s>\"},\"unk_token\":\"none\"}");
    assert_ok(st_tokenizer_open(&t, scratch_path("tokenizer.model")));
    check_ids(t, "a", true, (const uint32_t[]){3, 3, 1}, 3);
    assert_int_equal(st_tokenizer_role(t, ST_TOKEN_EOS), 1);
    assert_int_equal(st_tokenizer_role(t, ST_TOKEN_UNK), 0);
    st_tokenizer_close(t);
    scratch_put("tokenizer_config.json", "{\"add_bos_token\":1}");
    assert_refused(st_tokenizer_open(&t, scratch_path("tokenizer.model")), STRATA_E_INPUT,
                   "tokenizer_config.json: add_bos_token: must be true or false");
    scratch_put("tokenizer_config.json", "{\"add_eos_token\":\"no\"}");
    assert_refused(st_tokenizer_open(&t, scratch_path("tokenizer.model")), STRATA_E_INPUT,
                   "tokenizer_config.json: add_eos_token: must be true or false");
    scratch_put("tokenizer_config.json", "{\"legacy\":0}");
    assert_refused(st_tokenizer_open(&t, scratch_path("tokenizer.model")), STRATA_E_INPUT,
                   "tokenizer_config.json: legacy: must be true or false");
}

/* Ids that the trainer's settings say, and those that are no piece. */
TEST_SETUP(test_roles_of_a_model, NULL, drop_files)
{
    struct st_tokenizer *t;
    struct proto p;

    for (unsigned field = 40; field < 44; field++)
        for (uint64_t id = 0; id < 7; id++) {
            const enum st_token_role role =
                (const enum st_token_role[]){ST_TOKEN_UNK, ST_TOKEN_BOS, ST_TOKEN_EOS, ST_TOKEN_PAD}[field - 40];

            begin_pieces(&p);
            put_piece(&p, "<pad>", 0, CONTROL);
            put_piece(&p, "a", -1, NORMAL);
            end_pieces(&p, field, id, 0, 0);
            assert_ok(st_tokenizer_open(&t, scratch_path("tokenizer.model")));
            assert_int_equal(st_tokenizer_role(t, role), id < 5 ? id : ST_TOKEN_NONE);
            st_tokenizer_close(t);
        }
}

TEST_SETUP(test_models_of_another_kind_are_refused, NULL, drop_files)
{
    static const struct {
        unsigned trainer_field, trainer, normalizer_field, normalizer;
        const char *part;
    } rows[] = {
        {3, 1, 0, 0, "trainer_spec.model_type must be BPE"},
        {3, 3, 0, 0, "trainer_spec.model_type must be BPE"},
        {24, 1, 0, 0, "trainer_spec.treat_whitespace_as_suffix must be false"},
        {0, 0, 4, 1, "normalizer_spec.remove_extra_whitespaces must be false"},
        {0, 0, 5, 0, "normalizer_spec.escape_whitespaces must be true"},
    };
    struct st_tokenizer *t;
    struct proto p, part = {.count = 0};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        begin_pieces(&p);
        put_piece(&p, "a", -1, NORMAL);
        end_pieces(&p, rows[i].trainer_field, rows[i].trainer, rows[i].normalizer_field, rows[i].normalizer);
        assert_refused(st_tokenizer_open(&t, scratch_path("tokenizer.model")), STRATA_E_INPUT, rows[i].part);
    }
    begin_pieces(&p);
    put_message(&part, 2, "map", 3);
    put_message(&p, 3, part.bytes, part.count);
    end_pieces(&p, 24, 0, 5, 1);
    assert_refused(st_tokenizer_open(&t, scratch_path("tokenizer.model")), STRATA_E_INPUT,
                   "normalizer_spec.precompiled_charsmap must be empty");
}

TEST_SETUP(test_pieces_that_are_none, NULL, drop_files)
{
    char large[513];
    const struct {
        const char *text;
        size_t bytes;
        float score;
        unsigned type;
        const char *part;
    } rows[] = {
        {"a", 1, NAN, NORMAL, "piece 3 must have 1 to 512 bytes, none of them 0, and a score"},
        {"", 0, 0, NORMAL, "piece 3 must have 1 to 512 bytes"},
        {"a\0b", 3, 0, NORMAL, "piece 3 must have 1 to 512 bytes"},
        {large, 513, 0, CONTROL, "piece 3 must have 1 to 512 bytes"},
        {"a\xff", 2, 0, CONTROL, "piece 3 is not UTF-8"},
        {"ab", 2, 0, NORMAL, "piece 3 has a character that has no piece"},
        {"a", 1, 0, USER_DEFINED, "piece 3 is of type 4"},
        {"a", 1, 0, UNUSED, "piece 3 is of type 5"},
        {"a", 1, 0, 0, "piece 3 is of type 0"},
        {"a", 1, 0, 7, "piece 3 is of type 7"},
        {"<s>", 3, 0, NORMAL, "<s>"},
        {large, 512, 0, CONTROL, NULL},
    };
    struct st_tokenizer *t;
    struct proto p;

    memset(large, 'l', sizeof(large));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        begin_pieces(&p);
        put_piece_bytes(&p, rows[i].text, rows[i].bytes, rows[i].score, rows[i].type);
        end_pieces(&p, 0, 0, 0, 0);
        if (rows[i].part != NULL) {
            assert_refused(st_tokenizer_open(&t, scratch_path("tokenizer.model")), STRATA_E_INPUT, rows[i].part);
        } else {
            assert_ok(st_tokenizer_open(&t, scratch_path("tokenizer.model")));
            st_tokenizer_close(t);
        }
    }
}

/* --- the order of merges --- */

enum { LETTERS = 3, PIECES = 24, PIECE_MOST = 6, TEXT_MOST = 40 };

struct pieces {
    char texts[PIECES][PIECE_MOST + 1];
    float scores[PIECES];
    uint32_t count;
};

/* The letters and seeded words of them, whose scores often are equal. */
static void make_pieces(struct pieces *s, uint64_t seed)
{
    *s = (struct pieces){.count = LETTERS};
    for (uint32_t i = 0; i < LETTERS; i++)
        s->texts[i][0] = (char)('a' + i);
    for (uint64_t n = 0; s->count < PIECES; n++) {
        const uint64_t letters = 2 + st_rng_u64(seed, n, 0) % (n < 30 ? 1 : PIECE_MOST - 1);
        char *text = s->texts[s->count];
        bool known = false;

        for (uint64_t i = 0; i < letters; i++)
            text[i] = (char)('a' + st_rng_u64(seed, n, 1 + i) % LETTERS);
        text[letters] = '\0';
        for (uint32_t i = 0; i < s->count; i++)
            known = known || strcmp(s->texts[i], text) == 0;
        if (!known)
            s->scores[s->count++] = -(float)(st_rng_u64(seed, n, 99) % 8);
    }
}

static uint32_t find_joined(const struct pieces *s, uint32_t left, uint32_t right)
{
    char text[2 * PIECE_MOST + 1];

    snprintf(text, sizeof(text), "%s%s", s->texts[left], s->texts[right]);
    for (uint32_t i = 0; i < s->count; i++)
        if (strcmp(s->texts[i], text) == 0)
            return i;
    return UINT32_MAX;
}

/* The neighbours whose joined text is the piece with the best score become one, the leftmost first, until none do. */
static uint32_t join_pieces(const struct pieces *s, const char *text, uint32_t ids[TEXT_MOST])
{
    uint32_t count = 0;

    for (; text[count] != '\0'; count++)
        ids[count] = (uint32_t)(text[count] - 'a');
    for (;;) {
        uint32_t at = UINT32_MAX, best = 0;

        for (uint32_t i = 0; i + 1 < count; i++) {
            const uint32_t joined = find_joined(s, ids[i], ids[i + 1]);

            if (joined != UINT32_MAX && (at == UINT32_MAX || s->scores[joined] > s->scores[best])) {
                at = i;
                best = joined;
            }
        }
        if (at == UINT32_MAX)
            return count;
        ids[at] = best;
        memmove(ids + at + 1, ids + at + 2, (count - at - 2) * sizeof(ids[0]));
        count--;
    }
}

TEST_SETUP(test_the_best_score_joins_first, NULL, drop_files)
{
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct st_tokenizer *t;
        struct pieces s;
        struct proto p;

        make_pieces(&s, seed);
        begin_pieces(&p);
        for (uint32_t i = 0; i < s.count; i++)
            put_piece(&p, s.texts[i], s.scores[i], NORMAL);
        end_pieces(&p, 0, 0, 0, 0);
        assert_ok(st_tokenizer_open(&t, scratch_path("tokenizer.model")));
        for (uint64_t n = 0; n < 20; n++) {
            char text[TEXT_MOST + 1] = "";
            uint32_t ids[TEXT_MOST], count;

            for (uint64_t i = 0; i < TEXT_MOST - n; i++)
                text[i] = (char)('a' + st_rng_u64(seed, 1000 + n, i) % LETTERS);
            count = join_pieces(&s, text, ids);
            for (uint32_t i = 0; i < count; i++)
                ids[i] += 3;
            check_ids(t, text, false, ids, count);
        }
        st_tokenizer_close(t);
    }
}

TEST_GROUP(scratch_create, scratch_remove);

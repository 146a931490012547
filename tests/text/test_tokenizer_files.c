/* tests/text/test_tokenizer_files.c - what tokenizer files may say: all that is refused, by name; older files; who begins and
 * ends. */
#include "core/base/fault.h"
#include "core/system/file.h"
#include "tests/common/scratch.h"
#include "tests/common/whole_file.h"
#include "tests/text/text_fixture.h"
#include "text/tokenizer/tokenizer.h"

#include <unistd.h>

#define GOLDEN "tests/golden/tokenizers"

static void drop_file(const char *name)
{
    (void)unlink(scratch_path(name));
}

static strata_status open_text(struct st_tokenizer **t, const char *json)
{
    scratch_put("tokenizer.json", json);
    return st_tokenizer_open(t, scratch_dir);
}

#define MODEL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"

TEST(test_what_is_not_understood_is_refused_by_name)
{
    static const struct {
        const char *json, *part;
    } rows[] = {
        {"[]", "must be an object"},
        {"{}", "model: is missing"},
        {"{\"model\":{\"type\":7,\"vocab\":{\"a\":0},\"merges\":[]}}", "model.type: must be a string"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "model.type: \"Unigram\": only BPE"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}}", "model.dropout: must be null"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"novelty\":1}}", "model.novelty: not supported"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"end_of_word_suffix\":\"</w>\"}}", "model.end_of_word_suffix: \"</w>\""},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"?\"}}",
         "model.unk_token: \"?\" is not in the vocabulary"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"byte_fallback\":true},\"pre_tokenizer\":{\"type\":\"ByteLevel\"}}",
         "model: byte_fallback: not supported beside ByteLevel where byte 0x00 has no token"},
        {"{\"model\":{\"merges\":[]}}", "model.vocab: is missing"},
        {"{\"model\":{\"vocab\":{},\"merges\":[]}}", "model.vocab: is empty"},
        {"{\"model\":{\"vocab\":{\"a\":4194304},\"merges\":[]}}", "the id of \"a\" must be a whole number below 4194304"},
        {"{\"model\":{\"vocab\":{\"a\":1e18},\"merges\":[]}}", "the id of \"a\""},
        {"{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "the id of \"a\""},
        {"{\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", "two tokens have the id 0"},
        {"{\"model\":{\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}", "duplicate key \"a\""},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", "model.merges: entry 0 must be \"LEFT RIGHT\""},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a a\"]}}", "entry 0 must be"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", "entry 0 must be"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"x\"]]}}", "entry 0: \"x\" is not in the vocabulary"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", "what \"a\" and \"a\" merge to is not in the vocabulary"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":7}}", "model.merges: must be a list"},
        {"{" MODEL ",\"added_tokens\":[{\"id\":7,\"content\":\"x\"}]}",
         "added_tokens[0].id: is 7, but \"x\" has the id 3 by its place"},
        {"{" MODEL ",\"added_tokens\":[{\"id\":3,\"content\":\"x\"},{\"id\":4,\"content\":\"x\"}]}", "added_tokens[1]"},
        {"{" MODEL ",\"added_tokens\":[{\"id\":3}]}", "added_tokens[0].content: is missing"},
        {"{" MODEL ",\"added_tokens\":[{\"id\":99999999999,\"content\":\"x\"}]}", "added_tokens[0].id: must be a whole number"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"NFC\"},\"added_tokens\":[{\"id\":3,\"content\":\"a\u00e9\"},"
         "{\"id\":4,\"content\":\"ae\\u0301\"}]}",
         "the normalizer makes one text of \"a\u00e9\", id 3, and \"ae\u0301\", id 4"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"x\"},\"content\":\"\"},"
         "\"added_tokens\":[{\"id\":3,\"content\":\"xx\"}]}",
         "the normalizer leaves nothing of \"xx\", id 3"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"NFKC\"}}", "normalizer.type: \"NFKC\": not supported"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Lowercase\"}]}}",
         "normalizer.normalizers[0].type: \"Lowercase\": not supported"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"x\"}}",
         "normalizer.pattern"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Prepend\"}}", "normalizer.prepend: is missing"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Whitespace\"}}", "pre_tokenizer.type: \"Whitespace\": not supported"},
        {"{" MODEL
         ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
         "{\"type\":\"Digits\",\"individual_digits\":true}]}}",
         "pre_tokenizer: ByteLevel must be the last part"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a(?#b)\"},\"behavior\":\"Isolated\"}}",
         "pre_tokenizer.pattern.Regex: not supported: a group other than"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{Greek}\"},\"behavior\":\"Isolated\"}}",
         "a property must be a general category"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a)\"},\"behavior\":\"Isolated\"}}",
         "unmatched closing parenthesis"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Sideways\"}}",
         "pre_tokenizer.behavior: \"Sideways\""},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"__\"}}",
         "pre_tokenizer.replacement: must be one character"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"add_prefix_space\":false}}",
         "pre_tokenizer.add_prefix_space: false contradicts prepend_scheme \"always\""},
        {"{" MODEL ",\"post_processor\":{\"type\":\"BertProcessing\"}}",
         "post_processor.type: \"BertProcessing\": not supported"},
        {"{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}}",
         "post_processor.single: must have the text once"},
        {"{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},"
         "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{}}}",
         "special_tokens has no \"<s>\""},
        {"{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},"
         "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[77]}}}}",
         "post_processor: no token has the id 77"},
        {"{" MODEL ",\"decoder\":{\"type\":\"WordPiece\"}}", "decoder.type: \"WordPiece\": not supported"},
        {"{" MODEL ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"ByteFallback\"}]}}",
         "decoder: ByteFallback must come before"},
        {"{" MODEL ",\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":-1,\"stop\":0}}",
         "decoder.start: must be a whole number"},
        {"{" MODEL ",\"normalizer\":[]}", "normalizer: must be an object"},
        {"{" MODEL ",\"normalizer\":{\"type\":7}}", "normalizer.type: must be a string"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Replace\",\"content\":\"x\"}}", "normalizer.pattern: is missing"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Glob\":\"a\"},\"content\":\"x\"}}",
         "normalizer.pattern.Glob: not supported"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":1},\"content\":\"x\"}}",
         "normalizer.pattern.String: must be a string"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Digits\",\"individual_digits\":\"yes\"}}",
         "pre_tokenizer.individual_digits: must be true or false"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"last\"}}",
         "pre_tokenizer.prepend_scheme: \"last\": not supported"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":1}}",
         "pre_tokenizer.prepend_scheme: must be a string"},
        {"{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Word\":{}}]}}",
         "post_processor.single[0].Word: not supported"},
        {"{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{}}]}}",
         "post_processor.single[0].SpecialToken.id: is missing"},
        {"{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}}],"
         "\"special_tokens\":{\"<s>\":{\"ids\":[4194304]}}}}",
         "ids: must be whole numbers below 4194304"},
        {"{" MODEL ",\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"stop\":0}}", "decoder.start: is missing"},
        {"{" MODEL ",\"decoder\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a\"},\"content\":\"x\"}}",
         "decoder.pattern.Regex: not supported here"},
        {"{" MODEL ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Replace\",\"pattern\":"
         "{\"String\":\"ab\"},\"content\":\"x\"}]}}",
         "decoder: Replace must come before"},
        {"{" MODEL ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteLevel\"},{\"type\":\"ByteLevel\"}]}}",
         "decoder: ByteLevel must come before"},
        {"{" MODEL ",\"spell_checker\":{}}", "spell_checker: not supported"},
    };
    struct st_tokenizer *t;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_refused(open_text(&t, rows[i].json), STRATA_E_INPUT, rows[i].part);
}

/* Sequences in Sequences: to a depth, and to a number of parts. */
TEST(test_depth_and_number_of_parts_are_limited)
{
    char text[16384] = "{" MODEL ",\"pre_tokenizer\":";
    struct st_tokenizer *t;

    for (unsigned i = 0; i < 12; i++)
        strcat(text, "{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (unsigned i = 0; i < 12; i++)
        strcat(text, "]}");
    strcat(text, "}");
    assert_refused(open_text(&t, text), STRATA_E_INPUT, "nested deeper than 8");
    strcpy(text, "{" MODEL ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (unsigned i = 0; i < 65; i++)
        strcat(text, i == 0 ? "{\"type\":\"Digits\"}" : ",{\"type\":\"Digits\"}");
    strcat(text, "]}}");
    assert_refused(open_text(&t, text), STRATA_E_INPUT, "more than 64 parts");
}

TEST(test_a_directory_without_a_tokenizer)
{
    struct st_tokenizer *t;

    drop_file("tokenizer.json");
    assert_refused(st_tokenizer_open(&t, scratch_dir), STRATA_E_INPUT, "no tokenizer.json, tokenizer.model or vocab.json");
    assert_refused(st_tokenizer_open(&t, "no/such/directory"), STRATA_E_INPUT, "no/such/directory");
}

TEST(test_roles)
{
    static const struct {
        const char *config, *map;
        uint32_t bos, eos, pad;
    } rows[] = {
        {NULL, NULL, ST_TOKEN_NONE, ST_TOKEN_NONE, ST_TOKEN_NONE},
        {"{\"bos_token\":null,\"eos_token\":\"b\"}", NULL, ST_TOKEN_NONE, 1, ST_TOKEN_NONE},
        {"{\"bos_token\":{\"content\":\"a\"},\"pad_token\":\"not there\"}", "{\"eos_token\":\"ab\",\"bos_token\":\"b\"}", 1, 2,
         ST_TOKEN_NONE},
        {"{\"bos_token\":{\"content\":\"a\"},\"added_tokens_decoder\":{}}", "{\"eos_token\":\"ab\",\"bos_token\":\"b\"}", 0, 2,
         ST_TOKEN_NONE},
        {"{\"eos_token\":\"a\"}", "{\"bos_token\":null}", ST_TOKEN_NONE, 0, ST_TOKEN_NONE},
    };
    struct st_tokenizer *t;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].config != NULL)
            scratch_put("tokenizer_config.json", rows[i].config);
        if (rows[i].map != NULL)
            scratch_put("special_tokens_map.json", rows[i].map);
        assert_ok(open_text(&t, "{" MODEL "}"));
        assert_int_equal(st_tokenizer_role(t, ST_TOKEN_BOS), rows[i].bos);
        assert_int_equal(st_tokenizer_role(t, ST_TOKEN_EOS), rows[i].eos);
        assert_int_equal(st_tokenizer_role(t, ST_TOKEN_PAD), rows[i].pad);
        st_tokenizer_close(t);
    }
    scratch_put("tokenizer_config.json", "{\"eos_token\":\"</s>\"}");
    assert_refused(open_text(&t, "{" MODEL "}"), STRATA_E_INPUT, "tokenizer_config.json: eos_token: \"</s>\" is no token of");
    drop_file("tokenizer_config.json");
    drop_file("special_tokens_map.json");
}

/* The same tokens out of vocab.json and merges.txt as out of tokenizer.json. */
TEST(test_vocab_and_merges)
{
    static const char text[] = "Hello,  world's 12 <|endoftext|>caf\xc3\xa9";
    char *json = read_file(GOLDEN "/gpt2.json", NULL), *vocab, *merges, *end;
    struct st_encoding a = {0}, b = {0};
    struct st_tokenizer *t, *from_json;
    struct st_encoder *e;

    drop_file("tokenizer.json");
    vocab = strchr(strstr(json, "\"vocab\":") + 8, '{');
    end = strstr(vocab, ",\"merges\":");
    *end = '\0';
    scratch_put("vocab.json", vocab);
    merges = end + strlen(",\"merges\":") + 1; /* ["a","b"],... */
    *strstr(merges, "]]") = '\0';
    {
        char *lines = calloc(1, strlen(merges) + 64), *to = lines + sprintf(lines, "#version: 0.2\n");

        for (char *at = merges; *at != '\0'; at++)
            if (strncmp(at, "\",\"", 3) == 0 && (*to++ = ' '))
                at += 2;
            else if (strncmp(at, "\"],[\"", 5) == 0 && (*to++ = '\n'))
                at += 4;
            else if (*at != '[' && *at != '"')
                *to++ = *at;
        scratch_put("merges.txt", lines);
        free(lines);
    }
    free(json);
    scratch_put("tokenizer_config.json", "{\"tokenizer_class\":\"GPT2TokenizerFast\",\"eos_token\":\"<|endoftext|>\","
                                         "\"added_tokens_decoder\":{\"420\":{\"content\":\"<|endoftext|>\",\"special\":true}}}");
    assert_ok(st_tokenizer_open(&t, scratch_dir));
    assert_ok(st_tokenizer_open(&from_json, GOLDEN "/gpt2.json"));
    assert_int_equal(st_tokenizer_vocab(t), st_tokenizer_vocab(from_json));
    assert_int_equal(st_tokenizer_role(t, ST_TOKEN_EOS), 420);
    assert_ok(st_encoder_create(&e, t));
    assert_ok(st_encode(e, text, sizeof(text) - 1, NULL, &a));
    st_encoder_destroy(e);
    assert_ok(st_encoder_create(&e, from_json));
    assert_ok(st_encode(e, text, sizeof(text) - 1, NULL, &b));
    st_encoder_destroy(e);
    assert_int_equal(a.count, b.count);
    assert_memory_equal(a.ids, b.ids, a.count * sizeof(a.ids[0]));
    st_encoding_free(&a);
    st_encoding_free(&b);
    st_tokenizer_close(t);
    st_tokenizer_close(from_json);
    scratch_put("tokenizer_config.json", "{\"tokenizer_class\":\"BertTokenizer\"}");
    assert_refused(st_tokenizer_open(&t, scratch_dir), STRATA_E_INPUT,
                   "tokenizer_class: \"BertTokenizer\": not supported without a tokenizer.json");
    drop_file("tokenizer_config.json");
    scratch_put("merges.txt", "a b c\n");
    assert_refused(st_tokenizer_open(&t, scratch_dir), STRATA_E_INPUT, "merge 1 must be two tokens");
    drop_file("merges.txt");
    drop_file("vocab.json");
}

/* A SentencePiece model: cut off anywhere, or with another kind of model in it, it is refused; never more. */
TEST(test_sentencepiece_files)
{
    size_t bytes;
    char *model = read_file(GOLDEN "/sentencepiece/tokenizer.model", &bytes), path[ST_PATH_MAX];
    struct st_tokenizer *t;

    assert_ok(st_path_join(path, scratch_dir, "tokenizer.model"));
    for (size_t cut = 0; cut < bytes; cut += 1 + cut / 40) {
        write_file(path, model, cut);
        assert_refused(st_tokenizer_open(&t, path), STRATA_E_INPUT, "tokenizer.model: ");
    }
    write_file(path, "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11); /* a piece of nearly 2^64 bytes */
    assert_refused(st_tokenizer_open(&t, path), STRATA_E_INPUT, "is no SentencePiece model");
    write_file(path, "\x0a\x03\x0a\x01\x61", 5);
    assert_refused(st_tokenizer_open(&t, path), STRATA_E_INPUT, "trainer_spec.model_type must be BPE");
    write_file(path, "\x0a\x05\x0a\x01\x61\x18\x04\x12\x02\x18\x02", 11);
    assert_refused(st_tokenizer_open(&t, path), STRATA_E_INPUT, "piece 0 is of type 4");
    (void)unlink(path);
    free(model);
}

/* As SentencePiece's trainer writes it where there is no padding: -1, which takes ten bytes. */
TEST(test_ids_may_be_below_zero)
{
    static const char pad[] = "\x12\x0c\xd8\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"; /* trainer_spec.pad_id */
    struct st_tokenizer *t;
    size_t bytes;
    char *model = read_file(GOLDEN "/sentencepiece/tokenizer.model", &bytes), path[ST_PATH_MAX];

    model = realloc(model, bytes + sizeof(pad));
    assert_non_null(model);
    memcpy(model + bytes, pad, sizeof(pad));
    assert_ok(st_path_join(path, scratch_dir, "tokenizer.model"));
    write_file(path, model, bytes + sizeof(pad) - 1);
    assert_ok(st_tokenizer_open(&t, path));
    st_tokenizer_close(t);
    (void)unlink(path);
    free(model);
}

/* Without trainer_spec.byte_fallback, what no piece has is the piece of type UNKNOWN: one for characters side by side. */
TEST(test_unknown_characters_are_the_unknown_piece)
{
    static const char *const texts[] = {"\xe6\x97\xa5\xe6\x9c\xac", "\xc3\xa9 \xc3\xa9"};
    static const uint32_t unknown[] = {1, 2};
    struct st_encoding out = {0};
    struct st_tokenizer *t;
    struct st_encoder *e;
    size_t bytes;
    char *model = read_file(GOLDEN "/sentencepiece/tokenizer.model", &bytes), path[ST_PATH_MAX];
    char *flag = memmem(model, bytes, "\x98\x02\x01", 3);

    assert_non_null(flag);
    flag[2] = 0;
    assert_ok(st_path_join(path, scratch_dir, "tokenizer.model"));
    write_file(path, model, bytes);
    assert_ok(st_tokenizer_open(&t, path));
    assert_ok(st_encoder_create(&e, t));
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        uint32_t count = 0;

        out.count = 0;
        assert_ok(st_encode(e, texts[i], strlen(texts[i]), NULL, &out));
        for (size_t k = 0; k < out.count; k++)
            count += out.ids[k] == 0;
        assert_int_equal(count, unknown[i]);
        assert_true(out.count <= 2u * unknown[i]); /* each behind a space's piece */
    }
    st_encoder_destroy(e);
    st_tokenizer_close(t);
    st_encoding_free(&out);
    (void)unlink(path);
    free(model);
}

/* Pairs of one rank: the leftmost first, whether few symbols are scanned or many are heaped. */
TEST(test_the_leftmost_of_equals_merges_first)
{
    struct st_encoding out = {0};
    struct st_tokenizer *t;
    struct st_encoder *e;
    char text[200];

    memset(text, 'a', sizeof(text));
    assert_ok(open_text(&t, "{\"model\":{\"vocab\":{\"a\":0,\"aa\":1},\"merges\":[\"a a\"]}}"));
    assert_ok(st_encoder_create(&e, t));
    for (size_t bytes = 1; bytes <= sizeof(text); bytes++) {
        out.count = 0;
        assert_ok(st_encode(e, text, bytes, NULL, &out));
        assert_int_equal(out.count, (bytes + 1) / 2);
        for (size_t i = 0; i < out.count; i++)
            assert_int_equal(out.ids[i], 2 * i + 1 < bytes);
    }
    st_encoder_destroy(e);
    st_tokenizer_close(t);
    st_encoding_free(&out);
}

/* A match is a piece of its own, with what is before it, or with what follows it; two side by side are two. */
TEST(test_matches_side_by_side_are_apart)
{
    static const struct {
        const char *behavior;
        uint32_t ids[6]; /* of "a--b": a is 0, b 1, - 2, -- 3, a- 4, -b 5; UINT32_MAX ends them */
    } rows[] = {{"Isolated", {0, 2, 2, 1, UINT32_MAX}},
                {"MergedWithPrevious", {4, 2, 1, UINT32_MAX}},
                {"MergedWithNext", {0, 2, 5, UINT32_MAX}},
                {"Contiguous", {0, 3, 1, UINT32_MAX}},
                {"Removed", {0, 1, UINT32_MAX}}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_encoding out = {0};
        struct st_tokenizer *t;
        struct st_encoder *e;
        char json[512];
        uint32_t count = 0;

        snprintf(
            json, sizeof(json),
            "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":\"%s\",\"invert\":false},"
            "\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"-\":2,\"--\":3,\"a-\":4,\"-b\":5},\"merges\":[\"- -\",\"a -\",\"- b\"]}}",
            rows[i].behavior);
        assert_ok(open_text(&t, json));
        assert_ok(st_encoder_create(&e, t));
        assert_ok(st_encode(e, "a--b", 4, NULL, &out));
        while (rows[i].ids[count] != UINT32_MAX)
            count++;
        if (out.count != count || memcmp(out.ids, rows[i].ids, count * sizeof(uint32_t)) != 0)
            fail_msg("%s: %zu ids, the first two %u %u", rows[i].behavior, (size_t)out.count, out.ids[0], out.ids[1]);
        st_encoder_destroy(e);
        st_tokenizer_close(t);
        st_encoding_free(&out);
    }
}

/* The first `count` of the 256 pairs of 16 letters are merges. */
static void check_merges(uint32_t count)
{
    char json[8192], *at = json + sprintf(json, "{\"model\":{\"vocab\":{");
    struct st_encoding out = {0};
    struct st_tokenizer *t;
    struct st_encoder *e;

    for (uint32_t i = 0; i < 16; i++)
        at += sprintf(at, "%s\"%c\":%u", i > 0 ? "," : "", 'a' + (int)i, i);
    for (uint32_t i = 0; i < count; i++)
        at += sprintf(at, ",\"%c%c\":%u", 'a' + (int)(i / 16), 'a' + (int)(i % 16), 16 + i);
    at += sprintf(at, "},\"merges\":[");
    for (uint32_t i = 0; i < count; i++)
        at += sprintf(at, "%s\"%c %c\"", i > 0 ? "," : "", 'a' + (int)(i / 16), 'a' + (int)(i % 16));
    sprintf(at, "]}}");
    assert_ok(open_text(&t, json));
    assert_ok(st_encoder_create(&e, t));
    for (uint32_t i = 0; i < 256; i++) {
        const uint32_t x = i / 16, y = i % 16;
        const char text[] = {'a', (char)('a' + x), (char)('a' + y), 'z'}; /* z is no token */

        out.count = 0;
        assert_ok(st_encode(e, text + 1, 3, NULL, &out)); /* a pair that is a merge, or none */
        assert_int_equal(out.count, i < count ? 1 : 2);
        assert_int_equal(out.ids[0], i < count ? 16 + i : x);
        out.count = 0;
        assert_ok(st_encode(e, text, 4, NULL, &out)); /* what "a" and x merge to is looked for beside y */
        assert_int_equal(out.count, x < count ? 2 : 3);
        assert_int_equal(out.ids[0], x < count ? 16 + x : 0);
        assert_int_equal(out.ids[out.count - 1], y);
    }
    st_encoder_destroy(e);
    st_tokenizer_close(t);
    st_encoding_free(&out);
}

/* A look for what is not there ends, however full a power of two of merges and tokens makes the tables. */
TEST(test_any_number_of_merges)
{
    for (uint32_t power = 1; power <= 256; power *= 2)
        for (uint32_t beside = 0; beside < 3; beside++)
            check_merges(power + beside - 1 < 256 ? power + beside - 1 : 256);
    check_merges(48); /* 64 tokens */
    check_merges(112);
    check_merges(240);
}

static uint32_t open_with_fault(const char *path, uint32_t after)
{
    struct st_tokenizer *t;
    uint32_t fired;
    strata_status st;

    st_fault_arm(&(struct st_fault_spec){.site = "tokenizer.alloc", .after = after, .count = 1, .result = -ENOMEM});
    st = st_tokenizer_open(&t, path);
    fired = st_fault_disarm();
    assert_true(fired == 0 ? st == STRATA_OK : st == STRATA_E_NOMEM);
    if (st == STRATA_OK)
        st_tokenizer_close(t);
    return fired;
}

TEST(test_every_allocation_may_fail)
{
    static const char *const paths[] = {GOLDEN "/llama2.json", GOLDEN "/corners.json", GOLDEN "/sentencepiece"};

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        for (uint32_t after = 0; open_with_fault(paths[i], after) > 0; after = after < 60 ? after + 1 : after + after / 8)
            ;
}

/* A token of spaces that takes the spaces around it takes what other matches were to begin with. */
TEST(test_spaces_are_taken_once)
{
    static const struct {
        const char *text;
        uint32_t count, ids[6];
    } cases[] = {{"      a", 2, {1, 0}}, {"a   b", 3, {0, 1, 2}}, {"x    b", 2, {3, 2}}, {"  a     ", 3, {1, 0, 1}}};
    struct st_tokenizer *t;
    struct st_encoder *e;

    scratch_put("tokenizer.json",
                "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"  \":1,\"b\":2,\"x\":3},\"merges\":[]},\"added_tokens\":["
                "{\"id\":1,\"content\":\"  \",\"lstrip\":true,\"rstrip\":true,\"normalized\":false},"
                "{\"id\":3,\"content\":\"x\",\"rstrip\":true,\"normalized\":false}]}");
    assert_ok(st_tokenizer_open(&t, scratch_dir));
    assert_ok(st_encoder_create(&e, t));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct st_encoding out = {0};

        assert_ok(st_encode(e, cases[i].text, strlen(cases[i].text), NULL, &out));
        assert_int_equal(out.count, cases[i].count);
        assert_memory_equal(out.ids, cases[i].ids, out.count * sizeof(uint32_t));
        st_encoding_free(&out);
    }
    st_encoder_destroy(e);
    st_tokenizer_close(t);
}

/* Each space of a run is a token that takes the rest of the run: without a memory of where that ends, this test would take hours.
 */
TEST(test_a_long_run_of_spaces_is_looked_at_once)
{
    static const struct {
        const char *flags;
        size_t count;
    } cases[] = {{"\"rstrip\":true", 2000000}, {"\"lstrip\":true,\"rstrip\":true", 1}};
    const size_t bytes = 2000000;
    char *spaces = malloc(bytes), json[256];

    assert_non_null(spaces);
    memset(spaces, ' ', bytes);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct st_encoding out = {0};
        struct st_tokenizer *t;
        struct st_encoder *e;

        snprintf(json, sizeof(json), "{" MODEL ",\"added_tokens\":[{\"id\":3,\"content\":\" \",%s}]}", cases[i].flags);
        assert_ok(open_text(&t, json));
        assert_ok(st_encoder_create(&e, t));
        assert_ok(st_encode(e, spaces, bytes, NULL, &out));
        assert_int_equal(out.count, cases[i].count);
        for (size_t k = 0; k < out.count; k++)
            assert_true(out.ids[k] == 3 && out.begins[k] == k && out.ends[k] == bytes);
        st_encoding_free(&out);
        st_encoder_destroy(e);
        st_tokenizer_close(t);
    }
    free(spaces);
}

/* Five bytes that become 5 * 10^12. */
TEST(test_a_normalizer_without_end_is_refused)
{
    static const char tens[] = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaaaaaaaa\"}";
    struct st_encoding out = {0};
    struct st_tokenizer *t;
    struct st_encoder *e;
    char text[2048];
    int at = snprintf(text, sizeof(text), "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[%s", tens);

    for (unsigned i = 1; i < 12; i++)
        at += snprintf(text + at, sizeof(text) - (size_t)at, ",%s", tens);
    snprintf(text + at, sizeof(text) - (size_t)at, "]},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}");
    scratch_put("tokenizer.json", text);
    assert_ok(st_tokenizer_open(&t, scratch_dir));
    assert_ok(st_encoder_create(&e, t));
    assert_refused(st_encode(e, "aaaaa", 5, NULL, &out), STRATA_E_INPUT, "the normalizer makes more than 1048656 bytes");
    st_encoding_free(&out);
    st_encoder_destroy(e);
    st_tokenizer_close(t);
}

TEST_GROUP(scratch_create, scratch_remove);

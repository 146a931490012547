/* text/tokenizer/tokenizer_files.c - vocab.json with merges.txt, the files of tokenizers older than tokenizer.json.
 *
 * They say nothing but the model; what happens before and after is that of the class which tokenizer_config.json names. */
#include "text/tokenizer/tokenizer_internal.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/system/file.h"

#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX (256u << 20)

/* The parts that a class stands for, as a tokenizer.json would write them. */
static const struct {
    const char *name, *parts;
} classes[] = {
    {"GPT2Tokenizer",
     "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"}}"},
    {"Qwen2Tokenizer", "{\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
                       "\"Split\",\"pattern\":"
                       "{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| "
                       "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|"
                       "\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\",\"add_"
                       "prefix_space\":false,"
                       "\"use_regex\":false}]},\"decoder\":{\"type\":\"ByteLevel\"}}"},
};

strata_status st_tokenizer_parse_parts(struct st_tokenizer *t, const char *parts, const char *path)
{
    struct st_place at = {.file = path};
    st_json *root;
    strata_status st = st_json_parse(&root, parts, strlen(parts), path);

    if (st != STRATA_OK)
        return st;
    at.node = root;
    st = st_tokenizer_read_parts(t, &at);
    st_json_free(root);
    return st;
}

/* One line of merges.txt: "LEFT RIGHT". */
static strata_status read_line(struct st_tokenizer *t, const struct st_place *at, const char *line, size_t bytes, uint32_t rank)
{
    const char *space = memchr(line, ' ', bytes);

    if (space == NULL || memchr(space + 1, ' ', bytes - (size_t)(space + 1 - line)) != NULL)
        return st_place_fault(at, NULL, "merge %u must be two tokens with a space between", rank + 1);
    return st_bpe_add_merge(&t->bpe, at, rank, line, (size_t)(space - line), space + 1, bytes - (size_t)(space + 1 - line));
}

static strata_status read_merges(struct st_tokenizer *t, const char *path)
{
    const struct st_place at = {.file = path};
    char *text;
    uint64_t bytes;
    uint32_t lines = 0, rank = 0;
    strata_status st = st_file_read_text(&text, &bytes, path, FILE_BYTES_MAX);

    if (st != STRATA_OK)
        return st;
    for (uint64_t i = 0; i < bytes; i++)
        lines += text[i] == '\n';
    if (strlen(text) != bytes || !st_text_is_utf8(text))
        st = st_place_fault(&at, NULL, "is not UTF-8");
    else if (!st_merges_reserve(&t->bpe.merges, (size_t)lines + 1))
        st = st_nomem(0);
    for (const char *line = text, *end; st == STRATA_OK && *line != '\0'; line = end + (*end == '\n')) {
        end = strchrnul(line, '\n');
        if (end > line && strncmp(line, "#version", 8) != 0)
            st = read_line(t, &at, line, (size_t)(end - line), rank++);
    }
    free(text);
    return st;
}

/* The class of the tokenizer, without the "Fast" that makes no difference here; the first one where no file says. */
static strata_status find_parts(const char **parts, const st_json *config, const char *path)
{
    const struct st_place at = {.file = "tokenizer_config.json", .node = config};
    const char *name = classes[0].name;
    strata_status st = config != NULL ? st_place_text(&name, &at, "tokenizer_class") : STRATA_OK;

    if (st != STRATA_OK)
        return st;
    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++) {
        const size_t length = strlen(classes[i].name);

        if (strncmp(name, classes[i].name, length) == 0 && (name[length] == '\0' || strcmp(name + length, "Fast") == 0)) {
            *parts = classes[i].parts;
            return STRATA_OK;
        }
    }
    return st_place_fault(&at, "tokenizer_class",
                          "\"%.40s\": not supported without a tokenizer.json, and there is none beside %s", name, path);
}

/* "added_tokens_decoder": {"50256": {"content": ...}}: tokens as tokenizer.json lists them. */
static strata_status read_added(struct st_tokenizer *t, const st_json *config)
{
    const struct st_place at = {.file = "tokenizer_config.json", .node = config};
    struct st_place table, token;
    strata_status st = STRATA_OK;

    if (config == NULL)
        return STRATA_OK;
    if ((st = st_place_object(&table, &at, "added_tokens_decoder")) != STRATA_OK || table.node == NULL)
        return st;
    for (const st_json *node = st_json_first(table.node); node != NULL && st == STRATA_OK; node = st_json_next(node)) {
        char *end;
        const unsigned long id = strtoul(st_json_name(node), &end, 10);

        if (*end != '\0' || end == st_json_name(node) || id >= ST_TOKENIZER_VOCAB_MAX)
            return st_place_fault(&table, st_json_name(node), "the name must be an id below %u", ST_TOKENIZER_VOCAB_MAX);
        if ((st = st_place_object(&token, &table, st_json_name(node))) == STRATA_OK && token.node != NULL)
            st = st_tokenizer_read_added(t, &token, (uint32_t)id);
    }
    return st;
}

/* The one special token of GPT-2, where no file lists any. */
static strata_status add_default(struct st_tokenizer *t, const char *path)
{
    static const char text[] = "{\"content\":\"<|endoftext|>\",\"special\":true,\"normalized\":false}";
    struct st_place at = {.file = path, .name = "added token"};
    const uint32_t id = st_vocab_find(&t->bpe.vocab, "<|endoftext|>", 13);
    st_json *root;
    strata_status st;

    if (t->added_count > 0 || id == ST_TOKEN_NONE)
        return STRATA_OK;
    if ((st = st_json_parse(&root, text, strlen(text), path)) != STRATA_OK)
        return st;
    at.node = root;
    st = st_tokenizer_read_added(t, &at, id);
    st_json_free(root);
    for (unsigned role = 0; role < ST_TOKEN_ROLES; role++)
        if (role != ST_TOKEN_PAD)
            t->roles[role] = id;
    return st;
}

static strata_status read_all(struct st_tokenizer *t, const char *path, const st_json *config)
{
    const struct st_place at = {.file = path};
    struct st_place model = at;
    char merges[ST_PATH_MAX];
    const char *parts = NULL;
    st_json *root;
    strata_status st = st_tokenizer_parse_file(&root, path, FILE_BYTES_MAX);

    if (st != STRATA_OK)
        return st;
    model.node = root;
    st = st_json_type(root) == ST_JSON_OBJECT ? st_tokenizer_read_vocab(&t->bpe.vocab, &model)
                                              : st_place_fault(&at, NULL, "must be an object of tokens and ids");
    st_json_free(root);
    if (st != STRATA_OK)
        return st;
    if ((st = st_path_beside(merges, path, "merges.txt")) != STRATA_OK || (st = read_merges(t, merges)) != STRATA_OK ||
        (st = find_parts(&parts, config, path)) != STRATA_OK || (st = st_tokenizer_parse_parts(t, parts, path)) != STRATA_OK ||
        (st = read_added(t, config)) != STRATA_OK)
        return st;
    return add_default(t, path);
}

strata_status st_tokenizer_read_files(struct st_tokenizer *t, const char *path)
{
    st_json *config;
    strata_status st = st_tokenizer_beside(&config, path, "tokenizer_config.json");

    if (st == STRATA_OK)
        st = read_all(t, path, config);
    st_json_free(config);
    return st;
}

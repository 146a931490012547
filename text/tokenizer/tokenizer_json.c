/* text/tokenizer/tokenizer_json.c - tokenizer.json: the model (vocabulary, merges) and the added tokens. */
#include "text/tokenizer/fields_internal.h"
#include "text/tokenizer/tokenizer_internal.h"

#include "core/base/error.h"
#include "core/json/json_parts.h"
#include "core/system/file.h"

#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX  (256u << 20) /* the largest known (a vocabulary of 262,144) has 33 MB */
#define ADDED_BYTES_MAX 1024u        /* of an added token: as many may be compared at each place of a text */

strata_status st_tokenizer_add_token(struct st_vocab *v, const struct st_place *at, const char *key, const char *text,
                                     size_t bytes, uint32_t id)
{
    const int shown = bytes < 40 ? (int)bytes : 40;

    switch (st_vocab_add(v, id, text, bytes)) {
    case ST_VOCAB_ADDED:
        return STRATA_OK;
    case ST_VOCAB_ID_TWICE:
        return st_place_fault(at, key, "two tokens have the id %u; one is \"%.*s\"", id, shown, text);
    case ST_VOCAB_TEXT_TWICE:
        return st_place_fault(at, key, "the token \"%.*s\" is there twice", shown, text);
    default:
        return st_nomem(0);
    }
}

strata_status st_tokenizer_read_vocab(struct st_vocab *v, const struct st_place *vocab)
{
    strata_status st = STRATA_OK;

    if (st_json_first(vocab->node) == NULL)
        return st_place_fault(vocab, NULL, "is empty");
    for (const st_json *node = st_json_first(vocab->node); node != NULL && st == STRATA_OK; node = st_json_next(node)) {
        const char *text = st_json_name(node);
        uint64_t id;

        if (strlen(text) > ST_TOKENIZER_TOKEN_BYTES_MAX)
            return st_place_fault(vocab, NULL, "a token of more than %u bytes", ST_TOKENIZER_TOKEN_BYTES_MAX);
        if (!st_json_u64(node, &id) || id >= ST_TOKENIZER_VOCAB_MAX)
            return st_place_fault(vocab, NULL, "the id of \"%.40s\" must be a whole number below %u", text,
                                  ST_TOKENIZER_VOCAB_MAX);
        st = st_tokenizer_add_token(v, vocab, NULL, text, strlen(text), (uint32_t)id);
    }
    return st;
}

/* Read the vocabulary from the file, in parts where it is large. */
static strata_status read_vocab(struct st_vocab *v, const struct st_place *vocab, struct st_json_large *large)
{
    struct st_place part = *vocab;
    strata_status st = STRATA_OK;
    st_json *tree;

    if (large->at == NULL)
        return st_tokenizer_read_vocab(v, vocab);
    while (st == STRATA_OK && (st = st_json_next_part(&tree, large)) == STRATA_OK && tree != NULL) {
        part.node = tree;
        st = st_tokenizer_read_vocab(v, &part);
        st_json_free(tree);
    }
    return st;
}

/* The two texts of a merge: "a b", or ["a", "b"]. */
static bool merge_texts(const st_json *node, const char **left, size_t *left_bytes, const char **right)
{
    const st_json *first, *second;
    const char *space;

    if (st_json_type(node) == ST_JSON_STRING) {
        *left = st_json_string(node);
        space = strchr(*left, ' ');
        if (space == NULL || strchr(space + 1, ' ') != NULL)
            return false;
        *left_bytes = (size_t)(space - *left);
        *right = space + 1;
        return true;
    }
    if (st_json_type(node) != ST_JSON_ARRAY || (first = st_json_first(node)) == NULL || (second = st_json_next(first)) == NULL ||
        st_json_next(second) != NULL || st_json_type(first) != ST_JSON_STRING || st_json_type(second) != ST_JSON_STRING)
        return false;
    *left = st_json_string(first);
    *left_bytes = strlen(*left);
    *right = st_json_string(second);
    return true;
}

/* The one line that merges.txt begins with; older files kept it. */
static bool is_version(const st_json *node)
{
    return st_json_type(node) == ST_JSON_STRING && strncmp(st_json_string(node), "#version", 8) == 0;
}

static strata_status read_merge(struct st_tokenizer *t, const struct st_place *model, const st_json *node, uint32_t rank)
{
    const char *left, *right;
    size_t left_bytes;

    if (!merge_texts(node, &left, &left_bytes, &right))
        return st_place_fault(model, "merges", "entry %u must be \"LEFT RIGHT\" or [\"LEFT\", \"RIGHT\"]", rank);
    return st_bpe_add_merge(&t->bpe, model, rank, left, left_bytes, right, strlen(right));
}

static strata_status read_some(struct st_tokenizer *t, const struct st_place *model, const st_json *first, uint32_t *rank)
{
    strata_status st = STRATA_OK;

    for (const st_json *node = first; node != NULL && st == STRATA_OK; node = st_json_next(node))
        if (!is_version(node))
            st = read_merge(t, model, node, (*rank)++);
    return st;
}

static strata_status read_merges(struct st_tokenizer *t, const struct st_place *model, struct st_json_large *large)
{
    const st_json *first;
    uint32_t rank = 0;
    uint64_t count = st_json_count_left(large);
    strata_status st = st_place_array(&first, model, "merges"); /* of a large one there are none */
    st_json *tree;

    for (const st_json *node = first; node != NULL; node = st_json_next(node))
        count++;
    if (st == STRATA_OK && !st_merges_reserve(&t->bpe.merges, count))
        st = st_nomem(0);
    if (st == STRATA_OK)
        st = read_some(t, model, first, &rank);
    while (st == STRATA_OK && (st = st_json_next_part(&tree, large)) == STRATA_OK && tree != NULL) {
        st = read_some(t, model, st_json_first(tree), &rank);
        st_json_free(tree);
    }
    return st;
}

/* Texts that change nothing are the same as none. */
static strata_status refuse_text(const struct st_place *at, const char *key)
{
    const char *text = "";
    strata_status st = st_place_text(&text, at, key);

    return st == STRATA_OK && text[0] != '\0' ? st_place_fault(at, key, "\"%.40s\": not supported", text) : st;
}

static strata_status read_unk(struct st_tokenizer *t, const struct st_place *model)
{
    const char *unk = "";
    strata_status st = st_place_text(&unk, model, "unk_token");

    if (st != STRATA_OK || unk[0] == '\0')
        return st;
    t->bpe.unk = st_vocab_find(&t->bpe.vocab, unk, strlen(unk));
    return t->bpe.unk == ST_TOKEN_NONE ? st_place_fault(model, "unk_token", "\"%.40s\" is not in the vocabulary", unk)
                                       : STRATA_OK;
}

static strata_status read_model(struct st_tokenizer *t, const struct st_place *root, struct st_json_large large[2])
{
    struct st_place at, vocab;
    const char *type = "BPE"; /* old files do not say */
    const st_json *dropout;
    strata_status st;

    if ((st = st_place_object(&at, root, "model")) != STRATA_OK)
        return st;
    if (at.node == NULL)
        return st_place_fault(root, "model", "is missing: this is no tokenizer.json");
    if ((st = st_place_text(&type, &at, "type")) != STRATA_OK)
        return st;
    if (strcmp(type, "BPE") != 0)
        return st_place_fault(&at, "type", "\"%.40s\": only BPE is supported", type);
    dropout = st_json_get(at.node, "dropout");
    if (dropout != NULL && st_json_type(dropout) != ST_JSON_NULL && st_json_number(dropout) != 0.0)
        return st_place_fault(&at, "dropout", "must be null: ids would be drawn by chance");
    if ((st = st_place_known(&at, "type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk byte_fallback "
                                  "ignore_merges vocab merges")) != STRATA_OK ||
        (st = refuse_text(&at, "continuing_subword_prefix")) != STRATA_OK ||
        (st = refuse_text(&at, "end_of_word_suffix")) != STRATA_OK ||
        (st = st_place_bool(&t->bpe.fuse_unk, &at, "fuse_unk")) != STRATA_OK ||
        (st = st_place_bool(&t->bpe.byte_fallback, &at, "byte_fallback")) != STRATA_OK ||
        (st = st_place_bool(&t->bpe.ignore_merges, &at, "ignore_merges")) != STRATA_OK ||
        (st = st_place_object(&vocab, &at, "vocab")) != STRATA_OK)
        return st;
    if (vocab.node == NULL)
        return st_place_fault(&at, "vocab", "is missing");
    if ((st = read_vocab(&t->bpe.vocab, &vocab, &large[0])) != STRATA_OK || (st = read_unk(t, &at)) != STRATA_OK)
        return st;
    return read_merges(t, &at, &large[1]);
}

/* The id that the reference gives to an added token: that of the vocabulary, else the next one. */
static uint32_t id_of_added(const struct st_tokenizer *t, const char *text)
{
    const uint32_t known = st_vocab_find(&t->bpe.vocab, text, strlen(text));

    if (known != ST_TOKEN_NONE)
        return known;
    return t->added_end > t->bpe.vocab.count ? t->added_end : t->bpe.vocab.count;
}

strata_status st_tokenizer_put_added(struct st_tokenizer *t, const struct st_place *at, const struct st_added *token,
                                     const char *text)
{
    struct st_added *put;
    char *copy;
    strata_status st = st_tokenizer_add_token(&t->added_texts, at, NULL, text, token->bytes, (uint32_t)t->added_count);

    if (st != STRATA_OK)
        return st;
    if (!st_tokenizer_grow(&t->added, &t->added_capacity, t->added_count + 1, sizeof(t->added[0])) ||
        (copy = st_tokenizer_alloc(token->bytes + 1, 1)) == NULL)
        return st_nomem(0);
    memcpy(copy, text, token->bytes);
    put = &t->added[t->added_count++];
    *put = *token;
    put->text = copy;
    if (token->id >= t->added_end)
        t->added_end = token->id + 1;
    return STRATA_OK;
}

strata_status st_tokenizer_read_added(struct st_tokenizer *t, const struct st_place *at, uint32_t id)
{
    struct st_added token = {.id = id, .normalized = true};
    const char *text;
    strata_status st;

    if ((st = st_place_known(at, "id content special normalized single_word lstrip rstrip")) != STRATA_OK ||
        (st = st_place_need_text(&text, at, "content")) != STRATA_OK ||
        (st = st_place_bool(&token.special, at, "special")) != STRATA_OK ||
        (st = st_place_bool(&token.normalized, at, "normalized")) != STRATA_OK ||
        (st = st_place_bool(&token.single_word, at, "single_word")) != STRATA_OK ||
        (st = st_place_bool(&token.lstrip, at, "lstrip")) != STRATA_OK ||
        (st = st_place_bool(&token.rstrip, at, "rstrip")) != STRATA_OK)
        return st;
    token.bytes = strlen(text);
    if (token.bytes == 0)
        return STRATA_OK; /* the reference passes over it, too */
    if (token.bytes > ADDED_BYTES_MAX)
        return st_place_fault(at, "content", "of more than %u bytes", ADDED_BYTES_MAX);
    if (id_of_added(t, text) != id)
        return st_place_fault(at, "id", "is %u, but \"%.40s\" has the id %u by its place", id, text, id_of_added(t, text));
    return st_tokenizer_put_added(t, at, &token, text);
}

static strata_status read_added(struct st_tokenizer *t, const struct st_place *root)
{
    const st_json *first;
    struct st_place at;
    uint32_t index = 0, id;
    strata_status st = st_place_array(&first, root, "added_tokens");

    for (const st_json *node = first; node != NULL && st == STRATA_OK; node = st_json_next(node)) {
        st = st_place_element(&at, root, "added_tokens", node, index++);
        if (st == STRATA_OK && (st = st_place_number(&id, &at, "id", ST_TOKENIZER_VOCAB_MAX - 1)) == STRATA_OK)
            st = st_tokenizer_read_added(t, &at, id);
    }
    return st;
}

/* All of a file whose vocabulary and merges, as a tree, would take ten times its memory. */
static strata_status read_text(struct st_tokenizer *t, const char *path, char *text, uint64_t bytes)
{
    struct st_json_large large[] = {{.key = "model.vocab"}, {.key = "model.merges"}};
    struct st_place at = {.file = path};
    st_json *root;
    strata_status st = st_json_parse_large(&root, large, 2, text, bytes, path);

    if (st != STRATA_OK)
        return st;
    at.node = root;
    if (st_json_type(root) != ST_JSON_OBJECT)
        st = st_place_fault(&at, NULL, "must be an object");
    else if ((st = st_place_known(&at, "version truncation padding added_tokens normalizer pre_tokenizer post_processor decoder "
                                       "model")) == STRATA_OK &&
             (st = read_model(t, &at, large)) == STRATA_OK && (st = read_added(t, &at)) == STRATA_OK)
        st = st_tokenizer_read_parts(t, &at);
    st_json_free(root);
    return st;
}

strata_status st_tokenizer_read_json(struct st_tokenizer *t, const char *path)
{
    char *text;
    uint64_t bytes;
    strata_status st = st_file_read_text(&text, &bytes, path, FILE_BYTES_MAX);

    if (st != STRATA_OK)
        return st;
    st = read_text(t, path, text, bytes);
    free(text);
    return st == STRATA_E_CONFIG ? STRATA_E_INPUT : st;
}

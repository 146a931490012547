/* text/tokenizer/train.c - see train.h.  Sennrich et al., arXiv:1508.07909: pairs are counted over words, not over the text.
 *
 * Words come from an encoder whose tokenizer has the bytes alone.  Each pair knows the words it was seen in; a merge visits those
 * only.  The heap of pairs is lazy: a count that has changed since it was pushed is pushed again when it comes up. */
#include "text/tokenizer/train.h"

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/system/dir_lock.h"
#include "core/system/file.h"
#include "text/tokenizer/encode_internal.h"

#include <stdlib.h>
#include <string.h>

#define SLOTS_FIRST 4096u
#define END_TEXT    "<|endoftext|>"

struct word {
    uint64_t count;
    uint32_t at, symbols; /* ids[at .. at + symbols) */
    uint32_t hash;
};

struct pair {
    uint32_t left, right;
    int64_t count;
    uint32_t seen; /* the first of its places, or 0 */
};

/* A word that a pair was seen in; the list may name a word twice. */
struct place {
    uint32_t word, next;
};

struct candidate {
    int64_t count;
    uint32_t left, right, pair;
};

struct st_train {
    struct st_tokenizer *bytes;
    struct st_encoder *encoder;
    bool inside;
    uint64_t words_seen;
    uint32_t *ids; /* of all words */
    size_t id_count, id_capacity;
    struct word *words;
    size_t word_count, word_capacity;
    uint32_t *word_slots; /* index + 1 */
    size_t word_mask;
    struct pair *pairs;
    size_t pair_count, pair_capacity;
    uint32_t *pair_slots; /* index + 1 */
    size_t pair_mask;
    struct place *places; /* [0] is none */
    size_t place_count, place_capacity;
    struct candidate *heap;
    size_t heap_count, heap_capacity;
    struct st_vocab vocab; /* raw bytes of each token */
    uint32_t *merges;      /* left, right of token 256 and on */
    size_t merge_count, merge_capacity;
};

static bool grow_slots(uint32_t **slots, size_t *mask, size_t count)
{
    const size_t wanted = *slots == NULL ? SLOTS_FIRST : 2 * (*mask + 1);

    if (*slots != NULL && 2 * count < *mask)
        return true;
    free(*slots);
    *slots = st_tokenizer_alloc(wanted, sizeof((*slots)[0]));
    *mask = wanted - 1;
    return *slots != NULL;
}

static uint32_t *find_word(const struct st_train *t, const char *text, size_t bytes, uint32_t hash)
{
    for (size_t at = hash;; at++) {
        uint32_t *slot = &t->word_slots[at & t->word_mask];
        const struct word *w = *slot != 0 ? &t->words[*slot - 1] : NULL;
        size_t same = 0;

        if (w == NULL)
            return slot;
        if (w->hash != hash || w->symbols != bytes)
            continue;
        while (same < bytes && t->ids[w->at + same] == (unsigned char)text[same])
            same++;
        if (same == bytes)
            return slot;
    }
}

static bool room_for_word(struct st_train *t, size_t bytes)
{
    const size_t mask = t->word_mask;

    if (!st_tokenizer_grow(&t->words, &t->word_capacity, t->word_count + 1, sizeof(t->words[0])) ||
        !st_tokenizer_grow(&t->ids, &t->id_capacity, t->id_count + bytes, sizeof(t->ids[0])) ||
        !grow_slots(&t->word_slots, &t->word_mask, t->word_count))
        return false;
    for (size_t i = 0; mask != t->word_mask && i < t->word_count; i++) {
        size_t at = t->words[i].hash;

        while (t->word_slots[at & t->word_mask] != 0)
            at++;
        t->word_slots[at & t->word_mask] = (uint32_t)i + 1;
    }
    return true;
}

static strata_status count_word(void *context, const char *text, size_t bytes)
{
    struct st_train *t = context;
    const uint32_t hash = (uint32_t)st_checksum64(text, bytes);
    uint32_t *slot;

    if (!room_for_word(t, bytes))
        return st_tokenizer_no_memory();
    if (t->id_count + bytes > INT32_MAX)
        return st_error(STRATA_E_INPUT, "the texts have more than 2 GiB of different words: give less text");
    slot = find_word(t, text, bytes, hash);
    if (*slot == 0) {
        t->words[t->word_count++] = (struct word){0, (uint32_t)t->id_count, (uint32_t)bytes, hash};
        *slot = (uint32_t)t->word_count;
        for (size_t i = 0; i < bytes; i++)
            t->ids[t->id_count++] = (unsigned char)text[i];
    }
    t->words[*slot - 1].count++;
    t->words_seen++;
    return STRATA_OK;
}

strata_status st_train_create(struct st_train **out)
{
    struct st_train *t = st_tokenizer_alloc(1, sizeof(*t));
    strata_status st = t == NULL ? st_tokenizer_no_memory() : st_tokenizer_open_bytes(&t->bytes);

    if (st == STRATA_OK)
        st = st_encoder_create(&t->encoder, t->bytes);
    if (st == STRATA_OK && !st_tokenizer_grow(&t->places, &t->place_capacity, 1, sizeof(t->places[0])))
        st = st_tokenizer_no_memory();
    if (st != STRATA_OK) {
        st_train_destroy(t);
        return st;
    }
    t->place_count = 1;
    t->encoder->word = count_word;
    t->encoder->word_context = t;
    *out = t;
    return STRATA_OK;
}

void st_train_destroy(struct st_train *t)
{
    if (t == NULL)
        return;
    st_encoder_destroy(t->encoder);
    st_tokenizer_close(t->bytes);
    free(t->ids);
    free(t->words);
    free(t->word_slots);
    free(t->pairs);
    free(t->pair_slots);
    free(t->places);
    free(t->heap);
    free(t->merges);
    st_vocab_free(&t->vocab);
    free(t);
}

strata_status st_train_feed(struct st_train *t, const char *text, size_t bytes)
{
    struct st_encoding none = {0};

    if (!t->inside)
        st_encode_begin(t->encoder, NULL);
    t->inside = true;
    return st_encode_feed(t->encoder, text, bytes, &none);
}

strata_status st_train_end_text(struct st_train *t)
{
    struct st_encoding none = {0};

    if (!t->inside)
        return STRATA_OK;
    t->inside = false;
    return st_encode_finish(t->encoder, &none);
}

static uint32_t *find_pair(const struct st_train *t, uint32_t left, uint32_t right)
{
    for (size_t at = (size_t)st_merge_slot(left, right);; at++) {
        uint32_t *slot = &t->pair_slots[at & t->pair_mask];

        if (*slot == 0 || (t->pairs[*slot - 1].left == left && t->pairs[*slot - 1].right == right))
            return slot;
    }
}

static bool room_for_pair(struct st_train *t)
{
    const size_t mask = t->pair_mask;

    if (!st_tokenizer_grow(&t->pairs, &t->pair_capacity, t->pair_count + 1, sizeof(t->pairs[0])) ||
        !grow_slots(&t->pair_slots, &t->pair_mask, t->pair_count))
        return false;
    for (size_t i = 0; mask != t->pair_mask && i < t->pair_count; i++)
        *find_pair(t, t->pairs[i].left, t->pairs[i].right) = (uint32_t)i + 1;
    return true;
}

/* Counts a pair up or down; where it is new in a word, the word is noted. */
static bool count_pair(struct st_train *t, uint32_t left, uint32_t right, int64_t count, uint32_t word)
{
    struct pair *pair;
    uint32_t *slot;

    if (!room_for_pair(t))
        return false;
    slot = find_pair(t, left, right);
    if (*slot == 0) {
        t->pairs[t->pair_count++] = (struct pair){.left = left, .right = right};
        *slot = (uint32_t)t->pair_count;
    }
    pair = &t->pairs[*slot - 1];
    pair->count += count;
    if (count < 0 || (pair->seen != 0 && t->places[pair->seen].word == word))
        return true;
    if (t->place_count >= UINT32_MAX ||
        !st_tokenizer_grow(&t->places, &t->place_capacity, t->place_count + 1, sizeof(t->places[0])))
        return false;
    t->places[t->place_count] = (struct place){word, pair->seen};
    pair->seen = (uint32_t)t->place_count++;
    return true;
}

static bool better(const struct candidate *a, const struct candidate *b)
{
    if (a->count != b->count)
        return a->count > b->count;
    return a->left != b->left ? a->left < b->left : a->right < b->right;
}

static bool push(struct st_train *t, uint32_t index)
{
    const struct pair *pair = &t->pairs[index];
    const struct candidate c = {pair->count, pair->left, pair->right, index};
    size_t at = t->heap_count;

    if (!st_tokenizer_grow(&t->heap, &t->heap_capacity, t->heap_count + 1, sizeof(t->heap[0])))
        return false;
    for (t->heap_count++; at > 0 && better(&c, &t->heap[(at - 1) / 2]); at = (at - 1) / 2)
        t->heap[at] = t->heap[(at - 1) / 2];
    t->heap[at] = c;
    return true;
}

static struct candidate pop(struct st_train *t)
{
    const struct candidate top = t->heap[0], last = t->heap[--t->heap_count];
    size_t at = 0, child;

    while ((child = 2 * at + 1) < t->heap_count) {
        if (child + 1 < t->heap_count && better(&t->heap[child + 1], &t->heap[child]))
            child++;
        if (!better(&t->heap[child], &last))
            break;
        t->heap[at] = t->heap[child];
        at = child;
    }
    t->heap[at] = last;
    return top;
}

static int by_text(const void *a, const void *b, void *context)
{
    const struct st_train *t = context;
    const struct word *x = a, *y = b;
    const uint32_t common = x->symbols < y->symbols ? x->symbols : y->symbols;

    for (uint32_t i = 0; i < common; i++)
        if (t->ids[x->at + i] != t->ids[y->at + i])
            return t->ids[x->at + i] < t->ids[y->at + i] ? -1 : 1;
    return (x->symbols > y->symbols) - (x->symbols < y->symbols);
}

/* All pairs of all words; words in an order that does not depend on that of the texts. */
static bool count_pairs(struct st_train *t)
{
    qsort_r(t->words, t->word_count, sizeof(t->words[0]), by_text, t);
    for (size_t w = 0; w < t->word_count; w++)
        for (uint32_t i = 0; i + 1 < t->words[w].symbols; i++) {
            const uint32_t *ids = t->ids + t->words[w].at + i;

            if (!count_pair(t, ids[0], ids[1], (int64_t)t->words[w].count, (uint32_t)w))
                return false;
        }
    for (uint32_t i = 0; i < t->pair_count; i++)
        if (!push(t, i))
            return false;
    return true;
}

/* left right -> id in one word; the pairs beside change. */
static bool merge_in_word(struct st_train *t, uint32_t index, uint32_t left, uint32_t right, uint32_t id)
{
    struct word *w = &t->words[index];
    uint32_t *ids = t->ids + w->at, kept = 0;
    const int64_t count = (int64_t)w->count;
    bool good = true;

    for (uint32_t i = 0; i < w->symbols && good; i++) {
        if (!(ids[i] == left && i + 1 < w->symbols && ids[i + 1] == right)) {
            ids[kept++] = ids[i];
            continue;
        }
        good = count_pair(t, left, right, -count, index);
        if (kept > 0)
            good = good && count_pair(t, ids[kept - 1], left, -count, index) && count_pair(t, ids[kept - 1], id, count, index);
        if (i + 2 < w->symbols) /* the next one may merge, too: its pair with this one is then counted down again */
            good = good && count_pair(t, right, ids[i + 2], -count, index) && count_pair(t, id, ids[i + 2], count, index);
        ids[kept++] = id;
        i++;
    }
    w->symbols = kept;
    return good;
}

/* All words that the pair was seen in.  Pairs that arose are candidates now. */
static bool merge(struct st_train *t, const struct candidate *c, uint32_t id)
{
    const size_t before = t->pair_count;

    for (uint32_t at = t->pairs[c->pair].seen; at != 0; at = t->places[at].next)
        if (!merge_in_word(t, t->places[at].word, c->left, c->right, id))
            return false;
    t->pairs[c->pair].seen = 0;
    for (size_t i = before; i < t->pair_count; i++)
        if (!push(t, (uint32_t)i))
            return false;
    return true;
}

/* Of a token as tokenizer.json names it. */
static size_t name_bytes(const struct st_train *t, uint32_t id)
{
    char utf8[8];
    size_t bytes, length = 0;
    const char *raw = st_vocab_text(&t->vocab, id, &bytes);

    for (size_t i = 0; i < bytes; i++)
        length += st_text_utf8_put(utf8, st_byte_level_code((unsigned char)raw[i]));
    return length;
}

/* A word may be a line of dashes of any length: the token would be one that no reader takes. */
static bool is_too_long(const struct st_train *t, const struct candidate *c)
{
    return name_bytes(t, c->left) + name_bytes(t, c->right) > ST_TOKENIZER_TOKEN_BYTES_MAX;
}

/* The token of two; false: no memory.  *known: another pair gave the same bytes */
static bool add_token(struct st_train *t, const struct candidate *c, uint32_t id, bool *known)
{
    size_t left_bytes, right_bytes;
    const char *left = st_vocab_text(&t->vocab, c->left, &left_bytes), *right = st_vocab_text(&t->vocab, c->right, &right_bytes);
    char *both = st_tokenizer_alloc(left_bytes + right_bytes, 1);
    enum st_vocab_added added;

    if (both == NULL)
        return false;
    memcpy(both, left, left_bytes);
    memcpy(both + left_bytes, right, right_bytes);
    added = st_vocab_add(&t->vocab, id, both, left_bytes + right_bytes);
    free(both);
    *known = added == ST_VOCAB_TEXT_TWICE;
    if (added == ST_VOCAB_NO_MEMORY ||
        !st_tokenizer_grow(&t->merges, &t->merge_capacity, t->merge_count + 2, sizeof(t->merges[0])))
        return false;
    if (!*known) {
        t->merges[t->merge_count++] = c->left;
        t->merges[t->merge_count++] = c->right;
    }
    return true;
}

/* Merges until there are `vocab` tokens, or no pair occurs twice whose token a reader would take. */
static bool learn(struct st_train *t, uint32_t vocab)
{
    for (uint32_t byte = 0; byte < 256; byte++)
        if (st_vocab_add(&t->vocab, byte, &(char){(char)byte}, 1) != ST_VOCAB_ADDED)
            return false;
    if (!count_pairs(t))
        return false;
    while (t->vocab.limit + 1 < vocab && t->heap_count > 0) {
        const struct candidate c = pop(t);
        const uint32_t id = t->vocab.limit;
        bool known;

        if (c.count != t->pairs[c.pair].count) {
            if (t->pairs[c.pair].count > 1 && !push(t, c.pair))
                return false;
            continue;
        }
        if (c.count < 2)
            break;
        if (is_too_long(t, &c))
            continue;
        if (!add_token(t, &c, id, &known) || (!known && !merge(t, &c, id)))
            return false;
    }
    return true;
}

/* Bytes as ByteLevel's characters. */
static const char *token_name(const struct st_train *t, uint32_t id, char **buffer, size_t *capacity)
{
    size_t bytes, length = 0;
    const char *raw = st_vocab_text(&t->vocab, id, &bytes);

    if (!st_tokenizer_grow(buffer, capacity, 2 * bytes + 1, 1))
        return NULL;
    for (size_t i = 0; i < bytes; i++)
        length += st_text_utf8_put(*buffer + length, st_byte_level_code((unsigned char)raw[i]));
    (*buffer)[length] = '\0';
    return *buffer;
}

static void write_part(struct st_json_writer *w, const char *key, bool use_regex)
{
    st_json_object_open(w, key);
    st_json_put_string(w, "type", "ByteLevel");
    st_json_put_bool(w, "add_prefix_space", false);
    st_json_put_bool(w, "trim_offsets", true);
    st_json_put_bool(w, "use_regex", use_regex);
    st_json_object_close(w);
}

static bool write_model(struct st_json_writer *w, const struct st_train *t)
{
    static const char *const none[] = {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"};
    static const char *const off[] = {"fuse_unk", "byte_fallback", "ignore_merges"};
    char *buffer[2] = {NULL, NULL};
    size_t capacity[2] = {0, 0};
    const char *name = "";

    st_json_object_open(w, "model");
    st_json_put_string(w, "type", "BPE");
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
        st_json_put_string(w, none[i], NULL);
    for (size_t i = 0; i < sizeof(off) / sizeof(off[0]); i++)
        st_json_put_bool(w, off[i], false);
    st_json_object_open(w, "vocab");
    for (uint32_t id = 0; id < t->vocab.limit && name != NULL; id++) {
        name = token_name(t, id, &buffer[0], &capacity[0]);
        if (name != NULL)
            st_json_put_u64(w, name, id);
    }
    st_json_put_u64(w, END_TEXT, t->vocab.limit);
    st_json_object_close(w);
    st_json_array_open(w, "merges");
    for (size_t i = 0; i < t->merge_count && name != NULL; i += 2) {
        st_json_array_open(w, NULL);
        for (unsigned side = 0; side < 2 && name != NULL; side++) {
            name = token_name(t, t->merges[i + side], &buffer[side], &capacity[side]);
            if (name != NULL)
                st_json_put_string(w, NULL, name);
        }
        st_json_array_close(w);
    }
    st_json_array_close(w);
    st_json_object_close(w);
    free(buffer[0]);
    free(buffer[1]);
    return name != NULL;
}

static bool write_tokenizer(FILE *file, const struct st_train *t)
{
    static const char *const off[] = {"single_word", "lstrip", "rstrip", "normalized"};
    struct st_json_writer w;
    bool good;

    st_json_begin(&w, file);
    st_json_object_open(&w, NULL);
    st_json_put_string(&w, "version", "1.0");
    st_json_put_string(&w, "truncation", NULL);
    st_json_put_string(&w, "padding", NULL);
    st_json_array_open(&w, "added_tokens");
    st_json_object_open(&w, NULL);
    st_json_put_u64(&w, "id", t->vocab.limit);
    st_json_put_string(&w, "content", END_TEXT);
    for (size_t i = 0; i < sizeof(off) / sizeof(off[0]); i++)
        st_json_put_bool(&w, off[i], false);
    st_json_put_bool(&w, "special", true);
    st_json_object_close(&w);
    st_json_array_close(&w);
    st_json_put_string(&w, "normalizer", NULL);
    write_part(&w, "pre_tokenizer", true);
    write_part(&w, "post_processor", true);
    write_part(&w, "decoder", true);
    good = write_model(&w, t);
    st_json_object_close(&w);
    st_json_end_line(&w);
    return good;
}

static bool write_config(FILE *file, const struct st_train *t)
{
    struct st_json_writer w;

    (void)t;
    st_json_begin(&w, file);
    st_json_object_open(&w, NULL);
    st_json_put_string(&w, "tokenizer_class", "PreTrainedTokenizerFast");
    st_json_put_string(&w, "bos_token", END_TEXT);
    st_json_put_string(&w, "eos_token", END_TEXT);
    st_json_put_bool(&w, "clean_up_tokenization_spaces", false);
    st_json_object_close(&w);
    st_json_end_line(&w);
    return true;
}

static strata_status put_file(struct st_new_file *file, const struct st_train *t, const char *dir, const char *name,
                              bool overwrite, bool (*put)(FILE *file, const struct st_train *t))
{
    char path[ST_PATH_MAX];
    strata_status st = st_path_join(path, dir, name);

    if (st != STRATA_OK ||
        (st = st_new_file_create(file, path, ST_NEW_FILE_PARENTS | (overwrite ? ST_NEW_FILE_OVERWRITE : 0))) != STRATA_OK)
        return st;
    st = st_new_file_stream(file);
    return st == STRATA_OK && !put(file->stream, t) ? st_tokenizer_no_memory() : st;
}

static strata_status write_files(const struct st_train *t, const char *dir, bool overwrite)
{
    struct st_new_file config = {.fd = -1}, tokenizer = {.fd = -1};
    struct st_new_file *const both[] = {&config, &tokenizer};
    struct st_dir_lock lock = ST_DIR_LOCK_NONE;
    strata_status st = put_file(&config, t, dir, "tokenizer_config.json", overwrite, write_config);

    if (st == STRATA_OK)
        st = st_dir_lock(&lock, dir);
    if (st == STRATA_OK)
        st = put_file(&tokenizer, t, dir, "tokenizer.json", overwrite, write_tokenizer);
    if (st == STRATA_OK)
        st = st_new_file_commit_all(both, 2, !overwrite);
    st_new_file_abort(&tokenizer); /* nothing after commit */
    st_new_file_abort(&config);
    st_dir_unlock(&lock);
    return st;
}

strata_status st_train_write(struct st_train *t, uint32_t vocab, const char *dir, bool overwrite, struct st_train_report *report)
{
    if (vocab < ST_TRAIN_VOCAB_MIN || vocab > ST_TRAIN_VOCAB_MAX)
        return st_error(STRATA_E_INVAL, "a vocabulary of %u: it must be %u to %u", vocab, ST_TRAIN_VOCAB_MIN, ST_TRAIN_VOCAB_MAX);
    if (t->word_count == 0)
        return st_error(STRATA_E_INPUT, "%s: the text is empty", dir);
    if (!learn(t, vocab))
        return st_tokenizer_no_memory();
    *report = (struct st_train_report){t->vocab.limit + 1, t->words_seen, t->word_count};
    return write_files(t, dir, overwrite);
}

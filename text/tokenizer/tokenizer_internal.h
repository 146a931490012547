/* text/tokenizer/tokenizer_internal.h - what a tokenizer is made of.  Private to text/tokenizer/.
 *
 * A text becomes ids in this order, each step by one file:
 *
 *     utf8        bytes that are not UTF-8 become U+FFFD                               encode.c
 *     added       tokens found in the text as it is cut it into segments               added.c
 *     normals     each segment is rewritten; tokens found then cut it again            normalize.c
 *     pres        each part is cut into words                                          split.c, scan.c, regex.c
 *     BPE         each word becomes ids                                                bpe.c, encode_words.c
 *     post        ids before and after
 *
 * Where the words are those of ByteLevel, the reference renames the 256 bytes as printable characters before BPE.  Here the
 * vocabulary is translated back at load instead, and BPE works on bytes. */
#ifndef TEXT_TOKENIZER_TOKENIZER_INTERNAL_H
#define TEXT_TOKENIZER_TOKENIZER_INTERNAL_H

#include "text/tokenizer/fields_internal.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/unicode_internal.h"

#define ST_TOKENIZER_TOKEN_BYTES_MAX 65536u /* of a token as tokenizer.json names it */

/* Memory that tests can refuse. */
void *st_tokenizer_alloc(size_t count, size_t bytes_each); /* zeroed */
/** Room for `count` items of an array whose capacity is in *capacity; false: no memory, nothing changed. */
bool st_tokenizer_grow(void *array, size_t *capacity, size_t count, size_t bytes_each);

/* Texts by id and ids by text. */
struct st_vocab {
    char *texts; /* one after another */
    size_t text_bytes, text_capacity;
    struct st_vocab_token {
        uint32_t at, bytes; /* bytes ST_TOKEN_NONE: no such id */
    } * tokens;             /* [limit] */
    size_t token_capacity;
    uint32_t limit, count;
    uint32_t *slots; /* [slot_mask + 1] id + 1, 0: free */
    uint32_t slot_mask;
};
enum st_vocab_added { ST_VOCAB_ADDED, ST_VOCAB_ID_TWICE, ST_VOCAB_TEXT_TWICE, ST_VOCAB_NO_MEMORY };
/** `id` is below ST_TOKENIZER_VOCAB_MAX. */
enum st_vocab_added st_vocab_add(struct st_vocab *v, uint32_t id, const char *text, size_t bytes);
uint32_t st_vocab_find(const struct st_vocab *v, const char *text, size_t bytes); /* ST_TOKEN_NONE */
const char *st_vocab_text(const struct st_vocab *v, uint32_t id, size_t *bytes);  /* NULL: no such id */
void st_vocab_free(struct st_vocab *v);

/* What two neighbours become, best (lowest) rank first. */
struct st_merge {
    uint32_t left, right, rank, id; /* id ST_TOKEN_NONE: a free slot */
};
struct st_merges {
    struct st_merge *slots; /* [mask + 1] */
    uint64_t mask;
    uint32_t count;
};
bool st_merges_reserve(struct st_merges *m, size_t count);             /* false: no memory */
void st_merges_put(struct st_merges *m, const struct st_merge *merge); /* within what was reserved; a pair's last one counts */
void st_merges_free(struct st_merges *m);

static inline uint64_t st_merge_slot(uint32_t left, uint32_t right)
{
    return ((uint64_t)left << 32 | right) * UINT64_C(0x9e3779b97f4a7c15) >> 20;
}
static inline const struct st_merge *st_merges_find(const struct st_merges *m, uint32_t left, uint32_t right)
{
    for (uint64_t slot = st_merge_slot(left, right);; slot++) {
        const struct st_merge *found = &m->slots[slot & m->mask];

        if (found->id == ST_TOKEN_NONE)
            return NULL;
        if (found->left == left && found->right == right)
            return found;
    }
}

/* Pairs of characters that stand side by side in some token: between others no merge can ever reach.  A set of hashes; it may
 * claim pairs that are not there. */
#define ST_PAIR_BITS 22
struct st_pairs {
    uint64_t *bits; /* [2^ST_PAIR_BITS / 64] NULL: not known */
};
static inline uint32_t st_pair_hash(uint32_t first, uint32_t second)
{
    return (uint32_t)(((uint64_t)first << 21 | second) * UINT64_C(0xff51afd7ed558ccd) >> (64 - ST_PAIR_BITS));
}
bool st_pairs_create(struct st_pairs *p); /* false: no memory */
static inline void st_pairs_put(struct st_pairs *p, uint32_t first, uint32_t second)
{
    const uint32_t bit = st_pair_hash(first, second);

    p->bits[bit / 64] |= UINT64_C(1) << bit % 64;
}
static inline bool st_pairs_has(const struct st_pairs *p, uint32_t first, uint32_t second)
{
    const uint32_t bit = st_pair_hash(first, second);

    return (p->bits[bit / 64] >> (bit % 64) & 1) != 0;
}

struct st_bpe {
    struct st_vocab vocab; /* as the file writes it */
    struct st_vocab raw;   /* byte_level: the bytes that each token stands for, where it is one of ByteLevel's */
    struct st_merges merges;
    struct st_pairs pairs;   /* of characters; not byte_level */
    uint32_t byte_ids[256];  /* byte_level: of each byte; else of <0x00> ... with byte_fallback.  ST_TOKEN_NONE: none */
    uint32_t ascii_ids[128]; /* not byte_level: of characters of one byte */
    uint32_t unk;
    bool byte_level, byte_fallback, fuse_unk, ignore_merges;
    bool bytes_complete; /* byte_fallback has a token for every byte: nothing is unknown */
};

/* How a pattern finds its matches. */
enum st_scan { ST_SCAN_NONE, ST_SCAN_GPT2, ST_SCAN_LLAMA3, ST_SCAN_QWEN2 };
struct st_regex; /* regex.c */
struct st_pattern {
    char *text; /* as the file writes it */
    size_t bytes;
    enum st_scan scan;      /* a hand-written scanner */
    struct st_regex *regex; /* else; NULL: `text` itself */
};

/** Recognize, or compile, `out->text`, a regular expression.  E_INPUT names `at`. */
strata_status st_pattern_prepare(struct st_pattern *out, const struct st_place *at);
void st_pattern_free(struct st_pattern *p);

enum st_normal_kind { ST_NORMAL_PREPEND, ST_NORMAL_REPLACE, ST_NORMAL_NFC };
struct st_normal {
    enum st_normal_kind kind;
    struct st_pattern pattern; /* Replace */
    char *content;             /* Prepend, Replace */
    size_t content_bytes;
};

enum st_pre_kind { ST_PRE_SPLIT, ST_PRE_DIGITS, ST_PRE_METASPACE, ST_PRE_BYTE_LEVEL };
enum st_behavior { ST_REMOVED, ST_ISOLATED, ST_WITH_PREVIOUS, ST_WITH_NEXT, ST_CONTIGUOUS };
enum st_scheme { ST_SCHEME_ALWAYS, ST_SCHEME_FIRST, ST_SCHEME_NEVER };
struct st_pre {
    enum st_pre_kind kind;
    struct st_pattern pattern; /* Split */
    enum st_behavior behavior; /* Split, Digits */
    bool invert;               /* Split */
    bool add_prefix_space;     /* ByteLevel */
    bool cuts;                 /* Metaspace's split, ByteLevel's use_regex */
    enum st_scheme scheme;     /* Metaspace */
    char replacement[4];       /* Metaspace: one character */
    size_t replacement_bytes;
};

enum st_decode_kind {
    ST_DECODE_BYTE_LEVEL,
    ST_DECODE_BYTE_FALLBACK,
    ST_DECODE_FUSE,
    ST_DECODE_STRIP,
    ST_DECODE_REPLACE,
    ST_DECODE_METASPACE,
};
struct st_decode_step {
    enum st_decode_kind kind;
    char *pattern, *content; /* Replace; Strip and Metaspace: pattern is their character */
    size_t pattern_bytes, content_bytes;
    uint32_t start, stop;  /* Strip */
    enum st_scheme scheme; /* Metaspace */
};

/* A token that is found in the text itself. */
struct st_added {
    char *text;
    size_t bytes;
    uint32_t id;
    bool special, normalized, single_word, lstrip, rstrip;
};
/* A trie of tokens: longest match at a place. */
struct st_trie {
    struct st_trie_node *nodes;
    size_t count, capacity;
    uint32_t first[256]; /* node after a first byte; 0: no token begins so */
};
struct st_trie_node {
    uint32_t token;          /* index of an added token + 1; 0: none ends here */
    uint32_t child, sibling; /* 0: none */
    unsigned char byte;
};
bool st_trie_add(struct st_trie *trie, const char *text, size_t bytes, uint32_t token); /* false: no memory */
/** The longest token that begins at text; 0: none, else its index + 1.  *length: its bytes */
uint32_t st_trie_longest(const struct st_trie *trie, const char *text, size_t bytes, size_t *length);
void st_trie_free(struct st_trie *trie);

/* Where a long text may be cut in two whose ids are those of the whole (cut.c). */
enum st_cut_kind {
    ST_CUT_NEVER,
    ST_CUT_WORDS, /* between a letter and what is part of no word */
    ST_CUT_PAIRS, /* between characters that stand side by side in no token */
};
struct st_cut {
    enum st_cut_kind kind;
    bool between_pairs;     /* PAIRS: between such characters */
    bool before_spaces;     /* PAIRS: before any space */
    uint32_t space;         /* what a space is in the vocabulary */
    struct st_pairs tokens; /* what added tokens have side by side, and how they begin and end */
};
strata_status st_cut_prepare(struct st_tokenizer *t);

#define ST_PARTS_MAX 64 /* normalizers, pre-tokenizers, decoders, ids of a template: of each at most */
struct st_tokenizer {
    char *path;
    uint64_t hash;
    struct st_unicode *unicode;
    struct st_bpe bpe;
    struct st_added *added;
    size_t added_count, added_capacity;
    struct st_vocab added_texts;      /* index in `added` by text */
    uint32_t added_end;               /* the largest id of them + 1 */
    uint32_t *added_of_id;            /* [vocab] index + 1, 0: none */
    struct st_trie trie, normal_trie; /* tokens found before, and after, normalization */
    struct st_normal normals[ST_PARTS_MAX];
    struct st_pre pres[ST_PARTS_MAX];
    struct st_decode_step decodes[ST_PARTS_MAX];
    uint32_t prefix[ST_PARTS_MAX], suffix[ST_PARTS_MAX];
    uint32_t normal_count, pre_count, decode_count, prefix_count, suffix_count;
    bool has_decoder; /* false: texts of tokens, joined by spaces */
    uint32_t roles[ST_TOKEN_ROLES];
    struct st_cut cut;
    uint32_t vocab;
};
const struct st_added *st_tokenizer_added(const struct st_tokenizer *t, uint32_t id); /* NULL: none with this id */

/* Read one kind of file into `t`. */
strata_status st_tokenizer_read_json(struct st_tokenizer *t, const char *path);
strata_status st_tokenizer_read_proto(struct st_tokenizer *t, const char *path); /* tokenizer.model */
strata_status st_tokenizer_read_files(struct st_tokenizer *t, const char *path); /* vocab.json, with merges.txt beside it */
/** tokenizer_config.json and special_tokens_map.json beside the tokenizer's file, where they exist. */
strata_status st_tokenizer_read_roles(struct st_tokenizer *t);

/* Parts of those files. */
/** An object in a file `name` of path's directory; *out NULL: there is none. */
strata_status st_tokenizer_beside(st_json **out, const char *path, const char *name);
/** normalizer, pre_tokenizer, post_processor and decoder, as tokenizer.json writes them; of `parts`, the text of such a file. */
strata_status st_tokenizer_parse_parts(struct st_tokenizer *t, const char *parts, const char *path);
strata_status st_tokenizer_read_vocab(struct st_vocab *v, const struct st_place *vocab);
/** E_INPUT: the text or the id is taken. */
strata_status st_tokenizer_add_token(struct st_vocab *v, const struct st_place *at, const char *key, const char *text,
                                     size_t bytes, uint32_t id);
strata_status st_tokenizer_read_added(struct st_tokenizer *t, const struct st_place *at, uint32_t id);
strata_status st_tokenizer_put_added(struct st_tokenizer *t, const struct st_place *at, const struct st_added *token,
                                     const char *text);
strata_status st_tokenizer_read_parts(struct st_tokenizer *t, const struct st_place *root);

/** The byte that ByteLevel writes as this character, or -1. */
int st_byte_level_byte(uint32_t code);
/** Merge number `rank` of `at`, a vocabulary's object or file.  E_INPUT: a text or what it merges to is not in the vocabulary. */
strata_status st_bpe_add_merge(struct st_bpe *bpe, const struct st_place *at, uint32_t rank, const char *left, size_t left_bytes,
                               const char *right, size_t right_bytes);
/** After vocabulary and merges are there: what BPE looks up.  False: no memory. */
bool st_bpe_prepare(struct st_bpe *bpe);
void st_bpe_free(struct st_bpe *bpe);
/** Where pairs are known: no merge reaches across these two characters. */
bool st_bpe_apart(const struct st_bpe *bpe, uint32_t first, uint32_t second);

/* One word as a list of ids, while it is merged. */
struct st_symbol {
    uint32_t id, bytes; /* bytes 0: merged into its left neighbour */
    int32_t prev, next; /* -1: none */
};
struct st_bpe_work {
    struct st_symbol *symbols;
    size_t symbol_capacity;
    uint64_t *heap; /* rank << 32 | the symbol on the left, of pairs that merge */
    size_t heap_capacity;
};
void st_bpe_work_free(struct st_bpe_work *work);
/** The ids of one word into work->symbols[0 .. *count), in order.  E_NOMEM. */
strata_status st_bpe_word(const struct st_bpe *bpe, struct st_bpe_work *work, const char *word, size_t bytes, size_t *count);

/** The end of the word that begins at `at`, below `bytes`: a scanner's pattern matches everywhere. */
size_t st_scan_word(enum st_scan scan, const struct st_unicode *u, const char *text, size_t at, size_t bytes);

#endif

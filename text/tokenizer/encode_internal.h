/* text/tokenizer/encode_internal.h - one thread's way from text to ids.  Private to text/tokenizer/. */
#ifndef TEXT_TOKENIZER_ENCODE_INTERNAL_H
#define TEXT_TOKENIZER_ENCODE_INTERNAL_H

#include "text/tokenizer/tokenizer_internal.h"

/* Text on its way, and the bytes of the encoder's buffer that each byte of it came from. */
struct st_view {
    const char *text;
    size_t bytes;
    const uint32_t *from, *to; /* [bytes] NULL: byte i is byte base + i of the buffer */
    size_t base;
};
static inline size_t st_view_from(const struct st_view *v, size_t at)
{
    return v->from != NULL ? v->from[at] : v->base + at;
}
static inline size_t st_view_to(const struct st_view *v, size_t at)
{
    return v->to != NULL ? v->to[at] : v->base + at + 1;
}
struct st_view st_view_part(const struct st_view *v, size_t begin, size_t end);

/* Where a step writes what it changed. */
struct st_rewrite {
    char *text;
    uint32_t *from, *to;
    size_t bytes, text_capacity, from_capacity, to_capacity;
    size_t limit; /* most bytes; 0: as many as there is memory for */
    bool over;    /* it was not enough */
};
void st_rewrite_free(struct st_rewrite *r);
bool st_rewrite_keep(struct st_rewrite *r, const struct st_view *v, size_t begin, size_t end); /* false: no memory, or over */
/** New text in the place of [from, to) of the buffer. */
bool st_rewrite_put(struct st_rewrite *r, const char *text, size_t bytes, size_t from, size_t to);
struct st_view st_rewrite_view(const struct st_rewrite *r);

struct st_encoder;
/* The matches of a pattern in a text, from left to right, as the reference finds them. */
struct st_matcher {
    const struct st_pattern *pattern;
    const struct st_unicode *unicode;
    const char *text;
    size_t bytes, at, last_end; /* last_end SIZE_MAX: no match yet */
    struct st_regex_run *run;   /* regex */
    strata_status status;       /* why the last search ended */
};
void st_matcher_begin(struct st_matcher *m, const struct st_pattern *pattern, struct st_encoder *e, const struct st_view *v);
/** False: no more, or m->status says why. */
bool st_matcher_next(struct st_matcher *m, size_t *begin, size_t *end);

struct st_piece {
    uint32_t begin, end;
};
struct st_pieces {
    struct st_piece *items;
    size_t count, capacity;
};
/** Empty pieces are left out.  False: no memory. */
bool st_pieces_put(struct st_pieces *p, size_t begin, size_t end);

struct st_nfc_work {
    uint32_t *codes, *sorted;
    size_t count, capacity, sorted_capacity;
};
void st_nfc_work_free(struct st_nfc_work *work);
/** Whether nothing in the text needs a closer look: it is in NFC. */
bool st_nfc_is_done(const struct st_unicode *u, const char *text, size_t bytes);
bool st_nfc(const struct st_unicode *u, struct st_nfc_work *work, const struct st_view *v, struct st_rewrite *to);

#define ST_WORD_BYTES_MAX 28u
#define ST_WORD_IDS_MAX   6u
/* A word whose ids are known: one cache line. */
struct st_word {
    uint32_t ids[ST_WORD_IDS_MAX];
    uint32_t hash;
    uint8_t bytes, count;             /* bytes 0: free */
    uint8_t lengths[ST_WORD_IDS_MAX]; /* of what each id stands for */
    char text[ST_WORD_BYTES_MAX];
};
_Static_assert(sizeof(struct st_word) == 64, "a word fills a cache line");
#define ST_WORDS 32768u /* 2 MiB; a power of two */

struct st_encoder {
    const struct st_tokenizer *t;
    struct st_encode_opts opts;
    /* Text that waits for its end: UTF-8.  held[0] is byte `base` of the original. */
    char *held;
    size_t held_bytes, held_capacity;
    size_t searched; /* no cut lies before this */
    uint64_t base, replaced;
    struct st_edit {
        uint32_t at, bytes; /* the U+FFFD at held[at] took the place of `bytes` bytes of the original */
        uint32_t saved;     /* how many fewer bytes the original has up to and with this one */
    } * edits;
    size_t edit_count, edit_capacity;
    char pending[4]; /* the beginning of a character */
    size_t pending_bytes;
    bool continues; /* held[0] continues the segment before it */
    bool started;   /* the prefix has been given out */
    /* scratch of a step */
    struct st_rewrite
        rewrites[3]; /* normalizers alternate between two; the pre-tokenizer uses the one that is free and a third */
    struct st_pieces pieces[2];
    struct st_nfc_work nfc;
    struct st_bpe_work work;
    struct st_word *words;          /* [ST_WORDS] */
    struct st_regex_run *regex_run; /* NULL: none was needed */
    bool begins_later;              /* in the reference the first character has the offset of a later one (normalize.c) */
    strata_status failure;          /* of a pattern; else what fails is memory */
};

/** The byte of the original where a byte of the buffer comes from, or, with `end`, where the byte before it ends. */
uint64_t st_encoder_original(const struct st_encoder *e, size_t at, bool end);
/** Normalizers, then tokens found after them, then words, then ids.  @param whole  a segment of the buffer */
strata_status st_encode_segment(struct st_encoder *e, const struct st_view *whole, bool continues, struct st_encoding *out);
/** @param which  the rewrite to write into; changed to the other one if something was written.  *v: replaced by the new text */
strata_status st_normalize(struct st_encoder *e, struct st_view *v, unsigned *which, bool continues);
/** Cuts *v, rewritten where a part asks for it, into words: e->pieces[*list].  @param which  as st_normalize() left it: the other
 * one stays as it is, since more parts of it may come */
strata_status st_split_words(struct st_encoder *e, struct st_view *v, unsigned which, bool continues, unsigned *list);
/** Whether `held` may be cut at `at`: the ids of both parts are then those of the whole. */
bool st_encode_may_cut(const struct st_encoder *e, size_t at);
/** One id for [begin, end) of the buffer. */
strata_status st_encode_put(struct st_encoder *e, struct st_encoding *out, uint32_t id, size_t begin, size_t end);

/** How many of these bytes, which begin no character, one U+FFFD replaces.  *open: more bytes could still make them one */
size_t st_utf8_subpart(const char *text, size_t bytes, bool *open);

/* A token found in a text. */
struct st_found {
    size_t begin, end;
    uint32_t index; /* of the added token */
};
/** The first token of the trie at or after *at (what was looked at before it); text before `start` belongs to others.  False:
 * none. */
bool st_added_find(struct st_found *out, const struct st_tokenizer *t, const struct st_trie *trie, const struct st_view *v,
                   size_t *at, size_t start, bool special_as_text);

#endif

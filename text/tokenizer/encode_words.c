/* text/tokenizer/encode_words.c - a segment's words to ids, most of them out of a cache.
 *
 * Where there are no words (a SentencePiece model without a pre-tokenizer makes one of a whole text), a text is cut between
 * characters that stand side by side in no token: no merge reaches across, so both parts give the ids of the whole. */
#include "text/tokenizer/encode_internal.h"

#include "core/base/checksum.h"
#include "core/base/error.h"

#include <string.h>

static strata_status make_room(struct st_encoding *out)
{
    size_t begins = out->capacity, ends = out->capacity, capacity = out->capacity;

    if (out->count < out->capacity)
        return STRATA_OK;
    if (!st_tokenizer_grow(&out->begins, &begins, out->count + 1, sizeof(out->begins[0])) ||
        !st_tokenizer_grow(&out->ends, &ends, out->count + 1, sizeof(out->ends[0])) ||
        !st_tokenizer_grow(&out->ids, &capacity, out->count + 1, sizeof(out->ids[0])))
        return st_nomem(0);
    out->capacity = capacity; /* all three grow alike */
    return STRATA_OK;
}

strata_status st_encoding_add(struct st_encoding *out, uint32_t id)
{
    const uint64_t end = out->count > 0 ? out->ends[out->count - 1] : 0;
    const strata_status st = make_room(out);

    if (st != STRATA_OK)
        return st;
    out->ids[out->count] = id;
    out->begins[out->count] = end;
    out->ends[out->count++] = end;
    return STRATA_OK;
}

strata_status st_encode_put(struct st_encoder *e, struct st_encoding *out, uint32_t id, size_t begin, size_t end)
{
    const strata_status st = make_room(out);

    if (st != STRATA_OK)
        return st;
    out->ids[out->count] = id;
    out->begins[out->count] = st_encoder_original(e, begin, false);
    out->ends[out->count++] = st_encoder_original(e, end, true);
    return STRATA_OK;
}

/* Ids of text [at, at + bytes) whose lengths are in the vocabulary. */
static strata_status put_word(struct st_encoder *e, const struct st_view *v, size_t at, const struct st_symbol *symbols,
                              size_t count, struct st_encoding *out)
{
    strata_status st = STRATA_OK;

    for (size_t i = 0; i < count && st == STRATA_OK; i++) {
        st = st_encode_put(e, out, symbols[i].id, st_view_from(v, at), st_view_to(v, at + symbols[i].bytes - 1));
        at += symbols[i].bytes;
    }
    return st;
}

/* Short and with few ids: most words are. */
static void remember(struct st_word *word, const char *text, size_t bytes, uint32_t hash, const struct st_symbol *symbols,
                     size_t count)
{
    size_t lengths = 0;

    if (count > ST_WORD_IDS_MAX)
        return;
    for (size_t i = 0; i < count; i++)
        lengths += symbols[i].bytes;
    if (lengths != bytes)
        return; /* something was left out */
    word->hash = hash;
    word->bytes = (uint8_t)bytes;
    word->count = (uint8_t)count;
    memcpy(word->text, text, bytes);
    for (size_t i = 0; i < count; i++) {
        word->ids[i] = symbols[i].id;
        word->lengths[i] = (uint8_t)symbols[i].bytes;
    }
}

static strata_status encode_word(struct st_encoder *e, const struct st_view *v, size_t at, size_t bytes, struct st_encoding *out)
{
    const bool short_one = bytes <= ST_WORD_BYTES_MAX;
    const uint32_t hash = short_one ? (uint32_t)st_checksum64(v->text + at, bytes) : 0;
    struct st_word *word = &e->words[hash % ST_WORDS];
    size_t count;
    strata_status st;

    if (short_one && word->hash == hash && word->bytes == bytes && memcmp(word->text, v->text + at, bytes) == 0) {
        for (unsigned i = 0; i < word->count; i++) {
            st = st_encode_put(e, out, word->ids[i], st_view_from(v, at), st_view_to(v, at + word->lengths[i] - 1));
            if (st != STRATA_OK)
                return st;
            at += word->lengths[i];
        }
        return STRATA_OK;
    }
    st = st_bpe_word(&e->t->bpe, &e->work, v->text + at, bytes, &count);
    if (st != STRATA_OK)
        return st;
    if (short_one)
        remember(word, v->text + at, bytes, hash, e->work.symbols, count);
    return put_word(e, v, at, e->work.symbols, count, out);
}

/* The next place after `at` where no merge reaches across; `end` if there is none. */
static size_t apart(const struct st_bpe *bpe, const char *text, size_t at, size_t end)
{
    size_t length;
    uint32_t code = st_utf8_at(text + at, &length), next;

    for (at += length; at < end; at += length, code = next) {
        next = st_utf8_at(text + at, &length);
        if (!st_pairs_has(&bpe->pairs, code, next) && st_bpe_apart(bpe, code, next))
            break;
    }
    return at;
}

static strata_status encode_piece(struct st_encoder *e, const struct st_view *v, struct st_piece piece, struct st_encoding *out)
{
    const struct st_bpe *bpe = &e->t->bpe;
    uint32_t whole = ST_TOKEN_NONE;
    strata_status st = STRATA_OK;

    if (bpe->pairs.bits == NULL)
        return encode_word(e, v, piece.begin, piece.end - piece.begin, out);
    if (bpe->ignore_merges)
        whole = st_vocab_find(&bpe->vocab, v->text + piece.begin, piece.end - piece.begin);
    if (whole != ST_TOKEN_NONE)
        return st_encode_put(e, out, whole, st_view_from(v, piece.begin), st_view_to(v, piece.end - 1));
    for (size_t at = piece.begin; at < piece.end && st == STRATA_OK;) {
        const size_t end = apart(bpe, v->text, at, piece.end);

        st = encode_word(e, v, at, end - at, out);
        at = end;
    }
    return st;
}

static strata_status encode_part(struct st_encoder *e, struct st_view v, unsigned which, bool continues, struct st_encoding *out)
{
    unsigned list;
    strata_status st = st_split_words(e, &v, which, continues, &list);

    for (size_t i = 0; i < e->pieces[list].count && st == STRATA_OK; i++)
        st = encode_piece(e, &v, e->pieces[list].items[i], out);
    return st;
}

strata_status st_encode_segment(struct st_encoder *e, const struct st_view *whole, bool continues, struct st_encoding *out)
{
    struct st_view v = *whole;
    struct st_found found;
    unsigned which = 0;
    size_t at = 0, done = 0;
    strata_status st = st_normalize(e, &v, &which, continues);

    while (st == STRATA_OK && e->t->normal_trie.count > 0 &&
           st_added_find(&found, e->t, &e->t->normal_trie, &v, &at, done, e->opts.special_as_text)) {
        if (done < found.begin)
            st = encode_part(e, st_view_part(&v, done, found.begin), which, continues && done == 0, out);
        if (st == STRATA_OK)
            st = st_encode_put(e, out, e->t->added[found.index].id, st_view_from(&v, found.begin), st_view_to(&v, found.end - 1));
        done = found.end;
        e->continues = false;
    }
    if (st == STRATA_OK && done < v.bytes) {
        st = encode_part(e, st_view_part(&v, done, v.bytes), which, continues && done == 0, out);
        e->continues = true;
    }
    return st;
}

/* text/tokenizer/bpe.c - one word as characters or bytes, then the best pair merged until none is left.
 *
 * Best: the lowest rank, and among equals the leftmost, as in the reference.  Short words are scanned for it again after each
 * merge; long ones use a heap, so that no word costs more than n log n. */
#include "text/tokenizer/tokenizer_internal.h"

#include "core/base/error.h"
#include "core/base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCANNED_MAX 24u /* symbols: up to here looking at all pairs is quicker than a heap */

int st_byte_level_byte(uint32_t code)
{
    if ((code >= 0x21 && code <= 0x7e) || (code >= 0xa1 && code <= 0xac) || (code >= 0xae && code <= 0xff))
        return (int)code;
    if (code >= 0x100 && code <= 0x120)
        return (int)(code - 0x100);
    if (code >= 0x121 && code <= 0x142)
        return (int)(code - 0x121 + 0x7f);
    return code == 0x143 ? 0xad : -1;
}

strata_status st_bpe_add_merge(struct st_bpe *bpe, const struct st_place *at, uint32_t rank, const char *left, size_t left_bytes,
                               const char *right, size_t right_bytes)
{
    struct st_merge merge = {st_vocab_find(&bpe->vocab, left, left_bytes), st_vocab_find(&bpe->vocab, right, right_bytes), rank,
                             ST_TOKEN_NONE};
    const size_t bytes = left_bytes + right_bytes;
    char *both;

    if (merge.left == ST_TOKEN_NONE || merge.right == ST_TOKEN_NONE)
        return st_place_fault(at, "merges", "entry %u: \"%.*s\" is not in the vocabulary", rank,
                              (int)(merge.left == ST_TOKEN_NONE ? left_bytes : right_bytes),
                              merge.left == ST_TOKEN_NONE ? left : right);
    both = st_tokenizer_alloc(bytes + 1, 1);
    if (both == NULL)
        return st_nomem(0);
    memcpy(both, left, left_bytes);
    memcpy(both + left_bytes, right, right_bytes);
    merge.id = st_vocab_find(&bpe->vocab, both, bytes);
    free(both);
    if (merge.id == ST_TOKEN_NONE)
        return st_place_fault(at, "merges", "entry %u: what \"%.*s\" and \"%.*s\" merge to is not in the vocabulary", rank,
                              (int)left_bytes, left, (int)right_bytes, right);
    st_merges_put(&bpe->merges, &merge);
    return STRATA_OK;
}

/* The bytes that a token of ByteLevel stands for.  @return how many; SIZE_MAX: it is none */
static size_t byte_level_raw(char *out, const char *text, size_t bytes)
{
    size_t count = 0;

    for (size_t at = 0, length; at < bytes; at += length) {
        const int byte = st_byte_level_byte(st_utf8_at(text + at, &length));

        if (byte < 0)
            return SIZE_MAX;
        out[count++] = (char)byte;
    }
    return count;
}

/* Which bytes each token stands for. */
static bool prepare_raw(struct st_bpe *bpe)
{
    char *buffer = NULL;
    size_t capacity = 0, bytes;
    bool good = true;

    for (uint32_t id = 0; id < bpe->vocab.limit && good; id++) {
        const char *text = st_vocab_text(&bpe->vocab, id, &bytes);

        if (text == NULL)
            continue;
        good = st_tokenizer_grow(&buffer, &capacity, bytes + 1, 1);
        if (good && (bytes = byte_level_raw(buffer, text, bytes)) != SIZE_MAX)
            good = st_vocab_add(&bpe->raw, id, buffer, bytes) == ST_VOCAB_ADDED; /* one to one: no text occurs twice */
    }
    free(buffer);
    for (unsigned byte = 0; byte < 256; byte++)
        bpe->byte_ids[byte] = st_vocab_find(&bpe->raw, &(char){(char)byte}, 1);
    return good;
}

/* The unknown token, or <0x41> and its like where those mean bytes. */
static bool stands_for_other(const struct st_bpe *bpe, uint32_t id)
{
    size_t bytes;
    const char *text = st_vocab_text(&bpe->vocab, id, &bytes);

    return id == bpe->unk || (bpe->byte_fallback && bytes == 6 && memcmp(text, "<0x", 3) == 0);
}

/* A merge of tokens that do not stand for their own text could join what no token has side by side. */
static bool merges_are_texts(const struct st_bpe *bpe)
{
    for (uint64_t i = 0; i <= bpe->merges.mask; i++) {
        const struct st_merge *merge = &bpe->merges.slots[i];

        if (merge->id == ST_TOKEN_NONE)
            continue;
        if (stands_for_other(bpe, merge->left) || stands_for_other(bpe, merge->right))
            return false;
    }
    return true;
}

/* Without an unknown token, characters may be left out, and their neighbours meet. */
static bool prepare_pairs(struct st_bpe *bpe)
{
    size_t bytes, length;

    if (!merges_are_texts(bpe) || (bpe->unk == ST_TOKEN_NONE && !bpe->bytes_complete))
        return true;
    if (!st_pairs_create(&bpe->pairs))
        return false;
    for (uint32_t id = 0; id < bpe->vocab.limit; id++) {
        const char *text = st_vocab_text(&bpe->vocab, id, &bytes);
        uint32_t last = 0;

        for (size_t at = 0; text != NULL && at < bytes; at += length) {
            const uint32_t code = st_utf8_at(text + at, &length);

            if (at > 0)
                st_pairs_put(&bpe->pairs, last, code);
            last = code;
        }
    }
    return true;
}

/* A character that is left out, or fused with its like, is no neighbour that the pairs know. */
static bool is_known(const struct st_bpe *bpe, uint32_t code)
{
    char text[4];

    return st_vocab_find(&bpe->vocab, text, st_text_utf8_put(text, code)) != ST_TOKEN_NONE;
}

bool st_bpe_apart(const struct st_bpe *bpe, uint32_t first, uint32_t second)
{
    return !st_pairs_has(&bpe->pairs, first, second) && (bpe->bytes_complete || (is_known(bpe, first) && is_known(bpe, second)));
}

static void prepare_characters(struct st_bpe *bpe)
{
    char name[8];

    bpe->bytes_complete = bpe->byte_fallback;

    for (unsigned byte = 0; byte < 256; byte++) {
        snprintf(name, sizeof(name), "<0x%02X>", byte);
        bpe->byte_ids[byte] = bpe->byte_fallback ? st_vocab_find(&bpe->vocab, name, 6) : ST_TOKEN_NONE;
        bpe->bytes_complete = bpe->bytes_complete && bpe->byte_ids[byte] != ST_TOKEN_NONE;
    }
    for (unsigned byte = 0; byte < 128; byte++)
        bpe->ascii_ids[byte] = st_vocab_find(&bpe->vocab, &(char){(char)byte}, 1);
}

bool st_bpe_prepare(struct st_bpe *bpe)
{
    if (bpe->byte_level)
        return prepare_raw(bpe);
    prepare_characters(bpe);
    return prepare_pairs(bpe);
}

void st_bpe_free(struct st_bpe *bpe)
{
    st_vocab_free(&bpe->vocab);
    st_vocab_free(&bpe->raw);
    st_merges_free(&bpe->merges);
    free(bpe->pairs.bits);
    bpe->pairs.bits = NULL;
}

void st_bpe_work_free(struct st_bpe_work *work)
{
    free(work->symbols);
    free(work->heap);
    *work = (struct st_bpe_work){0};
}

static void put(struct st_bpe_work *work, size_t *count, uint32_t id, size_t bytes)
{
    work->symbols[*count] = (struct st_symbol){.id = id, .bytes = (uint32_t)bytes};
    ++*count;
}

/* A character without a token becomes the tokens of its bytes; false: a byte has none. */
static bool put_bytes(const struct st_bpe *bpe, struct st_bpe_work *work, const char *text, size_t bytes, size_t *count)
{
    for (size_t i = 0; i < bytes; i++)
        if (bpe->byte_ids[(unsigned char)text[i]] == ST_TOKEN_NONE)
            return false;
    for (size_t i = 0; i < bytes; i++)
        put(work, count, bpe->byte_ids[(unsigned char)text[i]], 1);
    return true;
}

/* Characters, as the reference's merge_word: an unknown one waits, so that it can be fused with the next, even behind bytes. */
static void put_characters(const struct st_bpe *bpe, struct st_bpe_work *work, const char *word, size_t bytes, size_t *count)
{
    size_t unknown = 0; /* bytes of those that wait */

    for (size_t at = 0, length; at < bytes; at += length) {
        uint32_t id;

        (void)st_utf8_at(word + at, &length);
        id = length == 1 ? bpe->ascii_ids[(unsigned char)word[at]] : st_vocab_find(&bpe->vocab, word + at, length);
        if (id != ST_TOKEN_NONE) {
            if (unknown > 0)
                put(work, count, bpe->unk, unknown);
            unknown = 0;
            put(work, count, id, length);
        } else if (!(bpe->byte_fallback && put_bytes(bpe, work, word + at, length, count)) && bpe->unk != ST_TOKEN_NONE) {
            if (unknown > 0 && !bpe->fuse_unk) {
                put(work, count, bpe->unk, unknown);
                unknown = 0;
            }
            unknown += length;
        }
    }
    if (unknown > 0)
        put(work, count, bpe->unk, unknown);
}

/* Bytes; one without a token is unknown, or left out where there is no unknown token. */
static void put_raw(const struct st_bpe *bpe, struct st_bpe_work *work, const char *word, size_t bytes, size_t *count)
{
    bool fuses = false; /* the one before is unknown, too */

    for (size_t i = 0; i < bytes; i++) {
        const uint32_t id = bpe->byte_ids[(unsigned char)word[i]];

        if (id != ST_TOKEN_NONE) {
            put(work, count, id, 1);
        } else if (bpe->unk != ST_TOKEN_NONE) {
            if (fuses)
                work->symbols[*count - 1].bytes++;
            else
                put(work, count, bpe->unk, 1);
        }
        fuses = id == ST_TOKEN_NONE && bpe->unk != ST_TOKEN_NONE && bpe->fuse_unk;
    }
}

/* Few symbols: look at all pairs for the best one, again and again. */
static size_t merge_scanned(const struct st_bpe *bpe, struct st_symbol *s, size_t count)
{
    const struct st_merge *found[SCANNED_MAX]; /* of symbols i and i + 1 */

    for (size_t i = 0; i + 1 < count; i++)
        found[i] = st_merges_find(&bpe->merges, s[i].id, s[i + 1].id);
    while (count > 1) {
        size_t best = SIZE_MAX;

        for (size_t i = 0; i + 1 < count; i++)
            if (found[i] != NULL && (best == SIZE_MAX || found[i]->rank < found[best]->rank))
                best = i;
        if (best == SIZE_MAX)
            break;
        s[best].id = found[best]->id;
        s[best].bytes += s[best + 1].bytes;
        count--;
        for (size_t i = best + 1; i < count; i++) {
            s[i] = s[i + 1];
            found[i - 1] = found[i];
        }
        if (best > 0)
            found[best - 1] = st_merges_find(&bpe->merges, s[best - 1].id, s[best].id);
        if (best + 1 < count)
            found[best] = st_merges_find(&bpe->merges, s[best].id, s[best + 1].id);
    }
    return count;
}

/* The least is first.  Four children to a parent: they lie side by side, and the heap is half as deep. */
static void heap_push(uint64_t *heap, size_t *count, uint64_t step)
{
    size_t at = (*count)++;

    while (at > 0 && step < heap[(at - 1) / 4]) {
        heap[at] = heap[(at - 1) / 4];
        at = (at - 1) / 4;
    }
    heap[at] = step;
}

static uint64_t heap_pop(uint64_t *heap, size_t *count)
{
    const uint64_t top = heap[0], last = heap[--*count];
    size_t at = 0;

    for (;;) {
        const size_t first = 4 * at + 1, end = first + 4 < *count ? first + 4 : *count;
        size_t least = first;

        if (first >= *count)
            break;
        for (size_t child = first + 1; child < end; child++)
            if (heap[child] < heap[least])
                least = child;
        if (heap[least] >= last)
            break;
        heap[at] = heap[least];
        at = least;
    }
    heap[at] = last;
    return top;
}

static void offer(const struct st_bpe *bpe, struct st_bpe_work *work, size_t *heap_count, int32_t left, int32_t right)
{
    const struct st_merge *found;

    if (left < 0 || right < 0)
        return;
    found = st_merges_find(&bpe->merges, work->symbols[left].id, work->symbols[right].id);
    if (found != NULL)
        heap_push(work->heap, heap_count, (uint64_t)found->rank << 32 | (uint32_t)left);
}

/* Many symbols: a heap of pairs; a pair that has changed since it was pushed is dropped when it comes up. */
static size_t merge_heaped(const struct st_bpe *bpe, struct st_bpe_work *work, size_t count)
{
    struct st_symbol *s = work->symbols;
    size_t heap_count = 0, kept = 0;

    for (size_t i = 0; i < count; i++) {
        s[i].prev = (int32_t)i - 1;
        s[i].next = i + 1 < count ? (int32_t)i + 1 : -1;
    }
    for (size_t i = 0; i + 1 < count; i++)
        offer(bpe, work, &heap_count, (int32_t)i, (int32_t)i + 1);
    while (heap_count > 0) {
        const uint64_t top = heap_pop(work->heap, &heap_count);
        const uint32_t at = (uint32_t)top;
        struct st_symbol *left = &s[at], *right;
        const struct st_merge *found;

        if (left->bytes == 0 || left->next < 0)
            continue;
        right = &s[left->next];
        found = st_merges_find(&bpe->merges, left->id, right->id);
        if (found == NULL || found->rank != top >> 32)
            continue;
        left->id = found->id;
        left->bytes += right->bytes;
        right->bytes = 0;
        left->next = right->next;
        if (right->next >= 0)
            s[right->next].prev = (int32_t)at;
        offer(bpe, work, &heap_count, left->prev, (int32_t)at);
        offer(bpe, work, &heap_count, (int32_t)at, left->next);
    }
    for (size_t i = 0; i < count; i++)
        if (s[i].bytes > 0)
            s[kept++] = s[i];
    return kept;
}

strata_status st_bpe_word(const struct st_bpe *bpe, struct st_bpe_work *work, const char *word, size_t bytes, size_t *count)
{
    *count = 0;
    if (!st_tokenizer_grow(&work->symbols, &work->symbol_capacity, bytes, sizeof(work->symbols[0])))
        return st_nomem(0);
    if (bpe->ignore_merges && bpe->pairs.bits == NULL) { /* with pairs a word may be a part: encode_words.c looks at the whole */
        const uint32_t whole = st_vocab_find(bpe->byte_level ? &bpe->raw : &bpe->vocab, word, bytes);

        if (whole != ST_TOKEN_NONE) {
            put(work, count, whole, bytes);
            return STRATA_OK;
        }
    }
    if (bpe->byte_level)
        put_raw(bpe, work, word, bytes, count);
    else
        put_characters(bpe, work, word, bytes, count);
    if (*count <= SCANNED_MAX) {
        *count = merge_scanned(bpe, work->symbols, *count);
        return STRATA_OK;
    }
    /* Each symbol is offered at most once at first, and each merge, which removes a symbol, offers at most two pairs. */
    if (!st_tokenizer_grow(&work->heap, &work->heap_capacity, 3 * *count, sizeof(work->heap[0])))
        return st_nomem(0);
    *count = merge_heaped(bpe, work, *count);
    return STRATA_OK;
}

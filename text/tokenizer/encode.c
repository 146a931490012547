/* text/tokenizer/encode.c - text in parts of any size to ids: what is not UTF-8 is replaced, and what cannot change any more is
 * given out.
 *
 * Text is held until there is about a window of it, then cut where the ids of both sides are those of the whole (encode_cut.c),
 * and the left side is encoded.  So the memory is a window's, however long the text, unless it offers no such place. */
#include "text/tokenizer/encode_internal.h"
#include "text/tokenizer/regex_internal.h"

#include "core/base/error.h"
#include "core/base/text.h"

#include <stdlib.h>
#include <string.h>

#define WINDOW_BYTES 65536u

void st_encoding_free(struct st_encoding *out)
{
    free(out->ids);
    free(out->begins);
    free(out->ends);
    *out = (struct st_encoding){0};
}

strata_status st_encoder_create(struct st_encoder **out, const struct st_tokenizer *t)
{
    struct st_encoder *e = st_tokenizer_alloc(1, sizeof(*e));

    if (e == NULL)
        return st_nomem(0);
    e->t = t;
    e->words = st_tokenizer_alloc(ST_WORDS, sizeof(e->words[0]));
    if (e->words == NULL) {
        st_encoder_destroy(e);
        return st_nomem(0);
    }
    *out = e;
    return STRATA_OK;
}

void st_encoder_destroy(struct st_encoder *e)
{
    if (e == NULL)
        return;
    free(e->held);
    free(e->edits);
    free(e->words);
    for (unsigned i = 0; i < 3; i++)
        st_rewrite_free(&e->rewrites[i]);
    for (unsigned i = 0; i < 2; i++)
        free(e->pieces[i].items);
    st_nfc_work_free(&e->nfc);
    st_regex_run_destroy(e->regex_run);
    st_bpe_work_free(&e->work);
    free(e);
}

/* A replacement is 3 bytes of the buffer and 1 to 3 of the original. */
uint64_t st_encoder_original(const struct st_encoder *e, size_t at, bool end)
{
    uint64_t original = e->base + at;
    size_t low = 0, high = e->edit_count;

    if (high == 0)
        return original;
    while (low < high) { /* the edits that begin before `at` */
        const size_t middle = (low + high) / 2;

        if (e->edits[middle].at < at)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0)
        return original;
    original -= e->edits[low - 1].saved;
    /* Within the last one: its first byte, or its end. */
    if (at < e->edits[low - 1].at + 3u)
        original = e->base + e->edits[low - 1].at + 3u - e->edits[low - 1].saved - (end ? 0 : e->edits[low - 1].bytes);
    return original;
}

static bool hold(struct st_encoder *e, const char *text, size_t bytes)
{
    if (bytes == 0)
        return true;
    if (!st_tokenizer_grow(&e->held, &e->held_capacity, e->held_bytes + bytes, 1))
        return false;
    memcpy(e->held + e->held_bytes, text, bytes);
    e->held_bytes += bytes;
    return true;
}

/* U+FFFD for `bytes` bytes. */
static bool hold_replacement(struct st_encoder *e, size_t bytes)
{
    const uint32_t saved = e->edit_count > 0 ? e->edits[e->edit_count - 1].saved : 0;

    if (!st_tokenizer_grow(&e->edits, &e->edit_capacity, e->edit_count + 1, sizeof(e->edits[0])))
        return false;
    e->edits[e->edit_count++] = (struct st_edit){(uint32_t)e->held_bytes, (uint32_t)bytes, saved + 3 - (uint32_t)bytes};
    e->replaced++;
    return hold(e, "\xef\xbf\xbd", 3);
}

/* How many of these bytes, which begin no character, are its maximal subpart (Unicode, section 3.9): one that a longer text could
 * complete, or 1.  *open: nothing but the end of the text is wrong with it. */
size_t st_utf8_subpart(const char *text, size_t bytes, bool *open)
{
    static const char tails[] = "\x80\x80\x80";
    const unsigned char lead = (unsigned char)text[0];
    const size_t length = lead < 0xc2 || lead > 0xf4 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    char whole[4] = {0};

    *open = false;
    for (size_t kept = length - 1; kept > 1 || (kept == 1 && length > 1); kept--) {
        if (kept > bytes)
            continue;
        memcpy(whole, text, kept);
        memcpy(whole + kept, tails, length - kept);
        if (kept == 1 && (lead == 0xe0 || lead == 0xf0))
            whole[1] = (char)(lead == 0xe0 ? 0xa0 : 0x90); /* the least that may follow these */
        if (st_text_utf8_bytes(whole, length) == length) {
            *open = kept == bytes;
            return kept;
        }
    }
    return 1;
}

/* Appends UTF-8 to `held` and replaces other bytes; an incomplete character at the end is left.  *used: bytes taken */
static bool hold_checked(struct st_encoder *e, const char *text, size_t bytes, bool final, size_t *used)
{
    size_t begin = 0, at = 0;

    while (at < bytes) {
        const size_t length = (unsigned char)text[at] < 0x80 ? 1 : st_text_utf8_bytes(text + at, bytes - at);
        bool open;

        if (length == 0) {
            const size_t bad = st_utf8_subpart(text + at, bytes - at, &open);

            if (!hold(e, text + begin, at - begin))
                return false;
            begin = at;
            if (open && !final)
                break;
            if (!hold_replacement(e, bad))
                return false;
            begin = at += bad;
            continue;
        }
        at += length;
    }
    if (at == bytes && !hold(e, text + begin, at - begin))
        return false;
    *used = at;
    return true;
}

/* held[0 .. bytes) as if it were a whole text, but for how it begins. */
static strata_status encode_held(struct st_encoder *e, size_t bytes, struct st_encoding *out)
{
    const struct st_view v = {.text = e->held, .bytes = bytes};
    struct st_found found;
    struct st_view segment;
    size_t at = 0, done = 0;
    strata_status st = STRATA_OK;

    while (st == STRATA_OK && e->t->trie.count > 0 &&
           st_added_find(&found, e->t, &e->t->trie, &v, &at, done, e->opts.special_as_text)) {
        if (done < found.begin) {
            segment = st_view_part(&v, done, found.begin);
            st = st_encode_segment(e, &segment, e->continues, out);
        }
        if (st == STRATA_OK)
            st = st_encode_put(e, out, e->t->added[found.index].id, found.begin, found.end);
        done = found.end;
        e->continues = false;
    }
    if (st == STRATA_OK && done < bytes) {
        segment = st_view_part(&v, done, bytes);
        st = st_encode_segment(e, &segment, e->continues, out);
        e->continues = true;
    }
    return st;
}

/* Forget the first bytes of `held`. */
static void drop(struct st_encoder *e, size_t bytes)
{
    const uint64_t base = st_encoder_original(e, bytes, true);
    size_t kept = 0;

    for (size_t i = 0; i < e->edit_count; i++)
        if (e->edits[i].at >= bytes) {
            const uint32_t saved = kept > 0 ? e->edits[kept - 1].saved : 0;

            e->edits[kept++] =
                (struct st_edit){e->edits[i].at - (uint32_t)bytes, e->edits[i].bytes, saved + 3 - e->edits[i].bytes};
        }
    e->edit_count = kept;
    memmove(e->held, e->held + bytes, e->held_bytes - bytes);
    e->held_bytes -= bytes;
    e->base = base;
    e->searched = 0;
}

/* Gives out what can be, once there is a window of it. */
static strata_status settle(struct st_encoder *e, struct st_encoding *out)
{
    strata_status st;

    if (e->held_bytes < WINDOW_BYTES)
        return STRATA_OK;
    for (size_t at = e->held_bytes - 1; at > e->searched; at--)
        if (st_encode_may_cut(e, at)) {
            if ((st = encode_held(e, at, out)) != STRATA_OK)
                return st;
            drop(e, at);
            return STRATA_OK;
        }
    e->searched = e->held_bytes - 1;
    if (e->held_bytes > ST_ENCODER_HELD_MAX)
        return st_error(STRATA_E_INPUT, "a text of more than %u MiB without a place where this tokenizer can cut it: split it",
                        ST_ENCODER_HELD_MAX >> 20);
    return STRATA_OK;
}

static strata_status put_special(struct st_encoder *e, const uint32_t *ids, uint32_t count, struct st_encoding *out)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < count && st == STRATA_OK && e->opts.add_special; i++)
        st = st_encode_put(e, out, ids[i], e->held_bytes, e->held_bytes);
    return st;
}

void st_encode_begin(struct st_encoder *e, const struct st_encode_opts *opts)
{
    e->opts = opts != NULL ? *opts : (struct st_encode_opts){0};
    e->held_bytes = e->searched = e->edit_count = e->pending_bytes = 0;
    e->base = e->replaced = 0;
    e->continues = e->started = false;
}

static strata_status start(struct st_encoder *e, struct st_encoding *out)
{
    if (e->started)
        return STRATA_OK;
    e->started = true;
    return put_special(e, e->t->prefix, e->t->prefix_count, out);
}

/* The beginning of a character from the part before, and as many bytes as it lacks. */
static bool hold_pending(struct st_encoder *e, const char **text, size_t *bytes, bool final)
{
    while (e->pending_bytes > 0 && (final || *bytes > 0)) {
        size_t used;

        if (*bytes > 0) {
            e->pending[e->pending_bytes++] = *(*text)++;
            --*bytes;
        }
        if (!hold_checked(e, e->pending, e->pending_bytes, final && *bytes == 0, &used))
            return false;
        memmove(e->pending, e->pending + used, e->pending_bytes - used);
        e->pending_bytes -= used;
    }
    return true;
}

strata_status st_encode_feed(struct st_encoder *e, const char *text, size_t bytes, struct st_encoding *out)
{
    size_t used;
    strata_status st = start(e, out);

    if (st == STRATA_OK && !hold_pending(e, &text, &bytes, false))
        st = st_nomem(0);
    while (bytes > 0 && st == STRATA_OK) {
        const size_t part = bytes < WINDOW_BYTES ? bytes : WINDOW_BYTES;

        if (!hold_checked(e, text, part, false, &used))
            return st_nomem(0);
        if (used < part && part == bytes) { /* part of a character: 1 to 3 bytes */
            memcpy(e->pending, text + used, part - used);
            e->pending_bytes = part - used;
            used = part;
        }
        text += used;
        bytes -= used;
        st = settle(e, out);
    }
    return st;
}

strata_status st_encode_finish(struct st_encoder *e, struct st_encoding *out)
{
    const char *none = NULL;
    size_t no_bytes = 0;
    strata_status st = start(e, out);

    if (st == STRATA_OK && !hold_pending(e, &none, &no_bytes, true))
        st = st_nomem(0);
    if (st == STRATA_OK)
        st = encode_held(e, e->held_bytes, out);
    if (st == STRATA_OK)
        st = put_special(e, e->t->suffix, e->t->suffix_count, out);
    return st;
}

strata_status st_encode(struct st_encoder *e, const char *text, size_t bytes, const struct st_encode_opts *opts,
                        struct st_encoding *out)
{
    strata_status st;

    st_encode_begin(e, opts);
    st = st_encode_feed(e, text, bytes, out);
    return st == STRATA_OK ? st_encode_finish(e, out) : st;
}

uint64_t st_encoder_replaced(const struct st_encoder *e)
{
    return e->replaced;
}

/* text/tokenizer/decode.c - ids back to text, one at a time.
 *
 * The decoders of the file form a chain.  Each takes tokens, or parts of one, and hands on what later tokens cannot change; after
 * a Fuse or a ByteLevel all text is one token whose end comes at the end. */
#include "text/tokenizer/tokenizer_internal.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "text/tokenizer/encode_internal.h"

#include <stdlib.h>
#include <string.h>

/* What a step remembers between tokens. */
struct step_state {
    char *held; /* ByteFallback: bytes of a run; ByteLevel: of a character */
    size_t held_bytes, held_capacity;
    char *part; /* for a step that needs whole tokens: the parts that have arrived */
    size_t part_bytes, part_capacity;
    uint64_t tokens;      /* Metaspace: ended so far */
    uint32_t cut, trails; /* Strip: characters cut at this token's start; those that may be its last ones */
    bool inside;          /* Strip: past this token's start */
};

struct st_decoder {
    const struct st_tokenizer *t;
    bool skip_special, any; /* any: a token has been written */
    struct step_state steps[ST_PARTS_MAX];
    struct st_decoded *out;
};

void st_decoded_free(struct st_decoded *out)
{
    free(out->bytes);
    *out = (struct st_decoded){0};
}

static bool put(struct st_decoded *out, const char *text, size_t bytes)
{
    if (!st_tokenizer_grow(&out->bytes, &out->capacity, out->count + bytes, 1))
        return false;
    if (bytes > 0)
        memcpy(out->bytes + out->count, text, bytes);
    out->count += bytes;
    return true;
}

/* Adds to a token that has not ended. */
static bool hold_part(struct step_state *s, const char *text, size_t bytes)
{
    if (!st_tokenizer_grow(&s->part, &s->part_capacity, s->part_bytes + bytes, 1))
        return false;
    if (bytes > 0)
        memcpy(s->part + s->part_bytes, text, bytes);
    s->part_bytes += bytes;
    return true;
}

static bool hold(struct step_state *s, const char *text, size_t bytes)
{
    if (!st_tokenizer_grow(&s->held, &s->held_capacity, s->held_bytes + bytes, 1))
        return false;
    if (bytes > 0)
        memcpy(s->held + s->held_bytes, text, bytes);
    s->held_bytes += bytes;
    return true;
}

static bool run(struct st_decoder *d, uint32_t index, const char *text, size_t bytes, bool end);

/* Pass whole characters on, invalid bytes as U+FFFD; an incomplete character waits. */
static bool pass_characters(struct st_decoder *d, uint32_t index, bool final)
{
    struct step_state *s = &d->steps[index];
    size_t at = 0, begin = 0;
    bool good = true, open = false;

    if (s->held_bytes == 0)
        return true;
    while (at < s->held_bytes && good) {
        size_t length = st_text_utf8_bytes(s->held + at, s->held_bytes - at);

        if (length > 0) {
            at += length;
            continue;
        }
        length = st_utf8_subpart(s->held + at, s->held_bytes - at, &open);
        if (open && !final)
            break;
        good = run(d, index + 1, s->held + begin, at - begin, false) && run(d, index + 1, "\xef\xbf\xbd", 3, false);
        begin = at += length;
    }
    good = good && run(d, index + 1, s->held + begin, at - begin, false);
    if (at < s->held_bytes)
        memmove(s->held, s->held + at, s->held_bytes - at);
    s->held_bytes -= at;
    return good;
}

/* A token of characters that all stand for bytes; any other is text. */
static bool byte_level(struct st_decoder *d, uint32_t index, const char *text, size_t bytes)
{
    struct step_state *s = &d->steps[index];
    const size_t before = s->held_bytes;

    for (size_t at = 0, length; at < bytes; at += length) {
        const int byte = st_byte_level_byte(st_utf8_at(text + at, &length));

        if (byte < 0) {
            s->held_bytes = before;
            if (!hold(s, text, bytes))
                return false;
            break;
        }
        if (!hold(s, &(char){(char)byte}, 1))
            return false;
    }
    return pass_characters(d, index, false);
}

/* "<0x41>": 0x41; -1: another token. */
static int byte_token(const char *text, size_t bytes)
{
    static const char digits[] = "0123456789abcdef";
    int value = 0;

    if (bytes != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    for (unsigned i = 3; i < 5; i++) {
        const char c = text[i] >= 'A' && text[i] <= 'F' ? (char)(text[i] + 'a' - 'A') : text[i];
        const char *digit = c == '\0' ? NULL : strchr(digits, c);

        if (digit == NULL)
            return text[i] == '+' && i == 3 ? byte_token((const char[]){'<', '0', 'x', '0', text[4], '>'}, 6) : -1;
        value = 16 * value + (int)(digit - digits);
    }
    return value;
}

/* The run of bytes is one token if it is UTF-8, else each byte is U+FFFD. */
static bool flush_bytes(struct st_decoder *d, uint32_t index)
{
    struct step_state *s = &d->steps[index];
    const size_t bytes = s->held_bytes;
    bool good = true;
    size_t at = 0, length;

    while (at < bytes && (length = st_text_utf8_bytes(s->held + at, bytes - at)) > 0)
        at += length;
    s->held_bytes = 0;
    if (at == bytes)
        return bytes == 0 || run(d, index + 1, s->held, bytes, true);
    for (size_t i = 0; i < bytes && good; i++)
        good = run(d, index + 1, "\xef\xbf\xbd", 3, true);
    return good;
}

static bool byte_fallback(struct st_decoder *d, uint32_t index, const char *text, size_t bytes)
{
    const int byte = byte_token(text, bytes);

    if (byte >= 0)
        return hold(&d->steps[index], &(char){(char)byte}, 1);
    return flush_bytes(d, index) && run(d, index + 1, text, bytes, true);
}

/* Characters of a token that may be its last ones go on as soon as another follows. */
static bool strip(struct st_decoder *d, uint32_t index, const char *text, size_t bytes, bool end)
{
    const struct st_decode_step *step = &d->t->decodes[index];
    struct step_state *s = &d->steps[index];
    bool good = true;

    for (size_t at = 0, length; at < bytes && good; at += length) {
        bool same;

        (void)st_utf8_at(text + at, &length);
        same = length == step->pattern_bytes && memcmp(text + at, step->pattern, length) == 0;
        if (!s->inside && same && s->cut < step->start) {
            s->cut++;
            continue;
        }
        s->inside = true;
        if (same && s->trails < step->stop) {
            s->trails++;
            continue;
        }
        for (; !same && s->trails > 0 && good; s->trails--)
            good = run(d, index + 1, step->pattern, step->pattern_bytes, false);
        good = good && run(d, index + 1, text + at, length, false);
    }
    if (!end)
        return good;
    s->inside = false;
    s->cut = s->trails = 0;
    return good && run(d, index + 1, "", 0, true);
}

static bool replace(struct st_decoder *d, uint32_t index, const char *text, size_t bytes, bool end)
{
    const struct st_decode_step *step = &d->t->decodes[index];
    size_t at = 0;
    bool good = true;

    while (at < bytes && good) {
        const char *found = memmem(text + at, bytes - at, step->pattern, step->pattern_bytes);

        if (found == NULL)
            break;
        good = run(d, index + 1, text + at, (size_t)(found - text) - at, false) &&
               run(d, index + 1, step->content, step->content_bytes, false);
        at = (size_t)(found - text) + step->pattern_bytes;
    }
    return good && run(d, index + 1, text + at, bytes - at, end);
}

/* The replacement is a space, but for the first token, where it is nothing. */
static bool metaspace(struct st_decoder *d, uint32_t index, const char *text, size_t bytes, bool end)
{
    const struct st_decode_step *step = &d->t->decodes[index];
    const bool drops = d->steps[index].tokens == 0 && step->scheme != ST_SCHEME_NEVER;
    size_t at = 0;
    bool good = true;

    while (at < bytes && good) {
        const char *found = memmem(text + at, bytes - at, step->pattern, step->pattern_bytes);

        if (found == NULL)
            break;
        good = run(d, index + 1, text + at, (size_t)(found - text) - at, false) && (drops || run(d, index + 1, " ", 1, false));
        at = (size_t)(found - text) + step->pattern_bytes;
    }
    d->steps[index].tokens += end;
    return good && run(d, index + 1, text + at, bytes - at, end);
}

/* Bytes, and texts of several characters, are looked for in whole tokens. */
static bool wants_whole(const struct st_decode_step *step)
{
    return step->kind == ST_DECODE_BYTE_LEVEL || step->kind == ST_DECODE_BYTE_FALLBACK ||
           (step->kind == ST_DECODE_REPLACE && step->pattern_bytes > 1);
}

/* Part of a token, and whether it ends here, into step `index` and all that follow. */
static bool run(struct st_decoder *d, uint32_t index, const char *text, size_t bytes, bool end)
{
    struct step_state *s = &d->steps[index];

    if (index == d->t->decode_count)
        return put(d->out, text, bytes);
    if (wants_whole(&d->t->decodes[index]) && (!end || s->part_bytes > 0)) {
        if (!hold_part(s, text, bytes))
            return false;
        if (!end)
            return true;
        text = s->part;
        bytes = s->part_bytes;
        s->part_bytes = 0;
    }
    switch (d->t->decodes[index].kind) {
    case ST_DECODE_BYTE_LEVEL:
        return byte_level(d, index, text, bytes);
    case ST_DECODE_BYTE_FALLBACK:
        return byte_fallback(d, index, text, bytes);
    case ST_DECODE_FUSE:
        return run(d, index + 1, text, bytes, false);
    case ST_DECODE_STRIP:
        return strip(d, index, text, bytes, end);
    case ST_DECODE_REPLACE:
        return replace(d, index, text, bytes, end);
    case ST_DECODE_METASPACE:
        return metaspace(d, index, text, bytes, end);
    }
    return false;
}

strata_status st_decoder_create(struct st_decoder **out, const struct st_tokenizer *t, bool skip_special)
{
    struct st_decoder *d = st_tokenizer_alloc(1, sizeof(*d));

    if (d == NULL)
        return st_nomem(0);
    d->t = t;
    d->skip_special = skip_special;
    *out = d;
    return STRATA_OK;
}

void st_decoder_destroy(struct st_decoder *d)
{
    if (d == NULL)
        return;
    for (uint32_t i = 0; i < ST_PARTS_MAX; i++) {
        free(d->steps[i].held);
        free(d->steps[i].part);
    }
    free(d);
}

strata_status st_decoder_push(struct st_decoder *d, uint32_t id, struct st_decoded *out)
{
    size_t bytes;
    const char *text = st_tokenizer_text(d->t, id, &bytes);

    if (text == NULL || (d->skip_special && st_tokenizer_is_special(d->t, id)))
        return STRATA_OK;
    d->out = out;
    if (!d->t->has_decoder && d->any && !put(out, " ", 1))
        return st_nomem(0);
    d->any = true;
    return run(d, 0, text, bytes, true) ? STRATA_OK : st_nomem(0);
}

strata_status st_decoder_finish(struct st_decoder *d, struct st_decoded *out)
{
    bool good = true;

    d->out = out;
    for (uint32_t i = 0; i < d->t->decode_count && good; i++) {
        if (d->t->decodes[i].kind == ST_DECODE_BYTE_LEVEL)
            good = pass_characters(d, i, true) && run(d, i + 1, "", 0, true);
        else if (d->t->decodes[i].kind == ST_DECODE_BYTE_FALLBACK)
            good = flush_bytes(d, i);
        else if (d->t->decodes[i].kind == ST_DECODE_FUSE)
            good = run(d, i + 1, "", 0, true);
        d->steps[i].tokens = 0;
    }
    d->any = false;
    return good ? STRATA_OK : st_nomem(0);
}

strata_status st_decode(const struct st_tokenizer *t, const uint32_t *ids, size_t count, bool skip_special,
                        struct st_decoded *out)
{
    struct st_decoder *d = NULL;
    strata_status st = st_decoder_create(&d, t, skip_special);

    for (size_t i = 0; i < count && st == STRATA_OK; i++)
        st = st_decoder_push(d, ids[i], out);
    if (st == STRATA_OK)
        st = st_decoder_finish(d, out);
    st_decoder_destroy(d);
    return st;
}

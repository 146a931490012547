/* text/tokenizer/split.c - pre-tokenizers: from a text to its words, part by part.
 *
 * A part cuts each piece that the parts before it have left, and may rewrite it first (a space or its replacement in front). */
#include "text/tokenizer/encode_internal.h"

#include "core/base/error.h"

#include <string.h>

bool st_pieces_put(struct st_pieces *p, size_t begin, size_t end)
{
    if (begin == end)
        return true;
    if (!st_tokenizer_grow(&p->items, &p->capacity, p->count + 1, sizeof(p->items[0])))
        return false;
    p->items[p->count++] = (struct st_piece){(uint32_t)begin, (uint32_t)end};
    return true;
}

/* Turns the stretches of a piece, matches and what lies between them, into pieces, as the reference's SplitDelimiterBehavior. */
struct cutter {
    struct st_pieces *out;
    enum st_behavior behavior;
    bool good, any; /* any: `open` holds a stretch that may still grow */
    bool was_match; /* the stretch before */
    struct st_piece open;
};

static void close_open(struct cutter *c)
{
    if (c->any)
        c->good = c->good && st_pieces_put(c->out, c->open.begin, c->open.end);
    c->any = false;
}

static void put_stretch(struct cutter *c, size_t begin, size_t end, bool match)
{
    bool joins = false; /* the open stretch and this one are one piece */

    switch (c->behavior) {
    case ST_REMOVED:
        if (match)
            return;
        break;
    case ST_ISOLATED:
        break;
    case ST_CONTIGUOUS:
        joins = match == c->was_match;
        break;
    case ST_WITH_PREVIOUS:
        joins = match && !c->was_match;
        break;
    case ST_WITH_NEXT:
        joins = !match && c->was_match; /* a match opens a piece that includes the text after it */
        break;
    }
    if (!(joins && c->any)) {
        close_open(c);
        c->open.begin = (uint32_t)begin;
    }
    c->open.end = (uint32_t)end;
    c->any = true;
    c->was_match = match;
}

static void put_both(struct cutter *c, size_t *done, size_t begin, size_t end, bool invert)
{
    if (*done < begin)
        put_stretch(c, *done, begin, invert);
    put_stretch(c, begin, end, !invert);
    *done = end;
}

static strata_status cut_by_pattern(struct st_encoder *e, const struct st_pre *part, const struct st_view *v,
                                    struct st_piece piece, struct st_pieces *out)
{
    struct cutter c = {.out = out, .behavior = part->behavior, .good = true};
    const struct st_view text = st_view_part(v, piece.begin, piece.end);
    struct st_matcher m;
    size_t begin, end, done = 0;

    st_matcher_begin(&m, &part->pattern, e, &text);
    while (st_matcher_next(&m, &begin, &end)) {
        if (done < begin)
            put_stretch(&c, piece.begin + done, piece.begin + begin, part->invert);
        put_stretch(&c, piece.begin + begin, piece.begin + end, !part->invert);
        done = end;
    }
    if (m.status != STRATA_OK)
        return m.status;
    if (done < text.bytes)
        put_stretch(&c, piece.begin + done, piece.end, part->invert);
    close_open(&c);
    return c.good ? STRATA_OK : st_nomem(0);
}

/* Digits, and Metaspace's own character. */
static bool is_delimiter(const struct st_encoder *e, const struct st_pre *part, const char *text, size_t length)
{
    if (part->kind == ST_PRE_DIGITS) {
        size_t ignored;

        return (e->t->unicode->flags[st_utf8_at(text, &ignored)] & ST_UC_NUMERIC) != 0;
    }
    return length == part->replacement_bytes && memcmp(text, part->replacement, length) == 0;
}

static strata_status cut_by_character(const struct st_encoder *e, const struct st_pre *part, const struct st_view *v,
                                      struct st_piece piece, struct st_pieces *out)
{
    struct cutter c = {.out = out, .behavior = part->kind == ST_PRE_METASPACE ? ST_WITH_NEXT : part->behavior, .good = true};
    size_t length, done = piece.begin;

    for (size_t at = piece.begin; at < piece.end; at += length) {
        (void)st_utf8_at(v->text + at, &length);
        if (is_delimiter(e, part, v->text + at, length))
            put_both(&c, &done, at, at + length, false);
    }
    if (done < piece.end)
        put_stretch(&c, done, piece.end, false);
    close_open(&c);
    return c.good ? STRATA_OK : st_nomem(0);
}

/* The text that a part puts in front of a piece; 0 bytes: none. */
static size_t text_in_front(const struct st_encoder *e, const struct st_pre *part, const struct st_view *v, struct st_piece piece,
                            const char **text)
{
    const char *begin = v->text + piece.begin;

    if (part->kind == ST_PRE_BYTE_LEVEL) {
        *text = " ";
        return part->add_prefix_space && begin[0] != ' ' ? 1 : 0;
    }
    *text = part->replacement;
    if (part->scheme == ST_SCHEME_NEVER || begin[0] == ' ' ||
        (piece.end - piece.begin >= part->replacement_bytes && memcmp(begin, part->replacement, part->replacement_bytes) == 0) ||
        (part->scheme == ST_SCHEME_FIRST && (e->begins_later || e->base + st_view_from(v, piece.begin) != 0)))
        return 0;
    return part->replacement_bytes;
}

static bool put_piece_text(const struct st_pre *part, const struct st_view *v, struct st_piece piece, struct st_rewrite *to)
{
    size_t done = piece.begin;

    for (size_t at = piece.begin; part->kind == ST_PRE_METASPACE && at < piece.end; at++)
        if (v->text[at] == ' ') {
            if (!st_rewrite_keep(to, v, done, at) ||
                !st_rewrite_put(to, part->replacement, part->replacement_bytes, st_view_from(v, at), st_view_to(v, at)))
                return false;
            done = at + 1;
        }
    return st_rewrite_keep(to, v, done, piece.end);
}

/* Whether a part may change the text. */
static bool rewrites(const struct st_pre *part)
{
    return part->kind == ST_PRE_METASPACE || (part->kind == ST_PRE_BYTE_LEVEL && part->add_prefix_space);
}

/* Rewrites all pieces; they lie in the new text as in the old.  @param continues  the first one continues a piece given out
 * before */
static strata_status rewrite(const struct st_encoder *e, const struct st_pre *part, struct st_view *v, struct st_pieces *pieces,
                             struct st_rewrite *to, bool continues)
{
    to->bytes = 0;
    for (size_t i = 0; i < pieces->count; i++) {
        struct st_piece *piece = &pieces->items[i];
        const size_t begin = to->bytes, from = st_view_from(v, piece->begin);
        const char *front;
        const size_t front_bytes = i == 0 && continues ? 0 : text_in_front(e, part, v, *piece, &front);

        if ((front_bytes > 0 && !st_rewrite_put(to, front, front_bytes, from, from)) || !put_piece_text(part, v, *piece, to))
            return st_nomem(0);
        *piece = (struct st_piece){(uint32_t)begin, (uint32_t)to->bytes};
    }
    *v = st_rewrite_view(to);
    return STRATA_OK;
}

strata_status st_split_words(struct st_encoder *e, struct st_view *v, unsigned which, bool continues, unsigned *list)
{
    struct st_pieces *pieces = &e->pieces[0];
    unsigned other = 2;
    strata_status st;

    pieces->count = 0;
    *list = 0;
    if (!st_pieces_put(pieces, 0, v->bytes))
        return st_nomem(0);
    for (uint32_t i = 0; i < e->t->pre_count; i++) {
        const struct st_pre *part = &e->t->pres[i];
        struct st_pieces *cut = &e->pieces[*list ^ 1];

        if (rewrites(part)) {
            const unsigned to = which;

            if ((st = rewrite(e, part, v, pieces, &e->rewrites[to], continues)) != STRATA_OK)
                return st;
            which = other;
            other = to;
        }
        if ((part->kind == ST_PRE_METASPACE || part->kind == ST_PRE_BYTE_LEVEL) && !part->cuts)
            continue;
        cut->count = 0;
        for (size_t k = 0; k < pieces->count; k++) {
            st = part->kind == ST_PRE_DIGITS || part->kind == ST_PRE_METASPACE
                     ? cut_by_character(e, part, v, pieces->items[k], cut)
                     : cut_by_pattern(e, part, v, pieces->items[k], cut);
            if (st != STRATA_OK)
                return st;
        }
        pieces = cut;
        *list ^= 1;
    }
    return STRATA_OK;
}

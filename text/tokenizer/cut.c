/* text/tokenizer/cut.c - where a long text may be cut.
 *
 * The ids of a text are those of its two parts where every step sees both alike: no normalizer and no pattern joins the two
 * characters or looks across them, no merge reaches across, and no added token lies across or asks what stands beside it.  Where
 * a tokenizer has a part that cannot be judged so (another pattern than the known ones), no text is cut. */
#include "text/tokenizer/encode_internal.h"

#include "core/base/error.h"

#include <string.h>

/* Normalizers that change each character by itself, but for what composes (NFC) and what comes in front of all. */
static bool normals_are_local(struct st_tokenizer *t)
{
    for (uint32_t i = 0; i < t->normal_count; i++) {
        const struct st_normal *n = &t->normals[i];
        size_t length = 0;

        if (n->kind != ST_NORMAL_REPLACE)
            continue;
        if (n->pattern.regex != NULL || n->pattern.scan != ST_SCAN_NONE || strcmp(n->pattern.text, " ") != 0 ||
            n->content_bytes == 0)
            return false;
        t->cut.space = st_utf8_at(n->content, &length);
        if (length != n->content_bytes)
            return false;
    }
    return true;
}

/* A Split at spaces, after a normalizer has replaced them all. */
static bool never_matches(const struct st_tokenizer *t, const struct st_pre *p)
{
    return p->kind == ST_PRE_SPLIT && t->cut.space != ' ' && p->pattern.regex == NULL && p->pattern.scan == ST_SCAN_NONE &&
           strcmp(p->pattern.text, " ") == 0 && !p->invert;
}

static enum st_cut_kind kind_of(struct st_tokenizer *t)
{
    enum st_cut_kind kind = ST_CUT_PAIRS;
    bool first = true; /* no part before this one cuts or adds anything but digits */

    t->cut.space = ' ';
    if (!normals_are_local(t))
        return ST_CUT_NEVER;
    for (uint32_t i = 0; i < t->pre_count; i++) {
        const struct st_pre *p = &t->pres[i];

        if (p->kind == ST_PRE_DIGITS || never_matches(t, p))
            continue;
        if (p->kind == ST_PRE_METASPACE && first) {
            t->cut.before_spaces = p->cuts;
            t->cut.space = st_utf8_at(p->replacement, &(size_t){0});
        } else if (p->kind == ST_PRE_SPLIT && first && p->pattern.scan != ST_SCAN_NONE && p->behavior == ST_ISOLATED &&
                   !p->invert && t->cut.space == ' ') {
            kind = ST_CUT_WORDS;
        } else if (p->kind == ST_PRE_BYTE_LEVEL && p->cuts && first && t->cut.space == ' ') {
            kind = ST_CUT_WORDS;
        } else if (p->kind != ST_PRE_BYTE_LEVEL || first || p->add_prefix_space) {
            return ST_CUT_NEVER;
        }
        first = false;
    }
    /* A word that is one token whatever its merges must not be cut. */
    t->cut.between_pairs = t->bpe.pairs.bits != NULL && !t->bpe.ignore_merges;
    return kind == ST_CUT_PAIRS && !t->cut.between_pairs && !t->cut.before_spaces ? ST_CUT_NEVER : kind;
}

/* Marks beside which a character stands in the same set: no characters themselves. */
enum { ENDS_AND_STRIPS = 0x110000, ENDS_WORD, BEGINS_WORD };

/* Which characters a token has side by side, and how it begins and ends where that matters. */
static void note_text(struct st_cut *cut, const struct st_added *added, const char *text, size_t bytes)
{
    uint32_t last = 0, code = 0;

    for (size_t at = 0, length; at < bytes; at += length, last = code) {
        code = st_utf8_at(text + at, &length);
        if (at > 0)
            st_pairs_put(&cut->tokens, last, code);
        else if (added->single_word)
            st_pairs_put(&cut->tokens, BEGINS_WORD, code);
    }
    if (added->single_word)
        st_pairs_put(&cut->tokens, code, ENDS_WORD);
    if (added->rstrip)
        st_pairs_put(&cut->tokens, code, ENDS_AND_STRIPS);
}

/* Refuse what the reference takes by chance (two texts that it cannot tell apart) or finds everywhere (an empty one). */
static strata_status check_normalized(const struct st_tokenizer *t, const struct st_added *added, const struct st_view *v)
{
    size_t length = 0;
    const uint32_t same = st_trie_longest(&t->normal_trie, v->text, v->bytes, &length);

    if (v->bytes == 0)
        return st_error(STRATA_E_INPUT,
                        "%s: added_tokens: the normalizer leaves nothing of \"%.40s\", id %u: \"normalized\": false keeps it",
                        t->path, added->text, added->id);
    if (same != 0 && length == v->bytes)
        return st_error(STRATA_E_INPUT,
                        "%s: added_tokens: the normalizer makes one text of \"%.40s\", id %u, and \"%.40s\", id %u", t->path,
                        t->added[same - 1].text, t->added[same - 1].id, added->text, added->id);
    return STRATA_OK;
}

/* The texts that are searched for after normalization are normalized, too. */
static strata_status add_normalized(struct st_tokenizer *t, struct st_encoder *e, uint32_t index)
{
    const struct st_added *added = &t->added[index];
    struct st_view v = {.text = added->text, .bytes = added->bytes};
    unsigned which = 0;
    strata_status st = st_normalize(e, &v, &which, false);

    if (st != STRATA_OK || (st = check_normalized(t, added, &v)) != STRATA_OK)
        return st;
    note_text(&t->cut, added, v.text, v.bytes);
    if (!st_trie_add(&t->normal_trie, v.text, v.bytes, index + 1))
        return st_nomem(0);
    return STRATA_OK;
}

strata_status st_cut_prepare(struct st_tokenizer *t)
{
    struct st_encoder *e;
    strata_status st = st_encoder_create(&e, t);

    if (st != STRATA_OK)
        return st;
    if (!st_pairs_create(&t->cut.tokens))
        st = st_nomem(0);
    for (uint32_t i = 0; i < t->added_count && st == STRATA_OK; i++) {
        const struct st_added *added = &t->added[i];

        note_text(&t->cut, added, added->text, added->bytes);
        if (!added->normalized && !st_trie_add(&t->trie, added->text, added->bytes, i + 1))
            st = st_nomem(0);
        else if (added->normalized)
            st = add_normalized(t, e, i);
    }
    st_encoder_destroy(e);
    t->cut.kind = kind_of(t);
    return st;
}

/* Whether some added token has these two side by side, or would look across; `lstrip` stops at the letter in front. */
static bool concerns_added(const struct st_tokenizer *t, uint32_t first, uint32_t second, bool spaces)
{
    const struct st_pairs *p = &t->cut.tokens;

    return st_pairs_has(p, first, second) || (second == ' ' && st_pairs_has(p, first, t->cut.space)) ||
           st_pairs_has(p, first, ENDS_WORD) || st_pairs_has(p, BEGINS_WORD, second) ||
           (spaces && st_pairs_has(p, first, ENDS_AND_STRIPS));
}

bool st_encode_may_cut(const struct st_encoder *e, size_t at)
{
    const struct st_tokenizer *t = e->t;
    size_t begin = at, length;
    uint32_t first, second;
    unsigned before, after;

    if (t->cut.kind == ST_CUT_NEVER || ((unsigned char)e->held[at] & 0xc0) == 0x80)
        return false;
    do
        begin--;
    while (((unsigned char)e->held[begin] & 0xc0) == 0x80);
    first = st_utf8_at(e->held + begin, &length);
    second = st_utf8_at(e->held + at, &length);
    before = t->unicode->flags[first];
    after = t->unicode->flags[second];
    if ((before & ST_UC_LETTER) == 0 || t->unicode->nfc[second] != 0)
        return false;
    if (t->cut.kind == ST_CUT_WORDS) {
        if ((after & ~(unsigned)ST_UC_SPACE) != 0 || second == '\'')
            return false;
    } else {
        const uint32_t mapped = second == ' ' ? t->cut.space : second;

        if (!(t->cut.before_spaces && second == ' ') && !(t->cut.between_pairs && st_bpe_apart(&t->bpe, first, mapped)))
            return false;
    }
    return !concerns_added(t, first, second, (after & ST_UC_SPACE) != 0);
}

/* text/tokenizer/normalize.c - texts that are rewritten, and where each byte of the new one came from. */
#include "text/tokenizer/encode_internal.h"

#include "core/base/error.h"

#include <stdlib.h>
#include <string.h>

struct st_view st_view_part(const struct st_view *v, size_t begin, size_t end)
{
    return (struct st_view){v->text + begin, end - begin, v->from != NULL ? v->from + begin : NULL,
                            v->to != NULL ? v->to + begin : NULL, v->base + begin};
}

void st_rewrite_free(struct st_rewrite *r)
{
    free(r->text);
    free(r->from);
    free(r->to);
    *r = (struct st_rewrite){0};
}

static bool make_room(struct st_rewrite *r, size_t bytes)
{
    r->over = r->limit > 0 && bytes > r->limit - r->bytes;
    return !r->over && r->bytes + bytes <= UINT32_MAX && st_tokenizer_grow(&r->text, &r->text_capacity, r->bytes + bytes, 1) &&
           st_tokenizer_grow(&r->from, &r->from_capacity, r->bytes + bytes, sizeof(r->from[0])) &&
           st_tokenizer_grow(&r->to, &r->to_capacity, r->bytes + bytes, sizeof(r->to[0]));
}

bool st_rewrite_keep(struct st_rewrite *r, const struct st_view *v, size_t begin, size_t end)
{
    if (begin == end)
        return true;
    if (!make_room(r, end - begin))
        return false;
    memcpy(r->text + r->bytes, v->text + begin, end - begin);
    for (size_t i = begin; i < end; i++) {
        r->from[r->bytes + i - begin] = (uint32_t)st_view_from(v, i);
        r->to[r->bytes + i - begin] = (uint32_t)st_view_to(v, i);
    }
    r->bytes += end - begin;
    return true;
}

bool st_rewrite_put(struct st_rewrite *r, const char *text, size_t bytes, size_t from, size_t to)
{
    if (bytes == 0)
        return true;
    if (!make_room(r, bytes))
        return false;
    memcpy(r->text + r->bytes, text, bytes);
    for (size_t i = 0; i < bytes; i++) {
        r->from[r->bytes + i] = (uint32_t)from;
        r->to[r->bytes + i] = (uint32_t)to;
    }
    r->bytes += bytes;
    return true;
}

struct st_view st_rewrite_view(const struct st_rewrite *r)
{
    return (struct st_view){r->text, r->bytes, r->from, r->to, 0};
}

/* What takes the place of several characters stands for the last of them to the reference.  @param begin, end  a match in *v */
static void note_beginning(struct st_encoder *e, const struct st_view *v, size_t begin, size_t end)
{
    if (begin > 0 || end == begin)
        return;
    do
        end--;
    while (((unsigned char)v->text[end] & 0xc0) == 0x80);
    e->begins_later = e->begins_later || st_view_from(v, end) != st_view_from(v, 0);
}

static bool replace_matches(struct st_encoder *e, const struct st_normal *n, const struct st_view *v, struct st_rewrite *to)
{
    struct st_matcher m;
    size_t at = 0, begin, end;

    st_matcher_begin(&m, &n->pattern, e, v);
    while (st_matcher_next(&m, &begin, &end)) {
        const size_t from = begin < v->bytes ? st_view_from(v, begin) : v->bytes > 0 ? st_view_to(v, v->bytes - 1) : v->base;

        if (!st_rewrite_keep(to, v, at, begin) ||
            !st_rewrite_put(to, n->content, n->content_bytes, from, end > begin ? st_view_to(v, end - 1) : from))
            return false;
        note_beginning(e, v, begin, end);
        at = end;
    }
    e->failure = m.status;
    return m.status == STRATA_OK && st_rewrite_keep(to, v, at, v->bytes);
}

static bool prepend(const struct st_normal *n, const struct st_view *v, struct st_rewrite *to)
{
    return st_rewrite_put(to, n->content, n->content_bytes, st_view_from(v, 0), st_view_from(v, 0)) &&
           st_rewrite_keep(to, v, 0, v->bytes);
}

/* Whether this normalizer would change the text at all. */
static bool changes(const struct st_encoder *e, const struct st_normal *n, const struct st_view *v, bool continues)
{
    if (v->bytes == 0)
        return false;
    if (n->kind == ST_NORMAL_PREPEND)
        return !continues;
    if (n->kind == ST_NORMAL_NFC)
        return !st_nfc_is_done(e->t->unicode, v->text, v->bytes);
    return n->pattern.regex != NULL || n->pattern.scan != ST_SCAN_NONE ||
           memmem(v->text, v->bytes, n->pattern.text, n->pattern.bytes) != NULL;
}

/* No normalizer of a language makes more of a text: one that does would fill the memory. */
#define GROWTH_MAX    16u
#define GROWTH_ALWAYS (1u << 20)

static strata_status normal_failure(const struct st_encoder *e, const struct st_rewrite *to, size_t limit)
{
    if (e->failure != STRATA_OK)
        return e->failure;
    if (!to->over)
        return st_nomem(0);
    return st_error(STRATA_E_INPUT, "%s: the normalizer makes more than %zu bytes of a text, which is over %u times as many",
                    st_tokenizer_path(e->t), limit, GROWTH_MAX);
}

strata_status st_normalize(struct st_encoder *e, struct st_view *v, unsigned *which, bool continues)
{
    const size_t limit = GROWTH_ALWAYS + GROWTH_MAX * v->bytes;

    e->begins_later = false;
    for (uint32_t i = 0; i < e->t->normal_count; i++) {
        const struct st_normal *n = &e->t->normals[i];
        struct st_rewrite *to = &e->rewrites[*which];
        bool good;

        if (!changes(e, n, v, continues))
            continue;
        to->bytes = 0;
        to->limit = limit;
        e->failure = STRATA_OK;
        if (n->kind == ST_NORMAL_PREPEND)
            good = prepend(n, v, to);
        else if (n->kind == ST_NORMAL_NFC)
            good = st_nfc(e->t->unicode, &e->nfc, v, to);
        else
            good = replace_matches(e, n, v, to);
        to->limit = 0;
        if (!good)
            return normal_failure(e, to, limit);
        *v = st_rewrite_view(to);
        *which ^= 1;
    }
    return STRATA_OK;
}

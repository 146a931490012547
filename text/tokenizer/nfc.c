/* text/tokenizer/nfc.c - Normalization Form C (Unicode Standard Annex 15), by tables made from the reference.
 *
 * A text is done in stretches: each begins with a starter that never composes with what stands before it, so that stretches do
 * not depend on each other.  Most are one character that stays as it is. */
#include "core/base/text.h"
#include "text/tokenizer/encode_internal.h"

#include <stdlib.h>
#include <string.h>

#define RANKS        (ST_NFC_RANK + 1)
#define INSERTED_MAX 32u /* marks: up to here insertion is quicker than counting */

bool st_nfc_is_done(const struct st_unicode *u, const char *text, size_t bytes)
{
    size_t length;

    for (size_t at = 0; at < bytes; at += length)
        if (u->nfc[st_utf8_at(text + at, &length)] != 0)
            return false;
    return true;
}

void st_nfc_work_free(struct st_nfc_work *work)
{
    free(work->codes);
    free(work->sorted);
    *work = (struct st_nfc_work){0};
}

static unsigned rank_of(const struct st_unicode *u, uint32_t code)
{
    return u->nfc[code] & ST_NFC_RANK;
}

/* Marks by rank, equals in their order. */
static bool sort_marks(const struct st_unicode *u, struct st_nfc_work *work, size_t begin, size_t end)
{
    size_t starts[RANKS + 1] = {0};
    uint32_t *codes = work->codes;

    if (end - begin <= INSERTED_MAX) {
        for (size_t i = begin + 1; i < end; i++) {
            const uint32_t code = codes[i];
            size_t at = i;

            for (; at > begin && rank_of(u, codes[at - 1]) > rank_of(u, code); at--)
                codes[at] = codes[at - 1];
            codes[at] = code;
        }
        return true;
    }
    if (!st_tokenizer_grow(&work->sorted, &work->sorted_capacity, end - begin, sizeof(work->sorted[0])))
        return false;
    for (size_t i = begin; i < end; i++)
        starts[rank_of(u, codes[i]) + 1]++;
    for (size_t rank = 1; rank <= RANKS; rank++)
        starts[rank] += starts[rank - 1];
    for (size_t i = begin; i < end; i++)
        work->sorted[starts[rank_of(u, codes[i])]++] = codes[i];
    memcpy(codes + begin, work->sorted, (end - begin) * sizeof(codes[0]));
    return true;
}

/* The stretch's characters, decomposed and in canonical order. */
static bool decompose(const struct st_unicode *u, struct st_nfc_work *work, const char *text, size_t bytes)
{
    size_t length, marks = 0; /* where the marks at the end begin */

    work->count = 0;
    for (size_t at = 0; at < bytes; at += length) {
        uint32_t parts[ST_DECOMPOSED_MAX];
        const uint32_t count = st_unicode_decompose(parts, st_utf8_at(text + at, &length));

        if (!st_tokenizer_grow(&work->codes, &work->capacity, work->count + count, sizeof(work->codes[0])))
            return false;
        for (uint32_t i = 0; i < count; i++) {
            if (rank_of(u, parts[i]) == 0) {
                if (!sort_marks(u, work, marks, work->count))
                    return false;
                marks = work->count + 1;
            }
            work->codes[work->count++] = parts[i];
        }
    }
    return marks > work->count || sort_marks(u, work, marks, work->count);
}

/* Each character joins the last starter, unless one of the same rank or a starter stands between. */
static void compose(const struct st_unicode *u, struct st_nfc_work *work)
{
    uint32_t *codes = work->codes, joined;
    size_t kept = 0, starter = SIZE_MAX;
    unsigned last_rank = 0; /* of the character before, if it was kept */

    for (size_t i = 0; i < work->count; i++) {
        const unsigned rank = rank_of(u, codes[i]);
        const bool next_to_it = starter != SIZE_MAX && starter + 1 == kept;

        if (starter != SIZE_MAX && (next_to_it || last_rank < rank) &&
            (joined = st_unicode_compose(codes[starter], codes[i])) != 0) {
            codes[starter] = joined;
            continue;
        }
        if (rank == 0)
            starter = kept;
        last_rank = rank;
        codes[kept++] = codes[i];
    }
    work->count = kept;
}

static bool put_stretch(struct st_nfc_work *work, const struct st_view *v, size_t begin, size_t end, struct st_rewrite *to)
{
    const size_t first = to->bytes;
    char text[4];

    for (size_t i = 0; i < work->count; i++)
        if (!st_rewrite_put(to, text, st_text_utf8_put(text, work->codes[i]), st_view_from(v, begin), st_view_to(v, end - 1)))
            return false;
    if (to->bytes - first != end - begin || memcmp(to->text + first, v->text + begin, end - begin) != 0)
        return true;
    to->bytes = first; /* nothing changed: each byte comes from itself */
    return st_rewrite_keep(to, v, begin, end);
}

bool st_nfc(const struct st_unicode *u, struct st_nfc_work *work, const struct st_view *v, struct st_rewrite *to)
{
    size_t length, next_length, kept = 0, end;

    for (size_t at = 0; at < v->bytes; at = end) {
        const uint32_t code = st_utf8_at(v->text + at, &length);

        end = at + length;
        while (end < v->bytes && (u->nfc[st_utf8_at(v->text + end, &next_length)] & (ST_NFC_RANK | ST_NFC_JOINS)) != 0)
            end += next_length;
        if (end == at + length && (u->nfc[code] & ST_NFC_CHANGES) == 0)
            continue;
        if (!st_rewrite_keep(to, v, kept, at) || !decompose(u, work, v->text + at, end - at))
            return false;
        compose(u, work);
        if (!put_stretch(work, v, at, end, to))
            return false;
        kept = end;
    }
    return st_rewrite_keep(to, v, kept, v->bytes);
}

/* dialog_mask.c - which tokens of a rendered conversation are trained: the rule is in dialog.h. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "model/data/dialog/dialog_internal.h"

#include <stdlib.h>
#include <string.h>

/* Where a token begins.  One that stands for no byte (the space that a tokenizer puts before a text, which begins again behind a
 * special token) is of what stands on both of its sides. */
static uint8_t origin_of_begin(const struct st_encoding *e, const struct st_rendered *r, size_t i)
{
    const uint64_t at = e->begins[i];

    if (at < e->ends[i])
        return r->origins[at];
    return at > 0 && at < r->bytes ? r->origins[at - 1] & r->origins[at] : ST_ORIGIN_TEMPLATE;
}

static bool covers_generation(const struct st_encoding *e, const struct st_rendered *r, size_t i)
{
    bool inside = (origin_of_begin(e, r, i) & ST_ORIGIN_GENERATION) != 0;

    for (uint64_t at = e->begins[i]; at < e->ends[i] && !inside; at++)
        inside = (r->origins[at] & ST_ORIGIN_GENERATION) != 0;
    return inside;
}

static bool is_white_space(const struct st_encoding *e, const struct st_rendered *r, size_t i)
{
    for (uint64_t at = e->begins[i]; at < e->ends[i]; at++)
        if (r->text[at] == '\0' || strchr(" \t\n\r", r->text[at]) == NULL)
            return false;
    return true;
}

/* The token that ends the answer whose last token is before `i`; SIZE_MAX: none does. */
static size_t find_end(const struct st_encoding *e, const struct st_tokenizer *t, const struct st_rendered *r, size_t i)
{
    for (; i < e->count && origin_of_begin(e, r, i) == ST_ORIGIN_TEMPLATE; i++) {
        if (st_tokenizer_is_special(t, e->ids[i]) || e->ids[i] == st_tokenizer_role(t, ST_TOKEN_EOS))
            return i;
        if (!is_white_space(e, r, i))
            break;
    }
    return SIZE_MAX;
}

/* The last token of the template's white space behind `end`. */
static size_t pass_white_space(const struct st_encoding *e, const struct st_tokenizer *t, const struct st_rendered *r, size_t end)
{
    while (end + 1 < e->count && origin_of_begin(e, r, end + 1) == ST_ORIGIN_TEMPLATE &&
           !st_tokenizer_is_special(t, e->ids[end + 1]) && is_white_space(e, r, end + 1))
        end++;
    return end;
}

/* Whether the answer that is interrupted before `i` goes on: its reasoning has an end of its own. */
static bool goes_on(const struct st_encoding *e, const struct st_rendered *r, size_t i)
{
    while (i < e->count && origin_of_begin(e, r, i) == ST_ORIGIN_TEMPLATE)
        i++;
    return i < e->count && (origin_of_begin(e, r, i) & ST_ORIGIN_ANSWER) != 0;
}

static void mask_answers(struct st_dialog_ids *out, const struct st_tokenizer *t, const struct st_rendered *r, bool turn_ends)
{
    const struct st_encoding *e = &out->encoding;
    bool before = false;

    for (size_t i = 0; i <= e->count; i++) {
        const bool answer = i < e->count && (origin_of_begin(e, r, i) & ST_ORIGIN_ANSWER) != 0;
        size_t end = before && !answer ? find_end(e, t, r, i) : SIZE_MAX;

        out->answers += answer && !before;
        if (end != SIZE_MAX) {
            end = turn_ends ? pass_white_space(e, t, r, end) : end;
            memset(out->trained + i, 1, end + 1 - i);
            i = end;
        } else {
            out->unended += before && !answer && !goes_on(e, r, i);
        }
        if (i < e->count && answer)
            out->trained[i] = 1;
        before = answer;
    }
}

/* The last token of a run is the end token, where the template's author put it inside. */
static void mask_generation(struct st_dialog_ids *out, const struct st_tokenizer *t, const struct st_rendered *r)
{
    const struct st_encoding *e = &out->encoding;

    for (size_t i = 0; i <= e->count; i++) {
        const bool inside = i < e->count && covers_generation(e, r, i), first = inside && (i == 0 || out->trained[i - 1] == 0);

        if (i < e->count)
            out->trained[i] = inside;
        out->answers += first;
        if (!inside && i > 0 && out->trained[i - 1] != 0) {
            size_t last = i - 1;

            while (last > 0 && out->trained[last - 1] != 0 && is_white_space(e, r, last))
                last--;
            out->unended += !st_tokenizer_is_special(t, e->ids[last]) && e->ids[last] != st_tokenizer_role(t, ST_TOKEN_EOS);
        }
    }
}

strata_status st_dialog_mask(struct st_dialog_ids *out, const struct st_tokenizer *t, const struct st_rendered *text,
                             bool turn_ends)
{
    const size_t count = out->encoding.count;

    if (count > out->trained_capacity) {
        uint8_t *grown = st_fault("dialog.alloc", 0) < 0 ? NULL : realloc(out->trained, 2 * count);

        if (grown == NULL)
            return st_error(STRATA_E_NOMEM, "no memory for a conversation of %zu tokens", count);
        out->trained = grown;
        out->trained_capacity = 2 * count;
    }
    if (count > 0)
        memset(out->trained, 0, count);
    out->answers = out->unended = 0;
    if (text->has_generation)
        mask_generation(out, t, text);
    else
        mask_answers(out, t, text, turn_ends);
    return STRATA_OK;
}

/* dialog_mask.c - which tokens of a rendered conversation are trained: the rule is in dialog.h. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "text/data/dialog/dialog_internal.h"

#include <stdlib.h>
#include <string.h>

size_t st_encoding_from(const struct st_encoding *e, size_t at)
{
    size_t low = 0, high = e->count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (e->begins[middle] < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

size_t st_template_bytes_end(const struct st_rendered *r, size_t at)
{
    while (at < r->bytes && st_origin_message(r->origins[at]) == 0)
        at++;
    return at;
}

size_t st_space_bytes(const char *text, size_t bytes)
{
    size_t count = 0;

    while (count < bytes && (text[count] == ' ' || text[count] == '\t' || text[count] == '\n' || text[count] == '\r'))
        count++;
    return count;
}

static bool is_white_space(const struct st_encoding *e, const struct st_rendered *r, size_t i)
{
    const size_t bytes = e->ends[i] - e->begins[i];

    return st_space_bytes(r->text + e->begins[i], bytes) == bytes;
}

static bool is_special(const struct st_dialog_text *text, uint32_t id)
{
    return st_tokenizer_is_special(text->tokenizer, id) || st_token_is_end(text->ends, id);
}

/* The token that ends an answer; SIZE_MAX: none does.  An end of text right behind other special tokens closes them all: some
 * models have one for the end of a call, of all calls or of a response, and the turn's behind it. */
static size_t find_end(const struct st_turn *turn, const struct st_dialog_text *text, const struct st_encoding *e)
{
    const size_t limit = st_template_bytes_end(&text->rendered, turn->last + 1);
    size_t first = st_encoding_from(e, turn->last + 1);

    while (first < e->count && e->begins[first] < limit && !is_special(text, e->ids[first]))
        first++;
    if (first == e->count || e->begins[first] >= limit)
        return SIZE_MAX;
    for (size_t i = first; i < e->count && e->begins[i] < limit && is_special(text, e->ids[i]); i++) {
        if (st_token_is_end(text->ends, e->ids[i]))
            return i;
        if (i + 1 < e->count && (e->begins[i + 1] != e->ends[i] || st_space_bytes(text->rendered.text + e->ends[i] - 1, 1) > 0))
            break; /* a special token may take the white space behind it */
    }
    return first;
}

/* The last token of the template's white space behind `end`. */
static size_t pass_white_space(const struct st_dialog_text *text, const struct st_encoding *e, size_t end)
{
    const size_t limit = st_template_bytes_end(&text->rendered, e->ends[end]);

    while (end + 1 < e->count && e->ends[end + 1] <= limit && !is_special(text, e->ids[end + 1]) &&
           is_white_space(e, &text->rendered, end + 1))
        end++;
    return end;
}

/* Tokens that overlap the answer, but for those that begin in another message. */
static bool mark(struct st_dialog_ids *out, const struct st_turn *turn, const struct st_rendered *r, size_t end)
{
    const struct st_encoding *e = &out->encoding;
    bool any = false;

    for (size_t i = st_encoding_from(e, turn->gap); i < e->count && e->begins[i] < end; i++) {
        const uint32_t message = e->begins[i] < r->bytes ? st_origin_message(r->origins[e->begins[i]]) : 0;

        if (e->begins[i] == e->ends[i] || e->ends[i] <= turn->begin || (message != 0 && message != turn->message))
            continue;
        out->trained[i] = 1;
        any = true;
    }
    return any;
}

/* The last byte of an answer before another message's. */
static size_t part_last(const struct st_turn *turn, const struct st_rendered *r, size_t at)
{
    size_t last = at;

    for (; at <= turn->last; at++) {
        const uint32_t message = st_origin_message(r->origins[at]);

        if (message != 0 && message != turn->message)
            break;
        last = message != 0 ? at : last;
    }
    return last;
}

/* A call's words behind an end of text that the template wrote there, which stand before it, too, are the sender of a result. */
static void leave_out_sender(struct st_turn *part, const struct st_dialog_text *text, const struct st_encoding *e)
{
    const struct st_rendered *r = &text->rendered;

    for (size_t i = st_encoding_from(e, part->first); i < e->count && e->ends[i] <= part->last; i++) {
        size_t from = e->ends[i], to;

        if (!st_token_is_end(text->ends, e->ids[i]) || st_origin_message(r->origins[e->begins[i]]) != 0)
            continue;
        from = st_template_bytes_end(r, from);
        for (to = from; to <= part->last && (r->origins[to] & ST_ORIGIN_FIELD) == ST_ORIGIN_CALL;)
            to++;
        if (to > part->last && memmem(r->text + part->first, e->begins[i] - part->first, r->text + from, to - from) != NULL) {
            for (part->last = e->begins[i] - 1; st_origin_message(r->origins[part->last]) == 0;)
                part->last--;
            return;
        }
    }
}

/* Other messages may interrupt an answer: a call's result, before what was said beside the call. */
static void mask_turn(struct st_dialog_ids *out, const struct st_turn *turn, const struct st_dialog_text *text)
{
    const struct st_encoding *e = &out->encoding;
    const struct st_rendered *r = &text->rendered;
    struct st_turn part = *turn;
    bool any = false;
    size_t last;

    do {
        size_t next;

        part.last = part_last(turn, r, part.first);
        for (next = part.last + 1; next <= turn->last && st_origin_message(r->origins[next]) != turn->message;)
            next++;
        leave_out_sender(&part, text, e);
        last = find_end(&part, text, e);
        if (last != SIZE_MAX && text->turn_ends)
            last = pass_white_space(text, e, last);
        any = mark(out, &part, r, last != SIZE_MAX ? e->ends[last] : part.last + 1) || any;
        part.first = part.begin = part.gap = next;
    } while (part.first <= turn->last);
    out->counts.unended += last == SIZE_MAX;
    out->counts.answers += any;
}

static void mask_turns(struct st_dialog_ids *out, const struct st_turns *turns, struct st_dialog_text *text)
{
    const struct st_encoding *e = &out->encoding;

    for (uint32_t i = 0; i < turns->count; i++)
        if (!turns->at[i].excluded)
            mask_turn(out, &turns->at[i], text);
    /* The space that a tokenizer puts before a text, which begins again behind a special token, is no byte of it. */
    for (size_t i = e->count; i-- > 0;)
        if (e->begins[i] == e->ends[i] && i + 1 < e->count && out->trained[i + 1] != 0)
            out->trained[i] = 1;
}

/* A token without bytes belongs to a part if the tokens on both sides do. */
static bool is_inside(const struct st_encoding *e, const struct st_rendered *r, size_t i)
{
    const uint64_t at = e->begins[i];
    bool inside = false;

    if (at == e->ends[i])
        return at > 0 && at < r->bytes && (r->origins[at - 1] & r->origins[at] & ST_ORIGIN_GENERATION) != 0;
    for (uint64_t b = at; b < e->ends[i] && !inside; b++)
        inside = (r->origins[b] & ST_ORIGIN_GENERATION) != 0;
    return inside;
}

/* The last token of a run is the end token, where the template's author put it inside. */
static void mask_generation(struct st_dialog_ids *out, const struct st_dialog_text *text)
{
    const struct st_encoding *e = &out->encoding;

    for (size_t i = 0; i <= e->count; i++) {
        const bool inside = i < e->count && is_inside(e, &text->rendered, i),
                   first = inside && (i == 0 || out->trained[i - 1] == 0);

        if (i < e->count)
            out->trained[i] = inside;
        out->counts.answers += first;
        if (!inside && i > 0 && out->trained[i - 1] != 0) {
            size_t last = i - 1;

            while (last > 0 && out->trained[last - 1] != 0 && is_white_space(e, &text->rendered, last))
                last--;
            out->counts.unended += !is_special(text, e->ids[last]);
        }
    }
}

static strata_status reserve(struct st_dialog_ids *out)
{
    const size_t count = out->encoding.count;

    if (count > out->trained_capacity) {
        uint8_t *grown = st_fault("dialog.alloc", 0) < 0 ? NULL : realloc(out->trained, 2 * count);

        if (grown == NULL)
            return st_nomem(2 * count);
        out->trained = grown;
        out->trained_capacity = 2 * count;
    }
    if (count > 0)
        memset(out->trained, 0, count);
    return STRATA_OK;
}

strata_status st_dialog_mask(struct st_dialog_ids *out, struct st_dialog_text *text)
{
    struct st_turns turns;
    strata_status st = reserve(out);

    out->counts = (struct st_dialog_counts){0};
    if (st != STRATA_OK || text->input->add_generation_prompt) /* nothing is trained of what a model goes on with */
        return st;
    if ((st = st_turns_find(&turns, text, &out->encoding, &out->counts)) != STRATA_OK)
        return st;
    if (text->rendered.has_generation)
        mask_generation(out, text);
    else
        mask_turns(out, &turns, text);
    free(turns.at);
    return st;
}

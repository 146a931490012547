/* tokenize_put.c - one document's ids, into the file that it belongs to. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/rng.h"
#include "text/data/rows/tokenize_internal.h"
#include "text/data/rows/truncate.h"
#include "text/data/texts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STREAM_ASIDE UINT64_C(0x61736964) /* of random numbers: rows held out */
#define TEXT_SHOWN   64                   /* bytes of a token in a message */

/* The writer's number for a row. */
static uint32_t part_of(const struct st_tokenizing *j, uint64_t row)
{
    return row < j->rows_all && j->rows_aside > 0 && st_rng_permute(row, j->rows_all, j->opts->seed, STREAM_ASIDE) < j->rows_aside
               ? 1
               : 0;
}

/* The first document decides what the file holds. */
static strata_status open_writers(struct st_tokenizing *j, bool dialogs, const char *place)
{
    const char *const paths[2] = {j->opts->out, j->report->heldout};
    struct st_token_writer_opts opts = {.vocab = st_tokenizer_vocab(j->tokenizer),
                                        .tokenizer = st_tokenizer_hash(j->tokenizer),
                                        .layout = dialogs ? ST_LAYOUT_PACKED : ST_LAYOUT_CONCATENATED,
                                        .masked = dialogs,
                                        .overwrite = j->opts->overwrite,
                                        .origin = j->opts->origin};
    strata_status st = STRATA_OK;

    if (j->writers[0] != NULL && j->report->dialogs != dialogs)
        return st_error_remedy(st_error(STRATA_E_INPUT, "%s: a %s after %s", place, dialogs ? "conversation" : "text",
                                        dialogs ? "texts" : "conversations"),
                               "strata_data_open()", "make a token file of each and give both to strata_data_open()");
    if (j->writers[0] != NULL)
        return STRATA_OK;
    if (j->opts->layout != NULL)
        opts.layout = *j->opts->layout;
    j->report->dialogs = dialogs;
    j->report->layout = opts.layout;
    for (uint32_t i = 0; i < (j->rows_aside > 0 ? 2u : 1u) && st == STRATA_OK; i++)
        st = st_token_writer_create(&j->writers[i], paths[i], &opts);
    return st;
}

/* Tokenizers have tokens for which their models have no rows: those that occur decide.  first: of the document, the number of
 * ids[0] */
static strata_status check_rows(const struct st_tokenizing *j, const uint32_t *ids, uint64_t count, uint64_t first,
                                const char *place)
{
    const uint32_t rows = j->opts->vocab;

    if (rows == 0 || st_tokenizer_vocab(j->tokenizer) <= rows)
        return STRATA_OK;
    for (uint64_t i = 0; i < count; i++) {
        size_t bytes = 0;
        const char *text = ids[i] < rows ? NULL : st_tokenizer_text(j->tokenizer, ids[i], &bytes);

        if (ids[i] >= rows)
            return st_error(STRATA_E_INPUT,
                            "%s: token %llu is \"%.*s\", id %u, and the model has rows for %u tokens: leave it out", place,
                            (unsigned long long)(first + i), (int)(bytes < TEXT_SHOWN ? bytes : TEXT_SHOWN),
                            text != NULL ? text : "", ids[i], rows);
    }
    return STRATA_OK;
}

static strata_status show(struct st_tokenizing *j, uint32_t part, const uint32_t *ids, const uint8_t *trained, uint64_t count,
                          const char *place, bool more)
{
    struct strata_shown_run run = {.place = place, .tokens = count, .more = more, .heldout = part == 1};

    if (j->shown >= j->opts->show)
        return STRATA_OK;
    j->shown++;
    run.begin = st_token_writer_tokens(j->writers[part]);
    for (uint64_t at = 0; at < count; at += run.count, run.place = NULL) {
        strata_status st;

        run.ids = ids + at;
        run.trained = trained == NULL || trained[at] != 0;
        for (run.count = 1; at + run.count < count && (trained == NULL || (trained[at + run.count] != 0) == run.trained);)
            run.count++;
        j->decoded.count = 0;
        if ((st = st_decode(j->tokenizer, run.ids, run.count, false, &j->decoded)) != STRATA_OK)
            return st;
        run.text = j->decoded.bytes;
        run.bytes = j->decoded.count;
        j->opts->shown(j->opts->context, &run);
    }
    return STRATA_OK;
}

/* more: the document goes on after these. */
static strata_status put(struct st_tokenizing *j, uint32_t part, const uint32_t *ids, const uint8_t *trained, uint64_t count,
                         const char *place, bool more)
{
    strata_status st = check_rows(j, ids, count, 0, place);

    if (st == STRATA_OK)
        st = show(j, part, ids, trained, count, place, more);
    if (st == STRATA_OK)
        st = st_token_writer_put(j->writers[part], ids, trained, count);
    if (st != STRATA_OK)
        return st;
    j->report->parts[part].documents++;
    for (uint64_t i = 0; i < count; i++)
        j->report->parts[part].trained += trained == NULL || trained[i] != 0;
    return STRATA_OK;
}

/* The end of a text, unless it or the post-processor has put it there.  @param last  the id before those of `text`, if it has
 * none */
static strata_status add_end(const struct st_tokenizing *j, struct st_encoding *text, uint32_t last)
{
    const uint32_t end = st_tokenizer_role(j->tokenizer, ST_TOKEN_EOS);

    if (text->count > 0)
        last = text->ids[text->count - 1];
    return end == ST_TOKEN_NONE || last == end ? STRATA_OK : st_encoding_add(text, end);
}

/* Tokens that a text may have; UINT64_MAX: any number. */
static uint64_t text_most(const struct st_tokenizing *j)
{
    return j->report->layout == ST_LAYOUT_CONCATENATED || j->opts->seq_len == 0 ? UINT64_MAX : j->opts->seq_len;
}

static uint64_t cut_text(struct st_tokenizing *j, uint64_t count)
{
    if (count <= text_most(j))
        return count;
    j->report->truncated++;
    j->text_cut = true;
    return text_most(j);
}

void st_tokenize_drop(struct st_tokenizing *j, enum st_row_odd odd, const char *place, const char *why)
{
    if (j->report->dropped[odd]++ == 0)
        snprintf(j->report->first[odd], sizeof(j->report->first[odd]), "%s%s%s", place != NULL ? place : "",
                 place != NULL && why != NULL ? ": " : "", why != NULL ? why : "");
}

strata_status st_tokenize_text(struct st_tokenizing *j, uint64_t row, const char *text, size_t bytes, const char *place)
{
    const struct st_encode_opts opts = {.add_special = true};
    const uint32_t part = part_of(j, row);
    strata_status st = open_writers(j, false, place);

    j->text.count = 0;
    if (st == STRATA_OK)
        st = st_encode(j->encoder, text, bytes, &opts, &j->text);
    if (st == STRATA_OK)
        st = add_end(j, &j->text, ST_TOKEN_NONE);
    if (st != STRATA_OK)
        return st;
    if (j->text.count == 0) {
        st_tokenize_drop(j, ST_ROW_EMPTY, place, NULL);
        return STRATA_OK;
    }
    j->report->parts[part].source_bytes += bytes;
    return put(j, part, j->text.ids, NULL, cut_text(j, j->text.count), place, false);
}

/* Only the last answer is trained. */
static void mask_history(uint8_t *trained, uint64_t count)
{
    uint64_t at = count;

    while (at > 0 && trained[at - 1] == 0)
        at--;
    while (at > 0 && trained[at - 1] != 0)
        at--;
    memset(trained, 0, at);
}

/* Cuts a conversation that is too long, and chooses what is trained. */
static uint64_t cut_dialog(const struct st_tokenizing *j, uint32_t *ids, uint8_t *trained, uint64_t count)
{
    if (j->opts->as_trl)
        return j->opts->seq_len;
    return j->opts->last_answer_only ? st_truncate_turns_from_last(ids, trained, count, j->opts->seq_len)
                                     : st_truncate_turns(ids, trained, count, j->opts->seq_len);
}

/* Whether every token is trained. */
static bool trains_all(const struct st_tokenizing *j, const struct st_sample *s)
{
    return j->opts->train_on_prompt && !(j->opts->as_trl && s->completes);
}

static uint64_t shape_dialog(struct st_tokenizing *j, const struct st_sample *s)
{
    uint32_t *ids = j->ids.encoding.ids;
    uint8_t *trained = j->ids.trained;
    uint64_t count = j->ids.encoding.count;

    if (j->opts->seq_len > 0 && count > j->opts->seq_len) {
        count = cut_dialog(j, ids, trained, count);
        j->report->truncated++;
    }
    if (j->opts->last_answer_only)
        mask_history(trained, count);
    if (trains_all(j, s))
        memset(trained, 1, count);
    return count;
}

static void add_counts(struct st_tokenize_report *r, const struct st_dialog_counts *c, const char *place)
{
    if (r->answers.guessed == 0 && c->guessed > 0)
        snprintf(r->guessed, sizeof(r->guessed), "%s", place);
    r->answers.answers += c->answers;
    r->answers.unended += c->unended;
    r->answers.thoughtless += c->thoughtless;
    r->answers.unwritten += c->unwritten;
    r->answers.calls += c->calls;
    r->answers.guessed += c->guessed;
}

static bool trains(const struct st_tokenizing *j, uint64_t count)
{
    return count > 0 && memchr(j->ids.trained, 1, count) != NULL;
}

/* What j->ids holds. */
static strata_status put_ids(struct st_tokenizing *j, uint64_t row, const struct st_sample *s, const char *place)
{
    const bool answered = trains(j, j->ids.encoding.count);
    const uint64_t count = shape_dialog(j, s);

    if (!trains(j, count)) {
        st_tokenize_drop(j, ST_ROW_UNTRAINED, place,
                         answered ? "its answers lie behind the tokens that are kept" : "no answer that is to be trained");
        return STRATA_OK;
    }
    return put(j, part_of(j, row), j->ids.encoding.ids, j->ids.trained, count, place, false);
}

/* Trained is what covers a byte behind the prompt, and what follows: where the prompt's own ids are the first ones, TRL's mask.
 */
static strata_status mask_prompt(struct st_tokenizing *j, size_t prompt_bytes)
{
    const struct st_encoding *e = &j->ids.encoding;
    bool trained = false;

    if (e->count > j->ids.trained_capacity) {
        uint8_t *grown = st_fault("tokenize.alloc", 0) < 0 ? NULL : realloc(j->ids.trained, 2 * e->count);

        if (grown == NULL)
            return st_nomem(2 * e->count);
        j->ids.trained = grown;
        j->ids.trained_capacity = 2 * e->count;
    }
    for (size_t i = 0; i < e->count; i++) {
        j->report->merged += !trained && e->begins[i] < prompt_bytes && e->ends[i] > prompt_bytes;
        trained |= e->ends[i] > prompt_bytes || (e->begins[i] >= prompt_bytes && prompt_bytes > 0);
        j->ids.trained[i] = trained;
    }
    return STRATA_OK;
}

strata_status st_tokenize_completion(struct st_tokenizing *j, uint64_t row, const struct st_sample *s, const char *place)
{
    const struct st_encode_opts opts = {.add_special = true};
    struct st_encoding *e = &j->ids.encoding;
    strata_status st = open_writers(j, true, place);

    e->count = 0;
    if (st == STRATA_OK)
        st = st_encode(j->encoder, s->text, strlen(s->text), &opts, e);
    if (st == STRATA_OK)
        st = add_end(j, e, ST_TOKEN_NONE);
    if (st == STRATA_OK)
        st = mask_prompt(j, s->prompt_bytes);
    if (st != STRATA_OK)
        return st;
    if (!trains_all(j, s)) {
        j->report->answers.answers++;
        j->report->answers.unended += st_tokenizer_role(j->tokenizer, ST_TOKEN_EOS) == ST_TOKEN_NONE;
    }
    return put_ids(j, row, s, place);
}

static bool template_reads(const void *dialog, const char *key)
{
    return st_dialog_mentions(dialog, key);
}

strata_status st_tokenize_dialog(struct st_tokenizing *j, uint64_t row, const struct st_sample *s, const char *place)
{
    const struct st_dialog_opts opts = {
        .template = j->opts->template, .kwargs = j->opts->kwargs, .date = j->opts->date, .turn_ends = j->opts->turn_ends};
    strata_status st = open_writers(j, true, place);

    if (st == STRATA_OK && j->dialog == NULL)
        st = st_dialog_open(&j->dialog, j->tokenizer, &opts);
    if (st != STRATA_OK)
        return st;
    st = st_dialog_encode(j->dialog, s->messages, s->variables, false, &j->ids);
    if (st == STRATA_E_INPUT) {
        st_tokenize_drop(j, ST_ROW_REFUSED, place, strata_last_error());
        return STRATA_OK;
    }
    if (st != STRATA_OK)
        return st_error_prefix(st, "%s", place);
    j->report->toolless += j->ids.toolless;
    j->report->functions += s->functions;
    st_row_note_messages(&j->report->unread, s->messages, template_reads, j->dialog);
    if (j->report->answers.unseen == 0 && j->ids.counts.unseen > 0)
        snprintf(j->report->unseen, sizeof(j->report->unseen), "%s", place);
    j->report->answers.unseen += j->ids.counts.unseen;
    if (trains_all(j, s))
        j->report->overruled += s->excluded;
    else
        add_counts(j->report, &j->ids.counts, place);
    return put_ids(j, row, s, place);
}

/* A file that is being read in parts. */
struct parts {
    struct st_tokenizing *j;
    const char *path;
    uint32_t part, last; /* last: id put */
    uint64_t tokens;     /* put */
    uint64_t bytes;      /* read */
    bool cut, ended;     /* ended: nothing comes after these */
};

/* What the encoder has given so far. */
static strata_status put_part(struct parts *p)
{
    struct st_tokenizing *j = p->j;
    const uint64_t room = text_most(j) - p->tokens, count = j->text.count < room ? j->text.count : room;
    strata_status st = STRATA_OK;

    p->cut |= j->text.count > room;
    j->text.count = 0;
    if (count == 0)
        return STRATA_OK;
    if (p->tokens == 0) {
        st = put(j, p->part, j->text.ids, NULL, count, p->path, !p->ended && !p->cut);
    } else {
        st = check_rows(j, j->text.ids, count, p->tokens, p->path);
        if (st == STRATA_OK)
            st = st_token_writer_more(j->writers[p->part], j->text.ids, NULL, count);
        j->report->parts[p->part].trained += count;
    }
    p->tokens += count;
    p->last = j->text.ids[count - 1];
    return st;
}

static strata_status take_part(void *context, const char *text, size_t bytes)
{
    struct parts *p = context;
    struct st_tokenizing *j = p->j;
    strata_status st = STRATA_OK;

    if (p->bytes == 0)
        st_encode_begin(j->encoder, &(struct st_encode_opts){.add_special = true});
    p->bytes += bytes;
    if (!p->cut)
        st = st_encode_feed(j->encoder, text, bytes, &j->text);
    if (st == STRATA_OK)
        st = put_part(p);
    if (st == STRATA_OK && j->opts->progress != NULL)
        j->opts->progress(j->opts->context, j->report);
    return st;
}

static strata_status end_text(void *context)
{
    struct parts *p = context;
    struct st_tokenizing *j = p->j;
    strata_status st;

    if (p->bytes == 0 || p->cut)
        return STRATA_OK;
    if ((st = st_encode_finish(j->encoder, &j->text)) != STRATA_OK || (st = add_end(j, &j->text, p->last)) != STRATA_OK)
        return st;
    p->ended = true;
    j->report->replaced += st_encoder_replaced(j->encoder);
    return put_part(p);
}

strata_status st_tokenize_file(struct st_tokenizing *j, uint64_t row, const char *path)
{
    const char *name = strcmp(path, "-") == 0 ? "standard input" : path;
    struct parts p = {.j = j, .path = name, .part = part_of(j, row), .last = ST_TOKEN_NONE};
    const struct st_texts texts = {.paths = &path, .count = 1, .part = take_part, .end = end_text, .context = &p};
    strata_status st = open_writers(j, false, name);

    j->text.count = 0;
    if (st == STRATA_OK)
        st = st_texts_read(&texts);
    if (st != STRATA_OK)
        return st;
    if (p.tokens == 0)
        st_tokenize_drop(j, ST_ROW_EMPTY, path, NULL);
    j->report->truncated += p.cut;
    j->text_cut |= p.cut;
    j->report->parts[p.part].source_bytes += p.bytes;
    return STRATA_OK;
}

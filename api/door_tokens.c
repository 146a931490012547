/* api/door_tokens.c - strata/tokens.h: token files of whole texts or of documents, and what became of them. */
#include "api/handles.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/base/print.h"
#include "core/json/json.h"
#include "strata/tokens.h"
#include "text/data/rows/tokenize.h"
#include "text/data/tokens.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long ull;

struct strata_tokens {
    bool whole; /* all text is one: `text` says what was made, else `rows` */
    char out[ST_PATH_MAX];
    struct st_tokens_report text;
    struct st_tokenize_opts how; /* of it `out`, `date` and `seq_len` outlive the call */
    struct st_tokenize_report rows;
    char *json; /* NULL: not asked for yet */
};

/* --- making them --- */

static bool is_whole(const struct strata_tokens_opts *o)
{
    return strcmp(o->tokenizer, "byte") == 0 || o->heldout > 0;
}

static strata_status write_whole(struct strata_tokens *t, const char *const *paths, uint32_t count,
                                 const struct strata_tokens_opts *o)
{
    struct st_tokenizer *tokenizer = NULL;
    strata_status st = strcmp(o->tokenizer, "byte") == 0 ? STRATA_OK : st_tokenizer_open(&tokenizer, o->tokenizer);

    if (st != STRATA_OK)
        return st;
    st = st_tokens_from_text(tokenizer, paths, count, t->out, o->heldout, o->overwrite, &t->text);
    st_tokenizer_close(tokenizer);
    if (st == STRATA_OK && t->text.replaced > 0)
        st_log(ST_LOG_NOTICE, "%llu times, bytes that are not UTF-8 became U+FFFD", (ull)t->text.replaced);
    return st;
}

static strata_status read_options(struct st_tokenize_opts *how, enum st_token_layout *layout, const struct strata_tokens_opts *o)
{
    if (o->format != NULL && !st_row_format_find(&how->format, o->format))
        return st_error_key(
            st_error(STRATA_E_INVAL,
                     "tokens.format %s is unknown: use auto, text, messages, alpaca, sharegpt or prompt-completion", o->format),
            "tokens.format");
    if (o->date != NULL && !st_date_parse(&how->date, o->date))
        return st_error_key(st_error(STRATA_E_INVAL, "tokens.date %s is not a date such as 2026-01-31", o->date), "tokens.date");
    for (unsigned i = 0; o->layout != NULL && i < ST_LAYOUT_COUNT; i++)
        if (strcmp(o->layout, st_token_layout_name((enum st_token_layout)i)) == 0) {
            *layout = (enum st_token_layout)i;
            how->layout = layout;
        }
    if (o->layout != NULL && how->layout == NULL)
        return st_error_key(st_error(STRATA_E_INVAL, "tokens.layout %s is unknown: use concatenated, packed or rows", o->layout),
                            "tokens.layout");
    if (o->train_on_prompt && o->mask_history)
        return st_error(STRATA_E_INVAL, "tokens.train_on_prompt and tokens.mask_history exclude each other");
    if (o->val_size >= 1 && o->val_size != (double)(uint64_t)o->val_size)
        return st_error_key(st_error(STRATA_E_INVAL, "tokens.val_size %g: from 1 on it is a whole number of rows", o->val_size),
                            "tokens.val_size");
    return STRATA_OK;
}

static void tell(void *context, const struct st_tokenize_report *r)
{
    const struct strata_tokens_opts *o = context;

    if (o->progress != NULL)
        o->progress(o->ctx, r->rows, r->parts[0].tokens + r->parts[1].tokens);
}

static void show(void *context, const struct strata_shown_run *run)
{
    const struct strata_tokens_opts *o = context;

    o->shown(o->ctx, run);
}

static strata_status write_documents(struct strata_tokens *t, const char *const *paths, uint32_t count,
                                     struct strata_tokens_opts *o)
{
    enum st_token_layout layout = ST_LAYOUT_CONCATENATED;
    strata_status st;

    t->how = (struct st_tokenize_opts){.inputs = paths,
                                       .input_count = count,
                                       .dataset_info = o->dataset_info,
                                       .datasets = o->datasets,
                                       .dataset_count = o->dataset_count,
                                       .train_on_prompt = o->train_on_prompt,
                                       .last_answer_only = o->mask_history,
                                       .turn_ends = o->turn_ends,
                                       .as_trl = o->as_trl,
                                       .strict = o->strict,
                                       .tokenizer = o->tokenizer,
                                       .template = o->chat_template,
                                       .kwargs = o->chat_template_kwargs,
                                       .out = t->out,
                                       .date = st_date_today(),
                                       .seq_len = o->seq_len,
                                       .max_samples = o->max_samples,
                                       .val_size = o->val_size,
                                       .seed = o->seed,
                                       .overwrite = o->overwrite,
                                       .show = o->shown != NULL ? o->show : 0,
                                       .shown = show,
                                       .progress = tell,
                                       .context = o};
    if ((st = read_options(&t->how, &layout, o)) != STRATA_OK)
        return st;
    st = st_tokenize(&t->how, &t->rows);
    if (o->progress != NULL)
        o->progress(o->ctx, 0, 0);
    if (st != STRATA_OK)
        return st;
    st_tokenize_note(&t->rows);
    if (o->note_dropped)
        st_tokenize_note_dropped(&t->rows);
    return STRATA_OK;
}

static strata_status check(struct strata_tokens_opts *o, const char *const *paths, uint32_t count,
                           const struct strata_tokens_opts *opts)
{
    static const char name[] = "strata_tokens_write";
    const strata_status st = st_handle_opts(o, sizeof(*o), opts, "strata_tokens_opts");

    if (st != STRATA_OK)
        return st;
    if (o->tokenizer == NULL)
        return st_error_missing(name, "tokenizer");
    if (count + o->dataset_count == 0)
        return st_error(STRATA_E_INVAL, "%s: count is 0: name a text", name);
    for (uint32_t i = 0; i < count; i++)
        if (paths == NULL || paths[i] == NULL)
            return st_error_missing(name, paths == NULL ? "paths" : "one of paths");
    return STRATA_OK;
}

strata_status strata_tokens_write(struct strata_tokens **tokens, const char *out, const char *const *paths, uint32_t count,
                                  const struct strata_tokens_opts *opts)
{
    struct strata_tokens_opts o;
    struct strata_tokens *t;
    strata_status st;

    if (tokens == NULL || out == NULL)
        return st_error_missing(__func__, tokens == NULL ? "tokens" : "out");
    if ((st = check(&o, paths, count, opts)) != STRATA_OK)
        return st;
    t = st_fault_refuses("api.tokens") ? NULL : calloc(1, sizeof(*t));
    if (t == NULL)
        return st_nomem(sizeof(*t));
    t->whole = is_whole(&o);
    st = st_path_copy(t->out, out);
    if (st == STRATA_OK)
        st = t->whole ? write_whole(t, paths, count, &o) : write_documents(t, paths, count, &o);
    if (st != STRATA_OK) {
        strata_tokens_close(t);
        return st;
    }
    *tokens = t;
    return STRATA_OK;
}

void strata_tokens_close(struct strata_tokens *tokens)
{
    if (tokens == NULL)
        return;
    free(tokens->json);
    free(tokens);
}

strata_status strata_tokens_name(char *name, size_t room, const char *out, uint32_t file)
{
    char base[ST_PATH_MAX], path[ST_PATH_MAX];
    strata_status st;

    if (name == NULL || out == NULL)
        return st_error_missing(__func__, name == NULL ? "name" : "out");
    if (file > 3)
        return st_error(STRATA_E_INVAL, "%s: there is no file %u", __func__, file);
    st = file >= 2 ? st_tokens_heldout_path(base, out) : st_path_copy(base, out);
    if (st == STRATA_OK)
        st = file % 2 != 0 ? st_tokens_meta_path(path, base) : st_path_copy(path, base);
    if (st == STRATA_OK && strlen(path) >= room)
        return st_error(STRATA_E_INVAL, "%s: the name has %zu bytes, and there is room for %zu", __func__, strlen(path), room);
    if (st == STRATA_OK)
        memcpy(name, path, strlen(path) + 1);
    return st;
}

/* --- what became of them --- */

static void print_whole(const char *out, const struct st_tokens_report *r, FILE *file)
{
    st_print(file, "%s: %llu tokens from %llu bytes\n", out, (unsigned long long)r->tokens, (unsigned long long)r->source_bytes);
    if (r->heldout_path[0] != '\0')
        st_print(file, "%s: %llu tokens from %llu bytes\n", r->heldout_path, (unsigned long long)r->heldout_tokens,
                 (unsigned long long)r->heldout_bytes);
}

static void print_part(const struct st_tokenize_report *r, uint32_t i, const char *path, FILE *file)
{
    st_print(file, "%s: %llu documents, %llu tokens", path, (ull)r->parts[i].documents, (ull)r->parts[i].tokens);
    if (r->parts[i].source_bytes > 0)
        st_print(file, " from %llu bytes", (ull)r->parts[i].source_bytes);
    if (r->dialogs)
        st_print(file, ", %llu trained (%.1f %%)", (ull)r->parts[i].trained,
                 100.0 * (double)r->parts[i].trained / (double)r->parts[i].tokens);
    st_print(file, ", %s\n", st_token_layout_name(r->layout));
}

static void print_documents(const struct st_tokenize_opts *o, const struct st_tokenize_report *r, FILE *file)
{
    print_part(r, 0, o->out, file);
    if (r->heldout[0] != '\0')
        print_part(r, 1, r->heldout, file);
    if (r->template[0] != '\0')
        st_print(file, "template: %s\n", r->template);
    if (r->dated)
        st_print(file, "date: %04d-%02d-%02d\n", o->date.year, o->date.month, o->date.day);
    if (r->truncated > 0)
        st_print(file, "truncated to %u tokens: %llu documents\n", o->seq_len, (ull)r->truncated);
    for (unsigned odd = ST_ROW_FINE + 1; odd < ST_ROW_ODDS; odd++)
        if (r->dropped[odd] > 0)
            st_print_keyed(file, "dropped: %llu, %s; the first: %s\n", (ull)r->dropped[odd],
                           st_row_odd_text((enum st_row_odd)odd), r->first[odd]);
}

strata_status strata_tokens_print(const struct strata_tokens *tokens, FILE *file)
{
    if (tokens == NULL || file == NULL)
        return st_error_missing(__func__, tokens == NULL ? "tokens" : "file");
    if (tokens->whole)
        print_whole(tokens->out, &tokens->text, file);
    else
        print_documents(&tokens->how, &tokens->rows, file);
    return STRATA_OK;
}

static void put_whole(const char *out, const struct st_tokens_report *r, struct st_json_writer *w)
{
    st_json_put_string(w, "out", out);
    st_json_put_u64(w, "tokens", r->tokens);
    st_json_put_u64(w, "source_bytes", r->source_bytes);
    st_json_put_string(w, "heldout", r->heldout_path[0] != '\0' ? r->heldout_path : NULL);
    st_json_put_u64(w, "heldout_tokens", r->heldout_tokens);
    st_json_put_u64(w, "heldout_bytes", r->heldout_bytes);
    st_json_put_u64(w, "replaced", r->replaced);
}

static void put_documents(const struct st_tokenize_opts *o, const struct st_tokenize_report *r, struct st_json_writer *w)
{
    char date[40];

    snprintf(date, sizeof(date), "%04d-%02d-%02d", o->date.year, o->date.month, o->date.day);
    st_json_put_string(w, "out", o->out);
    st_json_put_u64(w, "tokens", r->parts[0].tokens);
    st_json_put_u64(w, "source_bytes", r->parts[0].source_bytes);
    st_json_put_string(w, "heldout", r->heldout[0] != '\0' ? r->heldout : NULL);
    st_json_put_u64(w, "heldout_tokens", r->parts[1].tokens);
    st_json_put_u64(w, "heldout_bytes", r->parts[1].source_bytes);
    st_json_put_u64(w, "replaced", r->replaced);
    st_json_put_string(w, "layout", st_token_layout_name(r->layout));
    st_json_put_u64(w, "rows", r->rows);
    st_json_put_u64(w, "documents", r->parts[0].documents);
    st_json_put_u64(w, "trained", r->parts[0].trained);
    st_json_put_u64(w, "heldout_documents", r->parts[1].documents);
    st_json_put_u64(w, "heldout_trained", r->parts[1].trained);
    st_json_put_u64(w, "truncated", r->truncated);
    st_json_object_open(w, "dropped");
    for (unsigned odd = ST_ROW_FINE + 1; odd < ST_ROW_ODDS; odd++)
        st_json_put_u64(w, st_row_odd_key((enum st_row_odd)odd), r->dropped[odd]);
    st_json_object_close(w);
    st_json_object_open(w, "dropped_first");
    for (unsigned odd = ST_ROW_FINE + 1; odd < ST_ROW_ODDS; odd++)
        st_json_put_string(w, st_row_odd_key((enum st_row_odd)odd), r->dropped[odd] > 0 ? r->first[odd] : NULL);
    st_json_object_close(w);
    st_json_array_open(w, "unread");
    for (uint32_t i = 0; i < r->unread.count; i++) {
        st_json_object_open(w, NULL);
        st_json_put_string(w, "column", r->unread.columns[i].name);
        st_json_put_u64(w, "rows", r->unread.columns[i].rows);
        st_json_object_close(w);
    }
    st_json_array_close(w);
    st_json_put_u64(w, "answers_without_end", r->answers.unended);
    st_json_put_u64(w, "answers_without_thoughts", r->answers.thoughtless);
    st_json_put_u64(w, "answers_not_written", r->answers.unwritten);
    st_json_put_u64(w, "messages_not_written", r->answers.unseen);
    st_json_put_u64(w, "calls_not_written", r->answers.calls);
    st_json_put_u64(w, "answers_begin_guessed", r->answers.guessed);
    st_json_put_string(w, "template", r->template[0] != '\0' ? r->template : NULL);
    st_json_put_string(w, "date", r->dated ? date : NULL);
}

strata_status strata_tokens_json(struct strata_tokens *tokens, const char **json)
{
    struct st_kept_text t;
    struct st_json_writer w;
    strata_status st;

    if (tokens == NULL || json == NULL)
        return st_error_missing(__func__, tokens == NULL ? "tokens" : "json");
    st_handle_text_begin(&t, &tokens->json, "api.tokens_json");
    if (t.file != NULL) {
        st_json_begin(&w, t.file);
        st_json_object_open(&w, NULL);
        if (tokens->whole)
            put_whole(tokens->out, &tokens->text, &w);
        else
            put_documents(&tokens->how, &tokens->rows, &w);
        st_json_object_close(&w);
    }
    if ((st = st_handle_text_end(&t, STRATA_OK)) == STRATA_OK)
        *json = tokens->json;
    return st;
}

/* cli/commands/tokens_documents.c - strata tokens, where a tokenizer reads texts or rows as documents. */
#include "cli/commands/commands.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/print.h"
#include "core/json/json.h"
#include "core/system/clock.h"
#include "text/data/rows/tokenize.h"

#include <stdio.h>
#include <string.h>

#define REWRITE_NS UINT64_C(100000000)

typedef unsigned long long ull;

/* What callbacks need. */
struct telling {
    uint64_t told_ns; /* when the line was rewritten; 0: it is empty */
    uint32_t document;
    bool rewrites;
    FILE *file; /* of documents that are shown */
};

static void clear_line(struct telling *t)
{
    if (t->told_ns != 0)
        st_print_over(stderr, "");
    t->told_ns = 0;
}

static void tell_progress(void *context, const struct st_tokenize_report *r)
{
    struct telling *t = context;
    const uint64_t now = st_clock_ns();
    char line[128];

    if (!t->rewrites || now - t->told_ns < REWRITE_NS)
        return;
    snprintf(line, sizeof(line), "%llu rows, %llu tokens", (ull)r->rows, (ull)(r->parts[0].tokens + r->parts[1].tokens));
    st_print_over(stderr, line);
    t->told_ns = now;
}

/* On one line: line ends as \n, and what a terminal would obey escaped. */
static void show_text(FILE *file, const char *text, size_t bytes)
{
    struct st_print_bytes held = {0};

    for (size_t i = 0; i < bytes; i++)
        if (text[i] == '\n')
            st_print(file, "\\n");
        else
            st_print_byte(file, &held, text[i]);
    st_print_bytes_end(file, &held);
}

static void show_run(void *context, const struct st_shown_run *run)
{
    struct telling *t = context;

    clear_line(t);
    if (run->place != NULL)
        st_print(t->file, "document %u, %s%s: tokens %llu to %llu%s\n", ++t->document, run->place,
                 run->heldout ? ", held out" : "", (ull)run->begin, (ull)(run->begin + run->tokens - 1),
                 run->more ? ", and more that are not shown" : "");
    st_print(t->file, run->trained ? "  trained  " : "           ");
    if (run->trained)
        st_print_mark(t->file, true);
    show_text(t->file, run->text, run->bytes);
    if (run->trained)
        st_print_mark(t->file, false);
    st_print(t->file, "\n             ");
    for (size_t i = 0; i < run->count; i++)
        st_print(t->file, " %u", run->ids[i]);
    st_print(t->file, "\n");
}

static strata_status read_options(struct st_tokenize_opts *o, enum st_token_layout *layout, const struct cli_args *args)
{
    *o = (struct st_tokenize_opts){.inputs = args->positional.items,
                                   .input_count = args->positional.count,
                                   .dataset_info = args->dataset_info,
                                   .datasets = args->datasets.items,
                                   .dataset_count = args->datasets.count,
                                   .train_on_prompt = args->train_on_prompt,
                                   .last_answer_only = args->mask_history,
                                   .turn_ends = args->turn_ends,
                                   .as_trl = args->as_trl,
                                   .strict = args->strict,
                                   .tokenizer = args->tokenizer,
                                   .template = args->chat_template,
                                   .kwargs = args->template_kwargs,
                                   .out = args->out,
                                   .date = st_date_today(),
                                   .seq_len = (uint32_t)args->seq_len,
                                   .max_samples = args->max_samples,
                                   .val_size = args->val_size,
                                   .seed = args->seed,
                                   .overwrite = args->overwrite,
                                   .show = (uint32_t)args->show,
                                   .shown = show_run,
                                   .progress = tell_progress};
    if (args->format != NULL && !st_row_format_find(&o->format, args->format))
        return st_error(STRATA_E_INVAL, "--format %s: it is auto, text, messages, alpaca, sharegpt or prompt-completion",
                        args->format);
    if (args->date != NULL && !st_date_parse(&o->date, args->date))
        return st_error(STRATA_E_INVAL, "--date %s: no day, or not written as 2026-01-31", args->date);
    for (unsigned i = 0; args->layout != NULL && i < ST_LAYOUT_COUNT; i++)
        if (strcmp(args->layout, st_token_layout_name((enum st_token_layout)i)) == 0) {
            *layout = (enum st_token_layout)i;
            o->layout = layout;
        }
    if (args->layout != NULL && o->layout == NULL)
        return st_error(STRATA_E_INVAL, "--layout %s: it is concatenated, packed or rows", args->layout);
    if (args->train_on_prompt && args->mask_history)
        return st_error(STRATA_E_INVAL, "--train-on-prompt and --mask-history exclude each other");
    if (args->val_size >= 1 && args->val_size != (double)(uint64_t)args->val_size)
        return st_error(STRATA_E_INVAL, "--val-size %g: from 1 on it is a whole number of rows", args->val_size);
    return STRATA_OK;
}

static void print_part(const struct st_tokenize_report *r, uint32_t i, const char *path)
{
    st_print(stdout, "%s: %llu documents, %llu tokens", path, (ull)r->parts[i].documents, (ull)r->parts[i].tokens);
    if (r->parts[i].source_bytes > 0)
        st_print(stdout, " from %llu bytes", (ull)r->parts[i].source_bytes);
    if (r->dialogs)
        st_print(stdout, ", %llu trained (%.1f %%)", (ull)r->parts[i].trained,
                 100.0 * (double)r->parts[i].trained / (double)r->parts[i].tokens);
    st_print(stdout, ", %s\n", st_token_layout_name(r->layout));
}

static void print_text(const struct st_tokenize_opts *o, const struct st_tokenize_report *r)
{
    print_part(r, 0, o->out);
    if (r->heldout[0] != '\0')
        print_part(r, 1, r->heldout);
    if (r->template[0] != '\0')
        st_print(stdout, "template: %s\n", r->template);
    if (r->dated)
        st_print(stdout, "date: %04d-%02d-%02d\n", o->date.year, o->date.month, o->date.day);
    if (r->truncated > 0)
        st_print(stdout, "truncated to %u tokens: %llu documents\n", o->seq_len, (ull)r->truncated);
    for (unsigned odd = ST_ROW_FINE + 1; odd < ST_ROW_ODDS; odd++)
        if (r->dropped[odd] > 0)
            st_print(stdout, "dropped: %llu, %s; the first: %s\n", (ull)r->dropped[odd], st_row_odd_text((enum st_row_odd)odd),
                     r->first[odd]);
}

static void print_json(const struct st_tokenize_opts *o, const struct st_tokenize_report *r)
{
    struct st_json_writer w;
    char date[40];

    snprintf(date, sizeof(date), "%04d-%02d-%02d", o->date.year, o->date.month, o->date.day);
    st_json_begin(&w, stdout);
    st_json_object_open(&w, NULL);
    st_json_put_string(&w, "out", o->out);
    st_json_put_u64(&w, "tokens", r->parts[0].tokens);
    st_json_put_u64(&w, "source_bytes", r->parts[0].source_bytes);
    st_json_put_string(&w, "heldout", r->heldout[0] != '\0' ? r->heldout : NULL);
    st_json_put_u64(&w, "heldout_tokens", r->parts[1].tokens);
    st_json_put_u64(&w, "heldout_bytes", r->parts[1].source_bytes);
    st_json_put_u64(&w, "replaced", r->replaced);
    st_json_put_string(&w, "layout", st_token_layout_name(r->layout));
    st_json_put_u64(&w, "rows", r->rows);
    st_json_put_u64(&w, "documents", r->parts[0].documents);
    st_json_put_u64(&w, "trained", r->parts[0].trained);
    st_json_put_u64(&w, "heldout_documents", r->parts[1].documents);
    st_json_put_u64(&w, "heldout_trained", r->parts[1].trained);
    st_json_put_u64(&w, "truncated", r->truncated);
    st_json_object_open(&w, "dropped");
    for (unsigned odd = ST_ROW_FINE + 1; odd < ST_ROW_ODDS; odd++)
        st_json_put_u64(&w, st_row_odd_key((enum st_row_odd)odd), r->dropped[odd]);
    st_json_object_close(&w);
    st_json_object_open(&w, "dropped_first");
    for (unsigned odd = ST_ROW_FINE + 1; odd < ST_ROW_ODDS; odd++)
        st_json_put_string(&w, st_row_odd_key((enum st_row_odd)odd), r->dropped[odd] > 0 ? r->first[odd] : NULL);
    st_json_object_close(&w);
    st_json_array_open(&w, "unread");
    for (uint32_t i = 0; i < r->unread.count; i++) {
        st_json_object_open(&w, NULL);
        st_json_put_string(&w, "column", r->unread.columns[i].name);
        st_json_put_u64(&w, "rows", r->unread.columns[i].rows);
        st_json_object_close(&w);
    }
    st_json_array_close(&w);
    st_json_put_u64(&w, "answers_without_end", r->answers.unended);
    st_json_put_u64(&w, "answers_without_thoughts", r->answers.thoughtless);
    st_json_put_u64(&w, "answers_not_written", r->answers.unwritten);
    st_json_put_u64(&w, "messages_not_written", r->answers.unseen);
    st_json_put_u64(&w, "calls_not_written", r->answers.calls);
    st_json_put_u64(&w, "answers_begin_guessed", r->answers.guessed);
    st_json_put_string(&w, "template", r->template[0] != '\0' ? r->template : NULL);
    st_json_put_string(&w, "date", r->dated ? date : NULL);
    st_json_object_close(&w);
    st_json_end_line(&w);
}

strata_status cli_tokens_documents(const struct cli_args *args)
{
    struct telling telling = {.rewrites = st_print_rewrites(stderr), .file = args->json ? stderr : stdout};
    enum st_token_layout layout = ST_LAYOUT_CONCATENATED;
    struct st_tokenize_report report;
    struct st_tokenize_opts opts;
    strata_status st = read_options(&opts, &layout, args);

    if (st != STRATA_OK)
        return st;
    opts.context = &telling;
    st = st_tokenize(&opts, &report);
    clear_line(&telling);
    if (st != STRATA_OK)
        return st;
    st_tokenize_note(&report);
    if (args->json) {
        st_tokenize_note_dropped(&report);
        print_json(&opts, &report);
    } else {
        print_text(&opts, &report);
    }
    return STRATA_OK;
}

/* cli/commands/tokens_documents.c - strata tokens: what is told while texts and rows become documents, and shown of them. */
#include "cli/commands/commands.h"
#include "core/base/print.h"
#include "core/system/clock.h"
#include "strata/tokens.h"

#include <stdio.h>

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

static void tell_progress(void *context, uint64_t rows, uint64_t tokens)
{
    struct telling *t = context;
    const uint64_t now = st_clock_ns();
    char line[128];

    if (rows == 0)
        clear_line(t);
    if (rows == 0 || !t->rewrites || now - t->told_ns < REWRITE_NS)
        return;
    snprintf(line, sizeof(line), "%llu rows, %llu tokens", (ull)rows, (ull)tokens);
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

static void show_run(void *context, const struct strata_shown_run *run)
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

strata_status cli_tokens_write(struct strata_tokens **tokens, const struct cli_args *args)
{
    struct telling telling = {.rewrites = st_print_rewrites(stderr), .file = args->json ? stderr : stdout};
    struct strata_tokens_opts opts = STRATA_TOKENS_OPTS_INIT;

    opts.tokenizer = args->tokenizer;
    opts.overwrite = args->overwrite;
    opts.heldout = args->heldout;
    opts.format = args->format;
    opts.chat_template = args->chat_template;
    opts.chat_template_kwargs = args->template_kwargs;
    opts.date = args->date;
    opts.dataset_info = args->dataset_info;
    opts.datasets = args->datasets.items;
    opts.dataset_count = args->datasets.count;
    opts.layout = args->layout;
    opts.seq_len = (uint32_t)args->seq_len;
    opts.max_samples = args->max_samples;
    opts.val_size = args->val_size;
    opts.seed = args->seed;
    opts.train_on_prompt = args->train_on_prompt;
    opts.mask_history = args->mask_history;
    opts.turn_ends = args->turn_ends;
    opts.as_trl = args->as_trl;
    opts.strict = args->strict;
    opts.show = (uint32_t)args->show;
    opts.shown = show_run;
    opts.progress = tell_progress;
    opts.ctx = &telling;
    opts.note_dropped = args->json;
    return strata_tokens_write(tokens, args->out, args->positional.items, args->positional.count, &opts);
}

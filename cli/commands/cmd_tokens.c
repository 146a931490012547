/* cli/commands/cmd_tokens.c - turns text into token files. */
#include "cli/commands/commands.h"
#include "cli/options/output.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/print.h"
#include "core/json/json.h"
#include "strata/tokenizer.h"
#include "text/data/tokens.h"
#include "text/tokenizer/tokenizer.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static void print_text(const char *out, const struct st_tokens_report *r)
{
    st_print(stdout, "%s: %llu tokens from %llu bytes\n", out, (unsigned long long)r->tokens,
             (unsigned long long)r->source_bytes);
    if (r->heldout_path[0] != '\0')
        st_print(stdout, "%s: %llu tokens from %llu bytes\n", r->heldout_path, (unsigned long long)r->heldout_tokens,
                 (unsigned long long)r->heldout_bytes);
}

static void print_json(const char *out, const struct st_tokens_report *r)
{
    struct st_json_writer w;

    st_json_begin(&w, stdout);
    st_json_object_open(&w, NULL);
    st_json_put_string(&w, "out", out);
    st_json_put_u64(&w, "tokens", r->tokens);
    st_json_put_u64(&w, "source_bytes", r->source_bytes);
    st_json_put_string(&w, "heldout", r->heldout_path[0] != '\0' ? r->heldout_path : NULL);
    st_json_put_u64(&w, "heldout_tokens", r->heldout_tokens);
    st_json_put_u64(&w, "heldout_bytes", r->heldout_bytes);
    st_json_put_u64(&w, "replaced", r->replaced);
    st_json_object_close(&w);
    st_json_end_line(&w);
}

static void print_trained(const struct cli_args *args, const struct strata_trained *r)
{
    struct st_json_writer w;

    if (!args->json) {
        st_print(stdout, "%s: %u tokens from %llu words, %llu of them different\n", args->out, r->vocab,
                 (unsigned long long)r->words, (unsigned long long)r->different_words);
        return;
    }
    st_json_begin(&w, stdout);
    st_json_object_open(&w, NULL);
    st_json_put_string(&w, "out", args->out);
    st_json_put_u64(&w, "vocab", r->vocab);
    st_json_put_u64(&w, "words", r->words);
    st_json_put_u64(&w, "different_words", r->different_words);
    st_json_object_close(&w);
    st_json_end_line(&w);
}

static strata_status train_tokenizer(const struct cli_args *args)
{
    struct strata_trained trained = STRATA_TRAINED_INIT;
    const strata_status st = strata_tokenizer_train(args->positional.items, args->positional.count, (uint32_t)args->train_bpe,
                                                    args->out, args->overwrite, &trained);

    if (st == STRATA_OK)
        print_trained(args, &trained);
    return st;
}

static strata_status write_tokens(const struct cli_args *args)
{
    struct st_tokens_report report = {0};
    struct st_tokenizer *tokenizer = NULL;
    strata_status st = strcmp(args->tokenizer, "byte") == 0 ? STRATA_OK : st_tokenizer_open(&tokenizer, args->tokenizer);

    if (st != STRATA_OK)
        return st;
    st = st_tokens_from_text(tokenizer, args->positional.items, args->positional.count, args->out, args->heldout, args->overwrite,
                             &report);
    st_tokenizer_close(tokenizer);
    if (st != STRATA_OK)
        return st;
    if (report.replaced > 0)
        st_log(ST_LOG_NOTICE, "%llu times, bytes that are not UTF-8 became the replacement character U+FFFD",
               (unsigned long long)report.replaced);
    if (args->json)
        print_json(args->out, &report);
    else
        print_text(args->out, &report);
    return STRATA_OK;
}

/* Options of documents mean nothing where all text is one. */
static strata_status check_documents(const struct cli_args *args)
{
    const bool given = args->format != NULL || args->chat_template != NULL || args->template_kwargs != NULL ||
                       args->date != NULL || args->datasets.count > 0 || args->layout != NULL || args->seq_len > 0 ||
                       args->max_samples > 0 || args->val_size > 0 || args->show > 0 || args->train_on_prompt ||
                       args->mask_history || args->turn_ends || args->as_trl || args->strict;

    return !given
               ? STRATA_OK
               : st_error(STRATA_E_INVAL,
                          "--format, --template, --chat-template-kwargs, --date, --dataset, --layout, --seq-len, --max-samples, "
                          "--val-size, --train-on-prompt, "
                          "--mask-history, --train-turn-ends, --as-trl, --strict and --show are "
                          "for documents: with --tokenizer DIR, without --heldout and --train-bpe");
}

/* A token file and what lies beside it. */
static strata_status check_output(const char *option, const char *path, const struct cli_args *args)
{
    char meta[ST_PATH_MAX];
    strata_status st = cli_output_check(option, path, args);

    if (st == STRATA_OK && (st = st_tokens_meta_path(meta, path)) == STRATA_OK)
        st = cli_output_check(option, meta, args);
    return st;
}

static strata_status check_outputs(const struct cli_args *args)
{
    const char *const option = args->val_size > 0 ? "--val-size" : args->heldout > 0 ? "--heldout" : NULL;
    char heldout[ST_PATH_MAX];
    strata_status st = check_output("--out", args->out, args);

    if (st == STRATA_OK && option != NULL && (st = st_tokens_heldout_path(heldout, args->out)) == STRATA_OK)
        st = check_output(option, heldout, args);
    return st;
}

int cmd_tokens(const struct cli_args *args)
{
    strata_status st = args->train_bpe > 0 ? cli_output_check_tokenizer("--out", args->out, args) : check_outputs(args);

    if (st != STRATA_OK)
        return cli_fail(st);
    if (strcmp(args->tokenizer, "byte") != 0 && args->heldout == 0 && args->train_bpe == 0)
        st = cli_tokens_documents(args);
    else if ((st = check_documents(args)) == STRATA_OK)
        st = args->train_bpe > 0 ? train_tokenizer(args) : write_tokens(args);
    return st == STRATA_OK ? 0 : cli_fail(st);
}

/* cli/commands/cmd_tokens.c - turns text into token files. */
#include "cli/commands/commands.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/print.h"
#include "core/json/json.h"
#include "model/data/tokens.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

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
    st_json_object_close(&w);
    st_json_end_line(&w);
}

static bool ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), end_length = strlen(end);

    return length >= end_length && strcasecmp(text + length - end_length, end) == 0;
}

/* Data sets often come as JSON, whose braces and keys would be learnt, too. */
static void note_json(const struct cli_list *texts)
{
    static const char *const endings[] = {".jsonl", ".json", ".ndjson"};

    for (uint32_t i = 0; i < texts->count; i++)
        for (size_t k = 0; k < sizeof(endings) / sizeof(endings[0]); k++)
            if (ends_with(texts->items[i], endings[k]))
                st_log(ST_LOG_NOTICE, "%s is used as plain text, with its braces, keys and quotes: JSON is not parsed here",
                       texts->items[i]);
}

int cmd_tokens(const struct cli_args *args)
{
    struct st_tokens_report report = {0};
    strata_status st;

    if (strcmp(args->tokenizer, "byte") != 0)
        return cli_fail(
            st_error(STRATA_E_INVAL, "--tokenizer: unknown tokenizer \"%s\": this version has byte", args->tokenizer));
    note_json(&args->positional);
    st = st_tokens_from_bytes(args->positional.items, args->positional.count, args->out, args->heldout, args->overwrite, &report);
    if (st != STRATA_OK)
        return cli_fail(st);
    if (args->json)
        print_json(args->out, &report);
    else
        print_text(args->out, &report);
    return 0;
}

/* cli/commands/cmd_tokens.c - turns text into token files. */
#include "cli/commands/commands.h"
#include "cli/options/args_table.h"
#include "cli/options/output.h"
#include "core/base/error.h"
#include "core/base/print.h"
#include "core/json/json.h"
#include "strata/tokenizer.h"
#include "strata/tokens.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static strata_status write_tokens(const struct cli_args *args)
{
    struct strata_tokens *tokens = NULL;
    const char *json;
    strata_status st = cli_tokens_write(&tokens, args);

    if (st == STRATA_OK)
        st = args->json ? strata_tokens_json(tokens, &json) : strata_tokens_print(tokens, stdout);
    if (st == STRATA_OK && args->json) {
        struct st_json_writer w;

        st_json_begin(&w, stdout);
        st_json_put_text(&w, NULL, json);
        st_json_end_line(&w);
    }
    strata_tokens_close(tokens);
    return st;
}

/* Options of documents mean nothing where all text is one. */
static strata_status check_documents(const struct cli_args *args)
{
    static const char *const names[] = {
        "format",      "template", "chat-template-kwargs", "date",         "dataset",         "layout", "seq-len",
        "max-samples", "val-size", "train-on-prompt",      "mask-history", "train-turn-ends", "as-trl", "strict",
        "show"};
    const char *given = cli_option_given(CLI_CMD_TOKENS, names, sizeof(names) / sizeof(names[0]), args);

    return given == NULL
               ? STRATA_OK
               : st_error(STRATA_E_INVAL, "--%s is for documents: give --tokenizer DIR, and leave --heldout out", given);
}

/* A token file and what lies beside it, and the same of what is held out. */
static strata_status check_outputs(const struct cli_args *args)
{
    const char *const option = args->val_size > 0 ? "--val-size" : args->heldout > 0 ? "--heldout" : NULL;
    char name[ST_PATH_MAX];
    strata_status st = cli_output_check("--out", args->out, args);

    for (uint32_t i = 1; i < (option != NULL ? 4u : 2u) && st == STRATA_OK; i++)
        if ((st = strata_tokens_name(name, sizeof(name), args->out, i)) == STRATA_OK)
            st = cli_output_check(i < 2 ? "--out" : option, name, args);
    return st;
}

int cmd_tokens(const struct cli_args *args)
{
    strata_status st = check_outputs(args);

    if (st != STRATA_OK)
        return cli_fail(st);
    if (strcmp(args->tokenizer, "byte") == 0 || args->heldout > 0)
        st = check_documents(args);
    if (st == STRATA_OK)
        st = write_tokens(args);
    return st == STRATA_OK ? 0 : cli_fail(st);
}

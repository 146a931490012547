/* cli/commands/cmd_generate.c - continues a prompt, or a conversation message by message, with the engine of training. */
#include "cli/cli_signals.h"
#include "cli/commands/chat.h"
#include "cli/commands/commands.h"
#include "cli/commands/prompt.h"
#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/print.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define BYTE_VOCAB 256u /* of models that read bytes: the token is the byte */

static bool is_preset(const char *name)
{
    for (uint32_t i = 0; strata_preset_name(i) != NULL; i++)
        if (strcmp(strata_preset_name(i), name) == 0)
            return true;
    return false;
}

/* The tokenizer that --tokenizer names, or else the model's own; ids need none, and bytes have none. */
static strata_status open_tokenizer(struct cli_generation *g)
{
    const struct cli_args *args = g->args;
    const char *path = args->tokenizer != NULL ? args->tokenizer : args->model;
    bool there = true;
    strata_status st = STRATA_OK;

    g->prints = args->prompt_tokens != NULL ? CLI_PRINTS_IDS : CLI_PRINTS_BYTES;
    if (args->prompt_tokens != NULL || strcmp(path, "byte") == 0)
        return STRATA_OK;
    if (args->tokenizer == NULL)
        st = is_preset(path) ? STRATA_OK : strata_tokenizer_exists(&there, path);
    if (st != STRATA_OK || !there || (args->tokenizer == NULL && is_preset(path)))
        return st;
    g->prints = CLI_PRINTS_TEXT;
    return strata_tokenizer_open(&g->tokenizer, path);
}

/* Only what reads bytes takes text without a tokenizer; it gives text for ids, too. */
static strata_status check_prints(struct cli_generation *g)
{
    const uint32_t vocab = g->run.shape.vocab;

    if (g->prints == CLI_PRINTS_IDS && vocab == BYTE_VOCAB)
        g->prints = CLI_PRINTS_BYTES;
    if (g->prints != CLI_PRINTS_BYTES || vocab == BYTE_VOCAB)
        return STRATA_OK;
    return st_error(STRATA_E_INVAL,
                    "%s has no tokenizer (tokenizer.json, tokenizer.model or vocab.json) for its %u tokens: use --tokenizer DIR, "
                    "or --prompt-tokens ID,ID,...",
                    g->args->model, vocab);
}

/* The end of a text, and of a message, which generation_config.json need not name. */
static void take_ends(struct cli_generation *g, const struct strata_chat *chat)
{
    struct strata_tokenizer_info info = STRATA_TOKENIZER_INFO_INIT;

    if (g->tokenizer == NULL || strata_tokenizer_get_info(g->tokenizer, &info) != STRATA_OK)
        return;
    if (info.vocab > g->run.shape.vocab)
        st_log(ST_LOG_NOTICE, "the tokenizer has %u tokens, and %s rows for %u: the others never occur", info.vocab,
               g->args->model, g->run.shape.vocab);
    if (chat == NULL)
        return;
    (void)!strata_sampling_end_at(&g->sampling, g->run.model, info.eos);
    (void)!strata_sampling_end_at(&g->sampling, g->run.model, strata_chat_end(chat));
}

/* What several processes are asked to continue must be the same. */
static strata_status agree(const struct cli_generation *g, const struct cli_prompt *prompt)
{
    const struct cli_args *args = g->args;
    char tokens[64], most[24], context[24];
    const char *const names[] = {"the prompt", "--max-tokens", "--context"};
    const char *const texts[] = {prompt->text != NULL ? prompt->text : tokens, most, context};

    if (g->run.ranks.comm == NULL)
        return STRATA_OK;
    snprintf(tokens, sizeof(tokens), "%u tokens, hash %016" PRIx64, prompt->count,
             st_checksum64(prompt->tokens, prompt->count * sizeof(*prompt->tokens)));
    snprintf(most, sizeof(most), "%" PRIu64, args->max_tokens);
    snprintf(context, sizeof(context), "%" PRIu64, args->context);
    return strata_comm_agree(g->run.ranks.comm, names, texts, sizeof(names) / sizeof(names[0]));
}

/* Only rank 0 has standard input. */
static strata_status check_input(const struct cli_generation *g)
{
    const struct cli_args *args = g->args;

    if (g->run.ranks.who.ranks == 1)
        return STRATA_OK;
    if (args->chat && args->prompt == NULL && args->prompt_file == NULL)
        return st_error(STRATA_E_INVAL, "--chat talks with one process, and there are %u: give a message with --prompt",
                        g->run.ranks.who.ranks);
    if (args->prompt_file != NULL && strcmp(args->prompt_file, "-") == 0)
        return st_error(STRATA_E_INVAL, "--prompt-file - is read by one process, and there are %u: name a file that all can read",
                        g->run.ranks.who.ranks);
    return STRATA_OK;
}

/* What is read before the model is: its sizes depend on it. */
static strata_status read_input(struct cli_generation *g, struct cli_prompt *prompt)
{
    const struct cli_args *args = g->args;
    strata_status st = open_tokenizer(g);

    if (st == STRATA_OK && (!args->chat || args->prompt != NULL || args->prompt_file != NULL))
        st = cli_prompt_read(prompt, args, args->chat ? NULL : g->tokenizer);
    if (args->chat)
        g->run.cache_tokens = args->context != 0 ? (uint32_t)args->context : CLI_CHAT_TOKENS_DEFAULT;
    g->run.prompt_tokens = prompt->count;
    return st == STRATA_OK ? agree(g, prompt) : st;
}

/* Once the model is known to be one. */
static strata_status open_chat(struct cli_generation *g, struct strata_chat **chat)
{
    if (g->tokenizer != NULL)
        return cli_chat_open(chat, g);
    return st_error(STRATA_E_INVAL,
                    "--chat: %s has no tokenizer (tokenizer.json, tokenizer.model or vocab.json): name a directory that has one "
                    "with --tokenizer DIR",
                    g->args->model);
}

/* Checks everything that can be refused before the engine allocates memory. */
static strata_status prepare(struct cli_generation *g, struct cli_prompt *prompt, struct strata_chat **chat)
{
    const struct cli_args *args = g->args;
    strata_status st = read_input(g, prompt);

    if (st == STRATA_OK)
        st = cli_run_model(&g->run);
    if (st == STRATA_OK && args->chat)
        st = open_chat(g, chat);
    if (st == STRATA_OK && args->context > g->run.shape.context)
        st = st_error(STRATA_E_INVAL, "--context %llu: the context of %s is %u", (unsigned long long)args->context, args->model,
                      g->run.shape.context);
    if (st == STRATA_OK)
        st = check_prints(g);
    if (st == STRATA_OK && !args->chat)
        st = cli_prompt_check(prompt->tokens, prompt->count, g->run.shape.vocab,
                              args->prompt_tokens != NULL ? "--prompt-tokens" : "the prompt", g->tokenizer);
    if (st == STRATA_OK)
        st = cli_generation_settings(g);
    if (st != STRATA_OK)
        return st;
    take_ends(g, *chat);
    st = strata_plan_make(&g->run.plan, g->run.model, g->run.machine);
    if (g->run.plan != NULL && st == STRATA_E_NOFIT)
        cli_run_print_plan(&g->run, STRATA_PLAN_BRIEF, stderr);
    if (st == STRATA_OK && !args->json && !args->quiet && g->prints == CLI_PRINTS_IDS)
        st_log(ST_LOG_NOTICE, "token ids on standard output, as in --prompt-tokens");
    return st;
}

static strata_status continue_prompt(struct cli_generation *g, const struct cli_prompt *prompt)
{
    strata_status st;

    if (g->run.ranks.who.ranks == 1) /* several end after the same pass */
        cli_signals_engine(g->run.engine);
    cli_signals_ask(NULL);
    st = cli_generation_answer(g, prompt->tokens, prompt->count);
    if (st != STRATA_OK && st != STRATA_E_CANCELLED)
        return st;
    if (!g->args->quiet)
        cli_generation_report_settings(g);
    cli_generation_report(g);
    return st;
}

static strata_status run(struct cli_generation *g, struct cli_prompt *prompt, struct strata_chat **chat)
{
    strata_status st = prepare(g, prompt, chat);

    if (st == STRATA_OK)
        st = cli_run_start(&g->run);
    if (st == STRATA_OK)
        st = cli_generation_open(g);
    if (st != STRATA_OK)
        return st;
    return *chat != NULL ? cli_chat_talk(*chat, g, prompt->text) : continue_prompt(g, prompt);
}

int cmd_generate(const struct cli_args *args)
{
    struct cli_generation g = {.args = args, .shown = st_print_is_terminal(stdout)};
    struct cli_prompt prompt = {0};
    struct strata_chat *chat = NULL;
    strata_status st = cli_ranks_find(&g.run.ranks, args);

    if (st == STRATA_OK)
        st = check_input(&g);
    if (st == STRATA_OK)
        g.args = args = cli_ranks_args(&g.run.ranks, args);
    if (st == STRATA_OK)
        st = cli_run_configure(&g.run, args, &g.progress);
    cli_progress_init(&g.progress, stderr, args->quiet, 0, 0);
    if (st == STRATA_OK && !args->quiet)
        cli_ranks_print(&g.run.ranks, stderr);
    if (st == STRATA_OK)
        st = run(&g, &prompt, &chat);
    cli_ranks_leave(&g.run.ranks, st);
    cli_run_close(&g.run);
    cli_progress_fini(&g.progress);
    cli_prompt_fini(&prompt);
    strata_chat_close(chat);
    cli_generation_fini(&g);
    if (st == STRATA_E_CANCELLED)
        return 128 + (g.now.stopped != 0 ? g.now.stopped : cli_signals_pending());
    return st == STRATA_OK ? 0 : cli_fail(st);
}

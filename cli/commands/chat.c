/* cli/commands/chat.c - see chat.h.  Each line of standard input is a message; an empty one ends the conversation, as the end of
 * the input does.
 *
 * While a message is awaited, a signal ends the program at once.  While an answer is being made, the first Ctrl-C on a terminal
 * ends the answer; any other signal, and the second one, ends the program. */
#include "cli/commands/chat.h"
#include "cli/cli_signals.h"
#include "cli/commands/prompt.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/print.h"
#include "core/base/wrap.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct conversation {
    struct strata_chat *chat;
    struct cli_generation *g;
    bool talks; /* standard input is a terminal */
    char *line; /* [CLI_PROMPT_BYTES_MAX + 1] the message */
};

strata_status cli_chat_open(struct strata_chat **chat, const struct cli_generation *g)
{
    struct strata_chat_opts opts = STRATA_CHAT_OPTS_INIT;
    strata_status st;

    opts.chat_template = g->args->chat_template;
    opts.chat_template_kwargs = g->args->template_kwargs;
    opts.date = g->args->date;
    st = strata_chat_open(chat, g->tokenizer, &opts);
    return st == STRATA_OK && g->args->system != NULL ? strata_chat_add(*chat, "system", g->args->system) : st;
}

/* One line, without its end, into c->line; *more false: the input has ended. */
static strata_status read_line(struct conversation *c, bool *more)
{
    size_t bytes = 0;
    int byte, error;

    errno = 0;
    while ((byte = getc(stdin)) != EOF && byte != '\n') {
        if (bytes == CLI_PROMPT_BYTES_MAX)
            return st_error(STRATA_E_INPUT, "a message is longer than %u bytes", CLI_PROMPT_BYTES_MAX);
        if (byte == '\0')
            return st_error(STRATA_E_INPUT, "a message has a zero byte: it is not text");
        c->line[bytes++] = (char)byte;
    }
    error = (int)-st_fault("chat.read", byte == EOF && ferror(stdin) != 0 ? -errno : 0);
    if (error != 0)
        return st_error_errno(error, "cannot read standard input");
    bytes -= bytes > 0 && c->line[bytes - 1] == '\r';
    c->line[bytes] = '\0';
    *more = bytes > 0;
    if (c->talks && byte == EOF)
        st_print(stderr, "\n"); /* Ctrl-D leaves the cursor behind the prompt */
    return STRATA_OK;
}

/* Answers c->line; the answer becomes part of the conversation even if it was cut short. */
static strata_status answer(struct conversation *c, const char *message)
{
    struct cli_generation *g = c->g;
    const uint32_t room = g->run.shape.cache_tokens;
    const int32_t *ids;
    size_t count;
    strata_status st, added;

    if ((st = strata_chat_add(c->chat, "user", message)) != STRATA_OK ||
        (st = strata_chat_tokens(c->chat, &ids, &count)) != STRATA_OK)
        return st;
    if (count == 0)
        return st_error(
            STRATA_E_INPUT,
            "the template writes nothing for this conversation, so that nothing can be continued: give another (--template)");
    if (count >= room)
        return st_error(
            STRATA_E_INPUT,
            "the conversation has %zu tokens, and there is room for %u: begin another, or raise --context (at most %u)", count,
            room, g->run.shape.context);
    if ((st = cli_prompt_check(ids, (uint32_t)count, g->run.shape.vocab, "the conversation", g->tokenizer)) != STRATA_OK)
        return st;
    cli_signals_ask(NULL);
    st = cli_generation_answer(g, ids, (uint32_t)count);
    if (st != STRATA_OK && st != STRATA_E_CANCELLED)
        return st;
    cli_generation_report(g);
    if (st == STRATA_E_CANCELLED && g->run.ranks.who.ranks > 1)
        return st;
    if (cli_signals_pending() != 0 && !(c->talks && cli_signals_pending() == SIGINT))
        return STRATA_E_CANCELLED;
    cli_signals_forget();
    added = strata_chat_add(c->chat, "assistant", g->text != NULL ? g->text : "");
    return added;
}

static strata_status talk(struct conversation *c)
{
    bool more = true;
    strata_status st = STRATA_OK;

    if (c->talks && !c->g->args->quiet)
        st_wrap_print(stderr, "strata: a line is a message; an empty one or Ctrl-D ends, Ctrl-C stops an answer\n");
    while (st == STRATA_OK) {
        if (c->talks)
            st_print(stderr, "> ");
        if ((st = read_line(c, &more)) != STRATA_OK || !more)
            break;
        st = answer(c, c->line);
    }
    return st;
}

strata_status cli_chat_talk(struct strata_chat *chat, struct cli_generation *g, const char *only)
{
    struct conversation c = {.chat = chat, .g = g, .talks = only == NULL && st_print_is_terminal(stdin)};
    strata_status st;

    if (!g->args->quiet)
        cli_generation_report_settings(g);
    if (only != NULL)
        return answer(&c, only);
    c.line = st_fault_refuses("chat.line") ? NULL : malloc(CLI_PROMPT_BYTES_MAX + 1);
    if (c.line == NULL)
        return st_nomem(CLI_PROMPT_BYTES_MAX + 1);
    st = talk(&c);
    free(c.line);
    return st;
}

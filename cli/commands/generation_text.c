/* cli/commands/generation_text.c - tokens as what they stand for: ids, bytes, or text that no later token changes. */
#include "cli/commands/generation.h"
#include "cli/commands/commands.h"
#include "core/base/error.h"
#include "core/base/fault.h"

#include <stdio.h>
#include <stdlib.h>

strata_status cli_generation_text_begin(struct cli_generation *g)
{
    g->text_bytes = 0;
    return g->prints == CLI_PRINTS_TEXT && g->stream == NULL ? strata_stream_open(&g->stream, g->tokenizer, true) : STRATA_OK;
}

/* Whether the text is printed as it comes. */
static bool prints(const struct cli_generation *g)
{
    return !g->args->json && cli_generation_speaks(g);
}

static strata_status flush(const struct cli_generation *g)
{
    const int err = !prints(g) ? 0 : st_print_flush(stdout);

    return err == 0 ? STRATA_OK : st_error_errno(err, CLI_STDOUT_FAILS);
}

/* A zero byte, which neither JSON nor a message can hold, becomes one that is written as U+FFFD. */
static strata_status keep(struct cli_generation *g, const char *text, size_t bytes)
{
    if (g->text_bytes + bytes >= g->text_capacity) {
        const size_t capacity = 2 * (g->text_bytes + bytes) + 64;
        char *grown = st_fault_refuses("generation.text") ? NULL : realloc(g->text, capacity);

        if (grown == NULL)
            return st_nomem(capacity);
        g->text = grown;
        g->text_capacity = capacity;
    }
    for (size_t i = 0; i < bytes; i++)
        g->text[g->text_bytes++] = text[i] != '\0' ? text[i] : '\xff';
    g->text[g->text_bytes] = '\0';
    return STRATA_OK;
}

static strata_status put_bytes(struct cli_generation *g, const char *text, size_t bytes)
{
    const strata_status st = keep(g, text, bytes);

    if (st != STRATA_OK)
        return st;
    for (size_t i = 0; prints(g) && g->shown && i < bytes; i++)
        st_print_byte(stdout, &g->bytes, text[i]);
    if (prints(g) && !g->shown)
        fwrite(text, 1, bytes, stdout);
    return flush(g);
}

strata_status cli_generation_text_put(struct cli_generation *g, int32_t token)
{
    const char byte = (char)token, *text = &byte;
    size_t bytes = 1;
    strata_status st;

    if (g->prints == CLI_PRINTS_IDS) {
        if (prints(g))
            st_print(stdout, "%s%d", g->now.new_tokens > 1 ? "," : "", token);
        return flush(g);
    }
    if (g->prints == CLI_PRINTS_TEXT && (st = strata_stream_push(g->stream, token, &text, &bytes)) != STRATA_OK)
        return st;
    return put_bytes(g, text, bytes);
}

strata_status cli_generation_text_end(struct cli_generation *g)
{
    const char *text = "";
    size_t bytes = 0;
    strata_status st = STRATA_OK;

    if (g->prints == CLI_PRINTS_TEXT)
        st = strata_stream_finish(g->stream, &text, &bytes);
    if (st == STRATA_OK)
        st = put_bytes(g, text, bytes);
    if (prints(g))
        st_print_bytes_end(stdout, &g->bytes);
    return st;
}

const char *cli_generation_text(const struct cli_generation *g)
{
    return g->prints != CLI_PRINTS_IDS ? g->text : NULL;
}

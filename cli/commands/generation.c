/* cli/commands/generation.c - settings, and one forward pass over a prompt and then one per token, with the engine of training.
 */
#include "cli/commands/generation.h"
#include "api/handles.h"
#include "cli/cli_signals.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/system/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- settings --- */

/* Warns about impossible end tokens. They are no error in transformers, either: models whose vocabulary was cut keep them. */
static void print_strange_ends(const struct cli_generation *g)
{
    const struct st_generation *s = &g->settings;
    const uint32_t vocab = g->run.shape.vocab;
    char text[ST_END_TOKENS_MAX * sizeof("4294967295, ")] = "";
    uint32_t count = 0;
    size_t length = 0;

    for (uint32_t i = 0; s->ends_said && i < s->end_count; i++)
        if (s->end_tokens[i] >= vocab)
            length += (size_t)snprintf(text + length, sizeof(text) - length, "%s%u", count++ > 0 ? ", " : "", s->end_tokens[i]);
    if (count > 0)
        st_log(ST_LOG_NOTICE, "%s/%s: end %s %s never %s: the vocabulary has %u", g->run.model->name, s->from,
               count == 1 ? "token" : "tokens", text, count == 1 ? "comes" : "come", vocab);
}

/* Giving sampling options asks for sampling. */
strata_status cli_generation_settings(struct cli_generation *g)
{
    const struct cli_args *args = g->args;
    struct st_generation *s = &g->settings;
    strata_status st = STRATA_OK;

    if (g->run.model->is_dir)
        st = st_generation_read(s, g->run.model->name);
    else
        st_generation_of_preset(s, st_model_config(g->run.model->model));
    if (st != STRATA_OK)
        return st;
    print_strange_ends(g);
    if (s->ignored[0] != '\0')
        st_log(ST_LOG_NOTICE, "%s/%s asks for unsupported features: %s", g->run.model->name, s->from, s->ignored);
    s->sample |= !isnan(args->temperature) || args->top_k != 0 || args->top_p != 0;
    if (!isnan(args->temperature))
        s->temperature = args->temperature;
    if (args->top_k != 0)
        s->top_k = (uint32_t)args->top_k;
    if (args->top_p != 0)
        s->top_p = args->top_p;
    if (args->repetition_penalty != 0)
        s->repetition_penalty = args->repetition_penalty;
    return STRATA_OK;
}

static bool is_end(const struct cli_generation *g, int32_t token)
{
    for (uint32_t i = 0; i < g->settings.end_count; i++)
        if ((uint32_t)token == g->settings.end_tokens[i])
            return true;
    return false;
}

void cli_generation_ends_at(struct cli_generation *g, int32_t token)
{
    if (token < 0 || is_end(g, token))
        return;
    if ((uint32_t)token >= g->run.shape.vocab)
        st_log(ST_LOG_NOTICE, "the tokenizer's end token %d never comes: the vocabulary has %u", token, g->run.shape.vocab);
    else if (g->settings.end_count < ST_END_TOKENS_MAX)
        g->settings.end_tokens[g->settings.end_count++] = (uint32_t)token;
}

/* --- memory --- */

strata_status cli_generation_create(struct cli_generation *g)
{
    const bool refused = st_fault_refuses("generation.alloc");
    const uint32_t vocab = g->run.shape.vocab;

    if (!refused) {
        g->logits = malloc(vocab * sizeof(*g->logits));
        g->tokens = malloc(g->run.shape.cache_tokens * sizeof(*g->tokens));
    }
    if (g->logits == NULL || g->tokens == NULL)
        return st_error(STRATA_E_NOMEM, "no memory for the logits of %u tokens", vocab);
    return STRATA_OK;
}

void cli_generation_fini(struct cli_generation *g)
{
    free(g->text);
    strata_stream_close(g->stream);
    strata_tokenizer_close(g->tokenizer);
    st_sampler_destroy(g->sampler);
    free(g->logits);
    free(g->tokens);
}

/* --- answers --- */

uint32_t cli_generation_new(const struct cli_generation *g)
{
    return g->count - g->prompt_count;
}

/* How many of the first tokens the cache has: at least one is left, since it is the last one that gives logits. */
static uint32_t count_cached(const struct cli_generation *g, const int32_t *ids, uint32_t count)
{
    const uint32_t most = g->seen < count - 1 ? g->seen : count - 1;
    uint32_t same = 0;

    while (same < most && g->tokens[same] == ids[same])
        same++;
    return same;
}

/* Tokens are chosen by what is in the text, this one's. */
static strata_status create_sampler(struct cli_generation *g)
{
    const struct st_sampler_opts opts = {.temperature = g->settings.sample ? g->settings.temperature : 0,
                                         .top_k = g->settings.top_k,
                                         .top_p = g->settings.top_p,
                                         .repetition_penalty = g->settings.repetition_penalty,
                                         .seed = g->args->seed};
    strata_status st;

    st_sampler_destroy(g->sampler);
    g->sampler = NULL;
    st = st_sampler_create(&g->sampler, g->run.shape.vocab, &opts);
    for (uint32_t i = 0; i < g->count && st == STRATA_OK; i++)
        st_sampler_see(g->sampler, g->tokens[i]);
    return st;
}

bool cli_generation_speaks(const struct cli_generation *g)
{
    return g->run.ranks.who.rank == 0;
}

/* Several ranks end after the same pass. */
static strata_status ask_signals(struct cli_generation *g)
{
    const strata_status st = cli_ranks_first(&g->run.ranks, cli_signals_pending(), &g->ended_by);

    return st == STRATA_OK && g->ended_by != 0 ? STRATA_E_CANCELLED : st;
}

/* The model sees the tokens that are new to it. */
static strata_status forward(struct cli_generation *g)
{
    strata_status st;

    while ((st = ask_signals(g)) == STRATA_OK && g->seen < g->count) {
        const uint32_t left = g->count - g->seen, rows = left < g->run.shape.seq_len ? left : g->run.shape.seq_len;

        if ((st = strata_engine_forward(g->run.engine, g->tokens + g->seen, rows, g->seen, g->logits)) != STRATA_OK)
            break;
        g->seen += rows;
    }
    return st;
}

/* Rank 0's choice, for all: another processor's kernels may round otherwise. */
static strata_status next_token(struct cli_generation *g, int32_t *token)
{
    strata_status st = STRATA_OK;

    *token = 0;
    if (cli_generation_speaks(g))
        st = st_sampler_next(g->sampler, g->logits, g->count, token);
    return st == STRATA_OK ? cli_ranks_of_first(&g->run.ranks, token, sizeof(*token), "the next token") : st;
}

static strata_status make_tokens(struct cli_generation *g)
{
    const uint32_t room = g->run.shape.cache_tokens - g->prompt_count, most = g->asked < room ? g->asked : room;
    strata_status st = STRATA_OK;

    while (cli_generation_new(g) < most && !g->ended && st == STRATA_OK) {
        int32_t token;

        st = forward(g);
        if (st == STRATA_OK)
            st = next_token(g, &token);
        if (st != STRATA_OK)
            break;
        g->ended = is_end(g, token);
        st_sampler_see(g->sampler, token);
        g->tokens[g->count++] = token;
        st = cli_generation_text_put(g, token);
    }
    return st;
}

strata_status cli_generation_answer(struct cli_generation *g, const int32_t *ids, uint32_t count)
{
    uint64_t start = st_clock_ns();
    strata_status st, end;

    g->cached_count = g->seen = count_cached(g, ids, count);
    memcpy(g->tokens, ids, count * sizeof(*ids));
    g->count = g->prompt_count = count;
    g->ended = false;
    g->seconds = 0;
    if ((st = create_sampler(g)) != STRATA_OK || (st = cli_generation_text_begin(g)) != STRATA_OK)
        return st;
    st = forward(g);
    g->prompt_seconds = (double)(st_clock_ns() - start) * 1e-9;
    start = st_clock_ns();
    if (st == STRATA_OK)
        st = make_tokens(g);
    g->seconds = (double)(st_clock_ns() - start) * 1e-9;
    end = st == STRATA_OK || st == STRATA_E_CANCELLED ? cli_generation_text_end(g) : STRATA_OK;
    return end != STRATA_OK ? end : st;
}

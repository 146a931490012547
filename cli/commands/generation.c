/* cli/commands/generation.c - an answer: a forward pass over its prompt and then one per token, printed as they come. */
#include "cli/commands/generation.h"
#include "cli/cli_signals.h"
#include "core/system/clock.h"

#include <math.h>
#include <stdlib.h>

strata_status cli_generation_settings(struct cli_generation *g)
{
    const struct cli_args *args = g->args;
    struct strata_sampling_opts opts = STRATA_SAMPLING_OPTS_INIT;

    opts.temperature = !isnan(args->temperature) ? &args->temperature : NULL;
    opts.top_k = (uint32_t)args->top_k;
    opts.top_p = args->top_p;
    opts.repetition_penalty = args->repetition_penalty;
    opts.seed = args->seed;
    g->sampling = (struct strata_sampling)STRATA_SAMPLING_INIT;
    return strata_model_sampling(g->run.model, &g->sampling, &opts);
}

static int ask_signals(void *ctx)
{
    (void)ctx;
    return cli_signals_pending();
}

strata_status cli_generation_open(struct cli_generation *g)
{
    struct strata_generation_opts opts = STRATA_GENERATION_OPTS_INIT;

    opts.max_tokens = g->args->max_tokens != 0 ? (uint32_t)g->args->max_tokens : g->args->chat ? 0 : STRATA_MAX_TOKENS_DEFAULT;
    opts.stop = ask_signals;
    return strata_generation_open(&g->generation, g->run.engine, &g->sampling, &opts);
}

void cli_generation_fini(struct cli_generation *g)
{
    free(g->text);
    strata_stream_close(g->stream);
    strata_tokenizer_close(g->tokenizer);
    strata_generation_close(g->generation);
}

bool cli_generation_speaks(const struct cli_generation *g)
{
    return g->run.ranks.who.rank == 0;
}

static strata_status look(struct cli_generation *g)
{
    g->now = (struct strata_generation_info)STRATA_GENERATION_INFO_INIT;
    return strata_generation_get_info(g->generation, &g->now);
}

static strata_status make_tokens(struct cli_generation *g)
{
    int32_t token;
    strata_status st;

    while ((st = strata_generation_next(g->generation, &token)) == STRATA_OK && token >= 0)
        if ((st = look(g)) != STRATA_OK || (st = cli_generation_text_put(g, token)) != STRATA_OK)
            return st;
    return st;
}

strata_status cli_generation_answer(struct cli_generation *g, const int32_t *ids, uint32_t count)
{
    uint64_t start = st_clock_ns();
    strata_status st, end;

    g->seconds = 0;
    if ((st = cli_generation_text_begin(g)) != STRATA_OK)
        return st;
    st = strata_generation_begin(g->generation, ids, count);
    g->prompt_seconds = (double)(st_clock_ns() - start) * 1e-9;
    start = st_clock_ns();
    if (st == STRATA_OK)
        st = make_tokens(g);
    g->seconds = (double)(st_clock_ns() - start) * 1e-9;
    (void)!look(g);
    end = st == STRATA_OK || st == STRATA_E_CANCELLED ? cli_generation_text_end(g) : STRATA_OK;
    return end != STRATA_OK ? end : st;
}

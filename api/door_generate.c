/* api/door_generate.c - strata/generate.h: what a model's files say of sampling, and texts made token by token. */
#include "api/handles.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "model/decoder/sampler.h"
#include "model/hf/generation.h"
#include "strata/generate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- how tokens are chosen --- */

_Static_assert(STRATA_END_TOKENS_MAX == ST_END_TOKENS_MAX, "all that a file names are taken");

/* Impossible end tokens are no error in transformers, either: models whose vocabulary was cut keep them. */
static void note_strange_ends(const struct strata_model *m, const struct st_generation *says)
{
    const uint32_t vocab = st_model_config(m->model)->vocab;
    char text[ST_END_TOKENS_MAX * sizeof("4294967295, ")] = "";
    uint32_t count = 0;
    size_t length = 0;

    for (uint32_t i = 0; says->ends_said && i < says->end_count; i++)
        if (says->end_tokens[i] >= vocab)
            length +=
                (size_t)snprintf(text + length, sizeof(text) - length, "%s%u", count++ > 0 ? ", " : "", says->end_tokens[i]);
    if (count > 0)
        st_log(ST_LOG_NOTICE, "%s/%s: end %s %s never %s: the vocabulary has %u", m->name, says->from,
               count == 1 ? "token" : "tokens", text, count == 1 ? "comes" : "come", vocab);
}

/* Asking how to sample asks for sampling. */
static void override(struct strata_sampling *s, const struct strata_sampling_opts *o)
{
    s->seed = o->seed;
    s->sample |= o->temperature != NULL || o->top_k != 0 || o->top_p != 0;
    if (o->temperature != NULL)
        s->temperature = *o->temperature;
    if (o->top_k != 0)
        s->top_k = o->top_k;
    if (o->top_p != 0)
        s->top_p = o->top_p;
    if (o->repetition_penalty != 0)
        s->repetition_penalty = o->repetition_penalty;
}

strata_status strata_model_sampling(const struct strata_model *model, struct strata_sampling *sampling,
                                    const struct strata_sampling_opts *opts)
{
    struct st_generation says;
    struct strata_sampling_opts o;
    struct strata_sampling s = {0};
    strata_status st;

    if (model == NULL || sampling == NULL)
        return st_error_missing(__func__, model == NULL ? "model" : "sampling");
    if ((st = st_handle_check_decoder(model, __func__)) != STRATA_OK ||
        (st = st_handle_opts(&o, sizeof(o), opts, "strata_sampling_opts")) != STRATA_OK ||
        (st = st_handle_room(sampling, sizeof(s), "strata_sampling")) != STRATA_OK)
        return st;
    if (model->is_dir)
        st = st_generation_read(&says, model->name);
    else
        st_generation_of_preset(&says, st_model_config(model->model));
    if (st != STRATA_OK)
        return st;
    note_strange_ends(model, &says);
    if (says.ignored[0] != '\0')
        st_log(ST_LOG_NOTICE, "%s/%s asks for unsupported features: %s", model->name, says.from, says.ignored);
    s.sample = says.sample;
    s.temperature = says.temperature;
    s.top_k = says.top_k;
    s.top_p = says.top_p;
    s.repetition_penalty = says.repetition_penalty;
    s.end_count = says.end_count;
    memcpy(s.end_tokens, says.end_tokens, sizeof(s.end_tokens));
    memcpy(s.from, says.from, sizeof(s.from));
    override(&s, &o);
    return st_handle_result(sampling, &s, sizeof(s), "strata_sampling");
}

static strata_status check_ends(const char *function, const struct strata_sampling *s)
{
    if (s->end_count <= STRATA_END_TOKENS_MAX)
        return STRATA_OK;
    return st_error(STRATA_E_INVAL, "%s: %u end tokens: at most %u are possible", function, s->end_count, STRATA_END_TOKENS_MAX);
}

static bool is_end(const struct strata_sampling *s, int32_t token)
{
    for (uint32_t i = 0; i < s->end_count; i++)
        if ((uint32_t)token == s->end_tokens[i])
            return true;
    return false;
}

strata_status strata_sampling_end_at(struct strata_sampling *sampling, const struct strata_model *model, int32_t token)
{
    strata_status st;

    if (sampling == NULL || model == NULL)
        return st_error_missing(__func__, sampling == NULL ? "sampling" : "model");
    if ((st = st_handle_check_decoder(model, __func__)) != STRATA_OK ||
        (st = st_handle_room(sampling, sizeof(*sampling), "strata_sampling")) != STRATA_OK ||
        (st = check_ends(__func__, sampling)) != STRATA_OK || token < 0 || is_end(sampling, token))
        return st;
    if ((uint32_t)token >= st_model_config(model->model)->vocab)
        st_log(ST_LOG_NOTICE, "the tokenizer's end token %d never comes: the vocabulary has %u", token,
               st_model_config(model->model)->vocab);
    else if (sampling->end_count < STRATA_END_TOKENS_MAX)
        sampling->end_tokens[sampling->end_count++] = (uint32_t)token;
    return STRATA_OK;
}

/* --- a sampler --- */

struct strata_sampler {
    struct strata_sampling how;
    uint32_t vocab;
    struct st_sampler *sampler;
};

static strata_status create_sampler(struct st_sampler **out, uint32_t vocab, const struct strata_sampling *how)
{
    const struct st_sampler_opts opts = {.temperature = how->sample ? how->temperature : 0,
                                         .top_k = how->top_k,
                                         .top_p = how->top_p,
                                         .repetition_penalty = how->repetition_penalty,
                                         .seed = how->seed};

    return st_sampler_create(out, vocab, &opts);
}

strata_status strata_sampler_open(struct strata_sampler **sampler, uint32_t vocab, const struct strata_sampling *sampling)
{
    struct strata_sampler *s;
    strata_status st;

    if (sampler == NULL || sampling == NULL)
        return st_error_missing(__func__, sampler == NULL ? "sampler" : "sampling");
    s = st_fault_refuses("api.sampler") ? NULL : calloc(1, sizeof(*s));
    if (s == NULL)
        return st_nomem(sizeof(*s));
    s->vocab = vocab;
    if ((st = st_handle_opts(&s->how, sizeof(s->how), sampling, "strata_sampling")) == STRATA_OK &&
        (st = check_ends(__func__, &s->how)) == STRATA_OK)
        st = create_sampler(&s->sampler, vocab, &s->how);
    if (st == STRATA_OK)
        *sampler = s;
    else
        strata_sampler_close(s);
    return st;
}

strata_status strata_sampler_see(struct strata_sampler *sampler, const int32_t *tokens, size_t count)
{
    if (sampler == NULL)
        return st_error_missing(__func__, "sampler");
    if (tokens == NULL)
        st_sampler_forget(sampler->sampler);
    for (size_t i = 0; tokens != NULL && i < count; i++) {
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= sampler->vocab)
            return st_error(STRATA_E_INPUT, "%s: token %zu is %d: the vocabulary has %u", __func__, i, tokens[i], sampler->vocab);
        st_sampler_see(sampler->sampler, tokens[i]);
    }
    return STRATA_OK;
}

strata_status strata_sampler_next(struct strata_sampler *sampler, const float *logits, uint64_t index, int32_t *token, bool *ends)
{
    fenv_t floats;
    strata_status st;

    if (sampler == NULL || logits == NULL || token == NULL)
        return st_error_missing(__func__, sampler == NULL ? "sampler" : logits == NULL ? "logits" : "token");
    st_floats_plain(&floats);
    st = st_sampler_next(sampler->sampler, logits, index, token);
    st_floats_restore(&floats);
    if (st == STRATA_OK && ends != NULL)
        *ends = is_end(&sampler->how, *token);
    return st;
}

void strata_sampler_close(struct strata_sampler *sampler)
{
    if (sampler == NULL)
        return;
    st_sampler_destroy(sampler->sampler);
    free(sampler);
}

/* --- a text --- */

struct strata_generation {
    struct strata_engine *engine;
    struct strata_sampling how;
    struct strata_generation_opts opts;
    struct st_sampler *sampler;
    uint32_t room;     /* tokens of the model's cache */
    float *logits;     /* [vocab] */
    int32_t *tokens;   /* [room] the prompt and what followed it, */
    uint32_t count;    /* their number, */
    uint32_t prompt;   /* of these the prompt; 0: no text has begun */
    uint32_t seen;     /* the first ones, which the cache has */
    uint32_t cached;   /* of the prompt, before it began */
    uint64_t forwards; /* of the engine after the last one here: another's have changed the cache */
    bool ended;
    int stopped;
    int32_t *told; /* [ranks] what each says */
};

static strata_status create(struct strata_generation *g, const struct strata_model *m)
{
    const uint32_t vocab = st_model_config(m->model)->vocab;

    if (!st_fault_refuses("generation.alloc")) {
        g->logits = malloc(vocab * sizeof(*g->logits));
        g->tokens = malloc(g->room * sizeof(*g->tokens));
        g->told = calloc(st_handle_ranks(m->comm).ranks, sizeof(*g->told));
    }
    if (g->logits == NULL || g->tokens == NULL || g->told == NULL)
        return st_nomem(0);
    return create_sampler(&g->sampler, vocab, &g->how);
}

strata_status strata_generation_open(struct strata_generation **generation, struct strata_engine *engine,
                                     const struct strata_sampling *sampling, const struct strata_generation_opts *opts)
{
    struct strata_generation made = {.engine = engine}, *g;
    strata_status st;

    if (generation == NULL || engine == NULL || sampling == NULL)
        return st_error_missing(__func__, generation == NULL ? "generation" : engine == NULL ? "engine" : "sampling");
    if ((st = st_handle_opts(&made.how, sizeof(made.how), sampling, "strata_sampling")) != STRATA_OK ||
        (st = st_handle_opts(&made.opts, sizeof(made.opts), opts, "strata_generation_opts")) != STRATA_OK)
        return st;
    if (engine->plan->model->use != STRATA_USE_GENERATE)
        return st_error(STRATA_E_INVAL, "%s: the model was opened for another use than generation", __func__);
    if ((st = check_ends(__func__, &made.how)) != STRATA_OK)
        return st;
    made.room = engine->plan->model->size.context;
    if (made.opts.max_tokens == 0)
        made.opts.max_tokens = UINT32_MAX;
    g = st_fault_refuses("api.generation") ? NULL : malloc(sizeof(*g));
    if (g == NULL)
        return st_nomem(sizeof(*g));
    *g = made;
    if ((st = create(g, engine->plan->model)) != STRATA_OK) {
        strata_generation_close(g);
        return st;
    }
    *generation = g;
    return STRATA_OK;
}

/* Several ranks end after the same pass. */
static strata_status ask(struct strata_generation *g)
{
    const struct strata_model *m = g->engine->plan->model;
    const uint32_t ranks = st_handle_ranks(m->comm).ranks;
    const int32_t mine = g->opts.stop != NULL ? (int32_t)g->opts.stop(g->opts.stop_ctx) : 0;
    strata_status st = STRATA_OK;

    g->stopped = 0;
    g->told[0] = mine;
    if (st_handle_comm(m) != NULL)
        st = st_comm_gather(st_handle_comm(m), &mine, sizeof(mine), g->told, "what ends the run");
    for (uint32_t i = 0; i < ranks && st == STRATA_OK && g->stopped == 0; i++)
        g->stopped = g->told[i];
    return st == STRATA_OK && g->stopped != 0 ? st_error(STRATA_E_CANCELLED, "the generation was asked to stop") : st;
}

/* The model sees the tokens that are new to it, within a call on the engine. */
static strata_status forward(struct strata_generation *g)
{
    const uint32_t most = g->engine->plan->model->size.seq;
    strata_status st;

    if (g->forwards != g->engine->forwards)
        g->seen = 0;
    while ((st = ask(g)) == STRATA_OK && g->seen < g->count) {
        const uint32_t left = g->count - g->seen, rows = left < most ? left : most;

        if ((st = st_handle_forward(g->engine, g->tokens + g->seen, rows, g->seen, g->logits)) != STRATA_OK)
            break;
        g->seen += rows;
        g->forwards = g->engine->forwards;
    }
    return st;
}

/* How many of the first tokens the cache has: at least one is left, since it is the last one that gives logits. */
static uint32_t count_cached(const struct strata_generation *g, const int32_t *ids, uint32_t count)
{
    const uint32_t most = g->seen < count - 1 ? g->seen : count - 1;
    uint32_t same = 0;

    while (g->forwards == g->engine->forwards && same < most && g->tokens[same] == ids[same])
        same++;
    return same;
}

static strata_status check_prompt(const struct strata_generation *g, const int32_t *ids, uint32_t count)
{
    const uint32_t vocab = st_model_config(g->engine->plan->model->model)->vocab;

    if (count == 0 || count >= g->room)
        return st_error(STRATA_E_INVAL, "strata_generation_begin: %u tokens: 1 to %u are possible", count, g->room - 1);
    for (uint32_t i = 0; i < count; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= vocab)
            return st_error(STRATA_E_INPUT, "strata_generation_begin: token %u is %d: the vocabulary has %u", i, ids[i], vocab);
    return STRATA_OK;
}

strata_status strata_generation_begin(struct strata_generation *generation, const int32_t *ids, uint32_t count)
{
    struct strata_generation *g = generation;
    strata_status st;

    if (g == NULL || ids == NULL)
        return st_error_missing(__func__, g == NULL ? "generation" : "ids");
    if ((st = check_prompt(g, ids, count)) != STRATA_OK ||
        (st = st_handle_enter(g->engine, __func__, ST_HANDLE_LOADED)) != STRATA_OK)
        return st; /* the text before stays */
    g->cached = g->seen = count_cached(g, ids, count);
    memmove(g->tokens, ids, count * sizeof(*ids));
    g->count = g->prompt = count;
    g->ended = false;
    st_sampler_forget(g->sampler);
    for (uint32_t i = 0; i < count; i++)
        st_sampler_see(g->sampler, ids[i]);
    st = forward(g);
    st_handle_leave(g->engine);
    return st;
}

/* Rank 0's choice, for all: another processor's kernels may round otherwise. */
static strata_status choose(struct strata_generation *g, int32_t *token)
{
    const struct strata_model *m = g->engine->plan->model;
    int32_t mine = 0;
    strata_status st = STRATA_OK;

    if (st_handle_ranks(m->comm).rank == 0)
        st = st_sampler_next(g->sampler, g->logits, g->count, &mine);
    g->told[0] = mine;
    if (st == STRATA_OK && st_handle_comm(m) != NULL)
        st = st_comm_gather(st_handle_comm(m), &mine, sizeof(mine), g->told, "the next token");
    *token = g->told[0];
    return st;
}

static enum strata_text_end end_of(const struct strata_generation *g)
{
    if (g->ended)
        return STRATA_TEXT_ENDED;
    if (g->count - g->prompt >= g->opts.max_tokens)
        return STRATA_TEXT_LONG;
    return g->count == g->room ? STRATA_TEXT_FULL : STRATA_TEXT_GOES_ON;
}

strata_status strata_generation_next(struct strata_generation *generation, int32_t *token)
{
    struct strata_generation *g = generation;
    int32_t next = -1;
    strata_status st;

    if (g == NULL || token == NULL)
        return st_error_missing(__func__, g == NULL ? "generation" : "token");
    if (g->prompt == 0)
        return st_error(STRATA_E_INVAL, "%s: no text has begun: strata_generation_begin() comes first", __func__);
    if (end_of(g) != STRATA_TEXT_GOES_ON) {
        *token = -1;
        return STRATA_OK;
    }
    if ((st = st_handle_enter(g->engine, __func__, ST_HANDLE_LOADED)) != STRATA_OK)
        return st;
    if ((st = forward(g)) == STRATA_OK)
        st = choose(g, &next);
    st_handle_leave(g->engine);
    if (st != STRATA_OK)
        return st;
    g->ended = is_end(&g->how, next);
    st_sampler_see(g->sampler, next);
    g->tokens[g->count++] = *token = next;
    return STRATA_OK;
}

strata_status strata_generation_get_info(const struct strata_generation *generation, struct strata_generation_info *info)
{
    const struct strata_generation *g = generation;
    struct strata_generation_info i = {0};

    if (g == NULL || info == NULL)
        return st_error_missing(__func__, g == NULL ? "generation" : "info");
    i.tokens = g->tokens;
    i.prompt_tokens = g->prompt;
    i.cached_tokens = g->cached;
    i.new_tokens = g->count - g->prompt;
    i.end = end_of(g);
    i.stopped = g->stopped;
    return st_handle_result(info, &i, sizeof(i), "strata_generation_info");
}

void strata_generation_close(struct strata_generation *generation)
{
    if (generation == NULL)
        return;
    st_sampler_destroy(generation->sampler);
    free(generation->logits);
    free(generation->tokens);
    free(generation->told);
    free(generation);
}

/* cli/commands/cmd_generate.c - continues a prompt: one forward pass over it, then one per token, with the engine of training. */
#include "api/handles.h"
#include "api/plan_report.h"
#include "cli/cli_signals.h"
#include "cli/commands/commands.h"
#include "cli/commands/prompt.h"
#include "cli/run.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/print.h"
#include "core/base/size.h"
#include "core/base/wrap.h"
#include "core/system/clock.h"
#include "core/trace/stats.h"
#include "model/decoder/sampler.h"
#include "model/hf/generation.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct generation {
    const struct cli_args *args; /* borrowed */
    struct cli_run run;
    struct cli_progress progress;
    struct cli_prompt prompt;
    struct st_generation settings; /* from the model's files, overridden by the command line */
    struct st_sampler *sampler;
    float *logits;   /* [vocab] f32 */
    int32_t *tokens; /* [run.shape.cache_tokens] generated so far */
    uint32_t count, most;
    bool ended; /* the model produced its end token */
    bool shown; /* escape the text for a terminal, which must not obey what a model generates; elsewhere bytes stay unchanged */
    struct st_print_bytes bytes;
    double prompt_seconds, seconds;   /* of the prompt's forward pass; of everything after it */
    struct strata_engine_info info;   /* bytes moved by the forward passes */
    uint64_t rss_max, rss_peak_bytes; /* planned and measured */
};

static bool reads_bytes(const struct generation *g)
{
    return g->run.shape.vocab == CLI_BYTE_VOCAB;
}

/* --- output --- */

/* Prints one token as soon as it is known; with JSON the text is printed at the end. */
static strata_status put_token(struct generation *g, int32_t token)
{
    int err;

    if (g->args->json)
        return STRATA_OK;
    if (reads_bytes(g) && g->shown)
        st_print_byte(stdout, &g->bytes, (char)token);
    else if (reads_bytes(g))
        fputc(token, stdout);
    else
        st_print(stdout, "%s%d", g->count > 1 ? "," : "", token);
    err = st_print_flush(stdout);
    return err == 0 ? STRATA_OK : st_error_errno(err, "cannot write to standard output");
}

/* NaN for a single token, since the first one comes with the prompt's forward pass. */
static double tokens_per_second(const struct generation *g)
{
    return g->count > 1 && g->seconds > 0 ? (g->count - 1) / g->seconds : (double)NAN;
}

/* True if the cache had no room for all requested tokens. */
static bool is_cut(const struct generation *g)
{
    const uint64_t asked = g->args->max_tokens;

    return !g->ended && g->count == g->most && g->most < (asked != 0 ? asked : STRATA_MAX_TOKENS_DEFAULT);
}

static const char *stop_reason(const struct generation *g)
{
    if (g->ended)
        return "end";
    if (g->count < g->most)
        return "signal";
    return is_cut(g) ? "context" : "length";
}

static void put_text(const struct generation *g, struct st_json_writer *w)
{
    char *text = reads_bytes(g) ? malloc(g->count + 1) : NULL;

    for (uint32_t i = 0; text != NULL && i < g->count; i++)
        text[i] = g->tokens[i] != 0 ? (char)g->tokens[i] : '\xff'; /* JSON text cannot hold either: U+FFFD */
    if (text != NULL)
        text[g->count] = '\0';
    st_json_put_string(w, "text", text);
    free(text);
}

static void put_settings(const struct st_generation *s, struct st_json_writer *w)
{
    st_json_object_open(w, "sampling");
    st_json_put_double(w, "temperature", s->sample ? s->temperature : 0);
    st_json_put_u64(w, "top_k", s->top_k);
    st_json_put_double(w, "top_p", s->top_p);
    st_json_put_double(w, "repetition_penalty", s->repetition_penalty);
    st_json_object_close(w);
}

static void print_json(const struct generation *g)
{
    struct st_json_writer w;

    st_json_begin(&w, stdout);
    st_json_object_open(&w, NULL);
    st_json_put_u64(&w, "prompt_tokens", g->prompt.count);
    st_json_array_open(&w, "tokens");
    for (uint32_t i = 0; i < g->count; i++)
        st_json_put_u64(&w, NULL, (uint64_t)g->tokens[i]);
    st_json_array_close(&w);
    put_text(g, &w);
    st_json_put_string(&w, "stopped_by", stop_reason(g));
    put_settings(&g->settings, &w);
    st_json_put_double(&w, "prompt_seconds", g->prompt_seconds);
    st_json_put_double(&w, "seconds", g->seconds);
    st_json_put_double(&w, "tokens_per_second", tokens_per_second(g));
    st_json_object_open(&w, "bytes");
    st_json_put_u64(&w, "upload", g->info.upload_bytes);
    st_json_put_u64(&w, "download", g->info.download_bytes);
    st_json_put_u64(&w, "read", g->info.read_bytes);
    st_json_put_u64(&w, "write", g->info.write_bytes);
    st_json_object_close(&w);
    st_json_put_u64(&w, "rss_bytes_max", g->rss_max);
    st_json_put_u64(&w, "peak_rss_bytes", g->rss_peak_bytes);
    st_json_object_close(&w);
    st_json_end_line(&w);
}

/* Prints the file that the settings come from, and which ones the command line overrides. */
static void print_origin(const struct st_generation *s, const struct cli_args *args, bool drawn, FILE *file)
{
    const struct {
        bool shown, given;
        const char *option;
    } settings[] = {
        {true, !isnan(args->temperature), "temperature"},
        {drawn && s->top_k != 0, args->top_k != 0, "top-k"},
        {drawn && s->top_p < 1, args->top_p != 0, "top-p"},
        {s->repetition_penalty != 1, args->repetition_penalty != 0, "repetition-penalty"},
    };
    const char *before = ", but for";
    bool by_file = false;

    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        by_file |= settings[i].shown && !settings[i].given;
    if (s->from[0] == '\0' || !by_file)
        return;
    st_print(file, " (by %s and defaults", s->from);
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        if (!settings[i].shown || !settings[i].given)
            continue;
        st_print(file, "%s --%s", before, settings[i].option);
        before = ",";
    }
    st_print(file, ")");
}

/* Prints how tokens were chosen, and where these settings come from. */
static void print_settings(const struct st_generation *s, const struct cli_args *args, FILE *file)
{
    const bool drawn = s->sample && s->temperature > 0;

    if (drawn) {
        st_print(file, "strata: drawn at temperature %g", s->temperature);
        if (s->top_k != 0)
            st_print(file, ", top-k %u", s->top_k);
        if (s->top_p < 1)
            st_print(file, ", top-p %g", s->top_p);
    } else {
        st_print(file, "strata: always the likeliest token");
    }
    if (s->repetition_penalty != 1)
        st_print(file, ", repetition penalty %g", s->repetition_penalty);
    print_origin(s, args, drawn, file);
    st_print(file, "\n");
}

static void print_figures(const struct generation *g)
{
    FILE *const file = st_wrap_open(stderr);
    char upload[24], download[24], read[24], write[24];

    print_settings(&g->settings, g->args, file);
    st_print(file, "strata: %u %s of prompt in %.2f s, %u new %s in %.2f s", g->prompt.count,
             g->prompt.count == 1 ? "token" : "tokens", g->prompt_seconds, g->count, g->count == 1 ? "one" : "ones", g->seconds);
    if (!isnan(tokens_per_second(g)))
        st_print(file, " (%.1f tokens/s)", tokens_per_second(g));
    st_print(file, "\n");
    st_print(file, "strata: moved: %s up, %s down, %s read, %s written\n", st_size_text(upload, g->info.upload_bytes),
             st_size_text(download, g->info.download_bytes), st_size_text(read, g->info.read_bytes),
             st_size_text(write, g->info.write_bytes));
    if (is_cut(g))
        st_print(file, "strata: stopped after %u %s: the context of %u is full\n", g->count, g->count == 1 ? "token" : "tokens",
                 g->run.shape.cache_tokens);
    st_wrap_close(file, stderr);
}

static void print_end(struct generation *g)
{
    const struct cli_args *args = g->args;

    if (args->json)
        print_json(g);
    else {
        st_print_bytes_end(stdout, &g->bytes);
        st_print(stdout, "\n");
    }
    fflush(stdout);
    if (!args->quiet)
        print_figures(g);
}

/* --- the run --- */

static strata_status forward_prompt(struct generation *g)
{
    const uint64_t start = st_clock_ns();
    strata_status st = STRATA_OK;

    for (uint32_t at = 0; at < g->prompt.count && st == STRATA_OK; at += g->run.shape.seq_len) {
        const uint32_t left = g->prompt.count - at;

        st = strata_engine_forward(g->run.engine, g->prompt.tokens + at,
                                   left < g->run.shape.seq_len ? left : g->run.shape.seq_len, at, g->logits);
    }
    g->prompt_seconds = (double)(st_clock_ns() - start) * 1e-9;
    return st;
}

static bool is_end(const struct generation *g, int32_t token)
{
    for (uint32_t i = 0; i < g->settings.end_count; i++)
        if ((uint32_t)token == g->settings.end_tokens[i])
            return true;
    return false;
}

static strata_status make_tokens(struct generation *g)
{
    const uint64_t start = st_clock_ns();
    strata_status st = STRATA_OK;

    while (g->count < g->most && !g->ended && st == STRATA_OK) {
        const uint32_t position = g->prompt.count + g->count;
        int32_t token;

        if (g->count > 0)
            st = strata_engine_forward(g->run.engine, &g->tokens[g->count - 1], 1, position - 1, g->logits);
        if (st == STRATA_OK)
            st = st_sampler_next(g->sampler, g->logits, position, &token);
        if (st != STRATA_OK)
            break;
        g->ended = is_end(g, token);
        st_sampler_see(g->sampler, token);
        g->tokens[g->count++] = token;
        st = put_token(g, token);
    }
    g->seconds = (double)(st_clock_ns() - start) * 1e-9;
    return st;
}

static void take_figures(struct generation *g)
{
    g->info = (struct strata_engine_info)STRATA_ENGINE_INFO_INIT;
    (void)!strata_engine_get_info(g->run.engine, &g->info);
    g->rss_max = cli_run_memory(&g->run);
    g->rss_peak_bytes = st_stats_rss_peak_bytes();
}

static strata_status create_buffers(struct generation *g)
{
    const struct st_sampler_opts opts = {.temperature = g->settings.sample ? g->settings.temperature : 0,
                                         .top_k = g->settings.top_k,
                                         .top_p = g->settings.top_p,
                                         .repetition_penalty = g->settings.repetition_penalty,
                                         .seed = g->args->seed};
    const uint32_t vocab = g->run.shape.vocab;
    strata_status st;

    g->most = g->run.shape.cache_tokens - g->prompt.count;
    g->logits = malloc(vocab * sizeof(*g->logits));
    g->tokens = malloc(g->run.shape.cache_tokens * sizeof(*g->tokens));
    if (g->logits == NULL || g->tokens == NULL)
        return st_error(STRATA_E_NOMEM, "no memory for the logits of %u tokens", vocab);
    st = st_sampler_create(&g->sampler, vocab, &opts);
    for (uint32_t i = 0; i < g->prompt.count && st == STRATA_OK; i++)
        st_sampler_see(g->sampler, g->prompt.tokens[i]);
    return st;
}

/* Warns about impossible end tokens. They are no error in transformers, either: models whose vocabulary was cut keep them. */
static void print_strange_ends(const struct generation *g)
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
        st_log(ST_LOG_NOTICE, "%s/%s: end %s %s never %s: the vocabulary has %u", g->args->model, s->from,
               count == 1 ? "token" : "tokens", text, count == 1 ? "comes" : "come", vocab);
}

/* Reads the files' settings. The command line overrides them, and giving it sampling options asks for sampling. */
static strata_status read_settings(struct generation *g)
{
    const struct cli_args *args = g->args;
    struct st_generation *s = &g->settings;
    strata_status st = STRATA_OK;

    if (g->run.model->is_dir)
        st = st_generation_read(s, args->model);
    else
        st_generation_of_preset(s, st_model_config(g->run.model->model));
    if (st != STRATA_OK)
        return st;
    print_strange_ends(g);
    if (s->ignored[0] != '\0')
        st_log(ST_LOG_NOTICE, "%s/%s asks for unsupported features: %s", args->model, s->from, s->ignored);
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

static strata_status check_prompt(const struct generation *g)
{
    const uint32_t vocab = g->run.shape.vocab;

    if (g->args->prompt_tokens == NULL && !reads_bytes(g))
        return st_error(STRATA_E_INVAL,
                        "%s has a vocabulary of %u tokens, and this version turns text into tokens for models that read bytes "
                        "(%u) only: give ids with --prompt-tokens ID,ID,...",
                        g->args->model, vocab, CLI_BYTE_VOCAB);
    return cli_prompt_check(&g->prompt, vocab);
}

/* Checks everything that can be refused before the engine allocates memory. */
static strata_status prepare(struct generation *g)
{
    const struct cli_args *args = g->args;
    strata_status st = cli_prompt_read(&g->prompt, args);

    g->run.prompt_tokens = g->prompt.count;
    if (st == STRATA_OK)
        st = cli_run_model(&g->run);
    if (st == STRATA_OK)
        st = check_prompt(g);
    if (st == STRATA_OK)
        st = read_settings(g);
    if (st == STRATA_OK)
        st = strata_plan_make(&g->run.plan, g->run.model);
    if (g->run.plan != NULL && st == STRATA_E_NOFIT)
        st_plan_print(g->run.plan, false, stderr);
    if (st == STRATA_OK)
        st = create_buffers(g);
    if (st == STRATA_OK && !args->json && !args->quiet && !reads_bytes(g))
        st_log(ST_LOG_NOTICE, "token ids on standard output: this version turns ids into text for models that read bytes only");
    return st;
}

static strata_status run(struct generation *g)
{
    strata_status st = prepare(g);

    if (st == STRATA_OK)
        st = cli_run_start(&g->run);
    if (st != STRATA_OK)
        return st;
    cli_signals_engine(g->run.engine);
    cli_signals_ask(NULL);
    st = forward_prompt(g);
    if (st == STRATA_OK)
        st = make_tokens(g);
    take_figures(g);
    if (st == STRATA_OK || st == STRATA_E_CANCELLED)
        print_end(g);
    return st;
}

int cmd_generate(const struct cli_args *args)
{
    struct generation g = {.args = args};
    strata_status st;

    g.shown = isatty(STDOUT_FILENO) != 0;
    st = cli_run_configure(&g.run, args, &g.progress);
    cli_progress_init(&g.progress, stderr, args->quiet, 0, 0);
    if (st == STRATA_OK)
        st = run(&g);
    cli_run_close(&g.run);
    cli_progress_fini(&g.progress);
    cli_prompt_fini(&g.prompt);
    st_sampler_destroy(g.sampler);
    free(g.logits);
    free(g.tokens);
    if (st == STRATA_E_CANCELLED)
        return 128 + cli_signals_pending();
    return st == STRATA_OK ? 0 : cli_fail(st);
}

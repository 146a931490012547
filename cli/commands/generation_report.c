/* cli/commands/generation_report.c - the figures of an answer: JSON on standard output, or sentences on standard error. */
#include "cli/commands/generation.h"
#include "core/base/size.h"
#include "core/base/wrap.h"
#include "core/json/json.h"
#include "core/trace/stats.h"

#include <math.h>
#include <stdio.h>

/* NaN for a single token, since the first one comes with the prompt's forward pass. */
static double tokens_per_second(const struct cli_generation *g)
{
    const uint32_t count = g->now.new_tokens;

    return count > 1 && g->seconds > 0 ? (count - 1) / g->seconds : (double)NAN;
}

static const char *stop_reason(const struct cli_generation *g)
{
    static const char *const reasons[] = {
        [STRATA_TEXT_GOES_ON] = "signal",
        [STRATA_TEXT_ENDED] = "end",
        [STRATA_TEXT_LONG] = "length",
        [STRATA_TEXT_FULL] = "context",
    };

    return reasons[g->now.end];
}

static void put_settings(const struct strata_sampling *s, struct st_json_writer *w)
{
    st_json_object_open(w, "sampling");
    st_json_put_double(w, "temperature", s->sample ? s->temperature : 0);
    st_json_put_u64(w, "top_k", s->top_k);
    st_json_put_double(w, "top_p", s->top_p);
    st_json_put_double(w, "repetition_penalty", s->repetition_penalty);
    st_json_object_close(w);
}

static void print_json(const struct cli_generation *g)
{
    struct st_json_writer w;

    st_json_begin(&w, stdout);
    st_json_object_open(&w, NULL);
    st_json_put_u64(&w, "prompt_tokens", g->now.prompt_tokens);
    st_json_put_u64(&w, "cached_tokens", g->now.cached_tokens);
    st_json_array_open(&w, "tokens");
    for (uint32_t i = 0; i < g->now.new_tokens; i++)
        st_json_put_u64(&w, NULL, (uint64_t)g->now.tokens[g->now.prompt_tokens + i]);
    st_json_array_close(&w);
    st_json_put_string(&w, "text", cli_generation_text(g));
    st_json_put_string(&w, "stopped_by", stop_reason(g));
    put_settings(&g->sampling, &w);
    st_json_put_double(&w, "prompt_seconds", g->prompt_seconds);
    st_json_put_double(&w, "seconds", g->seconds);
    st_json_put_double(&w, "tokens_per_second", tokens_per_second(g));
    st_json_object_open(&w, "bytes");
    st_json_put_u64(&w, "upload", g->info.upload_bytes);
    st_json_put_u64(&w, "download", g->info.download_bytes);
    st_json_put_u64(&w, "read", g->info.read_bytes);
    st_json_put_u64(&w, "write", g->info.write_bytes);
    st_json_put_u64(&w, "comm", g->info.comm_bytes);
    st_json_object_close(&w);
    st_json_put_u64(&w, "rss_bytes_max", g->rss_max);
    st_json_put_u64(&w, "peak_rss_bytes", g->rss_peak_bytes);
    st_json_object_close(&w);
    st_json_end_line(&w);
}

/* Prints the file that the settings come from, and which ones the command line overrides. */
static void print_origin(const struct strata_sampling *s, const struct cli_args *args, bool drawn, FILE *file)
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

void cli_generation_report_settings(const struct cli_generation *g)
{
    const struct strata_sampling *s = &g->sampling;
    const bool drawn = s->sample && s->temperature > 0;
    FILE *const file = st_wrap_open(stderr);

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
    print_origin(s, g->args, drawn, file);
    st_print(file, "\n");
    st_wrap_close(file, stderr);
}

static void print_figures(const struct cli_generation *g)
{
    const uint32_t count = g->now.new_tokens;
    FILE *const file = st_wrap_open(stderr);
    char upload[24], download[24], read[24], write[24];

    st_print(file, "strata: %u %s of prompt", g->now.prompt_tokens, g->now.prompt_tokens == 1 ? "token" : "tokens");
    if (g->now.cached_tokens > 0)
        st_print(file, " (%u known)", g->now.cached_tokens);
    st_print(file, " in %.2f s, %u new %s in %.2f s", g->prompt_seconds, count, count == 1 ? "one" : "ones", g->seconds);
    if (!isnan(tokens_per_second(g)))
        st_print(file, " (%.1f tokens/s)", tokens_per_second(g));
    st_print(file, "\n");
    if (!g->args->chat)
        st_print(file, "strata: moved: %s up, %s down, %s read, %s written\n", st_size_text(upload, g->info.upload_bytes),
                 st_size_text(download, g->info.download_bytes), st_size_text(read, g->info.read_bytes),
                 st_size_text(write, g->info.write_bytes));
    if (g->now.end == STRATA_TEXT_FULL)
        st_print(file, "strata: stopped after %u %s: the context of %u is full\n", count, count == 1 ? "token" : "tokens",
                 g->run.shape.cache_tokens);
    st_wrap_close(file, stderr);
}

static void take_figures(struct cli_generation *g)
{
    g->info = (struct strata_engine_info)STRATA_ENGINE_INFO_INIT;
    (void)!strata_engine_get_info(g->run.engine, &g->info);
    g->rss_max = cli_run_memory(&g->run);
    g->rss_peak_bytes = st_stats_rss_peak_bytes();
}

void cli_generation_report(struct cli_generation *g)
{
    if (!cli_generation_speaks(g))
        return;
    take_figures(g);
    if (g->args->json)
        print_json(g);
    else
        st_print(stdout, "\n");
    fflush(stdout);
    if (!g->args->quiet)
        print_figures(g);
}

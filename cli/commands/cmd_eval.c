/* cli/commands/cmd_eval.c - loss of a model on token files: the plan and the engine of training, forward alone. */
#include "cli/cli_signals.h"
#include "cli/commands/commands.h"
#include "cli/report/plan_table.h"
#include "cli/run.h"
#include "core/base/error.h"
#include "core/base/page.h"
#include "core/base/print.h"
#include "core/trace/stats.h"

#include <math.h>
#include <stdio.h>

static void print_text(const struct st_eval_result *r)
{
    st_print(stdout, "loss %.6f  perplexity %.4f", r->loss, r->perplexity);
    if (!isnan(r->bits_per_byte))
        st_print(stdout, "  bits_per_byte %.6f", r->bits_per_byte);
    st_print(stdout, "  tokens %llu\n", (unsigned long long)r->targets);
}

static void print_json(const struct st_eval_result *r, bool complete, uint64_t rss_max)
{
    struct st_json_writer w;

    st_json_begin(&w, stdout);
    st_json_object_open(&w, NULL);
    st_json_put_double(&w, "loss", r->loss);
    st_json_put_double(&w, "perplexity", r->perplexity);
    st_json_put_double(&w, "bits_per_byte", r->bits_per_byte);
    st_json_put_u64(&w, "tokens", r->targets);
    st_json_put_bool(&w, "complete", complete);
    st_json_put_u64(&w, "rss_bytes_max", rss_max);
    st_json_put_u64(&w, "peak_rss_bytes", st_stats_rss_peak_bytes());
    st_json_object_close(&w);
    st_json_end_line(&w);
}

static strata_status run(struct st_session *s, const struct cli_args *args, struct st_token_set **data, struct st_batch *batch,
                         struct st_eval_result *result)
{
    strata_status st = st_session_model(s);

    if (st == STRATA_OK)
        st = st_session_tokens(s, data, args->data.items, args->data.count);
    if (st == STRATA_OK)
        st = st_session_plan(s);
    if (s->plan != NULL && st == STRATA_E_NOFIT)
        cli_plan_print(s->plan, &s->figures, false, stderr);
    if (st == STRATA_OK)
        st = st_batch_create(batch, s);
    if (st == STRATA_OK)
        st = st_session_start(s);
    if (st != STRATA_OK)
        return st;
    cli_signals_engine(s->engine);
    cli_signals_ask(NULL);
    st = st_evaluate(s, *data, batch, result);
    if (st == STRATA_OK && !isfinite(result->loss))
        st = st_error(STRATA_E_NUMERICS, "the loss is not finite: the weights of %s are damaged or have diverged", args->model);
    return st;
}

/* Exit code.  What a signal cut short is printed as far as it came, and said to be so. */
static int report(const struct cli_args *args, strata_status st, const struct st_eval_result *result, uint64_t windows,
                  uint64_t rss_max)
{
    const bool complete = st == STRATA_OK;

    if (!complete && st != STRATA_E_CANCELLED)
        return cli_fail(st);
    if (args->json && result->windows > 0)
        print_json(result, complete, rss_max);
    else if (result->windows > 0)
        print_text(result);
    if (complete)
        return 0;
    st_page_print(stderr, "strata: ended by %s after %llu of %llu windows\n", cli_signals_name(cli_signals_pending()),
                  (unsigned long long)result->windows, (unsigned long long)windows);
    return 128 + cli_signals_pending();
}

int cmd_eval(const struct cli_args *args)
{
    struct cli_progress progress;
    const struct st_session_opts opts = cli_run_opts(args, &progress);
    struct st_session session;
    struct st_token_set *data = NULL;
    struct st_batch batch = {0};
    struct st_eval_result result = {0};
    strata_status st = st_session_configure(&session, &opts);
    int code;

    cli_progress_init(&progress, stderr, false, 0, 0);
    if (st == STRATA_OK)
        st = run(&session, args, &data, &batch, &result);
    cli_progress_work_end(&progress);
    cli_signals_engine(NULL);
    code = report(args, st, &result, data != NULL ? st_token_set_windows(data) : 0,
                  session.plan != NULL ? session.plan->rss_bytes_max : 0);
    st_session_close(&session);
    cli_progress_fini(&progress);
    st_batch_destroy(&batch);
    st_token_set_close(data);
    return code;
}

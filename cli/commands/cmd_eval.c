/* cli/commands/cmd_eval.c - computes a model's loss on token files with the planner and engine of training, forward only. */
#include "cli/cli_signals.h"
#include "cli/commands/commands.h"
#include "cli/run.h"
#include "core/base/error.h"
#include "core/base/print.h"
#include "core/base/wrap.h"
#include "core/trace/stats.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A model with one adapter, or without. */
struct evaluated {
    const char *name; /* [name_bytes] what the line begins with; NULL: nothing */
    size_t name_bytes;
    struct strata_eval result;
    int ended_by;
};

static void print_text(const struct evaluated *e)
{
    const struct strata_eval *r = &e->result;

    if (e->name != NULL)
        st_print(stdout, "%.*s: ", (int)e->name_bytes, e->name);
    st_print(stdout, "loss %.6f  perplexity %.4f", r->loss, r->perplexity);
    if (!isnan(r->bits_per_byte))
        st_print(stdout, "  bits_per_byte %.6f", r->bits_per_byte);
    st_print(stdout, "  tokens %llu\n", (unsigned long long)r->targets);
}

static void print_json(const struct evaluated *e, bool complete, uint64_t rss_max)
{
    const struct strata_eval *r = &e->result;
    struct st_json_writer w;

    st_json_begin(&w, stdout);
    st_json_object_open(&w, NULL);
    if (e->name != NULL)
        st_json_put_bytes(&w, "adapter", e->name, e->name_bytes);
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

/* One process is cancelled within a pass; of several each must end after the same one. */
static void listen_to_signals(const struct cli_run *r)
{
    if (r->ranks.who.ranks == 1)
        cli_signals_engine(r->engine);
    cli_signals_ask(NULL);
}

static strata_status run(struct cli_run *r, struct strata_data **data, struct evaluated *e)
{
    const struct cli_args *args = r->args;
    strata_status st, told;

    r->progress->patient = r->ranks.who.ranks > 1; /* a model is loaded by all ranks or none */
    st = cli_run_model(r);
    if (st == STRATA_OK && *data == NULL)
        st = cli_run_data(r, data, NULL);
    if (st == STRATA_OK)
        st = strata_plan_make(&r->plan, r->model, r->machine);
    if (r->plan != NULL && st == STRATA_E_NOFIT)
        cli_run_print_plan(r, STRATA_PLAN_BRIEF, stderr);
    if (st == STRATA_OK)
        st = cli_run_start(r);
    r->progress->patient = false;
    if (st == STRATA_E_CANCELLED) /* of several adapters: signals ask since the first one's evaluation */
        e->ended_by = cli_signals_pending();
    if (st != STRATA_OK)
        return st;
    listen_to_signals(r);
    st = strata_engine_eval_data(r->engine, *data, &e->result);
    if (st == STRATA_E_CANCELLED && (told = cli_ranks_first(&r->ranks, cli_signals_pending(), &e->ended_by)) != STRATA_OK)
        return told;
    if (st == STRATA_OK && !isfinite(e->result.loss))
        st = st_error(STRATA_E_NUMERICS, "the loss is not finite: the weights of %s are damaged or have diverged", args->model);
    return st;
}

/* Prints the result and returns the exit code.  A result cut short by a signal, whose number is `ended_by`, is printed as far as
 * it got, and marked as such. */
static int report(const struct cli_run *r, strata_status st, const struct evaluated *e, uint64_t windows)
{
    const bool complete = st == STRATA_OK, speaks = r->ranks.who.rank == 0;

    if (!complete && st != STRATA_E_CANCELLED)
        return cli_fail(st);
    if (speaks && r->args->json && e->result.sequences > 0)
        print_json(e, complete, cli_run_memory(r));
    else if (speaks && e->result.sequences > 0)
        print_text(e);
    if (complete)
        return 0;
    if (speaks)
        st_wrap_print(stderr, "strata: ended by %s after %llu of %llu windows\n", cli_signals_name(e->ended_by),
                      (unsigned long long)e->result.sequences, (unsigned long long)windows);
    return 128 + e->ended_by;
}

/* "[NAME=]DIR": a directory whose name has an "=" is written with a "/" before that. */
static const char *name_adapter(struct evaluated *e, const char *word, bool alone)
{
    const char *equals = strchr(word, '='), *slash = strchr(word, '/');
    const bool named = equals != NULL && equals > word && (slash == NULL || equals < slash);

    e->name = named || !alone ? word : NULL;
    e->name_bytes = named ? (size_t)(equals - word) : strlen(word);
    return named ? equals + 1 : word;
}

/* Each has a directory, and a name that no other has. */
static strata_status check_adapters(const struct cli_list *adapters)
{
    for (uint32_t i = 0; i < adapters->count; i++) {
        struct evaluated e, other;

        if (name_adapter(&e, adapters->items[i], false)[0] == '\0')
            return st_error(STRATA_E_INVAL, "--adapter \"%s\": no directory is named%s", adapters->items[i],
                            e.name_bytes > 0 ? " after the =" : "");
        for (uint32_t k = 0; k < i; k++) {
            (void)name_adapter(&other, adapters->items[k], false);
            if (e.name_bytes == other.name_bytes && memcmp(e.name, other.name, e.name_bytes) == 0)
                return st_error(STRATA_E_INVAL, "--adapter: two are named %.*s: give each another name, as NAME=DIR",
                                (int)e.name_bytes, e.name);
        }
    }
    return STRATA_OK;
}

/* One after the other, each with the model opened again: a line of figures for each. */
static int run_all(struct cli_run *r, strata_status st, struct cli_progress *progress, struct strata_data **data)
{
    const struct cli_list *adapters = &r->args->adapters;
    int code = 0;

    for (uint32_t i = 0; code == 0 && i < (adapters->count > 0 ? adapters->count : 1); i++) {
        struct evaluated e = {.result = STRATA_EVAL_INIT};

        if (adapters->count > 0)
            r->adapter = name_adapter(&e, adapters->items[i], adapters->count == 1);
        if (i > 0)
            cli_run_end(r);
        if (st == STRATA_OK)
            st = run(r, data, &e);
        cli_progress_work_end(progress);
        code = report(r, st, &e, strata_data_count(*data));
    }
    cli_ranks_leave(&r->ranks, st);
    return code;
}

int cmd_eval(const struct cli_args *args)
{
    struct cli_progress progress;
    struct cli_run r = {.args = args};
    struct strata_data *data = NULL;
    strata_status st = cli_ranks_find(&r.ranks, args);
    int code;

    if (st == STRATA_OK)
        st = check_adapters(&args->adapters);
    if (st == STRATA_OK)
        st = cli_run_configure(&r, cli_ranks_args(&r.ranks, args), &progress);
    cli_progress_init(&progress, stderr, r.ranks.who.rank != 0, 0, 0);
    if (st == STRATA_OK && r.ranks.who.rank == 0)
        cli_ranks_print(&r.ranks, stderr);
    code = run_all(&r, st, &progress, &data);
    cli_run_close(&r);
    cli_progress_fini(&progress);
    strata_data_close(data);
    return code;
}

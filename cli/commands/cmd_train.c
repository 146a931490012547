/* cli/commands/cmd_train.c - plans, prints the plan, allocates, trains, writes the model.
 *
 * Nothing is created on disk, tokens and metrics included, before the plan is known to fit.  The first signal ends the run after
 * its step, as if that had been the last one; before the first step, or the second time, it ends the run at once.  Memory that
 * runs out (core/system/watchdog.h) ends it as a first signal does. */
#include "cli/cli_signals.h"
#include "cli/commands/commands.h"
#include "cli/commands/train_internal.h"
#include "cli/options/output.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/size.h"
#include "core/system/clock.h"
#include "core/system/watchdog.h"
#include "core/trace/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- before anything is allocated --- */

/* Tokens are made here, and the longest row decides how much memory that takes: where it is more than the run will take, it is
 * the most that this process has. */
static void note_tokens(struct train *t, uint64_t before)
{
    const uint64_t peak = st_stats_rss_peak_bytes(), planned = cli_run_memory(&t->run);
    char took[24], most[24];

    if (peak == before || peak <= planned)
        return;
    t->tokens_rss_bytes = peak;
    st_log(ST_LOG_NOTICE,
           "making the tokens took %s of memory, more than the run's %s: make a token file first, with strata tokens",
           st_size_text(took, peak), st_size_text(most, planned));
}

/* What was asked for as a part of the run, or for each epoch, as Trainer counts them. */
static void count_parts(struct train *t)
{
    const uint64_t sequences = t->run.shape.world_sequences, an_epoch = (strata_data_count(t->data) + sequences - 1) / sequences;
    struct cli_args *own = &t->own;

    if (own->eval_epochs)
        own->eval_every = an_epoch;
    if (own->save_epochs)
        t->checkpoints.every = an_epoch;
    if (own->eval_part > 0)
        own->eval_every = (uint64_t)ceil((double)t->steps * own->eval_part);
    if (own->save_part > 0)
        t->checkpoints.every = (uint64_t)ceil((double)t->steps * own->save_part);
    if (own->print_part > 0)
        t->says.steps_per_print = (uint32_t)fmin(ceil((double)t->steps * own->print_part), UINT32_MAX);
}

static strata_status open_data(struct train *t)
{
    const struct cli_args *args = t->args;
    const uint64_t before = st_stats_rss_peak_bytes();
    strata_status st = cli_run_data(&t->run, &t->data, &t->eval_data);

    if (st == STRATA_OK && (args->eval_data != NULL || args->eval_datasets.count > 0))
        st = cli_run_eval_data(&t->run, &t->eval_data);
    note_tokens(t, before);
    return st == STRATA_OK ? train_count_steps(t) : st;
}

/* A run that goes on may have ended early before. */
static void recall_end(struct train *t)
{
    const bool ended = t->checkpoints.from != NULL && strata_training_stopped(t->checkpoints.was.note, t->args->early_stop);

    t->steps = ended ? cli_checkpoints_steps(&t->checkpoints) : t->steps_asked;
}

static strata_status prepare(struct train *t)
{
    const struct cli_args *args = t->args;
    strata_status st = cli_ranks_find(&t->run.ranks, args);

    if (st == STRATA_OK)
        t->own = *cli_ranks_args(&t->run.ranks, args);
    args = &t->own;
    if (st == STRATA_OK)
        cli_ranks_note_alone(&t->run.ranks);
    if (st == STRATA_OK)
        st = cli_run_configure(&t->run, args, &t->progress);
    if (st == STRATA_OK)
        st = cli_ranks_agree(&t->run.ranks, args);
    if (st == STRATA_OK && !args->quiet)
        cli_ranks_print(&t->run.ranks, people(args));
    if (st == STRATA_OK)
        st = train_before_model(t);
    if (st == STRATA_OK)
        st = cli_run_model(&t->run);
    if (st == STRATA_OK)
        st = train_before_plan(t);
    if (st == STRATA_OK)
        st = strata_plan_make(&t->run.plan, t->run.model, t->run.machine);
    if (st == STRATA_OK)
        st = open_data(t); /* which may make tokens, so that it comes last */
    if (st == STRATA_OK)
        count_parts(t);
    t->steps_asked = t->steps;
    recall_end(t);
    if (st == STRATA_OK)
        st = cli_resubmitted_compare(&t->resubmitted, &t->checkpoints, t->steps);
    if (t->run.plan != NULL && st == STRATA_E_NOFIT)
        cli_run_print_plan(&t->run, STRATA_PLAN_BRIEF, people(args));
    return st;
}

/* --- allocating --- */

static strata_status open_monitor(struct train *t)
{
    return cli_monitor_open(&t->monitor, &(struct cli_monitor_opts){
                                             .tensorboard = t->says.tensorboard,
                                             .csv = t->says.csv,
                                             .overwrite = t->args->overwrite,
                                             .goes_on = t->checkpoints.from != NULL,
                                             .again = cli_checkpoints_begins(&t->checkpoints),
                                             .scales = t->run.shape.dtype == STRATA_F16,
                                         });
}

/* Begins all outputs before the first step, under temporary names, which keeps other runs from writing them. */
static strata_status begin_outputs(struct train *t)
{
    const struct cli_args *args = t->args;
    struct strata_export_opts opts = STRATA_EXPORT_OPTS_INIT;
    const struct cli_args resumed = train_traces(args);
    strata_status st = cli_lines_create(&t->lines, args, t->checkpoints.was.metrics_bytes, t->checkpoints.was.run,
                                        cli_checkpoints_lacks_lines(&t->checkpoints));

    opts.overwrite = args->overwrite || t->resubmitted.replaces;
    if (st == STRATA_OK && speaks(t))
        st = open_monitor(t);
    if (st == STRATA_OK)
        st = cli_output_create(&t->trace, "--trace", args->trace, &resumed);
    if (st == STRATA_OK && args->out != NULL && speaks(t) &&
        (st = strata_export_open(&t->out, t->run.model, args->out, &opts)) != STRATA_OK)
        st = st_error_prefix(st, "--out");
    return st_error_at_start(st);
}

static void put_line(void *ctx, struct st_json_writer *w)
{
    const char *const *line = ctx;

    st_json_put_text(w, NULL, *line);
    st_json_end_line(w);
}

static enum strata_data_order order_of(const struct train *t)
{
    if (t->args->no_shuffle)
        return t->epoch_steps > 0 ? STRATA_DATA_EPOCHS_IN_ORDER : STRATA_DATA_CYCLE;
    return t->epoch_steps > 0 ? STRATA_DATA_EPOCHS : STRATA_DATA_SHUFFLED;
}

/* How far the run is. */
static strata_status look(struct train *t)
{
    const strata_status st = strata_training_get_info(t->training, &t->at);

    t->steps = t->at.steps;
    t->steps_done = t->at.done;
    return st;
}

static strata_status load(struct train *t)
{
    struct strata_training_opts opts = STRATA_TRAINING_OPTS_INIT;
    strata_status st;

    opts.data = t->data;
    opts.eval_data = t->eval_data;
    opts.order = order_of(t);
    opts.seed = t->args->seed;
    opts.steps = t->steps_asked;
    opts.eval_every = t->args->eval_every;
    opts.early_stop = t->args->early_stop;
    opts.state = t->args->digest;
    st = cli_checkpoints_load(&t->checkpoints, &t->run, &t->training, &opts);
    return st == STRATA_OK ? look(t) : st;
}

static strata_status take(struct train *t)
{
    const struct cli_args *args = t->args;
    const char *header;
    strata_status st = begin_outputs(t);

    if (st == STRATA_OK && args->out == NULL && t->says.save[0] == '\0' && speaks(t))
        st_log(ST_LOG_NOTICE, "neither --out DIR nor --save DIR is given: what this run learns is lost when it ends");
    cli_progress_init(&t->progress, people(args), args->quiet, t->steps, t->says.steps_per_print);
    t->progress.verbose = args->verbose;
    if (st == STRATA_OK)
        st = strata_plan_measure(t->run.plan);
    cli_progress_work_end(&t->progress);
    if (st != STRATA_OK)
        return st;
    if (!args->quiet) /* not before: with rates, or other ranks' rates, another plan may be the better one */
        cli_run_print_plan(&t->run, STRATA_PLAN_BRIEF | STRATA_PLAN_BOUNDS, people(args));
    st = cli_medians_create(&t->medians);
    if (st == STRATA_OK)
        st = st_pressure_open(&t->pressure, NULL, NULL);
    if (st == STRATA_OK)
        st = cli_run_create(&t->run);
    if (st == STRATA_OK)
        st = load(t);
    if (st == STRATA_OK)
        st = cli_lines_cut(&t->lines, t->checkpoints.was.metrics_bytes);
    if (st == STRATA_OK)
        st = strata_plan_get_info(t->run.plan, &t->planned);
    if (st == STRATA_OK)
        st = strata_engine_json(t->run.engine, t->steps, &header);
    if (st == STRATA_OK)
        st = cli_lines_begin(&t->lines, put_line, &header);
    if (st == STRATA_OK)
        st = cli_monitor_begin(&t->monitor, t->checkpoints.was.sequences);
    return st;
}

/* --- training --- */

/* A run without a lower loss for so long has had its last step, and is told so again where it resumes from there. */
static void say_evaluation(struct train *t)
{
    const struct strata_eval *eval = &t->at.eval;

    if (t->at.targets_before != 0 && speaks(t))
        st_log(ST_LOG_NOTICE,
               "this evaluation is over %llu tokens, earlier ones were over %llu: their losses are compared nevertheless",
               (unsigned long long)eval->targets, (unsigned long long)t->at.targets_before);
    if (isnan(eval->bits_per_byte))
        cli_progress_note(&t->progress, "eval after step %llu: loss %.4f, perplexity %.3f over %llu tokens",
                          (unsigned long long)t->steps_done, eval->loss, eval->perplexity, (unsigned long long)eval->targets);
    else
        cli_progress_note(&t->progress, "eval after step %llu: loss %.4f, perplexity %.3f, %.4f bits per byte over %llu tokens",
                          (unsigned long long)t->steps_done, eval->loss, eval->perplexity, eval->bits_per_byte,
                          (unsigned long long)eval->targets);
    if (t->at.ended_early && t->steps_done != t->steps_asked)
        cli_progress_note(
            &t->progress,
            "--early-stop %llu: ends after step %llu, as %llu evaluations had no lower loss than %.4f after step %llu",
            (unsigned long long)t->args->early_stop, (unsigned long long)t->steps, (unsigned long long)t->at.evals_worse,
            t->at.best_loss, (unsigned long long)t->at.best_step);
}

/* If it is due. */
static strata_status evaluate(struct train *t)
{
    const uint64_t before = t->at.evaluated_at;
    strata_status st = strata_training_evaluate(t->training);

    cli_progress_work_end(&t->progress);
    if (st == STRATA_OK)
        st = look(t);
    if (st == STRATA_OK && t->at.eval_cut) /* the run ends as well and keeps what it has learnt */
        return cli_ranks_first(&t->run.ranks, cli_signals_pending(), &t->ended_by);
    if (st == STRATA_OK && t->at.evaluated_at != before)
        say_evaluation(t);
    return st;
}

static strata_status write_line(struct train *t)
{
    const char *line;
    const strata_status st = strata_training_json(t->training, &line);

    if (st == STRATA_OK)
        cli_lines_write(&t->lines, put_line, &line);
    return st;
}

/* The line and the other places for a run's metrics. */
static strata_status report_step(struct train *t, const struct strata_metrics *step)
{
    struct strata_engine_info info = STRATA_ENGINE_INFO_INIT;
    strata_status st = strata_engine_get_info(t->run.engine, &info);

    cli_medians_add(t->medians, step);
    if (st == STRATA_OK)
        st = write_line(t);
    cli_monitor_step(&t->monitor, step, info.sequences);
    return st;
}

static strata_status one_step(struct train *t)
{
    struct strata_step result = STRATA_STEP_INIT;
    struct strata_metrics step = STRATA_METRICS_INIT;
    strata_status st = strata_training_step(t->training, &result), evaluated;

    if (st == STRATA_OK)
        st = look(t);
    if (st == STRATA_OK)
        st = strata_training_metrics(t->training, &step);
    if (st != STRATA_OK)
        return st;
    t->ended_by = t->ended_by != 0 ? t->ended_by : cli_signals_of_requests(result.requests);
    cli_progress_step(&t->progress, &step);
    if (t->no_rate_yet && result.lr > 0 && speaks(t))
        st_log(ST_LOG_NOTICE, "the warm-up begins at lr 0: no weights changed before step %llu",
               (unsigned long long)t->steps_done);
    t->no_rate_yet = result.lr == 0 && !result.skipped && (t->steps_done == 1 || t->no_rate_yet);
    evaluated = evaluate(t);
    if ((st = strata_training_metrics(t->training, &step)) == STRATA_OK)
        st = report_step(t, &step);
    if (evaluated != STRATA_OK || st != STRATA_OK)
        return evaluated != STRATA_OK ? evaluated : st;
    return strata_training_save(t->training, (result.requests & CLI_REQUEST_SAVE) != 0, (uint64_t)t->lines.metrics_bytes);
}

/* Several ranks end after the same step: once that step has told all of them. */
static bool is_over(struct train *t)
{
    if (t->run.ranks.who.ranks == 1 && t->ended_by == 0)
        t->ended_by = cli_signals_pending();
    return t->steps_done >= t->steps || t->ended_by != 0;
}

/* What a signal had cut, before the first step of the run that goes on; and a run that resumes from its last step takes none. */
static strata_status make_up_evaluation(struct train *t)
{
    const strata_status st = evaluate(t);

    if (st != STRATA_OK || t->at.evaluated_at != t->steps_done)
        return st;
    t->medians->last[STRATA_METRIC_EVAL_LOSS] = t->at.eval.loss;
    t->medians->last[STRATA_METRIC_EVAL_BITS_PER_BYTE] = t->at.eval.bits_per_byte;
    return write_line(t);
}

static void memory_runs_out(void *ctx, const char *why)
{
    (void)ctx;
    cli_signals_memory(why);
}

static strata_status start_watchdog(struct train *t)
{
    if (!t->says.watchdog)
        return STRATA_OK;
    return st_watchdog_start(
        &t->watchdog,
        &(struct st_watchdog_opts){.pressure = t->pressure, .planned_bytes = cli_run_memory(&t->run), .alarm = memory_runs_out});
}

static strata_status train_loop(struct train *t)
{
    strata_status st;

    st_pressure_sample(t->pressure, &t->pressure_first);
    t->start_ns = st_clock_ns();
    cli_signals_ask(t->checkpoints.dir[0] != '\0' ? "the run ends after this step and saves"
                    : t->args->out != NULL        ? "the run ends after this step and writes the model"
                                                  : "the run ends after this step");
    cli_signals_ranks(t->run.engine);
    st = start_watchdog(t);
    if (st == STRATA_OK)
        st = make_up_evaluation(t);
    while (st == STRATA_OK && !is_over(t))
        st = one_step(t);
    if (st == STRATA_OK)
        st = strata_training_finish(t->training, (uint64_t)t->lines.metrics_bytes);
    if (st == STRATA_OK)
        st = look(t);
    return st;
}

static strata_status run(struct train *t)
{
    strata_status st = take(t);

    if (st == STRATA_OK)
        st = train_loop(t);
    return st == STRATA_OK ? train_finish(t) : st;
}

int cmd_train(const struct cli_args *args)
{
    struct train t = {.own = *args,
                      .at = STRATA_TRAINING_INFO_INIT,
                      .planned = STRATA_PLAN_INFO_INIT,
                      .lines = CLI_LINES_NONE,
                      .monitor = CLI_MONITOR_NONE,
                      .trace = {.fd = -1}};
    strata_status st;
    int code;

    t.args = &t.own;
    st = prepare(&t);
    if (st == STRATA_OK)
        st = t.resubmitted.finished ? train_say_finished(&t) : run(&t);
    st = train_summarise(&t, st);
    st = train_write_trace(&t, st);
    cli_ranks_leave(&t.run.ranks, st);
    train_close(&t);
    code = train_exit_code(&t, st);
    strata_training_close(t.training); /* whose texts it has said */
    cli_run_close(&t.run);             /* under an mpirun that ends its ranks MPI may not return from here */
    return code;
}

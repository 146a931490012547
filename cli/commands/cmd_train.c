/* cli/commands/cmd_train.c - plans, prints the plan, allocates, trains, writes the model.
 *
 * Nothing is created on disk, tokens and metrics included, before the plan is known to fit.  The first signal ends the run after
 * its step, as if that had been the last one; before the first step, or the second time, it ends the run at once.  Memory that
 * runs out (core/system/watchdog.h) ends it as a first signal does. */
#include "api/handles.h"
#include "api/plan_report.h"
#include "cli/cli_signals.h"
#include "cli/commands/commands.h"
#include "cli/commands/finished.h"
#include "cli/commands/lines.h"
#include "cli/commands/monitor.h"
#include "cli/commands/saves.h"
#include "cli/options/output.h"
#include "cli/run.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/base/print.h"
#include "core/base/size.h"
#include "core/base/wrap.h"
#include "core/system/clock.h"
#include "core/system/ending.h"
#include "core/system/pressure.h"
#include "core/system/watchdog.h"
#include "core/trace/stats.h"
#include "core/trace/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct train {
    const struct cli_args *args; /* borrowed */
    struct cli_run run;
    struct strata_data *data, *eval_data;
    int32_t *tokens, *targets; /* [step_sequences * seq_len] */
    int32_t *positions;        /* the same, where sequences hold documents; else NULL */
    struct cli_progress progress;
    struct cli_medians *medians;
    struct cli_saves saves;       /* --save, --resume */
    struct cli_finished finished; /* a run that has ended before */
    struct cli_lines lines;       /* --metrics, --json */
    struct cli_monitor monitor;   /* "tensorboard", "csv_monitor" */
    struct st_new_file trace;     /* --trace */
    struct strata_export *out;    /* --out */
    struct st_watchdog *watchdog; /* NULL: strata.watchdog is off */
    struct st_pressure *pressure;
    struct st_pressure_sample pressure_first, pressure_last; /* before the first step; before the next one */
    uint64_t sampled_ns;                                     /* time of the last sample */
    uint64_t steps, epoch_steps;                             /* of the run; of an epoch, 0: steps do not end with epochs */
    uint64_t steps_done, evaluated_at, start_ns;
    struct strata_eval eval;
    bool eval_cut; /* a signal ended an evaluation */
    int ended_by;  /* the signal, or CLI_SIGNAL_MEMORY, that ended the run, of any rank; 0: none */
    struct cli_summary summary;
};

/* Rank 0 prints, and writes the results. */
static bool speaks(const struct train *t)
{
    return t->run.ranks.who.rank == 0;
}

/* --- before anything is allocated --- */

/* Puts the directory of `path` into buf. */
static void parent_of(char *buf, size_t bytes, const char *path)
{
    size_t length = strlen(path);
    char *slash;

    while (length > 1 && path[length - 1] == '/')
        length--;
    snprintf(buf, bytes, "%.*s", (int)length, path);
    slash = strrchr(buf, '/');
    if (slash == NULL)
        snprintf(buf, bytes, ".");
    else if (slash == buf)
        buf[1] = '\0';
    else
        *slash = '\0';
}

/* Hours of training must not end with "no such directory". */
static strata_status check_out(const struct train *t)
{
    const struct cli_args *args = t->args;
    const char *path = args->out;
    char parent[4096];
    struct stat info;

    if (path == NULL || !speaks(t) || t->finished.asked)
        return STRATA_OK;
    if (!st_fault_refuses("out.stat") && stat(path, &info) == 0 && !S_ISDIR(info.st_mode))
        return st_error(STRATA_E_INPUT, "--out %s: is a file, not a directory", path);
    if (!st_fault_refuses("out.access") && access(path, W_OK) == 0)
        return cli_output_check_dir("--out", path, args);
    if (errno != ENOENT)
        return st_error_errno(errno, "--out %s: cannot be written", path);
    if (lstat(path, &info) == 0)
        return st_error(STRATA_E_INPUT, "--out %s: is a dangling link: make the directory that it names, or name another", path);
    parent_of(parent, sizeof(parent), path);
    if (st_fault_refuses("out.parent") || access(parent, W_OK) != 0)
        return st_error_errno(errno, "--out %s: cannot be created in %s", path, parent);
    return STRATA_OK;
}

/* As Hugging Face's Trainer counts them: an epoch ends with a smaller step, and a part of an epoch is rounded up to whole
 * steps. */
static strata_status count_steps(struct train *t)
{
    const uint64_t sequences = t->run.shape.world_sequences;

    t->steps = t->args->max_steps;
    if (t->args->epochs == 0)
        return STRATA_OK;
    t->epoch_steps = (strata_data_count(t->data) + sequences - 1) / sequences;
    t->steps = (uint64_t)ceil(t->args->epochs * (double)t->epoch_steps);
    return strata_model_set_steps(t->run.model, t->steps);
}

static strata_status open_data(struct train *t)
{
    const struct cli_args *args = t->args;
    strata_status st = cli_run_data(&t->run, &t->data, args->data.items, args->data.count);

    if (st == STRATA_OK && args->eval_data != NULL)
        st = cli_run_data(&t->run, &t->eval_data, (const char *const *)&args->eval_data, 1);
    return st == STRATA_OK ? count_steps(t) : st;
}

static FILE *people(const struct cli_args *args)
{
    return args->json ? stderr : stdout;
}

/* A run that resumes has a trace of its own, beside those of its earlier parts. */
static struct cli_args traces(const struct cli_args *args)
{
    struct cli_args resumed = *args;

    resumed.overwrite = args->overwrite || args->resume != NULL;
    return resumed;
}

static strata_status prepare(struct train *t)
{
    const struct cli_args *args = t->args;
    struct cli_args resumed;
    strata_status st = cli_ranks_find(&t->run.ranks, args);

    if (st == STRATA_OK)
        args = t->args = cli_ranks_args(&t->run.ranks, args);
    resumed = traces(args);
    if (st == STRATA_OK)
        st = cli_run_configure(&t->run, args, &t->progress);
    if (st == STRATA_OK)
        st = cli_ranks_agree(&t->run.ranks, args);
    if (st == STRATA_OK && !args->quiet)
        cli_ranks_print(&t->run.ranks, people(args));

    if (st == STRATA_OK && args->eval_every != 0 && args->eval_data == NULL)
        st = st_error(STRATA_E_INVAL, "--eval-every needs --eval-data FILE");
    if (st == STRATA_OK && args->ops && args->trace == NULL)
        st = st_error(STRATA_E_INVAL, "--ops needs --trace FILE.json; strata bench step --ops prints the ops as a table");
    if (st == STRATA_OK)
        st = cli_saves_prepare(&t->saves, args, t->run.config->values.save, t->run.config->values.save_every);
    if (st == STRATA_OK)
        st = cli_saves_keep_step(&t->saves, &t->run);
    t->run.saved_checkpoints = cli_saves_kept(&t->saves);
    t->run.replaces = st == STRATA_OK && cli_saves_replace(&t->saves);
    if (st == STRATA_OK && args->max_steps != 0 && cli_saves_steps(&t->saves) > args->max_steps)
        st = st_error(STRATA_E_INVAL, "--max-steps %" PRIu64 ": the checkpoint has %" PRIu64 " steps behind it already",
                      args->max_steps, cli_saves_steps(&t->saves));
    if (st == STRATA_OK)
        st = cli_run_model(&t->run);
    if (st == STRATA_OK)
        cli_finished_ask(&t->finished, &t->saves);
    if (st == STRATA_OK)
        st = check_out(t);
    if (st == STRATA_OK)
        st = cli_lines_check(args, t->saves.was.metrics_bytes, cli_saves_begins(&t->saves));
    if (st == STRATA_OK)
        st = cli_output_check("--trace", args->trace, &resumed);
    if (st == STRATA_OK)
        st = strata_plan_make(&t->run.plan, t->run.model);
    if (st == STRATA_OK)
        st = open_data(t); /* which may make tokens, so that it comes last */
    if (st == STRATA_OK)
        st = cli_finished_compare(&t->finished, &t->saves, t->steps);
    if (t->run.plan != NULL && ((st == STRATA_OK && !args->quiet && !t->finished.finished) || st == STRATA_E_NOFIT))
        st_plan_print(t->run.plan, false, people(args));
    return st;
}

/* --- allocating --- */

static strata_status open_monitor(struct train *t)
{
    const struct st_config *c = &t->run.config->values;

    return cli_monitor_open(&t->monitor,
                            &(struct cli_monitor_opts){
                                .tensorboard = {c->tensorboard.enabled, c->tensorboard.output_path, c->tensorboard.job_name},
                                .csv = {c->csv_monitor.enabled, c->csv_monitor.output_path, c->csv_monitor.job_name},
                                .overwrite = t->args->overwrite,
                                .goes_on = t->saves.from != NULL,
                                .again = cli_saves_begins(&t->saves),
                                .scales = st_model_workload(t->run.model->model)->dtype == STRATA_F16,
                            });
}

/* Begins all outputs before the first step, under temporary names, which keeps other runs from writing them. */
static strata_status begin_outputs(struct train *t)
{
    const struct cli_args *args = t->args;
    struct strata_export_opts opts = STRATA_EXPORT_OPTS_INIT;
    const struct cli_args resumed = traces(args);
    strata_status st = cli_lines_create(&t->lines, args, t->saves.was.metrics_bytes, cli_saves_begins(&t->saves));

    opts.overwrite = args->overwrite;
    if (st == STRATA_OK && speaks(t))
        st = open_monitor(t);
    if (st == STRATA_OK)
        st = cli_output_create(&t->trace, "--trace", args->trace, &resumed);
    if (st == STRATA_OK && args->out != NULL && speaks(t) &&
        (st = strata_export_open(&t->out, t->run.model, args->out, &opts)) != STRATA_OK)
        st = st_error_prefix(st, "--out");
    return st == STRATA_E_NOSPC ? STRATA_E_NOFIT : st; /* no room at the start */
}

static void put_header(void *ctx, struct st_json_writer *w)
{
    const struct train *t = ctx;

    cli_metrics_header(w, t->run.engine, t->steps);
}

static void put_step(void *ctx, struct st_json_writer *w)
{
    cli_metrics_step(w, ctx);
}

static void put_summary(void *ctx, struct st_json_writer *w)
{
    const struct train *t = ctx;

    cli_metrics_summary(w, t->medians, &t->summary);
}

static strata_status create_batch(struct train *t)
{
    const size_t tokens = (size_t)t->run.shape.step_sequences * t->run.shape.seq_len;

    t->tokens = calloc(tokens, sizeof(*t->tokens));
    t->targets = calloc(tokens, sizeof(*t->targets));
    t->positions = t->run.documents ? calloc(tokens, sizeof(*t->positions)) : NULL;
    if (t->tokens != NULL && t->targets != NULL && (t->positions != NULL || !t->run.documents))
        return STRATA_OK;
    return st_error(STRATA_E_NOMEM, "no memory for the tokens of %u sequences", t->run.shape.step_sequences);
}

static enum strata_data_order order_of(const struct train *t)
{
    return t->epoch_steps > 0 ? STRATA_DATA_EPOCHS : STRATA_DATA_SHUFFLED;
}

static strata_status take(struct train *t)
{
    const struct cli_args *args = t->args;
    strata_status st = begin_outputs(t);

    cli_progress_init(&t->progress, people(args), args->quiet, t->steps, t->run.config->values.steps_per_print);
    if (st == STRATA_OK)
        st = strata_plan_measure(t->run.plan);
    cli_progress_work_end(&t->progress);
    if (st != STRATA_OK)
        return st;
    if (!args->quiet)
        st_bounds_print(t->run.plan, people(args));
    st = cli_medians_create(&t->medians);
    if (st == STRATA_OK)
        st = st_pressure_open(&t->pressure, NULL, NULL);
    if (st == STRATA_OK)
        st = create_batch(t);
    if (st == STRATA_OK)
        st = cli_run_create(&t->run);
    if (st == STRATA_OK)
        st = cli_saves_load(&t->saves, &t->run, t->data, order_of(t));
    t->steps_done = cli_saves_steps(&t->saves);
    if (st == STRATA_OK)
        st = cli_lines_cut(&t->lines, t->saves.was.metrics_bytes);
    if (st == STRATA_OK)
        st = cli_lines_begin(&t->lines, put_header, t);
    if (st == STRATA_OK)
        st = cli_monitor_begin(&t->monitor, t->saves.was.sequences);
    return st;
}

/* --- training --- */

static strata_status evaluate(struct train *t, struct cli_step *step)
{
    strata_status st;

    if (t->evaluated_at == t->steps_done)
        return STRATA_OK;
    st = strata_engine_eval_data(t->run.engine, t->eval_data, &t->eval);
    cli_progress_work_end(&t->progress);
    t->eval_cut = st == STRATA_E_CANCELLED;
    if (t->eval_cut)
        return cli_ranks_first(&t->run.ranks, cli_signals_pending(),
                               &t->ended_by); /* the run ends as well and keeps what it has learnt */
    if (st != STRATA_OK)
        return st;
    t->evaluated_at = t->steps_done;
    if (step != NULL) {
        step->value[CLI_EVAL_LOSS] = t->eval.loss;
        step->value[CLI_EVAL_BITS_PER_BYTE] = t->eval.bits_per_byte;
    }
    if (isnan(t->eval.bits_per_byte))
        cli_progress_note(&t->progress, "eval after step %llu: loss %.4f, perplexity %.3f over %llu tokens",
                          (unsigned long long)t->steps_done, t->eval.loss, t->eval.perplexity,
                          (unsigned long long)t->eval.targets);
    else
        cli_progress_note(&t->progress, "eval after step %llu: loss %.4f, perplexity %.3f, %.4f bits per byte over %llu tokens",
                          (unsigned long long)t->steps_done, t->eval.loss, t->eval.perplexity, t->eval.bits_per_byte,
                          (unsigned long long)t->eval.targets);
    return STRATA_OK;
}

/* Whether an evaluation is due after this step: after the last one, or every --eval-every steps. */
static bool eval_due(const struct train *t)
{
    const uint64_t every = t->args->eval_every;

    if (t->eval_data == NULL)
        return false;
    return t->steps_done == t->steps || (every != 0 && t->steps_done % every == 0);
}

static void sample_pressure(struct train *t, struct st_pressure_sample *out)
{
    st_pressure_sample(t->pressure, out);
    t->sampled_ns = st_clock_ns();
}

/* Fills in the memory pressure since the last sample and takes a new one. */
static void watch_step(struct train *t, struct cli_step *step)
{
    const struct st_pressure_sample before = t->pressure_last;
    const uint64_t since_ns = t->sampled_ns;
    struct st_pressure_verdict verdict;

    sample_pressure(t, &t->pressure_last);
    st_pressure_between(&before, &t->pressure_last, (double)(t->sampled_ns - since_ns) * 1e-9, &verdict);
    cli_step_pressure(step, &verdict);
}

/* Passes over the data so far. */
static double epochs_done(const struct train *t)
{
    if (t->epoch_steps > 0)
        return (double)t->steps_done / (double)t->epoch_steps;
    return (double)(t->steps_done * t->run.shape.world_sequences) / (double)strata_data_count(t->data);
}

static strata_status one_step(struct train *t)
{
    const struct strata_model_info *shape = &t->run.shape;
    struct strata_step result = STRATA_STEP_INIT;
    struct strata_engine_info info = STRATA_ENGINE_INFO_INIT;
    struct cli_step step;
    strata_status st = strata_engine_get_info(t->run.engine, &info);

    if (st == STRATA_OK)
        st = strata_data_read_part(t->data, order_of(t), t->args->seed, info.sequences, shape->world_sequences,
                                   shape->rank * shape->step_sequences, shape->step_sequences, t->tokens, t->targets,
                                   t->positions);
    if (st == STRATA_OK)
        st = cli_saves_next(&t->saves, &t->run, t->steps_done + 1, t->steps);
    if (st == STRATA_OK)
        st = strata_engine_step(t->run.engine, t->tokens, t->targets, t->positions, &result);
    if (st != STRATA_OK)
        return st;
    t->steps_done++;
    t->ended_by = t->ended_by != 0 ? t->ended_by : cli_signals_of_requests(result.requests);
    cli_step_fill(&step, t->run.plan, t->data, &result, t->steps_done, t->steps_done * shape->world_sequences * shape->seq_len);
    step.value[CLI_EPOCH] = epochs_done(t);
    watch_step(t, &step);
    cli_progress_step(&t->progress, &step);
    if (eval_due(t)) {
        st = evaluate(t, &step);
        sample_pressure(t, &t->pressure_last);
    }
    cli_medians_add(t->medians, &step);
    cli_lines_write(&t->lines, put_step, &step);
    cli_monitor_step(&t->monitor, &step, info.sequences + shape->world_sequences);
    if (st == STRATA_OK && t->steps_done < t->steps)
        st = cli_saves_step(&t->saves, &t->run, t->steps_done, (uint64_t)t->lines.metrics_bytes,
                            (result.requests & CLI_REQUEST_SAVE) != 0);
    return st;
}

/* Checks that the trained model is worth writing. */
static strata_status check_learnt(const struct train *t)
{
    strata_status st = strata_engine_check(t->run.engine);

    if (st == STRATA_OK && t->evaluated_at == t->steps_done && !isfinite(t->eval.loss))
        st = st_error(
            STRATA_E_NUMERICS,
            "the held-out loss after step %llu is not finite: the weights have diverged, or were not finite to begin with",
            (unsigned long long)t->steps_done);
    return st;
}

/* Several ranks end after the same step: once that step has told all of them. */
static bool is_over(struct train *t)
{
    if (t->run.ranks.who.ranks == 1 && t->ended_by == 0)
        t->ended_by = cli_signals_pending();
    return t->steps_done >= t->steps || t->ended_by != 0;
}

/* Whether a signal ended the run before everything was done. */
static bool is_short(const struct train *t)
{
    return t->steps_done < t->steps || t->eval_cut;
}

static void memory_runs_out(void *ctx, const char *why)
{
    (void)ctx;
    cli_signals_memory(why);
}

static strata_status start_watchdog(struct train *t)
{
    if (!t->run.config->values.watchdog)
        return STRATA_OK;
    return st_watchdog_start(&t->watchdog,
                             &(struct st_watchdog_opts){.planned_bytes = cli_run_memory(&t->run), .alarm = memory_runs_out});
}

static strata_status train_loop(struct train *t)
{
    strata_status st;

    sample_pressure(t, &t->pressure_first);
    t->pressure_last = t->pressure_first;
    t->start_ns = t->sampled_ns;
    cli_signals_ask(t->saves.dir[0] != '\0' ? "the run ends after this step and saves; a second signal ends it now"
                    : t->args->out != NULL  ? "the run ends after this step and writes the model; a second signal ends it now"
                                            : "the run ends after this step; a second signal ends it now");
    cli_signals_ranks(t->run.engine);
    st = start_watchdog(t);
    while (st == STRATA_OK && !is_over(t))
        st = one_step(t);
    if (st == STRATA_OK)
        st = strata_engine_flush(t->run.engine);
    if (st == STRATA_OK)
        st = check_learnt(t);
    return st == STRATA_OK ? cli_saves_end(&t->saves, &t->run, t->steps_done, (uint64_t)t->lines.metrics_bytes) : st;
}

/* --- the end --- */

/* A run that was ended early and is saved goes on later, by the same command line: then it writes its model. */
static bool waits_for_resume(const struct train *t)
{
    return is_short(t) && t->saves.newest[0] != '\0';
}

static strata_status write_model(struct train *t)
{
    struct strata_export *out = t->out;
    strata_status st;

    if (t->args->out == NULL || t->steps_done == 0 || waits_for_resume(t))
        return STRATA_OK;
    t->out = NULL; /* taken */
    if ((st = strata_engine_export(t->run.engine, out)) == STRATA_OK)
        cli_progress_note(&t->progress, "model written to %s", t->args->out);
    return st;
}

static void print_digests(const struct train *t)
{
    if (t->summary.weights_digest[0] != '\0' && speaks(t))
        st_print(people(t->args), "weights_digest %s\nstate_digest   %s\n", t->summary.weights_digest, t->summary.state_digest);
}

/* What took the memory, and what would take less. */
static void print_memory(struct train *t)
{
    const uint64_t *least = t->run.plan->plan->minimum;
    char peak[24], planned[24], host[24], device[24];
    FILE *file = people(t->args);

    cli_progress_work_end(&t->progress);
    st_plan_print(t->run.plan, true, file);
    st_wrap_print(file,
                  "this process has held %s at most, of %s planned: give it more memory, end what else takes it there, or lower "
                  "--host-memory (to %s at least) and, on the cpu device, --device-memory (%s); with strata.watchdog false a run "
                  "goes on until the kernel ends it\n",
                  st_size_text(peak, st_stats_rss_peak_bytes()), st_size_text(planned, cli_run_memory(&t->run)),
                  st_size_text(host, least[STRATA_TIER_HOST]), st_size_text(device, least[STRATA_TIER_DEVICE]));
}

static strata_status finish_run(struct train *t)
{
    strata_status st = STRATA_OK;

    if (t->args->digest)
        st = strata_engine_digest(t->run.engine, t->summary.weights_digest, t->summary.state_digest);
    if (st == STRATA_OK)
        st = write_model(t);
    if (is_short(t) && cli_signals_pending() == CLI_SIGNAL_MEMORY)
        print_memory(t);
    if (st == STRATA_OK)
        st = cli_saves_status(&t->saves);
    if (st == STRATA_OK && is_short(t))
        st = st_error(STRATA_E_CANCELLED, "ended by %s", cli_signals_name(t->ended_by));
    return st;
}

/* Memory pressure over all steps and the evaluations between them; unknown if no step began. */
static void summarise_pressure(struct train *t)
{
    struct st_pressure_sample now;

    st_pressure_sample(t->start_ns != 0 ? t->pressure : NULL, &now);
    st_pressure_between(&t->pressure_first, &now, t->summary.seconds, &t->summary.pressure);
}

/* The error sentence must survive the work that follows it. */
static strata_status summarise(struct train *t, strata_status st)
{
    char sentence[CLI_SENTENCE_BYTES];
    strata_status written;

    if (!t->lines.begun)
        return st;
    snprintf(sentence, sizeof(sentence), "%s", strata_last_error());
    t->summary.status = st;
    t->summary.peak_rss_bytes = st_stats_rss_peak_bytes();
    t->summary.rss_bytes_max = cli_run_memory(&t->run);
    t->summary.seconds = (double)(st_clock_ns() - t->start_ns) * 1e-9;
    summarise_pressure(t);
    cli_lines_write(&t->lines, put_summary, t);
    cli_progress_summary(&t->progress, &t->run.plan->figures, t->medians, &t->summary);
    print_digests(t);
    cli_lines_end(&t->lines);
    written = cli_monitor_end(&t->monitor);
    if (st != STRATA_OK)
        return st_error(st, "%s", sentence);
    return written == STRATA_OK ? cli_lines_status(&t->lines) : written;
}

/* The trace is written however the run ended; the first failure is the one that counts. */
static strata_status write_trace(struct train *t, strata_status st)
{
    const char *path = t->args->trace;
    char sentence[1024];
    strata_status written;

    if (path == NULL || !t->lines.begun)
        return st;
    snprintf(sentence, sizeof(sentence), "%s", strata_last_error());
    written = t->args->overwrite || t->args->resume == NULL ? STRATA_OK : cli_output_set_aside("--trace", path);
    if (written == STRATA_OK && (written = st_engine_trace_write(t->run.engine->engine, &t->trace)) != STRATA_OK)
        written = st_error_prefix(written, "--trace");
    if (written == STRATA_OK)
        cli_progress_note(&t->progress, "trace written to %s", path);
    return st != STRATA_OK ? st_error(st, "%s", sentence) : written;
}

static void train_close(struct train *t)
{
    st_watchdog_stop(t->watchdog);
    cli_signals_ranks(NULL);
    cli_run_close(&t->run);
    cli_saves_close(&t->saves);
    cli_progress_fini(&t->progress);
    free(t->tokens);
    free(t->targets);
    free(t->positions);
    strata_data_close(t->data);
    strata_data_close(t->eval_data);
    st_pressure_close(t->pressure);
    free(t->medians);
    strata_export_abort(t->out);
    st_new_file_abort(&t->trace);
    cli_lines_close(&t->lines);
    cli_monitor_close(&t->monitor);
}

static int exit_code(const struct train *t, strata_status st)
{
    const char *out = t->args->out;
    const bool written = out != NULL && t->steps_done > 0 && !waits_for_resume(t);

    if (st == STRATA_OK)
        return 0;
    if (st != STRATA_E_CANCELLED || t->ended_by == 0)
        return cli_fail(st);
    if (!speaks(t))
        return cli_signals_exit_code(t->ended_by);
    st_wrap_print(stderr, "strata: %sended by %s after %" PRIu64 " of %" PRIu64 " steps; no swap files are left%s%s%s%s\n",
                  t->ended_by == CLI_SIGNAL_MEMORY ? "error: " : "", cli_signals_name(t->ended_by), t->steps_done, t->steps,
                  out == NULL ? ""
                  : !written  ? ", --out was not written"
                              : ", the model is in ",
                  written ? out : "", t->saves.newest[0] != '\0' ? ", --resume goes on from " : "", t->saves.newest);
    return cli_signals_exit_code(t->ended_by);
}

static strata_status run(struct train *t)
{
    strata_status st = take(t);

    if (st == STRATA_OK)
        st = train_loop(t);
    return st == STRATA_OK ? finish_run(t) : st;
}

static strata_status say_finished(struct train *t)
{
    const struct cli_args *args = t->args;

    st_wrap_print(people(args), "--resume auto: %s is of the last step, and %s holds its model: nothing is left to do\n",
                  t->saves.was.path, args->out);
    if (!args->digest)
        return STRATA_OK;
    memcpy(t->summary.weights_digest, t->finished.weights, sizeof(t->finished.weights));
    memcpy(t->summary.state_digest, t->finished.state, sizeof(t->finished.state));
    print_digests(t);
    return STRATA_OK;
}

int cmd_train(const struct cli_args *args)
{
    struct train t = {.args = args,
                      .eval = STRATA_EVAL_INIT,
                      .evaluated_at = UINT64_MAX,
                      .lines = CLI_LINES_NONE,
                      .monitor = CLI_MONITOR_NONE,
                      .trace = {.fd = -1}};
    strata_status st = prepare(&t);

    if (st == STRATA_OK)
        st = t.finished.finished ? say_finished(&t) : run(&t);
    st = summarise(&t, st);
    st = write_trace(&t, st);
    cli_ranks_leave(&t.run.ranks, st);
    train_close(&t);
    return exit_code(&t, st);
}

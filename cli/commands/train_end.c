/* cli/commands/train_end.c - the end of `strata train`, however it came: digests and model, summary, trace, the exit code. */
#include "cli/cli_signals.h"
#include "cli/commands/commands.h"
#include "cli/commands/train_internal.h"
#include "cli/options/output.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/print.h"
#include "core/base/size.h"
#include "core/base/wrap.h"
#include "core/system/clock.h"
#include "core/system/watchdog.h"
#include "core/trace/stats.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A run that was ended early and is saved goes on later, by the same command line: then it writes its model. */
static bool waits_for_resume(const struct train *t)
{
    return is_short(t) && newest(t)[0] != '\0';
}

/* What --out is given: the model, or the adapter that was trained beside it. */
static const char *written_thing(const struct train *t)
{
    return t->resubmitted.adapter ? "adapter" : "model";
}

/* Whether --out is given what was trained; of all ranks alike. */
static bool writes_out(const struct train *t)
{
    return t->args->out != NULL && t->steps_done > 0 && !waits_for_resume(t);
}

static strata_status write_model(struct train *t)
{
    struct strata_export *out = t->out;
    strata_status st;

    if (!writes_out(t))
        return STRATA_OK;
    t->out = NULL; /* taken */
    if ((st = strata_engine_export(t->run.engine, out)) == STRATA_OK)
        cli_progress_note(&t->progress, "%s written to %s", written_thing(t), t->args->out);
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
    const uint64_t *least = t->planned.least_bytes;
    char peak[24], planned[24], host[24], device[24];
    FILE *file = people(t->args);

    cli_progress_work_end(&t->progress);
    cli_run_print_plan(&t->run, STRATA_PLAN_FULL, file);
    st_wrap_print(file,
                  "this process held at most %s of memory, of %s planned. Give it more, or lower --host-memory (%s at least) "
                  "and, on cpu, --device-memory (%s)\n",
                  st_size_text(peak, st_stats_rss_peak_bytes()), st_size_text(planned, cli_run_memory(&t->run)),
                  st_size_text(host, least[STRATA_TIER_HOST]), st_size_text(device, least[STRATA_TIER_DEVICE]));
}

/* The last checkpoint failed, and --out was written: the same job, submitted again, is told so. */
static void keep_unsaved(struct train *t)
{
    struct cli_unsaved u = {.step = t->steps_done, .steps = t->steps_asked};
    struct strata_engine_info info = STRATA_ENGINE_INFO_INIT;
    strata_status st = strata_engine_digest(t->run.engine, u.weights, u.state);

    if (st == STRATA_OK)
        st = strata_engine_get_info(t->run.engine, &info);
    if (!speaks(t))
        return;
    snprintf(u.run, sizeof(u.run), "%s", info.run);
    if (st == STRATA_OK)
        st = cli_unsaved_digest(u.out, t->args->out, t->resubmitted.adapter);
    if (st == STRATA_OK)
        st = cli_unsaved_write(&u, t->checkpoints.dir);
    if (st != STRATA_OK)
        st_log(ST_LOG_WARN, "%s: --resume auto will not know that %s is this run's", strata_last_error(), t->args->out);
}

strata_status train_finish(struct train *t)
{
    strata_status st = STRATA_OK;

    if (t->args->digest)
        st = strata_engine_digest(t->run.engine, t->summary.weights_digest, t->summary.state_digest);
    if (st == STRATA_OK)
        st = write_model(t);
    if (is_short(t) && cli_signals_pending() == CLI_SIGNAL_MEMORY)
        print_memory(t);
    if (st == STRATA_OK && t->at.save_failed && writes_out(t))
        keep_unsaved(t);
    else if (st == STRATA_OK && t->checkpoints.dir[0] != '\0' && speaks(t))
        cli_unsaved_remove(t->checkpoints.dir);
    if (st == STRATA_OK)
        st = cli_checkpoints_status(&t->checkpoints, &t->at);
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

static void put_summary(void *ctx, struct st_json_writer *w)
{
    const struct train *t = ctx;

    cli_metrics_summary(w, t->medians, &t->summary);
}

/* The first failure is the one that counts; a later one is said. */
static strata_status first_of(strata_status first, const struct st_sentence *sentence, strata_status later)
{
    if (first == STRATA_OK)
        return later;
    if (later != STRATA_OK)
        st_log(ST_LOG_WARN, "%s", strata_last_error());
    return st_error_again(first, sentence);
}

/* The error sentence must survive the work that follows it. */
strata_status train_summarise(struct train *t, strata_status st)
{
    struct strata_engine_info info = STRATA_ENGINE_INFO_INIT;
    struct st_sentence sentence;
    strata_status written;

    if (!t->lines.begun)
        return st;
    st_error_keep(&sentence);
    t->summary.status = st;
    t->summary.peak_rss_bytes = st_stats_rss_peak_bytes();
    t->summary.rss_bytes_max = t->tokens_rss_bytes > 0 ? t->tokens_rss_bytes : cli_run_memory(&t->run);
    (void)!strata_engine_get_info(t->run.engine, &info); /* all 0 without an engine */
    t->summary.write_bytes = info.write_bytes;
    t->summary.early = t->planned.early_pages > 0 ? &info : NULL;
    t->summary.run = t->at;
    t->summary.seconds = t->start_ns != 0 ? (double)(st_clock_ns() - t->start_ns) * 1e-9 : 0; /* no step has begun */
    summarise_pressure(t);
    cli_lines_write(&t->lines, put_summary, t);
    cli_progress_summary(&t->progress, &t->planned, t->medians, &t->summary);
    print_digests(t);
    cli_lines_end(&t->lines);
    written = cli_monitor_end(&t->monitor);
    return first_of(st, &sentence, written == STRATA_OK ? cli_lines_status(&t->lines) : written);
}

static strata_status put_trace(struct train *t)
{
    strata_status st = st_new_file_stream(&t->trace);

    if (st == STRATA_OK)
        st = strata_engine_write_trace(t->run.engine, t->trace.stream);
    if (st == STRATA_OK)
        return st_new_file_commit(&t->trace);
    st_new_file_abort(&t->trace);
    return st;
}

/* The trace is written however the run ended. */
strata_status train_write_trace(struct train *t, strata_status st)
{
    const char *path = t->args->trace;
    struct st_sentence sentence;
    strata_status written;

    if (path == NULL || !t->lines.begun)
        return st;
    st_error_keep(&sentence);
    written = t->args->overwrite || t->args->resume == NULL ? STRATA_OK : cli_output_set_aside("--trace", path);
    if (written == STRATA_OK && (written = put_trace(t)) != STRATA_OK)
        written = st_error_prefix(written, "--trace");
    if (written == STRATA_OK)
        cli_progress_note(&t->progress, "trace written to %s", path);
    return first_of(st, &sentence, written);
}

void train_close(struct train *t)
{
    st_watchdog_stop(t->watchdog);
    cli_signals_ranks(NULL);
    cli_run_end(&t->run);
    cli_checkpoints_close(&t->checkpoints);
    cli_progress_fini(&t->progress);
    strata_data_close(t->data);
    strata_data_close(t->eval_data);
    st_pressure_close(t->pressure);
    free(t->medians);
    strata_export_abort(t->out);
    st_new_file_abort(&t->trace);
    cli_lines_close(&t->lines);
    cli_monitor_close(&t->monitor);
}

/* What is there of a run that was ended early, behind a comma. */
static void print_kept(const struct train *t, FILE *file)
{
    const char *out = t->args->out;

    if (out != NULL && writes_out(t))
        st_print(file, ", the %s is in %s", written_thing(t), out);
    else if (out != NULL)
        st_print_text(file, ", --out was not written");
    if (newest(t)[0] != '\0')
        st_print(file, ", --resume goes on from %s", newest(t));
    else if (out == NULL && t->checkpoints.dir[0] == '\0' && t->steps_done > 0)
        st_print_text(file, ", and nothing was kept: neither --save nor --out was given");
}

int train_exit_code(const struct train *t, strata_status st)
{
    FILE *file;

    if (st == STRATA_OK)
        return 0;
    if (st != STRATA_E_CANCELLED || t->ended_by == 0)
        return cli_fail(st);
    if (!speaks(t))
        return cli_signals_exit_code(t->ended_by);
    file = st_wrap_open(stderr);
    st_print(file, "strata: %sended by %s after %" PRIu64 " of %" PRIu64 " steps; nothing unfinished is left",
             t->ended_by == CLI_SIGNAL_MEMORY ? "error: " : "", cli_signals_name(t->ended_by), t->steps_done, t->steps);
    print_kept(t, file);
    st_print_text(file, "\n");
    st_wrap_close(file, stderr);
    return cli_signals_exit_code(t->ended_by);
}

strata_status train_say_finished(struct train *t)
{
    const struct cli_args *args = t->args;

    if (speaks(t) && cli_checkpoints_steps(&t->checkpoints) != t->steps)
        st_wrap_print(
            people(args),
            "--resume auto: %s holds the %s of the last step, whose checkpoint could not be made: nothing is left to do\n",
            args->out, written_thing(t));
    else if (speaks(t))
        st_wrap_print(people(args), "--resume auto: %s is of the last step, and %s holds its %s: nothing is left to do\n",
                      t->checkpoints.was.path, args->out, written_thing(t));
    if (!args->digest)
        return STRATA_OK;
    memcpy(t->summary.weights_digest, t->resubmitted.weights, sizeof(t->resubmitted.weights));
    memcpy(t->summary.state_digest, t->resubmitted.state, sizeof(t->resubmitted.state));
    print_digests(t);
    return STRATA_OK;
}

/* api/door_train.c - strata/train.h: a whole run over an engine.
 *
 * All it does is call the public functions of the engine, the data and checkpoints, and remember how far the run is. */
#include "api/handles.h"
#include "api/metrics.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/system/clock.h"
#include "core/trace/metrics_put.h"
#include "run/losses.h"
#include "strata/strata.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct strata_training {
    struct strata_engine *engine;
    struct strata_training_opts opts;
    struct strata_model_info shape;
    struct strata_plan_info planned;
    int32_t *tokens, *targets, *positions; /* [step_sequences * seq_len]; positions: NULL where sequences hold one document */
    struct st_pressure *pressure;
    struct st_pressure_sample pressure_last; /* before the next step */
    uint64_t sampled_ns;
    uint64_t steps, done;
    struct strata_metrics metrics; /* of the last step */
    bool stepped;                  /* there was one */
    struct st_losses losses;
    /* evaluations */
    struct st_evals evals;
    struct strata_eval eval;
    uint64_t evaluated_at; /* UINT64_MAX: never */
    uint64_t targets_before;
    bool eval_cut, make_up; /* one that was due was cut short: by this run; by the one before */
    bool best_now;
    /* checkpoints */
    struct strata_save_opts save;
    struct strata_saved last;
    char note[ST_EVALS_NOTE_MAX];
    uint64_t saved_at; /* steps done at the last save */
    bool under_way;    /* a save is not known to be whole */
    bool failed;       /* the last one did, and why */
    char sentence[1024], newest[ST_PATH_MAX];
    char *json;
};

static const struct strata_model *model_of(const struct strata_training *t)
{
    return t->engine->plan->model;
}

/* Rank 0 says what all ranks have to say. */
static enum st_log_level for_all(const struct strata_training *t, enum st_log_level level)
{
    return t->shape.rank == 0 ? level : ST_LOG_INFO;
}

static void sample_pressure(struct strata_training *t)
{
    st_pressure_sample(t->pressure, &t->pressure_last);
    t->sampled_ns = st_clock_ns();
}

/* --- opening --- */

static strata_status create_batch(struct strata_training *t)
{
    const size_t tokens = (size_t)t->shape.step_sequences * t->shape.seq_len;
    const bool documents = model_of(t)->size.documents;

    if (!st_fault_refuses("api.training_batch")) {
        t->tokens = calloc(tokens, sizeof(*t->tokens));
        t->targets = calloc(tokens, sizeof(*t->targets));
        t->positions = documents ? calloc(tokens, sizeof(*t->positions)) : NULL;
    }
    return t->tokens != NULL && t->targets != NULL && (t->positions != NULL || !documents) ? STRATA_OK : st_nomem(0);
}

/* An evaluation among the lowest that are kept is a reason to save; one of early_stop may have ended the run before. */
static void recall_evals(struct strata_training *t, const char *note)
{
    st_evals_begin(&t->evals, model_of(t)->config.keep_best, t->opts.early_stop, note);
    t->steps = st_evals_stop(&t->evals) ? t->done : t->opts.steps;
}

static strata_status load(struct strata_training *t)
{
    struct strata_resume_opts opts = STRATA_RESUME_OPTS_INIT;
    struct strata_checkpoint_info was = STRATA_CHECKPOINT_INFO_INIT;
    strata_status st;

    if (t->opts.from == NULL) {
        recall_evals(t, NULL);
        return strata_engine_load(t->engine);
    }
    if ((st = strata_checkpoint_get_info(t->opts.from, &was)) != STRATA_OK)
        return st;
    t->done = t->saved_at = was.steps + was.skipped_steps;
    if (t->done > t->opts.steps)
        return st_error(STRATA_E_INVAL, "training.steps %" PRIu64 ": the checkpoint has done %" PRIu64 " steps already",
                        t->opts.steps, t->done);
    opts.data = t->opts.data;
    opts.data_seed = t->opts.seed;
    opts.data_order = t->opts.order;
    if ((st = strata_engine_resume(t->engine, t->opts.from, &opts)) != STRATA_OK)
        return st;
    recall_evals(t, was.note);
    t->make_up = was.eval_due || t->done == t->steps;
    if (st_handle_saves(model_of(t))) /* until there is a newer one */
        snprintf(t->newest, sizeof(t->newest), "%s", was.path);
    return STRATA_OK;
}

static strata_status begin(struct strata_training *t)
{
    struct strata_save_rule rule = STRATA_SAVE_RULE_INIT;
    strata_status st = strata_model_get_info(model_of(t), &t->shape);

    if (st == STRATA_OK)
        st = create_batch(t);
    if (st == STRATA_OK)
        st = st_pressure_open(&t->pressure, NULL, NULL);
    if (st == STRATA_OK)
        st = load(t);
    if (st == STRATA_OK)
        st = strata_plan_get_info(t->engine->plan, &t->planned);
    t->save.data = t->opts.data;
    t->save.data_seed = t->opts.seed;
    t->save.data_order = t->opts.order;
    rule.every = t->opts.save_every;
    rule.eval_every = t->opts.eval_every;
    rule.steps = t->steps;
    if (st == STRATA_OK && st_handle_saves(model_of(t)))
        st = strata_engine_save_when(t->engine, &rule);
    if (st == STRATA_OK)
        sample_pressure(t);
    return st;
}

strata_status strata_training_open(struct strata_training **run, struct strata_engine *engine,
                                   const struct strata_training_opts *opts)
{
    struct strata_training *t;
    strata_status st;

    if (run == NULL || engine == NULL || opts == NULL || opts->data == NULL)
        return st_error_missing(__func__, run == NULL ? "run" : engine == NULL ? "engine" : opts == NULL ? "opts" : "data");
    t = st_fault_refuses("api.training") ? NULL : malloc(sizeof(*t));
    if (t == NULL)
        return st_nomem(sizeof(*t));
    *t = (struct strata_training){.engine = engine,
                                  .shape = STRATA_MODEL_INFO_INIT,
                                  .planned = STRATA_PLAN_INFO_INIT,
                                  .metrics = STRATA_METRICS_INIT,
                                  .eval = STRATA_EVAL_INIT,
                                  .evaluated_at = UINT64_MAX,
                                  .save = STRATA_SAVE_OPTS_INIT,
                                  .last = STRATA_SAVED_INIT};
    st = st_handle_opts(&t->opts, sizeof(t->opts), opts, "strata_training_opts");
    if (st == STRATA_OK && t->opts.steps == 0)
        st = st_error(STRATA_E_INVAL, "training.steps is 0: say how many the run has");
    if (st == STRATA_OK && ((unsigned)t->opts.order > STRATA_DATA_EPOCHS_IN_ORDER || t->opts.order == STRATA_DATA_IN_ORDER))
        st = st_error(STRATA_E_INVAL, "training.order %d is none that goes on", (int)t->opts.order);
    if (st == STRATA_OK)
        st = begin(t);
    if (st != STRATA_OK) {
        strata_training_close(t);
        return st;
    }
    *run = t;
    return STRATA_OK;
}

void strata_training_close(struct strata_training *run)
{
    if (run == NULL)
        return;
    st_pressure_close(run->pressure);
    free(run->tokens);
    free(run->targets);
    free(run->positions);
    free(run->json);
    free(run);
}

/* --- steps --- */

/* Passes over the data so far; of those that end with a smaller step in epochs. */
static double epochs_done(const struct strata_training *t)
{
    const uint64_t sequences = strata_data_count(t->opts.data), step = t->shape.world_sequences;

    if (t->opts.order == STRATA_DATA_EPOCHS || t->opts.order == STRATA_DATA_EPOCHS_IN_ORDER)
        return (double)t->done / (double)((sequences + step - 1) / step);
    return (double)(t->done * step) / (double)sequences;
}

static void measure(struct strata_training *t, const struct strata_step *result)
{
    const struct st_pressure_sample before = t->pressure_last;
    const uint64_t since_ns = t->sampled_ns;
    struct st_pressure_verdict verdict;

    st_metrics_fill(&t->metrics, &t->planned, t->opts.data, result, t->done,
                    t->done * t->shape.world_sequences * t->shape.seq_len);
    t->metrics.value[STRATA_METRIC_EPOCH] = epochs_done(t);
    t->metrics.value[STRATA_METRIC_LOSS_MEAN] = st_losses_mean(&t->losses, result->loss);
    sample_pressure(t);
    st_pressure_between(&before, &t->pressure_last, (double)(t->sampled_ns - since_ns) * 1e-9, &verdict);
    st_metrics_press(&t->metrics, &verdict);
}

strata_status strata_training_step(struct strata_training *run, struct strata_step *result)
{
    struct strata_engine_info info = STRATA_ENGINE_INFO_INIT;
    struct strata_step step = STRATA_STEP_INIT;
    struct strata_training *t = run;
    strata_status st;

    if (t == NULL)
        return st_error_missing(__func__, "run");
    if (result != NULL && (st = st_handle_room(result, sizeof(*result), "strata_step")) != STRATA_OK)
        return st;
    if (t->done >= t->steps)
        return st_error(STRATA_E_INVAL, "%s: the run has made its %" PRIu64 " steps", __func__, t->steps);
    st = strata_engine_get_info(t->engine, &info);
    if (st == STRATA_OK)
        st = strata_data_read_part(t->opts.data, t->opts.order, t->opts.seed, info.sequences, t->shape.world_sequences,
                                   t->shape.rank * t->shape.step_sequences, t->shape.step_sequences, t->tokens, t->targets,
                                   t->positions);
    if (st == STRATA_OK)
        st = strata_engine_step(t->engine, t->tokens, t->targets, t->positions, &step);
    if (st != STRATA_OK)
        return st;
    t->done++;
    t->stepped = true;
    t->best_now = false;
    measure(t, &step);
    if (result != NULL)
        *result = step;
    return STRATA_OK;
}

/* --- evaluations --- */

static bool eval_due(const struct strata_training *t)
{
    const uint64_t every = t->opts.eval_every;

    if (t->opts.eval_data == NULL || t->evaluated_at == t->done)
        return false;
    return (t->done == t->steps || (every != 0 && t->done % every == 0)) && (t->stepped || t->make_up);
}

/* Rank 0's loss, for all: another processor's kernels may round otherwise. */
static strata_status take_first(struct strata_training *t)
{
    double all[ST_COMM_RANKS_MAX];
    strata_status st;

    if (st_handle_comm(model_of(t)) == NULL)
        return STRATA_OK;
    st = strata_comm_gather(model_of(t)->comm, &t->eval.loss, sizeof(t->eval.loss), all, "the loss of an evaluation");
    if (st == STRATA_OK)
        t->eval.loss = all[0];
    return st;
}

/* Makes the last update: where nobody asks for the state that it leaves, without that. */
static strata_status end_training(struct strata_training *t)
{
    return t->opts.state || st_handle_saves(model_of(t)) ? strata_engine_flush(t->engine) : strata_engine_end_training(t->engine);
}

/* Whether no cancel has ended the engine. */
static bool goes_on(struct strata_engine *engine)
{
    const bool does = st_handle_enter(engine, "strata_training_evaluate", ST_HANDLE_LOADED) == STRATA_OK;

    if (does)
        st_handle_leave(engine);
    return does;
}

strata_status strata_training_evaluate(struct strata_training *run)
{
    struct strata_training *t = run;
    uint64_t before;
    strata_status st;

    if (t == NULL)
        return st_error_missing(__func__, "run");
    if (!eval_due(t))
        return STRATA_OK;
    st = t->done == t->steps ? end_training(t) : STRATA_OK;
    if (st == STRATA_OK)
        st = strata_engine_eval_data(t->engine, t->opts.eval_data, &t->eval);
    t->eval_cut = t->save.eval_due = st == STRATA_E_CANCELLED && goes_on(t->engine);
    if (t->eval_cut)
        return STRATA_OK;
    if (st != STRATA_OK || (st = take_first(t)) != STRATA_OK)
        return st;
    t->evaluated_at = t->done;
    before = t->evals.targets;
    t->targets_before = st_evals_over(&t->evals, t->eval.targets) ? 0 : before;
    t->best_now = st_evals_take(&t->evals, t->done, t->eval.loss);
    t->metrics.value[STRATA_METRIC_EVAL_LOSS] = t->eval.loss;
    t->metrics.value[STRATA_METRIC_EVAL_BITS_PER_BYTE] = t->eval.bits_per_byte;
    if (st_evals_stop(&t->evals))
        t->steps = t->done;
    sample_pressure(t);
    return STRATA_OK;
}

bool strata_training_stopped(const char *note, uint64_t early_stop)
{
    struct st_evals evals;

    st_evals_begin(&evals, 0, early_stop, note);
    return st_evals_stop(&evals);
}

/* --- what it says --- */

strata_status strata_training_metrics(const struct strata_training *run, struct strata_metrics *metrics)
{
    if (run == NULL || metrics == NULL)
        return st_error_missing(__func__, run == NULL ? "run" : "metrics");
    if (!run->stepped)
        return st_error(STRATA_E_INVAL, "%s: no step was made", __func__);
    return st_handle_result(metrics, &run->metrics, sizeof(*metrics), "strata_metrics");
}

static void put_eval(struct st_json_writer *w, const struct strata_training *t)
{
    st_json_put_u64(w, "step", t->done);
    st_json_put_double(w, "eval_loss", t->eval.loss);
    if (!isnan(t->eval.bits_per_byte))
        st_json_put_double(w, "eval_bits_per_byte", t->eval.bits_per_byte);
}

strata_status strata_training_json(struct strata_training *run, const char **json)
{
    struct st_json_writer w;
    struct st_kept_text text;
    strata_status st;

    if (run == NULL || json == NULL)
        return st_error_missing(__func__, run == NULL ? "run" : "json");
    if (!run->stepped && run->evaluated_at != run->done)
        return st_error(STRATA_E_INVAL, "%s: neither a step nor an evaluation was made", __func__);
    st_handle_text_begin(&text, &run->json, "api.training_json");
    if (text.file != NULL) {
        st_json_begin(&w, text.file);
        st_json_object_open(&w, NULL);
        if (run->stepped)
            st_metrics_put(&w, run->metrics.value, strata_metric_name, false);
        else
            put_eval(&w, run);
        st_json_object_close(&w);
    }
    if ((st = st_handle_text_end(&text, STRATA_OK)) == STRATA_OK)
        *json = run->json;
    return st;
}

strata_status strata_training_get_info(const struct strata_training *run, struct strata_training_info *info)
{
    const struct strata_training *t = run;
    struct strata_training_info i = {0};

    if (t == NULL || info == NULL)
        return st_error_missing(__func__, t == NULL ? "run" : "info");
    i.steps = t->steps;
    i.done = t->done;
    i.evaluated_at = t->evaluated_at;
    i.eval_cut = t->eval_cut;
    i.eval = t->eval;
    i.evals = t->evals.count;
    i.evals_worse = t->evals.worse;
    i.best_step = t->evals.best_step;
    i.last_step = t->evals.last_step;
    i.best_loss = t->evals.best;
    i.last_loss = t->evals.last;
    i.targets_before = t->targets_before;
    i.ended_early = st_evals_stop(&t->evals);
    i.save_failed = t->failed;
    i.save_sentence = t->sentence;
    i.newest = t->newest;
    return st_handle_result(info, &i, sizeof(i), "strata_training_info");
}

/* --- checkpoints --- */

static void keep_failure(struct strata_training *t)
{
    t->failed = true;
    snprintf(t->sentence, sizeof(t->sentence), "%s", strata_last_error());
    st_log(for_all(t, ST_LOG_WARN), "no checkpoint was made: %s; the run goes on", t->sentence);
}

/* What became of a save that is under way, once it is done. */
static void look(struct strata_training *t, bool wait)
{
    const strata_status st = t->under_way ? strata_engine_saved(t->engine, wait, &t->last) : STRATA_OK;

    if (!t->under_way || (st == STRATA_OK && !t->last.done))
        return;
    t->under_way = false;
    if (st != STRATA_OK && !(t->last.path != NULL && t->last.steps == t->saved_at)) {
        keep_failure(t);
        return;
    }
    t->failed = false;
    snprintf(t->newest, sizeof(t->newest), "%s", t->last.path != NULL ? t->last.path : "");
    if (st != STRATA_OK) /* it was committed; what came after failed */
        st_log(for_all(t, ST_LOG_WARN), "%s; the checkpoint of step %" PRIu64 " is whole, and the next one tries again",
               strata_last_error(), t->last.steps);
    if (t->opts.saved != NULL)
        t->opts.saved(t->opts.ctx, &t->last);
}

static strata_status save(struct strata_training *t, uint64_t metrics_bytes)
{
    look(t, true); /* one at a time */
    st_evals_note(&t->evals, t->note);
    t->save.metrics_bytes = metrics_bytes;
    t->save.note = t->note;
    t->save.has_score = st_evals_has(&t->evals, t->done);
    t->save.score = t->save.has_score ? t->evals.last : 0;
    t->saved_at = t->done;
    if (strata_engine_save(t->engine, &t->save) == STRATA_OK) {
        t->under_way = true;
        return STRATA_OK;
    }
    keep_failure(t);
    return strata_engine_flush(t->engine); /* the status that ended the engine, if it has ended */
}

static strata_status save_if_due(struct strata_training *t, bool asked, uint64_t metrics_bytes)
{
    bool due = false;
    const strata_status st = strata_engine_save_due(t->engine, asked, &due);

    return st == STRATA_OK && due ? save(t, metrics_bytes) : st;
}

strata_status strata_training_save(struct strata_training *run, bool asked, uint64_t metrics_bytes)
{
    if (run == NULL)
        return st_error_missing(__func__, "run");
    if (asked && !st_handle_saves(model_of(run)))
        return st_error(STRATA_E_INVAL, "%s: the configuration names no directory: set strata.save", __func__);
    if (run->done >= run->steps || !st_handle_saves(model_of(run)))
        return STRATA_OK;
    look(run, false);
    return save_if_due(run, asked || run->best_now, metrics_bytes);
}

strata_status strata_training_finish(struct strata_training *run, uint64_t metrics_bytes)
{
    strata_status st;

    if (run == NULL)
        return st_error_missing(__func__, "run");
    st = end_training(run);
    if (st == STRATA_OK)
        st = strata_engine_check(run->engine);
    if (st == STRATA_OK && run->evaluated_at == run->done && !isfinite(run->eval.loss))
        st = st_error(STRATA_E_NUMERICS,
                      "the held-out loss after step %" PRIu64
                      " is not finite: the weights have diverged, or were not finite to begin with",
                      run->done);
    if (st != STRATA_OK || !st_handle_saves(model_of(run)))
        return st;
    look(run, true);
    st = save_if_due(run, true, metrics_bytes);
    look(run, true);
    return st;
}

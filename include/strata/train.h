/* strata/train.h - a whole run over an engine: its steps with their numbers, evaluations, checkpoints, and its end.
 *
 *     opts.data = data;
 *     opts.steps = steps;
 *     strata_training_open(&run, engine, &opts);                    loads the weights, or goes on from opts.from
 *     strata_training_evaluate(run);                                one that a run which goes on was cut short of
 *     do {
 *         strata_training_step(run, &step);
 *         strata_training_evaluate(run);                            if one is due
 *         strata_training_json(run, &line);                         what `strata train --json` prints
 *         strata_training_save(run, false, 0);                      if one is due
 *         strata_training_get_info(run, &info);
 *     } while (info.done < info.steps && !stop);
 *     strata_training_finish(run, 0);                               the last update and checkpoint
 *     strata_engine_export(engine, out);
 *     strata_training_close(run);
 *
 * It makes the calls on the engine that strata/engine.h and strata/checkpoint.h have, in the order and with the positions in the
 * data that `strata train` has: the same weights, and either goes on from the other's checkpoints.  A run may stop after any
 * step.
 *
 * Thread  one call at a time on one run, and none on its engine meanwhile but strata_engine_cancel() and strata_engine_request().
 */
#ifndef STRATA_TRAIN_H
#define STRATA_TRAIN_H

#include "strata/checkpoint.h"
#include "strata/engine.h"
#include "strata/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- the numbers of a step --- */

/** Numbers of a step, in the order of a line of JSON (docs/json.md).  Values of one that has a lane or tier are that many. */
enum strata_metric {
    STRATA_METRIC_STEP,
    STRATA_METRIC_EPOCH, /**< passes over the data so far */
    STRATA_METRIC_LOSS,
    STRATA_METRIC_LOSS_MEAN, /**< of the last 20 steps */
    STRATA_METRIC_AUX_LOSS,  /**< of experts, in the loss times its coefficient */
    STRATA_METRIC_BITS_PER_BYTE,
    STRATA_METRIC_GRAD_NORM,
    STRATA_METRIC_LR,
    STRATA_METRIC_LOSS_SCALE,
    STRATA_METRIC_SKIPPED,
    STRATA_METRIC_WEIGHTS_OVERFLOWED,
    STRATA_METRIC_TOKENS,
    STRATA_METRIC_TOKENS_TOTAL,
    STRATA_METRIC_TOKENS_PER_SECOND,
    STRATA_METRIC_MFU,
    STRATA_METRIC_STEP_SECONDS,
    STRATA_METRIC_HARDWARE_BOUND,
    STRATA_METRIC_SCHEDULE_BOUND,
    STRATA_METRIC_EVAL_LOSS, /**< if there was an evaluation after this step, like the next one */
    STRATA_METRIC_EVAL_BITS_PER_BYTE,
    STRATA_METRIC_MS_FORWARD,
    STRATA_METRIC_MS_BACKWARD,
    STRATA_METRIC_MS_STALL,
    STRATA_METRIC_MS_OTHER,
    STRATA_METRIC_BUSY_MS, /**< one per lane */
    STRATA_METRIC_STALL_MS = STRATA_METRIC_BUSY_MS + STRATA_LANE_COUNT,
    STRATA_METRIC_UPLOAD = STRATA_METRIC_STALL_MS + STRATA_LANE_COUNT,
    STRATA_METRIC_DOWNLOAD,
    STRATA_METRIC_READ,
    STRATA_METRIC_WRITE,
    STRATA_METRIC_COMM,
    STRATA_METRIC_EARLY_MADE, /**< of a plan with early updates, else NaN: as in struct strata_step, like the next four */
    STRATA_METRIC_EARLY_KEPT,
    STRATA_METRIC_EARLY_REDONE,
    STRATA_METRIC_REDONE_BYTES,
    STRATA_METRIC_WASTED_BYTES,
    STRATA_METRIC_RESIDENT, /**< one per tier */
    STRATA_METRIC_MAJOR_FAULTS = STRATA_METRIC_RESIDENT + STRATA_TIER_COUNT,
    STRATA_METRIC_SWAP_BYTES,
    STRATA_METRIC_PSI_SOME,
    STRATA_METRIC_PSI_FULL,
    STRATA_METRIC_COUNT
};

/** A step in numbers. */
struct strata_metrics {
    size_t metrics_size;               /**< sizeof(struct strata_metrics), set by the caller */
    double value[STRATA_METRIC_COUNT]; /**< whole ones are exact to 2^53; not known: NaN */
    uint32_t stalled_by;               /**< as strata_step.stalled_by */
    bool pressed;                      /**< memory pressure explains lost time */
};
#define STRATA_METRICS_INIT STRATA_INIT(strata_metrics, metrics_size)

/** How a number stands in JSON. */
enum strata_metric_kind {
    STRATA_METRIC_REAL = 0,
    STRATA_METRIC_WHOLE = 1,
    STRATA_METRIC_FLAG = 2,
    STRATA_METRIC_RARE = 3, /**< a real one that is left out where it is not known */
};

/** What a number of enum strata_metric, lanes and tiers one by one, is called in JSON.
 *
 *  @param object  out, static: the object that it stands in; NULL: the outermost one
 *
 *  @return its name, static; NULL past the last, or if an argument is NULL */
STRATA_API const char *strata_metric_name(uint32_t metric, const char **object, enum strata_metric_kind *kind);

/* --- a run --- */

struct strata_training;

/** What a run does.  Begin with STRATA_TRAINING_OPTS_INIT. */
struct strata_training_opts {
    size_t opts_size;                     /**< sizeof(struct strata_training_opts) */
    const struct strata_data *data;       /**< borrowed until the run is closed, like the next one */
    const struct strata_data *eval_data;  /**< NULL: nothing is evaluated */
    const struct strata_checkpoint *from; /**< what it goes on from; NULL: it begins.  Borrowed during the call */
    enum strata_data_order order;         /**< never IN_ORDER, which ends */
    uint64_t seed;                        /**< of the order */
    uint64_t steps;                       /**< of the whole run, with those behind `from` */
    uint64_t eval_every;                  /**< steps; 0: only after the last one */
    uint64_t early_stop; /**< the run ends after so many evaluations in a row without a lower loss; 0: it does not */
    uint64_t save_every; /**< steps; 0: at the end, and when asked.  The configuration says where, and what stays */
    bool state; /**< digests are wanted after the run: else one that saves nothing ends by strata_engine_end_training() */
    void (*saved)(void *ctx, const struct strata_saved *saved); /**< a checkpoint is whole; NULL: nobody is told */
    void *ctx;                                                  /**< passed to it */
};
#define STRATA_TRAINING_OPTS_INIT STRATA_INIT(strata_training_opts, opts_size)

/**
 * Begin a run, or go on with one.
 *
 * @param run     out, returned: closed by strata_training_close()
 * @param engine  borrowed until then; created for training
 *
 * @return STRATA_E_INVAL  an argument is NULL, `steps` is 0 or less than the checkpoint has, or `order` is none that goes on
 *         STRATA_E_NOMEM
 *         otherwise as strata_engine_load() or strata_engine_resume(): after STRATA_E_CORRUPT another checkpoint may be tried
 */
STRATA_API strata_status strata_training_open(struct strata_training **run, struct strata_engine *engine,
                                              const struct strata_training_opts *opts);

/** Make the next step.
 *
 *  @param result  out, or NULL; its step_size is set
 *
 *  @return STRATA_E_INVAL  run is NULL, or it has made all its steps
 *          otherwise as strata_data_read() and strata_engine_step() */
STRATA_API strata_status strata_training_step(struct strata_training *run, struct strata_step *result);

/**
 * Evaluate if it is due: after the last step and each `eval_every`; before the first step of this run only if it goes on from a
 * checkpoint that says so, or that is of the last step.  What strata_training_info has of evaluations tells whether it was.
 *
 * @return STRATA_E_INVAL  run is NULL
 *         otherwise as strata_engine_eval_data(), but for STRATA_E_CANCELLED by the model's progress function: that is STRATA_OK
 * and strata_training_info.eval_cut, and the run that goes on makes up for it
 */
STRATA_API strata_status strata_training_evaluate(struct strata_training *run);

/** Numbers of the last step, and of the evaluation after it.
 *
 *  @return STRATA_E_INVAL  an argument is NULL, no step was made, or metrics_size is another one */
STRATA_API strata_status strata_training_metrics(const struct strata_training *run, struct strata_metrics *metrics);

/** The same as a line of JSON without its end, as `strata train --json` prints it; before the first step that of an evaluation.
 *
 *  @param json  out, borrowed until the next call on the run
 *
 *  @return STRATA_E_INVAL  an argument is NULL, or there is no line yet
 *          STRATA_E_NOMEM */
STRATA_API strata_status strata_training_json(struct strata_training *run, const char **json);

/**
 * Save if it is due after this step, and look what became of the save before.  A save that fails is a warning, the run goes on,
 * and strata_training_info.save_failed says so.  Nothing after the last step, which strata_training_finish() saves.
 *
 * @param asked          save now
 * @param metrics_bytes  as strata_save_opts.metrics_bytes
 *
 * @return STRATA_E_INVAL  run is NULL, or a save is asked for and the configuration names no directory; without one nothing else
 *                         is due
 *         the status that ended the engine
 */
STRATA_API strata_status strata_training_save(struct strata_training *run, bool asked, uint64_t metrics_bytes);

/**
 * Make the update that waits, check that the run has learnt, and save what is not saved yet; waits until it is whole.
 *
 * @return STRATA_E_NUMERICS  as strata_engine_check(), or the last loss of an evaluation is not finite; nothing was saved
 *         STRATA_E_INVAL     run is NULL
 *         otherwise as strata_engine_flush()
 */
STRATA_API strata_status strata_training_finish(struct strata_training *run, uint64_t metrics_bytes);

/** How far a run is.  Texts are borrowed until the next call on it. */
struct strata_training_info {
    size_t info_size;              /**< sizeof(struct strata_training_info), set by the caller */
    uint64_t steps, done;          /**< of the run, fewer once it ends early; of these made, those before `from` included */
    uint64_t evaluated_at;         /**< step of the last evaluation that this run has made; UINT64_MAX: none */
    bool eval_cut;                 /**< the last one that was due was ended by the model's progress function */
    struct strata_eval eval;       /**< of the last one */
    uint64_t evals, evals_worse;   /**< of the whole run; of these since the best */
    uint64_t best_step, last_step; /**< of its evaluations */
    double best_loss, last_loss;   /**< NaN: none */
    uint64_t targets_before;       /**< of the evaluation before the last one, if it was over another number; else 0 */
    bool ended_early;              /**< as many in a row as opts.early_stop had no lower loss */
    bool save_failed;              /**< the last save */
    const char *save_sentence;     /**< why */
    const char *newest;            /**< path of the newest checkpoint that is whole, made or resumed from; "": none */
};
#define STRATA_TRAINING_INFO_INIT STRATA_INIT(strata_training_info, info_size)

/** Fill `info`.
 *
 *  @return STRATA_E_INVAL  an argument is NULL, or info_size is another one */
STRATA_API strata_status strata_training_get_info(const struct strata_training *run, struct strata_training_info *info);

/** Whether a run with these checkpoints' strata_checkpoint_info.note has ended by `early_stop` evaluations without a lower loss.
 */
STRATA_API bool strata_training_stopped(const char *note, uint64_t early_stop);

/** Close, before or after its engine; NULL is fine. */
STRATA_API void strata_training_close(struct strata_training *run);

#ifdef __cplusplus
}
#endif
#endif

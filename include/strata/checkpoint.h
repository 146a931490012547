/* strata/checkpoint.h - saving a run, and going on from what was saved.
 *
 *     strata_config_open(&config, &config_opts);          "strata.save": directory, "strata.keep": how many stay
 *     ...                                                 model, data, plan, engine: as strata/engine.h has them
 *     status = strata_checkpoint_open(&saved, "run/checkpoints");
 *     if (status == STRATA_OK)
 *         strata_engine_resume(engine, saved, &resume_opts);
 *     else if (status == STRATA_E_INPUT)                  there is none
 *         strata_engine_load(engine);
 *     strata_engine_save_when(engine, &rule);             every 100 steps, and after the last one
 *     for (...) {
 *         strata_engine_step(...);
 *         strata_engine_save_due(engine, asked, &due);
 *         if (due)
 *             strata_engine_save(engine, &save_opts);     returns when the next step may run; the files follow beside it
 *     }
 *     strata_engine_saved(engine, true, &saved);          waits for the last one
 *
 * A checkpoint is a directory, SAVE/step-00000100, that is there whole or not at all, whenever the process or the power ends.
 * docs/checkpoints.md says what is in it. A run that resumes has the same bits as one that never ended, whatever its budgets,
 * tiers, threads and I/O method, on the same kind of device, instruction set and matmul library. */
#ifndef STRATA_CHECKPOINT_H
#define STRATA_CHECKPOINT_H

#include "strata/engine.h"
#include "strata/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct strata_checkpoint; /**< what a checkpoint says of itself, read and checked; weights and state are not read */

/**
 * Open a checkpoint: read what it says of itself, and check it.
 *
 * @param checkpoint  out, returned: closed by strata_checkpoint_close()
 * @param path        a checkpoint, or a directory of them: then the newest whole one, and a log line for each newer one says
 *                    why it is not
 *
 * @return STRATA_E_INPUT    there is none
 *         STRATA_E_CORRUPT  it is damaged, or of another version; strata_verify_older() finds one that opens
 *         STRATA_E_INVAL    an argument is NULL
 *         STRATA_E_NOMEM, STRATA_E_IO
 */
STRATA_API strata_status strata_checkpoint_open(struct strata_checkpoint **checkpoint, const char *path);

/** What a checkpoint is.  Texts are borrowed until it is closed. */
struct strata_checkpoint_info {
    size_t info_size;        /**< sizeof(struct strata_checkpoint_info), set by the caller */
    const char *path;        /**< of its directory */
    const char *model;       /**< name of a preset, or the directory that the run's weights came from */
    const char *config;      /**< the run's configuration: JSON that strata_config_open() takes */
    uint64_t steps;          /**< optimizer steps that were applied */
    uint64_t skipped_steps;  /**< steps that were skipped, since gradients were not finite */
    uint64_t sequences;      /**< position in the data: the next step's first sequence */
    uint64_t metrics_bytes;  /**< what the run had said of strata_save_opts.metrics_bytes */
    uint64_t bytes;          /**< of all its files */
    uint32_t kept;           /**< checkpoints of its run in its directory: itself and those of earlier steps */
    uint32_t step_sequences; /**< sequences of a step of all ranks, for strata_config_opts.train_batch of a run that goes on */
    uint32_t leaves;         /**< gradient groups of a step of all ranks, likewise for strata_config_opts.leaves */
    const char *run;         /**< name of its run: strata_engine_info.run */
    const char *date;        /**< what the chat template of the run's texts took for today: a run that goes on gives it as
                              *  strata_texts_opts.date, for the same tokens.  "": it did not ask */
    bool eval_due;           /**< what the run had said of strata_save_opts.eval_due */
    const char *note;        /**< strata_save_opts.note; "": none */
};
#define STRATA_CHECKPOINT_INFO_INIT STRATA_INIT(strata_checkpoint_info, info_size)

/** @return STRATA_E_INVAL  an argument is NULL, or info_size is another one */
STRATA_API strata_status strata_checkpoint_get_info(const struct strata_checkpoint *checkpoint,
                                                    struct strata_checkpoint_info *info);

/** Close; engines that resumed from it go on.  NULL is fine. */
STRATA_API void strata_checkpoint_close(struct strata_checkpoint *checkpoint);

/** How a run goes on.  Begin with STRATA_RESUME_OPTS_INIT. */
struct strata_resume_opts {
    size_t opts_size;               /**< sizeof(struct strata_resume_opts) */
    const struct strata_data *data; /**< what the run trains on, compared with the checkpoint's; NULL: not compared */
    uint64_t data_seed;             /**< of the order of its sequences, compared with `data` */
    uint32_t data_order;            /**< enum strata_data_order, compared with `data` */
};
#define STRATA_RESUME_OPTS_INIT STRATA_INIT(strata_resume_opts, opts_size)

/**
 * Go on from a checkpoint, in place of strata_engine_load().
 *
 * Differences of configuration that change results are notices in the log, such as another learning rate; what differs only in
 * speed or place is not mentioned.
 *
 * A save that is under way ends first: with strata.keep, or with strata_engine_opts.overwrite, the checkpoint may go that way.
 *
 * @return STRATA_E_INPUT      the checkpoint is of another model, precision, optimizer, or data; the sentence says what differs.
 *                             Or it has been removed or replaced since it was opened
 *         STRATA_E_CORRUPT    a checksum differs, on this rank or another one: nothing of the damaged part was used
 *         STRATA_E_INVAL      an argument is NULL, the model was opened for another use than training, data_order is no order,
 *                             opts_size is another one, or a save waits for the next step: strata_engine_saved() with `wait`
 *                             makes it before
 *         STRATA_E_CANCELLED  the model's progress function or strata_engine_cancel() requested it
 *         STRATA_E_IO, STRATA_E_NOMEM
 *         A call that is refused, by its arguments or by what the checkpoint is of, changes nothing.  An engine with weights
 *         first compares all checksums, of what it would leave in the checkpoint's files, too, so that damage, a file that cannot
 *         be read or a progress function that ends it changes nothing either: the run goes on.  Else, or if files fail after
 *         that, nothing is loaded; after STRATA_E_CORRUPT another checkpoint may be taken.
 *
 * Cost    reads what this rank needs of the checkpoint once; twice on an engine with weights
 */
STRATA_API strata_status strata_engine_resume(struct strata_engine *engine, const struct strata_checkpoint *checkpoint,
                                              const struct strata_resume_opts *opts);

/** What a checkpoint says beside the engine's state.  Begin with STRATA_SAVE_OPTS_INIT. */
struct strata_save_opts {
    size_t opts_size;               /**< sizeof(struct strata_save_opts) */
    const struct strata_data *data; /**< what the run trains on; NULL: the checkpoint does not say */
    uint64_t data_seed;             /**< of the order of its sequences */
    uint32_t data_order;            /**< enum strata_data_order */
    uint64_t metrics_bytes;         /**< of a file of metrics so far, at most 2^53, for the caller's own use when it resumes */
    bool eval_due;                  /**< the run was to be evaluated after this step, and was not: for the same use */
    bool has_score;                 /**< the weights have a score: */
    double score;     /**< a finite number, the lower the better, such as the loss of an evaluation: the checkpoints of
                       *  the "strata.keep_best" lowest ones stay beside the newest */
    const char *note; /**< at most 1023 bytes of UTF-8, for the caller's own use, too; NULL: none */
};
#define STRATA_SAVE_OPTS_INIT STRATA_INIT(strata_save_opts, opts_size)

/**
 * Save the run as it is now, under "strata.save" of the configuration. Where the update of the last step waits for the next one,
 * as it does with gradient clipping, that step writes what lives in memory while it computes; else it has been written beside the
 * last step if strata_engine_save_when() foretold that; otherwise, or if strata_engine_saved() waits or (of
 * one rank) strata_engine_destroy() comes before there was a step, it is written at once. Syncing,
 * linking or copying, and removing old checkpoints follow on a thread of their own; a save that comes before they are done waits
 * for them.
 *
 * A relative "strata.save" counts from the working directory at each save: a program that changes it names an absolute one.
 *
 * @return STRATA_E_INVAL  an argument is NULL, nothing is loaded, no update was made since the run began or since the last save
 *                         that did not fail, the configuration names no directory, the model was opened for another use than
 *                         training, or data_order, metrics_bytes, score or note is none that can be
 *         STRATA_E_IO, STRATA_E_NOSPC, STRATA_E_NOMEM  this checkpoint could not be made: nothing of it stays, older ones do, and
 *                         the engine goes on: the same step may be saved again
 *         the status that ended the engine
 */
STRATA_API strata_status strata_engine_save(struct strata_engine *engine, const struct strata_save_opts *opts);

/** After which steps a run saves.  Begin with STRATA_SAVE_RULE_INIT, which says: only when asked. */
struct strata_save_rule {
    size_t rule_size;    /**< sizeof(struct strata_save_rule) */
    uint64_t every;      /**< a save is due each time this many steps were made; 0: only when asked */
    uint64_t eval_every; /**< likewise an evaluation, which a save may follow with "strata.keep_best"; 0: never */
    uint64_t steps;      /**< of the run, whose last one a save follows; 0: not known */
};
#define STRATA_SAVE_RULE_INIT STRATA_INIT(strata_save_rule, rule_size)

/**
 * Say after which steps the run will save, from the next one on.  Where updates do not wait for the next step, what lives in
 * memory is then written beside a step that a save may follow, and the save only hands it over; if none follows, nothing is
 * saved.
 *
 * @param rule  copied; NULL: as STRATA_SAVE_RULE_INIT
 *
 * @return STRATA_E_INVAL  the engine is NULL, this run saves nothing, as in strata_engine_save(), or rule_size is another one
 *         the status that ended the engine
 */
STRATA_API strata_status strata_engine_save_when(struct strata_engine *engine, const struct strata_save_rule *rule);

/**
 * Whether strata_engine_save() is to be called now: the run has made steps that no checkpoint has, or of which the save has
 * failed, and the rule says so, or someone asks.
 *
 * @param asked  by a signal, at the end of the run, or since the weights are among the best
 * @param due    out; of several ranks the same on each, if `asked` is
 *
 * @return STRATA_E_INVAL  an argument is NULL, nothing is loaded, or this run saves nothing
 *         the status that ended the engine
 */
STRATA_API strata_status strata_engine_save_due(struct strata_engine *engine, bool asked, bool *due);

/** How a save went. */
struct strata_saved {
    size_t saved_size;     /**< sizeof(struct strata_saved), set by the caller */
    bool done;             /**< nothing is under way, as always without a directory to save to */
    uint64_t steps;        /**< of the last checkpoint that the engine has made, whole on disk; 0: none.  A load or resume after
                            *  it leaves this as it is */
    double stopped;        /**< seconds for which the last save kept the next step waiting */
    double seconds;        /**< from its begin until it was whole */
    uint64_t copied_bytes; /**< of it that had to be copied, since files could not be linked */
    const char *path;      /**< its directory; borrowed until the next save */
};
#define STRATA_SAVED_INIT STRATA_INIT(strata_saved, saved_size)

/**
 * Ask how the last save went.
 *
 * @param wait  until it is done
 *
 * A failure that nobody has asked for when the next save begins, or the engine is destroyed, is a warning in the log.
 *
 * @return STRATA_E_INVAL  an argument is NULL, or saved_size is another one
 *         what the save failed with, once; where *saved has its steps, it is whole, and what came after failed: older ones could
 *         not be removed, say
 */
STRATA_API strata_status strata_engine_saved(struct strata_engine *engine, bool wait, struct strata_saved *saved);

/** How a run of another program becomes a checkpoint.  Begin with STRATA_IMPORT_OPTS_INIT. */
struct strata_import_opts {
    size_t opts_size; /**< sizeof(struct strata_import_opts) */
    bool overwrite;   /**< a checkpoint of the same step is replaced */
};
#define STRATA_IMPORT_OPTS_INIT STRATA_INIT(strata_import_opts, opts_size)

/**
 * Make a checkpoint of what tools/import_deepspeed.py wrote: weights at full precision, both moments, steps and loss scale of a
 * DeepSpeed run.  A run of the same configuration resumes from it.
 *
 * @param model  opened for STRATA_USE_PLAN with the configuration of that run; of its directory only config.json and the other
 *               small files are read.  Of a run that trained an adapter `parts` has adapter_config.json, and is the model's
 *               `adapter`, too (or "strata.lora" says the same): its frozen weights are read from the directory.  Its progress
 *               function is called
 * @param parts  the directory with state.json
 * @param save   directory of checkpoints
 * @param opts   NULL: as STRATA_IMPORT_OPTS_INIT
 * @param path   [4096] out: the checkpoint
 *
 * @return STRATA_E_INPUT      a tensor is missing, has no place in the model, or another shape; a value is not finite; state.json
 *                             says what cannot be; the checkpoint's name is taken, there is one of a later step, or a live run
 *                             saves there
 *         STRATA_E_CONFIG     the optimizer is neither Adam nor AdamW
 *         STRATA_E_INVAL      an argument is NULL, the model is a preset or a checkpoint, or opts_size is another one
 *         STRATA_E_CANCELLED  the progress function requested it
 *         STRATA_E_NOFIT  the disk lacks the space; STRATA_E_NOSPC, STRATA_E_IO, STRATA_E_NOMEM; after a failure nothing stays
 *
 * Cost    reads 12 bytes per parameter once; 16 MiB of memory, and a checksum for each 16384 values.
 */
STRATA_API strata_status strata_import(struct strata_model *model, const char *parts, const char *save,
                                       const struct strata_import_opts *opts, char path[4096]);

/** Check before hours of work that a run which begins after step `after` can save to `dir`.  Makes nothing.
 *
 *  @return STRATA_E_INPUT  it has a checkpoint of a later step, whose name the run would want, and `overwrite` is false; or it is
 *                          missing and cannot be made */
STRATA_API strata_status strata_save_check(const char *dir, uint64_t after, bool overwrite);

/** Whether a save may want this name in its directory, such as "step-00000100" or "latest": other files there need other names.
 *  False for NULL. */
STRATA_API bool strata_save_takes(const char *name);

#ifdef __cplusplus
}
#endif
#endif

/* strata/config.h - a training configuration: DeepSpeed's JSON, read strictly, with all its values resolved.
 *
 *     struct strata_config_opts opts = STRATA_CONFIG_OPTS_INIT;
 *     struct strata_config *config;
 *
 *     opts.file = "ds_config.json";
 *     if (strata_config_open(&config, &opts) != STRATA_OK)
 *         fprintf(stderr, "%s\n", strata_last_error());
 *
 * docs/config.md lists every key.  Error sentences name keys ("strata.nvme") and members of structs of options: "model.seq_len"
 * is strata_model_opts.seq_len. */
#ifndef STRATA_CONFIG_H
#define STRATA_CONFIG_H

#include "strata/status.h"
#include "strata/types.h"
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STRATA_GRAD_ACCUM_MAX 16384u /**< micro-batches of a step: each is planned op by op */
#define STRATA_KEEP_MAX       22u    /**< checkpoints that a run keeps, strata.keep and strata.keep_best together */

struct strata_recipe; /**< strata/recipe.h */
struct strata_config; /**< a configuration, checked; read-only */

/** What a configuration is made from.  Begin with STRATA_CONFIG_OPTS_INIT; 0 and NULL mean the default. */
struct strata_config_opts {
    size_t opts_size; /**< sizeof(struct strata_config_opts) */
    const char *file; /**< JSON or YAML (.yaml, .yml), DeepSpeed's or Accelerate's; NULL: only defaults.  Borrowed during the
                         call, like everything below */
    const char *text; /**< JSON in place of a file, ended by a NUL; NULL: none */
    /** [override_count] "path=value", such as "optimizer.params.lr=1e-4" or "strata.nvme=[\"/scratch\"]": applied in order; the
     *  last one for a key wins, and all win over the file.  A value is JSON if it parses as such, else a string; null: as if the
     *  key were absent. */
    const char *const *overrides;
    uint32_t override_count;
    bool allow_unknown;   /**< unknown keys are notices, not errors */
    bool forward_only;    /**< for evaluation, generation or an import: no notices about keys that only concern updates, and
                             schedules are not evaluated by max_steps */
    uint64_t max_steps;   /**< steps of the run, at most 2^53, for schedules whose length is "auto"; 0: not known, and a step
                             by such a schedule is refused */
    bool steps_later;     /**< with max_steps 0: strata_model_set_steps() says how many there are */
    uint32_t ranks;       /**< processes that train together (strata/comm.h), which train_batch_size counts; 0: 1 */
    uint32_t train_batch; /**< sequences of a step of a run that goes on (strata_checkpoint_info.step_sequences): this
                             number stays where train_batch_size and one of the other two are left out or "auto"; 0: a new run */
    uint32_t leaves;      /**< likewise for strata.leaves (strata_checkpoint_info.leaves), if this run's ranks can have them */
    /** A trainer's file, whose values stand beside `file`'s, in place of what is left out or "auto" there; what differs is a
     *  problem.  With `file` and `text` NULL the file of DeepSpeed's that it names is read.  NULL: none. */
    const struct strata_recipe *recipe;
    /** "NAME=VALUE", ended by NULL, such as environ: what Accelerate's launcher says in them (ACCELERATE_MIXED_PRECISION, ...) is
     *  taken where file, recipe and overrides leave it out or "auto"; what differs is a problem.  NULL: none. */
    const char *const *variables;
    const char *name; /**< what sentences call `text`, such as the file that it was read from; NULL: "the configuration" */
};
#define STRATA_CONFIG_OPTS_INIT STRATA_INIT(strata_config_opts, opts_size)

/**
 * Read, check and resolve a configuration.
 *
 * Keys without effect here, and values that mean something other than a reader may expect, are notices in the log.
 *
 * @param config  out, returned: closed by strata_config_close()
 * @param opts    NULL: all defaults
 *
 * @return STRATA_E_CONFIG  the file cannot be read, or a key or value is wrong: the sentence is the first problem, the others are
 *                          errors in the log
 *         STRATA_E_INVAL   config is NULL, file and text are both given, max_steps is above 2^53, or opts_size is another
 *                          one
 *         STRATA_E_NOMEM, STRATA_E_IO
 *
 * Thread  any.
 */
STRATA_API strata_status strata_config_open(struct strata_config **config, const struct strata_config_opts *opts);

/**
 * The values in force, as JSON that strata_config_open() takes and resolves to the same values.
 *
 * @param json  out, borrowed until the configuration is closed
 *
 * @return STRATA_E_INVAL  an argument is NULL, or the configuration has problems
 *         STRATA_E_NOMEM
 */
STRATA_API strata_status strata_config_json(struct strata_config *config, const char **json);

/**
 * Read a configuration to show it: every value, where it comes from, what it means here, and all problems.  Also reads one that
 * no run would take.  Logs nothing.
 *
 * @param config  out, returned: closed by strata_config_close().  Also set with STRATA_E_CONFIG, if the text is JSON: it has rows
 *                and problems, and makes no model
 * @param opts    as for strata_config_open(), and so are the statuses
 */
STRATA_API strata_status strata_config_check(struct strata_config **config, const struct strata_config_opts *opts);

/** A further place for a run's metrics: the configuration's tensorboard or csv_monitor. */
struct strata_monitor {
    bool enabled;
    const char *output_path, *job_name; /**< "": the default */
};

/** What the program around an engine does by a configuration.  Texts are borrowed until it is closed. */
struct strata_config_info {
    size_t info_size;         /**< sizeof(struct strata_config_info), set by the caller */
    const char *save;         /**< directory of checkpoints; "": none are made */
    uint64_t save_every;      /**< steps; 0: only at the end, and when a signal asks */
    uint32_t keep_best;       /**< checkpoints of the lowest losses that stay */
    uint32_t steps_per_print; /**< 0: as the program likes */
    bool watchdog;            /**< memory that runs out ends a run before the kernel does */
    struct strata_monitor tensorboard, csv;
    const char *metrics; /**< file of the run's lines of JSON; "": none */
};
#define STRATA_CONFIG_INFO_INIT STRATA_INIT(strata_config_info, info_size)

/** Fill `info`.
 *
 *  @return STRATA_E_INVAL  an argument is NULL, or info_size is another one */
STRATA_API strata_status strata_config_get_info(const struct strata_config *config, struct strata_config_info *info);

/** What the configuration's schedule says of a step. */
struct strata_config_rates {
    size_t rates_size;   /**< sizeof(struct strata_config_rates), set by the caller */
    double lr;           /**< the optimizer's rate */
    double beta1, beta2; /**< of the optimizer, changed by OneCycle's momentum; SGD's momentum is beta1; 0 where it has none */
};
#define STRATA_CONFIG_RATES_INIT STRATA_INIT(strata_config_rates, rates_size)

/** Fill `rates` of a step; a pure function of both.
 *
 *  @param step  counted from 1; skipped ones do not count
 *
 *  @return STRATA_E_INVAL  an argument is NULL, step is 0, the configuration has problems, its schedule needs a number of steps
 *                          that nobody has said, or rates_size is another one */
STRATA_API strata_status strata_config_get_rates(const struct strata_config *config, uint64_t step,
                                                 struct strata_config_rates *rates);

/** One key.  Texts are borrowed until the configuration is closed. */
struct strata_config_row {
    size_t row_size;     /**< sizeof(struct strata_config_row), set by the caller */
    const char *path;    /**< "zero_optimization.offload_optimizer.device" */
    const char *value;   /**< in force */
    const char *origin;  /**< "default", "file", "auto", "command line" (an override), "derived" from other keys,
                              "environment" */
    const char *verdict; /**< "honoured", "notice" (no effect here), "rejected" */
    const char *reason;  /**< of the verdict, or what else to know; NULL: nothing to say */
    const char *effect;  /**< of a notice: "changes nothing", "would change speed", "asked for and not done", or "not looked at",
                              since it belongs to what is rejected; NULL: it has an effect, or is rejected */
    bool follows;        /**< from a key of a trainer's file, which has a row of its own */
};
#define STRATA_CONFIG_ROW_INIT STRATA_INIT(strata_config_row, row_size)

/** Keys with a value in force, or given. */
STRATA_API uint32_t strata_config_row_count(const struct strata_config *config);

/** Key `index`, from 0.
 *
 *  @return STRATA_E_INVAL  an argument is NULL, there is no such key, or row_size is another one */
STRATA_API strata_status strata_config_get_row(const struct strata_config *config, uint32_t index, struct strata_config_row *row);

/** Problem `index`, from 0, as a sentence; NULL past the last.  Borrowed until the configuration is closed. */
STRATA_API const char *strata_config_problem(const struct strata_config *config, uint32_t index);

/** Check the directories for swap files, as strata_plan_make() and strata_engine_create() do; STRATA_OK where nothing goes to
 *  NVMe.  Makes nothing.
 *
 *  @return STRATA_E_INPUT  one is missing, is no directory, or cannot be written */
STRATA_API strata_status strata_config_check_nvme(const struct strata_config *config);

/** Close; models that were opened with it keep what they need.  NULL is fine. */
STRATA_API void strata_config_close(struct strata_config *config);

#ifdef __cplusplus
}
#endif
#endif

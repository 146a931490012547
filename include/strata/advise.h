/* strata/advise.h - which configuration a machine should train a model with, and, where none fits, what would help.
 *
 *     struct strata_model_opts model = STRATA_MODEL_OPTS_INIT;
 *     struct strata_advice_opts opts = STRATA_ADVICE_OPTS_INIT;
 *     struct strata_advice *advice;
 *
 *     model.model = "llama-3-8b";
 *     model.use = STRATA_USE_PLAN;
 *     opts.model = &model;
 *     opts.machine = machine;
 *     st = strata_advice_make(&advice, &opts);
 *
 * Each candidate is a DeepSpeed configuration, opened and planned as any other: the one that is chosen plans the same when it is
 * read again.  What other schedules, or one more of a part, would change in a given plan is in its report (strata/plan.h). */
#ifndef STRATA_ADVISE_H
#define STRATA_ADVISE_H

#include "strata/machine.h"
#include "strata/model.h"
#include "strata/plan.h"
#include "strata/status.h"
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct strata_advice;

/** What the progress function of the model's options is told while candidates are compared: first with `done` 0. */
#define STRATA_ADVICE_COMPARES "comparing configurations"

/** What is to be trained, on what.  Begin with STRATA_ADVICE_OPTS_INIT; all is borrowed during the call. */
struct strata_advice_opts {
    size_t opts_size;                      /**< sizeof(struct strata_advice_opts) */
    const struct strata_model_opts *model; /**< its use is STRATA_USE_PLAN */
    struct strata_machine *machine;        /**< shared with the plan, measured if it is this one; NULL: this one, its CPU */
    /** [override_count] "path=value" that limit the machine: strata.device_memory, strata.host_memory, strata.threads, and
     *  strata.nvme, whose directories the configuration that is chosen names. */
    const char *const *overrides;
    uint32_t override_count;
    uint64_t batch_tokens;   /**< in a step of all ranks; 0: 131072, or a sequence for each rank if that is more */
    const char *const *data; /**< [data_count] token files, whose sequences are counted */
    uint32_t data_count;
    double tokens;  /**< of the run; 0: `steps` says how long it is */
    uint64_t steps; /**< of the run; 0: `epochs` says how long it is */
    double epochs;  /**< passes over `data`; 0: one */
};
#define STRATA_ADVICE_OPTS_INIT STRATA_INIT(strata_advice_opts, opts_size)

/**
 * Compare configurations and choose the one with the shortest step.
 *
 * @param advice  out, returned: destroyed by strata_advice_destroy().  Set with STRATA_E_NOFIT as well: it says what would help
 * @param opts    not NULL, nor is its model
 *
 * @return STRATA_E_NOFIT      no configuration fits, or none that trains all weights
 *         STRATA_E_INVAL      an argument is NULL; a step has no sequence for each rank, or too many
 *         STRATA_E_CANCELLED  the model's progress function requested it
 *         errors of opening configurations, models and data, and of strata_plan_measure(); STRATA_E_NOMEM
 *
 * Cost    seconds; minutes for huge models.
 * Thread  any; threads of its own call nothing of the caller's but the progress function, one at a time.
 */
STRATA_API strata_status strata_advice_make(struct strata_advice **advice, const struct strata_advice_opts *opts);

/** The configuration that was chosen, as the text of a file; borrowed, NULL: none fits. */
STRATA_API const char *strata_advice_config(const struct strata_advice *advice);

/** Its plan, as strata_plan_measure() leaves one; borrowed, NULL: none fits. */
STRATA_API struct strata_plan *strata_advice_plan(const struct strata_advice *advice);

/** Print the advice for people.  Lines are as wide as `file` is, if that is a terminal.
 *
 *  @return STRATA_E_INVAL  an argument is NULL */
STRATA_API strata_status strata_advice_print(const struct strata_advice *advice, FILE *file);

/** The advice for programs: the line of JSON that `strata plan --json` prints where no configuration is given (docs/json.md).
 *
 *  @param json  out, borrowed until the advice is asked for it again or destroyed
 *
 *  @return STRATA_E_INVAL  an argument is NULL
 *          STRATA_E_NOMEM */
STRATA_API strata_status strata_advice_json(struct strata_advice *advice, const char **json);

/** Destroy, with its plan; NULL is fine. */
STRATA_API void strata_advice_destroy(struct strata_advice *advice);

#ifdef __cplusplus
}
#endif
#endif

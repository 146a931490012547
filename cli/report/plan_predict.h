/* cli/report/plan_predict.h - what a step of a plan takes: by the simulator, else by its schedule bound. */
#ifndef CLI_REPORT_PLAN_PREDICT_H
#define CLI_REPORT_PLAN_PREDICT_H

#include "api/handles.h"
#include "core/json/json.h"
#include "offload/figures.h"
#include "offload/simulate.h"

#define CLI_SIMULATED_OPS_MAX 2000000u /* a larger program is not simulated */

struct cli_prediction {
    double seconds; /* 0: unknown */
    bool simulated; /* else the schedule bound */
    struct st_simulation sim;
};

/** A step of this program on a machine with these rates; its bounds count if it cannot be simulated. */
void cli_predict(struct cli_prediction *out, const struct st_program *program, const struct st_machine *machine);

/** What a step takes and what compute waits for. */
void cli_prediction_print(const struct st_program *program, const struct st_figures *figures, FILE *file);
/** "predicted_seconds" and "predicted" into an object that is open. */
void cli_prediction_put(const struct st_program *program, const struct st_figures *figures, struct st_json_writer *w);

/** The same run under every update policy (and, with several micro-batches, both orders of accumulation) that it may have.
 *  E_NOMEM. */
strata_status cli_schedules_print(const struct strata_plan *of, FILE *file);
strata_status cli_schedules_put(const struct strata_plan *of, struct st_json_writer *w);

/** What one more drive, a faster link, faster compute or updates, or more memory would change, fit to the width of `to`.  Nothing
 * where rates are unknown. E_NOMEM. */
strata_status cli_one_more_print(const struct strata_plan *of, FILE *to);
strata_status cli_one_more_put(const struct strata_plan *of, struct st_json_writer *w);

#endif

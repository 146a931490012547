/* advise/predict.h - predicts the time of a program's step: by the simulator, else by its schedule bound. */
#ifndef ADVISE_PREDICT_H
#define ADVISE_PREDICT_H

#include "advise/case.h"
#include "core/json/json.h"
#include "core/trace/written.h"
#include "offload/simulate/early_forecast.h"
#include "offload/simulate/simulate.h"

#define ST_SIMULATED_OPS_MAX 2000000u /* a larger program is not simulated */

struct st_prediction {
    double seconds;           /* 0: unknown.  With early updates the mean at the policy's clip rate */
    bool simulated;           /* false: the time is the schedule bound */
    double save_adds_seconds; /* by which a step that saves is longer; NaN: unknown, or the run saves nothing */
    bool has_early;           /* the program makes updates early, and this is known: */
    struct st_early_forecast early;
    struct st_simulation sim;
};

/** Predict a step of a plan on a machine with these rates; uses the bound if it cannot be simulated. */
void st_predict(struct st_prediction *out, const struct st_plan *plan, const struct st_machine *machine);

/** Up to what chance of being clipped a step of the plan's run makes updates early, st_engine_opts.early_most: by the rates that have
 *  chosen the plan; ST_EARLY_MOST where none have.  Below 0: no step does. */
double st_predict_early_most(const struct st_case *of);

/** Why a program was not simulated, after st_predict().  Static, or this thread's last error. */
const char *st_prediction_lacks(const struct st_program *program, const struct st_machine *machine);

/** Seconds into an object that is open; null where they are not known. */
void st_put_seconds(struct st_json_writer *w, const char *key, double seconds);
/** Print the time of a step and what compute waits for. */
void st_prediction_print(const struct st_case *of, FILE *file);
/** "predicted_seconds" and "predicted" into an object that is open. */
void st_prediction_put(const struct st_case *of, struct st_json_writer *w);

/** How much a run of the plan will write to its drives: so many steps at the predicted pace; 0: nobody knows how many. */
void st_endurance_planned(struct st_written *out, const struct st_case *of, uint64_t steps);

#endif

/* api/predict.h - what a step of a program takes: by the simulator, else by its schedule bound. */
#ifndef API_PREDICT_H
#define API_PREDICT_H

#include "core/json/json.h"
#include "offload/simulate/figures.h"
#include "offload/simulate/simulate.h"

struct strata_plan;

#define ST_SIMULATED_OPS_MAX 2000000u /* a larger program is not simulated */

struct st_prediction {
    double seconds; /* 0: unknown */
    bool simulated; /* else the schedule bound */
    struct st_simulation sim;
};

/** A step of this program on a machine with these rates; its bounds count if it cannot be simulated. */
void st_predict(struct st_prediction *out, const struct st_program *program, const struct st_machine *machine);

/** What a step takes and what compute waits for. */
void st_prediction_print(const struct strata_plan *of, FILE *file);
/** "predicted_seconds" and "predicted" into an object that is open. */
void st_prediction_put(const struct strata_plan *of, struct st_json_writer *w);

#endif

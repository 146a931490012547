/* offload/simulate/early_forecast.h - what a run takes whose steps make updates early, or not, by how many of them are clipped.
 */
#ifndef OFFLOAD_SIMULATE_EARLY_FORECAST_H
#define OFFLOAD_SIMULATE_EARLY_FORECAST_H

#include "offload/machine/rates.h"
#include "offload/program/program.h"

/* Seconds, simulated. */
struct st_early_forecast {
    double kept;      /* a steady step of a run in which none is clipped or skipped */
    double redo_adds; /* what one that is costs the steps after it */
    double gated;     /* a steady step of a run in which none makes updates early */
};

/** Of a program that can make some, whose steady step st_simulate() has found to take `kept` seconds.  Errors as there. */
strata_status st_early_forecast_make(struct st_early_forecast *out, double kept, const struct st_program *program,
                                     const struct st_machine *machine);

/** Up to what chance of being clipped a step is the faster for making updates early: st_engine_opts.early_most. */
double st_early_forecast_most(const struct st_early_forecast *f);
/** The mean step of a run of which this share of the steps is clipped, and which goes by that. */
double st_early_forecast_mean(const struct st_early_forecast *f, double clip_rate);

#endif

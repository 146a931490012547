/* offload/optim/loss_scale.h - DeepSpeed's loss scaler for fp16: a scale that grows while gradients stay finite.
 *
 * State is four numbers, kept with the run; bf16 and fp32 use scale 1 and never change it. */
#ifndef OFFLOAD_OPTIM_LOSS_SCALE_H
#define OFFLOAD_OPTIM_LOSS_SCALE_H

#include "strata/status.h"
#include <stdbool.h>
#include <stdint.h>

struct st_loss_scaling {
    double scale; /* 0: dynamic, starting at 2^initial_power */
    uint32_t initial_power, window, hysteresis;
    double min_scale;
    bool consecutive_hysteresis;
};

struct st_loss_scaler {
    double scale;
    bool dynamic, consecutive_hysteresis;
    uint32_t window, hysteresis, hysteresis_left;
    double min_scale;
    uint64_t iteration;
    int64_t last_overflow; /* -1: none yet */
};

/** Initialise from the options; NULL: a constant scale of 1 (not fp16). */
void st_loss_scaler_init(struct st_loss_scaler *s, const struct st_loss_scaling *opts);

/** Go on from `was`, the state of a run that resumes, with the settings of `s`, which is initialised from this run's options:
 * where both are dynamic the scale goes on, not below this run's floor; else `s` begins. */
void st_loss_scaler_resume(struct st_loss_scaler *s, const struct st_loss_scaler *was);

/** After a step: overflow says whether a gradient was not finite (that step's update is skipped).
 *  E_NUMERICS: overflow at the smallest scale: training cannot continue.
 *  Source: DeepSpeed runtime/fp16/loss_scaler.py; docs/design.md. */
strata_status st_loss_scaler_step(struct st_loss_scaler *s, bool overflow);

#endif

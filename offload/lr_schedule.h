/* offload/lr_schedule.h - the learning rate of an optimizer step, as DeepSpeed's schedulers give it. */
#ifndef OFFLOAD_LR_SCHEDULE_H
#define OFFLOAD_LR_SCHEDULE_H

#include "offload/config/config.h"

/**
 * Learning rate of an optimizer step.
 *
 * @param c               resolved config
 * @param optimizer_step  counted from 1; steps whose update was skipped do not count
 *
 * @return the rate; a pure function of both, so a resumed run needs no scheduler state.
 *
 * Numerics  double; relative error of libm's log only.
 * Source    DeepSpeed runtime/lr_schedules.py: the constructor sets the first rate and the scheduler steps after the
 *           optimizer, so steps 1 and 2 both use iteration 0 and step k uses iteration k - 2.
 */
double st_lr_at(const struct st_config *c, uint64_t optimizer_step);

/** Betas of an optimizer step: the config's, or what OneCycle's momentum makes of them.  Pure, like st_lr_at.
 * SGD's momentum is beta1; an optimizer without betas has 0. */
void st_betas_at(const struct st_config *c, uint64_t optimizer_step, double *beta1, double *beta2);

#endif

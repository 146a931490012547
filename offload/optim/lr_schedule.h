/* offload/optim/lr_schedule.h - learning rate and betas of an optimizer step, as in DeepSpeed's schedulers or in those of
 * transformers. Pure; any thread.
 *
 * The engine has no schedule: its caller evaluates one before each step (offload/engine/engine.h, st_engine_set_lr). */
#ifndef OFFLOAD_OPTIM_LR_SCHEDULE_H
#define OFFLOAD_OPTIM_LR_SCHEDULE_H

#include "offload/optim/optimizer.h"

enum st_lr_type {
    ST_LR_CONSTANT = 0,
    ST_LR_WARMUP = 1,
    ST_LR_WARMUP_DECAY = 2,
    ST_LR_WARMUP_COSINE = 3,
    ST_LR_ONE_CYCLE = 4,
    ST_LR_RANGE_TEST = 5
};

/* transformers' get_scheduler(): fractions of the optimizer's rate.  NONE: `type` decides. */
enum st_lr_shape {
    ST_LR_SHAPE_NONE = 0,
    ST_LR_SHAPE_LINEAR = 1,
    ST_LR_SHAPE_COSINE = 2,
    ST_LR_SHAPE_CONSTANT = 3,
    ST_LR_SHAPE_CONSTANT_WITH_WARMUP = 4,
    ST_LR_SHAPE_COSINE_WITH_MIN_LR = 5
};

/* Arguments that belong to other schedules than `type` are 0. */
struct st_lr_schedule {
    enum st_lr_type type;
    enum st_lr_shape shape;
    uint64_t shape_warmup, shape_steps;  /* of warm-up; of all of it, which constant has not */
    double shape_warmup_ratio;           /* warm-up as a fraction of the run, if shape_warmup is 0 */
    double shape_min_lr, shape_min_rate; /* where COSINE_WITH_MIN_LR ends: a rate, if it is above 0, or a fraction */
    double warmup_min_lr, warmup_max_lr; /* max NaN: the optimizer's lr */
    uint64_t warmup_steps, total_steps;
    double warmup_ratio; /* 0, or what warmup_steps are of the run's, once its length is known */
    bool warmup_log;                        /* logarithmic (DeepSpeed's default) or linear */
    double warmup_min_ratio, cos_min_ratio; /* WarmupCosineLR */
    double cycle_min_lr, cycle_max_lr, decay_lr_rate, cycle_min_mom, cycle_max_mom, decay_mom_rate; /* OneCycle */
    uint64_t cycle_first_step_size, cycle_second_step_size, cycle_first_stair_count, cycle_second_stair_count, decay_step_size;
    bool cycle_momentum;
    double range_min_lr, range_step_rate; /* LRRangeTest */
    uint64_t range_step_size;
    bool range_staircase;
};

/**
 * Learning rate of an optimizer step.
 *
 * @param s               the schedule
 * @param o               the optimizer, whose lr is the constant rate and what some schedules are fractions of
 * @param optimizer_step  counted from 1; steps whose update was skipped do not count
 *
 * @return the rate; a pure function of all three, so a resumed run needs no scheduler state.
 *
 * Numerics  double; relative error of libm's log only.
 * Source    DeepSpeed runtime/lr_schedules.py: the constructor sets the first rate and the scheduler steps after the
 *           optimizer, so steps 1 and 2 both use iteration 0 and step k uses iteration k - 2.  transformers
 *           optimization.py: step k uses k - 1.
 */
double st_lr_at(const struct st_lr_schedule *s, const struct st_optimizer *o, uint64_t optimizer_step);

/** Steps of warm-up as transformers' Trainer counts them: `warmup`, or if that is 0 a fraction of the run's steps, rounded up. */
uint64_t st_lr_warmup(uint64_t warmup, double ratio, uint64_t steps);

/** Betas of an optimizer step: those of the optimizer, changed by OneCycle's momentum if that is in use.  Pure, like st_lr_at.
 *  The momentum of SGD is beta1; for an optimizer without betas it is 0. */
void st_betas_at(const struct st_lr_schedule *s, const struct st_optimizer *o, uint64_t optimizer_step, double *beta1,
                 double *beta2);

#endif

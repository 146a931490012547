/* lr_schedule.c - WarmupLR, WarmupDecayLR and the constant rate. */
#include "offload/lr_schedule.h"

#include <math.h>

#define WARMUP_STEPS_MIN 2 /* DeepSpeed's floor: log(1) would divide by zero */

/* Share of the way from warmup_min_lr to warmup_max_lr at an iteration counted from 0. */
static double gamma_at(const struct st_config *c, uint64_t iteration)
{
    const uint64_t warmup = c->warmup_steps > WARMUP_STEPS_MIN ? c->warmup_steps : WARMUP_STEPS_MIN;
    uint64_t left, span;

    if (iteration < warmup && c->warmup_log)
        return log((double)iteration + 1) / log((double)warmup);
    if (iteration < warmup)
        return (double)iteration / (double)warmup;
    if (c->lr_type == ST_LR_WARMUP)
        return 1;
    left = c->total_steps > iteration ? c->total_steps - iteration : 0;
    span = c->total_steps > warmup + 1 ? c->total_steps - warmup : 1;
    return (double)left / (double)span;
}

double st_lr_at(const struct st_config *c, uint64_t optimizer_step)
{
    const double max_lr = isnan(c->warmup_max_lr) ? c->lr : c->warmup_max_lr;

    if (c->lr_type == ST_LR_CONSTANT)
        return c->lr;
    return c->warmup_min_lr + (max_lr - c->warmup_min_lr) * gamma_at(c, optimizer_step < 2 ? 0 : optimizer_step - 2);
}

/* lr_schedule.c - DeepSpeed's five schedulers and the constant rate. */
#include "offload/lr_schedule.h"

#include <math.h>

#define WARMUP_STEPS_MIN 2    /* DeepSpeed's floor: log(1) would divide by zero */
#define CYCLE_BETA2      0.99 /* OneCycle writes betas = (momentum, 0.99) */
#define PI               3.14159265358979323846

static uint64_t warmup_of(const struct st_config *c)
{
    return c->warmup_steps > WARMUP_STEPS_MIN ? c->warmup_steps : WARMUP_STEPS_MIN;
}

/* Share of the way up during warm-up, at an iteration counted from 0. */
static double warmup_share(const struct st_config *c, uint64_t iteration)
{
    const double warmup = (double)warmup_of(c);

    return c->warmup_log ? log((double)iteration + 1) / log(warmup) : (double)iteration / warmup;
}

/* Share of the way from warmup_min_lr to warmup_max_lr. */
static double warmup_decay_share(const struct st_config *c, uint64_t iteration)
{
    const uint64_t warmup = warmup_of(c);
    uint64_t left, span;

    if (iteration < warmup)
        return warmup_share(c, iteration);
    if (c->lr_type == ST_LR_WARMUP)
        return 1;
    left = c->total_steps > iteration ? c->total_steps - iteration : 0;
    span = c->total_steps > warmup + 1 ? c->total_steps - warmup : 1;
    return (double)left / (double)span;
}

/* Share of the optimizer's rate. */
static double cosine_share(const struct st_config *c, uint64_t iteration)
{
    const uint64_t warmup = warmup_of(c);
    const uint64_t span = c->total_steps > warmup + 1 ? c->total_steps - warmup : 1;
    uint64_t past;

    if (iteration < warmup)
        return c->warmup_min_ratio + (1 - c->warmup_min_ratio) * warmup_share(c, iteration);
    past = iteration - warmup + 1 < span ? iteration - warmup + 1 : span;
    return c->cos_min_ratio + (1 - c->cos_min_ratio) * (1 + cos(PI * (double)past / (double)span)) / 2;
}

static uint64_t cycle_steps(const struct st_config *c)
{
    return c->cycle_first_step_size + c->cycle_second_step_size;
}

/* Height in the triangle, 0 at its ends and 1 at its top; stairs take the floor of exact positions. */
static double cycle_height(const struct st_config *c, uint64_t iteration)
{
    const uint64_t at = iteration % cycle_steps(c);
    const bool rising = at <= c->cycle_first_step_size;
    const double position = (double)(rising ? at : cycle_steps(c) - at);
    const double size = (double)(rising ? c->cycle_first_step_size : c->cycle_second_step_size);
    const double stairs = (double)(rising ? c->cycle_first_stair_count : c->cycle_second_stair_count);

    return stairs > 0 ? floor(position * stairs / size) / stairs : position / size;
}

/* Decay intervals since the cycle ended; iteration >= cycle_steps. */
static double decay_intervals(const struct st_config *c, uint64_t iteration)
{
    if (c->decay_step_size == 0)
        return 0;
    return (double)(iteration - cycle_steps(c) + 1) / (double)c->decay_step_size;
}

static double cycle_lr(const struct st_config *c, uint64_t iteration)
{
    if (iteration >= cycle_steps(c))
        return c->cycle_min_lr / (1 + c->decay_lr_rate * decay_intervals(c, iteration));
    return c->cycle_min_lr + (c->cycle_max_lr - c->cycle_min_lr) * cycle_height(c, iteration + 1);
}

/* Runs opposite to the rate. */
static double cycle_momentum(const struct st_config *c, uint64_t iteration)
{
    if (iteration >= cycle_steps(c))
        return c->cycle_max_mom * (1 + c->decay_mom_rate * decay_intervals(c, iteration));
    return c->cycle_max_mom - (c->cycle_max_mom - c->cycle_min_mom) * cycle_height(c, iteration + 1);
}

static double range_test_lr(const struct st_config *c, uint64_t steps_before)
{
    const double share = (double)steps_before / (double)c->range_step_size;

    return c->range_min_lr * (1 + c->range_step_rate * (c->range_staircase ? floor(share) : share));
}

double st_lr_at(const struct st_config *c, uint64_t optimizer_step)
{
    const double max_lr = isnan(c->warmup_max_lr) ? c->lr : c->warmup_max_lr;
    const uint64_t iteration = optimizer_step < 2 ? 0 : optimizer_step - 2;

    switch (c->lr_type) {
    case ST_LR_CONSTANT:
        break;
    case ST_LR_WARMUP:
    case ST_LR_WARMUP_DECAY:
        return c->warmup_min_lr + (max_lr - c->warmup_min_lr) * warmup_decay_share(c, iteration);
    case ST_LR_WARMUP_COSINE:
        return optimizer_step < 2 ? 0 : c->lr * cosine_share(c, iteration);
    case ST_LR_ONE_CYCLE:
        return optimizer_step < 2 ? c->cycle_min_lr : cycle_lr(c, iteration);
    case ST_LR_RANGE_TEST:
        return range_test_lr(c, optimizer_step < 1 ? 0 : optimizer_step - 1);
    }
    return c->lr;
}

void st_betas_at(const struct st_config *c, uint64_t optimizer_step, double *beta1, double *beta2)
{
    *beta1 = c->optimizer == ST_OPTIMIZER_SGD ? c->momentum : c->beta1;
    *beta2 = c->beta2;
    if (c->lr_type != ST_LR_ONE_CYCLE || !c->cycle_momentum)
        return;
    *beta1 = optimizer_step < 2 ? c->cycle_min_mom : cycle_momentum(c, optimizer_step - 2);
    *beta2 = CYCLE_BETA2;
}

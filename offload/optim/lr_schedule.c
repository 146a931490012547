/* lr_schedule.c - DeepSpeed's five schedulers, five of transformers', and the constant rate. */
#include "offload/optim/lr_schedule.h"

#include <math.h>

#define WARMUP_STEPS_MIN 2    /* DeepSpeed's floor: log(1) would divide by zero */
#define CYCLE_BETA2      0.99 /* OneCycle writes betas = (momentum, 0.99) */
#define PI               3.14159265358979323846

static uint64_t warmup_of(const struct st_lr_schedule *s)
{
    return s->warmup_steps > WARMUP_STEPS_MIN ? s->warmup_steps : WARMUP_STEPS_MIN;
}

/* Fraction of the way up during warm-up, at an iteration counted from 0. */
static double warmup_fraction(const struct st_lr_schedule *s, uint64_t iteration)
{
    const double warmup = (double)warmup_of(s);

    return s->warmup_log ? log((double)iteration + 1) / log(warmup) : (double)iteration / warmup;
}

/* Fraction of the way from warmup_min_lr to warmup_max_lr. */
static double warmup_decay_fraction(const struct st_lr_schedule *s, uint64_t iteration)
{
    const uint64_t warmup = warmup_of(s);
    uint64_t left, span;

    if (iteration < warmup)
        return warmup_fraction(s, iteration);
    if (s->type == ST_LR_WARMUP)
        return 1;
    left = s->total_steps > iteration ? s->total_steps - iteration : 0;
    span = s->total_steps > warmup + 1 ? s->total_steps - warmup : 1;
    return (double)left / (double)span;
}

/* The rate as a fraction of the optimizer's rate. */
static double cosine_fraction(const struct st_lr_schedule *s, uint64_t iteration)
{
    const uint64_t warmup = warmup_of(s);
    const uint64_t span = s->total_steps > warmup + 1 ? s->total_steps - warmup : 1;
    uint64_t past;

    if (iteration < warmup)
        return s->warmup_min_ratio + (1 - s->warmup_min_ratio) * warmup_fraction(s, iteration);
    past = iteration - warmup + 1 < span ? iteration - warmup + 1 : span;
    return s->cos_min_ratio + (1 - s->cos_min_ratio) * (1 + cos(PI * (double)past / (double)span)) / 2;
}

static uint64_t cycle_steps(const struct st_lr_schedule *s)
{
    return s->cycle_first_step_size + s->cycle_second_step_size;
}

/* Height in the triangle: 0 at its ends, 1 at its top.  With stairs the position is rounded down. */
static double cycle_height(const struct st_lr_schedule *s, uint64_t iteration)
{
    const uint64_t at = iteration % cycle_steps(s);
    const bool rising = at <= s->cycle_first_step_size;
    const double position = (double)(rising ? at : cycle_steps(s) - at);
    const double size = (double)(rising ? s->cycle_first_step_size : s->cycle_second_step_size);
    const double stairs = (double)(rising ? s->cycle_first_stair_count : s->cycle_second_stair_count);

    return stairs > 0 ? floor(position * stairs / size) / stairs : position / size;
}

/* Decay intervals since the cycle ended; iteration >= cycle_steps. */
static double decay_intervals(const struct st_lr_schedule *s, uint64_t iteration)
{
    if (s->decay_step_size == 0)
        return 0;
    return (double)(iteration - cycle_steps(s) + 1) / (double)s->decay_step_size;
}

static double cycle_lr(const struct st_lr_schedule *s, uint64_t iteration)
{
    if (iteration >= cycle_steps(s))
        return s->cycle_min_lr / (1 + s->decay_lr_rate * decay_intervals(s, iteration));
    return s->cycle_min_lr + (s->cycle_max_lr - s->cycle_min_lr) * cycle_height(s, iteration + 1);
}

/* Momentum runs opposite to the rate. */
static double cycle_momentum(const struct st_lr_schedule *s, uint64_t iteration)
{
    if (iteration >= cycle_steps(s))
        return s->cycle_max_mom * (1 + s->decay_mom_rate * decay_intervals(s, iteration));
    return s->cycle_max_mom - (s->cycle_max_mom - s->cycle_min_mom) * cycle_height(s, iteration + 1);
}

static double range_test_lr(const struct st_lr_schedule *s, uint64_t steps_before)
{
    const double stairs = (double)steps_before / (double)s->range_step_size;

    return s->range_min_lr * (1 + s->range_step_rate * (s->range_staircase ? floor(stairs) : stairs));
}

uint64_t st_lr_warmup(uint64_t warmup, double ratio, uint64_t steps)
{
    return warmup > 0 ? warmup : (uint64_t)ceil((double)steps * ratio);
}

/* The rate as a fraction of the optimizer's, before step `before` + 1. */
static double shape_fraction(const struct st_lr_schedule *s, double lr, uint64_t before)
{
    const double least = s->shape_min_lr > 0 ? s->shape_min_lr / lr : s->shape_min_rate; /* 0 but for COSINE_WITH_MIN_LR */
    const uint64_t warmup = st_lr_warmup(s->shape_warmup, s->shape_warmup_ratio, s->shape_steps);
    const double span = s->shape_steps > warmup ? (double)(s->shape_steps - warmup) : 1;

    if (s->shape == ST_LR_SHAPE_CONSTANT)
        return 1;
    if (before < warmup)
        return (double)before / (double)warmup;
    if (s->shape == ST_LR_SHAPE_CONSTANT_WITH_WARMUP)
        return 1;
    if (before >= s->shape_steps) /* where the formula of cosine would rise again */
        return least;
    if (s->shape == ST_LR_SHAPE_LINEAR)
        return (double)(s->shape_steps - before) / span;
    return fmax(0, 0.5 * (1 + cos(PI * ((double)(before - warmup) / span))) * (1 - least) + least);
}

double st_lr_at(const struct st_lr_schedule *s, const struct st_optimizer *o, uint64_t optimizer_step)
{
    const double max_lr = isnan(s->warmup_max_lr) ? o->lr : s->warmup_max_lr;
    const uint64_t iteration = optimizer_step < 2 ? 0 : optimizer_step - 2;

    if (s->shape != ST_LR_SHAPE_NONE)
        return o->lr == 0 ? 0 : o->lr * shape_fraction(s, o->lr, optimizer_step < 1 ? 0 : optimizer_step - 1);
    switch (s->type) {
    case ST_LR_CONSTANT:
        break;
    case ST_LR_WARMUP:
    case ST_LR_WARMUP_DECAY:
        return s->warmup_min_lr + (max_lr - s->warmup_min_lr) * warmup_decay_fraction(s, iteration);
    case ST_LR_WARMUP_COSINE:
        return optimizer_step < 2 ? 0 : o->lr * cosine_fraction(s, iteration);
    case ST_LR_ONE_CYCLE:
        return optimizer_step < 2 ? s->cycle_min_lr : cycle_lr(s, iteration);
    case ST_LR_RANGE_TEST:
        return range_test_lr(s, optimizer_step < 1 ? 0 : optimizer_step - 1);
    }
    return o->lr;
}

void st_betas_at(const struct st_lr_schedule *s, const struct st_optimizer *o, uint64_t optimizer_step, double *beta1,
                 double *beta2)
{
    *beta1 = st_optimizer_beta1(o);
    *beta2 = o->beta2;
    if (s->type != ST_LR_ONE_CYCLE || !s->cycle_momentum)
        return;
    *beta1 = optimizer_step < 2 ? s->cycle_min_mom : cycle_momentum(s, optimizer_step - 2);
    *beta2 = CYCLE_BETA2;
}

/* loss_scale.c - the scale doubles after a window of good steps, and halves once overflows have used up the hysteresis. */
#include "offload/optim/loss_scale.h"

#include "core/base/error.h"
#include <inttypes.h>
#include <math.h>
#include <stddef.h>

#define SCALE_FACTOR 2

void st_loss_scaler_init(struct st_loss_scaler *s, const struct st_loss_scaling *opts)
{
    static const struct st_loss_scaling none = {.scale = 1};
    const struct st_loss_scaling *from = opts != NULL ? opts : &none;
    const bool dynamic = from->scale == 0;

    *s = (struct st_loss_scaler){
        .scale = dynamic ? ldexp(1, (int)from->initial_power) : from->scale,
        .dynamic = dynamic,
        .consecutive_hysteresis = from->consecutive_hysteresis,
        .window = from->window,
        .hysteresis = from->hysteresis,
        .hysteresis_left = from->hysteresis,
        .min_scale = from->min_scale,
        .last_overflow = -1,
    };
}

void st_loss_scaler_resume(struct st_loss_scaler *s, const struct st_loss_scaler *was)
{
    const uint32_t used = was->hysteresis_left < was->hysteresis ? was->hysteresis - was->hysteresis_left : 0;

    if (!s->dynamic || !was->dynamic)
        return;
    s->scale = fmax(was->scale, s->min_scale);
    s->hysteresis_left = s->hysteresis > used ? s->hysteresis - used : 1;
    s->iteration = was->iteration;
    s->last_overflow = was->last_overflow;
}

static strata_status take_overflow(struct st_loss_scaler *s)
{
    if (s->hysteresis == 0)
        return STRATA_OK; /* reference: DeepSpeed's DynamicLossScaler, whose counter is then never 1 */
    if (s->hysteresis > 1 && s->hysteresis_left > 1) {
        s->hysteresis_left--;
        return STRATA_OK;
    }
    if (s->scale <= s->min_scale)
        return st_error(STRATA_E_NUMERICS,
                        "gradients overflowed at loss scale %g, fp16.min_loss_scale, after %" PRIu64
                        " steps: train in bf16, or lower the learning rate",
                        s->scale, s->iteration + 1);
    s->scale = fmax(s->scale / SCALE_FACTOR, s->min_scale);
    return STRATA_OK;
}

static void take_good(struct st_loss_scaler *s)
{
    const int64_t good_before = (int64_t)s->iteration - s->last_overflow - 1;

    if (s->consecutive_hysteresis)
        s->hysteresis_left = s->hysteresis;
    if (good_before <= 0 || good_before % s->window != 0)
        return;
    s->hysteresis_left = s->hysteresis;
    s->scale *= SCALE_FACTOR;
}

strata_status st_loss_scaler_step(struct st_loss_scaler *s, bool overflow)
{
    strata_status st = STRATA_OK;

    if (!s->dynamic)
        return STRATA_OK;
    if (overflow) {
        st = take_overflow(s);
        s->last_overflow = (int64_t)s->iteration;
    } else {
        take_good(s);
    }
    s->iteration++;
    return st;
}

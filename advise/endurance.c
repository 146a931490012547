/* advise/endurance.c - see endurance.h. */
#include "advise/endurance.h"
#include "advise/predict.h"

#include <math.h>

static double written(const struct st_figures *figures, enum st_phase phase)
{
    return (double)figures->traffic[st_phase_index(phase)].write;
}

/* Checkpoints of a run: every so many steps, and at its end. */
static double saves(const struct st_config *config, uint64_t steps)
{
    return (double)(config->save_every > 0 ? (steps - 1) / config->save_every + 1 : 1);
}

void st_endurance_planned(struct st_written *out, const struct st_case *of, uint64_t steps)
{
    const struct st_plan *plan = of->plan;
    const struct st_config *config = of->config;
    const double step = written(&of->figures, ST_PHASE_BODY), save = (double)of->figures.save_bytes;
    const double paced = step + (config->save_every > 0 ? save / (double)config->save_every : 0);
    struct st_prediction p = {0};
    double seconds;

    st_predict(&p, &plan->program, &of->machine);
    seconds = p.seconds +
              (config->save_every > 0 && isfinite(p.save_adds_seconds) ? p.save_adds_seconds / (double)config->save_every : 0);
    *out = (struct st_written){.step_bytes = (uint64_t)step,
                               .run_bytes = (double)NAN,
                               .day_bytes = p.seconds > 0 ? paced / seconds * ST_WRITTEN_DAY : (double)NAN};
    if (steps == 0)
        return;
    out->run_bytes = step * (double)steps + save * saves(config, steps);
    if (plan->policy.update == ST_UPDATE_GATED) /* the first step updates nothing; the final flush makes up for it */
        out->run_bytes += written(&of->figures, ST_PHASE_PROLOGUE) + written(&of->figures, ST_PHASE_EPILOGUE) - step;
}

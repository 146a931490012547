/* early_forecast.c - see early_forecast.h. */
#include "offload/simulate/early_forecast.h"

#include "offload/simulate/simulate.h"

strata_status st_early_forecast_make(struct st_early_forecast *out, double kept, const struct st_program *program,
                                     const struct st_machine *machine)
{
    struct st_scratch scratch = {0};
    strata_status st = st_simulate_redo(&out->redo_adds, program, machine);

    if (st == STRATA_OK)
        st = st_simulate_beside(&out->gated, program, machine, ST_PHASE_REDO | ST_PHASE_LATE, &scratch);
    out->kept = kept;
    st_scratch_free(&scratch);
    return st;
}

double st_early_forecast_most(const struct st_early_forecast *f)
{
    const double gain = f->gated - f->kept;

    return !(gain > 0) ? -1 : gain < f->redo_adds ? gain / f->redo_adds : 1;
}

double st_early_forecast_mean(const struct st_early_forecast *f, double clip_rate)
{
    return clip_rate <= st_early_forecast_most(f) ? f->kept + clip_rate * f->redo_adds : f->gated;
}

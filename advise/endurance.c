/* advise/endurance.c - see endurance.h. */
#include "advise/endurance.h"
#include "advise/predict.h"
#include "core/base/print.h"
#include "core/base/size.h"

#include <math.h>
#include <stdio.h>

#define SECONDS_PER_DAY 86400.0

static double written(const struct st_figures *figures, enum st_phase phase)
{
    return (double)figures->traffic[st_phase_index(phase)].write;
}

/* Checkpoints of a run: every so many steps, and at its end. */
static double saves(const struct st_config *config, uint64_t steps)
{
    return (double)(config->save_every > 0 ? (steps - 1) / config->save_every + 1 : 1);
}

void st_endurance_planned(struct st_endurance *out, const struct st_case *of, uint64_t steps)
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
    *out = (struct st_endurance){.step_bytes = (uint64_t)step,
                                 .run_bytes = (double)NAN,
                                 .day_bytes = p.seconds > 0 ? paced / seconds * SECONDS_PER_DAY : (double)NAN};
    if (steps == 0)
        return;
    out->run_bytes = step * (double)steps + save * saves(config, steps);
    if (plan->policy.update == ST_UPDATE_GATED) /* the first step updates nothing; the final flush makes up for it */
        out->run_bytes += written(&of->figures, ST_PHASE_PROLOGUE) + written(&of->figures, ST_PHASE_EPILOGUE) - step;
}

void st_endurance_counted(struct st_endurance *out, double step_bytes, uint64_t bytes, double seconds)
{
    *out = (struct st_endurance){.step_bytes = step_bytes > 0 ? (uint64_t)step_bytes : 0,
                                 .run_bytes = (double)bytes,
                                 .day_bytes = seconds > 0 ? (double)bytes / seconds * SECONDS_PER_DAY : (double)NAN};
}

/* A run of very many steps writes more than a whole number of bytes can say. */
static const char *bytes_text(char buf[24], double bytes)
{
    if (bytes < 0x1p64)
        return st_size_text(buf, (uint64_t)bytes);
    snprintf(buf, 24, "over 16 EiB");
    return buf;
}

void st_endurance_print(const struct st_endurance *e, const char *label, FILE *file)
{
    char text[24];

    if (e->step_bytes == 0 && !(e->run_bytes > 0))
        return;
    st_print(file, "  %s%s a step", label, st_size_text(text, e->step_bytes));
    if (isfinite(e->run_bytes))
        st_print(file, ", %s by the run", bytes_text(text, e->run_bytes));
    if (isfinite(e->day_bytes))
        st_print(file, ", %s a day at this pace", bytes_text(text, e->day_bytes));
    st_print_text(file, "; a drive's data sheet says how much it endures (TBW, DWPD)\n");
}

void st_endurance_put(const struct st_endurance *e, struct st_json_writer *w)
{
    st_json_object_open(w, "written");
    st_json_put_u64(w, "step", e->step_bytes);
    st_json_put_double(w, "run", e->run_bytes);
    st_json_put_double(w, "day", e->day_bytes);
    st_json_object_close(w);
}

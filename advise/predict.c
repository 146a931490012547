/* advise/predict.c - predicts the time of a program's step, prints it, and says what its run will write to drives. */
#include "advise/predict.h"
#include "advise/plan_report.h"
#include "core/base/error.h"
#include "core/base/print.h"
#include "core/base/size.h"
#include "offload/engine/engine.h"

#include <math.h>
#include <string.h>

void st_predict(struct st_prediction *out, const struct st_plan *plan, const struct st_machine *machine)
{
    const struct st_program *program = &plan->program;
    struct st_bounds bounds;

    memset(out, 0, sizeof(*out));
    out->save_adds_seconds = (double)NAN;
    if (program->op_count <= ST_SIMULATED_OPS_MAX && st_simulate_possible(program, machine))
        out->simulated = st_simulate(&out->sim, program, machine) == STRATA_OK;
    if (out->simulated && program->sets > 0 && st_simulate_save(&out->save_adds_seconds, program, machine) != STRATA_OK)
        out->save_adds_seconds = (double)NAN;
    if (out->simulated) {
        out->seconds = out->sim.seconds;
        out->has_early =
            program->early_pages > 0 && st_early_forecast_make(&out->early, out->sim.seconds, program, machine) == STRATA_OK;
        if (out->has_early)
            out->seconds = st_early_forecast_mean(&out->early, plan->policy.clip_rate);
        return;
    }
    st_bounds_make(&bounds, program, machine);
    out->seconds = bounds.schedule;
}

double st_predict_early_most(const struct st_case *of)
{
    struct st_prediction p;

    if (of->plan->program.early_pages == 0 || st_case_evaluator(of, &of->machine) == NULL)
        return ST_EARLY_MOST;
    st_predict(&p, of->plan, &of->machine);
    return p.has_early ? st_early_forecast_most(&p.early) : ST_EARLY_MOST;
}

void st_put_seconds(struct st_json_writer *w, const char *key, double seconds)
{
    st_json_put_double(w, key, seconds > 0 ? seconds : (double)NAN);
}

/* --- the program itself --- */

#define CLIPPED 0.05 /* a share of the steps that is told beside none */

/* What of the steps is clipped is data: what one costs, and so many. */
static void print_redo(const struct st_case *of, const struct st_prediction *p, FILE *file)
{
    const struct st_program *program = &of->plan->program;
    const double rate = of->plan->policy.clip_rate > 0 ? of->plan->policy.clip_rate : CLIPPED, most = st_predict_early_most(of);
    const struct st_traffic redone = st_program_traffic(program, ST_PHASE_BODY_REDO),
                            kept = st_program_traffic(program, ST_PHASE_BODY);
    char more[24], mean[24], gated[24], bytes[24];

    st_print(file, "  after a step that is clipped: %s more, and nvme moves %s more; with %.3g %% of such steps the mean is %s\n",
             st_seconds_text(more, p->early.redo_adds), st_size_text(bytes, redone.read + redone.write - kept.read - kept.write),
             100 * rate, st_seconds_text(mean, st_early_forecast_mean(&p->early, rate)));
    st_seconds_text(gated, p->early.gated);
    if (most < 0)
        st_print(file, "  no step makes updates early, which takes less: %s\n", gated);
    else if (most < 1)
        st_print(file, "  a step that is likelier to be clipped than %.0f %% makes no update early: %s\n", 100 * most, gated);
    if (!(of->plan->policy.clip_rate > 0))
        st_print_text(file, "  where more steps are clipped another plan may be faster: strata.clip_rate says how many\n");
}

static void print_stalls(const struct st_simulation *sim, FILE *file)
{
    char seconds[24];
    bool any = false;

    for (uint32_t lane = 0; lane < STRATA_LANE_COUNT; lane++) {
        if (sim->stall[lane] < sim->seconds * 5e-4)
            continue;
        st_print(file, "%s %s %s (%.1f %%)", any ? "," : "  compute waits for:", st_lane_name((enum strata_lane)lane),
                 st_seconds_text(seconds, sim->stall[lane]), 100 * sim->stall[lane] / sim->seconds);
        any = true;
    }
    st_print_text(file, any ? "\n" : "  compute never waits\n");
}

const char *st_prediction_lacks(const struct st_program *program, const struct st_machine *machine)
{
    if (program->op_count > ST_SIMULATED_OPS_MAX)
        return "a program this long is not simulated";
    return st_simulate_possible(program, machine) ? strata_last_error() : "a rate that the simulation needs is not known";
}

void st_prediction_print(const struct st_case *of, FILE *file)
{
    const struct st_program *program = &of->plan->program;
    const struct st_figures *figures = &of->figures;
    struct st_prediction p;
    char seconds[24];

    st_predict(&p, of->plan, &figures->machine);
    if (!(p.seconds > 0))
        return;
    if (!p.simulated) {
        st_print(file, "  predicted step: %s, the schedule's bound, since %s\n", st_seconds_text(seconds, p.seconds),
                 st_prediction_lacks(program, &figures->machine));
        return;
    }
    st_print(file, "  predicted step: %s", st_seconds_text(seconds, p.seconds));
    if (figures->bounds.schedule > 0)
        st_print(file, ", %.2f of the schedule's bound, %.2f of the hardware's", p.seconds / figures->bounds.schedule,
                 p.seconds / figures->bounds.hardware);
    st_print(file, "\n");
    if (isfinite(p.save_adds_seconds))
        st_print(file, "  a step that saves a checkpoint: %s more\n", st_seconds_text(seconds, p.save_adds_seconds));
    if (p.has_early)
        print_redo(of, &p, file);
    print_stalls(&p.sim, file);
}

static void put_lanes(struct st_json_writer *w, const char *key, const double seconds[STRATA_LANE_COUNT])
{
    st_json_object_open(w, key);
    for (uint32_t lane = 0; lane < STRATA_LANE_COUNT; lane++)
        st_json_put_double(w, st_lane_name((enum strata_lane)lane), seconds[lane]);
    st_json_object_close(w);
}

void st_prediction_put(const struct st_case *of, struct st_json_writer *w)
{
    struct st_prediction p;

    st_predict(&p, of->plan, &of->figures.machine);
    st_put_seconds(w, "predicted_seconds", p.seconds);
    st_json_put_bool(w, "simulated", p.simulated);
    if (!p.simulated)
        return;
    st_json_object_open(w, "predicted");
    if (of->plan->program.sets > 0)
        st_json_put_double(w, "save_adds_seconds", p.save_adds_seconds);
    if (p.has_early) {
        st_json_put_double(w, "redo_adds_seconds", p.early.redo_adds);
        st_json_put_double(w, "kept_seconds", p.early.kept);
        st_json_put_double(w, "gated_seconds", p.early.gated);
        st_json_put_double(w, "clip_rate", of->plan->policy.clip_rate);
        st_json_put_double(w, "early_most", fmax(0, st_predict_early_most(of)));
    }
    put_lanes(w, "busy_seconds", p.sim.busy);
    put_lanes(w, "stall_seconds", p.sim.stall);
    st_json_put_string(w, "stalled_by",
                       p.sim.stalled_by == STRATA_LANE_COUNT ? NULL : st_lane_name((enum strata_lane)p.sim.stalled_by));
    st_json_object_close(w);
}

/* --- what is written to drives --- */

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
    const double redone = (double)st_program_traffic(&plan->program, ST_PHASE_BODY_REDO).write;
    const double kept = written(&of->figures, ST_PHASE_BODY), save = (double)of->figures.save_bytes;
    const double step = kept + plan->policy.clip_rate * (redone - kept); /* what was written for nothing is written again */
    const double paced = step + (config->save_every > 0 ? save / (double)config->save_every : 0);
    struct st_prediction p = {0};
    double seconds;

    st_predict(&p, plan, &of->machine);
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

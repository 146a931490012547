/* advise/one_more.c - what one more of something would change in a plan that there is. */
#include "advise/plan_parts.h"
#include "advise/predict.h"
#include "core/base/print.h"
#include "core/base/size.h"
#include "core/base/wrap.h"
#include "core/system/workers.h"
#include "offload/simulate/cost.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MORE_COLUMNS 48
#define LEAST_CHANGE 5e-4 /* of a step: a smaller change would print as -0.0 % */

enum more { MORE_DRIVE, MORE_LINK, MORE_RANKS_LINK, MORE_COMPUTE, MORE_PASSES, MORE_UPDATE, MORE_HOST, MORE_DEVICE, MORE_COUNT };

static const struct {
    const char *name, *text;
} mores[MORE_COUNT] = {
    [MORE_DRIVE] = {"drive", "one more drive"},
    [MORE_LINK] = {"link", "a link twice as fast"},
    [MORE_RANKS_LINK] = {"ranks_link", "links of ranks doubled"},
    [MORE_COMPUTE] = {"compute", "compute twice as fast"},
    [MORE_PASSES] = {"passes", "device memory 2x as fast"},
    [MORE_UPDATE] = {"update", "updates twice as fast"},
    [MORE_HOST] = {"host_memory", "25 % more host memory"},
    [MORE_DEVICE] = {"device_memory", "25 % more device memory"},
};

/* Gives *m one more of it; the existing program runs on that machine. */
static void take_rates(struct st_machine *m, enum more more)
{
    const double drives = m->rates.drives > 0 ? m->rates.drives : 1;

    switch (more) {
    case MORE_DRIVE:
        m->rates.read *= (drives + 1) / drives;
        m->rates.write *= (drives + 1) / drives;
        m->rates.mixed *= (drives + 1) / drives;
        return;
    case MORE_LINK:
        m->rates.upload *= 2;
        m->rates.download *= 2;
        return;
    case MORE_RANKS_LINK:
        m->rates.link_node *= 2;
        m->rates.link_nodes *= 2;
        return;
    case MORE_COMPUTE:
        m->rates.matmul_flops *= 2;
        m->rates.block_flops *= 2;
        m->rates.experts_flops *= 2;
        m->rates.head_flops *= 2;
        return;
    case MORE_PASSES:
        m->rates.memory *= 2;
        return;
    default:
        m->rates.update *= 2;
        m->rates.checksum *= 2;
    }
}

static bool has_updates(const struct st_program *program, const struct st_machine *machine)
{
    for (uint32_t i = 0; i < program->op_count; i++)
        if (st_cost_updated(program, machine, &program->ops[i]) > 0)
            return true;
    return false;
}

/* Whether the program uses it at all. */
static bool matters(const struct st_case *of, enum more more)
{
    const struct st_traffic *t = &of->figures.traffic[st_phase_index(ST_PHASE_BODY)];

    switch (more) {
    case MORE_DRIVE:
        return t->read + t->write > 0;
    case MORE_LINK:
        return t->upload + t->download > 0;
    case MORE_RANKS_LINK:
        return t->comm > 0;
    case MORE_PASSES:
        return st_passes_sum(&of->figures.bounds.passes) > 0;
    case MORE_UPDATE:
        return has_updates(&of->plan->program, &of->machine);
    default:
        return true;
    }
}

struct with_more {
    const struct st_case *of;
    double seconds[MORE_COUNT]; /* 0: it cannot matter */
};

/* Plans again with more memory; 0 seconds if the program stays the same or cannot be used for this run.  E_NOMEM. */
static strata_status planned_anew(double *seconds, const struct st_case *of, strata_tier tier)
{
    struct st_machine m = of->machine;
    struct st_plan *plan = NULL;
    struct st_prediction p = {0};
    strata_status st;

    m.capacity.bytes[tier] += m.capacity.bytes[tier] / 4;
    if ((st = st_plan_make_evaluated(&plan, &of->workload, &m.capacity, &of->asked, st_case_evaluator(of, &m),
                                     ST_EFFORT_COMPARE)) == STRATA_OK &&
        memcmp(plan->program.needed, of->plan->program.needed, sizeof(plan->program.needed)) != 0)
        st_predict(&p, plan, &m);
    st_plan_destroy(plan);
    *seconds = p.simulated ? p.seconds : 0;
    return st == STRATA_E_NOMEM ? st : STRATA_OK;
}

/* Predicts the seconds with one more of it.  E_NOMEM. */
static strata_status try_more(void *ctx, uint64_t index)
{
    struct with_more *with = ctx;
    const struct st_case *of = with->of;
    const enum more more = (enum more)index;
    struct st_machine m = of->machine;
    struct st_prediction p;

    if (more == MORE_HOST || more == MORE_DEVICE)
        return planned_anew(&with->seconds[more], of, more == MORE_HOST ? STRATA_TIER_HOST : STRATA_TIER_DEVICE);
    if (!matters(of, more))
        return STRATA_OK;
    take_rates(&m, more);
    st_predict(&p, of->plan, &m);
    with->seconds[more] = p.simulated ? p.seconds : 0;
    return STRATA_OK;
}

/* Exactly one of file and w is not NULL.  narrow: a row of text takes two lines. */
static strata_status each_more(const struct st_case *of, FILE *file, bool narrow, struct st_json_writer *w)
{
    struct with_more m = {.of = of};
    struct st_prediction now;
    strata_status st;
    char text[24];

    st_predict(&now, of->plan, &of->machine);
    if (!now.simulated)
        return STRATA_OK;
    if ((st = st_workers_once(try_more, &m, MORE_COUNT)) != STRATA_OK)
        return st;
    for (enum more more = 0; more < MORE_COUNT; more++) {
        const double seconds = m.seconds[more], change = seconds / now.seconds - 1;

        if (!(seconds > 0))
            continue;
        if (file != NULL) {
            st_print(file, narrow ? "    %s\n     %9s  %+6.1f %%\n" : "    %-24s %9s  %+6.1f %%\n", mores[more].text,
                     st_seconds_text(text, seconds), fabs(change) < LEAST_CHANGE ? 0 : 100 * change);
            continue;
        }
        st_json_object_open(w, NULL);
        st_json_put_string(w, "name", mores[more].name);
        st_json_put_double(w, "predicted_seconds", seconds);
        st_json_put_double(w, "change", change);
        st_json_object_close(w);
    }
    return STRATA_OK;
}

strata_status st_one_more_print(const struct st_case *of, FILE *to)
{
    FILE *file;
    strata_status st;

    if (of->plan->program.op_count > ST_SIMULATED_OPS_MAX || !st_simulate_possible(&of->plan->program, &of->machine))
        return STRATA_OK;
    file = st_wrap_open(to);
    st_print_text(file, "  one more of each would change the step:\n");
    st = each_more(of, file, st_print_width(to) < MORE_COLUMNS, NULL);
    st_wrap_close(file, to);
    return st;
}

strata_status st_one_more_put(const struct st_case *of, struct st_json_writer *w)
{
    strata_status st;

    st_json_array_open(w, "one_more");
    st = each_more(of, NULL, false, w);
    st_json_array_close(w);
    return st;
}

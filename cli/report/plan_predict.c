/* cli/report/plan_predict.c - predicts a plan's other schedules, and machines with one more of something. */
#include "cli/report/plan_predict.h"
#include "advise/plan_report.h"
#include "advise/predict.h"
#include "core/base/error.h"
#include "core/base/print.h"
#include "core/base/size.h"
#include "core/base/wrap.h"
#include "core/system/workers.h"
#include "offload/simulate/cost.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void put_seconds(struct st_json_writer *w, const char *key, double seconds)
{
    st_json_put_double(w, key, seconds > 0 ? seconds : (double)NAN);
}

/* --- its other schedules --- */

#define SCHEDULES_MAX 6u
#define FASTER        0.995 /* of the chosen one's step: what the search takes for as fast is not worth a word */

struct schedule {
    enum st_update_policy update;
    enum st_accumulation accumulation;
    bool chosen, possible; /* possible: for this run, whether or not it fits */
    strata_status status;  /* of its plan */
    char why[512];         /* it does not fit */
    uint64_t needed[STRATA_TIER_COUNT];
    struct st_bounds bounds;
    struct st_prediction prediction;
};

struct schedules {
    const struct st_case *of;
    struct schedule all[SCHEDULES_MAX];
    uint32_t count;
    const struct schedule *chosen;
};

static void take_plan(struct schedule *out, const struct st_plan *plan, const struct st_machine *m)
{
    memcpy(out->needed, plan->program.needed, sizeof(out->needed));
    st_bounds_make(&out->bounds, &plan->program, m);
    st_predict(&out->prediction, &plan->program, m);
}

/* The chosen one is there already. */
static void plan_schedule(struct schedule *out, const struct st_case *of)
{
    struct st_plan *plan = NULL;
    struct st_policy policy = of->asked;

    policy.update = out->update;
    policy.accumulation = out->accumulation;
    out->chosen = out->update == of->plan->policy.update && out->accumulation == of->plan->decided.accumulation;
    out->possible = out->update != ST_UPDATE_IN_BACKWARD || !policy.needs_norm;
    if (out->chosen)
        take_plan(out, of->plan, &of->machine);
    if (out->chosen || !out->possible)
        return;
    out->status = st_plan_make_judged(&plan, &of->workload, &of->machine.capacity, &policy, st_case_judge(of, &of->machine));
    if (out->status == STRATA_OK)
        take_plan(out, plan, &of->machine);
    else
        snprintf(out->why, sizeof(out->why), "%s", strata_last_error());
    st_plan_destroy(plan);
}

static void plan_one(void *ctx, uint64_t index, uint32_t worker)
{
    struct schedules *s = ctx;

    (void)worker;
    plan_schedule(&s->all[index], s->of);
}

/* Running out of memory does not make a schedule impossible: that is E_NOMEM. */
static strata_status plan_schedules(struct schedules *s, const struct st_case *of)
{
    static const enum st_update_policy updates[] = {ST_UPDATE_IN_BACKWARD, ST_UPDATE_GATED, ST_UPDATE_SERIAL};
    static const enum st_accumulation orders[] = {ST_ACCUMULATE_VERTICAL, ST_ACCUMULATE_HORIZONTAL};
    const bool both = of->plan->program.workload.grad_accum > 1;
    strata_status st;

    *s = (struct schedules){.of = of};
    for (size_t i = 0; i < SCHEDULES_MAX; i++) {
        const struct schedule c = {.update = updates[i / 2], .accumulation = orders[i % 2]};

        if (both || c.accumulation == of->plan->decided.accumulation)
            s->all[s->count++] = c;
    }
    if ((st = st_workers_once(plan_one, s, s->count)) != STRATA_OK)
        return st;
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->all[i].status == STRATA_E_NOMEM)
            return st_error(STRATA_E_NOMEM, "%s", s->all[i].why);
        if (s->all[i].chosen)
            s->chosen = &s->all[i];
    }
    return STRATA_OK;
}

/* What is not possible is said once for both orders. */
static bool is_told(const struct schedules *s, uint32_t index)
{
    return s->all[index].possible || index == 0 || s->all[index - 1].update != s->all[index].update;
}

static const char *accumulation_name(enum st_accumulation accumulation)
{
    return accumulation == ST_ACCUMULATE_VERTICAL ? "vertical" : "horizontal";
}

/* Why a schedule that is predicted to be faster was not chosen; NULL: it is not. */
static const char *why_not(const struct schedules *s, const struct schedule *c)
{
    const struct st_policy *policy = &s->of->asked;

    if (c->chosen || !c->possible || c->status != STRATA_OK || s->chosen == NULL || !(c->prediction.seconds > 0) ||
        c->prediction.seconds > FASTER * s->chosen->prediction.seconds)
        return NULL;
    if (policy->update != ST_UPDATE_AUTO && policy->update != c->update)
        return "strata.update says otherwise";
    if (policy->accumulation != ST_ACCUMULATE_AUTO && policy->accumulation != c->accumulation)
        return "strata.accumulation says otherwise";
    if (st_case_judge(s->of, &s->of->machine) == NULL)
        return "chosen at nominal rates: --machine FILE makes the machine's rates the judge";
    return "the search did not find it";
}

static void print_schedule(const struct schedules *s, const struct schedule *c, bool both, FILE *file)
{
    char device[24], host[24], seconds[24];
    const char *why = why_not(s, c);

    st_print(file, "    %-12s", st_update_name(c->update));
    if (both && c->possible)
        st_print(file, " %-11s", accumulation_name(c->accumulation));
    if (!c->possible || c->status != STRATA_OK) {
        st_print(file, " %s\n",
                 c->possible ? c->why
                             : "not for this run: clipping, or a step that may be skipped, needs the whole gradient first");
        return;
    }
    st_print(file, " %s device, %s host", st_size_text(device, c->needed[STRATA_TIER_DEVICE]),
             st_size_text(host, c->needed[STRATA_TIER_HOST]));
    if (c->prediction.seconds > 0)
        st_print(file, ", predicted step %s", st_seconds_text(seconds, c->prediction.seconds));
    if (c->bounds.schedule > 0)
        st_print(file, " (shortest %s)", st_seconds_text(seconds, c->bounds.schedule));
    if (why != NULL)
        st_print(file, "  (not chosen: %s)", why);
    st_print_text(file, c->chosen ? "  <- chosen\n" : "\n");
}

static void put_schedule(const struct schedules *s, const struct schedule *c, struct st_json_writer *w)
{
    const char *why = why_not(s, c);

    st_json_object_open(w, NULL);
    st_json_put_string(w, "update", st_update_name(c->update));
    st_json_put_string(w, "accumulation", accumulation_name(c->accumulation));
    st_json_put_bool(w, "chosen", c->chosen);
    st_json_put_bool(w, "possible", c->possible && c->status == STRATA_OK);
    if (c->possible && c->status == STRATA_OK) {
        st_json_put_u64(w, "device_bytes", c->needed[STRATA_TIER_DEVICE]);
        st_json_put_u64(w, "host_bytes", c->needed[STRATA_TIER_HOST]);
        put_seconds(w, "schedule_bound_seconds", c->bounds.schedule);
        put_seconds(w, "predicted_seconds", c->prediction.seconds);
    }
    if (why != NULL)
        st_json_put_string(w, "why_not", why);
    st_json_object_close(w);
}

static const char *judge_name(const struct st_case *of)
{
    return st_case_judge(of, &of->machine) == NULL ? "a nominal machine"
           : of->machine.name[0] != '\0'           ? of->machine.name
                                                   : "the rates measured here";
}

strata_status cli_schedules_print(const struct st_case *of, FILE *file)
{
    const bool both = of->plan->program.workload.grad_accum > 1;
    struct schedules s;
    const strata_status st = plan_schedules(&s, of);

    if (st != STRATA_OK)
        return st;
    st_print(file, "  schedules (strata.update%s), judged by %s:\n", both ? ", strata.accumulation" : "", judge_name(of));
    for (uint32_t i = 0; i < s.count; i++)
        if (is_told(&s, i))
            print_schedule(&s, &s.all[i], both, file);
    return STRATA_OK;
}

strata_status cli_schedules_put(const struct st_case *of, struct st_json_writer *w)
{
    struct schedules s;
    const strata_status st = plan_schedules(&s, of);

    st_json_put_string(w, "judge", judge_name(of));
    st_json_array_open(w, "schedules");
    for (uint32_t i = 0; i < s.count && st == STRATA_OK; i++)
        if (is_told(&s, i))
            put_schedule(&s, &s.all[i], w);
    st_json_array_close(w);
    return st;
}

/* --- one more of each --- */

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
    struct with {
        double seconds; /* 0: it cannot matter */
        strata_status status;
        char why[512];
    } all[MORE_COUNT];
};

/* Plans again with more memory; 0 seconds if the program stays the same or cannot be used for this run.  E_NOMEM. */
static strata_status planned_anew(double *seconds, const struct st_case *of, strata_tier tier)
{
    struct st_machine m = of->machine;
    struct st_plan *plan = NULL;
    struct st_prediction p = {0};
    strata_status st;

    m.capacity.bytes[tier] += m.capacity.bytes[tier] / 4;
    if ((st = st_plan_make_judged(&plan, &of->workload, &m.capacity, &of->asked, st_case_judge(of, &m))) == STRATA_OK &&
        memcmp(plan->program.needed, of->plan->program.needed, sizeof(plan->program.needed)) != 0)
        st_predict(&p, &plan->program, &m);
    st_plan_destroy(plan);
    *seconds = p.simulated ? p.seconds : 0;
    return st == STRATA_E_NOMEM ? st : STRATA_OK;
}

/* Predicts the seconds with one more of it; 0: it cannot matter.  E_NOMEM. */
static strata_status seconds_with(double *seconds, const struct st_case *of, enum more more)
{
    struct st_machine m = of->machine;
    struct st_prediction p;

    if (more == MORE_HOST || more == MORE_DEVICE)
        return planned_anew(seconds, of, more == MORE_HOST ? STRATA_TIER_HOST : STRATA_TIER_DEVICE);
    *seconds = 0;
    if (!matters(of, more))
        return STRATA_OK;
    take_rates(&m, more);
    st_predict(&p, &of->plan->program, &m);
    *seconds = p.simulated ? p.seconds : 0;
    return STRATA_OK;
}

static void try_more(void *ctx, uint64_t index, uint32_t worker)
{
    struct with_more *m = ctx;
    struct with *with = &m->all[index];

    (void)worker;
    with->status = seconds_with(&with->seconds, m->of, (enum more)index);
    if (with->status != STRATA_OK)
        snprintf(with->why, sizeof(with->why), "%s", strata_last_error());
}

/* Exactly one of file and w is not NULL.  narrow: a row of text takes two lines. */
static strata_status each_more(const struct st_case *of, FILE *file, bool narrow, struct st_json_writer *w)
{
    struct with_more m = {.of = of};
    struct st_prediction now;
    strata_status st;
    char text[24];

    st_predict(&now, &of->plan->program, &of->machine);
    if (!now.simulated)
        return STRATA_OK;
    if ((st = st_workers_once(try_more, &m, MORE_COUNT)) != STRATA_OK)
        return st;
    for (enum more more = 0; more < MORE_COUNT; more++) {
        const double seconds = m.all[more].seconds, change = seconds / now.seconds - 1;

        if (m.all[more].status != STRATA_OK)
            return st_error(m.all[more].status, "%s", m.all[more].why);
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

strata_status cli_one_more_print(const struct st_case *of, FILE *to)
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

strata_status cli_one_more_put(const struct st_case *of, struct st_json_writer *w)
{
    strata_status st;

    st_json_array_open(w, "one_more");
    st = each_more(of, NULL, false, w);
    st_json_array_close(w);
    return st;
}

/* advise/schedules.c - a plan's schedule beside others. */
#include "advise/plan_parts.h"
#include "advise/plan_report.h"
#include "advise/predict.h"
#include "core/base/error.h"
#include "core/base/print.h"
#include "core/base/size.h"
#include "core/system/workers.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SCHEDULES_MAX 8u
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
    st_predict(&out->prediction, plan, m);
}

/* The chosen one is there already.  Running out of memory does not make a schedule impossible: that is E_NOMEM. */
static strata_status plan_schedule(void *ctx, uint64_t index)
{
    struct schedules *s = ctx;
    struct schedule *out = &s->all[index];
    const struct st_case *of = s->of;
    struct st_plan *plan = NULL;
    struct st_policy policy = of->asked;

    policy.update = out->update == ST_UPDATE_SPECULATIVE ? ST_UPDATE_GATED : out->update;
    policy.early = out->update == ST_UPDATE_SPECULATIVE ? ST_EARLY_AUTO : 0;
    policy.accumulation = out->accumulation;
    out->possible = out->update != ST_UPDATE_IN_BACKWARD || !policy.needs_norm;
    if (out->chosen)
        take_plan(out, of->plan, &of->machine);
    if (out->chosen || !out->possible)
        return STRATA_OK;
    out->status = st_plan_make_evaluated(&plan, &of->workload, &of->machine.capacity, &policy,
                                         st_case_evaluator(of, &of->machine), ST_EFFORT_COMPARE);
    if (st_plan_advise(plan, out->status) == STRATA_OK)
        take_plan(out, plan, &of->machine);
    else
        snprintf(out->why, sizeof(out->why), "%s", strata_last_error());
    st_plan_destroy(plan);
    return out->status == STRATA_E_NOMEM ? out->status : STRATA_OK;
}

/* Nobody speculates where nothing waits for the norm, or no state crosses a link. */
static bool may_speculate(const struct st_case *of)
{
    const struct st_policy *policy = &of->asked;
    const bool streams = policy->streamed != ST_STREAMED_AUTO && policy->streamed > 0;

    return policy->early != 0 ||
           (policy->needs_norm && policy->optimizer_tier != STRATA_TIER_DEVICE && !streams && !st_workload_opaque(&of->workload));
}

static strata_status plan_schedules(struct schedules *s, const struct st_case *of)
{
    static const enum st_update_policy updates[] = {ST_UPDATE_IN_BACKWARD, ST_UPDATE_SPECULATIVE, ST_UPDATE_GATED,
                                                    ST_UPDATE_SERIAL};
    static const enum st_accumulation orders[] = {ST_ACCUMULATE_VERTICAL, ST_ACCUMULATE_HORIZONTAL};
    const bool both = of->plan->program.workload.grad_accum > 1;

    *s = (struct schedules){.of = of};
    for (size_t i = 0; i < SCHEDULES_MAX; i++) {
        struct schedule *c = &s->all[s->count];

        if (updates[i / 2] == ST_UPDATE_SPECULATIVE && !may_speculate(of))
            continue;
        *c = (struct schedule){.update = updates[i / 2], .accumulation = orders[i % 2]};
        c->chosen = c->update == st_policy_update(&of->plan->policy) && c->accumulation == of->plan->decided.accumulation;
        if (c->chosen)
            s->chosen = c;
        s->count += both || c->accumulation == of->plan->decided.accumulation;
    }
    return st_workers_once(plan_schedule, s, s->count);
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
    if (c->update == ST_UPDATE_SPECULATIVE)
        return "strata.update auto does not choose it unless strata.clip_rate is given: set that, or speculative";
    if (policy->update != ST_UPDATE_AUTO && st_policy_update(policy) != c->update)
        return "strata.update says otherwise";
    if (policy->accumulation != ST_ACCUMULATE_AUTO && policy->accumulation != c->accumulation)
        return "strata.accumulation says otherwise";
    if (st_case_evaluator(s->of, &s->of->machine) == NULL)
        return "chosen at nominal rates: machine.file FILE makes the machine's rates the evaluator";
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
        st_print_keyed(file, " %s\n",
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
        st_print_keyed(file, "  (not chosen: %s)", why);
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
        st_put_seconds(w, "schedule_bound_seconds", c->bounds.schedule);
        st_put_seconds(w, "predicted_seconds", c->prediction.seconds);
    }
    if (why != NULL)
        st_json_put_string(w, "why_not", why);
    st_json_object_close(w);
}

static const char *evaluator_name(const struct st_case *of)
{
    return st_case_evaluator(of, &of->machine) == NULL ? "a nominal machine"
           : of->machine.name[0] != '\0'               ? of->machine.name
                                                       : "the rates measured here";
}

strata_status st_schedules_print(const struct st_case *of, FILE *file)
{
    const bool both = of->plan->program.workload.grad_accum > 1;
    struct schedules s;
    const strata_status st = plan_schedules(&s, of);

    if (st != STRATA_OK)
        return st;
    st_print(file, "  schedules (strata.update%s), evaluated by %s:\n", both ? ", strata.accumulation" : "", evaluator_name(of));
    for (uint32_t i = 0; i < s.count; i++)
        if (is_told(&s, i))
            print_schedule(&s, &s.all[i], both, file);
    return STRATA_OK;
}

strata_status st_schedules_put(const struct st_case *of, struct st_json_writer *w)
{
    struct schedules s;
    const strata_status st = plan_schedules(&s, of);

    st_json_put_string(w, "evaluated_by", evaluator_name(of));
    st_json_array_open(w, "schedules");
    for (uint32_t i = 0; i < s.count && st == STRATA_OK; i++)
        if (is_told(&s, i))
            put_schedule(&s, &s.all[i], w);
    st_json_array_close(w);
    return st;
}

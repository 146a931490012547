/* door_plan_text.c - strata/plan.h: a plan as people read it, and as JSON. */
#include "advise/plan_parts.h"
#include "advise/plan_report.h"
#include "api/handles.h"
#include "core/base/error.h"
#include "offload/program/program_print.h"

#include <stdio.h>

#define SITE "api.plan_text"

static strata_status write_json(const struct st_case *of, const struct strata_plan_report_opts *o, FILE *file)
{
    struct st_json_writer w;
    strata_status st;

    st_json_begin(&w, file);
    st_json_object_open(&w, NULL);
    st = st_plan_put_parts(of, o->parts, o->steps, &w);
    st_json_object_close(&w);
    st_json_end_line(&w);
    return st;
}

/* What is wanted of a report.  E_INVAL. */
static strata_status take_opts(struct strata_plan_report_opts *o, const struct strata_plan_report_opts *opts)
{
    const strata_status st = st_handle_opts(o, sizeof(*o), opts, "strata_plan_report_opts");

    if (st != STRATA_OK)
        return st;
    if (o->parts > STRATA_PLAN_ALL + STRATA_PLAN_BRIEF + STRATA_PLAN_RANKS + STRATA_PLAN_BOUNDS)
        return st_error(STRATA_E_INVAL, "strata_plan_report_opts: parts %u has an unknown bit", o->parts);
    if (o->parts == 0)
        o->parts = STRATA_PLAN_ALL;
    return STRATA_OK;
}

strata_status strata_plan_text(struct strata_plan *plan, const char **text)
{
    strata_status st = STRATA_OK;
    struct st_kept_text t;
    unsigned parts;

    if (plan == NULL || text == NULL)
        return st_error_missing(__func__, plan == NULL ? "plan" : "text");
    parts = STRATA_PLAN_BRIEF | (plan->facts.rates_known ? STRATA_PLAN_BOUNDS : 0);
    if (plan->text == NULL) {
        st_handle_text_begin(&t, &plan->text, SITE);
        st = t.file != NULL ? st_plan_print_parts(&plan->facts, parts, 0, t.file) : STRATA_OK;
        st = st_handle_text_end(&t, st);
    }
    if (st == STRATA_OK)
        *text = plan->text;
    return st;
}

strata_status strata_plan_print(struct strata_plan *plan, const struct strata_plan_report_opts *opts, FILE *file)
{
    struct strata_plan_report_opts o;
    fenv_t floats;
    strata_status st;

    if (plan == NULL || file == NULL)
        return st_error_missing(__func__, plan == NULL ? "plan" : "file");
    if ((st = take_opts(&o, opts)) != STRATA_OK)
        return st;
    st_floats_plain(&floats);
    st = st_plan_print_parts(&plan->facts, o.parts, o.steps, file);
    st_floats_restore(&floats);
    return st;
}

strata_status strata_plan_json(struct strata_plan *plan, const struct strata_plan_report_opts *opts, const char **json)
{
    struct strata_plan_report_opts o;
    struct st_kept_text t;
    fenv_t floats;
    strata_status st;

    if (plan == NULL || json == NULL)
        return st_error_missing(__func__, plan == NULL ? "plan" : "json");
    if ((st = take_opts(&o, opts)) != STRATA_OK)
        return st;
    st_floats_plain(&floats);
    st_handle_text_begin(&t, &plan->json, SITE);
    st = st_handle_text_end(&t, t.file != NULL ? write_json(&plan->facts, &o, t.file) : STRATA_OK);
    st_floats_restore(&floats);
    if (st == STRATA_OK)
        *json = plan->json;
    return st;
}

strata_status strata_plan_print_ops(const struct strata_plan *plan, bool json, FILE *file)
{
    const struct st_plan *p;

    if (plan == NULL || file == NULL)
        return st_error_missing(__func__, plan == NULL ? "plan" : "file");
    p = plan->facts.plan;
    if (json)
        st_program_put(&p->program, file);
    else if (p->fits)
        st_program_print(&p->program, file);
    return STRATA_OK;
}

strata_status strata_plan_write_trace(const struct strata_plan *plan, FILE *file)
{
    if (plan == NULL || file == NULL)
        return st_error_missing(__func__, plan == NULL ? "plan" : "file");
    return st_plan_trace(&plan->facts, file);
}

const char *strata_tier_name(strata_tier tier)
{
    return st_tier_name(tier);
}

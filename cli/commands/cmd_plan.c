/* cli/commands/cmd_plan.c - the plan of a run, without the run. */
#include "cli/commands/commands.h"
#include "cli/report/endurance.h"
#include "cli/report/plan_predict.h"
#include "cli/report/plan_table.h"
#include "cli/run.h"
#include "core/base/page.h"
#include "offload/program_print.h"

#include <stdio.h>

static strata_status print_text(const struct st_session *s)
{
    struct cli_endurance endurance;
    strata_status st;
    FILE *file;

    cli_plan_print(s->plan, &s->figures, true, stdout);
    if (!s->plan->fits)
        return STRATA_OK;
    cli_bounds_print(&s->figures, stdout);
    file = st_page_open(stdout);
    cli_prediction_print(&s->plan->program, &s->figures, file);
    cli_endurance_planned(&endurance, s);
    cli_endurance_print(&endurance, "nvme is written: ", file);
    st = cli_schedules_print(s, file);
    st_page_close(file, stdout);
    return st == STRATA_OK ? cli_one_more_print(s, stdout) : st;
}

static strata_status print_json(const struct st_session *s)
{
    struct cli_endurance endurance;
    strata_status st = STRATA_OK;
    struct st_json_writer w;

    st_json_begin(&w, stdout);
    st_json_object_open(&w, NULL);
    cli_plan_put_fields(s->plan, &s->figures, &w);
    if (s->plan->fits) {
        cli_endurance_planned(&endurance, s);
        cli_endurance_put(&endurance, &w);
        st = cli_schedules_put(s, &w);
        if (st == STRATA_OK)
            st = cli_one_more_put(s, &w);
    }
    st_json_object_close(&w);
    st_json_end_line(&w);
    return st;
}

/* A plan that does not fit has no program. */
static void print_ops(const struct st_session *s, bool json)
{
    if (json)
        st_program_put(&s->plan->program, stdout);
    else if (s->plan->fits)
        st_program_print(&s->plan->program, stdout);
}

int cmd_plan(const struct cli_args *args)
{
    const struct st_session_opts opts = cli_run_opts(args, NULL);
    struct st_session session;
    strata_status st = st_session_configure(&session, &opts), shown = STRATA_OK;
    int code = 0;

    if (st == STRATA_OK)
        st = st_session_model(&session);
    if (st == STRATA_OK)
        st = st_session_plan(&session);
    if (st == STRATA_OK)
        st = st_session_rates(&session, args->measure);
    if (st != STRATA_OK)
        code = cli_fail(st);
    if (session.plan != NULL && args->ops)
        print_ops(&session, args->json);
    else if (session.plan != NULL && args->json)
        shown = print_json(&session);
    else if (session.plan != NULL)
        shown = print_text(&session);
    if (st == STRATA_OK && shown != STRATA_OK)
        code = cli_fail(shown);
    st_session_close(&session);
    return code;
}

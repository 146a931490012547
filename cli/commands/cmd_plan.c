/* cli/commands/cmd_plan.c - prints the plan of a run without running it. */
#include "advise/plan_report.h"
#include "advise/predict.h"
#include "api/handles.h"
#include "api/plan_case.h"
#include "cli/commands/commands.h"
#include "cli/commands/plan_picture.h"
#include "cli/commands/plan_question.h"
#include "cli/commands/saves.h"
#include "cli/options/output.h"
#include "cli/report/endurance.h"
#include "cli/report/plan_predict.h"
#include "cli/run.h"
#include "core/base/print.h"
#include "core/base/wrap.h"
#include "offload/program/program_print.h"

#include <stdio.h>

static strata_status print_times(const struct cli_run *r)
{
    struct cli_endurance endurance;
    strata_status st;
    FILE *file;

    st_bounds_print(st_plan_case(r->plan), stdout);
    file = st_wrap_open(stdout);
    st_prediction_print(st_plan_case(r->plan), file);
    cli_endurance_planned(&endurance, r->plan, r->args->max_steps);
    cli_endurance_print(&endurance, "nvme is written: ", file);
    st = cli_schedules_print(st_plan_case(r->plan), file);
    st_wrap_close(file, stdout);
    return st == STRATA_OK ? cli_one_more_print(st_plan_case(r->plan), stdout) : st;
}

/* More ranks may fit where these do not. */
static strata_status print_text(const struct cli_run *r)
{
    const char *machine;
    strata_status st = strata_machine_text(r->machine, &machine);
    FILE *file = st_wrap_open(stdout);

    if (st == STRATA_OK)
        st_print(file, "%s", machine);
    st_wrap_close(file, stdout);
    st_plan_print(st_plan_case(r->plan), true, stdout);
    if (st == STRATA_OK && r->plan->facts.plan->fits)
        st = print_times(r);
    return st == STRATA_OK && r->args->scale ? st_ranks_print(st_plan_case(r->plan), stdout) : st;
}

static strata_status print_json(const struct cli_run *r)
{
    const struct st_plan *plan = r->plan->facts.plan;
    struct cli_endurance endurance;
    strata_status st = STRATA_OK;
    struct st_json_writer w;

    st_json_begin(&w, stdout);
    st_json_object_open(&w, NULL);
    st_plan_put(st_plan_case(r->plan), &w);
    if (r->plan->facts.hardware != NULL) {
        st_json_object_open(&w, "machine");
        st_machine_put_fields(r->plan->facts.file, &w);
        st_json_object_close(&w);
    }
    if (plan->fits) {
        cli_endurance_planned(&endurance, r->plan, r->args->max_steps);
        cli_endurance_put(&endurance, &w);
        st = cli_schedules_put(st_plan_case(r->plan), &w);
        if (st == STRATA_OK)
            st = cli_one_more_put(st_plan_case(r->plan), &w);
    }
    if (st == STRATA_OK && r->args->scale)
        st = st_ranks_put(st_plan_case(r->plan), &w);
    st_json_object_close(&w);
    st_json_end_line(&w);
    return st;
}

/* A plan that does not fit has no program. */
static void print_ops(const struct cli_run *r)
{
    const struct st_plan *plan = r->plan->facts.plan;
    if (r->args->json)
        st_program_put(&plan->program, stdout);
    else if (plan->fits)
        st_program_print(&plan->program, stdout);
}

/* What the run would take over from the checkpoint that it goes on from. */
static strata_status resume(struct cli_run *r, struct cli_saves *saves, const struct cli_args *args)
{
    strata_status st = cli_saves_find(saves, args, &r->ranks, r->config->values.save);

    if (st == STRATA_OK)
        st = cli_saves_keep_step(saves, r);
    r->saved_checkpoints = cli_saves_kept(saves);
    return st;
}

int cmd_plan(const struct cli_args *args)
{
    struct cli_run run = {.ranks.who = {.ranks = 1}};
    struct cli_saves saves = {0};
    strata_status st, shown = STRATA_OK;
    int code = 0;

    if (cli_args_list_hardware(args)) {
        if (args->json)
            st_hardware_list_json(stdout);
        else
            st_hardware_list(stdout);
        return 0;
    }
    if (cli_plan_asks(args))
        return cli_plan_question(args);
    st = cli_output_check("--svg", args->svg, args);
    if (st == STRATA_OK)
        st = cli_run_configure(&run, args, NULL);
    if (st == STRATA_OK)
        st = resume(&run, &saves, args);
    if (st == STRATA_OK)
        st = cli_run_model(&run);
    if (st == STRATA_OK)
        st = strata_plan_make(&run.plan, run.model, run.machine);
    if (st == STRATA_OK)
        st_plan_note_memory(run.plan);
    if (st == STRATA_OK && (args->measure || args->machine != NULL || args->gpu != NULL))
        st = strata_plan_measure(run.plan);
    if (st != STRATA_OK)
        code = cli_fail(st);
    if (run.plan != NULL && args->ops)
        print_ops(&run);
    else if (run.plan != NULL && args->json)
        shown = print_json(&run);
    else if (run.plan != NULL)
        shown = print_text(&run);
    if (st == STRATA_OK && shown != STRATA_OK)
        code = cli_fail(shown);
    if (run.plan != NULL && (shown = cli_plan_picture(run.plan, args)) != STRATA_OK)
        code = cli_fail(shown);
    cli_saves_close(&saves);
    cli_run_close(&run);
    return code;
}

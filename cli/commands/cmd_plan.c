/* cli/commands/cmd_plan.c - prints the plan of a run without running it. */
#include "cli/commands/checkpoints.h"
#include "cli/commands/commands.h"
#include "cli/commands/plan_advice.h"
#include "cli/options/output.h"
#include "cli/run.h"
#include "core/base/error.h"
#include "core/base/print.h"

#include <stdio.h>

static strata_status print(const struct cli_run *r)
{
    struct strata_plan_report_opts opts = STRATA_PLAN_REPORT_OPTS_INIT;
    const char *json;
    strata_status st;

    opts.parts = STRATA_PLAN_ALL | (r->args->scale ? STRATA_PLAN_RANKS : 0);
    opts.steps = r->args->max_steps;
    if (!r->args->json)
        return strata_plan_print(r->plan, &opts, stdout);
    if ((st = strata_plan_json(r->plan, &opts, &json)) == STRATA_OK)
        st_print_text(stdout, json);
    return st;
}

strata_status cli_plan_trace(const struct strata_plan *plan, const struct cli_args *args)
{
    struct st_new_file file;
    strata_status st;

    if (args->trace == NULL)
        return STRATA_OK;
    if ((st = cli_output_create(&file, "--trace", args->trace, args)) != STRATA_OK)
        return st;
    if ((st = st_new_file_stream(&file)) == STRATA_OK)
        st = strata_plan_write_trace(plan, file.stream);
    if (st == STRATA_OK)
        return st_new_file_commit(&file);
    st_new_file_abort(&file);
    return st_error_prefix(st, "--trace");
}

/* What the run would take over from the checkpoint that it goes on from. */
static strata_status resume(struct cli_run *r, struct cli_checkpoints *checkpoints, const struct cli_args *args)
{
    struct strata_config_info says = STRATA_CONFIG_INFO_INIT;
    strata_status st = strata_config_get_info(r->config, &says);

    if (st == STRATA_OK)
        st = cli_checkpoints_find(checkpoints, args, &r->ranks, says.save);
    if (st == STRATA_OK)
        st = cli_checkpoints_keep_step(checkpoints, r);
    r->saved_checkpoints = cli_checkpoints_kept(checkpoints);
    return st;
}

int cmd_plan(const struct cli_args *args)
{
    struct cli_run run = {.ranks.who = {.ranks = 1}};
    struct cli_checkpoints checkpoints = {0};
    strata_status st, shown = STRATA_OK;
    int code = 0;

    if (cli_args_list_hardware(args)) {
        st = strata_machine_print_names(args->json, stdout);
        return st == STRATA_OK ? 0 : cli_fail(st);
    }
    if (cli_plan_asks(args))
        return cli_plan_advice(args);
    st = cli_output_check("--trace", args->trace, args);
    if (st == STRATA_OK)
        st = cli_run_configure(&run, args, NULL);
    if (st == STRATA_OK)
        st = resume(&run, &checkpoints, args);
    if (st == STRATA_OK)
        st = cli_run_model(&run);
    if (st == STRATA_OK)
        st = strata_plan_make(&run.plan, run.model, run.machine);
    if (st == STRATA_OK && (args->measure || args->machine != NULL || args->gpu != NULL))
        st = strata_plan_measure(run.plan);
    if (st != STRATA_OK)
        code = cli_fail(st);
    if (run.plan != NULL && args->ops)
        shown = strata_plan_print_ops(run.plan, args->json, stdout);
    else if (run.plan != NULL)
        shown = print(&run);
    if (st == STRATA_OK && shown != STRATA_OK)
        code = cli_fail(shown);
    if (st == STRATA_OK && (shown = cli_plan_trace(run.plan, args)) != STRATA_OK)
        code = cli_fail(shown);
    cli_checkpoints_close(&checkpoints);
    cli_run_close(&run);
    return code;
}

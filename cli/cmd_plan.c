/* cli/cmd_plan.c - the plan of a run, without the run. */
#include "cli/commands.h"
#include "cli/plan_table.h"
#include "cli/session.h"
#include "core/error.h"
#include "core/size.h"

#include <stdio.h>

static void print_schedule(const struct st_plan *plan, const char *name, bool chosen)
{
    char device[24], host[24], seconds[24];

    printf("    %-12s %s device, %s host", name, st_size_text(device, plan->needed[STRATA_TIER_DEVICE]),
           st_size_text(host, plan->needed[STRATA_TIER_HOST]));
    if (plan->bounds.schedule > 0)
        printf(", shortest step %s", cli_seconds_text(seconds, plan->bounds.schedule));
    puts(chosen ? "  <- chosen" : "");
}

/* The same run under every update policy that it may have: strata.update. */
static void compare_schedules(const struct cli_session *s)
{
    static const enum st_update_policy policies[] = {ST_UPDATE_IN_BACKWARD, ST_UPDATE_GATED, ST_UPDATE_SERIAL};

    puts("  schedules (strata.update):");
    for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++) {
        struct st_policy policy = s->plan->policy;
        struct st_plan *other = NULL;

        if (policies[i] == ST_UPDATE_IN_BACKWARD && policy.needs_norm) {
            puts("    in_backward  not for this run: clipping, or a step that may be skipped, needs the whole gradient first");
            continue;
        }
        policy.update = policies[i];
        if (st_plan_make(&other, st_model_workload(s->model), &s->machine, &policy) == STRATA_OK)
            print_schedule(other, cli_update_name(policies[i]), policies[i] == s->plan->policy.update);
        else
            printf("    %-12s %s\n", cli_update_name(policies[i]), strata_last_error());
        st_plan_destroy(other);
    }
}

static void print_text(const struct cli_session *s)
{
    cli_plan_print(s->plan, true, stdout);
    if (!s->plan->fits)
        return;
    cli_bounds_print(s->plan, stdout);
    compare_schedules(s);
}

static void print_json(const struct st_plan *plan)
{
    struct st_json_writer w;

    st_json_begin(&w, stdout);
    st_json_object_open(&w, NULL);
    cli_plan_put_fields(plan, &w);
    st_json_object_close(&w);
    st_json_end_line(&w);
}

int cmd_plan(const struct cli_args *args)
{
    struct cli_session session;
    strata_status st = cli_session_configure(&session, args);
    int code = 0;

    if (st == STRATA_OK)
        st = cli_session_model(&session);
    if (st == STRATA_OK)
        st = cli_session_plan(&session);
    if (st == STRATA_OK)
        st = cli_session_rates(&session, args->measure);
    if (st != STRATA_OK)
        code = cli_fail(st);
    if (session.plan != NULL && args->json)
        print_json(session.plan);
    else if (session.plan != NULL)
        print_text(&session);
    cli_session_close(&session);
    return code;
}

/* cli/commands/cmd_bench_step.c - strata bench step: reads a run's options and the machine to rehearse, and calls the bench. */
#include "cli/commands/bench_run.h"
#include "cli/commands/commands.h"
#include "cli/options/args_values.h"
#include "cli/run.h"
#include "core/base/error.h"
#include "core/base/size.h"
#include "core/base/wrap.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_DEFAULT 10u

struct budgets {
    struct bench_budget items[BENCH_BUDGETS_MAX];
    uint32_t count;
};

static strata_status check(const struct cli_args *args)
{
    const bool paced = strcmp(args->device, "paced") == 0;

    if ((paced || args->simulate) && args->machine == NULL)
        return st_error(STRATA_E_INVAL, "%s needs --machine FILE.json: the machine to rehearse",
                        paced ? "--device paced" : "--simulate");
    if (args->load > 0 && !paced)
        return st_error(STRATA_E_INVAL, "--load is for --device paced: on cpu the processor computes as fast as it can");
    if (args->ops && (paced || args->simulate))
        return st_error(STRATA_E_INVAL, "--ops times what a device computes, and %s computes nothing: leave one out",
                        paced ? "--device paced waits and" : "--simulate");
    return STRATA_OK;
}

/* --- budgets of the device --- */

static strata_status parse_budget(struct bench_budget *out, const char *text)
{
    *out = (struct bench_budget){.name = text, .bytes = ST_AUTO_BYTES};
    if (strcmp(text, "all") == 0)
        return STRATA_OK;
    if (st_size_parse(text, &out->bytes) != 0)
        return st_error(
            STRATA_E_INVAL,
            "--device-memory: \"%s\" is not a size: write 24G or 24GiB for 24 * 2^30 bytes, 24GB for 24 * 10^9, or all", text);
    return out->bytes > 0 ? STRATA_OK : st_error(STRATA_E_INVAL, "--device-memory: %s is too small: at least 1 byte", text);
}

static strata_status take_budgets(struct budgets *b, const struct cli_list *texts)
{
    strata_status st = STRATA_OK;

    if (texts->count > BENCH_BUDGETS_MAX)
        return st_error(STRATA_E_INVAL, "--device-memory: more than %u budgets", BENCH_BUDGETS_MAX);
    for (; b->count < texts->count && st == STRATA_OK; b->count++)
        st = parse_budget(&b->items[b->count], texts->items[b->count]);
    return st;
}

/* The model is opened for the largest budget; "all" counts as larger than any size. */
static strata_status open_config(struct cli_run *r, const struct budgets *b, struct cli_args *args)
{
    const struct cli_list given = args->overrides;
    char largest[64] = "strata.device_memory=\"auto\"";
    uint64_t bytes = 0;
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < b->count; i++)
        bytes = b->items[i].bytes > bytes ? b->items[i].bytes : bytes;
    if (bytes != ST_AUTO_BYTES)
        snprintf(largest, sizeof(largest), "strata.device_memory=%" PRIu64, bytes);
    args->overrides = (struct cli_list){0};
    for (uint32_t i = 0; i < given.count && st == STRATA_OK; i++)
        st = cli_list_push(&args->overrides, given.items[i]);
    if (st == STRATA_OK && b->count > 0)
        st = cli_list_push(&args->overrides, largest);
    if (st == STRATA_OK)
        st = cli_run_configure(r, args, NULL);
    free(args->overrides.items);
    args->overrides = given;
    return st;
}

static strata_status prepare(struct cli_run *r, struct budgets *budgets, struct cli_args *args)
{
    strata_status st = check(args);

    if (st == STRATA_OK)
        st = take_budgets(budgets, &args->budgets);
    if (st == STRATA_OK)
        st = open_config(r, budgets, args);
    if (st == STRATA_OK)
        st = cli_run_model(r);
    return st == STRATA_OK ? strata_plan_make(&r->plan, r->model, r->machine) : st;
}

static strata_status run(const struct strata_plan *p, const struct budgets *budgets, const struct cli_args *args)
{
    const struct bench_step_opts opts = {
        .json = args->json,
        .plan = p,
        .machine = args->machine,
        .device = args->simulate ? NULL : args->device,
        .seed = args->seed,
        .steps = args->max_steps != 0 ? (uint32_t)args->max_steps : STEPS_DEFAULT,
        .fake_seed = args->fake_seed,
        .fake_latency_us = (uint32_t)args->fake_latency_us,
        .load = args->load,
        .only = args->only,
        .ops = args->ops,
        .beside = args->beside,
        .clip_rate = args->clip_rate,
        .budgets = budgets->items,
        .budget_count = budgets->count,
        .hooks = cli_bench_hooks(),
    };
    FILE *wrapped = args->json ? stdout : st_wrap_open(stdout);
    const strata_status st = bench_step(&opts, wrapped);

    st_wrap_close(wrapped, stdout);
    return st;
}

int cmd_bench_step(const struct cli_args *args)
{
    struct cli_run r = {0};
    struct budgets budgets = {.count = 0};
    struct cli_args own = *args;
    strata_status st = prepare(&r, &budgets, &own);

    if (st == STRATA_OK)
        st = run(r.plan, &budgets, args);
    cli_run_close(&r);
    return cli_bench_end(st);
}

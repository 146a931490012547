/* cli/commands/cmd_bench_step.c - strata bench step: reads a run's options and the machine to rehearse, and calls the bench. */
#include "api/handles.h"
#include "cli/commands/bench_run.h"
#include "cli/commands/commands.h"
#include "cli/run.h"
#include "core/base/error.h"
#include "core/base/size.h"
#include "core/base/wrap.h"

#include <stdio.h>
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
        return st_error(STRATA_E_INVAL, "--ops times what a device computes: %s computes nothing",
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

/* The model is opened for the largest budget; "all" counts as larger than any size. */
static strata_status take_budgets(struct budgets *b, struct cli_run *r, const struct cli_list *texts)
{
    strata_status st = STRATA_OK;

    if (texts->count > BENCH_BUDGETS_MAX)
        return st_error(STRATA_E_INVAL, "--device-memory: more than %u budgets", BENCH_BUDGETS_MAX);
    for (uint32_t i = 0; i < texts->count && st == STRATA_OK; i++) {
        st = parse_budget(&b->items[i], texts->items[i]);
        if (st == STRATA_OK && (i == 0 || b->items[i].bytes > r->config->values.device_memory))
            r->config->values.device_memory = b->items[i].bytes;
        b->count++;
    }
    return st;
}

/* Probes and engine run on this machine: with its workers, but with no more than the rehearsed machine has scratch for. */
static void take_threads(const struct strata_plan *p)
{
    const uint32_t here = st_machine_workers(p->on->topology, p->on->device, 0), most = p->facts.workload.workers;
    struct strata_model *m = p->model;

    if (m->config.threads == 0)
        m->config.threads = here < most ? here : most;
}

static strata_status prepare(struct cli_run *r, struct budgets *budgets, const struct cli_args *args)
{
    const bool paced = strcmp(args->device, "paced") == 0;
    strata_status st = check(args);

    if (st == STRATA_OK)
        st = cli_run_configure(r, args, NULL);
    if (st == STRATA_OK)
        st = take_budgets(budgets, r, &args->budgets);
    if (st == STRATA_OK)
        st = cli_run_model(r);
    if (st == STRATA_OK)
        st = strata_plan_make(&r->plan, r->model, r->machine);
    if (st != STRATA_OK)
        return st;
    take_threads(r->plan);
    if (args->simulate)
        return STRATA_OK;
    if (paced && r->plan->facts.machine.capacity.device_is_host)
        return st_error(STRATA_E_INVAL,
                        "--machine %s: its device is its host; a paced device stands for a GPU: set device_is_host to false",
                        args->machine);
    if (strcmp(args->device, "cpu") == 0 && !r->plan->facts.machine.capacity.device_is_host)
        return st_error(STRATA_E_INVAL, "--machine %s describes a GPU: --device paced rehearses it, --simulate predicts",
                        args->machine);
    if (strncmp(args->device, "cuda", 4) == 0 && r->plan->facts.machine.capacity.device_is_host)
        return st_error(STRATA_E_INVAL, "--machine %s: its device is its host, not a GPU", args->machine);
    return STRATA_OK;
}

static strata_status run(const struct strata_plan *p, struct budgets *budgets, const struct cli_args *args)
{
    const struct strata_model *m = p->model;
    struct st_model_init init = {.model = m->model, .seed = args->seed};
    const struct st_weight_source source = st_model_init_source(&init);
    const struct bench_step_opts opts = {
        .json = args->json,
        .workload = &p->facts.workload,
        .config = &m->config,
        .machine = &p->facts.machine,
        .judge = st_case_judge(&p->facts, &p->facts.machine) != NULL,
        .topology = p->on->topology,
        .device = args->simulate ? NULL : args->device,
        .compute = st_model_compute(m->model),
        .fill = source.read,
        .fill_ctx = source.ctx,
        .steps = args->max_steps != 0 ? (uint32_t)args->max_steps : STEPS_DEFAULT,
        .fake_seed = args->fake_seed,
        .fake_latency_us = (uint32_t)args->fake_latency_us,
        .load = args->load,
        .only = args->only,
        .ops = args->ops,
        .budgets = budgets->items,
        .budget_count = budgets->count,
        .hooks = cli_bench_hooks(),
    };
    strata_status st;
    FILE *wrapped;

    for (uint32_t i = 0; i < budgets->count; i++)
        if (budgets->items[i].bytes == ST_AUTO_BYTES)
            budgets->items[i].bytes = p->facts.machine.capacity.bytes[STRATA_TIER_DEVICE];
    wrapped = args->json ? stdout : st_wrap_open(stdout);
    st = bench_step(&opts, wrapped);
    st_wrap_close(wrapped, stdout);
    return st;
}

int cmd_bench_step(const struct cli_args *args)
{
    struct cli_run r = {0};
    struct budgets budgets = {.count = 0};
    strata_status st = prepare(&r, &budgets, args);

    if (st == STRATA_OK)
        st = run(r.plan, &budgets, args);
    cli_run_close(&r);
    return cli_bench_end(st);
}

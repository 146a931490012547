/* cli/cmd_bench_step.c - strata bench step: a run's options, the machine that is rehearsed, and one call. */
#include "cli/bench_run.h"
#include "cli/commands.h"
#include "cli/session.h"
#include "cli/signals.h"
#include "core/error.h"
#include "core/size.h"

#include <stdio.h>
#include <string.h>

#define STEPS_DEFAULT 10u

static strata_status check(const struct cli_args *args)
{
    const bool paced = strcmp(args->device, "paced") == 0;

    if ((paced || args->simulate) && args->machine == NULL)
        return st_error(STRATA_E_INVAL, "%s needs --machine FILE.json: the machine to rehearse",
                        paced ? "--device paced" : "--simulate");
    if (args->load > 0 && !paced)
        return st_error(STRATA_E_INVAL, "--load is for --device paced: on cpu the processor computes as fast as it can");
    return STRATA_OK;
}

/* Both arenas lie in this machine's memory, whatever the file says of the one that is rehearsed. */
static strata_status check_memory(const struct cli_session *s)
{
    const uint64_t available = st_topology_memory_available(s->topology);
    uint64_t wanted = s->plan->rss_bytes_max;
    char want[24], have[24];

    if (!s->machine.device_is_host)
        wanted += s->plan->needed[STRATA_TIER_DEVICE];
    if (wanted <= available)
        return STRATA_OK;
    return st_error(STRATA_E_NOFIT, "the run takes %s of memory, %s are free here: lower --host-memory or --device-memory",
                    st_size_text(want, wanted), st_size_text(have, available));
}

static strata_status prepare(struct cli_session *s, const struct cli_args *args)
{
    const bool paced = strcmp(args->device, "paced") == 0;
    strata_status st = check(args);

    if (st == STRATA_OK)
        st = cli_session_configure(s, args);
    if (st == STRATA_OK)
        st = cli_session_model(s);
    if (st == STRATA_OK)
        st = cli_session_plan(s);
    if (st != STRATA_OK)
        return st;
    if (args->simulate)
        return STRATA_OK;
    if (paced && s->machine.device_is_host)
        return st_error(STRATA_E_INVAL,
                        "--machine %s: its device is its host; a paced device stands for a GPU: set device_is_host to false",
                        args->machine);
    if (!paced && !s->machine.device_is_host)
        return st_error(STRATA_E_INVAL, "--machine %s describes a GPU: --device paced rehearses it, --simulate predicts",
                        args->machine);
    return check_memory(s);
}

static strata_status run(struct cli_session *s, const struct cli_args *args)
{
    struct st_model_init init = {.model = s->model, .seed = args->seed};
    const struct st_weight_source source = st_model_init_source(&init);
    const struct bench_step_opts opts = {
        .json = args->json,
        .workload = st_model_workload(s->model),
        .config = &s->config,
        .machine = &s->machine,
        .topology = s->topology,
        .device = args->simulate ? NULL : args->device,
        .compute = st_model_compute(s->model),
        .fill = source.read,
        .fill_ctx = source.ctx,
        .steps = args->max_steps != 0 ? (uint32_t)args->max_steps : STEPS_DEFAULT,
        .fake_seed = args->fake_seed,
        .fake_latency_us = (uint32_t)args->fake_latency_us,
        .load = args->load,
        .only = args->only,
        .hooks = cli_bench_hooks(),
    };

    cli_signals_install();
    return bench_step(&opts, stdout);
}

int cmd_bench_step(const struct cli_args *args)
{
    struct cli_session session = {0};
    strata_status st = prepare(&session, args);

    if (st == STRATA_OK)
        st = run(&session, args);
    cli_session_close(&session);
    return cli_bench_end(st);
}

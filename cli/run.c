/* cli/run.c - see run.h. */
#include "cli/run.h"

static enum st_use use_of(enum cli_command command)
{
    switch (command) {
    case CLI_CMD_EVAL:
        return ST_USE_EVAL;
    case CLI_CMD_GENERATE:
        return ST_USE_GENERATE;
    case CLI_CMD_PLAN:
        return ST_USE_PLAN;
    case CLI_CMD_BENCH_STEP:
        return ST_USE_REHEARSE;
    default:
        return ST_USE_TRAIN;
    }
}

struct st_session_opts cli_run_opts(const struct cli_args *args, struct cli_progress *progress)
{
    return (struct st_session_opts){
        .use = use_of(args->command),
        .config = {.file = args->config_file,
                   .overrides = args->overrides.items,
                   .override_count = args->overrides.count,
                   .allow_unknown = args->allow_unknown,
                   .max_steps = args->max_steps},
        .model = args->model,
        .device = args->device,
        .machine = args->machine,
        .seq_len = (uint32_t)args->seq_len,
        .max_tokens = (uint32_t)args->max_tokens,
        .seed = args->seed,
        .nvme_named = args->nvme.count > 0,
        .trace = args->trace != NULL,
        .fake_seed = args->fake_seed,
        .fake_latency_us = (uint32_t)args->fake_latency_us,
        .watch = progress != NULL ? cli_progress_watch : NULL,
        .watch_ctx = progress,
    };
}

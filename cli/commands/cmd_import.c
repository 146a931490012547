/* cli/commands/cmd_import.c - makes a checkpoint of a DeepSpeed run that tools/import_deepspeed.py has taken apart. */
#include "cli/commands/commands.h"
#include "cli/options/output.h"
#include "cli/report/progress.h"
#include "core/base/error.h"
#include "core/base/print.h"
#include "core/system/file.h"
#include "strata/checkpoint.h"

#include <stdio.h>

struct importing {
    const struct cli_args *args;
    struct cli_progress progress;
    struct strata_config *config;
    struct strata_model *model;
    char path[4096]; /* of the checkpoint */
};

static bool watch(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct importing *i = ctx;

    return cli_progress_watch(&i->progress, what, done, total);
}

/* PARTS has the settings of an adapter where the run trained one. */
static strata_status find_adapter(const char **adapter, const char *parts)
{
    char path[ST_PATH_MAX];
    bool there = false;
    strata_status st = st_path_join(path, parts, "adapter_config.json");

    if (st == STRATA_OK)
        st = st_file_find(&there, path);
    *adapter = there ? parts : NULL;
    return st;
}

/* The run's length is not known here, nor whether it is one of whole epochs: what follows from them is resolved and told when it
 * goes on. */
static strata_status open_model(struct importing *i)
{
    const struct cli_args *args = i->args;
    struct strata_config_opts config = STRATA_CONFIG_OPTS_INIT;
    struct strata_model_opts model = STRATA_MODEL_OPTS_INIT;
    strata_status st;

    config.file = args->config_file;
    config.overrides = args->overrides.items;
    config.override_count = args->overrides.count;
    config.allow_unknown = args->allow_unknown;
    config.forward_only = true; /* it makes no step */
    model.model = args->model;
    model.use = STRATA_USE_PLAN;
    model.progress = watch;
    model.progress_ctx = i;
    st = find_adapter(&model.adapter, args->positional.items[0]);
    if (st == STRATA_OK)
        st = strata_config_open(&i->config, &config);
    return st == STRATA_OK ? strata_model_open(&i->model, i->config, &model) : st;
}

/* Checkpoints may not share a directory with what is read. */
static strata_status check_apart(const struct cli_args *args)
{
    const char *const inputs[] = {args->positional.items[0], args->model};

    for (size_t i = 0; i < sizeof(inputs) / sizeof(inputs[0]); i++)
        if (inputs[i] != NULL && st_file_is_same(args->out, inputs[i]))
            return st_error(STRATA_E_INPUT, "--out %s is the same directory as %s, which this command reads: name another",
                            args->out, inputs[i]);
    return STRATA_OK;
}

static strata_status import_to(struct importing *i)
{
    struct strata_import_opts opts = STRATA_IMPORT_OPTS_INIT;
    strata_status st = cli_output_check_save("--out", i->args->out);

    opts.overwrite = i->args->overwrite;
    if (st == STRATA_OK)
        st = check_apart(i->args);
    if (st == STRATA_OK)
        st = open_model(i);
    if (st == STRATA_OK)
        st = strata_import(i->model, i->args->positional.items[0], i->args->out, &opts, i->path);
    cli_progress_work_end(&i->progress);
    return st;
}

/* Opens what was made, as a run that resumes does. */
static strata_status report(const struct importing *i)
{
    struct strata_checkpoint_info info = STRATA_CHECKPOINT_INFO_INIT;
    struct strata_checkpoint *made;
    strata_status st = strata_checkpoint_open(&made, i->path);

    if (st != STRATA_OK)
        return st;
    st = strata_checkpoint_get_info(made, &info);
    if (st == STRATA_OK)
        st_print(stdout, "%s: the run after %llu steps and %llu sequences; strata train --resume %s goes on\n", i->path,
                 (unsigned long long)(info.steps + info.skipped_steps), (unsigned long long)info.sequences, i->path);
    strata_checkpoint_close(made);
    return st;
}

int cmd_import(const struct cli_args *args)
{
    struct importing i = {.args = args};
    strata_status st;

    cli_progress_init(&i.progress, stderr, args->quiet, 0, 0);
    st = import_to(&i);
    cli_progress_fini(&i.progress);
    strata_model_close(i.model);
    strata_config_close(i.config);
    if (st == STRATA_OK)
        st = report(&i);
    return st == STRATA_OK ? 0 : cli_fail(st);
}

/* cli/commands/check_parts.c - see check_parts.h. */
#include "cli/commands/check_parts.h"
#include "cli/run.h"
#include "core/base/log.h"
#include "core/system/file.h"
#include "strata/data.h"
#include "strata/model.h"

#include <string.h>

#define ROWS_LOOKED_AT 1000u /* of each file of rows, unless one is not as it should be */

static bool is_file(const char *path)
{
    bool there = false;

    return st_file_find(&there, path) == STRATA_OK && there;
}

static void leave(struct cli_check *c, const char *part)
{
    if (c->unseen_count < CLI_CHECK_UNSEEN_MAX)
        c->unseen[c->unseen_count++] = part;
}

static bool has_model(const struct cli_args *args)
{
    return args->model != NULL && !strata_model_is_away(args->model) && (args->adapter == NULL || is_file(args->adapter)) &&
           (args->tokenizer == NULL || strchr(args->tokenizer, '/') == NULL || is_file(args->tokenizer));
}

static bool has_data(const struct cli_args *args)
{
    if (args->data.count + args->datasets.count == 0 || (args->datasets.count > 0 && args->dataset_info == NULL))
        return false;
    for (uint32_t i = 0; i < args->data.count; i++)
        if (!is_file(args->data.items[i]))
            return false;
    return args->dataset_info == NULL || is_file(args->dataset_info);
}

static strata_status check_sets(const struct cli_args *args)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < args->datasets.count && st == STRATA_OK; i++)
        st = strata_data_check_set(args->dataset_info, args->datasets.items[i]);
    for (uint32_t i = 0; i < args->eval_datasets.count && st == STRATA_OK; i++)
        st = strata_data_check_set(args->dataset_info, args->eval_datasets.items[i]);
    return st;
}

static strata_status open_data(const struct cli_run *run)
{
    struct strata_data *data = NULL, *heldout = NULL;
    strata_status st = cli_run_data(run, &data, &heldout);

    strata_data_close(data);
    strata_data_close(heldout);
    data = NULL;
    if (st == STRATA_OK && (run->args->eval_data != NULL || run->args->eval_datasets.count > 0))
        st = cli_run_eval_data(run, &data);
    strata_data_close(data);
    return st;
}

/* The first rows tell what a file is; where they are refused, all of them are read, as in a run, for its sentence. */
static strata_status look_at_data(struct cli_run *run, struct cli_args *train)
{
    const uint64_t asked = train->max_samples;
    strata_status st;

    if (train->datasets.count + train->data.count > 0 && (asked == 0 || asked > ROWS_LOOKED_AT))
        train->max_samples = ROWS_LOOKED_AT;
    st = open_data(run);
    if (st == STRATA_OK || train->max_samples == asked)
        return st;
    train->max_samples = asked;
    return open_data(run);
}

static strata_status open_parts(struct cli_check *c, struct cli_args *train)
{
    const bool model = has_model(train), data = has_data(train);
    struct cli_run run = {0};
    strata_status st = STRATA_OK;

    if (!model)
        leave(c, "model");
    if (!data)
        leave(c, "data");
    if (data)
        st = check_sets(train);
    if (st == STRATA_OK && model)
        st = cli_run_configure(&run, train, NULL);
    if (st == STRATA_OK && model)
        st = cli_run_model(&run);
    if (st == STRATA_OK && model && data)
        st = look_at_data(&run, train);
    cli_run_close(&run);
    return st;
}

strata_status cli_check_parts(struct cli_check *c, const struct cli_args *args, const char *config_file)
{
    struct cli_args train = *args;
    const enum st_log_level before = st_log_lowest(ST_LOG_ERROR); /* a run says its notices itself */
    strata_status st;

    train.command = CLI_CMD_TRAIN;
    train.config_file = config_file;
    train.out = NULL; /* tokens are not kept beside it */
    st = open_parts(c, &train);
    (void)st_log_lowest(before);
    leave(c, "memory");
    if (args->out != NULL)
        leave(c, "output");
    return st;
}

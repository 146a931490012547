/* check_parts.c - see check_parts.h. */
#include "cli/commands/check_parts.h"

#include "cli/commands/train_internal.h"
#include "cli/options/args_values.h"
#include "cli/options/patterns.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/system/file.h"
#include "strata/data.h"
#include "strata/model.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define ROWS_LOOKED_AT 1000u        /* of each file of rows, unless one is not as it should be */
#define BYTES_READ     (256u << 20) /* of a file whose beginning does not say what it is: a longer one is left alone */

struct looking {
    struct cli_check *check;
    struct cli_args args; /* as strata train has them */
    struct train train;
    bool model, data; /* are opened */
    bool is_here;     /* the model or the data is on this machine */
    bool long_data;   /* of which the beginning is looked at */
};

static void leave(struct looking *l, const char *part)
{
    struct cli_check *c = l->check;

    if (c->unseen_count < CLI_CHECK_UNSEEN_MAX)
        c->unseen[c->unseen_count++] = part;
}

static void need(struct looking *l, const char *part)
{
    leave(l, part);
    l->check->needed[l->check->needed_count++] = part;
}

static bool is_file(const char *path)
{
    bool there = false;

    return st_file_find(&there, path) == STRATA_OK && there;
}

/* --- what there is to open --- */

/* What the model is made of and is not there; NULL: nothing. */
static const char *missing_of_model(const struct cli_args *args)
{
    if (args->model == NULL || strata_model_is_away(args->model))
        return "model";
    if (args->adapter != NULL && !is_file(args->adapter))
        return "adapter";
    return args->tokenizer != NULL && strchr(args->tokenizer, '/') != NULL && !is_file(args->tokenizer) ? "tokenizer" : NULL;
}

/* What a pipe holds is the run's, and a text is read to its end; what is no text is told at once. */
static bool can_read(struct looking *l, const char *path)
{
    struct stat info = {0};

    if (strcmp(path, "-") == 0)
        return false;
    if (!cli_run_is_text(path) || st_fault_refuses("check.stat") || stat(path, &info) != 0)
        return true;
    l->long_data = l->long_data || (S_ISREG(info.st_mode) && (uint64_t)info.st_size > BYTES_READ);
    return !S_ISFIFO(info.st_mode) && !(l->long_data && st_path_ends(path, ".txt"));
}

static bool can_read_data(struct looking *l)
{
    const struct cli_args *args = &l->args;
    bool can = args->eval_data == NULL || can_read(l, args->eval_data);

    for (uint32_t i = 0; i < args->data.count; i++)
        can = can_read(l, args->data.items[i]) && can;
    return can;
}

static bool has_data(const struct cli_args *args)
{
    if (args->data.count + args->datasets.count == 0 || (args->datasets.count > 0 && args->dataset_info == NULL))
        return false;
    for (uint32_t i = 0; i < args->data.count; i++)
        if (strcmp(args->data.items[i], "-") != 0 && !is_file(args->data.items[i]))
            return false;
    return args->dataset_info == NULL || is_file(args->dataset_info);
}

/* --- data --- */

static strata_status check_sets(const struct cli_args *args)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < args->datasets.count && st == STRATA_OK; i++)
        st = strata_data_check_set(args->dataset_info, args->datasets.items[i]);
    for (uint32_t i = 0; i < args->eval_datasets.count && st == STRATA_OK; i++)
        st = strata_data_check_set(args->dataset_info, args->eval_datasets.items[i]);
    return st;
}

static void close_data(struct train *t)
{
    strata_data_close(t->data);
    strata_data_close(t->eval_data);
    t->data = t->eval_data = NULL;
}

static strata_status open_data(struct train *t)
{
    const struct cli_args *args = t->run.args;
    strata_status st;

    close_data(t);
    st = cli_run_data(&t->run, &t->data, &t->eval_data);
    if (st == STRATA_OK && (args->eval_data != NULL || args->eval_datasets.count > 0))
        st = cli_run_eval_data(&t->run, &t->eval_data);
    return st;
}

/* The first rows tell what a file is; where they are refused, all of them are read, as in a run, for its sentence. */
static strata_status look_at_data(struct looking *l)
{
    const uint64_t asked = l->args.max_samples;
    bool part = l->args.datasets.count > 0;
    strata_status st;

    for (uint32_t i = 0; i < l->args.data.count; i++)
        part = part || cli_run_is_text(l->args.data.items[i]);
    part = part && (asked == 0 || asked > ROWS_LOOKED_AT);
    if (part)
        l->args.max_samples = ROWS_LOOKED_AT;
    st = open_data(&l->train);
    l->args.max_samples = asked;
    if (st != STRATA_OK && part && l->long_data) {
        leave(l, "data");
        return STRATA_OK;
    }
    if (st != STRATA_OK && part) {
        st = open_data(&l->train);
        part = false;
    }
    if (l->args.epochs == 0 || st != STRATA_OK)
        return st;
    if (!part)
        return train_count_steps(&l->train);
    leave(l, "epochs");
    return STRATA_OK;
}

/* --- the run --- */

/* Whether a key of the configuration asks for something that is left out by default. */
static bool is_asked(const struct strata_config *config, const char *path)
{
    struct strata_config_row row = STRATA_CONFIG_ROW_INIT;

    for (uint32_t i = 0; i < strata_config_row_count(config); i++)
        if (strata_config_get_row(config, i, &row) == STRATA_OK && strcmp(row.path, path) == 0)
            return strcmp(row.origin, "default") != 0 && strcmp(row.value, "false") != 0 && row.value[0] != '\0';
    return false;
}

/* Places that a run makes files in once it has begun. */
static void leave_monitors(struct looking *l)
{
    if (is_asked(l->train.run.config, "tensorboard.enabled"))
        leave(l, "tensorboard");
    if (is_asked(l->train.run.config, "csv_monitor.enabled"))
        leave(l, "csv_monitor");
}

/* Nothing of what is not opened is asked for data. */
static void drop_data(struct cli_args *args)
{
    args->data.count = args->datasets.count = args->eval_datasets.count = 0;
    args->eval_data = NULL;
}

static void find_parts(struct looking *l, uint32_t ranks)
{
    const struct cli_args *args = &l->args;
    const char *missing = missing_of_model(args);

    l->model = missing == NULL;
    l->data = has_data(args);
    l->is_here = l->model || l->data;
    if (missing != NULL)
        need(l, missing);
    else if (ranks > 1)
        leave(l, "model");
    l->model = l->model && ranks <= 1;
    if (!l->data)
        need(l, "data");
    else if (!can_read_data(l) || !l->model)
        leave(l, "data");
    l->data = l->data && l->model && can_read_data(l);
    if (args->max_steps == 0 && args->epochs == 0)
        need(l, "number of steps");
}

/* The run may be for another machine, whose model and data are not here: its directories need not be here either. */
static void leave_places(struct looking *l)
{
    const struct cli_args *args = &l->train.own;
    const struct strata_config *config = l->train.run.config;

    if (args->resume != NULL)
        leave(l, "resume");
    if (is_asked(config, "strata.save"))
        leave(l, "save");
    if (args->out != NULL || args->metrics != NULL || args->trace != NULL)
        leave(l, "output");
    if (strata_config_check_nvme(config) != STRATA_OK)
        leave(l, "nvme");
}

/* In the order of strata train, whose first refusal is told. */
static strata_status look_at_places(struct looking *l)
{
    struct train *t = &l->train;
    strata_status st = train_before_model(t);

    if (st == STRATA_OK && l->model)
        st = cli_run_model(&t->run);
    if (st == STRATA_OK)
        st = train_before_plan(t);
    if (st == STRATA_OK)
        st = strata_config_check_nvme(t->run.config);
    if (st == STRATA_OK && t->resubmitted.asked) /* all of it is compared */
        leave(l, "output");
    return st;
}

/* The configuration is open, and a pipe that it came from is empty now; a run that goes on opens it anew. */
static strata_status configure(struct looking *l, struct strata_config *config)
{
    struct train *t = &l->train;

    if (l->args.resume != NULL)
        return cli_run_configure(&t->run, &l->args, NULL);
    t->run.args = &l->args;
    t->run.config = config;
    return strata_device_check(l->args.device);
}

static strata_status look(struct looking *l, struct strata_config *config, uint32_t ranks)
{
    struct train *t = &l->train;
    strata_status st = cli_patterns_expand(&l->args);

    if (st != STRATA_OK)
        return st;
    t->own = l->args;
    l->args.out = NULL; /* tokens are not kept beside it */
    find_parts(l, ranks);
    st = configure(l, config);
    if (st == STRATA_OK && l->args.dataset_info != NULL && is_file(l->args.dataset_info))
        st = check_sets(&l->args);
    if (st == STRATA_OK && !l->data) {
        st = has_data(&l->args) ? cli_run_check_data(&t->run) : STRATA_OK;
        drop_data(&l->args);
    }
    if (st == STRATA_OK)
        st = train_check_evaluated(t);
    if (st == STRATA_OK && !l->is_here)
        leave_places(l);
    else if (st == STRATA_OK)
        st = look_at_places(l);
    if (st == STRATA_OK && l->data)
        st = look_at_data(l);
    if (st != STRATA_OK)
        return st;
    leave(l, "memory");
    leave_monitors(l);
    return STRATA_OK;
}

/* The patterns among the data become names of the copy's own. */
static strata_status copy_data(struct cli_args *out, const struct cli_args *args)
{
    strata_status st = STRATA_OK;

    out->data = out->matched = (struct cli_list){0};
    for (uint32_t i = 0; i < args->data.count && st == STRATA_OK; i++)
        st = cli_list_push(&out->data, args->data.items[i]);
    return st;
}

static void free_data(struct cli_args *args)
{
    for (uint32_t i = 0; i < args->matched.count; i++)
        free((void *)(uintptr_t)args->matched.items[i]);
    free(args->matched.items);
    free(args->data.items);
}

strata_status cli_check_parts(struct cli_check *c, const struct cli_args *args, const char *config_file,
                              struct strata_config *config, uint32_t ranks)
{
    const enum st_log_level before = st_log_lowest(ST_LOG_ERROR); /* a run says its notices itself */
    struct looking l = {.check = c, .args = *args};
    strata_status st = copy_data(&l.args, args);

    l.args.command = CLI_CMD_TRAIN;
    l.args.config_file = config_file;
    l.args.ranks = ranks > 1 ? ranks : 0;
    l.train.args = &l.train.own;
    l.train.run.ranks.who = (struct strata_comm_opts)STRATA_COMM_OPTS_INIT;
    l.train.run.ranks.who.ranks = 1; /* none is met */
    if (st == STRATA_OK)
        st = look(&l, config, ranks);
    (void)st_log_lowest(before);
    close_data(&l.train);
    cli_checkpoints_close(&l.train.checkpoints);
    if (l.train.run.config == config)
        l.train.run.config = NULL; /* the caller's */
    cli_run_close(&l.train.run);
    free_data(&l.args);
    return st;
}

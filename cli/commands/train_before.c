/* train_before.c - what strata train looks at before anything is allocated or made: inputs by which it goes on, outputs and their
 * places.  strata check asks the same. */
#include "cli/commands/train_internal.h"
#include "cli/options/output.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "strata/recipe.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* --- before the model --- */

/* Again where it was opened again, for the steps of a run that goes on. */
static strata_status read_config(struct train *t)
{
    const bool by_config = t->own.metrics == NULL || t->own.metrics == t->says.metrics;
    strata_status st;

    t->says = (struct strata_config_info)STRATA_CONFIG_INFO_INIT;
    if ((st = strata_config_get_info(t->run.config, &t->says)) != STRATA_OK)
        return st;
    if (by_config && speaks(t)) /* one rank writes them */
        t->own.metrics = t->says.metrics[0] != '\0' ? t->says.metrics : NULL;
    return STRATA_OK;
}

strata_status train_check_evaluated(struct train *t)
{
    const struct cli_args *args = &t->own;
    const int ways = (args->eval_data != NULL) + (args->eval_datasets.count > 0) + (args->val_size > 0);
    const bool often = args->eval_every != 0 || args->eval_part > 0 || args->eval_epochs;
    const strata_status st = read_config(t);

    if (st != STRATA_OK)
        return st;
    if (often && ways == 0)
        return st_error(STRATA_E_INVAL, "--eval-every needs --eval-data FILE, --eval-dataset NAME, or --val-size X of texts");
    if (!often && (args->early_stop != 0 || t->says.keep_best != 0))
        return st_error(STRATA_E_INVAL, "%s needs --eval-every N: it goes by the losses of evaluations",
                        args->early_stop != 0 ? "--early-stop" : "--keep-best");
    return ways <= 1
               ? STRATA_OK
               : st_error(STRATA_E_INVAL, "--eval-data, --eval-dataset and --val-size exclude each other: each says what is "
                                          "evaluated");
}

/* Texts become the tokens that the run began with, though a day has passed. */
static void keep_date(struct train *t)
{
    const char *date = t->checkpoints.was.date;
    const time_t now = time(NULL);
    struct tm parts = {0};
    char today[16];

    if (date == NULL || date[0] == '\0' || t->args->date != NULL)
        return;
    t->run.date = date;
    localtime_r(&now, &parts);
    if ((strftime(today, sizeof(today), "%Y-%m-%d", &parts) == 0 || strcmp(today, date) != 0) && speaks(t))
        st_log(ST_LOG_NOTICE, "chat template date: %s (from the resumed run)", date);
}

strata_status train_before_model(struct train *t)
{
    const struct cli_args *args = &t->own;
    strata_status st = train_check_evaluated(t);

    if (st == STRATA_OK && args->ops && args->trace == NULL)
        st = st_error(STRATA_E_INVAL, "--ops needs --trace FILE.json; strata bench step --ops prints the ops as a table");
    if (st == STRATA_OK)
        st = cli_checkpoints_prepare(&t->checkpoints, args, &t->run.ranks, t->says.save, t->says.save_every);
    if (st == STRATA_OK)
        st = cli_checkpoints_keep_step(&t->checkpoints, &t->run);
    if (st == STRATA_OK)
        st = read_config(t);
    if (st != STRATA_OK)
        return st;
    keep_date(t);
    t->run.saved_checkpoints = cli_checkpoints_kept(&t->checkpoints);
    t->run.replaces = cli_checkpoints_replace(&t->checkpoints);
    if (args->max_steps == 0 || cli_checkpoints_steps(&t->checkpoints) <= args->max_steps)
        return STRATA_OK;
    return st_error(STRATA_E_INVAL, "--max-steps %" PRIu64 ": the checkpoint has done %" PRIu64 " steps already: raise it",
                    args->max_steps, cli_checkpoints_steps(&t->checkpoints));
}

/* --- before the plan --- */

/* Hours of training must not end with "no such directory". */
static strata_status check_out(const struct train *t)
{
    const struct cli_args *args = t->args;
    const char *path = args->out;
    char out[ST_PATH_MAX], parent[ST_PATH_MAX], what[ST_PATH_MAX + 16];
    struct stat info;
    strata_status st;

    if (path == NULL || !speaks(t) || t->resubmitted.asked)
        return STRATA_OK;
    if (!st_fault_refuses("out.stat") && stat(path, &info) == 0 && !S_ISDIR(info.st_mode))
        return st_error(STRATA_E_INPUT, "--out %s is a file, not a directory", path);
    if (!st_fault_refuses("out.access") && access(path, W_OK) == 0) {
        st = cli_output_check_dir("--out", path, args);
        return st == STRATA_OK && !t->run.shape.adapter ? cli_output_check_replaced("--out", path, args) : st;
    }
    if (errno != ENOENT)
        return st_error_errno(errno, "--out %s cannot be written", path);
    if (lstat(path, &info) == 0)
        return st_error(STRATA_E_INPUT, "--out %s is a dangling link: make the directory that it names, or name another", path);
    if ((st = st_path_copy(out, path)) != STRATA_OK)
        return st;
    out[st_path_length(out)] = '\0';
    if ((st = st_path_dir(parent, out)) != STRATA_OK)
        return st;
    snprintf(what, sizeof(what), "--out %s", path);
    if (st_fault_refuses("out.parent") || access(parent, W_OK) != 0)
        return st_new_file_no_place(errno, what, parent);
    return STRATA_OK;
}

struct cli_args train_traces(const struct cli_args *args)
{
    struct cli_args resumed = *args;

    resumed.overwrite = args->overwrite || args->resume != NULL;
    return resumed;
}

strata_status train_before_plan(struct train *t)
{
    const struct cli_args *args = &t->own;
    const struct cli_args resumed = train_traces(args);
    strata_status st;

    cli_resubmitted_ask(&t->resubmitted, &t->checkpoints, t->run.shape.adapter);
    st = check_out(t);
    if (st == STRATA_OK)
        st = cli_lines_check(args, t->checkpoints.was.metrics_bytes, cli_checkpoints_lacks_lines(&t->checkpoints));
    return st == STRATA_OK ? cli_output_check("--trace", args->trace, &resumed) : st;
}

/* --- once there are data --- */

/* Steps of --max-steps are whole.  A trainer's end with the epoch, the last one smaller, or left out. */
static void note_whole_steps(const struct train *t, uint64_t count, uint64_t sequences)
{
    const char *key = strata_recipe_key_of(t->args->recipe, "--max-steps");
    const bool trainers = key != NULL && strcmp(key, "max_steps") == 0;

    if (count < sequences && speaks(t))
        st_log(ST_LOG_NOTICE,
               "the data has %" PRIu64 " %s, a step takes %" PRIu64
               ": it goes on into the next epoch; --epochs ends with the data",
               count, count == 1 ? "sequence" : "sequences", sequences);
    else if (trainers && count % sequences != 0 && t->steps > count / sequences && speaks(t))
        st_log(ST_LOG_NOTICE,
               "max_steps: %" PRIu64 " sequences are no multiple of a step's %" PRIu64
               ": a step goes on into the next epoch, unlike Trainer's",
               count, sequences);
}

strata_status train_count_steps(struct train *t)
{
    const uint64_t sequences = t->run.shape.world_sequences;

    t->steps = t->args->max_steps;
    if (t->args->epochs == 0) {
        note_whole_steps(t, strata_data_count(t->data), sequences);
        return STRATA_OK;
    }
    t->epoch_steps = (strata_data_count(t->data) + sequences - 1) / sequences;
    t->steps = (uint64_t)ceil(t->args->epochs * (double)t->epoch_steps);
    if (cli_checkpoints_steps(&t->checkpoints) > t->steps)
        return st_error(STRATA_E_INVAL,
                        "--epochs %g is %" PRIu64 " %s of this data, and the checkpoint has done %" PRIu64 " already: raise it",
                        t->args->epochs, t->steps, t->steps == 1 ? "step" : "steps", cli_checkpoints_steps(&t->checkpoints));
    return strata_model_set_steps(t->run.model, t->steps);
}

/* cli/run.c - see run.h. */
#include "cli/run.h"
#include "cli/cli_signals.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/system/file.h"
#include "strata/data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRACE_STEPS_MAX    50u
#define CLI_TOKENS_DIR_MAX 1024

static bool rehearses(const struct cli_args *args)
{
    return args->command == CLI_CMD_BENCH_STEP && strcmp(args->device, "paced") == 0;
}

/* The device is that machine's, as strata_machine_open() checks. */
static bool plans_elsewhere(const struct cli_args *args)
{
    return args->command == CLI_CMD_PLAN && (args->machine != NULL || args->gpu != NULL);
}

static strata_status configure(struct cli_run *r, uint32_t train_batch, uint32_t leaves)
{
    const struct cli_args *args = r->args;
    struct strata_config_opts opts = STRATA_CONFIG_OPTS_INIT;

    opts.file = args->config_file;
    opts.overrides = args->overrides.items;
    opts.override_count = args->overrides.count;
    opts.allow_unknown = args->allow_unknown;
    opts.forward_only = args->command == CLI_CMD_EVAL || args->command == CLI_CMD_GENERATE;
    opts.max_steps = args->max_steps;
    opts.steps_later = args->epochs > 0;
    opts.train_batch = train_batch;
    opts.leaves = leaves;
    opts.recipe = args->recipe;
    opts.variables = (const char *const *)environ;
    opts.ranks = args->ranks != 0 ? (uint32_t)args->ranks : r->ranks.who.ranks;
    return strata_config_open(&r->config, &opts);
}

strata_status cli_run_configure(struct cli_run *r, const struct cli_args *args, struct cli_progress *progress)
{
    strata_status st = rehearses(args) || plans_elsewhere(args) ? STRATA_OK : strata_device_check(args->device);

    *r = (struct cli_run){.args = args, .progress = progress, .ranks = r->ranks};
    if (st == STRATA_OK)
        st = configure(r, 0, 0);
    return st == STRATA_OK && r->ranks.who.ranks > 1 ? cli_ranks_meet(&r->ranks, r->config) : st;
}

strata_status cli_run_configure_again(struct cli_run *r, uint32_t train_batch, uint32_t leaves)
{
    const enum st_log_level before = st_log_lowest(ST_LOG_WARN); /* its notices are told */
    strata_status st;

    strata_config_close(r->config);
    r->config = NULL;
    st = configure(r, train_batch, leaves);
    (void)st_log_lowest(before);
    return st;
}

static enum strata_use use_of(enum cli_command command)
{
    switch (command) {
    case CLI_CMD_EVAL:
        return STRATA_USE_EVAL;
    case CLI_CMD_GENERATE:
        return STRATA_USE_GENERATE;
    case CLI_CMD_PLAN:
    case CLI_CMD_BENCH_STEP: /* runs the plan with seeded weights */
        return STRATA_USE_PLAN;
    default:
        return STRATA_USE_TRAIN;
    }
}

bool cli_run_is_text(const char *path)
{
    enum strata_data_kind kind;

    return strata_data_kind_of(path, &kind) == STRATA_OK && kind != STRATA_KIND_TOKENS;
}

static bool are_rows(const char *path)
{
    enum strata_data_kind kind;

    return strata_data_kind_of(path, &kind) == STRATA_OK && kind == STRATA_KIND_ROWS;
}

/* Tables and packed files are none of the kinds that are read. */
static strata_status check_endings(const struct cli_args *args)
{
    enum strata_data_kind kind;
    strata_status st = args->eval_data != NULL ? strata_data_kind_of(args->eval_data, &kind) : STRATA_OK;

    for (uint32_t i = 0; i < args->data.count && st == STRATA_OK; i++)
        st = strata_data_kind_of(args->data.items[i], &kind);
    return st;
}

/* Whether the data that is trained or evaluated on has documents within its sequences. */
static strata_status find_documents(const struct cli_args *args, bool *found)
{
    bool eval = false;
    strata_status st = STRATA_OK;

    *found = false;
    if (args->data.count > 0)
        st = strata_data_documents(args->data.items, args->data.count, found);
    if (st == STRATA_OK && args->eval_data != NULL)
        st = strata_data_documents(&args->eval_data, 1, &eval);
    *found = *found || eval;
    if (args->layout != NULL)
        *found = *found || strcmp(args->layout, "packed") == 0;
    for (uint32_t i = 0; i < args->data.count && args->layout == NULL; i++)
        *found = *found || are_rows(args->data.items[i]); /* conversations are packed */
    *found = *found || (args->datasets.count + args->eval_datasets.count > 0 && args->layout == NULL);
    *found = *found || (args->eval_data != NULL && are_rows(args->eval_data));
    return st;
}

/* How many of the files are texts or rows. */
static uint32_t count_texts(const char *const *paths, uint32_t count)
{
    uint32_t texts = 0;

    for (uint32_t i = 0; i < count; i++)
        texts += cli_run_is_text(paths[i]);
    return texts;
}

/* OUT.tokens, beside the directory of a model, where nobody publishes it.  False: the directory's name is not known (".", "/").
 */
static bool tokens_dir(char dir[CLI_TOKENS_DIR_MAX], const char *out)
{
    size_t length = strlen(out);
    const char *base;
    int fill;

    while (length > 0 && out[length - 1] == '/')
        length--;
    base = memrchr(out, '/', length);
    base = base != NULL ? base + 1 : out;
    fill = snprintf(dir, CLI_TOKENS_DIR_MAX, "%.*s.tokens", (int)length, out);
    return fill > 0 && fill < CLI_TOKENS_DIR_MAX && strspn(base, ".") < (size_t)(out + length - base);
}

/* Options of texts mean nothing where there are only token files; but a template that those were made by is written beside the
 * weights that learn them. */
static strata_status check_text_options(const struct cli_args *args)
{
    const bool evaluates = args->command != CLI_CMD_TRAIN;
    const char *name = args->tokenizer != NULL                    ? "tokenizer"
                       : args->chat_template != NULL && evaluates ? "template"
                       : args->template_kwargs != NULL            ? "chat-template-kwargs"
                       : args->date != NULL                       ? "date"
                       : args->layout != NULL                     ? "layout"
                       : args->max_samples > 0                    ? "max-samples"
                       : args->val_size > 0                       ? "val-size"
                       : args->train_on_prompt                    ? "train-on-prompt"
                       : args->mask_history                       ? "mask-history"
                       : args->turn_ends                          ? "train-turn-ends"
                       : args->as_trl                             ? "as-trl"
                       : args->strict                             ? "strict"
                                                                  : NULL;

    if (name == NULL || args->datasets.count + args->eval_datasets.count > 0 ||
        count_texts(args->data.items, args->data.count) > 0 || (args->eval_data != NULL && cli_run_is_text(args->eval_data)))
        return STRATA_OK;
    return st_error(STRATA_E_INVAL, "--%s is for texts (.txt, .json, .jsonl): --data names token files", name);
}

static strata_status check_kinds(const struct cli_run *r, const char *option, const char *const *paths, uint32_t count,
                                 uint32_t datasets)
{
    const uint32_t texts = count_texts(paths, count);

    if (texts != count && texts + datasets > 0)
        return st_error(STRATA_E_INVAL, "--data names texts and token files: make a token file of the texts with strata tokens");
    for (uint32_t i = 0; i < count && r->ranks.who.ranks > 1; i++) {
        const bool pipe = st_file_is_pipe(paths[i]);

        if (pipe || strcmp(paths[i], "-") == 0)
            return st_error(STRATA_E_INVAL,
                            "%s %s%s is read by one process, and there are %u: make a token file with strata tokens", option,
                            paths[i], pipe ? ", a pipe," : "", r->ranks.who.ranks);
    }
    return check_text_options(r->args);
}

strata_status cli_run_check_data(const struct cli_run *r)
{
    const struct cli_args *args = r->args;
    const strata_status st = check_endings(args);

    return st != STRATA_OK || args->data.count + args->datasets.count == 0
               ? st
               : check_kinds(r, "--data", args->data.items, args->data.count, args->datasets.count);
}

static strata_status open_texts(const struct cli_run *r, struct strata_data **data, struct strata_data **heldout,
                                const char *const *paths, uint32_t count, bool evaluated)
{
    const struct cli_args *args = r->args;
    struct strata_texts_opts opts = STRATA_TEXTS_OPTS_INIT;
    char keep[CLI_TOKENS_DIR_MAX];

    opts.chat_template = args->chat_template;
    opts.chat_template_kwargs = args->template_kwargs;
    opts.date = r->date != NULL ? r->date : args->date;
    opts.train_on_prompt = args->train_on_prompt;
    opts.mask_history = args->mask_history;
    opts.turn_ends = args->turn_ends;
    opts.as_trl = args->as_trl;
    opts.strict = args->strict;
    if (!evaluated || count == 0) {
        const struct cli_list *sets = evaluated ? &args->eval_datasets : &args->datasets;

        opts.dataset_info = args->dataset_info;
        opts.datasets = sets->items;
        opts.dataset_count = sets->count;
        opts.layout = args->layout;
        opts.max_samples = args->max_samples;
        opts.seed = args->seed;
    }
    if (!evaluated) {
        opts.val_size = args->val_size;
        opts.heldout = heldout;
    }
    if (args->command == CLI_CMD_TRAIN && args->out != NULL && tokens_dir(keep, args->out))
        opts.keep = keep;
    return strata_data_open_texts(data, r->model, paths, count, &opts);
}

strata_status cli_run_data(const struct cli_run *r, struct strata_data **data, struct strata_data **heldout)
{
    const struct cli_args *args = r->args;
    const uint32_t texts = count_texts(args->data.items, args->data.count) + args->datasets.count;
    const strata_status st = cli_run_check_data(r);

    if (st != STRATA_OK)
        return st;
    return texts == 0 ? strata_data_open(data, r->model, args->data.items, args->data.count)
                      : open_texts(r, data, heldout, args->data.items, args->data.count, false);
}

strata_status cli_run_eval_data(const struct cli_run *r, struct strata_data **data)
{
    const char *const *path = (const char *const *)&r->args->eval_data;
    strata_status st;

    if (r->args->eval_datasets.count > 0)
        return open_texts(r, data, NULL, NULL, 0, true);
    if ((st = check_kinds(r, "--eval-data", path, 1, 0)) != STRATA_OK)
        return st;
    return cli_run_is_text(*path) ? open_texts(r, data, NULL, path, 1, true) : strata_data_open(data, r->model, path, 1);
}

/* Where this user's caches are; NULL: nowhere, as STRATA_CACHE asks by being empty, or for want of a home. */
static const char *find_cache_dir(char dir[ST_PATH_MAX])
{
    const char *asked = getenv("STRATA_CACHE"), *caches = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const bool named = caches != NULL && caches[0] == '/';

    if (asked != NULL)
        return asked[0] != '\0' && st_path_copy(dir, asked) == STRATA_OK ? dir : NULL;
    if (!named && (home == NULL || home[0] != '/'))
        return NULL;
    return st_path_join(dir, named ? caches : home, named ? "strata" : ".cache/strata") == STRATA_OK ? dir : NULL;
}

void cli_run_machine_opts(struct cli_run *r, struct strata_machine_opts *opts)
{
    const struct cli_args *args = r->args;

    *opts = (struct strata_machine_opts)STRATA_MACHINE_OPTS_INIT;
    opts->device = rehearses(args) ? "cpu" : args->device; /* whose plan a paced device runs */
    opts->file = args->machine;
    opts->gpu = args->gpu;
    opts->ram = args->ram;
    opts->drives = args->drives.items;
    opts->drive_count = args->drives.count;
    opts->ranks = (uint32_t)args->ranks;
    opts->nodes = (uint32_t)args->nodes;
    opts->comm = r->ranks.comm;
    opts->cache_dir = args->measure ? NULL : find_cache_dir(r->cache_dir); /* --measure: now */
}

void cli_run_model_opts(struct cli_run *r, struct strata_model_opts *opts)
{
    const struct cli_args *args = r->args;

    *opts = (struct strata_model_opts)STRATA_MODEL_OPTS_INIT;
    opts->model = args->model;
    opts->use = use_of(args->command);
    opts->seq_len = (uint32_t)args->seq_len;
    opts->seq_len_most = (uint32_t)args->cutoff_len;
    opts->prompt_tokens = r->prompt_tokens;
    opts->max_tokens = (uint32_t)args->max_tokens;
    opts->cache_tokens = r->cache_tokens;
    opts->saved_checkpoints = r->saved_checkpoints;
    opts->adapter = r->adapter != NULL ? r->adapter : args->adapter;
    opts->tokenizer = args->tokenizer;
    opts->chat_template = args->command == CLI_CMD_TRAIN ? args->chat_template : NULL;
    opts->seed = args->seed;
    opts->comm = r->ranks.comm;
    opts->progress = r->progress != NULL ? cli_progress_watch : NULL;
    opts->progress_ctx = r->progress;
}

strata_status cli_run_model(struct cli_run *r)
{
    const struct cli_args *args = r->args;
    struct strata_machine_opts machine;
    struct strata_model_opts opts;
    strata_status st;

    cli_run_machine_opts(r, &machine);
    cli_run_model_opts(r, &opts);
    if ((st = check_endings(args)) != STRATA_OK || (st = find_documents(args, &r->documents)) != STRATA_OK)
        return st;
    opts.documents = r->documents;
    st = strata_machine_open(&r->machine, &machine);
    if (st == STRATA_OK)
        st = strata_model_open(&r->model, r->config, &opts);
    r->shape = (struct strata_model_info)STRATA_MODEL_INFO_INIT;
    if (st == STRATA_OK)
        st = strata_model_get_info(r->model, &r->shape);
    if (st == STRATA_OK && r->shape.seq_len < args->cutoff_len)
        st_log(ST_LOG_NOTICE, "--cutoff-len %llu: the context of %s has %u tokens, and longer documents are cut there",
               (unsigned long long)args->cutoff_len, args->model, r->shape.seq_len);
    return st;
}

void cli_run_print_plan(const struct cli_run *r, unsigned parts, FILE *file)
{
    struct strata_plan_report_opts opts = STRATA_PLAN_REPORT_OPTS_INIT;

    opts.parts = parts;
    if (strata_plan_print(r->plan, &opts, file) != STRATA_OK)
        st_log(ST_LOG_WARN, "%s", strata_last_error());
}

strata_status cli_run_create(struct cli_run *r)
{
    struct strata_engine_opts opts = STRATA_ENGINE_OPTS_INIT;

    opts.trace_steps = r->args->trace != NULL ? TRACE_STEPS_MAX : 0;
    opts.trace_ops = r->args->ops;
    opts.fake_seed = r->args->fake_seed;
    opts.fake_latency_us = (uint32_t)r->args->fake_latency_us;
    opts.hangs = cli_signals_hang;
    opts.overwrite = r->replaces;
    return strata_engine_create(&r->engine, r->plan, &opts);
}

strata_status cli_run_start(struct cli_run *r)
{
    strata_status st = cli_run_create(r);

    if (st == STRATA_OK)
        st = strata_engine_load(r->engine);
    if (r->progress != NULL)
        cli_progress_work_end(r->progress);
    return st;
}

void cli_run_end(struct cli_run *r)
{
    cli_signals_engine(NULL);
    strata_engine_destroy(r->engine);
    strata_plan_destroy(r->plan);
    strata_model_close(r->model);
    strata_machine_close(r->machine);
    r->engine = NULL;
    r->plan = NULL;
    r->model = NULL;
    r->machine = NULL;
}

void cli_run_close(struct cli_run *r)
{
    cli_run_end(r);
    strata_config_close(r->config);
    cli_ranks_close(&r->ranks);
    r->config = NULL;
}

uint64_t cli_run_memory(const struct cli_run *r)
{
    struct strata_plan_info info = STRATA_PLAN_INFO_INIT;

    return r->plan != NULL && strata_plan_get_info(r->plan, &info) == STRATA_OK ? info.memory_bytes : 0;
}

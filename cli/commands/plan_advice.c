/* cli/commands/plan_advice.c - see plan_advice.h. */
#include "cli/commands/plan_advice.h"
#include "cli/commands/commands.h"
#include "cli/options/args_table.h"
#include "cli/options/output.h"
#include "cli/options/told.h"
#include "cli/run.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/print.h"
#include "core/base/text.h"
#include "core/base/wrap.h"
#include "strata/advise.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS_MOST 1e18

/* 1B, 2.5M, 4e8. */
static strata_status parse_tokens(double *tokens, const char *text)
{
    static const char suffixes[] = "KMBT";
    char *end = NULL;
    const char *suffix;

    if (text == NULL)
        return STRATA_OK;
    *tokens = strtod(text, &end);
    suffix = isalpha((unsigned char)*end) ? strchr(suffixes, toupper((unsigned char)*end)) : NULL;
    if (suffix != NULL) {
        *tokens *= pow(1000, (double)(suffix - suffixes + 1));
        end++;
    }
    if (end != text && *end == '\0' && *tokens >= 1 && *tokens <= TOKENS_MOST)
        return STRATA_OK;
    return st_error(STRATA_E_INVAL, "--tokens: \"%s\" is not a number of tokens: write 500M, 1B or 1000000000", text);
}

/* What is said of the machine, whatever the run. */
static bool is_of_machine(const char *override)
{
    static const char *const paths[] = {"strata.nvme=", "strata.device_memory=", "strata.host_memory=", "strata.threads="};

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        if (strncmp(override, paths[i], strlen(paths[i])) == 0)
            return true;
    return false;
}

/* An option that says something of a run, which has a configuration; NULL: none does. */
static const char *of_a_run(const struct cli_args *args)
{
    /* clang-format off */
    static const char *const names[] = {
        "dataset", "eval-data", "eval-dataset", "eval-every", "out", "resume", "adapter", "seed", "metrics",
        "digest", "tokenizer", "template", "chat-template-kwargs", "date", "layout", "max-samples", "val-size",
        "train-on-prompt", "train-turn-ends", "as-trl", "mask-history", "strict", "no-shuffle"};
    /* clang-format on */

    return cli_option_given(CLI_CMD_TRAIN, names, sizeof(names) / sizeof(names[0]), args);
}

bool cli_plan_asks(const struct cli_args *args)
{
    if (args->tokens != NULL || args->batch_tokens != 0 || args->write_config != NULL)
        return true;
    if (args->config_file != NULL || args->recipe != NULL || args->scale || args->ops || of_a_run(args) != NULL)
        return false;
    for (uint32_t i = 0; i < args->overrides.count; i++)
        if (!is_of_machine(args->overrides.items[i]))
            return false;
    return true;
}

/* The answer chooses what a configuration says; what is said of the machine stays. */
static strata_status check(const struct cli_args *args)
{
    if (args->config_file != NULL || args->recipe != NULL)
        return st_error(
            STRATA_E_INVAL,
            "--tokens, --batch-tokens and --write search for a configuration, and --config is one: leave one or the others out");
    if (of_a_run(args) != NULL)
        return st_error(
            STRATA_E_INVAL,
            "--tokens, --batch-tokens and --write search for a configuration; --%s is for a run that has one: leave it out",
            of_a_run(args));
    if (args->scale || args->ops)
        return st_error(STRATA_E_INVAL, "--tokens, --batch-tokens and --write search for a configuration; --scale and --ops need "
                                        "one: give --config FILE in their place");
    if (args->tokens != NULL && (args->max_steps > 0 || args->epochs > 0 || args->data.count > 0))
        return st_error(STRATA_E_INVAL, "--tokens and --%s exclude each other: both say how long the run is",
                        args->max_steps > 0 ? "max-steps"
                        : args->epochs > 0  ? "epochs"
                                            : "data");
    if (args->epochs > 0 && args->data.count == 0)
        return st_error(STRATA_E_INVAL, "--epochs %g says nothing without data: name token files (--data), or say --tokens N",
                        args->epochs);
    for (uint32_t i = 0; i < args->data.count; i++)
        if (cli_run_is_text(args->data.items[i]))
            return st_error(
                STRATA_E_INVAL,
                "--data %s is no token file, whose tokens can be counted: make one with strata tokens, or say --tokens N",
                args->data.items[i]);
    for (uint32_t i = 0; i < args->overrides.count; i++)
        if (!is_of_machine(args->overrides.items[i]))
            return st_error(STRATA_E_INVAL,
                            "%s is what --tokens, --batch-tokens and --write search for: leave it out; --nvme, --device-memory, "
                            "--host-memory and --threads may stay",
                            args->overrides.items[i]);
    return STRATA_OK;
}

static strata_status check_outputs(const struct cli_args *args)
{
    strata_status st = cli_output_check("--write", args->write_config, args);

    if (st == STRATA_OK)
        st = cli_output_check("--trace", args->trace, args);
    if (st == STRATA_OK && args->trace != NULL && args->write_config != NULL &&
        st_new_file_is_same(args->trace, args->write_config))
        return st_error(STRATA_E_INVAL, "--trace and --write are both %s: give each a file of its own", args->trace);
    return st;
}

static strata_status write_config(const struct cli_args *args, const struct strata_advice *advice)
{
    const char *config = strata_advice_config(advice);
    struct st_new_file file;
    strata_status st;

    if (args->write_config == NULL || config == NULL)
        return STRATA_OK;
    if ((st = cli_output_create(&file, "--write", args->write_config, args)) != STRATA_OK)
        return st;
    if ((st = st_new_file_write_at(&file, config, strlen(config), 0)) == STRATA_OK)
        return st_new_file_commit(&file);
    st_new_file_abort(&file);
    return st;
}

static strata_status show_json(struct strata_advice *advice)
{
    const char *json;
    const strata_status st = strata_advice_json(advice, &json);

    if (st == STRATA_OK)
        st_print_text(stdout, json);
    return st;
}

/* The file, and the command lines that take it. */
static void print_written(const struct cli_args *args, const struct strata_advice *advice)
{
    char name[4096];

    st_text_shell(name, sizeof(name), args->write_config);
    st_wrap_print(stdout, "  written: %s\n  to plan it again, with the same words for model and machine:\n", args->write_config);
    st_print(stdout, "  strata plan --config %s\n", name);
    st_wrap_print(stdout, "  to train with it:\n");
    st_print(stdout, "  strata train --model DIR --config %s", name);
    if (args->seq_len > 0)
        st_print(stdout, " --seq-len %" PRIu64, args->seq_len);
    if (strstr(strata_advice_config(advice), "\"nvme_path\"") != NULL)
        st_print_text(stdout, " --nvme DIR");
    if (args->gpu != NULL || strcmp(args->device, "cpu") != 0)
        st_print(stdout, " --device %s", args->gpu != NULL ? "cuda" : args->device);
    st_print_text(stdout, " --data FILE\n");
}

/* What was not done, and how to have all of the answer. */
static void print_unwritten(const struct cli_args *args)
{
    char word[4096];

    if (args->write_config != NULL)
        st_wrap_print(stdout, "  not written: %s\n", args->write_config);
    st_wrap_print(stdout, "  the answer as JSON, configurations whole:\n");
    st_print_text(stdout, "  strata");
    for (uint32_t i = 0; i < args->line.count; i++)
        st_print(stdout, " %s", st_text_shell(word, sizeof(word), args->line.items[i]));
    st_print_text(stdout, " --json\n");
}

static strata_status show(const struct cli_run *run, struct strata_advice *advice)
{
    strata_status st;

    if (run->args->json)
        return show_json(advice);
    if ((st = strata_advice_print(advice, stdout)) != STRATA_OK)
        return st;
    if (run->plan == NULL)
        print_unwritten(run->args);
    else if (run->args->write_config != NULL)
        print_written(run->args, advice);
    else
        st_wrap_print(stdout, "  --write FILE.json writes the configuration\n");
    if (run->args->gpu != NULL) {
        st_print_text(stdout, "\n");
        st = strata_machine_print(run->machine, NULL, stdout);
    }
    if (st == STRATA_OK && run->plan != NULL) {
        st_print_text(stdout, "\n");
        cli_run_print_plan(run, STRATA_PLAN_FULL, stdout);
    }
    return st;
}

/* Notices of the model and the machine have come when candidates are compared; each of these would repeat them. */
static bool watch(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    if (strcmp(what, STRATA_ADVICE_COMPARES) == 0 && done == 0)
        st_log_configure(cli_told_log, NULL, ST_LOG_WARN);
    return cli_progress_watch(ctx, what, done, total);
}

/* One epoch, where data alone is named. */
static strata_status ask(struct strata_advice **advice, struct cli_run *run, double tokens)
{
    const struct cli_args *args = run->args;
    struct strata_machine_opts machine;
    struct strata_model_opts model;
    struct strata_advice_opts opts = STRATA_ADVICE_OPTS_INIT;
    strata_status st;

    cli_run_machine_opts(run, &machine);
    cli_run_model_opts(run, &model);
    model.progress = watch;
    opts.model = &model;
    opts.overrides = args->overrides.items;
    opts.override_count = args->overrides.count;
    opts.batch_tokens = args->batch_tokens;
    opts.data = args->data.items;
    opts.data_count = args->data.count;
    opts.tokens = tokens;
    opts.steps = args->max_steps;
    opts.epochs = args->epochs;
    if (args->data.count > 0 && (st = strata_data_documents(args->data.items, args->data.count, &model.documents)) != STRATA_OK)
        return st;
    if ((st = strata_machine_open(&run->machine, &machine)) != STRATA_OK)
        return st;
    opts.machine = run->machine;
    return strata_advice_make(advice, &opts);
}

int cli_plan_advice(const struct cli_args *args)
{
    struct cli_progress progress = {0};
    struct cli_run run = {.args = args, .progress = &progress};
    struct strata_advice *advice = NULL;
    double tokens = 0;
    strata_status st = check(args), shown = STRATA_OK;
    int code;

    if (st == STRATA_OK && (st = check_outputs(args)) == STRATA_OK && (st = parse_tokens(&tokens, args->tokens)) == STRATA_OK) {
        cli_progress_init(&progress, stderr, args->quiet, 0, 0);
        st = ask(&advice, &run, tokens);
        cli_progress_work_end(&progress);
    }
    if (advice != NULL) {
        run.plan = strata_advice_plan(advice);
        if ((shown = write_config(args, advice)) == STRATA_OK)
            shown = show(&run, advice);
        if (shown == STRATA_OK && st == STRATA_OK && run.plan != NULL)
            shown = cli_plan_trace(run.plan, args);
    }
    st = shown != STRATA_OK ? shown : st;
    code = st == STRATA_OK ? 0 : cli_fail(st);
    strata_advice_destroy(advice);
    strata_machine_close(run.machine);
    cli_progress_fini(&progress);
    return code;
}

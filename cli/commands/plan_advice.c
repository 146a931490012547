/* cli/commands/plan_advice.c - see plan_advice.h. */
#include "cli/commands/plan_advice.h"
#include "advise/plan_report.h"
#include "advise/predict.h"
#include "api/door_advise.h"
#include "api/plan_case.h"
#include "cli/commands/commands.h"
#include "cli/commands/plan_picture.h"
#include "cli/options/output.h"
#include "cli/options/told.h"
#include "advise/advice_print.h"
#include "cli/run.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/print.h"
#include "core/base/text.h"
#include "core/base/wrap.h"
#include "core/json/json.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DIRS_BYTES  4096
#define TOKENS_MOST 1e18
#define NVME        "strata.nvme="

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
    static const char *const paths[] = {NVME, "strata.device_memory=", "strata.host_memory=", "strata.threads="};

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        if (strncmp(override, paths[i], strlen(paths[i])) == 0)
            return true;
    return false;
}

/* An option that says something of a run, which has a configuration; NULL: none does. */
static const char *of_a_run(const struct cli_args *args)
{
    const struct {
        const char *name;
        bool given;
    } options[] = {
        {"dataset", args->datasets.count > 0},
        {"eval-data", args->eval_data != NULL},
        {"eval-dataset", args->eval_datasets.count > 0},
        {"eval-every", args->eval_every > 0},
        {"out", args->out != NULL},
        {"resume", args->resume != NULL},
        {"adapter", args->adapter != NULL},
        {"seed", args->seed > 0},
        {"metrics", args->metrics != NULL},
        {"trace", args->trace != NULL},
        {"digest", args->digest},
        {"tokenizer", args->tokenizer != NULL},
        {"template", args->chat_template != NULL},
        {"chat-template-kwargs", args->template_kwargs != NULL},
        {"date", args->date != NULL},
        {"layout", args->layout != NULL},
        {"max-samples", args->max_samples > 0},
        {"val-size", args->val_size > 0},
        {"train-on-prompt", args->train_on_prompt},
        {"train-turn-ends", args->turn_ends},
        {"as-trl", args->as_trl},
        {"mask-history", args->mask_history},
        {"strict", args->strict},
        {"no-shuffle", args->no_shuffle},
    };

    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        if (options[i].given)
            return options[i].name;
    return NULL;
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
        return st_error(STRATA_E_INVAL,
                        "--tokens, --batch-tokens and --write ask for a configuration, and --config is one: leave "
                        "either out");
    if (of_a_run(args) != NULL)
        return st_error(STRATA_E_INVAL,
                        "--tokens, --batch-tokens and --write ask for a configuration: --%s is for a run that has one (--config "
                        "FILE)",
                        of_a_run(args));
    if (args->scale || args->ops)
        return st_error(STRATA_E_INVAL,
                        "--tokens, --batch-tokens and --write ask for a configuration: --scale and --ops are for one that is "
                        "chosen (--config FILE)");
    if (args->tokens != NULL && (args->max_steps > 0 || args->epochs > 0 || args->data.count > 0))
        return st_error(STRATA_E_INVAL, "--tokens and --%s exclude each other: both say how long the run is",
                        args->max_steps > 0 ? "max-steps"
                        : args->epochs > 0  ? "epochs"
                                            : "data");
    if (args->epochs > 0 && args->data.count == 0)
        return st_error(STRATA_E_INVAL, "--epochs %g: passes over which data? Name token files (--data), or say --tokens N",
                        args->epochs);
    for (uint32_t i = 0; i < args->data.count; i++)
        if (cli_run_is_text(args->data.items[i]))
            return st_error(STRATA_E_INVAL,
                            "--data %s: the answer counts the tokens of token files: make one with strata tokens, or say "
                            "--tokens N",
                            args->data.items[i]);
    for (uint32_t i = 0; i < args->overrides.count; i++)
        if (!is_of_machine(args->overrides.items[i]))
            return st_error(STRATA_E_INVAL,
                            "%s: with --tokens, --batch-tokens and --write the configuration is the answer: only "
                            "what is said of the machine (--nvme, --device-memory, --host-memory, --threads) counts",
                            args->overrides.items[i]);
    return STRATA_OK;
}

static strata_status check_outputs(const struct cli_args *args)
{
    strata_status st = cli_output_check("--write", args->write_config, args);

    if (st != STRATA_OK || args->svg == NULL || (st = cli_output_check("--svg", args->svg, args)) != STRATA_OK ||
        args->write_config == NULL)
        return st;
    if (!st_new_file_is_same(args->svg, args->write_config))
        return STRATA_OK;
    return st_error(STRATA_E_INVAL, "--svg and --write are both %s: give each a file of its own", args->svg);
}

static strata_status write_config(const struct cli_args *args, const struct st_advice *answer)
{
    struct st_new_file file;
    strata_status st;

    if (args->write_config == NULL || answer->config == NULL)
        return STRATA_OK;
    if ((st = cli_output_create(&file, "--write", args->write_config, args)) != STRATA_OK)
        return st;
    if ((st = st_new_file_write_at(&file, answer->config, strlen(answer->config), 0)) == STRATA_OK)
        return st_new_file_commit(&file);
    st_new_file_abort(&file);
    return st;
}

/* A list of directories as one text. */
static strata_status join_names(char nvme[DIRS_BYTES], const st_json *list, const char *value)
{
    bool good = st_json_type(list) == ST_JSON_ARRAY;
    size_t length = 0;

    nvme[0] = '\0';
    for (const st_json *n = st_json_first(list); n != NULL && good && length < DIRS_BYTES; n = st_json_next(n)) {
        good = st_json_type(n) == ST_JSON_STRING;
        if (good && strchr(st_json_string(n), ',') != NULL)
            return st_error(STRATA_E_INVAL,
                            "strata.nvme=%s: a comma ends a directory's name in a configuration: give a link without one", value);
        if (good)
            length += (size_t)snprintf(nvme + length, DIRS_BYTES - length, "%s%s", length > 0 ? "," : "", st_json_string(n));
    }
    return good ? STRATA_OK : st_error(STRATA_E_INVAL, "strata.nvme=%s: must be a directory, or a list of them", value);
}

/* The value of strata.nvme as one text: directories separated by commas, or a list of them; null, "auto": none. */
static strata_status take_dirs(struct strata_advice_opts *out, char nvme[DIRS_BYTES], const char *value)
{
    st_json *list = NULL;
    strata_status st = STRATA_OK;

    if (!st_text_is_utf8(value))
        return st_error(STRATA_E_INVAL, "strata.nvme %s: the name is not UTF-8, as a configuration is: give a link to it", value);
    if (st_json_parse(&list, value, strlen(value), "strata.nvme") != STRATA_OK || st_json_type(list) < ST_JSON_STRING) {
        const bool none = strcmp(value, "auto") == 0 || (list != NULL && st_json_type(list) == ST_JSON_NULL);

        snprintf(nvme, DIRS_BYTES, "%s", none ? "" : value);
    } else if (st_json_type(list) == ST_JSON_STRING) {
        snprintf(nvme, DIRS_BYTES, "%s", st_json_string(list));
    } else {
        st = join_names(nvme, list, value);
    }
    st_json_free(list);
    out->nvme = nvme[0] != '\0' ? nvme : NULL;
    return st;
}

/* The directories go to the configuration, so that it alone says where they are.  Free out->overrides. */
static strata_status make_question(struct strata_advice_opts *out, char nvme[DIRS_BYTES], const struct cli_args *args)
{
    const char **overrides = calloc(args->overrides.count + 1u, sizeof(*overrides));
    strata_status st;

    if (overrides == NULL)
        return st_nomem((args->overrides.count + 1u) * sizeof(*overrides));
    out->batch_tokens = args->batch_tokens;
    out->data = args->data.items;
    out->data_count = args->data.count;
    out->overrides = overrides;
    for (uint32_t i = 0; i < args->overrides.count; i++) {
        const char *item = args->overrides.items[i];

        if (strncmp(item, NVME, strlen(NVME)) != 0) {
            overrides[out->override_count++] = item;
            continue;
        }
        if ((st = take_dirs(out, nvme, item + strlen(NVME))) != STRATA_OK)
            return st;
    }
    return STRATA_OK;
}

/* How long the run is, as a run counts it: an epoch ends with a smaller step.  One epoch, where data alone is named. */
static void take_length(struct st_advised *asked, const struct cli_args *args, double tokens)
{
    const struct st_advice *a = asked->answer;
    const double step = (double)a->sequences * a->seq, epochs = args->epochs > 0 ? args->epochs : 1,
                 of_data = (double)a->data_sequences;

    asked->steps = tokens > 0 ? ceil(tokens / step) : (double)args->max_steps;
    asked->tokens = tokens > 0 ? tokens : asked->steps * step;
    if (asked->steps > 0 || a->data_sequences == 0)
        return;
    asked->steps = ceil(epochs * ceil(of_data / a->sequences));
    asked->tokens = epochs * of_data * a->seq;
}

static strata_status show(const struct cli_args *args, const struct st_advice *answer, struct strata_plan *plan, double tokens)
{
    struct st_advised asked = {.answer = answer, .written = answer->config != NULL ? args->write_config : NULL};
    struct st_json_writer w;
    FILE *file;

    take_length(&asked, args, tokens);
    asked.best = plan != NULL ? st_plan_case(plan) : NULL;
    if (plan != NULL)
        st_endurance_planned(&asked.endurance, asked.best, (uint64_t)asked.steps);
    if (args->json) {
        st_json_begin(&w, stdout);
        st_advice_put(&asked, &w);
        st_json_end_line(&w);
        return STRATA_OK;
    }
    file = st_wrap_open(stdout);
    st_advice_print(&asked, file);
    if (answer->named) {
        st_print_text(file, "\n");
        st_hardware_print(&answer->hardware, file);
    }
    st_wrap_close(file, stdout);
    if (plan != NULL) {
        st_print_text(stdout, "\n");
        st_plan_print(asked.best, true, stdout);
    }
    return STRATA_OK;
}

static bool adapters_fit(const struct st_advice *answer)
{
    bool fit = false;

    for (int m = 0; m < ST_METHOD_COUNT; m++)
        fit = fit || answer->instead[m].fits;
    return fit;
}

/* Notices of the model and the machine have come when candidates are compared; each of these would repeat them. */
static bool watch(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    if (strcmp(what, ST_ADVISOR_COMPARES) == 0 && done == 0)
        st_log_configure(cli_told_log, NULL, ST_LOG_WARN);
    return cli_progress_watch(ctx, what, done, total);
}

int cli_plan_advice(const struct cli_args *args)
{
    struct cli_run run = {.args = args};
    struct cli_progress progress = {0};
    struct strata_machine_opts machine;
    struct strata_model_opts model;
    struct strata_advice_opts question = {.model = &model, .machine = &machine};
    struct st_advice answer = {0};
    struct strata_plan *plan = NULL;
    char nvme[DIRS_BYTES];
    double tokens = 0;
    strata_status st = check(args);
    int code;

    if (st == STRATA_OK && (st = check_outputs(args)) == STRATA_OK && (st = parse_tokens(&tokens, args->tokens)) == STRATA_OK &&
        (st = make_question(&question, nvme, args)) == STRATA_OK) {
        cli_progress_init(&progress, stderr, args->quiet, 0, 0);
        run.progress = &progress;
        cli_run_machine_opts(&run, &machine);
        cli_run_model_opts(&run, &model);
        model.progress = watch;
        if (args->data.count > 0)
            st = strata_data_documents(args->data.items, args->data.count, &model.documents);
        if (st == STRATA_OK)
            st = strata_advice_make(&answer, &plan, &question);
        cli_progress_work_end(&progress);
        if (st == STRATA_OK && plan != NULL)
            st_plan_note_memory(plan);
    }
    if (st == STRATA_OK && (st = write_config(args, &answer)) == STRATA_OK)
        st = show(args, &answer, plan, tokens);
    if (st == STRATA_OK && plan != NULL)
        st = cli_plan_picture(plan, args);
    code = st != STRATA_OK         ? cli_fail(st)
           : answer.config != NULL ? 0
                                   : cli_fail(st_error(STRATA_E_NOFIT, "%s: the answer says what would",
                                                       adapters_fit(&answer) ? "full training does not fit" : "nothing fits"));
    strata_plan_destroy(plan);
    st_advice_free(&answer);
    free((void *)question.overrides);
    cli_progress_fini(&progress);
    return code;
}

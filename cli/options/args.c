/* cli/options/args.c - parses the command line by the option table, word by word, and checks what must be given. */
#include "cli/options/args.h"
#include "cli/options/args_table.h"
#include "cli/options/args_values.h"
#include "cli/options/args_words.h"
#include "cli/options/name.h"
#include "cli/options/patterns.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/json/json.h"
#include "core/system/file.h"
#include "core/system/launch.h"
#include "core/yaml/yaml.h"
#include "strata/recipe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LORA_BYTES_MAX (1u << 20)

/* --- the loop --- */

struct cursor {
    int argc, at; /* at: next word */
    char **argv;
};

static bool is_option(const char *word)
{
    return word[0] == '-' && word[1] == '-' && word[2] != '\0';
}

/* "--name" or "--name=value": name copied, *value after the "=" or NULL. */
static strata_status option_split(const char *word, char name[CLI_WORD_MAX], const char **value)
{
    const size_t length = strcspn(word + 2, "=");

    if (length >= CLI_WORD_MAX)
        return st_error(STRATA_E_INVAL, "unknown option %.80s", word);
    memcpy(name, word + 2, length);
    name[length] = '\0';
    *value = word[2 + length] == '=' ? word + 2 + length + 1 : NULL;
    return STRATA_OK;
}

static strata_status option_take(struct cli_args *args, struct cursor *c, const char *word)
{
    const struct cli_option *o;
    char name[CLI_WORD_MAX];
    const char *value = NULL;
    strata_status st = option_split(word, name, &value);

    if (st != STRATA_OK)
        return st;
    o = cli_option_find(args->command, name);
    if (cli_words_want(args, o, name, value != NULL ? value : c->argv[c->at])) {
        if (value == NULL) /* a switch may have no value */
            value = c->at == c->argc || is_option(c->argv[c->at]) ? "true" : c->argv[c->at++];
        return cli_words_take(args, word, name, value);
    }
    if (o == NULL)
        return cli_option_unknown(args->command, name);
    if (o->kind == VALUE_ELSEWHERE)
        return st_error(STRATA_E_INVAL, "--%s is no option here: %s", name, o->value);
    if (o->kind == VALUE_FLAG) {
        if (value != NULL)
            return st_error(STRATA_E_INVAL, "--%s takes no value", name);
        if (o->offset == NO_OFFSET)
            return cli_override_push(args, o->key, "true");
        *(bool *)((char *)args + o->offset) = true;
        return STRATA_OK;
    }
    if (value == NULL && (c->at == c->argc || is_option(c->argv[c->at])))
        return st_error(STRATA_E_INVAL, "--%s needs a value: %s", name, cli_option_value(o, args->command));
    st = cli_value_take(args, o, value != NULL ? value : c->argv[c->at++]);
    while (st == STRATA_OK && o->kind == VALUE_LIST && value == NULL && c->at < c->argc && c->argv[c->at][0] != '-' &&
           !cli_words_says_key(args, c->argv[c->at]))
        st = cli_value_take(args, o, c->argv[c->at++]);
    return st;
}

static strata_status word_take(struct cli_args *args, struct cursor *c)
{
    const char *word = c->argv[c->at++];
    strata_status st;

    if (strcmp(word, "-h") == 0) {
        args->help = true;
        return STRATA_OK;
    }
    if (is_option(word))
        return option_take(args, c, word);
    if (args->command == CLI_CMD_LAUNCH && (strcmp(word, "-n") == 0 || strcmp(word, "-np") == 0))
        return option_take(args, c, "--ranks");
    if (word[0] == '-' && word[1] != '\0')
        return st_error(STRATA_E_INVAL, "unknown option %s: --help lists the options", word);
    st = cli_list_push(&args->positional, word);
    while (st == STRATA_OK && args->command == CLI_CMD_LAUNCH && c->at < c->argc) /* the ranks' command line */
        st = cli_list_push(&args->positional, c->argv[c->at++]);
    return st;
}

/* --- a trainer's file --- */

/* Options of a file that one of the command line's stands instead of. */
static const char *const instead[][2] = {
    {"epochs", "max-steps"},
    {"max-steps", "epochs"},
    {"val-size", "eval-data"},
    {"eval-dataset", "eval-data"},
    {"eval-dataset", "data"},
    {"adapter", "lora"},
    {"cutoff-len", "seq-len"},
    {"data", "dataset"},
    {"dataset", "data"},
    {"dataset-info", "data"},
    {"template", "data"},
    {"layout", "data"},
    {"max-samples", "data"},
    {"seq-len", "cutoff-len"},
    {"val-size", "eval-dataset"},
    {"eval-dataset", "val-size"},
    {"train-on-prompt", "mask-history"},
    {"mask-history", "train-on-prompt"},
    {"val-size", "data"},
    {"eval-data", "data"},
    {"eval-data", "eval-dataset"},
    {"eval-data", "val-size"},
    {"mask-history", "data"},
    {"train-on-prompt", "data"},
    {"train-turn-ends", "data"},
    {"as-trl", "data"},
};

static bool is_on_line(const struct cli_args *args, const struct cursor *c, const char *name)
{
    const struct cli_option *o = cli_option_find(args->command, name);
    const char *value;
    char word[CLI_WORD_MAX];

    for (int i = 2; i < c->argc; i++)
        if (is_option(c->argv[i]) && !cli_words_has(args, c->argv[i]) && option_split(c->argv[i], word, &value) == STRATA_OK &&
            cli_option_find(args->command, word) == o)
            return true;
    return false;
}

/* How often the file evaluates, where the line has other data and nothing to evaluate. */
static bool evaluates_nothing(const struct cli_args *args, const struct cursor *c, const char *name)
{
    return strcmp(name, "eval-every") == 0 && is_on_line(args, c, "data") && !is_on_line(args, c, "eval-data") &&
           !is_on_line(args, c, "eval-dataset") && !is_on_line(args, c, "val-size");
}

static bool is_replaced(const struct cli_args *args, const struct cursor *c, const char *name)
{
    if (evaluates_nothing(args, c, name))
        return true;
    for (size_t i = 0; i < sizeof(instead) / sizeof(instead[0]); i++)
        if (strcmp(instead[i][0], name) == 0 && is_on_line(args, c, instead[i][1]))
            return true;
    return is_on_line(args, c, name);
}

/* Checkpoints are beside the output that the command line names. */
static strata_status save_beside(struct cli_args *args, const struct cli_option *save)
{
    size_t length = strlen(args->out);
    char *dir = NULL;
    strata_status st;

    while (length > 1 && args->out[length - 1] == '/')
        length--;
    if (asprintf(&dir, "%.*s.checkpoints", (int)length, args->out) < 0)
        return st_nomem(0);
    st = cli_value_take(args, save, dir);
    free(dir);
    return st;
}

/* The first problem of the file, before anything that is missing because of it. */
static strata_status recipe_problem(const struct strata_recipe *recipe)
{
    const char *first = strata_recipe_problem(recipe, 0);
    uint32_t count = 0;

    while (strata_recipe_problem(recipe, count) != NULL)
        count++;
    if (count > 1)
        return st_error(STRATA_E_CONFIG, "%s (and %u more: strata check lists them)", first, count - 1);
    return count == 0 ? STRATA_OK : st_error(STRATA_E_CONFIG, "%s", first);
}

/* What the file sets stands before what the command line sets, which replaces it. */
static void overrides_first(struct cli_list *list, uint32_t from)
{
    for (uint32_t i = from; i < list->count; i++)
        for (uint32_t k = i; k > i - from; k--) {
            const char *item = list->items[k];

            list->items[k] = list->items[k - 1];
            list->items[k - 1] = item;
        }
}

/* The adapter of the command line has settings, which replace the file's. */
static strata_status replace_adapter(struct cli_args *args)
{
    const char *key = strata_recipe_key_of(args->recipe, "strata.lora");

    if (key != NULL)
        st_log(ST_LOG_NOTICE, "%s: %s: --adapter %s has settings, and those here are not used",
               args->recipe_file != NULL ? args->recipe_file : "command line", key, args->adapter);
    return cli_override_push(args, "strata.lora", "null");
}

/* Options of the file that the command line does not give. */
static strata_status recipe_options(struct cli_args *args, const struct cursor *c)
{
    const uint32_t from = args->overrides.count;
    const char *name, *value;
    strata_status st = STRATA_OK;

    if (is_on_line(args, c, "adapter"))
        st = replace_adapter(args);
    for (uint32_t i = 0; st == STRATA_OK && strata_recipe_option(args->recipe, i, &name, &value); i++) {
        const struct cli_option *o = cli_option_find(args->command, name);

        if (o == NULL)
            return st_error(STRATA_E_CONFIG, "the recipe asks for --%s %s, which is not in this version", name,
                            value != NULL ? value : "");
        if (is_replaced(args, c, name))
            continue;
        if (o->kind == VALUE_FLAG)
            *(bool *)((char *)args + o->offset) = true;
        else if (strcmp(name, "save") == 0 && args->out != NULL) /* of the line, or the file's own */
            st = save_beside(args, o);
        else if (strcmp(name, "save") != 0 || value[0] != '\0')
            st = cli_value_take(args, o, value);
    }
    overrides_first(&args->overrides, from);
    return st;
}

/* Its name, where the words name one; that of a configuration may stand there, too, which is told later. */
static const char *recipe_name(const struct cli_args *args)
{
    const char *file = args->positional.count > 0 ? args->positional.items[0] : NULL;

    return file != NULL && (st_yaml_is_name(file) || st_path_ends(file, ".json")) ? file : NULL;
}

/* llama2_7b_qlora_alpaca_e3: XTuner's configurations by name tell the method and the epochs. */
static bool is_of_xtuner(const char *word)
{
    const char *end = strrchr(word, '_');

    return end != NULL && end[1] == 'e' && end[2] != '\0' && end[2 + strspn(end + 2, "0123456789")] == '\0' &&
           (strstr(word, "lora_") != NULL || strstr(word, "full_") != NULL);
}

/* train FILE.yaml key=value ...: both are taken from the words.  What check is given may be a configuration. */
static strata_status recipe_take(struct cli_args *args, const struct cursor *c)
{
    const char *file = recipe_name(args);
    const bool checks = args->command == CLI_CMD_CHECK;
    strata_status st;

    if (args->positional.count > 0 && (is_of_xtuner(args->positional.items[0]) || st_path_ends(args->positional.items[0], ".py")))
        return st_error(STRATA_E_CONFIG,
                        "%s: Python files are not run: write XTuner's training arguments (load_from, dataset, lr, ...) into a "
                        ".yaml or .json file",
                        args->positional.items[0]);
    if (file == NULL && !args->is_a_run)
        return cli_words_refuse(args);
    if ((st = cli_words_of(args, file != NULL ? 1 : 0)) != STRATA_OK || (st = cli_words_add_schedule(args)) != STRATA_OK)
        return st;
    st = strata_recipe_open_words(&args->recipe, file, args->words.items, args->words.count, args->allow_unknown);
    if (st != STRATA_OK)
        return checks && st == STRATA_E_CONFIG && args->words.count == 0 ? STRATA_OK : st;
    args->recipe_file = file;
    if (!checks && (st = recipe_problem(args->recipe)) != STRATA_OK)
        return st;
    st = recipe_options(args, c);
    if (!checks && file != NULL) {
        args->positional.count--;
        memmove(args->positional.items, args->positional.items + 1, args->positional.count * sizeof(args->positional.items[0]));
    }
    return st;
}

/* --- what a command requires --- */

static strata_status require(bool given, const char *what)
{
    return given ? STRATA_OK : st_error(STRATA_E_INVAL, "missing argument: %s", what);
}

static strata_status require_words(const struct cli_args *args, uint32_t most, const char *what)
{
    if (args->positional.count > most)
        return st_error(STRATA_E_INVAL, "unexpected argument \"%s\": --help shows what this command takes",
                        args->positional.items[most]);
    return require(most == 0 || args->positional.count > 0, what);
}

static strata_status check_prompt(const struct cli_args *args)
{
    const int given = (args->prompt != NULL) + (args->prompt_file != NULL) + (args->prompt_tokens != NULL);
    const char *for_chat = args->system != NULL            ? "system"
                           : args->chat_template != NULL   ? "template"
                           : args->template_kwargs != NULL ? "chat-template-kwargs"
                           : args->date != NULL            ? "date"
                           : args->context != 0            ? "context"
                                                           : NULL;

    if (!args->chat && for_chat != NULL)
        return st_error(STRATA_E_INVAL, "--%s needs --chat: only a conversation has one", for_chat);
    if (args->chat && args->prompt_tokens != NULL)
        return st_error(STRATA_E_INVAL, "--chat and --prompt-tokens exclude each other: a message is text");
    if (given > 1)
        return st_error(STRATA_E_INVAL, "--prompt, --prompt-file and --prompt-tokens exclude each other");
    return require(given == 1 || args->chat, "--prompt TEXT, --prompt-file FILE, --prompt-tokens ID,ID,... or --chat");
}

static strata_status check_export(const struct cli_args *args)
{
    const char *for_merge = args->adapter != NULL ? "adapter" : args->model != NULL ? "model" : NULL;

    if (!args->merge && for_merge != NULL)
        return st_error(STRATA_E_INVAL, "--%s needs --merge: without it a checkpoint is written as it is", for_merge);
    if (args->adapter != NULL && args->model == NULL)
        return st_error(STRATA_E_INVAL, "--adapter %s needs --model DIR: the weights to add it to", args->adapter);
    return require_words(args, args->adapter != NULL ? 0 : 1, "DIR, a checkpoint or what --save named");
}

bool cli_args_list_hardware(const struct cli_args *args)
{
    return args->gpu != NULL && (strcmp(args->gpu, "list") == 0 || strcmp(args->gpu, "help") == 0);
}

/* Options of a run that go together, or not. */
static strata_status check_together(const struct cli_args *args)
{
    if ((args->datasets.count + args->eval_datasets.count > 0) != (args->dataset_info != NULL))
        return st_error(STRATA_E_INVAL, "--dataset NAME and --dataset-info FILE.json go together");
    if (args->seq_len > 0 && args->cutoff_len > 0)
        return st_error(STRATA_E_INVAL, "--seq-len and --cutoff-len exclude each other: both say how long a sequence is");
    if (args->max_steps > 0 && args->epochs > 0)
        return st_error(STRATA_E_INVAL, "--max-steps and --epochs exclude each other: both say how long the run is");
    return STRATA_OK;
}

static strata_status check_checked(const struct cli_args *args)
{
    strata_status st = STRATA_OK;

    if (args->positional.count > 0 || (args->recipe == NULL && !st_launch_by_accelerate((const char *const *)environ)))
        st = require_words(args, args->config_file == NULL || args->recipe != NULL ? 1 : 0,
                           "CONFIG.json, the configuration to check");
    return st == STRATA_OK ? check_together(args) : st;
}

static strata_status args_check(const struct cli_args *args)
{
    strata_status st;

    switch (args->command) {
    case CLI_CMD_TOKENS:
        st = args->datasets.count > 0 ? STRATA_OK : require_words(args, UINT32_MAX, "TEXT, a file of text or rows");
        if (st == STRATA_OK && (args->datasets.count > 0) != (args->dataset_info != NULL))
            return st_error(STRATA_E_INVAL, "--dataset NAME and --dataset-info FILE.json go together");
        return st == STRATA_OK ? require(args->out != NULL, "--out FILE.bin") : st;
    case CLI_CMD_CHECK:
        return check_checked(args);
    case CLI_CMD_DIGEST:
        return require_words(args, 1, "DIR, a Hugging Face directory or a checkpoint");
    case CLI_CMD_VERIFY:
        return require_words(args, 1, "DIR, a checkpoint or what --save named");
    case CLI_CMD_EXPORT:
        st = check_export(args);
        return st == STRATA_OK ? require(args->out != NULL, "--out DIR") : st;
    case CLI_CMD_IMPORT:
        st = require_words(args, 1, "DIR, what tools/import_deepspeed.py made");
        if (st == STRATA_OK)
            st = require(args->model != NULL, "--model DIR");
        if (st == STRATA_OK)
            st = require(args->config_file != NULL, "--config FILE.json");
        return st == STRATA_OK ? require(args->out != NULL, "--out DIR") : st;
    case CLI_CMD_BENCH_STEP:
        st = require_words(args, 1, "step");
        return st == STRATA_OK ? require(args->model != NULL, "--model PRESET|DIR") : st;
    case CLI_CMD_BENCH_IO:
        return require(args->nvme.count > 0 || args->positional.count > 1, "DIR, a directory on the drive");
    case CLI_CMD_TUNE:
        return require(args->nvme.count > 0 || args->positional.count > 0, "--nvme DIR, a directory on the drive");
    case CLI_CMD_BENCH:
        return require_words(args, 1, "NAME, the bench to run: strata bench --help lists them");
    case CLI_CMD_LAUNCH:
        st = require(args->ranks > 0, "-n N, the number of processes");
        return st == STRATA_OK ? require_words(args, UINT32_MAX, "COMMAND, what they run: train, eval, generate or info") : st;
    case CLI_CMD_INFO:
    case CLI_CMD_TRAIN:
    case CLI_CMD_PLAN:
    case CLI_CMD_EVAL:
    case CLI_CMD_GENERATE:
        break;
    }
    st = require_words(args, 0, "");
    if (st != STRATA_OK || args->command == CLI_CMD_INFO || cli_args_list_hardware(args))
        return st;
    st = require(args->model != NULL, "--model PRESET|DIR");
    if (st == STRATA_OK && args->measure && (args->gpu != NULL || args->machine != NULL))
        return st_error(STRATA_E_INVAL, "--measure times this machine, and --%s %s describes another: leave one out",
                        args->gpu != NULL ? "gpu" : "machine", args->gpu != NULL ? args->gpu : args->machine);
    if (st == STRATA_OK && args->command == CLI_CMD_GENERATE)
        return check_prompt(args);
    if (st == STRATA_OK && args->command != CLI_CMD_PLAN)
        st = require(args->data.count + args->datasets.count > 0, "--data FILE");
    if (st == STRATA_OK && args->command == CLI_CMD_TRAIN)
        st = require(args->max_steps > 0 || args->epochs > 0, "--max-steps N or --epochs N");
    return st == STRATA_OK ? check_together(args) : st;
}

/* All directories form one value of the config: DeepSpeed's nvme_path, comma-separated. */
static strata_status nvme_override(struct cli_args *args)
{
    char text[4096] = "";
    size_t length = 0;

    for (uint32_t i = 0; i < args->nvme.count; i++) {
        const strata_status st = cli_name_check_dir(args->nvme.items[i]);

        if (st != STRATA_OK)
            return st;
        length += (size_t)snprintf(text + length, sizeof(text) - length, "%s%s", i == 0 ? "" : ",", args->nvme.items[i]);
        if (length >= sizeof(text))
            return st_error(STRATA_E_INVAL, "--nvme: the directories' names are longer than %zu bytes together", sizeof(text));
    }
    return cli_name_push(args, "strata.nvme", text);
}

/* The file's text is the value of a key. */
static strata_status lora_override(struct cli_args *args)
{
    st_json *root = NULL;
    char *text = NULL;
    uint64_t bytes;
    strata_status st = st_file_read_text(&text, &bytes, args->lora, LORA_BYTES_MAX);

    if (st == STRATA_OK)
        st = st_json_parse(&root, text, bytes, args->lora); /* names the line of what is no JSON */
    st_json_free(root);
    if (st == STRATA_OK)
        st = cli_override_push(args, "strata.lora", text);
    free(text);
    return st == STRATA_OK ? st : st_error_prefix(st, "--lora");
}

/* What an option that counts once is given at argv[i], and its name, with --set its path; false: it is no such option. */
static bool given_at(char name[CLI_WORD_MAX], const char **value, const struct cli_args *args, const struct cursor *c, int i)
{
    const struct cli_option *o = NULL;

    if (is_option(c->argv[i]) && !cli_words_has(args, c->argv[i]) && option_split(c->argv[i], name, value) == STRATA_OK)
        o = cli_option_find(args->command, name);
    if (o == NULL || (o->kind != VALUE_TEXT && o->kind != VALUE_COUNT && o->kind != VALUE_REAL && o->kind != VALUE_SIZE &&
                      o->kind != VALUE_SET))
        return false;
    if (*value == NULL)
        *value = i + 1 < c->argc ? c->argv[i + 1] : "";
    snprintf(name, CLI_WORD_MAX, "--%s", o->names[0]);
    if (o->kind != VALUE_SET)
        return true;
    snprintf(name, CLI_WORD_MAX, "--set %.*s", (int)strcspn(*value, "="), *value);
    *value += strcspn(*value, "=");
    *value += **value == '=';
    return true;
}

/* The last of several values counts, as it does elsewhere; a notice says so. */
static void tell_repeats(const struct cli_args *args, const struct cursor *c)
{
    for (int i = 2; i < c->argc && args->command != CLI_CMD_LAUNCH; i++) { /* each rank does so */
        char name[CLI_WORD_MAX], other[CLI_WORD_MAX];
        const char *value, *last = NULL, *next;
        bool first = true;

        if (!given_at(name, &value, args, c, i))
            continue;
        for (int k = 2; k < c->argc && first; k++)
            if (k != i && given_at(other, &next, args, c, k) && strcmp(name, other) == 0) {
                first = k > i;
                last = next;
            }
        if (first && last != NULL && strcmp(value, last) != 0)
            st_log(ST_LOG_NOTICE, "%s is given twice: %s counts, not %s", name, last, value);
    }
}

strata_status cli_args_parse(struct cli_args *args, enum cli_command command, int argc, char **argv)
{
    struct cursor c = {.argc = argc, .at = 2, .argv = argv};
    strata_status st = STRATA_OK;

    *args = (struct cli_args){.command = command,
                              .line = {(const char **)argv + 1, (uint32_t)argc - 1},
                              .device = "cpu",
                              .tokenizer = command == CLI_CMD_TOKENS ? "byte" : NULL,
                              .temperature = (double)NAN,
                              .rank = CLI_NOT_GIVEN,
                              .world_size = CLI_NOT_GIVEN,
                              .local_rank = CLI_NOT_GIVEN,
                              .local_world_size = CLI_NOT_GIVEN,
                              .master_port = CLI_NOT_GIVEN};
    args->is_a_run = cli_words_are_a_run(command, argc, argv);
    while (st == STRATA_OK && c.at < c.argc)
        st = word_take(args, &c);
    if (st == STRATA_OK && !args->help)
        tell_repeats(args, &c);
    if (st == STRATA_OK && !args->help && (command & (TRAINS | CLI_CMD_CHECK)) != 0)
        st = recipe_take(args, &c);
    if (st == STRATA_OK && !args->help && command != CLI_CMD_CHECK) /* which does so for its verdict */
        st = cli_patterns_expand(args);
    if (st == STRATA_OK && args->nvme.count > 0 && (command & (CONFIGURES | CLI_CMD_BENCH_STEP | CLI_CMD_INFO)) != 0)
        st = nvme_override(args);
    if (st == STRATA_OK && !args->help)
        st = args_check(args);
    if (st == STRATA_OK && !args->help && args->lora != NULL)
        st = lora_override(args);
    return st;
}

void cli_args_fini(struct cli_args *args)
{
    for (uint32_t i = 0; i < args->overrides.count; i++)
        free((void *)(uintptr_t)args->overrides.items[i]);
    free(args->overrides.items);
    for (uint32_t i = 0; i < args->matched.count; i++)
        free((void *)(uintptr_t)args->matched.items[i]);
    free(args->matched.items);
    for (uint32_t i = 0; i < args->words.count; i++)
        free((void *)(uintptr_t)args->words.items[i]);
    free(args->words.items);
    free(args->word_options.items);
    free(args->positional.items);
    free(args->data.items);
    free(args->datasets.items);
    free(args->eval_datasets.items);
    strata_recipe_close(args->recipe);
    free(args->nvme.items);
    free(args->adapters.items);
    free(args->layouts.items);
    free(args->likes.items);
    free(args->budgets.items);
    free(args->drives.items);
}
